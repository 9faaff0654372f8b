#!/bin/sh
# Random plans of each framework, exported: its own code takes them, and derives from them what the plan says; and the
# executor's gradients are those of PyTorch's autograd.  The frameworks are installed from PyPI into
# FRAMEWORKS_VENV (build/frameworks-venv); MEGATRON=DIR is a checkout of Megatron-LM, without which only its layouts
# are read, by megatron-core.  PAGE=FILE.md writes the table; N_PLANS=N is how many plans each gets (60).
. tests/cli/tap.sh
. tests/cli/frameworks.sh
# What PyTorch's compiler leaves.
TMPDIR=$W
export TMPDIR
n_plans=${N_PLANS:-60}
# Megatron's modules of Mamba, delta nets and sinks are not PyTorch's alone.
# shellcheck disable=SC2034 # of jobs
plain_models=1
venv=${FRAMEWORKS_VENV:-build/frameworks-venv}
packages="torch==2.15.0 deepspeed==0.19.8 torchtitan==0.3.0 transformers==5.23.0 megatron-core==0.16.1"

# --- installed once ---
missing() {
    skip "frameworks' own code" "$1"
    finish
}
if ! "$venv/bin/python" -c 'import torch, deepspeed, torchtitan, transformers, megatron.core' >/dev/null 2>&1; then
    python3 -m venv "$venv" >"$W/install" 2>&1 || missing "python3 makes no virtual environment (Debian: python3-venv)"
    # shellcheck disable=SC2086
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --timeout 20 --retries 1 $packages >"$W/install" 2>&1 ||
        missing "not installed from PyPI: $(tail -1 "$W/install")"
fi

# ask FRAMEWORK TARGET: plans the jobs on stdin, and exports the first $n_plans that have a plan that the target can say
ask() {
    folder=$W/$1
    mkdir "$folder"
    i=0
    while [ "$i" -lt "$n_plans" ] && read -r job; do
        # shellcheck disable=SC2086
        "$DEGAS" plan $job --framework "$1" --beyond-framework off -o "$folder/plan" >/dev/null 2>&1 </dev/null || continue
        "$DEGAS" export "$folder/plan" --to "$2" -o "$folder/$i.export" >"$folder/$i.note" 2>&1 </dev/null
        # FSDP trains every model in a script of one's own; torchtitan has some
        ! { [ "$1" = fsdp ] && grep -q 'has no flavour of' "$folder/$i.note"; } || continue
        mv "$folder/plan" "$folder/$i.json"
        echo "$job" >"$folder/$i.job"
        i=$((i + 1))
    done
}

# read_by TARGET FRAMEWORK...: has all of their exports read by the target's own code, in one process
read_by() {
    target=$1
    shift
    for row; do
        set -- "$@" "$W/$row"
        shift
    done
    "$venv/bin/python" tests/long/exports.py "$target" "$@" >/dev/null 2>"$W/$target.err"
    echo $? >"$W/$target.status"
}

# proved FRAMEWORK TARGET: reports what its own code said; a row of the table
proved() {
    status=$(cat "$W/$2.status")
    if [ "$status" = 77 ]; then
        skip "$1: its own code" "$(tail -1 "$W/$2.err")"
        return
    fi
    [ "$status" = 0 ] && [ -e "$W/$1/$((n_plans - 1)).json" ]
    report $? "$1: its own code reads $n_plans plans" "$(tail -20 "$W/$2.err")"
    for plan in "$W/$1"/*.job; do
        i=$(basename "$plan" .job)
        grep -q "^$i accepted equal$" "$W/$1/said"
        report $? "$1: accepted and equal: $(cat "$plan")" "$(grep "^$i " "$W/$1/said") $(cat "$W/$1/$i.note")"
    done
    awk -v framework="$1" -v target="$2" 'NR == 1 { version = $0; next } { n++; taken += $2 == "accepted"; equal += $3 == "equal" }
        END { printf "| %s | `%s` | %s | %d | %d | %d |\n", framework, target, version, n, taken, equal }' "$W/$1/said" >>"$W/rows"
}

# Of terapipe nothing is exported: its program takes no file.
rows="megatron-core:megatron megatron-lm:megatron megatron-bridge:megatron deepspeed:deepspeed megatron-deepspeed:deepspeed
    torchtitan:torchtitan fsdp:torchtitan degas:pytorch-csv"
{
    # Models that are too large for the random clusters come first.
    {
        echo "deepseek-v3 dgx-h100 --gpus 512 --global-batch 2048 --seq-len 4096 --pp 16 --ep 32 --micro-batch 1 --recompute full"
        echo "deepseek-v3 dgx-h100 --gpus 256 --global-batch 2048 --seq-len 4096 --pp 16 --tp 2 --ep 8 --micro-batch 1 --recompute full"
        echo "deepseek-v2 dgx-h100 --gpus 128 --global-batch 512 --seq-len 4096 --pp 8 --ep 16 --micro-batch 1 --recompute full"
        jobs megatron-core 200 3000
    } | ask megatron-core megatron
    jobs megatron-lm 300 4000 | ask megatron-lm megatron
    jobs megatron-bridge 300 5000 | ask megatron-bridge megatron
    read_by megatron megatron-core megatron-lm megatron-bridge
} &
{
    jobs deepspeed 200 3000 | ask deepspeed deepspeed
    jobs megatron-deepspeed 300 4000 | ask megatron-deepspeed deepspeed
    read_by deepspeed deepspeed megatron-deepspeed
    jobs torchtitan 300 3000 | ask torchtitan torchtitan
    jobs torchtitan 400 4000 | ask fsdp torchtitan
    read_by torchtitan torchtitan fsdp
    # Pipelines of all schedules that PyTorch runs.
    awk 'BEGIN {
        n = split("1f1b interleaved gpipe looped-bfs zb-h1 zb-h2 interleaved-zb zb-v v-half v-min dualpipev zb-auto", names, " ")
        for (i = 0; i < 90; i++) {
            pp = 2 ^ (1 + int(i / n) % 3)
            print "gpt3-1b dgx-h100 --gpus", pp, "--pp", pp, "--dp 1 --tp 1 --micro-batch 1 --recompute full --slices off --zero 0", \
                "--global-batch", pp * (2 + i % 5), "--schedule", names[1 + i % n]
        }
    }' | ask degas pytorch-csv
    read_by pytorch-csv degas
} &
wait
for pair in $rows; do
    proved "${pair%:*}" "${pair#*:}"
done

PATH="$(cd "$venv/bin" && pwd):$PATH" "${TEST_BUILD:-build/release}/tests/executor/test_torch" --tap >"$W/torch" 2>&1 &&
    grep -q '^ok 1 [^#]*$' "$W/torch"
report $? "gradients of the executor are those of PyTorch's autograd" "$(tail -20 "$W/torch")"

if [ -n "${PAGE:-}" ] && [ $failed = 0 ]; then
    {
        sed '/^| framework/,$d' docs/frameworks.md
        printf '| framework | target | read by | plans | accepted | derived values equal |\n|---|---|---|---|---|---|\n'
        cat "$W/rows"
        sed '1,/^| framework/d; /^|/d' docs/frameworks.md
    } >"$W/page" && cp "$W/page" "$PAGE"
    report $? "the table is in $PAGE"
fi
finish
