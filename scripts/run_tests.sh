#!/bin/sh
# Runs test programs (GLib TAP) and shell tests (TAP too), shows failures and skips, sums up.
# usage: run_tests.sh PROGRAM...
set -u
passed=0 failed=0 skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT INT TERM
G_DEBUG=fatal-criticals
G_SLICE=always-malloc # sanitizers see every allocation
LC_ALL=C.UTF-8
export G_DEBUG G_SLICE LC_ALL
for t in "$@"; do
    case "$t" in
    *.sh) timeout 600 sh "$t" >"$log" 2>&1 ;;
    *) timeout 600 "$t" --tap >"$log" 2>&1 ;;
    esac
    rc=$?
    ok=$(grep -c '^ok ' "$log")
    bad=$(grep -c '^not ok ' "$log")
    skip=$(grep -ci '^ok .*# skip' "$log")
    ok=$((ok - skip))
    [ "$rc" = 0 ] || [ "$bad" -gt 0 ] || bad=1
    [ "$((ok + bad + skip))" -gt 0 ] || bad=1
    name=${t#build/*/}
    echo "$name: $ok passed, $bad failed, $skip skipped"
    grep -i '^ok .*# skip' "$log" | sed 's/^/    /'
    if [ "$bad" -gt 0 ]; then
        echo "    --- output of $name (exit status $rc)"
        grep -v '^ok ' "$log" | tail -60 | sed 's/^/    /'
    fi
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
