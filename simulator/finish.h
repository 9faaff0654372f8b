/*
 * simulator/finish.h - data-parallel communication: ahead of, behind and after a rank's ops.
 *
 *   gather     parameters (ZeRO 1, 2), on the dp stream: at the end, after the optimizer; or, with
 *              overlap_gather, at the begin, ahead of the first forward of each chunk, where the
 *              steady state of many iterations has it
 *   reduce     gradients over dp, on the dp stream: after the last op; or, with overlap_dp, behind
 *              the last backward of each chunk
 *   optimizer  on the compute stream, when the rank is free and the reduction has ended
 *
 * What runs beside ops goes in buckets: a rank's bytes are shared by its chunks, in the order of
 * those ops, and by n_buckets per chunk, equally (what does not divide goes to the first ones).
 * The op is cut in as many equal segments:
 *
 *   a chunk's first F      its segment i begins when bucket i of its parameters is there
 *   a chunk's last B, W    (or I, where it has nothing else) when its segment i ends, bucket i of
 *                          the gradients is complete and queues for the dp stream, which carries
 *                          one at a time, as DDP's buckets and Megatron's do
 *
 * While the dp stream works, computing on the rank runs at the share 1 / (1 +
 * interference_fraction) of its speed.
 *
 * While a rank that is free waits for its reduction or gathers, or an op waits for parameters, its
 * compute stream is blocked: that time counts as busy and as data-parallel communication, not as
 * bubble.
 *
 * Internal to simulator/.
 */
#pragma once

#include "profiles/workload/workload.h"
#include "schedule/trace.h"

typedef struct SimProgram SimProgram;

/* One collective on a rank's dp stream. */
typedef struct {
    int64_t start_ns, end_ns, bytes;
    int32_t rank, number; /* of the rank's, in order of time */
    uint8_t kind;         /* TRACE_EVENT_DP_REDUCE or _GATHER */
} SimPiece;

/* When a rank does what comes after its ops. */
typedef struct {
    int64_t free_ns; /* after the last op */
    int64_t optimizer_start_ns, optimizer_end_ns;
    int64_t end_ns; /* of everything */
} SimFinish;

/* An op that waits for parameters to be gathered, or behind which gradients are reduced. */
typedef struct {
    uint32_t step;
    int32_t chunk; /* how many of the rank's chunks come before it */
    bool gathers;
} SimSpecial;

/* Data-parallel communication that runs beside ops. */
typedef struct {
    SimSpecial *specials; /* (owned, nullable) by rank, in order */
    int64_t *begin;       /* (owned, nullable) [rank], and one more; NULL: nothing does */
    /* No step from head_end to tail_begin - 1 is special. */
    int64_t head_end, tail_begin;
} SimBeside;

/* Returns: part @i of @total, which is cut into @n parts as equal as possible, larger ones first.
 */
static inline int64_t
sim_share(int64_t total, int64_t n, int64_t i)
{
    g_assert(n > 0);
    return n == 1 ? total : total / n + (i < total % n);
}

/* Returns: the sum of parts 0 to @i - 1. */
static inline int64_t
sim_shares_before(int64_t total, int64_t n, int64_t i)
{
    return total / n * i + MIN(i, total % n);
}

/* Returns: the speed of computing while the dp stream works, as a share of its own, above 0 to 1.
 */
static inline double
sim_speed_beside_dp(const Workload *workload)
{
    return 1.0 / (1.0 + workload->interference_fraction);
}

static inline int64_t
sim_n_buckets(const WorkloadRank *work)
{
    return MAX(1, work->n_buckets);
}

/* Whether a rank reduces gradients, and gathers parameters, outside its ops. */
static inline bool
sim_reduces(const WorkloadRank *work)
{
    return work->dp_reduce_ns > 0 || work->dp_reduce_bytes > 0;
}

static inline bool
sim_gathers(const WorkloadRank *work)
{
    return work->dp_gather_ns > 0 || work->dp_gather_bytes > 0;
}

/* Fills @beside of a compiled @program. */
void sim_beside_init(SimBeside *beside, const SimProgram *program);
void sim_beside_clear(SimBeside *beside);

/* Returns: how many ops of @rank wait for parameters (@gathers), or are followed by a reduction. */
int32_t sim_beside_n_chunks(const SimBeside *beside, int32_t rank, bool gathers);

/*
 * Returns: when @work_ns of computing end that begin at @start_ns, if the dp stream works until
 * @until_ns and computing runs at the share @speed of its own speed till then.
 */
static inline int64_t
sim_slowed_end(int64_t start_ns, int64_t work_ns, int64_t until_ns, double speed)
{
    if (until_ns <= start_ns)
        return start_ns + work_ns;
    const int64_t slow_end_ns = start_ns + (int64_t)((double)work_ns / speed + 0.5);
    if (slow_end_ns <= until_ns)
        return slow_end_ns;
    const double left_ns = (double)work_ns - (double)(until_ns - start_ns) * speed;
    return until_ns + (int64_t)(MAX(left_ns, 0) + 0.5);
}

/* Time that the compute stream waits for data-parallel communication after the last op. */
static inline int64_t
sim_finish_blocked_ns(const SimFinish *finish)
{
    return (finish->optimizer_start_ns - finish->free_ns) +
           (finish->end_ns - finish->optimizer_end_ns);
}
