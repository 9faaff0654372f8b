#!/bin/sh
# Names and titles that are code for a shell, gnuplot, HTML or YAML are text everywhere: SECURITY.md.
. tests/cli/tap.sh

# What is run instead of being shown makes a file.
mkdir "$W/ran"
NAME="\\\"; system('touch $W/ran/gnuplot'); \`touch $W/ran/ticks\` \$(touch $W/ran/shell) <script>open()</script> ' %s
"
NAME=$(printf '%s' "$NAME" | tr -d '\n')
cat >"$W/model.json" <<END
{"format":"degas-model","version":1,"name":"$NAME","family":"gpt","n_layers":4,"hidden":32,"n_heads":2,
 "vocab":256,"max_seq_len":64}
END
runs 0 "a plan of a model with such a name" plan "$W/model.json" dgx-a100-80g --gpus 2 --pp 2 --global-batch 4 --slices off \
    --schedule 1f1b -o "$W/plan.json"
runs 0 "its table of ops" show "$W/model.json"
runs 0 "its page and trace" simulate "$W/plan.json" --trace "$W/t.json" --html "$W/page.html" -o "$W/r.json"
[ "$(grep -c '<script>open' "$W/page.html")" = 0 ] && grep -q '&lt;script&gt;open()' "$W/page.html"
report $? "the page shows it and does not run it" "$(grep -n 'open()' "$W/page.html" | head -3)"
if command -v gnuplot >/dev/null 2>&1; then
    runs 0 "its timeline" simulate "$W/plan.json" --plot "$W/p.svg"
    runs 0 "its memory" plot "$W/t.json" --kind memory -o "$W/m.svg"
    runs 0 "a title" plot "$W/t.json" -o "$W/q.svg" --title "\"; system('touch $W/ran/title') # \`touch $W/ran/title\`"
    grep -q "system(" "$W/q.svg" && ! grep -q '<script>open' "$W"/*.svg
    report $? "pictures show them" "$(grep -n 'system' "$W/q.svg" | head -3)"
else
    skip "pictures" "gnuplot is not installed"
fi
for target in megatron deepspeed; do
    if "$DEGAS" export "$W/plan.json" --to $target --bundle "$W/$target" >"$W/out" 2>"$W/err"; then
        for script in "$W/$target"/*.sh "$W/$target"/*.sbatch; do
            [ ! -e "$script" ] || bash -n "$script" || report 1 "$target: $script is a script" ""
        done
        ! grep -q 'touch /' "$W/$target"/*.sh "$W/$target"/*.sbatch "$W/$target"/*.yaml 2>/dev/null
        report $? "$target: no script of the bundle has the name's commands" "$(grep -n 'touch /' "$W/$target"/*)"
    else
        skip "$target" "it does not run this plan: $(cat "$W/err")"
    fi
done
[ -z "$(ls "$W/ran")" ]
report $? "nothing was run" "$(ls "$W/ran")"
finish
