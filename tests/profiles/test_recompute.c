/* Tests of recompute by layers and by modules in the Workload, by hand. */
#include "tests/profiles/workload_case.h"

static const PlanSpec one = {.degrees = {1, 1, 1, 1, 1, 1},
                             .framework = PLAN_FRAMEWORK_MEGATRON_CORE,
                             .recompute = PLAN_RECOMPUTE_FULL};

/* Of the only op of 8 layers. */
typedef struct {
    int64_t kept, backward_workspace, again_ns;
} Held;

static Held
held(const Profile *profile, const PlanSpec *spec, PlanRecomputeMethod method, int64_t layers,
     uint32_t modules)
{
    const ModelArch arch = gpt(8, 0);
    g_autoptr(Plan) plan = plan_of(&arch, spec);
    g_autoptr(GError) error = NULL;

    plan->conventions.recompute_method = method;
    plan->conventions.recompute_layers = layers;
    plan->conventions.recompute_modules = modules;
    g_autoptr(Workload) workload = workload_new(&arch, profile, plan, 0, &error);
    g_assert_no_error(error);
    const WorkloadOp *op = workload_op(workload, 0, 0, 0, 0);
    return (Held){op->activation_bytes, op->workspace_bytes[SCHEDULE_OP_BACKWARD],
                  op->part_ns[SCHEDULE_OP_BACKWARD][PROFILE_PART_RECOMPUTE]};
}

/* The input of a layer: 512 tokens of 1024 in fp16. */
#define INPUT (INT64_C(512) * 1024 * 2)

/* Of the first N layers the inputs alone, of the others everything; N of 8 run again. */
static void
test_block(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    const PlanSpec none = {.degrees = one.degrees, .framework = one.framework};
    const Held all = held(profile, &none, 0, 0, 0), full = held(profile, &one, 0, 0, 0);

    g_assert_cmpint(full.kept, ==, 8 * INPUT);
    for (int64_t n = 0; n <= 10; n++) {
        const Held block = held(profile, &one, PLAN_RECOMPUTE_BLOCK, n, 0);
        const int64_t first = MIN(n, 8);

        g_assert_cmpint(block.kept, ==, first * INPUT + (8 - first) * all.kept / 8);
        assert_near(1.0 + (double)block.again_ns, 1.0 + (double)first * (double)full.again_ns / 8.0,
                    1e-4);
    }
}

/* Units of N layers keep an input each and run again once; a backward finds all that a unit saves. */
static void
test_uniform(void)
{
    g_autoptr(Profile) profile = fixture_profile();
    const PlanSpec none = {.degrees = one.degrees, .framework = one.framework};
    const int64_t saved = held(profile, &none, 0, 0, 0).kept / 8;
    const Held full = held(profile, &one, 0, 0, 0);

    for (int64_t n = 1; n <= 8; n++) {
        const Held uniform = held(profile, &one, PLAN_RECOMPUTE_UNIFORM, n, 0);

        g_assert_cmpint(uniform.kept, ==, (8 + n - 1) / n * INPUT);
        g_assert_cmpint(uniform.again_ns, ==, full.again_ns);
        g_assert_cmpint(uniform.backward_workspace - full.backward_workspace, ==, (n - 1) * saved);
    }
}

/* A module of the mixer and one of the MLP free what both free, and are there one after the other: of
 * an MLP of 4096 the GELU's input and result, of the core of attention a number of each query. */
static void
test_modules(void)
{
    const PlanSpec selective = {
        .degrees = one.degrees, .framework = one.framework, .recompute = PLAN_RECOMPUTE_SELECTIVE};
    const PlanSpec none = {.degrees = one.degrees, .framework = one.framework};
    g_autoptr(Profile) profile = fixture_profile();
    const int64_t mlp = 2 * 512 * INT64_C(4096) * 2, core = 4 * 512 * 16;
    const Held all = held(profile, &none, 0, 0, 0);
    const Held both =
        held(profile, &selective, 0, 0, 1u << PLAN_MODULE_MLP | 1u << PLAN_MODULE_CORE_ATTENTION);
    const Held of_mlp = held(profile, &selective, 0, 0, 1u << PLAN_MODULE_MLP);

    g_assert_cmpint(all.kept - of_mlp.kept, ==, 8 * mlp);
    g_assert_cmpint(all.kept - both.kept, ==, 8 * (mlp + core));
    g_assert_cmpint(of_mlp.backward_workspace - all.backward_workspace, ==, mlp);
    g_assert_cmpint(both.backward_workspace, ==, of_mlp.backward_workspace);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/profiles/recompute/block", test_block);
    g_test_add_func("/profiles/recompute/uniform", test_uniform);
    g_test_add_func("/profiles/recompute/modules", test_modules);
    return g_test_run();
}
