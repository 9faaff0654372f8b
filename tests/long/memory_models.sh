#!/bin/sh
# Peaks of memory beside the simulator's: LONG=models of tests/cli/test_memory.sh.
# Test runner: first.
LONG=models exec sh tests/cli/test_memory.sh
