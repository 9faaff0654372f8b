/*
 * The plan that a request describes, not searched.
 */
#include "planner/search.h"

#include <string.h>

#include "planner/trial/point.h"
#include "planner/slices/slicings.h"

/* Fixes what a request leaves open, as `degas simulate` takes it. */
static PlanRequest
close_request(const PlanRequest *request)
{
    PlanRequest closed = *request;

    closed.tp = MAX(1, request->tp);
    closed.pp = MAX(1, request->pp);
    closed.cp = MAX(1, request->cp);
    closed.ep = MAX(1, request->ep);
    closed.vpp = MAX(1, request->vpp);
    closed.micro_batch = MAX(1, request->micro_batch);
    if (closed.dp == 0) {
        const int64_t others = closed.tp * closed.pp * closed.cp;
        closed.dp = request->n_devices > 0 && request->n_devices % others == 0
                        ? MAX(1, request->n_devices / others)
                        : 1;
    }
    closed.recompute = request->recompute == PLAN_AUTO ? PLAN_RECOMPUTE_NONE : request->recompute;
    closed.zero_stage = MAX(0, request->zero_stage);
    closed.offload = request->offload == PLAN_AUTO ? PLAN_OFFLOAD_NONE : request->offload;
    closed.sequence_parallel = request->sequence_parallel == 1 ? 1 : 0;
    return closed;
}

/* (borrowed) The family that was asked for, or the usual one; NULL with PLAN_ERROR_INVALID. */
static const ScheduleFamily *
usual_family(const PlanRequest *request, GError **error)
{
    const char *name = request->schedules != NULL ? request->schedules[0] : NULL;

    if (name == NULL || strcmp(name, "auto") == 0)
        return schedule_family_usual(request->vpp,
                                     request->slices_mode != PLAN_SLICES_OFF && request->pp > 1);
    g_autoptr(GError) local = NULL;
    const ScheduleFamily *family = schedule_family_find(name, &local);
    if (family == NULL)
        g_set_error(error, PLAN_ERROR, PLAN_ERROR_INVALID, "--schedule: %s", local->message);
    return family;
}

static bool
set_best_slices(const PlanRequest *request, Plan *plan, GError **error)
{
    g_autoptr(GPtrArray) slicings = plan_slicings_new(request, plan, NULL, error);
    if (slicings == NULL)
        return false;
    if (slicings->len > 0) {
        g_array_unref(plan->slices);
        plan->slices = g_array_copy(slicings->pdata[0]);
    }
    return true;
}

Plan *
plan_from_request(const PlanRequest *request, GError **error)
{
    g_return_val_if_fail(request != NULL, NULL);
    if (!plan_space_check(request, error))
        return NULL;
    const PlanRequest closed = close_request(request);
    const ScheduleFamily *family = usual_family(&closed, error);
    if (family == NULL || !plan_space_check(&closed, error))
        return NULL;
    if (closed.global_batch % closed.dp != 0 ||
        closed.global_batch / closed.dp % closed.micro_batch != 0) {
        g_set_error(error, PLAN_ERROR, PLAN_ERROR_INVALID,
                    "--global-batch %" G_GINT64_FORMAT
                    " is not a multiple of --dp %" G_GINT64_FORMAT
                    " * --micro-batch %" G_GINT64_FORMAT,
                    closed.global_batch, closed.dp, closed.micro_batch);
        return NULL;
    }
    PlanPoint point = {
        .degrees = {closed.dp, closed.tp, closed.pp, closed.vpp, closed.cp, closed.ep,
                    MAX(0, closed.rank_order)},
        .micro_batch = closed.micro_batch,
        .n_micro_batches = closed.global_batch / closed.dp / closed.micro_batch,
        .recompute = (PlanRecompute)closed.recompute,
        .zero_stage = closed.zero_stage,
        .offload = (PlanOffload)closed.offload,
        .sequence_parallel = closed.sequence_parallel == 1,
    };
    g_autoptr(Plan) plan = plan_space_plan(&closed, &point, family);
    if (closed.slices_mode == PLAN_SLICES_UNIFORM) {
        if (!plan_evaluate_set_uniform(plan, closed.n_slices)) {
            g_set_error(error, PLAN_ERROR, PLAN_ERROR_INVALID,
                        "--slices: %" G_GINT64_FORMAT " slices of whole parts of --cp and --tp do "
                        "not fit into --seq-len %" G_GINT64_FORMAT,
                        closed.n_slices, closed.seq_len);
            return NULL;
        }
    } else if (closed.slices_mode == PLAN_SLICES_GIVEN) {
        g_array_set_size(plan->slices, 0);
        g_array_append_vals(plan->slices, closed.slices, (guint)closed.n_slices);
    }
    if (!plan_check(plan, closed.arch->n_layers, error))
        return NULL;
    if (closed.slices_mode == PLAN_SLICES_AUTO && closed.pp > 1 && family->slices &&
        !set_best_slices(&closed, plan, error))
        return NULL;
    return g_steal_pointer(&plan);
}
