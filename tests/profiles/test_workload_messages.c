/* Tests of profiles/workload/workload.h: messages between ranks, the links they take, and senders that wait.
 */
#include "tests/profiles/workload_case.h"

/* [1, 512, 1024] in fp16 is 1 MiB.  tp 8 on nodes of 8: neighbours are on other nodes. */
static void
test_message_conventions(void)
{
    static const struct {
        PlanFramework framework;
        bool sequence_parallel;
        int64_t bytes;
        double seconds;
    } cases[] = {
        /* every tp rank sends the whole: 8 share 20 GB/s */
        {PLAN_FRAMEWORK_MEGATRON_CORE, false, 1 << 20, 1048576 / 2.5e9 + 1e-5},
        /* one sends at its own 10 GB/s, then a broadcast over 8 */
        {PLAN_FRAMEWORK_TERAPIPE, false, 1 << 20, 1048576 / 10e9 + 1e-5 + 1048576 / 100e9 + 7e-6},
        /* each sends an eighth, then an all-gather */
        {PLAN_FRAMEWORK_MEGATRON_LM, false, 1 << 20,
         131072 / 2.5e9 + 1e-5 + 7.0 / 8.0 * 1048576 / 100e9 + 7e-6},
        {PLAN_FRAMEWORK_DEGAS, false, 1 << 20,
         131072 / 2.5e9 + 1e-5 + 7.0 / 8.0 * 1048576 / 100e9 + 7e-6},
        /* each has an eighth of the tokens: nothing to gather */
        {PLAN_FRAMEWORK_MEGATRON_LM, true, 1 << 17, 131072 / 2.5e9 + 1e-5},
    };
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(4, 0);

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        PlanSpec spec = {.degrees = {1, 8, 2, 1, 1, 1, 0},
                         .framework = cases[i].framework,
                         .sequence_parallel = cases[i].sequence_parallel};
        g_autoptr(Workload) workload = workload_of(&arch, profile, &spec);
        const WorkloadOp *first = workload_op(workload, 0, 0, 0, 0);
        const WorkloadOp *last = workload_op(workload, 0, 1, 0, 0);

        g_assert_cmpint(first->forward_message.bytes, ==, cases[i].bytes);
        assert_near((double)first->forward_message.ns, 1e9 * cases[i].seconds, 1e-5);
        g_assert_cmpint(first->backward_message.ns, ==, 0);
        g_assert_cmpint(last->forward_message.ns, ==, 0);
        g_assert_cmpint(last->backward_message.ns, ==, first->forward_message.ns);
        g_assert_cmpint(workload->blocking_messages, ==,
                        cases[i].framework != PLAN_FRAMEWORK_DEGAS);
    }
}

/*
 * A node of 8 D and one of 8 E, which computes and reads memory at half the rate and has adapters
 * of 1 GB/s.  Each stage runs at its device's pace, messages both ways at the slower end's rate,
 * and each device costs and draws its own.
 */
static void
test_unlike_nodes(void)
{
    static const char text[] = FIXTURE_HEAD
        "{\"name\":\"c\",\"devices\":[" FIXTURE_DEVICE ","
        "{\"name\":\"E\",\"flops_per_s\":{\"fp16\":50e12,\"fp32\":5e12},"
        "\"vector_flops_per_s\":5e12,\"memory_bytes\":40000000000,\"memory_bytes_per_s\":5e11,"
        "\"n_multiprocessors\":100,\"power_w\":50,\"price_per_hour\":1}],"
        "\"nodes\":[{\"device\":\"D\",\"n_devices\":8,\"n_nodes\":1},"
        "{\"device\":\"E\",\"n_devices\":8,\"n_nodes\":1,\"links\":[{\"level\":\"out\","
        "\"bytes_per_s\":1e9}]}],"
        "\"levels\":" FIXTURE_LEVELS ",\"price_per_device_hour\":3},\"cost\":" FIXTURE_COST "}";
    g_autoptr(GError) error = NULL;
    g_autoptr(Profile) profile = fixture_parse(text, &error);
    ModelArch arch = gpt(4, 0);
    PlanSpec spec = {.degrees = {1, 8, 2, 1, 1, 1, 0}, .framework = PLAN_FRAMEWORK_DEGAS};

    g_assert_no_error(error);
    g_autoptr(Workload) workload = workload_of(&arch, profile, &spec);
    const WorkloadOp *fast = workload_op(workload, 0, 0, 0, 0);
    const WorkloadOp *slow = workload_op(workload, 0, 1, 0, 0);
    for (int kind = 0; kind < SCHEDULE_OP_N; kind++) {
        assert_near((double)slow->part_ns[kind][PROFILE_PART_COMPUTE],
                    2.0 * (double)fast->part_ns[kind][PROFILE_PART_COMPUTE], 1e-4);
        g_assert_cmpint(slow->part_ns[kind][PROFILE_PART_TP], ==,
                        fast->part_ns[kind][PROFILE_PART_TP]);
    }
    /* Each device sends an eighth, then all gather it. */
    const double seconds = 131072 / 1e9 + 1e-5 + 7.0 / 8.0 * 1048576 / 100e9 + 7e-6;
    assert_near((double)fast->forward_message.ns, 1e9 * seconds, 1e-5);
    g_assert_cmpint(slow->backward_message.ns, ==, fast->forward_message.ns);
    g_assert_cmpint(workload->ranks[0].memory_limit_bytes, ==, 80000000000);
    g_assert_cmpint(workload->ranks[1].memory_limit_bytes, ==, 40000000000);
    g_assert_cmpfloat(workload->ranks[1].device_flops_per_s, ==, 50e12);
    g_assert_cmpfloat(workload->price_per_device_hour, ==, 2.0);
    g_assert_cmpfloat(workload->power_w_per_device, ==, 75.0);
}

/* Crossings of (rank, level) as text: "link*devices ..." in the order of the links' first use. */
static char *
crossings_text(const WorkloadLinks *links)
{
    GString *text = g_string_new(NULL);

    for (int64_t i = 0; i < links->begin[links->n_levels]; i++)
        g_string_append_printf(text, "%s%d*%d", i > 0 ? " " : "", links->crossings[i].link,
                               links->crossings[i].n_devices);
    return g_string_free(text, FALSE);
}

/*
 * Links of 2 nodes of 8; level 0: the devices' own; level 1: their own, and the way out of the
 * node, 20 GB/s.  Which ranks have it in common depends on how many fit in a node.
 */
static void
test_links(void)
{
    static const struct {
        PlanDegrees degrees;
        int64_t ways_out; /* in all */
        int32_t rank_a, rank_b;
        bool common; /* both go out the same way */
        int32_t n_devices;
    } cases[] = {
        {{1, 2, 4, 1, 1, 1, 0}, 1, 0, 3, true, 2},
        {{1, 2, 8, 1, 1, 1, 0}, 2, 0, 3, true, 2},
        {{1, 2, 8, 1, 1, 1, 0}, 2, 3, 4, false, 2},
        {{2, 4, 2, 1, 1, 1, 0}, 2, 0, 1, false, 8},
        {{8, 2, 1, 1, 1, 1, 0}, 2, 0, 0, true, 8}, /* one rank, both nodes */
        /* pp before dp: both nodes have devices of all ranks, and carry the same; pp first, too */
        {{8, 1, 2, 1, 1, 1, 1}, 1, 0, 1, true, 4},
        {{4, 2, 2, 1, 1, 1, 1}, 1, 0, 1, true, 4},
        {{1, 2, 8, 1, 1, 1, 18}, 1, 0, 7, true, 1},
        {{2, 4, 2, 1, 1, 1, 1}, 1, 0, 1, true, 4},
        {{2, 8, 1, 1, 1, 1, 12}, 2, 0, 0, true, 8}, /* dp, then tp over both nodes */
    };
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(8, 0);

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const PlanSpec spec = {.degrees = cases[i].degrees, .framework = PLAN_FRAMEWORK_DEGAS};
        g_autoptr(Workload) workload = workload_of(&arch, profile, &spec);
        const WorkloadLinks *links = workload->links;
        const int64_t p = cases[i].degrees.pp;
        const int64_t a = links->begin[2 * cases[i].rank_a + 1] + 1;
        const int64_t b = links->begin[2 * cases[i].rank_b + 1] + 1;
        g_autofree char *text = crossings_text(links);

        g_test_message("%s", text);
        g_assert_cmpint(links->n_levels, ==, 2);
        g_assert_cmpint(links->n_links, ==, 2 * p + cases[i].ways_out);
        g_assert_cmpint(links->crossings[links->begin[0]].n_devices, ==, 0);
        g_assert_cmpfloat(links->bytes_per_s[links->crossings[links->begin[0]].link], ==, 100e9);
        g_assert_cmpint(links->crossings[a].n_devices, ==, cases[i].n_devices);
        g_assert_cmpfloat(links->bytes_per_s[links->crossings[a].link], ==, 20e9);
        g_assert_cmpint(links->crossings[a].link == links->crossings[b].link, ==, cases[i].common);
    }
}

/* tp 8 in a node, dp 2 between nodes: where the bytes go, and what a message puts on a link. */
static void
test_traffic(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(4, 0);
    PlanSpec spec = {.degrees = {2, 8, 1, 1, 1, 1, 0}, .framework = PLAN_FRAMEWORK_DEGAS};
    g_autoptr(Workload) workload = workload_of(&arch, profile, &spec);
    const WorkloadOp *op = workload_op(workload, 0, 0, 0, 0);
    const WorkloadRank *rank = &workload->ranks[0];
    /* Two all-reduces of [1, 512, 1024] in fp16 per layer and pass [shoeybi2019]. */
    const double layer = 2.0 * 2.0 * 7.0 / 8.0 * 1048576.0;

    assert_near((double)op->traffic_bytes[SCHEDULE_OP_FORWARD][0], 4 * layer, 1e-6);
    assert_near((double)op->traffic_bytes[SCHEDULE_OP_BACKWARD][0], 4 * layer, 1e-6);
    g_assert_cmpfloat((double)op->traffic_bytes[SCHEDULE_OP_BACKWARD_WEIGHT][0], ==, 0);
    g_assert_cmpfloat((double)op->traffic_bytes[SCHEDULE_OP_FORWARD][1], ==, 0);
    /* A ring of two: 2 * 1/2 of the gradients, all of it between nodes. */
    g_assert_cmpfloat(rank->dp_reduce_traffic_bytes[0], ==, 0);
    assert_near(rank->dp_reduce_traffic_bytes[1], (double)rank->dp_reduce_bytes, 1e-12);
    g_assert_cmpint(rank->n_buckets, ==, 4); /* degas: a layer each */

    spec.degrees = (PlanDegrees){1, 8, 2, 1, 1, 1, 0};
    g_autoptr(Workload) piped = workload_of(&arch, profile, &spec);
    op = workload_op(piped, 0, 0, 0, 0);
    g_assert_cmpint(op->forward_message.sent_bytes, ==, 1048576 / 8); /* scatter/gather */
    g_assert_cmpint(op->forward_message.level, ==, 1);
    g_assert_cmpint(op->backward_message.sent_bytes, ==, 0);
}

/* The sender waits for what the transport cannot hold; all of a message that fits is free to it. */
static void
test_senders_wait_for_what_is_not_buffered(void)
{
    static const struct {
        double buffer_bytes, waits_s;
    } cases[] = {
        {0.0, 1048576 / 10e9 + 1e-5},
        {262144.0, 786432 / 10e9 + 1e-5},
        {1e9, 1e-5},
    };
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(4, 0);
    PlanSpec spec = {.degrees = {1, 8, 2, 1, 1, 1, 0}, .framework = PLAN_FRAMEWORK_TERAPIPE};

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const WorkloadOp *op;
        g_autoptr(Workload) workload = NULL;

        profile->parameters.message_buffer_bytes = cases[i].buffer_bytes;
        workload = workload_of(&arch, profile, &spec);
        op = workload_op(workload, 0, 0, 0, 0);
        assert_near((double)(op->forward_message.ns - op->forward_message.buffered_ns),
                    1e9 * cases[i].waits_s, 1e-4);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
#define ADD(path, function) g_test_add_func("/profiles/workload-messages/" path, function)
    ADD("message-conventions", test_message_conventions);
    ADD("unlike-nodes", test_unlike_nodes);
    ADD("links", test_links);
    ADD("traffic", test_traffic);
    ADD("senders-wait-for-what-is-not-buffered", test_senders_wait_for_what_is_not_buffered);
#undef ADD
    return g_test_run();
}
