#include "profiles/workload/explain.h"

#include "base/order.h"
#include "base/units.h"
#include "profiles/workload/build.h"

#include <math.h>
#include <string.h>

/* A relative change far above rounding to nanoseconds, far below the model's kinks. */
#define NUDGE 0.01
/* An influence below this is none. */
#define MIN_ELASTICITY 0.02

/* --- how a time depends on parameters --- */

typedef double (*TimeFunc)(const Profile *profile, const void *user_data);

static void
set_influences(ProfileCostLine *line, const Profile *profile, TimeFunc time, const void *user_data)
{
    const double before = time(profile, user_data);
    Profile nudged = *profile; /* borrows: only its parameters differ */

    for (int i = 0; i < PROFILE_PARAMETERS_N && before > 0.0; i++) {
        const double value = profile_parameter(&profile->parameters, i);
        size_t at = line->n_influences;

        /* Tiles are whole numbers of elements: a little larger has no meaning. */
        if (g_str_has_prefix(profile_parameter_info[i].name, "gemm_tile_"))
            continue;
        nudged.parameters = profile->parameters;
        profile_parameter_set(&nudged.parameters, i, value * (1.0 + NUDGE));
        double elasticity = value == 0.0 ? 0.0 : (time(&nudged, user_data) / before - 1.0) / NUDGE;
        if (fabs(elasticity) < MIN_ELASTICITY)
            continue;
        while (at > 0 && fabs(line->influences[at - 1].elasticity) < fabs(elasticity)) {
            if (at < PROFILE_EXPLAIN_PARAMETERS)
                line->influences[at] = line->influences[at - 1];
            at--;
        }
        if (at < PROFILE_EXPLAIN_PARAMETERS)
            line->influences[at] = (ProfileInfluence){i, elasticity};
        line->n_influences = MIN(line->n_influences + 1, PROFILE_EXPLAIN_PARAMETERS);
    }
}

/* Whether @text has @word between other characters than those of names. */
static bool
has_word(const char *text, const char *word)
{
    const size_t n = strlen(word);

    for (const char *p = strstr(text, word); p != NULL; p = strstr(p + 1, word)) {
        const bool begins = p == text || (!g_ascii_isalnum(p[-1]) && p[-1] != '_');

        if (begins && !g_ascii_isalnum(p[n]) && p[n] != '_')
            return true;
    }
    return false;
}

char *
profile_parameter_source(const Profile *profile, int i)
{
    const char *name = profile_parameter_info[i].name;

    if (profile->parameter_sources[i] != NULL)
        return g_strdup(profile->parameter_sources[i]);
    for (guint s = 0; s < profile->cluster->sources->len; s++) {
        const char *source = profile->cluster->sources->pdata[s];

        if (has_word(source, name))
            return g_strdup(source);
    }
    return g_strdup("docs/cost-model.md 4");
}

/* --- single ops --- */

typedef struct {
    const WorkloadLocation *location;
    const ModelOp *op;
    ProfilePass pass;
    Dtype dtype;
} OpQuery;

static double
op_time(const Profile *profile, const void *user_data)
{
    const OpQuery *query = user_data;
    const ProfileCost cost = profile_cost_op(profile, query->location->device, query->op,
                                             query->pass, query->dtype, query->location->groups);

    return profile_cost_device_s(&cost);
}

static const char *
formula_of(const ModelOp *op)
{
    switch (op->kind) {
    case MODEL_OP_GEMM:
        return "max(FLOPs / rate by tiles and waves, bytes / memory rate) + launch  [2.1]";
    case MODEL_OP_ATTENTION:
        return op->n_kernels_forward == 1
                   ? "max(causal FLOPs / (fraction filled peak), bytes / memory rate)  [2.2]"
                   : "batched products and the traffic of the scores between them  [2.2]";
    case MODEL_OP_SCAN:
        return "max(FLOPs / (fraction peak), bytes / memory rate)  [2.7]";
    case MODEL_OP_MEMORY:
        return "bytes / (fraction memory rate) + launch  [2.3]";
    case MODEL_OP_COLLECTIVE:
        return "launch + steps latency + bytes' share / rate of the slowest link  [3.1, 3.2]";
    }
    g_return_val_if_reached("");
}

static char *
inputs_of(const ModelOp *op, bool backward)
{
    switch (op->kind) {
    case MODEL_OP_GEMM:
        return g_strdup_printf(INT " x m " INT ", n " INT ", k " INT, op->count, op->m, op->n,
                               op->k);
    case MODEL_OP_ATTENTION:
        return g_strdup_printf(INT " heads x " INT " queries, " INT " keys, size " INT, op->count,
                               op->m, op->n, op->k);
    case MODEL_OP_SCAN:
        return g_strdup_printf(INT " heads x " INT " tokens, " INT " at once, size " INT, op->count,
                               op->m, op->n, op->k);
    case MODEL_OP_MEMORY:
        return g_strdup_printf(
            "%s through memory",
            units_format_bytes((double)(backward ? op->backward_bytes : op->forward_bytes)).text);
    case MODEL_OP_COLLECTIVE:
        return g_strdup(units_format_bytes((double)op->comm_bytes).text);
    }
    g_return_val_if_reached(NULL);
}

/* --- lines --- */

typedef struct {
    const WorkloadBuild *build;
    const WorkloadLocation *location;
    ProfileExplanation *explanation;
} Explainer;

static void
add_line(ProfileExplanation *explanation, ProfileCostLine *line)
{
    /* Ops of equal name and inputs: once, with both counts. */
    for (guint i = 0; i < explanation->costs->len; i++) {
        ProfileCostLine *known = &g_array_index(explanation->costs, ProfileCostLine, i);

        if (strcmp(known->what, line->what) != 0 || strcmp(known->inputs, line->inputs) != 0)
            continue;
        known->n += line->n;
        known->total_s += line->total_s;
        g_free(line->what);
        g_free(line->inputs);
        return;
    }
    g_array_append_val(explanation->costs, *line);
}

static const char *const part_names[] = {"embedding", "layer", "head"};

/* @fraction  of the op that runs. */
static void
add_op(const Explainer *e, ModelPart part, const ModelOp *op, ProfilePass pass, const char *when,
       double fraction, int64_t n)
{
    const OpQuery query = {e->location, op, pass, e->build->plan->dtype};
    const double each = fraction * op_time(e->build->profile, &query);
    ProfileCostLine line = {.formula = formula_of(op), .n = n, .total_s = each * (double)n};

    if (each <= 0.0)
        return;
    line.what = g_strdup_printf("%s %s, %s", part_names[part], op->name, when);
    line.inputs = inputs_of(op, pass != PROFILE_PASS_FORWARD);
    set_influences(&line, e->build->profile, op_time, &query);
    add_line(e->explanation, &line);
}

/* A pass over a whole part that the profile has measured: one line.  False where it is modelled,
 * op by op. */
static bool
add_measured(const Explainer *e, const ProfileQuery *query, ProfilePass pass, const char *when,
             int64_t n)
{
    const ProfileCost cost = profile_cost_part(e->build->profile, query, pass);
    ProfileCostLine line = {.n = n, .total_s = profile_cost_s(&cost) * (double)n};

    if (cost.source == PROFILE_SOURCE_MODELLED)
        return false;
    line.formula = cost.source == PROFILE_SOURCE_MEASURED ? "measured: the profile's row  [7]"
                                                          : "between the profile's rows  [7]";
    line.what = g_strdup_printf("%s, %s", part_names[query->part], when);
    line.inputs = g_strdup_printf(INT " x " INT " tokens after " INT, query->shape.batch,
                                  query->shape.tokens, query->shape.context);
    add_line(e->explanation, &line);
    return true;
}

static void
add_memory(ProfileExplanation *explanation, ModelPart part, const ModelOp *op, int64_t bytes)
{
    ProfileMemoryLine line = {g_strdup_printf("%s %s", part_names[part], op->name), bytes};

    for (guint i = 0; i < explanation->memory->len; i++) {
        ProfileMemoryLine *known = &g_array_index(explanation->memory, ProfileMemoryLine, i);

        if (strcmp(known->what, line.what) == 0) {
            known->bytes += bytes;
            g_free(line.what);
            return;
        }
    }
    g_array_append_val(explanation->memory, line);
}

/* All ops of a part that occurs @n_parts times on the rank, for every micro-batch. */
static void
add_part(const Explainer *e, PlanRecompute recompute, ModelPart part, int64_t layer, int32_t slice,
         int64_t n_parts)
{
    const ModelShape shape = workload_build_shape(e->build, 0, slice);
    const int64_t n = n_parts * e->build->plan->n_micro_batches;
    const ProfileQuery query = workload_build_query(e->build, e->location, part, layer, &shape);
    ModelOp ops[MODEL_MAX_OPS];
    const size_t n_ops = model_ops(e->build->arch, part, layer, &shape, ops);
    const bool has_forward = add_measured(e, &query, PROFILE_PASS_FORWARD, "forward", n);
    const bool has_backward = add_measured(e, &query, PROFILE_PASS_BACKWARD, "backward", n);
    const bool has_again = recompute == PLAN_RECOMPUTE_FULL &&
                           add_measured(e, &query, PROFILE_PASS_FORWARD, "again", n);

    for (size_t i = 0; i < n_ops; i++) {
        const double again = recompute == PLAN_RECOMPUTE_FULL        ? 1.0
                             : recompute == PLAN_RECOMPUTE_SELECTIVE ? ops[i].again_fraction
                                                                     : 0.0;
        const int64_t kept = recompute == PLAN_RECOMPUTE_FULL ? 0
                             : recompute == PLAN_RECOMPUTE_SELECTIVE
                                 ? ops[i].saved_bytes - ops[i].again_bytes -
                                       (e->build->n_slices > 1 ? 0 : ops[i].again_kv_bytes)
                                 : ops[i].saved_bytes;

        if (!has_forward)
            add_op(e, part, &ops[i], PROFILE_PASS_FORWARD, "forward", 1.0, n);
        if (!has_backward)
            add_op(e, part, &ops[i], PROFILE_PASS_BACKWARD, "backward", 1.0, n);
        if (again > 0.0 && !has_again)
            add_op(e, part, &ops[i], PROFILE_PASS_FORWARD, "again", again, n);
        if (kept > 0)
            add_memory(e->explanation, part, &ops[i], kept * n_parts);
    }
}

static void
add_stages(const Explainer *e, int32_t rank)
{
    const WorkloadBuild *build = e->build;

    for (guint s = 0; s < build->plan->stages->len; s++) {
        const PlanStage *stage = &g_array_index(build->plan->stages, PlanStage, s);

        if (stage->rank != rank)
            continue;
        for (int32_t slice = 0; slice < build->n_slices; slice++) {
            /* [kind][how they are recomputed] */
            int64_t n_of_kind[MODEL_MAX_KINDS][PLAN_RECOMPUTE_N] = {0};
            int64_t layer_of_kind[MODEL_MAX_KINDS];

            for (int64_t i = 0; i < stage->n_layers; i++) {
                const int kind = model_layer_kind(build->arch, stage->first_layer + i);

                n_of_kind[kind][plan_layer_recompute(&build->plan->conventions, stage, i)]++;
                layer_of_kind[kind] = stage->first_layer + i;
            }
            for (int kind = 0; kind < MODEL_MAX_KINDS; kind++)
                for (int r = 0; r < PLAN_RECOMPUTE_N; r++)
                    if (n_of_kind[kind][r] > 0)
                        add_part(e, (PlanRecompute)r, MODEL_PART_LAYER, layer_of_kind[kind], slice,
                                 n_of_kind[kind][r]);
            if (stage->embedding)
                add_part(e, PLAN_RECOMPUTE_NONE, MODEL_PART_EMBEDDING, 0, slice, 1);
            if (stage->head)
                add_part(e, PLAN_RECOMPUTE_NONE, MODEL_PART_HEAD, 0, slice, 1);
        }
    }
}

/* --- what is not an op --- */

typedef enum {
    REST_OPS, /* all ops, as the simulator runs them */
    REST_REDUCE,
    REST_GATHER,
    REST_OPTIMIZER,
    REST_N,
} Rest;

typedef struct {
    const WorkloadBuild *build;
    int32_t rank;
    Rest rest;
} RestQuery;

/* Sum of the rank's ops over an iteration. */
static int64_t
ops_ns(const RestQuery *query, const Workload *workload)
{
    const WorkloadBuild *build = query->build;
    const int64_t n_per_stage = (int64_t)workload->n_classes * workload->n_slices;
    int64_t sum = 0;

    for (guint s = 0; s < build->plan->stages->len; s++) {
        if (g_array_index(build->plan->stages, PlanStage, s).rank != query->rank)
            continue;
        for (int32_t slice = 0; slice < workload->n_slices; slice++) {
            const WorkloadOp *op = &workload->ops[(int64_t)s * n_per_stage + slice];

            sum += (op->time_ns[SCHEDULE_OP_FORWARD] + op->time_ns[SCHEDULE_OP_BACKWARD]) *
                   build->plan->n_micro_batches;
        }
    }
    return sum;
}

static double
rest_time(const Profile *profile, const void *user_data)
{
    const RestQuery *query = user_data;
    g_autoptr(Workload) workload =
        workload_new(query->build->arch, profile, query->build->plan, 0, NULL);
    if (workload == NULL)
        return 0.0;
    const WorkloadRank *rank = &workload->ranks[query->rank];
    const int64_t ns[REST_N] = {
        [REST_OPS] = ops_ns(query, workload),
        [REST_REDUCE] = rank->dp_reduce_ns,
        [REST_GATHER] = rank->dp_gather_ns,
        [REST_OPTIMIZER] = rank->optimizer_ns,
    };
    return units_s_from_ns(ns[query->rest]);
}

/* What the simulator's ops take beyond (or, where communication hides, below) the lines' sum. */
static void
add_rest(const Explainer *e, int32_t rank)
{
    static const struct {
        const char *what, *formula;
    } lines[REST_N] = {
        {"waiting for the host, adding up gradients, less what overlaps",
         "max(device, host) of each layer, gradients' traffic, hidden communication  [2.4, 2.5, "
         "3.3]"},
        {"reduction of gradients", "collectives over the copies of each parameter  [5.3]"},
        {"gathering of parameters", "all-gather after the step, ZeRO 1 and 2  [5.3]"},
        {"optimizer step", "parameters x bytes / (memory_fraction memory rate)  [5.2]"},
    };

    for (int i = 0; i < REST_N; i++) {
        const RestQuery query = {e->build, rank, (Rest)i};
        ProfileCostLine line = {.formula = lines[i].formula, .n = 1};

        line.total_s = rest_time(e->build->profile, &query);
        if (i == REST_OPS) {
            for (guint c = 0; c < e->explanation->costs->len; c++)
                line.total_s -= g_array_index(e->explanation->costs, ProfileCostLine, c).total_s;
        } else {
            set_influences(&line, e->build->profile, rest_time, &query);
        }
        if (fabs(line.total_s) < 1e-9) /* rounding to nanoseconds */
            continue;
        line.what = g_strdup(lines[i].what);
        line.inputs = g_strdup("");
        g_array_append_val(e->explanation->costs, line);
    }
}

/* --- public --- */

static int
compare_costs(const void *a, const void *b)
{
    const ProfileCostLine *x = a, *y = b;

    ORDER_BY(y->total_s, x->total_s);
    return strcmp(x->what, y->what);
}

static int
compare_memory(const void *a, const void *b)
{
    const ProfileMemoryLine *x = a, *y = b;

    ORDER_BY(y->bytes, x->bytes);
    return strcmp(x->what, y->what);
}

static void
cost_line_clear(void *data)
{
    ProfileCostLine *line = data;

    g_free(line->what);
    g_free(line->inputs);
}

static void
memory_line_clear(void *data)
{
    g_free(((ProfileMemoryLine *)data)->what);
}

void
profile_explanation_clear(ProfileExplanation *explanation)
{
    g_clear_pointer(&explanation->costs, g_array_unref);
    g_clear_pointer(&explanation->memory, g_array_unref);
}

bool
profile_explain(const ModelArch *arch, const Profile *profile, const Plan *plan, int32_t rank,
                ProfileExplanation *explanation, GError **error)
{
    g_autoptr(Workload) workload = workload_new(arch, profile, plan, 0, error);

    g_return_val_if_fail(explanation != NULL && rank >= 0, false);

    if (workload == NULL)
        return false;
    g_autofree int64_t *contexts = workload_build_contexts(plan);
    WorkloadBuild build = {
        .arch = arch,
        .profile = profile,
        .plan = plan,
        .facts = plan_framework(plan->conventions.framework),
        .n_chains = workload->n_chains,
        .n_stages = workload->n_stages,
        .n_slices = workload->n_slices,
        .n_classes = 1,
        .class_sequences = &plan->micro_batch,
        .contexts = contexts,
    };
    WorkloadLocation location = workload_build_location(&build, rank);
    *explanation = (ProfileExplanation){g_array_new(FALSE, TRUE, sizeof(ProfileCostLine)),
                                        g_array_new(FALSE, TRUE, sizeof(ProfileMemoryLine))};
    g_array_set_clear_func(explanation->costs, cost_line_clear);
    g_array_set_clear_func(explanation->memory, memory_line_clear);
    add_stages(&(Explainer){&build, &location, explanation}, rank);
    add_rest(&(Explainer){&build, &location, explanation}, rank);
    g_array_sort(explanation->costs, compare_costs);
    g_array_sort(explanation->memory, compare_memory);
    return true;
}
