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
 * which stands for the whole interval.  The lower convex hull of what they are up to some number of rows
 * says what ops of x rows on average, none of more than so many, take on average at the least, by
 * Jensen's inequality: where tiles fill no wave, shorter and longer ops may be better, but only as
 * long as these are.
 *
 * A rough table has an interval for every eight of a sharp one, and so prices an eighth of the rows: what it says
 * is no more, and most points are ruled out by it.
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

/* Times by rows.  Corner 0 lies at row 0, corner i + 1 at the last row of interval i; both have the time of
 * the first row of their interval. */
typedef struct {
    double *first_s; /* (owned) [interval] at its first row */
    /* (owned) [corner] of the hull of all up to this corner: the one before it, 0 of 0; and some corner before
     * that one */
    guint16 *before, *jump;
} PlanFloorCurve;

/* One pass of a layer on the devices of one kind of nodes, with what the request has it compute
 * again. */
typedef struct {
    double attention_s; /* of one whole sequence at the least, beside what device has by rows */
    double contexts_s;  /* of slices whose contexts together are as long as a sequence, besides */
    /* What the device does more in each of so many ops that nearly all add their gradients to others: of n ops
     * a share of 1 - 2 / n. */
    double added_s;
    PlanFloorCurve device, host; /* of two ops */
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
                                       const ProfileGroup *groups, bool is_rough);

/* Ends of the model, in place of kinds of layers. */
enum {
    PLAN_FLOOR_EMBEDDING,
    PLAN_FLOOR_HEAD,
    PLAN_FLOOR_ENDS
};

/* The same of embedding and head, which nothing recomputes. */
const PlanFloorTable *plan_floor_ends_table(PlanMemo *memo, const PlanRequest *request,
                                            const PlanPoint *point, int64_t rows,
                                            const ProfileGroup *groups);

/* Returns: what ops take on average at the least if they have @rows on average, and none has more than
 * @most_rows.  Cost: O(log intervals). */
double plan_floor_average_s(const PlanFloorTable *table, const PlanFloorCurve *curve, double rows,
                            double most_rows);

/*
 * Returns: what all ops take at the least, over their number at the fewest, where this is that of ops of @rows
 * on average and the most that of ops of @least_rows, and each takes @each_s besides.  With n ops of X rows
 * they take n (H(X / n) + each) = X (H(y) + each) / y, which is convex in n and grows with it as long as the
 * hull's line through y meets row 0 above -each; below it fewer rows are better, as where few of the last tiles
 * are filled.
 * Cost: O(log intervals), and O(1) for each corner below which it is so.
 */
double plan_floor_more_s(const PlanFloorTable *table, const PlanFloorCurve *curve, double rows,
                         double least_rows, double most_rows, double each_s);

/* Returns: the interval of @rows, from 1 to the last one of the table. */
guint plan_floor_interval(const PlanFloorTable *table, int64_t rows);
