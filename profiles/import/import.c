#include "profiles/import/import.h"

#include "base/file.h"
#include "profiles/fit/calibrate.h"
#include "profiles/import/readers.h"

#include <math.h>
#include <string.h>

G_DEFINE_QUARK(profile_import_error, profile_import_error)

/* --- rows and samples --- */

bool
import_collective(Import *import, const char *op, int64_t n_ranks, int64_t bytes, double seconds,
                  double other_s)
{
    static const struct {
        const char *op;
        ModelComm comm;
    } others[] = {
        {"all_gather", MODEL_COMM_ALL_GATHER},
        {"reduce_scatter", MODEL_COMM_REDUCE_SCATTER},
        {"alltoall", MODEL_COMM_ALL_TO_ALL},
    };
    const bool is_message = strcmp(op, "sendrecv") == 0;

    if (is_message || strcmp(op, "all_reduce") == 0) {
        const ProfileMeasurement row = {
            .op = is_message ? PROFILE_OP_P2P : PROFILE_OP_ALL_REDUCE,
            .n_ranks = is_message ? 2 : n_ranks,
            .bytes = bytes,
            .median_s = seconds,
            .p10_s = fmin(other_s, seconds),
            .p90_s = fmax(other_s, seconds),
        };

        profile_add(import->profile, &row);
        return true;
    }
    for (size_t i = 0; i < G_N_ELEMENTS(others); i++) {
        const ImportSample sample = {
            .comm = others[i].comm, .n_ranks = n_ranks, .bytes = bytes, .seconds = seconds};

        if (strcmp(op, others[i].op) != 0)
            continue;
        g_array_append_val(import->samples, sample);
        return true;
    }
    return false;
}

bool
import_need_arch(Import *import, JsonDoc *doc, const JsonValue *value)
{
    Profile *profile = import->profile;

    if (import->options->arch == NULL) {
        json_fail(doc, value, "whose layers were timed is not said here; give --model");
        return false;
    }
    if (profile->measured_arch != NULL && !profile_matches(profile, import->options->arch)) {
        json_fail(doc, value, "the profile has rows of another model's layers already");
        return false;
    }
    if (profile->measured_arch == NULL)
        profile->measured_arch = model_arch_copy(import->options->arch);
    profile->measured_dtype = import->options->dtype;
    return true;
}

/* --- samples --- */

/* The op that a kernel executed. */
static ModelOp
op_of(const ImportSample *sample)
{
    ModelOp op = {.name = "imported",
                  .kind = MODEL_OP_GEMM,
                  .count = sample->count,
                  .m = sample->m,
                  .n = sample->n,
                  .k = sample->k,
                  .forward_bytes = sample->bytes,
                  .backward_bytes = sample->bytes,
                  .memory_kind = sample->memory_kind,
                  .n_kernels_forward = 1};

    if (sample->kind == IMPORT_STREAM) {
        op.kind = MODEL_OP_MEMORY;
        op.n_kernels_forward = 0;
    } else if (sample->kind == IMPORT_ATTENTION) {
        op.kind = MODEL_OP_ATTENTION;
        op.forward_flops =
            4.0 * (double)sample->count * (double)sample->m * (double)sample->n * (double)sample->k;
        op.causal_fraction = sample->causal_fraction;
        op.n_kernels_backward = 3; /* as model_ops() has them */
    }
    return op;
}

static double
predict(const Profile *profile, const ImportSample *sample)
{
    const ModelDevice *device = model_cluster_device(profile->cluster, 0);
    const ModelOp op = op_of(sample);

    if (sample->kind == IMPORT_COLLECTIVE)
        return profile_cost_collective_s(profile, sample->comm, sample->bytes,
                                         &(ProfileGroup){.stride = 1, .n = sample->n_ranks});
    if (sample->kind == IMPORT_BATCH) /* of one shape: not experts' */
        return profile_cost_batched_product_s(profile, device, &op, sample->dtype);
    return profile_cost_op(profile, device, &op,
                           sample->backward && sample->kind == IMPORT_ATTENTION
                               ? PROFILE_PASS_BACKWARD
                               : PROFILE_PASS_FORWARD,
                           sample->dtype, NULL)
        .part_s[PROFILE_PART_COMPUTE];
}

/* A ProfileResidualFunc. */
static void
residuals_of_samples(const ProfilePoint *points, size_t n, double *residuals, void *user_data)
{
    const Import *import = user_data;
    const size_t n_samples = import->samples->len;
    Profile profile = *import->profile; /* borrows: only its parameters differ */

    for (size_t p = 0; p < n; p++) {
        profile.parameters = profile_point_parameters(&points[p], &import->profile->parameters);
        for (size_t i = 0; i < n_samples; i++) {
            const ImportSample *sample = &g_array_index(import->samples, ImportSample, i);

            residuals[p * n_samples + i] =
                (predict(&profile, sample) - sample->seconds) / sample->seconds;
        }
    }
}

/* Groups larger than the cluster are not in it. */
static void
drop_large_groups(Import *import)
{
    const int64_t n_devices = model_cluster_n_devices(import->profile->cluster);

    for (guint i = import->samples->len; i > 0; i--) {
        const ImportSample *sample = &g_array_index(import->samples, ImportSample, i - 1);

        if (sample->kind == IMPORT_COLLECTIVE && sample->n_ranks > n_devices)
            g_array_remove_index(import->samples, i - 1);
    }
}

/* Fits the parameters of the profile that the samples say something about. */
static void
fit_samples(Import *import)
{
    Profile *profile = import->profile;
    ProfileCalibration calibration;
    ProfileCalibrated fitted;
    ProfileParameters parameters;

    g_return_if_fail(profile != NULL);

    drop_large_groups(import);
    if (import->samples->len == 0)
        return;
    calibration = (ProfileCalibration){.n_rows = import->samples->len,
                                       .fit = PROFILE_FIT_TIME,
                                       .residuals = residuals_of_samples,
                                       .user_data = import};
    fitted = profile_calibrate(&calibration);
    parameters = profile_point_parameters(&fitted.point, &profile->parameters);
    for (int i = 0; i < PROFILE_PARAMETERS_N; i++) {
        if (!fitted.fitted[i])
            continue;
        g_free(profile->parameter_sources[i]);
        profile->parameter_sources[i] =
            g_strdup_printf("fitted to %u times of %s", import->samples->len, import->tool);
    }
    profile->parameters = parameters;
}

/* --- which file it is --- */

typedef void (*JsonReader)(Import *import, JsonDoc *doc, const JsonValue *root);

/* "4_2048_0" */
static bool
is_terapipe_key(const char *key)
{
    int n_parts = 0;

    for (const char *p = key; *p != 0; n_parts++) {
        if (!g_ascii_isdigit(*p))
            return false;
        while (g_ascii_isdigit(*p))
            p++;
        if (*p == '_' && p[1] != 0)
            p++;
        else if (*p != 0)
            return false;
    }
    return n_parts == 3;
}

static bool
is_number(const char *key)
{
    return *key != 0 && key[strspn(key, "0123456789")] == 0;
}

static JsonReader
reader_of(JsonDoc *doc, const JsonValue *root, const char **tool)
{
    static const struct {
        const char *first, *second, *tool;
        JsonReader reader;
    } kinds[] = {
        {"traceEvents", "traceEvents", "PyTorch's profiler", import_kineto},
        {"results", "config", "nccl-tests", import_nccl_json},
        {"tensor_sizes", "mean", "TeraPipe", import_terapipe_messages},
        {"accelerator", "networks", "SimuMax", import_simumax},
        {"matrix", "networks", "Calculon", import_calculon},
    };
    const JsonValue *first = json_first(root);

    for (size_t i = 0; i < G_N_ELEMENTS(kinds); i++) {
        *tool = kinds[i].tool;
        if (json_has(doc, root, kinds[i].first) && json_has(doc, root, kinds[i].second))
            return kinds[i].reader;
    }
    if (first != NULL && is_terapipe_key(json_key(first))) {
        *tool = "TeraPipe";
        return import_terapipe;
    }
    if (first != NULL && is_number(json_key(first)) && json_is_object(first)) {
        *tool = "Sailor";
        return import_sailor;
    }
    json_fail(doc, root,
              "none of nccl-tests, PyTorch profiler, TeraPipe, Sailor, SimuMax, Calculon");
    return NULL;
}

static bool
is_list_of_events(JsonDoc *doc, const JsonValue *root)
{
    const JsonValue *first = json_is_array(root) ? json_first(root) : NULL;

    return first != NULL && json_is_object(first) && json_has(doc, first, "ph");
}

static bool
read_json(Import *import, const char *path, const char *text, size_t n_bytes, GError **error)
{
    g_autoptr(JsonDoc) doc = json_doc_parse(path, text, n_bytes, error);
    const JsonValue *root;
    JsonReader reader = NULL;

    if (doc == NULL)
        return false;
    root = json_doc_root(doc, NULL, 0);
    if (is_list_of_events(doc, root))
        json_fail(
            doc, root,
            "expected an object; a list of events is a trace of PyTorch without kineto, which "
            "has no kernels");
    else if (!json_is_object(root))
        json_fail(doc, root, "expected an object");
    else
        reader = reader_of(doc, root, &import->tool);
    if (reader != NULL && import->profile == NULL && reader != import_simumax &&
        reader != import_calculon) {
        g_set_error(error, PROFILE_IMPORT_ERROR, PROFILE_IMPORT_ERROR_OPTION,
                    "%s: measurements of %s belong to a cluster; give --cluster", path,
                    import->tool);
        return false;
    }
    if (reader != NULL)
        reader(import, doc, root);
    return json_doc_finish(doc, error);
}

static bool
read_text(Import *import, const char *path, const char *text, GError **error)
{
    import->tool = "nccl-tests";
    if (import->profile == NULL) {
        g_set_error(error, PROFILE_IMPORT_ERROR, PROFILE_IMPORT_ERROR_OPTION,
                    "%s: measurements belong to a cluster; give --cluster", path);
        return false;
    }
    return import_nccl_text(import, path, text, error);
}

Profile *
profile_import(const Profile *profile, const char *path, const ProfileImportOptions *options,
               char **summary, GError **error)
{
    g_autofree char *text = NULL;
    g_autoptr(GArray) samples = g_array_new(FALSE, TRUE, sizeof(ImportSample));
    Import import = {.options = options, .samples = samples};
    const guint n_before = profile == NULL ? 0 : profile->measurements->len;
    const char *first;
    size_t n_bytes;
    bool done;

    g_return_val_if_fail(path != NULL && options != NULL && summary != NULL, NULL);

    if (!file_read(path, &text, &n_bytes, error))
        return NULL;
    import.profile = profile == NULL ? NULL : profile_copy(profile);
    first = text + strspn(text, " \t\r\n");
    done = *first == '{' || *first == '[' ? read_json(&import, path, text, n_bytes, error)
                                          : read_text(&import, path, text, error);
    if (!done) {
        g_free(import.note);
        profile_free(import.profile);
        return NULL;
    }
    fit_samples(&import);
    if (import.profile->measurements->len > n_before && import.profile->measured_on == NULL)
        import.profile->measured_on = g_strdup_printf("imported from %s", import.tool);
    *summary =
        g_strdup_printf("%s: %u rows, %u times fitted%s%s", import.tool,
                        import.profile->measurements->len - n_before, samples->len,
                        import.note == NULL ? "" : "; ", import.note == NULL ? "" : import.note);
    g_free(import.note);
    return import.profile;
}
