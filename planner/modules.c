#include "planner/modules.h"

#include <math.h>
#include <stdlib.h>

#include "base/order.h"
#include "planner/cost/layer_cost.h"
#include "schedule/rank_order.h"

typedef struct {
    PlanModule module;
    double s_per_byte;
} Choice;

static int
compare_choices(const void *a, const void *b)
{
    const Choice *x = a, *y = b;

    ORDER_BY(x->s_per_byte, y->s_per_byte);
    return ORDER(x->module, y->module);
}

/* What the repetition of @module takes for each byte that it frees, of all layers of the model on one
 * device; INFINITY where it frees none. */
static double
s_per_byte(const PlanRequest *request, PlanModule module, const GArray *slices)
{
    const PlanLayerShape shape = {.degrees = {1, 1, 1, 1, 1, 1, PLAN_RANK_ORDER_DEFAULT},
                                  .micro_batch = 1};
    PlanRequest alone = *request;
    double s = 0.0, bytes = 0.0;

    alone.conventions.recompute_modules = UINT32_C(1) << module;
    const PlanLayerCost cost = plan_layer_sliced_cost(&alone, &shape, slices).whole;
    for (int kind = 0; kind < cost.n_kinds; kind++) {
        const PlanPartCost *part = &cost.parts[kind];
        const double n = (double)cost.n[kind];

        s += n * part->recompute_s[PLAN_RECOMPUTE_SELECTIVE];
        bytes += n * (double)(part->kept_bytes[PLAN_RECOMPUTE_NONE] -
                              part->kept_bytes[PLAN_RECOMPUTE_SELECTIVE]);
    }
    return bytes > 0.0 ? s / bytes : INFINITY;
}

GArray *
plan_module_sets(const PlanRequest *request)
{
    GArray *sets = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    g_autoptr(GArray) slices = g_array_new(FALSE, FALSE, sizeof(int64_t));
    uint32_t allowed = request->rules == NULL || request->rules->modules == 0
                           ? ~UINT32_C(0)
                           : request->rules->modules;
    Choice choices[PLAN_MODULE_N];
    uint32_t set = 0;
    int n = 0;

    if (request->recompute != PLAN_AUTO && request->recompute != PLAN_RECOMPUTE_SELECTIVE)
        return sets;
    if (plan_rules_merge(request->rules, &request->conventions, request->arch, request->ep))
        allowed &= ~(UINT32_C(1) << PLAN_MODULE_MOE);
    g_array_append_val(slices, request->seq_len);
    for (PlanModule module = 0; module < PLAN_MODULE_OPS; module++) {
        const double price = allowed >> module & 1 ? s_per_byte(request, module, slices) : INFINITY;
        if (isfinite(price))
            choices[n++] = (Choice){module, price};
    }
    qsort(choices, (size_t)n, sizeof *choices, compare_choices);
    if (n <= PLAN_MODULES_WHOLE) {
        for (uint32_t chosen = 1; chosen < UINT32_C(1) << n; chosen++) {
            set = 0;
            for (int i = 0; i < n; i++)
                set |= (chosen >> i & 1) << choices[i].module;
            g_array_append_val(sets, set);
        }
        return sets;
    }
    for (int i = 0; i < n; i++) {
        set |= UINT32_C(1) << choices[i].module;
        g_array_append_val(sets, set);
    }
    return sets;
}
