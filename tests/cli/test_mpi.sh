#!/bin/sh
# degas run --transport mpi: the same numbers as with threads, one product, one message.
# Test runner: first.
# shellcheck source=tests/cli/tap.sh
. tests/cli/tap.sh

"$DEGAS" list schedules >/dev/null || exit 1
# --- without MPI ---
# shellcheck source=tests/cli/mpi.sh
. tests/cli/mpi.sh
plan pp2 --gpus 2 --global-batch 8 --dp 1 --pp 2 --micro-batch 1 --schedule 1f1b --slices 40,24
R="run $W/pp2.json --device reference --steps 2"
# shellcheck disable=SC2086
fails 2 '--hosts.*--transport mpi' "hosts without processes" $R --hosts a,b
mkdir "$W/empty"
DEGAS_PLUGIN_DIR=$W/empty
export DEGAS_PLUGIN_DIR
# shellcheck disable=SC2086
fails 6 'mpi.*degas-mpi.so is not built' "a plugin that is not there" $R --transport mpi
: >"$W/empty/degas-mpi.so"
# shellcheck disable=SC2086
fails 6 'mpi.*degas-mpi.so cannot be opened' "a plugin that is none" $R --transport mpi
unset DEGAS_PLUGIN_DIR

reason=$(why_no_mpi)
if [ -n "$reason" ]; then
    skip "ranks that are processes" "$reason"
    finish
fi
mkdir "$W/path"
PATH_BEFORE=$PATH
# shellcheck disable=SC2123 # a search path without mpirun
PATH=$W/path
# shellcheck disable=SC2086
"$DEGAS" $R --transport mpi >"$W/out" 2>"$W/err"
status=$?
PATH=$PATH_BEFORE
[ $status = 6 ] && [ "$(wc -l <"$W/err")" = 1 ] && grep -q 'mpirun of .* is not in the path' "$W/err"
report $? "no mpirun" "$(cat "$W/err")"

# --- the same bits ---
plan dp2 --gpus 4 --global-batch 8 --dp 2 --pp 2 --micro-batch 1 --schedule terapipe --slices 2
# Neighbours in the pipeline are neighbours among processes, replicas two apart.
plan order --gpus 4 --global-batch 8 --dp 2 --pp 2 --micro-batch 1 --schedule 1f1b --rank-order tp-cp-pp-dp
plan dp4 --gpus 4 --global-batch 8 --dp 4 --pp 1 --micro-batch 1
plan zb --gpus 2 --global-batch 6 --dp 1 --pp 2 --micro-batch 1 --schedule zb-h1
# Sharded, and with forwards computed again.
for stage in 1 2 3; do
    "$DEGAS" plan "$W/tiny.json" "$W/profile.json" --seq-len 64 --dtype fp32 --framework degas \
        --zero $stage --recompute full --gpus 4 --global-batch 8 --dp 2 --tp 1 --pp 2 \
        --micro-batch 1 --schedule 1f1b -o "$W/zero$stage.json" >/dev/null 2>"$W/err" ||
        report 1 "plan zero$stage" "$(cat "$W/err")"
done
for p in pp2 dp2 order dp4 zb zero1 zero2 zero3; do
    runs 0 "$p with threads" run "$W/$p.json" --device reference --steps 3 --verify --json
    cp "$W/out" "$W/$p.local"
    for again in 1 2; do
        runs 0 "$p with processes" run "$W/$p.json" --device reference --steps 3 --verify --json \
            --transport mpi --deterministic
        json "$p: run $again has the same bits" "
a = json.load(open('$W/$p.local'))
assert d['losses'] == a['losses'], (d['losses'], a['losses'])
assert d['verify'] == a['verify'] and d['verify']['passed'], d['verify']
assert len(d['ranks']) == len(a['ranks'])"
    done
done
runs 0 "MPI's own collectives" run "$W/dp4.json" --device reference --steps 3 --verify --json \
    --transport mpi
json "... add up to the same" "
a = json.load(open('$W/dp4.local'))
assert d['verify']['passed'] and d['clock_error_s'] >= 0
assert all(abs(x - y) < 1e-5 for x, y in zip(d['losses'], a['losses']))"

# --- one product ---
runs 0 "results into files" run "$W/dp2.json" --device reference --steps 3 --transport mpi \
    --trace "$W/dp2.trace" -o "$W/dp2.run"
has 'dp 2 x pp 2, 4 micro-batches of 1' "the report is there once"
[ "$(grep -c 'first step' "$W/out")" = 1 ] && ! grep -q -e '----' "$W/err"
report $? "... and nothing of mpirun's" "$(cat "$W/out" "$W/err")"
json "the trace has all ops and transfers of both stages" "
assert d['measured'] is True
ops = [[e['args']['op'] for e in d['traceEvents'] if e['ph'] == 'X' and e['pid'] == rank and
        e['cat'] in ('forward', 'backward', 'F', 'B')] for rank in (0, 1)]
assert sorted(ops[0]) == sorted(ops[1]) and len(ops[0]) == 16, ops
for kind in ('send', 'receive'):
    n = sum(1 for e in d['traceEvents'] if e['ph'] == 'X' and e['cat'] == kind)
    assert n == 16, (kind, n)" "$W/dp2.trace"
runs 0 "it can be compared" compare "$W/dp2.json" "$W/dp2.trace"
"$DEGAS" run "$W/pp2.json" --device reference --steps 2 --transport mpi --json 2>"$W/err" |
    head -1 >"$W/out"
[ ! -s "$W/err" ] && has '^{' "a reader that leaves does not hurt"
if [ -w /dev/full ]; then
    "$DEGAS" run "$W/pp2.json" --device reference --steps 1 --transport mpi --json >/dev/full \
        2>"$W/err"
    [ $? = 4 ] && [ "$(wc -l <"$W/err")" = 1 ]
    report $? "a full disk behind standard output" "$(cat "$W/err")"
fi

# --- joining ---
mpirun -n 4 "$DEGAS" run "$W/dp2.json" --device reference --steps 3 --transport mpi --deterministic \
    --json >"$W/out" 2>"$W/err"
report $? "join under mpirun" "$(cat "$W/err")"
json "the same bits there" "assert d['losses'] == json.load(open('$W/dp2.local'))['losses']"
mpirun -n 3 "$DEGAS" run "$W/dp2.json" --device reference --transport mpi >"$W/out" 2>"$W/err"
[ $? = 1 ] && [ "$(grep -c '^degas: ' "$W/err")" = 1 ] &&
    grep -q 'the plan has 4 ranks, but 3 processes were started' "$W/err"
report $? "too few processes: one line, status 1" "$(cat "$W/err")"

# --- wrong ---
R="run $W/pp2.json --device reference --steps 2 --transport mpi"
# shellcheck disable=SC2086
{
    fails 2 'every rank reads the plan' "a plan on standard input" run - --transport mpi
    fails 4 'no/text' "data that is not there" $R --data "$W/no/text"
    fails 4 'no/run' "a folder for the result that is not there" $R -o "$W/no/run"
    fails 6 'mpirun ended with status' "a host that does not exist" $R --hosts no.such.host.invalid
}
gone "no process is left"
finish
