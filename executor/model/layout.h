/*
 * executor/model/layout.h - ExecLayout says which parameters a rank holds, which part of each, and
 * where they lie in the rank's flat buffers.
 *
 * All parameters of a rank lie one after the other in one layout; weights, gradients, master
 * weights and the optimizer's moments are blocks of that layout, so that reductions and the
 * optimizer need few calls.  The layout has three regions, whose parameters have different replicas
 * or come at different times: norms, the other dense parameters, and the experts.  A region is cut
 * into ZeRO units, whose parameters are reduced, gathered and freed together: a layer's norms, the
 * rest of a layer, a table, a layer's experts.
 *
 * ZeRO [Rajbhandari et al. 1910.02054]: of every unit, replica i of n holds the i-th of n equal
 * shards of what the ZeRO stage splits: the optimizer's state, from stage 2 on also the gradients,
 * with stage 3 also the weights.  The blocks then hold the shards alone, in the layout's order, and
 * a unit's whole gradients and weights exist only during an op (units.h).  Norms keep whole weights
 * and gradients, because their gradients come in other ops than those of the products.
 *
 * With offloaded parameters, the weights of all units but the norms are in host memory or a file
 * (offload.h) - as much of them as this replica holds - and on the device only during an op.
 *
 * Names do not depend on the split ("layer.3.mlp_up.weight"), and neither do initial values:
 * element i of the whole parameter is a function of seed, name and i.  They are GPT-2's: normal
 * with deviation 0.02, or 0.02 / sqrt(2 n_layers) for the projections that end in the residual
 * stream; biases 0, gains of norms 1 and shifts 0.
 *
 * Weights are stored [input, output].  The gate's columns lie before those of the up projection;
 * the experts of a layer lie below each other as one matrix.  A tied head reads the embedding's
 * table.  Every tp rank has equally many rows of a table in memory, of which the last ones may be
 * padding: their weights and gradients are zero and stay so, and since they are no elements of the
 * parameter, neither the optimizer nor checkpoints nor the verification see them.  Where several
 * pipeline ranks hold the same parameter (a tied head, MTP modules, both directions of DualPipe),
 * their gradients are summed before every step, so that all stay equal bit by bit.
 */
#pragma once

#include "executor/device/backend.h"
#include "executor/model/offload.h"
#include "models/arch.h"
#include "schedule/plan.h"

/* The norms of a layer: of its mixer's and its feed-forward's input, and of their results. */
typedef enum {
    EXEC_NORM_1,
    EXEC_NORM_2,
    EXEC_NORM_POST_1,
    EXEC_NORM_POST_2,
    EXEC_NORM_N,
} ExecLayerNorm;

/* What the code of a layer of some kind needs of the architecture, or that of the ends.  Numbers are
 * those of this rank's share, but for those marked whole. */
typedef struct {
    ModelArch arch; /* (borrows from the options') what describes the kind, as model_kind_arch()
                       says it; of the ends the model itself */
    int32_t kind;   /* as model_layer_kind() counts; -1: the ends */
    Dtype storage;
    int64_t hidden, seq_len, max_seq_len; /* whole */
    int64_t tp, cp;
    bool sequence_parallel; /* between products every tp rank has 1 / tp of the rows */
    ModelNorm norm;
    float norm_epsilon;
    /* Of a kind: its halves, and how they are put together. */
    bool has_mixer, has_ffn;
    bool has_norm[EXEC_NORM_N];
    bool parallel; /* both halves read the layer's input */
    float residual_scale;
    /* Of a kind: attention. */
    bool rotary;
    double rope_base;
    int64_t n_heads, n_kv_heads, head_dim;
    int64_t v_dim;             /* of a head of V and of the result */
    int64_t rotary_dim;        /* elements of a head that are rotated */
    int64_t q_width, k_width;  /* n_heads and n_kv_heads times head_dim */
    int64_t v_width, kv_width; /* n_kv_heads v_dim; K and V of a token */
    int64_t out_width;         /* n_heads v_dim */
    /* Of a kind: the MLP, or all shared experts as one. */
    ExecActivation activation;
    bool gated;
    int64_t ffn_hidden, up_width; /* 0: there is none.  up_width is 2 ffn_hidden where gated */
    /* Of a kind: experts. */
    int64_t n_experts, top_k; /* whole; n_experts 0: layers of this kind have no experts */
    int64_t first_expert, n_local_experts;
    int64_t expert_input;  /* elements of a row that an expert sees: hidden, or latent ones */
    int64_t expert_hidden; /* of one expert */
    int64_t expert_up;     /* columns of its first product: 2 expert_hidden where gated */
    ExecRouterScores router_scores;
    float router_scale;
    bool balance_experts; /* ExecRunOptions */
    /* Of the ends. */
    int64_t first_token, vocab; /* which rows of the tables this rank has */
    int64_t padded_vocab;       /* rows of its tables and columns of its logits: those and zeros */
} ExecWidths;

/* Whose parameters are laid out: a model, a plan, and the rank's indices in its groups. */
typedef struct {
    const ModelArch *arch; /* (borrowed) */
    const Plan *plan;      /* (borrowed) */
    int32_t pipeline_rank, tp_index, ep_index;
    int32_t dense_index, expert_index; /* among the replicas of dense parameters, and of experts */
    uint64_t seed;
    float init_deviation; /* of normal initial values; 0: 0.02 */
    bool balance_experts; /* ExecRunOptions */
    bool optimizer;       /* there are moments, and master weights unless the storage is fp32 */
    /* (nullable) Where the optimizer's state is kept, and the weights where the plan says so; NULL:
     * on the device. */
    const ExecOffloadOptions *offload;
} ExecModelOptions;

typedef enum {
    EXEC_INIT_ZERO,
    EXEC_INIT_ONE,
    EXEC_INIT_NORMAL,
    EXEC_INIT_RATE,  /* log of a number between 1 and 16: how fast a state forgets */
    EXEC_INIT_STEP,  /* softplus makes of it a time step between 0.001 and 0.1, evenly in its log */
    EXEC_INIT_COUNT, /* log of 1, 2, 3, ... by column */
} ExecInit;

/* Over which ranks a parameter's gradients are summed, beside its replicas over dp and cp. */
typedef enum {
    EXEC_SHARE_OWN,    /* none */
    EXEC_SHARE_TP,     /* all tp ranks, each of which saw some of the rows */
    EXEC_SHARE_KV,     /* the tp ranks with the same K/V heads of the parameter's kind of layers */
    EXEC_SHARE_EXPERT, /* none; its replicas are those of the experts */
} ExecShare;

#define EXEC_MAX_RUNS 7
#define EXEC_LAYER_MTP_NORMS                                                                       \
    3 /* of an MTP module: of the hidden state, the embedding, the result */

/* Which part of a matrix this rank holds: rows [row_begin, row_begin + n_rows), and of each row some
 * runs of columns. */
typedef struct {
    int64_t rows, cols; /* of the whole matrix */
    int64_t row_begin, n_rows;
    int64_t n_padding_rows; /* rows of zeros behind them that are in memory only */
    int32_t n_runs;
    struct {
        int64_t begin, n;
    } runs[EXEC_MAX_RUNS];
} ExecShard;

/* How many elements the shard has, and how many columns. */
int64_t exec_shard_n(const ExecShard *shard);
int64_t exec_shard_cols(const ExecShard *shard);

/* Returns: the index in the whole matrix of the shard's element @i.  @n  (out) how many elements of
 * the shard from there on lie together in the whole matrix, in the same row. */
int64_t exec_shard_at(const ExecShard *shard, int64_t i, int64_t *n);

typedef struct {
    char name[64];
    ExecShard shard;
    int64_t n;      /* elements of the shard */
    int64_t offset; /* element of the layout at which it begins */
    ExecInit init;
    float deviation;
    /* Of the matrices below and beside each other that it consists of, the operands of products; 0: a
     * table or a vector. */
    int64_t matrix_rows, matrix_cols;
    bool decays; /* weight decay applies: to matrices, not to biases and norms */
    ExecShare share;
    int32_t kind; /* of the layer; -1: of the ends */
    int32_t unit;
} ExecParameter;

typedef enum {
    EXEC_REGION_NORMS,
    EXEC_REGION_DENSE,
    EXEC_REGION_EXPERTS,
    EXEC_REGION_N
} ExecRegionKind;

/* The kinds of values that a rank holds for every parameter. */
typedef enum {
    EXEC_CONTENT_WEIGHTS,
    EXEC_CONTENT_GRADIENTS,
    EXEC_CONTENT_OPTIMIZER, /* moments, and master weights beside narrower ones */
    EXEC_CONTENT_N
} ExecContent;

typedef struct {
    int64_t begin, n;            /* elements of the layout */
    int32_t n_replicas, replica; /* ranks that hold these parameters, and which of them this is */
    /* By content: whether this rank holds a shard of every unit instead of all, and the element of
     * the content's blocks at which the region begins. */
    bool sharded[EXEC_CONTENT_N];
    int64_t at[EXEC_CONTENT_N];
    bool weights_off; /* the weights are not on the device but in model->offload */
} ExecRegion;

/* A ZeRO unit.  Where anything of its region is sharded, n is a multiple of 32 n_replicas. */
typedef struct {
    int64_t begin, n; /* elements of the layout */
    ExecRegionKind region;
    guint first_binding, n_bindings; /* in the layout's bindings */
} ExecUnit;

/* One parameter in use.  Both are NULL where the architecture has no such parameter, and while what
 * they point to is not on the device. */
typedef struct {
    void *weight;    /* in the backend's storage */
    float *gradient; /* fp32 */
} ExecTensor;

typedef struct {
    ExecTensor norm_gain[EXEC_NORM_N], norm_shift[EXEC_NORM_N]; /* [hidden] */
    ExecTensor q_weight, q_bias;                                /* [hidden, q_width] */
    ExecTensor kv_weight, kv_bias;        /* [hidden, kv_width]: columns of k, then of v */
    ExecTensor gate_weight, gate_bias;    /* [hidden, columns of the result's gate] */
    ExecTensor q_norm_gain, q_norm_shift; /* [head_dim], or of all heads; k_ likewise */
    ExecTensor k_norm_gain, k_norm_shift;
    ExecTensor sinks; /* [n_heads] */
    /* Of sparse attention: [hidden or q_lora_rank, columns of its queries], [hidden, head_dim], the key's
     * LayerNorm, [hidden, heads]. */
    ExecTensor index_q_weight, index_k_weight, index_k_gain, index_k_shift, index_weights;
    ExecTensor q_down_weight, q_down_bias;   /* [hidden, q_lora_rank]; q_weight has as many rows */
    ExecTensor q_latent_gain;                /* [q_lora_rank] */
    ExecTensor kv_down_weight, kv_down_bias; /* [hidden, kv_lora_rank + qk_rope_head_dim] */
    ExecTensor kv_latent_gain;               /* [kv_lora_rank] */
    ExecTensor
        kv_up_weight; /* [kv_lora_rank, n_heads (qk_nope_head_dim + v_dim)]: K's columns first */
    ExecTensor proj_weight, proj_bias;         /* [out_width, hidden] */
    ExecTensor mlp_up_weight, mlp_up_bias;     /* [hidden, up_width]; or of the shared experts */
    ExecTensor mlp_down_weight, mlp_down_bias; /* [ffn_hidden, hidden]; or of the shared experts */
    ExecTensor router_weight, router_bias;     /* [hidden, n_experts] */
    ExecTensor experts_up_weight;              /* [n_local_experts * expert_input, expert_up] */
    ExecTensor experts_up_bias;                /* [n_local_experts, expert_up] */
    ExecTensor experts_down_weight;            /* [n_local_experts * expert_hidden, expert_input] */
    ExecTensor experts_down_bias;              /* [n_local_experts, expert_input] */
    ExecTensor latent_down, latent_up;         /* [hidden, expert_input] and its transpose */
    ExecTensor shared_gate;                    /* [hidden, 1] */
    /* A mixer with a state: state_parts.h. */
    ExecTensor state_in_weight, state_in_bias;     /* [hidden, in] */
    ExecTensor state_down_weight;                  /* [hidden, down] */
    ExecTensor state_middle_weight;                /* [values, middle] */
    ExecTensor state_steps_weight;                 /* [up_rows, decays or time steps] */
    ExecTensor state_gate_weight;                  /* [up_rows, values] */
    ExecTensor state_conv_weight, state_conv_bias; /* [taps, channels] */
    ExecTensor state_a_log, state_step_bias, state_skip;
    ExecTensor state_norm_gain;
    ExecTensor state_inner_gain[3];              /* of Mamba's time steps, B and C */
    ExecTensor state_out_weight, state_out_bias; /* [values, hidden] */
    /* Of an MTP module: mtp.h. */
    ExecTensor mtp_norm_gain[EXEC_LAYER_MTP_NORMS], mtp_norm_shift[EXEC_LAYER_MTP_NORMS];
    ExecTensor mtp_proj;              /* [2 hidden, hidden / tp] */
    int32_t dense_unit, experts_unit; /* -1: none */
} ExecLayerTensors;

/* The parameters of embedding and head. */
typedef struct {
    /* [padded_vocab, hidden]; with the embedding, MTP modules, or a tied head */
    ExecTensor token_table;
    ExecTensor position_table;                  /* [position_rows, hidden]; with the embedding */
    ExecTensor embedding_gain, embedding_shift; /* of the embedding's norm */
    ExecTensor norm_gain, norm_shift;           /* with the head */
    ExecTensor head_bias;                       /* [padded_vocab]; with the head */
    ExecTensor head_table; /* [padded_vocab, hidden]; token_table of a tied head */
    int32_t token_unit, position_unit, head_unit, bias_unit; /* -1: none */
} ExecEndTensors;

/* Which tensor a parameter is: the one at offset @member of the ExecLayerTensors of layer @layer of
 * the rank's stage @stage, or of the stage's ExecEndTensors if @layer is -1. */
typedef struct {
    guint parameter, stage;
    int64_t layer;
    size_t member;
} ExecBinding;

typedef struct {
    GArray *parameters; /* (owned) of ExecParameter, by offset */
    GArray *bindings;   /* (owned) of ExecBinding, by parameter */
    GArray *units;      /* (owned) of ExecUnit, by offset */
    ExecRegion regions[EXEC_REGION_N];
    int64_t n;     /* elements */
    bool overflow; /* n is more than memory can hold; then only this is set */
} ExecLayout;

/* The layout of one rank; its stages are in the plan's order. */
ExecLayout exec_layout_new(const ExecModelOptions *options);
void exec_layout_clear(ExecLayout *layout);

/* Whether there is a parameter of this name, and its number. */
bool exec_layout_find(const ExecLayout *layout, const char *name, guint *parameter);

/* The widths of the ends, and those of layers of @kind. */
ExecWidths exec_end_widths(const ExecModelOptions *options, Dtype storage);
ExecWidths exec_kind_widths(const ExecModelOptions *options, Dtype storage, int32_t kind);

/* How many elements the blocks of a content have on the device. */
int64_t exec_layout_content_elements(const ExecRegion *regions, ExecContent content);

/* Bytes of everything that the rank would hold, on the device and in host memory; infinite on
 * overflow. */
double exec_layout_bytes(const ExecModelOptions *options);

/* Pipeline ranks that may hold the same parameter: of either direction the one with the embedding,
 * and those with MTP modules and a tied head. */
#define EXEC_MAX_SHARERS (2 * (2 + MODEL_MAX_MTP))

/* A parameter that other pipeline ranks hold too. */
typedef struct {
    guint parameter;
    int32_t n;                       /* at least 2 */
    int32_t ranks[EXEC_MAX_SHARERS]; /* the pipeline ranks that hold it, this one, too; ascending */
} ExecSharedParameter;

/* Returns: (owned) GArray of ExecSharedParameter, by name: in the same order on all ranks that hold
 * it. */
GArray *exec_layout_shared_parameters(const ExecModelOptions *options);
