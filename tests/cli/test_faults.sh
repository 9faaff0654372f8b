#!/bin/sh
# Ranks that die, are stopped or hang; interruptions; full disks: degas run ends within seconds, with
# one message that names the rank and what it was doing, and leaves no process behind.
# Test runner: first.
# shellcheck source=tests/cli/tap.sh
. tests/cli/tap.sh
# shellcheck source=tests/cli/mpi.sh
. tests/cli/mpi.sh

plan dp2 --gpus 4 --global-batch 8 --dp 2 --pp 2 --micro-batch 1 --schedule 1f1b --slices 2
LIMIT_S=5 # promised after a death; the machine may be busy, and a stopped rank is given 3 s to speak

# --- faults from inside: a BLAS that goes wrong in the product that it is told to ---
cat >"$W/blas.c" <<'END'
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Thread_local long n_calls;

void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                 int lda, const float *b, int ldb, float beta, float *c, int ldc)
{
    const char *fault = getenv("FAULT"), *rank = getenv("OMPI_COMM_WORLD_RANK");

    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int l = 0; l < k; l++)
                sum += (double)a[ta == 111 ? i * lda + l : l * lda + i] *
                       (double)b[tb == 111 ? l * ldb + j : j * ldb + l];
            c[i * ldc + j] = alpha * (float)sum + (beta == 0 ? 0 : beta * c[i * ldc + j]);
        }
    if (fault == NULL || (rank != NULL && strcmp(rank, getenv("FAULT_RANK")) != 0) ||
        ++n_calls != atol(getenv("FAULT_CALL")))
        return;
    usleep(200000); /* so that the watcher has heard of this op */
    close(open(getenv("FAULT_TIME"), O_CREAT | O_WRONLY, 0600)); /* when it happened */
    if (strcmp(fault, "kill") == 0)
        raise(SIGKILL);
    if (strcmp(fault, "segv") == 0)
        raise(SIGSEGV);
    if (strcmp(fault, "exit") == 0)
        _exit(0);
    if (strcmp(fault, "stop") == 0)
        raise(SIGSTOP);
    if (strcmp(fault, "hang") == 0)
        for (;;)
            pause();
    if (strcmp(fault, "spin") == 0)
        for (;;)
            ;
}
END
has_blas=0
mkdir "$W/blas"
${CC:-cc} -O1 -shared -fPIC -o "$W/blas/libopenblas.so.0" "$W/blas.c" 2>"$W/err" && has_blas=1

# ends STATUS PATTERN NAME LIMIT_S ENVIRONMENT... -- ARGUMENT...: degas ends with this status, one line
# on stderr, within the limit after the fault
ends() {
    want=$1
    pattern=$2
    name=$3
    limit=$4
    shift 4
    : >"$W/environment"
    while [ "$1" != -- ]; do
        echo "$1" >>"$W/environment"
        shift
    done
    shift
    rm -f "$W/time"
    beats_begin
    # shellcheck disable=SC2046
    env FAULT_TIME="$W/time" $(cat "$W/environment") "$DEGAS" "$@" >"$W/out" 2>"$W/err" </dev/null
    got=$?
    beats_end
    [ "$got" = "$want" ] && [ "$(wc -l <"$W/err")" = 1 ] && [ ! -s "$W/out" ] &&
        grep -q -e "^degas: .*$pattern" "$W/err" && [ "$took" -le "$limit" ]
    report $? "$name" "status $got instead of $want after $took s: $pattern
$(cat "$W/err")"
    gone "... and no process is left"
}

if [ $has_blas = 1 ]; then
    # One 64-token micro-batch through two layers has some tens of products: the 100th is in step 0.
    ends 8 'rank [0-3] hangs in [FB][0-3].0s[01] of step 0 for ' "threads: a rank that hangs" $((LIMIT_S + 4)) \
        LD_LIBRARY_PATH="$W/blas" FAULT=hang FAULT_CALL=100 -- \
        run "$W/dp2.json" --steps 50 --timeout 4s
fi

reason=$(why_no_mpi)
if [ -n "$reason" ] || [ $has_blas = 0 ]; then
    skip "ranks that are processes" "${reason:-no C compiler}"
else
    for fault in kill segv exit; do
        ends 7 'rank 2 (process [0-9]* on .*) died in [FB][0-3].0s[01] of step 0' \
            "a rank that goes: $fault" $LIMIT_S \
            LD_LIBRARY_PATH="$W/blas" FAULT=$fault FAULT_RANK=2 FAULT_CALL=100 -- \
            run "$W/dp2.json" --steps 5000 --transport mpi
    done
    ends 7 'rank 0 (process [0-9]* on .*) died in [A-Za-z0-9. ]* step [0-9]' "rank 0 goes" $LIMIT_S \
        LD_LIBRARY_PATH="$W/blas" FAULT=kill FAULT_RANK=0 FAULT_CALL=300 -- \
        run "$W/dp2.json" --steps 5000 --transport mpi
    ends 8 'rank 1 (process [0-9]* on .*) is stopped in [FB][0-3].0s[01] of step 0: silent' \
        "a rank that is stopped" $((LIMIT_S + 3)) \
        LD_LIBRARY_PATH="$W/blas" FAULT=stop FAULT_RANK=1 FAULT_CALL=100 -- \
        run "$W/dp2.json" --steps 5000 --transport mpi
    ends 8 'rank 3 (process [0-9]* on .*) hangs in [FB][0-3].0s[01] of step 0 for ' \
        "a rank that hangs, asleep" $((LIMIT_S + 4)) \
        LD_LIBRARY_PATH="$W/blas" FAULT=hang FAULT_RANK=3 FAULT_CALL=100 -- \
        run "$W/dp2.json" --steps 5000 --transport mpi --timeout 4s
    ends 8 'rank 0 (process [0-9]* on .*) hangs in [FB][0-3].0s[01] of step 0 for ' \
        "a rank that hangs, busy, in deterministic collectives" $((LIMIT_S + 4)) \
        LD_LIBRARY_PATH="$W/blas" FAULT=spin FAULT_RANK=0 FAULT_CALL=100 -- \
        run "$W/dp2.json" --steps 5000 --transport mpi --timeout 4s --deterministic

    # The same for ranks that somebody else's mpirun started; mpirun adds its own words.
    LD_LIBRARY_PATH="$W/blas" FAULT=stop FAULT_RANK=2 FAULT_CALL=100 FAULT_TIME="$W/time" \
        mpirun -n 4 "$DEGAS" run "$W/dp2.json" --steps 5000 --transport mpi >"$W/out" 2>"$W/err"
    [ $? = 8 ] && [ "$(grep -c '^degas: ' "$W/err")" = 1 ] &&
        grep -q '^degas: rank 2 (process [0-9]* on .*) is stopped in ' "$W/err"
    report $? "joined: a rank that is stopped" "$(cat "$W/err")"
    sleep 1
    gone "... and no process is left"
fi

# --- before a rank has said a word to the watcher, and after all are done ---
if [ -n "$reason" ] || ! mpirun --version 2>/dev/null | grep -q 'Open MPI' ||
    ! ${CC:-cc} -O1 -shared -fPIC -o "$W/early.so" tests/cli/early.c 2>"$W/err"; then
    skip "ranks that fail before their first word" "${reason:-no Open MPI or no C compiler}"
else
    E="run $W/dp2.json --device reference --steps 3 --transport mpi"
    # shellcheck disable=SC2086
    {
        ends 8 'rank 2 (process [0-9]* on .*) is stopped in its preparations: silent for [3-9]' \
            "a rank that is stopped before its first word" $LIMIT_S \
            LD_PRELOAD="$(preloaded "$W/early.so")" FAULT=stop FAULT_RANK=2 -- $E
        ends 7 'rank 3 (process [0-9]* on .*) died in its preparations' \
            "a rank that dies before its first word" $LIMIT_S \
            LD_PRELOAD="$(preloaded "$W/early.so")" FAULT=kill FAULT_RANK=3 -- $E
        ends 7 'rank 3 .*died in its preparations' "... before anybody has seen it" $LIMIT_S \
            LD_PRELOAD="$(preloaded "$W/early.so")" FAULT=at_once FAULT_RANK=3 -- $E
        ends 7 'mpirun ended with status 137 after the last step: .*rank 1 ' \
            "a rank that dies when all are done" $LIMIT_S \
            LD_PRELOAD="$(preloaded "$W/early.so")" FAULT=end FAULT_RANK=1 -- $E
    }
    # Whoever waits for a message has no more time in the preparations than later.
    mpicc -O1 -D_GNU_SOURCE -DWITH_MPI -shared -fPIC -o "$W/fire.so" tests/torture/fire.c
    # shellcheck disable=SC2086
    ends 8 'rank [0-3] (process [0-9]* on .*) .* in its preparations for [3-9]' \
        "a message of the preparations is lost" $((LIMIT_S + 3)) \
        LD_PRELOAD="$(preloaded "$W/fire.so")" FIRE=drop FIRE_RANK=0 FIRE_AT=20 FIRE_TIME="$W/time" -- $E --timeout 3s
fi

# --- interruptions ---
# interrupted NAME ARGUMENT...: SIGINT after 2 s; status 9, results of what is done
interrupted() {
    name=$1
    shift
    # An asynchronous command of a shell ignores SIGINT: python3 does not.
    python3 -c "
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_DFL)
p = subprocess.Popen(sys.argv[1:])
time.sleep(2)
p.send_signal(signal.SIGINT)
sys.exit(p.wait(timeout=15))" "$DEGAS" "$@" >"$W/out" 2>"$W/err"
    got=$?
    [ $got = 9 ] && [ "$(wc -l <"$W/err")" = 1 ] &&
        grep -q '^degas: run: interrupted after step [0-9]* of 100000' "$W/err"
    report $? "$name: status 9" "status $got
$(cat "$W/err")"
    json "... and what is done is written" "
assert 0 < d['steps'] < 100000 and len(d['losses']) == d['steps']
assert len(d['ranks']) == 4 and d['breakdown_s'] is not None"
    gone "... and no process is left"
}
# The step at hand does not end: what is done is written all the same, but for the trace.
interrupted_in_a_hang() {
    name=$1
    shift
    rm -f "$W/time"
    env LD_LIBRARY_PATH="$W/blas" FAULT=hang FAULT_RANK=1 FAULT_CALL=3000 FAULT_TIME="$W/time" \
        python3 -c "
import os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_DFL)
p = subprocess.Popen(sys.argv[1:])
for i in range(600):
    time.sleep(0.1)
    if os.path.exists('$W/time'):
        break
begin = time.time()
p.send_signal(signal.SIGINT)
status = p.wait(timeout=30)
sys.exit(status if time.time() - begin < 8 else 99)" "$DEGAS" "$@" >"$W/out" 2>"$W/err"
    got=$?
    [ $got = 9 ] && [ "$(wc -l <"$W/err")" = 1 ] &&
        grep -q 'interrupted after step [0-9]* of 100000, in a step that would not end' "$W/err"
    report $? "$name: status 9" "status $got
$(cat "$W/err")"
    json "... and what is done is written" "
assert 0 < d['steps'] < 100000 and len(d['losses']) == d['steps']
assert d['ranks'] == [] and d['breakdown_s'] is None and d['bubble_fraction'] is None"
    gone "... and no process is left"
}
if command -v python3 >/dev/null 2>&1; then
    if [ $has_blas = 1 ]; then
        interrupted_in_a_hang "Ctrl-C in a hang, threads" run "$W/dp2.json" --steps 100000 --json
        [ -n "$reason" ] || interrupted_in_a_hang "Ctrl-C in a hang, processes" \
            run "$W/dp2.json" --steps 100000 --json --transport mpi
    fi
    R="run $W/dp2.json --device reference --steps 100000 --json"
    # shellcheck disable=SC2086
    interrupted "Ctrl-C, threads" $R
    # shellcheck disable=SC2086
    [ -n "$reason" ] || interrupted "Ctrl-C, processes" $R --transport mpi
else
    skip "Ctrl-C" "python3 is not installed"
fi

# --- while mpirun starts, and mpirun itself ---
if [ -n "$reason" ] || ! command -v python3 >/dev/null 2>&1; then
    skip "mpirun interrupted or stopped" "${reason:-python3 is not installed}"
else
    # An mpirun that takes its time: the interruption is there before any rank is.
    mkdir "$W/later"
    cat >"$W/later/mpirun" <<END
#!/bin/sh
[ "\$1" = --version ] || { echo begun >"$W/later/begun"; sleep 1; }
exec $(command -v mpirun) "\$@"
END
    chmod +x "$W/later/mpirun"
    PATH=$W/later:$PATH python3 -c "
import os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_DFL)
p = subprocess.Popen(sys.argv[1:])
while not os.path.exists('$W/later/begun'):
    time.sleep(0.01)
p.send_signal(signal.SIGINT)
sys.exit(p.wait(timeout=15))" "$DEGAS" run "$W/dp2.json" --device reference --steps 100000 \
        --transport mpi --json >"$W/out" 2>"$W/err"
    got=$?
    # ... or, on a busy machine, no rank was there in time
    [ $got = 9 ] && [ "$(wc -l <"$W/err")" = 1 ] && [ ! -s "$W/out" ] &&
        grep -q -e 'interrupted before the first step had ended' \
            -e 'interrupted; the step did not end within' "$W/err"
    report $? "Ctrl-C before the first rank: no step is begun" "status $got
$(cat "$W/err")"
    gone "... and no process is left"

    # It stops as soon as rank 0 runs, for good; ranks compute without it, and cannot end.
    rm -f "$W/time"
    beats_begin
    python3 -c "
import os, signal, subprocess, sys, time
p = subprocess.Popen(sys.argv[1:])
def children(name):
    found = []
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            stat = open('/proc/' + pid + '/stat').read()
            if stat.rsplit(')', 1)[1].split()[1] == str(name):
                found.append(int(pid))
        except OSError:
            pass
    return found
mpirun = None
while p.poll() is None and mpirun is None:
    time.sleep(0.01)
    mpirun = next((c for c in children(p.pid) if len(children(c)) >= 4), None)
open('$W/time', 'w').close()
os.kill(mpirun, signal.SIGSTOP)
try:
    status = p.wait(timeout=300)
except subprocess.TimeoutExpired:
    os.kill(mpirun, signal.SIGCONT)
    status = 99
sys.exit(status)" "$DEGAS" run "$W/dp2.json" \
        --device reference --steps 3 --transport mpi >"$W/out" 2>"$W/err"
    got=$?
    beats_end
    [ $got = 8 ] && [ "$took" -le $((LIMIT_S + 3)) ] && [ "$(wc -l <"$W/err")" = 1 ] && [ ! -s "$W/out" ] &&
        grep -q '^degas: transport mpi: mpirun (process [0-9]*) is stopped, for [3-9]' "$W/err"
    report $? "mpirun is stopped: that is said, and no rank blamed" "status $got after $took s
$(cat "$W/err")"
    gone "... and no process is left"
fi

# --- data that breaks while it is read; results that do not fit ---
# broken NAME ARGUMENT...
broken() {
    name=$1
    shift
    cat docs/*.md >"$W/text"
    "$DEGAS" "$@" --data "$W/text" >"$W/out" 2>"$W/err" &
    reader=$!
    sleep 2
    truncate -s 100 "$W/text"
    wait $reader
    got=$?
    [ $got = 3 ] && [ "$(wc -l <"$W/err")" = 1 ] &&
        grep -q "^degas: rank [0-3] failed in reading the data of step [0-9]*: .*text: the file became shorter" "$W/err"
    report $? "$name: named, status 3" "status $got
$(cat "$W/err")"
}
# unwritable NAME FILE ARGUMENT...: the disk has room for one page
unwritable() {
    name=$1
    file=$2
    shift 2
    "$DEGAS" "$@" >/dev/null 2>"$W/err"
    got=$?
    [ $got = 4 ] && [ "$(grep -c "^degas: .*$file" "$W/err")" = 1 ] &&
        [ -z "$(ls -A "$W/full")" ]
    report $? "$name: one line, status 4, no file" "status $got
$(cat "$W/err")
$(ls -A "$W/full")"
}
has_full=0
mkdir "$W/full" && mount -t tmpfs -o size=4k none "$W/full" 2>/dev/null && has_full=1
R="run $W/dp2.json --device reference"
for transport in local mpi; do
    if [ $transport = mpi ] && [ -n "$reason" ]; then
        skip "the same with processes" "$reason"
        break
    fi
    # shellcheck disable=SC2086
    {
        broken "$transport: data cut short while it is read" $R --steps 100000 --transport $transport
        if [ $has_full = 1 ]; then
            unwritable "$transport: a trace that does not fit" t.json $R --steps 1 \
                --transport $transport --trace "$W/full/t.json"
            unwritable "$transport: a result that does not fit" r.json $R --steps 200 \
                --transport $transport -o "$W/full/r.json"
        else
            skip "$transport: results that do not fit" "mount is not permitted"
        fi
    }
    gone "$transport: no process is left"
done

[ $has_full = 0 ] || umount "$W/full"

# --- the launcher is killed: the ranks notice ---
if [ -z "$reason" ]; then
    "$DEGAS" run "$W/dp2.json" --device reference --steps 100000 --transport mpi >"$W/out" \
        2>"$W/err" &
    launcher=$!
    sleep 2
    kill -KILL $launcher
    wait $launcher 2>/dev/null
    sleep 3
    gone "a launcher that is killed leaves no rank behind"
    # Open MPI 4 has been seen to stay, its ranks gone, when it was told to end.
    mkdir "$W/deaf"
    cat >"$W/deaf/mpirun" <<END
#!/bin/sh
[ "\$1" != --version ] || exec $(command -v mpirun) --version
trap '' TERM
echo begun >"$W/deaf/begun"
while :; do sleep 1; done
END
    chmod +x "$W/deaf/mpirun"
    PATH=$W/deaf:$PATH "$DEGAS" run "$W/dp2.json" --device reference --steps 1 --transport mpi \
        >"$W/out" 2>"$W/err" &
    launcher=$!
    sleep 2
    kill -KILL $launcher
    wait $launcher 2>/dev/null
    sleep 4
    [ -s "$W/deaf/begun" ]
    report $? "... while an mpirun that does not listen has begun" "$(cat "$W/err")"
    gone "... it is gone too"
fi
finish
