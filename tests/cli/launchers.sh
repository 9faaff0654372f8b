# shellcheck shell=sh
# Stand-ins for Slurm, for the tests of runs and bundles; sourced after tap.sh.

# Jobs that run at the same time meet at other ports.
JOB=$$
export JOB

# Four tasks with the variables of slurm-wlm 22.05, whose processes are in $W/tasks; it passes SIGUSR1 and SIGTERM
# on, and ends with the highest status.
cat >"${W:?}/srun" <<'END_OF_SRUN'
#!/bin/sh
while :; do
    case $1 in
    --*) shift ;;
    *) break ;;
    esac
done
tasks=
for rank in 0 1 2 3; do
    SLURM_JOB_ID=$JOB SLURM_STEP_ID=0 SLURM_PROCID=$rank SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=$rank \
        SLURM_JOB_NODELIST=localhost SLURM_STEP_NODELIST=localhost "$@" &
    tasks="$tasks $!"
done
echo "$tasks" >"$(dirname "$0")/tasks"
trap 'kill -USR1 $tasks' USR1
trap 'kill -TERM $tasks' TERM
worst=0
for task in $tasks; do
    while :; do
        wait "$task"
        status=$?
        kill -0 "$task" 2>/dev/null || break
    done
    [ $status -gt $worst ] && worst=$status
done
exit $worst
END_OF_SRUN
chmod +x "$W/srun"
