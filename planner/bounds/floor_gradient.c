#include "planner/bounds/floor_gradient.h"

#include "base/real.h"

/* Both passes of the shortest slice in the last stage of rank @r. */
static double
last_stage_s(const PlanFloorGradient *gradient, int64_t r)
{
    const PlanFloor *floor = gradient->floor;
    const int64_t pp = floor->point->degrees.pp, stage = (floor->point->degrees.vpp - 1) * pp + r;
    const PlanFloorRankLayers of = plan_floor_rank_layers(floor, gradient->times, r);
    double sum = 0.0;

    for (int k = 0; k < floor->cost->n_kinds; k++)
        for (int i = 0; i < PLAN_FLOOR_PASSES; i++)
            sum += floor->stages[stage][k] * of.times[k].least_s[i][of.gathers];
    if (r == pp - 1)
        sum += plan_floor_end_part_s(floor, PLAN_PART_HEAD) *
               plan_floor_least_tokens(floor, gradient->cell) / (double)floor->request->seq_len /
               (double)gradient->cell->n_micro_batches;
    return sum;
}

/* What rank @r takes at the most of its bound for @n forwards from the next micro-batch of chunk
 * @chunk on, of which all but the last are of whole micro-batches. */
static double
forwards_s(const PlanFloorGradient *gradient, int64_t r, int64_t chunk, int64_t n)
{
    const PlanFloor *floor = gradient->floor;
    const PlanFloorRankLayers of = plan_floor_rank_layers(floor, gradient->times, r);
    const int64_t n_slices = gradient->cell->last, touched = (n + n_slices - 1) / n_slices;
    const double slices = (double)(touched * n_slices), left = slices - (double)n;
    double sum = r == 0 && chunk == 0
                     ? plan_floor_end_part_s(floor, PLAN_PART_EMBEDDING) * (double)touched /
                           (double)gradient->cell->n_micro_batches
                     : 0.0;

    for (int k = 0; k < floor->cost->n_kinds; k++) {
        const PlanFloorTimes *times = &of.times[k];
        const double average_s = times->pass_s[PLAN_FLOOR_FORWARD][of.gathers];
        const double least_s = real_min(average_s, times->least_s[PLAN_FLOOR_FORWARD][of.gathers]);
        sum += floor->stages[chunk * floor->point->degrees.pp + r][k] *
               (slices * average_s - left * least_s);
    }
    return sum;
}

/* What rank @r has to run, of its bound, from the forward of the first micro-batch's last slice in the last
 * chunk to its backward. */
static double
meanwhile_s(const PlanFloorGradient *gradient, int64_t r)
{
    const PlanFloor *floor = gradient->floor;
    const PlanFloorGroups groups = plan_floor_groups(floor, gradient->cell);
    const int64_t pp = floor->point->degrees.pp, vpp = floor->point->degrees.vpp;
    const int64_t m = gradient->cell->n_micro_batches, n_slices = gradient->cell->last;
    /* Where the last group is short, all ranks warm up longer: safe_warmup() in one_f_one_b.c. */
    const int64_t longer = groups.is_one ? 0 : 2 * (pp - 1 - groups.last * n_slices);
    int64_t left = MAX(2 * (pp - 1 - r), longer), chunk = vpp - 1, begin = 1,
            end = groups.first; /* micro-batches of the group that are left in the chunk */
    double sum = 0.0;

    while (left > 0 && begin < m) {
        const int64_t n = MIN(left, (end - begin) * n_slices);
        sum += n > 0 ? forwards_s(gradient, r, chunk, n) : 0.0;
        left -= n;
        if (++chunk < vpp) {
            continue;
        }
        chunk = 0;
        begin = end;
        end = MIN(m, end + groups.first);
    }
    return sum;
}

void
plan_floor_gradient_begin(PlanFloorGradient *gradient)
{
    gradient->behind_s = 0.0;
    for (int64_t r = 0; r < gradient->floor->point->degrees.pp; r++)
        gradient->behind_s += last_stage_s(gradient, r);
}

void
plan_floor_gradient_next(PlanFloorGradient *gradient, int64_t r, double *idle)
{
    const PlanFloor *floor = gradient->floor;
    const int64_t last = floor->point->degrees.pp - 1;
    const double rows = (double)floor->group * plan_floor_least_tokens(floor, gradient->cell);

    gradient->behind_s -= last_stage_s(gradient, r);
    if (r == last)
        return;
    const double wait_s = gradient->behind_s - meanwhile_s(gradient, r);
    for (int o = 0; o < floor->n_orders; o++) {
        const PlanFloorMessages *messages = floor->orders[o].messages;
        double way_s = 0.0;
        for (int i = 0; i < PLAN_FLOOR_PASSES; i++)
            way_s += plan_floor_message_s(&messages->to[last][i], rows) -
                     plan_floor_message_s(&messages->to[r][i], rows);
        idle[o] += real_max(0.0, wait_s + way_s);
    }
}
