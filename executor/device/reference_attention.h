/*
 * executor/device/reference_attention.h - attention as its definition says, row by row in double.
 *
 * Private to executor/device/backend_reference.c.
 */
#ifndef EXECUTOR_DEVICE_REFERENCE_ATTENTION_H
#define EXECUTOR_DEVICE_REFERENCE_ATTENTION_H

#include "executor/device/backend.h"

G_BEGIN_DECLS

void exec_reference_attention_forward(int n_threads, const ExecAttention *attention);
void exec_reference_attention_backward(int n_threads, const ExecAttention *attention,
                                       const ExecAttentionGradients *gradients);

G_END_DECLS

#endif /* EXECUTOR_DEVICE_REFERENCE_ATTENTION_H */
