/* What all stages of a rank share: stage.h. */
#include "executor/model/stage_state.h"

#include <math.h>

#include "executor/model/context_parallel.h"

/* The positions of this rank's tokens, slice after slice. */
static void
upload_positions(const ExecStageScratch *scratch, const ExecScratchOptions *o)
{
    const ExecWidths *w = o->widths;
    g_autofree int32_t *positions = g_new(int32_t, (size_t)w->seq_len);
    int64_t n = 0, context = 0;

    for (int32_t s = 0; s < o->n_slices; s++) {
        ExecChunk chunks[2];
        const int n_chunks =
            exec_slice_chunks(o->lengths[s], w->cp, o->comm->groups[EXEC_DIM_CP].index, chunks);
        for (int i = 0; i < n_chunks; i++)
            for (int64_t t = 0; t < chunks[i].n; t++)
                positions[n++] = (int32_t)(context + chunks[i].begin + t);
        context += o->lengths[s];
    }
    o->comm->backend->ops->upload(o->comm->backend, (size_t)n * sizeof *positions, positions,
                                  scratch->positions);
}

/* Base 10000 [Su et al. 2104.09864 section 3.2.2]. */
static void
upload_turns(const ExecStageScratch *scratch, const ExecScratchOptions *o)
{
    const int64_t d = o->widths->head_dim, n = o->widths->seq_len * d;
    g_autofree float *turns = g_new(float, (size_t)n);

    for (int64_t position = 0; position < o->widths->seq_len; position++)
        for (int64_t i = 0; i < d / 2; i++) {
            const double angle = (double)position * pow(10000.0, -2.0 * (double)i / (double)d);
            turns[position * d + i] = (float)cos(angle);
            turns[position * d + d / 2 + i] = (float)sin(angle);
        }
    o->comm->backend->ops->upload(o->comm->backend, (size_t)n * sizeof *turns, turns,
                                  scratch->turns);
}

bool
exec_stage_scratch_init(ExecStageScratch *scratch, const ExecScratchOptions *o, GError **error)
{
    const ExecWidths *w = o->widths;
    int64_t tokens = 0;

    for (int32_t s = 0; s < o->n_slices; s++)
        tokens = MAX(tokens, o->lengths[s] / w->cp);
    const int64_t rows = o->sequences * tokens;
    const int64_t boundary = exec_stage_padded(exec_stage_boundary_of(w, rows));
    const int64_t sizes[] = {
        boundary,
        w->tp > 1 ? exec_stage_padded(w->tp * 3 * rows * (int64_t)sizeof(float)) : 0,
        o->core_again ? exec_stage_padded(rows * w->n_heads * (int64_t)sizeof(float)) : 0,
        exec_stage_padded(w->seq_len / w->cp * (int64_t)sizeof(int32_t)),
        w->rotary ? exec_stage_padded(w->seq_len * w->head_dim * (int64_t)sizeof(float)) : 0,
    };
    char *at[G_N_ELEMENTS(sizes)];
    int64_t n_bytes = 0;

    for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++)
        n_bytes += sizes[i];
    if (!exec_pool_take(o->pool, TRACE_MEMORY_WORKSPACE, n_bytes, &scratch->block, error))
        return false;
    at[0] = scratch->block.data;
    for (size_t i = 1; i < G_N_ELEMENTS(sizes); i++)
        at[i] = at[i - 1] + sizes[i - 1];
    scratch->d = at[0];
    scratch->stats = (float *)(void *)at[1];
    scratch->lse = o->core_again ? (float *)(void *)at[2] : NULL;
    scratch->positions = (int32_t *)(void *)at[3];
    scratch->turns = w->rotary ? (float *)(void *)at[4] : NULL;
    upload_positions(scratch, o);
    if (w->rotary)
        upload_turns(scratch, o);
    return true;
}

void
exec_stage_scratch_clear(ExecStageScratch *scratch, ExecPool *pool)
{
    exec_pool_give(pool, &scratch->block);
}
