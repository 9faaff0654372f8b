#include "executor/measure/rank.h"

void
exec_measure_start(ExecMeasureThreads *t)
{
    const int32_t n = t->shared.n_threads;

    t->starts = g_new0(ExecMeasureStart, (size_t)n);
    t->threads = g_new0(GThread *, (size_t)n);
    t->clocks = g_new0(int64_t, 2 * (size_t)n);
    t->shared.arrived_ns = t->clocks;
    t->shared.finished_ns = t->clocks + n;
    g_mutex_init(&t->shared.mutex);
    for (int32_t i = 0; i < n; i++) {
        t->starts[i] = (ExecMeasureStart){.shared = &t->shared, .rank = i};
        t->threads[i] = g_thread_new("profiler", exec_measure_rank_main, &t->starts[i]);
    }
}

bool
exec_measure_join(ExecMeasureThreads *t, GError **error)
{
    for (int32_t i = 0; i < t->shared.n_threads; i++)
        g_thread_join(t->threads[i]);
    g_mutex_clear(&t->shared.mutex);
    g_free(t->starts);
    g_free(t->threads);
    g_free(t->clocks);
    if (t->shared.error == NULL)
        return true;
    g_propagate_error(error, t->shared.error);
    return false;
}
