#include "schedule/placement.h"

#include <stdbool.h>

const char *const schedule_placement_names[SCHEDULE_PLACEMENT_N + 1] = {"loop", "v", "bidir", NULL};

/* One row for each placement. */
static const struct {
    int32_t n_chains;
    bool turns; /* odd chunks run through the ranks from the last to the first */
} placements[SCHEDULE_PLACEMENT_N] = {
    [SCHEDULE_PLACEMENT_LOOP] = {1, false},
    [SCHEDULE_PLACEMENT_V] = {1, true},
    [SCHEDULE_PLACEMENT_BIDIR] = {2, true},
};

int32_t
schedule_placement_n_chains(SchedulePlacement placement)
{
    return placements[placement].n_chains;
}

int64_t
schedule_placement_n_stages(SchedulePlacement placement, int64_t n_ranks, int64_t n_chunks)
{
    return placements[placement].n_chains == 1 ? n_ranks * n_chunks : n_ranks;
}

int32_t
schedule_placement_stage(SchedulePlacement placement, int32_t n_ranks, int32_t rank, int32_t chunk)
{
    const int32_t offset =
        placements[placement].turns && chunk % 2 == 1 ? n_ranks - 1 - rank : rank;

    return placements[placement].n_chains == 1 ? chunk * n_ranks + offset : offset;
}

int32_t
schedule_placement_chain(SchedulePlacement placement, int32_t chunk)
{
    return placements[placement].n_chains == 1 ? 0 : chunk;
}

int32_t
schedule_placement_rank(SchedulePlacement placement, int32_t n_ranks, int32_t stage, int32_t chain)
{
    const int32_t chunk = schedule_placement_chunk(placement, n_ranks, stage, chain);
    const int32_t offset = stage % n_ranks;

    return placements[placement].turns && chunk % 2 == 1 ? n_ranks - 1 - offset : offset;
}

int32_t
schedule_placement_chunk(SchedulePlacement placement, int32_t n_ranks, int32_t stage, int32_t chain)
{
    return placements[placement].n_chains == 1 ? stage / n_ranks : chain;
}
