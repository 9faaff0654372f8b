#include "simulator/pairs.h"

#include <string.h>

int64_t
sim_pair_ns(const SimProgram *program, uint32_t first, uint32_t second)
{
    const int64_t busy[2] = {program->costs[first].busy_ns, program->costs[second].busy_ns};

    if (program->workload->pair_ns > 0)
        return MIN(program->workload->pair_ns, busy[0] + busy[1]);
    if (program->workload->blocking_messages)
        return busy[0] + busy[1];
    const int64_t collectives[2] = {sim_collectives_ns(program, first),
                                    sim_collectives_ns(program, second)};
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

SimPairSaved
sim_pair_saved(const SimProgram *program, uint32_t first, uint32_t second, int64_t pair_ns)
{
    const int64_t a = program->costs[first].busy_ns, b = program->costs[second].busy_ns;
    const int64_t share = scaled(a, pair_ns, a + b);

    return (SimPairSaved){a - share, b - (pair_ns - share)};
}

/* A kind and what it is known by. */
typedef struct {
    int64_t costs; /* of the first and the second op, in one number: a key of the table */
    int32_t kind;
} KnownKind;

void
sim_pairs_init(SimProgram *program)
{
    g_autoptr(GHashTable) known = NULL;
    g_autoptr(GArray) kinds = NULL;

    if (program->n_pairs == 0)
        return;
    known = g_hash_table_new_full(g_int64_hash, g_int64_equal, NULL, g_free);
    kinds = g_array_new(FALSE, FALSE, sizeof(SimPairKind));
    program->kind_of_pair = g_new(int32_t, (size_t)program->n_pairs);
    for (int64_t k = 0; k < program->n_pairs; k++) {
        const SimStep *step = &program->steps[program->pairs[k]];
        const uint32_t first = step[0].cost, second = step[1].cost;
        const int64_t costs = (int64_t)((uint64_t)first << 32 | second);
        const KnownKind *at = g_hash_table_lookup(known, &costs);
        if (at != NULL) {
            program->kind_of_pair[k] = at->kind;
            continue;
        }
        const int64_t ns = sim_pair_ns(program, first, second);
        const SimPairSaved saved = sim_pair_saved(program, first, second, ns);
        const SimPairKind kind = {first, second, ns, saved.first_ns, saved.second_ns};
        g_array_append_val(kinds, kind);
        program->kind_of_pair[k] = (int32_t)kinds->len - 1;
        KnownKind *new = g_new(KnownKind, 1);
        *new = (KnownKind){costs, program->kind_of_pair[k]};
        g_hash_table_insert(known, &new->costs, new);
    }
    program->n_pair_kinds = (int32_t)kinds->len;
    program->pair_kinds = (SimPairKind *)(void *)g_array_free(g_steal_pointer(&kinds), FALSE);
}

const SimPairKind *
sim_pair_at(const SimProgram *program, uint32_t step)
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
            return &program->pair_kinds[program->kind_of_pair[middle]];
    }
    return NULL;
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
