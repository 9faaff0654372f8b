/*
 * The plan for degas run itself, whose ranks srun or mpirun start: the file is the plan.
 */
#include "cli/export/export.h"
#include "executor/run/run.h"

static void
check(const ExportSource *source, GArray *breaches)
{
    g_autoptr(GError) error = NULL;

    /* What this machine's memory cannot hold, another's may. */
    if (!exec_plan_supported(source->job->arch, source->job->plan,
                             export_has_gpus(source->job) ? "cuda" : "cpu", &error) &&
        !g_error_matches(error, EXEC_ERROR, EXEC_ERROR_MEMORY))
        export_breaks(breaches, NULL, "%s", error->message);
}

static char *
write_plan(const ExportSource *source, size_t *n_bytes, GError **error)
{
    g_autoptr(JsonWriter) writer = job_write(source->job);

    return json_writer_steal(writer, n_bytes);
}

static void
bundle(const ExportSource *source, ExportBundle *bundle)
{
    const bool has_gpus = export_has_gpus(source->job);

    bundle->prepare = "for saved in \"$CHECKPOINT\"/step-*; do\n"
                      "    if [ -e \"$saved\" ]; then RESUME=--resume; fi\n"
                      "done\n";
    bundle->program = "\"$DEGAS\" run plan.json --device \"$DEVICE\" --transport \"$TRANSPORT\" "
                      "--steps \"$STEPS\" \\\n"
                      "    --checkpoint \"$CHECKPOINT\" --checkpoint-every \"$EVERY\" ${RESUME-} "
                      "$RUN_ARGS";
    bundle->on_end = "The run ends after its step with a checkpoint, and status 9.";
    bundle->yours = "Training text is yours: `RUN_ARGS=\"--data FILE\"`; without it the run trains "
                    "on synthetic data.";
    bundle->is_degas = true;
    export_bundle_set(bundle, "DEGAS", "degas", "The program; all nodes have it.");
    export_bundle_set(bundle, "DEVICE", has_gpus ? "cuda" : "cpu",
                      "What computes: the devices of the plan's cluster.");
    export_bundle_set(bundle, "TRANSPORT", has_gpus ? "nccl" : "tcp",
                      "What carries tensors; neither nccl nor tcp needs MPI under srun.");
    export_bundle_set(bundle, "STEPS", "100", "The run ends after so many steps.");
    export_bundle_set(bundle, "CHECKPOINT", "checkpoint",
                      "A folder that all nodes see; the run goes on from what is in it.");
    export_bundle_set(bundle, "EVERY", "50",
                      "Steps between checkpoints: what is lost when a node dies.");
    export_bundle_set(bundle, "RUN_ARGS", "--trace measured.json",
                      "More options of degas run; the trace is for degas compare.");
}

const ExportTarget export_degas = {
    .name = "degas",
    .summary = "the plan itself, for degas run; of use with --bundle",
    .framework = PLAN_FRAMEWORK_DEGAS,
    .check = check,
    .write = write_plan,
    .bundle = bundle,
};
