/*
 * executor/measure/kinds.h - how a layer's time divides among the kinds of its ops.
 *
 * A backend that hands every slot on to another one and stamps before and after: so the ops are
 * those of the executor's layer code, in its order, with its operands.  The stamps cost time
 * themselves, therefore whole layers are timed without this.
 *
 * Private to executor/measure*.c.  Thread-safety: belongs to one rank.
 */
#ifndef EXECUTOR_MEASURE_KINDS_H
#define EXECUTOR_MEASURE_KINDS_H

#include "executor/device/backend.h"
#include "executor/transport/samples.h"

G_BEGIN_DECLS

typedef struct ExecKinds ExecKinds;

/* @inner  (borrowed) must outlive this. */
ExecKinds *exec_kinds_new(ExecBackend *inner);
void exec_kinds_free(ExecKinds *kinds);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecKinds, exec_kinds_free)

/* (borrowed) to be used in place of the inner one; not to be closed. */
ExecBackend *exec_kinds_backend(ExecKinds *kinds);

/* What is called from now on belongs to the op of this row (its op and times are ignored). */
bool exec_kinds_begin(ExecKinds *kinds, const ProfileMeasurement *key, GError **error);

/* What was called since exec_kinds_begin() was disturbed (samples.h). */
void exec_kinds_set_disturbed(ExecKinds *kinds);

/* Waits for the work; adds @share of every op's time by kind to @samples (nullable: forgets it). */
bool exec_kinds_collect(ExecKinds *kinds, double share, ExecSamples *samples, GError **error);

G_END_DECLS

#endif /* EXECUTOR_MEASURE_KINDS_H */
