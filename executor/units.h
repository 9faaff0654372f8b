/*
 * executor/units.h - whole weights and gradients of units (model.h) for the time of an op, where
 * the rank keeps parts of them only: ZeRO 2 and 3.
 *
 * Opening gathers the weights over the unit's copies, and gives the gradients room: zeros, with
 * what this rank's part has summed up so far in its place.  Closing reduces the gradients over the
 * copies into the part, and gives the room back.  So a part holds the sum over all ops so far and
 * all copies, in an order that the schedule fixes.  All copies run the same ops in the same order:
 * collectives inside an op always meet.
 *
 * Private to executor/.
 */
#ifndef EXECUTOR_UNITS_H
#define EXECUTOR_UNITS_H

#include "executor/comm.h"
#include "executor/model.h"

G_BEGIN_DECLS

/* What an op needs. */
enum {
    EXEC_OPEN_WEIGHTS = 1,
    EXEC_OPEN_GRADIENTS = 2,
};

/* Units at work; those that keep what is needed are left alone. */
typedef struct {
    ExecModel *model;
    ExecComm *comm;
    int32_t units[2];
    ExecBlock weights[2], gradients[2];
} ExecOpenUnits;

/*
 * Units @a and @b (-1: none).  @model  (nullable) nothing is sharded.
 * False once anything of the rank's op has failed, kept in @comm: then there may be no weights.
 */
bool exec_units_open(ExecOpenUnits *open, ExecModel *model, ExecComm *comm, unsigned what,
                     int32_t a, int32_t b);
void exec_units_close(ExecOpenUnits *open);

/* The group of the copies of a region's parameters. */
ExecDim exec_region_dim(ExecRegionKind region);

G_END_DECLS

#endif /* EXECUTOR_UNITS_H */
