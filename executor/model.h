/*
 * executor/model.h - the parameters of the stages that one rank holds: names, shapes, initial
 * values, and where they lie.
 *
 * All parameters of a rank lie in one flat buffer, gradients and the optimizer's moments in three
 * more of the same layout, so that reductions and the optimizer are one call each.  Names do not
 * depend on the split ("layer.3.mlp_up.weight"), and neither do initial values: element i of a
 * parameter is a function of seed, name and i (GPT-2's: normal, deviation 0.02, the two projections
 * that end in the residual stream 0.02 / sqrt(2 n_layers); biases 0, norms 1 and 0).
 *
 * Weights are stored [input, output].  A tied head reads the embedding's table; where both lie on
 * different ranks the head's rank has a copy of the same name, and the copies' gradients are summed
 * before every step, so that the copies stay equal bit by bit.
 */
#ifndef EXECUTOR_MODEL_H
#define EXECUTOR_MODEL_H

#include "executor/backend.h"
#include "executor/pool.h"
#include "models/arch.h"
#include "schedule/plan.h"

G_BEGIN_DECLS

/* What the layer needs of the architecture. */
typedef struct {
    int64_t hidden, n_heads, n_kv_heads, head_dim, ffn_hidden, vocab, seq_len;
    int64_t q_width, kv_width; /* heads times head_dim */
    int64_t qkv_width;         /* q_width + 2 kv_width */
} ExecWidths;

ExecWidths exec_widths(const ModelArch *arch, int64_t seq_len);

typedef enum {
    EXEC_INIT_ZERO,
    EXEC_INIT_ONE,
    EXEC_INIT_NORMAL,
} ExecInit;

typedef struct {
    char name[64];
    int64_t n;      /* elements */
    int64_t offset; /* into the rank's flat buffers */
    ExecInit init;
    float deviation;
    bool decays;    /* weight decay applies: matrices, not biases and norms */
    bool tied_copy; /* the embedding's table on the head's rank */
} ExecParameter;

/* One tensor each of a layer; of weights or of gradients. */
typedef struct {
    float *norm1_gain, *norm1_shift;        /* [hidden] */
    float *qkv_weight, *qkv_bias;           /* [hidden, qkv_width]: q, k, v columns */
    float *proj_weight, *proj_bias;         /* [q_width, hidden] */
    float *norm2_gain, *norm2_shift;        /* [hidden] */
    float *mlp_up_weight, *mlp_up_bias;     /* [hidden, ffn_hidden] */
    float *mlp_down_weight, *mlp_down_bias; /* [ffn_hidden, hidden] */
} ExecLayerTensors;

typedef struct {
    float *token_table;            /* [vocab, hidden]; NULL unless embedding or tied head */
    float *position_table;         /* [max_seq_len, hidden]; NULL unless embedding */
    float *norm_gain, *norm_shift; /* NULL unless head */
    float *head_table;             /* [vocab, hidden]; token_table when tied */
    ExecLayerTensors *layers;      /* (owned) n_layers */
} ExecStageTensors;

/* One stage on this rank. */
typedef struct {
    int32_t stage, chunk;
    int64_t first_layer, n_layers;
    bool embedding, head;
    ExecStageTensors weights, gradients;
} ExecStage;

typedef struct {
    ExecWidths widths;
    GArray *parameters; /* of ExecParameter, by offset */
    GArray *stages;     /* of ExecStage, by chunk */
    int64_t n;          /* floats in each flat buffer */
    /* Blocks of the pool: weights, gradients, first and second moments (absent without optimizer).
     */
    ExecBlock weights, gradients, moments1, moments2;
    ExecPool *pool; /* (borrowed) */
} ExecModel;

/*
 * The stages of pipeline rank @rank of @plan, with initial values from @seed and zero gradients.
 * NULL on EXEC_ERROR_MEMORY.
 */
ExecModel *exec_model_new(const ModelArch *arch, const Plan *plan, int32_t rank, uint64_t seed,
                          bool optimizer, ExecBackend *backend, ExecPool *pool, GError **error);
void exec_model_free(ExecModel *model);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecModel, exec_model_free)

/* (nullable) the embedding's table if this rank shares it with another one by a tied head. */
const ExecParameter *exec_model_shared_table(const ExecModel *model, const ModelArch *arch,
                                             const Plan *plan, int32_t rank);

/* GPT-3's [Brown et al. 2005.14165 appendix B]. */
#define EXEC_WEIGHT_DECAY 0.1f

/* One AdamW step of all parameters, and zero gradients for the next.  @constants' decay is
 * replaced:
 * @weight_decay for those that decay, 0 for the rest. */
void exec_model_adamw(ExecModel *model, ExecBackend *backend, const ExecAdamw *constants,
                      float weight_decay);

/* Bytes of parameters of @rank: what exec_model_new() will take four times (twice without
 * optimizer); -1 on overflow. */
int64_t exec_model_weight_bytes(const ModelArch *arch, const Plan *plan, int32_t rank);

G_END_DECLS

#endif /* EXECUTOR_MODEL_H */
