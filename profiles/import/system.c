/* System files of SimuMax (v1.2) and Calculon. */
#include "profiles/import/readers.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define GIGA 1e9
#define TERA 1e12
#define BYTES_PER_GIB 1073741824.0
#define MAX_RATE 1e6
#define MAX_LEVELS 4

/* What both describe. */
typedef struct {
    const char *name;
    double half_flops_per_s, fp8_flops_per_s, vector_flops_per_s;
    double memory_bytes, memory_bytes_per_s;
    struct {
        int64_t group_devices; /* 0: all */
        double bytes_per_s, latency_s;
    } levels[MAX_LEVELS];
    size_t n_levels;
} System;

/* --- the cluster --- */

static char *
cluster_text(const System *system, int64_t n_devices)
{
    g_autoptr(JsonWriter) writer = json_writer_new();

    json_write_object(writer, NULL);
    json_write_string(writer, "format", "degas-profile");
    json_write_int64(writer, "version", 1);
    json_write_string(writer, "name", system->name);
    json_write_object(writer, "cluster");
    json_write_string(writer, "name", system->name);
    json_write_array(writer, "devices");
    json_write_object(writer, NULL);
    json_write_string(writer, "name", system->name);
    json_write_object(writer, "flops_per_s");
    json_write_double(writer, "fp16", system->half_flops_per_s);
    json_write_double(writer, "bf16", system->half_flops_per_s);
    if (system->fp8_flops_per_s > 0.0)
        json_write_double(writer, "fp8", system->fp8_flops_per_s);
    json_write_object_end(writer);
    json_write_double(writer, "vector_flops_per_s", system->vector_flops_per_s);
    json_write_int64(writer, "memory_bytes", (int64_t)system->memory_bytes);
    json_write_double(writer, "memory_bytes_per_s", system->memory_bytes_per_s);
    json_write_object_end(writer);
    json_write_array_end(writer);
    json_write_array(writer, "nodes");
    json_write_object(writer, NULL);
    json_write_string(writer, "device", system->name);
    json_write_int64(writer, "n_devices", n_devices);
    json_write_int64(writer, "n_nodes", 1);
    json_write_object_end(writer);
    json_write_array_end(writer);
    json_write_array(writer, "levels");
    for (size_t i = 0; i < system->n_levels; i++) {
        g_autofree char *name = g_strdup_printf("level%zu", i);

        json_write_object(writer, NULL);
        json_write_string(writer, "name", name);
        json_write_int64(writer, "group_devices", system->levels[i].group_devices);
        json_write_double(writer, "bytes_per_s", system->levels[i].bytes_per_s);
        json_write_double(writer, "latency_s", system->levels[i].latency_s);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
    json_write_object_end(writer);
    json_write_object_end(writer);
    return json_writer_steal(writer, NULL);
}

/* The parameters that the file says; the others are the given cluster's, or defaults. */
static void
set_parameter(Import *import, JsonDoc *doc, const JsonValue *where, const char *name, double value)
{
    for (int i = 0; i < PROFILE_PARAMETERS_N; i++) {
        const ProfileParameterInfo *info = &profile_parameter_info[i];

        if (strcmp(info->name, name) != 0)
            continue;
        if (!(value >= info->min && value <= info->max)) {
            json_fail(doc, where, "%s would be %g; expected from %g to %g", name, value, info->min,
                      info->max);
            return;
        }
        profile_parameter_set(&import->profile->parameters, i, value);
        g_free(import->profile->parameter_sources[i]);
        import->profile->parameter_sources[i] = g_strdup_printf("%s's system file", import->tool);
        return;
    }
    g_return_if_reached();
}

static bool
make_cluster(Import *import, JsonDoc *doc, const JsonValue *root, const System *system)
{
    g_autofree char *text = NULL;
    g_autoptr(JsonDoc) made = NULL;
    g_autoptr(GError) error = NULL;
    Profile *profile;

    if (json_doc_failed(doc))
        return false;
    text = cluster_text(system, MAX(1, system->levels[0].group_devices));
    made = json_doc_parse("the cluster of this file", text, strlen(text), &error);
    profile = made == NULL ? NULL : profile_read(made, json_doc_root(made, NULL, 0));
    if (profile == NULL || !json_doc_finish(made, &error)) {
        profile_free(profile);
        json_fail(doc, root, "%s", error->message);
        return false;
    }
    if (import->profile != NULL)
        profile->parameters = import->profile->parameters;
    profile_free(import->profile);
    import->profile = profile;
    return true;
}

/* --- SimuMax --- */

/* {"tflops", "efficient_factor"} of @op, or of "default". */
static const JsonValue *
simumax_op(JsonDoc *doc, const JsonValue *ops, const char *op)
{
    return json_object(doc, ops, json_has(doc, ops, op) ? op : "default");
}

static double
efficiency(JsonDoc *doc, const JsonValue *object)
{
    return json_double(doc, object, "efficient_factor", 0.01, 1.0);
}

/* {"b=1, m=4096, k=5120, n=1536, layout=TN, ...": share of peak}: fitted, not kept. */
static void
add_products(Import *import, JsonDoc *doc, const JsonValue *op, double flops_per_s)
{
    const JsonValue *shapes = json_object_or_null(doc, op, "accurate_efficient_factor");

    for (const JsonValue *v = shapes == NULL ? NULL : json_first(shapes);
         v != NULL && !json_doc_failed(doc); v = json_next(v)) {
        long long b, m, k, n;
        const double share = json_value_double(doc, v, 0.0, 2.0);
        ImportSample sample;

        if (strlen(json_key(v)) > 200 ||
            sscanf(json_key(v), "b=%9lld, m=%9lld, k=%9lld, n=%9lld", &b, &m, &k, &n) != 4 ||
            b < 1 || m < 1 || k < 1 || n < 1) {
            json_fail(doc, v, "expected a key \"b=1, m=4096, k=5120, n=1536, ...\"");
            return;
        }
        sample = (ImportSample){
            .kind = IMPORT_PRODUCT, .dtype = DTYPE_BF16, .count = b, .m = m, .n = n, .k = k};
        sample.seconds =
            2.0 * (double)b * (double)m * (double)n * (double)k / (share * flops_per_s);
        if (share > 0.0)
            g_array_append_val(import->samples, sample);
    }
}

/* A network's rate and latency into level @i; its share of the rate that collectives reach. */
static double
simumax_level(JsonDoc *doc, const JsonValue *networks, const char *name, int64_t group,
              System *system)
{
    const JsonValue *network = json_object(doc, networks, name);
    const JsonValue *bandwidth = json_object(doc, network, "bandwidth");
    const JsonValue *ops = json_object_or_null(doc, network, "op");
    const JsonValue *reduce = ops == NULL ? NULL : json_object_or_null(doc, ops, "all_reduce");
    const size_t i = system->n_levels++;
    const double share = efficiency(doc, bandwidth);

    system->levels[i].group_devices = group;
    system->levels[i].bytes_per_s = GIGA * json_double(doc, bandwidth, "gbps", 1e-3, MAX_RATE);
    system->levels[i].latency_s =
        1e-6 * json_double_or(doc, bandwidth, "latency_us", 0.0, 1e6, 0.0);
    return reduce != NULL && json_has(doc, reduce, "efficient_factor") ? efficiency(doc, reduce)
                                                                       : share;
}

void
import_simumax(Import *import, JsonDoc *doc, const JsonValue *root)
{
    const JsonValue *accelerator = json_object(doc, root, "accelerator");
    const JsonValue *ops = json_object(doc, accelerator, "op");
    const JsonValue *memory =
        json_object(doc, json_object(doc, accelerator, "bandwidth"), "default");
    const JsonValue *networks = json_object(doc, root, "networks");
    const JsonValue *product = simumax_op(doc, ops, "matmul");
    const int64_t per_node = json_int64(doc, root, "num_per_node", 1, 1 << 20);
    const bool pcie = json_bool_or(doc, networks, "intra_with_pcie", false);
    const double product_share = efficiency(doc, product);
    System system = {.name = json_string(doc, root, "sys_name")};
    double inside, between;

    system.half_flops_per_s = TERA * json_double(doc, product, "tflops", 1e-3, MAX_RATE);
    if (json_has(doc, ops, "fp8_matmul"))
        system.fp8_flops_per_s =
            TERA * json_double(doc, json_object(doc, ops, "fp8_matmul"), "tflops", 1e-3, MAX_RATE);
    /* Not in these files; general cores of today's devices have about a sixteenth. */
    system.vector_flops_per_s = system.half_flops_per_s / 16.0;
    system.memory_bytes = BYTES_PER_GIB * json_double(doc, accelerator, "mem_gbs", 1e-3, MAX_RATE);
    system.memory_bytes_per_s = GIGA * json_double(doc, memory, "gbps", 1e-3, MAX_RATE);
    inside = simumax_level(doc, networks, pcie ? "low_intra_node" : "high_intra_node", per_node,
                           &system);
    between = simumax_level(doc, networks, "inter_node", 0, &system);
    if (!make_cluster(import, doc, root, &system))
        return;
    set_parameter(import, doc, product, "gemm_fraction", product_share);
    set_parameter(import, doc, ops, "grouped_fraction",
                  fmin(1.0, efficiency(doc, simumax_op(doc, ops, "group_matmul")) / product_share));
    /* Its FLOPs count scores above the diagonal too, and backward as twice the forward, where ours
     * is 2.5 times (cost-model.md 4). */
    set_parameter(import, doc, ops, "attention_forward_fraction",
                  efficiency(doc, simumax_op(doc, ops, "sdp_fwd")) * 0.5);
    set_parameter(import, doc, ops, "attention_backward_fraction",
                  efficiency(doc, simumax_op(doc, ops, "sdp_bwd")) * 0.5 * 1.25);
    set_parameter(import, doc, memory, "memory_fraction", efficiency(doc, memory));
    set_parameter(import, doc, networks, "link_fraction", inside);
    set_parameter(import, doc, networks, "p2p_fraction", inside);
    set_parameter(import, doc, networks, "network_fraction", between);
    set_parameter(import, doc, networks, "network_p2p_fraction", between);
    add_products(import, doc, product, system.half_flops_per_s);
}

/* --- Calculon --- */

/* The efficiency of the largest size in [[size, efficiency], ...]. */
static double
largest_efficiency(JsonDoc *doc, const JsonValue *curve)
{
    double size = -1.0, best = 1.0;

    for (const JsonValue *v = json_first(curve); v != NULL && !json_doc_failed(doc);
         v = json_next(v)) {
        const JsonValue *first = json_is_array(v) ? json_first(v) : NULL;
        double s, e;

        if (first == NULL || json_length(v) != 2) {
            json_fail(doc, v, "expected [size, efficiency]");
            return best;
        }
        s = json_value_double(doc, first, 0.0, 1e18);
        e = json_value_double(doc, json_next(first), 0.0, 1.0);
        if (s > size) {
            size = s;
            best = e;
        }
    }
    return best;
}

/* {"float16": {"tflops", "gflops_efficiency"}} or, older, {"tflops", "gflops_efficiency":
 * {"float16": [...]}}. */
static double
calculon_unit(JsonDoc *doc, const JsonValue *unit, double *share)
{
    const bool is_old = json_has(doc, unit, "tflops");
    const JsonValue *half = is_old ? unit : json_object(doc, unit, "float16");
    const double tflops = json_double(doc, half, "tflops", 1e-3, MAX_RATE);
    const JsonValue *curve =
        is_old ? json_array(doc, json_object(doc, unit, "gflops_efficiency"), "float16")
               : json_array(doc, half, "gflops_efficiency");

    *share = largest_efficiency(doc, curve);
    return TERA * tflops;
}

static void
read_networks(JsonDoc *doc, const JsonValue *networks, System *system, double shares[MAX_LEVELS])
{
    const size_t n = json_length(networks);
    int64_t inner = 1;

    if (n < 1 || n > MAX_LEVELS)
        json_fail(doc, networks, "expected 1 to %d networks", MAX_LEVELS);
    for (const JsonValue *v = json_first(networks); v != NULL && !json_doc_failed(doc);
         v = json_next(v)) {
        const size_t i = system->n_levels++;
        const int64_t size = json_int64(doc, v, "size", 1, MODEL_CLUSTER_MAX_DEVICES);

        shares[i] = json_double(doc, v, "efficiency", 0.01, 1.0);
        system->levels[i].group_devices = i + 1 == n ? 0 : size;
        system->levels[i].bytes_per_s = GIGA * json_double(doc, v, "bandwidth", 1e-3, MAX_RATE);
        system->levels[i].latency_s = json_double_or(doc, v, "latency", 0.0, 1.0, 0.0);
        if (i + 1 < n && (size <= inner || size % inner != 0))
            json_fail(doc, v, "size: expected a multiple of the network's inside");
        inner = size;
    }
}

void
import_calculon(Import *import, JsonDoc *doc, const JsonValue *root)
{
    const JsonValue *memory = json_object(doc, root, "mem1");
    const JsonValue *host = json_object_or_null(doc, root, "mem2");
    double product_share = 1.0, vector_share = 1.0, shares[MAX_LEVELS] = {0};
    System system = {.name = "calculon"};

    system.half_flops_per_s = calculon_unit(doc, json_object(doc, root, "matrix"), &product_share);
    system.vector_flops_per_s = calculon_unit(doc, json_object(doc, root, "vector"), &vector_share);
    system.memory_bytes = BYTES_PER_GIB * json_double(doc, memory, "GiB", 1e-3, MAX_RATE);
    system.memory_bytes_per_s = GIGA * json_double(doc, memory, "GBps", 1e-3, MAX_RATE);
    read_networks(doc, json_array(doc, root, "networks"), &system, shares);
    if (!make_cluster(import, doc, root, &system))
        return;
    set_parameter(import, doc, root, "gemm_fraction", product_share);
    set_parameter(import, doc, memory, "memory_fraction",
                  largest_efficiency(doc, json_array(doc, memory, "MB_efficiency")));
    if (host != NULL)
        set_parameter(import, doc, host, "offload_bytes_per_s",
                      GIGA * json_double(doc, host, "GBps", 1e-3, MAX_RATE) *
                          largest_efficiency(doc, json_array(doc, host, "MB_efficiency")));
    set_parameter(import, doc, root, "link_fraction", shares[0]);
    set_parameter(import, doc, root, "p2p_fraction", shares[0]);
    set_parameter(import, doc, root, "network_fraction", shares[system.n_levels - 1]);
    set_parameter(import, doc, root, "network_p2p_fraction", shares[system.n_levels - 1]);
}
