#include "simulator/finish.h"

#include "base/order.h"
#include "simulator/program.h"

/* Whether the rank's gathering runs ahead of its ops, or its reduction behind them. */
static bool
runs_beside(const Workload *workload, int32_t rank, bool gathers)
{
    const WorkloadRank *work = &workload->ranks[rank];

    return gathers ? workload->overlap_gather && sim_gathers(work)
                   : workload->overlap_dp && sim_reduces(work);
}

static gint
compare_steps(gconstpointer left, gconstpointer right)
{
    return ORDER(((const SimSpecial *)left)->step, ((const SimSpecial *)right)->step);
}

static void
append_rank(const SimProgram *program, int32_t rank, GArray *all, SimBeside *beside)
{
    const int64_t n_chunks = program->schedule->n_chunks;
    g_autoptr(GArray) specials = g_array_new(FALSE, FALSE, sizeof(SimSpecial));
    int32_t n[2] = {0, 0};

    for (int gathers = 0; gathers < 2; gathers++)
        for (int64_t at = rank * n_chunks; at < (rank + 1) * n_chunks; at++) {
            /* Every chunk has both. */
            const int64_t step = (gathers ? program->first_forward : program->last_backward)[at];
            const SimSpecial special = {.step = (uint32_t)step, .gathers = gathers};
            if (runs_beside(program->workload, rank, gathers))
                g_array_append_val(specials, special);
        }
    g_array_sort(specials, compare_steps);
    for (guint i = 0; i < specials->len; i++) {
        SimSpecial *special = &g_array_index(specials, SimSpecial, i);
        special->chunk = n[special->gathers]++;
        if (special->gathers)
            beside->head_end = MAX(beside->head_end, (int64_t)special->step + 1);
        else
            beside->tail_begin = MIN(beside->tail_begin, (int64_t)special->step);
    }
    g_array_append_vals(all, specials->data, specials->len);
}

void
sim_beside_init(SimBeside *beside, const SimProgram *program)
{
    const int32_t n_ranks = program->schedule->n_ranks;
    bool any = false;

    *beside = (SimBeside){.tail_begin = program->n_ops};
    for (int32_t rank = 0; rank < n_ranks; rank++)
        any = any || runs_beside(program->workload, rank, true) ||
              runs_beside(program->workload, rank, false);
    if (!any)
        return;
    GArray *all = g_array_new(FALSE, FALSE, sizeof(SimSpecial));
    beside->begin = g_new(int64_t, (size_t)n_ranks + 1);
    for (int32_t rank = 0; rank < n_ranks; rank++) {
        beside->begin[rank] = all->len;
        append_rank(program, rank, all, beside);
    }
    beside->begin[n_ranks] = all->len;
    beside->specials = (SimSpecial *)(void *)g_array_free(all, FALSE);
    beside->tail_begin = MAX(beside->tail_begin, beside->head_end);
}

void
sim_beside_clear(SimBeside *beside)
{
    g_clear_pointer(&beside->specials, g_free);
    g_clear_pointer(&beside->begin, g_free);
}

int32_t
sim_beside_n_chunks(const SimBeside *beside, int32_t rank, bool gathers)
{
    int32_t n = 0;

    for (int64_t i = beside->begin[rank]; i < beside->begin[rank + 1]; i++)
        n += beside->specials[i].gathers == gathers;
    return n;
}
