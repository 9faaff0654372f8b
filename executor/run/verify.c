#include "executor/run/verify.h"

#include <math.h>
#include <string.h>

#include "executor/model/stage.h"

void
exec_reference_clear(ExecReference *reference)
{
    g_clear_pointer(&reference->model, exec_model_free);
    exec_comm_clear(&reference->comm);
    g_clear_pointer(&reference->pool, exec_pool_free);
    g_clear_pointer(&reference->backend, exec_backend_close);
    g_clear_pointer(&reference->plan, plan_free);
}

/* A plan of one stage, with a micro-batch for every sequence. */
static Plan *
single_plan(const ModelArch *arch, int64_t global_batch, int64_t seq_len)
{
    Plan *plan = plan_new();

    plan->global_batch = global_batch;
    plan->seq_len = seq_len;
    plan->dtype = DTYPE_FP32;
    plan->n_micro_batches = global_batch;
    g_array_append_val(plan->slices, seq_len);
    plan_set_even_stages(plan, model_n_stacked(arch), true, SCHEDULE_PLACEMENT_LOOP,
                         PLAN_RECOMPUTE_NONE);
    return plan;
}

bool
exec_reference_init(ExecReference *reference, const ExecReferenceOptions *o, GError **error)
{
    *reference = (ExecReference){.plan = single_plan(o->arch, o->global_batch, o->seq_len)};
    reference->backend = exec_backend_open(o->device, 0, DTYPE_FP32, error);
    if (reference->backend == NULL)
        return false;
    reference->pool = exec_pool_new(reference->backend);
    exec_comm_init_alone(&reference->comm, reference->backend);
    reference->model = exec_model_new(
        &(ExecModelOptions){
            .arch = o->arch,
            .plan = reference->plan,
            .seed = o->seed,
            .init_deviation = o->init_deviation,
        },
        reference->backend, reference->pool, error);
    return reference->model != NULL;
}

/* Runs forward and backward of one sequence. */
static bool
run_sequence(ExecStageRun *run, const int32_t *rows, double *losses, GError **error)
{
    void *x;
    const void *dx;

    if (!exec_stage_begin_forward(run, 0, 0, &x, error))
        return false;
    exec_stage_forward(run, 0, 0, rows, losses);
    return exec_stage_backward(run, 0, 0, rows, false, &dx, error);
}

bool
exec_reference_step(ExecReference *reference, const ExecData *data, int64_t step, GError **error)
{
    const Plan *plan = reference->plan;
    ExecBackend *backend = reference->backend;
    const int64_t one = 1, n_tokens = plan->global_batch * plan->seq_len;
    const ModelArch *arch = &reference->model->widths.arch;
    const int64_t n_losses = model_n_losses(arch);
    const size_t n_bytes = (size_t)(plan->seq_len + n_losses) * sizeof(int32_t);
    const size_t loss_bytes = (size_t)n_losses * sizeof(double);
    g_autofree int32_t *tokens = g_malloc(n_bytes);
    ExecStageScratch scratch = {0};
    bool ok = true;

    reference->loss = 0;
    int32_t *rows = backend->ops->alloc(backend, n_bytes, "tokens", error);
    if (rows == NULL)
        return false;
    double *device_losses = backend->ops->alloc(backend, loss_bytes, "the losses", error);
    if (device_losses == NULL || !exec_stage_scratch_init(&scratch,
                                                          &(ExecScratchOptions){
                                                              .model = reference->model,
                                                              .comm = &reference->comm,
                                                              .pool = reference->pool,
                                                              .sequences = 1,
                                                              .lengths = &plan->seq_len,
                                                              .n_slices = 1,
                                                          },
                                                          error)) {
        backend->ops->release(backend, device_losses);
        backend->ops->release(backend, rows);
        return false;
    }
    g_autoptr(ExecStageRun) run = exec_stage_run_new(&(ExecStageOptions){
        .model = reference->model,
        .stage = &g_array_index(reference->model->stages, ExecStage, 0),
        .comm = &reference->comm,
        .pool = reference->pool,
        .scratch = &scratch,
        .n_micro_batches = 1,
        .n_slices = 1,
        .sequences = &one,
        .slices = &plan->seq_len,
        .loss_factor = 1.0f / (float)n_tokens,
        .token_step = 1,
    });
    for (int64_t i = 0; ok && i < plan->global_batch; i++) {
        double losses[1 + MODEL_MAX_MTP] = {0};
        ok = exec_data_sequence(data, step, i, tokens, error);
        if (!ok)
            break;
        backend->ops->upload(backend, n_bytes, tokens, rows);
        ok = run_sequence(run, rows, device_losses, error);
        backend->ops->download(backend, loss_bytes, device_losses, losses);
        ok = backend->ops->synchronize(backend, ok ? error : NULL) && ok;
        for (int64_t k = 0; k < n_losses; k++)
            reference->loss += model_loss_weight(arch, k) * losses[k] / (double)n_tokens;
    }
    exec_stage_scratch_clear(&scratch, reference->pool);
    backend->ops->release(backend, rows);
    backend->ops->release(backend, device_losses);
    return ok;
}

/* --- comparing --- */

double
exec_relative_error(const float *actual, const float *expected, int64_t n, double rms)
{
    double difference = 0, norm = 0;

    for (int64_t i = 0; i < n; i++) {
        const double d = (double)actual[i] - (double)expected[i];
        difference += d * d;
        norm += (double)expected[i] * (double)expected[i];
    }
    if (!isfinite(difference))
        return INFINITY;
    const double scale = fmax(sqrt(norm), EXEC_VERIFY_FLOOR * rms * sqrt((double)n));
    return difference == 0 ? 0 : sqrt(difference) / scale;
}

/* Returns: the root mean square of all gradients of the reference. */
static double
rms_of(const ExecReference *reference)
{
    const ExecModel *model = reference->model;
    double squares = 0, n = 0;

    for (guint i = 0; i < exec_model_n_parameters(model); i++) {
        const ExecParameter *p = exec_model_parameter(model, i);
        for (int64_t j = 0; j < p->n; j++) {
            const double g = (double)exec_model_gradients(model)[p->offset + j];
            squares += g * g;
        }
        n += (double)p->n;
    }
    return sqrt(squares / n);
}

/* Returns: (owned) of the reference's gradient of @p the elements that a rank holds as @part. */
static float *
part_of(const ExecReference *reference, const ExecParameter *p, const ExecParameter *part)
{
    const float *whole = exec_model_gradients(reference->model) + p->offset;
    float *values = g_new(float, (size_t)MAX(part->n, 1));

    for (int64_t i = 0; i < part->n;) {
        int64_t n;
        const int64_t at = exec_shard_at(&part->shard, i, &n);
        memcpy(values + i, whole + at, (size_t)n * sizeof *values);
        i += n;
    }
    return values;
}

/* Of a vector what makes its root mean square the floor of exec_relative_error(): a rank may have one
 * number of it, such as the sink of its only head, in which rows cancel.  0 of a matrix. */
static double
rms_of_vector(const ExecReference *reference, const ExecParameter *whole)
{
    const float *gradient = exec_model_gradients(reference->model) + whole->offset;
    double squares = 0;

    for (int64_t i = 0; whole->shard.rows == 1 && i < whole->n; i++)
        squares += (double)gradient[i] * (double)gradient[i];
    return sqrt(squares / (double)MAX(whole->n, 1)) / EXEC_VERIFY_FLOOR;
}

/* Raises the result's largest error to that of one rank's tensors. */
static void
compare_rank(const ExecShared *shared, int32_t rank, const ExecReference *reference, double rms,
             ExecRunResult *result)
{
    const ExecRankRecord *record = &shared->records[rank];

    for (guint i = 0; i < record->parameters->len; i++) {
        const ExecParameter *p = &g_array_index(record->parameters, ExecParameter, i);
        const ExecParameter *whole = exec_model_find(reference->model, p->name);
        g_assert(whole != NULL && whole->n == p->shard.rows * p->shard.cols);
        g_autofree float *expected = part_of(reference, whole, p);
        const double e = exec_relative_error(record->gradients + p->offset, expected, p->n,
                                             fmax(rms, rms_of_vector(reference, whole)));
        if (result->worst_tensor != NULL && !(e > result->max_gradient_error))
            continue;
        result->max_gradient_error = e;
        g_free(result->worst_tensor);
        result->worst_tensor = g_strdup_printf("%s on rank %d", p->name, rank);
    }
}

bool
exec_verify(const ExecShared *shared, ExecRunResult *result, GError **error)
{
    g_auto(ExecReference) reference = {0};
    const Plan *plan = shared->plan;

    if (!exec_reference_init(&reference,
                             &(ExecReferenceOptions){
                                 .arch = shared->arch,
                                 .global_batch = plan->global_batch,
                                 .seq_len = plan->seq_len,
                                 .device = "reference",
                                 .seed = shared->o.seed,
                                 .init_deviation = shared->o.init_deviation,
                             },
                             error) ||
        !exec_reference_step(&reference, shared->data, 0, error))
        return false;
    const double rms = rms_of(&reference);
    result->max_gradient_error = 0;
    for (int32_t rank = 0; rank < shared->n_ranks; rank++)
        compare_rank(shared, rank, &reference, rms, result);
    result->reference_loss = reference.loss;
    result->verified = true;
    result->passed =
        result->max_gradient_error <= shared->o.verify_tolerance &&
        fabs(result->losses[0] - reference.loss) <= shared->o.verify_tolerance * reference.loss;
    return true;
}
