#!/bin/sh
# degas run --transport mpi --hosts: two hosts that are network name spaces of this machine, each with
# a name, an address and, where the kernel can, a clock of its own; a script stands in for ssh.
# Test runner: first.
# shellcheck source=tests/cli/tap.sh
. tests/cli/tap.sh
# shellcheck source=tests/cli/mpi.sh
. tests/cli/mpi.sh

# shellcheck source=tests/cli/hosts.sh
. tests/cli/hosts.sh

make_hosts "two hosts"

# Clocks apart by 1000 s, where time has name spaces.
clock=
unshare --time --monotonic 1000 true 2>/dev/null && clock="--time --monotonic 1000"

# on HOST COMMAND...: as root there
cat >"$W/on" <<END
#!/bin/sh
# usage: on HOST COMMAND...
space=$A
clock=
[ "\$1" = $B_ADDRESS ] && space=$B && clock="$clock"
name=host-\${1##*.}
shift
exec ip netns exec \$space unshare --uts \$clock sh -c 'hostname "\$0"; eval "exec \$*"' \$name "\$@"
END
chmod +x "$W/on"
OMPI_MCA_plm_rsh_agent=$W/on
export OMPI_MCA_plm_rsh_agent

plan dp2 --gpus 4 --global-batch 8 --dp 2 --pp 2 --micro-batch 1 --schedule 1f1b --slices 2
R="run $W/dp2.json --device reference --transport mpi --hosts $A_ADDRESS:2,$B_ADDRESS:2"

# shellcheck disable=SC2086
"$W/on" $A_ADDRESS "$DEGAS" $R --steps 3 --verify --deterministic --json --trace "$W/trace" \
    >"$W/out" 2>"$W/err"
report $? "a run on two hosts" "$(cat "$W/err")"
"$DEGAS" run "$W/dp2.json" --device reference --steps 3 --verify --json >"$W/local" 2>"$W/err"
json "... has the bits of one on threads" "
local = json.load(open('$W/local'))
assert d['losses'] == local['losses'] and d['verify'] == local['verify']"
json "... says how well the clocks are aligned" "
assert 0 < d['clock_error_s'] < 0.05, d['clock_error_s']
assert 0 < d['step_s']['median'] < 60, d['step_s']"
json "... and every message arrives after it was sent" "
error = 2e6 * json.load(open('$W/out'))['clock_error_s']
sent = {}
events = [e for e in d['traceEvents'] if e['ph'] == 'X']
# both ends of every event are on one clock, that of the run, which took less than a minute
assert all(0 <= e['dur'] < 60e6 and 0 <= e['ts'] < 60e6 for e in events)
for e in events:
    if e['cat'] == 'send':
        sent[e['args']['op'], e['pid']] = e['ts']
n = 0
for e in events:
    if e['cat'] == 'receive':
        n += 1
        # the receiving op is that of the sending one, on the other of two stages
        op = e['args']['op']
        sender = [t for (o, pid), t in sent.items() if pid != e['pid'] and
                  o.split('.')[0] == op.split('.')[0] and o.split('s')[1] == op.split('s')[1]]
        assert sender and e['ts'] + e['dur'] >= min(sender) - error, (e, sender)
assert n == 16, n" "$W/trace"

# A rank on the other host is killed: 2 and 3 are there.
# shellcheck disable=SC2086
"$W/on" $A_ADDRESS "$DEGAS" $R --steps 100000 >"$W/out" 2>"$W/err" &
job=$!
tries=0
while [ $tries -lt 200 ] && ! pgrep -f "^[^ ]*degas run $W/" >"$W/pids"; do
    sleep 0.1
    tries=$((tries + 1))
done
sleep 3
victim=
for pid in $(pgrep -f "degas run $W/"); do
    rank=$(tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | sed -n 's/^OMPI_COMM_WORLD_RANK=//p')
    [ "$rank" = 3 ] && victim=$pid
done
beats_begin
: >"$W/time"
kill -KILL "$victim"
wait $job
status=$?
beats_end
[ $status = 7 ] && [ $took -le 5 ] && [ "$(wc -l <"$W/err")" = 1 ] &&
    grep -q '^degas: rank 3 (process [0-9]* on host-2) died in .* step [0-9]' "$W/err"
report $? "a rank that dies elsewhere ends the run" "status $status after $took s: $(cat "$W/err")"
sleep 1
gone "... on both hosts"
finish
