#include "executor/measure/rank.h"

#include "executor/device/clock.h"
#include "executor/watch/watch.h"

/* The timed stage has at most so many layers: then weights and activations of more than one layer
 * pass through the cache, as in a pipeline stage. */
#define MAX_LAYERS 4

/* Micro-batches in flight while timing: as in a pipeline, a backward does not find the activations
 * of the forward just before it, which are still in the cache. */
#define N_MICRO_BATCHES 2

/* Those of layers; MTP modules come besides, as many as there are. */
static int32_t
n_layer_kinds(const ModelArch *arch)
{
    return model_n_kinds(arch) - (arch->mtp.n > 0);
}

ModelArch *
exec_measure_arch(const ModelArch *arch, int64_t concurrency)
{
    const int64_t n = CLAMP(arch->n_layers / concurrency, 1, MIN(MAX_LAYERS, arch->n_layers));
    const int32_t n_kinds = n_layer_kinds(arch);
    ModelArch *timed = model_arch_copy(arch);

    timed->mtp.kind =
        1 + (arch->mtp.kind > 0 ? arch->mtp.kind - 1 : model_layer_kind(arch, arch->n_layers - 1));
    timed->n_layers = n * n_kinds;
    if (n_kinds == 1)
        return timed;
    if (arch->n_kinds == 0) {
        timed->experts.first_dense_layers = n;
        return timed;
    }
    g_free(timed->pattern);
    timed->n_pattern = timed->n_layers;
    timed->pattern = g_new(uint8_t, (size_t)timed->n_layers);
    for (int64_t layer = 0; layer < timed->n_layers; layer++)
        timed->pattern[layer] = (uint8_t)(layer / n);
    return timed;
}

const char *
exec_measure_kind(const ModelArch *arch, int32_t kind)
{
    return model_n_kinds(arch) > 1 ? g_intern_string(model_kind_name(arch, kind)) : NULL;
}

Plan *
exec_measure_plan(const ExecMeasureOptions *o, int64_t tp)
{
    Plan *plan = plan_new();
    const int32_t n_kinds = n_layer_kinds(o->arch);
    PlanStage stage = {.chunk = EXEC_MEASURE_EMBEDDING, .embedding = true};

    g_array_append_val(plan->stages, stage);
    stage = (PlanStage){.n_layers = o->arch->n_layers / n_kinds};
    for (int32_t kind = 0; kind < n_kinds; kind++) {
        stage.chunk = EXEC_MEASURE_LAYERS + kind;
        g_array_append_val(plan->stages, stage);
        stage.first_layer += stage.n_layers;
    }
    if (o->arch->mtp.n > 0) {
        stage.chunk = EXEC_MEASURE_LAYERS + n_kinds;
        stage.n_layers = o->arch->mtp.n;
        g_array_append_val(plan->stages, stage);
    }
    stage = (PlanStage){
        .chunk = (int32_t)plan->stages->len, .first_layer = model_n_stacked(o->arch), .head = true};
    g_array_append_val(plan->stages, stage);

    plan->dtype = o->dtype;
    plan->seq_len = o->seq_len;
    plan->degrees.vpp = plan->stages->len;
    plan->degrees.tp = tp;
    plan->degrees.dp = (o->concurrency + tp - 1) / tp;
    plan->conventions.pads_vocab =
        plan_framework_pads_vocab(plan->conventions.framework, exec_device_kind(o->device)->is_gpu);
    g_array_append_val(plan->slices, o->seq_len);
    return plan;
}

/* --- meeting --- */

static bool
check_interrupted(const ExecMeasureRank *rank, GError **error)
{
    const int *stop = rank->shared->o->stop;

    if (stop == NULL || g_atomic_int_get(stop) == 0)
        return true;
    return EXEC_FAIL(error, EXEC_ERROR_INTERRUPTED, "profile: interrupted");
}

bool
exec_measure_meet(ExecMeasureRank *rank, GError **error)
{
    const ExecGroup everyone = {
        .ranks = rank->members,
        .n = rank->shared->n_threads,
        .index = rank->transport.rank,
    };

    return check_interrupted(rank, error) &&
           rank->transport.ops->barrier(&rank->transport, &everyone, error);
}

bool
exec_measure_decide(ExecMeasureRank *rank, int (*decide)(ExecMeasureRank *rank, const void *about),
                    const void *about, int *decision, GError **error)
{
    if (!exec_measure_meet(rank, error))
        return false;
    if (rank->transport.rank == 0)
        rank->shared->decision = decide(rank, about);
    if (!exec_measure_meet(rank, error))
        return false;
    *decision = rank->shared->decision;
    return true;
}

/* --- the clock --- */

static int64_t
latest_ns(const ExecMeasureRank *rank, const int64_t *times_ns)
{
    int64_t latest = 0;

    for (int32_t i = 0; i < rank->shared->n_threads; i++)
        latest = MAX(latest, times_ns[i]);
    return latest;
}

bool
exec_measure_begin_plain(ExecMeasureRank *rank, GError **error)
{
    if (rank->n_timings == EXEC_MEASURE_MAX_TIMINGS && !exec_measure_collect(rank, error))
        return false;
    ExecMeasureTiming *timing = &rank->timings[rank->n_timings];
    timing->cache = rank->cache;
    timing->queue_ns = 0;
    if (rank->shared->watches_cores)
        timing->thread_begin_ns = exec_thread_ns();
    exec_backend_stamp(rank->backend, &timing->begin_ns);
    return true;
}

void
exec_measure_end_plain(ExecMeasureRank *rank, const ProfileMeasurement *key, double share)
{
    ExecMeasureTiming *timing = &rank->timings[rank->n_timings++];

    exec_backend_stamp(rank->backend, &timing->end_ns);
    if (rank->shared->watches_cores)
        timing->thread_end_ns = exec_thread_ns();
    timing->key = *key;
    timing->share = share;
}

void
exec_measure_empty_caches(ExecMeasureRank *rank)
{
    if (rank->flush.data != NULL)
        rank->backend->ops->zero(rank->backend, (size_t)rank->flush.n_bytes, rank->flush.data);
}

/* The device is kept busy for so much more than the host took at the least, and the stamps around
 * each kernel of an op by kind count as much as its launch; an op that takes the host longer than
 * MOST_HIDDEN_S is not one of short kernels. */
#define HIDDEN_FACTOR 1.5
#define HIDDEN_EXTRA_S 20e-6
#define MOST_HIDDEN_S 0.02

static void
hide_queueing(ExecMeasureRank *rank, const ProfileMeasurement *key, double share)
{
    const double least_s =
        exec_samples_least(rank->shared->samples, key, EXEC_SAMPLE_QUEUE) / share;
    const double hidden_s = HIDDEN_FACTOR * (rank->by_kind ? 2.0 : 1.0) * least_s + HIDDEN_EXTRA_S;

    if (rank->backend->ops->occupy != NULL && least_s > 0.0)
        rank->backend->ops->occupy(rank->backend, (int64_t)(MIN(hidden_s, MOST_HIDDEN_S) * 1e9));
    rank->queue_begin_ns = exec_now_ns();
}

/*
 * Where cores are shared, the scheduler runs the ops of some threads without a break while other
 * threads wait for a core, and a thread's own time says nothing.  Then the clock runs from the last
 * arrival to the last end.  In that time every thread has done one op: it is what an op takes when
 * all ranks are busy.
 */
bool
exec_measure_begin(ExecMeasureRank *rank, const ProfileMeasurement *key, double share,
                   GError **error)
{
    const ExecMeasureShared *shared = rank->shared;

    hide_queueing(rank, key, share);
    if (!exec_measure_begin_plain(rank, error))
        return false;
    if (!shared->shares_cores)
        return true;
    shared->arrived_ns[rank->transport.rank] = rank->timings[rank->n_timings].begin_ns;
    if (!exec_measure_meet(rank, error))
        return false;
    rank->timings[rank->n_timings].begin_ns = latest_ns(rank, shared->arrived_ns);
    return true;
}

bool
exec_measure_end(ExecMeasureRank *rank, const ProfileMeasurement *key, double share, GError **error)
{
    const ExecMeasureShared *shared = rank->shared;

    rank->timings[rank->n_timings].queue_ns = exec_now_ns() - rank->queue_begin_ns;
    exec_measure_end_plain(rank, key, share);
    if (!shared->shares_cores)
        return true;
    ExecMeasureTiming *timing = &rank->timings[rank->n_timings - 1];
    shared->finished_ns[rank->transport.rank] = timing->end_ns;
    if (!exec_measure_meet(rank, error))
        return false;
    timing->end_ns = latest_ns(rank, shared->finished_ns);
    return true;
}

bool
exec_measure_is_disturbed(const ExecMeasureRank *rank, const ExecMeasureTiming *timing)
{
    return rank->shared->watches_cores && exec_samples_is_alone(&timing->key) &&
           exec_was_disturbed(timing->end_ns - timing->begin_ns,
                              timing->thread_end_ns - timing->thread_begin_ns);
}

bool
exec_measure_collect(ExecMeasureRank *rank, GError **error)
{
    if (!rank->backend->ops->synchronize(rank->backend, error))
        return false;
    for (int i = 0; rank->busy && i < rank->n_timings; i++) {
        const ExecMeasureTiming *timing = &rank->timings[i];
        const double seconds = exec_measure_seconds(timing);
        const bool in_step = timing->cache == EXEC_SAMPLE_TIME;
        /* Also of what warms up: the next time it is known. */
        if (in_step && timing->queue_ns > 0 && rank->backend->ops->occupy != NULL)
            exec_samples_add(rank->shared->samples, &timing->key,
                             (double)timing->queue_ns * 1e-9 * timing->share, EXEC_SAMPLE_QUEUE);
        if (!rank->record)
            continue;
        exec_samples_add(rank->shared->samples, &timing->key, seconds * timing->share,
                         in_step && exec_measure_is_disturbed(rank, timing) ? EXEC_SAMPLE_DISTURBED
                                                                            : timing->cache);
        /* A disturbed timing counts too: it shows how the machine varies. */
        if (rank->shared->variation != NULL && in_step)
            exec_variation_add(rank->shared->variation, rank->transport.rank, &timing->key,
                               timing->begin_ns, seconds);
    }
    rank->n_timings = 0;
    return true;
}

/* --- stages --- */

static int32_t
n_slices(int64_t seq_len, int64_t tokens)
{
    return (int32_t)((seq_len + tokens - 1) / tokens);
}

ExecStageRun *
exec_measure_stage_run(ExecMeasureRank *rank, int32_t stage, const ExecGridPoint *point,
                       int32_t n_micro_batches)
{
    const int64_t seq_len = rank->shared->plan->seq_len;
    const int32_t n = n_slices(seq_len, point->tokens);

    g_array_set_size(rank->slices, 0);
    g_array_set_size(rank->sequences, 0);
    for (int32_t s = 0; s < n; s++) {
        const int64_t tokens = MIN(point->tokens, seq_len - s * point->tokens);
        g_array_append_val(rank->slices, tokens);
    }
    for (int32_t m = 0; m < n_micro_batches; m++)
        g_array_append_val(rank->sequences, point->batch);
    return exec_stage_run_new(&(ExecStageOptions){
        .model = rank->model,
        .stage = &g_array_index(rank->model->stages, ExecStage, stage),
        .comm = &rank->comm,
        .pool = rank->pool,
        .scratch = &rank->scratch,
        .n_micro_batches = n_micro_batches,
        .n_slices = n,
        .sequences = &g_array_index(rank->sequences, int64_t, 0),
        .slices = &g_array_index(rank->slices, int64_t, 0),
        .loss_factor = 1.0f / (float)(point->batch * seq_len),
    });
}

/* Runs an op without timing it. */
static bool
run_op(ExecMeasureRank *rank, ExecStageRun *run, ProfilePass pass, int32_t micro_batch,
       int32_t slice, GError **error)
{
    const void *dx;

    switch (pass) {
    case PROFILE_PASS_FORWARD:
        exec_stage_forward(run, micro_batch, slice, rank->tokens, rank->losses);
        break;
    case PROFILE_PASS_BACKWARD_WEIGHT:
        exec_stage_backward_weight(run, micro_batch, slice);
        break;
    case PROFILE_PASS_BACKWARD:
    case PROFILE_PASS_BACKWARD_INPUT:
    case PROFILE_PASS_N:
        if (!exec_stage_backward(run, micro_batch, slice, rank->tokens,
                                 pass == PROFILE_PASS_BACKWARD_INPUT, &dx, error))
            return false;
    }
    return exec_comm_check(&rank->comm, error);
}

/* Of the graph of an op: other shapes have graphs of their own. */
static int64_t
graph_key(int32_t stage, const ProfileMeasurement *key)
{
    uint64_t all = (uint64_t)stage * PROFILE_PASS_N + (uint64_t)key->pass;

    for (int i = 0; i < 3; i++)
        all = all * 0x9e3779b97f4a7c15u + (uint64_t)(i == 0   ? key->batch
                                                     : i == 1 ? key->tokens
                                                              : key->context);
    return (int64_t)(all >> 1);
}

/* As one graph, if ops of a run are: but not what allocates and chooses the kernels of products, the
 * first micro-batch that warms up. */
static bool
run_as_in_step(ExecMeasureRank *rank, ExecStageRun *run, int32_t stage,
               const ProfileMeasurement *key, int32_t micro_batch, int32_t slice, GError **error)
{
    const ExecBackendOps *ops = rank->backend->ops;
    const bool captures = rank->captures && (rank->record || micro_batch > 0);

    if (captures)
        ops->begin_graph(rank->backend, graph_key(stage, key));
    const bool ok = run_op(rank, run, key->pass, micro_batch, slice, error);
    if (captures)
        ops->end_graph(rank->backend);
    return ok;
}

/* The kinds stamp inside of the op; here it is only told whether it was disturbed. */
static bool
run_op_by_kind(ExecMeasureRank *rank, ExecStageRun *run, const ProfileMeasurement *key,
               int32_t micro_batch, int32_t slice, GError **error)
{
    ExecMeasureTiming whole = {.key = *key};

    whole.thread_begin_ns = exec_thread_ns();
    whole.begin_ns = exec_now_ns();
    if (!run_op(rank, run, key->pass, micro_batch, slice, error))
        return false;
    whole.end_ns = exec_now_ns();
    whole.thread_end_ns = exec_thread_ns();
    if (exec_measure_is_disturbed(rank, &whole))
        exec_kinds_set_disturbed(rank->kinds);
    return true;
}

static int32_t
head_stage(const ExecMeasureRank *rank)
{
    return (int32_t)rank->shared->plan->stages->len - 1;
}

/* Copies to the stage what the op gets from its neighbours. */
static bool
bring_input(ExecMeasureRank *rank, ExecStageRun *run, int32_t stage, ProfilePass pass,
            int32_t micro_batch, int32_t slice, GError **error)
{
    const ExecBackendOps *ops = rank->backend->ops;
    void *in;

    if (pass == PROFILE_PASS_FORWARD) {
        if (!exec_stage_begin_forward(run, micro_batch, slice, &in, error))
            return false;
        if (stage != EXEC_MEASURE_EMBEDDING)
            ops->copy(rank->backend, (size_t)exec_stage_input_bytes(run, micro_batch, slice),
                      rank->x.data, in);
    } else if (pass != PROFILE_PASS_BACKWARD_WEIGHT && stage < head_stage(rank)) {
        ops->copy(rank->backend, (size_t)exec_stage_output_bytes(run, micro_batch, slice),
                  rank->dx.data, exec_stage_gradient(run));
    }
    return true;
}

/* The row of an op. */
static ProfileMeasurement
key_of(const ExecMeasureRank *rank, const ExecStageRun *run, int32_t stage, ProfilePass pass,
       int32_t micro_batch, int32_t slice)
{
    const ExecSlice s = exec_stage_slice(run, micro_batch, slice);
    const bool has_layers = g_array_index(rank->model->stages, ExecStage, stage).n_layers > 0;

    return (ProfileMeasurement){
        .op = stage == EXEC_MEASURE_EMBEDDING ? PROFILE_OP_EMBEDDING
              : stage == head_stage(rank)     ? PROFILE_OP_HEAD
                                              : PROFILE_OP_LAYER,
        .pass = pass,
        .batch = s.sequences,
        .tokens = s.tokens,
        .context = s.context,
        .tp = rank->shared->plan->degrees.tp,
        .kind = has_layers ? exec_measure_kind(rank->shared->o->arch, stage - EXEC_MEASURE_LAYERS)
                           : NULL,
    };
}

bool
exec_measure_run_op(ExecMeasureRank *rank, ExecStageRun *run, int32_t stage, ProfilePass pass,
                    int32_t micro_batch, int32_t slice, GError **error)
{
    const ProfileMeasurement key = key_of(rank, run, stage, pass, micro_batch, slice);

    return bring_input(rank, run, stage, pass, micro_batch, slice, error) &&
           run_as_in_step(rank, run, stage, &key, micro_batch, slice, error);
}

bool
exec_measure_op(ExecMeasureRank *rank, ExecStageRun *run, int32_t stage, ProfilePass pass,
                int32_t micro_batch, int32_t slice, GError **error)
{
    const int64_t n_layers = g_array_index(rank->model->stages, ExecStage, stage).n_layers;
    const ProfileMeasurement key = key_of(rank, run, stage, pass, micro_batch, slice);
    const double share = 1.0 / (double)MAX(n_layers, 1);

    /* As in a step: the op before has written the input, and others' weights were used since. */
    if (rank->cache == EXEC_SAMPLE_TIME)
        exec_measure_empty_caches(rank);
    if (!check_interrupted(rank, error) ||
        !bring_input(rank, run, stage, pass, micro_batch, slice, error))
        return false;
    if (rank->cache == EXEC_SAMPLE_COLD)
        exec_measure_empty_caches(rank);
    if (rank->by_kind) {
        hide_queueing(rank, &key, share);
        return exec_kinds_begin(rank->kinds, &key, share, error) &&
               run_op_by_kind(rank, run, &key, micro_batch, slice, error);
    }
    return exec_measure_begin(rank, &key, share, error) &&
           run_as_in_step(rank, run, stage, &key, micro_batch, slice, error) &&
           exec_measure_end(rank, &key, share, error);
}

/* Times one pass of a micro-batch, slice after slice; all busy threads begin together. */
static bool
time_pass(ExecMeasureRank *rank, ExecStageRun *run, int32_t stage, ProfilePass pass,
          int32_t micro_batch, int32_t n, GError **error)
{
    if (!exec_measure_meet(rank, error))
        return false;
    if (!rank->busy)
        return true;
    for (int32_t i = 0; i < n; i++) {
        const int32_t slice = pass == PROFILE_PASS_FORWARD ? i : n - 1 - i;

        if (!exec_measure_op(rank, run, stage, pass, micro_batch, slice, error) ||
            (pass == PROFILE_PASS_BACKWARD_INPUT &&
             !exec_measure_op(rank, run, stage, PROFILE_PASS_BACKWARD_WEIGHT, micro_batch, slice,
                              error)))
            return false;
    }
    return exec_measure_collect(rank, error);
}

static bool
time_stage(ExecMeasureRank *rank, int32_t stage, const ExecGridPoint *point, bool splits_backward,
           GError **error)
{
    const ProfilePass passes[] = {
        PROFILE_PASS_FORWARD,
        splits_backward ? PROFILE_PASS_BACKWARD_INPUT : PROFILE_PASS_BACKWARD,
    };
    const int32_t n = n_slices(rank->shared->plan->seq_len, point->tokens);
    g_autoptr(ExecStageRun) run = exec_measure_stage_run(rank, stage, point, N_MICRO_BATCHES);

    for (size_t pass = 0; pass < G_N_ELEMENTS(passes); pass++)
        for (int32_t m = 0; m < N_MICRO_BATCHES; m++)
            if (!time_pass(rank, run, stage, passes[pass], m, n, error))
                return false;
    return true;
}

/* Times the layers once more, by the kinds of their ops. */
static bool
time_kinds(ExecMeasureRank *rank, const ExecGridPoint *point, GError **error)
{
    bool ok = true;

    rank->by_kind = true;
    rank->comm.backend = exec_kinds_backend(rank->kinds);
    for (int32_t stage = EXEC_MEASURE_LAYERS; ok && stage < head_stage(rank); stage++)
        for (int splits = 0; ok && splits <= 1; splits++)
            ok = time_stage(rank, stage, point, splits != 0, error);
    rank->comm.backend = rank->backend;
    rank->by_kind = false;
    return ok && exec_kinds_collect(
                     rank->kinds, rank->record && rank->busy ? rank->shared->samples : NULL, error);
}

bool
exec_measure_point(ExecMeasureRank *rank, const ExecGridPoint *point, bool by_kind, GError **error)
{
    for (int32_t stage = 0; stage <= head_stage(rank); stage++)
        for (int splits = 0; splits <= 1; splits++)
            if (!time_stage(rank, stage, point, splits != 0, error))
                return false;
    if (by_kind && !time_kinds(rank, point, error))
        return false;
    static const ExecSample caches[] = {EXEC_SAMPLE_COLD, EXEC_SAMPLE_WARM};
    const bool has_caches = by_kind && rank->flush.data != NULL;
    bool ok = true;
    for (size_t i = 0; ok && has_caches && i < G_N_ELEMENTS(caches); i++) {
        rank->cache = caches[i];
        for (int32_t stage = EXEC_MEASURE_LAYERS; ok && stage < head_stage(rank); stage++)
            ok = time_stage(rank, stage, point, false, error);
    }
    rank->cache = EXEC_SAMPLE_TIME;
    return ok;
}

/* --- a rank --- */

/* Every busy rank has an equal share of the device, as the ranks of a plan have. */
static bool
open_backend(ExecMeasureRank *rank, GError **error)
{
    const ExecMeasureShared *shared = rank->shared;
    const ExecBackendOptions options = {
        .storage = shared->o->dtype,
        .share = rank->busy ? rank->host_transport.rank : 0,
        .n_shares = rank->busy ? shared->n_busy : 1,
        .attention = shared->o->attention,
    };

    rank->backend = exec_backend_open_with(shared->o->device, &options, error);
    if (rank->backend == NULL)
        return false;
    if (rank->backend->ops->stamp != NULL) {
        rank->device_transport =
            exec_device_transport_new(&rank->host_transport, rank->backend, true);
        rank->transport = *rank->device_transport;
    }
    rank->pool = exec_pool_new(rank->backend);
    rank->kinds = exec_kinds_new(rank->backend);
    if (shared->plan->degrees.tp > 1)
        exec_comm_init(&rank->comm, shared->o->arch, shared->plan, rank->backend, &rank->transport);
    else
        exec_comm_init_alone(&rank->comm, rank->backend);
    return true;
}

/* Makes a block of @n numbers of both signs, of sizes up to @largest, in storage format. */
static bool
fill_pattern(ExecMeasureRank *rank, int64_t n, float largest, ExecBlock *block, GError **error)
{
    const ExecBackendOps *ops = rank->backend->ops;
    const size_t n_bytes = (size_t)n * sizeof(float);
    g_autofree float *host = g_new(float, (size_t)n);

    for (int64_t i = 0; i < n; i++)
        host[i] = (float)(i % 97 - 48) / 48.0f * largest;
    if (!exec_pool_take(rank->pool, TRACE_MEMORY_BUFFERS, exec_storage_bytes(rank->backend, n),
                        block, error))
        return false;
    float *device = ops->alloc(rank->backend, n_bytes, "inputs", error);
    if (device == NULL)
        return false;
    ops->upload(rank->backend, n_bytes, host, device);
    ops->to_storage(rank->backend, n, device, block->data);
    const bool ok = ops->synchronize(rank->backend, error);
    ops->release(rank->backend, device);
    return ok;
}

/* Makes inputs as after a norm, and gradients as small as a mean over tokens makes them. */
static bool
fill_inputs(ExecMeasureRank *rank, int64_t n_rows, GError **error)
{
    const ExecBackendOps *ops = rank->backend->ops;
    const ModelArch *arch = rank->shared->o->arch;
    const int64_t n_losses = model_n_losses(arch);
    const int64_t n_row = n_rows * arch->hidden, n = n_row * n_losses;
    g_autofree int32_t *tokens = g_new(int32_t, (size_t)n_rows);

    for (int64_t i = 0; i < n_rows; i++)
        tokens[i] = (int32_t)(i * 31 % MAX(arch->vocab, 1));
    if (!fill_pattern(rank, n, 1.0f, &rank->x, error) ||
        !fill_pattern(rank, n, 5e-4f, &rank->dx, error) ||
        !exec_pool_take(rank->pool, TRACE_MEMORY_BUFFERS, n_row * (int64_t)sizeof(float),
                        &rank->message, error))
        return false;
    ops->zero(rank->backend, (size_t)rank->message.n_bytes, rank->message.data);
    rank->tokens = ops->alloc(rank->backend, (size_t)n_rows * sizeof(int32_t), "tokens", error);
    if (rank->tokens == NULL)
        return false;
    ops->upload(rank->backend, (size_t)n_rows * sizeof(int32_t), tokens, rank->tokens);
    rank->losses =
        ops->alloc(rank->backend, (size_t)n_losses * sizeof *rank->losses, "the losses", error);
    return rank->losses != NULL && ops->synchronize(rank->backend, error);
}

static bool
prepare(ExecMeasureRank *rank, GError **error)
{
    const ExecMeasureShared *shared = rank->shared;
    const ExecMeasureOptions *o = shared->o;
    const int64_t seq_len = shared->plan->seq_len, largest = shared->largest_batch;

    if (!open_backend(rank, error))
        return false;
    const int32_t tp = (int32_t)shared->plan->degrees.tp;
    rank->model = exec_model_new(&(ExecModelOptions){.arch = o->arch,
                                                     .plan = shared->plan,
                                                     .tp_index = rank->transport.rank % tp,
                                                     .seed = 1,
                                                     .optimizer = shared->has_optimizer},
                                 rank->backend, rank->pool, error);
    rank->captures = shared->captures && exec_stage_is_capturable(&rank->comm, o->arch);
    return rank->model != NULL &&
           exec_stage_scratch_init(&rank->scratch,
                                   &(ExecScratchOptions){
                                       .model = rank->model,
                                       .comm = &rank->comm,
                                       .pool = rank->pool,
                                       .sequences = largest,
                                       .lengths = &shared->plan->seq_len,
                                       .n_slices = 1,
                                   },
                                   error) &&
           (shared->flush_bytes == 0 || exec_pool_take(rank->pool, TRACE_MEMORY_BUFFERS,
                                                       shared->flush_bytes, &rank->flush, error)) &&
           fill_inputs(rank, largest * seq_len, error);
}

static void
rank_clear(ExecMeasureRank *rank)
{
    if (rank->pool != NULL) {
        exec_stage_scratch_clear(&rank->scratch, rank->pool);
        exec_pool_give(rank->pool, &rank->message);
        exec_pool_give(rank->pool, &rank->x);
        exec_pool_give(rank->pool, &rank->dx);
        exec_pool_give(rank->pool, &rank->flush);
    }
    if (rank->backend != NULL) {
        g_mutex_lock(&rank->shared->mutex);
        rank->shared->workspace_bytes =
            MAX(rank->shared->workspace_bytes, exec_backend_workspace_bytes(rank->backend));
        g_mutex_unlock(&rank->shared->mutex);
        rank->backend->ops->release(rank->backend, rank->tokens);
        rank->backend->ops->release(rank->backend, rank->losses);
    }
    exec_model_free(rank->model);
    exec_comm_clear(&rank->comm);
    exec_kinds_free(rank->kinds);
    exec_pool_free(rank->pool);
    exec_device_transport_free(rank->device_transport);
    exec_backend_close(rank->backend);
    g_array_unref(rank->slices);
    g_array_unref(rank->sequences);
    g_free(rank->timings);
    g_free(rank->members);
}

/* Keeps the error before the other threads hear of it: they only report that something happened. */
static void
end_all(ExecMeasureShared *shared, ExecTransport transport, GError *error)
{
    g_autofree char *reason = g_strdup(error->message);

    g_mutex_lock(&shared->mutex);
    if (shared->error == NULL)
        shared->error = g_steal_pointer(&error);
    g_mutex_unlock(&shared->mutex);
    g_clear_error(&error);
    transport.ops->abort(&transport, reason);
    atomic_store(&shared->stop, true);
    atomic_store(&shared->is_done, true); /* nobody waits for what will not come */
    atomic_store(&shared->is_started, true);
}

/* --- threads --- */

static gpointer
rank_main(gpointer user_data)
{
    ExecMeasureShared *shared = user_data;
    const int32_t index = atomic_fetch_add(&shared->n_begun, 1);
    ExecMeasureRank rank = {
        .shared = shared,
        .host_transport = exec_local_transport(shared->hub, index),
        .members = exec_ranks_new(shared->n_threads),
        .timings = g_new(ExecMeasureTiming, EXEC_MEASURE_MAX_TIMINGS),
        .slices = g_array_new(FALSE, FALSE, sizeof(int64_t)),
        .sequences = g_array_new(FALSE, FALSE, sizeof(int64_t)),
        .busy = index < shared->n_busy,
    };
    GError *error = NULL;

    rank.transport = rank.host_transport;
    if (!prepare(&rank, &error) || !shared->job(&rank, &error))
        end_all(shared, rank.transport, error);
    rank_clear(&rank);
    return NULL;
}

void
exec_measure_start(ExecMeasureShared *shared)
{
    const int32_t n = shared->n_threads;

    shared->threads = g_new0(GThread *, (size_t)n);
    shared->arrived_ns = g_new0(int64_t, 2 * (size_t)n);
    shared->finished_ns = shared->arrived_ns + n;
    shared->hub = exec_local_hub_new(n, EXEC_WATCH_FIRST_LIMIT_NS * 1e-9);
    g_mutex_init(&shared->mutex);
    for (int32_t i = 0; i < n; i++) {
        GError *error = NULL;

        shared->threads[i] = g_thread_try_new("profiler", rank_main, shared, &error);
        if (shared->threads[i] == NULL) {
            g_prefix_error(&error, "rank %d of the profiler: ", i);
            end_all(shared, exec_local_transport(shared->hub, i), error);
            break;
        }
    }
}

bool
exec_measure_join(ExecMeasureShared *shared, GError **error)
{
    for (int32_t i = 0; i < shared->n_threads; i++)
        if (shared->threads[i] != NULL)
            g_thread_join(shared->threads[i]);
    g_mutex_clear(&shared->mutex);
    exec_local_hub_free(shared->hub);
    g_free(shared->threads);
    g_free(shared->arrived_ns);
    if (shared->error == NULL)
        return true;
    g_propagate_error(error, shared->error);
    return false;
}
