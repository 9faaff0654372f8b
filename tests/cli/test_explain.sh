#!/bin/sh
# degas plan --explain: every what-if is the plan of a request that says so; differences add up;
# limits are what their searches gained.
. tests/cli/tap.sh

job="gpt2-1.5b dgx-a100-80g --gpus 8 --global-batch 32 --slices off --memory-limit 12GiB --cp 1"
# shellcheck disable=SC2086
runs 0 "plan" plan $job --json
cp "$W/out" "$W/plan.json"
# shellcheck disable=SC2086
runs 0 "plan --explain" plan $job --explain --json -o "$W/explain.json"
cp "$W/out" "$W/printed.json"
cmp -s "$W/printed.json" "$W/explain.json"
report $? "--json prints what -o writes"
json "it is the same plan, and says why" "
plan = json.load(open('$W/plan.json'))
why = d.pop('explain')
for x in d, plan: # a second plan is looked for: the search prunes less
    for key in 'search', 'lower_bound_s', 'optimality_gap_fraction':
        del x[key]
assert d == plan
assert list(why) == ['runner_up', 'equal_division', 'limits', 'dimensions', 'resources']" "$W/explain.json"
json "no other choice is better, and all say how they differ" "
why = d['explain']
t = d['predicted']['iteration_s']
found = [o for x in why['dimensions'] for o in x['others']] + [why['runner_up']]
n = 0
for o in found:
    if 'iteration_s' not in o:
        assert o['reason']
        continue
    n += 1
    # A backward in two ops is rounded to ns twice: on one stage a few ns less is the same time.
    splits = 'zb' in o['schedule'] and o['degrees']['pp'] == 1
    assert o['iteration_s'] >= t - (2e-8 if splits else 0), o
    assert abs(o['objective_change_fraction'] - (o['iteration_s'] / t - 1)) < 1e-12
    difference = sum(o['breakdown_difference_s'].values())
    assert abs(difference - (o['iteration_s'] - t)) < 1e-8, o # rounded once per class
assert n > 20, n
# Nothing but the winner is better than the runner-up, which may differ in its stages alone; an order
# without a pipeline is the winner itself.
least = min(o['iteration_s'] for x in why['dimensions'] if x['dimension'] != 'schedule'
            for o in x['others'] if 'iteration_s' in o)
assert least >= why['runner_up']['iteration_s']" "$W/explain.json"
json "each other value is what the plan has there" "
for x in d['explain']['dimensions']:
    name = x['dimension']
    for o in x['others']:
        assert o['value'] != x['chosen']
        if 'iteration_s' in o:
            assert str(o.get(name, o['degrees'].get(name))) == o['value'], (name, o)
    assert x['chosen'] != '' and name != 'cp' or not x['others'] # fixed: nothing else is tried" \
    "$W/explain.json"

# what_if NAME SELECTION ARGUMENT...: the what-if is the plan of this request
what_if() {
    name=$1
    selection=$2
    shift 2
    if ! "$DEGAS" plan "$@" --json >"$W/out" 2>"$W/err" </dev/null; then
        report 1 "$name is a plan" "$(cat "$W/err")"
        return
    fi
    json "$name is the plan of that request" "
why = json.load(open('$W/explain.json'))['explain']
o = $selection
assert o['iteration_s'] == d['predicted']['iteration_s'], (o, d['degrees'])
assert o['degrees'] == d['degrees'] and o['tokens_per_s'] == d['predicted']['tokens_per_s']"
}
other() {
    echo "[o for x in why['dimensions'] if x['dimension'] == '$1'
          for o in x['others'] if o['value'] == '$2'][0]"
}
more() {
    echo "[o for o in why['resources'] if o['resource'] == '$1' and o['change'] == '$2'][0]"
}
# shellcheck disable=SC2086
{
    what_if "pp 4" "$(other pp 4)" $job --pp 4
    what_if "dp 2" "$(other dp 2)" $job --dp 2
    what_if "another schedule" "$(other schedule gpipe)" $job --schedule gpipe
    what_if "full recompute" "$(other recompute full)" $job --recompute full
    what_if "twice the batch" "$(more batch x2)" $job --global-batch 64
    what_if "twice the devices" "$(more devices x2)" $job --gpus 16
    what_if "1 GiB more" "$(more memory '+1 GiB')" $job --memory-limit 13GiB
    what_if "25 % more memory" "$(more memory '+25 %')" $job --memory-limit 15GiB
}

# The best division against that by count: 48 layers over 4 stages whose last has the head.
# shellcheck disable=SC2086
runs 0 "stages that differ" plan $job --dp 2 --tp 1 --pp 4 --vpp 1 --micro-batch 1 --schedule 1f1b --zero 0 \
    --recompute none --memory-limit 80GiB --explain -o "$W/divided.json"
line=$(sed -n 's/^with its layers divided equally by count: +\([0-9.]*\) %.*/\1/p' "$W/out")
json "what equal stages would cost is what they cost" "
n = [s['n_layers'] for s in d['stages']]
assert sum(n) == 48 and len(set(n)) > 1, n
first = 0
for s in d['stages']:
    s['first_layer'], s['n_layers'] = first, 12
    first += 12
why, best = d.pop('explain')['equal_division'], d.pop('predicted')['iteration_s']
d.pop('alternatives', None)
json.dump(d, open('$W/equal.json', 'w'))
assert why['fits'] and round((why['iteration_s'] / best - 1) * 100, 1) == $line, (why['iteration_s'], best)
open('$W/equal_s', 'w').write(repr(why['iteration_s']))" "$W/divided.json"
runs 0 "equal stages" simulate "$W/equal.json" --json
json "and simulate says the same" "assert d['iteration_s'] == float(open('$W/equal_s').read())"
"$DEGAS" show dgx-a100-80g --json >"$W/cluster.json"
if command -v python3 >/dev/null 2>&1; then
    python3 - "$W/cluster.json" "$W" <<'END'
import json, sys
for factor in (1.1, 2):
    d = json.load(open(sys.argv[1]))
    level = d["cluster"]["levels"][0]
    level["bytes_per_s"] *= factor
    if "shared_bytes_per_s" in level:
        level["shared_bytes_per_s"] *= factor
    json.dump(d, open("%s/links%g.json" % (sys.argv[2], factor), "w"))
END
    set -- --gpus 8 --global-batch 32 --slices off --memory-limit 12GiB --cp 1
    what_if "faster links" "$(more 'link nvswitch' '+10 %')" gpt2-1.5b "$W/links1.1.json" "$@"
    what_if "twice as fast links" "$(more 'link nvswitch' x2)" gpt2-1.5b "$W/links2.json" "$@"
else
    skip "faster links" "python3 is not installed"
fi
json "limits are what was gained, and what was idle" "
why = d['explain']
t, n = d['predicted']['iteration_s'], 32
def gain(resource, change):
    o = [o for o in why['resources'] if (o['resource'], o['change']) == (resource, change)][0]
    return 1 - o['iteration_s'] / t * (0.5 if resource == 'batch' else 1)
limits = {x['limit']: x['fraction'] for x in why['limits']}
assert [x['fraction'] for x in why['limits']] == sorted((x['fraction'] for x in why['limits']),
                                                        reverse=True)
for name, resource, change in [('memory', 'memory', '+25 %'), ('link', 'link nvswitch', 'x2'),
                               ('batch', 'batch', 'x2')]:
    g = gain(resource, change)
    assert abs(limits.get(name, 0) - g) < 1e-9 or g < 5e-4, (name, g)
busy = [r['busy_s'] for r in d['predicted']['ranks']]
uneven = (max(busy) - sum(busy) / len(busy)) / t
idle = limits.get('bubble', 0) + limits.get('divisibility', 0)
assert abs(idle - d['predicted']['bubble_fraction']) < 1.1e-3
assert uneven < 5e-4 or abs(limits['divisibility'] - uneven) < 1e-9" "$W/explain.json"
json "more memory helps where memory is the limit" "
assert any(x['limit'] == 'memory' and x['fraction'] > 0 for x in d['explain']['limits'])" \
    "$W/explain.json"

# --- the file is a plan ---
runs 0 "simulate reads it" simulate "$W/explain.json" --json
json "to the same time" "
assert d['iteration_s'] == json.load(open('$W/plan.json'))['predicted']['iteration_s']"

# --- people, alternatives, other objectives, threads ---
small="gpt2-124m dgx-a100-80g --gpus 4 --global-batch 8 --slices off --schedule 1f1b --cp 1"
# shellcheck disable=SC2086
runs 0 "a screen" plan $small --explain
has '^the runner-up is ' "why it beats the runner-up"
has '^what limits it (' "what limits it"
has '^other choices (all else searched again; time)' "what others cost"
has '^  tp  *1  *2  *+[0-9.]* %  ' "each with its best plan"
has '^what more would give' "what more would give"
has '^  devices  *x2  *8 ' "twice the devices"
# shellcheck disable=SC2086
runs 0 "with alternatives" plan $small --explain --top 2 --json
json "there are two, the first is the runner-up" "
assert len(d['alternatives']) == 2
a, b = d['alternatives'][0]['predicted'], d['explain']['runner_up']
assert a['iteration_s'] == b['iteration_s'] and a['peak_memory_bytes'] == b['peak_memory_bytes']"
# shellcheck disable=SC2086
runs 0 "the least memory" plan $small --explain --objective memory --json
json "is compared by memory" "
m = d['predicted']['peak_memory_bytes']
for o in [o for x in d['explain']['dimensions'] for o in x['others'] if 'iteration_s' in o]:
    assert abs(o['objective_change_fraction'] - (o['peak_memory_bytes'] / m - 1)) < 1e-12
    assert o['objective_change_fraction'] >= 0"
# shellcheck disable=SC2086
for threads in 1 3; do
    "$DEGAS" plan $small --explain --json --threads $threads >"$W/threads.$threads" 2>"$W/err"
done
cmp -s "$W/threads.1" "$W/threads.3" && [ -s "$W/threads.1" ]
report $? "threads do not change it" "$(cat "$W/err")"
# --- the order of dimensions: four nodes of two ---
if command -v python3 >/dev/null 2>&1; then
    python3 - "$W/cluster.json" "$W" <<'END'
import json, sys
d = json.load(open(sys.argv[1]))
c = d["cluster"]
c["nodes"][0].update(n_devices=2, n_nodes=4)
c["levels"][0]["group_devices"] = 2
c["levels"] = [c["levels"][0], dict(c["levels"][-1], bytes_per_s=2e8)]
c["levels"][1].pop("shared_bytes_per_s", None)
json.dump(d, open(sys.argv[2] + "/slow.json", "w"))
END
    set -- gpt2-124m "$W/slow.json" --global-batch 8 --seq-len 1024 --slices off --schedule 1f1b \
        --tp 1 --pp 2 --cp 1 --vpp 1 --recompute none --zero 0 --sequence-parallel off
    runs 0 "orders of ranks" plan "$@" --explain --json -o "$W/explain.json"
    json "each other order is a what-if" "
x = [x for x in d['explain']['dimensions'] if x['dimension'] == 'rank_order'][0]
assert x['chosen'] == d.get('rank_order', 'tp-cp-dp-pp'), x['chosen']
assert len(x['others']) == 1 and x['others'][0]['value'] != x['chosen']
assert x['others'][0]['iteration_s'] > d['predicted']['iteration_s']" "$W/explain.json"
    what_if "pipelines inside nodes" "$(other rank_order tp-cp-pp-dp)" "$@" \
        --rank-order tp-cp-pp-dp
    runs 0 "on a screen" plan "$@" --explain
    has '^  rank-order  *tp-cp-' "the best other order and why"
    runs 0 "an order that is asked for" plan "$@" --rank-order tp-cp-pp-dp --explain --json
    json "has no other" "
x = [x for x in d['explain']['dimensions'] if x['dimension'] == 'rank_order'][0]
assert x['chosen'] == 'tp-cp-pp-dp' and x['others'] == []"
else
    skip "orders of ranks" "python3 is not installed"
fi
runs 0 "everything fixed" plan gpt2-124m dgx-a100-80g --gpus 2 --global-batch 8 --dp 1 --tp 1 \
    --pp 2 --vpp 1 --cp 1 --ep 1 --micro-batch 1 --schedule 1f1b --slices off --recompute none \
    --zero 0 --sequence-parallel off --explain
has '^what more would give' "leaves what more would give"
fails 1 'memory' "no plan, nothing to explain" \
    plan gpt2-124m dgx-h100 --global-batch 8 --memory-limit 100MiB --explain
finish
