#include "profiles/workload/workload.h"

#include "base/units.h"
#include "profiles/cost/measured.h"
#include "profiles/workload/build.h"
#include "profiles/workload/matrices.h"
#include "profiles/workload/physical.h"
#include "profiles/workload/step.h"

#include <math.h>

/* --- ranks --- */

/* Elements of which the framework makes one collective; a chunk has @chunk_elements. */
static double
bucket_elements(const WorkloadBuild *build, double chunk_elements, double chunk_layers)
{
    const Plan *plan = build->plan;
    const PlanFrameworkFacts *facts = build->facts;

    if (facts->bucket_bytes > 0.0)
        return facts->bucket_bytes / (double)dtype_bytes(plan->conventions.grad_dtype);
    if (facts->bucket_elements > 0.0)
        return fmax(facts->bucket_elements,
                    facts->bucket_elements_per_replica * (double)plan->degrees.dp);
    return chunk_elements / fmax(1.0, chunk_layers);
}

/* A chunk's collectives of gradients, or of parameters. */
static int32_t
n_buckets(const WorkloadBuild *build, int64_t elements)
{
    const double n_chunks = (double)build->plan->degrees.vpp;
    const double of_chunk = (double)elements / n_chunks;
    const double layers =
        (double)model_n_stacked(build->arch) / ((double)build->plan->degrees.pp * n_chunks);

    if (elements == 0)
        return 1;
    return (int32_t)CLAMP(ceil(of_chunk / bucket_elements(build, of_chunk, layers)), 1.0,
                          (double)WORKLOAD_MAX_BUCKETS);
}

/* Adds a collective of @bytes to the @sum_bytes and the @traffic of its kind; its seconds. */
static double
add_collective(const WorkloadBuild *build, ModelComm comm, int64_t bytes, const ProfileGroup *group,
               int64_t *sum_bytes, double traffic_bytes[MODEL_CLUSTER_MAX_LEVELS])
{
    *sum_bytes += bytes;
    profile_collective_traffic(build->profile, comm, bytes, group, traffic_bytes);
    return profile_cost_collective_s(build->profile, comm, bytes, group);
}

/* What a bucket in fp32 moves for a gradient of 2 bytes: it is copied into the bucket (2 + 2), divided
 * there (2 + 2), cast (2 + 4) and, summed, cast back (4 + 2) and copied back (2 + 2)
 * [Scaling, optimizer/allreduce.py]. */
#define CASTING_BYTES 24.0

/* Into how many parts that each hold all of what ZeRO splits @group falls. */
static int64_t
parts_of(const Plan *plan, const ProfileGroup *group)
{
    const int64_t n = plan_instances(&plan->conventions);

    return plan->zero_stage > 0 && group->n % n == 0 ? n : 1;
}

/* The reduction of @n gradients over @group, and the gathering of parameters after the step.  Where parts of the
 * group each hold all, they scatter among themselves, and add up their shards. */
static void
add_reduction(const WorkloadBuild *build, const ModelDevice *device, const ProfileGroup *group,
              int64_t n, double *reduce_s, double *gather_s, WorkloadRank *rank)
{
    const Plan *plan = build->plan;
    int64_t gradient_bytes = n * dtype_bytes(plan->conventions.grad_dtype);
    int64_t weight_bytes = n * workload_build_element_bytes(plan);

    if (group->n == 1 || n == 0 || plan->zero_stage >= 3)
        return;
    const bool casts =
        plan->conventions.wide_reduction && dtype_bytes(plan->conventions.grad_dtype) < 4;
    const ModelComm reduce =
        plan->zero_stage == 0 || casts ? MODEL_COMM_ALL_REDUCE : MODEL_COMM_REDUCE_SCATTER;
    if (casts) {
        gradient_bytes = n * (int64_t)dtype_bytes(DTYPE_FP32);
        *reduce_s += profile_cost_memory_s(build->profile, device, (double)n * CASTING_BYTES);
    }
    const int64_t parts = parts_of(plan, group);
    const ProfileGroup shards = profile_group_run(group, parts);
    *reduce_s += add_collective(build, reduce, gradient_bytes, &shards, &rank->dp_reduce_bytes,
                                rank->dp_reduce_traffic_bytes);
    if (parts > 1) {
        const ProfileGroup copies = profile_group_across(group, parts);
        *reduce_s += add_collective(build, MODEL_COMM_ALL_REDUCE, gradient_bytes / shards.n,
                                    &copies, &rank->dp_reduce_bytes, rank->dp_reduce_traffic_bytes);
    }
    if (plan->zero_stage > 0)
        *gather_s += add_collective(build, MODEL_COMM_ALL_GATHER, weight_bytes, &shards,
                                    &rank->dp_gather_bytes, rank->dp_gather_traffic_bytes);
}

/* The sum of @n gradients between two pipeline ranks that both hold them; its seconds. */
static double
add_pair_reduction(const WorkloadBuild *build, int64_t from, int64_t to, int64_t n,
                   WorkloadRank *rank)
{
    const ProfileMesh mesh = workload_build_mesh(build);
    const ProfileGroup pair = profile_group_pair(&mesh, from, to);
    return add_collective(build, MODEL_COMM_ALL_REDUCE,
                          n * dtype_bytes(build->plan->conventions.grad_dtype), &pair,
                          &rank->dp_reduce_bytes, rank->dp_reduce_traffic_bytes);
}

/* --- Muon --- */

/* What the matrices of the rank's stages take, if ZeRO gives each whole to one of @copies->n
 * replicas, or if all of these gather them all. */
static double
matrices_s(const WorkloadBuild *build, const WorkloadLocation *location, int32_t rank, bool expert,
           const ProfileGroup *copies)
{
    const Plan *plan = build->plan;
    const PlanConventions *c = &plan->conventions;
    const bool shards = plan->zero_stage >= 1 && copies->n > 1;
    const bool homes = shards && plan->zero_stage < 3 && build->facts->shards_whole_matrices;
    const ProfileGroup tp =
        workload_build_group(build, expert ? PROFILE_GROUP_ETP : PROFILE_GROUP_TP, rank);
    WorkloadMuonCost kinds[MODEL_MAX_KINDS] = {0}, sum = {0};
    bool known[MODEL_MAX_KINDS] = {false};

    for (guint i = 0; i < plan->stages->len; i++) {
        const PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);

        for (int64_t j = 0; stage->rank == rank && j < stage->n_layers; j++) {
            const int64_t layer = stage->first_layer + j;
            const int32_t kind = model_layer_kind(build->arch, layer);
            if (!known[kind]) {
                WorkloadMatrix matrices[MODEL_MAX_OPS];
                const size_t n =
                    workload_matrices(build->arch, layer, &plan->degrees, c, plan->dtype, matrices);
                kinds[kind] =
                    workload_muon_cost(build->profile, location->device, plan->dtype, c->muon_tp,
                                       matrices, n, expert, &tp, shards && !homes ? copies : NULL);
            }
            known[kind] = true;
            sum.compute_s += kinds[kind].compute_s;
            sum.comm_s += kinds[kind].comm_s;
            sum.largest_s = fmax(sum.largest_s, kinds[kind].largest_s);
        }
    }
    const double all_s = sum.compute_s + sum.comm_s;
    return homes ? fmax(sum.largest_s, all_s / (double)copies->n) : all_s;
}

/* Seconds that an optimizer of whole matrices computes, and gathers them, beyond its state. */
static double
muon_s(const WorkloadBuild *build, const WorkloadLocation *location, int32_t rank)
{
    const PlanConventions *c = &build->plan->conventions;
    const ProfileGroup dense = workload_build_group(build, PROFILE_GROUP_DENSE, rank);
    const ProfileGroup expert = workload_build_group(build, PROFILE_GROUP_EXPERT, rank);

    if (!plan_optimizer(c->optimizer)->orthogonalises || !c->optimizer_step)
        return 0.0;
    return matrices_s(build, location, rank, false, &dense) +
           matrices_s(build, location, rank, true, &expert);
}

static void
set_rank(const WorkloadBuild *build, const WorkloadLocation *location, int32_t r,
         int64_t memory_limit_bytes, Workload *workload)
{
    const Plan *plan = build->plan;
    WorkloadRank *rank = &workload->ranks[r];
    WorkloadParameters n = workload_build_parameters(build, r);
    ProfileGroup dense = workload_build_group(build, PROFILE_GROUP_DENSE, r);
    ProfileGroup expert = workload_build_group(build, PROFILE_GROUP_EXPERT, r);
    const int64_t elements = n.trained_dense + n.trained_expert;
    const WorkloadStep step = {&plan->degrees,   &plan->conventions, plan->dtype,
                               plan->zero_stage, plan->offload,      plan->offload_parameters};
    double reduce_s = 0.0, gather_s = 0.0;

    add_reduction(build, location->device, &dense, n.trained_dense, &reduce_s, &gather_s, rank);
    add_reduction(build, location->device, &expert, n.trained_expert, &reduce_s, &gather_s, rank);
    /* The copies of the table add their gradients; of three, as if they were two. */
    if (n.tied > 0)
        reduce_s += add_pair_reduction(build, n.tied_first, n.tied_last, n.tied, rank);
    /* Rank r and its mirror image hold the same stages, one for each direction. */
    if (build->n_chains == 2 && plan->degrees.pp - 1 != 2 * r)
        reduce_s += add_pair_reduction(build, r, plan->degrees.pp - 1 - r, elements, rank);
    rank->n_buckets = n_buckets(build, elements);
    rank->dp_reduce_ns = units_ns_from_s(reduce_s);
    rank->dp_gather_ns = units_ns_from_s(gather_s);
    rank->optimizer_ns = units_ns_from_s(
        workload_step_s(build->profile, location->device, &step, &n) + muon_s(build, location, r));
    workload_build_static(build, workload, r, rank->static_bytes);
    rank->memory_limit_bytes = memory_limit_bytes > 0 ? memory_limit_bytes : location->memory_bytes;
    if (memory_limit_bytes == 0) {
        int64_t always = 0;
        for (int i = 0; i < TRACE_MEMORY_N; i++)
            always += rank->static_bytes[i];
        rank->memory_usable_bytes = workload_usable_of(
            &build->profile->parameters, &build->plan->degrees, location->memory_bytes, always);
    }
    rank->device_flops_per_s = profile_peak_flops_per_s(location->device, plan->dtype);
}

/* --- checks --- */

static bool
check_model(const WorkloadBuild *build, GError **error)
{
    const Plan *plan = build->plan;
    const PlanDegrees *d = &plan->degrees;
    bool has_vocab = build->arch->vocab > 0;

    if (workload_build_stage(build, 0, 0)->embedding != has_vocab)
        return plan_invalid(error,
                            "stages: model %s has %s vocabulary, so the first stage must have %s",
                            build->arch->name, has_vocab ? "a" : "no",
                            has_vocab ? "the embedding" : "no embedding");
    if (d->cp > 1 && plan->seq_len % (2 * d->cp) != 0)
        return plan_invalid(error,
                            "cp " INT ": 2 * cp must divide seq_len " INT
                            " (each rank takes two parts, so that causal work is even)",
                            d->cp, plan->seq_len);
    for (guint i = 0; i < plan->slices->len; i++) {
        int64_t tokens = g_array_index(plan->slices, int64_t, i);

        if (tokens % d->cp != 0)
            return plan_invalid(error, "slices[%u]: cp " INT " does not divide " INT " tokens", i,
                                d->cp, tokens);
        if (plan->sequence_parallel && tokens / d->cp % d->tp != 0)
            return plan_invalid(error,
                                "slices[%u]: with sequence parallelism tp " INT
                                " must divide the " INT " tokens of each rank",
                                i, d->tp, tokens / d->cp);
    }
    return true;
}

static bool
check_shapes(const WorkloadBuild *build, GError **error)
{
    for (int32_t class_ = 0; class_ < build->n_classes; class_++) {
        ModelShape shape = workload_build_shape(build, class_, build->n_slices - 1);
        g_autoptr(GError) local = NULL;

        /* The last slice has the longest context; the whole sequence is what others stay below. */
        if (!model_shape_check(build->arch, &shape, &local))
            return plan_invalid(error, "%s", local->message);
        shape.tokens = build->plan->seq_len;
        shape.context = 0;
        if (!model_shape_check(build->arch, &shape, &local))
            return plan_invalid(error, "%s", local->message);
    }
    return true;
}

static bool
check_devices(const WorkloadBuild *build, GError **error)
{
    int64_t has = model_cluster_n_devices(build->profile->cluster);
    int64_t needs = plan_n_devices(build->plan);

    if (needs <= has)
        return true;
    g_set_error(error, PLAN_ERROR, PLAN_ERROR_INFEASIBLE,
                "dp * tp * pp * cp needs " INT " devices, cluster %s has " INT, needs,
                build->profile->name, has);
    return false;
}

/* --- classes --- */

/* The distinct sizes of micro-batches, in order of appearance; @of_micro_batch (out, owned) is NULL
 * when there is one. */
static GArray *
classes_of(const Plan *plan, int32_t **of_micro_batch)
{
    GArray *classes = g_array_new(FALSE, FALSE, sizeof(int64_t));

    *of_micro_batch = NULL;
    if (plan->micro_batch_sequences == NULL) {
        g_array_append_val(classes, plan->micro_batch);
        return classes;
    }
    *of_micro_batch = g_new(int32_t, plan->n_micro_batches);
    for (int64_t i = 0; i < plan->n_micro_batches; i++) {
        int64_t n = plan_micro_batch_sequences(plan, i);
        guint j = 0;

        while (j < classes->len && g_array_index(classes, int64_t, j) != n)
            j++;
        if (j == classes->len)
            g_array_append_val(classes, n);
        (*of_micro_batch)[i] = (int32_t)j;
    }
    return classes;
}

/* --- public --- */

/* Of as many ops there may be no memory for what depends on those after them. */
static bool
allocate_last(Workload *workload, int64_t n_ops, GError **error)
{
    WorkloadPrefetch *prefetch = workload->prefetch;

    if (prefetch == NULL)
        return true;
    prefetch->last_bytes = g_try_malloc_n((size_t)(n_ops * SCHEDULE_OP_N),
                                          (size_t)prefetch->depth * sizeof *prefetch->last_bytes);
    return prefetch->last_bytes != NULL ||
           plan_invalid(error, "stages * slices * sizes of micro-batches: " INT " ops are too many",
                        n_ops);
}

static Workload *
build_workload(WorkloadBuild *build, int64_t memory_limit_bytes, GError **error)
{
    const Plan *plan = build->plan;
    int64_t n_ops = (int64_t)build->n_chains * build->n_stages * build->n_classes;
    g_autoptr(Workload) workload = g_new0(Workload, 1);
    g_autofree WorkloadLocation *locations = g_new0(WorkloadLocation, plan->degrees.pp);

    /* Factors are at most 2^20, 2^31 and 2^16: stages * classes fits, the last may not. */
    if (__builtin_mul_overflow(n_ops, (int64_t)build->n_slices, &n_ops) ||
        n_ops > SCHEDULE_MAX_OPS ||
        (workload->ops = g_try_malloc0_n((size_t)n_ops, sizeof *workload->ops)) == NULL)
        return plan_invalid_null(
            error, "stages * slices * sizes of micro-batches: " INT " ops are too many", n_ops);
    workload->n_stages = build->n_stages;
    workload->n_ranks = (int32_t)plan->degrees.pp;
    workload->n_classes = build->n_classes;
    workload->n_slices = build->n_slices;
    workload->n_chains = build->n_chains;
    workload->ranks = g_new0(WorkloadRank, plan->degrees.pp);
    for (int32_t r = 0; r < workload->n_ranks; r++)
        locations[r] = workload_build_location(build, r);
    build->prefetch = workload->prefetch = workload_build_prefetch(build);
    if (!allocate_last(workload, n_ops, error))
        return NULL;
    workload_build_set_ops(build, locations, workload);
    for (int32_t r = 0; r < workload->n_ranks; r++)
        set_rank(build, &locations[r], r, memory_limit_bytes, workload);
    g_assert(locations[0].device != NULL);
    workload->blocking_messages = !plan->conventions.overlap_pp;
    workload->overlap_dp = plan->conventions.overlap_dp;
    workload->merges_pairs = plan_merges_pairs(&plan->conventions, &plan->degrees);
    workload->pair_ns = build->facts->pairs_in_turn && !workload->merges_pairs ? -1 : 0;
    workload->overlap_gather = plan_framework_gathers_ahead(&plan->conventions);
    workload->interference_fraction = build->profile->parameters.interference_fraction;
    workload->message_interference_fraction =
        build->profile->parameters.message_interference_fraction;
    workload->links = workload_build_links(build);
    workload->op_overhead_ns = units_ns_from_s(profile_measured_overhead_s(build->profile));
    workload->model_flops =
        model_flops_per_iteration(build->arch, (double)plan->global_batch, plan->seq_len);
    workload->tokens = (double)plan->global_batch * (double)plan->seq_len;
    workload->n_devices = plan_n_devices(plan);
    workload->physical_bound_s =
        workload_physical_bound_s(build->arch, build->profile->cluster, workload->n_devices,
                                  plan->global_batch, plan->seq_len, plan->dtype);
    workload_build_set_rates(build, workload);
    return g_steal_pointer(&workload);
}

Workload *
workload_new(const ModelArch *arch, const Profile *profile, const Plan *plan,
             int64_t memory_limit_bytes, GError **error)
{
    g_autofree int32_t *class_of_micro_batch = NULL;

    g_return_val_if_fail(arch != NULL && profile != NULL && plan != NULL, NULL);
    g_return_val_if_fail(memory_limit_bytes >= 0, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    if (!plan_check(plan, model_n_stacked(arch), error))
        return NULL;
    const ScheduleFamily *family = schedule_family_find(plan->schedule, NULL);
    int32_t n_chains = family != NULL ? schedule_placement_n_chains(family->placement) : 1;
    g_autoptr(GArray) classes = classes_of(plan, &class_of_micro_batch);
    g_autofree int64_t *contexts = workload_build_contexts(plan);
    WorkloadBuild build = {
        .arch = arch,
        .profile = profile,
        .plan = plan,
        .facts = plan_framework(plan->conventions.framework),
        .n_chains = n_chains,
        .n_stages = (int32_t)plan->stages->len / n_chains,
        .n_slices = (int32_t)plan->slices->len,
        .n_classes = (int32_t)classes->len,
        .class_sequences = (const int64_t *)(const void *)classes->data,
        .contexts = contexts,
    };
    if (!check_model(&build, error) || !check_shapes(&build, error) ||
        !check_devices(&build, error))
        return NULL;
    const size_t n_bytes =
        (size_t)classes->len * (size_t)plan->slices->len * (size_t)model_n_kinds(arch);
    g_autofree WorkloadPartBytes *bytes = g_new(WorkloadPartBytes, n_bytes);
    g_autofree bool *knows_bytes = g_new0(bool, n_bytes);
    WorkloadPartMemo memo = {.bytes = bytes, .knows_bytes = knows_bytes};
    build.memo = &memo;
    Workload *workload = build_workload(&build, memory_limit_bytes, error);
    if (workload != NULL)
        workload->class_of_micro_batch = g_steal_pointer(&class_of_micro_batch);
    return workload;
}

Workload *
workload_new_plain(const Schedule *schedule, const int64_t time_ns[SCHEDULE_OP_N],
                   int64_t message_ns_)
{
    g_return_val_if_fail(schedule != NULL && time_ns != NULL && message_ns_ >= 0, NULL);

    Workload *workload = g_new0(Workload, 1);
    workload->n_stages = schedule_n_stages(schedule);
    workload->n_ranks = schedule->n_ranks;
    workload->n_classes = 1;
    workload->n_slices = schedule->n_slices;
    workload->n_chains = schedule_placement_n_chains(schedule->placement);
    int64_t n_ops = (int64_t)workload->n_chains * workload->n_stages * workload->n_slices;
    workload->ops = g_new0(WorkloadOp, n_ops);
    for (int64_t i = 0; i < n_ops; i++) {
        WorkloadOp *op = &workload->ops[i];
        int32_t chain = (int32_t)(i / workload->n_slices / workload->n_stages);
        int32_t stage = (int32_t)(i / workload->n_slices % workload->n_stages);
        int32_t rank = schedule_rank_of_stage(schedule, stage, chain);

        for (int kind = 0; kind < SCHEDULE_OP_N; kind++) {
            op->time_ns[kind] = time_ns[kind];
            op->part_ns[kind][PROFILE_PART_COMPUTE] = time_ns[kind];
        }
        if (stage + 1 < workload->n_stages &&
            schedule_rank_of_stage(schedule, stage + 1, chain) != rank)
            op->forward_message.ns = message_ns_;
        if (stage > 0 && schedule_rank_of_stage(schedule, stage - 1, chain) != rank)
            op->backward_message.ns = message_ns_;
    }
    workload->ranks = g_new0(WorkloadRank, workload->n_ranks);
    workload->pair_ns = -1;
    workload->model_flops = NAN;
    workload->physical_bound_s = NAN;
    workload->tokens = NAN;
    return workload;
}

void
workload_free(Workload *workload)
{
    if (workload == NULL)
        return;
    g_free(workload->ops);
    g_free(workload->class_of_micro_batch);
    g_free(workload->ranks);
    workload_links_free(workload->links);
    workload_prefetch_free(workload->prefetch);
    g_free(workload);
}

/* --- slower and faster ranks --- */

static int64_t
slowed(int64_t ns, double speed)
{
    return units_ns_from_s(units_s_from_ns(ns) / speed);
}

static void
slow_op(WorkloadOp *op, double speed)
{
    static const ProfilePart parts[] = {PROFILE_PART_COMPUTE, PROFILE_PART_RECOMPUTE};

    for (int kind = 0; kind < SCHEDULE_OP_N; kind++)
        for (size_t i = 0; i < G_N_ELEMENTS(parts); i++) {
            int64_t *part_ns = &op->part_ns[kind][parts[i]];
            const int64_t ns = slowed(*part_ns, speed);
            op->time_ns[kind] += ns - *part_ns;
            *part_ns = ns;
        }
}

void
workload_set_rank_speed(Workload *workload, SchedulePlacement placement, int32_t rank, double speed)
{
    const int64_t per_stage = (int64_t)workload->n_classes * workload->n_slices;

    g_return_if_fail(rank >= 0 && rank < workload->n_ranks && speed > 0);
    for (int32_t chain = 0; chain < workload->n_chains; chain++)
        for (int32_t stage = 0; stage < workload->n_stages; stage++) {
            WorkloadOp *ops =
                &workload->ops[((int64_t)chain * workload->n_stages + stage) * per_stage];
            if (schedule_placement_rank(placement, workload->n_ranks, stage, chain) != rank)
                continue;
            for (int64_t i = 0; i < per_stage; i++)
                slow_op(&ops[i], speed);
        }
    workload->ranks[rank].optimizer_ns = slowed(workload->ranks[rank].optimizer_ns, speed);
}
