/* Streams, events and graphs of the emulated GPU: fake_streams.h. */
#include "tests/executor/fake_streams.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/executor/fake_knob.h"

typedef struct Task Task;
struct Task {
    Task *next;
    void (*run)(void *data);
    size_t n_bytes;
    _Alignas(64) char data[];
};

typedef struct {
    Task *first, **last;
} Tasks;

typedef struct {
    Tasks tasks; /* in order */
} Graph;

/* All under the mutex. */
typedef struct Stream {
    Tasks queue;
    bool has_thread, busy, closing;
    Graph *capture;
    pthread_t capturer; /* who has begun the capture */
    struct Stream *next_captured;
    const void *context;
    int64_t spent_us; /* of the device, with device_us; its runner's own */
} Stream;

/* Counts of records: asked for, and done. */
typedef struct {
    int64_t n_asked, n_done;
    int n_users; /* the owner, and tasks */
    const void *context;
    struct timespec at;
} Event;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int64_t n_waits;               /* under the mutex */
static _Thread_local Stream *at_work; /* whose task this thread runs */

int64_t
fake_knob(const char *name, int64_t standard)
{
    return fake_knob_of("FAKE_CUDA", name, standard);
}

int
fake_streams_queue(void)
{
    return fake_knob("async", 0) != 0 || fake_knob("host_us", 0) > 0;
}

/* --- tasks --- */

static void
append(Tasks *tasks, Task *task)
{
    task->next = NULL;
    if (tasks->first == NULL)
        tasks->last = &tasks->first;
    *tasks->last = task;
    tasks->last = &task->next;
}

static Task *
task_new(void (*run)(void *data), const void *data, size_t n_bytes)
{
    Task *task = aligned_alloc(64, (sizeof *task + n_bytes + 63) / 64 * 64);

    task->run = run;
    task->n_bytes = n_bytes;
    if (n_bytes > 0)
        memcpy(task->data, data, n_bytes);
    return task;
}

static void
free_tasks(Tasks *tasks)
{
    while (tasks->first != NULL) {
        Task *task = tasks->first;
        tasks->first = task->next;
        free(task);
    }
}

static void *
stream_main(void *user_data)
{
    Stream *stream = user_data;

    pthread_mutex_lock(&mutex);
    for (;;) {
        while (stream->queue.first == NULL && !stream->closing)
            pthread_cond_wait(&changed, &mutex);
        Task *task = stream->queue.first;
        if (task == NULL)
            break;
        stream->queue.first = task->next;
        pthread_mutex_unlock(&mutex);
        if (fake_knob("async", 0))
            usleep(20);
        at_work = stream;
        task->run(task->data);
        free(task);
        pthread_mutex_lock(&mutex);
        stream->busy = stream->queue.first != NULL;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&mutex);
    free(stream);
    return NULL;
}

/* @waits: it must not run on the caller's thread. */
static void
submit(Stream *stream, bool waits, void (*run)(void *data), const void *data, size_t n_bytes)
{
    Task *task = task_new(run, data, n_bytes);

    pthread_mutex_lock(&mutex);
    if (stream->capture != NULL) {
        append(&stream->capture->tasks, task);
        pthread_mutex_unlock(&mutex);
        return;
    }
    if (!stream->busy && !waits && !fake_streams_queue()) {
        pthread_mutex_unlock(&mutex);
        at_work = stream;
        run(task->data);
        free(task);
        return;
    }
    append(&stream->queue, task);
    stream->busy = true;
    if (!stream->has_thread) {
        pthread_t thread;
        stream->has_thread = pthread_create(&thread, NULL, stream_main, stream) == 0;
        if (!stream->has_thread)
            abort();
        pthread_detach(thread);
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

static void
spend(void *data)
{
    at_work->spent_us += *(const int64_t *)data;
}

void
fake_take(int64_t us)
{
    if (fake_knob("device_us", 0) > 0)
        at_work->spent_us += us;
    else
        usleep((useconds_t)us);
}

void
fake_submit(void *stream, void (*run)(void *data), const void *data, size_t n_bytes)
{
    const int64_t device_us = fake_knob("device_us", 0);

    if (fake_knob("host_us", 0) > 0)
        usleep((useconds_t)fake_knob("host_us", 0));
    submit(stream, false, run, data, n_bytes);
    if (device_us > 0)
        submit(stream, false, spend, &device_us, sizeof device_us);
}

/* --- streams --- */

static _Thread_local const void *current_context;

void
fake_set_context(const void *context)
{
    current_context = context;
}

void *
fake_stream_new(const void *context)
{
    Stream *stream = calloc(1, sizeof *stream);

    stream->context = context;
    return stream;
}

int
fake_stream_is_captured(void *stream)
{
    pthread_mutex_lock(&mutex);
    const bool is = ((Stream *)stream)->capture != NULL;
    pthread_mutex_unlock(&mutex);
    return is;
}

cudaError_t
cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    *stream = fake_stream_new(current_context);
    return cudaSuccess;
}

cudaError_t
cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t
cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

/* As CUDA: what is queued is still done. */
cudaError_t
cudaStreamDestroy(cudaStream_t handle)
{
    Stream *stream = (Stream *)handle;

    pthread_mutex_lock(&mutex);
    stream->closing = true;
    const bool has_thread = stream->has_thread;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
    if (!has_thread)
        free(stream);
    return cudaSuccess;
}

cudaError_t fake_stream_status(void); /* fake_cuda.c: failed copies */

cudaError_t
cudaStreamSynchronize(cudaStream_t handle)
{
    Stream *stream = (Stream *)handle;

    if (fake_stream_is_captured(stream))
        return cudaErrorStreamCaptureUnsupported;
    pthread_mutex_lock(&mutex);
    n_waits++;
    while (stream->busy)
        pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
    return fake_stream_status();
}

cudaError_t
cudaStreamQuery(cudaStream_t handle)
{
    const Stream *stream = (const Stream *)handle;

    pthread_mutex_lock(&mutex);
    const bool busy = stream->busy;
    pthread_mutex_unlock(&mutex);
    return busy ? cudaErrorNotReady : fake_stream_status();
}

int64_t fake_n_waits(void);

/* How often the host has waited for a stream or an event so far. */
int64_t
fake_n_waits(void)
{
    pthread_mutex_lock(&mutex);
    const int64_t n = n_waits;
    pthread_mutex_unlock(&mutex);
    return n;
}

typedef struct {
    cudaHostFn_t function;
    void *data;
} HostFunction;

static void
run_host_function(void *data)
{
    const HostFunction *f = data;

    f->function(f->data);
}

cudaError_t
cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    const HostFunction f = {function, data};

    submit((Stream *)stream, true, run_host_function, &f, sizeof f);
    return cudaSuccess;
}

/* --- events: the time at which they happened --- */

static void
event_unref(Event *event)
{
    if (--event->n_users == 0)
        free(event);
}

cudaError_t
cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    Event *e = calloc(1, sizeof *e);

    e->n_users = 1;
    e->context = current_context;
    *event = (cudaEvent_t)e;
    return cudaSuccess;
}

cudaError_t
cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, 0);
}

cudaError_t
cudaEventDestroy(cudaEvent_t event)
{
    pthread_mutex_lock(&mutex);
    event_unref((Event *)event);
    pthread_mutex_unlock(&mutex);
    return cudaSuccess;
}

static void
happen(void *data)
{
    Event *event = *(Event **)data;

    pthread_mutex_lock(&mutex);
    if (fake_knob("device_us", 0) > 0)
        event->at =
            (struct timespec){at_work->spent_us / 1000000, at_work->spent_us % 1000000 * 1000};
    else
        clock_gettime(CLOCK_MONOTONIC, &event->at);
    event->n_done++;
    event_unref(event);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

cudaError_t
cudaEventRecord(cudaEvent_t handle, cudaStream_t stream)
{
    Event *event = (Event *)handle;
    const void *context = ((const Stream *)stream)->context;
    const int64_t foreign = fake_knob("foreign_events", 1);

    if ((foreign < 1 && event->context != context) || (foreign < 0 && context != NULL))
        return cudaErrorInvalidResourceHandle;
    pthread_mutex_lock(&mutex);
    event->n_asked++;
    event->n_users++;
    pthread_mutex_unlock(&mutex);
    submit((Stream *)stream, false, happen, &event, sizeof event);
    return cudaSuccess;
}

typedef struct {
    Event *event;
    int64_t n; /* the record that is waited for */
} Awaited;

static void
await(void *data)
{
    const Awaited *a = data;

    pthread_mutex_lock(&mutex);
    while (a->event->n_done < a->n)
        pthread_cond_wait(&changed, &mutex);
    event_unref(a->event);
    pthread_mutex_unlock(&mutex);
}

cudaError_t
cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned flags)
{
    Event *event = (Event *)handle;

    pthread_mutex_lock(&mutex);
    const Awaited a = {event, event->n_asked};
    const bool happened = event->n_done >= event->n_asked;
    event->n_users += !happened;
    pthread_mutex_unlock(&mutex);
    if (!happened)
        submit((Stream *)stream, true, await, &a, sizeof a);
    return cudaSuccess;
}

cudaError_t
cudaEventQuery(cudaEvent_t handle)
{
    const Event *event = (const Event *)handle;

    pthread_mutex_lock(&mutex);
    const bool happened = event->n_done >= event->n_asked;
    pthread_mutex_unlock(&mutex);
    return happened ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t
cudaEventSynchronize(cudaEvent_t handle)
{
    const Event *event = (const Event *)handle;

    pthread_mutex_lock(&mutex);
    n_waits++;
    while (event->n_done < event->n_asked)
        pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
    return fake_stream_status();
}

cudaError_t
cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    if (((const Event *)from)->context != ((const Event *)to)->context)
        return cudaErrorInvalidResourceHandle;
    const struct timespec *a = &((const Event *)from)->at, *b = &((const Event *)to)->at;

    *ms = (float)((double)(b->tv_sec - a->tv_sec) * 1e3 + (double)(b->tv_nsec - a->tv_nsec) * 1e-6);
    *ms *= 1.0f + (float)fake_knob("fast_clock", 0) * 1e-3f;
    return cudaSuccess;
}

/* --- graphs --- */

/* Streams that are being captured, one behind the other. */
static Stream *captured;

static void
graph_free(Graph *graph)
{
    free_tasks(&graph->tasks);
    free(graph);
}

cudaError_t
cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode)
{
    Stream *stream = (Stream *)handle;

    if (fake_knob("graphs", 1) == 0)
        return cudaErrorStreamCaptureUnsupported;
    pthread_mutex_lock(&mutex);
    stream->capture = calloc(1, sizeof(Graph));
    stream->capturer = pthread_self();
    stream->next_captured = captured;
    captured = stream;
    pthread_mutex_unlock(&mutex);
    return cudaSuccess;
}

/* A capture of @stream is over; the mutex is held. */
static void
forget_capture(Stream *stream)
{
    Stream **at = &captured;

    while (*at != NULL && *at != stream)
        at = &(*at)->next_captured;
    if (*at != NULL)
        *at = stream->next_captured;
    stream->capture = NULL;
}

void
fake_end_captures_of_others(void)
{
    pthread_mutex_lock(&mutex);
    for (Stream *stream = captured, *next; stream != NULL; stream = next) {
        next = stream->next_captured;
        if (stream->context != current_context || pthread_equal(stream->capturer, pthread_self()))
            continue;
        graph_free(stream->capture);
        forget_capture(stream);
    }
    pthread_mutex_unlock(&mutex);
}

cudaError_t
cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph)
{
    Stream *stream = (Stream *)handle;

    usleep((useconds_t)fake_knob("capture_us", 0));
    pthread_mutex_lock(&mutex);
    *graph = (cudaGraph_t)stream->capture;
    forget_capture(stream);
    pthread_mutex_unlock(&mutex);
    return *graph != NULL ? cudaSuccess : cudaErrorStreamCaptureInvalidated;
}

static Graph *
graph_copy(const Graph *graph)
{
    Graph *copy = calloc(1, sizeof *copy);

    for (const Task *task = graph->tasks.first; task != NULL; task = task->next)
        append(&copy->tasks, task_new(task->run, task->data, task->n_bytes));
    return copy;
}

cudaError_t
cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    *exec = (cudaGraphExec_t)graph_copy((const Graph *)graph);
    return cudaSuccess;
}

/* Arguments may change, functions and their number not. */
cudaError_t
cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo *info)
{
    Graph *old = (Graph *)exec;
    const Task *now = ((const Graph *)graph)->tasks.first, *before = old->tasks.first;

    while (now != NULL && before != NULL && now->run == before->run &&
           now->n_bytes == before->n_bytes) {
        now = now->next;
        before = before->next;
    }
    if (now != NULL || before != NULL)
        return cudaErrorGraphExecUpdateFailure;
    Graph *copy = graph_copy((const Graph *)graph);
    free_tasks(&old->tasks);
    old->tasks = copy->tasks;
    free(copy);
    return cudaSuccess;
}

cudaError_t
cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    for (const Task *task = ((const Graph *)exec)->tasks.first; task != NULL; task = task->next)
        submit((Stream *)stream, false, task->run, task->data, task->n_bytes);
    return cudaSuccess;
}

cudaError_t
cudaGraphDestroy(cudaGraph_t graph)
{
    graph_free((Graph *)graph);
    return cudaSuccess;
}

cudaError_t
cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    graph_free((Graph *)exec);
    return cudaSuccess;
}
