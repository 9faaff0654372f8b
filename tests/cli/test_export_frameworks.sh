#!/bin/sh
# degas export to Megatron-LM, DeepSpeed and torchtitan: what they read says what the plan says; every
# rule of theirs is checked, and the flags that a refusal names lead to a plan that they can run.
. tests/cli/tap.sh

# plan NAME ARGUMENT...
plan() {
    name=$1
    shift
    "$DEGAS" plan "$@" -o "$W/$name" >/dev/null 2>"$W/err"
    report $? "a plan: $*" "$(cat "$W/err")"
}

# flag NAME [VALUE]: the exported line
flag() {
    grep -qx -e "--$1${2:+ $2}" "$W/out"
    report $? "--$1 $2" "$(cat "$W/out")"
}
no_flag() {
    ! grep -q -e "^--$1" "$W/out"
    report $? "no --$1" "$(cat "$W/out")"
}

# --- Megatron-LM ---
megatron="--framework megatron-core --slices off"
# shellcheck disable=SC2086
plan dense.json gpt3-13b dgx-a100-80g --gpus 16 --global-batch 32 $megatron --dp 2 --tp 4 --pp 2 \
    --micro-batch 1 --schedule 1f1b --recompute full --zero 1 --sequence-parallel on
cp "$W/dense.json" "$W/dense13.json"
runs 0 "a dense model" export "$W/dense.json" --to megatron
flag num-layers 40
flag hidden-size 5120
flag ffn-hidden-size 20480
flag num-attention-heads 40
flag tensor-model-parallel-size 4
flag pipeline-model-parallel-size 2
flag context-parallel-size 1
flag sequence-parallel
flag micro-batch-size 1
flag global-batch-size 32
flag use-distributed-optimizer
flag overlap-grad-reduce
flag overlap-param-gather
flag bf16
flag recompute-granularity full
flag recompute-method uniform
flag recompute-num-layers 1
no_flag swiglu
no_flag use-megatron-fsdp
no_flag num-virtual-stages
no_flag group-query-attention
grep -q 'CUDA_DEVICE_MAX_CONNECTIONS=1' "$W/err"
report $? "stderr says what the environment needs" "$(cat "$W/err")"
! grep -qv '^--[a-z0-9-]*\( [^ ]*\)\{0,1\}$' "$W/out"
report $? "each line is a flag and at most one word: a shell splits it as meant" "$(cat "$W/out")"
no_flag use-tp-pp-dp-mapping
cp "$W/out" "$W/flags"
runs 0 "-o" export "$W/dense.json" --to megatron -o "$W/flags.txt"
cmp -s "$W/flags" "$W/flags.txt"
report $? "the same bytes"

# shellcheck disable=SC2086
plan llama.json llama3-8b dgx-h100 --gpus 16 --global-batch 32 $megatron --dp 1 --tp 2 --pp 8 \
    --vpp 2 --micro-batch 1 --schedule interleaved --recompute selective --zero 0
runs 0 "a llama in chunks" export "$W/llama.json" --to megatron
flag swiglu
flag normalization RMSNorm
flag disable-bias-linear
flag untie-embeddings-and-output-weights
flag position-embedding-type rope
flag group-query-attention
flag num-query-groups 8
flag recompute-granularity selective
no_flag recompute-method
no_flag use-distributed-optimizer
flag rotary-base 500000
flag norm-epsilon 1e-05
flag make-vocab-size-divisible-by 128
no_flag moe-router
# shellcheck disable=SC2086
plan unpadded.json gpt2-1.5b dgx-a100-80g --gpus 2 --global-batch 2 $megatron --pad-vocab off --zero 0
runs 0 "a vocabulary that is not padded" export "$W/unpadded.json" --to megatron
flag make-vocab-size-divisible-by 1
no_flag rotary-base

# Widths that a run has and no prediction: what Megatron cannot say is refused, what it says is read again.
# widths FILE STATEMENT: $W/llama.json, its model m changed in Python
widths() {
    python3 -c '
import json, sys
p = json.load(open(sys.argv[1]))
m = p["model"]
exec(sys.argv[2])
json.dump(p, open(sys.argv[3], "w"))' "$W/llama.json" "$2" "$W/$1"
}
widths base.json 'm["rope_base"] = 10000.5'
fails 1 'the base of rotary positions is a whole number, not 10000.5' "a rotary base" export "$W/base.json" --to megatron
for scores in softmax softmax-all sigmoid; do
    widths scores.json "m.update(norm_epsilon=3e-7, experts=dict(n_experts=8, top_k=2, ffn_hidden=1024,
        router_scores='$scores', router_scale=2.5))"
    runs 0 "scores by $scores" export "$W/scores.json" --to megatron
    flag norm-epsilon 3e-07
    flag moe-router-score-function "${scores%-all}"
    flag moe-router-topk-scaling-factor 2.5
    [ "$(grep -c -e --moe-router-pre-softmax "$W/out")" = "$(case $scores in *-all) echo 1 ;; *) echo 0 ;; esac)" ]
    report $? "$scores: pre-softmax" "$(cat "$W/out")"
    cp "$W/out" "$W/again.sh"
    "$DEGAS" check "$W/again.sh" dgx-h100 --gpus 16 --framework megatron-core --edits 0 -o "$W/again.json" >"$W/out" 2>&1
    json "is read as the same model" "
keys = ('norm_epsilon', 'rope_base', 'hidden', 'family')
a, b = json.load(open('$W/scores.json'))['model'], d['model']
assert [a[k] for k in keys] == [b[k] for k in keys] and b['experts'].get('router_scores', 'softmax') == '$scores', b
assert b['experts']['router_scale'] == 2.5, b" "$W/again.json"
done
widths one.json "m['experts'] = dict(n_experts=8, top_k=1, ffn_hidden=1024)"
fails 1 'router_scores softmax-all or sigmoid' "a softmax over one expert" export "$W/one.json" --to megatron

# Orders of ranks: one flag of Megatron-LM's, which asks as many replicas of experts as of the rest
order="--global-batch 32 --micro-batch 1 --schedule 1f1b --recompute none --zero 1"
# shellcheck disable=SC2086
plan pp-first.json gpt3-1b dgx-a100-80g --gpus 16 $megatron $order --dp 2 --tp 2 --pp 4 \
    --rank-order tp-cp-pp-dp
runs 0 "pp before dp" export "$W/pp-first.json" --to megatron
flag use-tp-pp-dp-mapping
fails 1 'tp-cp-pp-dp cannot be expressed.*--rank-order tp-cp-dp-pp' "DeepSpeed has no such order" \
    export "$W/pp-first.json" --to deepspeed
# shellcheck disable=SC2086
plan dp-first.json gpt3-1b dgx-a100-80g --gpus 16 $megatron $order --dp 2 --tp 2 --pp 4 \
    --rank-order dp-tp-cp-pp --beyond-framework on
fails 1 'dp-tp-cp-pp cannot be expressed.*--rank-order tp-cp-dp-pp' "nor Megatron-LM dp before tp" \
    export "$W/dp-first.json" --to megatron
# shellcheck disable=SC2086
plan moe-order.json mixtral-8x7b dgx-h100 --gpus 32 $megatron $order --dp 4 --tp 2 --pp 4 --ep 4 \
    --sequence-parallel on --recompute full --rank-order tp-cp-pp-dp --beyond-framework on
fails 1 'with pp before dp, --ep 4 times --expert-tp 1 is --tp 2 times --cp 1' \
    "experts' replicas differ" export "$W/moe-order.json" --to megatron

# The layout means the plan's stages, by the grammar of pipeline_parallel_layer_layout.py: drop
# commas, repeat (X)*n, repeat c*n, split at bars; stage i is chunk i // P of rank i % P.
# shellcheck disable=SC2086
plan uneven.json gpt2-1.5b dgx-a100-80g --gpus 8 --global-batch 16 $megatron --dp 1 --tp 1 --pp 8 \
    --vpp 4 --micro-batch 1 --schedule interleaved --zero 0 --recompute none
runs 0 "stages that are not equal" export "$W/uneven.json" --to megatron
layout=$(sed -n 's/^--pipeline-model-parallel-layout //p' "$W/out")
json "its layout is the plan's stages" "
import re
text = '$layout'.replace(',', '')
text = re.sub(r'\(([^)]+)\)\*(\d+)', lambda m: m[1] * int(m[2]), text)
text = re.sub(r'(.)\*(\d+)', lambda m: m[1] * int(m[2]), text)
stages = text.split('|')
P = d['degrees']['pp']
assert len(stages) == P * d['degrees']['vpp'], stages
for i, (text, stage) in enumerate(zip(stages, d['stages'])):
    assert (stage['chunk'], stage['rank']) == (i // P, i % P)
    assert text == 'E' * stage['embedding'] + 't' * stage['n_layers'] + 'L' * stage['head']
assert ''.join(stages).count('t') == 48" "$W/uneven.json"
no_flag num-virtual-stages-per-pipeline-rank

# shellcheck disable=SC2086
plan moe.json deepseek-v3 dgx-b300 --gpus 256 --global-batch 256 --seq-len 4096 $megatron --dp 16 \
    --tp 1 --pp 16 --ep 16 --micro-batch 1 --vpp 2 --zero 1 --recompute none \
    --dispatcher hybridep --overlap dp,pp,ep --cuda-graphs attention
runs 0 "experts and latent attention" export "$W/moe.json" --to megatron
flag num-experts 256
flag moe-router-topk 8
flag moe-ffn-hidden-size 2048
flag moe-shared-expert-intermediate-size 2048
flag moe-layer-freq '(\[0\]\*3+\[1\]\*58)'
flag expert-model-parallel-size 16
flag expert-tensor-parallel-size 1
flag moe-token-dispatcher-type flex
flag moe-flex-dispatcher-backend hybridep
flag overlap-moe-expert-parallel-comm
flag cuda-graph-scope 'attn moe_router moe_preprocess'
flag multi-latent-attention
flag q-lora-rank 1536
flag kv-lora-rank 512
flag qk-pos-emb-head-dim 64
# flags NAME: what was exported last as a script
flags() {
    echo "torchrun pretrain_gpt.py $(sed "s/ \(.*\)/ '\1'/" "$W/out" | tr '\n' ' ')" >"$W/$1.sh"
}
# as_long NAME GPUS: the script NAME.sh takes as long as the plan NAME.json
as_long() {
    runs 0 "$1.sh: what it reads again" simulate "$W/$1.sh" dgx-h100 --gpus "$2" --json
    cp "$W/out" "$W/again.json"
    runs 0 "$1.json: what was meant" simulate "$W/$1.json" --json
    json "both take as long" "
again = json.load(open('$W/again.json'))
assert again['iteration_s'] == d['iteration_s'], (again['iteration_s'], d['iteration_s'])"
}
# again NAME GPUS: the script NAME.sh is exported to the same bytes as the plan NAME.json, and simulated to the same
again() {
    "$DEGAS" check "$W/$1.sh" dgx-h100 --gpus "$2" --framework megatron-core --edits 0 -o "$W/again.json" >"$W/checked" 2>&1
    runs 0 "$1.sh: what it reads, exported" export "$W/again.json" --to megatron
    "$DEGAS" export "$W/$1.json" --to megatron 2>/dev/null | cmp - "$W/out" >"$W/err" 2>&1
    report $? "$1.sh: the same flags" "$(cat "$W/err" "$W/checked" "$W/out")"
    "$DEGAS" simulate "$W/$1.json" --json >"$W/planned"
    "$DEGAS" simulate "$W/again.json" --json 2>&1 | cmp - "$W/planned" >"$W/err" 2>&1
    report $? "$1.sh: the same prediction" "$(cat "$W/err" "$W/checked")"
}
# check says nothing of what it does not model, and reads what was meant: dispatcher, merged passes, graphs, capacity, scales.
flags moe
runs 0 "it is read again" check "$W/moe.sh" dgx-b300 --gpus 256 --edits 0 --json -o "$W/moe_again.json"
json "as it was meant" "
plan, again = (json.load(open('$W/' + name))['conventions'] for name in ('moe.json', 'moe_again.json'))
for key in ('dispatcher', 'overlap_ep', 'cuda_graphs'):
    assert plan[key] == again[key], (key, plan[key], again.get(key))
assert d['not_modelled'] == [], d['not_modelled']"
# shellcheck disable=SC2086
plan full.json mixtral-8x7b dgx-h100 --gpus 16 --global-batch 64 --seq-len 4096 --dtype fp8 --quantise tensor $megatron --dp 16 \
    --tp 1 --pp 1 --ep 8 --micro-batch 1 --zero 1 --recompute full --expert-capacity 1.25
runs 0 "experts of a capacity, and scales of whole tensors" export "$W/full.json" --to megatron
flag moe-expert-capacity-factor 1.25
flag moe-pad-expert-input-to-capacity
flag fp8-recipe tensorwise
flags full
as_long full 16
# An MTP module is a stage's m, and comes back with the stages that it was in.
# shellcheck disable=SC2086
plan mtp.json deepseek-v3 dgx-h100 --gpus 256 --global-batch 256 --seq-len 4096 $megatron --dp 16 --mtp 1 \
    --tp 1 --pp 16 --ep 16 --micro-batch 1 --schedule 1f1b --zero 1 --recompute full
runs 0 "an MTP module" export "$W/mtp.json" --to megatron
flag mtp-num-layers 1
flag num-layers 61
layout=$(sed -n 's/^--pipeline-model-parallel-layout //p' "$W/out")
json "its layout has the module behind all layers" "
import re
text = re.sub(r'\\(([^)]+)\\)\\*(\\d+)', lambda m: m[1] * int(m[2]), '$layout')
text = re.sub(r'(.)\\*(\\d+)', lambda m: m[1] * int(m[2]), text)
assert text.replace('|', '') == 'E' + 't' * 61 + 'mL', text
assert [len(x.strip('EL')) for x in text.split('|')] == [s['n_layers'] for s in d['stages']], text" "$W/mtp.json"
flags mtp
as_long mtp 256
json "the loss of modules counts what Megatron takes when nothing is said" "
assert 'loss_factor' not in d['model']['mtp'] and '--mtp-loss-scaling-factor' not in open('$W/mtp.sh').read(), d" "$W/mtp.json"
sed 's/"mtp": *{"n": *1/&,"loss_factor":0.3/' "$W/mtp.json" >"$W/factor.json"
runs 0 "another factor of their loss" export "$W/factor.json" --to megatron
flag mtp-loss-scaling-factor 0.3
fails 1 'MTP modules are not known here.*--mtp 0' "torchtitan has none" export "$W/mtp.json" --to torchtitan
# shellcheck disable=SC2086
plan fsdp.json llama3-8b dgx-h100 --gpus 8 --global-batch 16 $megatron --dp 8 --zero 3 \
    --micro-batch 1 --recompute none
runs 0 "ZeRO 3" export "$W/fsdp.json" --to megatron
flag use-megatron-fsdp
flag data-parallel-sharding-strategy optim_grads_params
flag ckpt-format fsdp_dtensor

# What its defaults leave out: sums of fp16's gradients in fp32; norms of MLA's latent vectors.
# shellcheck disable=SC2086
plan half.json gpt3-1b dgx-a100-80g --gpus 8 --global-batch 16 $megatron --dtype fp16 --grad-dtype fp32 --dp 8
runs 0 "fp16" export "$W/half.json" --to megatron
flag fp16
flag accumulate-allreduce-grads-in-fp32
# Learned positions have a row for each token, in the plan's memory as in Megatron's model.
# shellcheck disable=SC2086
{
    plan long.json gpt3-1b dgx-a100-80g --gpus 1 --global-batch 1 $megatron --seq-len 4096 --zero 0
    runs 0 "a sequence beyond the model's positions" export "$W/long.json" --to megatron
    flag max-position-embeddings 4096
    plan usual.json gpt3-1b dgx-a100-80g --gpus 1 --global-batch 1 $megatron --zero 0
}
json "2048 more rows of 2048 in bf16 are weights" "
u = json.load(open('$W/usual.json'))
w = [p['predicted']['ranks'][0]['memory_bytes']['weights'] for p in (d, u)]
assert d['model']['max_seq_len'] == 4096 and w[0] - w[1] == 2048 * 2048 * 2, w" "$W/long.json"

# shellcheck disable=SC2086
plan latent.json deepseek-v3 dgx-h100 --gpus 1024 --global-batch 2048 $megatron --tp 1 --pp 16 --ep 64 \
    --schedule 1f1b --micro-batch 1 --zero 1 --recompute full
runs 0 "multi-latent attention" export "$W/latent.json" --to megatron
flag multi-latent-attention
flag qk-layernorm
no_flag accumulate-allreduce

# Layers that are not all alike: the flags are those of Megatron-LM's own files for these models
# (examples/post_training/modelopt/conf), and the script is read as the same plan.
# unlike NAME MODEL ARGUMENT...
unlike() {
    into=$1
    of=$2
    shift 2
    # shellcheck disable=SC2086
    plan "$into.json" "$of" dgx-h100 --gpus 64 --seq-len 4096 --global-batch 128 $megatron --micro-batch 1 --recompute full "$@"
    runs 0 "$into: $of" export "$W/$into.json" --to megatron
    flags "$into"
    cp "$W/out" "$W/unlike"
    again "$into" 64
    cp "$W/unlike" "$W/out"
}
unlike windows gpt-oss-120b --pp 4 --tp 1 --ep 8 --vpp 1 --zero 1 --schedule 1f1b
flag window-size 127,0
flag window-attn-skip-freq '(\[1\]+\[0\])\*18'
flag softmax-type learnable
flag attention-backend fused
flag kv-channels 64
no_flag disable-bias-linear
unlike halves nemotron-h-56b --pp 1 --tp 4 --zero 3
flag hybrid-layer-pattern "$(printf 'M-M-M-M\*-M-%.0s' 1 2 3 4 5 6 7 8 9 10)M-M-M-M-"
flag mamba-num-heads 256
flag mamba-state-dim 256
flag position-embedding-type none
flag squared-relu
flag spec 'megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec'
"$DEGAS" export "$W/halves.json" --to megatron 2>&1 >/dev/null | grep -q "pretrain_hybrid.py"
report $? "for pretrain_hybrid.py"
unlike bars nemotron3-nano --pp 4 --tp 1 --ep 8 --vpp 2 --zero 1
[ "$(sed -n 's/^--hybrid-layer-pattern //p' "$W/out" | tr -d '|')" = 'MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME' ]
report $? "a pattern with bars" "$(cat "$W/out")"
flag moe-shared-expert-intermediate-size 3712
no_flag pipeline-model-parallel-layout
no_flag num-virtual-stages-per-pipeline-rank
no_flag moe-layer-freq
unlike module nemotron3-nano --mtp 1 --pp 1 --tp 2 --ep 8 --zero 1 --sequence-parallel on
flag hybrid-layer-pattern 'MEMEM\*EMEMEM\*EMEMEM\*EMEMEM\*EMEMEM\*EMEMEMEM\*EMEMEMEME/\*E'
unlike latent nemotron3-super --pp 1 --tp 1 --ep 8 --zero 3
flag moe-latent-size 1024
unlike linear qwen3-next-80b --pp 4 --tp 1 --ep 8 --vpp 1 --zero 1 --schedule 1f1b --mtp 1
flag linear-attention-freq '(\[1\]\*3+\[0\])\*12'
flag experimental-attention-variant gdn
flag linear-num-value-heads 32
flag rotary-percent 0.25
flag attention-output-gate
flag moe-shared-expert-gate
# shellcheck disable=SC2086
{
    fails 2 'no flag for scaled embeddings.*megatron-bridge has the model (rule model); with --framework megatron-bridge' \
        "who has the model is told" plan gemma3-27b dgx-h100 --gpus 64 --seq-len 4096 --global-batch 64 $megatron
    fails 2 'a stack of 2025-08 has no windows.*3855' "flags have a date" plan gpt-oss-20b dgx-h100 --gpus 64 --seq-len 4096 --global-batch 64 \
        $megatron --stack 2025-08
    fails 2 'MTP modules of hybrids are not for pipelines' "the stage of a hybrid's module" \
        plan nemotron3-nano dgx-h100 --gpus 64 --seq-len 4096 --global-batch 64 $megatron --mtp 1 --pp 4
}
# A hybrid whose attention has a window: the lists count its layers.
python3 -c '
import json, sys
p = json.load(open(sys.argv[1]))
p["model"]["kinds"]["full"]["window"] = 512
json.dump(p, open(sys.argv[2], "w"))' "$W/bars.json" "$W/window.json"
runs 0 "a window in a hybrid" export "$W/window.json" --to megatron
flag window-size 511,0
no_flag window-attn-skip-freq
flags window
again window 64
# What a recipe says otherwise: NVIDIA's words, numbers alone and old names.
cat >"$W/words.sh" <<'END'
torchrun pretrain_gpt.py --num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --micro-batch-size 1 \
    --global-batch-size 8 --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope --vocab-size 32000 \
    --window-size "(255, 0)" --window-attn-skip-freq 4 --no-rope-freq 4 --num-experts 4 --moe-ffn-hidden-size 256 --moe-layer-freq 2 --bf16
END
"$DEGAS" check "$W/words.sh" dgx-h100 --gpus 8 --edits 0 -o "$W/words.json" >"$W/out" 2>&1
json "windows but in each fourth layer, which has no positions; experts in each second" "
m = d['model']
kinds = m['kinds']
import re
assert m['layers'] in ('2*(sliding_moe, sliding_dense, sliding_moe, full_nope_dense)',), m['layers']
assert kinds['sliding_moe']['window'] == kinds['sliding_dense']['window'] == 256 and not kinds['sliding_dense'].get('experts'), kinds
assert kinds['full_nope_dense']['positions'] == 'none' and 'window' not in kinds['full_nope_dense'], kinds" "$W/words.json"
cat >"$W/halves2.sh" <<'END'
torchrun pretrain_mamba.py --hybrid-override-pattern 'M-M*-' --hidden-size 512 --num-attention-heads 8 --seq-length 1024 \
    --micro-batch-size 1 --global-batch-size 8 --vocab-size 32000 --normalization RMSNorm --disable-bias-linear \
    --position-embedding-type none --bf16 --mtp-num-layers 2 --mtp-hybrid-override-pattern '*-'
END
"$DEGAS" check "$W/halves2.sh" dgx-h100 --gpus 8 --edits 0 -o "$W/halves2.json" >"$W/out" 2>&1
json "the pattern by its old name, and its modules; Mamba as wide as usual" "
m = d['model']
assert m['n_layers'] == 5 and m['layers'] == 'mamba2, dense, mamba2, full, dense', m['layers']
assert m['mtp']['n'] == 2 and m['mtp']['kind'] == 'full_dense', m['mtp']
state = m['kinds']['mamba2']['state']
assert (state['n_heads'], state['value_dim'], state['key_dim'], state['n_key_heads']) == (2 * 512 // 64, 64, 128, 8), state" "$W/halves2.json"
for wrong in "--hybrid-layer-pattern MxM" "--hybrid-layer-pattern M/*E/*-" "--hybrid-layer-pattern /*" "--window-size 4" "--num-experts 4 --moe-layer-freq [1,0]"; do
    echo "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --vocab-size 32000 --micro-batch-size 1 $wrong" >"$W/wrong.sh"
    fails 3 'wrong.sh:1: .*expected' "$wrong" check "$W/wrong.sh" dgx-h100 --gpus 8
done

# --- Megatron-Bridge: what is exported is read again as the same plan, whatever its recipe says besides ---
# bridge NAME MODEL GPUS ARGUMENT...: plans, exports and reads again
bridge() {
    into=$1
    of=$2
    gpus=$3
    shift 3
    plan "$into.json" "$of" dgx-h100 --gpus "$gpus" --seq-len 4096 --framework megatron-bridge --beyond-framework off "$@"
    runs 0 "$into: to Megatron-Bridge" export "$W/$into.json" --to megatron-bridge
    cp "$W/out" "$W/$into.args"
    "$DEGAS" simulate "$W/$into.json" --json >"$W/planned" 2>/dev/null
    runs 0 "$into: is read again" simulate "$W/$into.args" dgx-h100 --gpus "$gpus" --json
    cmp "$W/out" "$W/planned" >"$W/err" 2>&1
    report $? "$into: is the same" "$(cat "$W/err" "$W/$into.args")"
}
# override NAME KEY=VALUE
override() {
    grep -qxF -e "$2" "$W/$1.args"
    report $? "$1: $2" "$(cat "$W/$1.args")"
}
bridge oss gpt-oss-120b 64 --global-batch 64 --tp 2 --pp 4 --ep 8 --vpp 1 --micro-batch 1 --zero 1 --recompute full \
    --sequence-parallel on --dispatcher deepep
override oss "--recipe gpt_oss_120b_pretrain_64gpu_h100_bf16_config"
override oss model.expert_model_parallel_size=8
override oss model.moe_flex_dispatcher_backend=deepep
override oss model.recompute_method=uniform
override oss model.virtual_pipeline_model_parallel_size=null
override oss mixed_precision=bf16_mixed
runs 0 "flags say its layers, too" export "$W/oss.json" --to megatron
# 118 layers in 12 stages: bars of the pattern, for hybrids have no layout
bridge hybrid nemotron-h-56b 32 --global-batch 64 --tp 4 --pp 4 --vpp 3 --micro-batch 1 --zero 1 --recompute none \
    --sequence-parallel on --overlap dp --loss plain
override hybrid model.pipeline_model_parallel_layout=null
override hybrid comm_overlap.overlap_p2p_comm=false
override hybrid model.cross_entropy_loss_fusion=false
pattern=$(sed -n 's/^model.hybrid_layer_pattern=//p' "$W/hybrid.args")
json "its pattern is the model's layers and the plan's stages" "
stages = '$pattern'.split('|')
assert ''.join(stages) == 10 * 'M-M-M-M*-M-' + 4 * 'M-', stages
assert [len(s) for s in stages] == [s['n_layers'] for s in d['stages']], stages" "$W/hybrid.json"
sed 's/pattern=M-/pattern=-M/' "$W/hybrid.args" >"$W/other.args"
fails 3 'hybrid_layer_pattern: expected the layers of nemotron-h-56b' "another model's pattern" \
    simulate "$W/other.args" dgx-h100 --gpus 32
bridge dense llama3-70b 64 --global-batch 64 --tp 4 --pp 8 --vpp 3 --micro-batch 1 --zero 1 --recompute selective \
    --recompute-modules core_attn,mlp --sequence-parallel on --overlap dp,pp,tp --dtype fp8 --quantise tensor --group 8 \
    --rank-order tp-cp-pp-dp
override dense "--recipe llama3_70b_pretrain_32gpu_h100_bf16_config"
override dense model.virtual_pipeline_model_parallel_size=3
override dense model.microbatch_group_size_per_vp_stage=8
override dense "model.recompute_modules=[core_attn,mlp]"
override dense dist.use_tp_pp_dp_mapping=true
override dense comm_overlap.tp_comm_overlap=true
override dense mixed_precision=bf16_with_fp8_current_scaling_mixed
json "its layout is the plan's stages" "
import re
text = re.sub(r'(.)\*(\d+)', lambda m: m[1] * int(m[2]),
              re.search('^model.pipeline_model_parallel_layout=(.*)', open('$W/dense.args').read(), re.M)[1])
assert [s.count('t') for s in text.split('|')] == [s['n_layers'] for s in d['stages']], text" "$W/dense.json"
# Adapters: overrides of a recipe that has some.
bridge adapters llama3-70b 8 --global-batch 32 --tp 2 --pp 4 --vpp 20 --micro-batch 1 --zero 1 --recompute none \
    --sequence-parallel on --lora-rank 16 --lora-modules linear_qkv
override adapters peft.dim=16
override adapters "peft.target_modules=[linear_qkv]"
override adapters "--model llama3_70b"
override adapters "--mode lora"
plan apart.json llama3-8b dgx-h100 --gpus 8 --global-batch 8 --framework megatron-bridge --lora-rank 8 --lora-modules q_proj,v_proj \
    --tp 1 --pp 1 --micro-batch 1
fails 1 "matrices.*--lora-modules linear_qkv" "adapters of matrices apart are another class" export "$W/apart.json" --to megatron-bridge
fails 1 'adapters beside frozen weights are not known here' "Megatron-LM has none" export "$W/adapters.json" --to megatron
cat "$W/oss.args" "$W/hybrid.args" "$W/adapters.args" "$W/dense.args" | grep -v -e '^--' -e '^model.recompute_modules' >"$W/values"
! grep -q '[()" ,]' "$W/values"
report $? "no value needs quotes of Hydra's"
bridge waits llama3-8b 8 --global-batch 8 --tp 1 --pp 8 --vpp 1 --micro-batch 1 --zero 0 --recompute none
plan overlaps.json llama3-8b dgx-h100 --gpus 8 --seq-len 4096 --global-batch 8 --framework megatron-bridge --tp 1 --pp 8 --vpp 1 \
    --micro-batch 1 --zero 0 --recompute none --overlap dp,pp --beyond-framework off
runs 0 "messages of 1f1b that overlap" export "$W/overlaps.json" --to megatron-bridge
grep -q 'waits for the messages of 1f1b' "$W/err"
report $? "are told to wait there" "$(cat "$W/err")"
bridge fsdp llama3-8b 16 --global-batch 64 --tp 1 --pp 1 --micro-batch 1 --zero 3 --recompute none --cp 2 --dropout on
override fsdp ddp.data_parallel_sharding_strategy=optim_grads_params
override fsdp model.tp_comm_overlap=false
plan text.json gemma3-27b dgx-h100 --gpus 64 --seq-len 4096 --global-batch 64 --framework megatron-bridge --tp 4 --pp 1 \
    --micro-batch 1 --zero 1 --recompute full --sequence-parallel on --beyond-framework off
runs 0 "a model without a recipe" export "$W/text.json" --to megatron-bridge
cp "$W/out" "$W/text.args"
grep -q 'google/gemma-3-27b-pt of Hugging Face, which no recipe has' "$W/err" && ! grep -q -e --recipe "$W/out"
report $? "a note names its model" "$(cat "$W/err")"
"$DEGAS" simulate "$W/text.json" --json >"$W/planned"
runs 0 "is read with --model" simulate "$W/text.args" dgx-h100 --gpus 64 --model gemma3-27b --json
cmp -s "$W/out" "$W/planned"
report $? "and is the same"
plan not.json llama3-8b dgx-h100 --gpus 8 --global-batch 8 --framework megatron-bridge --dtype fp8 --beyond-framework off \
    --grad-dtype bf16 --attention unfused --pad-vocab off --tp 4 --pp 1 --zero 1 --micro-batch 1 --recompute full
fails 1 'tensor, delayed or block; .*in fp32; .*not unfused; .*padded.*--quantise tensor --grad-dtype fp32 --attention flash --pad-vocab on$' \
    "is refused by name" export "$W/not.json" --to megatron-bridge
fails 1 'it has no recipe of gpt3-13b; --to megatron' "nor models without a bridge" export "$W/dense13.json" --to megatron-bridge
for refusal in "deepseek-v3.2:there is no flag for an indexer" "gemma3-27b --layers 12:there is no flag for scaled embeddings"; do
    # shellcheck disable=SC2086
    fails 2 "cannot run it: ${refusal#*:}.*(rule model)" "no bridge: ${refusal%%:*}" plan ${refusal%%:*} dgx-h100 --gpus 64 \
        --seq-len 4096 --global-batch 64 --framework megatron-bridge
done
plan short.json gpt-oss-20b --layers 12 dgx-h100 --gpus 8 --seq-len 4096 --global-batch 8 --framework megatron-bridge --beyond-framework off
fails 1 'it has no recipe of gpt-oss-20b; --to megatron says the model by flags' "flags say it, no recipe does" export "$W/short.json" --to megatron-bridge
oss="gpt-oss-20b dgx-h100 --gpus 8 --seq-len 4096 --global-batch 8 --framework megatron-bridge --cp 2 --beyond-framework off"
# shellcheck disable=SC2086
{
    fails 2 'windows or sinks.*(rule cp)' "a ring has no sinks" plan $oss --cp-comm-type p2p
    runs 0 "all-to-alls have" plan $oss --cp-comm-type a2a
}

# --- DeepSpeed ---
plan ds.json gpt3-13b dgx-a100-80g --gpus 16 --global-batch 64 --framework deepspeed --dp 16 --zero 2 \
    --micro-batch 2 --recompute none --slices off
runs 0 "ZeRO 2" export "$W/ds.json" --to deepspeed
json "batch, stage, formats" "
assert d['train_batch_size'] == 64 and d['train_micro_batch_size_per_gpu'] == 2
assert d['gradient_accumulation_steps'] * 2 * 16 == 64
assert d['zero_optimization']['stage'] == 2 and d['bf16'] == {'enabled': True}
assert d['fp16'] == {'enabled': False} and 'pipeline' not in d and 'tensor_parallel' not in d"
json "gathers overlap where ZeRO gathers no parameters only if asked" "
assert d['zero_optimization']['overlap_comm'] == False and d['data_types'] == {'grad_accum_dtype': 'bf16'}"
for dtype in fp16 fp32; do
    plan "ds$dtype.json" gpt3-1b dgx-a100-80g --gpus 8 --global-batch 16 --framework deepspeed --dp 8 --zero 0 \
        --recompute none --slices off --dtype $dtype
    runs 0 "$dtype" export "$W/ds$dtype.json" --to deepspeed
    json "gradients are summed in the model's format: ZeRO 0 takes no other" "
assert d['data_types'] == {'grad_accum_dtype': '$dtype'}, d['data_types']
assert d['fp16'] == {'enabled': '$dtype' == 'fp16'} and d['bf16'] == {'enabled': False}"
done
plan dsoff.json gpt3-13b dgx-a100-80g --gpus 16 --global-batch 64 --framework deepspeed --dp 16 --zero 3 \
    --micro-batch 2 --recompute none --slices off --offload nvme --offload-parameters on --prefetch-layers 2
runs 0 "ZeRO 3 with parameters on NVMe" export "$W/dsoff.json" --to deepspeed
json "parameters, layers ahead as elements of 12 h^2 + 13 h" "
z = d['zero_optimization']
assert z['overlap_comm'] == True, z
assert z['stage3_prefetch_bucket_size'] == 2 * (12 * 5120 ** 2 + 13 * 5120), z
assert z['offload_param'] == z['offload_optimizer'] and z['offload_param']['device'] == 'nvme', z"
plan dspipe.json gpt3-13b dgx-a100-80g --gpus 16 --global-batch 64 --framework deepspeed --dp 4 \
    --tp 1 --pp 4 --vpp 1 --cp 1 --zero 1 --micro-batch 1 --schedule 1f1b --slices off \
    --recompute full --offload cpu
runs 0 "a pipeline" export "$W/dspipe.json" --to deepspeed
json "stages, offload, recompute" "
assert d['pipeline'] == {'stages': 4, 'partition': 'type:(Block|DecoderLayer|TransformerLayer)', 'activation_checkpoint_interval': 1}
assert d['train_batch_size'] == d['train_micro_batch_size_per_gpu'] * d['gradient_accumulation_steps'] * 4
assert d['zero_optimization']['offload_optimizer']['device'] == 'cpu'"
grep -q 'PipelineModule(num_stages=4' "$W/err"
report $? "stderr has what is no key" "$(cat "$W/err")"

# --- torchtitan ---
# toml NAME PROGRAM: asserts things of d, the last output
toml() {
    if python3 -c 'import tomllib' 2>/dev/null; then
        output=$(python3 -c "
import json, sys, tomllib
d = tomllib.load(open(sys.argv[1], 'rb'))
$2" "$W/out" 2>&1)
        report $? "$1" "$output"
    else
        skip "$1" "python3 has no tomllib"
    fi
}
plan tt.json llama3-8b dgx-h100 --gpus 16 --global-batch 32 --dp 2 --tp 2 --pp 4 --vpp 2 --cp 1 \
    --micro-batch 1 --schedule interleaved --slices off --recompute full --zero 3 \
    --sequence-parallel on
runs 0 "a pipeline in chunks" export "$W/tt.json" --to torchtitan --version 0.2
toml "its tables" "
plan = json.load(open('$W/tt.json'))
assert d['model'] == {'name': 'llama3', 'flavor': '8B'}
t, p = d['training'], d['parallelism']
assert t['local_batch_size'] == 16 and t['global_batch_size'] == 32 and t['seq_len'] == 8192
assert p['data_parallel_replicate_degree'] * p['data_parallel_shard_degree'] * \
    p['tensor_parallel_degree'] * p['context_parallel_degree'] * p['pipeline_parallel_degree'] == 16
assert p['data_parallel_shard_degree'] == 2 and p['fsdp_reshard_after_forward'] == 'always'
assert p['pipeline_parallel_schedule'] == 'Interleaved1F1B'
assert p['pipeline_parallel_microbatch_size'] == 1
assert d['activation_checkpoint'] == {'mode': 'full'}
parts = p['module_fqns_per_model_part']
assert sum(parts, []) == ['tok_embeddings'] + ['layers.%d' % i for i in range(32)] + ['norm', 'output']
assert [sum(x.startswith('layers.') for x in part) for part in parts] == \
    [s['n_layers'] for s in plan['stages']]"
plan ttcsv.json llama3-8b dgx-h100 --gpus 8 --global-batch 32 --dp 2 --tp 1 --pp 4 --cp 1 \
    --micro-batch 1 --schedule zb-h1 --slices off --recompute none --zero 2
runs 0 "a schedule without a class" export "$W/ttcsv.json" --to torchtitan --version 0.2
toml "is a file" "
assert d['parallelism']['pipeline_parallel_schedule_csv'] == 'schedule.csv'
assert d['parallelism']['pipeline_parallel_schedule'] == '1F1B'
assert d['parallelism']['fsdp_reshard_after_forward'] == 'never'"
runs 0 "that export writes too" export "$W/ttcsv.json" --to pytorch-csv
plan ttv.json llama3-8b dgx-h100 --gpus 8 --global-batch 16 --dp 1 --tp 2 --pp 4 --vpp 2 --cp 1 \
    --micro-batch 1 --schedule zb-auto --slices off --recompute none --zero 2 --sequence-parallel on
runs 0 "a built schedule of two chunks" export "$W/ttv.json" --to torchtitan --version 0.2
toml "its stages lie as a V" "
assert d['parallelism']['pipeline_parallel_schedule'] == 'ZBVZeroBubble', d['parallelism']
assert d['parallelism']['pipeline_parallel_schedule_csv'] == 'schedule.csv' and 'compile' not in d"
plan ttdp.json llama3-8b dgx-h100 --gpus 8 --global-batch 32 --dp 4 --tp 2 --zero 3 --micro-batch 1 \
    --slices off --recompute full --sequence-parallel on --overlap dp,pp,tp
runs 0 "without a pipeline" export "$W/ttdp.json" --to torchtitan --version 0.2
toml "the rest is gradient accumulation" "
assert d['training']['local_batch_size'] == 1 and d['training']['global_batch_size'] == 32"
toml "asynchronous tensor parallelism is the compiler's" "
assert d['parallelism']['enable_async_tensor_parallel'] and d['compile']['enable']
assert 'model' in d['compile']['components']"

# module NAME PROGRAM: asserts things of the attributes that the module, the last output, sets of the recipe c
module() {
    if command -v python3 >/dev/null; then
        output=$(python3 - "$W/out" 2>&1 <<END
import json, sys, types
class Recipe(types.SimpleNamespace):
    def __getattr__(self, name):
        setattr(self, name, Recipe())
        return getattr(self, name)
for name in "config distributed distributed.activation_checkpoint models models.llama3 models.llama3.config_registry" \\
        " trainer".split():
    sys.modules["torchtitan." + name] = types.ModuleType(name)
sys.modules["torchtitan"] = types.ModuleType("torchtitan")
sys.modules["torchtitan.config"].CompileConfig = dict
sys.modules["torchtitan.distributed.activation_checkpoint"].FullAC = types.SimpleNamespace(Config=lambda: "full")
sys.modules["torchtitan.models.llama3"].model_registry = lambda flavour: flavour
sys.modules["torchtitan.models.llama3.config_registry"].llama3_8b = Recipe
sys.modules["torchtitan.trainer"].Trainer = types.SimpleNamespace(Config=Recipe)
names = {}
exec(open(sys.argv[1]).read(), names)
c = names["plan"]()
$2
END
)
        report $? "$1" "$output"
    else
        skip "$1" "python3 is not installed"
    fi
}
runs 0 "its current release reads no TOML, but a module" export "$W/tt.json" --to torchtitan
module "which sets the same" "
plan = json.load(open('$W/tt.json'))
p = c.parallelism
assert c.model_spec == '8B' and c.activation_checkpoint == 'full' and c.compile == {'enable': False}
assert (c.training.local_batch_size, c.training.global_batch_size, c.training.seq_len) == (16, 32, 8192)
assert c.training.disable_cuda_graphs and not c.training.enable_cpu_offload
assert (p.data_parallel_replicate_degree, p.data_parallel_shard_degree, p.tensor_parallel_degree) == (1, 2, 2)
assert (p.context_parallel_degree, p.pipeline_parallel_degree, p.expert_parallel_degree) == (1, 4, 1)
assert p.pipeline_parallel_schedule == 'Interleaved1F1B' and p.pipeline_parallel_microbatch_size == 1
assert sum(p.module_fqns_per_model_part, []) == \\
    ['tok_embeddings'] + ['layers.%d' % i for i in range(32)] + ['norm', 'lm_head']
assert [sum(x.startswith('layers.') for x in part) for part in p.module_fqns_per_model_part] == \\
    [s['n_layers'] for s in plan['stages']]"
runs 0 "and asynchronous tensor parallelism" export "$W/ttdp.json" --to torchtitan --version 0.3
module "is the compiler's" "
assert c.compile == {'enable': True, 'enable_async_tensor_parallel': True}, c.compile"
fails 2 'no version "0.4" of torchtitan; expected one of: 0.3, 0.2$' "an unknown version" \
    export "$W/tt.json" --to torchtitan --version 0.4
fails 2 'version: megatron has one form' "a version of what has none" export "$W/tt.json" --to megatron --version 0.3

# --- what they cannot run, and the plan that they can ---
# refused TARGET PATTERN FILE JOB...: the refusal names its rule; planning JOB again with the flags
# that it names gives a plan that is accepted
refused() {
    target=$1
    pattern=$2
    file=$3
    shift 3
    fails 1 "$target cannot run it: .*$pattern" "$target refuses: $pattern" \
        export "$W/$file" --to "$target" -o "$W/none"
    [ ! -e "$W/none" ]
    report $? "and writes nothing"
    flags=$(sed -n 's/.*the nearest plan that it can run: the same with //p' "$W/err")
    # shellcheck disable=SC2086
    "$DEGAS" plan "$@" $flags -o "$W/nearest.json" >/dev/null 2>"$W/err" &&
        "$DEGAS" export "$W/nearest.json" --to "$target" >"$W/out" 2>"$W/err"
    report $? "the nearest plan is accepted: $flags" "$(cat "$W/err")"
}
small="--global-batch 32 --micro-batch 1"
job="llama3-8b dgx-h100 --gpus 8 $small --dp 2 --pp 4 --tp 1 --cp 1 --recompute none"
# shellcheck disable=SC2086
{
    plan zb.json $job --schedule zb-h1 --slices off --zero 1
    refused megatron 'pipelines run 1f1b, interleaved, not zb-h1' zb.json $job --zero 1 --slices off
    plan sliced.json $job --schedule seq1f1b --slices 4 --zero 0
    refused megatron '4 token slices cannot be expressed' sliced.json $job --zero 0
    refused torchtitan 'slices cannot be expressed.*pipelines run .*, not seq1f1b' sliced.json \
        $job --zero 2
    plan ddp.json $job --schedule 1f1b --slices off --zero 0
    refused torchtitan 'ZeRO is 2, 3 with a pipeline, not 0' ddp.json $job --schedule 1f1b --slices off
    plan sp.json llama3-8b dgx-h100 --gpus 8 $small --dp 4 --pp 1 --tp 2 --cp 1 --zero 1 --slices off \
        --recompute none --sequence-parallel off
    refused torchtitan 'always with sequence parallelism.*ZeRO is 0, 2, 3, not 1' sp.json llama3-8b dgx-h100 \
        --gpus 8 $small --dp 4 --pp 1 --tp 2 --cp 1 --slices off --recompute none
    plan cp.json llama3-8b dgx-h100 --gpus 8 $small --tp 1 --pp 1 --cp 4 --zero 3 --slices off
    refused deepspeed 'not split over ranks by a ring: --cp 4' cp.json llama3-8b dgx-h100 --gpus 8 $small --tp 1 --pp 1 \
        --zero 3 --slices off
    # Layers of 13B outweigh its vocabulary: stages stay even.
    job="gpt3-13b dgx-a100-80g --gpus 8 $small --dp 2 --pp 4 --tp 1 --cp 1 --recompute full"
    plan z3.json $job --schedule seq1f1b --slices 4 --zero 3
    refused deepspeed 'slices.*pipelines run 1f1b, not seq1f1b.*ZeRO is 0, 1 with a pipeline, not 3' z3.json $job
    plan deep.json $job --vpp 2 --schedule interleaved --slices off --zero 1
    refused deepspeed 'a rank has one stage: --vpp 2' deep.json $job --slices off --zero 1
    plan steep.json llama3-8b dgx-h100 --gpus 8 $small --pp 4 --schedule 1f1b --zero 1 --slices off \
        --recompute full
    refused deepspeed 'stages have equally many layers' steep.json llama3-8b dgx-h100 --gpus 8 $small \
        --recompute full --zero 1 --slices off
    plan sel.json llama3-8b dgx-h100 --gpus 8 $small --dp 8 --zero 3 --recompute selective --slices off
    refused torchtitan 'recompute is none, full, not selective' sel.json llama3-8b dgx-h100 --gpus 8 $small \
        --dp 8 --zero 3 --slices off
}
plan gpt.json gpt3-13b dgx-a100-80g --gpus 16 --global-batch 32 --dp 16 --zero 3 --micro-batch 1 \
    --recompute none --slices off
# shellcheck disable=SC2086
plan short.json llama3-8b dgx-h100 --layers 10 --gpus 8 $small --dp 8 --zero 3 --slices off --recompute none
fails 1 'no flavour of llama3-8b whose n_layers is 10, not 32$' "nor one that it has with other widths" \
    export "$W/short.json" --to torchtitan
fails 1 'no flavour of gpt3-13b$' "a model that torchtitan has not: no plan is near" \
    export "$W/gpt.json" --to torchtitan
finish
