#!/bin/sh
# The Pareto front: degas plan --pareto, marks of --top, degas plot --kind pareto of plans and sweeps.
. tests/cli/tap.sh

job="gpt2-1.5b dgx-a100-80g --gpus 8 --global-batch 32 --slices off --cp 1 --schedule 1f1b,interleaved"
# shellcheck disable=SC2086
runs 0 "plan --pareto" plan $job --pareto 6 -o "$W/front.json"
has '^best \*  *[0-9]' "each row is marked"
has '^\* of these none is faster and smaller' "and the mark is explained"
json "slower and smaller from plan to plan" "
plans = [d] + d['alternatives']
assert 3 <= len(plans) <= 7
for a, b in zip(plans, plans[1:]):
    assert a['predicted']['iteration_s'] < b['predicted']['iteration_s']
    assert a['predicted']['peak_memory_bytes'] > b['predicted']['peak_memory_bytes']
assert {p['predicted']['memory_limit_bytes'] for p in plans} == {80 * 2**30}" "$W/front.json"
# shellcheck disable=SC2086
runs 0 "the fastest plan" plan $job --json
json "is where it begins" "
front = json.load(open('$W/front.json'))
assert d['predicted'] == front['predicted'] and d['stages'] == front['stages']"
# shellcheck disable=SC2086
runs 0 "the smallest plan" plan $job --objective memory --json
json "is where it ends" "
last = json.load(open('$W/front.json'))['alternatives'][-1]
assert last['predicted']['peak_memory_bytes'] == d['predicted']['peak_memory_bytes']"
# Every plan between is the fastest that fits its own memory.
for i in 0 1; do
    limit=$(python3 -c "
import json
print(json.load(open('$W/front.json'))['alternatives'][$i]['predicted']['peak_memory_bytes'])" \
        2>/dev/null || echo 20GiB)
    # shellcheck disable=SC2086
    runs 0 "the fastest within $limit" plan $job --memory-limit "$limit" --json
    json "is on the front" "
on_front = json.load(open('$W/front.json'))['alternatives'][$i]
assert on_front['predicted']['iteration_s'] == d['predicted']['iteration_s']"
done
# shellcheck disable=SC2086
for threads in 1 3; do
    "$DEGAS" plan $job --pareto 3 --threads $threads --json >"$W/threads.$threads" 2>"$W/err"
done
cmp -s "$W/threads.1" "$W/threads.3" && [ -s "$W/threads.1" ]
report $? "threads do not change it" "$(cat "$W/err")"

# --- pictures of plans ---
# on_front FILE: the marked rows of a table are those that no other beats
on_front() {
    awk -F'\t' 'NR > 1 { x[NR] = $1; y[NR] = $2; f[NR] = $3 }
        END { for (i in x) { beaten = 0
                  for (j in x) if (x[j] <= x[i] && y[j] <= y[i] && (x[j] < x[i] || y[j] < y[i]))
                      beaten = 1
                  if (f[i] == beaten) bad = 1; n++; m += f[i] }
              exit bad || n < 2 || m < 1 }' "$1"
    report $? "marked is what nothing beats" "$(cat "$1")"
}
runs 0 "a plan's front as a table" plot "$W/front.json" --kind pareto -o "$W/front.tsv"
on_front "$W/front.tsv"
# shellcheck disable=SC2086
"$DEGAS" plan $job --top 12 -o "$W/top.json" >"$W/out" 2>"$W/err"
has '^best \*' "the fastest of --top is marked"
has '^[0-9]*  *[0-9]' "what is beaten is not"
json "no two are alike" "
def choices(p):
    kinds = {s['recompute'] for s in p['stages']}
    return (tuple(sorted(p['degrees'].items())), p['micro_batch'], p['schedule'], len(p['slices']) > 1,
            kinds.pop() if len(kinds) == 1 else 'mixed', p['zero_stage'], p['offload'], p['sequence_parallel'])
plans = [d] + d['alternatives']
assert len({choices(p) for p in plans}) == len(plans) == 13, sorted(map(choices, plans))" "$W/top.json"
runs 0 "the next best plans as a table" plot "$W/top.json" --kind pareto -o "$W/top.tsv"
on_front "$W/top.tsv"
[ "$(wc -l <"$W/top.tsv")" = 14 ]
report $? "all of them are in it"
runs 0 "as text" plot "$W/front.json" --kind pareto
has '^\* .* dp 8' "with the plan's split"
if command -v gnuplot >/dev/null 2>&1; then
    runs 0 "as a picture" plot "$W/front.json" --kind pareto -o "$W/front.svg"
    grep -q 'memory of the fullest device \[GiB\]' "$W/front.svg" &&
        grep -q 'gpt2-1.5b on dgx-a100-80g: time against memory' "$W/front.svg"
    report $? "with title and units"
    # A long label far to the right: characters of this font are at least 4.8 wide.
    python3 - "$W/front.json" "$W/far.json" <<'END'
import json, sys
d = json.load(open(sys.argv[1]))
last = max([d] + d['alternatives'], key=lambda p: p['predicted']['iteration_s'])
last['predicted']['iteration_s'] *= 20
last['degrees'].update(dp=2, tp=2, cp=2)
last['n_microbatches'] *= 4
last['rank_order'] = 'cp-tp-dp-pp'
for stage in last['stages']:
    stage['recompute'] = 'full'
json.dump(d, open(sys.argv[2], 'w'))
END
    runs 0 "a long label" plot "$W/far.json" --kind pareto -o "$W/far.svg"
    python3 - "$W/far.svg" <<'END'
import re, sys
text = open(sys.argv[1]).read()
labels = re.findall(r'translate\(([\d.]+),[\d.]+\)[^>]*text-anchor="start">\s*<text>([^<]*micro-batch[^<]*)<', text)
assert any('cp-tp-dp-pp' in label for _, label in labels), labels
assert all(float(x) + 4.8 * len(label) < 980 for x, label in labels), labels
END
    report $? "ends in the picture"
else
    skip "as a picture" "gnuplot is not installed"
fi

# --- pictures of sweeps ---
sweep="gpt2-1.5b dgx-a100-80g --gpus 8..64:x2 --global-batch 64,128 --slices off --schedule 1f1b --cp 1"
# shellcheck disable=SC2086
{
    runs 0 "a sweep" sweep $sweep --tokens 300B --price 2 --currency EUR -o "$W/s.json"
    runs 0 "days and cost as a table" plot "$W/s.json" --kind pareto -o "$W/s.tsv"
    on_front "$W/s.tsv"
    json "they are the sweep's" "
rows = [l.split('\t') for l in open('$W/s.tsv').read().splitlines()[1:]]
points = sorted((p['effective_days'], p['effective_cost'] / 1e6) for p in d['points'])
assert len(rows) == len(points) == 8
for (x, y), row in zip(points, rows):
    assert abs(x - float(row[0])) < 1e-9 * x and abs(y - float(row[1])) < 1e-9 * y" "$W/s.json"
    runs 0 "as text" plot "$W/s.json" --kind pareto
    has 'days  *cost \[million EUR\]' "with the currency"
    has '^\* .*64 devices, batch' "the most devices are the fastest"
    "$DEGAS" sweep $sweep --tokens 300B -o "$W/e.json" >/dev/null
    runs 0 "without a price" plot "$W/e.json" --kind pareto
    has 'energy \[GWh\]' "energy takes its place"
    "$DEGAS" sweep $sweep --price 2 -o "$W/r.json" >/dev/null
    runs 0 "without tokens" plot "$W/r.json" --kind pareto
    has 'seconds of a billion tokens  *cost of a billion tokens \[USD\]' "a billion of them"
}

# --- wrong usage ---
# shellcheck disable=SC2086
{
    fails 2 'pareto: does not go with --top' "front and alternatives" plan $job --pareto 3 --top 2
    fails 2 'does not go with --objective memory' "the front from its other end" \
        plan $job --pareto 3 --objective memory
    "$DEGAS" plan $job --top 0 -o "$W/one.json" >/dev/null
}
fails 2 'needs a degas-plan with alternatives' "a plan alone" plot "$W/one.json" --kind pareto
runs 0 "a timeline of a plan" plot "$W/front.json" --kind timeline
fails 2 'throughput needs a degas-sweep' "throughput of a plan" plot "$W/front.json" --kind throughput
finish
