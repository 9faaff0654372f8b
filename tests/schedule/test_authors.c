/*
 * Tests of the schedule families against the orders that the authors' programs produce.
 *
 * The small ones below are transcribed; the larger set is read from a folder of degas-schedule
 * files with a key "expected", where there is one: $DEGAS_SHARED/schedules, or ../shared/schedules.
 */
#include "schedule/schedule.h"

#include <string.h>

#include "base/json.h"
#include "schedule/check.h"
#include "tests/schedule/evaluate.h"
#include "tests/schedule/in_flight.h"

typedef enum {
    ORDER,   /* the same order */
    OUTCOME, /* the same makespan and span, and no more in flight */
    READS,   /* no family of ours: only read, check, evaluate */
} Promise;

/* Which family of ours each program's name is. */
static const struct {
    const char *prefix; /* of the file's "schedule" */
    const char *family;
    Promise promise;
} authors[] = {
    {"megatron_1f1b", "1f1b", ORDER},
    {"deepspeed_train", "1f1b", ORDER},
    {"torch_gpipe", "gpipe", ORDER},
    {"megatron_interleaved", "interleaved", ORDER},
    {"torch_interleaved_1f1b", "interleaved", ORDER},
    {"zbrepo_vpp", "interleaved", ORDER},
    {"zbrepo_group_interleaved", NULL, READS}, /* splits B; another warm-up */
    {"seq1f1b_interleaved", "seq1f1b-interleaved", ORDER},
    {"seq1f1b", "seq1f1b", ORDER},
    {"zbrepo_seq1f1b", "seq1f1b", ORDER},
    {"torch_looped_bfs", "looped-bfs", ORDER},
    {"torch_interleaved_zb", "interleaved-zb", ORDER},
    {"zb_1p", "zb-h1", ORDER},
    {"zb_2p", "zb-h2", OUTCOME},
    {"torch_zbv", "zb-v", OUTCOME},
    {"zbv", "zb-v", ORDER},
    {"v_half", "v-half", ORDER},
    {"v_min", "v-min", ORDER},
    {"v_1f1b", NULL, READS},
    {"torch_dualpipev", "dualpipev", ORDER},
    {"dualpipev", "dualpipev", ORDER},
    {"dualpipe", "dualpipe", ORDER},
};

static int
author_of(const char *name)
{
    for (size_t i = 0; i < G_N_ELEMENTS(authors); i++)
        if (g_str_has_prefix(name, authors[i].prefix))
            return (int)i;
    return -1;
}

static void
assert_same_order(const char *label, const Schedule *ours, const Schedule *theirs)
{
    g_assert_cmpint(ours->n_ranks, ==, theirs->n_ranks);
    g_assert_cmpint(ours->placement, ==, theirs->placement);
    for (int32_t r = 0; r < ours->n_ranks; r++) {
        g_autofree char *a = rank_text(ours, r);
        g_autofree char *b = rank_text(theirs, r);
        if (strcmp(a, b) != 0)
            g_error("%s, rank %d:\nours   %s\ntheirs %s", label, r, a, b);
    }
    if (theirs->overlap_pairs == NULL)
        return;
    g_assert_nonnull(ours->overlap_pairs);
    g_assert_cmpuint(ours->overlap_pairs->len, ==, theirs->overlap_pairs->len);
    g_assert_cmpint(memcmp(ours->overlap_pairs->data, theirs->overlap_pairs->data,
                           ours->overlap_pairs->len * sizeof(int64_t)),
                    ==, 0);
}

/* --- transcribed --- */

static const struct {
    const char *family;
    const char *source;
    ScheduleShape shape;
    const char *ranks[4];
    const char *pairs[4]; /* positions of overlapped pairs */
} transcribed[] = {
#include "tests/schedule/authors.inc"
};

/* (owned) positions of a rank's overlapped pairs, NULL if the schedule has none. */
static char *
pairs_text(const Schedule *schedule, int32_t rank)
{
    if (schedule->overlap_pairs == NULL)
        return NULL;
    GString *text = g_string_new(NULL);
    for (guint i = 0; i < schedule->overlap_pairs->len; i++) {
        const int64_t at = g_array_index(schedule->overlap_pairs, int64_t, i);
        if (at >= schedule->rank_begin[rank] && at < schedule->rank_begin[rank + 1])
            g_string_append_printf(text, "%s%" G_GINT64_FORMAT, text->len > 0 ? " " : "",
                                   at - schedule->rank_begin[rank]);
    }
    return g_string_free(text, false);
}

static void
test_transcribed_orders(void)
{
    for (size_t i = 0; i < G_N_ELEMENTS(transcribed); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Schedule) ours =
            schedule_new(transcribed[i].family, &transcribed[i].shape, &error);
        g_assert_no_error(error);
        for (int32_t r = 0; r < ours->n_ranks; r++) {
            g_autofree char *text = rank_text(ours, r);
            if (strcmp(text, transcribed[i].ranks[r]) != 0)
                g_error("%s (%s), rank %d:\nours   %s\ntheirs %s", transcribed[i].family,
                        transcribed[i].source, r, text, transcribed[i].ranks[r]);
            g_autofree char *pairs = pairs_text(ours, r);
            g_assert_cmpstr(pairs, ==, transcribed[i].pairs[r]);
        }
    }
}

/* --- read --- */

static char *
schedules_folder(void)
{
    const char *shared = g_getenv("DEGAS_SHARED");

    return g_build_filename(shared == NULL ? "../shared" : shared, "schedules", NULL);
}

static int64_t
expected_int(JsonDoc *doc, const JsonValue *expected, const char *key)
{
    return json_int64(doc, expected, key, 0, JSON_MAX_INT);
}

static void
check_expected(const char *label, const char *path, const Schedule *theirs, Evaluation *wanted)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(JsonDoc) doc = json_doc_load(path, &error);
    g_assert_no_error(error);
    const JsonValue *root = json_doc_root(doc, "degas-schedule", 1);
    const JsonValue *expected = json_object(doc, root, "expected");
    const Evaluation e = evaluate(theirs, unit_times);

    wanted->makespan = expected_int(doc, expected, "makespan");
    wanted->span = expected_int(doc, expected, "span");
    const JsonValue *busy = json_first(json_array(doc, expected, "busy"));
    const JsonValue *peak = json_first(json_array(doc, expected, "peak_in_flight"));
    for (int32_t r = 0; r < theirs->n_ranks; r++, busy = json_next(busy), peak = json_next(peak)) {
        wanted->busy[r] = json_value_int64(doc, busy, 0, JSON_MAX_INT);
        wanted->peak[r] = (int32_t)json_value_int64(doc, peak, 0, INT32_MAX);
        if (e.busy[r] != wanted->busy[r] || e.peak[r] != wanted->peak[r] ||
            peak_in_flight(theirs, r) != wanted->peak[r])
            g_error("%s: rank %d busy or in flight differs", label, r);
    }
    g_assert_true(json_doc_finish(doc, &error));
    g_assert_cmpint(e.makespan, ==, wanted->makespan);
    g_assert_cmpint(e.span, ==, wanted->span);
}

static void
assert_no_worse(const char *label, const Schedule *ours, const Evaluation *wanted)
{
    const Evaluation e = evaluate(ours, unit_times);
    int32_t peak = 0, wanted_peak = 0;

    for (int32_t r = 0; r < ours->n_ranks; r++) {
        peak = MAX(peak, e.peak[r]);
        wanted_peak = MAX(wanted_peak, wanted->peak[r]);
    }
    if (e.makespan > wanted->makespan || e.span > wanted->span || peak > wanted_peak)
        g_error("%s: makespan %" G_GINT64_FORMAT " for %" G_GINT64_FORMAT ", span %" G_GINT64_FORMAT
                " for %" G_GINT64_FORMAT ", in flight %d for %d",
                label, e.makespan, wanted->makespan, e.span, wanted->span, peak, wanted_peak);
}

/* The group in names like megatron_interleaved_g6; 0: none. */
static int64_t
group_of(const char *name)
{
    const char *g = strrchr(name, 'g');

    return g != NULL && g > name && g[-1] == '_' ? g_ascii_strtoll(g + 1, NULL, 10) : 0;
}

static void
compare_file(const char *folder, const char *file)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *path = g_build_filename(folder, file, NULL);
    g_autoptr(Schedule) theirs = schedule_load(path, &error);
    g_assert_no_error(error);
    Evaluation wanted = {0};
    check_expected(file, path, theirs, &wanted);
    const int author = author_of(theirs->name);
    if (author < 0) {
        g_test_message("%s: nobody we know; read and evaluated only", file);
        return;
    }
    if (authors[author].promise == READS)
        return;
    const ScheduleShape shape = {theirs->n_ranks,  theirs->n_chunks,       theirs->n_micro_batches,
                                 theirs->n_slices, group_of(theirs->name), NULL};
    g_autoptr(Schedule) ours = schedule_new(authors[author].family, &shape, &error);
    g_assert_no_error(error);
    if (authors[author].promise == ORDER)
        assert_same_order(file, ours, theirs);
    assert_no_worse(file, ours, &wanted);
}

static void
test_orders_of_the_files(void)
{
    g_autofree char *folder = schedules_folder();
    g_autoptr(GDir) dir = g_dir_open(folder, 0, NULL);
    const char *file;
    int n_files = 0;

    if (dir == NULL) {
        g_autofree char *why = g_strdup_printf("no folder %s (set DEGAS_SHARED)", folder);
        g_test_skip(why);
        return;
    }
    while ((file = g_dir_read_name(dir)) != NULL)
        if (g_str_has_suffix(file, ".json")) {
            compare_file(folder, file);
            n_files++;
        }
    g_test_message("%d files", n_files);
    g_assert_cmpint(n_files, >, 0);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/schedule/authors/transcribed-orders", test_transcribed_orders);
    g_test_add_func("/schedule/authors/orders-of-the-files", test_orders_of_the_files);
    return g_test_run();
}
