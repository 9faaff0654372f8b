#include "profiles/workload/physical.h"

#include <math.h>

#include "models/ops.h"
#include "profiles/cost/cost.h"

/* Registers and shared memory of a multiprocessor: no device has more. */
#define MULTIPROCESSOR_BYTES 524288.0

/* Sums over the devices in use. */
typedef struct {
    double flops_per_s, memory_bytes_per_s, link_bytes_per_s, cache_bytes;
    double largest_memory_bytes; /* of one device */
} Machine;

static double
link_bytes_per_s(const ModelCluster *cluster, int64_t rank)
{
    double sum = 0.0;

    for (guint i = 0; i < cluster->levels->len; i++) {
        const ModelLink link = model_cluster_link(cluster, rank, i);
        sum += fmax(link.bytes_per_s, link.shared_bytes_per_s);
    }
    return sum;
}

static Machine
add_up(const ModelCluster *cluster, int64_t n_devices, Dtype dtype)
{
    Machine sum = {0};
    int64_t first = 0;

    for (guint i = 0; i < cluster->nodes->len && first < n_devices; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);
        const ModelDevice *device = &g_array_index(cluster->devices, ModelDevice, nodes->device);
        const int64_t n = MIN(nodes->n_devices * nodes->n_nodes, n_devices - first);

        sum.flops_per_s += (double)n * profile_peak_flops_per_s(device, dtype);
        sum.memory_bytes_per_s += (double)n * device->memory_bytes_per_s;
        sum.link_bytes_per_s += (double)n * link_bytes_per_s(cluster, first);
        /* Of a cache whose size is not known everything may stay in it. */
        sum.cache_bytes +=
            device->l2_bytes == 0
                ? INFINITY
                : (double)n * ((double)device->l2_bytes +
                               MULTIPROCESSOR_BYTES * (double)device->n_multiprocessors);
        sum.largest_memory_bytes = fmax(sum.largest_memory_bytes, (double)device->memory_bytes);
        first += n;
    }
    return sum;
}

double
workload_physical_bound_s(const ModelArch *arch, const ModelCluster *cluster, int64_t n_devices,
                          int64_t n_sequences, int64_t seq_len, Dtype dtype)
{
    const Machine machine = add_up(cluster, n_devices, dtype);
    const double number_bytes = dtype_is_quantised(dtype) ? 0.5 : (double)dtype_bytes(dtype);
    const double flops = model_flops_per_iteration(arch, (double)n_sequences, seq_len) *
                         model_causal_fraction(arch, seq_len);
    const double weight_bytes = number_bytes * (double)model_parameters(arch);
    const double memory_bytes = 2.0 * fmax(0.0, weight_bytes - machine.cache_bytes);
    const double no_room =
        number_bytes * (double)model_active_parameters(arch) - machine.largest_memory_bytes;
    const double token_bytes = 2.0 * number_bytes * (double)n_sequences * (double)seq_len;
    double seconds = flops / machine.flops_per_s;

    if (memory_bytes > 0.0 && machine.memory_bytes_per_s > 0.0)
        seconds = fmax(seconds, memory_bytes / machine.memory_bytes_per_s);
    if (no_room > 0.0 && machine.link_bytes_per_s > 0.0)
        seconds = fmax(seconds, fmin(token_bytes, no_room) / machine.link_bytes_per_s);
    return seconds;
}
