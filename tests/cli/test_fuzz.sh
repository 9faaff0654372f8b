#!/bin/sh
# Some mutations of a file for each parser, some random requests, and some random plans that are run: the short end of make fuzz.
. tests/cli/tap.sh

D=$(dirname "$(readlink -f "$DEGAS")")/tests/fuzz/driver
FUZZ_CRASHES=$W "$D" mutate all 150 1 2>"$W/err"
report $? "mutated files end with an answer or one line of error" "$(grep -v '^ok' "$W/err")"
"$D" requests 12 4 300 2>"$W/err"
report $? "random requests end with an answer or one line of error" "$(grep -v '^ok' "$W/err")"
"$D" runs 30 4 2>"$W/err"
report $? "random small plans run with the gradients of one device" "$(grep -v '^ok' "$W/err")"
finish
