#!/bin/sh
# Peaks of memory beside the simulator's: LONG=families of tests/cli/test_memory.sh.
# Test runner: first.
LONG=families exec sh tests/cli/test_memory.sh
