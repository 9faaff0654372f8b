#!/bin/sh
# The bound of any program holds against reality: no published run is measured below it.  `validate` refuses such a row.
# VALIDATION: the folder of make validate.
. tests/cli/tap.sh

VALIDATION=${VALIDATION:-../shared/validation}
found=false
for table in "$VALIDATION"/*.csv; do
    head -1 "$table" 2>/dev/null | grep -q measured_iter_ms || continue
    found=true
    "$DEGAS" validate "$table" --skip-bad-rows >"$W/out" 2>"$W/err"
    status=$?
    below=$(grep 'less than any program takes\|times the peak rate' "$W/err" "$W/out")
    [ $status = 0 ] && [ -z "$below" ]
    report $? "$(basename "$table"): no run is faster than any program can be" "status $status: $below"
done
$found || skip "runs are not faster than any program can be" "there is no folder $VALIDATION with measured runs"
finish
