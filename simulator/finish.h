/*
 * simulator/finish.h - what a rank does after (or behind) its last op.
 *
 *   reduce     gradients over dp, on the dp stream
 *   optimizer  on the compute stream, when the rank is free and the reduction has ended
 *   gather     parameters (ZeRO 1, 2), on the dp stream, after the optimizer
 *
 * Without overlap_dp the reduction is one piece that starts when the rank is free.  With it, there
 * is one piece per chunk of the rank, of equal time and bytes (what does not divide goes to the
 * first ones).  A chunk's gradients become final during its last backward op (B, W, or I where it
 * has nothing else): its piece may run behind that op but, because the last gradient is there only
 * at the op's end, it does not end before it:
 *
 *   start = max(end of the piece before, start of the op, end of the op - piece)
 *
 * Pieces run in the order of those ops.  So at most the time of the last micro-batch's backward of
 * each chunk hides communication, as gradient buckets of DDP do.
 *
 * While a rank that is free waits for its reduction or gathers, its compute stream is blocked: that
 * time counts as busy and as data-parallel communication, not as bubble.
 *
 * Internal to simulator/.
 */
#ifndef SIMULATOR_FINISH_H
#define SIMULATOR_FINISH_H

#include "simulator/program.h"

G_BEGIN_DECLS

typedef struct {
    int64_t start_ns, end_ns, bytes;
} SimPiece;

typedef struct {
    int64_t free_ns; /* after the last op */
    int32_t n_pieces;
    SimPiece reduce[SCHEDULE_MAX_CHUNKS]; /* [n_pieces], in order of time */
    int64_t optimizer_start_ns, optimizer_end_ns;
    int64_t end_ns; /* of the gathering: of everything */
} SimFinish;

void sim_finish_rank(const SimProgram *program, const SimTimes *times, int32_t rank,
                     SimFinish *finish);

/* Time that the compute stream waits for data-parallel communication. */
static inline int64_t
sim_finish_blocked_ns(const SimFinish *finish)
{
    return (finish->optimizer_start_ns - finish->free_ns) +
           (finish->end_ns - finish->optimizer_end_ns);
}

G_END_DECLS

#endif /* SIMULATOR_FINISH_H */
