# shellcheck shell=sh
# Random jobs under a framework's rules; sourced after tests/cli/tap.sh.

# jobs FRAMEWORK N SEED: the arguments of `degas plan` for N jobs, one on each line; the same for the same seed.
# plain_models=1: all layers of all models are alike
jobs() {
    awk -v framework="$1" -v n="$2" -v seed="$3" -v plain="${plain_models:-}" '
function pick(list,  words) {
    seed = seed * 16807 % 2147483647 # Park and Miller; the same in every awk
    return words[1 + int(seed / 2147483647 * split(list, words, "|"))]
}
BEGIN {
    for (i = 0; i < 3; i++)
        pick("")
    models = "llama3-8b|llama3-70b|qwen3-32b|deepseek-v3|llama3-8b --layers 10"
    if (framework != "torchtitan")
        models = models "|gpt3-1b|gpt3-13b|gpt2-1.5b|llama2-13b|mixtral-8x7b|deepseek-v2|gpt3-1b --layers 23"
    # Layers that are not all alike: those that Megatron-LM has flags for.
    if (!plain && framework ~ /^megatron-(core|bridge)$/)
        models = models "|gpt-oss-20b|gpt-oss-20b --layers 7|qwen3-next-80b --layers 8|nemotron3-nano|nemotron-h-56b --layers 30|glm-4.5-air --layers 9"
    for (i = 0; i < n; i++) {
        gpus = pick("1|2|4|8|8|12|16|16|24|32|48|64")
        print pick(models), pick("dgx-a100-80g|dgx-h100|dgx-b200|a100-pcie-80g"), "--gpus", gpus, \
            "--global-batch", gpus * pick("1|2|3|4|8|16"), "--seq-len", pick("512|1024|2048|4096"), \
            pick("|||||||--dtype fp16|--dtype fp32|--dtype fp8"), \
            gpus % 4 == 0 ? pick("|||--pp 2|--pp 4|--pp 4 --tp 1") : "", \
            pick("||||||--recompute full|--recompute none|--recompute selective"), \
            pick("||||||--zero 0|--zero 1|--zero 2|--zero 3"), \
            pick("||||||--vpp 2|--micro-batch 1|--schedule 1f1b|--slices auto"), \
            pick("||||||--offload auto|--offload cpu|--cp 2|--rank-order auto|--sequence-parallel off|--top 3"), \
            pick("||||||--objective memory|--objective cost --price 2|--overlap none|--overlap dp,pp,tp")
    }
}'
}

# value KEY: the first value of that key in the plan
value() {
    sed -n "s/.*\"$1\": \"\{0,1\}\([^\",}]*\).*/\1/p" "$W/plan.json" | head -1
}

# read_back FRAMEWORK TARGET JOB...: degas check reads the recipe that was exported of $W/plan.json, and the plan that it makes
# of it is exported to the same bytes and has the same prediction.  What a file of the target does not say is given.
read_back() {
    given="--framework $1" target=$2 model=$3 overlap='' version=''
    while [ $# -gt 0 ]; do
        case $1 in
        dgx-* | a100-*) cluster=$1 ;;
        --gpus | --price) given="$given $1 $2" ;;
        --layers) model="$model $1 $2" ;;
        --overlap) overlap="$1 $2" ;;
        esac
        shift
    done
    case $target in
    megatron)
        # where overlap has no flag of its own (unequal to the default though nothing is there to overlap), it is given
        file=$W/recipe.sh given="$given $overlap"
        # the export has a table of positions as long as the sequences
        case $model in gpt[23]*) given="$given --model $model" ;; esac
        ;;
    torchtitan)
        file=$W/recipe.toml version="--version 0.2" given="$given --model $model $overlap"
        # shellcheck disable=SC2086
        "$DEGAS" export "$W/plan.json" --to torchtitan $version -o "$W/exported" 2>"$W/err" || return 1
        ;;
    deepspeed)
        file=$W/recipe.json
        given="$given --model $model --seq-len $(value seq_len) --tp $(value tp) --recompute $(value recompute) $overlap"
        ;;
    esac
    cp "$W/exported" "$file"
    grep -q schedule_csv "$file" && given="$given --schedule $(value schedule)"
    # shellcheck disable=SC2086
    "$DEGAS" check "$file" "$cluster" $given --edits 0 -o "$W/again.json" >"$W/checked" 2>"$W/err" </dev/null
    # shellcheck disable=SC2086
    [ $? -le 1 ] && "$DEGAS" export "$W/again.json" --to "$target" $version 2>>"$W/err" </dev/null | cmp - "$W/exported" 2>>"$W/err" &&
        "$DEGAS" simulate "$W/plan.json" --json >"$W/planned" 2>>"$W/err" &&
        "$DEGAS" simulate "$W/again.json" --json 2>>"$W/err" | cmp - "$W/planned" 2>>"$W/err"
}

# random_jobs FRAMEWORK TARGET N SEED EVERY: reports whether every plan that is found is exported, and of EVERY of them one read
# back, and every job that is not planned is refused with a reason; without a TARGET (-) the search's own assertion is what is
# tried.  What the rules cost is not asked: to know takes two thirds of the time.
random_jobs() {
    jobs "$1" "$3" "$4" >"$W/jobs"
    n_planned=0
    : >"$W/wrong"
    while read -r job; do
        # shellcheck disable=SC2086
        "$DEGAS" plan $job --framework "$1" --beyond-framework off -o "$W/plan.json" >/dev/null 2>"$W/err" </dev/null
        status=$?
        if [ $status = 0 ]; then
            n_planned=$((n_planned + 1))
            # shellcheck disable=SC2086
            if [ "$2" = - ]; then
                continue
            elif "$DEGAS" export "$W/plan.json" --to "$2" >"$W/exported" 2>"$W/err" </dev/null; then
                [ $((n_planned % $5)) != 0 ] || read_back "$1" "$2" $job || echo "$job: read back: $(cat "$W/err")" >>"$W/wrong"
            # in a script of one's own FSDP trains every model; torchtitan has some
            elif ! { [ "$1" = fsdp ] && grep -q 'cannot run it: it has no flavour of [^;]*$' "$W/err"; }; then
                echo "$job: $(cat "$W/err")" >>"$W/wrong"
            fi
        elif [ $status -gt 2 ] || [ ! -s "$W/err" ]; then
            echo "$job: status $status: $(cat "$W/err")" >>"$W/wrong"
        fi
    done <"$W/jobs"
    [ -f "$W/wrong" ] && [ ! -s "$W/wrong" ]
    report $? "$1: every plan of $3 random jobs is exported, and read back" "$(head -5 "$W/wrong")"
    [ $n_planned -ge $(($3 / 6)) ]
    report $? "$1: and many jobs have a plan" "$n_planned of $3"
}

# shellcheck disable=SC2034 # of those who read this file
all_frameworks="megatron-core:megatron megatron-lm:megatron megatron-bridge:megatron megatron-deepspeed:deepspeed
    deepspeed:deepspeed torchtitan:torchtitan fsdp:torchtitan terapipe:-"
