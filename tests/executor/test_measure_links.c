/* Tests of executor/measure/links.c: that what is timed is what a step does. */
#include "executor/measure/links.h"

#include <math.h>

#include "executor/device/backend.h"
#include "executor/model/model.h"
#include "executor/transport/local.h"

/* --- a backend that counts elements --- */

static const ExecBackendOps *inner;
static int64_t n_summed, n_clipped, n_stepped;

static void
sum_squares(ExecBackend *backend, int64_t n, const float *x, ExecClip *c)
{
    n_summed += n;
    inner->sum_squares(backend, n, x, c);
}

static void
clip(ExecBackend *backend, int64_t n, double limit, ExecClip *c)
{
    n_clipped++;
    inner->clip(backend, n, limit, c);
}

static void
adamw(ExecBackend *backend, int64_t n_parts, const ExecAdamwPart *parts, const ExecAdamw *constants)
{
    g_assert_nonnull(constants->factor);
    for (int64_t i = 0; i < n_parts; i++)
        n_stepped += parts[i].n;
    inner->adamw(backend, n_parts, parts, constants);
}

/* --- tests --- */

/* Norm, clipping and AdamW of as many elements as the two rows say. */
static void
test_optimizer_is_all_of_its_step(void)
{
    int32_t alone = 0;
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = exec_measure_tiny_plan(DTYPE_FP32, 1, 1, 1);
    g_autoptr(ExecBackend) backend = exec_backend_open("reference", 0, DTYPE_FP32, &error);
    g_autoptr(ExecPool) pool = exec_pool_new(backend);
    g_autoptr(ExecLocalHub) hub = exec_local_hub_new(1, 10);
    g_autoptr(ExecSamples) samples = exec_samples_new();
    g_autoptr(Profile) profile = profile_load("local-cpu", &error);
    ExecBackendOps counting = *backend->ops;
    const ExecMeasureOptions options = {0};
    g_autoptr(ExecBudgetLinks) links = exec_budget_links_new(INFINITY);
    ExecMeasureShared shared = {
        .o = &options,
        .n_threads = 1,
        .n_busy = 1,
        .samples = samples,
        .links = links,
    };
    g_autofree ExecMeasureTiming *timings = g_new(ExecMeasureTiming, EXEC_MEASURE_MAX_TIMINGS);
    int64_t n_elements = 0;

    inner = backend->ops;
    counting.sum_squares = sum_squares;
    counting.clip = clip;
    counting.adamw = adamw;
    backend->ops = &counting;
    g_autoptr(ExecModel) model = exec_model_new(
        &(ExecModelOptions){.arch = &exec_measure_tiny_arch, .plan = plan, .optimizer = true},
        backend, pool, &error);
    g_assert_no_error(error);
    ExecMeasureRank rank = {
        .shared = &shared,
        .transport = exec_local_transport(hub, 0),
        .backend = backend,
        .model = model,
        .members = &alone,
        .busy = true,
        .record = true,
        .timings = timings,
    };
    g_assert_true(exec_measure_optimizer(&rank, &error));
    g_assert_no_error(error);
    backend->ops = inner;
    exec_samples_write(samples, profile);
    g_assert_cmpint(profile->measurements->len, ==, 2);
    for (guint i = 0; i < 2; i++)
        n_elements += g_array_index(profile->measurements, ProfileMeasurement, i).n_elements;
    g_assert_cmpint(n_elements, >, model->layout.n);
    g_assert_cmpint(n_summed, ==, n_elements);
    g_assert_cmpint(n_clipped, ==, 2);
    g_assert_cmpint(n_stepped, ==, n_elements);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/measure_links/optimizer-is-all-of-its-step",
                    test_optimizer_is_all_of_its_step);
    return g_test_run();
}
