#include "planner/space/refusal.h"

#define INT "%" G_GINT64_FORMAT

/* No batch as large as this is worth naming. */
#define MAX_BATCH (INT64_C(1) << 31)

void
plan_space_refusals_clear(PlanSpaceRefusals *refusals)
{
    g_clear_pointer(&refusals->shape, g_free);
    g_clear_pointer(&refusals->batch, g_free);
    g_clear_pointer(&refusals->family, g_free);
}

/* The multiple of @dp * @micro_batch next to @n, of two the larger one; 0: it is too large. */
static int64_t
nearest_multiple(int64_t n, int64_t dp, int64_t micro_batch)
{
    int64_t multiple, down;

    if (__builtin_mul_overflow(dp, MAX(1, micro_batch), &multiple) || multiple > MAX_BATCH)
        return 0;
    down = n / multiple * multiple;
    return down > 0 && n - down < multiple - (n - down) ? down : down + multiple;
}

void
plan_space_refuse_batch(PlanSpaceRefusals *refusals, const PlanRequest *request, int64_t dp)
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
plan_space_refusal_of_family(const PlanSpace *space, const PlanPoint *point, int64_t vpp)
{
    const ScheduleFamily *family = space->families->pdata[0];
    const ScheduleShape shape = {
        .n_ranks = point->degrees.pp,
        .n_chunks = MAX(vpp, family->min_chunks),
        .n_micro_batches = point->n_micro_batches,
        .n_slices = 1,
    };
    g_autoptr(GError) local = NULL;

    if (!schedule_shape_check(family, &shape, &local))
        return g_strdup(local->message);
    return g_strdup_printf("--pp " INT " * --vpp " INT " is more than the model's " INT " layers",
                           point->degrees.pp, shape.n_chunks, space->request->arch->n_layers);
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
plan_space_set_empty(const PlanSpace *space, const PlanSpaceRefusals *refusals, GError **error)
{
    const PlanRequest *request = space->request;
    const bool is_fixed = request->dp > 0 || request->tp > 0 || request->pp > 0 ||
                          request->cp > 0 || request->ep > 0 || request->micro_batch > 0 ||
                          request->vpp > 0 || !space->is_automatic ||
                          request->sequence_parallel == 1;
    const PlanError code = is_fixed ? PLAN_ERROR_INVALID : PLAN_ERROR_INFEASIBLE;

    /* What came furthest says most. */
    if (refusals->family != NULL)
        g_set_error(error, PLAN_ERROR, code, "--schedule: %s", refusals->family);
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
