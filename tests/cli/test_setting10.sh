#!/bin/sh
# TeraPipe's setting (10) from end to end: GPT-3 175B on 48 p3.16xlarge, published 5.822 s with whole sequences
# and 1.160 s with the best slices [Li et al. 2102.07988, table 2].  Data sheets and cost model only.
set -u
# shellcheck source=tests/cli/tap.sh
. tests/cli/tap.sh

set -- gpt3-175b p3.16xlarge --gpus 384 --vocab 0 --seq-len 2048 --global-batch 2 --dtype fp16 \
    --framework terapipe --dp 1 --tp 8 --pp 48 --micro-batch 1 --schedule terapipe

seconds() { # seconds FILE: the first iteration_s
    sed -n 's/.*"iteration_s": *\([0-9.]*\).*/\1/p' "$1" | head -1
}

# between LOW VALUE HIGH NAME
between() {
    awk -v low="$1" -v value="$2" -v high="$3" 'BEGIN { exit !(value != "" && low <= value && value <= high) }'
    report $? "$4" "$2 is not from $1 to $3"
}

runs 0 "whole sequences are planned" plan "$@" --slices off --json
one=$(seconds "$W/out")
runs 0 "the best slices are planned" plan "$@" --slices auto --json
best=$(seconds "$W/out")
between 4.3665 "$one" 7.2775 "whole sequences within 25 % of 5.822 s"
between 0.870 "$best" 1.450 "best slices within 25 % of 1.160 s"
between 3.5 "$(awk -v a="$one" -v b="$best" 'BEGIN { print a / b }')" 7 "speed-up from 3.5 to 7"

# Every cut into N equal slices (to 8 tokens), 1 <= N <= 64, in our own simulator.
i=1
while [ "$i" -le 64 ]; do
    echo "{\"id\": $i, \"model\": \"gpt3-175b\", \"cluster\": \"p3.16xlarge\", \"gpus\": 384, \"vocab\": 0, \
\"seq_len\": 2048, \"global_batch\": 2, \"dtype\": \"fp16\", \"framework\": \"terapipe\", \"dp\": 1, \"tp\": 8, \"pp\": 48, \
\"micro_batch\": 1, \"schedule\": \"terapipe\", \"slices\": $i}"
    i=$((i + 1))
done >"$W/uniform.jsonl"
runs 0 "every equal cut is simulated" simulate --batch "$W/uniform.jsonl"
sed -n 's/.*"iteration_s": *\([0-9.]*\).*/\1/p' "$W/out" >"$W/uniform"
[ "$(wc -l <"$W/uniform")" = 64 ]
report $? "64 equal cuts have a time" "$(cut -c1-200 "$W/out" | head -3)"
awk -v best="$best" '$1 < best { bad = 1; print NR " equal slices: " $1 " s < " best } END { exit bad }' \
    "$W/uniform" >"$W/worse"
report $? "no equal cut beats the planner's slices" "$(cat "$W/worse")"
# 2048 tokens are 16 tiles of 128 rows, so the best cut is itself an equal one; nothing else comes near.
awk -v best="$best" '$1 <= best * 1.000001 { n++ } END { exit n > 1 }' "$W/uniform"
report $? "at most one equal cut is as good" "$(sort -g "$W/uniform" | head -4)"
finish
