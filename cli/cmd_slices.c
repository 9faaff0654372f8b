/* degas slices: the token and batch slicing alone, from files of slice times. */
#include <math.h>
#include <string.h>

#include "cli/request/command.h"
#include "cli/request/output.h"
#include "cli/request/slice_costs.h"
#include "planner/slices/orders.h"
#include "planner/slices/stages.h"
#include "schedule/schedule.h"
#include "simulator/simulate.h"

/* (static) The one family for which there is a formula, and no simulation is needed. */
static const char *
fill_drain(void)
{
    return schedule_family_usual(1, true)->name;
}

static const char *const message_kinds[] = {"blocking", "overlapped", NULL};
static const char *const directions[] = {"together", "apart", NULL};

static const OptionInfo options_table[] = {
    {"costs", "FILE",
     "read measured times of slices: TeraPipe's JSON, or .npy (seconds); or one FILE for each "
     "stage, in order (required)",
     .common = true},
    {"stages", "K", "use K pipeline stages (required)", .common = true},
    {"batch", "B", "cut a batch of B sequences into groups (required)", .common = true},
    {"seq-len", "L", "cut sequences of L tokens (required)", .common = true},
    {"granularity", "G", "make slices multiples of G tokens; default: 8"},
    {"json", NULL, "print a degas-slices object", .common = true},
    {"output", "FILE", "write the JSON to FILE", .common = true},
    {NULL, NULL, NULL},
};

static const OptionInfo variants_table[] = {
    {"max-group", "N", "put at most N sequences into a group"},
    {"stage-factors", "LIST", "multiply the times of the K stages by these K numbers"},
    {"directions", "WHICH",
     "let directions pass through the pipeline: together (a slice's forward and backward are one "
     "time; default), apart (first all forwards, then all backwards; default with --backward-costs "
     "or --schedule)",
     .words = directions},
    {"backward-costs", "FILE",
     "read times of backwards, in the form of --costs, which then has those of forwards only"},
    {"message-latency", "TIME", "let a slice's message take TIME to begin; default: 0"},
    {"message-token-bytes", "SIZE", "let a message have SIZE for each of its tokens; default: 0"},
    {"bandwidth", "RATE", "send messages at this rate, e.g. 25GB/s"},
    {"messages", "HOW",
     "let messages be: blocking (a message is part of its slice's time, default), overlapped (it "
     "only delays the next stage)",
     .words = message_kinds},
    {"memory-limit", "SIZE",
     "let the slices of a stage have SIZE of memory; a batch that needs more runs in several "
     "rounds"},
    {"token-bytes", "SIZE", "let each token keep SIZE from forward to backward; default: 0"},
    {"workspace-token-bytes", "SIZE",
     "let each token of the running slice need SIZE besides; default: 0"},
    {"schedule", "NAME",
     "run the slices by SCHEDULE: terapipe (default), for which there is a formula, or gpipe, "
     "1f1b, seq1f1b, seq1f1b-interleaved, which are simulated"},
    {"vpp", "V", "give each stage V chunks, in interleaved schedules"},
    {NULL, NULL, NULL},
};

/* What the flags describe: the times of all stages, messages, memory. */
typedef struct {
    PlanSliceProblem problem; /* n_stages: of the chain */
    PlanSliceStage *stages;   /* (owned) [problem.n_stages] */
    bool stages_differ;
    int64_t n_ranks, n_chunks;
    const char *schedule;   /* (borrowed) */
    GPtrArray *grids;       /* (owned) all grids of times */
    int64_t *delay;         /* (owned, nullable) */
    int64_t n_approximated; /* times between measured ones */
} Inputs;

static void
inputs_clear(Inputs *inputs)
{
    g_clear_pointer(&inputs->grids, g_ptr_array_unref);
    g_free(inputs->stages);
    g_free(inputs->delay);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Inputs, inputs_clear)

/* Whether the answer is that of all forwards and then all backwards. */
static bool
is_fill_drain(const Inputs *inputs)
{
    return strcmp(inputs->schedule, fill_drain()) == 0;
}

/* --- flags --- */

/* Flags that are needed only until the files are read. */
typedef struct {
    char **costs, **backward_costs; /* (owned; the second nullable) one or n_ranks */
    GArray *factors;                /* (owned, nullable) of double */
    bool apart, overlapped;
    double latency_s, bytes_per_s, token_bytes; /* of messages */
} Flags;

static void
flags_clear(Flags *flags)
{
    g_strfreev(flags->costs);
    g_strfreev(flags->backward_costs);
    g_clear_pointer(&flags->factors, g_array_unref);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Flags, flags_clear)

static void
read_factors(Options *options, Flags *flags, int64_t n)
{
    g_auto(GStrv) words = options_words(options, "stage-factors");

    if (words == NULL)
        return;
    flags->factors = g_array_new(FALSE, FALSE, sizeof(double));
    for (size_t i = 0; words[i] != NULL; i++) {
        double factor = 0;
        if (!units_parse(words[i], UNITS_KIND_NUMBER, &factor, NULL) ||
            !(factor > 0 && factor <= 1e6))
            options_fail(options, "stage-factors", "expected numbers above 0, got \"%s\"",
                         words[i]);
        g_array_append_val(flags->factors, factor);
    }
    if (flags->factors->len != (guint)n)
        options_fail(options, "stage-factors", "expected " INT " factors, got %u", n,
                     flags->factors->len);
}

static char **
read_files(Options *options, const char *name, int64_t n)
{
    char **files = options_words(options, name);
    const guint n_files = files == NULL ? 0 : g_strv_length(files);

    if (n_files > 1 && n_files != (guint)n)
        options_fail(options, name, "expected one file or one per stage, got %u", n_files);
    return files;
}

static void
read_messages(Options *options, Flags *flags)
{
    flags->latency_s = options_quantity(options, "message-latency", UNITS_KIND_S, 0);
    flags->token_bytes = (double)options_bytes(options, "message-token-bytes", 0);
    flags->bytes_per_s = options_quantity(options, "bandwidth", UNITS_KIND_BYTES_PER_S, INFINITY);
    flags->overlapped = options_choice(options, "messages", 0) == 1;
    if (!(flags->bytes_per_s > 0))
        options_fail(options, "bandwidth", "must be above 0");
    if (flags->token_bytes > 0 && isinf(flags->bytes_per_s))
        options_fail(options, "bandwidth", "is needed with --message-token-bytes");
}

static void
read_memory(Options *options, PlanSliceProblem *problem)
{
    problem->limit_bytes = options_bytes(options, "memory-limit", 0);
    problem->token_bytes = options_bytes(options, "token-bytes", 0);
    problem->workspace_token_bytes = options_bytes(options, "workspace-token-bytes", 0);
    if (options_has(options, "memory-limit") && problem->limit_bytes == 0)
        options_fail(options, "memory-limit", "must be above 0");
    if (problem->limit_bytes > 0 && problem->token_bytes + problem->workspace_token_bytes == 0)
        options_fail(options, "token-bytes", "is needed with --memory-limit");
    if (problem->limit_bytes == 0 && problem->token_bytes + problem->workspace_token_bytes > 0)
        options_fail(options, "memory-limit", "is needed with --token-bytes");
}

/* The schedule and its chunks; sets stages of the chain. */
static void
read_schedule(Options *options, Inputs *inputs)
{
    const char *name = options_string(options, "schedule", fill_drain());
    GError *unknown = NULL;
    const ScheduleFamily *family = schedule_family_find(name, &unknown);

    inputs->schedule = name;
    inputs->n_chunks =
        options_int64(options, "vpp", 1, 64, family == NULL ? 1 : family->min_chunks);
    if (family == NULL) {
        options_fail(options, "schedule", "%s", unknown->message);
        g_error_free(unknown);
    } else if (!family->slices) {
        options_fail(options, "schedule", "%s does not cut sequences", name);
    } else if (inputs->n_chunks < family->min_chunks || inputs->n_chunks > family->max_chunks) {
        options_fail(options, "vpp", "schedule %s has %d to %d chunks", name, family->min_chunks,
                     family->max_chunks);
    }
    inputs->problem.n_stages = inputs->n_ranks * inputs->n_chunks;
}

static bool
read_flags(Options *options, Inputs *inputs, Flags *flags, GError **error)
{
    static const char *const required[] = {"costs", "stages", "batch", "seq-len"};
    PlanSliceCosts *costs = &inputs->problem.costs;
    const int64_t seq_len = options_int64(options, "seq-len", 1, 1 << 30, 1);

    inputs->n_ranks = options_int64(options, "stages", 1, 1000000, 1);
    costs->batch = options_int64(options, "batch", 1, 1000000, 1);
    costs->granularity = options_int64(options, "granularity", 1, 1 << 30, 8);
    costs->n_cells = seq_len / costs->granularity;
    for (size_t i = 0; i < G_N_ELEMENTS(required); i++)
        if (!options_has(options, required[i]))
            options_fail(options, required[i], "is needed");
    if (seq_len % costs->granularity != 0)
        options_fail(options, "seq-len", "expected a multiple of --granularity " INT ", got " INT,
                     costs->granularity, seq_len);
    inputs->problem.max_group = options_int64(options, "max-group", 1, 1000000, 0);
    read_schedule(options, inputs);
    flags->costs = read_files(options, "costs", inputs->n_ranks);
    flags->backward_costs = read_files(options, "backward-costs", inputs->n_ranks);
    read_factors(options, flags, inputs->n_ranks);
    read_messages(options, flags);
    read_memory(options, &inputs->problem);
    const bool must = flags->backward_costs != NULL || !is_fill_drain(inputs);
    flags->apart = options_choice(options, "directions", must) == 1;
    if (must && !flags->apart)
        options_fail(options, "directions", "must be apart with --backward-costs or --schedule");
    return options_finish(options, error);
}

/* --- files --- */

/* The grid of a file, which is read once; NULL on an error, and for MESSAGE where there is none. */
typedef struct {
    Inputs *inputs;
    GHashTable *known; /* (owned) part and path -> grid (borrowed) */
} Loader;

static int64_t *
load(Loader *loader, const char *path, SliceCostsPart part, GError **error)
{
    g_autofree char *name = g_strdup_printf("%d:%s", (int)part, path);
    int64_t *grid = g_hash_table_lookup(loader->known, name);
    int64_t n_approximated = 0;

    if (grid != NULL)
        return grid;
    grid = slice_costs_load(path, part, &loader->inputs->problem.costs, &n_approximated, error);
    if (grid == NULL)
        return NULL;
    loader->inputs->n_approximated += part == SLICE_COSTS_MESSAGE ? 0 : n_approximated;
    g_ptr_array_add(loader->inputs->grids, grid);
    g_hash_table_insert(loader->known, g_steal_pointer(&name), grid);
    return grid;
}

static const char *
file_of(char *const *files, int64_t rank)
{
    return files[files[1] == NULL ? 0 : rank];
}

static bool
load_stages(Loader *loader, const Flags *flags, GError **error)
{
    Inputs *inputs = loader->inputs;

    inputs->stages = g_new0(PlanSliceStage, inputs->problem.n_stages);
    for (int64_t k = 0; k < inputs->problem.n_stages; k++) {
        const int64_t rank = k % inputs->n_ranks;
        const char *path = file_of(flags->costs, rank);
        PlanSliceStage *stage = &inputs->stages[k];
        const bool split = flags->apart && flags->backward_costs == NULL;
        stage->forward = load(loader, path, split ? SLICE_COSTS_FORWARD : SLICE_COSTS_BOTH, error);
        if (stage->forward == NULL)
            return false;
        if (flags->backward_costs != NULL)
            path = file_of(flags->backward_costs, rank);
        if (flags->apart) {
            stage->backward =
                load(loader, path, split ? SLICE_COSTS_BACKWARD : SLICE_COSTS_BOTH, error);
            if (stage->backward == NULL)
                return false;
        }
        stage->factor =
            (flags->factors == NULL ? 1.0 : g_array_index(flags->factors, double, rank)) /
            (double)inputs->n_chunks;
        inputs->stages_differ = inputs->stages_differ || stage->factor != 1.0 ||
                                stage->forward != inputs->stages[0].forward ||
                                stage->backward != inputs->stages[0].backward;
    }
    inputs->problem.costs.cost = inputs->stages[0].forward;
    inputs->problem.backward = inputs->stages[0].backward;
    return true;
}

/* Messages of each [b][s], as PlanSliceProblem.delay; the measured ones are of the first file. */
static bool
load_delay(Loader *loader, const Flags *flags, GError **error)
{
    Inputs *inputs = loader->inputs;
    const PlanSliceCosts *costs = &inputs->problem.costs;
    const int64_t side = costs->n_cells + 1, n = (costs->batch + 1) * side;
    GError *failure = NULL;
    const int64_t *measured = load(loader, flags->costs[0], SLICE_COSTS_MESSAGE, &failure);
    bool any = false;

    if (failure != NULL) {
        g_propagate_error(error, failure);
        return false;
    }
    if (inputs->n_ranks == 1)
        return true;
    inputs->delay = g_new0(int64_t, n);
    for (int64_t i = side; i < n; i++) {
        const int64_t n_tokens = i / side * (i % side) * costs->granularity;
        const double ps =
            rint((flags->latency_s + (double)n_tokens * flags->token_bytes / flags->bytes_per_s) *
                 SLICE_COSTS_PER_S);
        if (i % side == 0)
            continue;
        inputs->delay[i] = ps < (double)PLAN_SLICE_MAX_SUM ? (int64_t)ps : PLAN_SLICE_INFINITE;
        if (measured != NULL && measured[i * side] <= PLAN_SLICE_MAX_SUM &&
            inputs->delay[i] <= PLAN_SLICE_MAX_SUM)
            inputs->delay[i] += measured[i * side];
        any = any || inputs->delay[i] > 0;
    }
    if (!any)
        g_clear_pointer(&inputs->delay, g_free);
    return true;
}

/* Blocking messages are part of every slice, one each way. */
static void
add_messages(Inputs *inputs, int64_t n_directions, int64_t *grid)
{
    const PlanSliceCosts *costs = &inputs->problem.costs;
    const int64_t n = costs->n_cells, side = n + 1;

    for (int64_t row = side; row < (costs->batch + 1) * side; row++)
        for (int64_t c = 0; row % side > 0 && c <= n - row % side; c++) {
            int64_t *t = &grid[row * side + c];
            const int64_t d = inputs->delay[row];
            *t = *t > PLAN_SLICE_MAX_SUM || d > PLAN_SLICE_MAX_SUM ? PLAN_SLICE_INFINITE
                                                                   : *t + n_directions * d;
        }
}

/* Sets problem.delay, or adds the messages to the times: all grids so far. */
static void
use_delay(Inputs *inputs, const Flags *flags, guint n_grids)
{
    const int64_t n = (inputs->problem.costs.batch + 1) * (inputs->problem.costs.n_cells + 1);
    const int64_t n_directions = flags->apart ? 1 : 2;

    if (inputs->delay == NULL)
        return;
    for (guint i = 0; i < n_grids && !flags->overlapped; i++)
        add_messages(inputs, n_directions, inputs->grids->pdata[i]);
    for (int64_t i = 0; i < n && flags->overlapped; i++)
        if (inputs->delay[i] <= PLAN_SLICE_MAX_SUM)
            inputs->delay[i] *= n_directions;
    inputs->problem.delay = flags->overlapped ? inputs->delay : NULL;
}

/* Reads flags and files into @inputs, which the caller clears, whatever is returned. */
static bool
load_inputs(Options *options, Inputs *inputs, GError **error)
{
    g_autoptr(GHashTable) known = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    g_auto(Flags) flags = {0};
    Loader loader = {inputs, known};

    inputs->grids = g_ptr_array_new_with_free_func(g_free);
    if (!read_flags(options, inputs, &flags, error) || !load_stages(&loader, &flags, error))
        return false;
    const guint n_grids = inputs->grids->len;
    if (!load_delay(&loader, &flags, error))
        return false;
    use_delay(inputs, &flags, n_grids);
    return true;
}

/* --- the answer --- */

static double
seconds(int64_t ps)
{
    return (double)ps / SLICE_COSTS_PER_S;
}

static void
write_groups(JsonWriter *writer, const PlanSliceResult *result, bool rounds)
{
    json_write_array(writer, "groups");
    for (guint i = 0; i < result->groups->len; i++) {
        const PlanSliceGroup *group = g_ptr_array_index(result->groups, i);

        json_write_object_inline(writer, NULL);
        json_write_int64(writer, "batch", group->batch);
        json_write_array(writer, "slices");
        for (guint j = 0; j < group->slices->len; j++)
            json_write_int64(writer, NULL, g_array_index(group->slices, int64_t, j));
        json_write_array_end(writer);
        if (rounds)
            json_write_int64(writer, "round", group->round);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
}

static double
gap(const PlanSliceResult *result)
{
    return result->latency == 0 ? 0.0 : 1.0 - (double)result->lower_bound / (double)result->latency;
}

static JsonWriter *
to_json(const PlanSliceResult *result, const Inputs *inputs)
{
    JsonWriter *writer = output_json_new("degas-slices");
    const bool rounds = is_fill_drain(inputs) && inputs->problem.limit_bytes > 0;

    json_write_double(writer, "latency_s", seconds(result->latency));
    json_write_double(writer, "max_slice_s", seconds(result->max_slice));
    if (inputs->problem.backward != NULL)
        json_write_double(writer, "max_backward_slice_s", seconds(result->max_backward));
    if (!is_fill_drain(inputs))
        json_write_string(writer, "schedule", inputs->schedule);
    if (rounds)
        json_write_int64(writer, "rounds", result->n_rounds);
    write_groups(writer, result, rounds);
    json_write_bool(writer, "optimal", result->lower_bound == result->latency);
    json_write_double(writer, "lower_bound_s", seconds(result->lower_bound));
    json_write_double(writer, "optimality_gap_fraction", gap(result));
    json_write_int64(writer, "dp_solves", result->n_solves);
    json_write_object_end(writer);
    return writer;
}

static void
print_for_people(const PlanSliceResult *result, const Inputs *inputs)
{
    g_autoptr(OutputTable) table = output_table_new("sequences|slices|<tokens of each");
    const char *what = is_fill_drain(inputs) ? "solves" : "simulations";

    for (guint i = 0; i < result->groups->len; i++) {
        const PlanSliceGroup *group = g_ptr_array_index(result->groups, i);

        output_table_row(table, output_int64(group->batch).text,
                         output_int64(group->slices->len).text, NULL);
        output_table_take(table, output_int64s(group->slices, 16));
    }
    output_printf("latency %s, longest slice %s", output_seconds(seconds(result->latency)).text,
                  output_seconds(seconds(result->max_slice)).text);
    if (inputs->problem.backward != NULL)
        output_printf(" forward, %s backward", output_seconds(seconds(result->max_backward)).text);
    if (result->n_rounds > 1)
        output_printf(", " INT " rounds", result->n_rounds);
    if (result->lower_bound == result->latency)
        output_printf(": proven optimal in " INT " %s\n", result->n_solves, what);
    else
        output_printf(": at most %s above the optimum, " INT " %s\n",
                      output_percent(gap(result)).text, result->n_solves, what);
    if (inputs->n_approximated > 0)
        output_printf(INT " times were interpolated between measured ones\n",
                      inputs->n_approximated);
    output_table_print(table, 0);
}

static PlanSliceResult *
solve(const Inputs *inputs, GError **error)
{
    const PlanSliceOrder order = {
        .problem = &inputs->problem,
        .stages = inputs->stages,
        .n_ranks = inputs->n_ranks,
        .schedule = inputs->schedule,
        .simulate = sim_run_report,
    };

    if (!is_fill_drain(inputs))
        return plan_slice_solve_order(&order, error);
    if (inputs->stages_differ)
        return plan_slice_solve_stages(&inputs->problem, inputs->stages, error);
    return plan_slice_solve_problem(&inputs->problem, error);
}

static int
run(Options *options, GError **error)
{
    g_auto(Inputs) inputs = {0};

    if (!load_inputs(options, &inputs, error))
        return -1;
    g_autoptr(PlanSliceResult) result = solve(&inputs, error);
    if (result == NULL) {
        g_prefix_error(error, "%s: ", options_string(options, "costs", NULL));
        return -1;
    }
    if (options_has(options, "json") || options_has(options, "output"))
        return output_json_both(to_json(result, &inputs), options_string(options, "output", NULL),
                                options_has(options, "json"), error)
                   ? 0
                   : -1;
    print_for_people(result, &inputs);
    return 0;
}

const Command cmd_slices = {
    .name = "slices",
    .usage = "--costs FILE --stages K --batch B --seq-len L [--granularity 8] [--json]",
    .summary = "cut a batch into groups and sequences into slices, optimally",
    .details =
        "Minimises sum t + (K-1) max t over every way to cut B sequences into groups\n"
        "and each group's L tokens into slices (TeraPipe, arXiv:2102.07988).\n"
        "\n"
        "t is the time of a slice, K the number of stages.  With --directions apart the sum\n"
        "has such a term for forward and one for backward.  With --memory-limit the batch\n"
        "runs in rounds that fit, and their times add up.  For stages that differ, for 1F1B\n"
        "and for interleaved schedules there is no formula: simulations find the slices, and\n"
        "a lower bound is printed beside the answer.\n",
    .options = {options_table, variants_table},
    .headings = {"Options", "Variants"},
    .run = run,
};
