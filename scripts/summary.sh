#!/bin/sh
# One line on what this build can do and what is found at run time.
have() { command -v "$1" >/dev/null 2>&1 && echo yes || echo no; }
blas=no
for d in /usr/lib/*/openblas-pthread /usr/lib/* /usr/lib64 /usr/local/lib; do
    [ -e "$d/libopenblas.so.0" ] && blas=yes && break
done
echo "degas: OpenBLAS $blas, gnuplot $(have gnuplot), MPI and CUDA plugins not built"
