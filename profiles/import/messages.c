#include "profiles/import/messages.h"

#include "base/units.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum {
    TAKEN,
    SKIP_SIZE,
    SKIP_KIND,
    SKIP_GROUP,
    SKIP_RANKS,
    SKIP_ORDER,
    SKIP_SHARED,
    SKIP_ZERO,
    SKIP_N,
} Outcome;

static const char *const skip_names[SKIP_N] = {
    [SKIP_SIZE] = "without the size of its message",
    [SKIP_KIND] = "of a collective that a profile cannot hold",
    [SKIP_GROUP] = "of a group whose size is not said",
    [SKIP_RANKS] = "of a group whose ranks are not said",
    [SKIP_ORDER] = "of a group whose ranks are not equally far apart",
    [SKIP_SHARED] = "that shares its call with others",
    [SKIP_ZERO] = "without bytes, time or peers",
};

/* One kind of collective of one size. */
typedef struct {
    const char *op;
    ProfileGroup group;
    int64_t bytes;
    double us; /* the shortest */
} Kernel;

typedef struct {
    Import *import;
    JsonDoc *doc;
    int64_t world_size;  /* 0: not said */
    GHashTable *sharers; /* (owned) event that says a message -> how many kernels it launched */
} Messages;

/* PyTorch's names of number formats, of arguments of kernels and of "Input type", -> bytes. */
static int64_t
element_bytes(const char *type)
{
    static const struct {
        const char *name;
        int64_t bytes;
    } kinds[] = {
        {"Float", 4},
        {"Half", 2},
        {"BFloat16", 2},
        {"Double", 8},
        {"Int", 4},
        {"Long", 8},
        {"Byte", 1},
        {"Char", 1},
        {"Float8_e4m3fn", 1},
        {"Float8_e5m2", 1},
        {"Bool", 1},
        {"float", 4},
        {"c10::Half", 2},
        {"c10::BFloat16", 2},
        {"double", 8},
        {"int", 4},
        {"long", 8},
        {"long int", 8},
        {"unsigned char", 1},
        {"signed char", 1},
        {"c10::Float8_e4m3fn", 1},
        {"c10::Float8_e5m2", 1},
        {"bool", 1},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(kinds); i++) {
        if (strcmp(kinds[i].name, type) == 0)
            return kinds[i].bytes;
    }
    return 0;
}

/* --- which message --- */

/* Whole buffers in nccl-tests' convention: what leaves of all_gather is a rank's share. */
static Outcome
set_message(const Messages *messages, const JsonValue *where, const char *collective, int64_t n,
            const char *type, Kernel *kernel)
{
    static const struct {
        const char *collective, *op;
        bool is_share;
    } kinds[] = {
        {"allreduce", "all_reduce", false},
        {"all_reduce", "all_reduce", false},
        {"_allgather_base", "all_gather", true},
        {"_all_gather_base", "all_gather", true},
        {"all_gather", "all_gather", true},
        {"_reduce_scatter_base", "reduce_scatter", false},
        {"reduce_scatter", "reduce_scatter", false},
        {"all_to_all", "alltoall", false},
        {"all_to_allv", "alltoall", false},
        {"send", "sendrecv", false},
        {"recv", "sendrecv", false},
    };
    const int64_t bytes = element_bytes(type);

    for (size_t i = 0; i < G_N_ELEMENTS(kinds); i++) {
        if (strcmp(kinds[i].collective, collective) != 0)
            continue;
        kernel->op = kinds[i].op;
        if (__builtin_mul_overflow(n * bytes, kinds[i].is_share ? kernel->group.n : 1,
                                   &kernel->bytes))
            json_fail(messages->doc, where, "a message beyond all memory");
        return bytes == 0 ? SKIP_SIZE : TAKEN;
    }
    return SKIP_KIND;
}

/* "[0, 8, 16, 24]", or "[0, 1, ..., 14, 15]": a group of ranks that are equally far apart. */
static Outcome
set_ranks(const Messages *messages, const char *ranks, ProfileGroup *group)
{
    int64_t first, node, last = -1, stride = 0, n = 0;
    char *end;

    for (const char *p = ranks + strspn(ranks, "[ "); g_ascii_isdigit(*p); p = end) {
        const int64_t rank = strtoll(p, &end, 10);

        if (n == 1)
            stride = rank - last;
        if (rank >= MODEL_CLUSTER_MAX_DEVICES || (n > 0 && (stride < 1 || rank - last != stride)))
            return SKIP_ORDER;
        last = rank;
        n++;
        end += strspn(end, ", ");
    }
    if (n < 2)
        return SKIP_RANKS;
    /* Its place in a node counts, not which node it is. */
    model_cluster_node(messages->import->profile->cluster, 0, &first, &node);
    group->stride = stride;
    group->first = strtoll(ranks + strspn(ranks, "[ "), NULL, 10) % node;
    return TAKEN;
}

/* A group whose ranks are not said is taken for neighbours where it is all ranks, or where all
 * ranks are in one node. */
static Outcome
assume_ranks(const Messages *messages, ProfileGroup *group)
{
    int64_t first, node;

    model_cluster_node(messages->import->profile->cluster, 0, &first, &node);
    group->stride = 1;
    return messages->world_size == 0 || messages->world_size <= MAX(node, group->n) ? TAKEN
                                                                                    : SKIP_RANKS;
}

/* As the profiler writes it beside "Collective name". */
static Outcome
read_arguments(const Messages *messages, const JsonValue *args, Kernel *kernel)
{
    JsonDoc *doc = messages->doc;
    const char *collective = json_string(doc, args, "Collective name");
    const int64_t n = json_int64(doc, args, "In msg nelems", 0, JSON_MAX_INT / 8);
    const char *type = json_string(doc, args, "dtype");
    const char *ranks = import_event_text(doc, args, "Process Group Ranks");

    kernel->group.n = json_int64(doc, args, "Group size", 1, MODEL_CLUSTER_MAX_DEVICES);
    const Outcome message = set_message(messages, args, collective, n, type, kernel);
    if (message != TAKEN || kernel->group.n < 2)
        return message != TAKEN ? message : SKIP_ZERO;
    return strpbrk(ranks, "0123456789") != NULL ? set_ranks(messages, ranks, &kernel->group)
                                                : assume_ranks(messages, &kernel->group);
}

/* A range "nccl:all_reduce" or "nccl:send 0->1" around the launch: its input is one tensor, and
 * its group, which it does not say, is known where there are two ranks in all. */
static Outcome
read_range(const Messages *messages, const JsonValue *event, Kernel *kernel)
{
    JsonDoc *doc = messages->doc;
    const JsonValue *args = import_event_args(doc, event);
    const char *name = import_event_text(doc, event, "name") + strlen("nccl:");
    g_autofree char *collective = g_strndup(name, strcspn(name, " "));
    const JsonValue *dims = args == NULL ? NULL : json_array_or_null(doc, args, "Input Dims");
    const JsonValue *types = args == NULL ? NULL : json_array_or_null(doc, args, "Input type");
    int64_t n = 1;

    if (dims == NULL || types == NULL || json_length(dims) != 1 || json_length(types) != 1 ||
        !json_is_array(json_first(dims)) || !json_is_string(json_first(types)))
        return SKIP_SIZE;
    JSON_EACH (v, json_first(dims), doc) {
        if (__builtin_mul_overflow(n, json_value_int64(doc, v, 0, JSON_MAX_INT), &n) ||
            n > JSON_MAX_INT / 8)
            json_fail(doc, v, "a tensor beyond all memory");
    }
    kernel->group = (ProfileGroup){.stride = 1, .n = 2};
    const Outcome message = set_message(messages, event, collective, n,
                                        json_value_string(doc, json_first(types)), kernel);
    return message == TAKEN && messages->world_size != 2 ? SKIP_GROUP : message;
}

static Outcome
read_kernel(const Messages *messages, const ImportLaunches *launches, const JsonValue *event,
            Kernel *kernel)
{
    JsonDoc *doc = messages->doc;
    const JsonValue *args = import_event_args(doc, event);
    const ImportLaunch *launch = import_launches_find(launches, doc, args);
    const JsonValue *said = launch == NULL ? NULL : launch->message;
    const JsonValue *said_args = said == NULL ? NULL : import_event_args(doc, said);
    Outcome outcome;

    *kernel = (Kernel){.group.stride = 1};
    if (args != NULL && json_has(doc, args, "Collective name"))
        outcome = read_arguments(messages, args, kernel);
    else if (said == NULL)
        return SKIP_SIZE;
    else if (GPOINTER_TO_UINT(g_hash_table_lookup(messages->sharers, said)) != 1)
        return SKIP_SHARED;
    else if (said_args != NULL && json_has(doc, said_args, "Collective name"))
        outcome = read_arguments(messages, said_args, kernel);
    else
        outcome = read_range(messages, said, kernel);
    if (outcome != TAKEN || json_doc_failed(doc))
        return outcome;
    kernel->us = import_event_us(doc, event);
    return kernel->bytes > 0 && kernel->us > 0.0 ? TAKEN : SKIP_ZERO;
}

/* --- all of them --- */

static void
keep_shortest(GArray *kernels, const Kernel *kernel)
{
    for (guint i = 0; i < kernels->len; i++) {
        Kernel *known = &g_array_index(kernels, Kernel, i);

        if (strcmp(known->op, kernel->op) == 0 && known->bytes == kernel->bytes &&
            memcmp(&known->group, &kernel->group, sizeof known->group) == 0) {
            known->us = fmin(known->us, kernel->us);
            return;
        }
    }
    g_array_append_val(kernels, *kernel);
}

/* "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(...)" -> "ncclDevKernel_AllReduce" and the reason. */
static void
count_skipped(GHashTable *skipped, const char *name, Outcome outcome)
{
    size_t length = strcspn(name, "_(");

    if (name[length] == '_')
        length += 1 + strcspn(name + length + 1, "_(");
    char *key = g_strdup_printf("%.*s %s", (int)MIN(length, 40), name, skip_names[outcome]);
    const guint n = GPOINTER_TO_UINT(g_hash_table_lookup(skipped, key));
    g_hash_table_insert(skipped, key, GUINT_TO_POINTER(n + 1));
}

static int
by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void
write_skipped(GHashTable *skipped, GString *note)
{
    guint n;
    g_autofree gpointer *keys = g_hash_table_get_keys_as_array(skipped, &n);

    qsort(keys, n, sizeof *keys, by_text);
    for (guint i = 0; i < n; i++) {
        const char *key = keys[i];

        g_string_append_printf(note, ", %u skipped: %s",
                               GPOINTER_TO_UINT(g_hash_table_lookup(skipped, key)), key);
    }
}

bool
import_messages(Import *import, JsonDoc *doc, const JsonValue *root, const JsonValue *events,
                const ImportLaunches *launches, GString *note)
{
    const JsonValue *world = json_object_or_null(doc, root, "distributedInfo");
    g_autoptr(GHashTable) sharers = g_hash_table_new(NULL, NULL);
    g_autoptr(GHashTable) skipped = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    g_autoptr(GArray) kernels = g_array_new(FALSE, TRUE, sizeof(Kernel));
    Messages messages = {.import = import, .doc = doc, .sharers = sharers};

    if (world != NULL)
        messages.world_size =
            json_int64_or(doc, world, "world_size", 0, MODEL_CLUSTER_MAX_DEVICES, 0);
    JSON_EACH (v, events, doc) {
        const ImportLaunch *launch =
            import_event_kind(doc, v) == IMPORT_EVENT_NCCL
                ? import_launches_find(launches, doc, import_event_args(doc, v))
                : NULL;

        if (launch != NULL && launch->message != NULL) {
            gpointer said = (gpointer)launch->message; /* a key only */
            const guint n = GPOINTER_TO_UINT(g_hash_table_lookup(sharers, said));

            g_hash_table_insert(sharers, said, GUINT_TO_POINTER(n + 1));
        }
    }
    JSON_EACH (v, events, doc) {
        Kernel kernel;

        if (import_event_kind(doc, v) != IMPORT_EVENT_NCCL)
            continue;
        const Outcome outcome = read_kernel(&messages, launches, v, &kernel);
        if (outcome == TAKEN && !json_doc_failed(doc))
            keep_shortest(kernels, &kernel);
        else if (outcome != TAKEN)
            count_skipped(skipped, import_event_text(doc, v, "name"), outcome);
    }
    for (guint i = 0; i < kernels->len && !json_doc_failed(doc); i++) {
        const Kernel *kernel = &g_array_index(kernels, Kernel, i);
        const double seconds = kernel->us / IMPORT_US_PER_S;

        import_collective(import, kernel->op, &kernel->group, kernel->bytes, seconds, seconds);
    }
    write_skipped(skipped, note);
    return kernels->len > 0;
}
