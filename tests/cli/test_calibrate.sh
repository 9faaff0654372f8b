#!/bin/sh
# degas calibrate: finds the parameters that made the measurements, holds rows out, writes the same
# bytes with any number of threads, and says where its values are from.
. tests/cli/tap.sh

if ! command -v python3 >/dev/null 2>&1; then
    skip "calibrate" "python3 is not installed"
    finish
fi

# Measurements of a machine that we know: the simulator's times of dgx-a100-80g with other
# parameters.
"$DEGAS" show dgx-a100-80g --json >"$W/base.json"
cat >"$W/make.py" <<'P'
import csv, json, subprocess, sys
degas, work, noise = sys.argv[1], sys.argv[2], sys.argv[3] == 'noisy'
machine = json.load(open(work + '/base.json'))
machine['cost'].update(gemm_fraction=0.70, memory_fraction=0.60, link_fraction=0.60)
machine['name'] = 'ours'
json.dump(machine, open(work + '/ours.json', 'w'))
head = ('source,id,gpu,gpus,model,layers,hidden,heads,vocab,seq,global_batch,micro_batch,dp,tp,pp,'
        'schedule,recompute,dtype,measured_iter_ms,status').split(',')
rows = []
for hidden in (1024, 2048, 4096):
    for tp, pp, dp in ((1, 1, 8), (2, 1, 4), (1, 2, 4), (2, 2, 2), (4, 1, 2), (1, 4, 2), (8, 1, 1)):
        for micro in (1, 4):
            rows.append(['mine', f'h{hidden}-t{tp}p{pp}m{micro}', 'A100-SXM4-80GB', 8, 'gpt', 8,
                         hidden, 16, 51200, 1024, 64, micro, dp, tp, pp, '1f1b', 'none', 'fp16',
                         1000, 'ok'])
def write():
    with open(work + '/m.csv', 'w', newline='') as f:
        csv.writer(f).writerows([head] + rows)
write()
subprocess.run([degas, 'validate', work + '/ours.json', work + '/m.csv', '--json', '--requests',
                work + '/r.jsonl'], check=True, stdout=subprocess.DEVNULL)
reports = subprocess.run([degas, 'simulate', '--batch', work + '/r.jsonl'], check=True,
                         capture_output=True, text=True).stdout.splitlines()
for i, (row, line) in enumerate(zip(rows, reports)):
    report = json.loads(line)
    assert report['id'] == row[1]
    # A row in twelve is spoilt: half as fast again.
    spoilt = 1.5 if noise and i % 12 == 5 else 1.0
    row[-2] = repr(report['iteration_s'] * 1e3 * spoilt)
write()
P
python3 "$W/make.py" "$DEGAS" "$W" exact
runs 0 "before: the cluster's own parameters" validate dgx-a100-80g "$W/m.csv" --json
json "they are not these" 'assert d["rows"] == 42 and d["mape_fraction"] > 0.05, d["mape_fraction"]'
runs 0 "calibrate" calibrate dgx-a100-80g "$W/m.csv" -o "$W/fitted.json" --json --name fitted
cp "$W/out" "$W/report.json"
json "errors vanish, also on rows it has not seen" '
t = d["time"]
assert t["training"]["rows"] + t["held_out"]["rows"] == 42 and t["held_out"]["rows"] >= 3, t
assert t["training"]["after"]["mape_fraction"] < 0.01 < t["training"]["before"]["mape_fraction"], t
assert t["held_out"]["after"]["mape_fraction"] < 0.01, t
low, high = t["held_out"]["mape_interval_fraction"]
assert low <= t["held_out"]["after"]["mape_fraction"] <= high, t
assert d["memory"] is None
'
json "what made the times is found, within what is said to be left open" '
p = {x["name"]: x for x in d["parameters"]}
for name, true in ("gemm_fraction", 0.70), ("memory_fraction", 0.60), ("link_fraction", 0.60):
    assert abs(p[name]["value"] - true) < 3 * p[name]["deviation"] + 0.02 * true, (name, p[name])
assert "nvme_bytes_per_s" not in p and "network_fraction" not in p
'
runs 0 "the profile is complete" show "$W/fitted.json" --json
json "and says where its values are from" '
assert d["name"] == "fitted"
assert d["cost_sources"]["gemm_fraction"].startswith("fitted to "), d["cost_sources"]
assert "mine" in d["cost_sources"]["gemm_fraction"] and "0.81" in d["cost_sources"]["gemm_fraction"]
assert "nvme_bytes_per_s" not in d["cost_sources"]
'
runs 0 "it predicts" validate "$W/fitted.json" "$W/m.csv" --json
json "as it was said to" 'assert d["mape_fraction"] < 0.01, d["mape_fraction"]'
for threads in 1 3; do
    runs 0 "with $threads threads" calibrate dgx-a100-80g "$W/m.csv" -o "$W/again.json" \
        --threads "$threads" --name fitted
    cmp -s "$W/fitted.json" "$W/again.json"
    report $? "$threads threads write the same bytes"
done
runs 0 "nothing held out" calibrate dgx-a100-80g "$W/m.csv" -o "$W/all.json" --holdout 0 --json
json "all rows train" 'assert d["time"]["training"]["rows"] == 42 and d["time"]["held_out"]["rows"] == 0'

python3 "$W/make.py" "$DEGAS" "$W" noisy
runs 0 "four rows of 42 are half as fast again" \
    calibrate dgx-a100-80g "$W/m.csv" -o "$W/noisy.json" --json --holdout 0
json "outliers do not decide" '
p = {x["name"]: x["value"] for x in d["parameters"]}
assert abs(p["gemm_fraction"] / 0.70 - 1) < 0.05, p
'

# Five runs of one job that took longer and shorter than predicted in turns: none says what the others take.
runs 0 "what is predicted" validate dgx-a100-80g "$W/m.csv" --json
python3 - "$W" <<'P'
import csv, json, sys
work = sys.argv[1]
predicted_s = json.load(open(work + '/out'))['predictions'][0]['predicted_s']
head, row = list(csv.reader(open(work + '/m.csv')))[:2]
with open(work + '/contrary.csv', 'w', newline='') as f:
    out = csv.writer(f)
    out.writerow(head)
    for i in range(5):
        row[head.index('id')] = f'run-{i}'
        row[head.index('measured_iter_ms')] = predicted_s * 1e3 / (0.9 if i % 2 else 1.1)
        out.writerow(row)
P
runs 0 "rows that contradict each other" \
    calibrate dgx-a100-80g "$W/contrary.csv" -o "$W/kept.json" --holdout 0
has 'times: no parameter is moved, since fits to a part' "no parameter is moved, and why"

# Our own runs: a plan, and a step that took as long as on a machine with slower products.
for hidden in gpt3-1b gpt2-1.5b; do
    "$DEGAS" plan "$hidden" dgx-a100-80g --gpus 1 --layers 8 --global-batch 8 --micro-batch 4 \
        --recompute none --zero 0 -o "$W/$hidden.json" >"$W/out" 2>&1
    python3 - "$DEGAS" "$W" "$hidden" <<'P'
import json, subprocess, sys
degas, work, name = sys.argv[1:]
plan = json.load(open(f'{work}/{name}.json'))
plan['cluster']['cost']['gemm_fraction'] = 0.70
json.dump(plan, open(work + '/slow-plan.json', 'w'))
out = subprocess.run([degas, 'simulate', work + '/slow-plan.json', '--json'], check=True,
                     capture_output=True, text=True).stdout
step = json.loads(out)['iteration_s']
json.dump({'format': 'degas-run', 'version': 1, 'steps': 3,
           'step_s': {'median': step, 'p10': step, 'p90': step}}, open(f'{work}/{name}-run.json', 'w'))
P
done
runs 0 "our own runs" calibrate dgx-a100-80g "$W/gpt3-1b.json=$W/gpt3-1b-run.json" \
    "$W/gpt2-1.5b.json=$W/gpt2-1.5b-run.json" -o "$W/runs.json" --holdout 0 --json
json "are learned from" '
t = d["time"]["training"]
assert t["rows"] == 2 and t["before"]["bias_fraction"] < -0.05, t
assert t["after"]["mape_fraction"] < 0.01, t
p = {x["name"]: x for x in d["parameters"]}
assert p["gemm_fraction"]["value"] < 0.80, p
'
grep -q 'fitted to 2 rows of degas run' "$W/runs.json"
report $? "and named as the source"
fails 3 'degas-run' "a plan in place of its run" \
    calibrate dgx-a100-80g "$W/gpt3-1b.json=$W/gpt3-1b.json" -o "$W/no.json"

fails 2 '--output: is missing' "no profile to write" calibrate dgx-a100-80g "$W/m.csv"
fails 2 '--holdout' "all rows held out" calibrate dgx-a100-80g "$W/m.csv" -o "$W/x.json" --holdout 1
rm -f "$W/no.json"
fails 1 'no row can be predicted; the first: other devices' "rows of other devices alone" \
    calibrate dgx-h100 "$W/m.csv" -o "$W/no.json"
fails 4 'no-such' "a table that is not there" calibrate dgx-a100-80g no-such.csv -o "$W/no.json"
sed '2s/,1024,64,/,1024,64.5,/' "$W/m.csv" >"$W/bad.csv"
fails 3 'bad.csv:2: global_batch' "a bad row" calibrate dgx-a100-80g "$W/bad.csv" -o "$W/no.json"
[ ! -e "$W/no.json" ]
report $? "what failed wrote nothing"
finish
