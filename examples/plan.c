/*
 * The best splits of a job at several sizes, by libdegas, one thread for each.
 *
 *   cc plan.c $(pkg-config --cflags --libs degas) -pthread -o plan && ./plan
 */
#include <degas.h>
#include <pthread.h>
#include <stdio.h>

enum {
    N_SIZES = 3
};

typedef struct {
    char request[200];
    DegasResult result;
    int status;
} Question;

static void *
ask(void *data)
{
    Question *question = data;

    question->status = degas_plan(question->request, NULL, &question->result);
    return NULL;
}

int
main(void)
{
    static Question questions[N_SIZES];
    pthread_t threads[N_SIZES];
    int failed = 0;

    for (int i = 0; i < N_SIZES; i++) {
        questions[i].result.size = sizeof questions[i].result;
        snprintf(questions[i].request, sizeof questions[i].request,
                 "{\"model\": \"llama3-8b\", \"cluster\": \"dgx-h100\", \"gpus\": %d,"
                 " \"global_batch\": 128, \"threads\": 1}",
                 16 << i);
        if (pthread_create(&threads[i], NULL, ask, &questions[i]) != 0)
            return 1;
    }
    for (int i = 0; i < N_SIZES; i++) {
        const DegasResult *r = &questions[i].result;

        pthread_join(threads[i], NULL);
        if (questions[i].status == 0)
            printf("%3d devices: dp %d, tp %d, pp %d, %s: %.3f s, %.1f GiB of %.1f\n",
                   (int)r->n_devices, (int)r->dp, (int)r->tp, (int)r->pp, r->schedule,
                   r->iteration_s, (double)r->peak_memory_bytes / 1073741824.0,
                   (double)r->memory_limit_bytes / 1073741824.0);
        else
            fprintf(stderr, "status %d: %s\n", questions[i].status, r->message);
        failed |= questions[i].status;
        degas_result_clear(&questions[i].result);
    }
    return failed;
}
