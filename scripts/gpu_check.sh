#!/bin/sh
# Everything that only a GPU can show, in one run: correctness of ops and of whole models, a profile, utilization,
# predictions against measurements, pipelines over shares of the device, slicing.
# usage: gpu_check.sh [--small] [--budget S] [--sections LIST] FOLDER OUT
#
# FOLDER is a build folder or a bundle (make bundle), which needs neither compiler nor network nor GLib.  OUT gets
# gpu-check.json, table.txt and what they were made from; a second run with the same OUT goes on behind the
# sections that are complete.  Every section has a share of the budget (540 s) and leaves out what does not fit.
# --small: sizes for an emulated GPU; speeds are recorded but not judged.
#
# Exit status: 0 all targets met (what was left out says why), 1 a target missed or a check failed, 2 wrong usage,
# 4 OUT cannot be written, 6 there is no GPU that can be used.
set -u
LC_ALL=C
export LC_ALL

usage() {
    echo "usage: gpu_check.sh [--small] [--budget S] [--sections LIST] FOLDER OUT" >&2
    exit 2
}

small=0 budget=540
sections="ops models profile attention utilization steps pipelines slicing"
while [ $# -gt 0 ]; do
    case "$1" in
    --small) small=1 ;;
    --budget | --sections)
        [ $# -gt 1 ] || usage
        if [ "$1" = --budget ]; then budget=$2; else sections=$(echo "$2" | tr , ' '); fi
        shift
        ;;
    -*) usage ;;
    *) break ;;
    esac
    shift
done
[ $# = 2 ] && [ -n "$1" ] && [ -n "$2" ] || usage
case "$budget" in '' | *[!0-9]*) usage ;; esac
for s in $sections; do
    case "$s" in
    ops | models | profile | attention | utilization | steps | pipelines | slicing) ;;
    *)
        echo "gpu-check: $s is not a section" >&2
        usage
        ;;
    esac
done
folder=$(cd "$1" 2>/dev/null && pwd)
[ -n "$folder" ] && [ -x "$folder/degas" ] || {
    echo "gpu-check: $1: there is no degas; build it (make), or give a bundle (make bundle)" >&2
    exit 2
}
mkdir -p "$2" 2>/dev/null && OUT=$(cd "$2" && pwd) && : >"$OUT/items.tsv" 2>/dev/null || {
    echo "gpu-check: $2: cannot be written" >&2
    exit 4
}
D=$folder/degas
ops_test=$folder/test_cuda
[ -x "$ops_test" ] || ops_test=$folder/tests/executor/test_cuda
begin=$(date +%s)
trap 'rm -f "$OUT"/t.*' EXIT
trap 'echo "gpu-check: interrupted; the same command goes on" >&2; exit 9' INT TERM

# --- items: one line each, SECTION NAME VALUE UNIT RELATION TARGET STATUS REASON ---

line() { printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$section" "$@" >>"$OUT/t.items"; }
skip() { line "$1" "" "" "" "" skip "$2"; }
broken() { line "$1" "" "" "" "" fail "$2"; }

# item NAME VALUE UNIT [RELATION TARGET]: without a target a number to know
item() {
    relation=${4:-} target=${5:-}
    status=$(awk -v v="$2" -v r="$relation" -v t="$target" 'BEGIN {
        if (v !~ /^[-+]?[0-9.]+([eE][-+]?[0-9]+)?$/) print "fail"
        else print r == "" || (r == "<=" && v + 0 <= t + 0) || (r == ">=" && v + 0 >= t + 0) ? "pass" : "fail" }')
    line "$1" "$2" "$3" "$relation" "$target" "$status" ""
}

# The same of a speed, or of a prediction of one.
speed() {
    if [ "$small" = 1 ]; then
        line "$1" "$2" "$3" "${4:-}" "${5:-}" skip "sizes of --small say nothing about speed"
    else
        item "$@"
    fi
}

# --- running degas ---

left() { echo $((deadline - $(date +%s))); }

# degas ARGUMENT...: within the section's time; its output is in t.out, else the reason in $reason
degas() {
    seconds=$(left)
    reason="no time left"
    [ "$seconds" -gt 0 ] || return 1
    timeout -k 5 "$seconds" "$D" "$@" >"$OUT/t.out" 2>"$OUT/t.err" </dev/null
    rc=$?
    case "$rc" in
    0) reason="" ;;
    124 | 137) reason="no time left: stopped after $seconds s" ;;
    *)
        reason=$(grep '^degas: ' "$OUT/t.err" | tail -1 | cut -c8-300)
        reason="status $rc: ${reason:-$(tail -1 "$OUT/t.err")}"
        ;;
    esac
    [ "$rc" = 0 ]
}

# What did not run: for want of time it was left out, else it failed.
not_done() {
    case "$reason" in
    "no time left"*) skip "$1" "$reason" ;;
    *) broken "$1" "$reason" ;;
    esac
}

# value FILE KEY: of the first such key
value() { sed -n "s/.*\"$2\": *\"\{0,1\}\([^\",}]*\).*/\1/p" "$1" | head -1; }

calc() { awk "BEGIN { printf \"%.6g\", $1 }"; }

# one_device MODEL PROFILE BATCH SEQ GLOBAL DTYPE: a plan for it in t.plan
one_device() {
    degas plan "$1" "$2" --gpus 1 --dp 1 --tp 1 --pp 1 --micro-batch "$3" --seq-len "$4" --global-batch "$5" \
        --dtype "$6" --framework degas --recompute none --zero 0 -o "$OUT/t.plan"
}

# pipeline SCHEDULE SLICES: four stages in t.plan
pipeline() {
    degas plan "$pipe_model" "$OUT/shares.json" --gpus 4 --dp 1 --tp 1 --pp 4 --micro-batch "$pipe_batch" \
        --seq-len "$pipe_seq" --global-batch "$((pipe_n * pipe_batch))" --dtype bf16 --framework degas \
        --schedule "$1" --slices "$2" --recompute none --zero 0 -o "$OUT/t.plan"
}

run_plan() { degas run "$OUT/t.plan" --device cuda --steps "$steps" --json; }

# --- sizes ---

# model NAME FAMILY LAYERS HIDDEN HEADS FFN VOCAB SEQ
model() {
    printf '{"format":"degas-model","version":1,"name":"%s","family":"%s","n_layers":%s,"hidden":%s,"n_heads":%s,
        "ffn_hidden":%s,"vocab":%s,"max_seq_len":%s}\n' "$@" >"$OUT/$1.json"
}

if [ "$small" = 1 ]; then
    model check-gpt gpt 2 16 1 16 16 16
    model check-llama llama 2 16 2 16 16 16
    model long gpt 1 16 1 16 16 16
    model one gpt 1 16 1 16 16 16
    model four gpt 4 16 1 16 16 16
    gpt2=$OUT/one.json gpt3=$OUT/one.json pipe_model=$OUT/four.json
    check_seq=16 gpt2_seq=16 gpt3_seq=16 pipe_seq=16 long_seq=16 steps=1 profile_s=1 kernel_s=1 pipe_n=4
    gpt2_batch=1 gpt3_batch=1 pipe_batch=1 shape_batches="1 2" shape_seqs="8 16" slicings="off 2"
    grid="--slices 16 --batches 1"
else
    model check-gpt gpt 4 128 2 512 512 128
    model check-llama llama 4 128 2 384 512 128
    model long gpt 1 2048 16 8192 1024 8192
    gpt2=gpt2-124m gpt3=gpt3-1b pipe_model=gpt2-124m
    check_seq=128 gpt2_seq=1024 gpt3_seq=2048 pipe_seq=1024 long_seq=8192 steps=8 profile_s=30 kernel_s=15 pipe_n=8
    gpt2_batch=16 gpt3_batch=4 pipe_batch=4 shape_batches="1 2 4 8" shape_seqs="256 384 512 768 1024"
    slicings="off 2 4 8" grid=
fi

# --- sections ---

section_ops() {
    [ -x "$ops_test" ] || {
        skip ops "test_cuda is not in $folder"
        return
    }
    only=/
    [ "$small" = 0 ] || only='embedding\|wgmma'
    for test in $("$ops_test" -l 2>/dev/null | grep "$only"); do
        seconds=$(left)
        if [ "$seconds" -le 0 ]; then
            skip "${test##*/}" "no time left"
            continue
        fi
        DEGAS_TEST_GPU=1 DEGAS_PLUGIN_DIR=${DEGAS_PLUGIN_DIR:-$plugins} timeout -k 5 "$seconds" \
            "$ops_test" --tap -p "$test" >"$OUT/t.out" 2>&1
        rc=$?
        if [ "$rc" = 0 ] && grep -q '^ok ' "$OUT/t.out" && ! grep -qi '^ok .*# skip' "$OUT/t.out"; then
            item "${test##*/}" 1 "passed" ">=" 1
        elif [ "$rc" = 0 ] && grep -qi '^ok .*# skip.*of 9\.0 only' "$OUT/t.out"; then
            skip "${test##*/}" "$(sed -n 's/^ok .*# [Ss][Kk][Ii][Pp] //p' "$OUT/t.out" | head -1)"
        else
            broken "${test##*/}" "status $rc: $(grep -i -e '^Bail out' -e '# skip' -e '^not ok' "$OUT/t.out" | head -1)"
        fi
    done
}

# check NAME MODEL FLAG...: gradients against one device's on the reference backend
check() {
    name=$1 checked=$2
    shift 2
    if degas plan "$OUT/$checked.json" local-cpu --seq-len "$check_seq" --framework degas --recompute none --zero 0 \
        --micro-batch 1 --global-batch 2 --dp 1 "$@" -o "$OUT/t.plan" &&
        degas run "$OUT/t.plan" --device cuda --steps 1 --verify --json; then
        item "$name" "$(value "$OUT/t.out" max_gradient_error)" "relative" "<=" "$(value "$OUT/t.out" tolerance)"
    else
        not_done "$name"
    fi
}

# After the ops: where attention by wgmma is right it is used from now on, and judged, else that by mma.  A
# DEGAS_CUDA_ATTENTION of the caller's decides.
choose_attention() {
    if [ -z "${DEGAS_CUDA_ATTENTION:-}" ] && grep -q '^ops	attention-by-wgmma-equals-reference	1	.*	pass	' \
        "$OUT/items.tsv" "$OUT/section-ops.tsv" 2>/dev/null; then
        DEGAS_CUDA_ATTENTION=wgmma
        export DEGAS_CUDA_ATTENTION
        echo "gpu-check: attention by wgmma equals the reference: used from now on" >&2
    fi
}

section_models() {
    for dtype in fp32 bf16; do
        check "gpt $dtype" check-gpt --dtype "$dtype" --gpus 1 --pp 1 --tp 1
        check "llama $dtype" check-llama --dtype "$dtype" --gpus 1 --pp 1 --tp 1
    done
    check "gpt bf16, 2 stages, 2 slices" check-gpt --dtype bf16 --gpus 2 --pp 2 --tp 1 --schedule terapipe --slices 2
    check "gpt bf16, 2 stages, split backward" check-gpt --dtype bf16 --gpus 2 --pp 2 --tp 1 --schedule zb-h1
    check "llama bf16, 2 ranks a layer" check-llama --dtype bf16 --gpus 2 --pp 1 --tp 2
}

# told_by_profile FILE: what a person wants to know of it
told_by_profile() {
    awk -F'[{,]' -v OFS='\t' '
    function value(key,  i, pair) {
        for (i = 1; i <= NF; i++) {
            gsub(/["} ]|\]$/, "", $i)
            split($i, pair, ":")
            if (pair[1] == key) return pair[2]
        }
        return ""
    }
    /"n_left_out"/ && /"op": "layer"/ {
        print "layer " value("pass") ", tp " value("tp") ", off between shapes", value("median_fraction"), "fraction"
    }
    /"beside"/ { print "a layer beside " value("beside") ", " value("n_ranks") " ranks", value("factor"), "times" }
    /"op": "launch"/ { print "a launch", value("median_s"), "s" }
    /"op": "copy_/ { op = value("op"); rate[op] = value("bytes") / value("median_s") * 1e-9 }
    END { for (op in rate) print op, rate[op], "GB/s" }' "$OUT/$1.json" | sort >"$OUT/t.told"
    while IFS="$(printf '\t')" read -r what number unit; do
        speed "$1: $what" "$number" "$unit"
    done <"$OUT/t.told"
}

# profile FILE MODEL SEQ FLAG...
profile() {
    file=$1 profiled=$2 seq=$3
    shift 3
    # shellcheck disable=SC2086
    if degas profile "$profiled" --device cuda --dtype bf16 --seq-len "$seq" --quick --budget "$profile_s" $grid "$@" \
        -o "$OUT/t.profile"; then
        mv "$OUT/t.profile" "$OUT/$file.json"
        told_by_profile "$file"
    else
        not_done "$file"
    fi
}

section_profile() {
    profile device "$gpt2" "$gpt2_seq"
    profile shares "$pipe_model" "$pipe_seq" --concurrency 4
}

# lacks NAME FILE: and says so
lacks() {
    [ ! -s "$OUT/$2.json" ] || return 1
    skip "$1" "no time left for the profile it needs, $2.json, or it failed: see section profile"
}

# Of the whole device, from its data sheet or its clocks.
peak() { value "$OUT/device.json" bf16; }

# time_attention WHAT TARGET: names begin with "attention PASS" WHAT, forward has the target (may be empty)
time_attention() {
    # shellcheck disable=SC2086
    if ! degas profile "$OUT/long.json" --device cuda --dtype bf16 --quick \
        --budget "$kernel_s" --batches 1 --slices "$long_seq" -o "$OUT/t.profile"; then
        case "$reason" in
        *"wgmma is of 9.0 only"*) skip "attention$1" "${reason#status * }" ;;
        *) not_done "attention$1" ;;
        esac
        return
    fi
    heads=$(value "$OUT/long.json" n_heads) hidden=$(value "$OUT/long.json" hidden)
    # Of the scores and the values 2 products of tokens x tokens / 2, of backward 5.
    for pass in forward backward; do
        seconds=$(sed -n "s/.*\"op\": \"layer_attention\", \"pass\": \"$pass\", .*\"median_s\": \([^,]*\),.*/\1/p" \
            "$OUT/t.profile" | head -1)
        products=2
        [ "$pass" = forward ] || products=5
        target=$2
        [ "$pass" = forward ] || target=
        # shellcheck disable=SC2086
        speed "attention $pass$1, head $((hidden / heads)), context $long_seq" \
            "$(calc "$products * $hidden * $long_seq * $long_seq / ${seconds:-0} / $(peak)")" "of peak" $target
    done
}

section_attention() {
    lacks attention device && return
    used=${DEGAS_CUDA_ATTENTION:-mma} other=wgmma
    [ "$used" = mma ] || other=mma
    export DEGAS_CUDA_ATTENTION
    DEGAS_CUDA_ATTENTION=$used
    time_attention "" ">= 0.5"
    DEGAS_CUDA_ATTENTION=$other
    time_attention " by $other" ""
    DEGAS_CUDA_ATTENTION=$used
}

# utilization NAME MODEL BATCH SEQ TARGET
utilization() {
    if ! one_device "$2" "$OUT/device.json" "$3" "$4" "$((2 * $3))" bf16 || ! run_plan; then
        not_done "$1"
        return
    fi
    flops=$(value "$OUT/t.plan" model_flops_per_s_per_device)
    predicted=$(value "$OUT/t.plan" iteration_s)
    measured=$(value "$OUT/t.out" median)
    speed "$1" "$(calc "$flops * $predicted / $measured / $(peak)")" "of peak" ">=" "$5"
    speed "$1: step" "$measured" "s"
}

section_utilization() {
    lacks utilization device && return
    utilization "GPT-3 1.3B" "$gpt3" "$gpt3_batch" "$gpt3_seq" 0.5
    utilization "GPT-2 124M" "$gpt2" "$gpt2_batch" "$gpt2_seq" 0.4
}

# error_of NAME TARGET: of the run in t.out
error_of() {
    error=$(value "$OUT/t.out" prediction_error_fraction)
    speed "$1" "$(calc "$error < 0 ? -($error) : $error")" "off" "<=" "$2"
}

section_steps() {
    lacks steps device && return
    for batch in $shape_batches; do
        for seq in $shape_seqs; do
            if one_device "$gpt2" "$OUT/device.json" "$batch" "$seq" "$((2 * batch))" bf16 && run_plan; then
                error_of "$batch x $seq" 0.03
            else
                not_done "$batch x $seq"
            fi
        done
    done
}

section_pipelines() {
    lacks pipelines shares && return
    for schedule in gpipe 1f1b terapipe zb-h1; do
        slices=off
        [ "$schedule" != terapipe ] || slices=4
        if pipeline "$schedule" "$slices" && run_plan; then
            error_of "4 stages, $schedule" 0.07
        else
            not_done "4 stages, $schedule"
        fi
    done
}

section_slicing() {
    lacks slicing shares && return
    if ! pipeline terapipe auto || ! run_plan; then
        not_done "the planner's slices"
        return
    fi
    ours=$(value "$OUT/t.out" median) best=
    speed "the planner's slices: step" "$ours" "s"
    for n in $slicings; do
        if ! pipeline terapipe "$n" || ! run_plan; then
            not_done "uniform slices: $n"
            continue
        fi
        measured=$(value "$OUT/t.out" median)
        speed "uniform slices: $n: step" "$measured" "s"
        best=$(calc "\"$best\" == \"\" || $measured < \"$best\" + 0 ? $measured : \"$best\" + 0")
    done
    if [ -n "$best" ]; then
        speed "the planner's slices against the best uniform" "$(calc "$ours / $best")" "times" "<=" 1.02
    fi
}

# --- is there a GPU? ---

deadline=$((begin + 60))
section=device
plugins=$folder
[ -e "$plugins/degas-cuda.so" ] || plugins=$folder/lib
degas plan "$OUT/check-gpt.json" local-cpu --seq-len "$check_seq" --framework degas --recompute none --zero 0 --gpus 1 \
    --dp 1 --tp 1 --pp 1 --micro-batch 1 --global-batch 1 --dtype bf16 -o "$OUT/t.plan" &&
    degas run "$OUT/t.plan" --device cuda --steps 1 --json || {
    rm -f "$OUT/items.tsv"
    echo "gpu-check: ${reason#status * }" >&2
    exit 6
}
# One line, all of it: the value has commas.
backend=$(sed -n 's/.*"backend": "\(.*\)".*/\1/p' "$OUT/t.out" | head -1)
echo "gpu-check: $backend" >&2

# --- all sections ---

# Shares of the budget; what one leaves is the next ones'.
share_of() {
    case "$1" in
    ops) echo 8 ;;
    models) echo 8 ;;
    profile) echo 22 ;;
    attention) echo 8 ;;
    utilization) echo 14 ;;
    steps) echo 20 ;;
    pipelines) echo 10 ;;
    slicing) echo 10 ;;
    esac
}

spent_share=0
for section in $sections; do
    spent_share=$((spent_share + $(share_of "$section")))
    if [ -s "$OUT/section-$section.tsv" ]; then
        echo "gpu-check: $section: complete before; kept" >&2
        cat "$OUT/section-$section.tsv" >>"$OUT/items.tsv"
    else
        deadline=$((begin + budget * spent_share / 100))
        : >"$OUT/t.items"
        [ "$section" = ops ] || choose_attention
        "section_$section"
        cat "$OUT/t.items" >>"$OUT/items.tsv"
        # What was left out for want of time is done by the next run.
        if grep -q 'no time left' "$OUT/t.items"; then
            echo "gpu-check: $section: not complete, $(($(date +%s) - begin)) of $budget s" >&2
        else
            mv "$OUT/t.items" "$OUT/section-$section.tsv"
            echo "gpu-check: $section: done, $(($(date +%s) - begin)) of $budget s" >&2
        fi
    fi
done

# --- the report ---

awk -F'\t' -v device="$backend" -v small="$small" '
function text(s) { gsub(/\\/, "\\\\", s); gsub(/"/, "\\\"", s); gsub(/[\001-\037]/, " ", s); return "\"" s "\"" }
function number(s) { return s ~ /^[-+]?[0-9.]+([eE][-+]?[0-9]+)?$/ ? s : "null" }
BEGIN {
    printf "{\n  \"format\": \"degas-gpu-check\",\n  \"version\": 1,\n  \"device\": %s,\n", text(device)
    printf "  \"small\": %s,\n  \"items\": [", small == 1 ? "true" : "false"
}
{
    count[$7]++
    printf "%s\n    {\"section\": %s, \"name\": %s, \"value\": %s, \"unit\": %s, ", (NR == 1 ? "" : ","), text($1),
        text($2), number($3), text($4)
    printf "\"relation\": %s, \"target\": %s, \"status\": %s, \"reason\": %s}", ($5 == "" ? "null" : text($5)),
        number($6), text($7), ($8 == "" ? "null" : text($8))
}
END {
    printf "\n  ],\n  \"passed\": %d,\n  \"failed\": %d,\n", count["pass"], count["fail"]
    printf "  \"skipped\": %d\n}\n", count["skip"]
}' "$OUT/items.tsv" >"$OUT/gpu-check.json" || exit 4

awk -F'\t' '
BEGIN { printf "%-12s %-48s %-10s %-8s %-10s %s\n", "section", "what", "value", "unit", "target", "status" }
{
    number = $3 == "" ? "" : sprintf("%.4g", $3)
    target = $6 == "" ? "" : $5 " " $6
    printf "%-12s %-48s %-10s %-8s %-10s %s\n", $1, $2, number, $4, target, $8 == "" ? $7 : $7 ": " $8
}
' "$OUT/items.tsv" >"$OUT/table.txt"
cat "$OUT/table.txt"
rm -f "$OUT/items.tsv"
! grep -q '"status": "fail"' "$OUT/gpu-check.json"
