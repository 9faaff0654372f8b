/* Tests of the PyTorch CSV of schedule/schedule.h. */
#include "schedule/schedule.h"

#include <string.h>

#include "tests/schedule/evaluate.h"
#include "tests/schedule/files.h"

static Schedule *
load_text(const char *text, GError **error)
{
    g_autofree char *path = file_with(text, -1);
    Schedule *schedule = schedule_load_csv(path, error);

    g_unlink(path);
    return schedule;
}

static void
test_round_trip(void)
{
    for (const ScheduleFamily *const *f = schedule_families(); *f != NULL; f++) {
        g_autoptr(GError) error = NULL;
        const ScheduleShape shape = {4, (*f)->min_chunks, 8, 1, 0, NULL};
        g_autoptr(Schedule) s = schedule_new((*f)->name, &shape, &error);
        g_assert_no_error(error);
        size_t n_bytes;
        g_autofree char *text = schedule_to_csv(s, &n_bytes, &error);
        if (s->placement == SCHEDULE_PLACEMENT_BIDIR) {
            g_assert_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_SHAPE);
            continue;
        }
        g_assert_cmpuint(n_bytes, ==, strlen(text));
        g_autoptr(Schedule) back = load_text(text, &error);
        g_assert_no_error(error);
        g_assert_cmpint(back->placement, ==, s->placement);
        g_assert_cmpint(back->n_chunks, ==, s->n_chunks);
        g_assert_cmpint(schedule_n_ops(back), ==, schedule_n_ops(s));
        g_assert_cmpint(memcmp(back->ops, s->ops, sizeof(ScheduleOp) * (size_t)schedule_n_ops(s)),
                        ==, 0);
        g_assert_cmpint(back->overlap_pairs != NULL, ==, s->overlap_pairs != NULL);
        g_autofree char *again = schedule_to_csv(back, &n_bytes, &error);
        g_assert_cmpstr(again, ==, text);
    }
}

/* Stage c*p + r; a V turns on the last rank. */
static void
test_text(void)
{
    const ScheduleShape shape = {2, 1, 2, 1, 0, NULL};
    const ScheduleShape sliced = {2, 1, 2, 2, 0, NULL};
    g_autoptr(Schedule) s = schedule_new("1f1b", &shape, NULL);
    g_autoptr(Schedule) cut = schedule_new("1f1b", &sliced, NULL);
    g_autoptr(GError) error = NULL;
    size_t n_bytes;
    g_autofree char *text = schedule_to_csv(s, &n_bytes, &error);

    g_assert_cmpstr(text, ==, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
    g_assert_null(schedule_to_csv(cut, &n_bytes, &error));
    g_assert_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_SHAPE);
}

static void
test_reads_theirs(void)
{
    g_autoptr(GError) error = NULL;
    /* Idle slots, spaces, a carriage return, communication, a V, a pair, no last newline. */
    g_autoptr(Schedule) s = load_text("0UNSHARD,0F0, ,0SEND_F0,,0F1,3F0,(3F1;3B0)OVERLAP_F_B,3B1,"
                                      "0B0,0B1\r\n1F0,1F1,2F0,2F1,2RECV_B0,2B0,2I1,1B0,1B1,2W1",
                                      &error);

    g_assert_no_error(error);
    g_assert_cmpint(s->placement, ==, SCHEDULE_PLACEMENT_V);
    g_autofree char *zero = rank_text(s, 0);
    g_autofree char *one = rank_text(s, 1);
    g_assert_cmpstr(zero, ==, "F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0");
    g_assert_cmpstr(one, ==, "F0.0 F1.0 F0.1 F1.1 B0.1 I1.1 B0.0 B1.0 W1.1");
    g_assert_cmpuint(s->overlap_pairs->len, ==, 1);
    g_assert_cmpint(g_array_index(s->overlap_pairs, int64_t, 0), ==, 3);
}

static void
test_refuses(void)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "0 stages on 0 rows"},
        {",,\n", "0 stages on 1 rows"},
        {"0F0,0X0\n", "row 1, cell 2: \"0X0\" is no action"},
        {"0F0,0B0\n1F0,1B\n", "row 2, cell 2: \"1B\" is no action"},
        {"F0,0B0\n", "row 1, cell 1"},
        {"0F0,0B0x\n", "row 1, cell 2"},
        {"0F99999999999,0B0\n", "row 1, cell 1"},
        {"999999999F0,0B0\n", "1000000000 stages on 1 rows"},
        {"0F999999999,0B0\n", "rank 0: F0.0 is missing"},
        {"(0F0;0B0\n", "is no pair"},
        {"(0F0;0B0)OVERLAP\n", "is no pair"},
        {"(0F0;0B0;0F1)OVERLAP_F_B\n", "is no pair"},
        {"0F0,0B0\n0F1,0B1\n", "1 stages on 2 rows"},
        {"1F0,1B0\n0F0,0B0\n", "neither in a loop nor in a V"},
        {"0F0,0B0,0F1\n", "rank 0: B1.0 is missing"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Schedule) s = load_text(cases[i].text, &error);
        g_assert_null(s);
        g_assert_nonnull(error);
        g_assert_nonnull(strstr(error->message, "degas-test-"));
        if (strstr(error->message, cases[i].says) == NULL)
            g_error("\"%s\" does not say \"%s\"", error->message, cases[i].says);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/schedule/csv/round-trip", test_round_trip);
    g_test_add_func("/schedule/csv/text", test_text);
    g_test_add_func("/schedule/csv/reads-theirs", test_reads_theirs);
    g_test_add_func("/schedule/csv/refuses", test_refuses);
    return g_test_run();
}
