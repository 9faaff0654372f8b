/*
 * tests/models/ops_case.h - models, shapes and sums for the tests of model_ops().
 */
#pragma once

#include <math.h>
#include <string.h>

#include "models/ops.h"
#include "tests/models/arch_case.h"

/* One micro-batch of one whole sequence on one device, fp16, unfused, no dropout. */
static inline ModelShape
plain_shape(int64_t batch, int64_t tokens)
{
    return (ModelShape){
        .batch = batch,
        .tokens = tokens,
        .tp = 1,
        .cp = 1,
        .ep = 1,
        .dtype = DTYPE_FP16,
        .expert_imbalance = 1.0,
    };
}

/* What of an op is added up. */
typedef enum {
    SAVED,
    SAVED_BUT_CORE, /* what selective recompute keeps */
    SAVED_KV,
    SAVED_FOR_WEIGHT,
    OUTPUT_GRADIENT,
    WEIGHT,
} What;

static inline int64_t
sum(const ModelArch *arch, ModelPart part, int64_t layer, const ModelShape *shape, What what)
{
    ModelOp ops[MODEL_MAX_OPS];
    size_t n = model_ops(arch, part, layer, shape, ops);
    int64_t total = 0;

    for (size_t i = 0; i < n; i++) {
        switch (what) {
        case SAVED:
            total += ops[i].saved_bytes;
            break;
        case SAVED_BUT_CORE:
            total += ops[i].core_attention ? 0 : ops[i].saved_bytes;
            break;
        case SAVED_KV:
            total += ops[i].saved_kv_bytes;
            break;
        case SAVED_FOR_WEIGHT:
            total += ops[i].saved_for_weight_bytes;
            break;
        case OUTPUT_GRADIENT:
            total += ops[i].output_gradient_bytes;
            break;
        case WEIGHT:
            total += ops[i].weight_bytes;
            break;
        }
    }
    return total;
}

/* (nullable) the op called so; ops after the list's end have no name. */
static const ModelOp *
find(const ModelOp *ops, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++) {
        if (g_strcmp0(ops[i].name, name) == 0)
            return &ops[i];
    }
    return NULL;
}

static const ModelOp *
find_in_layer(const ModelArch *arch, int64_t layer, const ModelShape *shape, const char *name,
              ModelOp ops[MODEL_MAX_OPS])
{
    const ModelOp *op;

    memset(ops, 0, MODEL_MAX_OPS * sizeof *ops);
    model_ops(arch, MODEL_PART_LAYER, layer, shape, ops);
    op = find(ops, MODEL_MAX_OPS, name);
    g_assert_nonnull(op);
    return op;
}
