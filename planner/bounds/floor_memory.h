/*
 * planner/bounds/floor_memory.h - what ranks hold at the least at their first backward, with any
 * slices, and how long they recompute so that it fits.
 *
 * Rank r of p begins with forwards.  With k slices, v chunks and groups of g micro-batches, g k >= p,
 * families that slice run at least (v - 1) g k + k + e of them before its first backward, that of the
 * last slice of the first micro-batch in the last chunk (schedule/one_f_one_b.c): e = p - 1 - r with one
 * chunk, 2 (p - 1 - r) with several; all of them where forwards come first.  They are in the order of
 * groups, in a group of chunks, in a chunk of micro-batches, and in these of slices: the first g
 * micro-batches in each chunk but the last, the first one there, and e slices after it.  Of a
 * micro-batch of which only the first j slices are held, with none longer than a share s of the sequence,
 * at least 1 - (k - j) s is held.  More slices are never more.  Before the first backward of each later
 * group the same holds of that group, and one of them has at least the average of all sequences; with one
 * chunk the same is true of groups of 1 + e / k micro-batches, rounded down.
 *
 * What is held beyond the limit has to be recomputed.  A byte of a chunk that h sequences are held of
 * saves h bytes and costs all sequences at least the least time per byte.  A rank of one chunk has one
 * recompute kind for all of it, so it takes as long as the fastest kind with which that fits.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "planner/cost/point.h"

/* How the sequences of a replica are grouped and cut. */
typedef struct {
    int64_t n_micro_batches;
    int64_t n_sequences; /* of all of them */
    int64_t largest;     /* sequences of the largest one */
    int64_t n_slices;    /* at the most */
    double longest;      /* of a sequence in one slice, at the most */
    int64_t group; /* micro-batches of a group, of several chunks; 0: as few as slices allow */
} PlanFloorCut;

typedef struct {
    int64_t pp, vpp;
    int64_t group;       /* micro-batches per group that the request fixes; 0: the family's */
    double *kept_bytes;  /* (owned) [stage] of one sequence, with the fastest recompute kind */
    double *least_bytes; /* (owned) [stage] the same with the kind that keeps least */
    /* (owned) [stage][kind] of one sequence with each recompute kind, and what it adds at the least for all
     * sequences; INFINITY: it is not allowed */
    double (*kind_bytes)[PLAN_RECOMPUTE_N], (*kind_s)[PLAN_RECOMPUTE_N];
    double *
        kv_bytes; /* (owned) [rank] gradients of keys and values of one sequence, in its last stage */
    /* (owned) [rank] beside what is static, and what a backward of its last stage has whole; INFINITY: no
     * limit */
    double *usable_bytes;
    double saving_rate; /* plan_point_sliced_rate() */
    bool always_fits;   /* whatever is held */
} PlanFloorMemory;

/*
 * @counts       layers of each stage of the chain, which is placed in a loop
 * @memory_bytes that a device may use; INT64_MAX: no limit
 */
void plan_floor_memory_init(PlanFloorMemory *memory, const PlanRequest *request,
                            const PlanLayerCost *cost, const PlanPoint *point,
                            const int64_t *counts, int64_t memory_bytes);
void plan_floor_memory_clear(PlanFloorMemory *memory);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(PlanFloorMemory, plan_floor_memory_clear)

/* Returns: how long rank @r recomputes at the least for all sequences; INFINITY: what it holds does not
 * fit.  Cost: O(chunks). */
double plan_floor_forced_s(const PlanFloorMemory *memory, const PlanFloorCut *cut, int64_t r);
