#!/bin/sh
# degas compare: the classes add up, shares too; each kind of file; tolerance; hostile files.
. tests/cli/tap.sh

# trace NAME MEASURED MAKESPAN EVENT...: a trace of two ranks; an event is RANK,STREAM,KIND,US,US
trace() {
    name=$1 measured=$2 makespan=$3
    shift 3
    {
        printf '{"format":"degas-trace","version":1,"measured":%s,"schedule":"1f1b","stages":2,' "$measured"
        printf '"virtual":1,"microbatches":4,"slices":1,"makespan_ns":%s,"traceEvents":[' "$makespan"
        comma=
        for event; do
            oldifs=$IFS
            IFS=,
            # shellcheck disable=SC2086
            set -- $event
            IFS=$oldifs
            printf '%s{"ph":"X","pid":%s,"tid":%s,"cat":"%s","ts":%s,"dur":%s,"args":{"op":"F0.0"}}' \
                "$comma" "$1" "$2" "$3" "$4" "$5"
            comma=,
        done
        printf ']}\n'
    } >"$W/$name"
}

# By hand, in us: rank 0 computes 0-10, 10-30, optimizes 40-50, reduces 28-40 (2 hidden by B, 10
# not); rank 1 waits 0-10, receives 10-12, computes 12-32, sends 30-36 (2 hidden, 4 not), idles.
trace predicted false 50000 \
    0,0,F,0,10 0,0,B,10,20 0,3,dp-reduce,28,12 0,0,optimizer,40,10 \
    1,2,receive,10,2 1,0,F,12,20 1,1,send,30,6
# Measured: backward 20 longer, and 3 between forward and backward in which nothing happens; rank 1
# begins 10 late, waits 25 on rank 0, and is idle from 57 until 73.
trace measured true 73000 \
    0,0,F,0,10 0,0,B,13,40 0,3,dp-reduce,53,10 0,0,optimizer,63,10 \
    1,2,receive,10,2 1,0,F,12,20 1,0,wait,32,25
runs 0 "two traces" compare "$W/predicted" "$W/measured" --json
cp "$W/out" "$W/compare.json"
json "the classes are those counted by hand" "
assert list(d)[:2] == ['format', 'version'] and d['format'] == 'degas-compare'
c = {x['class']: (x['predicted_s'], x['measured_s']) for x in d['classes']}
def us(a, b):
    return (a / 2e6, b / 2e6)  # mean of two ranks
want = {'forward': us(30, 30), 'backward': us(20, 40), 'backward_input': us(0, 0),
        'backward_weight': us(0, 0), 'optimizer': us(10, 10), 'dp': us(10, 10),
        'messages': us(6, 2), 'dispatch': us(0, 3),
        'waiting': us(0 + 24, 0 + 10 + 25 + 16)}
assert set(c) == set(want), c
for k in want:
    assert all(abs(a - b) < 1e-12 for a, b in zip(c[k], want[k])), (k, c[k], want[k])"
json "classes add up to the iterations, differences to the difference, shares to one" "
assert abs(sum(x['predicted_s'] for x in d['classes']) - d['predicted_s']) < 1e-12
assert abs(sum(x['measured_s'] for x in d['classes']) - d['measured_s']) < 1e-12
assert abs(sum(x['difference_s'] for x in d['classes']) - d['difference_s']) < 1e-12
assert abs(sum(x['share_fraction'] for x in d['classes']) - 1) < 1e-9
assert abs(d['predicted_s'] - 50e-6) < 1e-12 and abs(d['measured_s'] - 73e-6) < 1e-12
assert abs(d['error_fraction'] - (50 / 73 - 1)) < 1e-12"
json "the largest cause is named" "
best = max(d['classes'], key=lambda x: x['share_fraction'])
assert d['largest'] == best['class'] == 'waiting'
assert d['explanation'].startswith('Largest cause: waiting'), d['explanation']"
runs 0 "for people" compare "$W/predicted" "$W/measured"
has '^backward  *10.0 us  *20.0 us  *+10.0 us  *43.5 %' "a row per class"
has '^iteration  *50.0 us  *73.0 us  *+23.0 us  *100 %' "the sum"
has '^The prediction is 31.5 % too short.' "the error in words"
has '^Largest cause: .*, [0-9.]* % of the difference.$' "the cause in one sentence"
runs 0 "the same file twice" compare "$W/measured" "$W/measured" --tolerance 0% --json
json "... differs in nothing" "
assert d['difference_s'] == 0 and d['error_fraction'] == 0 and d['largest'] is None
assert d['within'] is True and all(x['share_fraction'] is None for x in d['classes'])"

# --- tolerance ---
runs 1 "beyond the tolerance: exit status 1" compare "$W/predicted" "$W/measured" --tolerance 31%
[ "$(wc -l <"$W/err")" = 1 ] && grep -q '31.5 %.*31.0 %' "$W/err"
report $? "... and one line that says by how much" "$(cat "$W/err")"
runs 0 "within the tolerance" compare "$W/predicted" "$W/measured" --tolerance 32%
runs 0 "the tolerance as a fraction, result in a file" compare "$W/predicted" "$W/measured" \
    --tolerance 0.32 -o "$W/file.json"
json "the file is the object" "
assert d['within'] is True and d['tolerance_fraction'] == 0.32
del d['within'], d['tolerance_fraction']
assert d == json.load(open('$W/compare.json'))" "$W/file.json"

trace three false 3000000000 0,0,F,0,10
trace two true 2000000000 0,0,F,0,10
runs 0 "just as far off as tolerated" compare "$W/three" "$W/two" --tolerance 50%

# --- other files ---
cat >"$W/model.json" <<'END'
{"format":"degas-model","version":1,"name":"tiny","family":"gpt","n_layers":4,"hidden":32,
 "n_heads":2,"vocab":256,"max_seq_len":64}
END
"$DEGAS" plan "$W/model.json" local-cpu --gpus 2 --seq-len 64 --dtype fp32 --global-batch 8 --dp 1 \
    --tp 1 --pp 2 --micro-batch 1 --schedule 1f1b --slices 2 --recompute none --zero 0 \
    --framework degas -o "$W/plan.json" >/dev/null 2>&1
"$DEGAS" run "$W/plan.json" --device reference --steps 3 --trace "$W/m.trace" -o "$W/run.json" \
    >/dev/null 2>&1
"$DEGAS" simulate "$W/plan.json" --trace "$W/p.trace" --json >"$W/report.json" 2>/dev/null
for p in plan.json p.trace report.json run.json; do
    for m in m.trace run.json report.json; do
        runs 0 "$p against $m" compare "$W/$p" "$W/$m" --json
        json "... adds up" "
t = d['measured_s'] + d['predicted_s']
assert abs(sum(x['measured_s'] for x in d['classes']) - d['measured_s']) < 1e-6 * t
assert abs(sum(x['predicted_s'] for x in d['classes']) - d['predicted_s']) < 1e-6 * t"
    done
done
runs 0 "a run and its own trace" compare "$W/run.json" "$W/m.trace" --json
json "... are the same" "assert abs(d['difference_s']) < 1e-9 * d['measured_s'], d"
runs 0 "a plan and its own report" compare "$W/plan.json" "$W/report.json" --json
json "... are the same too" "assert d['difference_s'] == 0"
cat >"$W/short.run" <<'END'
{"format":"degas-run","version":1,"steps":2,"step_s":{"median":2.0,"p10":1.9,"p90":2.2},
 "predicted_step_s":1.5,"prediction_error_fraction":-0.25,"tokens_per_s":10,"losses":[2,1],
 "bubble_fraction":0.25,"ranks":[{"rank":0,"busy_s":1.75,"peak_memory_bytes":1},
 {"rank":1,"busy_s":1.25,"peak_memory_bytes":1}],"verify":null}
END
# The run's own plan: what of the difference is only that ops vary
sed 's/"verify":null/"predicted_varied_step_s":{"p10":1.5,"p50":1.75,"p90":2.0,"op_sigma_fraction":0.1,"correlation_s":0.05,"rank_sigma_fraction":0.1},"verify":null/' \
    "$W/short.run" >"$W/varied.run"
runs 0 "a run whose ops vary" compare "$W/p.trace" "$W/varied.run" --json
json "... says what that makes of the prediction" \
    "assert d['varied_s'] == {'p10': 1.5, 'p50': 1.75, 'p90': 2.0}, d"
runs 0 "... and for people" compare "$W/p.trace" "$W/varied.run"
has '^Ops that vary as when they were profiled make it 1.75 s, .*: 80 % of steps take 1.5[0 ]*s to 2[.0 ]*s\.$' \
    "... in a line of its own"
sed 's/"p50":1.75/"p50":"x"/' "$W/varied.run" >"$W/wrong.run"
fails 3 'predicted_varied_step_s.p50' "a time that is none" compare "$W/p.trace" "$W/wrong.run"
# A run on a virtual machine whose host was busy
for stolen in 0.125 0.02 null; do
    sed "s/\"verify\":null/\"steps_s\":[2,2],\"stolen_fraction\":$stolen,\"verify\":null/" \
        "$W/short.run" >"$W/stolen-$stolen.run"
done
runs 0 "a run that lost cores to the host" compare "$W/p.trace" "$W/stolen-0.125.run"
has '^While the second was measured the host took 12.5 % of the cores: steps are slower' \
    "... is said to be slower for it"
runs 0 "... for programs" compare "$W/p.trace" "$W/stolen-0.125.run" --json
json "... with the share" "assert d['stolen_fraction'] == 0.125, d"
runs 0 "a run that lost next to nothing" compare "$W/p.trace" "$W/stolen-0.02.run"
[ "$(grep -c 'the host took' "$W/out")" = 0 ]
report $? "... is not said to be slower" "$(cat "$W/out")"
runs 0 "a run on a system that does not know" compare "$W/p.trace" "$W/stolen-null.run" --json
json "... tells nothing" "assert 'stolen_fraction' not in d, d"
sed 's/0.125/1.5/' "$W/stolen-0.125.run" >"$W/wrong.run"
fails 3 'stolen_fraction' "more than all cores" compare "$W/p.trace" "$W/wrong.run"
runs 0 "a run with nothing but what must be there" compare "$W/p.trace" "$W/short.run" --json
json "... tells busy and waiting" "
c = {x['class']: x['measured_s'] for x in d['classes']}
assert c == {'busy': 1.5, 'waiting': 0.5} and d['measured_s'] == 2"

# --- files of another kind of schedule, and more than two ---
trace halves false 60000 \
    0,0,F,0,10 0,0,I,10,10 0,0,W,30,10 0,0,optimizer,40,10 \
    1,0,F,12,20 1,0,I,32,8 1,0,W,40,12
runs 0 "whole backwards beside halves" compare "$W/predicted" "$W/halves" --json
json "are matched: what rank 0 does in 20 us and rank 1 in 20" "
c = {x['class']: (x['predicted_s'], x['measured_s']) for x in d['classes']}
assert abs(c['backward'][0] - 10e-6) < 1e-12 and abs(c['backward'][1] - 20e-6) < 1e-12, c
assert c['backward_input'] == (0, 0) and c['backward_weight'] == (0, 0), c
assert 'than in the first' in d['explanation'], d['explanation']"
runs 0 "neither is measured" compare "$W/predicted" "$W/halves"
has '^mean over ranks  *first  *second ' "they are the first and the second"
has '^The second takes 20.0 % more time.' "and so is what is said"
runs 0 "three files" compare "$W/predicted" "$W/measured" "$W/halves"
has '^mean over ranks  *predicted  *measured  *halves' "stand side by side"
has '^iteration  *50.0 us  *73.0 us  *60.0 us' "with their sums"
has '^beside the first  *+46.0 %  *+20.0 %' "each beside the first"
has '/halves: Largest cause: .* than in the first' "and why"
runs 1 "one of them beyond the tolerance" compare "$W/predicted" "$W/halves" "$W/measured" --tolerance 20% --json
cp "$W/out" "$W/three.json"
json "each is a comparison" "
assert d['first'].endswith('/predicted') and len(d['others']) == 2
assert d['others'][0]['file'].endswith('/halves') and d['others'][0]['within'] and not d['others'][1]['within']
assert abs(d['others'][1]['difference_s'] - 23e-6) < 1e-12"

# --- wrong input ---
T=$W/predicted
fails 2 'argument is missing' "one file" compare "$T"
fails 2 'unexpected argument' "thirteen files" compare "$T" "$T" "$T" "$T" "$T" "$T" "$T" "$T" "$T" "$T" "$T" "$T" "$T"
fails 2 '--tolerance' "a tolerance beyond all" compare "$T" "$T" --tolerance 101%
fails 2 '--tolerance' "a tolerance in seconds" compare "$T" "$T" --tolerance 5ms
fails 2 '--tolerance' "a negative tolerance" compare "$T" "$T" --tolerance -1
fails 4 'none' "a file that is not there" compare "$T" "$W/none"
fails 4 "$W" "a folder" compare "$T" "$W"
printf '' >"$W/empty"
fails 3 'empty:1:1' "an empty file" compare "$T" "$W/empty"
printf '{"format":"degas-profile","version":1}' >"$W/kind"
fails 3 'degas-trace, degas-report, degas-run' "a file of another kind" compare "$T" "$W/kind"
printf '{"format":"degas-traces","version":1}' >"$W/kind"
fails 3 'did you mean "degas-trace"' "a kind misspelt" compare "$W/kind" "$T"
printf '[1,2]' >"$W/kind"
fails 3 'format' "an array" compare "$W/kind" "$T"
printf '{"format":7,"version":1}' >"$W/kind"
fails 3 'format' "a kind that is a number" compare "$W/kind" "$T"
trace overlap false 50000 0,0,F,0,10 0,0,B,5,20
fails 3 'overlap:.*before' "events that overlap" compare "$W/overlap" "$T"
trace late false 5000 0,0,F,0,10
fails 3 'late:.*outside' "an event beyond the end" compare "$W/late" "$T"
trace huge false 50000 0,0,F,1e300,10
fails 3 'huge:.*ts' "an event at an impossible time" compare "$W/huge" "$T"
trace nothing false 0
runs 0 "an iteration of no time" compare "$T" "$W/nothing" --json
json "... has no error fraction" "assert d['error_fraction'] is None and d['largest'] == 'forward'"
runs 1 "... and is beyond any tolerance" compare "$T" "$W/nothing" --tolerance 100%
sed 's/1.75/7.75/' "$W/short.run" >"$W/busy.run"
fails 3 'busy.run:.*ranks' "ranks that are busy for longer than a step" compare "$T" "$W/busy.run"
sed 's/"ranks":.*/"ranks":[],/; s/^ {"rank":1.*/ "verify":null}/' "$W/short.run" >"$W/ranks.run"
fails 3 'ranks' "a run without ranks" compare "$T" "$W/ranks.run"
sed 's/"median":2.0/"median":-2.0/' "$W/short.run" >"$W/negative.run"
fails 3 'negative.run:.*median' "a negative time" compare "$T" "$W/negative.run"
sed 's/"losses"/"looses"/' "$W/short.run" >"$W/key.run"
fails 3 'looses.*losses' "an unknown key, with the nearest" compare "$T" "$W/key.run"
sed '/"predicted": {/,/^  },*$/d' "$W/plan.json" >"$W/bare.json"
fails 3 'no prediction' "a plan without a prediction" compare "$W/bare.json" "$T"
fails 4 'no/such' "a folder for the result that is not there" compare "$T" "$T" -o "$W/no/such"
finish
