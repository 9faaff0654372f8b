#include "simulator/sweep.h"

#include <string.h>

#include "base/host_memory.h"
#include "base/order.h"
#include "simulator/pairs.h"

/* --- times --- */

bool
sim_times_init(SimTimes *times, const SimProgram *program, GError **error)
{
    const size_t n_ranks = (size_t)program->schedule->n_ranks;

    times->ready_ns = pages_try_malloc((size_t)program->n_ops + 1, sizeof *times->ready_ns);
    times->free_ns = g_new0(int64_t, n_ranks);
    times->finish = g_new0(SimFinish, n_ranks);
    times->extra = g_new0(SimExtra, n_ranks);
    times->n_ranks = (int32_t)n_ranks;
    times->pieces = g_array_new(FALSE, FALSE, sizeof(SimPiece));
    times->longer = g_array_new(FALSE, FALSE, sizeof(SimLonger));
    if (program->n_pairs > 0) {
        times->free_of_step_ns = pages_try_malloc((size_t)program->n_ops, sizeof(int64_t));
        times->saved_ns = pages_try_malloc((size_t)program->n_ops, sizeof(int64_t));
    }
    if (times->ready_ns != NULL &&
        (program->n_pairs == 0 || (times->free_of_step_ns != NULL && times->saved_ns != NULL)))
        return true;
    return sim_fail_memory(error, program->n_ops, "times");
}

void
sim_times_clear(SimTimes *times)
{
    g_clear_pointer(&times->ready_ns, g_free);
    g_clear_pointer(&times->free_ns, g_free);
    g_clear_pointer(&times->finish, g_free);
    g_clear_pointer(&times->extra, g_free);
    g_clear_pointer(&times->followed, g_free);
    g_clear_pointer(&times->free_of_step_ns, g_free);
    g_clear_pointer(&times->saved_ns, g_free);
    g_clear_pointer(&times->pieces, g_array_unref);
    g_clear_pointer(&times->longer, g_array_unref);
}

void
sim_times_reset(SimTimes *times)
{
    memset(times->free_ns, 0, sizeof *times->free_ns * (size_t)times->n_ranks);
    memset(times->extra, 0, sizeof *times->extra * (size_t)times->n_ranks);
    g_array_set_size(times->pieces, 0);
    g_array_set_size(times->longer, 0);
    g_clear_pointer(&times->followed, g_free);
    times->meets = false;
    times->ready_ns[0] = 0; /* no message: ready before the rank can be */
}

static gint
compare_pieces(gconstpointer left, gconstpointer right)
{
    const SimPiece *a = left, *b = right;

    ORDER_BY(a->rank, b->rank);
    return ORDER(a->number, b->number);
}

void
sim_times_sort_pieces(SimTimes *times)
{
    if (times->pieces->len > 1)
        g_array_sort(times->pieces, compare_pieces);
}

static gint
compare_longer(gconstpointer left, gconstpointer right)
{
    return ORDER(((const SimLonger *)left)->step, ((const SimLonger *)right)->step);
}

int64_t
sim_times_extra(const SimTimes *times, uint32_t step)
{
    const SimLonger wanted = {.step = step};
    guint at;

    return g_array_binary_search(times->longer, &wanted, compare_longer, &at)
               ? g_array_index(times->longer, SimLonger, at).extra_ns
               : 0;
}

/* --- the dp stream of a rank --- */

typedef struct {
    int64_t until_ns;             /* works until then */
    int64_t special;              /* index into the rank's specials: the next one */
    int32_t n_gathers, n_reduces; /* chunks that do */
    int32_t n_pieces;
} Beside;

/* Puts a collective that could begin at @ready_ns on the stream; returns its end. */
static int64_t
put_piece(SimTimes *times, Beside *beside, int32_t rank, int64_t ready_ns, int64_t ns,
          int64_t bytes, TraceEventKind kind)
{
    const int64_t start_ns = MAX(beside->until_ns, ready_ns);
    const SimPiece piece = {.start_ns = start_ns,
                            .end_ns = start_ns + ns,
                            .bytes = bytes,
                            .rank = rank,
                            .number = beside->n_pieces++,
                            .kind = (uint8_t)kind};

    g_array_append_val(times->pieces, piece);
    beside->until_ns = piece.end_ns;
    return piece.end_ns;
}

/* All that a rank gathers ahead of its ops. */
static void
gather_ahead(const SimProgram *program, SimTimes *times, Beside *beside, int32_t rank)
{
    const WorkloadRank *work = &program->workload->ranks[rank];
    const int64_t n = sim_n_buckets(work), n_chunks = beside->n_gathers;

    for (int64_t i = 0; i < n_chunks; i++)
        for (int64_t k = 0; k < n; k++)
            put_piece(times, beside, rank, 0,
                      sim_share(sim_share(work->dp_gather_ns, n_chunks, i), n, k),
                      sim_share(sim_share(work->dp_gather_bytes, n_chunks, i), n, k),
                      TRACE_EVENT_DP_GATHER);
}

/* The end of a special op of @op_ns that starts at @t_ns; adds what it waits for parameters. */
static int64_t
run_special(const SimProgram *program, SimTimes *times, Beside *beside, int32_t rank,
            const SimSpecial *special, int64_t t_ns, int64_t op_ns)
{
    const WorkloadRank *work = &program->workload->ranks[rank];
    const double speed = sim_speed_beside_dp(program->workload);
    const int64_t n = sim_n_buckets(work);
    const int64_t n_chunks = special->gathers ? beside->n_gathers : beside->n_reduces;
    const int64_t ns = sim_share(special->gathers ? work->dp_gather_ns : work->dp_reduce_ns,
                                 n_chunks, special->chunk);
    const int64_t bytes = sim_share(work->dp_reduce_bytes, n_chunks, special->chunk);
    const int64_t before_ns = sim_shares_before(work->dp_gather_ns, n_chunks, special->chunk);

    for (int64_t k = 0; k < n; k++) {
        const int64_t there_ns = special->gathers ? before_ns + sim_shares_before(ns, n, k + 1) : 0;
        if (there_ns > t_ns) {
            times->extra[rank].wait_ns += there_ns - t_ns;
            t_ns = there_ns;
        }
        t_ns = sim_slowed_end(t_ns, sim_share(op_ns, n, k), beside->until_ns, speed);
        if (!special->gathers)
            put_piece(times, beside, rank, t_ns, sim_share(ns, n, k), sim_share(bytes, n, k),
                      TRACE_EVENT_DP_REDUCE);
    }
    return t_ns;
}

/* --- sweeps --- */

/* Steps @from to @to - 1, none of which has anything beside it.  Invariant: ready_ns[1 .. i] and
 * free_ns hold the times of the first i steps.  Returns whether two messages were on one stream at
 * once. */
static inline __attribute__((always_inline)) bool
sweep_plain(const SimProgram *program, SimClock clock, int64_t *free_of_step_ns, int64_t from,
            int64_t to)
{
    const SimStep *const steps = program->steps;
    const SimCost *const costs = program->costs;
    bool meets = false;

    for (int64_t i = from; i < to; i++) {
        const SimStep step = steps[i];
        const SimCost cost = costs[step.cost];
        const int64_t free_ns = sim_clock_begin(clock, step.producer, cost.rank) + cost.busy_ns;
        meets = sim_clock_end(clock, i, cost.rank, cost.stream, free_ns, cost.lag_ns) | meets;
        if (free_of_step_ns != NULL)
            free_of_step_ns[i] = free_ns;
    }
    return meets;
}

/* Likewise, with what runs beside ops. */
static bool
sweep_beside(const SimProgram *program, SimTimes *times, SimClock clock, Beside *besides,
             int64_t from, int64_t to)
{
    const SimBeside *all = &program->beside;
    const double speed = sim_speed_beside_dp(program->workload);
    bool meets = false;

    for (int64_t i = from; i < to; i++) {
        const SimStep step = program->steps[i];
        const SimCost *cost = &program->costs[step.cost];
        const SimCostDetail *detail = &program->details[step.cost];
        Beside *beside = &besides[cost->rank];
        const int64_t start_ns =
            sim_clock_begin(clock, step.producer, cost->rank) + detail->in.compute_ns;
        const bool is_special = beside->special < all->begin[cost->rank + 1] &&
                                all->specials[beside->special].step == i;
        const int64_t end_ns =
            is_special ? run_special(program, times, beside, cost->rank,
                                     &all->specials[beside->special], start_ns, detail->op_ns)
                       : sim_slowed_end(start_ns, detail->op_ns, beside->until_ns, speed);
        const SimLonger longer = {(uint32_t)i, end_ns - start_ns - detail->op_ns};
        beside->special += is_special;
        if (longer.extra_ns != 0) {
            g_array_append_val(times->longer, longer);
            times->extra[cost->rank].extra_ns += longer.extra_ns;
        }
        meets = sim_clock_end(clock, i, cost->rank, cost->stream, end_ns + detail->out.compute_ns,
                              cost->lag_ns) ||
                meets;
    }
    return meets;
}

/* Likewise, with overlapped pairs, whose two steps are neighbours; fills free_of_step_ns too. */
static bool
sweep_pairs(const SimProgram *program, SimTimes *times, SimClock clock)
{
    int64_t *const free_of_step_ns = times->free_of_step_ns;
    int64_t from = 0;
    bool meets = false;

    sim_pairs_note_saved(program, times);
    for (int64_t k = 0; k < program->n_pairs; k++) {
        const int64_t i = program->pairs[k];
        meets = sweep_plain(program, clock, free_of_step_ns, from, i) || meets;
        const SimPairKind *kind = &program->pair_kinds[program->kind_of_pair[k]];
        const SimCost *first = &program->costs[kind->first];
        const SimCost *second = &program->costs[kind->second];
        const int64_t begin_ns =
            MAX(sim_clock_begin(clock, program->steps[i].producer, first->rank),
                clock.ready_ns[program->steps[i + 1].producer]);
        const int64_t free_ns = begin_ns + kind->ns;
        free_of_step_ns[i] = begin_ns + first->busy_ns - kind->first_saved_ns;
        free_of_step_ns[i + 1] = free_ns;
        meets =
            sim_clock_end(clock, i, first->rank, first->stream, free_ns, first->lag_ns) || meets;
        meets =
            sim_clock_end(clock, i + 1, second->rank, second->stream, free_ns, second->lag_ns) ||
            meets;
        from = i + 2;
    }
    return sweep_plain(program, clock, free_of_step_ns, from, program->n_ops) || meets;
}

/* What follows the last op of @rank. */
static void
finish_rank(const SimProgram *program, SimTimes *times, Beside *beside, int32_t rank)
{
    const Workload *workload = program->workload;
    const WorkloadRank *work = &workload->ranks[rank];
    const int64_t free_ns = times->free_ns[rank];
    SimFinish *finish = &times->finish[rank];
    int64_t reduced_ns = beside->until_ns;

    if (sim_reduces(work) && beside->n_reduces == 0)
        reduced_ns = put_piece(times, beside, rank, free_ns, work->dp_reduce_ns,
                               work->dp_reduce_bytes, TRACE_EVENT_DP_REDUCE);
    finish->free_ns = free_ns;
    finish->optimizer_start_ns = MAX(free_ns, reduced_ns);
    finish->optimizer_end_ns = finish->optimizer_start_ns + work->optimizer_ns;
    finish->end_ns = finish->optimizer_end_ns;
    if (sim_gathers(work) && beside->n_gathers == 0)
        finish->end_ns =
            put_piece(times, beside, rank, finish->optimizer_end_ns, work->dp_gather_ns,
                      work->dp_gather_bytes, TRACE_EVENT_DP_GATHER);
}

/* Reductions behind ops whose times are known: neither they nor gatherings change these. */
static void
reduce_behind(const SimProgram *program, SimTimes *times, Beside *beside, int32_t rank)
{
    const SimBeside *all = &program->beside;
    const WorkloadRank *work = &program->workload->ranks[rank];
    const int64_t n = sim_n_buckets(work), n_chunks = beside->n_reduces;

    for (int64_t i = all->begin[rank]; i < all->begin[rank + 1]; i++) {
        const SimSpecial *special = &all->specials[i];
        if (special->gathers)
            continue;
        const SimOpTimes op = sim_times_step(times, program, special->step);
        const int64_t ns = sim_share(work->dp_reduce_ns, n_chunks, special->chunk);
        const int64_t bytes = sim_share(work->dp_reduce_bytes, n_chunks, special->chunk);
        for (int64_t k = 0; k < n; k++)
            put_piece(times, beside, rank,
                      op.start_ns + sim_shares_before(op.end_ns - op.start_ns, n, k + 1),
                      sim_share(ns, n, k), sim_share(bytes, n, k), TRACE_EVENT_DP_REDUCE);
    }
}

/* Whether nothing runs beside the ops that are still to come, nor slows them. */
static bool
all_idle(const SimProgram *program, const SimTimes *times, const Beside *besides)
{
    if (program->workload->interference_fraction == 0)
        return true;
    for (int32_t rank = 0; rank < program->schedule->n_ranks; rank++)
        if (besides[rank].until_ns > times->free_ns[rank])
            return false;
    return true;
}

void
sim_program_sweep(const SimProgram *program, SimTimes *times)
{
    const int32_t n_ranks = program->schedule->n_ranks;
    const SimBeside *all = &program->beside;
    g_autofree Beside *besides = g_new0(Beside, (size_t)n_ranks);
    g_autofree int64_t *sent_ns =
        program->workload->links != NULL ? g_new0(int64_t, 1 + 2 * (size_t)n_ranks) : NULL;

    sim_times_reset(times);
    const SimClock clock = {times->ready_ns, times->free_ns, sent_ns};
    const SimClock without_streams = {times->ready_ns, times->free_ns, NULL};
    if (program->n_pairs > 0) {
        times->meets = sweep_pairs(program, times, clock);
        for (int32_t rank = 0; all->begin != NULL && rank < n_ranks; rank++) {
            besides[rank].n_reduces = sim_beside_n_chunks(all, rank, false);
            reduce_behind(program, times, &besides[rank], rank);
        }
    } else if (all->begin == NULL) {
        /* Twice, so that the compiler makes a loop without streams. */
        times->meets = sent_ns == NULL
                           ? sweep_plain(program, without_streams, NULL, 0, program->n_ops)
                           : sweep_plain(program, clock, NULL, 0, program->n_ops);
    } else {
        for (int32_t rank = 0; rank < n_ranks; rank++) {
            besides[rank].special = all->begin[rank];
            besides[rank].n_gathers = sim_beside_n_chunks(all, rank, true);
            besides[rank].n_reduces = sim_beside_n_chunks(all, rank, false);
            gather_ahead(program, times, &besides[rank], rank);
        }
        const bool head = sweep_beside(program, times, clock, besides, 0, all->head_end);
        const int64_t plain_end =
            all_idle(program, times, besides) ? all->tail_begin : all->head_end;
        const bool middle = sweep_plain(program, clock, NULL, all->head_end, plain_end);
        const bool tail = sweep_beside(program, times, clock, besides, plain_end, program->n_ops);
        times->meets = head || middle || tail;
    }
    for (int32_t rank = 0; rank < n_ranks; rank++)
        finish_rank(program, times, &besides[rank], rank);
    sim_times_sort_pieces(times);
}
