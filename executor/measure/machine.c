#include "executor/measure/machine.h"

#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/host_steal.h"

/* --- data sheets --- */

/* Whether a device's name, as "NVIDIA H200 NVL", has the first part of a sheet's, as the "H200" of
 * "H200-SXM5-141GB", as a word of its own. */
static bool
names_device(const char *name, const char *sheet)
{
    g_autofree char *word = g_strndup(sheet, strcspn(sheet, "-"));
    const size_t n = strlen(word);

    for (const char *at = strstr(name, word); at != NULL; at = strstr(at + 1, word))
        if ((at == name || !g_ascii_isalnum(at[-1])) && !g_ascii_isalnum(at[n]))
            return true;
    return false;
}

/* Returns: (owned, nullable) the built-in cluster with this device; of several, the one whose
 * memory is nearest. */
static Profile *
find_sheet(const ExecDeviceInfo *info)
{
    g_autoptr(GPtrArray) names = profile_builtin_names();
    Profile *found = NULL;
    double best = INFINITY;

    for (guint i = 0; i < names->len; i++) {
        g_autoptr(Profile) profile = profile_load(g_ptr_array_index(names, i), NULL);
        const ModelDevice *device =
            profile == NULL ? NULL : model_cluster_device(profile->cluster, 0);
        if (device == NULL || !names_device(info->name, device->name))
            continue;
        const double distance =
            fabs((double)device->memory_bytes / (double)MAX(info->memory_bytes, 1) - 1.0);
        if (distance < best) {
            best = distance;
            profile_free(found);
            found = g_steal_pointer(&profile);
        }
    }
    return found;
}

/* Dense bf16 operations per multiprocessor and cycle: A100 312e12 / (108 * 1.41e9), H100 989e12 /
 * (132 * 1.83e9), B200 2250e12 / (148 * 1.85e9), rounded to powers of two; 8.6 and 8.9 (GA10x,
 * AD10x) half of 8.0 [NVIDIA architecture whitepapers].  fp32: 128 multiply-adds, 64 on 8.0. */
static double
operations_per_cycle(int capability, Dtype dtype)
{
    const double bf16 = capability >= 100  ? 8192
                        : capability >= 90 ? 4096
                        : capability == 80 ? 2048
                                           : 1024;

    return dtype == DTYPE_BF16 || dtype == DTYPE_FP16 ? bf16 : capability == 80 ? 128 : 256;
}

/* Describes a device that no built-in cluster has. */
static ModelDevice
computed_device(const ExecDeviceInfo *info)
{
    const double cycles = (double)info->n_multiprocessors * info->clock_hz;
    const double fp32 = cycles * operations_per_cycle(info->capability, DTYPE_FP32);
    const double bf16 = cycles * operations_per_cycle(info->capability, DTYPE_BF16);

    return (ModelDevice){
        .name = g_strdup(info->name),
        .flops_per_s = {[DTYPE_FP32] = fp32,
                        [DTYPE_TF32] = bf16 / 2,
                        [DTYPE_FP16] = bf16,
                        [DTYPE_BF16] = bf16},
        .vector_flops_per_s = fp32,
        .memory_bytes = info->memory_bytes,
        /* Memory with double data rate transfers twice in a clock. */
        .memory_bytes_per_s = 2.0 * info->memory_clock_hz * info->memory_bus_bits / 8.0,
        .n_multiprocessors = info->n_multiprocessors,
        .l2_bytes = info->l2_bytes,
    };
}

/* --- the cluster --- */

static void
set_parameter(Profile *profile, const char *name, double value, const char *source)
{
    for (int i = 0; i < PROFILE_PARAMETERS_N; i++) {
        const ProfileParameterInfo *info = &profile_parameter_info[i];
        if (!g_str_equal(info->name, name))
            continue;
        profile_parameter_set(&profile->parameters, i, CLAMP(value, info->min, info->max));
        g_free(profile->parameter_sources[i]);
        profile->parameter_sources[i] = g_strdup(source);
    }
}

/* Makes the device one of @n equal parts of itself. */
static void
share_device(ModelDevice *device, int64_t n)
{
    for (int i = 0; i < DTYPE_N; i++)
        device->flops_per_s[i] /= (double)n;
    device->vector_flops_per_s /= (double)n;
    device->memory_bytes /= n;
    device->memory_bytes_per_s /= (double)n;
    device->n_multiprocessors = MAX(device->n_multiprocessors / n, 1);
    device->l2_bytes /= n;
    device->power_w /= (double)n;
    device->price_per_hour /= (double)n;
}

/* A message between ranks of one device is a copy on it, which reads and writes.  Its latency, that
 * of two stream operations and an event, holds until measured messages (rows p2p) replace it. */
#define DEVICE_MESSAGE_S 5e-6

static ModelCluster *
shared_device_cluster(ModelDevice *device, int64_t n_ranks)
{
    ModelCluster *cluster = g_new0(ModelCluster, 1);
    const ModelNodes nodes = {.n_devices = n_ranks, .n_nodes = 1};
    const ModelLevel level = {
        .name = g_strdup("device-memory"),
        .bytes_per_s = device->memory_bytes_per_s / 2.0,
        .latency_s = DEVICE_MESSAGE_S,
    };

    cluster->name = g_ascii_strdown(device->name, -1);
    g_strdelimit(cluster->name, " ", '-');
    cluster->devices = g_array_new(FALSE, TRUE, sizeof(ModelDevice));
    cluster->nodes = g_array_new(FALSE, TRUE, sizeof(ModelNodes));
    cluster->levels = g_array_new(FALSE, TRUE, sizeof(ModelLevel));
    cluster->sources = g_ptr_array_new_with_free_func(g_free);
    share_device(device, n_ranks);
    g_array_append_val(cluster->devices, *device);
    g_array_append_val(cluster->nodes, nodes);
    g_array_append_val(cluster->levels, level);
    return cluster;
}

static Profile *
describe_gpu(const ExecDeviceInfo *info, int64_t n_ranks)
{
    g_autoptr(Profile) sheet = find_sheet(info);
    ModelDevice device = computed_device(info);
    const char *source = "peaks from multiprocessors, clock and capability";

    if (sheet != NULL) {
        g_free(device.name);
        device = *model_cluster_device(sheet->cluster, 0);
        device.name = g_strdup(device.name);
        device.memory_bytes = info->memory_bytes;
        source = "peaks and model parameters of the built-in cluster of this device";
    }
    Profile *profile = profile_new(NULL, shared_device_cluster(&device, n_ranks));
    profile->name = g_strdup(profile->cluster->name);
    g_ptr_array_add(profile->cluster->sources, g_strdup(source));
    if (sheet != NULL)
        profile->parameters = sheet->parameters;
    else
        set_parameter(profile, "gemm_unaligned_fraction", 0.32,
                      "an estimate, as on A100 (docs/cost-model.md 2.1)");
    return profile;
}

/* So many times the cache is written, so that nothing is left of what was in it. */
#define FLUSH_CACHES 2

bool
exec_machine_init(ExecMachine *machine, const char *device, int64_t n_ranks, GError **error)
{
    ExecDeviceInfo info;

    *machine = (ExecMachine){0};
    if (!exec_device_kind(device)->is_gpu) {
        machine->profile = profile_load("local-cpu", error);
        return machine->profile != NULL;
    }
    if (!exec_device_info(device, 0, &info, error))
        return false;
    machine->profile = describe_gpu(&info, n_ranks);
    machine->flush_bytes = FLUSH_CACHES * info.l2_bytes;
    return true;
}

/* --- its name --- */

static char *
describe_host(const ExecBackend *backend)
{
    g_autofree char *library = exec_backend_describe(backend);
    g_autofree char *text = NULL;
    size_t n_bytes;

    if (file_read_max("/proc/cpuinfo", 1 << 24, &text, &n_bytes, NULL)) {
        const char *line = strstr(text, "model name");
        const char *colon = line == NULL ? NULL : strchr(line, ':');
        if (colon != NULL) {
            g_autofree char *name = g_strndup(colon + 1, strcspn(colon + 1, "\n"));
            return g_strdup_printf("%s, %s", g_strstrip(name), library);
        }
    }
    return g_strdup_printf("CPU, %s", library);
}

static void
append_clock(GString *text, const char *what, double highest_hz, double now_hz)
{
    if (now_hz > 0)
        g_string_append_printf(text, ", %s %.0f of %.0f MHz", what, now_hz * 1e-6,
                               highest_hz * 1e-6);
    else if (highest_hz > 0)
        g_string_append_printf(text, ", %s up to %.0f MHz", what, highest_hz * 1e-6);
}

char *
exec_machine_describe(const char *device, const ExecBackend *backend)
{
    ExecDeviceInfo info;

    if (!exec_device_kind(device)->is_gpu || !exec_device_info(device, 0, &info, NULL))
        return describe_host(backend);
    g_autofree char *what = exec_backend_describe(backend);
    g_autoptr(GString) text = g_string_new(what);

    if (info.driver_name[0] != '\0')
        g_string_append_printf(text, " %s", info.driver_name);
    g_string_append_printf(text, ", cuBLASLt %d.%d.%d", (int)(info.blas / 10000),
                           (int)(info.blas / 100 % 100), (int)(info.blas % 100));
    append_clock(text, "clock", info.clock_hz, info.clock_now_hz);
    append_clock(text, "memory clock", info.memory_clock_hz, info.memory_clock_now_hz);
    return g_string_free(g_steal_pointer(&text), FALSE);
}

/* --- parameters that were measured --- */

/* Returns the last row of @op, which is the one with most bytes; NULL: there is none.
 * @first  (out, nullable) the first one */
static const ProfileMeasurement *
largest_row(const Profile *profile, ProfileOp op, const ProfileMeasurement **first)
{
    const ProfileMeasurement *last = NULL;

    for (guint i = 0; i < profile->measurements->len; i++) {
        const ProfileMeasurement *row =
            &g_array_index(profile->measurements, ProfileMeasurement, i);
        if (row->op != op || row->median_s <= 0)
            continue;
        if (first != NULL && last == NULL)
            *first = row;
        last = row;
    }
    return last;
}

void
exec_machine_set_workspace(Profile *profile, int64_t n_bytes)
{
    set_parameter(profile, "workspace_bytes", (double)n_bytes,
                  "measured: what the backend held for itself");
}

void
exec_machine_set_parameters(Profile *profile)
{
    const ProfileMeasurement *launch = largest_row(profile, PROFILE_OP_LAUNCH, NULL);
    const ProfileMeasurement *out = largest_row(profile, PROFILE_OP_COPY_D2H, NULL);

    if (launch != NULL)
        set_parameter(profile, "host_kernel_s", launch->median_s, "measured: launch");
    if (out != NULL)
        set_parameter(profile, "offload_bytes_per_s", (double)out->bytes / out->median_s,
                      "measured: copy_d2h, pageable memory");
    for (guint i = 0; i < profile->interference->len; i++) {
        const ProfileInterference *row =
            &g_array_index(profile->interference, ProfileInterference, i);
        if (row->beside == PROFILE_BESIDE_ALL_REDUCE)
            set_parameter(profile, "interference_fraction", row->factor - 1.0,
                          "measured: a layer beside all_reduce");
        if (row->beside == PROFILE_BESIDE_COPY_D2D)
            set_parameter(profile, "message_interference_fraction", row->factor - 1.0,
                          "measured: a layer beside copy_d2d");
    }
}

/* --- several GPUs --- */

/* Makes the link between GPUs so fast that the cost model's message of the largest size takes as
 * long as the row p2p says. */
static void
connect_gpus(Profile *profile, int64_t n_gpus)
{
    const ProfileParameters *p = &profile->parameters;
    ModelLevel *level = &g_array_index(profile->cluster->levels, ModelLevel, 0);
    const ProfileMeasurement *least = NULL;
    const ProfileMeasurement *most = largest_row(profile, PROFILE_OP_P2P, &least);

    g_array_index(profile->cluster->nodes, ModelNodes, 0).n_devices = n_gpus;
    g_free(level->name);
    level->name = g_strdup("between-gpus");
    if (most == NULL)
        return;
    level->latency_s = fmax(least->median_s - p->p2p_s, 0.0);
    level->bytes_per_s = fmax((double)most->bytes / most->median_s / p->p2p_fraction, 1.0);
    g_ptr_array_add(profile->cluster->sources,
                    g_strdup("the link between GPUs: measured messages (rows p2p)"));
}

void
exec_machine_add_gpus(Profile *profile, const char *between)
{
    const ProfileMeasurement *collective = NULL;
    g_autofree char *on = g_strjoin(", ", profile->measured_on, between, NULL);

    for (guint i = 0; i < profile->measurements->len; i++) {
        const ProfileMeasurement *row =
            &g_array_index(profile->measurements, ProfileMeasurement, i);
        if (row->op == PROFILE_OP_ALL_REDUCE &&
            (collective == NULL || row->n_ranks > collective->n_ranks))
            collective = row;
    }
    g_return_if_fail(collective != NULL);
    connect_gpus(profile, collective->n_ranks);
    profile->measured_concurrency = collective->n_ranks;
    g_free(profile->measured_on);
    profile->measured_on = g_steal_pointer(&on);
}

/* --- how busy it was --- */

/* A larger share of disturbed timings is reported; a few are disturbed on any machine. */
#define TOLD_DISTURBED 0.05

char *
exec_machine_set_disturbed(Profile *profile, ExecSamplesTotal timings, double stolen_fraction)
{
    const double share = (double)timings.n_disturbed / (double)MAX(timings.n, 1);
    g_autofree char *by =
        stolen_fraction > HOST_STEAL_TOLD_FRACTION
            ? g_strdup_printf("the host took %.1f %% of the cores", 100.0 * stolen_fraction)
            : g_strdup("others had the cores");

    profile->measured_disturbed_fraction = share;
    if (share <= TOLD_DISTURBED)
        return NULL;
    return g_strdup_printf("the machine is busy, %" G_GINT64_FORMAT " of %" G_GINT64_FORMAT
                           " timings were disturbed: %s",
                           timings.n_disturbed, timings.n, by);
}
