/*
 * zb-auto as the simulator sees it: the times that it was built for are the simulated ones, and the
 * bubble rates of ZB-1p and ZB-2p [Qi et al. 2401.10241, table 5] from the times its authors
 * profiled (table 6).
 *
 * Their rate is (cost - m (T_F + T_B + T_W)) / cost, where cost is the longest span of a worker.
 * ZB-1p and ZB-2p may hold the activations of p and 2p micro-batches in bytes: per layer and token
 * F takes 34h + 5as, of which W needs 32h [their get_zero_bubble_forward_backward_func, 39f2c186].
 * Reads zero_bubble_profiled.csv, where there is one: $DEGAS_SHARED/validation, or
 * ../shared/validation.
 */
#include "schedule/zb_auto.h"

#include "base/units.h"
#include "simulator/simulate.h"
#include "tests/simulator/random.h"

/* A percentage point: theirs is the result of another search, not of a formula. */
#define TOLERANCE 0.01

/* Table 3: hidden size and heads; all have sequences of 1024 tokens. */
static const struct {
    const char *name;
    int64_t hidden, heads;
} models[] = {{"1.5B", 2304, 24}, {"6.2B", 4096, 32}, {"14.6B", 5120, 40}, {"28.3B", 6144, 48}};

typedef struct {
    ScheduleStageTimes stage;
    int64_t p, m;
} Row;

static double
field(char **names, char **values, const char *name)
{
    for (int i = 0; names[i] != NULL && values[i] != NULL; i++)
        if (g_strcmp0(names[i], name) == 0)
            return g_ascii_strtod(values[i], NULL);
    g_error("no column %s", name);
}

static int64_t
ns_of(char **names, char **values, const char *name)
{
    return units_ns_from_s(field(names, values, name) * 1e-3);
}

static Row
read_row(char **names, char **values)
{
    Row row = {
        .stage = {.forward_ns = ns_of(names, values, "T_F_ms"),
                  .input_ns = ns_of(names, values, "T_B_ms"),
                  .weight_ns = ns_of(names, values, "T_W_ms"),
                  .forward_message_ns = ns_of(names, values, "T_comm_ms"),
                  .backward_message_ns = ns_of(names, values, "T_comm_ms")},
        .p = (int64_t)field(names, values, "p"),
        .m = (int64_t)field(names, values, "m"),
    };

    for (size_t i = 0; i < G_N_ELEMENTS(models); i++)
        if (g_strcmp0(values[0], models[i].name) == 0) {
            row.stage.activation_bytes = 34 * models[i].hidden + 5 * 1024 * models[i].heads;
            row.stage.weight_activation_bytes = 32 * models[i].hidden;
        }
    g_assert_cmpint(row.stage.activation_bytes, >, 0);
    return row;
}

/* Simulated with the stages' times, whichever they are. */
static int64_t
simulated_ns(const Schedule *schedule, const ScheduleTimes *times, ScheduleObjective objective)
{
    const int64_t unit_ns[SCHEDULE_OP_N] = {1, 2, 1, 1};
    g_autoptr(Workload) workload = workload_new_plain(schedule, unit_ns, 0);
    g_autoptr(GError) error = NULL;
    g_auto(SimResult) result = {0};

    for (int32_t s = 0; s < workload->n_stages; s++) {
        const ScheduleStageTimes *stage = &times->stages[times->n_stages == 1 ? 0 : s];
        WorkloadOp *op = &workload->ops[s];
        op->time_ns[SCHEDULE_OP_FORWARD] = stage->forward_ns;
        op->time_ns[SCHEDULE_OP_BACKWARD] = stage->input_ns + stage->weight_ns;
        op->time_ns[SCHEDULE_OP_BACKWARD_INPUT] = stage->input_ns;
        op->time_ns[SCHEDULE_OP_BACKWARD_WEIGHT] = stage->weight_ns;
        op->forward_message.ns = stage->forward_message_ns;
        op->backward_message.ns = stage->backward_message_ns;
    }
    g_assert_true(sim_run(schedule, workload, NULL, &result, &error));
    g_assert_no_error(error);
    return objective == SCHEDULE_OBJECTIVE_SPAN ? result.report->span_ns
                                                : result.report->iteration_ns;
}

static double
bubble_rate(const char *family, const Row *row, int64_t limit)
{
    const ScheduleTimes times = {
        .stages = &row->stage,
        .n_stages = 1,
        .limit_micro_batches = limit,
        .objective = SCHEDULE_OBJECTIVE_SPAN,
    };
    const ScheduleShape shape = {
        .n_ranks = row->p,
        .n_chunks = 1,
        .n_micro_batches = row->m,
        .n_slices = 1,
        .times = &times,
    };
    g_autoptr(GError) error = NULL;
    g_autoptr(Schedule) schedule = schedule_new(family, &shape, &error);

    g_assert_no_error(error);
    const int64_t work_ns =
        row->m * (row->stage.forward_ns + row->stage.input_ns + row->stage.weight_ns);
    return 1.0 - (double)work_ns / (double)simulated_ns(schedule, &times, SCHEDULE_OBJECTIVE_SPAN);
}

static void
check_row(char **names, char **values)
{
    const Row row = read_row(names, values);
    const struct {
        const char *family, *column;
        int64_t limit;
    } columns[] = {{"1f1b", "bubble_1F1B", row.p},
                   {"zb-auto", "bubble_ZB_1p", row.p},
                   {"zb-auto", "bubble_ZB_2p", 2 * row.p}};

    for (size_t i = 0; i < G_N_ELEMENTS(columns); i++) {
        const double ours = bubble_rate(columns[i].family, &row, columns[i].limit);
        const double theirs = field(names, values, columns[i].column);
        g_test_message("%s, %s, p %d, m %d: %.4f, published %.4f", values[0], columns[i].column,
                       (int)row.p, (int)row.m, ours, theirs);
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

    if (!g_file_get_contents(path, &text, NULL, NULL)) {
        g_autofree char *why = g_strdup_printf("no file %s (set DEGAS_SHARED)", path);
        g_test_skip(why);
        return;
    }
    g_auto(GStrv) lines = g_strsplit(g_strstrip(text), "\n", -1);
    g_auto(GStrv) names = g_strsplit(g_strchomp(lines[0]), ",", -1);
    g_assert_cmpint(g_strv_length(lines), >, 1);
    for (int i = 1; lines[i] != NULL; i++) {
        g_auto(GStrv) values = g_strsplit(g_strchomp(lines[i]), ",", -1);
        check_row(names, values);
    }
}

/* One row of it, so that something is checked everywhere: 1.5B, p = 8, m = 24. */
static void
test_one_row(void)
{
    const Row row = {
        .stage = {.forward_ns = 18522000,
                  .input_ns = 18086000,
                  .weight_ns = 9337000,
                  .forward_message_ns = 601000,
                  .backward_message_ns = 601000,
                  .activation_bytes = 34 * 2304 + 5 * 1024 * 24,
                  .weight_activation_bytes = 32 * 2304},
        .p = 8,
        .m = 24,
    };

    g_assert_cmpfloat_with_epsilon(bubble_rate("zb-auto", &row, 8), 0.1585, TOLERANCE);
    g_assert_cmpfloat_with_epsilon(bubble_rate("zb-auto", &row, 16), 0.0433, TOLERANCE);
}

/* What zb-auto says of its schedule is what the simulator makes of it. */
static void
test_facts_are_simulated(void)
{
    uint64_t state = 5;

    for (int i = 0; i < 100; i++) {
        ScheduleStageTimes stages[12];
        const int64_t p = random_in(&state, 1, 6), v = 1 + i % 2;
        for (int64_t s = 0; s < p * v; s++)
            stages[s] = (ScheduleStageTimes){
                .forward_ns = random_in(&state, 1, 100),
                .input_ns = random_in(&state, 1, 100),
                .weight_ns = random_in(&state, 1, 100),
                .forward_message_ns = random_in(&state, 0, 30),
                .backward_message_ns = random_in(&state, 0, 30),
            };
        const ScheduleTimes times = {
            .stages = stages,
            .n_stages = p * v,
            .limit_micro_batches = random_in(&state, 1, 2 * p),
        };
        const ScheduleShape shape = {
            .n_ranks = p,
            .n_chunks = v,
            .n_micro_batches = random_in(&state, 1, 12),
            .n_slices = 1,
            .times = &times,
        };
        g_autoptr(GError) error = NULL;
        ScheduleZbAutoFacts facts;
        g_autoptr(Schedule) schedule = schedule_zb_auto(&shape, &facts, &error);
        g_assert_no_error(error);
        g_assert_cmpint(simulated_ns(schedule, &times, SCHEDULE_OBJECTIVE_MAKESPAN), ==,
                        facts.makespan_ns);
        g_assert_cmpint(simulated_ns(schedule, &times, SCHEDULE_OBJECTIVE_SPAN), ==, facts.span_ns);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/simulator/zb-auto/published-bubble-rates", test_published_bubble_rates);
    g_test_add_func("/simulator/zb-auto/one-row", test_one_row);
    g_test_add_func("/simulator/zb-auto/facts-are-simulated", test_facts_are_simulated);
    return g_test_run();
}
