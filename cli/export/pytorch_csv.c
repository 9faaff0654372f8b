/*
 * PyTorch's pipeline schedule CSV: what torch.distributed.pipelining's
 * _PipelineScheduleRuntime._load_csv reads in format "compute_only", and torchtitan by
 * --parallelism.pipeline_parallel_schedule_csv.  The text itself: schedule/csv.c.
 *
 * The runtime's rules (torch/distributed/pipelining/schedules.py at 00722e648, _validate_schedule):
 * a stage lives on one rank; each micro-batch has one F per stage, and one B, or one I and one W.
 */
#include "cli/export/export.h"

static void
check(const ExportSource *source, GArray *breaches)
{
    const Schedule *schedule = source->schedule;
    int64_t n_inputs = 0, n_weights = 0;

    for (int64_t i = 0; i < schedule_n_ops(schedule); i++) {
        n_inputs += schedule->ops[i].kind == SCHEDULE_OP_BACKWARD_INPUT;
        n_weights += schedule->ops[i].kind == SCHEDULE_OP_BACKWARD_WEIGHT;
    }
    if (schedule->n_slices > 1)
        export_breaks(breaches, "--slices off",
                      "a micro-batch is one tensor: %d token slices cannot be expressed",
                      schedule->n_slices);
    if (schedule->placement == SCHEDULE_PLACEMENT_BIDIR)
        export_breaks(breaches, "--schedule dualpipev --vpp 2",
                      "a stage lives on one rank: %s keeps two copies of each", schedule->name);
    if (n_inputs != n_weights)
        export_breaks(breaches, NULL, "every I has its W: there are " INT " and " INT, n_inputs,
                      n_weights);
    if (source->job != NULL && source->job->plan->micro_batch_sequences != NULL)
        export_breaks(breaches, NULL,
                      "all micro-batches have as many sequences: batch_slices cannot be expressed");
}

static char *
write_csv(const ExportSource *source, size_t *n_bytes, GError **error)
{
    return schedule_to_csv(source->schedule, n_bytes, error);
}

static void
bundle(const ExportSource *source, ExportBundle *bundle)
{
    bundle->config = "schedule.csv";
    bundle->program = "python3 -u \"$TRAIN\" $TRAIN_ARGS";
    bundle->on_end = "Your program is told by TERM, and starts again from the "
                     "last one that it has saved.";
    bundle->yours = "The program is yours: `TRAIN`, whose pipeline loads schedule.csv.";
    bundle->time_is = "your program's.";
    export_bundle_set(bundle, "OMP_NUM_THREADS", "1",
                      "As torchrun has it: else every rank takes all cores of the node.");
    export_bundle_set(bundle, "TRAIN", "train.py",
                      "Your program, whose pipeline loads schedule.csv.");
    export_bundle_set(bundle, "TRAIN_ARGS", "", "Its options.");
}

const ExportTarget export_pytorch_csv = {
    .name = "pytorch-csv",
    .summary = "torch.distributed.pipelining's schedule CSV (compute_only)",
    .takes_schedule = true,
    .framework = PLAN_FRAMEWORK_DEGAS,
    .check = check,
    .write = write_csv,
    .bundle = bundle,
};
