#!/bin/sh
# One line on what this build can do and what is found at run time.
# usage: summary.sh PLUGIN...     the plugins that were built
have() { command -v "$1" >/dev/null 2>&1 && echo yes || echo no; }
blas=no
for d in /usr/lib/*/openblas-pthread /usr/lib/* /usr/lib64 /usr/local/lib; do
    [ -e "$d/libopenblas.so.0" ] && blas=yes && break
done
nccl=no
for d in "${CUDA_HOME:-/usr/local/cuda}/lib64" /usr/lib/* /usr/lib64 /usr/local/lib; do
    [ -e "$d/libnccl.so.2" ] && nccl=yes && break
done
built() { case " $plugins " in *" degas-$1.so "*) echo yes ;; *) echo no ;; esac; }
plugins="$*"
echo "degas: OpenBLAS $blas, gnuplot $(have gnuplot), CUDA plugin $(built cuda), NCCL $nccl, MPI plugin $(built mpi)"
