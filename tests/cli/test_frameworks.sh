#!/bin/sh
# degas plan under the rules of a framework: what is found can be exported, what is fixed against a rule is refused by
# name, predictions are never refused, and the last line says what the rules cost.
. tests/cli/tap.sh
. tests/cli/frameworks.sh

for pair in $all_frameworks; do
    random_jobs "${pair%:*}" "${pair#*:}" 20 1000 5
    "$DEGAS" plan --help | grep -q "[: ]${pair%:*}[,; ]"
    report $? "${pair%:*}: the help names it" "$("$DEGAS" plan --help | grep -A6 -e --framework)"
done

job="llama3-8b dgx-h100 --gpus 16 --global-batch 64"
# refused RULE ARGUMENT...
refused() {
    rule=$1
    shift
    # shellcheck disable=SC2086
    fails 2 "cannot run it: .*(rule $rule).*--beyond-framework on" "rule $rule: $*" plan $job --framework "$@"
}
refused schedule megatron-core --schedule zb-h1
refused schedule deepspeed --schedule interleaved
refused vpp deepspeed --vpp 2
refused slices megatron-lm --slices 4
refused zero-with-pp megatron-bridge --pp 4 --zero 3
refused zero-with-pp deepspeed --pp 4 --zero 2
refused zero torchtitan --zero 1
refused offload megatron-core --offload cpu --zero 0
refused recompute fsdp --recompute selective
refused tp-with-pp deepspeed --tp 2 --pp 2
refused cp megatron-deepspeed --cp 2
refused rank-order megatron-core --tp 2 --pp 2 --rank-order pp-tp-cp-dp
refused sequence-parallel torchtitan --tp 2 --sequence-parallel off
refused stages deepspeed --pp 8 --layers 30
refused dtype terapipe --dtype bf16
refused model torchtitan --layers 10
job="mixtral-8x7b dgx-h100 --gpus 64 --global-batch 256 --dp 16 --ep 8 --pp 4 --tp 1 --seq-len 4096 --micro-batch 1"
refused overlap-ep-with-pp megatron-core --vpp 1 --overlap dp,pp,ep
refused overlap-ep-with-recompute megatron-core --vpp 2 --overlap dp,pp,ep --recompute full
job="llama3-8b dgx-h100 --gpus 16 --global-batch 64"
refused split-backward torchtitan --pp 4 --tp 2 --schedule zb-h1 --overlap dp,pp,tp
# shellcheck disable=SC2086
{
    runs 0 "beyond the framework" plan $job --framework megatron-core --schedule zb-h1 --pp 4 --tp 1 \
        --beyond-framework on --slices off -o "$W/beyond.json"
    fails 1 'pipelines run 1f1b, interleaved, not zb-h1' "and export still says what is wrong" \
        export "$W/beyond.json" --to megatron
    runs 0 "a prediction is not refused" simulate $job --framework megatron-core --schedule zb-h1 --pp 4 \
        --dp 4 --zero 3
    fails 2 'did you mean megatron-core, megatron-lm or megatron-bridge?$' "a name that several begin with" \
        plan $job --framework megatron
    runs 0 "what the rules cost" plan llama3-70b dgx-h100 --gpus 64 --global-batch 512 --framework megatron-core \
        -o "$W/cost.json"
    tail -3 "$W/out" | grep -q '^any schedule: [0-9.]* s (.*); megatron-core: [0-9.]* s, [0-9.]* % more$'
    report $? "is the last line" "$(tail -3 "$W/out")"
    json "and a member of the file" "
assert 0 < d['any_schedule']['iteration_s'] < d['predicted']['iteration_s']" "$W/cost.json"
    runs 0 "or is not asked" plan $job --framework megatron-core --beyond-framework off
    ! grep -q 'any schedule' "$W/out"
    report $? "and is no line" "$(tail -3 "$W/out")"
    runs 0 "which commands ignore" simulate "$W/cost.json"
    runs 0 "degas has no rules" plan $job --framework degas
    ! grep -q 'any schedule' "$W/out"
    report $? "and no such line"
}
finish
