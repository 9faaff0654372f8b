#!/bin/sh
# One model of many kinds of layers - sliding and full attention, gated delta net, Mamba-2, experts; 8 blocks and an MTP
# module - trained on 4 ranks with slices: gradients against one device, and a run that is killed and resumed against one that is not.
# shellcheck source=tests/cli/tap.sh
. tests/cli/tap.sh
# shellcheck source=tests/cli/mixed_model.sh
. tests/cli/mixed_model.sh

cat >"$W/small.json" <<'EOF'
{"format":"degas-model","version":1,"name":"small","family":"llama","n_layers":2,"hidden":64,
 "n_heads":4,"ffn_hidden":128,"vocab":512,"max_seq_len":64}
EOF
mixed_model 32 >"$W/model.json"
runs 0 "profile" profile "$W/small.json" --device cpu --quick --budget 1 --batches 1 --slices 64 \
    --dtype fp32 -o "$W/profile.json"
runs 0 "plan" plan "$W/model.json" "$W/profile.json" --gpus 4 --dp 1 --tp 2 --pp 2 --framework degas \
    --seq-len 128 --global-batch 8 --micro-batch 1 --schedule seq1f1b --slices 4 --dtype fp32 \
    --zero 0 --recompute none -o "$W/plan.json"
runs 0 "verified" run "$W/plan.json" --device cpu --steps 20 --verify --json
cp "$W/out" "$W/whole"
json "the module is in a stage" "
assert sum(s['n_layers'] for s in d['stages']) == 9, d['stages']" "$W/plan.json"
json "gradients within 1e-5 of one device's, and the loss falls" "
assert d['verify']['passed'] and d['verify']['max_gradient_error'] <= 1e-5, d['verify']
assert d['losses'][-1] < d['losses'][0] - 0.3, d['losses']"
"$DEGAS" run "$W/plan.json" --device cpu --steps 20 --checkpoint "$W/states" --checkpoint-every 1 \
    >/dev/null 2>&1 &
run=$!
until [ -d "$W/states/step-00000003" ] || ! kill -0 $run 2>/dev/null; do sleep 0.1; done
kill -9 $run 2>/dev/null
wait $run 2>/dev/null
runs 0 "resumed" run "$W/plan.json" --device cpu --steps 20 --checkpoint "$W/states" --resume --json
json "the losses of the run that was not killed" "
whole = json.load(open('$W/whole'))['losses']
assert 3 <= d['first_step'] and d['losses'] == whole[d['first_step']:], (d, whole)"
finish
