#include <string.h>

#include "base/units.h"
#include "cli/check/check.h"
#include "cli/export/export.h"
#include "cli/recipe/syntax.h"
#include "cli/request/output.h"

/* Of single edits so many that hold least memory are tried in pairs. */
#define MAX_PAIRED 10

void
check_edit_free(CheckEdit *edit)
{
    if (edit == NULL)
        return;
    g_free(edit->what);
    g_ptr_array_unref(edit->set);
    plan_free(edit->plan);
    report_free(edit->report);
    g_free(edit);
}

/* --- changes of a request --- */

typedef enum {
    EDIT_MICRO_BATCH,
    EDIT_TP,
    EDIT_PP,
    EDIT_TP_FOR_PP, /* one is multiplied by what the other is divided by */
    EDIT_CP,
    EDIT_EP,
    EDIT_VPP,
    EDIT_SCHEDULE,
    EDIT_RECOMPUTE,
    EDIT_ZERO,
    EDIT_SEQUENCE_PARALLEL,
    EDIT_OVERLAP_DP,
    EDIT_OVERLAP_TP,
    EDIT_OFFLOAD,
    EDIT_N
} EditKind;

/* What a kind may change to: so many variants; see apply(). */
static const int n_variants[EDIT_N] = {
    [EDIT_MICRO_BATCH] = 5,
    [EDIT_TP] = 3,
    [EDIT_PP] = 3,
    [EDIT_TP_FOR_PP] = 2,
    [EDIT_CP] = 3,
    [EDIT_EP] = 3,
    [EDIT_VPP] = 4,
    [EDIT_SCHEDULE] = 16,
    [EDIT_RECOMPUTE] = PLAN_RECOMPUTE_N,
    [EDIT_ZERO] = 4,
    [EDIT_SEQUENCE_PARALLEL] = 1,
    [EDIT_OVERLAP_DP] = 1,
    [EDIT_OVERLAP_TP] = 1,
    [EDIT_OFFLOAD] = 2,
};

/* Twice, half, one, four times, a quarter. */
static int64_t
scaled(int64_t n, int variant)
{
    switch (variant) {
    case 0:
        return 2 * n;
    case 1:
        return n % 2 == 0 ? n / 2 : 0;
    case 2:
        return n > 2 ? 1 : 0;
    case 3:
        return 4 * n;
    default:
        return n % 4 == 0 && n > 4 ? n / 4 : 0;
    }
}

static void
set_schedule(Request *request, const char *name)
{
    g_strfreev(request->schedules);
    request->schedules = g_new0(char *, 2);
    request->schedules[0] = g_strdup(name);
    request->plan.schedules = (const char *const *)request->schedules;
}

/* The first schedule of the framework that runs so many chunks. */
static void
set_chunks(Request *request, const PlanFrameworkRules *rules, int64_t vpp)
{
    request->plan.vpp = vpp;
    request->plan.group = 0;
    for (size_t i = 0; rules != NULL && rules->schedules[i] != NULL; i++) {
        const ScheduleFamily *family = schedule_family_find(rules->schedules[i], NULL);
        if (vpp >= family->min_chunks && vpp <= family->max_chunks) {
            set_schedule(request, family->name);
            return;
        }
    }
}

/* What the degrees bring with them: stages are even again, dp is what is left. */
static void
settle(Request *request, const PlanFrameworkRules *rules, const Plan *plan)
{
    PlanRequest *r = &request->plan;
    const int64_t n = plan_n_devices(plan), split = r->tp * r->pp * r->cp;

    if (r->pp != plan->degrees.pp || r->vpp != plan->degrees.vpp)
        g_clear_pointer(&request->stage_layers, g_array_unref);
    r->dp = n % split == 0 ? n / split : 0;
    if (r->pp == 1 && r->vpp > 1)
        set_chunks(request, rules, 1);
    if (r->tp == 1)
        r->sequence_parallel = 0;
    else if (plan->degrees.tp == 1)
        r->sequence_parallel =
            rules == NULL || rules->sequence_parallel != PLAN_SEQUENCE_PARALLEL_NEVER;
    if (r->conventions.expert_tp > r->tp)
        r->conventions.expert_tp = r->tp;
    /* The nearest stage of ZeRO that goes with a pipeline. */
    if (rules != NULL && r->pp > 1)
        while (r->zero_stage > 0 && (rules->zero_with_pp >> r->zero_stage & 1) == 0)
            r->zero_stage--;
}

/* Changes @request by the variant of a kind; false: that is no change, or none that can be. */
static bool
apply(Request *request, const PlanFrameworkRules *rules, const Plan *plan, EditKind kind,
      int variant)
{
    PlanRequest *r = &request->plan;
    int64_t before, *field = kind == EDIT_MICRO_BATCH ? &r->micro_batch
                             : kind == EDIT_TP        ? &r->tp
                             : kind == EDIT_PP        ? &r->pp
                             : kind == EDIT_CP        ? &r->cp
                             : kind == EDIT_EP        ? &r->ep
                             : kind == EDIT_VPP       ? &r->vpp
                                                      : NULL;

    switch (kind) {
    case EDIT_TP_FOR_PP:
        r->tp = scaled(r->tp, variant);
        r->pp = scaled(r->pp, 1 - variant);
        break;
    case EDIT_SCHEDULE:
        for (int i = 0; i <= variant; i++)
            if (rules == NULL || rules->schedules[i] == NULL)
                return false;
        if (r->pp == 1 || strcmp(rules->schedules[variant], plan->schedule) == 0)
            return false;
        set_schedule(request, rules->schedules[variant]);
        break;
    case EDIT_RECOMPUTE:
        if (strcmp(plan_recompute_name(plan), plan_recompute_names[variant]) == 0)
            return false;
        r->recompute = variant;
        break;
    case EDIT_ZERO:
        if (plan->zero_stage == variant || plan->degrees.dp * plan->degrees.cp == 1)
            return false;
        r->zero_stage = variant;
        break;
    case EDIT_SEQUENCE_PARALLEL:
        if (r->tp == 1)
            return false;
        r->sequence_parallel = !plan->sequence_parallel;
        break;
    case EDIT_OVERLAP_DP:
        if (r->conventions.overlap_dp || plan->degrees.dp == 1)
            return false;
        r->conventions.overlap_dp = true;
        break;
    case EDIT_OVERLAP_TP:
        /* A program without sequence parallelism has nothing that overlaps it. */
        if (r->conventions.overlap_tp || plan->degrees.tp == 1 ||
            (rules != NULL && rules->sequence_parallel == PLAN_SEQUENCE_PARALLEL_NEVER))
            return false;
        r->conventions.overlap_tp = true;
        break;
    case EDIT_OFFLOAD:
        if ((int)plan->offload == variant)
            return false;
        r->offload = variant;
        if (variant == PLAN_OFFLOAD_NONE)
            r->offload_parameters = false;
        break;
    default:
        g_assert(field != NULL);
        before = *field;
        *field = scaled(before, variant);
        if (*field == before)
            return false;
        if (kind == EDIT_VPP)
            set_chunks(request, rules, *field);
    }
    if (r->tp < 1 || r->pp < 1 || r->cp < 1 || r->ep < 1 || r->vpp < 1 || r->micro_batch < 1)
        return false;
    settle(request, rules, plan);
    return r->dp >= 1;
}

/* --- simulated edits --- */

/* (owned) "tp 8 -> 4, sequence parallelism off -> on". */
static char *
difference(const Plan *from, const Plan *to)
{
    const struct {
        const char *name;
        int64_t from, to;
    } numbers[] = {
        {"micro-batch", from->micro_batch, to->micro_batch},
        {"tp", from->degrees.tp, to->degrees.tp},
        {"pp", from->degrees.pp, to->degrees.pp},
        {"cp", from->degrees.cp, to->degrees.cp},
        {"ep", from->degrees.ep, to->degrees.ep},
        {"vpp", from->degrees.vpp, to->degrees.vpp},
        {"zero", from->zero_stage, to->zero_stage},
    };
    const struct {
        const char *name, *from, *to;
    } words[] = {
        {"schedule", from->schedule, to->schedule},
        {"recompute", plan_recompute_name(from), plan_recompute_name(to)},
        {"sequence-parallel", from->sequence_parallel ? "on" : "off",
         to->sequence_parallel ? "on" : "off"},
        {"overlap of dp", from->conventions.overlap_dp ? "on" : "off",
         to->conventions.overlap_dp ? "on" : "off"},
        {"overlap of tp", from->conventions.overlap_tp ? "on" : "off",
         to->conventions.overlap_tp ? "on" : "off"},
        {"offload", plan_offload_names[from->offload], plan_offload_names[to->offload]},
    };
    GString *text = g_string_new(NULL);

    for (size_t i = 0; i < G_N_ELEMENTS(numbers); i++)
        if (numbers[i].from != numbers[i].to)
            g_string_append_printf(text, "%s%s " INT " -> " INT, text->len > 0 ? ", " : "",
                                   numbers[i].name, numbers[i].from, numbers[i].to);
    for (size_t i = 0; i < G_N_ELEMENTS(words); i++)
        if (strcmp(words[i].from, words[i].to) != 0)
            g_string_append_printf(text, "%s%s %s -> %s", text->len > 0 ? ", " : "", words[i].name,
                                   words[i].from, words[i].to);
    return g_string_free(text, FALSE);
}

/* Simulates an edit's plan; not @exactly: links are not followed, which only delays.  Returns:
 * whether that could be done. */
static bool
simulate(const Check *check, const Request *request, CheckEdit *edit, bool exactly)
{
    const Job job = {check->job->arch, check->job->profile, edit->plan};
    const JobOptions how = {.memory_limit_bytes = request->plan.memory_limit_bytes,
                            .limit_ns = exactly ? 0 : 1};
    g_auto(JobSimulation) simulation = {0};

    if (!job_simulate(&job, &how, &simulation, NULL))
        return false;
    report_free(edit->report);
    edit->report = g_steal_pointer(&simulation.result.report);
    edit->is_bound = !exactly;
    return true;
}

/* The edit that makes @request of the recipe's plan, with a bound of its time; NULL where it has no
 * plan, or that breaks a rule. */
static CheckEdit *
try_request(const Check *check, const Request *request)
{
    g_autoptr(Plan) plan = request_plan(request, NULL);

    if (plan == NULL)
        return NULL;
    plan->conventions.overlap_pp =
        plan->degrees.vpp == check->job->plan->degrees.vpp
            ? check->job->plan->conventions.overlap_pp
            : plan_framework_overlaps_pp(plan->conventions.framework, plan->schedule,
                                         plan->degrees.vpp);
    g_autoptr(GArray) breaches =
        plan_rules_broken(plan->conventions.framework, check->job->arch, plan);
    for (guint i = 0; i < breaches->len; i++)
        if (g_strcmp0(g_array_index(breaches, PlanBreach, i).rule, check->recipe->excused) != 0)
            return NULL;
    CheckEdit *edit = g_new0(CheckEdit, 1);
    edit->what = difference(check->job->plan, plan);
    edit->set = g_ptr_array_new_with_free_func(g_free);
    edit->plan = g_steal_pointer(&plan);
    if (simulate(check, request, edit, false))
        return edit;
    check_edit_free(edit);
    return NULL;
}

static CheckEdit *
try_edits(const Check *check, const Request *request, const int kinds[2], const int variants[2])
{
    const PlanFrameworkRules *rules =
        plan_framework(check->job->plan->conventions.framework)->rules;
    g_autoptr(Request) changed = request_copy(request);

    /* A recipe that says nothing of chunks leaves them open. */
    changed->plan.vpp = check->job->plan->degrees.vpp;
    for (int i = 0; i < 2; i++)
        if (kinds[i] >= 0 &&
            !apply(changed, rules, check->job->plan, (EditKind)kinds[i], variants[i]))
            return NULL;
    return try_request(check, changed);
}

void
check_edits_add(const Check *check, const Request *request, GPtrArray *edits)
{
    g_autoptr(GHashTable) known = g_hash_table_new(g_str_hash, g_str_equal);

    for (int kind = 0; kind < EDIT_N; kind++)
        for (int variant = 0; variant < n_variants[kind]; variant++) {
            CheckEdit *edit = try_edits(check, request, (int[]){kind, -1}, (int[]){variant, 0});
            if (edit == NULL || edit->what[0] == 0 || g_hash_table_contains(known, edit->what)) {
                check_edit_free(edit);
                continue;
            }
            edit->kind = kind;
            edit->variant = variant;
            g_hash_table_add(known, edit->what);
            g_ptr_array_add(edits, edit);
        }
}

static int
compare_edits(const void *a, const void *b)
{
    const CheckEdit *const *x = a, *const *y = b;
    const int64_t left = (*x)->report->iteration_ns, right = (*y)->report->iteration_ns;

    return left != right ? (left > right ? 1 : -1) : strcmp((*x)->what, (*y)->what);
}

/* The first bound among the first @n edits that fit and take less than @limit_ns; NULL: none is. */
static CheckEdit *
first_bound(const GPtrArray *edits, guint n, int64_t limit_ns)
{
    for (guint i = 0; i < edits->len && n > 0; i++) {
        CheckEdit *edit = g_ptr_array_index(edits, i);

        if (!edit->report->fits || edit->report->iteration_ns >= limit_ns)
            continue;
        if (edit->is_bound)
            return edit;
        n--;
    }
    return NULL;
}

void
check_edits_refine(const Check *check, const Request *request, GPtrArray *edits, guint n,
                   int64_t limit_ns)
{
    CheckEdit *edit;

    do {
        g_ptr_array_sort(edits, compare_edits);
        edit = first_bound(edits, n, limit_ns);
    } while (edit != NULL && simulate(check, request, edit, true));
}

/* (nullable) The first of sorted @edits that fits. */
static CheckEdit *
first_fitting(const GPtrArray *edits)
{
    for (guint i = 0; i < edits->len; i++) {
        CheckEdit *edit = g_ptr_array_index(edits, i);
        if (edit->report->fits)
            return edit;
    }
    return NULL;
}

static int
compare_bytes(const void *a, const void *b)
{
    const CheckEdit *const *x = a, *const *y = b;
    const int64_t left = (*x)->report->peak_memory_bytes, right = (*y)->report->peak_memory_bytes;

    return left != right              ? (left > right ? 1 : -1)
           : (*x)->kind != (*y)->kind ? (*x)->kind - (*y)->kind
                                      : (*x)->variant - (*y)->variant;
}

/* Adds the pairs of those of @edits that save memory most. */
static void
add_pairs(Check *check, const Request *request, const GPtrArray *edits, GPtrArray *pairs)
{
    g_autoptr(GPtrArray) savers = g_ptr_array_new();

    for (guint i = 0; i < edits->len; i++) {
        CheckEdit *edit = g_ptr_array_index(edits, i);
        if (edit->report->peak_memory_bytes < check->report->peak_memory_bytes)
            g_ptr_array_add(savers, edit);
    }
    g_ptr_array_sort(savers, compare_bytes);
    const guint n = MIN(savers->len, MAX_PAIRED);
    for (guint i = 0; i < n; i++)
        for (guint k = i + 1; k < n; k++) {
            const CheckEdit *a = g_ptr_array_index(savers, i), *b = g_ptr_array_index(savers, k);
            if (a->kind == b->kind)
                continue;
            check->n_tried++;
            CheckEdit *pair = try_edits(check, request, (int[]){a->kind, b->kind},
                                        (int[]){a->variant, b->variant});
            if (pair != NULL)
                g_ptr_array_add(pairs, pair);
        }
}

/* (owned, nullable) @edit, taken out of @edits; NULL where it is none of them. */
static CheckEdit *
take(GPtrArray *edits, const CheckEdit *edit)
{
    guint index = 0;

    return g_ptr_array_find(edits, edit, &index) ? g_ptr_array_steal_index(edits, index) : NULL;
}

CheckEdit *
check_edits_nearest(Check *check, const Request *request, GPtrArray *edits)
{
    g_autoptr(GPtrArray) found = g_ptr_array_new_with_free_func((GDestroyNotify)check_edit_free);

    check_edits_refine(check, request, edits, 1, INT64_MAX);
    const CheckEdit *single = first_fitting(edits);
    if (single != NULL)
        g_ptr_array_add(found, try_edits(check, request, (int[]){single->kind, -1},
                                         (int[]){single->variant, 0}));
    else
        add_pairs(check, request, edits, found);
    check_edits_refine(check, request, found, 1, INT64_MAX);
    return take(found, first_fitting(found));
}

/* --- in the framework's words --- */

/* (owned, nullable) what the framework's exporter writes of @plan, as settings. */
static RecipeSettings *
exported(const Check *check, Plan *plan, GError **error)
{
    const Job job = {check->job->arch, check->job->profile, plan};
    const PlanFrameworkFacts *facts = plan_framework(plan->conventions.framework);
    const ExportTarget *target = export_target_find(facts->exporter);
    RecipeSettings *settings = recipe_settings_new("the plan");
    size_t n_bytes;

    if (target == NULL) {
        g_autofree char *text = recipe_write_trainer(plan);
        recipe_read_yaml(settings, text, strlen(text));
        return settings;
    }
    /* torchtitan's model is a name, which it has to have; of an edit its name does not matter. */
    g_autoptr(ModelArch) named = model_arch_copy(check->job->arch);
    if (facts->rules->models != NULL && !facts->rules->described_by_flags) {
        g_free(named->name);
        named->name = g_strdup(facts->rules->models[0].model);
    }
    const Job named_job = {named, job.profile, plan};
    g_autofree char *text = target->write(
        &(ExportSource){.job = &named_job, .version = target->versions == NULL ? NULL : "0.2"},
        &n_bytes, error);
    if (text == NULL) {
        recipe_settings_free(settings);
        return NULL;
    }
    if (strcmp(target->name, "deepspeed") == 0)
        recipe_read_json(settings, text, n_bytes);
    else if (strcmp(target->name, "torchtitan") == 0)
        recipe_read_toml(settings, text, n_bytes);
    else
        recipe_read_shell(settings, text, n_bytes, NULL);
    return settings;
}

/* (owned) a setting as one writes it in the recipe. */
static char *
setting_text(const Check *check, const RecipeSetting *setting, const char *value)
{
    const bool is_flag = strcmp(value, "true") == 0;

    if (check->recipe->framework == PLAN_FRAMEWORK_MEGATRON_BRIDGE)
        return g_strdup_printf("%s=%s", setting->key, value);
    if (g_str_has_prefix(setting->shown, "--")) {
        if (g_str_has_suffix(check->recipe->settings->path, ".yaml") ||
            g_str_has_suffix(check->recipe->settings->path, ".yml"))
            return g_strdup_printf("%s: %s", setting->key, value);
        if (strcmp(value, "false") == 0)
            return g_strdup_printf("without %s", setting->shown);
        return is_flag ? g_strdup(setting->shown) : g_strdup_printf("%s %s", setting->shown, value);
    }
    return g_strdup_printf("%s = %s", setting->key, value);
}

/* Where the recipe says how many layers a chunk has, and not how many chunks there are. */
static void
replace_chunks(const Check *check, CheckEdit *edit)
{
    static const char chunks[] = "num-virtual-stages-per-pipeline-rank";
    static const char layers[] = "num_layers_per_virtual_pipeline_stage";
    const RecipeSetting *old = g_hash_table_lookup(check->recipe->settings->by_key, layers);
    const PlanDegrees *d = &edit->plan->degrees, *before = &check->job->plan->degrees;

    if (old == NULL || (d->pp == before->pp && d->vpp == before->vpp) ||
        check->recipe->framework == PLAN_FRAMEWORK_MEGATRON_BRIDGE)
        return;
    for (guint i = edit->set->len; i-- > 0;) {
        g_autofree char *line = g_strdelimit(g_strdup(g_ptr_array_index(edit->set, i)), "_", '-');
        if (strstr(line, chunks) != NULL)
            g_ptr_array_remove_index(edit->set, i);
    }
    const RecipeSetting setting = {.key = (char *)layers,
                                   .shown = (char *)"--num-layers-per-virtual-pipeline-stage"};
    g_autofree char *value =
        d->vpp == 1 ? g_strdup("false")
                    : g_strdup_printf(INT, check->job->arch->n_layers / d->pp / d->vpp);
    if (strcmp(value, old->value) != 0)
        g_ptr_array_add(edit->set, setting_text(check, &setting, value));
}

/* A batch that follows from micro-batches and replicas has to be said once these change. */
static void
add_batch(const Check *check, CheckEdit *edit, const RecipeSettings *to)
{
    static const char *const keys[] = {"global_batch_size", "train.global_batch_size",
                                       "training.global_batch_size"};
    const Plan *plan = check->job->plan;

    if (edit->plan->micro_batch == plan->micro_batch && edit->plan->degrees.dp == plan->degrees.dp)
        return;
    for (size_t i = 0; i < G_N_ELEMENTS(keys); i++) {
        const RecipeSetting *written = g_hash_table_lookup(to->by_key, keys[i]);
        /* Those of Megatron-Bridge were read without their sections. */
        const RecipeSetting *own = g_hash_table_lookup(
            check->recipe->settings->by_key,
            g_str_has_prefix(keys[i], "train.") ? keys[i] + strlen("train.") : keys[i]);
        if (written != NULL && (own == NULL || strcmp(own->value, "-1") == 0))
            g_ptr_array_add(edit->set, setting_text(check, written, written->value));
    }
}

bool
check_edit_describe(const Check *check, CheckEdit *edit, GError **error)
{
    g_autoptr(RecipeSettings) from = exported(check, check->job->plan, error);
    g_autoptr(RecipeSettings) to = from == NULL ? NULL : exported(check, edit->plan, error);

    if (to == NULL)
        return false;
    for (guint i = 0; i < to->all->len; i++) {
        const RecipeSetting *setting = g_ptr_array_index(to->all, i);
        const RecipeSetting *old = g_hash_table_lookup(from->by_key, setting->key);
        if (old == NULL || strcmp(old->value, setting->value) != 0)
            g_ptr_array_add(edit->set, setting_text(check, setting, setting->value));
    }
    for (guint i = 0; i < from->all->len; i++) {
        const RecipeSetting *setting = g_ptr_array_index(from->all, i);
        if (g_hash_table_lookup(to->by_key, setting->key) == NULL)
            g_ptr_array_add(edit->set, setting_text(check, setting, "false"));
    }
    add_batch(check, edit, to);
    replace_chunks(check, edit);
    /* DeepSpeed leaves it to the model's code. */
    if (edit->set->len == 0)
        g_ptr_array_add(edit->set, g_strdup_printf("in the model's code: %s", edit->what));
    return true;
}
