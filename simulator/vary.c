#include "simulator/vary.h"

#include <string.h>

#include "base/pages.h"
#include "simulator/factors.h"
#include "simulator/finish.h"
#include "simulator/pairs.h"
#include "simulator/speed.h"

/* --- one replica of one run --- */

/* Durations of what follows a rank's ops. */
typedef struct {
    const SimSpeedLevel *reduce, *optimizer, *gather;
} RankLevels;

typedef struct {
    const SimProgram *program;
    const SimTimes *fixed; /* without jitter */
    const SimPeak *peaks;
    const SimJitter *jitter;
    SimFactors *ops, *ranks, *memory; /* (owned) */
    /* Where speeds are forgotten (jitter.h), instead of ops: */
    SimSpeeds speeds;
    const SimSpeedLevel **level; /* (owned, nullable) [cost] */
    RankLevels *finish;          /* (owned, nullable) [rank] */
    int64_t slowdown;            /* factor of a straggler */
    uint64_t straggler_below;    /* of a draw's upper 53 bits */
    double *z;                   /* (owned) quantiles */
    int64_t *iteration_ns;       /* (owned) [run] */
    int64_t *peak_memory_bytes;  /* (owned) [run] */
    bool *fits;                  /* (owned) [run] */
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
    double *x;                /* (owned, nullable) [rank * members + member] of speed.h */
    SimTimes times;
} Room;

static int64_t
n_members(const Study *study)
{
    return MAX(study->jitter->n_members, 1);
}

/* Each device draws for itself; @random is of the first. */
static uint64_t
random_of(uint64_t random, int64_t member)
{
    return member == 0 ? random : sim_draw(random, (uint64_t)member);
}

/* The slowest of its members: each is a device of its own. */
static int64_t
rank_factor(const Study *study, uint64_t random)
{
    int64_t slowest = 0;

    for (int64_t member = 0; member < n_members(study); member++) {
        const uint64_t own = random_of(random, member);
        int64_t factor = sim_first_factor(study->ranks, own);
        if ((sim_mix(~own) >> 11) < study->straggler_below)
            factor = sim_times_factor(factor, study->slowdown);
        slowest = MAX(slowest, factor);
    }
    return slowest;
}

/* Of an op of @rank that begins @gap_ns after its last: that of its slowest member. */
static int64_t
next_factor(const Study *study, Room *room, int32_t rank, const SimSpeedLevel *level,
            int64_t gap_ns, uint64_t random)
{
    const int64_t n = n_members(study);
    int64_t slowest = 0;

    for (int64_t member = 0; member < n; member++) {
        const int64_t factor = sim_speed_next(&study->speeds, &room->x[rank * n + member], level,
                                              gap_ns, random_of(random, member));
        slowest = MAX(slowest, factor);
    }
    return slowest;
}

static void
first_speeds(const Study *study, Room *room, int32_t rank, uint64_t random)
{
    const int64_t n = n_members(study);

    for (int64_t member = 0; member < n; member++)
        room->x[rank * n + member] = sim_speed_first(&study->speeds, random_of(random, member));
}

static void
vary_ranks(const Study *study, Room *room, uint64_t key)
{
    const SimProgram *program = study->program;

    for (int32_t r = 0; r < program->schedule->n_ranks; r++) {
        const uint64_t random = sim_draw(key, (uint64_t)r), other = sim_mix(~random);
        const int64_t factor = rank_factor(study, random);
        room->rank_factors[r] = factor;
        if (study->level != NULL)
            first_speeds(study, room, r, other);
        else
            room->rank_finish[r] = (RankFactors){
                .optimizer = sim_times_factor(sim_first_factor(study->ops, other), factor),
                .reduce = sim_second_factor(study->ops, other),
                .gather = sim_second_factor(study->ops, random),
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

static int64_t
op_factor(const Study *study, Room *room, uint32_t cost, int64_t gap_ns, uint64_t random)
{
    if (study->level == NULL)
        return sim_first_factor(study->ops, random);
    return next_factor(study, room, study->program->costs[cost].rank, study->level[cost], gap_ns,
                       random);
}

/* A message of an op of @factor that lasts @lag_ns, or a sender's wait that is part of the op
 * (< 0). */
static int64_t
varied_lag(const Study *study, uint32_t cost, int64_t factor, uint64_t random, int64_t lag_ns)
{
    if (lag_ns < 0)
        return -sim_times_factor(-lag_ns, factor);
    return sim_times_factor(
        lag_ns, study->level == NULL ? sim_second_factor(study->ops, random)
                                     : sim_speed_alone(&study->speeds, study->level[cost], random));
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
    const int64_t begin_ns = MAX(*free_ns, MAX(ready[step[0].producer], ready[step[1].producer]));
    const int64_t factor = op_factor(study, room, step[0].cost, begin_ns - *free_ns, random[0]);
    *free_ns = begin_ns + sim_times_factor(pair_ns, factor);
    for (int k = 0; k < 2; k++) {
        room->times.free_of_step_ns[i + k] = *free_ns;
        ready[i + k + 1] =
            *free_ns + varied_lag(study, step[k].cost, factor, random[k], costs[k]->lag_ns);
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
        const uint64_t random = sim_draw(key, (uint64_t)i);
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
        const int64_t begin_ns = MAX(ready[step.producer], free_ns[cost.rank]);
        const int64_t factor =
            op_factor(study, room, step.cost, begin_ns - free_ns[cost.rank], random);
        const int64_t next = begin_ns + sim_times_factor(busy, factor);
        free_ns[cost.rank] = next;
        ready[i + 1] = next + varied_lag(study, step.cost, factor, random, lag);
    }
}

/* What follows a rank's ops, one after the other, at the speed that its last op left. */
static RankFactors
finish_factors(const Study *study, Room *room, int32_t rank, uint64_t key)
{
    const RankLevels *levels = &study->finish[rank];
    const uint64_t random = sim_draw(key, (uint64_t)rank);
    RankFactors f;

    f.reduce = next_factor(study, room, rank, levels->reduce, 0, sim_draw(random, 1));
    f.optimizer = next_factor(study, room, rank, levels->optimizer, 0, sim_draw(random, 2));
    f.optimizer = sim_times_factor(f.optimizer, room->rank_factors[rank]);
    f.gather = next_factor(study, room, rank, levels->gather, 0, sim_draw(random, 3));
    return f;
}

/* The replica's end of everything. */
static int64_t
end_of(const Study *study, Room *room, uint64_t key)
{
    int64_t end_ns = 0;

    for (int32_t r = 0; r < study->program->schedule->n_ranks; r++) {
        const SimFinish *finish = &study->fixed->finish[r];
        if (study->level != NULL)
            room->rank_finish[r] = finish_factors(study, room, r, key);
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
room_init(Room *room, const Study *study, GError **error)
{
    const SimProgram *program = study->program;
    const size_t n_ranks = (size_t)program->schedule->n_ranks;

    *room = (Room){
        .costs = g_try_new(SimCost, (size_t)program->n_costs),
        .rank_finish = g_new(RankFactors, n_ranks),
        .rank_factors = g_new(int64_t, n_ranks),
        .x = study->level == NULL ? NULL : g_new(double, n_ranks *(size_t)n_members(study)),
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
    g_free(room->x);
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
        const int64_t end_ns = end_of(study, room, sim_mix(key ^ 2));
        study->iteration_ns[run] = MAX(study->iteration_ns[run], end_ns);
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
        fine = room_init(&shares[i].room, study, error);
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
    const double of_op = study->level != NULL ? sim_speeds_largest(&study->speeds)
                                              : (double)study->ops->of[SIM_VARY_QUANTILES - 1] /
                                                    (double)SIM_FACTOR_ONE;
    const double largest =
        of_op * ((double)study->ranks->of[SIM_VARY_QUANTILES - 1] / (double)SIM_FACTOR_ONE) *
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

/* --- a study --- */

static void
study_clear(Study *study)
{
    sim_speeds_clear(&study->speeds);
    g_free(study->z);
    g_free(study->ops);
    g_free(study->ranks);
    g_free(study->memory);
    g_free(study->level);
    g_free(study->finish);
    g_free(study->iteration_ns);
    g_free(study->peak_memory_bytes);
    g_free(study->fits);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Study, study_clear)

/* (owned) exp(shift + sigma Z) */
static SimFactors *
factors_new(const double *z, double sigma, double shift)
{
    SimFactors *factors = g_new(SimFactors, 1);

    sim_factors_init(factors, z, sigma, shift);
    return factors;
}

/* By how long it takes what varies how much. */
static bool
study_set_levels(Study *study, GError **error)
{
    const SimProgram *program = study->program;
    SimSpeeds *speeds = &study->speeds;

    study->level = g_try_new(const SimSpeedLevel *, (size_t)program->n_costs);
    if (study->level == NULL)
        return sim_fail_memory(error, program->n_costs, "different ops");
    study->finish = g_new(RankLevels, (size_t)program->schedule->n_ranks);
    for (int64_t cost = 0; cost < program->n_costs; cost++)
        study->level[cost] = sim_speeds_level(speeds, program->costs[cost].busy_ns);
    for (int32_t r = 0; r < program->schedule->n_ranks; r++) {
        const SimFinish *f = &study->fixed->finish[r];
        study->finish[r] = (RankLevels){
            .reduce = sim_speeds_level(speeds, f->optimizer_start_ns - f->free_ns),
            .optimizer = sim_speeds_level(speeds, f->optimizer_end_ns - f->optimizer_start_ns),
            .gather = sim_speeds_level(speeds, f->end_ns - f->optimizer_end_ns),
        };
    }
    return true;
}

static bool
study_init(Study *study, GError **error)
{
    const SimJitter *jitter = study->jitter;
    const bool forgets = jitter->correlation_s > 0;
    const double rank_sigma = jitter->rank_sigma;

    study->z = g_new(double, SIM_VARY_QUANTILES);
    sim_vary_quantiles(study->z);
    study->ops = factors_new(study->z, jitter->op_sigma, 0.0);
    study->ranks = factors_new(study->z, rank_sigma, forgets ? -rank_sigma * rank_sigma / 2 : 0.0);
    study->memory = factors_new(study->z, jitter->memory_sigma, 0.0);
    study->speeds = (SimSpeeds){
        .sigma = jitter->op_sigma,
        .correlation_s = jitter->correlation_s,
        .z = study->z,
    };
    return !forgets || study_set_levels(study, error);
}

bool
sim_vary(const SimProgram *program, const SimTimes *times, const SimPeak *peaks,
         const SimJitter *jitter, ReportJitter *result, GError **error)
{
    const size_t n = (size_t)jitter->n_runs;

    g_return_val_if_fail(jitter->n_runs >= 1 && jitter->n_runs <= SIM_JITTER_MAX_RUNS, false);
    g_auto(Study) study = {
        .program = program,
        .fixed = times,
        .peaks = peaks,
        .jitter = jitter,
        .slowdown = (int64_t)(MAX(jitter->straggler_slowdown, 1) * (double)SIM_FACTOR_ONE + 0.5),
        .straggler_below = (uint64_t)(jitter->straggler_fraction * 9007199254740992.0 /* 2^53 */),
        .iteration_ns = g_new0(int64_t, n),
        .peak_memory_bytes = g_new0(int64_t, n),
        .fits = g_new(bool, n),
    };

    memset(study.fits, true, n);
    if (!study_init(&study, error) || !check(program, &study, error) || !run_all(&study, error))
        return false;
    summarize(&study, result);
    return true;
}
