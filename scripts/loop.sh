#!/bin/sh
# Predicted beside measured on this machine's CPU, for many plans: docs/loop.md is its output.
# usage: loop.sh [MODEL]      run it alone: whatever else computes changes both sides
#
# Three rounds.  In each the machine is profiled first; then every plan is predicted from that profile and trained,
# so that a machine that drifts from round to round shows as spread and not as error.  Medians over the rounds.
set -eu
D=./degas
MODEL=${1:-gpt-mini}
ROUNDS=${ROUNDS:-3}
STEPS=${STEPS:-9}
TEXT=/usr/share/common-licenses/GPL-3
[ -r "$TEXT" ] || TEXT=LICENSE
W=$(mktemp -d)
trap 'rm -rf "$W"' EXIT INT TERM
cores=$(nproc)

# ranks: schedule slices micro-batch, and what else degas plan is told
cat >"$W/plans" <<'END'
pp 2: naive off 1
pp 2: gpipe off 1
pp 2: gpipe 2 2
pp 2: gpipe 160,96 1
pp 2: gpipe 4 1
pp 2: 1f1b off 1
pp 2: 1f1b off 2
pp 2: 1f1b 2 1
pp 2: 1f1b 144,112 2
pp 2: 1f1b 4 2
pp 2: 1f1b off 1 --recompute selective
pp 2: 1f1b off 1 --recompute full
pp 2: terapipe 2 1
pp 2: terapipe 160,96 1
pp 2: terapipe 4 2
pp 2: terapipe 112,80,64 4
pp 2: terapipe 4 2 --recompute full
pp 2: seq1f1b 2 1
pp 2: seq1f1b 4 2
pp 2: zb-h1 off 1
pp 2: zb-h1 off 2
pp 2: zb-h2 off 1
pp 2: interleaved off 1 --vpp 2
pp 2: interleaved off 2 --vpp 2
pp 2: looped-bfs off 1 --vpp 2
pp 2: zb-v off 1 --vpp 2
pp 2: v-half off 1 --vpp 2
pp 2: dualpipev off 1 --vpp 2
pp 1: gpipe off 1
pp 1: gpipe off 4
dp 2: gpipe off 1
dp 2: gpipe off 2
dp 2: gpipe off 4
tp 2: gpipe off 2
tp 2: gpipe off 4
cp 2: gpipe off 2
cp 2: gpipe off 4
END

value() { # value FILE KEY
    sed -n "s/.*\"$2\": *\([-0-9.e+]*\).*/\1/p" "$1" | head -1
}

# predict and train PLAN-NUMBER DIMENSION N SCHEDULE SLICES MICRO-BATCH [FLAG...]
both() {
    number=$1 dimension=$2 n=$3 schedule=$4 slices=$5 micro=$6
    shift 6
    degrees=
    for d in dp tp pp cp; do
        if [ "$d" = "$dimension" ]; then degrees="$degrees --$d $n"; else degrees="$degrees --$d 1"; fi
    done
    # shellcheck disable=SC2086
    "$D" plan "$MODEL" "$W/cpu.json" --gpus "$n" --global-batch 8 --dtype fp32 --zero 0 $degrees \
        --micro-batch "$micro" --schedule "$schedule" --slices "$slices" --recompute none "$@" -o "$W/plan.json" >/dev/null
    "$D" run "$W/plan.json" --steps "$STEPS" --data "$TEXT" --json >"$W/run.json"
    sed -n 's/.*"step_s": {"median": *\([-0-9.e+]*\).*/\1/p' "$W/run.json" >>"$W/$number.measured"
    value "$W/run.json" predicted_step_s >>"$W/$number.predicted"
}

round=0
while [ $round -lt "$ROUNDS" ]; do
    round=$((round + 1))
    "$D" profile "$MODEL" --tp 1,2 -o "$W/cpu.json" >/dev/null
    number=0
    while read -r dimension n rest; do
        number=$((number + 1))
        # shellcheck disable=SC2086
        both $number "$dimension" "${n%:}" $rest </dev/null
    done <"$W/plans"
done

echo "# Predicted beside measured, on CPU ranks"
echo
echo "\`make loop\`: $MODEL, 8 sequences per step, fp32, on $cores cores, one OpenBLAS thread per rank. $ROUNDS rounds: a"
echo "profile of this machine with its ranks busy at once, then every plan trained for $STEPS steps; medians of the"
echo "rounds, the spread is the measured times' range."
echo
echo "| ranks | schedule | slices | micro-batch | | predicted [ms] | measured [ms] | spread | error |"
echo "|---|---|---|---|---|---|---|---|---|"
number=0
while read -r dimension n schedule slices micro flags; do
    number=$((number + 1))
    paste "$W/$number.predicted" "$W/$number.measured" | awk -v first="$dimension ${n%:} | $schedule | $slices | $micro | $flags" '
        function median(x, n,  i, j, t) {
            for (i = 2; i <= n; i++)
                for (j = i; j > 1 && x[j - 1] > x[j]; j--) { t = x[j]; x[j] = x[j - 1]; x[j - 1] = t }
            return n % 2 ? x[(n + 1) / 2] : (x[n / 2] + x[n / 2 + 1]) / 2
        }
        { p[NR] = $1; m[NR] = $2; e[NR] = $1 / $2 - 1 }
        END {
            error = median(e, NR); predicted = median(p, NR); measured = median(m, NR)
            printf "| %s | %.1f | %.1f | %.1f %% | %+.1f %% |\n", first, predicted * 1e3, measured * 1e3,
                (m[NR] - m[1]) / measured * 100, error * 100
        }' | tee -a "$W/table"
done <"$W/plans"
echo
awk -F'|' '{
    e = $10; gsub(/[ %+]/, "", e); e += 0; e = e < 0 ? -e : e
    sum += e; if (e > worst) worst = e
    predicted[NR] = $7 + 0; measured[NR] = $8 + 0
} END {
    for (i = 1; i <= NR; i++)
        for (j = 1; j < i; j++) {
            ratio = measured[i] / measured[j]
            if (ratio < 1.05 && ratio > 1 / 1.05) continue
            pairs++
            if ((predicted[i] - predicted[j]) * (measured[i] - measured[j]) <= 0) wrong++
        }
    printf "Mean absolute error %.1f %%, worst %.1f %%, over %d plans.\n", sum / NR, worst, NR
    printf "%d pairs of plans differ by more than 5 %% when measured; %d of them are predicted in the other order.\n", pairs, wrong
}' "$W/table"
