/* Tests of collectives and messages in profiles/cost/cost.h: formulas, topology, published tables. */
#include "profiles/cost/cost.h"

#include "tests/profiles/fixture.h"

#define MB 1000000

/* Fixture: 100 GB/s and 1 us inside, 10 GB/s per device, 20 GB/s per node and 10 us outside. */
static const ProfileGroup node_group = {.stride = 1, .n = 8};

/* 2 (n-1)/n B / b + 2 (n-1) a  [Patarasuk and Yuan 2009] */
static void
test_ring_all_reduce(void)
{
    g_autoptr(Profile) profile = fixture_profile();

    for (int64_t n = 2; n <= 8; n++) {
        ProfileGroup group = {.stride = 1, .n = n};
        double dn = (double)n;
        double expect = 2.0 * (dn - 1.0) / dn * 800e6 / 100e9 + 2.0 * (dn - 1.0) * 1e-6;

        assert_near(profile_cost_collective_s(profile, MODEL_COMM_ALL_REDUCE, 800 * MB, &group),
                    expect, 1e-12);
    }
}

static void
test_gather_and_scatter_are_halves_of_all_reduce(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    double whole = profile_cost_collective_s(profile, MODEL_COMM_ALL_REDUCE, 800 * MB, &node_group);

    assert_near(
        2.0 * profile_cost_collective_s(profile, MODEL_COMM_ALL_GATHER, 800 * MB, &node_group),
        whole, 1e-12);
    assert_near(
        2.0 * profile_cost_collective_s(profile, MODEL_COMM_REDUCE_SCATTER, 800 * MB, &node_group),
        whole, 1e-12);
}

/* Pipelined ring: 7 steps of latency, every byte once over every link. */
static void
test_broadcast(void)
{
    g_autoptr(Profile) profile = fixture_profile();

    assert_near(profile_cost_broadcast_s(profile, 100 * MB, &node_group), 100e6 / 100e9 + 7e-6,
                1e-12);
}

static void
test_one_rank_needs_no_communication(void)
{
    static const ModelComm comms[] = {
        MODEL_COMM_ALL_REDUCE,    MODEL_COMM_ALL_GATHER, MODEL_COMM_REDUCE_SCATTER,
        MODEL_COMM_RING_EXCHANGE, MODEL_COMM_ALL_TO_ALL,
    };
    g_autoptr(Profile) profile = fixture_profile();
    ProfileGroup one = {.first = 3, .stride = 1, .n = 1};

    for (size_t i = 0; i < G_N_ELEMENTS(comms); i++)
        g_assert_cmpfloat(profile_cost_collective_s(profile, comms[i], MB, &one), ==, 0.0);
    g_assert_cmpfloat(profile_cost_broadcast_s(profile, MB, &one), ==, 0.0);
    g_assert_cmpfloat(
        profile_cost_p2p_s(profile, MB, 3, 3, &(ProfileGroup){.first = 3, .stride = 1, .n = 1}), ==,
        0.0);
    g_assert_cmpfloat(profile_cost_collective_s(profile, MODEL_COMM_NONE, MB, &node_group), ==,
                      0.0);
}

/*
 * Across the two nodes a node's 20 GB/s are shared by its 8 devices (2.5 each, less than a device's
 * own 10): a ring with i ranks in each node has i shares.
 */
static void
test_rings_share_the_adapters_of_a_node(void)
{
    static const struct {
        ProfileGroup group;
        double bytes_per_s, ring_latency_s;
    } cases[] = {
        {{.stride = 8, .n = 2}, 2.5e9, 1e-5},         /* tp 8: one rank per node */
        {{.stride = 4, .n = 4}, 5e9, 2e-6 + 2e-5},    /* two */
        {{.stride = 1, .n = 16}, 20e9, 14e-6 + 2e-5}, /* all */
    };
    g_autoptr(Profile) profile = fixture_profile();

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        double n = (double)cases[i].group.n;
        double expect = (n - 1.0) / n * 800e6 / cases[i].bytes_per_s + cases[i].ring_latency_s;

        assert_near(
            profile_cost_collective_s(profile, MODEL_COMM_ALL_GATHER, 800 * MB, &cases[i].group),
            expect, 1e-12);
    }
}

/* Of the 16 steps of a ring over both nodes 14 stay inside, but wait for the network's pace. */
static void
test_steps_inside_a_node_wait_for_the_network(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ProfileGroup all = {.stride = 1, .n = 16};

    profile->parameters.network_inner_step_s = 6e-6;
    assert_near(profile_cost_collective_s(profile, MODEL_COMM_ALL_GATHER, 0, &all),
                14.0 * 6e-6 + 2e-5, 1e-12);
    assert_near(profile_cost_collective_s(profile, MODEL_COMM_ALL_GATHER, 0, &node_group), 7e-6,
                1e-12);
}

/* In a node each of a ring's steps costs as much more: 7 of a gather over 8, 14 of an all-reduce;
 * between nodes none does, and an all-to-all has no ring. */
static void
test_steps_of_a_ring_in_a_node(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ProfileGroup all = {.stride = 1, .n = 16};
    double gather = profile_cost_collective_s(profile, MODEL_COMM_ALL_GATHER, MB, &node_group);
    double reduce = profile_cost_collective_s(profile, MODEL_COMM_ALL_REDUCE, MB, &node_group);
    double spread = profile_cost_collective_s(profile, MODEL_COMM_ALL_TO_ALL, MB, &node_group);
    double network = profile_cost_collective_s(profile, MODEL_COMM_ALL_REDUCE, 800 * MB, &all);
    ProfileGroup pair = {.first = 2, .stride = 1, .n = 2};
    double two = profile_cost_collective_s(profile, MODEL_COMM_ALL_REDUCE, MB, &pair);

    profile->parameters.link_step_s = 20e-6;
    assert_near(profile_cost_collective_s(profile, MODEL_COMM_ALL_GATHER, MB, &node_group),
                gather + 7.0 * 20e-6, 1e-12);
    assert_near(profile_cost_collective_s(profile, MODEL_COMM_ALL_REDUCE, MB, &node_group),
                reduce + 14.0 * 20e-6, 1e-12);
    assert_near(profile_cost_collective_s(profile, MODEL_COMM_ALL_REDUCE, MB, &pair),
                two + 2.0 * 20e-6, 1e-12);
    assert_near(profile_cost_collective_s(profile, MODEL_COMM_ALL_TO_ALL, MB, &node_group), spread,
                1e-12);
    assert_near(profile_cost_collective_s(profile, MODEL_COMM_ALL_REDUCE, 800 * MB, &all), network,
                1e-12);
}

/* On the hybrid cube mesh of 8 V100 a ring has steps on two levels of the node: all pay alike. */
static void
test_steps_on_levels_of_a_node(void)
{
    g_autoptr(Profile) profile = profile_load("p3.16xlarge", NULL);
    double before = profile_cost_collective_s(profile, MODEL_COMM_ALL_GATHER, MB, &node_group);

    profile->parameters.link_step_s = 20e-6;
    assert_near(profile_cost_collective_s(profile, MODEL_COMM_ALL_GATHER, MB, &node_group),
                before + 8.0 * 20e-6, 1e-12);
}

/* Two sockets of 4 devices: a device sends 10 GB/s to the other, all together 16.  One ring crosses
 * from one device to one; two rings (of 2 in a socket) share the way, and so do four.  Out of the machine each
 * device sends 1 GB/s, and a ring leaves from all of its devices at once. */
static void
test_rings_between_sockets(void)
{
    static const struct {
        ProfileGroup group;
        double sent, bytes_per_s;
    } cases[] = {
        {{.stride = 1, .n = 8}, 7.0 / 8, 10e9},   {{.stride = 2, .n = 4}, 3.0 / 4, 8e9},
        {{.stride = 4, .n = 2}, 1.0 / 2, 4e9},    {{.stride = 1, .n = 4}, 3.0 / 4, 100e9},
        {{.stride = 1, .n = 16}, 15.0 / 16, 8e9}, {{.stride = 8, .n = 2}, 1.0 / 2, 1e9},
    };
    g_autoptr(Profile) profile = fixture_parse(
        FIXTURE_HEAD "{\"name\":\"c\",\"devices\":[" FIXTURE_DEVICE
                     "],\"nodes\":[{\"device\":\"D\",\"n_devices\":8,\"n_nodes\":2}],\"levels\":["
                     "{\"name\":\"in\",\"group_devices\":4,\"bytes_per_s\":100e9,\"latency_s\":0},"
                     "{\"name\":\"sockets\",\"group_devices\":8,\"bytes_per_s\":10e9,"
                     "\"shared_bytes_per_s\":16e9,\"latency_s\":0},"
                     "{\"name\":\"out\",\"group_devices\":0,\"bytes_per_s\":1e9,\"latency_s\":0}]},"
                     "\"cost\":" FIXTURE_COST "}",
        NULL);

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++)
        assert_near(
            profile_cost_collective_s(profile, MODEL_COMM_ALL_GATHER, 800 * MB, &cases[i].group),
            800e6 * cases[i].sent / cases[i].bytes_per_s, 1e-12);
}

/* 16 ranks: half of each buffer leaves the node at 2.5 GB/s, 7/16 stay at 100. */
/* A row that goes to 8 experts at random reaches 8 (1 - (7/8)^8) = 5.2511 of the 8 ranks of a node,
 * and 2 (1 - 2^-8) = 1.9922 of two nodes; with one expert, or all copies, nothing is saved. */
static void
test_one_copy_for_each_place(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    const ProfileGroup all = {.stride = 1, .n = 16}, alone = {.stride = 1, .n = 1};
    ModelOp op = {.kind = MODEL_OP_COLLECTIVE, .comm_bytes = 800 * MB, .copies = 8};

    assert_near((double)profile_carried_bytes(profile, &op, &node_group), 525.1129e6, 1e-6);
    assert_near((double)profile_carried_bytes(profile, &op, &all), 199.21875e6, 1e-6);
    g_assert_cmpint(profile_carried_bytes(profile, &op, &alone), ==, 800 * MB);
    /* What goes with each copy to a place is a tenth of it, and half of that to each of two nodes. */
    op.place_bytes = 80 * MB;
    assert_near((double)profile_carried_bytes(profile, &op, &node_group), 1.1 * 525.1129e6, 1e-6);
    assert_near((double)profile_carried_bytes(profile, &op, &all), 1.05 * 199.21875e6, 1e-6);
    op.place_bytes = 0;
    op.copies = 1;
    g_assert_cmpint(profile_carried_bytes(profile, &op, &all), ==, 800 * MB);
    op.copies = 0;
    g_assert_cmpint(profile_carried_bytes(profile, &op, &all), ==, 800 * MB);
}

static void
test_all_to_all_is_bound_by_what_leaves(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ProfileGroup all = {.stride = 1, .n = 16};

    assert_near(profile_cost_collective_s(profile, MODEL_COMM_ALL_TO_ALL, 160 * MB, &all),
                80e6 / 2.5e9 + 1e-5, 1e-12);
    assert_near(profile_cost_collective_s(profile, MODEL_COMM_ALL_TO_ALL, 160 * MB, &node_group),
                140e6 / 100e9 + 1e-6, 1e-12);
}

/* A ring of 16 nodes pays 30 steps, a tree 8. */
static void
test_small_all_reduces_take_the_tree(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ProfileGroup group = {.stride = 8, .n = 16};
    ModelCluster *large = model_cluster_resized(profile->cluster, 128);

    model_cluster_free(profile->cluster);
    profile->cluster = large;
    assert_near(profile_cost_collective_s(profile, MODEL_COMM_ALL_REDUCE, 8, &group),
                2.0 * (4 * 1e-5 + 8 / 2.5e9), 1e-9);
}

static void
test_more_bytes_and_more_ranks_take_longer(void)
{
    g_autoptr(Profile) profile = fixture_profile();

    for (int comm = MODEL_COMM_ALL_REDUCE; comm <= MODEL_COMM_RING_EXCHANGE; comm++) {
        double last_n = 0.0;

        for (int64_t n = 2; n <= 16; n++) {
            ProfileGroup group = {.stride = 1, .n = n};
            double last = 0.0;

            for (int64_t bytes = 1; bytes < (INT64_C(1) << 40); bytes *= 3) {
                double t = profile_cost_collective_s(profile, (ModelComm)comm, bytes, &group);

                g_assert_cmpfloat(t, >, last);
                last = t;
            }
            g_assert_cmpfloat(last, >, last_n);
            last_n = n == 8 ? 0.0 : last; /* beyond a node other links count */
        }
    }
}

static void
test_messages(void)
{
    g_autoptr(Profile) profile = fixture_profile();

    /* Inside; outside alone at the device's rate; 8 at once share 20 GB/s. */
    assert_near(profile_cost_p2p_s(profile, 100 * MB, 0, 1, &(ProfileGroup){.stride = 1, .n = 8}),
                100e6 / 100e9 + 1e-6, 1e-12);
    assert_near(profile_cost_p2p_s(profile, 100 * MB, 0, 8, &(ProfileGroup){.stride = 1, .n = 1}),
                100e6 / 10e9 + 1e-5, 1e-12);
    assert_near(profile_cost_p2p_s(profile, 100 * MB, 0, 8, &(ProfileGroup){.stride = 1, .n = 8}),
                100e6 / 2.5e9 + 1e-5, 1e-12);
    assert_near(profile_cost_p2p_s(profile, 0, 0, 8, &(ProfileGroup){.stride = 1, .n = 8}), 1e-5,
                1e-12);
}

/* Pods of 4 nodes of 2 devices: ways out of a node 20 GB/s, out of a pod 24 GB/s. */
static const char pods[] = FIXTURE_HEAD
    "{\"name\":\"c\",\"devices\":[" FIXTURE_DEVICE
    "],\"nodes\":[{\"device\":\"D\",\"n_devices\":2,\"n_nodes\":8}],\"levels\":["
    "{\"name\":\"in\",\"group_devices\":2,\"bytes_per_s\":100e9,\"latency_s\":0},"
    "{\"name\":\"pod\",\"group_devices\":8,\"bytes_per_s\":16e9,\"shared_bytes_per_s\":20e9,"
    "\"latency_s\":0},"
    "{\"name\":\"spine\",\"group_devices\":0,\"bytes_per_s\":16e9,\"shared_bytes_per_s\":24e9,"
    "\"latency_s\":0}]},\"cost\":" FIXTURE_COST "}";

/* Out of a pod a message shares its node's way out with the node's, and the pod's with the pod's.
 */
static void
test_messages_leave_pods(void)
{
    static const struct {
        int64_t a, b, n_at_once;
        double bytes_per_s;
    } cases[] = {
        {0, 1, 8, 100e9}, {0, 2, 1, 16e9}, {0, 2, 2, 10e9}, {0, 2, 8, 10e9}, {0, 8, 1, 16e9},
        {0, 8, 2, 10e9},  {0, 8, 4, 6e9},  {0, 8, 8, 3e9},  {6, 8, 8, 10e9}, {7, 8, 8, 16e9},
    };
    g_autoptr(Profile) profile = fixture_parse(pods, NULL);

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++)
        assert_near(profile_cost_p2p_s(
                        profile, 100 * MB, cases[i].a, cases[i].b,
                        &(ProfileGroup){.first = cases[i].a, .stride = 1, .n = cases[i].n_at_once}),
                    100e6 / cases[i].bytes_per_s, 1e-12);
}

/*
 * What a rank gives to each level, as share of the buffer.  Rings: all-reduce of 16 ranks, 2 in a
 * node, 8 in a pod: 30/16 in all, of which 1/8 leaves the pod, 1/2 - 1/8 stays in it, 1/2 in the
 * node; of 8 with stride 2 (one in a node, 4 in a pod) 14/8: 1/4 leaves the pod.  All-to-all: 1
 * rank in the node, 6 in the pod, 8 outside, of 16.
 */
static void
test_traffic_by_levels(void)
{
    static const struct {
        ModelComm comm;
        ProfileGroup group;
        double share[3];
    } cases[] = {
        {MODEL_COMM_ALL_REDUCE,
         {.stride = 1, .n = 16},
         {30.0 / 16 / 2, 30.0 / 16 * 3 / 8, 30.0 / 16 / 8}},
        {MODEL_COMM_ALL_GATHER,
         {.stride = 1, .n = 16},
         {15.0 / 16 / 2, 15.0 / 16 * 3 / 8, 15.0 / 16 / 8}},
        {MODEL_COMM_REDUCE_SCATTER, {.first = 8, .stride = 1, .n = 2}, {0.5, 0, 0}},
        {MODEL_COMM_ALL_REDUCE, {.stride = 2, .n = 8}, {0, 14.0 / 8 * 3 / 4, 14.0 / 8 / 4}},
        {MODEL_COMM_RING_EXCHANGE, {.stride = 8, .n = 2}, {0, 0, 0.5}},
        {MODEL_COMM_ALL_TO_ALL, {.stride = 1, .n = 16}, {1.0 / 16, 6.0 / 16, 8.0 / 16}},
        {MODEL_COMM_ALL_TO_ALL, {.stride = 1, .n = 8}, {1.0 / 8, 6.0 / 8, 0}},
        {MODEL_COMM_NONE, {.stride = 1, .n = 8}, {0, 0, 0}},
        {MODEL_COMM_ALL_REDUCE, {.first = 3, .stride = 1, .n = 1}, {0, 0, 0}},
    };
    g_autoptr(Profile) profile = fixture_parse(pods, NULL);

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        double traffic[MODEL_CLUSTER_MAX_LEVELS] = {0};
        profile_collective_traffic(profile, cases[i].comm, 16 * MB, &cases[i].group, traffic);
        for (int level = 0; level < 3; level++)
            g_assert_cmpfloat_with_epsilon(traffic[level], 16e6 * cases[i].share[level], 1e-3);
    }
}

/* 10 us up to 1000 bytes, then 10 ns per byte. */
static void
test_measured_messages_win(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ProfileMeasurement row = {.op = PROFILE_OP_P2P, .n_ranks = 2};
    ProfileGroup pair = {.stride = 1, .n = 2}, four = {.stride = 1, .n = 4};
    static const struct {
        ProfileOp op;
        ModelComm comm;
    } ops[] = {
        {PROFILE_OP_ALL_REDUCE, MODEL_COMM_ALL_REDUCE},
        {PROFILE_OP_ALL_GATHER, MODEL_COMM_ALL_GATHER},
        {PROFILE_OP_REDUCE_SCATTER, MODEL_COMM_REDUCE_SCATTER},
        {PROFILE_OP_ALL_TO_ALL, MODEL_COMM_ALL_TO_ALL},
    };

    for (int64_t bytes = 1000; bytes <= 3000; bytes += 1000) {
        row.bytes = bytes;
        row.median_s = 10e-6 + (double)(bytes - 1000) * 10e-9;
        row.op = PROFILE_OP_P2P;
        profile_add(profile, &row);
        for (size_t i = 0; i < G_N_ELEMENTS(ops); i++) {
            /* One microsecond apart, so that none is taken for another. */
            row.op = ops[i].op;
            row.median_s += 1e-6;
            profile_add(profile, &row);
        }
    }
    assert_near(profile_cost_p2p_s(profile, 10, 0, 1, &(ProfileGroup){.stride = 1, .n = 1}), 10e-6,
                1e-12);
    assert_near(profile_cost_p2p_s(profile, 2000, 0, 1, &(ProfileGroup){.stride = 1, .n = 1}),
                20e-6, 1e-12);
    assert_near(profile_cost_p2p_s(profile, 2500, 0, 1, &(ProfileGroup){.stride = 1, .n = 1}),
                25e-6, 1e-12);
    assert_near(profile_cost_p2p_s(profile, 5000, 0, 1, &(ProfileGroup){.stride = 1, .n = 1}),
                50e-6, 1e-12);
    for (size_t i = 0; i < G_N_ELEMENTS(ops); i++)
        assert_near(profile_cost_collective_s(profile, ops[i].comm, 1500, &pair),
                    15e-6 + (double)(i + 1) * 1e-6, 1e-12);
    /* Not measured over four: modelled. */
    assert_near(profile_cost_collective_s(profile, MODEL_COMM_ALL_REDUCE, 4000, &four),
                2.0 * (3e-6 + 3000 / 100e9), 1e-12);
}

/* All-reduce times of nccl-tests that vTrain publishes [vtrain2024, data/nccl]; MiB, us. */
static void
test_published_nccl_times(void)
{
    static const struct {
        const char *cluster;
        int64_t n, mib;
        double us, tolerance;
    } cases[] = {
        {"dgx-a100-80g", 2, 1024, 5442.8, 0.16}, {"dgx-a100-80g", 4, 1024, 7259.4, 0.10},
        {"dgx-a100-80g", 8, 1024, 8193.0, 0.05}, {"dgx-a100-80g", 8, 64, 579.9, 0.10},
        {"dgx-a100-80g", 8, 4, 95.8, 0.10},      {"p3.16xlarge", 2, 1024, 47610.0, 0.05},
        {"p3.16xlarge", 4, 1024, 18869.0, 0.05}, {"p3.16xlarge", 8, 1024, 13969.0, 0.05},
        {"p3.16xlarge", 8, 64, 911.3, 0.05},     {"p3.16xlarge", 8, 1, 79.9, 0.15},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(Profile) profile = profile_load(cases[i].cluster, NULL);
        ProfileGroup group = {.stride = 1, .n = cases[i].n};

        assert_near(1e6 * profile_cost_collective_s(profile, MODEL_COMM_ALL_REDUCE,
                                                    cases[i].mib << 20, &group),
                    cases[i].us, cases[i].tolerance);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/profiles/collective/ring-all-reduce", test_ring_all_reduce);
    g_test_add_func("/profiles/collective/gather-and-scatter-are-halves-of-all-reduce",
                    test_gather_and_scatter_are_halves_of_all_reduce);
    g_test_add_func("/profiles/collective/broadcast", test_broadcast);
    g_test_add_func("/profiles/collective/one-rank-needs-no-communication",
                    test_one_rank_needs_no_communication);
    g_test_add_func("/profiles/collective/rings-share-the-adapters-of-a-node",
                    test_rings_share_the_adapters_of_a_node);
    g_test_add_func("/profiles/collective/steps-inside-wait-for-the-network",
                    test_steps_inside_a_node_wait_for_the_network);
    g_test_add_func("/profiles/collective/steps-of-a-ring-in-a-node",
                    test_steps_of_a_ring_in_a_node);
    g_test_add_func("/profiles/collective/steps-on-levels-of-a-node",
                    test_steps_on_levels_of_a_node);
    g_test_add_func("/profiles/collective/rings-between-sockets", test_rings_between_sockets);
    g_test_add_func("/profiles/collective/all-to-all-is-bound-by-what-leaves",
                    test_all_to_all_is_bound_by_what_leaves);
    g_test_add_func("/profiles/collective/one-copy-for-each-place", test_one_copy_for_each_place);
    g_test_add_func("/profiles/collective/small-all-reduces-take-the-tree",
                    test_small_all_reduces_take_the_tree);
    g_test_add_func("/profiles/collective/more-bytes-and-more-ranks-take-longer",
                    test_more_bytes_and_more_ranks_take_longer);
    g_test_add_func("/profiles/collective/messages", test_messages);
    g_test_add_func("/profiles/collective/measured-messages-win", test_measured_messages_win);
    g_test_add_func("/profiles/collective/messages-leave-pods", test_messages_leave_pods);
    g_test_add_func("/profiles/collective/traffic-by-levels", test_traffic_by_levels);
    g_test_add_func("/profiles/collective/published-nccl-times", test_published_nccl_times);
    return g_test_run();
}
