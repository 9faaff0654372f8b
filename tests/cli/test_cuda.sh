#!/bin/sh
# degas run --device cuda: without a GPU it says so; on an emulated one (tests/executor/gpu_on_host.hh)
# whole models have the gradients of a single device.
. tests/cli/tap.sh

emulated=$(dirname "$(readlink -f "$DEGAS")")/emulated
# 131 tokens are 256 columns padded, over tp 2 128 of which the second rank uses 3.
for family in gpt llama; do
    printf '{"format":"degas-model","version":1,"name":"tiny","family":"%s","n_layers":2,"hidden":32,
        "ffn_hidden":48,"n_heads":2,"vocab":131,"max_seq_len":24}' "$family" >"$W/model-$family.json"
done

printf '{"format":"degas-model","version":1,"name":"tiny","family":"llama","n_layers":2,"hidden":64,
    "ffn_hidden":48,"n_heads":1,"vocab":64,"max_seq_len":24}' >"$W/model-head64.json"

# model NAME KEYS: of other kinds of attention and blocks
model() {
    printf '{"format":"degas-model","version":1,"name":"tiny","family":"llama","n_layers":2,"hidden":32,
        "ffn_hidden":48,"n_heads":2,"vocab":131,"max_seq_len":24,%s}' "$2" >"$W/model-$1.json"
}
model windows '"sinks":true,"qk_norm":true,"head_dim":24,"rotary_dim":12,
    "kinds":{"sliding":{"window":7},"full":{"attention_cap":5,"output_gate":"head","v_dim":20}},"layers":"sliding,full"'
model latent '"head_dim":24,"mla":{"q_lora_rank":16,"kv_lora_rank":24,"qk_nope_head_dim":16,
    "qk_rope_head_dim":8,"v_head_dim":12}'
model blocks '"blocks":"parallel","norm_place":"sandwich"'
model post '"norm_place":"post","norm":"layer","positions":"alibi","qk_norm":true,"qk_norm_kind":"row"'
model relu2 '"activation":"relu2"'

# plan NAME MODEL FLAG...
plan() {
    name=$1
    model=$2
    shift 2
    "$DEGAS" plan "$W/model-$model.json" local-cpu --seq-len 24 --framework degas --recompute none --zero 0 \
        --micro-batch 1 --dp 1 "$@" -o "$W/$name.json" >/dev/null 2>"$W/err" ||
        report 1 "plan $name" "$(cat "$W/err")"
}

plan gpt gpt --dtype fp32 --gpus 2 --global-batch 2 --pp 2 --tp 1 --schedule 1f1b --slices 10,14 --pad-vocab on
plan llama llama --dtype bf16 --gpus 2 --global-batch 2 --pp 1 --tp 2 --pad-vocab on
plan w gpt --dtype bf16 --gpus 2 --global-batch 2 --pp 2 --tp 1 --schedule zb-h1
plan windows windows --dtype bf16 --gpus 2 --global-batch 2 --pp 2 --tp 1 --schedule 1f1b --slices 10,14
plan latent latent --dtype fp32 --gpus 2 --global-batch 2 --pp 1 --tp 2 --sequence-parallel on
plan blocks blocks --dtype fp32 --gpus 2 --global-batch 2 --pp 2 --tp 1 --schedule zb-h1
plan post post --dtype fp32 --gpus 2 --global-batch 2 --pp 1 --tp 2
plan relu2 relu2 --dtype fp32 --gpus 1 --global-batch 2 --pp 1 --tp 1
plan head64 head64 --dtype bf16 --gpus 2 --global-batch 2 --pp 2 --tp 1 --schedule 1f1b --slices 10,14

fails 2 'no-graphs: needs --device cuda' "graphs of a CPU" run "$W/gpt.json" --no-graphs
DEGAS_PLUGIN_DIR=$W fails 6 'cuda: the plugin degas-cuda.so is not built' \
    "a build without the plugin" run "$W/gpt.json" --device cuda
if [ ! -e "$emulated/degas-cuda.so" ]; then
    skip "whole models on an emulated GPU" "it needs the CUDA toolkit's headers and g++"
else
    DEGAS_PLUGIN_DIR=$emulated
    export DEGAS_PLUGIN_DIR
    fails 1 'cannot execute activations but SwiGLU and GELU' "what a GPU does not compute" run "$W/relu2.json" \
        --device cuda
    for name in gpt llama w windows latent blocks post; do
        runs 0 "$name on an emulated GPU has the gradients of one device" run "$W/$name.json" \
            --device cuda --steps 1 --verify
        has 'passed$' "$name says so"
        has '^emulated GPU' "$name says where it ran"
    done
    runs 0 "three steps, op by op" run "$W/w.json" --device cuda --steps 3 --no-graphs --json -o "$W/plain"
    runs 0 "... and every op as one graph" run "$W/w.json" --device cuda --steps 3 --json \
        -o "$W/graphs"
    json "... have the same losses to the bit" "
assert d['losses'] == json.load(open('$W/plain'))['losses'] and d['losses'][2] < d['losses'][0]" "$W/graphs"
    FAKE_CUDA=graphs=0
    export FAKE_CUDA
    fails 7 'step 1: .*from cudaStreamBeginCapture' "a driver that does not capture" run "$W/w.json" \
        --device cuda --steps 3
    FAKE_CUDA=async=1
    for name in gpt llama; do
        runs 0 "$name on a device whose streams lag behind: nothing is read too early" run \
            "$W/$name.json" --device cuda --steps 2 --verify
    done
    FAKE_CUDA=proposals=8,async=1
    runs 0 "products whose kernels are timed when they are first met" run "$W/w.json" --device cuda --steps 3 \
        --verify
    has '^emulated GPU.*products by the fastest of 8 kernels' "... says so"
    runs 0 "... unless each run has to give the same bits" run "$W/w.json" --device cuda --steps 1 --deterministic
    has "^emulated GPU.*products by cuBLASLt's choice" "... says so"
    FAKE_CUDA=foreign_events=0
    runs 0 "streams of shares that take their own context's events only" run "$W/gpt.json" --device cuda --steps 2 --verify
    has '^emulated GPU.* multiprocessors per rank, events of its green context' "... says so"
    FAKE_CUDA=async=1
    DEGAS_CUDA_ATTENTION=wgmma
    export DEGAS_CUDA_ATTENTION
    runs 0 "attention by wgmma in a pipeline of slices" run "$W/head64.json" --device cuda --steps 1 --verify
    has '^emulated GPU.*, attention by wgmma' "... says so"
    unset FAKE_CUDA
    # As of a profile that was measured on such a device.
    unset DEGAS_CUDA_ATTENTION
    for kernel in mma wgmma; do
        awk -v kernel=$kernel '!done { done = sub(/"cluster": {/, "&\n    \"measured_attention\": \"" kernel "\",") } 1' \
            "$W/head64.json" >"$W/by-$kernel.json"
        runs 0 "the profile's attention was by $kernel" run "$W/by-$kernel.json" --device cuda --steps 1
    done
    ! grep -q DEGAS_CUDA_ATTENTION "$W/err"
    report $? "the same kernel as the profile's: nothing is said" "$(cat "$W/err")"
    has '^emulated GPU.*, attention by wgmma' "... which is the one that is used"
    DEGAS_CUDA_ATTENTION=mma runs 0 "unless the environment decides" run "$W/by-wgmma.json" --device cuda --steps 1
    ! grep -q '^emulated GPU.*, attention by wgmma' "$W/out"
    report $? "... otherwise" "$(cat "$W/out")"
    FAKE_CUDA=capability=80 runs 0 "... or the device has not got it" run "$W/by-wgmma.json" --device cuda --steps 1
    grep -q '^degas: run: attention was by mma, in the plan.s profile by wgmma ' "$W/err"
    report $? "... which is told" "$(cat "$W/err")"
    runs 0 "by default" run "$W/head64.json" --device cuda --steps 1
    has '^emulated GPU.*, attention by wgmma' "... it is used"
    DEGAS_CUDA_ATTENTION=wgmma
    export DEGAS_CUDA_ATTENTION
    runs 0 "another kernel than the profile's" run "$W/by-mma.json" --device cuda --steps 1
    grep -q '^degas: run: attention was by wgmma, in the plan.s profile by mma (DEGAS_CUDA_ATTENTION, or' "$W/err"
    report $? "another kernel than the profile's is told" "$(cat "$W/err")"
    runs 0 "... op by op" run "$W/head64.json" --device cuda --steps 3 --no-graphs --json -o "$W/plain"
    runs 0 "... and every op as one graph" run "$W/head64.json" --device cuda --steps 3 --json \
        -o "$W/graphs"
    json "... has the same losses to the bit" "
assert d['losses'] == json.load(open('$W/plain'))['losses'] and d['losses'][2] < d['losses'][0]" "$W/graphs"
    FAKE_CUDA=capability=80
    export FAKE_CUDA
    fails 6 'capability 8.0; wgmma is of 9.0 only' "a device without wgmma" run "$W/head64.json" --device cuda
    unset DEGAS_CUDA_ATTENTION
    FAKE_CUDA=driver=0
    fails 6 'no NVIDIA driver' "a machine without a driver" run "$W/gpt.json" --device cuda
    FAKE_CUDA=memory=40000000
    fails 5 'rank [01] failed in its preparations: .*no memory for [0-9]* bytes of .*the predicted peak of this rank is [0-9]* bytes' \
        "a device that is too small: for what, and what was predicted" run "$W/gpt.json" \
        --device cuda
    FAKE_CUDA=launch=30
    fails 7 'unspecified launch failure' "a kernel that fails" run "$W/gpt.json" --device cuda
    unset FAKE_CUDA DEGAS_PLUGIN_DIR
fi

finish
