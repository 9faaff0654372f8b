#!/bin/sh
# More of tests/cli/test_fuzz.sh: 2 000 mutations for each parser, 60 random requests.  make fuzz does millions.
# FUZZ_REQUESTS=200 FUZZ_PIECE=7 tries requests 1 200 to 1 399 of one long list: a hundred such pieces are 20 000.
D=${TEST_BUILD:-build/release}/tests/fuzz/driver
n=${FUZZ_REQUESTS:-60}
status=0
[ -n "${FUZZ_PIECE:-}" ] || "$D" mutate all 2000 2 2>&1 || status=1
FUZZ_TIMES=1 "$D" requests "$n" 1 300 $((n * (${FUZZ_PIECE:-1} - 1))) 2>&1 || status=1
exit $status
