#!/bin/sh
# make bundle: a folder that brings its libraries along, wherever it is moved to.
. tests/cli/tap.sh

build=$(dirname "$(readlink -f "$DEGAS")")
case "$build" in
*/release) ;;
*)
    skip "a bundle" "only of the release build"
    finish
    ;;
esac
scripts/bundle.sh "$build" "$W/made" >"$W/out" 2>"$W/err"
report $? "a bundle is made and is under its limit" "$(cat "$W/out" "$W/err")"
mkdir "$W/else where"
mv "$W/made" "$W/else where/degas"
bundle="$W/else where/degas"

# Nothing of the environment, another working folder, through a link.
ln -s "$bundle/degas" "$W/link"
(cd / && env -i PATH=/usr/bin:/bin "$W/link" --version) >"$W/out" 2>"$W/err"
report $? "it runs from elsewhere through a link" "$(cat "$W/err")"
has '^degas ' "it says its version"

# Every library but the C library's own comes from the bundle.
for file in "$bundle"/lib/degas "$bundle"/lib/libopenblas.so.0; do
    [ -e "$file" ] || continue
    foreign=$(LD_LIBRARY_PATH="$bundle/lib" ldd "$file" | awk '$2 == "=>" { print $1, $3, $4 }' |
        grep -v -e " $bundle/lib/" -e '^libc\.so' -e '^libm\.so' -e '^libdl\.so' \
            -e '^libpthread\.so' -e '^librt\.so' -e '^linux-vdso')
    [ -z "$foreign" ]
    report $? "$(basename "$file") needs nothing of this machine" "$foreign"
done

"$bundle/degas" plan gpt-mini local-cpu --gpus 1 --global-batch 1 --seq-len 16 --dtype fp32 \
    --framework degas --recompute none --zero 0 -o "$W/plan.json" >"$W/out" 2>"$W/err"
report $? "it plans" "$(cat "$W/err")"
if [ -e "$bundle/lib/libopenblas.so.0" ]; then
    "$bundle/degas" run "$W/plan.json" --steps 1 --json >"$W/out" 2>"$W/err"
    report $? "it trains on the CPU" "$(cat "$W/err")"
else
    skip "it trains on the CPU" "OpenBLAS is not installed"
fi
finish
