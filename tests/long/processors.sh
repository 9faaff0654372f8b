#!/bin/sh
# TAP: other compilers, no optimisation or all of it, and another processor give the same bytes, with one thread and with
# three, and in a locale whose numbers have commas.  aarch64 is emulated by qemu; AARCH64_ROOT is a folder with its
# libraries (scripts/aarch64_root.sh makes one), unless they are installed beside the system's own.  ALL=1, as of make
# processors, leaves nothing out that takes long to build.
# usage: processors.sh   (from the root of the repository)
# shellcheck source=tests/cli/tap.sh
. tests/cli/tap.sh
DEGAS=$(readlink -f "$DEGAS")

# Each line is a command; @N is how many threads it may use.
cat >"$W/requests" <<'END'
plan gpt2-124m dgx-a100-80g --gpus 4 --global-batch 8 --threads @N --json
plan llama3-8b dgx-h100 --gpus 8 --global-batch 32 --threads @N --json
plan mixtral-8x7b dgx-h100 --gpus 16 --global-batch 32 --slices off --schedule 1f1b --threads @N --json
plan gpt2-124m dgx-a100-80g --gpus 8 --global-batch 8 --pareto 3 --threads @N --json
sweep gpt2-124m dgx-a100-80g --gpus 1,2,4 --global-batch 8 --schedule 1f1b --threads @N --json
simulate gpt2-124m dgx-a100-80g --global-batch 8 --pp 2 --slices 2 --json
simulate mixtral-8x7b dgx-h100 --global-batch 32 --pp 2 --ep 8 --dp 8 --json
simulate llama3-8b dgx-h100 --global-batch 16 --pp 4 --jitter 5%,20 --threads @N --json
simulate deepseek-v3 dgx-h100 --gpus 1024 --global-batch 1024 --pp 16 --ep 64 --dp 64 --json
schedule zb-h1 --pp 4 --microbatches 8 -o -
slices --costs @W/costs.json --stages 2 --batch 2 --seq-len 16 --json
import @W/simumax.json --model gpt2-124m --cluster dgx-a100-80g -o -
list models
END

echo '{"1_8_0":{"forward_mean":0.001,"backward_mean":0.002},"1_16_0":{"forward_mean":0.0015,"backward_mean":0.003},
"1_8_8":{"forward_mean":0.0011,"backward_mean":0.0022}}' >"$W/costs.json"
# A node whose groups of 4 and 8 reach different shares of one rate.
cat >"$W/simumax.json" <<'END'
{"sys_name": "a", "num_per_node": 8, "accelerator": {"backend": "cuda", "mem_gbs": 80,
 "op": {"default": {"tflops": 312, "efficient_factor": 0.75}}, "bandwidth": {"efficient_factor": 0.7, "gbps": 2039}},
 "networks": {"intra_with_pcie": true,
  "intra_node_pcie_4x": {"bandwidth": {"efficient_factor": 0.5, "gbps": 30, "latency_us": 10}},
  "intra_node_pcie_8x": {"bandwidth": {"efficient_factor": 0.4, "gbps": 30, "latency_us": 10}},
  "inter_node": {"bandwidth": {"efficient_factor": 0.6, "gbps": 25, "latency_us": 40}}}}
END

# answers NAME THREADS COMMAND...: what the program says to all requests, in the folder NAME
answers() {
    dir=$W/$1
    threads=$2
    shift 2
    mkdir -p "$dir"
    i=0
    while read -r line; do
        i=$((i + 1))
        # shellcheck disable=SC2046
        "$@" $(echo "$line" | sed "s/@N/$threads/; s|@W|$W|") >"$dir/$i.out" 2>"$dir/$i.err" </dev/null
        echo $? >"$dir/$i.status"
    done <"$W/requests"
}

# same NAME THREADS COMMAND...
same() {
    answers "$@"
    differences=$(diff -rq "$W/here" "$W/$1")
    [ -z "$differences" ]
    report $? "the same bytes: $1" "$differences"
}

answers here 1 "$DEGAS"
! grep -qvx 0 "$W"/here/*.status
report $? "all requests are answered" "$(cat "$W"/here/*.err)"
same "three threads" 3 "$DEGAS"
if localedef -i de_DE -f UTF-8 "$W/de_DE.UTF-8" 2>/dev/null; then
    same "a locale with commas" 2 env LOCPATH="$W" LC_ALL=de_DE.UTF-8 "$DEGAS"
else
    skip "the same bytes: a locale with commas" "there is no localedef, or no de_DE"
fi

# built NAME VARIABLE...: a program in build/NAME; its objects stay there for the next time
built() {
    name=$1
    shift
    make B="build/$name" CUDA=0 MPI=0 WARNINGS=-w "$@" "build/$name/degas" >"$W/log" 2>&1 && return
    report 1 "built: $name" "$(tail -5 "$W/log")"
    return 1
}
built gcc-O0 OPT=-O0 && same "gcc -O0" 1 build/gcc-O0/degas
if [ -n "${ALL:-}" ]; then
    built gcc-O3 OPT=-O3 && same "gcc -O3" 1 build/gcc-O3/degas
else
    skip "the same bytes: gcc -O3" "it takes minutes to build; make processors does it"
fi
if command -v clang >/dev/null 2>&1; then
    built clang-O2 CC=clang OPT=-O2 && same "clang -O2" 1 build/clang-O2/degas
else
    skip "the same bytes: clang -O2" "clang is not installed"
fi

root=${AARCH64_ROOT:-}
if ! command -v aarch64-linux-gnu-gcc >/dev/null 2>&1 || ! command -v qemu-aarch64 >/dev/null 2>&1; then
    skip "the same bytes: aarch64" "aarch64-linux-gnu-gcc or qemu-aarch64 is not installed"
elif [ ! -e "$root/usr/lib/aarch64-linux-gnu/libglib-2.0.so" ]; then
    skip "the same bytes: aarch64" "no GLib for aarch64 in AARCH64_ROOT=$root"
else
    lib=$root/usr/lib/aarch64-linux-gnu
    built aarch64 CC=aarch64-linux-gnu-gcc OPT=-O2 \
        PACKAGES_CFLAGS="-I$root/usr/include -I$root/usr/include/glib-2.0 -I$lib/glib-2.0/include -I$root/usr/include/cjson" \
        PACKAGES_LIBS="-L$lib -L$root/lib/aarch64-linux-gnu -Wl,-rpath-link,$lib:$root/lib/aarch64-linux-gnu -lglib-2.0 -lcjson -lyaml -lz" &&
        same "aarch64" 2 qemu-aarch64 -L "${root:-/}" build/aarch64/degas
fi
finish
