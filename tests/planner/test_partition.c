/* Tests of planner/partition.h: exact against exhaustive search, ties, what does not fit. */
#include "planner/partition.h"

#include <string.h>

#include "schedule/plan.h"

#define MAX_STAGES 5

static uint32_t
draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* --- oracle --- */

typedef struct {
    const PlanPartition *p;
    int64_t counts[MAX_STAGES], best[MAX_STAGES];
    int64_t longest, squares;
    bool found;
} Oracle;

static void
judge(Oracle *oracle)
{
    const PlanPartition *p = oracle->p;
    int64_t longest = 0, squares = 0, layer = 0;

    for (int64_t s = 0; s < p->n_stages; s++) {
        int64_t time = (s == 0 ? p->first_ns : 0) + (s == p->n_stages - 1 ? p->last_ns : 0);
        int64_t bytes = (s == 0 ? p->first_bytes : 0) + (s == p->n_stages - 1 ? p->last_bytes : 0);
        for (int64_t k = 0; k < oracle->counts[s]; k++, layer++) {
            time += p->layer_ns[layer];
            bytes += p->layer_bytes[layer] + p->stage_layer_bytes[s];
        }
        if (p->stage_limit_bytes[s] != 0 && bytes > p->stage_limit_bytes[s])
            return;
        longest = MAX(longest, time);
        squares += time * time;
    }
    /* Enumerated with more layers on earlier stages first: only a better one replaces. */
    if (oracle->found &&
        (longest > oracle->longest || (longest == oracle->longest && squares >= oracle->squares)))
        return;
    oracle->found = true;
    oracle->longest = longest;
    oracle->squares = squares;
    for (int s = 0; s < MAX_STAGES; s++)
        oracle->best[s] = oracle->counts[s];
}

static void
enumerate(Oracle *oracle, int64_t stage, int64_t left)
{
    if (stage == oracle->p->n_stages - 1) {
        oracle->counts[stage] = left;
        if (left > 0 || oracle->p->allow_empty)
            judge(oracle);
        return;
    }
    for (int64_t count = left; count >= (oracle->p->allow_empty ? 0 : 1); count--) {
        oracle->counts[stage] = count;
        enumerate(oracle, stage + 1, left - count);
    }
}

static void
test_equals_exhaustive_search(void)
{
    uint32_t state = 3;
    int n_feasible = 0, n_infeasible = 0;

    for (int round = 0; round < 1500; round++) {
        int64_t layer_ns[12], layer_bytes[12], stage_bytes[MAX_STAGES], limits[MAX_STAGES];
        const uint32_t spread = (uint32_t[]){1, 3, 1000}[draw(&state) % 3];
        const uint32_t room = 20 + draw(&state) % 100;
        for (int i = 0; i < 12; i++) {
            layer_ns[i] = 10 + draw(&state) % spread;
            layer_bytes[i] = 1 + draw(&state) % 10;
        }
        for (int s = 0; s < MAX_STAGES; s++) {
            stage_bytes[s] = draw(&state) % 10;
            limits[s] = draw(&state) % 4 == 0 ? 0 : 5 + draw(&state) % room;
        }
        const PlanPartition partition = {
            .n_layers = 1 + draw(&state) % 12,
            .n_stages = 1 + draw(&state) % MAX_STAGES,
            .layer_ns = layer_ns,
            .layer_bytes = layer_bytes,
            .first_ns = draw(&state) % 30,
            .last_ns = draw(&state) % 30,
            .first_bytes = draw(&state) % 10,
            .last_bytes = draw(&state) % 10,
            .stage_layer_bytes = stage_bytes,
            .stage_limit_bytes = limits,
            .allow_empty = draw(&state) % 2 == 0,
        };
        Oracle oracle = {.p = &partition};
        int64_t counts[MAX_STAGES] = {0};
        g_autoptr(GError) error = NULL;

        if (partition.n_layers >= partition.n_stages || partition.allow_empty)
            enumerate(&oracle, 0, partition.n_layers);
        const bool done = plan_partition(&partition, counts, &error);
        g_assert_cmpint(done, ==, oracle.found);
        if (!done) {
            g_assert_error(error, PLAN_ERROR, PLAN_ERROR_INFEASIBLE);
            g_assert_nonnull(strstr(error->message, "stage "));
            n_infeasible++;
            continue;
        }
        g_assert_no_error(error);
        n_feasible++;
        for (int64_t s = 0; s < partition.n_stages; s++)
            g_assert_cmpint(counts[s], ==, oracle.best[s]);
    }
    g_assert_cmpint(n_feasible, >, 300);
    g_assert_cmpint(n_infeasible, >, 100);
}

static void
test_embedding_and_head_lighten_the_ends(void)
{
    /* 2+16 | 16 | 6+8 and 2+12 | 16 | 6+12 share maximum 18 and squares: more layers come first. */
    static const int64_t layer_ns[10] = {4, 4, 4, 4, 4, 4, 4, 4, 4, 4};
    const PlanPartition partition = {
        .n_layers = 10, .n_stages = 3, .layer_ns = layer_ns, .first_ns = 2, .last_ns = 6};
    int64_t counts[3];

    g_assert_true(plan_partition(&partition, counts, NULL));
    g_assert_cmpint(counts[0], ==, 4);
    g_assert_cmpint(counts[1], ==, 4);
    g_assert_cmpint(counts[2], ==, 2);
}

static void
test_message_names_the_full_stage(void)
{
    static const int64_t layer_ns[6] = {1, 1, 1, 1, 1, 1};
    static const int64_t layer_bytes[6] = {10, 10, 10, 10, 10, 10};
    static const int64_t limits[3] = {20, 20, 15};
    const PlanPartition partition = {.n_layers = 6,
                                     .n_stages = 3,
                                     .layer_ns = layer_ns,
                                     .layer_bytes = layer_bytes,
                                     .stage_limit_bytes = limits};
    int64_t counts[3];
    g_autoptr(GError) error = NULL;

    g_assert_false(plan_partition(&partition, counts, &error));
    g_assert_error(error, PLAN_ERROR, PLAN_ERROR_INFEASIBLE);
    g_assert_cmpstr(error->message, ==,
                    "stage 2 does not fit: the stages up to it hold at most 5 of 6 layers; one "
                    "more needs 20 of 15 bytes");
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/planner/partition/equals-exhaustive-search", test_equals_exhaustive_search);
    g_test_add_func("/planner/partition/embedding-and-head-lighten-the-ends",
                    test_embedding_and_head_lighten_the_ends);
    g_test_add_func("/planner/partition/message-names-the-full-stage",
                    test_message_names_the_full_stage);
    return g_test_run();
}
