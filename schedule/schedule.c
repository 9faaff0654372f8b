#include "schedule/schedule.h"

#include <string.h>

#include "base/host_memory.h"
#include "base/text.h"
#include "base/units.h"
#include "schedule/build.h"

G_DEFINE_QUARK(schedule_error, schedule_error)

const char schedule_op_letters[SCHEDULE_OP_N + 1] = "FBIW";

const char *const schedule_objective_names[SCHEDULE_OBJECTIVE_N + 1] = {"makespan", "span", NULL};

#define POINTER_TO(family) &schedule_family_##family,
static const ScheduleFamily *const families[] = {SCHEDULE_FAMILIES(POINTER_TO) NULL};

const ScheduleFamily *const *
schedule_families(void)
{
    return families;
}

const ScheduleFamily *
schedule_family_find(const char *name, GError **error)
{
    const char *names[G_N_ELEMENTS(families)] = {NULL};

    g_return_val_if_fail(name != NULL, NULL);
    for (size_t i = 0; families[i] != NULL; i++) {
        if (strcmp(families[i]->name, name) == 0)
            return families[i];
        names[i] = families[i]->name;
    }
    g_autofree char *shown = text_escape(name, 64);
    g_autofree char *suggestion = text_suggestion(name, names);
    g_autofree char *all = g_strjoinv(", ", (char **)names);
    return schedule_refuse_null(error, UNKNOWN, "unknown schedule \"%s\"%s%s", shown,
                                *suggestion == 0 ? "; expected one of " : suggestion,
                                *suggestion == 0 ? all : "");
}

const ScheduleFamily *
schedule_family_usual(int64_t n_chunks, bool is_sliced)
{
    return n_chunks > 1 ? &schedule_family_interleaved
           : is_sliced  ? &schedule_family_terapipe
                        : &schedule_family_1f1b;
}

/* --- shapes --- */

static bool
check_degree(const ScheduleFamily *family, const char *what, int64_t value, int64_t max,
             GError **error)
{
    if (value < 1)
        return schedule_refuse(error, SHAPE, "schedule %s: %s must be at least 1, got " INT,
                               family->name, what, value);
    if (value > max)
        return schedule_refuse(error, LIMIT, "schedule %s: %s is " INT ", the limit is " INT,
                               family->name, what, value, max);
    return true;
}

static bool
check_chunks(const ScheduleFamily *family, int64_t n_chunks, GError **error)
{
    if (n_chunks >= family->min_chunks && n_chunks <= family->max_chunks)
        return true;
    if (family->min_chunks == family->max_chunks)
        return schedule_refuse(error, SHAPE, "schedule %s: vpp must be %d, got " INT, family->name,
                               family->min_chunks, n_chunks);
    return schedule_refuse(error, SHAPE, "schedule %s: vpp must be from %d to %d, got " INT,
                           family->name, family->min_chunks, family->max_chunks, n_chunks);
}

/* Ops of all ranks, or -1 beyond SCHEDULE_MAX_OPS; a rank then has less than 2^31. */
static int64_t
count_ops(const ScheduleFamily *family, const ScheduleShape *shape)
{
    const int64_t chains = schedule_placement_n_chains(family->placement);
    int64_t n = family->splits_backward ? 3 : 2;

    if (__builtin_mul_overflow(n, shape->n_ranks, &n) ||
        __builtin_mul_overflow(n, shape->n_chunks / chains, &n) ||
        __builtin_mul_overflow(n, shape->n_slices, &n) ||
        __builtin_mul_overflow(n, shape->n_micro_batches, &n) || n > SCHEDULE_MAX_OPS)
        return -1;
    return n;
}

bool
schedule_shape_check(const ScheduleFamily *family, const ScheduleShape *shape, GError **error)
{
    if (!check_degree(family, "pp", shape->n_ranks, SCHEDULE_MAX_RANKS, error) ||
        !check_degree(family, "vpp", shape->n_chunks, SCHEDULE_MAX_CHUNKS, error) ||
        !check_degree(family, "microbatches", shape->n_micro_batches, INT32_MAX, error) ||
        !check_degree(family, "slices", shape->n_slices, SCHEDULE_MAX_SLICES, error) ||
        !check_chunks(family, shape->n_chunks, error))
        return false;
    if (shape->n_slices > 1 && !family->slices)
        return schedule_refuse(error, SHAPE,
                               "schedule %s does not cut sequences: slices must be 1, got " INT,
                               family->name, shape->n_slices);
    if (shape->group != 0 && !family->groups)
        return schedule_refuse(error, SHAPE, "schedule %s has no groups: group must be 0, got " INT,
                               family->name, shape->group);
    if (shape->group != 0 && !check_degree(family, "group", shape->group, INT32_MAX, error))
        return false;
    if (shape->merges && !family->merges && !family->overlaps)
        return schedule_refuse(error, SHAPE,
                               "schedule %s has no forwards and backwards of two micro-batches to "
                               "merge (overlap ep)",
                               family->name);
    if (shape->merges && shape->n_slices > 1)
        return schedule_refuse(error, SHAPE,
                               "schedule %s merges passes of whole sequences (overlap ep): slices "
                               "must be 1, got " INT,
                               family->name, shape->n_slices);
    if (family->check != NULL && !family->check(shape, error))
        return false;
    if (count_ops(family, shape) < 0)
        return schedule_refuse(error, LIMIT,
                               "schedule %s: more than " INT " ops (pp " INT ", vpp " INT
                               ", microbatches " INT ", slices " INT ")",
                               family->name, SCHEDULE_MAX_OPS, shape->n_ranks, shape->n_chunks,
                               shape->n_micro_batches, shape->n_slices);
    return true;
}

Schedule *
schedule_new(const char *name, const ScheduleShape *shape, GError **error)
{
    g_return_val_if_fail(shape != NULL, NULL);
    const ScheduleFamily *family = schedule_family_find(name, error);
    if (family == NULL || !schedule_shape_check(family, shape, error))
        return NULL;
    return family->build(family, shape, error);
}

/* --- lifecycle --- */

Schedule *
schedule_alloc(const char *name, const ScheduleShape *shape, SchedulePlacement placement,
               int64_t n_ops, GError **error)
{
    g_return_val_if_fail(shape->n_ranks >= 1 && shape->n_ranks <= SCHEDULE_MAX_RANKS, NULL);
    g_return_val_if_fail(shape->n_chunks >= 1 && shape->n_chunks <= SCHEDULE_MAX_CHUNKS, NULL);
    g_return_val_if_fail(shape->n_micro_batches >= 1 && shape->n_micro_batches <= INT32_MAX, NULL);
    g_return_val_if_fail(shape->n_slices >= 1 && shape->n_slices <= SCHEDULE_MAX_SLICES, NULL);
    ScheduleOp *ops = NULL;
    if (n_ops >= 0 && n_ops <= SCHEDULE_MAX_OPS)
        ops = pages_try_malloc_again((size_t)MAX(n_ops, 1), sizeof(ScheduleOp));
    if (ops == NULL) {
        g_autofree char *available = host_memory_text();
        return schedule_refuse_null(error, LIMIT, "schedule %s: no memory for " INT " ops%s", name,
                                    n_ops, available);
    }
    Schedule *schedule = g_new0(Schedule, 1);
    *schedule = (Schedule){
        .name = g_strdup(name),
        .n_ranks = (int32_t)shape->n_ranks,
        .n_chunks = (int32_t)shape->n_chunks,
        .n_micro_batches = (int32_t)shape->n_micro_batches,
        .n_slices = (int32_t)shape->n_slices,
        .placement = placement,
        .ops = ops,
        .rank_begin = g_new0(int64_t, (size_t)shape->n_ranks + 1),
    };
    return schedule;
}

Schedule *
schedule_alloc_full(const ScheduleFamily *family, const ScheduleShape *shape, int64_t kinds,
                    GError **error)
{
    const int64_t chains = schedule_placement_n_chains(family->placement);

    /* schedule_shape_check() excluded overflow. */
    return schedule_alloc(family->name, shape, family->placement,
                          kinds * shape->n_ranks * (shape->n_chunks / chains) *
                              shape->n_micro_batches * shape->n_slices,
                          error);
}

Schedule *
schedule_copy(const Schedule *schedule)
{
    Schedule *copy = g_memdup2(schedule, sizeof *schedule);

    copy->name = g_strdup(schedule->name);
    copy->ops = g_memdup2(schedule->ops, sizeof *copy->ops * (size_t)schedule_n_ops(schedule));
    copy->rank_begin =
        g_memdup2(schedule->rank_begin, sizeof *copy->rank_begin * ((size_t)schedule->n_ranks + 1));
    if (schedule->overlap_pairs != NULL)
        copy->overlap_pairs = g_array_copy(schedule->overlap_pairs);
    return copy;
}

void
schedule_free(Schedule *schedule)
{
    if (schedule == NULL)
        return;
    g_free(schedule->name);
    g_free(schedule->ops);
    g_free(schedule->rank_begin);
    if (schedule->overlap_pairs != NULL)
        g_array_unref(schedule->overlap_pairs);
    g_free(schedule);
}

/* --- where stages lie --- */

int32_t
schedule_chain_micro_batches(const Schedule *schedule)
{
    return schedule->n_micro_batches / schedule_placement_n_chains(schedule->placement);
}

int64_t
schedule_n_virtual_ids(const Schedule *schedule)
{
    return (int64_t)schedule_chain_micro_batches(schedule) * schedule->n_chunks *
           schedule->n_slices;
}

int32_t
schedule_n_stages(const Schedule *schedule)
{
    return (int32_t)schedule_placement_n_stages(schedule->placement, schedule->n_ranks,
                                                schedule->n_chunks);
}

int32_t
schedule_stage(const Schedule *schedule, int32_t rank, int32_t chunk)
{
    return schedule_placement_stage(schedule->placement, schedule->n_ranks, rank, chunk);
}

int32_t
schedule_rank_of_stage(const Schedule *schedule, int32_t stage, int32_t chain)
{
    return schedule_placement_rank(schedule->placement, schedule->n_ranks, stage, chain);
}

int32_t
schedule_chunk_of_stage(const Schedule *schedule, int32_t stage, int32_t chain)
{
    return schedule_placement_chunk(schedule->placement, schedule->n_ranks, stage, chain);
}

/* --- ops --- */

void
schedule_op_name(const Schedule *schedule, ScheduleOp op, char text[32])
{
    const char letter = op.kind < SCHEDULE_OP_N ? schedule_op_letters[op.kind] : '?';

    if (schedule->n_slices > 1)
        g_snprintf(text, 32, "%c%d.%ds%d", letter, op.micro_batch, op.chunk, op.slice);
    else
        g_snprintf(text, 32, "%c%d.%d", letter, op.micro_batch, op.chunk);
}

/* Reads digits without a leading zero, below @bound; advances @text.  Returns -1 on anything else.
 */
static int32_t
parse_count(const char **text, int32_t bound)
{
    int64_t value = 0;
    const char *at = *text;

    if (!g_ascii_isdigit(*at) || (at[0] == '0' && g_ascii_isdigit(at[1])))
        return -1;
    for (; g_ascii_isdigit(*at); at++) {
        value = value * 10 + (*at - '0');
        if (value >= bound)
            return -1;
    }
    *text = at;
    return (int32_t)value;
}

bool
schedule_op_parse(const Schedule *schedule, const char *text, ScheduleOp *op)
{
    const char *letter = *text == '\0' ? NULL : strchr(schedule_op_letters, *text);
    if (letter == NULL)
        return false;
    text++;
    const int32_t micro_batch = parse_count(&text, schedule_chain_micro_batches(schedule));
    if (micro_batch < 0 || *text++ != '.')
        return false;
    const int32_t chunk = parse_count(&text, schedule->n_chunks);
    int32_t slice = 0;
    if (chunk < 0)
        return false;
    if (*text == 's' || schedule->n_slices > 1) {
        if (*text++ != 's')
            return false;
        slice = parse_count(&text, schedule->n_slices);
    }
    if (slice < 0 || *text != '\0')
        return false;
    *op = (ScheduleOp){
        .micro_batch = micro_batch,
        .slice = (uint16_t)slice,
        .chunk = (uint8_t)chunk,
        .kind = (uint8_t)(letter - schedule_op_letters),
    };
    return true;
}
