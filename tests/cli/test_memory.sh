#!/bin/sh
# Peaks of memory: what every rank of degas run held at most, beside what the simulator predicts for it.
# shellcheck source=tests/cli/tap.sh
. tests/cli/tap.sh

# Large enough that a few pages of tables and messages do not count.
cat >"$W/model.json" <<'END'
{"format":"degas-model","version":1,"name":"middling","family":"gpt","n_layers":6,"hidden":192,
 "n_heads":6,"vocab":1024,"max_seq_len":192}
END
DEVICE=cpu
"$DEGAS" profile "$W/model.json" --device cpu --quick --batches 1 --slices 192 --concurrency 2 \
    -o "$W/profile.json" >/dev/null 2>"$W/err" || {
    DEVICE=reference
    "$DEGAS" profile "$W/model.json" --device reference --quick --batches 1 --slices 192 \
        --concurrency 2 -o "$W/profile.json" >/dev/null 2>"$W/err" ||
        report 1 "profile" "$(cat "$W/err")"
}

# peaks NAME EXTRA FLAG...: measured within 3 % of predicted + EXTRA bytes, on every rank
peaks() {
    name=$1
    extra=$2
    shift 2
    "$DEGAS" plan "$W/model.json" "$W/profile.json" --seq-len 192 --dtype fp32 --framework degas \
        --global-batch 8 --micro-batch 1 --gpus 2 "$@" -o "$W/plan.json" >/dev/null 2>"$W/err" ||
        report 1 "plan $name" "$(cat "$W/err")"
    "$DEGAS" simulate "$W/plan.json" --json >"$W/simulated" 2>"$W/err" ||
        report 1 "simulate $name" "$(cat "$W/err")"
    runs 0 "$name: run" run "$W/plan.json" --device $DEVICE --steps 2 --json
    json "$name: peaks within 3 % of the prediction" "
s = [r['peak_memory_bytes'] + $extra for r in json.load(open('$W/simulated'))['ranks']]
m = [r['peak_memory_bytes'] for r in d['ranks']]
off = [a / s[i * len(s) // len(m)] - 1 for i, a in enumerate(m)]
assert all(abs(x) <= 0.03 for x in off), (off, m, s)"
}

P="--dp 1 --tp 1 --pp 2 --schedule 1f1b --slices off"
D="--dp 2 --tp 1 --pp 1 --schedule 1f1b --slices off"
# shellcheck disable=SC2086
{
    for recompute in none selective full; do
        peaks "pp 2, recompute $recompute" 0 $P --zero 0 --recompute $recompute
    done
    peaks "slices" 0 --dp 1 --tp 1 --pp 2 --schedule terapipe --slices 2 --zero 0 --recompute full
    peaks "tp 2" 0 --dp 1 --tp 2 --pp 1 --schedule 1f1b --slices off --zero 0 --recompute none
    for zero in 0 1; do
        peaks "dp 2, zero $zero" 0 $D --zero $zero --recompute none
    done
    # A layer's whole gradients are there until they are reduced: 12 h^2 + 9 h of them, without norms.
    G=$((4 * (12 * 192 * 192 + 9 * 192)))
    peaks "dp 2, zero 2" $G $D --zero 2 --recompute none
    peaks "dp 2, zero 3" $G $D --zero 3 --recompute none
    peaks "dp 2, zero 3, recompute full" $G $D --zero 3 --recompute full
    for ahead in 0 2; do
        peaks "dp 2, zero 3, $ahead ahead" $G $D --zero 3 --recompute none --prefetch-layers $ahead
    done
    for offload in cpu nvme; do
        peaks "dp 2, parameters offloaded to $offload" $G $D --zero 3 --recompute none \
            --offload $offload --offload-parameters on
    done
    for offload in cpu nvme; do
        peaks "pp 2, offload $offload" 0 $P --zero 0 --recompute none --offload $offload
    done
    peaks "dp 2, zero 1, recompute full, offload nvme" 0 $D --zero 1 --recompute full --offload nvme
}

finish
