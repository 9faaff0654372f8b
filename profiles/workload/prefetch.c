/* The course of an op from part to part: what is whole while each part is at work although replicas
 * split it, and which weights are gathered ahead; cost-model.md 6.3. */
#include "profiles/workload/prefetch.h"

#include "profiles/workload/build.h"

/* Far beyond any memory; sums of a few such levels do not overflow. */
#define MOST_BYTES (INT64_MAX / 64)

WorkloadCoursePart
workload_build_course_part(const WorkloadBuild *build, ModelPart part, int64_t layer,
                           const WorkloadKeptBytes *kept)
{
    const Plan *plan = build->plan;
    const PlanDegrees *d = &plan->degrees;
    const WorkloadSharding sharding = {plan->zero_stage, plan->offload, plan->offload_parameters};
    const int64_t bytes = workload_parameter_bytes(plan->dtype, &plan->conventions).gradient_bytes;
    /* A tied head adds to the gradient of the table, wherever that is. */
    const WorkloadParameters n = workload_build_part_parameters(
        build, part, layer, part == MODEL_PART_HEAD && build->arch->tied_embeddings);
    const int64_t shared = (d->dp * d->cp > 1 ? n.trained_dense : 0) +
                           (plan_expert_replicas(d, &plan->conventions) > 1 ? n.trained_expert : 0);

    return (WorkloadCoursePart){
        .embeds = part == MODEL_PART_EMBEDDING,
        .kept_bytes = kept->kept_bytes,
        .weight_kept_bytes = kept->weight_kept_bytes,
        .weights_bytes = workload_build_mul(
            workload_gathered_elements(d, &sharding, &plan->conventions, n.dense, n.expert),
            workload_build_element_bytes(plan)),
        .gradients_bytes = plan->zero_stage >= 2 ? workload_build_mul(shared, bytes) : 0,
    };
}

/* --- the course of an op --- */

/* An op on its course.  All bytes are beyond what its rank holds when it begins. */
typedef struct {
    const WorkloadCourse *course;
    ScheduleOpKind kind;
    int32_t depth; /* how many gathers are ahead of the part at work; 0: none */
    int64_t level; /* what the parts so far have left */
    int64_t most;  /* the most so far, with what is gathered ahead for this op */
    int64_t *last; /* [r - 1] the most of parts that have r gathers of later ops ahead of them */
} Walk;

static int64_t
plus(int64_t a, int64_t b)
{
    return CLAMP(CLAMP(a, -MOST_BYTES, MOST_BYTES) + CLAMP(b, -MOST_BYTES, MOST_BYTES), -MOST_BYTES,
                 MOST_BYTES);
}

/* Part @i in the order of the course. */
static const WorkloadCoursePart *
part_at(const Walk *c, int64_t i)
{
    return &c->course->parts[c->kind == SCHEDULE_OP_FORWARD ? i : c->course->n_parts - 1 - i];
}

/* W reads no weights, and the gradient of an embedding is made without the table. */
static int64_t
weights_of(const Walk *c, int64_t i)
{
    const WorkloadCoursePart *part = part_at(c, i);

    return c->kind == SCHEDULE_OP_BACKWARD_WEIGHT ||
                   (c->kind != SCHEDULE_OP_FORWARD && part->embeds)
               ? 0
               : part->weights_bytes;
}

/* I makes the gradients of embeddings, which are no products; W makes those of products. */
static int64_t
gradients_of(const Walk *c, const WorkloadCoursePart *part)
{
    const bool here =
        c->kind == SCHEDULE_OP_BACKWARD ||
        c->kind == (part->embeds ? SCHEDULE_OP_BACKWARD_INPUT : SCHEDULE_OP_BACKWARD_WEIGHT);

    return here ? part->gradients_bytes : 0;
}

/* How many bytes more @part leaves than it has found. */
static int64_t
change_of(const Walk *c, const WorkloadCoursePart *part)
{
    switch (c->kind) {
    case SCHEDULE_OP_BACKWARD:
        return -part->kept_bytes;
    case SCHEDULE_OP_BACKWARD_INPUT:
        return part->weight_kept_bytes - part->kept_bytes;
    case SCHEDULE_OP_BACKWARD_WEIGHT:
        return -part->weight_kept_bytes;
    default:
        return 0;
    }
}

/* Goes through part @i.  While it is at work there are its own bytes, its weights and those
 * gathered ahead of it (prefetch.h), its gradients, and what it leaves more.  When a backward comes
 * to the embedding, it has freed what it recomputed. */
static void
visit(Walk *c, int64_t i)
{
    const WorkloadCoursePart *part = part_at(c, i);
    int64_t ahead = 0;
    int32_t n_later = c->depth;
    bool all = true;

    for (int64_t j = i + 1; j < c->course->n_parts && all && n_later > 0; j++) {
        const int64_t weights = weights_of(c, j);
        all = weights <= c->course->prefetch_most_bytes - ahead;
        ahead += all ? weights : 0;
        n_later -= weights > 0;
    }
    int64_t level = plus(plus(c->level, weights_of(c, i)), plus(ahead, gradients_of(c, part)));
    level = plus(level, part->own_bytes[c->kind]);
    if (c->kind == SCHEDULE_OP_BACKWARD || c->kind == SCHEDULE_OP_BACKWARD_INPUT)
        level = plus(level, part->unit_bytes);
    if (c->kind == SCHEDULE_OP_BACKWARD_INPUT)
        level = plus(level, MAX(0, change_of(c, part)));
    if (c->course->embedding && part == c->course->parts)
        level = plus(level, -c->course->again_bytes[c->kind]);
    c->most = MAX(c->most, level);
    if (all && n_later > 0)
        c->last[n_later - 1] = MAX(c->last[n_later - 1], level);
    c->level = plus(c->level, change_of(c, part));
}

void
workload_build_add_course(const WorkloadBuild *build, const WorkloadCourse *course, WorkloadOp *op,
                          int64_t *last_bytes)
{
    const int32_t depth = build->prefetch == NULL ? 0 : build->prefetch->depth;
    /* What an I allocates when it begins (workload.h). */
    const int64_t begins = MAX(0, op->weight_activation_bytes - op->activation_bytes);

    for (int kind = 0; kind < SCHEDULE_OP_N; kind++) {
        int64_t *last = depth == 0 ? NULL : last_bytes + (int64_t)kind * depth;
        Walk c = {course, (ScheduleOpKind)kind, depth, 0, INT64_MIN, last};
        const int64_t workspace =
            plus(op->workspace_bytes[kind], kind == SCHEDULE_OP_BACKWARD_INPUT ? -begins : 0);

        for (int32_t r = 0; r < depth; r++)
            last[r] = WORKLOAD_PREFETCH_NONE;
        for (int64_t i = 0; i < course->n_parts; i++)
            visit(&c, i);
        for (int32_t r = 0; r < depth; r++)
            if (last[r] != WORKLOAD_PREFETCH_NONE)
                last[r] = plus(workspace, last[r]);
        op->workspace_bytes[kind] = MAX(op->workspace_bytes[kind], plus(workspace, c.most));
    }
}

/* --- what is gathered ahead --- */

/* Appends the bytes of each gather of a stage, in the order of its forward. */
static void
add_gathered(const WorkloadBuild *build, const PlanStage *stage, GArray *bytes)
{
    static const WorkloadKeptBytes none = {0};

    for (int64_t i = -1; i <= stage->n_layers; i++) {
        if ((i < 0 && !stage->embedding) || (i == stage->n_layers && !stage->head))
            continue;
        const ModelPart part = i < 0                  ? MODEL_PART_EMBEDDING
                               : i == stage->n_layers ? MODEL_PART_HEAD
                                                      : MODEL_PART_LAYER;
        const int64_t layer = part == MODEL_PART_LAYER ? stage->first_layer + i : 0;
        const int64_t n_bytes = workload_build_course_part(build, part, layer, &none).weights_bytes;
        if (n_bytes > 0)
            g_array_append_val(bytes, n_bytes);
    }
}

/* The bytes of the weights of the largest layer of @stage. */
static int64_t
largest_layer_bytes(const WorkloadBuild *build, const PlanStage *stage)
{
    const PlanDegrees *d = &build->plan->degrees;
    const int64_t etp = plan_expert_tp(d, &build->plan->conventions);
    int64_t largest = 0;
    uint32_t known = 0; /* kinds of layers, as bits */

    G_STATIC_ASSERT(MODEL_MAX_KINDS <= 32);
    for (int64_t i = 0; i < stage->n_layers; i++) {
        const int64_t layer = stage->first_layer + i;
        const uint32_t kind = UINT32_C(1) << model_layer_kind(build->arch, layer);
        if ((known & kind) != 0)
            continue;
        known |= kind;
        largest = MAX(largest, model_part_parameters(build->arch, MODEL_PART_LAYER, layer, d->tp,
                                                     d->ep, etp, false));
    }
    return workload_build_mul(largest, workload_build_element_bytes(build->plan));
}

WorkloadPrefetch *
workload_build_prefetch(const WorkloadBuild *build)
{
    const Plan *plan = build->plan;
    const int32_t depth = workload_plan_prefetch(build->arch, plan);
    const guint n_stages = plan->stages->len;

    if (plan->zero_stage < 3 || !workload_counts_gathered(plan->zero_stage, &plan->conventions) ||
        depth == 0)
        return NULL;
    GArray *bytes = g_array_new(false, false, sizeof(int64_t));
    WorkloadPrefetch *prefetch = g_new0(WorkloadPrefetch, 1);
    prefetch->depth = depth;
    prefetch->most_bytes = g_new0(int64_t, plan->degrees.pp);
    prefetch->begin = g_new0(int64_t, (size_t)n_stages + 1);
    prefetch->is_first = g_new0(int8_t, n_stages);
    for (guint i = 0; i < n_stages; i++) {
        const PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);
        int64_t *most = &prefetch->most_bytes[stage->rank];
        add_gathered(build, stage, bytes);
        prefetch->begin[i + 1] = bytes->len;
        prefetch->is_first[i] = stage->embedding && prefetch->begin[i + 1] > prefetch->begin[i];
        *most = MAX(*most, workload_build_mul(depth, largest_layer_bytes(build, stage)));
    }
    prefetch->bytes = (int64_t *)(void *)g_array_free(bytes, false);
    return prefetch;
}

void
workload_prefetch_free(WorkloadPrefetch *prefetch)
{
    if (prefetch == NULL)
        return;
    g_free(prefetch->most_bytes);
    g_free(prefetch->begin);
    g_free(prefetch->bytes);
    g_free(prefetch->is_first);
    g_free(prefetch->last_bytes);
    g_free(prefetch);
}

int64_t
workload_prefetch_most(const Workload *workload, int64_t op, ScheduleOpKind kind, int32_t rank)
{
    const WorkloadPrefetch *prefetch = workload->prefetch;
    int64_t most = workload->ops[op].workspace_bytes[kind];

    for (int32_t r = 0; prefetch != NULL && r < prefetch->depth; r++) {
        const int64_t last = workload_prefetch_last(prefetch, op, kind)[r];
        if (last != WORKLOAD_PREFETCH_NONE)
            most = MAX(most, plus(last, prefetch->most_bytes[rank]));
    }
    return most;
}

/* --- with the ops that come later --- */

static int64_t
stage_of(const Workload *workload, int64_t op)
{
    return op / ((int64_t)workload->n_classes * workload->n_slices);
}

/* Of at most @n gathers, which begin with the first after the op, in @room_bytes. */
static int64_t
sum_of(const WorkloadLater *later, int32_t n, int64_t room_bytes)
{
    int64_t sum = 0;

    for (int32_t i = 0; i < MIN(n, later->n) && later->bytes[i] <= room_bytes - sum; i++)
        sum += later->bytes[i];
    return sum;
}

int64_t
workload_prefetch_workspace(const Workload *workload, const WorkloadLater *later, int64_t op,
                            ScheduleOpKind kind, int32_t rank)
{
    const WorkloadPrefetch *prefetch = workload->prefetch;
    const int64_t *last = workload_prefetch_last(prefetch, op, kind);
    const int64_t stage = stage_of(workload, op);
    int64_t left = workload_prefetch_n(prefetch, stage, kind), own_bytes = 0;
    int64_t most = workload->ops[op].workspace_bytes[kind];

    /* From its last part on backwards: one more of its own gathers is ahead, one less of others. */
    for (int32_t n = prefetch->depth; n > 0; n--) {
        if (last[n - 1] != WORKLOAD_PREFETCH_NONE)
            most =
                MAX(most, last[n - 1] + sum_of(later, n, prefetch->most_bytes[rank] - own_bytes));
        if (left == 0)
            break;
        own_bytes += workload_prefetch_bytes(prefetch, stage, kind, --left);
    }
    return most;
}

void
workload_prefetch_put_before(const Workload *workload, WorkloadLater *later, int64_t op,
                             ScheduleOpKind kind)
{
    const WorkloadPrefetch *prefetch = workload->prefetch;
    const int64_t stage = stage_of(workload, op);
    const int32_t n = (int32_t)MIN(prefetch->depth, workload_prefetch_n(prefetch, stage, kind));

    later->n = MIN(later->n + n, prefetch->depth);
    for (int32_t i = later->n - 1; i >= n; i--)
        later->bytes[i] = later->bytes[i - n];
    for (int32_t i = 0; i < n; i++)
        later->bytes[i] = workload_prefetch_bytes(prefetch, stage, kind, i);
}
