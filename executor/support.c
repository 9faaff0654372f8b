/* What this executor refuses, before the first step and by name: exec_plan_supported() of run.h. */
#include "executor/run.h"

#include <unistd.h>

#include "executor/model.h"

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
    if (arch->family != MODEL_FAMILY_GPT)
        return refuse(error, "models of family llama");
    if (arch->experts.n_experts > 0)
        return refuse(error, "models with experts");
    if (arch->mla.kv_lora_rank > 0)
        return refuse(error, "multi-head latent attention");
    if (arch->qk_norm)
        return refuse(error, "models with qk_norm");
    if (!arch->qkv_bias)
        return refuse(error, "gpt models without qkv_bias");
    if (arch->vocab == 0)
        return refuse(error, "models without a vocabulary (there is no loss to train)");
    return true;
}

static bool
check_degree(const char *flag, int64_t degree, GError **error)
{
    if (degree == 1)
        return true;
    g_autofree char *what = g_strdup_printf("%s %" G_GINT64_FORMAT, flag, degree);
    return refuse(error, what);
}

static bool
check_memory_saving(const Plan *plan, GError **error)
{
    for (guint i = 0; i < plan->stages->len; i++) {
        const PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);
        if (stage->recompute != PLAN_RECOMPUTE_NONE) {
            g_autofree char *what = g_strdup_printf("--recompute %s (stage %u)",
                                                    plan_recompute_names[stage->recompute], i);
            return refuse(error, what);
        }
    }
    if (plan->zero_stage != 0) {
        g_autofree char *what = g_strdup_printf("--zero %d", plan->zero_stage);
        return refuse(error, what);
    }
    if (plan->offload != PLAN_OFFLOAD_NONE) {
        g_autofree char *what = g_strdup_printf("--offload %s", plan_offload_names[plan->offload]);
        return refuse(error, what);
    }
    return true;
}

static bool
check_numbers(const Plan *plan, GError **error)
{
    g_autofree char *what = NULL;

    if (plan->dtype != DTYPE_FP32)
        what = g_strdup_printf("--dtype %s (only fp32)", dtype_names[plan->dtype]);
    else if (plan->conventions.grad_dtype != DTYPE_FP32)
        what = g_strdup_printf("--grad-dtype %s (only fp32)",
                               dtype_names[plan->conventions.grad_dtype]);
    else if (plan->conventions.dropout)
        what = g_strdup("dropout");
    return what == NULL || refuse(error, what);
}

/* Any order of F and B, or F, I and W, on chunks that lie on a loop or a V. */
static bool
check_schedule(const Plan *plan, GError **error)
{
    g_autoptr(Schedule) schedule = plan_build_schedule(plan, NULL, error);
    int64_t n_inputs = 0, n_weights = 0;

    if (schedule == NULL)
        return false;
    if (schedule->placement == SCHEDULE_PLACEMENT_BIDIR) {
        g_autofree char *what =
            g_strdup_printf("schedule %s (two copies of every stage)", schedule->name);
        return refuse(error, what);
    }
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
    double total = 0;

    for (int32_t rank = 0; rank < plan->degrees.pp; rank++) {
        const int64_t bytes = exec_model_weight_bytes(arch, plan, rank);
        total += bytes < 0 ? 1e30 : 4.0 * (double)bytes * (double)plan->degrees.dp;
    }
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
    const PlanDegrees *d = &plan->degrees;

    g_return_val_if_fail(arch != NULL && plan != NULL, false);
    if (!check_model(arch, error) || !check_degree("--tp", d->tp, error) ||
        !check_degree("--cp", d->cp, error) || !check_degree("--ep", d->ep, error) ||
        !check_numbers(plan, error) || !check_memory_saving(plan, error) ||
        !plan_check(plan, arch->n_layers, error))
        return false;
    if (plan->seq_len > arch->max_seq_len) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_UNSUPPORTED,
                    "seq_len %" G_GINT64_FORMAT " is beyond the model's %" G_GINT64_FORMAT
                    " positions",
                    plan->seq_len, arch->max_seq_len);
        return false;
    }
    if (d->dp * d->pp > MAX_RANKS) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_UNSUPPORTED,
                    "dp %" G_GINT64_FORMAT " x pp %" G_GINT64_FORMAT
                    " ranks are more than the %d threads of transport local",
                    d->dp, d->pp, MAX_RANKS);
        return false;
    }
    return check_schedule(plan, error) && check_machine(arch, plan, error);
}
