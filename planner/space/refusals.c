#include "planner/space/refusals.h"

#include "base/units.h"

/* No batch as large as this is worth naming. */
#define MAX_BATCH (INT64_C(1) << 31)

void
plan_refusals_clear(PlanRefusals *refusals)
{
    g_clear_pointer(&refusals->shape, g_free);
    g_clear_pointer(&refusals->batch, g_free);
    g_clear_pointer(&refusals->family, g_free);
    plan_breach_clear(&refusals->rule);
}

void
plan_refusals_join(PlanRefusals *refusals, PlanRefusals *more)
{
    if (refusals->shape == NULL)
        refusals->shape = g_steal_pointer(&more->shape);
    if (refusals->family == NULL)
        refusals->family = g_steal_pointer(&more->family);
    if (refusals->batch == NULL && more->batch != NULL) {
        refusals->batch = g_steal_pointer(&more->batch);
        refusals->nearest_batch = more->nearest_batch;
    }
    if (more->rule.text != NULL &&
        (refusals->rule.text == NULL || more->aspect > refusals->aspect)) {
        plan_breach_clear(&refusals->rule);
        refusals->rule = more->rule;
        refusals->aspect = more->aspect;
        more->rule = (PlanBreach){0};
    }
}

bool
plan_refusals_keep_rules(PlanRefusals *refusals, const PlanRuleCase *c, PlanAspect aspect)
{
    if (plan_rules_keep(c, aspect, NULL))
        return true;
    if (refusals->rule.text == NULL || aspect > refusals->aspect) {
        plan_breach_clear(&refusals->rule);
        plan_rules_keep(c, aspect, &refusals->rule);
        refusals->aspect = aspect;
    }
    return false;
}

/* The multiple of @dp * @micro_batch next to @n, of two the larger one; 0: it is too large. */
static int64_t
nearest_multiple(int64_t n, int64_t dp, int64_t micro_batch)
{
    int64_t multiple;

    if (__builtin_mul_overflow(dp, MAX(1, micro_batch), &multiple) || multiple > MAX_BATCH)
        return 0;
    int64_t down = n / multiple * multiple;
    return down > 0 && n - down < multiple - (n - down) ? down : down + multiple;
}

void
plan_refusals_note_batch(PlanRefusals *refusals, const PlanRequest *request, int64_t dp)
{
    if (refusals->batch != NULL)
        return;
    refusals->nearest_batch = nearest_multiple(request->global_batch, dp, request->micro_batch);
    refusals->batch = request->micro_batch > 0
                          ? g_strdup_printf("--global-batch " INT " is not a multiple of --dp " INT
                                            " * --micro-batch " INT,
                                            request->global_batch, dp, request->micro_batch)
                          : g_strdup_printf("--global-batch " INT " is not a multiple of --dp " INT,
                                            request->global_batch, dp);
}

char *
plan_refusal_of_family(const PlanSpace *space, const PlanPoint *point, int64_t vpp)
{
    const ScheduleFamily *family =
        space->is_automatic ? schedule_family_usual(vpp, false) : space->families->pdata[0];
    const ScheduleShape shape = {
        .n_ranks = point->degrees.pp,
        .n_chunks = MAX(vpp, family->min_chunks),
        .n_micro_batches = point->n_micro_batches,
        .n_slices = 1,
        .merges = plan_merges_pairs(&space->request->conventions, &point->degrees),
    };
    g_autoptr(GError) local = NULL;

    if (point->degrees.pp * shape.n_chunks <= model_n_stacked(space->request->arch) &&
        !schedule_shape_check(family, &shape, &local))
        return g_strdup(local->message);
    return g_strdup_printf("--pp " INT " * --vpp " INT " is more than the model's " INT " layers",
                           point->degrees.pp, shape.n_chunks,
                           model_n_stacked(space->request->arch));
}

/* Numbers of devices that are tried for one that divides. */
#define MAX_NEAREST 64

/* (owned) what would do instead of so many devices. */
static char *
nearest_devices(const PlanSpace *space)
{
    const PlanSpaceLimits limits = {.memory_bytes = INT64_MAX, .time_ns = -1, .sliced_ns = -1};
    const int64_t has = model_cluster_n_devices(space->request->profile->cluster);

    for (int64_t i = 1; i <= MAX_NEAREST && !space->request->is_terse; i++) {
        PlanRequest other = *space->request;
        const int64_t n[2] = {space->n_devices - i, space->n_devices + i};
        other.is_terse = true;
        for (int k = 0; k < 2; k++) {
            other.n_devices = n[k];
            g_autoptr(PlanSpace) divides =
                n[k] >= 1 && n[k] <= has ? plan_space_new(&other, &limits, NULL) : NULL;
            if (divides != NULL)
                return g_strdup_printf("--gpus " INT " would do", n[k]);
        }
    }
    return g_strdup("nearest: --gpus with a divisor of --global-batch times tp and pp");
}

void
plan_refusals_set_error(const PlanSpace *space, const PlanRefusals *refusals, GError **error)
{
    const PlanRequest *request = space->request;
    const bool is_fixed = request->dp > 0 || request->tp > 0 || request->pp > 0 ||
                          request->cp > 0 || request->ep > 0 || request->micro_batch > 0 ||
                          request->vpp > 0 || !space->is_automatic ||
                          request->sequence_parallel == 1;
    const int code = is_fixed ? PLAN_ERROR_INVALID : PLAN_ERROR_INFEASIBLE;

    /* What came furthest says most. */
    if (refusals->rule.text != NULL && (refusals->aspect >= PLAN_ASPECT_BATCH ||
                                        (refusals->family == NULL && refusals->batch == NULL)))
        plan_request_refuse(request, &refusals->rule, error);
    else if (refusals->family != NULL)
        g_set_error(error, PLAN_ERROR, code, "%s%s",
                    refusals->family[0] == '-' ? "" : "--schedule: ", refusals->family);
    else if (refusals->batch != NULL && (refusals->shape == NULL || request->tp > 0))
        g_set_error(error, PLAN_ERROR, code,
                    refusals->nearest_batch > 0 ? "%s; " INT " would do" : "%s", refusals->batch,
                    refusals->nearest_batch);
    else if (refusals->shape != NULL) {
        g_autofree char *nearest = nearest_devices(space);
        g_set_error(error, PLAN_ERROR, code, "no degrees multiply to " INT " devices: %s%s%s; %s",
                    space->n_devices, refusals->shape, refusals->batch != NULL ? "; " : "",
                    refusals->batch != NULL ? refusals->batch : "", nearest);
    } else
        g_set_error(error, PLAN_ERROR, code,
                    "--sequence-parallel on: no --tp divides the tokens of each rank");
}
