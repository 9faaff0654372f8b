#!/bin/sh
# zb-auto is built for a plan's own times and memory: through simulate it never loses to the families
# that have the same chunks, under the same memory limit.
. tests/cli/tap.sh

if ! command -v python3 >/dev/null 2>&1; then
    skip "zb-auto against its families" "python3 is not installed"
    finish
fi

python3 - "$W/cases.jsonl" <<'PYTHON'
import json, random, sys

random.seed(1)
families = {1: ['1f1b', 'zb-h1', 'zb-h2', 'zb-auto'], 2: ['zb-v', 'v-half', 'v-min', 'zb-auto']}
with open(sys.argv[1], 'w') as out:
    for case in range(120):
        vpp = random.choice([1, 1, 2])
        pp = random.choice([2, 3, 4, 6])
        micro = random.choice([1, 2])
        request = {
            'model': random.choice(['gpt3-1b', 'megatron-3.6b', 'gpt3-13b', 'llama3-8b']),
            'cluster': random.choice(['dgx-a100-80g', 'dgx-h100', 'p3.16xlarge']),
            'layers': random.choice([12, 13, 17, 24]), 'seq_len': random.choice([512, 2048]),
            'pp': pp, 'vpp': vpp, 'dp': random.choice([1, 2]), 'tp': random.choice([1, 2]),
            'micro_batch': micro, 'recompute': random.choice(['none', 'selective', 'full']),
            'overlap': random.choice([['pp'], ['pp', 'dp'], 'none']),
        }
        request['global_batch'] = request['dp'] * micro * random.choice([2, 5, 8, 12])
        if random.random() < 0.7:
            request['memory_limit'] = '%dMiB' % random.randint(3000, 40000)
        for family in families[vpp]:
            out.write(json.dumps({'id': '%d %s' % (case, family), **request,
                                  'schedule': family}) + '\n')
PYTHON
runs 0 "120 plans, by four schedules each" simulate --batch "$W/cases.jsonl"
output=$(python3 - "$W/out" <<'PYTHON' 2>&1
import json, sys

cases, lost, met, better = {}, [], 0, 0
for line in open(sys.argv[1]):
    d = json.loads(line)
    assert 'error' not in d, d
    case, family = d['id'].split()
    cases.setdefault(case, {})[family] = d
for case, reports in cases.items():
    ours = reports.pop('zb-auto')
    fitting = [r for r in reports.values() if r['fits']]
    met += len(fitting)
    if fitting and not ours['fits'] or any(ours['iteration_s'] > r['iteration_s'] for r in fitting):
        lost.append((case, ours['iteration_s'], {k: r['iteration_s'] for k, r in reports.items()}))
    better += bool(fitting) and ours['iteration_s'] < min(r['iteration_s'] for r in fitting)
print('%d families fit; zb-auto is faster than all of them in %d plans' % (met, better))
assert not lost, lost
assert met >= 100 and better >= 20, (met, better)
PYTHON
)
report $? "zb-auto fits where one of them fits, and is never slower" "$output"
printf '# %s\n' "$output"
finish
