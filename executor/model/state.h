/*
 * executor/model/state.h - the optimizer's state of a rank: AdamW on the rank's own elements, and
 * reading and writing them for checkpoints, wherever they are kept.
 *
 * Own elements are those that this rank's optimizer steps (model.h).  State is on the device, or
 * off it in model->offload; the callers here need not know which.
 *
 * Errors: EXEC_ERROR_IO of the offload file, EXEC_ERROR_MEMORY, and those of the backend.
 */
#pragma once

#include "executor/model/model.h"

/* GPT-3's [Brown et al. 2005.14165 appendix B]. */
#define EXEC_WEIGHT_DECAY 0.1f

/* Adds the squares of the own gradients of the parameters that count (@counts nullable: of all) to
 * model->clip.  Gradients that follow each other in memory are one sum, and one launch of a device. */
void exec_model_sum_squares(ExecModel *model, bool (*counts)(guint parameter, void *user_data),
                            void *user_data);

/* Sets all gradients of @p to zero that this rank keeps. */
void exec_model_zero_gradients(ExecModel *model, const ExecParameter *p);

/* Whether Muon steps @p. */
bool exec_model_is_muon(const ExecModel *model, const ExecParameter *p);

/* One AdamW step of all own elements but Muon's; then their gradients are zero. */
bool exec_model_adamw(ExecModel *model, const ExecAdamw *constants, GError **error);

/* What a checkpoint keeps of every parameter. */
typedef enum {
    EXEC_STATE_MASTER, /* in fp32 storage the weights themselves */
    EXEC_STATE_MOMENT1,
    EXEC_STATE_MOMENT2,
} ExecState;

/* Copies own elements [i, i + n) of @p from the state to @values in host memory, or back if
 * @writes. */
bool exec_model_move_state(ExecModel *model, bool writes, ExecState state, const ExecParameter *p,
                           int64_t i, int64_t n, float *values, GError **error);

/* Writes the weights of elements [i, i + n) of @p, which this rank keeps, from fp32 @values in host
 * memory.  @staging  device memory for n fp32 values; NULL in fp32 storage. */
bool exec_model_write_weights(ExecModel *model, const ExecParameter *p, int64_t i, int64_t n,
                              const float *values, float *staging, GError **error);

/* Which array of model->offload holds the weights that are off the device. */
int32_t exec_model_weights_array(const ExecModel *model);
