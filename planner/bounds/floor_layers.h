/*
 * planner/bounds/floor_layers.h - what all slicings of a point have in common, and what one layer takes at
 * the least in those of a cell (floor.h).
 *
 * Internal to bounds/.  Micro-batches that differ in size: the first one and the last one, and the first
 * group and the last one, have together what all others leave them, so times of both passes together are
 * the least over all sizes of the first.
 *
 * Thread-safety: pure.
 */
#pragma once

#include <math.h>

#include "planner/bounds/floor.h"
#include "planner/bounds/floor_memory.h"
#include "planner/bounds/floor_messages.h"
#include "planner/bounds/floor_table.h"

/* Numbers of times: the passes, and both together where they are not of the same micro-batch. */
enum {
    PLAN_FLOOR_FORWARD,
    PLAN_FLOOR_BACKWARD,
    PLAN_FLOOR_BOTH,
    PLAN_FLOOR_SUMS
};

/* What differs between the orders in which ranks may lie. */
typedef struct {
    const PlanFloorMessages *messages; /* (borrowed from the memo) */
    double end_s; /* what rank 0 does after its last op, above the least of all orders */
} PlanFloorOrder;

/* A chunk of a rank to which slices are followed round and round. */
typedef struct {
    int64_t chunk; /* 0: none */
    int64_t
        as_long; /* a rank like it whose first stage has as many layers as that chunk; -1: none */
} PlanFloorRound;

/* The last chunk of a rank, and the one before for which it waits longest. */
#define PLAN_FLOOR_ROUNDS 2

/* What all slicings of a point have in common. */
typedef struct {
    const PlanRequest *request;
    const PlanPoint *point;
    const PlanLayerCost *cost;
    const PlanFloorTable *table;
    const PlanFloorMemory *memory;
    int64_t n_sequences; /* of a replica */
    int64_t group;       /* sequences of the largest micro-batch */
    int64_t granularity; /* tokens of which slices have a multiple */
    double interference; /* of a hidden second */
    /* Layers of each rank's first stage, of all of its stages, and of the first stages of the ranks
     * before it: (owned) [rank][kind of layers]. */
    double (*first)[MODEL_MAX_KINDS], (*all)[MODEL_MAX_KINDS];
    double (*stages)[MODEL_MAX_KINDS]; /* (owned) of each stage */
    PlanFloorOrder *orders;            /* (owned) those that no other beats */
    int n_orders;
    /* Where ranks lie: on kinds of nodes, or, of one kind, in groups that do not lie alike. */
    GArray *places_groups;            /* (owned, nullable) plan_rank_places() */
    const PlanFloorKind **places;     /* (owned) [place] what layers take there */
    const PlanFloorTable *ends_table; /* (nullable) plan_floor_set_ends() */
    const PlanFloorKind **ends;       /* (owned) [place] what the ends of the model take there */
    guint n_places;
    int32_t *place_of_rank; /* (owned) -1: several */
    int32_t *likes;         /* (owned) [rank] plan_rank_likes() */
    int64_t *as_long; /* (owned) [rank] where a path to it begins: in floor.c: first_as_long() */
    PlanFloorRound (*rounds)[PLAN_FLOOR_ROUNDS]; /* (owned) [rank] */
    bool ends_hide; /* gathers of ZeRO 3 may hide behind embedding and head */
} PlanFloor;

/* What one layer takes in a cell at the least.  [gathers] as average_s(). */
typedef struct {
    double work_s[2];                     /* of all tokens */
    double works_s[PLAN_FLOOR_PASSES][2]; /* the same of each pass */
    /* Of the slice that takes longest, forward in the first micro-batch and backward in the last one. */
    double pass_s[PLAN_FLOOR_SUMS][2];
    double group_s[PLAN_FLOOR_SUMS][2];   /* the same in the first group and in the last one */
    double longest_s[PLAN_FLOOR_SUMS][2]; /* of the slice that has most tokens, there */
    double least_s[PLAN_FLOOR_PASSES][2]; /* of any slice of any micro-batch */
    double largest_s[PLAN_FLOOR_PASSES]
                    [2]; /* of the slice that takes longest, in the largest micro-batch */
} PlanFloorTimes;

/* Micro-batches of the first group and of the last one: of one number of slices as in the schedule, else
 * at the least: a group has p slices, the last one p - 1 (schedule/one_f_one_b.c). */
typedef struct {
    int64_t first, last;
    bool is_one; /* there is no other group */
} PlanFloorGroups;

/* Whether all micro-batches have as many sequences. */
static inline bool
plan_floor_is_uniform(const PlanFloor *floor, const PlanFloorCell *cell)
{
    return cell->n_micro_batches * floor->group == floor->n_sequences;
}

/* Returns: sequences of @n micro-batches at the least: what the others leave them. */
static inline int64_t
plan_floor_least_sequences(const PlanFloor *floor, const PlanFloorCell *cell, int64_t n)
{
    return MAX(n, floor->n_sequences - (cell->n_micro_batches - n) * floor->group);
}

/* Returns: tokens of any slice at the least: what the others, none longer than the longest, leave it. */
static inline double
plan_floor_least_tokens(const PlanFloor *floor, const PlanFloorCell *cell)
{
    const double others = (double)(cell->last - 1) * cell->high * (1.0 + 1e-9);

    return fmax((double)floor->granularity,
                trunc((double)floor->request->seq_len * (1.0 - others)));
}

/* Whether gathers count that hide in the layers of rank @r. */
static inline int
plan_floor_rank_gathers(const PlanFloor *floor, int64_t r)
{
    return floor->ends_hide && (r == 0 || r == floor->point->degrees.pp - 1) ? 0 : 1;
}

/* What layers of rank @r take: those of its place, and whether gathers count that hide. */
typedef struct {
    const PlanFloorTimes *times;
    int gathers;
} PlanFloorRankLayers;

static inline PlanFloorRankLayers
plan_floor_rank_layers(const PlanFloor *floor, const PlanFloorTimes (*times)[MODEL_MAX_KINDS],
                       int64_t r)
{
    const int32_t place = floor->place_of_rank[r];

    return (PlanFloorRankLayers){times[place >= 0 ? (guint)place : floor->n_places],
                                 plan_floor_rank_gathers(floor, r)};
}

/* Whether an op takes as long on both ranks. */
static inline bool
plan_floor_are_alike(const PlanFloor *floor, int64_t q, int64_t r)
{
    return floor->likes[q] == floor->likes[r];
}

/* One pass of an end of the model over all tokens. */
static inline double
plan_floor_end_pass_s(const PlanFloor *floor, PlanPart part, int pass)
{
    const PlanPartCost *cost = &floor->cost->parts[part];

    return (double)floor->point->n_micro_batches *
           (pass == PLAN_FLOOR_FORWARD ? cost->sliced_forward_s : cost->sliced_backward_s);
}

/* Both passes of an end of the model over all tokens. */
static inline double
plan_floor_end_part_s(const PlanFloor *floor, PlanPart part)
{
    return plan_floor_end_pass_s(floor, part, PLAN_FLOOR_FORWARD) +
           plan_floor_end_pass_s(floor, part, PLAN_FLOOR_BACKWARD);
}

PlanFloorGroups plan_floor_groups(const PlanFloor *floor, const PlanFloorCell *cell);

/* Returns: work_s[0] of a layer of kind @k where it takes least, as plan_floor_times() has it. */
double plan_floor_work_s(const PlanFloor *floor, const PlanFloorCell *cell, int k);

/* Returns: how long the contexts of all slices of a sequence are together at the least, in sequences: the last slice
 * follows all but the longest, the one before it all but two, and so on. */
double plan_floor_contexts(const PlanFloorCell *cell);

/* Rows of ops on average and at the most; and of one sequence's attention and contexts, on average. */
typedef struct {
    double rows, most_rows, attention, contexts;
} PlanFloorOps;

/* Returns: what @ops of a layer of kind @k at @place (n_places: where it takes least) take in a pass at the least
 * on average; @gathers as average_s(). */
double plan_floor_ops_s(const PlanFloor *floor, guint place, int k, int pass,
                        const PlanFloorCell *cell, const PlanFloorOps *ops, int gathers);

/* The same of an end of the model on rank @r, once plan_floor_set_ends() has been called. */
double plan_floor_end_ops_s(const PlanFloor *floor, int64_t r, int end, int pass,
                            const PlanFloorCell *cell, const PlanFloorOps *ops);

/* Sets @times [place][kind of layers] of all places; the least of them comes last.  Cost: O(places * kinds
 * * log intervals), times the sizes of a micro-batch where these differ. */
void plan_floor_times(const PlanFloor *floor, const PlanFloorCell *cell,
                      PlanFloorTimes (*times)[MODEL_MAX_KINDS]);
