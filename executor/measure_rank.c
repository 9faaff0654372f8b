#include "executor/measure_rank.h"

#include "executor/stage.h"

/* The stages of the plan, by chunk. */
enum {
    STAGE_EMBEDDING,
    STAGE_LAYERS,
    STAGE_HEAD,
    N_STAGES,
};

/* Micro-batches in flight while timing: as a pipeline does, backward does not meet the activations
 * of the forward just before, still in the cache. */
#define N_MICROBATCHES 2

typedef struct {
    ExecMeasureShared *shared;
    ExecTransport transport;
    ExecBackend *backend; /* (owned) */
    ExecPool *pool;       /* (owned) */
    ExecComm comm;        /* alone */
    ExecModel *model;     /* (owned) */
    ExecStageScratch scratch;
    ExecBlock message; /* for p2p */
    int32_t *tokens;   /* (owned by the backend) */
    double *loss;      /* (owned by the backend) */
    int32_t *members;  /* (owned) all threads */
    bool busy;         /* computes; else only keeps pace */
    bool record;       /* not in the first, warming, repetition */
    int64_t begin_ns;  /* start_clock() */
} Rank;

static bool
meet(Rank *rank, GError **error)
{
    const ExecGroup everyone = {
        .ranks = rank->members,
        .n = rank->shared->n_threads,
        .index = rank->transport.rank,
    };

    return rank->transport.ops->barrier(&rank->transport, &everyone, error);
}

static void
add_sample(Rank *rank, const ProfileMeasurement *key, int64_t ns, double share)
{
    if (rank->record && rank->busy)
        exec_samples_add(rank->shared->samples, key, (double)ns * 1e-9 * share);
}

/* --- the clock of what all busy threads do at the same time --- */

static int64_t
latest_ns(const Rank *rank, const int64_t *times_ns)
{
    int64_t latest = 0;

    for (int32_t i = 0; i < rank->shared->n_threads; i++)
        latest = MAX(latest, times_ns[i]);
    return latest;
}

/*
 * Starts.  Where cores are shared, the scheduler runs some threads' ops undisturbed while others
 * wait for a core: a thread's own time says nothing.  Then the clock runs from the last arrival to
 * the last end, in which every thread gets one op done: a rank's share of the machine when all are
 * busy.  Only busy threads call this: all threads are where cores are shared.
 */
static bool
start_clock(Rank *rank, GError **error)
{
    if (rank->shared->shares_cores) {
        rank->shared->arrived_ns[rank->transport.rank] = exec_now_ns();
        if (!meet(rank, error))
            return false;
        rank->begin_ns = latest_ns(rank, rank->shared->arrived_ns);
    } else {
        rank->begin_ns = exec_now_ns();
    }
    return true;
}

/* Adds @share of the time since start_clock() to the row of @key. */
static bool
stop_clock(Rank *rank, const ProfileMeasurement *key, double share, GError **error)
{
    int64_t end_ns = exec_now_ns();

    if (rank->shared->shares_cores) {
        rank->shared->finished_ns[rank->transport.rank] = end_ns;
        if (!meet(rank, error))
            return false;
        end_ns = latest_ns(rank, rank->shared->finished_ns);
    }
    add_sample(rank, key, end_ns - rank->begin_ns, share);
    return true;
}

/* --- stages --- */

/* One F or B. */
static bool
time_op(Rank *rank, ExecStageRun *run, int32_t stage, bool backward, int32_t microbatch,
        int32_t slice, GError **error)
{
    static const ProfileOp kinds[] = {PROFILE_OP_EMBEDDING, PROFILE_OP_LAYER, PROFILE_OP_HEAD};
    const ExecSlice s = exec_stage_slice(run, microbatch, slice);
    const int64_t n_layers = g_array_index(rank->model->stages, ExecStage, stage).n_layers;
    const ProfileMeasurement key = {
        .op = kinds[stage],
        .pass = backward ? PROFILE_PASS_BACKWARD : PROFILE_PASS_FORWARD,
        .batch = s.sequences,
        .tokens = s.tokens,
        .context = s.context,
        .tp = 1,
    };
    const int64_t n = exec_stage_boundary_bytes(run, microbatch, slice) / (int64_t)sizeof(float);
    void *in;
    const void *dx;

    if (!backward && !exec_stage_begin_forward(run, microbatch, slice, &in, error))
        return false;
    /* Inputs as after a norm; gradients small, as a mean over tokens makes them. */
    if (!backward && stage != STAGE_EMBEDDING)
        for (int64_t i = 0; i < n; i++)
            ((float *)in)[i] = (float)(i % 97 - 48) * 0.02f;
    if (backward && stage != STAGE_HEAD)
        for (int64_t i = 0; i < n; i++)
            ((float *)exec_stage_gradient(run))[i] = (float)(i % 89 - 44) * 1e-5f;
    if (!start_clock(rank, error))
        return false;
    if (!backward)
        exec_stage_forward(run, microbatch, slice, rank->tokens, rank->tokens, rank->loss);
    else if (!exec_stage_backward(run, microbatch, slice, rank->tokens, &dx, error))
        return false;
    return rank->backend->ops->synchronize(rank->backend, error) &&
           stop_clock(rank, &key, 1.0 / (double)MAX(n_layers, 1), error);
}

/* Forward or backward of a micro-batch, slice after slice; all busy threads begin together. */
static bool
time_pass(Rank *rank, ExecStageRun *run, int32_t stage, bool backward, int32_t microbatch,
          int32_t n_slices, GError **error)
{
    if (!meet(rank, error))
        return false;
    for (int32_t i = 0; rank->busy && i < n_slices; i++)
        if (!time_op(rank, run, stage, backward, microbatch, backward ? n_slices - 1 - i : i,
                     error))
            return false;
    return true;
}

/* Slices of @tokens (the last one shorter) cover the sequence, so one pass times every context. */
static bool
time_stage(Rank *rank, int32_t stage, int64_t batch, int64_t tokens, GError **error)
{
    const int64_t seq_len = rank->shared->plan->seq_len;
    const int32_t n_slices = (int32_t)((seq_len + tokens - 1) / tokens);
    g_autofree int64_t *slices = g_new(int64_t, (size_t)n_slices);
    const int64_t sequences[N_MICROBATCHES] = {batch, batch};

    for (int32_t s = 0; s < n_slices; s++)
        slices[s] = MIN(tokens, seq_len - s * tokens);
    g_autoptr(ExecStageRun) run = exec_stage_run_new(&(ExecStageOptions){
        .widths = &rank->model->widths,
        .stage = &g_array_index(rank->model->stages, ExecStage, stage),
        .comm = &rank->comm,
        .pool = rank->pool,
        .scratch = &rank->scratch,
        .n_microbatches = N_MICROBATCHES,
        .n_slices = n_slices,
        .sequences = sequences,
        .slices = slices,
        .loss_factor = 1.0f / (float)(batch * seq_len),
    });
    for (int backward = 0; backward <= 1; backward++)
        for (int32_t m = 0; m < N_MICROBATCHES; m++)
            if (!time_pass(rank, run, stage, backward, m, n_slices, error))
                return false;
    return true;
}

static bool
time_stages(Rank *rank, GError **error)
{
    const ExecMeasureOptions *o = rank->shared->o;

    for (size_t b = 0; b < o->n_batches; b++)
        for (size_t s = 0; s < o->n_slices; s++)
            for (int32_t stage = 0; stage < N_STAGES; stage++)
                if (!time_stage(rank, stage, o->batches[b], o->slices[s], error))
                    return false;
    return true;
}

/* --- optimizer, messages, collectives --- */

/* The first half of the parameters, and all of them: two points of a line. */
static bool
time_optimizer(Rank *rank, GError **error)
{
    const ExecAdamw constants = {1e-5f, 0.9f, 0.95f, 1e-8f, 0, 1};
    const guint n_parameters = rank->model->parameters->len;

    for (int half = 1; half <= 2; half++) {
        ProfileMeasurement key = {.op = PROFILE_OP_OPTIMIZER};
        GArray *all = rank->model->parameters;
        g_autoptr(GArray) some = g_array_new(false, false, sizeof(ExecParameter));
        g_array_append_vals(some, all->data, half == 1 ? n_parameters / 2 : n_parameters);
        for (guint i = 0; i < some->len; i++)
            key.n_elements += g_array_index(some, ExecParameter, i).n;
        if (!meet(rank, error))
            return false;
        if (!rank->busy)
            continue;
        if (!start_clock(rank, error))
            return false;
        rank->model->parameters = some;
        const bool ok = exec_model_adamw(rank->model, &constants, EXEC_WEIGHT_DECAY, error) &&
                        rank->backend->ops->synchronize(rank->backend, error);
        rank->model->parameters = all;
        if (!ok || !stop_clock(rank, &key, 1, error))
            return false;
    }
    return true;
}

/* Round trips between neighbours 0-1, 2-3, ... all at once; one way is half. */
static bool
time_message(Rank *rank, int64_t n, GError **error)
{
    enum {
        ROUNDS = 8
    };
    const ProfileMeasurement key = {
        .op = PROFILE_OP_P2P,
        .bytes = n * (int64_t)sizeof(float),
        .n_ranks = 2,
    };
    ExecTransport *t = &rank->transport;
    const int32_t peer = t->rank ^ 1;

    if (!meet(rank, error))
        return false;
    if (peer >= rank->shared->n_threads)
        return true;
    for (int round = 0; round < ROUNDS; round++) {
        const int64_t begin = exec_now_ns();
        if (t->rank < peer) {
            if (!t->ops->send(t, peer, 0, rank->message.data, key.bytes, error) ||
                !t->ops->receive(t, peer, 0, rank->message.data, key.bytes, error))
                return false;
            if (round > 0)
                add_sample(rank, &key, exec_now_ns() - begin, 0.5);
        } else if (!t->ops->receive(t, peer, 0, rank->message.data, key.bytes, error) ||
                   !t->ops->send(t, peer, 0, rank->message.data, key.bytes, error)) {
            return false;
        }
    }
    return true;
}

/* Over the first @n_members threads. */
static bool
time_all_reduce(Rank *rank, int32_t n_members, int64_t n, GError **error)
{
    const ProfileMeasurement key = {
        .op = PROFILE_OP_ALL_REDUCE,
        .bytes = n * (int64_t)sizeof(float),
        .n_ranks = n_members,
    };
    const ExecGroup group = {
        .ranks = rank->members,
        .n = n_members,
        .index = rank->transport.rank,
    };

    if (!meet(rank, error))
        return false;
    if (rank->transport.rank >= n_members)
        return true;
    rank->backend->ops->zero(rank->backend, (size_t)n * sizeof(float), rank->model->gradients.data);
    const int64_t begin = exec_now_ns();
    if (!rank->transport.ops->all_reduce(&rank->transport, &group, DTYPE_FP32,
                                         rank->model->gradients.data, n, error))
        return false;
    add_sample(rank, &key, exec_now_ns() - begin, 1);
    return true;
}

static bool
time_communication(Rank *rank, GError **error)
{
    const ExecMeasureOptions *o = rank->shared->o;

    for (size_t b = 0; b < o->n_batches; b++)
        for (size_t s = 0; s < o->n_slices; s++)
            if (!time_message(rank, o->batches[b] * o->slices[s] * o->arch->hidden, error))
                return false;
    for (int32_t n = 2; n <= rank->shared->n_threads; n *= 2)
        for (int64_t divisor = 256; divisor >= 1; divisor /= 4)
            if (!time_all_reduce(rank, n, rank->model->n / divisor, error))
                return false;
    return true;
}

/* --- the thread --- */

static bool
prepare(Rank *rank, GError **error)
{
    const ExecMeasureOptions *o = rank->shared->o;
    const int64_t seq_len = rank->shared->plan->seq_len;
    int64_t largest = 0;

    for (size_t b = 0; b < o->n_batches; b++)
        largest = MAX(largest, o->batches[b]);
    rank->backend = exec_backend_open(o->device, 0, DTYPE_FP32, error);
    if (rank->backend == NULL)
        return false;
    rank->pool = exec_pool_new(rank->backend);
    exec_comm_init_alone(&rank->comm, rank->backend);
    rank->model = exec_model_new(
        &(ExecModelOptions){
            .arch = o->arch, .plan = rank->shared->plan, .seed = 1, .optimizer = true},
        rank->backend, rank->pool, error);
    if (rank->model == NULL ||
        !exec_stage_scratch_init(&rank->scratch,
                                 &(ExecScratchOptions){
                                     .widths = &rank->model->widths,
                                     .comm = &rank->comm,
                                     .pool = rank->pool,
                                     .sequences = largest,
                                     .lengths = &rank->shared->plan->seq_len,
                                     .n_slices = 1,
                                 },
                                 error) ||
        !exec_pool_take(rank->pool, TRACE_MEMORY_BUFFERS,
                        largest * seq_len * o->arch->hidden * (int64_t)sizeof(float),
                        &rank->message, error))
        return false;
    rank->backend->ops->zero(rank->backend, (size_t)rank->message.n_bytes, rank->message.data);
    rank->tokens = rank->backend->ops->alloc(
        rank->backend, (size_t)(largest * seq_len) * sizeof(int32_t), "tokens", error);
    if (rank->tokens == NULL)
        return false;
    rank->loss = rank->backend->ops->alloc(rank->backend, sizeof *rank->loss, "the loss", error);
    if (rank->loss == NULL)
        return false;
    for (int64_t i = 0; i < largest * seq_len; i++)
        rank->tokens[i] = (int32_t)(i * 31 % o->arch->vocab);
    return true;
}

static void
rank_clear(Rank *rank)
{
    if (rank->pool != NULL) {
        exec_stage_scratch_clear(&rank->scratch, rank->pool);
        exec_pool_give(rank->pool, &rank->message);
    }
    if (rank->backend != NULL) {
        rank->backend->ops->release(rank->backend, rank->tokens);
        rank->backend->ops->release(rank->backend, rank->loss);
    }
    exec_model_free(rank->model);
    exec_comm_clear(&rank->comm);
    exec_pool_free(rank->pool);
    exec_backend_close(rank->backend);
    g_free(rank->members);
}

/* Within the budget at most max_repetitions, beyond it at least min_repetitions, but on a machine
 * that is slow or busy with others no more than fit into twice the budget. */
static bool
is_enough(const ExecMeasureShared *shared, int32_t repetition)
{
    const int64_t spent = exec_now_ns() - shared->begin_ns;

    if (repetition < 1)
        return false;
    return repetition >= shared->max_repetitions || spent > 2 * shared->budget_ns ||
           (repetition >= shared->min_repetitions && spent > shared->budget_ns);
}

/* Repetitions are the outer loop, so that a disturbance of the machine is spread over all rows. */
static bool
run_rank(Rank *rank, GError **error)
{
    ExecMeasureShared *shared = rank->shared;

    if (!prepare(rank, error))
        return false;
    for (int32_t repetition = 0; !atomic_load(&shared->stop); repetition++) {
        rank->record = repetition > 0;
        if (!time_stages(rank, error) || !time_optimizer(rank, error) ||
            !time_communication(rank, error) || !meet(rank, error))
            return false;
        if (rank->transport.rank == 0) {
            atomic_store(&shared->n_repetitions, repetition);
            atomic_store(&shared->stop, is_enough(shared, repetition));
        }
        if (!meet(rank, error))
            return false;
    }
    return true;
}

gpointer
exec_measure_rank_main(gpointer user_data)
{
    const ExecMeasureStart *start = user_data;
    ExecMeasureShared *shared = start->shared;
    Rank rank = {
        .shared = shared,
        .transport = exec_local_transport(shared->hub, start->rank),
        .members = g_new(int32_t, (size_t)shared->n_threads),
        .busy = start->rank < shared->n_busy,
    };
    GError *error = NULL;

    for (int32_t i = 0; i < shared->n_threads; i++)
        rank.members[i] = i;
    if (!run_rank(&rank, &error)) {
        exec_transport_abort(&rank.transport, error->message);
        g_mutex_lock(&shared->mutex);
        if (shared->error == NULL)
            shared->error = g_steal_pointer(&error);
        g_mutex_unlock(&shared->mutex);
        g_clear_error(&error);
    }
    rank_clear(&rank);
    return NULL;
}
