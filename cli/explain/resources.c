/* What more of each resource would give: faster links and devices, more of them, memory, batch. */
#include "base/units.h"
#include "cli/explain/explain.h"
#include "cli/request/output.h"

#define INT "%" G_GINT64_FORMAT

/* (owned) "450 GB/s" */
static char *
rate_text(double bytes_per_s)
{
    g_autofree char *number = output_number(bytes_per_s / 1e9);

    return g_strdup_printf("%s GB/s", number);
}

/* @after (taken) */
static void
add_resource(Explanation *explanation, Request *request, char *resource, const char *change,
             char *after)
{
    ExplainResource added = {.resource = resource, .change = g_strdup(change), .after = after};

    added.search = explain_add_search(explanation, request, 2);
    g_array_append_val(explanation->resources, added);
}

static void
add_links(Explanation *explanation, guint level, double factor, const char *change)
{
    Request *request = request_copy(explanation->request);
    ModelCluster *cluster = request->profile->cluster;
    ModelLevel *link = &g_array_index(cluster->levels, ModelLevel, level);

    link->bytes_per_s *= factor;
    link->shared_bytes_per_s *= factor;
    for (guint i = 0; i < cluster->nodes->len; i++) {
        ModelLink *own = &g_array_index(cluster->nodes, ModelNodes, i).links[level];

        own->bytes_per_s *= factor;
        own->shared_bytes_per_s *= factor;
    }
    add_resource(explanation, request, g_strdup_printf("link %s", link->name), change,
                 rate_text(link->bytes_per_s));
}

/* @factor and then @more bytes, of the devices or of the limit that was asked for. */
static void
add_memory(Explanation *explanation, double factor, int64_t more_bytes, const char *change)
{
    Request *request = request_copy(explanation->request);
    ModelCluster *cluster = request->profile->cluster;
    int64_t after = request->plan.memory_limit_bytes;

    request->plan.memo = explanation->memo;
    if (after > 0) {
        after = (int64_t)((double)after * factor) + more_bytes;
        request->plan.memory_limit_bytes = after;
    } else {
        for (guint i = 0; i < cluster->devices->len; i++) {
            ModelDevice *device = &g_array_index(cluster->devices, ModelDevice, i);

            device->memory_bytes = (int64_t)((double)device->memory_bytes * factor) + more_bytes;
            after = i == 0 ? device->memory_bytes : MIN(after, device->memory_bytes);
        }
    }
    add_resource(explanation, request, g_strdup("memory"), change,
                 units_format_bytes((double)after));
}

static void
add_compute(Explanation *explanation, double factor, const char *change)
{
    Request *request = request_copy(explanation->request);
    ModelCluster *cluster = request->profile->cluster;

    for (guint i = 0; i < cluster->devices->len; i++) {
        ModelDevice *device = &g_array_index(cluster->devices, ModelDevice, i);

        for (int dtype = 0; dtype < DTYPE_N; dtype++)
            device->flops_per_s[dtype] *= factor;
        device->vector_flops_per_s *= factor;
    }
    const ModelDevice *first = model_cluster_device(cluster, 0);
    add_resource(
        explanation, request, g_strdup("compute"), change,
        units_format_flops(profile_peak_flops_per_s(first, explanation->request->plan.dtype)));
}

static void
add_devices(Explanation *explanation)
{
    Request *request = request_copy(explanation->request);
    const int64_t n = 2 * model_cluster_n_devices(request->profile->cluster);

    if (n > MODEL_CLUSTER_MAX_DEVICES) {
        request_free(request);
        return;
    }
    ModelCluster *doubled = model_cluster_resized(request->profile->cluster, n);
    model_cluster_free(request->profile->cluster);
    request->profile->cluster = doubled;
    request->plan.n_devices *= 2;
    request->plan.dp *= 2; /* where it is fixed, that is what grows */
    add_resource(explanation, request, g_strdup("devices"), "x2", g_strdup_printf(INT, n));
}

static void
add_batch(Explanation *explanation)
{
    Request *request = request_copy(explanation->request);

    request->plan.global_batch *= 2;
    request->plan.memo = explanation->memo;
    add_resource(explanation, request, g_strdup("batch"), "x2",
                 g_strdup_printf(INT, request->plan.global_batch));
}

void
explain_add_resources(Explanation *explanation)
{
    const GArray *levels = explanation->request->profile->cluster->levels;

    for (guint i = 0; i < levels->len; i++) {
        /* A level above all devices that are used carries nothing. */
        const int64_t inner = i == 0 ? 1 : g_array_index(levels, ModelLevel, i - 1).group_devices;
        if (plan_n_devices(explanation->plan) <= inner)
            continue;
        add_links(explanation, i, 1.1, "+10 %");
        add_links(explanation, i, 2, "x2");
    }
    add_memory(explanation, 1, UNITS_GIB, "+1 GiB");
    add_memory(explanation, 1.25, 0, "+25 %");
    add_compute(explanation, 1.1, "+10 %");
    add_devices(explanation);
    add_batch(explanation);
}
