#!/bin/sh
# degas plan: the file's keys, what is fixed stays fixed, determinism, infeasible requests.
# Test runner: first.
. tests/cli/tap.sh

job="gpt3-13b dgx-a100-80g --gpus 16 --global-batch 32"
# shellcheck disable=SC2086
runs 0 "plan --json" plan $job --tp 4 --pp 2 --micro-batch 1 --schedule 1f1b --slices off \
    --recompute none --zero 0 --sequence-parallel on --json --top 2
cp "$W/out" "$W/plan.json"
json "the keys of FORMATS.md" "
assert list(d)[:2] == ['format', 'version'] and d['format'] == 'degas-plan' and d['version'] == 1
for k in ['model', 'cluster', 'global_batch', 'seq_len', 'dtype', 'degrees', 'micro_batch',
          'n_microbatches', 'schedule', 'stages', 'slices', 'zero_stage', 'offload',
          'sequence_parallel', 'predicted', 'lower_bound_s', 'optimality_gap_fraction', 'search']:
    assert k in d, k
assert set(d['degrees']) == {'dp', 'tp', 'pp', 'vpp', 'cp', 'ep'}
assert set(d['search']) >= {'considered', 'pruned', 'simulated', 'infeasible'}
for k in ['rank', 'chunk', 'first_layer', 'n_layers', 'embedding', 'head', 'recompute']:
    assert k in d['stages'][0], k
assert d['predicted']['format'] == 'degas-report'"
json "what is given is fixed, the rest follows" "
g = d['degrees']
assert g['tp'] == 4 and g['pp'] == 2 and g['dp'] * g['cp'] == 2, g
assert d['schedule'] == '1f1b' and d['micro_batch'] == 1 and d['zero_stage'] == 0
assert d['n_microbatches'] == 32 // g['dp'] and d['sequence_parallel'] is True
assert sum(s['n_layers'] for s in d['stages']) == 40 and len(d['stages']) == 2
assert d['slices'] == [2048]
assert 'batch_slices' not in d
assert [s['first_layer'] for s in d['stages']] == [0, d['stages'][0]['n_layers']]"
json "the bound is below the time, the gap between" "
t = d['predicted']['iteration_s']
assert 0 < d['lower_bound_s'] <= t
assert 0 < d['physical_bound_s'] == d['predicted']['physical_bound_s'] < t
assert abs(d['optimality_gap_fraction'] - (1 - d['lower_bound_s'] / t)) < 1e-9"
json "alternatives are complete plans without model and cluster, none better" "
for a in d.get('alternatives', []):
    assert 'model' not in a and 'cluster' not in a and 'alternatives' not in a
    assert a['predicted']['iteration_s'] >= d['predicted']['iteration_s']"

# the planner's prediction is the simulator's
runs 0 "simulate the plan" simulate "$W/plan.json" --json
cp "$W/out" "$W/report.json"
if command -v python3 >/dev/null 2>&1; then
    python3 -c "
import json, sys
plan, report = (json.load(open(f)) for f in sys.argv[1:])
assert plan['predicted'] == report" "$W/plan.json" "$W/report.json" 2>"$W/err"
    report $? "the plan's prediction is the simulator's report" "$(tail -1 "$W/err")"
else
    skip "the plan's prediction is the simulator's report" "python3 is not installed"
fi

# micro-batches that differ in size, where slices are searched and no size is asked for
few="gpt3-13b p3.16xlarge --gpus 4 --global-batch 5 --seq-len 512 --dp 1 --tp 1 --pp 4 --vpp 1 --cp 1
    --schedule seq1f1b --recompute none --zero 0 --memory-limit 200GB"
# shellcheck disable=SC2086
runs 0 "plan five sequences on four stages" plan $few -o "$W/few.json"
json "in micro-batches of different sizes" "
b = d['batch_slices']
assert sum(b) == 5 and len(b) == d['n_microbatches'] and max(b) == d['micro_batch'] and min(b) < max(b)
assert sum(d['slices']) == 512 and len(d['slices']) > 1" "$W/few.json"
runs 0 "simulate them" simulate "$W/few.json" --json
json "they take what the plan says; its memory limit was not the devices'" "
p = json.load(open('$W/few.json'))['predicted']
assert p.pop('memory_limit_bytes') == 200e9 and d.pop('memory_limit_bytes') == 2 ** 34
assert p.pop('memory_usable_bytes') == 200e9 and 2 ** 33 < d.pop('memory_usable_bytes') < 2 ** 34
assert p.pop('fits') and not d.pop('fits') and d == p"
# shellcheck disable=SC2086
runs 0 "or of the size asked for" plan $few --micro-batch 1 --json
json "which stays" "assert 'batch_slices' not in d and d['micro_batch'] == 1"

# same bytes, whatever the threads, the locale, the way out
# shellcheck disable=SC2086
for threads in 1 2 7; do
    runs 0 "plan with $threads threads" plan $job --micro-batch 1 --dp 2 --threads $threads --json
    mv "$W/out" "$W/threads.$threads"
done
cmp -s "$W/threads.1" "$W/threads.2" && cmp -s "$W/threads.1" "$W/threads.7"
report $? "the plan does not depend on the number of threads"
# shellcheck disable=SC2086
runs 0 "plan -o" plan $job --micro-batch 1 --dp 2 -o "$W/o.json"
cmp -s "$W/threads.1" "$W/o.json"
report $? "-o writes what --json prints"
has 'iteration' "and people get a summary"
# shellcheck disable=SC2086
runs 0 "plan -o -" plan $job --micro-batch 1 --dp 2 -o -
cmp -s "$W/out" "$W/o.json"
report $? "-o - is stdout"
for locale in de_DE.UTF-8 tr_TR.UTF-8 fr_FR.utf8; do
    if locale -a 2>/dev/null | grep -iqx "$(echo "$locale" | sed 's/UTF-8/utf8/')"; then
        # shellcheck disable=SC2086
        LC_ALL=$locale "$DEGAS" plan $job --micro-batch 1 --dp 2 --json >"$W/out" 2>"$W/err"
        cmp -s "$W/out" "$W/o.json"
        report $? "the plan is the same in $locale"
        # shellcheck disable=SC2086
        LC_ALL=$locale "$DEGAS" plan $job --tp 4 --pp 2 --memory-limit 79.5GiB >"$W/out" 2>"$W/err"
        report $? "numbers are read with a point in $locale" "$(cat "$W/err")"
        grep -q '[0-9],[0-9]' "$W/out"
        [ $? = 1 ]
        report $? "numbers are printed with a point in $locale" "$(cat "$W/out")"
    else
        skip "the plan is the same in $locale" "the locale is not installed"
    fi
done

# Ctrl-C: the best so far is written.  A thousand alternatives keep this search busy for half a
# minute; a second in, some plan is known or none is, and both are well-formed.
"$DEGAS" plan deepseek-v3 dgx-h100 --gpus 2048 --global-batch 4096 --offload auto --top 1000 \
    --threads 1 --json -o "$W/best.json" >"$W/out" 2>"$W/err" </dev/null &
search=$!
sleep 1
kill -INT "$search"
wait "$search"
[ $? = 9 ]
report $? "an interrupted search ends with status 9" "$(cat "$W/err")"
grep -q '^degas: interrupted: ' "$W/err"
report $? "and says so" "$(cat "$W/err")"
if grep -q 'no plan was found' "$W/err"; then
    [ ! -e "$W/best.json" ]
    report $? "no plan, no file"
else
    cp "$W/best.json" "$W/out"
    json "the best so far is a whole plan with an honest bound" "
assert d['format'] == 'degas-plan' and d['predicted']['fits']
assert 0 <= d['lower_bound_s'] <= d['predicted']['iteration_s']"
fi

# the answer is no
fails 1 'memory' "a model that fits nowhere" \
    plan gpt3-175b p3.16xlarge --global-batch 8 -o "$W/none.json"
[ ! -e "$W/none.json" ]
report $? "no file is left of it"
fails 1 'memory' "fixed degrees that do not fit" \
    plan gpt3-175b p3.16xlarge --gpus 8 --global-batch 8 --tp 8 --recompute full
fails 1 'memory' "a limit that nothing fits" \
    plan gpt2-124m dgx-h100 --global-batch 8 --memory-limit 100MiB

# what contradicts itself is wrong usage, and says by which flags
small="gpt2-124m dgx-a100-80g --global-batch 8 --gpus 8"
# shellcheck disable=SC2086
{
    fails 2 '--gpus\|--tp 3' "degrees that do not divide the devices" plan $small --tp 3
    fails 2 '--dp 2 --tp 2 --pp 4' "degrees that multiply to more" plan $small --dp 2 --tp 2 --pp 4 --cp 1
    fails 2 '--global-batch 6.*--dp 4' "a batch that dp does not divide" \
        plan gpt2-124m dgx-a100-80g --global-batch 6 --gpus 8 --dp 4
    fails 2 '--micro-batch 3' "a micro-batch that does not divide" plan $small --dp 1 --micro-batch 3
    fails 2 '--pp 64.*12 layers\|64' "more stages than layers" \
        plan gpt2-124m dgx-a100-80g --global-batch 8 --gpus 64 --pp 64
    fails 2 'memory-limit' "a memory limit of zero" plan $small --memory-limit 0
    fails 2 'global-batch' "a batch of zero" plan gpt2-124m dgx-a100-80g --global-batch 0
    fails 2 'gpus' "a cluster of zero" plan gpt2-124m dgx-a100-80g --global-batch 8 --gpus 0
    fails 2 'threads' "no threads" plan $small --threads 0
    fails 2 'zero' "an unknown ZeRO stage" plan $small --zero 4
    fails 2 'offload-parameters: needs --zero 3, got 1' "offloaded parameters that are not sharded" \
        plan $small --zero 1 --offload cpu --offload-parameters on
    fails 2 'offload-parameters: needs --offload cpu or nvme' "parameters offloaded to nowhere" \
        plan $small --zero 3 --offload-parameters on
    fails 2 'prefetch-layers' "too far ahead" plan $small --zero 3 --prefetch-layers 65
}
# 7 devices and 12 heads: nothing divides but dp, which does not divide the batch; pp 7 does.
runs 0 "a prime number of devices" plan gpt2-124m dgx-a100-80g --gpus 7 --global-batch 8 --json
json "takes what divides" "assert d['degrees']['dp'] * d['degrees']['tp'] * d['degrees']['pp'] * \
    d['degrees']['cp'] == 7 and 8 % d['degrees']['dp'] == 0, d['degrees']"
# shellcheck disable=SC2086
fails 1 'fits with --' "what does not fit names the nearest change" \
    plan gpt3-13b dgx-a100-80g --gpus 8 --global-batch 8 --dp 8 --zero 0
# The tightest constraint and the nearest change: memory above, divisibility, batch.  1009 is prime, and larger than
# the batch and the layers; 1008 = 7 * 144 is not.  16 replicas of micro-batches of 3 take multiples of 48.
fails 1 'memory: a device needs .* of 1.27 GiB at the least .*; fits with --gpus ' "memory" \
    plan gpt2-1.5b dgx-a100-80g --gpus 8 --global-batch 32 --memory-limit 1300MiB
# The table, gathered, and its whole gradients alone are 460 MiB, beside a layer of 58 MiB ahead of
# use: no number of devices divides these.
fails 1 'memory: a device needs .* of 512 MiB at the least .*; no single change found that fits' "memory, nothing helps" \
    plan gpt2-1.5b dgx-a100-80g --gpus 8 --global-batch 32 --memory-limit 512MiB
fails 1 'no degrees multiply to 1009 devices: .*; --gpus 1008 would do' "divisibility" \
    plan gpt2-1.5b dgx-a100-80g --gpus 1009 --global-batch 7
fails 2 'global-batch 1 is not a multiple of --dp 16; 16 would do' "batch" \
    plan gpt2-1.5b dgx-a100-80g --gpus 16 --global-batch 1 --dp 16
fails 2 'global-batch 100 is not a multiple of --dp 16 \* --micro-batch 3; 96 would do' "micro-batch" \
    plan gpt2-1.5b dgx-a100-80g --gpus 16 --global-batch 100 --dp 16 --micro-batch 3
fails 2 'slices: lengths are not multiples of' "slices that no degrees allow" \
    plan gpt2-1.5b dgx-a100-80g --gpus 8 --global-batch 8 --tp 1 --cp 8 --slices 100,924
# Nothing of anything is no job.
for flag in gpus global-batch seq-len dp tp pp vpp cp ep micro-batch group slices threads pareto \
    memory-limit price; do
    fails 2 "degas: --$flag: expected" "--$flag 0" \
        plan gpt2-124m dgx-a100-80g --gpus 8 --global-batch 8 "--$flag" 0
done
for flag in mtbf tokens; do
    fails 2 "degas: --$flag: expected a [a-z]* above 0" "--$flag 0" \
        sweep gpt2-124m dgx-a100-80g --gpus 8 --global-batch 8 "--$flag" 0
done
# Parameters on the host leave no weights on the device: two gathered layers of 12 h^2 + 13 h are what is there.
runs 0 "offloaded parameters" plan gpt3-1b dgx-a100-80g --gpus 8 --global-batch 8 --dp 8 --zero auto \
    --offload auto --offload-parameters on --micro-batch 1 --recompute none --slices off --json
json "with ZeRO 3, offloaded, no weights on a device" "
m = d['predicted']['ranks'][0]['memory_bytes']
assert d['zero_stage'] == 3 and d['offload'] != 'none' and d['offload_parameters'] is True, d
assert 'prefetch_layers' not in d and m['weights'] == 0 and m['optimizer'] == 0, d"
# Two nodes with slow Ethernet, eight stages of two replicas: the messages of a small model's long pipelines are more than
# its gradients, so pipelines inside nodes, replicas across, are better than Megatron's order, which is the other way round.
order="gpt2-124m p3.16xlarge --gpus 16 --global-batch 512 --seq-len 256 --dp 2 --tp 1 --pp 8 --slices off --threads"
# shellcheck disable=SC2086
runs 0 "ranks in the default order" plan $order 1 --rank-order tp-cp-dp-pp --json
json "no key says so" "assert 'rank_order' not in d"
before=$(python3 -c 'import json,sys; print(json.load(sys.stdin)["predicted"]["iteration_s"])' <"$W/out")
# shellcheck disable=SC2086
runs 0 "the order searched" plan $order 1 -o "$W/order.json"
has 'ranks in the order tp-cp-pp-dp' "the summary names it"
cp "$W/order.json" "$W/out"
json "pipelines inside nodes" "assert d['rank_order'] == 'tp-cp-pp-dp', d.get('rank_order')
assert d['predicted']['iteration_s'] < 0.7 * $before, (d['predicted']['iteration_s'], $before)"
for threads in 2 8; do
    # shellcheck disable=SC2086
    runs 0 "$threads threads" plan $order $threads -o "$W/order-$threads.json"
    cmp -s "$W/order.json" "$W/order-$threads.json"
    report $? "the same bytes"
done
runs 0 "its plan simulates" simulate "$W/order.json" --json
json "as predicted" "assert d['iteration_s'] == json.load(open('$W/order.json'))['predicted']['iteration_s']"
# shellcheck disable=SC2086
runs 1 "pairs that may hide more than there is" plan deepseek-v3 a100-pcie-80g --gpus 12 --global-batch 12 --seq-len 1024 \
    --framework fsdp
# shellcheck disable=SC2086
runs 0 "a framework's order" plan $order 1 --framework megatron-core --json
json "is its default" "assert 'rank_order' not in d"
sed 's/tp-cp-pp-dp/tp-pp-dp/' "$W/order.json" >"$W/bad.json"
fails 3 'rank_order.*tp-pp-dp' "a plan file with an order that is none" simulate "$W/bad.json"
# Few sequences pass many chunks in slices: the point of the least bound has more chunks than are sliced else, and is sliced, too.
few="gpt3-175b dgx-a100-80g --gpus 96 --global-batch 4 --seq-len 2048 --threads 1 --json"
# shellcheck disable=SC2086
runs 0 "8 chunks in 4 slices" plan $few --tp 8 --pp 12 --vpp 8 --micro-batch 1 --slices 4 --schedule seq1f1b-interleaved
given=$(python3 -c 'import json,sys; print(json.load(sys.stdin)["predicted"]["iteration_s"])' <"$W/out")
# shellcheck disable=SC2086
runs 0 "chunks and slices searched" plan $few
json "are no worse" "assert d['predicted']['iteration_s'] <= $given, (d['predicted']['iteration_s'], $given)"
finish
