/*
 * executor/model/moe_routes.h - which rows go to which experts, and where they lie on the way.
 *
 * Only the host can decide that, from what the device has chosen.  Private to executor/model/moe*.c.
 */
#pragma once

#include "executor/model/layer.h"

/* How many rows this rank routes, and from which of its rows on: its own, or its share of those
 * that all tp ranks have. */
int64_t exec_moe_own_rows(const ExecLayer *layer, int64_t *begin);

/* What the feed-forward reads of these rows. */
void *exec_moe_own_input(const ExecLayer *layer);

/* How the factors p are made, where they are not the softmax over the chosen. */
ExecRoute exec_moe_route(const ExecLayer *layer);

/* Decides where rows go: fills in layer->moe and its blocks, but for the rows themselves.  False once anything
 * has failed. */
bool exec_moe_plan_routes(const ExecLayer *layer);
