#!/bin/sh
# 300 random jobs for each framework: every plan that is found under its rules is exported, and read back by degas check.
# Of Megatron's three, which have the same rules and the longest searches, 100 each.
. tests/cli/tap.sh
. tests/cli/frameworks.sh

for pair in $all_frameworks; do
    case $pair in *:megatron) n_jobs=100 ;; *) n_jobs=300 ;; esac
    random_jobs "${pair%:*}" "${pair#*:}" $n_jobs 2000 1
done
finish
