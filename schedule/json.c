/* "degas-schedule" in and out; the declarations are in schedule/schedule.h. */
#include "schedule/schedule.h"

#include "base/json.h"
#include "base/text.h"
#include "schedule/check.h"

/* (JSON_MAX_VALUES bounds the ops of a file, so the arrays here stay small.) */

static void
read_rank(JsonDoc *doc, const JsonValue *list, const Schedule *schedule, GArray *ops)
{
    if (!json_is_array(list)) {
        json_fail(doc, list, "expected a list of ops");
        return;
    }
    for (const JsonValue *v = json_first(list); v != NULL; v = json_next(v)) {
        const char *text = json_value_string(doc, v);
        ScheduleOp op;
        if (json_doc_failed(doc))
            return;
        if (!schedule_op_parse(schedule, text, &op)) {
            g_autofree char *shown = text_escape(text, 40);
            json_fail(doc, v,
                      "expected an op like \"%s\" with a letter of FBIW, micro-batch < %d, chunk < "
                      "%d%s, got \"%s\"",
                      schedule->n_slices > 1 ? "F3.0s1" : "F3.0",
                      schedule_chain_micro_batches(schedule), schedule->n_chunks,
                      schedule->n_slices > 1 ? " and a slice below slices" : "", shown);
            return;
        }
        g_array_append_val(ops, op);
    }
}

/* Per rank a list of positions; op and the next run as one overlapped pair. */
static GArray *
read_overlap_pairs(JsonDoc *doc, const JsonValue *root, const int64_t *rank_begin, int32_t n_ranks)
{
    const JsonValue *lists = json_array_or_null(doc, root, "overlap_pairs");
    if (lists == NULL)
        return NULL;
    GArray *pairs = g_array_new(false, false, sizeof(int64_t));
    if (json_length(lists) != (size_t)n_ranks)
        json_fail(doc, lists, "expected %d lists, one per rank, got %zu", n_ranks,
                  json_length(lists));
    int32_t rank = 0;
    for (const JsonValue *list = json_first(lists); list != NULL && !json_doc_failed(doc);
         list = json_next(list), rank++) {
        int64_t least = 0;
        const int64_t n = rank_begin[rank + 1] - rank_begin[rank];
        if (!json_is_array(list)) {
            json_fail(doc, list, "expected a list of positions");
            break;
        }
        for (const JsonValue *v = json_first(list); v != NULL; v = json_next(v)) {
            if (least > n - 2) {
                json_fail(doc, v, "pairs overlap each other or run past the rank's last op");
                break;
            }
            const int64_t index = rank_begin[rank] + json_value_int64(doc, v, least, n - 2);
            if (json_doc_failed(doc))
                break;
            least = index - rank_begin[rank] + 2;
            g_array_append_val(pairs, index);
        }
    }
    return pairs;
}

static bool
read_ranks(JsonDoc *doc, const JsonValue *root, Schedule *schedule, GArray *ops)
{
    const JsonValue *lists = json_array(doc, root, "ranks");
    int32_t rank = 0;

    if (json_length(lists) != (size_t)schedule->n_ranks)
        json_fail(doc, lists, "expected %d lists, as many as stages, got %zu", schedule->n_ranks,
                  json_length(lists));
    if (json_doc_failed(doc))
        return false;
    JSON_EACH (list, lists, doc) {
        read_rank(doc, list, schedule, ops);
        schedule->rank_begin[++rank] = ops->len;
    }
    return !json_doc_failed(doc);
}

static Schedule *
read_members(JsonDoc *doc, GError **error)
{
    const JsonValue *root = json_doc_root(doc, "degas-schedule", 1);
    const char *name = json_string(doc, root, "schedule");
    const ScheduleShape shape = {
        .n_ranks = json_int64(doc, root, "stages", 1, SCHEDULE_MAX_RANKS),
        .n_chunks = json_int64_or(doc, root, "virtual", 1, SCHEDULE_MAX_CHUNKS, 1),
        .n_micro_batches = json_int64(doc, root, "microbatches", 1, INT32_MAX),
        .n_slices = json_int64_or(doc, root, "slices", 1, SCHEDULE_MAX_SLICES, 1),
    };
    const SchedulePlacement placement = (SchedulePlacement)json_enum_or(
        doc, root, "placement", schedule_placement_names, SCHEDULE_PLACEMENT_LOOP);
    if (placement == SCHEDULE_PLACEMENT_BIDIR && shape.n_chunks != 2)
        json_fail(doc, root, "placement bidir needs \"virtual\": 2");
    if (placement == SCHEDULE_PLACEMENT_BIDIR && shape.n_micro_batches % 2 != 0)
        json_fail(doc, root, "placement bidir needs an even number of microbatches");
    if (json_doc_failed(doc))
        return NULL;
    /* The header alone; ops are moved in when their number is known. */
    g_autoptr(Schedule) schedule = schedule_alloc(name, &shape, placement, 0, error);
    if (schedule == NULL)
        return NULL;
    g_autoptr(GArray) ops = g_array_new(false, false, sizeof(ScheduleOp));
    if (!read_ranks(doc, root, schedule, ops))
        return NULL;
    schedule->overlap_pairs =
        read_overlap_pairs(doc, root, schedule->rank_begin, schedule->n_ranks);
    json_ignore(doc, root, "source");   /* where an oracle came from */
    json_ignore(doc, root, "expected"); /* what an oracle says about it */
    json_object_end(doc, root);
    g_free(schedule->ops);
    schedule->ops = (ScheduleOp *)(void *)g_array_free(g_steal_pointer(&ops), false);
    return g_steal_pointer(&schedule);
}

Schedule *
schedule_read(JsonDoc *doc, GError **error)
{
    GError *refused = NULL;
    g_autoptr(Schedule) schedule = read_members(doc, &refused);

    if (refused != NULL) {
        g_propagate_prefixed_error(error, refused, "%s: ", json_doc_name(doc));
        return NULL;
    }
    if (!json_doc_finish(doc, error))
        return NULL;
    if (!schedule_check(schedule, error)) {
        g_prefix_error(error, "%s: ", json_doc_name(doc));
        return NULL;
    }
    return g_steal_pointer(&schedule);
}

Schedule *
schedule_load(const char *path, GError **error)
{
    g_autoptr(JsonDoc) doc = json_doc_load(path, error);

    return doc == NULL ? NULL : schedule_read(doc, error);
}

char *
schedule_to_json(const Schedule *schedule, size_t *n_bytes)
{
    g_autoptr(JsonWriter) writer = json_writer_new();

    json_write_object(writer, NULL);
    json_write_string(writer, "format", "degas-schedule");
    json_write_int64(writer, "version", 1);
    json_write_string(writer, "schedule", schedule->name);
    json_write_int64(writer, "stages", schedule->n_ranks);
    json_write_int64(writer, "virtual", schedule->n_chunks);
    json_write_int64(writer, "microbatches", schedule->n_micro_batches);
    json_write_int64(writer, "slices", schedule->n_slices);
    json_write_string(writer, "placement", schedule_placement_names[schedule->placement]);
    json_write_array(writer, "ranks");
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
        json_write_array_inline(writer, NULL);
        for (int64_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
            char name[32];
            schedule_op_name(schedule, schedule->ops[i], name);
            json_write_string(writer, NULL, name);
        }
        json_write_array_end(writer);
    }
    json_write_array_end(writer);
    if (schedule->overlap_pairs != NULL) {
        guint next = 0;
        json_write_array(writer, "overlap_pairs");
        for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
            json_write_array_inline(writer, NULL);
            for (; next < schedule->overlap_pairs->len; next++) {
                const int64_t index = g_array_index(schedule->overlap_pairs, int64_t, next);
                if (index >= schedule->rank_begin[rank + 1])
                    break;
                json_write_int64(writer, NULL, index - schedule->rank_begin[rank]);
            }
            json_write_array_end(writer);
        }
        json_write_array_end(writer);
    }
    json_write_object_end(writer);
    return json_writer_steal(writer, n_bytes);
}
