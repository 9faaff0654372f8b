#!/bin/sh
# make bundle: a folder that runs on any Linux with glibc >= 2.36, for machines without our libraries
# or a network.  It holds the program, its plugins, GLib, cJSON and OpenBLAS, and gpu-check with the
# test of the CUDA backend; CUDA, NCCL and the driver are the target's.  gnuplot is not in it (60 MiB of libraries): plots are made as HTML or text
# there, or from the data elsewhere.
# usage: bundle.sh BUILD_FOLDER TO
set -eu
build=$1
to=$2
limit_mib=60

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
# For gpu-check: every op of the CUDA backend against the reference.
if [ -e "$build/tests/executor/test_cuda" ]; then
    cp "$build/tests/executor/test_cuda" "$to/lib/test_cuda"
else
    echo "bundle: tests/executor/test_cuda is not built; gpu-check will not test ops" >&2
fi
cp scripts/gpu_check.sh "$to/gpu-check"
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

# The loader takes the bundle's libraries first, and CUDA's from where Python or the toolkit put them.
cat >"$to/degas" <<'END'
#!/bin/sh
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
paths=$here/lib
for folder in "${CUDA_HOME:-/usr/local/cuda}/lib64" /usr/local/cuda-*/lib64 \
    "$HOME"/.local/lib/python3*/site-packages/nvidia/*/lib \
    /usr/lib/python3*/site-packages/nvidia/*/lib /usr/local/lib/python3*/*-packages/nvidia/*/lib \
    /opt/*/lib/python3*/site-packages/nvidia/*/lib ${VIRTUAL_ENV:+"$VIRTUAL_ENV"/lib/python3*/site-packages/nvidia/*/lib}; do
    if [ -d "$folder" ]; then
        paths=$paths:$folder
    fi
done
LD_LIBRARY_PATH=$paths${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
exec "$here/lib/$(basename "$(readlink -f "$0")")" "$@"
END
chmod +x "$to/degas"
cp "$to/degas" "$to/test_cuda"

size_mib=$(du -sm "$to" | cut -f1)
echo "bundle: $to, $size_mib MiB"
if [ "$size_mib" -gt "$limit_mib" ]; then
    echo "bundle: larger than $limit_mib MiB" >&2
    exit 1
fi
