#!/bin/sh
# Predicted beside measured on this machine's CPU, for many plans: writes docs/loop.md, but for sections ("## ...") in it.
# usage: loop.sh [MODEL [FILE]]      run it alone: whatever else computes changes both sides
# In the environment: ROUNDS (6), STEPS of a run (7), MINUTES that all may take (40: then there are fewer rounds and no
# repeats), PROFILE (flags of degas profile: what to time), PIECE_S (15) of it after every PIECE_EVERY (4) runs, FIRST_S
# (5) for the quick profile that plans are made from, MAX_STEAL (2 %), GAUGE (tests/bench/gauge_cores, built), and PLANS,
# a file of lines like those below.
#
# The machine computes faster and slower by the minute (clocks, other machines on the host), so both sides are spread over
# the same time: every plan is trained once in each round, and a profile is made in pieces between the runs.  When both
# are done every plan is predicted from the whole profile, which no run has had a part in.
#
# A gauge runs beside all of it: on each core a fixed small product, 100 times a second.  The ratio of its mean times says
# how much slower the machine was in a run than in the profile, whatever is predicted.  Only a core that is at work is
# gauged: an idle one has to wake up, and reads 9 % slower.  What the host takes of the cores the gauge does not see: it
# is counted beside it (stolen_fraction of the run).  A run is discarded and repeated where that was more than MAX_STEAL %
# (/proc/stat); a plan's runs that were disturbed all the same count only where it has no others.
#
# Predicted is the median step of degas simulate --jitter profile: times vary as they did when they were profiled.
set -eu
export LC_ALL=C
D=./degas
MODEL=${1:-gpt-mini}
FILE=${2:-docs/loop.md}
ROUNDS=${ROUNDS:-6}
STEPS=${STEPS:-7}
MINUTES=${MINUTES:-40}
PROFILE=${PROFILE:---batches 1,2,4 --slices 64,128,256}
PIECE_S=${PIECE_S:-15}
FIRST_S=${FIRST_S:-5}
PIECE_EVERY=${PIECE_EVERY:-4}
MAX_STEAL=${MAX_STEAL:-2}
GAUGE=${GAUGE:-build/release/tests/bench/gauge_cores}
TRIES=3
START_S=1 # of a run: until the step that does not count has ended
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

# The gauge's mean on cores at work (where none was, on all) in the spans of time in FILE, each a line of two seconds;
# its slowest 2 % are interrupts.
gauged() { # gauged FILE
    awk 'NR == FNR { from[NR] = $1; to[NR] = $2; n = NR; next }
        NF == 5 { for (i = 1; i <= n; i++) if ($1 >= from[i] && $1 <= to[i]) { print ($4 > 0), $3; break } }' "$1" "$W/gauge" | sort -k1,1n -k2,2g |
        awk 'NR == 1 { idle = $1 } $1 == idle { x[++k] = $2 }
            END { n = int(k * 0.98); for (i = 1; i <= n; i++) sum += x[i]; if (n > 0) print sum / n }' >"$W/mean"
    [ -s "$W/mean" ] || fail 1 "$GAUGE said nothing in the time of $(wc -l <"$1") runs or pieces"
    cat "$W/mean"
}

# What degas plan and degas simulate are told of a line of PLANS, but for FLAG...
flags_of() { # flags_of DIMENSION N SCHEDULE SLICES MICRO-BATCH
    degrees=
    for d in dp tp pp cp; do
        if [ "$d" = "$1" ]; then degrees="$degrees --$d $2"; else degrees="$degrees --$d 1"; fi
    done
    echo "--gpus $2 --global-batch 8 --dtype fp32 --zero 0 $degrees --schedule $3 --slices $4 --micro-batch $5 --recompute none"
}

# --- the profile ---

# A profile is of a tensor-parallel degree and of as many ranks busy at once as the plan has: "1-2" is tp 1 on two cores.
profile_of() { # profile_of DIMENSION N
    if [ "$1" = tp ]; then echo "$2-$2"; else echo "1-$2"; fi
}

# Makes a profile go on for a while; it may be complete at some time.
piece() { # piece PROFILE
    [ ! -e "$W/cpu-$1.json" ] || return 0
    resume=
    [ ! -e "$W/cpu-$1.json.partial" ] || resume=--resume
    status=0
    from_s=$(now)
    # shellcheck disable=SC2086
    timeout --foreground -s INT "$PIECE_S" "$D" profile "$MODEL" --tp "${1%-*}" --concurrency "${1#*-}" $PROFILE --budget 3600 $resume \
        -o "$W/cpu-$1.json" >/dev/null 2>"$W/notes" || status=$?
    echo "$from_s $(now)" >>"$W/spans-$1"
    [ $status = 0 ] || [ $status = 124 ] || {
        cat "$W/notes" >&2
        exit $status
    }
}

# Ends it with what there is.  Prints the gauge's mean of its pieces.
finish_profile() { # finish_profile PROFILE
    if [ ! -e "$W/cpu-$1.json" ]; then
        # shellcheck disable=SC2086
        "$D" profile "$MODEL" --tp "${1%-*}" --concurrency "${1#*-}" $PROFILE --budget 1 --resume -o "$W/cpu-$1.json" >/dev/null 2>"$W/notes" || {
            cat "$W/notes" >&2
            exit 1
        }
        sed -n 's/.*busy: \([0-9]* of [0-9]*\) timings.*/\1/p' "$W/notes" >"$W/busy-$1"
    fi
    gauged "$W/spans-$1"
}

# --- plans ---

# Trains the plan until the host leaves it alone, and keeps the least disturbed run as a line: measured, the gauge,
# whether it was disturbed, the share of the cores that the host took in its steps.
train() { # train PLAN-NUMBER NAME
    cp /dev/null "$W/tries"
    try=0
    while :; do
        try=$((try + 1))
        from=$(cpu_times)
        begin_s=$(now)
        "$D" run "$W/plan-$1.json" --steps "$STEPS" --data "$TEXT" --json >"$W/run.json" 2>"$W/notes" || {
            cat "$W/notes" >&2
            exit 1
        }
        echo "$begin_s $(now)" | awk -v start="$START_S" '{
            printf "%.3f %.3f\n", $1 + (($2 - $1 > 2 * start) ? start : ($2 - $1) / 2), $2 }' >"$W/span"
        gauge=$(gauged "$W/span")
        echo "$gauge" >>"$W/gauged"
        steal=$(stolen "$from")
        bad=$(awk -v steal="$steal" -v most="$MAX_STEAL" 'BEGIN { print (steal > most) ? 1 : 0 }')
        echo "$steal $(measured_step "$W/run.json") $gauge $bad $(value "$W/run.json" stolen_fraction)" >>"$W/tries"
        if [ "$bad" = 0 ] || [ $try -ge $TRIES ] || [ "$(elapsed_s)" -ge $((60 * MINUTES)) ]; then break; fi
    done
    sort -g "$W/tries" | head -1 | cut -d' ' -f2- >>"$W/$1.rounds"
    echo "$try" >>"$W/n-runs"
    say "$(tail -1 "$W/$1.rounds" | awk -v what="round $round, $1 of $n_plans: $2" -v tries="$try" '{
        printf "%s: %.1f ms, gauge %.2f us%s%s", what, $1 * 1e3, $2 * 1e6, (tries > 1) ? ", try " tries : "",
            $3 ? ", disturbed" : "" }')"
}

# Predicted median, and what it is if times do not vary, of plan NUMBER with these flags.
predict() { # predict NUMBER CLUSTER FLAG...
    number=$1 cluster=$2
    shift 2
    layers=$(sed -n 's/.*"n_layers": *\([0-9]*\), *"embedding".*/\1/p' "$W/plan-$number.json" | paste -sd,)
    # One rank waits for none, and timings with tp have the waiting in them: those profiles do not say how times vary.
    jitter=0
    ! grep -q '"measured_variation"' "$cluster" || jitter=profile
    "$D" simulate "$MODEL" "$cluster" "$@" --stage-layers "$layers" --jitter $jitter --json >"$W/report.json"
    echo "$(sed -n 's/.*"iteration_s": {.*"p50": *\([0-9.e+-]*\).*/\1/p' "$W/report.json")" \
        "$(sed -n 's/^  "iteration_s": *\([0-9.e+-]*\),.*/\1/p' "$W/report.json")"
}

# --- the rounds ---

# A quick profile, so that there are plans; each keeps its split of layers.
# shellcheck disable=SC2086
"$D" profile "$MODEL" --tp 1,2 $PROFILE --quick --budget "$FIRST_S" -o "$W/first.json" >/dev/null 2>"$W/notes" || {
    cat "$W/notes" >&2
    exit 1
}
number=0
while read -r dimension n schedule slices micro flags; do
    number=$((number + 1))
    # shellcheck disable=SC2046,SC2086
    "$D" plan "$MODEL" "$W/first.json" $(flags_of "$dimension" "${n%:}" "$schedule" "$slices" "$micro") $flags \
        -o "$W/plan-$number.json" >/dev/null </dev/null
done <"$W/plans"

"$GAUGE" >"$W/gauge" &
gauge_pid=$!
all_from=$(cpu_times)
# The profile of most plans first.
profiles=$(while read -r dimension n _; do profile_of "$dimension" "${n%:}"; done <"$W/plans" | sort | uniq -c | sort -k1,1nr -k2 |
    awk '{ print $2 }')
n_trained=0
# Every other piece is of the profile that most plans have, the rest of the others in turn.
next_piece() {
    k=$((n_trained / PIECE_EVERY))
    for name in $profiles; do
        if [ ! -e "$W/spans-$name" ]; then
            piece "$name" </dev/null
            return
        fi
    done
    n_others=$(echo "$profiles" | tail -n +2 | wc -l)
    line=1
    if [ "$n_others" -gt 0 ] && [ $((k % 2)) = 1 ]; then line=$((2 + k / 2 % n_others)); fi
    piece "$(echo "$profiles" | sed -n "${line}p")" </dev/null
}
round=0
while [ $round -lt "$ROUNDS" ]; do
    # Another round takes as long as those before.
    if [ $((($(elapsed_s) * (round + 1)) / (round > 0 ? round : 1))) -gt $((60 * MINUTES)) ] && [ $round -gt 0 ]; then break; fi
    round=$((round + 1))
    number=0
    while read -r dimension n schedule slices micro flags; do
        number=$((number + 1))
        [ $((n_trained % PIECE_EVERY)) != 0 ] || next_piece
        n_trained=$((n_trained + 1))
        train $number "$dimension $n $schedule $slices $micro $flags" </dev/null
    done <"$W/plans"
done
for name in $profiles; do
    [ -e "$W/spans-$name" ] || piece "$name"
    finish_profile "$name" >"$W/profile-gauge-$name"
done
kill "$gauge_pid"
gauge_pid=
number=0
while read -r dimension n schedule slices micro flags; do
    number=$((number + 1))
    name=$(profile_of "$dimension" "${n%:}")
    # shellcheck disable=SC2046,SC2086
    predict $number "$W/cpu-$name.json" $(flags_of "$dimension" "${n%:}" "$schedule" "$slices" "$micro") $flags </dev/null |
        paste -d' ' - "$W/profile-gauge-$name" >"$W/$number.predicted"
done <"$W/plans"
say "predicted from profiles of $(cat "$W"/spans-* | awk '{ sum += $2 - $1 } END { printf "%.0f", sum }') s, gauge $(cat "$W"/profile-gauge-* |
    awk '{ printf "%.2f ", 1e6 * $1 }')us"

# --- the page ---

n_runs=$(awk '{ n += $1 } END { print n }' "$W/n-runs")
n_kept=$(wc -l <"$W/n-runs")
n_disturbed=$(cat "$W"/*.rounds | awk '{ n += $3 } END { print n }')
processor=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -1)
{
    cat <<END
# Predicted beside measured, on CPU ranks

\`make loop\` wrote this page on $(date +%Y-%m-%d), in $(elapsed_s | awk '{ printf "%.0f", $1 / 60 }') minutes: $MODEL, 8 sequences per step, fp32, one OpenBLAS thread per rank, on $cores cores
($processor). There were $round rounds. In each round every plan was trained for $STEPS steps, of which the first does not count. Between the runs
the machine was profiled, with as many ranks busy at once as a plan has: $(cat "$W"/spans-* | awk '{ sum += $2 - $1 } END { printf "%.1f", sum / 60 }') minutes in $(cat "$W"/spans-* | wc -l) pieces. Then every plan was predicted from the whole profile. The
table has medians of the rounds.

- *predicted* is the median step if times vary as they did in the profile (\`degas simulate --jitter profile\`: a rank that waits for another
  waits for the slower one), times *machine*.
- *machine* says how much slower than during the profile the machine computed during the run (below 1: faster); it does not
  depend on any prediction. On the cores that were at work the time of a small product, always the same, was measured 100 times
  a second (\`tests/bench/gauge_cores.c\`). *machine* is its mean during the run, over its mean during the profile, over the share
  of the cores that the host left to the run.
- *spread* is the range of measured over machine.
- *error* is that of *predicted*. The last two columns have the errors of predictions in which times do not vary, and of those without *machine*.

A run is discarded and repeated if the host took more than $MAX_STEAL % of the cores away. This happened to $((n_runs - n_kept)) of $n_runs runs. Of the $n_kept that are left $n_disturbed were
disturbed $TRIES times; they count only for plans that have no others (*). Over the whole time the means of that small product went from $(sort -g "$W/gauged" | sed -n '1p;$p' | paste -sd ' ' |
        awk '{ printf "%.1f to %.1f", 1e6 * $1, 1e6 * $2 }') us,
and the host took $(stolen "$all_from" | awk '{ printf "%.1f", $1 }') % of the cores away.$(cat "$W"/busy-* 2>/dev/null |
        awk '{ n += $1; all += $3 } END { if (n) printf " Of the profiles\047 timings of layers %d of %d spread by more than 20 %%.", n, all }')

Run \`make loop\` while nothing else runs, and not under \`chrt\`: the kernel stops real-time tasks for 50 ms of every second. Steps
contain these pauses, but the median of a profiled op does not. If two ranks wait for each other, they are up to 10 % of a step.

| ranks | schedule | slices | micro-batch | | machine | predicted [ms] | measured [ms] | spread | error | times do not vary | machine unknown |
|---|---|---|---|---|---|---|---|---|---|---|---|
END
    number=0
    while read -r dimension n schedule slices micro flags; do
        number=$((number + 1))
        awk -v first="$dimension ${n%:} | $schedule | $slices | $micro | $flags" -v numbers="$W/numbers" \
            -v n_good="$(awk '$3 == 0' "$W/$number.rounds" | wc -l)" '
        function median(x, n,  i, j, t) {
            for (i = 2; i <= n; i++)
                for (j = i; j > 1 && x[j - 1] > x[j]; j--) { t = x[j]; x[j] = x[j - 1]; x[j - 1] = t }
            return n % 2 ? x[(n + 1) / 2] : (x[n / 2] + x[n / 2 + 1]) / 2
        }
        NR == 1 { varied = $1; still_s = $2; then = $3; next }
        $3 == 1 && n_good > 0 { next }
        {
            k++
            machine[k] = $2 / then / (1 - $4); measured[k] = $1; steady[k] = $1 / machine[k]
            error[k] = varied * machine[k] / $1 - 1; still[k] = still_s * machine[k] / $1 - 1; raw[k] = varied / $1 - 1
        }
        END {
            middle = median(steady, k)
            print varied / then, middle / then, median(error, k), median(still, k), median(raw, k), steady[1] / then,
                steady[k] / then >>numbers
            printf "| %s | %.3f%s | %.1f | %.1f | %.1f %% | %+.1f %% | %+.1f %% | %+.1f %% |\n", first, median(machine, k),
                n_good ? "" : "*", varied * median(machine, k) * 1e3, median(measured, k) * 1e3,
                (steady[k] - steady[1]) / middle * 100, median(error, k) * 100, median(still, k) * 100,
                median(raw, k) * 100
        }' "$W/$number.predicted" "$W/$number.rounds"
    done <"$W/plans"
    echo
    # Two plans' order, in units of the gauge: profiles were made at other times.
    awk '
    function size(x) { return x < 0 ? -x : x }
    {
        sum += size($3); still += size($4); raw += size($5); lean += $3
        close_ += size($3) <= 0.05
        if (size($3) > worst) worst = size($3)
        predicted[NR] = $1; measured[NR] = $2; fastest[NR] = $6; slowest[NR] = $7
    } END {
        for (i = 1; i <= NR; i++)
            for (j = 1; j < i; j++) {
                ratio = measured[i] / measured[j]
                other = (predicted[i] - predicted[j]) * (measured[i] - measured[j]) <= 0
                if (fastest[i] > 1.05 * slowest[j] || fastest[j] > 1.05 * slowest[i]) { clear++; clear_wrong += other }
                if (ratio < 1.05 && ratio > 1 / 1.05) continue
                pairs++
                wrong += other
            }
        printf "Mean absolute error %.1f %%, worst %.1f %%, mean %+.1f %%; %d of %d plans are within 5 %%. The mean absolute error is %.1f %% if times do not vary, and %.1f %% if the\nmachine%ss changes are not known.\n",
            sum / NR * 100, worst * 100, lean / NR * 100, close_, NR, still / NR * 100, raw / NR * 100, "\047"
        printf "%d pairs of plans differ by more than 5 %% when measured; %d of them are predicted in the wrong order.\n", pairs, wrong
        printf "In %d pairs every run of one plan took over 5 %% longer than every run of the other; %d of these are predicted in the wrong order.\n", clear, clear_wrong
    }' "$W/numbers"
    if [ -e "$FILE" ] && grep -q '^## ' "$FILE"; then
        echo
        sed -n '/^## /,$p' "$FILE"
    fi
} >"$W/page"
mv "$W/page" "$FILE"
say "$FILE: $(sed -n '/^Mean absolute/,/^$/p' "$FILE" | head -3 | paste -sd ' ')"
