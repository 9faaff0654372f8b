#!/bin/sh
# Peaks of memory beside the simulator's: LONG=attentions of tests/cli/test_memory.sh.
# Test runner: first.
LONG=attentions exec sh tests/cli/test_memory.sh
