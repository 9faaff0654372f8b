#!/bin/sh
# Is the time of a step that degas predicts that which it measures?  The model of many kinds of layers of mixed.sh - sliding and full
# attention, gated delta net, Mamba-2, experts, an MTP module - on two ranks: profiled, planned, simulated, run, compared.
# What others take of the cores while the profile times ops, or while a run trains, makes either worthless: such is made again, and
# where the machine is not quiet for long enough, the judgement is skipped and says so.  Medians over runs are judged.
# Test runner: alone.
# shellcheck source=tests/cli/tap.sh
. tests/cli/tap.sh
# shellcheck source=tests/cli/mixed_model.sh
. tests/cli/mixed_model.sh

# More of the cores' time than this, taken by others, disturbs; and how often a profile, or a run, is tried at most.
OTHERS=${OTHERS:-0.03}
TRIES=${TRIES:-6}
RUNS=${RUNS:-5}

if [ "$(nproc)" -lt 2 ]; then
    skip "predicted step times are measured" "there is one core: two ranks would share it"
    finish
fi
if ! command -v python3 >/dev/null 2>&1; then
    skip "predicted step times are measured" "there is no python3"
    finish
fi

mixed_model 64 >"$W/model.json"

# undisturbed COMMAND...: runs it, its output in $W/out; $W/others becomes the share of the cores' time that others took meanwhile.
# Ends with 3 if that is too much, with 2 if the command fails.
undisturbed() {
    python3 - "$OTHERS" "$W" "$@" <<'END'
import os, resource, subprocess, sys, time

def busy_s():
    # user, nice, system, irq, softirq, steal
    v = [int(x) for x in open('/proc/stat').readline().split()[1:]]
    return sum(v[i] for i in (0, 1, 2, 5, 6, 7) if i < len(v)) / os.sysconf('SC_CLK_TCK')

limit, folder, command = float(sys.argv[1]), sys.argv[2], sys.argv[3:]
begin, before = time.monotonic(), busy_s()
with open(folder + '/out', 'w') as out, open(folder + '/err', 'w') as err:
    status = subprocess.call(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL)
own = resource.getrusage(resource.RUSAGE_CHILDREN)
others = (busy_s() - before - own.ru_utime - own.ru_stime) / ((time.monotonic() - begin) * os.cpu_count())
open(folder + '/others', 'w').write('%.3f' % max(0.0, others))
sys.exit(2 if status != 0 else 3 if others > limit else 0)
END
}

# until_quiet NAME COMMAND...: tries it until nothing has disturbed it.  Ends with 1 if others always did.
until_quiet() {
    name=$1
    shift
    try=0
    while [ $try -lt "$TRIES" ]; do
        undisturbed "$@"
        status=$?
        if [ $status != 0 ] && [ $status != 3 ]; then
            report 1 "$name" "$(cat "$W/err")"
            finish
        fi
        [ $status = 0 ] && return 0
        try=$((try + 1))
    done
    return 1
}

if ! until_quiet "the profile" "$DEGAS" profile "$W/model.json" --device cpu --budget "${BUDGET:-40}" --batches 1,2 --slices 256,128 \
    --concurrency 2 --dtype fp32 -o "$W/profile.json"; then
    skip "predicted step times are measured" "the machine is too busy: others took $(cat "$W/others") of its cores at the last of $TRIES profiles"
    finish
fi
report 0 "the profile is undisturbed"
json "it has rows of every kind of layers" "
kinds = {r.get('kind') for r in d['measured']}
assert {'full', 'sliding', 'delta', 'ssm', 'mtp'} <= kinds, kinds" "$W/profile.json"

# judged NAME FLAG...: of a plan
judged() {
    plan=$1
    shift
    # shellcheck disable=SC2086
    runs 0 "$plan: a plan" plan "$W/model.json" "$W/profile.json" --gpus 2 --framework degas --seq-len 256 --global-batch 16 \
        --dtype fp32 --zero 0 --recompute none "$@" -o "$W/plan.json"
    runs 0 "$plan: simulated" simulate "$W/plan.json" --trace "$W/predicted.json"
    : >"$W/medians"
    for i in $(seq "$RUNS"); do
        if ! until_quiet "$plan: run $i" "$DEGAS" run "$W/plan.json" --device cpu --steps 30 --balance-experts \
            --trace "$W/measured.json" --json; then
            skip "$plan: the step is as long as predicted" \
                "the machine is too busy: others took $(cat "$W/others") of its cores at the last of $TRIES runs"
            return
        fi
        cp "$W/out" "$W/run.json"
        python3 -c "
import json
d = json.load(open('$W/run.json'))
print(d['step_s']['median'], d['predicted_step_s'])" >>"$W/medians"
    done
    runs 0 "$plan: traces are compared" compare "$W/predicted.json" "$W/measured.json"
    python3 -c "
import statistics
rows = [[float(x) for x in line.split()] for line in open('$W/medians')]
measured, predicted = statistics.median(r[0] for r in rows), rows[0][1]
print('# predicted %.2f ms, measured %.2f ms (%s): %+.1f %%' % (1e3 * predicted, 1e3 * measured,
      ', '.join('%.2f' % (1e3 * r[0]) for r in rows), 100 * (predicted / measured - 1)))
raise SystemExit(not abs(predicted / measured - 1) <= 0.10)" >"$W/judgement"
    status=$?
    cat "$W/judgement"
    report $status "$plan: the step is as long as predicted, within 10 %"
}

judged "two stages" --dp 1 --tp 1 --pp 2 --micro-batch 2 --schedule 1f1b --slices off
judged "two stages, slices" --dp 1 --tp 1 --pp 2 --micro-batch 2 --schedule seq1f1b --slices 2
judged "two replicas" --dp 2 --tp 1 --pp 1 --micro-batch 2 --schedule 1f1b --slices off
finish
