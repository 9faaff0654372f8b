#include "simulator/pairs.h"

#include <string.h>

/* How long a pair of ops of these costs takes; at most what they take one after the other. */
static int64_t
pair_ns(const SimProgram *program, uint32_t first, uint32_t second)
{
    const int64_t busy[2] = {program->costs[first].busy_ns, program->costs[second].busy_ns};

    if (program->workload->pair_ns > 0)
        return MIN(program->workload->pair_ns, busy[0] + busy[1]);
    if (program->workload->blocking_messages)
        return busy[0] + busy[1];
    const int64_t collectives[2] = {sim_hidden_ns(program, first), sim_hidden_ns(program, second)};
    const int64_t computing = busy[0] + busy[1] - collectives[0] - collectives[1];

    return MAX(MAX(computing, collectives[0] + collectives[1]), MAX(busy[0], busy[1]));
}

/* a * b / c for 0 <= a <= c, all below 2^62. */
static int64_t
scaled(int64_t a, int64_t b, int64_t c)
{
    __extension__ typedef unsigned __int128 Wide;

    return c == 0 ? 0 : (int64_t)((Wide)(uint64_t)a * (uint64_t)b / (uint64_t)c);
}

/* The pair's time is shared in proportion to what each takes alone. */
static SimPairKind
pair_kind(const SimProgram *program, uint32_t first, uint32_t second)
{
    const int64_t a = program->costs[first].busy_ns, b = program->costs[second].busy_ns;
    const int64_t ns = pair_ns(program, first, second), share = scaled(a, ns, a + b);

    return (SimPairKind){first, second, ns, a - share, b - (ns - share)};
}

void
sim_pairs_init(SimProgram *program)
{
    g_autoptr(GHashTable) known = NULL; /* from both costs to 1 + the kind */

    if (program->n_pairs == 0)
        return;
    known = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL);
    GArray *kinds = g_array_new(FALSE, FALSE, sizeof(SimPairKind));
    program->kind_of_pair = g_new(int32_t, (size_t)program->n_pairs);
    for (int64_t k = 0; k < program->n_pairs; k++) {
        const SimStep *step = &program->steps[program->pairs[k]];
        const gint64 costs = (gint64)((uint64_t)step[0].cost << 32 | step[1].cost);
        gint at = GPOINTER_TO_INT(g_hash_table_lookup(known, &costs));
        if (at == 0) {
            const SimPairKind kind = pair_kind(program, step[0].cost, step[1].cost);
            g_array_append_val(kinds, kind);
            at = (gint)kinds->len;
            g_hash_table_insert(known, g_memdup2(&costs, sizeof costs), GINT_TO_POINTER(at));
        }
        program->kind_of_pair[k] = at - 1;
    }
    program->n_pair_kinds = (int32_t)kinds->len;
    program->pair_kinds = (SimPairKind *)(void *)g_array_free(kinds, FALSE);
}

/* Returns: the pair that @step is the first or second op of; -1: none. */
static int64_t
pair_of(const SimProgram *program, uint32_t step)
{
    int64_t begin = 0, end = program->n_pairs;

    /* Pairs before begin are before step, those from end on after it. */
    while (begin < end) {
        const int64_t middle = begin + (end - begin) / 2;
        if (program->pairs[middle] + 1 < step)
            begin = middle + 1;
        else if (program->pairs[middle] > step)
            end = middle;
        else
            return middle;
    }
    return -1;
}

const SimPairKind *
sim_pair_at(const SimProgram *program, uint32_t step)
{
    const int64_t k = pair_of(program, step);

    return k < 0 ? NULL : &program->pair_kinds[program->kind_of_pair[k]];
}

bool
sim_pair_is_first(const SimProgram *program, uint32_t step)
{
    const int64_t k = pair_of(program, step);

    return k >= 0 && program->pairs[k] == step;
}

void
sim_pair_exchanges(const SimProgram *program, const SimPairKind *kind, int64_t begin_ns,
                   int64_t end_ns, int64_t at[2][2])
{
    const int64_t first_ns =
        scaled(MIN(sim_hidden_ns(program, kind->first), kind->ns), end_ns - begin_ns, kind->ns);
    const int64_t second_ns =
        scaled(MIN(sim_hidden_ns(program, kind->second), kind->ns), end_ns - begin_ns, kind->ns);

    at[0][0] = MAX(end_ns - first_ns, begin_ns + second_ns);
    at[0][1] = end_ns;
    at[1][0] = begin_ns;
    at[1][1] = begin_ns + second_ns;
}

void
sim_pairs_note_saved(const SimProgram *program, SimTimes *times)
{
    if (times->saved_ns == NULL)
        return;
    memset(times->saved_ns, 0, sizeof *times->saved_ns * (size_t)program->n_ops);
    for (int64_t k = 0; k < program->n_pairs; k++) {
        const SimPairKind *kind = &program->pair_kinds[program->kind_of_pair[k]];
        times->saved_ns[program->pairs[k]] = kind->first_saved_ns;
        times->saved_ns[program->pairs[k] + 1] = kind->second_saved_ns;
    }
}
