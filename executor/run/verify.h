/*
 * executor/run/verify.h - computes a step on a single device, and how far a run's gradients are
 * from that.
 *
 * The reference runs the global batch one sequence at a time, not sliced, on one stage, so that
 * nothing of what a plan does (slices, micro-batches, stages, replicas) is in it.  The layer's code
 * is, and is itself tested against finite differences.
 *
 * Private to executor/run/ and tests.
 */
#pragma once

#include "executor/transport/comm.h"
#include "executor/run/data.h"
#include "executor/model/model.h"
#include "executor/run/shared.h"

/* A whole model on one device, with the gradients of one step. */
typedef struct {
    ExecBackend *backend; /* (owned) */
    ExecPool *pool;       /* (owned) */
    ExecComm comm;        /* of one rank */
    ExecModel *model;     /* (owned) */
    Plan *plan;           /* (owned) of one stage */
    double loss;          /* mean over the tokens */
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

/* Makes the model with its initial weights in fp32; there are no gradients yet. */
bool exec_reference_init(ExecReference *reference, const ExecReferenceOptions *options,
                         GError **error);

/* Computes step @step: adds its gradients and sets the loss. */
bool exec_reference_step(ExecReference *reference, const ExecData *data, int64_t step,
                         GError **error);

/*
 * Returns: the relative L2 distance of one tensor, |actual - expected| / max(|expected|, floor).
 * The floor is the norm of a tensor of which every element is EXEC_VERIFY_FLOOR times @rms, the
 * root mean square of the model's gradients.  It is for tensors whose true gradient is zero by
 * cancellation (softmax does not see a bias of the keys): they hold the rounding errors of summands
 * as large as other tensors' gradients, so that their own norm is no scale.
 */
#define EXEC_VERIFY_FLOOR 1e-3
double exec_relative_error(const float *actual, const float *expected, int64_t n, double rms);

/* Compares every tensor of every rank after step 0 of a run that has ended with the reference, and
 * sets the verification of @result. */
bool exec_verify(const ExecShared *shared, ExecRunResult *result, GError **error);
