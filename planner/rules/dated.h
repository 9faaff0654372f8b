/*
 * planner/rules/dated.h - the rule "stack": what a plan needs that the software of its date had not yet.
 *
 * Of rules.c alone.  The dates are those of schedule/stack.c.
 */
#pragma once

#include "planner/rules/rules.h"

/*
 * Whether @c needs a feature that its stack lacks, from row *@row of the table on; *@row is then the next one.
 * @aspect  which rows are asked; PLAN_ASPECT_N: all
 * @breach  (out, nullable) the feature, by name
 */
bool plan_rules_dated(const PlanRuleCase *c, PlanAspect aspect, size_t *row, PlanBreach *breach);
