/* Decays and rates, and the gate and norm of a scan's result: those slots of recurrence.h, for
 * backends in host memory. */
#include <math.h>

#include "executor/device/cores.h"
#include "executor/device/recurrence_host.h"

/* Threads share out rows, or blocks of so many columns, whose sums over rows are taken in order. */
#define BLOCK 64

static int64_t
n_blocks(int64_t cols)
{
    return (cols + BLOCK - 1) / BLOCK;
}

/* --- decays and rates --- */

typedef struct {
    ExecBackend *backend;
    const ExecGates *gates;
    const ExecGatesGradients *g; /* NULL: forward */
    double *d_a_log;             /* [n_heads * n_channels] backward, with a_log: by column */
} GatesWork;

static int64_t
gate_columns(const ExecGates *gates)
{
    return gates->n_heads * gates->n_channels;
}

/* exp(a_log) of the block's columns, 1 without it. */
static void
load_factors(const GatesWork *work, int64_t first, int64_t n, float *factor)
{
    const ExecGates *gates = work->gates;

    for (int64_t i = 0; i < n; i++) {
        factor[i] = 1.0f;
        if (gates->a_log == NULL)
            continue;
        exec_row_load(work->backend->storage, gates->a_log, (first + i) / gates->n_channels, 1,
                      &factor[i]);
        factor[i] = expf(factor[i]);
    }
}

static void
steps_forward(const GatesWork *work, int64_t first, int64_t n)
{
    const ExecGates *gates = work->gates;
    const int64_t cols = gate_columns(gates);
    float x[BLOCK], bias[BLOCK], factor[BLOCK];

    load_factors(work, first, n, factor);
    exec_row_load(work->backend->storage, gates->bias, first, n, bias);
    for (int64_t row = 0; row < gates->rows; row++) {
        exec_row_load(work->backend->storage, gates->x, row * gates->stride + first, n, x);
        for (int64_t i = 0; i < n; i++) {
            const float v = x[i] + bias[i];
            const float step = fmaxf(v, 0.0f) + log1pf(expf(-fabsf(v)));
            if (gates->a_log != NULL)
                gates->decay[row * cols + first + i] = -factor[i] * step;
            if (gates->x_rate == NULL)
                gates->rate[row * cols + first + i] = step;
        }
    }
}

/* softplus' derivative is sigmoid(v) = 1 - exp(-step). */
static void
steps_backward(const GatesWork *work, int64_t first, int64_t n)
{
    const ExecGates *gates = work->gates;
    const ExecGatesGradients *g = work->g;
    const int64_t cols = gate_columns(gates);
    float dx[BLOCK], factor[BLOCK];
    double d_bias[BLOCK] = {0}, d_a_log[BLOCK] = {0};

    load_factors(work, first, n, factor);
    for (int64_t row = 0; row < gates->rows; row++) {
        for (int64_t i = 0; i < n; i++) {
            const int64_t at = row * cols + first + i;
            const float step =
                gates->a_log != NULL ? -gates->decay[at] / factor[i] : gates->rate[at];
            float d_step = gates->x_rate == NULL ? g->d_rate[at] : 0.0f;
            if (gates->a_log != NULL) {
                d_step -= factor[i] * g->d_decay[at];
                d_a_log[i] += (double)g->d_decay[at] * (double)gates->decay[at];
            }
            dx[i] = d_step * -expm1f(-step);
            d_bias[i] += (double)dx[i];
        }
        exec_row_store(work->backend->storage, dx, n, g->dx, row * gates->stride + first);
    }
    for (int64_t i = 0; i < n; i++) {
        g->d_bias[first + i] += (float)d_bias[i];
        if (gates->a_log != NULL)
            work->d_a_log[first + i] = d_a_log[i];
    }
}

static void
step_blocks(int64_t begin, int64_t end, void *user_data)
{
    const GatesWork *work = user_data;

    for (int64_t block = begin; block < end; block++) {
        const int64_t first = block * BLOCK, n = MIN(BLOCK, gate_columns(work->gates) - first);
        if (work->g == NULL)
            steps_forward(work, first, n);
        else
            steps_backward(work, first, n);
    }
}

void
exec_host_gates_forward(ExecBackend *backend, const ExecGates *gates)
{
    GatesWork work = {backend, gates, NULL, NULL};

    exec_share_out(backend->n_threads, n_blocks(gate_columns(gates)), step_blocks, &work);
    for (int64_t row = 0; gates->x_rate != NULL && row < gates->rows; row++) {
        float *rate = gates->rate + row * gates->n_heads;
        exec_row_load(backend->storage, gates->x_rate, row * gates->rate_stride, gates->n_heads,
                      rate);
        exec_row_sigmoid(gates->n_heads, rate, rate);
    }
}

void
exec_host_gates_backward(ExecBackend *backend, const ExecGates *gates, const ExecGatesGradients *g)
{
    const int64_t cols = gate_columns(gates);
    g_autofree double *d_a_log = g_new0(double, (size_t)cols);
    g_autofree float *d = g_new(float, (size_t)gates->n_heads);
    GatesWork work = {backend, gates, g, d_a_log};

    exec_share_out(backend->n_threads, n_blocks(cols), step_blocks, &work);
    for (int64_t head = 0; gates->a_log != NULL && head < gates->n_heads; head++) {
        double sum = 0;
        for (int64_t i = 0; i < gates->n_channels; i++)
            sum += d_a_log[head * gates->n_channels + i];
        g->d_a_log[head] += (float)sum;
    }
    for (int64_t row = 0; gates->x_rate != NULL && row < gates->rows; row++) {
        for (int64_t head = 0; head < gates->n_heads; head++) {
            const float rate = gates->rate[row * gates->n_heads + head];
            d[head] = g->d_rate[row * gates->n_heads + head] * rate * (1.0f - rate);
        }
        exec_row_store(backend->storage, d, gates->n_heads, g->dx_rate, row * gates->rate_stride);
    }
}

/* --- the gate and norm of a result --- */

/* Up to BLOCK columns of a row, of one group. */
typedef struct {
    float x[BLOCK], z[BLOCK];
    float act[BLOCK], slope[BLOCK]; /* of z: what the gate is, and its derivative */
    float gain[BLOCK];
    float normed[BLOCK]; /* what the norm reads: x, or x act(z) */
} Piece;

typedef struct {
    ExecBackend *backend;
    const ExecResult *gate;
    const ExecResultGradients *g;
    const void *dy;
    void *y;
    float *sums;
    double *d_gain; /* [cols] */
} GateWork;

static void
activate(ExecResultGate kind, int64_t n, Piece *p)
{
    if (kind != EXEC_GATE_PLAIN)
        exec_row_sigmoid(n, p->z, p->act);
    for (int64_t i = 0; i < n; i++) {
        /* NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Assign): exec_row_sigmoid() fills act */
        const float s = kind == EXEC_GATE_PLAIN ? 1.0f : p->act[i]; /* the sigmoid */
        switch (kind) {
        case EXEC_GATE_PLAIN:
            /* NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Assign): exec_row_load() fills z */
            p->act[i] = p->z[i];
            p->slope[i] = 1.0f;
            break;
        case EXEC_GATE_SIGMOID:
            p->slope[i] = s * (1.0f - s);
            break;
        case EXEC_GATE_SILU:
            p->act[i] = p->z[i] * s;
            p->slope[i] = s * (1.0f + p->z[i] * (1.0f - s));
            break;
        }
    }
}

/* Columns [first, first + n) of @row. */
static void
load_piece(const GateWork *work, int64_t row, int64_t first, int64_t n, Piece *p)
{
    const ExecResult *gate = work->gate;
    const Dtype storage = work->backend->storage;

    exec_row_load(storage, gate->x, row * gate->cols + first, n, p->x);
    exec_row_load(storage, gate->z, row * gate->stride + first, n, p->z);
    activate(gate->kind, n, p);
    if (gate->n_groups > 0)
        exec_row_load(storage, gate->gain, first % gate->gain_n, n, p->gain);
    for (int64_t i = 0; i < n; i++)
        p->normed[i] = gate->gate_first ? p->x[i] * p->act[i] : p->x[i];
}

/* 1 / sqrt(mean square + epsilon) of group @group of @row. */
static float
root_of(const ExecResult *gate, int64_t row, int64_t group)
{
    return 1.0f / sqrtf(gate->squares[row * gate->n_groups + group] / (float)gate->group_cols +
                        gate->epsilon);
}

static int64_t
group_width(const ExecResult *gate)
{
    return gate->n_groups > 0 ? gate->cols / gate->n_groups : gate->cols;
}

/* The sums over each group of row after row: of squares, or with @dy of dot products. */
static void
sum_rows(int64_t begin, int64_t end, void *user_data)
{
    const GateWork *work = user_data;
    const ExecResult *gate = work->gate;
    const int64_t width = group_width(gate);
    float dy[BLOCK];
    Piece p;

    for (int64_t at = begin * gate->n_groups; at < end * gate->n_groups; at++) {
        const int64_t row = at / gate->n_groups, group = at % gate->n_groups;
        double sum = 0;
        for (int64_t c = 0; c < width; c += BLOCK) {
            const int64_t first = group * width + c, n = MIN(BLOCK, width - c);
            load_piece(work, row, first, n, &p);
            if (work->dy != NULL)
                exec_row_load(work->backend->storage, work->dy, row * gate->cols + first, n, dy);
            for (int64_t i = 0; i < n; i++) {
                const float other = work->dy == NULL   ? p.normed[i]
                                    : gate->gate_first ? dy[i] * p.gain[i]
                                                       : dy[i] * p.act[i] * p.gain[i];
                sum += (double)p.normed[i] * (double)other;
            }
        }
        work->sums[at] = (float)sum;
    }
}

static void
gate_rows(int64_t begin, int64_t end, void *user_data)
{
    const GateWork *work = user_data;
    const ExecResult *gate = work->gate;
    const int64_t width = group_width(gate);
    Piece p;

    for (int64_t row = begin; row < end; row++)
        for (int64_t first = 0, n; first < gate->cols; first += n) {
            n = MIN(BLOCK, width - first % width);
            const float root = gate->n_groups > 0 ? root_of(gate, row, first / width) : 1.0f;
            load_piece(work, row, first, n, &p);
            for (int64_t i = 0; i < n; i++) {
                if (gate->n_groups > 0)
                    p.normed[i] *= root * p.gain[i];
                if (!gate->gate_first)
                    p.normed[i] *= p.act[i];
            }
            exec_row_store(work->backend->storage, p.normed, n, work->y, row * gate->cols + first);
        }
}

/* Columns [first, first + n), which are in one group, of all rows. */
static void
gate_backward(const GateWork *work, int64_t first, int64_t n)
{
    const ExecResult *gate = work->gate;
    const Dtype storage = work->backend->storage;
    const int64_t group = first / group_width(gate);
    float d[BLOCK];
    Piece p;

    for (int64_t row = 0; row < gate->rows; row++) {
        const float root = gate->n_groups > 0 ? root_of(gate, row, group) : 1.0f;
        const float mean = gate->n_groups > 0 ? work->g->dots[row * gate->n_groups + group] * root *
                                                    root / (float)gate->group_cols
                                              : 0.0f;
        load_piece(work, row, first, n, &p);
        exec_row_load(storage, work->dy, row * gate->cols + first, n, d);
        for (int64_t i = 0; i < n; i++) {
            const float gain = gate->n_groups > 0 ? p.gain[i] : 1.0f;
            const float result = p.normed[i] * root * gain;
            float d_act = d[i] * result;
            d[i] *= gate->gate_first ? 1.0f : p.act[i];
            if (gate->n_groups > 0) {
                work->d_gain[first + i] += (double)d[i] * (double)(p.normed[i] * root);
                d[i] = root * (d[i] * gain - p.normed[i] * mean);
            }
            if (gate->gate_first) {
                d_act = d[i] * p.x[i];
                d[i] *= p.act[i];
            }
            p.slope[i] *= d_act;
        }
        exec_row_store(storage, p.slope, n, work->g->dz, row * gate->stride + first);
        exec_row_store(storage, d, n, work->g->dx, row * gate->cols + first);
    }
}

/* Pieces of groups; @begin and @end count pieces. */
static void
gate_pieces(int64_t begin, int64_t end, void *user_data)
{
    const GateWork *work = user_data;
    const int64_t width = group_width(work->gate), n_pieces = n_blocks(width);

    for (int64_t at = begin; at < end; at++) {
        const int64_t c = at % n_pieces * BLOCK;
        gate_backward(work, at / n_pieces * width + c, MIN(BLOCK, width - c));
    }
}

void
exec_host_result_squares(ExecBackend *backend, const ExecResult *gate)
{
    exec_share_out(backend->n_threads, gate->rows, sum_rows,
                   &(GateWork){.backend = backend, .gate = gate, .sums = gate->squares});
}

void
exec_host_result_dots(ExecBackend *backend, const ExecResult *gate, const void *dy, float *dots)
{
    exec_share_out(backend->n_threads, gate->rows, sum_rows,
                   &(GateWork){.backend = backend, .gate = gate, .dy = dy, .sums = dots});
}

void
exec_host_result_forward(ExecBackend *backend, const ExecResult *gate, void *y)
{
    exec_share_out(backend->n_threads, gate->rows, gate_rows,
                   &(GateWork){.backend = backend, .gate = gate, .y = y});
}

void
exec_host_result_backward(ExecBackend *backend, const ExecResult *gate,
                          const ExecResultGradients *g)
{
    const int64_t width = group_width(gate);
    g_autofree double *d_gain = g_new0(double, (size_t)gate->cols);

    exec_share_out(
        backend->n_threads, gate->cols / width * n_blocks(width), gate_pieces,
        &(GateWork){.backend = backend, .gate = gate, .g = g, .dy = g->dy, .d_gain = d_gain});
    for (int64_t i = 0; gate->n_groups > 0 && i < gate->cols; i++)
        g->d_gain[i % gate->gain_n] += (float)d_gain[i];
}
