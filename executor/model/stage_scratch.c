#include "executor/model/stage_scratch.h"

#include <math.h>

#include "executor/model/attention.h"
#include "executor/model/mixer.h"

/* Uploads the positions of this rank's tokens, slice after slice. */
static void
upload_positions(const ExecStageScratch *scratch, const ExecScratchOptions *o)
{
    const ExecWidths *w = &o->model->widths;
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

/* Uploads the rotations of all positions for layers of @w's kind [Su et al. 2104.09864 section
 * 3.2.2]. */
static void
upload_turns(const ExecScratchOptions *o, const ExecWidths *w, float *to)
{
    const int64_t d = w->rotary_dim, n = w->seq_len * d;
    g_autofree float *turns = g_new(float, (size_t)n);

    for (int64_t position = 0; position < w->seq_len; position++)
        for (int64_t i = 0; i < d / 2; i++) {
            const double angle = (double)position * pow(w->rope_base, -2.0 * (double)i / (double)d);
            turns[position * d + i] = (float)cos(angle);
            turns[position * d + d / 2 + i] = (float)sin(angle);
        }
    o->comm->backend->ops->upload(o->comm->backend, (size_t)n * sizeof *turns, turns, to);
}

/* The first kind whose rotations are those of @kind; @kind itself where it is the first. */
static int32_t
same_turns(const ExecModel *model, int32_t kind)
{
    const ExecWidths *w = &model->kinds[kind];

    for (int32_t i = 0; i < kind; i++) {
        const ExecWidths *other = &model->kinds[i];
        if (other->rotary && other->rotary_dim == w->rotary_dim &&
            other->rope_base <= w->rope_base && other->rope_base >= w->rope_base)
            return i;
    }
    return kind;
}

/* How many results the largest boundary behind a stage of the rank has. */
static int64_t
n_results(const ExecModel *model)
{
    int64_t n = 1;

    for (guint i = 0; i < model->stages->len; i++) {
        const ExecStage *stage = exec_model_stage(model, i);
        n = MAX(n,
                1 + model_n_mtp_before(&model->widths.arch, stage->first_layer + stage->n_layers));
    }
    return n;
}

/* Sets the pointers of @scratch into its block.  Returns: the block's bytes. */
static int64_t
cut_scratch(ExecStageScratch *scratch, const ExecScratchOptions *o)
{
    const ExecWidths *w = &o->model->widths;
    ExecCutter cutter = {.block = scratch->block.data, .storage = w->storage};
    int64_t tokens = 0;

    for (int32_t s = 0; s < o->n_slices; s++)
        tokens = MAX(tokens, o->lengths[s] / w->cp);
    const int64_t rows = o->sequences * tokens;
    const int64_t boundary =
        n_results(o->model) * exec_local_rows(w, rows) * w->hidden * dtype_bytes(w->storage);
    scratch->d = exec_cut_bytes(&cutter, boundary);
    scratch->results = o->overlaps ? exec_cut_bytes(&cutter, boundary) : scratch->d;
    scratch->stats = exec_cut_words(&cutter, w->tp > 1 ? w->tp * 3 * rows : 0);
    scratch->positions = exec_cut_words(&cutter, w->seq_len / w->cp);
    for (int32_t i = 0; i < o->model->n_kinds; i++) {
        const int32_t same = same_turns(o->model, i);
        const int64_t n = w->seq_len * o->model->kinds[i].rotary_dim;
        if (o->model->kinds[i].rotary)
            scratch->turns[i] = same == i ? exec_cut_words(&cutter, n) : scratch->turns[same];
    }
    return cutter.n_bytes;
}

bool
exec_stage_scratch_init(ExecStageScratch *scratch, const ExecScratchOptions *o, GError **error)
{
    *scratch = (ExecStageScratch){0};
    if (!exec_pool_take(o->pool, TRACE_MEMORY_WORKSPACE, cut_scratch(scratch, o), &scratch->block,
                        error))
        return false;
    cut_scratch(scratch, o);
    upload_positions(scratch, o);
    for (int32_t i = 0; i < o->model->n_kinds; i++)
        if (o->model->kinds[i].rotary && same_turns(o->model, i) == i)
            upload_turns(o, &o->model->kinds[i], scratch->turns[i]);
    return true;
}

void
exec_stage_scratch_clear(ExecStageScratch *scratch, ExecPool *pool)
{
    exec_pool_give(pool, &scratch->block);
}
