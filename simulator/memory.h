/*
 * simulator/memory.h - every allocation and free of the ops of a SimProgram, exactly.
 *
 * On one rank, with the numbers of profiles/workload/workload.h:
 *
 *   at time 0, for good: static_bytes of every owner
 *
 *   when an op starts
 *     F                        + activation, + kv
 *     B or I of the last slice + gradients of kv of all slices
 *     I                        + what weight_activation is more than activation
 *     every op                 + the workspace of its kind, + what is gathered ahead for later ops
 *                                (profiles/workload/prefetch.h)
 *
 *   when an op ends
 *     every op                 - what its start added as workspace
 *     B, or an I that no W     - activation, - kv and its gradient
 *       follows
 *     I                        - what weight_activation is less than activation, - kv and its
 *                                gradient
 *     W                        - weight_activation
 *
 * An overlapped pair (pairs.h) starts both its ops before either ends, and its forward takes
 * late_activation when the backward ends.
 *
 * So after its last op a rank holds its static bytes again.
 *
 * Only the order of a rank's ops decides its peak, not their times: peaks are found in one pass
 * over the steps, and the time of a peak is looked up after.  The level rises at op starts only, so
 * the peak is at one of them; of equal peaks the first counts.
 *
 * Internal to simulator/.
 */
#pragma once

#include "simulator/sweep.h"

/* The moment at which a rank holds most. */
typedef struct {
    int64_t bytes; /* all owners together */
    int64_t step;  /* the op at whose start it is; -1: time 0 */
    int64_t op;    /* the same op as an index into schedule->ops; -1: time 0 */
    int64_t owner_bytes[TRACE_MEMORY_N]; /* sums to bytes */
} SimPeak;

/* Whether @peak is at most what @rank may use; a rank without a limit may use anything. */
static inline bool
sim_peak_fits(const WorkloadRank *rank, const SimPeak *peak)
{
    const int64_t usable = workload_usable_bytes(rank);

    return usable <= 0 || peak->bytes <= usable;
}

/* Fills @peaks (one per rank).  Returns false on SCHEDULE_ERROR_LIMIT: bytes negative or beyond
 * int64_t.  Cost: O(ops). */
bool sim_memory_peaks(const SimProgram *program, SimPeak *peaks, GError **error);

/* What the rank of an op holds, all owners together: from the op's start, and after its end. */
typedef struct {
    int64_t begin_bytes, end_bytes;
} SimLevel;

/* Fills @levels, indexed as schedule->ops: with the ops' times the whole course of every rank's
 * memory, since levels change at no other moment.  Only after sim_memory_peaks() has found that all
 * sums fit.  Cost: O(ops), 16 bytes each. */
void sim_memory_levels(const SimProgram *program, SimLevel *levels);

/* What ops of one cost allocate and free. */
typedef struct {
    int64_t activations_bytes, kv_bytes, workspace_bytes; /* + at the op's start */
    int64_t late_bytes; /* of activations: + when the pair ends, where it is a pair's forward */
    int64_t free_activations_bytes, free_kv_bytes; /* - at its end, besides the workspace */
} SimMemoryChange;

/* Returns: (owned) one per cost. */
SimMemoryChange *sim_memory_changes(const SimProgram *program);

/* Number of TraceMemory events of all ranks together.  Events of 0 bytes are left out. */
int64_t sim_memory_n_events(const SimProgram *program, const SimMemoryChange *changes);

/* Writes the events of @rank at time 0, or of its op @i (into schedule->ops); returns the end of
 * what it wrote.  @late_bytes  > 0: what the op does not take at its start; < 0: what the other op of its pair takes
 * at the end. */
TraceMemory *sim_memory_write_static(const SimProgram *program, int32_t rank, TraceMemory *to);
TraceMemory *sim_memory_write_op(const SimProgram *program, int64_t i,
                                 const SimMemoryChange *change, const SimOpTimes *at,
                                 int64_t late_bytes, int32_t rank, TraceMemory *to);
