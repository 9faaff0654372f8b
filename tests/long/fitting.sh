#!/bin/sh
# What is said to run out of memory, beside labels of published runs: of rows that took no part in the fit, at least 97 %
# of those said to fail did, and of those that failed at least 97 % are said to.  VALIDATION: the folder of make validate.
. tests/cli/tap.sh

VALIDATION=${VALIDATION:-../shared/validation}
for set in hagemann_a100 seq1f1b; do
    if [ ! -e "$VALIDATION/$set.csv" ]; then
        skip "$set: rows that run out of memory" "there is no folder $VALIDATION with measured runs"
        continue
    fi
    runs 0 "$set" validate "$VALIDATION/$set.csv" --skip-bad-rows --folds 5 --json
    json "$set: rows that run out of memory are told apart" "
s, = [s for s in d['sets'] if s['quantity'] == 'oom']
assert s['oom_rows'] >= 4 and s['precision_fraction'] >= 0.97, s
assert s['calibrated']['precision_fraction'] >= 0.97 and s['calibrated']['recall_fraction'] >= 0.97, s"
done
finish
