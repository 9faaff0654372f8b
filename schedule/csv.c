/*
 * PyTorch's pipeline schedule CSV; the declarations are in schedule/schedule.h.
 *
 * The grammar is that of torch/distributed/pipelining/schedules.py at 00722e648: _Action.from_str.
 */
#include "schedule/schedule.h"

#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "schedule/check.h"

/* Cells that PyTorch derives from the compute ops. */
static const char *const derived[] = {"UNSHARD", "RESHARD", "REDUCE_GRAD", "SEND_F",
                                      "RECV_F",  "SEND_B",  "RECV_B",      NULL};

/* One compute cell. */
typedef struct {
    int64_t stage, micro_batch;
    ScheduleOpKind kind;
} Cell;

typedef struct {
    const char *path; /* (borrowed) for messages */
    GArray *cells;    /* of Cell, rank after rank */
    GArray *begin;    /* of int64_t: index of each rank's first cell, and the end */
    GArray *pairs;    /* of int64_t: indices of overlapped pairs */
    int64_t last_stage, last_micro_batch;
} Table;

static bool
fail_cell(const Table *table, guint cell, const char *text, const char *what, GError **error)
{
    g_autofree char *shown = text_escape(text, 40);

    return schedule_refuse(error, SHAPE, "%s: row %u, cell %u: \"%s\" %s", table->path,
                           table->begin->len, cell + 1, shown, what);
}

/* Digits up to 10^9; advances @at.  Returns -1 if there are none or too many. */
static int64_t
parse_digits(const char **at)
{
    int64_t value = g_ascii_isdigit(**at) ? 0 : -1;

    for (; g_ascii_isdigit(**at); (*at)++) {
        value = value * 10 + (**at - '0');
        if (value > 1000000000)
            return -1;
    }
    return value;
}

static bool
is_derived(const char *op)
{
    for (size_t i = 0; derived[i] != NULL; i++) {
        const size_t n = strlen(derived[i]);
        if (strncmp(op, derived[i], n) == 0 && strspn(op + n, "0123456789") == strlen(op + n))
            return true;
    }
    return false;
}

/* Reads "3I12" into the table; a derived op adds nothing. */
static bool
read_action(Table *table, guint number, const char *text, GError **error)
{
    const char *at = text;
    Cell cell = {.stage = parse_digits(&at)};

    if (cell.stage >= 0 && is_derived(at))
        return true;
    if (table->cells->len >= SCHEDULE_MAX_OPS / 4)
        return fail_cell(table, number, text, "is one op too many", error);
    const char *letter = *at == '\0' ? NULL : strchr(schedule_op_letters, *at);
    if (cell.stage < 0 || letter == NULL)
        return fail_cell(table, number, text, "is no action like 0F3", error);
    at++;
    cell.kind = (ScheduleOpKind)(letter - schedule_op_letters);
    cell.micro_batch = parse_digits(&at);
    if (cell.micro_batch < 0 || *at != '\0')
        return fail_cell(table, number, text, "is no action like 0F3", error);
    table->last_stage = MAX(table->last_stage, cell.stage);
    table->last_micro_batch = MAX(table->last_micro_batch, cell.micro_batch);
    g_array_append_val(table->cells, cell);
    return true;
}

/* Reads "(0F8;7B0)OVERLAP_F_B". */
static bool
read_pair(Table *table, guint number, const char *text, GError **error)
{
    const char *close = strchr(text, ')');

    if (close == NULL || strcmp(close + 1, "OVERLAP_F_B") != 0)
        return fail_cell(table, number, text, "is no pair like (0F8;7B0)OVERLAP_F_B", error);
    g_autofree char *inside = g_strndup(text + 1, (gsize)(close - text - 1));
    g_auto(GStrv) actions = g_strsplit(inside, ";", 3);
    if (g_strv_length(actions) != 2)
        return fail_cell(table, number, text, "is no pair of two actions", error);
    const int64_t index = table->cells->len;
    for (int i = 0; i < 2; i++)
        if (!read_action(table, number, g_strstrip(actions[i]), error))
            return false;
    if (table->cells->len == index + 2)
        g_array_append_val(table->pairs, index);
    return true;
}

/* Reads a row in place: cells are cut out of it. */
static bool
read_row(Table *table, char *row, GError **error)
{
    guint number = 0;

    for (char *cell = row; cell != NULL; number++) {
        char *comma = strchr(cell, ',');
        if (comma != NULL)
            *comma = '\0';
        const char *text = g_strstrip(cell);
        if (*text != '\0' && !(*text == '(' ? read_pair : read_action)(table, number, text, error))
            return false;
        cell = comma == NULL ? NULL : comma + 1;
    }
    const int64_t end = table->cells->len;
    g_array_append_val(table->begin, end);
    return true;
}

/* --- from cells to a schedule --- */

/* Enters the cells under @schedule's placement.  Returns false if a stage lies on another rank. */
static bool
enter_cells(const Table *table, Schedule *schedule)
{
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
        schedule->rank_begin[rank] = g_array_index(table->begin, int64_t, rank);
        schedule->rank_begin[rank + 1] = g_array_index(table->begin, int64_t, rank + 1);
        for (int64_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
            const Cell *cell = &g_array_index(table->cells, Cell, i);
            const int32_t stage = (int32_t)cell->stage;
            if (schedule_rank_of_stage(schedule, stage, 0) != rank)
                return false;
            schedule->ops[i] = (ScheduleOp){
                .micro_batch = (int32_t)cell->micro_batch,
                .chunk = (uint8_t)schedule_chunk_of_stage(schedule, stage, 0),
                .kind = (uint8_t)cell->kind,
            };
        }
    }
    return true;
}

static Schedule *
schedule_of_table(Table *table, GError **error)
{
    const int64_t n_ranks = (int64_t)table->begin->len - 1;
    const int64_t n_stages = table->last_stage + 1;
    const ScheduleShape shape = {
        .n_ranks = n_ranks,
        .n_chunks = n_ranks > 0 ? n_stages / n_ranks : 0,
        .n_micro_batches = table->last_micro_batch + 1,
        .n_slices = 1,
    };

    if (n_ranks < 1 || n_ranks > SCHEDULE_MAX_RANKS || shape.n_chunks < 1 ||
        shape.n_chunks > SCHEDULE_MAX_CHUNKS || n_stages % n_ranks != 0 ||
        shape.n_micro_batches < 1)
        return schedule_refuse_null(
            error, SHAPE,
            "%s: %" G_GINT64_FORMAT " stages on %" G_GINT64_FORMAT
            " rows (ranks); expected the same number, 1 to %d, on every rank",
            table->path, n_stages, n_ranks, SCHEDULE_MAX_CHUNKS);
    g_autoptr(Schedule) schedule =
        schedule_alloc("csv", &shape, SCHEDULE_PLACEMENT_LOOP, table->cells->len, error);
    if (schedule == NULL)
        return NULL;
    while (!enter_cells(table, schedule)) {
        if (schedule->placement == SCHEDULE_PLACEMENT_V)
            return schedule_refuse_null(
                error, SHAPE, "%s: the stages lie on the ranks neither in a loop nor in a V",
                table->path);
        schedule->placement = SCHEDULE_PLACEMENT_V;
    }
    if (table->pairs->len > 0)
        schedule->overlap_pairs = g_array_ref(table->pairs);
    if (!schedule_check(schedule, error)) {
        g_prefix_error(error, "%s: ", table->path);
        return NULL;
    }
    return g_steal_pointer(&schedule);
}

Schedule *
schedule_load_csv(const char *path, GError **error)
{
    g_autofree char *text = NULL;
    size_t n_bytes;

    if (!file_read(path, &text, &n_bytes, error))
        return NULL;
    g_autoptr(GArray) cells = g_array_new(false, false, sizeof(Cell));
    g_autoptr(GArray) begin = g_array_new(false, false, sizeof(int64_t));
    g_autoptr(GArray) pairs = g_array_new(false, false, sizeof(int64_t));
    Table table = {path, cells, begin, pairs, -1, -1};
    const int64_t first = 0;
    g_array_append_val(begin, first);
    if (memchr(text, '\0', n_bytes) != NULL)
        return schedule_refuse_null(error, SHAPE, "%s: no text: it has a NUL byte", path);
    for (char *row = text, *end; row < text + n_bytes; row = end + 1) {
        end = strchr(row, '\n');
        if (end == NULL)
            end = text + n_bytes;
        *end = '\0';
        if (!read_row(&table, row, error))
            return NULL;
    }
    return schedule_of_table(&table, error);
}

/* --- writing --- */

static void
append_action(GString *text, const Schedule *schedule, int32_t rank, ScheduleOp op)
{
    g_string_append_printf(text, "%d%c%d", schedule_stage(schedule, rank, op.chunk),
                           schedule_op_letters[op.kind], op.micro_batch);
}

char *
schedule_to_csv(const Schedule *schedule, size_t *n_bytes, GError **error)
{
    if (schedule->n_slices > 1 || schedule->placement == SCHEDULE_PLACEMENT_BIDIR)
        return schedule_refuse_null(
            error, SHAPE, "schedule %s: PyTorch's CSV cannot express %s", schedule->name,
            schedule->n_slices > 1 ? "token slices" : "two copies of a stage");
    const GArray *pairs = schedule->overlap_pairs;
    guint next_pair = 0;
    GString *text = g_string_new(NULL);
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
        const int64_t begin = schedule->rank_begin[rank];
        for (int64_t i = begin; i < schedule->rank_begin[rank + 1]; i++) {
            if (i > begin)
                g_string_append_c(text, ',');
            if (pairs == NULL || next_pair >= pairs->len ||
                g_array_index(pairs, int64_t, next_pair) != i) {
                append_action(text, schedule, rank, schedule->ops[i]);
                continue;
            }
            g_string_append_c(text, '(');
            append_action(text, schedule, rank, schedule->ops[i]);
            g_string_append_c(text, ';');
            append_action(text, schedule, rank, schedule->ops[++i]);
            g_string_append(text, ")OVERLAP_F_B");
            next_pair++;
        }
        g_string_append_c(text, '\n');
    }
    *n_bytes = text->len;
    return g_string_free(text, false);
}
