#!/bin/sh
# stdout that is full, closed, or goes away; stdin closed.
. tests/cli/tap.sh

for c in "--help" "--version" "list models" "schedule 1f1b --pp 4 --microbatches 8" \
    "simulate gpt2-124m dgx-h100 --global-batch 8 --json"; do
    # shellcheck disable=SC2086
    "$DEGAS" $c >/dev/full 2>"$W/err"
    [ $? = 4 ] && grep -q '^degas: cannot write to standard output: ' "$W/err"
    report $? "degas $c: a full disk is status 4" "$(cat "$W/err")"
    # shellcheck disable=SC2086
    "$DEGAS" $c >&- 2>"$W/err"
    [ $? = 4 ] && grep -q '^degas: ' "$W/err"
    report $? "degas $c: a closed stdout is status 4" "$(cat "$W/err")"
done
# with a closed stdout, no file that is opened becomes it
"$DEGAS" simulate gpt2-124m dgx-h100 --global-batch 8 --json --trace "$W/t.json" >&- 2>"$W/err"
head -1 "$W/t.json" | grep -q '^{'
report $? "a file is not taken for the closed stdout" "$(head -2 "$W/t.json")"
"$DEGAS" list models <&- >"$W/out" 2>"$W/err"
report $? "a closed stdin does not matter" "$(cat "$W/err")"
"$DEGAS" simulate - <&- >"$W/out" 2>"$W/err"
[ $? = 4 ]
report $? "unless it is read" "$(cat "$W/err")"
{ "$DEGAS" schedule gpipe --pp 64 --microbatches 4000 --json 2>"$W/err"; echo $? >"$W/status"; } |
    head -1 >"$W/out"
[ ! -s "$W/err" ] && [ "$(cat "$W/status")" = 0 ]
report $? "a reader that goes away is no error" "$(cat "$W/status" "$W/err")"
G_MESSAGES_DEBUG=all "$DEGAS" show gpt2-124m --json >"$W/out" 2>"$W/err"
json "debugging messages do not reach stdout" "assert d['format'] == 'degas-model'"
"$DEGAS" list models >"$W/out" 2>&-
report $? "a closed stderr does not matter"
# out of memory is an answer: status 5 and one line
if is_sanitized; then
    skip "out of memory is status 5" "a sanitizer needs all of the address space"
    finish
fi
(
    # shellcheck disable=SC3045
    ulimit -v 400000 2>/dev/null || exit 0
    "$DEGAS" schedule gpipe --pp 1000 --microbatches 100000 >"$W/out" 2>"$W/err"
    [ $? = 5 ] && [ "$(wc -l <"$W/err")" = 1 ]
)
report $? "out of memory is status 5" "$(cat "$W/err")"
finish
