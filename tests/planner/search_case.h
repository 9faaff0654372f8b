/*
 * What the tests of planner/search.h share: small problems, and the simulator as their objective.
 */
#pragma once

#include <string.h>

#include "planner/bounds/link_bound.h"
#include "planner/bounds/plan_bound.h"
#include "planner/cost/layer_cost.h"
#include "models/lora.h"
#include "planner/search.h"
#include "profiles/workload/schedule_times.h"
#include "simulator/simulate.h"

/* --- what is searched --- */

G_GNUC_UNUSED static uint32_t
draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

G_GNUC_UNUSED static ModelArch *
small_arch(int64_t n_layers, int64_t n_experts, int64_t vocab)
{
    ModelArch *arch = g_new0(ModelArch, 1);

    *arch = (ModelArch){
        .name = g_strdup("small"),
        .family = MODEL_FAMILY_GPT,
        .n_layers = n_layers,
        .hidden = 512,
        .n_heads = 8,
        .n_kv_heads = 8,
        .head_dim = 64,
        .ffn_hidden = 2048,
        .vocab = vocab,
        .max_seq_len = 512,
        .tied_embeddings = true,
        .qkv_bias = true,
    };
    if (n_experts > 0)
        arch->experts = (ModelExperts){.n_experts = n_experts, .top_k = 2, .ffn_hidden = 512};
    return arch;
}

/* Makes the layers of @arch a random mixture of up to four kinds: as they were, with a window, with
 * a state in place of attention, and without one half or the other. */
G_GNUC_UNUSED static void
mix_layers(ModelArch *arch, uint32_t *state)
{
    ModelArch *kinds = g_new0(ModelArch, MODEL_MAX_KINDS);
    const int64_t heads = arch->n_heads;
    static const ModelMixer mixers[] = {MODEL_MIXER_MAMBA2, MODEL_MIXER_DELTA_NET,
                                        MODEL_MIXER_LIGHTNING};

    for (int i = 0; i < 4; i++) {
        kinds[i] = model_kind_arch(arch, model_n_kinds(arch) - 1);
        kinds[i].name = g_strdup_printf("kind%d", i);
        kinds[i].source = NULL;
    }
    kinds[1].window = 1 + (int64_t)(draw(state) % (uint32_t)arch->max_seq_len);
    kinds[2].mixer = mixers[draw(state) % 3];
    kinds[2].state = (ModelState){.n_heads = heads,
                                  .n_key_heads = heads,
                                  .key_dim = 64,
                                  .value_dim = arch->head_dim,
                                  .conv = 4,
                                  .chunk = MODEL_STATE_CHUNK};
    kinds[3].mixer = draw(state) % 2 == 0 ? MODEL_MIXER_NONE : MODEL_MIXER_ATTENTION;
    kinds[3].ffn = kinds[3].mixer == MODEL_MIXER_NONE ? MODEL_FFN_MLP : MODEL_FFN_NONE;
    if (kinds[3].ffn == MODEL_FFN_NONE)
        kinds[3].experts = (ModelExperts){0};
    arch->experts.first_dense_layers = 0;
    arch->kinds = kinds;
    arch->n_kinds = 4;
    arch->n_pattern = arch->n_layers;
    arch->pattern = g_new(uint8_t, (size_t)arch->n_layers);
    for (int64_t i = 0; i < arch->n_layers; i++)
        arch->pattern[i] = (uint8_t)(draw(state) % 4);
    if (arch->vocab > 0)
        arch->mtp = (ModelMtp){.n = (int64_t)(draw(state) % 3), .kind = (int32_t)(draw(state) % 5)};
}

/* Freezes the weights of @arch beside adapters of attention and, without experts, of the MLP. */
G_GNUC_UNUSED static void
adapt(ModelArch *arch, uint32_t *state)
{
    const uint32_t qkv = UINT32_C(1) << MODEL_LORA_QKV, fc1 = UINT32_C(1) << MODEL_LORA_FC1;

    arch->mtp.n = 0;
    arch->lora = (ModelLora){.rank = 4 << draw(state) % 5, .modules = qkv | fc1};
    g_autofree char *refusal = model_lora_refusal(arch);
    if (refusal != NULL)
        arch->lora.modules = qkv;
    g_autofree char *again = model_lora_refusal(arch);
    if (again != NULL)
        arch->lora.rank = 0;
}

/* Layers long enough that slices gain. */
G_GNUC_UNUSED static ModelArch *
long_arch(int64_t n_layers, int64_t vocab)
{
    ModelArch *arch = small_arch(n_layers, 0, vocab);

    arch->hidden = 4096;
    arch->n_heads = arch->n_kv_heads = 32;
    arch->head_dim = 128;
    arch->ffn_hidden = 16384;
    arch->max_seq_len = 2048;
    return arch;
}

G_GNUC_UNUSED static Profile *
cluster_of(const char *name, int64_t n_devices)
{
    g_autoptr(GError) error = NULL;
    Profile *profile = profile_load(name, &error);

    g_assert_no_error(error);
    ModelCluster *cluster = model_cluster_resized(profile->cluster, n_devices);
    model_cluster_free(profile->cluster);
    profile->cluster = cluster;
    return profile;
}

/* What layers of @shape cost on whole sequences. */
G_GNUC_UNUSED static PlanLayerCost
whole_cost(const PlanRequest *request, const PlanLayerShape *shape)
{
    g_autoptr(PlanMemo) memo = plan_memo_new();

    return plan_layer_uniform_cost(memo, request, shape, 1)->whole;
}

G_GNUC_UNUSED static PlanRequest
request_of(const ModelArch *arch, const Profile *profile, int64_t global_batch)
{
    return (PlanRequest){
        .arch = arch,
        .profile = profile,
        .global_batch = global_batch,
        .seq_len = arch->max_seq_len,
        .dtype = DTYPE_BF16,
        .slices_mode = PLAN_SLICES_OFF,
        .recompute = PLAN_AUTO,
        .zero_stage = PLAN_AUTO,
        .offload = PLAN_OFFLOAD_NONE,
        .sequence_parallel = PLAN_AUTO,
        .prefetch_layers = PLAN_PREFETCH_AUTO,
        .conventions = plan_conventions(PLAN_FRAMEWORK_DEGAS),
        .threads = 1,
    };
}

/* --- the simulator as objective --- */

static PlanMemo *flights; /* of one test */

G_GNUC_UNUSED static bool
simulate(const Plan *plan, const Workload *workload, int64_t limit_ns, Report **report,
         void *user_data, GError **error)
{
    const SimOptions options = {.want_memory = true};
    g_auto(SimResult) result = {0};
    const ScheduleFamily *family = schedule_family_find(plan->schedule, NULL);
    g_auto(WorkloadScheduleTimes) times = {0};
    if (family->reads_times)
        workload_schedule_times_init(&times, workload, family->placement);
    g_autoptr(Schedule) schedule =
        plan_build_schedule(plan, family->reads_times ? &times.times : NULL, error);

    g_assert_nonnull(schedule);
    g_assert_true(sim_run(schedule, workload, &options, &result, error));
    *report = g_steal_pointer(&result.report);
    /* No bound contradicts what is simulated. */
    g_assert_cmpint(plan_bound_ns(plan, workload, family), <=, (*report)->iteration_ns);
    g_assert_cmpint(plan_bound_path_ns(plan, workload, plan_bound_flight(plan, flights)), <=,
                    (*report)->iteration_ns);
    g_assert_cmpint(plan_bound_links_ns(plan, workload), <=, (*report)->iteration_ns);
    if ((*report)->fits)
        g_assert_cmpint(plan_bound_order_ns(plan, workload), <=, (*report)->iteration_ns);
    g_assert_cmpint(plan_bound_bytes(plan, workload, plan_bound_flight(plan, flights)), <=,
                    (*report)->peak_memory_bytes);
    g_assert_cmpint(plan_bound_fullest_bytes(plan, workload, plan_bound_fullest(plan, flights)), <=,
                    (*report)->peak_memory_bytes);
    /* What the caller allows: any time above the limit, and no later than the true one. */
    if ((*report)->iteration_ns > limit_ns)
        (*report)->iteration_ns = limit_ns + 1;
    return true;
}
