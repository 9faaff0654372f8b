#!/bin/sh
# Bad input: one line on stderr that names file or flag, the documented status, no partial output.
. tests/cli/tap.sh

job="gpt3-13b dgx-a100-80g --gpus 8 --global-batch 16"

# --- flags ---
# shellcheck disable=SC2086
while IFS='|' read -r status pattern arguments; do
    [ -n "$status" ] || continue
    fails "$status" "$pattern" "plan: $arguments" plan $arguments
done <<'TABLE'
2|gpt3-175b|gpt3-175c dgx-a100-80g --global-batch 8
2|dgx-a100-80g|gpt3-175b dgx-a100-80gb --global-batch 8
2|--global-batch|gpt3-13b dgx-a100-80g
2|--global-batch|gpt3-13b dgx-a100-80g --global-batch 0
2|--global-batch|gpt3-13b dgx-a100-80g --global-batch -4
2|--global-batch|gpt3-13b dgx-a100-80g --global-batch 1e3
2|--global-batch|gpt3-13b dgx-a100-80g --global-batch 0x10
2|--global-batch|gpt3-13b dgx-a100-80g --global-batch 010
2|--global-batch|gpt3-13b dgx-a100-80g --global-batch 99999999999999999999
2|--gpus|gpt3-13b dgx-a100-80g --global-batch 8 --gpus 0
2|--gpus|gpt3-13b dgx-a100-80g --global-batch 8 --gpus 100000000000
2|--seq-len|gpt3-13b dgx-a100-80g --global-batch 8 --seq-len 0
2|--tp|gpt3-13b dgx-a100-80g --global-batch 8 --tp 0
2|--tp|gpt3-13b dgx-a100-80g --global-batch 8 --tp -2
2|tp|gpt3-13b dgx-a100-80g --global-batch 8 --tp 3
2|tp|gpt3-13b dgx-a100-80g --global-batch 8 --gpus 16 --tp 16
2|--tp 3: .*legal: 1, 2, 4, 5, 8|gpt3-13b dgx-a100-80g --global-batch 8 --gpus 8 --tp 3
2|--micro-batch 16 is more than --global-batch 8|gpt3-13b dgx-a100-80g --global-batch 8 --micro-batch 16
2|--pp 4 [*] --vpp 16 is more than the model's 40 layers|gpt3-13b dgx-a100-80g --global-batch 8 --pp 4 --vpp 16
2|the model comes first|dgx-a100-80g gpt3-13b --global-batch 8
2|did you mean "dgx-h100"|gpt3-13b H100 --global-batch 8
2|did you mean "llama2-70b" or "llama3-70b"|llama-70b dgx-h100 --global-batch 8
2|--gbs: unknown option; did you mean "--global-batch"|gpt3-13b dgx-a100-80g --gbs 8
2|did you mean "--pp"|gpt3-13b dgx-a100-80g --pipeline-model-parallel-size 8
2|--dtype|gpt3-13b dgx-a100-80g --global-batch 8 --dtype fp64
2|did you mean "bf16"|gpt3-13b dgx-a100-80g --global-batch 8 --dtype bf61
2|--memory-limit|gpt3-13b dgx-a100-80g --global-batch 8 --memory-limit 80G
2|--memory-limit|gpt3-13b dgx-a100-80g --global-batch 8 --memory-limit -1GiB
2|--memory-limit|gpt3-13b dgx-a100-80g --global-batch 8 --memory-limit 0
2|--memory-limit|gpt3-13b dgx-a100-80g --global-batch 8 --memory-limit nan
2|--slices|gpt3-13b dgx-a100-80g --global-batch 8 --slices 1024,512
2|--slices|gpt3-13b dgx-a100-80g --global-batch 8 --slices 1024,,1024
2|--slices|gpt3-13b dgx-a100-80g --global-batch 8 --slices some
2|--recompute|gpt3-13b dgx-a100-80g --global-batch 8 --recompute some
2|--rank-order: expected .*tp, cp, dp and pp, each once.*got "tp-dp-pp"|gpt3-13b dgx-a100-80g --global-batch 8 --rank-order tp-dp-pp
2|--rank-order|gpt3-13b dgx-a100-80g --global-batch 8 --rank-order tp-cp-dp-dp
2|--rank-order|gpt3-13b dgx-a100-80g --global-batch 8 --rank-order TP-CP-DP-PP
2|tp must come before cp|mixtral-8x7b dgx-h100 --global-batch 8 --gpus 16 --tp 2 --dp 2 --pp 4 --ep 4 --rank-order dp-tp-cp-pp
2|--zero|gpt3-13b dgx-a100-80g --global-batch 8 --zero 4
2|--overlap|gpt3-13b dgx-a100-80g --global-batch 8 --overlap dp,cp
2|did you mean "megatron-lm"|gpt3-13b dgx-a100-80g --global-batch 8 --framework megatron-ml
2|--schedule|gpt3-13b dgx-a100-80g --global-batch 8 --schedule 1f1b,nope
2|--optimizer-step|gpt3-13b dgx-a100-80g --global-batch 8 --optimizer-step yes
2|--layers|gpt3-13b dgx-a100-80g --global-batch 8 --layers 0
2|--vocab|gpt3-13b dgx-a100-80g --global-batch 8 --vocab -1
2|--threads|gpt3-13b dgx-a100-80g --global-batch 8 --threads 0
2|--objective|gpt3-13b dgx-a100-80g --global-batch 8 --objective speed
TABLE
fails 2 '--global-batch 7' "a batch that does not divide" \
    simulate gpt3-13b dgx-a100-80g --global-batch 7 --dp 2
fails 2 '--gpus' "devices that the degrees do not divide" \
    simulate gpt3-13b dgx-a100-80g --global-batch 8 --gpus 12 --tp 8

fails 2 '--mtp' "more MTP modules than there can be" simulate gpt3-13b dgx-a100-80g --global-batch 8 --mtp 5
fails 2 '--mtp, --vocab: .*mtp.n 1: MTP modules predict tokens, and the model has no vocabulary' "MTP modules without tokens" \
    simulate gpt3-13b dgx-a100-80g --global-batch 8 --vocab 0 --mtp 1
"$DEGAS" simulate gemma3-27b dgx-h100 --gpus 8 --global-batch 8 --seq-len 512 >/dev/null 2>"$W/err"
grep -q 'note: sliding: a window of 1024 tokens is longer than sequences of 512 (--seq-len)' "$W/err"
report $? "a window that no sequence fills is noted" "$(cat "$W/err")"

# --- files ---
"$DEGAS" show gpt2-124m --json >"$W/model.json"
"$DEGAS" show dgx-h100 --json >"$W/cluster.json"
"$DEGAS" simulate gpt2-124m dgx-h100 --global-batch 8 --tp 2 --pp 2 --json >"$W/report.json"
# shellcheck disable=SC2086
"$DEGAS" plan $job --tp 4 --pp 2 --micro-batch 1 --schedule 1f1b --slices off -o "$W/plan.json" \
    >"$W/out"

# changed NAME FILE SED PATTERN: FILE, changed by SED, is refused with status 3 as an input
changed() {
    sed "$3" "$W/$2.json" >"$W/bad.json"
    cmp -s "$W/$2.json" "$W/bad.json" && {
        report 1 "$1" "the change changes nothing: $3"
        return
    }
    case $2 in
    model) set -- "$1" "$4" plan "$W/bad.json" dgx-h100 --global-batch 8 ;;
    cluster) set -- "$1" "$4" plan gpt2-124m "$W/bad.json" --global-batch 8 ;;
    plan) set -- "$1" "$4" simulate "$W/bad.json" ;;
    report) set -- "$1" "$4" show "$W/bad.json" ;;
    esac
    name=$1
    pattern=$2
    shift 2
    fails 3 "bad.json.*$pattern" "$name" "$@"
}

changed "a misspelt key" model 's/"hidden"/"hiden"/' 'did you mean "hidden"'
changed "a negative width" model 's/"hidden": [0-9]*/"hidden": -4096/' 'hidden'
changed "no layers" model 's/"n_layers": [0-9]*/"n_layers": 0/' 'n_layers'
changed "a width beyond all memory" model 's/"hidden": [0-9]*/"hidden": 4294967296/' 'hidden'
changed "a number that is none" model 's/"hidden": [0-9]*/"hidden": 1e309/' ':[0-9]*:'
changed "a fraction of a layer" model 's/"n_layers": [0-9]*/"n_layers": 1.5/' 'n_layers'
changed "text for a number" model 's/"n_layers": [0-9]*/"n_layers": "12"/' 'n_layers'
changed "NaN" model 's/"n_layers": [0-9]*/"n_layers": NaN/' ':[0-9]*:'
changed "a key twice" model 's/"hidden"/"n_layers": 3, "hidden"/' 'n_layers'
changed "heads that do not divide" model 's/"n_kv_heads": [0-9]*/"n_kv_heads": 7/' 'n_kv_heads'
changed "a newer version" model 's/"version": 1/"version": 2/' 'version'
changed "an unknown family" model 's/"gpt"/"gtp"/' 'did you mean "gpt"'
changed "no memory" cluster 's/"memory_bytes": [0-9]*/"memory_bytes": 0/' 'memory_bytes'
changed "a negative rate" cluster \
    's/"memory_bytes_per_s": [0-9.e+]*/"memory_bytes_per_s": -1/' 'memory_bytes_per_s'
changed "an unknown key of a cluster" cluster 's/"latency_s"/"latency"/' 'latency'
changed "no pipeline" plan 's/"pp": 2/"pp": 0/' 'pp'
changed "stages for another pipeline" plan 's/"pp": 2/"pp": 4/' '.'
changed "a schedule that does not exist" plan 's/"schedule": "1f1b"/"schedule": "1f1x"/' '1f1'
changed "slices that do not add up" plan 's/"slices": \[2048\]/"slices": [1024]/' 'slices'
changed "a degree that does not divide" plan 's/"tp": 4/"tp": 3/' 'tp'
changed "a stage that is not there" plan 's/"first_layer": 20/"first_layer": 21/' 'layer'
changed "a report cut short" report 's/"breakdown_s".*/}/' '.'
changed "a report's key" report 's/"iteration_s"/"iteration"/' 'iteration'

printf '{"format":"degas-plan"' >"$W/bad.json"
fails 3 'bad.json:1:' "a file cut short" simulate "$W/bad.json"
printf '' >"$W/bad.json"
fails 3 'bad.json' "an empty file" simulate "$W/bad.json"
awk 'BEGIN { for (i = 0; i < 100000; i++) printf "["; print "" }' >"$W/bad.json"
fails 3 'bad.json' "a hundred thousand brackets" simulate "$W/bad.json"
printf '\377\376{}' >"$W/bad.json"
fails 3 'bad.json' "a file of another encoding" simulate "$W/bad.json"
printf '{"a\033[31m": 1}' >"$W/bad.json"
fails 3 'bad.json' "a terminal's escape" simulate "$W/bad.json"
grep -q "$(printf '\033')" "$W/err"
[ $? = 1 ]
report $? "does not reach the terminal" "$(cat "$W/err")"
fails 3 'model.json' "a model where a plan is expected" simulate "$W/model.json"
fails 4 'cannot read' "a file that is not there" simulate "$W/nowhere.json"
fails 4 'directory' "a folder" simulate "$W"
fails 4 'zero' "a file without end" simulate /dev/zero

# --- output files: whole or not at all ---
# shellcheck disable=SC2086
fails 4 'no-folder' "a folder that is not there" plan $job --tp 4 --pp 2 --micro-batch 1 \
    --schedule 1f1b --slices off -o "$W/no-folder/plan.json"
fails 4 'no-folder' "a trace in it" simulate "$W/plan.json" --json --trace "$W/no-folder/t.json"
fails 4 'full' "a full disk" simulate "$W/plan.json" --trace /dev/full
cp "$W/plan.json" "$W/keep.json"
fails 1 'memory' "an infeasible plan leaves the old file" \
    plan gpt3-175b dgx-a100-80g --global-batch 8 -o "$W/plan.json"
cmp -s "$W/plan.json" "$W/keep.json"
report $? "as it was"
fails 2 'svg' "a picture of unknown kind" simulate "$W/plan.json" --plot "$W/timeline.gif"
[ "$(find "$W" -name '*.gif*')" = "" ]
report $? "is not begun"
if [ "$(id -u)" = 0 ]; then
    skip "a file without permission" "root may read everything"
else
    cp "$W/plan.json" "$W/locked.json"
    chmod 0 "$W/locked.json"
    fails 4 'ermission' "a file without permission" simulate "$W/locked.json"
fi
finish
