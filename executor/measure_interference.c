#include "executor/measure_interference.h"
#include "executor/samples.h"

#include <stdlib.h>

#include "executor/measure_options.h"
#include "executor/measure_rank.h"
#include "executor/transport.h"

/* Of the budget, for what runs beside a layer on so many ranks. */
#define BESIDE_SHARE 0.05

/* Layers' forwards of a repetition: alone and beside each of up to three others, which slow it down
 * to half; and one to warm up. */
#define REPETITION_LAYERS (2 * 2 * 4 * EXEC_MEASURE_FORWARDS)

int64_t
exec_interference_most_ranks(const ExecMeasureOptions *o)
{
    return exec_measure_is_gpu(o) ? MAX(o->concurrency, 4) : MIN(o->concurrency, exec_n_cores());
}

/* The longest slice without context that the time is enough for, of those that were timed; else the
 * quickest. */
static ExecGridPoint
choose_point(const ExecInterference *in, int64_t n_layers)
{
    const double most_s = BESIDE_SHARE * in->o->budget_s;
    const ProfileMeasurement *best = NULL;
    bool best_fits = false;

    for (guint i = 0; i < in->profile->measurements->len; i++) {
        const ProfileMeasurement *row =
            &g_array_index(in->profile->measurements, ProfileMeasurement, i);
        if (row->op != PROFILE_OP_LAYER || row->pass != PROFILE_PASS_FORWARD || row->context != 0 ||
            row->batch > in->largest_batch)
            continue;
        const bool fits = REPETITION_LAYERS * (double)n_layers * row->median_s <= most_s;
        if (best != NULL && (fits != best_fits ? best_fits
                             : fits ? row->batch * row->tokens <= best->batch * best->tokens
                                    : row->median_s >= best->median_s))
            continue;
        best = row;
        best_fits = fits;
    }
    return best == NULL ? (ExecGridPoint){1, in->o->seq_len}
                        : (ExecGridPoint){best->batch, best->tokens};
}

static void
add_factors(Profile *profile, int64_t n_ranks, const ExecMeasureBeside *beside, double alone_s)
{
    for (int i = 0; i < PROFILE_BESIDE_N; i++) {
        const GArray *seconds = beside->seconds[i];
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
    ExecMeasureBeside beside = {
        .point =
            choose_point(in, g_array_index(plan->stages, PlanStage, EXEC_MEASURE_LAYERS).n_layers),
        .deadline_ns = exec_now_ns() + (int64_t)(BESIDE_SHARE * o->budget_s * 1e9),
    };
    ExecMeasureThreads threads = {
        .shared = {.o = o,
                   .plan = plan,
                   .hub = hub,
                   .samples = in->samples,
                   .n_threads = n_threads,
                   .n_busy = n_ranks,
                   .largest_batch = beside.point.batch,
                   .job = exec_measure_beside,
                   .job_data = &beside},
    };

    for (int i = 0; i < PROFILE_BESIDE_N; i++)
        beside.seconds[i] = g_array_new(FALSE, FALSE, sizeof(double));
    exec_measure_start(&threads);
    const bool ok = exec_measure_join(&threads, error);
    for (int i = 0; i < PROFILE_BESIDE_N; i++)
        exec_samples_sort(beside.seconds[i]);
    if (ok && n_ranks == 1)
        in->alone_s = exec_samples_percentile(beside.seconds[PROFILE_BESIDE_NOTHING], 50);
    if (ok)
        add_factors(in->profile, n_ranks, &beside, in->alone_s);
    for (int i = 0; i < PROFILE_BESIDE_N; i++)
        g_array_unref(beside.seconds[i]);
    return ok;
}
