#include "executor/model/attention.h"

#include "executor/model/attention_parts.h"

int
exec_slice_chunks(int64_t tokens, int64_t cp, int64_t index, ExecChunk chunks[2])
{
    const int64_t half = tokens / (2 * cp);

    if (cp == 1 || tokens % (2 * cp) != 0) {
        chunks[0] = (ExecChunk){index * (tokens / cp), tokens / cp};
        return 1;
    }
    chunks[0] = (ExecChunk){index * half, half};
    chunks[1] = (ExecChunk){(2 * cp - 1 - index) * half, half};
    return 2;
}

static const ExecQueries *
queries_of(const ExecWidths *w)
{
    return model_has_mla(&w->arch) ? &exec_attention_latent : &exec_attention_plain;
}

static bool
has_gate(const ExecWidths *w)
{
    return w->arch.output_gate != MODEL_OUTPUT_GATE_NONE;
}

/* Whether anything through which gradients pass reads all rows of the input. */
static bool
reads_all(const ExecWidths *w)
{
    return has_gate(w) || queries_of(w)->reads_all(w);
}

/* All rows of the input, for whatever reads them; NULL: nothing does. */
static const void *
all_rows(const ExecLayer *layer, const void *x)
{
    const ExecWidths *w = layer->widths;

    return reads_all(w) || exec_attention_has_indexer(w) ? exec_gather_rows(layer, x) : NULL;
}

/* --- parameters --- */

static void
add_parameters(ExecLayoutBuilder *b)
{
    const ExecWidths *w = b->w;
    const int64_t index = b->o->tp_index, gate = exec_gate_width(w) * w->tp;
    const int64_t out = w->tp * w->out_width;
    const bool latent = model_has_mla(&w->arch);

    queries_of(w)->add_parameters(b);
    exec_attention_index_add(b);
    if (has_gate(w))
        exec_layout_add_weight(b, "gate.weight", EXEC_LAYER_TENSOR(gate_weight),
                               exec_shard_columns(w->hidden, gate, 1, index, w->tp), EXEC_SHARE_OWN,
                               b->deviation);
    if (has_gate(w) && w->arch.qkv_bias && !latent)
        exec_layout_add_bias(b, "gate.bias", EXEC_LAYER_TENSOR(gate_bias),
                             exec_shard_columns(1, gate, 1, index, w->tp), EXEC_SHARE_OWN);
    /* Its gradient comes with the input's. */
    if (w->arch.sinks)
        exec_layout_add_norm(b, "sinks", EXEC_LAYER_TENSOR(sinks),
                             exec_shard_columns(1, w->arch.n_heads, 1, index, w->tp),
                             EXEC_SHARE_OWN, EXEC_INIT_ZERO);
    exec_layout_add_weight(b, "proj.weight", EXEC_LAYER_TENSOR(proj_weight),
                           exec_shard_rows(out, w->hidden, index * w->out_width, w->out_width),
                           EXEC_SHARE_OWN, b->projection);
    if (latent ? w->arch.proj_bias : model_has_proj_bias(&w->arch))
        exec_layout_add_bias(b, "proj.bias", EXEC_LAYER_TENSOR(proj_bias),
                             exec_shard_whole(1, w->hidden), EXEC_SHARE_OWN);
}

/* --- what lies in the blocks --- */

/* With a gate, the output projection reads the product with it, and attention's result is kept for
 * its gradient. */
static ExecAttentionTensors
cut_tensors(const ExecLayerShape *shape, ExecMixerCutters *c)
{
    const ExecWidths *w = shape->widths;
    const int64_t rows = exec_slice_rows(&shape->slice), out = rows * w->out_width;
    const int64_t gate = rows * exec_gate_width(w);
    const bool backward = exec_is_backward(shape), again = exec_attention_repeats_up(shape);
    const bool computes = backward || exec_is_forward(shape);
    const int64_t kv = exec_is_sliced(shape) ? 0 : rows * w->kv_width;
    ExecAttentionTensors t = {0};

    if (has_gate(w)) {
        t.gated = exec_cut(&c->products, out);
        t.attention = exec_cut(&c->inputs, out);
        t.gate = exec_cut(&c->inputs, gate);
        t.d_gate = exec_cut(&c->kept, gate);
    } else {
        t.attention = exec_cut(&c->products, out);
    }
    if (again) {
        t.q = exec_cut(&c->scratch, computes ? rows * w->q_width : 0);
        t.own_kv = exec_cut(&c->scratch, computes ? kv : 0);
    } else {
        t.q = exec_cut(&c->inputs, rows * w->q_width);
        t.own_kv = exec_cut(&c->inputs, kv);
    }
    t.d_q = exec_cut(&c->kept, rows * w->q_width);
    t.d_attention = exec_cut(&c->scratch, backward ? out : 0);
    queries_of(w)->cut(shape, c, &t);
    exec_attention_index_cut(shape, c, &t);
    exec_attention_cut_core(shape, c, &t);
    return t;
}

static void
cut(const ExecLayerShape *shape, ExecMixerCutters *cutters)
{
    cut_tensors(shape, cutters);
}

/* K and V of this rank's tokens of whole sequences, or the sums of their gradients in fp32. */
static int64_t
memory_bytes(const ExecLayerShape *shape, bool gradient)
{
    const ExecWidths *w = shape->widths;

    if (!exec_is_sliced(shape))
        return 0;
    return exec_padded_bytes(w->seq_len / w->cp * shape->slice.sequences * w->kv_width *
                             dtype_bytes(gradient ? DTYPE_FP32 : w->storage)) +
           exec_attention_index_memory_bytes(shape, gradient);
}

/* @kept  nullable in F */
static ExecAttentionTensors
tensors_of(const ExecLayer *layer, void *kept)
{
    const ExecLayerShape shape = exec_layer_shape(layer);
    ExecMixerCutters cutters = exec_mixer_cutters(layer, kept);
    ExecAttentionTensors t = cut_tensors(&shape, &cutters);

    if (exec_is_sliced(&shape))
        t.own_kv = exec_at(layer->backend, layer->memory, exec_attention_own_at(layer));
    return t;
}

/* --- the mixer --- */

static ExecLinear
proj_of(const ExecLayer *layer)
{
    return exec_layer_linear(layer, layer->widths->out_width, layer->widths->hidden,
                             &layer->tensors->proj_weight, &layer->tensors->proj_bias);
}

static ExecLinear
gate_linear(const ExecLayer *layer)
{
    return exec_layer_linear(layer, layer->widths->hidden, exec_gate_width(layer->widths),
                             &layer->tensors->gate_weight, &layer->tensors->gate_bias);
}

static ExecGate
gate_of(const ExecLayer *layer, const ExecAttentionTensors *t)
{
    const ExecWidths *w = layer->widths;
    const bool heads = w->arch.output_gate == MODEL_OUTPUT_GATE_HEAD;
    const int64_t rows = exec_slice_rows(&layer->slice);

    return (ExecGate){
        .rows = heads ? rows * w->n_heads : rows,
        .cols = heads ? w->v_dim : w->out_width,
        .per_row = heads,
        .x = t->attention,
        .gate = t->gate,
    };
}

void
exec_attention_rotate(const ExecLayer *layer, int64_t n_heads, int64_t head_dim, int64_t stride,
                      bool inverse, void *x)
{
    const ExecRope rope = {
        .rows = exec_slice_rows(&layer->slice),
        .sequences = layer->slice.sequences,
        .n_heads = n_heads,
        .head_dim = head_dim,
        .stride = stride,
        .inverse = inverse,
        .position = layer->positions,
        .turns = layer->turns,
        .rotary_dim = layer->widths->rotary_dim,
    };

    if (layer->widths->rotary)
        layer->backend->ops->rope(layer->backend, &rope, x);
}

static void
forward(const ExecLayer *layer, const void *x, const void *residual, void *y)
{
    ExecBackend *backend = layer->backend;
    const ExecWidths *w = layer->widths;
    const ExecLinear proj = proj_of(layer), gate = gate_linear(layer);
    const ExecAttentionTensors t = tensors_of(layer, NULL);
    const void *all = all_rows(layer, x);

    if (has_gate(w))
        exec_linear_forward(backend, &gate, all, NULL, t.gate);
    queries_of(w)->forward(layer, &t, x, all);
    exec_attention_index_forward(layer, &t, all);
    exec_attention_core_forward(layer, &t);
    if (has_gate(w)) {
        const ExecGate product = gate_of(layer, &t);
        backend->ops->gate_forward(backend, &product, t.gated);
    }
    exec_row_split_forward(layer, &proj, has_gate(w) ? t.gated : t.attention, residual, y);
}

static void
repeat(const ExecLayer *layer, const void *x)
{
    const ExecLayerShape shape = exec_layer_shape(layer);

    if (!exec_attention_repeats_up(&shape))
        return;
    const ExecQueries *queries = queries_of(layer->widths);
    const ExecAttentionTensors t = tensors_of(layer, NULL);
    queries->repeat(layer, &t,
                    queries->reads_all(layer->widths) ? exec_gather_rows(layer, x) : NULL);
}

static void *
backward(const ExecLayer *layer, void *kept, const void *dy)
{
    ExecBackend *backend = layer->backend;
    const ExecWidths *w = layer->widths;
    const ExecQueries *queries = queries_of(w);
    const ExecLinear proj = proj_of(layer), gate = gate_linear(layer);
    const ExecAttentionTensors t = tensors_of(layer, kept);
    void *dx = layer->scratch->partial;

    exec_linear_backward(backend, &proj, dy, false, NULL, t.d_attention);
    if (has_gate(w)) {
        const ExecGate product = gate_of(layer, &t);
        backend->ops->gate_backward(backend, &product, t.d_attention, t.d_gate);
    }
    exec_attention_core_backward(layer, &t);
    exec_attention_index_backward(layer, &t);
    queries->backward(layer, &t, dx);
    if (has_gate(w))
        exec_linear_backward(backend, &gate, t.d_gate, queries->reads_all(w), NULL, dx);
    if (reads_all(w))
        dx = exec_reduce_rows(layer, dx);
    if (queries->backward_rows != NULL)
        queries->backward_rows(layer, &t, dx, reads_all(w));
    return dx;
}

static void
weight_out(const ExecLayer *layer, void *kept, const void *dy)
{
    const ExecLinear proj = proj_of(layer);
    const ExecAttentionTensors t = tensors_of(layer, kept);

    exec_linear_weight(layer->backend, &proj, has_gate(layer->widths) ? t.gated : t.attention, dy);
}

static void
weight_in(const ExecLayer *layer, const void *x, void *kept)
{
    const ExecWidths *w = layer->widths;
    const ExecLinear gate = gate_linear(layer);
    const ExecAttentionTensors t = tensors_of(layer, kept);
    const void *all = all_rows(layer, x);

    if (has_gate(w))
        exec_linear_weight(layer->backend, &gate, all, t.d_gate);
    queries_of(w)->weight(layer, &t, x, all);
    exec_attention_index_weight(layer, &t, all);
}

const ExecMixer exec_mixer_attention = {
    .add_parameters = add_parameters,
    .cut = cut,
    .memory_bytes = memory_bytes,
    .forward = forward,
    .repeat = repeat,
    .backward = backward,
    .weight_out = weight_out,
    .weight_in = weight_in,
};
