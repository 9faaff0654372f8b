/*
 * executor/model/moe_experts.h - what this rank's experts compute with the rows that have come to them: products,
 * their biases and activations, expert by expert.
 *
 * Tensors are those of moe_parts.h; [n_received, ...] are ordered by expert.  Private to executor/model/moe*.c.
 */
#pragma once

#include "executor/model/layer.h"

/* Makes what the second products read, of the results of the first ones.  False once anything has
 * failed. */
bool exec_moe_activate(const ExecLayer *layer);

/* @y [n_received, expert_input] = the experts' results, of the rows in the block of products. */
void exec_moe_experts_forward(const ExecLayer *layer, void *y);

/* From kept.d_out to kept.d_up, @d_x [n_received, expert_input], which may lie where @d_active
 * [n_received, expert_hidden] does, and @d_weight [n_received], the gradient of p. */
void exec_moe_experts_backward(const ExecLayer *layer, void *d_active, void *d_x, float *d_weight);

/* Adds the gradients of the experts' weights and biases. */
void exec_moe_experts_weight(const ExecLayer *layer);
