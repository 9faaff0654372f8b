#!/bin/sh
# scripts/gpu_check.sh: whole on an emulated GPU, from a bundle; and where it cannot run.
# Test runner: first.
. tests/cli/tap.sh

build=$(dirname "$(readlink -f "$DEGAS")")
emulated=$build/emulated

# check STATUS NAME ARGUMENT...
check() {
    want=$1
    name=$2
    shift 2
    timeout 500 sh scripts/gpu_check.sh "$@" >"$W/out" 2>"$W/err" </dev/null
    got=$?
    [ "$got" = "$want" ]
    report $? "$name" "status $got instead of $want
$(cat "$W/err" "$W/out")"
}

# in_report PATTERN NAME: an item of the last report
in_report() {
    grep -q -e "$1" "$W/check/gpu-check.json"
    report $? "$2" "$(cat "$W/check/gpu-check.json")"
}

# --- where it cannot run ---

DEGAS_PLUGIN_DIR=$W check 6 "no plugin, no GPU" "$build" "$W/no"
[ "$(wc -l <"$W/err")" = 1 ] && grep -q '^gpu-check: device cuda: the plugin degas-cuda.so is not built' "$W/err"
report $? "it says so in one line" "$(cat "$W/err")"
check 2 "no arguments"
check 2 "no program there" "$W" "$W/no"
check 2 "a section that is none" --sections speed "$build" "$W/no"
check 2 "a budget that is none" --budget soon "$build" "$W/no"
check 4 "a folder that cannot be made" "$build" /proc/no
# --- what it makes of numbers: a degas that always says the same ---

mkdir "$W/fake"
cat >"$W/fake/degas" <<'END'
#!/bin/sh
command=$1
for last in "$@"; do :; done
case "$command" in
plan) echo '"model_flops_per_s_per_device": 4e14, "iteration_s": 0.5,' >"$last" ;;
run)
    echo '"step_s": {"median": 0.4, "p10": 0.4, "p90": 0.4}, "prediction_error_fraction": '"$FAKE_ERROR"','
    echo '"verify": {"max_gradient_error": 0.03, "tolerance": 0.02, "passed": false},'
    echo '  "backend": "a GPU, CUDA 13.0"'
    ;;
profile)
    {
        echo '"flops_per_s": {"fp32": 1e13, "bf16": 1e15},'
        echo '{"op": "layer_attention", "pass": "forward", "batch": 1, "median_s": 0.001, "p10_s": 0.001},'
        echo '{"op": "layer_attention", "pass": "backward", "batch": 1, "median_s": 0.002, "p10_s": 0.001},'
        echo '{"op": "launch", "median_s": 4e-06, "p10_s": 4e-06, "p90_s": 4e-06}'
        echo '{"op": "copy_h2d", "bytes": 4096, "median_s": 1, "p10_s": 1, "p90_s": 1},'
        echo '{"op": "copy_h2d", "bytes": 16000000, "median_s": 0.001, "p10_s": 0.001, "p90_s": 0.001},'
        echo '{"beside": "all_reduce", "n_ranks": 1, "factor": 1.25, "p10": 1, "p90": 2},'
        echo '{"op": "layer", "pass": "forward", "tp": 1, "n_left_out": 9, "median_fraction": 0.0125, "worst_fraction": 1}'
    } >"$last"
    ;;
esac
END
chmod +x "$W/fake/degas"
FAKE_ERROR=-0.03
export FAKE_ERROR
check 1 "numbers that miss targets" "$W/fake" "$W/check"
# 4e14 * 0.5 / 0.4 of 1e15; 2 * 2048 * 8192^2 / 0.001 s of 1e15
in_report '"name": "GPT-3 1.3B", "value": 0.5, .*"target": 0.5, "status": "pass"' "utilization on its target"
in_report '"name": "attention forward, head 128, context 8192", "value": 0.274878, .*"status": "fail"' \
    "attention below its target"
in_report '"name": "attention backward, head 128, context 8192", "value": 0.343597, .*"target": null' \
    "its backward, 5 products of 0.002 s"
in_report '"name": "attention forward by wgmma, head 128, context 8192", "value": 0.274878, .*"target": null' \
    "the other kernel beside it, not judged"
in_report '"name": "gpt bf16", "value": 0.03, .*"target": 0.02, "status": "fail"' "gradients beyond their tolerance"
in_report '"name": "4 stages, zb-h1", "value": 0.03, .*"target": 0.07, "status": "pass"' "pipelines within theirs"
in_report '"name": "the planner.s slices against the best uniform", "value": 1, .*"status": "pass"' "slices within theirs"
in_report '"name": "device: a layer beside all_reduce, 1 ranks", "value": 1.25' "interference of the profile"
in_report '"name": "device: layer forward, tp 1, off between shapes", "value": 0.0125' "errors between its shapes"
in_report '"name": "device: copy_h2d", "value": 16,' "the rate of its largest copy"
in_report '"name": "device: a launch", "value": 4e-06' "its launches"
[ "$(grep -c '"section": "steps", .*"value": 0.03, .*"target": 0.03, "status": "pass"' "$W/check/gpu-check.json")" = 20 ]
report $? "20 shapes, off by no more than allowed whatever the sign"
# 7 models, and attention
in_report '"failed": 8,' "so many have failed"
rm -rf "$W/check"
FAKE_ERROR=0.031
check 1 "predictions a little worse" --sections profile,steps "$W/fake" "$W/check"
in_report '"failed": 20,' "all miss their target"
rm -rf "$W/check"
check 0 "no time" --budget 0 "$W/fake" "$W/check"
in_report '"name": "llama bf16", "value": null, .*"status": "skip", "reason": "no time left"' "what has no time is left out"
[ -z "$(find "$W/check" -name 'section-models*')" ]
report $? "and is not taken for done" "$(ls "$W/check")"
rm -rf "$W/check"
if [ ! -e "$emulated/degas-cuda.so" ]; then
    skip "the whole check on an emulated GPU" "it needs the CUDA toolkit's headers and g++"
    finish
fi
DEGAS_PLUGIN_DIR=$emulated
export DEGAS_PLUGIN_DIR
for fake in driver=0 driver=12040 busy=1 memory=1000000 launch=10; do
    FAKE_CUDA=$fake check 6 "a device with $fake" --small "$build" "$W/no"
    [ "$(wc -l <"$W/err")" = 1 ] && grep -q '^gpu-check: ' "$W/err" && [ ! -s "$W/out" ]
    report $? "one line says why" "$(cat "$W/err")"
done

# --- all of it ---

folder=$build
case "$build" in
*/release)
    scripts/bundle.sh "$build" "$W/bundle" >/dev/null 2>"$W/err"
    report $? "a bundle with the check in it" "$(cat "$W/err")"
    [ -x "$W/bundle/gpu-check" ] && [ -x "$W/bundle/test_cuda" ]
    report $? "it brings the script and the ops' test" "$(ls "$W/bundle")"
    folder=$W/bundle
    ;;
esac
# In two runs: the second goes on behind what the first has done.
check 0 "the ops" --small --sections ops "$folder" "$W/check"
in_report '"section": "ops", .* "value": 1, .* "status": "pass"' "an op's test has passed"
in_report '"name": "attention-by-wgmma-equals-reference", "value": 1, .* "status": "pass"' "that of wgmma too"
FAKE_CUDA=capability=80 check 0 "the ops of an older device" --small --sections ops "$folder" "$W/older"
grep -q '"name": "attention-by-wgmma-.*"status": "skip", "reason": ".*capability 8.0; wgmma is of 9.0 only"' \
    "$W/older/gpu-check.json"
report $? "wgmma is left out there, with the reason" "$(cat "$W/older/gpu-check.json")"
check 0 "all sections" --small --budget 480 "$folder" "$W/check"
grep -q 'ops: complete before; kept' "$W/err"
report $? "what is complete is kept" "$(cat "$W/err")"
in_report '"format": "degas-gpu-check"' "the report is written"
in_report '"device": "emulated GPU, ' "it names the device"
if grep -q 'no time left' "$W/check/gpu-check.json"; then
    skip "every section has numbers" "this machine is too busy for the budget"
else
    for dtype in fp32 bf16; do
        in_report "\"name\": \"gpt $dtype\", \"value\": [0-9.e-]*, .* \"status\": \"pass\"" "gradients in $dtype"
    done
    in_report '"name": "llama bf16, 2 ranks a layer", .* "status": "pass"' "tensor parallelism"
    in_report '"name": "device: a layer beside copy_d2d, 1 ranks", "value": [0-9]' "the profile of the device"
    in_report '"name": "attention forward, head 16, context 16", "value": [0-9]' "attention's rate"
    in_report '"name": "attention forward by mma, head 16, context 16", "value": [0-9]' \
        "the other kernel's, as wgmma's has passed"
    in_report '"name": "GPT-3 1.3B", "value": [0-9].* "target": 0.5' "utilization"
    in_report '"name": "2 x 16", "value": [0-9].* "target": 0.03' "a step beside its prediction"
    for schedule in gpipe 1f1b terapipe zb-h1; do
        in_report "\"name\": \"4 stages, $schedule\", \"value\": [0-9].* \"target\": 0.07" "$schedule beside its prediction"
    done
    in_report '"name": "the planner.s slices against the best uniform", "value": [0-9].* "target": 1.02' "slicing"
fi
in_report '"failed": 0' "nothing failed"
grep -q '^models  *gpt fp32 .* pass' "$W/check/table.txt"
report $? "the table has a line for each" "$(cat "$W/check/table.txt")"

# Two ranks do not fit: that fails the check, the others go on, and the report says where.
FAKE_CUDA=memory=90000000 check 1 "a device for one rank only" --small --budget 4000 --sections models "$build" "$W/check2"
grep -q '2 slices", .*"status": "fail", "reason": "status [57]: .*no memory for [0-9]* bytes' "$W/check2/gpu-check.json"
report $? "the reason is in the report" "$(cat "$W/check2/gpu-check.json")"
grep -q '"passed": 4' "$W/check2/gpu-check.json"
report $? "what fits has passed" "$(cat "$W/check2/gpu-check.json")"
finish
