#include "executor/device/cores.h"

#include <sched.h>

int32_t
exec_n_cores(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
    return (int32_t)g_get_num_processors();
}

typedef struct {
    int64_t begin, end;
    ExecShareFunc func;
    void *user_data;
    GThread *thread;
} Part;

static gpointer
run_part(gpointer data)
{
    Part *part = data;

    part->func(part->begin, part->end, part->user_data);
    return NULL;
}

void
exec_share_out(int n_threads, int64_t n, ExecShareFunc func, void *user_data)
{
    const int64_t n_parts = CLAMP(n_threads, 1, MAX(n, 1));
    g_autofree Part *parts = g_new0(Part, (size_t)n_parts);

    for (int64_t i = n_parts - 1; i >= 0; i--) {
        parts[i] = (Part){
            .begin = n / n_parts * i + MIN(i, n % n_parts),
            .end = n / n_parts * (i + 1) + MIN(i + 1, n % n_parts),
            .func = func,
            .user_data = user_data,
        };
        if (i > 0)
            parts[i].thread = g_thread_try_new("share", run_part, &parts[i], NULL);
        if (parts[i].thread == NULL)
            run_part(&parts[i]);
    }
    for (int64_t i = 1; i < n_parts; i++)
        if (parts[i].thread != NULL)
            g_thread_join(parts[i].thread);
}
