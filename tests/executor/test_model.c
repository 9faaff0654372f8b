/* Tests of executor/model/model.h: shards of all ranks make the whole, initial values, memory. */
#include "executor/model/model.h"

#include <math.h>

static const ModelArch gpt = {
    .name = (char *)"gpt",
    .family = MODEL_FAMILY_GPT,
    .n_layers = 2,
    .hidden = 16,
    .n_heads = 4,
    .n_kv_heads = 4,
    .head_dim = 5,
    .ffn_hidden = 40,
    .vocab = 19,
    .max_seq_len = 14,
    .norm_epsilon = MODEL_USUAL_NORM_EPSILON,
    .rope_base = MODEL_USUAL_ROPE_BASE,
    .tied_embeddings = true,
    .qkv_bias = true,
};

static const ModelArch llama = {
    .name = (char *)"llama",
    .family = MODEL_FAMILY_LLAMA,
    .n_layers = 3,
    .hidden = 16,
    .n_heads = 4,
    .n_kv_heads = 2,
    .head_dim = 6,
    .ffn_hidden = 40,
    .vocab = 21,
    .max_seq_len = 14,
    .norm_epsilon = MODEL_USUAL_NORM_EPSILON,
    .rope_base = MODEL_USUAL_ROPE_BASE,
};

static Plan *
plan_with(const ModelArch *arch, int64_t pp, int64_t tp)
{
    Plan *plan = plan_new();
    const int64_t seq_len = 13;

    plan->seq_len = seq_len;
    plan->degrees.pp = pp;
    plan->degrees.tp = tp;
    g_array_append_val(plan->slices, seq_len);
    plan_set_even_stages(plan, arch->n_layers, true, SCHEDULE_PLACEMENT_LOOP, PLAN_RECOMPUTE_NONE);
    return plan;
}

/* Marks the elements of @whole that @part is, after comparing them. */
static int64_t
check_part(const ExecModel *whole_model, const ExecModel *part_model, const ExecParameter *part,
           GHashTable *seen)
{
    const ExecParameter *whole = exec_model_find(whole_model, part->name);
    const float *a = (const float *)whole_model->weights.data + whole->offset;
    const float *b = (const float *)part_model->weights.data + part->offset;
    int64_t n_new = 0;

    g_assert_cmpint(part->n, ==, exec_shard_n(&part->shard));
    g_assert_cmpint(whole->n, ==, part->shard.rows * part->shard.cols);
    for (int64_t i = 0; i < part->n; i++) {
        int64_t together;
        const int64_t at = exec_shard_at(&part->shard, i, &together);
        g_assert_cmpint(together, >=, 1);
        g_assert_cmpfloat((double)a[at], ==, (double)b[i]);
        n_new += g_hash_table_add(seen, GINT_TO_POINTER(whole->offset + at + 1));
    }
    return n_new;
}

/* A parameter's initial values are the same wherever stages begin and ranks divide it, and all
 * ranks together hold every element. */
static void
check_degrees(const ModelArch *arch, int64_t pp, int64_t tp, bool pads_vocab)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(ExecBackend) backend = exec_backend_open("reference", 0, DTYPE_FP32, &error);
    g_autoptr(ExecPool) pool = exec_pool_new(backend);
    g_autoptr(Plan) one = plan_with(arch, 1, 1), plan = plan_with(arch, pp, tp);
    g_autoptr(GHashTable) seen = g_hash_table_new(g_direct_hash, g_direct_equal);
    const ExecModelOptions whole_options = {.arch = arch, .plan = one, .seed = 42};
    g_autoptr(ExecModel) whole = exec_model_new(&whole_options, backend, pool, &error);
    int64_t n = 0, n_seen = 0;

    plan->conventions.pads_vocab = pads_vocab;
    for (guint i = 0; i < exec_model_n_parameters(whole); i++)
        n += exec_model_parameter(whole, i)->n;
    for (int32_t rank = 0; rank < pp; rank++)
        for (int32_t t = 0; t < tp; t++) {
            g_autoptr(ExecPool) own_pool = exec_pool_new(backend);
            const ExecModelOptions options = {.arch = arch,
                                              .plan = plan,
                                              .pipeline_rank = rank,
                                              .tp_index = t,
                                              .seed = 42,
                                              .optimizer = true};
            g_autoptr(ExecModel) part = exec_model_new(&options, backend, own_pool, &error);
            g_assert_no_error(error);
            for (guint i = 0; i < exec_model_n_parameters(part); i++)
                n_seen += check_part(whole, part, exec_model_parameter(part, i), seen);
            /* Four buffers of the same size: weights, gradients, two moments. */
            g_assert_cmpint(exec_pool_used_bytes(own_pool, TRACE_MEMORY_WEIGHTS), ==,
                            part->layout.n * 4);
            g_assert_cmpint(exec_pool_used_bytes(own_pool, TRACE_MEMORY_GRADIENTS), ==,
                            part->layout.n * 4);
            g_assert_cmpint(exec_pool_used_bytes(own_pool, TRACE_MEMORY_OPTIMIZER), ==,
                            part->layout.n * 8);
        }
    g_assert_cmpint(n_seen, ==, n);
}

static void
test_shards_make_the_whole(void)
{
    for (int64_t pp = 1; pp <= 2; pp++)
        for (int64_t tp = 1; tp <= 4; tp *= 2)
            for (int pads = 0; pads < 2; pads++) {
                check_degrees(&gpt, pp, tp, pads > 0);
                check_degrees(&llama, pp, tp, pads > 0); /* tp 4: two copies of each K/V head */
            }
}

/* A tied table is on the first and the last pipeline rank, and both name each other. */
static void
test_tied_table_is_shared(void)
{
    g_autoptr(Plan) plan = plan_with(&gpt, 2, 1);

    for (int32_t rank = 0; rank < 2; rank++) {
        g_autoptr(GArray) shared = exec_layout_shared_parameters(
            &(ExecModelOptions){.arch = &gpt, .plan = plan, .pipeline_rank = rank});
        g_assert_cmpint(shared->len, ==, 1);
        g_assert_cmpint(g_array_index(shared, ExecSharedParameter, 0).n, ==, 2);
        for (int32_t i = 0; i < 2; i++)
            g_assert_cmpint(g_array_index(shared, ExecSharedParameter, 0).ranks[i], ==, i);
        g_autoptr(GArray) none = exec_layout_shared_parameters(
            &(ExecModelOptions){.arch = &llama, .plan = plan, .pipeline_rank = rank});
        g_assert_cmpint(none->len, ==, 0);
    }
}

/* The mean of n squares of variance about 2 is 1 within 5 sqrt(2 / n). */
static void
test_initial_values_have_their_deviation(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(ExecBackend) backend = exec_backend_open("reference", 0, DTYPE_FP32, &error);
    g_autoptr(ExecPool) pool = exec_pool_new(backend);
    g_autoptr(Plan) plan = plan_with(&gpt, 1, 1);
    g_autoptr(ExecModel) model =
        exec_model_new(&(ExecModelOptions){.arch = &gpt, .plan = plan}, backend, pool, &error);
    double squares = 0, n = 0;

    for (guint i = 0; i < exec_model_n_parameters(model); i++) {
        const ExecParameter *p = exec_model_parameter(model, i);
        const float *w = (const float *)model->weights.data + p->offset;
        for (int64_t j = 0; p->init == EXEC_INIT_NORMAL && j < p->n; j++, n++)
            squares += pow((double)(w[j] / p->deviation), 2);
    }
    g_assert_cmpfloat(fabs(squares / n - 1), <, 5 * sqrt(2.0 / n));
}

/* bf16: weights of half the size, master weights with the optimizer, both from the same values. */
static void
test_bf16_has_master_weights(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(ExecBackend) narrow = exec_backend_open("reference", 0, DTYPE_BF16, &error);
    g_autoptr(ExecPool) pool = exec_pool_new(narrow);
    g_autoptr(Plan) plan = plan_with(&llama, 1, 1);
    const ExecModelOptions options = {.arch = &llama, .plan = plan, .seed = 5, .optimizer = true};
    g_autoptr(ExecModel) model = exec_model_new(&options, narrow, pool, &error);
    g_autofree float *widened = g_new(float, (size_t)model->layout.n);
    const float *master = model->master.data;

    narrow->ops->from_storage(narrow, model->layout.n, model->weights.data, widened);
    for (int64_t i = 0; i < model->layout.n; i++)
        g_assert_cmpfloat(fabs((double)(widened[i] - master[i])), <=,
                          fabs((double)master[i]) / 256);
    g_assert_cmpint(exec_pool_used_bytes(pool, TRACE_MEMORY_WEIGHTS), ==, 2 * model->layout.n);
    g_assert_cmpint(exec_pool_used_bytes(pool, TRACE_MEMORY_OPTIMIZER), ==, 12 * model->layout.n);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/model/shards-make-the-whole", test_shards_make_the_whole);
    g_test_add_func("/executor/model/tied-table-is-shared", test_tied_table_is_shared);
    g_test_add_func("/executor/model/initial-values-have-their-deviation",
                    test_initial_values_have_their_deviation);
    g_test_add_func("/executor/model/bf16-has-master-weights", test_bf16_has_master_weights);
    return g_test_run();
}
