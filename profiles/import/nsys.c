/*
 * SQLite exports of Nsight Systems (nsys export --type sqlite, 2021 to 2025).
 *
 * What PyTorch's profiler writes as events nsys writes as rows of tables: kernels, launches and NVTX
 * ranges become such events here, and kineto.c reads them.  Ranges are those of PyTorch's
 * emit_nvtx(record_shapes=True), "aten::mm, op_id = 7, sizes = [[8192, 4096], [4096, 4096]]", and
 * NCCL's own, "ncclAllReduce" with its payload as jsonText.
 */
#include "profiles/import/readers.h"

#include "base/units.h"

#include <dlfcn.h>
#include <string.h>

/* In the order of time; what is beyond is counted. */
#define MAX_KERNELS 100000
/* Shorter copies are latency. */
#define MIN_COPY_BYTES 65536
/* Of the virtual machine that runs a query, in millions: a table may be a view that never ends. */
#define MAX_MILLION_STEPS 500

/* --- the library, opened on demand --- */

typedef struct sqlite3 sqlite3;
typedef struct sqlite3_stmt sqlite3_stmt;

/* SQLite's C interface, whose numbers never change [sqlite.org/c3ref]. */
enum {
    ROW = 100,
    DONE = 101,
    OPEN_READ_WRITE = 2,
    OPEN_MEMORY = 0x80,
    DESERIALIZE_READ_ONLY = 4
};

typedef struct {
    int (*open_v2)(const char *, sqlite3 **, int, const char *);
    int (*close)(sqlite3 *);
    int (*deserialize)(sqlite3 *, const char *, unsigned char *, int64_t, int64_t, unsigned);
    void (*progress_handler)(sqlite3 *, int, int (*)(void *), void *);
    int (*prepare_v2)(sqlite3 *, const char *, int, sqlite3_stmt **, const char **);
    int (*step)(sqlite3_stmt *);
    int (*finalize)(sqlite3_stmt *);
    int64_t (*column_int64)(sqlite3_stmt *, int);
    const unsigned char *(*column_text)(sqlite3_stmt *, int);
    const char *(*errmsg)(sqlite3 *);
} Sqlite;

static bool
open_library(Sqlite *sqlite, GError **error)
{
    const struct {
        const char *name;
        void *slot;
    } functions[] = {
        {"sqlite3_open_v2", &sqlite->open_v2},
        {"sqlite3_close", &sqlite->close},
        {"sqlite3_deserialize", &sqlite->deserialize},
        {"sqlite3_progress_handler", &sqlite->progress_handler},
        {"sqlite3_prepare_v2", &sqlite->prepare_v2},
        {"sqlite3_step", &sqlite->step},
        {"sqlite3_finalize", &sqlite->finalize},
        {"sqlite3_column_int64", &sqlite->column_int64},
        {"sqlite3_column_text", &sqlite->column_text},
        {"sqlite3_errmsg", &sqlite->errmsg},
    };
    void *library = dlopen("libsqlite3.so.0", RTLD_NOW | RTLD_LOCAL);

    for (size_t i = 0; i < G_N_ELEMENTS(functions); i++) {
        void *function = library == NULL ? NULL : dlsym(library, functions[i].name);

        if (function == NULL) {
            g_set_error(error, PROFILE_IMPORT_ERROR, PROFILE_IMPORT_ERROR_MISSING,
                        "a file of nsys needs SQLite 3.36 or later; install libsqlite3-0");
            return false;
        }
        memcpy(functions[i].slot, &function, sizeof function);
    }
    return true;
}

/* --- the file --- */

typedef struct {
    Import *import;
    const char *name;
    Sqlite sqlite;
    sqlite3 *db;
    int n_millions; /* of steps of the query that runs */
    JsonWriter *writer;
    GHashTable *processes; /* (owned) process + 1 -> its number + 1 */
    GHashTable *ranks;     /* (owned) NCCL's communicator (owned) -> its ranks */
    int64_t n_ranges, world_size;
    bool has_payload; /* nsys of 2022 and before exports none */
    GArray *seconds;  /* (owned) of double: of the copies of one kind and size */
} Reader;

typedef void (*RowFunc)(Reader *reader, sqlite3_stmt *row);

static int
count_steps(void *data)
{
    return ++((Reader *)data)->n_millions > MAX_MILLION_STEPS;
}

/* Calls @take for each row of @query, of the tables @tables (";" between them), if all are there;
 * those that nsys had nothing for are not. */
static bool
run_query(Reader *reader, const char *tables, const char *query, RowFunc take, GError **error)
{
    const Sqlite *q = &reader->sqlite;
    g_auto(GStrv) names = g_strsplit(tables, ";", -1);
    int status = DONE;

    for (size_t i = 0; i <= g_strv_length(names); i++) {
        g_autofree char *exists =
            names[i] == NULL
                ? NULL
                : g_strdup_printf("SELECT 1 FROM sqlite_master WHERE type='table' AND name='%s'",
                                  names[i]);
        sqlite3_stmt *statement = NULL;

        reader->n_millions = 0;
        status = q->prepare_v2(reader->db, exists == NULL ? query : exists, -1, &statement, NULL);
        if (status == 0) {
            while ((status = q->step(statement)) == ROW && exists == NULL)
                take(reader, statement);
        }
        q->finalize(statement);
        if (exists != NULL && status == DONE)
            return true;
        if (status != (exists == NULL ? DONE : ROW)) {
            g_set_error(error, PROFILE_IMPORT_ERROR, PROFILE_IMPORT_ERROR_INVALID, "%s: %s: %s",
                        reader->name, tables, q->errmsg(reader->db));
            return false;
        }
    }
    return true;
}

/* --- rows to events --- */

static double
us(int64_t ns)
{
    return (double)ns / 1e3;
}

static void
begin_event(Reader *reader, const char *category, const char *name, int64_t start, int64_t end)
{
    json_write_object(reader->writer, NULL);
    json_write_string(reader->writer, "ph", "X");
    json_write_string(reader->writer, "cat", category);
    json_write_string(reader->writer, "name", name);
    json_write_double(reader->writer, "ts", us(start));
    json_write_double(reader->writer, "dur", us(end - start));
}

static void
write_thread(Reader *reader, int64_t thread)
{
    g_autofree char *text = g_strdup_printf(INT, thread);

    json_write_string(reader->writer, "tid", text);
}

/* One number for each process and correlation: the latter counts anew in each process. */
static int64_t
correlation_of(Reader *reader, int64_t process, int64_t correlation)
{
    const gpointer key = GSIZE_TO_POINTER((gsize)(process & 0xffffff) + 1);
    guint n = GPOINTER_TO_UINT(g_hash_table_lookup(reader->processes, key));

    if (n == 0) {
        n = g_hash_table_size(reader->processes) + 1;
        g_hash_table_insert(reader->processes, key, GUINT_TO_POINTER(n));
    }
    return ((int64_t)MIN(n, 1u << 20) << 32) + (correlation & 0xffffffff);
}

/* start, end, process, correlation, name */
static void
take_kernel(Reader *reader, sqlite3_stmt *row)
{
    const Sqlite *q = &reader->sqlite;
    const char *name = (const char *)q->column_text(row, 4);
    const int64_t correlation =
        correlation_of(reader, q->column_int64(row, 2), q->column_int64(row, 3));

    begin_event(reader, "kernel", name == NULL ? "" : name, q->column_int64(row, 0),
                q->column_int64(row, 1));
    json_write_object(reader->writer, "args");
    json_write_int64(reader->writer, "External id", correlation);
    json_write_int64(reader->writer, "correlation", correlation);
    json_write_object_end(reader->writer);
    json_write_object_end(reader->writer);
}

/* start, end, process, correlation, thread */
static void
take_launch(Reader *reader, sqlite3_stmt *row)
{
    const Sqlite *q = &reader->sqlite;
    const int64_t correlation =
        correlation_of(reader, q->column_int64(row, 2), q->column_int64(row, 3));

    begin_event(reader, "cuda_runtime", "launch", q->column_int64(row, 0), q->column_int64(row, 1));
    write_thread(reader, q->column_int64(row, 4));
    json_write_object(reader->writer, "args");
    json_write_int64(reader->writer, "External id", correlation);
    json_write_int64(reader->writer, "correlation", correlation);
    json_write_object_end(reader->writer);
    json_write_object_end(reader->writer);
}

/* The number behind "@key": in a payload (owned), or NULL. */
static char *
payload(const char *json, const char *key)
{
    const char *p = json == NULL ? NULL : strstr(json, key);

    if (p == NULL)
        return NULL;
    p += strlen(key);
    p += strspn(p, "\": ");
    const size_t n = strspn(p, "0123456789abcdefABCDEFx");
    return n > 0 && n < 21 ? g_strndup(p, n) : NULL;
}

/* Writes "[[8192, 4096], [4096]]" as "Input Dims"; nothing where it is something else. */
static void
write_sizes(Reader *reader, const char *text)
{
    const char *p = text, *end = NULL;
    int depth = 0;

    for (; *p != 0 && end == NULL; p++) {
        depth += *p == '[' ? 1 : *p == ']' ? -1 : 0;
        if (depth == 0)
            end = p + 1;
        if (strchr("[], 0123456789", *p) == NULL)
            return;
    }
    g_autofree char *sizes = end == NULL ? NULL : g_strndup(text, (gsize)(end - text));
    g_autoptr(JsonDoc) doc =
        sizes == NULL ? NULL : json_doc_parse("sizes", sizes, strlen(sizes), NULL);
    if (doc != NULL)
        json_write_raw(reader->writer, "Input Dims", sizes);
}

/* NCCL's function @name with its payload: bytes of a rank's share of an all-gather and of a
 * reduce-scatter, of which PyTorch says the whole input. */
static void
write_message(Reader *reader, const char *name, const char *json)
{
    static const struct {
        const char *name, *collective;
        bool is_share;
    } kinds[] = {
        {"ncclAllReduce", "all_reduce", false},
        {"ncclAllGather", "all_gather", false},
        {"ncclReduceScatter", "reduce_scatter", true},
        {"ncclSend", "send", false},
        {"ncclRecv", "recv", false},
    };
    g_autofree char *bytes = payload(json, "Message size [bytes]");
    g_autofree char *comm = payload(json, "NCCL communicator ID");
    const char *collective = name;
    int64_t n_ranks = 0, n = 0;

    if (comm != NULL)
        n_ranks = GPOINTER_TO_INT(g_hash_table_lookup(reader->ranks, comm));
    if (bytes != NULL && !units_parse_int64(bytes, "bytes", 0, JSON_MAX_INT / 8, &n, NULL))
        n = 0;
    for (size_t i = 0; i < G_N_ELEMENTS(kinds); i++) {
        if (strcmp(kinds[i].name, name) != 0)
            continue;
        collective = kinds[i].collective;
        if (kinds[i].is_share && __builtin_mul_overflow(n, MAX(n_ranks, 1), &n))
            n = 0;
    }
    if (n == 0 || n > JSON_MAX_INT / 8)
        return;
    if (n_ranks > 0) {
        json_write_string(reader->writer, "Collective name", collective);
        json_write_int64(reader->writer, "In msg nelems", n);
        json_write_string(reader->writer, "dtype", "Byte");
        json_write_int64(reader->writer, "Group size", n_ranks);
    } else {
        json_write_array(reader->writer, "Input Dims");
        json_write_array(reader->writer, NULL);
        json_write_int64(reader->writer, NULL, n);
        json_write_array_end(reader->writer);
        json_write_array_end(reader->writer);
        json_write_array(reader->writer, "Input type");
        json_write_string(reader->writer, NULL, "unsigned char");
        json_write_array_end(reader->writer);
    }
}

/* start, end, thread, text, payload */
static void
take_range(Reader *reader, sqlite3_stmt *row)
{
    const Sqlite *q = &reader->sqlite;
    const char *text = (const char *)q->column_text(row, 3);
    const char *sizes = text == NULL ? NULL : strstr(text, ", sizes = [");
    const bool is_nccl = text != NULL && g_str_has_prefix(text, "nccl");
    g_autofree char *name = text == NULL ? NULL : g_strndup(text, strcspn(text, ","));
    /* A range "nccl:all_reduce" is PyTorch's. */
    g_autofree char *called =
        is_nccl && !g_str_has_prefix(text, "nccl:") ? g_strconcat("nccl:", name, NULL) : NULL;

    if (text == NULL)
        return;
    begin_event(reader, "cpu_op", called != NULL ? called : name, q->column_int64(row, 0),
                q->column_int64(row, 1));
    write_thread(reader, q->column_int64(row, 2));
    json_write_object(reader->writer, "args");
    json_write_int64(reader->writer, "External id", reader->n_ranges++);
    if (called != NULL)
        write_message(reader, name, (const char *)q->column_text(row, 4));
    else if (sizes != NULL)
        write_sizes(reader, sizes + strlen(", sizes = "));
    json_write_object_end(reader->writer);
    json_write_object_end(reader->writer);
}

/* payload of ncclCommInitRank */
static void
take_communicator(Reader *reader, sqlite3_stmt *row)
{
    const char *json = (const char *)reader->sqlite.column_text(row, 0);
    char *comm = payload(json, "NCCL communicator ID");
    g_autofree char *ranks = payload(json, "No. of ranks");
    int64_t n = 0;

    if (comm != NULL && ranks != NULL &&
        units_parse_int64(ranks, "ranks", 1, MODEL_CLUSTER_MAX_DEVICES, &n, NULL))
        g_hash_table_insert(reader->ranks, comm, GINT_TO_POINTER((gint)n));
    else
        g_free(comm);
    reader->world_size = MAX(reader->world_size, n);
}

static void
take_column(Reader *reader, sqlite3_stmt *row)
{
    reader->has_payload = reader->sqlite.column_int64(row, 0) > 0;
}

/* --- copies --- */

/* kind, bytes, ns, whether it is the last of its kind and size; sorted by time */
static void
take_copy(Reader *reader, sqlite3_stmt *row)
{
    const Sqlite *q = &reader->sqlite;
    const int64_t kind = q->column_int64(row, 0);
    const double seconds = (double)q->column_int64(row, 2) / 1e9;

    g_array_append_val(reader->seconds, seconds);
    if (q->column_int64(row, 3) == 0)
        return;
    const guint n = reader->seconds->len;
    const double *times = (const double *)(void *)reader->seconds->data;
    const ProfileMeasurement copy = {.op = kind == 1   ? PROFILE_OP_COPY_H2D
                                           : kind == 2 ? PROFILE_OP_COPY_D2H
                                                       : PROFILE_OP_COPY_D2D,
                                     .bytes = q->column_int64(row, 1),
                                     .median_s = times[(n - 1) / 2],
                                     .p10_s = times[(n - 1) / 10],
                                     .p90_s = times[(n - 1) * 9 / 10]};

    profile_add(reader->import->profile, &copy);
    g_array_set_size(reader->seconds, 0);
}

/* --- all of it --- */

/* Kinds of copies are CUPTI's: 1 and 2 to and from the device, of which those of pinned memory (kind
 * of memory 1) are an executor's, 8 on it. */
static const char copies_query[] =
    "SELECT copyKind, bytes, t, row_number() OVER w = count(*) OVER (PARTITION BY copyKind, bytes) "
    "FROM (SELECT copyKind, bytes, end - start AS t FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE "
    "end > start AND end - start < 1000000000000 AND bytes >= " G_STRINGIFY(
        MIN_COPY_BYTES) " AND bytes <= 9007199254740992 AND "
                        "(copyKind = 8 OR (copyKind = 1 AND srcKind = 1) OR (copyKind = 2 AND "
                        "dstKind = 1))) "
                        "WINDOW w AS (PARTITION BY copyKind, bytes ORDER BY t ROWS UNBOUNDED "
                        "PRECEDING) ORDER BY copyKind, bytes, t";

#define TIMES "start >= 0 AND end >= start AND end <= 9007199254740992"

static bool
read_tables(Reader *reader, GError **error)
{
    static const struct {
        const char *tables, *query;
        RowFunc take;
    } queries[] = {
        {"CUPTI_ACTIVITY_KIND_MEMCPY", copies_query, take_copy},
        {"NVTX_EVENTS",
         "SELECT count(*) FROM pragma_table_info('NVTX_EVENTS') WHERE name = 'jsonText'",
         take_column},
        {"NVTX_EVENTS;StringIds",
         "SELECT jsonText FROM NVTX_EVENTS LEFT JOIN StringIds s ON s.id = textId WHERE "
         "coalesce(text, s.value) LIKE 'ncclCommInit%' AND jsonText IS NOT NULL",
         take_communicator},
        /* Of type 59: ranges of one thread. */
        {"NVTX_EVENTS;StringIds",
         "SELECT start, end, globalTid, coalesce(text, s.value), jsonText FROM NVTX_EVENTS LEFT "
         "JOIN "
         "StringIds s ON s.id = textId WHERE eventType = 59 AND " TIMES,
         take_range},
        {"CUPTI_ACTIVITY_KIND_KERNEL;StringIds",
         "SELECT start, end, globalPid >> 24, correlationId, s.value FROM "
         "CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds s ON s.id = demangledName WHERE " TIMES
         " ORDER BY start LIMIT " G_STRINGIFY(MAX_KERNELS),
         take_kernel},
        {"CUPTI_ACTIVITY_KIND_KERNEL;CUPTI_ACTIVITY_KIND_RUNTIME",
         "SELECT start, end, globalTid >> 24, correlationId, globalTid FROM "
         "CUPTI_ACTIVITY_KIND_RUNTIME WHERE correlationId IN (SELECT correlationId FROM "
         "CUPTI_ACTIVITY_KIND_KERNEL) AND " TIMES " ORDER BY start LIMIT " G_STRINGIFY(MAX_KERNELS),
         take_launch},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(queries); i++) {
        g_auto(GStrv) parts = g_strsplit(queries[i].query, "jsonText", -1);
        g_autofree char *query = g_strjoinv(
            reader->has_payload || queries[i].take == take_column ? "jsonText" : "NULL", parts);

        if (!run_query(reader, queries[i].tables, query, queries[i].take, error))
            return false;
    }
    return true;
}

/* Reads the events of @reader's writer as those of a trace. */
static bool
read_events(Reader *reader, GError **error)
{
    Import *import = reader->import;
    size_t n_bytes;

    json_write_array_end(reader->writer);
    if (reader->world_size > 0) {
        json_write_object(reader->writer, "distributedInfo");
        json_write_int64(reader->writer, "world_size", reader->world_size);
        json_write_object_end(reader->writer);
    }
    json_write_object_end(reader->writer);
    g_autofree char *text = json_writer_steal(reader->writer, &n_bytes);
    g_autoptr(JsonDoc) doc = json_doc_parse(reader->name, text, n_bytes, error);
    if (doc == NULL)
        return false;
    const bool is_any = import_events(import, doc, json_doc_root(doc, NULL, 0));
    if (!is_any && import->profile->measurements->len == import->n_before &&
        !json_doc_failed(doc)) {
        g_set_error(error, PROFILE_IMPORT_ERROR, PROFILE_IMPORT_ERROR_INVALID,
                    "%s: no copies, and no kernels that are taken: %s", reader->name, import->note);
        return false;
    }
    return json_doc_finish(doc, error);
}

bool
import_nsys(Import *import, const char *name, char *bytes, size_t n_bytes, GError **error)
{
    Reader reader = {.import = import, .name = name, .writer = json_writer_new_compact()};
    const Sqlite *q = &reader.sqlite;
    bool done = false;

    reader.processes = g_hash_table_new(NULL, NULL);
    reader.ranks = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    reader.seconds = g_array_new(FALSE, FALSE, sizeof(double));
    json_write_object(reader.writer, NULL);
    json_write_array(reader.writer, "traceEvents");
    if (open_library(&reader.sqlite, error)) {
        if (q->open_v2(":memory:", &reader.db, OPEN_READ_WRITE | OPEN_MEMORY, NULL) != 0 ||
            q->deserialize(reader.db, "main", (unsigned char *)bytes, (int64_t)n_bytes,
                           (int64_t)n_bytes, DESERIALIZE_READ_ONLY) != 0) {
            g_set_error(error, PROFILE_IMPORT_ERROR, PROFILE_IMPORT_ERROR_INVALID,
                        "%s: SQLite cannot open it", name);
        } else {
            q->progress_handler(reader.db, 1000000, count_steps, &reader);
            done = read_tables(&reader, error) && read_events(&reader, error);
        }
        q->close(reader.db);
    }
    json_writer_free(reader.writer);
    g_hash_table_unref(reader.processes);
    g_hash_table_unref(reader.ranks);
    g_array_unref(reader.seconds);
    return done;
}
