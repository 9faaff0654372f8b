#!/bin/sh
# --recompute-modules, --recompute-method: in plans and their files, recipes, exports and the executor.
. tests/cli/tap.sh

job="llama3-8b dgx-h100 --gpus 16 --global-batch 64 --tp 2 --pp 2 --framework megatron-core --dp 4"
# shellcheck disable=SC2086
{
runs 0 "a plan with modules" plan $job --recompute selective --recompute-modules layernorm,mlp -o "$W/modules.json"
has "selective" "says selective"
runs 0 "its file is read" simulate "$W/modules.json"
runs 0 "it is exported" export "$W/modules.json" --to megatron
has "^--recompute-modules layernorm mlp" "with Megatron's flag"
runs 0 "layers of each stage" simulate $job --recompute full --recompute-method block --recompute-num-layers 3 --json
cp "$W/out" "$W/block.json"
fails 2 "expected auto, or some of core_attn" "an unknown module" simulate $job --recompute-modules mlps
fails 2 "auto: plan and sweep search" "a job whose modules are open" simulate $job --recompute-modules auto
fails 2 "op is chosen alone" "op and another module" simulate $job --recompute-modules op,mlp
fails 2 "block needs --recompute-num-layers" "block without a number" simulate $job --recompute-method block
fails 2 "selective recompute is of .*, not of op" "a policy that Megatron has not" plan $job --recompute-modules op

# The search over modules is as fast as the fastest of all sets, which is not the usual one: memory is short.
tight="llama3-8b dgx-h100 --gpus 8 --global-batch 64 --seq-len 16384 --framework megatron-core --dp 4 --tp 2 --zero 2
    --memory-limit 48GiB --slices off --top 2"
least=
for set in core_attn layernorm mlp core_attn,layernorm core_attn,mlp layernorm,mlp core_attn,layernorm,mlp; do
    # shellcheck disable=SC2086
    "$DEGAS" plan $tight --recompute-modules $set -o "$W/set.json" >/dev/null 2>&1
    least="$least $(python3 -c "import json; print(json.load(open('$W/set.json'))['predicted']['iteration_s'])")"
done
# shellcheck disable=SC2086
runs 0 "modules are searched" plan $tight --recompute-modules auto --explain -o "$W/auto.json"
has "^selective recompute repeats mlp" "the plan says what it repeats"
has "memory  *+1 GiB .*  =  *the same" "what-ifs repeat the same modules"
json "the search finds the fastest of all sets" "
times = [float(t) for t in '$least'.split()]
assert len(times) == 7 and min(times) < 0.95 * times[0], times
assert d['predicted']['iteration_s'] == min(times), (d['predicted']['iteration_s'], times)
assert d['conventions']['recompute_modules'] == ['mlp'], d['conventions']
assert d['lower_bound_s'] <= min(times), d['lower_bound_s']
told = [(a['degrees'], a['micro_batch'], a['stages'][0].get('recompute'), a['sequence_parallel']) for a in d['alternatives']]
assert len(set(map(str, told))) == len(told) == 2, told" "$W/auto.json"
}
cat > "$W/block.sh" <<'END'
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \
  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 \
  --tensor-model-parallel-size 2 --vocab-size 32000 --swiglu --recompute-granularity full --recompute-method block \
  --recompute-num-layers 5
END
sed 's/full --recompute-method block/selective/; s/--recompute-num-layers 5/--recompute-modules moe_act layernorm/' \
    "$W/block.sh" > "$W/modules.sh"
runs 0 "a recipe that recomputes some layers" check "$W/block.sh" dgx-h100 --json
json "says which" '
c = d["plan"]["conventions"]
assert c["recompute_method"] == "block" and c["recompute_layers"] == 5, c
assert not any("layers of a stage" in x for x in d["taken_for_granted"]), d["taken_for_granted"]'
runs 0 "a recipe with modules" check "$W/modules.sh" dgx-h100 --json
json "has them" '
assert d["plan"]["conventions"]["recompute_modules"] == ["layernorm", "moe_act"], d["plan"]["conventions"]'
cat > "$W/tiny.json" <<'END'
{"format":"degas-model","version":1,"name":"tiny","family":"llama","n_layers":4,"hidden":64,"n_heads":4,"n_kv_heads":2,
 "head_dim":16,"ffn_hidden":96,"vocab":128,"max_seq_len":64,"tied_embeddings":false}
END
cat > "$W/experts.json" <<'END'
{"format":"degas-model","version":1,"name":"tiny-experts","family":"llama","n_layers":3,"hidden":64,"n_heads":4,"n_kv_heads":2,
 "head_dim":16,"ffn_hidden":96,"vocab":128,"max_seq_len":64,"tied_embeddings":false,
 "experts":{"n_experts":4,"top_k":2,"ffn_hidden":96,"n_shared":2,"first_dense_layers":1}}
END
sed 's/"n_shared":2/"n_shared":2,"shared_gate":true,"latent":32/' "$W/experts.json" >"$W/gated.json"
cat > "$W/latent.json" <<'END'
{"format":"degas-model","version":1,"name":"tiny-latent","family":"llama","n_layers":4,"hidden":64,"n_heads":4,"head_dim":24,
 "ffn_hidden":96,"vocab":128,"max_seq_len":64,"tied_embeddings":false,"mla":{"q_lora_rank":32,"kv_lora_rank":32,
 "qk_nope_head_dim":16,"qk_rope_head_dim":8,"v_head_dim":16}}
END
# ran NAME MODEL FLAG...: gradients and peak of a plan of one device.
ran() {
    name=$1 model=$2
    shift 2
    balance=""
    case $model in experts | gated) balance=--balance-experts ;; esac
    runs 0 "$name: a plan" plan "$W/$model.json" local-cpu --gpus 1 --global-batch 8 --micro-batch 8 --dtype fp32 --pp 1 \
        --tp 1 --cp 1 --vpp 1 --slices off --zero 0 --schedule 1f1b "$@" -o "$W/run.json"
    # shellcheck disable=SC2086
    runs 0 "$name: the gradients are those of one device" run "$W/run.json" --steps 1 --verify --json
    # shellcheck disable=SC2086
    runs 0 "$name: equal shares of rows" run "$W/run.json" --steps 1 $balance --json
    cp "$W/out" "$W/ran.json"
    runs 0 "$name: simulated" simulate "$W/run.json" --json
    json "$name: the peak is the simulator's, libraries apart, within 3 %" "
r, = json.load(open('$W/ran.json'))['ranks']
s, = d['ranks']
assert abs(r['peak_memory_bytes'] / (s['peak_memory_bytes'] - s['memory_bytes']['buffers']) - 1) < 0.03, (r, s)
open('$W/peaks', 'a').write('$model %d\\n' % r['peak_memory_bytes'])"
}
for modules in core_attn layernorm mlp layernorm,mlp; do
    ran "$modules" tiny --recompute selective --recompute-modules $modules
done
for modules in moe moe_act shared_experts layernorm,moe_act; do
    ran "$modules" experts --recompute selective --recompute-modules $modules
done
ran "shared experts with a gate" gated --recompute selective --recompute-modules shared_experts
ran "narrow experts" gated --recompute selective --recompute-modules moe
ran "mla_up_proj" latent --recompute selective --recompute-modules mla_up_proj
ran "the first two layers" tiny --recompute full --recompute-method block --recompute-num-layers 2
ran "three layers together" tiny --recompute full --recompute-method uniform --recompute-num-layers 3
ran "two layers together, with experts" experts --recompute full --recompute-method uniform --recompute-num-layers 2
json "no two of them keep as much" "
rows = [x.split() for x in open('$W/peaks')]
assert len({tuple(r) for r in rows}) == len(rows) >= 14, rows" "$W/ran.json"
runs 0 "a plan with split backwards" plan "$W/tiny.json" local-cpu --gpus 2 --global-batch 8 --micro-batch 2 --dtype fp32 --pp 2 \
    --tp 1 --cp 1 --vpp 1 --slices off --zero 0 --schedule zb-h1 --recompute selective --recompute-modules mlp -o "$W/split.json"
runs 0 "modules in split backwards: the gradients are those of one device" run "$W/split.json" --steps 1 --verify
runs 0 "PyTorch's policy over ops" plan "$W/tiny.json" local-cpu --gpus 1 --global-batch 8 --dtype fp32 --recompute selective \
    --recompute-modules op -o "$W/op.json"
fails 1 "cannot execute --recompute-modules op" "is what the executor refuses by name" run "$W/op.json" --steps 1
finish
