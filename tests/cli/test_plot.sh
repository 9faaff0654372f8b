#!/bin/sh
# degas plot: timelines and memory as SVG, PNG, text and tables; hostile names; no or bad gnuplot.
. tests/cli/tap.sh

# 1F1B of 4 ranks, 8 micro-batches, F = 1 s, B = 2 s: (8 + 4 - 1) * 3 = 33 s, bubble 3 / 11 = 27.3 %.
"$DEGAS" schedule 1f1b --pp 4 --microbatches 8 --json >"$W/s.json"
runs 0 "a trace to draw" simulate --schedule-file "$W/s.json" --op-times F=1,B=2 \
    --trace "$W/one.trace.json"
# The same work without overlap of micro-batches: 4 * 8 * 3 = 96 s, 2.9 times longer.
"$DEGAS" schedule naive --pp 4 --microbatches 8 --json >"$W/n.json"
runs 0 "and a longer one" simulate --schedule-file "$W/n.json" --op-times F=1,B=2 \
    --trace "$W/naive.trace.json"
set -- gpt3-13b dgx-a100-80g --global-batch 16 --tp 2 --pp 4 --schedule 1f1b
runs 0 "a trace and a report with memory" simulate "$@" --json --trace "$W/memory.trace.json"
cp "$W/out" "$W/memory.report.json"

# --- tables: the numbers themselves ---
runs 0 "timeline as a table" plot "$W/one.trace.json" -o "$W/t.tsv"
columns=$(head -1 "$W/t.tsv" | tr '\t' ' ')
[ "$columns" = "trace rank aside kind start_ns end_ns microbatch slice drawn_ns color_rgb drawn_start_ns" ]
report $? "its columns carry units" "$columns"
# On every rank 8 F of 1 s and 8 B of 2 s; the first F of rank r begins at r s.
awk -F'\t' 'NR > 1 { n[$4]++; t[$4] += $6 - $5
                     if ($4 == "forward" && $7 == 0 && $5 != $2 * 1e9) bad = 1 }
    END { exit !(n["forward"] == 32 && n["backward"] == 32 && t["forward"] == 32e9 &&
                 t["backward"] == 64e9 && !bad) }' "$W/t.tsv"
report $? "every op is in it, where it was" "$(head -5 "$W/t.tsv")"
runs 0 "memory as a table" plot "$W/memory.trace.json" --kind memory -o "$W/m.tsv"
runs 0 "a report's memory as a table" plot "$W/memory.report.json" -o "$W/mr.tsv"
# Peaks found in the trace are those that the simulator reported.
peaks() {
    awk -F'\t' '$2 == "peak" { s = 0; for (i = 5; i <= NF; i++) s += $i; print $3, s }' "$1"
}
peaks "$W/m.tsv" >"$W/p1"
peaks "$W/mr.tsv" >"$W/p2"
[ "$(wc -l <"$W/p1")" = 4 ] && cmp -s "$W/p1" "$W/p2"
report $? "a trace's peaks are its report's" "$(paste "$W/p1" "$W/p2")"
highest=$(sed -n 's/^ *"peak_memory_bytes": \([0-9]*\).*/\1/p' "$W/memory.report.json" | head -1)
awk -v highest="$highest" -F'\t' '$2 == "time" { s = 0; for (i = 5; i <= NF; i++) s += $i
    if (s > most) most = s; if ($4 + 0 < at + 0) bad = 1; at = $4 }
    END { exit !(most == highest && !bad) }' "$W/m.tsv"
report $? "the curve keeps the highest byte and runs forward in time"

# --- text ---
runs 0 "timeline as text" plot "$W/one.trace.json"
has '^predicted: 1f1b, 4 ranks, 8 micro-batches: iteration 33.0 s, bubble 27.3 %$' "the title has the numbers"
has '^3 │ *0' "rank 3 begins with a bubble"
grep -q "$(printf '\033')" "$W/out"
[ $? = 1 ]
report $? "no escape sequences where stdout is no terminal"
runs 0 "colours when asked for" plot "$W/one.trace.json" --color always
grep -q "$(printf '\033')\[48;2;0;114;178m" "$W/out"
report $? "the forward blue of the other pictures" "$(head -2 "$W/out")"
runs 0 "text into a file" plot "$W/one.trace.json" "$W/naive.trace.json" -o "$W/t.txt"
[ ! -s "$W/out" ] && [ "$(grep -c 'iteration' "$W/t.txt")" = 2 ]
report $? "two panels in it and nothing on stdout" "$(cat "$W/t.txt")"
runs 0 "memory as text" plot "$W/memory.report.json"
has '^ *0 .*|W.*A' "bars of letters"
has '^W weights .*A activations' "and what they mean"

# The first of two is six times shorter, so that it has a magnified copy: what follows it still begins at the left edge, and
# the numbers of micro-batches stand in the copy and in the large panel, 2 x 8 ops on each of 4 ranks.
if command -v gnuplot >/dev/null 2>&1; then
    "$DEGAS" simulate --schedule-file "$W/s.json" --op-times F=6,B=12 --trace "$W/six.trace.json" >/dev/null
    runs 0 "a magnified copy" plot "$W/one.trace.json" "$W/six.trace.json" --names "small,large" -o "$W/copy.svg"
    grep -q 'magnified' "$W/copy.svg" &&
        [ "$(grep -B1 '<text>.*micro-batches: iteration' "$W/copy.svg" | grep -c 'text-anchor="start"')" = 2 ]
    report $? "both panels' lines begin at their left edge" "$(grep -B1 'micro-batches' "$W/copy.svg")"
    # And the names of the ranks, twice.
    labels=$(grep -c '<text>[0-7]</text>' "$W/copy.svg")
    [ "$labels" = 136 ]
    report $? "labels are not upon each other in the small one" "$labels"
else
    skip "a magnified copy" "gnuplot is not installed"
fi

# --- the page ---
runs 0 "one page" simulate --schedule-file "$W/s.json" --op-times F=1,B=2 --html "$W/r.html"
grep -q "Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'" \
    "$W/r.html" && ! grep -q 'src=\|href=\|@import\|url(h\|@@' "$W/r.html"
report $? "it loads nothing and no mark is left"
if command -v python3 >/dev/null 2>&1; then
    python3 - "$W/r.html" >"$W/data.json" <<'END'
import re, sys
page = open(sys.argv[1], encoding="utf-8").read()
print(re.search(r'id="data">(.*?)</script>', page, re.S).group(1))
END
    json "its boxes are the ops" "
assert d['end'] == 33e9 and d['shown'] == 4 and d['every'] == 1
for r, row in enumerate(d['rows']):
    boxes = [row[i:i + 7] for i in range(0, len(row), 7)]
    assert len(boxes) == 16
    assert boxes[0][:4] == [r * 10**9, 10**9, 0, 0]
    assert sum(b[1] for b in boxes) == 24e9" "$W/data.json"
else
    skip "its boxes are the ops" "python3 is not installed"
fi
sed 's|"schedule": "1f1b"|"schedule": "<script>alert(1)</script>@@data@@"|' "$W/s.json" >"$W/evil.json"
runs 0 "a page of a hostile name" simulate --schedule-file "$W/evil.json" --op-times F=1,B=2 \
    --html "$W/evil.html"
grep -q '&lt;script&gt;alert(1)' "$W/evil.html" && ! grep -q '<script>alert' "$W/evil.html"
report $? "the name is text"
[ "$(grep -c 'id="data"' "$W/evil.html")" = 1 ] && grep -q '@@data@@' "$W/evil.html"
report $? "and no mark of the template"
runs 4 "a page that cannot be written" simulate --schedule-file "$W/s.json" --op-times F=1,B=2 \
    --html "$W/no/such/folder.html"

# --- wrong usage ---
fails 2 'a picture.s name ends in .svg, .png, .txt or .tsv' "unknown suffix" \
    plot "$W/one.trace.json" -o "$W/x.jpeg"
fails 2 'kind' "unknown kind" plot "$W/one.trace.json" --kind gantt
fails 2 'roofline needs a degas-plan or a degas-sweep' "a kind that needs another file" \
    plot "$W/one.trace.json" --kind roofline -o "$W/x.svg"
fails 2 'a timeline needs a degas-trace' "timeline of a report" \
    plot "$W/memory.report.json" --kind timeline
fails 2 'this trace has no memory in it' "memory of plain op times" \
    plot "$W/one.trace.json" --kind memory
fails 2 'names: expected one for each of 1 files' "too many names" \
    plot "$W/one.trace.json" --names a,b
fails 2 'argument is missing' "nothing to draw" plot
fails 4 'no-such' "a file that is not there" plot "$W/no-such.json"
fails 3 's.json.*degas-trace' "another kind of file" plot "$W/s.json"
printf '{"format":"degas-trace","version":1,' >"$W/cut.json"
fails 3 'cut.json:1:' "half a trace" plot "$W/cut.json" -o "$W/x.svg"
[ ! -e "$W/x.svg" ] && [ ! -e "$W/x.tsv" ]
report $? "and nothing is left of it"

# --- gnuplot is missing, fails, or does not finish ---
real=$(cd "$(dirname "$DEGAS")" && pwd)/$(basename "$DEGAS")
found=$DEGAS
mkdir "$W/bin"
# shellcheck disable=SC2016
printf '#!/bin/sh\nPATH=%s exec %s "$@"\n' "$W/bin" "$real" >"$W/without"
chmod +x "$W/without"
DEGAS=$W/without
echo old >"$W/gone.svg"
fails 6 'gnuplot not found; the data is in .*gone.tsv' "without gnuplot" \
    plot "$W/one.trace.json" -o "$W/gone.svg"
[ "$(cat "$W/gone.svg")" = old ] && cmp -s "$W/gone.tsv" "$W/t.tsv"
report $? "the numbers are left, the old picture is as it was"
runs 0 "text needs no gnuplot" plot "$W/one.trace.json"
printf '#!/bin/sh\necho "\\"script.gp\\" line 7: no such thing" >&2\nexit 1\n' >"$W/bin/gnuplot"
chmod +x "$W/bin/gnuplot"
fails 6 'gnuplot failed (.*line 7: no such thing); the data is in' "gnuplot fails" \
    plot "$W/one.trace.json" -o "$W/failed.svg"
printf '#!/bin/sh\nkill -SEGV $$\n' >"$W/bin/gnuplot"
fails 6 'gnuplot was ended by signal 11; the data is in' "gnuplot crashes" plot "$W/one.trace.json" -o "$W/half.svg"
# What gnuplot does where it cannot write: half a file and status 0.
printf '#!/bin/sh\nprintf "<svg><path d="\nexit 0\n' >"$W/bin/gnuplot"
fails 4 'picture is incomplete' "gnuplot cannot write" plot "$W/one.trace.json" -o "$W/half.svg"
printf '#!/bin/sh\nexit 0\n' >"$W/bin/gnuplot"
fails 4 'picture' "gnuplot writes nothing" plot "$W/one.trace.json" -o "$W/half.svg"
[ ! -e "$W/failed.svg" ] && [ ! -e "$W/half.svg" ]
report $? "no partial picture"
# Whatever ends degas while gnuplot draws, no file of gnuplot's is left.
# shellcheck disable=SC2016
printf '#!/bin/sh\nkill -s "$SIGNAL" "$PPID"\n' >"$W/bin/gnuplot"
mkdir "$W/tmp"
for signal in TERM INT KILL; do
    SIGNAL=$signal TMPDIR=$W/tmp "$DEGAS" plot "$W/one.trace.json" -o "$W/half.svg" 2>"$W/err"
    status=$?
    [ "$(kill -l $((status - 128)))" = "$signal" ] && [ -z "$(ls -A "$W/tmp")" ] && [ ! -e "$W/half.svg" ]
    report $? "SIG$signal while gnuplot draws leaves nothing" "status $status: $(ls -A "$W/tmp") $(cat "$W/err")"
done
DEGAS=$found

# --- pictures ---
if ! command -v gnuplot >/dev/null 2>&1; then
    skip "pictures" "gnuplot is not installed"
    finish
fi
runs 0 "timeline as SVG" plot "$W/one.trace.json" -o "$W/a.svg"
[ "$(tail -1 "$W/a.svg")" = "</svg>" ]
report $? "it is whole" "$(tail -3 "$W/a.svg")"
grep -q 'iteration 33.0 s, bubble 27.3 %<' "$W/a.svg"
report $? "the title has iteration time and bubble"
grep -q '>backward<' "$W/a.svg" && ! grep -q '>weight gradient<' "$W/a.svg"
report $? "the legend has what is in it"
# 1108 pixels are 33 s; rank 3 begins after 3 F: 64 + 3 * 1108 / 33 = 164.73
grep -q "M164.73,1[0-9.]* L" "$W/a.svg"
report $? "an op is drawn where it belongs"
(cd "$W" && TMPDIR=$W/no/such/folder "$real" plot one.trace.json -o b.svg)
cmp -s "$W/a.svg" "$W/b.svg"
report $? "the same bytes from another directory, without a folder of temporary files"
runs 0 "as PNG" plot "$W/one.trace.json" -o "$W/a.png"
[ "$(head -c 4 "$W/a.png" | tail -c 3)" = PNG ] && [ "$(tail -c 8 "$W/a.png" | head -c 4)" = IEND ]
report $? "it is a whole PNG"
runs 0 "two timelines on one axis" plot "$W/naive.trace.json" "$W/one.trace.json" -o "$W/two.svg" \
    --names "one at a time,1F1B" --title "What overlap is worth"
for text in '>one at a time<' '>1F1B<' '>2.9 times shorter<' '>What overlap is worth<'; do
    grep -q "$text" "$W/two.svg"
    report $? "it says $text"
done
runs 0 "memory over time" plot "$W/memory.trace.json" --kind memory --limit 80GiB -o "$W/m.svg"
for text in '>activations<' ', the fullest: ' 'memory \[GiB\]' '>each rank at its peak<'; do
    grep -q "$text" "$W/m.svg"
    report $? "it says $text"
done
grep -q '>degas plot memory.trace.json --kind memory --limit 80GiB<' "$W/m.svg"
report $? "its footer is the command, without folders and product" "$(grep 'degas plot' "$W/m.svg")"
runs 0 "memory of another rank" plot "$W/memory.trace.json" --kind memory --rank 1 -o "$W/m1.svg"
grep -q '>rank 1, its peak: ' "$W/m1.svg"
report $? "it says which"
fails 2 'rank: 4, but the trace.s are 0 to 3' "memory of no rank" \
    plot "$W/memory.trace.json" --kind memory --rank 4 -o "$W/m4.svg"
runs 0 "a report's memory" plot "$W/memory.report.json" -o "$W/mr.svg"
grep -q '>limit 80.0 GiB<\|of 80.0 GiB<' "$W/mr.svg"
report $? "it knows the limit"

# Rows of the page's memory: two paths, each with one subpath for every rank.
runs 0 "a page with memory" simulate gpt3-13b dgx-a100-80g --global-batch 8 --tp 2 --pp 4 \
    --jitter 5%,50 --html "$W/memory.html"
for color in e69f00 009e73; do
    [ "$(grep -o "<path fill=\"#$color\" d=\"M[^\"]*z\"" "$W/memory.html" | tail -1 |
        tr -cd M | wc -c)" = 4 ]
    report $? "memory over time has a row for each rank" \
        "$(grep -c "<path fill=\"#$color" "$W/memory.html")"
done
grep -q '>degas simulate gpt3-13b dgx-a100-80g --global-batch 8 --tp 2 --pp 4 --jitter 5%,50<' \
    "$W/memory.html"
report $? "the page ends with the command"
grep -q 'p10 to p90 of 50 runs' "$W/memory.html"
report $? "and shows the jitter"
runs 0 "the same elsewhere" simulate gpt3-13b dgx-a100-80g --global-batch 8 --tp 2 --pp 4 \
    --jitter 5%,50 --html "$W/again.html" --threads 3
cmp -s "$W/memory.html" "$W/again.html"
report $? "has the same bytes"

# gnuplot runs what stands in back-quotes, after a newline, after a quote: nothing of this must.
i=0
# shellcheck disable=SC1003
for name in '`touch pwned`' '$(touch pwned)' "'; system('touch pwned'); '" '"|touch pwned' \
    "$(printf 'x\n!touch pwned\nx')" '@pwned' '{/:Bold x}^2' "$(printf '\377<b>&\t\\')"; do
    i=$((i + 1))
    (cd "$W" && "$real" plot one.trace.json -o "h$i.svg" --title "$name" --names "x$name") \
        >"$W/out" 2>&1 && [ "$(tail -1 "$W/h$i.svg")" = "</svg>" ]
    report $? "hostile title $i is drawn" "$(cat "$W/out")"
done
[ -z "$(find "$W" . -maxdepth 1 -name pwned)" ]
report $? "none of them was run"
! grep -q '<b>' "$W/h8.svg"
report $? "none of them is markup"

printf '{"format":"degas-trace","version":1,"measured":false,"schedule":"x","stages":9,"virtual":1,
"microbatches":1,"slices":1,"makespan_ns":0,"traceEvents":[]}' >"$W/empty.json"
runs 0 "an empty trace beside another" plot "$W/empty.json" "$W/one.trace.json" -o "$W/e.svg"
runs 0 "an empty trace alone" plot "$W/empty.json" -o "$W/e.svg"

# Predicted beside measured: an error, not a ratio.
sed 's/"measured": *false/"measured": true/; s/"makespan_ns": *33000000000/"makespan_ns": 44000000000/' "$W/one.trace.json" \
    >"$W/measured.json"
runs 0 "predicted beside measured" plot "$W/one.trace.json" "$W/measured.json" -o "$W/pm.svg"
grep -q '>predicted<' "$W/pm.svg" && grep -q '>measured<' "$W/pm.svg" && grep -q 'bubble 27.3 %, error -25.0 %<' "$W/pm.svg"
report $? "says the error" "$(grep -o '>[^<]*error[^<]*<' "$W/pm.svg")"

# Many micro-batches: the steady state is folded, in the middle, and what is drawn keeps its place.
runs 0 "a timeline of many micro-batches" simulate gpt3-13b dgx-a100-80g --gpus 4 --dp 1 --pp 4 --global-batch 100 \
    --trace "$W/many.json" -o "$W/many.report.json"
runs 0 "is folded" plot "$W/many.json" -o "$W/many.svg"
grep -q 's of its steady state are folded away<' "$W/many.svg"
report $? "and says so" "$(grep -o '>1f1b[^<]*<' "$W/many.svg")"
runs 0 "its table has all ops" plot "$W/many.json" -o "$W/many.tsv"
awk -F'\t' 'NR > 1 && $3 == 0 {
    n++
    if ($11 == "nan" || $11 == "") { hidden++; next }
    if ($5 == 0 && $2 == 0 && $11 != 0) bad = 1
    if ($11 > $5 || (hidden && $11 == $5 && $2 == 0 && $7 > 50)) bad = 1
} END { exit bad || n < 800 || hidden < n / 3 || hidden > n * 0.95 }' "$W/many.tsv"
report $? "of which those of the middle are not drawn" "$(sed -n '1,3p' "$W/many.tsv")"
runs 0 "a plan draws its timeline" plan gpt3-13b dgx-a100-80g --gpus 8 --global-batch 8 -o "$W/p.json"
runs 0 "which is its simulation's" plot "$W/p.json" -o "$W/p.svg"
grep -q '>gpt3-13b on dgx-a100-80g<' "$W/p.svg"
report $? "named by model and cluster" "$(grep -o '>gpt3[^<]*<' "$W/p.svg")"
runs 0 "and its memory" plot "$W/p.json" --kind memory -o "$W/pm.tsv"

# 96 ranks, 8 chunks, 128 micro-batches: 196 608 ops.
"$DEGAS" schedule interleaved --pp 96 --vpp 8 --microbatches 128 --json >"$W/s.json"
"$DEGAS" simulate --schedule-file "$W/s.json" --op-times F=1,B=2 --trace "$W/large.json" \
    --html "$W/large.html" >"$W/out"
[ "$(wc -c <"$W/large.html")" -lt 5000000 ] && grep -q 'are drawn as one' "$W/large.html"
report $? "a large page is below 5 MB and says what it merged" "$(wc -c <"$W/large.html")"
runs 0 "a large trace" plot "$W/large.json" -o "$W/large.svg"
[ "$(wc -c <"$W/large.svg")" -lt 3000000 ]
report $? "is merged into a picture below 3 MB" "$(wc -c <"$W/large.svg")"
finish
