/*
 * profiles/import/messages.h - what the kernels of NCCL in a PyTorch trace measure.
 *
 * Internal to this room.  A message is said by the kernel's own arguments (PyTorch 2.2 and later),
 * by those of the call that launched it, or by the range "nccl:all_reduce" around the launch with
 * its "Input Dims" (record_shapes=True, since 2020).
 */
#pragma once

#include "profiles/import/launches.h"

/*
 * Adds the shortest time of each kind, size and group of messages (a kernel spans the wait for its
 * peers) by import_collective().  Kernels that say too little are skipped, and counted by name and
 * reason in @note: ", 20 skipped: ncclKernel_AllReduce without the size of its message".
 * @root  the trace, for "distributedInfo".
 * Returns: whether any was taken.
 */
bool import_messages(Import *import, JsonDoc *doc, const JsonValue *root, const JsonValue *events,
                     const ImportLaunches *launches, GString *note);
