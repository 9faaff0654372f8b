#include "executor/run/run.h"

#include <math.h>
#include <unistd.h>

#include "base/text.h"
#include "base/units.h"
#include "executor/device/plugin.h"
#include "executor/model/lacks.h"
#include "executor/model/layout.h"
#include "executor/run/supervise.h"
#include "executor/mpi/transport.h"
#include "executor/cuda/nccl.h"
#include "executor/run/verify.h"
#include "models/ops.h"
#include "schedule/rank_order.h"

/* Ranks may be threads of one process: the limit is far beyond what a machine can use. */
#define MAX_RANKS 1024

void
exec_run_result_clear(ExecRunResult *result)
{
    g_free(result->losses);
    g_free(result->step_s);
    g_clear_pointer(&result->busy_s, g_array_unref);
    g_clear_pointer(&result->peak_memory_bytes, g_array_unref);
    g_clear_pointer(&result->trace, trace_free);
    g_free(result->worst_tensor);
    g_free(result->backend);
    g_free(result->attention);
    g_free(result->collectives);
    *result = (ExecRunResult){0};
}

double
exec_verify_tolerance(Dtype dtype)
{
    return dtype == DTYPE_FP32 ? 1e-5 : 2e-2;
}

/* --- results --- */

/* Returns: the step whose time is nearest to the median of this run's steps before @end, among
 * those whose events are kept; of equals the earliest.  The first step, which allocates, counts
 * only when there is no other. */
static int64_t
choose_traced_step(const ExecShared *shared, int64_t end)
{
    const int64_t begin = shared->first_step;
    const int64_t first = end - begin > 1 ? begin + 1 : begin;
    const int64_t median = exec_median_step_ns(shared, first, end);
    int64_t best = end - 1;

    for (int64_t step = end - 1; step >= MAX(first, end - EXEC_TRACED_STEPS); step--)
        if (ABS(exec_step_ns(shared, step) - median) <= ABS(exec_step_ns(shared, best) - median))
            best = step;
    return best;
}

/* How long a rank has computed, without its waits. */
static int64_t
busy_ns(const GArray *events)
{
    int64_t busy = 0;

    for (guint i = 0; i < events->len; i++) {
        const TraceEvent *event = &g_array_index(events, TraceEvent, i);
        if (event->stream == TRACE_STREAM_COMPUTE && event->kind != TRACE_EVENT_WAIT)
            busy += event->end_ns - event->start_ns;
    }
    return busy;
}

static Trace *
assemble_trace(const ExecShared *shared, int64_t step)
{
    const size_t at = (size_t)(step % EXEC_TRACED_STEPS);
    const int64_t begin = exec_step_begin_ns(shared, step);
    Trace *trace = trace_new(shared->schedule, true);

    trace->makespan_ns = exec_step_ns(shared, step);
    const PlanDegrees *degrees = &shared->plan->degrees;
    for (int64_t p = 0; p < degrees->pp; p++) {
        const int64_t r = plan_stage_device(degrees, p, 0);
        const ExecRankRecord *record = &shared->records[r];
        const int64_t late = shared->begin_ns[step * shared->n_ranks + r] - begin;
        for (guint i = 0; i < record->events[at]->len; i++) {
            TraceEvent event = g_array_index(record->events[at], TraceEvent, i);
            /* The clocks of other hosts are known to a few microseconds. */
            event.start_ns = MAX(event.start_ns - begin, 0);
            event.end_ns = MAX(event.end_ns - begin, event.start_ns);
            g_array_append_val(trace->events, event);
        }
        for (guint i = 0; i < record->memory[at]->len; i++) {
            TraceMemory memory = g_array_index(record->memory[at], TraceMemory, i);
            memory.at_ns += memory.at_ns == 0 ? 0 : late;
            g_array_append_val(trace->memory, memory);
        }
    }
    trace_sort(trace);
    return trace;
}

static void
collect_steps(const ExecShared *shared, int64_t end, ExecRunResult *result)
{
    const int64_t first = shared->first_step, n = end - first;

    result->first_step = first;
    result->n_steps = n;
    result->losses = g_new(double, (size_t)n);
    result->step_s = g_new(double, (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        result->losses[i] = exec_step_loss(shared, first + i);
        result->step_s[i] = (double)exec_step_ns(shared, first + i) * 1e-9;
    }
    result->interrupted = end < shared->o.n_steps;
}

static void
collect_ranks(const ExecShared *shared, ExecRunResult *result)
{
    const int64_t traced = choose_traced_step(shared, result->first_step + result->n_steps);
    const double step_s = result->step_s[traced - result->first_step];
    double idle = 0;

    result->traced_step = traced;
    result->stolen_fraction = shared->stolen_fraction;
    for (int32_t r = 0; r < shared->n_ranks; r++) {
        const ExecRankRecord *record = &shared->records[r];
        const double busy = (double)busy_ns(record->events[traced % EXEC_TRACED_STEPS]) * 1e-9;
        idle += step_s - busy;
        g_array_append_val(result->busy_s, busy);
        g_array_append_val(result->peak_memory_bytes, record->peak_memory_bytes);
        if (shared->clocks != NULL)
            result->clock_error_s =
                MAX(result->clock_error_s, (double)shared->clocks[r].error_ns * 1e-9);
    }
    result->bubble_fraction = idle / (step_s * (double)shared->n_ranks);
    if (shared->o.want_trace)
        result->trace = assemble_trace(shared, traced);
    if (result->trace != NULL)
        result->trace->bubble_fraction = result->bubble_fraction;
}

/* Fills in the result.  Where threads did not come back (not @all_ended), only what they have told
 * is read, because they may still write their records. */
static bool
collect(ExecShared *shared, bool all_ended, ExecRunResult *result, GError **error)
{
    g_mutex_lock(&shared->mutex);
    const int64_t end = exec_shared_n_whole_steps(shared);
    const bool any = end > shared->first_step;
    if (any)
        collect_steps(shared, end, result);
    g_mutex_unlock(&shared->mutex);
    if (!any)
        return EXEC_FAIL(error, EXEC_ERROR_INTERRUPTED,
                         "interrupted before the first step had ended");
    result->busy_s = g_array_new(false, false, sizeof(double));
    result->peak_memory_bytes = g_array_new(false, false, sizeof(int64_t));
    result->bubble_fraction = result->stolen_fraction = (double)NAN;
    if (all_ended)
        collect_ranks(shared, result);
    return true;
}

/* --- what is refused --- */

static bool
refuse(GError **error, const char *what)
{
    return EXEC_FAIL(error, EXEC_ERROR_UNSUPPORTED, "degas run cannot execute %s", what);
}

static bool
check_model(const ModelArch *arch, const Plan *plan, const char *device, GError **error)
{
    const char *what = exec_model_lacks(arch, plan, exec_device_kind(device));

    return what == NULL || refuse(error, what);
}

static bool
check_splits_we_know(const ModelArch *arch, const Plan *plan, GError **error)
{
    if (plan->degrees.cp > 1 && plan->conventions.cp_comm != PLAN_CP_P2P)
        return refuse(error, "context parallelism by all-to-all (conventions.cp_comm)");
    if (arch->experts.n_experts > 0 && plan_expert_tp(&plan->degrees, &plan->conventions) > 1)
        return refuse(error, "experts that tp ranks share (conventions.expert_tp)");
    if (plan->conventions.optimizer_instances > 1)
        return refuse(error, "optimizer state that several groups of replicas hold "
                             "(conventions.optimizer_instances)");
    if (plan->conventions.deferred_gradients > 0)
        return refuse(error, "weight gradients of the head after the last backward "
                             "(conventions.deferred_gradients)");
    return true;
}

/* Checks that the device and the state allow ops to compute in turns, where the plan's do. */
static bool
check_pairs(const Plan *plan, const char *device, GError **error)
{
    if (!plan_merges_pairs(&plan->conventions, &plan->degrees))
        return true;
    if (exec_device_kind(device)->is_gpu)
        return refuse(error, "--overlap ep on GPUs (conventions.overlap_ep)");
    if (plan->zero_stage >= 2)
        return refuse(error,
                      "--overlap ep with --zero 2 or 3 (what an op has whole belongs to one op "
                      "at a time)");
    return true;
}

/* Checks that tp, cp and ep divide what they split. */
static bool
check_split(const ModelArch *arch, const Plan *plan, GError **error)
{
    const PlanDegrees *d = &plan->degrees;

    for (guint i = 0; i < plan->slices->len; i++) {
        const int64_t tokens = g_array_index(plan->slices, int64_t, i);
        /* With sequence parallelism, and where there are experts, rows are split over tp. */
        const bool divides_rows = plan->sequence_parallel || arch->experts.n_experts > 0;
        const int64_t parts = d->cp * (divides_rows ? d->tp : 1);
        const ModelShape shape = {
            .batch = plan->micro_batch,
            .tokens = tokens,
            .tp = d->tp,
            .cp = d->cp,
            .ep = d->ep,
            .dtype = plan->dtype,
            .flash_attention = true,
            .row_blocks = true,
            .expert_imbalance = 1,
        };
        if (!model_shape_check(arch, &shape, error))
            return false;
        if (tokens % parts == 0)
            continue;
        return EXEC_FAIL(error, EXEC_ERROR_UNSUPPORTED,
                         "degas run cannot execute slices[%u]: %s " INT " does not divide " INT
                         " tokens",
                         i, divides_rows && d->tp > 1 ? "cp * tp" : "cp", parts, tokens);
    }
    return true;
}

/* The modules that a layer of executor/model/ computes again. */
#define EXECUTED_MODULES ((1u << PLAN_MODULE_OPS) - 1)

static bool
check_numbers(const Plan *plan, GError **error)
{
    g_autofree char *what = NULL;

    if (plan->dtype != DTYPE_FP32 && plan->dtype != DTYPE_BF16)
        what = g_strdup_printf("--dtype %s (only fp32 and bf16)", dtype_names[plan->dtype]);
    else if (plan->conventions.grad_dtype != DTYPE_FP32)
        what = g_strdup_printf("--grad-dtype %s (only fp32)",
                               dtype_names[plan->conventions.grad_dtype]);
    else if (plan->offload_parameters && !plan->conventions.optimizer_step)
        what = g_strdup("offload_parameters without --optimizer-step");
    else if ((plan_framework_modules(&plan->conventions) & ~EXECUTED_MODULES) != 0) {
        g_autofree char *all = plan_modules_text(plan_framework_modules(&plan->conventions));
        g_autofree char *executed = plan_modules_text(EXECUTED_MODULES);
        what = g_strdup_printf("--recompute-modules %s (only %s)", all, executed);
    } else if (!plan_optimizer(plan->conventions.optimizer)->executed)
        what = g_strdup_printf("--optimizer %s", plan_optimizer_names[plan->conventions.optimizer]);
    else if (plan_optimizer(plan->conventions.optimizer)->orthogonalises &&
             plan->offload != PLAN_OFFLOAD_NONE)
        what = g_strdup_printf("--offload with --optimizer %s",
                               plan_optimizer_names[plan->conventions.optimizer]);
    else if (plan->conventions.dropout)
        what = g_strdup("dropout");
    return what == NULL || refuse(error, what);
}

/* Checks that the schedule exists and that every I has its W; any order of ops can be run.
 * @given  (nullable) the schedule, where it is built */
static bool
check_schedule(const Plan *plan, const Schedule *given, GError **error)
{
    g_autoptr(Schedule) built = given != NULL ? NULL : plan_build_schedule(plan, NULL, error);
    const Schedule *schedule = given != NULL ? given : built;
    int64_t n_inputs = 0, n_weights = 0;

    if (schedule == NULL)
        return false;
    for (int64_t i = 0; i < schedule_n_ops(schedule); i++) {
        n_inputs += schedule->ops[i].kind == SCHEDULE_OP_BACKWARD_INPUT;
        n_weights += schedule->ops[i].kind == SCHEDULE_OP_BACKWARD_WEIGHT;
    }
    if (n_inputs != n_weights)
        return refuse(error, "a schedule with I but without W (no weight would learn)");
    return true;
}

/* Checks that weights, gradients and moments of all ranks fit this machine: otherwise the kernel
 * would kill the process long after the first step began. */
static bool
check_machine(const ModelArch *arch, const Plan *plan, GError **error)
{
    const double machine = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    const double n_copies = (double)plan_n_devices(plan) / (double)plan->degrees.pp;
    const bool in_memory = plan->offload != PLAN_OFFLOAD_NVME;
    double total = 0;

    for (int32_t rank = 0; rank < plan->degrees.pp; rank++)
        total += n_copies *
                 exec_layout_bytes(&(ExecModelOptions){
                     .arch = arch, .plan = plan, .pipeline_rank = rank, .optimizer = in_memory});
    if (total <= machine)
        return true;
    return EXEC_FAIL(
        error, EXEC_ERROR_MEMORY,
        "weights, gradients and optimizer state of all ranks need %.1f GiB, this machine "
        "has %.1f GiB",
        total / (double)(1 << 30), machine / (double)(1 << 30));
}

/* @here  all ranks are on this machine */
static bool
check_plan(const ModelArch *arch, const Plan *plan, const Schedule *schedule, const char *device,
           bool here, GError **error)
{
    if (!check_model(arch, plan, device, error) || !check_splits_we_know(arch, plan, error) ||
        !check_pairs(plan, device, error) || !check_numbers(plan, error) ||
        !plan_check(plan, model_n_stacked(arch), error) ||
        (here && !check_machine(arch, plan, error)) || !check_split(arch, plan, error))
        return false;
    if (plan->seq_len > arch->max_seq_len)
        return EXEC_FAIL(error, EXEC_ERROR_UNSUPPORTED,
                         "seq_len " INT " is beyond the model's " INT " positions", plan->seq_len,
                         arch->max_seq_len);
    if (plan_n_devices(plan) > MAX_RANKS)
        return EXEC_FAIL(
            error, EXEC_ERROR_UNSUPPORTED,
            INT " ranks (tp * cp * dp * pp) are more than the %d threads of transport local",
            plan_n_devices(plan), MAX_RANKS);
    return check_schedule(plan, schedule, error);
}

bool
exec_plan_supported(const ModelArch *arch, const Plan *plan, const char *device, GError **error)
{
    g_return_val_if_fail(arch != NULL && plan != NULL && device != NULL, false);
    return check_plan(arch, plan, NULL, device, true, error);
}

/* Checks that there are GPUs and NCCL, and MPI unless the ranks of one machine meet by sockets. */
static bool
check_nccl(const ExecRunOptions *options, GError **error)
{
    const ExecDeviceKind *kind = exec_device_kind(options->device);

    if (!kind->has_nccl) {
        g_autofree char *shown = text_escape(options->device, 64);
        return EXEC_FAIL(error, EXEC_ERROR_UNSUPPORTED,
                         "transport nccl: device %s: NCCL is for --device cuda", shown);
    }
    const ExecNcclPlugin *plugin =
        exec_plugin_symbol(kind->plugin, EXEC_NCCL_PLUGIN, "transport nccl", error);
    if (plugin == NULL || !plugin->check(error))
        return false;
    return options->without_mpi
               ? exec_backend_n_devices(kind->name, error) >= 0
               : exec_plugin_symbol("mpi", EXEC_MPI_PLUGIN, "transport nccl", error) != NULL;
}

static bool
check_transport(const ExecRunOptions *options, GError **error)
{
    const ExecTransportKind *kind = exec_transport_kind(options->transport);

    if (kind->is_nccl)
        return check_nccl(options, error);
    /* MPI is told that one thread calls it. */
    if (kind->in_processes && !kind->without_mpi &&
        plan_merges_pairs(&options->plan->conventions, &options->plan->degrees))
        return refuse(error, "--overlap ep with --transport mpi (expected local or tcp)");
    if (kind->in_processes && !kind->without_mpi)
        return exec_plugin_symbol("mpi", EXEC_MPI_PLUGIN, "transport mpi", error) != NULL;
    if (kind->name != NULL)
        return true;
    g_autofree char *shown = text_escape(options->transport, 64);
    g_autofree char *suggestion = text_suggestion(options->transport, exec_transport_names());
    return EXEC_FAIL(error, EXEC_ERROR_UNSUPPORTED,
                     "transport \"%s\" is unknown%s (expected local, mpi, tcp or nccl)", shown,
                     suggestion);
}

static bool
check_options(const ExecRunOptions *options, GError **error)
{
    return check_transport(options, error) &&
           check_plan(options->arch, options->plan, options->schedule, options->device,
                      !options->other_machines, error);
}

bool
exec_run_check(const ExecRunOptions *options, GError **error)
{
    if (!check_options(options, error))
        return false;
    g_autoptr(ExecData) data =
        exec_data_open(options->data_path, options->arch->vocab, options->plan->seq_len,
                       model_n_losses(options->arch), options->seed, error);
    g_autoptr(ExecCheckpoint) checkpoint = NULL;
    return data != NULL && exec_shared_find_checkpoint(options, &checkpoint, error);
}

/* Whether this process has the result, which ranks in other processes have given to rank 0. */
static bool
has_result(const ExecShared *shared)
{
    return shared->own_rank <= 0;
}

/* Sets what CUDA and NCCL read from the environment when they begin, unless the user has set it. */
static void
set_environment(const ExecRunOptions *options)
{
    if (!exec_device_kind(options->device)->is_gpu)
        return;
    /* Streams that share one of CUDA's 8 queues wait for each other: a message that waits for its
     * sender would hold up the layers. */
    g_setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", FALSE);
    /* NCCL chooses its algorithm, and with it the order of additions, by the size of the message.
     */
    if (options->deterministic)
        g_setenv("NCCL_ALGO", "Ring", FALSE);
}

/* Opens a backend on this thread, before there are others: blas.h says why.  @backend  (out) NULL
 * where every process takes a GPU of its own, because only its rank knows which. */
static bool
open_backend(const ExecRunOptions *options, ExecBackend **backend, GError **error)
{
    set_environment(options);
    if (exec_device_kind(options->device)->is_gpu &&
        exec_transport_kind(options->transport)->in_processes)
        return true;
    *backend = exec_backend_open(options->device, 0, options->plan->dtype, error);
    if (*backend == NULL)
        return false;
    if (options->arch->experts.n_experts > 0 && (*backend)->ops->route == NULL)
        return EXEC_FAIL(error, EXEC_ERROR_UNSUPPORTED, "device %s cannot run models with experts",
                         options->device);
    return true;
}

bool
exec_run(const ExecRunOptions *options, ExecRunResult *result, GError **error)
{
    g_return_val_if_fail(options->arch != NULL && options->plan != NULL, false);
    g_return_val_if_fail(options->device != NULL && options->transport != NULL, false);
    g_return_val_if_fail(options->n_steps >= 1, false);
    *result = (ExecRunResult){0};
    if (!check_options(options, error))
        return false;
    g_autoptr(ExecBackend) backend = NULL;
    if (!open_backend(options, &backend, error))
        return false;
    ExecShared *shared = exec_shared_new(options, error);
    if (shared == NULL)
        return false;
    GError *reason = NULL;
    bool told = false;
    bool ok = exec_supervise(shared, &told, &reason);
    if (ok || g_error_matches(reason, EXEC_ERROR, EXEC_ERROR_INTERRUPTED)) {
        const bool all_ended = ok;
        g_clear_error(&reason);
        ok = !has_result(shared) || collect(shared, all_ended, result, error);
        if (ok && options->verify && all_ended && has_result(shared) && result->n_steps > 0)
            ok = exec_verify(shared, result, error);
    } else {
        g_propagate_error(error, reason);
    }
    const bool mine = has_result(shared);
    result->collectives = g_steal_pointer(&shared->collectives);
    if (ok) {
        /* Rank 0's, which knows its share of a device, unless it was interrupted before that. */
        result->backend = shared->backend != NULL || backend == NULL
                              ? g_steal_pointer(&shared->backend)
                              : exec_backend_describe(backend);
        result->attention = g_steal_pointer(&shared->attention);
    }
    exec_shared_unref(shared);
    if (!ok)
        exec_run_result_clear(result);
    result->told = told;
    result->is_mine = mine;
    return ok;
}
