#include "planner/partition/divisions.h"

#include <string.h>

typedef struct {
    int64_t length;
    bool lone_ends;
    int64_t n_joined; /* layers of the last unit beyond its first */
    int64_t *units;   /* (owned) [stage] */
    int64_t *counts;  /* (owned) [stage] the same in layers */
    PlanDivisionFunc each;
    void *user_data;
} Walk;

static bool
has_lone_ends(const PlanRequest *request, int64_t length)
{
    return request->arch->vocab > 0 && length > 1;
}

int64_t
plan_divisions_n(const PlanRequest *request, int64_t length)
{
    const int64_t k = length - 1;
    const int64_t n = plan_request_n_units(request) + (has_lone_ends(request, length) ? 2 : 0) - 1;
    int64_t ways = 1;

    if (k > n)
        return 0;
    /* C(n, i + 1) = C(n, i) (n - i) / (i + 1), whole at each step. */
    for (int64_t i = 0; i < MIN(k, n - k); i++) {
        if (ways > INT64_MAX / MAX(1, n))
            return INT64_MAX;
        ways = ways * (n - i) / (i + 1);
    }
    return ways;
}

/* Fills the stages from @stage on with @left units. */
static void
divide(const Walk *walk, int64_t stage, int64_t left)
{
    const bool is_last = stage + 1 == walk->length;
    const int64_t least = walk->lone_ends && (stage == 0 || is_last) ? 0 : 1;
    /* What the stages after it need. */
    const int64_t after = is_last ? 0 : walk->length - stage - 1 - (walk->lone_ends ? 1 : 0);

    if (!is_last) {
        for (int64_t n = least; n <= left - after; n++) {
            walk->units[stage] = n;
            divide(walk, stage + 1, left - n);
        }
        return;
    }
    walk->units[stage] = left;
    memcpy(walk->counts, walk->units, (size_t)walk->length * sizeof *walk->counts);
    walk->counts[left > 0 ? stage : stage - 1] += walk->n_joined;
    walk->each(walk->counts, walk->user_data);
}

void
plan_divisions_each(const PlanRequest *request, int64_t length, PlanDivisionFunc each,
                    void *user_data)
{
    const int64_t n_units = plan_request_n_units(request);
    g_autofree int64_t *units = g_new(int64_t, (size_t)length);
    g_autofree int64_t *counts = g_new(int64_t, (size_t)length);
    const Walk walk = {
        .length = length,
        .lone_ends = has_lone_ends(request, length),
        .n_joined = model_n_stacked(request->arch) - n_units,
        .units = units,
        .counts = counts,
        .each = each,
        .user_data = user_data,
    };

    if (plan_divisions_n(request, length) > 0)
        divide(&walk, 0, n_units);
}
