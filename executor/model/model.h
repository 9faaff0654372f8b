/*
 * executor/model/model.h - what a rank holds: ExecModel, the parameters of its stages with their
 * gradients and the optimizer's state, laid out as layout.h says.
 *
 * The room executor/model/ computes one pipeline stage:
 *
 *   layout.h   which parameters a rank holds, and where they lie
 *   model.h    the blocks of memory that hold them
 *   state.h    the optimizer's state: AdamW, and what checkpoints read and write
 *   offload.h  state that is in host memory or a file
 *   units.h    whole weights and gradients during an op, where a rank keeps shards (ZeRO 2 and 3)
 *   stage.h    F, B, I and W of one (micro-batch, slice), and the memory in between
 *   ends.h     embedding and head
 *   layer.h, moe.h, linear.h   what a layer computes
 *   mixer.h, attention.h       the half of a layer that looks at other tokens: a table of mixers
 *
 * Only executor/run/, executor/measure/ and tests come in: they give a stage its inputs and say
 * which op is next.  The room knows no schedules and sends no messages between stages.
 *
 * In fp32 storage the weights are their own master weights.
 */
#pragma once

#include "executor/device/backend.h"
#include "executor/device/pool.h"
#include "executor/model/layout.h"

/* One stage on this rank. */
typedef struct {
    int32_t stage, chain; /* position in its chain, and which chain: bidir has two */
    int32_t chunk;
    int64_t first_layer, n_layers;
    bool embedding, head;
    PlanRecompute recompute;
    /* Full recompute is of the first n_repeated layers; layers of the same first_repeated, an index in
     * the stage, are repeated together. */
    int64_t n_repeated;
    bool in_units;           /* several layers may be repeated together */
    int64_t *first_repeated; /* (owned) n_layers */
    uint32_t again; /* set of PlanModules that backward repeats; 0 unless recompute is selective */
    ExecEndTensors ends;
    ExecLayerTensors *layers;  /* (owned) n_layers */
    const ExecWidths **widths; /* (owned) of each layer; each borrowed from the model */
} ExecStage;

typedef struct {
    ExecWidths widths; /* of the ends */
    int32_t n_kinds;
    ExecWidths kinds[MODEL_MAX_KINDS]; /* of each kind of layers */
    ExecLayout layout;
    GArray *stages; /* of ExecStage, in the plan's order */
    /* Blocks of the pool: weights in the backend's storage, the others fp32.  There are no moments
     * without an optimizer, and master weights only beside narrower ones. */
    ExecBlock weights, gradients, master, moments1, moments2;
    /* (owned, nullable) Of Muon, by parameter: where its own elements begin in moments2; -1: they
     * have no second moment, because Muon steps them. */
    int64_t *moments2_at;
    ExecOffload *offload; /* (owned, nullable) holds the optimizer's state instead of the last three
                             blocks, and the weights of regions whose weights_off is set */
    ExecClip *clip; /* (owned by the backend, nullable) of the step; NULL without an optimizer */
    ExecBackend *backend; /* (borrowed) */
    ExecPool *pool;       /* (borrowed) */
} ExecModel;

/* Returns: (owned) a model with its initial values; NULL on EXEC_ERROR_MEMORY, or EXEC_ERROR_IO of
 * the offload file. */
ExecModel *exec_model_new(const ExecModelOptions *options, ExecBackend *backend, ExecPool *pool,
                          GError **error);
void exec_model_free(ExecModel *model);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecModel, exec_model_free)

/* --- readers --- */

static inline const ExecParameter *
exec_model_parameter(const ExecModel *model, guint i)
{
    return &g_array_index(model->layout.parameters, ExecParameter, i);
}

static inline guint
exec_model_n_parameters(const ExecModel *model)
{
    return model->layout.parameters->len;
}

static inline const ExecUnit *
exec_model_unit(const ExecModel *model, int32_t i)
{
    return &g_array_index(model->layout.units, ExecUnit, i);
}

static inline const ExecRegion *
exec_model_region(const ExecModel *model, const ExecUnit *unit)
{
    return &model->layout.regions[unit->region];
}

static inline const ExecStage *
exec_model_stage(const ExecModel *model, guint i)
{
    return &g_array_index(model->stages, ExecStage, i);
}

/* (borrowed) The stage that is chunk @chunk of the rank. */
const ExecStage *exec_model_stage_of_chunk(const ExecModel *model, int32_t chunk);

/* (borrowed, nullable) */
const ExecParameter *exec_model_find(const ExecModel *model, const char *name);

/* All gradients in the layout's order; only where nothing is sharded. */
static inline float *
exec_model_gradients(const ExecModel *model)
{
    return model->gradients.data;
}

/* --- this rank's shards --- */

/* The shard of @unit that this rank's optimizer steps: elements [begin, begin + returned) of the
 * layout. */
int64_t exec_model_own_shard(const ExecModel *model, const ExecUnit *unit, int64_t *begin);

/* The elements of @p that this rank's optimizer steps, [begin, begin + returned) of @p; may be
 * none.  They are called its own elements below. */
int64_t exec_model_own_elements(const ExecModel *model, const ExecParameter *p, int64_t *begin);

/* Where element @i of the layout, which is in @unit, lies in the blocks of a content. */
int64_t exec_model_at(const ExecModel *model, ExecContent content, const ExecUnit *unit, int64_t i);

/* Where element @i of parameter @p lies in the blocks of a content. */
int64_t exec_model_parameter_at(const ExecModel *model, ExecContent content, const ExecParameter *p,
                                int64_t i);

/* The gradients of @p from element @i on, which is an own one or one of a unit kept whole. */
float *exec_model_own_gradients(const ExecModel *model, const ExecParameter *p, int64_t i);

/* --- whole units --- */

/* Whether an op has to fetch or gather the unit's whole weights. */
bool exec_model_weights_apart(const ExecModel *model, const ExecUnit *unit);

/* The unit's whole weights or gradients where this rank keeps them on the device; else NULL. */
void *exec_model_kept_weights(const ExecModel *model, const ExecUnit *unit);
float *exec_model_kept_gradients(const ExecModel *model, const ExecUnit *unit);

/* Makes the tensors of a unit point into its whole @weights and @gradients; NULL: to NULL. */
void exec_model_bind(ExecModel *model, const ExecUnit *unit, void *weights, float *gradients);
