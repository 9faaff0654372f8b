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
runs 0 "a plan with two groups that hold the state" plan $job --framework megatron-core --zero 1 \
    --optimizer-instances 2 --defer-gradients 4 -o "$W/two.json"
runs 0 "it is exported, too" export "$W/two.json" --to megatron
has "^--num-distributed-optimizer-instances 2" "with their number"
has "^--wgrad-deferral-limit 4" "and the micro-batches whose gradients wait"
{ printf 'torchrun pretrain_gpt.py '; sed -n 's/^\(--[^ ]*\) \(.*\)$/\1 "\2"/; /^--/p' "$W/out" | tr '\n' ' '; } >"$W/two.sh"
runs 0 "and read back" simulate "$W/two.sh" dgx-h100 --gpus 16 --json -o "$W/two-read.json"
runs 0 "the plan itself" simulate "$W/two.json" --json -o "$W/two-plan.json"
fails 2 "optimizer-instances: needs --zero 2 or 3" "hybrid sharding is FSDP's" \
    simulate $job --dp 4 --framework fsdp --zero 0 --optimizer-instances 2
fails 2 "optimizer-instances: needs --zero 1" "they share a state that is split" \
    simulate $job --dp 4 --framework megatron-core --optimizer-instances 2
fails 2 "deepspeed has one" "DeepSpeed has one group" \
    simulate $job --dp 4 --framework deepspeed --zero 1 --optimizer-instances 2
fails 2 "defer-gradients: torchtitan defers none" "torchtitan defers nothing" \
    simulate $job --dp 4 --framework torchtitan --defer-gradients 2
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
    output=$(python3 -c '
import json, sys
a, b = (max(r["peak_memory_bytes"] for r in json.load(open(p))["ranks"]) for p in sys.argv[1:])
assert a == b, (a, b)' "$W/two-plan.json" "$W/two-read.json" 2>&1)
    report $? "the recipe that was exported holds as much" "$output"
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
cat > "$W/tiny.json" <<'END'
{"format":"degas-model","version":1,"name":"tiny","family":"llama","n_layers":2,"hidden":32,"n_heads":4,"n_kv_heads":2,
 "head_dim":8,"ffn_hidden":48,"vocab":64,"max_seq_len":16,"tied_embeddings":false}
END
for optimizer in muon adamw adamw8bit; do
    runs 0 "a plan for two ranks with $optimizer" plan "$W/tiny.json" local-cpu --gpus 2 --global-batch 4 --dp 2 --zero 1 \
        --dtype fp32 --optimizer $optimizer -o "$W/$optimizer.plan"
done
runs 0 "Muon trains" run "$W/muon.plan" --steps 2 --checkpoint "$W/state"
runs 0 "and goes on" run "$W/muon.plan" --steps 4 --checkpoint "$W/state" --resume
grep -q '"optimizer": "muon"' "$W/state/step-00000004/checkpoint.json"
report $? "its checkpoint says whose moments it keeps"
runs 0 "four steps at once" run "$W/muon.plan" --steps 4 --checkpoint "$W/once"
same=0
for file in "$W"/once/step-00000004/*.bin; do
    cmp -s "$file" "$W/state/step-00000004/$(basename "$file")" || same=1
done
report $same "are the same bits"
fails 1 "of a run with --optimizer muon, and the plan has adamw" "AdamW refuses them" \
    run "$W/adamw.plan" --steps 6 --checkpoint "$W/state" --resume
fails 1 "cannot execute --optimizer adamw8bit" "8-bit AdamW is refused by name" run "$W/adamw8bit.plan" --steps 1
finish
