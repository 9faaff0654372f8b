#!/bin/sh
# tests/cli/test_loop.sh with runs that are repeated because they were disturbed.
LONG=1 exec sh tests/cli/test_loop.sh
