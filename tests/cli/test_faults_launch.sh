#!/bin/sh
# Around the ranks: what mpirun needs, what it leaves when it is killed, and a run that was asleep.
# Test runner: first.
# shellcheck source=tests/cli/tap.sh
. tests/cli/tap.sh
# shellcheck source=tests/cli/mpi.sh
. tests/cli/mpi.sh

plan dp2 --gpus 4 --global-batch 8 --dp 2 --pp 2 --micro-batch 1 --schedule 1f1b --slices 2
R="run $W/dp2.json --device reference --steps 100000"

# --- stopped as a whole (Ctrl-Z), for longer than a rank may hang ---
# shellcheck disable=SC2086
"$DEGAS" $R --timeout 1s >"$W/out" 2>"$W/err" &
run=$!
for _ in 1 2 3; do
    sleep 0.5
    kill -STOP $run 2>/dev/null
    sleep 1.5
    kill -CONT $run 2>/dev/null
done
sleep 0.5
kill -TERM $run 2>/dev/null # an asynchronous command of a shell ignores SIGINT
wait $run
got=$?
[ $got = 9 ] && grep -q '^degas: run: interrupted after step [0-9]* of 100000' "$W/err"
report $? "threads that were stopped go on: none of them hangs" "status $got
$(cat "$W/err")"

reason=$(why_no_mpi)
if [ -n "$reason" ] || ! mpirun --version 2>/dev/null | grep -q 'Open MPI'; then
    skip "mpirun" "${reason:-no Open MPI}"
    finish
fi
R="$R --transport mpi"

# --- files may not be as long as those of Open MPI ---
for blocks in 32 8191; do # of 512 bytes
    # shellcheck disable=SC2086
    (ulimit -f $blocks && exec timeout 20 "$DEGAS" $R >"$W/out" 2>"$W/err")
    got=$?
    [ $got = 6 ] && [ "$(wc -l <"$W/err")" = 1 ] &&
        grep -q "^degas: transport mpi: files may have $((blocks * 512)) bytes here (ulimit -f); .* need 4194304$" "$W/err"
    report $? "a limit of $blocks blocks for files is named, status 6" "status $got
$(cat "$W/err")"
done
(ulimit -f 8192 && exec timeout 20 "$DEGAS" run "$W/dp2.json" --device reference --steps 1 \
    --transport mpi >"$W/out" 2>"$W/err")
report $? "... and 4 MiB are enough" "$(cat "$W/err")"

# --- mpirun is killed, and the launcher: nothing is left of them ---
# begin SECONDS: of the ranks before anything is done to them
# scratch: the folder of the run's files, as mpirun ($mpirun) was told it
begin() {
    # shellcheck disable=SC2086
    TMPDIR=$W "$DEGAS" $R >"$W/out" 2>"$W/err" &
    run=$!
    tries=0
    while [ $tries -lt 100 ] && [ "$(pgrep -c -f "^[^ ]*degas run $W/")" -lt 6 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    sleep "$1"
    mpirun=$(pgrep -P $run -x mpirun)
    scratch=$(tr '\0' '\n' <"/proc/$mpirun/environ" | sed -n 's/^OMPI_MCA_orte_tmpdir_base=//p')
}
# killed NAME: mpirun is, which is what stderr says, not that a rank died of it
killed() {
    kill -KILL "$mpirun"
    wait $run
    got=$?
    # 6: before any rank began
    { [ $got = 7 ] || [ $got = 6 ]; } && [ "$(wc -l <"$W/err")" = 1 ] && grep -q \
        '^degas: transport mpi: mpirun ended with status 137.*: it was ended by signal 9 (Killed)$' "$W/err"
    report $? "$1" "status $got
$(cat "$W/err")"
}
if [ -d /dev/shm ] && [ -w /dev/shm ]; then
    begin 0
    killed "mpirun is killed while it starts the ranks: that is said"
    begin 1
    # How long the ranks take to make them depends on what else the machine does.
    tries=0
    while [ $tries -lt 100 ] && [ -z "$(find "$scratch" -name 'vader_segment*')" ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    [ -n "$(find "$scratch" -name 'vader_segment*')" ] &&
        [ -n "$(find "$scratch" -name contact.txt)" ]
    report $? "the files of Open MPI are in one folder" "$(find "$scratch" "$W")"
    killed "mpirun is killed: that is said"
    [ ! -e "$scratch" ] && [ -z "$(find "$W" -name 'ompi.*')" ]
    report $? "... and its files are gone" "$(find "$scratch" "$W" 2>/dev/null)"
    gone "... and no process is left"

    begin 1
    kill -KILL $run
    wait $run 2>/dev/null
    tries=0
    while [ $tries -lt 40 ] && [ -e "$scratch" ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    [ ! -e "$scratch" ]
    report $? "the launcher is killed: the files are gone too" "$(find "$scratch" 2>/dev/null)"
    gone "... and no process is left"
else
    skip "what is left of mpirun" "/dev/shm cannot be written"
fi
finish
