/*
 * cli/request/subject.h - what a request is about: its model and its cluster, loaded, and changed as
 * flags say.
 *
 * Errors: what is wrong with a flag is CMD_ERROR_USAGE, unless it is recorded in the options.
 */
#pragma once

#include "cli/request/request.h"

/* --- the model --- */

/* As model_arch_load(), what was approximated told on stderr.  An unknown built-in name is
 * CMD_ERROR_USAGE. */
ModelArch *request_load_model(const char *name_or_path, GError **error);

/* Replaces the model by one with other --layers, --vocab and the like, checked as a file would be. */
bool request_change_model(Request *request, Options *options, GError **error);

/* --- the cluster --- */

/* As profile_load().  An unknown built-in name is CMD_ERROR_USAGE. */
Profile *request_load_cluster(const char *name_or_path, GError **error);

/* Gives @request a cluster of @n_devices: model_cluster_resized(). */
void request_resize(Request *request, int64_t n_devices);

/* Applies --set to @profile, whose name then says so; what is wrong is recorded in @options.
 * Returns: whether it gives a price. */
bool request_set(Profile *profile, Options *options);

/* Changes the cluster as --set, --price, --currency, --node-devices and --gpus say. */
bool request_change_cluster(Request *request, Options *options, GError **error);

/* Degrees that are all given say how many devices there are, unless --gpus does.  CMD_ERROR_LIMIT:
 * more than a cluster may have. */
bool request_fit_cluster(Request *request, Options *options, GError **error);
