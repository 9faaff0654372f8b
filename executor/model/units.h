/*
 * executor/model/units.h - ExecUnits: whole weights and gradients of units (model.h) for the time of an
 * op, where the rank keeps parts of them only, or has its weights off the device: ZeRO 2 and 3.
 *
 * Opening makes the weights whole, and gives the gradients room: zeros, with what this rank's part
 * has summed up so far in its place.  Closing reduces the gradients over the copies into the part,
 * and gives the room back.  So a part holds the sum over all ops so far and all copies, in an order
 * that the schedule fixes.  All copies run the same ops in the same order: collectives inside an op
 * always meet.
 *
 * Ahead of use: which units will be opened, in which order, is known before a step.  With a depth
 * of D, when one opening is at work the next D are under way: their whole weights have their place,
 * every copy has lent its part to the others as messages, which wait for nobody, and offloaded
 * weights are read for one more by then.  What would be more bytes than D layers waits: a table
 * that is larger than a layer is gathered when it is needed, so that it is never there twice, or
 * beside the gradients of another.  Opening waits for what has not arrived.  Messages, not
 * collectives of another thread: ranks may be as many as cores, MPI is called by one thread.  On a
 * device the D openings are gathered in a queue beside that of the compute slots (backend.h), and
 * opening makes these wait for it, not the host; but where tensors are staged through host memory,
 * they are gathered when they are needed.
 *
 * Memory: whole weights of the opening at work and of D layers, on every run, however far the
 * copies are apart; of the host, what was fetched, in the buffers of offload.h.  With a file the
 * host is never further ahead of the device than these buffers last.
 *
 * Private to executor/.
 */
#ifndef EXECUTOR_MODEL_UNITS_H
#define EXECUTOR_MODEL_UNITS_H

#include "executor/transport/comm.h"
#include "executor/model/model.h"

G_BEGIN_DECLS

/* What an op needs. */
enum {
    EXEC_OPEN_WEIGHTS = 1,
    EXEC_OPEN_GRADIENTS = 2,
};

/* Units whose weights are opened together; -1: none. */
typedef struct {
    int32_t units[2];
} ExecOpening;

/* How weights become whole. */
typedef enum {
    EXEC_GATHER_NOW, /* when they are needed */
    EXEC_GATHER_MESSAGES,
    EXEC_GATHER_ASIDE, /* in the backend's second queue */
} ExecGatherBy;

typedef struct ExecUnits ExecUnits;

typedef struct {
    ExecModel *model; /* (borrowed) */
    ExecComm *comm;   /* (borrowed) */
    GArray *openings; /* (taken) of ExecOpening: those with weights of a step, in order */
    int32_t depth;
    int64_t ahead_bytes; /* most that may be under way beside the opening at work */
    ExecGatherBy by;
    int64_t tag; /* of the messages: nobody else's */
    /* (nullable) What was gathered ahead: weights of @n_bytes were whole at @end_ns. */
    void (*gathered)(void *user_data, int64_t begin_ns, int64_t end_ns, int64_t n_bytes);
    void *user_data;
} ExecUnitsOptions;

ExecUnits *exec_units_new(const ExecUnitsOptions *options);
void exec_units_free(ExecUnits *units);

/* Buffers of what is fetched (offload.h) that a depth takes: of two units each, the opening at
 * work, those under way and the one that is read. */
static inline int
exec_units_n_fetches(int32_t depth)
{
    return 2 * (depth + 2);
}

/* Before the first op of a step: its first openings get under way.  Failures: as comm.h. */
void exec_units_begin_step(ExecUnits *units);
/* Before weights change: no copy needs this rank's parts any more. */
bool exec_units_end_step(ExecUnits *units, GError **error);
/* After the step's synchronize(): tells what was gathered ahead, opening after opening. */
void exec_units_tell_step(ExecUnits *units);

/* Units at work; those that keep what is needed are left alone. */
typedef struct {
    ExecUnits *owner;
    int32_t units[2];
    ExecBlock weights[2], gradients[2];
} ExecOpenUnits;

/*
 * Units @a and @b (-1: none).  @units  (nullable) nothing is apart.
 * False once anything of the rank's op has failed, kept in @comm: then there may be no weights.
 */
bool exec_units_open(ExecOpenUnits *open, ExecUnits *units, ExecComm *comm, unsigned what,
                     int32_t a, int32_t b);
void exec_units_close(ExecOpenUnits *open);

/* The group of the copies of a region's parameters. */
ExecDim exec_region_dim(ExecRegionKind region);

G_END_DECLS

#endif /* EXECUTOR_MODEL_UNITS_H */
