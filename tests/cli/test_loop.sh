#!/bin/sh
# scripts/loop.sh writes its page, repeats what was disturbed, and refuses a priority that steps feel and ops do not.
# The gauge that it compares the machine's speed by.
# Run from the repository's root.
# Test runner: first.
. tests/cli/tap.sh
make -s build/release/tests/bench/gauge_cores >"$W/err" 2>&1
report $? "the gauge builds" "$(cat "$W/err")"
# gauge_until AWK-ARGUMENT...: gauges until the lines so far are enough for the awk program, however long that takes
gauge_until() {
    build/release/tests/bench/gauge_cores >"$W/out" 2>"$W/err" &
    gauge=$!
    until awk "$@" "$W/out" || ! kill -0 $gauge 2>/dev/null; do
        sleep 0.1
    done
    kill $gauge 2>/dev/null
    wait $gauge
}
gauge_until -v n="$(nproc)" '{ seen[$2] = 1 }
    END { for (core = 0; core < n; core++) bad = bad || !(core in seen); exit bad }'
awk -v n="$(nproc)" '$1 < 1e9 || $2 < 0 || $2 >= n || !($3 > 0) || NF != 5 || $4 < 0 || $5 < 0 { bad = 1 } { seen[$2] = 1 }
    END { for (core = 0; core < n; core++) bad = bad || !(core in seen); exit bad }' "$W/out"
report $? "every core is gauged" "$(cat "$W/out" "$W/err")"
# An idle core reads slower: its lines say so.  The first is of no time, and ticks are of 10 ms.
sh -c 'while :; do :; done' &
busy=$!
gauge_until 'END { exit NR < 50 * n }' n="$(nproc)"
kill $busy
[ "$(awk '$4 == 0' "$W/out" | wc -l)" -ge 20 ]
report $? "a core at work is not called idle" "$(cat "$W/out")"
printf 'pp 2: 1f1b off 1\ndp 2: gpipe off 1\n' >"$W/plans"

other= # however this test is run
if chrt -o 0 true 2>/dev/null; then other='chrt -o 0'; fi

printf '{"format":"degas-model","version":1,"name":"small","family":"gpt","n_layers":4,"hidden":64,"n_heads":2,
    "vocab":256,"max_seq_len":256}' >"$W/small.json"

# loop NAME VARIABLE=VALUE...: a small page in $W/page
loop() {
    name=$1
    shift
    printf '# Old\n\nold text\n\n## Kept\n\nby hand\n' >"$W/page"
    # shellcheck disable=SC2086
    $other env ROUNDS=1 STEPS=12 FIRST_S=1 PIECE_S=1 PROFILE="--slices 256 --batches 1" PLANS="$W/plans" "$@" scripts/loop.sh "$W/small.json" "$W/page" >"$W/out" 2>"$W/err"
    report $? "$name" "$(cat "$W/err")"
    cat "$W/page" >"$W/out"
}

loop "two plans are predicted and trained" MAX_STEAL=100
has '^| pp 2 | 1f1b | off | 1 |' "the first has a row"
has '^| dp 2 | gpipe | off | 1 |.*%.*%.* |$' "the second too"
has 'This happened to 0 of 2 runs. Of the 2 that are left 0 were' "nothing was disturbed"
has '^Mean absolute error [0-9.]* %.* of 2 plans are within 5 %. The mean absolute error is [0-9.]* % if times' "the errors are summed up"
has '^[01] pairs of plans differ .*; [01] of them are' "and so is the order"
has '^In [01] pairs every run .*; [01] of these are' "also where no run doubts it"
has 'and the host took [0-9.]* % of the cores away' "the host's share is known"
has '^the machine was profiled, .*: [0-9.]* minutes in 1 pieces' "one piece of a profile"

tail -1 "$W/out" | grep -q '^by hand$' && ! grep -q -i 'old' "$W/out"
report $? "other sections of the page are kept" "$(cat "$W/out")"

printf 'pp 2: 1f1b off 1\ntp 2: gpipe off 1\npp 1: gpipe off 1\n' >"$W/plans"
loop "a profile for each tensor-parallel degree and number of ranks" MAX_STEAL=100 ROUNDS=2 PIECE_EVERY=1
has '^the machine was profiled, .*: [0-9.]* minutes in 6 pieces' "every piece goes on with one before"
has '^| tp 2 | gpipe | off | 1 |.*%.*%.* |$' "the plan with tp 2 is predicted"

# Long: each trains once more.
if [ -n "$LONG" ]; then
    printf 'pp 2: 1f1b off 1\n' >"$W/plans"
    loop "whatever the host takes is disturbed" MAX_STEAL=-1
    has 'This happened to 2 of 3 runs. Of the 1 that are left 1 were' "it is trained three times, and one stays"
    has '^| pp 2 | 1f1b | off | 1 |  | [0-9.]*\* |' "with a star"
    loop "there is no time to repeat" MAX_STEAL=-1 MINUTES=0
    has 'This happened to 0 of 1 runs. Of the 1 that are left 1 were' "it is trained once"
fi

printf '#!/bin/sh\nexec sleep 600\n' >"$W/silent"
chmod +x "$W/silent"
# shellcheck disable=SC2086
$other env ROUNDS=1 STEPS=12 FIRST_S=1 PIECE_S=1 PROFILE="--slices 256 --batches 1" PLANS="$W/plans" GAUGE="$W/silent" scripts/loop.sh "$W/small.json" "$W/none" >"$W/out" 2>"$W/err"
[ $? = 1 ] && [ ! -e "$W/none" ] && grep -q "silent said nothing in the time of 1 runs" "$W/err"
report $? "a gauge that says nothing is not taken for a machine" "$(cat "$W/err")"

GAUGE=$W/none scripts/loop.sh gpt-mini "$W/none" >"$W/out" 2>"$W/err"
[ $? = 6 ] && [ ! -e "$W/none" ] && grep -q 'make loop' "$W/err"
report $? "without the gauge it says what makes it" "$(cat "$W/err")"

if [ "$(cat /proc/sys/kernel/sched_rt_runtime_us)" -lt 0 ] || ! chrt -f 1 true 2>/dev/null; then
    skip "real-time priority is refused" "it is not throttled here, or cannot be had"
else
    chrt -f 1 scripts/loop.sh gpt-mini "$W/none" >"$W/out" 2>"$W/err"
    [ $? = 2 ] && [ ! -e "$W/none" ] && grep -q 'without chrt' "$W/err"
    report $? "real-time priority is refused" "$(cat "$W/err")"
fi
finish
