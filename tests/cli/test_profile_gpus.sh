#!/bin/sh
# degas profile --device cuda on a machine with several GPUs (emulated, with a fake NCCL): messages and collectives
# between them, how they are priced, and what happens when one rank fails; on one GPU it says why there are none.
# Test runner: first.
# shellcheck source=tests/cli/tap.sh
. tests/cli/tap.sh

emulated=$(dirname "$(readlink -f "$DEGAS")")/emulated
TMPDIR=$W # of the fake NCCL's files
export TMPDIR
printf '{"format":"degas-model","version":1,"name":"tiny","family":"gpt","n_layers":1,"hidden":16,"ffn_hidden":16,
    "n_heads":2,"vocab":16,"max_seq_len":16}' >"$W/tiny.json"

fails 2 '--gpus' "a number of GPUs that is none" profile "$W/tiny.json" --device cuda --gpus 0
if [ ! -e "$emulated/libnccl.so.2" ]; then
    skip "collectives between GPUs" "it needs the CUDA toolkit's headers and g++"
    finish
fi
mkdir "$W/plugins"
cp "$emulated"/*.so* "$W/plugins"
DEGAS_PLUGIN_DIR=$W/plugins
FAKE_CUDA=devices=3
export DEGAS_PLUGIN_DIR FAKE_CUDA
P="profile $W/tiny.json --device cuda --quick --budget 1 --slices 16 --batches 1"

# in_file PATTERN NAME: the profile has such a line
in_file() {
    grep -q -e "$1" "$W/p.json"
    report $? "$2" "$(cut -c1-160 "$W/p.json" | head -60)"
}

# --- three GPUs ---

# shellcheck disable=SC2086
runs 0 "three GPUs" $P -o "$W/p.json"
! grep -q 'were not timed' "$W/err"
report $? "there is nothing to say of them" "$(cat "$W/err")"
in_file '"measured_on": "emulated GPU.*, NCCL 2.28.9 between 3 GPUs"' "it says between what, and with what"
in_file '"measured_concurrency": 3' "what was timed on one holds for all"
in_file '{"device": "emulated GPU", "n_devices": 3, "n_nodes": 1}' "the machine has three devices"
in_file '"bf16": 811008000000000' "whole ones"
# Smallest and largest size: 4 KiB, and what holds the gradients, but at least 64 KiB; over 3 ranks whole elements for each.
for op in all_reduce all_gather reduce_scatter broadcast all_to_all; do
    for shape in '4096, "n_ranks": 2' '65536, "n_ranks": 2' '4092, "n_ranks": 3' '65532, "n_ranks": 3'; do
        in_file "{\"op\": \"$op\", \"bytes\": $shape, \"median_s\": [0-9.e-]*[1-9]" "$op of $shape"
    done
done
for bytes in 4096 65536; do
    in_file "{\"op\": \"p2p\", \"bytes\": $bytes, \"n_ranks\": 2, \"median_s\": [0-9.e-]*[1-9]" "messages of $bytes bytes"
done
json "the link is what messages say, and rows are between GPUs only" "
rows = [r for r in d['measured'] if r['op'] == 'p2p']
assert {r['bytes'] % 4096 for r in rows} == {0}, rows
level = d['cluster']['levels'][0]
most = max(rows, key=lambda r: r['bytes'])
assert abs(level['bytes_per_s'] * d['cost']['p2p_fraction'] * most['median_s'] / most['bytes'] - 1) < 1e-9, level
assert {r['n_ranks'] for r in d['measured'] if r['op'] == 'all_reduce'} == {2, 3}" "$W/p.json"
runs 0 "it is a cluster to plan for" plan "$W/tiny.json" "$W/p.json" --gpus 2 --dp 2 --global-batch 2 \
    --framework degas --zero 0

# --- a rank fails: FAKE_NCCL, STATUS, PATTERN, NAME ---

wrong() {
    FAKE_NCCL=$1
    export FAKE_NCCL
    : >"$W/time"
    beats_begin
    # shellcheck disable=SC2086
    fails "$2" "$3" "$4" $P -o "$W/no.json"
    beats_end
    [ "$took" -le 25 ] && [ ! -e "$W/no.json" ] && [ ! -e "$W/no.json.partial" ]
    report $? "... soon, and without a product" "after $took s: $(ls "$W")"
    unset FAKE_NCCL
}
wrong async=20,rank=1 7 'rank 1 failed in the timing of collectives: transport nccl: an asynchronous error .*: unhandled system error' \
    "an asynchronous error on one rank"
wrong call=20,rank=2 7 'rank 2 failed in the timing of collectives: transport nccl: nccl[A-Z].*: invalid usage' \
    "a call that fails on one rank"
wrong init=3,rank=1 7 'rank 1 failed in its preparations: transport nccl: ncclCommInitRankConfig .*: internal error' \
    "a communicator that cannot be made"
# What a rank did last is as old as its last pulse.
wrong kill=40,rank=1 7 'rank 1 (process [0-9]* on .*) died in .*\(preparations\|collectives\|step 0\)' "a rank that dies"
wrong version=21805,rank=1 1 'rank 0 has NCCL 2.28.9, rank 1 has 2.18.5: all need the same' "different versions"
left=$(pgrep -af "profile $W/" || true)
[ -z "$left" ]
report $? "no process is left" "$left"

# --- what is not timed, and why ---

# shellcheck disable=SC2086
fails 2 '--gpus: 4: this machine has 3' "more GPUs than there are" $P --gpus 4
# shellcheck disable=SC2086
fails 2 '--tp: 2: layers are timed on one GPU' "layers over several" $P --tp 1,2

# shellcheck disable=SC2086
FAKE_NCCL=version=21700 runs 0 "an NCCL that is too old" $P -o "$W/p.json"
grep -q '^degas: profile: messages and collectives between GPUs were not timed: transport nccl: .* is NCCL 2.17.0' "$W/err"
report $? "it says so and goes on" "$(cat "$W/err")"
in_file '"n_devices": 1' "the profile is of one GPU"
FAKE_CUDA=devices=1
# shellcheck disable=SC2086
NCCL_HOSTID=proof runs 0 "one GPU whose ranks are said to be on hosts of their own: a proof of function" $P \
    -o "$W/p.json"
in_file '"measured_on": ".*, NCCL 2.28.9 between 2 ranks on 1 GPU: a proof of function, no speed"' "which says so"
in_file '{"op": "all_to_all", "bytes": 65536, "n_ranks": 2' "its collectives are there"
finish
