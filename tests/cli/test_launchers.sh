#!/bin/sh
# degas run as one of several ranks that srun, torchrun or Kubernetes have started without MPI: variables and a
# stand-in for srun; tests/long/slurm.sh has Slurm itself.
# Test runner: first.
# shellcheck source=tests/cli/tap.sh
. tests/cli/tap.sh
# shellcheck source=tests/cli/mpi.sh
. tests/cli/mpi.sh

plan dp2 --gpus 4 --global-batch 4 --dp 2 --pp 2 --micro-batch 1 --schedule 1f1b --seq-len 16
R="run $W/dp2.json --device reference"
# shellcheck source=tests/cli/launchers.sh
. tests/cli/launchers.sh

# shellcheck disable=SC2086
runs 0 "with threads" $R --steps 3 --json
cp "$W/out" "$W/local"
same='
assert d["losses"] == json.load(open("'$W/local'"))["losses"]'
# shellcheck disable=SC2086
runs 0 "processes without MPI, alone" $R --steps 3 --json --transport tcp
json "the same bits" "$same"
# shellcheck disable=SC2086
SLURM_JOB_ID=$JOB SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_JOB_NODELIST=localhost \
    runs 0 "in the shell of a Slurm job, which is no task" $R --steps 3 --json --transport tcp
json "... the same bits" "$same"

# joined NAME COMMAND...: ends well, with one product
joined() {
    name=$1
    shift
    # shellcheck disable=SC2086
    "$@" "$DEGAS" $R --steps 3 --json --transport tcp >"$W/out" 2>"$W/err"
    status=$?
    [ $status = 0 ] && [ ! -s "$W/err" ]
    report $? "$name" "status $status: $(cat "$W/err")"
    json "... the same bits, once" "$same"
}
joined "tasks of srun" "$W/srun"
# As torchrun starts them, which listens at MASTER_PORT itself.
cat >"$W/torchrun" <<'END_OF_TORCHRUN'
#!/bin/sh
unset JOB
for rank in 1 2 3; do
    RANK=$rank LOCAL_RANK=$rank "$@" &
done
RANK=0 LOCAL_RANK=0 "$@"
status=$?
wait
exit $status
END_OF_TORCHRUN
chmod +x "$W/torchrun"
WORLD_SIZE=4 MASTER_ADDR=localhost MASTER_PORT=$((10000 + JOB % 10000)) TORCHELASTIC_RUN_ID=none \
    joined "workers of torchrun" "$W/torchrun"

# refused STATUS PATTERN NAME ARGUMENT...: of four tasks one says why
refused() {
    want=$1
    pattern=$2
    name=$3
    shift 3
    "$W/srun" "$DEGAS" "$@" >"$W/out" 2>"$W/err"
    status=$?
    [ $status = "$want" ] && [ ! -s "$W/out" ] && [ "$(wc -l <"$W/err")" = 1 ] && grep -q -e "$pattern" "$W/err"
    report $? "$name" "status $status: $(cat "$W/err" "$W/out")"
}
# shellcheck disable=SC2086
{
    refused 2 'srun has started 4 copies.*--transport' "four copies of one run" $R --steps 1
    [ -n "$(why_no_mpi)" ] || refused 6 'srun has started the ranks without MPI.*--mpi=pmix.*--transport tcp' \
        "MPI without a launcher of it" $R --steps 1 --transport mpi
}
plan pp2 --gpus 2 --global-batch 8 --dp 1 --pp 2 --micro-batch 1 --schedule 1f1b
refused 1 'the plan has 2 ranks, but srun has started 4' "too many tasks" run "$W/pp2.json" --device reference \
    --transport tcp

# --- the end is announced ---
N=150
# shellcheck disable=SC2086
runs 0 "a run that nobody disturbs" $R --steps $N --json
cp "$W/out" "$W/whole"
# announced NAME COMMAND: the run is asked to end by COMMAND, given the stand-in's process
announced() {
    rm -rf "$W/ckpt"
    # shellcheck disable=SC2086
    "$W/srun" "$DEGAS" $R --steps 100000 --json --transport tcp --checkpoint "$W/ckpt" >"$W/out" 2>"$W/err" &
    srun=$!
    for _ in $(seq 100); do
        [ -e "$W/ckpt/lock" ] && break
        sleep 0.05
    done
    sleep 0.2
    $2 $srun
    wait $srun
    status=$?
    [ $status = 9 ] && [ "$(grep -c 'interrupted after step [0-9]* of 100000: what is done is written' "$W/err")" = 1 ]
    report $? "$1" "status $status: $(cat "$W/err")"
}
# One rank alone, as when Kubernetes evicts one pod.
end_the_last() {
    kill -TERM "$(pgrep -P "$1" | sort -n | tail -1)"
}
announced "SIGTERM to one rank ends the run after its step" end_the_last
announced "SIGUSR1 to all does" "kill -USR1"
# shellcheck disable=SC2086
"$W/srun" "$DEGAS" $R --steps $N --json --transport tcp --checkpoint "$W/ckpt" --resume >"$W/out" 2>"$W/err"
status=$?
if grep -q 'all --steps are done' "$W/err"; then
    skip "... which goes on from its checkpoint" "$N steps were done before the signal"
else
    report $status "... which goes on from its checkpoint" "$(cat "$W/err")"
    json "... to the same losses" "
whole = json.load(open('$W/whole'))['losses']
assert d['first_step'] > 0 and d['losses'] == whole[d['first_step']:], d['first_step']"
fi
gone "no process is left"
finish
