/*
 * The scan of recurrence.h whose channels each have a state of key_dim numbers with decays of their
 * own [Gu and Dao 2312.00752 equation 2, zero-order hold of A], for backends in host memory:
 *
 *   h_t = exp(A rate_t) h_{t-1} + rate_t x_t k_t      y_t = q_t.h_t + skip x_t      A = -exp(a_log)
 *
 * Channel after channel, since each has its own exp(A rate_t); backward computes the states of a
 * chunk again from those before the chunks.  Threads share out sequences, whose channels add to the
 * same dq and dk.
 */
#include <math.h>

#include "executor/device/cores.h"
#include "executor/device/recurrence_host.h"
#include "executor/device/vector.h"

#define CHUNK 64

typedef struct {
    ExecBackend *backend;
    const ExecScan *scan;
    const ExecScanGradients *g; /* NULL: forward */
    double *d_a_log, *d_skip;   /* [sequences, n_heads, padded keys], [sequences, n_heads] */
} Work;

/* One sequence at work; rows are padded to whole vectors by zeros. */
typedef struct {
    const Work *work;
    int64_t sequence, head, k;
    int64_t n_chunks;
    float *q, *key;   /* [tokens, k] */
    float *dq, *dkey; /* sums over channels */
    float *starts;    /* [n_chunks, k] states before the chunks */
    float *h;         /* [CHUNK + 1, k] of a chunk, the first before it */
    float *decays;    /* [CHUNK, k] */
    float *a;         /* [k] A */
    float *dh;        /* [k] */
    float *x, *d;     /* [tokens] of the channel: values; results or their gradients */
} Room;

static int64_t
padded(int64_t n)
{
    return (n + EXEC_LANES - 1) / EXEC_LANES * EXEC_LANES;
}

static int64_t
row_of(const Room *r, int64_t t)
{
    return t * r->work->scan->sequences + r->sequence;
}

static float
rate_of(const Room *r, int64_t t)
{
    return r->work->scan->rate[row_of(r, t) * r->work->scan->n_heads + r->head];
}

/* decay = exp(a rate), h = decay before + rate x key.  Returns q.h. */
EXEC_CLONES static float
step(int64_t k, const float *a, float rate, float x, const float *key, const float *q,
     const float *before, float *decay, float *h)
{
    ExecVec sum = {0};

    for (int64_t i = 0; i < k; i += EXEC_LANES) {
        ExecVec e, b, c;
        exec_vec_load(&e, a + i, EXEC_LANES);
        e *= rate;
        exec_vec_exp(&e);
        exec_vec_store(&e, decay + i, EXEC_LANES);
        exec_vec_load(&b, before + i, EXEC_LANES);
        exec_vec_load(&c, key + i, EXEC_LANES);
        e = e * b + rate * x * c;
        exec_vec_store(&e, h + i, EXEC_LANES);
        exec_vec_load(&c, q + i, EXEC_LANES);
        sum += e * c;
    }
    return exec_vec_sum(&sum);
}

/*
 * dh += d q is the gradient of h; from it those of q and key are added to, and dh becomes that of
 * the state before.  @along  (out) [2]: dh . key, and dh . (a decay before); the latter's parts,
 * times the rate, are added to @d_a.
 */
EXEC_CLONES static void
step_backward(int64_t k, const float *a, float rate, float x, float d, const float *key,
              const float *q, const float *before, const float *decay, const float *h, float *dq,
              float *dkey, float *dh, float *d_a, float along[2])
{
    ExecVec of_key = {0}, of_decay = {0};

    for (int64_t i = 0; i < k; i += EXEC_LANES) {
        ExecVec g, y, z, w;
        exec_vec_load(&g, dh + i, EXEC_LANES);
        exec_vec_load(&y, q + i, EXEC_LANES);
        g += d * y;
        exec_vec_load(&y, dq + i, EXEC_LANES);
        exec_vec_load(&z, h + i, EXEC_LANES);
        y += d * z;
        exec_vec_store(&y, dq + i, EXEC_LANES);
        exec_vec_load(&y, dkey + i, EXEC_LANES);
        y += rate * x * g;
        exec_vec_store(&y, dkey + i, EXEC_LANES);
        exec_vec_load(&y, key + i, EXEC_LANES);
        of_key += g * y;
        exec_vec_load(&y, decay + i, EXEC_LANES);
        exec_vec_load(&z, before + i, EXEC_LANES);
        exec_vec_load(&w, a + i, EXEC_LANES);
        g *= y;
        w *= g * z;
        of_decay += w;
        exec_vec_store(&g, dh + i, EXEC_LANES);
        exec_vec_load(&y, d_a + i, EXEC_LANES);
        y += rate * w;
        exec_vec_store(&y, d_a + i, EXEC_LANES);
    }
    along[0] = exec_vec_sum(&of_key);
    along[1] = exec_vec_sum(&of_decay);
}

static int64_t
value_at(const Room *r, int64_t t, int64_t stride)
{
    return row_of(r, t) * stride + r->head;
}

static float
skip_of(const Room *r)
{
    float skip = 0.0f;

    if (r->work->scan->skip != NULL)
        exec_row_load(r->work->backend->storage, r->work->scan->skip, r->head, 1, &skip);
    return skip;
}

/* Reads the channel's A, values, and gradients of its results. */
static void
load_channel(const Room *r)
{
    const ExecScan *s = r->work->scan;
    const Dtype storage = r->work->backend->storage;

    memset(r->a, 0, (size_t)r->k * sizeof *r->a);
    exec_row_load(storage, s->a_log, r->head * s->key_dim, s->key_dim, r->a);
    for (int64_t i = 0; i < s->key_dim; i++)
        r->a[i] = -expf(r->a[i]);
    for (int64_t t = 0; t < s->tokens; t++) {
        exec_row_load(storage, s->v, value_at(r, t, s->value_stride), 1, r->x + t);
        if (r->work->g != NULL)
            exec_row_load(storage, r->work->g->dout, value_at(r, t, s->n_heads), 1, r->d + t);
    }
}

/* Goes through chunk @chunk from the state in h's first row; without @y only the states count. */
static void
run_chunk(const Room *r, int64_t chunk, float *y)
{
    const int64_t begin = chunk * CHUNK, end = MIN(begin + CHUNK, r->work->scan->tokens), k = r->k;

    for (int64_t t = begin; t < end; t++) {
        float *h = r->h + (t - begin) * k;
        const float out = step(k, r->a, rate_of(r, t), r->x[t], r->key + t * k, r->q + t * k, h,
                               r->decays + (t - begin) * k, h + k);
        if (y != NULL)
            y[t] = out;
    }
}

static float *
state_of(const Room *r, const float *states)
{
    const ExecScan *s = r->work->scan;

    return (float *)(uintptr_t)states + (r->sequence * s->n_heads + r->head) * s->key_dim;
}

/* h's first row becomes the state before the slice, then behind the last chunk. */
static void
run_forward(const Room *r, float *y)
{
    const ExecScan *s = r->work->scan;
    const size_t n_bytes = (size_t)r->k * sizeof *r->h;

    memset(r->h, 0, n_bytes);
    if (s->start != NULL)
        memcpy(r->h, state_of(r, s->start), (size_t)s->key_dim * sizeof *r->h);
    for (int64_t chunk = 0; chunk < r->n_chunks; chunk++) {
        const int64_t n = MIN(CHUNK, s->tokens - chunk * CHUNK);
        if (r->starts != NULL)
            memcpy(r->starts + chunk * r->k, r->h, n_bytes);
        run_chunk(r, chunk, y);
        memcpy(r->h, r->h + n * r->k, n_bytes);
    }
}

static void
channel_forward(const Room *r)
{
    const ExecScan *s = r->work->scan;
    const float skip = skip_of(r);

    run_forward(r, r->d);
    for (int64_t t = 0; t < s->tokens; t++) {
        const float y = r->d[t] + skip * r->x[t];
        exec_row_store(r->work->backend->storage, &y, 1, s->out, value_at(r, t, s->n_heads));
    }
    if (s->end != NULL)
        memcpy(state_of(r, s->end), r->h, (size_t)s->key_dim * sizeof *r->h);
}

static void
token_backward(const Room *r, int64_t t, int64_t in_chunk, float skip, float *d_a)
{
    const ExecScan *s = r->work->scan;
    const float rate = rate_of(r, t), *h = r->h + in_chunk * r->k;
    const int64_t at = t * r->k;
    float along[2];

    step_backward(r->k, r->a, rate, r->x[t], r->d[t], r->key + at, r->q + at, h,
                  r->decays + in_chunk * r->k, h + r->k, r->dq + at, r->dkey + at, r->dh, d_a,
                  along);
    r->work->g->d_rate[row_of(r, t) * s->n_heads + r->head] = r->x[t] * along[0] + along[1];
    const float dx = rate * along[0] + skip * r->d[t];
    exec_row_store(r->work->backend->storage, &dx, 1, r->work->g->dv,
                   value_at(r, t, s->value_stride));
}

static void
channel_backward(const Room *r, float *d_a)
{
    const ExecScan *s = r->work->scan;
    const ExecScanGradients *g = r->work->g;
    const size_t n_bytes = (size_t)s->key_dim * sizeof(float);
    const int64_t channel = r->sequence * s->n_heads + r->head;
    const float skip = skip_of(r);

    run_forward(r, NULL);
    memset(r->dh, 0, (size_t)r->k * sizeof *r->dh);
    memset(d_a, 0, (size_t)r->k * sizeof *d_a);
    if (g->d_state != NULL)
        memcpy(r->dh, state_of(r, g->d_state), n_bytes);
    for (int64_t chunk = r->n_chunks - 1; chunk >= 0; chunk--) {
        const int64_t begin = chunk * CHUNK, n = MIN(CHUNK, s->tokens - begin);
        memcpy(r->h, r->starts + chunk * r->k, (size_t)r->k * sizeof *r->h);
        run_chunk(r, chunk, NULL);
        for (int64_t i = n - 1; i >= 0; i--)
            token_backward(r, begin + i, i, skip, d_a);
    }
    if (g->d_state != NULL)
        memcpy(state_of(r, g->d_state), r->dh, n_bytes);
    for (int64_t i = 0; i < s->key_dim; i++)
        r->work->d_a_log[channel * s->key_dim + i] = (double)d_a[i];
    for (int64_t t = 0; t < s->tokens; t++)
        r->work->d_skip[channel] += (double)r->x[t] * (double)r->d[t];
}

/* --- sequences --- */

static void
load_keys(const Room *r, const void *from, float *x)
{
    const ExecScan *s = r->work->scan;

    for (int64_t t = 0; t < s->tokens; t++, x += r->k) {
        memset(x, 0, (size_t)r->k * sizeof *x);
        exec_row_load(r->work->backend->storage, from, row_of(r, t) * s->key_stride, s->key_dim, x);
    }
}

static void
sequences(int64_t begin, int64_t end, void *user_data)
{
    const Work *work = user_data;
    const ExecScan *s = work->scan;
    const bool backward = work->g != NULL;
    const int64_t k = padded(s->key_dim), n = s->tokens * k,
                  n_chunks = (s->tokens + CHUNK - 1) / CHUNK;
    const int64_t in_chunk = (CHUNK + 1) * k;
    g_autofree float *memory = g_new(float, (size_t)((backward ? 4 * n + n_chunks * k : 2 * n) +
                                                     2 * in_chunk + 3 * k + 2 * s->tokens));
    Room r = {.work = work, .k = k, .n_chunks = n_chunks};
    float *d_a = memory;

    r.a = d_a + k;
    r.dh = r.a + k;
    r.h = r.dh + k;
    r.decays = r.h + in_chunk;
    r.x = r.decays + in_chunk;
    r.d = r.x + s->tokens;
    r.q = r.d + s->tokens;
    r.key = r.q + n;
    if (backward) {
        r.dq = r.key + n;
        r.dkey = r.dq + n;
        r.starts = r.dkey + n;
    }
    for (r.sequence = begin; r.sequence < end; r.sequence++) {
        load_keys(&r, s->q, r.q);
        load_keys(&r, s->k, r.key);
        if (backward)
            memset(r.dq, 0, 2 * (size_t)n * sizeof *r.dq);
        for (r.head = 0; r.head < s->n_heads; r.head++) {
            load_channel(&r);
            if (backward)
                channel_backward(&r, d_a);
            else
                channel_forward(&r);
        }
        for (int64_t t = 0; backward && t < s->tokens; t++) {
            const int64_t at = row_of(&r, t) * s->key_stride;
            exec_row_store(work->backend->storage, r.dq + t * k, s->key_dim, work->g->dq, at);
            exec_row_store(work->backend->storage, r.dkey + t * k, s->key_dim, work->g->dk, at);
        }
    }
}

/* exp(a_log)'s derivative is itself, so that a_log's gradient is A's times A: step_backward() has it. */
void
exec_host_scan_channels(ExecBackend *backend, const ExecScan *scan, const ExecScanGradients *g)
{
    const int64_t n_heads = scan->n_heads, n_keys = n_heads * scan->key_dim;
    g_autofree double *d_a_log =
        g == NULL ? NULL : g_new0(double, (size_t)(scan->sequences * n_keys));
    g_autofree double *d_skip =
        g == NULL ? NULL : g_new0(double, (size_t)(scan->sequences * n_heads));

    exec_share_out(backend->n_threads, scan->sequences, sequences,
                   &(Work){backend, scan, g, d_a_log, d_skip});
    for (int64_t i = 0; g != NULL && i < scan->sequences * n_keys; i++)
        g->d_a_log[i % n_keys] += (float)d_a_log[i];
    for (int64_t i = 0; g != NULL && scan->skip != NULL && i < scan->sequences * n_heads; i++)
        g->d_skip[i % n_heads] += (float)d_skip[i];
}
