#!/bin/sh
# degas schedule: pictures, files, and families that do not exist at a shape.
. tests/cli/tap.sh

# transcript NAME EXPECTED ARGUMENT...
transcript() {
    name=$1
    expected=tests/cli/expected/$2
    shift 2
    "$DEGAS" "$@" >"$W/out" 2>"$W/err"
    difference=$(diff "$expected" "$W/out")
    report $? "$name" "$difference"
}

transcript "the picture of 1F1B" schedule-1f1b.txt schedule 1f1b --pp 4 --microbatches 8
transcript "the picture of TeraPipe" schedule-terapipe.txt \
    schedule terapipe --pp 3 --microbatches 1 --slices 4
# As Megatron-LM prints it for pipeline size 2, virtual size 2, 4 micro-batches.
transcript "the file of an interleaved schedule" schedule-interleaved.json \
    schedule interleaved --pp 2 --vpp 2 --microbatches 4 --json

for s in $("$DEGAS" list schedules | awk 'NR > 1 { print $1 }'); do
    runs 0 "$s has a picture" schedule "$s" --pp 4 --microbatches 8
    runs 0 "$s has a file" schedule "$s" --pp 4 --microbatches 8 --json
    cp "$W/out" "$W/$s.json"
    runs 0 "the file of $s runs" simulate --schedule-file "$W/$s.json" --json
    json "as fast as its picture says, every rank busy for 8 times 3" "
assert d['iteration_s'] >= 24 and all(abs(r['busy_s'] - 24) < 1e-9 or r['busy_s'] % 24 == 0
    for r in d['ranks']), [r['busy_s'] for r in d['ranks']]"
done

if "$DEGAS" list schedules | grep -q '^zb-auto '; then
    # with room for one micro-batch there is no pipeline: 8 (F + I + W) and the way there and back
    runs 0 "zb-auto for one micro-batch in flight" \
        schedule zb-auto --pp 2 --microbatches 8 --in-flight 1
    has 'in flight 1 x2' "keeps that limit"
    runs 0 "zb-auto for given times" \
        schedule zb-auto --pp 4 --microbatches 8 --op-times F=2,I=2,W=1,comm=1 -o "$W/auto.json"
    runs 0 "is simulated with them" \
        simulate --schedule-file "$W/auto.json" --op-times F=2,I=2,W=1,comm=1 --json
    cp "$W/out" "$W/auto.report"
    runs 0 "zb-h2" schedule zb-h2 --pp 4 --microbatches 8 -o "$W/h2.json"
    runs 0 "is simulated with them, too" \
        simulate --schedule-file "$W/h2.json" --op-times F=2,I=2,W=1,comm=1 --json
    json "zb-auto is no slower than zb-h2" "
assert json.load(open('$W/auto.report'))['iteration_s'] <= d['iteration_s']"
fi

COLUMNS=60 "$DEGAS" schedule gpipe --pp 64 --microbatches 64 >"$W/out"
[ "$(grep '│' "$W/out" | wc -L)" -le 60 ]
report $? "COLUMNS is the width" "$(head -5 "$W/out")"
has 'of 64 ranks are shown' "many ranks are thinned out, and that is said"

fails 2 'did you mean "1f1b"' "an unknown schedule" schedule 1f1 --pp 4 --microbatches 8
fails 2 '--pp: is missing' "no pipeline ranks" schedule 1f1b --microbatches 8
fails 2 '--microbatches: is missing' "no micro-batches" schedule 1f1b --pp 4
fails 2 '--pp' "zero ranks" schedule 1f1b --pp 0 --microbatches 8
fails 2 '--microbatches' "negative micro-batches" schedule 1f1b --pp 4 --microbatches -8
fails 2 'slice' "slices of a schedule without" schedule zb-h1 --pp 4 --microbatches 8 --slices 2
fails 2 'vpp\|chunk' "chunks of a schedule without" schedule 1f1b --pp 4 --microbatches 8 --vpp 2
fails 5 'more than' "more ops than fit" schedule 1f1b --pp 100000 --microbatches 100000000
runs 0 "several schedules" schedule 1f1b zb-h1 zb-v dualpipe --pp 4 --microbatches 8
has '^makespan 33, longest rank 33, bubble 27.3 %' "1F1B"
has '^makespan 27, longest rank 27, bubble 11.1 %' "and ZB-H1"
has '^zb-v: zb-v, 4 ranks, 2 chunks, 8 micro-batches: iteration 2[4-6]' "and ZB-V, whose chunks take half as long each"
[ "$(grep -c '^  └' "$W/out")" = 4 ] && [ "$(grep -o '30$' "$W/out" | wc -l)" = 4 ]
report $? "on one axis" "$(cat "$W/out")"
fails 2 'output: is of one schedule, not of 2' "a file of several" schedule 1f1b zb-h1 --pp 4 --microbatches 8 -o "$W/two.json"
[ ! -e "$W/two.json" ]
report $? "is not written"

finish
