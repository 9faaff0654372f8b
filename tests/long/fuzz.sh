#!/bin/sh
# More of tests/cli/test_fuzz.sh: 2 000 mutations for each parser, 30 random requests, 500 random plans of which those that can
# be are run, and 500 requests of a list of 20 000 that are interrupted as by Ctrl-C after 0.2 s of CPU, which most searches of
# many devices need not.  make fuzz does millions.
#   FUZZ_PIECE=7        only requests 3 000 to 3 499 of the list: forty such pieces are all of it
#   FUZZ_REQUESTS=N     so many in a piece
#   FUZZ_CTRL_C_S=S     interrupted after S seconds of CPU; 0: never
D=${TEST_BUILD:-build/release}/tests/fuzz/driver
n=${FUZZ_REQUESTS:-500}
status=0
if [ -z "${FUZZ_PIECE:-}" ]; then
    "$D" mutate all 2000 2 2>&1 || status=1
    FUZZ_TIMES=1 "$D" requests 30 1 300 2>&1 || status=1
    "$D" runs 500 3 2>&1 || status=1
fi
FUZZ_TIMES=1 "$D" requests "$n" 7 90 $((n * (${FUZZ_PIECE:-1} - 1))) "${FUZZ_CTRL_C_S:-0.2}" 2>&1 || status=1
exit $status
