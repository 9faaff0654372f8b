#!/bin/sh
# Peaks of memory of every schedule family, recompute kind and stage of ZeRO beside the simulator's.
# Test runner: first.
LONG=1 exec sh tests/cli/test_memory.sh
