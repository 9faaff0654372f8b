/* Tests of the layer code against PyTorch's autograd in float64: GPT, Llama, a mixture of experts;
 * windows with sinks, normed queries and keys, gated delta net, Mamba-2, and attention beside it.
 * What came out where PyTorch was there is in docs/quality.md. */
#include <glib/gstdio.h>
#include <math.h>
#include <string.h>
#include <sys/wait.h>

#include "executor/model/random.h"
#include "executor/run/verify.h"

static ModelArch
model(ModelFamily family, bool experts)
{
    const bool gpt = family == MODEL_FAMILY_GPT;

    ModelArch arch = {
        .name = (char *)"small",
        .family = family,
        .n_layers = 3,
        .hidden = 32,
        .n_heads = 4,
        .n_kv_heads = gpt ? 4 : 2,
        .head_dim = 10,
        .ffn_hidden = 48,
        .vocab = 61,
        .max_seq_len = 20,
        .norm_epsilon = 1e-4,
        .rope_base = 500,
        .tied_embeddings = gpt,
        .qkv_bias = gpt,
    };
    if (experts)
        arch.experts = (ModelExperts){.n_experts = 5,
                                      .top_k = 2,
                                      .ffn_hidden = 14,
                                      .n_shared = 1,
                                      .first_dense_layers = 1,
                                      .router_scale = 1};
    return arch;
}

/* Llama with mixers of another kind. */
typedef enum {
    WITH_SINKS, /* and a window */
    WITH_QK_NORM,
    WITH_SANDWICH, /* norms before and behind both halves */
    WITH_DELTA_NET,
    WITH_MAMBA2,
    WITH_BOTH, /* attention beside Mamba-2 */
    WITH_N,
} With;

static ModelArch
model_with(With with)
{
    static const ModelMixer mixers[WITH_N] = {MODEL_MIXER_ATTENTION, MODEL_MIXER_ATTENTION,
                                              MODEL_MIXER_ATTENTION, MODEL_MIXER_DELTA_NET,
                                              MODEL_MIXER_MAMBA2,    MODEL_MIXER_ATTENTION_MAMBA2};
    ModelArch arch = model(MODEL_FAMILY_LLAMA, false);

    arch.mixer = mixers[with];
    arch.window = with == WITH_SINKS ? 5 : 0;
    arch.sinks = with == WITH_SINKS;
    arch.qk_norm = with == WITH_QK_NORM;
    arch.norm_place = with == WITH_SANDWICH ? MODEL_NORM_PLACE_SANDWICH : MODEL_NORM_PLACE_PRE;
    /* A norm of a few values that are nearly zero, as a first token's may be, blows up rounding. */
    if (with >= WITH_DELTA_NET)
        arch.norm_epsilon = 1e-2;
    if (with >= WITH_DELTA_NET)
        arch.state = (ModelState){.n_heads = 4,
                                  .n_key_heads = 2,
                                  .key_dim = 6,
                                  .value_dim = 5,
                                  .conv = 3,
                                  .conv_bias = with > WITH_DELTA_NET,
                                  .chunk = 8};
    return arch;
}

/* Runs the script on @folders with the first interpreter that has torch; (owned) what it printed,
 * NULL: none has. */
static char *
run_torch(char **folders)
{
    static const char *const names[] = {"python3", "/usr/bin/python3"};

    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autoptr(GStrvBuilder) builder = g_strv_builder_new();
        g_autofree char *out = NULL, *messages = NULL;
        int status = 0;
        g_strv_builder_add_many(builder, names[i], "tests/executor/torch_reference.py", NULL);
        g_strv_builder_addv(builder, (const char **)folders);
        g_auto(GStrv) argv = g_strv_builder_end(builder);
        if (!g_spawn_sync(NULL, argv, NULL, G_SPAWN_SEARCH_PATH, NULL, NULL, &out, &messages,
                          &status, NULL))
            continue;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
            continue;
        g_test_message("%s%s", out, messages);
        g_assert_true(g_spawn_check_wait_status(status, NULL));
        return g_steal_pointer(&out);
    }
    return NULL;
}

static void
write_file(const char *folder, const char *name, const void *data, size_t n_bytes)
{
    g_autofree char *path = g_build_filename(folder, name, NULL);
    g_autoptr(GError) error = NULL;

    g_file_set_contents(path, data, (gssize)n_bytes, &error);
    g_assert_no_error(error);
}

static void
dump(const char *folder, const ModelArch *arch, const ExecReference *reference, int64_t batch)
{
    const ExecModel *m = reference->model;
    g_autoptr(GString) json = g_string_new(NULL);

    g_string_printf(json,
                    "{\"family\":\"%s\",\"n_layers\":%d,\"hidden\":%d,\"n_heads\":%d,"
                    "\"n_kv_heads\":%d,\"head_dim\":%d,\"n_experts\":%d,\"top_k\":%d,"
                    "\"expert_hidden\":%d,\"epsilon\":%.17g,\"rope_base\":%.17g,"
                    "\"window\":%d,\"state_heads\":%d,\"state_key_heads\":%d,\"key_dim\":%d,"
                    "\"value_dim\":%d,\"batch\":%d,\"loss\":%.17g,\"tensors\":{",
                    model_family_names[arch->family], (int)arch->n_layers, (int)arch->hidden,
                    (int)arch->n_heads, (int)arch->n_kv_heads, (int)arch->head_dim,
                    (int)arch->experts.n_experts, (int)arch->experts.top_k,
                    (int)arch->experts.ffn_hidden, arch->norm_epsilon, arch->rope_base,
                    (int)arch->window, (int)arch->state.n_heads, (int)arch->state.n_key_heads,
                    (int)arch->state.key_dim, (int)arch->state.value_dim, (int)batch,
                    reference->loss);
    for (guint i = 0; i < m->layout.parameters->len; i++) {
        const ExecParameter *p = &g_array_index(m->layout.parameters, ExecParameter, i);
        const size_t n_bytes = (size_t)p->n * sizeof(float);
        g_autofree char *w = g_strconcat(p->name, ".weight_values", NULL);
        g_autofree char *g = g_strconcat(p->name, ".gradient_values", NULL);
        write_file(folder, w, (const float *)m->weights.data + p->offset, n_bytes);
        write_file(folder, g, exec_model_gradients(m) + p->offset, n_bytes);
        g_string_append_printf(json, "%s\"%s\":[%d,%d]", i == 0 ? "" : ",", p->name,
                               (int)p->shard.rows, (int)p->shard.cols);
    }
    g_string_append(json, "}}");
    write_file(folder, "model.json", json->str, json->len);
}

static void
remove_folder(const char *folder)
{
    g_autoptr(GDir) dir = g_dir_open(folder, 0, NULL);
    const char *name;

    while (dir != NULL && (name = g_dir_read_name(dir)) != NULL) {
        g_autofree char *path = g_build_filename(folder, name, NULL);
        g_unlink(path);
    }
    g_rmdir(folder);
}

/* Weights spread out and biases not zero, so that everything shows. */
static void
spread_weights(ExecModel *m)
{
    for (guint i = 0; i < m->layout.parameters->len; i++) {
        const ExecParameter *p = &g_array_index(m->layout.parameters, ExecParameter, i);
        const uint64_t key = exec_random_key(3, p->name);
        for (int64_t j = 0; j < p->n; j++)
            ((float *)m->weights.data)[p->offset + j] +=
                0.15f * exec_random_normal(key, (uint64_t)j);
    }
}

/* Returns: (owned) a folder with one step of the model. */
static char *
dump_step(const ModelArch *arch, const char *device)
{
    enum {
        BATCH = 3,
        TOKENS = 17
    };
    g_autoptr(GError) error = NULL;
    g_auto(ExecReference) reference = {0};
    g_autoptr(ExecData) data = exec_data_open(NULL, arch->vocab, TOKENS, 1, 1, &error);
    g_autofree char *folder = g_dir_make_tmp("degas-torch-XXXXXX", &error);
    int32_t tokens[BATCH * (TOKENS + 1)];

    g_assert_true(exec_reference_init(
        &reference,
        &(ExecReferenceOptions){
            .arch = arch, .global_batch = BATCH, .seq_len = TOKENS, .device = device, .seed = 1},
        &error));
    spread_weights(reference.model);
    g_assert_true(exec_reference_step(&reference, data, 0, &error));
    for (int64_t i = 0; i < BATCH; i++)
        g_assert_true(exec_data_sequence(data, 0, i, tokens + i * (TOKENS + 1), &error));
    dump(folder, arch, &reference, BATCH);
    write_file(folder, "tokens", tokens, sizeof tokens);
    return g_steal_pointer(&folder);
}

static void
test_gradients_equal_pytorch(void)
{
    static const char *const devices[] = {"reference", "cpu"};
    const ModelArch models[] = {
        model(MODEL_FAMILY_GPT, false),  model(MODEL_FAMILY_LLAMA, false),
        model(MODEL_FAMILY_LLAMA, true), model_with(WITH_SINKS),
        model_with(WITH_QK_NORM),        model_with(WITH_SANDWICH),
        model_with(WITH_DELTA_NET),      model_with(WITH_MAMBA2),
        model_with(WITH_BOTH),
    };
    char *folders[G_N_ELEMENTS(devices) * G_N_ELEMENTS(models) + 1] = {NULL};
    guint n = 0;

    if (!g_file_test("tests/executor/torch_reference.py", G_FILE_TEST_IS_REGULAR)) {
        g_test_skip("not run in the repository's root: no tests/executor/torch_reference.py");
        return;
    }
    for (size_t d = 0; d < G_N_ELEMENTS(devices); d++) {
        g_autoptr(ExecBackend) backend = exec_backend_open(devices[d], 0, DTYPE_FP32, NULL);
        for (size_t i = 0; backend != NULL && i < G_N_ELEMENTS(models); i++)
            folders[n++] = dump_step(&models[i], devices[d]);
    }
    g_autofree char *out = run_torch(folders);
    for (guint i = 0; i < n; i++) {
        remove_folder(folders[i]);
        g_free(folders[i]);
    }
    if (out == NULL) {
        g_test_skip("no python3 with torch (Debian's python3-torch)");
        return;
    }
    g_auto(GStrv) lines = g_strsplit(out, "\n", -1);
    g_assert_cmpint(g_strv_length(lines), ==, n + 1);
    for (guint i = 0; i < n; i++) {
        double worst = 1, narrow = 0, loss_error = 1;
        g_assert_cmpint(sscanf(lines[i], "%lf %lf %lf", &worst, &narrow, &loss_error), ==, 3);
        g_test_message("%s", lines[i]);
        /* A sum that cancels is as far off in any fp32: PyTorch's own says how far. */
        g_assert_cmpfloat(worst, <=, fmax(1e-5, 2 * narrow));
        g_assert_cmpfloat(narrow, <=, 5e-5);
        g_assert_cmpfloat(loss_error, <=, 1e-6);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/torch/gradients-equal-pytorch", test_gradients_equal_pytorch);
    return g_test_run();
}
