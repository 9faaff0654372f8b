#include "profiles/profile.h"

#include "schedule/stack.h"

#include "base/embedded.h"
#include "base/json_fields.h"
#include "base/order.h"
#include "base/units.h"
#include "profiles/own.h"

#include <math.h>
#include <string.h>

const char *const profile_op_names[PROFILE_OP_N + 1] = {
    "layer",       "embedding",  "head",           "optimizer",       "p2p",
    "all_reduce",  "overhead",   "layer_gemm",     "layer_attention", "layer_norm",
    "layer_other", "all_gather", "reduce_scatter", "broadcast",       "copy_h2d",
    "copy_d2h",    "copy_d2d",   "launch",         "all_to_all",      NULL,
};

const char *const profile_beside_names[PROFILE_BESIDE_N + 1] = {
    "nothing", "compute", "copy_h2d", "copy_d2d", "all_reduce", NULL,
};

const char *const profile_pass_names[PROFILE_PASS_N + 1] = {
    "forward", "backward", "backward_input", "backward_weight", NULL,
};

static const ProfileParameters defaults = {
#define X(name, value, min, max, fit, spread, what) .name = value,
    PROFILE_PARAMETERS(X)
#undef X
};

/* --- lifecycle --- */

Profile *
profile_new(const char *name, ModelCluster *cluster)
{
    Profile *profile = g_new0(Profile, 1);

    profile->name = g_strdup(name);
    profile->cluster = cluster;
    profile->parameters = defaults;
    profile->measured_dtype = DTYPE_FP32;
    profile->measured_concurrency = 1;
    profile->measurements = g_array_new(FALSE, TRUE, sizeof(ProfileMeasurement));
    profile->interference = g_array_new(FALSE, TRUE, sizeof(ProfileInterference));
    profile->sustained = g_array_new(FALSE, TRUE, sizeof(ProfileSustained));
    profile->fit_errors = g_array_new(FALSE, TRUE, sizeof(ProfileFitError));
    profile->stack_factors = g_array_new(FALSE, TRUE, sizeof(ProfileStackFactor));
    return profile;
}

void
profile_free(Profile *profile)
{
    if (profile == NULL)
        return;
    g_free(profile->name);
    model_cluster_free(profile->cluster);
    model_arch_free(profile->measured_arch);
    g_free(profile->measured_on);
    g_free(profile->measured_attention);
    g_free(profile->measured_attention_why);
    g_array_unref(profile->measurements);
    g_array_unref(profile->interference);
    g_array_unref(profile->sustained);
    g_array_unref(profile->fit_errors);
    g_array_unref(profile->stack_factors);
    for (int i = 0; i < PROFILE_PARAMETERS_N; i++)
        g_free(profile->parameter_sources[i]);
    g_free(profile);
}

Profile *
profile_copy(const Profile *profile)
{
    g_return_val_if_fail(profile != NULL, NULL);

    Profile *copy = g_new(Profile, 1);
    *copy = *profile;
    copy->name = g_strdup(profile->name);
    copy->cluster = model_cluster_copy(profile->cluster);
    copy->measured_arch =
        profile->measured_arch != NULL ? model_arch_copy(profile->measured_arch) : NULL;
    copy->measured_on = g_strdup(profile->measured_on);
    copy->measured_attention = g_strdup(profile->measured_attention);
    copy->measured_attention_why = g_strdup(profile->measured_attention_why);
    copy->measurements = g_array_copy(profile->measurements);
    copy->interference = g_array_copy(profile->interference);
    copy->sustained = g_array_copy(profile->sustained);
    copy->fit_errors = g_array_copy(profile->fit_errors);
    copy->stack_factors = g_array_copy(profile->stack_factors);
    for (int i = 0; i < PROFILE_PARAMETERS_N; i++)
        copy->parameter_sources[i] = g_strdup(profile->parameter_sources[i]);
    return copy;
}

/* --- older stacks --- */

void
profile_set_stack(Profile *profile, int32_t stack)
{
    g_return_if_fail(profile != NULL);

    for (guint i = 0; i < profile->stack_factors->len; i++) {
        const ProfileStackFactor *f = &g_array_index(profile->stack_factors, ProfileStackFactor, i);
        const ProfileParameterInfo *info = &profile_parameter_info[f->parameter];
        char before[PLAN_STACK_TEXT];

        if (stack == 0 || stack >= f->before)
            continue;
        const double value = profile_parameter(&profile->parameters, f->parameter) * f->factor;
        profile_parameter_set(&profile->parameters, f->parameter,
                              CLAMP(value, info->min, info->max));
        plan_stack_text(f->before, before);
        g_free(profile->parameter_sources[f->parameter]);
        profile->parameter_sources[f->parameter] =
            g_strdup_printf("libraries of before %s: %.3g of today's", before, f->factor);
    }
    g_array_set_size(profile->stack_factors, 0);
}

/* --- measurements --- */

/* The keys of a row, in the order of sorting. */
static int
compare_keys(const ProfileMeasurement *a, const ProfileMeasurement *b)
{
    const int64_t keys[][2] = {
        {a->op, b->op},
        {a->pass, b->pass},
        {a->tp, b->tp},
        {g_strcmp0(a->kind, b->kind), 0},
        {a->batch, b->batch},
        {a->tokens, b->tokens},
        {a->context, b->context},
        {a->n_ranks, b->n_ranks},
        {a->n_elements, b->n_elements},
        {a->bytes, b->bytes},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(keys); i++) {
        ORDER_BY(keys[i][0], keys[i][1]);
    }
    return 0;
}

void
profile_add(Profile *profile, const ProfileMeasurement *measurement)
{
    guint low = 0, high;

    g_return_if_fail(profile != NULL && measurement != NULL);

    /* Rows below low sort before @measurement, rows from high on after it. */
    high = profile->measurements->len;
    while (low < high) {
        guint middle = low + (high - low) / 2;
        ProfileMeasurement *row = &g_array_index(profile->measurements, ProfileMeasurement, middle);
        const int order = compare_keys(row, measurement);

        if (order == 0) {
            *row = *measurement;
            return;
        }
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    g_array_insert_val(profile->measurements, low, *measurement);
}

bool
profile_matches(const Profile *profile, const ModelArch *arch)
{
    g_return_val_if_fail(profile != NULL && arch != NULL, false);

    const ModelArch *measured = profile->measured_arch;
    if (measured == NULL)
        return false;
    if (model_arch_unusual(arch) != NULL || model_arch_unusual(measured) != NULL ||
        arch->mtp.n != measured->mtp.n) {
        g_autofree char *difference = model_arch_difference(measured, arch);
        return difference == NULL;
    }
    return measured->family == arch->family && measured->hidden == arch->hidden &&
           measured->n_heads == arch->n_heads && measured->n_kv_heads == arch->n_kv_heads &&
           measured->head_dim == arch->head_dim && measured->ffn_hidden == arch->ffn_hidden &&
           measured->vocab == arch->vocab &&
           measured->experts.n_experts == arch->experts.n_experts &&
           measured->experts.top_k == arch->experts.top_k &&
           measured->experts.ffn_hidden == arch->experts.ffn_hidden &&
           measured->mla.kv_lora_rank == arch->mla.kv_lora_rank;
}

/* Whether layers of several kinds were measured, each by itself. */
static bool
has_kinds(const Profile *profile)
{
    for (guint i = 0; i < profile->measurements->len; i++)
        if (g_array_index(profile->measurements, ProfileMeasurement, i).kind != NULL)
            return true;
    return false;
}

bool
profile_has_part(const Profile *profile, const ModelArch *arch, ModelPart part, int64_t layer,
                 const char **kind)
{
    const ModelArch *measured = profile->measured_arch;

    *kind = NULL;
    if (measured == NULL)
        return false;
    const bool is_by_kind = has_kinds(profile);
    if (!is_by_kind && (arch->n_kinds == 0 || profile_matches(profile, arch)))
        return profile_matches(profile, arch);
    if (part != MODEL_PART_LAYER)
        return model_ends_are_alike(measured, arch);
    if (!is_by_kind && model_n_kinds(measured) > 1)
        return false;
    for (int32_t k = 0; k < model_n_kinds(measured); k++) {
        if (!model_kinds_are_alike(measured, k, arch, model_layer_kind(arch, layer)))
            continue;
        *kind = is_by_kind ? g_intern_string(model_kind_name(measured, k)) : NULL;
        return true;
    }
    return false;
}

/* Counts of rows: what the executor measures is below; a hostile file is not sorted for hours. */
#define MAX_ROWS 100000
/* A time beyond is a typing error: 11 days. */
#define MAX_TIME_S 1e6

/* Beyond, nothing runs side by side: a typing error. */
#define MAX_FACTOR 1e6

/* --- keys --- */

#define BESIDE(member) JSON_FIELD_OF(ProfileInterference, member)
#define SUSTAINED(member) JSON_FIELD_OF(ProfileSustained, member)
#define FIT(member) JSON_FIELD_OF(ProfileFitError, member)
#define VARIATION(member) JSON_FIELD_OF(ProfileVariation, member)
#define MEASURED(member) JSON_FIELD_OF(Profile, measured_##member)
#define SPARSE (JSON_OPTIONAL | JSON_SPARSE)

static const JsonField interference_fields[] = {
    {"beside", BESIDE(beside), .names = profile_beside_names},
    {"n_ranks", BESIDE(n_ranks), 1, MODEL_CLUSTER_MAX_DEVICES},
    {"factor", BESIDE(factor), 0.0, MAX_FACTOR},
    {"p10", BESIDE(p10), 0.0, MAX_FACTOR, JSON_OPTIONAL},
    {"p90", BESIDE(p90), 0.0, MAX_FACTOR, JSON_OPTIONAL},
    {.key = NULL},
};

static const JsonField sustained_fields[] = {
    {"batch", SUSTAINED(batch), 1, MODEL_MAX_SEQ_LEN},
    {"tokens", SUSTAINED(tokens), 1, MODEL_MAX_SEQ_LEN},
    {"factor", SUSTAINED(factor), 1.0, MAX_FACTOR},
    {.key = NULL},
};

static const JsonField fit_fields[] = {
    {"op", FIT(op), .names = profile_op_names},
    {"pass", FIT(pass), .names = profile_pass_names},
    {"tp", FIT(tp), 1, MODEL_MAX_HEADS},
    {"n_left_out", FIT(n_left_out), 1, MAX_ROWS},
    {"median_fraction", FIT(median_fraction), 0.0, MAX_FACTOR},
    {"worst_fraction", FIT(worst_fraction), 0.0, MAX_FACTOR},
    {.key = NULL},
};

static const JsonField variation_fields[] = {
    {"op_fraction", VARIATION(op_fraction), 0.0, MAX_FACTOR},
    {"correlation_s", VARIATION(correlation_s), 0.0, MAX_FACTOR},
    {"rank_fraction", VARIATION(rank_fraction), 0.0, MAX_FACTOR},
    {.key = NULL},
};

static const JsonField measured_fields[] = {
    {"measured_on", MEASURED(on), .flags = SPARSE},
    {"measured_attention", MEASURED(attention), .flags = SPARSE},
    {"measured_attention_why", MEASURED(attention_why), .flags = SPARSE},
    {"measured_dtype", MEASURED(dtype), .flags = JSON_OPTIONAL, .names = dtype_names},
    {"measured_concurrency", MEASURED(concurrency), 1, MODEL_CLUSTER_MAX_DEVICES, JSON_OPTIONAL},
    {"measured_disturbed_fraction", MEASURED(disturbed_fraction), 0.0, 1.0, SPARSE},
    {.key = NULL},
};

/* --- reading --- */

static void
read_parameters(JsonDoc *doc, const JsonValue *object, ProfileParameters *parameters)
{
#define X(name, value, min, max, fit, spread, what)                                                \
    parameters->name = json_double_or(doc, object, #name, min, max, value);
    PROFILE_PARAMETERS(X)
#undef X
    json_object_end(doc, object);
}

static void
read_sources(JsonDoc *doc, const JsonValue *object, Profile *profile)
{
    for (int i = 0; i < PROFILE_PARAMETERS_N; i++) {
        const char *name = profile_parameter_info[i].name;

        profile->parameter_sources[i] = g_strdup(json_string_or(doc, object, name, NULL));
    }
    json_object_end(doc, object);
}

/* Beyond, another device is meant. */
#define MAX_STACK_FACTOR 10.0

static void
read_stack_factors(JsonDoc *doc, const JsonValue *rows, Profile *profile)
{
    JSON_EACH (v, rows, doc) {
        ProfileStackFactor row = {.factor = json_double(doc, v, "factor", 0.1, MAX_STACK_FACTOR)};
        const char *stack = json_string(doc, v, "stack"), *name = json_string(doc, v, "parameter");

        if (!json_doc_failed(doc) && !plan_stack_read(stack, &row.before))
            json_fail(doc, json_member(doc, v, "stack"), "expected a month as YYYY-MM");
        while (row.parameter < PROFILE_PARAMETERS_N &&
               strcmp(profile_parameter_info[row.parameter].name, name) != 0)
            row.parameter++;
        if (!json_doc_failed(doc) && row.parameter == PROFILE_PARAMETERS_N)
            json_fail(doc, json_member(doc, v, "parameter"), "expected a parameter of $.cost");
        json_object_end(doc, v);
        if (json_doc_failed(doc))
            return;
        g_array_append_val(profile->stack_factors, row);
    }
}

/* Rows without a size. */
static bool
is_per_op(ProfileOp op)
{
    return op == PROFILE_OP_OVERHEAD || op == PROFILE_OP_LAUNCH;
}

/* Copies are not between ranks. */
static bool
is_copy(ProfileOp op)
{
    return op >= PROFILE_OP_COPY_H2D && op <= PROFILE_OP_COPY_D2D;
}

static bool
has_kind(ProfileOp op)
{
    return op == PROFILE_OP_LAYER || (profile_op_has_shape(op) && op > PROFILE_OP_HEAD);
}

/* Reads the keys that belong to the row's op; others are unknown keys. */
ProfileMeasurement
profile_measurement_read(JsonDoc *doc, const JsonValue *object)
{
    ProfileMeasurement row = {
        .op = (ProfileOp)json_enum(doc, object, "op", profile_op_names),
    };

    if (profile_op_has_shape(row.op)) {
        row.pass = (ProfilePass)json_enum(doc, object, "pass", profile_pass_names);
        row.batch = json_int64(doc, object, "batch", 1, MODEL_MAX_SEQ_LEN);
        row.tokens = json_int64(doc, object, "tokens", 1, MODEL_MAX_SEQ_LEN);
        row.context = json_int64_or(doc, object, "context", 0, MODEL_MAX_SEQ_LEN, 0);
        row.tp = json_int64_or(doc, object, "tp", 1, MODEL_MAX_HEADS, 1);
        if (has_kind(row.op))
            row.kind = g_intern_string(json_string_or(doc, object, "kind", NULL));
        row.queue_s = json_double_or(doc, object, "queue_s", 0.0, MAX_TIME_S, 0.0);
        row.cold_s = json_double_or(doc, object, "cold_s", 0.0, MAX_TIME_S, 0.0);
        row.warm_s = json_double_or(doc, object, "warm_s", 0.0, MAX_TIME_S, 0.0);
    } else if (row.op == PROFILE_OP_OPTIMIZER) {
        row.n_elements = json_int64(doc, object, "n_elements", 1, JSON_MAX_INT);
    } else if (!is_per_op(row.op)) {
        row.bytes = json_int64(doc, object, "bytes", 0, JSON_MAX_INT);
        if (!is_copy(row.op))
            row.n_ranks = json_int64_or(doc, object, "n_ranks", 2, MODEL_CLUSTER_MAX_DEVICES, 2);
    }
    row.median_s = json_double(doc, object, "median_s", 0.0, MAX_TIME_S);
    row.p10_s = json_double_or(doc, object, "p10_s", 0.0, MAX_TIME_S, row.median_s);
    row.p90_s = json_double_or(doc, object, "p90_s", 0.0, MAX_TIME_S, row.median_s);
    json_object_end(doc, object);
    if (!(row.p10_s <= row.median_s && row.median_s <= row.p90_s))
        json_fail(doc, object, "expected p10_s <= median_s <= p90_s");
    return row;
}

static void
read_interference(JsonDoc *doc, const JsonValue *rows, Profile *profile)
{
    JSON_EACH (v, rows, doc) {
        ProfileInterference row = {.p10 = NAN, .p90 = NAN};

        json_fields_read_object(doc, v, interference_fields, &row);
        row.p10 = isnan(row.p10) ? row.factor : row.p10;
        row.p90 = isnan(row.p90) ? row.factor : row.p90;
        if (!(row.p10 <= row.factor && row.factor <= row.p90))
            json_fail(doc, v, "expected p10 <= factor <= p90");
        g_array_append_val(profile->interference, row);
    }
}

static void
read_sustained(JsonDoc *doc, const JsonValue *rows, Profile *profile)
{
    int64_t before = 0;

    JSON_EACH (v, rows, doc) {
        ProfileSustained row = {0};

        json_fields_read_object(doc, v, sustained_fields, &row);
        if (json_doc_failed(doc))
            return;
        if (row.batch * row.tokens <= before)
            json_fail(doc, v, "expected more tokens than in the row before");
        before = row.batch * row.tokens;
        g_array_append_val(profile->sustained, row);
    }
}

static void
read_fit_errors(JsonDoc *doc, const JsonValue *rows, Profile *profile)
{
    JSON_EACH (v, rows, doc) {
        ProfileFitError row = {0};

        row.kind = g_intern_string(json_string_or(doc, v, "kind", NULL));
        json_fields_read_object(doc, v, fit_fields, &row);
        g_array_append_val(profile->fit_errors, row);
    }
}

/* Whether the measured model has a kind of that name. */
static bool
is_kind(const Profile *profile, const char *name)
{
    for (int32_t kind = 0; kind < model_n_kinds(profile->measured_arch); kind++)
        if (strcmp(model_kind_name(profile->measured_arch, kind), name) == 0)
            return true;
    return false;
}

static void
read_measured(JsonDoc *doc, const JsonValue *object, Profile *profile)
{
    const JsonValue *variation = json_object_or_null(doc, object, "measured_variation");
    const JsonValue *arch = json_object_or_null(doc, object, "measured_model");
    const JsonValue *rows = json_array_or_null(doc, object, "measured");
    const JsonValue *beside = json_array_or_null(doc, object, "measured_interference");
    const JsonValue *sustained = json_array_or_null(doc, object, "measured_sustained");
    const JsonValue *fit = json_array_or_null(doc, object, "measured_fit");

    if (arch != NULL)
        profile->measured_arch = model_arch_read(doc, arch);
    json_fields_read(doc, object, measured_fields, profile);
    if (variation != NULL) {
        json_fields_read_object(doc, variation, variation_fields, &profile->variation);
        profile->variation.is_known = true;
    }
    if (beside != NULL)
        read_interference(doc, beside, profile);
    if (sustained != NULL)
        read_sustained(doc, sustained, profile);
    if (fit != NULL)
        read_fit_errors(doc, fit, profile);
    if (rows == NULL)
        return;
    if (json_length(rows) > MAX_ROWS) {
        json_fail(doc, rows, "more than %d measured rows", MAX_ROWS);
        return;
    }
    for (const JsonValue *v = json_first(rows); v != NULL; v = json_next(v)) {
        ProfileMeasurement row = profile_measurement_read(doc, v);
        guint n_before = profile->measurements->len;

        if (json_doc_failed(doc))
            return;
        if (profile_op_has_shape(row.op) && profile->measured_arch == NULL)
            json_fail(doc, v, "measured rows of layers need $.measured_model");
        else if (row.kind != NULL && !is_kind(profile, row.kind))
            json_fail(doc, json_member(doc, v, "kind"),
                      "\"%s\": expected a kind of layer of $.measured_model", row.kind);
        profile_add(profile, &row);
        if (profile->measurements->len == n_before)
            json_fail(doc, v, "the same op and shape as an earlier row");
    }
}

/* Groups of one level must lie whole in groups of the next: else "the innermost level that holds
 * both" is not a tree.  (Nodes may be cut, so a level need not divide them.) */
static void
check_levels(JsonDoc *doc, const JsonValue *cluster_object, const ModelCluster *cluster)
{
    for (guint i = 1; i < cluster->levels->len; i++) {
        int64_t inner = g_array_index(cluster->levels, ModelLevel, i - 1).group_devices;
        int64_t outer = g_array_index(cluster->levels, ModelLevel, i).group_devices;

        if (inner != 0 && outer != 0 && outer % inner != 0) /* inner 0: refused by the cluster */
            json_fail(doc, json_array(doc, cluster_object, "levels"),
                      "group_devices " INT " of one level does not divide the " INT " of the next",
                      inner, outer);
    }
}

Profile *
profile_read(JsonDoc *doc, const JsonValue *object)
{
    g_return_val_if_fail(doc != NULL && object != NULL, NULL);

    json_ignore(doc, object, "format");
    json_ignore(doc, object, "version");
    const char *name = json_string(doc, object, "name");
    const JsonValue *cluster = json_object(doc, object, "cluster");
    Profile *profile = profile_new(name, model_cluster_read(doc, cluster));
    if (!json_doc_failed(doc))
        check_levels(doc, cluster, profile->cluster);
    const JsonValue *cost = json_object_or_null(doc, object, "cost");
    if (cost != NULL)
        read_parameters(doc, cost, &profile->parameters);
    const JsonValue *sources = json_object_or_null(doc, object, "cost_sources");
    if (sources != NULL)
        read_sources(doc, sources, profile);
    const JsonValue *before = json_array_or_null(doc, object, "cost_before");
    if (before != NULL)
        read_stack_factors(doc, before, profile);
    read_measured(doc, object, profile);
    json_object_end(doc, object);
    return profile;
}

/* --- writing --- */

void
profile_measurement_write(JsonWriter *writer, const char *key, const ProfileMeasurement *row)
{
    json_write_object_inline(writer, key);
    json_write_string(writer, "op", profile_op_names[row->op]);
    if (profile_op_has_shape(row->op)) {
        json_write_string(writer, "pass", profile_pass_names[row->pass]);
        json_write_int64(writer, "batch", row->batch);
        json_write_int64(writer, "tokens", row->tokens);
        json_write_int64(writer, "context", row->context);
        json_write_int64(writer, "tp", row->tp);
        if (row->kind != NULL)
            json_write_string(writer, "kind", row->kind);
    } else if (row->op == PROFILE_OP_OPTIMIZER) {
        json_write_int64(writer, "n_elements", row->n_elements);
    } else if (!is_per_op(row->op)) {
        json_write_int64(writer, "bytes", row->bytes);
        if (!is_copy(row->op))
            json_write_int64(writer, "n_ranks", row->n_ranks);
    }
    json_write_double(writer, "median_s", row->median_s);
    json_write_double(writer, "p10_s", row->p10_s);
    json_write_double(writer, "p90_s", row->p90_s);
    if (row->queue_s > 0.0)
        json_write_double(writer, "queue_s", row->queue_s);
    if (row->cold_s > 0.0)
        json_write_double(writer, "cold_s", row->cold_s);
    if (row->warm_s > 0.0)
        json_write_double(writer, "warm_s", row->warm_s);
    json_write_object_end(writer);
}

/* Absent where no parameter says it. */
static void
write_sources(JsonWriter *writer, const Profile *profile)
{
    bool any = false;

    for (int i = 0; i < PROFILE_PARAMETERS_N; i++)
        any |= profile->parameter_sources[i] != NULL;
    if (!any)
        return;
    json_write_object(writer, "cost_sources");
    for (int i = 0; i < PROFILE_PARAMETERS_N; i++) {
        if (profile->parameter_sources[i] != NULL)
            json_write_string(writer, profile_parameter_info[i].name,
                              profile->parameter_sources[i]);
    }
    json_write_object_end(writer);
}

static void
write_stack_factors(JsonWriter *writer, const Profile *profile)
{
    json_write_array(writer, "cost_before");
    for (guint i = 0; i < profile->stack_factors->len; i++) {
        const ProfileStackFactor *row =
            &g_array_index(profile->stack_factors, ProfileStackFactor, i);
        char stack[PLAN_STACK_TEXT];

        plan_stack_text(row->before, stack);
        json_write_object_inline(writer, NULL);
        json_write_string(writer, "stack", stack);
        json_write_string(writer, "parameter", profile_parameter_info[row->parameter].name);
        json_write_double(writer, "factor", row->factor);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
}

static void
write_fit_errors(JsonWriter *writer, const Profile *profile)
{
    json_write_array(writer, "measured_fit");
    for (guint i = 0; i < profile->fit_errors->len; i++) {
        const ProfileFitError *row = &g_array_index(profile->fit_errors, ProfileFitError, i);

        json_write_object_inline(writer, NULL);
        json_fields_write(writer, fit_fields, row);
        if (row->kind != NULL)
            json_write_string(writer, "kind", row->kind);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
}

static void
write_measured(JsonWriter *writer, const Profile *profile)
{
    if (profile->measured_arch != NULL)
        model_arch_write(writer, "measured_model", profile->measured_arch);
    json_fields_write(writer, measured_fields, profile);
    json_write_array(writer, "measured");
    for (guint i = 0; i < profile->measurements->len; i++)
        profile_measurement_write(writer, NULL,
                                  &g_array_index(profile->measurements, ProfileMeasurement, i));
    json_write_array_end(writer);
    if (profile->variation.is_known)
        json_fields_write_object(writer, "measured_variation", variation_fields,
                                 &profile->variation);
    if (profile->interference->len > 0)
        json_fields_write_rows(writer, "measured_interference", interference_fields,
                               profile->interference);
    if (profile->sustained->len > 0)
        json_fields_write_rows(writer, "measured_sustained", sustained_fields, profile->sustained);
    if (profile->fit_errors->len > 0)
        write_fit_errors(writer, profile);
}

void
profile_write(JsonWriter *writer, const char *key, const Profile *profile)
{
    g_return_if_fail(writer != NULL && profile != NULL);

    json_write_object(writer, key);
    json_write_string(writer, "format", "degas-profile");
    json_write_int64(writer, "version", 1);
    json_write_string(writer, "name", profile->name);
    model_cluster_write(writer, "cluster", profile->cluster);
    json_write_object(writer, "cost");
#define X(name, value, min, max, fit, spread, what)                                                \
    json_write_double(writer, #name, profile->parameters.name);
    PROFILE_PARAMETERS(X)
#undef X
    json_write_object_end(writer);
    write_sources(writer, profile);
    if (profile->stack_factors->len > 0)
        write_stack_factors(writer, profile);
    if (profile->measurements->len > 0 || profile->measured_arch != NULL)
        write_measured(writer, profile);
    json_write_object_end(writer);
}

/* --- loading --- */

GPtrArray *
profile_builtin_names(void)
{
    return embedded_names("profiles/", ".json");
}

Profile *
profile_load(const char *name_or_path, GError **error)
{
    g_return_val_if_fail(name_or_path != NULL, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    g_autoptr(JsonDoc) doc = json_doc_load_builtin(
        "profiles", name_or_path,
        "no built-in cluster (degas list clusters) and no file of this name", error);
    if (doc == NULL)
        return NULL;
    const JsonValue *root = json_doc_root(doc, NULL, 1);
    if (json_doc_format(doc) == NULL && !json_has(doc, root, "format"))
        json_fail(
            doc, root,
            "the key format is missing: \"degas-cluster\" in a cluster of one's own, as degas "
            "init cluster writes it, or \"degas-profile\"");
    const bool is_own = g_strcmp0(json_doc_format(doc), "degas-cluster") == 0;
    g_autoptr(Profile) profile = is_own
                                     ? profile_read_own(doc, json_doc_root(doc, "degas-cluster", 1))
                                     : profile_read(doc, json_doc_root(doc, "degas-profile", 1));
    if (!json_doc_finish(doc, error))
        return NULL;
    if (strcmp(name_or_path, "local-cpu") == 0)
        profile_set_local_cpu(profile->cluster);
    return g_steal_pointer(&profile);
}
