/*
 * executor/model.h - the parameters of the stages that one rank holds: names, shapes, initial
 * values, and where they lie.
 *
 * All parameters of a rank lie in one flat buffer, gradients, master weights and the optimizer's
 * moments in others of the same layout, so that reductions and the optimizer are few calls: dense
 * ones first, then the experts', because those have other copies.  Names do not depend on the split
 * ("layer.3.mlp_up.weight"), and neither do initial values: element i of the whole parameter is a
 * function of seed, name and i (GPT-2's: normal, deviation 0.02, the projections that end in the
 * residual stream 0.02 / sqrt(2 n_layers); biases 0, norms 1 and 0).  What a rank holds of a
 * parameter is a shard: some rows, and one or two runs of columns.
 *
 * Weights are stored [input, output].  The gate's columns lie before the up projection's; experts
 * of a layer lie below each other as one matrix.  A tied head reads the embedding's table.  Where
 * the same parameter is on two pipeline ranks (tied head, both directions of DualPipe) the copies'
 * gradients are summed before every step, so that the copies stay equal bit by bit.
 *
 * In fp32 storage the weights are the master weights.
 */
#ifndef EXECUTOR_MODEL_H
#define EXECUTOR_MODEL_H

#include "executor/backend.h"
#include "executor/pool.h"
#include "models/arch.h"
#include "schedule/plan.h"

G_BEGIN_DECLS

/* What the layer needs of the architecture; counts are this rank's unless said. */
typedef struct {
    Dtype storage;
    int64_t hidden, seq_len, max_seq_len; /* whole */
    int64_t tp, cp;
    bool sequence_parallel; /* rows outside of products are divided by tp */
    bool rms_norm, rotary, gated;
    int64_t n_heads, n_kv_heads, head_dim;
    int64_t q_width, kv_width;    /* heads times head_dim */
    int64_t ffn_hidden, up_width; /* up_width: 2 ffn_hidden if gated */
    int64_t first_token, vocab;   /* rows of the tables here */
    /* experts; n_experts 0: none */
    int64_t n_experts, top_k; /* whole */
    int64_t first_expert, n_local_experts;
    int64_t expert_hidden, shared_hidden; /* of one; of all shared ones together */
} ExecWidths;

/* Which rank's share: indices in the groups of tp and ep. */
typedef struct {
    const ModelArch *arch; /* (borrowed) */
    const Plan *plan;      /* (borrowed) */
    int32_t pipeline_rank, tp_index, ep_index;
    uint64_t seed;
    float init_deviation; /* of normal initial values; 0: 0.02 */
    bool optimizer;       /* moments, and master weights unless the storage is fp32 */
} ExecModelOptions;

typedef enum {
    EXEC_INIT_ZERO,
    EXEC_INIT_ONE,
    EXEC_INIT_NORMAL,
} ExecInit;

/* Whose gradients make the whole of this rank's. */
typedef enum {
    EXEC_SHARE_OWN,    /* of the copies over dp and cp alone */
    EXEC_SHARE_TP,     /* and of all tp ranks: each saw a part of the rows */
    EXEC_SHARE_KV,     /* and of the tp ranks with the same K/V head */
    EXEC_SHARE_EXPERT, /* of the experts' copies */
} ExecShare;

/* Rows [row_begin, row_begin + n_rows) of the whole matrix, of them some runs of columns. */
typedef struct {
    int64_t rows, cols; /* whole */
    int64_t row_begin, n_rows;
    int32_t n_runs;
    struct {
        int64_t begin, n;
    } runs[2];
} ExecShard;

/* Elements of the shard, and of one of its rows. */
int64_t exec_shard_n(const ExecShard *shard);
int64_t exec_shard_cols(const ExecShard *shard);

/* Where element @i of the shard is in the whole; @n  (out) how many from there on are together. */
int64_t exec_shard_at(const ExecShard *shard, int64_t i, int64_t *n);

typedef struct {
    char name[64];
    ExecShard shard;
    int64_t n;      /* elements here */
    int64_t offset; /* into the rank's flat buffers */
    ExecInit init;
    float deviation;
    bool decays; /* weight decay applies: matrices, not biases and norms */
    ExecShare share;
} ExecParameter;

/* One parameter at work; both NULL where the architecture has none. */
typedef struct {
    void *weight;    /* storage */
    float *gradient; /* fp32 */
} ExecTensor;

typedef struct {
    ExecTensor norm1_gain, norm1_shift;        /* [hidden] */
    ExecTensor q_weight, q_bias;               /* [hidden, q_width] */
    ExecTensor kv_weight, kv_bias;             /* [hidden, 2 kv_width]: k, then v columns */
    ExecTensor proj_weight, proj_bias;         /* [q_width, hidden] */
    ExecTensor norm2_gain, norm2_shift;        /* [hidden] */
    ExecTensor mlp_up_weight, mlp_up_bias;     /* [hidden, up_width]; shared experts' */
    ExecTensor mlp_down_weight, mlp_down_bias; /* [ffn_hidden, hidden] */
    ExecTensor router_weight;                  /* [hidden, n_experts] */
    ExecTensor experts_up_weight;              /* [n_local_experts * hidden, 2 expert_hidden] */
    ExecTensor experts_down_weight;            /* [n_local_experts * expert_hidden, hidden] */
} ExecLayerTensors;

typedef struct {
    ExecTensor token_table;           /* [vocab, hidden]; unless embedding or tied head NULL */
    ExecTensor position_table;        /* [max_seq_len, hidden]; with the embedding of gpt */
    ExecTensor norm_gain, norm_shift; /* with the head */
    ExecTensor head_table;            /* [vocab, hidden]; token_table when tied */
} ExecEndTensors;

/* One stage on this rank. */
typedef struct {
    int32_t stage, chain; /* position in its chain; bidir has two */
    int32_t chunk;
    int64_t first_layer, n_layers;
    int64_t n_dense; /* leading layers without experts */
    bool embedding, head;
    PlanRecompute recompute;
    ExecEndTensors ends;
    ExecLayerTensors *layers; /* (owned) n_layers */
} ExecStage;

typedef struct {
    ExecWidths widths;
    GArray *parameters; /* of ExecParameter, by offset */
    GArray *stages;     /* of ExecStage, by chunk */
    int64_t n;          /* elements of each flat buffer */
    int64_t n_dense;    /* of them before the experts' */
    /* Blocks of the pool: weights in storage, the others fp32.  Master weights are absent in fp32
     * storage, they and the moments without optimizer. */
    ExecBlock weights, gradients, master, moments1, moments2;
    ExecBackend *backend; /* (borrowed) */
    ExecPool *pool;       /* (borrowed) */
} ExecModel;

/* NULL on EXEC_ERROR_MEMORY. */
ExecModel *exec_model_new(const ExecModelOptions *options, ExecBackend *backend, ExecPool *pool,
                          GError **error);
void exec_model_free(ExecModel *model);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecModel, exec_model_free)

static inline float *
exec_model_gradients(const ExecModel *model)
{
    return model->gradients.data;
}

/* (nullable) */
const ExecParameter *exec_model_find(const ExecModel *model, const char *name);

/* A parameter that another pipeline rank holds as well. */
typedef struct {
    guint parameter;
    int32_t other; /* pipeline rank */
} ExecSharedParameter;

/* Returns: (owned) GArray of ExecSharedParameter in an order that both holders have. */
GArray *exec_model_shared_parameters(const ExecModelOptions *options);

/* GPT-3's [Brown et al. 2005.14165 appendix B]. */
#define EXEC_WEIGHT_DECAY 0.1f

/* One AdamW step of all parameters, and zero gradients for the next.  @constants' decay is
 * replaced: @weight_decay for those that decay, 0 for the rest. */
void exec_model_adamw(ExecModel *model, const ExecAdamw *constants, float weight_decay);

/* Elements of each flat buffer of @options' rank; -1 on overflow. */
int64_t exec_model_elements(const ExecModelOptions *options);

ExecWidths exec_widths(const ExecModelOptions *options, Dtype storage);

/* --- model_layout.c, for model.c --- */

/* Parameter @parameter is tensor @member (an offset) of layer @layer of the rank's stage @stage;
 * layer -1: of its ends. */
typedef struct {
    guint parameter, stage;
    int64_t layer;
    size_t member;
} ExecBinding;

typedef struct {
    GArray *parameters; /* of ExecParameter */
    GArray *bindings;   /* of ExecBinding */
    int64_t n, n_dense;
    bool overflow;
} ExecLayout;

/* The order of stages is that of the plan's. */
ExecLayout exec_layout_new(const ExecModelOptions *options);
void exec_layout_clear(ExecLayout *layout);

G_END_DECLS

#endif /* EXECUTOR_MODEL_H */
