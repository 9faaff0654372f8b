/*
 * profiles/import/operators.h - what one call of an operator in a PyTorch trace measures.
 *
 * Internal to this room.  Knows operators: which arguments are tensors, in which order their
 * dimensions stand, what the call computes and moves.  Which kernels a call launched is known to
 * kineto.c.
 */
#pragma once

#include "profiles/import/readers.h"

/* What became of the kernels of a call. */
typedef enum {
    IMPORT_SKIP_OPERATOR,
    IMPORT_SKIP_SHAPE,
    IMPORT_SKIP_UNSAID,
    IMPORT_SKIP_FORMAT,
    IMPORT_SKIP_STRIDES,
    IMPORT_SKIP_SMALL,
    IMPORT_SKIP_ZERO,
    IMPORT_SKIP_PEAK,
    IMPORT_SKIP_COLLECTIVE,
    IMPORT_SKIP_N,
    IMPORT_TAKEN = IMPORT_SKIP_N,
} ImportOutcome;

/* An operator that is taken, opaque. */
typedef struct ImportOperator ImportOperator;

/* Returns: (static, nullable) the operator of a "cpu_op" event's @name. */
const ImportOperator *import_operator(const char *name);

/* What "Input type" would say of the numbers of a kernel called @name ("sm90_xmma_gemm_bf16bf16_...",
 * "...AddFunctor<c10::Half>..."): (static) that of a 16-bit format, or NULL. */
const char *import_kernel_type(const char *name);

/*
 * What a call of @op that took @seconds on @device says.
 * @args  (nullable) the event's: "Input Dims", "Input type" and, where there, "Input Strides" and
 *        "Concrete Inputs".
 * @type  (nullable) of all tensors where @args have no "Input type"; of operators whose tensors have
 *        one format.
 * Returns: IMPORT_TAKEN with @sample, else why not: never IMPORT_SKIP_OPERATOR or _COLLECTIVE.
 */
ImportOutcome import_call_sample(JsonDoc *doc, const JsonValue *args, const ImportOperator *op,
                                 const char *type, const ModelDevice *device, double seconds,
                                 ImportSample *sample);
