#!/bin/sh
# degas import: small files in the formats of other tools, made by hand; what they say is in the
# profile, what is wrong with them is one line.
. tests/cli/tap.sh

if ! command -v python3 >/dev/null 2>&1; then
    skip "import" "python3 is not installed"
    finish
fi

# rows OP: lines "n_ranks bytes median" of the profile $W/p.json
rows() {
    python3 -c "
import json
for r in json.load(open('$W/p.json'))['measured']:
    if r['op'] == '$1':
        print(r.get('n_ranks', ''), r.get('bytes', ''), float('%.12g' % r['median_s']))"
}

# --- nccl-tests, text: as all_reduce_perf -b 1M -e 2M -f 2 -g 2 prints it ---
cat >"$W/nccl.txt" <<'T'
# nccl-tests version 2.17.1 nccl-headers=22703 nccl-library=22703
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 1048576 maxBytes 2097152 step: 2(factor) warmup iters: 1 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid  15000 on      host device  0 [0000:07:00] NVIDIA A100-SXM4-80GB
#  Rank  1 Group  0 Pid  15000 on      host device  1 [0000:0f:00] NVIDIA A100-SXM4-80GB
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
host:15000:15000 [0] NCCL INFO Bootstrap : Using eth0
     1048576        262144     float     sum      -1    44.21   23.72   23.72       0    43.00   24.33   24.33       0
     2097152        524288     float     sum      -1    5.9e1   35.54   35.54     N/A    60.00   34.95   34.95     N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 29.6
#
T
runs 0 "nccl-tests, text" import "$W/nccl.txt" --cluster dgx-a100-80g -o "$W/p.json"
rows all_reduce >"$W/out"
has '^2 1048576 4.3e-05$' "a size, in seconds, in place"
has '^2 2097152 6e-05$' "an exponent, N/A for what was not checked"
runs 0 "show reads it" show "$W/p.json"
# The columns tell all-reduce from reduce-scatter where no line names it: busbw/algbw is 2(n-1)/n.
grep -v 'Collective test' "$W/nccl.txt" >"$W/unnamed.txt"
runs 0 "without its name" import "$W/unnamed.txt" --cluster dgx-a100-80g -o "$W/p.json"
rows all_reduce >"$W/out"
has '^2 1048576 4.3e-05$' "it is an all-reduce by its bandwidths"
sed 's/ sum / none /' "$W/unnamed.txt" >"$W/unknown.txt"
fails 3 'unknown.txt:12: which collective this is is not said; give --op' "or is not known" \
    import "$W/unknown.txt" --cluster dgx-a100-80g -o "$W/x.json"
runs 0 "unless it is said" import "$W/unknown.txt" --cluster dgx-a100-80g -o "$W/p.json" --op sendrecv
rows p2p >"$W/out"
has '^2 1048576 4.3e-05$' "send and receive are messages"

# --- nccl-tests as launchers and versions print it ---
has_rows() { # NAME [ROWS]: the table of $W/nccl.txt came through
    rows all_reduce >"$W/out"
    [ "$(tr '\n' ' ' <"$W/out")" = "${2:-2 1048576 4.3e-05 2 2097152 6e-05 }" ]
    report $? "$1" "$(cat "$W/out")"
}
reads() { # NAME SED: what is left of the table after SED says the same
    sed "$2" "$W/nccl.txt" >"$W/other.txt"
    runs 0 "$1" import "$W/other.txt" --cluster dgx-a100-80g -o "$W/p.json"
    has_rows "... has its rows"
}
reads "mpirun --tag-output" 's/^/[1,0]<stdout>:/'
reads "mpirun --tag-output of Open MPI 5" 's/^/[prterun-node7-4121@1,0]<stdout>: /'
reads "srun -l" 's/^/ 0: /'
reads "a time before each line" 's/^/2026-01-31T08:00:00.123456Z /'
reads "a suffix of the program" 's/all_reduce_perf/all_reduce_perf_mpi/'
reads "no # (pasted into a page)" 's/^#//'
reads "a day and a time at the end of rows" 's/#wrong$/#wrong           timestamp/; s/^  .*$/&   2026-01-31 08:00:00/'
reads "the form of 2022, without root" 's/redop    root/redop/; s/sum      -1/sum/; s/#wrong/error/g; s/       0 /   0e+00 /g'
reads "the same without header" '/type   redop/d; s/sum      -1/sum/'
reads "no header, a time of day" '/type   redop/d; s/^  .*$/&   2026-01-31 08:00:00/'
reads "columns of each iteration" \
    's/#wrong/#wrong i_min i_max i_p99 i_cv%/g; s/ \(0\|N.A\)  */ \1 1.5 2.5 2.4 9.1 /; s/ \(0\|N.A\)$/ \1 1.5 2.5 2.4 9.1/'
reads "the form of 2017, in milliseconds" \
    's/size  /bytes  /; s/count  /N  /; s/redop    root/op/; s/sum      -1/sum/; s/#wrong/res/g
s/43.00/0.043/; s/60.00/0.060/; s/44.21/0.04421/; s/5.9e1/0.059/'
reads "rccl-tests in place only" '/Using devices/i rccl-tests: Version develop:83d38d9
s/#wrong     time   algbw   busbw  #wrong/#wrong/; s/\(float     sum      -1\)   *[^ ]* *[^ ]* *[^ ]* *[^ ]*/\1/'
# NCCL's lines cut rows in two: after the root, and within the times.
reads "rows that other ranks' lines cut" \
    's/\(1048576 .*float     sum      -1\) \(.*\)/\1host:15001:15044 [1] NCCL INFO Connected all rings\n\2/
s/^\(.* 35.54\) \(.*N.A\)$/[1,0]<stdout>:\1\n[1,1]<stdout>:host:15001:15002 [1] NCCL INFO comm 0x1 rank 1 nranks 2\n[1,0]<stdout>: \2/'
sed 's/^\( *2097152 .*\) 34.95 .*/\1/' "$W/nccl.txt" >"$W/other.txt"
runs 0 "a run that was killed" import "$W/other.txt" --cluster dgx-a100-80g -o "$W/p.json"
has_rows "... has the whole rows" '2 1048576 4.3e-05 '
cp "$W/err" "$W/out"
has '1 row that is cut off was left out, at line 14' "... and the cut one is said"
# Two runs in one file: each has its own ranks.
sed 's/all_reduce/sendrecv/' "$W/nccl.txt" | cat - "$W/nccl.txt" >"$W/other.txt"
runs 0 "two runs in one file" import "$W/other.txt" --cluster dgx-a100-80g -o "$W/p.json"
has_rows "... have their own ranks and collectives"
sed 's/^#  Rank  1/#  Rank  0/' "$W/nccl.txt" >"$W/other.txt"
fails 3 'other.txt:13: each process ran alone on one device; build nccl-tests with MPI=1' "processes without MPI" \
    import "$W/other.txt" --cluster dgx-a100-80g -o "$W/x.json"

# --- ranks on several hosts: T = B / rate + latencies, cost-model.md 3.1 and 3.2 ---
several() { # HOSTS RANKS_PER_HOST OP TIME: a table; TIME is Python of p, the log of the size
    python3 - "$@" >"$W/several.txt" <<'P'
import sys
hosts, each, op, time = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
print(f'# Collective test starting: {op}_perf_mpi')
print('# Using devices')
for r in range(hosts * each):
    print(f'#  Rank {r:2} Group  0 Pid  1 on node-{r // each} device  {r % each} [0x07] NVIDIA A100')
for p in range(24, 34):
    t = eval(time) * 1e6
    half = f'{t:.4f} {2**p / t / 1e3:.2f} {2**p / t / 1e3:.2f} 0'
    print(2**p, 2**p // 4, 'float', 'sum', -1, half, half)
P
}
# Two DGX A100: a ring through 8 adapters of 25e9 bytes/s each, of which 0.80 is reached.
several 2 8 all_reduce '2 * 15 / 16 * 2**p / (8 * 25e9 * 0.80) + 100e-6'
runs 0 "16 ranks on a cluster of one node of 8" import "$W/several.txt" --cluster dgx-a100-80g -o "$W/p.json"
cat "$W/err" >>"$W/out"
has '0 rows, 10 times fitted' "are fitted, and are no rows"
cp "$W/p.json" "$W/out"
json "to the links between nodes" '
c = d["cost"]
assert abs(c["network_fraction"] - 0.80) < 0.02, c["network_fraction"]
assert d["cost_sources"]["network_fraction"] == "fitted to 10 times of nccl-tests", d["cost_sources"]
assert "measured" not in d and d["cluster"]["nodes"][0]["n_nodes"] == 1
'
# One GPU of each of two hosts: between nodes, not neighbours in one.
several 2 1 sendrecv '2**p / (25e9 * 0.70) + 20e-6'
runs 0 "messages between nodes" import "$W/several.txt" --cluster dgx-a100-80g -o "$W/p.json"
cp "$W/p.json" "$W/out"
json "are fitted as such" '
assert abs(d["cost"]["network_p2p_fraction"] - 0.70) < 0.02, d["cost"]["network_p2p_fraction"]
assert "measured" not in d
'
several 1 16 all_reduce '1e-3'
fails 2 'several.txt: 16 ranks are on one host, and a node of cluster dgx-a100-80g has 8 devices; give the --cluster' \
    "more ranks on a host than a node has devices" import "$W/several.txt" --cluster dgx-a100-80g -o "$W/x.json"
several 2 3 all_reduce '1e-3'
fails 2 'the hosts have 3 to 3 ranks' "ranks that no plan has" \
    import "$W/several.txt" --cluster dgx-a100-80g -o "$W/x.json"
several 2 1 all_reduce '1e-3'
fails 2 '1000 ranks do not fit into a node of cluster local-cpu, .* and no links to others' \
    "a cluster without a network" import "$W/several.txt" --cluster local-cpu --ranks 1000 -o "$W/x.json"

# --- collectives that have no rows: T = a + 7 l + 7/8 B / (300e9 f), cost-model.md 3.1 ---
python3 - "$W" <<'P'
import sys
with open(sys.argv[1] + '/gather.txt', 'w') as f:
    print('# Collective test starting: all_gather_perf', file=f)
    for r in range(8):
        print(f'#  Rank  {r} Group  0 Pid  1 on host device  {r} [0x07] NVIDIA A100', file=f)
    for p in range(20, 31):
        t = (35e-6 + 7 * 2.2e-6 + 7 / 8 * 2**p / (300e9 * 0.65)) * 1e6
        half = f'{t:.4f} {2**p / t / 1e3:.2f} {2**p / t / 1e3 * 7 / 8:.2f} 0'
        print(2**p, 2**p // 4, 'float', 'none', -1, half, half, file=f)
P
runs 0 "nccl-tests, all_gather" import "$W/gather.txt" --cluster dgx-a100-80g -o "$W/p.json"
cp "$W/p.json" "$W/out"
json "moves the links' parameters" '
c = d["cost"]
assert abs(c["link_fraction"] - 0.65) < 0.01, c["link_fraction"]
assert abs(c["collective_s"] - 35e-6) < 3e-6, c["collective_s"]
assert d["cost_sources"]["link_fraction"] == "fitted to 11 times of nccl-tests", d["cost_sources"]
assert "gemm_fraction" not in d["cost_sources"] and "measured" not in d
'

# --- nccl-tests, JSON ---
cat >"$W/nccl.json" <<'T'
{"version":3,"start_time":"x","args":["/opt/build/all_reduce_perf","-J","f"],"env":[],"nccl_version":"22809",
 "config":{"nthreads":1,"ngpus":2,"minimum_bytes":1048576},
 "devices":[{"rank":0,"group":0,"pid":1,"hostname":"h","device":0},{"rank":1,"group":0,"pid":1,"hostname":"h","device":1}],
 "results":[{"size":1048576,"count":262144,"type":"float","redop":"sum","root":"-1",
   "out_of_place":{"time":44.21,"alg_bw":23.72,"bus_bw":23.72,"nwrong":"0"},
   "in_place":{"time":43.00,"alg_bw":24.33,"bus_bw":"nan","nwrong":"0"}}],
 "out_of_bounds":{"count":0,"okay":"true"}}
T
runs 0 "nccl-tests, JSON" import "$W/nccl.json" --cluster dgx-a100-80g -o "$W/p.json"
rows all_reduce >"$W/out"
has '^2 1048576 4.3e-05$' "its row"

# --- PyTorch's profiler: two ranks' waits, the shortest counts ---
cat >"$W/kineto.json" <<'T'
{"schemaVersion":1,"deviceProperties":[],"distributedInfo":{"backend":"nccl","rank":0,"world_size":4},
 "displayTimeUnit":"ms","traceEvents":[
 {"ph":"M","name":"process_name","pid":0,"args":{"name":"python"}},
 {"ph":"X","cat":"cpu_op","name":"aten::mm","pid":0,"tid":1,"ts":1.0,"dur":9.5},
 {"ph":"X","cat":"kernel","name":"ncclDevKernel_AllReduce_Sum_bf16_RING_LL","pid":0,"tid":7,"ts":5.125,"dur":250.5,
  "args":{"device":0,"stream":7,"Collective name":"allreduce","In msg nelems":1048576,"Out msg nelems":1048576,"dtype":"BFloat16","Group size":4}},
 {"ph":"X","cat":"kernel","name":"ncclDevKernel_AllReduce_Sum_bf16_RING_LL","pid":0,"tid":7,"ts":500,"dur":90,
  "args":{"Collective name":"allreduce","In msg nelems":1048576,"Out msg nelems":1048576,"dtype":"BFloat16","Group size":4}},
 {"ph":"X","cat":"kernel","name":"ncclDevKernel_SendRecv","pid":0,"tid":8,"ts":900,"dur":40,
  "args":{"Collective name":"send","In msg nelems":524288,"Out msg nelems":524288,"dtype":"Half","Group size":2,"Dst Rank":1}},
 {"ph":"X","cat":"kernel","name":"ampere_bf16_gemm","pid":0,"tid":7,"ts":990,"dur":33,"args":{"device":0}}]}
T
runs 0 "PyTorch's profiler" import "$W/kineto.json" --cluster dgx-a100-80g -o "$W/p.json"
rows all_reduce >"$W/out"
has '^4 2097152 9e-05$' "the all-reduce, bytes of bf16, without the wait"
rows p2p >"$W/out"
has '^2 1048576 4e-05$' "a message"

# The ranks of a group say whether it is in a node: 4 of 8 apart are on four DGX.
sed 's/"Group size":4/"Group size":4,"Process Group Ranks":"[0, 8, 16, 24]"/' "$W/kineto.json" >"$W/other.json"
runs 0 "a group over several nodes" import "$W/other.json" --cluster dgx-a100-80g -o "$W/p.json"
cat "$W/err" >>"$W/out"
has '1 rows, 1 times fitted' "is fitted"
sed 's/"Group size":4/"Group size":4,"Process Group Ranks":"[8, 9, 10, 11]"/; s/size":4}/size":64}/' "$W/kineto.json" >"$W/other.json"
runs 0 "a group in the second node" import "$W/other.json" --cluster dgx-a100-80g -o "$W/p.json"
rows all_reduce >"$W/out"
has '^4 2097152 9e-05$' "is one in a node"
sed 's/world_size":4/world_size":64/; s/"Group size":2/"Group size":2,"Process Group Ranks":"[0, 1, 3]"/' "$W/kineto.json" >"$W/other.json"
fails 3 '2 skipped: ncclDevKernel_AllReduce of a group whose ranks are not said, 1 skipped: ncclDevKernel_SendRecv of a group whose ranks are not equally far apart' \
    "groups that may lie anywhere are skipped by name" import "$W/other.json" --cluster dgx-a100-80g -o "$W/x.json"
# A trace of 2022 (an excerpt of HolisticTraceAnalysis' tests/data/trace_diff, MIT licence, 2 V100): External id repeats
# the correlation, messages are said by ranges of nccl:.  One kernel has no launch.
python3 -c "
import gzip, json
d = json.load(open('tests/cli/import/kineto-2022.json'))
open('$W/old.json.gz', 'wb').write(gzip.compress(json.dumps(d).encode()))"
runs 0 "a trace of 2022, compressed" import "$W/old.json.gz" --cluster p3.16xlarge -o "$W/p.json"
cat "$W/err" >>"$W/out"
has '2 rows, 2 times fitted; 0 compute kernels taken, 2 skipped: of other number formats, 1 skipped: bound by memory, below 128 MiB, 1 skipped: ncclKernel_SendRecv without the size of its message' \
    "what was taken and what was not"
rows all_reduce >"$W/out"
python3 -c "
import json
events = json.load(open('tests/cli/import/kineto-2022.json'))['traceEvents']
for n in sorted(e['args']['Input Dims'][0][0] for e in events if e['name'] == 'nccl:all_reduce'):
    print('^2 %d ' % (4 * n))" >"$W/expected"
[ "$(wc -l <"$W/expected")" = 2 ] && [ "$(grep -c -f "$W/expected" "$W/out")" = 2 ]
report $? "its all-reduces over two ranks, of fp32" "$(cat "$W/expected" "$W/out")"
sed 's/"world_size": 2/"world_size": 16/' tests/cli/import/kineto-2022.json >"$W/other.json"
fails 3 '2 skipped: ncclKernel_AllReduce of a group whose size is not said' "of 16 ranks it does not say the group" \
    import "$W/other.json" --cluster p3.16xlarge -o "$W/x.json"
head -c 900 "$W/old.json.gz" >"$W/cut.json.gz"
fails 3 'cut.json.gz: cut off or damaged: gzip' "a compressed file that is cut off" \
    import "$W/cut.json.gz" --cluster p3.16xlarge -o "$W/x.json"
python3 -c "
import gzip
part = gzip.compress(bytes(1 << 24))
open('$W/bomb.gz', 'wb').write(part * 17)"
fails 3 'bomb.gz: more than 256 MiB' "one that grows beyond bounds" import "$W/bomb.gz" --cluster p3.16xlarge -o "$W/x.json"

# Its compute.  A product of 128x256 tiles on 108 multiprocessors, of whose last wave's idle part 0.6
# is paid: T = waves 2 128 256 (k + 128) / (0.70 312e12 / 108) + 3 us, cost-model.md 2.1; a kernel bound
# by memory: T = bytes / (0.80 2039e9).
python3 - "$W" <<'P'
import json, math, sys
events, ids = [], [0]
def op(name, dims, types, us, ts=None, via=None, kernel='gemm'):
    ids[0] += 1
    i, ts = ids[0], 1e6 * ids[0] if ts is None else ts
    args = {'External id': i}
    if dims is not None:
        args.update({'Input Dims': dims, 'Input type': types})
    events.append({'ph': 'X', 'cat': 'cpu_op', 'name': name, 'ts': ts - 9, 'dur': 5, 'args': args})
    link = {'External id': i, 'correlation': i} if via is None else {'correlation': 7000 + i}
    if via is not None:
        events.append({'ph': 'X', 'cat': 'cuda_runtime', 'name': 'cudaLaunchKernel', 'ts': ts - 8, 'dur': 3,
                       'args': {'External id': i, 'correlation': 7000 + i}})
    for part in us if isinstance(us, list) else [us]:
        events.append({'ph': 'X', 'cat': 'kernel', 'name': kernel, 'ts': ts, 'dur': part, 'args': link})
        ts += part
def product_us(m, n, k):
    filled = math.ceil(m / 128) * math.ceil(n / 256) / 108
    waves = filled + 0.6 * (math.ceil(filled) - filled)
    return (waves * 2 * 128 * 256 * (k + 128) / (0.70 * 312e12 / 108) + 3e-6) * 1e6
B = 'c10::BFloat16'
for k in (2048, 4096, 8192):
    t = product_us(8192, 8192, k)
    op('aten::mm', [[8192, k], [k, 8192]], [B, B], t)
    op('aten::mm', [[8192, k], [k, 8192]], [B, B], 1.5 * t)  # of two and of three the median is t
    op('aten::mm', [[8192, k], [k, 8192]], [B, B], [t / 4, 3 * t / 4], via='runtime')
t = product_us(8192, 16384, 4096)
op('aten::addmm', [[16384], [8192, 4096], [4096, 16384]], [B, B, B], t)
us = lambda n, e, tensors: n * e * tensors / (0.80 * 2039e9) * 1e6
op('aten::add', [[8192, 8192], [8192, 8192], []], [B, B, 'Scalar'], us(8192**2, 2, 3))
op('aten::gelu', [[8192, 8192], []], ['float', ''], us(8192**2, 4, 2))
# None of these says anything that is taken.
op('aten::topk', [[8, 64, 64], []], [B, 'Scalar'], 50)
op('aten::mm', None, None, 70)
op('aten::mm', [[64, 32], [16, 64]], [B, B], 70)
op('aten::mm', [[[64, 32]], 'x'], [B, B], 70)
op('aten::mm', [[64, 64], [64, 64]], ['float', 'float'], 70)
op('aten::mm', [[64, 64], [64, 64]], ['c10::Strange', 'c10::Strange'], 70)
op('aten::add', [[64, 64], [64, 64], []], [B, B, 'Scalar'], 9)
op('aten::mm', [[64, 64], [64, 64]], [B, B], 0)
op('aten::mm', [[8192, 8192], [8192, 8192]], [B, B], 100)
op('aten::mm', [[8192, 4096], [4096, 4096]], [B, B], 9000, ts=5000.0)
events.append({'ph': 'X', 'cat': 'kernel', 'name': 'ncclDevKernel_AllReduce', 'ts': 6000, 'dur': 10})
json.dump({'traceEvents': events}, open(sys.argv[1] + '/compute.json', 'w'))
P
runs 0 "PyTorch's profiler, compute" import "$W/compute.json" --cluster dgx-a100-80g -o "$W/p.json"
cat "$W/err" >>"$W/out"
has '0 rows, 6 times fitted; 15 compute kernels taken, 1 skipped: of other operators, 3 skipped: without usable Input Dims, 2 skipped: of other number formats, 1 skipped: bound by memory, below 128 MiB, 1 skipped: without a time, 1 skipped: faster than the device, 1 skipped: beside a collective' \
    "what was taken and what was not"
cp "$W/p.json" "$W/out"
json "moves the shares of peak and of bandwidth" '
c = d["cost"]
assert abs(c["gemm_fraction"] - 0.70) < 0.01, c["gemm_fraction"]
assert abs(c["memory_fraction"] - 0.80) < 0.01, c["memory_fraction"]
assert d["cost_sources"]["gemm_fraction"] == "fitted to 6 times of PyTorch\x27s profiler", d["cost_sources"]
assert "link_fraction" not in d["cost_sources"] or "fitted" not in d["cost_sources"]["link_fraction"]
assert c["memory_kernel_s"] == 2e-5 and "measured" not in d
'

# A trace with everything that torch.profiler exports around the kernels: metadata, flows from
# launches (ac2g) and to backward (fwdbwd), Python's functions, copies by the driver, two threads.
# Attention: T = causal F / (share * filled * 312e12) + 3 us a kernel, blocks of 128 rows on 108
# multiprocessors; backward 2.5 F in three kernels, cost-model.md 2.2.
cat >"$W/full.py" <<'P'
import json, math, sys
events, ids = [], [1000]
B, H = 'c10::BFloat16', 'c10::Half'
def strides(dims):
    out, s = [], 1
    for d in reversed(dims):
        out.insert(0, s)
        s *= d
    return out
def call(name, dims, types, kernels, constants=None, thread=71, inner=None, stride=None, old=False):
    """A call and its kernels, inside one of another name where a library nests them."""
    ids[0] += 10
    i = ids[0]
    ts = 4000.0 * (i - 1000)
    args = {'External id': i, 'Record function id': 0, 'Ev Idx': i, 'Input Dims': dims, 'Input type': types,
            'Input Strides': stride or [strides(d) for d in dims], 'Sequence number': i}
    if constants is not None:
        args['Concrete Inputs'] = constants
    outer = {'ph': 'X', 'cat': 'cpu_op', 'name': name, 'pid': 70, 'tid': thread, 'ts': ts - 90, 'dur': 80.5, 'args': args}
    events.append(outer)
    if inner is not None:
        i += 1
        events.append(dict(outer, name=inner[0], ts=ts - 80, dur=60.25, args=dict(
            args, **{'External id': i, 'Input Dims': inner[1], 'Concrete Inputs': inner[2],
                     'Input type': (types + ['Scalar'] * 20)[:len(inner[1])],
                     'Input Strides': [strides(d) for d in inner[1]]})))
    for k, (kernel, us) in enumerate(kernels):
        c = 100 * i + k
        launch = {'cbid': 211, 'correlation': c}
        if not old:
            launch['External id'] = i
        events.append({'ph': 'X', 'cat': 'cuda_runtime', 'name': 'cudaLaunchKernel', 'pid': 70, 'tid': thread,
                       'ts': ts - 50 + k, 'dur': 4.1, 'args': launch})
        events.append({'ph': 's', 'id': c, 'pid': 70, 'tid': thread, 'ts': ts - 50 + k, 'cat': 'ac2g', 'name': 'ac2g'})
        key = 'external id' if old else 'External id'
        events.append({'ph': 'X', 'cat': 'kernel', 'name': kernel, 'pid': 0, 'tid': 7, 'ts': ts, 'dur': us,
                       'args': {key: i, 'queued': 0, 'device': 0, 'context': 1, 'stream': 7, 'correlation': c,
                                'registers per thread': 255, 'shared memory': 81920, 'blocks per SM': 9.5,
                                'warps per SM': 38.0, 'grid': [16, 1, 64], 'block': [128, 1, 1],
                                'est. achieved occupancy %': 12}})
        events.append({'ph': 'f', 'id': c, 'pid': 0, 'tid': 7, 'ts': ts, 'cat': 'ac2g', 'name': 'ac2g', 'bp': 'e'})
        ts += us
def attention_s(heads, rows, keys, size, share, products, causal):
    blocks = heads * math.ceil((rows if products == 2 else keys) / 128)
    filled = blocks / (108 * math.ceil(blocks / 108))
    needed = 1 - (rows - 1) / (2 * keys) if causal else 1
    # What dgx-a100-80g says that a block does once: 200 keys of each query forward, 300 queries of each key backward.
    once = 1 + (200 / (keys * needed) if products == 2 else 300 / (rows * needed))
    return 2 * products * heads * rows * keys * size * needed * once / (share * filled * 312e12)
def bound(tensors_bytes, share):
    return tensors_bytes / (share * 2039e9) * 1e6
scalars = lambda n: [[]] * n
for tokens, causal in ((2048, True), (4096, True), (8192, True), (4096, False)):
    q, k = [2, tokens, 32, 128], [2, tokens, 8, 128]
    heads_first = lambda d: [d[0], d[2], d[1], d[3]]
    us = 1e6 * attention_s(64, tokens, tokens, 128, 0.50, 2, causal) + 3
    call('aten::_scaled_dot_product_flash_attention', [heads_first(d) for d in (q, k, k)] + scalars(3),
         [B] * 3 + ['Scalar'] * 3, [('pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>', us)],
         ['', '', '', '0.', str(causal), 'False'],
         inner=('aten::_flash_attention_forward', [q, k, k] + scalars(7),
                ['', '', '', '', '', str(tokens), str(tokens), '0.', str(causal), 'False']))
    us = 1e6 * attention_s(64, tokens, tokens, 128, 0.45, 5, causal) + 9
    call('aten::_flash_attention_backward', [q, q, k, k, q, [2, 32, tokens]] + scalars(6), [B] * 5 + ['float'] + [''] * 6,
         [('pytorch_flash::flash_bwd_dot_do_o_kernel', 0.05 * us),
          ('pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel', 0.9 * us),
          ('pytorch_flash::flash_bwd_convert_dq_kernel', 0.05 * us)],
         [''] * 8 + [str(tokens)] * 2 + ['0.', str(causal)], thread=72)
# The same by cuDNN and by FlashAttention's own package: medians of equal shapes are one time.
us = 1e6 * attention_s(64, 4096, 4096, 128, 0.50, 2, True) + 3
q = [2, 4096, 32, 128]
call('aten::_scaled_dot_product_cudnn_attention', [[2, 32, 4096, 128]] * 3 + scalars(5), [H] * 3 + [''] * 5,
     [('cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob', us)],
     ['', '', '', '', 'True', '0.', 'True', 'False'])
call('flash_attn::_flash_attn_forward', [[1, 8192, 32, 128]] * 3 + scalars(3), [H] * 3 + ['Scalar'] * 3,
     [('void flash_fwd_kernel<Flash_fwd_kernel_traits<128>>', 1e6 * attention_s(32, 8192, 8192, 128, 0.50, 2, True) + 3)],
     ['', '', '', '0.', '0.0884', 'True'], old=True)
# 128 x 256 tiles, 16 products of 4096 x 4096 x 128: not the experts' rate.
filled = 16 * 32 * 16 / 108
waves = filled + 0.6 * (math.ceil(filled) - filled)
call('aten::bmm', [[16, 4096, 128], [16, 128, 4096]], [B, B],
     [('ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nn', waves * 2 * 128 * 256 * 256 / (0.81 * 312e12 / 108) * 1e6 + 3)],
     stride=[[524288, 128, 1], [524288, 1, 128]])
n = 8192 * 16384
x = [8192, 16384]
call('aten::native_layer_norm', [x, [], [16384], [16384], []], [B, 'ScalarList', B, B, 'Scalar'],
     [('vectorized_layer_norm_kernel<c10::BFloat16, float>', bound(4 * n, 0.8))], ['', '[16384]', '', '', '1e-05'])
call('aten::native_layer_norm_backward', [x, x, [], [8192, 1], [8192, 1], [16384], [16384], []],
     [B, B, 'ScalarList', 'float', 'float', B, B, ''],
     [('layer_norm_grad_input_kernel_vectorized', bound(6 * n, 0.8)), ('cuComputeGradGammaBeta', bound(4 * n, 0.8))])
call('aten::_softmax', [x, [], []], [B, 'Scalar', 'Scalar'], [('cunn_SoftMaxForward<8, c10::BFloat16, float, float>', bound(6 * n, 0.8))],
     ['', '-1', 'True'])
call('aten::_softmax_backward_data', [x, x, [], []], ['float', 'float', 'Scalar', 'Scalar'],
     [('cunn_SoftMaxBackward', bound(12 * n, 0.8))], ['', '', '-1', '6'])
call('aten::_log_softmax', [x, [], []], ['float', 'Scalar', 'Scalar'], [('cunn_SoftMaxForward', bound(8 * n, 0.55))],
     ['', '1', 'False'])
call('aten::copy_', [x, x, []], ['float', B, 'Scalar'], [('unrolled_elementwise_kernel<direct_copy_kernel_cuda>', bound(6 * n, 0.8))],
     ['', '', 'False'])
# A transposed copy, which is slower; a softmax and an attention that do not say enough.
call('aten::copy_', [x, x, []], [B, B, 'Scalar'], [('elementwise_kernel', bound(4 * n, 0.2))], ['', '', 'False'],
     stride=[[16384, 1], [1, 8192], []])
call('aten::_softmax', [x, [], []], [B, 'Scalar', 'Scalar'], [('cunn_SoftMaxForward', 900)])
call('aten::_flash_attention_forward', [q] * 3 + scalars(7), [B] * 3 + [''] * 7, [('flash_fwd_kernel', 9000)])
call('aten::_flash_attention_forward', [q, [2, 4096, 5, 128], [2, 4096, 5, 128]] + scalars(7), [B] * 3 + [''] * 7,
     [('flash_fwd_kernel', 9000)], [''] * 8 + ['True'] * 2)
call('aten::bmm', [[16, 64, 64], [8, 64, 64]], [B, B], [('gemm', 90)])
events += [
    {'ph': 'X', 'cat': 'gpu_memcpy', 'name': 'Memcpy DtoD (Device -> Device)', 'pid': 0, 'tid': 7, 'ts': 9e6, 'dur': 55.5,
     'args': {'External id': 1010, 'device': 0, 'stream': 7, 'correlation': 5, 'bytes': 1048576, 'memory bandwidth (GB/s)': 18.9}},
    {'ph': 'X', 'cat': 'gpu_memset', 'name': 'Memset (Device)', 'pid': 0, 'tid': 7, 'ts': 9.1e6, 'dur': 1.5, 'args': {'bytes': 4}},
    {'ph': 'X', 'cat': 'python_function', 'name': 'train.py(31): step', 'pid': 70, 'tid': 71, 'ts': 1.0, 'dur': 9e6,
     'args': {'Python id': 1, 'Python parent id': None}},
    {'ph': 'X', 'cat': 'user_annotation', 'name': 'ProfilerStep#5', 'pid': 70, 'tid': 71, 'ts': 1.0, 'dur': 9e6, 'args': {}},
    {'ph': 's', 'cat': 'fwdbwd', 'name': 'fwdbwd', 'id': 3, 'pid': 70, 'tid': 71, 'ts': 7.5},
    {'ph': 'i', 's': 't', 'name': '[memory]', 'cat': 'cpu_instant_event', 'pid': 70, 'tid': 71, 'ts': 8.5,
     'args': {'Total Allocated': 1, 'Bytes': -5, 'Device Id': 0, 'Device Type': 1}},
    {'ph': 'X', 'cat': 'Trace', 'name': 'PyTorch Profiler (0)', 'pid': 'Spans', 'tid': 'PyTorch Profiler', 'ts': 0.0, 'dur': 9e6, 'args': {'Op count': 0}},
    {'ph': 'i', 's': 'g', 'name': 'Iteration Start: PyTorch Profiler', 'pid': 'Traces', 'tid': 'Trace PyTorch Profiler', 'ts': 0.0},
    {'ph': 'M', 'name': 'process_name', 'pid': 70, 'tid': 0, 'ts': 0.0, 'args': {'name': 'python3'}},
]
json.dump({'schemaVersion': 1, 'deviceProperties': [{'id': 0, 'name': 'NVIDIA A100-SXM4-80GB', 'totalGlobalMem': 84987740160,
           'computeMajor': 8, 'computeMinor': 0, 'numSms': 108}], 'cuda_runtime_version': 12040, 'record_shapes': 1,
           'with_stack': 1, 'displayTimeUnit': 'ms', 'baseTimeNanoseconds': 1732000000000000000,
           'traceEvents': events, 'traceName': './trace.json'}, open(sys.argv[1], 'w'))
P
python3 "$W/full.py" "$W/full.json"
runs 0 "PyTorch's profiler, attention and more" import "$W/full.json" --cluster dgx-a100-80g -o "$W/p.json"
cat "$W/err" >>"$W/out"
has '0 rows, 17 times fitted; 26 compute kernels taken, 2 skipped: without usable Input Dims, 2 skipped: without Concrete Inputs, 1 skipped: of tensors with gaps or another order' \
    "what was taken and what was not"
cp "$W/p.json" "$W/out"
json "moves the shares of attention, of memory and of the loss" '
c = d["cost"]
for name, value in (("attention_forward_fraction", 0.50), ("attention_backward_fraction", 0.45), ("memory_fraction", 0.80),
                    ("loss_fraction", 0.55), ("gemm_fraction", 0.81), ("gemm_k_half", 128), ("kernel_s", 3e-6)):
    assert abs(c[name] / value - 1) < 0.012, (name, c[name])
    assert d["cost_sources"][name] == "fitted to 17 times of PyTorch\x27s profiler", (name, d["cost_sources"])
'
# A causal kernel that is taken for a full one would be twice as fast: beyond its share by far.
sed 's/"True", "False"\]/"False", "False"]/g' "$W/full.json" >"$W/other.json"
runs 0 "attention that is not causal" import "$W/other.json" --cluster dgx-a100-80g -o "$W/p.json"
cp "$W/p.json" "$W/out"
json "computes all scores" 'assert d["cost"]["attention_forward_fraction"] > 0.6, d["cost"]["attention_forward_fraction"]'
sed 's/"dur": 100,/"dur": NaN,/' "$W/compute.json" >"$W/nan.json"
fails 3 'nan.json:1:' "a time that is not a number" import "$W/nan.json" --cluster dgx-a100-80g -o "$W/x.json"
sed 's/"dur": 100,/"dur": -100,/' "$W/compute.json" >"$W/negative.json"
fails 3 'negative.json:1:.*dur' "a negative time" import "$W/negative.json" --cluster dgx-a100-80g -o "$W/x.json"

# --- nsys: a database as it exports it, two processes whose correlations are the same ---
cat >"$W/nsys.py" <<'P'
import math, sqlite3, sys
path, payload = sys.argv[1], len(sys.argv) < 3
db = sqlite3.connect(path)
db.executescript('''
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, streamId INT, correlationId INT, globalPid INT,
  demangledName INT, shortName INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, eventClass INT, globalTid INT, correlationId INT, nameId INT);
CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, globalTid INT, textId INT, domainId INT%s);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT, bytes INT, copyKind INT, srcKind INT, dstKind INT);
''' % (', jsonText TEXT' if payload else ''))
names, now, count = {}, 10**9, {}
def name(text):
    names.setdefault(text, len(names) + 1)
    return names[text]
def ranges(process, texts, kernel, seconds):
    """Ranges in each other, outermost first, and a kernel that the innermost launches."""
    global now
    now += 10**7
    count[process] = count.get(process, 0) + 1
    thread = (process << 24) + 77
    for i, (text, json) in enumerate(texts):
        row = (now + i, now + 9000 - i, 59, None if i % 2 else text, thread, name(text) if i % 2 else None, 0)
        if payload:
            row += (json,)
        db.execute('INSERT INTO NVTX_EVENTS VALUES (%s)' % ','.join('?' * len(row)), row)
    db.execute('INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,0,?,?,0)', (now + 4000, now + 5000, thread, count[process]))
    db.execute('INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,0,7,?,?,?,0)',
               (now + 8000, now + 8000 + round(seconds * 1e9), count[process], process << 24, name(kernel)))
def product_s(m, n, k):  # as in the trace above
    filled = math.ceil(m / 128) * math.ceil(n / 256) / 108
    waves = filled + 0.6 * (math.ceil(filled) - filled)
    return waves * 2 * 128 * 256 * (k + 128) / (0.70 * 312e12 / 108) + 3e-6
comm = '"NCCL communicator ID":17293822569102704640'
if payload:
    db.execute('INSERT INTO NVTX_EVENTS VALUES (5,6,59,?,1,NULL,0,?)', ('ncclCommInitRank', '{%s,"No. of ranks":4,"Rank":0}' % comm))
for k in (2048, 4096, 8192):
    linear = ('aten::linear, op_id = 1, sizes = [[8192, %d], [8192, %d]]' % (k, k), None)
    mm = ('aten::mm, seq = 3, op_id = 2, sizes = [[8192, %d], [%d, 8192]], input_op_ids = [[1,0]]' % (k, k), None)
    ranges(5, [linear, mm], 'sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x256', product_s(8192, 8192, k))
    ranges(6, [('optimizer', None)], 'void at::native::vectorized_elementwise_kernel<4, float>', 1e-3)
ranges(5, [('aten::mm, sizes = [[64, 64], [64, 64]]', None)], 'ampere_sgemm_64x64_nn', 1e-4)
ranges(5, [('aten::mm, sizes = [[64, 64], [64', None)], 'ampere_bf16_gemm', 1e-4)
for seconds in (9e-3, 2e-3):
    ranges(5, [('c10d::allreduce_', None), ('nccl:all_reduce', None), ('ncclAllReduce', '{%s,"Message size [bytes]":67108864}' % comm)],
           'ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096>)', seconds)
ranges(5, [('ncclGroupEnd', None)], 'ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096>)', 1e-3)
for us in (90, 100, 400):
    db.execute('INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (0,?,2097152,1,1,2)', (us * 1000,))
db.execute('INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (0,999000,2097152,1,0,2)')
db.execute('INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (0,50000,1048576,2,2,1)')
db.execute('INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (0,5000,8,1,1,2)')
db.executemany('INSERT INTO StringIds VALUES (?,?)', [(i, text) for text, i in names.items()])
db.commit()
P
python3 "$W/nsys.py" "$W/nsys.sqlite"
runs 0 "nsys" import "$W/nsys.sqlite" --cluster dgx-a100-80g -o "$W/p.json"
cat "$W/err" >>"$W/out"
has 'nsys: 3 rows, 3 times fitted; 3 compute kernels taken, 3 skipped: of other operators, 2 skipped: without usable Input Dims, 1 skipped: ncclDevKernel_SendRecv without the size of its message' \
    "what was taken and what was not"
cp "$W/p.json" "$W/out"
json "products, an all-reduce, copies of pinned memory" '
c = d["cost"]
assert abs(c["gemm_fraction"] - 0.70) < 0.01, c["gemm_fraction"]
rows = {(r["op"], r["bytes"], r.get("n_ranks")): r["median_s"] for r in d["measured"]}
assert len(rows) == 3 and abs(rows["all_reduce", 67108864, 4] - 2e-3) < 1e-9, rows
assert rows["copy_h2d", 2097152, None] == 1e-4 and rows["copy_d2h", 1048576, None] == 5e-5, rows
'
python3 "$W/nsys.py" "$W/old.sqlite" old
runs 0 "nsys without payloads" import "$W/old.sqlite" --cluster dgx-a100-80g -o "$W/p.json"
cat "$W/err" >>"$W/out"
has '2 rows, 3 times fitted; .*2 skipped: ncclDevKernel_AllReduce without the size of its message' "skips NCCL"
fails 2 'give --cluster' "nsys without a cluster" import "$W/nsys.sqlite" -o "$W/x.json"
head -c 9000 "$W/nsys.sqlite" >"$W/cut.sqlite"
fails 3 'cut.sqlite: .*malformed' "a database that is cut off" import "$W/cut.sqlite" --cluster dgx-a100-80g -o "$W/x.json"
python3 -c "
import sqlite3
db = sqlite3.connect('$W/view.sqlite')
db.execute('CREATE VIEW CUPTI_ACTIVITY_KIND_MEMCPY AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS start FROM n')
db.commit()"
fails 3 'view.sqlite: no copies, and no kernels' "tables that are endless views" \
    import "$W/view.sqlite" --cluster dgx-a100-80g -o "$W/x.json"

# --- TeraPipe: seconds of one layer ---
cat >"$W/tera.json" <<'T'
{"1_128_0":{"py_forward_mean":0.0011,"forward_mean":0.001,"forward_std":0.0001,"py_backward_mean":0.0021,"backward_mean":0.002,"update_mean":0.0003},
 "1_64_64":{"forward_mean":0.0008,"backward_mean":0.0015,"backward_std":0}}
T
runs 0 "TeraPipe" import "$W/tera.json" --cluster p3.16xlarge --model gpt3-1b --tp 8 -o "$W/p.json"
cp "$W/p.json" "$W/out"
json "its rows" '
r = {(x["pass"], x["tokens"], x["context"]): x for x in d["measured"]}
assert len(r) == 4 and all(x["op"] == "layer" and x["tp"] == 8 and x["batch"] == 1 for x in r.values())
assert r["forward", 128, 0]["median_s"] == 0.001 and r["backward", 64, 64]["median_s"] == 0.0015
assert abs(r["forward", 128, 0]["p90_s"] - (0.001 + 1.2816e-4)) < 1e-12  # a normal deviate
assert d["measured_model"]["name"] == "gpt3-1b" and d["measured_dtype"] == "fp16"
'
echo '{"model_name":"x","size_gap":32,"tensor_sizes":[32,64],"mean":[1e-5,2e-5],"std":[0,0]}' >"$W/comm.json"
runs 0 "TeraPipe's messages" import "$W/comm.json" --cluster p3.16xlarge --model gpt3-1b -o "$W/p.json"
rows p2p >"$W/out"
has '^2 131072 1e-05$' "32 tokens of 2048 fp16 numbers"
fails 3 'tera.json:1:1.*--model' "TeraPipe without its model" import "$W/tera.json" --cluster p3.16xlarge -o "$W/x.json"

# --- Sailor: {mbs: {tp: {layer: [forward, backward, update]}}} ---
runs 0 "what gpt-mini has" show gpt-mini --json
layers=$(python3 -c "import json; print(json.load(open('$W/out'))['n_layers'])")
python3 - "$W" "$layers" <<'P'
import json, sys
n = int(sys.argv[2])
layers = {0: [1e-4, 1e-6, 5e-3]}
layers.update({i: [1e-3 * i, 2e-3 * i, 5e-3] for i in range(1, n + 1)})
layers.update({n + 1: [1e-5, 2e-5, 5e-3], n + 2: [4e-3, 8e-3, 5e-3]})
json.dump({'2': {'1': layers}}, open(sys.argv[1] + '/sailor.json', 'w'))
P
runs 0 "Sailor" import "$W/sailor.json" --cluster dgx-h100 --model gpt-mini --seq-len 64 -o "$W/p.json"
cp "$W/p.json" "$W/out"
json "embedding, the layers' median, and the head with its norm" '
r = {(x["op"], x.get("pass")): x for x in d["measured"]}
n = d["measured_model"]["n_layers"]
assert r["layer", "forward"]["median_s"] == sorted(1e-3 * i for i in range(1, n + 1))[n // 2]
assert r["embedding", "forward"]["median_s"] == 1e-4 and r["layer", "backward"]["batch"] == 2
assert abs(r["head", "backward"]["median_s"] - 8.02e-3) < 1e-12
assert r["optimizer", None]["median_s"] == 5e-3 and r["layer", "forward"]["tokens"] == 64
'
fails 3 'seq-len' "Sailor without its sequence" \
    import "$W/sailor.json" --cluster dgx-h100 --model gpt-mini -o "$W/x.json"
fails 3 'layers (as --model has)' "Sailor of another model" \
    import "$W/sailor.json" --cluster dgx-h100 --model gpt3-1b --seq-len 64 -o "$W/x.json"
if [ -d ../shared/validation/sailor ]; then
    runs 0 "Sailor's own file" import ../shared/validation/sailor/LLAMA-3-8_GH-96.json \
        --cluster dgx-h100 --model llama3-8b --seq-len 2048 -o "$W/p.json"
else
    skip "Sailor's own file" "there is no ../shared/validation/sailor"
fi

# --- SimuMax: measured products are fitted ---
python3 - "$W" <<'P'
import json, sys
op = {'default': {'tflops': 312, 'efficient_factor': 0.75},
      'matmul': {'tflops': 312, 'efficient_factor': 0.75, 'accurate_efficient_factor': {
          'b=1, m=8192, k=8192, n=8192, layout=TN, accumulate=False, out_dtype=bf16': 0.70,
          'b=1, m=4096, k=8192, n=28672, layout=TN, accumulate=False, out_dtype=bf16': 0.70}},
      'sdp_fwd': {'tflops': 312, 'efficient_factor': 0.8}, 'sdp_bwd': {'tflops': 312, 'efficient_factor': 0.8},
      'group_matmul': {'tflops': 312, 'efficient_factor': 0.6}}
net = lambda gbps, share: {'processor_usage': 0.0, 'bandwidth': {'efficient_factor': share, 'gbps': gbps, 'latency_us': 10},
                           'op': {'all_reduce': {'scale': 2, 'offset': -1}, 'p2p': {'scale': 1, 'offset': 0}}}
json.dump({'sys_name': 'a100', 'num_per_node': 8, '_notes': 'x', 'accelerator': {
    'backend': 'cuda', 'mem_gbs': 80, 'op': op, 'mode': 'roofline',
    'bandwidth': {'default': {'efficient_factor': 0.91, 'gbps': 2039, 'latency_us': 40}}},
    'networks': {'intra_with_pcie': False, 'low_intra_node': net(30, 0.5), 'high_intra_node': net(300, 0.7),
                 'inter_node': net(25, 0.8)}}, open(sys.argv[1] + '/simumax.json', 'w'), indent=1)
P
runs 0 "SimuMax" import "$W/simumax.json" -o "$W/p.json"
cp "$W/p.json" "$W/out"
json "its cluster and shares" '
v = d["cluster"]["devices"][0]
assert v["flops_per_s"]["bf16"] == 312e12 and v["memory_bytes"] == 80 * 2**30 and v["memory_bytes_per_s"] == 2039e9
l = d["cluster"]["levels"]
assert l[0]["group_devices"] == 8 and l[0]["bytes_per_s"] == 300e9 and l[1]["bytes_per_s"] == 25e9
c = d["cost"]
assert c["link_fraction"] == 0.7 and c["network_fraction"] == 0.8 and c["memory_fraction"] == 0.91
assert c["attention_forward_fraction"] == 0.4 and abs(c["grouped_fraction"] - 0.8) < 1e-12
assert "fitted to 2 times of SimuMax" in d["cost_sources"]["gemm_fraction"], d["cost_sources"]
'
runs 0 "a plan on it" simulate gpt3-1b "$W/p.json" --global-batch 8 --tp 8 --json
# On PCIe: a network for each size of group; efficiencies of causal attention of one shape at 0.5 and 0.45 of what is
# needed, in its FLOPs of all scores, backward twice forward: F / (share peak) with the kernels' blocks filled.
python3 - "$W" <<'P'
import json, math, sys
d = json.load(open(sys.argv[1] + '/simumax.json'))
net = d['networks']['low_intra_node']
def pcie(share):
    return dict(net, op={'all_reduce': {'scale': 2, 'offset': -1, 'efficient_factor': share}})
d['networks'] = {'intra_with_pcie': True, 'intra_node_pcie_8x': pcie(0.42), 'intra_node_pcie_4x': pcie(0.66),
                 'intra_node_pcie_2x': pcie(0.70), 'inter_node': d['networks']['inter_node']}
def table(share, products):
    rows = {}
    for s in (2048, 4096, 8192):
        blocks = 64 * s / 128
        filled = blocks / (108 * math.ceil(blocks / 108))
        flops = 4.0 * 64 * s * s * 128 * (1 if products == 2 else 2)
        needed = 1 - (s - 1) / (2 * s)
        t = 2 * products * 64 * s * s * 128 * needed / (share * filled * 312e12)
        rows[f'batch=2, seq_len={s}, head_num=32, kv_head_num=8, qk_head_dim=128, v_head_dim=128, qkv_contiguous=True'] = \
            flops / t / 312e12
    rows['batch=1, seq_len=4096, head_num=16, kv_head_num=16, qk_head_dim=192, v_head_dim=128, qkv_contiguous=True'] = 0.1
    return rows
ops = d['accelerator']['op']
ops['sdp_fwd']['accurate_efficient_factor'] = table(0.50, 2)
ops['sdp_bwd']['accurate_efficient_factor'] = table(0.45, 5)
json.dump(d, open(sys.argv[1] + '/pcie.json', 'w'))
d['accelerator']['bandwidth'] = d['accelerator']['bandwidth']['default']
del d['networks']['intra_with_pcie']
d['networks'] = {k: net for k in ('low_intra_node', 'high_intra_node', 'inter_node')}
json.dump(d, open(sys.argv[1] + '/2024.json', 'w'))
P
runs 0 "SimuMax on PCIe" import "$W/pcie.json" -o "$W/p.json"
cp "$W/p.json" "$W/out"
json "its levels and attention" '
l = d["cluster"]["levels"]
assert [x["group_devices"] for x in l] == [2, 4, 8, 0] and d["cluster"]["nodes"][0]["n_devices"] == 8
c = d["cost"]
for level, share in zip(l, (0.70, 0.66, 0.42)):
    assert abs(level["bytes_per_s"] * c["link_fraction"] / 30e9 - share) < 1e-9, level
for name, value in (("attention_forward_fraction", 0.50), ("attention_backward_fraction", 0.45)):
    assert abs(c[name] / value - 1) < 0.15, (name, c[name])
    assert d["cost_sources"][name] == "fitted to 8 times of SimuMax", d["cost_sources"]
'
sed 's/head_num=32/heads=32/' "$W/pcie.json" >"$W/bad.json"
fails 3 'sdp_fwd.*expected a key "batch=1, seq_len=4096' "attention with another key" import "$W/bad.json" -o "$W/x.json"
runs 0 "SimuMax of 2024" import "$W/2024.json" -o "$W/p.json"
cp "$W/p.json" "$W/out"
json "its one bandwidth" '
assert d["cost"]["memory_fraction"] == 0.91 and d["cluster"]["devices"][0]["memory_bytes_per_s"] == 2039e9
assert d["cluster"]["levels"][0]["bytes_per_s"] == 30e9 and d["cluster"]["nodes"][0]["n_devices"] == 8
'
sed 's/b=1, m=8192/m=8192/' "$W/simumax.json" >"$W/bad.json"
fails 3 'bad.json:[0-9]*:[0-9]*: $.accelerator.op.matmul.*expected a key "b=1' "SimuMax with another key" \
    import "$W/bad.json" -o "$W/x.json"

# --- Calculon, its two forms ---
cat >"$W/calculon.json" <<'T'
{"matrix":{"float16":{"tflops":312,"gflops_efficiency":[[128,0.95],[16,0.9],[0,0.1]]}},
 "vector":{"float16":{"tflops":78,"gflops_efficiency":[[16,0.95],[0,0.1]]}},
 "mem1":{"GiB":80,"GBps":2048,"MB_efficiency":[[100,0.9],[10,0.75],[0,0.3]]},
 "mem2":{"GiB":512,"GBps":32,"MB_efficiency":[[100,0.5],[0,0.3]]},
 "processing_mode":"no_overlap",
 "networks":[{"bandwidth":300,"efficiency":0.6,"size":8,"latency":1e-6,"ops":{},"must_be_filled":true,"processor_usage":0.15},
             {"bandwidth":25,"efficiency":0.9,"size":65536,"latency":2e-6,"ops":{},"must_be_filled":false,"processor_usage":0.02}]}
T
runs 0 "Calculon" import "$W/calculon.json" -o "$W/p.json" --name mine
cp "$W/p.json" "$W/out"
json "its cluster and shares" '
c = d["cost"]
assert d["name"] == "mine" and c["gemm_fraction"] == 0.95 and c["memory_fraction"] == 0.9
assert c["offload_bytes_per_s"] == 16e9 and c["link_fraction"] == 0.6 and c["network_fraction"] == 0.9
assert d["cluster"]["levels"][0]["latency_s"] == 1e-6 and d["cluster"]["levels"][1]["group_devices"] == 0
assert d["cluster"]["devices"][0]["vector_flops_per_s"] == 78e12
'
sed 's/"matrix":{"float16":{"tflops":312,"gflops_efficiency":\(.*\)}},$/"matrix":{"tflops":312,"gflops_efficiency":{"float16":\1}},/
s/"vector":{"float16":{"tflops":78,"gflops_efficiency":\(.*\)}},$/"vector":{"tflops":78,"gflops_efficiency":{"float16":\1}},/
s/^{"matrix":{"float16":{"tflops":312,"gflops_efficiency":\(.*\)}},$/{"matrix":{"tflops":312,"gflops_efficiency":{"float16":\1}},/' \
    "$W/calculon.json" >"$W/old.json"
runs 0 "Calculon, as it was" import "$W/old.json" -o "$W/q.json" --name mine
cmp -s "$W/p.json" "$W/q.json"
report $? "gives the same" "$(cat "$W/old.json")"

# --- hostile files: one line each ---
hostile() { # PATTERN NAME TEXT
    printf '%s' "$3" >"$W/bad"
    fails 3 "$1" "$2" import "$W/bad" --cluster dgx-a100-80g --model gpt3-1b --seq-len 64 -o "$W/no.json"
}
hostile 'bad:1: no row of nccl-tests' "a text of something else" 'hello'
hostile 'bad:1: no row' "an empty file" ''
hostile 'bad:2: this row of nccl-tests is cut off, and there is no other' "a cut row" '#  Rank  0 x device 0
1048576 262144 float sum -1 44.21'
hostile 'bad:1: size: expected bytes' "a size beyond all" '99999999999999999999 1 float sum -1 1 1 1 0 1 1 1 0'
hostile 'bad:1: the number of ranks' "ranks that nobody tells" '1048576 1 float sum -1 1 1 1 0 1 1 1 0'
hostile 'bad:1: expected times' "a time that is none" '1048576 1 float sum -1 nan 1 1 0 1 1 1 0'
hostile 'bad:1: not UTF-8' "bytes" "$(printf '\377\376')"
hostile 'bad:1:14: \$: ' "JSON of a crashed run" '{"version":3,'
hostile 'none of nccl-tests' "JSON of something else" '{"hello":1}'
hostile 'expected an object' "an array" '[1]'
hostile 'bad:1:1: .*a trace of PyTorch without kineto' "a list of events" \
    '[{"name":"aten::to","ph":"X","ts":201,"dur":63,"tid":1,"pid":"CPU functions","args":{}}]'
hostile '"Input Strides"\]\[0\]\[0\]: expected an integer' "a stride that is none" \
    '{"traceEvents":[{"cat":"cpu_op","name":"aten::relu","args":{"External id":1,"Input Dims":[[2]],"Input type":["float"],"Input Strides":[[1.5]]}},{"cat":"kernel","name":"k","ts":1,"dur":1,"args":{"External id":1}}]}'
hostile '"Input Dims"\]\[0\]\[0\]: expected an integer' "a dimension below 0" \
    '{"traceEvents":[{"cat":"cpu_op","name":"aten::relu","args":{"External id":1,"Input Dims":[[-2]],"Input type":["float"]}},{"cat":"kernel","name":"k","ts":1,"dur":1,"args":{"External id":1}}]}'
hostile 'no NCCL kernel' "a trace without collectives" '{"traceEvents":[]}'
hostile '"Group size"\]: missing' "a kernel without its group" \
    '{"traceEvents":[{"cat":"kernel","name":"ncclKernel_X","dur":1,"args":{"Collective name":"allreduce","In msg nelems":1,"dtype":"Float"}}]}'
nccl() { # DEVICES RESULTS
    echo "{\"version\":3,\"args\":[\"/opt/all_reduce_perf\"],\"config\":{\"ngpus\":2},\"devices\":[$1],\"results\":[$2]}"
}
hostile 'results\[0\].out_of_place.time: expected a number from 0' "nccl-tests, JSON, a time below 0" \
    "$(nccl '{"rank":0},{"rank":1}' '{"size":8,"type":"float","redop":"sum","out_of_place":{"time":-3},"in_place":{"time":4}}')"
hostile 'results\[0\].size: expected an integer >= 0, got "x"' "a size that is a word" \
    "$(nccl '{"rank":0},{"rank":1}' '{"size":"x","type":"float","redop":"sum","out_of_place":{"time":3},"in_place":{"time":4}}')"
hostile 'ranks is not said; give --ranks' "no devices" "$(nccl '' '')"
hostile '[$].mean: as many times as tensor_sizes' "TeraPipe's messages, a time too few" \
    '{"model_name":"x","size_gap":32,"tensor_sizes":[32,64],"mean":[1e-5],"std":[0,0]}'
hostile 'mean\[1\]: expected a number from 0' "a time below 0" \
    '{"model_name":"x","size_gap":32,"tensor_sizes":[32,64],"mean":[1e-5,-1],"std":[0,0]}'
hostile 'accelerator.bandwidth.default: missing key' "SimuMax without bandwidths" \
    '{"accelerator":{"op":{},"bandwidth":{}},"networks":{}}'
hostile 'gflops_efficiency\[0\]\[1\]: expected a number from 0 to 1, got 2' "Calculon with twice the peak" \
    '{"matrix":{"float16":{"tflops":1,"gflops_efficiency":[[0,2]]}},"vector":{"float16":{"tflops":1,"gflops_efficiency":[[0,1]]}},"mem1":{"GiB":80,"GBps":1,"MB_efficiency":[[0,1]]},"mem2":{"GiB":1,"GBps":1,"MB_efficiency":[[0,1]]},"networks":[]}'
hostile 'forward_mean' "TeraPipe without a time" '{"1_8_0":{"backward_mean":1}}'
hostile 'above 0' "TeraPipe with time 0" '{"1_8_0":{"forward_mean":0,"backward_mean":1}}'
hostile 'expected a key' "TeraPipe with no tokens" '{"1_0_0":{"forward_mean":1,"backward_mean":1}}'
hostile 'expected {tp' "Sailor without tp" '{"1":{},"2":[]}'
hostile '\[forward, backward, update\]' "Sailor with a layer of two numbers" \
    "{\"1\":{\"1\":{$(for i in $(seq 0 30); do printf '"%s":[1,2],' "$i"; done)\"31\":[1,2]}}}"
hostile 'mem1' "Calculon without memory" '{"matrix":{"float16":{"tflops":1,"gflops_efficiency":[]}},"vector":{"float16":{"tflops":1,"gflops_efficiency":[]}},"networks":[]}'
fails 2 'give --cluster' "measurements without a cluster" import "$W/nccl.txt" -o "$W/no.json"
fails 2 '--output: is missing' "no profile to write" import "$W/nccl.txt" --cluster dgx-a100-80g
fails 4 'no-such' "a file that is not there" import no-such.txt --cluster dgx-a100-80g -o "$W/no.json"
[ ! -e "$W/no.json" ]
report $? "what failed wrote nothing"
finish
