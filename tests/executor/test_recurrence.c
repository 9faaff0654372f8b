/* Tests of executor/device/recurrence.h: scans, convolutions, gates and norms of results against the
 * recurrences' definitions, written again in double, and their central differences; slices against
 * whole sequences; threads; bf16. */
#include "executor/device/recurrence.h"

#include "tests/executor/tensors.h"

/* A tensor as the slots see it, in double, and its gradient. */
typedef struct {
    int64_t n;
    float *x, *gradient;
    double *exact;
} Tensor;

enum {
    MAX_TENSORS = 10
};

/* One function of some tensors; its results are weighted and summed to a loss. */
typedef struct Problem Problem;
struct Problem {
    Tensor in[MAX_TENSORS];
    Tensor out[2]; /* .x the slot's, .exact the definition's, .gradient the weights */
    void (*define)(const Problem *problem); /* out[].exact from in[].exact */
    const void *shape;
};

static Tensor
tensor(const char *name, int64_t n, float deviation, float mean)
{
    Tensor t = {.n = n, .x = numbers(name, n, deviation), .gradient = g_new0(float, (size_t)n + 1)};

    t.exact = g_new0(double, (size_t)n + 1);
    for (int64_t i = 0; i < n; i++)
        t.exact[i] = (double)(t.x[i] += mean);
    return t;
}

static Tensor
result(const char *weights, int64_t n)
{
    Tensor t = {.n = n, .gradient = numbers(weights, n, 1)};

    t.x = g_new0(float, (size_t)n + 1);
    t.exact = g_new0(double, (size_t)n + 1);
    return t;
}

static void
problem_clear(Problem *p)
{
    for (int i = 0; i < MAX_TENSORS + 2; i++) {
        Tensor *t = i < MAX_TENSORS ? &p->in[i] : &p->out[i - MAX_TENSORS];
        g_free(t->x);
        g_free(t->gradient);
        g_free(t->exact);
    }
}

static double
exact_loss(const Problem *p)
{
    double loss = 0;

    p->define(p);
    for (int i = 0; i < 2; i++)
        for (int64_t j = 0; j < p->out[i].n; j++)
            loss += p->out[i].exact[j] * (double)p->out[i].gradient[j];
    return loss;
}

/* Results to 2e-6 of their size, as sums of fp32 have it, and gradients along three random
 * directions to 1e-5. */
static void
check_problem(const Problem *p)
{
    exact_loss(p);
    for (int i = 0; i < 2; i++) {
        g_autofree float *exact = g_new(float, (size_t)p->out[i].n + 1);
        for (int64_t j = 0; j < p->out[i].n; j++)
            exact[j] = (float)p->out[i].exact[j];
        g_assert_cmpfloat(distance(p->out[i].x, exact, p->out[i].n), <=, 2e-6);
    }
    for (int i = 0; i < MAX_TENSORS; i++) {
        const Tensor *t = &p->in[i];
        const double norm = t->n == 0 ? 0 : sqrt(dot(t->gradient, t->gradient, t->n));
        for (int direction = 0; t->n > 0 && direction < 3; direction++) {
            const double h = 1e-5;
            g_autofree char *name = g_strdup_printf("direction %d", direction);
            g_autofree float *v = numbers(name, t->n, 1);
            double f[2];
            for (int side = 0; side < 2; side++) {
                for (int64_t j = 0; j < t->n; j++)
                    t->exact[j] += (side == 0 ? -h : 2 * h) * (double)v[j];
                f[side] = exact_loss(p);
            }
            for (int64_t j = 0; j < t->n; j++)
                t->exact[j] -= h * (double)v[j];
            const double difference = (f[1] - f[0]) / (2 * h), along = dot(t->gradient, v, t->n);
            g_test_message("input %d: |g| %.3e, along v %.6e, difference %.6e", i, norm, along,
                           difference);
            g_assert_cmpfloat(fabs(difference - along), <=, 1e-5 * norm + 1e-7);
        }
        if (t->n > 0)
            g_assert_cmpfloat(norm, >, 1e-3);
    }
}

static double
silu(double x)
{
    return x / (1 + exp(-x));
}

static double
sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* --- scans --- */

typedef struct {
    const char *name;
    int64_t sequences, tokens, heads, key_heads, k, v;
    bool delta, channels, fixed, normalised, silu, rate, skip, a_log;
    float decay; /* its mean */
} ScanShape;

static const ScanShape scans[] = {
    {"mamba2", 2, 150, 4, 2, 5, 7, .rate = true, .skip = true, .decay = -0.3f},
    {"mamba2, strong decay", 1, 70, 2, 1, 16, 16, .rate = true, .skip = true, .decay = -9},
    {"lightning", 2, 131, 3, 3, 8, 6, .fixed = true, .silu = true, .decay = -0.1f},
    {"gated delta net", 2, 140, 4, 2, 6, 9, .delta = true, .normalised = true, .rate = true,
     .decay = -0.1f},
    {"gated delta net, one token", 2, 1, 2, 2, 4, 4, .delta = true, .normalised = true,
     .rate = true, .decay = -0.1f},
    {"kda", 2, 45, 4, 2, 6, 9, .delta = true, .channels = true, .normalised = true, .rate = true,
     .decay = -0.2f},
    {"kda, strong decay", 1, 40, 1, 1, 18, 4, .delta = true, .channels = true, .normalised = true,
     .rate = true, .decay = -6},
    {"mamba", 3, 130, 5, 1, 6, 1, .rate = true, .skip = true, .a_log = true},
};

enum {
    Q,
    K,
    V,
    DECAY,
    RATE,
    A_LOG,
    SKIP,
    START
};

static int64_t
n_decays(const ScanShape *s)
{
    return s->channels ? s->k : 1;
}

/* Reads row @row, of @n columns of which the head's begin at @first, as the recurrence does. */
static void
read_exact(const ScanShape *s, const Tensor *t, int64_t row, int64_t stride, int64_t first,
           int64_t n, bool key, double *x)
{
    double square = 0;

    for (int64_t i = 0; i < n; i++) {
        x[i] = t->exact[row * stride + first + i];
        if (s->silu)
            x[i] = silu(x[i]);
        square += x[i] * x[i];
    }
    for (int64_t i = 0; key && s->normalised && i < n; i++)
        x[i] /= sqrt(square + 1e-6);
}

/* One head's state [k][v] takes in token @row. */
static void
define_token(const Problem *p, int64_t head, int64_t row, double *state)
{
    const ScanShape *s = p->shape;
    const int64_t key_head = head / (s->heads / s->key_heads);
    const double rate = s->rate ? p->in[RATE].exact[row * s->heads + head] : 1;
    double q[32], k[32], v[32], y[32] = {0};

    read_exact(s, &p->in[Q], row, s->key_heads * s->k, key_head * s->k, s->k, true, q);
    read_exact(s, &p->in[K], row, s->key_heads * s->k, key_head * s->k, s->k, true, k);
    read_exact(s, &p->in[V], row, s->heads * s->v, head * s->v, s->v, false, v);
    for (int64_t c = 0; c < s->k; c++) {
        const int64_t at = (s->fixed ? 0 : row * s->heads * n_decays(s)) + head * n_decays(s) +
                           (s->channels ? c : 0);
        const double decay =
            s->a_log ? -exp(p->in[A_LOG].exact[head * s->k + c]) * rate : p->in[DECAY].exact[at];
        for (int64_t i = 0; i < s->v; i++)
            state[c * s->v + i] *= exp(decay);
    }
    for (int64_t i = 0; i < s->v; i++) {
        double old = 0;
        for (int64_t c = 0; s->delta && c < s->k; c++)
            old += state[c * s->v + i] * k[c];
        for (int64_t c = 0; c < s->k; c++) {
            state[c * s->v + i] += k[c] * rate * (v[i] - old);
            y[i] += state[c * s->v + i] * q[c] * (s->a_log ? 1 : 0.5);
        }
        if (s->skip)
            y[i] += p->in[SKIP].exact[head] * v[i];
        p->out[0].exact[(row * s->heads + head) * s->v + i] = y[i];
    }
}

static void
define_scan(const Problem *p)
{
    const ScanShape *s = p->shape;
    const int64_t n = s->k * s->v;

    memcpy(p->out[1].exact, p->in[START].exact, (size_t)p->out[1].n * sizeof(double));
    for (int64_t b = 0; b < s->sequences; b++)
        for (int64_t h = 0; h < s->heads; h++)
            for (int64_t t = 0; t < s->tokens; t++)
                define_token(p, h, t * s->sequences + b, p->out[1].exact + (b * s->heads + h) * n);
}

static Problem
scan_problem(const ScanShape *s)
{
    const int64_t rows = s->sequences * s->tokens, n_state = s->sequences * s->heads * s->k * s->v;
    const int64_t n = s->fixed ? s->heads : rows * s->heads * n_decays(s);
    Problem p = {.define = define_scan, .shape = s};

    p.in[Q] = tensor("q", rows * s->key_heads * s->k, 1, 0);
    p.in[K] = tensor("k", rows * s->key_heads * s->k, 1, 0);
    p.in[V] = tensor("v", rows * s->heads * s->v, 1, 0);
    p.in[DECAY] = tensor("decay", s->a_log ? 0 : n, s->decay / -5, s->decay);
    p.in[RATE] = tensor("rate", s->rate ? rows * s->heads : 0, 0.08f, 0.4f);
    p.in[A_LOG] = tensor("a_log", s->a_log ? s->heads * s->k : 0, 0.5f, 0);
    p.in[SKIP] = tensor("skip", s->skip ? s->heads : 0, 1, 0);
    p.in[START] = tensor("start", n_state, 1, 0);
    p.out[0] = result("out weights", rows * s->heads * s->v);
    p.out[1] = result("end weights", n_state);
    return p;
}

static const float *
if_there(const Tensor *t)
{
    return t->n > 0 ? t->x : NULL;
}

/* The scan of tokens [begin, begin + n). */
static ExecScan
scan_of(const Problem *p, int64_t begin, int64_t n, const float *start, float *end)
{
    const ScanShape *s = p->shape;
    const int64_t row = begin * s->sequences;

    return (ExecScan){
        .sequences = s->sequences,
        .tokens = n,
        .n_heads = s->heads,
        .n_key_heads = s->key_heads,
        .key_dim = s->k,
        .value_dim = s->v,
        .q = p->in[Q].x + row * s->key_heads * s->k,
        .k = p->in[K].x + row * s->key_heads * s->k,
        .v = p->in[V].x + row * s->heads * s->v,
        .key_stride = s->key_heads * s->k,
        .value_stride = s->heads * s->v,
        .silu = s->silu,
        .normalised = s->normalised,
        .scale = 0.5f,
        .delta = s->delta,
        .decay = s->a_log ? NULL : p->in[DECAY].x + (s->fixed ? 0 : row * s->heads * n_decays(s)),
        .channels = s->channels,
        .fixed = s->fixed,
        .rate = s->rate ? p->in[RATE].x + row * s->heads : NULL,
        .a_log = if_there(&p->in[A_LOG]),
        .skip = if_there(&p->in[SKIP]),
        .start = start,
        .end = end,
        .out = p->out[0].x + row * s->heads * s->v,
    };
}

static ExecScanGradients
scan_gradients(const Problem *p, int64_t begin, float *d_state)
{
    const ScanShape *s = p->shape;
    const int64_t row = begin * s->sequences;

    return (ExecScanGradients){
        .dout = p->out[0].gradient + row * s->heads * s->v,
        .dq = p->in[Q].gradient + row * s->key_heads * s->k,
        .dk = p->in[K].gradient + row * s->key_heads * s->k,
        .dv = p->in[V].gradient + row * s->heads * s->v,
        .d_decay = p->in[DECAY].gradient + row * s->heads * n_decays(s),
        .d_rate = p->in[RATE].gradient + row * s->heads,
        .d_a_log = p->in[A_LOG].gradient,
        .d_skip = p->in[SKIP].gradient,
        .d_state = d_state,
    };
}

/* All of it as slices of @length tokens; gradients begin at zero. */
static void
run_scan(ExecBackend *backend, Problem *p, int64_t length)
{
    const ScanShape *s = p->shape;
    const int64_t n_slices = (s->tokens + length - 1) / length, n_state = p->in[START].n;
    g_autofree float *states = g_new(float, (size_t)((n_slices + 1) * n_state));

    memset(p->in[A_LOG].gradient, 0, (size_t)p->in[A_LOG].n * sizeof(float));
    memset(p->in[SKIP].gradient, 0, (size_t)p->in[SKIP].n * sizeof(float));
    memcpy(states, p->in[START].x, (size_t)n_state * sizeof *states);
    memcpy(p->in[START].gradient, p->out[1].gradient, (size_t)n_state * sizeof *states);
    for (int64_t i = 0; i < n_slices; i++) {
        const ExecScan scan = scan_of(p, i * length, MIN(length, s->tokens - i * length),
                                      states + i * n_state, states + (i + 1) * n_state);
        backend->ops->scan_forward(backend, &scan);
    }
    memcpy(p->out[1].x, states + n_slices * n_state, (size_t)n_state * sizeof *states);
    for (int64_t i = n_slices - 1; i >= 0; i--) {
        const ExecScan scan =
            scan_of(p, i * length, MIN(length, s->tokens - i * length), states + i * n_state, NULL);
        const ExecScanGradients g = scan_gradients(p, i * length, p->in[START].gradient);
        backend->ops->scan_backward(backend, &scan, &g);
    }
    if (s->fixed) /* nobody trains it */
        p->in[DECAY].n = 0;
}

static void
test_scans(void)
{
    g_autoptr(ExecBackend) backend = open_or_skip("reference");

    for (size_t i = 0; i < G_N_ELEMENTS(scans); i++) {
        g_test_message("%s", scans[i].name);
        for (int64_t length = scans[i].tokens; length > 0; length -= scans[i].tokens / 2 + 1) {
            Problem p = scan_problem(&scans[i]);
            run_scan(backend, &p, length);
            check_problem(&p);
            problem_clear(&p);
        }
    }
}

/* --- convolutions --- */

typedef struct {
    int64_t sequences, tokens, channels, width;
    bool silu, bias, gate;
} ConvolutionShape;

enum {
    X,
    GATE,
    WEIGHT,
    BIAS,
    BEFORE
};

static const ConvolutionShape convolutions[] = {
    {2, 9, 70, 4, .silu = true, .bias = true},
    {1, 2, 5, 4, .silu = true},
    {3, 7, 6, 3, .gate = true, .bias = true},
    {1, 1, 1, 1, .silu = true},
};

static void
define_convolution(const Problem *p)
{
    const ConvolutionShape *s = p->shape;
    const int64_t n = s->sequences * s->channels, ahead = s->width - 1;
    g_autofree double *x = g_new(double, (size_t)((s->tokens + ahead) * n));

    for (int64_t i = 0; i < (s->tokens + ahead) * n; i++)
        x[i] = i < ahead * n ? p->in[BEFORE].exact[i]
                             : p->in[X].exact[i - ahead * n] *
                                   (s->gate ? p->in[GATE].exact[i - ahead * n] : 1);
    for (int64_t i = 0; i < s->tokens * n; i++) {
        double sum = s->bias ? p->in[BIAS].exact[i % s->channels] : 0;
        for (int64_t j = 0; j < s->width; j++)
            sum += p->in[WEIGHT].exact[j * s->channels + i % s->channels] * x[i + j * n];
        p->out[0].exact[i] = s->silu ? silu(sum) : sum;
    }
    memcpy(p->out[1].exact, x + s->tokens * n, (size_t)(ahead * n) * sizeof *x);
}

static void
test_convolutions(void)
{
    g_autoptr(ExecBackend) backend = open_or_skip("reference");

    for (size_t i = 0; i < G_N_ELEMENTS(convolutions); i++) {
        const ConvolutionShape *s = &convolutions[i];
        const int64_t n = s->tokens * s->sequences * s->channels;
        const int64_t n_state = (s->width - 1) * s->sequences * s->channels;
        Problem p = {.define = define_convolution, .shape = s};
        p.in[X] = tensor("x", n, 1, 0);
        p.in[GATE] = tensor("gate", s->gate ? n : 0, 1, 0);
        p.in[WEIGHT] = tensor("weight", s->width * s->channels, 1, 0);
        p.in[BIAS] = tensor("bias", s->bias ? s->channels : 0, 1, 0);
        p.in[BEFORE] = tensor("before", n_state, 1, 0);
        p.out[0] = result("y", n);
        p.out[1] = result("after", n_state);
        const ExecConvolution c = {
            .sequences = s->sequences,
            .tokens = s->tokens,
            .channels = s->channels,
            .width = s->width,
            .silu = s->silu,
            .x = p.in[X].x,
            .stride = s->channels,
            .gate = if_there(&p.in[GATE]),
            .weight = p.in[WEIGHT].x,
            .bias = if_there(&p.in[BIAS]),
            .before = p.in[BEFORE].x,
            .after = p.out[1].x,
            .y = p.out[0].x,
        };
        backend->ops->convolve_forward(backend, &c);
        memcpy(p.in[BEFORE].gradient, p.out[1].gradient, (size_t)n_state * sizeof(float));
        backend->ops->convolve_backward(backend, &c,
                                        &(ExecConvolutionGradients){
                                            .dy = p.out[0].gradient,
                                            .dx = p.in[X].gradient,
                                            .d_gate = p.in[GATE].gradient,
                                            .d_weight = p.in[WEIGHT].gradient,
                                            .d_bias = p.in[BIAS].gradient,
                                            .d_state = p.in[BEFORE].gradient,
                                        });
        check_problem(&p);
        problem_clear(&p);
    }
}

/* --- gates --- */

typedef struct {
    int64_t rows, heads, channels;
    bool rate, a_log;
} GatesShape;

enum {
    STEPS,
    RATES,
    STEP_BIAS,
    LOG_A
};

static const GatesShape gates_shapes[] = {
    {9, 3, 1, .rate = true, .a_log = true},  /* gated delta net */
    {7, 3, 30, .rate = true, .a_log = true}, /* KDA */
    {8, 70, 1, .a_log = true},               /* Mamba-2 */
    {5, 6, 1},                               /* Mamba */
};

static void
define_gates(const Problem *p)
{
    const GatesShape *s = p->shape;
    const int64_t n = s->heads * s->channels;

    for (int64_t i = 0; i < s->rows * n; i++) {
        const double step = log1p(exp(p->in[STEPS].exact[i] + p->in[STEP_BIAS].exact[i % n]));
        if (s->a_log)
            p->out[0].exact[i] = -exp(p->in[LOG_A].exact[i % n / s->channels]) * step;
        if (!s->rate)
            p->out[1].exact[i] = step;
    }
    for (int64_t i = 0; s->rate && i < s->rows * s->heads; i++)
        p->out[1].exact[i] = sigmoid(p->in[RATES].exact[i]);
}

static void
test_gates(void)
{
    g_autoptr(ExecBackend) backend = open_or_skip("reference");

    for (size_t i = 0; i < G_N_ELEMENTS(gates_shapes); i++) {
        const GatesShape *s = &gates_shapes[i];
        const int64_t n = s->heads * s->channels;
        Problem p = {.define = define_gates, .shape = s};
        p.in[STEPS] = tensor("steps", s->rows * n, 2, 0);
        p.in[RATES] = tensor("rates", s->rate ? s->rows * s->heads : 0, 2, 0);
        p.in[STEP_BIAS] = tensor("bias", n, 1, -1);
        p.in[LOG_A] = tensor("a", s->a_log ? s->heads : 0, 1, 0);
        p.out[0] = result("decay", s->a_log ? s->rows * n : 0);
        p.out[1] = result("rate", s->rate ? s->rows * s->heads : s->rows * n);
        const ExecGates gates = {
            .rows = s->rows,
            .n_heads = s->heads,
            .n_channels = s->channels,
            .x = p.in[STEPS].x,
            .stride = n,
            .x_rate = if_there(&p.in[RATES]),
            .rate_stride = s->heads,
            .bias = p.in[STEP_BIAS].x,
            .a_log = if_there(&p.in[LOG_A]),
            .decay = p.out[0].x,
            .rate = p.out[1].x,
        };
        backend->ops->gates_forward(backend, &gates);
        backend->ops->gates_backward(backend, &gates,
                                     &(ExecGatesGradients){
                                         .d_decay = p.out[0].gradient,
                                         .d_rate = p.out[1].gradient,
                                         .dx = p.in[STEPS].gradient,
                                         .dx_rate = p.in[RATES].gradient,
                                         .d_bias = p.in[STEP_BIAS].gradient,
                                         .d_a_log = p.in[LOG_A].gradient,
                                     });
        check_problem(&p);
        problem_clear(&p);
    }
}

/* --- results --- */

typedef struct {
    int64_t rows, cols, groups, gain;
    ExecResultGate kind;
    bool first;
} GateShape;

enum {
    RESULT,
    Z,
    GAIN
};

static const GateShape gate_shapes[] = {
    {5, 140, 2, 70, EXEC_GATE_SILU},               /* gated delta net */
    {5, 12, 3, 4, EXEC_GATE_SIGMOID},              /* KDA */
    {4, 30, 2, 30, EXEC_GATE_SILU, .first = true}, /* Mamba-2 */
    {6, 80, 1, 80, EXEC_GATE_SIGMOID},             /* lightning */
    {3, 9, 0, 0, EXEC_GATE_SILU},
    {3, 9, 0, 0, EXEC_GATE_PLAIN},
};

static void
define_gate(const Problem *p)
{
    const GateShape *s = p->shape;
    const int64_t width = s->groups > 0 ? s->cols / s->groups : s->cols;

    for (int64_t at = 0; at < s->rows * s->cols; at += width) {
        double y[256], square = 0;
        for (int64_t i = 0; i < width; i++) {
            const double z = p->in[Z].exact[at + i];
            const double act = s->kind == EXEC_GATE_PLAIN     ? z
                               : s->kind == EXEC_GATE_SIGMOID ? sigmoid(z)
                                                              : silu(z);
            y[i] = p->in[RESULT].exact[at + i] * (s->first ? act : 1);
            square += y[i] * y[i];
            p->out[0].exact[at + i] = s->first ? 1 : act;
        }
        for (int64_t i = 0; i < width; i++)
            p->out[0].exact[at + i] *=
                y[i] * (s->groups == 0 ? 1
                                       : p->in[GAIN].exact[(at + i) % s->cols % s->gain] /
                                             sqrt(square / (double)width + 1e-3));
    }
}

static void
test_results(void)
{
    g_autoptr(ExecBackend) backend = open_or_skip("reference");

    for (size_t i = 0; i < G_N_ELEMENTS(gate_shapes); i++) {
        const GateShape *s = &gate_shapes[i];
        const int64_t n = s->rows * s->cols;
        Problem p = {.define = define_gate, .shape = s};
        g_autofree float *squares = g_new(float, 64), *dots = g_new(float, 64);
        p.in[RESULT] = tensor("x", n, 1, 0);
        p.in[Z] = tensor("z", n, 1, 0);
        p.in[GAIN] = tensor("gain", s->gain, 1, 0);
        p.out[0] = result("y", n);
        p.out[1] = result("nothing", 0);
        const ExecResult gate = {
            .rows = s->rows,
            .cols = s->cols,
            .kind = s->kind,
            .gate_first = s->first,
            .x = p.in[RESULT].x,
            .z = p.in[Z].x,
            .stride = s->cols,
            .n_groups = s->groups,
            .gain = if_there(&p.in[GAIN]),
            .gain_n = s->gain,
            .group_cols = s->groups > 0 ? s->cols / s->groups : 0,
            .epsilon = 1e-3f,
            .squares = squares,
        };
        if (s->groups > 0)
            backend->ops->result_squares(backend, &gate);
        backend->ops->result_forward(backend, &gate, p.out[0].x);
        if (s->groups > 0)
            backend->ops->result_dots(backend, &gate, p.out[0].gradient, dots);
        backend->ops->result_backward(backend, &gate,
                                      &(ExecResultGradients){
                                          .dy = p.out[0].gradient,
                                          .dx = p.in[RESULT].gradient,
                                          .dz = p.in[Z].gradient,
                                          .d_gain = p.in[GAIN].gradient,
                                          .dots = dots,
                                      });
        check_problem(&p);
        problem_clear(&p);
    }
}

/* --- threads and formats --- */

static void
same_bytes(const void *a, size_t n_a, const void *b, size_t n_b)
{
    g_assert_cmpuint(n_a, ==, n_b);
    g_assert_true(n_a == 0 || memcmp(a, b, n_a) == 0);
}

/* Three threads give the bits of one. */
static void
test_threads(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(ExecBackend) one = open_or_skip("reference");
    g_autoptr(ExecBackend) three =
        exec_backend_open_with("reference", &(ExecBackendOptions){.n_threads = 3}, &error);

    g_assert_no_error(error);
    g_assert_cmpint(three->n_threads, ==, 3);
    for (size_t i = 0; i < G_N_ELEMENTS(scans); i++) {
        Problem p[2] = {scan_problem(&scans[i]), scan_problem(&scans[i])};
        run_scan(one, &p[0], scans[i].tokens);
        run_scan(three, &p[1], scans[i].tokens);
        for (int j = 0; j < MAX_TENSORS; j++)
            same_bytes(p[0].in[j].gradient, (size_t)p[0].in[j].n * sizeof(float),
                       p[1].in[j].gradient, (size_t)p[1].in[j].n * sizeof(float));
        for (int j = 0; j < 2; j++)
            same_bytes(p[0].out[j].x, (size_t)p[0].out[j].n * sizeof(float), p[1].out[j].x,
                       (size_t)p[1].out[j].n * sizeof(float));
        problem_clear(&p[0]);
        problem_clear(&p[1]);
    }
}

/* A scan of bf16 is that of its numbers in fp32, rounded once. */
static void
test_bf16(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(ExecBackend) plain = open_or_skip("reference");
    g_autoptr(ExecBackend) narrow = exec_backend_open("reference", 0, DTYPE_BF16, &error);

    g_assert_no_error(error);
    for (size_t i = 0; i < G_N_ELEMENTS(scans); i++) {
        static const int stored[] = {Q, K, V, A_LOG, SKIP};
        Problem p = scan_problem(&scans[i]), q = scan_problem(&scans[i]);
        for (size_t j = 0; j < G_N_ELEMENTS(stored); j++) {
            const Tensor *t = &p.in[stored[j]];
            narrow->ops->to_storage(narrow, t->n, t->x, q.in[stored[j]].x);
            narrow->ops->from_storage(narrow, t->n, q.in[stored[j]].x, t->x);
        }
        const int64_t n = p.out[0].n;
        const ExecScan wide = scan_of(&p, 0, scans[i].tokens, p.in[START].x, p.out[1].x);
        const ExecScan scan = scan_of(&q, 0, scans[i].tokens, q.in[START].x, q.out[1].x);
        g_autofree uint16_t *expected = g_new(uint16_t, (size_t)n);
        plain->ops->scan_forward(plain, &wide);
        narrow->ops->scan_forward(narrow, &scan);
        narrow->ops->to_storage(narrow, n, p.out[0].x, expected);
        same_bytes(expected, (size_t)n * sizeof *expected, q.out[0].x,
                   (size_t)n * sizeof *expected);
        same_bytes(p.out[1].x, (size_t)p.out[1].n * sizeof(float), q.out[1].x,
                   (size_t)p.out[1].n * sizeof(float));
        problem_clear(&p);
        problem_clear(&q);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/recurrence/scans", test_scans);
    g_test_add_func("/executor/recurrence/convolutions", test_convolutions);
    g_test_add_func("/executor/recurrence/gates", test_gates);
    g_test_add_func("/executor/recurrence/results", test_results);
    g_test_add_func("/executor/recurrence/threads", test_threads);
    g_test_add_func("/executor/recurrence/bf16", test_bf16);
    return g_test_run();
}
