#!/bin/sh
# Fuzzes each target of tests/fuzz/targets.c for FUZZ_S seconds, JOBS targets at a time: libFuzzer with the address and
# undefined-behaviour sanitizers where clang has it, our own mutations elsewhere; then random requests.  Inputs that were
# worth keeping stay in build/fuzz/corpus, what failed in build/fuzz/crashes; the exit status is 1 if anything failed.
#
# MANY=1 is for the many: traps of the undefined-behaviour sanitizer and no address sanitizer, no tracing of comparisons
# (a quarter of an execution's time and more), inputs in memory (tests/fuzz/memory.c), at most 4096 ops in a schedule, and files of
# 4 KB (of 64 KB in an eighth of the time); then the address sanitizer reads each input that is kept (REPLAY=0: not).
# Pieces add up: another FUZZ_SEED is another piece, and PAGE=docs/quality.md adds this one's figures to the table there.
# usage: [FUZZ_S=60] [TARGETS="plan trace"] [FUZZ_REQUESTS=1000] [FUZZ_SEED=1] [JOBS=1] [MANY=1 [REPLAY=0] [PAGE=FILE]] fuzz.sh DRIVER
set -u
driver=$1
: "${FUZZ_S:=60}" "${FUZZ_REQUESTS:=1000}" "${FUZZ_SEED:=1}" "${JOBS:=1}" "${MANY:=}" "${REPLAY:=1}" "${PAGE:=}"
B=build/fuzz
FUZZ_CRASHES=$B/crashes
G_DEBUG=fatal-criticals
export FUZZ_CRASHES FUZZ_SEED G_DEBUG
# Each input is a file for a moment: in memory where there is such a folder.
if [ -w /dev/shm ]; then
    TMPDIR=/dev/shm
    export TMPDIR
fi
mkdir -p $B/seeds $B/corpus $B/figures $FUZZ_CRASHES
rm -f $B/figures/*
"$driver" seeds $B/seeds || exit 1
failed=0

# build FOLDER PROGRAM OPT CFLAGS LDFLAGS
build() {
    mkdir -p "$1"
    ${MAKE:-make} --no-print-directory "B=$1" CC=clang "OPT=$3" HARDENED= CUDA=0 MPI=0 "CFLAGS=$4" "LDFLAGS=$5" \
        "$1/tests/fuzz/$2" >"$1/log" 2>&1 || {
        tail -20 "$1/log"
        exit 1
    }
    program=$1/tests/fuzz/$2
}

build_checked() {
    build $B libfuzzer "-O1 -g" "-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined" \
        -fsanitize=fuzzer,address,undefined
    G_SLICE=always-malloc
    ASAN_OPTIONS=allocator_may_return_null=1:malloc_context_size=4
    export G_SLICE ASAN_OPTIONS
}

# fuzz TARGET MAX_BYTES SECONDS OPTION...
fuzz() {
    target=$1 bytes=$2 seconds=$3 log=$B/figures/$1-$2
    shift 3
    mkdir -p "$B/corpus/$target"
    FUZZ_TARGET=$target "$program" "$@" -max_total_time="$seconds" -max_len="$bytes" -seed="$FUZZ_SEED" -timeout=60 \
        -rss_limit_mb=4096 -close_fd_mask=1 -verbosity=0 -print_final_stats=1 -dict="$B/seeds/words.dict" \
        -artifact_prefix="$FUZZ_CRASHES/$target-" "$B/corpus/$target" "$B/seeds/$target" >"$log.log" 2>&1 ||
        touch "$log.failed"
    grep -E '^SUMMARY|ERROR|CRITICAL|runtime error' "$log.log"
    awk -v t="$target" '/number_of_executed_units/ { print t, $2 }' "$log.log" >"$log.n"
}

# each FUNCTION TARGET...: JOBS targets at a time.  The second line of TARGET.cpu is the CPU time of its fuzzers: user and system.
each() {
    call=$1 n=0
    shift
    for t in "$@"; do
        {
            $call "$t"
            times >"$B/figures/$t.cpu"
        } &
        n=$((n + 1))
        [ $((n % JOBS)) -ne 0 ] || wait
    done
    wait
}

many() {
    fuzz "$1" 4096 $((FUZZ_S - FUZZ_S / 8)) -entropic=0
    [ $((FUZZ_S / 8)) -eq 0 ] || fuzz "$1" 65536 $((FUZZ_S / 8)) -entropic=0
}

checked() { fuzz "$1" 65536 "$FUZZ_S"; }

replay() { fuzz "$1" 65536 0 -runs=0; }

# TARGET EXECUTIONS RATE of each target, executions per second of CPU.
figures() {
    for cpu in "$B"/figures/*.cpu; do
        t=$(basename "$cpu" .cpu)
        tail -1 "$cpu" | tr ms '  ' | cat - $B/figures/"$t"-[0-9]*.n |
            awk -v t="$t" 'NR == 1 { s = 60 * $1 + $2 + 60 * $3 + $4; next } { n += $2 }
                END { printf "%s %d %d\n", t, n, n / (s > 0.001 ? s : 0.001) }'
    done
}

# Adds this piece's executions to the table of $PAGE; the rates there are this piece's.
add_to_page() {
    figures | awk '
        NR == FNR { n[$1] = $2; rate[$1] = $3; order[++k] = $1; next }
        /^\| target \| executions \|/ { inside = 1; print; getline; print; next }
        inside && /^\| / {
            split($0, cell, " *\\| *")
            gsub(/ /, "", cell[3])
            if (cell[2] == "all") next
            if (!(cell[2] in rate)) { order[++k] = cell[2]; rate[cell[2]] = cell[4] }
            n[cell[2]] += cell[3]
            next
        }
        inside { for (i = 1; i <= k; i++) { sum += n[order[i]]; print "| " order[i] " | " n[order[i]] " | " rate[order[i]] " |" }
            print "| all | " sum " | |"; inside = 0 }
        { print }' - "$PAGE" >$B/page && cat $B/page >"$PAGE"
}

mkdir -p $B
echo 'int LLVMFuzzerTestOneInput(const char *b, unsigned long n) { return b[n > 0 ? 0 : 0] == 0 ? 0 : 0; }' >$B/has.c
targets=${TARGETS:-$("$driver" list)}
if clang -fsanitize=fuzzer -o $B/has $B/has.c 2>/dev/null; then
    if [ -n "$MANY" ]; then
        build build/fuzz-many libfuzzer_in_memory -O2 "-fsanitize-coverage=inline-8bit-counters,pc-table \
-DSCHEDULE_MAX_OPS=4096L -fsanitize=undefined -fsanitize-trap=undefined" -fsanitize=fuzzer
        # shellcheck disable=SC2086 # names without spaces
        each many $targets
    else
        build_checked
        # shellcheck disable=SC2086 # names without spaces
        each checked $targets
    fi
    figures | awk '{ print $1 ": " $2 " executions, " $3 " per second of CPU"; n += $2 } END { print "all: " n }'
    [ -z "$PAGE" ] || add_to_page
    if [ -n "$MANY" ] && [ "$REPLAY" != 0 ]; then
        build_checked
        # shellcheck disable=SC2086 # names without spaces
        each replay $targets
    fi
    ls $B/figures/*.failed 2>/dev/null && failed=1
else
    echo "fuzz: clang with libFuzzer is not installed; our own mutations"
    for target in $targets; do
        end=$(($(date +%s) + FUZZ_S)) seed=$FUZZ_SEED
        while [ "$(date +%s)" -lt "$end" ]; do
            "$driver" mutate "$target" 5000 "$seed" || failed=1
            seed=$((seed + 1))
        done
    done
fi
[ -n "$MANY" ] || FUZZ_TIMES=1 "$driver" requests "$FUZZ_REQUESTS" "$FUZZ_SEED" 600 || failed=1
exit $failed
