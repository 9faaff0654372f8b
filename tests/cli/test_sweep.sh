#!/bin/sh
# degas sweep: lists and ranges, rows without a plan, agreement with plan, days, cost, goodput,
# determinism, interruption, pictures.
. tests/cli/tap.sh

sweep="gpt2-1.5b dgx-a100-80g --slices off --schedule 1f1b,gpipe --cp 1"
# shellcheck disable=SC2086
runs 0 "sweep --json" sweep $sweep --gpus 8..32:x2,12 --global-batch 64,96 --tokens 300B \
    --price 1.5 --currency EUR --json
cp "$W/out" "$W/sweep.json"
json "rows are all combinations, ascending" "
assert list(d)[:2] == ['format', 'version'] and d['format'] == 'degas-sweep' and d['complete']
at = [(p['n_devices'], p['global_batch'], p['seq_len']) for p in d['points']]
assert at == [(n, b, 1024) for n in (8, 12, 16, 32) for b in (64, 96)], at"
json "what the rates mean" "
for p in d['points']:
    if not p['feasible']:
        continue
    tokens = p['global_batch'] * p['seq_len']
    assert abs(p['tokens_per_s'] * p['iteration_s'] / tokens - 1) < 1e-12
    assert abs(p['tokens_per_s_per_device'] * p['n_devices'] / p['tokens_per_s'] - 1) < 1e-12
    g = p['degrees']
    assert g['dp'] * g['tp'] * g['pp'] * g['cp'] == p['n_devices']
    assert p['lower_bound_s'] <= p['iteration_s']
    assert p['peak_memory_bytes'] <= p['memory_limit_bytes'] == 80 * 2**30"
json "days, cost and energy of the training" "
assert d['currency'] == 'EUR' and d['price_source'] == '--price' and d['tokens'] == 3e11
for p in d['points']:
    if not p['feasible']:
        continue
    days = 3e11 / p['tokens_per_s'] / 86400
    assert abs(p['days'] / days - 1) < 1e-12
    assert abs(p['cost'] / (days * 24 * p['n_devices'] * 1.5) - 1) < 1e-9
    assert abs(p['energy_j'] / (days * 86400 * p['n_devices'] * 400) - 1) < 1e-9 # 400 W each
    for key in ['days', 'cost', 'energy_j']:
        assert abs(p['effective_' + key] * p['goodput_fraction'] / p[key] - 1) < 1e-12"
json "goodput by Daly's model, from the defaults' sources" "
import math
assert abs(d['device_mtbf_s'] / (16384 * 54 * 86400 / 419) - 1) < 1e-12 and d['restart_s'] == 900
# parameters of gpt2-1.5b: weight 2, master copy and two moments 12 bytes each
bytes_ = {p['checkpoint_bytes'] for p in d['points'] if p['feasible']}
assert len(bytes_) == 1 and 1.5e9 * 14 < bytes_.pop() < 1.6e9 * 14
for p in d['points']:
    if not p['feasible']:
        continue
    M, c, R = d['device_mtbf_s'] / p['n_devices'], p['checkpoint_s'], 900
    assert abs(p['job_mtbf_s'] / M - 1) < 1e-12
    assert abs(c / (p['checkpoint_bytes'] / (2e12 / 16384 * p['n_devices'])) - 1) < 1e-9
    tau = p['checkpoint_interval_s']
    assert abs(tau - p['checkpoint_interval_iterations'] * p['iteration_s']) < 1e-6
    x = c / 2 / M
    daly = math.sqrt(2 * c * M) * (1 + math.sqrt(x) / 3 + x / 9) - c
    assert abs(tau - daly) <= p['iteration_s']
    g = tau / (M * math.exp(R / M) * math.expm1((tau + c) / M))
    assert abs(p['goodput_fraction'] - g) < 1e-12
    assert abs(p['effective_tokens_per_s'] - g * p['tokens_per_s']) < 1e-6 * p['tokens_per_s']
    lost = p['checkpoint_loss_fraction'] + p['failure_loss_fraction']
    assert abs(g + lost - 1) < 1e-12"

# A row is what plan finds.
# shellcheck disable=SC2086
runs 0 "plan of one size" plan $sweep --gpus 16 --global-batch 96 --price 1.5 --json
json "a row is the plan of its size" "
row = [p for p in json.load(open('$W/sweep.json'))['points']
       if p['n_devices'] == 16 and p['global_batch'] == 96][0]
assert row['iteration_s'] == d['predicted']['iteration_s']
assert row['cost_per_iteration'] == d['predicted']['cost_per_iteration']
assert row['degrees'] == d['degrees'] and row['schedule'] == d['schedule']"

# The same bytes whatever the threads; the order in which sizes are named does not matter.
# shellcheck disable=SC2086
for threads in 1 2 5; do
    "$DEGAS" sweep $sweep --gpus 32,12,16,8,8 --global-batch 96,64 --tokens 300e9 --price 1.5 \
        --currency EUR --threads $threads --json >"$W/threads.json" 2>"$W/err"
    cmp -s "$W/threads.json" "$W/sweep.json"
    report $? "the same bytes with $threads threads" "$(cat "$W/err")"
done

# --- files ---
# shellcheck disable=SC2086
runs 0 "people get a table" sweep $sweep --gpus 8,16 --global-batch 64 --tokens 300B --price 1.5 \
    --csv "$W/s.tsv" -o "$W/s.json"
has '^devices .*cost \[USD\]' "with the currency in the header"
has '^fastest  *16 devices: [0-9.]* days' "the fastest size"
has 'Llama 3, arXiv:2407.21783' "the source of the failures"
has '^price: 1.5 USD per device-hour (--price)' "the source of the price"
json "the file is the sweep" "assert len(d['points']) == 2 and d['format'] == 'degas-sweep'" \
    "$W/s.json"
[ "$(wc -l <"$W/s.tsv")" = 3 ] && head -1 "$W/s.tsv" | grep -q "^n_devices	global_batch	" &&
    ! awk -F'\t' 'NR == 1 { n = NF } NF != n { bad = 1 } END { exit !bad }' "$W/s.tsv"
report $? "the table has a row for each size" "$(head -2 "$W/s.tsv")"
# shellcheck disable=SC2086
runs 0 "the cluster's own price" sweep gpt2-124m p3.16xlarge --gpus 8 --global-batch 8 \
    --tokens 1B --schedule 1f1b --slices off
has '^price: 3.06 USD per device-hour (Amazon EC2' "and its source"
# shellcheck disable=SC2086
runs 0 "nothing fails" sweep $sweep --gpus 8 --global-batch 64 --mtbf none --json
json "then all time is training" "
p = d['points'][0]
assert p['goodput_fraction'] == 1 and d['device_mtbf_s'] is None and p['days'] is None
assert p['effective_tokens_per_s'] == p['tokens_per_s']"
# shellcheck disable=SC2086
runs 0 "other failures" sweep $sweep --gpus 8 --global-batch 64 --mtbf 1000h --restart-time 5min \
    --checkpoint-bandwidth 10GB/s --json
json "units are read" "
p = d['points'][0]
assert d['device_mtbf_s'] == 3.6e6 and d['restart_s'] == 300 and p['job_mtbf_s'] == 450000
assert d['checkpoint_bytes_per_s'] == 1e10
assert abs(p['checkpoint_s'] - p['checkpoint_bytes'] / 1e10) < 1e-12"

# --- rows without a plan ---
runs 0 "a size that is too small" sweep gpt3-13b dgx-a100-80g --gpus 1,16 --global-batch 16 \
    --schedule 1f1b --slices off
has 'no plan \[1\]' "has a row"
has '^\[1\] memory: a device needs' "and its reason below"
runs 0 "as a file" sweep gpt3-13b dgx-a100-80g --gpus 1,16 --global-batch 16 --schedule 1f1b \
    --slices off --json
json "reason and no plan" "
a, b = d['points']
assert not a['feasible'] and 'memory' in a['reason'] and 'iteration_s' not in a
assert b['feasible'] and b['reason'] is None"
runs 1 "no size has a plan" sweep gpt3-13b dgx-a100-80g --gpus 1,2 --global-batch 16 \
    --schedule 1f1b --slices off --zero 0 -o "$W/none.json"
json "its file says why" "assert not any(p['feasible'] for p in d['points'])" "$W/none.json"
runs 0 "degrees that do not divide one of the sizes" sweep gpt2-1.5b dgx-a100-80g --gpus 5,8 \
    --global-batch 16 --tp 5 --schedule 1f1b --slices off
has '^\[1\] ' "are its reason"

# --- wrong usage ---
for bad in 8..64 64..8:x2 8..64:x1 8..64:+0 '8,' a 0 8..64:y2 99999999999; do
    fails 2 'sweep\|--gpus' "--gpus $bad" sweep gpt2-1.5b dgx-a100-80g --gpus $bad --global-batch 8
done
fails 2 'gpus: .*points are more' "too many points" sweep gpt2-1.5b dgx-a100-80g \
    --gpus 1..4000:+1 --global-batch 1..4000:+1
fails 2 'global-batch' "no batch" sweep gpt2-1.5b dgx-a100-80g --gpus 8
fails 2 'tokens: expected a count such as 15T' "tokens in an unknown unit" \
    sweep gpt2-1.5b dgx-a100-80g --gpus 8 --global-batch 8 --tokens 15G
fails 2 'mtbf: expected a time above 0' "failures all the time" \
    sweep gpt2-1.5b dgx-a100-80g --gpus 8 --global-batch 8 --mtbf 0h
fails 2 'one plan of each point' "alternatives" \
    sweep gpt2-1.5b dgx-a100-80g --gpus 8 --global-batch 8 --top 2
fails 2 'currency: needs --price' "a currency without a price" \
    sweep gpt2-1.5b dgx-a100-80g --gpus 8 --global-batch 8 --currency EUR
fails 2 'stdout can hold one product' "two products" \
    sweep gpt2-1.5b dgx-a100-80g --gpus 8 --global-batch 8 --json --csv -
fails 2 'expected a range' "what plan refuses" \
    sweep gpt2-1.5b dgx-a100-80g --gpus 8..9 --global-batch 8
fails 2 'tp' "and its flags" sweep gpt2-1.5b dgx-a100-80g --gpus 8 --global-batch 8 --tp x
fails 4 'no folder' "a folder that is not there" \
    sweep gpt2-1.5b dgx-a100-80g --gpus 8 --global-batch 8 --csv "$W/none/x.tsv"

# --- pictures ---
runs 0 "throughput as a table" plot "$W/sweep.json" -o "$W/p.tsv"
awk -F'\t' 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
    { e = $at["efficiency_fraction"]; if (e > 1) bad = 1; if (e == 1) best++
      ideal = $at["ideal_tokens_per_s"] * e / $at["tokens_per_s"]
      if (ideal < 0.999999 || ideal > 1.000001) bad = 1
      per[$1] = $at["ideal_tokens_per_s"] / $2
      if (seen[$1]++ && (per[$1] / last[$1] - 1) ^ 2 > 1e-18) bad = 1; last[$1] = per[$1] }
    END { exit bad || best < 2 }' "$W/p.tsv"
report $? "the ideal line goes through the best size of each series" "$(cat "$W/p.tsv")"
runs 0 "throughput as text" plot "$W/sweep.json"
has '^ *32 |##*.* %$' "a bar for each size"
if command -v gnuplot >/dev/null 2>&1; then
    runs 0 "throughput as a picture" plot "$W/sweep.json" --kind throughput -o "$W/p.svg"
    grep -q 'gpt2-1.5b on dgx-a100-80g' "$W/p.svg" && grep -q '64 sequences' "$W/p.svg"
    report $? "with its title and its series"
    # shellcheck disable=SC2086
    runs 0 "drawn by sweep itself" sweep $sweep --gpus 8,16 --global-batch 64 --plot "$W/q.svg"
    grep -q 'tokens/s' "$W/q.svg"
    report $? "the axis has its unit"
    grep -q ">degas sweep .* --gpus 8,16 --global-batch 64<" "$W/q.svg"
    report $? "the footer is the command as typed" "$(grep 'degas sweep' "$W/q.svg")"
else
    skip "throughput as a picture" "gnuplot is not installed"
fi
fails 2 'a timeline needs' "a timeline of a sweep" plot "$W/sweep.json" --kind timeline
fails 2 'only traces are drawn beside' "two sweeps" plot "$W/none.json" "$W/sweep.json"
fails 2 'no size has a plan' "nothing to draw" plot "$W/none.json"
sed 's/"n_devices": 8,/"n_devices": 0,/' "$W/sweep.json" >"$W/bad.json"
fails 3 'bad.json:' "a sweep of nothing" plot "$W/bad.json"
sed 's/"iteration_s"/"iteration_z"/' "$W/sweep.json" >"$W/bad.json"
fails 3 'iteration_s' "a misspelt key" plot "$W/bad.json"

# --- Ctrl-C ---
# A shell lets its background jobs ignore SIGINT; env gives it back.
if env --default-signal=INT true 2>/dev/null; then
    # How soon the first of 41 sizes is done depends on what else the machine does.
    for wait_s in 1 2 4 8 16; do
        rm -f "$W/cut.json"
        env --default-signal=INT timeout --foreground --preserve-status -s INT $wait_s "$DEGAS" sweep llama3-70b dgx-h100 --gpus 8..64:+8,2048..4096:+64 \
            --global-batch 1024 --threads 1 -o "$W/cut.json" --csv "$W/cut.tsv" >"$W/out" 2>"$W/err"
        got=$?
        grep -q '^degas: interrupted after [1-9][0-9]* of' "$W/err" && break
    done
    [ $got = 9 ] && grep -q '^degas: interrupted after [0-9]* of [0-9]* points' "$W/err"
    report $? "Ctrl-C is status 9" "status $got: $(cat "$W/err")"
    json "what was done is written" "
assert d['complete'] is False and len(d['points']) < 41" "$W/cut.json"
    [ -s "$W/cut.tsv" ]
    report $? "the table too"
    # A size that takes seconds, stopped before: nothing is done.
    for wait_s in 0.2 0.4 0.8 1.6; do
        rm -f "$W/none.json"
        env --default-signal=INT timeout --foreground --preserve-status -s INT $wait_s "$DEGAS" sweep deepseek-v3 dgx-h100 --gpus 1024,2048 --global-batch 4096 \
            --seq-len 4096 --threads 1 -o "$W/none.json" >"$W/out" 2>"$W/err"
        grep -q '^degas: interrupted' "$W/err" && break
    done
    grep -q '^degas: interrupted after 0 of 2 points' "$W/err" && [ ! -s "$W/out" ] && [ ! -e "$W/none.json" ]
    report $? "before the first point there is nothing to write" "$(cat "$W/out" "$W/err")"
else
    skip "Ctrl-C is status 9" "env has no --default-signal"
fi
finish
