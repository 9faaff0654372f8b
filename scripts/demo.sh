#!/bin/sh
# The main job on real input, in two parts:
#   1. GPT-3 175B on 48 p3.16xlarge, as TeraPipe's setting (10): one slice against the best slices.
#   2. this machine: profile a small GPT, plan it, train it for real, compare with the prediction.
# Writes into demo/; prints a short report and the paths of the pictures.
set -eu
D=${DEGAS:-./degas}
O=${DEMO:-demo}
mkdir -p "$O"
TEXT=/usr/share/common-licenses/GPL-3 # real English text that Debian and Ubuntu carry
[ -r "$TEXT" ] || TEXT=LICENSE
COLUMNS=${COLUMNS:-100}
export COLUMNS
pictures=

value() { # value FILE KEY: the first number at "KEY" of a JSON file
    sed -n "s/.*\"$2\": *\([-0-9.e+]*\).*/\1/p" "$1" | head -1
}

plot() { # plot TITLE FILE ARGUMENT...: a picture, missed where there is no gnuplot
    title=$1 file=$2
    shift 2
    if "$D" plot "$@" --title "$title" -o "$O/$file"; then
        pictures="$pictures $O/$file"
    fi
}

echo
echo "1. GPT-3 175B on 384 V100 (48 p3.16xlarge), sequence 2048, batch 2, tp 8 x pp 48"
echo "   TeraPipe's setting (10), from data sheets and the cost model alone"
echo
# The published benchmark has no embedding and no output head: --vocab 0.
set -- gpt3-175b p3.16xlarge --gpus 384 --vocab 0 --seq-len 2048 --global-batch 2 --dtype fp16 \
    --framework terapipe --dp 1 --tp 8 --pp 48 --micro-batch 1 --schedule terapipe
"$D" plan "$@" --slices off -o "$O/gpt3-one-slice.json" >"$O/gpt3-one-slice.txt"
"$D" plan "$@" --slices auto -o "$O/gpt3-best-slices.json" >"$O/gpt3-best-slices.txt"
for k in one-slice best-slices; do
    "$D" simulate "$O/gpt3-$k.json" --trace "$O/gpt3-$k.trace.json" -o "$O/gpt3-$k.report.json" \
        --html "$O/gpt3-$k.html" >/dev/null
    pictures="$pictures $O/gpt3-$k.html"
done
plot "GPT-3 175B, 48 stages: one slice, best slices" gpt3-timeline.svg \
    "$O/gpt3-one-slice.trace.json" "$O/gpt3-best-slices.trace.json" --names "one slice,best slices"
plot "GPT-3 175B: memory per rank with the best slices" gpt3-memory.svg \
    "$O/gpt3-best-slices.report.json" --limit 16GiB
one=$(value "$O/gpt3-one-slice.report.json" iteration_s)
best=$(value "$O/gpt3-best-slices.report.json" iteration_s)
one_bytes=$(value "$O/gpt3-one-slice.report.json" peak_memory_bytes)
best_bytes=$(value "$O/gpt3-best-slices.report.json" peak_memory_bytes)
awk -v a="$one" -v b="$best" -v m="$one_bytes" -v n="$best_bytes" \
    -v slices="$(sed -n 's/^[0-9]* slices of \(.*\) tokens$/\1/p' "$O/gpt3-best-slices.txt")" 'BEGIN {
    printf "                         one slice   best slices   speed-up\n"
    printf "   predicted here         %7.3f s     %7.3f s     %5.2f\n", a, b, a / b
    printf "   published, measured      5.822 s       1.160 s      5.02   arXiv:2102.07988\n"
    printf "   predicted/published    %+7.1f %%     %+7.1f %%   %+5.1f %%\n", \
        (a / 5.822 - 1) * 100, (b / 1.160 - 1) * 100, (a / b / 5.02 - 1) * 100
    printf "   memory, fullest rank   %5.2f GiB     %5.2f GiB             of 16 GiB\n", m / 2^30, n / 2^30
    printf "   best slices: %s tokens\n", slices
}'

echo
echo "2. A small GPT on this machine: $(nproc) cores, bytes of $TEXT"
echo
# Times with as many ranks busy at once as the plan has, so that shared cores are in the numbers.
"$D" profile gpt-mini --quick --batches 1 --slices 256,128,64,32 --concurrency 2 -o "$O/cpu-2-ranks.json" >"$O/cpu.txt"
"$D" profile gpt-mini --quick --batches 1 --slices 256,128,64,32 --concurrency 4 -o "$O/cpu-4-ranks.json" >>"$O/cpu.txt"
sed -n '1s/^\(.*\); .*/   \1/p' "$O/cpu.txt"
sed -n 's/^layer  *\([a-z]*\)  *1 x 128  *\([0-9.]* [mu]s\) .*  \([0-9.]* GFLOP.s\)/   a layer \1, 128 tokens: \2, \3/p' \
    "$O/cpu.txt" | head -2
printf '\n   %-37s%9s %9s %8s   %-13s %s\n' "ranks, tokens of slices" predicted measured error \
    loss "gradients against one device"

# train NAME DP PP BATCH SLICES STEPS: planned, simulated, trained, verified
train() {
    "$D" plan gpt-mini "$O/cpu-$(($2 * $3))-ranks.json" --gpus $(($2 * $3)) --seq-len 256 \
        --global-batch "$4" --dtype fp32 --framework degas --dp "$2" --tp 1 --pp "$3" \
        --micro-batch 1 --schedule terapipe --slices "$5" --recompute none --zero 0 \
        -o "$O/$1.json" >"$O/$1.txt"
    "$D" simulate "$O/$1.json" --trace "$O/$1.predicted.json" >/dev/null
    "$D" run "$O/$1.json" --steps "$6" --data "$TEXT" --verify --json \
        --trace "$O/$1.measured.json" -o "$O/$1.run.json" || failed=1
    slices=$(sed -n 's/.*"slices": \[\(.*\)\].*/\1/p' "$O/$1.json" | head -1)
    losses=$(sed -n 's/.*"losses": \[\(.*\)\].*/\1/p' "$O/$1.run.json")
    awk -v name="$(($2 * $3)): dp $2 x pp $3, slices $slices" -v losses="$losses" \
        -v predicted="$(value "$O/$1.run.json" predicted_step_s)" \
        -v measured="$(value "$O/$1.run.json" median)" -v p10="$(value "$O/$1.run.json" p10)" \
        -v p90="$(value "$O/$1.run.json" p90)" \
        -v gradient="$(value "$O/$1.run.json" max_gradient_error)" 'BEGIN {
        n = split(losses, l, ", *")
        printf "   %-37s%6.0f ms %6.0f ms %+6.1f %%   %.2f -> %.2f  %s (%.0e)\n", name, \
            predicted * 1000, measured * 1000, (predicted / measured - 1) * 100, l[1], l[n], \
            gradient <= 1e-5 ? "equal" : "NOT EQUAL", gradient
        if (p90 > 1.25 * p10)
            printf "      (steps took %.0f to %.0f ms: this machine is busy with something else)\n", \
                p10 * 1000, p90 * 1000
    }'
}
failed=0
train gpt-mini-pp2 1 2 2 auto 60
train gpt-mini-dp2-pp2 2 2 8 2 25
if [ "$(nproc)" -lt 4 ]; then
    echo "   (4 ranks on $(nproc) cores: one rank's bubbles speed up others, which the prediction leaves out)"
fi
plot "gpt-mini, 2 stages: predicted and measured" gpt-mini-pp2.svg "$O/gpt-mini-pp2.predicted.json" \
    "$O/gpt-mini-pp2.measured.json" --names predicted,measured
plot "gpt-mini, 2 replicas of 2 stages: predicted and measured" gpt-mini-dp2-pp2.svg \
    "$O/gpt-mini-dp2-pp2.predicted.json" "$O/gpt-mini-dp2-pp2.measured.json" \
    --names predicted,measured
echo
"$D" show "$O/gpt-mini-pp2.predicted.json" | sed -n 's/^/   /; 1,3p'
"$D" show "$O/gpt-mini-pp2.measured.json" | sed 's/^/   /'
echo
echo "   degas compare $O/gpt-mini-pp2.predicted.json $O/gpt-mini-pp2.measured.json"
"$D" compare "$O/gpt-mini-pp2.predicted.json" "$O/gpt-mini-pp2.measured.json" | tail -2 |
    sed 's/^/   /'
echo
echo "Pictures:"
for p in $pictures; do
    echo "   $p"
done
exit "$failed"
