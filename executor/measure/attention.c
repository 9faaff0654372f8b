#include "executor/measure/attention.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/order.h"
#include "executor/device/backend.h"
#include "executor/device/clock.h"

/* Both round to bf16 from sums in fp32, whose order differs: less than an element's rounding, 2^-8,
 * on the average. */
#define TOLERANCE 0x1p-7

#define MOST_TOKENS 4096
#define REPETITIONS 7

/* The host takes less to queue attention (docs/gpu.md). */
#define QUEUEING_NS 1000000

static const char *const kernels[] = {"mma", "wgmma"};

/* What attention reads and writes, in storage format; DKV of slices in fp32. */
enum {
    Q,
    KV, /* a token's keys and then its values */
    DOUT,
    OUT,
    DQ,
    DKV,
    N_TENSORS
};
#define FIRST_RESULT OUT

/* One of the kernels on one shape. */
typedef struct {
    ExecBackend *backend; /* (borrowed) */
    ExecAttention a;
    ExecAttentionGradients g;
    int64_t n[N_TENSORS];
    void *tensors[N_TENSORS]; /* (owned by the backend) */
} Side;

/* --- tensors --- */

static float *
take_fp32(ExecBackend *backend, int64_t n, GError **error)
{
    return backend->ops->alloc(backend, (size_t)n * sizeof(float), "attention", error);
}

/* Fills a tensor with numbers in [-1, 1] that look like chance, the same for every backend. */
static bool
fill(Side *side, int which, GError **error)
{
    const ExecBackendOps *ops = side->backend->ops;
    const int64_t n = side->n[which];
    g_autofree float *host = g_new(float, (size_t)n);
    float *device = take_fp32(side->backend, n, error);

    if (device == NULL)
        return false;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t x = ((uint32_t)i + 1) * 2654435761u * (2u * (uint32_t)which + 1);
        host[i] = (float)(x >> 8) * 0x1p-23f - 1.0f;
    }
    ops->upload(side->backend, (size_t)n * sizeof *host, host, device);
    ops->to_storage(side->backend, n, device, side->tensors[which]);
    ops->release(side->backend, device);
    return true;
}

static bool
side_init(Side *side, ExecBackend *backend, const ExecAttention *shape, GError **error)
{
    const int64_t width = shape->n_kv_heads * shape->head_dim;
    const int64_t n_q = shape->tokens * shape->sequences * shape->n_heads * shape->head_dim;
    const int64_t n_kv = (shape->context + shape->tokens) * shape->sequences * 2 * width;
    const bool sums = shape->context > 0; /* as of slices */

    *side = (Side){.backend = backend, .a = *shape};
    for (int i = 0; i < N_TENSORS; i++) {
        side->n[i] = i == KV || i == DKV ? n_kv : n_q;
        side->tensors[i] = take_fp32(backend, side->n[i], error);
        if (side->tensors[i] == NULL || (i < FIRST_RESULT && !fill(side, i, error)))
            return false;
    }
    side->a.q = side->tensors[Q];
    side->a.k = side->tensors[KV];
    side->a.v = exec_at(backend, side->tensors[KV], width);
    side->a.kv_stride = 2 * width;
    side->a.out = side->tensors[OUT];
    side->a.lse = take_fp32(backend, shape->tokens * shape->sequences * shape->n_heads, error);
    side->g = (ExecAttentionGradients){
        .dout = side->tensors[DOUT],
        .dq = side->tensors[DQ],
        .dk = side->tensors[DKV],
        .dv = sums ? (float *)side->tensors[DKV] + width
                   : exec_at(backend, side->tensors[DKV], width),
        .sums = sums,
    };
    return side->a.lse != NULL;
}

static void
side_clear(Side *side)
{
    if (side->backend == NULL)
        return;
    for (int i = 0; i < N_TENSORS; i++)
        side->backend->ops->release(side->backend, side->tensors[i]);
    side->backend->ops->release(side->backend, side->a.lse);
}

/* Runs forward and backward once; *seconds is what both took. */
static bool
attend(Side *side, double *seconds, GError **error)
{
    ExecBackend *backend = side->backend;
    int64_t begin_ns, end_ns;

    backend->ops->zero(backend, (size_t)side->n[DKV] * sizeof(float), side->tensors[DKV]);
    if (backend->ops->occupy != NULL)
        backend->ops->occupy(backend, QUEUEING_NS);
    exec_backend_stamp(backend, &begin_ns);
    backend->ops->attention_forward(backend, &side->a);
    backend->ops->attention_backward(backend, &side->a, &side->g);
    exec_backend_stamp(backend, &end_ns);
    if (!backend->ops->synchronize(backend, error))
        return false;
    *seconds = (double)(end_ns - begin_ns) * 1e-9;
    return true;
}

/* --- comparing --- */

/* (owned, nullable) */
static float *
read_back(Side *side, int which, GError **error)
{
    const ExecBackendOps *ops = side->backend->ops;
    const int64_t n = side->n[which];
    g_autofree float *host = g_new(float, (size_t)n);
    float *device = take_fp32(side->backend, n, error);

    if (device == NULL)
        return NULL;
    if (which == DKV && side->g.sums)
        ops->copy(side->backend, (size_t)n * sizeof *host, side->tensors[which], device);
    else
        ops->from_storage(side->backend, n, side->tensors[which], device);
    ops->download(side->backend, (size_t)n * sizeof *host, device, host);
    ops->release(side->backend, device);
    return ops->synchronize(side->backend, error) ? g_steal_pointer(&host) : NULL;
}

/* Raises @worst to the largest relative L2 distance of a result; NaN stays. */
static bool
compare(Side sides[2], double *worst, GError **error)
{
    for (int which = FIRST_RESULT; which < N_TENSORS; which++) {
        g_autofree float *old = read_back(&sides[0], which, error);
        g_autofree float *new = old == NULL ? NULL : read_back(&sides[1], which, error);
        double difference = 0, norm = 0;

        if (new == NULL)
            return false;
        for (int64_t i = 0; i < sides[0].n[which]; i++) {
            const double d = (double)new[i] - (double)old[i];
            difference += d * d;
            norm += (double)old[i] * (double)old[i];
        }
        const double distance = sqrt(difference / norm);
        if (!(distance <= *worst))
            *worst = distance;
    }
    return true;
}

/* Compares values at one shape, and takes the median time of each kernel. */
static bool
compare_at(ExecBackend *const backends[2], const ExecAttention *shape, double *worst,
           double seconds[2], GError **error)
{
    Side sides[2] = {{0}, {0}};
    double times[2][REPETITIONS];
    bool ok = side_init(&sides[0], backends[0], shape, error) &&
              side_init(&sides[1], backends[1], shape, error);

    for (int repetition = -1; ok && repetition < REPETITIONS; repetition++) /* -1 warms up */
        for (int i = 0; ok && i < 2; i++)
            ok = attend(&sides[i], &times[i][MAX(repetition, 0)], error);
    ok = ok && compare(sides, worst, error);
    for (int i = 0; i < 2; i++) {
        side_clear(&sides[i]);
        qsort(times[i], REPETITIONS, sizeof times[i][0], order_doubles);
        seconds[i] = times[i][REPETITIONS / 2];
    }
    return ok;
}

/* (owned) "KERNEL\nWHY", or nothing where there is no choice. */
static char *
compare_kernels(ExecBackend *const backends[2], const ModelArch *arch, int64_t seq_len,
                GError **error)
{
    const ExecAttention whole = {.sequences = 1,
                                 .n_heads = arch->n_heads,
                                 .n_kv_heads = arch->n_kv_heads,
                                 .head_dim = arch->head_dim,
                                 .tokens = MIN(seq_len, MOST_TOKENS),
                                 .scale = (float)(1.0 / sqrt((double)arch->head_dim))};
    ExecAttention part = whole;
    double worst = 0, seconds[2], ignored[2];

    part.sequences = 2;
    part.tokens = MIN(whole.tokens, 200);
    part.context = 77;
    if (!compare_at(backends, &part, &worst, ignored, error) ||
        !compare_at(backends, &whole, &worst, seconds, error))
        return NULL;
    const double gain = seconds[0] / seconds[1];
    const bool is_right = worst <= TOLERANCE;
    return g_strdup_printf(
        "%s\n%s is %.2f times as fast as %s (heads of %d, %d tokens), its values "
        "are %.2g apart%s",
        kernels[is_right && gain >= EXEC_ATTENTION_LEAST_GAIN], kernels[1], gain, kernels[0],
        (int)arch->head_dim, (int)whole.tokens, worst, is_right ? "" : ": wrong");
}

/* What the process does that was started for it. */
static char *
choose(const char *device, const ModelArch *arch, int64_t seq_len)
{
    ExecBackend *backends[2] = {NULL, NULL};
    g_autoptr(GError) error = NULL;
    char *answer = NULL;
    bool has_choice = true;

    for (int i = 0; has_choice && i < 2; i++) {
        const ExecBackendOptions options = {.storage = DTYPE_BF16, .attention = kernels[i]};
        backends[i] = exec_backend_open_with(device, &options, NULL);
        has_choice =
            backends[i] != NULL &&
            g_strcmp0(exec_backend_attention_kernel(backends[i], arch->head_dim), kernels[i]) == 0;
    }
    if (has_choice)
        answer = compare_kernels(backends, arch, seq_len, &error);
    if (error != NULL)
        answer = g_strdup_printf("%s\nthe comparison fails: %s", kernels[0], error->message);
    return answer == NULL ? g_strdup("") : answer;
}

/* --- the process --- */

/* Reads until the other end closes; false when time is over. */
static bool
read_all(int fd, int64_t deadline_ns, GString *text)
{
    for (;;) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        const int64_t left_ms = (deadline_ns - exec_now_ns()) / 1000000;
        char piece[512];

        if (left_ms <= 0)
            return false;
        if (poll(&ready, 1, (int)MIN(left_ms, 1000)) <= 0)
            continue;
        const ssize_t n = read(fd, piece, sizeof piece);
        if (n > 0)
            g_string_append_len(text, piece, n);
        else if (n == 0 || errno != EINTR)
            return true;
    }
}

/* Ends the process; a second later it is left to itself, as a driver may keep it.  Returns its
 * status. */
static int
end_process(pid_t pid, bool kills)
{
    int status = 0;

    if (kills)
        kill(pid, SIGKILL);
    for (int i = 0; i < 100 && waitpid(pid, &status, WNOHANG) == 0; i++)
        g_usleep(10000);
    return status;
}

static ExecAttentionChoice
older_because(char *why)
{
    return (ExecAttentionChoice){kernels[0], why};
}

ExecAttentionChoice
exec_measure_choose_attention(const char *device, const ModelArch *arch, Dtype dtype,
                              int64_t seq_len, double limit_s)
{
    g_autoptr(GString) text = g_string_new(NULL);
    int ends[2];

    if (dtype != DTYPE_BF16 || !exec_device_kind(device)->is_gpu || pipe(ends) != 0)
        return (ExecAttentionChoice){0};
    const int64_t deadline_ns = exec_now_ns() + (int64_t)(limit_s * 1e9);
    const pid_t pid = fork();
    if (pid == 0) {
        g_autofree char *answer = choose(device, arch, seq_len);
        const ssize_t n = (ssize_t)strlen(answer);
        _exit(write(ends[1], answer, (size_t)n) == n ? 0 : 1);
    }
    close(ends[1]);
    const bool is_told = read_all(ends[0], deadline_ns, text);
    close(ends[0]);
    if (pid < 0)
        return (ExecAttentionChoice){0};
    const int status = end_process(pid, !is_told);
    if (!is_told)
        return older_because(g_strdup_printf("%s did not end within %g s", kernels[1], limit_s));
    if (text->len == 0 && WIFSIGNALED(status))
        return older_because(
            g_strdup_printf("%s was ended by signal %d", kernels[1], WTERMSIG(status)));
    char *why = strchr(text->str, '\n');
    if (why == NULL)
        return (ExecAttentionChoice){0};
    *why++ = '\0';
    return (ExecAttentionChoice){kernels[g_str_equal(text->str, kernels[1])], g_strdup(why)};
}
