#!/bin/sh
# Checkpoints of degas run: killed and resumed with the same bits, resumed with other degrees, damaged,
# on a full disk, in a folder that another run uses.
# Test runner: first.
# shellcheck source=tests/cli/tap.sh
. tests/cli/tap.sh
# shellcheck source=tests/cli/mpi.sh
. tests/cli/mpi.sh

plan pp2 --gpus 2 --global-batch 8 --dp 1 --pp 2 --micro-batch 1 --schedule 1f1b --slices 40,24
plan dp2 --gpus 4 --global-batch 8 --dp 2 --pp 2 --micro-batch 1 --schedule terapipe --slices 2
"$DEGAS" plan "$W/tiny.json" "$W/profile.json" --seq-len 64 --dtype fp32 --framework degas \
    --recompute none --zero 0 --gpus 4 --global-batch 8 --dp 1 --tp 2 --pp 2 --micro-batch 2 \
    --schedule 1f1b -o "$W/tp2.json" >/dev/null 2>"$W/err" || report 1 "plan tp2" "$(cat "$W/err")"
R="--device reference --seed 5 --json"

# same NAME A B: two folders hold the same files with the same bytes
same() {
    differences=$(diff -r "$2" "$3" 2>&1)
    report $? "$1" "$differences"
}

# --- the same bits ---
# shellcheck disable=SC2086
runs 0 "a run that nobody disturbs" run "$W/dp2.json" $R --steps 12 --checkpoint "$W/whole"
cp "$W/out" "$W/whole.run"
json "a checkpoint at its end, by parameter" "
assert d['format'] == 'degas-checkpoint' and d['version'] == 2 and d['step'] == 12 and d['seed'] == 5
assert d['tokens_seen'] == 12 * 8 * 64 and d['model']['name'] == 'tiny'
import os
names = [p['name'] for p in d['parameters']]
assert 'layer.3.mlp_up.weight' in names and 'embedding.token' in names and len(names) == len(set(names))
for p in d['parameters']:
    size = os.path.getsize('$W/whole/step-00000012/' + p['name'] + '.bin')
    assert size == 3 * 4 * p['rows'] * p['cols'], p
# embedding (tied) + positions + 4 layers + last norm: the parameters of the model, no more
n = sum(p['rows'] * p['cols'] for p in d['parameters'])
h = 32
assert n == 256 * h + 64 * h + 4 * (12 * h * h + 13 * h) + 2 * h, n" \
    "$W/whole/step-00000012/checkpoint.json"

# newest DIR: its newest complete checkpoint, or nothing
newest() {
    find "$1" -maxdepth 1 -name 'step-*' 2>/dev/null | sort | tail -1
}

# Killed at some moment after its first new checkpoint, then resumed; again and again.
# shellcheck disable=SC2086
killed_and_resumed() {
    transport=$1
    dir=$W/killed.$transport
    for delay in 0 0.01 0.02; do
        before=$(newest "$dir")
        "$DEGAS" run "$W/dp2.json" $R --steps 12 --checkpoint "$dir" --checkpoint-every 2 ${before:+--resume} \
            --transport "$transport" --deterministic >"$W/out" 2>"$W/err" &
        victim=$!
        while [ "$(newest "$dir")" = "$before" ] && kill -0 $victim 2>/dev/null; do
            sleep 0.01
        done
        sleep $delay
        kill -KILL $victim 2>/dev/null
        wait $victim 2>/dev/null
        # Ranks that are processes outlive it by a moment, and have the folder until then.
        for _ in $(seq 100); do
            pgrep -f "run $W/" >/dev/null || break
            sleep 0.1
        done
    done
    ls -A "$dir" >"$W/transcript"
    runs 0 "$transport: killed three times, resumed" run "$W/dp2.json" $R --steps 13 \
        --checkpoint "$dir" --resume --transport "$transport" --deterministic
    json "... to the same losses, bit by bit" "
whole = json.load(open('$W/more.run'))['losses']
assert d['first_step'] >= 2 and d['steps'] == 13 - d['first_step']
assert d['losses'] == whole[d['first_step']:], (d, whole)"
    same "... and the same state, byte by byte" "$W/more/step-00000013" "$dir/step-00000013"
    [ "$(find "$dir" -name 'step-*' | wc -l)" = 2 ] && [ -z "$(find "$dir" -name '.step*')" ]
    report $? "... two checkpoints are kept, nothing half written" "$(ls -A "$dir")"
}
# shellcheck disable=SC2086
runs 0 "a longer run that nobody disturbs" run "$W/dp2.json" $R --steps 13 --checkpoint "$W/more"
cp "$W/out" "$W/more.run"
killed_and_resumed local
reason=$(why_no_mpi)
if [ -n "$reason" ]; then
    skip "processes, killed and resumed" "$reason"
else
    killed_and_resumed mpi
fi

# --- other degrees ---
for p in pp2 tp2; do
    rm -rf "$W/other"
    cp -r "$W/whole" "$W/other"
    # shellcheck disable=SC2086
    runs 0 "resume with the degrees of $p" run "$W/$p.json" $R --steps 15 --checkpoint "$W/other" \
        --resume
    cp "$W/out" "$W/other.run"
    rm -rf "$W/back"
    cp -r "$W/whole" "$W/back"
    # shellcheck disable=SC2086
    runs 0 "... and with the same ones" run "$W/dp2.json" $R --steps 15 --checkpoint "$W/back" \
        --resume
    json "... the losses are the same to within rounding" "
o = json.load(open('$W/other.run'))
assert o['first_step'] == d['first_step'] == 12 and len(o['losses']) == 3
assert all(abs(a - b) < 1e-5 for a, b in zip(o['losses'], d['losses'])), (o['losses'], d['losses'])"
done

# --- padded or not ---
# A checkpoint has the rows of tokens alone: 129 here, over tp 2 padded to 256.
sed 's/"vocab":256/"vocab":129/' "$W/tiny.json" >"$W/odd.json"
for how in "off --pp 2 --tp 1" "on --pp 1 --tp 2"; do
    # shellcheck disable=SC2086
    "$DEGAS" plan "$W/odd.json" "$W/profile.json" --seq-len 64 --dtype fp32 --framework degas --recompute none \
        --zero 0 --gpus 2 --global-batch 4 --dp 1 --micro-batch 1 --schedule 1f1b --pad-vocab $how \
        -o "$W/pad-${how%% *}.json" >/dev/null 2>"$W/err" || report 1 "plan pad-$how" "$(cat "$W/err")"
done
# shellcheck disable=SC2086
runs 0 "an odd vocabulary" run "$W/pad-off.json" $R --steps 5
cp "$W/out" "$W/odd.run"
for order in "off on" "on off"; do
    rm -rf "$W/pad"
    # shellcheck disable=SC2086
    runs 0 "... padded or not: ${order% *}" run "$W/pad-${order% *}.json" $R --steps 3 --checkpoint "$W/pad"
    # shellcheck disable=SC2086
    runs 0 "... then ${order#* }" run "$W/pad-${order#* }.json" $R --steps 5 --checkpoint "$W/pad" --resume
    json "... the losses are the same to within rounding" "
o = json.load(open('$W/odd.run'))
assert d['first_step'] == 3 and all(abs(a - b) < 1e-5 for a, b in zip(d['losses'], o['losses'][3:])), (d, o)"
done

# --- sharded ---
# zero NAME STAGE FLAG...: a plan of four ranks with parameters, gradients or the optimizer sharded
zero() {
    name=$1
    stage=$2
    shift 2
    "$DEGAS" plan "$W/tiny.json" "$W/profile.json" --seq-len 64 --dtype fp32 --framework degas \
        --zero "$stage" --gpus 4 --global-batch 8 --micro-batch 1 "$@" -o "$W/$name.json" \
        >/dev/null 2>"$W/err" || report 1 "plan $name" "$(cat "$W/err")"
}
zero zero1 1 --recompute none --dp 2 --tp 1 --pp 2 --schedule 1f1b
zero zero2 2 --recompute selective --dp 4 --tp 1 --pp 1 --schedule 1f1b
zero zero3 3 --recompute full --dp 2 --tp 2 --pp 1 --schedule 1f1b
zero nvme 1 --recompute none --dp 4 --tp 1 --pp 1 --schedule 1f1b --offload nvme
zero parameters 3 --recompute none --dp 2 --tp 1 --pp 2 --schedule 1f1b --offload nvme --offload-parameters on
for p in zero1 zero2 zero3 nvme parameters; do
    rm -rf "$W/other" "$W/straight"
    cp -r "$W/whole" "$W/other"
    # shellcheck disable=SC2086
    runs 0 "resume a run without ZeRO as $p" run "$W/$p.json" $R --steps 15 \
        --checkpoint "$W/other" --resume
    json "... the losses are the same to within rounding" "
o = json.load(open('$W/more.run'))
assert d['first_step'] == 12 and abs(d['losses'][0] - o['losses'][12]) < 1e-5, (d, o)"
    # shellcheck disable=SC2086
    runs 0 "$p from the beginning" run "$W/$p.json" $R --steps 6 --verify \
        --checkpoint "$W/straight" --checkpoint-every 3
    cp "$W/out" "$W/straight.run"
    json "... verified, on the path of the others" "
o = json.load(open('$W/more.run'))
assert d['verify']['passed'], d['verify']
assert all(abs(a - b) < 1e-5 for a, b in zip(d['losses'], o['losses'])), (d, o)"
    rm -rf "$W/again"
    mkdir "$W/again"
    cp -r "$W/straight/step-00000003" "$W/again"
    # shellcheck disable=SC2086
    runs 0 "$p resumed from its middle" run "$W/$p.json" $R --steps 6 --checkpoint "$W/again" \
        --resume
    json "... to the same losses, bit by bit" "
o = json.load(open('$W/straight.run'))
assert d['first_step'] == 3 and d['losses'] == o['losses'][3:], (d, o)"
    same "... and the same state, byte by byte" "$W/straight/step-00000006" \
        "$W/again/step-00000006"
    # shellcheck disable=SC2086
    runs 0 "resume $p without ZeRO" run "$W/dp2.json" $R --steps 12 --checkpoint "$W/again" \
        --resume
    json "... the losses are the same to within rounding" "
o = json.load(open('$W/more.run'))
assert all(abs(a - b) < 1e-5 for a, b in zip(d['losses'], o['losses'][6:])), (d, o)"
done

# --- interrupted ---
if command -v python3 >/dev/null 2>&1; then
    python3 -c "
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_DFL)
p = subprocess.Popen(sys.argv[1:])
time.sleep(1.5)
p.send_signal(signal.SIGINT)
sys.exit(p.wait(timeout=15))" "$DEGAS" run "$W/pp2.json" --device reference --steps 100000 --json \
        --checkpoint "$W/stopped" >"$W/out" 2>"$W/err"
    [ $? = 9 ]
    report $? "Ctrl-C" "$(cat "$W/err")"
    json "... saves what is done" "
import os
assert os.listdir('$W/stopped').count('step-%08d' % d['steps']) == 1, os.listdir('$W/stopped')"
fi

# --- damage ---
runs 0 "two checkpoints" run "$W/pp2.json" --device reference --steps 4 --checkpoint "$W/two" \
    --checkpoint-every 2
C="run $W/pp2.json --device reference --steps 6 --checkpoint"
# damaged NAME PATTERN COMMAND...: after the command in a copy, the run is refused by name
damaged() {
    name=$1
    pattern=$2
    shift 2
    rm -rf "$W/hurt"
    cp -r "$W/two" "$W/hurt"
    (cd "$W/hurt/step-00000004" && "$@")
    # shellcheck disable=SC2086
    fails 3 "$pattern" "$name" $C "$W/hurt" --resume
}
damaged "a file cut short" 'step-00000004/layer.1.q.weight.bin: the checkpoint is damaged: 100 bytes' \
    truncate -s 100 layer.1.q.weight.bin
damaged "a file that is gone" 'layer.2.q.bias.bin: the checkpoint lacks' rm layer.2.q.bias.bin
damaged "one byte that changed" 'norm.gain.bin: the checkpoint is damaged: its contents' \
    sh -c 'printf "\001" | dd of=norm.gain.bin bs=1 seek=7 conv=notrunc 2>/dev/null'
damaged "a value of a moment that changed" 'proj.weight.bin: the checkpoint is damaged: its contents' \
    sh -c 'printf "oops" | dd of=layer.0.proj.weight.bin bs=1 seek=9000 conv=notrunc 2>/dev/null'
damaged "two values that changed places" 'token.bin: the checkpoint is damaged: its contents' \
    sh -c 'f=embedding.token.bin; { dd if=$f bs=4 skip=1 count=1; dd if=$f bs=4 count=1
        dd if=$f bs=4 skip=2; } >x 2>/dev/null; mv x $f'
damaged "a manifest cut short" 'checkpoint.json' truncate -s 300 checkpoint.json
damaged "a manifest that is gone" 'checkpoint.json: the checkpoint lacks' rm checkpoint.json
damaged "a manifest that never comes" 'checkpoint.json: .* is no regular file' \
    sh -c 'rm checkpoint.json && mkfifo checkpoint.json'
damaged "a manifest of a later version" 'checkpoint.json:3:[0-9]*: $.version: version 3 is newer than this program' \
    sed -i 's/"version": 2/"version": 3/' checkpoint.json
damaged "a manifest that says another seed" 'checkpoint.json.*: the checkpoint is damaged' \
    sed -i 's/"seed": 0/"seed": 1/' checkpoint.json
damaged "a manifest of an older checkpoint" 'checkpoint.json: is of step 2' \
    cp ../step-00000002/checkpoint.json .
damaged "a file of an older checkpoint" 'layer.1.q.weight.bin: the checkpoint is damaged' \
    cp ../step-00000002/layer.1.q.weight.bin .
# as version 1 had it: without a checksum
version_1() {
    damaged "$1" "$2" sed -i -e 's/"version": 2/"version": 1/' -e '/"checksum"/d' -e "$3" checkpoint.json
}
version_1 "a name that leads elsewhere" "is no parameter's name" 's/"norm.gain"/"..\/..\/x"/'
version_1 "a hash that is none" 'expected 16 hexadecimal' 's/"hash": "..../"hash": "/'
rm -rf "$W/first_version"
cp -r "$W/two" "$W/first_version"
sed -i -e '0,/"version": 2/s//"version": 1/' -e '/"checksum"/d' "$W"/first_version/step-*/checkpoint.json
# shellcheck disable=SC2086
runs 0 "a checkpoint of version 1 serves" $C "$W/first_version" --resume
# shellcheck disable=SC2086
runs 0 "the one before it still serves, when asked for" $C "$W/hurt" --resume-step 2 --json
json "... from its step" "assert d['first_step'] == 2 and d['steps'] == 4"

# --- a rank that gives up while another still saves ---
# Rank 0's disk takes 3 s over a folder: it hangs and is given up, goes on nevertheless, and would give
# the folder its name while the other is removing files, which takes as long.
cat >"$W/slow.c" <<'END'
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int fsync(int fd)
{
    static int n_folders;
    struct stat status;

    if (fstat(fd, &status) == 0 && S_ISDIR(status.st_mode) && n_folders++ == 0)
        sleep(3);
    return (int)syscall(SYS_fsync, fd);
}

int unlink(const char *path)
{
    static int n_files;
    const int status = (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);

    if (strstr(path, ".bin") != NULL && n_files++ == 0)
        sleep(3);
    return status;
}
END
if ${CC:-cc} -O1 -shared -fPIC -o "$W/slow.so" "$W/slow.c" 2>"$W/err"; then
    LD_PRELOAD="$(preloaded "$W/slow.so")" "$DEGAS" run "$W/pp2.json" --device reference --steps 40 --timeout 2s \
        --checkpoint "$W/given_up" --checkpoint-every 2 >"$W/out" 2>"$W/err"
    [ $? = 8 ] && grep -q '^degas: rank 0 hangs in the checkpoint after step 1 for ' "$W/err"
    report $? "a disk that takes too long" "$(cat "$W/err")"
    [ -z "$(find "$W/given_up" -name 'step-*')" ]
    report $? "... a checkpoint that is being removed gets no name" "$(ls -A "$W/given_up")"
    runs 0 "... and is gone after the next run" run "$W/pp2.json" --device reference --steps 2 \
        --checkpoint "$W/given_up"
    [ "$(ls -A "$W/given_up")" = "$(printf 'lock\nstep-00000002')" ]
    report $? "... with all that it left" "$(ls -A "$W/given_up")"
else
    skip "a disk that takes too long" "no C compiler"
fi

# --- another model, another run ---
sed 's/"n_heads":2/"n_heads":4/' "$W/tiny.json" >"$W/heads.json"
"$DEGAS" plan "$W/heads.json" local-cpu --seq-len 64 --dtype fp32 --framework degas --gpus 1 \
    --recompute none --zero 0 --global-batch 8 --micro-batch 1 -o "$W/heads.plan" >/dev/null 2>&1
fails 3 'step-00000004: .* another model: n_heads is 2, not 4' \
    "a model with parameters of the same shapes" run "$W/heads.plan" \
    --device reference --steps 6 --checkpoint "$W/two" --resume
sed 's/"hidden":32/"hidden":64/' "$W/tiny.json" >"$W/wide.json"
"$DEGAS" plan "$W/wide.json" local-cpu --seq-len 64 --dtype fp32 --framework degas --gpus 1 \
    --recompute none --zero 0 --global-batch 8 --micro-batch 1 -o "$W/wide.plan" >/dev/null 2>&1
fails 3 'another model: .* is ' "a checkpoint of another model" run "$W/wide.plan" \
    --device reference --steps 6 --checkpoint "$W/two" --resume
for other in "16 64" "8 32"; do
    "$DEGAS" plan "$W/tiny.json" local-cpu --seq-len "${other#* }" --dtype fp32 --framework degas --gpus 1 \
        --recompute none --zero 0 --global-batch "${other% *}" --micro-batch 1 -o "$W/other.plan" >/dev/null 2>&1
    fails 1 'another global batch or sequence length' "a checkpoint of a batch other than $other" \
        run "$W/other.plan" --device reference --steps 6 --checkpoint "$W/two" --resume
done
# shellcheck disable=SC2086
{
    fails 1 '--resume' "a folder that has checkpoints" $C "$W/two"
    fails 1 'another --seed' "another seed" $C "$W/two" --resume --seed 9
    fails 1 'no complete checkpoint' "nothing to go on from" $C "$W/none" --resume
    fails 1 'of that step' "no such step" $C "$W/two" --resume-step 3
    fails 1 'all --steps are done' "no step left" run "$W/pp2.json" --device reference --steps 4 \
        --checkpoint "$W/two" --resume
    fails 2 'needs --checkpoint' "resume from nowhere" run "$W/pp2.json" --resume
    fails 2 'needs --checkpoint' "every N steps, but where" run "$W/pp2.json" --checkpoint-every 2
    fails 2 '--checkpoint-every' "every 0 steps" $C "$W/x" --checkpoint-every 0
    fails 2 '--verify' "verify and resume" $C "$W/two" --resume --verify
    : >"$W/file"
    fails 4 'file' "a folder that is a file" $C "$W/file"
}

# --- a folder in use ---
"$DEGAS" run "$W/pp2.json" --device reference --steps 100000 --checkpoint "$W/used" >"$W/first" 2>&1 &
first=$!
while [ -z "$(newest "$W/used")" ] && [ ! -s "$W/used/lock" ] && kill -0 $first 2>/dev/null; do
    sleep 0.05
done
# shellcheck disable=SC2086
fails 4 "another run saves here (process $first on " "a folder that another run uses" $C "$W/used"
kill -KILL $first
wait $first 2>/dev/null

# --- a full disk for what is off the device ---
O="run $W/nvme.json --device reference --steps 3"
# shellcheck disable=SC2086
fails 4 "rank [0-3] failed in its preparations: $W/nowhere/degas-offload-rank[0-3]-.*: cannot make" \
    "a folder for the optimizer's state that is not there" $O --offload-dir "$W/nowhere"
mkdir "$W/off"
# shellcheck disable=SC2086
runs 0 "a folder for the optimizer's state" $O --offload-dir "$W/off"
[ -z "$(ls -A "$W/off")" ]
report $? "... in which nothing is left" "$(ls -A "$W/off")"
if mkdir "$W/narrow" && mount -t tmpfs -o size=200k none "$W/narrow" 2>/dev/null; then
    # shellcheck disable=SC2086
    fails 4 "rank [0-3] failed in .*narrow/degas-offload-rank[0-3]-.*: No space left" \
        "a disk too small for the optimizer's state" $O --offload-dir "$W/narrow"
    umount "$W/narrow"
else
    skip "a disk too small for the optimizer's state" "cannot mount a tmpfs here"
fi

O="run $W/parameters.json --device reference --steps 3"
# shellcheck disable=SC2086
fails 4 "rank [0-3] failed in its preparations: $W/nowhere/degas-offload-rank[0-3]-.*: cannot make" \
    "a folder for parameters that is not there" $O --offload-dir "$W/nowhere"
mkdir -p "$W/narrow"
if mount -t tmpfs -o size=200k none "$W/narrow" 2>/dev/null; then
    # shellcheck disable=SC2086
    fails 4 "rank [0-3] failed in .*narrow/degas-offload-rank[0-3]-.*offloaded state: No space left" \
        "a disk too small for parameters" $O --offload-dir "$W/narrow"
    umount "$W/narrow"
else
    skip "a disk too small for parameters" "cannot mount a tmpfs here"
fi

# --- a full disk ---
# full NAME DIR PREFIX...: the checkpoint of step 2 fits, that of step 4 does not
full() {
    name=$1
    dir=$2
    shift 2
    # shellcheck disable=SC2086
    "$@" "$DEGAS" run "$W/pp2.json" --device reference --steps 40 --seed 5 --checkpoint "$dir" \
        --checkpoint-every 2 >"$W/out" 2>"$W/err"
    [ $? = 4 ] && [ "$(wc -l <"$W/err")" = 1 ] &&
        grep -q '^degas: rank [01] failed in the checkpoint after step [0-9]*: .*step-0' "$W/err"
    report $? "$name: named, status 4" "$(cat "$W/err")"
}
if mkdir "$W/small" && mount -t tmpfs -o size=2m none "$W/small" 2>/dev/null; then
    # A checkpoint is some 750 kB: two fit, the third does not.
    full "a full disk" "$W/small/state" env
    [ "$(find "$W/small/state" -name 'step-*' | wc -l)" = 2 ] &&
        [ -z "$(find "$W/small/state" -name '.step-*')" ]
    report $? "... the complete ones are intact, what was begun is removed" "$(ls -A "$W/small/state")"
    cp -r "$W/small/state" "$W/rescued"
    umount "$W/small"
    runs 0 "... and serve" run "$W/pp2.json" --device reference --steps 6 --seed 5 \
        --checkpoint "$W/rescued" --resume
else
    skip "a full disk" "mount is not permitted"
fi
# The rank whose disk is full says so 0.4 s late; meanwhile the other, slowly, opens files beside it.
cat >"$W/late.c" <<'END'
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static int is_rank_1(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");

    return rank != NULL && strcmp(rank, "1") == 0;
}

ssize_t send(int fd, const void *bytes, size_t n, int flags)
{
    uint32_t kind = 0;

    if (n == 512)
        memcpy(&kind, (const char *)bytes + 4, sizeof kind);
    if (is_rank_1() && kind == 2) /* EXEC_WATCH_FAILED */
        usleep(400000);
    return syscall(SYS_sendto, fd, bytes, n, flags, NULL, 0);
}

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t at)
{
    char link[64] = "/proc/self/fd/", path[4096] = {0};

    link[14] = (char)('0' + fd / 10);
    link[15] = (char)('0' + fd % 10);
    if (fd < 10)
        memmove(link + 14, link + 15, 2);
    if (readlink(link, path, sizeof path - 1) > 0 && strstr(path, "/.step-") != NULL) {
        if (is_rank_1()) {
            errno = ENOSPC;
            return -1;
        }
        usleep(30000);
    }
    return syscall(SYS_pwrite64, fd, bytes, n, at);
}
END
if [ -n "$reason" ] || ! mpirun --version 2>/dev/null | grep -q 'Open MPI' ||
    ! ${CC:-cc} -O1 -shared -fPIC -o "$W/late.so" "$W/late.c" 2>"$W/err"; then
    skip "one rank's disk is full" "${reason:-no Open MPI or no C compiler}"
else
    LD_PRELOAD="$(preloaded "$W/late.so")" "$DEGAS" run "$W/pp2.json" --device reference --steps 40 \
        --transport mpi --checkpoint "$W/one_full" --checkpoint-every 2 >"$W/out" 2>"$W/err"
    [ $? = 4 ] && [ "$(wc -l <"$W/err")" = 1 ] &&
        grep -q '^degas: rank 1 failed in the checkpoint after step 1: .*: No space left' "$W/err"
    report $? "one rank's disk is full: that is said, not what followed" "$(cat "$W/err")"
    [ "$(ls -A "$W/one_full")" = lock ]
    report $? "... what was begun is removed" "$(ls -A "$W/one_full")"
fi
# Files may have at most 8 KiB: as a disk that is full at once.
full "files beyond the limit" "$W/limited" sh -c 'ulimit -f 16; exec "$@"' sh
[ -z "$(find "$W/limited" -name '*step-*')" ]
report $? "... nothing half written is left" "$(ls -A "$W/limited")"
finish
