/*
 * cli/export/bundle.h - a folder with everything that runs a plan: what the framework reads, the
 * environment, a Slurm job, a Kubernetes job, and the prediction to compare with.
 *
 *   plan.json    the plan itself
 *   CONFIG       what the target's exporter writes: megatron.args, ds_config.json, plan.py, ...
 *   schedule.csv where the framework takes one
 *   env.sh       variables, each with its reason; what is set already stays
 *   rank.sh      what every rank runs, whoever starts it
 *   job.sbatch   srun with a task for each device; queued again when its end is announced
 *   job.yaml     a PyTorchJob or MPIJob
 *   README.md    the prediction, and how to compare what is measured with it
 *
 * Files hold no path, date or host.  Of the texts that come from the plan's file only names are
 * free, and of these the scripts have nothing but letters, digits and hyphens.
 */
#pragma once

#include "cli/export/export.h"

typedef struct {
    int64_t gpus_per_node; /* 0: as the plan's cluster has them */
    int64_t memory_limit;  /* of a device, for the prediction; 0: the device's */
} ExportBundleOptions;

/*
 * Writes the bundle of a plan whose rules have been checked.
 *
 * @dir  does not exist or is empty; its parent exists.  It is complete or as it was: everything is
 *       written into a folder beside it, which is then renamed.
 * Errors: G_FILE_ERROR; CMD_ERROR_NO where the plan's devices are not whole nodes that are alike.
 */
bool export_bundle_write(const ExportTarget *target, const ExportSource *source,
                         const ExportBundleOptions *options, const char *dir, GError **error);
