/*
 * The bounds of plans with any slices say as much as they can.  Layers without attention take as
 * long on any slice of so many tokens.  Pipelines of such layers leave out nothing that
 * planner/bounds/floor.h counts, so there the bound is the time that the simulator says, but for
 * what an interval of rows hides; hulls of times are compared with all chords, and what ranks hold
 * with the ops of a schedule.  test_bounds_hold.c has bounds that say too much.
 */
#include <math.h>

#include "planner/bounds/floor.h"
#include "planner/bounds/floor_memory.h"
#include "planner/bounds/floor_table.h"
#include "profiles/workload/buffers.h"
#include "profiles/workload/ops.h"
#include "tests/planner/pipe_case.h"

/* An interval has one time, its first row's: of rows above a thousand it has a 128th of them
 * (floor_table.c). */
#define INTERVAL (1.0 / 128.0)

/* What the plan takes whose stages all recompute as the request says. */
static int64_t
sliced_ns(const Job *job, const int64_t *tokens, int64_t k)
{
    int recomputes[64];

    for (int64_t i = 0; i < job->point.degrees.pp * job->point.degrees.vpp; i++)
        recomputes[i] = (int)job->point.recompute;
    g_autoptr(Plan) plan = job_plan(job, tokens, k, recomputes);
    return plan_ns(job, plan, NULL);
}

/* The bound of slicings of @k slices of which the longest has @longest tokens. */
static int64_t
cell_ns(const Job *job, int64_t k, int64_t longest, int64_t memory_bytes)
{
    const double share = (double)longest / LENGTH;
    const PlanFloorAsked asked = {job->memo, &job->request, &job->point,
                                  job->cost, job->counts,   memory_bytes};
    const PlanFloorCell cell = {job->point.n_micro_batches, k, k, share, share};

    return plan_floor_cell_ns(&asked, job->point.micro_batch, &cell);
}

/* Whether @bound is as near to @truth as intervals allow, but for @allowed_ns. */
static void
check_near(const Pipe *pipe, int64_t k, int64_t bound, int64_t truth, int64_t allowed_ns)
{
    const double gap = (double)(truth - allowed_ns - bound) / (double)truth;

    if (bound > truth || gap > INTERVAL)
        g_test_fail_printf(
            "p %d v %d m %d dp %d layers %d micro-batch %d group %d recompute %d latency %g "
            "slow %g k %d: the bound is %" G_GINT64_FORMAT ", it takes %" G_GINT64_FORMAT,
            (int)pipe->p, (int)pipe->v, (int)pipe->m, (int)pipe->dp, (int)pipe->n_layers,
            (int)pipe->micro_batch, (int)pipe->group, pipe->recompute, pipe->latency_s, pipe->slow,
            (int)k, bound, truth);
}

static void
check_even(const Pipe *pipe, int64_t k, int64_t allowed_ns)
{
    g_auto(Job) job = {0};
    int64_t tokens[16];

    job_init(&job, pipe);
    for (int64_t i = 0; i < k; i++)
        tokens[i] = LENGTH / k;
    check_near(pipe, k, cell_ns(&job, k, tokens[0], INT64_MAX), sliced_ns(&job, tokens, k),
               allowed_ns);
}

/* Stages that are alike: seq1f1b and its kind with chunks leave no bubble but filling and
 * draining. */
static void
test_even_slices_of_even_stages(void)
{
    for (int64_t p = 2; p <= 4; p++)
        for (int64_t v = 1; v <= 3; v++)
            for (int64_t m = 1; m <= 5; m++)
                for (int64_t k = 2; k <= 4; k += 2) {
                    const Pipe plain = {
                        .p = p, .v = v, .m = m, .dp = 1, .n_layers = 2 * p * v, .micro_batch = 1};
                    Pipe pipe = plain;
                    check_even(&pipe, k, 0);
                    pipe.micro_batch = 2;
                    check_even(&pipe, k, 0);
                    pipe = plain;
                    pipe.recompute = PLAN_RECOMPUTE_FULL;
                    check_even(&pipe, k, 0);
                    pipe = plain;
                    pipe.dp = 2;
                    pipe.zero_stage = 3;
                    pipe.is_real = true;
                    check_even(&pipe, k, 0);
                    pipe = plain;
                    pipe.group = 2;
                    /* A last group that does not fill the ranks stalls them all. */
                    if (v > 1 && m % 2 * k == 0)
                        check_even(&pipe, k, 0);
                    pipe = plain;
                    pipe.latency_s = 2e-3;
                    /* With more than one micro-batch 1F1B waits for messages. */
                    if (m == 1)
                        check_even(&pipe, k, 0);
                    pipe = plain;
                    pipe.slow = 0.5;
                    if (v == 1 && p % 2 == 0)
                        check_even(&pipe, k, 0);
                    pipe = plain;
                    pipe.n_layers++;
                    if (v == 1)
                        check_even(&pipe, k, 0);
                }
}

/* Where one stage has a layer more, or is slower, ranks of several chunks may wait for it once
 * on a slice's way there and once on its way back, in no path that the bound follows: twice what
 * the layer, or the stage, takes on a slice. */
static void
test_even_slices_of_uneven_stages(void)
{
    for (int64_t p = 2; p <= 4; p++)
        for (int64_t v = 2; v <= 3; v++)
            for (int64_t m = 1; m <= 5; m++)
                for (int64_t k = 2; k <= 4; k += 2)
                    for (int64_t more = 1; more < 2; more++)
                        for (int i = 0; i < 2; i++) {
                            const Pipe pipe = {.p = p,
                                               .v = v,
                                               .m = m,
                                               .dp = 1,
                                               .n_layers = 2 * p * v + (i == 0 ? more : 0),
                                               .micro_batch = 1,
                                               .slow = i == 1 ? 0.5 : 0.0};
                            if (i == 1 && (p % 2 != 0 || more > 1))
                                continue;
                            g_auto(Job) job = {0};
                            job_init(&job, &pipe);
                            const double layer_s =
                                job.cost->layer.forward_s + job.cost->layer.backward_s;
                            const double s = 2.0 * layer_s / (double)k * (i == 0 ? 1.0 : 2.0);
                            int64_t tokens[4];
                            for (int64_t j = 0; j < k; j++)
                                tokens[j] = LENGTH / k;
                            check_near(&pipe, k, cell_ns(&job, k, tokens[0], INT64_MAX),
                                       sliced_ns(&job, tokens, k), (int64_t)(1e9 * s));
                        }
}

/* One micro-batch in slices of different lengths is a flow shop of equal machines: all ranks but
 * the last add what the longest slice takes. */
static void
test_uneven_slices(void)
{
    static const int64_t cuts[][3] = {{4096, 2048, 2048}, {2048, 4096, 2048}, {2048, 2048, 4096}};

    for (int64_t p = 2; p <= 5; p++)
        for (size_t i = 0; i < G_N_ELEMENTS(cuts); i++) {
            const Pipe pipe = {.p = p,
                               .v = 1,
                               .m = 1,
                               .dp = 1,
                               .n_layers = 2 * p,
                               .micro_batch = 1,
                               .is_fine = true};
            g_auto(Job) job = {0};
            job_init(&job, &pipe);
            const int64_t longest = MAX(MAX(cuts[i][0], cuts[i][1]), cuts[i][2]);
            check_near(&pipe, 3, cell_ns(&job, 3, longest, INT64_MAX), sliced_ns(&job, cuts[i], 3),
                       0);
        }
}

/* The bound of all slicings is that of the best even ones, of which no others are faster here;
 * and a limit changes nothing but that it stands for all that is above. */
static void
test_all_slicings(void)
{
    for (int64_t p = 2; p <= 4; p++)
        for (int64_t m = 1; m <= 3; m++) {
            const Pipe pipe = {.p = p, .v = 1, .m = m, .dp = 1, .n_layers = p, .micro_batch = 1};
            g_auto(Job) job = {0};
            int64_t tokens[16], least = INT64_MAX, best_k = 0;
            job_init(&job, &pipe);
            for (int64_t k = 2; k <= 16; k++) {
                for (int64_t i = 0; i < k; i++)
                    tokens[i] = 128 * ((i + 1) * LENGTH / 128 / k - i * LENGTH / 128 / k);
                const int64_t ns = sliced_ns(&job, tokens, k);
                best_k = ns < least ? k : best_k;
                least = MIN(least, ns);
            }
            const PlanFloorAsked asked = {job.memo, &job.request, &job.point,
                                          job.cost, job.counts,   INT64_MAX};
            const int64_t bound = plan_floor_ns(&asked, &pipe.micro_batch, 1, INT64_MAX);
            const int64_t longest = 128 * ((LENGTH / 128 + best_k - 1) / best_k);
            /* Slices of whole tiles are not equal. */
            check_near(&pipe, best_k, bound, least,
                       (int64_t)((double)least * ((double)(longest * best_k) / LENGTH - 1.0)));
            g_assert_cmpint(plan_floor_ns(&asked, &pipe.micro_batch, 1, 2 * bound), ==, bound);
            g_assert_cmpint(plan_floor_ns(&asked, &pipe.micro_batch, 1, bound + bound / 100), ==,
                            bound);
            g_assert_cmpint(plan_floor_ns(&asked, &pipe.micro_batch, 1, bound - bound / 100), ==,
                            bound - bound / 100);
        }
}

/* What a rank's ops take of one slice, both passes, and what its peak is. */
typedef struct {
    double slice_ns;
    int64_t peak_bytes, workspace_bytes;
} RankCost;

static void
rank_costs(const Job *job, int64_t k, const int64_t *tokens, int kind, RankCost *costs)
{
    const int64_t p = job->point.degrees.pp;
    const int recomputes[] = {kind, kind, kind, kind};
    g_autoptr(Plan) plan = job_plan(job, tokens, k, recomputes);
    g_autoptr(Workload) workload = workload_new(job->arch, job->profile, plan, 0, NULL);
    g_autoptr(Report) report = NULL;

    g_assert_nonnull(workload);
    g_assert_true(simulate(plan, workload, INT64_MAX, &report, NULL, NULL));
    for (int32_t r = 0; r < p; r++) {
        const WorkloadOp *op = workload_op_of_class(workload, 0, r, 0, 0);
        costs[r].slice_ns =
            (double)(op->time_ns[SCHEDULE_OP_FORWARD] + op->time_ns[SCHEDULE_OP_BACKWARD]);
        costs[r].peak_bytes = g_array_index(report->ranks, ReportRank, (guint)r).peak_memory_bytes;
        costs[r].workspace_bytes = op->workspace_bytes[SCHEDULE_OP_BACKWARD];
    }
}

/* A rank of one chunk has one recompute kind: the fastest with which it fits.  floor.h: all of
 * its ops, after a slice has passed the ranks before it, and before it comes back. */
static void
test_memory_of_one_chunk(void)
{
    int n_seen = 0;

    for (int64_t p = 2; p <= 4; p++)
        for (int64_t m = 1; m <= 3; m++)
            for (int64_t k = 2; k <= 4; k += 2) {
                const Pipe pipe = {.p = p,
                                   .v = 1,
                                   .m = m,
                                   .dp = 1,
                                   .n_layers = 8 * p,
                                   .micro_batch = 1,
                                   .recompute = PLAN_AUTO};
                const int64_t tokens[] = {LENGTH / k, LENGTH / k, LENGTH / k, LENGTH / k};
                g_auto(Job) job = {0};
                RankCost none[4], full[4];
                job_init(&job, &pipe);
                rank_costs(&job, k, tokens, PLAN_RECOMPUTE_NONE, none);
                rank_costs(&job, k, tokens, PLAN_RECOMPUTE_FULL, full);
                const int64_t end_ns = cell_ns(&job, k, LENGTH / k, INT64_MAX) -
                                       (int64_t)((double)(m * k + p - 1) * none[0].slice_ns);
                for (int64_t r = 0; r < 2 * p; r++) {
                    /* Between what a rank has with one kind and the next that any has with some
                     * kind. */
                    const int64_t below = r < p ? none[r].peak_bytes : full[r - p].peak_bytes;
                    int64_t above = INT64_MAX;
                    double longest_ns = 0.0;
                    for (int64_t q = 0; q < p; q++) {
                        if (none[q].peak_bytes > below)
                            above = MIN(above, none[q].peak_bytes);
                        if (full[q].peak_bytes > below)
                            above = MIN(above, full[q].peak_bytes);
                    }
                    /* Workspaces are left out of what floor_memory.h counts. */
                    if (above == INT64_MAX || above - below < 2 * none[0].workspace_bytes)
                        continue;
                    const int64_t limit = below + (above - below) / 4;
                    bool fits = true;
                    for (int64_t q = 0; q < p; q++) {
                        const RankCost *kind = none[q].peak_bytes <= limit ? &none[q] : &full[q];
                        fits = fits && kind->peak_bytes <= limit;
                        const double again_ns =
                            kind == &none[q]
                                ? 0.0
                                : (double)(m * 8) * 1e9 * job.cost->layer.sliced_forward_s;
                        longest_ns =
                            fmax(longest_ns, (double)(m * k + q) * none[0].slice_ns + again_ns);
                    }
                    job.request.memory_limit_bytes = limit;
                    const int64_t bound = cell_ns(&job, k, LENGTH / k, limit);
                    g_assert_true(fits);
                    g_assert_cmpfloat_with_epsilon((double)(bound - end_ns), longest_ns,
                                                   longest_ns * 1e-4);
                    n_seen++;
                }
                job.request.memory_limit_bytes = full[p - 1].peak_bytes / 2;
                g_assert_cmpint(cell_ns(&job, k, LENGTH / k, full[p - 1].peak_bytes / 2), ==,
                                INT64_MAX);
            }
    g_assert_cmpint(n_seen, >, 30);
}

/* --- formulas --- */

/* What both passes of a layer take on so many rows: on devices of one multiprocessor a constant
 * and a time by row. */
typedef struct {
    double each[PLAN_FLOOR_PASSES], row[PLAN_FLOOR_PASSES];
} Line;

static Line
line_of(const Job *job)
{
    const int recomputes[16] = {0};
    const int64_t tokens[][2] = {{2048, LENGTH - 2048}, {4096, 4096}};
    Line line;
    int64_t ns[2][PLAN_FLOOR_PASSES];

    for (int i = 0; i < 2; i++) {
        g_autoptr(Plan) plan = job_plan(job, tokens[i], 2, recomputes);
        g_autoptr(Workload) workload = workload_new(job->arch, job->profile, plan, 0, NULL);
        g_assert_nonnull(workload);
        const WorkloadOp *op = workload_op_of_class(workload, 0, 0, 0, 0);
        ns[i][0] = op->time_ns[SCHEDULE_OP_FORWARD];
        ns[i][1] = op->time_ns[SCHEDULE_OP_BACKWARD];
    }
    const double n = (double)job->counts[0] * (double)job->point.micro_batch;
    for (int i = 0; i < PLAN_FLOOR_PASSES; i++) {
        line.row[i] = (double)(ns[1][i] - ns[0][i]) / 2048.0 / n;
        line.each[i] = (double)ns[0][i] / (double)job->counts[0] -
                       2048.0 * line.row[i] * (double)job->point.micro_batch;
    }
    return line;
}

static double
pass_ns(const Line *line, int pass, double rows)
{
    return line->each[pass] + line->row[pass] * rows;
}

static double
both_ns(const Line *line, double rows)
{
    return pass_ns(line, 0, rows) + pass_ns(line, 1, rows);
}

/* What all slices of a layer take, @n ops of @rows together. */
static double
work_ns(const Line *line, double n, double rows)
{
    return n * (line->each[0] + line->each[1]) + (line->row[0] + line->row[1]) * rows;
}

static double
end_ns(const Job *job)
{
    const int recomputes[16] = {0};
    g_autoptr(Plan) plan = job_plan(job, NULL, 0, recomputes);
    g_autoptr(Workload) workload = workload_new(job->arch, job->profile, plan, 0, NULL);

    g_assert_nonnull(workload);
    return (double)workload->ranks[0].optimizer_ns;
}

/* Bytes of rank 0 that stay, without messages' buffers. */
static double
state_bytes(const Job *job)
{
    const int recomputes[16] = {0};
    g_autoptr(Plan) plan = job_plan(job, NULL, 0, recomputes);
    g_autoptr(Workload) workload = workload_new(job->arch, job->profile, plan, 0, NULL);
    double sum =
        (double)workload_library_bytes(&job->profile->parameters, &job->request.conventions);

    g_assert_nonnull(workload);
    for (int i = 0; i < TRACE_MEMORY_N; i++)
        sum += i == TRACE_MEMORY_BUFFERS ? 0.0 : (double)workload->ranks[0].static_bytes[i];
    return sum;
}

static int64_t
any_cell_ns(const Job *job, int64_t group, const PlanFloorCell *cell)
{
    const PlanFloorAsked asked = {job->memo, &job->request, &job->point,
                                  job->cost, job->counts,   INT64_MAX};

    return plan_floor_cell_ns(&asked, group, cell);
}

/* Whether @bound is what a formula says of lines, from which times of few rows differ by less
 * than a 500th. */
static void
check_formula(const Pipe *pipe, int64_t bound, double formula)
{
    if (fabs((double)bound - formula) > 4e-3 * formula)
        g_test_fail_printf(
            "p %d v %d m %d layers %d: the bound is %" G_GINT64_FORMAT ", the formula says %.0f",
            (int)pipe->p, (int)pipe->v, (int)pipe->m, (int)pipe->n_layers, bound, formula);
}

/* A cell of several numbers of slices has the work of its fewest and the way of its most: of a
 * rank, and of the chain of all stages through the last one. */
static void
test_cells_of_several_numbers(void)
{
    for (int64_t p = 2; p <= 4; p++)
        for (int64_t v = 1; v <= 3; v++)
            for (int64_t m = 1; m <= 3; m++)
                for (int64_t last = 4; last <= 8; last *= 2) {
                    const Pipe pipe = {.p = p,
                                       .v = v,
                                       .m = m,
                                       .dp = 1,
                                       .n_layers = 2 * p * v,
                                       .micro_batch = 1,
                                       .is_fine = true};
                    const PlanFloorCell cell = {m, 2, last, 1.0 / (double)last, 1.0};
                    g_auto(Job) job = {0};
                    job_init(&job, &pipe);
                    const Line line = line_of(&job);
                    const double work = work_ns(&line, 2.0 * (double)m, (double)(m * LENGTH)),
                                 way = both_ns(&line, (double)LENGTH / (double)last);
                    const double rank = 2.0 * (double)v * work + 2.0 * (double)(p - 1) * way;
                    const double chain = 2.0 * work + 2.0 * (double)(v * p - 1) * way;
                    check_formula(&pipe, any_cell_ns(&job, 1, &cell),
                                  fmax(rank, chain) + end_ns(&job));
                }
}

/* Micro-batches that differ in size: the first one and the last one have what all others leave
 * them, at least one sequence each, in the way that takes least. */
static void
test_sizes_at_both_ends(void)
{
    for (int64_t p = 2; p <= 5; p++)
        for (int64_t largest = 2; largest <= 4; largest++)
            for (int64_t m = 2; m <= 4; m++)
                for (int64_t n = largest + m - 1; n <= largest * m; n++) {
                    const Pipe pipe = {.p = p,
                                       .v = 1,
                                       .m = n,
                                       .dp = 1,
                                       .n_layers = 2 * p,
                                       .micro_batch = 1,
                                       .is_fine = true};
                    const PlanFloorCell cell = {m, 2, 2, 0.5, 0.5};
                    const double rows = LENGTH / 2.0;
                    const int64_t both = MAX(2, n - (m - 2) * largest);
                    double way = INFINITY;
                    g_auto(Job) job = {0};
                    job_init(&job, &pipe);
                    const Line line = line_of(&job);
                    for (int64_t first = 1; first <= largest; first++)
                        if (MAX(1, both - first) <= largest)
                            way = fmin(way,
                                       pass_ns(&line, 0, rows * (double)first) +
                                           pass_ns(&line, 1, rows * (double)MAX(1, both - first)));
                    const double work = work_ns(&line, 2.0 * (double)m, (double)(n * LENGTH));
                    check_formula(&pipe, any_cell_ns(&job, largest, &cell),
                                  2.0 * work + 2.0 * (double)(p - 1) * way + end_ns(&job));
                }
}

/* Of several chunks any slice of the largest micro-batch passes all stages and comes back. */
static void
test_way_of_the_largest(void)
{
    for (int64_t v = 2; v <= 3; v++) {
        const Pipe pipe = {
            .p = 4, .v = v, .m = 5, .dp = 1, .n_layers = 8 * v, .micro_batch = 1, .is_fine = true};
        const PlanFloorCell cell = {2, 2, 2, 0.5, 0.5};
        g_auto(Job) job = {0};
        job_init(&job, &pipe);
        const Line line = line_of(&job);
        const double way = 8.0 * (double)v * both_ns(&line, 4.0 * LENGTH / 2.0);
        g_assert_cmpfloat((double)any_cell_ns(&job, 4, &cell), >=, 0.996 * (way + end_ns(&job)));
    }
}

/* Where a rank has a layer more, a path begins on it, to which the shortest slice may have come,
 * or on rank 0, where the layer is subtracted for the first micro-batch. */
static void
test_uneven_slices_of_uneven_stages(void)
{
    for (int64_t p = 2; p <= 4; p++)
        for (int64_t m = 1; m <= 6; m++)
            for (int i = 0; i <= 3; i++)
                for (int64_t more = 0; more < p; more++) {
                    const Pipe pipe = {.p = p,
                                       .v = 1,
                                       .m = m,
                                       .dp = 1,
                                       .n_layers = 4 * p + more,
                                       .micro_batch = 1,
                                       .is_fine = true};
                    const double longest = LENGTH / 8.0 * (4 + i),
                                 least = LENGTH - longest; /* of two slices */
                    const PlanFloorCell cell = {m, 2, 2, longest / LENGTH, longest / LENGTH};
                    g_auto(Job) job = {0};
                    double before = 0.0, bound = 0.0;
                    job_init(&job, &pipe);
                    const Line line = line_of(&job);
                    const double work = work_ns(&line, 2.0 * (double)m, (double)(m * LENGTH));
                    for (int64_t r = 0; r < p; before += (double)job.counts[r++]) {
                        double begin = 0.0; /* layers before the first rank that has as many */
                        for (int64_t q = 0; job.counts[q] < job.counts[r]; q++)
                            begin += (double)job.counts[q];
                        const double longer =
                            (double)MAX(0, job.counts[r] - job.counts[0]) * work / (double)m;
                        const double far = fmax(before * both_ns(&line, longest) - longer,
                                                (before - begin) * both_ns(&line, longest) +
                                                    begin * both_ns(&line, least));
                        bound = fmax(bound, (double)job.counts[r] * work + far);
                    }
                    check_formula(&pipe, any_cell_ns(&job, 1, &cell), bound + end_ns(&job));
                }
}

/* Six sequences in four micro-batches of at most two: while a micro-batch comes back from three
 * ranks rank 0 has run the next one, so of two such pairs one holds three sequences.  Where it
 * has room for less, it computes all of them again. */
static void
test_memory_of_pairs_of_micro_batches(void)
{
    const Pipe pipe = {.p = 3,
                       .v = 1,
                       .m = 6,
                       .dp = 1,
                       .n_layers = 24,
                       .micro_batch = 1,
                       .recompute = PLAN_AUTO,
                       .is_fine = true};
    const PlanFloorCell cell = {4, 2, 2, 0.5, 0.5};
    g_auto(Job) job = {0};

    job_init(&job, &pipe);
    const Line line = line_of(&job);
    const double kept =
        8.0 * (double)job.cost->parts[PLAN_PART_LAYER].kept_bytes[PLAN_RECOMPUTE_NONE];
    const double state = state_bytes(&job);
    const double work = 8.0 * work_ns(&line, 8.0, 6.0 * LENGTH);
    const double again = 6.0 * 8.0 * 1e9 * job.cost->layer.sliced_forward_s;
    for (int i = 0; i < 2; i++) {
        const int64_t limit = (int64_t)(state + (i == 0 ? 2.6 : 3.4) * kept);
        const PlanFloorAsked asked = {job.memo, &job.request, &job.point,
                                      job.cost, job.counts,   limit};
        job.request.memory_limit_bytes = limit;
        const double way = i == 0 ? again : 2.0 * 8.0 * both_ns(&line, LENGTH / 2.0);
        check_formula(&pipe, plan_floor_cell_ns(&asked, 2, &cell), work + way + end_ns(&job));
    }
}

/* In two orders of ranks one rank lies on fast devices in one and on slow ones in the other:
 * what it takes is that of the fast ones, as in the order in which it lies there alone. */
static void
test_orders_of_ranks_on_two_kinds(void)
{
    for (int first = 0; first < 2; first++) {
        const Pipe pipe = {.p = 2,
                           .v = 1,
                           .m = 3,
                           .dp = 2,
                           .n_layers = 4,
                           .micro_batch = 1,
                           .slow = 0.5,
                           .slow_first = first};
        const PlanFloorCell cell = {3, 2, 2, 0.5, 0.5};
        int32_t kinds[2];
        g_auto(Job) job = {0};
        job_init(&job, &pipe);
        const int64_t one = any_cell_ns(&job, 1, &cell);
        plan_rank_kinds(&job.request, &job.point, kinds);
        g_assert_true(kinds[0] == 0 && kinds[1] == 1);
        job.point.orders = 1u << PLAN_RANK_ORDER_DEFAULT | 1u << PLAN_RANK_ORDER_PP_BEFORE_DP;
        plan_rank_kinds(&job.request, &job.point, kinds);
        g_assert_true(kinds[1 - first] == 1 - first && kinds[first] == -1);
        const int64_t both = any_cell_ns(&job, 1, &cell);
        g_assert_cmpfloat_with_epsilon((double)both, (double)one, 1e-3 * (double)one);
    }
}

/* Ranks do as much together wherever the slow ones lie. */
static void
test_slow_ranks_anywhere(void)
{
    double fast[2];

    for (int first = 0; first < 2; first++) {
        const Pipe pipe = {.p = 4,
                           .v = 1,
                           .m = 3,
                           .dp = 1,
                           .n_layers = 4,
                           .micro_batch = 1,
                           .slow = 0.5,
                           .slow_first = first};
        g_auto(Job) job = {0};
        job_init(&job, &pipe);
        fast[first] = plan_rank_fast(job.memo, &job.request, &job.point);
    }
    g_assert_cmpfloat(fast[0], <, 3.1); /* two, and two of half the rate */
    g_assert_cmpfloat_with_epsilon(fast[1], fast[0], 1e-9);
}

/* --- what ranks hold --- */

/* Sequences that @rank holds in each chunk at its first backward, of micro-batches of @size in
 * @k slices. */
static void
count_held(const Schedule *schedule, int32_t rank, double size, double *held)
{
    for (int32_t c = 0; c < schedule->n_chunks; c++)
        held[c] = 0.0;
    for (int64_t i = schedule->rank_begin[rank]; schedule->ops[i].kind == SCHEDULE_OP_FORWARD; i++)
        held[schedule->ops[i].chunk] += size / (double)schedule->n_slices;
}

/* A rank that keeps 10, 6 or 1 bytes of a sequence in a layer, with 0, 3 and 7 s of recompute;
 * chunk c has c + 1 layers.  The gradients of keys and values take half a byte of a sequence. */
static const double kinds_bytes[PLAN_RECOMPUTE_N] = {10.0, 6.0, 1.0},
                    kinds_s[PLAN_RECOMPUTE_N] = {0.0, 3.0, 7.0};
#define KV_BYTES 0.5
#define SAVING_RATE 4.0

static void
memory_init(PlanFloorMemory *memory, int64_t p, int64_t v, int64_t group)
{
    *memory =
        (PlanFloorMemory){.pp = p,
                          .vpp = v,
                          .group = group,
                          .kept_bytes = g_new(double, (size_t)(p * v)),
                          .least_bytes = g_new(double, (size_t)(p * v)),
                          .kind_bytes = g_malloc0((size_t)(p * v) * sizeof *memory->kind_bytes),
                          .kind_s = g_malloc0((size_t)(p * v) * sizeof *memory->kind_s),
                          .kv_bytes = g_new(double, (size_t)p),
                          .usable_bytes = g_new(double, (size_t)p),
                          .saving_rate = SAVING_RATE};
    for (int64_t i = 0; i < p * v; i++) {
        const double n = (double)(i / p + 1);
        memory->kept_bytes[i] = n * kinds_bytes[0];
        memory->least_bytes[i] = n * kinds_bytes[PLAN_RECOMPUTE_N - 1];
        for (int kind = 0; kind < PLAN_RECOMPUTE_N; kind++) {
            memory->kind_bytes[i][kind] = n * kinds_bytes[kind];
            memory->kind_s[i][kind] = kinds_s[kind];
        }
        memory->kv_bytes[i % p] = KV_BYTES;
    }
}

/* The least that rank @r has to recompute with @usable bytes for what it holds in chunks of 1,
 * 2, ... layers: of several chunks those of which most is held come first.  @as_one: all of it
 * at the rate of the chunk of which most is held. */
static double
needed_s(const double *held, int64_t v, double gradients, double usable, double n_sequences,
         bool as_one)
{
    double excess = gradients - usable, least = gradients, seconds = 0.0;
    bool is_done[3] = {false};

    for (int64_t c = 0; c < v; c++) {
        excess += held[c] * (double)(c + 1) * kinds_bytes[0];
        least += held[c] * (double)(c + 1) * kinds_bytes[PLAN_RECOMPUTE_N - 1];
    }
    if (least > usable)
        return INFINITY;
    if (v == 1)
        return excess <= 0.0                                    ? kinds_s[0]
               : gradients + held[0] * kinds_bytes[1] <= usable ? kinds_s[1]
                                                                : kinds_s[2];
    while (excess > 0.0) {
        int64_t most = -1;
        for (int64_t c = 0; c < v; c++)
            if (!is_done[c] && (most < 0 || held[c] > held[most]))
                most = c;
        const double room =
            held[most] * (double)(most + 1) * (kinds_bytes[0] - kinds_bytes[PLAN_RECOMPUTE_N - 1]);
        const double saved = as_one ? excess : fmin(excess, room);
        seconds += saved / held[most] / SAVING_RATE * n_sequences;
        excess -= saved;
        is_done[most] = true;
    }
    return seconds;
}

/* @also  sequences of one micro-batch that a rank of one chunk has whole at a later backward; 0:
 * none */
static void
check_forced(PlanFloorMemory *memory, const PlanFloorCut *cut, int64_t r, const double *held,
             double gradients, double also)
{
    double all = gradients;

    for (int64_t c = 0; c < memory->vpp; c++)
        all += held[c] * (double)(c + 1) * kinds_bytes[0];
    /* Amounts of memory, from one in which nothing fits on; of one chunk also just above and
     * just below what each kind holds. */
    for (int i = 0; i < 11 + 2 * PLAN_RECOMPUTE_N; i++) {
        const double exact = gradients + held[0] * kinds_bytes[MAX(0, i - 11) / 2];
        const double usable = i < 11             ? all * (0.0503 + 0.1 * i)
                              : memory->vpp == 1 ? exact + (i % 2 == 0 ? 0.01 : -0.01)
                                                 : all;
        memory->usable_bytes[r] = usable;
        const double n = (double)cut->n_sequences;
        const double later =
            also == 0.0 ? 0.0 : needed_s(&also, 1, KV_BYTES * also, usable, n, true);
        const double low = fmax(later, needed_s(held, memory->vpp, gradients, usable, n, true));
        const double high = fmax(later, needed_s(held, memory->vpp, gradients, usable, n, false));
        const double forced = plan_floor_forced_s(memory, cut, r);
        if (forced < low - 1e-5 || forced > high + 1e-5)
            g_test_fail_printf("p %d v %d group %d, m %d k %d sequences %d, rank %d: %g s with %g "
                               "of %g bytes, needed are %g to %g",
                               (int)memory->pp, (int)memory->vpp, (int)memory->group,
                               (int)cut->n_micro_batches, (int)cut->n_slices, (int)cut->n_sequences,
                               (int)r, forced, usable, all, low, high);
    }
}

/* floor_memory.h: before its first backward a rank holds what its schedule says, of equal slices
 * and micro-batches. */
static void
test_held_before_the_first_backward(void)
{
    int n_seen = 0;

    for (int64_t p = 2; p <= 5; p++)
        for (int64_t v = 1; v <= 3; v++)
            for (int64_t m = 1; m <= 5; m++)
                for (int64_t k = 2; k <= 5; k++)
                    for (int64_t group = 0; group <= (v > 1 ? 3 : 0); group++) {
                        const char *name = v > 1 ? "seq1f1b-interleaved" : "seq1f1b";
                        const ScheduleShape shape = {p, v, m, k, group, NULL};
                        const int64_t in_group = v > 1 ? schedule_interleaved_group(&shape) : m;
                        /* Ranks warm up longer where the last group does not fill them. */
                        if (v > 1 &&
                            (in_group * k < p || (m % in_group != 0 && m % in_group * k < p - 1)))
                            continue;
                        g_autoptr(Schedule) schedule = schedule_new(name, &shape, NULL);
                        g_assert_nonnull(schedule);
                        g_auto(PlanFloorMemory) memory = {0};
                        memory_init(&memory, p, v, group);
                        for (int64_t size = 1; size <= 2; size++)
                            for (int64_t r = 0; r < p; r++) {
                                /* The next group's chunks are counted but for the last one. */
                                if ((p - 1 - r) * 2 > (v * in_group - 1) * k && v > 1)
                                    continue;
                                const PlanFloorCut cut = {m, m * size,        size,
                                                          k, 1.0 / (double)k, v > 1 ? in_group : 0};
                                double held[3];
                                count_held(schedule, (int32_t)r, (double)size, held);
                                check_forced(&memory, &cut, r, held, KV_BYTES * (double)size, 0.0);
                            }
                        n_seen++;
                    }
    g_test_message("%d schedules", n_seen);
    g_assert_cmpint(n_seen, >, 100);
}

/* Of micro-batches that differ the last rank of one chunk holds the largest, whichever it is; a
 * rank before which more slices pass than there are holds all sequences, and the gradients of
 * the first micro-batch, which has at least what the others leave it. */
static void
test_held_of_differing_micro_batches(void)
{
    for (int64_t largest = 2; largest <= 4; largest++)
        for (int64_t m = 2; m <= 4; m++)
            for (int64_t n = largest + m - 1; n < largest * m; n++) {
                const int64_t k = 2, p = m * k + 1;
                const PlanFloorCut cut = {m, n, largest, k, 1.0 / (double)k, 0};
                const double whole = (double)n, one = (double)largest;
                g_auto(PlanFloorMemory) memory = {0};
                memory_init(&memory, p, 1, 0);
                check_forced(&memory, &cut, 0, &whole,
                             KV_BYTES * (double)MAX(1, n - (m - 1) * largest), one);
                check_forced(&memory, &cut, p - 1, &one, KV_BYTES * (double)largest, 0.0);
            }
}

/* --- hulls --- */

typedef struct {
    double rows, seconds;
} Corner;

/* The least of all chords at @rows of the first @n corners; beyond the last one its own. */
static double
least_chord(const Corner *corners, guint n, double rows)
{
    double least = INFINITY;

    if (rows >= corners[n - 1].rows)
        return corners[n - 1].seconds;
    for (guint a = 0; a < n && corners[a].rows <= rows; a++)
        for (guint b = n - 1; b > a && corners[b].rows > rows; b--)
            least = fmin(least, corners[a].seconds + (corners[b].seconds - corners[a].seconds) *
                                                         (rows - corners[a].rows) /
                                                         (corners[b].rows - corners[a].rows));
    return least;
}

/* The least of what ops of all numbers of rows from @least to @rows take on average, by row,
 * times @rows: where it is least there is a corner, or an end. */
static double
least_of_more(const Corner *corners, guint n, double rows, double least_rows, double each_s)
{
    const double most = fmin(rows, corners[n - 1].rows);
    double least =
        fmin((least_chord(corners, n, most) + each_s) / most,
             (least_chord(corners, n, fmin(most, least_rows)) + each_s) / fmin(most, least_rows));

    for (guint c = 0; c < n; c++)
        if (corners[c].rows > least_rows && corners[c].rows < most)
            least =
                fmin(least, (least_chord(corners, n, corners[c].rows) + each_s) / corners[c].rows);
    return least * rows;
}

static void
check_curve(const PlanFloorTable *table, const PlanFloorCurve *curve, uint32_t *state)
{
    g_autofree Corner *corners = g_new(Corner, table->n_intervals + 1);
    const uint32_t last = (uint32_t)table->ends[table->n_intervals - 1];

    corners[0] = (Corner){0.0, curve->first_s[0]};
    for (guint i = 0; i < table->n_intervals; i++)
        corners[i + 1] = (Corner){(double)table->ends[i], curve->first_s[i]};
    /* Of many corners there are many chords. */
    for (guint i = 0; i < 1 + 1000 / table->n_intervals; i++) {
        const double most_rows = 1.0 + draw(state) % last,
                     rows = most_rows * (double)(1 + draw(state) % 1000) / 1000.0;
        const double least_rows = rows * (double)(1 + draw(state) % 1000) / 1000.0,
                     each_s = draw(state) % 2 == 0 ? 0.0 : 1e-4;
        guint n = 1;
        while (corners[n - 1].rows < most_rows)
            n++;
        const double chord = least_chord(corners, n, rows),
                     more = least_of_more(corners, n, rows, least_rows, each_s);
        g_assert_cmpfloat_with_epsilon(plan_floor_average_s(table, curve, rows, most_rows), chord,
                                       1e-9 * chord);
        g_assert_cmpfloat_with_epsilon(
            plan_floor_more_s(table, curve, rows, least_rows, most_rows, each_s), more,
            1e-9 * more);
    }
}

/* A pass has what attention takes of a whole sequence at the least, and a backward what is
 * computed again of it. */
static void
test_tables_have_attention(void)
{
    for (int kind = 0; kind < PLAN_RECOMPUTE_N; kind++) {
        const Pipe pipe = {.p = 2,
                           .v = 1,
                           .m = 1,
                           .dp = 1,
                           .n_layers = 2,
                           .micro_batch = 1,
                           .recompute = kind,
                           .attends = true};
        g_auto(Job) job = {0};
        job_init(&job, &pipe);
        const PlanLayerShape shape = plan_point_layer_shape(&job.point);
        const PlanFloorTable *table =
            plan_floor_table(job.memo, &job.request, &job.point, job.request.seq_len, NULL, false);
        ProfileQuery query = plan_layer_query(&job.request, &shape, 0);
        query.part = MODEL_PART_LAYER;
        const ProfileAttentionFloor forward =
            profile_cost_sliced_attention_floor(job.profile, &query, PROFILE_PASS_FORWARD);
        const ProfileAttentionFloor backward =
            profile_cost_sliced_attention_floor(job.profile, &query, PROFILE_PASS_BACKWARD);
        /* What full recompute repeats has its rows' share there, and the core of attention none. */
        const double again = kind == PLAN_RECOMPUTE_FULL        ? forward.beside_rows_s
                             : kind == PLAN_RECOMPUTE_SELECTIVE ? forward.all_s
                                                                : 0.0;
        g_assert_cmpfloat(forward.beside_rows_s, >, 0.0);
        g_assert_cmpfloat(forward.beside_rows_s, <, forward.all_s);
        g_assert_cmpfloat(table->kinds[0].passes[0][0].attention_s, ==, forward.beside_rows_s);
        g_assert_cmpfloat(table->kinds[0].passes[0][1].attention_s, ==,
                          backward.beside_rows_s + again);
    }
}

/* floor_table.h: intervals have the time of their first row, a rough table has those of every
 * eighth, and ops of so many rows on average take no less than the hull says. */
static void
test_hulls(void)
{
    const Pipe pipe = {.p = 2, .v = 1, .m = 1, .dp = 1, .n_layers = 2, .micro_batch = 2};
    g_auto(Job) job = {0};
    uint32_t state = 5;

    job_init(&job, &pipe);
    for (int64_t rows = LENGTH; rows <= 3 * LENGTH; rows += LENGTH) {
        const PlanFloorTable *table =
            plan_floor_table(job.memo, &job.request, &job.point, rows, NULL, false);
        const PlanFloorTable *rough =
            plan_floor_table(job.memo, &job.request, &job.point, rows, NULL, true);
        const PlanLayerShape shape = plan_point_layer_shape(&job.point);
        ProfileQuery query = plan_layer_query(&job.request, &shape, 0);
        query.part = MODEL_PART_LAYER;
        query.shape.batch = 1;
        query.accumulate_bytes_per_weight =
            workload_accumulate_bytes(job.request.dtype, &job.request.conventions, false, 2.0);
        g_assert_cmpint(table->ends[table->n_intervals - 1], ==, rows);
        for (guint i = 0, j = 0; i < table->n_intervals; i++) {
            const int64_t begin = i == 0 ? 0 : table->ends[i - 1];
            query.shape.tokens = begin + 1;
            const ProfileSliceFloors floors = profile_cost_slice_floors(job.profile, &query);
            const ProfileSliceFloor *of[] = {&floors.forward, &floors.backward};
            for (int pass = 0; pass < PLAN_FLOOR_PASSES; pass++) {
                const PlanFloorPass *sharp = &table->kinds[0].passes[0][pass],
                                    *other = &rough->kinds[0].passes[0][pass];
                g_assert_cmpfloat(sharp->device.first_s[i], ==, of[pass]->device_s);
                g_assert_cmpfloat(sharp->host.first_s[i], ==, of[pass]->host_s);
                if (j < rough->n_intervals && (j == 0 ? 0 : rough->ends[j - 1]) == begin)
                    g_assert_cmpfloat(other->device.first_s[j], ==, of[pass]->device_s);
            }
            j += j < rough->n_intervals && (j == 0 ? 0 : rough->ends[j - 1]) == begin;
            g_assert_cmpint(plan_floor_interval(table, begin + 1), ==, i);
            g_assert_cmpint(plan_floor_interval(table, table->ends[i]), ==, i);
        }
        for (int pass = 0; pass < PLAN_FLOOR_PASSES; pass++) {
            check_curve(table, &table->kinds[0].passes[0][pass].device, &state);
            check_curve(table, &table->kinds[0].passes[0][pass].host, &state);
            check_curve(rough, &rough->kinds[0].passes[0][pass].device, &state);
        }
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/planner/floor/even-slices-of-even-stages", test_even_slices_of_even_stages);
    g_test_add_func("/planner/floor/even-slices-of-uneven-stages",
                    test_even_slices_of_uneven_stages);
    g_test_add_func("/planner/floor/uneven-slices", test_uneven_slices);
    g_test_add_func("/planner/floor/all-slicings", test_all_slicings);
    g_test_add_func("/planner/floor/memory-of-one-chunk", test_memory_of_one_chunk);
    g_test_add_func("/planner/floor/held-before-the-first-backward",
                    test_held_before_the_first_backward);
    g_test_add_func("/planner/floor/held-of-differing-micro-batches",
                    test_held_of_differing_micro_batches);
    g_test_add_func("/planner/floor/hulls", test_hulls);
    g_test_add_func("/planner/floor/cells-of-several-numbers", test_cells_of_several_numbers);
    g_test_add_func("/planner/floor/sizes-at-both-ends", test_sizes_at_both_ends);
    g_test_add_func("/planner/floor/uneven-slices-of-uneven-stages",
                    test_uneven_slices_of_uneven_stages);
    g_test_add_func("/planner/floor/orders-of-ranks-on-two-kinds",
                    test_orders_of_ranks_on_two_kinds);
    g_test_add_func("/planner/floor/memory-of-pairs-of-micro-batches",
                    test_memory_of_pairs_of_micro_batches);
    g_test_add_func("/planner/floor/tables-have-attention", test_tables_have_attention);
    g_test_add_func("/planner/floor/way-of-the-largest", test_way_of_the_largest);
    g_test_add_func("/planner/floor/slow-ranks-anywhere", test_slow_ranks_anywhere);
    return g_test_run();
}
