/* Tests of schedule/report.h: the file comes back as it was. */
#include "schedule/report.h"

#include <math.h>
#include <string.h>

static Report *
example(void)
{
    Report *report = report_new(2);

    report->iteration_ns = 123456789012;
    report->span_ns = 123456789011;
    report->bubble_fraction = 1.0 / 3;
    report->peak_memory_bytes = INT64_C(1) << 36;
    report->memory_limit_bytes = INT64_C(80) << 30;
    report->fits = false;
    for (guint i = 0; i < 2; i++) {
        ReportRank *rank = &g_array_index(report->ranks, ReportRank, i);
        rank->busy_ns = 100000000001 + i;
        rank->bubble_ns = report->iteration_ns - rank->busy_ns;
        rank->communication_ns = 7;
        rank->peak_memory_bytes = INT64_C(1) << 36;
        rank->peak_time_ns = 3;
        g_strlcpy(rank->peak_op, "F3.1s2", sizeof rank->peak_op);
        rank->peak_in_flight = 4;
        for (int owner = 0; owner < TRACE_MEMORY_N; owner++)
            rank->memory_bytes[owner] = owner * 1000 + (int64_t)i;
    }
    report->breakdown.compute_s = 0.1;
    report->breakdown.bubble_s = 2.0 / 3;
    report->sources.measured_fraction = 0.25;
    report->sources.interpolated_fraction = 1.0 / 3;
    report->sources.modelled_fraction = 1 - 0.25 - 1.0 / 3;
    report->energy_per_iteration_j = 1e6 / 7;
    return report;
}

static void
test_round_trip(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Report) report = example();
    g_autoptr(JsonWriter) writer = json_writer_new();
    size_t n_bytes;

    json_write_object(writer, NULL);
    report_write(writer, report);
    json_write_object_end(writer);
    g_autofree char *text = json_writer_steal(writer, &n_bytes);
    g_autoptr(JsonDoc) doc = json_doc_parse("r", text, n_bytes, &error);
    g_assert_no_error(error);
    g_autoptr(Report) back = report_read(doc, json_doc_root(doc, "degas-report", 1));
    json_doc_finish(doc, &error);
    g_assert_no_error(error);
    g_assert_cmpint(back->iteration_ns, ==, report->iteration_ns);
    g_assert_cmpint(back->span_ns, ==, report->span_ns);
    g_assert_true(isnan(back->tokens_per_s));
    g_assert_true(isnan(back->cost_per_iteration));
    g_assert_true(back->bubble_fraction == report->bubble_fraction);
    g_assert_true(back->energy_per_iteration_j == report->energy_per_iteration_j);
    g_assert_cmpint(back->peak_memory_bytes, ==, report->peak_memory_bytes);
    g_assert_cmpint(back->memory_limit_bytes, ==, report->memory_limit_bytes);
    g_assert_cmpint(back->fits, ==, report->fits);
    g_assert_cmpint(memcmp(&back->breakdown, &report->breakdown, sizeof back->breakdown), ==, 0);
    g_assert_cmpint(memcmp(&back->sources, &report->sources, sizeof back->sources), ==, 0);
    g_assert_cmpuint(back->ranks->len, ==, 2);
    for (guint i = 0; i < 2; i++)
        g_assert_cmpint(memcmp(&g_array_index(back->ranks, ReportRank, i),
                               &g_array_index(report->ranks, ReportRank, i), sizeof(ReportRank)),
                        ==, 0);
    g_autoptr(JsonWriter) again = json_writer_new();
    json_write_object(again, NULL);
    report_write(again, back);
    json_write_object_end(again);
    g_autofree char *text_again = json_writer_steal(again, &n_bytes);
    g_assert_cmpstr(text_again, ==, text);
}

/* What a schedule alone is simulated with has no bytes, and load may be even: least values are
 * read back. */
static void
test_least_load_comes_back(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Report) report = example();
    g_autoptr(JsonWriter) writer = json_writer_new();
    size_t n_bytes;

    report->load = (ReportLoad){.n_steps = 1, .imbalance = {1, 1}};
    json_write_object(writer, NULL);
    report_write(writer, report);
    json_write_object_end(writer);
    g_autofree char *text = json_writer_steal(writer, &n_bytes);
    g_autoptr(JsonDoc) doc = json_doc_parse("r", text, n_bytes, &error);
    g_assert_no_error(error);
    g_autoptr(Report) back = report_read(doc, json_doc_root(doc, "degas-report", 1));
    json_doc_finish(doc, &error);
    g_assert_no_error(error);
    g_assert_cmpint(back->load.n_steps, ==, 1);
    g_assert_cmpint(back->load.peak_memory_bytes[REPORT_LOAD_P95], ==, 0);
    g_assert_true(back->load.imbalance[REPORT_LOAD_P50] == 1);
}

/* What varied is read back, and whatever the file says of the distribution in words follows from
 * the numbers. */
static void
test_jitter_comes_back(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Report) report = example();
    g_autoptr(JsonWriter) writer = json_writer_new();
    size_t n_bytes;

    report->jitter = (ReportJitter){.op_sigma = 0.25,
                                    .rank_sigma = 0.125,
                                    .straggler_fraction = 0.5,
                                    .straggler_slowdown = 2,
                                    .correlation_s = 3,
                                    .n_runs = 7,
                                    .seed = 9,
                                    .iteration_ns = {1, 2, 3},
                                    .peak_memory_bytes = {4, 5, 6},
                                    .fit_fraction = 0.75};
    json_write_object(writer, NULL);
    report_write(writer, report);
    json_write_object_end(writer);
    g_autofree char *text = json_writer_steal(writer, &n_bytes);
    g_autoptr(JsonDoc) doc = json_doc_parse("r", text, n_bytes, &error);
    g_assert_no_error(error);
    g_autoptr(Report) back = report_read(doc, json_doc_root(doc, "degas-report", 1));
    json_doc_finish(doc, &error);
    g_assert_no_error(error);
    g_assert_cmpint(memcmp(&back->jitter, &report->jitter, sizeof back->jitter), ==, 0);
}

static void
test_copy_is_apart(void)
{
    g_autoptr(Report) report = example();
    g_autoptr(Report) copy = report_copy(report);

    g_array_index(copy->ranks, ReportRank, 0).busy_ns = 1;
    g_assert_cmpint(g_array_index(report->ranks, ReportRank, 0).busy_ns, ==, 100000000001);
}

static void
test_refuses(void)
{
    static const struct {
        const char *old, *new, *says;
    } cases[] = {
        {"\"span_s\": ", "\"span_s\": -", "$.span_s"},
        {"\"fits\": false", "\"fits\": 0", "$.fits"},
        {"\"rank\": 1", "\"rank\": 2", "$.ranks[1].rank"},
        {"\"kv\": 4000", "\"kv\": 4000.5", "$.ranks[0].memory_bytes.kv"},
        {"\"bubble_fraction\": 0.3", "\"bubble_fraction\": 3.3", "$.bubble_fraction"},
        {"\"span_s\"", "\"spam_s\"", "span_s"},
    };
    g_autoptr(Report) report = example();
    g_autoptr(JsonWriter) writer = json_writer_new();
    size_t n_bytes;

    json_write_object(writer, NULL);
    report_write(writer, report);
    json_write_object_end(writer);
    g_autofree char *text = json_writer_steal(writer, &n_bytes);
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        const char *at = strstr(text, cases[i].old);
        g_assert_nonnull(at);
        g_autofree char *bad = g_strdup_printf("%.*s%s%s", (int)(at - text), text, cases[i].new,
                                               at + strlen(cases[i].old));
        g_autoptr(JsonDoc) doc = json_doc_parse("r", bad, strlen(bad), &error);
        g_assert_no_error(error);
        g_autoptr(Report) back = report_read(doc, json_doc_root(doc, "degas-report", 1));
        g_assert_nonnull(back);
        g_assert_false(json_doc_finish(doc, &error));
        if (strstr(error->message, cases[i].says) == NULL)
            g_error("\"%s\" does not say \"%s\"", error->message, cases[i].says);
    }
}

/* Of equals the first. */
static void
test_peak_owner_holds_most(void)
{
    for (int most = 0; most < TRACE_MEMORY_N; most++) {
        ReportRank rank = {0};

        for (int owner = most; owner < TRACE_MEMORY_N; owner++)
            rank.memory_bytes[owner] = 5;
        g_assert_cmpint(report_peak_owner(&rank), ==, most);
        rank.memory_bytes[0] = 4;
        g_assert_cmpint(report_peak_owner(&rank), ==, most == 0 ? 1 : most);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/schedule/report/round-trip", test_round_trip);
    g_test_add_func("/schedule/report/least-load-comes-back", test_least_load_comes_back);
    g_test_add_func("/schedule/report/jitter-comes-back", test_jitter_comes_back);
    g_test_add_func("/schedule/report/copy-is-apart", test_copy_is_apart);
    g_test_add_func("/schedule/report/refuses", test_refuses);
    g_test_add_func("/schedule/report/peak-owner-holds-most", test_peak_owner_holds_most);
    return g_test_run();
}
