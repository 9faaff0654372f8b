/*
 * executor/device/blas.h - OpenBLAS, opened on demand with the right kernels for this processor.
 *
 * It is not linked, for two reasons.  Planning and simulating start in milliseconds and need no
 * BLAS.  And OpenBLAS chooses its kernels when it is loaded, from a list of processors that ends
 * before today's: Debian's 0.3.21 takes SSE3 kernels on Emerald Rapids, which makes 10 to 34
 * GFLOP/s of a core instead of 150 and more.  So the choice is made here, from features of the
 * processor, before the library is opened.  OPENBLAS_CORETYPE, if the user has set it, is left
 * alone.
 *
 * Every call computes on one thread: ranks are the parallelism.
 *
 * Threads: the first call changes the environment for a moment, so no other thread may read it then
 * (exec_run() and exec_measure() open a backend before they start ranks).  Later calls are safe
 * from any thread.
 */
#pragma once

#include <glib.h>

/* cblas_sgemm with 32-bit integers, as Debian builds it. */
typedef void (*ExecSgemm)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                          const float *a, int lda, const float *b, int ldb, float beta, float *c,
                          int ldc);

enum {
    EXEC_BLAS_ROW_MAJOR = 101,
    EXEC_BLAS_NO_TRANS = 111,
    EXEC_BLAS_TRANS = 112,
};

typedef struct {
    ExecSgemm sgemm;
    char *description; /* "OpenBLAS 0.3.21 Haswell" */
} ExecBlas;

/* Returns: (borrowed, for ever) the library; NULL on EXEC_ERROR_MISSING, when there is none or it
 * has no cblas_sgemm. */
const ExecBlas *exec_blas_open(GError **error);
