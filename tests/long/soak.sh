#!/bin/sh
# A run of many steps takes no more memory at its end than at its beginning, but for what it reports of
# each step: with checkpoints, over transports local and mpi.  S seconds for both (20); make soak S=1800 is half an hour.
# shellcheck source=tests/cli/tap.sh
. tests/cli/tap.sh
# shellcheck source=tests/cli/mpi.sh
. tests/cli/mpi.sh
S=${S:-20}
plan soak --global-batch 4 --micro-batch 1 --schedule 1f1b --slices 2 --gpus 2 --dp 1 --pp 2

# rss PID...: KiB of these processes and all that they started
rss() {
    total=0
    for pid in "$@"; do
        own=$(awk '/^VmRSS/ { print $2 }' "/proc/$pid/status" 2>/dev/null)
        total=$((total + ${own:-0}))
        # shellcheck disable=SC2046
        set -- $(pgrep -P "$pid")
        while [ $# -gt 0 ]; do
            own=$(awk '/^VmRSS/ { print $2 }' "/proc/$1/status" 2>/dev/null)
            total=$((total + ${own:-0}))
            pid=$1
            shift
            # shellcheck disable=SC2046
            set -- $(pgrep -P "$pid") "$@"
        done
    done
    echo "$total"
}

# What is kept of a step: loss, begin and end of each of two ranks, in every process.
RECORD_BYTES=48

# soak TRANSPORT SECONDS PROCESSES
soak() {
    rm -rf "$W/state"
    "$DEGAS" run "$W/soak.json" --device reference --steps 1000000 --checkpoint "$W/state" --checkpoint-every 50 \
        --transport "$1" --json >"$W/out" 2>"$W/err" </dev/null &
    run=$!
    : >"$W/rss"
    # All ranks have begun when there is a state.
    while kill -0 $run 2>/dev/null && [ -z "$(find "$W/state" -name 'step-*' 2>/dev/null)" ]; do
        sleep 0.1
    done
    i=0
    while [ $i -lt 20 ] && kill -0 $run 2>/dev/null; do
        sleep "$(awk "BEGIN { print $2 / 20 }")"
        rss $run >>"$W/rss"
        i=$((i + 1))
    done
    kill -INT $run 2>/dev/null
    wait $run
    got=$?
    last=$(find "$W/state" -name 'step-*' -prune 2>/dev/null | sort | tail -1)
    n_steps=$(expr "${last##*-}" : '0*\([0-9]*\)$')
    # The first quarter is for tables and buffers that grow once; 1 MiB of what the allocator does besides.
    awk -v records=$((${n_steps:-0} * RECORD_BYTES * $3 / 1024)) 'NR <= 5 && $1 > first { first = $1 } NR > 5 && $1 > last { last = $1 } END { exit !(NR == 20 && last <= first + records + 1024) }' "$W/rss"
    flat=$?
    [ $got = 9 ] && [ $flat = 0 ]
    report $? "$1: memory is flat over $2 s: $(head -1 "$W/rss") KiB at first, $(tail -1 "$W/rss") at last, ${last##*/}" \
        "status $got; KiB: $(tr '\n' ' ' <"$W/rss") $(cat "$W/err")"
}
soak local $((S / 2)) 1
if [ -z "$(why_no_mpi)" ]; then
    soak mpi $((S / 2)) 2
else
    skip "mpi: memory is flat" "$(why_no_mpi)"
fi
finish
