#!/bin/sh
# Searches of 2 400 random problems against their full enumeration; `make test` has 300 of them.
exec "${TEST_BUILD:-build/release}/tests/planner/test_search_space" -m slow --tap -p /planner/search-space/equals-full-enumeration
