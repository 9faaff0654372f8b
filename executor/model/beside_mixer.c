/*
 * executor/model/beside_mixer.c - attention and Mamba-2 beside each other (mixer.h): both read the
 * layer's input, and their results are added  [Falcon-H1 2507.22448 section 2.2, and its released
 * code].
 *
 *   y = attention(x) + mamba2(x) + residual
 *
 * In the blocks, and in what goes from slice to slice, attention's part comes first and the state's
 * behind it; they are at work one after the other, so that they share the scratch.  Of the two
 * results, and of the two gradients of x, the first waits in scratch for the second.
 */
#include "executor/model/layout_build.h"
#include "executor/model/linear.h"

static const ExecMixer *const halves[] = {&exec_mixer_attention, &exec_mixer_state};

/* Where the second half's part of every block begins, and the sum that waits. */
typedef struct {
    ExecMixerCutters first; /* n_bytes: how long attention's parts are */
    void *waits;            /* [local rows, hidden], in front of the halves' scratch */
    int64_t waits_bytes;
} Places;

static ExecMixerCutters
lengths(const ExecLayerShape *shape, const ExecMixer *half)
{
    const ExecCutter cutter = {.storage = shape->widths->storage};
    ExecMixerCutters cutters = {cutter, cutter, cutter, cutter};

    half->cut(shape, &cutters);
    return cutters;
}

static Places
cut_places(const ExecLayerShape *shape, ExecMixerCutters *c)
{
    const ExecWidths *w = shape->widths;
    const bool runs = exec_is_forward(shape) || exec_is_backward(shape);
    const int64_t n = exec_local_rows(w, exec_slice_rows(&shape->slice)) * w->hidden;
    Places p = {.first = lengths(shape, halves[0])};
    const int64_t begin = c->scratch.n_bytes;

    p.waits = exec_cut(&c->scratch, runs ? n : 0);
    p.waits_bytes = c->scratch.n_bytes - begin;
    return p;
}

static void
cut(const ExecLayerShape *shape, ExecMixerCutters *c)
{
    const ExecMixerCutters first = lengths(shape, halves[0]), second = lengths(shape, halves[1]);

    cut_places(shape, c);
    exec_cut_bytes(&c->inputs, first.inputs.n_bytes + second.inputs.n_bytes);
    exec_cut_bytes(&c->products, first.products.n_bytes + second.products.n_bytes);
    exec_cut_bytes(&c->kept, first.kept.n_bytes + second.kept.n_bytes);
    exec_cut_bytes(&c->scratch, MAX(first.scratch.n_bytes, second.scratch.n_bytes));
}

/* Attention's, up to a cache line. */
static int64_t
first_memory_bytes(const ExecLayerShape *shape, bool gradient)
{
    return exec_padded_bytes(halves[0]->memory_bytes(shape, gradient));
}

static int64_t
memory_bytes(const ExecLayerShape *shape, bool gradient)
{
    return first_memory_bytes(shape, gradient) + halves[1]->memory_bytes(shape, gradient);
}

/* @block @n_bytes further on; one that is not there stays so. */
static void *
behind(void *block, int64_t n_bytes)
{
    return block == NULL ? NULL : (char *)block + n_bytes;
}

/* The layer as one of the halves sees it. */
typedef struct {
    ExecLayer layer;
    ExecLayerScratch scratch;
    void *kept;
    void *waits;
} Half;

static void
set_half(const ExecLayer *layer, void *kept, bool second, Half *half)
{
    const ExecLayerShape shape = exec_layer_shape(layer);
    ExecMixerCutters cutters = exec_mixer_cutters(layer, kept);
    const Places p = cut_places(&shape, &cutters);
    const ExecMixerCutters *n = &p.first;

    half->layer = *layer;
    half->scratch = *layer->scratch;
    half->scratch.mixer = behind(half->scratch.mixer, p.waits_bytes);
    half->layer.scratch = &half->scratch;
    half->kept = behind(kept, second ? n->kept.n_bytes : 0);
    half->waits = p.waits;
    if (!second)
        return;
    half->layer.a.mixer_inputs = behind(half->layer.a.mixer_inputs, n->inputs.n_bytes);
    half->layer.a.mixer_products = behind(half->layer.a.mixer_products, n->products.n_bytes);
    half->layer.memory = behind(half->layer.memory, first_memory_bytes(&shape, false));
    half->layer.d_memory = behind(half->layer.d_memory, first_memory_bytes(&shape, true));
}

static void
add_parameters(ExecLayoutBuilder *b)
{
    for (size_t i = 0; i < G_N_ELEMENTS(halves); i++)
        halves[i]->add_parameters(b);
}

static void
forward(const ExecLayer *layer, const void *x, const void *residual, void *y)
{
    Half half;

    set_half(layer, NULL, false, &half);
    halves[0]->forward(&half.layer, x, residual, half.waits);
    set_half(layer, NULL, true, &half);
    halves[1]->forward(&half.layer, x, half.waits, y);
}

static void *
backward(const ExecLayer *layer, void *kept, const void *dy)
{
    const int64_t n =
        exec_local_rows(layer->widths, exec_slice_rows(&layer->slice)) * layer->widths->hidden;
    ExecBackend *backend = layer->backend;
    Half half;

    set_half(layer, kept, false, &half);
    const void *dx = halves[0]->backward(&half.layer, half.kept, dy);
    backend->ops->copy(backend, (size_t)exec_storage_bytes(backend, n), dx, half.waits);
    set_half(layer, kept, true, &half);
    void *sum = halves[1]->backward(&half.layer, half.kept, dy);
    backend->ops->add(backend, n, half.waits, sum);
    return sum;
}

static void
weight_out(const ExecLayer *layer, void *kept, const void *dy)
{
    for (int i = 0; i < 2; i++) {
        Half half;
        set_half(layer, kept, i > 0, &half);
        halves[i]->weight_out(&half.layer, half.kept, dy);
    }
}

static void
weight_in(const ExecLayer *layer, const void *x, void *kept)
{
    for (int i = 0; i < 2; i++) {
        Half half;
        set_half(layer, kept, i > 0, &half);
        halves[i]->weight_in(&half.layer, x, half.kept);
    }
}

const ExecMixer exec_mixer_beside = {
    .add_parameters = add_parameters,
    .cut = cut,
    .memory_bytes = memory_bytes,
    .forward = forward,
    .backward = backward,
    .weight_out = weight_out,
    .weight_in = weight_in,
};
