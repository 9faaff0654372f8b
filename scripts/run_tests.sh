#!/usr/bin/env bash
# Runs test programs (GLib TAP) and shell tests (TAP too), several at once, shows failures and skips, sums up.
# Each has a folder of its own for temporary files (TMPDIR); what a test leaves there is a failure, and is removed.
# usage: run_tests.sh TEST...
#   JOBS=N      tests at once; one per core and one more unless given, as some wait for most of their time
#   LIMIT_S=S   a test that lasts longer is killed with everything it started; 600 unless given
#   TALLY=FILE  adds "PASSED FAILED SKIPPED" to FILE and leaves the closing line to who reads FILE
#
# A test's file may ask for something, in one comment line with these words and reasons after a colon:
#   "Test runner: first"   it is among the longest: started before the others, so that it is not waited for at the end
#   "Test runner: alone"   it measures times or needs every core: run when all others have ended, nothing beside it
set -um # every test in a process group of its own, which Ctrl-C does not reach: it is ended here
jobs_at_once=${JOBS:-$(($(nproc 2>/dev/null || echo 2) + 1))}
limit_s=${LIMIT_S:-600}
G_DEBUG=fatal-criticals
G_SLICE=always-malloc # sanitizers see every allocation
LC_ALL=C.UTF-8
export G_DEBUG G_SLICE LC_ALL
# A make inside a test is its own: it has none of the descriptors of the make that runs the tests.
unset MAKEFLAGS MFLAGS MAKELEVEL JOBS LIMIT_S
tally=${TALLY:-}
unset TALLY

logs=$(mktemp -d)
chmod go+x "$logs" # a test gives up root's rights
mark=degas-tests-$$
passed=0 failed=0 skipped=0 tests=0
declare -A name_of=() log_of=() started_at=() # by process id

# kill_marked MARK: every process that was started with it in its environment, whatever its group or parent
kill_marked() {
    local environment pid
    for environment in /proc/[0-9]*/environ; do
        if grep -qsaz "^DEGAS_TEST_MARK=.*/$1/" "$environment"; then
            pid=${environment#/proc/}
            kill -KILL "${pid%/environ}" 2>/dev/null
        fi
    done
}

# shellcheck disable=SC2317 # called by the traps
end_all() {
    trap '' INT TERM HUP
    echo "run_tests: interrupted" >&2
    exec 2>/dev/null # what the shell would say of each that is killed
    kill_marked "$mark-[0-9]*"
    exit 130
}
trap end_all INT TERM HUP
trap 'rm -rf "$logs"' EXIT

# start NUMBER TEST: in the background
start() {
    local command=("$2" --tap)
    [ "${2%.sh}" = "$2" ] || command=(sh "$2")
    mkdir "$logs/$1.d"
    TMPDIR=$logs/$1.d DEGAS_TEST_MARK=${DEGAS_TEST_MARK:-}/$mark-$1/ timeout -k 10 "$limit_s" "${command[@]}" >"$logs/$1" 2>&1 </dev/null &
    name_of[$!]=${2#build/*/}
    log_of[$!]=$1
    started_at[$!]=${EPOCHREALTIME/./}
}

# finish_one: waits for a test and prints all there is to say of it
finish_one() {
    local pid rc log name ok bad skip tenths
    wait -n -p pid
    rc=$?
    if [ -z "${pid:-}" ]; then # the shell has told of its end already, as of an abort
        for pid in "${!name_of[@]}"; do
            kill -0 "$pid" 2>/dev/null || break
        done
        wait "$pid"
        rc=$?
    fi
    log=$logs/${log_of[$pid]} name=${name_of[$pid]}
    tenths=$(((${EPOCHREALTIME/./} - ${started_at[$pid]} + 50000) / 100000))
    unset "name_of[$pid]"
    ok=$(grep -c '^ok ' "$log")
    bad=$(grep -c '^not ok ' "$log")
    skip=$(grep -ci '^ok .*# skip' "$log")
    ok=$((ok - skip))
    [ "$rc" = 0 ] || [ "$bad" -gt 0 ] || bad=1
    [ "$((ok + bad + skip))" -gt 0 ] || bad=1
    echo "$name: $ok passed, $bad failed, $skip skipped, $((tenths / 10)).$((tenths % 10)) s"
    grep -i '^ok .*# skip' "$log" | sed 's/^/    /'
    if [ "$rc" = 124 ] || [ "$rc" = 137 ]; then
        kill_marked "$mark-${log_of[$pid]}"
        [ "$((tenths / 10))" -lt "$limit_s" ] || echo "    --- $name was killed after $limit_s s"
    fi
    if [ -n "$(ls -A "$log.d")" ]; then
        bad=$((bad + 1))
        echo "    --- $name left in its folder of temporary files: $(cd "$log.d" && find . -mindepth 1 | head -5 | tr '\n' ' ')"
    fi
    if [ "$bad" -gt 0 ]; then
        echo "    --- output of $name (exit status $rc)"
        grep -v '^ok ' "$log" | tail -60 | sed 's/^/    /'
    fi
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
    rm -r "$log" "$log.d"
}

# run_all AT_ONCE TEST...
run_all() {
    local at_once=$1
    shift
    for t in "$@"; do
        [ "${#name_of[@]}" -lt "$at_once" ] || finish_one
        tests=$((tests + 1))
        start "$tests" "$t"
    done
    while [ "${#name_of[@]}" -gt 0 ]; do
        finish_one
    done
}

# asks TEST WORD: its source asks for that
asks() {
    local source=$1
    [ "${1%.sh}" != "$1" ] || source=${1#build/*/}.c
    grep -qs "^[ /*#]*Test runner: $2" "$source"
}

first=() others=() alone=()
for t in "$@"; do
    if asks "$t" alone; then
        alone+=("$t")
    elif asks "$t" first; then
        first+=("$t")
    else
        others+=("$t")
    fi
done
run_all "$jobs_at_once" "${first[@]}" "${others[@]}"
run_all 1 "${alone[@]}"

echo "run_tests: $tests tests in $SECONDS s, $jobs_at_once at once"
if [ -n "$tally" ]; then
    echo "$passed $failed $skipped" >>"$tally"
else
    echo "$passed passed, $failed failed, $skipped skipped"
fi
[ "$failed" = 0 ]
