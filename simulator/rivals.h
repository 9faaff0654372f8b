/*
 * simulator/rivals.h - SimRivals: which streams of messages may meet on a link that can fill, and
 * until when a stream is certainly silent.
 *
 * Two streams are rivals if transfers of both cross one link that can fill (network.h).  A message
 * that meets none of its rivals takes its own time, as if no link were shared, and then the event
 * engine (contend.h) need not follow it.  That it will meet none is often known before the clock
 * comes there: a rank sends when an op ends, and before its next op that sends on a stream ends it
 * has to run all ops until then.  So, with @next the index of its next op, which begins at @from_ns
 * at the earliest, j the index of its next op that sends on the stream, d the least that any of its
 * ops takes and e the least that one takes that sends on the stream, it is silent until
 *
 *   from_ns + (j - next) d + e
 *
 * which sharing of links only delays.  What a rank reduces and gathers after its last op is a rival
 * like a stream, with d for e and j the last op.
 *
 * Streams that cross a link together with collectives of ops, or beside ops, have no such bound;
 * nor, to keep the look short, have those of a link with more than SIM_MAX_RIVALS others.
 *
 * Internal to simulator/.
 */
#pragma once

#include "simulator/network.h"

#define SIM_MAX_RIVALS 7

/* Streams have the numbers of sim_stream(); what a rank does beside its ops has n_streams + 1 +
 * rank. */
typedef struct {
    const SimProgram *program; /* (borrowed) */
    int32_t n_streams;
    /* Of the stream s: rivals[begin[s] .. begin[s + 1]), its own number first; nothing where it has
     * to be followed. */
    int32_t *begin; /* (owned) [stream + 1] */
    GArray *rivals; /* of int32_t */
    /* Where there are rivals at all: */
    uint8_t *sends;  /* (owned) [index into schedule->ops] 1: to the next rank, 2: to the other */
    int64_t *min_ns; /* (owned) [3 rank + way] the least that such ops take; 0: any op */
    int64_t *at;     /* (owned) [stream] no op before this index will send on it */
    int64_t
        *silent_ns; /* (owned) [number] it is known to be silent until then; a bound stays true */
} SimRivals;

/* Fills @rivals.  Cost: O(ops). */
void sim_rivals_init(SimRivals *rivals, const SimProgram *program, const SimNetwork *network);
void sim_rivals_clear(SimRivals *rivals);

/* Whose stream it is. */
static inline int32_t
sim_rival_rank(const SimRivals *rivals, int32_t number)
{
    return number > rivals->n_streams ? number - rivals->n_streams - 1 : (number - 1) / 2;
}

/* The formula above.  @next does not fall from call to call.  Cost: amortised O(1). */
int64_t sim_rivals_silent_until(SimRivals *rivals, int32_t number, int64_t next, int64_t from_ns);
