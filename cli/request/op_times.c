#include "cli/request/op_times.h"

#include <math.h>
#include <string.h>

#include "cli/request/command.h"

/* F, B, I, W in the order of ScheduleOpKind; then what is no op. */
enum {
    COMM = SCHEDULE_OP_N,
    PAIR,
    SLICES,
    N_NAMES,
};

static const char *const names[N_NAMES] = {"F", "B", "I", "W", "comm", "FB", "slices"};

typedef enum {
    BY_STAGE,
    BY_RANK,
    BY_SLICE,
} Axis;

static const char *const axis_names[] = {"stages", "ranks", "slices"};

/* One value, or one for each place of an axis. */
typedef struct {
    Axis axis;
    GArray *values; /* (owned, nullable: not given) of double */
} Given;

struct OpTimes {
    Given given[N_NAMES];
    bool of_a_rank;
};

/* --- reading --- */

static void
read_values(Options *options, const char *text, const char *label, Given *given, UnitsKind kind)
{
    g_auto(GStrv) parts = g_strsplit(text, "/", -1);

    given->values = g_array_new(FALSE, FALSE, sizeof(double));
    for (size_t i = 0; parts[i] != NULL; i++) {
        GError *error = NULL;
        double value = 0;
        if (!units_parse(parts[i], kind, &value, &error)) {
            options_fail(options, "op-times", "%s: %s", label, error->message);
            g_error_free(error);
        }
        g_array_append_val(given->values, value);
    }
    if (given->values->len > 1 && strcmp(label, names[PAIR]) == 0)
        options_fail(options, "op-times", "%s: expected one value", label);
    if (given->values->len == 0) {
        const double none = 0;
        options_fail(options, "op-times", "%s: there is no value", label);
        g_array_append_val(given->values, none);
    }
}

static void
read_word(OpTimes *times, Options *options, const char *word)
{
    const char *equals = strchr(word, '=');
    g_autofree char *label = equals == NULL ? NULL : g_strndup(word, (size_t)(equals - word));
    char *at = label == NULL ? NULL : strchr(label, '@');
    int i = 0;

    if (at != NULL)
        *at = 0;
    while (i < N_NAMES && g_strcmp0(names[i], label) != 0)
        i++;
    if (i == N_NAMES || (at != NULL && (strcmp(at + 1, "rank") != 0 || i >= PAIR))) {
        options_fail(options, "op-times",
                     "expected F=, B=, I=, W=, comm= or FB=, also F@rank=, or slices=, got \"%s\"",
                     word);
        return;
    }
    Given *given = &times->given[i];
    if (given->values != NULL) {
        options_fail(options, "op-times", "%s is there twice", names[i]);
        return;
    }
    given->axis = at != NULL ? BY_RANK : i == SLICES ? BY_SLICE : BY_STAGE;
    read_values(options, equals + 1, names[i], given,
                i == SLICES ? UNITS_KIND_NUMBER : UNITS_KIND_S);
}

OpTimes *
op_times_read(Options *options)
{
    g_auto(GStrv) words = options_words(options, "op-times");
    OpTimes *times = g_new0(OpTimes, 1);

    for (size_t i = 0; words != NULL && words[i] != NULL; i++)
        read_word(times, options, words[i]);
    return times;
}

OpTimes *
op_times_usual(void)
{
    return g_new0(OpTimes, 1);
}

void
op_times_of_a_rank(OpTimes *times)
{
    times->of_a_rank = true;
}

static void
set_value(OpTimes *times, int name, double value)
{
    Given *given = &times->given[name];

    g_clear_pointer(&given->values, g_array_unref);
    given->axis = BY_STAGE;
    given->values = g_array_new(FALSE, FALSE, sizeof(double));
    g_array_append_val(given->values, value);
}

void
op_times_of_workload(OpTimes *times, const Workload *workload)
{
    const int64_t n_stages = (int64_t)workload->n_chains * workload->n_stages;
    double sums[COMM + 1] = {0};
    int64_t n_messages = 0;

    for (int64_t stage = 0; stage < n_stages; stage++)
        for (int32_t slice = 0; slice < workload->n_slices; slice++) {
            /* class 0: full micro-batches */
            const WorkloadOp *op =
                &workload->ops[stage * workload->n_classes * workload->n_slices + slice];

            for (int kind = 0; kind < SCHEDULE_OP_N; kind++)
                sums[kind] += units_s_from_ns(op->time_ns[kind]);
            sums[COMM] += units_s_from_ns(op->forward_message.ns);
            n_messages += op->forward_message.ns > 0;
        }
    for (int kind = 0; kind < SCHEDULE_OP_N; kind++)
        set_value(times, kind, sums[kind] / (double)(workload->n_chains * workload->n_ranks));
    set_value(times, COMM, n_messages == 0 ? 0 : sums[COMM] / (double)n_messages);
    times->of_a_rank = true;
}

void
op_times_free(OpTimes *times)
{
    if (times == NULL)
        return;
    for (int i = 0; i < N_NAMES; i++)
        g_clear_pointer(&times->given[i].values, g_array_unref);
    g_free(times);
}

/* --- use --- */

static bool
check_lengths(const OpTimes *times, const Schedule *schedule, GError **error)
{
    const int64_t wanted[] = {schedule_n_stages(schedule), schedule->n_ranks, schedule->n_slices};

    for (int i = 0; i < N_NAMES; i++) {
        const Given *given = &times->given[i];
        if (given->values == NULL || (i != SLICES && given->values->len == 1) ||
            given->values->len == wanted[given->axis])
            continue;
        return cmd_fail(error, CMD_ERROR_USAGE,
                        "--op-times: %s has %u values, the schedule has " INT " %s", names[i],
                        given->values->len, wanted[given->axis], axis_names[given->axis]);
    }
    return true;
}

/* NaN: not given. */
static double
value_at(const OpTimes *times, int name, int32_t stage, int32_t rank)
{
    const Given *given = &times->given[name];
    const guint at = (guint)(given->axis == BY_RANK ? rank : stage);

    if (given->values == NULL)
        return (double)NAN;
    return g_array_index(given->values, double, given->values->len == 1 ? 0 : at);
}

/* Seconds of each kind, and of a message, at one place. */
static void
times_at(const OpTimes *times, int32_t stage, int32_t rank, double t[COMM + 1])
{
    enum {
        F = SCHEDULE_OP_FORWARD,
        B = SCHEDULE_OP_BACKWARD
    };
    enum {
        I = SCHEDULE_OP_BACKWARD_INPUT,
        W = SCHEDULE_OP_BACKWARD_WEIGHT
    };

    for (int i = 0; i <= COMM; i++)
        t[i] = value_at(times, i, stage, rank);
    if (isnan(t[F]))
        t[F] = 1;
    if (isnan(t[B]))
        t[B] = !isnan(t[I]) && !isnan(t[W]) ? t[I] + t[W] : 2 * t[F];
    if (isnan(t[I]))
        t[I] = isnan(t[W]) ? t[B] / 2 : fmax(t[B] - t[W], 0);
    if (isnan(t[W]))
        t[W] = fmax(t[B] - t[I], 0);
    if (isnan(t[COMM]))
        t[COMM] = 0;
}

Workload *
op_times_workload(const OpTimes *times, const Schedule *schedule, GError **error)
{
    static const int64_t nothing[SCHEDULE_OP_N];
    const GArray *factors = times->given[SLICES].values;
    const double part =
        times->of_a_rank ? (double)schedule->n_ranks / (double)schedule_n_stages(schedule) : 1.0;

    if (!check_lengths(times, schedule, error))
        return NULL;
    Workload *workload = workload_new_plain(schedule, nothing, 1);
    if (times->given[PAIR].values != NULL)
        workload->pair_ns =
            units_ns_from_s(part * g_array_index(times->given[PAIR].values, double, 0));
    const int64_t n = (int64_t)workload->n_chains * workload->n_stages * workload->n_slices;
    for (int64_t i = 0; i < n; i++) {
        const int32_t slice = (int32_t)(i % workload->n_slices);
        const int32_t stage = (int32_t)(i / workload->n_slices % workload->n_stages);
        const int32_t chain = (int32_t)(i / workload->n_slices / workload->n_stages);
        const double factor = factors == NULL ? 1 : g_array_index(factors, double, slice);
        WorkloadOp *op = &workload->ops[i];
        double t[COMM + 1];
        times_at(times, stage, schedule_rank_of_stage(schedule, stage, chain), t);
        for (int kind = 0; kind < SCHEDULE_OP_N; kind++)
            op->time_ns[kind] = op->part_ns[kind][PROFILE_PART_COMPUTE] =
                units_ns_from_s(t[kind] * factor * part);
        /* 1 where there is a message. */
        op->forward_message.ns *= units_ns_from_s(t[COMM]);
        op->backward_message.ns *= units_ns_from_s(t[COMM]);
    }
    return workload;
}
