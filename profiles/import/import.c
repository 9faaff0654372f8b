#include "profiles/import/import.h"

#include "base/file.h"
#include "base/units.h"
#include "profiles/fit/calibrate.h"
#include "profiles/import/readers.h"

#include <math.h>
#include <string.h>
#include <zlib.h>

G_DEFINE_QUARK(profile_import_error, profile_import_error)

/* --- rows and samples --- */

static void G_GNUC_PRINTF(2, 3) refuse(Import *import, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    if (import->refusal == NULL)
        import->refusal =
            g_error_new_valist(PROFILE_IMPORT_ERROR, PROFILE_IMPORT_ERROR_OPTION, format, args);
    va_end(args);
}

static int64_t
node_devices(const Import *import)
{
    int64_t first, n;

    model_cluster_node(import->profile->cluster, 0, &first, &n);
    return n;
}

ProfileGroup
import_group_on_hosts(Import *import, int64_t n_ranks, GHashTable *hosts)
{
    const int64_t per_node = node_devices(import);
    const guint n_hosts = hosts == NULL ? 0 : g_hash_table_size(hosts);
    ProfileGroup group = {.stride = 1, .n = n_ranks};
    int64_t most = 0, least = MODEL_CLUSTER_MAX_DEVICES;
    GHashTableIter iter;
    gpointer value;

    if (n_hosts == 0)
        return group;
    g_hash_table_iter_init(&iter, hosts);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        most = MAX(most, GPOINTER_TO_INT(value));
        least = MIN(least, GPOINTER_TO_INT(value));
    }
    if (most > per_node)
        refuse(import,
               INT " ranks are on one host, and a node of cluster %s has " INT
                   " devices; give the --cluster that was measured",
               most, import->profile->name, per_node);
    else if (n_hosts > 1 && most > 0 && most < per_node && (least < most || per_node % most != 0))
        refuse(import,
               "the hosts have " INT " to " INT " ranks, and a node of cluster %s has " INT
               " devices: no group of a plan lies so",
               least, most, import->profile->name, per_node);
    else if (n_hosts > 1 && most > 0)
        group.stride = per_node / most;
    return group;
}

/* Whether @group is in one node; if not, the cluster must have links between nodes. */
static bool
is_in_node(Import *import, const ProfileGroup *group)
{
    const ModelCluster *cluster = import->profile->cluster;
    const int64_t last = profile_group_last(group), per_node = node_devices(import);

    if (last < per_node)
        return true;
    if (last >= MODEL_CLUSTER_MAX_DEVICES || cluster->levels->len < 2)
        refuse(import,
               INT " ranks do not fit into a node of cluster %s, which has " INT
                   " devices and no links to others; give a --cluster that has",
               group->n, import->profile->name, per_node);
    return false;
}

bool
import_collective(Import *import, const char *op, const ProfileGroup *group, int64_t bytes,
                  double seconds, double other_s)
{
    static const struct {
        const char *op;
        ModelComm comm;
    } kinds[] = {
        {"sendrecv", MODEL_COMM_NONE},         {"all_reduce", MODEL_COMM_ALL_REDUCE},
        {"all_gather", MODEL_COMM_ALL_GATHER}, {"reduce_scatter", MODEL_COMM_REDUCE_SCATTER},
        {"alltoall", MODEL_COMM_ALL_TO_ALL},
    };
    ModelComm comm = MODEL_COMM_NONE;
    bool is_known = false;

    for (size_t i = 0; i < G_N_ELEMENTS(kinds) && !is_known; i++) {
        is_known = strcmp(op, kinds[i].op) == 0;
        comm = kinds[i].comm;
    }
    const bool is_message = comm == MODEL_COMM_NONE, is_inside = is_in_node(import, group);
    if (!is_known || import->refusal != NULL)
        return false;
    if (is_inside && (is_message || comm == MODEL_COMM_ALL_REDUCE)) {
        const ProfileMeasurement row = {
            .op = is_message ? PROFILE_OP_P2P : PROFILE_OP_ALL_REDUCE,
            .n_ranks = is_message ? 2 : group->n,
            .bytes = bytes,
            .median_s = seconds,
            .p10_s = fmin(other_s, seconds),
            .p90_s = fmax(other_s, seconds),
        };

        profile_add(import->profile, &row);
    } else {
        const ImportSample sample = {.kind = is_message ? IMPORT_MESSAGE : IMPORT_COLLECTIVE,
                                     .comm = comm,
                                     .group = *group,
                                     .bytes = bytes,
                                     .seconds = seconds};

        g_array_append_val(import->samples, sample);
    }
    return true;
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
        op.causal_fraction = op.needed_fraction = sample->causal_fraction;
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
        return profile_cost_collective_s(profile, sample->comm, sample->bytes, &sample->group);
    if (sample->kind == IMPORT_MESSAGE) {
        const ProfileGroup alone = {.first = sample->group.first, .stride = 1, .n = 1};
        int64_t first, n, to = sample->group.first;

        model_cluster_node(profile->cluster, to, &first, &n);
        while (to < first + n)
            to += sample->group.stride;
        return profile_cost_p2p_s(profile, sample->bytes, sample->group.first, to, &alone);
    }
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
    g_autoptr(GArray) no_rows = g_array_new(FALSE, FALSE, sizeof(ProfileMeasurement));
    Profile profile = *import->profile; /* borrows all but what follows */

    profile.measurements = no_rows; /* whose times would stand for modelled ones */
    profile.cluster = import->cluster;

    for (size_t p = 0; p < n; p++) {
        profile.parameters = profile_point_parameters(&points[p], &import->profile->parameters);
        for (size_t i = 0; i < n_samples; i++) {
            const ImportSample *sample = &g_array_index(import->samples, ImportSample, i);

            residuals[p * n_samples + i] =
                (predict(&profile, sample) - sample->seconds) / sample->seconds;
        }
    }
}

/* Fits the parameters of the profile that the samples say something about. */
static void
fit_samples(Import *import)
{
    Profile *profile = import->profile;

    g_return_if_fail(profile != NULL);

    if (import->samples->len == 0)
        return;
    int64_t n_devices = model_cluster_n_devices(profile->cluster);
    for (guint i = 0; i < import->samples->len; i++) {
        const ImportSample *sample = &g_array_index(import->samples, ImportSample, i);

        if (sample->group.n > 0)
            n_devices = MAX(n_devices, profile_group_last(&sample->group) + 1);
    }
    import->cluster = model_cluster_resized(profile->cluster, n_devices);
    ProfileCalibration calibration = {.n_rows = import->samples->len,
                                      .fit = PROFILE_FIT_TIME,
                                      .residuals = residuals_of_samples,
                                      .user_data = import};
    ProfileCalibrated fitted = profile_calibrate(&calibration);
    ProfileParameters parameters = profile_point_parameters(fitted.point, &profile->parameters);
    for (int i = 0; i < PROFILE_PARAMETERS_N; i++) {
        if (!fitted.fitted[i])
            continue;
        g_free(profile->parameter_sources[i]);
        profile->parameter_sources[i] =
            g_strdup_printf("fitted to %u times of %s", import->samples->len, import->tool);
    }
    profile->parameters = parameters;
    model_cluster_free(import->cluster);
}

/* --- which file it is --- */

typedef void (*JsonReader)(Import *import, JsonDoc *doc, const JsonValue *root);

bool
profile_import_terapipe_key(const char *key, int64_t shape[3])
{
    g_auto(GStrv) words = g_strsplit(key, "_", 4);

    if (g_strv_length(words) != 3)
        return false;
    for (int i = 0; i < 3; i++)
        if (!units_parse_int64(words[i], key, i < 2, MODEL_MAX_SEQ_LEN, &shape[i], NULL))
            return false;
    return true;
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
    if (first != NULL && g_regex_match_simple("^[0-9]+_[0-9]+_[0-9]+$", json_key(first), 0, 0)) {
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
    JsonReader reader = NULL;

    if (doc == NULL)
        return false;
    const JsonValue *root = json_doc_root(doc, NULL, 0);
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
read_database(Import *import, const char *path, char *bytes, size_t n_bytes, GError **error)
{
    import->tool = "nsys";
    if (import->profile == NULL) {
        refuse(import, "measurements belong to a cluster; give --cluster");
        return false;
    }
    return import_nsys(import, path, bytes, n_bytes, error);
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

/* The contents of a gzip file, as profilers write traces, take its place. */
static bool
expand(const char *path, char **contents, size_t *n_bytes, GError **error)
{
    z_stream stream = {.next_in = (Bytef *)*contents, .avail_in = (uInt)*n_bytes};
    g_autoptr(GByteArray) out = g_byte_array_new();
    guint8 block[1 << 16];
    int status;

    if (*n_bytes < 2 || memcmp(*contents, "\x1f\x8b", 2) != 0)
        return true;
    status = inflateInit2(&stream, MAX_WBITS + 16 /* gzip */);
    while (status == Z_OK) {
        stream.next_out = block;
        stream.avail_out = sizeof block;
        status = inflate(&stream, Z_NO_FLUSH);
        g_byte_array_append(out, block, (guint)(sizeof block - stream.avail_out));
        /* Another part may follow. */
        if (status == Z_STREAM_END && stream.avail_in > 0)
            status = inflateReset(&stream);
        if (out->len > FILE_MAX_BYTES)
            status = Z_BUF_ERROR;
    }
    inflateEnd(&stream);
    if (status != Z_STREAM_END || stream.avail_in > 0) {
        g_set_error(error, PROFILE_IMPORT_ERROR, PROFILE_IMPORT_ERROR_INVALID, "%s: %s", path,
                    out->len > FILE_MAX_BYTES ? "more than 256 MiB when it is expanded"
                                              : "cut off or damaged: gzip cannot be expanded");
        return false;
    }
    g_byte_array_append(out, (const guint8 *)"", 1);
    g_free(*contents);
    *n_bytes = out->len - 1;
    *contents = (char *)g_byte_array_free(g_steal_pointer(&out), FALSE);
    return true;
}

Profile *
profile_import(const Profile *profile, const char *path, const ProfileImportOptions *options,
               char **summary, GError **error)
{
    g_autofree char *text = NULL;
    g_autoptr(GArray) samples = g_array_new(FALSE, TRUE, sizeof(ImportSample));
    const guint n_before = profile == NULL ? 0 : profile->measurements->len;
    Import import = {.options = options, .samples = samples, .n_before = n_before};
    size_t n_bytes;

    g_return_val_if_fail(path != NULL && options != NULL && summary != NULL, NULL);

    if (!file_read(path, &text, &n_bytes, error) || !expand(path, &text, &n_bytes, error))
        return NULL;
    import.profile = profile == NULL ? NULL : profile_copy(profile);
    const char *first = text + strspn(text, " \t\r\n");
    /* "[1,0]<stdout>:" and "[0] " are what launchers put before a line of text. */
    bool is_json = *first == '{' ||
                   (*first == '[' &&
                    !g_regex_match_simple("^\\[[^]\\n\"{]*\\][ \\t]*[^\\s,\\]]", first, 0, 0));
    bool is_database = n_bytes >= 16 && memcmp(text, "SQLite format 3", 16) == 0;
    bool done = is_database ? read_database(&import, path, text, n_bytes, error)
                : is_json   ? read_json(&import, path, text, n_bytes, error)
                            : read_text(&import, path, text, error);
    if (import.refusal != NULL) {
        g_clear_error(error);
        g_propagate_prefixed_error(error, import.refusal, "%s: ", path);
        done = false;
    }
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
