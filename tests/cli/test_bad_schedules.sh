#!/bin/sh
# Schedules and sizes that cannot be simulated: what is wrong is named, nothing half-made is left.
. tests/cli/tap.sh

# schedule NAME RANKS [MEMBERS]: two ranks, two micro-batches
schedule() {
    printf '{"format":"degas-schedule","version":1,"schedule":"x","stages":2,"virtual":1,' >"$W/$1"
    printf '"microbatches":2,"slices":1%s,"ranks":%s}\n' "${3:-}" "$2" >>"$W/$1"
}

# --- cycles: both forms, named rank by rank ---
schedule cycle.json '[["F0.0","B0.0","F1.0","B1.0"],["F1.0","B1.0","F0.0","B0.0"]]'
cycle='deadlock: rank 0 waits in B0.0 for B0.0 of rank 1, which waits in F1.0 for F1.0 of rank 0'
fails 3 "cycle.json: $cycle" "a cycle" simulate --schedule-file "$W/cycle.json"
printf '0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n' >"$W/cycle.csv"
fails 3 "cycle.csv: $cycle" "a cycle in PyTorch's form" simulate --schedule-file "$W/cycle.csv"
# B1.0 of the pair needs what rank 1 makes of F1.0, and that is sent when the pair ends
schedule pair.json '[["F0.0","F1.0","B0.0","B1.0"],["F0.0","F1.0","B0.0","B1.0"]]' \
    ',"overlap_pairs":[[1],[]]'
fails 3 'pairs wait for each other' "a pair that waits for itself" \
    simulate --schedule-file "$W/pair.json" --op-times FB=2
schedule pair.json '[["F0.0","F1.0","B0.0","B1.0"],["F0.0","B0.0","F1.0","B1.0"]]' \
    ',"overlap_pairs":[[],[0]]'
fails 3 'pair.json: rank 1: F0.0 and B0.0 cannot run overlapped' "no pair" \
    simulate --schedule-file "$W/pair.json"

# --- missing, twice, out of range ---
schedule missing.json '[["F0.0","B0.0","F1.0","B1.0"],["F0.0","B0.0","F1.0"]]'
fails 3 'missing.json: rank 1: B1.0 is missing' "an op that is missing" \
    simulate --schedule-file "$W/missing.json"
printf '0F0,0B0,0F1,0B1\n1F0,1B0,1F1\n' >"$W/missing.csv"
fails 3 'missing.csv: rank 1: B1.0 is missing' "an op that is missing in a CSV" \
    simulate --schedule-file "$W/missing.csv"
schedule twice.json '[["F0.0","B0.0","F1.0","B1.0"],["F0.0","B0.0","F1.0","B1.0","B1.0"]]'
fails 3 'twice.json: rank 1: B1.0' "an op twice" simulate --schedule-file "$W/twice.json"
schedule range.json '[["F0.0","B0.0","F2.0","B1.0"],["F0.0","B0.0","F1.0","B1.0"]]'
fails 3 'range.json:1:.*micro-batch < 2.*"F2.0"' "an op out of range" \
    simulate --schedule-file "$W/range.json"
printf '0F0,0B0\n1F0,x\n' >"$W/cell.csv"
fails 3 'cell.csv: row 2, cell 2: "x" is no action' "a cell that is none" \
    simulate --schedule-file "$W/cell.csv"
printf '0F0,0B0,1F0,1B0\n2F0,2B0\n' >"$W/stages.csv"
fails 3 'stages.csv: 3 stages on 2 rows' "ranks of different numbers of stages" \
    simulate --schedule-file "$W/stages.csv"
fails 4 'no-such.csv' "no such file" simulate --schedule-file "$W/no-such.csv"

# --- more ops than there can be: the number, and the limit ---
limit='more than 268435456 ops'
fails 5 "$limit (pp 1000000, vpp 1, microbatches 1000000" "more ops than the limit" \
    schedule 1f1b --pp 1000000 --microbatches 1000000
fails 2 "$limit (pp 96, vpp 1, microbatches 1000000000" "more micro-batches than the limit" \
    simulate gpt3-175b dgx-a100-80g --global-batch 1000000000 --pp 96 --tp 8
if is_sanitized; then
    skip "more ops than memory" "a sanitizer needs all of the address space"
else
    (
        # shellcheck disable=SC3045
        ulimit -v 600000 2>/dev/null || exit 5
        "$DEGAS" simulate gpt3-175b dgx-a100-80g --global-batch 200000 --pp 96 --tp 8 --json
    ) >"$W/out" 2>"$W/err"
    got=$?
    [ "$got" = 5 ] && [ ! -s "$W/out" ] && grep -q 'no memory for [0-9]* [a-z ]*: .* of memory are available' "$W/err"
    report $? "more ops than memory: status 5, the number, and what there is" "status $got: $(cat "$W/err")"
fi

# --- products on a full disk ---
set -- simulate gpt3-13b dgx-a100-80g --global-batch 8 --tp 2 --pp 4
for product in --trace --csv --html -o; do
    if [ -w /dev/full ]; then
        fails 4 '/dev/full' "a full disk, $product" "$@" $product /dev/full
    else
        skip "a full disk, $product" "there is no /dev/full"
    fi
    (
        ulimit -f 1
        trap '' XFSZ
        "$DEGAS" "$@" $product "$W/large"
    ) >"$W/out" 2>"$W/err"
    got=$?
    if [ $product = -o ]; then
        [ "$got" = 4 ] || [ "$got" = 0 ] # a report may be that small
    else
        [ "$got" = 4 ] && [ ! -e "$W/large" ] && [ "$(wc -l <"$W/err")" = 1 ]
    fi
    report $? "a disk that fills up, $product: nothing is left" \
        "status $got: $(cat "$W/err"; ls "$W")"
done
[ "$(find "$W" -name '*large*' | wc -l)" -le 1 ]
report $? "no temporary file is left" "$(ls "$W")"
finish
