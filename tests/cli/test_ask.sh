#!/bin/sh
# What is asked in a person's terms: what-ifs of a cluster, one's own clusters, models and jobs, several clusters, deadlines
# and budgets.
# Test runner: first.
. tests/cli/tap.sh

job="--gpus 8 --global-batch 16 --seq-len 512 --tp 1 --pp 2 --cp 1 --schedule 1f1b --slices off"

# --- what if the cluster were another ---

# shellcheck disable=SC2086
runs 0 "what if" plan gpt2-124m h100-96g $job --json \
    --set "memory=141GB,memory-bandwidth=4.8TB/s,flops=1PFLOPS,power=500,price=2.1,latency=4us,network=100Gbps,nvswitch=1TB/s"
json "each number is what was said, the others are in proportion" "
c, d0 = d['cluster']['cluster'], d['cluster']['cluster']['devices'][0]
assert d0['memory_bytes'] == 141e9 and d0['memory_bytes_per_s'] == 4.8e12 and d0['power_w'] == 500
assert d0['flops_per_s']['bf16'] == 1e15 and abs(d0['flops_per_s']['fp32'] / 1e15 - 66.9 / 989.4) < 1e-12
inner, outer = c['levels'][0], c['levels'][-1]
assert inner['bytes_per_s'] == 1e12 and outer['latency_s'] == 4e-6
assert outer['bytes_per_s'] == 12.5e9 and outer.get('shared_bytes_per_s', 0) in (0, 8 * 12.5e9, 4 * 12.5e9)
assert c['price_per_device_hour'] == 2.1 and c['currency'] == 'USD' and c['price_source'] == '--set'
assert d['cluster']['name'].startswith('h100-96g with memory=141GB, ') and c['sources'][-1].startswith('--set: ')"
# shellcheck disable=SC2089
for bad in "memry=1GB|did you mean \"memory\"" "network=400|needs a unit, such as 400Gbps" "memory|expected KEY=VALUE" \
    "power=0|above 0" "memory=3parsec|parsec" "price=1 --price 2|gives the price"; do
    # shellcheck disable=SC2086,SC2090
    fails 2 "${bad#*|}" "a what-if that is none: ${bad%%|*}" plan gpt2-124m h100-96g $job --set ${bad%%|*}
done
# What was measured is not changed by a wish.
"$DEGAS" show h100-96g --json >"$W/profile.json" 2>/dev/null
if command -v python3 >/dev/null 2>&1; then
    python3 - "$W" <<'PY'
import json, sys
p = json.load(open(sys.argv[1] + '/profile.json'))
p['measured'] = [{'op': 'all_reduce', 'bytes': 1024, 'n_ranks': 2, 'median_s': 1e-5}]
json.dump(p, open(sys.argv[1] + '/measured.json', 'w'))
PY
    # shellcheck disable=SC2086
    fails 2 'measured times that would not change' "a network that was measured" \
        plan gpt2-124m "$W/measured.json" $job --set network=800Gbps
    # shellcheck disable=SC2086
    runs 0 "its memory was not" plan gpt2-124m "$W/measured.json" $job --set memory=40GB
else
    skip "a network that was measured" "python3 is not installed"
fi

# --- cost is never answered with time ---

for command in plan sweep; do
    # shellcheck disable=SC2086
    fails 2 '^degas: --objective: the price of a H100-SXM-96GB is not known; --price' "$command: no price" \
        $command gpt2-124m h100-96g $job --objective cost
done

# --- one's own cluster, model and job ---

for kind in cluster model job; do
    runs 0 "init $kind" init $kind -o "$W/$kind.yaml"
    fails 4 'is there already' "a file of one's own is not overwritten: $kind" init $kind -o "$W/$kind.yaml"
done
fails 2 'expected cluster, model or job, got "plan"' "init of what is none" init plan
fixed="--gpus 16 --global-batch 16 --tp 8 --pp 1 --cp 1 --schedule 1f1b --slices off --recompute none --zero 1 --seq-len 2048"
# shellcheck disable=SC2086
runs 0 "a model and a cluster of one's own" plan "$W/model.yaml" "$W/cluster.yaml" $fixed --json
json "the cluster is the built-in one with its device, and what the file says" "
c = d['cluster']['cluster']
assert c['devices'][0]['name'] == 'H100-SXM5-80GB' and c['devices'][0]['memory_bytes'] == 80 * 2**30
assert c['levels'][-1]['bytes_per_s'] == 50e9 and c['price_per_device_hour'] == 2.1 and c['currency'] == 'USD'
assert d['cluster']['cost']['gemm_fraction'] == 0.7 and c['sources'][-1] == 'cluster.yaml' == c['price_source']
assert d['model']['name'] == 'ours-7b' and d['model']['head_dim'] == 128 and d['model']['n_kv_heads'] == 8"
runs 0 "show a cluster of one's own" show "$W/cluster.yaml"
has '^ours: 128 devices' "with all its devices"
printf '%s\n' 'format: degas-cluster' 'version: 1' 'device: Ours' 'like: dgx-h100' 'nodes: 2' 'node_devices: 4' \
    'flops: 2 PFLOPS' 'memory: 192 GB' 'memory_bandwidth: 8 TB/s' 'network: 800 Gbps' >"$W/other.yaml"
runs 0 "a device that is like another" show "$W/other.yaml" --json
json "has its own numbers, and the other's fractions" "
c, g = d['cluster'], d['cluster']['devices'][0]
assert g['name'] == 'Ours' and g['flops_per_s']['bf16'] == 2e15 and g['memory_bytes'] == 192e9
assert g.get('power_w', 0) == 0 and d['cost']['gemm_fraction'] == 0.7
assert c['nodes'][0]['n_devices'] == 4 and c['nodes'][0]['n_nodes'] == 2 and c['levels'][0]['group_devices'] == 4
assert c['levels'][-1]['bytes_per_s'] == 100e9 and c['levels'][-1]['shared_bytes_per_s'] == 400e9"
printf '%s\n' 'format: degas-cluster' 'version: 1' 'device: Ours' 'like: dgx-h100' >"$W/bad.yaml"
fails 3 'bad.yaml:1:1: \$.flops: missing key; also missing: \$.memory, \$.memory_bandwidth$' "all that is missing at once" \
    show "$W/bad.yaml"
printf '%s\n' 'format: degas-model' 'version: 1' 'family: gpt' 'hidden: 8' >"$W/bad.yaml"
fails 3 'bad.yaml:1:1: \$.n_layers: missing key; also missing: \$.n_heads, \$.vocab, \$.max_seq_len$' "of a model, too" \
    show "$W/bad.yaml"
printf '%s\n' 'format: degas-cluster' 'version: 1' 'device: H100' >"$W/bad.yaml"
fails 3 'bad.yaml:3:10: \$.device: no built-in cluster has a "H100"' "an unknown device" show "$W/bad.yaml"
printf '%s\n' 'format: degas-cluster' 'version: 1' 'device: H100-SXM5-80GB' 'memory: 80' >"$W/bad.yaml"
fails 3 'bad.yaml:4:10: \$.memory: memory: needs a unit' "a size without its unit" show "$W/bad.yaml"

# A job file is its flags; what is typed counts more.
printf '%s\n' 'format: degas-job' 'version: 1' 'model: model.yaml' 'cluster: cluster.yaml' 'gpus: 16' 'global_batch: 16' \
    'tp: 8' 'pp: 1' 'cp: 1' 'schedule: 1f1b' 'slices: off' 'recompute: none' 'zero: 1' 'seq_len: 4096' >"$W/job.yaml"
# shellcheck disable=SC2086
"$DEGAS" plan "$W/model.yaml" "$W/cluster.yaml" $fixed --json >"$W/flags.json" 2>/dev/null
runs 0 "a job file" plan "$W/job.yaml" --seq-len 2048 --json
cmp -s "$W/out" "$W/flags.json"
report $? "is its flags, and a typed flag counts more"
runs 0 "simulate a job file" simulate "$W/job.yaml" --json
runs 0 "sweep a job file" sweep "$W/job.yaml" --gpus 8,16 --json
json "with the flags of a sweep" "assert [p['n_devices'] for p in d['points']] == [8, 16]"
echo 'colour: red' >>"$W/job.yaml"
fails 3 'job.yaml:15:1: \$.colour: unknown key' "a job's key that is no flag" plan "$W/job.yaml"
sed -i 's/^colour: red/set: {memory: 141 GB, network: 800 Gbps}/' "$W/job.yaml"
runs 0 "what-ifs of a job file" plan "$W/job.yaml" --json
json "are those of --set" "assert d['cluster']['cluster']['devices'][0]['memory_bytes'] == 141e9"
fails 2 'an argument is missing' "a file that is no job" plan "$W/cluster.yaml" --global-batch 8

# --- several clusters, a deadline, a budget ---

ask="gpt2-124m dgx-h100,dgx-a100-80g --price 4,1 --global-batch 480 --schedule 1f1b --slices off --pp 1 --tp 1 --cp 1 --zero 1"
# shellcheck disable=SC2086
runs 0 "several clusters" sweep $ask --gpus 8,16 --tokens 100B --json
cp "$W/out" "$W/two.json"
json "cluster by cluster, each with its price" "
assert [(p['cluster'], p['n_devices']) for p in d['points']] == [
    (c, n) for c in ('dgx-h100', 'dgx-a100-80g') for n in (8, 16)]
for p in d['points']:
    price = 4 if p['cluster'] == 'dgx-h100' else 1
    assert abs(p['cost'] / (p['days'] * 24 * p['n_devices'] * price) - 1) < 1e-9
assert 'within_days' not in d and 'budget' not in d"
# shellcheck disable=SC2086
runs 0 "a deadline and a budget" sweep $ask --tokens 100B --within 7h --budget 2K --json
cp "$W/out" "$W/asked.json"
json "numbers of devices grow until it is made, and are looked at between" "
assert abs(d['within_days'] - 7 / 24) < 1e-12 and d['budget'] == 2000
for c in ('dgx-h100', 'dgx-a100-80g'):
    n = {p['n_devices']: p for p in d['points'] if p['cluster'] == c}
    most = max(n)
    assert n[most]['effective_days'] <= 7 / 24 < n[most // 2]['effective_days'], c
    assert all(k == most or k > most // 2 or k & (k - 1) == 0 for k in n) and all(k % 8 == 0 for k in n)"
# shellcheck disable=SC2086
runs 0 "plan says the cheapest that makes it" plan $ask --tokens 100B --within 7h --budget 2K -o "$W/cheapest.json"
has '^cheapest in time   [0-9]* devices of dgx-[a-z0-9-]*: 0.[0-9]* days, [0-9.]* USD$' "in words"
json "and writes its plan" "
s = json.load(open('$W/asked.json'))
best = min((p for p in s['points'] if p['feasible'] and p['effective_days'] <= 7 / 24 and p['effective_cost'] <= 2000),
           key=lambda p: p['effective_cost'])
g = d['degrees']
assert d['cluster']['name'] == best['cluster'] and g['dp'] * g['tp'] * g['pp'] * g['cp'] == best['n_devices']
assert d['predicted']['iteration_s'] == best['iteration_s']" "$W/cheapest.json"
# shellcheck disable=SC2086
runs 0 "a budget alone" plan $ask --gpus 8,16 --tokens 100B --budget 1K
has '^fastest in budget  16 devices of dgx-h100' "buys the fastest"
# shellcheck disable=SC2086
runs 1 "a deadline that is not made" sweep $ask --gpus 8 --tokens 100B --within 1h --budget 400
has '^nothing makes it' "is told"
has '^fastest in budget  8 devices of dgx-h100' "with the nearest"
# shellcheck disable=SC2086
runs 0 "without tokens the fastest cluster" plan $ask --gpus 8 --json
json "is the answer" "assert d['cluster']['name'] == 'dgx-h100'"
# shellcheck disable=SC2086
runs 0 "the cheapest cluster" plan $ask --gpus 8 --objective cost --json
json "is another" "assert d['cluster']['name'] == 'dgx-a100-80g'"
# A whole profile takes units, too.
runs 0 "a built-in cluster as a file" show dgx-h100 --json
cp "$W/out" "$W/plain.json"
if command -v python3 >/dev/null 2>&1; then
    python3 - "$W" <<'PY'
import json, sys
d = json.load(open(sys.argv[1] + '/plain.json'))
device, inner, outer = d['cluster']['devices'][0], *d['cluster']['levels']
device.update(memory_bytes='80 GiB', memory_bytes_per_s='3.35TB/s', vector_flops_per_s='66.9 TFLOPS', l2_bytes='50MiB')
device['flops_per_s'].update(bf16='989.4TFLOPS')
inner.update(bytes_per_s='450 GB/s', latency_s='2us')
outer.update(bytes_per_s='400 Gbps', shared_bytes_per_s='3.2 Tbps', latency_s='5 us')
json.dump(d, open(sys.argv[1] + '/units.json', 'w'))
for name, text in ('wrong', '400 GB'), ('large', '2e10 GB/s'):
    outer.update(bytes_per_s=text)
    json.dump(d, open(sys.argv[1] + '/' + name + '.json', 'w'))
PY
    runs 0 "numbers as texts with units" show "$W/units.json" --json
    cmp -s "$W/out" "$W/plain.json"
    report $? "are the same numbers" "$(diff "$W/out" "$W/plain.json")"
    fails 3 'levels\[1\].bytes_per_s: expected a rate such as 900GB/s or 400Gbps, got "400 GB"; is the unit GB/s?' \
        "a unit of another kind" show "$W/wrong.json"
    fails 3 'levels\[1\].bytes_per_s: 2e10 GB/s is not from 1 to 1e+18' "a number that is too large" show "$W/large.json"
fi
# What a newcomer types first: names as others have them, words that a flag does not have, no format, no length.
fails 4 'did you mean "llama3-8b"' "a name of Hugging Face" plan meta-llama/Meta-Llama-3-8B dgx-h100 --global-batch 8
fails 2 'did you mean "dgx-h100"' "devices with their number" plan llama3-8b 8xH100 --global-batch 8
fails 2 'degas list models' "a model that is not there" plan gpt-4 dgx-h100 --global-batch 8
fails 2 'none of auto, none, selective, full' "auto is one of the words" plan gpt2-124m dgx-h100 --global-batch 8 --recompute yes
fails 2 'expected one of naive, .*, looped-bfs' "a schedule that is not there" plan gpt2-124m dgx-h100 --global-batch 8 --schedule zero-bubble
fails 2 'a model where the file of a plan is expected; degas plan llama3-8b CLUSTER' "a model alone" simulate llama3-8b
fails 2 'a model where the file of a plan is expected' "to be run" run gpt-mini
fails 2 '"8-64": a range is written such as 8..64:x2' "a range with a hyphen" sweep gpt2-124m dgx-h100 --gpus 8-64 --global-batch 64
# A byte behind the empty number was read, which the address sanitizer found.
fails 2 'a number of the list: expected an integer from 1 to 16777216, got ""' "a list that begins with a comma" sweep gpt2-124m dgx-h100 --gpus ,8 --global-batch 64
fails 2 'a time such as 5us, 2s, 12h or 60d' "a time that is none" plan gpt2-124m dgx-h100 --global-batch 64 --tokens 1B --within yesterday
# 126 layers on 128 virtual stages: first and last have the embedding and the head alone.  DualPipe has two chunks of its own.
runs 0 "more stages than layers" plan llama3-405b dgx-h100 --gpus 128 --tp 8 --pp 16 --vpp 8 --cp 1 --schedule interleaved --global-batch 16 \
    --seq-len 512 --recompute full --slices off --top 0 --json
json "have no layers at the ends" "
layers = [s['n_layers'] for s in d['stages']]
assert len(layers) == 128 and sum(layers) == 126 and max(layers) == 1, layers"
runs 0 "a schedule that has two chunks" simulate gpt3-13b dgx-h100 --gpus 8 --pp 4 --tp 2 --global-batch 16 --schedule dualpipe --trace "$W/dual.json"
runs 0 "of which the trace has eight stages" show "$W/dual.json"
has '^dualpipe, 4 ranks, 2 chunks' "two on each rank"
fails 2 '^degas: --ep: ep 3 does not divide the 8 experts of mixtral-8x7b; legal: 1, 2, 4, 8$' "experts that do not divide" \
    plan mixtral-8x7b dgx-h100 --gpus 8 --global-batch 64 --seq-len 4096 --ep 3
fails 2 '^degas: --ep: ep 2: llama3-8b has no experts; legal: 1$' "no experts" plan llama3-8b dgx-h100 --gpus 8 --global-batch 64 --ep 2
printf 'device: H100-SXM5-80GB\nnodes: 4\n' >"$W/bare.yaml"
fails 3 '"degas-cluster" in a cluster of one.s own, as degas init cluster' "a cluster without its format" plan gpt2-124m "$W/bare.yaml" --global-batch 8
for length in "" "--seq-len 40960"; do
    # shellcheck disable=SC2086
    runs 0 "a model that allows long sequences $length" simulate qwen3-32b dgx-h100 --gpus 64 --global-batch 64 --tp 8 $length
    [ "$(grep -c 'sequences of 40960 tokens, the longest that qwen3-32b allows' "$W/err")" = "$([ -n "$length" ] && echo 0 || echo 1)" ]
    report $? "the length is told where nobody asked for it" "$(cat "$W/err")"
done
printf '{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128, "max_position_embeddings": 64}' >"$W/config.json"
DEGAS_HERE=$(readlink -f "$DEGAS")
(cd "$W" && "$DEGAS_HERE" show config.json) | head -1 | grep -qx llama
report $? "a config without a folder is called by its type"
# One picture of several clusters: a curve of each, and ideal is the best of its own.
# shellcheck disable=SC2086
runs 0 "a picture of several clusters" sweep $ask --gpus 8,16 --plot "$W/clusters.tsv" --json
json "has a curve for each, and each has its own ideal" "
import csv
rows = list(csv.DictReader(open('$W/clusters.tsv'), delimiter='\t'))
want = {(p['cluster'], p['n_devices']): p['tokens_per_s'] for p in d['points']}
assert {(r['cluster'], int(r['x'])): float(r['tokens_per_s']) for r in rows} == want and len(rows) == len(want) >= 4
assert len({r['series'] for r in rows}) == len({r['cluster'] for r in rows}) == len({(r['series'], r['cluster']) for r in rows})
for r in rows:
    best = max(t / n for (c, n), t in want.items() if c == r['cluster'])
    assert abs(float(r['ideal_tokens_per_s']) / (best * int(r['x'])) - 1) < 1e-9, r"
one="gpt2-124m dgx-h100 --global-batch 480 --schedule 1f1b --slices off --pp 1 --tp 1 --cp 1 --zero 1"
# shellcheck disable=SC2086
{
    fails 2 'price of dgx-h100 is not known; --price' "a budget without a price" plan $one --tokens 1B --budget 10
    fails 2 'needs --tokens' "a deadline without tokens" plan $one --within 1d
    fails 2 'expected one price, or one of each of the 1 clusters' "more prices than clusters" plan $one --price 1,2 --tokens 1B
    fails 2 'price of dgx-a100-80g is not known' "money that is half known" \
        plan gpt2-124m dgx-h100,dgx-a100-80g --global-batch 256 --tokens 1B --within 1d
    fails 2 'did you mean "dgx-h100"' "a cluster of several that is not there" plan gpt2-124m dgx-b200,dgx-h10 --global-batch 8
    runs 0 "a deadline without a price" plan $one --tokens 100B --within 1d
}
has '^least device time  8 devices: .*--price would say' "says what it can"

# --- of a plan ---

# shellcheck disable=SC2086
{
    runs 0 "a plan in a file whose name has a space" plan $one --gpus 8 --top 0 -o "$W/a plan.json"
    has "next: degas simulate '.*/a plan.json'$" "the hint is in quotes"
    runs 0 "its step" simulate "$W/a plan.json" --json
    cp "$W/out" "$W/is.json"
    runs 0 "what if the network were ten times slower" simulate "$W/a plan.json" --set nvswitch=45GB/s --json
    json "dp takes longer, and nothing else" "
a, b = json.load(open('$W/is.json'))['breakdown_s'], d['breakdown_s']
assert b['dp'] > a['dp'] > 0 and b['compute'] == a['compute'], (a, b)"
    fails 2 'did you mean "memory"' "a what-if that is none" simulate "$W/a plan.json" --set memry=1GB
    fails 2 'the plan file has this already' "a flag of the plan" simulate "$W/a plan.json" --tp 2
    fails 2 '^degas: --micro-batch 1024 is more than --global-batch 480$' "a micro-batch that is too large" plan $one --gpus 8 --micro-batch 1024
}

# --- how right it is ---

# A utilisation that nobody measured is told, one that was is not: 13B with and without recompute.
for recompute in none full; do
    runs 0 "13B on A100 of 40 GB, recompute $recompute" plan llama2-13b dgx-a100-40g --gpus 64 --global-batch 512 --seq-len 2048 \
        --schedule 1f1b --slices off --cp 1 --recompute $recompute
    cp "$W/out" "$W/told"
    json "a causal MFU above every measured one is told" "
import re
told = open('$W/told').read()
highest = [r for r in d['utilization'] if (r['device'], r['dtype']) == ('A100-SXM4-40GB', 'bf16')][0]
causal = float(re.search(r'; (\S+) % counts those that a causal', told)[1])
said = re.search(r'causal MFU (\S+) % is more than any published run reached: '
                 r'the highest of (\d+) in bf16 on A100-SXM4-40GB is (\S+) % \((\S+)\)', told)
assert bool(said) == (causal > 100 * highest['highest_fraction']) == ('$recompute' == 'none'), (said, causal, highest)
assert not said or (float(said[1]), int(said[2]), said[4]) == (causal, highest['n'], highest['source']), (said, highest)
assert not said or abs(float(said[3]) - 100 * highest['highest_fraction']) < 0.06" cli/validate/accuracy.json
done
# shellcheck disable=SC2086
runs 0 "a plan of a framework and a device with published runs" plan gpt3-13b dgx-h100 --gpus 16 --global-batch 32 --tp 4 --pp 2 \
    --schedule 1f1b --slices off --framework megatron-core
cp "$W/out" "$W/told"
has '^MFU [0-9.]* % counts all attention scores, as published numbers do; [0-9.]* %' "causal MFU beside the convention"
json "the error is that of these runs" "
import re
told = open('$W/told').read()
row = [r for r in d['time'] if (r['framework'], r['device']) == ('megatron-core', 'H100-SXM5-80GB')][0]
m = re.search(r'error of such predictions: (\S+) % on average, 9 of 10 within (\S+) % \((\d+) published', told)
assert abs(float(m[1]) - 100 * row['mean_fraction']) < 0.1, (m[0], row)
assert abs(float(m[2]) - 100 * row['p90_fraction']) < 0.1 and int(m[3]) == row['n']
used, usable = map(float, re.search(r'memory (\S+) GiB of (\S+) GiB usable', told).groups())
limit, lost = map(float, re.search(r'usable: (\S+) GiB less (\S+) GiB of driver', told).groups())
assert abs(limit - lost - usable) < 0.06 and used < usable, (used, usable, limit, lost)
memory = [r for r in d['memory'] if (r['framework'], r['device']) == ('megatron-core', 'H100-SXM5-80GB')][0]
share = float(re.search(r'P\(fits\) (\S+) %', told)[1]) / 100
q = memory['measured_over_predicted']
assert len(q) == 21 and q == sorted(q)
below = sum(x <= limit / used for x in q) - 1
assert below / 20 - 0.01 <= share <= (below + 1) / 20 + 0.01, (share, below, limit / used)
# causal: of s^2 scores s (s + 1) / 2 are needed; 13b: 40 layers of 12 h^2 s products and 2 s^2 h of scores, and the head
s, h, l, v = 2048, 5120, 40, 50257
scores = l * 4 * s * s * h
all_ = l * 24 * s * h * h + scores + 2 * s * h * v
a, b = map(float, re.search(r'MFU (\S+) % counts .*; (\S+) %', told).groups())
assert abs(b / a - (1 - scores / 2 / all_)) < 0.01, (b / a, 1 - scores / 2 / all_)" cli/validate/accuracy.json
has '^3[, ].*takes .* more: ' "three plans, and what the third loses"
runs 0 "as a file" plan gpt3-13b dgx-h100 --gpus 16 --global-batch 32 --tp 4 --pp 2 --schedule 1f1b --slices off --framework megatron-core --json
json "the plan says its error, what its peak may reach, and two alternatives that differ" "
import re
told = open('$W/told').read()
e = d['error']
row = [r for r in json.load(open('cli/validate/accuracy.json'))['time']
       if (r['framework'], r['device']) == ('megatron-core', 'H100-SXM5-80GB')][0]
assert e['time'] == {'framework': row['framework'], 'device': row['device'], 'runs': row['n'],
                     'mean_fraction': row['mean_fraction'], 'p90_fraction': row['p90_fraction']}
assert (e['highest_utilization']['device'], e['highest_utilization']['dtype']) == ('H100-SXM5-80GB', 'bf16')
assert abs(e['fit_fraction'] - float(re.search(r'P\\(fits\\) (\\S+) %', told)[1]) / 100) < 0.01
r = d['predicted']
assert r['peak_memory_bytes'] < r['memory_usable_bytes'] < r['memory_limit_bytes'] == 80 * 2**30
choice = lambda p: (p['degrees'], p['micro_batch'], p['schedule'], p['zero_stage'], p['offload'], p['sequence_parallel'],
                    len(p['slices']), [s['recompute'] for s in p['stages']])
plans = [d] + d['alternatives']
assert len(plans) == 3 and all(choice(a) != choice(b) for i, a in enumerate(plans) for b in plans[:i])
assert [p['predicted']['iteration_s'] for p in plans] == sorted(p['predicted']['iteration_s'] for p in plans)"
few="gpt3-13b dgx-h100 --gpus 8 --global-batch 8 --schedule 1f1b --slices off --pp 1 --cp 1 --framework megatron-core"
# shellcheck disable=SC2086
runs 0 "a plan that fits" plan $few --json
cp "$W/out" "$W/any.json"
# shellcheck disable=SC2086
runs 0 "a plan that fits for sure" plan $few --fit-probability 100% --json
json "keeps the limit less the largest error" "
q = [r for r in json.load(open('cli/validate/accuracy.json'))['memory']
     if (r['framework'], r['device']) == ('megatron-core', 'H100-SXM5-80GB')][0]['measured_over_predicted']
assert d['predicted']['memory_limit_bytes'] == int(80 * 2**30 / max(1, q[-1]))
assert d['predicted']['peak_memory_bytes'] <= d['predicted']['memory_limit_bytes']"
# shellcheck disable=SC2086
fails 2 'more than the whole' "a probability that is none" plan $few --fit-probability 2
runs 0 "a device without published runs" plan gpt2-124m mi325x --gpus 8 --global-batch 8 --schedule 1f1b --slices off
has '^error of such predictions: not known' "says so"

# Modelled times never win silently, and ranks beyond what was measured are told.
if command -v python3 >/dev/null 2>&1; then
    python3 - "$W" <<'PY'
import json, sys
p = json.load(open(sys.argv[1] + '/profile.json'))
p.update(measured_model=json.load(open('models/gpt-mini.json')), measured_dtype='bf16', measured_concurrency=8)
p['measured'] = [{'op': 'layer', 'pass': k, 'batch': 1, 'tokens': 256, 'context': 0, 'tp': 1, 'median_s': t}
                 for k, t in (('forward', 1.0), ('backward', 2.0))]
json.dump(p, open(sys.argv[1] + '/slow.json', 'w'))
p['measured'] = []
del p['measured_model'], p['measured_dtype'], p['measured_concurrency']
q = json.load(open('profiles/dgx-a100-80g.json'))['cluster']
p['cluster']['devices'] += q['devices']
p['cluster']['nodes'].append({'device': q['devices'][0]['name'], 'n_devices': 8, 'n_nodes': 1})
json.dump(p, open(sys.argv[1] + '/mixed.json', 'w'))
PY
    runs 0 "a plan of modelled times" plan gpt-mini "$W/slow.json" --gpus 2 --global-batch 8 --schedule 1f1b --slices off --dp 1 --pp 1 --cp 1
    runs 0 "a plan where only tp 1 was measured" plan gpt-mini "$W/slow.json" --gpus 2 --global-batch 8 --schedule 1f1b --slices off --cp 1
    grep -q '^degas: note: at tp 2 no layer was measured; of modelled times the fastest plan is tp 2, .*: --tp 2 gives it' "$W/err"
    report $? "says which plan modelled times would choose" "$(cat "$W/err")"
    runs 0 "and as a file" plan gpt-mini "$W/slow.json" --gpus 2 --global-batch 8 --micro-batch 1 --schedule 1f1b --slices off --cp 1 --json
    json "measured times are not outranked by modelled ones" "
assert d['degrees']['tp'] == 1
assert all(x['degrees']['tp'] == 1 for x in d['alternatives'])"
    runs 0 "a degree that is asked for" plan gpt-mini "$W/slow.json" --gpus 2 --global-batch 8 --schedule 1f1b --slices off --cp 1 --tp 2 --json
    json "is planned" "assert d['degrees']['tp'] == 2"
    runs 0 "more ranks than were measured" plan gpt-mini "$W/slow.json" --gpus 16 --global-batch 16 --tp 1 --pp 1 --cp 1
    grep -q 'was measured on 8 devices; 16 are planned' "$W/err"
    report $? "are told" "$(cat "$W/err")"
    runs 0 "two kinds of device" plan gpt2-124m "$W/mixed.json" --global-batch 32 --pp 2 --tp 1 --cp 1 --schedule 1f1b --slices off
    has '^pipeline rank 0  ranks 0 to 7 H100-SXM-96GB$' "which rank is on which"
    has '^pipeline rank 1  ranks 8 to 15 A100-SXM4-80GB$' "of both"
else
    skip "modelled beside measured" "python3 is not installed"
fi

# --- why others lose, true durations ---

p4="gpt2-1.5b dgx-h100 --gpus 4 --dp 1 --tp 1 --pp 4 --cp 1 --global-batch 16 --schedule 1f1b --slices off"
# shellcheck disable=SC2086
runs 0 "the next best plans" plan $p4 --top 2 -o "$W/p4.json"
cp "$W/out" "$W/told"
json "lose in words what their iterations have more of" "
import re
told = open('$W/told').read()
for i, a in enumerate(d['alternatives'], 2):
    line = re.search(r'(?m)^%d takes (\S+) (\S+) more: (.*)$' % i, told)
    loss = a['predicted']['iteration_s'] - d['predicted']['iteration_s']
    assert abs(float(line[1]) * {'us': 1e-6, 'ms': 1e-3, 's': 1}[line[2]] - loss) < 0.01 * loss, (line[0], loss)
    for part in ('compute', 'recompute', 'bubble'):
        more = a['predicted']['breakdown_s'][part] - d['predicted']['breakdown_s'][part]
        said = re.search(r'(?:^|, )%s (\S+) (\S+) (more|less)' % part, line[3])
        assert (said is not None) == (abs(more) > 0.001 * d['predicted']['iteration_s']), (part, more, line[0])
        assert said is None or (said[3] == 'more') == (more > 0)" "$W/p4.json"
grep -q '^of it .*, tied table [0-9.]* %' "$W/told" && ! grep -q '^of it .*dp ' "$W/told"
report $? "the exchange of tied tables is not called data parallel where dp is 1" "$(grep '^of it' "$W/told")"
runs 0 "schedules with the times of a plan" schedule 1f1b zb-h1 --times-of "$W/p4.json" --microbatches 8
cp "$W/out" "$W/told"
json "take what its ops take" "
import re
told = open('$W/told').read()
made, bubble = zip(*re.findall(r'makespan (\S+) ms, longest rank .* bubble (\S+) %', told))
assert abs(float(bubble[0]) - 100 * 3 / 11) < 0.5 and float(made[1]) < float(made[0]) # (p - 1) / (m + p - 1)
b = d['predicted']['breakdown_s']
work = 1e3 * (b['compute'] + b['recompute']) # of a rank, without the optimizer
assert abs(float(made[0]) * 8 / 11 / work - 1) < 0.02, (made, work)" "$W/p4.json"
fails 2 'gives them, too' "two sources of times" schedule 1f1b --times-of "$W/p4.json" --op-times F=1

# --- devices that fill no whole nodes ---
runs 0 "a plan on 23 devices of nodes of 8" plan gpt3-1b dgx-a100-80g --gpus 23 --global-batch 64 --slices off -o "$W/p23.json"
cp "$W/err" "$W/told"
runs 0 "a plan on 16" plan gpt3-1b dgx-a100-80g --gpus 16 --global-batch 64 --slices off -o "$W/p16.json"
! grep -q 'whole node' "$W/err"
report $? "whole nodes are not told of where there are only such" "$(cat "$W/err")"
json "what is faster on whole nodes is told, and as fast as it then is" "
import re
told = open('$W/told').read()
line = re.search(r'with 7 of the 23 devices idle, on 2 whole nodes, an iteration takes (\S+) ms, (\S+) % less: --gpus 16', told)
slow = json.load(open('$W/p23.json'))['predicted']['iteration_s']
fast = d['predicted']['iteration_s']
assert abs(float(line[1]) / 1e3 / fast - 1) < 0.002 and abs(float(line[2]) - 100 * (1 - fast / slow)) < 0.06, line[0]" "$W/p16.json"
runs 0 "a plan on 12, which is faster than on 8" plan gpt3-1b dgx-a100-80g --gpus 12 --global-batch 96 --slices off
! grep -q 'whole node' "$W/err"
report $? "nothing is told where whole nodes are slower" "$(cat "$W/err")"

finish
