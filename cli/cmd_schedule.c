/* degas schedule: the ops of a schedule family, as a picture or as a file. */

#include "base/file.h"
#include "base/units.h"
#include "cli/request/command.h"
#include "cli/draw/describe.h"
#include "cli/draw/plot.h"
#include "cli/request/job.h"
#include "cli/request/op_times.h"
#include "cli/request/output.h"
#include "profiles/workload/schedule_times.h"

static const OptionInfo options_table[] = {
    {"pp", "P", "use P pipeline ranks (required)"},
    {"vpp", "V", "give each rank V chunks; default: the fewest that the schedule has"},
    {"microbatches", "M", "run M micro-batches (required)"},
    {"slices", "S", "cut each sequence into S slices; default: 1"},
    {"group", "G",
     "take G micro-batches through one chunk before the rank's next chunk, in interleaved "
     "schedules; default: pp"},
    {"in-flight", "N",
     "let a rank have at most N micro-batches in flight, in zb-auto (default: 2 pp) and hanayo"},
    OP_TIMES_OPTION,
    {"times-of", "PLAN.json",
     "take the op times of this plan: those of a micro-batch on one of its pipeline ranks, the "
     "mean over ranks; --pp and --microbatches are then the plan's unless given"},
    {"json", NULL, "print the degas-schedule file on stdout"},
    {"output", "FILE", "write the degas-schedule file to FILE"},
    {NULL, NULL, NULL},
};

/* What the options leave open: the op times, and of a plan its shape. */
typedef struct {
    OpTimes *times;              /* (owned) */
    int64_t pp, n_micro_batches; /* 0: not known */
} Setting;

static void
setting_clear(Setting *setting)
{
    op_times_free(g_steal_pointer(&setting->times));
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Setting, setting_clear)

static bool
read_setting(Setting *setting, Options *options, GError **error)
{
    const char *path = options_string(options, "times-of", NULL);

    setting->times = op_times_read(options);
    if (path == NULL)
        return true;
    if (options_has(options, "op-times"))
        options_fail(options, "times-of", "--op-times gives them, too");
    if (!options_finish(options, error))
        return false;
    g_autoptr(Job) job = job_load(path, error);
    if (job == NULL)
        return false;
    g_autoptr(Workload) workload = workload_new(job->arch, job->profile, job->plan, 0, error);
    if (workload == NULL)
        return false;
    op_times_of_workload(setting->times, workload);
    setting->pp = job->plan->degrees.pp;
    setting->n_micro_batches = job->plan->n_micro_batches;
    return true;
}

/* A family that reads times gets those of the ops, by stage. */
static Schedule *
build_for_times(const ScheduleFamily *family, ScheduleShape shape, const OpTimes *times,
                int64_t limit_micro_batches, GError **error)
{
    const Schedule placed = {
        .n_ranks = (int32_t)shape.n_ranks,
        .n_chunks = (int32_t)shape.n_chunks,
        .n_slices = (int32_t)shape.n_slices,
        .placement = family->placement,
    };
    g_auto(WorkloadScheduleTimes) stages = {0};

    if (!schedule_shape_check(family, &shape, error))
        return NULL;
    g_autoptr(Workload) workload = op_times_workload(times, &placed, error);
    if (workload == NULL)
        return NULL;
    workload_schedule_times_init(&stages, workload, family->placement);
    stages.times.limit_micro_batches = limit_micro_batches;
    shape.times = &stages.times;
    return schedule_new(family->name, &shape, error);
}

static Schedule *
build(Options *options, const char *name, const Setting *setting, GError **error)
{
    const ScheduleFamily *family = schedule_family_find(name, error);

    if (family == NULL)
        return NULL;
    if (!options_has(options, "pp") && setting->pp == 0)
        options_fail(options, "pp", "is missing; it is the number of pipeline ranks");
    if (!options_has(options, "microbatches") && setting->n_micro_batches == 0)
        options_fail(options, "microbatches", "is missing");
    const int64_t in_flight = options_int64(options, "in-flight", 1, INT32_MAX, 0);
    const ScheduleShape shape = {
        .n_ranks = options_int64(options, "pp", 1, SCHEDULE_MAX_RANKS, MAX(1, setting->pp)),
        .n_chunks = options_int64(options, "vpp", 1, SCHEDULE_MAX_CHUNKS, family->min_chunks),
        .n_micro_batches =
            options_int64(options, "microbatches", 1, INT32_MAX, MAX(1, setting->n_micro_batches)),
        .n_slices = options_int64(options, "slices", 1, SCHEDULE_MAX_SLICES, 1),
        .group = options_int64(options, "group", 1, INT32_MAX, 0),
    };
    if (!options_finish(options, error))
        return NULL;
    if (family->reads_times)
        return build_for_times(family, shape, setting->times, in_flight, error);
    return schedule_new(name, &shape, error);
}

/* Runs @schedule with @times and prints what it is. */
static bool
simulate(const Schedule *schedule, const Setting *setting, SimResult *result, GError **error)
{
    const SimOptions options = {.want_trace = true};
    g_autoptr(Workload) workload = op_times_workload(setting->times, schedule, error);

    if (workload == NULL || !sim_run(schedule, workload, &options, result, error))
        return false;
    describe_schedule(schedule, result->report, setting->pp == 0);
    return true;
}

/* Draws several schedules on one axis. */
static int
compare(Options *options, const Setting *setting, size_t n, GError **error)
{
    g_autoptr(GPtrArray) traces = g_ptr_array_new_with_free_func((GDestroyNotify)trace_free);
    PlotTrace panels[PLOT_MAX_TRACES];
    const PlotOptions how = {.columns = output_columns(),
                             .utf8 = output_is_utf8(),
                             .color = output_has_color("auto"),
                             .is_unitless = setting->pp == 0};

    op_times_of_a_rank(setting->times);
    for (size_t i = 0; i < n; i++) {
        g_autoptr(Schedule) schedule = build(options, options_argument(options, i), setting, error);
        g_auto(SimResult) result = {0};
        if (schedule == NULL || !simulate(schedule, setting, &result, error))
            return -1;
        g_ptr_array_add(traces, g_steal_pointer(&result.trace));
        panels[i] = (PlotTrace){traces->pdata[i], options_argument(options, i)};
    }
    return plot_timeline(panels, n, &how, "-", error) ? 0 : -1;
}

static int
run(Options *options, GError **error)
{
    g_auto(Setting) setting = {0};
    const char *path = options_string(options, "output", NULL);
    const bool json = options_has(options, "json");
    const size_t n = options_n_arguments(options);
    g_auto(SimResult) result = {0};

    if (!read_setting(&setting, options, error))
        return -1;
    if (n > 1 && (json || path != NULL))
        options_fail(options, json ? "json" : "output", "is of one schedule, not of %zu", n);
    if (n > 1)
        return compare(options, &setting, n, error);
    g_autoptr(Schedule) schedule = build(options, options_argument(options, 0), &setting, error);
    if (schedule == NULL)
        return -1;
    if (json || path != NULL) {
        size_t n_bytes;
        g_autofree char *text = schedule_to_json(schedule, &n_bytes);

        if (path != NULL && !file_write(path, text, n_bytes, error))
            return -1;
        if (json)
            output_text(text);
        return 0;
    }
    if (!simulate(schedule, &setting, &result, error))
        return -1;
    describe_timeline(result.trace, setting.pp == 0);
    return 0;
}

const Command cmd_schedule = {
    .name = "schedule",
    .usage = "SCHEDULE... --pp P --microbatches M [--vpp V] [--slices S] [--json]",
    .summary = "print pipeline schedules: their ops in order, their pictures",
    .details =
        "degas list schedules prints the names of all schedules.  Several are drawn on one axis;\n"
        "op times are then those of one of pp stages, which chunks share.\n"
        "\n"
        "  degas schedule 1f1b --pp 4 --microbatches 8\n"
        "  degas schedule interleaved --pp 4 --vpp 2 --microbatches 8 --json\n"
        "  degas schedule 1f1b zb-h1 zb-v --pp 4 --microbatches 8\n"
        "  degas schedule 1f1b zb-h1 zb-v --times-of plan.json\n"
        "  degas schedule zb-auto --pp 4 --microbatches 8 --op-times F=2,I=2,W=1\n",
    .options = {options_table},
    .min_arguments = 1,
    .max_arguments = PLOT_MAX_TRACES,
    .run = run,
};
