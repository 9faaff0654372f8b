/*
 * PyTorch's pipeline schedule CSV: what torch.distributed.pipelining's
 * _PipelineScheduleRuntime._load_csv reads in format "compute_only", and torchtitan by
 * --parallelism.pipeline_parallel_schedule_csv.  The text itself: schedule/csv.c.
 *
 * The runtime's rules (torch/distributed/pipelining/schedules.py at 00722e648,
 * _validate_schedule): a stage lives on one rank; each micro-batch has one F per stage, and one B,
 * or one I and one W.
 */
#include "cli/export/export.h"
#include "cli/request/output.h"

static void
check(const ExportSource *source, ExportViolations *violations)
{
    const Schedule *schedule = source->schedule;
    int64_t n_inputs = 0, n_weights = 0;

    for (int64_t i = 0; i < schedule_n_ops(schedule); i++) {
        n_inputs += schedule->ops[i].kind == SCHEDULE_OP_BACKWARD_INPUT;
        n_weights += schedule->ops[i].kind == SCHEDULE_OP_BACKWARD_WEIGHT;
    }
    if (schedule->n_slices > 1)
        export_breaks(violations, "--slices off",
                      "a micro-batch is one tensor: %d token slices cannot be expressed",
                      schedule->n_slices);
    if (schedule->placement == SCHEDULE_PLACEMENT_BIDIR)
        export_breaks(violations, "--schedule dualpipev --vpp 2",
                      "a stage lives on one rank: %s keeps two copies of each", schedule->name);
    if (n_inputs != n_weights)
        export_breaks(violations, NULL, "every I has its W: there are " INT " and " INT, n_inputs,
                      n_weights);
    if (source->job != NULL && source->job->plan->micro_batch_sequences != NULL)
        export_breaks(violations, NULL,
                      "all micro-batches have as many sequences: batch_slices cannot be expressed");
}

static char *
write_csv(const ExportSource *source, size_t *n_bytes, GError **error)
{
    return schedule_to_csv(source->schedule, n_bytes, error);
}

const ExportTarget export_pytorch_csv = {
    .name = "pytorch-csv",
    .summary = "torch.distributed.pipelining's schedule CSV (compute_only)",
    .takes_schedule = true,
    .check = check,
    .write = write_csv,
};
