/* Tests of models/cluster.h: reading, writing, levels between devices, cutting and extending. */
#include "models/cluster.h"

#include <string.h>

/* Two kinds of node: 3 of 8 devices, 2 of 4; boards of 4, nodes of up to 8, all. */
static const char sound[] =
    "{\"name\":\"mixed\","
    "\"devices\":["
    "{\"name\":\"A\",\"flops_per_s\":{\"fp32\":1e13,\"fp16\":1e14},\"vector_flops_per_s\":1e13,"
    "\"memory_bytes\":16000000000,\"memory_bytes_per_s\":9e11,\"n_multiprocessors\":80,"
    "\"l2_bytes\":6291456,\"power_w\":300},"
    "{\"name\":\"B\",\"flops_per_s\":{\"bf16\":3e14},\"vector_flops_per_s\":2e13,"
    "\"memory_bytes\":80000000000,\"memory_bytes_per_s\":2e12,\"price_per_hour\":4}],"
    "\"nodes\":[{\"device\":\"A\",\"n_devices\":8,\"n_nodes\":3},"
    "{\"device\":\"B\",\"n_devices\":4,\"n_nodes\":2,\"links\":["
    "{\"level\":\"ethernet\",\"bytes_per_s\":6e9,\"shared_bytes_per_s\":0},"
    "{\"level\":\"board\",\"latency_s\":5e-6}]}],"
    "\"levels\":["
    "{\"name\":\"board\",\"group_devices\":4,\"bytes_per_s\":3e11,\"latency_s\":1e-6},"
    "{\"name\":\"node\",\"group_devices\":8,\"bytes_per_s\":1e11,\"latency_s\":2e-6},"
    "{\"name\":\"ethernet\",\"group_devices\":0,\"bytes_per_s\":3e9,"
    "\"shared_bytes_per_s\":3.125e9,\"latency_s\":2e-5}],"
    "\"price_per_device_hour\":2.5,\"currency\":\"USD\",\"sources\":[\"data sheet\",\"paper\"]}";

static ModelCluster *
parse(const char *text, GError **error)
{
    g_autoptr(JsonDoc) doc = json_doc_parse("c.json", text, strlen(text), error);
    g_autoptr(ModelCluster) cluster = NULL;

    if (doc == NULL)
        return NULL;
    cluster = model_cluster_read(doc, json_doc_root(doc, NULL, 1));
    return json_doc_finish(doc, error) ? g_steal_pointer(&cluster) : NULL;
}

static ModelCluster *
parse_sound(void)
{
    g_autoptr(GError) error = NULL;
    ModelCluster *cluster = parse(sound, &error);

    g_assert_no_error(error);
    return cluster;
}

/* "A 8x3 B 4x2": the groups of nodes. */
static char *
nodes_text(const ModelCluster *cluster)
{
    g_autoptr(GString) text = g_string_new(NULL);

    for (guint i = 0; i < cluster->nodes->len; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);

        g_string_append_printf(text, "%s%s %dx%d", i > 0 ? " " : "",
                               g_array_index(cluster->devices, ModelDevice, nodes->device).name,
                               (int)nodes->n_devices, (int)nodes->n_nodes);
    }
    return g_string_free(g_steal_pointer(&text), FALSE);
}

static char *
write_text(const ModelCluster *cluster)
{
    g_autoptr(JsonWriter) writer = json_writer_new();

    model_cluster_write(writer, NULL, cluster);
    return json_writer_steal(writer, NULL);
}

static void
test_fields_are_read(void)
{
    g_autoptr(ModelCluster) cluster = parse_sound();
    const ModelDevice *device = model_cluster_device(cluster, 0);
    const ModelLevel *level = &g_array_index(cluster->levels, ModelLevel, 2);

    g_assert_cmpint(model_cluster_n_devices(cluster), ==, 3 * 8 + 2 * 4);
    g_assert_cmpstr(device->name, ==, "A");
    g_assert_cmpfloat(device->flops_per_s[DTYPE_FP16], ==, 1e14);
    g_assert_cmpfloat(device->flops_per_s[DTYPE_BF16], ==, 0.0);
    g_assert_cmpint(device->memory_bytes, ==, 16000000000);
    g_assert_cmpint(device->l2_bytes, ==, 6291456);
    g_assert_cmpfloat(device->power_w, ==, 300.0);
    g_assert_cmpstr(model_cluster_device(cluster, 23)->name, ==, "A");
    g_assert_cmpstr(model_cluster_device(cluster, 24)->name, ==, "B");
    g_assert_cmpstr(model_cluster_device(cluster, 31)->name, ==, "B");
    g_assert_cmpfloat(level->shared_bytes_per_s, ==, 3.125e9);
    g_assert_cmpfloat(level->latency_s, ==, 2e-5);
    g_assert_cmpfloat(cluster->price_per_device_hour, ==, 2.5);
    g_assert_cmpstr(g_ptr_array_index(cluster->sources, 1), ==, "paper");
}

static void
test_writing_and_reading_agree(void)
{
    g_autoptr(ModelCluster) cluster = parse_sound();
    g_autoptr(ModelCluster) copy = model_cluster_copy(cluster);
    g_autofree char *text = write_text(copy);
    g_autoptr(GError) error = NULL;
    g_autoptr(ModelCluster) again = parse(text, &error);
    g_autofree char *again_text = NULL;
    g_autofree char *nodes = NULL;

    g_assert_no_error(error);
    again_text = write_text(again);
    g_assert_cmpstr(again_text, ==, text);
    nodes = nodes_text(again);
    g_assert_cmpstr(nodes, ==, "A 8x3 B 4x2");
    g_assert_cmpfloat(model_cluster_device(again, 30)->flops_per_s[DTYPE_BF16], ==, 3e14);
}

static void
test_levels_are_the_innermost_that_hold_both(void)
{
    static const struct {
        int64_t a, b;
        size_t level;
    } cases[] = {
        {0, 0, 0},   {0, 3, 0},   {3, 4, 1},   {0, 7, 1},   {7, 8, 2},
        {0, 31, 2},  {8, 11, 0},  {24, 27, 0}, {27, 28, 2}, /* two small nodes, though 24..31 are 8
                                                               devices */
        {28, 31, 0}, {23, 24, 2}, {16, 23, 1},
    };
    g_autoptr(ModelCluster) cluster = parse_sound();

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_assert_cmpuint(model_cluster_level_between(cluster, cases[i].a, cases[i].b), ==,
                         cases[i].level);
        g_assert_cmpuint(model_cluster_level_between(cluster, cases[i].b, cases[i].a), ==,
                         cases[i].level);
    }
}

/* An NVLink domain of 72 over nodes of 4 is counted from device 0 on. */
static void
test_levels_may_span_nodes(void)
{
    static const char text[] =
        "{\"name\":\"rack\",\"devices\":[{\"name\":\"G\",\"flops_per_s\":{},"
        "\"vector_flops_per_s\":1,\"memory_bytes\":1,\"memory_bytes_per_s\":1}],"
        "\"nodes\":[{\"device\":\"G\",\"n_devices\":4,\"n_nodes\":36}],"
        "\"levels\":[{\"name\":\"nvlink\",\"group_devices\":72,\"bytes_per_s\":9e11,"
        "\"latency_s\":0},{\"name\":\"ib\",\"group_devices\":0,\"bytes_per_s\":5e10,"
        "\"latency_s\":0}]}";
    g_autoptr(GError) error = NULL;
    g_autoptr(ModelCluster) cluster = parse(text, &error);

    g_assert_no_error(error);
    g_assert_cmpuint(model_cluster_level_between(cluster, 0, 71), ==, 0);
    g_assert_cmpuint(model_cluster_level_between(cluster, 71, 72), ==, 1);
    g_assert_cmpuint(model_cluster_level_between(cluster, 72, 143), ==, 0);
}

/* "B" nodes have links of their own: what they leave out is the level's. */
static void
test_links_of_nodes_win(void)
{
    static const struct {
        int64_t first, last;
        size_t level;
        ModelLink link;
    } cases[] = {
        {0, 0, 0, {3e11, 0.0, 1e-6}},      {31, 31, 0, {3e11, 0.0, 5e-6}},
        {0, 0, 2, {3e9, 3.125e9, 2e-5}},   {24, 24, 2, {6e9, 0.0, 2e-5}},
        {24, 24, 1, {1e11, 0.0, 2e-6}},    {23, 24, 0, {3e11, 0.0, 5e-6}},
        {23, 24, 2, {3e9, 3.125e9, 2e-5}}, /* the slower of both, shared where one is */
        {24, 31, 2, {6e9, 0.0, 2e-5}},
    };
    g_autoptr(ModelCluster) cluster = parse_sound();
    g_autoptr(ModelCluster) more = model_cluster_resized(cluster, 34); /* B 4x2, B 2x1 */

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const ModelLink link =
            model_cluster_slowest_link(cluster, cases[i].first, cases[i].last, cases[i].level);

        g_assert_cmpfloat(link.bytes_per_s, ==, cases[i].link.bytes_per_s);
        g_assert_cmpfloat(link.shared_bytes_per_s, ==, cases[i].link.shared_bytes_per_s);
        g_assert_cmpfloat(link.latency_s, ==, cases[i].link.latency_s);
    }
    g_assert_cmpfloat(model_cluster_link(more, 33, 2).bytes_per_s, ==, 6e9);
}

static void
test_devices_have_prices(void)
{
    g_autoptr(ModelCluster) cluster = parse_sound();

    g_assert_cmpfloat(model_cluster_price_per_hour(cluster, 0), ==, 2.5);
    g_assert_cmpfloat(model_cluster_price_per_hour(cluster, 24), ==, 4.0);
}

/* Nodes 0..7, 8..15, 16..23, 24..27, 28..31; boards of 4. */
static void
test_groups(void)
{
    static const struct {
        size_t level;
        int64_t rank, first, n;
    } cases[] = {
        {0, 0, 0, 4}, {0, 7, 4, 4},   {0, 30, 28, 4}, {1, 7, 0, 8},
        {1, 8, 8, 8}, {1, 29, 28, 4}, {2, 0, 0, 32},  {2, 31, 0, 32},
    };
    g_autoptr(ModelCluster) cluster = parse_sound();

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        int64_t first = -1, n = -1;

        model_cluster_group(cluster, cases[i].level, cases[i].rank, &first, &n);
        g_assert_cmpint(first, ==, cases[i].first);
        g_assert_cmpint(n, ==, cases[i].n);
    }
}

static void
test_resizing_cuts_and_extends_nodes(void)
{
    static const struct {
        int64_t n;
        const char *nodes;
    } cases[] = {
        {1, "A 1x1"},
        {7, "A 7x1"},
        {8, "A 8x1"},
        {9, "A 8x1 A 1x1"},
        {16, "A 8x2"},
        {24, "A 8x3"},
        {25, "A 8x3 B 1x1"},
        {28, "A 8x3 B 4x1"},
        {30, "A 8x3 B 4x1 B 2x1"},
        {32, "A 8x3 B 4x2"},
        {34, "A 8x3 B 4x2 B 2x1"},
        {40, "A 8x3 B 4x4"},
        {MODEL_CLUSTER_MAX_DEVICES, "A 8x3 B 4x4194298"},
    };
    g_autoptr(ModelCluster) cluster = parse_sound();

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(ModelCluster) resized = model_cluster_resized(cluster, cases[i].n);
        g_autofree char *text = nodes_text(resized);

        g_assert_cmpstr(text, ==, cases[i].nodes);
        g_assert_cmpint(model_cluster_n_devices(resized), ==, cases[i].n);
        g_assert_cmpuint(resized->levels->len, ==, 3);
        g_assert_cmpstr(resized->currency, ==, "USD");
    }
}

/* Six devices of each node: A's nodes had 8, B's have 4; the nodes of A are smaller groups, boards of
 * 4 are not, and 6 of the 8 devices' adapters are 6/8 of 3.125e9 bytes/s. */
static void
test_devices_of_nodes_are_left_out(void)
{
    g_autoptr(ModelCluster) cluster = parse_sound();
    g_autoptr(ModelCluster) trimmed = model_cluster_trimmed(cluster, 6);
    g_autoptr(ModelCluster) same = model_cluster_trimmed(cluster, 8);
    g_autofree char *text = nodes_text(trimmed), *same_text = nodes_text(same);

    g_assert_cmpstr(text, ==, "A 6x3 B 4x2");
    g_assert_cmpint(g_array_index(trimmed->levels, ModelLevel, 0).group_devices, ==, 4);
    g_assert_cmpint(g_array_index(trimmed->levels, ModelLevel, 1).group_devices, ==, 6);
    g_assert_cmpfloat(model_cluster_link(trimmed, 0, 2).shared_bytes_per_s, ==, 0.75 * 3.125e9);
    g_assert_cmpuint(model_cluster_level_between(trimmed, 0, 5), ==, 1);
    g_assert_cmpuint(model_cluster_level_between(trimmed, 5, 6), ==, 2);
    g_assert_cmpstr(same_text, ==, "A 8x3 B 4x2");
    g_assert_cmpfloat(model_cluster_link(same, 0, 2).shared_bytes_per_s, ==, 3.125e9);
}

/* @replace takes the place of @find in the sound text; the message must contain @expect. */
static void
test_bad_clusters_are_refused(void)
{
    static const struct {
        const char *find, *replace, *expect;
    } cases[] = {
        {"\"n_nodes\":3", "\"n_nodes\":0", "$.nodes[0].n_nodes"},
        {"\"n_nodes\":3", "\"n_nodes\":-3", "$.nodes[0].n_nodes"},
        {"\"n_nodes\":3", "\"n_nodes\":16777216", "more than 16777216 devices"},
        {"\"device\":\"B\"", "\"device\":\"C\"", "$.nodes[1].device"},
        {"\"name\":\"B\"", "\"name\":\"A\"", "two kinds of device"},
        {"\"group_devices\":8", "\"group_devices\":4", "$.levels[1].group_devices"},
        {"\"group_devices\":8", "\"group_devices\":0", "$.levels[2]"},
        {"\"group_devices\":0", "\"group_devices\":16", "last level"},
        {"\"bytes_per_s\":3e11", "\"bytes_per_s\":0", "$.levels[0].bytes_per_s"},
        {"\"bytes_per_s\":3e11", "\"bytes_per_s\":1e300", "$.levels[0].bytes_per_s"},
        {"\"latency_s\":1e-6", "\"latency_s\":-1", "$.levels[0].latency_s"},
        {"\"fp16\"", "\"fp61\"", "did you mean \"fp16\""},
        {"\"fp16\":1e14", "\"fp16\":\"125T\"", "$.devices[0].flops_per_s.fp16"},
        {"\"memory_bytes\":16000000000", "\"memory_bytes\":0", "$.devices[0].memory_bytes"},
        {"\"memory_bytes\":16000000000", "\"memory_bytes\":9007199254740992",
         "$.devices[0].memory_bytes"},
        {"\"power_w\"", "\"watts\"", "watts"},
        {"\"level\":\"ethernet\"", "\"level\":\"ethernit\"", "did you mean \"ethernet\""},
        {"\"level\":\"ethernet\"", "\"level\":\"board\"", "level board: given twice"},
        {"\"bytes_per_s\":6e9", "\"bytes_per_s\":0", "$.nodes[1].links[0].bytes_per_s"},
        {"\"bytes_per_s\":6e9", "\"byte_per_s\":6e9", "did you mean \"bytes_per_s\""},
        {"\"links\":[", "\"links\":[3,", "$.nodes[1].links[0]"},
        {"\"paper\"", "7", "$.sources[1]"},
        {"\"name\":\"mixed\",", "", "$.name"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_auto(GStrv) parts = g_strsplit(sound, cases[i].find, 2);
        g_autofree char *text = g_strjoinv(cases[i].replace, parts);
        g_autoptr(GError) error = NULL;
        g_autoptr(ModelCluster) cluster = NULL;

        g_assert_cmpuint(g_strv_length(parts), ==, 2);
        cluster = parse(text, &error);
        g_test_message("%s: %s", cases[i].replace, error ? error->message : "accepted");
        g_assert_null(cluster);
        g_assert_error(error, JSON_ERROR, JSON_ERROR_INVALID);
        g_assert_nonnull(strstr(error->message, cases[i].expect));
    }
}

/* One level more than there may be. */
static void
test_too_many_levels_are_refused(void)
{
    g_autoptr(GString) text =
        g_string_new("{\"name\":\"x\",\"devices\":[{\"name\":\"G\",\"flops_per_s\":{},"
                     "\"vector_flops_per_s\":1,\"memory_bytes\":1,\"memory_bytes_per_s\":1}],"
                     "\"nodes\":[{\"device\":\"G\",\"n_devices\":4,\"n_nodes\":36}],\"levels\":[");
    g_autoptr(GError) error = NULL;

    for (int i = 0; i <= MODEL_CLUSTER_MAX_LEVELS; i++)
        g_string_append_printf(text,
                               "%s{\"name\":\"l\",\"group_devices\":%d,\"bytes_per_s\":1,"
                               "\"latency_s\":0}",
                               i > 0 ? "," : "", i < MODEL_CLUSTER_MAX_LEVELS ? 2 << i : 0);
    g_string_append(text, "]}");
    g_assert_null(parse(text->str, &error));
    g_assert_error(error, JSON_ERROR, JSON_ERROR_INVALID);
    g_assert_nonnull(strstr(error->message, "more than 8 levels"));
}

static void
test_empty_lists_are_refused(void)
{
    static const char *const texts[] = {
        "{}",
        "[]",
        "{\"name\":\"x\",\"devices\":[],\"nodes\":[],\"levels\":[]}",
        "{\"name\":\"x\",\"devices\":[3],\"nodes\":[null],\"levels\":[\"a\"]}",
    };

    for (size_t i = 0; i < G_N_ELEMENTS(texts); i++) {
        g_autoptr(GError) error = NULL;

        g_assert_null(parse(texts[i], &error));
        g_assert_error(error, JSON_ERROR, JSON_ERROR_INVALID);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/models/cluster/fields-are-read", test_fields_are_read);
    g_test_add_func("/models/cluster/writing-and-reading-agree", test_writing_and_reading_agree);
    g_test_add_func("/models/cluster/levels-are-the-innermost-that-hold-both",
                    test_levels_are_the_innermost_that_hold_both);
    g_test_add_func("/models/cluster/levels-may-span-nodes", test_levels_may_span_nodes);
    g_test_add_func("/models/cluster/resizing-cuts-and-extends-nodes",
                    test_resizing_cuts_and_extends_nodes);
    g_test_add_func("/models/cluster/devices-of-nodes-are-left-out",
                    test_devices_of_nodes_are_left_out);
    g_test_add_func("/models/cluster/bad-clusters-are-refused", test_bad_clusters_are_refused);
    g_test_add_func("/models/cluster/links-of-nodes-win", test_links_of_nodes_win);
    g_test_add_func("/models/cluster/devices-have-prices", test_devices_have_prices);
    g_test_add_func("/models/cluster/groups", test_groups);
    g_test_add_func("/models/cluster/too-many-levels-are-refused",
                    test_too_many_levels_are_refused);
    g_test_add_func("/models/cluster/empty-lists-are-refused", test_empty_lists_are_refused);
    return g_test_run();
}
