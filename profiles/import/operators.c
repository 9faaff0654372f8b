/* Operators of PyTorch and what their arguments say: products, attention, memory-bound ops. */
#include "profiles/import/operators.h"

#include <string.h>

/* Smaller tensors stay in caches, and a kernel's ramp-up is a share of their time. */
#define MIN_STREAM_BYTES (INT64_C(128) << 20)
#define MAX_DIM (INT64_C(1) << 31)
#define MAX_DIMS 8

typedef enum {
    PRODUCT,       /* [m, k], [k, n] */
    BATCH,         /* [count, m, k], [count, k, n] */
    HEADS_FIRST,   /* attention: q, k, v of [sequences, heads, tokens, head size] */
    TOKENS_FIRST,  /* attention: q, k, v of [sequences, tokens, heads, head size] */
    STREAM,        /* tensors alike, in and out */
    STREAM_WIDENS, /* the same; its result is fp32 where an argument says so */
    COPY,          /* the same, of any two formats */
} Form;

/*
 * Tensors are the arguments @first to @first + @n_inputs - 1 (of attention q, k and v).  @argument:
 * of attention the one that says causal; of STREAM_WIDENS the one that says that the result is
 * fp32.  @passes: how often a stream's kernels read or write a tensor of this shape.
 *
 * Only operators that launch kernels themselves: aten::linear, matmul, softmax, layer_norm,
 * scaled_dot_product_attention, contiguous and to call those below.  Arguments as in PyTorch's
 * native_functions.yaml (2.4 and later) and FlashAttention's flash_attn_interface.py (2.7).
 */
struct ImportOperator {
    const char *name;
    Form form;
    uint32_t first, n_inputs, argument;
    bool backward;
    ModelMemoryKind memory_kind;
    int passes;
};

static const ImportOperator operators[] = {
    {"aten::mm", PRODUCT, 0, 2, 0, false, MODEL_MEMORY_STREAM, 0},
    {"aten::addmm", PRODUCT, 1, 2, 0, false, MODEL_MEMORY_STREAM, 0},
    {"aten::bmm", BATCH, 0, 2, 0, false, MODEL_MEMORY_STREAM, 0},
    {"aten::baddbmm", BATCH, 1, 2, 0, false, MODEL_MEMORY_STREAM, 0},
    {"aten::_flash_attention_forward", TOKENS_FIRST, 0, 3, 8, false, MODEL_MEMORY_STREAM, 0},
    {"aten::_flash_attention_backward", TOKENS_FIRST, 1, 3, 11, true, MODEL_MEMORY_STREAM, 0},
    {"aten::_scaled_dot_product_flash_attention", HEADS_FIRST, 0, 3, 4, false, MODEL_MEMORY_STREAM,
     0},
    {"aten::_scaled_dot_product_flash_attention_backward", HEADS_FIRST, 1, 3, 11, true,
     MODEL_MEMORY_STREAM, 0},
    {"aten::_cudnn_attention_forward", HEADS_FIRST, 0, 3, 10, false, MODEL_MEMORY_STREAM, 0},
    {"aten::_scaled_dot_product_cudnn_attention", HEADS_FIRST, 0, 3, 6, false, MODEL_MEMORY_STREAM,
     0},
    {"aten::_scaled_dot_product_cudnn_attention_backward", HEADS_FIRST, 1, 3, 14, true,
     MODEL_MEMORY_STREAM, 0},
    {"flash_attn::_flash_attn_forward", TOKENS_FIRST, 0, 3, 5, false, MODEL_MEMORY_STREAM, 0},
    {"flash_attn::_flash_attn_backward", TOKENS_FIRST, 1, 3, 11, true, MODEL_MEMORY_STREAM, 0},
    {"aten::add", STREAM, 0, 2, 0, false, MODEL_MEMORY_STREAM, 3},
    {"aten::add_", STREAM, 0, 2, 0, false, MODEL_MEMORY_STREAM, 3},
    {"aten::mul", STREAM, 0, 2, 0, false, MODEL_MEMORY_STREAM, 3},
    {"aten::mul_", STREAM, 0, 2, 0, false, MODEL_MEMORY_STREAM, 3},
    {"aten::gelu", STREAM, 0, 1, 0, false, MODEL_MEMORY_STREAM, 2},
    {"aten::silu", STREAM, 0, 1, 0, false, MODEL_MEMORY_STREAM, 2},
    {"aten::relu", STREAM, 0, 1, 0, false, MODEL_MEMORY_STREAM, 2},
    {"aten::gelu_backward", STREAM, 0, 2, 0, true, MODEL_MEMORY_STREAM, 3},
    {"aten::silu_backward", STREAM, 0, 2, 0, true, MODEL_MEMORY_STREAM, 3},
    {"aten::_softmax", STREAM_WIDENS, 0, 1, 2, false, MODEL_MEMORY_STREAM, 2},
    {"aten::_softmax_backward_data", STREAM, 0, 2, 0, true, MODEL_MEMORY_STREAM, 3},
    {"aten::_log_softmax", STREAM_WIDENS, 0, 1, 2, false, MODEL_MEMORY_LOSS, 2},
    {"aten::_log_softmax_backward_data", STREAM, 0, 2, 0, true, MODEL_MEMORY_LOSS, 3},
    /* Backward of a norm: one kernel for the input's gradient (two read, one written), one for the
     * scale's and the shift's (two read). */
    {"aten::native_layer_norm", STREAM, 0, 1, 0, false, MODEL_MEMORY_STREAM, 2},
    {"aten::native_layer_norm_backward", STREAM, 0, 2, 0, true, MODEL_MEMORY_STREAM, 5},
    {"aten::_fused_rms_norm", STREAM, 0, 1, 0, false, MODEL_MEMORY_STREAM, 2},
    {"aten::_fused_rms_norm_backward", STREAM, 0, 2, 0, true, MODEL_MEMORY_STREAM, 5},
    {"aten::copy_", COPY, 0, 2, 0, false, MODEL_MEMORY_STREAM, 2},
};

const ImportOperator *
import_operator(const char *name)
{
    for (size_t i = 0; i < G_N_ELEMENTS(operators); i++) {
        if (strcmp(name, operators[i].name) == 0)
            return &operators[i];
    }
    return NULL;
}

/* --- arguments --- */

typedef struct {
    int64_t dims[MAX_DIMS];
    size_t n_dims;
    double n_elements;
    const char *type;
    bool is_dense; /* as far as the trace says: in the order of its dimensions, without gaps */
} Tensor;

/* The @i-th of the list @key; NULL where there is none. */
static const JsonValue *
argument(JsonDoc *doc, const JsonValue *args, const char *key, size_t i)
{
    const JsonValue *list =
        args != NULL && json_has(doc, args, key) ? json_member(doc, args, key) : NULL;
    const JsonValue *v = list != NULL && json_is_array(list) ? json_first(list) : NULL;

    while (v != NULL && i-- > 0)
        v = json_next(v);
    return v;
}

static bool
is_dense(JsonDoc *doc, const JsonValue *strides, const Tensor *tensor)
{
    int64_t expected[MAX_DIMS], stride = 1;
    size_t i = 0;

    if (strides == NULL || !json_is_array(strides))
        return true;
    for (size_t j = tensor->n_dims; j-- > 0; stride *= tensor->dims[j])
        expected[j] = stride;
    for (const JsonValue *v = json_first(strides); v != NULL; v = json_next(v), i++) {
        if (i == tensor->n_dims || !json_is_number(v))
            return false;
        /* The stride of a single index means nothing. */
        if (tensor->dims[i] != 1 && json_value_int64(doc, v, 0, JSON_MAX_INT) != expected[i])
            return false;
    }
    return i == tensor->n_dims;
}

const char *
import_kernel_type(const char *name)
{
    static const struct {
        const char *part, *type;
    } kinds[] = {
        {"bf16", "c10::BFloat16"},   {"BFloat16", "c10::BFloat16"}, {"bfloat16", "c10::BFloat16"},
        {"c10::Half", "c10::Half"},  {"f16", "c10::Half"},          {"fp16", "c10::Half"},
        {"h16816gemm", "c10::Half"}, {"hgemm", "c10::Half"},        {"__half", "c10::Half"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(kinds); i++) {
        if (strstr(name, kinds[i].part) != NULL)
            return kinds[i].type;
    }
    return NULL;
}

/* false where the trace does not say the shape. */
static bool
read_tensor(JsonDoc *doc, const JsonValue *args, size_t i, const char *usual, Tensor *tensor)
{
    const JsonValue *shape = argument(doc, args, "Input Dims", i);
    const JsonValue *type = argument(doc, args, "Input type", i);

    if (shape == NULL || !json_is_array(shape) ||
        (type == NULL ? usual == NULL : !json_is_string(type)))
        return false;
    *tensor =
        (Tensor){.n_elements = 1.0, .type = type == NULL ? usual : json_value_string(doc, type)};
    for (const JsonValue *v = json_first(shape); v != NULL; v = json_next(v)) {
        if (tensor->n_dims == MAX_DIMS || !json_is_number(v))
            return false;
        tensor->dims[tensor->n_dims] = json_value_int64(doc, v, 0, MAX_DIM);
        tensor->n_elements *= (double)tensor->dims[tensor->n_dims++];
    }
    if (json_doc_failed(doc) || tensor->n_dims == 0 || tensor->n_elements <= 0.0 ||
        tensor->n_elements > (double)MODEL_MAX_BYTES)
        return false;
    tensor->is_dense = is_dense(doc, argument(doc, args, "Input Strides", i), tensor);
    return !json_doc_failed(doc);
}

/* The @i-th argument's "True" or "False"; false where neither is said. */
static bool
read_flag(JsonDoc *doc, const JsonValue *args, size_t i, bool *flag)
{
    const JsonValue *v = argument(doc, args, "Concrete Inputs", i);
    const char *text = v != NULL && json_is_string(v) ? json_value_string(doc, v) : "";

    *flag = strcmp(text, "True") == 0;
    return *flag || strcmp(text, "False") == 0;
}

/* Products in fp32 are none: whether they are computed in TF32 the trace does not say. */
static bool
format_of(const char *type, bool of_products, Dtype *dtype)
{
    const bool is_float = strcmp(type, "float") == 0;

    *dtype = is_float ? DTYPE_FP32 : strcmp(type, "c10::Half") == 0 ? DTYPE_FP16 : DTYPE_BF16;
    return is_float ? !of_products : *dtype == DTYPE_FP16 || strcmp(type, "c10::BFloat16") == 0;
}

/* --- what a call computes and moves --- */

/* The sample's bytes; false where they are none. */
static bool
set_bytes(ImportSample *sample, double bytes)
{
    sample->bytes = bytes <= (double)MODEL_MAX_BYTES ? (int64_t)bytes : 0;
    return sample->bytes > 0;
}

static bool
set_product(ImportSample *sample, const Tensor *a, const Tensor *b)
{
    const size_t n = sample->kind == IMPORT_BATCH ? 3 : 2;

    if (a->n_dims != n || b->n_dims != n || a->dims[n - 1] != b->dims[n - 2] ||
        (n == 3 && a->dims[0] != b->dims[0]))
        return false;
    sample->count = n == 3 ? a->dims[0] : 1;
    sample->m = a->dims[n - 2];
    sample->k = a->dims[n - 1];
    sample->n = b->dims[n - 1];
    return set_bytes(sample, (a->n_elements + b->n_elements +
                              (double)sample->count * (double)sample->m * (double)sample->n) *
                                 (double)dtype_bytes(sample->dtype));
}

/* Heads of k and v may be fewer than of q; those of all three have one size.  Causal kernels line
 * up the last query with the last key: earlier keys are context. */
static bool
set_attention(ImportSample *sample, const Tensor *q, const Tensor *k, const Tensor *v, Form form,
              bool is_causal)
{
    const size_t heads = form == HEADS_FIRST ? 1 : 2, tokens = 3 - heads;

    if (q->n_dims != 4 || k->n_dims != 4 || memcmp(k->dims, v->dims, sizeof k->dims) != 0 ||
        q->dims[0] != k->dims[0] || q->dims[3] != k->dims[3] ||
        q->dims[heads] % k->dims[heads] != 0 || q->dims[tokens] > k->dims[tokens])
        return false;
    sample->count = q->dims[0] * q->dims[heads];
    sample->m = q->dims[tokens];
    sample->n = k->dims[tokens];
    sample->k = q->dims[3];
    double keys = (double)sample->n;
    sample->causal_fraction = is_causal ? 1.0 - ((double)sample->m - 1.0) / (2.0 * keys) : 1.0;
    /* q and the output; their gradients, and those of k and v, besides. */
    double kv = k->n_elements + v->n_elements;
    double own = 2.0 * q->n_elements + kv;
    return (double)q->dims[0] * (double)q->dims[heads] <= (double)MAX_DIM &&
           set_bytes(sample,
                     (sample->backward ? 2.0 * own : own) * (double)dtype_bytes(sample->dtype));
}

static bool
is_same_shape(const Tensor *a, const Tensor *b)
{
    return a->n_dims == b->n_dims && memcmp(a->dims, b->dims, sizeof a->dims) == 0;
}

static double
least_seconds(const ImportSample *sample, const ModelDevice *device)
{
    const double products = sample->kind == IMPORT_ATTENTION
                                ? (sample->backward ? 5.0 : 2.0) * sample->causal_fraction
                                : 1.0;
    const double flops = 2.0 * products * (double)sample->count * (double)sample->m *
                         (double)sample->n * (double)sample->k;

    if (sample->kind == IMPORT_STREAM)
        return (double)sample->bytes / device->memory_bytes_per_s;
    return flops / profile_peak_flops_per_s(device, sample->dtype);
}

/* @sample's shape from @tensors, of which all but a copy's have one format. */
static ImportOutcome
set_shape(JsonDoc *doc, const JsonValue *args, const ImportOperator *op, const Tensor *tensors,
          ImportSample *sample)
{
    const Tensor *last = &tensors[op->n_inputs - 1];
    const double e = (double)dtype_bytes(sample->dtype);
    double moved = (double)op->passes * e;
    Dtype from;
    bool flag;

    switch (op->form) {
    case PRODUCT:
    case BATCH:
        return set_product(sample, &tensors[0], last) ? IMPORT_TAKEN : IMPORT_SKIP_SHAPE;
    case HEADS_FIRST:
    case TOKENS_FIRST:
        if (!read_flag(doc, args, op->argument, &flag))
            return IMPORT_SKIP_UNSAID;
        return set_attention(sample, &tensors[0], &tensors[1], last, op->form, flag)
                   ? IMPORT_TAKEN
                   : IMPORT_SKIP_SHAPE;
    case STREAM_WIDENS:
        if (!read_flag(doc, args, op->argument, &flag))
            return IMPORT_SKIP_UNSAID;
        moved += flag ? (double)dtype_bytes(DTYPE_FP32) - e : 0.0;
        break;
    case COPY:
        if (!format_of(last->type, false, &from))
            return IMPORT_SKIP_FORMAT;
        moved = e + (double)dtype_bytes(from);
        break;
    case STREAM:
        break;
    }
    if (!is_same_shape(&tensors[0], last))
        return IMPORT_SKIP_SHAPE;
    if (!tensors[0].is_dense || !last->is_dense)
        return IMPORT_SKIP_STRIDES;
    if (!set_bytes(sample, moved * tensors[0].n_elements))
        return IMPORT_SKIP_SHAPE;
    return sample->bytes < MIN_STREAM_BYTES ? IMPORT_SKIP_SMALL : IMPORT_TAKEN;
}

ImportOutcome
import_call_sample(JsonDoc *doc, const JsonValue *args, const ImportOperator *op, const char *type,
                   const ModelDevice *device, double seconds, ImportSample *sample)
{
    static const ImportKind kinds[] = {
        [PRODUCT] = IMPORT_PRODUCT,       [BATCH] = IMPORT_BATCH,
        [HEADS_FIRST] = IMPORT_ATTENTION, [TOKENS_FIRST] = IMPORT_ATTENTION,
        [STREAM] = IMPORT_STREAM,         [STREAM_WIDENS] = IMPORT_STREAM,
        [COPY] = IMPORT_STREAM,
    };
    const bool of_products = kinds[op->form] != IMPORT_STREAM;
    const bool is_one_format = op->form != COPY && op->form != STREAM_WIDENS;
    Tensor tensors[3] = {0};

    g_assert(op->n_inputs >= 1);
    *sample = (ImportSample){.kind = kinds[op->form],
                             .memory_kind = op->memory_kind,
                             .backward = op->backward,
                             .count = 1,
                             .seconds = seconds};
    for (size_t i = 0; i < op->n_inputs; i++) {
        if (!read_tensor(doc, args, op->first + i, is_one_format ? type : NULL, &tensors[i]))
            return IMPORT_SKIP_SHAPE;
    }
    for (size_t i = 1; i < op->n_inputs && op->form != COPY; i++) {
        if (strcmp(tensors[i].type, tensors[0].type) != 0)
            return IMPORT_SKIP_FORMAT;
    }
    if (!format_of(tensors[0].type, of_products, &sample->dtype))
        return IMPORT_SKIP_FORMAT;
    ImportOutcome outcome = set_shape(doc, args, op, tensors, sample);
    if (outcome != IMPORT_TAKEN)
        return outcome;
    if (seconds <= 0.0)
        return IMPORT_SKIP_ZERO;
    return seconds < least_seconds(sample, device) ? IMPORT_SKIP_PEAK : IMPORT_TAKEN;
}
