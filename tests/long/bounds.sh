#!/bin/sh
# 10 000 random plans with random slices against the bounds of their points; `make test` has 400 of them.
exec "${TEST_BUILD:-build/release}/tests/planner/test_bounds_hold" -m slow --tap
