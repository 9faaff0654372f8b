#!/bin/sh
# Traces are what ui.perfetto.dev loads without a warning: one track per stream, no two slices at once
# on a track, flow arrows that begin and end in a slice, memory counters.
. tests/cli/tap.sh

if ! command -v python3 >/dev/null 2>&1; then
    skip "the structure of traces" "python3 is not installed"
    finish
fi

cat >"$W/check.py" <<'EOF'
import json, sys
from fractions import Fraction

d = json.load(open(sys.argv[1], encoding='utf-8'), parse_float=Fraction)
n_messages = int(sys.argv[2])
tracks, flows, counters, named, sorted_by = {}, {}, {}, set(), set()
for e in d['traceEvents']:
    where = (e['pid'], e.get('tid'))
    if e['ph'] == 'M':
        {'process_name': named, 'thread_name': named}.get(e['name'], sorted_by).add(where)
        continue
    ts = Fraction(e['ts'])
    assert ts >= 0 and (ts * 1000).denominator == 1, e  # whole nanoseconds
    if e['ph'] == 'X':
        dur = Fraction(e['dur'])
        assert dur >= 0 and (dur * 1000).denominator == 1 and e['name'] and e['cat'], e
        tracks.setdefault(where, []).append((ts, ts + dur, e['cat']))
    elif e['ph'] in 'sf':
        assert e['ph'] == 's' or e['bp'] == 'e', e  # bound to the slice around it
        assert e['ph'] not in flows.setdefault(e['id'], {}), 'flow %s twice' % e['id']
        flows[e['id']][e['ph']] = (where, ts, e['name'], e['cat'])
    else:
        assert e['ph'] == 'C' and all(type(v) is int and v >= 0 for v in e['args'].values()), e
        counters.setdefault(e['pid'], []).append((ts, e['args']))
for where, slices in tracks.items():
    assert where in named and (where[0], None) in named and where in sorted_by, where
    assert slices == sorted(slices, key=lambda s: s[0]), 'track %s is not sorted' % (where,)
    for before, after in zip(slices, slices[1:]):
        assert before[1] <= after[0], 'overlap on %s: %s %s' % (where, before, after)
assert len(flows) == n_messages, (len(flows), n_messages)
for name, flow in flows.items():
    (there, sent, *what), (here, arrived, *same) = flow['s'], flow['f']
    assert there[0] != here[0] and sent <= arrived and what == same, (name, flow)
    for where, ts in ((there, sent), (here, arrived)):
        assert any(a <= ts <= b for a, b, kind in tracks[where]), (name, where, ts)
for pid, values in counters.items():
    assert [t for t, _ in values] == sorted(t for t, _ in values), 'counter of %d' % pid
    assert set(values[0][1]) == set(values[-1][1])
assert set(counters) == {pid for pid, _ in tracks}, 'every rank has a counter'
EOF

# trace NAME MESSAGES OPTION...
trace() {
    name=$1
    messages=$2
    shift 2
    runs 0 "$name" simulate gpt3-13b dgx-a100-80g --tp 2 --pp 4 --layers 8 "$@" \
        --trace "$W/t.json" --json
    output=$(python3 "$W/check.py" "$W/t.json" "$messages" 2>&1)
    report $? "is sound, with $messages arrows" "$output"
}
# A message per boundary between ranks, micro-batch, slice and way.
trace 1f1b $((3 * 8 * 2)) --global-batch 8 --schedule 1f1b
trace "blocking messages" $((3 * 8 * 2)) --global-batch 8 --schedule 1f1b --overlap none
trace interleaved $((7 * 8 * 2)) --global-batch 8 --schedule interleaved --vpp 2
trace slices $((3 * 4 * 4 * 2)) --global-batch 4 --schedule seq1f1b --slices 4
trace zb-v $((6 * 8 * 2)) --global-batch 8 --schedule zb-v --vpp 2
trace dualpipe $((3 * 8 * 2)) --global-batch 8 --schedule dualpipe --vpp 2
trace "replicas behind the last backward" $((3 * 8 * 2)) --global-batch 32 --gpus 32 --overlap dp,pp
trace "ZeRO 3" $((3 * 8 * 2)) --global-batch 32 --gpus 32 --zero 3
finish
