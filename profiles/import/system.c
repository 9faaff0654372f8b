/* System files of SimuMax (2024 to v1.2) and Calculon. */
#include "profiles/import/readers.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define GIGA 1e9
#define TERA 1e12
#define BYTES_PER_GIB 1073741824.0
#define MAX_RATE 1e6
#define MAX_LEVELS 4

/* --- the cluster --- */

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

static int64_t
gib_bytes(JsonDoc *doc, const JsonValue *object, const char *key)
{
    return (int64_t)(BYTES_PER_GIB * json_double(doc, object, key, 1e-3, MAX_RATE));
}

/* The next level outwards. */
static void
add_level(ModelCluster *cluster, int64_t group_devices, double bytes_per_s, double latency_s)
{
    const ModelLevel level = {
        .name = g_strdup_printf("level%u", cluster->levels->len),
        .group_devices = group_devices,
        .bytes_per_s = bytes_per_s,
        .latency_s = latency_s,
    };

    g_array_append_val(cluster->levels, level);
}

/* Makes the import's profile of @cluster, which has levels, with one node of one kind of device. */
static bool
make_profile(Import *import, JsonDoc *doc, const JsonValue *root, ModelCluster *cluster,
             const char *name, int64_t per_node, ModelDevice device)
{
    g_autoptr(JsonWriter) writer = json_writer_new();
    g_autoptr(GError) error = NULL;

    if (json_doc_failed(doc))
        return false;
    const ModelNodes nodes = {.n_devices = MAX(1, per_node), .n_nodes = 1};
    cluster->name = g_strdup(name);
    device.name = g_strdup(name);
    g_array_append_val(cluster->devices, device);
    g_array_append_val(cluster->nodes, nodes);
    /* Its numbers are checked as if they stood in a file. */
    json_write_object(writer, NULL);
    json_write_string(writer, "name", name);
    model_cluster_write(writer, "cluster", cluster);
    json_write_object_end(writer);
    size_t n_bytes;
    g_autofree char *text = json_writer_steal(writer, &n_bytes);
    g_autoptr(JsonDoc) made = json_doc_parse("the cluster of this file", text, n_bytes, &error);
    Profile *profile = made == NULL ? NULL : profile_read(made, json_doc_root(made, NULL, 0));
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

        if (strlen(json_key(v)) > 200 ||
            sscanf(json_key(v), "b=%9lld, m=%9lld, k=%9lld, n=%9lld", &b, &m, &k, &n) != 4 ||
            b < 1 || m < 1 || k < 1 || n < 1) {
            json_fail(doc, v, "expected a key \"b=1, m=4096, k=5120, n=1536, ...\"");
            return;
        }
        ImportSample sample = {
            .kind = IMPORT_PRODUCT, .dtype = DTYPE_BF16, .count = b, .m = m, .n = n, .k = k};
        sample.seconds =
            2.0 * (double)b * (double)m * (double)n * (double)k / (share * flops_per_s);
        if (share > 0.0)
            g_array_append_val(import->samples, sample);
    }
}

/* Reads the keys "batch=1, seq_len=4096, head_num=32, kv_head_num=8, qk_head_dim=128,
 * v_head_dim=128, ..." of fused causal attention.  Its FLOPs count the scores above the diagonal too,
 * and backward as twice the forward.  Heads whose keys and values differ in size are left out. */
static void
add_attention(Import *import, JsonDoc *doc, const JsonValue *op, double flops_per_s, bool backward)
{
    const JsonValue *shapes = json_object_or_null(doc, op, "accurate_efficient_factor");

    for (const JsonValue *v = shapes == NULL ? NULL : json_first(shapes);
         v != NULL && !json_doc_failed(doc); v = json_next(v)) {
        long long b, s, heads, kv, qk_dim, v_dim;
        const double share = json_value_double(doc, v, 0.0, 2.5);

        if (strlen(json_key(v)) > 200 ||
            sscanf(json_key(v),
                   "batch=%6lld, seq_len=%8lld, head_num=%6lld, kv_head_num=%6lld, "
                   "qk_head_dim=%6lld, v_head_dim=%6lld",
                   &b, &s, &heads, &kv, &qk_dim, &v_dim) != 6 ||
            b < 1 || s < 1 || heads < 1 || kv < 1 || qk_dim < 1 || v_dim < 1) {
            json_fail(doc, v, "expected a key \"batch=1, seq_len=4096, head_num=32, ...\"");
            return;
        }
        ImportSample sample = {.kind = IMPORT_ATTENTION,
                               .dtype = DTYPE_BF16,
                               .backward = backward,
                               .count = b * heads,
                               .m = s,
                               .n = s,
                               .k = qk_dim};
        sample.causal_fraction = 1.0 - ((double)s - 1.0) / (2.0 * (double)s);
        sample.seconds = (backward ? 8.0 : 4.0) * (double)sample.count * (double)s * (double)s *
                         (double)qk_dim / (share * flops_per_s);
        if (share > 0.0 && qk_dim == v_dim)
            g_array_append_val(import->samples, sample);
    }
}

/* Adds a network as a level.  Returns: the share of its rate that collectives reach. */
static double
simumax_level(JsonDoc *doc, const JsonValue *networks, const char *name, int64_t group,
              ModelCluster *cluster)
{
    const JsonValue *network = json_object(doc, networks, name);
    const JsonValue *bandwidth = json_object(doc, network, "bandwidth");
    const JsonValue *ops = json_object_or_null(doc, network, "op");
    const JsonValue *reduce = ops == NULL ? NULL : json_object_or_null(doc, ops, "all_reduce");
    const double share = efficiency(doc, bandwidth);
    const double bytes_per_s = GIGA * json_double(doc, bandwidth, "gbps", 1e-3, MAX_RATE);

    add_level(cluster, group, bytes_per_s,
              1e-6 * json_double_or(doc, bandwidth, "latency_us", 0.0, 1e6, 0.0));
    return reduce != NULL && json_has(doc, reduce, "efficient_factor") ? efficiency(doc, reduce)
                                                                       : share;
}

/*
 * Adds the levels inside a node.  On PCIe a file has a network for groups of 2, of 4 and of 8, which
 * reach different shares of one rate: each is a level, whose rate is what it reaches over the best
 * share.  Returns: that share.
 */
static double
simumax_node(JsonDoc *doc, const JsonValue *networks, int64_t per_node, ModelCluster *cluster)
{
    static const struct {
        const char *name;
        int64_t group;
    } kinds[] = {{"intra_node_pcie_2x", 2}, {"intra_node_pcie_4x", 4}, {"intra_node_pcie_8x", 8}};
    double shares[G_N_ELEMENTS(kinds)] = {0}, best = 0.0;
    int64_t group = 1;

    if (!json_bool_or(doc, networks, "intra_with_pcie", false))
        return simumax_level(doc, networks, "high_intra_node", per_node, cluster);
    for (size_t i = 0; i < G_N_ELEMENTS(kinds) && group < per_node; i++) {
        if (!json_has(doc, networks, kinds[i].name))
            continue;
        group = kinds[i].group;
        const guint level = cluster->levels->len; /* read before one more is there */
        shares[level] = simumax_level(doc, networks, kinds[i].name, group, cluster);
        best = fmax(best, shares[level]);
    }
    if (cluster->levels->len == 0) /* in files of 2025 */
        return simumax_level(doc, networks, "low_intra_node", per_node, cluster);
    g_array_index(cluster->levels, ModelLevel, cluster->levels->len - 1).group_devices = per_node;
    for (guint i = 0; i < cluster->levels->len; i++)
        g_array_index(cluster->levels, ModelLevel, i).bytes_per_s *= shares[i] / best;
    return best;
}

void
import_simumax(Import *import, JsonDoc *doc, const JsonValue *root)
{
    const JsonValue *accelerator = json_object(doc, root, "accelerator");
    const JsonValue *ops = json_object(doc, accelerator, "op");
    const JsonValue *bandwidth = json_object(doc, accelerator, "bandwidth");
    /* In 2024 there was one for all ops. */
    const JsonValue *memory =
        json_has(doc, bandwidth, "gbps") ? bandwidth : json_object(doc, bandwidth, "default");
    const JsonValue *networks = json_object(doc, root, "networks");
    const JsonValue *product = simumax_op(doc, ops, "matmul");
    const int64_t per_node = json_int64(doc, root, "num_per_node", 1, 1 << 20);
    const double product_share = efficiency(doc, product);
    const char *name = json_string(doc, root, "sys_name");
    const double flops_per_s = TERA * json_double(doc, product, "tflops", 1e-3, MAX_RATE);
    ModelDevice device = {
        .flops_per_s = {[DTYPE_FP16] = flops_per_s, [DTYPE_BF16] = flops_per_s},
        /* Not in these files; general cores of today's devices have about a sixteenth. */
        .vector_flops_per_s = flops_per_s / 16.0,
    };
    g_autoptr(ModelCluster) cluster = model_cluster_new();

    if (json_has(doc, ops, "fp8_matmul"))
        device.flops_per_s[DTYPE_FP8] =
            TERA * json_double(doc, json_object(doc, ops, "fp8_matmul"), "tflops", 1e-3, MAX_RATE);
    device.memory_bytes = gib_bytes(doc, accelerator, "mem_gbs");
    device.memory_bytes_per_s = GIGA * json_double(doc, memory, "gbps", 1e-3, MAX_RATE);
    double inside = simumax_node(doc, networks, per_node, cluster);
    double between = simumax_level(doc, networks, "inter_node", 0, cluster);
    if (!make_profile(import, doc, root, cluster, name, per_node, device))
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
    add_products(import, doc, product, flops_per_s);
    add_attention(import, doc, simumax_op(doc, ops, "sdp_fwd"), flops_per_s, false);
    add_attention(import, doc, simumax_op(doc, ops, "sdp_bwd"), flops_per_s, true);
}

/* --- Calculon --- */

/* The efficiency of the largest size in [[size, efficiency], ...]. */
static double
largest_efficiency(JsonDoc *doc, const JsonValue *curve)
{
    double size = -1.0, best = 1.0;

    JSON_EACH (v, curve, doc) {
        const JsonValue *first = json_is_array(v) ? json_first(v) : NULL;

        if (first == NULL || json_length(v) != 2) {
            json_fail(doc, v, "expected [size, efficiency]");
            return best;
        }
        double s = json_value_double(doc, first, 0.0, 1e18);
        double e = json_value_double(doc, json_next(first), 0.0, 1.0);
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
read_networks(JsonDoc *doc, const JsonValue *networks, ModelCluster *cluster,
              double shares[MAX_LEVELS])
{
    const size_t n = json_length(networks);
    size_t i = 0;
    int64_t inner = 1;

    if (n < 1 || n > MAX_LEVELS)
        json_fail(doc, networks, "expected 1 to %d networks", MAX_LEVELS);
    for (const JsonValue *v = json_first(networks); v != NULL && !json_doc_failed(doc);
         v = json_next(v), i++) {
        const int64_t size = json_int64(doc, v, "size", 1, MODEL_CLUSTER_MAX_DEVICES);

        shares[i] = json_double(doc, v, "efficiency", 0.01, 1.0);
        const double bytes_per_s = GIGA * json_double(doc, v, "bandwidth", 1e-3, MAX_RATE);
        add_level(cluster, i + 1 == n ? 0 : size, bytes_per_s,
                  json_double_or(doc, v, "latency", 0.0, 1.0, 0.0));
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
    const double flops_per_s = calculon_unit(doc, json_object(doc, root, "matrix"), &product_share);
    ModelDevice device = {.flops_per_s = {[DTYPE_FP16] = flops_per_s, [DTYPE_BF16] = flops_per_s}};
    g_autoptr(ModelCluster) cluster = model_cluster_new();

    device.vector_flops_per_s = calculon_unit(doc, json_object(doc, root, "vector"), &vector_share);
    device.memory_bytes = gib_bytes(doc, memory, "GiB");
    device.memory_bytes_per_s = GIGA * json_double(doc, memory, "GBps", 1e-3, MAX_RATE);
    read_networks(doc, json_array(doc, root, "networks"), cluster, shares);
    if (json_doc_failed(doc))
        return;
    if (!make_profile(import, doc, root, cluster, "calculon",
                      g_array_index(cluster->levels, ModelLevel, 0).group_devices, device))
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
    set_parameter(import, doc, root, "network_fraction", shares[cluster->levels->len - 1]);
    set_parameter(import, doc, root, "network_p2p_fraction", shares[cluster->levels->len - 1]);
}
