#!/bin/sh
# Every benchmark still runs: with tiny inputs.  Run from the repository's root.
. tests/cli/tap.sh
for source in tests/bench/bench_*.c; do
    name=$(basename "$source" .c)
    program=build/release/tests/bench/$name
    make -s "$program" >"$W/err" 2>&1
    report $? "$name builds" "$(cat "$W/err")"
    scripts/bench.sh --tiny "$program" >"$W/out" 2>"$W/err"
    report $? "$name runs" "$(cat "$W/out" "$W/err")"
    [ "$(wc -l <"$W/out")" -ge 3 ]
    report $? "$name prints a table" "$(cat "$W/out")"
done
finish
