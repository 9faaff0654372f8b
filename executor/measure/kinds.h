/*
 * executor/measure/kinds.h - how a layer's time divides among the kinds of its ops.
 *
 * This is a backend that calls the slots of another backend, and stamps before and after each call.
 * So what is timed are the ops of the executor's own layer code, in its order and with its
 * operands, and no second list of a layer's ops exists.  The stamps take time themselves, so whole
 * layers are timed without this.
 *
 * Private to executor/measure/ and its tests.  Thread-safety: none; it belongs to one rank.
 */
#pragma once

#include "executor/device/backend.h"
#include "executor/transport/samples.h"

typedef struct ExecKinds ExecKinds;

/* Returns: (owned) a backend around @inner (borrowed), which must outlive it. */
ExecKinds *exec_kinds_new(ExecBackend *inner);
void exec_kinds_free(ExecKinds *kinds);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecKinds, exec_kinds_free)

/* Returns: (borrowed) the backend to use in place of the inner one; it is not to be closed. */
ExecBackend *exec_kinds_backend(ExecKinds *kinds);

/* Says that @share of the time of the calls from now on belongs to the row of @key, whose op and times
 * are ignored. */
bool exec_kinds_begin(ExecKinds *kinds, const ProfileMeasurement *key, double share,
                      GError **error);

/* Says that the calls since exec_kinds_begin() were disturbed (executor/transport/samples.h). */
void exec_kinds_set_disturbed(ExecKinds *kinds);

/* Waits for the work, and adds every row's times by kind to @samples (nullable: then the times are
 * forgotten). */
bool exec_kinds_collect(ExecKinds *kinds, ExecSamples *samples, GError **error);
