#!/bin/sh
# Predictions from the profiles in profiles/measured/ beside the steps that the same GPU took (docs/gpu.md).
. tests/cli/tap.sh

# within GPU MODEL BATCH SEQ MEASURED_S PERCENT: one device, two micro-batches
within() {
    runs 0 "$1: $2, $3 x $4" plan "$2" "profiles/measured/$1-$2.json" --gpus 1 --dp 1 --tp 1 --pp 1 --micro-batch "$3" \
        --seq-len "$4" --global-batch $((2 * $3)) --dtype bf16 --framework degas --recompute none --zero 0 -o "$W/plan"
    json "... is predicted within $6 % of $5 s" "
s = d['predicted']['iteration_s']
assert abs(s / $5 - 1) <= $6 / 100, s" "$W/plan"
}

within h100 gpt3-1b 4 2048 0.2653 1
within h100 gpt2-124m 16 1024 0.0716 2
within h100 gpt2-124m 8 1024 0.0377 1
within h100 gpt2-124m 4 768 0.0180 4
within h100 gpt2-124m 8 384 0.0176 6
within h100 gpt2-124m 1 512 0.00992 9
within h200 gpt3-1b 4 2048 0.2547 1
within h200 gpt2-124m 16 1024 0.06436 1
within h200 gpt2-124m 8 1024 0.03354 3
within h200 gpt2-124m 4 768 0.01571 5
within h200 gpt2-124m 8 384 0.01533 5
within h200 gpt2-124m 1 512 0.007341 4

finish
