#!/bin/sh
# TAP: scripts/run_tests.sh, which runs this too: what it counts, shows, runs beside each other, and ends.
# Run from the repository's root.
# shellcheck source=tests/cli/tap.sh
. tests/cli/tap.sh

# a NAME TEXT: a test of that name
a() {
    printf '%b' "$2" >"$W/$1.sh"
}

# tested STATUS NAME TEST...: the runner ends with this status; its output is in $W/out and $W/err
tested() {
    want=$1
    name=$2
    shift 2
    (cd "$W" && exec "$OLDPWD/scripts/run_tests.sh" "$@") >"$W/out" 2>"$W/err"
    got=$?
    [ "$got" = "$want" ]
    report $? "$name" "status $got instead of $want
$(cat "$W/out" "$W/err")"
}

# says LINE NAME: the whole line is in the output of the runner
says() {
    grep -qxe "$1" "$W/out"
    report $? "$2" "no line is $1 in:
$(cat "$W/out" "$W/err")"
}

a passes 'echo ok 1 - a; echo ok 2 - b\n'
a skips 'echo ok 1 - a; echo "ok 2 - b # SKIP no such machine"\n'
a fails 'echo ok 1 - a; echo not ok 2 - b; echo "# why"; exit 1\n'
a silent 'exit 0\n'
a dies 'echo ok 1 - a; exit 3\n'

tested 0 "tests that pass" passes.sh skips.sh
says 'passes.sh: 2 passed, 0 failed, 0 skipped, [0-9]*[.][0-9] s' "its tests are counted, its seconds said"
says '    ok 2 - b # SKIP no such machine' "a skip is shown with its reason"
says '3 passed, 0 failed, 1 skipped' "the closing line sums up"
[ "$(tail -1 "$W/out")" = '3 passed, 0 failed, 1 skipped' ]
report $? "and is the last"

tested 1 "a test that fails" passes.sh fails.sh
says '    # why' "what it said is shown"
says '3 passed, 1 failed, 0 skipped' "it is counted"
tested 1 "a test that tests nothing" silent.sh
says '0 passed, 1 failed, 0 skipped' "it counts as failed"
tested 1 "a test that ends with a status" dies.sh
says '    --- output of dies.sh (exit status 3)' "its status is said"
says '1 passed, 1 failed, 0 skipped' "it counts as failed too"

a leaves 'mktemp >/dev/null; mktemp -d >/dev/null; echo ok 1\n'
mkdir "$W/temporary"
TMPDIR=$W/temporary tested 1 "a test that leaves temporary files" leaves.sh passes.sh
says '3 passed, 1 failed, 0 skipped' "it counts as failed"
says '    --- leaves.sh left in its folder of temporary files: ./tmp[^ ]* ./tmp[^ ]* ' "what it left is named"
rmdir "$W/temporary"
report $? "and is removed"

# Each waits for the other, which a runner of one at a time would not start.
a meets_a "touch $W/a; while [ ! -e $W/b ]; do sleep 0.02; done; echo ok 1; echo ok 2\n"
a meets_b "touch $W/b; while [ ! -e $W/a ]; do sleep 0.02; done; echo ok 1; echo ok 2\n"
JOBS=2 LIMIT_S=20 tested 0 "two tests at once" meets_a.sh meets_b.sh
says '4 passed, 0 failed, 0 skipped' "both are counted"

# Who asks for it is begun before the others, or after they have ended.
a early "# Test runner: first\necho early >>$W/order; echo ok 1\n"
a middle "echo middle >>$W/order; sleep 0.3; echo ended >>$W/order; echo ok 1\n"
a single "# Test runner: alone\necho single >>$W/order; sleep 0.3; echo ended >>$W/order; echo ok 1\n"
a lonely "# Test runner: alone\necho lonely >>$W/order; echo ok 1\n"
JOBS=1 tested 0 "a test that asks to be first" middle.sh early.sh
[ "$(tr '\n' ' ' <"$W/order")" = 'early middle ended ' ]
report $? "it is" "$(cat "$W/order")"
rm "$W/order"
JOBS=4 tested 0 "tests that ask to be alone" single.sh lonely.sh middle.sh
[ "$(tr '\n' ' ' <"$W/order")" = 'middle ended single ended lonely ' ]
report $? "they are" "$(cat "$W/order")"

# ended FILE: the process whose id it holds runs no more; somebody may still have to ask for its status.  What was killed runs
# until the kernel comes to it.
ended() {
    for _ in $(seq 200); do
        [ -s "$1" ] && ! grep -qs '^State:[[:space:]]*[A-WY]' "/proc/$(cat "$1")/status" && return
        sleep 0.05
    done
    return 1
}

# What hangs is ended with what it started, also what has left its process group.
a hangs "echo ok 1; setsid sh -c 'echo \$\$ >$W/left; sleep 60' & sleep 60\n"
LIMIT_S=1 tested 1 "a test that hangs" hangs.sh passes.sh
says '    --- hangs.sh was killed after 1 s' "that it was killed is said"
says '3 passed, 1 failed, 0 skipped' "the others are run"
ended "$W/left"
report $? "nothing of it is left"

# Ctrl-C, which reaches the runner and none of its tests.
rm "$W/left"
(cd "$W" && exec env -u DEGAS_TEST_MARK --default-signal=INT "$OLDPWD/scripts/run_tests.sh" hangs.sh) >"$W/out" 2>&1 &
runner=$!
for _ in $(seq 600); do
    [ -s "$W/left" ] && break
    sleep 0.05
done
kill -INT $runner
wait $runner
[ $? = 130 ] && ended "$W/left"
report $? "interrupted, it ends all" "$(cat "$W/out")"

TALLY="$W/tally" tested 1 "a part of a whole" passes.sh fails.sh
[ "$(cat "$W/tally")" = '3 1 0' ] && ! grep -q '^[0-9]* passed' "$W/out"
report $? "its numbers are for who sums them up" "$(cat "$W/tally" "$W/out")"
finish
