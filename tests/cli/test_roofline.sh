#!/bin/sh
# degas plot --kind roofline: ops of a plan and sizes of a sweep below what a device can do.
. tests/cli/tap.sh

runs 0 "a plan" plan gpt3-13b dgx-a100-80g --gpus 8 --global-batch 16 --tp 8 --micro-batch 1 \
    --sequence-parallel off --slices off --recompute none --schedule 1f1b -o "$W/plan.json"
runs 0 "its ops as a table" plot "$W/plan.json" --kind roofline -o "$W/p.tsv"
# A100: 312 TFLOPS, 2.039 TB/s.  mlp_up of 2048 tokens on 8 ranks: m 2048, k 5120, n 20480 / 8.
json "no op is above the roof, and a product's intensity is that of its matrices" "
rows = [dict(zip(open('$W/p.tsv').readline().split(), l.split('\t')))
        for l in open('$W/p.tsv').read().splitlines()[1:]]
device = d['cluster']['cluster']['devices'][0]
peak, bandwidth = device['flops_per_s']['bf16'], device['memory_bytes_per_s']
assert len(rows) >= 6
for r in rows:
    assert 0 < float(r['flops_per_s']) <= min(peak, bandwidth * float(r['x'])) * (1 + 1e-9), r
m, k, n = 2048, 5120, 20480 // 8
want = 2 * m * k * n / (2 * (m * k + k * n + m * n))
assert any(abs(float(r['x']) / want - 1) < 1e-3 for r in rows), (want, rows)  # biases are bytes too
assert 0 < sum(float(r['share']) for r in rows) <= 1" "$W/plan.json"
runs 0 "as text" plot "$W/plan.json" --kind roofline
has 'attention .* TFLOPS' "attention is one of them"
runs 0 "a sweep" sweep gpt2-1.5b dgx-a100-80g --gpus 8,16 --global-batch 64 --slices off \
    --schedule 1f1b --cp 1 -o "$W/sweep.json"
runs 0 "its sizes as a table" plot "$W/sweep.json" --kind roofline -o "$W/s.tsv"
json "FLOP/s of a device, its tokens, and what no plan exceeds" "
names, *rows = [l.split('\t') for l in open('$W/s.tsv').read().splitlines()]
rows = sorted((dict(zip(names, r)) for r in rows), key=lambda r: -float(r['x']))
for r, p in zip(rows, d['points']):
    assert float(r['x']) == 64 * 1024 / p['n_devices']
    assert float(r['flops_per_s']) == p['model_flops_per_s_per_device']
    assert float(r['bound_flops_per_s']) >= float(r['flops_per_s'])" "$W/sweep.json"
if command -v gnuplot >/dev/null 2>&1; then
    for file in plan sweep; do
        runs 0 "the $file as a picture" plot "$W/$file.json" --kind roofline -o "$W/$file.svg"
        grep -q 'peak 312 TFLOPS' "$W/$file.svg"
        report $? "with the peak"
    done
else
    skip "the plan as a picture" "gnuplot is not installed"
fi
finish
