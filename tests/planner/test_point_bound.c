/*
 * The bounds of points and sketches (planner/bounds/point_bound.h, sketch.h) are what their
 * headers say: of pipelines whose stages are alike the time that the simulator says, else the
 * formula, with the times of ops in it.
 */
#include "planner/bounds/sketch.h"
#include "profiles/workload/buffers.h"
#include "tests/planner/pipe_case.h"

/* A plan of whole sequences whose stages all recompute as the request says, and what it is made
 * of. */
typedef struct {
    Job job;
    Plan *plan;
    Workload *workload;
    Report *report;
} Priced;

static void
priced_clear(Priced *priced)
{
    g_clear_pointer(&priced->report, report_free);
    g_clear_pointer(&priced->workload, workload_free);
    g_clear_pointer(&priced->plan, plan_free);
    job_clear(&priced->job);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Priced, priced_clear)

static void
priced_init(Priced *priced, const Pipe *pipe)
{
    int recomputes[64];

    for (int i = 0; i < 64; i++)
        recomputes[i] = MAX(0, pipe->recompute);
    job_init(&priced->job, pipe);
    priced->plan = job_plan(&priced->job, NULL, 0, recomputes);
    priced->workload = workload_new(priced->job.arch, priced->job.profile, priced->plan, 0, NULL);
    g_assert_nonnull(priced->workload);
    g_assert_true(simulate(priced->plan, priced->workload, INT64_MAX, &priced->report, NULL, NULL));
}

static const WorkloadOp *
op_of(const Priced *priced, int64_t stage)
{
    return workload_op_of_class(priced->workload, 0, (int32_t)stage, 0, 0);
}

static double
forward_s(const Priced *priced, int64_t stage)
{
    return 1e-9 * (double)op_of(priced, stage)->time_ns[SCHEDULE_OP_FORWARD];
}

static double
both_s(const Priced *priced, int64_t stage)
{
    return forward_s(priced, stage) +
           1e-9 * (double)op_of(priced, stage)->time_ns[SCHEDULE_OP_BACKWARD];
}

/* Both passes of the first stage of @pipe. */
static double
alone_s(const Pipe *pipe)
{
    g_auto(Priced) alone = {0};

    priced_init(&alone, pipe);
    return both_s(&alone, 0);
}

/* What a rank does after its last op. */
static double
end_s(const Priced *priced, int64_t rank)
{
    const WorkloadRank *r = &priced->workload->ranks[rank];

    return 1e-9 * (double)(r->dp_reduce_ns + r->optimizer_ns + r->dp_gather_ns);
}

static double
point_s(const Priced *priced)
{
    const PlanPointFamilies families = plan_point_family(priced->job.family);
    const Job *job = &priced->job;

    return 1e-9 *
           (double)plan_point_bound_ns(&job->request, job->cost, job->cost, &job->point, &families);
}

/* Fills what a sketch of @job is asked; @limits [rank]. */
static PlanSketchInput
sketch_input(const Priced *priced, const int64_t *limits)
{
    const Job *job = &priced->job;

    return (PlanSketchInput){
        .request = &job->request,
        .point = &job->point,
        .cost = job->cost,
        .slice = job->cost,
        .n_slices = 1,
        .family = job->family,
        .flight = plan_bound_flight(priced->plan, job->memo),
        .counts = job->counts,
        .limits_bytes = limits,
        .wants_leanest = true,
    };
}

static void
check_s(const Pipe *pipe, const char *what, double bound, double truth)
{
    /* What is left out: of a message that it starts, of norms that they add up gradients. */
    if (fabs(bound - truth) > 2e-3 * truth)
        g_test_fail_printf(
            "%s of %s, p %d v %d m %d dp %d layers %d vocabulary %d: %.9g s, it is %.9g s", what,
            pipe->family, (int)pipe->p, (int)pipe->v, (int)pipe->m, (int)pipe->dp,
            (int)pipe->n_layers, (int)pipe->vocab, bound, truth);
}

/* The point's bound is @expected, or the average work of a rank and what follows its last op, if
 * that is more. */
static void
check_point(const Priced *priced, const Pipe *pipe, double expected)
{
    double work = 0.0, end = 0.0;

    for (int32_t k = 0; k < priced->workload->n_stages; k++)
        work += both_s(priced, k) * (double)pipe->m / (double)pipe->p;
    for (int64_t r = 0; r < pipe->p; r++)
        end += end_s(priced, r) / (double)pipe->p;
    check_s(pipe, "the point's bound", point_s(priced), fmax(expected, work + end));
}

/* (m v + p - 1) n t of n layers per stage, or of the last rank of one chunk, which may have a
 * layer more and the head, all of its ops and one op of each rank before it.  Gradients that are
 * added up, the optimizer are left out, and the embedding but for a micro-batch that passes all
 * stages and comes back alone. */
static void
check_point_of_even_stages(const Priced *priced, const Pipe *pipe)
{
    const PlanPartCost *embedding = &priced->job.cost->parts[PLAN_PART_EMBEDDING];
    const int64_t last = pipe->p - 1;
    Pipe once = *pipe;
    g_auto(Priced) alone = {0};
    double sum = pipe->m == 1 ? 0.0 : -embedding->forward_s - embedding->backward_s;

    if (last == 0)
        return;
    once.m = 1; /* nothing is added up */
    once.v = 1;
    once.family = "1f1b";
    priced_init(&alone, &once);
    for (int64_t r = 0; r < last; r++)
        sum += both_s(&alone, r) / (double)pipe->v;
    if (pipe->v > 1)
        sum = (double)last * both_s(&alone, 0) / (double)pipe->v;
    check_point(priced, pipe, sum + (double)pipe->m * both_s(&alone, last));
}

/* Stages that are alike but for a layer more in the last ones and a head: no rank waits longer
 * than the headers say.  The point's bound leaves out the optimizer and the embedding. */
static void
test_even_stages(void)
{
    static const char *const families[] = {"1f1b", "gpipe", "interleaved"};
    int n_seen = 0;

    for (size_t f = 0; f < G_N_ELEMENTS(families); f++)
        for (int64_t p = 1; p <= 4; p++)
            for (int64_t m = 1; m <= 8; m++)
                for (int i = 0; i < 6; i++) {
                    const bool has_chunks = f == 2;
                    const Pipe pipe = {.family = families[f],
                                       .p = p,
                                       .v = has_chunks ? 2 + i % 2 : 1,
                                       .m = m,
                                       .dp = 1,
                                       .n_layers = 2 * p * (has_chunks ? 2 + i % 2 : 1) +
                                                   (has_chunks ? 0 : i % 2),
                                       .vocab = i == 4 && !has_chunks ? 51200 : 0,
                                       .micro_batch = 1 + (i == 5),
                                       .attends = i == 3};
                    g_auto(Priced) priced = {0};
                    g_auto(PlanSketch) sketch = {0};
                    const int64_t limits[4] = {0};
                    if (has_chunks && (p == 1 || m % p != 0))
                        continue;
                    priced_init(&priced, &pipe);
                    const double truth = 1e-9 * (double)priced.report->iteration_ns;
                    check_point_of_even_stages(&priced, &pipe);
                    const PlanSketchInput input = sketch_input(&priced, limits);
                    plan_sketch_init(&sketch, &input);
                    plan_sketch_weigh(&sketch, &input);
                    check_s(&pipe, "the sketch's bound", 1e-9 * (double)sketch.bound_ns, truth);
                    check_s(&pipe, "the plan's bound",
                            1e-9 * (double)plan_bound_ns(priced.plan, priced.workload,
                                                         priced.job.family),
                            truth);
                    g_assert_true(sketch.fits && sketch.fits_plain);
                    for (int64_t r = 0; r < p; r++)
                        g_assert_cmpint(sketch.usable_bytes[r], ==, 0);
                    n_seen++;
                }
    g_assert_cmpint(n_seen, >, 300);
}

/* Halves of backwards: the ranks before the last one leave it their forwards alone. */
static void
test_even_stages_of_halves(void)
{
    for (int64_t p = 2; p <= 4; p++)
        for (int64_t m = 2 * p; m <= 4 * p; m += p) {
            const Pipe pipe = {.family = "zb-h1",
                               .p = p,
                               .v = 1,
                               .m = m,
                               .dp = 1,
                               .n_layers = 2 * p,
                               .micro_batch = 1};
            const Pipe once = {.family = "1f1b",
                               .p = p,
                               .v = 1,
                               .m = 1,
                               .dp = 1,
                               .n_layers = 2 * p,
                               .micro_batch = 1};
            g_auto(Priced) priced = {0}, alone = {0};
            priced_init(&alone, &once);
            const double expected =
                (double)m * both_s(&alone, 0) + (double)(p - 1) * forward_s(&alone, 0);
            priced_clear(&alone);
            memset(&alone, 0, sizeof alone);
            priced_init(&priced, &pipe);
            check_point(&priced, &pipe, expected);
        }
}

/* point_bound.h: of any division of the layers T f / (1 - (1 - f / m)^p), where f is 1, or the
 * forward's share. */
static void
test_any_stages(void)
{
    for (int halves = 0; halves < 2; halves++)
        for (int64_t p = 2; p <= 5; p++)
            for (int64_t m = 1 + (p - 1) * halves; m <= 9; m++) {
                const Pipe pipe = {.family = halves ? "zb-h1" : "1f1b",
                                   .p = p,
                                   .v = 1,
                                   .m = m,
                                   .dp = 1,
                                   .n_layers = 2 * p,
                                   .micro_batch = 1};
                const Pipe once = {.family = "1f1b",
                                   .p = 1,
                                   .v = 1,
                                   .m = 1,
                                   .dp = 1,
                                   .n_layers = 2 * p,
                                   .micro_batch = 1};
                g_auto(Priced) priced = {0};
                double whole, f = 1.0;
                {
                    g_auto(Priced) alone = {0};
                    priced_init(&alone, &once);
                    whole = both_s(&alone, 0);
                    if (halves)
                        f = forward_s(&alone, 0) / whole;
                }
                priced_init(&priced, &pipe);
                priced.job.point.is_balanced = true;
                /* With the sums of gradients, of which every op but the first of an iteration
                 * has one. */
                const PlanLayerShape layer = plan_point_layer_shape(&priced.job.point);
                const double sums = 2.0 * (double)p * priced.job.cost->layer.accumulate_s *
                                    plan_layer_accumulated(&priced.job.request, &layer, (double)m);
                const double share = halves ? f * whole / (whole + sums) : 1.0;
                check_point(&priced, &pipe,
                            (whole + sums) * share /
                                (1.0 - pow(1.0 - share / (double)m, (double)p)));
            }
}

/* A micro-batch passes all stages, embedding and head among them, and comes back; all others
 * pass the layers of the last stage meanwhile. */
static void
test_way_through_a_head(void)
{
    for (int64_t p = 2; p <= 4; p++)
        for (int64_t v = 2; v <= 3; v++) {
            const Pipe pipe = {.family = "interleaved",
                               .p = p,
                               .v = v,
                               .m = p,
                               .dp = 1,
                               .n_layers = 2 * p * v,
                               .vocab = 51200,
                               .micro_batch = 1};
            const Pipe once = {.family = "1f1b",
                               .p = 1,
                               .v = 1,
                               .m = 1,
                               .dp = 1,
                               .n_layers = 2 * p * v,
                               .vocab = 51200,
                               .micro_batch = 1};
            g_auto(Priced) priced = {0};
            const double all = alone_s(&once);
            priced_init(&priced, &pipe);
            const PlanPartCost *layer = &priced.job.cost->parts[PLAN_PART_LAYER];
            check_point(&priced, &pipe,
                        all + (double)(p - 1) * 2.0 * (layer->forward_s + layer->backward_s));
        }
}

/* Where the host takes longer than the device, which so has time for what comes besides, no
 * bound is above the time. */
static void
test_small_layers(void)
{
    static const PlanFramework frameworks[] = {PLAN_FRAMEWORK_DEGAS, PLAN_FRAMEWORK_DEEPSPEED,
                                               PLAN_FRAMEWORK_FSDP, PLAN_FRAMEWORK_MEGATRON_LM,
                                               PLAN_FRAMEWORK_MEGATRON_CORE};
    int n_slack = 0;

    for (size_t f = 0; f < G_N_ELEMENTS(frameworks); f++)
        for (int64_t p = 1; p <= 2; p++)
            for (int64_t m = 1; m <= 4; m *= 2)
                for (int kind = 0; kind < PLAN_RECOMPUTE_N; kind++) {
                    const Pipe pipe = {.family = "1f1b",
                                       .p = p,
                                       .v = 1,
                                       .m = m,
                                       .dp = 1,
                                       .n_layers = 4,
                                       .vocab = 8192,
                                       .micro_batch = 1,
                                       .recompute = kind,
                                       .attends = true,
                                       .is_small = true,
                                       .framework = frameworks[f]};
                    g_auto(Priced) priced = {0};
                    g_auto(PlanSketch) sketch = {0};
                    const int64_t limits[4] = {0};
                    priced_init(&priced, &pipe);
                    const double truth = 1e-9 * (double)priced.report->iteration_ns;
                    const PlanSketchInput input = sketch_input(&priced, limits);
                    plan_sketch_init(&sketch, &input);
                    plan_sketch_weigh(&sketch, &input);
                    g_assert_cmpfloat(point_s(&priced), <=, truth);
                    g_assert_cmpint(sketch.bound_ns, <=, priced.report->iteration_ns);
                    n_slack += priced.job.cost->parts[PLAN_PART_LAYER].forward_slack_s > 0.0;
                }
    g_assert_cmpint(n_slack, >, 20);
}

/* ZeRO 3's collectives are those of the order of ranks in which replicas are nearest, whichever
 * of the orders it is. */
static void
test_gathers_of_the_nearest_order(void)
{
    /* Replicas on one node, or each on its own. */
    const Pipe pipe = {.family = "1f1b",
                       .p = 2,
                       .v = 1,
                       .m = 2,
                       .dp = 8,
                       .n_layers = 4,
                       .micro_batch = 1,
                       .zero_stage = 3,
                       .attends = true,
                       .is_real = true};
    const uint32_t orders[] = {1u << PLAN_RANK_ORDER_DEFAULT, 1u << PLAN_RANK_ORDER_PP_BEFORE_DP,
                               1u << PLAN_RANK_ORDER_DEFAULT | 1u << PLAN_RANK_ORDER_PP_BEFORE_DP};
    double gather_s[3], scatter_s[3];
    g_auto(Job) job = {0};

    job_init(&job, &pipe);
    for (int i = 0; i < 3; i++) {
        job.point.orders = orders[i];
        plan_point_bound_bytes(&job.request, job.cost, INT64_MAX, &job.point);
        gather_s[i] = job.point.gather_s[0];
        scatter_s[i] = job.point.scatter_s[0];
    }
    g_assert_cmpfloat(gather_s[0], >, 0.0);
    g_assert_cmpfloat(gather_s[0], !=, gather_s[1]);
    g_assert_cmpfloat(gather_s[2], ==, fmin(gather_s[0], gather_s[1]));
    g_assert_cmpfloat(scatter_s[2], ==, fmin(scatter_s[0], scatter_s[1]));
}

/* --- what points hold --- */

/* Bytes of a rank that stay, without messages' buffers. */
static double
state_bytes(const Priced *priced, int64_t rank)
{
    const int64_t *bytes = priced->workload->ranks[rank].static_bytes;
    double sum = 0.0;

    for (int i = 0; i < TRACE_MEMORY_N; i++)
        sum += i == TRACE_MEMORY_BUFFERS ? 0.0 : (double)bytes[i];
    return sum + (double)workload_library_bytes(&priced->job.profile->parameters,
                                                &priced->job.request.conventions);
}

static double
kept_bytes(const Priced *priced, int64_t stage)
{
    return (double)op_of(priced, stage)->activation_bytes;
}

/* point_bound.h: the average rank's state, and its share of the activations of one micro-batch;
 * those of all where forwards come first, and of slices those of the largest micro-batch, but
 * for a thousandth. */
static void
test_bytes(void)
{
    for (int64_t p = 1; p <= 4; p++)
        for (int64_t m = 1; m <= 4; m++)
            for (int kind = 0; kind < PLAN_RECOMPUTE_N; kind++) {
                const Pipe pipe = {.family = "1f1b",
                                   .p = p,
                                   .v = 1,
                                   .m = m,
                                   .dp = 1,
                                   .n_layers = 2 * p,
                                   .micro_batch = 4,
                                   .recompute = kind,
                                   .attends = true};
                g_auto(Priced) priced = {0};
                priced_init(&priced, &pipe);
                PlanPoint *point = &priced.job.point;
                const Job *job = &priced.job;
                const double state = state_bytes(&priced, 0), kept = kept_bytes(&priced, 0),
                             all = state + kept;
                g_assert_cmpfloat_with_epsilon((double)point->bound_bytes, all, 1e-6 * all);
                g_assert_cmpfloat_with_epsilon(
                    (double)plan_point_forwards_first_bytes(&job->request, job->cost, point),
                    state + (double)m * kept, 1e-6 * all * (double)m);
                for (int64_t group = 1; group <= 4; group++) {
                    const double part = kept * (double)group / 4.0;
                    plan_point_set_group(&job->request, job->cost, INT64_MAX, group, point);
                    g_assert_cmpfloat((double)point->sliced_bytes, <=, state + part);
                    g_assert_cmpfloat((double)point->sliced_bytes, >=, state + part * (1.0 - 2e-3));
                    /* What a device has beyond is not more than that, and what it lacks says so. */
                    plan_point_set_group(&job->request, job->cost, (int64_t)(state + part * 0.9),
                                         group, point);
                    g_assert_cmpint(point->sliced_bytes, >, (int64_t)(state + part * 0.9));
                }
            }
}

/* What does not fit is computed again at the least time per byte: of one kind of layers, in the
 * share of them that has to be. */
static void
test_recompute_of_what_does_not_fit(void)
{
    for (int64_t p = 1; p <= 2; p++)
        for (int i = -1; i <= 4; i++) {
            const Pipe pipe = {.family = "1f1b",
                               .p = p,
                               .v = 1,
                               .m = 2,
                               .dp = 1,
                               .n_layers = 2 * p,
                               .micro_batch = 4,
                               .recompute = PLAN_AUTO};
            const double share = 0.25 * i; /* below 0 there is room left */
            g_auto(Priced) priced = {0};
            priced_init(&priced, &pipe);
            PlanPoint *point = &priced.job.point;
            PlanRequest *request = &priced.job.request;
            const PlanPartCost *layer = &priced.job.cost->parts[PLAN_PART_LAYER];
            const double saved = 2.0 * (double)(layer->kept_bytes[PLAN_RECOMPUTE_NONE] -
                                                layer->kept_bytes[PLAN_RECOMPUTE_FULL]);
            const int64_t limit =
                (int64_t)(state_bytes(&priced, 0) + kept_bytes(&priced, 0) - share * saved);
            const double plain = priced.job.cost->all.recompute_s[PLAN_RECOMPUTE_NONE];
            const double must = fmax(0.0, share) * (double)(2 * p);
            const double again = must * layer->recompute_s[PLAN_RECOMPUTE_FULL];
            const double sliced = must * layer->sliced_forward_s;
            request->memory_limit_bytes = limit;
            plan_point_bound_bytes(request, priced.job.cost, limit, point);
            g_assert_cmpfloat_with_epsilon(point->recompute_s, plain + again,
                                           1e-3 * (1e-6 + again));
            /* Slices may keep a thousandth less. */
            plan_point_set_group(request, priced.job.cost, limit, 4, point);
            g_assert_cmpfloat(point->sliced_recompute_s, <=, sliced * (1.0 + 1e-6) + 1e-9);
            g_assert_cmpfloat(point->sliced_recompute_s, >=,
                              sliced - 2e-3 * kept_bytes(&priced, 0) / saved * (double)(2 * p) *
                                           layer->sliced_forward_s);
            /* Of a quarter of the sequences a quarter is kept, and all of them compute it again. */
            plan_point_set_group(
                request, priced.job.cost,
                (int64_t)(state_bytes(&priced, 0) + (kept_bytes(&priced, 0) - share * saved) / 4.0),
                1, point);
            g_assert_cmpfloat(point->sliced_recompute_s, <=, sliced * (1.0 + 1e-6) + 1e-9);
            g_assert_cmpfloat(point->sliced_recompute_s, >=,
                              sliced - 2e-3 * kept_bytes(&priced, 0) / saved * (double)(2 * p) *
                                           layer->sliced_forward_s);
            request->recompute = PLAN_RECOMPUTE_NONE;
            plan_point_bound_bytes(request, priced.job.cost, limit, point);
            g_assert_cmpfloat(point->recompute_s, ==, plain);
            request->recompute = PLAN_AUTO;
            plan_point_bound_bytes(request, priced.job.cost, INT64_MAX, point);
            g_assert_cmpfloat(point->recompute_s, ==, plain);
        }
}

/* point_bound.h: a limit of the user's own is meant as it stands; of a device's memory the
 * allocator loses some; none is no limit. */
static void
test_usable_bytes(void)
{
    const Pipe pipe = {
        .family = "1f1b", .p = 2, .v = 1, .m = 1, .dp = 1, .n_layers = 2, .micro_batch = 1};
    g_auto(Job) job = {0};

    job_init(&job, &pipe);
    const PlanDegrees *d = &job.point.degrees;
    const ProfileParameters *parameters = &job.profile->parameters;
    g_assert_true(isinf(plan_point_usable_bytes(&job.request, d, INT64_MAX, 1e9)));
    g_assert_cmpfloat_with_epsilon(
        plan_point_usable_bytes(&job.request, d, 80000000000, 1e9),
        (double)workload_usable_of(parameters, d, 80000000000, 1000000000) - 1e9, 2.0);
    job.request.memory_limit_bytes = 5000000000;
    g_assert_true(isinf(plan_point_usable_bytes(&job.request, d, INT64_MAX, 1e9)));
    g_assert_cmpfloat(plan_point_usable_bytes(&job.request, d, 5000000000, 1e9), ==, 4e9);
    g_assert_cmpfloat(plan_point_usable_bytes(&job.request, d, 5000000000, 6e9), ==, -1e9);
}

/* --- work alone --- */

/* The least of a point is the work of an average rank; of slices what no cut saves, with the
 * sums of one of two slices and what the request has all layers compute again. */
static void
test_work_alone(void)
{
    for (int64_t p = 1; p <= 3; p++)
        for (int64_t m = 1; m <= 5; m += 2)
            for (int kind = 0; kind < PLAN_RECOMPUTE_N; kind++) {
                const Pipe pipe = {.family = "1f1b",
                                   .p = p,
                                   .v = 1,
                                   .m = m,
                                   .dp = 1,
                                   .n_layers = 2 * p,
                                   .vocab = 51200,
                                   .micro_batch = 1,
                                   .recompute = kind,
                                   .attends = true};
                const Pipe once = {.family = "1f1b",
                                   .p = 1,
                                   .v = 1,
                                   .m = 1,
                                   .dp = 1,
                                   .n_layers = 2 * p,
                                   .vocab = 51200,
                                   .micro_batch = 1,
                                   .recompute = kind,
                                   .attends = true};
                g_auto(Priced) priced = {0};
                const double whole = alone_s(&once);
                priced_init(&priced, &pipe);
                const Job *job = &priced.job;
                const PlanPartCost *all = &job->cost->all,
                                   *layer = &job->cost->parts[PLAN_PART_LAYER];
                const PlanLayerShape shape = plan_point_layer_shape(&job->point);
                check_s(&pipe, "the point's least",
                        1e-9 * (double)plan_point_least_ns(&job->request, job->cost, &job->point, 1,
                                                           false),
                        (double)m * whole / (double)p);
                double sliced = all->sliced_forward_s + all->sliced_backward_s +
                                all->accumulate_s *
                                    plan_layer_accumulated(&job->request, &shape, 2.0 * (double)m);
                if (kind == PLAN_RECOMPUTE_FULL)
                    sliced += (double)(2 * p) * layer->sliced_forward_s;
                if (kind == PLAN_RECOMPUTE_SELECTIVE)
                    sliced += (double)(2 * p) * layer->sliced_core_s;
                check_s(&pipe, "the bound of slices",
                        1e-9 * (double)plan_point_sliced_ns(&job->request, job->cost, &job->point),
                        (double)m * sliced / (double)p + job->point.end_s);
            }
}

/* --- sketches --- */

/* What follows a rank's last op: reducing its gradients and those of a tied table, the
 * optimizer, gathering its weights. */
static void
test_ends(void)
{
    for (int64_t p = 1; p <= 3; p++)
        for (int64_t dp = 1; dp <= 4; dp *= 2)
            for (int zero = 0; zero <= 2; zero++)
                for (int i = 0; i < 4; i++) {
                    const Pipe pipe = {.family = "1f1b",
                                       .p = p,
                                       .v = 1,
                                       .m = 2,
                                       .dp = dp,
                                       .n_layers = 2 * p + 1,
                                       .vocab = i == 0 ? 0 : 51200,
                                       .micro_batch = 1,
                                       .zero_stage = dp == 1 ? 0 : zero,
                                       .attends = true,
                                       .is_real = true,
                                       .is_tied = i == 1,
                                       .framework = i == 3 ? PLAN_FRAMEWORK_MEGATRON_LM
                                                           : PLAN_FRAMEWORK_DEGAS};
                    g_auto(Priced) priced = {0};
                    g_auto(PlanSketch) sketch = {0};
                    const int64_t limits[4] = {0};
                    priced_init(&priced, &pipe);
                    if (priced.workload->overlap_dp || priced.workload->overlap_gather)
                        continue;
                    const Job *job = &priced.job;
                    const PlanSketchInput input = sketch_input(&priced, limits);
                    double mean = 0.0;
                    plan_sketch_init(&sketch, &input);
                    for (int64_t r = 0; r < p; r++) {
                        const double truth = end_s(&priced, r);
                        const double bound = plan_sketch_end_s(&job->request, job->cost,
                                                               &job->point, sketch.stages[r].n);
                        /* The last rank's copy of a tied table is a parameter more. */
                        if (pipe.is_tied && p > 1 && r == p - 1)
                            g_assert_cmpfloat(bound, <=, truth);
                        else
                            check_s(&pipe, "the end of a rank", bound, truth);
                        mean += truth / (double)p;
                    }
                    /* An average rank has the latencies of one rank, which the ranks share. */
                    const double average =
                        plan_sketch_average_end_s(&job->request, job->cost, &job->point);
                    g_assert_cmpfloat(average, <=, mean * (1.0 + 1e-9));
                    if (!pipe.is_tied)
                        g_assert_cmpfloat(average, >=, 0.99 * mean);
                }
}

/* sketch.h: each rank has the fastest kind that fits, and says so. */
static void
test_limits(void)
{
    static const char *const families[] = {"1f1b", "interleaved", "zb-h1"};

    for (size_t f = 0; f < G_N_ELEMENTS(families); f++) {
        const Pipe pipe = {.family = families[f],
                           .p = 2,
                           .v = f == 1 ? 2 : 1,
                           .m = 4,
                           .dp = 1,
                           .n_layers = 8,
                           .vocab = 51200,
                           .micro_batch = 1,
                           .recompute = PLAN_AUTO,
                           .attends = true};
        g_auto(Priced) priced = {0};
        priced_init(&priced, &pipe);
        g_auto(PlanSketch) open = {0};
        const int64_t none[2] = {0};
        PlanSketchInput input = sketch_input(&priced, none);
        plan_sketch_init(&open, &input);
        plan_sketch_weigh(&open, &input);
        priced.job.request.memory_limit_bytes = 1; /* limits are meant as they stand */
        for (int a = 0; a < 2 * PLAN_RECOMPUTE_N; a++)
            for (int above = -1; above <= 1; above++) {
                const int64_t limits[2] = {open.bytes[a] + above, open.bytes[a] + above};
                g_auto(PlanSketch) sketch = {0};
                bool fits = true, fits_plain = true;
                int64_t fullest = 0;
                input = sketch_input(&priced, limits);
                plan_sketch_init(&sketch, &input);
                plan_sketch_weigh(&sketch, &input);
                for (int r = 0; r < 2; r++) {
                    int fastest = -1;
                    int64_t leanest = INT64_MAX;
                    for (int kind = PLAN_RECOMPUTE_N - 1; kind >= 0; kind--) {
                        const int64_t bytes = open.bytes[r * PLAN_RECOMPUTE_N + kind];
                        g_assert_cmpint(sketch.bytes[r * PLAN_RECOMPUTE_N + kind], ==, bytes);
                        leanest = MIN(leanest, bytes);
                        fastest = bytes <= limits[r] ? kind : fastest;
                    }
                    fullest = MAX(fullest, leanest);
                    fits = fits && fastest >= 0;
                    fits_plain = fits_plain && fastest == 0;
                    g_assert_cmpint(sketch.recomputes[r], ==, fastest);
                    g_assert_cmpint(sketch.usable_bytes[r], ==, limits[r]);
                }
                g_assert_true(sketch.fits == fits && sketch.fits_plain == fits_plain);
                g_assert_cmpint(sketch.fullest_bytes, ==, fullest);
                if (!fits)
                    g_assert_cmpint(sketch.bound_ns, ==, INT64_MAX);
                else if (fits_plain)
                    g_assert_cmpint(sketch.bound_ns, ==, open.bound_ns);
                else
                    g_assert_cmpint(sketch.bound_ns, >=, open.bound_ns);
            }
    }
}

/* sketch.h: with several chunks what must be saved costs the least time per byte.  Where all
 * forwards come first, each chunk holds all micro-batches, and a byte of each saves as many. */
static void
test_saving_of_chunks(void)
{
    for (int64_t m = 2; m <= 4; m++)
        for (int j = 0; j < 10; j++) {
            const int i = j % 5;
            const Pipe pipe = {.family = "looped-bfs",
                               .p = 2,
                               .v = 2,
                               .m = m,
                               .dp = 1,
                               .n_layers = 8,
                               .micro_batch = 1,
                               .recompute = PLAN_AUTO,
                               .attends = j >= 5,
                               .framework =
                                   j >= 5 ? PLAN_FRAMEWORK_MEGATRON_LM : PLAN_FRAMEWORK_DEGAS};
            const double share = 0.25 * i;
            g_auto(Priced) priced = {0};
            g_auto(PlanSketch) open = {0}, sketch = {0};
            const int64_t none[2] = {0};
            priced_init(&priced, &pipe);
            PlanSketchInput input = sketch_input(&priced, none);
            plan_sketch_init(&open, &input);
            plan_sketch_weigh(&open, &input);
            const PlanPartCost *layer = &priced.job.cost->parts[PLAN_PART_LAYER];
            const double saved = 4.0 * (double)m *
                                 (double)(layer->kept_bytes[PLAN_RECOMPUTE_NONE] -
                                          layer->kept_bytes[PLAN_RECOMPUTE_FULL]);
            const int64_t limits[2] = {open.bytes[0] - (int64_t)(share * saved),
                                       open.bytes[PLAN_RECOMPUTE_N] - (int64_t)(share * saved)};
            priced.job.request.memory_limit_bytes = 1; /* limits are meant as they stand */
            input = sketch_input(&priced, limits);
            plan_sketch_init(&sketch, &input);
            plan_sketch_weigh(&sketch, &input);
            /* The kind that saves most by second, which does not have to save enough. */
            double rate = 0.0;
            for (int kind = 1; kind < PLAN_RECOMPUTE_N; kind++)
                if (layer->recompute_s[kind] > 0.0)
                    rate = fmax(rate, (double)(layer->kept_bytes[0] - layer->kept_bytes[kind]) /
                                          layer->recompute_s[kind]);
            const double again = share * saved / rate;
            if (sketch.fits)
                check_s(&pipe, "the bound of what is saved", 1e-9 * (double)sketch.bound_ns,
                        1e-9 * (double)open.bound_ns + again);
            g_assert_true(sketch.fits || i == 4);
        }
}

/* Sketches of sliced sequences: other ranks wait for the first slice, and each does all of its
 * own. */
static void
test_sketches_of_slices(void)
{
    for (int64_t p = 2; p <= 4; p++)
        for (int64_t m = 1; m <= 3; m++) {
            const Pipe pipe = {
                .p = p, .v = 1, .m = m, .dp = 1, .n_layers = 2 * p, .micro_batch = 1};
            const int64_t tokens[] = {LENGTH / 4, LENGTH / 4, LENGTH / 4, LENGTH / 4},
                          limits[4] = {0};
            const int recomputes[4] = {0};
            g_auto(Priced) priced = {0};
            g_auto(PlanSketch) sketch = {0};
            job_init(&priced.job, &pipe);
            const PlanLayerShape shape = plan_point_layer_shape(&priced.job.point);
            const PlanSlicedCost *cost =
                plan_layer_uniform_cost(priced.job.memo, &priced.job.request, &shape, 4);
            priced.plan = job_plan(&priced.job, tokens, 4, recomputes);
            PlanSketchInput input = sketch_input(&priced, limits);
            input.cost = &cost->whole;
            input.slice = &cost->slice;
            input.n_slices = 4;
            plan_sketch_init(&sketch, &input);
            plan_sketch_weigh(&sketch, &input);
            check_s(&pipe, "the sketch of slices", 1e-9 * (double)sketch.bound_ns,
                    1e-9 * (double)plan_ns(&priced.job, priced.plan, NULL));
        }
}

/* On devices of two kinds a rank's work is that of its own: the last ranks are the slow ones. */
static void
test_sketches_of_slow_ranks(void)
{
    for (int64_t p = 2; p <= 4; p += 2)
        for (int64_t m = 1; m <= 5; m++) {
            const Pipe pipe = {.family = "1f1b",
                               .p = p,
                               .v = 1,
                               .m = m,
                               .dp = 1,
                               .n_layers = 2 * p,
                               .micro_batch = 1,
                               .slow = 0.5};
            const int64_t limits[4] = {0};
            g_auto(Priced) priced = {0};
            g_auto(PlanSketch) sketch = {0};
            priced_init(&priced, &pipe);
            g_autofree const PlanLayerCost **costs =
                plan_rank_costs(priced.job.memo, &priced.job.request, &priced.job.point);
            double others = 0.0;
            for (int64_t r = 0; r < p - 1; r++)
                others += both_s(&priced, r);
            PlanSketchInput input = sketch_input(&priced, limits);
            input.rank_costs = costs;
            plan_sketch_init(&sketch, &input);
            plan_sketch_weigh(&sketch, &input);
            check_s(&pipe, "the sketch of slow ranks", 1e-9 * (double)sketch.bound_ns,
                    others + (double)m * both_s(&priced, p - 1) + end_s(&priced, 0));
        }
}

/* The work of the busiest rank alone, whichever it is. */
static void
test_work_of_the_busiest(void)
{
    for (int first = 0; first < 2; first++) {
        const Pipe pipe = {.family = "1f1b",
                           .p = 4,
                           .v = 1,
                           .m = 1,
                           .dp = 1,
                           .n_layers = 8,
                           .micro_batch = 1,
                           .slow = 0.5,
                           .slow_first = first};
        const int64_t limits[4] = {0};
        g_auto(Priced) priced = {0};
        g_auto(PlanSketch) sketch = {0};
        priced_init(&priced, &pipe);
        g_autofree const PlanLayerCost **costs =
            plan_rank_costs(priced.job.memo, &priced.job.request, &priced.job.point);
        PlanSketchInput input = sketch_input(&priced, limits);
        input.rank_costs = costs;
        plan_sketch_init(&sketch, &input);
        const double last =
            both_s(&priced, 3) + plan_sketch_end_s(&priced.job.request, priced.job.cost,
                                                   &priced.job.point, sketch.stages[3].n);
        check_s(&pipe, "the work of the busiest rank",
                1e-9 * (double)plan_sketch_work_ns(&sketch, &input),
                fmax(both_s(&priced, 0), last));
    }
}

/* Both chains of DualPipe are work of a rank, of what overlapped pairs hide nothing where there
 * are no collectives. */
static void
test_work_of_both_chains(void)
{
    static const char *const families[] = {"dualpipe", "dualpipev", "zb-v", "v-half"};

    for (size_t f = 0; f < G_N_ELEMENTS(families); f++)
        for (int64_t p = 2; p <= 4; p += 2) {
            const Pipe pipe = {.family = families[f],
                               .p = p,
                               .v = 2,
                               .m = 4 * p,
                               .dp = 1,
                               .n_layers = 4 * p,
                               .micro_batch = 1,
                               .attends = true};
            g_auto(Priced) priced = {0};
            g_auto(PlanSketch) sketch = {0};
            const int64_t limits[4] = {0};
            priced_init(&priced, &pipe);
            const Workload *w = priced.workload;
            double work = 0.0;
            for (int32_t chain = 0; chain < w->n_chains; chain++)
                for (int32_t k = 0; k < w->n_stages; k++) {
                    const int64_t *ns = workload_op_of_class(w, chain, k, 0, 0)->time_ns;
                    work += 1e-9 * (double)(ns[SCHEDULE_OP_FORWARD] +
                                            MIN(ns[SCHEDULE_OP_BACKWARD],
                                                ns[SCHEDULE_OP_BACKWARD_INPUT] +
                                                    ns[SCHEDULE_OP_BACKWARD_WEIGHT]));
                }
            work = work * (double)pipe.m / (double)w->n_chains / (double)p + end_s(&priced, 0);
            const PlanSketchInput input = sketch_input(&priced, limits);
            plan_sketch_init(&sketch, &input);
            plan_sketch_weigh(&sketch, &input);
            g_assert_cmpint(sketch.bound_ns, <=, priced.report->iteration_ns);
            g_assert_cmpfloat(1e-9 * (double)sketch.bound_ns, >=, work * (1.0 - 2e-3));
            g_assert_cmpfloat(1e-9 * (double)plan_bound_ns(priced.plan, w, priced.job.family), >=,
                              work * (1.0 - 2e-3));
            for (int64_t k = 0; k < sketch.n_stages; k++)
                for (int moment = 0; moment < PLAN_MOMENT_N; moment++) {
                    const PlanSketchStage *stage = &sketch.stages[k];
                    int64_t sizes[2] = {0};
                    for (int i = 0; i < PLAN_PART_N; i++) {
                        sizes[0] += stage->n[i] * priced.job.cost->parts[i].kept_bytes[0];
                        sizes[1] += stage->n[i] * priced.job.cost->parts[i].weight_bytes;
                    }
                    int64_t held = 0;
                    for (int half = 0; half < 2; half++)
                        held += sizes[half] * plan_flight_n_held(input.flight, stage->rank,
                                                                 (PlanMoment)moment, half,
                                                                 stage->chunk);
                    g_assert_cmpint(plan_sketch_held(&input, stage, (PlanMoment)moment, 0), ==,
                                    held);
                }
        }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/planner/point-bound/even-stages", test_even_stages);
    g_test_add_func("/planner/point-bound/even-stages-of-halves", test_even_stages_of_halves);
    g_test_add_func("/planner/point-bound/any-stages", test_any_stages);
    g_test_add_func("/planner/point-bound/bytes", test_bytes);
    g_test_add_func("/planner/point-bound/recompute-of-what-does-not-fit",
                    test_recompute_of_what_does_not_fit);
    g_test_add_func("/planner/point-bound/usable-bytes", test_usable_bytes);
    g_test_add_func("/planner/point-bound/work-alone", test_work_alone);
    g_test_add_func("/planner/point-bound/ends", test_ends);
    g_test_add_func("/planner/point-bound/limits", test_limits);
    g_test_add_func("/planner/point-bound/work-of-both-chains", test_work_of_both_chains);
    g_test_add_func("/planner/point-bound/saving-of-chunks", test_saving_of_chunks);
    g_test_add_func("/planner/point-bound/way-through-a-head", test_way_through_a_head);
    g_test_add_func("/planner/point-bound/sketches-of-slices", test_sketches_of_slices);
    g_test_add_func("/planner/point-bound/sketches-of-slow-ranks", test_sketches_of_slow_ranks);
    g_test_add_func("/planner/point-bound/small-layers", test_small_layers);
    g_test_add_func("/planner/point-bound/work-of-the-busiest", test_work_of_the_busiest);
    g_test_add_func("/planner/point-bound/gathers-of-the-nearest-order",
                    test_gathers_of_the_nearest_order);
    return g_test_run();
}
