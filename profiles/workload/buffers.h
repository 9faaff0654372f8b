/*
 * profiles/workload/buffers.h - what of a device is there for the whole step beside parameters' state:
 * the driver's part, libraries, pools, and buffers of messages, gathered layers and kept results.
 *
 * Functions that need no Workload, with which the planner bounds memory, too.  Rules and sources:
 * docs/cost-model.md 6.3, 6.4.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "profiles/parameter.h"
#include "schedule/plan.h"

/* Bytes of a device that the driver's context and libraries keep (cost-model.md 6.3). */
int64_t workload_library_bytes(const ProfileParameters *parameters,
                               const PlanConventions *conventions);

/*
 * The usable memory of a device of @device_bytes: what a rank's peak may reach.  The driver and the
 * communicators take their part, and the allocator loses a share of all that comes and goes beyond
 * @static_bytes (cost-model.md 6.4).  At least 1; it grows with @static_bytes, but by less.
 */
int64_t workload_usable_of(const ProfileParameters *parameters, const PlanDegrees *degrees,
                           int64_t device_bytes, int64_t static_bytes);
