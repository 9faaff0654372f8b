#include "planner/given_slices.h"

#include <math.h>

int64_t
plan_given_n_slices(const PlanRequest *request)
{
    return request->slices_mode == PLAN_SLICES_UNIFORM || request->slices_mode == PLAN_SLICES_GIVEN
               ? request->n_slices
               : 1;
}

bool
plan_given_uniform(int64_t seq_len, int64_t unit, int64_t n, GArray *slices)
{
    const int64_t cells = seq_len / unit;

    if (seq_len % unit != 0 || n > cells || n > SCHEDULE_MAX_SLICES)
        return false;
    g_array_set_size(slices, 0);
    /* What does not divide goes to the first slices, which have the least context. */
    for (int64_t i = 0; i < n; i++) {
        const int64_t tokens = (cells / n + (i < cells % n ? 1 : 0)) * unit;
        g_array_append_val(slices, tokens);
    }
    return true;
}

bool
plan_given_slices(const PlanRequest *request, const PlanLayerShape *shape, GArray *slices)
{
    const PlanDegrees *d = &shape->degrees;
    const int64_t unit = d->cp * (shape->sequence_parallel ? d->tp : 1);

    if (request->slices_mode == PLAN_SLICES_UNIFORM)
        return plan_given_uniform(request->seq_len, unit, request->n_slices, slices);
    g_array_set_size(slices, 0);
    if (request->slices_mode != PLAN_SLICES_GIVEN) {
        g_array_append_val(slices, request->seq_len);
        return true;
    }
    g_array_append_vals(slices, request->slices, (guint)request->n_slices);
    for (int64_t i = 0; i < request->n_slices; i++)
        if (request->slices[i] % unit != 0)
            return false;
    return true;
}

/* --- times --- */

/* Both passes of one slice: a backward whole or in halves, whichever is less. */
static void
slice_times(const PlanRequest *request, const ProfileQuery *query, double *forward_s,
            double *backward_s)
{
    const Profile *profile = request->profile;
    const ProfileCost forward = profile_cost_part(profile, query, PROFILE_PASS_FORWARD);
    const ProfileCost backward = profile_cost_part(profile, query, PROFILE_PASS_BACKWARD);

    *forward_s = profile_cost_s(&forward);
    *backward_s = profile_cost_s(&backward);
    /* Modelled halves never take less than the whole; measured ones may. */
    if (profile->measurements->len > 0) {
        const ProfileCost input = profile_cost_part(profile, query, PROFILE_PASS_BACKWARD_INPUT);
        const ProfileCost weight = profile_cost_part(profile, query, PROFILE_PASS_BACKWARD_WEIGHT);
        *backward_s = fmin(*backward_s, profile_cost_s(&input) + profile_cost_s(&weight));
    }
    if (query->part == MODEL_PART_LAYER && request->recompute == PLAN_RECOMPUTE_FULL) {
        ProfileCost both = backward;
        for (int i = 0; i < PROFILE_PART_N; i++)
            both.part_s[i] += forward.part_s[i];
        both.host_s += forward.host_s;
        *backward_s += profile_cost_s(&both) - profile_cost_s(&backward);
    }
}

/* @n parts like @query's, at the place that it names. */
static PlanGivenTimes
part_times(const PlanRequest *request, ProfileQuery query, const GArray *slices, double n)
{
    double sum_s = 0.0, first_forward_s = 0.0, first_s = 0.0;

    query.shape.context = 0;
    for (guint i = 0; i < slices->len; i++) {
        double forward_s, backward_s;
        query.shape.tokens = g_array_index(slices, int64_t, i);
        slice_times(request, &query, &forward_s, &backward_s);
        sum_s += forward_s + backward_s;
        if (i == 0) {
            first_forward_s = forward_s;
            first_s = forward_s + backward_s;
        }
        query.shape.context += query.shape.tokens;
    }
    return (PlanGivenTimes){
        .whole_s = n * sum_s,
        .first_forward_fraction = sum_s > 0.0 ? first_forward_s / sum_s : 1.0,
        .first_fraction = sum_s > 0.0 ? first_s / sum_s : 1.0,
    };
}

/* All parts on the nodes whose first device is @first. */
static PlanGivenTimes
times_at(const PlanRequest *request, const PlanLayerShape *shape, int64_t first,
         const GArray *slices)
{
    const ModelArch *arch = request->arch;
    int64_t n_moe = 0;
    PlanGivenTimes sum = {0.0, 1.0, 1.0};

    for (int64_t layer = 0; layer < arch->n_layers; layer++)
        n_moe += model_layer_is_moe(arch, layer);
    const struct {
        ModelPart part;
        int64_t layer, n;
    } parts[] = {
        {MODEL_PART_LAYER, 0, arch->n_layers - n_moe},
        {MODEL_PART_LAYER, arch->n_layers - 1, n_moe},
        {MODEL_PART_EMBEDDING, 0, arch->vocab > 0},
        {MODEL_PART_HEAD, 0, arch->vocab > 0},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(parts); i++) {
        ProfileQuery query = plan_layer_query(request, shape, first);
        if (parts[i].n == 0)
            continue;
        query.part = parts[i].part;
        query.layer = parts[i].layer;
        const PlanGivenTimes part = part_times(request, query, slices, (double)parts[i].n);
        sum.whole_s += part.whole_s;
        sum.first_forward_fraction = fmin(sum.first_forward_fraction, part.first_forward_fraction);
        sum.first_fraction = fmin(sum.first_fraction, part.first_fraction);
    }
    return sum;
}

PlanGivenTimes
plan_given_times(const PlanRequest *request, const PlanLayerShape *shape)
{
    const ModelCluster *cluster = request->profile->cluster;
    g_autoptr(GArray) slices = g_array_new(FALSE, FALSE, sizeof(int64_t));
    PlanGivenTimes least = {0};
    int64_t first = 0;

    if (!plan_given_slices(request, shape, slices))
        return least;
    for (guint i = 0; i < cluster->nodes->len; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);
        const PlanGivenTimes here = times_at(request, shape, first, slices);
        if (i == 0)
            least = here;
        least.whole_s = fmin(least.whole_s, here.whole_s);
        least.first_forward_fraction =
            fmin(least.first_forward_fraction, here.first_forward_fraction);
        least.first_fraction = fmin(least.first_fraction, here.first_fraction);
        first += nodes->n_devices * nodes->n_nodes;
    }
    return least;
}
