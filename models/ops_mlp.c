#include "models/ops_list.h"

#include <math.h>

#include "base/real.h"

/* GELU has one input of the MLP's width, SwiGLU two: gate and up. */
static int64_t
n_inputs(const ModelArch *arch)
{
    return model_is_gated(arch) ? 2 : 1;
}

static ModelOp *
add_activation(OpsList *list, const char *name, double rows, int64_t width)
{
    double inputs = (double)n_inputs(list->arch);
    double bytes = rows * (double)width * list->e;

    /* SiLU (2), product (3); backward: the product's two (6), SiLU's (3).  SiLU's result stays. */
    if (list->eager && model_is_gated(list->arch))
        return ops_add_memory(list, name, 5.0 * bytes, 9.0 * bytes, 3.0 * bytes, 2, 3);
    /* Backward reads the output's gradient and the inputs, and writes theirs. */
    return ops_add_memory(list, name, (inputs + 1.0) * bytes, (2.0 * inputs + 1.0) * bytes,
                          inputs * bytes, 1, 1);
}

/* The names of a dense MLP's ops. */
typedef struct {
    const char *input, *up, *gate, *sum, *again, *activation, *down, *output;
} DenseNames;

/* An MLP of @columns that tp splits.  Returns the first product, whose input is not kept yet. */
static ModelOp *
add_dense(OpsList *list, const DenseNames *names, int64_t columns)
{
    const ModelArch *arch = list->arch;
    int64_t width = model_ceil_div(columns, list->shape->tp);
    bool bias = model_has_mlp_bias(arch);

    ops_add_tp_input(list, names->input, arch->hidden);
    const bool separate = list->separate_matrices && model_is_gated(arch);
    ModelOp *up = ops_add_gemm(list, names->up, list->rows, arch->hidden,
                               (separate ? 1 : n_inputs(arch)) * width, bias);
    ops_quantise_input(list, up);
    if (separate) {
        ops_add_next_gemm(list, names->gate, list->rows, arch->hidden, width, bias);
        ops_add_input_sum(list, names->sum, list->rows * (double)arch->hidden, 2);
    }
    ops_add_tp_input_again(list, names->again, arch->hidden);
    add_activation(list, names->activation, list->rows, width);
    ModelOp *down = ops_add_summed_gemm(list, names->down, width, arch->hidden, bias);
    ops_keep_input(list, down, list->rows * (double)width);
    ops_add_tp_output(list, names->output, arch->hidden, down);
    return up;
}

void
ops_add_mlp(OpsList *list, bool keeps_input)
{
    static const DenseNames names = {"mlp_input",     "mlp_up",          "mlp_gate",
                                     "mlp_input_sum", "mlp_input_again", "mlp_activation",
                                     "mlp_down",      "mlp_output"};
    ModelOp *up = add_dense(list, &names, list->arch->ffn_hidden);

    if (keeps_input)
        ops_keep_input(list, up, list->local_rows * (double)list->arch->hidden);
}

/* The product of every local expert: @rows in all, shared evenly.  Fewer rows than experts: only so
 * many experts work. */
static ModelOp *
add_expert_gemm(OpsList *list, const char *name, double rows, int64_t k, int64_t n)
{
    bool bias = model_has_expert_bias(list->arch);
    int64_t n_local = model_n_local_experts(&list->arch->experts, list->shape->ep);
    ModelOp *gemm = ops_add_gemm(list, name, rows, k, n, bias);

    gemm->expert = true;
    gemm->count = MAX(1, MIN(n_local, ops_bytes(ceil(rows))));
    gemm->m = ops_bytes(ceil(rows / (double)gemm->count));
    gemm->weight_bytes = ops_bytes((double)gemm->weight_bytes * (double)gemm->count);
    gemm->n_kernels_forward *= gemm->count;
    gemm->n_kernels_backward *= gemm->count;
    ops_keep_input(list, gemm, rows * (double)k);
    return gemm;
}

/* Experts that see every token: one dense MLP of their joint width.  Its input is the router's
 * too, which keeps it. */
static void
add_shared_experts(OpsList *list)
{
    static const DenseNames names = {"shared_input",     "shared_up",          "shared_gate",
                                     "shared_input_sum", "shared_input_again", "shared_activation",
                                     "shared_down",      "shared_output"};

    add_dense(list, &names, model_shared_hidden(&list->arch->experts));
    if (list->arch->experts.shared_gate) {
        /* A product with one column, its sigmoid, and the product of both. */
        const double h = (double)list->arch->hidden, elements = list->rows * h;

        ops_add_gemm(list, "shared_gate", list->rows, list->arch->hidden, 1, false);
        ops_add_memory(list, "shared_gated", 2.0 * elements * list->e, 4.0 * elements * list->e,
                       elements * list->e, 2, 3);
    }
}

/* Which experts each row goes to: scores, top k, and the map that permutes rows. */
static ModelOp *
add_router(OpsList *list, double rows, bool keeps_input)
{
    const ModelExperts *experts = &list->arch->experts;
    double scores = rows * (double)experts->n_experts;
    double chosen = rows * (double)experts->top_k;

    const double operand_e = list->operand_e;
    list->operand_e = list->e;
    ModelOp *op = ops_add_gemm(list, "router", rows, list->arch->hidden, experts->n_experts,
                               experts->router_bias);
    if (keeps_input)
        ops_keep_input(list, op, list->local_rows * (double)list->arch->hidden);
    list->operand_e = operand_e;
    /* Scores in fp32, read by the softmax or sigmoid and by top-k, written once; kept with the
     * chosen experts' indices and probabilities (4 bytes each).  Launches: cast, softmax, top-k,
     * scatter of probabilities and of the map, tokens per expert, balance loss; their gradients. */
    return ops_add_memory(list, "route", 12.0 * scores + 8.0 * chosen, 12.0 * scores + 4.0 * chosen,
                          4.0 * scores + 8.0 * chosen, 8, 5);
}

/* Columns, on one tp rank, of queries, of keys and values, of the experts that see every row; where
 * these come through latents, of the latents and of what they are decompressed to. */
typedef struct {
    double q, kv, shared;
    double latent, kv_up;
} Columns;

static Columns
columns_of(const ModelArch *arch, const ModelShape *shape)
{
    const int64_t heads = model_ceil_div(arch->n_heads, shape->tp);
    const int64_t kv_heads = model_ceil_div(arch->n_kv_heads, shape->tp);
    const ModelMla *mla = &arch->mla;
    Columns c = {
        .q = (double)(heads * arch->head_dim),
        .kv = (double)(kv_heads * (arch->head_dim + model_v_dim(arch))),
        .shared = (double)model_ceil_div(model_shared_hidden(&arch->experts), shape->tp),
    };

    if (!model_has_mla(arch))
        return c;
    c.latent = (double)(mla->q_lora_rank + mla->kv_lora_rank + mla->qk_rope_head_dim);
    c.kv_up = (double)(heads * (mla->qk_nope_head_dim + mla->v_head_dim));
    return c;
}

/* Of a mixer with a state, by row: the gradients of its result and of the convolution's, decays
 * and rates that come through narrow products, and their gradients in fp32. */
static double
state_scratch(const OpsList *list)
{
    const ModelStateWidths w = model_state_widths(list->arch, list->shape->tp);
    const double narrow = w.up_rows > 0 ? (double)MAX(w.gates, w.rates) : 0.0;

    /* Mamba's values are there twice with or without a convolution. */
    const bool convolved = list->arch->state.conv > 0 || w.middle > 0;

    /* Of pieces of cp ranks, a state and its gradient. */
    const ModelState *s = &list->arch->state;
    const double passed = list->shape->cp > 1
                              ? 8.0 / list->e * (double)list->shape->batch / list->rows *
                                    (double)(w.heads * s->key_dim * s->value_dim)
                              : 0.0;

    return passed + (double)w.values + (convolved ? (double)w.conv : 0.0) + narrow +
           4.0 / list->e * (double)(w.gates + w.rates);
}

/* ... and the gradients of its products' outputs. */
static double
state_gradients(const ModelArch *arch, int64_t tp)
{
    const ModelStateWidths w = model_state_widths(arch, tp);

    return (double)(w.in + w.down + w.middle + w.up);
}

/* Of attention, by row: the gradient of its result; through latents, those of keys and values and, of
 * all tp ranks' rows, latents and their gradients; and of cp ranks what passes between them, K and V,
 * either on its way, and the gradients in fp32. */
static double
attention_scratch(const OpsList *list, const Columns *c)
{
    const ModelShape *shape = list->shape;
    const ModelIndexer *indexer = &list->arch->indexer;
    const int64_t chosen = MIN(indexer->top_k, shape->context + shape->tokens);
    /* Shares of the chosen keys and the gradients of the indexer's, in fp32. */
    const double index =
        indexer->n_heads > 0 ? 4.0 / list->e * (double)(chosen + 2 + indexer->head_dim) : 0.0;
    const double ring = shape->cp > 1 ? (2.0 + 4.0 / list->e) * (double)shape->cp * c->kv : 0.0;
    const double latents = shape->sequence_parallel ? 2.0 * c->latent : 0.0;

    return index + c->q + ring + (c->latent > 0.0 ? real_max(c->kv, c->kv_up) + latents : 0.0);
}

/* ... and the gradients of its products' outputs. */
static double
attention_gradients(const OpsList *list, const Columns *c)
{
    const ModelIndexer *indexer = &list->arch->indexer;
    const double index = (double)((indexer->n_heads + 1) * indexer->head_dim + indexer->n_heads);

    if (c->latent > 0.0)
        return index + c->q + c->kv_up + c->latent * list->local_rows / list->rows;
    return index + c->q + c->kv;
}

/* Elements of a row that is at its experts, or on its way. */
static int64_t
row_elements(const ModelArch *arch)
{
    return arch->experts.latent > 0 ? arch->experts.latent : arch->hidden;
}

/* How many gradients of the width of a layer its backward has besides that of its input: of results
 * that are normed, or scaled, of the second of parallel halves, of the first of mixers beside each other, of
 * what shared experts' gate passes. */
static int64_t
n_more_gradients(const ModelArch *arch)
{
    const ModelExperts *experts = &arch->experts;
    const bool is_beside = model_has_attention(arch) && model_has_state(arch);
    const bool is_parallel = arch->blocks != MODEL_BLOCKS_SERIAL &&
                             arch->mixer != MODEL_MIXER_NONE && arch->ffn != MODEL_FFN_NONE;

    return (arch->norm_place != MODEL_NORM_PLACE_PRE) + (arch->residual_scale > 0.0) + is_parallel +
           is_beside + (experts->shared_gate && experts->n_shared > 0);
}

static ModelScratchBytes
kind_scratch_bytes(const ModelArch *arch, const ModelShape *shape)
{
    const OpsList list = ops_list(arch, shape, NULL);
    const Columns c = columns_of(arch, shape);
    const double h = (double)arch->hidden;
    const double dense = arch->experts.n_experts > 0 || arch->ffn == MODEL_FFN_NONE
                             ? 0.0
                             : (double)model_ceil_div(arch->ffn_hidden, shape->tp);
    const double mlp = real_max(dense, c.shared);
    /* GELU's gradient takes its result's place. */
    const double active = model_is_gated(arch) ? mlp : 0.0;
    const double common = real_max(h, active) + (shape->sequence_parallel ? h : 0.0);
    const double up = (double)n_inputs(arch) * mlp;
    const bool attends = model_has_attention(arch), states = model_has_state(arch);
    const double mixer =
        real_max(attends ? attention_scratch(&list, &c) : 0.0, states ? state_scratch(&list) : 0.0);
    const double kept = (attends ? attention_gradients(&list, &c) : 0.0) +
                        (states ? state_gradients(arch, shape->tp) : 0.0);
    const double more = (double)n_more_gradients(arch) * list.local_rows * h;

    return (ModelScratchBytes){
        .backward_bytes = ops_bytes(
            (list.rows * (common + real_max(mixer + kept, real_max(h, up))) + more) * list.e),
        .input_bytes = ops_bytes((list.rows * (common + real_max(mixer, h)) + more) * list.e),
    };
}

ModelScratchBytes
model_scratch_bytes(const ModelArch *arch, const ModelShape *shape)
{
    ModelScratchBytes most = {0};

    for (int32_t i = 0; i < model_n_kinds(arch); i++) {
        const ModelArch kind = model_kind_arch(arch, i);
        const ModelScratchBytes one = kind_scratch_bytes(&kind, shape);
        most.backward_bytes = MAX(most.backward_bytes, one.backward_bytes);
        most.input_bytes = MAX(most.input_bytes, one.input_bytes);
    }
    return most;
}

/*
 * What degas's executor takes for @n rows that come to its experts of the @sent that go out
 * (executor/model/moe.h): two buffers for rows on their way, forward the results of the experts,
 * backward the gradients of these results and of the first products' and a place for those of the
 * activations, then of the inputs.
 */
static void
set_row_blocks(const OpsList *list, double sent, double n, ModelOp *up, ModelOp *down)
{
    const ModelArch *arch = list->arch;
    const double h = (double)arch->hidden, f = (double)arch->experts.ffn_hidden;
    const double row = (double)row_elements(arch);
    const double buffers = 2.0 * real_max(sent, n) * row;
    /* Of latent experts: what is sent, and for W the gradients of rows and of what was sent. */
    const double narrow = arch->experts.latent > 0 ? list->tp_rows * row : 0.0;
    const double latent = arch->experts.latent > 0 ? list->tp_rows * (h + row) : 0.0;
    /* Shares of tp ranks are gathered. */
    const double whole =
        list->shape->tp > 1 && !list->shape->sequence_parallel ? list->rows * h : 0.0;
    const double scores = list->tp_rows * (double)arch->experts.n_experts;
    const double backward =
        n * (row + (double)n_inputs(arch) * f + real_max(row, f)) + buffers + whole + latent;
    const Columns c = columns_of(arch, list->shape);
    /* What W needs of the layer's other products. */
    const double halves =
        c.q + c.kv + h + (c.shared > 0.0 ? (double)n_inputs(arch) * c.shared + h : 0.0);

    up->output_stays = down->output_stays = true;
    down->forward_transient_bytes = ops_bytes((n * row + buffers + whole + narrow) * list->e);
    down->late_backward_bytes = ops_bytes((backward + scores) * list->e + 4.0 * (n + sent));
    down->late_input_bytes =
        ops_bytes((backward + scores + list->rows * halves) * list->e + 4.0 * (n + sent));
}

/* Carries rows to experts or back, @probabilities with them, whose gradients come back: HybridEP sends
 * those of all experts of the place with each row, in fp32 (hybrid_ep_backend.cuh). */
static void
add_exchange(OpsList *list, const char *name, double received, bool probabilities)
{
    const size_t before = list->n;

    ops_add_collective(list, name, MODEL_GROUP_EP, MODEL_COMM_ALL_TO_ALL, MODEL_COMM_ALL_TO_ALL,
                       received * (double)row_elements(list->arch) * list->e);
    if (list->n == before || !list->shape->one_copy)
        return;
    list->ops[before].copies = list->arch->experts.top_k;
    if (probabilities && list->shape->fused_permute)
        list->ops[before].place_bytes =
            ops_bytes(4.0 * received * (double)list->arch->experts.n_experts);
}

/* Sorts @received rows by the local expert that they are for, or back, where they have come from
 * several ranks for several experts. */
static void
add_sort(OpsList *list, const char *name, double received)
{
    const double bytes = 2.0 * received * (double)row_elements(list->arch) * list->e;

    if (list->shape->sorts_received && list->shape->ep > 1 &&
        list->shape->ep < list->arch->experts.n_experts)
        ops_add_memory(list, name, bytes, bytes, 0.0, 1, 1)->memory_kind = MODEL_MEMORY_PERMUTE;
}

/* Of @received copies of rows, those of different rows: what comes where a row is sent once to each
 * rank.  k copies that go to n ranks at random reach n (1 - (1 - 1/n)^k) of them. */
static double
n_arrived(const OpsList *list, double received)
{
    const double n = (double)list->shape->ep, k = (double)list->arch->experts.top_k;

    return received * real_min(1.0, n * (1.0 - pow(1.0 - 1.0 / n, k)) / k);
}

/* Puts copies of @rows in the order of the experts that they are for, @copies in all, or back. */
static void
add_permute(OpsList *list, const char *name, double rows, double copies)
{
    const double bytes = (rows + copies) * (double)row_elements(list->arch) * list->e;

    ModelOp *op = ops_add_memory(list, name, bytes, bytes, 0.0, 1, 1);

    op->memory_kind = MODEL_MEMORY_PERMUTE;
    op->group = MODEL_GROUP_EP;
    op->in_exchange = list->shape->fused_permute;
}

/* HybridEP gathers which rows go to which experts, a byte each, from all ranks, and reads it to find
 * where rows go (hybrid_ep's metadata_preprocess). */
static void
add_map(OpsList *list)
{
    const double bytes =
        list->tp_rows * (double)list->shape->ep * (double)list->arch->experts.n_experts;

    if (!list->shape->fused_permute || list->shape->ep == 1)
        return;
    ops_add_collective(list, "map_gather", MODEL_GROUP_EP, MODEL_COMM_ALL_GATHER, MODEL_COMM_NONE,
                       bytes);
    ModelOp *op = ops_add_memory(list, "map_read", bytes, 0.0, 0.0, 0, 0);
    op->memory_kind = MODEL_MEMORY_PERMUTE;
    op->group = MODEL_GROUP_EP;
    op->in_exchange = true;
}

/* Quantised products take whole tiles of rows: those of each expert are copied to where they have room,
 * and the results back (experts.py: Fp8Padding). */
static void
add_padding(OpsList *list, const char *name, double rows)
{
    const double bytes = 2.0 * rows * (double)row_elements(list->arch) * list->e;

    if (list->shape->pads_experts && list->operand_e < list->e)
        ops_add_memory(list, name, bytes, bytes, 0.0, 1, 1);
}

/* Kernels on a few words, all of them about one call of the framework. */
static void
add_words(OpsList *list, const char *name, double bytes, int64_t n_kernels)
{
    ModelOp *op = ops_add_memory(list, name, bytes, 0.0, 0.0, n_kernels, 0);

    op->memory_kind = MODEL_MEMORY_WORDS;
    op->count = n_kernels;
}

/*
 * What Megatron's all-to-all dispatcher launches besides the rows that it carries
 * (token_dispatcher.py): preprocess() counts rows per expert and per rank in seven kernels, gathers
 * the counts of all ranks and copies five results to the host; rows are permuted by a map (3 kernels)
 * and sorted by two; none of these has a backward.  The probabilities travel and are sorted by
 * themselves, and so do their gradients.  With a capacity nothing is counted: preprocess() returns at
 * drop_and_pad.
 */
static void
add_counts(OpsList *list)
{
    const double counts = 4.0 * (double)list->shape->ep * (double)list->arch->experts.n_experts;
    const double chosen = 4.0 * list->tp_rows * (double)list->arch->experts.top_k;
    const ModelScope scope = list->scope;

    if (!list->shape->sorts_received || list->shape->ep == 1)
        return;
    list->scope = MODEL_SCOPE_ROUTER;
    if (list->shape->host_counts)
        add_words(list, "count", 2.0 * counts, 13);
    list->scope = scope;
    add_words(list, "maps", chosen, 5);
    ops_add_memory(list, "probabilities", 2.0 * chosen, 2.0 * chosen, 0.0, 2, 2)->memory_kind =
        MODEL_MEMORY_WORDS;
}

/*
 * The second bias of every expert, times the probability of each row (experts.py: TEGroupedMLP.
 * _apply_bias()), in fp32 since probabilities are.  Forward, per element: the product is written
 * (4), added (e + 8), all experts' results are joined (8) and cast (4 + e).  Backward: casts (e + 4,
 * 4 + e), the product's two gradients, each written, read and summed (12 each), what was split is
 * joined (2 e).  Two kernels an expert forward and five backward, and two for all.
 */
static void
add_expert_bias(OpsList *list, double elements)
{
    const int64_t n_local = model_n_local_experts(&list->arch->experts, list->shape->ep);
    ModelOp *op;

    if (!list->shape->expert_bias_apart || !list->arch->experts.bias)
        return;
    op = ops_add_memory(list, "experts_bias", elements * (24.0 + 2.0 * list->e),
                        elements * (32.0 + 4.0 * list->e), 0.0, 2 * n_local + 2, 5 * n_local + 2);
    op->count = n_local;
}

/* Of Megatron-Core's graphs of a whole iteration, as Megatron-Bridge's recipes set them
 * (moe_expert_rank_capacity_factor; moe_paged_stash_buffer_size_factor_cuda, whose default is 1.1). */
#define RANK_CAPACITY 1.5
#define STASH_ROOM 1.2

/*
 * What a graph of the whole iteration keeps of experts: it cannot know how many rows come, so a layer's tensors have
 * room for RANK_CAPACITY times an even share while it is at work, and what backward reads is copied to
 * pages with room for STASH_ROOM times that share  [Megatron-LM, paged_stash.py, pull request 4247].
 */
static void
add_captured_room(const OpsList *list, ModelOp *const *ops, size_t n)
{
    double saved = 0.0;

    if (!list->shape->fused_permute || !list->shape->host_counts || list->shape->ep == 1 ||
        list->shape->graphs < (int)MODEL_SCOPE_ITERATION)
        return;
    for (size_t i = 0; i < n; i++) {
        saved += (double)ops[i]->saved_bytes;
        ops[i]->saved_bytes = ops_bytes(STASH_ROOM * (double)ops[i]->saved_bytes);
    }
    for (size_t i = 0; i < n; i++) {
        ops[i]->forward_transient_bytes += ops_bytes(RANK_CAPACITY * saved);
        ops[i]->backward_transient_bytes += ops_bytes(RANK_CAPACITY * saved);
    }
}

void
ops_add_experts(OpsList *list, bool keeps_input)
{
    const ModelArch *arch = list->arch;
    const ModelExperts *experts = &arch->experts;
    const int64_t row = row_elements(arch);
    double h = (double)row;
    double rows = list->tp_rows;
    double sent = rows * (double)experts->top_k;
    double received = sent * list->shape->expert_imbalance;
    double arrived = n_arrived(list, received);
    bool sp = list->shape->sequence_parallel;
    int64_t etp = MAX(1, list->shape->etp);
    double gathered = received * (double)etp;
    int64_t width = model_ceil_div(experts->ffn_hidden, etp);

    ModelOp *route = add_router(list, rows, keeps_input);
    list->scope = MODEL_SCOPE_LAYER;
    add_counts(list);
    /* Narrow rows travel and reach the experts. */
    if (experts->latent > 0)
        ops_add_gemm(list, "latent_down", rows, arch->hidden, row, false);
    /* Without sequence parallelism the tp ranks hold the same rows: each dispatches its share, and
     * the results (in backward: the gradients) are gathered. */
    if (!sp)
        ops_add_collective(list, "experts_split", MODEL_GROUP_TP, MODEL_COMM_NONE,
                           MODEL_COMM_ALL_GATHER, list->rows * h * list->e);
    if (!list->shape->one_copy)
        add_permute(list, "permute", rows, sent);
    add_map(list);
    /* HybridEP counts while it dispatches; others need the counts to do so. */
    size_t waits = list->n;
    add_exchange(list, "dispatch", received, true);
    if (list->shape->fused_permute)
        waits = list->n;
    if (list->shape->one_copy)
        add_permute(list, "permute", arrived, received);
    add_sort(list, "sort", received);
    /* Ranks that share experts gather the rows of all of them, and add up their results. */
    ops_add_collective(list, "experts_gather", MODEL_GROUP_ETP, MODEL_COMM_ALL_GATHER,
                       MODEL_COMM_REDUCE_SCATTER, gathered * h * list->e);
    add_padding(list, "pad", gathered);
    ModelOp *up = add_expert_gemm(list, "experts_up", gathered, row, n_inputs(arch) * width);
    list->ops[waits].after_wait =
        list->shape->host_counts && list->shape->graphs < (int)MODEL_SCOPE_ITERATION;
    ModelOp *activation = add_activation(list, "experts_activation", gathered, width);
    /* GELU's result is multiplied with the router's probabilities, whose gradient needs it; degas's
     * executor computes it again. */
    if (!model_is_gated(arch) && !list->shape->row_blocks)
        activation->saved_bytes =
            ops_bytes((double)activation->saved_bytes + gathered * (double)width * list->e);
    ModelOp *down = add_expert_gemm(list, "experts_down", gathered, width, row);
    add_captured_room(list, (ModelOp *const[]){up, activation, down}, 3);
    add_expert_bias(list, gathered * (double)row);
    add_padding(list, "unpad", gathered);
    if (list->shape->row_blocks) {
        route->late = up->late = activation->late = down->late = true;
        /* Tables: five words for what is sent, three for what came. */
        route->saved_bytes = ops_bytes(20.0 * sent + 12.0 * received);
        if (experts->router_scores != MODEL_ROUTER_SOFTMAX || experts->router_scale > 1.0 ||
            (experts->router_scale > 0.0 && experts->router_scale < 1.0))
            route->saved_bytes += ops_bytes(4.0 * rows * (double)experts->n_experts);
        set_row_blocks(list, sent, received, up, down);
    }
    ops_add_collective(list, "experts_scatter", MODEL_GROUP_ETP, MODEL_COMM_REDUCE_SCATTER,
                       MODEL_COMM_ALL_GATHER, gathered * h * list->e);
    add_sort(list, "sort_back", received);
    if (list->shape->one_copy)
        add_permute(list, "unpermute", arrived, received);
    add_exchange(list, "combine", received, false);
    if (!list->shape->one_copy)
        add_permute(list, "unpermute", rows, sent);
    if (experts->latent > 0) {
        ModelOp *wide = ops_add_gemm(list, "latent_up", rows, row, arch->hidden, false);
        ops_keep_input(list, wide, rows * h);
        h = (double)arch->hidden;
    }
    if (!sp)
        ops_add_collective(list, "experts_merge", MODEL_GROUP_TP, MODEL_COMM_ALL_GATHER,
                           MODEL_COMM_NONE, list->rows * h * list->e);
    if (experts->n_shared > 0)
        add_shared_experts(list);
}
