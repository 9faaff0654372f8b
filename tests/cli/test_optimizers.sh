#!/bin/sh
# --optimizer: in plans and their files, in recipes and exports, and what --explain says of others.
. tests/cli/tap.sh

job="llama3-8b dgx-h100 --gpus 16 --global-batch 64 --tp 2 --pp 2"
# shellcheck disable=SC2086
{
runs 0 "a plan with Muon" plan $job --framework megatron-core --optimizer muon --muon-tp-mode layer_sharded --zero 1 -o "$W/muon.json"
runs 0 "its file is read" simulate "$W/muon.json"
runs 0 "it is exported" export "$W/muon.json" --to megatron
has "^--optimizer muon" "with Megatron's flags"
has "^--muon-tp-mode layer_sharded" "and its mode"
fails 2 "the optimizer is adamw, muon, not adamw8bit" "8-bit moments are not Megatron's" \
    plan $job --framework megatron-core --optimizer adamw8bit
fails 2 "muon-tp-mode.*needs --optimizer muon" "a mode needs Muon" simulate $job --muon-tp-mode blockwise
}
if command -v python3 >/dev/null 2>&1; then
    python3 -c '
import json, sys
c = json.load(open(sys.argv[1]))["conventions"]
assert c["optimizer"] == "muon" and c["muon_tp"] == "layer_sharded", c' "$W/muon.json"
    report $? "the plan file names both"
    # shellcheck disable=SC2086
    runs 0 "why AdamW" plan $job --dp 4 --micro-batch 1 --schedule 1f1b --vpp 1 --slices off --cp 1 \
        --recompute none --zero 1 --sequence-parallel on --rank-order tp-cp-dp-pp --explain --json
    json "--explain says what other optimizers give" '
r = {x["after"]: x for x in d["explain"]["resources"] if x["resource"] == "optimizer"}
assert set(r) == {"adamw8bit", "muon"}, r'
fi
cat > "$W/muon.sh" <<'END'
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \
  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 \
  --tensor-model-parallel-size 2 --optimizer dist_muon --vocab-size 32000 --swiglu
END
runs 0 "a recipe with Muon" check "$W/muon.sh" dgx-h100 --json
json "is one of layer-wise ZeRO and Megatron's default mode" '
f = json.dumps(d)
assert "\"optimizer\": \"muon\"" in f and "\"muon_tp\": \"blockwise\"" in f, f[:3000]'
finish
