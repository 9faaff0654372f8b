/* Tests of cli/validate/sources.h: the built-in conventions, and that a wrong file is refused. */
#include "cli/validate/sources.h"

#include "models/arch.h"
#include "profiles/profile.h"

#include <string.h>

/* A file with one row more in each of the tables named. */
#define FILE_OF(sources, notes, schedules, sets)                                                   \
    "{\"format\": \"degas-sources\", \"version\": 1, \"sources\": [" sources                       \
    "{\"name\": \"\", \"framework\": \"degas\", \"dtype\": \"bf16\", \"recompute\": \"none\", "    \
    "\"why\": \"\"}], \"notes\": [" notes "], \"schedules\": [" schedules                          \
    "], \"models\": [], \"clusters\": [], \"dtypes\": [], \"modules\": [], \"reasons\": [], "      \
    "\"sets\": [" sets "]}"

#define PAPER(more)                                                                                \
    "{\"name\": \"paper_*\", \"framework\": \"fsdp\", \"dtype\": \"fp16\", \"recompute\": "        \
    "\"full\", "                                                                                   \
    "\"why\": \"section 5\"" more "},"

static bool
read_text(const char *text, ValidationConventions *conventions, GError **error)
{
    return validation_conventions_read("s.json", text, strlen(text), conventions, error);
}

static void
test_is_built_in(void)
{
    const ValidationConventions *conventions = validation_conventions();
    const MeasuredRow unknown = {.source = "nobody", .gpu = "TPU", .zero_stage = -1};
    size_t n = 0;

    g_assert_cmpstr(validation_source(&unknown)->name, ==, "");
    g_assert_cmpstr(validation_source(&unknown)->framework, ==, "degas");
    g_assert_null(validation_cluster(&unknown));
    for (const ValidationSet *set = conventions->sets; set->name != NULL; set++)
        n++;
    g_assert_cmpuint(n, ==, conventions->n_sets);
    g_assert_cmpuint(n, >, 0);
}

/* What the file names elsewhere is there: models and clusters. */
static void
test_names_are_built_in(void)
{
    const ValidationConventions *conventions = validation_conventions();

    for (const ValidationWord *word = conventions->models; word->prefix != NULL; word++) {
        g_autoptr(ModelArch) arch =
            word->builtin == NULL ? NULL : model_arch_load(word->builtin, NULL, NULL);

        g_assert_true(word->builtin == NULL || arch != NULL);
    }
    for (const ValidationWord *word = conventions->clusters; word->prefix != NULL; word++) {
        g_autoptr(Profile) profile =
            word->cluster == NULL ? NULL : profile_load(word->cluster, NULL);

        g_assert_true(word->cluster == NULL || profile != NULL);
    }
}

/* Rows of a table: the first that fits counts, by name and stage; by prefix and rate. */
static void
test_first_that_fits_counts(void)
{
    const struct {
        const char *source;
        int zero_stage;
        const char *framework;
    } sources[] = {
        {"megatron_sc21_table2", 3, "megatron-deepspeed"},
        {"megatron_sc21_table2", 0, "megatron-lm"},
        {"megatron_jan2021_readme", -1, "megatron-lm"},
        {"korthikanti_table5", -1, "megatron-lm"},
    };
    const struct {
        const char *gpu;
        double node_bits_per_s;
        const char *cluster;
    } clusters[] = {
        {"A100-SXM4-80GB", 800e9, "a100-80g-4xhdr"},
        {"A100-SXM4-80GB, x8", 1600e9, "dgx-a100-80g"},
        {"A100-SXM4-40GB", 800e9, "dgx-a100-40g"},
        {"A100", 0.0, NULL},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(sources); i++) {
        const MeasuredRow row = {.source = sources[i].source, .zero_stage = sources[i].zero_stage};

        g_assert_cmpstr(validation_source(&row)->framework, ==, sources[i].framework);
    }
    for (size_t i = 0; i < G_N_ELEMENTS(clusters); i++) {
        const MeasuredRow row = {.gpu = clusters[i].gpu,
                                 .node_bits_per_s = clusters[i].node_bits_per_s};
        const ValidationWord *word = validation_cluster(&row);

        g_assert_nonnull(word);
        g_assert_cmpstr(word->cluster, ==, clusters[i].cluster);
    }
}

/* Reasons are of a source, a model and a device, of stacks from a month on and before one. */
static void
test_reasons_are_of_a_time(void)
{
    const struct {
        const char *source, *model, *gpu, *stack_date, *begin;
        int64_t n_layers;
    } rows[] = {
        {"nvidia_megatron_bridge", "Qwen3_30B_a3B", "B200", "2026-02",
         "its recipe has micro-batches of 1"},
        {"nvidia_megatron_bridge", "Qwen3_30B_a3B", "B200", "2026-03", NULL},
        {"nvidia_megatron_bridge", "Qwen3_30B_a3B", "B300", "2026-02", NULL},
        {"nvidia_megatron_bridge", "GPT OSS 120B", "B200", "2025-11",
         "the row agrees with no recipe"},
        {"nvidia_megatron_bridge", "GPT OSS 120B", "B200", "2026-02", "its recipe has ep 8"},
        {"nvidia_megatron_bridge", "GPT OSS 120B", "B200", "2026-04", NULL},
        {"nvidia_megatron_bridge", "Nemotron_3_Super", "B300", "2026-04",
         "its recipes up to v0.6.0 keep"},
        {"nvidia_megatron_bridge", "Nemotron_3_Super", "GB300", "2026-04", NULL},
        {"nvidia_megatron_bridge", "Nemotron_3_Nano", "B300", "2026-04", "a stack of another date"},
        {"nvidia_megatron_bridge", "Nemotron_3_Nano", "B300", "2026-06", NULL},
        {"nvidia_megatron_bridge", "Qwen3_235B_a22B (tokendrop)", "H100-SXM5-80GB", "2025-09",
         "its recipes of that release"},
        {"nvidia_megatron_bridge", "Qwen3_235B_a22B", "H100-SXM5-80GB", "2026-02", NULL},
        {"megatron_sc21_table1", "GPT-39.1B", "A100-SXM4-80GB", "", "tp is as many devices"},
        {"nvidia_dgxc", "Qwen3_30B_a3B", "B200", "2026-02", NULL},
        {"nvidia_dgxc", "moe-Grok1-314B", "H100-SXM5-80GB", "2024-12", "a model cut to some", 8},
        {"nvidia_dgxc", "moe-Grok1-314B", "H100-SXM5-80GB", "2024-12", NULL, 64},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        const MeasuredRow row = {.source = rows[i].source,
                                 .model = rows[i].model,
                                 .gpu = rows[i].gpu,
                                 .dtype = "MXFP8",
                                 .n_layers = rows[i].n_layers,
                                 .stack_date = rows[i].stack_date};
        const char *reason = validation_reason(&row);

        g_assert_true((reason == NULL) == (rows[i].begin == NULL));
        g_assert_true(reason == NULL || g_str_has_prefix(reason, rows[i].begin));
    }
}

static void
test_row_is_read(void)
{
    static const char text[] = FILE_OF(
        PAPER(", \"zero_stage\": 1, \"overlap\": \"dp\", \"vocab\": 51200, \"ends_short\": true, "
              "\"dated\": true, \"stack\": \"2021-08\", \"schedule\": \"gpipe\", "
              "\"memory\": \"reserved\""),
        "{\"key\": \"k\", \"option\": \"loss\", \"value\": \"fused\", \"why\": \"says who\"}",
        "{\"prefix\": \"Seq\", \"family\": \"seq1f1b\", \"sliced\": true}",
        "{\"name\": \"paper\", \"quantity\": \"oom\", \"sources\": [], \"raw_goal\": 0.5}");
    g_auto(ValidationConventions) conventions = {0};
    g_autoptr(GError) error = NULL;
    const bool ok = read_text(text, &conventions, &error);

    g_assert_no_error(error);
    g_assert_true(ok);
    g_assert_cmpstr(conventions.sources[0].name, ==, "paper_*");
    g_assert_cmpint(conventions.sources[0].zero_stage, ==, 1);
    g_assert_cmpstr(conventions.sources[0].overlap, ==, "dp");
    g_assert_null(conventions.sources[0].attention);
    g_assert_cmpint(conventions.sources[0].vocab, ==, 51200);
    g_assert_true(conventions.sources[0].ends_short);
    g_assert_true(conventions.sources[0].dated);
    g_assert_cmpstr(conventions.sources[0].stack, ==, "2021-08");
    g_assert_cmpstr(conventions.sources[0].schedule, ==, "gpipe");
    g_assert_false(conventions.sources[0].vocab_cut);
    g_assert_cmpint(conventions.sources[0].memory, ==, VALIDATION_MEMORY_RESERVED);
    g_assert_cmpint(conventions.sources[1].zero_stage, ==, -1);
    g_assert_cmpint(conventions.sources[1].vocab, ==, 0);
    g_assert_null(conventions.sources[2].name);
    g_assert_null(conventions.notes[0].prefix);
    g_assert_true(conventions.schedules[0].sliced);
    g_assert_cmpint(conventions.sets[0].quantity, ==, VALIDATION_OOM);
    g_assert_cmpfloat(conventions.sets[0].raw_goal, ==, 0.5);
    g_assert_cmpuint(conventions.n_sets, ==, 1);
}

static void
test_wrong_file_is_refused(void)
{
    const struct {
        const char *text, *message;
    } cases[] = {
        {FILE_OF(PAPER(", \"vocabulary\": 1"), "", "", ""), "*$.sources?0?.vocabulary*unknown*"},
        {FILE_OF("{\"name\": \"x\"},", "", "", ""), "*$.sources?0?*framework*missing*"},
        {FILE_OF(PAPER(", \"memory\": \"all\""), "", "", ""), "*$.sources?0?.memory*"},
        {FILE_OF(PAPER(", \"zero_stage\": 4"), "", "", ""), "*$.sources?0?.zero_stage*"},
        {FILE_OF("{\"name\": \"x\", \"framework\": \"gpt\", \"dtype\": \"fp16\", "
                 "\"recompute\": \"full\", \"why\": \"\"},",
                 "", "", ""),
         "*unknown framework \"gpt\"*"},
        {FILE_OF("{\"name\": \"x\", \"framework\": \"fsdp\", \"dtype\": \"fp17\", "
                 "\"recompute\": \"full\", \"why\": \"\"},",
                 "", "", ""),
         "*$.sources?0?.dtype*fp17*"},
        {FILE_OF("", "1", "", ""), "*$.notes?0?*expected an object*"},
        {FILE_OF("", "", "{\"prefix\": \"a\", \"family\": \"2f2b\"}", ""),
         "*unknown family \"2f2b\"*"},
        {FILE_OF("", "", "",
                 "{\"name\": \"a\", \"quantity\": \"time\", \"sources\": [\"paper_1\"]}"),
         "*no source is named \"paper_1\"*"},
        {FILE_OF("", "", "", "{\"name\": \"a\", \"quantity\": \"mass\", \"sources\": []}"),
         "*$.sets?0?.quantity*mass*"},
        {"{\"format\": \"degas-plan\", \"version\": 1}", "*degas-sources*"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_auto(ValidationConventions) conventions = {0};
        g_autoptr(GError) error = NULL;

        g_assert_false(read_text(cases[i].text, &conventions, &error));
        g_assert_error(error, JSON_ERROR, JSON_ERROR_INVALID);
        if (!g_pattern_match_simple(cases[i].message, error->message))
            g_error("\"%s\" is not like \"%s\"", error->message, cases[i].message);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/cli/validate/sources/is-built-in", test_is_built_in);
    g_test_add_func("/cli/validate/sources/names-are-built-in", test_names_are_built_in);
    g_test_add_func("/cli/validate/sources/first-that-fits-counts", test_first_that_fits_counts);
    g_test_add_func("/cli/validate/sources/row-is-read", test_row_is_read);
    g_test_add_func("/cli/validate/sources/wrong-file-is-refused", test_wrong_file_is_refused);
    g_test_add_func("/cli/validate/sources/reasons-are-of-a-time", test_reasons_are_of_a_time);
    return g_test_run();
}
