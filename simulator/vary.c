#include "simulator/vary.h"

#include <string.h>

#include "base/pages.h"
#include "simulator/factors.h"
#include "simulator/finish.h"
#include "simulator/pairs.h"

/* --- one replica of one run --- */

/* By what varies what follows a rank's ops. */
typedef struct {
    const SimFactors *optimizer, *reduce, *gather;
} RankVaries;

typedef struct {
    const SimProgram *program;
    const SimTimes *fixed; /* without jitter */
    const SimPeak *peaks;
    const SimJitter *jitter;
    const SimFactors **ops;   /* [cost]; its message varies by them too */
    const RankVaries *finish; /* [rank] */
    const SimFactors *ranks, *memory;
    double largest;             /* factor of an op */
    int64_t slowdown;           /* factor of a straggler */
    uint64_t straggler_below;   /* of a draw's upper 53 bits */
    int64_t *iteration_ns;      /* [run] */
    int64_t *peak_memory_bytes; /* [run] */
    bool *fits;                 /* [run] */
} Study;

/* Of what follows a rank's ops. */
typedef struct {
    int64_t optimizer, reduce, gather;
} RankFactors;

/* What one thread works on. */
typedef struct {
    SimCost *costs;           /* [cost] of this replica */
    RankFactors *rank_finish; /* [rank] */
    int64_t *rank_factors;    /* [rank] */
    SimTimes times;
} Room;

/* The slowest of its members: each is a device of its own.  @random is of the first. */
static int64_t
rank_factor(const Study *study, uint64_t random)
{
    int64_t slowest = 0;

    for (int64_t member = 0; member < MAX(study->jitter->n_members, 1); member++) {
        const uint64_t own = member == 0 ? random : sim_draw(random, (uint64_t)member);
        int64_t factor = sim_first_factor(study->ranks, own);
        if ((sim_mix(~own) >> 11) < study->straggler_below)
            factor = sim_times_factor(factor, study->slowdown);
        slowest = MAX(slowest, factor);
    }
    return slowest;
}

static void
vary_ranks(const Study *study, Room *room, uint64_t key)
{
    const SimProgram *program = study->program;

    for (int32_t r = 0; r < program->schedule->n_ranks; r++) {
        const uint64_t random = sim_draw(key, (uint64_t)r), other = sim_mix(~random);
        const int64_t factor = rank_factor(study, random);
        room->rank_factors[r] = factor;
        const RankVaries *varies = &study->finish[r];
        room->rank_finish[r] = (RankFactors){
            .optimizer = sim_times_factor(sim_first_factor(varies->optimizer, other), factor),
            .reduce = sim_second_factor(varies->reduce, other),
            .gather = sim_second_factor(varies->gather, random),
        };
    }
    for (int64_t cost = 0; cost < program->n_costs; cost++) {
        const SimCost *fixed = &program->costs[cost];
        const int64_t factor = room->rank_factors[fixed->rank];
        room->costs[cost] = (SimCost){
            .busy_ns = sim_times_factor(fixed->busy_ns, factor),
            /* Of a blocking send the sender waits as part of what keeps it busy. */
            .lag_ns = fixed->lag_ns < 0 ? -sim_times_factor(-fixed->lag_ns, factor) : fixed->lag_ns,
            .rank = fixed->rank,
        };
    }
}

/* A message that lasts @lag_ns, or a sender's wait that is part of its op (< 0). */
static inline int64_t
varied_lag(const SimFactors *factors, uint64_t random, int64_t lag_ns)
{
    return lag_ns < 0 ? -sim_times_factor(-lag_ns, sim_first_factor(factors, random))
                      : sim_times_factor(lag_ns, sim_second_factor(factors, random));
}

/* The pair of the steps @i and @i + 1, as sim_pairs_sweep() has it; one factor for both. */
static void
vary_pair(const Study *study, Room *room, uint64_t key, int64_t i)
{
    const SimProgram *program = study->program;
    const SimStep *step = &program->steps[i];
    const SimCost *costs[2] = {&room->costs[step[0].cost], &room->costs[step[1].cost]};
    const int64_t rank = costs[0]->rank;
    const uint64_t random[2] = {sim_draw(key, (uint64_t)i), sim_draw(key, (uint64_t)i + 1)};
    int64_t *const ready = room->times.ready_ns, *const free_ns = &room->times.free_ns[rank];
    int64_t pair_ns = sim_pair_ns(program, step[0].cost, step[1].cost);

    pair_ns = sim_times_factor(pair_ns, room->rank_factors[rank]);
    pair_ns = sim_times_factor(pair_ns, sim_first_factor(study->ops[step[0].cost], random[0]));
    *free_ns = MAX(*free_ns, MAX(ready[step[0].producer], ready[step[1].producer])) + pair_ns;
    for (int k = 0; k < 2; k++) {
        room->times.free_of_step_ns[i + k] = *free_ns;
        ready[i + k + 1] =
            *free_ns + varied_lag(study->ops[step[k].cost], random[k], costs[k]->lag_ns);
    }
}

/* sim_program_sweep() with a factor for every op and message. */
static void
vary_ops(const Study *study, Room *room, uint64_t key)
{
    const SimProgram *program = study->program;
    const SimTimes *fixed = study->fixed;
    int64_t *const ready = room->times.ready_ns, *const free_ns = room->times.free_ns;
    const GArray *longer = fixed->longer;
    guint next_longer = 0;
    int64_t next_pair = 0;

    memset(free_ns, 0, sizeof *free_ns * (size_t)program->schedule->n_ranks);
    ready[0] = 0;
    for (int64_t i = 0; i < program->n_ops; i++) {
        if (next_pair < program->n_pairs && program->pairs[next_pair] == i) {
            vary_pair(study, room, key, i++);
            next_pair++;
            continue;
        }
        const SimStep step = program->steps[i];
        const SimCost cost = room->costs[step.cost];
        const SimFactors *factors = study->ops[step.cost];
        const uint64_t random = sim_draw(key, (uint64_t)i);
        const int64_t factor = sim_first_factor(factors, random);
        int64_t busy = cost.busy_ns, lag = cost.lag_ns;
        if (fixed->followed != NULL) {
            const SimOpTimes at = sim_times_step(fixed, program, (uint32_t)i);
            busy = sim_times_factor(at.free_ns - at.begin_ns, room->rank_factors[cost.rank]);
            lag = lag < 0 ? lag : fixed->ready_ns[i + 1] - at.free_ns;
        } else if (next_longer < longer->len &&
                   g_array_index(longer, SimLonger, next_longer).step == i) {
            busy += sim_times_factor(g_array_index(longer, SimLonger, next_longer++).extra_ns,
                                     room->rank_factors[cost.rank]);
        }
        const int64_t next =
            MAX(ready[step.producer], free_ns[cost.rank]) + sim_times_factor(busy, factor);
        free_ns[cost.rank] = next;
        ready[i + 1] = next + varied_lag(factors, random, lag);
    }
}

/* The replica's end of everything. */
static int64_t
end_of(const Study *study, const Room *room)
{
    int64_t end_ns = 0;

    for (int32_t r = 0; r < study->program->schedule->n_ranks; r++) {
        const SimFinish *finish = &study->fixed->finish[r];
        const RankFactors *f = &room->rank_finish[r];
        end_ns = MAX(end_ns,
                     room->times.free_ns[r] +
                         sim_times_factor(finish->optimizer_start_ns - finish->free_ns, f->reduce) +
                         sim_times_factor(finish->optimizer_end_ns - finish->optimizer_start_ns,
                                          f->optimizer) +
                         sim_times_factor(finish->end_ns - finish->optimizer_end_ns, f->gather));
    }
    return end_ns;
}

static void
vary_memory(const Study *study, int64_t run, uint64_t key)
{
    const WorkloadRank *ranks = study->program->workload->ranks;

    for (int32_t r = 0; study->peaks != NULL && r < study->program->schedule->n_ranks; r++) {
        const int64_t factor = sim_first_factor(study->memory, sim_draw(~key, (uint64_t)r));
        /* No factor passes 2^11. */
        const int64_t bytes = sim_times_factor(MIN(study->peaks[r].bytes, INT64_MAX >> 11), factor);
        const int64_t limit = workload_usable_bytes(&ranks[r]);
        study->peak_memory_bytes[run] = MAX(study->peak_memory_bytes[run], bytes);
        if (limit > 0 && bytes > limit)
            study->fits[run] = false;
    }
}

/* --- all runs --- */

static bool
room_init(Room *room, const SimProgram *program, GError **error)
{
    const size_t n_ranks = (size_t)program->schedule->n_ranks;

    *room = (Room){
        .costs = g_try_new(SimCost, (size_t)program->n_costs),
        .rank_finish = g_new(RankFactors, n_ranks),
        .rank_factors = g_new(int64_t, n_ranks),
    };
    if (!sim_times_init(&room->times, program, error))
        return false;
    if (room->costs != NULL)
        return true;
    return sim_fail_memory(error, program->n_costs, "different ops");
}

static void
room_clear(Room *room)
{
    g_free(room->costs);
    g_free(room->rank_finish);
    g_free(room->rank_factors);
    sim_times_clear(&room->times);
}

static void
run_once(const Study *study, Room *room, int64_t run)
{
    const uint64_t of_run = sim_draw(sim_draw(study->jitter->seed, 0), (uint64_t)run);

    for (int64_t replica = 0; replica < MAX(study->jitter->n_replicas, 1); replica++) {
        const uint64_t key = sim_draw(of_run, (uint64_t)replica);
        vary_ranks(study, room, sim_mix(key ^ 1));
        vary_ops(study, room, key);
        study->iteration_ns[run] = MAX(study->iteration_ns[run], end_of(study, room));
        vary_memory(study, run, key);
    }
}

/* A thread's runs: every n-th one. */
typedef struct {
    const Study *study;
    Room room;
    int64_t first, step;
} Share;

static void *
run_share(void *data)
{
    Share *share = data;

    for (int64_t run = share->first; run < share->study->jitter->n_runs; run += share->step)
        run_once(share->study, &share->room, run);
    return NULL;
}

static bool
run_all(const Study *study, GError **error)
{
    const int64_t n = CLAMP(study->jitter->n_threads, 1, study->jitter->n_runs);
    g_autofree Share *shares = g_new0(Share, (size_t)n);
    g_autofree GThread **threads = g_new0(GThread *, (size_t)n);
    bool fine = true;

    for (int64_t i = 0; i < n && fine; i++) {
        shares[i] = (Share){.study = study, .first = i, .step = n};
        fine = room_init(&shares[i].room, study->program, error);
    }
    for (int64_t i = 1; i < n && fine; i++)
        threads[i] = g_thread_new("jitter", run_share, &shares[i]);
    if (fine)
        run_share(&shares[0]);
    for (int64_t i = 0; i < n; i++) {
        if (threads[i] != NULL)
            g_thread_join(threads[i]);
        room_clear(&shares[i].room);
    }
    return fine;
}

/* --- the answer --- */

static int
compare(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* Sorts @values; of 10, 50 and 90 % of them the smallest that is not exceeded. */
static void
quantiles(int64_t *values, int64_t n, int64_t result[3])
{
    static const int64_t tenths[3] = {1, 5, 9};

    qsort(values, (size_t)n, sizeof *values, compare);
    for (int i = 0; i < 3; i++)
        result[i] = values[(tenths[i] * n + 9) / 10 - 1];
}

/* Whether no sum of varied times can pass SIM_MAX_NS. */
static bool
check(const SimProgram *program, const Study *study, GError **error)
{
    const double largest =
        study->largest *
        ((double)study->ranks->of[SIM_VARY_QUANTILES - 1] / (double)SIM_FACTOR_ONE) *
        ((double)study->slowdown / (double)SIM_FACTOR_ONE);
    double sum_ns = 0;

    for (int64_t cost = 0; cost < program->n_costs; cost++) {
        const SimCostDetail *d = &program->details[cost];
        if (program->counts[cost] > 0)
            sum_ns += (double)program->counts[cost] * (double)(d->op_ns + d->in.ns + d->out.ns);
    }
    for (int32_t r = 0; r < program->schedule->n_ranks; r++) {
        const WorkloadRank *rank = &program->workload->ranks[r];
        sum_ns += (double)rank->dp_reduce_ns + (double)rank->dp_gather_ns;
        sum_ns += (double)rank->optimizer_ns + (double)study->fixed->free_ns[r];
    }
    if (sum_ns * largest < (double)SIM_MAX_NS)
        return true;
    g_set_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_LIMIT,
                "jitter: an iteration could take longer than 146 years");
    return false;
}

static void
summarize(Study *study, ReportJitter *result)
{
    const SimJitter *jitter = study->jitter;
    int64_t n_fit = 0;

    for (int64_t run = 0; run < jitter->n_runs; run++)
        n_fit += study->fits[run];
    *result = (ReportJitter){
        .op_sigma = jitter->op_sigma,
        .correlation_s = jitter->correlation_s,
        .rank_sigma = jitter->rank_sigma,
        .memory_sigma = jitter->memory_sigma,
        .straggler_fraction = jitter->straggler_fraction,
        .straggler_slowdown = MAX(jitter->straggler_slowdown, 1),
        .n_runs = jitter->n_runs,
        .seed = (int64_t)jitter->seed,
        .fit_fraction = (double)n_fit / (double)jitter->n_runs,
    };
    quantiles(study->iteration_ns, jitter->n_runs, result->iteration_ns);
    quantiles(study->peak_memory_bytes, jitter->n_runs, result->peak_memory_bytes);
}

/* What varies by what, with the quantiles @z in @by and @two. */
static void
study_init(Study *study, const SimJitter *jitter, SimFactorsBy *by, SimFactors two[2],
           const SimFactors **ops, RankVaries *finish)
{
    const SimProgram *program = study->program;

    for (int64_t cost = 0; cost < program->n_costs; cost++)
        ops[cost] = sim_factors_by(by, program->costs[cost].busy_ns);
    for (int32_t r = 0; r < program->schedule->n_ranks; r++) {
        const SimFinish *f = &study->fixed->finish[r];
        finish[r] = (RankVaries){
            .optimizer = sim_factors_by(by, f->optimizer_end_ns - f->optimizer_start_ns),
            .reduce = sim_factors_by(by, f->optimizer_start_ns - f->free_ns),
            .gather = sim_factors_by(by, f->end_ns - f->optimizer_end_ns),
        };
    }
    sim_factors_init(&two[0], by->z, jitter->rank_sigma,
                     jitter->correlation_s > 0 ? -jitter->rank_sigma * jitter->rank_sigma / 2
                                               : 0.0);
    sim_factors_init(&two[1], by->z, jitter->memory_sigma, 0.0);
    study->ops = ops;
    study->finish = finish;
    study->ranks = &two[0];
    study->memory = &two[1];
    study->largest = sim_vary_exp(by->largest * by->z[SIM_VARY_QUANTILES - 1]);
}

bool
sim_vary(const SimProgram *program, const SimTimes *times, const SimPeak *peaks,
         const SimJitter *jitter, ReportJitter *result, GError **error)
{
    const size_t n = (size_t)jitter->n_runs;

    g_return_val_if_fail(jitter->n_runs >= 1 && jitter->n_runs <= SIM_JITTER_MAX_RUNS, false);
    g_autofree double *z = g_new(double, SIM_VARY_QUANTILES);
    g_autofree SimFactors *two = g_new(SimFactors, 2);
    g_autofree const SimFactors **ops = g_try_new(const SimFactors *, (size_t)program->n_costs);
    g_autofree RankVaries *finish = g_new(RankVaries, (size_t)program->schedule->n_ranks);
    g_auto(SimFactorsBy) by = {
        .z = z,
        .sigma = jitter->op_sigma,
        .correlation_s = jitter->correlation_s,
        .lasting = jitter->rank_sigma,
    };
    g_autofree int64_t *iteration_ns = g_new0(int64_t, n), *peak_bytes = g_new0(int64_t, n);
    g_autofree bool *fits = g_new(bool, n);
    Study study = {
        .program = program,
        .fixed = times,
        .peaks = peaks,
        .jitter = jitter,
        .slowdown = (int64_t)(MAX(jitter->straggler_slowdown, 1) * (double)SIM_FACTOR_ONE + 0.5),
        .straggler_below = (uint64_t)(jitter->straggler_fraction * 9007199254740992.0 /* 2^53 */),
        .iteration_ns = iteration_ns,
        .peak_memory_bytes = peak_bytes,
        .fits = fits,
    };

    memset(fits, true, n);
    sim_vary_quantiles(z);
    if (ops == NULL)
        return sim_fail_memory(error, program->n_costs, "different ops");
    study_init(&study, jitter, &by, two, ops, finish);
    if (!check(program, &study, error) || !run_all(&study, error))
        return false;
    summarize(&study, result);
    return true;
}
