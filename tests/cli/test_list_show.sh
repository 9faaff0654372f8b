#!/bin/sh
# list and show: every promised built-in is there and can be shown.
. tests/cli/tap.sh

runs 0 "list models" list models --json
for m in gpt2-124m gpt2-1.5b gpt3-1b gpt3-13b gpt3-44b gpt3-175b megatron-1.7b megatron-3.6b \
    megatron-7.5b megatron-18.4b megatron-39.1b megatron-76.1b megatron-145.6b megatron-310.1b \
    megatron-530b megatron-1t megatron-22b llama2-7b llama2-13b llama2-70b llama3-8b llama3-70b \
    llama3-405b mixtral-8x7b qwen3-32b deepseek-v3; do
    grep -q "\"$m\"" "$W/out"
    report $? "model $m is listed"
done
runs 0 "list clusters" list clusters --json
for c in p3.16xlarge dgx-a100-40g dgx-a100-80g a100-80g-4xhdr a100-pcie-80g dgx-h100 dgx-h200 \
    dgx-b200 gb200-nvl72 dgx-b300 gb300-nvl72 h100-96g h20 h800 rtx-4090 rtx-5060-ti l40s rtx-pro-6000 \
    mi300x mi325x mi355x local-cpu; do
    grep -q "\"$c\"" "$W/out"
    report $? "cluster $c is listed"
done
runs 0 "list schedules" list schedules
for s in naive gpipe 1f1b interleaved terapipe; do
    has "^$s " "schedule $s is listed"
done
runs 0 "list models for people" list models
has '^gpt3-175b  *175 B  *96  *12288  *96' "GPT-3: 175 B parameters, 96 layers, 12288 wide"
runs 0 "list clusters for people" list clusters
has '^p3.16xlarge  *8  *V100' "p3.16xlarge has 8 V100"
fails 2 'expected models, clusters or schedules' "list of something else" list plans
fails 2 'argument is missing' "list of nothing" list

runs 0 "show a model" show gpt3-175b
has '^parameters  *175 B' "its parameters"
has '^  qkv  *1 x 2048 x 36864 x 12288' "its qkv product"
runs 0 "show a model split over 8 ranks" show gpt3-175b --tp 8
has '^  qkv  *1 x 2048 x 4608 x 12288' "an eighth of the qkv product"
fails 2 'tp 7 does not divide' "a split that does not exist" show gpt3-175b --tp 7
runs 0 "show a model with experts" show mixtral-8x7b
has '^used by a token  *12.9 B' "its active parameters"
has '^experts  *2 of 8 of width 14336 for each token$' "its experts, and no dense layers that it has not"
! grep -q '^feed-forward' "$W/out"
report $? "nor their width" "$(cat "$W/out")"
# At most 8192 tokens, unless more are asked for.
has 'ops of a sequence of 8192 tokens' "a usual length of a model that allows more"
runs 0 "show it at its longest" show mixtral-8x7b --seq-len 32768
has 'ops of a sequence of 32768 tokens' "that length"
runs 0 "every kind of layers, in its own words" show nemotron-h-56b
has '^  54 x dense  *no mixer; feed-forward 32768$' "a layer that is only a feed-forward"
runs 0 "sparse attention" show deepseek-v3.2
has '^sparse attention  *2048 keys of each query' "what its indexer chooses"

runs 0 "show a cluster" show dgx-a100-80g
has '^A100-SXM4-80GB  *1 x 8' "its devices"
runs 0 "a model as a file" show llama3-8b --json
cp "$W/out" "$W/model.json"
runs 0 "show that file" show "$W/model.json" --json
cmp -s "$W/out" "$W/model.json"
report $? "a model file is read and written unchanged"
runs 0 "a cluster as a file" show dgx-h100 --json
cp "$W/out" "$W/cluster.json"
runs 0 "show that file" show "$W/cluster.json" --json
cmp -s "$W/out" "$W/cluster.json"
report $? "a cluster file is read and written unchanged"
mkdir "$W/checkpoint"
fails 4 'checkpoint/config.json' "a folder without a model" show "$W/checkpoint"
cp tests/models/huggingface/qwen3-32b.json "$W/checkpoint/config.json"
runs 0 "a folder with a config.json" show "$W/checkpoint"
has '^parameters  *32.8 B' "its parameters"
# every other file that degas writes
"$DEGAS" schedule zb-h1 --pp 4 --microbatches 8 -o "$W/schedule.json"
runs 0 "show a schedule" show "$W/schedule.json"
has '^makespan 27, longest rank 27, bubble 11.1 %' "its bubble with forwards of 1 and backwards of 2"
has '^3 │.*0▓▓1██1' "its picture"
"$DEGAS" sweep gpt2-124m dgx-h100 --gpus 4,8 --global-batch 8 --slices off -o "$W/sweep.json" >"$W/out"
runs 0 "show a sweep" show "$W/sweep.json"
has '^ *8 |##*#* [0-9.]* [kM], [0-9]* %' "its throughput"
"$DEGAS" plan gpt2-124m dgx-h100 --gpus 4 --global-batch 8 --slices off -o "$W/plan.json" >"$W/out"
"$DEGAS" compare "$W/plan.json" "$W/plan.json" -o "$W/compare.json"
runs 0 "show a comparison" show "$W/compare.json"
has '^explanation  *The iterations take the same time.$' "its facts"
printf '{"format":"degas-run","a\\u001bb":"\\u001b[31m","steps":[1,2],"x":{"y":true,"z":null}}' >"$W/hostile.json"
runs 0 "show facts that are hostile" show "$W/hostile.json"
! grep -q "$(printf '\033')" "$W/out" && grep -q '^x.y  *true$' "$W/out" && grep -q '^steps  *2 elements$' "$W/out"
report $? "without what a terminal would obey" "$(cat -v "$W/out")"
printf '{"format":"degas-run","a":[}' >"$W/broken.json"
fails 3 'broken.json:1:' "a file that is cut" show "$W/broken.json"
fails 2 'did you mean "llama3-8b"' "an unknown name is suggested" show llama3-8c
fails 2 'no file, built-in' "an unknown name far from all" show xyzzy
# A file may say that its iteration took no time: its shares are 0 %, not what dividing by a nanosecond would give.
"$DEGAS" simulate llama3-8b dgx-h100 --gpus 8 --global-batch 64 --json 2>"$W/err" |
    sed 's/"iteration_s": *[0-9.e+-]*/"iteration_s":0/' >"$W/no-time.json"
"$DEGAS" show "$W/no-time.json" >"$W/out" 2>"$W/err"
grep -q '^of it  compute 0.0 %, dp 0.0 %' "$W/out"
report $? "shares of an iteration without time are 0 %" "$(cat "$W/out" "$W/err")"

finish
