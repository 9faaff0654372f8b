#!/bin/sh
# The executor's dimensions in 2000 random combinations, of which `make test` has 240; in 300, mixers with a state.
exec "${TEST_BUILD:-build/release}/tests/executor/test_matrix" -m slow --tap
