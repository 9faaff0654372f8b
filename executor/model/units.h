/*
 * executor/model/units.h - ExecUnits makes the weights and gradients of ZeRO units whole for the
 * time of an op.
 *
 * With ZeRO stage 2 a rank keeps only its shard of a unit's gradients, with stage 3 also of its
 * weights (layout.h), and with offloaded parameters the weights are not on the device.  So an op
 * opens the units of a layer before it computes with them, and closes them afterwards:
 *
 * - Opening weights gathers them from the shards of all replicas, or uploads them from the host.
 * - Opening gradients takes memory for the whole gradients: zeros, but for what this rank's shard
 * has summed up so far.
 * - Closing reduces the gradients over the replicas into the shard, and gives all this memory back.
 *
 * A shard therefore holds the sum over all ops so far and all replicas, added in an order that the
 * schedule fixes.  All replicas run the same ops in the same order, so the collectives of an op
 * always meet.
 *
 * Prefetch: which units a step opens, and in which order, is known before the step begins.  With a
 * depth of D, the next D openings are prefetched while one is at work: the memory of their whole
 * weights is taken, and every replica lends its shard to the others by messages, which make nobody
 * wait.  Offloaded weights are read from the host for one opening more.  An opening then waits for
 * what has not arrived.  Openings of more bytes than D layers are not prefetched: a table that is
 * larger than a layer is gathered when it is needed, so that it is never there twice, or beside the
 * gradients of another.
 *
 * Why messages, not collectives of a thread of their own: there may be as many ranks as cores, and
 * MPI is called by one thread.  On a device the openings are gathered in a second queue beside that
 * of the ops (begin_aside of backend.h); an opening lets the queue of the ops wait for it, and the
 * host goes on.  Where tensors are staged through host memory, units are gathered when they are
 * needed.
 *
 * Memory: the whole weights of the opening at work and of D layers, the same on every run, however
 * late a replica is; in host memory, what was fetched, in the buffers of offload.h.  With a file
 * the host does not go on to an opening whose buffer the device still reads.
 *
 * Private to executor/.
 */
#pragma once

#include "executor/model/model.h"
#include "executor/transport/comm.h"

/* What an op needs of the units that it opens; a set of bits. */
enum {
    EXEC_OPEN_WEIGHTS = 1,
    EXEC_OPEN_GRADIENTS = 2,
};

/* The units whose weights are opened together: a layer's, a table's; -1 where there is no second.
 */
typedef struct {
    int32_t units[2];
} ExecOpening;

/* How the weights of later openings become whole while an op computes. */
typedef enum {
    EXEC_PREFETCH_NONE,     /* not: each opening gathers its own when it is at work */
    EXEC_PREFETCH_MESSAGES, /* by messages between the replicas */
    EXEC_PREFETCH_ASIDE,    /* by collectives in the backend's second queue */
} ExecPrefetch;

typedef struct ExecUnits ExecUnits;

typedef struct {
    ExecModel *model;       /* (borrowed) */
    ExecComm *comm;         /* (borrowed) */
    GArray *openings;       /* (taken) of ExecOpening: all of a step that open weights, in order */
    int32_t depth;          /* how many openings are prefetched at once, at most */
    int64_t prefetch_bytes; /* most bytes of whole weights that may be prefetched at once */
    ExecPrefetch prefetch;
    int64_t tag; /* of this object's messages; no other message may have it */
    /* (nullable) Called once for every opening that was prefetched: gathering its weights, of
     * @n_bytes, began at @begin_ns, and they were whole at @end_ns. */
    void (*gathered)(void *user_data, int64_t begin_ns, int64_t end_ns, int64_t n_bytes);
    void *user_data;
} ExecUnitsOptions;

/* Returns: (owned); never NULL. */
ExecUnits *exec_units_new(const ExecUnitsOptions *options);
void exec_units_free(ExecUnits *units);

/* How many buffers of exec_offload_fetch() a prefetch depth needs: two units for each of the
 * opening at work, those that are prefetched, and the one that is read from the host. */
static inline int
exec_units_n_fetches(int32_t depth)
{
    return 2 * (depth + 2);
}

/* Before the first op of a step: begins to prefetch its first openings.  A failure is kept in the
 * comm (comm.h). */
void exec_units_begin_step(ExecUnits *units);

/* Before the optimizer changes weights: waits until no replica reads this rank's shards any more.
 */
bool exec_units_end_step(ExecUnits *units, GError **error);

/* After the step, when the backend has been synchronized: calls `gathered` for every opening. */
void exec_units_tell_step(ExecUnits *units);

/* Up to two units that an op has opened.  A unit of which the rank keeps all that is needed takes
 * no memory here. */
typedef struct {
    ExecUnits *owner; /* NULL: the rank keeps everything whole */
    int32_t units[2];
    ExecBlock weights[2], gradients[2];
} ExecOpenUnits;

/*
 * Opens units @a and @b (-1: none) and binds their tensors (exec_model_bind()).
 *
 * @units  (nullable) NULL where the rank keeps everything whole: then nothing is done.
 * @what   EXEC_OPEN_*
 * Returns false once anything of the rank's op has failed; the error is kept in @comm, and the
 * tensors may be bound to nothing.
 */
bool exec_units_open(ExecOpenUnits *open, ExecUnits *units, ExecComm *comm, unsigned what,
                     int32_t a, int32_t b);

/* Reduces the gradients that were opened, gives the memory back, and binds the tensors to what the
 * rank keeps. */
void exec_units_close(ExecOpenUnits *open);

/* Which group of ranks holds replicas of a region's parameters. */
ExecDim exec_region_dim(ExecRegionKind region);
