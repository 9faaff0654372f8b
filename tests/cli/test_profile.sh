#!/bin/sh
# degas profile: what its file holds, interruption and going on, on the CPU; on an emulated GPU the same, and what it
# says of devices that cannot be used.
# Test runner: first.
. tests/cli/tap.sh

emulated=$(dirname "$(readlink -f "$DEGAS")")/emulated
printf '{"format":"degas-model","version":1,"name":"tiny","family":"gpt","n_layers":1,"hidden":16,"ffn_hidden":16,
    "n_heads":2,"vocab":16,"max_seq_len":16}' >"$W/tiny.json"
# Three lengths of slices, so that one lies between the others.
sed 's/"max_seq_len":16/"max_seq_len":64/' "$W/tiny.json" >"$W/three.json"
printf '{"format":"degas-model","version":1,"name":"head64","family":"llama","n_layers":1,"hidden":64,"ffn_hidden":16,
    "n_heads":1,"vocab":16,"max_seq_len":16}' >"$W/head64.json"

# in_file PATTERN NAME: the profile has such a line
in_file() {
    grep -q -e "$1" "$W/p.json"
    report $? "$2" "$(cut -c1-160 "$W/p.json" | head -60)"
}

# --- on the CPU ---

runs 0 "a small profile" profile "$W/three.json" --quick --budget 60 --tp 1 --concurrency 1 -o "$W/p.json"
has '^layer_gemm  *forward' "ops by kind are shown"
has '^between shapes, layer forward, tp 1: off by' "the fit's error is shown"
for op in layer embedding head optimizer p2p all_reduce all_gather reduce_scatter broadcast copy_h2d copy_d2h copy_d2d \
    overhead launch layer_gemm layer_attention layer_norm layer_other; do
    in_file "{\"op\": \"$op\"," "rows of $op"
done
for pass in forward backward backward_input backward_weight; do
    in_file "{\"op\": \"layer\", \"pass\": \"$pass\", \"tp\": 1, \"n_left_out\": [1-9]" "the fit's error of $pass"
done
in_file '{"beside": "copy_d2d", "n_ranks": 1, "factor"' "a layer beside a copy"
[ ! -e "$W/p.json.partial" ]
report $? "nothing is left beside a finished profile"
grep -q 'no time' "$W/err"
[ $? = 1 ]
report $? "there was time for all of it" "$(cat "$W/err")"
in_file '"op": "head",.*"batch": 1,' "micro-batches of 1"
in_file '"op": "head",.*"batch": 4,' "micro-batches of 4"
! grep -q '"batch": 2,' "$W/p.json"
report $? "on a CPU those between are interpolated"
runs 0 "it is a cluster" plan "$W/three.json" "$W/p.json" --gpus 1 --global-batch 1 --dtype fp32 --framework degas
runs 0 "it can be shown" show "$W/p.json"

"$DEGAS" profile "$W/tiny.json" --slices 16 --budget 600 --concurrency 1 -o "$W/long.json" >"$W/out" 2>"$W/err" &
pid=$!
tries=0
while [ ! -s "$W/long.json.partial" ] && [ $tries -lt 300 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
kill -INT "$pid" 2>/dev/null
wait "$pid"
got=$?
if [ "$got" = 0 ]; then
    skip "an interruption" "all repetitions were done before it came"
else
    [ "$got" = 9 ] && [ ! -e "$W/long.json" ] && [ -s "$W/long.json.partial" ]
    report $? "an interruption keeps what is there and writes no product" "status $got: $(cat "$W/err")"
    grep -q 'interrupted; --resume goes on from .*long.json.partial' "$W/err"
    report $? "it says how to go on" "$(cat "$W/err")"
    fails 3 '\$.of: this was "tiny' "going on as something else" profile "$W/tiny.json" --slices 8 --concurrency 1 \
        --resume -o "$W/long.json"
    runs 0 "it goes on" profile "$W/tiny.json" --slices 16 --budget 1 --concurrency 1 --resume -o "$W/long.json"
    [ -s "$W/long.json" ] && [ ! -e "$W/long.json.partial" ]
    report $? "then the product is whole" "$(ls "$W")"
fi
# Its one shape is 2 TFLOP a repetition: a minute of a core, in some thousand ops.
printf '{"format":"degas-model","version":1,"name":"slow","family":"gpt","n_layers":1,"hidden":512,"ffn_hidden":2048,
    "n_heads":8,"vocab":16384,"max_seq_len":2048}' >"$W/slow.json"
"$DEGAS" profile "$W/slow.json" --slices 64 --batches 4 --budget 600 --concurrency 1 -o "$W/slow-p.json" >"$W/out" 2>"$W/err" &
pid=$!
sleep 3
asked=$(date +%s)
kill -INT "$pid" 2>/dev/null
wait "$pid"
got=$?
took=$(($(date +%s) - asked))
[ "$got" = 9 ] && [ "$took" -le 5 ] && [ -s "$W/slow-p.json.partial" ]
report $? "an interruption in a shape ends within 5 s and keeps what is there" "status $got after $took s: $(cat "$W/err")"
# All 12 shapes are 210 GFLOP a repetition, and so many of them that no core does them in a second.
printf '{"format":"degas-model","version":1,"name":"wide","family":"gpt","n_layers":1,"hidden":128,"ffn_hidden":512,
    "n_heads":4,"vocab":2048,"max_seq_len":512}' >"$W/wide.json"
timeout 2 "$DEGAS" profile "$W/wide.json" --quick --concurrency 1 >"$W/out" 2>"$W/err" </dev/null
[ ! -s "$W/out" ] && grep -q 'degas: profile: what is measured will be shown, but not kept; -o FILE writes it' "$W/err"
report $? "it warns before it measures that nothing will be kept" "$(cat "$W/out" "$W/err")"
runs 0 "a budget that is too short" profile "$W/wide.json" --quick --budget 1 --concurrency 1 -o "$W/p.json"
# What comes after the shapes depends on how fast this core is: tests/executor/test_measure_time.c has it by a clock of its own.
grep -q '^degas: profile: in 1 s there was no time for [0-9]* of 12 shapes' "$W/err"
report $? "it says what there was no time for" "$(cat "$W/err")"
more=$(sed -n 's/.*; --budget \([0-9]*\) would have time for about all$/\1/p' "$W/err")
[ "${more:-0}" -gt 1 ]
report $? "and with which budget there would be" "$(cat "$W/err")"
for op in layer embedding head optimizer p2p all_reduce all_gather reduce_scatter broadcast copy_h2d copy_d2d launch; do
    in_file "{\"op\": \"$op\"," "a row of $op all the same"
done
runs 0 "it is a cluster" plan "$W/wide.json" "$W/p.json" --gpus 1 --global-batch 1 --dtype fp32 --framework degas
printf '{"format":"degas-profile-partial","version":1,"of":7}' >"$W/bad.json.partial"
fails 3 '\$.of: expected a string' "a partial profile that is none" profile "$W/tiny.json" --resume -o "$W/bad.json"
fails 4 'none.json.partial: cannot read' "nothing to go on from" profile "$W/tiny.json" --resume -o "$W/none.json"
fails 2 '--resume needs -o FILE' "going on from nowhere" profile "$W/tiny.json" --resume
fails 2 '--budget' "a budget of nothing" profile "$W/tiny.json" --budget 0
fails 2 '--dtype' "a number format that is none" profile "$W/tiny.json" --dtype fp17
fails 4 'none/p.json' "no folder for the product" profile "$W/tiny.json" --quick -o "$W/none/p.json"
if command -v script >/dev/null 2>&1; then
    script -qefc "$DEGAS profile gpt-mini --slices 256 --batches 1 --budget 2 --quick --concurrency 1" "$W/tty" >/dev/null </dev/null
    grep -q '[0-9] %  [0-9]* s left  timing layers' "$W/tty"
    report $? "a terminal is told how much is left" "$(head -c 600 "$W/tty")"
else
    skip "a terminal is told how much is left" "script is not installed"
fi

# --- on an emulated GPU ---

# told STATUS PATTERN NAME FAKE: a device like this is not profiled
told() {
    FAKE_CUDA=$4
    export FAKE_CUDA
    fails "$1" "$2" "$3" profile "$W/tiny.json" --device cuda --quick --budget 1 --slices 16 --batches 1 -o "$W/no.json"
    unset FAKE_CUDA
    [ ! -e "$W/no.json" ] && [ ! -e "$W/no.json.partial" ]
    report $? "$3: no product" "$(ls "$W")"
}

if [ ! -e "$emulated/degas-cuda.so" ]; then
    skip "a profile of an emulated GPU" "it needs the CUDA toolkit's headers and g++"
    finish
fi
DEGAS_PLUGIN_DIR=$emulated
export DEGAS_PLUGIN_DIR
cat >"$W/nvml.c" <<'END'
#include <stdio.h>
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned n) { return snprintf(text, n, "580.65.06") <= 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) { *device = 0; return strcmp(bus, "0000:01:00.0"); }
int nvmlDeviceGetClockInfo(void *device, int which, unsigned *mhz) { *mhz = which == 1 ? 1305 : 1900; return 0; }
END
if ${CC:-cc} -shared -fPIC -o "$W/libnvidia-ml.so.1" "$W/nvml.c" 2>/dev/null; then
    LD_LIBRARY_PATH=$W
    export LD_LIBRARY_PATH
    expect='driver for CUDA 13.0 580.65.06, cuBLASLt 13.0.0, clock 1305 of 1500 MHz, memory clock 1900 of 2000 MHz'
else
    expect='driver for CUDA 13.0, cuBLASLt 13.0.0, clock up to 1500 MHz, memory clock up to 2000 MHz'
fi
runs 0 "a profile of an emulated GPU" profile "$W/tiny.json" --device cuda --quick --budget 1 --slices 16 --batches 1 \
    -o "$W/p.json"
unset LD_LIBRARY_PATH
in_file "\"measured_on\": \"emulated GPU, CUDA 13.0 (products by the fastest of 8 kernels, attention by wgmma where heads have 64 or 128), $expect\"" "it names device, driver, clocks and versions"
grep -q '^degas: profile: messages and collectives between GPUs were not timed: there is one GPU' "$W/err"
report $? "it says why there are no collectives between GPUs" "$(cat "$W/err")"
in_file '"measured_dtype": "bf16"' "its numbers are bf16"
in_file '"measured_attention": "mma"' "so is its attention's kernel named"
in_file '"name": "emulated GPU"' "its cluster is the device"
# 132 multiprocessors of 1.5 GHz, 4096 operations each a cycle
in_file '"bf16": 811008000000000' "whose peak is computed where there is no data sheet"
in_file '"host_kernel_s": "measured: launch"' "launches become a parameter"
in_file '"interference_fraction": "measured: a layer beside all_reduce"' "so does interference"
for beside in copy_h2d copy_d2d all_reduce; do
    in_file "{\"beside\": \"$beside\", \"n_ranks\": 1, \"factor\"" "a layer beside $beside"
done
for ranks in 2 4; do
    in_file "{\"beside\": \"nothing\", \"n_ranks\": $ranks, \"factor\"" "a layer on one of $ranks shares"
    in_file "{\"beside\": \"compute\", \"n_ranks\": $ranks, \"factor\"" "a layer on each of $ranks shares"
done
in_file '{"op": "layer", "pass": "backward_weight", "batch": 1, "tokens": 16, "context": 0, "tp": 1,' "layers are timed"
FAKE_CUDA=name=200
export FAKE_CUDA
runs 0 "a device with a data sheet" profile "$W/tiny.json" --device cuda --quick --budget 1 --slices 16 --batches 1 \
    --concurrency 2 --tp 1,2 -o "$W/p.json"
grep -q 'were not timed: --concurrency makes ranks of one GPU' "$W/err"
report $? "ranks on shares of one GPU are not GPUs" "$(cat "$W/err")"
in_file '"name": "H200-SXM5-141GB"' "it is found by its name"
in_file '"bf16": 494700000000000' "each of two ranks has half of its peak"
in_file '"tokens": 16, "context": 0, "tp": 2,' "layers over two ranks are timed"
# A host that needs 50 us at least for each launch, which a device computes in 10 us: queueing is not in the times.
FAKE_CUDA=host_us=50,device_us=10
runs 0 "a host that is slow to queue" profile "$W/tiny.json" --device cuda --quick --budget 1 --slices 16 --batches 1 \
    -o "$W/p.json"
awk -F'[:,}]' '/"op": "(layer|head)", "pass": "backward_weight"/ {
    for (i = 1; i < NF; i++) { if ($i ~ /"median_s"/) time = $(i + 1); if ($i ~ /"queue_s"/) queue = $(i + 1) }
    n_launches = int(time / 1e-5 + 0.5)
    off = time / 1e-5 - n_launches
    n++; if (n_launches < 1 || off * off > 1e-4 || queue < n_launches * 5e-5) bad = 1
} END { exit bad || n != 2 }' "$W/p.json"
report $? "times of ops are the device's, and the host's stand beside them" "$(grep backward_weight "$W/p.json")"
in_file '"op": "layer", "pass": "forward", .*"queue_s": [0-9.e-]*, "cold_s": [0-9.e-]*, "warm_s": [0-9.e-]*}' \
    "with cold and with warm caches, too"
# Streams that lag behind: what is read too early would be a time that is none.
FAKE_CUDA=async=1
DEGAS_CUDA_ATTENTION=wgmma runs 0 "a device that takes its time" profile "$W/head64.json" --device cuda --quick --budget 1 --slices 16 --batches 1 \
    -o "$W/p.json"
! grep -q '"median_s": [-0],' "$W/p.json"
report $? "all of it was waited for" "$(grep '"median_s": [-0],' "$W/p.json")"
in_file '"measured_attention": "wgmma"' "the kernel of its attention is the one that was asked for"
unset FAKE_CUDA
# What a thread opens or closes ends the capture of another: layers without a break are captured all the time.
FAKE_CUDA=capture_us=5000
export FAKE_CUDA
runs 0 "captures that take long" profile "$W/tiny.json" --device cuda --quick --budget 1 --slices 16 --batches 1 -o "$W/p.json"
! grep -q 'how much slower layers become' "$W/err"
report $? "no thread ends the capture of another" "$(cat "$W/err")"
unset FAKE_CUDA

# Newer attention kernels that are faster than the others, and such that never end.
FAKE_CUDA=device_us=10,mma_us=10000
export FAKE_CUDA
runs 0 "attention that is faster by wgmma" profile "$W/head64.json" --device cuda --quick --budget 1 --slices 16 --batches 1 \
    -o "$W/p.json"
grep -q '^degas: profile: attention by wgmma: wgmma is [0-9.]* times as fast as mma' "$W/err"
report $? "it says which is used, and why" "$(cat "$W/err")"
in_file '"measured_attention": "wgmma"' "it is what was timed"
in_file '"measured_attention_why": "wgmma is [0-9.]* times as fast' "the reason is kept"
FAKE_CUDA=wgmma_hang=1
runs 0 "attention by wgmma that never ends" profile "$W/head64.json" --device cuda --quick --budget 1 --slices 16 --batches 1 \
    -o "$W/p.json"
in_file '"measured_attention": "mma"' "the other is used"
in_file '"measured_attention_why": "wgmma did not end within 10 s"' "the reason is kept"
unset FAKE_CUDA
# Scratch of 65536 sequences are 192 MiB; one needs some KiB beside 32 MiB for products.
FAKE_CUDA=memory=170000000
export FAKE_CUDA
runs 0 "a device too small for one of the batches" profile "$W/tiny.json" --device cuda --quick --budget 1 \
    --slices 16 --batches 65536,1 -o "$W/p.json"
grep -q '^degas: profile: micro-batches of 65536 are left out: .*no memory for [0-9]* bytes of .* are free' "$W/err"
report $? "it says which, and for want of what" "$(cat "$W/err")"
in_file '{"op": "head", "pass": "backward", "batch": 1, ' "the others are timed"
! grep -q '"op": "head", .*"batch": 65536' "$W/p.json"
report $? "that one is not" "$(grep '"batch": 65536' "$W/p.json")"
unset FAKE_CUDA
# Three backends' workspaces are 96 MiB; copies of 16 MiB need 32.
FAKE_CUDA=memory=125000000
export FAKE_CUDA
runs 0 "a device too small for the largest copies" profile "$W/tiny.json" --device cuda --quick --budget 1 \
    --slices 16 --batches 1 -o "$W/p.json"
grep -q '^degas: profile: copies of 16777216 bytes and more are left out: .*no memory for 33554432 bytes of .* are free' "$W/err"
report $? "it says which, and for want of what" "$(cat "$W/err")"
in_file '{"op": "copy_d2h", "bytes": 262144, ' "the others are timed"
! grep -q '"op": "copy_.*"bytes": 16777216' "$W/p.json"
report $? "those are not" "$(grep '"op": "copy_' "$W/p.json")"
unset FAKE_CUDA
told 6 'no NVIDIA driver on this machine' "no driver" driver=0
told 6 'driver is for CUDA 12.4, this build needs one for CUDA 13' "an old driver" driver=12040
told 6 'finds no GPU' "no device" devices=0
told 6 'in use by another process' "a device in use" busy=1
told 6 'compute capability 7.5 is too old' "an old device" capability=75
told 5 'no memory for [0-9]* bytes of .* are free' "a device that is too small" memory=80000000
told 7 'unspecified launch failure' "a kernel that fails at once" launch=30
told 6 'unspecified launch failure' "a kernel that fails later" launch=200
finish
