#!/bin/sh
# make bundle: a folder that runs on any Linux with glibc >= 2.36, for machines without our libraries or a network.  It
# holds the program, its plugins, GLib, cJSON and OpenBLAS, and gpu-check with the tests of the CUDA backend; cuBLASLt, NCCL
# and the driver are the target's.  gnuplot is not in it (60 MiB of libraries): plots are made as HTML or text there, or
# from the data elsewhere.
# usage: bundle.sh BUILD_FOLDER TO
set -eu
build=$1
to=$2
limit_mib=51 # with the tree, 9 MiB, it is sent to machines that take 60

rm -rf "$to"
mkdir -p "$to/lib"

# What the C library brings is the target's own.
is_system() {
    case "$1" in
    ld-linux*|libc.so*|libm.so*|libdl.so*|libpthread.so*|librt.so*|libresolv.so*|linux-vdso*) return 0 ;;
    esac
    return 1
}

# libraries FILE: those it needs, and those they need, into lib/
libraries() {
    ldd "$1" | awk '$2 == "=>" && $3 ~ "^/" { print $3 }' | while read -r path; do
        name=$(basename "$path")
        if ! is_system "$name" && [ ! -e "$to/lib/$name" ]; then
            cp -L "$path" "$to/lib/$name"
        fi
    done
}

cp "$build/degas" "$to/lib/degas"
libraries "$build/degas"
# For gpu-check: every op of the CUDA backend against the reference, and probes of what Hopper's kernels assume.
programs=degas
for program in test_cuda test_cuda_probe; do
    if [ -e "$build/tests/executor/$program" ]; then
        cp "$build/tests/executor/$program" "$to/lib/"
        libraries "$build/tests/executor/$program"
        programs="$programs $program"
    else
        echo "bundle: tests/executor/$program is not built; gpu-check will do without" >&2
    fi
done
cp scripts/gpu_check.sh "$to/gpu-check"
cp scripts/gpu_ceilings.py "$to/"
blas=$(ldconfig -p 2>/dev/null | awk '/libopenblas\.so\.0 / { print $NF; exit }')
if [ -n "$blas" ]; then
    cp -L "$blas" "$to/lib/libopenblas.so.0"
    libraries "$blas"
else
    echo "bundle: OpenBLAS is not installed here; --device cpu will be missing" >&2
fi
for plugin in cuda mpi; do
    if [ -e "$build/degas-$plugin.so" ]; then
        cp "$build/degas-$plugin.so" "$to/lib/"
    fi
done
strip --strip-unneeded "$to"/lib/* 2>/dev/null || true

# Sourced with $here, the bundle: the loader takes its libraries first, and CUDA's and NCCL's from where the toolkit or
# a Python environment put them; the environment of python3 is asked for if the usual folders do not have them.
cat >"$to/environment" <<'END'
# shellcheck shell=sh
paths=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
look_in() { for folder in "$@"; do [ ! -d "$folder" ] || paths=$paths:$folder; done; }
has() { (IFS=: && set -f && for folder in $paths; do [ ! -e "$folder/$1" ] || exit 0; done && exit 1); }
look_in "${CUDA_HOME:-/usr/local/cuda}/lib64" /usr/local/cuda-*/lib64
for python in ${VIRTUAL_ENV:+"$VIRTUAL_ENV"/lib} "$HOME"/.local/lib /usr/lib /usr/local/lib /opt/*/lib /opt/*/.venv/lib; do
    look_in "$python"/python3*/*-packages/nvidia/*/lib
done
if ! has libcublasLt.so.CUBLASLT || ! has libnccl.so.2; then
    for python in $(python3 -c 'import nvidia; print(*nvidia.__path__)' 2>/dev/null); do
        look_in "$python"/*/lib
    done
fi
LD_LIBRARY_PATH=$paths
export LD_LIBRARY_PATH
END
[ ! -e "$build/degas-cuda.so" ] || sed -i "s/CUBLASLT/$(ldd "$build/degas-cuda.so" | sed -n 's/.*libcublasLt\.so\.\([0-9]*\).*/\1/p')/" \
    "$to/environment"
for program in $programs; do
    cat >"$to/$program" <<'END'
#!/bin/sh
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
. "$here/environment"
exec "$here/lib/$(basename "$(readlink -f "$0")")" "$@"
END
    chmod +x "$to/$program"
done

size_mib=$(du -sm "$to" | cut -f1)
echo "bundle: $to, $size_mib MiB"
if [ "$size_mib" -gt "$limit_mib" ]; then
    echo "bundle: larger than $limit_mib MiB" >&2
    exit 1
fi
