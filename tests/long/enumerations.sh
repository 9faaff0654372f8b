#!/bin/sh
# Searches of 2 400 random problems against their full enumeration; `make test` has 300 of them.
# And 2 000 stacks of layers of several kinds, with MTP modules and ends, 400 with slices; all with every division of the layers into
# stages where there are at most 64. And 2 000 stacks on one pipeline with every division and every recompute kind of every stage.
exec "${TEST_BUILD:-build/release}/tests/planner/test_search_space" -m slow --tap -p /planner/search-space/equals-full-enumeration \
    -p /planner/search-space/mixed-stacks-equal-full-enumeration \
    -p /planner/search-space/divisions-equal-the-best-of-all \
    -p /planner/search-space/slices-of-mixed-stacks-equal-full-enumeration
