/* Tests of model_ops() in models/ops.h: layers with experts. */
#include "tests/models/ops_case.h"

/* Two tp ranks share each expert: half its columns, the rows of both, gathered and added up. */
static void
test_tp_ranks_share_experts(void)
{
    g_autoptr(ModelArch) arch = load("mixtral-8x7b");
    g_autoptr(GError) error = NULL;
    ModelShape shape = plain_shape(1, 4096);
    const int64_t rows = 4096 / 2 * 2; /* of a tp rank, to two experts each */
    ModelOp ops[MODEL_MAX_OPS];
    const ModelOp *op;

    shape.tp = 2;
    shape.ep = 4;
    shape.sequence_parallel = true;
    op = find_in_layer(arch, 0, &shape, "experts_up", ops);
    g_assert_cmpint(op->n, ==, 2 * 14336);
    g_assert_cmpint(op->count * op->m, ==, rows);
    g_assert_null(find(ops, MODEL_MAX_OPS, "experts_gather"));
    shape.etp = 2;
    op = find_in_layer(arch, 0, &shape, "experts_up", ops);
    g_assert_cmpint(op->n, ==, 14336);
    g_assert_cmpint(op->count * op->m, ==, 2 * rows);
    op = find(ops, MODEL_MAX_OPS, "experts_gather");
    g_assert_cmpint(op->group, ==, MODEL_GROUP_ETP);
    g_assert_cmpint(op->forward_comm, ==, MODEL_COMM_ALL_GATHER);
    g_assert_cmpint(op->backward_comm, ==, MODEL_COMM_REDUCE_SCATTER);
    g_assert_cmpint(op->comm_bytes, ==, 2 * rows * 4096 * 2);
    op = find(ops, MODEL_MAX_OPS, "experts_scatter");
    g_assert_cmpint(op->forward_comm, ==, MODEL_COMM_REDUCE_SCATTER);
    g_assert_true(model_shape_check(arch, &shape, &error));
    shape.etp = 4;
    g_assert_false(model_shape_check(arch, &shape, &error));
    g_assert_nonnull(strstr(error->message, "expert tp 4 does not divide tp 2"));
}

/* 4096 rows to 2 of 8 experts on 4 ranks: 8192 rows of 4096 numbers that come are read and written to
 * sort them and again back; DeepEP sends a row once to each place, so that 8192 * 4 (1 - (3/4)^2) / 2 =
 * 7168 come, of which it makes 8192; HybridEP does so within its exchange. */
static void
test_dispatchers(void)
{
    g_autoptr(ModelArch) arch = load("mixtral-8x7b");
    ModelShape shape = plain_shape(1, 4096);
    ModelOp ops[MODEL_MAX_OPS];
    const int64_t received = 8192 * 4096 * 2;

    shape.ep = 4;
    shape.sorts_received = true;
    g_assert_cmpint(find_in_layer(arch, 0, &shape, "sort", ops)->forward_bytes, ==, 2 * received);
    g_assert_cmpint(find(ops, MODEL_MAX_OPS, "sort_back")->backward_bytes, ==, 2 * received);
    g_assert_cmpint(find(ops, MODEL_MAX_OPS, "dispatch")->comm_bytes, ==, received);
    g_assert_cmpint(find(ops, MODEL_MAX_OPS, "dispatch")->copies, ==, 0);
    /* One expert a rank, or all of them on one: nothing is left to sort. */
    for (shape.ep = 1; shape.ep <= 8; shape.ep += 7) {
        find_in_layer(arch, 0, &shape, "norm1", ops);
        g_assert_null(find(ops, MODEL_MAX_OPS, "sort"));
    }
    shape.ep = 4;
    shape.sorts_received = false;
    shape.one_copy = true;
    g_assert_cmpint(find_in_layer(arch, 0, &shape, "permute", ops)->forward_bytes, ==,
                    (7168 + 8192) * 4096 * 2);
    g_assert_true(find(ops, MODEL_MAX_OPS, "permute") > find(ops, MODEL_MAX_OPS, "dispatch"));
    g_assert_true(find(ops, MODEL_MAX_OPS, "unpermute") < find(ops, MODEL_MAX_OPS, "combine"));
    g_assert_cmpint(find(ops, MODEL_MAX_OPS, "unpermute")->backward_bytes, ==,
                    (7168 + 8192) * 4096 * 2);
    g_assert_false(find(ops, MODEL_MAX_OPS, "permute")->in_exchange);
    g_assert_null(find(ops, MODEL_MAX_OPS, "sort"));
    g_assert_cmpint(find(ops, MODEL_MAX_OPS, "combine")->copies, ==, 2);
    shape.fused_permute = true;
    g_assert_true(find_in_layer(arch, 0, &shape, "permute", ops)->in_exchange);
    g_assert_true(find(ops, MODEL_MAX_OPS, "unpermute")->in_exchange);
    g_assert_cmpint(find(ops, MODEL_MAX_OPS, "permute")->group, ==, MODEL_GROUP_EP);
    /* With each of the 8192 copies go the probabilities of all 8 experts, 4 bytes each, there alone; a byte
     * for each expert and row is gathered from 4 ranks, and read. */
    g_assert_cmpint(find(ops, MODEL_MAX_OPS, "dispatch")->place_bytes, ==, 8192 * 8 * 4);
    g_assert_cmpint(find(ops, MODEL_MAX_OPS, "combine")->place_bytes, ==, 0);
    g_assert_cmpint(find(ops, MODEL_MAX_OPS, "map_gather")->comm_bytes, ==, 4 * 4096 * 8);
    g_assert_cmpint(find(ops, MODEL_MAX_OPS, "map_gather")->backward_comm, ==, MODEL_COMM_NONE);
    g_assert_cmpint(find(ops, MODEL_MAX_OPS, "map_read")->forward_bytes, ==, 4 * 4096 * 8);
    /* Quantised products take whole tiles of rows, which Megatron's own dispatcher copies them to. */
    shape.pads_experts = true;
    find_in_layer(arch, 0, &shape, "norm1", ops);
    g_assert_null(find(ops, MODEL_MAX_OPS, "pad"));
    shape.dtype = DTYPE_FP8;
    g_assert_cmpint(find_in_layer(arch, 0, &shape, "pad", ops)->forward_bytes, ==, 2 * received);
    g_assert_cmpint(find(ops, MODEL_MAX_OPS, "unpad")->backward_bytes, ==, 2 * received);
    shape.dtype = DTYPE_BF16;
    /* Hosts wait for counts before what needs them. */
    shape.pads_experts = false;
    shape.host_counts = true;
    g_assert_true(find_in_layer(arch, 0, &shape, "permute", ops)->after_wait);
    g_assert_false(find(ops, MODEL_MAX_OPS, "dispatch")->after_wait);
    shape.fused_permute = false;
    g_assert_true(find_in_layer(arch, 0, &shape, "dispatch", ops)->after_wait);
    g_assert_false(find(ops, MODEL_MAX_OPS, "permute")->after_wait);
    shape.ep = 1;
    g_assert_true(find_in_layer(arch, 0, &shape, "permute", ops)->after_wait);
    shape.one_copy = false;
    g_assert_true(find_in_layer(arch, 0, &shape, "experts_up", ops)->after_wait);
    shape.graphs = (int)MODEL_SCOPE_ITERATION;
    g_assert_false(find_in_layer(arch, 0, &shape, "experts_up", ops)->after_wait);
    shape.graphs = 0;
    shape.host_counts = false;
    g_assert_false(find_in_layer(arch, 0, &shape, "experts_up", ops)->after_wait);
    shape.ep = 4;
    shape.one_copy = shape.fused_permute = true;
    find_in_layer(arch, 0, &shape, "norm1", ops);
    /* What graphs hold. */
    g_assert_cmpint(find(ops, MODEL_MAX_OPS, "attention")->scope, ==, MODEL_SCOPE_ATTENTION);
    g_assert_cmpint(find(ops, MODEL_MAX_OPS, "route")->scope, ==, MODEL_SCOPE_ROUTER);
    g_assert_cmpint(find(ops, MODEL_MAX_OPS, "experts_up")->scope, ==, MODEL_SCOPE_LAYER);
}

/* GELU's result is kept besides its input: the gradient of the router's probabilities reads it. */
static void
test_probabilities_keep_the_activation(void)
{
    g_autoptr(ModelArch) arch = load("gpt2-124m");
    ModelShape shape = plain_shape(1, 1024);
    ModelOp ops[MODEL_MAX_OPS];

    arch->experts = (ModelExperts){.n_experts = 4, .top_k = 2, .ffn_hidden = 3072};
    g_assert_cmpint(find_in_layer(arch, 0, &shape, "experts_activation", ops)->saved_bytes, ==,
                    2 * (2 * 1024) * 3072 * 2);
    g_assert_cmpint(find(ops, MODEL_MAX_OPS, "permute")->memory_kind, ==, MODEL_MEMORY_PERMUTE);
}

/* Each row goes to top_k experts: the products' rows are tokens * top_k whatever ep is, and the
 * fullest rank has expert_imbalance times the mean. */
static void
test_experts_get_top_k_rows_per_token(void)
{
    static const int64_t eps[] = {1, 2, 8};
    g_autoptr(ModelArch) arch = load("mixtral-8x7b");

    for (size_t i = 0; i < G_N_ELEMENTS(eps); i++) {
        ModelShape shape = plain_shape(2, 1024);
        ModelOp ops[MODEL_MAX_OPS];
        const ModelOp *op;

        shape.ep = eps[i];
        op = find_in_layer(arch, 0, &shape, "experts_up", ops);
        g_assert_cmpint(op->count, ==, 8 / eps[i]);
        g_assert_cmpint(op->m * op->count, ==, 2048 * 2);
        g_assert_cmpint(op->n, ==, 2 * 14336);
        g_assert_cmpfloat(op->forward_flops, ==, 2.0 * 4096.0 * 4096.0 * 2.0 * 14336.0);
        shape.expert_imbalance = 1.25;
        op = find_in_layer(arch, 0, &shape, "experts_up", ops);
        g_assert_cmpfloat(op->forward_flops, ==, 1.25 * 2.0 * 4096.0 * 4096.0 * 2.0 * 14336.0);
        if (eps[i] > 1)
            g_assert_cmpint(find(ops, MODEL_MAX_OPS, "dispatch")->comm_bytes, ==,
                            5 * (2 * 2048 * 2 * 4096) / 4);
    }
}

/* tp ranks share the rows, not the experts, with sequence parallelism or without. */
static void
test_tp_ranks_dispatch_their_share(void)
{
    g_autoptr(ModelArch) arch = load("mixtral-8x7b");

    for (int sp = 0; sp <= 1; sp++) {
        ModelShape shape = plain_shape(1, 4096);
        ModelOp ops[MODEL_MAX_OPS];

        shape.tp = 4;
        shape.ep = 4;
        shape.sequence_parallel = sp;
        g_assert_cmpint(find_in_layer(arch, 0, &shape, "experts_down", ops)->m, ==,
                        4096 / 4 * 2 / 2);
        g_assert_cmpint(find(ops, MODEL_MAX_OPS, "dispatch")->comm_bytes, ==,
                        2 * (4096 / 4) * 2 * 4096);
    }
}

/*
 * Mixtral: h 4096, f 14336, q 4096, k and v 2048, 8 experts, 2 of them a row; 2 bytes.  512 rows:
 * 1024 are sent, 1280 come to the fullest rank; of two tp ranks, each routes half.
 */
static void
test_rows_take_blocks(void)
{
    static const struct {
        int64_t tp, sent, n, q, kv, whole, gathered;
    } cases[] = {
        {1, 1024, 1280, 4096, 2048, 0, 0},
        {2, 512, 640, 2048, 1024, 512 * 4096, 0},
        {2, 512, 640, 2048, 1024, 0, 512 * 4096},
    };
    static const char *const late[] = {"route", "experts_up", "experts_activation", "experts_down"};
    const int64_t h = 4096, f = 14336;
    g_autoptr(ModelArch) arch = load("mixtral-8x7b");

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const int64_t sent = cases[i].sent, n = cases[i].n, q = cases[i].q, kv = cases[i].kv;
        const int64_t way = 2 * n * h + cases[i].whole;
        /* Gradients of results and first products, a place, the router's. */
        const int64_t rows = n * (h + 2 * f + f) + sent / 2 * 8 + way;
        ModelShape shape = plain_shape(1, 512);
        ModelOp ops[MODEL_MAX_OPS];

        shape.ep = 2;
        shape.expert_imbalance = 1.25;
        shape.tp = cases[i].tp;
        shape.sequence_parallel = cases[i].gathered > 0;
        g_assert_false(find_in_layer(arch, 0, &shape, "experts_down", ops)->late);
        g_assert_cmpint(find(ops, MODEL_MAX_OPS, "route")->saved_bytes, ==,
                        sent / 2 * 8 * 4 + 8 * sent);
        shape.row_blocks = true;
        g_assert_false(find_in_layer(arch, 0, &shape, "router", ops)->late);
        for (size_t j = 0; j < G_N_ELEMENTS(late); j++)
            g_assert_true(find(ops, MODEL_MAX_OPS, late[j])->late);
        g_assert_cmpint(find(ops, MODEL_MAX_OPS, "route")->saved_bytes, ==, 20 * sent + 12 * n);
        g_assert_true(find(ops, MODEL_MAX_OPS, "experts_up")->output_stays);
        const ModelOp *down = find(ops, MODEL_MAX_OPS, "experts_down");
        g_assert_true(down->output_stays);
        g_assert_cmpint(down->forward_transient_bytes, ==, 2 * (n * h + way));
        g_assert_cmpint(down->late_backward_bytes, ==, 2 * rows + 4 * (n + sent));
        g_assert_cmpint(down->late_input_bytes, ==,
                        2 * (rows + 512 * (q + kv + h)) + 4 * (n + sent));
        const ModelScratchBytes scratch = model_scratch_bytes(arch, &shape);
        g_assert_cmpint(scratch.backward_bytes, ==,
                        2 * (512 * (h + 2 * q + kv) + cases[i].gathered));
        g_assert_cmpint(scratch.input_bytes, ==, 2 * (512 * (h + MAX(q, h)) + cases[i].gathered));
    }
}

/*
 * As wide as the widest layer of the model: Llama 2's MLP of f 11008, h = q = 4096, k and v 8192;
 * experts of 2048 alone; with a first layer that is dense; with two that see every row.  512 rows
 * of 2 bytes: partial sums; halves of a layer in one place.
 */
static void
test_scratch_is_of_the_widest_layer(void)
{
    static const struct {
        ModelExperts experts;
        int64_t backward, input;
    } cases[] = {
        {{0}, 11008 + 2 * 11008, 11008 + 4096},
        {{.n_experts = 8, .top_k = 2, .ffn_hidden = 2048}, 4096 + 2 * 4096 + 8192, 4096 + 4096},
        {{.n_experts = 8, .top_k = 2, .ffn_hidden = 2048, .first_dense_layers = 1},
         11008 + 2 * 11008,
         11008 + 4096},
        {{.n_experts = 8, .top_k = 2, .ffn_hidden = 6144, .n_shared = 2},
         12288 + 2 * 12288,
         12288 + 4096},
    };
    g_autoptr(ModelArch) arch = load("llama2-7b");
    const ModelShape shape = plain_shape(1, 512);

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        arch->experts = cases[i].experts;
        const ModelScratchBytes scratch = model_scratch_bytes(arch, &shape);
        g_assert_cmpint(scratch.backward_bytes, ==, 2 * 512 * cases[i].backward);
        g_assert_cmpint(scratch.input_bytes, ==, 2 * 512 * cases[i].input);
    }
}

/* One token of one expert model: no more experts work than rows arrive. */
static void
test_few_rows_reach_few_experts(void)
{
    g_autoptr(ModelArch) arch = load("deepseek-v3");
    ModelShape shape = plain_shape(1, 1);
    ModelOp ops[MODEL_MAX_OPS];
    const ModelOp *op = find_in_layer(arch, 60, &shape, "experts_up", ops);

    g_assert_cmpint(op->count, ==, 8);
    g_assert_cmpint(op->m, ==, 1);
}

static void
test_dense_layers_come_first(void)
{
    g_autoptr(ModelArch) arch = load("deepseek-v3");
    ModelShape shape = plain_shape(1, 128);
    ModelOp ops[MODEL_MAX_OPS];
    size_t n = model_ops(arch, MODEL_PART_LAYER, 2, &shape, ops);

    g_assert_nonnull(find(ops, n, "mlp_up"));
    g_assert_null(find(ops, n, "router"));
    n = model_ops(arch, MODEL_PART_LAYER, 3, &shape, ops);
    g_assert_null(find(ops, n, "mlp_up"));
    g_assert_nonnull(find(ops, n, "router"));
    g_assert_nonnull(find(ops, n, "shared_up"));
}

/* gpt-oss-120b: 4096 tokens to 4 of 128 experts on 64 ranks, 16384 rows of 2880 numbers to 2 local
 * experts.  Their second biases move 28 and 40 bytes a number in bf16, in 2 2 + 2 and 5 2 + 2
 * kernels; models whose experts have none, and frameworks that add them in the product, have no such
 * op.  The all-to-all dispatcher counts and copies in 13 kernels, 5 make maps, and the graph that
 * holds the router holds those that count. */
static void
test_biases_and_counts(void)
{
    g_autoptr(ModelArch) arch = load("gpt-oss-120b");
    g_autoptr(ModelArch) plain = load("mixtral-8x7b");
    ModelShape shape = plain_shape(1, 4096);
    ModelOp ops[MODEL_MAX_OPS];
    const ModelOp *op;

    shape.ep = 64;
    shape.dtype = DTYPE_BF16;
    find_in_layer(arch, 0, &shape, "norm1", ops);
    g_assert_null(find(ops, MODEL_MAX_OPS, "experts_bias"));
    g_assert_null(find(ops, MODEL_MAX_OPS, "count"));
    shape.expert_bias_apart = shape.sorts_received = true;
    /* With a capacity nothing is counted, but rows are put in order. */
    find_in_layer(arch, 0, &shape, "norm1", ops);
    g_assert_null(find(ops, MODEL_MAX_OPS, "count"));
    g_assert_nonnull(find(ops, MODEL_MAX_OPS, "maps"));
    shape.host_counts = true;
    shape.graphs = MODEL_SCOPE_ROUTER;
    op = find_in_layer(arch, 0, &shape, "experts_bias", ops);
    g_assert_cmpint(op->forward_bytes, ==, 28 * 16384 * 2880);
    g_assert_cmpint(op->backward_bytes, ==, INT64_C(40) * 16384 * 2880);
    g_assert_cmpint(op->n_kernels_forward, ==, 6);
    g_assert_cmpint(op->n_kernels_backward, ==, 12);
    g_assert_cmpint(op->count, ==, 2);
    g_assert_cmpint(find(ops, MODEL_MAX_OPS, "count")->n_kernels_forward, ==, 13);
    g_assert_true(find(ops, MODEL_MAX_OPS, "count")->captured);
    g_assert_cmpint(find(ops, MODEL_MAX_OPS, "maps")->n_kernels_forward, ==, 5);
    g_assert_false(find(ops, MODEL_MAX_OPS, "maps")->captured);
    g_assert_cmpint(find(ops, MODEL_MAX_OPS, "probabilities")->n_kernels_backward, ==, 2);
    shape.ep = 4;
    find_in_layer(plain, 0, &shape, "norm1", ops);
    g_assert_null(find(ops, MODEL_MAX_OPS, "experts_bias"));
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
#define ADD(path, function) g_test_add_func("/models/ops_experts/" path, function)
    ADD("tp-ranks-share-experts", test_tp_ranks_share_experts);
    ADD("dispatchers", test_dispatchers);
    ADD("biases-and-counts", test_biases_and_counts);
    ADD("probabilities-keep-the-activation", test_probabilities_keep_the_activation);
    ADD("experts-get-top-k-rows-per-token", test_experts_get_top_k_rows_per_token);
    ADD("tp-ranks-dispatch-their-share", test_tp_ranks_dispatch_their_share);
    ADD("rows-take-blocks", test_rows_take_blocks);
    ADD("scratch-is-of-the-widest-layer", test_scratch_is_of_the_widest_layer);
    ADD("few-rows-reach-few-experts", test_few_rows_reach_few_experts);
    ADD("dense-layers-come-first", test_dense_layers_come_first);
#undef ADD
    return g_test_run();
}
