/*
 * schedule/optimizer.h - the optimizers, one row each: what they keep of a parameter, and for which
 * parameters they are made.
 *
 * A plan names its optimizer in its conventions.  Every optimizer steps some parameters itself (its
 * own) and leaves the others to AdamW with moments in fp32.  What follows from the name is a row of
 * the table in optimizer.c: memory and time read it, nobody compares names.
 *
 * Sources: AdamW [Loshchilov and Hutter 1711.05101]; 8-bit states [Dettmers et al. 2110.02861], in
 * blocks of 256 elements, as bitsandbytes and torchao store them; Muon [Jordan et al. 2024, Liu et al.
 * 2502.16982].
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    PLAN_OPTIMIZER_ADAMW,
    PLAN_OPTIMIZER_ADAMW8BIT,
    PLAN_OPTIMIZER_MUON,
    PLAN_OPTIMIZER_N,
} PlanOptimizer;

/* Which parameters an optimizer steps itself. */
typedef enum {
    PLAN_OPTIMIZER_OF_ALL,
    PLAN_OPTIMIZER_OF_ALL_BUT_EMBEDDING, /* ... and learned positions */
    PLAN_OPTIMIZER_OF_MATRICES,          /* operands of products in layers */
} PlanOptimizerOwn;

typedef struct {
    const char *name; /* of plan files and of --optimizer */
    PlanOptimizerOwn own;
    int64_t moment_bytes;                /* of all moments of one of its own parameters */
    int64_t block_elements, block_bytes; /* constants of each block of a parameter; 0: none */
    bool orthogonalises;                 /* Newton-Schulz iterations on whole matrices */
    bool executed; /* degas's own executor has it; other optimizers it refuses by name */
} PlanOptimizerFacts;

/* What tp ranks do with a matrix that they split, in Megatron's words (--muon-tp-mode). */
typedef enum {
    PLAN_MUON_DUPLICATED,  /* all gather it, and each orthogonalises all of it */
    PLAN_MUON_DISTRIBUTED, /* each works on its part; X X^T is summed over them in each iteration */
    PLAN_MUON_BLOCKWISE,   /* each orthogonalises its part alone: another update */
    PLAN_MUON_LAYER_SHARDED, /* one of them gathers it, orthogonalises it, and gives parts back */
    PLAN_MUON_N,
} PlanMuonTp;

/* Bytes of AdamW's two moments in fp32. */
#define PLAN_ADAMW_MOMENT_BYTES 8

/* Newton-Schulz iterations of one step, and the coefficients of each: X <- a X + (b A + c A A) X
 * with A = X X^T  [Jordan et al. 2024]. */
#define PLAN_MUON_ITERATIONS 5
#define PLAN_MUON_A 3.4445
#define PLAN_MUON_B (-4.7750)
#define PLAN_MUON_C 2.0315

/* The words of plan files and flags, in the order of the enum; NULL at the end. */
extern const char *const plan_optimizer_names[PLAN_OPTIMIZER_N + 1];
extern const char *const plan_muon_tp_names[PLAN_MUON_N + 1]; /* "duplicated", "distributed", ... */

/* The row of @optimizer, which must be below PLAN_OPTIMIZER_N.  (static) */
const PlanOptimizerFacts *plan_optimizer(PlanOptimizer optimizer);
