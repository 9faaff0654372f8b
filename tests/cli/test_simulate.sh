#!/bin/sh
# degas simulate: flags, schedule files, batches, traces, tables.
. tests/cli/tap.sh

# --- flags ---
# shellcheck disable=SC2086
set -- gpt3-13b dgx-a100-80g --global-batch 16 --tp 2 --pp 4 --schedule 1f1b
runs 0 "simulate with flags" simulate "$@" --json --trace "$W/trace.json" --csv "$W/ops.tsv"
cp "$W/out" "$W/report.json"
json "the keys of a report" "
assert list(d)[:2] == ['format', 'version'] and d['format'] == 'degas-report'
for k in ['iteration_s', 'span_s', 'tokens_per_s', 'model_flops_per_s_per_device',
          'model_flops_utilization_fraction', 'bubble_fraction', 'peak_memory_bytes',
          'memory_limit_bytes', 'fits', 'ranks', 'breakdown_s', 'cost_per_iteration',
          'energy_per_iteration_j']:
    assert k in d, k
assert set(d['breakdown_s']) == {'compute', 'tp', 'pp', 'dp', 'cp', 'ep', 'recompute',
                                 'optimizer', 'bubble'}
assert len(d['ranks']) == 4
for r, rank in enumerate(d['ranks']):
    assert rank['rank'] == r
    for k in ['busy_s', 'bubble_s', 'communication_s', 'peak_memory_bytes', 'peak_time_s',
              'memory_bytes', 'peak_in_flight']:
        assert k in rank, k
    assert set(rank['memory_bytes']) == {'weights', 'gradients', 'optimizer', 'activations', 'kv',
                                         'buffers', 'workspace'}"
json "the peak has a rank, a time, an op and an owner" "
r = d['ranks'][d['peak']['rank']]
assert r['peak_memory_bytes'] == d['peak_memory_bytes'] > 0
assert d['peak']['time_s'] == r['peak_time_s'] > 0
assert d['peak']['peak_op'] == r['peak_op'] == 'B0.0'  # all of rank 0's in flight, and B's workspace
assert d['peak']['owner'] == max(r['memory_bytes'], key=lambda k: r['memory_bytes'][k])"
json "its numbers agree with each other" "
t = d['iteration_s']
assert 0 < d['span_s'] <= t
for rank in d['ranks']:
    assert abs(rank['busy_s'] + rank['bubble_s'] - t) < 1e-9 * t
    assert sum(rank['memory_bytes'].values()) == rank['peak_memory_bytes']
assert max(r['peak_memory_bytes'] for r in d['ranks']) == d['peak_memory_bytes']
assert abs(sum(r['bubble_s'] for r in d['ranks']) / (4 * t) - d['bubble_fraction']) < 1e-9
assert abs(sum(d['breakdown_s'].values()) - t) < 1e-6 * t
assert abs(d['tokens_per_s'] - 16 * 2048 / t) < 1e-6 * d['tokens_per_s']
assert [r['peak_in_flight'] for r in d['ranks']] == [4, 3, 2, 1]  # 1F1B: min(m, p - r)
assert d['memory_limit_bytes'] == 80 * 2**30 and d['fits'] is True"
json "the trace is a Chrome trace of four ranks" "
assert d['format'] == 'degas-trace'
ops = [e for e in d['traceEvents'] if e['ph'] == 'X' and e['tid'] == 0 and e['name'][0] in 'FB']
assert len(ops) >= 4 * 16 * 2, len(ops)
assert {e['pid'] for e in ops} == {0, 1, 2, 3}" "$W/trace.json"
# What recomputes is seen: a share of its backward, that of the report.
runs 0 "recompute" simulate "$@" --recompute full --trace "$W/again.json" --plot "$W/again.txt" -o "$W/again"
grep -q 'recompute' "$W/again.txt" && grep -q '▚0▒' "$W/again.txt"
report $? "a picture shows it" "$(head -4 "$W/again.txt")"
json "the trace says how much" "
report = json.load(open('$W/again'))
ns = sum(e['dur'] * e['args'].get('recompute_fraction', 0) for e in d['traceEvents'] if e['ph'] == 'X')
want = report['breakdown_s']['recompute']
assert want > 0 and abs(ns * 1e-6 / 4 - want) < 1e-5 * want, (ns, want)
assert all(e['name'][0] == 'B' for e in d['traceEvents'] if 'recompute_fraction' in e.get('args', {}))" "$W/again.json"
runs 0 "none" simulate "$@" --recompute none --plot "$W/again.txt"
grep -q 'recompute' "$W/again.txt"
report $((1 - $?)) "no picture shows what is not" "$(tail -2 "$W/again.txt")"
# Waiting for the reduction is data-parallel communication, no bubble: one number in all places.
runs 0 "two replicas" simulate "$@" --gpus 16 --plot "$W/bubble.txt" --trace "$W/bubble.json"
bubble=$(grep -o 'bubble [0-9.]* %' "$W/out" | head -1)
[ -n "$bubble" ] && grep -q "8 micro-batches: .*, $bubble\$" "$W/bubble.txt"
report $? "the picture says the report's bubble" "$bubble; $(sed -n 1,3p "$W/bubble.txt")"
"$DEGAS" show "$W/bubble.json" >"$W/out" 2>&1
grep -q ", $bubble\$" "$W/out"
report $? "and so does the trace" "$bubble; $(head -1 "$W/out")"
# 3 200 ops on 100 columns: the events that the picture shows are a part of all.
runs 0 "a timeline without all events" simulate "$@" --schedule seq1f1b --slices 25
cp "$W/out" "$W/part.txt"
runs 0 "a timeline of all events" simulate "$@" --schedule seq1f1b --slices 25 \
    --csv "$W/all.tsv"
[ "$(wc -l <"$W/all.tsv")" -gt 3200 ] && cmp -s "$W/out" "$W/part.txt"
report $? "both show the same" "$(diff "$W/out" "$W/part.txt" | head -5)"
[ "$(head -1 "$W/ops.tsv" | tr '\t' ' ')" = \
    "rank stream kind op microbatch chunk slice start_ns end_ns peer bytes memory_bytes \
memory_after_bytes" ]
report $? "--csv has a header with units" "$(head -2 "$W/ops.tsv")"
# 16 micro-batches, each once forward and once backward on each of 4 ranks
[ "$(awk -F'\t' '$2 == "compute" && $4 ~ /^[FB]/ && ($3 == "F" || $3 == "forward")' "$W/ops.tsv" |
    wc -l)" = 64 ]
report $? "--csv has every forward" "$(head -4 "$W/ops.tsv")"
json "memory at each op is the report's, and the highest its peak" "
import csv
rows = [r for r in csv.DictReader(open('$W/ops.tsv'), delimiter='\t') if r['op'] and r['stream'] == 'compute']
for rank in d['ranks']:
    mine = [r for r in rows if int(r['rank']) == rank['rank']]
    top = max(mine, key=lambda r: int(r['memory_bytes']))
    assert int(top['memory_bytes']) == rank['peak_memory_bytes'], (top, rank)
    assert top['op'] == rank['peak_op'] and abs(int(top['start_ns']) / 1e9 - rank['peak_time_s']) < 1e-9
" "$W/report.json"
runs 0 "show the trace" show "$W/trace.json"
has '^1f1b, 4 ranks, 16 micro-batches: iteration' "a trace tells what it is of"
runs 0 "for people" simulate "$@"
has '^iteration .*bubble .*tokens/s' "the first line has the numbers"
has '^0 │' "and there is a timeline"
grep -q "$(printf '\033')" "$W/out"
[ $? = 1 ]
report $? "no escape sequences where stdout is no terminal"

runs 0 "--gpus gives the rest to dp" simulate gpt3-13b dgx-a100-80g --gpus 16 --global-batch 16 \
    --tp 2 --pp 4 --optimizer-step off --json
json "a model that is replicated needs the same memory and half the micro-batches" "
assert len(d['ranks']) == 4 and d['ranks'][0]['peak_in_flight'] == 4"
runs 0 "layers and vocabulary can be changed" simulate gpt3-13b dgx-a100-80g --global-batch 4 \
    --tp 8 --layers 2 --vocab 0 --json
json "less is faster" "assert d['iteration_s'] < 1"
fails 2 '^degas: --lora-rank, --lora-modules: \$.lora: adapters of experts are not modelled: leave linear_fc1 out$' "adapters of experts" \
    simulate mixtral-8x7b dgx-h100 --gpus 8 --global-batch 8 --lora-rank 8
# 16 bits of 8.03e9 frozen weights, and what some 1e9 bytes of logits take, fit a card of 24 GB.
runs 0 "adapters on one card" plan llama3-8b rtx-4090 --gpus 1 --global-batch 16 --seq-len 2048 --framework fsdp --lora-rank 16
has '^llama3-8b on rtx-4090 .*bf16, adapters of rank 16$' "the headline says what is trained"
fails 2 '^degas: --layers, --mtp, --vocab: \$.experts.first_dense_layers: first_dense_layers 3 is more than the 2 layers$' "fewer layers than dense ones" \
    simulate deepseek-v3 h800 --gpus 8 --global-batch 8 --layers 2
runs 0 "slices of given lengths" simulate gpt3-13b dgx-a100-80g --global-batch 4 --tp 2 --pp 4 \
    --schedule terapipe --slices 1024,512,512 --json
json "are in flight one by one" "assert d['ranks'][0]['peak_in_flight'] == 12"
runs 0 "a plan that does not fit is simulated all the same" simulate gpt3-175b p3.16xlarge \
    --global-batch 8 --tp 8 --json
json "and says so" "assert d['fits'] is False and d['peak_memory_bytes'] > d['memory_limit_bytes']"
grep -q 'does not fit' "$W/err"
report $? "on stderr as well"

# --- schedule files: closed forms at F = 1, B = 2: (m + p - 1) (F + B) ---
for s in gpipe 1f1b; do
    runs 0 "schedule $s" schedule $s --pp 4 --microbatches 8 -o "$W/$s.json"
    runs 0 "simulate $s" simulate --schedule-file "$W/$s.json" --op-times F=1,B=2 --json
    json "$s takes (8 + 4 - 1) 3" "
assert d['iteration_s'] == 33 and abs(d['bubble_fraction'] - 3 / 11) < 1e-12
assert d['tokens_per_s'] is None and d['fits'] is True"
done
runs 0 "op times with units" simulate --schedule-file "$W/1f1b.json" \
    --op-times F=10ms,B=20ms,comm=1ms --json
json "messages delay: (8 + 3) 30 ms and at least 2 x 3 messages of 1 ms" "
assert d['iteration_s'] >= 0.33 + 0.006 - 1e-9"
runs 0 "naive" schedule naive --pp 4 --microbatches 2 -o "$W/naive.json"
runs 0 "simulate naive" simulate --schedule-file "$W/naive.json" --op-times F=1,B=2 --json
json "naive takes m p 3" "assert d['iteration_s'] == 24"
cat >"$W/own.json" <<'JSON'
{"format":"degas-schedule","version":1,"schedule":"mine","stages":2,"virtual":1,"microbatches":1,
 "slices":1,"ranks":[["F0.0","B0.0"],["F0.0","B0.0"]]}
JSON
runs 0 "a schedule of one's own" simulate --schedule-file "$W/own.json" --json
json "one micro-batch through two stages and back" "assert d['iteration_s'] == 6"
sed 's/"F0.0","B0.0"\]\]/"B0.0","F0.0"]]/' "$W/own.json" >"$W/deadlock.json"
fails 3 'deadlock.json' "a schedule that cannot run" simulate --schedule-file "$W/deadlock.json"
sed 's/,"B0.0"\]\]/]]/' "$W/own.json" >"$W/incomplete.json"
fails 3 'incomplete.json' "a schedule with an op missing" \
    simulate --schedule-file "$W/incomplete.json"
fails 2 'op-times' "op times that are none" simulate --schedule-file "$W/own.json" --op-times G=1
fails 2 'op-times' "a negative op time" simulate --schedule-file "$W/own.json" --op-times F=-1
fails 2 'op-times' "op times without a schedule file" simulate "$@" --op-times F=1

# --- batches ---
cat >"$W/cases.jsonl" <<'JSONL'
{"id":"a","model":"gpt3-13b","cluster":"dgx-a100-80g","global_batch":16,"tp":2,"pp":4}
{"id":2,"model":"gpt3-13b","cluster":"dgx-a100-80g","global_batch":16,"tp":3}

{"id":"typo","model":"gpt3-13b","cluster":"dgx-a100-80g","global_batch":16,"tq":4}
not JSON
{"id":"object","model":{"family":"gpt","n_layers":2,"hidden":256,"n_heads":4,"vocab":1000,"max_seq_len":128},"cluster":"dgx-h100","global_batch":2,"sequence_parallel":false,"slices":"off"}
{"id":"unknown","model":"nope","cluster":"dgx-h100","global_batch":2}
JSONL
runs 0 "simulate --batch" simulate --batch "$W/cases.jsonl"
cp "$W/out" "$W/batch.1"
if command -v python3 >/dev/null 2>&1; then
    python3 -c "
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
assert [r['id'] for r in rows] == ['a', 2, 'typo', None, 'object', 'unknown'], rows
assert rows[0]['format'] == 'degas-report' and rows[0]['iteration_s'] > 0
assert 'tp 3' in rows[1]['error'] and 'tq' in rows[2]['error'] and ':5:' in rows[3]['error']
assert rows[4]['iteration_s'] > 0 and 'nope' in rows[5]['error']
for r in rows:
    assert ('error' in r) != ('iteration_s' in r)" "$W/batch.1" 2>"$W/err"
    report $? "ids in order, errors by line, the rest goes on" "$(tail -1 "$W/err")"
else
    skip "ids in order, errors by line, the rest goes on" "python3 is not installed"
fi
[ "$(wc -l <"$W/batch.1")" = 6 ]
report $? "one line for each request"
runs 0 "--batch with one thread" simulate --batch "$W/cases.jsonl" --threads 1
cmp -s "$W/out" "$W/batch.1"
report $? "the same bytes, whatever the threads"
runs 0 "--batch -o" simulate --batch "$W/cases.jsonl" -o "$W/batch.2"
cmp -s "$W/batch.2" "$W/batch.1"
report $? "-o writes what is printed"
"$DEGAS" simulate --batch - <"$W/cases.jsonl" >"$W/out" 2>"$W/err"
sed "s#$W/cases.jsonl:#-:#" "$W/batch.1" | cmp -s - "$W/out"
report $? "- is stdin"
runs 0 "simulate with flags again" simulate gpt3-13b dgx-a100-80g --global-batch 16 --tp 2 --pp 4 \
    --json
if command -v python3 >/dev/null 2>&1; then
    python3 -c "
import json, sys
one = json.load(open(sys.argv[1]))
row = json.loads(open(sys.argv[2]).readline())
del row['id']
assert one == row" "$W/out" "$W/batch.1" 2>"$W/err"
    report $? "a line says what the command says" "$(tail -1 "$W/err")"
else
    skip "a line says what the command says" "python3 is not installed"
fi
# What few plans say: heads exchanged for tokens, experts that tp ranks share, uneven routing.
runs 0 "context parallelism by all-to-all" simulate llama3-8b dgx-h100 --global-batch 8 --dp 2 \
    --cp 4 --cp-comm-type a2a --framework megatron-core --json
json "is waited for" 'assert d["breakdown_s"]["cp"] > 0'
fails 2 'tp \* cp = 16 must divide' "more ranks than key/value heads" simulate llama3-8b dgx-h100 \
    --global-batch 8 --cp 16 --cp-comm-type a2a
# 50257 tokens are out of line; Megatron pads them, and so does degas where that makes products faster.
small="simulate gpt2-124m dgx-a100-80g --global-batch 8 --dp 8 --dtype bf16 --json"
for how in "degas off" "degas on" "megatron-lm off" "megatron-lm on"; do
    # shellcheck disable=SC2086
    runs 0 "a vocabulary, padded or not: $how" $small --framework ${how% *} --pad-vocab ${how#* }
    cp "$W/out" "$W/$how"
done
# shellcheck disable=SC2086
runs 0 "as Megatron does" $small --framework megatron-lm
cmp "$W/out" "$W/megatron-lm on"
report $? "it is padded"
# shellcheck disable=SC2086
runs 0 "as degas does" $small
cmp "$W/out" "$W/degas on"
report $? "it is padded, too"
for how in "" "--pad-vocab off"; do
    # shellcheck disable=SC2086
    runs 0 "on a CPU: $how" simulate gpt2-124m local-cpu --global-batch 1 --dtype fp32 --json $how
    [ -n "$how" ] || cp "$W/out" "$W/cpu"
done
cmp "$W/out" "$W/cpu"
report $? "it is not"
json "the head is slower then" '
padded = json.load(open("'"$W"'/degas on"))["iteration_s"]
assert 1.1 < d["iteration_s"] / padded < 2, (d["iteration_s"], padded)
' "$W/degas off"
# 50257 tokens over tp 2 are 25129 rows of the table, here and of its copy on the last stage; padded 25216.
for how in off on; do
    runs 0 "two tables, padded or not: $how" simulate gpt2-124m dgx-a100-80g --global-batch 8 --tp 2 \
        --pp 2 --gpus 4 --dtype bf16 --json --pad-vocab $how
    cp "$W/out" "$W/table.$how"
done
json "their rows count as weights, gradients and optimizer state" "
off = json.load(open('$W/table.off'))['ranks']
for a, b in zip(off, d['ranks']):
    for owner, n in (('weights', 2), ('gradients', 4), ('optimizer', 12)):
        assert b['memory_bytes'][owner] - a['memory_bytes'][owner] == n * (25216 - 25129) * 768, (owner, a, b)"
runs 0 "even routing" simulate mixtral-8x7b dgx-h100 --global-batch 8 --dp 8 --ep 8 --json
cp "$W/out" "$W/even"
runs 0 "uneven routing" simulate mixtral-8x7b dgx-h100 --global-batch 8 --dp 8 --ep 8 \
    --expert-imbalance 2 --json
json "costs experts about twice" "
even = json.load(open('$W/even'))['breakdown_s']['ep']
assert 1.8 * even < d['breakdown_s']['ep'] <= 2 * even, (even, d['breakdown_s']['ep'])"
set -- simulate mixtral-8x7b dgx-h100 --global-batch 8 --dp 8 --ep 8 --framework megatron-core
runs 0 "no capacity" "$@" --json
cp "$W/out" "$W/none"
runs 0 "a capacity of the mean" "$@" --expert-capacity 1 --json
json "nothing is counted, and as much is exchanged" "
none = json.load(open('$W/none'))
assert d['iteration_s'] < none['iteration_s'] and d['breakdown_s']['ep'] == none['breakdown_s']['ep'], (d, none)"
fails 2 'expert-capacity: expected a factor from 1' "less than the mean" "$@" --expert-capacity 0.5
fails 2 'expert-capacity: needs --dispatcher alltoall' "rows that travel once" "$@" --expert-capacity 1 \
    --dispatcher deepep
fails 2 'expert-capacity: leaves no --expert-imbalance' "an even load that is uneven" "$@" --expert-capacity 1 \
    --expert-imbalance 2
fails 2 'expert-capacity: degas drops no tokens' "our executor" "$@" --framework degas --expert-capacity 1
fails 2 'expert-imbalance: expected a factor from 1' "less than even" simulate mixtral-8x7b dgx-h100 \
    --global-batch 8 --dp 8 --ep 8 --expert-imbalance 0.5
# Passes are merged for their exchanges: where nothing is exchanged none is, whatever --overlap says.
set -- simulate nemotron-h-56b dgx-h100 --gpus 16 --global-batch 32 --seq-len 4096 --framework megatron-bridge --tp 8 --pp 2 \
    --recompute full
runs 0 "a model without experts" "$@" --overlap dp --json
cp "$W/out" "$W/alone"
runs 0 "with passes that may be merged" "$@" --overlap dp,ep --json
json "they take as long" "
assert d['iteration_s'] == json.load(open('$W/alone'))['iteration_s'], d['iteration_s']"
fails 2 'expert_tp: 3 does not divide tp = 2' "experts shared by other than a part of tp" \
    simulate mixtral-8x7b dgx-h100 --global-batch 8 --dp 4 --tp 2 --expert-tp 3
finish
