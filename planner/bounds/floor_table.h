/*
 * planner/bounds/floor_table.h - what a layer takes at the least on slices of so many rows, and what
 * it takes on average.
 *
 * A pass of a layer on x rows takes at least each of these pieces, which are linear in what the
 * device does without attention, d(x), what the host does, h(x), what the device does for attention,
 * a, and ZeRO 3's collectives, g, that hide behind the device and slow it down by their share i:
 *
 *   PLAN_PIECE_DEVICE   d(x) + a + i g
 *   PLAN_PIECE_HOST     h(x)
 *   PLAN_PIECE_GATHERS  i (d(x) + a) + g
 *
 * d and h do not fall with x (profiles/cost/cost.h).  They are known at the first row of intervals,
 * which stands for the whole interval; their lower convex hulls say what ops of x rows on average
 * take on average at the least, by Jensen's inequality.
 *
 * Thread-safety: as the memo.
 */
#pragma once

#include "planner/cost/point.h"

typedef enum {
    PLAN_PIECE_DEVICE,
    PLAN_PIECE_HOST,
    PLAN_PIECE_GATHERS,
    PLAN_PIECE_N
} PlanPiece;

typedef struct {
    double rows, seconds;
} PlanFloorCorner;

/* The lower convex hull of times by rows. */
typedef struct {
    guint n, room;
    PlanFloorCorner *corners; /* (owned) from left to right */
} PlanFloorHull;

/* One pass of a layer on the devices of one kind of nodes, with what the request has it compute
 * again. */
typedef struct {
    double attention_s;         /* of one whole sequence at the least */
    PlanFloorHull device, host; /* of all numbers of rows that are asked about */
    double *device_s, *host_s;  /* (owned) [interval] at its first row */
} PlanFloorPass;

#define PLAN_FLOOR_PASSES 2 /* forward, backward */

typedef struct {
    PlanFloorPass passes[MODEL_MAX_KINDS][PLAN_FLOOR_PASSES]; /* [kind of layers] */
} PlanFloorKind;

typedef struct {
    guint n_kinds;        /* of nodes */
    int32_t n_layers;     /* kinds of layers */
    guint n_intervals;    /* of rows */
    int64_t *ends;        /* (owned) [interval] its last row; the first one begins at row 1 */
    PlanFloorKind *kinds; /* (owned) [kind of nodes] */
} PlanFloorTable;

/*
 * Returns: (borrowed from @memo) the table of the layers of @point for slices of micro-batches of up
 * to @rows rows.
 * Cost: some hundred prices of each kind of layer, where they are not known.
 */
const PlanFloorTable *plan_floor_table(PlanMemo *memo, const PlanRequest *request,
                                       const PlanPoint *point, int64_t rows,
                                       const ProfileGroup *groups);

/* Returns: what ops take on average at the least if they have @rows on average.  Cost:
 * O(log corners). */
double plan_floor_hull_at(const PlanFloorHull *hull, double rows);

/* Returns: the interval of @rows, from 1 to the last one of the table. */
guint plan_floor_interval(const PlanFloorTable *table, int64_t rows);
