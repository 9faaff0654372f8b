/* degas schedule: the ops of a schedule family, as a picture or as a file. */
#include <string.h>

#include "base/file.h"
#include "base/units.h"
#include "cli/request/command.h"
#include "cli/draw/describe.h"
#include "cli/request/op_times.h"
#include "cli/request/output.h"
#include "profiles/workload/schedule_times.h"

static const OptionInfo options_table[] = {
    {"pp", "P", "pipeline ranks (required)", 0},
    {"vpp", "V", "chunks of a rank; default: the fewest that the schedule has", 0},
    {"microbatches", "M", "micro-batches (required)", 0},
    {"slices", "S", "slices of each sequence; default: 1", 0},
    {"group", "G",
     "interleaved schedules: how many micro-batches a rank takes through one chunk before its next "
     "chunk; default: pp",
     0},
    {"in-flight", "N",
     "zb-auto: the most micro-batches that a rank may have in flight; default: 2 pp", 0},
    OP_TIMES_OPTION,
    {"json", NULL, "print the degas-schedule file on stdout", 0},
    {"output", "FILE", "write the degas-schedule file to FILE", 'o'},
    {NULL, NULL, NULL, 0},
};

/* A family that searches gets the op times, by stage. */
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
build(Options *options, const OpTimes *times, GError **error)
{
    const char *name = options_argument(options, 0);
    const ScheduleFamily *family = schedule_family_find(name, error);

    if (family == NULL)
        return NULL;
    if (!options_has(options, "pp"))
        options_fail(options, "pp", "is missing; it is the number of pipeline ranks");
    if (!options_has(options, "microbatches"))
        options_fail(options, "microbatches", "is missing");
    const int64_t in_flight = options_int64(options, "in-flight", 1, INT32_MAX, 0);
    const ScheduleShape shape = {
        .n_ranks = options_int64(options, "pp", 1, SCHEDULE_MAX_RANKS, 1),
        .n_chunks = options_int64(options, "vpp", 1, SCHEDULE_MAX_CHUNKS, family->min_chunks),
        .n_micro_batches = options_int64(options, "microbatches", 1, INT32_MAX, 1),
        .n_slices = options_int64(options, "slices", 1, SCHEDULE_MAX_SLICES, 1),
        .group = options_int64(options, "group", 1, INT32_MAX, 0),
    };
    if (!options_finish(options, error))
        return NULL;
    if (family->searches)
        return build_for_times(family, shape, times, in_flight, error);
    return schedule_new(name, &shape, error);
}

static void
print_facts(const Schedule *schedule, const Report *report)
{
    const ScheduleFamily *family = schedule_family_find(schedule->name, NULL);
    g_autoptr(GArray) in_flight = g_array_new(FALSE, FALSE, sizeof(int64_t));

    for (guint r = 0; r < report->ranks->len; r++) {
        const int64_t n = g_array_index(report->ranks, ReportRank, r).peak_in_flight;

        g_array_append_val(in_flight, n);
    }
    g_autofree char *in_flight_text = output_int64s(in_flight, 12);
    output_printf("%s: %s\n", schedule->name, family == NULL ? "" : family->summary);
    output_printf("makespan %s, longest rank %s, bubble %s, in flight %s\n\n",
                  output_number(units_s_from_ns(report->iteration_ns)).text,
                  output_number(units_s_from_ns(report->span_ns)).text,
                  output_percent(report->bubble_fraction).text, in_flight_text);
}

static int
run(Options *options, GError **error)
{
    g_autoptr(OpTimes) times = op_times_read(options);
    const char *path = options_string(options, "output", NULL);
    const bool json = options_has(options, "json");
    g_autoptr(Schedule) schedule = build(options, times, error);
    const SimOptions sim_options = {.want_trace = true};
    g_auto(SimResult) result = {0};

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
    g_autoptr(Workload) workload = op_times_workload(times, schedule, error);
    if (workload == NULL || !sim_run(schedule, workload, &sim_options, &result, error))
        return -1;
    print_facts(schedule, result.report);
    describe_timeline(result.trace, true);
    return 0;
}

const Command cmd_schedule = {
    .name = "schedule",
    .usage = "NAME --pp P --microbatches M [--vpp V] [--slices S] [--json]",
    .summary = "print a pipeline schedule: its ops in order, its picture",
    .details = "degas list schedules prints the names of all schedules.\n"
               "\n"
               "  degas schedule 1f1b --pp 4 --microbatches 8\n"
               "  degas schedule interleaved --pp 4 --vpp 2 --microbatches 8 --json\n"
               "  degas schedule zb-auto --pp 4 --microbatches 8 --op-times F=2,I=2,W=1\n",
    .options = {options_table},
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
