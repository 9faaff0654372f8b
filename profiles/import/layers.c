/* Layer times of TeraPipe and Sailor. */
#include "profiles/import/readers.h"

#include "base/order.h"
#include "base/units.h"

#include <math.h>
#include <string.h>

#define MAX_TIME_S 1e6
/* Quantiles of a normal distribution: 10 and 90 % lie this many standard deviations out. */
#define TENTH 1.2816

static void
add_layer(Import *import, ProfileOp op, ProfilePass pass, int64_t batch, int64_t tokens,
          int64_t context, int64_t tp, double seconds, double deviation)
{
    const ProfileMeasurement row = {
        .op = op,
        .pass = pass,
        .batch = batch,
        .tokens = tokens,
        .context = context,
        .tp = tp,
        .median_s = seconds,
        .p10_s = fmax(0.0, seconds - TENTH * deviation),
        .p90_s = seconds + TENTH * deviation,
    };

    profile_add(import->profile, &row);
}

/* --- TeraPipe --- */

void
import_terapipe(Import *import, JsonDoc *doc, const JsonValue *root)
{
    const int64_t tp = MAX(1, import->options->tp);

    if (!import_need_arch(import, doc, root))
        return;
    JSON_EACH (v, root, doc) {
        int64_t parts[3];

        if (!profile_import_terapipe_key(json_key(v), parts)) {
            json_fail(doc, v, "expected a key \"batch_tokens_context\"");
            return;
        }
        double forward = json_double(doc, v, "forward_mean", 0.0, MAX_TIME_S);
        double backward = json_double(doc, v, "backward_mean", 0.0, MAX_TIME_S);
        double forward_std = json_double_or(doc, v, "forward_std", 0.0, MAX_TIME_S, 0.0);
        double backward_std = json_double_or(doc, v, "backward_std", 0.0, MAX_TIME_S, 0.0);
        if (json_doc_failed(doc))
            return;
        if (forward <= 0.0 || backward <= 0.0) {
            json_fail(doc, v, "expected times above 0 seconds");
            return;
        }
        add_layer(import, PROFILE_OP_LAYER, PROFILE_PASS_FORWARD, parts[0], parts[1], parts[2], tp,
                  forward, forward_std);
        add_layer(import, PROFILE_OP_LAYER, PROFILE_PASS_BACKWARD, parts[0], parts[1], parts[2], tp,
                  backward, backward_std);
    }
}

/* {"tensor_sizes": [tokens], "mean": [s], "std": [s]}: messages of tokens x hidden fp16 numbers. */
void
import_terapipe_messages(Import *import, JsonDoc *doc, const JsonValue *root)
{
    const JsonValue *tokens = json_array(doc, root, "tensor_sizes");
    const JsonValue *mean = json_array(doc, root, "mean");
    const JsonValue *m = json_first(mean);

    if (import->options->arch == NULL) {
        json_fail(doc, root, "the width of the messages is not said here; give --model");
        return;
    }
    if (json_length(tokens) != json_length(mean)) {
        json_fail(doc, mean, "as many times as tensor_sizes are expected");
        return;
    }
    for (const JsonValue *t = json_first(tokens); t != NULL && !json_doc_failed(doc);
         t = json_next(t), m = json_next(m)) {
        const int64_t n = json_value_int64(doc, t, 1, MODEL_MAX_SEQ_LEN);
        const double seconds = json_value_double(doc, m, 0.0, MAX_TIME_S);

        if (!json_doc_failed(doc) && seconds > 0.0)
            import_collective(import, "sendrecv", &(ProfileGroup){.stride = 1, .n = 2},
                              n * import->options->arch->hidden * 2, seconds, seconds);
    }
}

/* --- Sailor --- */

/* Of a layer, in the order of the file. */
enum {
    FORWARD,
    BACKWARD,
    UPDATE,
    N_TIMES,
    N_PASSES = UPDATE,
};

static const ProfilePass passes[N_PASSES] = {PROFILE_PASS_FORWARD, PROFILE_PASS_BACKWARD};

static void
read_times(JsonDoc *doc, const JsonValue *array, double times[N_TIMES])
{
    if (!json_is_array(array) || json_length(array) != N_TIMES) {
        json_fail(doc, array, "expected [forward, backward, update] in seconds");
        return;
    }
    for (const JsonValue *v = json_first(array); v != NULL; v = json_next(v))
        *times++ = json_value_double(doc, v, 0.0, MAX_TIME_S);
}

/* A row of all layers' times of one pass: their median, 10 and 90 %. */
static void
add_median(Import *import, ProfilePass pass, int64_t batch, int64_t tp, double *times, size_t n)
{
    ProfileMeasurement row = {.op = PROFILE_OP_LAYER,
                              .pass = pass,
                              .batch = batch,
                              .tokens = import->options->seq_len,
                              .tp = tp};

    qsort(times, n, sizeof *times, order_doubles);
    row.median_s = times[n / 2];
    row.p10_s = times[n / 10];
    row.p90_s = times[n - 1 - n / 10];
    profile_add(import->profile, &row);
}

/* The update of one layer's parameters. */
static void
add_update(Import *import, int64_t tp, double seconds)
{
    const ProfileMeasurement row = {
        .op = PROFILE_OP_OPTIMIZER,
        .n_elements =
            model_part_parameters(import->options->arch, MODEL_PART_LAYER, 0, tp, 1, 1, false),
        .median_s = seconds,
        .p10_s = seconds,
        .p90_s = seconds,
    };

    if (seconds > 0.0 && row.n_elements > 0)
        profile_add(import->profile, &row);
}

/* {layer: [forward, backward, update]}: the embedding, the layers, and what makes the head. */
static void
read_layers(Import *import, JsonDoc *doc, const JsonValue *object, int64_t batch, int64_t tp)
{
    const int64_t n_layers = import->options->arch->n_layers;
    const int64_t n = (int64_t)json_length(object);
    g_autofree double *layers = g_new(double, N_PASSES *n_layers);
    double ends[2][N_PASSES] = {{0}}; /* the embedding and the head */
    int64_t i = 0;

    if (!json_is_object(object) || n < n_layers + 2) {
        json_fail(doc, object,
                  "expected the embedding, " INT " layers (as --model has) and the head", n_layers);
        return;
    }
    for (const JsonValue *v = json_first(object); v != NULL && !json_doc_failed(doc);
         v = json_next(v), i++) {
        double times[N_TIMES] = {0};

        read_times(doc, v, times);
        if (i == 1)
            add_update(import, tp, times[UPDATE]);
        for (int pass = 0; pass < N_PASSES; pass++)
            if (i >= 1 && i <= n_layers)
                layers[pass * n_layers + i - 1] = times[pass];
            else
                ends[i > 0][pass] += times[pass];
    }
    if (json_doc_failed(doc))
        return;
    for (int pass = 0; pass < N_PASSES; pass++) {
        add_median(import, passes[pass], batch, tp, &layers[pass * n_layers], (size_t)n_layers);
        for (int end = 0; end < 2; end++)
            add_layer(import, end == 0 ? PROFILE_OP_EMBEDDING : PROFILE_OP_HEAD, passes[pass],
                      batch, import->options->seq_len, 0, tp, ends[end][pass], 0.0);
    }
}

static int64_t
read_count(JsonDoc *doc, const JsonValue *member, const char *what)
{
    gint64 count = 0;

    if (!g_ascii_string_to_signed(json_key(member), 10, 1, MODEL_MAX_HEADS, &count, NULL))
        json_fail(doc, member, "expected %s as the key", what);
    return count;
}

void
import_sailor(Import *import, JsonDoc *doc, const JsonValue *root)
{
    if (!import_need_arch(import, doc, root))
        return;
    if (import->options->seq_len == 0) {
        json_fail(doc, root, "the tokens of a sequence are not said here; give --seq-len");
        return;
    }
    JSON_EACH (b, root, doc) {
        const int64_t batch = read_count(doc, b, "a micro-batch");

        if (!json_is_object(b))
            json_fail(doc, b, "expected {tp: {layer: [...]}}");
        JSON_EACH (t, b, doc) {
            const int64_t tp = read_count(doc, t, "a tensor-parallel degree");

            if (!json_doc_failed(doc))
                read_layers(import, doc, t, batch, tp);
        }
    }
}
