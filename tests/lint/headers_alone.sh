#!/bin/sh
# Compiles every header alone; prints those that do not, and why; silent and 0 when all do.
# One that a .c of its name includes before all others was compiled alone with it, and is not compiled again.
# A header of a plugin, whose toolkit is not installed here, is left out.
# usage: headers_alone.sh [ROOT]
set -eu
cd "${1:-$(dirname "$0")/../..}"
flags="-std=c17 -D_GNU_SOURCE -Wall -Wextra -Wpedantic -Wno-unused-parameter -I. -x c -fsyntax-only"
flags="$flags $(pkg-config --cflags glib-2.0 libcjson yaml-0.1)"
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
COMPILE="${CC:-gcc} $flags -isystem ${CUDA_HOME:-${nvcc%/bin/nvcc}}/include -Werror -"
export COMPILE
# Some at a time on each core; the messages of one header are written at once.
# shellcheck disable=SC2016
find base models schedule profiles planner simulator executor cli tests -name '*.h' 2>/dev/null | sort |
    xargs -r -n 16 -P "$(nproc 2>/dev/null || echo 2)" sh -c '
        failed=0
        for header do
            source=${header%.h}.c
            [ ! -f "$source" ] || [ "$(grep -m1 "^#include" "$source")" != "#include \"$header\"" ] || continue
            messages=$(printf "#include \"%s\"\n" "$header" | $COMPILE 2>&1) && continue
            case "$messages" in
            *"fatal error: cu"*": No such file"* | *"fatal error: nccl.h: No such file"* | \
                *"fatal error: mpi.h: No such file"*) continue ;;
            esac
            printf "%s: does not compile alone\n%s\n" "$header" "$messages"
            failed=1
        done
        exit $failed' sh || exit 1
