/*
 * executor/model/model.h - the parameters of the stages that one rank holds: names, shapes, initial
 * values, and where they lie.
 *
 * All parameters of a rank lie in one flat layout; weights, gradients, master weights and the
 * optimizer's moments are blocks of that layout, so that reductions and the optimizer are few
 * calls.  It has three regions: norms, the other dense parameters, and the experts', which have
 * other copies.  A region is cut into units, of which the parameters are reduced, gathered and
 * freed together: a layer's norms, the rest of a layer, a table, a layer's experts.
 *
 * ZeRO [Rajbhandari et al. 1910.02054]: of every unit, copy i of n holds the i-th of n equal parts
 * of what is sharded - the optimizer's state, from stage 2 on gradients too, with stage 3 weights
 * too - and no more; those blocks hold the parts, in the layout's order.  Whole gradients and
 * weights of a unit then are there inside an op only (units.h).  Norms, whose gradients come in
 * other ops than those of the products, keep whole weights and gradients.
 *
 * Offloaded parameters: weights of all units but norms are in host memory or a file, as much of
 * them as this copy has (offload.h), and on the device inside an op only.
 *
 * Names do not depend on the split
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
#ifndef EXECUTOR_MODEL_MODEL_H
#define EXECUTOR_MODEL_MODEL_H

#include "executor/device/backend.h"
#include "executor/model/offload.h"
#include "executor/device/pool.h"
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
    int64_t ffn_hidden, up_width; /* of dense layers, if any; up_width: 2 ffn_hidden if gated */
    int64_t first_token, vocab;   /* rows of the tables here */
    /* experts; n_experts 0: none */
    int64_t n_experts, top_k; /* whole */
    int64_t first_expert, n_local_experts;
    int64_t expert_hidden, shared_hidden; /* of one; of all shared ones together */
    bool balance_experts;                 /* rows go to them in turn */
} ExecWidths;

/* Which rank's share: indices in the groups of tp and ep. */
typedef struct {
    const ModelArch *arch; /* (borrowed) */
    const Plan *plan;      /* (borrowed) */
    int32_t pipeline_rank, tp_index, ep_index;
    int32_t dense_index, expert_index; /* among the copies of dense and of experts' parameters */
    uint64_t seed;
    float init_deviation;              /* of normal initial values; 0: 0.02 */
    bool balance_experts;              /* ExecRunOptions */
    bool optimizer;                    /* moments, and master weights unless the storage is fp32 */
    const ExecOffloadOptions *offload; /* (nullable) where these are instead of on the device, and
                                          weights where the plan says so */
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
    int32_t unit;
} ExecParameter;

typedef enum {
    EXEC_REGION_NORMS,
    EXEC_REGION_DENSE,
    EXEC_REGION_EXPERTS,
    EXEC_REGION_N
} ExecRegionKind;

/* What there is of every parameter. */
typedef enum {
    EXEC_CONTENT_WEIGHTS,
    EXEC_CONTENT_GRADIENTS,
    EXEC_CONTENT_OPTIMIZER, /* moments, and master weights beside narrower ones */
    EXEC_CONTENT_N
} ExecContent;

typedef struct {
    int64_t begin, n;          /* elements of the layout */
    int32_t n_replicas, index; /* ranks with the same parameters, and which of them this one is */
    /* Of each content: whether this rank has a part of every unit only, and where the region begins
     * in its blocks. */
    bool sharded[EXEC_CONTENT_N];
    int64_t at[EXEC_CONTENT_N];
    bool weights_off; /* the device: what this rank has of them is in model->offload */
} ExecRegion;

/* Where something is sharded, n is a multiple of 32 n_replicas. */
typedef struct {
    int64_t begin, n; /* elements of the layout */
    ExecRegionKind region;
    guint first_binding, n_bindings; /* of the model's, which are sorted by parameter */
} ExecUnit;

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
    int32_t dense_unit, experts_unit;          /* -1: none */
} ExecLayerTensors;

typedef struct {
    ExecTensor token_table;           /* [vocab, hidden]; unless embedding or tied head NULL */
    ExecTensor position_table;        /* [max_seq_len, hidden]; with the embedding of gpt */
    ExecTensor norm_gain, norm_shift; /* with the head */
    ExecTensor head_table;            /* [vocab, hidden]; token_table when tied */
    int32_t token_unit, position_unit, head_unit; /* -1: none */
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
    GArray *bindings;   /* of ExecBinding, by parameter */
    GArray *units;      /* of ExecUnit, by offset */
    ExecRegion regions[EXEC_REGION_N];
    int64_t n;       /* elements of the layout */
    int64_t n_dense; /* of them before the experts' */
    /* Blocks of the pool: weights in storage, the others fp32.  Master weights are absent in fp32
     * storage, they and the moments without optimizer. */
    ExecBlock weights, gradients, master, moments1, moments2;
    ExecOffload *offload; /* (owned, nullable) in place of the last three, and weights_off */
    ExecBackend *backend; /* (borrowed) */
    ExecPool *pool;       /* (borrowed) */
} ExecModel;

/* NULL on EXEC_ERROR_MEMORY. */
ExecModel *exec_model_new(const ExecModelOptions *options, ExecBackend *backend, ExecPool *pool,
                          GError **error);
void exec_model_free(ExecModel *model);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecModel, exec_model_free)

/* Where nothing is sharded: gradients lie as in the layout. */
static inline float *
exec_model_gradients(const ExecModel *model)
{
    return model->gradients.data;
}

/* The part of unit @unit that this rank's optimizer steps: [begin, begin + returned) of the layout.
 */
int64_t exec_model_own_part(const ExecModel *model, const ExecUnit *unit, int64_t *begin);

/* Those of parameter @p: elements [begin, begin + returned) of its shard; may be none. */
int64_t exec_model_own_elements(const ExecModel *model, const ExecParameter *p, int64_t *begin);

/* Where element @i of the layout, of unit @unit, lies in a content's blocks. */
int64_t exec_model_at(const ExecModel *model, ExecContent content, const ExecUnit *unit, int64_t i);

/* The same of element @i of @p. */
int64_t exec_model_parameter_at(const ExecModel *model, ExecContent content, const ExecParameter *p,
                                int64_t i);

/* Gradients of @p from element @i on, an own one or where all are kept. */
float *exec_model_own_gradients(const ExecModel *model, const ExecParameter *p, int64_t i);

/* Whether the unit's whole weights have to be fetched or gathered for an op. */
bool exec_model_weights_apart(const ExecModel *model, const ExecUnit *unit);

/* The unit's whole weights or gradients where this rank keeps them; NULL: it has a part, or they
 * are off the device. */
void *exec_model_kept_weights(const ExecModel *model, const ExecUnit *unit);
float *exec_model_kept_gradients(const ExecModel *model, const ExecUnit *unit);

/* Makes a unit's tensors point to whole weights and gradients; NULL: to where nothing is. */
void exec_model_bind(ExecModel *model, const ExecUnit *unit, void *weights, float *gradients);

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

/* --- model_state.c --- */

/* The sum of squares of the own gradients of @p; and all own gradients times @factor. */
bool exec_model_sum_squares(const ExecModel *model, const ExecParameter *p, double *sum,
                            GError **error);
void exec_model_scale_gradients(ExecModel *model, float factor);

/* One AdamW step of all own parts, and zero gradients for the next.  False on what offload.h says.
 * @constants' decay is replaced: @weight_decay for those that decay, 0 for the rest. */
bool exec_model_adamw(ExecModel *model, const ExecAdamw *constants, float weight_decay,
                      GError **error);

/* What a checkpoint keeps of every parameter. */
typedef enum {
    EXEC_STATE_MASTER, /* the weights themselves in fp32 storage */
    EXEC_STATE_MOMENT1,
    EXEC_STATE_MOMENT2,
} ExecState;

/* Own elements [i, i + n) of @p, wherever they are. */
bool exec_model_read_state(ExecModel *model, ExecState state, const ExecParameter *p, int64_t i,
                           int64_t n, float *values, GError **error);
bool exec_model_write_state(ExecModel *model, ExecState state, const ExecParameter *p, int64_t i,
                            int64_t n, const float *values, GError **error);

/* Weights of own elements [i, i + n) of @p, from fp32, wherever they are.  @staging  on the device,
 * for n fp32 values; NULL in fp32 storage. */
bool exec_model_write_weights(ExecModel *model, const ExecParameter *p, int64_t i, int64_t n,
                              const float *values, float *staging, GError **error);

/* Which part of model->offload has weights that are off the device. */
int32_t exec_model_weights_part(const ExecModel *model);

/* All that this rank has of the gradients of @p. */
void exec_model_zero_gradients(ExecModel *model, const ExecParameter *p);

/* Elements of the layout of @options' rank; -1 on overflow. */
int64_t exec_model_elements(const ExecModelOptions *options);

/* Bytes of all its blocks; infinite on overflow. */
double exec_model_bytes(const ExecModelOptions *options);

ExecWidths exec_widths(const ExecModelOptions *options, Dtype storage);

/* --- model_parts.c, for model*.c --- */

void exec_regions_set_copies(ExecRegion *regions, const ExecModelOptions *options);
/* What is sharded or off the device, and where the regions then begin in their blocks; their
 * lengths are known. */
void exec_regions_set_sharded(ExecRegion *regions, const Plan *plan);
/* Elements that a content's blocks have. */
int64_t exec_regions_elements(const ExecRegion *regions, ExecContent content);

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
    GArray *bindings;   /* of ExecBinding, by parameter */
    GArray *units;      /* of ExecUnit */
    ExecRegion regions[EXEC_REGION_N];
    int64_t n, n_dense;
    bool overflow;
} ExecLayout;

/* The order of stages is that of the plan's. */
ExecLayout exec_layout_new(const ExecModelOptions *options);
void exec_layout_clear(ExecLayout *layout);

G_END_DECLS

#endif /* EXECUTOR_MODEL_MODEL_H */
