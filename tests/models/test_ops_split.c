/* Tests of models/ops.h, model_ops() on several ranks: collectives, divided layers. */
#include "tests/models/ops_case.h"

/* --- collectives --- */

/* "AR", "AG", "RS", "A2A", "ring" of the direction, in the order of execution. */
static char *
collectives(const ModelArch *arch, ModelPart part, int64_t layer, const ModelShape *shape,
            bool backward, ModelGroup group)
{
    static const char *const names[] = {"", "AR", "AG", "RS", "A2A", "ring"};
    g_autoptr(GString) text = g_string_new(NULL);
    ModelOp ops[MODEL_MAX_OPS];
    size_t n = model_ops(arch, part, layer, shape, ops);

    for (size_t i = 0; i < n; i++) {
        const ModelOp *op = &ops[backward ? n - 1 - i : i];
        ModelComm comm = backward ? op->backward_comm : op->forward_comm;

        if (op->kind == MODEL_OP_COLLECTIVE && op->group == group && comm != MODEL_COMM_NONE)
            g_string_append_printf(text, "%s%s", text->len > 0 ? " " : "", names[comm]);
    }
    return g_string_free(g_steal_pointer(&text), FALSE);
}

static void
test_collectives_are_megatrons(void)
{
    static const struct {
        const char *model;
        ModelPart part;
        int64_t tp, cp, ep;
        bool sequence_parallel;
        ModelGroup group;
        const char *forward, *backward;
    } cases[] = {
        {"gpt3-1b", MODEL_PART_LAYER, 1, 1, 1, true, MODEL_GROUP_TP, "", ""},
        /* 1909.08053: g after each half in forward, f before each half in backward. */
        {"gpt3-1b", MODEL_PART_LAYER, 4, 1, 1, false, MODEL_GROUP_TP, "AR AR", "AR AR"},
        /* 2205.05198 figure 5; in backward the output's gradient is gathered, the input gathered
         * again, the input's gradient scattered. */
        {"gpt3-1b", MODEL_PART_LAYER, 4, 1, 1, true, MODEL_GROUP_TP, "AG RS AG RS",
         "AG AG RS AG AG RS"},
        {"llama3-8b", MODEL_PART_LAYER, 8, 1, 1, true, MODEL_GROUP_TP, "AG RS AG RS",
         "AG AG RS AG AG RS"},
        {"llama3-8b", MODEL_PART_LAYER, 1, 4, 1, false, MODEL_GROUP_CP, "ring", "ring ring"},
        {"llama3-8b", MODEL_PART_LAYER, 1, 1, 1, false, MODEL_GROUP_CP, "", ""},
        {"mixtral-8x7b", MODEL_PART_LAYER, 1, 1, 8, false, MODEL_GROUP_EP, "A2A A2A", "A2A A2A"},
        {"mixtral-8x7b", MODEL_PART_LAYER, 1, 1, 1, false, MODEL_GROUP_EP, "", ""},
        {"mixtral-8x7b", MODEL_PART_LAYER, 2, 1, 1, false, MODEL_GROUP_TP, "AR AG", "AG AR"},
        {"gpt3-1b", MODEL_PART_EMBEDDING, 4, 1, 1, false, MODEL_GROUP_TP, "AR", ""},
        {"gpt3-1b", MODEL_PART_EMBEDDING, 4, 1, 1, true, MODEL_GROUP_TP, "RS", "AG"},
        {"gpt3-1b", MODEL_PART_HEAD, 4, 1, 1, false, MODEL_GROUP_TP, "AR AR AR", "AR"},
        {"gpt3-1b", MODEL_PART_HEAD, 4, 1, 1, true, MODEL_GROUP_TP, "AG AR AR AR", "AG RS"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(ModelArch) arch = load(cases[i].model);
        ModelShape shape = plain_shape(1, 1024);
        g_autofree char *forward = NULL, *backward = NULL;

        shape.tp = cases[i].tp;
        shape.cp = cases[i].cp;
        shape.ep = cases[i].ep;
        shape.sequence_parallel = cases[i].sequence_parallel;
        forward = collectives(arch, cases[i].part, 0, &shape, false, cases[i].group);
        backward = collectives(arch, cases[i].part, 0, &shape, true, cases[i].group);
        g_test_message("case %zu", i);
        g_assert_cmpstr(forward, ==, cases[i].forward);
        g_assert_cmpstr(backward, ==, cases[i].backward);
    }
}

/* Each tensor-parallel collective of a dense layer moves s b h elements: the whole buffer. */
static void
test_collectives_carry_whole_activations(void)
{
    g_autoptr(ModelArch) arch = load("gpt3-1b");
    ModelShape shape = plain_shape(3, 512);
    ModelOp ops[MODEL_MAX_OPS];
    size_t n;

    shape.tp = 8;
    shape.sequence_parallel = true;
    n = model_ops(arch, MODEL_PART_LAYER, 0, &shape, ops);
    for (size_t i = 0; i < n; i++) {
        if (ops[i].kind == MODEL_OP_COLLECTIVE)
            g_assert_cmpint(ops[i].comm_bytes, ==, 2 * 3 * 512 * 2048);
    }
    /* The loss exchanges one fp32 per row. */
    n = model_ops(arch, MODEL_PART_HEAD, 0, &shape, ops);
    g_assert_cmpint(find(ops, n, "loss_sum")->comm_bytes, ==, 4 * 3 * 512);
}

/*
 * Llama 3 8B, 8192 tokens, tp 8: h = 4096, up gives 2 x 14336 / 8 columns.  torchao's ranks cast their
 * 1024 rows to fp8 and gather these: 1 byte of a number; gradients are summed in 2.  The head stays.
 */
static void
test_quantised_shards_are_gathered(void)
{
    g_autoptr(ModelArch) arch = load("llama3-8b");
    const int64_t numbers = 8192 * 4096;
    ModelOp ops[MODEL_MAX_OPS];

    for (int quantised = 0; quantised < 2; quantised++) {
        ModelShape shape = plain_shape(1, 8192);
        const double rows = quantised ? 1024.0 : 8192.0;

        shape.tp = 8;
        shape.sequence_parallel = true;
        shape.dtype = DTYPE_FP8;
        shape.quantised_gathers = quantised;
        const size_t n = model_ops(arch, MODEL_PART_LAYER, 0, &shape, ops);
        for (size_t i = 0; i < n; i++) {
            if (ops[i].kind != MODEL_OP_COLLECTIVE || strstr(ops[i].name, "again") != NULL)
                continue;
            const bool gathers_alone = (ops[i].forward_comm == MODEL_COMM_ALL_GATHER &&
                                        ops[i].backward_comm == MODEL_COMM_NONE) ||
                                       (ops[i].forward_comm == MODEL_COMM_NONE &&
                                        ops[i].backward_comm == MODEL_COMM_ALL_GATHER);
            g_assert_cmpint(ops[i].comm_bytes, ==, (gathers_alone ? 1 : 2) * numbers);
            g_assert_true(!gathers_alone || quantised);
        }
        g_assert_cmpfloat(find(ops, n, "mlp_up")->quantised_forward, ==, rows * 4096.0);
        g_assert_cmpfloat(find(ops, n, "mlp_down")->quantised_backward, ==, rows * 4096.0);
        g_assert_cmpfloat(find(ops, n, "proj")->quantised_backward, ==, rows * 4096.0);
        /* What no gather brings is a rank's own: 1792 columns of all rows. */
        g_assert_cmpfloat(find(ops, n, "mlp_down")->quantised_forward, ==, 8192.0 * 1792.0);
        g_autofree char *forward =
            collectives(arch, MODEL_PART_LAYER, 0, &shape, false, MODEL_GROUP_TP);
        g_autofree char *backward =
            collectives(arch, MODEL_PART_LAYER, 0, &shape, true, MODEL_GROUP_TP);
        g_assert_cmpstr(forward, ==, "AG RS AG RS");
        g_assert_true(g_str_has_prefix(backward, "AG AG RS AG"));

        const size_t n_head = model_ops(arch, MODEL_PART_HEAD, 0, &shape, ops);
        for (size_t i = 0; i < n_head; i++) {
            if (ops[i].forward_comm == MODEL_COMM_ALL_GATHER)
                g_assert_cmpint(ops[i].comm_bytes, ==, 2 * numbers);
        }
    }
}

/*
 * Parts of sums that tp ranks send one another: each reads the 8 parts of its eighth of the rows, which are as many
 * bytes as the whole result, and writes its rows: 9/8 of 8192 rows of 4096 in bf16, behind both halves of the layer.
 * The policy over ops keeps the sum; without sequence parallelism every rank needs all rows, and none adds up.
 */
static void
test_parts_of_sums_are_added_up(void)
{
    g_autoptr(ModelArch) arch = load("llama3-8b");
    ModelShape shape = plain_shape(1, 8192);
    ModelOp ops[MODEL_MAX_OPS];
    int n_sums = 0;

    shape.dtype = DTYPE_BF16;
    shape.tp = 8;
    shape.sums_parts = shape.sequence_parallel = true;
    shape.recompute_modules = UINT32_C(1) << MODEL_MODULE_OPS;
    const size_t n = model_ops(arch, MODEL_PART_LAYER, 0, &shape, ops);
    for (size_t i = 0; i < n; i++) {
        if (strcmp(ops[i].name, "parts_sum") != 0)
            continue;
        n_sums++;
        g_assert_cmpint(ops[i - 1].forward_comm, ==, MODEL_COMM_REDUCE_SCATTER);
        g_assert_cmpint(ops[i].forward_bytes, ==, 9 * 8192 / 8 * 4096 * 2);
        g_assert_cmpint(ops[i].backward_bytes, ==, 0);
        g_assert_cmpint(ops[i].n_kernels_forward, ==, 1);
        g_assert_cmpfloat(ops[i].again_fraction, ==, 0.0);
    }
    g_assert_cmpint(n_sums, ==, 2);
    const size_t n_embedding = model_ops(arch, MODEL_PART_EMBEDDING, 0, &shape, ops);
    for (size_t i = 0; i < n_embedding; i++)
        g_assert_cmpstr(ops[i].name, !=, "parts_sum");
    shape.sequence_parallel = false;
    find_in_layer(arch, 0, &shape, "proj", ops);
    g_assert_null(find(ops, MODEL_MAX_OPS, "parts_sum"));
}

/* Context parallelism divides tokens; K and V of all tokens pass the ring. */
static void
test_context_parallelism_divides_tokens(void)
{
    g_autoptr(ModelArch) arch = load("llama3-8b");
    ModelShape shape = plain_shape(2, 4096);
    ModelOp ops[MODEL_MAX_OPS];
    const ModelOp *op;

    shape.context = 4096;
    shape.cp = 4;
    op = find_in_layer(arch, 0, &shape, "attention", ops);
    g_assert_cmpint(op->m, ==, 1024);
    g_assert_cmpint(op->n, ==, 8192);
    op = find(ops, MODEL_MAX_OPS, "mlp_up");
    g_assert_cmpint(op->m, ==, 2 * 1024);
    op = find(ops, MODEL_MAX_OPS, "kv_exchange");
    g_assert_cmpint(op->comm_bytes, ==, 2 * 2 * (4096 + 4096) * 2 * 8 * 128);
    g_assert_cmpint(model_boundary_bytes(arch, &shape), ==, 2 * 2 * 1024 * 4096);
}

/* Gathered instead: the same bytes in one collective each way, none of a ring, and copies: forward
 * own and all, each read and written; backward the same, zeroes, all back, own added. */
static void
test_gathered_keys_are_put_in_order(void)
{
    const int64_t all = 2 * 2 * (4096 + 4096) * 2 * 8 * 128, own = all / 4;
    g_autoptr(ModelArch) arch = load("llama3-8b");
    ModelShape shape = plain_shape(2, 4096);
    ModelOp ops[MODEL_MAX_OPS];
    const ModelOp *op;

    shape.context = 4096;
    shape.gathered_kv = true;
    find_in_layer(arch, 0, &shape, "attention", ops);
    g_assert_null(find(ops, MODEL_MAX_OPS, "kv_order")); /* cp 1 */
    shape.cp = 4;
    op = find_in_layer(arch, 0, &shape, "kv_exchange", ops);
    g_assert_cmpint(op->forward_comm, ==, MODEL_COMM_ALL_GATHER);
    g_assert_cmpint(op->backward_comm, ==, MODEL_COMM_ALL_GATHER);
    g_assert_cmpint(op->comm_bytes, ==, all);
    op = find(ops, MODEL_MAX_OPS, "kv_gradient_exchange");
    g_assert_cmpint(op->forward_comm, ==, MODEL_COMM_NONE);
    g_assert_cmpint(op->backward_comm, ==, MODEL_COMM_REDUCE_SCATTER);
    g_assert_cmpint(op->comm_bytes, ==, all);
    op = find(ops, MODEL_MAX_OPS, "kv_order");
    g_assert_cmpint(op->memory_kind, ==, MODEL_MEMORY_COPY);
    g_assert_cmpint(op->group, ==, MODEL_GROUP_CP);
    g_assert_cmpint(op->forward_bytes, ==, 2 * own + 2 * all);
    g_assert_cmpint(op->backward_bytes, ==, 2 * own + 2 * all + all + 2 * all + 3 * own);
}

/*
 * Kernels of one share of K and V each: 3 of 4 results are added to the first, which is scaled (2
 * passes over it).  With O = 2 . 1024 . 4096 elements of queries and results, V = 2 . 2048 . 2048
 * of a share's keys and values: forward 2 O + 3 (3 O + V), backward 3 (2.5 O + 2 O + 3 V).
 */
static void
test_rings_merge_results(void)
{
    g_autoptr(ModelArch) arch = load("llama3-8b");
    const int64_t o = 2 * 2 * 1024 * 4096, v = 2 * 2 * 2048 * 2048;
    ModelShape shape = plain_shape(2, 4096);
    ModelOp ops[MODEL_MAX_OPS];
    const ModelOp *op;

    shape.context = 4096;
    shape.cp = 4;
    op = find_in_layer(arch, 0, &shape, "attention_merge", ops);
    g_assert_cmpint(op->forward_bytes, ==, 2 * o + 3 * (3 * o + v));
    g_assert_cmpint(op->backward_bytes, ==, 3 * (9 * o / 2 + 3 * v));
    g_assert_cmpint(op->n_kernels_forward, ==, 10);
    g_assert_cmpint(op->n_kernels_backward, ==, 18);
    g_assert_cmpint(op->saved_bytes, ==, 0);
    g_assert_true(op->core_attention);
    /* PyTorch's: O and the queries have 2 . 1024 . 4096 elements, K and V of all heads 4 times as many. */
    const int64_t n = 2 * 1024 * 4096;
    shape.torch_ring = true;
    op = find_in_layer(arch, 0, &shape, "attention_merge", ops);
    g_assert_cmpint(op->forward_bytes, ==, n * (2 * 6 + 3 * 38) + 2 * (2 * n) * 3 * 4);
    g_assert_cmpint(op->backward_bytes, ==, (n + 4 * n) * (10 + 4 * 10) + 4 * n * (4 * 8 + 3 * 4));
    g_assert_cmpint(find(ops, MODEL_MAX_OPS, "kv_exchange")->comm_bytes, ==,
                    2 * (4096 + 4096) * 2 * 4096 * 2);
    /* Those of all 4 ranks are there at once. */
    g_assert_cmpint(op->forward_transient_bytes, ==, 4 * 4 * n * 2);
    g_assert_cmpint(op->backward_transient_bytes, ==, 4 * 4 * n * 2);
    shape.torch_ring = false;
    shape.all_to_all = true;
    find_in_layer(arch, 0, &shape, "attention", ops);
    g_assert_null(find(ops, MODEL_MAX_OPS, "attention_merge"));
    shape.all_to_all = false;
    shape.gathered_kv = true;
    find_in_layer(arch, 0, &shape, "attention", ops);
    g_assert_null(find(ops, MODEL_MAX_OPS, "attention_merge"));
    shape.gathered_kv = false;
    shape.cp = 1;
    find_in_layer(arch, 0, &shape, "attention", ops);
    g_assert_null(find(ops, MODEL_MAX_OPS, "attention_merge"));
}

/* All tokens of a quarter of the heads: q (h), k and v (2 . 1024 of 8 heads) go there, the result
 * (h) comes back, each way; nothing passes a ring, and the FLOPs are the ring's. */
static void
test_heads_are_exchanged_for_tokens(void)
{
    g_autoptr(ModelArch) arch = load("llama3-8b");
    g_autoptr(GError) error = NULL;
    ModelShape shape = plain_shape(2, 4096);
    ModelOp ops[MODEL_MAX_OPS];
    const ModelOp *op;
    double ring_flops;

    shape.flash_attention = true;
    shape.cp = 4;
    ring_flops = find_in_layer(arch, 0, &shape, "attention", ops)->forward_flops;
    g_assert_null(find(ops, MODEL_MAX_OPS, "heads_split"));
    shape.all_to_all = true;
    op = find_in_layer(arch, 0, &shape, "attention", ops);
    g_assert_cmpint(op->m, ==, 4096);
    g_assert_cmpint(op->count, ==, 2 * 32 / 4);
    g_assert_cmpfloat(op->forward_flops, ==, ring_flops);
    /* q and result 1024 rows each of 4096, k and v of all 4096 tokens, 2 of the 8 heads. */
    g_assert_cmpint(op->forward_bytes, ==,
                    2 * 2 * (1024 * 4096 + 1024 * 4096 + 4096 * 2 * 2 * 128));
    g_assert_null(find(ops, MODEL_MAX_OPS, "kv_exchange"));
    op = find(ops, MODEL_MAX_OPS, "heads_split");
    g_assert_cmpint(op->group, ==, MODEL_GROUP_CP);
    g_assert_cmpint(op->forward_comm, ==, MODEL_COMM_ALL_TO_ALL);
    g_assert_cmpint(op->backward_comm, ==, MODEL_COMM_ALL_TO_ALL);
    g_assert_cmpint(op->comm_bytes, ==, 2 * 1024 * (4096 + 2 * 1024) * 2);
    op = find(ops, MODEL_MAX_OPS, "heads_merge");
    g_assert_cmpint(op->comm_bytes, ==, 2 * 1024 * 4096 * 2);
    g_assert_true(model_shape_check(arch, &shape, &error));
    shape.cp = 16;
    g_assert_false(model_shape_check(arch, &shape, &error));
    g_assert_nonnull(strstr(error->message, "8 key/value heads"));
}

/* The loss over n logits of 2 bytes.  Plain: kept in fp32.  Compiled: a copy in fp32 and one in 2
 * bytes besides while forward runs.  Fused: the gradient in 2 bytes alone. */
static void
test_losses_keep_what_they_keep(void)
{
    g_autoptr(ModelArch) arch = load("llama3-8b");
    ModelShape shape = plain_shape(1, 1024);
    const int64_t n = INT64_C(1024) * 128256;
    ModelOp ops[MODEL_MAX_OPS];
    size_t last;

    last = model_ops(arch, MODEL_PART_HEAD, 0, &shape, ops) - 1;
    g_assert_cmpint(ops[last].memory_kind, ==, MODEL_MEMORY_LOSS);
    g_assert_cmpint(ops[last].saved_bytes, ==, 4 * n);
    g_assert_cmpint(ops[last].forward_transient_bytes, ==, 0);
    shape.compiled_loss = true;
    model_ops(arch, MODEL_PART_HEAD, 0, &shape, ops);
    g_assert_cmpint(ops[last].saved_bytes, ==, 4 * n);
    g_assert_cmpint(ops[last].forward_transient_bytes, ==, 6 * n);
    g_assert_cmpint(ops[last].forward_bytes, ==, 22 * n);
    shape.compiled_loss = false;
    shape.fused_loss = true;
    model_ops(arch, MODEL_PART_HEAD, 0, &shape, ops);
    g_assert_cmpint(ops[last].saved_bytes, ==, 2 * n);
    g_assert_cmpint(ops[last].forward_bytes, ==, 6 * n);
    g_assert_cmpint(ops[last].backward_bytes, ==, 4 * n);
}

/* --- splits and experts --- */

/* Beyond what torch's softmax keeps: its input in fp32; at its gradient (2 + 8) bytes a score. */
static void
test_torch_softmax_has_more_while_it_runs(void)
{
    g_autoptr(ModelArch) arch = load("llama3-8b");
    ModelShape shape = plain_shape(1, 1024);
    const int64_t scores = INT64_C(32) * 1024 * 1024;
    ModelOp ops[MODEL_MAX_OPS];
    const ModelOp *op;

    shape.eager_softmax = true;
    op = find_in_layer(arch, 0, &shape, "attention", ops);
    g_assert_cmpint(op->saved_bytes, ==, 6 * scores);
    g_assert_cmpint(op->forward_transient_bytes, ==, 4 * scores);
    g_assert_cmpint(op->backward_transient_bytes, ==, 10 * scores);
}

/* The FLOPs of all tp ranks are those of one device. */
static void
test_tensor_parallelism_divides_flops(void)
{
    static const char *const names[] = {"gpt3-175b", "llama3-70b"};

    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autoptr(ModelArch) arch = load(names[i]);
        ModelShape one = plain_shape(2, 2048), split = one;
        ModelOp ops[MODEL_MAX_OPS];
        double flops[2] = {0.0, 0.0};
        size_t n;

        split.tp = 8;
        n = model_ops(arch, MODEL_PART_LAYER, 0, &one, ops);
        for (size_t j = 0; j < n; j++) {
            flops[0] += ops[j].forward_flops;
            g_assert_cmpfloat(ops[j].backward_flops, ==, 2.0 * ops[j].forward_flops);
        }
        n = model_ops(arch, MODEL_PART_LAYER, 0, &split, ops);
        for (size_t j = 0; j < n; j++)
            flops[1] += ops[j].forward_flops;
        g_assert_cmpfloat_with_epsilon(8.0 * flops[1], flops[0], 1e-9 * flops[0]);
    }
}

/*
 * DeepSeek-V3's attention, per head: queries and keys of 128 + 64, values of 128; the tp ranks
 * exchange the latents, 1536 + 512 + 64, not the hidden state.
 */
static void
test_mla_has_two_head_sizes(void)
{
    g_autoptr(ModelArch) arch = load("deepseek-v3");
    ModelShape shape = plain_shape(1, 1024);
    ModelOp ops[MODEL_MAX_OPS];
    const ModelOp *op;
    double scores = 32.0 * 1024.0 * 1024.0;

    shape.tp = 4;
    shape.sequence_parallel = true;
    op = find_in_layer(arch, 0, &shape, "attention", ops);
    g_assert_cmpint(op->count, ==, 32);
    g_assert_cmpint(op->k, ==, 192);
    g_assert_cmpfloat(op->forward_flops, ==, 2.0 * scores * (192.0 + 128.0));
    g_assert_cmpint(sum(arch, MODEL_PART_LAYER, 0, &shape, SAVED_KV), ==,
                    2 * 1024 * 32 * (192 + 128));
    g_assert_cmpint(find(ops, MODEL_MAX_OPS, "latent")->comm_bytes, ==,
                    2 * 1024 * (1536 + 512 + 64));
    g_assert_cmpint(find(ops, MODEL_MAX_OPS, "proj")->k, ==, 32 * 128);
}

/*
 * torchtitan's op-level policy on Llama 3 8B, 1024 tokens in bf16: products q, k, v, proj, up, gate,
 * down in this order, of which k, proj and gate run again; so does all that is bound by memory before
 * the last product.  Kept: the layer's input, results of q, v, up and down, and attention's with 4
 * bytes a row and head: 2 (4096 + 4096 + 1024 + 14336 + 4096 + 4096) + 4 . 32 bytes a token.
 */
static void
test_op_policy_keeps_every_second_product(void)
{
    static const char *const repeated[] = {"norm1", "k",        "rope",          "proj",
                                           "norm2", "mlp_gate", "mlp_activation"};
    static const char *const kept[] = {"q", "v", "attention", "mlp_up", "mlp_down", "residual2"};
    g_autoptr(ModelArch) arch = load("llama3-8b");
    ModelShape shape = plain_shape(1, 1024);
    ModelOp ops[MODEL_MAX_OPS];
    int64_t kept_bytes = 0;

    shape.flash_attention = shape.separate_matrices = true;
    shape.recompute_modules = UINT32_C(1) << MODEL_MODULE_OPS;
    const size_t n = model_ops(arch, MODEL_PART_LAYER, 0, &shape, ops);
    for (size_t i = 0; i < n; i++)
        kept_bytes += ops[i].saved_bytes - ops[i].again_bytes - ops[i].again_kv_bytes;
    g_assert_cmpint(kept_bytes, ==,
                    1024 * (2 * (4096 + 4096 + 1024 + 14336 + 4096 + 4096) + 4 * 32));
    for (size_t i = 0; i < G_N_ELEMENTS(repeated); i++)
        g_assert_cmpfloat(find(ops, n, repeated[i])->again_fraction, ==, 1.0);
    for (size_t i = 0; i < G_N_ELEMENTS(kept); i++)
        g_assert_cmpfloat(find(ops, n, kept[i])->again_fraction, ==, 0.0);
    /* Three products read the input: two sums of their gradients, each of 3 passes. */
    g_assert_cmpint(find(ops, n, "attention_input_sum")->backward_bytes, ==,
                    2 * 3 * 2 * 1024 * 4096);
    g_assert_cmpint(find(ops, n, "mlp_input_sum")->backward_bytes, ==, 3 * 2 * 1024 * 4096);
    shape.recompute_modules = 0;
    model_ops(arch, MODEL_PART_LAYER, 0, &shape, ops);
    g_assert_cmpfloat(find(ops, n, "k")->again_fraction, ==, 0.0);
    g_assert_cmpfloat(find(ops, n, "attention")->again_fraction, ==, 1.0);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
#define ADD(path, function) g_test_add_func("/models/ops_split/" path, function)
    ADD("collectives-are-megatrons", test_collectives_are_megatrons);
    ADD("collectives-carry-whole-activations", test_collectives_carry_whole_activations);
    ADD("quantised-shards-are-gathered", test_quantised_shards_are_gathered);
    ADD("parts-of-sums-are-added-up", test_parts_of_sums_are_added_up);
    ADD("context-parallelism-divides-tokens", test_context_parallelism_divides_tokens);
    ADD("gathered-keys-are-put-in-order", test_gathered_keys_are_put_in_order);
    ADD("rings-merge-results", test_rings_merge_results);
    ADD("heads-are-exchanged-for-tokens", test_heads_are_exchanged_for_tokens);
    ADD("losses-keep-what-they-keep", test_losses_keep_what_they_keep);
    ADD("torch-softmax-has-more-while-it-runs", test_torch_softmax_has_more_while_it_runs);
    ADD("tensor-parallelism-divides-flops", test_tensor_parallelism_divides_flops);
    ADD("op-policy-keeps-every-second-product", test_op_policy_keeps_every_second_product);
    ADD("mla-has-two-head-sizes", test_mla_has_two_head_sizes);
#undef ADD
    return g_test_run();
}
