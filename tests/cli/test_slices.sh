#!/bin/sh
# degas slices: the formula and its variants, against all answers of a small file of times.
. tests/cli/tap.sh

# Two sequences of four cells of 8 tokens; every (b, s, c) is measured, so nothing is interpolated.
command -v python3 >/dev/null 2>&1 || {
    skip "degas slices" "python3 is not installed"
    finish
}
python3 - "$W/t.json" "$W/m.json" <<'END'
import json, sys
times, messages = {}, {}
for b in (1, 2):
    for s in (8, 16, 24, 32):
        for c in range(0, 33 - s, 8):
            work = b * s * (2 * c + s + 20)
            point = {'forward_mean': 0.0003 + work * 1e-6 + (s == 24) * 1e-3,
                     'backward_mean': 0.0001 + work * 2.5e-6}
            times['%d_%d_%d' % (b, s, c)] = point
            messages['%d_%d_%d' % (b, s, c)] = dict(point, communication_mean=0.0004 + b * s * 1e-6)
json.dump(times, open(sys.argv[1], 'w'))
json.dump(messages, open(sys.argv[2], 'w'))
END

# All answers: groups in order, each [b, slices...]; what a pipeline of stages takes over them.
cat >"$W/all.py" <<'END'
import itertools
def cuts(n):
    if n == 0: yield []
    for s in range(1, n + 1):
        for rest in cuts(n - s): yield [s] + rest
def answers(B=2, n=4):
    for sizes in cuts(B):
        for slicing in itertools.product(list(cuts(n)), repeat=len(sizes)):
            yield list(zip(sizes, slicing))
def jobs(groups, back=False):
    for b, slices in groups:
        c, out = 0, []
        for s in slices:
            out.append((b, 8 * s, 8 * c)); c += s
        yield from reversed(out) if back else out
def shop(seq, stages, t, delay=lambda j: 0):
    end = [0.0] * len(stages)
    for j in seq:
        before = 0.0
        for i, factor in enumerate(stages):
            end[i] = max(end[i], before) + factor * t(j)
            before = end[i] + delay(j)
    return end[-1]
T = json.load(open(W + '/m.json'))
f = lambda j: T['%d_%d_%d' % j]['forward_mean']
g = lambda j: T['%d_%d_%d' % j]['backward_mean']
m = lambda j: T['%d_%d_%d' % (j[0], j[1], 0)]['communication_mean']
def apart(groups, stages, f=f, g=g, delay=lambda j: 0):
    return (shop(jobs(groups), stages, f, delay) +
            shop(jobs(groups, True), stages[::-1], g, delay))
def check(want, optimal=True):
    assert abs(d['latency_s'] - want) < 1e-9, (d['latency_s'], want)
    assert d['optimal'] is optimal and d['lower_bound_s'] <= d['latency_s'] + 1e-12
    assert sum(x['batch'] for x in d['groups']) == 2
    assert all(sum(x['slices']) == 32 for x in d['groups'])
END
all="W = '$W'
exec(open('$W/all.py').read())"

job="--stages 3 --batch 2 --seq-len 32 --json"
# shellcheck disable=SC2086
runs 0 "both directions at once" slices --costs "$W/t.json" $job
json "the keys of FORMATS.md, the minimum of all answers" "
$all
assert list(d)[:2] == ['format', 'version'] and d['format'] == 'degas-slices' and d['version'] == 1
check(min(shop(jobs(a), [1] * 3, lambda j: f(j) + g(j)) for a in answers()))
assert d['optimality_gap_fraction'] == 0 and d['dp_solves'] >= 1 and d['max_slice_s'] > 0"
# shellcheck disable=SC2086
runs 0 "directions apart" slices --costs "$W/t.json" $job --directions apart
json "each fills and drains the pipeline" "
$all
check(min(apart(a, [1] * 3) for a in answers()))
assert d['max_backward_slice_s'] > 0"
# shellcheck disable=SC2086
runs 0 "measured messages that overlap" slices --costs "$W/m.json" $job --directions apart \
    --messages overlapped
json "they delay the next stage" "
$all
check(min(apart(a, [1] * 3, delay=m) for a in answers()))"
# shellcheck disable=SC2086
runs 0 "messages that block, measured and by latency and bandwidth" slices --costs "$W/m.json" \
    $job --directions apart --message-latency 1ms --message-token-bytes 1kB --bandwidth 1MB/s
json "they are part of the slices" "
$all
more = lambda j: m(j) + 1e-3 + j[0] * j[1] * 1e3 / 1e6
check(min(apart(a, [1] * 3, lambda j: f(j) + more(j), lambda j: g(j) + more(j))
          for a in answers()))"
# shellcheck disable=SC2086
runs 0 "stages that differ by factors" slices --costs "$W/t.json" $job --directions apart \
    --stage-factors 1,0.5,2
json "are walked one by one" "
$all
check(min(apart(a, [1, .5, 2]) for a in answers()))"
# shellcheck disable=SC2086
runs 0 "stages of a file each" slices --costs "$W/t.json,$W/t.json,$W/t.json" $job
cp "$W/out" "$W/three"
# shellcheck disable=SC2086
runs 0 "and of one file" slices --costs "$W/t.json" $job
cmp -s "$W/three" "$W/out"
report $? "are the same where the files are"
# shellcheck disable=SC2086
runs 0 "a memory limit of one sequence" slices --costs "$W/t.json" $job --memory-limit 3200 \
    --token-bytes 100
json "makes two rounds, each a pipeline of its own" "
$all
one = min(shop(jobs(a), [1] * 3, lambda j: f(j) + g(j)) for a in answers(1))
check(2 * one)
assert d['rounds'] == 2 and [x['round'] for x in d['groups']] == [0, 1]"
# shellcheck disable=SC2086
fails 1 'does not fit' "less than one sequence" slices --costs "$W/t.json" $job \
    --memory-limit 3199 --token-bytes 100
# shellcheck disable=SC2086
runs 0 "groups of one sequence" slices --costs "$W/t.json" $job --max-group 1
json "are no larger" "assert [x['batch'] for x in d['groups']] == [1, 1]"

# orders that are simulated
for schedule in seq1f1b gpipe; do
    # shellcheck disable=SC2086
    runs 0 "slices for $schedule" slices --costs "$W/t.json" $job --schedule $schedule
    cp "$W/out" "$W/order.json"
    json "cuts all groups alike, and says how good it is" "
$all
assert d['schedule'] == '$schedule' and d['optimal'] is True
assert len(set(map(str, (x['slices'] for x in d['groups'])))) == 1"
done
json "gpipe is the pipeline that is walked" "
$all
want = min(apart(a, [1] * 3) for a in answers() if all(x[1] == a[0][1] for x in a))
check(want)" "$W/order.json"
# shellcheck disable=SC2086
runs 0 "interleaved, in 900 bytes per token of memory" slices --costs "$W/t.json" --stages 2 --vpp 2 \
    --batch 2 --seq-len 32 --json --schedule seq1f1b-interleaved --memory-limit 57600 --token-bytes 900
json "is a slicing too" "assert d['optimal'] is True and sum(x['batch'] for x in d['groups']) == 2"
runs 0 "for people" slices --costs "$W/t.json" --stages 3 --batch 2 --seq-len 32 --directions apart
has 'longest slice .* forward, .* backward: proven optimal in [0-9]* solves' "in a line"

while IFS='|' read -r option arguments; do
    # shellcheck disable=SC2086
    fails 2 "$option" "$arguments" slices --costs "$W/t.json" $job $arguments
done <<'END'
--stage-factors|--stage-factors 1,2
--stage-factors|--stage-factors 1,0,2
--costs|--costs a,b
--directions|--directions together --schedule seq1f1b
--schedule|--schedule zb-h1
--schedule|--schedule seq1f2b
--vpp|--vpp 2
--token-bytes|--memory-limit 1GB
--memory-limit|--token-bytes 1
--memory-limit|--memory-limit 0 --token-bytes 1
--bandwidth|--message-token-bytes 1
--messages|--messages never
END
finish
