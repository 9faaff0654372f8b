#!/bin/sh
# degas simulate --explain: the lines add up to the time, elasticities are what a changed parameter
# does, every parameter has its value and source.
. tests/cli/tap.sh

if ! command -v python3 >/dev/null 2>&1; then
    skip "simulate --explain" "python3 is not installed"
    finish
fi
runs 0 "one device, full recompute" simulate gpt2-1.5b dgx-a100-80g --layers 12 --global-batch 8 \
    --micro-batch 4 --recompute full --explain --json
cp "$W/out" "$W/one.json"
json "the costs add up to the iteration" '
e = d["explanation"]
total = sum(c["total_s"] for c in e["costs"])
assert abs(total / d["iteration_s"] - 1) < 1e-6, (total, d["iteration_s"])
assert all(a["total_s"] >= b["total_s"] for a, b in zip(e["costs"], e["costs"][1:]))
'
json "counts: 12 layers, 2 micro-batches; forward once more" '
n = {c["what"]: c["n"] for c in d["explanation"]["costs"]}
assert n["layer mlp_up, forward"] == n["layer mlp_up, again"] == n["layer mlp_up, backward"] == 24
assert n["head logits, forward"] == 2 and "head logits, again" not in n and n["optimizer step"] == 1
'
json "parameters have values and sources; data sheets are named by none but their words" '
p = {x["name"]: x for x in d["explanation"]["parameters"]}
assert p["gemm_fraction"]["value"] > 0 and "gemm_fraction" in p["gemm_fraction"]["source"]
assert all(x["source"] for x in p.values())
used = {k for c in d["explanation"]["costs"] for k in c["elasticities"]}
assert used == set(p)
'
json "full recompute keeps nothing of a layer" '
kept = d["explanation"]["memory"]["kept_per_microbatch"]
assert kept and all(not x["what"].startswith("layer ") for x in kept), kept
'
# A tenth of a percent less of a parameter, simulated again, against the sum of shares times
# elasticities.
"$DEGAS" show dgx-a100-80g --json >"$W/base.json"
python3 - "$DEGAS" "$W" >"$W/out" 2>&1 <<'P'
import json, subprocess, sys
degas, work = sys.argv[1:]
one = json.load(open(work + '/one.json'))
for name in 'gemm_fraction', 'memory_fraction':
    machine = json.load(open(work + '/base.json'))
    machine['cost'][name] *= 1.001
    json.dump(machine, open(work + '/changed.json', 'w'))
    out = subprocess.run([degas, 'simulate', 'gpt2-1.5b', work + '/changed.json', '--layers', '12',
                          '--global-batch', '8', '--micro-batch', '4', '--recompute', 'full',
                          '--json'], check=True, capture_output=True, text=True).stdout
    change = (json.loads(out)['iteration_s'] / one['iteration_s'] - 1) / 0.001
    said = sum(c['total_s'] * c['elasticities'].get(name, 0) for c in one['explanation']['costs'])
    said /= one['iteration_s']
    assert abs(change - said) < 0.03, (name, change, said)
P
report $? "elasticities are what a changed parameter does" "$(cat "$W/out")"
runs 0 "tensor and data parallel" simulate gpt3-1b dgx-a100-80g --layers 12 --global-batch 8 \
    --tp 2 --dp 4 --zero 1 --explain --json
json "collectives and reductions rest on the links" '
c = {x["what"]: x for x in d["explanation"]["costs"]}
assert c["layer mlp_output, forward"]["elasticities"]["link_fraction"] < 0
assert c["reduction of gradients"]["elasticities"]["link_fraction"] < -0.5
assert "gathering of parameters" in c
'
runs 0 "for people" simulate gpt2-1.5b dgx-a100-80g --layers 12 --global-batch 8 --pp 2 --explain
has 'rests on (elasticity)' "a table"
has '^  gemm_fraction  *0[.]' "parameters with values"
has 'NVIDIA A100 data sheet' "the data sheet"
cat >"$W/measured.py" <<'P'
import json, sys
machine = json.load(sys.stdin)
machine.update(measured_model=json.load(open(sys.argv[1])), measured_dtype='fp16', measured=[
    {'op': 'layer', 'pass': p, 'batch': 4, 'tokens': 1024, 'context': 0, 'tp': 1, 'median_s': s}
    for p, s in (('forward', 3e-3), ('backward', 7e-3))])
json.dump(machine, sys.stdout)
P
"$DEGAS" show gpt2-124m --json >"$W/model.json"
"$DEGAS" show dgx-a100-80g --json | python3 "$W/measured.py" "$W/model.json" >"$W/measured.json"
runs 0 "layers that were measured" simulate gpt2-124m "$W/measured.json" --gpus 1 --dtype fp16 \
    --global-batch 8 --micro-batch 4 --recompute none --explain --json
json "are one line each, and the lines add up with little left" '
e = {c["what"]: c for c in d["explanation"]["costs"]}
assert abs(e["layer, forward"]["total_s"] - 24 * 3e-3) < 1e-9, e["layer, forward"]
assert abs(e["layer, backward"]["total_s"] - 24 * 7e-3) < 1e-9
assert "row" in e["layer, forward"]["formula"] and "layer qkv, forward" not in e
assert abs(sum(c["total_s"] for c in e.values()) / d["iteration_s"] - 1) < 1e-6
'
runs 0 "without it the report is as it was" simulate gpt2-1.5b dgx-a100-80g --layers 12 \
    --global-batch 8 --micro-batch 4 --recompute full --json
json "no explanation" 'assert "explanation" not in d'
fails 2 'explain: is for plans' "a bare schedule has no costs" \
    simulate --schedule-file x.json --explain
finish
