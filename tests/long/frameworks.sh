#!/bin/sh
# 300 random jobs for each framework: every plan that is found under its rules is exported, and read back by degas check.
. tests/cli/tap.sh
. tests/cli/frameworks.sh

for pair in $all_frameworks; do
    random_jobs "${pair%:*}" "${pair#*:}" 300 2000 1
done
finish
