#!/bin/sh
# degas export: plans and schedules as other programs read them, and plans that these cannot run.
. tests/cli/tap.sh

plan() {
    name=$1
    shift
    "$DEGAS" plan gpt3-13b dgx-a100-80g --gpus 8 --global-batch 16 --dp 1 --tp 2 --pp 4 \
        --micro-batch 1 "$@" -o "$W/$name" >/dev/null 2>"$W/err"
    report $? "a plan: $*" "$(cat "$W/err")"
}

# --- pytorch-csv ---
plan 1f1b.json --schedule 1f1b --slices off
runs 0 "a plan as PyTorch's CSV" export "$W/1f1b.json" --to pytorch-csv
# 1F1B, rank 3 of 4: one forward, one backward; rank 0: three forwards ahead of that
[ "$(sed -n 4p "$W/out" | cut -d, -f1-4)" = 3F0,3B0,3F1,3B1 ] &&
    [ "$(sed -n 1p "$W/out" | cut -d, -f1-6)" = 0F0,0F1,0F2,0F3,0B0,0F4 ] &&
    [ "$(wc -l <"$W/out")" = 4 ] && [ "$(tr ',' '\n' <"$W/out" | wc -l)" = 128 ]
report $? "a row for each rank, in 1F1B's order" "$(cat "$W/out")"
cp "$W/out" "$W/1f1b.csv"
runs 0 "-o writes a file" export "$W/1f1b.json" --to pytorch-csv -o "$W/again.csv"
cmp -s "$W/1f1b.csv" "$W/again.csv"
report $? "the same bytes"

for s in 1f1b interleaved zb-h1 zb-v interleaved-zb dualpipev gpipe looped-bfs; do
    runs 0 "schedule $s" schedule "$s" --pp 4 --microbatches 8 -o "$W/s.json"
    runs 0 "$s as PyTorch's CSV" export "$W/s.json" --to pytorch-csv -o "$W/s.csv"
    runs 0 "$s from JSON" simulate --schedule-file "$W/s.json" --op-times F=3,I=2,W=4 --json
    cp "$W/out" "$W/json.report"
    runs 0 "$s from CSV" simulate --schedule-file "$W/s.csv" --op-times F=3,I=2,W=4 --json
    cmp -s "$W/out" "$W/json.report"
    report $? "$s: both forms have the same report" "$(diff "$W/out" "$W/json.report")"
done

# --- what cannot be ---
plan sliced.json --schedule seq1f1b --slices 4
fails 1 'token slices cannot be expressed; the nearest plan that it can run: .* --slices off$' \
    "token slices are refused, with the way out" export "$W/sliced.json" --to pytorch-csv
plan bidir.json --schedule dualpipe --vpp 2 --slices off
fails 1 'two copies.* --schedule dualpipev --vpp 2$' "two copies of a stage are refused" \
    export "$W/bidir.json" --to pytorch-csv
"$DEGAS" schedule 1f1b --pp 2 --microbatches 2 -o "$W/s.json"
sed 's/"B0.0"/"I0.0"/' "$W/s.json" >"$W/lone.json"
fails 1 'every I has its W: there are 2 and 0' "an I without its W" \
    export "$W/lone.json" --to pytorch-csv
[ ! -e "$W/none.csv" ]
fails 1 'every I has its W' "refused with -o" export "$W/lone.json" --to pytorch-csv -o "$W/none.csv"
[ ! -e "$W/none.csv" ]
report $? "leaves no file"
fails 2 '--to: is missing; expected one of: .*pytorch-csv' "no target" export "$W/1f1b.json"
fails 2 'no target "pytorch_csv"; expected one of: .*pytorch-csv' "an unknown target" \
    export "$W/1f1b.json" --to pytorch_csv
fails 2 'memory-limit: is for plans' "a limit for a bare schedule" \
    export "$W/s.json" --to pytorch-csv --memory-limit 4GiB
fails 3 'degas-plan' "neither plan nor schedule" export models/gpt3-13b.json --to pytorch-csv
fails 4 'no-such' "no such file" export "$W/no-such.json" --to pytorch-csv
if [ -w /dev/full ]; then
    fails 4 'full\|space' "a full disk" export "$W/1f1b.json" --to pytorch-csv -o /dev/full
else
    skip "a full disk" "there is no /dev/full"
fi
finish
