#!/bin/sh
# Every command while each of its calls of the system fails in turn, and then SIGKILL, SIGINT and SIGTERM at
# SIGNALS random moments of each that writes.
T=${TEST_BUILD:-build/release}/tests/torture
"$T/torture" ./degas "$T/faults.so" --signals "${SIGNALS:-300}"
