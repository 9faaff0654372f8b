/*
 * executor/model/units_state.h - what the files of units.h share.
 *
 * Private to executor/units*.c.
 */
#ifndef EXECUTOR_MODEL_UNITS_STATE_H
#define EXECUTOR_MODEL_UNITS_STATE_H

#include "executor/model/units.h"

G_BEGIN_DECLS

/* Of an opening in the step at hand. */
typedef struct {
    int64_t begin_ns, end_ns; /* stamps */
    int64_t n_bytes;
} ExecGathering;

/* What was fetched and lent. */
typedef struct {
    const void *data;
    int64_t n_bytes;
} ExecLoan;

/* An opening under way. */
typedef struct {
    ExecBlock whole[2];
    ExecLoan loans[2]; /* by messages */
    ExecMark *there;   /* (owned, nullable) in the second queue */
} ExecPrefetch;

struct ExecUnits {
    ExecUnitsOptions o;
    /* Of the step's openings: the first that is not open yet, not under way, not asked to be
     * fetched. */
    guint next, n_begun, n_asked;
    ExecGathering *gatherings; /* (owned) by opening */
    ExecPrefetch *prefetches;  /* (owned) opening i's is i modulo depth + 2, as what it fetches */
};

/* Openings that something is there for at once: the one at work, those under way, and the one that
 * is read. */
static inline guint
exec_units_n_slots(const ExecUnits *units)
{
    return (guint)units->o.depth + 2;
}

/* --- parts --- */

static inline const ExecUnit *
exec_units_unit(const ExecUnits *units, int32_t unit)
{
    return &g_array_index(units->o.model->units, ExecUnit, unit);
}

static inline bool
exec_units_is_apart(const ExecUnits *units, int32_t unit)
{
    return unit >= 0 && exec_model_weights_apart(units->o.model, exec_units_unit(units, unit));
}

/* --- units.c --- */

/* Where this rank's part is in the whole unit, and how long it is. */
int64_t exec_units_part_at(const ExecUnits *units, int32_t unit, int64_t *n);

/* Where its content is on the device. */
void *exec_units_part(const ExecUnits *units, int32_t unit, ExecContent content);

/* Of the rank's pool; a failure is kept in the rank's comm. */
bool exec_units_take(const ExecUnits *units, int64_t n_bytes, ExecBlock *block);

/* --- units_weights.c --- */

/* The weights of @open's units become whole, in the step's order of openings. */
bool exec_units_open_weights(ExecOpenUnits *open);

G_END_DECLS

#endif /* EXECUTOR_MODEL_UNITS_STATE_H */
