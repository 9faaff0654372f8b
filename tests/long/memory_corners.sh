#!/bin/sh
# Peaks of memory beside the simulator's: LONG=corners of tests/cli/test_memory.sh.
LONG=corners exec sh tests/cli/test_memory.sh
