/*
 * executor/model/mixer.h - ExecMixer, the half of a layer that looks at other tokens, as a table of
 * functions: attention, and whatever else hands something from token to token.
 *
 * Whoever adds a mixer writes these functions in a file of its own and adds a line to the table in
 * mixer.c, and its parameters to ExecLayerTensors (layout.h).  layer.c and stage.c know no mixer.
 *
 * Memory.  What a mixer keeps lies in four blocks, whose contents only the mixer knows:
 *
 *   inputs    what only input gradients read: from F to B or I
 *   products  the inputs of its products: from F to B or W
 *   kept      the gradients of its products' outputs: from I to W; during a B
 *   scratch   during one op
 *
 * One function cuts them, so that sizes and addresses are the same code: cut() is called with
 * cutters without blocks to count bytes, and by the mixer's own functions with those of a layer
 * (exec_mixer_cutters() in layer.h) to find its tensors.  The blocks come without initial values.
 * The first block that is given back has the address NULL later.
 *
 * What goes from slice to slice lies in the layer's `memory`, one block for each (micro-batch,
 * layer) from its first F to its last B or I, and what comes back through the slices in `d_memory`,
 * from its first B or I to its last B or W.  memory comes without initial values: the F of slice 0
 * sets it.  d_memory is zero when the last slice's B or I begins.  Attention has K, V and the sums
 * of their gradients there.  A recurrent mixer has its state and the gradient of its state there:
 * F of slice i reads the state after slice i - 1, keeps it in `inputs` for its backward and writes
 * the state after slice i; B of slice i, which runs after that of slice i + 1, reads the gradient of
 * that state and writes the gradient of the one before.  With recompute full F runs once more
 * inside each B and I, when `memory` holds what the last slice wrote: a mixer that needs the state
 * before slice i then keeps one state for each slice in `memory`.
 *
 * Private to executor/.
 */
#pragma once

#include "executor/model/layout.h"
#include "schedule/schedule.h"

/* --- tensors in a block --- */

/* Cuts tensors off a block of memory, one after the other; every tensor begins at a cache line.
 * Without a block it only counts: the same code that says where the tensors lie says how many bytes
 * a block for them needs. */
typedef struct {
    char *block;     /* (borrowed, nullable) NULL: tensors are NULL, and bytes are counted */
    int64_t n_bytes; /* cut so far, the padding included */
    Dtype storage;
} ExecCutter;

/* @n_bytes up to whole cache lines of 64 bytes. */
static inline int64_t
exec_padded_bytes(int64_t n_bytes)
{
    return (n_bytes + 63) / 64 * 64;
}

static inline void *
exec_cut_bytes(ExecCutter *cutter, int64_t n_bytes)
{
    void *tensor = cutter->block == NULL ? NULL : cutter->block + cutter->n_bytes;

    cutter->n_bytes += exec_padded_bytes(n_bytes);
    return tensor;
}

/* A tensor of @n elements of the storage. */
static inline void *
exec_cut(ExecCutter *cutter, int64_t n)
{
    return exec_cut_bytes(cutter, n * dtype_bytes(cutter->storage));
}

/* A tensor of @n values of four bytes: float or int32_t. */
static inline void *
exec_cut_words(ExecCutter *cutter, int64_t n)
{
    return exec_cut_bytes(cutter, 4 * n);
}

/* --- what sizes follow from --- */

/* One slice of a micro-batch. */
typedef struct {
    int64_t sequences;
    int64_t tokens, context;         /* tokens of the slice, and of the sequence before it */
    int64_t own_tokens, own_context; /* of these on this rank: tokens / cp, context / cp */
    const int64_t *lengths; /* (borrowed) tokens of every slice; this one's is at [index] */
    int32_t index, n;       /* which of how many slices */
} ExecSlice;

/* How many rows a product has on this rank. */
static inline int64_t
exec_slice_rows(const ExecSlice *slice)
{
    return slice->sequences * slice->own_tokens;
}

/* How many of @rows rows of a product this rank has between products. */
static inline int64_t
exec_local_rows(const ExecWidths *widths, int64_t rows)
{
    return widths->sequence_parallel ? rows / widths->tp : rows;
}

/* A layer at work on a slice, without its memory. */
typedef struct {
    const ExecWidths *widths;
    ExecSlice slice;
    ScheduleOpKind op;
    uint32_t again; /* set of PlanModules that selective recompute repeats */
} ExecLayerShape;

static inline bool
exec_is_again(const ExecLayerShape *shape, PlanModule module)
{
    return (shape->again >> module & 1) != 0;
}

static inline bool
exec_is_sliced(const ExecLayerShape *shape)
{
    return shape->slice.n > 1;
}

static inline bool
exec_is_forward(const ExecLayerShape *shape)
{
    return shape->op == SCHEDULE_OP_FORWARD;
}

/* B or I. */
static inline bool
exec_is_backward(const ExecLayerShape *shape)
{
    return shape->op == SCHEDULE_OP_BACKWARD || shape->op == SCHEDULE_OP_BACKWARD_INPUT;
}

/* --- the mixers --- */

typedef struct {
    ExecCutter inputs, products, kept, scratch;
} ExecMixerCutters;

struct ExecLayer;
struct ExecLayoutBuilder;

typedef struct {
    /* Adds the mixer's parameters of a layer (layout_build.h). */
    void (*add_parameters)(struct ExecLayoutBuilder *b);

    void (*cut)(const ExecLayerShape *shape, ExecMixerCutters *cutters);

    /* Bytes of a layer's memory of one micro-batch, or of its d_memory (@gradient); 0: there is
     * none.  They may not depend on which slice it is. */
    int64_t (*memory_bytes)(const ExecLayerShape *shape, bool gradient);

    /* y = mixer(x) + residual (nullable).  @x, @residual and @y [local rows, hidden]; y overlaps
     * neither. */
    void (*forward)(const struct ExecLayer *layer, const void *x, const void *residual, void *y);

    /* (optional) Before backward(): computes again, of @x, what F has not kept because a module of
     * selective recompute is of the mixer's products.  It may gather rows. */
    void (*repeat)(const struct ExecLayer *layer, const void *x);

    /* From the gradient of y, @dy [rows, hidden], of all rows, to that of x.  @kept  the block of
     * that name: what weight() will need goes there.  Parameters that were added by
     * exec_layout_add_norm() get their gradients here.
     * Returns: (borrowed) [local rows, hidden], in scratch->partial. */
    void *(*backward)(const struct ExecLayer *layer, void *kept, const void *dy);

    /* Add the gradients of all other parameters: those of the last product, from @dy as in
     * backward(), and then those of all products before it, of @x as in F.  Only the second gathers
     * rows (exec_gather_rows()), because @dy may lie where they are gathered. */
    void (*weight_out)(const struct ExecLayer *layer, void *kept, const void *dy);
    void (*weight_in)(const struct ExecLayer *layer, const void *x, void *kept);
} ExecMixer;

/* Returns: (static) the mixer of a kind of layers. */
const ExecMixer *exec_mixer(const ExecWidths *widths);

/* Both halves of the weights' gradients. */
void exec_mixer_weight(const struct ExecLayer *layer, const void *x, void *kept, const void *dy);

/* The table's entries, each defined in the file of its name: attention.c, state_mixer.c,
 * beside_mixer.c. */
extern const ExecMixer exec_mixer_attention, exec_mixer_state, exec_mixer_beside;
