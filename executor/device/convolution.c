/* The short convolutions of recurrence.h, for backends in host memory. */
#include "executor/device/cores.h"
#include "executor/device/recurrence_host.h"
#include "executor/device/vector.h"

/* Threads share out blocks of so many channels, which are computed by themselves. */
#define BLOCK 64

typedef struct {
    ExecBackend *backend;
    const ExecConvolution *c;
    const ExecConvolutionGradients *g; /* NULL: forward */
} Work;

/* A block's channels of one sequence: rows [-(width - 1), tokens) of the gated input and of its
 * gradient, and the block's weights. */
typedef struct {
    int64_t first, n; /* channels */
    float *x, *dx;
    float *weight, *d_weight; /* [width, n] */
    float bias[BLOCK], d_bias[BLOCK];
} Block;

EXEC_CLONES void
exec_row_sigmoid(int64_t n, const float *x, float *y)
{
    for (int64_t i = 0; i < n; i += EXEC_LANES) {
        ExecVec v;
        exec_vec_load(&v, x + i, n - i);
        v = -v;
        exec_vec_exp(&v);
        v = 1.0f / (1.0f + v);
        exec_vec_store(&v, y + i, n - i);
    }
}

/* y += w x, element by element. */
EXEC_CLONES EXEC_VECTORIZE static void
add_products(int64_t n, const float *w, const float *x, float *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += w[i] * x[i];
}

static int64_t
before_at(const ExecConvolution *c, int64_t row, int64_t sequence)
{
    return (row * c->sequences + sequence) * c->channels;
}

static int64_t
x_at(const ExecConvolution *c, int64_t token, int64_t sequence)
{
    return (token * c->sequences + sequence) * c->stride;
}

/* Reads the block's rows of a sequence. */
static void
load_rows(const Work *work, const Block *b, int64_t sequence)
{
    const ExecConvolution *c = work->c;
    const Dtype storage = work->backend->storage;
    const size_t n_bytes = (size_t)b->n * sizeof(float);
    float *x = b->x, gate[BLOCK];

    for (int64_t row = 0; row < c->width - 1; row++, x += b->n) {
        memset(x, 0, n_bytes);
        if (c->before != NULL)
            memcpy(x, c->before + before_at(c, row, sequence) + b->first, n_bytes);
    }
    for (int64_t t = 0; t < c->tokens; t++, x += b->n) {
        const int64_t at = x_at(c, t, sequence) + b->first;
        exec_row_load(storage, c->x, at, b->n, x);
        if (c->gate == NULL)
            continue;
        exec_row_load(storage, c->gate, at, b->n, gate);
        for (int64_t i = 0; i < b->n; i++)
            x[i] *= gate[i];
    }
}

/* The sum at token @t, and its sigmoid where there is SiLU. */
static void
sum_at(const ExecConvolution *c, const Block *b, int64_t t, float *sum, float *sigmoid)
{
    memcpy(sum, b->bias, (size_t)b->n * sizeof *sum);
    for (int64_t j = 0; j < c->width; j++)
        add_products(b->n, b->weight + j * b->n, b->x + (t + j) * b->n, sum);
    if (c->silu)
        exec_row_sigmoid(b->n, sum, sigmoid);
}

static void
forward(const Work *work, const Block *b, int64_t sequence)
{
    const ExecConvolution *c = work->c;
    float sum[BLOCK], sigmoid[BLOCK];

    for (int64_t t = 0; t < c->tokens; t++) {
        sum_at(c, b, t, sum, sigmoid);
        for (int64_t i = 0; c->silu && i < b->n; i++)
            sum[i] *= sigmoid[i];
        exec_row_store(work->backend->storage, sum, b->n, c->y,
                       (t * c->sequences + sequence) * c->channels + b->first);
    }
    for (int64_t row = 0; c->after != NULL && row < c->width - 1; row++)
        memcpy(c->after + before_at(c, row, sequence) + b->first, b->x + (c->tokens + row) * b->n,
               (size_t)b->n * sizeof(float));
}

/* Writes the gradients of x and of its gate. */
static void
store_gradients(const Work *work, const Block *b, int64_t t, int64_t sequence)
{
    const ExecConvolution *c = work->c;
    const Dtype storage = work->backend->storage;
    const int64_t at = x_at(c, t, sequence) + b->first;
    const float *d = b->dx + (c->width - 1 + t) * b->n;
    float x[BLOCK], gate[BLOCK];

    if (c->gate == NULL) {
        exec_row_store(storage, d, b->n, work->g->dx, at);
        return;
    }
    exec_row_load(storage, c->x, at, b->n, x);
    exec_row_load(storage, c->gate, at, b->n, gate);
    for (int64_t i = 0; i < b->n; i++) {
        x[i] *= d[i];
        gate[i] *= d[i];
    }
    exec_row_store(storage, x, b->n, work->g->d_gate, at);
    exec_row_store(storage, gate, b->n, work->g->dx, at);
}

static void
backward(const Work *work, Block *b, int64_t sequence)
{
    const ExecConvolution *c = work->c;
    float *d_state = work->g->d_state;
    const size_t n_bytes = (size_t)b->n * sizeof(float);
    float sum[BLOCK], sigmoid[BLOCK], d[BLOCK];

    memset(b->dx, 0, (size_t)(c->tokens + c->width - 1) * n_bytes);
    for (int64_t row = 0; d_state != NULL && row < c->width - 1; row++)
        memcpy(b->dx + (c->tokens + row) * b->n, d_state + before_at(c, row, sequence) + b->first,
               n_bytes);
    for (int64_t t = 0; t < c->tokens; t++) {
        exec_row_load(work->backend->storage, work->g->dy,
                      (t * c->sequences + sequence) * c->channels + b->first, b->n, d);
        if (c->silu)
            sum_at(c, b, t, sum, sigmoid);
        for (int64_t i = 0; c->silu && i < b->n; i++)
            d[i] *= sigmoid[i] * (1.0f + sum[i] * (1.0f - sigmoid[i]));
        for (int64_t i = 0; i < b->n; i++)
            b->d_bias[i] += d[i];
        for (int64_t j = 0; j < c->width; j++) {
            add_products(b->n, d, b->x + (t + j) * b->n, b->d_weight + j * b->n);
            add_products(b->n, d, b->weight + j * b->n, b->dx + (t + j) * b->n);
        }
    }
    for (int64_t t = 0; t < c->tokens; t++)
        store_gradients(work, b, t, sequence);
    for (int64_t row = 0; d_state != NULL && row < c->width - 1; row++)
        memcpy(d_state + before_at(c, row, sequence) + b->first, b->dx + row * b->n, n_bytes);
}

static void
load_weights(const Work *work, Block *b)
{
    const ExecConvolution *c = work->c;

    memset(b->bias, 0, sizeof b->bias);
    if (c->bias != NULL)
        exec_row_load(work->backend->storage, c->bias, b->first, b->n, b->bias);
    for (int64_t i = 0; c->weight == NULL && i < b->n; i++)
        b->weight[i] = 1.0f;
    for (int64_t j = 0; c->weight != NULL && j < c->width; j++)
        exec_row_load(work->backend->storage, c->weight, j * c->channels + b->first, b->n,
                      b->weight + j * b->n);
}

static void
add_weight_gradients(const Work *work, const Block *b)
{
    const ExecConvolution *c = work->c;

    for (int64_t j = 0; c->weight != NULL && j < c->width; j++)
        for (int64_t i = 0; i < b->n; i++)
            work->g->d_weight[j * c->channels + b->first + i] += b->d_weight[j * b->n + i];
    for (int64_t i = 0; c->bias != NULL && i < b->n; i++)
        work->g->d_bias[b->first + i] += b->d_bias[i];
}

static void
blocks(int64_t begin, int64_t end, void *user_data)
{
    const Work *work = user_data;
    const ExecConvolution *c = work->c;
    const size_t n = (size_t)((c->tokens + c->width - 1) * BLOCK);
    const size_t n_weights = (size_t)(c->width * BLOCK);
    g_autofree float *memory = g_new(float, 2 * (n + n_weights));

    for (int64_t i = begin; i < end; i++) {
        Block b = {
            .first = i * BLOCK,
            .n = MIN(BLOCK, c->channels - i * BLOCK),
            .x = memory,
            .dx = memory + n,
            .weight = memory + 2 * n,
            .d_weight = memory + 2 * n + n_weights,
        };
        load_weights(work, &b);
        memset(b.d_weight, 0, n_weights * sizeof *b.d_weight);
        for (int64_t sequence = 0; sequence < c->sequences; sequence++) {
            load_rows(work, &b, sequence);
            if (work->g == NULL)
                forward(work, &b, sequence);
            else
                backward(work, &b, sequence);
        }
        if (work->g != NULL)
            add_weight_gradients(work, &b);
    }
}

void
exec_host_convolve_forward(ExecBackend *backend, const ExecConvolution *c)
{
    exec_host_convolve_backward(backend, c, NULL);
}

void
exec_host_convolve_backward(ExecBackend *backend, const ExecConvolution *c,
                            const ExecConvolutionGradients *g)
{
    exec_share_out(backend->n_threads, (c->channels + BLOCK - 1) / BLOCK, blocks,
                   &(Work){backend, c, g});
}
