#include "executor/measure/kinds.h"

#define N_KINDS (PROFILE_OP_LAYER_OTHER - PROFILE_OP_LAYER_GEMM + 1)

/* Spans have a fixed place: a device writes their stamps into it later. */
#define MAX_SPANS 16384

typedef struct {
    guint group;
    int kind; /* from PROFILE_OP_LAYER_GEMM */
    int64_t begin_ns, end_ns;
} Span;

/* The calls of one op of the schedule. */
typedef struct {
    ProfileMeasurement key;
    double share;
    double seconds[N_KINDS];
    bool has[N_KINDS];
    bool is_disturbed;
} Group;

struct ExecKinds {
    ExecBackend backend; /* first, so that a slot finds the rest by it */
    ExecBackend *inner;
    GArray *groups; /* (owned) of Group */
    Span *spans;    /* (owned) MAX_SPANS */
    guint n_spans;
};

static inline ExecKinds *
kinds_of(ExecBackend *backend)
{
    return (ExecKinds *)backend;
}

/* Returns: (borrowed, nullable) where the time of a slot goes; NULL: nowhere. */
static Span *
begin_span(ExecKinds *kinds, ProfileOp op)
{
    if (kinds->groups->len == 0 || kinds->n_spans == MAX_SPANS)
        return NULL;
    Span *span = &kinds->spans[kinds->n_spans++];
    span->group = kinds->groups->len - 1;
    span->kind = (int)op - PROFILE_OP_LAYER_GEMM;
    exec_backend_stamp(kinds->inner, &span->begin_ns);
    return span;
}

static void
end_span(ExecKinds *kinds, Span *span)
{
    if (span != NULL)
        exec_backend_stamp(kinds->inner, &span->end_ns);
}

/* --- slots --- */

#define SLOT(slot, kind, parameters, arguments)                                                    \
    static void slot parameters                                                                    \
    {                                                                                              \
        ExecKinds *kinds = kinds_of(backend);                                                      \
        Span *span = begin_span(kinds, PROFILE_OP_LAYER_##kind);                                   \
        backend = kinds->inner;                                                                    \
        backend->ops->slot arguments;                                                              \
        end_span(kinds, span);                                                                     \
    }

SLOT(gemm, GEMM, (ExecBackend * backend, const ExecGemm *g), (backend, g))
SLOT(attention_forward, ATTENTION, (ExecBackend * backend, const ExecAttention *a), (backend, a))
SLOT(attention_backward, ATTENTION,
     (ExecBackend * backend, const ExecAttention *a, const ExecAttentionGradients *g),
     (backend, a, g))
SLOT(norm_forward, NORM, (ExecBackend * backend, const ExecNorm *n, void *y), (backend, n, y))
SLOT(norm_backward, NORM,
     (ExecBackend * backend, const ExecNorm *n, const void *dy, void *dx, float *dgain,
      float *dshift),
     (backend, n, dy, dx, dgain, dshift))
SLOT(zero, OTHER, (ExecBackend * backend, size_t n, void *x), (backend, n, x))
SLOT(copy, OTHER, (ExecBackend * backend, size_t n, const void *x, void *y), (backend, n, x, y))
SLOT(to_storage, OTHER, (ExecBackend * backend, int64_t n, const float *x, void *y),
     (backend, n, x, y))
SLOT(add, OTHER, (ExecBackend * backend, int64_t n, const void *x, void *y), (backend, n, x, y))
SLOT(bias_backward, OTHER,
     (ExecBackend * backend, int64_t rows, int64_t cols, const void *dy, int64_t stride, float *db),
     (backend, rows, cols, dy, stride, db))
SLOT(gelu_forward, OTHER, (ExecBackend * backend, int64_t n, const void *x, void *y),
     (backend, n, x, y))
SLOT(gelu_backward, OTHER, (ExecBackend * backend, int64_t n, const void *x, void *dy),
     (backend, n, x, dy))
SLOT(swiglu_forward, OTHER,
     (ExecBackend * backend, int64_t rows, int64_t width, const void *x, void *y),
     (backend, rows, width, x, y))
SLOT(swiglu_backward, OTHER,
     (ExecBackend * backend, int64_t rows, int64_t width, const void *x, const void *dy, void *dx),
     (backend, rows, width, x, dy, dx))
SLOT(rope, OTHER, (ExecBackend * backend, const ExecRope *r, void *x), (backend, r, x))
SLOT(gather_rows, OTHER,
     (ExecBackend * backend, int64_t rows, int64_t row_bytes, const int32_t *from, const void *x,
      void *y),
     (backend, rows, row_bytes, from, x, y))
SLOT(sum_rows, OTHER,
     (ExecBackend * backend, int64_t rows, int64_t cols, int64_t n, const int32_t *from,
      const void *x, void *y),
     (backend, rows, cols, n, from, x, y))
SLOT(scale_rows, OTHER,
     (ExecBackend * backend, int64_t rows, int64_t cols, const float *factor, void *x),
     (backend, rows, cols, factor, x))
SLOT(dot_rows, OTHER,
     (ExecBackend * backend, int64_t rows, int64_t cols, const void *x, const void *y, float *dot),
     (backend, rows, cols, x, y, dot))

/* The other slots are called rarely or not by layers: they are the inner backend's, whose state
 * this one shares. */
static ExecBackendOps
slots_over(const ExecBackendOps *inner)
{
    ExecBackendOps ops = *inner;

    ops.gemm = gemm;
    ops.attention_forward = attention_forward;
    ops.attention_backward = attention_backward;
    ops.norm_forward = norm_forward;
    ops.norm_backward = norm_backward;
    ops.zero = zero;
    ops.copy = copy;
    ops.to_storage = to_storage;
    ops.add = add;
    ops.bias_backward = bias_backward;
    ops.gelu_forward = gelu_forward;
    ops.gelu_backward = gelu_backward;
    ops.swiglu_forward = swiglu_forward;
    ops.swiglu_backward = swiglu_backward;
    ops.rope = rope;
    if (inner->gather_rows != NULL) {
        ops.gather_rows = gather_rows;
        ops.sum_rows = sum_rows;
        ops.scale_rows = scale_rows;
        ops.dot_rows = dot_rows;
    }
    return ops;
}

/* --- lifecycle --- */

ExecKinds *
exec_kinds_new(ExecBackend *inner)
{
    ExecKinds *kinds = g_new0(ExecKinds, 1);
    ExecBackendOps *ops = g_new(ExecBackendOps, 1);

    *ops = slots_over(inner->ops);
    kinds->inner = inner;
    kinds->backend = *inner;
    kinds->backend.ops = ops;
    kinds->groups = g_array_new(FALSE, TRUE, sizeof(Group));
    kinds->spans = g_new(Span, MAX_SPANS);
    return kinds;
}

void
exec_kinds_free(ExecKinds *kinds)
{
    if (kinds == NULL)
        return;
    g_free((void *)kinds->backend.ops);
    g_array_unref(kinds->groups);
    g_free(kinds->spans);
    g_free(kinds);
}

ExecBackend *
exec_kinds_backend(ExecKinds *kinds)
{
    return &kinds->backend;
}

/* --- collecting --- */

/* Waits for the work, and adds up the spans. */
static bool
fold(ExecKinds *kinds, GError **error)
{
    if (!kinds->inner->ops->synchronize(kinds->inner, error))
        return false;
    for (guint i = 0; i < kinds->n_spans; i++) {
        const Span *span = &kinds->spans[i];
        Group *group = &g_array_index(kinds->groups, Group, span->group);

        group->seconds[span->kind] += (double)(span->end_ns - span->begin_ns) * 1e-9;
        group->has[span->kind] = true;
    }
    kinds->n_spans = 0;
    return true;
}

bool
exec_kinds_begin(ExecKinds *kinds, const ProfileMeasurement *key, double share, GError **error)
{
    const Group group = {.key = *key, .share = share};

    /* Half of the room is more than any op needs. */
    if (kinds->n_spans > MAX_SPANS / 2 && !fold(kinds, error))
        return false;
    g_array_append_val(kinds->groups, group);
    return true;
}

void
exec_kinds_set_disturbed(ExecKinds *kinds)
{
    g_return_if_fail(kinds->groups->len > 0);
    g_array_index(kinds->groups, Group, kinds->groups->len - 1).is_disturbed = true;
}

bool
exec_kinds_collect(ExecKinds *kinds, ExecSamples *samples, GError **error)
{
    if (!fold(kinds, error))
        return false;
    for (guint i = 0; samples != NULL && i < kinds->groups->len; i++) {
        Group *group = &g_array_index(kinds->groups, Group, i);

        for (int kind = 0; kind < N_KINDS; kind++) {
            group->key.op = (ProfileOp)(PROFILE_OP_LAYER_GEMM + kind);
            if (!group->has[kind])
                continue;
            exec_samples_add(samples, &group->key, group->seconds[kind] * group->share,
                             group->is_disturbed);
        }
    }
    g_array_set_size(kinds->groups, 0);
    return true;
}
