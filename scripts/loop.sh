#!/bin/sh
# Predicted beside measured on this machine's CPU, for many plans: docs/loop.md is its output.
# usage: loop.sh [MODEL]      run it alone: whatever else computes changes both sides
#
# One profile first.  Then every plan is predicted from it and trained for 12 steps, in three rounds, so that
# a drift of the machine shows as spread; the median of the rounds' median steps is what counts.
set -eu
D=./degas
MODEL=${1:-gpt-mini}
TEXT=/usr/share/common-licenses/GPL-3
[ -r "$TEXT" ] || TEXT=LICENSE
W=$(mktemp -d)
trap 'rm -rf "$W"' EXIT INT TERM
cores=$(nproc)

value() { # value FILE KEY
    sed -n "s/.*\"$2\": *\([-0-9.e+]*\).*/\1/p" "$1" | head -1
}

plans="naive:off:1 gpipe:off:1 gpipe:2:2 gpipe:160,96:1 gpipe:4:1 1f1b:off:1 1f1b:off:2 1f1b:2:1 1f1b:144,112:2
1f1b:4:2 terapipe:2:1 terapipe:160,96:1 terapipe:4:2 terapipe:112,80,64:4 zb-h1:off:1 zb-h1:off:2"

"$D" profile "$MODEL" -o "$W/cpu.json" >/dev/null
for round in 1 2 3; do
    for p in $plans; do
        schedule=${p%%:*} rest=${p#*:}
        slices=${rest%%:*} micro=${rest#*:}
        "$D" plan "$MODEL" "$W/cpu.json" --gpus 2 --global-batch 8 --dtype fp32 --dp 1 --tp 1 --pp 2 \
            --micro-batch "$micro" --schedule "$schedule" --slices "$slices" --recompute none --zero 0 \
            -o "$W/plan.json" >/dev/null
        "$D" run "$W/plan.json" --steps 12 --data "$TEXT" --json >"$W/run.json"
        sed -n 's/.*"step_s": {"median": *\([-0-9.e+]*\).*/\1/p' "$W/run.json" >>"$W/$p.measured"
        value "$W/run.json" predicted_step_s >"$W/$p.predicted"
    done
done

echo "# Predicted beside measured, on CPU ranks"
echo
echo "\`make loop\`: $MODEL, 8 sequences per step, fp32, pp 2 on $cores cores, one OpenBLAS thread per rank. One profile"
echo "of this machine with both ranks busy, then every plan trained for 12 steps in three rounds; measured is the"
echo "median of the rounds' median steps, spread their range."
echo
echo "| schedule | slices | micro-batch | predicted [ms] | measured [ms] | spread | error |"
echo "|---|---|---|---|---|---|---|"
for p in $plans; do
    schedule=${p%%:*} rest=${p#*:}
    sort -g "$W/$p.measured" | awk -v s="$schedule" -v c="${rest%%:*}" -v b="${rest#*:}" \
        -v predicted="$(cat "$W/$p.predicted")" '{ m[NR] = $1 } END {
        middle = m[int((NR + 1) / 2)]
        printf "| %s | %s | %s | %.1f | %.1f | %.1f %% | %+.1f %% |\n", s, c, b, predicted * 1e3, middle * 1e3,
            (m[NR] - m[1]) / middle * 100, (predicted / middle - 1) * 100
    }' | tee -a "$W/table"
done
echo
awk -F'|' '{ e = $8; gsub(/[ %+]/, "", e); e = e < 0 ? -e : e; sum += e; if (e > worst) worst = e } END {
    printf "Mean absolute error %.1f %%, worst %.1f %%, over %d plans.\n", sum / NR, worst, NR }' "$W/table"
