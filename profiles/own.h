/*
 * profiles/own.h - one's own cluster in a few lines: what it has, with units, and what it is like.
 *
 * {"format":"degas-cluster","version":1,"name"?,"device","like"?,"nodes"?,"node_devices"?,"memory"?,
 *  "memory_bandwidth"?,"flops"?,"power"?,"network"?,"latency"?,"node_network"?,"price"?,"currency"?,
 *  "price_source"?,"source"?}; in YAML, too (base/json_yaml.h).
 *
 * "device" is a kind of device of a built-in cluster, which gives all numbers and what software
 * reaches of them; the other keys replace numbers, as --set does (change.h).  A device of another
 * name is "like" one of these, which then says what software reaches; its flops, memory and
 * memory_bandwidth have to be given.
 *
 * Thread-safety: values; no globals.
 */
#pragma once

#include "profiles/profile.h"

/* Reads such an object.  Returns: (owned) never NULL; what is wrong is recorded in @doc. */
Profile *profile_read_own(JsonDoc *doc, const JsonValue *object);

/* Returns: (owned, nullable) the first built-in cluster, by name, that has devices of one kind, of
 * that @device; NULL: there is none. */
Profile *profile_of_device(const char *device);
