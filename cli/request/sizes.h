/*
 * cli/request/sizes.h - Sizes: one job on several clusters, numbers of devices, batches and sequence
 * lengths, each planned, and which of them makes a deadline and a budget for the least.
 *
 * CLUSTER may be several with commas; --gpus, --global-batch and --seq-len may be lists and ranges.
 * With --within or --budget and no --gpus the numbers of devices grow as needed: on each cluster they
 * double from one node on, until the deadline is made (or, without one, the budget is spent), more
 * devices no longer help, or there are SIZES_MAX_DEVICES; then three sizes between the last two are
 * planned.  Sizes that could not make the deadline at the devices' peak rate are left out.
 */
#pragma once

#include "cli/request/searches.h"
#include "cli/request/sweep.h"

#define SIZES_MAX_DEVICES 131072

/* --tokens, --within, --budget, and how often devices fail. */
extern const OptionInfo sizes_options[];

typedef struct {
    Sweep *sweep;        /* (owned) a point of each size that is done, cluster by cluster */
    GPtrArray *searches; /* (owned) of Search; SweepPoint.search says which one a point is of */
} Sizes;

void sizes_clear(Sizes *sizes);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Sizes, sizes_clear)

/* Whether the command line asks for more than one plan, or for a deadline or a budget. */
bool sizes_are_asked(Options *options);

/*
 * Plans all sizes.
 * @sizes        (out) cleared by the caller, whatever is returned.
 * @interrupted  (out, owned by the caller) CMD_ERROR_INTERRUPTED: only the points that are done are
 *               there.
 * Returns false on CMD_ERROR_USAGE, and what request_load() fails with.
 */
bool sizes_run(Sizes *sizes, Options *options, GError **interrupted, GError **error);
