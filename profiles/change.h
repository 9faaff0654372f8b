/*
 * profiles/change.h - what-ifs: one number of a cluster by its everyday name, as --set and the
 * files of one's own clusters (own.h) give it: "network=400Gbps", "memory=141GB".
 *
 *   memory            of each device, bytes
 *   memory-bandwidth  of each device, bytes/s
 *   flops             peak rate of dense products of each device in bf16 (where it has none: fp16,
 *                     fp32); its rates in other formats change in proportion
 *   power             of each device, W
 *   price             of each device for an hour
 *   network           rate of each device over the outermost level, one direction; what the devices
 *                     of a node share changes in proportion
 *   latency           of a message over the outermost level
 *   LEVEL             as network, of the level of that name, such as nvswitch
 *
 * All devices and nodes of the cluster change.  Fractions (how much of a peak software reaches) stay.
 * What a profile measured contradicts such a change, so that where rows were measured that the
 * number would not change it is refused.
 *
 * Thread-safety: values; no globals.
 */
#pragma once

#include "profiles/profile.h"

/* The names above, NULL-terminated, without those of levels. */
extern const char *const profile_change_names[];

/*
 * Gives number @name of @profile the value @text, read by base/units.h; only power and price have
 * no unit.
 * Returns false on UNITS_ERROR_INVALID: no such name (the nearest is suggested), no such value, or
 * one that is measured; then @profile is as it was.
 */
bool profile_change(Profile *profile, const char *name, const char *text, GError **error);
