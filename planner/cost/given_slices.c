#include "planner/cost/given_slices.h"

int64_t
plan_given_n_slices(const PlanRequest *request)
{
    return request->slices_mode == PLAN_SLICES_UNIFORM || request->slices_mode == PLAN_SLICES_GIVEN
               ? request->n_slices
               : 1;
}

bool
plan_given_uniform(int64_t seq_len, int64_t granularity, int64_t n, GArray *slices)
{
    const int64_t cells = seq_len / granularity;

    if (seq_len % granularity != 0 || n > cells || n > SCHEDULE_MAX_SLICES)
        return false;
    g_array_set_size(slices, 0);
    /* What does not divide goes to the first slices, which have the least context. */
    for (int64_t i = 0; i < n; i++) {
        const int64_t tokens = (cells / n + (i < cells % n ? 1 : 0)) * granularity;
        g_array_append_val(slices, tokens);
    }
    return true;
}

bool
plan_given_slices(const PlanRequest *request, const PlanLayerShape *shape, GArray *slices)
{
    const int64_t granularity = plan_given_granularity(shape);

    if (request->slices_mode == PLAN_SLICES_UNIFORM)
        return plan_given_uniform(request->seq_len, granularity, request->n_slices, slices);
    g_array_set_size(slices, 0);
    if (request->slices_mode != PLAN_SLICES_GIVEN) {
        g_array_append_val(slices, request->seq_len);
        return true;
    }
    g_array_append_vals(slices, request->slices, (guint)request->n_slices);
    for (int64_t i = 0; i < request->n_slices; i++)
        if (request->slices[i] % granularity != 0)
            return false;
    return true;
}
