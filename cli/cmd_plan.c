/* degas plan: searches the best way to split a job, and writes it down. */
#include <math.h>

#include "base/file.h"
#include "base/order.h"
#include "base/units.h"
#include "cli/draw/describe.h"
#include "cli/draw/describe_sweep.h"
#include "cli/draw/plot.h"
#include "cli/explain/explain.h"
#include "cli/request/command.h"
#include "cli/request/output.h"
#include "cli/request/request.h"
#include "cli/request/searches.h"
#include "cli/request/sizes.h"
#include "cli/request/subject.h"
#include "cli/validate/error_bar.h"

/* Alternatives where --top does not say how many. */
#define USUAL_TOP 2

static const OptionInfo options_table[] = {
    {"explain", NULL,
     "tell why this plan is the best: what other choices give, what limits it, what more of each "
     "resource would give",
     .common = true},
    {"pareto", "N",
     "also find up to N plans that take longer and need less memory: the Pareto front"},
    PAGE_OPTION,
    {"fit-probability", "P",
     "fit with this probability, e.g. 95%, judged by how far predicted peaks of published runs "
     "were off; default: the predicted peak fits"},
    {"json", NULL, "print the plan file on stdout"},
    {"output", "FILE", "write the plan to FILE (- is stdout)", .common = true},
    {NULL, NULL, NULL},
};

/*
 * The Pareto front of a plan: time against memory, exactly.
 *
 * Each plan of the front is the fastest within its memory: the epsilon-constraint method  [Haimes,
 * Lasdon, Wismer 1971], a search for each limit between the least memory that any plan needs and
 * the best plan's.  On given devices cost and energy are in proportion to time, so this is the
 * front of all four objectives.
 */

/* Adds the search for the fastest plan of @request within @limit_bytes; 0: for the smallest. */
static void
add_search(GPtrArray *searches, const Request *request, int64_t limit_bytes)
{
    Request *changed = request_copy(request);

    changed->plan.top = 0;
    changed->plan.skips_bound = true;
    if (limit_bytes == 0)
        changed->plan.objective = PLAN_OBJECTIVE_MEMORY;
    else
        changed->plan.memory_limit_bytes = limit_bytes;
    searches_add(searches, changed, 1);
}

static int
compare_by_time(const void *a, const void *b)
{
    const Report *x = (*(const Plan *const *)a)->predicted;
    const Report *y = (*(const Plan *const *)b)->predicted;

    ORDER_BY(x->iteration_ns, y->iteration_ns);
    return ORDER(x->peak_memory_bytes, y->peak_memory_bytes);
}

/* Keeps what is on the front, each point once. */
static void
set_alternatives(Plan *plan, GPtrArray *found)
{
    GPtrArray *kept = g_ptr_array_new_with_free_func((GDestroyNotify)plan_free);
    int64_t least_bytes = plan->predicted->peak_memory_bytes;

    g_ptr_array_sort(found, compare_by_time);
    /* By time: on the front is what needs less memory than all before. */
    for (guint i = 0; i < found->len; i++) {
        const Plan *candidate = found->pdata[i];

        if (candidate->predicted->peak_memory_bytes >= least_bytes)
            continue;
        least_bytes = candidate->predicted->peak_memory_bytes;
        Plan *copy = plan_copy(candidate);
        copy->predicted->memory_limit_bytes = plan->predicted->memory_limit_bytes;
        g_ptr_array_add(kept, copy);
    }
    g_clear_pointer(&plan->alternatives, g_ptr_array_unref);
    if (kept->len > 0)
        plan->alternatives = g_ptr_array_ref(kept);
    g_ptr_array_unref(kept);
}

/* Replaces the alternatives of @plan, the fastest of @request, by up to @n more plans of the front,
 * the fastest first.  Returns false with CMD_ERROR_INTERRUPTED; then they are what was found. */
static bool
find_front(const Request *request, Plan *plan, int64_t n, GError **error)
{
    g_autoptr(GPtrArray) searches = searches_new();
    g_autoptr(GPtrArray) found = g_ptr_array_new();
    const double most = (double)plan->predicted->peak_memory_bytes;
    const int64_t threads = request->plan.threads;

    add_search(searches, request, 0);
    if (!searches_run(searches, threads, "searches for the least memory", error))
        return false;
    const Plan *smallest = searches_at(searches, 0)->plan;
    if (smallest == NULL)
        return true;
    const double least = (double)smallest->predicted->peak_memory_bytes;
    /* Evenly by ratio, the least memory last. */
    for (int64_t i = 1; i <= n; i++)
        add_search(searches, request,
                   i == n ? (int64_t)least
                          : (int64_t)(most * pow(least / most, (double)i / (double)n)));
    bool is_done = searches_run(searches, threads, "points of the front", error);
    for (guint i = 1; i < searches->len; i++)
        if (searches_at(searches, i)->plan != NULL)
            g_ptr_array_add(found, searches_at(searches, i)->plan);
    set_alternatives(plan, found);
    return is_done;
}

/* --- what the framework's rules cost --- */

/* The search without rules looks at some ten times as many plans; beyond this it takes seconds, and
 * only --explain asks for it. */
#define MAX_RESTRICTED 500000

/*
 * (owned, nullable) The fastest plan that any program could run, where the framework of @plan, the
 * answer to @request, has rules; NULL: it has none, or nobody asks, or to know would take long, or
 * @error.
 */
static Plan *
find_any(const Request *request, const Plan *plan, bool is_explained, GError **error)
{
    g_autoptr(GPtrArray) searches = searches_new();

    if (request->plan.rules == NULL || !request->compares_rules ||
        request->plan.objective != PLAN_OBJECTIVE_TIME ||
        (!is_explained && plan->search.considered > MAX_RESTRICTED))
        return NULL;
    Request *changed = request_copy(request);
    changed->plan.rules = NULL;
    changed->plan.slices_mode = request->any_slices;
    changed->plan.top = 0;
    changed->plan.skips_bound = true;
    changed->plan.near_tp = plan->degrees.tp;
    changed->plan.near_pp = plan->degrees.pp;
    searches_add(searches, changed, 1);
    if (!searches_run(searches, request->plan.threads, "search of any schedule", error))
        return NULL;
    const Plan *found = searches_at(searches, 0)->plan;
    return found == NULL ? NULL : plan_copy(found);
}

/* What the rules of @plan's framework cost against @any. */
static void
print_any(const Plan *any, const Plan *plan)
{
    g_assert(any->predicted != NULL && plan->predicted != NULL); /* a search predicts its plans */
    const double fraction =
        (double)plan->predicted->iteration_ns / (double)any->predicted->iteration_ns - 1.0;

    output_printf("any schedule: %s",
                  output_seconds(units_s_from_ns(any->predicted->iteration_ns)).text);
    if (fraction > 0.0)
        output_printf(" (%s, zero %d, recompute %s)", any->schedule, any->zero_stage,
                      plan_recompute_name(any));
    output_printf("; %s: %s", plan_framework(plan->conventions.framework)->name,
                  output_seconds(units_s_from_ns(plan->predicted->iteration_ns)).text);
    output_printf(fraction > 0.0 ? ", %s more\n" : "\n", output_percent(fraction).text);
}

static void
write_any(JsonWriter *writer, const Plan *any)
{
    json_write_object(writer, "any_schedule");
    json_write_double(writer, "iteration_s", units_s_from_ns(any->predicted->iteration_ns));
    json_write_string(writer, "schedule", any->schedule);
    json_write_int64(writer, "zero_stage", any->zero_stage);
    json_write_string(writer, "recompute", plan_recompute_name(any));
    plan_write_degrees(writer, &any->degrees);
    json_write_object_end(writer);
}

static void
print_search(const Plan *plan)
{
    if (plan->lower_bound_s > 0)
        output_printf("no plan of this space is faster than %s: at most %s to gain\n",
                      output_seconds(plan->lower_bound_s).text,
                      output_percent(plan->optimality_gap_fraction).text);
    output_printf("searched " INT ": " INT " pruned by bounds, " INT " infeasible, " INT
                  " simulated\n",
                  plan->search.considered, plan->search.pruned, plan->search.infeasible,
                  plan->search.simulated);
}

/* --- what was measured --- */

/* Whether rows of @profile time layers split over @tp. */
static bool
is_tp_measured(const Profile *profile, int64_t tp)
{
    for (guint i = 0; i < profile->measurements->len; i++) {
        const ProfileMeasurement *row =
            &g_array_index(profile->measurements, ProfileMeasurement, i);

        if (row->op == PROFILE_OP_LAYER && row->tp == tp)
            return true;
    }
    return false;
}

/*
 * Where the layers of @request's model were measured, but not at the tensor-parallel degree of @plan, so
 * that its times are modelled: replaces it by the fastest plan at a degree that was measured, which
 * @request then fixes, and tells so on stderr.  Modelled and measured times do not compare: of a busy
 * or slow machine only the measured ones know.  Left as it is where the degree was asked for, or no
 * measured degree has a plan.
 */
static void
prefer_measured(Request *request, Plan **plan, GError **error)
{
    const PlanDegrees degrees = (*plan)->degrees;
    const double modelled_s = units_s_from_ns((*plan)->predicted->iteration_ns);
    g_autoptr(GPtrArray) searches = searches_new();
    const Plan *best = NULL;

    if (!profile_matches(request->profile, request->arch) || request->plan.tp > 0 ||
        is_tp_measured(request->profile, degrees.tp))
        return;
    for (int64_t tp = 1; tp <= plan_n_devices(*plan); tp++) {
        if (!is_tp_measured(request->profile, tp))
            continue;
        Request *changed = request_copy(request);
        changed->plan.tp = tp;
        changed->plan.is_terse = true;
        searches_add(searches, changed, 1);
    }
    if (searches->len == 0 || !searches_run(searches, request->plan.threads, "measured", error))
        return;
    for (guint i = 0; i < searches->len; i++) {
        const Plan *found = searches_at(searches, i)->plan;

        if (found != NULL &&
            (best == NULL || found->predicted->iteration_ns < best->predicted->iteration_ns))
            best = found;
    }
    if (best == NULL)
        return;
    plan_free(*plan);
    *plan = plan_copy(best);
    request->plan.tp = best->degrees.tp;
    g_autofree char *split = describe_split(&degrees);
    output_note("note: at tp " INT
                " no layer was measured; of modelled times the fastest plan is %s, "
                "predicted to take %s: --tp " INT " gives it, degas profile --tp " INT "," INT
                " measures it",
                degrees.tp, split, output_seconds(modelled_s).text, degrees.tp, request->plan.tp,
                degrees.tp);
}

/* Tells on stderr that there are more ranks than the profile, of @cluster, has devices. */
static void
note_ranks(const Plan *plan, const char *cluster)
{
    g_autoptr(Profile) profile = profile_load(cluster, NULL);
    const int64_t has = profile == NULL ? 0 : model_cluster_n_devices(profile->cluster);

    if (profile != NULL && profile->measurements->len > 0 && plan_n_devices(plan) > has)
        output_note(
            "note: %s was measured on " INT " device%s; " INT
            " are planned as if there were more such nodes, and would share them if run here",
            cluster, has, has == 1 ? "" : "s", plan_n_devices(plan));
}

/* --- whole nodes --- */

/*
 * Where the devices of @plan, the fastest for @request, fill no whole nodes, and a plan that leaves
 * the rest idle is faster, tells so on stderr: 63 devices divide as a pipeline of 63 ranks, or 9 of
 * 7, and 56 as most jobs like it.
 */
static void
note_whole_nodes(const Request *request, const Plan *plan, GError **error)
{
    const GArray *nodes = request->profile->cluster->nodes;
    const int64_t n = plan_n_devices(plan), node = g_array_index(nodes, ModelNodes, 0).n_devices;
    const int64_t n_whole = n - n % node;
    g_autoptr(GPtrArray) searches = searches_new();

    if (request->profile->cluster->devices->len > 1 || n_whole == n || n_whole == 0 ||
        request->plan.objective != PLAN_OBJECTIVE_TIME)
        return;
    Request *changed = request_copy(request);
    request_resize(changed, n_whole);
    changed->plan.n_devices = n_whole;
    changed->plan.beside = request->plan.memo;
    changed->plan.memo = NULL;
    changed->plan.top = 0;
    changed->plan.skips_bound = true;
    searches_add(searches, changed, 1);
    if (!searches_run(searches, request->plan.threads, "search on whole nodes", error))
        return;
    const Plan *found = searches_at(searches, 0)->plan;
    if (found == NULL || found->predicted->iteration_ns >= plan->predicted->iteration_ns)
        return;
    output_note("note: with " INT " of the " INT " devices idle, on " INT
                " whole node%s, an iteration "
                "takes %s, %s less: --gpus " INT,
                n - n_whole, n, n_whole / node, n_whole == node ? "" : "s",
                output_seconds(units_s_from_ns(found->predicted->iteration_ns)).text,
                output_percent(1.0 - (double)found->predicted->iteration_ns /
                                         (double)plan->predicted->iteration_ns)
                    .text,
                n_whole);
}

/* --- how right it is --- */

/* --fit-probability: lowers the memory limit so that so many of the measured peaks would have kept
 * the device's. */
static bool
set_fit_probability(Request *request, Options *options, int64_t *limit_bytes, GError **error)
{
    const double share = options_quantity(options, "fit-probability", UNITS_KIND_FRACTION, NAN);
    const GArray *devices = request->profile->cluster->devices;
    g_auto(Accuracy) memory = {0};

    if (!options_has(options, "fit-probability"))
        return true;
    if (!(share > 0 && share <= 1))
        options_fail(options, "fit-probability", "expected a share above 0 and at most 1");
    if (devices->len > 1 && request->plan.memory_limit_bytes == 0)
        options_fail(options, "fit-probability",
                     "several kinds of device: give --memory-limit, too");
    if (!options_finish(options, error))
        return false;
    const ModelDevice *device = &g_array_index(devices, ModelDevice, 0);
    const int64_t limit = request->plan.memory_limit_bytes > 0 ? request->plan.memory_limit_bytes
                                                               : device->memory_bytes;
    if (!accuracy_find(VALIDATION_MEMORY, plan_framework(request->plan.conventions.framework)->name,
                       device->name, true, &memory, error))
        return false;
    if (memory.n == 0)
        return cmd_fail(error, CMD_ERROR_NO, "--fit-probability: no measured peak is known");
    *limit_bytes = limit;
    request->plan.memory_limit_bytes =
        (int64_t)((double)limit / MAX(1.0, accuracy_ratio(&memory, share)));
    return true;
}

/* What is said of a plan besides; all (borrowed). */
typedef struct {
    const Plan *any;                /* (nullable) as of find_any() */
    const Explanation *explanation; /* (nullable) */
    const Sweep *sweep;             /* (nullable) the sizes of which the plan is the answer */
    int64_t limit_bytes;            /* as of error_bar_fit() */
} Beside;

static void
print_for_people(const Job *job, const ErrorBar *bar, double fit_fraction, const Beside *beside)
{
    const Plan *plan = job->plan;
    g_autoptr(GPtrArray) plans = g_ptr_array_new();

    g_ptr_array_add(plans, (void *)plan);
    for (guint i = 0; plan->alternatives != NULL && i < plan->alternatives->len; i++)
        g_ptr_array_add(plans, g_ptr_array_index(plan->alternatives, i));
    if (beside->sweep != NULL) {
        describe_sweep(beside->sweep);
        output_text("\n");
    }
    describe_job(job);
    output_text("\n");
    describe_plans((const Plan *const *)plans->pdata, plans->len);
    output_text("\n");
    describe_stages(plan);
    describe_devices(job);
    if (plan->predicted != NULL)
        describe_report(plan->predicted, plan, job->profile->cluster->currency, fit_fraction, 8);
    output_text("\n");
    describe_utilisation(job);
    error_bar_print(bar, fit_fraction);
    print_search(plan);
    if (beside->any != NULL)
        print_any(beside->any, plan);
}

/* The plan simulated, and what was printed of it (output_keep()), on one page. */
static bool
write_page(const Job *job, Options *options, GError **error)
{
    static const char *const products[] = {"html", NULL};
    const Report *report = job->plan->predicted;
    /* The devices' own is not all usable: one that is was asked for. */
    const bool is_asked =
        report != NULL && report->memory_usable_bytes == report->memory_limit_bytes;
    const JobOptions how = {.memory_limit_bytes = is_asked ? report->memory_limit_bytes : 0,
                            .want_trace = true};
    g_autofree char *footer = options_command_line(options, "plan", products);
    g_autofree char *title = html_title(job);
    g_autoptr(HtmlPage) page = page_new(title);
    g_auto(JobSimulation) simulation = {0};

    if (!job_simulate(job, &how, &simulation, error))
        return false;
    html_add_iteration(page, job, simulation.result.report, simulation.result.trace);
    page_heading(page, "The plans, and why this one", NULL);
    page_kept(page);
    return page_write(page, footer, options_string(options, "html", NULL), error);
}

/* The plan as a file, on stdout, in words. */
static bool
write_product(const Job *job, const Beside *beside, Options *options, GError **error)
{
    const char *path = options_string(options, "output", NULL);
    const bool json = options_has(options, "json"), is_page = options_has(options, "html");
    const bool is_silent = json || g_strcmp0(path, "-") == 0 || page_takes_stdout(options);
    const Report *report = job->plan->predicted;
    g_auto(ErrorBar) bar = {0};

    if (!error_bar_find(job, report, &bar, error))
        return false;
    const double fit_fraction = error_bar_fit(&bar, report, beside->limit_bytes);
    if (json || path != NULL) {
        g_autoptr(JsonWriter) writer = job_write_open(job);
        size_t n_bytes;

        error_bar_write(writer, &bar, fit_fraction);
        if (beside->any != NULL)
            write_any(writer, beside->any);
        if (beside->explanation != NULL)
            explain_write(writer, beside->explanation);
        json_write_object_end(writer);
        g_autofree char *text = json_writer_steal(writer, &n_bytes);
        if (path != NULL && !file_write(path, text, n_bytes, error))
            return false;
        if (json)
            output_text(text);
        if (is_silent && !is_page)
            return true;
    }
    if (is_page)
        output_keep(is_silent);
    print_for_people(job, &bar, fit_fraction, beside);
    if (beside->explanation != NULL)
        explain_print(beside->explanation);
    if (is_page && !write_page(job, options, error))
        return false;
    if (path != NULL && !is_silent) {
        g_autofree char *word = options_word(path);

        output_printf("\nwritten to %s; next: degas simulate %s\n", path, word);
    }
    return true;
}

/* The whole error in place of what there may be; always -1. */
static int
fail_interrupted(const char *what, GError **error)
{
    g_clear_error(error);
    g_set_error(error, CMD_ERROR, CMD_ERROR_INTERRUPTED, "interrupted: %s", what);
    return -1;
}

/* The best plan that is none of the answer's alternatives: asked for to be explained. */
static Plan *
take_runner_up(Plan *plan, int64_t top)
{
    if (plan->alternatives == NULL || plan->alternatives->len <= top)
        return NULL;
    Plan *last = g_ptr_array_steal_index(plan->alternatives, plan->alternatives->len - 1);
    if (plan->alternatives->len == 0)
        g_clear_pointer(&plan->alternatives, g_ptr_array_unref);
    return last;
}

/* Explains @plan if asked to; what is interrupted is kept. */
static Explanation *
explain(const Options *options, const Request *request, const Plan *plan, const Plan *spare,
        GError **interrupted)
{
    if (!options_has(options, "explain"))
        return NULL;
    const Plan *runner_up = plan->alternatives != NULL ? plan->alternatives->pdata[0] : spare;
    Explanation *explanation = explanation_new(request, plan, runner_up);
    explanation_run(explanation, request->plan.threads, interrupted);
    return explanation;
}

/* The front begins with the fastest plan, and takes the place of the next best ones. */
static bool
check_pareto(Options *options, const Request *request, int64_t *n, GError **error)
{
    *n = options_int64(options, "pareto", 1, 100, 0);
    if (*n > 0 && request->plan.top > 0)
        options_fail(options, "pareto", "does not go with --top");
    if (*n > 0 && request->plan.objective == PLAN_OBJECTIVE_MEMORY)
        options_fail(options, "pareto",
                     "does not go with --objective memory: the front begins with the fastest plan");
    return options_finish(options, error);
}

/* The plan of @request: that of the answer of @sizes, or searched now.  NULL with @error; where it
 * is stopped (@interrupted) the best so far. */
static Plan *
search(Request *request, Options *options, const Sizes *sizes, GError **interrupted, GError **error)
{
    g_autoptr(GPtrArray) searches = searches_new();
    Request *asked = request_copy(request);

    if (sizes->sweep != NULL && !options_has(options, "explain") &&
        !options_has(options, "fit-probability")) {
        request_free(asked);
        return plan_copy(searches_at(sizes->searches, sweep_answer(sizes->sweep)->search)->plan);
    }
    if (options_has(options, "explain"))
        asked->plan.top = MAX(asked->plan.top, 1);
    asked->plan.waits = true;
    searches_add(searches, asked, 1);
    searches_run(searches, request->plan.threads, "plans", interrupted);
    const Search *only = searches_at(searches, 0);
    if (only->plan != NULL || only->so_far != NULL)
        return plan_copy(only->plan != NULL ? only->plan : only->so_far);
    if (*interrupted != NULL)
        fail_interrupted("no plan was found yet", error);
    else
        g_propagate_error(error, g_error_copy(only->error));
    return NULL;
}

/* Several sizes: which cluster and number of devices is the answer.  Returns: (owned, nullable) the
 * request of that size; NULL with CMD_ERROR_NO or what failed.  @answer is what was planned. */
static Request *
choose_size(Options *options, Sizes *answer, GError **interrupted, GError **error)
{
    if (!sizes_run(answer, options, interrupted, error))
        return NULL;
    const SweepPoint *point = sweep_answer(answer->sweep);
    if (point != NULL)
        return request_copy(searches_at(answer->searches, point->search)->request);
    if (*interrupted != NULL) {
        fail_interrupted("no plan that makes it was found yet", error);
        return NULL;
    }
    describe_sweep(answer->sweep);
    cmd_fail(error, CMD_ERROR_NO, "no size that was planned makes it");
    return NULL;
}

static int
run(Options *options, GError **error)
{
    g_autoptr(GError) interrupted = NULL;
    g_auto(Sizes) sizes = {0};
    int64_t n_front = 0, limit_bytes = 0;

    if (!output_folder_check(options_string(options, "output", NULL), error) ||
        !page_check(options, error))
        return -1;
    g_autoptr(Request) request =
        sizes_are_asked(options)
            ? choose_size(options, &sizes, &interrupted, error)
            : request_load(options_argument(options, 0), options_argument(options, 1), options,
                           REQUEST_SEARCHED, error);
    if (request == NULL)
        return -1;
    if (!check_pareto(options, request, &n_front, error) ||
        !set_fit_probability(request, options, &limit_bytes, error))
        return -1;
    if (n_front == 0 && !options_has(options, "top"))
        request->plan.top = USUAL_TOP;
    const int64_t top = request->plan.top;
    /* Shared by all searches here. */
    g_autoptr(PlanMemo) memo = request->plan.memo = plan_memo_new();
    g_autoptr(Plan) plan = search(request, options, &sizes, &interrupted, error);
    const bool is_interrupted = interrupted != NULL;
    if (plan == NULL)
        return -1;
    if (!is_interrupted)
        prefer_measured(request, &plan, &interrupted);
    g_autoptr(Plan) spare = take_runner_up(plan, top);
    g_autoptr(Plan) any =
        is_interrupted ? NULL
                       : find_any(request, plan, options_has(options, "explain"), &interrupted);
    g_autoptr(Explanation) explanation =
        interrupted == NULL ? explain(options, request, plan, spare, &interrupted) : NULL;
    if (n_front > 0 && interrupted == NULL && !is_interrupted)
        find_front(request, plan, n_front, &interrupted);
    if (sizes.sweep == NULL && interrupted == NULL)
        note_whole_nodes(request, plan, &interrupted);
    if (sizes.sweep == NULL)
        note_ranks(plan, options_argument(options, 1));
    g_autoptr(Job) job = job_new(model_arch_copy(request->arch), profile_copy(request->profile),
                                 g_steal_pointer(&plan));
    const Beside beside = {any, explanation, sizes.sweep, limit_bytes};
    if (!write_product(job, &beside, options, error))
        return -1;
    if (is_interrupted)
        return fail_interrupted("this is the best plan so far", error);
    return interrupted != NULL
               ? fail_interrupted("the plan is written, what was asked besides is not complete",
                                  error)
               : 0;
}

const Command cmd_plan = {
    .name = "plan",
    .usage = "MODEL CLUSTER --global-batch N [options], or plan JOB.yaml [options]",
    .summary = "find the best split of a job: degrees, stages, slices, schedule",
    .details =
        "Options that are given are fixed; the search chooses the others.  MODEL: a built-in\n"
        "name, a degas model file, a Hugging Face config.json or a folder with one.  CLUSTER: a\n"
        "built-in name or a profile.\n"
        "\n"
        "  degas plan llama3-70b dgx-h100 --gpus 64 --global-batch 512 --seq-len 8192\n"
        "  degas plan gpt3-175b p3.16xlarge --gpus 384 --global-batch 2 --tp 8 --pp 48\n"
        "\n"
        "  degas plan llama3-8b dgx-h100,dgx-b200 --price 2.5,4 --global-batch 512 \\\n"
        "      --tokens 15T --within 60d --budget 2M\n"
        "\n"
        "Of several clusters (with commas, and their prices), and of as many devices as\n"
        "--within and --budget need, the cheapest plan that makes it is the answer.\n"
        "\n"
        "A --framework is planned for what it can run; what that costs is the last line.\n"
        "\n"
        "Exit status 1: no plan fits; stderr names the limit and what would fit.  Exit\n"
        "status 9: the search was interrupted (Ctrl-C); the best plan so far is written.\n",
    .options = {options_table, sizes_options, request_options, request_search_options},
    .headings = {"Output", "Several clusters, a deadline, a budget", "The job and its split",
                 "The search"},
    .min_arguments = 2,
    .max_arguments = 2,
    .common = true,
    .takes_job = true,
    .run = run,
};
