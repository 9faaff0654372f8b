#include "cli/validate/best.h"

#include <math.h>
#include <string.h>

#include "base/order.h"
#include "base/text.h"
#include "cli/request/output.h"
#include "cli/request/searches.h"
#include "cli/validate/regret.h"

/* A plan that is faster than measured by more than this is listed with what is known of it. */
#define LISTED_RATIO 0.85
/* An error of the measured row, and a gain over what is predicted for it, that are worth a word. */
#define TOLD_ERROR 0.05
#define TOLD_GAIN 0.03

static void
best_clear(void *data)
{
    ValidationBest *best = data;

    g_free(best->plan);
    g_free(best->why);
}

/* The fastest row of each job of tuned sources. */
static GArray *
fastest_rows(const GPtrArray *cases, const ValidationPrediction *predictions)
{
    g_autoptr(GHashTable) jobs = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    GArray *bests = g_array_new(FALSE, TRUE, sizeof(ValidationBest));

    g_array_set_clear_func(bests, best_clear);
    for (guint i = 0; i < cases->len; i++) {
        const ValidationCase *one = cases->pdata[i];
        const ValidationBest best = {one, predictions[i].iteration_s, NAN, NULL, NULL};
        const double error = validation_error_of(VALIDATION_TIME, one->row, &predictions[i]);

        if (!one->source->tuned || !isfinite(error))
            continue;
        char *name = validation_job_name(one->row);
        gpointer index;
        if (!g_hash_table_lookup_extended(jobs, name, NULL, &index)) {
            g_hash_table_insert(jobs, name, GUINT_TO_POINTER(bests->len));
            g_array_append_val(bests, best);
            continue;
        }
        g_free(name);
        ValidationBest *before = &g_array_index(bests, ValidationBest, GPOINTER_TO_UINT(index));
        if (one->row->iteration_s < before->measured->row->iteration_s)
            *before = best;
    }
    return bests;
}

static Request *
search_request(const MeasuredRow *row, GError **error)
{
    g_autofree char *text = validation_search_request(row, error);
    g_autoptr(JsonDoc) doc = NULL;

    if (text == NULL)
        return NULL;
    doc = json_doc_parse(row->id, text, strlen(text), error);
    if (doc == NULL)
        return NULL;
    const JsonValue *root = json_doc_root(doc, NULL, 0);
    json_ignore(doc, root, "id");
    Request *request = request_read(doc, root, REQUEST_SEARCHED, NULL, NULL, error);
    /* What was measured was run, also where degas has no flags to describe the model. */
    if (request != NULL)
        request->plan.model_runs = true;
    return request;
}

/* (owned) */
static char *
describe(const Plan *plan)
{
    const PlanDegrees *d = &plan->degrees;

    return g_strdup_printf("dp " INT ", tp " INT ", pp " INT " x " INT ", cp " INT ", ep " INT
                           ", micro-batch " INT ", %s, zero " INT,
                           d->dp, d->tp, d->pp, d->vpp, d->cp, d->ep, plan->micro_batch,
                           plan->schedule, (int64_t)plan->zero_stage);
}

static void
append_change(GString *text, const char *name, int64_t measured, int64_t planned)
{
    if (measured != planned)
        g_string_append_printf(text, "%s%s " INT " for " INT, text->len > 0 ? ", " : "", name,
                               planned, measured);
}

/* Of the stages' numbers of layers: the least, and the most. */
static void
stage_layers(const Plan *plan, int64_t *least, int64_t *most)
{
    *least = INT64_MAX;
    *most = 0;
    for (guint i = 0; i < plan->stages->len; i++) {
        const int64_t n = g_array_index(plan->stages, PlanStage, i).n_layers;

        *least = MIN(*least, n);
        *most = MAX(*most, n);
    }
}

/* Stages that differ in their layers, where those of what was measured are equal. */
static void
append_stages(GString *text, const Plan *measured, const Plan *plan)
{
    int64_t least, most, from_least, from_most;

    stage_layers(plan, &least, &most);
    stage_layers(measured, &from_least, &from_most);
    if (from_least == from_most && least < most)
        g_string_append_printf(text, "%sstages of " INT " to " INT " layers for equal ones",
                               text->len > 0 ? ", " : "", least, most);
}

/* (owned) why @plan is faster than what was measured: the error of that row, and what it has otherwise. */
static char *
difference(const ValidationBest *best, const Plan *plan)
{
    const Plan *measured = best->measured->job->plan;
    const PlanDegrees *from = &measured->degrees, *to = &plan->degrees;
    const double error = best->predicted_s / best->measured->row->iteration_s - 1.0;
    g_autoptr(GString) changes = g_string_new(NULL), text = g_string_new(NULL);

    append_change(changes, "micro-batch", measured->micro_batch, plan->micro_batch);
    append_change(changes, "tp", from->tp, to->tp);
    append_change(changes, "pp", from->pp, to->pp);
    append_change(changes, "vpp", from->vpp, to->vpp);
    append_change(changes, "cp", from->cp, to->cp);
    append_change(changes, "ep", from->ep, to->ep);
    append_stages(changes, measured, plan);
    if (fabs(error) >= TOLD_ERROR)
        g_string_append_printf(text, "the measured split is predicted %+.0f %%", 1e2 * error);
    if (best->planned_s < (1.0 - TOLD_GAIN) * best->predicted_s && changes->len > 0)
        g_string_append_printf(text, "%sanother split: %s", text->len > 0 ? "; " : "",
                               changes->str);
    return g_string_free(g_steal_pointer(&text), FALSE);
}

static void
take_result(ValidationBest *best, const Search *search)
{
    if (search->plan == NULL) {
        best->plan = g_strdup(search->error == NULL ? "stopped" : search->error->message);
        return;
    }
    best->planned_s = (double)search->plan->predicted->iteration_ns * 1e-9;
    best->plan = describe(search->plan);
    best->why = difference(best, search->plan);
}

bool
validation_search_bests(const GPtrArray *cases, const ValidationPrediction *predictions,
                        int64_t n_threads, GArray **bests, GError **error)
{
    g_autoptr(GArray) found = fastest_rows(cases, predictions);
    g_autoptr(GPtrArray) searches = searches_new();
    g_autoptr(GArray) indices = g_array_new(FALSE, FALSE, sizeof(guint));

    for (guint i = 0; i < found->len; i++) {
        ValidationBest *best = &g_array_index(found, ValidationBest, i);
        g_autoptr(GError) why = NULL;
        Request *request = search_request(best->measured->row, &why);

        if (request == NULL) {
            best->plan = g_strdup(why->message);
            continue;
        }
        searches_add(searches, request, (double)best->measured->row->n_devices);
        g_array_append_val(indices, i);
    }
    if (!searches_run(searches, n_threads, "jobs", error))
        return false;
    for (guint i = 0; i < searches->len; i++)
        take_result(&g_array_index(found, ValidationBest, g_array_index(indices, guint, i)),
                    searches_at(searches, i));
    *bests = g_steal_pointer(&found);
    return true;
}

/* --- the table --- */

static double
ratio_of(const ValidationBest *best)
{
    return best->planned_s / best->measured->row->iteration_s;
}

static int
compare_ratios(const void *a, const void *b)
{
    const double x = ratio_of(*(const ValidationBest *const *)a);
    const double y = ratio_of(*(const ValidationBest *const *)b);

    return ORDER(x, y);
}

/* (nullable) Why its authors had no better split, where that is known: the table of reasons, or that the
 * stack is assumed. */
static const char *
reason_of(const ValidationBest *best)
{
    const MeasuredRow *row = best->measured->row;
    const char *reason = validation_reason(row);

    if (reason == NULL && best->measured->source->dated && row->stack_date[0] == 0)
        return "its stack is not dated: today's is assumed";
    return reason;
}

/* The first cell of a job's line. */
static void
append_job(GString *text, const MeasuredRow *row)
{
    g_autofree char *model = text_markdown(row->model, 80);
    g_autofree char *gpu = text_markdown(row->gpu, 80);

    g_string_append_printf(text, "| %s, " INT " %s, batch " INT ", %s, %s |", model, row->n_devices,
                           gpu, row->global_batch, row->dtype,
                           row->stack_date[0] == 0 ? "stack not dated" : row->stack_date);
}

static void
append_listed(GString *text, const ValidationBest *best)
{
    const MeasuredRow *row = best->measured->row;

    append_job(text, row);
    g_string_append_printf(text,
                           " %.3g s: tp " INT ", pp " INT " x " INT ", cp " INT ", ep " INT
                           " | %.3g s | %.3g s: %s | %.2f | %.2f | %s | %s |\n",
                           row->iteration_s, row->tp, row->pp, MAX(1, row->vpp), MAX(1, row->cp),
                           MAX(1, row->ep), best->predicted_s, best->planned_s, best->plan,
                           ratio_of(best), best->planned_s / best->predicted_s, best->why,
                           reason_of(best) == NULL ? "" : reason_of(best));
}

/* The jobs for which no plan was found, if there are any. */
static void
append_without(GString *text, const GArray *bests)
{
    bool has_any = false;

    for (guint i = 0; i < bests->len; i++) {
        const ValidationBest *best = &g_array_index(bests, ValidationBest, i);

        if (isfinite(best->planned_s))
            continue;
        if (!has_any)
            g_string_append(text, "\n| job without a plan, stack | why |\n|---|---|\n");
        has_any = true;
        g_autofree char *why = text_markdown(best->plan, 400);
        append_job(text, best->measured->row);
        g_string_append_printf(text, " %s |\n", why);
    }
}

/* One line for the jobs of @source; all of them where it is NULL. */
static void
append_source(GString *text, const GArray *bests, const ValidationSource *source)
{
    g_autoptr(GPtrArray) sorted = g_ptr_array_new();
    guint n_none = 0;

    for (guint i = 0; i < bests->len; i++) {
        ValidationBest *best = &g_array_index(bests, ValidationBest, i);

        if (source != NULL && best->measured->source != source)
            continue;
        if (isfinite(best->planned_s))
            g_ptr_array_add(sorted, best);
        else
            n_none++;
    }
    if (sorted->len == 0)
        return;
    g_ptr_array_sort(sorted, compare_ratios);
    const guint n = sorted->len;
    const double median =
        (ratio_of(sorted->pdata[(n - 1) / 2]) + ratio_of(sorted->pdata[n / 2])) / 2.0;
    guint n_below = 0, n_unknown = 0;
    while (n_below < n && ratio_of(sorted->pdata[n_below]) < LISTED_RATIO)
        n_unknown += reason_of(sorted->pdata[n_below++]) == NULL;
    g_string_append_printf(text, "| %s | %u | %.2f | %.2f | %.2f | %u | %u | %u |\n",
                           source == NULL ? "all" : source->name, n, median,
                           ratio_of(sorted->pdata[0]), ratio_of(sorted->pdata[n - 1]), n_below,
                           n_unknown, n_none);
}

void
validation_append_bests(GString *text, const GArray *bests)
{
    g_string_append(
        text,
        "## The best plan beside the best measured\n\n"
        "A search takes the plan of which the model is most wrong in its favour.  For each job of "
        "the tables whose\nauthors looked for the fastest configuration: the time of the best plan "
        "for their framework, number format,\noverlap, recompute and ZeRO stage (split, "
        "micro-batch and schedule are searched) over the best that was\nmeasured; wanted: a median "
        "within 5 % of 1, none below 0.85 without a reason.\n\n"
        "| rows of | jobs | median | least | most | below 0.85 | of these no reason known | "
        "without a plan |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|\n");
    for (const ValidationSource *source = validation_conventions()->sources; source->name[0] != 0;
         source++)
        append_source(text, bests, source);
    append_source(text, bests, NULL);
    g_string_append(
        text,
        "\nThose below 0.85, and why: the error of the row itself, what the plan has for what was "
        "measured, and, "
        "where code,\npapers or later runs of the authors show it, why they did not have that "
        "(\"reasons\" of `cli/validate/sources.json`).\nPlans keep to what the stack of the row's "
        "month had "
        "(`--stack`); that the framework runs the model is known, as it did.\n\n"
        "| job, stack | measured | predicted | best plan | / measured | / predicted | difference | "
        "reason |\n"
        "|---|---|---:|---|---:|---:|---|---|\n");
    for (guint i = 0; i < bests->len; i++) {
        const ValidationBest *best = &g_array_index(bests, ValidationBest, i);

        if (ratio_of(best) < LISTED_RATIO)
            append_listed(text, best);
    }
    append_without(text, bests);
    g_string_append_c(text, '\n');
}
