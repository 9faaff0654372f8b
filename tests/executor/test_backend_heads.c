/* Tests of the slots of unusual attention (executor/device/backend.h): against their definitions in
 * double, and against differences of these. */
#include "executor/device/backend.h"

#include "tests/executor/tensors.h"

/* Backends, and how far what they store may be from what was computed. */
static const struct {
    const char *name;
    Dtype storage;
    double tolerance;
} devices[] = {
    {"reference", DTYPE_FP32, 2e-6},
    {"cpu", DTYPE_FP32, 4e-6},
    {"reference", DTYPE_BF16, 0x1p-7},
    {"cpu", DTYPE_BF16, 0x1p-7},
};

static ExecBackend *
open_device(size_t i)
{
    g_autoptr(GError) error = NULL;
    ExecBackend *backend = exec_backend_open(devices[i].name, 0, devices[i].storage, &error);

    if (backend == NULL)
        g_test_skip(error->message);
    return backend;
}

/* --- tensors that a definition reads as doubles, and a backend in its storage --- */

typedef struct {
    int64_t n;
    double *x;        /* what the backend has, widened */
    double *gradient; /* by differences */
    void *stored;     /* of the backend */
} Input;

static Input
input_new(ExecBackend *backend, const char *name, int64_t n, float deviation)
{
    g_autofree float *x = numbers(name, n, deviation);
    Input input = {.n = n, .x = g_new(double, n), .gradient = g_new(double, n)};

    input.stored = g_malloc0((size_t)exec_storage_bytes(backend, n));
    backend->ops->to_storage(backend, n, x, input.stored);
    backend->ops->from_storage(backend, n, input.stored, x);
    for (int64_t i = 0; i < n; i++)
        input.x[i] = (double)x[i];
    return input;
}

static void
input_clear(Input *input)
{
    g_free(input->x);
    g_free(input->gradient);
    g_free(input->stored);
}

/* Central differences of sum(@weights y), y [n_y] as @define computes it of @inputs. */
static void
differentiate(void (*define)(const void *shape, const Input *inputs, double *y), const void *shape,
              Input *inputs, size_t n_inputs, const double *weights, int64_t n_y)
{
    static const double h = 1e-4;
    g_autofree double *y = g_new(double, n_y);

    for (size_t k = 0; k < n_inputs; k++)
        for (int64_t i = 0; i < inputs[k].n; i++) {
            const double x = inputs[k].x[i];
            inputs[k].gradient[i] = 0;
            for (int sign = -1; sign <= 1; sign += 2) {
                inputs[k].x[i] = x + sign * h;
                define(shape, inputs, y);
                for (int64_t j = 0; j < n_y; j++)
                    inputs[k].gradient[i] += sign * weights[j] * y[j] / (2 * h);
            }
            inputs[k].x[i] = x;
        }
}

/* @actual is stored if @stored, else fp32.  Root mean squares are compared; what should be all zeros
 * may be as far off as what is about 1 / 10. */
static void
check_close(ExecBackend *backend, size_t device, const void *actual, bool stored,
            const double *expected, int64_t n)
{
    g_autofree float *a = g_new(float, (size_t)n);
    double error = 0, norm = 0;

    if (stored)
        backend->ops->from_storage(backend, n, actual, a);
    else
        memcpy(a, actual, (size_t)n * sizeof *a);
    for (int64_t i = 0; i < n; i++) {
        error += pow((double)a[i] - expected[i], 2) / (double)n;
        norm += pow(expected[i], 2) / (double)n;
    }
    g_assert_cmpfloat(sqrt(error), <=, devices[device].tolerance * fmax(sqrt(norm), 0.1));
}

/* --- attention --- */

typedef struct {
    const char *name;
    int64_t sequences, heads, kv_heads, qk_dim, v_dim, tokens, context, window, chunk;
    float scale, cap;
    bool alibi, sink;
} Case;

static const Case cases[] = {
    {"plain", 2, 2, 1, 4, 4, 5, 3, 0, 0, 0.5f, 0, false, false},
    {"window", 1, 2, 2, 3, 3, 7, 4, 3, 0, 0.6f, 0, false, false},
    {"window of one", 1, 1, 1, 4, 4, 3, 2, 1, 0, 0.5f, 0, false, false},
    {"window wider than all", 1, 1, 1, 4, 4, 3, 2, 99, 0, 0.5f, 0, false, false},
    {"chunk", 2, 2, 2, 3, 3, 7, 3, 0, 4, 0.6f, 0, false, false},
    {"window in chunk", 1, 1, 1, 3, 3, 9, 1, 2, 5, 0.6f, 0, false, false},
    {"values", 1, 4, 2, 6, 3, 4, 2, 0, 0, 0.4f, 0, false, false},
    {"cap", 1, 2, 1, 4, 4, 6, 2, 0, 0, 0.5f, 1.5f, false, false},
    {"sinks", 2, 4, 2, 4, 4, 4, 3, 0, 0, 0.5f, 0, false, true},
    {"slopes", 1, 2, 2, 4, 4, 6, 1, 0, 0, 0.5f, 0, true, false},
    {"all", 2, 4, 2, 5, 3, 7, 6, 5, 6, 0.7f, 2.0f, true, true},
};

/* Slopes of the second half of eight heads, and of the last two of three, from the paper's table:
 * 1/2, 1/4, ..., 1/256; and 1/16, 1/256, 1/4. */
static const double slopes[] = {1.0 / 32, 1.0 / 64, 1.0 / 128, 1.0 / 256};
static const double slopes_of_three[] = {1.0 / 256, 1.0 / 4};

/* softmax over the keys of row t that are in its window and chunk, and the sink, times V. */
static void
define_attention(const void *shape, const Input *in, double *out)
{
    const Case *c = shape;
    const int64_t kv_width = c->kv_heads * (c->qk_dim + c->v_dim);

    for (int64_t t = 0; t < c->tokens; t++)
        for (int64_t b = 0; b < c->sequences; b++)
            for (int64_t h = 0; h < c->heads; h++) {
                const int64_t row = (t * c->sequences + b) * c->heads + h, own = c->context + t;
                const int64_t kv_head = h * c->kv_heads / c->heads;
                double sum = c->sink ? exp(in[2].x[h]) : 0;
                for (int64_t i = 0; i < c->v_dim; i++)
                    out[row * c->v_dim + i] = 0;
                for (int64_t j = 0; j <= own; j++) {
                    const double *kv = in[1].x + (j * c->sequences + b) * kv_width;
                    double s = 0;
                    if ((c->window > 0 && own - j >= c->window) ||
                        (c->chunk > 0 && j / c->chunk != own / c->chunk))
                        continue;
                    for (int64_t i = 0; i < c->qk_dim; i++)
                        s += in[0].x[row * c->qk_dim + i] * kv[kv_head * c->qk_dim + i];
                    s *= (double)c->scale;
                    if (c->cap > 0)
                        s = (double)c->cap * tanh(s / (double)c->cap);
                    if (c->alibi)
                        s -= (c->heads == 2 ? slopes_of_three : slopes)[h] * (double)(own - j);
                    sum += exp(s);
                    for (int64_t i = 0; i < c->v_dim; i++)
                        out[row * c->v_dim + i] +=
                            exp(s) * kv[c->kv_heads * c->qk_dim + kv_head * c->v_dim + i];
                }
                for (int64_t i = 0; i < c->v_dim; i++)
                    out[row * c->v_dim + i] /= sum;
            }
}

static ExecAttention
attention_of(ExecBackend *backend, const Case *c, const void *q, const void *kv, const void *sink,
             void *out, float *lse)
{
    return (ExecAttention){
        .sequences = c->sequences,
        .n_heads = c->heads,
        .n_kv_heads = c->kv_heads,
        .head_dim = c->qk_dim,
        .v_dim = c->v_dim,
        .tokens = c->tokens,
        .context = c->context,
        .scale = c->scale,
        .q = q,
        .k = kv,
        .v = exec_at(backend, kv, c->kv_heads * c->qk_dim),
        .kv_stride = c->kv_heads * (c->qk_dim + c->v_dim),
        .out = out,
        .lse = lse,
        .window = c->window,
        .chunk = c->chunk,
        .cap = c->cap,
        .alibi_heads = !c->alibi       ? 0
                       : c->heads == 2 ? 3
                                       : 8,
        .first_head = c->heads == 2 ? 1 : 4,
        .sink = c->sink ? sink : NULL,
    };
}

static void
check_attention(ExecBackend *backend, size_t device, const Case *c)
{
    const int64_t heads = c->tokens * c->sequences * c->heads;
    const int64_t n_kv = (c->context + c->tokens) * c->sequences * c->kv_heads;
    Input in[] = {input_new(backend, "q", heads * c->qk_dim, 1.5f),
                  input_new(backend, "kv", n_kv * (c->qk_dim + c->v_dim), 1),
                  input_new(backend, "sink", c->heads, 1)};
    Input dout = input_new(backend, "dout", heads * c->v_dim, 1);
    g_autofree double *y = g_new(double, dout.n);
    g_autofree void *out = g_malloc0((size_t)exec_storage_bytes(backend, dout.n));
    g_autofree void *dq = g_malloc0((size_t)exec_storage_bytes(backend, in[0].n));
    g_autofree float *lse = g_new(float, (size_t)heads), *dkv = g_new0(float, (size_t)in[1].n);
    float dsink[4] = {0};
    const ExecAttention a =
        attention_of(backend, c, in[0].stored, in[1].stored, in[2].stored, out, lse);

    g_test_message("%s on %s in %s", c->name, devices[device].name, dtype_names[backend->storage]);
    backend->ops->attention_forward(backend, &a);
    define_attention(c, in, y);
    check_close(backend, device, out, true, y, dout.n);
    backend->ops->attention_backward(backend, &a,
                                     &(ExecAttentionGradients){.dout = dout.stored,
                                                               .dq = dq,
                                                               .dk = dkv,
                                                               .dv = dkv + c->kv_heads * c->qk_dim,
                                                               .sums = true,
                                                               .dsink = c->sink ? dsink : NULL});
    differentiate(define_attention, c, in, 3, dout.x, dout.n);
    check_close(backend, device, dq, true, in[0].gradient, in[0].n);
    /* Of bf16 the output's rounding is in the row's sum of gradient times output. */
    check_close(backend, device, dkv, false, in[1].gradient, in[1].n);
    if (c->sink)
        check_close(backend, device, dsink, false, in[2].gradient, in[2].n);
    for (size_t i = 0; i < G_N_ELEMENTS(in); i++)
        input_clear(&in[i]);
    input_clear(&dout);
}

static void
test_attention_is_its_definition(void)
{
    for (size_t device = 0; device < G_N_ELEMENTS(devices); device++) {
        g_autoptr(ExecBackend) backend = open_device(device);
        for (size_t i = 0; backend != NULL && i < G_N_ELEMENTS(cases); i++)
            check_attention(backend, device, &cases[i]);
    }
}

/* Across blocks of the cpu backend, against the reference.  What is before the first key that the
 * slice sees may be anything: NaN must not spread. */
static void
test_blocks_equal_reference(void)
{
    static const Case large[] = {
        {"window", 1, 2, 1, 8, 8, 150, 70, 33, 0, 0.35f, 0, false, false},
        {"chunk", 2, 2, 2, 8, 4, 200, 90, 0, 70, 0.35f, 0, false, true},
        {"cap", 1, 2, 1, 16, 16, 130, 5, 0, 0, 0.25f, 3.0f, true, true},
        {"all", 1, 4, 2, 16, 8, 170, 100, 64, 96, 0.25f, 3.0f, true, true},
    };
    g_autoptr(ExecBackend) reference = open_or_skip("reference");
    g_autoptr(ExecBackend) cpu = open_or_skip("cpu");

    for (size_t i = 0; cpu != NULL && i < G_N_ELEMENTS(large); i++) {
        const Case *c = &large[i];
        const int64_t heads = c->tokens * c->sequences * c->heads;
        const int64_t n_q = heads * c->qk_dim, n_out = heads * c->v_dim;
        const int64_t row = c->sequences * c->kv_heads * (c->qk_dim + c->v_dim);
        const int64_t n_kv = (c->context + c->tokens) * row;
        g_autofree float *q = numbers("q", n_q, 1), *kv = numbers("kv", n_kv, 1);
        g_autofree float *dout = numbers("dout", n_out, 1), *sink = numbers("sink", c->heads, 1);
        float *out[2], *lse[2], *dq[2], *dkv[2], dsink[2][4] = {{0}};
        ExecBackend *backends[] = {cpu, reference};
        for (int b = 0; b < 2; b++) {
            out[b] = g_new(float, (size_t)n_out);
            lse[b] = g_new(float, (size_t)heads);
            dq[b] = g_new(float, (size_t)n_q);
            dkv[b] = g_new0(float, (size_t)n_kv);
            const ExecAttention a = attention_of(backends[b], c, q, kv, sink, out[b], lse[b]);
            for (int64_t j = 0; j < exec_attention_first_key(&a, 0) * row; j++)
                kv[j] = NAN;
            backends[b]->ops->attention_forward(backends[b], &a);
            backends[b]->ops->attention_backward(
                backends[b], &a,
                &(ExecAttentionGradients){.dout = dout,
                                          .dq = dq[b],
                                          .dk = dkv[b],
                                          .dv = dkv[b] + c->kv_heads * c->qk_dim,
                                          .dsink = dsink[b]});
        }
        const double tolerance = 4 * sum_tolerance(c->tokens + c->context);
        g_assert_cmpfloat(distance(out[0], out[1], n_out), <=, tolerance);
        g_assert_cmpfloat(distance(lse[0], lse[1], heads), <=, tolerance);
        g_assert_cmpfloat(distance(dq[0], dq[1], n_q), <=, tolerance);
        g_assert_cmpfloat(distance(dkv[0], dkv[1], n_kv), <=, tolerance);
        g_assert_cmpfloat(distance(dsink[0], dsink[1], c->heads), <=, tolerance);
        for (int b = 0; b < 2; b++) {
            g_free(out[b]);
            g_free(lse[b]);
            g_free(dq[b]);
            g_free(dkv[b]);
        }
    }
}

/* --- norms of groups --- */

typedef struct {
    int64_t rows, groups, cols, parts; /* ranks that have a group together */
    bool centred, own_gains, plain, shifts;
} NormCase;

#define EPSILON 1e-2

/* Inputs: x [rows, groups, parts cols], gain. */
static void
define_norm(const void *shape, const Input *in, double *y)
{
    const NormCase *c = shape;
    const int64_t n = c->parts * c->cols;

    for (int64_t i = 0; i < c->rows * c->groups; i++) {
        const double *x = in[0].x + i * n;
        double mean = 0, variance = 0;
        for (int64_t j = 0; c->centred && j < n; j++)
            mean += x[j] / (double)n;
        for (int64_t j = 0; j < n; j++)
            variance += (x[j] - mean) * (x[j] - mean) / (double)n;
        for (int64_t j = 0; j < n; j++)
            y[i * n + j] =
                (x[j] - mean) / sqrt(variance + EPSILON) *
                    (c->plain ? 1 : in[1].x[(c->own_gains ? i % c->groups * n : 0) + j]) +
                (c->shifts ? in[2].x[(c->own_gains ? i % c->groups * n : 0) + j] : 0);
    }
}

/* Every part is a rank: it has its columns of x, in rows of another stride, and of y. */
static void
check_group_norm(ExecBackend *backend, size_t device, const NormCase *c)
{
    enum {
        GAP = 3
    };
    const int64_t n = c->parts * c->cols, all = c->groups * n, n_sums = 2 * c->rows * c->groups;
    Input in[] = {input_new(backend, "x", c->rows * all, 1),
                  input_new(backend, "gain", c->own_gains ? all : n, 1),
                  input_new(backend, "shift", c->own_gains ? all : n, 1)};
    Input dy = input_new(backend, "dy", c->rows * all, 1);
    g_autofree double *y = g_new(double, c->rows *all);
    g_autofree void *ys = g_malloc0((size_t)exec_storage_bytes(backend, c->rows * (all + GAP)));
    g_autofree void *d = g_malloc0((size_t)exec_storage_bytes(backend, c->rows * all));
    g_autofree float *dgain = g_new0(float, (size_t)in[1].n);
    g_autofree float *dshift = g_new0(float, (size_t)in[1].n);
    g_autofree float *sums = g_new0(float, (size_t)(c->parts * n_sums));
    g_autofree float *d_sums = g_new0(float, (size_t)(c->parts * n_sums));
    g_autofree float *total = g_new0(float, (size_t)n_sums),
                     *d_total = g_new0(float, (size_t)n_sums);

    /* One group when it is divided: a part is a run of columns. */
    g_assert(c->parts == 1 || c->groups == 1);
    define_norm(c, in, y);
    differentiate(define_norm, c, in, c->plain ? 1 : c->shifts ? 3 : 2, dy.x, dy.n);
    memcpy(d, dy.stored, (size_t)exec_storage_bytes(backend, dy.n));
    ExecGroupNorm norm = {
        .rows = c->rows,
        .groups = c->groups,
        .cols = c->cols,
        .n = n,
        .centred = c->centred,
        .epsilon = (float)EPSILON,
        .x_stride = all,
        .gain_step = c->own_gains ? c->cols : 0,
    };
    for (int pass = 0; pass < 4; pass++)
        for (int64_t part = 0; part < c->parts; part++) {
            norm.x = exec_at(backend, in[0].stored, part * c->cols);
            norm.gain = c->plain ? NULL : exec_at(backend, in[1].stored, part * c->cols);
            norm.shift = c->shifts ? exec_at(backend, in[2].stored, part * c->cols) : NULL;
            norm.sums = pass == 0 ? sums : total;
            void *to = exec_at(backend, d, part * c->cols);
            float *part_sums = pass == 0 ? sums : d_sums;
            const bool adds = pass == 0 || pass == 2;
            if (pass == 0)
                backend->ops->group_norm_sums(backend, &norm);
            else if (pass == 1)
                backend->ops->group_norm_forward(backend, &norm,
                                                 exec_at(backend, ys, part * c->cols), all + GAP);
            else if (pass == 2)
                backend->ops->group_norm_backward_sums(backend, &norm, to, all, d_sums);
            else
                backend->ops->group_norm_backward(backend, &norm, d_total, to, all,
                                                  c->plain ? NULL : dgain + part * c->cols,
                                                  c->shifts ? dshift + part * c->cols : NULL);
            for (int64_t i = 0; adds && i < exec_group_norm_n_sums(&norm); i++)
                (pass == 0 ? total : d_total)[i] += part_sums[i];
        }
    for (int64_t r = 0; r < c->rows; r++)
        check_close(backend, device, exec_at(backend, ys, r * (all + GAP)), true, y + r * all, all);
    check_close(backend, device, d, true, in[0].gradient, in[0].n);
    if (!c->plain)
        check_close(backend, device, dgain, false, in[1].gradient, in[1].n);
    if (c->shifts)
        check_close(backend, device, dshift, false, in[2].gradient, in[2].n);
    for (size_t i = 0; i < G_N_ELEMENTS(in); i++)
        input_clear(&in[i]);
    input_clear(&dy);
}

static void
test_group_norms_are_their_definition(void)
{
    static const NormCase norms[] = {
        {.rows = 3, .groups = 2, .cols = 5, .parts = 1},
        {.rows = 2, .groups = 3, .cols = 4, .parts = 1, .own_gains = true},
        {.rows = 4, .groups = 1, .cols = 3, .parts = 2},
        {.rows = 2, .groups = 2, .cols = 6, .parts = 1, .plain = true},
        {.rows = 3, .groups = 2, .cols = 5, .parts = 1, .centred = true, .own_gains = true},
        {.rows = 3, .groups = 1, .cols = 4, .parts = 2, .centred = true, .shifts = true},
        {.rows = 2, .groups = 3, .cols = 4, .parts = 1, .centred = true, .shifts = true},
    };

    for (size_t device = 0; device < G_N_ELEMENTS(devices); device++) {
        g_autoptr(ExecBackend) backend = open_device(device);
        for (size_t i = 0; backend != NULL && i < G_N_ELEMENTS(norms); i++)
            check_group_norm(backend, device, &norms[i]);
    }
}

/* --- blocks and gates --- */

static void
test_blocks_move(void)
{
    static const ExecBlocks spread = {2, 3, 2, 3, 0, 12, 4};
    static const ExecBlocks gathered = {2, 3, 2, 12, 4, 3, 0};

    for (size_t device = 0; device < G_N_ELEMENTS(devices); device++) {
        const float x[] = {1, 2, 9, 3, 4, 9};
        const float expected[] = {1, 2, 0, 0, 1, 2, 0, 0, 1, 2, 0, 0,
                                  3, 4, 0, 0, 3, 4, 0, 0, 3, 4, 0, 0};
        const float sums[] = {3, 6, 9, 9, 12, 9};
        float y[24] = {0}, stored[24] = {0}, from[6];
        g_autoptr(ExecBackend) backend = open_device(device);
        if (backend == NULL)
            return;
        backend->ops->to_storage(backend, 6, x, from);
        backend->ops->copy_blocks(backend, &spread, from, stored);
        backend->ops->from_storage(backend, 24, stored, y);
        g_assert_cmpint(memcmp(y, expected, sizeof y), ==, 0);
        backend->ops->sum_blocks(backend, &gathered, stored, from);
        backend->ops->from_storage(backend, 6, from, y);
        g_assert_cmpint(memcmp(y, sums, sizeof sums), ==, 0);
    }
}

typedef struct {
    int64_t rows, cols;
    bool per_row;
} GateCase;

static void
define_gate(const void *shape, const Input *in, double *y)
{
    const GateCase *c = shape;

    for (int64_t i = 0; i < c->rows * c->cols; i++)
        y[i] = in[0].x[i] / (1 + exp(-in[1].x[c->per_row ? i / c->cols : i]));
}

static void
test_gates_are_their_definition(void)
{
    static const GateCase gates[] = {{5, 7, false}, {6, 3, true}};

    for (size_t device = 0; device < G_N_ELEMENTS(devices); device++) {
        g_autoptr(ExecBackend) backend = open_device(device);
        for (size_t i = 0; backend != NULL && i < G_N_ELEMENTS(gates); i++) {
            const GateCase *c = &gates[i];
            const int64_t n = c->rows * c->cols;
            Input in[] = {input_new(backend, "x", n, 1),
                          input_new(backend, "gate", c->per_row ? c->rows : n, 2)};
            Input dy = input_new(backend, "dy", n, 1);
            double y[64];
            float stored[64], dgate[64];
            const ExecGate gate = {c->rows, c->cols, c->per_row, in[0].stored, in[1].stored};
            backend->ops->gate_forward(backend, &gate, stored);
            define_gate(c, in, y);
            check_close(backend, device, stored, true, y, n);
            differentiate(define_gate, c, in, 2, dy.x, n);
            backend->ops->gate_backward(backend, &gate, dy.stored, dgate);
            check_close(backend, device, dy.stored, true, in[0].gradient, n);
            check_close(backend, device, dgate, true, in[1].gradient, in[1].n);
            input_clear(&in[0]);
            input_clear(&in[1]);
            input_clear(&dy);
        }
    }
}

/* A part of a head is turned, at an offset of the caller's: the rest keeps its bits. */
static void
test_rope_turns_a_part(void)
{
    const int32_t position[] = {1};
    const float turns[] = {1, 0, 0.6f, 0.8f}; /* cosine and sine of positions 0 and 1 */

    for (size_t device = 0; device < G_N_ELEMENTS(devices); device++) {
        const float x[] = {5, 10, 20, 6, 7, 30, 40, 8};
        const float expected[] = {5, 10 * 0.6f - 20 * 0.8f, 20 * 0.6f + 10 * 0.8f, 6,
                                  7, 30 * 0.6f - 40 * 0.8f, 40 * 0.6f + 30 * 0.8f, 8};
        float stored[8], y[8];
        g_autoptr(ExecBackend) backend = open_device(device);
        if (backend == NULL)
            return;
        ExecRope rope = {.rows = 1,
                         .sequences = 1,
                         .n_heads = 2,
                         .head_dim = 4,
                         .stride = 8,
                         .position = position,
                         .turns = turns,
                         .rotary_dim = 2};
        backend->ops->to_storage(backend, 8, x, stored);
        backend->ops->rope(backend, &rope, exec_at(backend, stored, 1));
        backend->ops->from_storage(backend, 8, stored, y);
        g_assert_cmpfloat(distance(y, expected, 8), <=, devices[device].tolerance);
        rope.inverse = true;
        backend->ops->rope(backend, &rope, exec_at(backend, stored, 1));
        backend->ops->from_storage(backend, 8, stored, y);
        g_assert_cmpfloat(distance(y, x, 8), <=, devices[device].tolerance);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/backend-heads/attention-is-its-definition",
                    test_attention_is_its_definition);
    g_test_add_func("/executor/backend-heads/blocks-equal-reference", test_blocks_equal_reference);
    g_test_add_func("/executor/backend-heads/group-norms-are-their-definition",
                    test_group_norms_are_their_definition);
    g_test_add_func("/executor/backend-heads/blocks-move", test_blocks_move);
    g_test_add_func("/executor/backend-heads/gates-are-their-definition",
                    test_gates_are_their_definition);
    g_test_add_func("/executor/backend-heads/rope-turns-a-part", test_rope_turns_a_part);
    return g_test_run();
}
