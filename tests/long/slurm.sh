#!/bin/sh
# Slurm itself (Debian's slurm-wlm), as two nodes that are one machine: degas run under srun with PMIx and without MPI,
# and the job of a bundle, which is queued again when its end is announced, when it is preempted, and not when it is
# cancelled.
# Needs root and: apt-get install slurm-wlm munge
# shellcheck source=tests/cli/tap.sh
. tests/cli/tap.sh
DEGAS=$(readlink -f "$DEGAS")
why=
[ "$(id -u)" = 0 ] || why="Slurm's daemons need root here"
for program in slurmctld slurmd munged sbatch unshare; do
    [ -n "$why" ] || command -v $program >/dev/null 2>&1 || why="$program is not installed"
done
# A file of hosts of our own, in which both nodes have an address.
if [ -z "$why" ] && [ "${1:-}" != inside ]; then
    unshare -m true 2>/dev/null && exec unshare -m sh "$0" inside
    why="name spaces of mounts are not permitted"
fi
if [ -n "$why" ]; then
    skip "Slurm" "$why"
    finish
fi

# --- two nodes ---
HOST=$(hostname -s)
S=$W/slurm
SLURM_CONF=$S/slurm.conf
export SLURM_CONF
mkdir -p "$S/munge" "$S/state" "$S/spool/n1" "$S/spool/n2" "$S/tmp.n1" "$S/tmp.n2"
chmod 755 "$W" "$S"
chmod 700 "$S/munge"
sed '$a127.0.0.1 n1 n2' /etc/hosts >"$S/hosts"
mount --bind "$S/hosts" /etc/hosts
# Ports of this test's own, below those that the system gives away.
PORT=$((12000 + $$ % 4000 * 4))
dd if=/dev/urandom of="$S/munge/key" bs=1024 count=1 2>/dev/null
chmod 600 "$S/munge/key"
cat >"$SLURM_CONF" <<END
ClusterName=degas
SlurmctldHost=$HOST(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort=$PORT
SlurmdPort=$((PORT + 1))
AuthType=auth/munge
AuthInfo=socket=$S/munge.socket
StateSaveLocation=$S/state
SlurmdSpoolDir=$S/spool/%n
SlurmctldPidFile=$S/slurmctld.pid
SlurmdPidFile=$S/slurmd.%n.pid
SlurmctldLogFile=$S/slurmctld.log
SlurmdLogFile=$S/slurmd.%n.log
TmpFS=$S/tmp.%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
MpiDefault=none
KillWait=10
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n1 NodeHostname=$HOST NodeAddr=127.0.0.1 Port=$((PORT + 2)) CPUs=2
NodeName=n2 NodeHostname=$HOST NodeAddr=127.0.0.1 Port=$((PORT + 3)) CPUs=2
PartitionName=low Nodes=n1,n2 Default=YES PriorityTier=1 MaxTime=10 GraceTime=30
PartitionName=high Nodes=n1,n2 PriorityTier=10 PreemptMode=OFF
END
stop() {
    scancel --user=root 2>/dev/null && sleep 2
    for pid in "$S"/*.pid "$S/munge/pid"; do
        [ -s "$pid" ] && kill "$(cat "$pid")" 2>/dev/null
    done
    sleep 1
    umount /etc/hosts
    rm -rf "$W"
}
trap stop EXIT INT TERM
{
    munged --force --socket="$S/munge.socket" --key-file="$S/munge/key" --pid-file="$S/munge/pid" \
        --log-file="$S/munge/log" --seed-file="$S/munge/seed"
    slurmctld -c
    slurmd -N n1
    slurmd -N n2
} >"$S/start" 2>&1
for _ in $(seq 30); do
    [ "$(sinfo --noheader --partition=low --states=idle --format=%D 2>/dev/null)" = 2 ] && break
    sleep 1
done
if [ "$(sinfo --noheader --partition=low --states=idle --format=%D 2>/dev/null)" != 2 ]; then
    skip "Slurm" "its daemons do not start here: $(cat "$S/start" "$S"/*.log | grep -i -e error -e fatal | tail -1)"
    finish
fi
report 0 "two nodes of $(slurmctld -V)"

# --- degas run under srun ---
cat >"$W/tiny.json" <<'END'
{"format":"degas-model","version":1,"name":"tiny","family":"gpt","n_layers":4,"hidden":32,
 "n_heads":2,"vocab":256,"max_seq_len":64}
END
"$DEGAS" profile "$W/tiny.json" --device reference --quick --budget 1 --batches 1 --slices 64 --concurrency 4 \
    -o "$W/profile.json" >/dev/null 2>"$W/err" &&
    "$DEGAS" plan "$W/tiny.json" "$W/profile.json" --seq-len 64 --dtype fp32 --framework degas --recompute none \
        --zero 0 --tp 1 --gpus 4 --global-batch 8 --dp 2 --pp 2 --micro-batch 1 --schedule 1f1b -o "$W/plan.json" \
        >/dev/null 2>"$W/err"
report $? "a plan of two nodes" "$(cat "$W/err")"
R="$DEGAS run $W/plan.json --device reference --json"
# shellcheck disable=SC2086
$R --steps 3 >"$W/local"

# tasks STATUS NAME FLAGS COMMAND...: four of them, on two nodes
tasks() {
    want=$1
    name=$2
    shift 2
    timeout 120 srun --quiet --nodes=2 --ntasks=4 "$@" >"$W/out" 2>"$W/err"
    got=$?
    [ $got = "$want" ]
    report $? "$name" "status $got: $(cat "$W/err")"
}
same="assert d['losses'] == json.load(open('$W/local'))['losses']"
# shellcheck disable=SC2086
{
    tasks 0 "without MPI, by SLURM_STEP_NODELIST" --mpi=none $R --steps 3 --transport tcp
    json "... the same bits as threads" "$same"
    if [ -e "$(dirname "$DEGAS")/degas-mpi.so" ] && mpirun --version 2>/dev/null | grep -q 'Open MPI' &&
        srun --mpi=list 2>&1 | grep -q pmix; then
        # The ranks of both nodes would name what they share on their one machine alike.
        OMPI_MCA_btl=tcp,self tasks 0 "with PMIx, without mpirun" --mpi=pmix $R --steps 3 --transport mpi --deterministic
        json "... the same bits as threads" "$same"
    else
        skip "with PMIx" "Open MPI, its plugin or Slurm's for PMIx is not installed"
    fi
    tasks 6 "MPI that srun does not offer" --mpi=none $R --steps 3 --transport mpi
    [ "$(grep -c '^degas: .*srun has started the ranks without MPI.*--mpi=pmix' "$W/err")" = 1 ]
    report $? "... is said once" "$(cat "$W/err")"
    tasks 2 "a run for every task" --mpi=none $R --steps 3
}

# --- the job of a bundle ---
DEVICE=reference
STEPS=400
EVERY=50
export DEGAS DEVICE STEPS EVERY
# state KEY: of the job, as scontrol has it
state() {
    scontrol show job --oneliner "$J" | tr ' ' '\n' | sed -n "s/^$1=//p"
}
# until_ N COMMAND...: it succeeds within N seconds
until_() {
    limit=$1
    shift
    for _ in $(seq "$limit"); do
        "$@" && return 0
        sleep 1
    done
    return 1
}
is_in() {
    [ "$(state JobState)" = "$1" ]
}
has_step() {
    [ -n "$(find "$B/checkpoint" -name 'step-*' 2>/dev/null)" ]
}
# submit NAME: a bundle of its own, until it has saved something
submit() {
    B=$W/$1
    "$DEGAS" export "$W/plan.json" --to degas --bundle "$B" 2>"$W/err" && cd "$B" &&
        sbatch --test-only job.sbatch 2>>"$W/err" && J=$(sbatch --parsable job.sbatch 2>>"$W/err") &&
        cd - >/dev/null && until_ 60 has_step
    report $? "$1: the job runs, and has a checkpoint" "$(cat "$W/err" "$B"/*.log 2>/dev/null)"
}
# again NAME: the job is queued again, and goes on to its end
again() {
    until_ 60 is_in PENDING
    report $? "$1: it is queued again" "$(state JobState) $(cat "$B"/*.log)"
    grep -q 'interrupted after step [0-9]* of 400: what is done is written' "$B"/*.log
    report $? "... with a checkpoint of its last step" "$(cat "$B"/*.log)"
    # Slurm lets a job that was queued again wait for two minutes.
    scontrol update JobId="$J" StartTime=now
    until_ 120 is_in COMPLETED
    report $? "... and goes on to its end" "$(state JobState) $(cat "$B"/*.log)"
    [ "$(state Restarts)" = 1 ] && [ -e "$B/checkpoint/step-00000400" ]
    report $? "... once, from what it had saved" "$(state Restarts) $(ls "$B/checkpoint") $(cat "$B"/*.log)"
}
submit time-limit
scancel --signal=USR1 --batch "$J" # as 120 s before it
again time-limit
submit preempted
sbatch --quiet --partition=high --nodes=2 --ntasks-per-node=2 --output=/dev/null --wrap 'sleep 3'
again preempted
submit cancelled
scancel "$J"
until_ 60 is_in CANCELLED
until_ 30 grep -q 'what is done is written' "$B"/*.log
report $? "cancelled: with a checkpoint" "$(state JobState) $(cat "$B"/*.log)"
sleep 5
is_in CANCELLED && [ "$(state Restarts)" = 0 ]
report $? "... and not queued again" "$(state JobState) $(state Restarts)"
finish
