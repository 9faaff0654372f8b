#include "cli/request/sizes.h"

#include <math.h>
#include <string.h>

#include "base/order.h"
#include "base/text.h"
#include "cli/request/command.h"
#include "cli/request/output.h"
#include "cli/request/subject.h"
#include "models/ops.h"

/* Searches take seconds; more than this is a typing error. */
#define MAX_POINTS 100000
#define MAX_CLUSTERS 16
/* A doubled number of devices that saves less of the time than this does not help. */
#define LEAST_GAIN 0.02

const OptionInfo sizes_options[] = {
    {"tokens", "N", "train on N tokens in all, e.g. 15T or 300B: adds days, cost, energy",
     .common = true},
    {"within", "TIME",
     "end the training within TIME, e.g. 60d: without --gpus as many devices as needed are "
     "planned, and the cheapest that makes it is the answer",
     .common = true},
    {"budget", "X", "spend at most X on the training, e.g. 2M, in the currency of the prices",
     .common = true},
    {"mtbf", "TIME",
     "let one device fail every TIME on average, e.g. 50000h; none: nothing fails; default: 2112 "
     "days"},
    {"checkpoint-bandwidth", "RATE",
     "let the whole storage take checkpoints at this rate, e.g. 200GB/s; default: 122 MB/s for "
     "each device"},
    {"restart-time", "TIME",
     "let it take TIME from a failure until training goes on; default: 15min"},
    {NULL, NULL, NULL},
};

/* --- what is asked --- */

/* One axis: a flag of the request that is a series here. */
typedef struct {
    const char *name;
    int64_t max;
    GArray *values; /* (owned, nullable) NULL: not given */
} Axis;

typedef enum {
    AXIS_GPUS,
    AXIS_BATCH,
    AXIS_SEQ_LEN,
    AXIS_N
} AxisIndex;

typedef struct {
    Axis axes[AXIS_N];
    ModelArch *arch;     /* (owned) */
    GPtrArray *profiles; /* (owned) of (owned) Profile * */
    char **prices;       /* (owned, nullable) of each cluster, or one of all */
    bool grows;          /* numbers of devices are not given */
} Question;

static void
question_clear(Question *question)
{
    for (int i = 0; i < AXIS_N; i++)
        g_clear_pointer(&question->axes[i].values, g_array_unref);
    g_clear_pointer(&question->arch, model_arch_free);
    g_clear_pointer(&question->profiles, g_ptr_array_unref);
    g_clear_pointer(&question->prices, g_strfreev);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Question, question_clear)

static void
read_axes(Axis axes[AXIS_N], Options *options)
{
    size_t n = 1;

    for (int i = 0; i < AXIS_N; i++) {
        axes[i].values = options_series(options, axes[i].name, 1, axes[i].max);
        if (axes[i].values != NULL)
            n *= axes[i].values->len;
    }
    if (n > MAX_POINTS)
        options_fail(options, "gpus", "%zu points are more than %d", n, MAX_POINTS);
}

static void
read_training(Sweep *sweep, Options *options)
{
    SweepReliability *r = &sweep->reliability;
    const bool is_safe = g_strcmp0(options_string(options, "mtbf", NULL), "none") == 0;

    sweep->tokens = options_quantity(options, "tokens", UNITS_KIND_COUNT, NAN);
    sweep->within_days = options_quantity(options, "within", UNITS_KIND_S, NAN) / 86400;
    sweep->budget = options_quantity(options, "budget", UNITS_KIND_COUNT, NAN);
    r->device_mtbf_s =
        is_safe ? INFINITY
                : options_quantity(options, "mtbf", UNITS_KIND_S, PLAN_GOODPUT_DEVICE_MTBF_S);
    r->checkpoint_bytes_per_s =
        options_quantity(options, "checkpoint-bandwidth", UNITS_KIND_BYTES_PER_S, 0);
    r->restart_s = options_quantity(options, "restart-time", UNITS_KIND_S, PLAN_GOODPUT_RESTART_S);
    if (!(r->device_mtbf_s > 0))
        options_fail(options, "mtbf", "expected a time above 0, or none");
    if (options_has(options, "checkpoint-bandwidth") && !(r->checkpoint_bytes_per_s > 0))
        options_fail(options, "checkpoint-bandwidth", "expected a rate above 0");
    if (options_has(options, "tokens") && !(sweep->tokens > 0))
        options_fail(options, "tokens", "expected a number above 0");
    if (options_has(options, "within") && !(sweep->within_days > 0))
        options_fail(options, "within", "expected a time above 0");
    if (options_has(options, "budget") && !(sweep->budget > 0))
        options_fail(options, "budget", "expected an amount above 0");
    for (int i = 0; i < 2; i++) {
        static const char *const names[] = {"within", "budget"};

        if (options_has(options, names[i]) && !options_has(options, "tokens"))
            options_fail(options, names[i], "needs --tokens, of the whole training");
    }
}

static bool
load_clusters(Question *question, Options *options, GError **error)
{
    g_auto(GStrv) names = g_strsplit(options_argument(options, 1), ",", -1);
    const guint n = g_strv_length(names);

    question->profiles = g_ptr_array_new_with_free_func((GDestroyNotify)profile_free);
    question->prices = options_words(options, "price");
    if (question->prices != NULL && question->prices[1] != NULL &&
        g_strv_length(question->prices) != n)
        options_fail(options, "price", "expected one price, or one of each of the %u clusters", n);
    if (n > MAX_CLUSTERS)
        return cmd_fail(error, CMD_ERROR_USAGE, "more than %d clusters", MAX_CLUSTERS);
    for (guint i = 0; i < n; i++) {
        Profile *profile = request_load_cluster(names[i], error);

        if (profile == NULL)
            return false;
        g_ptr_array_add(question->profiles, profile);
    }
    return options_finish(options, error);
}

/* The request of cluster number @cluster as @options say now. */
static Request *
make_request(const Question *question, guint cluster, Options *options, GError **error)
{
    const char *const *prices = (const char *const *)question->prices;

    if (prices != NULL)
        options_set(options, "price", prices[prices[1] == NULL ? 0 : cluster]);
    return request_new(model_arch_copy(question->arch),
                       profile_copy(question->profiles->pdata[cluster]), options, REQUEST_SEARCHED,
                       error);
}

/* Money is compared only where all of it is known, in one currency. */
static bool
check_prices(const Sweep *sweep, const Request *first, const Request *request, GError **error)
{
    const ModelCluster *a = first->profile->cluster, *b = request->profile->cluster;
    const bool has_price = model_cluster_price_per_hour(b, 0) > 0 &&
                           model_cluster_price_per_hour(b, model_cluster_n_devices(b) - 1) > 0;
    const bool is_compared =
        isfinite(sweep->budget) || (isfinite(sweep->within_days) && first != request);

    if (is_compared && !has_price)
        return cmd_fail(error, CMD_ERROR_USAGE,
                        "%s: the price of %s is not known; --price says what a device costs in an "
                        "hour, of several clusters with commas",
                        isfinite(sweep->budget) ? "--budget" : "--within", request->profile->name);
    if (has_price && g_strcmp0(a->currency, b->currency) != 0)
        return cmd_fail(error, CMD_ERROR_USAGE,
                        "prices in %s and %s cannot be compared; give all by --price",
                        a->currency == NULL ? "no currency" : a->currency, b->currency);
    return true;
}

/* --- points --- */

static void
add_search(Sizes *sizes, Request *request)
{
    searches_add(sizes->searches, request,
                 (double)model_cluster_n_devices(request->profile->cluster) *
                     (double)request->plan.global_batch);
}

/* Adds the searches of all given sizes on one cluster, in the order of the rows. */
static bool
add_given(Sizes *sizes, const Question *question, guint cluster, Options *options, GError **error)
{
    guint n_points = 1;

    for (int i = 0; i < AXIS_N; i++)
        n_points *= question->axes[i].values == NULL ? 1 : question->axes[i].values->len;
    for (guint point = 0; point < n_points; point++) {
        guint rest = point;

        for (int i = AXIS_N - 1; i >= 0; i--) { /* the last axis changes fastest */
            const GArray *values = question->axes[i].values;

            if (values == NULL)
                continue;
            options_set(options, question->axes[i].name,
                        output_int64(g_array_index(values, int64_t, rest % values->len)).text);
            rest /= values->len;
        }
        Request *request = make_request(question, cluster, options, error);
        if (request == NULL)
            return false;
        add_search(sizes, request);
        if (!check_prices(sizes->sweep, searches_at(sizes->searches, 0)->request, request, error))
            return false;
    }
    return true;
}

/* Adds the points of searches from number @first on.  @only_plans: sizes without a plan are left out,
 * since nobody asked for them. */
static bool
add_points(Sizes *sizes, const Question *question, guint first, bool only_plans, GError **error)
{
    for (guint i = first; i < sizes->searches->len; i++) {
        const Search *search = searches_at(sizes->searches, i);

        if (!search->is_done)
            continue;
        /* An error of the search is the reason of a row; others end the command. */
        if (search->error != NULL && search->error->domain != PLAN_ERROR) {
            g_propagate_error(error, g_error_copy(search->error));
            return false;
        }
        if (only_plans && search->plan == NULL)
            continue;
        sweep_add(sizes->sweep, search->request, search->plan,
                  search->error == NULL ? NULL : search->error->message);
        SweepPoint *point =
            &g_array_index(sizes->sweep->points, SweepPoint, sizes->sweep->points->len - 1);
        point->search = i;
        if (question->profiles->len > 1)
            point->cluster = g_strdup(search->request->profile->name);
    }
    return true;
}

/* --- numbers of devices that grow --- */

typedef struct {
    guint cluster;
    int64_t batch, seq_len; /* 0: as the request says */
    int64_t node;           /* devices of the first node */
    int64_t n;              /* the next number of devices */
    double days;            /* of the largest so far; infinite: it had no plan */
    bool has_plan, is_done;
} Grower;

static void
add_growers(GArray *growers, const Question *question)
{
    const GArray *batches = question->axes[AXIS_BATCH].values,
                 *lengths = question->axes[AXIS_SEQ_LEN].values;

    for (guint c = 0; c < question->profiles->len; c++) {
        const Profile *profile = question->profiles->pdata[c];

        for (guint b = 0; b < (batches == NULL ? 1 : batches->len); b++)
            for (guint l = 0; l < (lengths == NULL ? 1 : lengths->len); l++) {
                const ModelNodes *nodes = &g_array_index(profile->cluster->nodes, ModelNodes, 0);
                const Grower grower = {
                    .cluster = c,
                    .batch = batches == NULL ? 0 : g_array_index(batches, int64_t, b),
                    .seq_len = lengths == NULL ? 0 : g_array_index(lengths, int64_t, l),
                    .node = nodes->n_devices,
                    .n = nodes->n_devices,
                    .days = INFINITY,
                };
                g_array_append_val(growers, grower);
            }
    }
}

/* Days that the training takes at the least: all devices at the highest of their rates.  Half of the
 * model's FLOPs count, since attention need not compute the scores behind the mask. */
static double
least_days(const Sweep *sweep, const Request *request)
{
    const ModelCluster *cluster = request->profile->cluster;
    const double tokens = (double)request->plan.global_batch * (double)request->plan.seq_len;
    const double flops = model_flops_per_iteration(
        request->arch, (double)request->plan.global_batch, request->plan.seq_len);
    double peak = 0;

    for (guint i = 0; i < cluster->devices->len; i++)
        for (int d = 0; d < DTYPE_N; d++)
            peak = MAX(peak, g_array_index(cluster->devices, ModelDevice, i).flops_per_s[d]);
    return 0.5 * flops * (sweep->tokens / tokens) /
           (peak * (double)model_cluster_n_devices(cluster)) / 86400;
}

/* (owned) The request of @grower with @n devices. */
static Request *
grown_request(const Question *question, const Grower *grower, int64_t n, Options *options,
              GError **error)
{
    options_set(options, "gpus", output_int64(n).text);
    if (grower->batch > 0)
        options_set(options, "global-batch", output_int64(grower->batch).text);
    if (grower->seq_len > 0)
        options_set(options, "seq-len", output_int64(grower->seq_len).text);
    return make_request(question, grower->cluster, options, error);
}

/* Adds the next size that may be an answer. */
static bool
grow(Sizes *sizes, const Question *question, Grower *grower, Options *options, GError **error)
{
    for (; grower->n <= SIZES_MAX_DEVICES; grower->n *= 2) {
        Request *request = grown_request(question, grower, grower->n, options, error);

        if (request == NULL)
            return false;
        if (!(least_days(sizes->sweep, request) > sizes->sweep->within_days)) {
            add_search(sizes, request);
            return check_prices(sizes->sweep, searches_at(sizes->searches, 0)->request, request,
                                error);
        }
        request_free(request);
    }
    grower->is_done = true;
    return true;
}

/* Adds the sizes between @grower's last two, in whole nodes. */
static bool
refine(Sizes *sizes, const Question *question, const Grower *grower, Options *options,
       GError **error)
{
    int64_t last = grower->n / 2;

    for (int i = 5; i <= 7; i++) {
        const int64_t n = grower->n * i / 8 / grower->node * grower->node;

        if (n <= last)
            continue;
        last = n;
        Request *request = grown_request(question, grower, n, options, error);
        if (request == NULL)
            return false;
        add_search(sizes, request);
    }
    return true;
}

/* Takes in @point, that of @grower's last size.  Returns: whether the sizes before it are to be
 * looked at, too. */
static bool
take_point(const Sweep *sweep, Grower *grower, const SweepPoint *point)
{
    const double before = grower->days;
    const bool had_plan = grower->has_plan;

    if (!point->is_feasible) {
        grower->is_done = had_plan;
        grower->n *= 2;
        return false;
    }
    grower->has_plan = true;
    grower->days = point->effective_days;
    const bool is_answer = isfinite(sweep->within_days) ? grower->days <= sweep->within_days
                                                        : point->effective_cost > sweep->budget;
    grower->is_done = is_answer || !(grower->days < before * (1 - LEAST_GAIN));
    if (!grower->is_done)
        grower->n *= 2;
    return is_answer;
}

static bool
run_growing(Sizes *sizes, const Question *question, int64_t threads, Options *options,
            GError **interrupted, GError **error)
{
    g_autoptr(GArray) growers = g_array_new(FALSE, FALSE, sizeof(Grower));
    bool is_open = true;

    add_growers(growers, question);
    while (is_open && *interrupted == NULL) {
        const guint first = sizes->searches->len, first_point = sizes->sweep->points->len;
        g_autoptr(GPtrArray) asked = g_ptr_array_new(); /* of (borrowed) Grower *, by search */

        for (guint i = 0; i < growers->len; i++) {
            Grower *grower = &g_array_index(growers, Grower, i);

            if (!grower->is_done && !grow(sizes, question, grower, options, error))
                return false;
            if (!grower->is_done)
                g_ptr_array_add(asked, grower);
        }
        searches_run(sizes->searches, threads, "points", interrupted);
        if (!add_points(sizes, question, first, false, error))
            return false;
        is_open = asked->len > 0;
        for (guint i = 0; *interrupted == NULL && i < asked->len; i++)
            if (take_point(sizes->sweep, asked->pdata[i],
                           sweep_at(sizes->sweep, first_point + i)) &&
                !refine(sizes, question, asked->pdata[i], options, error))
                return false;
        const guint refined = first + asked->len;
        if (*interrupted == NULL && sizes->searches->len > refined) {
            searches_run(sizes->searches, threads, "points", interrupted);
            if (!add_points(sizes, question, refined, true, error))
                return false;
        }
    }
    return true;
}

/* --- all of it --- */

void
sizes_clear(Sizes *sizes)
{
    g_clear_pointer(&sizes->sweep, sweep_free);
    g_clear_pointer(&sizes->searches, g_ptr_array_unref);
}

bool
sizes_are_asked(Options *options)
{
    return strchr(options_argument(options, 1), ',') != NULL || options_has(options, "tokens") ||
           options_has(options, "within") || options_has(options, "budget");
}

/* (owned) The number formats of all requests, as clusters have different ones: "bf16,fp16". */
static char *
dtypes_text(const GPtrArray *searches)
{
    GString *text = g_string_new(NULL);
    bool is_there[DTYPE_N] = {false};

    for (guint i = 0; i < searches->len; i++) {
        const Dtype dtype = searches_at(searches, i)->request->plan.dtype;

        if (!is_there[dtype])
            g_string_append_printf(text, "%s%s", text->len == 0 ? "" : ",", dtype_names[dtype]);
        is_there[dtype] = true;
    }
    return g_string_free(text, FALSE);
}

static void
describe_request(Sweep *sweep, const GPtrArray *searches, const char *cluster)
{
    const Request *request = searches_at(searches, 0)->request;
    const ModelCluster *first = request->profile->cluster;

    sweep->model = g_strdup(request->arch->name);
    sweep->cluster = g_strdup(cluster);
    sweep->dtype = dtypes_text(searches);
    sweep->objective = g_strdup(plan_objective_names[request->plan.objective]);
    sweep->price_per_device_hour = first->price_per_device_hour;
    sweep->currency = g_strdup(first->currency);
    sweep->price_source = g_strdup(first->price_source);
}

/* Rows of one cluster together, as they were asked for; by size within it. */
static int
compare_points(const void *a, const void *b, void *searches)
{
    const SweepPoint *x = a, *y = b;
    const char *first = searches_at(searches, 0)->request->profile->name;

    ORDER_BY(g_strcmp0(x->cluster, first) != 0, g_strcmp0(y->cluster, first) != 0);
    ORDER_BY(g_strcmp0(x->cluster, y->cluster), 0);
    ORDER_BY(x->n_devices, y->n_devices);
    ORDER_BY(x->global_batch, y->global_batch);
    return ORDER(x->seq_len, y->seq_len);
}

bool
sizes_run(Sizes *sizes, Options *options, GError **interrupted, GError **error)
{
    g_auto(Question) question = {.axes = {[AXIS_GPUS] = {"gpus", MODEL_CLUSTER_MAX_DEVICES, NULL},
                                          [AXIS_BATCH] = {"global-batch", INT64_C(1) << 31, NULL},
                                          [AXIS_SEQ_LEN] = {"seq-len", MODEL_MAX_SEQ_LEN, NULL}}};

    *sizes = (Sizes){.sweep = sweep_new(), .searches = searches_new()};
    read_axes(question.axes, options);
    read_training(sizes->sweep, options);
    const int64_t threads = options_threads(options);
    if (!options_finish(options, error))
        return false;
    question.arch = request_load_model(options_argument(options, 0), error);
    if (question.arch == NULL || !load_clusters(&question, options, error))
        return false;
    question.grows = !options_has(options, "gpus") &&
                     (isfinite(sizes->sweep->within_days) || isfinite(sizes->sweep->budget));
    for (guint i = 0; !question.grows && i < question.profiles->len; i++)
        if (!add_given(sizes, &question, i, options, error))
            return false;
    if (question.grows) {
        if (!run_growing(sizes, &question, threads, options, interrupted, error))
            return false;
    } else {
        searches_run(sizes->searches, threads, "points", interrupted);
        if (!add_points(sizes, &question, 0, false, error))
            return false;
    }
    sizes->sweep->is_complete = *interrupted == NULL;
    if (sizes->searches->len == 0)
        return cmd_fail(error, CMD_ERROR_NO, "--within: not even %d devices at their peak make it",
                        SIZES_MAX_DEVICES);
    const Request *first = searches_at(sizes->searches, 0)->request;
    g_autofree char *several = text_escape(options_argument(options, 1), 300);
    describe_request(sizes->sweep, sizes->searches,
                     question.profiles->len > 1 ? several : first->profile->name);
    if (question.grows)
        g_array_sort_with_data(sizes->sweep->points, compare_points, sizes->searches);
    return true;
}
