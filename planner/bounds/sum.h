/*
 * planner/bounds/sum.h - sums and products of times that saturate far from overflow.
 *
 * Internal to planner/.  Hostile rates make absurd times.
 */
#ifndef PLANNER_BOUNDS_SUM_H
#define PLANNER_BOUNDS_SUM_H

#include "base/saturate.h"

G_BEGIN_DECLS

#define PLAN_MOST_NS (INT64_MAX / 8)

static inline int64_t
plan_sum_ns(int64_t a, int64_t b)
{
    return saturate_sum(a, b, PLAN_MOST_NS);
}

static inline int64_t
plan_product_ns(int64_t n, int64_t ns)
{
    return saturate_product(n, ns, PLAN_MOST_NS);
}

G_END_DECLS

#endif /* PLANNER_BOUNDS_SUM_H */
