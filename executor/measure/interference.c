#include "executor/measure/interference.h"
#include "executor/device/cores.h"
#include "executor/transport/samples.h"

#include <stdlib.h>

#include "executor/measure/budget.h"
#include "executor/measure/options.h"
#include "executor/measure/rank.h"
#include "executor/transport/transport.h"

/* Layers' forwards of a repetition: alone and beside each of up to three others, which slow it down
 * to half; and one to warm up. */
#define REPETITION_LAYERS (2 * 2 * 4 * EXEC_MEASURE_FORWARDS)

int64_t
exec_interference_most_ranks(const ExecMeasureOptions *o)
{
    return exec_measure_is_gpu(o) ? MAX(o->concurrency, 4) : MIN(o->concurrency, exec_n_cores());
}

static int64_t
layers_of(const Plan *plan)
{
    return g_array_index(plan->stages, PlanStage, EXEC_MEASURE_LAYERS).n_layers;
}

static double
repetition_s(const ProfileMeasurement *forward, int64_t n_layers)
{
    return REPETITION_LAYERS * (double)n_layers * forward->median_s;
}

/* The longest slice without context that the time is enough for, of those that were timed; else the
 * quickest; NULL: none was. */
static const ProfileMeasurement *
choose_row(const ExecInterference *in, int64_t n_layers)
{
    const double most_s = EXEC_BUDGET_BESIDE_SHARE * in->o->budget_s;
    const ProfileMeasurement *best = NULL;
    bool best_fits = false;

    for (guint i = 0; i < in->profile->measurements->len; i++) {
        const ProfileMeasurement *row =
            &g_array_index(in->profile->measurements, ProfileMeasurement, i);
        if (row->op != PROFILE_OP_LAYER || row->pass != PROFILE_PASS_FORWARD || row->context != 0 ||
            row->batch > in->largest_batch)
            continue;
        const bool fits = repetition_s(row, n_layers) <= most_s;
        if (best != NULL && (fits != best_fits ? best_fits
                             : fits ? row->batch * row->tokens <= best->batch * best->tokens
                                    : row->median_s >= best->median_s))
            continue;
        best = row;
        best_fits = fits;
    }
    return best;
}

double
exec_interference_expected_s(const ExecInterference *in)
{
    g_autoptr(Plan) plan = exec_measure_plan(in->o, 1);
    const ProfileMeasurement *row = choose_row(in, layers_of(plan));

    return row == NULL ? 0.0 : repetition_s(row, layers_of(plan));
}

static void
add_factors(Profile *profile, int64_t n_ranks, GArray *const *beside, double alone_s)
{
    for (int i = 0; i < PROFILE_BESIDE_N; i++) {
        const GArray *seconds = beside[i];
        if (seconds->len == 0 || (n_ranks == 1 && i == PROFILE_BESIDE_NOTHING))
            continue;
        const ProfileInterference row = {
            .beside = (ProfileBeside)i,
            .n_ranks = n_ranks,
            .factor = exec_samples_percentile(seconds, 50) / alone_s,
            .p10 = exec_samples_percentile(seconds, 10) / alone_s,
            .p90 = exec_samples_percentile(seconds, 90) / alone_s,
        };
        g_array_append_val(profile->interference, row);
    }
}

bool
exec_interference_time(ExecInterference *in, int32_t n_ranks, GError **error)
{
    const ExecMeasureOptions *o = in->o;
    /* One to copy, two to reduce, where nobody waits for a core. */
    const int32_t n_threads = MAX(n_ranks, exec_measure_is_gpu(o) || exec_n_cores() >= 3 ? 3 : 2);
    g_autoptr(Plan) plan = exec_measure_plan(o, 1);
    g_autoptr(ExecLocalHub) hub = exec_local_hub_new(n_threads, 600);
    const ProfileMeasurement *row = choose_row(in, layers_of(plan));
    ExecMeasureBeside beside = {
        .point = {row == NULL ? 1 : row->batch, row == NULL ? o->seq_len : row->tokens},
        .deadline_ns = exec_now_ns() + (int64_t)(EXEC_BUDGET_BESIDE_SHARE * o->budget_s * 1e9),
    };
    ExecMeasureThreads threads = {
        .shared = {.o = o,
                   .plan = plan,
                   .hub = hub,
                   .samples = in->samples,
                   .n_threads = n_threads,
                   .n_busy = n_ranks,
                   .largest_batch = beside.point.batch,
                   .watches_cores = in->watches_cores,
                   .job = exec_measure_beside,
                   .job_data = &beside},
    };
    GArray *counting[PROFILE_BESIDE_N];

    for (int i = 0; i < PROFILE_BESIDE_N; i++) {
        beside.seconds[i] = g_array_new(FALSE, FALSE, sizeof(double));
        beside.disturbed[i] = g_array_new(FALSE, FALSE, sizeof(double));
    }
    exec_measure_start(&threads);
    const bool ok = exec_measure_join(&threads, error);
    for (int i = 0; i < PROFILE_BESIDE_N; i++) {
        counting[i] = exec_samples_that_count(beside.seconds[i], beside.disturbed[i]);
        exec_samples_sort(counting[i]);
    }
    if (ok && n_ranks == 1)
        in->alone_s = exec_samples_percentile(counting[PROFILE_BESIDE_NOTHING], 50);
    if (ok)
        add_factors(in->profile, n_ranks, counting, in->alone_s);
    for (int i = 0; i < PROFILE_BESIDE_N; i++) {
        g_array_unref(beside.seconds[i]);
        g_array_unref(beside.disturbed[i]);
    }
    return ok;
}
