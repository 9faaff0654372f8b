#include "executor/transport/measured_collectives.h"

#include <string.h>

#include "base/json.h"
#include "executor/device/clock.h"

/* The smallest size, and the steps to the next.  16 sizes reach beyond 1 TiB, more than any
 * device's memory. */
#define MIN_BYTES (INT64_C(4) << 10)
#define SIZE_FACTOR 4
#define MAX_SIZES 16

/* Calls in a row that share the cost of two stamps, and timings of a shape: three at least for a
 * median, fifteen at most, when the budget allows. */
#define MAX_CALLS 8
#define MIN_TIMINGS 3
#define MAX_TIMINGS 15

/* --- one call --- */

bool
exec_measure_call(ExecTransport *t, ProfileOp op, const ExecGroup *group, void *data, int64_t n,
                  GError **error)
{
    switch (op) {
    case PROFILE_OP_ALL_GATHER:
        return t->ops->all_gather(t, group, DTYPE_FP32, data, n, error);
    case PROFILE_OP_REDUCE_SCATTER:
        return t->ops->reduce_scatter(t, group, DTYPE_FP32, data, n, error);
    case PROFILE_OP_BROADCAST:
        return t->ops->broadcast(t, group, 0, data, n * (int64_t)sizeof(float), error);
    default:
        return t->ops->all_reduce(t, group, DTYPE_FP32, data, n, error);
    }
}

/* What one rank holds while it times. */
typedef struct {
    const ExecCollectives *c;
    ExecSamples *samples; /* (borrowed, nullable) */
    int32_t *ranks;       /* (owned) 0, 1, ... */
    void *x, *y;          /* (owned by the backend) y: what all_to_all receives */
    int64_t max_bytes;    /* of each */
    int64_t sizes[MAX_SIZES];
    size_t n_sizes;
    int64_t *out_bytes, *in_bytes; /* (owned) of all_to_all, by member */
    int64_t begin_ns;
    double shape_s; /* of the budget, for a shape */
} Timer;

typedef struct {
    ProfileOp op;
    int32_t n; /* members: ranks 0 to n - 1 */
    int64_t bytes;
} Shape;

static ExecGroup
members(const Timer *timer, int32_t n)
{
    return (ExecGroup){.ranks = timer->ranks, .n = n, .index = timer->c->transport->rank};
}

/* Equal pieces to everybody, or, a message, all to the next one in a ring. */
static bool
exchange(Timer *timer, const Shape *shape, const ExecGroup *group, GError **error)
{
    ExecTransport *t = timer->c->transport;
    const int32_t n = group->n, own = group->index;
    const bool is_message = shape->op == PROFILE_OP_P2P;

    for (int32_t i = 0; i < n; i++) {
        timer->out_bytes[i] = !is_message          ? shape->bytes / n
                              : i == (own + 1) % n ? shape->bytes
                                                   : 0;
        timer->in_bytes[i] = !is_message              ? shape->bytes / n
                             : i == (own + n - 1) % n ? shape->bytes
                                                      : 0;
    }
    return t->ops->all_to_all(t, group,
                              &(ExecExchange){.out = timer->x,
                                              .out_bytes = timer->out_bytes,
                                              .in = timer->y,
                                              .in_bytes = timer->in_bytes},
                              error);
}

static bool
call(Timer *timer, const Shape *shape, GError **error)
{
    const ExecGroup group = members(timer, shape->n);

    if (shape->op == PROFILE_OP_P2P || shape->op == PROFILE_OP_ALL_TO_ALL)
        return exchange(timer, shape, &group, error);
    return exec_measure_call(timer->c->transport, shape->op, &group, timer->x,
                             shape->bytes / (int64_t)sizeof(float), error);
}

/* Of one of @n_calls in a row. */
static bool
time_calls(Timer *timer, const Shape *shape, int n_calls, double *seconds, GError **error)
{
    ExecBackend *backend = timer->c->backend;
    int64_t begin_ns, end_ns;

    if (!call(timer, shape, error))
        return false;
    exec_backend_stamp(backend, &begin_ns);
    for (int i = 0; i < n_calls; i++)
        if (!call(timer, shape, error))
            return false;
    exec_backend_stamp(backend, &end_ns);
    if (!backend->ops->synchronize(backend, error))
        return false;
    *seconds = (double)(end_ns - begin_ns) * 1e-9 / n_calls;
    return true;
}

/* --- one shape --- */

/* What rank 0 decides. */
typedef struct {
    int32_t n_calls, n_timings;
} Effort;

/* @call_s  what one took; NaN before it is known. */
static Effort
effort_for(const Timer *timer, double call_s)
{
    const bool is_late = exec_seconds_since(timer->begin_ns) > timer->c->budget_s;
    const double n = timer->shape_s / (call_s > 0 ? call_s : 1e-9);
    Effort effort = {.n_calls = (int32_t)CLAMP(n / MIN_TIMINGS - 1, 1, MAX_CALLS)};

    effort.n_timings =
        is_late ? 1 : (int32_t)CLAMP(n / (effort.n_calls + 1), MIN_TIMINGS, MAX_TIMINGS);
    return effort;
}

/* Rank 0's opinion becomes everybody's. */
static bool
agree(Timer *timer, void *opinion, int64_t n_bytes, GError **error)
{
    ExecTransport *host = timer->c->host;
    const ExecGroup everyone = members(timer, host->n_ranks);

    return host->ops->broadcast(host, &everyone, 0, opinion, n_bytes, error);
}

/* The first timing warms up and tells what the others cost. */
static bool
time_shape(Timer *timer, const Shape *shape, GError **error)
{
    const ProfileMeasurement key = {
        .op = shape->op,
        .bytes = shape->bytes,
        .n_ranks = shape->op == PROFILE_OP_P2P ? 2 : shape->n,
    };
    const bool takes_part = timer->c->transport->rank < shape->n;
    double seconds = 0;

    if (timer->c->moves != NULL)
        timer->c->moves(timer->c->user_data);
    if (takes_part && !time_calls(timer, shape, 1, &seconds, error))
        return false;
    Effort effort = effort_for(timer, seconds);
    if (!agree(timer, &effort, sizeof effort, error))
        return false;
    for (int i = 0; takes_part && i < effort.n_timings; i++) {
        if (!time_calls(timer, shape, effort.n_calls, &seconds, error))
            return false;
        if (timer->samples != NULL)
            exec_samples_add(timer->samples, &key, seconds, false);
    }
    return true;
}

/* --- all of them --- */

/* All pieces are whole elements. */
static int64_t
rounded(int64_t bytes, int32_t n)
{
    const int64_t unit = n * (int64_t)sizeof(float);

    return bytes / unit * unit;
}

static bool
time_size(Timer *timer, int64_t bytes, GError **error)
{
    static const ProfileOp ops[] = {PROFILE_OP_ALL_REDUCE, PROFILE_OP_ALL_GATHER,
                                    PROFILE_OP_REDUCE_SCATTER, PROFILE_OP_BROADCAST,
                                    PROFILE_OP_ALL_TO_ALL};
    const int32_t n_ranks = timer->c->transport->n_ranks;

    for (int32_t n = 2;; n = MIN(2 * n, n_ranks)) {
        for (size_t i = 0; i < G_N_ELEMENTS(ops); i++)
            if (!time_shape(timer, &(Shape){ops[i], n, rounded(bytes, n)}, error))
                return false;
        if (n == n_ranks)
            break;
    }
    return time_shape(timer, &(Shape){PROFILE_OP_P2P, n_ranks, bytes}, error);
}

/* The smallest and the largest size first: what is between them is nearly a straight line. */
static bool
time_sizes(Timer *timer, GError **error)
{
    const size_t n = timer->n_sizes;

    for (size_t i = 0; i < n; i++) {
        const size_t size = i < 2 ? i * (n - 1) : i - 1;
        int32_t goes_on = i < 2 || exec_seconds_since(timer->begin_ns) < timer->c->budget_s;
        if (!agree(timer, &goes_on, sizeof goes_on, error))
            return false;
        if (!goes_on)
            return true;
        if (!time_size(timer, timer->sizes[size], error))
            return false;
    }
    return true;
}

/* Buffers as large as all ranks have memory for. */
static bool
take_memory(Timer *timer, GError **error)
{
    const ExecCollectives *c = timer->c;
    const ExecBackendOps *ops = c->backend->ops;
    const int32_t n_ranks = c->host->n_ranks;
    const ExecGroup everyone = members(timer, n_ranks);
    g_autofree int64_t *most = g_new0(int64_t, (size_t)n_ranks);
    g_autoptr(GError) why = NULL;

    for (int64_t bytes = c->max_bytes; bytes >= MIN_BYTES; bytes /= SIZE_FACTOR) {
        g_clear_error(&why);
        timer->x = ops->alloc(c->backend, (size_t)bytes, "a collective", &why);
        timer->y =
            timer->x == NULL ? NULL : ops->alloc(c->backend, (size_t)bytes, "a collective", &why);
        most[c->host->rank] = bytes;
        if (timer->y != NULL)
            break;
        ops->release(c->backend, timer->x);
        timer->x = NULL;
        most[c->host->rank] = 0;
    }
    if (!c->host->ops->all_gather(c->host, &everyone, DTYPE_FP8, most,
                                  n_ranks * (int64_t)sizeof *most, error))
        return false;
    if (timer->x == NULL) {
        g_propagate_error(error, g_steal_pointer(&why));
        return false;
    }
    timer->max_bytes = c->max_bytes;
    for (int32_t i = 0; i < n_ranks; i++)
        timer->max_bytes = MIN(timer->max_bytes, most[i]);
    ops->zero(c->backend, (size_t)most[c->host->rank], timer->x);
    ops->zero(c->backend, (size_t)most[c->host->rank], timer->y);
    return true;
}

static void
choose_sizes(Timer *timer)
{
    const int32_t n_ranks = timer->c->transport->n_ranks;
    int n_groups = 1;

    for (int64_t bytes = MIN_BYTES; bytes < timer->max_bytes && timer->n_sizes < MAX_SIZES - 1;
         bytes *= SIZE_FACTOR)
        timer->sizes[timer->n_sizes++] = bytes;
    timer->sizes[timer->n_sizes++] = timer->max_bytes;
    for (int32_t n = 2; n < n_ranks; n *= 2)
        n_groups++;
    timer->shape_s = timer->c->budget_s / (double)timer->n_sizes / (5 * n_groups + 1);
}

bool
exec_measure_collectives(const ExecCollectives *c, ExecSamples *samples, GError **error)
{
    g_return_val_if_fail(c->transport->n_ranks >= 2 && c->max_bytes >= MIN_BYTES, false);
    const int32_t n_ranks = c->transport->n_ranks;
    g_autofree int32_t *ranks = exec_ranks_new(n_ranks);
    g_autofree int64_t *lengths = g_new0(int64_t, 2 * (size_t)n_ranks);
    Timer timer = {
        .c = c,
        .samples = c->transport->rank == 0 ? samples : NULL,
        .ranks = ranks,
        .out_bytes = lengths,
        .in_bytes = lengths + n_ranks,
        .begin_ns = exec_now_ns(),
    };

    bool ok = take_memory(&timer, error);
    if (ok) {
        choose_sizes(&timer);
        ok = time_sizes(&timer, error);
    }
    c->backend->ops->release(c->backend, timer.x);
    c->backend->ops->release(c->backend, timer.y);
    return ok;
}

/* --- as a text --- */

#define FORMAT "degas-profile-links"

char *
exec_collectives_to_text(ExecSamples *samples, const char *between)
{
    g_autoptr(JsonWriter) writer = json_writer_new();
    size_t n_bytes;

    json_write_object(writer, NULL);
    json_write_string(writer, "format", FORMAT);
    json_write_int64(writer, "version", 1);
    json_write_string(writer, "between", between);
    exec_samples_keep(samples, writer, "samples");
    json_write_object_end(writer);
    return json_writer_steal(writer, &n_bytes);
}

bool
exec_collectives_from_text(const char *text, ExecSamples *samples, char **between, GError **error)
{
    g_autoptr(JsonDoc) doc = json_doc_parse("timings between GPUs", text, strlen(text), error);

    if (doc == NULL)
        return false;
    const JsonValue *root = json_doc_root(doc, FORMAT, 1);
    g_autofree char *words = g_strdup(json_string(doc, root, "between"));
    exec_samples_read(samples, doc, json_array(doc, root, "samples"));
    json_object_end(doc, root);
    if (!json_doc_finish(doc, error))
        return false;
    *between = g_steal_pointer(&words);
    return true;
}
