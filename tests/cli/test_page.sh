#!/bin/sh
# --html: the page says what the terminal says, loads nothing, runs nothing from outside, and is the
# same bytes for the same question; without gnuplot it is there all the same.
. tests/cli/tap.sh

cat >"$W/tiny.json" <<'JSON'
{"format":"degas-model","version":1,"name":"tiny <b>&amp; co","family":"gpt","n_layers":4,"hidden":64,
 "n_heads":4,"vocab":256,"max_seq_len":64}
JSON
# page FILE NAME: it is whole, loads nothing, and has no mark of the template left
page() {
    grep -q "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:" "$1" &&
        ! grep -Eq '(src|href)="?(http|//|[a-z]*\.)|@import|url\(h|@@[a-z]+@@' "$1" &&
        tail -1 "$1" | grep -q '^</html>$'
    report $? "$2: one file that loads nothing" "$(grep -En '(src|href)=|@@' "$1" | cut -c1-200)"
}
# cells FILE: what stands in the page's tables, a word a line; words: the same of the terminal
cells() {
    sed -n 's/^<tr>//p' "$1" | sed 's/<t[hd][^>]*>/\n/g' | tr ' ' '\n' | grep . | sort
}

# --- plan ---
set -- "$W/tiny.json" dgx-a100-80g --gpus 8 --global-batch 16 --pp 2 --top 2
runs 0 "plan" plan "$@" --html "$W/plan.html"
page "$W/plan.html" "plan"
grep -q '<title>tiny &lt;b&gt;&amp;amp; co on dgx-a100-80g</title>' "$W/plan.html" && ! grep -q '<b>&amp; co' "$W/plan.html"
report $? "a model's name is text on it" "$(grep -m1 '<title>' "$W/plan.html")"
# Every word of the tables of the terminal stands in a cell.
sed -n '/^ *dp  tp/,/^$/p; /^rank  /,/^$/p' "$W/out" | grep -v '^\*\|^[0-9]* takes ' | tr -s ' ' '\n' | grep . | sort >"$W/words"
cells "$W/plan.html" >"$W/cells"
[ "$(wc -l <"$W/words")" -gt 50 ] && [ -z "$(comm -23 "$W/words" "$W/cells")" ]
report $? "its tables are those of the terminal" "$(comm -23 "$W/words" "$W/cells" | head)"
iteration=$(sed -n 's/^iteration \([^,]*\),.*/\1/p' "$W/out")
grep -q "<b>$iteration</b><span class=\"faint\">iteration<" "$W/plan.html"
report $? "and its first number is the iteration" "$iteration"
runs 0 "with JSON on stdout" plan "$@" --html "$W/again.html" --json --threads 1
cmp -s "$W/plan.html" "$W/again.html"
report $? "it is the same page"
json "and stdout is one object" "assert d['format'] == 'degas-plan'"
fails 4 'no folder' "a page in no folder, before the search" plan "$@" --html "$W/no/p.html"

# --- sweep ---
set -- "$W/tiny.json" dgx-a100-80g --gpus 8,16 --global-batch 16 --pp 2 --tokens 1B --price 2
mkdir "$W/bin"
ln -s "$(command -v cat)" "$W/bin/cat"
PATH_BEFORE=$PATH
PATH=$W/bin
runs 0 "sweep without gnuplot" sweep "$@" --html "$W/none.html"
PATH=$PATH_BEFORE
grep -q 'without its picture' "$W/err" && grep -q 'was no gnuplot' "$W/none.html"
report $? "the page is there and says what is missing" "$(cat "$W/err")"
page "$W/none.html" "sweep"
if command -v gnuplot >/dev/null 2>&1; then
    runs 0 "sweep with it" sweep "$@" --html "$W/sweep.html"
    [ "$(grep -c '<img alt="[^"]*" src="data:image/svg+xml;base64,PD94' "$W/sweep.html")" = 1 ]
    report $? "the picture is in it, as SVG"
    page "$W/sweep.html" "sweep with a picture"
    sed 's/<div class="scroll picture.*//' "$W/sweep.html" >"$W/a"
    sed 's/<p>The picture that belongs here.*//' "$W/none.html" >"$W/b"
    cmp -s "$W/a" "$W/b"
    report $? "nothing else differs"
else
    skip "sweep with it" "gnuplot is not installed"
fi
days=$(sed -n "s/^fastest *\(.*\) devices: \(.*\) days.*/\2<\/b><span class=\"faint\">days on \1 devices/p" "$W/out")
[ -n "$days" ] && grep -qF "<b>$days, the fastest<" "$W/none.html"
report $? "its first number is the days of the fastest" "$days"

# --- compare: F 1, B 2 of 1F1B beside the same work without overlap ---
for schedule in 1f1b naive; do
    "$DEGAS" schedule $schedule --pp 4 --microbatches 8 --json >"$W/s.json"
    "$DEGAS" simulate --schedule-file "$W/s.json" --op-times F=1,B=2 --trace "$W/$schedule.json" >/dev/null
done
runs 0 "compare" compare "$W/1f1b.json" "$W/naive.json" --html "$W/compare.html"
page "$W/compare.html" "compare"
# 33 s of 96 s: 8 s of forwards are 8.33 % of the longest bar, in both.
[ "$(grep -o '<i style="width:8.33%;background:#0072b2" title="forward"' "$W/compare.html" | wc -l)" = 2 ]
report $? "bars of one scale" "$(grep -o '<i style="width:[^"]*"' "$W/compare.html")"
runs 0 "three of them, quietly" compare "$W/1f1b.json" "$W/naive.json" "$W/1f1b.json" --html "$W/three.html" -o "$W/c.json"
[ ! -s "$W/out" ] && [ "$(grep -c '<div class="bar">' "$W/three.html")" = 3 ]
report $? "a bar for each"

runs 0 "on stdout" compare "$W/1f1b.json" "$W/naive.json" --html -
cmp -s "$W/out" "$W/compare.html"
report $? "the page alone" "$(head -3 "$W/out")"
fails 2 'one product' "and nothing else" compare "$W/1f1b.json" "$W/naive.json" --html - --json

# --- validate and calibrate ---
cat >"$W/m.csv" <<'CSV'
source,id,gpu,gpus,model,layers,hidden,heads,vocab,seq,global_batch,micro_batch,dp,tp,pp,schedule,recompute,dtype,measured_iter_ms,status
mine,a,A100-SXM4-80GB,8,gpt,24,2048,16,51200,1024,64,4,2,2,2,1f1b,none,fp16,900,ok
mine,b,A100-SXM4-80GB,8,gpt,24,2048,16,51200,1024,64,4,8,1,1,1f1b,none,fp16,800,ok
mine,c<i>,A100-SXM4-80GB,8,gpt,24,2048,16,51200,1024,64,4,4,2,1,1f1b,none,fp16,850,ok
CSV
PATH=$W/bin
runs 0 "validate" validate dgx-a100-80g "$W/m.csv" --html "$W/validate.html"
runs 0 "calibrate" calibrate dgx-a100-80g "$W/m.csv" -o "$W/fitted.json" --html "$W/calibrate.html"
PATH=$PATH_BEFORE
page "$W/validate.html" "validate"
page "$W/calibrate.html" "calibrate"
grep -q 'mean error of time, 3 rows' "$W/validate.html" && grep -q 'c&lt;i&gt;: measured 850 ms' "$W/validate.html"
report $? "one's own rows are on it, and their names are text"

# --- run ---
"$DEGAS" plan "$W/tiny.json" local-cpu --gpus 2 --global-batch 4 --dtype fp32 --pp 2 --framework degas \
    -o "$W/run.json" >/dev/null
runs 0 "run" run "$W/run.json" --device reference --steps 2 --html "$W/run.html"
page "$W/run.html" "run"
grep -q 'measured step</span>' "$W/run.html" && grep -q 'id="timeline"' "$W/run.html"
report $? "the measured step and its timeline"
finish
