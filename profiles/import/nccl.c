/* Tables of nccl-tests (v2.19), as text and as JSON. */
#include "profiles/import/readers.h"

#include "base/text.h"

#include <math.h>
#include <string.h>

#define MAX_RANKS MODEL_CLUSTER_MAX_DEVICES

/* --- what was measured --- */

/* "# Collective test starting: all_reduce_perf" -> "all_reduce" (owned). */
static char *
op_of_words(const char *words)
{
    char *op = g_strstrip(g_strdup(words));

    if (g_str_has_suffix(op, "_perf"))
        op[strlen(op) - strlen("_perf")] = 0;
    return op;
}

/*
 * The collective of a row that no line names, by its columns: all-reduce's bus bandwidth is
 * 2(n-1)/n of its algorithm bandwidth, all-gather's, reduce-scatter's and all-to-all's (n-1)/n,
 * with a reduction in the second only [doc/PERFORMANCE.md]; all-gather and all-to-all cannot be
 * told apart.  NULL: unknown.
 */
static const char *
op_of_columns(const char *redop, const char *root, double algbw, double busbw, int64_t n)
{
    const double ratio = busbw / algbw, share = ((double)n - 1.0) / (double)n;
    const bool reduces = strcmp(redop, "none") != 0;

    if (n < 2 || !(algbw > 0.0) || strcmp(root, "-1") != 0 || !reduces)
        return NULL;
    /* Printed with two digits after the point. */
    if (fabs(ratio - 2.0 * share) < 0.05)
        return "all_reduce";
    return fabs(ratio - share) < 0.05 ? "reduce_scatter" : NULL;
}

/* --- text --- */

typedef struct {
    Import *import;
    const char *name;
    size_t line;
    int64_t n_ranks;
    char *op; /* (owned, nullable) */
    size_t n_rows;
} TextReader;

static bool G_GNUC_PRINTF(3, 4)
    fail(GError **error, const TextReader *reader, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    if (error != NULL)
        *error =
            g_error_new_valist(PROFILE_IMPORT_ERROR, PROFILE_IMPORT_ERROR_INVALID, format, args);
    va_end(args);
    g_prefix_error(error, "%s:%zu: ", reader->name, reader->line);
    return false;
}

static void
read_comment(TextReader *reader, const char *line)
{
    static const char starting[] = "Collective test starting:";
    const char *words = strstr(line, starting);
    const char *p = line + 1;

    if (words != NULL) {
        g_free(reader->op);
        reader->op = op_of_words(words + strlen(starting));
    }
    while (*p == ' ')
        p++;
    if (g_str_has_prefix(p, "Rank ") && strstr(p, "device") != NULL)
        reader->n_ranks++;
}

/* Digits, a point, an exponent. */
static bool
read_us(const char *text, double *value)
{
    char *end;

    if (!g_ascii_isdigit(*text))
        return false;
    *value = g_ascii_strtod(text, &end);
    return *end == 0 && *value >= 0.0 && *value < IMPORT_MAX_US;
}

/* size count type redop root | time algbw busbw #wrong [...] | time algbw busbw #wrong [...] */
static bool
read_row(TextReader *reader, char **words, guint n_words, GError **error)
{
    const ProfileImportOptions *options = reader->import->options;
    const int64_t n_ranks = options->n_ranks > 0 ? options->n_ranks : reader->n_ranks;
    const guint group = (n_words - 5) / 2;
    gint64 bytes;
    double out_us, in_us, algbw, busbw;
    const char *op = options->op != NULL ? options->op : reader->op;

    if (n_words < 13 || (n_words - 5) % 2 != 0)
        return fail(error, reader, "expected at least 13 columns, got %u", n_words);
    if (!g_ascii_string_to_signed(words[0], 10, 0, JSON_MAX_INT, &bytes, NULL))
        return fail(error, reader, "size: expected bytes");
    if (!read_us(words[5], &out_us) || !read_us(words[6], &algbw) || !read_us(words[7], &busbw) ||
        !read_us(words[5 + group], &in_us))
        return fail(error, reader, "expected times in microseconds and rates in GB/s");
    if (n_ranks < 2 || n_ranks > MAX_RANKS)
        return fail(error, reader, "the number of ranks is not said; give --ranks");
    if (op == NULL)
        op = op_of_columns(words[3], words[4], algbw, busbw, n_ranks);
    if (op == NULL)
        return fail(error, reader, "which collective this is is not said; give --op");
    reader->n_rows++;
    if (bytes == 0 || in_us == 0.0)
        return true;
    /* Frameworks reduce and gather in place. */
    if (!import_collective(reader->import, op, n_ranks, bytes, in_us / IMPORT_US_PER_S,
                           out_us / IMPORT_US_PER_S)) {
        g_autofree char *shown = text_escape(op, 40);

        return fail(error, reader,
                    "\"%s\" has no place in a profile; expected all_reduce, sendrecv, all_gather, "
                    "reduce_scatter or alltoall",
                    shown);
    }
    return true;
}

static bool
read_line(TextReader *reader, char *line, GError **error)
{
    g_auto(GStrv) words = NULL;
    g_autoptr(GPtrArray) filled = g_ptr_array_new();

    g_strstrip(line);
    if (*line == 0)
        return true;
    if (*line == '#') {
        read_comment(reader, line);
        return true;
    }
    /* What programs print beside (NCCL INFO, mpirun's lines) is no row: rows begin with digits. */
    if (!g_ascii_isdigit(*line))
        return true;
    words = g_strsplit_set(line, " \t", -1);
    for (char **word = words; *word != NULL; word++) {
        if (**word != 0)
            g_ptr_array_add(filled, *word);
    }
    return read_row(reader, (char **)filled->pdata, filled->len, error);
}

bool
import_nccl_text(Import *import, const char *name, const char *text, GError **error)
{
    TextReader reader = {.import = import, .name = name, .line = 1};
    g_auto(GStrv) lines = NULL;
    bool done = true;

    if (!g_utf8_validate(text, -1, NULL))
        return fail(error, &reader, "not UTF-8");
    lines = g_strsplit(text, "\n", -1);
    for (char **line = lines; *line != NULL && done; line++) {
        done = read_line(&reader, *line, error);
        reader.line += done;
    }
    g_free(reader.op);
    reader.line = done ? 1 : reader.line;
    if (done && reader.n_rows == 0)
        return fail(error, &reader, "no row of nccl-tests in it");
    return done;
}

/* --- JSON --- */

/* A number, or a number as text; "nan" is none. */
static double
read_time_us(JsonDoc *doc, const JsonValue *object)
{
    const char *key = json_has(doc, object, "cpu_time") ? "cpu_time" : "time";

    return json_double(doc, object, key, 0.0, IMPORT_MAX_US);
}

void
import_nccl_json(Import *import, JsonDoc *doc, const JsonValue *root)
{
    const JsonValue *results = json_array(doc, root, "results");
    const JsonValue *devices = json_array_or_null(doc, root, "devices");
    const JsonValue *args = json_array_or_null(doc, root, "args");
    const int64_t stated = devices == NULL ? 0 : (int64_t)json_length(devices);
    const int64_t n_ranks = import->options->n_ranks > 0 ? import->options->n_ranks : stated;
    g_autofree char *program = NULL;
    const char *op = import->options->op;

    if (op == NULL && args != NULL && json_first(args) != NULL &&
        json_is_string(json_first(args))) {
        g_autofree char *name = g_path_get_basename(json_value_string(doc, json_first(args)));

        program = op_of_words(name);
        op = program;
    }
    if (n_ranks < 2 || n_ranks > MAX_RANKS)
        json_fail(doc, root, "the number of ranks is not said; give --ranks");
    if (op == NULL)
        json_fail(doc, root, "which collective this is is not said; give --op");
    for (const JsonValue *v = json_first(results); v != NULL && !json_doc_failed(doc);
         v = json_next(v)) {
        const int64_t bytes = json_int64(doc, v, "size", 0, JSON_MAX_INT);
        const double out_us = read_time_us(doc, json_object(doc, v, "out_of_place"));
        const double in_us = read_time_us(doc, json_object(doc, v, "in_place"));

        if (json_doc_failed(doc) || bytes == 0 || in_us == 0.0)
            continue;
        if (!import_collective(import, op, n_ranks, bytes, in_us / IMPORT_US_PER_S,
                               out_us / IMPORT_US_PER_S))
            json_fail(doc, v,
                      "this collective has no place in a profile: all_reduce, sendrecv, "
                      "all_gather, reduce_scatter, alltoall have");
    }
}
