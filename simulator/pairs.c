#include "simulator/pairs.h"

#include <string.h>

/* Collectives inside an op. */
static int64_t
collectives_ns(const SimProgram *program, uint32_t cost)
{
    static const ProfilePart parts[] = {PROFILE_PART_TP, PROFILE_PART_CP, PROFILE_PART_EP,
                                        PROFILE_PART_DP};
    const int kind = (int)(cost % SIM_KIND_N);
    const int64_t *part_ns =
        sim_program_workload_op(program, cost)
            ->part_ns[kind == SIM_KIND_LONE_INPUT ? SCHEDULE_OP_BACKWARD_INPUT : kind];
    int64_t sum = 0;

    for (size_t i = 0; i < G_N_ELEMENTS(parts); i++)
        sum += part_ns[parts[i]];
    return sum;
}

int64_t
sim_pair_ns(const SimProgram *program, uint32_t first, uint32_t second)
{
    const int64_t busy[2] = {program->costs[first].busy_ns, program->costs[second].busy_ns};

    if (program->workload->pair_ns > 0)
        return MIN(program->workload->pair_ns, busy[0] + busy[1]);
    if (program->workload->blocking_messages)
        return busy[0] + busy[1];
    const int64_t collectives[2] = {collectives_ns(program, first),
                                    collectives_ns(program, second)};
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

void
sim_pairs_sweep(const SimProgram *program, SimTimes *times)
{
    int64_t *const ready = times->ready_ns, *const free_ns = times->free_ns;
    int64_t next_pair = 0;

    memset(free_ns, 0, sizeof *free_ns * (size_t)program->schedule->n_ranks);
    ready[0] = 0;
    /* As in sim_program_sweep(); the two steps of a pair are neighbours. */
    for (int64_t i = 0; i < program->n_ops; i++) {
        const SimStep step = program->steps[i];
        const SimCost cost = program->costs[step.cost];
        int64_t *free = &free_ns[cost.rank];
        int64_t begin = MAX(ready[step.producer], *free);

        if (next_pair == program->n_pairs || program->pairs[next_pair] != i) {
            *free = begin + cost.busy_ns;
            times->free_of_step_ns[i] = *free;
            times->saved_ns[i] = 0;
            ready[i + 1] = *free + cost.lag_ns;
            continue;
        }
        next_pair++;
        const SimStep other = program->steps[i + 1];
        const int64_t pair_ns = sim_pair_ns(program, step.cost, other.cost);
        const SimPairSaved saved = sim_pair_saved(program, step.cost, other.cost, pair_ns);
        begin = MAX(begin, ready[other.producer]);
        *free = begin + pair_ns;
        times->saved_ns[i] = saved.first_ns;
        times->saved_ns[i + 1] = saved.second_ns;
        times->free_of_step_ns[i] = begin + cost.busy_ns - saved.first_ns;
        times->free_of_step_ns[i + 1] = *free;
        ready[i + 1] = *free + cost.lag_ns;
        ready[i + 2] = *free + program->costs[other.cost].lag_ns;
        i++;
    }
}
