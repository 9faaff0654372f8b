#!/bin/sh
# degas profile and degas run: a small model measured, planned, trained, laid beside its prediction.
# Timings are not judged here (the machine may be busy), only that numbers agree with each other.
# Test runner: first.
. tests/cli/tap.sh

cat >"$W/tiny.json" <<'END'
{"format":"degas-model","version":1,"name":"tiny","family":"gpt","n_layers":4,"hidden":32,
 "n_heads":2,"vocab":256,"max_seq_len":64}
END

# plan NAME FLAG...: a plan file of the tiny model for this machine
plan() {
    name=$1
    shift
    "$DEGAS" plan "$W/tiny.json" "$W/profile.json" --seq-len 64 --dtype fp32 --framework degas \
        --recompute none --zero 0 --tp 1 "$@" -o "$W/$name.json" >/dev/null 2>"$W/err" ||
        report 1 "plan $name" "$(cat "$W/err")"
}

# --- profile ---
runs 0 "profile a model given as a file" profile "$W/tiny.json" --device reference --quick \
    --batches 1,2 --slices 64,32 --concurrency 2 -o "$W/profile.json"
has '^layer  *forward  *1 x 64  *[0-9.]* [mu]s' "the table has a row per slice"
has 'GFLOP/s$' "the table has rates"
has '2 ranks busy at once' "the table says how many ranks were busy"
[ "$(grep -vc -e 'the machine is busy' -e 'there was no time for' -e 'would have time for' "$W/err")" = 0 ]
report $? "nothing but a warning of other work on stderr without a terminal" "$(cat "$W/err")"
json "the keys of a profile" "
assert list(d)[:2] == ['format', 'version'] and d['format'] == 'degas-profile'
assert d['measured_concurrency'] == 2 and d['measured_dtype'] == 'fp32'
rows = [r for r in d['measured'] if r['op'] == 'layer']
assert {(r['batch'], r['tokens'], r['context']) for r in rows} == {
    (b, n, c) for b in (1, 2) for n, c in ((64, 0), (32, 0), (32, 32))}
assert {r['pass'] for r in rows} == {'forward', 'backward', 'backward_input', 'backward_weight'}
assert all(0 < r['p10_s'] <= r['median_s'] <= r['p90_s'] for r in d['measured'] if r['op'] != 'overhead')
assert {r['op'] for r in d['measured']} >= {'layer', 'embedding', 'head', 'optimizer', 'p2p'}" \
    "$W/profile.json"

runs 0 "profile as on one core" profile "$W/tiny.json" --device reference --quick --batches 1 \
    --slices 64 --concurrency 1 --json
json "the profile on standard output" "
assert d['measured_concurrency'] == 1 and any(r['op'] == 'p2p' for r in d['measured'])"
fails 2 'gpt-mini' "profile of an unknown model, with the nearest" profile gpt-minni --quick
fails 4 'none.json' "profile of a file that is not there" profile "$W/none.json"
fails 2 '--slices.*0' "profile with an empty slice" profile "$W/tiny.json" --slices 0
fails 2 '--batches' "profile with words for numbers" profile "$W/tiny.json" --batches 1,two
fails 2 '--concurrency' "profile with no rank" profile "$W/tiny.json" --concurrency 0
fails 2 'cpu' "profile on a device that does not exist" profile "$W/tiny.json" --device cpuu
fails 6 'cuda' "profile on a device that is not built" profile "$W/tiny.json" --device cuda
fails 2 'tp 3 does not divide the 2 heads' "profile of tensor parallelism that there is not" profile "$W/tiny.json" --tp 1,3
sed 's/"gpt"/"llama"/; s/"n_heads"/"indexer":{"n_heads":1,"head_dim":4,"top_k":8},&/' "$W/tiny.json" >"$W/short.json"
fails 1 'an indexer whose heads are shorter' "profile of a model that cannot be run" profile "$W/short.json" --seq-len 64
fails 1 '65' "profile beyond the model's positions" profile "$W/tiny.json" --seq-len 65
fails 4 'no/such' "profile into a folder that is not there" profile "$W/tiny.json" \
    --device reference --quick --batches 1 --slices 64 -o "$W/no/such"

# --- run ---
plan pp2 --gpus 2 --global-batch 8 --dp 1 --pp 2 --micro-batch 1 --schedule 1f1b --slices 40,24
runs 0 "run a pipeline with uneven slices and verify it" run "$W/pp2.json" --device reference \
    --steps 12 --seed 3 --verify --json --trace "$W/pp2.trace"
cp "$W/out" "$W/pp2.run"
json "the keys of a run" "
assert list(d)[:2] == ['format', 'version'] and d['format'] == 'degas-run' and d['version'] == 1
for k in ['steps', 'step_s', 'predicted_step_s', 'prediction_error_fraction', 'tokens_per_s',
          'losses', 'bubble_fraction', 'ranks', 'verify']:
    assert k in d, k
assert d['steps'] == 12 == len(d['losses'])
assert [r['rank'] for r in d['ranks']] == [0, 1]
assert all(set(r) >= {'busy_s', 'peak_memory_bytes'} for r in d['ranks'])"
json "its numbers agree with each other" "
s = d['step_s']
assert 0 < s['p10'] <= s['median'] <= s['p90']
assert abs(d['prediction_error_fraction'] - (d['predicted_step_s'] / s['median'] - 1)) < 1e-9
assert abs(d['tokens_per_s'] - 8 * 64 / s['median']) < 1e-6 * d['tokens_per_s']
step = sum(d['breakdown_s'].values())
assert s['p10'] * 0.5 < step < s['p90'] * 2
busy = sum(r['busy_s'] for r in d['ranks']) / 2
assert abs(d['bubble_fraction'] - (1 - busy / step)) < 1e-6
b = d['breakdown_s']
assert abs(busy - b['forward'] - b['backward'] - b['optimizer']) < 1e-6 * step"
json "a step's time for each step" "
assert len(d['steps_s']) == d['steps'] and all(s > 0 for s in d['steps_s'])
s = sorted(d['steps_s'][1:])
assert d['step_s']['median'] == s[len(s) // 2]"
json "gradients are those of one device" "
v = d['verify']
assert v['passed'] is True and 0 <= v['max_gradient_error'] <= v['tolerance'] == 1e-5
assert abs(v['reference_loss'] - d['losses'][0]) < 1e-4"
json "the loss falls" "assert d['losses'][-1] < d['losses'][0] - 0.1, d['losses']"
json "the trace is of the plan: all ops of both ranks, in the schedule's order" "
assert d['format'] == 'degas-trace' and d['measured'] is True and d['slices'] == 2
import subprocess
schedule = json.loads(subprocess.check_output(['$DEGAS', 'schedule', '1f1b', '--pp', '2',
    '--microbatches', '8', '--slices', '2', '--json']))
for rank in (0, 1):
    ops = [e['args']['op'] for e in d['traceEvents']
           if e['ph'] == 'X' and e['pid'] == rank and e['cat'] in ('forward', 'backward', 'F', 'B')]
    assert ops == schedule['ranks'][rank], (ops, schedule['ranks'][rank])" "$W/pp2.trace"
"$DEGAS" simulate "$W/pp2.json" --json >"$W/pp2.report" 2>/dev/null
json "the prediction is the simulator's" "
run = json.load(open('$W/pp2.run'))
assert d['iteration_s'] == run['predicted_step_s']
assert d['bubble_fraction'] == run['predicted_bubble_fraction']" "$W/pp2.report"

# --- a padded vocabulary ---
# Like GPT-2's 50257: over tp 2, as Megatron pads it, 256 columns for 129.  What the profile's times could choose is
# given, so that the two plans differ in nothing else.
sed 's/"vocab":256/"vocab":257/' "$W/tiny.json" >"$W/odd.json"
for how in on off; do
    # shellcheck disable=SC2046
    "$DEGAS" plan "$W/odd.json" "$W/profile.json" --seq-len 64 --dtype fp32 --framework megatron-lm --dropout off \
        --recompute none --zero 0 --gpus 4 --global-batch 4 --tp 2 --pp 2 --dp 1 --schedule 1f1b \
        --micro-batch 4 --slices off --sequence-parallel off \
        $([ $how = on ] || echo --pad-vocab off) -o "$W/pad-$how.json" >/dev/null 2>"$W/err" ||
        report 1 "plan pad-$how" "$(cat "$W/err")"
    runs 0 "a plan by megatron-lm, padded: $how" run "$W/pad-$how.json" --device reference --steps 1 --verify --json
    cp "$W/out" "$W/pad-$how.run"
    json "... is that of one device without padding" "assert d['verify']['passed'], d['verify']"
done
json "every rank had the rows of padding: weights, gradients and moments" "
on = json.load(open('$W/pad-on.run'))['ranks']
for a, b in zip(d['ranks'], on):
    # Peaks of two runs differ by a few bytes.
    assert b['peak_memory_bytes'] - a['peak_memory_bytes'] >= 16 * (256 - 129) * 32 - 64, (a, b)"

# --- what the host took ---
# A second of the cores' time is the least of which there is a share.
runs 0 "a run of some seconds" run "$W/pp2.json" --device reference --steps 400 --json
cp "$W/err" "$W/long.err"
json "tells what the host took of the cores, and says so where it counts" "
import os
stat = [l.split() for l in open('/proc/stat') if l.startswith('cpu') and l[3].isdigit()]
mine = [l for l in stat if int(l[0][3:]) in os.sched_getaffinity(0)]
x, said = d['stolen_fraction'], 'the host took' in open('$W/long.err').read()
if not mine or any(len(l) < 9 for l in mine) or sum(d['steps_s']) * len(mine) < 0.9:
    assert x is None, x
elif sum(d['steps_s']) * len(mine) > 1.1:
    assert 0 <= x <= 1, x
assert said == (x is not None and x > 0.02), (x, said)"

# --- times that vary as when profiled ---
runs 0 "varied as the profile's timings" simulate "$W/pp2.json" --jitter profile,200 --json
json "is what a run says beside its prediction" "
run = json.load(open('$W/pp2.run'))
profiled = json.load(open('$W/pp2.json'))['cluster']['measured_variation']
j, varied = d['jitter'], run['predicted_varied_step_s']
assert j['op_sigma_fraction'] == profiled['op_fraction'] > 0, (j, profiled)
assert j['correlation_s'] == profiled['correlation_s'] > 0, (j, profiled)
# What a second has beyond its ops lasts.
of_ops = profiled['op_fraction'] ** 2 / (1 + 1 / profiled['correlation_s'])
lasting = max(0, profiled['rank_fraction'] ** 2 - of_ops) ** 0.5
assert abs(j['rank_sigma_fraction'] - lasting) <= 1e-12, (j, profiled)
assert j['distribution'] == 'log-normal, mean 1', j
assert varied == dict(j['iteration_s'], op_sigma_fraction=j['op_sigma_fraction'],
                      correlation_s=j['correlation_s'],
                      rank_sigma_fraction=j['rank_sigma_fraction']), varied
assert varied['p10'] <= varied['p50'] <= varied['p90']"
fails 2 'jitter profile: .*measured layers' "a profile without timings does not know" \
    simulate gpt2-124m dgx-h100 --gpus 2 --global-batch 8 --pp 2 --jitter profile
"$DEGAS" schedule 1f1b --pp 2 --microbatches 4 --json >"$W/bare.json"
fails 2 'jitter profile: .*measured layers' "nor does a bare schedule" \
    simulate --schedule-file "$W/bare.json" --jitter profile

runs 0 "run it again" run "$W/pp2.json" --device reference --steps 12 --seed 3 --json \
    --deterministic
json "equal runs have equal bits" "
assert d['losses'] == json.load(open('$W/pp2.run'))['losses']
assert d['verify'] is None"
runs 0 "ranks with two threads" run "$W/pp2.json" --device reference --threads 2 --steps 12 --seed 3 --json
json "threads change no bit" "
assert d['losses'] == json.load(open('$W/pp2.run'))['losses']"
"$DEGAS" run "$W/pp2.json" --threads 2 >"$W/out" 2>"$W/err"
[ $? -eq 2 ] && grep -q -- '--threads.*needs --device reference' "$W/err"
report $? "threads are the reference's" "$(cat "$W/err")"
runs 0 "run with another seed" run "$W/pp2.json" --device reference --steps 2 --seed 4 --json
json "another seed is another run" "
assert d['losses'][0] != json.load(open('$W/pp2.run'))['losses'][0]"

runs 0 "a run's own file can be compared" compare "$W/pp2.json" "$W/pp2.run"
has '^iteration' "... with the plan"

plan dp2 --gpus 4 --global-batch 8 --dp 2 --pp 2 --micro-batch 1 --schedule terapipe --slices 2
runs 0 "replicas and stages, results into a file" run "$W/dp2.json" --device reference --steps 3 \
    --seed 3 --data LICENSE --verify -o "$W/dp2.run"
has 'dp 2 x pp 2, 4 micro-batches of 1' "the report says what was run"
has '^  step  *[0-9.]* [mu]\{0,1\}s  *[0-9.]* [mu]\{0,1\}s  *[-+][0-9.]* %' "predicted, measured, error"
has 'loss: [0-9.]* in the first step' "the report shows the loss"
has '1e-05: passed' "the report shows the verification"
grep -q 'concurrency 4' "$W/err"
report $? "a profile of fewer ranks is told" "$(cat "$W/err")"
json "one entry per process rank" "assert [r['rank'] for r in d['ranks']] == [0, 1, 2, 3]" \
    "$W/dp2.run"
runs 0 "degrees do not change what is learnt" run "$W/pp2.json" --device reference --steps 3 \
    --seed 3 --data LICENSE --json
json "the losses of both" "
other = json.load(open('$W/dp2.run'))['losses']
assert all(abs(a - b) < 1e-3 for a, b in zip(d['losses'], other)), (d['losses'], other)"

"$DEGAS" run - --device reference --steps 1 --json <"$W/pp2.json" >"$W/out" 2>"$W/err"
report $? "a plan on standard input" "$(cat "$W/err")"
json "one step is a run too" "assert d['steps'] == 1 and d['step_s']['p10'] == d['step_s']['p90']"

# --- a device that computes wrong ---
cat >"$W/blas.c" <<'END'
/* A matrix product as in a BLAS, row-major, but one element of every result is 1 % off. */
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                 int lda, const float *b, int ldb, float beta, float *c, int ldc)
{
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int l = 0; l < k; l++)
                sum += (double)a[ta == 111 ? i * lda + l : l * lda + i] *
                       (double)b[tb == 111 ? l * ldb + j : j * ldb + l];
            c[i * ldc + j] = alpha * (float)sum + (beta == 0 ? 0 : beta * c[i * ldc + j]);
        }
#ifdef WRONG
    c[0] *= 1.01f;
#endif
}
END
mkdir "$W/wrong" "$W/right"
if ${CC:-cc} -O1 -shared -fPIC -o "$W/right/libopenblas.so.0" "$W/blas.c" 2>"$W/err" &&
    ${CC:-cc} -O1 -shared -fPIC -DWRONG -o "$W/wrong/libopenblas.so.0" "$W/blas.c"; then
    LD_LIBRARY_PATH=$W/right "$DEGAS" run "$W/pp2.json" --steps 1 --verify --json >"$W/out" 2>"$W/err"
    report $? "another BLAS passes verification" "$(cat "$W/err")"
    LD_LIBRARY_PATH=$W/wrong "$DEGAS" run "$W/pp2.json" --steps 1 --verify --json >"$W/out" 2>"$W/err"
    [ $? = 1 ] && grep -q '^degas: .*verification failed: the gradient of' "$W/err"
    report $? "a BLAS that is wrong in one element is caught: exit status 1" "$(cat "$W/err")"
    json "... and named" "
assert d['verify']['passed'] is False and d['verify']['max_gradient_error'] > 1e-5
assert 'on rank' in d['verify']['worst_tensor']"
    : >"$W/wrong/libopenblas.so.0"
    LD_LIBRARY_PATH=$W/wrong "$DEGAS" run "$W/pp2.json" --steps 1 >"$W/out" 2>"$W/err"
    [ $? = 6 ] && [ "$(wc -l <"$W/err")" = 1 ] && grep -q -- '--device reference' "$W/err"
    report $? "a BLAS that cannot be opened: exit status 6, with a way out" "$(cat "$W/err")"
else
    skip "a BLAS that is wrong in one element is caught" "no C compiler"
fi

# --- wrong input ---
R="run $W/pp2.json --device reference"
fails 2 'argument is missing' "run without a plan" run
fails 4 'none.json' "a plan that is not there" run "$W/none.json"
# Experts, tensor, sequence and context parallelism from a plan to verified gradients.
cat >"$W/mixture.json" <<'END'
{"format":"degas-model","version":1,"name":"mixture","family":"llama","n_layers":4,"hidden":32,
 "n_heads":4,"n_kv_heads":2,"ffn_hidden":64,"vocab":256,"max_seq_len":32,
 "experts":{"n_experts":4,"top_k":2,"ffn_hidden":32,"n_shared":1,"first_dense_layers":1}}
END
runs 0 "plan a mixture of experts on eight ranks" plan "$W/mixture.json" local-cpu --gpus 8 \
    --global-batch 4 --seq-len 32 --dtype fp32 --tp 2 --cp 2 --pp 2 --dp 1 --ep 2 --micro-batch 1 \
    --sequence-parallel on --schedule 1f1b --slices off --recompute none --zero 0 \
    -o "$W/mixture_plan.json"
runs 0 "a mixture of experts with tp, sp, cp, ep and pp" run "$W/mixture_plan.json" \
    --device reference --steps 2 --verify
has 'dp 1 x pp 2 x tp 2 x cp 2 x ep 2, sequence parallel' "the report names all degrees"
has 'tolerance 1e-05: passed' "its gradients are those of one device"
sed 's/"dtype": "fp32"/"dtype": "bf16"/' "$W/pp2.json" >"$W/bf16.json"
runs 0 "bf16 within its tolerance" run "$W/bf16.json" --device reference --steps 1 --verify
has 'tolerance 0.02: passed' "the tolerance is bf16's"

printf '{"format":"degas-plan","version":1' >"$W/broken.json"
fails 3 'broken.json:1:' "a plan cut short" run "$W/broken.json"
fails 3 'degas-plan' "a model instead of a plan" run "$W/tiny.json"
sed 's/"global_batch": 8/"global_batch": 9/' "$W/pp2.json" >"$W/batch.json"
fails 3 'batch.json' "a plan whose micro-batches do not add up" run "$W/batch.json"
sed 's/"global_batch": 8/"global_batch": 1e999/' "$W/pp2.json" >"$W/huge.json"
fails 3 'huge.json:.*global_batch' "a plan with an impossible number" run "$W/huge.json"
sed 's/"dtype": "fp32"/"dtype": "fp16"/' "$W/pp2.json" >"$W/fp16.json"
fails 1 'fp16' "a number format the executor does not have" run "$W/fp16.json" --device reference
# shellcheck disable=SC2086
{
    fails 2 '--steps' "no steps" $R --steps 0
    fails 2 'balance-experts: .*has no experts' "balance of no experts" $R --balance-experts
    fails 2 'checkpoint: does not go with --balance-experts' "no state of another routing" $R \
        --balance-experts --checkpoint "$W/none"
    fails 2 'verify: does not go with --balance-experts' "verification of another routing" $R --balance-experts \
        --verify
    fails 2 '--steps' "steps beyond all limits" $R --steps 99999999999999999999
    fails 2 '--seed' "a negative seed" $R --seed -1
    fails 2 '--lr' "a learning rate that is no number" $R --lr nan
    fails 2 '--lr' "a learning rate beyond a float" $R --lr 1e300
    fails 2 '--timeout' "no time to wait" $R --timeout 0s
    fails 8 'rank [01]' "a rank that waits longer than --timeout" $R --timeout 1us
    runs 0 "more time than there are nanoseconds for" $R --steps 1 --timeout 1e12
    fails 2 '--device.*cuda' "an unknown device, with the nearest" $R --device cudaa
    fails 2 '--transport' "an unknown transport" $R --transport udp
    fails 2 'stdout\|standard output' "two products on standard output" $R --json --trace -
    fails 2 'steps' "an unknown option, with the nearest" $R --stepps 3
    fails 2 'graphs: unknown option; did you mean "--no-graphs"' "an option of an earlier release" $R --graphs
    fails 6 'cuda' "a device that is not built" $R --device cuda
    fails 2 'nccl needs --device cuda' "a transport for other devices" $R --transport nccl
    fails 4 'no/text' "data that is not there" $R --data "$W/no/text"
    : >"$W/empty"
    fails 3 'empty' "empty data" $R --data "$W/empty"
    fails 3 'regular file' "data that is a folder" $R --data "$W"
    fails 4 'no/run' "a folder for the result that is not there" $R --steps 1 --json -o "$W/no/run"
    fails 4 'no/trace' "a folder for the trace that is not there" $R --steps 1 --json \
        --trace "$W/no/trace"
}
if [ -w /dev/full ]; then
    # shellcheck disable=SC2086
    "$DEGAS" $R --steps 1 --json >/dev/full 2>"$W/err"
    [ $? = 4 ]
    report $? "a full disk behind standard output" "$(cat "$W/err")"
fi
[ ! -e "$W/no" ]
report $? "nothing was created on the way"
# --- merged passes ---
cat >"$W/experts.json" <<'END'
{"format":"degas-model","version":1,"name":"tiny-experts","family":"llama","n_layers":4,"hidden":32,"n_heads":2,"ffn_hidden":48,
 "vocab":128,"max_seq_len":64,"tied_embeddings":false,"experts":{"n_experts":4,"top_k":2,"ffn_hidden":48}}
END
merged="$W/experts.json local-cpu --gpus 4 --dp 2 --ep 2 --tp 1 --pp 2 --global-batch 16 --micro-batch 2 --dtype fp32 --slices off"
# shellcheck disable=SC2086
{
    runs 0 "a plan with merged passes" plan $merged --zero 1 --schedule 1f1b --overlap ep,pp -o "$W/merged.json"
    runs 0 "simulated, with a timeline" simulate "$W/merged.json" --trace "$W/predicted-merged.json"
    runs 0 "run, with gradients of one device" run "$W/merged.json" --steps 2 --verify --trace "$W/measured-merged.json"
    runs 0 "the same between processes" run "$W/merged.json" --steps 1 --verify --transport tcp
    json "both traces have the same pairs; in the predicted one exchanges are beside the other op" "
def of(path):
    events = [e for e in json.load(open(path))['traceEvents'] if e['ph'] == 'X']
    ops = {(e['pid'], e['args']['op']): e for e in events if e['tid'] == 0 and e['cat'] in ('F', 'B')}
    moved = [e for e in events if e['tid'] == 4]
    assert moved and all(e['cat'] == 'exchange' for e in moved)
    return ops, moved
ops, moved = of('$W/predicted-merged.json')
pairs = {(e['pid'], e['args']['op']) for e in moved}
# Of 4 micro-batches rank 0 warms up by 3 forwards, rank 1 by 1.
assert pairs == {(0, o) for o in ('F3.0', 'B0.0')} | {
    (1, o) for o in ('F1.0', 'F2.0', 'F3.0', 'B0.0', 'B1.0', 'B2.0')}, pairs
for e in moved:
    own = ops[e['pid'], e['args']['op']]
    assert e['ts'] + e['dur'] <= own['ts'] + 2e-3 or own['ts'] + own['dur'] <= e['ts'] + 2e-3, (e, own)
_, moved = of('$W/measured-merged.json')
ops = {p: {e['args']['op'] for e in moved if e['pid'] == p} for p in {e['pid'] for e in moved}}
assert {frozenset(o) for o in ops.values()} == {
    frozenset(o for q, o in pairs if q == p) for p in (0, 1)}, ops" "$W/merged.json"
    fails 2 "no forwards and backwards of two micro-batches to merge" "a schedule without pairs" \
        simulate $merged --zero 0 --schedule zb-h1 --overlap ep,pp
    runs 0 "a plan that cannot be run" plan $merged --zero 2 --schedule 1f1b --overlap ep,pp -o "$W/merged2.json"
    fails 1 "cannot execute --overlap ep with --zero 2" "is refused by name" run "$W/merged2.json" --steps 1
    fails 1 "cannot execute --overlap ep with --transport mpi" "MPI is called by one thread" \
        run "$W/merged.json" --steps 1 --transport mpi
}
finish
