/* What this executor refuses, before the first step and by name: exec_plan_supported() of run.h. */
#include "executor/run/run.h"

#include <unistd.h>

#include "executor/model/model.h"
#include "models/ops.h"

/* Threads of one process; far beyond what a machine can use. */
#define MAX_RANKS 1024

static bool
refuse(GError **error, const char *what)
{
    g_set_error(error, EXEC_ERROR, EXEC_ERROR_UNSUPPORTED, "degas run cannot execute %s", what);
    return false;
}

static bool
check_model(const ModelArch *arch, GError **error)
{
    if (arch->experts.n_experts > 0 && arch->family != MODEL_FAMILY_LLAMA)
        return refuse(error, "experts in models of family gpt");
    if (arch->mla.kv_lora_rank > 0)
        return refuse(error, "multi-head latent attention");
    if (arch->qk_norm)
        return refuse(error, "models with qk_norm");
    if (arch->vocab == 0)
        return refuse(error, "models without a vocabulary (there is no loss to train)");
    return true;
}

static bool
check_splits_we_know(const Plan *plan, GError **error)
{
    if (plan->degrees.cp > 1 && plan->conventions.cp_comm != PLAN_CP_P2P)
        return refuse(error, "context parallelism by all-to-all (conventions.cp_comm)");
    if (plan_expert_tp(&plan->degrees, &plan->conventions) > 1)
        return refuse(error, "experts that tp ranks share (conventions.expert_tp)");
    return true;
}

/* What tp, cp and ep must divide. */
static bool
check_split(const ModelArch *arch, const Plan *plan, GError **error)
{
    const PlanDegrees *d = &plan->degrees;

    for (guint i = 0; i < plan->slices->len; i++) {
        const int64_t tokens = g_array_index(plan->slices, int64_t, i);
        /* Rows are divided over tp with sequence parallelism, and for experts. */
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
            .expert_imbalance = 1,
        };
        if (!model_shape_check(arch, &shape, error))
            return false;
        if (tokens % parts == 0)
            continue;
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_UNSUPPORTED,
                    "degas run cannot execute slices[%u]: %s %" G_GINT64_FORMAT
                    " does not divide %" G_GINT64_FORMAT " tokens",
                    i, divides_rows && d->tp > 1 ? "cp * tp" : "cp", parts, tokens);
        return false;
    }
    return true;
}

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
    else if (plan->conventions.dropout)
        what = g_strdup("dropout");
    return what == NULL || refuse(error, what);
}

/* Any order of F and B, or F, I and W, wherever the chunks lie. */
static bool
check_schedule(const Plan *plan, GError **error)
{
    g_autoptr(Schedule) schedule = plan_build_schedule(plan, NULL, error);
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

/* Weights, gradients and moments of all ranks must fit the machine: the kernel would otherwise kill
 * the process long after the first step began. */
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
    g_set_error(error, EXEC_ERROR, EXEC_ERROR_MEMORY,
                "weights, gradients and optimizer state of all ranks need %.1f GiB, this machine "
                "has %.1f GiB",
                total / (double)(1 << 30), machine / (double)(1 << 30));
    return false;
}

bool
exec_plan_supported(const ModelArch *arch, const Plan *plan, GError **error)
{
    g_return_val_if_fail(arch != NULL && plan != NULL, false);
    if (!check_model(arch, error) || !check_splits_we_know(plan, error) ||
        !check_numbers(plan, error) || !plan_check(plan, arch->n_layers, error) ||
        !check_machine(arch, plan, error) || !check_split(arch, plan, error))
        return false;
    if (plan->seq_len > arch->max_seq_len) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_UNSUPPORTED,
                    "seq_len %" G_GINT64_FORMAT " is beyond the model's %" G_GINT64_FORMAT
                    " positions",
                    plan->seq_len, arch->max_seq_len);
        return false;
    }
    if (plan_n_devices(plan) > MAX_RANKS) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_UNSUPPORTED,
                    "%" G_GINT64_FORMAT
                    " ranks (tp * cp * dp * pp) are more than the %d threads of transport local",
                    plan_n_devices(plan), MAX_RANKS);
        return false;
    }
    return check_schedule(plan, error);
}
