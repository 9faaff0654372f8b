/*
 * schedule/placement.h - where the chunks of ranks lie in the chain of stages.
 *
 * A placement says at which stage of its chain each chunk of each pipeline rank is.  Everything
 * that depends on the placement asks these functions; adding one means adding a row to placement.c.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

/* With p ranks, chunk c of rank r is stage: */
typedef enum {
    SCHEDULE_PLACEMENT_LOOP,  /* c*p + r */
    SCHEDULE_PLACEMENT_V,     /* c*p + r for even c, c*p + p-1-r for odd c */
    SCHEDULE_PLACEMENT_BIDIR, /* r of chain 0 for c = 0, p-1-r of chain 1 for c = 1: two chains of p
                                 stages in opposite directions, each with half of the micro-batches
                                 (numbered apart) */
    SCHEDULE_PLACEMENT_N,
} SchedulePlacement;

/* "loop", "v", "bidir", NULL: in the order of the enum. */
extern const char *const schedule_placement_names[SCHEDULE_PLACEMENT_N + 1];

/* How many chains of stages there are: 1 or 2. */
int32_t schedule_placement_n_chains(SchedulePlacement placement);

/* How many stages one chain has on @n_ranks ranks of @n_chunks chunks each. */
int64_t schedule_placement_n_stages(SchedulePlacement placement, int64_t n_ranks, int64_t n_chunks);

/* The stage, within its chain, of @chunk of @rank. */
int32_t schedule_placement_stage(SchedulePlacement placement, int32_t n_ranks, int32_t rank,
                                 int32_t chunk);

/* The chain that @chunk belongs to. */
int32_t schedule_placement_chain(SchedulePlacement placement, int32_t chunk);

/* The rank that holds @stage of @chain, and which of that rank's chunks it is. */
int32_t schedule_placement_rank(SchedulePlacement placement, int32_t n_ranks, int32_t stage,
                                int32_t chain);
int32_t schedule_placement_chunk(SchedulePlacement placement, int32_t n_ranks, int32_t stage,
                                 int32_t chain);
