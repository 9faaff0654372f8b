/* Tests of profiles/workload/: what MTP modules add to stages: layers, copies of the table, messages. */
#include "tests/profiles/workload_case.h"

#define TABLE (51200 * 1024)

/* 4 layers and a module over @pp stages of @counts layers. */
static Workload *
split(ModelArch *arch, const Profile *profile, const int64_t *counts, int64_t pp)
{
    PlanSpec spec = {.degrees = {1, 1, pp, 1, 1, 1, 0}, .schedule = "1f1b"};
    g_autoptr(Plan) plan = plan_of(arch, &spec);
    g_autoptr(GError) error = NULL;

    for (int64_t k = 0, first = 0; k < pp; first += counts[k++]) {
        PlanStage *stage = &g_array_index(plan->stages, PlanStage, k);
        stage->first_layer = first;
        stage->n_layers = counts[k];
    }
    Workload *workload = workload_new(arch, profile, plan, 0, &error);
    g_assert_no_error(error);
    return workload;
}

/* Elements on @rank, by the weights' bytes in fp16. */
static int64_t
elements(const Workload *workload, int32_t rank)
{
    return owned(workload, rank, TRACE_MEMORY_WEIGHTS) / 2;
}

static void
test_a_stage_with_modules_has_the_table(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(4, 51200);
    arch.mtp.n = 1;
    const int64_t h = 1024,
                  layer = model_part_parameters(&arch, MODEL_PART_LAYER, 0, 1, 1, 1, false);
    const int64_t module = layer + 2 * h * h + 6 * h, norm = 2 * h;

    for (int tied = 0; tied <= 1; tied++) {
        arch.tied_embeddings = tied == 1;
        g_autoptr(Workload) last = split(&arch, profile, (int64_t[]){2, 3}, 2);
        g_autoptr(Workload) alone = split(&arch, profile, (int64_t[]){2, 2, 1, 0}, 4);
        g_autoptr(Workload) whole = split(&arch, profile, (int64_t[]){5}, 1);
        /* Embedding's copy and head's, which are one where they are tied. */
        g_assert_cmpint(elements(last, 1), ==, 2 * layer + module + norm + (2 - tied) * TABLE);
        g_assert_cmpint(elements(alone, 1), ==, 2 * layer);
        g_assert_cmpint(elements(alone, 2), ==, module + TABLE);
        g_assert_cmpint(elements(alone, 3), ==, norm + TABLE);
        g_assert_cmpint(elements(whole, 0), ==,
                        4 * layer + module + norm + (2 - tied) * TABLE + 2048 * h);
        /* Copies add their gradients, in fp32. */
        g_assert_cmpint(last->ranks[0].dp_reduce_bytes, ==, 4 * TABLE);
        g_assert_cmpint(last->ranks[1].dp_reduce_bytes, ==, 4 * TABLE);
        g_assert_cmpint(alone->ranks[0].dp_reduce_bytes, ==, 4 * TABLE);
        g_assert_cmpint(alone->ranks[1].dp_reduce_bytes, ==, 0);
        g_assert_cmpint(alone->ranks[2].dp_reduce_bytes, ==, 4 * TABLE);
        g_assert_cmpint(alone->ranks[3].dp_reduce_bytes, ==, tied == 1 ? 4 * TABLE : 0);
        g_assert_cmpint(whole->ranks[0].dp_reduce_bytes, ==, 0);
    }
}

/* Behind k modules 1 + k results go on. */
static void
test_messages_behind_modules_carry_their_results(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(4, 51200);
    arch.mtp.n = 2;
    g_autoptr(Workload) workload = split(&arch, profile, (int64_t[]){2, 2, 1, 1, 0}, 5);
    static const int64_t expect[] = {1, 1, 2, 3};
    const int64_t one = workload_op(workload, 0, 0, 0, 0)->forward_message.bytes;

    g_assert_cmpint(one, ==, 2 * 512 * 1024);
    for (int32_t k = 0; k < 4; k++) {
        g_assert_cmpint(workload_op(workload, 0, k, 0, 0)->forward_message.bytes, ==,
                        expect[k] * one);
        g_assert_cmpint(workload_op(workload, 0, k + 1, 0, 0)->backward_message.bytes, ==,
                        expect[k] * one);
    }
}

/* The head's products are done again for each module, which takes as long. */
static void
test_the_head_takes_its_time_for_each_module(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    ModelArch arch = gpt(4, 51200);
    g_autoptr(Workload) without = split(&arch, profile, (int64_t[]){4, 0}, 2);
    arch.mtp.n = 3;
    g_autoptr(Workload) with = split(&arch, profile, (int64_t[]){7, 0}, 2);
    const WorkloadOp *a = workload_op(without, 0, 1, 0, 0), *b = workload_op(with, 0, 1, 0, 0);

    /* But for the final norm, which is a small part. */
    assert_near((double)b->time_ns[0], 4.0 * (double)a->time_ns[0], 0.01);
    assert_near((double)b->activation_bytes,
                4.0 * (double)a->activation_bytes - 3.0 * 2.0 * 512.0 * 1024.0, 1e-9);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/profiles/workload-mtp/a-stage-with-modules-has-the-table",
                    test_a_stage_with_modules_has_the_table);
    g_test_add_func("/profiles/workload-mtp/messages-behind-modules-carry-their-results",
                    test_messages_behind_modules_carry_their_results);
    g_test_add_func("/profiles/workload-mtp/the-head-takes-its-time-for-each-module",
                    test_the_head_takes_its_time_for_each_module);
    return g_test_run();
}
