#!/bin/sh
# Everything that only a GPU can show, in two calls of 9 minutes: first whether it works and how fast each part is, then
# predictions beside measurements.  docs/gpu.md says what each section answers.
# usage: gpu_check.sh [--first | --second] [--small] [--budget S] [--sections LIST] FOLDER OUT
#
# FOLDER is a build folder or a bundle (make bundle), which needs neither compiler nor network nor GLib.  All results are
# in one archive, OUT/gpu-check.tar.gz, written anew after every part: gpu-check.json, table.txt, profiles, and all that
# any program printed in logs/.  A call with that archive in OUT goes on behind the parts that are done, with the
# second call's sections once the first's are.  A section has a share of the budget (540 s); a part is a process of its
# own with a limit of its own.  One that is killed at its limit hangs and has failed, unless it was given less than 20 s.
# --small: sizes for an emulated GPU; speeds are recorded but not judged.
#
# Exit status: 0 all targets met (what was left out says why), 1 a target missed or a check failed, 2 wrong usage,
# 4 OUT cannot be written, 6 there is no GPU that can be used, 9 interrupted.
set -u
LC_ALL=C
export LC_ALL

# The sections in their order, with the seconds that each may take of 540.
first="environment:20 ops:60 utilization:85 kinds:65 ceilings:45 probes:35 wgmma:110 pipeline:40 nccl:30 sanitizer:50"
second="models:40 profile:220 steps:140 pipelines:70 slicing:70"

usage() {
    echo "usage: gpu_check.sh [--first | --second] [--small] [--budget S] [--sections LIST] FOLDER OUT" >&2
    exit 2
}

small=0 budget=540 sections="" table=""
while [ $# -gt 0 ]; do
    case "$1" in
    --small) small=1 ;;
    --first) table=$first ;;
    --second) table=$second ;;
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
for section in $sections; do
    case " $first $second" in
    *" $section:"*) ;;
    *)
        echo "gpu-check: $section is not a section" >&2
        usage
        ;;
    esac
done
folder=$(cd "$1" 2>/dev/null && pwd)
[ -n "$folder" ] && [ -x "$folder/degas" ] || {
    echo "gpu-check: $1: there is no degas; build it (make), or give a bundle (make bundle)" >&2
    exit 2
}
W=$(mktemp -d)
OUT=$W
trap 'rm -rf "$W" "$OUT/gpu-check.new"' EXIT
mkdir -p "$2" 2>/dev/null && OUT=$(cd "$2" && pwd) && : >"$OUT/gpu-check.new" 2>/dev/null || {
    echo "gpu-check: $2: cannot be written" >&2
    exit 4
}
archive=$OUT/gpu-check.tar.gz
[ ! -s "$archive" ] || tar -xzf "$archive" -C "$W" || exit 4
D=$folder/degas
scripts=$(cd "$(dirname "$0")" && pwd)
tests=$folder plugins=$folder
[ -x "$tests/test_cuda" ] || tests=$folder/tests/executor
[ -e "$plugins/degas-cuda.so" ] || plugins=$folder/lib
plugins=${DEGAS_PLUGIN_DIR:-$plugins}
hang_s=${GPU_CHECK_HANG_S:-20}
begin=$(date +%s)
backend="" child=""
mkdir -p "$W/logs"
touch "$W/items.tsv" "$W/done"
# What had no time left has now.
grep -v '	skip	no time left' "$W/items.tsv" >"$W/t.items"
mv "$W/t.items" "$W/items.tsv"

# --- what is kept ---

# write_report: items.tsv as JSON and as a table
write_report() {
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
    }' "$W/items.tsv" >"$W/gpu-check.json"
    awk -F'\t' '
    BEGIN { printf "%-12s %-56s %-10s %-8s %-10s %s\n", "section", "what", "value", "unit", "target", "status" }
    {
        number = $3 == "" ? "" : sprintf("%.4g", $3)
        target = $6 == "" ? "" : $5 " " $6
        printf "%-12s %-56s %-10s %-8s %-10s %s\n", $1, $2, number, $4, target, $8 == "" ? $7 : $7 ": " $8
    }' "$W/items.tsv" >"$W/table.txt"
}

# save: the archive as of now; whoever reads it finds the old one or the new one.  tar's status 1: a file grew meanwhile.
save() {
    write_report
    tar -czf "$OUT/gpu-check.new" -C "$W" --exclude 't.*' . || [ $? = 1 ] && mv "$OUT/gpu-check.new" "$archive"
}

trap '[ -z "$child" ] || kill "$child"; keep_log; save
    echo "gpu-check: interrupted; the same command goes on" >&2; exit 9' INT TERM

# line NAME VALUE UNIT RELATION TARGET STATUS REASON: an item
line() { printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$section" "$@" >>"$W/items.tsv"; }
skip() { line "$1" "" "" "" "" skip "$2"; }
broken() { line "$1" "" "" "" "" fail "$2"; }
fact() { if [ -n "$2" ]; then line "$1" "" "" "" "" pass "$2"; else skip "$1" "not there"; fi; }

# item NAME VALUE UNIT [RELATION TARGET]: without a target a number to know
item() {
    line "$1" "$2" "$3" "${4:-}" "${5:-}" "$(awk -v v="$2" -v r="${4:-}" -v t="${5:-}" 'BEGIN {
        if (v !~ /^[-+]?[0-9.]+([eE][-+]?[0-9]+)?$/) print "fail"
        else print r == "" || (r == "<=" && v + 0 <= t + 0) || (r == ">=" && v + 0 >= t + 0) ? "pass" : "fail" }')" ""
}

# The same of a speed, or of a prediction of one.
speed() {
    if [ "$small" = 1 ]; then
        line "$1" "$2" "$3" "${4:-}" "${5:-}" skip "sizes of --small say nothing about speed"
    else
        item "$@"
    fi
}

# known SECTION NAME: the value of an item that is there
known() { awk -F'\t' -v s="$1" -v n="$2" '$1 == s && $2 == n && $3 != "" { print $3; exit }' "$W/items.tsv"; }

# --- parts ---

keep_log() {
    [ ! -e "$W/t.out" ] || cat "$W/t.command" "$W/t.err" "$W/t.out" >>"$W/logs/$section.log"
}

# run LIMIT_S COMMAND...: a process within that time and what the section has left; what it prints is in t.out and t.err.
# Else the reason is in $reason; $hung is 1 if it was killed at the end of a time in which it should have ended.
run() {
    seconds=$((deadline - $(date +%s)))
    [ "$seconds" -le "$1" ] || seconds=$1
    shift
    reason="no time left" hung=0 rc=-1
    : >"$W/t.out"
    : >"$W/t.err"
    [ "$seconds" -gt 0 ] || return 1
    echo "--- $(($(date +%s) - begin)) s, for $seconds s: $*" >"$W/t.command"
    timeout -k 5 "$seconds" "$@" >"$W/t.out" 2>"$W/t.err" </dev/null &
    child=$!
    wait "$child"
    rc=$?
    child=""
    keep_log
    echo "--- status $rc after $(($(date +%s) - begin)) s" >>"$W/logs/$section.log"
    case "$rc" in
    0) reason="" ;;
    124 | 137)
        reason="no time left: stopped after $seconds s"
        if [ "$seconds" -ge "$hang_s" ]; then
            hung=1
            reason="hung: killed after $seconds s"
        fi
        ;;
    *)
        reason=$(grep '^degas: ' "$W/t.err" | tail -1 | cut -c8-300)
        reason="status $rc: ${reason:-$(tail -1 "$W/t.err" | cut -c1-300)}"
        ;;
    esac
    [ "$rc" = 0 ]
}

# part NAME FUNCTION ARGUMENT...: unless it is done.  The function makes items, or returns 1 with the reason in $reason:
# for want of time the part is left for the next call, else it failed.
part() {
    name=$1
    shift
    ! grep -qxF "$section	$name" "$W/done" || return 0
    reason="nothing was measured"
    if ! "$@"; then
        case "$reason" in
        "no time left"*)
            skip "$name" "$reason"
            complete=0
            return
            ;;
        esac
        broken "$name" "$reason"
    fi
    echo "$section	$name" >>"$W/done"
    save
}

# value FILE KEY: of the first such key
value() { sed -n "s/.*\"$2\": *\"\{0,1\}\([^\",}]*\).*/\1/p" "$1" | head -1; }

calc() { awk "BEGIN { printf \"%.6g\", $1 }"; }

degas() { run 100 "$D" "$@"; }

# plan MODEL CLUSTER FLAG...: in t.plan
plan() { degas plan "$@" --framework degas --recompute none --zero 0 -o "$W/t.plan"; }

# one_device MODEL CLUSTER BATCH SEQ GLOBAL FLAG...
one_device() {
    model=$1 cluster=$2 batch=$3 seq=$4 global=$5
    shift 5
    plan "$model" "$cluster" --gpus 1 --dp 1 --tp 1 --pp 1 --micro-batch "$batch" --seq-len "$seq" \
        --global-batch "$global" --dtype bf16 "$@"
}

# pipeline CLUSTER SCHEDULE SLICES: four stages
pipeline() {
    plan "$pipe_model" "$1" --gpus 4 --dp 1 --tp 1 --pp 4 --micro-batch "$pipe_batch" --seq-len "$pipe_seq" \
        --global-batch "$((pipe_n * pipe_batch))" --dtype bf16 --schedule "$2" --slices "$3"
}

run_plan() { degas run "$W/t.plan" --device cuda --steps "$steps" --json "$@"; }

# --- sizes ---

# model NAME FAMILY LAYERS HIDDEN HEADS FFN VOCAB SEQ [KEYS]
model() {
    printf '{"format":"degas-model","version":1,"name":"%s","family":"%s","n_layers":%s,"hidden":%s,"n_heads":%s,
        "ffn_hidden":%s,"vocab":%s,"max_seq_len":%s%s}\n' "$1" "$2" "$3" "$4" "$5" "$6" "$7" "$8" "${9:+,$9}" >"$W/$1.json"
}

# Attention that is not plain: windows, sinks, norms of q and k; and latents (MLA).  A sink's gradient in bf16 is a sum
# that nearly cancels; it is within the tolerance for these sizes, and for others it is not, on CPUs either.
windows='"sinks":true,"qk_norm":true,"head_dim":24,"rotary_dim":12,
    "kinds":{"sliding":{"window":7},"full":{"attention_cap":5,"output_gate":"head","v_dim":20}},"layers":"sliding,full"'
latent='"head_dim":24,"mla":{"q_lora_rank":16,"kv_lora_rank":24,"qk_nope_head_dim":16,"qk_rope_head_dim":8,
    "v_head_dim":12}'

if [ "$small" = 1 ]; then
    model check-gpt gpt 4 16 1 16 16 16
    model check-llama llama 2 16 2 16 16 16
    model check-windows llama 2 64 2 128 256 16 "$windows"
    model check-latent llama 2 32 2 48 131 16 "$latent"
    model one gpt 1 16 1 16 16 16
    model four gpt 4 16 1 16 16 16
    gpt2=$W/one.json gpt3=$W/one.json pipe_model=$W/four.json
    check_seq=16 gpt2_seq=16 gpt3_seq=16 pipe_seq=16 steps=1 shape_steps=1 profile_s=1 kinds_s=1 pipe_n=4
    gpt2_batch=1 gpt3_batch=1 pipe_batch=1 shape_batches="1 2" shape_seqs="8 16" slicings="off 2"
    grid="--slices 16 --batches 1" layers=1
else
    model check-gpt gpt 4 128 2 512 512 128
    model check-llama llama 4 128 2 384 512 128
    model check-windows llama 2 64 2 128 256 128 "$windows"
    model check-latent llama 2 128 4 256 512 128 "$latent"
    gpt2=gpt2-124m gpt3=gpt3-1b pipe_model=gpt2-124m
    check_seq=128 gpt2_seq=1024 gpt3_seq=2048 pipe_seq=1024 steps=8 shape_steps=30 profile_s=45 kinds_s=15 pipe_n=8
    gpt2_batch=16 gpt3_batch=4 pipe_batch=4 shape_batches="1 2 4 8" shape_seqs="256 384 512 768 1024"
    slicings="off 2 4 8" grid="" layers=2
fi

# --- the first call ---

# Is there a GPU?  If not that is told at the end.
first_run() {
    one_device "$W/check-gpt.json" local-cpu 1 "$check_seq" 1 && degas run "$W/t.plan" --device cuda --steps 1 --json ||
        return 1
    # One line, all of it: the value has commas.
    sed -n 's/.*"backend": "\(.*\)".*/\1/p' "$W/t.out" | head -1 >"$W/device.txt"
    fact "device" "$(cat "$W/device.txt")"
}

# loaded: the libraries that the plugin finds, and those of NCCL that it would
loaded() {
    paths=${LD_LIBRARY_PATH:-}
    # shellcheck source=/dev/null disable=SC2034
    [ ! -e "$folder/environment" ] || paths=$(here=$folder && . "$folder/environment" && echo "$LD_LIBRARY_PATH")
    LD_LIBRARY_PATH=$paths ldd "$plugins/degas-cuda.so" 2>&1
    (IFS=: && for path in $paths; do ls "$path"/libnccl.so* 2>/dev/null; done)
    ldconfig -p 2>/dev/null | grep nccl
}

environment() {
    run 10 nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv,noheader || true
    fact "nvidia-smi" "$(head -1 "$W/t.out")"
    loaded >"$W/logs/libraries.txt"
    fact "cuBLASLt" "$(awk '/libcublasLt/ { print $3 == "not" ? "" : $3; exit }' "$W/logs/libraries.txt")"
    fact "NCCL" "$(sed -n 's/.*[ 	]\(\/.*libnccl.*\)/\1/p; /^\/.*libnccl/p' "$W/logs/libraries.txt" | head -1)"
    for tool in ncu compute-sanitizer python3; do fact "$tool" "$(command -v "$tool")"; done
}

section_environment() {
    part environment environment
    part "first run" first_run
}

# op_test PROGRAM PATH: of the plugin; a shape that hangs or crashes does not hide the ones behind it
op_test() {
    after="" bad=0
    while ! run "$hang_s" env DEGAS_TEST_GPU=1 "DEGAS_PLUGIN_DIR=$plugins" ${after:+"DEGAS_TEST_AFTER=$after"} \
        "$tests/$1" --tap -k -p "$2"; do
        case "$reason" in "no time left"*) [ "$bad" -gt 0 ] && return 0 || return 1 ;; esac
        bad=$((bad + 1))
        # What a test says: of each wrong tensor, or whatever a probe has seen.
        { sed -n 's/^ *# mismatch: //p' "$W/t.out" | grep . ||
            sed -n 's/^ *# //p' "$W/t.out" | grep -v -e '^shape: ' -e '^random seed' -e '^Start of' -e '^End of'; } |
            head -5 >"$W/t.mismatches"
        while read -r text; do
            broken "$name" "$text"
        done <"$W/t.mismatches"
        shape=$(sed -n 's/^ *# shape: //p' "$W/t.out" | tail -1)
        if grep -q '^not ok ' "$W/t.out" && ! grep -q '^Bail out!' "$W/t.out" && [ "$hung" = 0 ]; then
            [ -s "$W/t.mismatches" ] || broken "$name" "$reason"
            return 0
        fi
        broken "$name" "$reason${shape:+, in $shape}"
        [ -n "$shape" ] && [ "$shape" != "$after" ] && [ "$bad" -lt 4 ] || return 0
        after=$shape
    done
    why=$(sed -n 's/^ok .*# [Ss][Kk][Ii][Pp] *//p' "$W/t.out" | head -1)
    if grep -qi '^ok .*# skip' "$W/t.out"; then
        skip "$name" "${why:-skipped}"
    elif ! grep -q '^ok ' "$W/t.out"; then
        broken "$name" "no such test ran"
    elif [ "$bad" = 0 ]; then
        item "$name" 1 "passed" ">=" 1
    fi
}

# op_tests PROGRAM PATTERN [BUT]: those whose path matches the one and not the other, each a part
op_tests() {
    [ -x "$tests/$1" ] || {
        skip "$section" "$1 is not in $folder"
        return
    }
    for test in $("$tests/$1" -l 2>/dev/null | grep -e "$2" | grep -v -e "${3:-^$}"); do
        part "${test##*/}" op_test "$1" "$test"
    done
}

section_ops() {
    if [ "$small" = 1 ]; then op_tests test_cuda embedding; else op_tests test_cuda / by-wgmma; fi
}

# utilization MODEL BATCH SEQ TARGET FLAG...: of a plan for the built-in cluster
utilization() {
    target=$4
    one_device "$1" "$built_in" "$2" "$3" "$((2 * $2))" || return 1
    shift 4
    run_plan "$@" || return 1
    measured=$(value "$W/t.out" median)
    flops=$(calc "$(value "$W/t.plan" model_flops_per_s_per_device) * $(value "$W/t.plan" iteration_s)")
    # shellcheck disable=SC2086
    speed "$name" "$(calc "$flops / $measured / $(value "$W/t.plan" bf16)")" "of peak" $target
    speed "$name: step" "$measured" "s"
}

section_utilization() {
    part "GPT-3 1.3B" utilization "$gpt3" "$gpt3_batch" "$gpt3_seq" ">= 0.5"
    part "GPT-3 1.3B, no clipping" utilization "$gpt3" "$gpt3_batch" "$gpt3_seq" ">= 0.5" --clip 0
    part "GPT-2 124M" utilization "$gpt2" "$gpt2_batch" "$gpt2_seq" ">= 0.4"
}

# row FILE KEYS [TIME]: the median of the last row with these keys, or another of its times, in seconds
row() { sed -n "s/.*$2.*\"${3:-median_s}\": \([^,}]*\)[,}].*/\1/p" "$W/$1.json" | tail -1; }

# kinds FILE SUFFIX: the whole model's time for a micro-batch by kind of op, beside the budget of docs/gpu.md
kinds() {
    file=$1 suffix=$2
    degas profile "$gpt3" --device cuda --dtype bf16 --seq-len "$gpt3_seq" --batches "$gpt3_batch" --slices "$gpt3_seq" \
        --quick --budget "$kinds_s" -o "$W/$file.json" || return 1
    n=$(value "$W/$file.json" n_layers)
    while read -r what pass op times target key; do
        took=$(row "$file" "\"$op\", \"pass\": \"$pass\"" "$key")
        [ -z "$took" ] || speed "$what $pass$suffix" "$(calc "$times * $took")" "s" ${target:+"<=" "$target"}
    done <<END
products forward layer_gemm $n 0.0295
products backward layer_gemm $n 0.059
attention forward layer_attention $n 0.004
attention backward layer_attention $n 0.016
norms forward layer_norm $n $(calc "0.0012 * $memory_time")
norms backward layer_norm $n $(calc "0.0023 * $memory_time")
other forward layer_other $n
other backward layer_other $n
head forward head 1
head backward head 1
queueing forward layer $n 0.035 queue_s
queueing backward layer $n 0.077 queue_s
END
    elements=$(sed -n 's/.*"op": "optimizer", .*"n_elements": \([0-9]*\),.*/\1/p' "$W/$file.json" | tail -1)
    speed "AdamW step of a billion elements$suffix" "$(calc "1e9 / $elements * $(row "$file" '"optimizer"')")" "s" "<=" "$(calc "0.0084 * $memory_time")"
}

# The kernels of a step of few layers, by ncu.
kernels() {
    command -v ncu >/dev/null || {
        skip "$name" "ncu is not there"
        return 0
    }
    one_device "$gpt3" "$built_in" "$gpt3_batch" "$gpt3_seq" "$gpt3_batch" --layers "$layers" || return 1
    # A shell as the program: what it starts may be a script, that of a bundle.
    # Without what uploads the initial weights, and without trying the kernels of products.
    run 60 ncu --clock-control none --target-processes all --kernel-name-base function -k 'regex:^(?!convert).*' \
        --metrics gpu__time_duration.sum --print-units base --csv \
        --log-file "$W/logs/ncu.csv" sh -c 'exec "$@"' sh "$D" run "$W/t.plan" --device cuda --steps 1 \
        --deterministic --timeout 60s || {
        case "$reason" in status*) skip "$name" "ncu: $reason" && return 0 ;; esac
        return 1
    }
    # "ID", ..., "Kernel Name", ..., "gpu__time_duration.sum","ns","1,234"
    awk -F'","' '
    !column && /"Kernel Name"/ { for (i = 1; i <= NF; i++) if ($i == "Kernel Name") column = i }
    /gpu__time_duration.sum/ && column {
        gsub(/[",]/, "", $NF)
        count[$column]++
        sum[$column] += $NF
    }
    END { for (k in sum) printf "%.9f\t%d\t%s\n", sum[k] * 1e-9, count[k], k }' "$W/logs/ncu.csv" |
        sort -rn >"$W/kernels.tsv"
    head -12 "$W/kernels.tsv" >"$W/t.kernels"
    while IFS="$(printf '\t')" read -r seconds count kernel; do
        speed "$count x $(echo "$kernel" | cut -c1-80)" "$seconds" "s"
    done <"$W/t.kernels"
}

section_kinds() {
    part "by kind" kinds kinds ""
    part "kernels of a step of $layers layers" kernels
}

# What this machine's PyTorch makes of the same shapes, and ours over theirs.
ceilings() {
    run 45 python3 "$scripts/gpu_ceilings.py" --batch "$gpt3_batch" --seq "$gpt3_seq"
    [ "$rc" != 77 ] || {
        skip "$name" "$(tail -1 "$W/t.err")"
        return 0
    }
    cp "$W/t.out" "$W/ceilings.tsv"
    # WHAT PASS SHAPE SECONDS RATE UNIT
    while IFS="$(printf '\t')" read -r what pass shape took rate unit; do
        speed "$what $pass $shape" "$took" "s"
        speed "$what $pass $shape: rate" "$rate" "$unit"
    done <"$W/ceilings.tsv"
    for kind in "products forward" "products backward" "attention forward" "attention backward" \
        "AdamW step of a billion elements"; do
        # Theirs are of one layer, but AdamW.
        theirs=$(awk -F'\t' -v kind="$kind" -v n="$(value "$W/kinds.json" n_layers)" '
            index(kind, $1 " " $2) == 1 { s += $4 * ($1 == "AdamW" ? 1 : n) }
            END { if (s > 0) printf "%.6g", s }' "$W/ceilings.tsv")
        ours=$(known kinds "$kind")
        [ -z "$theirs" ] || [ -z "$ours" ] || speed "$kind: ours over theirs" "$(calc "$ours / $theirs")" "times"
    done
    [ "$rc" = 0 ]
}

section_ceilings() { part "PyTorch" ceilings; }

section_probes() { op_tests test_cuda_probe /; }

# Whether the kernels with wgmma have given right results on this device.
wgmma_is_right() {
    [ -n "$(known wgmma attention-by-wgmma-equals-reference)" ] &&
        { [ "$small" = 1 ] || [ -n "$(known wgmma attention-by-wgmma-equals-mma)" ]; }
}

kinds_by_wgmma() {
    kinds kinds-wgmma " by wgmma" || return 1
    mma=$(calc "$(known kinds "attention forward") + $(known kinds "attention backward")")
    speed "attention by mma over attention by wgmma" \
        "$(calc "$mma / ($(known wgmma "attention forward by wgmma") + $(known wgmma "attention backward by wgmma"))")" \
        "times" ">=" 1.15
}

section_wgmma() {
    if [ "$small" = 1 ]; then op_tests test_cuda wgmma-equals-reference; else op_tests test_cuda by-wgmma; fi
    wgmma_is_right || return 0
    DEGAS_CUDA_ATTENTION=wgmma
    [ "$small" = 1 ] || part "by kind" kinds_by_wgmma
    part "GPT-3 1.3B by wgmma" utilization "$gpt3" "$gpt3_batch" "$gpt3_seq" ""
    DEGAS_CUDA_ATTENTION=$attention
}

# check MODEL FLAG...: gradients against one device's on the reference backend
check() {
    checked=$1
    shift
    plan "$W/$checked.json" local-cpu --seq-len "$check_seq" --micro-batch 1 --global-batch 2 "$@" &&
        degas run "$W/t.plan" --device cuda --steps 1 --verify --json --transport "$transport" ||
        grep -q '"max_gradient_error"' "$W/t.out" || return 1
    item "$name" "$(value "$W/t.out" max_gradient_error)" "relative" "<=" "$(value "$W/t.out" tolerance)"
}

pipeline_step() {
    pipeline "$1" "$2" "$3" && run_plan || return 1
    speed "$name: step" "$(value "$W/t.out" median)" "s"
}

section_pipeline() {
    part "4 stages" check check-gpt --dtype bf16 --gpus 4 --dp 1 --pp 4 --tp 1 --schedule 1f1b
    part "4 stages of GPT-2 124M, 1f1b" pipeline_step "$built_in" 1f1b off
}

# Two processes on one device, each of which says that it is a host of its own.
section_nccl() {
    transport=nccl
    NCCL_HOSTID=gpu-check NCCL_SOCKET_IFNAME=lo NCCL_DEBUG=WARN
    export NCCL_HOSTID NCCL_SOCKET_IFNAME NCCL_DEBUG
    part "two replicas" check check-gpt --dtype bf16 --gpus 2 --dp 2 --pp 1 --tp 1
    part "two stages" check check-gpt --dtype bf16 --gpus 2 --dp 1 --pp 2 --tp 1 --schedule 1f1b
    transport=local
    unset NCCL_HOSTID NCCL_SOCKET_IFNAME NCCL_DEBUG
}

# sanitizer TOOL PATH...: errors that it finds in tests of ops
sanitizer() {
    tool=$1
    shift
    for path in $("$tests/test_cuda" -l | grep -e "$1"); do set -- "$@" -p "$path"; done
    shift
    command -v compute-sanitizer >/dev/null || {
        skip "$name" "compute-sanitizer is not there"
        return 0
    }
    run 40 env DEGAS_TEST_GPU=1 "DEGAS_PLUGIN_DIR=$plugins" compute-sanitizer --tool "$tool" --target-processes all \
        --error-exitcode 99 sh -c 'exec "$@"' sh "$tests/test_cuda" --tap -k "$@" || true
    found=$(cat "$W/t.out" "$W/t.err" | sed -n 's/^=* *ERROR SUMMARY: \([0-9]*\) error.*/\1/p' | tail -1)
    if [ -n "$found" ]; then
        item "$name" "$found" "errors" "<=" 0
    elif cat "$W/t.out" "$W/t.err" | grep -qi 'not supported'; then
        skip "$name" "compute-sanitizer does not know this device"
    elif [ "$hung" = 1 ]; then
        skip "$name" "not done after $seconds s: the tool makes everything slower"
    else
        return 1
    fi
}

section_sanitizer() {
    [ -x "$tests/test_cuda" ] || return 0
    pattern='embedding'
    [ "$small" = 1 ] || pattern='elements\|rows\|attention-equals\|embedding\|experts'
    wgmma_is_right && [ "$small" = 0 ] && pattern="$pattern\|wgmma-equals-reference"
    for tool in memcheck synccheck; do
        part "$tool" sanitizer "$tool" "$pattern"
    done
}

# --- the second call ---

section_models() {
    for dtype in fp32 bf16; do
        part "gpt $dtype" check check-gpt --dtype "$dtype" --gpus 1 --dp 1 --pp 1 --tp 1
        part "llama $dtype" check check-llama --dtype "$dtype" --gpus 1 --dp 1 --pp 1 --tp 1
    done
    part "gpt bf16, 2 stages, 2 slices" check check-gpt --dtype bf16 --gpus 2 --dp 1 --pp 2 --tp 1 --schedule terapipe --slices 2
    part "gpt bf16, 2 stages, split backward" check check-gpt --dtype bf16 --gpus 2 --dp 1 --pp 2 --tp 1 --schedule zb-h1
    for kind in windows latent; do
        part "$kind fp32" check "check-$kind" --dtype fp32 --gpus 1 --dp 1 --pp 1 --tp 1
        part "$kind bf16" check "check-$kind" --dtype bf16 --gpus 1 --dp 1 --pp 1 --tp 1
    done
    part "windows bf16, 2 stages, 2 slices" check check-windows --dtype bf16 --gpus 2 --dp 1 --pp 2 --tp 1 \
        --schedule 1f1b --slices 2
    part "latent fp32, 2 ranks a layer" check check-latent --dtype fp32 --gpus 2 --dp 1 --pp 1 --tp 2
    part "llama bf16, 2 ranks a layer" check check-llama --dtype bf16 --gpus 2 --dp 1 --pp 1 --tp 2
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
    END { for (op in rate) print op, rate[op], "GB/s" }' "$W/$1.json" | sort >"$W/t.told"
    while IFS="$(printf '\t')" read -r what number unit; do
        speed "$1: $what" "$number" "$unit"
    done <"$W/t.told"
}

# profile MODEL SEQ FLAG...: in the file of the part's name.  What is begun within the budget takes half as long again.
profile() {
    profiled=$1 seq=$2 budget_s=$(((deadline - $(date +%s)) * 2 / 3))
    shift 2
    [ "$budget_s" -le "$profile_s" ] || budget_s=$profile_s
    reason="no time left"
    [ "$budget_s" -gt 0 ] || return 1
    # shellcheck disable=SC2086
    degas profile "$profiled" --device cuda --dtype bf16 --seq-len "$seq" --quick --budget "$budget_s" $grid "$@" \
        -o "$W/$name.json" || return 1
    told_by_profile "$name"
}

section_profile() {
    part device profile "$gpt2" "$gpt2_seq"
    [ "$small" = 1 ] || part gpt3-1b profile "$gpt3" "$gpt3_seq"
    part shares profile "$pipe_model" "$pipe_seq" --concurrency 4
}

# needs FILE: a profile
needs() {
    reason="no time left for the profile that this needs, $1.json, or it failed: see section profile"
    [ -s "$W/$1.json" ]
}

# off TARGET: the prediction of the run in t.out
off() {
    speed "$name: predicted" "$(value "$W/t.out" predicted_step_s)" "s"
    speed "$name: measured" "$(value "$W/t.out" median)" "s"
    error=$(value "$W/t.out" prediction_error_fraction)
    speed "$name" "$(calc "$error < 0 ? -($error) : $error")" "off" "<=" "$1"
}

# step MODEL PROFILE BATCH SEQ
step() {
    needs "$2" && one_device "$1" "$W/$2.json" "$3" "$4" "$((2 * $3))" && run_plan || return 1
    off 0.03
}

# A step of a small shape is short, and the second of a run still makes graphs.
section_steps() {
    [ "$small" = 1 ] || part "GPT-3 1.3B" step "$gpt3" gpt3-1b "$gpt3_batch" "$gpt3_seq"
    part "GPT-2 124M" step "$gpt2" device "$gpt2_batch" "$gpt2_seq"
    usual=$steps steps=$shape_steps
    for batch in $shape_batches; do
        for seq in $shape_seqs; do
            part "$batch x $seq" step "$gpt2" device "$batch" "$seq"
        done
    done
    steps=$usual
}

stages() {
    needs shares && pipeline "$W/shares.json" "$1" "$2" && run_plan || return 1
    off 0.07
}

section_pipelines() {
    for schedule in gpipe 1f1b terapipe zb-h1; do
        slices=off
        [ "$schedule" != terapipe ] || slices=4
        part "4 stages, $schedule" stages "$schedule" "$slices"
    done
}

slices() {
    needs shares && pipeline_step "$W/shares.json" terapipe "$1"
}

section_slicing() {
    part "the planner's slices" slices auto
    for n in $slicings; do
        part "uniform slices: $n" slices "$n"
    done
    ours=$(known slicing "the planner's slices: step")
    best=$(awk -F'\t' '$1 == "slicing" && $2 ~ /^uniform/ && $3 != "" && (best == "" || $3 + 0 < best) { best = $3 + 0 }
        END { print best }' "$W/items.tsv")
    if [ -n "$ours" ] && [ -n "$best" ] && [ -z "$(known slicing "the planner's slices against the best uniform")" ]; then
        speed "the planner's slices against the best uniform" "$(calc "$ours / $best")" "times" "<=" 1.02
    fi
}

# --- all sections ---

# finished SECTION...: in this call or before
finished() {
    for s in "$@"; do grep -qx "section	${s%:*}" "$W/done" || return 1; done
}

# shellcheck disable=SC2086
[ -n "$table" ] || { table=$first && finished $first && table=$second; }
[ -z "$sections" ] || table=$(for s in $sections; do echo " $first $second" | tr ' ' '\n' | grep "^$s:"; done)

# Attention by wgmma once the first call has seen that it is right and fast, or where none has looked, unless the
# caller says which.
attention=mma
grep -q '^wgmma	' "$W/items.tsv" || attention=wgmma
for row in $table; do
    case " $first " in *" $row "*) attention=mma ;; esac
done
if wgmma_is_right && grep -q '^wgmma	attention by mma over attention by wgmma	.*	pass	' "$W/items.tsv"; then attention=wgmma; fi
attention=${DEGAS_CUDA_ATTENTION:-$attention}
DEGAS_CUDA_ATTENTION=$attention
export DEGAS_CUDA_ATTENTION
transport=local

# Always: the machine may be another than that of the call before.
section=environment
deadline=$((begin + 60))
sed -i '/^environment	/d' "$W/items.tsv" "$W/done"
mv "$W/items.tsv" "$W/t.items"
section_environment
cat "$W/t.items" >>"$W/items.tsv"
grep -q '^environment	device	' "$W/items.tsv" || {
    save
    echo "gpu-check: ${reason#status * }" >&2
    exit 6
}
backend=$(cat "$W/device.txt")
echo "gpu-check: $backend; attention by $attention" >&2
# How much longer memory takes than that of an H200, which the budget is of: 4.8 TB/s.
memory_time=1
case "$backend" in
*H100*) built_in=dgx-h100 memory_time=1.433 ;;
*A100*) built_in=dgx-a100-80g ;;
*B200*) built_in=dgx-b200 ;;
*) built_in=dgx-h200 ;;
esac

spent=0
for row in $table; do
    section=${row%:*} complete=1
    # What one leaves of its share is the next ones'.
    spent=$((spent + ${row#*:}))
    deadline=$((begin + budget * spent / 540))
    if finished "$section"; then
        echo "gpu-check: $section: complete before; kept" >&2
        continue
    fi
    [ "$section" = environment ] || "section_$section"
    [ "$complete" = 0 ] || echo "section	$section" >>"$W/done"
    save || exit 4
    [ "$complete" = 1 ] && state="done" || state="not complete"
    echo "gpu-check: $section: $state, $(($(date +%s) - begin)) of $budget s" >&2
done
cat "$W/table.txt"
! grep -q '"status": "fail"' "$W/gpu-check.json"
