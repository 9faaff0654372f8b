#!/bin/sh
# Predictions from the profiles in profiles/measured/ beside the steps that the same H100 took (docs/gpu.md).
. tests/cli/tap.sh

# within MODEL BATCH SEQ MEASURED_S PERCENT: one device, two micro-batches
within() {
    runs 0 "$1, $2 x $3" plan "$1" "profiles/measured/h100-$1.json" --gpus 1 --dp 1 --tp 1 --pp 1 --micro-batch "$2" \
        --seq-len "$3" --global-batch $((2 * $2)) --dtype bf16 --framework degas --recompute none --zero 0 -o "$W/plan"
    json "... is predicted within $5 % of $4 s" "
s = d['predicted']['iteration_s']
assert abs(s / $4 - 1) <= $5 / 100, s" "$W/plan"
}

within gpt3-1b 4 2048 0.2653 1
within gpt2-124m 16 1024 0.0716 2
within gpt2-124m 8 1024 0.0377 1
within gpt2-124m 4 768 0.0180 4
within gpt2-124m 8 384 0.0176 6
within gpt2-124m 1 512 0.00992 9

finish
