#!/bin/sh
# degas simulate where the machine is not as its profile says: --rank-speed, --jitter, --straggler,
# and op times by stage, rank and slice.
. tests/cli/tap.sh

# --- op times by stage, rank and slice: GPipe's makespan by hand ---
"$DEGAS" schedule gpipe --pp 2 --microbatches 2 -o "$W/s.json"
"$DEGAS" schedule gpipe --pp 2 --microbatches 2 | grep -q . # warm
# takes SECONDS NAME OP-TIMES [OPTION...]
takes() {
    seconds=$1
    name=$2
    times=$3
    shift 3
    runs 0 "$name" simulate --schedule-file "$W/s.json" --op-times "$times" "$@" --json
    json "takes $seconds s" "assert abs(d['iteration_s'] - $seconds) < 1e-9, d['iteration_s']"
}
# F 1 on stage 0, 3 on stage 1: 1 + 2 3 forward, then 2 6 + 2 backward (B is 2 F)
takes 21 "op times by stage" F=1/3
takes 21 "op times by rank" F@rank=1/3
# rank 0 computes at half its rate: F 2, B 4 there; 2 + 2 F; the second F is ready at 4, 4 + 1;
# then B 2 + 2 on rank 1 at 5 and 7, B 4 twice from 7
takes 15 "a rank of half the speed" F=1 --rank-speed 0=0.5
takes 21 "speeds are by rank" F=1/1.5 --rank-speed 1=0.5,0=1
# messages of 5 from stage 0, 7 from stage 1
takes 21 "messages by stage" F=1,comm=5/7
"$DEGAS" schedule terapipe --pp 1 --microbatches 1 --slices 2 -o "$W/s.json"
# F 1 + 1.5, B 2 (1 + 1.5)
takes 7.5 "factors of slices" F=1,slices=1/1.5
runs 0 "a schedule brings its own number of chunks" simulate gpt3-13b dgx-a100-80g --global-batch 8 --pp 4 --schedule dualpipe
"$DEGAS" schedule dualpipe --pp 2 --microbatches 4 -o "$W/s.json"
runs 0 "two chains by stage" simulate --schedule-file "$W/s.json" --op-times F=1/2,I=1/2,W=1/2 --json
json "each rank has both stages" "assert [r['busy_s'] for r in d['ranks']] == [18, 18], d['ranks']"

# DualPipe's published bubble, (p/2 - 1) (F&B + B - 3 W) with F 1, B 2, W 1 and a pair of 2.5
"$DEGAS" schedule dualpipe --pp 8 --microbatches 20 -o "$W/s.json"
runs 0 "overlapped pairs" simulate --schedule-file "$W/s.json" --op-times F=1,B=2,FB=2.5 --json
json "have the bubble of the paper" "
assert abs(max(r['bubble_s'] for r in d['ranks']) - 3 * (2.5 + 2 - 3)) < 1e-9"
# an expert model: the all-to-all of one op hides behind the computing of the other
for overlap in pp none; do
    runs 0 "deepseek-v3 with overlap $overlap" simulate deepseek-v3 dgx-h100 --global-batch 128 --pp 4 \
        --vpp 2 --ep 8 --dp 8 --layers 8 --schedule dualpipev --overlap $overlap \
        --framework fsdp --json
    cp "$W/out" "$W/$overlap.json"
done
json "pairs hide expert-parallel communication" "
o = json.load(open('$W/pp.json'))
assert o['breakdown_s']['ep'] < 0.9 * d['breakdown_s']['ep'], (o['breakdown_s'], d['breakdown_s'])
for r in (o, d):
    assert abs(sum(r['breakdown_s'].values()) - r['iteration_s']) < 1e-6 * r['iteration_s']
    for rank in r['ranks']:
        assert abs(rank['busy_s'] + rank['bubble_s'] - r['iteration_s']) < 1e-9"

"$DEGAS" schedule 1f1b --pp 4 --microbatches 4 -o "$W/s.json"
S="simulate --schedule-file $W/s.json"
# shellcheck disable=SC2086
{
    fails 2 'F has 3 values, the schedule has 4 stages' "too few stages" $S --op-times F=1/2/3
    fails 2 'B has 2 values, the schedule has 4 ranks' "too few ranks" $S --op-times B@rank=1/2
    fails 2 'slices has 2 values, the schedule has 1 slices' "too many slices" \
        $S --op-times slices=1/2
    fails 2 'op-times: F: .*"nan"' "a time that is none" $S --op-times F=nan
    fails 2 'op-times: F: .*"inf"' "an infinite time" $S --op-times F=inf
    fails 2 'op-times: F: .*"-1"' "a negative time" $S --op-times F=-1
    fails 2 'op-times: F: ' "no time" $S --op-times F=
    fails 2 'op-times: F: ' "a hole in a list" $S --op-times F=1//2/3
    fails 2 'F is there twice' "a time twice" $S --op-times F=1,F@rank=1/2/3/4
    fails 2 'expected F=, B=.*"X=1"' "no such op" $S --op-times X=1
    fails 2 'expected F=, B=.*"F@node=1"' "no such axis" $S --op-times F@node=1
    fails 5 'longer than 18 years' "a time beyond all measure" $S --op-times F=1e9
    fails 2 'rank-speed: rank 4, but pipeline ranks are 0 to 3' "a rank that is not there" \
        $S --rank-speed 4=0.5
    fails 2 'rank-speed: rank 1 is there twice' "a rank twice" $S --rank-speed 1=1,1=2
    fails 2 'rank-speed: expected 0.001 to 1000' "no speed at all" $S --rank-speed 1=0
    fails 2 'rank-speed: expected RANK=SPEED' "no rank" $S --rank-speed 0.5
    fails 2 'jitter: expected 0 to 2' "too much jitter" $S --jitter 3
    fails 2 'jitter: ' "negative jitter" $S --jitter=-1%
    fails 2 'jitter: ' "no runs" $S --jitter 1%,0
    fails 2 'jitter: expected SIGMA' "too many values" $S --jitter 1%,1,1,1
    fails 2 'straggler: is for --jitter' "stragglers without jitter" $S --straggler 1%
    fails 2 'rank-jitter: is for --jitter' "ranks without jitter" $S --rank-jitter 1%
    fails 2 'straggler: expected 1 to 1000' "a straggler that is faster" \
        $S --jitter 1% --straggler 1%,0.5
    fails 2 'straggler' "more than all ranks" $S --jitter 1% --straggler 2
}

# --- jitter ---
set -- gpt3-13b dgx-a100-80g --gpus 16 --global-batch 32 --tp 2 --pp 4
runs 0 "no jitter" simulate "$@" --json
cp "$W/out" "$W/plain.json"
runs 0 "jitter" simulate "$@" --jitter 4%,200,9 --threads 1 --json
cp "$W/out" "$W/one.json"
json "adds one key to the report" "
plain = json.load(open('$W/plain.json'))
j = d.pop('jitter')
assert d == plain
assert j['runs'] == 200 and j['seed'] == 9 and j['op_sigma_fraction'] == 0.04
assert j['rank_sigma_fraction'] == 0.04 and j['memory_sigma_fraction'] == 0.02
t = j['iteration_s']
assert 0.9 * d['iteration_s'] < t['p10'] <= t['p50'] <= t['p90'] < 1.5 * d['iteration_s'], t
assert j['fit_fraction'] == 1"
runs 0 "on five threads" simulate "$@" --jitter 4%,200,9 --threads 5 --json
cmp -s "$W/out" "$W/one.json"
report $? "the same bytes"
runs 0 "another seed" simulate "$@" --jitter 4%,200,10 --json
json "another p50" "
assert d['jitter']['iteration_s'] != json.load(open('$W/one.json'))['jitter']['iteration_s']"
runs 0 "jitter of nothing" simulate "$@" --jitter 0 --memory-jitter 0 --json
json "is the iteration itself" "
assert set(d['jitter']['iteration_s'].values()) == {d['iteration_s']}
assert set(d['jitter']['peak_memory_bytes'].values()) == {d['peak_memory_bytes']}"
runs 0 "for people" simulate "$@" --jitter 4%
has '^jitter  iteration p10 .* p50 .* p90 .*; fits in 100 % of 1000 runs (ops log-normal 4.0 %' \
    "the line says what was varied"
# the limit is the peak itself: rank 0 alone is near it, so about half of the runs of one replica fit
limit=$(python3 -c "import json; print(json.load(open('$W/plain.json'))['peak_memory_bytes'])" \
    2>/dev/null || echo 0)
if [ "$limit" != 0 ]; then
    runs 0 "a limit at the peak" simulate gpt3-13b dgx-a100-80g --global-batch 32 --tp 2 --pp 4 \
        --dp 1 --jitter 4% --memory-limit "$limit" --json
    json "fits in half of the runs" "assert 0.4 < d['jitter']['fit_fraction'] < 0.6, d['jitter']"
fi
cat >"$W/batch.jsonl" <<'EOF'
{"id":1,"model":"gpt3-13b","cluster":"dgx-a100-80g","gpus":16,"global_batch":32,"tp":2,"pp":4,"jitter":"4%,200,9"}
{"id":2,"model":"gpt3-13b","cluster":"dgx-a100-80g","gpus":16,"global_batch":32,"tp":2,"pp":4,"rank_speed":["3=0.5"]}
{"id":3,"model":"gpt3-13b","cluster":"dgx-a100-80g","gpus":16,"global_batch":32,"tp":2,"pp":4,"rank_speed":"4=0.5"}
EOF
runs 0 "keys of --batch" simulate --batch "$W/batch.jsonl"
if command -v python3 >/dev/null 2>&1; then
    output=$(python3 - "$W/out" "$W/one.json" "$W/plain.json" <<'EOF' 2>&1
import json, sys
jitter, slow, bad = [json.loads(line) for line in open(sys.argv[1])]
one, plain = json.load(open(sys.argv[2])), json.load(open(sys.argv[3]))
assert jitter['jitter'] == one['jitter']
assert slow['iteration_s'] > plain['iteration_s'] and 'jitter' not in slow
busy = [a['busy_s'] / b['busy_s'] for a, b in zip(slow['ranks'], plain['ranks'])]
assert busy[:3] == [1, 1, 1] and 1.5 < busy[3] < 2, busy
assert 'rank 4' in bad['error'], bad
EOF
    )
    report $? "say the same as the options" "$output"
else
    skip "say the same as the options" "python3 is not installed"
fi

# --- loads of experts: two layers of counts, of which the first rank gets 4500 of 6000 and 2000 of 4000 rows ---
cat >"$W/counts.csv" <<'EOF'
layer,expert,rows
0,0,3000
0,1,1500
0,2,1000
0,3,500
1,0,1000
1,1,1000
1,2,1000
1,3,1000
EOF
cat >"$W/four.json" <<'EOF'
{"format":"degas-model","version":1,"name":"four","family":"llama","n_layers":2,"hidden":1024,"n_heads":8,
 "ffn_hidden":4096,"vocab":32000,"max_seq_len":4096,"experts":{"n_experts":4,"top_k":2,"ffn_hidden":2048}}
EOF
set -- simulate "$W/four.json" dgx-h100 --gpus 2 --global-batch 8 --ep 2
runs 0 "counts of experts" "$@" --expert-load "$W/counts.csv,200" --json
json "have the imbalance of their ranks, (4500 / 3000 + 1) / 2" "
load = d['expert_load']
assert abs(load['imbalance']['p50'] - 1.25) < 0.01 and load['fit_fraction'] == 1, load
assert load['imbalance']['p50'] <= load['imbalance']['p95'] < 1.28, load"
runs 0 "one imbalance" "$@" --expert-imbalance 1.25 --json
cp "$W/out" "$W/one.json"
runs 0 "counts again" "$@" --expert-load "$W/counts.csv,200" --json
json "take as long as that imbalance" "
one = json.load(open('$W/one.json'))
assert abs(d['expert_load']['iteration_s']['p50'] / one['iteration_s'] - 1) < 0.01
assert abs(d['expert_load']['peak_memory_bytes']['p50'] / one['peak_memory_bytes'] - 1) < 0.01
assert d['iteration_s'] < one['iteration_s']"
runs 0 "copies of hot experts" "$@" --expert-load "$W/counts.csv,200" --redundant-experts 4 --json
json "even the ranks, and hold two experts more" "
one = json.load(open('$W/one.json'))
assert d['expert_load']['imbalance']['p95'] < 1.1, d['expert_load']
more = max(r['memory_bytes']['weights'] for r in d['ranks']) - max(r['memory_bytes']['weights'] for r in one['ranks'])
assert more == 2 * 2 * 2 * 3 * 1024 * 2048, more"
fails 2 'no experts' "a model without experts" simulate gpt3-13b dgx-h100 --gpus 8 --global-batch 8 --expert-load even
fails 2 'counts of 4 experts, but the model has 8' "counts of other experts" simulate mixtral-8x7b dgx-h100 --gpus 8 --global-batch 8 --expert-load "$W/counts.csv"
fails 2 'expected a number' "no exponent" "$@" --expert-load zipf:x
printf 'layer,expert
0,0
' >"$W/counts.csv"
fails 2 'no column "rows"' "a table without rows" "$@" --expert-load "$W/counts.csv"
printf 'layer,expert,rows
0,0,-1
' >"$W/counts.csv"
fails 2 'counts.csv:2: rows' "a count below 0" "$@" --expert-load "$W/counts.csv"
finish
