#!/bin/sh
# More of tests/cli/test_fuzz.sh: 2 000 mutations for each parser, 60 random requests.  make fuzz does millions.
D=${TEST_BUILD:-build/release}/tests/fuzz/driver
status=0
"$D" mutate all 2000 2 2>&1 || status=1
"$D" requests 60 1 300 2>&1 || status=1
exit $status
