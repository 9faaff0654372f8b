#!/bin/sh
# Writes docs/check.md: what degas check says of ten of the public recipes of tests/data/recipes.txt.
# usage: check_page.sh DEGAS RECIPES > PAGE
set -eu
degas=$1 # an absolute path
recipes=$2
LC_ALL=C.UTF-8
export LC_ALL
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT INT TERM

cat <<'END'
# Ten recipes, checked

`degas check RECIPE CLUSTER` reads a file with which another program trains, and tells whether it starts and fits, how long a step takes,
what takes time besides computing, and which edits of one setting gain most, in the words of that program; [formats.md](formats.md) has
what it reads. This page is made by `make check-page`. The recipes are public ones, as they stand in `tests/data/recipes.txt`: what says the
model and how it is split. The times are predictions of data sheets and cost model; `make validate` holds such predictions against
measurements ([validation.md](validation.md)).

Of all 130 recipes there the slowest check, of a plan of 64 stages and 512 micro-batches, takes 0.09 to 0.10 s of one core of a shared
host, the next 0.05 s, the others at most 0.03 s: every edit is first simulated as if no link were shared, which bounds its time from
below, and only edits that may be among the best are simulated to the end.

END

# recipe SOURCE ARGUMENT...: the transcript of the recipe whose line "@ NAME SOURCE..." has that text
recipe() {
    source=$1
    shift
    name=$(awk -v source="$source" '/^@ / && index($0, source) { print $2; exit }' "$recipes")
    awk -v source="$source" '/^@ / { on = index($0, source) && !done; done = done || on; next } /^> / { next } on' \
        "$recipes" >"$folder/$name"
    title=$(awk -v source="$source" '/^@ / && index($0, source) { sub(/^@ [^ ]* /, ""); print; exit }' "$recipes")
    printf '## %s\n\n```\n$ degas check %s %s\n' "$title" "$name" "$*"
    (cd "$folder" && "$degas" check "$name" "$@" 2>&1) | grep -v '^degas: note' || true
    printf '```\n\n'
}

recipe train_gpt3_175b dgx-h100 --gpus 1024
recipe train_mixtral_8x7b dgx-h100 --gpus 64
recipe sc21/run_table_1 a100-80g-4xhdr --variables MODEL_SIZE=530B --gpus 2240
recipe gpt3_7b_tp1_pp4_memory_speed dgx-a100-80g --gpus 8
recipe tr11-176B-ml dgx-a100-80g --gpus 384
recipe gpt_oss/slurm_pretrain dgx-h100 --model mixtral-8x7b --variables TP=2,PP=4,EP=4,CP=1,SP=True
recipe 'v0.2.2 torchtitan/models/llama3/train_configs/llama3_70b' dgx-h100 --gpus 64
recipe 'v0.2.2 torchtitan/models/llama3/train_configs/llama3_405b' dgx-h100 --gpus 512
recipe examples/deepspeed/ds_z2_config dgx-a100-80g --gpus 8 --model llama2-13b --seq-len 4096
recipe examples/accelerate/fsdp_config.yaml dgx-a100-80g --gpus 8 --model llama3-8b --seq-len 8192 --micro-batch 4 --global-batch 64
