#include "schedule/zb_auto.h"

#include "schedule/build.h"
#include "schedule/zb_bound.h"

/* Visits of ops that the search may make, some 15 ns each; and how many for each op there is. */
#define WORK (INT64_C(40) << 20)
#define WORK_PER_OP 25000

/* What other parts cost in visits of zb_evaluate(), measured. */
#define VISITS_OF_GREEDY 4
#define VISITS_OF_BOUND 6

typedef struct {
    const ScheduleShape *shape; /* (borrowed) */
    ZbProblem problem;
    ZbTimes times;
    ZbOrder best, trial, named; /* named: the best of the families */
    ZbValue value;              /* of best */
    const char *origin, *name;  /* what best and named come from */
    int64_t work;               /* left */
    uint64_t random;
} Auto;

static int64_t
n_ops(const Auto *a)
{
    return a->problem.p * a->problem.max_length;
}

static bool
is_done(const Auto *a)
{
    return zb_value_is_optimal(&a->problem, a->value);
}

/* Keeps the order in a->trial if it is the best so far. */
static ZbValue
offer_as_it_is(Auto *a, const char *origin)
{
    const ZbValue value = zb_order_value(&a->problem, &a->trial, &a->times);

    a->work -= n_ops(a);
    if (zb_value_compare(value, a->value) < 0) {
        a->value = value;
        a->origin = origin;
        zb_order_copy(&a->best, &a->trial, &a->problem);
    }
    return value;
}

/* Likewise, and with B for every I that its W follows, where that is quicker. */
static ZbValue
offer(Auto *a, const char *origin)
{
    ZbValue value = offer_as_it_is(a, origin);

    if (a->problem.may_fuse) {
        for (int32_t r = 0; r < a->problem.p; r++)
            zb_order_fuse(&a->problem, &a->trial, r);
        const ZbValue fused = offer_as_it_is(a, origin);
        if (zb_value_compare(fused, value) < 0)
            value = fused;
    }
    return value;
}

/* --- candidates --- */

static void
offer_serial(Auto *a)
{
    const ZbProblem *problem = &a->problem;

    for (int32_t r = 0; r < problem->p; r++) {
        uint8_t *types = zb_order_rank(&a->trial, problem, r);
        int64_t n = 0;
        for (int32_t i = 0; i < problem->m; i++) {
            for (int c = 0; c < problem->v; c++)
                types[n++] = zb_type(SCHEDULE_OP_FORWARD, c);
            for (int c = problem->v - 1; c >= 0; c--) {
                types[n++] = zb_type(SCHEDULE_OP_BACKWARD_INPUT, c);
                types[n++] = zb_type(SCHEDULE_OP_BACKWARD_WEIGHT, c);
            }
        }
        a->trial.length[r] = n;
    }
    offer(a, "serial");
}

static void
split_backwards(Auto *a)
{
    for (int32_t r = 0; r < a->problem.p; r++) {
        uint8_t *types = zb_order_rank(&a->trial, &a->problem, r);
        int64_t n = a->problem.max_length;
        for (int64_t i = a->trial.length[r] - 1; i >= 0; i--) {
            const uint8_t type = types[i];
            if (zb_kind(type) == SCHEDULE_OP_BACKWARD) {
                types[--n] = zb_type(SCHEDULE_OP_BACKWARD_WEIGHT, zb_chunk(type));
                types[--n] = zb_type(SCHEDULE_OP_BACKWARD_INPUT, zb_chunk(type));
            } else {
                types[--n] = type;
            }
        }
        g_assert(n == 0);
        a->trial.length[r] = a->problem.max_length;
    }
}

static bool
offer_family(Auto *a, const ScheduleFamily *family, GError **error)
{
    g_autoptr(Schedule) schedule = family->build(family, a->shape, error);
    if (schedule == NULL)
        return false;
    for (int32_t r = 0; r < schedule->n_ranks; r++) {
        uint8_t *types = zb_order_rank(&a->trial, &a->problem, r);
        const ScheduleOp *ops = &schedule->ops[schedule->rank_begin[r]];
        a->trial.length[r] = schedule->rank_begin[r + 1] - schedule->rank_begin[r];
        for (int64_t i = 0; i < a->trial.length[r]; i++)
            types[i] = zb_type(ops[i].kind, ops[i].chunk);
    }
    offer(a, family->name);
    if (!family->splits_backward) {
        split_backwards(a);
        offer(a, family->name);
    }
    return true;
}

static bool
offer_families(Auto *a, GError **error)
{
    for (const ScheduleFamily *const *f = schedule_families(); *f != NULL; f++)
        if (schedule_family_seeds(*f, a->problem.v) && !offer_family(a, *f, error))
            return false;
    zb_order_copy(&a->named, &a->best, &a->problem);
    a->name = a->origin;
    return true;
}

/* --- list scheduling --- */

static ZbValue
try_policy(Auto *a, const ZbPolicy *policy)
{
    a->work -= VISITS_OF_GREEDY * n_ops(a);
    if (!zb_greedy(&a->problem, policy, &a->times, &a->trial))
        return ZB_VALUE_NONE;
    return offer(a, "greedy");
}

static void
set_ahead(const ZbProblem *problem, ZbPolicy *policy, int32_t eighths, int32_t more)
{
    for (int32_t r = 0; r < problem->p; r++) {
        const int64_t ahead = ((int64_t)(problem->p - r) * eighths + 7) / 8 + more;
        policy->ranks[r].ahead = (int32_t)CLAMP(ahead, 1, zb_problem_n_forwards(problem));
    }
}

/* W are put off: as long as they can be, by the rank's number as in ZB-H1, not at all. */
static void
set_pending(const ZbProblem *problem, ZbPolicy *policy, int how)
{
    for (int32_t r = 0; r < problem->p; r++)
        policy->ranks[r].pending = how == 0 ? INT32_MAX : how == 1 ? problem->v * r + 1 : 1;
}

typedef struct {
    ZbPolicy policy;
    ZbValue value;
} Tried;

static void
keep_if_better(Tried *best, const ZbPolicy *policy, ZbValue value, const ZbProblem *problem)
{
    if (zb_value_compare(value, best->value) > 0)
        return;
    best->value = value;
    zb_policy_copy(&best->policy, policy, problem);
}

/* All policies that are alike on all ranks. */
static void
try_grid(Auto *a, Tried *best)
{
    /* The most useful values first, as work may run out: F ahead as in 1F1B, as in ZB-H2, between
     * them, without limit; W that fit before the next message, half of which does, and so on. */
    static const int32_t eighths[] = {8, 16, 12, 10, 14, 1024};
    static const uint8_t patience[] = {8, 4, 0, 12};
    const int n_flags = a->problem.v == 1 ? 2 : 8;
    const int n = (int)(G_N_ELEMENTS(eighths) * 2 * G_N_ELEMENTS(patience)) * n_flags * 3;
    ZbPolicy policy = {.ranks = g_malloc0_n((size_t)a->problem.p, sizeof *policy.ranks)};
    for (int i = 0; i < n && a->work > 0 && !is_done(a); i++) {
        int rest = i;
        for (int32_t r = 0; r < a->problem.p; r++)
            policy.ranks[r].patience = patience[rest % 4];
        rest /= 4;
        policy.forward_first = rest % n_flags & 1;
        policy.first_chunk[0] = rest % n_flags & 2;
        policy.first_chunk[1] = rest % n_flags & 4;
        rest /= n_flags;
        set_ahead(&a->problem, &policy, eighths[rest % 6], rest / 6 % 2 == 0 ? 0 : -1);
        set_pending(&a->problem, &policy, rest / 12);
        keep_if_better(best, &policy, try_policy(a, &policy), &a->problem);
    }
    g_free(policy.ranks);
}

/* Changes the best policy's numbers on one rank, or on some in a row, until so much work is left.
 */
static void
refine(Auto *a, Tried *best, int64_t until)
{
    const ZbProblem *problem = &a->problem;
    const int64_t most = zb_problem_n_forwards(problem);
    ZbPolicy policy = {.ranks = g_malloc0_n((size_t)problem->p, sizeof *policy.ranks)};

    while (a->work > until && !is_done(a)) {
        zb_policy_copy(&policy, &best->policy, problem);
        const int32_t from = (int32_t)zb_random_below(&a->random, problem->p);
        const int64_t more =
            zb_random_below(&a->random, 2) * zb_random_below(&a->random, problem->p - from);
        const int64_t what = zb_random_below(&a->random, 8);
        const int64_t step = zb_random_below(&a->random, 2) == 0 ? 1 : -1;
        const uint8_t patience = (uint8_t)zb_random_below(&a->random, 14);
        for (int32_t r = from; r <= from + more; r++)
            if (what < 4)
                policy.ranks[r].ahead = (int32_t)CLAMP(policy.ranks[r].ahead + step, 1, most);
            else if (what < 6)
                policy.ranks[r].patience = patience;
            else
                policy.ranks[r].pending =
                    (int32_t)CLAMP(MIN(policy.ranks[r].pending, most) + step, 1, most);
        keep_if_better(best, &policy, try_policy(a, &policy), problem);
    }
    g_free(policy.ranks);
}

/* --- the answer --- */

static Schedule *
to_schedule(const Auto *a, GError **error)
{
    const ZbProblem *problem = &a->problem;
    const ScheduleShape shape = {
        .n_ranks = problem->p,
        .n_chunks = problem->v,
        .n_micro_batches = problem->m,
        .n_slices = 1,
    };
    const int64_t n = zb_order_n_ops(&a->best, problem);
    Schedule *schedule =
        schedule_alloc(schedule_family_zb_auto.name, &shape,
                       problem->v == 1 ? SCHEDULE_PLACEMENT_LOOP : SCHEDULE_PLACEMENT_V, n, error);
    if (schedule == NULL)
        return NULL;
    ScheduleEmitter emitter = {schedule->ops, 0};
    g_autofree int32_t *pending = g_new(int32_t, (size_t)problem->v * (size_t)problem->m);
    for (int32_t r = 0; r < problem->p; r++) {
        const uint8_t *types = zb_order_rank(&a->best, problem, r);
        int32_t forwards[ZB_MAX_CHUNKS] = {0}, backwards[ZB_MAX_CHUNKS] = {0};
        int32_t inputs[ZB_MAX_CHUNKS] = {0}, weights[ZB_MAX_CHUNKS] = {0};
        schedule->rank_begin[r] = emitter.n;
        for (int64_t i = 0; i < a->best.length[r]; i++) {
            const int c = zb_chunk(types[i]);
            const ScheduleOpKind kind = (ScheduleOpKind)zb_kind(types[i]);
            int32_t k;
            if (kind == SCHEDULE_OP_FORWARD) {
                k = forwards[c]++;
            } else if (kind == SCHEDULE_OP_BACKWARD_WEIGHT) {
                k = pending[c * problem->m + weights[c]++];
            } else {
                k = backwards[c]++;
                if (kind == SCHEDULE_OP_BACKWARD_INPUT)
                    pending[c * problem->m + inputs[c]++] = k;
            }
            schedule_emit(&emitter, kind, k, c, 0);
        }
    }
    schedule->rank_begin[problem->p] = emitter.n;
    return schedule;
}

static void
auto_clear(Auto *a)
{
    zb_problem_clear(&a->problem);
    zb_times_clear(&a->times);
    zb_order_clear(&a->best);
    zb_order_clear(&a->trial);
    zb_order_clear(&a->named);
}

static bool
set_bounds(Auto *a, GError **error)
{
    const ScheduleObjective objective = a->problem.objective;

    if (VISITS_OF_BOUND * n_ops(a) > a->work)
        return true;
    for (int i = 0; i < 2; i++) {
        ZbBound bound;
        if (!zb_bound_init(&bound, &a->problem, i == 0 ? objective : 1 - objective, true, error))
            return false;
        *(i == 0 ? &a->problem.bound_ns : &a->problem.other_bound_ns) = zb_bound_root_ns(&bound);
        zb_bound_clear(&bound);
        a->work -= VISITS_OF_BOUND * n_ops(a);
    }
    return true;
}

static bool
try_beam(Auto *a, int64_t work, GError **error)
{
    ZbBound bound;
    int64_t left = work;

    if (a->value.ns <= a->problem.bound_ns)
        return true;
    if (!zb_bound_init(&bound, &a->problem, a->problem.objective, false, error))
        return false;
    const ZbBeamResult result = zb_beam(&a->problem, &bound, &a->trial, a->value.ns, &left);
    if (result == ZB_BEAM_BETTER)
        offer(a, "beam");
    else if (result == ZB_BEAM_NONE_EXISTS && !a->problem.may_fuse)
        a->problem.bound_ns = a->value.ns;
    a->work -= work - left;
    zb_bound_clear(&bound);
    return true;
}

static bool
auto_alloc(Auto *a, GError **error)
{
    return zb_problem_init(&a->problem, a->shape, error) &&
           zb_times_init(&a->times, &a->problem, error) &&
           zb_order_init(&a->best, &a->problem, error) &&
           zb_order_init(&a->trial, &a->problem, error) &&
           zb_order_init(&a->named, &a->problem, error);
}

/* Local search from the best order, then from the best family's: that one is often further from the
 * optimum but more regular. */
static void
improve(Auto *a)
{
    for (int i = 0; i < 2 && a->work > 0 && !is_done(a); i++) {
        const char *origin = i == 0 ? a->origin : a->name;
        const int64_t work = i == 0 ? a->work / 2 : a->work;
        ZbValue value;
        zb_order_copy(&a->trial, i == 0 ? &a->best : &a->named, &a->problem);
        zb_improve(&a->problem, &a->trial, &a->times, &value, work, random_next(&a->random));
        a->work -= work;
        offer(a, origin);
    }
}

static bool
auto_search(Auto *a, GError **error)
{
    Tried best = {.value = ZB_VALUE_NONE};

    if (!auto_alloc(a, error))
        return false;
    const int64_t all = MIN(WORK, WORK_PER_OP * n_ops(a));
    a->work = all;
    if (!set_bounds(a, error))
        return false;
    offer_serial(a);
    if (!offer_families(a, error))
        return false;
    best.policy.ranks = g_malloc0_n((size_t)a->problem.p, sizeof *best.policy.ranks);
    set_ahead(&a->problem, &best.policy, 8, 0);
    set_pending(&a->problem, &best.policy, 0);
    try_grid(a, &best);
    const bool fine = try_beam(a, MIN(a->work, all / 2), error);
    if (fine)
        refine(a, &best, a->work / 2);
    g_free(best.policy.ranks);
    if (fine)
        improve(a);
    return fine;
}

/* --- two halves of each stage in a V --- */

/* What the first or the second half of a stage takes: together they are the stage.  Bytes are
 * doubled, limits too. */
static ScheduleStageTimes
half_of(const ScheduleStageTimes *whole, bool second)
{
#define HALF(field) (second ? whole->field - whole->field / 2 : whole->field / 2)
    return (ScheduleStageTimes){
        .forward_ns = HALF(forward_ns),
        .input_ns = HALF(input_ns),
        .weight_ns = HALF(weight_ns),
        .backward_ns = HALF(backward_ns),
        .forward_message_ns = whole->forward_message_ns,
        .backward_message_ns = whole->backward_message_ns,
        .activation_bytes = whole->activation_bytes,
        .weight_activation_bytes = whole->weight_activation_bytes,
    };
#undef HALF
}

/* Replaces *a by a search of the folded shape if that finds a better order. */
static bool
try_folded(Auto *a, GError **error)
{
    const ScheduleTimes *times = a->shape->times;
    const int64_t p = a->shape->n_ranks;
    g_autofree ScheduleStageTimes *stages = g_new(ScheduleStageTimes, 2 * (size_t)p);

    for (int64_t s = 0; s < 2 * p; s++) {
        const int64_t rank = s < p ? s : 2 * p - 1 - s;
        stages[s] = half_of(&times->stages[times->n_stages == 1 ? 0 : rank], s >= p);
    }
    g_autofree int64_t *limits = NULL;
    if (times->limit_bytes != NULL) {
        limits = g_new(int64_t, (size_t)p);
        for (int64_t r = 0; r < p; r++)
            limits[r] = 2 * MIN(times->limit_bytes[r], INT64_MAX / 2);
    }
    ScheduleTimes folded_times = *times;
    folded_times.limit_bytes = limits;
    folded_times.stages = stages;
    folded_times.n_stages = 2 * p;
    folded_times.may_fold = false;
    ScheduleShape shape = *a->shape;
    shape.n_chunks = 2;
    shape.times = &folded_times;
    if (!schedule_shape_check(&schedule_family_zb_auto, &shape, NULL))
        return true; /* too many ops */
    Auto folded = {.shape = &shape, .value = ZB_VALUE_NONE, .random = 1};
    const bool fine = auto_search(&folded, error);
    if (fine && (folded.value.ns < a->value.ns ||
                 (folded.value.ns == a->value.ns && folded.value.other_ns < a->value.other_ns))) {
        auto_clear(a);
        *a = folded;
        a->shape = NULL;
    } else {
        auto_clear(&folded);
    }
    return fine;
}

Schedule *
schedule_zb_auto(const ScheduleShape *shape, ScheduleZbAutoFacts *facts, GError **error)
{
    Auto a = {.shape = shape, .value = ZB_VALUE_NONE, .random = 1};
    Schedule *schedule = NULL;

    g_return_val_if_fail(shape != NULL, NULL);
    if (!schedule_shape_check(&schedule_family_zb_auto, shape, error))
        return NULL;
    bool fine = auto_search(&a, error);
    if (fine && shape->n_chunks == 1 && shape->times != NULL && shape->times->may_fold)
        fine = try_folded(&a, error);
    if (fine)
        schedule = to_schedule(&a, error);
    if (schedule != NULL && facts != NULL) {
        const bool span = a.problem.objective == SCHEDULE_OBJECTIVE_SPAN;
        *facts = (ScheduleZbAutoFacts){
            .makespan_ns = span ? a.value.other_ns : a.value.ns,
            .span_ns = span ? a.value.ns : a.value.other_ns,
            .bound_ns = a.problem.bound_ns,
            .origin = a.origin,
        };
    }
    auto_clear(&a);
    return schedule;
}

static int64_t
bound_ns(const ScheduleShape *shape)
{
    ZbProblem problem;
    ZbBound bound;
    int64_t ns = 0;

    if (zb_problem_init(&problem, shape, NULL) &&
        zb_bound_init(&bound, &problem, problem.objective, true, NULL)) {
        ns = zb_bound_root_ns(&bound);
        zb_bound_clear(&bound);
    }
    zb_problem_clear(&problem);
    return ns;
}

static Schedule *
build(const ScheduleFamily *family, const ScheduleShape *shape, GError **error)
{
    return schedule_zb_auto(shape, NULL, error);
}

const ScheduleFamily schedule_family_zb_auto = {
    .name = "zb-auto",
    .summary = "zero bubble built for given times and memory (automatic, 2401.10241)",
    .splits_backward = true,
    .reads_times = true,
    .searches = true,
    .min_chunks = 1,
    .max_chunks = 2,
    .placement = SCHEDULE_PLACEMENT_V,
    .torch_class = "1F1B",
    .torch_class_of_chunks = "ZBVZeroBubble",
    .torch_reads_ops = true,
    .bound_ns = bound_ns,
    .build = build,
};
