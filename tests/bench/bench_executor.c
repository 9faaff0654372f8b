/*
 * Training steps on this machine's cores beside what bounds them; --tiny: small models, as a test.
 *
 * First table: two threads train GPT-2 124M, as two ranks of the cpu backend.  `sgemm` is OpenBLAS
 * alone on two threads with the very products of a rank's weights, forward and backward, so `share`
 * is what is left of its rate when all else is done too (attention, norms, loss, optimizer,
 * messages).  `plain` is the reference backend with two threads on one rank: parallel loops, no
 * library.  Rounds alternate between the first two; medians.
 *
 * Second table: what an op costs beside its computing: a model so small that little else is left.
 * `between` is the time of the compute stream that is neither op nor waiting for a message, per
 * op; `whole` the step's time per op of a rank, computing, messages and bubbles included.
 */
#include <stdio.h>
#include <string.h>

#include "executor/device/blas.h"
#include "executor/model/random.h"
#include "executor/run/run.h"

#define N_ROUNDS 3
#define N_STEPS 5

typedef struct {
    const char *label;
    int64_t sequences, seq_len; /* one step */
    int64_t tp, pp, n_micro_batches;
    const char *schedule;
    int64_t n_slices;
} Case;

static const Case cases[] = {
    {"B 4 x T 64, tp 2", 4, 64, 2, 1, 1, "naive", 1},
    {"B 4 x T 64, pp 2", 4, 64, 1, 2, 4, "zb-h1", 1},
    {"B 1 x T 1024, tp 2", 1, 1024, 2, 1, 1, "naive", 1},
    {"B 1 x T 1024, pp 2", 1, 1024, 1, 2, 1, "terapipe", 8},
};

static void
die(const char *what, const GError *error)
{
    fprintf(stderr, "bench_executor: %s: %s\n", what, error != NULL ? error->message : "failed");
    exit(1);
}

static Plan *
plan_of(const ModelArch *arch, const Case *c)
{
    Plan *plan = plan_new();
    const int64_t tokens = c->seq_len / c->n_slices;

    plan->dtype = DTYPE_FP32;
    plan->degrees.tp = c->tp;
    plan->degrees.pp = c->pp;
    plan->global_batch = c->sequences;
    plan->n_micro_batches = c->n_micro_batches;
    plan->micro_batch = c->sequences / c->n_micro_batches;
    plan->seq_len = c->seq_len;
    g_free(plan->schedule);
    plan->schedule = g_strdup(c->schedule);
    for (int64_t i = 0; i < c->n_slices; i++)
        g_array_append_val(plan->slices, tokens);
    plan_set_even_stages(plan, arch->n_layers, true, SCHEDULE_PLACEMENT_LOOP, PLAN_RECOMPUTE_NONE);
    return plan;
}

static void
run(const ModelArch *arch, const Plan *plan, const char *device, int n_threads, int64_t n_steps,
    ExecRunResult *result)
{
    g_autoptr(GError) error = NULL;
    const ExecRunOptions options = {
        .arch = arch,
        .plan = plan,
        .device = device,
        .n_threads = n_threads,
        .transport = "local",
        .n_steps = n_steps,
        .learning_rate = 1e-3f,
        .timeout_s = 600,
        .want_trace = true,
    };

    if (!exec_run(&options, result, &error))
        die(plan->schedule, error);
}

static int
compare(gconstpointer a, gconstpointer b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double
median(double *x, size_t n)
{
    qsort(x, n, sizeof *x, compare);
    return n % 2 == 1 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

/* The first step touches all memory for the first time; it is left out where there are others. */
static double
step_s(const ModelArch *arch, const Plan *plan, const char *device, int n_threads, int64_t n_steps)
{
    g_auto(ExecRunResult) result = {0};

    run(arch, plan, device, n_threads, n_steps, &result);
    return result.n_steps == 1 ? result.step_s[0]
                               : median(result.step_s + 1, (size_t)result.n_steps - 1);
}

/* --- the products of a rank alone --- */

/* y [m, n] = x [m, k] times weights, so many times. */
typedef struct {
    int64_t m, n, k, times;
} Product;

typedef struct {
    const ExecBlas *blas;
    Product products[5];
    float *x, *w, *y;
} Products;

/* Of either thread: half of every layer's products whether halves are columns (tp) or layers (pp).
 */
static void
products_init(Products *p, const ModelArch *arch, const Case *c)
{
    const int64_t rows = c->sequences * c->seq_len / c->n_micro_batches / c->n_slices;
    const int64_t tp = c->tp, h = arch->hidden;
    const int64_t times = arch->n_layers / c->pp * c->n_micro_batches * c->n_slices;
    const int64_t head = c->n_micro_batches * c->n_slices;
    const int64_t qkv = (arch->n_heads + 2 * arch->n_kv_heads) * arch->head_dim;
    const Product products[] = {
        {rows, qkv / tp, h, times},
        {rows, h, arch->n_heads * arch->head_dim / tp, times},
        {rows, arch->ffn_hidden / tp, h, times},
        {rows, h, arch->ffn_hidden / tp, times},
        {rows, arch->vocab / 2, h, head}, /* pp: of one stage, so half on average */
    };
    int64_t n_x = 0, n_w = 0, n_y = 0;

    for (size_t i = 0; i < G_N_ELEMENTS(products); i++) {
        p->products[i] = products[i];
        n_x = MAX(n_x, products[i].m * products[i].k);
        n_w = MAX(n_w, products[i].n * products[i].k);
        n_y = MAX(n_y, products[i].m * products[i].n);
    }
    p->x = g_new(float, (size_t)n_x);
    p->w = g_new(float, (size_t)n_w);
    p->y = g_new(float, (size_t)n_y);
    for (int64_t i = 0; i < n_x; i++)
        p->x[i] = exec_random_normal(1, (uint64_t)i);
    for (int64_t i = 0; i < n_w; i++)
        p->w[i] = exec_random_normal(2, (uint64_t)i);
    for (int64_t i = 0; i < n_y; i++)
        p->y[i] = exec_random_normal(3, (uint64_t)i);
}

static double
products_flops(const Products *p)
{
    double flops = 0;

    for (size_t i = 0; i < G_N_ELEMENTS(p->products); i++)
        flops += 6.0 * (double)(p->products[i].m * p->products[i].n) *
                 (double)(p->products[i].k * p->products[i].times);
    return flops;
}

/* Forward, input gradient and weight gradient, as linear.c asks for them. */
static gpointer
multiply(gpointer data)
{
    const Products *p = data;

    for (size_t i = 0; i < G_N_ELEMENTS(p->products); i++) {
        const Product *q = &p->products[i];
        const int m = (int)q->m, n = (int)q->n, k = (int)q->k;
        for (int64_t time = 0; time < q->times; time++) {
            p->blas->sgemm(EXEC_BLAS_ROW_MAJOR, EXEC_BLAS_NO_TRANS, EXEC_BLAS_NO_TRANS, m, n, k,
                           1.0f, p->x, k, p->w, n, 0.0f, p->y, n);
            p->blas->sgemm(EXEC_BLAS_ROW_MAJOR, EXEC_BLAS_NO_TRANS, EXEC_BLAS_TRANS, m, k, n, 1.0f,
                           p->y, n, p->w, n, 0.0f, p->x, k);
            p->blas->sgemm(EXEC_BLAS_ROW_MAJOR, EXEC_BLAS_TRANS, EXEC_BLAS_NO_TRANS, k, n, m,
                           1e-30f, p->x, k, p->y, n, 1.0f, p->w, n);
        }
    }
    return NULL;
}

static double
products_s(Products *two)
{
    const int64_t start_us = g_get_monotonic_time();
    GThread *other = g_thread_new("sgemm", multiply, &two[1]);

    multiply(&two[0]);
    g_thread_join(other);
    return (double)(g_get_monotonic_time() - start_us) * 1e-6;
}

static void
products_clear(Products *p)
{
    g_free(p->x);
    g_free(p->w);
    g_free(p->y);
}

/* --- tables --- */

/* Plain loops on two threads; the same for all splits of a batch. */
static double
plain_s(const ModelArch *arch, const Case *c)
{
    const Case whole = {c->label, c->sequences, c->seq_len, 1, 1, 1, "naive", 1};
    g_autoptr(Plan) plan = plan_of(arch, &whole);

    return step_s(arch, plan, "reference", 2, 1);
}

static void
speed(const ModelArch *arch, const ExecBlas *blas, const Case *c, double plain, bool is_tiny)
{
    g_autoptr(Plan) plan = plan_of(arch, c);
    Products two[2] = {{.blas = blas}, {.blas = blas}};
    double step[N_ROUNDS], sgemm[N_ROUNDS];
    const double tokens = (double)(c->sequences * c->seq_len);

    products_init(&two[0], arch, c);
    products_init(&two[1], arch, c);
    for (size_t i = 0; i < N_ROUNDS; i++) {
        step[i] = step_s(arch, plan, "cpu", 1, is_tiny ? 2 : N_STEPS);
        sgemm[i] = products_s(two);
    }
    const double s = median(step, N_ROUNDS), alone = median(sgemm, N_ROUNDS);
    const double flops = 2 * products_flops(&two[0]);
    printf("%s\t%s\t%.3f\t%.1f\t%.1f\t%.1f\t%.2f\t%.1f\t%.2f\n", c->label, c->schedule, s,
           tokens / s, flops / s * 1e-9, flops / alone * 1e-9, alone / s, tokens / plain,
           plain / s);
    products_clear(&two[0]);
    products_clear(&two[1]);
}

/* Time of rank 0's compute stream in ops and in waiting. */
static void
overhead(const Case *c)
{
    const ModelArch arch = {
        .name = (char *)"speck",
        .family = MODEL_FAMILY_GPT,
        .n_layers = 2,
        .hidden = 8,
        .n_heads = 1,
        .n_kv_heads = 1,
        .head_dim = 8,
        .ffn_hidden = 8,
        .vocab = 16,
        .max_seq_len = 8,
        .norm_epsilon = MODEL_USUAL_NORM_EPSILON,
        .rope_base = MODEL_USUAL_ROPE_BASE,
    };
    g_autoptr(Plan) plan = plan_of(&arch, c);
    g_auto(ExecRunResult) result = {0};
    int64_t n_ops = 0, busy_ns = 0, wait_ns = 0;

    run(&arch, plan, "cpu", 1, 9, &result);
    for (guint i = 0; i < result.trace->events->len; i++) {
        const TraceEvent *e = &g_array_index(result.trace->events, TraceEvent, i);
        if (e->rank != 0 || e->stream != TRACE_STREAM_COMPUTE)
            continue;
        n_ops += e->kind <= TRACE_EVENT_BACKWARD_WEIGHT;
        *(e->kind == TRACE_EVENT_WAIT ? &wait_ns : &busy_ns) += e->end_ns - e->start_ns;
    }
    const double span_ns = (double)result.trace->makespan_ns, n = (double)MAX(n_ops, 1);
    printf("%s\t%s\t%" G_GINT64_FORMAT "\t%.1f\t%.1f\t%.1f\t%.1f\n", c->label, c->schedule, n_ops,
           (double)busy_ns / n * 1e-3, (double)wait_ns / n * 1e-3,
           (span_ns - (double)busy_ns - (double)wait_ns) / n * 1e-3, span_ns / n * 1e-3);
}

static const Case small_ops[] = {
    {"one rank", 64, 8, 1, 1, 64, "gpipe", 1},
    {"two ranks", 64, 8, 1, 2, 64, "gpipe", 1},
    {"two ranks", 64, 8, 1, 2, 64, "1f1b", 1},
    {"two ranks, slices", 16, 8, 1, 2, 16, "terapipe", 4},
    {"two ranks", 64, 8, 1, 2, 64, "zb-h1", 1},
};

int
main(int argc, char **argv)
{
    const bool is_tiny = argc > 1 && strcmp(argv[1], "--tiny") == 0;
    g_autoptr(GError) error = NULL;
    g_autoptr(ModelArch) arch = model_arch_load(is_tiny ? "gpt-mini" : "gpt2-124m", NULL, &error);
    const ExecBlas *blas = exec_blas_open(NULL);

    if (arch == NULL)
        die("model", error);
    if (blas != NULL) {
        printf("# two threads, %s; %s\n", arch->name, blas->description);
        printf("job\tschedule\tstep_s\ttokens_s\tgflop_s\tsgemm_gflop_s\tshare\tplain_tokens_s\t"
               "times_plain\n");
        double plain = 0;
        for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
            Case c = cases[i];
            c.seq_len = is_tiny ? 64 : c.seq_len;
            if (i == 0 || cases[i].seq_len != cases[i - 1].seq_len)
                plain = plain_s(arch, &c);
            speed(arch, blas, &c, plain, is_tiny);
        }
        printf("# what an op costs beside computing, microseconds\n");
        printf("ranks\tschedule\tops\tcompute\twaiting\tbetween\twhole\n");
        for (size_t i = 0; i < G_N_ELEMENTS(small_ops); i++)
            overhead(&small_ops[i]);
    } else {
        printf("# no OpenBLAS on this machine: nothing to compare\n#\n#\n");
    }
    return 0;
}
