/*
 * profiles/workload/physical.h - how long an iteration takes at the least on a machine, whatever the
 * program and the split.
 *
 * Knows no cost model and no space of plans, only the model, the batch and the data sheets:
 *
 *   FLOPs    model FLOPs (three times the forward's, nothing for recompute), of causal attention only the
 *            scores that are needed, over the sum of the devices' peaks in the format of the products
 *   memory   each weight is read and written once, however they are split, but for those that stay in the
 *            devices' caches and registers: over the sum of the memories' bandwidths
 *   network  0 where the weights that a token passes fit one device.  Else every token either leaves its
 *            device and its gradient comes back, a number each at the least, or some device receives the
 *            weights that it has no room for: the less of both, over all links of all devices at once
 *
 * The bound is the longest of the three, as if they overlapped.  Each is a sum over the machine divided by
 * the sum of the rates, so no distribution of the work over devices is faster.  Numbers have the width of
 * stored weights, half a byte where the format is quantised; the optimizer's state counts as nothing, since
 * there are optimizers without any.  Weights in a host's memory come over links no faster than the devices'.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "models/arch.h"
#include "models/cluster.h"

/* Returns: the seconds of an iteration over @n_sequences of @seq_len tokens on the first @n_devices >= 1 of
 * @cluster, with products in @dtype.  Cost: O(layers + groups of nodes). */
double workload_physical_bound_s(const ModelArch *arch, const ModelCluster *cluster,
                                 int64_t n_devices, int64_t n_sequences, int64_t seq_len,
                                 Dtype dtype);
