/*
 * executor/run/verify.h - the same step on a single device, and how far a run's gradients are from
 * it.
 *
 * The reference runs the global batch one sequence at a time, unsliced, on one stage, so nothing of
 * what a plan does (slices, micro-batches, stages, replicas) is in it; the layer's code is, and is
 * itself tested against finite differences.
 *
 * Private to executor/ and its tests.
 */
#ifndef EXECUTOR_RUN_VERIFY_H
#define EXECUTOR_RUN_VERIFY_H

#include "executor/transport/comm.h"
#include "executor/run/data.h"
#include "executor/model/model.h"
#include "executor/run/shared.h"

G_BEGIN_DECLS

/* A whole model on one device with the gradients of one step. */
typedef struct {
    ExecBackend *backend; /* (owned) */
    ExecPool *pool;       /* (owned) */
    ExecComm comm;        /* alone */
    ExecModel *model;     /* (owned) */
    Plan *plan;           /* (owned) one stage */
    double loss;          /* mean over tokens */
} ExecReference;

void exec_reference_clear(ExecReference *reference);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(ExecReference, exec_reference_clear)

typedef struct {
    const ModelArch *arch; /* (borrowed) */
    int64_t global_batch, seq_len;
    const char *device;
    uint64_t seed;
    float init_deviation; /* 0: 0.02 */
} ExecReferenceOptions;

/* Initial weights in fp32, no gradients yet. */
bool exec_reference_init(ExecReference *reference, const ExecReferenceOptions *options,
                         GError **error);

/* Adds the gradients of step @step and sets the loss. */
bool exec_reference_step(ExecReference *reference, const ExecData *data, int64_t step,
                         GError **error);

/*
 * Relative L2 distance of one tensor: |actual - expected| / max(|expected|, floor), where the floor
 * is EXEC_VERIFY_FLOOR of the model's root mean square gradient on every element.  Tensors whose
 * true gradient is near zero by cancellation (softmax does not see a bias of the keys) hold only
 * the rounding of summands as large as other tensors' gradients: their own norm is no scale.
 */
#define EXEC_VERIFY_FLOOR 1e-3
double exec_relative_error(const float *actual, const float *expected, int64_t n, double rms);

/* Root mean square of all gradients of the reference. */
double exec_reference_rms(const ExecReference *reference);

/* Compares step 0 of a finished run, every rank and tensor; fills result's verification. */
bool exec_verify(const ExecShared *shared, ExecRunResult *result, GError **error);

G_END_DECLS

#endif /* EXECUTOR_RUN_VERIFY_H */
