/*
 * The scans of recurrence.h, for backends in host memory.
 *
 * Tokens are taken in chunks.  Within a chunk of tokens t, with e_t the product of the decays up to t, d_ts that
 * of those behind s up to t, and S the state before it  [2405.21060 section 6; 2412.06464 section 3.3]:
 *
 *   P_ts = d_ts q_t.k_s (s <= t)     A_ts = d_ts k_t.k_s (s < t)
 *   F = V - [delta] (e K S + A U)    U = rate F           (row after row: A is triangular)
 *   out = e Q S + P U                S' = e_L S + (d_L K)^T U
 *
 * All d and e are products of numbers up to 1, so that nothing overflows.  With a decay for every channel of a key
 * P and A are summed channel by channel; else all of it is products of small matrices.
 *
 * Backward goes from the last chunk to the first, with the states before the chunks computed again.
 * Each q_t comes with e_t, each k_t that is read too, and each k_t that is written with 1 / e_t: so the
 * gradient of log e_t is q_t.dq_t + k_t.dk_t (read) - k_t.dk_t (written).
 *
 * Threads share out pairs (sequence, key head), whose heads add to the same dq and dk.
 */
#include <math.h>

#include "executor/device/cores.h"
#include "executor/device/recurrence_host.h"
#include "executor/device/vector.h"

enum {
    CHUNK = 64,         /* tokens, with one decay for each head */
    CHANNEL_CHUNK = 16, /* ... with one for each channel */
};

#define LENGTH_EPSILON 1e-6f

typedef struct {
    ExecBackend *backend;
    const ExecScan *scan;
    const ExecScanGradients *g; /* NULL: forward */
    double *d_skip;             /* [sequences, n_heads]; NULL without skip */
} Work;

/* The memory of a thread.  Rows are padded to whole vectors by zeros. */
typedef struct {
    const Work *work;
    int64_t k, v;     /* columns, padded */
    int64_t n_decays; /* of a token: 1 or k */
    int64_t chunk, n_chunks;
    float *q, *key, *value, *dout; /* of a chunk, as the recurrence reads them */
    float *a;                      /* [chunk, n_decays] decays */
    float *before, *behind, *last; /* products of decays: e, d_L, e_L */
    float *rate;                   /* [chunk] */
    float *between;                /* [chunk, chunk] d, with one decay for each head */
    float *p, *read;               /* P, A */
    float *f, *u;                  /* F, U */
    float *du, *dp, *dq, *d_read;  /* d_read: of keys as the delta rule reads them */
    float *d_written, *d_end; /* of keys as they are written: for the chunk, for what follows */
    float *diagonal;          /* of dP */
    float *rows, *turned;     /* for rows with decays; for transposed matrices */
    float *state,
        *dstate; /* [n_chunks + 1, k, v]: before each chunk, and behind the last; [k, v] */
    float *dq_sum, *dk_sum;                     /* [tokens, k] of all heads of the pair */
    int64_t sequence, key_head, head, begin, n; /* where it is: tokens [begin, begin + n) */
} Room;

/* --- products of small matrices --- */

/* C[m,n] (+)= A[m,k] B[k,n], where A's element (i, p) is at i * row + p * col and n is whole vectors. */
EXEC_CLONES static void
multiply(int64_t m, int64_t n, int64_t k, const float *a, int64_t row, int64_t col, const float *b,
         int64_t ldb, bool accumulate, float *c, int64_t ldc)
{
    int64_t i = 0;

    for (; i + 4 <= m; i += 4)
        for (int64_t j = 0; j < n; j += EXEC_LANES) {
            const float *x = a + i * row;
            ExecVec sum[4] = {0}, y;
            for (int64_t p = 0; p < k; p++) {
                exec_vec_load(&y, b + p * ldb + j, EXEC_LANES);
                for (int r = 0; r < 4; r++)
                    sum[r] += x[r * row + p * col] * y;
            }
            for (int r = 0; r < 4; r++) {
                if (accumulate) {
                    exec_vec_load(&y, c + (i + r) * ldc + j, EXEC_LANES);
                    sum[r] += y;
                }
                exec_vec_store(&sum[r], c + (i + r) * ldc + j, EXEC_LANES);
            }
        }
    for (; i < m; i++)
        for (int64_t j = 0; j < n; j += EXEC_LANES) {
            ExecVec sum = {0}, y;
            for (int64_t p = 0; p < k; p++) {
                exec_vec_load(&y, b + p * ldb + j, EXEC_LANES);
                sum += a[i * row + p * col] * y;
            }
            if (accumulate) {
                exec_vec_load(&y, c + i * ldc + j, EXEC_LANES);
                sum += y;
            }
            exec_vec_store(&sum, c + i * ldc + j, EXEC_LANES);
        }
}

/* Rows of @x [rows, cols] become columns of room->turned, whose row stride is @ld. */
static const float *
turn(const Room *r, int64_t rows, int64_t cols, const float *x, int64_t ld)
{
    for (int64_t j = 0; j < cols; j++) {
        for (int64_t i = 0; i < rows; i++)
            r->turned[j * ld + i] = x[i * cols + j];
        for (int64_t i = rows; i < ld; i++)
            r->turned[j * ld + i] = 0.0f;
    }
    return r->turned;
}

/* y = factor x, with one factor for each row, or one for each element. */
EXEC_CLONES EXEC_VECTORIZE static void
scale(int64_t rows, int64_t cols, int64_t n_factors, const float *factor, const float *x, float *y)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            y[i * cols + j] = x[i * cols + j] * (n_factors == 1 ? factor[i] : factor[i * cols + j]);
}

/* y += factor x */
EXEC_CLONES EXEC_VECTORIZE static void
add_scaled(int64_t n, float factor, const float *x, float *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += factor * x[i];
}

EXEC_CLONES static float
dot(int64_t n, const float *x, const float *y)
{
    ExecVec sum = {0}, a, b;

    for (int64_t i = 0; i < n; i += EXEC_LANES) {
        exec_vec_load(&a, x + i, EXEC_LANES);
        exec_vec_load(&b, y + i, EXEC_LANES);
        sum += a * b;
    }
    return exec_vec_sum(&sum);
}

/* --- reading --- */

static int64_t
row_of(const Room *r, int64_t t)
{
    return t * r->work->scan->sequences + r->sequence;
}

/* One row of @n columns of q, k or v behind SiLU, padded to @padded. */
static void
load_row(const Room *r, const void *from, int64_t at, int64_t n, int64_t padded, float *x)
{
    float sigmoid[EXEC_LANES];

    exec_row_load(r->work->backend->storage, from, at, n, x);
    memset(x + n, 0, (size_t)(padded - n) * sizeof *x);
    for (int64_t i = 0; r->work->scan->silu && i < padded; i += EXEC_LANES) {
        exec_row_sigmoid(EXEC_LANES, x + i, sigmoid);
        for (int64_t j = 0; j < EXEC_LANES; j++)
            x[i + j] *= sigmoid[j];
    }
}

static float
length_factor(const Room *r, const float *x)
{
    return r->work->scan->normalised ? 1.0f / sqrtf(dot(r->k, x, x) + LENGTH_EPSILON) : 1.0f;
}

static void
load_keys(const Room *r, const void *from, float factor, float *x)
{
    const ExecScan *s = r->work->scan;

    for (int64_t t = 0; t < r->n; t++, x += r->k) {
        load_row(r, from, row_of(r, r->begin + t) * s->key_stride + r->key_head * s->key_dim,
                 s->key_dim, r->k, x);
        const float f = factor * length_factor(r, x);
        for (int64_t i = 0; i < r->k; i++)
            x[i] *= f;
    }
}

static int64_t
value_at(const Room *r, int64_t t, int64_t stride)
{
    return row_of(r, t) * stride + r->head * r->work->scan->value_dim;
}

/* Where token @t's decays of the head are in decay and d_decay. */
static int64_t
decay_at(const Room *r, int64_t t)
{
    const ExecScan *s = r->work->scan;
    const int64_t n = s->channels ? s->key_dim : 1;

    return (s->fixed ? 0 : row_of(r, t) * s->n_heads * n) + r->head * n;
}

static void
load_decays(const Room *r)
{
    const ExecScan *s = r->work->scan;
    const int64_t n = s->channels ? s->key_dim : 1, d = r->n_decays;

    for (int64_t t = 0; t < r->n; t++)
        for (int64_t i = 0; i < d; i++) {
            const float a = i < n ? expf(s->decay[decay_at(r, r->begin + t) + i]) : 1.0f;
            r->a[t * d + i] = a;
            r->before[t * d + i] = t == 0 ? a : r->before[(t - 1) * d + i] * a;
        }
    for (int64_t t = r->n - 1; t >= 0; t--)
        for (int64_t i = 0; i < d; i++)
            r->behind[t * d + i] =
                t == r->n - 1 ? 1.0f : r->behind[(t + 1) * d + i] * r->a[(t + 1) * d + i];
    for (int64_t i = 0; i < d; i++)
        r->last[i] = r->before[(r->n - 1) * d + i];
}

static void
load_chunk(Room *r, int64_t chunk)
{
    const ExecScan *s = r->work->scan;

    r->begin = chunk * r->chunk;
    r->n = MIN(r->chunk, s->tokens - r->begin);
    load_keys(r, s->q, s->scale, r->q);
    load_keys(r, s->k, 1.0f, r->key);
    load_decays(r);
    for (int64_t t = 0; t < r->n; t++) {
        load_row(r, s->v, value_at(r, r->begin + t, s->value_stride), s->value_dim, r->v,
                 r->value + t * r->v);
        r->rate[t] =
            s->rate == NULL ? 1.0f : s->rate[row_of(r, r->begin + t) * s->n_heads + r->head];
    }
}

/* --- scores --- */

static void
set_between(const Room *r)
{
    for (int64_t t = 0; t < r->n; t++) {
        float *d = r->between + t * r->chunk;
        for (int64_t s = 0; s < t; s++)
            d[s] = d[s - r->chunk] * r->a[t];
        d[t] = 1.0f;
        memset(d + t + 1, 0, (size_t)(r->chunk - t - 1) * sizeof *d);
    }
}

/* P or A [chunk, chunk]: zero above the diagonal, which @own says whether to take. */
static void
scores(const Room *r, const float *x, bool own, float *p)
{
    const int64_t k = r->k, l = r->chunk;

    if (r->n_decays == 1)
        multiply(r->n, l, k, x, k, 1, turn(r, r->n, k, r->key, l), l, false, p, l);
    if (r->n_decays == 1)
        scale(r->n, l, l, r->between, p, p);
    for (int64_t t = 0; t < r->n; t++) {
        float *row = p + t * l, *w = r->rows;
        memcpy(w, x + t * k, (size_t)k * sizeof *w);
        for (int64_t s = t; s >= 0 && r->n_decays > 1; s--) {
            row[s] = dot(k, w, r->key + s * k);
            scale(1, k, k, r->a + s * k, w, w);
        }
        memset(row + t + (own ? 1 : 0), 0, (size_t)(l - t - (own ? 1 : 0)) * sizeof *row);
    }
}

/* dx_t += sum_s dp_ts d_ts y_s, dy_s += sum_t dp_ts d_ts x_t, y the keys.  Changes @dp. */
static void
scores_backward(const Room *r, const float *x, float *dp, float *dx, float *dy)
{
    const int64_t k = r->k, l = r->chunk;

    if (r->n_decays == 1) {
        scale(r->n, l, l, r->between, dp, dp);
        multiply(r->n, k, r->n, dp, l, 1, r->key, k, true, dx, k);
        multiply(r->n, k, r->n, dp, 1, l, x, k, true, dy, k);
        return;
    }
    for (int64_t t = 0; t < r->n; t++) {
        float *d = r->rows, *w = r->rows + k;
        for (int64_t i = 0; i < k; i++)
            d[i] = 1.0f;
        for (int64_t s = t; s >= 0; s--) {
            scale(1, k, k, d, r->key + s * k, w);
            add_scaled(k, dp[t * l + s], w, dx + t * k);
            scale(1, k, k, d, x + t * k, w);
            add_scaled(k, dp[t * l + s], w, dy + s * k);
            scale(1, k, k, r->a + s * k, d, d);
        }
    }
}

/* --- forward --- */

/* Sets F and U from the state before the chunk. */
static void
write_values(const Room *r, const float *state)
{
    const int64_t k = r->k, v = r->v;
    const bool delta = r->work->scan->delta;

    if (delta) {
        scale(r->n, k, r->n_decays, r->before, r->key, r->rows);
        multiply(r->n, v, k, r->rows, k, 1, state, v, false, r->f, v);
    }
    for (int64_t t = 0; t < r->n; t++) {
        float *f = r->f + t * v;
        for (int64_t i = 0; i < v; i++)
            f[i] = r->value[t * v + i] - (delta ? f[i] : 0.0f);
        for (int64_t s = 0; delta && s < t; s++)
            add_scaled(v, -r->read[t * r->chunk + s], r->u + s * v, f);
        for (int64_t i = 0; i < v; i++)
            r->u[t * v + i] = r->rate[t] * f[i];
    }
}

static void
prepare(const Room *r, const float *state)
{
    if (r->n_decays == 1)
        set_between(r);
    if (r->work->scan->delta)
        scores(r, r->key, false, r->read);
    write_values(r, state);
}

/* @next = e_L state + (d_L K)^T U; @next may be @state. */
static void
advance(const Room *r, const float *state, float *next)
{
    for (int64_t c = 0; c < r->k; c++)
        scale(1, r->v, 1, r->last + (r->n_decays == 1 ? 0 : c), state + c * r->v, next + c * r->v);
    scale(r->n, r->k, r->n_decays, r->behind, r->key, r->rows);
    multiply(r->k, r->v, r->n, r->rows, 1, r->k, r->u, r->v, true, next, r->v);
}

static float
skip_of(const Room *r)
{
    float skip = 0.0f;

    if (r->work->scan->skip != NULL)
        exec_row_load(r->work->backend->storage, r->work->scan->skip, r->head, 1, &skip);
    return skip;
}

static void
give_out(const Room *r, const float *state)
{
    const ExecScan *s = r->work->scan;
    const int64_t k = r->k, v = r->v, l = r->chunk;
    const float skip = skip_of(r);
    float *out = r->f; /* F has been read */

    scores(r, r->q, true, r->p);
    scale(r->n, k, r->n_decays, r->before, r->q, r->rows);
    multiply(r->n, v, k, r->rows, k, 1, state, v, false, out, v);
    multiply(r->n, v, r->n, r->p, l, 1, r->u, v, true, out, v);
    for (int64_t t = 0; t < r->n; t++) {
        add_scaled(v, skip, r->value + t * v, out + t * v);
        exec_row_store(r->work->backend->storage, out + t * v, s->value_dim, s->out,
                       value_at(r, r->begin + t, s->n_heads * s->value_dim));
    }
}

/* Copies the head's state between memory, where it is [key_dim, value_dim], and the room. */
static void
copy_state(const Room *r, const float *from, float *to, bool in)
{
    const ExecScan *s = r->work->scan;
    const int64_t at = (r->sequence * s->n_heads + r->head) * s->key_dim * s->value_dim;

    if (in)
        memset(to, 0, (size_t)(r->k * r->v) * sizeof *to);
    for (int64_t c = 0; (in ? from : to) != NULL && c < s->key_dim; c++)
        memcpy(in ? to + c * r->v : to + at + c * s->value_dim,
               in ? from + at + c * s->value_dim : from + c * r->v,
               (size_t)s->value_dim * sizeof *to);
}

static void
head_forward(Room *r)
{
    const ExecScan *s = r->work->scan;

    copy_state(r, s->start, r->state, true);
    for (int64_t chunk = 0; chunk < r->n_chunks; chunk++) {
        load_chunk(r, chunk);
        prepare(r, r->state);
        give_out(r, r->state);
        advance(r, r->state, r->state);
    }
    copy_state(r, r->state, s->end, false);
}

/* --- backward --- */

/* dU from all that reads it, then row after row dF = rate dU and the rate's gradient.  dF replaces dU. */
static void
written_backward(const Room *r)
{
    const ExecScan *s = r->work->scan;
    const int64_t v = r->v, l = r->chunk;

    for (int64_t t = r->n - 1; t >= 0; t--) {
        float *du = r->du + t * v;
        for (int64_t later = t + 1; s->delta && later < r->n; later++)
            add_scaled(v, -r->read[later * l + t], r->du + later * v, du);
        if (s->rate == NULL)
            continue;
        r->work->g->d_rate[row_of(r, r->begin + t) * s->n_heads + r->head] =
            dot(v, du, r->f + t * v);
        scale(1, v, 1, &r->rate[t], du, du);
    }
}

/* Of the keys that the delta rule reads, those of A and of e K S; -dF is in F's place. */
static void
read_backward(const Room *r, const float *state)
{
    const int64_t k = r->k, v = r->v, l = r->chunk;

    multiply(r->n, k, v, r->f, v, 1, turn(r, k, v, state, k), k, false, r->d_read, k);
    scale(r->n, k, r->n_decays, r->before, r->d_read, r->d_read);
    multiply(r->n, l, v, r->f, v, 1, turn(r, r->n, v, r->u, l), l, false, r->dp, l);
    for (int64_t t = 0; t < r->n; t++)
        memset(r->dp + t * l + t, 0, (size_t)(l - t) * sizeof *r->dp);
    scores_backward(r, r->key, r->dp, r->d_read, r->d_written);
}

/*
 * A decay at t is in every product of what was before t with what is at t or behind.  These are, in
 * this order: the state before with the state behind the chunk; what is written before t with that;
 * and, as the header says, all scores of tokens from t on, less those written from t on.
 */
static void
decays_backward(const Room *r, const float *state)
{
    const ExecScan *s = r->work->scan;
    const int64_t k = r->k, n = s->channels ? s->key_dim : 1;
    g_autofree double *sum = g_new0(double, (size_t)n);

    for (int64_t c = 0; c < s->key_dim; c++) {
        double d = (double)r->last[r->n_decays == 1 ? 0 : c] *
                   (double)dot(r->v, state + c * r->v, r->dstate + c * r->v);
        for (int64_t t = 0; t < r->n; t++)
            d += (double)r->key[t * k + c] * (double)r->d_end[t * k + c];
        sum[n == 1 ? 0 : c] += d;
    }
    for (int64_t t = r->n - 1; t >= 0; t--) {
        for (int64_t c = 0; c < s->key_dim; c++) {
            const int64_t at = t * k + c;
            double d = (double)r->q[at] * (double)r->dq[at];
            if (s->delta)
                d += (double)r->key[at] * (double)r->d_read[at];
            sum[n == 1 ? 0 : c] +=
                d - (double)r->key[at] * ((double)r->d_written[at] + (double)r->d_end[at]);
        }
        for (int64_t i = 0; i < n; i++)
            r->work->g->d_decay[decay_at(r, r->begin + t) + i] = (float)sum[i];
    }
}

/* dV, through SiLU where there is one; dU is dF by now. */
static void
store_values(const Room *r)
{
    const ExecScan *s = r->work->scan;
    const Dtype storage = r->work->backend->storage;
    const float skip = skip_of(r);
    double d_skip = 0;

    for (int64_t t = 0; t < r->n; t++) {
        const int64_t at = value_at(r, r->begin + t, s->value_stride);
        float *d = r->du + t * r->v, *x = r->rows, *sigmoid = r->rows + r->v;
        add_scaled(r->v, skip, r->dout + t * r->v, d);
        if (s->skip != NULL)
            d_skip += (double)dot(r->v, r->dout + t * r->v, r->value + t * r->v);
        if (s->silu) {
            exec_row_load(storage, s->v, at, s->value_dim, x);
            exec_row_sigmoid(s->value_dim, x, sigmoid);
            for (int64_t i = 0; i < s->value_dim; i++)
                d[i] *= sigmoid[i] * (1.0f + x[i] * (1.0f - sigmoid[i]));
        }
        exec_row_store(storage, d, s->value_dim, r->work->g->dv, at);
    }
    if (s->skip != NULL)
        r->work->d_skip[r->sequence * s->n_heads + r->head] += d_skip;
}

/* Of out = e Q S + P U, and of U in the state behind the chunk.  P's diagonal has no decays: its part
 * comes last, so that it is not in what decays_backward() takes from each other. */
static void
out_backward(const Room *r, const float *state)
{
    const int64_t k = r->k, v = r->v, l = r->chunk, n = r->n;

    scores(r, r->q, true, r->p);
    multiply(n, v, n, r->p, 1, l, r->dout, v, false, r->du, v);
    scale(n, k, r->n_decays, r->behind, r->key, r->rows);
    multiply(n, v, k, r->rows, k, 1, r->dstate, v, true, r->du, v);
    multiply(n, k, v, r->u, v, 1, turn(r, k, v, r->dstate, k), k, false, r->d_end, k);
    scale(n, k, r->n_decays, r->behind, r->d_end, r->d_end);
    multiply(n, k, v, r->dout, v, 1, turn(r, k, v, state, k), k, false, r->dq, k);
    scale(n, k, r->n_decays, r->before, r->dq, r->dq);
    multiply(n, l, v, r->dout, v, 1, turn(r, n, v, r->u, l), l, false, r->dp, l);
    for (int64_t t = 0; t < n; t++) {
        r->diagonal[t] = r->dp[t * l + t];
        memset(r->dp + t * l + t, 0, (size_t)(l - t) * sizeof *r->dp);
    }
    memset(r->d_written, 0, (size_t)(n * k) * sizeof *r->d_written);
    scores_backward(r, r->q, r->dp, r->dq, r->d_written);
}

/* dstate becomes the gradient of the state before the chunk. */
static void
state_backward(const Room *r)
{
    const int64_t k = r->k, v = r->v;

    for (int64_t c = 0; c < k; c++)
        scale(1, v, 1, r->last + (r->n_decays == 1 ? 0 : c), r->dstate + c * v, r->dstate + c * v);
    scale(r->n, k, r->n_decays, r->before, r->q, r->rows);
    multiply(k, v, r->n, r->rows, 1, k, r->dout, v, true, r->dstate, v);
    if (!r->work->scan->delta)
        return;
    scale(r->n, k, r->n_decays, r->before, r->key, r->rows);
    multiply(k, v, r->n, r->rows, 1, k, r->f, v, true, r->dstate, v);
}

static void
add_key_gradients(const Room *r)
{
    const int64_t k = r->k;

    for (int64_t t = 0; t < r->n; t++) {
        float *dq = r->dq_sum + (r->begin + t) * k, *dk = r->dk_sum + (r->begin + t) * k;
        for (int64_t c = 0, at = t * k; c < k; c++, at++) {
            dq[c] += r->dq[at] + r->diagonal[t] * r->key[at];
            dk[c] += r->d_written[at] + r->d_end[at] + r->diagonal[t] * r->q[at];
            if (r->work->scan->delta)
                dk[c] += r->d_read[at];
        }
    }
}

static void
chunk_backward(const Room *r, const float *state)
{
    const ExecScan *s = r->work->scan;

    for (int64_t t = 0; t < r->n; t++) {
        float *d = r->dout + t * r->v;
        memset(d, 0, (size_t)r->v * sizeof *d);
        exec_row_load(r->work->backend->storage, r->work->g->dout,
                      value_at(r, r->begin + t, s->n_heads * s->value_dim), s->value_dim, d);
    }
    out_backward(r, state);
    written_backward(r);
    for (int64_t i = 0; i < r->n * r->v; i++)
        r->f[i] = -r->du[i];
    if (s->delta)
        read_backward(r, state);
    if (!s->fixed)
        decays_backward(r, state);
    state_backward(r);
    store_values(r);
    add_key_gradients(r);
}

static void
head_backward(Room *r)
{
    const ExecScan *s = r->work->scan;
    const int64_t n_state = r->k * r->v;

    copy_state(r, s->start, r->state, true);
    for (int64_t chunk = 0; chunk + 1 < r->n_chunks; chunk++) {
        float *state = r->state + chunk * n_state;
        load_chunk(r, chunk);
        prepare(r, state);
        advance(r, state, state + n_state);
    }
    copy_state(r, r->work->g->d_state, r->dstate, true);
    for (int64_t chunk = r->n_chunks - 1; chunk >= 0; chunk--) {
        load_chunk(r, chunk);
        prepare(r, r->state + chunk * n_state);
        chunk_backward(r, r->state + chunk * n_state);
    }
    copy_state(r, r->dstate, r->work->g->d_state, false);
}

/* From the gradients of what the recurrence reads to those of q or k: scale, length, SiLU. */
static void
store_keys(Room *r, const void *from, float factor, const float *sum, void *to)
{
    const ExecScan *s = r->work->scan;
    const Dtype storage = r->work->backend->storage;
    float *x = r->rows, *sigmoid = r->rows + r->k, *raw = r->rows + 2 * r->k, *d = r->dq;

    for (int64_t t = 0; t < s->tokens; t++) {
        const int64_t at = row_of(r, t) * s->key_stride + r->key_head * s->key_dim;
        load_row(r, from, at, s->key_dim, r->k, x);
        const float f = length_factor(r, x);
        const float along = s->normalised ? f * f * dot(r->k, x, sum + t * r->k) : 0.0f;
        for (int64_t i = 0; i < s->key_dim; i++)
            d[i] = factor * f * (sum[t * r->k + i] - x[i] * along);
        if (s->silu) {
            exec_row_load(storage, from, at, s->key_dim, raw);
            exec_row_sigmoid(s->key_dim, raw, sigmoid);
            for (int64_t i = 0; i < s->key_dim; i++)
                d[i] *= sigmoid[i] * (1.0f + raw[i] * (1.0f - sigmoid[i]));
        }
        exec_row_store(storage, d, s->key_dim, to, at);
    }
}

/* --- pairs --- */

/* Sets the pointers of @r into @memory, or counts (NULL).  Returns: how many floats that takes. */
static size_t
cut_room(Room *r, float *memory, bool backward)
{
    const int64_t l = r->chunk, k = r->k, v = r->v;
    const int64_t tokens = r->work->scan->tokens;
    const struct {
        float **to;
        int64_t n;
    } parts[] = {
        {&r->q, l * k},
        {&r->key, l * k},
        {&r->value, l * v},
        {&r->a, l * r->n_decays},
        {&r->before, l * r->n_decays},
        {&r->behind, l * r->n_decays},
        {&r->last, r->n_decays},
        {&r->rate, l},
        {&r->between, r->n_decays == 1 ? l * l : 0},
        {&r->p, l * l},
        {&r->read, l * l},
        {&r->f, l * v},
        {&r->u, l * v},
        {&r->rows, MAX(l, 4) * MAX(k, v)},
        {&r->turned, MAX(k, l) * MAX(k, v)},
        {&r->state, (backward ? r->n_chunks : 1) * k * v},
        {&r->dout, backward ? l * v : 0},
        {&r->dq, backward ? l * k : 0},
        {&r->d_written, backward ? l * k : 0},
        {&r->d_read, backward ? l * k : 0},
        {&r->d_end, backward ? l * k : 0},
        {&r->diagonal, backward ? l : 0},
        {&r->du, backward ? l * v : 0},
        {&r->dp, backward ? l * l : 0},
        {&r->dstate, backward ? k * v : 0},
        {&r->dq_sum, backward ? tokens * k : 0},
        {&r->dk_sum, backward ? tokens * k : 0},
    };
    size_t n = 0;

    for (size_t i = 0; i < G_N_ELEMENTS(parts); i++) {
        if (memory != NULL)
            *parts[i].to = memory + n;
        n += (size_t)((parts[i].n + EXEC_LANES - 1) / EXEC_LANES * EXEC_LANES);
    }
    return n;
}

static int64_t
padded(int64_t n)
{
    return (n + EXEC_LANES - 1) / EXEC_LANES * EXEC_LANES;
}

static void
pairs(int64_t begin, int64_t end, void *user_data)
{
    const Work *work = user_data;
    const ExecScan *s = work->scan;
    const int64_t group = s->n_heads / s->n_key_heads;
    Room r = {.work = work, .k = padded(s->key_dim), .v = padded(s->value_dim)};

    r.n_decays = s->channels ? r.k : 1;
    r.chunk = s->channels ? CHANNEL_CHUNK : CHUNK;
    r.n_chunks = (s->tokens + r.chunk - 1) / r.chunk;
    g_autofree float *memory = g_new(float, cut_room(&r, NULL, work->g != NULL));
    cut_room(&r, memory, work->g != NULL);
    for (int64_t pair = begin; pair < end; pair++) {
        const size_t n_bytes = (size_t)(s->tokens * r.k) * sizeof(float);
        r.sequence = pair / s->n_key_heads;
        r.key_head = pair % s->n_key_heads;
        if (work->g != NULL) {
            memset(r.dq_sum, 0, n_bytes);
            memset(r.dk_sum, 0, n_bytes);
        }
        for (int64_t i = 0; i < group; i++) {
            r.head = r.key_head * group + i;
            if (work->g == NULL)
                head_forward(&r);
            else
                head_backward(&r);
        }
        if (work->g == NULL)
            continue;
        store_keys(&r, s->q, s->scale, r.dq_sum, work->g->dq);
        store_keys(&r, s->k, 1.0f, r.dk_sum, work->g->dk);
    }
}

void
exec_host_scan_forward(ExecBackend *backend, const ExecScan *scan)
{
    if (scan->a_log != NULL)
        exec_host_scan_channels(backend, scan, NULL);
    else
        exec_share_out(backend->n_threads, scan->sequences * scan->n_key_heads, pairs,
                       &(Work){.backend = backend, .scan = scan});
}

void
exec_host_scan_backward(ExecBackend *backend, const ExecScan *scan, const ExecScanGradients *g)
{
    const int64_t n = scan->sequences * scan->n_heads;

    if (scan->a_log != NULL) {
        exec_host_scan_channels(backend, scan, g);
        return;
    }
    g_autofree double *d_skip = g_new0(double, (size_t)n);
    exec_share_out(backend->n_threads, scan->sequences * scan->n_key_heads, pairs,
                   &(Work){backend, scan, g, d_skip});
    for (int64_t i = 0; scan->skip != NULL && i < n; i++)
        g->d_skip[i % scan->n_heads] += (float)d_skip[i];
}
