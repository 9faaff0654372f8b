#include "profiles/import/launches.h"

#include "base/order.h"

#include <string.h>

#define MAX_TS_US 1e18
/* Operators in operators: what is deeper around a launch is not looked at. */
#define MAX_DEPTH 64

/* --- events --- */

const char *
import_event_text(JsonDoc *doc, const JsonValue *event, const char *key)
{
    return json_has(doc, event, key) && json_is_string(json_member(doc, event, key))
               ? json_string(doc, event, key)
               : "";
}

const JsonValue *
import_event_args(JsonDoc *doc, const JsonValue *event)
{
    return json_has(doc, event, "args") ? json_object_or_null(doc, event, "args") : NULL;
}

ImportEvent
import_event_kind(JsonDoc *doc, const JsonValue *event)
{
    static const struct {
        const char *category;
        ImportEvent kind;
    } kinds[] = {
        {"cpu_op", IMPORT_EVENT_OPERATOR},
        {"Operator", IMPORT_EVENT_OPERATOR},
        {"user_annotation", IMPORT_EVENT_OPERATOR},
        {"cuda_runtime", IMPORT_EVENT_LAUNCH},
        {"cuda_driver", IMPORT_EVENT_LAUNCH},
        {"Runtime", IMPORT_EVENT_LAUNCH},
        {"kernel", IMPORT_EVENT_KERNEL},
        {"Kernel", IMPORT_EVENT_KERNEL},
    };
    const char *category = import_event_text(doc, event, "cat");

    for (size_t i = 0; i < G_N_ELEMENTS(kinds); i++) {
        if (strcmp(category, kinds[i].category) == 0)
            return kinds[i].kind == IMPORT_EVENT_KERNEL &&
                           g_str_has_prefix(import_event_text(doc, event, "name"), "nccl")
                       ? IMPORT_EVENT_NCCL
                       : kinds[i].kind;
    }
    return IMPORT_EVENT_OTHER;
}

static int64_t
number_of(JsonDoc *doc, const JsonValue *args, const char *key)
{
    return args != NULL && json_has(doc, args, key) ? json_int64(doc, args, key, 0, JSON_MAX_INT)
                                                    : -1;
}

int64_t
import_event_id(JsonDoc *doc, const JsonValue *args)
{
    /* With PyTorch before 2.0 the key is in lower case. */
    const int64_t id = number_of(doc, args, "External id");

    return id >= 0 ? id : number_of(doc, args, "external id");
}

double
import_event_start_us(JsonDoc *doc, const JsonValue *event)
{
    return json_double(doc, event, "ts", -MAX_TS_US, MAX_TS_US);
}

double
import_event_us(JsonDoc *doc, const JsonValue *event)
{
    return json_double(doc, event, "dur", 0.0, IMPORT_MAX_US);
}

/* --- calls on the CPU --- */

typedef struct {
    guint thread;
    double start_us, end_us;
    int64_t id, correlation; /* the latter of launches only */
    const JsonValue *event;
    bool is_message;
} Call;

struct ImportLaunches {
    bool by_time;
    GHashTable *launches; /* (owned) correlation (owned) -> ImportLaunch (owned) */
};

/* A number for each pair of pid and tid, which are numbers or texts. */
static guint
thread_of(GHashTable *threads, JsonDoc *doc, const JsonValue *event)
{
    g_autoptr(GString) name = g_string_new(NULL);
    static const char *const keys[] = {"pid", "tid"};

    for (size_t i = 0; i < G_N_ELEMENTS(keys); i++) {
        const JsonValue *v = json_member(doc, event, keys[i]);

        if (v != NULL && json_is_string(v))
            g_string_append_printf(name, "%s\n", json_value_string(doc, v));
        else if (v != NULL && json_is_number(v))
            g_string_append_printf(name, "%.17g\n", json_value_double(doc, v, -1e300, 1e300));
    }
    guint n = GPOINTER_TO_UINT(g_hash_table_lookup(threads, name->str));
    if (n == 0) {
        n = g_hash_table_size(threads) + 1;
        g_hash_table_insert(threads, g_strdup(name->str), GUINT_TO_POINTER(n));
    }
    return n;
}

static bool
says_message(JsonDoc *doc, const JsonValue *event, const JsonValue *args)
{
    return g_str_has_prefix(import_event_text(doc, event, "name"), "nccl:") ||
           (args != NULL && json_has(doc, args, "Collective name"));
}

/* By thread and start; of two that begin at once, the longer one is around the other. */
static int
by_start(const void *a, const void *b)
{
    const Call *x = a, *y = b;

    ORDER_BY(x->thread, y->thread);
    ORDER_BY(x->start_us, y->start_us);
    return ORDER(y->end_us, x->end_us);
}

/* Of the operators around @launch, innermost last in @around: what it belongs to. */
static ImportLaunch
launch_in(const GArray *operators, const GArray *around, const Call *launch, bool by_time)
{
    ImportLaunch found = {.id = by_time ? -1 : launch->id};
    bool is_first = true;

    for (guint i = around->len; i > 0 && around->len - i < MAX_DEPTH; i--) {
        const Call *call = &g_array_index(operators, Call, g_array_index(around, guint, i - 1));

        if (call->end_us < launch->start_us)
            continue;
        if (is_first && by_time)
            found.id = call->id;
        is_first = false;
        if (call->is_message) {
            found.message = call->event;
            break;
        }
    }
    return found;
}

/* Both sorted: one sweep over each thread's time. */
static void
join(ImportLaunches *launches, const GArray *operators, const GArray *starts)
{
    g_autoptr(GArray) around = g_array_new(FALSE, FALSE, sizeof(guint));
    guint next = 0, thread = 0;

    for (guint i = 0; i < starts->len; i++) {
        const Call *launch = &g_array_index(starts, Call, i);

        if (launch->thread != thread)
            g_array_set_size(around, 0);
        thread = launch->thread;
        for (; next < operators->len; next++) {
            const Call *call = &g_array_index(operators, Call, next);

            if (call->thread > thread ||
                (call->thread == thread && call->start_us > launch->start_us))
                break;
            if (call->thread < thread)
                continue;
            while (around->len > 0 &&
                   g_array_index(operators, Call, g_array_index(around, guint, around->len - 1))
                           .end_us < call->start_us)
                g_array_set_size(around, around->len - 1);
            g_array_append_val(around, next);
        }
        const ImportLaunch found = launch_in(operators, around, launch, launches->by_time);
        g_hash_table_insert(launches->launches, g_memdup2(&launch->correlation, sizeof(int64_t)),
                            g_memdup2(&found, sizeof found));
    }
}

ImportLaunches *
import_launches_new(JsonDoc *doc, const JsonValue *events)
{
    g_autoptr(GHashTable) threads = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    g_autoptr(GArray) operators = g_array_new(FALSE, FALSE, sizeof(Call));
    g_autoptr(GArray) starts = g_array_new(FALSE, FALSE, sizeof(Call));
    ImportLaunches *launches = g_new0(ImportLaunches, 1);
    bool says_id = false, says_correlation = false;

    launches->launches = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, g_free);
    JSON_EACH (v, events, doc) {
        const ImportEvent kind = import_event_kind(doc, v);
        const JsonValue *args = import_event_args(doc, v);
        Call call = {.event = v, .correlation = -1};

        if (kind != IMPORT_EVENT_OPERATOR && kind != IMPORT_EVENT_LAUNCH)
            continue;
        call.id = import_event_id(doc, args);
        if (kind == IMPORT_EVENT_LAUNCH) {
            call.correlation = number_of(doc, args, "correlation");
            says_id |= call.id >= 0 && call.id != call.correlation;
            says_correlation |= call.id >= 0 && call.id == call.correlation;
            if (call.correlation < 0)
                continue;
        } else {
            call.is_message = says_message(doc, v, args);
            if (!json_has(doc, v, "ts") || !json_has(doc, v, "dur"))
                continue;
        }
        call.thread = thread_of(threads, doc, v);
        call.start_us = json_has(doc, v, "ts") ? import_event_start_us(doc, v) : 0.0;
        call.end_us = call.start_us + (json_has(doc, v, "dur") ? import_event_us(doc, v) : 0.0);
        g_array_append_val(kind == IMPORT_EVENT_LAUNCH ? starts : operators, call);
    }
    launches->by_time = says_correlation && !says_id;
    g_array_sort(operators, by_start);
    g_array_sort(starts, by_start);
    join(launches, operators, starts);
    return launches;
}

void
import_launches_free(ImportLaunches *launches)
{
    if (launches == NULL)
        return;
    g_hash_table_unref(launches->launches);
    g_free(launches);
}

const ImportLaunch *
import_launches_find(const ImportLaunches *launches, JsonDoc *doc, const JsonValue *args)
{
    const gint64 correlation = number_of(doc, args, "correlation");

    return g_hash_table_lookup(launches->launches, &correlation);
}

int64_t
import_launches_operator(const ImportLaunches *launches, JsonDoc *doc, const JsonValue *args)
{
    const int64_t own = launches->by_time ? -1 : import_event_id(doc, args);
    const ImportLaunch *launch = import_launches_find(launches, doc, args);

    return own >= 0 ? own : launch != NULL ? launch->id : -1;
}
