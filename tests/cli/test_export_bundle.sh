#!/bin/sh
# degas export --bundle: whole or not at all, nothing of a plan's names in scripts, jobs that stand-ins of Slurm run;
# tests/long/slurm.sh has Slurm itself.
# shellcheck source=tests/cli/tap.sh
. tests/cli/tap.sh
# shellcheck source=tests/cli/launchers.sh
. tests/cli/launchers.sh

# plan NAME MODEL FLAG...
plan() {
    name=$1
    model=$2
    shift 2
    "$DEGAS" plan "$model" dgx-h100 --global-batch 64 "$@" -o "$W/$name.json" >/dev/null 2>"$W/err"
    report $? "a plan of $model: $*" "$(cat "$W/err")"
}
plan megatron llama3-8b --framework megatron-core --gpus 16 --dp 2 --tp 4 --pp 2 --micro-batch 1 --schedule 1f1b
plan bridge gpt-oss-20b --framework megatron-bridge --gpus 16 --seq-len 4096 --dp 16 --tp 1 --pp 1 --ep 8 --micro-batch 1 --zero 1
plan torchtitan llama3-8b --framework torchtitan --gpus 16 --dp 4 --tp 1 --pp 4 --micro-batch 1 --schedule 1f1b
plan deepspeed llama3-8b --framework deepspeed --gpus 8 --tp 1 --pp 1 --micro-batch 1 --zero 3
plan degas gpt2-124m --framework degas --gpus 4 --dp 2 --tp 1 --pp 2 --micro-batch 1 --schedule 1f1b --dtype bf16

# parses NAME DIR NODES RANKS_PER_NODE GPUS: the scripts and the manifest are what their readers accept
parses() {
    bash -n "$2/job.sbatch" 2>"$W/err" && sh -n "$2/rank.sh" 2>>"$W/err" && sh -n "$2/env.sh" 2>>"$W/err" &&
        [ -x "$2/rank.sh" ] && [ -x "$2/job.sbatch" ]
    report $? "$1: the scripts parse" "$(cat "$W/err")"
    if command -v shellcheck >/dev/null 2>&1; then
        (cd "$2" && shellcheck -x job.sbatch rank.sh) >"$W/out" 2>&1
        report $? "$1: shellcheck finds nothing" "$(cat "$W/out")"
    else
        skip "$1: shellcheck" "shellcheck is not installed"
    fi
    if python3 -c 'import yaml' 2>/dev/null; then
        output=$(python3 -c "
import sys, yaml
d = yaml.safe_load(open(sys.argv[1]))
spec, nodes, per_node, gpus = d['spec'], $3, $4, $5
roles = spec.get('pytorchReplicaSpecs') or spec['mpiReplicaSpecs']
pods = [r for name, r in roles.items() if name != 'Launcher']
assert sum(r['replicas'] for r in pods) == nodes, roles
assert int(spec.get('nprocPerNode') or spec['slotsPerWorker']) == per_node
for r in pods:
    limits = r['template']['spec']['containers'][0].get('resources', {'limits': {}})['limits']
    assert limits.get('nvidia.com/gpu', 0) == gpus
assert len(d['metadata']['name']) <= 63" "$2/job.yaml" 2>&1)
        report $? "$1: the manifest has the plan's nodes" "$output"
    else
        skip "$1: the manifest" "python3 has no yaml"
    fi
}

# bundle TARGET PLAN NODES RANKS_PER_NODE FILE...
bundle() {
    target=$1
    source=$2
    nodes=$3
    per_node=$4
    shift 4
    runs 0 "a bundle for $target" export "$W/$source.json" --to "$target" --bundle "$W/b.$target"
    missing=
    for file in plan.json env.sh rank.sh job.sbatch job.yaml README.md "$@"; do
        [ -s "$W/b.$target/$file" ] || missing="$missing $file"
    done
    [ -z "$missing" ] && [ "$(find "$W/b.$target" -type f | wc -l)" = $((6 + $#)) ]
    report $? "... all files, no others" "missing:$missing; $(ls "$W/b.$target")"
    grep -q "^#SBATCH --nodes=$nodes\$" "$W/b.$target/job.sbatch" &&
        grep -q "^#SBATCH --ntasks-per-node=$per_node\$" "$W/b.$target/job.sbatch" &&
        grep -q "^#SBATCH --gpus-per-node=$per_node\$" "$W/b.$target/job.sbatch"
    report $? "... a task for each device of the plan" "$(grep SBATCH "$W/b.$target/job.sbatch")"
    parses "$target" "$W/b.$target" "$nodes" "$per_node" "$per_node"
    "$DEGAS" simulate "$W/$source.json" --json >"$W/report"
    runs 0 "... its plan" simulate "$W/b.$target/plan.json" --json
    cmp -s "$W/out" "$W/report"
    report $? "... is the one"
    json "... and the README has its time" "
import re
number, unit = re.search(r'^\| a step \| ([0-9.]+) (s|ms) \|', open('$W/b.$target/README.md').read(), re.M).groups()
assert abs(float(number) * {'s': 1, 'ms': 1e-3}[unit] / d['iteration_s'] - 1) < 0.01, (number, d['iteration_s'])"
}
bundle megatron megatron 2 8 megatron.args
bundle megatron-bridge bridge 2 8 overrides.args
bundle torchtitan torchtitan 2 8 plan.py
bundle deepspeed deepspeed 1 8 ds_config.json
bundle pytorch-csv degas 1 4 schedule.csv
bundle degas degas 1 4
"$DEGAS" export "$W/megatron.json" --to megatron -o "$W/flags" 2>/dev/null
cmp -s "$W/flags" "$W/b.megatron/megatron.args"
report $? "what the exporter writes is in it"
grep -q 'CUDA_DEVICE_MAX_CONNECTIONS=1' "$W/b.megatron/env.sh" &&
    ! grep -q 'CUDA_DEVICE_MAX_CONNECTIONS' "$W/b.deepspeed/env.sh"
report $? "the environment is the framework's"
runs 0 "the same plan again" export "$W/megatron.json" --to megatron --bundle "$W/again/"
diff -r "$W/b.megatron" "$W/again" >"$W/out"
report $? "... the same bytes" "$(cat "$W/out")"

# --- whole or not at all ---
fails 4 'b.megatron: exists and is not empty' "a folder that has files" \
    export "$W/megatron.json" --to megatron --bundle "$W/b.megatron"
fails 4 'flags: exists and is no folder' "a file" export "$W/megatron.json" --to megatron --bundle "$W/flags"
fails 4 'no/b: cannot be written' "a folder that is not there" export "$W/megatron.json" --to megatron --bundle "$W/no/b"
mkdir "$W/empty"
runs 0 "an empty folder" export "$W/megatron.json" --to megatron --bundle "$W/empty"
[ -e "$W/empty/README.md" ]
report $? "... is filled"
fails 1 'cannot run it' "a plan that the target cannot run" export "$W/degas.json" --to torchtitan --bundle "$W/none"
# Files may be as long as the scripts, and not as the plan.
(ulimit -f 4 && trap '' XFSZ && exec "$DEGAS" export "$W/megatron.json" --to megatron --bundle "$W/none") \
    >"$W/out" 2>"$W/err"
[ $? = 4 ] && [ "$(wc -l <"$W/err")" = 1 ]
report $? "a file that cannot be written" "$(cat "$W/err")"
[ ! -e "$W/none" ] && [ -z "$(find "$W" -name '*.part-*')" ]
report $? "... leaves nothing" "$(ls "$W")"
fails 2 'output: does not go with --bundle' "two products" \
    export "$W/megatron.json" --to megatron --bundle "$W/none" -o "$W/x"
fails 2 'gpus-per-node: needs --bundle' "nodes of no bundle" export "$W/megatron.json" --to megatron --gpus-per-node 4
"$DEGAS" schedule 1f1b --pp 2 --microbatches 2 -o "$W/s.json"
fails 2 'bundle: is for plans' "a bare schedule" export "$W/s.json" --to pytorch-csv --bundle "$W/none"
plan twelve gpt2-124m --framework degas --gpus 12 --dp 12 --tp 1 --pp 1 --micro-batch 1 --global-batch 48 --dtype bf16
fails 1 '12 devices are not whole nodes of 8 .*--gpus-per-node' "a part of a node" \
    export "$W/twelve.json" --to degas --bundle "$W/none"
runs 0 "... unless the user says how many ranks a node has" \
    export "$W/twelve.json" --to degas --bundle "$W/twelve" --gpus-per-node 6
grep -q '^#SBATCH --nodes=2$' "$W/twelve/job.sbatch"
report $? "... two nodes"

# --- names of the plan's file ---
if command -v python3 >/dev/null 2>&1; then
    python3 -c "
import json
d = json.load(open('$W/degas.json'))
d['model']['name'] = '\"; \$(touch $W/hacked) \`touch $W/hacked\` #\n- x: [}\u202e'
d['cluster']['name'] = d['cluster']['cluster']['name'] = '\$(touch $W/hacked)\n#SBATCH --nodes=9'
json.dump(d, open('$W/hostile.json', 'w'))"
    runs 0 "a model with a hostile name" export "$W/hostile.json" --to degas --bundle "$W/hostile"
    # Its letters are left, without a character that means something.
    ! grep -q 'touch[^-]' "$W/hostile/job.sbatch" "$W/hostile/rank.sh" "$W/hostile/env.sh" "$W/hostile/job.yaml" &&
        grep -q '^  name: [a-z][-a-z0-9]*$' "$W/hostile/job.yaml"
    report $? "... is in no script and no manifest" "$(grep -n touch "$W"/hostile/*.sh "$W"/hostile/job.*)"
    parses "hostile" "$W/hostile" 1 4 4
    [ "$(grep -c 'touch' "$W/hostile/README.md")" = 1 ] && head -1 "$W/hostile/README.md" | grep -q '^# `[^`]*` on `[^`]*`$'
    report $? "... and two spans of code in the README" "$(head -3 "$W/hostile/README.md")"
    DEGAS=true sh "$W/hostile/rank.sh" >"$W/out" 2>&1
    [ ! -e "$W/hacked" ]
    report $? "... and nothing ran" "$(cat "$W/out")"
else
    skip "a hostile name" "python3 is not installed"
fi

# --- run by stand-ins of Slurm ---
BIN=$W/bin
mkdir "$BIN" && mv "$W/srun" "$BIN/srun"
cat >"$BIN/scontrol" <<'END_OF_SCONTROL'
#!/bin/sh
case "$1 $2" in
"show hostnames") echo localhost ;;
"show job") echo "JobId=$JOB JobState=${STATE:-RUNNING} Reason=None" ;;
requeue*) echo "$2" >>"$(dirname "$0")/requeued" ;;
esac
END_OF_SCONTROL
cat >"$BIN/scancel" <<'END_OF_SCANCEL'
#!/bin/sh
kill -TERM $(cat "$(dirname "$0")/tasks")
END_OF_SCANCEL
# A framework that says who it is and what it was asked, and saves when it is told to end.
cat >"$BIN/python3" <<'END_OF_PYTHON3'
#!/bin/sh
trap 'exit 0' TERM
echo "$RANK/$WORLD_SIZE/$LOCAL_RANK at $MASTER_ADDR:$MASTER_PORT: $*" >"$(dirname "$0")/rank.$RANK"
[ -z "$WAITS" ] || for i in $(seq 100); do sleep 0.1; done
END_OF_PYTHON3
chmod +x "$BIN/srun" "$BIN/scontrol" "$BIN/scancel" "$BIN/python3"
PATH=$BIN:$PATH
SLURM_JOB_ID=$JOB
SLURM_JOB_NODELIST=localhost
MOE='([0]*1+[1]*59)'
DATA_ARGS="--moe-layer-freq $MOE"
export PATH SLURM_JOB_ID SLURM_JOB_NODELIST DATA_ARGS
cd "$W/b.megatron" || exit 1
bash job.sbatch >"$W/out" 2>&1
report $? "Megatron's job under stand-ins" "$(cat "$W/out")"
grep -q "^3/4/3 at localhost:2[0-9]*: -u ./pretrain_gpt.py .*--tensor-model-parallel-size 4 " "$BIN/rank.3" &&
    grep -qF -e "--moe-layer-freq $MOE --train-iters" "$BIN/rank.3" && [ ! -e "$BIN/requeued" ]
report $? "... each rank knows itself and its options, as they were written" "$(cat "$BIN/rank.3")"

# announced NAME STATE N: the batch shell gets USR1; the job ends with status 9, and is queued again N times
announced() {
    rm -f "$BIN/rank.0" "$BIN/rank.1" "$BIN/rank.2" "$BIN/rank.3" "$BIN/requeued"
    WAITS=1 STATE=$2 bash job.sbatch >"$W/out" 2>&1 &
    job=$!
    for _ in $(seq 100); do
        [ -e "$BIN/rank.0" ] && [ -e "$BIN/rank.1" ] && [ -e "$BIN/rank.2" ] && [ -e "$BIN/rank.3" ] && break
        sleep 0.05
    done
    sleep 0.2
    kill -USR1 $job
    wait $job
    status=$?
    n_queued=0
    [ ! -e "$BIN/requeued" ] || n_queued=$(wc -l <"$BIN/requeued")
    [ $status = 9 ] && [ "$n_queued" = "$3" ]
    report $? "$1" "status $status, queued again $n_queued times: $(cat "$W/out")"
}
announced "a job whose end is announced is queued again" RUNNING 1
announced "... not when it was cancelled" CANCELLED 0
cd - >/dev/null || exit 1
finish
