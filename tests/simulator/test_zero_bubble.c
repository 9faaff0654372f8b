/*
 * The bubble rates of Zero Bubble [Qi et al. 2401.10241, table 5] from the times its authors
 * profiled (table 6): a test of schedules and simulator together, with nothing else in between.
 *
 * Their rate is (cost - m (T_F + T_B + T_W)) / cost, where cost is the longest span of a worker;
 * messages of T_comm overlap.  Reads zero_bubble_profiled.csv, where there is one:
 * $DEGAS_SHARED/validation, or ../shared/validation.
 */
#include "simulator/simulate.h"

#include "base/units.h"

/* Rates are printed with four digits. */
#define TOLERANCE 0.6e-4

enum {
    T_F,
    T_B,
    T_W,
    T_COMM,
    N_TIMES
};

typedef struct {
    const char *family;
    const char *column;
} Column;

static const Column columns[] = {
    {"1f1b", "bubble_1F1B"}, {"zb-h1", "bubble_ZB_H1"}, {"zb-h2", "bubble_ZB_H2"}};

static double
field(char **names, char **values, const char *name)
{
    for (int i = 0; names[i] != NULL && values[i] != NULL; i++)
        if (g_strcmp0(names[i], name) == 0)
            return g_ascii_strtod(values[i], NULL);
    g_error("no column %s", name);
}

static double
bubble_rate(const char *family, int64_t p, int64_t m, const int64_t times_ns[N_TIMES])
{
    const int64_t op_ns[SCHEDULE_OP_N] = {times_ns[T_F], times_ns[T_B] + times_ns[T_W],
                                          times_ns[T_B], times_ns[T_W]};
    const ScheduleShape shape = {.n_ranks = p, .n_chunks = 1, .n_micro_batches = m, .n_slices = 1};
    g_autoptr(GError) error = NULL;
    g_autoptr(Schedule) schedule = schedule_new(family, &shape, &error);
    g_assert_no_error(error);
    g_autoptr(Workload) workload = workload_new_plain(schedule, op_ns, times_ns[T_COMM]);
    g_auto(SimResult) result = {0};

    g_assert_true(sim_run(schedule, workload, NULL, &result, &error));
    g_assert_no_error(error);
    const int64_t work_ns = m * (times_ns[T_F] + times_ns[T_B] + times_ns[T_W]);
    return 1.0 - (double)work_ns / (double)result.report->span_ns;
}

static void
check_row(char **names, const char *line)
{
    static const char *const time_names[N_TIMES] = {"T_F_ms", "T_B_ms", "T_W_ms", "T_comm_ms"};
    g_auto(GStrv) values = g_strsplit(line, ",", -1);
    const int64_t p = (int64_t)field(names, values, "p"), m = (int64_t)field(names, values, "m");
    int64_t times_ns[N_TIMES];

    for (int i = 0; i < N_TIMES; i++)
        times_ns[i] = units_ns_from_s(field(names, values, time_names[i]) * 1e-3);
    for (size_t i = 0; i < G_N_ELEMENTS(columns); i++) {
        const double ours = bubble_rate(columns[i].family, p, m, times_ns);
        const double theirs = field(names, values, columns[i].column);
        g_test_message("%s, p %d, m %d: %.4f, published %.4f", columns[i].family, (int)p, (int)m,
                       ours, theirs);
        g_assert_cmpfloat_with_epsilon(ours, theirs, TOLERANCE);
    }
}

static void
test_published_bubble_rates(void)
{
    const char *shared = g_getenv("DEGAS_SHARED");
    g_autofree char *path = g_build_filename(shared == NULL ? "../shared" : shared, "validation",
                                             "zero_bubble_profiled.csv", NULL);
    g_autofree char *text = NULL;
    int n_rows = 0;

    if (!g_file_get_contents(path, &text, NULL, NULL)) {
        g_autofree char *why = g_strdup_printf("no file %s (set DEGAS_SHARED)", path);
        g_test_skip(why);
        return;
    }
    g_auto(GStrv) lines = g_strsplit(g_strstrip(text), "\n", -1);
    g_auto(GStrv) names = g_strsplit(lines[0], ",", -1);
    for (int i = 1; lines[i] != NULL; i++, n_rows++)
        check_row(names, lines[i]);
    g_assert_cmpint(n_rows, >, 0);
}

/* One row of it, so that something is checked everywhere: 1.5B, p = 8, m = 24. */
static void
test_one_row(void)
{
    static const int64_t times_ns[N_TIMES] = {18522000, 18086000, 9337000, 601000};

    g_assert_cmpfloat_with_epsilon(bubble_rate("1f1b", 8, 24, times_ns), 0.2431, TOLERANCE);
    g_assert_cmpfloat_with_epsilon(bubble_rate("zb-h1", 8, 24, times_ns), 0.1585, TOLERANCE);
    g_assert_cmpfloat_with_epsilon(bubble_rate("zb-h2", 8, 24, times_ns), 0.1083, TOLERANCE);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/simulator/zero-bubble/published-bubble-rates", test_published_bubble_rates);
    g_test_add_func("/simulator/zero-bubble/one-row", test_one_row);
    return g_test_run();
}
