#!/bin/sh
# The commands of docs/gallery.md and docs/tutorial.md run and draw their pictures; and what compares the pictures and the
# numbers of the text with those of now (make gallery CHECK=1) can fail.
. tests/cli/tap.sh

for page in docs/gallery.md docs/tutorial.md; do
    scripts/gallery.sh --check $page >"$W/out" 2>&1
    got=$?
    [ "$got" = 0 ] || [ "$got" = 3 ]
    report $? "the commands of $page" "$(cat "$W/out")"
    # As docs/validation.md, a page is made anew when the model of costs has changed.
    [ "$got" != 3 ] || skip "$page is of now" "run make gallery: $(head -1 "$W/out")"
done
mkdir "$W/page"
cat >"$W/page.md" <<'END'
# A page
## 1. One
```
degas schedule 1f1b --pp 2 --microbatches 2
degas simulate llama3-8b dgx-h100 --pp 2 --global-batch 2 --seq-len 512 --trace t.json
degas plot t.json -o one.svg
```
![a picture](page/one.svg)
Its bubble is `33.3 %`.
END
scripts/gallery.sh "$W/page.md" >"$W/out" 2>&1 && [ -s "$W/page/one.svg" ] && scripts/gallery.sh --check "$W/page.md" >"$W/out" 2>&1
report $? "a page is made, and is true then" "$(cat "$W/out")"
sed 's/33.3 %/33.4 %/' "$W/page.md" >"$W/other.md"
cp -r "$W/page" "$W/other"
sed -i 's/page\/one/other\/one/' "$W/other.md"
scripts/gallery.sh --check "$W/other.md" >"$W/out" 2>&1
[ $? = 3 ] && grep -q 'section 1 says 33.4 %' "$W/out"
report $? "a false number is found" "$(cat "$W/out")"
echo >>"$W/page/one.svg"
scripts/gallery.sh --check "$W/page.md" >"$W/out" 2>&1
[ $? = 3 ] && grep -q 'one.svg is not what' "$W/out"
report $? "and a picture that is another one" "$(cat "$W/out")"
sed -i 's/--pp 2 --microbatches/--pp 0 --microbatches/' "$W/page.md"
scripts/gallery.sh --check "$W/page.md" >"$W/out" 2>&1
[ $? = 1 ] && grep -q 'commands of section 1 failed' "$W/out"
report $? "and a command that fails" "$(cat "$W/out")"
finish
