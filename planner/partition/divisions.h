/*
 * planner/partition/divisions.h - all divisions of the layers into the stages of a chain, where they
 * are few.
 *
 * Each stage has one unit at least (cost/request.h), but for the first and the last of several, which
 * may have the embedding or the head alone.  So n units lie on p stages in C(n - 1, p - 1) ways, and
 * in C(n + 1, p - 1) where ends may be alone.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "planner/cost/request.h"

/* Returns: how many divisions into @length stages there are; at most INT64_MAX. */
int64_t plan_divisions_n(const PlanRequest *request, int64_t length);

/* @counts  (borrowed until it returns) layers of each stage */
typedef void (*PlanDivisionFunc)(const int64_t *counts, void *user_data);

/* Calls @each for every division into @length stages, those with the fewest layers in the first
 * stages first. */
void plan_divisions_each(const PlanRequest *request, int64_t length, PlanDivisionFunc each,
                         void *user_data);
