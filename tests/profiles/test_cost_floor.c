/* Tests of profiles/cost/cost.h: no slicing takes less than the floor, modelled or measured. */
#include "profiles/cost/cost.h"

static uint32_t
draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static ProfileQuery
query_of(const ModelArch *arch, int64_t batch, int64_t tokens)
{
    return (ProfileQuery){
        .arch = arch,
        .part = MODEL_PART_LAYER,
        .shape = {.batch = batch,
                  .tokens = tokens,
                  .tp = 1,
                  .cp = 1,
                  .ep = 1,
                  .flash_attention = true,
                  .dtype = DTYPE_BF16,
                  .expert_imbalance = 1.0},
        .groups = {{0, 1, 1}, {0, 1, 1}, {0, 1, 1}},
    };
}

/* The sum over one random slicing. */
static double
sliced_s(const Profile *profile, ProfileQuery query, ProfilePass pass, uint32_t *state)
{
    const int64_t all = query.shape.tokens, most = 1 + draw(state) % all;
    double sum = 0.0;

    for (int64_t at = 0; at < all; at += query.shape.tokens) {
        query.shape.context = at;
        query.shape.tokens = MIN(all - at, 1 + (int64_t)draw(state) % most);
        const ProfileCost cost = profile_cost_part(profile, &query, pass);
        sum += profile_cost_s(&cost);
    }
    return sum;
}

/* The floor is below every slicing, and not far below the whole sequence where products rule. */
static void
check(const Profile *profile, const ModelArch *arch, double least_share)
{
    static const ProfilePass passes[] = {PROFILE_PASS_FORWARD, PROFILE_PASS_BACKWARD};
    uint32_t state = 7;

    for (size_t i = 0; i < G_N_ELEMENTS(passes); i++) {
        const ProfileQuery query = query_of(arch, 2, 1024);
        const ProfileSlicedFloors floors = profile_cost_sliced_floors(profile, &query);
        const double floor_s =
            passes[i] == PROFILE_PASS_FORWARD ? floors.forward_s : floors.backward_s;
        const ProfileCost whole = profile_cost_part(profile, &query, passes[i]);
        g_assert_cmpfloat(floor_s, >=, least_share * profile_cost_s(&whole));
        for (int round = 0; round < 300; round++)
            g_assert_cmpfloat(sliced_s(profile, query, passes[i], &state), >=,
                              floor_s * (1.0 - 1e-12));
    }
}

static void
test_modelled(void)
{
    static const char *const models[] = {"gpt3-13b", "llama3-8b", "gpt2-124m", "mixtral-8x7b"};
    g_autoptr(GError) error = NULL;
    g_autoptr(Profile) profile = profile_load("dgx-a100-80g", &error);

    g_assert_no_error(error);
    for (size_t i = 0; i < G_N_ELEMENTS(models); i++) {
        g_autoptr(ModelArch) arch = model_arch_load(models[i], NULL, &error);
        g_assert_no_error(error);
        check(profile, arch, i == 0 ? 0.6 : 0.1);
    }
}

/* Rows that scatter by a fifth around a constant, work per token and scores. */
static void
test_measured(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Profile) profile = profile_load("dgx-a100-80g", &error);
    g_autoptr(ModelArch) arch = model_arch_load("gpt2-124m", NULL, &error);
    uint32_t state = 3;

    g_assert_no_error(error);
    profile->measured_arch = model_arch_copy(arch);
    profile->measured_dtype = DTYPE_BF16;
    for (int pass = PROFILE_PASS_FORWARD; pass <= PROFILE_PASS_BACKWARD; pass++)
        for (int64_t tokens = 64; tokens <= 1024; tokens *= 2)
            for (int64_t context = 0; context + tokens <= 1024; context += 256) {
                const double n = 2.0 * (double)tokens;
                const double s = 1e-4 + 1e-6 * n + 2e-10 * n * (double)(2 * context + tokens);
                const ProfileMeasurement row = {
                    .op = PROFILE_OP_LAYER,
                    .pass = (ProfilePass)pass,
                    .batch = 2,
                    .tokens = tokens,
                    .context = context,
                    .tp = 1,
                    .median_s = s * (0.8 + 0.4 * (double)(draw(&state) % 100) / 100.0),
                };
                profile_add(profile, &row);
            }
    check(profile, arch, 0.5);
}

/* What slices take without context, beside it what the whole sequence's attention takes, and what blocks of keys do again
 * for each slice's context, are together below all slices, and where products and waves are full hardly below. */
static void
check_attention(const Profile *profile, const ModelArch *arch, ProfilePass pass,
                const int64_t *slices, size_t n_slices, double least_share)
{
    int64_t at = 0, contexts = 0;
    double sum = 0.0, floor_s = 0.0;

    for (size_t i = 0; i < n_slices; i++) {
        ProfileQuery query = query_of(arch, 8, slices[i]);
        const ProfileSliceFloors slice = profile_cost_slice_floors(profile, &query);
        query.shape.context = at;
        const ProfileCost cost = profile_cost_part(profile, &query, pass);
        floor_s += pass == PROFILE_PASS_FORWARD ? slice.forward.device_s : slice.backward.device_s;
        sum += profile_cost_device_s(&cost);
        contexts += at;
        at += slices[i];
    }
    const ProfileQuery whole = query_of(arch, 8, at);
    const ProfileAttentionFloor attention =
        profile_cost_sliced_attention_floor(profile, &whole, pass);
    g_assert_cmpfloat(attention.beside_rows_s, <, attention.all_s);
    floor_s += attention.beside_rows_s + attention.contexts_s * (double)contexts / (double)at;
    g_assert_cmpfloat(floor_s, <=, sum * (1.0 + 1e-9));
    g_assert_cmpfloat(floor_s, >=, sum * least_share);
}

static void
test_attention(void)
{
    static const char *const clusters[] = {"dgx-a100-80g", "dgx-h100"};
    static const char *const models[] = {"gpt3-13b", "llama3-8b", "gemma3-12b"};
    g_autoptr(GError) error = NULL;

    for (size_t i = 0; i < G_N_ELEMENTS(clusters); i++)
        for (size_t j = 0; j < G_N_ELEMENTS(models); j++) {
            g_autoptr(Profile) profile = profile_load(clusters[i], &error);
            g_assert_no_error(error);
            g_autoptr(ModelArch) arch = model_arch_load(models[j], NULL, &error);
            g_assert_no_error(error);
            const double least = j < 2 ? 0.985 : 0.9; /* windows bound what context a slice meets */
            for (int pass = PROFILE_PASS_FORWARD; pass <= PROFILE_PASS_BACKWARD; pass++) {
                check_attention(profile, arch, (ProfilePass)pass,
                                (const int64_t[]){1024, 1024, 1024, 1024}, 4, least);
                check_attention(profile, arch, (ProfilePass)pass,
                                (const int64_t[]){256, 1280, 512, 1024, 1024}, 5, least);
                check_attention(profile, arch, (ProfilePass)pass, (const int64_t[]){4096}, 1,
                                least);
            }
        }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/profiles/cost_floor/modelled", test_modelled);
    g_test_add_func("/profiles/cost_floor/measured", test_measured);
    g_test_add_func("/profiles/cost_floor/attention", test_attention);
    return g_test_run();
}
