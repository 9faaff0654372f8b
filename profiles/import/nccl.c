/* Tables of nccl-tests and rccl-tests, of all their versions, as text and as JSON. */
#include "profiles/import/readers.h"

#include "base/text.h"
#include "base/units.h"

#include <math.h>
#include <string.h>

#define MAX_RANKS MODEL_CLUSTER_MAX_DEVICES

/* --- what was measured --- */

/* "/opt/build/all_reduce_perf_mpi" -> "all_reduce" (owned): programs are called COLLECTIVE_perf
 * and what NAME_SUFFIX was when they were made. */
static char *
op_of_words(const char *words)
{
    g_autofree char *program = g_path_get_basename(words);
    char *end = strstr(program, "_perf");

    if (end != NULL)
        *end = 0;
    return g_strdup(g_strstrip(program));
}

/*
 * The collective of a row that no line names, by its columns: all-reduce's bus bandwidth is
 * 2(n-1)/n of its algorithm bandwidth, all-gather's, reduce-scatter's and all-to-all's (n-1)/n,
 * with a reduction in the second only [doc/PERFORMANCE.md]; all-gather and all-to-all cannot be
 * told apart.  NULL: unknown.
 */
static const char *
op_of_columns(bool reduces, double algbw, double busbw, int64_t n)
{
    const double ratio = busbw / algbw, share = ((double)n - 1.0) / (double)n;

    if (n < 2 || !(algbw > 0.0) || !reduces)
        return NULL;
    /* Printed with two digits after the point. */
    if (fabs(ratio - 2.0 * share) < 0.05)
        return "all_reduce";
    return fabs(ratio - share) < 0.05 ? "reduce_scatter" : NULL;
}

/* --- text --- */

/*
 * What launchers put before a line is found by what stands behind it: mpirun's "[1,0]<stdout>:",
 * srun's "0: ", kubectl's and tee's times, hosts' names.  A row is two numbers and the name of a
 * number format; a header is the names of its columns.
 */
static const char row_pattern[] =
    "(?:^|[^0-9A-Za-z_.,/-])"
    "([0-9]{1,40}[ \\t]{1,80}[0-9]{1,40}[ \\t]{1,80}"
    "(?:u?int(?:8|32|64)?|u?char|half|float|double|bfloat16|fp?8_?e[45]m[23][a-z]{0,4})\\b.*)$";
static const char header_pattern[] =
    "\\b((?:size|bytes)[ \\t]{1,80}(?:count|N)[ \\t]{1,80}type\\b.*)$";
static const char rank_pattern[] =
    "\\bRank[ \\t]{1,80}([0-9]{1,9})\\b.{0,200}\\bon[ \\t]{1,80}(\\S{"
    "1,200})[ \\t]{1,80}device\\b";
static const char program_pattern[] = "\\b([a-z_]{3,40}_perf)(?:_[a-z0-9]{1,20})?\\b";
/* What is left of a row that a line of another rank cut in two: numbers, behind one word at most. */
static const char rest_pattern[] =
    "^[ \\t]*(?:\\S{0,200}[:>\\]])?[ \\t]*"
    "((?:[0-9][0-9.e+-]{0,30}|N/A)(?:[ \\t]{1,80}(?:[0-9][0-9.e+-]{0,30}|N/A))*)[ \\t\\r]*$";

typedef struct {
    GRegex *row, *header, *rank, *program, *rest; /* (owned) */
} Patterns;

typedef struct {
    Import *import;
    const char *name;
    size_t line;
    int64_t n_ranks;
    bool is_solo;       /* several processes that each were rank 0 of one */
    GHashTable *hosts;  /* (owned) name (owned) -> its ranks */
    ProfileGroup group; /* that these make; n = 0: not made */
    char *op;           /* (owned, nullable) */
    GPtrArray *columns; /* (owned) of (owned) char *: the last header's; empty: there was none */
    GPtrArray *torn;    /* (owned) of (owned) char *: the words of a row whose rest is to come */
    size_t torn_line;
    size_t n_rows;
    int64_t n_cut; /* rows without an end */
    size_t first_cut_line;
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

/* What @pattern finds in @line: the text of its group @group (owned), or NULL. */
static char *
found(const GRegex *pattern, const char *line, int group)
{
    g_autoptr(GMatchInfo) match = NULL;

    return g_regex_match(pattern, line, 0, &match) ? g_match_info_fetch(match, group) : NULL;
}

static void
add_words(GPtrArray *words, const char *text)
{
    g_auto(GStrv) parts = g_strsplit_set(text, " \t\r", -1);

    for (char **word = parts; *word != NULL; word++) {
        if (**word != 0)
            g_ptr_array_add(words, g_strdup(*word));
    }
}

/* A line without a row: which program runs, on which ranks, under which columns. */
static void
read_comment(TextReader *reader, const Patterns *patterns, const char *line)
{
    g_autofree char *header = found(patterns->header, line, 1);
    g_autofree char *program = found(patterns->program, line, 1);
    g_autofree char *rank = header == NULL ? found(patterns->rank, line, 1) : NULL;

    if (header != NULL) {
        g_ptr_array_set_size(reader->columns, 0);
        add_words(reader->columns, header);
    } else if (strstr(line, "Using devices") != NULL) { /* another run begins */
        g_hash_table_remove_all(reader->hosts);
        reader->n_ranks = 0;
    } else if (rank != NULL) {
        const int64_t n = g_ascii_strtoll(rank, NULL, 10) + 1;
        char *host = found(patterns->rank, line, 2);
        const int64_t before = GPOINTER_TO_INT(g_hash_table_lookup(reader->hosts, host));

        reader->is_solo = n == 1 && reader->n_ranks == 1;
        reader->n_ranks = MAX(reader->n_ranks, n);
        reader->group.n = 0;
        g_hash_table_insert(reader->hosts, host, GINT_TO_POINTER((gint)MIN(before + 1, MAX_RANKS)));
    }
    if (program != NULL && strstr(line, "concluded") == NULL) {
        g_free(reader->op);
        reader->op = op_of_words(program);
    }
}

/* Digits, a point, an exponent. */
static bool
read_number(const char *text, double *value)
{
    char *end;

    if (!g_ascii_isdigit(*text))
        return false;
    *value = g_ascii_strtod(text, &end);
    return *end == 0 && *value >= 0.0 && *value < IMPORT_MAX_US;
}

/* A number, if one that no row has: -1, nan. */
static bool
is_any_number(const char *text)
{
    char *end;

    g_ascii_strtod(text, &end);
    return *end == 0;
}

/* Where the times stand in a row. */
typedef struct {
    guint n_leading; /* columns before the first time */
    guint n_words;   /* that a row has at least */
    guint second;    /* the time in place; that of the first where there is no other */
    double per_s;    /* units of time in a second */
} Layout;

static bool
is_time(const char *column)
{
    return strcmp(column, "time") == 0 || strcmp(column, "cputime") == 0;
}

/*
 * Columns by their names in the header; where there is none (a table that went through grep), by
 * the words of the row: size, count, type, what reduces if that is a word, the root if the numbers
 * that are left are odd, then two halves of at least four.  Columns over time: 2017 "bytes N type
 * op" in ms; until 2022 no root, and no redop but for reductions; since, both always, -1 for no
 * root; rccl-tests with -O 0 only the second half, nccl-tests with -P four columns more in each
 * half.  A time of day may end a row.
 */
static bool
find_layout(const TextReader *reader, const GPtrArray *words, Layout *layout)
{
    const GPtrArray *columns = reader->columns;
    guint n = words->len, n_times = 0;

    *layout = (Layout){.per_s = IMPORT_US_PER_S};
    for (guint i = 0; i < columns->len; i++) {
        if (!is_time(g_ptr_array_index(columns, i)))
            continue;
        if (n_times++ == 0)
            layout->n_leading = i;
        layout->second = i;
    }
    if (n_times > 0) {
        const guint last = columns->len - 1;

        if (strcmp(g_ptr_array_index(columns, 0), "bytes") == 0)
            layout->per_s = 1e3;
        layout->n_words =
            columns->len - (strcmp(g_ptr_array_index(columns, last), "timestamp") == 0);
        return layout->n_leading >= 3;
    }
    while (n > 3 && strpbrk(g_ptr_array_index(words, n - 1), ":") != NULL)
        n -= 2; /* a day and a time of day */
    layout->n_leading = 3;
    if (n > 4 && g_ascii_isalpha(*(const char *)g_ptr_array_index(words, 3)))
        layout->n_leading++;
    if (n > layout->n_leading &&
        ((n - layout->n_leading) % 2 != 0 ||
         *(const char *)g_ptr_array_index(words, layout->n_leading) == '-'))
        layout->n_leading++;
    layout->n_words = MAX(n, layout->n_leading + 8);
    layout->second = layout->n_leading + (layout->n_words - layout->n_leading) / 2;
    return true;
}

static bool
read_row(TextReader *reader, const GPtrArray *words, const Layout *layout, GError **error)
{
    const ProfileImportOptions *options = reader->import->options;
    const int64_t n_ranks = options->n_ranks > 0 ? options->n_ranks : reader->n_ranks;
    char **word = (char **)words->pdata;
    const char *op = options->op != NULL ? options->op : reader->op;
    gint64 bytes;
    double out_us, in_us, algbw, busbw;

    if (!g_ascii_string_to_signed(word[0], 10, 0, JSON_MAX_INT, &bytes, NULL))
        return fail(error, reader, "size: expected bytes");
    if (!read_number(word[layout->n_leading], &out_us) ||
        !read_number(word[layout->n_leading + 1], &algbw) ||
        !read_number(word[layout->n_leading + 2], &busbw) ||
        !read_number(word[layout->second], &in_us))
        return fail(error, reader, "expected times in microseconds and rates in GB/s");
    if (reader->is_solo && options->n_ranks == 0)
        return fail(error, reader,
                    "each process ran alone on one device; build nccl-tests with MPI=1");
    if (n_ranks < 2 || n_ranks > MAX_RANKS)
        return fail(error, reader, "the number of ranks is not said; give --ranks");
    if (op == NULL)
        op = op_of_columns(layout->n_leading > 3 && g_ascii_isalpha(*word[3]) &&
                               strcmp(word[3], "none") != 0,
                           algbw, busbw, n_ranks);
    if (op == NULL)
        return fail(error, reader, "which collective this is is not said; give --op");
    reader->n_rows++;
    if (bytes == 0 || in_us == 0.0)
        return true;
    /* Frameworks reduce and gather in place. */
    if (reader->group.n == 0)
        reader->group = import_group_on_hosts(reader->import, n_ranks,
                                              options->n_ranks > 0 ? NULL : reader->hosts);
    if (!import_collective(reader->import, op, &reader->group, bytes, in_us / layout->per_s,
                           out_us / layout->per_s)) {
        g_autofree char *shown = text_escape(op, 40);

        return reader->import->refusal != NULL ||
               fail(error, reader,
                    "\"%s\" has no place in a profile; expected all_reduce, sendrecv, all_gather, "
                    "reduce_scatter or alltoall",
                    shown);
    }
    return true;
}

static void
drop_torn(TextReader *reader)
{
    if (reader->torn->len == 0)
        return;
    if (reader->n_cut++ == 0)
        reader->first_cut_line = reader->torn_line;
    g_ptr_array_set_size(reader->torn, 0);
}

/* A row may be printed in two parts, with lines of other ranks between them or in one of them. */
static bool
read_words(TextReader *reader, GError **error)
{
    GPtrArray *words = reader->torn;
    Layout layout;
    guint n_good = 3;
    double number;

    if (!find_layout(reader, words, &layout))
        return fail(error, reader, "expected a header \"size count type ... time algbw busbw\"");
    for (; n_good < MIN(words->len, layout.n_words); n_good++) {
        const char *word = g_ptr_array_index(words, n_good);

        if (n_good < layout.n_leading || read_number(word, &number) || strcmp(word, "N/A") == 0)
            continue;
        if (is_any_number(word))
            return fail(error, reader, "expected times in microseconds and rates in GB/s");
        break;
    }
    if (n_good < layout.n_words) {
        g_ptr_array_set_size(words, (gint)n_good);
        return true;
    }
    const bool done = read_row(reader, words, &layout, error);
    g_ptr_array_set_size(words, 0);
    return done;
}

static bool
read_line(TextReader *reader, const Patterns *patterns, const char *line, GError **error)
{
    g_autofree char *row = found(patterns->row, line, 1);

    if (row != NULL) {
        drop_torn(reader);
        reader->torn_line = reader->line;
        add_words(reader->torn, row);
        return read_words(reader, error);
    }
    if (reader->torn->len > 0) {
        g_autofree char *rest = found(patterns->rest, line, 1);

        if (rest != NULL) {
            add_words(reader->torn, rest);
            return read_words(reader, error);
        }
    }
    read_comment(reader, patterns, line);
    return true;
}

static bool
read_lines(TextReader *reader, const Patterns *patterns, const char *text, GError **error)
{
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);

    for (char **line = lines; *line != NULL; line++, reader->line++) {
        if (!read_line(reader, patterns, *line, error))
            return false;
    }
    drop_torn(reader);
    reader->line = reader->n_cut > 0 ? reader->first_cut_line : 1;
    if (reader->n_rows == 0)
        return fail(error, reader,
                    reader->n_cut > 0 ? "this row of nccl-tests is cut off, and there is no other"
                                      : "no row of nccl-tests in it");
    if (reader->n_cut > 0)
        reader->import->note = g_strdup_printf(
            INT " row%s cut off %s left out, %sat line %zu", reader->n_cut,
            reader->n_cut == 1 ? " that is" : "s that are", reader->n_cut == 1 ? "was" : "were",
            reader->n_cut == 1 ? "" : "the first ", reader->first_cut_line);
    return true;
}

bool
import_nccl_text(Import *import, const char *name, const char *text, GError **error)
{
    Patterns patterns;
    const struct {
        GRegex **regex;
        const char *pattern;
    } made[] = {{&patterns.row, row_pattern},
                {&patterns.header, header_pattern},
                {&patterns.rank, rank_pattern},
                {&patterns.program, program_pattern},
                {&patterns.rest, rest_pattern}};
    TextReader reader = {
        .import = import,
        .name = name,
        .line = 1,
        .hosts = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL),
        .columns = g_ptr_array_new_with_free_func(g_free),
        .torn = g_ptr_array_new_with_free_func(g_free),
    };
    bool done;

    for (size_t i = 0; i < G_N_ELEMENTS(made); i++)
        *made[i].regex = g_regex_new(made[i].pattern, G_REGEX_OPTIMIZE, 0, NULL);
    done = g_utf8_validate(text, -1, NULL) ? read_lines(&reader, &patterns, text, error)
                                           : fail(error, &reader, "not UTF-8");
    for (size_t i = 0; i < G_N_ELEMENTS(made); i++)
        g_regex_unref(*made[i].regex);
    g_hash_table_unref(reader.hosts);
    g_ptr_array_unref(reader.columns);
    g_ptr_array_unref(reader.torn);
    g_free(reader.op);
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

/* Host -> its ranks (owned), as the text's lines of ranks say. */
static GHashTable *
read_hosts(JsonDoc *doc, const JsonValue *devices)
{
    GHashTable *hosts = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);

    JSON_EACH (v, devices, doc) {
        const char *host = json_string_or(doc, v, "hostname", "");
        const gint before = GPOINTER_TO_INT(g_hash_table_lookup(hosts, host));

        g_hash_table_insert(hosts, g_strdup(host), GINT_TO_POINTER(before + 1));
    }
    return hosts;
}

void
import_nccl_json(Import *import, JsonDoc *doc, const JsonValue *root)
{
    const JsonValue *results = json_array(doc, root, "results");
    const JsonValue *devices = json_array_or_null(doc, root, "devices");
    const JsonValue *args = json_array_or_null(doc, root, "args");
    const int64_t stated = devices == NULL ? 0 : (int64_t)json_length(devices);
    const bool is_given = import->options->n_ranks > 0;
    const int64_t n_ranks = is_given ? import->options->n_ranks : stated;
    g_autoptr(GHashTable) hosts = is_given || devices == NULL ? NULL : read_hosts(doc, devices);
    const ProfileGroup group = import_group_on_hosts(import, n_ranks, hosts);
    g_autofree char *program = NULL;
    const char *op = import->options->op;

    if (op == NULL && args != NULL && json_first(args) != NULL && json_is_string(json_first(args)))
        program = op_of_words(json_value_string(doc, json_first(args)));
    if (op == NULL)
        op = program;
    if (n_ranks < 2 || n_ranks > MAX_RANKS)
        json_fail(doc, root, "the number of ranks is not said; give --ranks");
    if (op == NULL)
        json_fail(doc, root, "which collective this is is not said; give --op");
    JSON_EACH (v, results, doc) {
        const int64_t bytes = json_int64(doc, v, "size", 0, JSON_MAX_INT);
        const JsonValue *in = json_object(doc, v, "in_place");
        const JsonValue *out = json_object_or_null(doc, v, "out_of_place");
        const double in_us = read_time_us(doc, in);
        const double out_us = read_time_us(doc, out != NULL ? out : in);

        if (json_doc_failed(doc) || bytes == 0 || in_us == 0.0)
            continue;
        if (!import_collective(import, op, &group, bytes, in_us / IMPORT_US_PER_S,
                               out_us / IMPORT_US_PER_S) &&
            import->refusal == NULL)
            json_fail(doc, v,
                      "this collective has no place in a profile: all_reduce, sendrecv, "
                      "all_gather, reduce_scatter, alltoall have");
    }
}
