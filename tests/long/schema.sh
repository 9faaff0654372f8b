#!/bin/sh
# degas schema: every key of every format that degas reads.
SCHEMA_STEP=1 exec sh tests/cli/test_schema.sh
