#include "simulator/finish.h"

#include "simulator/program.h"

/* Appends the steps of @steps (one per chunk of a rank, -1: none), in order, as specials. */
static void
append_sorted(GArray *specials, const int64_t *steps, int32_t n_chunks, bool gathers)
{
    const guint first = specials->len;

    for (int32_t chunk = 0; chunk < n_chunks; chunk++) {
        const SimSpecial special = {.step = (uint32_t)steps[chunk], .gathers = gathers};
        guint at = specials->len;

        if (steps[chunk] < 0)
            continue;
        /* specials[first ..] ascend. */
        while (at > first && g_array_index(specials, SimSpecial, at - 1).step > special.step)
            at--;
        g_array_insert_val(specials, at, special);
    }
    for (guint i = first; i < specials->len; i++)
        g_array_index(specials, SimSpecial, i).chunk = (int32_t)(i - first);
}

static gint
compare_steps(gconstpointer left, gconstpointer right)
{
    const SimSpecial *a = left, *b = right;

    return (a->step > b->step) - (a->step < b->step);
}

static void
append_rank(const SimProgram *program, int32_t rank, GArray *all, SimBeside *beside)
{
    const int32_t n_chunks = program->schedule->n_chunks;
    const int64_t at = (int64_t)rank * n_chunks;
    g_autoptr(GArray) specials = g_array_new(FALSE, FALSE, sizeof(SimSpecial));

    if (sim_gathers_ahead(program->workload, rank))
        append_sorted(specials, &program->first_forward[at], n_chunks, true);
    if (sim_reduces_behind(program->workload, rank))
        append_sorted(specials, &program->last_backward[at], n_chunks, false);
    g_array_sort(specials, compare_steps);
    for (guint i = 0; i < specials->len; i++) {
        const SimSpecial *special = &g_array_index(specials, SimSpecial, i);
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
        any = any || sim_gathers_ahead(program->workload, rank) ||
              sim_reduces_behind(program->workload, rank);
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
