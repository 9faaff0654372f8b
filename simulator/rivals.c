#include "simulator/rivals.h"

/* Of min_ns: 1 and 2 as way_of() has them. */
enum {
    ANY_WAY,
    N_WAYS = 3
};

/* Which way an op of @cost of @rank sends: 0 not at all, 1 to the next rank, 2 to the one before. */
static inline uint8_t
way_of(const SimCost *cost)
{
    return cost->stream == 0 ? 0 : (uint8_t)(cost->stream - 2 * cost->rank);
}

/* Fills sends and min_ns. */
static void
list_sends(SimRivals *rivals)
{
    const SimProgram *program = rivals->program;
    const Schedule *schedule = program->schedule;
    g_autofree int64_t *next =
        g_memdup2(schedule->rank_begin, sizeof *next * (size_t)schedule->n_ranks);

    for (int32_t i = 0; i < N_WAYS * schedule->n_ranks; i++)
        rivals->min_ns[i] = SIM_MAX_NS;
    for (int64_t i = 0; i < program->n_costs; i++) {
        const SimCost *cost = &program->costs[i];
        int64_t *min_ns = &rivals->min_ns[N_WAYS * cost->rank];
        if (program->counts[i] == 0)
            continue;
        min_ns[ANY_WAY] = MIN(min_ns[ANY_WAY], cost->busy_ns);
        if (cost->stream != 0)
            min_ns[way_of(cost)] = MIN(min_ns[way_of(cost)], cost->busy_ns);
    }
    /* Steps of one rank are in its order; this reads them all in theirs. */
    for (int64_t step = 0; step < program->n_ops; step++) {
        const SimCost *cost = &program->costs[program->steps[step].cost];
        rivals->sends[next[cost->rank]++] = way_of(cost);
    }
}

/* The number here of the stream that @suspect names: a message's, or of what a rank does beside its
 * ops behind those; 0: a compute stream. */
static int32_t
number_of(const SimRivals *rivals, const SimSuspect *suspect)
{
    return MAX(suspect->stream - rivals->program->schedule->n_ranks + 1, 0);
}

/* Adds @number to the list of one stream, once. */
static void
add_rival(GArray *list, int32_t number)
{
    for (guint i = 0; i < list->len; i++)
        if (g_array_index(list, int32_t, i) == number)
            return;
    g_array_append_val(list, number);
}

/* Whether streams of messages on the link of @suspects can be known to be silent. */
static bool
can_be_bounded(const SimRivals *rivals, const SimSuspect *suspects, guint n)
{
    for (guint i = 0; i < n; i++) {
        const int32_t number = number_of(rivals, &suspects[i]);
        if (number == 0 || (number > rivals->n_streams && rivals->program->beside.begin != NULL))
            return false;
    }
    return n <= SIM_MAX_RIVALS + 1;
}

/* Fills begin and rivals. */
static void
list_rivals(SimRivals *rivals, const SimNetwork *network)
{
    const SimSuspect *all = (const SimSuspect *)(const void *)network->suspects->data;
    const int32_t n_streams = rivals->n_streams;
    g_autofree GArray **lists = g_new0(GArray *, (size_t)n_streams + 1);
    g_autofree bool *is_unbounded = g_new0(bool, (size_t)n_streams + 1);

    /* all[begin .. end) are the streams of one link. */
    for (guint begin = 0, end = 0; begin < network->suspects->len; begin = end) {
        for (end = begin + 1; end < network->suspects->len && all[end].link == all[begin].link;)
            end++;
        const bool is_bounded = can_be_bounded(rivals, &all[begin], end - begin);
        for (guint i = begin; i < end; i++) {
            const int32_t s = number_of(rivals, &all[i]);
            if (s == 0 || s > n_streams)
                continue;
            is_unbounded[s] |= !is_bounded;
            if (lists[s] == NULL)
                lists[s] = g_array_new(FALSE, FALSE, sizeof(int32_t));
            for (guint k = begin; k < end && is_bounded; k++)
                if (k != i)
                    add_rival(lists[s], number_of(rivals, &all[k]));
        }
    }
    for (int32_t s = 0; s <= n_streams; s++) {
        rivals->begin[s] = (int32_t)rivals->rivals->len;
        if (lists[s] == NULL)
            continue;
        if (!is_unbounded[s]) {
            g_array_append_val(rivals->rivals, s);
            g_array_append_vals(rivals->rivals, lists[s]->data, lists[s]->len);
        }
        g_array_unref(lists[s]);
    }
    rivals->begin[n_streams + 1] = (int32_t)rivals->rivals->len;
}

void
sim_rivals_init(SimRivals *rivals, const SimProgram *program, const SimNetwork *network)
{
    const Schedule *schedule = program->schedule;
    const int32_t n_ranks = schedule->n_ranks;

    *rivals = (SimRivals){.program = program, .n_streams = 2 * n_ranks};
    rivals->rivals = g_array_new(FALSE, FALSE, sizeof(int32_t));
    rivals->begin = g_new0(int32_t, 2 * (size_t)n_ranks + 2);
    list_rivals(rivals, network);
    if (rivals->rivals->len == 0)
        return;
    rivals->sends = g_new(uint8_t, (size_t)MAX(program->n_ops, 1));
    rivals->min_ns = g_new(int64_t, N_WAYS * (size_t)n_ranks);
    rivals->at = g_new0(int64_t, 2 * (size_t)n_ranks + 1);
    rivals->silent_ns = g_new0(int64_t, 3 * (size_t)n_ranks + 1);
    list_sends(rivals);
}

void
sim_rivals_clear(SimRivals *rivals)
{
    g_clear_pointer(&rivals->rivals, g_array_unref);
    g_clear_pointer(&rivals->begin, g_free);
    g_clear_pointer(&rivals->sends, g_free);
    g_clear_pointer(&rivals->at, g_free);
    g_clear_pointer(&rivals->min_ns, g_free);
    g_clear_pointer(&rivals->silent_ns, g_free);
}

int64_t
sim_rivals_silent_until(SimRivals *rivals, int32_t number, int64_t next, int64_t from_ns)
{
    const int32_t n_streams = rivals->n_streams;
    const int32_t rank = sim_rival_rank(rivals, number);
    const int64_t end = rivals->program->schedule->rank_begin[rank + 1];
    const int64_t *min_ns = &rivals->min_ns[N_WAYS * rank];
    int64_t ns;

    if (number > n_streams)
        return from_ns + (end - next) * min_ns[ANY_WAY];
    const uint8_t way = (uint8_t)(number - 2 * rank);
    int64_t at = MAX(rivals->at[number], next);
    while (at < end && rivals->sends[at] != way)
        at++;
    rivals->at[number] = at;
    ns = at == end ? SIM_MAX_NS : from_ns + (at - next) * min_ns[ANY_WAY] + min_ns[way];
    rivals->silent_ns[number] = ns;
    return ns;
}
