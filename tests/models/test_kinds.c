/* Tests of layers of several kinds: their description in files, what a window needs, what is shared. */
#include "models/ops.h"

#include <string.h>

#include "tests/models/arch_case.h"

#define TOP                                                                                        \
    "{\"family\":\"llama\",\"n_layers\":8,\"hidden\":64,\"n_heads\":4,\"n_kv_heads\":2,"           \
    "\"head_dim\":16,\"ffn_hidden\":96,\"vocab\":100,\"max_seq_len\":4096,"
#define STATE                                                                                      \
    "\"state\":{\"n_heads\":4,\"n_key_heads\":2,\"key_dim\":8,\"value_dim\":32,\"conv\":4}"

static const char mixed[] =
    TOP "\"experts\":{\"n_experts\":8,\"top_k\":2,\"ffn_hidden\":32},"
        "\"kinds\":{\"near\":{\"window\":128,\"experts\":null},\"far\":{\"n_kv_heads\":4},"
        "\"delta\":{\"mixer\":\"delta_net\",\"ffn\":\"none\"," STATE "}},"
        "\"layers\":\"2*(2*near, delta), near, far\"}";

static ModelArch *
parse(const char *text, GError **error)
{
    g_autoptr(JsonDoc) doc = json_doc_parse("m.json", text, strlen(text), error);
    g_autoptr(ModelArch) arch = NULL;

    if (doc == NULL)
        return NULL;
    arch = model_arch_read(doc, json_doc_root(doc, NULL, 1));
    return json_doc_finish(doc, error) ? g_steal_pointer(&arch) : NULL;
}

static char *
write_text(const ModelArch *arch)
{
    g_autoptr(JsonWriter) writer = json_writer_new();

    model_arch_write(writer, NULL, arch);
    return json_writer_steal(writer, NULL);
}

static void
test_kinds_have_what_the_top_has_and_they_do_not_change(void)
{
    static const int32_t expect[] = {0, 0, 2, 0, 0, 2, 0, 1};
    g_autoptr(GError) error = NULL;
    g_autoptr(ModelArch) arch = parse(mixed, &error);
    int64_t counts[MODEL_MAX_KINDS];

    g_assert_no_error(error);
    g_assert_cmpint(model_n_kinds(arch), ==, 3);
    for (int64_t layer = 0; layer < 8; layer++)
        g_assert_cmpint(model_layer_kind(arch, layer), ==, expect[layer]);
    model_count_kinds(arch, counts);
    g_assert_cmpint(counts[0], ==, 5);
    g_assert_cmpint(counts[1], ==, 1);
    g_assert_cmpint(counts[2], ==, 2);
    g_assert_cmpint(counts[3], ==, 0);
    const ModelArch near = model_layer_arch(arch, 0), far = model_layer_arch(arch, 7);
    g_assert_cmpint(near.window, ==, 128);
    g_assert_cmpint(near.n_kv_heads, ==, 2);
    g_assert_cmpint(near.experts.n_experts, ==, 0);
    g_assert_cmpint(far.window, ==, 0);
    g_assert_cmpint(far.n_kv_heads, ==, 4);
    g_assert_cmpint(far.experts.n_experts, ==, 8);
    g_assert_false(model_layer_is_moe(arch, 2));
    g_assert_cmpint(model_n_moe_layers(arch), ==, 1);

    /* Norms, attention (q, k, v, o), MLP; 4 heads of 8 x 32, 2 key heads. */
    const int64_t mlp = 3 * 64 * 96, ends = 2 * 100 * 64 + 64;
    const int64_t near_n = 2 * 64 + 64 * (64 + 2 * 32) + 64 * 64 + mlp;
    const int64_t far_n = 2 * 64 + 64 * 3 * 64 + 64 * 64 + 64 * 8 + 8 * 3 * 64 * 32;
    const int64_t delta_n =
        64 + 64 * (2 * 16 + 2 * 128 + 2 * 4) + 4 * (2 * 16 + 128) + 2 * 4 + 32 + 128 * 64;
    g_assert_cmpint(model_parameters(arch), ==, ends + 5 * near_n + far_n + 2 * delta_n);
    g_assert_cmpint(model_active_parameters(arch), ==,
                    ends + 5 * near_n + far_n + 2 * delta_n - 6 * 3 * 64 * 32);
}

static void
test_files_with_kinds_are_read_back_as_they_were_written(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(ModelArch) arch = parse(mixed, &error);
    g_autofree char *text = write_text(arch);
    g_autoptr(ModelArch) again = parse(text, &error);
    g_autofree char *text_again = write_text(again);
    g_autoptr(ModelArch) copy = model_arch_copy(arch);
    g_autofree char *text_of_copy = write_text(copy);

    g_assert_no_error(error);
    g_assert_cmpstr(text, ==, text_again);
    g_assert_cmpstr(text, ==, text_of_copy);
    g_assert_nonnull(strstr(text, "\"layers\": \"2*(2*near, delta), near, far\""));
    g_assert_null(model_arch_difference(arch, again));
    /* Cut short, the model is written with what is left. */
    copy->n_layers = 4;
    g_autofree char *cut = write_text(copy);
    g_assert_nonnull(strstr(cut, "\"layers\": \"2*near, delta, near\""));
    g_assert_null(strstr(cut, "\"far\""));
    g_autoptr(ModelArch) cut_again = parse(cut, &error);
    g_assert_no_error(error);
    g_assert_cmpint(model_parameters(cut_again), ==, model_parameters(copy));
    /* Made longer, it begins again. */
    copy->n_layers = 11;
    g_assert_cmpint(model_layer_kind(copy, 10), ==, 2);
}

static void
test_what_is_wrong_is_said_where_it_is(void)
{
    static const struct {
        const char *rest, *expect;
    } cases[] = {
        {"\"kinds\":{\"a\":{}},\"layers\":\"7*a\"}",
         "$.layers: at letter 4: 7 layers, expected n_layers, 8"},
        {"\"kinds\":{\"a\":{}},\"layers\":\"9*a\"}", "$.layers: at letter 4: more than the 8"},
        {"\"kinds\":{\"a\":{}},\"layers\":\"99999999999999999999*(9*(a))\"}", "more than the 8"},
        {"\"kinds\":{\"a\":{}},\"layers\":\"8a\"}", "at letter 2: expected * after a number"},
        {"\"kinds\":{\"a\":{}},\"layers\":\"0*a\"}", "expected to repeat once or more often"},
        {"\"kinds\":{\"a\":{}},\"layers\":\"8*(a\"}", "at letter 5: expected ) or a comma"},
        {"\"kinds\":{\"a\":{}},\"layers\":\"8*a)\"}", "at letter 4: expected a comma or the end"},
        {"\"kinds\":{\"a\":{}},\"layers\":\"\"}", "at letter 1: expected the name of a kind"},
        {"\"kinds\":{\"sliding\":{}},\"layers\":\"8*slidng\"}",
         "\"slidng\" is no kind of this model's layers: did you mean \"sliding\"?"},
        {"\"kinds\":{\"a\":{},\"b\":{}},\"layers\":\"8*a\"}",
         "$.kinds.b: no layer is of this kind"},
        {"\"kinds\":{\"a\":{}}}", "$.layers: missing key"},
        {"\"layers\":\"8*a\"}", "$.layers: expected \"kinds\", too"},
        {"\"kinds\":{},\"layers\":\"8*a\"}", "$.kinds: expected 1 to 8 kinds"},
        {"\"kinds\":{\"5a\":{}},\"layers\":\"8*a\"}",
         "$.kinds[\"5a\"]: expected a name of at most 31"},
        {"\"kinds\":{\"a\":{\"vocab\":1}},\"layers\":\"8*a\"}", "$.kinds.a.vocab: unknown key"},
        {"\"kinds\":{\"a\":{\"windw\":1}},\"layers\":\"8*a\"}", "did you mean \"window\""},
        {"\"kinds\":{\"a\":{\"mixer\":\"mamba3\"}},\"layers\":\"8*a\"}",
         "did you mean \"mamba2\"?"},
        {"\"kinds\":{\"a\":{\"window\":4097}},\"layers\":\"8*a\"}",
         "$.kinds.a.window: window 4097 is longer than max_seq_len, 4096"},
        {"\"kinds\":{\"a\":{\"window\":8,\"chunk\":8}},\"layers\":\"8*a\"}",
         "expected one of them"},
        {"\"kinds\":{\"a\":{\"mixer\":\"none\",\"ffn\":\"none\"}},\"layers\":\"8*a\"}",
         "neither a mixer nor a feed-forward"},
        {"\"kinds\":{\"a\":{\"mixer\":\"mamba\"," STATE "}},\"layers\":\"8*a\"}",
         "mixer \"mamba\": expected a rank"},
        {"\"mixer\":\"mamba2\"}", "mixer \"mamba2\": expected \"state\", too"},
        {"\"mixer\":\"mamba2\",\"state\":{\"n_heads\":4,\"n_key_heads\":3,\"key_dim\":8,"
         "\"value_dim\":8}}",
         "$.state.n_key_heads: n_key_heads 3 does not divide the state's n_heads 4"},
        {"\"experts\":{\"n_experts\":8,\"top_k\":2,\"ffn_hidden\":32,\"first_dense_layers\":1},"
         "\"kinds\":{\"a\":{}},\"layers\":\"8*a\"}",
         "\"layers\" says which layers have experts"},
        {"\"rotary_dim\":18}", "$.rotary_dim: rotary_dim 18 is more than head_dim, 16"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *text = g_strconcat(TOP, cases[i].rest, NULL);
        g_autoptr(GError) error = NULL;
        g_autoptr(ModelArch) arch = parse(text, &error);

        g_test_message("%s: %s", cases[i].rest, error == NULL ? "accepted" : error->message);
        g_assert_null(arch);
        g_assert_error(error, JSON_ERROR, JSON_ERROR_INVALID);
        g_assert_nonnull(strstr(error->message, cases[i].expect));
    }
}

static ModelOp
op_of(const ModelArch *arch, int64_t layer, const ModelShape *shape, const char *name)
{
    ModelOp ops[MODEL_MAX_OPS];
    const size_t n = model_ops(arch, MODEL_PART_LAYER, layer, shape, ops);

    for (size_t i = 0; i < n; i++)
        if (strcmp(ops[i].name, name) == 0)
            return ops[i];
    g_error("layer %d has no op %s", (int)layer, name);
}

/* Pairs of a query and a key, one by one. */
static int64_t
count_pairs(int64_t begin, int64_t end, int64_t window, int64_t chunk, int64_t *n_keys)
{
    int64_t n = 0, first = end;

    for (int64_t q = begin; q < end; q++)
        for (int64_t k = 0; k <= q; k++)
            if ((window == 0 || q - k < window) && (chunk == 0 || q / chunk == k / chunk)) {
                n++;
                first = MIN(first, k);
            }
    *n_keys = end - first;
    return n;
}

static void
test_attention_needs_the_pairs_that_its_window_has(void)
{
    static const int64_t bounds[][2] = {{0, 0}, {1, 0}, {5, 0}, {64, 0}, {200, 0}, {0, 8}, {0, 24}};
    static const int64_t slices[][2] = {{0, 128}, {0, 7}, {7, 50}, {57, 71}, {120, 8}};
    g_autoptr(GError) error = NULL;
    g_autofree char *text = g_strconcat(TOP "\"tied_embeddings\":true}", NULL);
    g_autoptr(ModelArch) arch = parse(text, &error);

    g_assert_no_error(error);
    for (size_t i = 0; i < G_N_ELEMENTS(bounds); i++)
        for (size_t j = 0; j < G_N_ELEMENTS(slices); j++) {
            const int64_t begin = slices[j][0], tokens = slices[j][1];
            const ModelShape shape = {.batch = 3,
                                      .tokens = tokens,
                                      .context = begin,
                                      .tp = 2,
                                      .cp = 1,
                                      .ep = 1,
                                      .flash_attention = true,
                                      .dtype = DTYPE_BF16,
                                      .expert_imbalance = 1.0};
            int64_t n_keys;
            const int64_t n =
                count_pairs(begin, begin + tokens, bounds[i][0], bounds[i][1], &n_keys);
            arch->window = bounds[i][0];
            arch->chunk = bounds[i][1];
            const ModelOp op = op_of(arch, 0, &shape, "attention");
            const double all = (double)op.count * (double)tokens * (double)op.n;

            g_assert_cmpint(op.count, ==, 3 * 2);
            g_assert_cmpint(op.n, ==, n_keys);
            g_assert_cmpfloat_with_epsilon(op.needed_fraction * all, 6.0 * (double)n, 1e-6);
            g_assert_cmpfloat_with_epsilon(op.forward_flops * op.causal_fraction,
                                           2.0 * 6.0 * (double)n * 32.0, 1e-4);
            g_assert_cmpfloat(op.forward_flops, <=, 2.0 * all * 32.0 + 1e-6);
        }
}

/* A state takes the same from every slice; a slice that is not the first keeps what it was handed:
 * the states of 4 heads of 8 x 32, and 3 rows of 160 channels before the convolution, in fp32. */
static void
test_a_scan_does_not_depend_on_what_was_before(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(ModelArch) arch = parse(mixed, &error);
    ModelShape shape = {.batch = 2,
                        .tokens = 512,
                        .tp = 1,
                        .cp = 1,
                        .ep = 1,
                        .flash_attention = true,
                        .dtype = DTYPE_BF16,
                        .expert_imbalance = 1.0};
    ModelOp first[MODEL_MAX_OPS], later[MODEL_MAX_OPS];

    g_assert_no_error(error);
    const size_t n = model_ops(arch, MODEL_PART_LAYER, 2, &shape, first);
    shape.context = 3 * 512;
    g_assert_true(model_ops(arch, MODEL_PART_LAYER, 2, &shape, later) == n);
    for (size_t i = 0; i < n; i++) {
        g_assert_cmpfloat(first[i].forward_flops, ==, later[i].forward_flops);
        g_assert_cmpint(first[i].forward_bytes, ==, later[i].forward_bytes);
        const int64_t handed = first[i].kind == MODEL_OP_SCAN ? 2 * 4 * (4 * 8 * 32 + 3 * 160) : 0;
        g_assert_cmpint(first[i].saved_bytes, ==, later[i].saved_bytes - handed);
        g_assert_cmpint(first[i].saved_kv_bytes, ==, 0);
        g_assert_cmpint(later[i].saved_kv_bytes, ==, handed);
    }
    /* The weights of its ops are its parameters. */
    int64_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += first[i].weight_bytes;
    g_assert_cmpint(bytes, ==,
                    2 * model_part_parameters(arch, MODEL_PART_LAYER, 2, 1, 1, 1, false));
    /* Of 512 tokens 8 chunks of 64, by token and head of 8 x 32: scores with keys and values, what
     * the state gives and takes; and the delta rule's own. */
    const double flops =
        64.0 * 40.0 + 4.0 * 256.0 + 64.0 * 8.0 + 64.0 * 64.0 / 3.0 + 64.0 * 40.0 + 2.0 * 256.0;
    const ModelOp scan = op_of(arch, 2, &shape, "scan");
    g_assert_cmpfloat_with_epsilon(scan.forward_flops, 2.0 * 4.0 * 512.0 * flops, 1.0);
}

/*
 * Mamba-2's kernels, 512 tokens of 2 sequences, 4 heads of keys of 8 and values of 32, chunks of 64: by
 * token and head 8 tiles of 40 elements of 2 bytes forward, 24 backward (cost-model.md 2.7); states of
 * 2 x 4 x 8 chunks of 8 x 32 numbers of 4 bytes, moved 4 and 12 times.
 */
static void
test_a_scan_of_mamba2_moves_tiles_and_states(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(ModelArch) arch =
        parse(TOP "\"mixer\":\"mamba2\",\"ffn\":\"none\"," STATE "}", &error);
    const ModelShape shape = {.batch = 2,
                              .tokens = 512,
                              .tp = 1,
                              .cp = 1,
                              .ep = 1,
                              .dtype = DTYPE_BF16,
                              .expert_imbalance = 1.0};
    const int64_t tile = 2 * 512 * 4 * 40 * 2, states = 2 * 4 * 8 * 8 * 32 * 4;
    ModelShape split = shape;
    ModelOp ops[MODEL_MAX_OPS];
    int64_t exchanged = 0;
    int n_exchanges = 0;

    g_assert_no_error(error);
    const ModelOp scan = op_of(arch, 0, &shape, "scan");
    g_assert_cmpint(scan.forward_bytes, ==, 8 * tile + 4 * states);
    g_assert_cmpint(scan.backward_bytes, ==, 24 * tile + 12 * states);
    /* Two ranks have all tokens of half the heads each: half of it, not a quarter.  Of 256 rows of 2
     * sequences they exchange gates and values of 4 x 32, B and C of 2 x 8 and 4 time steps, 292 columns,
     * in five exchanges, which are copied three times, and the result of 128, copied twice. */
    split.cp = 2;
    const ModelOp half = op_of(arch, 0, &split, "scan");
    g_assert_cmpint(half.forward_bytes, ==, scan.forward_bytes / 2);
    g_assert_cmpint(half.backward_bytes, ==, scan.backward_bytes / 2);
    const size_t n = model_ops(arch, MODEL_PART_LAYER, 0, &split, ops);
    for (size_t i = 0; i < n; i++) {
        if (strcmp(ops[i].name, "heads_split") != 0)
            continue;
        exchanged += ops[i].comm_bytes;
        n_exchanges++;
    }
    g_assert_cmpint(n_exchanges, ==, 5);
    g_assert_cmpint(exchanged, ==, 2 * 256 * 292 * 2);
    g_assert_cmpint(op_of(arch, 0, &split, "heads_merge").comm_bytes, ==, 2 * 256 * 128 * 2);
    const ModelOp copies = op_of(arch, 0, &split, "heads_copies");
    g_assert_cmpint(copies.forward_bytes, ==, 2 * 2 * 256 * 2 * (3 * 292 + 2 * 128));
    g_assert_cmpint(copies.n_kernels_forward, ==, 9);
    /* Four ranks with two groups: each of these for two ranks, 324 columns. */
    split.cp = 4;
    g_assert_cmpint(op_of(arch, 0, &split, "heads_copies").forward_bytes, ==,
                    2 * 2 * 128 * 2 * (3 * 324 + 2 * 128));
}

/*
 * Experts of a graph of the whole iteration: 1024 rows of 2 experts each, 2048 that come, of 64 numbers to 2 x 32 and
 * back: backward reads 64, 64 and 32 of 2 bytes of each, 1.2 times as many rows have room, and while the layer is
 * at work 1.5 times as many besides.  Megatron-Core with HybridEP alone.
 */
static void
test_a_graph_has_room_for_rows_of_experts(void)
{
    static const char text[] = TOP "\"experts\":{\"n_experts\":8,\"top_k\":2,\"ffn_hidden\":32}}";
    g_autoptr(GError) error = NULL;
    g_autoptr(ModelArch) arch = parse(text, &error);
    static const struct {
        const char *name;
        int64_t width;
    } rows[] = {{"experts_up", 64}, {"experts_activation", 64}, {"experts_down", 32}};
    const int64_t room = 2048 * (64 + 64 + 32) * 2 * 3 / 2;
    ModelShape shape = {.batch = 2,
                        .tokens = 512,
                        .tp = 1,
                        .cp = 1,
                        .ep = 4,
                        .dtype = DTYPE_BF16,
                        .expert_imbalance = 1.0,
                        .one_copy = true,
                        .fused_permute = true,
                        .host_counts = true};

    g_assert_no_error(error);
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        const int64_t saved = 2048 * rows[i].width * 2;
        shape.graphs = 0;
        const ModelOp eager = op_of(arch, 0, &shape, rows[i].name);
        g_assert_cmpint(eager.saved_bytes, ==, saved);
        shape.graphs = (int)MODEL_SCOPE_ITERATION;
        const ModelOp captured = op_of(arch, 0, &shape, rows[i].name);
        g_assert_cmpint(captured.saved_bytes, ==, saved * 12 / 10);
        g_assert_cmpint(captured.forward_transient_bytes, ==, eager.forward_transient_bytes + room);
        g_assert_cmpint(captured.backward_transient_bytes, ==,
                        eager.backward_transient_bytes + room);
        shape.fused_permute = false;
        g_assert_cmpint(op_of(arch, 0, &shape, rows[i].name).saved_bytes, ==, saved);
        shape.fused_permute = true;
    }
}

static void
test_degrees_divide_what_every_kind_has(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(ModelArch) arch = parse(mixed, &error);
    ModelShape shape = {.batch = 1,
                        .tokens = 64,
                        .tp = 4,
                        .cp = 1,
                        .ep = 1,
                        .dtype = DTYPE_BF16,
                        .expert_imbalance = 1.0};

    g_assert_no_error(error);
    g_assert_true(model_shape_check(arch, &shape, &error));
    arch->kinds[2].state.n_heads = 6;
    g_assert_false(model_shape_check(arch, &shape, &error));
    g_assert_nonnull(strstr(error->message, "tp 4 does not divide the 6 heads of the state"));
    g_clear_error(&error);
    shape.tp = 2;
    shape.cp = 2;
    g_assert_false(model_shape_check(arch, &shape, &error));
    g_assert_nonnull(strstr(error->message, "cp 2: tp * cp = 4 must divide the 6 heads"));
    g_clear_error(&error);
    /* degas's executor hands states on: each rank has all heads of its tokens. */
    shape.row_blocks = true;
    g_assert_true(model_shape_check(arch, &shape, &error));
    g_assert_no_error(error);
    shape.row_blocks = false;
    /* 12 heads of 3 keys over 1 x 2: no rank has whole groups.  Over 1 x 3 and 1 x 6 it has one. */
    arch->kinds[2].state.n_heads = 12;
    arch->kinds[2].state.n_key_heads = 3;
    shape.tp = 1;
    g_assert_false(model_shape_check(arch, &shape, &error));
    g_assert_nonnull(strstr(error->message, "cp 2: tp * cp = 2 must divide the 3 key heads of the "
                                            "state"));
    g_clear_error(&error);
    for (shape.cp = 3; shape.cp <= 6; shape.cp += 3)
        g_assert_true(model_shape_check(arch, &shape, &error));
    shape.cp = 1;
    shape.ep = 3;
    g_assert_false(model_shape_check(arch, &shape, &error));
    g_assert_nonnull(strstr(error->message, "ep 3 does not divide the 8 experts"));
}

/* Where the weights of ops and the parameters of a layer are counted apart, they agree. */
static void
test_weights_of_ops_are_the_parameters(void)
{
    static const char *const layers[] = {
        "\"window\":64}",
        "\"qk_norm\":true}",
        "\"qk_norm\":true,\"qk_norm_kind\":\"row\"}",
        "\"output_gate\":\"element\",\"qkv_bias\":true,\"proj_bias\":true}",
        "\"output_gate\":\"head\"}",
        "\"v_dim\":8}",
        "\"activation\":\"gelu\",\"mlp_bias\":true,\"norm\":\"layer\"}",
        "\"activation\":\"relu2\",\"norm\":\"layer_scale\"}",
        "\"norm\":\"plain\"}",
        "\"norm_place\":\"post\"}",
        "\"norm_place\":\"sandwich\"}",
        "\"blocks\":\"parallel\"}",
        "\"blocks\":\"parallel_one_norm\"}",
        "\"ffn\":\"none\"}",
        "\"mixer\":\"none\"}",
        "\"mixer\":\"mamba2\"," STATE "}",
        "\"mixer\":\"attention_mamba2\"," STATE "}",
        "\"mixer\":\"lightning\",\"state\":{\"n_heads\":4,\"key_dim\":8,\"value_dim\":8}}",
        "\"mixer\":\"kda\",\"state\":{\"n_heads\":4,\"key_dim\":8,\"value_dim\":8,\"conv\":4,"
        "\"rank\":6}}",
        "\"mixer\":\"mamba\",\"state\":{\"n_heads\":64,\"n_key_heads\":1,\"key_dim\":8,"
        "\"value_dim\":1,\"conv\":4,\"conv_bias\":true,\"rank\":6,\"no_norm\":true}}",
        "\"mixer\":\"conv\",\"state\":{\"n_heads\":64,\"n_key_heads\":1,\"key_dim\":1,"
        "\"value_dim\":1,\"conv\":3,\"no_norm\":true}}",
        "\"mla\":{\"q_lora_rank\":24,\"kv_lora_rank\":16,\"qk_nope_head_dim\":8,"
        "\"qk_rope_head_dim\":8,\"v_head_dim\":12}}",
        "\"experts\":{\"n_experts\":4,\"top_k\":2,\"ffn_hidden\":24,\"n_shared\":1,"
        "\"shared_hidden\":40,\"shared_gate\":true,\"router_bias\":true,\"bias\":true}}",
        "\"experts\":{\"n_experts\":4,\"top_k\":2,\"ffn_hidden\":24,\"latent\":16}}",
    };
    const ModelShape shape = {.batch = 1,
                              .tokens = 64,
                              .tp = 1,
                              .cp = 1,
                              .ep = 1,
                              .flash_attention = true,
                              .dtype = DTYPE_BF16,
                              .expert_imbalance = 1.0};

    for (size_t i = 0; i < G_N_ELEMENTS(layers); i++) {
        g_autofree char *text =
            g_strconcat(TOP, strstr(layers[i], "mla") != NULL ? "" : "", layers[i], NULL);
        if (strstr(layers[i], "\"mla\"") != NULL) {
            char *heads = strstr(text, "\"n_kv_heads\":2,");
            memcpy(heads, "\"n_kv_heads\":4,", strlen("\"n_kv_heads\":4,"));
        }
        g_autoptr(GError) error = NULL;
        g_autoptr(ModelArch) arch = parse(text, &error);
        ModelOp ops[MODEL_MAX_OPS];
        int64_t bytes = 0;

        g_test_message("%s", layers[i]);
        g_assert_no_error(error);
        const size_t n = model_ops(arch, MODEL_PART_LAYER, 0, &shape, ops);
        for (size_t j = 0; j < n; j++)
            bytes += ops[j].weight_bytes;
        g_assert_cmpint(bytes, ==,
                        2 * model_part_parameters(arch, MODEL_PART_LAYER, 0, 1, 1, 1, false));
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/models/kinds/kinds-have-what-the-top-has-and-they-do-not-change",
                    test_kinds_have_what_the_top_has_and_they_do_not_change);
    g_test_add_func("/models/kinds/files-with-kinds-are-read-back-as-they-were-written",
                    test_files_with_kinds_are_read_back_as_they_were_written);
    g_test_add_func("/models/kinds/what-is-wrong-is-said-where-it-is",
                    test_what_is_wrong_is_said_where_it_is);
    g_test_add_func("/models/kinds/attention-needs-the-pairs-that-its-window-has",
                    test_attention_needs_the_pairs_that_its_window_has);
    g_test_add_func("/models/kinds/a-scan-does-not-depend-on-what-was-before",
                    test_a_scan_does_not_depend_on_what_was_before);
    g_test_add_func("/models/kinds/a-graph-has-room-for-rows-of-experts",
                    test_a_graph_has_room_for_rows_of_experts);
    g_test_add_func("/models/kinds/a-scan-of-mamba2-moves-tiles-and-states",
                    test_a_scan_of_mamba2_moves_tiles_and_states);
    g_test_add_func("/models/kinds/degrees-divide-what-every-kind-has",
                    test_degrees_divide_what_every_kind_has);
    g_test_add_func("/models/kinds/weights-of-ops-are-the-parameters",
                    test_weights_of_ops_are_the_parameters);
    return g_test_run();
}
