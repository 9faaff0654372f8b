/*
 * Which families of schedules a point of the space has, and its plan under one of them.
 */
#include "planner/space/space.h"

#include <string.h>

/* --- families --- */

bool
plan_space_add_families(PlanSpace *space, GError **error)
{
    const PlanRequest *request = space->request;
    const ScheduleFamily *const *all = schedule_families();

    space->is_automatic = request->schedules == NULL || request->schedules[0] == NULL ||
                          strcmp(request->schedules[0], "auto") == 0;
    /* A family that searches costs too much to try everywhere; it is there for who names it. */
    for (size_t i = 0; space->is_automatic && all[i] != NULL; i++)
        if (!all[i]->searches)
            g_ptr_array_add(space->families, (gpointer)all[i]);
    for (size_t i = 0; !space->is_automatic && request->schedules[i] != NULL; i++) {
        g_autoptr(GError) local = NULL;
        const ScheduleFamily *family = schedule_family_find(request->schedules[i], &local);
        if (family == NULL) {
            g_set_error(error, PLAN_ERROR, PLAN_ERROR_INVALID, "--schedule: %s", local->message);
            return false;
        }
        if (!g_ptr_array_find(space->families, family, NULL))
            g_ptr_array_add(space->families, (gpointer)family);
    }
    return true;
}

/* (borrowed) A family whose order @family repeats at this shape, or NULL. */
static const ScheduleFamily *
same_order_as(const ScheduleFamily *family, const PlanPoint *point, int64_t n_slices)
{
    const ScheduleFamily *same = n_slices == 1 ? family->whole : family->sliced;
    const ScheduleFamily *usual = schedule_family_usual(1, false);

    /* On one rank every order takes the same time; 1F1B holds the fewest activations. */
    if (same == NULL && family != usual && point->degrees.pp == 1 && point->degrees.vpp == 1 &&
        n_slices == 1)
        return usual;
    return same;
}

bool
plan_space_has_family(const PlanSpace *space, const PlanPoint *point, const ScheduleFamily *family,
                      int64_t n_slices)
{
    const ScheduleShape shape = {
        .n_ranks = point->degrees.pp,
        .n_chunks = point->degrees.vpp,
        .n_micro_batches = point->n_micro_batches,
        .n_slices = n_slices,
        .group = family->groups && point->degrees.vpp > 1 ? space->request->group : 0,
    };
    const ScheduleFamily *same = same_order_as(family, point, n_slices);

    if (space->is_automatic && same != NULL && g_ptr_array_find(space->families, same, NULL))
        return false;
    /* Every balanced stage has a layer. */
    const int64_t most = point->is_balanced ? space->request->arch->n_layers
                                            : plan_space_most_stages(space->request);

    return plan_point_chain_length(&point->degrees, family) <= most &&
           schedule_shape_check(family, &shape, NULL);
}

/* --- plans --- */

void
plan_space_set_family(const PlanRequest *request, Plan *plan, const ScheduleFamily *family)
{
    const PlanConventions preset = plan_conventions(request->conventions.framework);

    g_free(plan->schedule);
    plan->schedule = g_strdup(family->name);
    plan->group = family->groups && plan->degrees.vpp > 1 ? request->group : 0;
    plan->conventions = request->conventions;
    /* What the user did not change follows the framework. */
    if (!request->overlap_pp_given && request->conventions.overlap_pp == preset.overlap_pp)
        plan->conventions.overlap_pp = plan_framework_overlaps_pp(request->conventions.framework,
                                                                  family->name, plan->degrees.vpp);
}

Plan *
plan_space_plan(const PlanRequest *request, const PlanPoint *point, const ScheduleFamily *family)
{
    Plan *plan = plan_new();

    plan->global_batch = request->global_batch;
    plan->seq_len = request->seq_len;
    plan->dtype = request->dtype;
    plan->degrees = point->degrees;
    plan->micro_batch = point->micro_batch;
    plan->n_micro_batches = point->n_micro_batches;
    plan->zero_stage = point->zero_stage;
    plan->offload = point->offload;
    plan->offload_parameters = request->offload_parameters;
    plan->prefetch_layers = request->prefetch_layers;
    plan->sequence_parallel = point->sequence_parallel;
    plan_space_set_family(request, plan, family);
    g_array_set_size(plan->slices, 0);
    g_array_append_val(plan->slices, request->seq_len);
    plan_set_even_stages(plan, request->arch->n_layers, request->arch->vocab > 0, family->placement,
                         point->recompute);
    return plan;
}
