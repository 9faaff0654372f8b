#!/bin/sh
# Every command while each of its calls of the system fails in turn, at most 12 of a kind, and then SIGKILL, SIGINT
# and SIGTERM at 15 random moments of each that writes.  make torture does all calls and 300 moments.
T=${TEST_BUILD:-build/release}/tests/torture
status=0
"$T/torture" ./degas "$T/faults.so" --most 12 || status=1
"$T/torture" ./degas "$T/faults.so" --signals 15 || status=1
exit $status
