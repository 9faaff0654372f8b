#!/bin/sh
# Faults on another host: a rank that is stopped before its first word, the daemon of MPI that is
# stopped.  Neither host sees the processes of the other, so that only what is said tells of them.
# Test runner: first.
# shellcheck source=tests/cli/tap.sh
. tests/cli/tap.sh
# shellcheck source=tests/cli/mpi.sh
. tests/cli/mpi.sh
# shellcheck source=tests/cli/hosts.sh
. tests/cli/hosts.sh

# The folders of an Open MPI that is killed stay.
TMPDIR=$W
export TMPDIR
make_hosts "faults on another host"
if ! unshare --pid --fork --mount-proc true 2>/dev/null; then
    skip "faults on another host" "process name spaces are not permitted"
    finish
fi

# serve [VARIABLE=VALUE...]: a host B, which runs what it is told through a pipe, with these variables
serve() {
    stop_server
    rm -f "$W/pipe"
    mkfifo "$W/pipe"
    # shellcheck disable=SC2016
    env "$@" ip netns exec $B unshare --uts --pid --fork --kill-child --mount-proc sh -c 'hostname host-2
        while :; do
            while read -r command; do (eval "$command") </dev/null & done <"$0"
        done' "$W/pipe" >/dev/null 2>&1 &
    SERVER=$!
}
cat >"$W/agent" <<END
#!/bin/sh
shift
echo "\$*" >"$W/pipe"
END
chmod +x "$W/agent"
OMPI_MCA_plm_rsh_agent=$W/agent
export OMPI_MCA_plm_rsh_agent

plan dp2 --gpus 4 --global-batch 8 --dp 2 --pp 2 --micro-batch 1 --schedule 1f1b --slices 2

# on_a ARGUMENT...: degas run of the plan on both hosts, started from A
on_a() {
    # shellcheck disable=SC2016
    ip netns exec $A unshare --uts --pid --fork --kill-child --mount-proc \
        sh -c 'hostname host-1; exec "$0" "$@"' "$DEGAS" run "$W/dp2.json" --device reference \
        --transport mpi --hosts $A_ADDRESS:2,$B_ADDRESS:2 "$@" >"$W/out" 2>"$W/err"
}

# The daemon of MPI on B, if there is one.
daemon() {
    for pid in $(pgrep -x orted); do
        [ "$(ip netns identify "$pid" 2>/dev/null)" != $B ] || echo "$pid"
    done
}

# Soon nothing is left; Open MPI's daemon takes a second or two.
left() {
    tries=0
    while [ $tries -lt 50 ] && [ -n "$(daemon)$(pgrep -f "run $W/")" ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    gone "... and no rank is left"
    [ -z "$(daemon)" ]
    report $? "... nor the daemon"
}

# --- a rank that is stopped before its first word ---
if ${CC:-cc} -O1 -shared -fPIC -o "$W/early.so" tests/cli/early.c 2>"$W/err"; then
    serve LD_PRELOAD="$(preloaded "$W/early.so")" FAULT=stop FAULT_RANK=3 FAULT_TIME="$W/time"
    beats_begin
    on_a --steps 3 --timeout 3s
    status=$?
    beats_end
    [ $status = 8 ] && [ $took -le 5 ] && [ "$(wc -l <"$W/err")" = 1 ] &&
        grep -q '^degas: rank 3 has not started within [0-9.]* s of the first (3 of 4 have)$' "$W/err"
    report $? "a rank that is stopped before its first word" \
        "status $status after $took s: $(cat "$W/err")"
    left
else
    skip "a rank that is stopped before its first word" "no C compiler"
fi

# --- the daemon of MPI is stopped while its ranks compute ---
serve NONE=
on_a --steps 100000 &
job=$!
tries=0
while [ $tries -lt 100 ] && [ -z "$(pgrep -P "$(daemon)" 2>/dev/null)" ]; do
    sleep 0.1
    tries=$((tries + 1))
done
sleep 0.5
rm -f "$W/time"
beats_begin
: >"$W/time"
kill -STOP "$(daemon)"
wait $job
status=$?
beats_end
[ $status = 8 ] && [ $took -le 6 ] && [ "$(wc -l <"$W/err")" = 1 ] &&
    grep -q '^degas: orted (process [0-9]* on host-2), which started ranks 2, 3, is stopped, for [3-9]' "$W/err"
report $? "a daemon of MPI that is stopped" "status $status after $took s: $(cat "$W/err")"
left
stop_server
sleep 0.2
served=$(pgrep -af "$W/pipe")
[ -z "$served" ]
report $? "the host itself is gone" "$served"
finish
