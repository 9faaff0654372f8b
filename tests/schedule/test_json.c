/* Tests of the schedule files of schedule/schedule.h: round trip, and input that lies. */
#include "schedule/schedule.h"

#include <string.h>

#include "base/json.h"
#include "schedule/check.h"
#include "tests/schedule/evaluate.h"
#include "tests/schedule/files.h"

static Schedule *
load_text(const char *text, GError **error)
{
    g_autofree char *path = file_with(text, -1);
    Schedule *schedule = schedule_load(path, error);

    g_unlink(path);
    return schedule;
}

static void
test_round_trip(void)
{
    for (const ScheduleFamily *const *f = schedule_families(); *f != NULL; f++) {
        g_autoptr(GError) error = NULL;
        const ScheduleShape shape = {4, (*f)->min_chunks, 8, (*f)->slices ? 2 : 1, 0, NULL};
        g_autoptr(Schedule) s = schedule_new((*f)->name, &shape, &error);
        g_assert_no_error(error);
        size_t n_bytes = 0, n_again = 0;
        g_autofree char *text = schedule_to_json(s, &n_bytes);
        g_assert_cmpuint(n_bytes, ==, strlen(text));
        g_autoptr(Schedule) back = load_text(text, &error);
        g_assert_no_error(error);
        g_assert_cmpstr(back->name, ==, s->name);
        g_assert_cmpint(back->n_ranks, ==, s->n_ranks);
        g_assert_cmpint(back->n_chunks, ==, s->n_chunks);
        g_assert_cmpint(back->n_micro_batches, ==, s->n_micro_batches);
        g_assert_cmpint(back->n_slices, ==, s->n_slices);
        g_assert_cmpint(back->placement, ==, s->placement);
        g_assert_cmpint(schedule_n_ops(back), ==, schedule_n_ops(s));
        g_assert_cmpint(memcmp(back->ops, s->ops, sizeof(ScheduleOp) * (size_t)schedule_n_ops(s)),
                        ==, 0);
        g_autofree char *again = schedule_to_json(back, &n_again);
        g_assert_cmpstr(again, ==, text);
    }
}

#define HEAD(stages, micro_batches)                                                                \
    "{\"format\":\"degas-schedule\",\"version\":1,\"schedule\":\"x\",\"stages\":" stages           \
    ",\"microbatches\":" micro_batches ","

static void
test_refuses(void)
{
    static const struct {
        const char *text;
        const char *says;
    } cases[] = {
        {HEAD("1", "1") "\"ranks\":[[\"F0.0\",\"B0.0\"],[]]}", "$.ranks: expected 1 list"},
        {HEAD("2", "1") "\"ranks\":[[\"F0.0\",\"B0.0\"]]}", "$.ranks: expected 2 lists"},
        {HEAD("1", "1") "\"ranks\":[[\"F0.0\",\"X0.0\"]]}", "$.ranks[0][1]: expected an op"},
        {HEAD("1", "1") "\"ranks\":[[\"F0.0\",\"B1.0\"]]}", "$.ranks[0][1]: expected an op"},
        {HEAD("1", "1") "\"ranks\":[[\"F0.0\",\"B0.0s0x\"]]}", "$.ranks[0][1]: expected an op"},
        {HEAD("1", "1") "\"ranks\":[[\"F0.0\",7]]}", "$.ranks[0][1]"},
        {HEAD("1", "1") "\"ranks\":[7]}", "$.ranks[0]"},
        {HEAD("1", "1") "\"ranks\":{}}", "$.ranks"},
        {HEAD("1", "1") "}", ""},
        {HEAD("1", "2") "\"ranks\":[[\"F0.0\",\"B0.0\"]]}", "rank 0: F1.0 is missing"},
        {HEAD("1", "2147483647") "\"ranks\":[[\"F0.0\",\"B0.0\"]]}", "rank 0: F1.0 is missing"},
        {HEAD("1", "2147483648") "\"ranks\":[[\"F0.0\",\"B0.0\"]]}", "$.microbatches"},
        {HEAD("1048577", "1") "\"ranks\":[]}", "$.stages"},
        {HEAD("0", "1") "\"ranks\":[]}", "$.stages"},
        {HEAD("-1", "1") "\"ranks\":[]}", "$.stages"},
        {HEAD("1.5", "1") "\"ranks\":[]}", "$.stages"},
        {HEAD("1", "1") "\"virtual\":257,\"ranks\":[[]]}", "$.virtual"},
        {HEAD("1", "1") "\"slices\":65537,\"ranks\":[[]]}", "$.slices"},
        {HEAD("1", "1") "\"placement\":\"w\",\"ranks\":[[]]}", "$.placement"},
        {HEAD("1", "1") "\"placement\":\"bidir\",\"ranks\":[[]]}", "virtual"},
        {HEAD("1", "1") "\"placement\":\"bidir\",\"virtual\":2,\"ranks\":[[]]}", "even"},
        {HEAD("1", "1") "\"rank\":[[\"F0.0\",\"B0.0\"]]}", "ranks"},
        {HEAD("1", "1") "\"ranks\":[[\"F0.0\",\"B0.0\"]],\"overlap_pairs\":[[1]]}",
         "$.overlap_pairs[0][0]"},
        {HEAD("1", "1") "\"ranks\":[[\"F0.0\",\"B0.0\"]],\"overlap_pairs\":[[-1]]}",
         "$.overlap_pairs[0][0]"},
        {HEAD("1", "1") "\"ranks\":[[\"F0.0\",\"B0.0\"]],\"overlap_pairs\":[[0,1]]}",
         "$.overlap_pairs[0][1]"},
        {HEAD("1", "2") "\"ranks\":[[\"F0.0\",\"B0.0\",\"F1.0\",\"B1.0\"]],"
                        "\"overlap_pairs\":[[0,1]]}",
         "$.overlap_pairs[0][1]"},
        {HEAD("1", "1") "\"ranks\":[[\"F0.0\",\"B0.0\"]],\"overlap_pairs\":[[0],[]]}",
         "$.overlap_pairs"},
        {HEAD("1", "1") "\"ranks\":[[\"B0.0\",\"F0.0\"]]}", "comes later in its own order"},
        {HEAD("1", "1") "\"ranks\":[[\"F0.0\",\"B0.0\"]],\"rnaks\":1}", "rnaks"},
        {"{\"format\":\"degas-plan\",\"version\":1}", "degas-schedule"},
        {"[]", ""},
        {"", ""},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Schedule) s = load_text(cases[i].text, &error);
        g_assert_null(s);
        g_assert_nonnull(error);
        g_assert_nonnull(strstr(error->message, "degas-test-")); /* names the file */
        if (strstr(error->message, cases[i].says) == NULL)
            g_error("\"%s\" does not say \"%s\"", error->message, cases[i].says);
    }
}

static void
test_accepts_others(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Schedule) s = load_text(
        HEAD("1", "2") "\"source\":\"somebody\",\"ranks\":[[\"F0.0\",\"F1.0\",\"B0.0\",\"B1.0\"]],"
                       "\"overlap_pairs\":[[1]],\"expected\":{\"makespan\":6}}",
        &error);

    g_assert_no_error(error);
    g_assert_cmpstr(s->name, ==, "x");
    g_assert_cmpint(s->placement, ==, SCHEDULE_PLACEMENT_LOOP);
    g_assert_cmpint(s->overlap_pairs->len, ==, 1);
    g_assert_cmpint(g_array_index(s->overlap_pairs, int64_t, 0), ==, 1);
    size_t n_bytes;
    g_autofree char *text = schedule_to_json(s, &n_bytes);
    g_assert_nonnull(strstr(text, "\"overlap_pairs\""));
    g_autoptr(Schedule) back = load_text(text, &error);
    g_assert_no_error(error);
    g_assert_cmpint(g_array_index(back->overlap_pairs, int64_t, 0), ==, 1);
}

/* Any cut of a good file is an error, never a crash. */
static void
test_survives_truncation(void)
{
    const ScheduleShape shape = {2, 1, 2, 2, 0, NULL};
    size_t n_bytes;
    g_autoptr(Schedule) s = schedule_new("1f1b", &shape, NULL);
    g_autofree char *text = schedule_to_json(s, &n_bytes);

    for (size_t n = 0; n + 2 < n_bytes; n++) {
        g_autoptr(GError) error = NULL;
        g_autofree char *cut = g_strndup(text, n);
        g_assert_null(load_text(cut, &error));
        g_assert_error(error, JSON_ERROR, JSON_ERROR_INVALID);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/schedule/json/round-trip", test_round_trip);
    g_test_add_func("/schedule/json/refuses", test_refuses);
    g_test_add_func("/schedule/json/accepts-others", test_accepts_others);
    g_test_add_func("/schedule/json/survives-truncation", test_survives_truncation);
    return g_test_run();
}
