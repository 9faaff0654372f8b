/* Tests of files of models/arch.h: built-in ones, defaults, bad ones, names. */
#include "models/ops.h"

#include <math.h>
#include <string.h>

#include "tests/models/arch_case.h"

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

static void
test_built_in_models_are_complete(void)
{
    /* docs/formats.md: names that must exist. */
    static const char *const names[] = {
        "gpt2-124m",      "gpt2-1.5b",      "gpt3-1b",         "gpt3-13b",        "gpt3-44b",
        "gpt3-175b",      "megatron-1.7b",  "megatron-3.6b",   "megatron-7.5b",   "megatron-18.4b",
        "megatron-39.1b", "megatron-76.1b", "megatron-145.6b", "megatron-310.1b", "megatron-530b",
        "megatron-1t",    "megatron-22b",   "llama2-7b",       "llama2-13b",      "llama2-70b",
        "llama3-8b",      "llama3-70b",     "llama3-405b",     "mixtral-8x7b",    "qwen3-32b",
        "deepseek-v3",
    };

    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autoptr(ModelArch) arch = load(names[i]);

        g_assert_cmpstr(arch->name, ==, names[i]);
        g_assert_nonnull(arch->source);
        g_assert_nonnull(strstr(arch->source, i < 2 ? "Radford" : "arXiv:"));
    }
}

static char *
write_text(const ModelArch *arch)
{
    g_autoptr(JsonWriter) writer = json_writer_new();

    model_arch_write(writer, NULL, arch);
    return json_writer_steal(writer, NULL);
}

static void
test_writing_and_reading_agree(void)
{
    g_autoptr(GPtrArray) names = model_arch_builtin_names();

    for (guint i = 0; i < names->len; i++) {
        g_autoptr(ModelArch) arch = load(g_ptr_array_index(names, i));
        g_autoptr(ModelArch) copy = model_arch_copy(arch);
        g_autoptr(GError) error = NULL;
        g_autofree char *text = write_text(copy);
        g_autoptr(ModelArch) again = parse(text, &error);
        g_autofree char *again_text = NULL;

        g_assert_no_error(error);
        again_text = write_text(again);
        g_assert_cmpstr(again_text, ==, text);
        g_assert_cmpint(model_parameters(again), ==, model_parameters(arch));
    }
}

static void
test_absent_keys_take_the_usual_values(void)
{
    static const struct {
        const char *text;
        int64_t n_kv_heads, head_dim, ffn_hidden;
        bool tied, qkv_bias;
    } cases[] = {
        {"{\"family\":\"gpt\",\"n_layers\":2,\"hidden\":64,\"n_heads\":4,\"vocab\":0,"
         "\"max_seq_len\":8}",
         4, 16, 256, true, true},
        /* Llama 2 7B and 13B: 11008 and 13824 = 8/3 h rounded up to a multiple of 256. */
        {"{\"family\":\"llama\",\"n_layers\":2,\"hidden\":4096,\"n_heads\":32,\"vocab\":0,"
         "\"max_seq_len\":8}",
         32, 128, 11008, false, false},
        {"{\"family\":\"llama\",\"n_layers\":2,\"hidden\":5120,\"n_heads\":40,\"n_kv_heads\":8,"
         "\"vocab\":0,\"max_seq_len\":8}",
         8, 128, 13824, false, false},
        {"{\"family\":\"llama\",\"n_layers\":2,\"hidden\":100,\"n_heads\":3,\"head_dim\":64,"
         "\"vocab\":0,\"max_seq_len\":8,\"tied_embeddings\":true}",
         3, 64, 512, true, false},
        {"{\"family\":\"llama\",\"n_layers\":2,\"hidden\":100,\"n_heads\":3,\"vocab\":0,"
         "\"max_seq_len\":8,\"mla\":{\"kv_lora_rank\":8,\"qk_nope_head_dim\":16,"
         "\"qk_rope_head_dim\":8,\"v_head_dim\":16}}",
         3, 24, 512, false, false},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(ModelArch) arch = parse(cases[i].text, &error);

        g_assert_no_error(error);
        g_assert_cmpstr(arch->name, ==, "custom");
        g_assert_cmpint(arch->n_kv_heads, ==, cases[i].n_kv_heads);
        g_assert_cmpint(arch->head_dim, ==, cases[i].head_dim);
        g_assert_cmpint(arch->ffn_hidden, ==, cases[i].ffn_hidden);
        g_assert_cmpint(arch->tied_embeddings, ==, cases[i].tied);
        g_assert_cmpint(arch->qkv_bias, ==, cases[i].qkv_bias);
        g_assert_cmpfloat(arch->norm_epsilon, ==, 1e-5);
        g_assert_cmpfloat(arch->rope_base, ==, 10000);
    }
}

#define MOE "\"experts\":{\"n_experts\":8,\"top_k\":2,\"ffn_hidden\":64}"

/* @replace takes the place of @find in a sound file; the message must contain @expect. */
static void
test_bad_files_are_refused(void)
{
    static const char sound[] =
        "{\"format\":\"degas-model\",\"version\":1,\"name\":\"x\",\"family\":\"llama\","
        "\"n_layers\":4,\"hidden\":64,\"n_heads\":8,\"n_kv_heads\":4,\"head_dim\":8,"
        "\"ffn_hidden\":128,\"vocab\":100,\"max_seq_len\":32," MOE "}";
    static const struct {
        const char *find, *replace, *expect;
    } cases[] = {
        {"\"n_layers\":4", "\"n_layers\":0", "$.n_layers"},
        {"\"n_layers\":4", "\"n_layers\":-4", "$.n_layers"},
        {"\"n_layers\":4", "\"n_layers\":1e300", "$.n_layers"},
        {"\"n_layers\":4,", "", "$.n_layers: missing key"},
        {"\"hidden\":64", "\"hidden\":1099511627776", "$.hidden"},
        {"\"hidden\":64", "\"hidden\":64.5", "$.hidden"},
        {"\"hidden\":64", "\"hidden\":null", "$.hidden"},
        {"\"hidden\":64", "\"hiden\":64", "did you mean \"hidden\""},
        {"\"hidden\":64", "\"hidden\":64,\"hidden\":64", "hidden"},
        {"\"head_dim\":8,", "\"head_dim\":7,", "$.head_dim: head_dim 7: expected an even number"},
        {"\"hidden\":64,\"n_heads\":8,\"n_kv_heads\":4,\"head_dim\":8,",
         "\"hidden\":65,\"n_heads\":8,", "does not divide hidden 65"},
        {"\"n_kv_heads\":4", "\"n_kv_heads\":3",
         "$.n_kv_heads: n_kv_heads 3 does not divide n_heads 8"},
        {"\"n_kv_heads\":4", "\"n_kv_heads\":16", "n_kv_heads 16 does not divide n_heads 8"},
        {"\"llama\"", "\"lama\"", "did you mean \"llama\""},
        {"\"vocab\":100", "\"vocab\":-1", "$.vocab"},
        {"\"top_k\":2", "\"top_k\":9", "$.experts.top_k: top_k 9 is more than the 8 experts"},
        {"\"top_k\":2", "\"top_k\":0", "$.experts.top_k"},
        {"\"vocab\":100", "\"vocab\":100,\"norm_epsilon\":0", "$.norm_epsilon"},
        {"\"vocab\":100", "\"vocab\":100,\"rope_base\":0", "$.rope_base"},
        {"\"top_k\":2", "\"top_k\":2,\"router_scores\":\"sofmax\"", "did you mean \"softmax\""},
        {"\"top_k\":2", "\"top_k\":2,\"router_scale\":0", "$.experts.router_scale"},
        {"\"top_k\":2", "\"top_k\":2,\"first_dense_layers\":5", "first_dense_layers 5"},
        {"\"n_experts\":8", "\"n_experts\":0", "$.experts.n_experts"},
        {MOE, "\"experts\":[]", "$.experts"},
        {"\"degas-model\"", "\"degas-plan\"", "$.format: expected \"degas-model\""},
        {"\"version\":1", "\"version\":2", "$.version"},
        /* Each within its bounds, together not. */
        {"\"n_layers\":4,\"hidden\":64,", "\"n_layers\":65536,\"hidden\":1048576,", NULL},
        {"\"n_layers\":4,\"hidden\":64,\"n_heads\":8,\"n_kv_heads\":4,\"head_dim\":8,"
         "\"ffn_hidden\":128",
         "\"n_layers\":65536,\"hidden\":1048576,\"n_heads\":8,\"ffn_hidden\":16777216",
         "too large"},
        {MOE,
         "\"mla\":{\"kv_lora_rank\":8,\"qk_nope_head_dim\":8,\"qk_rope_head_dim\":8,"
         "\"v_head_dim\":8}",
         "$.n_kv_heads: with \"mla\""},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_auto(GStrv) parts = g_strsplit(sound, cases[i].find, 2);
        g_autofree char *text = g_strjoinv(cases[i].replace, parts);
        g_autoptr(GError) error = NULL;
        g_autoptr(ModelArch) arch = NULL;

        g_assert_cmpuint(g_strv_length(parts), ==, 2);
        arch = parse(text, &error);
        g_test_message("%s: %s", cases[i].replace, error ? error->message : "accepted");
        if (cases[i].expect == NULL) {
            /* Large, but all of it fits. */
            g_assert_no_error(error);
            continue;
        }
        g_assert_null(arch);
        g_assert_error(error, JSON_ERROR, JSON_ERROR_INVALID);
        g_assert_nonnull(strstr(error->message, cases[i].expect));
        g_assert_true(g_str_has_prefix(error->message, "m.json:"));
    }
}

/*
 * Every number of every built-in model is replaced by extremes: the file is refused, or what it
 * says can be counted without overflow (the sanitizer's and g_assert's matter) and never
 * negatively.
 */
static void
test_extreme_numbers_never_overflow(void)
{
    static const char *const extremes[] = {
        "0",        "1",          "3",
        "65536",    "1048576",    "16777216",
        "67108864", "1073741824", "9007199254740992",
        "-1",
    };
    g_autoptr(GPtrArray) names = model_arch_builtin_names();
    g_autoptr(GRegex) number = g_regex_new(": [0-9]+[,}\n]", 0, 0, NULL);
    int n_accepted = 0, n_refused = 0;

    for (guint i = 0; i < names->len; i++) {
        g_autoptr(ModelArch) arch = load(g_ptr_array_index(names, i));
        g_autofree char *text = write_text(arch);
        g_autoptr(GMatchInfo) match = NULL;

        for (g_regex_match(number, text, 0, &match); g_match_info_matches(match);
             g_match_info_next(match, NULL)) {
            int start, end;

            g_assert_true(g_match_info_fetch_pos(match, 0, &start, &end));
            for (size_t j = 0; j < G_N_ELEMENTS(extremes); j++) {
                g_autofree char *changed =
                    g_strdup_printf("%.*s: %s%s", start, text, extremes[j], text + end - 1);
                g_autoptr(GError) error = NULL;
                g_autoptr(ModelArch) extreme = parse(changed, &error);

                if (extreme == NULL) {
                    g_assert_nonnull(error);
                    n_refused++;
                    continue;
                }
                n_accepted++;
                g_assert_cmpint(model_parameters(extreme), >, 0);
                g_assert_cmpint(model_parameters(extreme), <, MODEL_MAX_PARAMETERS);
                g_assert_cmpint(model_active_parameters(extreme), >, 0);
                g_assert_cmpfloat(model_flops_per_iteration(extreme, 1.0, MODEL_MAX_SEQ_LEN), >,
                                  0.0);
            }
        }
    }
    g_assert_cmpint(n_accepted, >, 500);
    g_assert_cmpint(n_refused, >, 500);
}

static void
test_unknown_names_suggest_the_nearest(void)
{
    static const struct {
        const char *name, *expect;
    } cases[] = {
        {"gtp3-175b", "did you mean \"gpt3-175b\""},
        {"llama3-70", "did you mean \"llama3-70b\""},
        {"/nonexistent/x.json", "/nonexistent/x.json: neither"},
        {"bad\033[31mname", "neither a built-in model"},
        {"", "neither a built-in model"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;

        g_assert_null(model_arch_load(cases[i].name, NULL, &error));
        g_assert_error(error, G_FILE_ERROR, G_FILE_ERROR_NOENT);
        g_test_message("%s", error->message);
        g_assert_nonnull(strstr(error->message, cases[i].expect));
        g_assert_null(strchr(error->message, '\033'));
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/models/arch/built-in-models-are-complete", test_built_in_models_are_complete);
    g_test_add_func("/models/arch/writing-and-reading-agree", test_writing_and_reading_agree);
    g_test_add_func("/models/arch/absent-keys-take-the-usual-values",
                    test_absent_keys_take_the_usual_values);
    g_test_add_func("/models/arch/bad-files-are-refused", test_bad_files_are_refused);
    g_test_add_func("/models/arch/extreme-numbers-never-overflow",
                    test_extreme_numbers_never_overflow);
    g_test_add_func("/models/arch/unknown-names-suggest-the-nearest",
                    test_unknown_names_suggest_the_nearest);
    return g_test_run();
}
