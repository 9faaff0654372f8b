#!/bin/sh
# degas run --transport nccl on emulated GPUs with a fake NCCL (tests/executor/fake_nccl.c): ranks
# are processes, started by degas itself or by mpirun; whole models have the gradients of a single
# device; whatever goes wrong with NCCL is one message and leaves no process behind.
# Test runner: first.
# shellcheck source=tests/cli/tap.sh
. tests/cli/tap.sh

built=$(dirname "$(readlink -f "$DEGAS")")
TMPDIR=$W # of the fake NCCL's files
export TMPDIR
cat >"$W/gpt.json" <<'END'
{"format":"degas-model","version":1,"name":"tiny","family":"gpt","n_layers":4,"hidden":32,
 "ffn_hidden":48,"n_heads":2,"vocab":64,"max_seq_len":24}
END
cat >"$W/moe.json" <<'END'
{"format":"degas-model","version":1,"name":"tiny-moe","family":"llama","n_layers":2,"hidden":32,
 "ffn_hidden":48,"n_heads":4,"n_kv_heads":2,"vocab":64,"max_seq_len":24,
 "experts":{"n_experts":4,"top_k":2,"ffn_hidden":32}}
END

# plan NAME MODEL FLAG...
plan() {
    name=$1
    model=$2
    shift 2
    "$DEGAS" plan "$W/$model.json" local-cpu --seq-len 24 --framework degas --recompute none --zero 0 \
        --micro-batch 1 "$@" -o "$W/$name-plan.json" >/dev/null 2>"$W/err" ||
        report 1 "plan $name" "$(cat "$W/err")"
}

plan pp gpt --dtype fp32 --gpus 2 --global-batch 2 --dp 1 --pp 2 --tp 1 --schedule 1f1b --slices 10,14
plan tp-pp gpt --dtype bf16 --gpus 4 --global-batch 2 --dp 1 --pp 2 --tp 2 --sequence-parallel on \
    --schedule zb-v
plan dualpipe gpt --dtype fp32 --gpus 2 --global-batch 4 --dp 1 --pp 2 --tp 1 --schedule dualpipe
plan ep moe --dtype fp32 --gpus 2 --global-batch 2 --dp 2 --pp 1 --tp 1 --ep 2
for ahead in 0 2; do
    plan zero3-$ahead gpt --dtype bf16 --gpus 4 --global-batch 4 --dp 2 --pp 2 --tp 1 --schedule 1f1b --zero 3 \
        --prefetch-layers $ahead
done
plan cp moe --dtype fp32 --gpus 2 --global-batch 2 --dp 1 --pp 1 --tp 1 --cp 2

# gone NAME: no process of this test is left
gone() {
    left=$(pgrep -af "run $W/" || true)
    [ -z "$left" ]
    report $? "$1" "$left"
}

N="run $W/pp-plan.json --device cuda --transport nccl"
R="$N --steps 1"
fails 2 'transport: nccl needs --device cuda' "NCCL without GPUs" run "$W/pp-plan.json" \
    --transport nccl
# shellcheck disable=SC2086
DEGAS_PLUGIN_DIR=$W fails 6 'transport nccl: the plugin degas-cuda.so is not built' \
    "a build without the plugin" $R

if [ ! -e "$built/emulated/libnccl.so.2" ]; then
    skip "whole models over NCCL" "it needs the CUDA toolkit's headers and g++"
    finish
fi
mkdir "$W/plugins"
cp "$built"/emulated/*.so* "$W/plugins"
[ ! -e "$built/degas-mpi.so" ] || cp "$built/degas-mpi.so" "$W/plugins"
DEGAS_PLUGIN_DIR=$W/plugins
FAKE_CUDA=devices=4
export DEGAS_PLUGIN_DIR FAKE_CUDA

for name in pp tp-pp dualpipe ep cp; do
    runs 0 "$name over NCCL has the gradients of one device" run "$W/$name-plan.json" --device cuda \
        --transport nccl --steps 1 --verify
    has 'passed$' "$name says so"
done
has '^emulated GPU.*, NCCL 2.28.9$' "it says where it ran, and with what"
FAKE_CUDA=devices=4,async=1
for name in pp tp-pp; do
    runs 0 "$name: nothing is read before NCCL has written it" run "$W/$name-plan.json" --device \
        cuda --transport nccl --steps 2 --verify
done
for ahead in 0 2; do
    runs 0 "ZeRO 3 over NCCL, $ahead layers ahead" run "$W/zero3-$ahead-plan.json" --device cuda --transport nccl \
        --steps 2 --json -o "$W/zero3-$ahead.json"
done
json "... has the same losses to the bit" "
assert d['losses'] == json.load(open('$W/zero3-0.json'))['losses'] and d['losses'][1] != d['losses'][0]" \
    "$W/zero3-2.json"
FAKE_CUDA=devices=4

if [ ! -e "$W/plugins/degas-mpi.so" ] || ! command -v mpirun >/dev/null 2>&1; then
    skip "ranks that mpirun has started" "there is no MPI"
else
    OMPI_MCA_rmaps_base_oversubscribe=1
    export OMPI_MCA_rmaps_base_oversubscribe
    # shellcheck disable=SC2086
    runs 0 "ranks that mpirun has started" $R --hosts localhost --verify
    has 'passed$' "... have the gradients of one device"
fi

# --- one device ---
FAKE_CUDA=devices=1
# shellcheck disable=SC2086
fails 1 'ranks 0 and 1 have the same device, cuda:0 (0000:01:00.0), which NCCL refuses; .*local' \
    "two ranks on one device: said before NCCL does" $R
# shellcheck disable=SC2086
NCCL_HOSTID=proof runs 0 "... unless hosts are said to be others: a proof of function" $R --verify
has 'passed$' "... which it is"
FAKE_CUDA=devices=2

# --- faults: FAKE_NCCL, STATUS, PATTERN, NAME, ARGUMENT... ---
wrong() {
    FAKE_NCCL=$1
    export FAKE_NCCL
    shift
    # shellcheck disable=SC2086
    status=$1 pattern=$2 name=$3
    shift 3
    : >"$W/time"
    beats_begin
    # shellcheck disable=SC2086
    fails "$status" "$pattern" "$name" $R "$@"
    beats_end
    [ "$took" -le 20 ]
    report $? "... and soon" "after $took s"
    unset FAKE_NCCL
}
wrong version=21700 6 'libnccl.so.2 is NCCL 2.17.0, 2.18.0 or newer is needed' "an NCCL that is too old"
wrong version=21805,rank=1 1 'rank 0 has NCCL 2.28.9, rank 1 has 2.18.5: all need the same' \
    "different versions"
wrong init=3,rank=1 7 'rank 1 failed in its preparations: transport nccl: ncclCommInitRankConfig (ranks 0, 1): internal error' \
    "a communicator that cannot be made"
wrong missing=1,rank=0 8 'rank 0 failed in its preparations: transport nccl: .*not done after 2.0 s' \
    "members that do not come" --timeout 2s
wrong call=5,rank=0 7 'rank 0 failed in F[01].0s[01] of step 0: transport nccl: ncclSend (messages of rank 0 to 1): invalid usage' \
    "a call that fails"
wrong async=5,rank=1 7 'rank 1 failed in .* of step 0: transport nccl: an asynchronous error (messages of rank [01] to [01]): unhandled system error' \
    "an asynchronous error on one rank"
wrong hang=5,rank=1 8 'rank [01] (process [0-9]* on .*) waits in a circle in .* of step 0 for [23]' \
    "a transfer that never ends" --timeout 2s
wrong kill=5,rank=1 7 'rank 1 (process [0-9]* on .*) died in .* step 0' "a rank that dies"
FAKE_CUDA=driver=0
wrong "" 6 '^degas: device cuda: there is no NVIDIA driver on this machine' "no driver"
FAKE_CUDA=driver=12040,devices=2
wrong "" 6 '^degas: device cuda: the driver is for CUDA 12.4' "a driver that is too old"
FAKE_CUDA=busy=1,devices=2
wrong "" 6 'rank [01] failed in its preparations: device cuda:[01] is in use by another process' \
    "GPUs in use"
FAKE_CUDA=memory=1000000,devices=2
wrong "" 5 'no memory for [0-9]* bytes of .*the predicted peak of this rank is [0-9]* bytes' \
    "GPUs that are too small"
FAKE_CUDA=launch=30,devices=2
wrong "" 7 'rank [01] failed in .* step 0: device cuda: unspecified launch failure' \
    "a kernel that fails"
FAKE_CUDA=devices=2
# The real library, where it is: its functions are found, its version is new enough, an identifier is
# passed on; without a driver it gets no further.
real=
for folder in "${CUDA_HOME:-/usr/local/cuda}/lib64" /usr/lib/x86_64-linux-gnu /usr/lib64; do
    [ -z "$real" ] && [ -e "$folder/libnccl.so.2" ] && real=$folder
done
if [ -z "$real" ] || [ -e /dev/nvidiactl ]; then
    skip "the real NCCL is asked for a communicator" "it is not here, or there is a GPU"
else
    mkdir "$W/real"
    cp "$built"/emulated/degas-cuda.so "$W/real"
    # shellcheck disable=SC2086
    LD_LIBRARY_PATH=$real DEGAS_PLUGIN_DIR=$W/real fails 7 \
        'transport nccl: ncclCommInitRankConfig (ranks 0, 1): unhandled cuda error' \
        "the real NCCL is asked for a communicator" $R
fi
mkdir "$W/broken"
echo "no library" >"$W/broken/libnccl.so.2"
# shellcheck disable=SC2086
LD_LIBRARY_PATH=$W/broken fails 6 'transport nccl: NCCL is not here (.*libnccl.so.2' "no NCCL" $R

# --- an interruption ---
if command -v python3 >/dev/null 2>&1; then
    # An asynchronous command of a shell ignores SIGINT: python3 does not.
    # shellcheck disable=SC2086
    python3 -c "
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_DFL)
p = subprocess.Popen(sys.argv[1:])
time.sleep(4)
p.send_signal(signal.SIGINT)
sys.exit(p.wait(timeout=20))" "$DEGAS" $N --steps 100000 >"$W/out" 2>"$W/err"
    [ $? = 9 ] && grep -q '^degas: .*interrupted' "$W/err"
    report $? "Ctrl-C ends all ranks" "$(cat "$W/err")"
else
    skip "Ctrl-C ends all ranks" "python3 is not installed"
fi
gone "no process is left"

finish
