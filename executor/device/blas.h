/*
 * executor/device/blas.h - OpenBLAS, opened on demand with the right kernels for this processor.
 *
 * Not linked: planning and simulating start in milliseconds and need no BLAS; and OpenBLAS chooses
 * its kernels when it is loaded, from a list of processors that ends before today's (Debian's
 * 0.3.21 takes SSE3 kernels on Emerald Rapids: 10 to 34 GFLOP/s a core instead of 150 and more).
 * So the choice is made here, from cpuid features, before the library is opened; a user's
 * OPENBLAS_CORETYPE wins.
 *
 * One thread per call: ranks are the parallelism.
 *
 * Thread-safety: the first call changes the environment for a moment, so it belongs to a moment
 * when no other thread reads it (exec_run and exec_measure open a backend before they start
 * ranks); later calls are safe anywhere.
 */
#ifndef EXECUTOR_DEVICE_BLAS_H
#define EXECUTOR_DEVICE_BLAS_H

#include <glib.h>
#include <stdbool.h>

G_BEGIN_DECLS

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

/* Returns: (borrowed, never freed) NULL on EXEC_ERROR_MISSING: no library, or one without
 * cblas_sgemm. */
const ExecBlas *exec_blas_open(GError **error);

G_END_DECLS

#endif /* EXECUTOR_DEVICE_BLAS_H */
