#!/bin/sh
# Names and titles that are code for a shell, gnuplot, HTML or YAML are text everywhere: SECURITY.md.
. tests/cli/tap.sh

# What is run instead of being shown makes a file.
mkdir "$W/ran"
NAME="\\\"; system('touch $W/ran/gnuplot'); \`touch $W/ran/ticks\` \$(touch $W/ran/shell) <script>open()</script> ' %s"
NAME="$NAME\\nset output \\\"|touch $W/ran/pipe\\\"\\n!touch $W/ran/bang"
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
# --- the same of a cluster, its devices, currency and sources, of names of files, and of measured rows ---
if command -v python3 >/dev/null 2>&1; then
    "$DEGAS" show dgx-a100-80g --json | python3 -c "
import json, sys
name = json.loads(sys.argv[1])
def spoil(o):
    for k, v in o.items() if isinstance(o, dict) else enumerate(o):
        if k in ('name', 'device', 'currency'):
            o[k] = name
        elif k == 'sources':
            o[k] = [name]
        elif isinstance(v, (dict, list)):
            spoil(v)
    return o
json.dump(spoil(json.load(sys.stdin)), sys.stdout)" "\"$NAME\"" >"$W/cluster.json"
    runs 0 "a sweep on such a cluster" sweep "$W/model.json" "$W/cluster.json" --gpus 1,2 --global-batch 4 --slices off \
        --schedule 1f1b --price 2 -o "$W/s.json" --html "$W/s.html"
    runs 0 "its explanation" plan "$W/model.json" "$W/cluster.json" --gpus 2 --global-batch 4 --slices off --schedule 1f1b \
        --explain --html "$W/e.html" -o "$W/plan2.json"
    cp "$W/t.json" "$W/a';system('touch $(echo "$W" | tr / _)')<script>open().json"
    runs 0 "names of files" compare "$W"/a*.json "$W/t.json" --html "$W/c.html"
    cat >"$W/rows.csv" <<'END'
source,id,gpu,gpus,model,layers,hidden,heads,vocab,seq,global_batch,micro_batch,dp,tp,pp,schedule,recompute,dtype,measured_iter_ms,status
"m'<script>open()</script>|[x](y)","`touch ran`",A100-SXM4-80GB,8,gpt,8,1024,16,51200,1024,64,1,8,1,1,1f1b,none,fp16,200,ok
END
    runs 0 "measured rows" validate dgx-h100 "$W/rows.csv" --page "$W/v.md" --html "$W/v.html" -o "$W/v.json"
    ! grep -qE '<script>open|\|\[x' "$W/v.md" "$W"/*.html
    report $? "pages show them and run nothing" "$(grep -nE '<script>open|\|\[x' "$W/v.md" "$W"/*.html | cut -c1-300 | head -5)"
    if command -v gnuplot >/dev/null 2>&1; then
        runs 0 "a picture of the sweep" plot "$W/s.json" -o "$W/s.svg"
        runs 0 "a picture of two files" plot "$W"/a*.json "$W/t.json" -o "$W/two.svg"
        ! grep -q '<script>open' "$W/s.svg" "$W/two.svg"
        report $? "pictures show them, too" ""
    fi
else
    skip "clusters, names of files, rows" "python3 is not installed"
fi
[ -z "$(ls "$W/ran")" ]
report $? "nothing was run" "$(ls "$W/ran")"
finish
