# shellcheck shell=sh
# What the tests of the command line share; sourced.  Run from the repository's root.
# The program is ./degas, or $DEGAS.
DEGAS=${DEGAS:-./degas}
LC_ALL=C.UTF-8
export LC_ALL
n=0
failed=0
W=$(mktemp -d)
trap 'rm -rf "$W"' EXIT INT TERM

# preloaded LIBRARY: what LD_PRELOAD says; the library of a sanitizer must be loaded before all others
preloaded() {
    sanitizer=$(ldd "$DEGAS" 2>/dev/null | awk '$1 ~ /^lib[at]san/ { print $3 }')
    echo "${sanitizer:+$sanitizer:}$1"
}

# whether the program is one of a sanitizer that needs all of the address space
is_sanitized() {
    grep -q '__[at]san_init' "$DEGAS" 2>/dev/null
}

# report STATUS NAME [OUTPUT]: 0 is a pass
report() {
    n=$((n + 1))
    if [ "$1" = 0 ]; then
        echo "ok $n - $2"
    else
        echo "not ok $n - $2"
        printf '%s\n' "${3:-}" | sed 's/^/# /' | head -40
        failed=1
    fi
}

# skip NAME REASON
skip() {
    n=$((n + 1))
    echo "ok $n - $1 # SKIP $2"
}

# runs STATUS NAME ARGUMENT...: degas ends with this status; its output is in $W/out and $W/err
runs() {
    want=$1
    name=$2
    shift 2
    "$DEGAS" "$@" >"$W/out" 2>"$W/err" </dev/null
    got=$?
    [ "$got" = "$want" ]
    report $? "$name" "status $got instead of $want: degas $*
$(cat "$W/err")"
}

# fails STATUS PATTERN NAME ARGUMENT...: it ends with this status and one line on stderr that begins
# with "degas: " and matches the pattern (a basic regular expression); nothing is on stdout
fails() {
    want=$1
    pattern=$2
    name=$3
    shift 3
    "$DEGAS" "$@" >"$W/out" 2>"$W/err" </dev/null
    got=$?
    [ "$got" = "$want" ] && [ "$(wc -l <"$W/err")" = 1 ] && [ ! -s "$W/out" ] &&
        grep -q '^degas: ' "$W/err" && grep -q -e "$pattern" "$W/err"
    report $? "$name" "status $got instead of $want, pattern $pattern: degas $*
$(cat "$W/err")
$(head -5 "$W/out")"
}

# has PATTERN NAME: the output of the last run has such a line
has() {
    grep -q -e "$1" "$W/out"
    report $? "$2" "no line matches $1 in:
$(head -40 "$W/out")"
}

# json NAME PROGRAM [FILE]: a Python program that asserts things of the object d in FILE (the last
# output); skipped where there is no Python
json() {
    if command -v python3 >/dev/null 2>&1; then
        output=$(python3 -c "
import json, sys
d = json.load(open(sys.argv[1], encoding='utf-8'))
$2" "${3:-$W/out}" 2>&1)
        report $? "$1" "$output"
    else
        skip "$1" "python3 is not installed"
    fi
}

# A clock that a busy machine slows as it slows the program: beats of 10 ms, each a process of its own, counted from
# when the file $W/time is there.
beats_begin() {
    while :; do
        sleep 0.01
        [ ! -e "$W/time" ] || echo
    done >"$W/beats" 2>/dev/null &
    beater=$!
}

# beats_end: sets $took, in whole seconds of a machine that has nothing else to do
beats_end() {
    kill "$beater"
    wait "$beater" 2>/dev/null
    # shellcheck disable=SC2034
    took=$(($(wc -l <"$W/beats") / 100))
}

finish() {
    echo "1..$n"
    exit "$failed"
}
