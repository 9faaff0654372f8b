#!/bin/sh
# degas check: recipes of other programs are read, broken rules are named, and edits help.  That readers are the inverse of the
# exporters is shown by tests/cli/test_frameworks.sh.
. tests/cli/tap.sh

cat >"$W/train.sh" <<'END'
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=8
GPUS=$((2 * 8)); TP=${TP:-4}   # a comment
if [ "$TP" -gt 2 ] && [[ -n "$GPUS" ]]; then SP=(--sequence-parallel); else SP=(); fi
case $GPUS in 8) PP=1 ;; 1*) PP=2 ;; *) PP=8 ;; esac
MODEL=(
    --num-layers 40 --hidden-size 5120 --num-attention-heads 40   # 13B
    --seq-length 2048 --max-position-embeddings 2048 --vocab-size 51200
)
ARGS="--micro-batch-size 1 \
      --global-batch-size 32"
ARGS+=" --bf16 --use-distributed-optimizer"
cat <<TEXT >/dev/null
--num-layers 7
TEXT
echo --micro-batch-size 99
torchrun --nproc_per_node 8 --nnodes=2 pretrain_gpt.py ${MODEL[@]} $ARGS "${SP[@]}" \
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size "$PP" --data-path $DATA --moe-shared-expert-overlap
END
runs 0 "a script" check "$W/train.sh" dgx-a100-80g --json -o "$W/plan.json"
json "is read as it would be run" "
p = d['plan']
assert d['dialect'] == 'Megatron-LM' and d['framework'] == 'megatron-core' and d['devices'] == 16
assert p['degrees'] == {'dp': 2, 'tp': 4, 'pp': 2, 'vpp': 1, 'cp': 1, 'ep': 1}, p['degrees']
assert p['micro_batch'] == 1 and p['global_batch'] == 32 and p['sequence_parallel'] and p['zero_stage'] == 1
assert [s['n_layers'] for s in p['stages']] == [20, 20] and p['dtype'] == 'bf16'
assert d['starts'] and d['predicted']['fits'] and d['broken_rules'] == []
assert d['not_modelled'] == ['--moe-shared-expert-overlap: shared experts do not overlap with messages']
assert '--data-path' in d['unused']
assert abs(sum(d['waste_fraction'].values()) + d['predicted']['breakdown_s']['compute'] / d['predicted']['iteration_s'] - 1) < 1e-9"
cp "$W/out" "$W/first"
runs 0 "again" check "$W/train.sh" dgx-a100-80g --json
cmp -s "$W/out" "$W/first"
report $? "the same bytes"
json "edits gain, and what they set is Megatron's" "
assert 1 <= len(d['gains']) <= 3
times = [e['iteration_s'] for e in d['gains']]
assert times == sorted(times) and times[-1] < d['predicted']['iteration_s']
assert all(e['fits'] and e['set'] and all(s.startswith('--') or s.startswith('without --') for s in e['set']) for e in d['gains'])"
# the best edit, made in the recipe, takes as long as was said
sed -n '/"gains"/,$p' "$W/out" >"$W/gains"
seconds=$(sed -n 's/^ *"iteration_s": \([0-9.]*\).*/\1/p' "$W/gains" | head -1)
# shellcheck disable=SC2046
set -- $(sed -n '1,/\]/s/^ *"\(--[^"]*\)".*/\1/p' "$W/gains" | tr '\n' ' ')
sed "s/--data-path/$* &/" "$W/train.sh" >"$W/edited.sh"
runs 0 "the recipe with the best edit: $*" check "$W/edited.sh" dgx-a100-80g --edits 0 --json
grep -q "\"iteration_s\": $seconds" "$W/out"
report $? "takes as long as was said" "wanted $seconds: $(grep iteration_s "$W/out")"
runs 0 "the plan that it is" simulate "$W/plan.json" --json
cp "$W/out" "$W/report"
runs 0 "simulate takes the recipe" simulate "$W/train.sh" dgx-a100-80g --json
cmp -s "$W/out" "$W/report"
report $? "and says the same" "$(diff "$W/out" "$W/report" | head -5)"
grep -q 'not in the prediction: --moe-shared-expert-overlap' "$W/err"
report $? "and what is not in it" "$(cat "$W/err")"
fails 2 'variables: is for recipes' "--variables is for recipes" simulate gpt3-1b dgx-h100 --global-batch 8 --variables A=1

runs 0 "a variable is given" check "$W/train.sh" dgx-a100-80g --variables TP=2,GPUS=16 --edits 0
has 'dp 4, tp 2, pp 2' "and counts in place of the script's"
runs 1 "options take the place of settings" check "$W/train.sh" dgx-a100-80g --tp 1 --pp 1 --gpus 8
has '^fits     NO: .*most of it' "what does not fit says where"
has '^The fastest that fits' "and what would"

cat >"$W/fsdp.yaml" <<'END'
distributed_type: FSDP
mixed_precision: bf16
num_processes: 8
fsdp_config:
  fsdp_sharding_strategy: FULL_SHARD
END
runs 1 "Accelerate's YAML" check "$W/fsdp.yaml" dgx-a100-80g --model llama3-8b --seq-len 8192 --global-batch 64 --json
json "has an edit that fits, in its words, and gains are different from each other" "
assert not d['predicted']['fits'] and d['nearest_that_fits']['fits'] and d['nearest_that_fits']['set']
assert all(' = ' in s for s in d['nearest_that_fits']['set']), d['nearest_that_fits']['set']
names = [e['change'] for e in d['gains']]
assert len(set(names)) == len(names), names"
printf '%s\n' '[model]' 'name = "llama3"' 'flavor = "8B"' '[training]' 'local_batch_size = 2' 'seq_len = 8192' \
    '[parallelism]' 'tensor_parallel_degree = 2' '[activation_checkpoint]' 'mode = "full"' >"$W/llama3.toml"
runs 0 "torchtitan's TOML" check "$W/llama3.toml" dgx-h100 --gpus 8 --json
json "has edits that gain, in its words" "
assert d['gains'] and all(' = ' in s for e in d['gains'] for s in e['set']), d['gains']"
sed -i 's/local_batch_size = 2/local_batch_size = 32/' "$W/llama3.toml"
runs 1 "with a larger batch" check "$W/llama3.toml" dgx-h100 --gpus 8 --json
json "smaller micro-batches fit, and the batch is then said" "
e = d['nearest_that_fits']
assert e['change'].startswith('micro-batch 32 -> ') and 'training.global_batch_size = 128' in e['set'], e"

# --- all rules that are broken ---
cat >"$W/wrong.sh" <<'END'
python pretrain_gpt.py --num-layers 30 --hidden-size 4096 --num-attention-heads 30 --kv-channels 128 --seq-length 2048 \
  --max-position-embeddings 2048 --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4 --micro-batch-size 2 \
  --global-batch-size 9 --overlap-param-gather --recompute-granularity full --bf16
END
runs 1 "a recipe that does not start" check "$W/wrong.sh" dgx-h100 --gpus 16
for rule in 'global-batch: .* 9 ' 'layers: 30 ' 'overlap-param-gather: .*distributed-optimizer' 'recompute-method: '; do
    has "^  $rule" "broken: $rule"
done
sed 's/-size 9/-size 8/; s/--overlap.*full//; s/layers 30/layers 32/' "$W/wrong.sh" >"$W/heads.sh"
runs 1 "one rule of the model" check "$W/heads.sh" dgx-h100 --gpus 16
has 'divides 30 heads' "is named, too"

# Meta's own, which runs on 64 H100: with tp the loss is of each rank's share of the vocabulary.
cat >"$W/llama3_70b.toml" <<'END'
[model]
name = "llama3"
flavor = "70B"
[training]
local_batch_size = 8
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
[activation_checkpoint]
mode = "full"
END
runs 0 "torchtitan's llama3_70b.toml" check "$W/llama3_70b.toml" dgx-h100 --gpus 64 --edits 0
has '^fits     yes: [0-9.]* GiB of [0-9.]* GiB usable on' "fits into what is usable"

# DeepSpeed's JSON in a script's heredoc; what is in quotes is not expanded, and other texts are none of ours
for quote in '' '"'; do
    cat >"$W/heredoc.sh" <<END
ZERO=2
cat <<${quote}EOF$quote > ds_config.json
{
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 2,
  "zero_optimization": {"stage": $([ -n "$quote" ] && echo 3 || echo '$ZERO')},
  "bf16": {"enabled": true}, "run": "\$(date)", "name": "\$RUN"
}
EOF
cat <<EOF > other.txt
{"zero_optimization": {"stage": 1
EOF
deepspeed --num_gpus 8 train.py --deepspeed ds_config.json
END
    runs 0 "DeepSpeed's JSON in a heredoc $quote" check "$W/heredoc.sh" dgx-a100-80g --model gpt2-1.5b --edits 0
    has "micro-batch 4 x 2, .*zero $([ -n "$quote" ] && echo 3 || echo 2)" "is read"
done
cat >"$W/trainer.sh" <<'END'
cat > ds.json <<'EOF'
{"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "zero_optimization": {"stage": 3}}
EOF
torchrun --nproc_per_node 8 train.py --model_name_or_path meta-llama/Meta-Llama-3-8B --deepspeed ds.json \
    --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --bf16 True
END
runs 1 "Trainer's arguments with such a file" check "$W/trainer.sh" dgx-h100 --edits 0
has 'micro-batch 2 x 4, .*zero 3' "both count"
! grep -q 'not beside the recipe' "$W/out"
report $? "and the file is not missed" "$(cat "$W/out")"
# --- adapters: what is asked for in ways that are not modelled is refused by name ---
lora() { # LINE...
    printf '%s\n' "per_device_train_batch_size: 1" "model_name_or_path: meta-llama/Meta-Llama-3-8B" "max_length: 1024" "bf16: true" "$@" >"$W/lora.yaml"
}
lora "use_peft: true" "lora_dropout: 0.05"
runs 0 "TRL's adapters" check "$W/lora.yaml" dgx-h100 --edits 0 --gpus 1
has 'lora_dropout.*adapters have no dropout' "what is left out is said"
refuses_lora() { # MESSAGE LINE...
    lora_message=$1
    shift
    lora "$@"
    fails 3 "lora.yaml:[0-9]*: $lora_message" "$*" check "$W/lora.yaml" dgx-h100 --gpus 1
}
refuses_lora 'adapter: "qlora" is not modelled' "adapter: qlora" "lora_r: 8"
refuses_lora 'adapter: expected lora_r' "adapter: lora"
refuses_lora 'quantization_bit: frozen weights in fewer bits (QLoRA) are not modelled' "finetuning_type: lora" "quantization_bit: 4"
refuses_lora 'use_dora: adapters with magnitudes of their own' "use_peft: true" "use_dora: true"
refuses_lora 'lora_target: "lm_head" is no module' "finetuning_type: lora" "lora_target: q_proj,lm_head"
refuses_lora 'lora_rank: expected a whole number' "finetuning_type: lora" "lora_rank: many"
lora "use_peft: false"
runs 1 "none" check "$W/lora.yaml" dgx-a100-80g --gpus 4 --edits 0 --json
json "no adapters, no key" 'assert "lora" not in str(d), d'
echo 'recipe = llama3_8b_pretrain_config(tensor_model_parallel_size=2)' >"$W/recipe.py"
fails 3 'recipe.py: Python is not run: give the command line with its overrides' "Python" check "$W/recipe.py" dgx-h100

# --- hostile input ---
fails 3 'train.sh:18: --tensor-model-parallel-size: expected a whole number' "a number that is none" \
    check "$W/train.sh" dgx-h100 --variables TP=many
sed 's/\${TP:-4}/$UNSET/' "$W/train.sh" >"$W/unset.sh"
fails 3 'unset.sh:[0-9]*: --tensor-model-parallel-size: the script does not set $UNSET: give it by --variables UNSET=' \
    "a variable that matters and is not set" check "$W/unset.sh" dgx-h100
for bad in 'A=1' '' 'x y z' 'if then fi ((('; do
    echo "$bad" >"$W/bad.sh"
    fails 3 'bad.sh: no setting says how' "no recipe: $bad" check "$W/bad.sh" dgx-h100
done
awk 'BEGIN { print "A=x"; for (i = 0; i < 60; i++) print "A=$A$A$A"; print "python t.py --num-layers $A" }' >"$W/bomb.sh"
fails 3 'longer than' "a value that grows" check "$W/bomb.sh" dgx-h100
awk 'BEGIN { for (i = 0; i < 2000; i++) printf "a: {"; }' >"$W/deep.yaml"
fails 3 'deep.yaml: ' "nested too deep" check "$W/deep.yaml" dgx-h100
printf 'a: &x [*x, *x]\n' >"$W/alias.yaml"
fails 3 'line 1: anchors and aliases' "an alias" check "$W/alias.yaml" dgx-h100
printf '[model\nx = 1\n' >"$W/bad.toml"
fails 3 'line 1: no TOML: expected \]' "a broken TOML" check "$W/bad.toml" dgx-h100
printf 'num-layers: \377\n' >"$W/bytes.yaml"
fails 3 'UTF-8' "bytes that are no text" check "$W/bytes.yaml" dgx-h100
fails 4 'none.sh' "no such file" check "$W/none.sh" dgx-h100
fails 2 'no built-in cluster' "no such cluster" check "$W/train.sh" no-cluster
printf '{"train_batch_size": 8}\n' >"$W/ds.json"
fails 2 'does not say its model: give it by --model' "no model" check "$W/ds.json" dgx-h100
finish
