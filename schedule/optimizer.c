#include "schedule/optimizer.h"

#include <glib.h>

const char *const plan_optimizer_names[PLAN_OPTIMIZER_N + 1] = {"adamw", "adamw8bit", "muon", NULL};

const char *const plan_muon_tp_names[PLAN_MUON_N + 1] = {"duplicated", "distributed", "blockwise",
                                                         "layer_sharded", NULL};

static const PlanOptimizerFacts optimizers[PLAN_OPTIMIZER_N] = {
    [PLAN_OPTIMIZER_ADAMW] =
        {
            .name = "adamw",
            .moment_bytes = PLAN_ADAMW_MOMENT_BYTES,
            .executed = true,
        },
    /* Two moments of a byte; each block has a largest value for each of them, in fp32.  Embeddings
     * keep moments in fp32, as 2110.02861 (section 2.3) found necessary and Trainer arranges. */
    [PLAN_OPTIMIZER_ADAMW8BIT] =
        {
            .name = "adamw8bit",
            .own = PLAN_OPTIMIZER_OF_ALL_BUT_EMBEDDING,
            .moment_bytes = 2,
            .block_elements = 256,
            .block_bytes = 8,
        },
    /* One moment in fp32. */
    [PLAN_OPTIMIZER_MUON] =
        {
            .name = "muon",
            .own = PLAN_OPTIMIZER_OF_MATRICES,
            .moment_bytes = 4,
            .orthogonalises = true,
            .executed = true,
        },
};

const PlanOptimizerFacts *
plan_optimizer(PlanOptimizer optimizer)
{
    g_return_val_if_fail(optimizer < PLAN_OPTIMIZER_N, &optimizers[PLAN_OPTIMIZER_ADAMW]);
    return &optimizers[optimizer];
}
