#include "base/parallel.h"

#include <stdatomic.h>

typedef struct {
    atomic_int_fast64_t next;
    int64_t n;
    ParallelFunc func;
    void *user_data;
} Work;

static void *
work_on(void *data)
{
    Work *work = data;

    for (;;) {
        const int64_t i = atomic_fetch_add(&work->next, 1);

        if (i >= work->n)
            return NULL;
        work->func(i, work->user_data);
    }
}

void
parallel_each(int64_t n, int64_t n_threads, ParallelFunc func, void *user_data)
{
    g_autoptr(GPtrArray) threads = g_ptr_array_new();
    Work work = {.n = n, .func = func, .user_data = user_data};

    for (int64_t t = 1; t < MIN(n_threads, n); t++) {
        GThread *thread = g_thread_try_new("parallel", work_on, &work, NULL);

        if (thread == NULL)
            break;
        g_ptr_array_add(threads, thread);
    }
    work_on(&work);
    for (guint t = 0; t < threads->len; t++)
        g_thread_join(threads->pdata[t]);
}
