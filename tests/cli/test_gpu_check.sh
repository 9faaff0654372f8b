#!/bin/sh
# scripts/gpu_check.sh: both calls on an emulated GPU, from a bundle; what it makes of artificial numbers, mismatches,
# hangs and interruptions; and where it cannot run.
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

# in_archive FILE PATTERN NAME: a line of a file of the archive in $W/check
in_archive() {
    tar -xzOf "$W/check/gpu-check.tar.gz" "./$1" >"$W/member" 2>/dev/null
    grep -q -e "$2" "$W/member"
    report $? "$3" "$(cat "$W/member")"
}

in_report() { in_archive gpu-check.json "$@"; }

# --- where it cannot run ---

DEGAS_PLUGIN_DIR=$W check 6 "no plugin, no GPU" "$build" "$W/check"
[ "$(wc -l <"$W/err")" = 1 ] && grep -q '^gpu-check: device cuda: the plugin degas-cuda.so is not built' "$W/err"
report $? "it says so in one line" "$(cat "$W/err")"
in_archive logs/environment.log 'degas-cuda.so is not built' "the archive has what was printed"
check 2 "no arguments"
check 2 "no program there" "$W" "$W/no"
check 2 "a section that is none" --sections speed "$build" "$W/no"
check 2 "a budget that is none" --budget soon "$build" "$W/no"
check 4 "a folder that cannot be made" "$build" /proc/no

# --- what it makes of numbers: programs that always say the same ---

mkdir "$W/fake" "$W/bin"
cat >"$W/fake/degas" <<'END'
#!/bin/sh
command=$1
for last in "$@"; do :; done
case "$command $*" in
plan*) echo '"model_flops_per_s_per_device": 4e14, "iteration_s": 0.5, "flops_per_s": {"fp32": 1e13, "bf16": 1e15},' >"$last" ;;
run*)
    echo '"step_s": {"median": 0.4, "p10": 0.4, "p90": 0.4}, "predicted_step_s": 0.388, "prediction_error_fraction": '"$FAKE_ERROR"','
    echo '"verify": {"max_gradient_error": 0.03, "tolerance": 0.02, "passed": false},'
    echo '  "backend": "a GPU, CUDA 13.0"'
    ;;
profile*)
    [ -z "${FAKE_SLOW:-}" ] || { echo "so far" && exec sleep 5; }
    {
        echo '"n_layers": 10,'
        echo '{"op": "layer_attention", "pass": "forward", "batch": 1, "median_s": '"$([ "$DEGAS_CUDA_ATTENTION" = mma ] &&
            echo 0.0012 || echo 0.001)"', "p10_s": 0.001},'
        echo '{"op": "layer_attention", "pass": "backward", "batch": 1, "median_s": 0.0012, "p10_s": 0.001},'
        echo '{"op": "layer_gemm", "pass": "forward", "batch": 1, "median_s": 0.002, "p10_s": 0.001},'
        echo '{"op": "layer", "pass": "forward", "batch": 1, "median_s": 0.009, "p10_s": 0.009, "queue_s": 0.0002},'
        echo '{"op": "head", "pass": "forward", "batch": 1, "median_s": 0.003, "p10_s": 0.001},'
        echo '{"op": "optimizer", "n_elements": 1000, "median_s": 1, "p10_s": 1},'
        echo '{"op": "optimizer", "n_elements": 500000000, "median_s": 0.004, "p10_s": 0.004},'
        echo '{"op": "launch", "median_s": 4e-06, "p10_s": 4e-06, "p90_s": 4e-06}'
        echo '{"op": "copy_h2d", "bytes": 4096, "median_s": 1, "p10_s": 1, "p90_s": 1},'
        echo '{"op": "copy_h2d", "bytes": 16000000, "median_s": 0.001, "p10_s": 0.001, "p90_s": 0.001},'
        echo '{"beside": "all_reduce", "n_ranks": 1, "factor": 1.25, "p10": 1, "p90": 2},'
        echo '{"op": "layer", "pass": "forward", "tp": 1, "n_left_out": 9, "median_fraction": 0.0125, "worst_fraction": 1}'
    } >"$last"
    ;;
esac
END
# A case passes, is wrong in one of its shapes, or hangs in the second of three.
cat >"$W/fake/test_cuda" <<'END'
#!/bin/sh
for path; do :; done
case "$1 $path" in
-l*) printf '/c/%s\n' elements wrong hangs attention-by-wgmma-equals-reference attention-by-wgmma-equals-mma ;;
*wrong*) printf '# shape: A\n# mismatch: A: dx: distance 0.5 > 0.1; first bad index 7 of 9, 2 NaN\n# shape: B\nnot ok 1 %s\n' "$path" && exit 1 ;;
*hangs*)
    [ -n "${DEGAS_TEST_AFTER:-}" ] || { printf '# shape: A\n# shape: B\n' && exec sleep 60; }
    printf '# shape: C\n# mismatch: C (behind %s): y: distance 1\nnot ok 1 %s\n' "$DEGAS_TEST_AFTER" "$path" && exit 1
    ;;
*) echo "ok 1 $path" ;;
esac
END
cat >"$W/fake/test_cuda_probe" <<'END'
#!/bin/sh
for path; do :; done
case "$1 $path" in
-l*) printf '/probe/%s\n' tma-box wgmma-k ;;
*wgmma-k*) printf '# random seed: 1\n# element 3 is that of 5\nnot ok 1 %s\n' "$path" && exit 1 ;;
*) echo "ok 1 $path" ;;
esac
END
cat >"$W/bin/ncu" <<'END'
#!/bin/sh
while [ "$1" != --log-file ]; do shift; done
cat >"$2" <<'CSV'
==PROF== Connected
"ID","Process ID","Kernel Name","Block Size","Metric Name","Metric Unit","Metric Value"
"0","7","flash<a, b>","(1, 1, 1)","gpu__time_duration.sum","ns","1,500"
"1","7","norm","(1, 1, 1)","gpu__time_duration.sum","ns","300"
"2","7","flash<a, b>","(1, 1, 1)","gpu__time_duration.sum","ns","500"
CSV
END
printf '#!/bin/sh\necho "========= ERROR SUMMARY: %s errors"\nexit 99\n' 3 >"$W/bin/compute-sanitizer"
cat >"$W/bin/python3" <<'END'
#!/bin/sh
printf 'products\tforward\ta\t0.0006\t500\tTFLOP/s\nproducts\tforward\tb\t0.0004\t600\tTFLOP/s\n'
printf 'AdamW\tstep\t1e9 elements\t0.004\t7000\tGB/s\n'
END
printf '#!/bin/sh\necho "a GPU, 580.1, 143771 MiB"\n' >"$W/bin/nvidia-smi"
chmod +x "$W"/fake/* "$W"/bin/*
path=$PATH
PATH=$W/bin:$PATH
GPU_CHECK_HANG_S=1
FAKE_ERROR=-0.03
export FAKE_ERROR GPU_CHECK_HANG_S
rm -rf "$W/check"
check 1 "a first call in which much is wrong" "$W/fake" "$W/check"
in_report '"environment", "name": "nvidia-smi", .*"status": "pass", "reason": "a GPU, 580.1' "the environment"
in_report '"name": "elements", "value": 1, .*"status": "pass"' "an op that is right"
in_report '"name": "wrong", .*"status": "fail", "reason": "A: dx: distance 0.5 > 0.1; first bad index 7 of 9, 2 NaN"' \
    "a wrong one: tensor, shape, distance, first bad index, NaN"
in_report '"name": "hangs", .*"status": "fail", "reason": "hung: killed after 1 s, in B"' "one that hangs has failed, with its shape"
in_report '"name": "hangs", .*"status": "fail", "reason": "C (behind B): y: distance 1"' "... and the shapes behind it are tried"
# 4e14 * 0.5 / 0.4 of 1e15
in_report '"utilization", "name": "GPT-3 1.3B", "value": 0.5, .*"target": 0.5, "status": "pass"' "utilization on its target"
in_report '"name": "attention forward", "value": 0.012, .*"target": 0.004, "status": "fail"' "10 layers' attention beside the budget"
in_report '"name": "queueing forward", "value": 0.002, .*"status": "pass"' "the host's time to queue them"
in_report '"name": "AdamW step of a billion elements", "value": 0.008, .*"status": "pass"' "AdamW, by the largest row"
in_report '"name": "2 x flash<a, b>", "value": 2e-06\|"name": "2 x flash<a, b>", "value": 0.000002' "kernels by ncu"
in_archive kernels.tsv '^0.000000300	1	norm$' "... all in a file"
in_report '"name": "products forward: ours over theirs", "value": 2,' "ours over PyTorch's"
in_report '"name": "AdamW step of a billion elements: ours over theirs", "value": 2,' "... of AdamW"
in_report '"name": "wgmma-k", .*"status": "fail", "reason": "element 3 is that of 5"' "what a probe has seen"
in_report '"name": "attention by mma over attention by wgmma", "value": 1.09091, .*"target": 1.15, "status": "fail"' \
    "wgmma that is not fast enough"
in_report '"name": "memcheck", "value": 3, .*"target": 0, "status": "fail"' "errors of compute-sanitizer"
in_report '"name": "two replicas", "value": 0.03, .*"target": 0.02, "status": "fail"' "gradients beyond their tolerance"
in_archive logs/ops.log '^# shape: B' "every log is there"
[ "$(ls "$W/check")" = gpu-check.tar.gz ]
report $? "everything is in one file" "$(ls "$W/check")"
check 1 "the next call is the second" "$W/fake" "$W/check"
grep -q 'attention by mma' "$W/err" && ! grep -q 'ops:' "$W/err"
report $? "it keeps the kernel that was not beaten, and repeats nothing" "$(cat "$W/err")"
in_report '"models", "name": "gpt bf16", "value": 0.03, .*"target": 0.02, "status": "fail"' "gradients beyond their tolerance"
in_report '"name": "4 stages, zb-h1", "value": 0.03, .*"target": 0.07, "status": "pass"' "pipelines within theirs"
in_report '"name": "the planner.s slices against the best uniform", "value": 1, .*"status": "pass"' "slices within theirs"
in_report '"name": "device: a layer beside all_reduce, 1 ranks", "value": 1.25' "interference of the profile"
in_report '"name": "device: layer forward, tp 1, off between shapes", "value": 0.0125' "errors between its shapes"
in_report '"name": "device: copy_h2d", "value": 16,' "the rate of its largest copy"
in_report '"name": "device: a launch", "value": 4e-06' "its launches"
in_report '"name": "hangs", .*"status": "fail", "reason": "hung' "what the first call has seen is kept"
in_report '"name": "1 x 256: predicted", "value": 0.388,' "a prediction"
in_report '"name": "1 x 256: measured", "value": 0.4,' "... beside what was measured"
[ "$(grep -c '"section": "steps", .*"value": 0.03, .*"target": 0.03, "status": "pass"' "$W/member")" = 22 ]
report $? "22 shapes, off by no more than allowed whatever the sign"
rm -rf "$W/check"
FAKE_ERROR=0.031
check 1 "predictions a little worse" --sections profile,steps "$W/fake" "$W/check"
in_report '"failed": 22,' "all miss their target"
rm -rf "$W/check"
check 0 "no time" --second --budget 0 "$W/fake" "$W/check"
in_report '"name": "llama bf16", "value": null, .*"status": "skip", "reason": "no time left"' "what has no time is left out"
GPU_CHECK_HANG_S=20 check 1 "little time" --sections ops --budget 18 "$W/fake" "$W/check"
in_report '"name": "hangs", .*"status": "skip", "reason": "no time left: stopped' "one that was given less than it needs has not failed"

# --- cut short ---

# cut SIGNAL: a call that gets it in its second section, when the first is in the archive
cut() {
    rm -rf "$W/check" "$W/err"
    TMPDIR=$W GPU_CHECK_HANG_S=20 FAKE_SLOW=1 sh scripts/gpu_check.sh --sections probes,kinds "$W/fake" "$W/check" >"$W/out" 2>"$W/err" &
    pid=$!
    tries=0
    until grep -qs 'probes: done' "$W/err" || [ $tries = 100 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    sleep 0.3
    kill "-$1" $pid
    wait $pid 2>/dev/null
    got=$?
}
cut KILL
in_report '"name": "tma-box", "value": 1, .*"status": "pass"' "a call that is killed leaves what it has seen"
[ "$got" = 137 ]
report $? "... and was killed" "status $got"
cut TERM
[ "$got" = 9 ]
report $? "a call that is asked to end does" "status $got: $(cat "$W/err")"
in_archive logs/kinds.log '^so far' "... and leaves what was printed last, too"
check 1 "the same goes on" --sections probes,kinds "$W/fake" "$W/check"
grep -q 'probes: complete before; kept' "$W/err"
report $? "... behind what is complete" "$(cat "$W/err")"
in_report '"name": "attention forward", "value": 0.012' "... with what was missing"
PATH=$path
unset GPU_CHECK_HANG_S FAKE_ERROR
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
    [ -x "$W/bundle/gpu-check" ] && [ -x "$W/bundle/test_cuda" ] && [ -x "$W/bundle/test_cuda_probe" ]
    report $? "it brings the script and the tests" "$(ls "$W/bundle")"
    cp "$emulated"/*.so* "$W/bundle/lib/" # the stand-ins of CUDA and NCCL in the place of both
    DEGAS_PLUGIN_DIR=$W/bundle/lib
    folder=$W/bundle
    ;;
esac
FAKE_CUDA=capability=80 check 0 "the probes of an older device" --small --sections probes "$folder" "$W/check"
in_report '"name": "wgmma-k".*"status": "skip", "reason": ".*capability 8.0; wgmma is of 9.0 only"' \
    "wgmma is left out there, with the reason"
rm -rf "$W/check"
check 0 "the first call" --small "$folder" "$W/check"
check 0 "the second call" --small "$folder" "$W/check"
in_report '"format": "degas-gpu-check"' "the report is written"
in_report '"device": "emulated GPU, ' "it names the device"
in_report '"name": "embedding-and-loss-equal-reference", "value": 1, .* "status": "pass"' "an op's test has passed"
in_report '"name": "attention-by-wgmma-equals-reference", "value": 1, .* "status": "pass"' "that of wgmma too"
in_report '"name": "setmaxnreg", "value": 1, .* "status": "pass"' "and a probe"
if grep -q 'no time left' "$W/member"; then
    skip "every section has numbers" "this machine is too busy for the budget"
else
    in_report '"name": "GPT-3 1.3B, no clipping", "value": [0-9].* "target": 0.5' "utilization"
    in_report '"name": "products backward", "value": [0-9].* "target": 0.059' "a profile by kind"
    in_report '"name": "GPT-3 1.3B by wgmma", "value": [0-9]' "... by the other kernel, which is right"
    in_report '"name": "4 stages", "value": [0-9.e-]*, .* "status": "pass"' "gradients of a pipeline on shares of the device"
    in_report '"name": "two replicas", "value": [0-9.e-]*, .* "status": "pass"' "gradients over NCCL"
    for dtype in fp32 bf16; do
        in_report "\"name\": \"gpt $dtype\", \"value\": [0-9.e-]*, .* \"status\": \"pass\"" "gradients in $dtype"
    done
    in_report '"name": "llama bf16, 2 ranks a layer", .* "status": "pass"' "tensor parallelism"
    in_report '"name": "device: a layer beside copy_d2d, 1 ranks", "value": [0-9]' "the profile of the device"
    in_report '"name": "2 x 16", "value": [0-9].* "target": 0.03' "a step beside its prediction"
    for schedule in gpipe 1f1b terapipe zb-h1; do
        in_report "\"name\": \"4 stages, $schedule\", \"value\": [0-9].* \"target\": 0.07" "$schedule beside its prediction"
    done
    in_report '"name": "the planner.s slices against the best uniform", "value": [0-9].* "target": 1.02' "slicing"
fi
in_report '"failed": 0' "nothing failed"
in_archive table.txt '^models  *gpt fp32 .* pass' "the table has a line for each"
in_archive device.json '"format": "degas-profile"' "the profiles are in the archive"

# Two ranks do not fit: that fails the check, the others go on, and the report says where.
rm -rf "$W/check"
FAKE_CUDA=memory=90000000 check 1 "a device for one rank only" --small --budget 4000 --sections models "$build" "$W/check"
in_report '2 slices", .*"status": "fail", "reason": "status [57]: .*no memory for [0-9]* bytes' "the reason is in the report"
in_report '"name": "llama bf16", .*"status": "pass"' "what fits has passed"
finish
