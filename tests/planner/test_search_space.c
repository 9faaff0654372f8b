/*
 * Tests of planner/search.h against full enumeration of small problems.
 * Test runner: first. */
#include "planner/bounds/plan_bound.h"
#include "planner/bounds/point_bound.h"
#include "planner/bounds/sketch.h"
#include "planner/partition/partition.h"
#include "tests/planner/search_case.h"

/* --- full enumeration --- */

/* Plans beyond so many are not looked at: the problem is then too large for a test. */
#define MAX_PLANS 700

/* One plan of the space. */
typedef struct {
    int64_t ns, bytes;
    bool fits; /* the devices */
} Point;

static PlanMemo *costs; /* of one enumeration's layers, whose slices are nearly equal */

typedef struct {
    const PlanRequest *request;
    GArray *points;      /* (owned) of Point */
    int64_t least_bytes; /* of all */
} Enumeration;

/* The bounds of its sketch hold of the plan, of each rank's memory too. */
static void
check_sketch(const PlanRequest *request, const PlanPoint *point, const PlanLayerCost *cost,
             const PlanLayerCost *slice, const Plan *plan, const Report *report)
{
    const ScheduleFamily *family = schedule_family_find(plan->schedule, NULL);
    const guint n = plan->stages->len;
    int64_t counts[64], limits[64] = {0};
    int recomputes[64];
    const PlanSketchInput input = {
        .request = request,
        .point = point,
        .cost = cost,
        .slice = slice,
        .n_slices = plan->slices->len,
        .family = family,
        .flight = plan_bound_flight(plan, flights),
        .counts = counts,
        .limits_bytes = limits,
        .wants_leanest = true,
    };
    g_auto(PlanSketch) sketch = {0};

    g_assert_cmpuint(n, <=, G_N_ELEMENTS(counts));
    for (guint k = 0; k < n; k++) {
        const PlanStage *stage = &g_array_index(plan->stages, PlanStage, k);
        counts[k] = stage->n_layers;
        recomputes[k] = (int)stage->recompute;
    }
    plan_sketch_init(&sketch, &input);
    g_assert_cmpint(plan_sketch_recomputes_ns(&sketch, &input, NULL), <=, report->iteration_ns);
    g_assert_cmpint(plan_sketch_recomputes_ns(&sketch, &input, recomputes), <=,
                    report->iteration_ns);
    plan_sketch_weigh(&sketch, &input);
    for (guint k = 1; k < n; k++)
        if (recomputes[k] != recomputes[0])
            return;
    for (int32_t r = 0; r < sketch.n_ranks; r++)
        g_assert_cmpint(sketch.bytes[r * PLAN_RECOMPUTE_N + recomputes[0]], <=,
                        g_array_index(report->ranks, ReportRank, r).peak_memory_bytes);
}

/* The bounds of the plan's point hold of it, however it is sliced; the given slices' too. */
static void
check_point_bounds(const PlanRequest *request, const Plan *plan, const Report *report)
{
    const ScheduleFamily *family = schedule_family_find(plan->schedule, NULL);
    const PlanPointFamilies families = plan_point_family(family);
    PlanPoint point = {
        .degrees = plan->degrees,
        .micro_batch = plan->micro_batch,
        .n_micro_batches = plan->n_micro_batches,
        .zero_stage = plan->zero_stage,
        .offload = plan->offload,
        .sequence_parallel = plan->sequence_parallel,
        .is_balanced = true,
    };
    const PlanLayerShape shape = plan_point_layer_shape(&point);
    const PlanLayerCost *cost = &plan_layer_uniform_cost(costs, request, &shape, 1)->whole;
    const PlanSlicedCost *given =
        plan_layer_uniform_cost(costs, request, &shape, (int64_t)plan->slices->len);
    const PlanLayerCost *slice = plan->slices->len > 1 ? &given->slice : &given->whole;

    plan_point_bound_bytes(request, cost, INT64_MAX, &point);
    g_assert_cmpint(plan_point_sliced_ns(request, cost, &point), <=, report->iteration_ns);
    g_assert_cmpint(point.sliced_bytes, <=, report->peak_memory_bytes);
    plan_point_bound_bytes(request, &given->whole, INT64_MAX, &point);
    g_assert_cmpint(plan_point_bound_ns(request, &given->whole, slice, &point, &families), <=,
                    report->iteration_ns);
    g_assert_cmpint(point.bound_bytes, <=, report->peak_memory_bytes);
    check_sketch(request, &point, &given->whole, slice, plan, report);
}

static bool
breaks_rules(const PlanRequest *request, const Plan *plan)
{
    g_autoptr(GArray) broken =
        plan_rules_broken(request->conventions.framework, request->arch, plan);

    return broken->len > 0;
}

static void
try_plan(Enumeration *all, const Plan *plan)
{
    const PlanRequest *request = all->request;
    g_autoptr(GError) error = NULL;

    if (all->points->len > MAX_PLANS || (request->rules != NULL && breaks_rules(request, plan)))
        return;
    g_autoptr(Workload) workload = workload_new(request->arch, request->profile, plan, 0, &error);
    g_autoptr(Report) report = NULL;
    g_assert_no_error(error);
    g_assert_true(simulate(plan, workload, INT64_MAX, &report, NULL, &error));
    check_point_bounds(request, plan, report);
    const Point point = {report->iteration_ns, report->peak_memory_bytes, report->fits};
    g_array_append_val(all->points, point);
    all->least_bytes = MIN(all->least_bytes, point.bytes);
}

/* The least of what fits under the request's limit or the devices'; INT64_MAX: nothing does. */
static Point
best_of(const Enumeration *all)
{
    const PlanRequest *request = all->request;
    const int64_t limit = request->memory_limit_bytes;
    Point best = {INT64_MAX, INT64_MAX, false};

    for (guint i = 0; i < all->points->len; i++) {
        const Point *point = &g_array_index(all->points, Point, i);
        if (limit > 0 ? point->bytes > limit : !point->fits)
            continue;
        best.ns = MIN(best.ns, point->ns);
        best.bytes = MIN(best.bytes, point->bytes);
    }
    return best;
}

/* All ways of recompute that the request allows: with one stage per rank and whole sequences each
 * stage in each, else all stages in one. */
static void
try_recomputes(Enumeration *all, Plan *plan)
{
    const int fixed = all->request->recompute;
    const guint n = plan->stages->len;
    const PlanLayerShape shape = {plan->degrees, plan->micro_batch, plan->sequence_parallel};
    const bool own = n == plan->degrees.pp && plan->slices->len == 1 &&
                     !plan_layer_recomputes_depend(all->request, &shape);
    int64_t n_combinations = 1;

    for (guint k = 0; k < (own ? n : 1); k++)
        n_combinations *= PLAN_RECOMPUTE_N;
    for (int64_t i = 0; i < n_combinations; i++) {
        bool allowed = true;
        for (guint k = 0, digits = (guint)i; k < n; k++) {
            PlanStage *stage = &g_array_index(plan->stages, PlanStage, k);
            stage->recompute = (PlanRecompute)(digits % PLAN_RECOMPUTE_N);
            digits /= own ? PLAN_RECOMPUTE_N : 1;
            allowed = allowed && (fixed == PLAN_AUTO || fixed == (int)stage->recompute);
        }
        if (allowed)
            try_plan(all, plan);
    }
}

/* Beyond so many divisions of a chain a search tries but the even, the balanced and the fitted one. */
#define MOST_DIVISIONS 64

/* How many divisions of @left units over @n stages there are; the ends may be alone.  So few that
 * counting is quick, or more than MOST_DIVISIONS. */
static int64_t
count_divisions(const ModelArch *arch, int64_t n, int64_t at, int64_t left)
{
    const int64_t least = arch->vocab > 0 && n > 1 && (at == 0 || at + 1 == n) ? 0 : 1;
    int64_t ways = 0;

    if (at + 1 == n)
        return left >= least;
    for (int64_t count = least; count <= left && ways <= MOST_DIVISIONS; count++)
        ways += count_divisions(arch, n, at + 1, left - count);
    return ways;
}

/* Every division of the units over the stages of a chain, in all chains, from stage @at on, of which
 * @left are not placed yet; the ends may be alone, and MTP modules stay together. */
static void
try_divisions(Enumeration *all, Plan *plan, guint length, guint at, int64_t left)
{
    const ModelArch *arch = all->request->arch;
    const int64_t last = arch->mtp.n > 0 ? arch->mtp.n - 1 : 0;
    const int64_t least = arch->vocab > 0 && length > 1 && (at == 0 || at + 1 == length) ? 0 : 1;

    for (int64_t count = at + 1 == length ? left : least; count <= left; count++) {
        if (count < least || all->points->len > MAX_PLANS)
            return;
        for (guint i = at; i < plan->stages->len; i += length) {
            PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);
            stage->first_layer = at == 0 ? 0 : stage[-1].first_layer + stage[-1].n_layers;
            stage->n_layers = count + (count > 0 && count == left ? last : 0);
        }
        if (at + 1 < length)
            try_divisions(all, plan, length, at + 1, left - count);
        else
            try_recomputes(all, plan);
    }
}

/* The same plan with stages by plan_partition(). */
static void
try_balanced(Enumeration *all, Plan *plan, const ScheduleFamily *family)
{
    const PlanRequest *request = all->request;
    const int64_t length = family->placement == SCHEDULE_PLACEMENT_BIDIR
                               ? plan->degrees.pp
                               : plan->degrees.pp * plan->degrees.vpp;
    const ModelCluster *cluster = request->profile->cluster;
    const int64_t n_layers = model_n_stacked(request->arch), n_kinds = (int64_t)cluster->nodes->len;
    const int64_t n_units = request->arch->n_layers + (request->arch->mtp.n > 0);
    const int64_t n_each = plan->degrees.dp * plan->degrees.cp * plan->degrees.tp;
    int64_t layer_ns[64], counts[64], end_ns[4];
    int32_t kinds[64];
    const PlanLayerShape shape = {plan->degrees, plan->micro_batch, plan->sequence_parallel};
    int64_t unit_ns[64] = {0};
    const PlanPartition partition = {.n_layers = n_units,
                                     .n_stages = length,
                                     .lone_ends = request->arch->vocab > 0,
                                     .layer_ns = unit_ns,
                                     .end_ns = end_ns,
                                     .stage_kind = n_kinds > 1 ? kinds : NULL};

    if (length > n_units + (request->arch->vocab > 0 ? 2 : 0))
        return;
    /* Of two kinds of nodes the second is the slower one. */
    for (int64_t i = 0, first = 0; i < n_kinds; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);
        plan_layer_times(request, &shape, (PlanRecompute)MAX(0, request->recompute), first,
                         layer_ns + i * n_layers, end_ns + i * 2);
        first += nodes->n_devices * nodes->n_nodes;
        for (int64_t k = 0; i == 0 && k < length; k++)
            kinds[k] = (g_array_index(plan->stages, PlanStage, (guint)k).rank + 1) * n_each > first;
    }
    /* MTP modules stay together. */
    for (int64_t i = 0; i < n_kinds * n_layers; i++)
        unit_ns[i / n_layers * n_units + MIN(i % n_layers, n_units - 1)] += layer_ns[i];
    g_assert_true(plan_partition(&partition, counts, NULL));
    for (int64_t k = length - 1, left = n_layers - n_units; left > 0; k--)
        if (counts[k] > 0) {
            counts[k] += left;
            left = 0;
        }
    for (guint i = 0, first = 0; i < plan->stages->len; i++) {
        PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);
        first = i % length == 0 ? 0 : first;
        stage->first_layer = first;
        stage->n_layers = counts[i % length];
        first += (guint)counts[i % length];
    }
    try_recomputes(all, plan);
}

/* All families at fixed degrees and savers. */
static void
try_families(Enumeration *all, PlanRequest fixed)
{
    const ScheduleFamily *const *families = schedule_families();

    for (size_t i = 0; families[i] != NULL; i++) {
        const char *names[2] = {families[i]->name, NULL};
        if (all->request->schedules != NULL &&
            !g_strv_contains(all->request->schedules, families[i]->name))
            continue;
        if (all->request->schedules == NULL && families[i]->reads_times)
            continue;
        for (fixed.vpp = 1; fixed.vpp <= model_n_stacked(fixed.arch) + 2; fixed.vpp++) {
            g_autoptr(GError) error = NULL;
            if (all->request->vpp > 0 ? all->request->vpp != fixed.vpp
                                      : fixed.pp == 1 && fixed.vpp > 1)
                continue;
            /* Halves of a backward are rounded apart: a nanosecond less is no better plan. */
            if (all->request->schedules == NULL && fixed.pp == 1 && fixed.vpp == 1 &&
                families[i]->splits_backward)
                continue;
            fixed.schedules = names;
            /* What does not exist, plan_check() and model_shape_check() refuse. */
            g_autoptr(Plan) plan = plan_from_request(&fixed, &error);
            const int64_t n = fixed.pp * fixed.vpp;
            if (plan == NULL || (families[i]->placement == SCHEDULE_PLACEMENT_BIDIR ? n / 2 : n) >
                                    plan_request_most_stages(&fixed))
                continue;
            g_autoptr(Workload) workload = workload_new(fixed.arch, fixed.profile, plan, 0, NULL);
            if (workload == NULL || all->points->len > MAX_PLANS)
                continue;
            const int64_t length = families[i]->placement == SCHEDULE_PLACEMENT_BIDIR ? n / 2 : n;
            const int64_t n_units = plan_request_n_units(&fixed);
            try_recomputes(all, plan);
            if (fixed.pp > 1 && count_divisions(fixed.arch, length, 0, n_units) <= MOST_DIVISIONS)
                try_divisions(all, plan, (guint)length, 0, n_units);
            else if (fixed.pp > 1)
                try_balanced(all, plan, families[i]);
        }
    }
}

static Enumeration
enumerate(const PlanRequest *request, int64_t n)
{
    Enumeration all = {.request = request,
                       .points = g_array_new(FALSE, FALSE, sizeof(Point)),
                       .least_bytes = INT64_MAX};
    PlanRequest f = *request;

    costs = plan_memo_new();
    f.rules = NULL; /* plans that break them are left out one by one */
    for (f.tp = 1; f.tp <= n; f.tp++)
        for (f.pp = 1; f.pp <= n; f.pp++)
            for (f.cp = 1; f.cp <= n; f.cp++)
                for (f.dp = 1; f.dp <= n; f.dp++) {
                    if (f.tp * f.pp * f.cp * f.dp != n ||
                        (request->tp > 0 && f.tp != request->tp) ||
                        (request->pp > 0 && f.pp != request->pp) ||
                        (request->cp > 0 && f.cp != request->cp) ||
                        (request->dp > 0 && f.dp != request->dp) || f.global_batch % f.dp != 0)
                        continue;
                    for (f.micro_batch = 1; f.micro_batch <= f.global_batch; f.micro_batch++)
                        for (f.ep = 1; f.ep <= MAX(1, f.arch->experts.n_experts); f.ep++)
                            for (f.recompute = PLAN_RECOMPUTE_NONE;
                                 f.recompute < PLAN_RECOMPUTE_SELECTIVE; f.recompute++)
                                for (f.zero_stage = 0; f.zero_stage <= 3; f.zero_stage++)
                                    for (int sp = 0;
                                         sp <= (f.tp > 1 || request->sequence_parallel == 1);
                                         sp++) {
                                        if (f.global_batch / f.dp % f.micro_batch != 0 ||
                                            (request->micro_batch > 0 &&
                                             request->micro_batch != f.micro_batch) ||
                                            (request->zero_stage != PLAN_AUTO &&
                                             request->zero_stage != f.zero_stage) ||
                                            (request->sequence_parallel != PLAN_AUTO &&
                                             request->sequence_parallel != sp))
                                            continue;
                                        f.sequence_parallel = sp;
                                        try_families(&all, f);
                                    }
                }
    g_clear_pointer(&costs, plan_memo_free);
    return all;
}

/* A random problem; most flags fixed, so that the enumeration stays small. */
static PlanRequest
random_request(uint32_t *state, const ModelArch *arch, const Profile *profile)
{
    static const char *const lists[][3] = {{"1f1b", NULL},
                                           {"gpipe", "interleaved", NULL},
                                           {"1f1b", "zb-h1", NULL},
                                           {"naive", NULL},
                                           {"hanayo", NULL}};
    /* One of each kind of conventions. */
    static const PlanFramework frameworks[] = {PLAN_FRAMEWORK_DEGAS,
                                               PLAN_FRAMEWORK_MEGATRON_LM,
                                               PLAN_FRAMEWORK_MEGATRON_CORE,
                                               PLAN_FRAMEWORK_MEGATRON_BRIDGE,
                                               PLAN_FRAMEWORK_MEGATRON_DEEPSPEED,
                                               PLAN_FRAMEWORK_DEEPSPEED,
                                               PLAN_FRAMEWORK_FSDP,
                                               PLAN_FRAMEWORK_TERAPIPE};
    PlanRequest request = request_of(arch, profile, (int64_t[]){1, 2, 4, 6, 8}[draw(state) % 5]);

    if (draw(state) % 2 == 0)
        request.schedules = lists[draw(state) % G_N_ELEMENTS(lists)];
    if (draw(state) % 2 != 0)
        request.recompute = (int)(draw(state) % PLAN_RECOMPUTE_N);
    if (draw(state) % 5 != 0)
        request.zero_stage = (int)(draw(state) % 4);
    if (draw(state) % 3 != 0)
        request.cp = 1;
    if (draw(state) % 2 == 0)
        request.pp = (int64_t[]){1, 2, 2, 4}[draw(state) % 4];
    if (draw(state) % 4 == 0)
        request.tp = (int64_t[]){1, 2, 3, 4}[draw(state) % 4];
    if (draw(state) % 3 == 0)
        request.micro_batch = 1 + draw(state) % 2;
    if (draw(state) % 4 == 0)
        request.sequence_parallel = (int)(draw(state) % 2);
    if (draw(state) % 2 == 0)
        request.vpp = (int64_t[]){1, 1, 2, 3}[draw(state) % 4];
    request.conventions = plan_conventions(frameworks[draw(state) % G_N_ELEMENTS(frameworks)]);
    if (draw(state) % 3 == 0)
        request.prefetch_layers = (int32_t)(draw(state) % 4);
    if (request.zero_stage == 3 && draw(state) % 2 == 0) {
        request.offload = PLAN_OFFLOAD_CPU;
        request.offload_parameters = true;
    }
    return request;
}

typedef struct {
    int n, n_feasible, n_limited;
    int n_sliced; /* answers of several slices and stages */
    int n_mixed;  /* answers whose stages recompute differently */
    int n_better; /* than the enumeration */
} Tally;

/* Whether stages recompute differently. */
static bool
is_mixed(const Plan *plan)
{
    for (guint k = 1; k < plan->stages->len; k++)
        if (g_array_index(plan->stages, PlanStage, k).recompute !=
            g_array_index(plan->stages, PlanStage, 0).recompute)
            return true;
    return false;
}

/* Of plans of the least memory the fastest: as where alternatives are asked for, whose times are
 * all found. */
static void
check_least_memory(const PlanRequest *request, const Plan *plan)
{
    PlanRequest with_others = *request;

    with_others.top = 1;
    g_autoptr(Plan) same = plan_search(&with_others, simulate, NULL, NULL);
    g_assert_nonnull(same);
    g_assert_cmpint(plan->predicted->peak_memory_bytes, ==, same->predicted->peak_memory_bytes);
    g_assert_cmpint(plan->predicted->iteration_ns, ==, same->predicted->iteration_ns);
    g_assert_cmpstr(plan->schedule, ==, same->schedule);
    g_assert_cmpint(plan->degrees.dp, ==, same->degrees.dp);
    g_assert_cmpint(plan->degrees.tp, ==, same->degrees.tp);
    g_assert_cmpint(plan->degrees.pp, ==, same->degrees.pp);
    g_assert_null(plan->alternatives);
}

static void
check_against_enumeration(const PlanRequest *request, const Enumeration *all, Tally *tally)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = plan_search(request, simulate, NULL, &error);
    const Point best = best_of(all);

    /* Contradictory requests are checked, but prove little. */
    tally->n += all->points->len > 0;
    /* Layers that were divided so that they fit may fit where the enumeration's do not. */
    if (best.ns == INT64_MAX && plan != NULL) {
        g_assert_cmpint(plan->degrees.pp, >, 1);
        g_assert_cmpint(request->memory_limit_bytes, >, 0);
        g_assert_cmpint(plan->predicted->peak_memory_bytes, <=, request->memory_limit_bytes);
        tally->n_better++;
        return;
    }
    if (best.ns == INT64_MAX) {
        g_assert_cmpint(error->domain, ==, PLAN_ERROR);
        g_assert_cmpint(error->code, ==,
                        all->points->len == 0 && error->code == PLAN_ERROR_INVALID
                            ? PLAN_ERROR_INVALID
                            : PLAN_ERROR_INFEASIBLE);
        return;
    }
    g_assert_no_error(error);
    tally->n_feasible++;
    tally->n_sliced += plan->slices->len > 1 && plan->degrees.pp > 1;
    tally->n_mixed += is_mixed(plan);
    if (request->objective == PLAN_OBJECTIVE_MEMORY) {
        g_assert_cmpint(plan->predicted->peak_memory_bytes, ==, best.bytes);
        check_least_memory(request, plan);
        return;
    }
    /* Better only by stages that the enumeration does not have: layers that were divided so that
     * they fit, or chunks of one rank that recompute each in their own way. */
    g_assert_cmpint(plan->predicted->iteration_ns, <=, best.ns);
    if (plan->predicted->iteration_ns < best.ns)
        tally->n_better++;
    g_assert_cmpfloat(plan->lower_bound_s, <=, (double)best.ns * 1e-9);
    g_assert_true(plan->predicted->fits);
    /* What was simulated and does not fit counts as both. */
    g_assert_cmpint(plan->search.considered, >=, plan->search.pruned + plan->search.simulated);
    g_assert_cmpint(plan->search.considered, <=,
                    plan->search.pruned + plan->search.simulated + plan->search.infeasible);
}

/* A limit near what the leanest plan needs, so that not everything fits. */
static int64_t
random_limit(uint32_t *state, const Enumeration *all)
{
    return all->least_bytes + (int64_t)(draw(state) % 100) * (all->least_bytes / 400) -
           all->least_bytes / 50;
}

/* @n_problems random ones, if @has_rules under the rules of their frameworks; @mixes: of layers of
 * several kinds. */
static Tally
compare_problems(uint32_t state, int n_problems, bool has_rules, bool mixes)
{
    Tally tally = {0};

    flights = plan_memo_new();
    while (tally.n < n_problems) {
        g_autoptr(ModelArch) arch = small_arch(1 + draw(&state) % 6, draw(&state) % 8 == 0 ? 4 : 0,
                                               draw(&state) % 3 == 0 ? 0 : 8192);
        if (mixes)
            mix_layers(arch, &state);
        g_autoptr(Profile) profile =
            cluster_of("p3.16xlarge", (int64_t[]){1, 2, 3, 4, 4, 8}[draw(&state) % 6]);
        const int64_t n = model_cluster_n_devices(profile->cluster);
        PlanRequest request = random_request(&state, arch, profile);
        const char *first[] = {NULL, NULL};
        if (has_rules)
            plan_request_set_rules(&request);
        /* What is named, the framework runs. */
        if (request.rules != NULL) {
            first[0] = request.rules->schedules[0];
            request.schedules = request.schedules != NULL ? first : NULL;
            request.dtype =
                (request.rules->dtypes >> DTYPE_BF16 & 1) != 0 ? DTYPE_BF16 : DTYPE_FP16;
            request.conventions.grad_dtype = DTYPE_FP32;
        }
        const Enumeration all = enumerate(&request, n);
        g_autoptr(GArray) points = all.points;
        if (points->len > MAX_PLANS)
            continue;
        /* Half of the time a limit. */
        if (points->len > 0 && draw(&state) % 2 == 0) {
            request.memory_limit_bytes = random_limit(&state, &all);
            tally.n_limited++;
        }
        if (draw(&state) % 8 == 0)
            request.objective = PLAN_OBJECTIVE_MEMORY;
        /* Of every other search something is said, true or not. */
        request.near_tp = tally.n % 2 * (INT64_C(1) << tally.n / 2 % 3);
        request.near_pp = tally.n % 2 * (INT64_C(1) << tally.n / 6 % 3);
        if (tally.n / 2 % 2 == 0) {
            request.near_cp = INT64_C(1) << tally.n / 4 % 2;
            request.near_vpp = 1 + tally.n / 4 % 3;
            request.near_micro_batch = INT64_C(1) << tally.n / 8 % 3;
        }
        check_against_enumeration(&request, &all, &tally);
    }
    g_clear_pointer(&flights, plan_memo_free);
    g_test_message("%d problems, %d feasible, %d limited, %d mixed, %d better", tally.n,
                   tally.n_feasible, tally.n_limited, tally.n_mixed, tally.n_better);
    return tally;
}

/* Of the plans that keep a framework's rules the search finds the best, and no other. */
static void
test_rules_equal_full_enumeration(void)
{
    const Tally tally = compare_problems(17, 150, true, false);

    g_assert_cmpint(tally.n_feasible, >, 100);
    g_assert_cmpint(tally.n_better, <, tally.n_feasible / 10);
}

static void
test_equals_full_enumeration(void)
{
    const int n = g_test_slow() ? 2400 : 300;
    const Tally tally = compare_problems(11, n, false, false);

    g_assert_cmpint(tally.n_feasible, >, n / 3 * 2);
    g_assert_cmpint(tally.n_limited, >, n / 3);
    g_assert_cmpint(tally.n_mixed, >, n / 120);
    g_assert_cmpint(tally.n_better, <, tally.n_feasible / 10);
}

/* @n devices, half of them in a second node of slower ones, with less memory and links of its own.
 */
static Profile *
mixed_cluster(uint32_t *state, int64_t n)
{
    Profile *profile = cluster_of("p3.16xlarge", n);
    ModelCluster *cluster = profile->cluster;
    const double share = 0.25 + 0.25 * (double)(draw(state) % 3);
    ModelDevice slow = g_array_index(cluster->devices, ModelDevice, 0);
    ModelNodes nodes = g_array_index(cluster->nodes, ModelNodes, 0);

    slow.name = g_strdup("slow");
    for (int i = 0; i < DTYPE_N; i++)
        slow.flops_per_s[i] *= share;
    slow.vector_flops_per_s *= share;
    slow.memory_bytes_per_s *= share;
    slow.memory_bytes -= (int64_t)(draw(state) % 2) * (slow.memory_bytes / 2);
    g_array_append_val(cluster->devices, slow);
    nodes.n_devices = n / 2;
    g_array_set_size(cluster->nodes, 0);
    g_array_append_val(cluster->nodes, nodes);
    nodes.device = 1;
    for (size_t level = 0; level < cluster->levels->len; level++) {
        ModelLink link = model_cluster_link(cluster, 0, level);
        link.bytes_per_s *= share;
        link.latency_s *= 2.0;
        nodes.has_link[level] = draw(state) % 2 == 0;
        nodes.links[level] = link;
    }
    g_array_append_val(cluster->nodes, nodes);
    g_assert_cmpint(model_cluster_n_devices(cluster), ==, n);
    return profile;
}

static void
test_two_kinds_of_devices_equal_full_enumeration(void)
{
    uint32_t state = 23;
    Tally tally = {0};
    int n_pipelines = 0;

    flights = plan_memo_new();
    while (tally.n < 80) {
        g_autoptr(ModelArch) arch = small_arch(2 + draw(&state) % 5, draw(&state) % 8 == 0 ? 4 : 0,
                                               draw(&state) % 3 == 0 ? 0 : 8192);
        const int64_t n = (int64_t[]){2, 4, 4, 8}[draw(&state) % 4];
        g_autoptr(Profile) profile = mixed_cluster(&state, n);
        PlanRequest request = random_request(&state, arch, profile);
        if (draw(&state) % 2 == 0)
            request.pp = 2;
        const Enumeration all = enumerate(&request, n);
        g_autoptr(GArray) points = all.points;
        if (points->len > MAX_PLANS)
            continue;
        if (points->len > 0 && draw(&state) % 3 == 0)
            request.memory_limit_bytes = random_limit(&state, &all);
        const int n_before = tally.n;
        check_against_enumeration(&request, &all, &tally);
        n_pipelines += tally.n > n_before && request.pp > 1;
    }
    g_clear_pointer(&flights, plan_memo_free);
    g_test_message("%d problems, %d feasible, %d of several stages, %d better", tally.n,
                   tally.n_feasible, n_pipelines, tally.n_better);
    g_assert_cmpint(tally.n_feasible, >, 60);
    g_assert_cmpint(n_pipelines, >, 20);
    g_assert_cmpint(tally.n_better, <, 8);
}

/* Windows, states, and layers without one half, in any order; 2 000 stacks with -m slow. */
static void
test_mixed_stacks_equal_full_enumeration(void)
{
    const int n = g_test_slow() ? 2000 : 80;
    const Tally tally = compare_problems(23, n, false, true);

    g_assert_cmpint(tally.n_feasible, >, n / 2);
}

/* With few micro-batches a bound that holds of whole sequences does not hold of slices. */
static void
compare_slices(uint32_t state, int n_problems, bool mixes)
{
    Tally tally = {0};

    flights = plan_memo_new();
    while (tally.n < n_problems) {
        g_autoptr(ModelArch) arch =
            long_arch((int64_t[]){4, 4, 5, 8}[draw(&state) % 4], draw(&state) % 2 * 8192);
        if (mixes)
            mix_layers(arch, &state);
        g_autoptr(Profile) profile = cluster_of("p3.16xlarge", 2 << draw(&state) % 3);
        const int64_t n = model_cluster_n_devices(profile->cluster);
        PlanRequest request = random_request(&state, arch, profile);
        request.schedules = NULL;
        request.dtype = DTYPE_FP16;
        request.global_batch = 1 << draw(&state) % 3;
        request.slices_mode = PLAN_SLICES_UNIFORM;
        request.n_slices = 2 << draw(&state) % 2;
        const Enumeration all = enumerate(&request, n);
        g_autoptr(GArray) points = all.points;
        if (points->len <= MAX_PLANS)
            check_against_enumeration(&request, &all, &tally);
    }
    g_clear_pointer(&flights, plan_memo_free);
    g_test_message("%d problems, %d feasible, %d of several stages and slices", tally.n,
                   tally.n_feasible, tally.n_sliced);
    g_assert_cmpint(tally.n_sliced, >, n_problems / 3);
}

/* Whether all stages have as many layers, or one more or less. */
static bool
has_even_stages(const Plan *plan)
{
    int64_t least = INT64_MAX, most = 0;

    for (guint k = 0; k < plan->stages->len; k++) {
        const int64_t n = g_array_index(plan->stages, PlanStage, k).n_layers;
        least = MIN(least, n);
        most = MAX(most, n);
    }
    return most - least <= 1;
}

/* Whether the embedding or the head is a stage without layers. */
static bool
has_lone_end(const Plan *plan)
{
    return g_array_index(plan->stages, PlanStage, 0).n_layers == 0 ||
           g_array_index(plan->stages, PlanStage, plan->stages->len - 1).n_layers == 0;
}

/* Of all divisions of single chunks, with every recompute kind of every stage, the search finds the
 * best; 2 000 stacks with -m slow. */
static void
test_divisions_equal_the_best_of_all(void)
{
    const int n_problems = g_test_slow() ? 2000 : 80;
    uint32_t state = 51;
    int n = 0, n_limited = 0, n_uneven = 0, n_lone = 0, n_mtp = 0, n_own = 0;

    flights = plan_memo_new();
    while (n < n_problems) {
        g_autoptr(ModelArch) arch = small_arch(3 + draw(&state) % 4, draw(&state) % 8 == 0 ? 4 : 0,
                                               draw(&state) % 3 == 0 ? 0 : 8192);
        mix_layers(arch, &state);
        if (draw(&state) % 8 == 0)
            adapt(arch, &state);
        const int64_t pp = 2 + draw(&state) % 2;
        const char *schedules[] = {draw(&state) % 2 == 0 ? "1f1b" : "zb-h1", NULL};
        g_autoptr(Profile) profile = cluster_of("p3.16xlarge", pp);
        PlanRequest request = random_request(&state, arch, profile);
        request.dp = request.tp = request.cp = request.ep = request.vpp = request.micro_batch = 1;
        request.pp = pp;
        request.zero_stage = 0;
        request.offload = PLAN_OFFLOAD_NONE;
        request.offload_parameters = false;
        request.sequence_parallel = 0;
        request.schedules = schedules;
        Enumeration all = {.request = &request,
                           .points = g_array_new(FALSE, FALSE, sizeof(Point)),
                           .least_bytes = INT64_MAX};
        g_autoptr(GArray) points = all.points;
        g_autoptr(Plan) plan = plan_from_request(&request, NULL);
        const PlanLayerShape shape = {plan == NULL ? (PlanDegrees){0} : plan->degrees, 1, false};
        /* Of one recompute kind for all stages there is nothing to show. */
        if (plan == NULL || plan_layer_recomputes_depend(&request, &shape))
            continue;
        costs = plan_memo_new();
        try_recomputes(&all, plan); /* even stages may part MTP modules */
        try_divisions(&all, plan, (guint)pp, 0, plan_request_n_units(&request));
        g_clear_pointer(&costs, plan_memo_free);
        if (points->len == 0 || points->len > MAX_PLANS)
            continue;
        if (draw(&state) % 2 == 0)
            request.memory_limit_bytes = random_limit(&state, &all);
        g_autoptr(Plan) found = plan_search(&request, simulate, NULL, NULL);
        const Point best = best_of(&all);
        g_assert_true((found == NULL) == (best.ns == INT64_MAX));
        if (found == NULL)
            continue;
        n++;
        n_limited += request.memory_limit_bytes > 0;
        n_uneven += !has_even_stages(found);
        n_lone += has_lone_end(found);
        n_mtp += arch->mtp.n > 0;
        n_own += is_mixed(found);
        g_assert_cmpint(found->predicted->iteration_ns, ==, best.ns);
    }
    g_clear_pointer(&costs, plan_memo_free);
    g_clear_pointer(&flights, plan_memo_free);
    g_test_message("%d stacks, %d limited, %d with MTP modules; answers: %d whose stages differ in "
                   "layers, %d with an end alone, %d whose stages recompute each in its way",
                   n, n_limited, n_mtp, n_uneven, n_lone, n_own);
    g_assert_cmpint(n_limited, >, n / 5);
    g_assert_cmpint(n_mtp, >, n / 5);
    g_assert_cmpint(n_uneven, >, n / 5);
    g_assert_cmpint(n_lone, >, 0);
    g_assert_cmpint(n_own, >, 0);
}

static void
test_slices_equal_full_enumeration(void)
{
    compare_slices(5, 60, false);
}

static void
test_slices_of_mixed_stacks_equal_full_enumeration(void)
{
    compare_slices(29, g_test_slow() ? 400 : 20, true);
}

/* A search that may slice: no plan of its space is faster than its bound, in whole sequences or in
 * equal slices, and none of whole sequences is faster than its plan. */
static void
test_certificates_hold_of_every_plan(void)
{
    static const int64_t n_slices[] = {1, 2, 3, 4, 8};
    uint32_t state = 41;
    int n = 0, n_sliced = 0;
    int64_t n_plans = 0;

    flights = plan_memo_new();
    while (n < 25) {
        g_autoptr(ModelArch) arch =
            long_arch((int64_t[]){4, 4, 5, 8}[draw(&state) % 4], draw(&state) % 2 * 8192);
        g_autoptr(Profile) profile = cluster_of("p3.16xlarge", 2 << draw(&state) % 3);
        PlanRequest request = random_request(&state, arch, profile);
        request.schedules = NULL;
        request.dtype = DTYPE_FP16;
        request.global_batch = 1 << draw(&state) % 2;
        request.slices_mode = PLAN_SLICES_AUTO;
        g_autoptr(Plan) plan = plan_search(&request, simulate, NULL, NULL);
        if (plan == NULL)
            continue;
        n++;
        n_sliced += plan->slices->len > 1;
        for (size_t i = 0; i < G_N_ELEMENTS(n_slices); i++) {
            request.slices_mode = n_slices[i] > 1 ? PLAN_SLICES_UNIFORM : PLAN_SLICES_OFF;
            request.n_slices = n_slices[i];
            const Enumeration all = enumerate(&request, model_cluster_n_devices(profile->cluster));
            g_autoptr(GArray) points = all.points;
            const Point best = best_of(&all);
            n_plans += points->len;
            if (best.ns < INT64_MAX)
                g_assert_cmpfloat(plan->lower_bound_s, <=, (double)best.ns * 1e-9);
            if (n_slices[i] == 1)
                g_assert_cmpint(plan->predicted->iteration_ns, <=, best.ns);
        }
    }
    g_clear_pointer(&flights, plan_memo_free);
    g_test_message("%d searches, %d sliced, %" G_GINT64_FORMAT " plans", n, n_sliced, n_plans);
    g_assert_cmpint(n_sliced, >, 5);
    g_assert_cmpint(n_plans, >, 2000);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/planner/search-space/equals-full-enumeration", test_equals_full_enumeration);
    g_test_add_func("/planner/search-space/rules-equal-full-enumeration",
                    test_rules_equal_full_enumeration);
    g_test_add_func("/planner/search-space/slices-equal-full-enumeration",
                    test_slices_equal_full_enumeration);
    g_test_add_func("/planner/search-space/mixed-stacks-equal-full-enumeration",
                    test_mixed_stacks_equal_full_enumeration);
    g_test_add_func("/planner/search-space/divisions-equal-the-best-of-all",
                    test_divisions_equal_the_best_of_all);
    g_test_add_func("/planner/search-space/slices-of-mixed-stacks-equal-full-enumeration",
                    test_slices_of_mixed_stacks_equal_full_enumeration);
    g_test_add_func("/planner/search-space/two-kinds-of-devices-equal-full-enumeration",
                    test_two_kinds_of_devices_equal_full_enumeration);
    g_test_add_func("/planner/search-space/certificates-hold-of-every-plan",
                    test_certificates_hold_of_every_plan);
    return g_test_run();
}
