#include "cli/request/batch.h"

#include <math.h>
#include <string.h>

#include "base/file.h"
#include "cli/request/command.h"
#include "cli/request/job.h"
#include "cli/request/request_json.h"

/* One line and what becomes of it. */
typedef struct {
    const char *path; /* (borrowed) */
    size_t number;    /* from 1 */
    const char *text; /* (borrowed) */
    size_t n_bytes;
    char *report; /* (owned) */
} Line;

/* --- one line --- */

static void
write_id(JsonWriter *writer, JsonDoc *doc, const JsonValue *object)
{
    const JsonValue *id = json_has(doc, object, "id") ? json_member(doc, object, "id") : NULL;

    if (id != NULL && json_is_string(id)) {
        json_write_string(writer, "id", json_value_string(doc, id));
    } else if (id != NULL && json_is_number(id)) {
        const double number = json_value_double(doc, id, -G_MAXDOUBLE, G_MAXDOUBLE);

        if (number == nearbyint(number) && fabs(number) < (double)JSON_MAX_INT)
            json_write_int64(writer, "id", (int64_t)number);
        else
            json_write_double(writer, "id", number);
    } else {
        json_write_null(writer, "id");
    }
}

/* {"id":...,"error":...} */
static char *
failed_report(JsonDoc *doc, const JsonValue *object, const GError *error)
{
    g_autoptr(JsonWriter) writer = json_writer_new_compact();

    json_write_object(writer, NULL);
    if (object == NULL)
        json_write_null(writer, "id");
    else
        write_id(writer, doc, object);
    json_write_string(writer, "error", error->message);
    json_write_object_end(writer);
    return json_writer_steal(writer, NULL);
}

/* The report's object with "id" before its first key. */
static char *
finished_report(JsonDoc *doc, const JsonValue *object, const Report *report)
{
    g_autoptr(JsonWriter) id_writer = json_writer_new_compact();
    g_autoptr(JsonWriter) writer = json_writer_new_compact();
    g_autofree char *id = NULL;
    g_autofree char *text = NULL;

    json_write_object(id_writer, NULL);
    write_id(id_writer, doc, object);
    json_write_object_end(id_writer);
    id = g_strchomp(json_writer_steal(id_writer, NULL));
    id[strlen(id) - 1] = 0; /* its closing brace */
    report_write(writer, NULL, report);
    text = json_writer_steal(writer, NULL);
    return g_strdup_printf("%s,%s", id, text + 1);
}

static bool
simulate_request(Request *request, const Conditions *conditions, JobSimulation *simulation,
                 GError **error)
{
    g_autoptr(Plan) plan = request_plan(request, error);
    g_autoptr(Job) job = NULL;

    if (plan == NULL)
        return false;
    job = job_new(g_steal_pointer(&request->arch), g_steal_pointer(&request->profile),
                  g_steal_pointer(&plan));
    const JobOptions how = {
        .memory_limit_bytes = request->plan.memory_limit_bytes,
        .conditions = conditions,
    };
    return job_simulate(job, &how, simulation, error);
}

static void
run_line(Line *line)
{
    g_autofree char *name = g_strdup_printf("%s:%zu", line->path, line->number);
    g_autoptr(GError) error = NULL;
    g_autoptr(JsonDoc) doc = json_doc_parse(name, line->text, line->n_bytes, &error);
    const JsonValue *root = doc == NULL ? NULL : json_doc_root(doc, NULL, 0);
    g_auto(JobSimulation) simulation = {0};
    g_autoptr(Request) request = NULL;
    g_auto(Conditions) conditions = {0};

    /* A line that is no object has no id. */
    if (root != NULL && !json_is_object(root)) {
        json_fail(doc, root, "expected an object");
        json_doc_finish(doc, &error);
        root = NULL;
    }
    if (root != NULL)
        request = request_read(doc, root, NULL, &conditions, &error);
    if (request != NULL && simulate_request(request, &conditions, &simulation, &error))
        line->report = finished_report(doc, root, simulation.result.report);
    else
        line->report = failed_report(doc, root, error);
}

/* --- all lines --- */

static void
run_line_in_pool(void *data, void *user_data)
{
    run_line(data);
}

/* Empty lines are no requests. */
static GArray *
split_lines(const char *path, const char *text, size_t n_bytes)
{
    GArray *lines = g_array_new(FALSE, TRUE, sizeof(Line));
    size_t number = 1;

    for (const char *p = text, *end = text + n_bytes; p < end; number++) {
        const char *newline = memchr(p, '\n', (size_t)(end - p));
        const size_t n = (size_t)((newline == NULL ? end : newline) - p);
        const Line line = {.path = path, .number = number, .text = p, .n_bytes = n};
        size_t blank = 0;

        while (blank < n && (p[blank] == ' ' || p[blank] == '\t' || p[blank] == '\r'))
            blank++;
        if (blank < n)
            g_array_append_val(lines, line);
        p += n + 1;
    }
    return lines;
}

char *
batch_run(const char *path, int64_t threads, size_t *n_bytes, GError **error)
{
    g_autofree char *text = NULL;
    g_autoptr(GArray) lines = NULL;
    GString *reports;
    size_t n_text;

    if (!file_read(path, &text, &n_text, error))
        return NULL;
    lines = split_lines(path, text, n_text);
    if (threads > 1 && lines->len > 1) {
        GThreadPool *pool =
            g_thread_pool_new(run_line_in_pool, NULL, (gint)MIN(threads, lines->len), TRUE, NULL);

        for (guint i = 0; i < lines->len; i++)
            g_thread_pool_push(pool, &g_array_index(lines, Line, i), NULL);
        g_thread_pool_free(pool, FALSE, TRUE);
    } else {
        for (guint i = 0; i < lines->len; i++)
            run_line(&g_array_index(lines, Line, i));
    }
    reports = g_string_new(NULL);
    for (guint i = 0; i < lines->len; i++) {
        Line *line = &g_array_index(lines, Line, i);

        g_string_append(reports, line->report);
        g_free(line->report);
    }
    *n_bytes = reports->len;
    return g_string_free(reports, FALSE);
}
