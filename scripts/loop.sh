#!/bin/sh
# Predicted beside measured on this machine's CPU, for many plans: docs/loop.md is its output.
# usage: loop.sh [MODEL]      run it alone: whatever else computes changes both sides
#
# Rounds.  In each the machine is profiled first; then every plan is predicted from that profile and trained.  Medians
# over the rounds.
#
# The machine may compute faster or slower when a plan is trained than when it was profiled (clocks, other machines on
# the host).  So one fixed plan, the probe, is trained for a few steps before and after the profile and every plan: the
# ratio of its times says how much slower the machine is now, whatever is predicted for the probe itself.  Where it
# changes by more than a tenth while a plan is trained, the plan is trained again, up to three times.
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

# The median step of a run.
measured_step() { # measured_step FILE
    sed -n 's/.*"step_s": {"median": *\([-0-9.e+]*\).*/\1/p' "$1"
}

# Seconds of a step of the probe, now.
probe() {
    "$D" run "$W/probe.json" --steps 5 --data "$TEXT" --json >"$W/probe-run.json"
    measured_step "$W/probe-run.json"
}

# Whether A and B differ by less than a tenth.
close_to() { # close_to A B
    awk -v a="$1" -v b="$2" 'BEGIN { exit !(a < 1.1 * b && b < 1.1 * a) }'
}

mean() { # mean A B
    awk -v a="$1" -v b="$2" 'BEGIN { print (a + b) / 2 }'
}

# Trains the plan and appends: what was predicted, measured, and the probe's time beside that when profiled.
train() { # train PLAN-NUMBER
    for try in 1 2 3; do
        before=$last_probe
        "$D" run "$W/plan.json" --steps "$STEPS" --data "$TEXT" --json >"$W/run.json"
        last_probe=$(probe)
        if close_to "$before" "$last_probe"; then break; fi
        echo "loop: plan $1 in round $round: the probe took $before and then $last_probe s (try $try)" >&2
    done
    echo "$(value "$W/run.json" predicted_step_s) $(measured_step "$W/run.json")" \
        "$(awk -v now="$(mean "$before" "$last_probe")" -v then="$profile_probe" 'BEGIN { print now / then }')" \
        >>"$W/$1.rounds"
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
    train "$number"
}

profile() {
    "$D" profile "$MODEL" --tp 1,2 -o "$W/cpu.json" >/dev/null
}

"$D" profile "$MODEL" --quick -o "$W/cpu.json" >/dev/null # the probe's plan needs one
"$D" plan "$MODEL" "$W/cpu.json" --gpus 2 --global-batch 8 --dtype fp32 --zero 0 --dp 2 --tp 1 --pp 1 --cp 1 \
    --micro-batch 2 --schedule gpipe --slices off --recompute none -o "$W/probe.json" >/dev/null
round=0
while [ $round -lt "$ROUNDS" ]; do
    round=$((round + 1))
    before=$(probe)
    profile
    last_probe=$(probe)
    profile_probe=$(mean "$before" "$last_probe")
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
echo "rounds. Machine: a fixed plan's time just before and after, beside its time when profiled (above 1: the machine"
echo "computes slower now); predicted is the profile's prediction times that, the error without it stands last. The spread"
echo "is the range of measured over machine."
echo
echo "| ranks | schedule | slices | micro-batch | | machine | predicted [ms] | measured [ms] | spread | error | as predicted |"
echo "|---|---|---|---|---|---|---|---|---|---|---|"
number=0
while read -r dimension n schedule slices micro flags; do
    number=$((number + 1))
    awk -v first="$dimension ${n%:} | $schedule | $slices | $micro | $flags" '
        function median(x, n,  i, j, t) {
            for (i = 2; i <= n; i++)
                for (j = i; j > 1 && x[j - 1] > x[j]; j--) { t = x[j]; x[j] = x[j - 1]; x[j - 1] = t }
            return n % 2 ? x[(n + 1) / 2] : (x[n / 2] + x[n / 2 + 1]) / 2
        }
        {
            machine[NR] = $3; predicted[NR] = $1 * $3; measured[NR] = $2; steady[NR] = $2 / $3
            error[NR] = $1 * $3 / $2 - 1; raw[NR] = $1 / $2 - 1
        }
        END {
            middle = median(steady, NR)
            printf "| %s | %.3f | %.1f | %.1f | %.1f %% | %+.1f %% | %+.1f %% |\n", first, median(machine, NR),
                median(predicted, NR) * 1e3, median(measured, NR) * 1e3, (steady[NR] - steady[1]) / middle * 100,
                median(error, NR) * 100, median(raw, NR) * 100
        }' "$W/$number.rounds" | tee -a "$W/table"
done <"$W/plans"
echo
awk -F'|' '
function size(text) { gsub(/[ %+]/, "", text); text += 0; return text < 0 ? -text : text }
{
    sum += size($11); raw += size($12); if (size($11) > worst) worst = size($11)
    machine[NR] = $7 + 0; predicted[NR] = $8 / $7; measured[NR] = $9 / $7
} END {
    for (i = 1; i <= NR; i++)
        for (j = 1; j < i; j++) {
            ratio = measured[i] / measured[j]
            if (ratio < 1.05 && ratio > 1 / 1.05) continue
            pairs++
            if ((predicted[i] - predicted[j]) * (measured[i] - measured[j]) <= 0) wrong++
        }
    printf "Mean absolute error %.1f %%, worst %.1f %%, over %d plans (%.1f %% without the machine%ss changes).\n",
        sum / NR, worst, NR, raw / NR, "\047"
    printf "%d pairs of plans differ by more than 5 %% when measured; %d of them are predicted in the other order.\n", pairs, wrong
}' "$W/table"
