/* degas import: other tools' measurements as a profile. */
#include "cli/request/command.h"
#include "cli/request/output.h"
#include "cli/request/subject.h"
#include "profiles/import/import.h"

static const char *const ops[] = {"all_reduce", "all_gather", "reduce_scatter",
                                  "alltoall",   "sendrecv",   NULL};

static const OptionInfo options_table[] = {
    {"output", "FILE", "write the degas-profile to FILE (required; -: stdout)"},
    {"cluster", "CLUSTER",
     "name the cluster that was measured; not needed for system files, which describe their own"},
    {"model", "MODEL", "name the model whose layers were timed (TeraPipe, Sailor)"},
    {"seq-len", "N", "give the tokens of a sequence (Sailor)"},
    {"tp", "N", "give the tensor-parallel degree of the timed layers (TeraPipe); default: 1"},
    {"dtype", "T", "give the number format of the timed layers; default: fp16",
     .words = dtype_names},
    {"ranks", "N", "say how many ranks nccl-tests had, if the file does not"},
    {"op", "NAME", "say which collective nccl-tests timed, if the file does not: all_reduce, ...",
     .words = ops},
    {"name", "NAME", "give the profile that is written this name"},
    {NULL, NULL, NULL},
};

static bool
read_options(Options *options, ProfileImportOptions *import, ModelArch **arch, GError **error)
{
    const char *model = options_string(options, "model", NULL);
    const int op = options_choice(options, "op", -1);

    *import = (ProfileImportOptions){
        .seq_len = options_int64(options, "seq-len", 1, MODEL_MAX_SEQ_LEN, 0),
        .tp = options_int64(options, "tp", 1, MODEL_MAX_HEADS, 0),
        .n_ranks = options_int64(options, "ranks", 2, MODEL_CLUSTER_MAX_DEVICES, 0),
        .op = op < 0 ? NULL : ops[op],
        .dtype = (Dtype)options_choice(options, "dtype", DTYPE_FP16),
    };
    if (!options_has(options, "output"))
        options_fail(options, "output", "is missing; it is the profile to write");
    if (!options_finish(options, error))
        return false;
    if (model != NULL) {
        *arch = request_load_model(model, error);
        import->arch = *arch;
    }
    return model == NULL || *arch != NULL;
}

static int
run(Options *options, GError **error)
{
    const char *cluster = options_string(options, "cluster", NULL);
    const char *path = options_string(options, "output", NULL);
    const char *name = options_string(options, "name", NULL);
    g_autoptr(ModelArch) arch = NULL;
    g_autoptr(Profile) profile = NULL;
    ProfileImportOptions import;

    if (!read_options(options, &import, &arch, error) || !output_folder_check(path, error))
        return -1;
    if (cluster != NULL) {
        profile = request_load_cluster(cluster, error);
        if (profile == NULL)
            return -1;
    }
    for (size_t i = 0; i < options_n_arguments(options); i++) {
        g_autofree char *summary = NULL;
        Profile *next =
            profile_import(profile, options_argument(options, i), &import, &summary, error);

        if (next == NULL)
            return -1;
        profile_free(profile);
        profile = next;
        output_note("%s: %s", options_argument(options, i), summary);
    }
    g_assert(profile != NULL); /* main() wants one argument at least */
    if (name != NULL) {
        g_free(profile->name);
        profile->name = g_strdup(name);
    }
    JsonWriter *writer = json_writer_new();
    profile_write(writer, NULL, profile);
    return output_json(writer, path, error) ? 0 : -1;
}

const Command cmd_import = {
    .name = "import",
    .usage = "FILE... [--cluster CLUSTER] -o FILE",
    .summary = "turn other tools' measurements into a profile",
    .details =
        "  degas import all_reduce.txt --cluster dgx-h100 -o ours.json\n"
        "  degas import trace.json --cluster dgx-a100-80g -o ours.json\n"
        "  degas import a100_80g.json -o cluster.json\n"
        "\n"
        "Reads the output of nccl-tests (text, JSON), traces of the PyTorch profiler, SQLite\n"
        "exports of nsys, layer times of TeraPipe and Sailor, and system files of SimuMax and\n"
        "Calculon. It tells them apart by their content; any may be compressed by gzip.\n"
        "\n"
        "From a PyTorch trace it takes NCCL kernels and, where record_shapes was on, kernels of\n"
        "matrix products, attention, large element-wise operators and the loss, to which it fits\n"
        "parameters of the cost model. Calls of other operators, and calls during which a\n"
        "collective ran, are skipped and counted; docs/formats.md lists the operators.\n",
    .options = {options_table},
    .min_arguments = 1,
    .max_arguments = 64,
    .run = run,
};
