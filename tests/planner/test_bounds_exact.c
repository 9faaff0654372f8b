/*
 * Where the headers of planner/bounds say that a bound is what the plan takes or holds, it is: bounds that say
 * less than they could are found here, those that say too much in test_bounds_hold.c.
 */
#include <math.h>

#include "planner/bounds/rank_kinds.h"
#include "planner/bounds/sketch.h"
#include "planner/partition/partitions.h"
#include "planner/space/space.h"
#include "schedule/rank_order.h"
#include "tests/planner/search_case.h"

/* --- the plans of a space --- */

/* A plan, what it takes and holds, and its sketch. */
typedef struct {
    const PlanSpace *space;
    const PlanPoint *point;
    const ScheduleFamily *family;
    PlanRecompute recompute;
    const Plan *plan;
    const Workload *workload;
    const Report *report;
    const PlanSketch *sketch;
    int64_t sketch_ns;
    const int64_t
        *fullest_bytes; /* [rank] of the sketch weighed by the fullest ops, in the recompute kind */
} Seen;

typedef void (*Look)(const Seen *seen, int *n_seen);

static void
look_at_point(const PlanSpace *space, const PlanPoint *point, const ScheduleFamily *family,
              PlanRecompute recompute, Look look, int *n_seen)
{
    const PlanRequest *request = space->request;
    const PlanLayerCost *cost = plan_space_cost(space, point);
    g_autoptr(Plan) plan = plan_space_plan(request, point, family);
    g_autofree int64_t *even = plan_partition_even(request, point, family);
    g_autofree int *recomputes = g_new0(int, plan->stages->len);

    for (guint k = 0; k < plan->stages->len; k++)
        recomputes[k] = (int)recompute;
    plan_partition_apply(even, plan_point_chain_length(&point->degrees, family), recomputes, plan);
    g_autoptr(Workload) workload = workload_new(request->arch, request->profile, plan, 0, NULL);
    g_assert_nonnull(workload);
    g_autoptr(Report) report = NULL;
    g_assert_true(simulate(plan, workload, INT64_MAX, &report, NULL, NULL));
    g_autofree const PlanLayerCost **rank_costs = plan_rank_costs(request->memo, request, point);
    g_autofree int64_t *limits = g_new0(int64_t, (size_t)point->degrees.pp);
    g_auto(PlanSketch) sketch = {0};
    const PlanSketchInput input = {
        .request = request,
        .point = point,
        .cost = cost,
        .slice = cost,
        .rank_costs = rank_costs,
        .n_slices = 1,
        .family = family,
        .flight = plan_bound_flight(plan, request->memo),
        .counts = even,
        .limits_bytes = limits,
        .wants_leanest = true,
    };
    plan_sketch_init(&sketch, &input);
    plan_sketch_weigh(&sketch, &input);
    const int64_t sketch_ns = plan_sketch_recomputes_ns(&sketch, &input, recomputes);
    g_auto(PlanSketch) fullest = {0};
    g_autofree int64_t *fullest_bytes = g_new(int64_t, (size_t)point->degrees.pp);
    plan_sketch_init(&fullest, &input);
    plan_sketch_weigh(&fullest, &input);
    plan_sketch_weigh_fullest(&fullest, &input, plan_bound_fullest(plan, request->memo));
    for (int64_t r = 0; r < point->degrees.pp; r++)
        fullest_bytes[r] = fullest.bytes[r * PLAN_RECOMPUTE_N + (int)recompute];
    const Seen seen = {space,    point,  family,  recompute, plan,
                       workload, report, &sketch, sketch_ns, fullest_bytes};
    look(&seen, n_seen);
}

/* Looks at some plans of @arch on @n_devices, in the families in turn, with every recompute kind. */
static void
look_at_plans(const ModelArch *arch, int64_t n_devices, PlanFramework framework,
              const char *const *families, Look look, int *n_seen)
{
    const PlanSpaceLimits none = {.memory_bytes = INT64_MAX, .time_ns = INT64_MAX, .sliced_ns = -1};
    g_autoptr(Profile) profile = cluster_of("dgx-a100-80g", n_devices);

    for (int kind = 0; kind < PLAN_RECOMPUTE_N; kind++) {
        g_autoptr(PlanMemo) memo = plan_memo_new();
        PlanRequest request = request_of(arch, profile, 16);

        flights = memo;
        request.memo = memo;
        request.n_devices = n_devices;
        request.recompute = kind;
        request.conventions = plan_conventions(framework);
        g_autoptr(PlanSpace) space = plan_space_new(&request, &none, NULL);
        g_assert_nonnull(space);
        for (guint i = 0; i < space->points->len; i += 7) {
            const PlanPoint *point = &g_array_index(space->points, PlanPoint, i);
            for (const char *const *f = families; *f != NULL; f++) {
                const ScheduleFamily *family = schedule_family_find(*f, NULL);
                if (!point->is_balanced && plan_space_has_family(space, point, family, 1))
                    look_at_point(space, point, family, (PlanRecompute)kind, look, n_seen);
            }
        }
        flights = NULL;
    }
}

static void
describe(const Seen *seen, const char *what, int64_t bound, int64_t truth)
{
    const PlanDegrees *d = &seen->point->degrees;

    if (bound != truth)
        g_test_fail_printf(
            "%s of %s, dp %d tp %d pp %d vpp %d cp %d ep %d, ZeRO %d, micro-batches of "
            "%d, recompute %d: %" G_GINT64_FORMAT ", it is %" G_GINT64_FORMAT,
            what, seen->family->name, (int)d->dp, (int)d->tp, (int)d->pp, (int)d->vpp, (int)d->cp,
            (int)d->ep, (int)seen->point->zero_stage, (int)seen->point->micro_batch,
            (int)seen->recompute, bound, truth);
}

/* --- memory --- */

/* sketch.h and plan_bound.h: with whole backwards and sequences, one chunk per rank and dense layers of one kind. */
static void
look_at_peaks(const Seen *seen, int *n_seen)
{
    int64_t peak = 0;

    for (int32_t r = 0; r < seen->sketch->n_ranks; r++) {
        const int64_t own =
            g_array_index(seen->report->ranks, ReportRank, (guint)r).peak_memory_bytes;
        peak = MAX(peak, own);
        describe(seen, "the sketch's bytes",
                 seen->sketch->bytes[r * PLAN_RECOMPUTE_N + (int)seen->recompute], own);
    }
    const PlanFlight *flight = plan_bound_flight(seen->plan, seen->space->request->memo);
    describe(seen, "the plan's bytes", plan_bound_bytes(seen->plan, seen->workload, flight), peak);
    ++*n_seen;
}

/* A model of layers of one kind: with a head of its own, with a tied one, without a vocabulary. */
static ModelArch *
uniform_arch(int which)
{
    ModelArch *arch = which == 1 ? small_arch(8, 0, 8192) : long_arch(8, which == 2 ? 0 : 51200);

    arch->tied_embeddings = which != 0;
    return arch;
}

static void
test_peaks_of_one_kind(void)
{
    static const char *const families[] = {"1f1b", "gpipe", NULL};
    int n_seen = 0;

    for (int i = 0; i < 3; i++) {
        g_autoptr(ModelArch) arch = uniform_arch(i);
        look_at_plans(arch, 8, PLAN_FRAMEWORK_DEGAS, families, look_at_peaks, &n_seen);
    }
    g_test_message("%d plans", n_seen);
    g_assert_cmpint(n_seen, >, 300);
}

/* plan_bound.h: with several chunks and split backwards, too, but where equally full ops of one kind and chunk
 * differ in what comes after them or in whose virtual micro-batches they have.  Of sketches only that they never say
 * more: which layers come first in an op they do not know. */
static int n_inexact;

static void
look_at_fullest_ops(const Seen *seen, int *n_seen)
{
    const PlanFullest *fullest = plan_bound_fullest(seen->plan, seen->space->request->memo);
    const int64_t peak = seen->report->peak_memory_bytes;
    const int64_t bytes = plan_bound_fullest_bytes(seen->plan, seen->workload, fullest);

    n_inexact += bytes != peak;
    if (bytes < peak / 100 * 97 || bytes > peak)
        describe(seen, "the bytes of the plan's fullest ops", bytes, peak);
    for (int32_t r = 0; r < seen->sketch->n_ranks; r++)
        g_assert_cmpint(seen->fullest_bytes[r], <=,
                        g_array_index(seen->report->ranks, ReportRank, (guint)r).peak_memory_bytes);
    ++*n_seen;
}

static void
test_peaks_of_fullest_ops(void)
{
    static const char *const families[] = {"1f1b",   "interleaved", "zb-h1", "interleaved-zb",
                                           "v-half", "zb-v",        NULL};
    int n_seen = 0;

    for (int i = 0; i < 4; i++) {
        g_autoptr(ModelArch) arch = i < 3 ? uniform_arch(i) : small_arch(8, 4, 8192);
        look_at_plans(arch, 8, PLAN_FRAMEWORK_DEGAS, families, look_at_fullest_ops, &n_seen);
    }
    g_test_message("%d plans, %d not exact", n_seen, n_inexact);
    g_assert_cmpint(100 * n_inexact, <, n_seen);
    g_assert_cmpint(n_seen, >, 1000);
}

/* Parameters, their copies of a table, messages' buffers and what is gathered, whatever the layers and the chunks.  Of
 * MTP modules that are stages alone the sketch leaves out what they hand on beside a layer's output. */
static void
look_at_static_bytes(const Seen *seen, int *n_seen)
{
    if (seen->space->request->arch->mtp.n > 0 && seen->point->degrees.vpp > 2)
        return;
    for (int32_t r = 0; r < seen->sketch->n_ranks; r++) {
        int64_t own = 0;
        for (int owner = 0; owner < TRACE_MEMORY_N; owner++)
            own += seen->workload->ranks[r].static_bytes[owner];
        describe(seen, "the sketch's static bytes", seen->sketch->static_bytes[r], own);
    }
    ++*n_seen;
}

static void
test_static_bytes(void)
{
    static const char *const families[] = {"1f1b", "interleaved", "zb-v", NULL};
    static const PlanFramework frameworks[] = {PLAN_FRAMEWORK_DEGAS, PLAN_FRAMEWORK_DEEPSPEED};
    int n_seen = 0;

    for (uint32_t i = 0; i < 6; i++) {
        g_autoptr(ModelArch) arch =
            i == 2 ? small_arch(8, 4, 8192) : uniform_arch(i < 3 ? (int)i : (int)i % 2);
        uint32_t state = i;
        if (i >= 3)
            mix_layers(arch, &state);
        for (size_t f = 0; f < G_N_ELEMENTS(frameworks); f++)
            look_at_plans(arch, 8, frameworks[f], families, look_at_static_bytes, &n_seen);
    }
    g_test_message("%d plans", n_seen);
    g_assert_cmpint(n_seen, >, 1000);
}

/* --- times --- */

static void
look_at_times(const Seen *seen, int *n_seen)
{
    const int64_t ns = seen->report->iteration_ns;

    if (seen->point->degrees.pp > 1 || seen->point->zero_stage == 3)
        return;
    describe(seen, "the plan's bound", plan_bound_ns(seen->plan, seen->workload, seen->family), ns);
    if (seen->sketch_ns < ns / 1000 * 999)
        describe(seen, "the sketch's bound", seen->sketch_ns, ns);
    if (seen->point->bound_ns < ns / 1000 * 999)
        describe(seen, "the point's bound", seen->point->bound_ns, ns);
    ++*n_seen;
}

/* One rank waits for nobody: plans take what their ops take, but for what ZeRO 3 gathers ahead.  The bounds of points and sketches leave out what
 * bytes of norms cost, a thousandth of long layers. */
static void
test_times_of_one_rank(void)
{
    static const char *const families[] = {"1f1b", "gpipe", NULL};
    int n_seen = 0;

    for (int i = 0; i < 3; i += 2) {
        g_autoptr(ModelArch) arch = uniform_arch(i);
        look_at_plans(arch, 8, PLAN_FRAMEWORK_DEGAS, families, look_at_times, &n_seen);
    }
    g_test_message("%d plans", n_seen);
    g_assert_cmpint(n_seen, >, 50);
}

/* plan_bound.h: for equal stages without messages it is the exact time of GPipe and 1F1B, (m + p - 1)(f + b),
 * each with what an op costs besides. */
static void
test_equal_stages_have_the_formula(void)
{
    static const char *const families[] = {"gpipe", "1f1b"};
    const int64_t op_ns[SCHEDULE_OP_N] = {[SCHEDULE_OP_FORWARD] = 5, [SCHEDULE_OP_BACKWARD] = 11};

    for (size_t f = 0; f < G_N_ELEMENTS(families); f++)
        for (int64_t p = 1; p <= 6; p++)
            for (int64_t m = 1; m <= 9; m++)
                for (int64_t overhead_ns = 0; overhead_ns < 6; overhead_ns += 3) {
                    g_autoptr(Plan) plan = plan_new();
                    plan->degrees.pp = p;
                    plan->n_micro_batches = plan->global_batch = m;
                    g_free(plan->schedule);
                    plan->schedule = g_strdup(families[f]);
                    const ScheduleFamily *family = schedule_family_find(families[f], NULL);
                    const ScheduleShape shape = {p, 1, m, 1, 0, NULL};
                    g_autoptr(Schedule) schedule = schedule_new(families[f], &shape, NULL);
                    g_autoptr(Workload) workload = workload_new_plain(schedule, op_ns, 0);
                    workload->op_overhead_ns = overhead_ns;
                    g_assert_cmpint(plan_bound_ns(plan, workload, family), ==,
                                    (m + p - 1) * (5 + 11 + 2 * overhead_ns));
                }
}

/*
 * plan_bound.h: memory limits what is in flight.  With room for one micro-batch each passes the pipeline alone, there
 * and back, and the next one waits for its W on rank 0: m (p (f + i) + 2 (p - 1) message + w); where messages
 * block, too.  zb-auto's order takes just that.  Without a limit the bound knows the busiest rank.
 */
static void
test_orders_that_memory_limits(void)
{
    const int64_t op_ns[SCHEDULE_OP_N] = {[SCHEDULE_OP_FORWARD] = 5,
                                          [SCHEDULE_OP_BACKWARD] = 11,
                                          [SCHEDULE_OP_BACKWARD_INPUT] = 7,
                                          [SCHEDULE_OP_BACKWARD_WEIGHT] = 4};

    flights = plan_memo_new();
    for (int64_t p = 2; p <= 4; p++)
        for (int64_t m = 1; m <= 5; m += 2)
            for (int blocks = 0; blocks < 2; blocks++) {
                g_autoptr(Plan) plan = plan_new();
                plan->degrees.pp = p;
                plan->n_micro_batches = plan->global_batch = m;
                g_free(plan->schedule);
                plan->schedule = g_strdup("zb-auto");
                g_array_append_vals(plan->slices, &(int64_t){64}, 1);
                const ScheduleShape shape = {p, 1, m, 1, 0, NULL};
                g_autoptr(Schedule) schedule = schedule_new("1f1b", &shape, NULL);
                g_autoptr(Workload) workload = workload_new_plain(schedule, op_ns, 3);
                workload->blocking_messages = blocks;
                for (int32_t i = 0; i < p; i++) {
                    workload->ops[i].activation_bytes = workload->ops[i].weight_activation_bytes =
                        100;
                    workload->ranks[i].static_bytes[TRACE_MEMORY_WEIGHTS] = 1000;
                }
                const int64_t unlimited_ns = plan_bound_order_ns(plan, workload);
                g_assert_cmpint(unlimited_ns, >=, m * (5 + 11));
                g_assert_cmpint(unlimited_ns, <=, (m + p) * (5 + 11 + 2 * 3));
                for (int32_t i = 0; i < p; i++)
                    workload->ranks[i].memory_limit_bytes = 1000 + 199;
                const int64_t ns = m * (p * (5 + 7) + 2 * (p - 1) * 3 + 4);
                g_assert_cmpint(plan_bound_order_ns(plan, workload), ==, ns);
                g_autoptr(Report) report = NULL;
                g_assert_true(simulate(plan, workload, INT64_MAX, &report, NULL, NULL));
                g_assert_true(report->fits);
                g_assert_cmpint(report->iteration_ns, ==, ns);
            }
    g_clear_pointer(&flights, plan_memo_free);
}

/* --- links --- */

/* (owned) one link of 1 byte per ns that all of @n_ranks share, each with a device; one level. */
static WorkloadLinks *
one_link(int32_t n_ranks)
{
    WorkloadLinks *links = g_new0(WorkloadLinks, 1);

    links->n_levels = links->n_links = 1;
    links->bytes_per_s = g_new(double, 1);
    links->bytes_per_s[0] = 1e9;
    links->begin = g_new(int64_t, n_ranks + 1);
    links->crossings = g_new(WorkloadCrossing, n_ranks);
    for (int32_t r = 0; r <= n_ranks; r++)
        links->begin[r] = r;
    for (int32_t r = 0; r < n_ranks; r++)
        links->crossings[r] = (WorkloadCrossing){0, 1};
    links->senders_fraction = 1.0;
    return links;
}

/* link_bound.h: ranks whose collectives fill a link alone take their turns: the link is busy for all that all of them
 * send.  What is hidden behind computing does not count, and what waits less than it sends is hidden. */
static void
test_links_that_ranks_share(void)
{
    const int64_t op_ns[SCHEDULE_OP_N] = {
        [SCHEDULE_OP_FORWARD] = 5000, [SCHEDULE_OP_BACKWARD] = 11000};

    flights = plan_memo_new();
    for (int32_t p = 2; p <= 4; p++)
        for (int64_t m = 1; m <= 16; m *= 4) {
            g_autoptr(Plan) plan = plan_new();
            plan->degrees.pp = p;
            plan->n_micro_batches = plan->global_batch = m;
            g_array_append_vals(plan->slices, &(int64_t){64}, 1);
            g_free(plan->schedule);
            plan->schedule = g_strdup("1f1b");
            const ScheduleShape shape = {p, 1, m, 1, 0, NULL};
            g_autoptr(Schedule) schedule = schedule_new("1f1b", &shape, NULL);
            g_autoptr(Workload) workload = workload_new_plain(schedule, op_ns, 0);
            g_assert_cmpint(plan_bound_links_ns(plan, workload), ==, 0);
            workload->links = one_link(p);
            for (int32_t i = 0; i < p; i++)
                for (int kind = 0; kind < 2; kind++) {
                    WorkloadOp *op = &workload->ops[i];
                    op->part_ns[kind][PROFILE_PART_COMPUTE] = 0;
                    op->part_ns[kind][PROFILE_PART_TP] = op_ns[kind];
                    op->traffic_bytes[kind][0] = (float)op_ns[kind];
                }
            const int64_t all_ns = m * p * (5000 + 11000);
            const int64_t bound_ns = plan_bound_links_ns(plan, workload);
            g_assert_cmpint(bound_ns, <=, all_ns);
            g_assert_cmpint(bound_ns, >=, all_ns - all_ns / 50000 - 1);
            g_autoptr(Report) report = NULL;
            g_assert_true(simulate(plan, workload, INT64_MAX, &report, NULL, NULL));
            g_assert_cmpint(report->iteration_ns, >=, all_ns);
            g_assert_cmpint(report->iteration_ns, <=, all_ns + (p - 1) * (5000 + 11000));
            /* A reduction behind the last backward takes its turn on the link, too. */
            workload->ranks[p - 1].dp_reduce_ns = 1000;
            workload->ranks[p - 1].dp_reduce_traffic_bytes[0] = 700.0;
            g_assert_cmpint(plan_bound_links_ns(plan, workload) - bound_ns, >=, 698);
            g_assert_cmpint(plan_bound_links_ns(plan, workload) - bound_ns, <=, 701);
            for (int32_t i = 0; i < p; i++)
                workload->ops[i].part_ns[SCHEDULE_OP_BACKWARD][PROFILE_PART_TP] /= 2;
            g_assert_cmpint(plan_bound_links_ns(plan, workload), <=, m * p * 5000 + 701);
        }
    g_clear_pointer(&flights, plan_memo_free);
}

/* plan_bound.h: an order that leaves ranks idle is known by its long paths: of naive model parallelism, which has one
 * micro-batch under way, m p (f + b); where its number in flight is known without an order, too. */
static void
test_paths_of_orders_that_idle(void)
{
    const int64_t op_ns[SCHEDULE_OP_N] = {[SCHEDULE_OP_FORWARD] = 5, [SCHEDULE_OP_BACKWARD] = 11};

    flights = plan_memo_new();
    for (int64_t p = 2; p <= 4; p++)
        for (int64_t m = 2; m <= 8; m++) {
            g_autoptr(Plan) plan = plan_new();
            plan->degrees.pp = p;
            plan->n_micro_batches = plan->global_batch = m;
            g_array_append_vals(plan->slices, &(int64_t){64}, 1);
            g_free(plan->schedule);
            plan->schedule = g_strdup("naive");
            const ScheduleShape shape = {p, 1, m, 1, 0, NULL};
            g_autoptr(Schedule) schedule = schedule_new("naive", &shape, NULL);
            g_autoptr(Workload) workload = workload_new_plain(schedule, op_ns, 0);
            g_assert_cmpint(plan_bound_path_ns(plan, workload, plan_bound_flight(plan, flights)),
                            ==, m * p * (5 + 11));
        }
    g_clear_pointer(&flights, plan_memo_free);
}

/* --- what is in flight --- */

/* Whole, then half virtual micro-batches of each chunk after the first @n ops of @rank; flight.h says when. */
static void
count_held(const Schedule *schedule, int32_t rank, int64_t n, bool splits, int32_t *held)
{
    memset(held, 0, 2 * (size_t)schedule->n_chunks * sizeof *held);
    for (int64_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank] + n; i++) {
        const ScheduleOp op = schedule->ops[i];
        int32_t *whole = &held[op.chunk], *half = &held[schedule->n_chunks + op.chunk];
        switch ((ScheduleOpKind)op.kind) {
        case SCHEDULE_OP_FORWARD:
            ++*whole;
            break;
        case SCHEDULE_OP_BACKWARD_WEIGHT:
            --*half;
            break;
        case SCHEDULE_OP_BACKWARD_INPUT:
            --*whole;
            *half += splits;
            break;
        default:
            --*whole;
            break;
        }
    }
}

/* Whether @kind is an op of @moment, and then how full the rank is; the larger in the order of both numbers. */
static bool
fullness(PlanMoment moment, int kind, bool splits, int32_t whole, int32_t half, int32_t full[2])
{
    full[1] = 0;
    switch (moment) {
    case PLAN_MOMENT_FORWARD:
        full[0] = whole + half;
        return kind == SCHEDULE_OP_FORWARD;
    case PLAN_MOMENT_BACKWARD:
        full[0] = whole;
        return kind == SCHEDULE_OP_BACKWARD || kind == SCHEDULE_OP_BACKWARD_INPUT;
    default:
        full[0] = half;
        full[1] = whole;
        return kind == SCHEDULE_OP_BACKWARD_INPUT && splits;
    }
}

static void
check_flight(const Schedule *schedule, const PlanFlight *flight)
{
    const int32_t v = schedule->n_chunks;
    g_autofree int32_t *held = g_new0(int32_t, 2 * (size_t)v);
    g_autofree int32_t *best = g_new0(int32_t, 2 * (size_t)v);

    for (int32_t r = 0; r < schedule->n_ranks; r++) {
        const ScheduleOp *ops = &schedule->ops[schedule->rank_begin[r]];
        const int64_t n = schedule->rank_begin[r + 1] - schedule->rank_begin[r];
        bool splits = false;
        for (int64_t i = 0; i < n; i++)
            splits = splits || ops[i].kind == SCHEDULE_OP_BACKWARD_WEIGHT;
        for (PlanMoment moment = 0; moment < PLAN_MOMENT_N; moment++) {
            int32_t most[2] = {-1, -1};
            for (int64_t i = 0; i < n; i++) {
                /* Before a backward, with the op itself at an F or I. */
                count_held(schedule, r, moment == PLAN_MOMENT_BACKWARD ? i : i + 1, splits, held);
                int32_t whole = 0, half = 0, full[2];
                for (int32_t c = 0; c < v; c++) {
                    whole += held[c];
                    half += held[v + c];
                }
                if (!fullness(moment, ops[i].kind, splits, whole, half, full) ||
                    full[0] < most[0] || (full[0] == most[0] && full[1] <= most[1]))
                    continue;
                memcpy(most, full, sizeof most);
                memcpy(best, held, 2 * (size_t)v * sizeof *best);
            }
            for (int32_t c = 0; c < v && most[0] >= 0; c++)
                for (int half = 0; half < 2; half++)
                    g_assert_cmpint(plan_flight_n_held(flight, r, moment, half, c), ==,
                                    best[half * v + c]);
        }
    }
}

/* fullest.h, by counting anew before each op. */
static void
check_fullest(const Schedule *schedule, const PlanFullest *fullest)
{
    const int32_t v = schedule->n_chunks;
    g_autofree int32_t *held = g_new0(int32_t, 2 * (size_t)v);
    int32_t n_found = 0;

    if (schedule->overlap_pairs != NULL) {
        g_assert_cmpint(fullest->n_ops, ==, 0);
        return;
    }
    for (int32_t f = 0; f < fullest->n_ops; f++) {
        const PlanFullestOp *op = &fullest->ops[f];
        const ScheduleOp *ops = &schedule->ops[schedule->rank_begin[op->rank]];
        const int64_t n = schedule->rank_begin[op->rank + 1] - schedule->rank_begin[op->rank];
        int32_t most[2] = {-1, -1};
        int64_t at = -1;
        bool splits = false;
        for (int64_t i = 0; i < n; i++)
            splits = splits || ops[i].kind == SCHEDULE_OP_BACKWARD_WEIGHT;
        for (int64_t i = 0; i < n; i++) {
            int32_t whole = 0, half = 0;
            if (ops[i].kind != op->kind || ops[i].chunk != op->chunk)
                continue;
            count_held(schedule, op->rank, op->kind == SCHEDULE_OP_FORWARD ? i + 1 : i, splits,
                       held);
            for (int32_t c = 0; c < v; c++) {
                whole += held[c];
                half += held[v + c];
            }
            const int32_t first = half + (op->by_halves ? 0 : whole);
            if (first < most[0] || (first == most[0] && whole <= most[1]))
                continue;
            most[0] = first;
            most[1] = whole;
            at = i;
        }
        g_assert_cmpint(at, >=, 0);
        count_held(schedule, op->rank, op->kind == SCHEDULE_OP_FORWARD ? at + 1 : at, splits, held);
        for (int32_t c = 0; c < 2 * v; c++)
            g_assert_cmpint(plan_fullest_n_held(fullest, f, c / v, c % v), ==, held[c]);
        int n_next = 0;
        for (int64_t i = at + 1; i < n && n_next < PLAN_FULLEST_NEXT; i++)
            if (ops[i].kind != SCHEDULE_OP_BACKWARD_WEIGHT) {
                g_assert_cmpint(op->next_kind[n_next], ==, ops[i].kind);
                g_assert_cmpint(op->next_chunk[n_next], ==, ops[i].chunk);
                n_next++;
            }
        g_assert_cmpint(op->n_next, ==, n_next);
        n_found++;
    }
    /* Each kind of each chunk that there is, once, or by both measures. */
    for (int32_t r = 0; r < schedule->n_ranks; r++)
        for (int kind = 0; kind < SCHEDULE_OP_N; kind++)
            for (int32_t c = 0; c < v; c++) {
                bool exists = false, splits = false;
                for (int64_t i = schedule->rank_begin[r]; i < schedule->rank_begin[r + 1]; i++) {
                    const ScheduleOp op = schedule->ops[i];
                    exists = exists || (op.kind == kind && op.chunk == c);
                    splits = splits || op.kind == SCHEDULE_OP_BACKWARD_WEIGHT;
                }
                n_found -= exists ? 1 + splits : 0;
            }
    g_assert_cmpint(n_found, ==, 0);
}

static void
test_moments_of_schedules(void)
{
    static const struct {
        const char *family;
        int64_t chunks, slices;
    } cases[] = {{"gpipe", 1, 1},          {"1f1b", 1, 1},    {"interleaved", 2, 1},
                 {"interleaved", 3, 1},    {"zb-h1", 1, 1},   {"zb-h2", 1, 1},
                 {"zb-v", 2, 1},           {"v-half", 2, 1},  {"v-min", 2, 1},
                 {"interleaved-zb", 3, 1}, {"seq1f1b", 1, 3}, {"dualpipe", 2, 1},
                 {"dualpipev", 2, 1},      {"terapipe", 1, 4}};
    int n_seen = 0;

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++)
        for (int64_t p = 2; p <= 6; p += 2)
            for (int64_t m = p; m <= 3 * p; m += p) {
                const ScheduleFamily *family = schedule_family_find(cases[i].family, NULL);
                const ScheduleShape shape = {p, cases[i].chunks, m, cases[i].slices, 0, NULL};
                g_autoptr(Schedule) schedule = schedule_new(cases[i].family, &shape, NULL);
                if (schedule == NULL)
                    continue; /* DualPipe has 2 p micro-batches or more */
                g_autoptr(PlanMemo) memo = plan_memo_new();
                check_flight(schedule, plan_flight_get(memo, family, &shape));
                check_fullest(schedule, plan_fullest_get(memo, family, &shape));
                n_seen++;
            }
    g_assert_cmpint(n_seen, >, 100);
}

/* --- slower devices --- */

/* Two ranks on devices of two kinds: what both do is 1 + 1 / q of the fast one, where no part of a layer takes less
 * than q times as long on the slow one, and one takes just that. */
static void
test_slow_ranks_count_by_their_least_slow_part(void)
{
    static const double shares[][2] = {{0.5, 1.0}, {1.0, 0.5}, {0.25, 0.75}, {0.5, 0.5}};

    for (size_t i = 0; i < G_N_ELEMENTS(shares); i++) {
        g_autoptr(ModelArch) arch = long_arch(8, 51200);
        g_autoptr(Profile) profile = cluster_of("dgx-a100-80g", 2);
        g_autoptr(PlanMemo) memo = plan_memo_new();
        ModelCluster *cluster = profile->cluster;
        ModelDevice slow = g_array_index(cluster->devices, ModelDevice, 0);
        ModelNodes nodes = g_array_index(cluster->nodes, ModelNodes, 0);
        slow.name = g_strdup("slow");
        for (int t = 0; t < DTYPE_N; t++)
            slow.flops_per_s[t] *= shares[i][0];
        slow.memory_bytes_per_s *= shares[i][1];
        g_array_append_val(cluster->devices, slow);
        nodes.n_nodes = nodes.n_devices = 1;
        g_array_set_size(cluster->nodes, 0);
        g_array_append_val(cluster->nodes, nodes);
        nodes.device = 1;
        g_array_append_val(cluster->nodes, nodes);
        PlanRequest request = request_of(arch, profile, 8);
        request.memo = memo;
        request.n_devices = 2;
        const PlanPoint point = {.degrees = {1, 1, 2, 1, 1, 1, PLAN_RANK_ORDER_DEFAULT},
                                 .micro_batch = 1,
                                 .n_micro_batches = 8};
        PlanLayerShape shape = plan_point_layer_shape(&point);
        const PlanLayerCost *fast = &plan_layer_uniform_cost(memo, &request, &shape, 1)->whole;
        shape.only_nodes = 2;
        const PlanLayerCost *here = &plan_layer_uniform_cost(memo, &request, &shape, 1)->whole;
        const double q = 1.0 / (plan_rank_fast(memo, &request, &point) - 1.0);
        double least = INFINITY;
        for (int part = 0; part < PLAN_PART_N; part++)
            for (size_t f = 0; f < PLAN_PART_N_LEAST && fast->n[part] > 0; f++) {
                const double a = ((const double *)&fast->parts[part])[f];
                if (a > 0.0)
                    least = fmin(least, ((const double *)&here->parts[part])[f] / a);
            }
        g_assert_cmpfloat(q, >=, 1.0 - 1e-6);
        g_assert_cmpfloat_with_epsilon(q, least, 1e-6);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/planner/bounds-exact/peaks-of-one-kind", test_peaks_of_one_kind);
    g_test_add_func("/planner/bounds-exact/peaks-of-fullest-ops", test_peaks_of_fullest_ops);
    g_test_add_func("/planner/bounds-exact/static-bytes", test_static_bytes);
    g_test_add_func("/planner/bounds-exact/times-of-one-rank", test_times_of_one_rank);
    g_test_add_func("/planner/bounds-exact/moments-of-schedules", test_moments_of_schedules);
    g_test_add_func("/planner/bounds-exact/slow-ranks-count-by-their-least-slow-part",
                    test_slow_ranks_count_by_their_least_slow_part);
    g_test_add_func("/planner/bounds-exact/equal-stages-have-the-formula",
                    test_equal_stages_have_the_formula);
    g_test_add_func("/planner/bounds-exact/links-that-ranks-share", test_links_that_ranks_share);
    g_test_add_func("/planner/bounds-exact/paths-of-orders-that-idle",
                    test_paths_of_orders_that_idle);
    g_test_add_func("/planner/bounds-exact/orders-that-memory-limits",
                    test_orders_that_memory_limits);
    return g_test_run();
}
