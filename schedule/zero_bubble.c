/*
 * schedule/zero_bubble.c - zero bubble schedules with stages in one row  [Qi et al. 2401.10241].
 *
 * The backward is split: I (gradient of the input) is on the critical path, W (gradients of the
 * weights) fills what would be bubbles.
 *
 * zb-h1: the memory of 1F1B, p micro-batches in flight on every rank.  Rank r runs min(p-1-r, m)
 *   forwards, then F, I, and the W of r micro-batches earlier.  At F = I = W = 1 it takes
 *   3m + p-1: a third of 1F1B's bubble (2401.10241 table 2: (p-1)(F + I - W)).
 *
 * zb-h2: twice the memory, no bubble between a rank's first and last op.  Rank r runs 2(p-1-r)+1
 *   forwards: exactly the slots until I of micro-batch 0 can reach it at F = I = 1, which is at
 *   2p-1-r.  From then on it repeats W, I, F, each W 2r+1 micro-batches behind the I, so that at
 *   most 2p are in flight and each rank's last W ends p-1-r slots before the last rank's.
 *
 * interleaved-zb: zb-h1 with chunks, the order of PyTorch's ScheduleInterleavedZeroBubble
 *   (distributed/pipelining/schedules.py at 00722e648): warm-up (v-1) g + p-1-r; zb-h1 is its case
 *   v = 1.
 */
#include "schedule/build.h"

/* zb-h1, and with chunks interleaved-zb. */
static Schedule *
build_interleaved(const ScheduleFamily *family, const ScheduleShape *shape, GError **error)
{
    const int64_t group = family->groups ? schedule_group(shape) : shape->n_micro_batches;
    const ScheduleInterleaving how = {
        .group = group,
        .warmup_last = (shape->n_chunks - 1) * group,
        .warmup_step = 1,
        .splits = true,
    };

    return schedule_build_interleaved(family, shape, &how, error);
}

const ScheduleFamily schedule_family_zb_h1 = {
    .name = "zb-h1",
    .summary = "zero bubble with the memory of 1F1B (ZB-H1, 2401.10241)",
    .splits_backward = true,
    .seeds_search = true,
    .min_chunks = 1,
    .max_chunks = 1,
    .torch_class = "1F1B",
    .torch_reads_ops = true,
    .build = build_interleaved,
};

static Schedule *
build_h2(const ScheduleFamily *family, const ScheduleShape *shape, GError **error)
{
    Schedule *schedule = schedule_alloc_full(family, shape, 3, error);
    if (schedule == NULL)
        return NULL;
    ScheduleEmitter emitter = {schedule->ops, 0};
    const int32_t m = schedule->n_micro_batches;
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
        const int32_t warmup = MIN(2 * (schedule->n_ranks - 1 - rank) + 1, m);
        const int32_t delay = 2 * rank + 1;
        schedule->rank_begin[rank] = emitter.n;
        for (int32_t i = 0; i < warmup; i++)
            schedule_emit(&emitter, SCHEDULE_OP_FORWARD, i, 0, 0);
        int32_t n_weights = 0;
        for (int32_t i = 0; i < m; i++) {
            /* After the last forward, an I comes every second slot, so a W fits before it even if
             * the rank is not that far behind (m < 2p). */
            if (n_weights < i && (i >= delay || i > m - warmup))
                schedule_emit(&emitter, SCHEDULE_OP_BACKWARD_WEIGHT, n_weights++, 0, 0);
            schedule_emit(&emitter, SCHEDULE_OP_BACKWARD_INPUT, i, 0, 0);
            if (i < m - warmup)
                schedule_emit(&emitter, SCHEDULE_OP_FORWARD, warmup + i, 0, 0);
        }
        while (n_weights < m)
            schedule_emit(&emitter, SCHEDULE_OP_BACKWARD_WEIGHT, n_weights++, 0, 0);
    }
    schedule->rank_begin[schedule->n_ranks] = emitter.n;
    return schedule;
}

const ScheduleFamily schedule_family_zb_h2 = {
    .name = "zb-h2",
    .summary = "zero bubble with twice the memory of 1F1B (ZB-H2, 2401.10241)",
    .splits_backward = true,
    .seeds_search = true,
    .min_chunks = 1,
    .max_chunks = 1,
    .torch_class = "1F1B",
    .torch_reads_ops = true,
    .build = build_h2,
};

const ScheduleFamily schedule_family_interleaved_zb = {
    .name = "interleaved-zb",
    .summary = "ZB-H1 over several chunks per rank (2401.10241; PyTorch)",
    .splits_backward = true,
    .groups = true,
    .min_chunks = 1,
    .max_chunks = SCHEDULE_MAX_CHUNKS,
    .torch_class = "InterleavedZeroBubble",
    .build = build_interleaved,
};
