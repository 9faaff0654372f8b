#!/bin/sh
# Predicted beside measured on this machine's CPU, for many plans: writes docs/loop.md, but for sections ("## ...") in it.
# usage: loop.sh [MODEL [FILE]]      run it alone: whatever else computes changes both sides
# In the environment: ROUNDS (3), STEPS of a run (9), MINUTES that all may take (30: then there are fewer rounds and no
# repeats), PROFILE (flags of degas profile), MAX_STEAL (2 %), GAUGE (tests/bench/gauge_cores, built), and PLANS, a file of
# lines like those below.
#
# Rounds.  In each the machine is profiled first; then every plan is predicted from that profile and trained.  Medians
# over the rounds.
#
# The machine may compute faster or slower when a plan is trained than when it was profiled (clocks, other machines on
# the host).  So a gauge runs beside all of it: on each core a fixed small product, 40 times a second.  The ratio of its
# mean times says how much slower the machine is now, whatever is predicted.  A run is discarded and repeated where the
# host took more than MAX_STEAL % of the cores away meanwhile (/proc/stat), which the gauge does not see.
#
# Predicted is the median step of degas run's "predicted_varied_step_s": ops vary as they did when they were profiled.
set -eu
export LC_ALL=C
D=./degas
MODEL=${1:-gpt-mini}
FILE=${2:-docs/loop.md}
ROUNDS=${ROUNDS:-3}
STEPS=${STEPS:-9}
MINUTES=${MINUTES:-30}
PROFILE=${PROFILE:---tp 1,2}
MAX_STEAL=${MAX_STEAL:-2}
GAUGE=${GAUGE:-build/release/tests/bench/gauge_cores}
TRIES=3
TEXT=/usr/share/common-licenses/GPL-3
[ -r "$TEXT" ] || TEXT=LICENSE
W=$(mktemp -d)
gauge_pid=
trap '[ -z "$gauge_pid" ] || kill "$gauge_pid" 2>/dev/null; rm -rf "$W"' EXIT
trap 'exit 9' INT TERM
cores=$(nproc)
begin=$(date +%s)

fail() { # fail STATUS TEXT
    echo "loop: $2" >&2
    exit "$1"
}

# A step lasts as long as real-time tasks may run: the kernel stops them for the rest of every second.
[ -x "$GAUGE" ] || fail 6 "there is no $GAUGE; run it by make loop"
if [ "$(cat /proc/sys/kernel/sched_rt_runtime_us 2>/dev/null || echo -1)" -ge 0 ] &&
    awk '{ exit !($41 == 1 || $41 == 2) }' /proc/self/stat; then
    fail 2 "real-time tasks are stopped for a part of every second (sched_rt_runtime_us), profiled ops are not: run it without chrt"
fi

# ranks: schedule slices micro-batch, and what else degas plan is told
cat "${PLANS:-/dev/stdin}" >"$W/plans" <<'END'
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
n_plans=$(wc -l <"$W/plans")

elapsed_s() {
    echo $(($(date +%s) - begin))
}

say() {
    echo "loop: $(elapsed_s | awk '{ printf "%4.1f min", $1 / 60 }')  $*" >&2
}

value() { # value FILE KEY
    sed -n "s/.*\"$2\": *\([-0-9.e+]*\).*/\1/p" "$1" | head -1
}

# The median step as predicted with ops that vary.
varied_step() { # varied_step FILE
    sed -n 's/.*"predicted_varied_step_s": {.*"p50": *\([-0-9.e+]*\).*/\1/p' "$1"
}

# The median step of a run.
measured_step() { # measured_step FILE
    sed -n 's/.*"step_s": {"median": *\([-0-9.e+]*\).*/\1/p' "$1"
}

# What the host took away, and all time, of all cores since they were started.
cpu_times() {
    awk '$1 == "cpu" { for (i = 2; i <= 9; i++) all += $i; print $9, all; exit }' /proc/stat
}

# Percent of the cores' time since cpu_times said FROM.
stolen() { # stolen FROM
    echo "$1 $(cpu_times)" | awk '{ print (($4 > $2) ? 100 * ($3 - $1) / ($4 - $2) : 0) }'
}

now() {
    date +%s.%N
}

# The gauge's mean from second FROM to now; its slowest 2 % are interrupts.
gauged() { # gauged FROM
    awk -v from="$1" '$1 >= from && NF == 3 { print $3 }' "$W/gauge" | sort -g |
        awk '{ x[NR] = $1 } END { n = int(NR * 0.98); for (i = 1; i <= n; i++) sum += x[i]; print (n > 0) ? sum / n : 1 }'
}

# Fixed degrees: one plan.
plan() { # plan CLUSTER DIMENSION N SCHEDULE SLICES MICRO-BATCH OUT [FLAG...]
    cluster=$1 dimension=$2 n=$3 schedule=$4 slices=$5 micro=$6 out=$7
    shift 7
    degrees=
    for d in dp tp pp cp; do
        if [ "$d" = "$dimension" ]; then degrees="$degrees --$d $n"; else degrees="$degrees --$d 1"; fi
    done
    # shellcheck disable=SC2086
    "$D" plan "$MODEL" "$cluster" --gpus "$n" --global-batch 8 --dtype fp32 --zero 0 $degrees --micro-batch "$micro" \
        --schedule "$schedule" --slices "$slices" --recompute none "$@" -o "$out" >/dev/null
}

# $profile_gauge is how fast the machine was meanwhile.
profile() {
    from_s=$(now)
    # shellcheck disable=SC2086
    "$D" profile "$MODEL" $PROFILE -o "$W/cpu.json" >/dev/null 2>"$W/profile-notes" || {
        status=$?
        cat "$W/profile-notes" >&2
        exit $status
    }
    sed -n 's/.*busy: \([0-9]* of [0-9]*\) timings.*/ Of a profile it says that \1 timings spread by more than 20 %./p' \
        "$W/profile-notes" >"$W/busy"
    profile_gauge=$(gauged "$from_s")
    echo "$profile_gauge" >>"$W/gauged"
    say "round $round: profiled; the gauge took $(echo "$profile_gauge" | awk '{ printf "%.1f", 1e6 * $1 }') us"
}

# Trains the plan until the host leaves it alone, and keeps the least disturbed run as a line: predicted, predicted with
# ops that do not vary, measured, the gauge beside that when profiled, whether it was disturbed.
train() { # train PLAN-NUMBER NAME
    cp /dev/null "$W/tries"
    try=0
    while :; do
        try=$((try + 1))
        from=$(cpu_times)
        from_s=$(now)
        "$D" run "$W/plan.json" --steps "$STEPS" --data "$TEXT" --json >"$W/run.json" 2>"$W/notes" || {
            cat "$W/notes" >&2
            exit 1
        }
        gauge=$(gauged "$from_s")
        echo "$gauge" >>"$W/gauged"
        steal=$(stolen "$from")
        bad=$(awk -v steal="$steal" -v most="$MAX_STEAL" 'BEGIN { print (steal > most) ? 1 : 0 }')
        echo "$steal $(varied_step "$W/run.json") $(value "$W/run.json" predicted_step_s) $(measured_step "$W/run.json")" \
            "$(awk -v a="$gauge" -v b="$profile_gauge" 'BEGIN { print a / b }') $bad" >>"$W/tries"
        if [ "$bad" = 0 ] || [ $try -ge $TRIES ] || [ "$(elapsed_s)" -ge $((60 * MINUTES)) ]; then break; fi
    done
    sort -g "$W/tries" | head -1 | cut -d' ' -f2- >>"$W/$1.rounds"
    echo "$try" >>"$W/n-runs"
    tail -1 "$W/$1.rounds" | awk -v what="round $round, $1 of $n_plans: $2" -v tries="$try" '{
        printf "%s: predicted %.1f, measured %.1f ms, machine %.3f, %+.1f %%%s%s\n", what, $1 * $4 * 1e3, $3 * 1e3, $4,
            ($1 * $4 / $3 - 1) * 100, (tries > 1) ? ", try " tries : "", $5 ? ", disturbed" : "" }' >"$W/line"
    say "$(cat "$W/line")"
}

# --- the rounds ---

"$GAUGE" >"$W/gauge" &
gauge_pid=$!
all_from=$(cpu_times)
round=0
while [ $round -lt "$ROUNDS" ]; do
    # Another round takes as long as those before.
    if [ $((($(elapsed_s) * (round + 1)) / (round > 0 ? round : 1))) -gt $((60 * MINUTES)) ] && [ $round -gt 0 ]; then break; fi
    round=$((round + 1))
    profile
    number=0
    while read -r dimension n schedule slices micro flags; do
        number=$((number + 1))
        # shellcheck disable=SC2086
        plan "$W/cpu.json" "$dimension" "${n%:}" "$schedule" "$slices" "$micro" "$W/plan.json" $flags </dev/null
        train $number "$dimension $n $schedule $slices $micro $flags" </dev/null
    done <"$W/plans"
done

kill "$gauge_pid"
gauge_pid=

# --- the page ---

n_runs=$(awk '{ n += $1 } END { print n }' "$W/n-runs")
n_kept=$(wc -l <"$W/n-runs")
n_disturbed=$(cat "$W"/*.rounds | awk '{ n += $5 } END { print n }')
processor=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -1)
{
    cat <<END
# Predicted beside measured, on CPU ranks

\`make loop\` wrote this page, $(date +%Y-%m-%d), in $(elapsed_s | awk '{ printf "%.0f", $1 / 60 }') minutes: $MODEL, 8 sequences per step, fp32, one OpenBLAS thread per rank, on $cores cores
($processor). Rounds: $round, each with a profile of this machine with its ranks busy at once, then every plan predicted from it and
trained for $STEPS steps, of which the first does not count. Medians of the rounds.

Predicted is the median step where ops vary as their timings did in the profile (\`degas simulate --jitter profile\`: who waits for
another waits for the slower one), times the machine. Machine: the mean time of a fixed small product on both cores, 40 times a second
while the plan trained, beside that while the machine was profiled (\`tests/bench/gauge_cores.c\`); above 1 the machine computes slower
now. It depends on no prediction. The errors without either stand last. The spread is the range of measured over machine.

A run is discarded and repeated where the host took more than $MAX_STEAL % of the cores away: $((n_runs - n_kept)) of $n_runs were, $n_disturbed of the $n_kept that are left were
disturbed $TRIES times and stand here all the same (*: all of a plan's). Over the whole time the gauge's means went from $(sort -g "$W/gauged" | sed -n '1p;$p' | paste -sd ' ' |
        awk '{ printf "%.1f to %.1f", 1e6 * $1, 1e6 * $2 }') us,
and the host took $(stolen "$all_from" | awk '{ printf "%.1f", $1 }') % away.$(cat "$W/busy")

Run it with nothing beside it, and not under \`chrt\`: the kernel stops real-time tasks for 50 ms of every second, which steps contain and the
median of a profiled op does not. On two ranks that wait for each other it is up to 10 % of a step.

| ranks | schedule | slices | micro-batch | | machine | predicted [ms] | measured [ms] | spread | error | ops do not vary | machine unknown |
|---|---|---|---|---|---|---|---|---|---|---|---|
END
    number=0
    while read -r dimension n schedule slices micro flags; do
        number=$((number + 1))
        awk -v first="$dimension ${n%:} | $schedule | $slices | $micro | $flags" -v numbers="$W/numbers" '
        function median(x, n,  i, j, t) {
            for (i = 2; i <= n; i++)
                for (j = i; j > 1 && x[j - 1] > x[j]; j--) { t = x[j]; x[j] = x[j - 1]; x[j - 1] = t }
            return n % 2 ? x[(n + 1) / 2] : (x[n / 2] + x[n / 2 + 1]) / 2
        }
        {
            machine[NR] = $4; predicted[NR] = $1 * $4; measured[NR] = $3; steady[NR] = $3 / $4; plain[NR] = $1
            error[NR] = $1 * $4 / $3 - 1; still[NR] = $2 * $4 / $3 - 1; raw[NR] = $1 / $3 - 1; bad += $5
        }
        END {
            middle = median(steady, NR)
            print median(plain, NR), middle, median(error, NR), median(still, NR), median(raw, NR) >>numbers
            printf "| %s | %.3f%s | %.1f | %.1f | %.1f %% | %+.1f %% | %+.1f %% | %+.1f %% |\n", first, median(machine, NR),
                bad == NR ? "*" : "", median(predicted, NR) * 1e3, median(measured, NR) * 1e3,
                (steady[NR] - steady[1]) / middle * 100, median(error, NR) * 100, median(still, NR) * 100,
                median(raw, NR) * 100
        }' "$W/$number.rounds"
    done <"$W/plans"
    echo
    # Two plans' order: predictions of the same profiles, times of the same machine.
    awk '
    function size(x) { return x < 0 ? -x : x }
    {
        sum += size($3); still += size($4); raw += size($5); lean += $3
        close_ += size($3) <= 0.05
        if (size($3) > worst) worst = size($3)
        predicted[NR] = $1; measured[NR] = $2
    } END {
        for (i = 1; i <= NR; i++)
            for (j = 1; j < i; j++) {
                ratio = measured[i] / measured[j]
                if (ratio < 1.05 && ratio > 1 / 1.05) continue
                pairs++
                if ((predicted[i] - predicted[j]) * (measured[i] - measured[j]) <= 0) wrong++
            }
        printf "Mean absolute error %.1f %%, worst %.1f %%, mean %+.1f %%, %d of %d plans within 5 %%; %.1f %% if ops did not vary, %.1f %% if the\nmachine%ss changes were not known.\n",
            sum / NR * 100, worst * 100, lean / NR * 100, close_, NR, still / NR * 100, raw / NR * 100, "\047"
        printf "%d pairs of plans differ by more than 5 %% when measured; %d of them are predicted in the other order.\n", pairs, wrong
    }' "$W/numbers"
    if [ -e "$FILE" ] && grep -q '^## ' "$FILE"; then
        echo
        sed -n '/^## /,$p' "$FILE"
    fi
} >"$W/page"
mv "$W/page" "$FILE"
say "$FILE: $(grep -h -e '^Mean absolute' -e '^[0-9]* pairs' "$FILE" | head -2 | paste -sd ' ')"
