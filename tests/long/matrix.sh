#!/bin/sh
# The executor's dimensions in 2000 random combinations; `make test` has 240 of them.
exec "${TEST_BUILD:-build/release}/tests/executor/test_matrix" -m slow --tap
