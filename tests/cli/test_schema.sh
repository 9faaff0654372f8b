#!/bin/sh
# degas schema: every file that commands write agrees with its schema, and the readers refuse what it refuses.
. tests/cli/tap.sh

command -v python3 >/dev/null 2>&1 || {
    skip "degas schema" "python3 is not installed"
    finish
}
# schemas NAME ARGUMENT...: tests/cli/schema.py finds nothing
schemas() {
    name=$1
    shift
    found=$(python3 tests/cli/schema.py "$DEGAS" "$W" "$@" 2>&1)
    [ -z "$found" ]
    report $? "$name" "$found"
}
runs 0 "schema lists the formats" schema
for f in $(cat "$W/out"); do
    grep -q "^### degas-$f\b" docs/formats.md || [ "$f" = list ] || [ "$f" = doctor ] || [ "$f" = validation ]
    report $? "docs/formats.md tells of $f"
done
runs 0 "a schema by the name in the file" schema degas-plan
fails 2 'no format "plna": did you mean "plan"' "a format that is not there" schema plna

# same FILE NAME: what the last command printed is what it wrote to FILE
same() {
    cmp -s "$W/out" "$1"
    report $? "$2: --json prints what -o writes" "$(head -c 200 "$W/out")"
}

# What commands write.
runs 0 "a plan" plan llama3-8b dgx-h100 --global-batch 64 --gpus 16 --pp 2 --vpp 2 --dp 4 --tp 2 --schedule interleaved \
    --framework megatron-core --explain --top 1 -o "$W/plan.json"
runs 0 "a report, a trace" simulate "$W/plan.json" --jitter 3%,5 --explain -o "$W/report.json" --trace "$W/trace.json" --json
same "$W/report.json" "a report"
runs 0 "a sweep" sweep llama3-8b dgx-h100 --gpus 1,8 --global-batch 64 --tp 1 --pp 1 --cp 1 --tokens 1T --price 2 -o "$W/sweep.json"
runs 0 "a sweep of two clusters" sweep gpt2-124m dgx-h100,dgx-a100-80g --gpus 8 --global-batch 64 --tp 1 --pp 1 --cp 1 \
    --tokens 1B --price 2 --within 9d --budget 1M -o "$W/sweep2.json"
runs 0 "a schedule" schedule dualpipe --pp 4 --microbatches 8 -o "$W/schedule.json" --json
same "$W/schedule.json" "a schedule"
runs 0 "a model" show mixtral-8x7b --json
cp "$W/out" "$W/model.json"
runs 0 "a profile" show dgx-h100 --json
cp "$W/out" "$W/profile.json"
runs 0 "a list" list models --json
cp "$W/out" "$W/list.json"
runs 0 "a comparison" compare "$W/plan.json" "$W/report.json" -o "$W/compare.json" --json
same "$W/compare.json" "a comparison"
runs 0 "a small plan" plan gpt-mini local-cpu --gpus 1 --global-batch 1 --seq-len 16 --layers 1 --dtype fp32 -o "$W/mini.json"
runs 0 "a run" run "$W/mini.json" --device reference --steps 1 --verify --checkpoint "$W/states" -o "$W/run.json" --json
same "$W/run.json" "a run"
cp "$W"/states/step-*/checkpoint.json "$W/checkpoint.json"
"$DEGAS" doctor --json >"$W/doctor.json" 2>/dev/null
printf '{"1_8_0":{"forward_mean":0.1,"backward_mean":0.2},"1_8_8":{"forward_mean":0.1,"backward_mean":0.2},"1_16_0":{"forward_mean":0.1,"backward_mean":0.2}}' >"$W/costs"
runs 0 "slices" slices --costs "$W/costs" --stages 2 --batch 1 --seq-len 16 -o "$W/slices.json" --json
same "$W/slices.json" "slices"
cat >"$W/m.csv" <<'END'
source,id,gpu,gpus,model,layers,hidden,heads,vocab,seq,global_batch,micro_batch,dp,tp,pp,schedule,recompute,dtype,measured_iter_ms,measured_mem_GiB,status,notes
mine,a,A100-SXM4-80GB,8,gpt,24,2048,16,51200,1024,64,4,2,2,2,1f1b,none,fp16,500.5,20,ok,
mine,b,A100-SXM4-80GB,8,gpt,24,2048,16,51200,1024,64,2,2,2,2,1f1b,none,fp16,520.5,18,ok,
mine,c,A100-SXM4-80GB,8,gpt,24,2048,16,51200,1024,128,2,2,2,2,1f1b,none,fp16,960.5,16,ok,
END
runs 0 "a validation" validate dgx-a100-80g "$W/m.csv" -o "$W/validation.json" --json
same "$W/validation.json" "a validation"
runs 0 "a calibration" calibrate dgx-a100-80g "$W/m.csv" --holdout 0 -o "$W/calibrated.json" --json
cp "$W/out" "$W/calibration.json"
rm "$W/costs"
# What people write: the examples of degas init, as JSON.
for kind in cluster model job; do
    "$DEGAS" init $kind | python3 -c "
import json, re, sys
text = re.sub(r'(?m)(^| )#.*$', '', sys.stdin.read())
print(json.dumps({k: int(v) if v.isdigit() else float(v) if re.fullmatch(r'[0-9.]+', v) else v
                  for k, v in (line.split(': ', 1) for line in map(str.strip, text.splitlines()) if line)}))" >"$W/own_$kind.json"
    report $? "an example of a $kind"
done
schemas "every file that a command writes agrees with its schema" "$W"/*.json --files
schemas "what is built in agrees with its schema" models/*.json profiles/*.json --files

# Samples with every key that may be absent.
python3 - "$W" <<'END'
import json, sys
def change(name, function):
    path = '%s/%s.json' % (sys.argv[1], name)
    d = json.load(open(path))
    function(d)
    json.dump(d, open(path, 'w'))
def plan(d):
    d.update(rank_order='tp-cp-pp-dp', offload='cpu', zero_stage=3, offload_parameters=True, prefetch_layers=2, group=2)
    d['conventions'].update(cp_comm='a2a', loss='fused', expert_tp=1, expert_imbalance=1.5, deterministic=True, pad_vocab=True)
def profile(d):
    c = d['cluster']
    c['devices'][0]['price_per_hour'] = 2.5
    c.update(price_per_device_hour=2.5, currency='USD', price_source='a list')
    c['nodes'][0]['links'] = [{'level': c['levels'][0]['name'], 'bytes_per_s': 1e9, 'shared_bytes_per_s': 0, 'latency_s': 1e-6}]
    d.update(measured_on='a device', measured_dtype='fp32', measured_concurrency=2, measured_attention='mma',
             measured_attention_why='the other is slower')
    d['measured_interference'] = [{'beside': 'compute', 'n_ranks': 2, 'factor': 1.1, 'p10': 1.0, 'p90': 1.2}]
    d['measured_sustained'] = [{'batch': 1, 'tokens': 8, 'factor': 1.0}, {'batch': 4, 'tokens': 8, 'factor': 1.1}]
    d['measured_variation'] = {'op_fraction': 0.02, 'correlation_s': 0.1, 'rank_fraction': 0.01}
    d['measured'] = [{'op': 'overhead', 'median_s': 1e-4, 'p10_s': 1e-4, 'p90_s': 1e-4}]
change('plan', plan)
change('profile', profile)
change('model', lambda d: d.update(qkv_bias=True, qk_norm=True))
END
schemas "files with every key agree with their schemas" "$W/plan.json" "$W/profile.json" "$W/model.json" --files
# make test looks at a part of the keys, make test-long at all: SCHEMA_STEP=1.
schemas "readers and schemas refuse the same" "$W/model.json" "$W/profile.json" "$W/plan.json" "$W/schedule.json" \
    "$W/report.json" "$W/trace.json" "$W/sweep.json" --readers "${SCHEMA_STEP:-5}"
finish
