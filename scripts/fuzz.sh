#!/bin/sh
# Fuzzes each target of tests/fuzz/targets.c for FUZZ_S seconds: libFuzzer with the address and undefined-behaviour
# sanitizers where clang has it, our own mutations elsewhere; then random requests.  Inputs that were worth keeping
# stay in build/fuzz/corpus, what failed in build/fuzz/crashes; the exit status is 1 if anything failed.
# usage: [FUZZ_S=60] [TARGETS="plan trace"] [FUZZ_REQUESTS=1000] [FUZZ_SEED=1] fuzz.sh DRIVER
set -u
driver=$1
: "${FUZZ_S:=60}" "${FUZZ_REQUESTS:=1000}" "${FUZZ_SEED:=1}"
B=build/fuzz
FUZZ_CRASHES=$B/crashes
G_DEBUG=fatal-criticals
G_SLICE=always-malloc
export FUZZ_CRASHES FUZZ_SEED G_DEBUG G_SLICE
# Each input is a file for a moment: in memory where there is such a folder.
if [ -w /dev/shm ]; then
    TMPDIR=/dev/shm
    export TMPDIR
fi
mkdir -p $B/seeds $B/corpus $FUZZ_CRASHES
"$driver" seeds $B/seeds || exit 1
failed=0
echo 'int LLVMFuzzerTestOneInput(const char *b, unsigned long n) { return b[n > 0 ? 0 : 0] == 0 ? 0 : 0; }' >$B/has.c
if clang -fsanitize=fuzzer -o $B/has $B/has.c 2>/dev/null; then
    ${MAKE:-make} --no-print-directory B=$B CC=clang OPT="-O1 -g" HARDENED= CUDA=0 MPI=0 \
        CFLAGS="-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined" \
        LDFLAGS="-fsanitize=fuzzer,address,undefined" $B/tests/fuzz/libfuzzer >$B/log 2>&1 || {
        tail -20 $B/log
        exit 1
    }
    for target in ${TARGETS:-$("$driver" list)}; do
        mkdir -p "$B/corpus/$target"
        FUZZ_TARGET=$target ASAN_OPTIONS=allocator_may_return_null=1:malloc_context_size=4 $B/tests/fuzz/libfuzzer -max_total_time="$FUZZ_S" \
            -seed="$FUZZ_SEED" -max_len=65536 -timeout=60 -rss_limit_mb=4096 -close_fd_mask=1 -verbosity=0 \
            -print_final_stats=1 -dict=$B/seeds/words.dict -artifact_prefix="$FUZZ_CRASHES/$target-" \
            "$B/corpus/$target" "$B/seeds/$target" >$B/log 2>&1 || failed=1
        grep -E '^SUMMARY|ERROR|CRITICAL|runtime error' $B/log
        awk -v t="$target" '/number_of_executed_units/ { print t ": " $2 " executions" }' $B/log
    done
else
    echo "fuzz: clang with libFuzzer is not installed; our own mutations"
    for target in ${TARGETS:-$("$driver" list)}; do
        end=$(($(date +%s) + FUZZ_S)) seed=$FUZZ_SEED
        while [ "$(date +%s)" -lt "$end" ]; do
            "$driver" mutate "$target" 5000 "$seed" || failed=1
            seed=$((seed + 1))
        done
    done
fi
FUZZ_TIMES=1 "$driver" requests "$FUZZ_REQUESTS" "$FUZZ_SEED" 600 || failed=1
exit $failed
