#!/bin/sh
# What is asked in a person's terms: what-ifs of a cluster.
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
for bad in "memry=1GB|did you mean \"memory\"" "network=400|needs a unit, such as 400Gbps" "memory|expected KEY=VALUE" \
    "power=0|above 0" "memory=3parsec|parsec" "price=1 --price 2|gives the price"; do
    # shellcheck disable=SC2086
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

finish
