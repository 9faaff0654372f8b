/* Tests of models/huggingface.c: public config.json files, and hostile ones. */
#include "models/arch.h"

#include <glib/gstdio.h>
#include <string.h>

#define FOLDER "tests/models/huggingface/"

/* Text of a sample; its values are those published with the model. */
static char *
sample(const char *name)
{
    g_autofree char *path = g_strconcat(FOLDER, name, ".json", NULL);
    g_autoptr(GError) error = NULL;
    char *text;

    g_file_get_contents(path, &text, NULL, &error);
    g_assert_no_error(error);
    return text;
}

static ModelArch *
parse(const char *text, GPtrArray *warnings, GError **error)
{
    g_autoptr(JsonDoc) doc = json_doc_parse("config.json", text, strlen(text), error);
    g_autoptr(ModelArch) arch = NULL;

    if (doc == NULL)
        return NULL;
    arch = model_arch_read_huggingface(doc, "sample", warnings);
    return json_doc_finish(doc, error) ? g_steal_pointer(&arch) : NULL;
}

/* Parameters are the counts of the models' published safetensors; the source of deepseek-v3 gives
 * three digits only, and its file counts the MTP layer too. */
static void
test_public_configs_have_their_published_sizes(void)
{
    static const struct {
        const char *name;
        ModelFamily family;
        int64_t n_layers, hidden, n_heads, n_kv_heads, head_dim, ffn_hidden, vocab;
        bool tied, qkv_bias, qk_norm;
        int64_t parameters;
        double tolerance;
    } cases[] = {
        {"gpt2", MODEL_FAMILY_GPT, 12, 768, 12, 12, 64, 3072, 50257, true, true, false, 124439808,
         0.0},
        {"llama3-8b", MODEL_FAMILY_LLAMA, 32, 4096, 32, 8, 128, 14336, 128256, false, false, false,
         8030261248, 0.0},
        {"llama3.2-1b", MODEL_FAMILY_LLAMA, 16, 2048, 32, 8, 64, 8192, 128256, true, false, false,
         1235814400, 0.0},
        {"mistral-7b", MODEL_FAMILY_LLAMA, 32, 4096, 32, 8, 128, 14336, 32000, false, false, false,
         7241732096, 0.0},
        {"qwen2-7b", MODEL_FAMILY_LLAMA, 28, 3584, 28, 4, 128, 18944, 152064, false, true, false,
         7615616512, 0.0},
        {"qwen3-32b", MODEL_FAMILY_LLAMA, 64, 5120, 64, 8, 128, 25600, 151936, false, false, true,
         32762123264, 0.0},
        {"qwen3-30b-a3b", MODEL_FAMILY_LLAMA, 48, 2048, 32, 4, 128, 6144, 151936, false, false,
         true, 30532122624, 0.0},
        {"mixtral-8x7b", MODEL_FAMILY_LLAMA, 32, 4096, 32, 8, 128, 14336, 32000, false, false,
         false, 46702792704, 0.0},
        {"deepseek-v3", MODEL_FAMILY_LLAMA, 61, 7168, 128, 128, 192, 18432, 129280, false, false,
         false, 671000000000, 0.001},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *text = sample(cases[i].name);
        g_autoptr(GError) error = NULL;
        g_autoptr(ModelArch) arch = parse(text, NULL, &error);

        g_assert_no_error(error);
        g_test_message("%s", cases[i].name);
        g_assert_cmpint(arch->family, ==, cases[i].family);
        g_assert_cmpint(arch->n_layers, ==, cases[i].n_layers);
        g_assert_cmpint(arch->hidden, ==, cases[i].hidden);
        g_assert_cmpint(arch->n_heads, ==, cases[i].n_heads);
        g_assert_cmpint(arch->n_kv_heads, ==, cases[i].n_kv_heads);
        g_assert_cmpint(arch->head_dim, ==, cases[i].head_dim);
        g_assert_cmpint(arch->ffn_hidden, ==, cases[i].ffn_hidden);
        g_assert_cmpint(arch->vocab, ==, cases[i].vocab);
        g_assert_cmpint(arch->tied_embeddings, ==, cases[i].tied);
        g_assert_cmpint(arch->qkv_bias, ==, cases[i].qkv_bias);
        g_assert_cmpint(arch->qk_norm, ==, cases[i].qk_norm);
        g_assert_cmpfloat_with_epsilon((double)model_parameters(arch), (double)cases[i].parameters,
                                       cases[i].tolerance * (double)cases[i].parameters + 0.5);
    }
}

static void
test_experts_are_read(void)
{
    static const struct {
        const char *name;
        ModelExperts expect;
    } cases[] = {
        {"llama3-8b", {0, 0, 0, 0, 0, 0, 0}},
        {"mixtral-8x7b", {8, 2, 14336, 0, 0, MODEL_ROUTER_SOFTMAX, 1}},
        {"qwen3-30b-a3b", {128, 8, 768, 0, 0, MODEL_ROUTER_SOFTMAX, 1}},
        {"deepseek-v3", {256, 8, 2048, 1, 3, MODEL_ROUTER_SIGMOID, 2.5}},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *text = sample(cases[i].name);
        g_autoptr(GError) error = NULL;
        g_autoptr(ModelArch) arch = parse(text, NULL, &error);

        g_assert_no_error(error);
        g_assert_cmpint(arch->experts.n_experts, ==, cases[i].expect.n_experts);
        g_assert_cmpint(arch->experts.top_k, ==, cases[i].expect.top_k);
        g_assert_cmpint(arch->experts.ffn_hidden, ==, cases[i].expect.ffn_hidden);
        g_assert_cmpint(arch->experts.n_shared, ==, cases[i].expect.n_shared);
        g_assert_cmpint(arch->experts.first_dense_layers, ==, cases[i].expect.first_dense_layers);
        g_assert_cmpint(arch->experts.router_scores, ==, cases[i].expect.router_scores);
        g_assert_cmpfloat(arch->experts.router_scale, ==, cases[i].expect.router_scale);
    }
}

/* The import and the built-in file describe the same model. */
static void
test_imports_agree_with_the_built_in_models(void)
{
    static const struct {
        const char *sample, *builtin;
    } cases[] = {
        {"gpt2", "gpt2-124m"},          {"llama3-8b", "llama3-8b"},
        {"qwen3-32b", "qwen3-32b"},     {"mixtral-8x7b", "mixtral-8x7b"},
        {"deepseek-v3", "deepseek-v3"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *text = sample(cases[i].sample);
        g_autoptr(GError) error = NULL;
        g_autoptr(ModelArch) import = parse(text, NULL, &error);
        g_autoptr(ModelArch) builtin = model_arch_load(cases[i].builtin, NULL, &error);
        g_autoptr(JsonWriter) writer = json_writer_new();
        g_autofree char *a = NULL, *b = NULL;

        g_assert_no_error(error);
        g_free(import->name);
        import->name = g_strdup(builtin->name);
        g_free(import->source);
        import->source = g_strdup(builtin->source);
        model_arch_write(writer, NULL, import);
        a = json_writer_steal(writer, NULL);
        model_arch_write(writer, NULL, builtin);
        b = json_writer_steal(writer, NULL);
        g_assert_cmpstr(a, ==, b);
    }
}

static void
test_what_is_left_out_is_said(void)
{
    static const struct {
        const char *name, *expect; /* NULL: nothing */
    } cases[] = {
        {"gpt2", NULL},          {"llama3-8b", NULL},
        {"mistral-7b", NULL},    {"qwen2-7b", NULL}, /* use_sliding_window is false */
        {"qwen3-30b-a3b", NULL}, {"deepseek-v3", "num_nextn_predict_layers 1"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *text = sample(cases[i].name);
        g_autoptr(GPtrArray) warnings = g_ptr_array_new_with_free_func(g_free);
        g_autoptr(GError) error = NULL;
        g_autoptr(ModelArch) arch = parse(text, warnings, &error);
        bool found = false;

        g_assert_no_error(error);
        for (guint j = 0; j < warnings->len; j++)
            found |= cases[i].expect != NULL &&
                     strstr(g_ptr_array_index(warnings, j), cases[i].expect) != NULL;
        g_test_message("%s", cases[i].name);
        g_assert_cmpint(found, ==, cases[i].expect != NULL);
        if (cases[i].expect == NULL)
            g_assert_cmpuint(warnings->len, ==, 0);
    }
}

/* Qwen's files carry a window that is off. */
static void
test_a_window_that_is_off_is_not_mentioned(void)
{
    g_autofree char *text = sample("qwen2-7b");

    for (guint on = 0; on <= 1; on++) {
        g_auto(GStrv) parts = g_strsplit(text, "\"sliding_window\": 131072", 2);
        g_autofree char *narrow = g_strjoinv("\"sliding_window\": 4096", parts);
        g_auto(GStrv) flag_parts = g_strsplit(narrow, "\"use_sliding_window\": false", 2);
        g_autofree char *changed = g_strjoinv(
            on ? "\"use_sliding_window\": true" : "\"use_sliding_window\": false", flag_parts);
        g_autoptr(GPtrArray) warnings = g_ptr_array_new_with_free_func(g_free);
        g_autoptr(GError) error = NULL;
        g_autoptr(ModelArch) arch = parse(changed, warnings, &error);

        g_assert_no_error(error);
        g_assert_cmpuint(g_strv_length(flag_parts), ==, 2);
        g_assert_cmpuint(warnings->len, ==, 0);
        /* The last layers have it, from max_window_layers on, which is 28 of 28. */
        g_assert_cmpint(arch->window, ==, 0);
        g_auto(GStrv) first = g_strsplit(changed, "\"max_window_layers\": 28", 2);
        g_autofree char *some = g_strjoinv("\"max_window_layers\": 20", first);
        g_autoptr(ModelArch) windows = parse(some, NULL, &error);
        g_assert_no_error(error);
        g_assert_cmpuint(g_strv_length(first), ==, 2);
        g_assert_cmpint(model_layer_arch(windows, 19).window, ==, 0);
        g_assert_cmpint(model_layer_arch(windows, 20).window, ==, on ? 4096 : 0);
    }
}

static void
test_files_are_told_apart_by_content(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GPtrArray) warnings = NULL;
    g_autoptr(ModelArch) arch = model_arch_load(FOLDER "mistral-7b.json", &warnings, &error);

    g_assert_no_error(error);
    g_assert_cmpstr(arch->name, ==, "mistral-7b");
    g_assert_cmpint(arch->window, ==, 4096);
    g_assert_cmpuint(warnings->len, ==, 0);
}

/* As git clone leaves a checkpoint: the model is called as the folder. */
static void
test_a_folder_stands_for_its_config(void)
{
    g_autofree char *text = sample("qwen3-32b");
    g_autoptr(GError) error = NULL;
    g_autofree char *parent = g_dir_make_tmp("degas-XXXXXX", &error);
    g_autofree char *folder = g_build_filename(parent, "llama3-8b", NULL);
    g_autofree char *file = g_build_filename(folder, "config.json", NULL);

    g_assert_no_error(error);
    g_assert_cmpint(g_mkdir(folder, 0700), ==, 0);
    g_autoptr(ModelArch) none = model_arch_load(folder, NULL, &error);
    g_assert_null(none);
    g_assert_error(error, G_FILE_ERROR, G_FILE_ERROR_NOENT);
    g_assert_nonnull(strstr(error->message, "llama3-8b/config.json"));
    g_clear_error(&error);
    g_assert_true(g_file_set_contents(file, text, -1, NULL));
    g_autoptr(ModelArch) arch = model_arch_load(folder, NULL, &error);
    g_assert_no_error(error);
    g_assert_cmpint(arch->n_layers, ==, 64);
    g_assert_cmpstr(arch->name, ==, "llama3-8b");
    g_unlink(file);
    g_rmdir(folder);
    g_rmdir(parent);
}

static void
test_nested_text_config_is_read(void)
{
    g_autofree char *inner = sample("qwen3-32b");
    g_autofree char *text =
        g_strdup_printf("{\"model_type\": \"some_vl\", \"text_config\": %s}", inner);
    g_autoptr(GPtrArray) warnings = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GError) error = NULL;
    g_autoptr(ModelArch) arch = parse(text, warnings, &error);

    g_assert_no_error(error);
    g_assert_cmpint(arch->n_layers, ==, 64);
    g_assert_cmpuint(warnings->len, ==, 1);
}

static void
test_null_means_absent(void)
{
    static const char text[] =
        "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 64,"
        " \"intermediate_size\": 128, \"num_attention_heads\": 4, \"num_key_value_heads\": null,"
        " \"head_dim\": null, \"vocab_size\": 100, \"max_position_embeddings\": 32,"
        " \"tie_word_embeddings\": null, \"hidden_act\": null}";
    g_autoptr(GError) error = NULL;
    g_autoptr(ModelArch) arch = parse(text, NULL, &error);

    g_assert_no_error(error);
    g_assert_cmpint(arch->n_kv_heads, ==, 4);
    g_assert_cmpint(arch->head_dim, ==, 16);
    g_assert_false(arch->tied_embeddings);
}

/* @find in the sample is replaced by @replace; the message must contain @expect. */
static void
test_bad_configs_are_refused(void)
{
    static const struct {
        const char *name, *find, *replace, *expect;
    } cases[] = {
        {"llama3-8b", "\"llama\"", "\"bert\"", "expected one of gpt2, llama"},
        {"llama3-8b", "\"llama\"", "7", "$.model_type"},
        {"llama3-8b", "\"model_type\"", "\"modeltype\"", "$.model_type"},
        {"llama3-8b", "\"hidden_size\": 4096", "\"hidden_size\": -1", "$.hidden_size"},
        {"llama3-8b", "\"hidden_size\": 4096", "\"hidden_size\": 0", "$.hidden_size"},
        {"llama3-8b", "\"hidden_size\": 4096", "\"hidden_size\": 1099511627776", "$.hidden_size"},
        {"llama3-8b", "\"hidden_size\": 4096", "\"hidden_size\": \"4096\"", "$.hidden_size"},
        {"llama3-8b", "\"hidden_size\": 4096", "\"hidden_size\": 4096.5", "$.hidden_size"},
        {"llama3-8b", "\"hidden_size\": 4096", "\"hidden_size\": 4097", "does not divide"},
        {"llama3-8b", "\"num_key_value_heads\": 8", "\"num_key_value_heads\": 7",
         "does not divide"},
        {"llama3-8b", "\"num_hidden_layers\": 32", "\"num_hidden_layers\": 1e18",
         "$.num_hidden_layers"},
        {"gpt2", "\"n_head\": 12", "\"n_head\": 7", "does not divide n_embd"},
        {"gpt2", "\"n_layer\"", "\"layers\"", "$.n_layer"},
        {"mixtral-8x7b", "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 9", "top_k 9"},
        {"qwen3-30b-a3b", "\"mlp_only_layers\": []", "\"mlp_only_layers\": [48]",
         "$.mlp_only_layers[0]"},
        {"qwen3-30b-a3b", "\"mlp_only_layers\": []", "\"mlp_only_layers\": [-1]",
         "$.mlp_only_layers[0]"},
        {"qwen3-30b-a3b", "\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 0",
         "$.decoder_sparse_step"},
        {"deepseek-v3", "\"first_k_dense_replace\": 3", "\"first_k_dense_replace\": 62",
         "first_dense_layers 62"},
        {"deepseek-v3", "\"kv_lora_rank\": 512", "\"kv_lora_rank\": 0", "$.kv_lora_rank"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *text = sample(cases[i].name);
        g_auto(GStrv) parts = g_strsplit(text, cases[i].find, 2);
        g_autofree char *changed = g_strjoinv(cases[i].replace, parts);
        g_autoptr(GError) error = NULL;
        g_autoptr(ModelArch) arch = NULL;

        g_assert_cmpuint(g_strv_length(parts), ==, 2);
        arch = parse(changed, NULL, &error);
        g_test_message("%s: %s", cases[i].replace, error ? error->message : "accepted");
        g_assert_null(arch);
        g_assert_error(error, JSON_ERROR, JSON_ERROR_INVALID);
        g_assert_nonnull(strstr(error->message, cases[i].expect));
        g_assert_nonnull(strstr(error->message, "config.json"));
    }
}

/* The parameters are those that transformers counts.  Returns how many models @path has. */
static int
check_counts(const char *path)
{
    g_autofree char *text = NULL;
    g_autoptr(GError) error = NULL;
    int n = 0;

    g_file_get_contents(path, &text, NULL, &error);
    g_assert_no_error(error);
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    for (int i = 0; lines[i] != NULL && lines[i][0] != '\0'; i++) {
        g_auto(GStrv) cells = g_strsplit(lines[i], "\t", -1);

        if (lines[i][0] == '#')
            continue;
        g_autoptr(ModelArch) arch = parse(cells[3], NULL, &error);
        g_test_message("%s", cells[0]);
        g_assert_no_error(error);
        g_assert_cmpint(model_parameters(arch), ==, g_ascii_strtoll(cells[1], NULL, 10));
        /* What was read can be written and read. */
        g_autoptr(JsonWriter) writer = json_writer_new();
        model_arch_write(writer, NULL, arch);
        g_autofree char *ours = json_writer_steal(writer, NULL);
        g_autoptr(JsonDoc) doc = json_doc_parse("ours.json", ours, strlen(ours), &error);
        g_assert_no_error(error);
        g_autoptr(ModelArch) again = model_arch_read(doc, json_doc_root(doc, "degas-model", 1));
        g_assert_true(json_doc_finish(doc, &error));
        g_autofree char *difference = model_arch_difference(arch, again);
        g_assert_cmpstr(difference, ==, NULL);
        n++;
    }
    return n;
}

/* Every model_type that is read, as transformers writes its default. */
static void
test_defaults_have_the_parameters_of_transformers(void)
{
    g_assert_cmpint(check_counts("tests/data/huggingface_defaults.tsv"), >=, 90);
}

static void
test_checkpoints_have_the_parameters_of_transformers(void)
{
    g_assert_cmpint(check_counts("tests/data/huggingface_checkpoints.tsv"), >=, 100);
}

/* @replace for @find in a sample; parameters of transformers 5.23's models on the meta device, with
 * where attention_bias is of all four projections, or of MLA's down-projections and the output's. */
static void
test_other_forms_have_the_parameters_of_transformers(void)
{
    static const struct {
        const char *name, *find, *replace;
        int64_t parameters;
    } cases[] = {
        {"llama3-8b", "\"attention_bias\": false", "\"attention_bias\": true", 8030588928},
        {"qwen3-30b-a3b", "\"num_experts\":", "\"num_local_experts\":", 30532122624},
        {"qwen3-30b-a3b", "\"attention_bias\": false", "\"attention_bias\": true", 30532466688},
        {"deepseek-v3", "\"attention_bias\": false", "\"attention_bias\": true", 671026970432},
        {"deepseek-v3", "\"attention_bias\": false", "\"attention_bias\": false", 671026404352},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *text = sample(cases[i].name);
        g_auto(GStrv) parts = g_strsplit(text, cases[i].find, 2);
        g_autofree char *changed = g_strjoinv(cases[i].replace, parts);
        g_autoptr(GError) error = NULL;
        g_autoptr(ModelArch) arch = parse(changed, NULL, &error);

        g_assert_no_error(error);
        g_assert_cmpuint(g_strv_length(parts), ==, 2);
        g_test_message("%s", cases[i].replace);
        g_assert_cmpint(model_parameters(arch), ==, cases[i].parameters);
    }
}

/* What runs need and predictions do not, in the forms of transformers 4 and 5. */
static void
test_widths_of_runs_are_read(void)
{
    static const struct {
        const char *name, *find, *replace;
        double epsilon, base;
        ModelRouterScores scores;
        double scale;
        const char *warning;
    } cases[] = {
        {"gpt2", "\"layer_norm_epsilon\": 1e-05", "\"layer_norm_epsilon\": 1e-12", 1e-12, 1e4, 0, 0,
         NULL},
        {"llama3-8b", "\"rope_theta\": 500000.0", "\"rope_theta\": 500000.0", 1e-5, 500000, 0, 0,
         NULL},
        {"llama3-8b", "\"rope_theta\": 500000.0",
         "\"rope_parameters\": {\"rope_theta\": 7e5, \"rope_type\": \"default\"}", 1e-5, 7e5, 0, 0,
         NULL},
        {"llama3-8b", "\"rms_norm_eps\": 1e-05,", "", 1e-6, 500000, 0, 0, NULL},
        {"llama3.2-1b", "\"rope_theta\": 500000.0", "\"rope_theta\": null", 1e-5, 1e4, 0, 0,
         "of type \"llama3\""},
        {"mixtral-8x7b", "\"rope_theta\": 1000000.0", "\"rope_theta\": 1000000.0", 1e-5, 1e6,
         MODEL_ROUTER_SOFTMAX, 1, NULL},
        {"qwen3-30b-a3b", "\"norm_topk_prob\": true", "\"norm_topk_prob\": false", 1e-6, 1e6,
         MODEL_ROUTER_SOFTMAX_ALL, 1, NULL},
        {"deepseek-v3", "\"scoring_func\": \"sigmoid\"", "\"scoring_func\": \"softmax\"", 1e-6, 1e4,
         MODEL_ROUTER_SOFTMAX, 2.5, "of type \"yarn\""},
        {"deepseek-v3", "\"routed_scaling_factor\": 2.5", "\"routed_scaling_factor\": 1.5", 1e-6,
         1e4, MODEL_ROUTER_SIGMOID, 1.5, "yarn"},
        {"deepseek-v3", "\"norm_topk_prob\": true", "\"norm_topk_prob\": false", 1e-6, 1e4,
         MODEL_ROUTER_SIGMOID, 2.5, "norm_topk_prob false"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *text = sample(cases[i].name);
        g_auto(GStrv) parts = g_strsplit(text, cases[i].find, 2);
        g_autofree char *changed = g_strjoinv(cases[i].replace, parts);
        g_autoptr(GPtrArray) warnings = g_ptr_array_new_with_free_func(g_free);
        g_autoptr(GError) error = NULL;
        g_autoptr(ModelArch) arch = parse(changed, warnings, &error);
        bool warned = cases[i].warning == NULL && warnings->len == 0;

        g_test_message("%s: %s", cases[i].name, cases[i].replace);
        g_assert_no_error(error);
        g_assert_cmpuint(g_strv_length(parts), ==, 2);
        g_assert_cmpfloat(arch->norm_epsilon, ==, cases[i].epsilon);
        g_assert_cmpfloat(arch->rope_base, ==, cases[i].base);
        g_assert_cmpint(arch->experts.router_scores, ==, cases[i].scores);
        g_assert_cmpfloat(arch->experts.router_scale, ==, cases[i].scale);
        for (guint w = 0; cases[i].warning != NULL && w < warnings->len; w++)
            warned |= strstr(g_ptr_array_index(warnings, w), cases[i].warning) != NULL;
        g_assert_true(warned);
    }
}

static void
test_dense_layers_first_in_any_order(void)
{
    g_autofree char *text = sample("qwen3-30b-a3b");
    g_auto(GStrv) parts = g_strsplit(text, "\"mlp_only_layers\": []", 2);
    g_autofree char *changed = g_strjoinv("\"mlp_only_layers\": [1, 0]", parts);
    g_autoptr(GError) error = NULL;
    g_autoptr(ModelArch) arch = parse(changed, NULL, &error);

    g_assert_no_error(error);
    g_assert_cmpint(arch->experts.first_dense_layers, ==, 2);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/models/huggingface/defaults-have-the-parameters-of-transformers",
                    test_defaults_have_the_parameters_of_transformers);
    g_test_add_func("/models/huggingface/checkpoints-have-the-parameters-of-transformers",
                    test_checkpoints_have_the_parameters_of_transformers);
    g_test_add_func("/models/huggingface/public-configs-have-their-published-sizes",
                    test_public_configs_have_their_published_sizes);
    g_test_add_func("/models/huggingface/experts-are-read", test_experts_are_read);
    g_test_add_func("/models/huggingface/imports-agree-with-the-built-in-models",
                    test_imports_agree_with_the_built_in_models);
    g_test_add_func("/models/huggingface/what-is-left-out-is-said", test_what_is_left_out_is_said);
    g_test_add_func("/models/huggingface/a-window-that-is-off-is-not-mentioned",
                    test_a_window_that_is_off_is_not_mentioned);
    g_test_add_func("/models/huggingface/files-are-told-apart-by-content",
                    test_files_are_told_apart_by_content);
    g_test_add_func("/models/huggingface/a-folder-stands-for-its-config",
                    test_a_folder_stands_for_its_config);
    g_test_add_func("/models/huggingface/nested-text-config-is-read",
                    test_nested_text_config_is_read);
    g_test_add_func("/models/huggingface/null-means-absent", test_null_means_absent);
    g_test_add_func("/models/huggingface/bad-configs-are-refused", test_bad_configs_are_refused);
    g_test_add_func("/models/huggingface/other-forms-have-the-parameters-of-transformers",
                    test_other_forms_have_the_parameters_of_transformers);
    g_test_add_func("/models/huggingface/widths-of-runs-are-read", test_widths_of_runs_are_read);
    g_test_add_func("/models/huggingface/dense-layers-first-in-any-order",
                    test_dense_layers_first_in_any_order);
    return g_test_run();
}
