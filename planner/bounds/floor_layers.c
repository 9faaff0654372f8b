#include "planner/bounds/floor_layers.h"

#include <math.h>

#include "base/real.h"

/* --- ops --- */

/* The largest of the pieces (floor_table.h) of an op whose device takes @device_s without attention. */
static double
op_s(const PlanFloor *floor, double device_s, double host_s, double attention_s, double gathers_s)
{
    const double share = floor->interference;
    const double busy_s = device_s + attention_s;
    const double seconds = real_max(busy_s + share * gathers_s, host_s);

    return gathers_s > 0.0 ? real_max(seconds, share * busy_s + gathers_s) : seconds;
}

/* ZeRO 3's collectives in one op of a layer of kind @k. */
static double
gathers_s(const PlanFloor *floor, int k, int pass)
{
    const PlanPoint *point = floor->point;

    return point->gather_s[k] + (pass == 0 ? 0.0 : point->scatter_s[k]);
}

/* What an op of all of the cell adds up more than one of two. */
static double
added_s(const PlanFloorPass *pass, const PlanFloorCell *cell)
{
    const double n_ops = (double)cell->n_micro_batches * (double)cell->first;

    return pass->added_s * (1.0 - 2.0 / real_max(2.0, n_ops));
}

/* What ops have on average where they are fewest and where they are most, each as much of a whole sequence's attention
 * as @attention says, contexts of @contexts sequences, and of rows none more than @most_rows. */
typedef struct {
    double rows, least_rows, most_rows, attention, contexts;
} Average;

double
plan_floor_contexts(const PlanFloorCell *cell)
{
    const double longest = cell->high * (1.0 + 1e-9);
    const double n = floor(1.0 / longest);

    return n - longest * n * (n + 1.0) / 2.0;
}

/* All ops of @one over their number at the fewest, with collectives of @g seconds in each; [1] with the gathers that hide
 * in them, [0] as if those hid behind embedding and head. */
static void
ops_s(const PlanFloor *floor, const PlanFloorTable *table, const PlanFloorPass *one,
      const PlanFloorCell *cell, const Average *ops, double g, double seconds[2])
{
    const double device_s = plan_floor_more_s(table, &one->device, ops->rows, ops->least_rows,
                                              ops->most_rows, added_s(one, cell));
    const double host_s =
        plan_floor_more_s(table, &one->host, ops->rows, ops->least_rows, ops->most_rows, 0.0);
    const double attention_s = ops->attention * one->attention_s + ops->contexts * one->contexts_s;

    seconds[1] = op_s(floor, device_s, host_s, attention_s, g);
    seconds[0] =
        g == 0.0 ? seconds[1] : real_max(device_s + attention_s + floor->interference * g, host_s);
}

/* The same of a pass of a layer. */
static void
average_s(const PlanFloor *floor, guint node, int k, int pass, const PlanFloorCell *cell,
          const Average *ops, double seconds[2])
{
    ops_s(floor, floor->table, &floor->places[node]->passes[k][pass], cell, ops,
          gathers_s(floor, k, pass), seconds);
}

/* The same of one op of at least @rows. */
static void
single_s(const PlanFloor *floor, guint node, int k, int pass, const PlanFloorCell *cell,
         int64_t rows, double attention, double seconds[2])
{
    const PlanFloorPass *one = &floor->places[node]->passes[k][pass];
    const guint at = plan_floor_interval(floor->table, MAX(1, rows));
    const double device_s = one->device.first_s[at] + added_s(one, cell);
    const double g = gathers_s(floor, k, pass);

    seconds[1] = op_s(floor, device_s, one->host.first_s[at], attention * one->attention_s, g);
    seconds[0] = g == 0.0
                     ? seconds[1]
                     : real_max(device_s + attention * one->attention_s + floor->interference * g,
                                one->host.first_s[at]);
}

/* --- sizes of micro-batches --- */

PlanFloorGroups
plan_floor_groups(const PlanFloor *floor, const PlanFloorCell *cell)
{
    const int64_t m = cell->n_micro_batches, pp = floor->point->degrees.pp;
    const int64_t fixed = floor->request->group;

    if (cell->first == cell->last || fixed > 0) {
        const ScheduleShape shape = {.n_ranks = pp,
                                     .n_chunks = floor->point->degrees.vpp,
                                     .n_micro_batches = m,
                                     .n_slices = cell->first,
                                     .group = fixed};
        const int64_t group = MIN(m, schedule_interleaved_group(&shape));
        return (PlanFloorGroups){group, m % group == 0 ? group : m % group, group == m};
    }
    const int64_t first = MIN(m, (pp + cell->last - 1) / cell->last);
    return (PlanFloorGroups){first, MIN(m, (pp - 1 + cell->last - 1) / cell->last), first == m};
}

/* Sequences of the largest of the first @n_first micro-batches, and of the last @n_last, at the least. */
typedef struct {
    int64_t of[PLAN_FLOOR_PASSES];
} Sizes;

/* The sizes of which no others are less in both: at most as many as the largest has sequences, since the
 * smaller the first ones are the larger are the last ones. */
static int
sizes_of(const PlanFloor *floor, const PlanFloorCell *cell, int64_t n_first, int64_t n_last,
         Sizes sizes[PLAN_POINT_MAX_REGROUPED])
{
    const int64_t most = floor->group;
    int n = 0;

    if (n_first + n_last > cell->n_micro_batches || cell->first < cell->last ||
        plan_floor_is_uniform(floor, cell)) {
        sizes[0] =
            (Sizes){{(plan_floor_least_sequences(floor, cell, n_first) + n_first - 1) / n_first,
                     (plan_floor_least_sequences(floor, cell, n_last) + n_last - 1) / n_last}};
        return 1;
    }
    const int64_t both = plan_floor_least_sequences(floor, cell, n_first + n_last);
    for (int64_t first = 1; first <= most; first++) {
        const int64_t left = MAX(n_last, both - first * n_first);
        const int64_t last = (left + n_last - 1) / n_last;
        if (last > most)
            continue;
        sizes[n++] = (Sizes){{first, last}};
        if (last == 1)
            break;
    }
    return n;
}

/* What a layer takes on the slice that takes longest of so many sequences. */
static void
slowest_s(const PlanFloor *floor, guint node, int k, int pass, const PlanFloorCell *cell,
          int64_t sequences, double seconds[2])
{
    const double part = (double)sequences / (double)cell->last;
    const double length = (double)floor->request->seq_len;

    const Average ops = {part * length, part * length, (double)sequences * cell->high * length,
                         part};
    average_s(floor, node, k, pass, cell, &ops, seconds);
}

/* A slice of at least @tokens. */
static void
tokens_s(const PlanFloor *floor, guint node, int k, int pass, const PlanFloorCell *cell,
         double tokens, int64_t sequences, double seconds[2])
{
    const double length = (double)floor->request->seq_len, batch = (double)sequences;
    /* Of the pairs of a query and a key of a whole sequence those of a slice without context; with a
     * window it is a larger share. */
    const double pairs = tokens * (tokens + 1.0) / (length * (length + 1.0));

    single_s(floor, node, k, pass, cell, (int64_t)(batch * tokens), batch * pairs, seconds);
}

/* The slice of most tokens. */
static void
longest_s(const PlanFloor *floor, guint node, int k, int pass, const PlanFloorCell *cell,
          int64_t sequences, double seconds[2])
{
    const double length = (double)floor->request->seq_len;

    tokens_s(floor, node, k, pass, cell, ceil(cell->low * length * (1.0 - 1e-9)), sequences,
             seconds);
}

typedef void (*SliceFunc)(const PlanFloor *floor, guint node, int k, int pass,
                          const PlanFloorCell *cell, int64_t sequences, double seconds[2]);

/* Sets @sums to the least over @sizes, of each pass and of both together. */
static void
set_sums(const PlanFloor *floor, guint node, int k, const PlanFloorCell *cell, const Sizes *sizes,
         int n, SliceFunc slice_s, double sums[PLAN_FLOOR_SUMS][2])
{
    for (int j = 0; j < n; j++) {
        double one[PLAN_FLOOR_SUMS][2];
        for (int i = 0; i < PLAN_FLOOR_PASSES; i++)
            slice_s(floor, node, k, i, cell, sizes[j].of[i], one[i]);
        for (int g = 0; g < 2; g++)
            one[PLAN_FLOOR_BOTH][g] = one[PLAN_FLOOR_FORWARD][g] + one[PLAN_FLOOR_BACKWARD][g];
        for (int i = 0; i < PLAN_FLOOR_SUMS; i++)
            for (int g = 0; g < 2; g++)
                sums[i][g] = j == 0 ? one[i][g] : real_min(sums[i][g], one[i][g]);
    }
}

/* What sizes the micro-batches of a cell have at both ends. */
typedef struct {
    Sizes ends[PLAN_POINT_MAX_REGROUPED], grouped[PLAN_POINT_MAX_REGROUPED];
    int n_ends, n_grouped;
} CellSizes;

static void
cell_sizes(const PlanFloor *floor, const PlanFloorCell *cell, CellSizes *sizes)
{
    const PlanFloorGroups groups = plan_floor_groups(floor, cell);

    sizes->n_ends = sizes_of(floor, cell, 1, 1, sizes->ends);
    sizes->n_grouped = sizes_of(floor, cell, groups.first, groups.last, sizes->grouped);
    if (groups.is_one) {
        sizes->grouped[0] = (Sizes){{floor->group, floor->group}};
        sizes->n_grouped = 1;
    }
}

/* All ops of a pass of the cell together. */
static void
work_s(const PlanFloor *floor, guint node, int k, int pass, const PlanFloorCell *cell,
       double seconds[2])
{
    const double length = (double)floor->request->seq_len;
    const double sequences = (double)floor->n_sequences;
    const double n_ops = (double)cell->n_micro_batches * (double)cell->first;

    const Average ops = {sequences * length / n_ops,
                         sequences * length / ((double)cell->n_micro_batches * (double)cell->last),
                         (double)floor->group * cell->high * length, sequences / n_ops,
                         sequences / n_ops * plan_floor_contexts(cell)};
    average_s(floor, node, k, pass, cell, &ops, seconds);
    seconds[0] *= n_ops;
    seconds[1] *= n_ops;
}

double
plan_floor_work_s(const PlanFloor *floor, const PlanFloorCell *cell, int k)
{
    double least_s = INFINITY;

    for (guint node = 0; node < floor->n_places; node++) {
        double sum = 0.0;
        for (int i = 0; i < PLAN_FLOOR_PASSES; i++) {
            double one[2];
            work_s(floor, node, k, i, cell, one);
            sum += one[0];
        }
        least_s = real_min(least_s, sum);
    }
    return least_s;
}

double
plan_floor_ops_s(const PlanFloor *floor, guint place, int k, int pass, const PlanFloorCell *cell,
                 const PlanFloorOps *ops, int gathers)
{
    const Average average = {ops->rows, ops->rows, real_max(ops->rows, ops->most_rows),
                             ops->attention, ops->contexts};
    const guint first = place < floor->n_places ? place : 0;
    const guint last = place < floor->n_places ? place : floor->n_places - 1;
    double least_s = INFINITY;

    for (guint node = first; node <= last; node++) {
        double seconds[2];
        average_s(floor, node, k, pass, cell, &average, seconds);
        least_s = real_min(least_s, seconds[gathers]);
    }
    return least_s;
}

double
plan_floor_end_ops_s(const PlanFloor *floor, int64_t r, int end, int pass,
                     const PlanFloorCell *cell, const PlanFloorOps *ops)
{
    const Average average = {ops->rows, ops->rows, real_max(ops->rows, ops->most_rows), 0.0, 0.0};
    const int32_t place = floor->place_of_rank[r];
    const guint first = place >= 0 ? (guint)place : 0;
    const guint last = place >= 0 ? (guint)place : floor->n_places - 1;
    double least_s = INFINITY;

    for (guint node = first; node <= last; node++) {
        double seconds[2];
        ops_s(floor, floor->ends_table, &floor->ends[node]->passes[end][pass], cell, &average, 0.0,
              seconds);
        least_s = real_min(least_s, seconds[0]);
    }
    return least_s;
}

static PlanFloorTimes
layer_times(const PlanFloor *floor, guint node, int k, const PlanFloorCell *cell,
            const CellSizes *sizes)
{
    const double least_tokens = plan_floor_least_tokens(floor, cell);
    const int64_t fewest = plan_floor_least_sequences(floor, cell, 1);
    PlanFloorTimes times = {0};

    for (int i = 0; i < PLAN_FLOOR_PASSES; i++) {
        work_s(floor, node, k, i, cell, times.works_s[i]);
        for (int g = 0; g < 2; g++)
            times.work_s[g] += times.works_s[i][g];
        tokens_s(floor, node, k, i, cell, least_tokens, fewest, times.least_s[i]);
        slowest_s(floor, node, k, i, cell, floor->group, times.largest_s[i]);
    }
    set_sums(floor, node, k, cell, sizes->ends, sizes->n_ends, slowest_s, times.pass_s);
    set_sums(floor, node, k, cell, sizes->ends, sizes->n_ends, longest_s, times.longest_s);
    set_sums(floor, node, k, cell, sizes->grouped, sizes->n_grouped, slowest_s, times.group_s);
    return times;
}

static void
take_least(PlanFloorTimes *least, const PlanFloorTimes *other)
{
    double *to = (double *)least;
    const double *from = (const double *)other;

    for (size_t i = 0; i < sizeof *least / sizeof(double); i++)
        to[i] = real_min(to[i], from[i]);
}

/* Of all places; the least of them comes last. */
void
plan_floor_times(const PlanFloor *floor, const PlanFloorCell *cell,
                 PlanFloorTimes (*times)[MODEL_MAX_KINDS])
{
    const guint n = floor->n_places;
    CellSizes sizes;

    cell_sizes(floor, cell, &sizes);
    for (int k = 0; k < floor->cost->n_kinds; k++) {
        for (guint i = 0; i < n; i++) {
            times[i][k] = layer_times(floor, i, k, cell, &sizes);
            if (i == 0)
                times[n][k] = times[0][k];
            else
                take_least(&times[n][k], &times[i][k]);
        }
    }
}
