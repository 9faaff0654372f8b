/* degas serve: a page with sliders on this machine's loopback address that asks the planner. */
#include <math.h>
#include <string.h>

#include "base/embedded.h"
#include "base/order.h"
#include "base/units.h"
#include "cli/draw/describe.h"
#include "cli/draw/plot.h"
#include "cli/request/command.h"
#include "cli/request/output.h"
#include "cli/request/request.h"
#include "cli/request/subject.h"
#include "cli/serve/http.h"

#define DEFAULT_PORT 8765
/* Of a device-hour, in the cluster's currency. */
#define MAX_PRICE 10

static const OptionInfo options_table[] = {
    {"port", "N", "listen on port N at 127.0.0.1; 0: any free one; default: 8765", .common = true},
    {NULL, NULL, NULL},
};

/* A slider: values of a flag, or of a key of --set. */
typedef struct {
    const char *key;  /* of the page's question */
    const char *name; /* for people */
    const char *flag; /* NULL: --set KEY=VALUE with @key */
    const char *unit; /* behind a value, on the page and on the command line; shown with a space */
    const char *none; /* what "" means: the cluster's own; NULL: a value is needed */
    int64_t from, to; /* powers of two between */
} Slider;

static const Slider sliders[] = {
    {"gpus", "devices", "gpus", "", NULL, 1, 16384},
    {"batch", "sequences in a batch", "global-batch", "", NULL, 1, 16384},
    {"seq", "tokens in a sequence", "seq-len", "", NULL, 256, 1048576},
    {"network", "network of a device", NULL, "Gbps", "as it is", 25, 3200},
    {"price", "price of a device-hour", NULL, "", "as it is", 0, 0},
};

typedef struct {
    Options *options; /* (borrowed) as they were given: never read by getters here */
    ModelArch *arch;  /* (owned) */
    Profile *profile; /* (owned) */
    Request *first;   /* (owned) what the command line asks */
    GMutex lock;      /* one search at a time, which has all threads */
    GMutex who;       /* of asker and stop_of */
    char *asker;      /* (owned, nullable) whose question is being answered */
    int *stop_of;     /* (nullable) stops that search */
    bool is_ending;
    /* The split of the last answer: the next is near.  Answers by their command line; both of lock. */
    PlanDegrees near;    /* tp is 0 before the first answer */
    char *near_schedule; /* (owned, nullable) */
    GHashTable *known;   /* (owned) of (owned) char *, char * */
} Serve;

/* Before the best plan of a question the page asks for the best with the split of the answer before,
 * which is found in milliseconds; such an answer begins with this line. */
#define FIRST_ANSWER                                                                               \
    "<p class=\"faint\">With the split of the answer before; the best is being looked for.</p>\n"

/* Answers that are kept. */
#define MAX_KNOWN 256

/* --- the page --- */

static int
compare_int64(const void *a, const void *b)
{
    return ORDER(*(const int64_t *)a, *(const int64_t *)b);
}

/* The values of a slider, and where it begins: at @now, or where nothing is said. */
static void
write_values(JsonWriter *writer, const Slider *slider, int64_t now)
{
    g_autoptr(GArray) values = g_array_new(FALSE, FALSE, sizeof(int64_t));
    guint at = 0;

    for (int64_t value = slider->from; slider->to > 0 && value <= slider->to; value *= 2)
        if (value != now)
            g_array_append_val(values, value);
    if (slider->none == NULL)
        g_array_append_val(values, now);
    g_array_sort(values, compare_int64);
    json_write_array_inline(writer, "values");
    if (slider->none != NULL)
        json_write_string(writer, NULL, "");
    for (guint i = 0; i < values->len; i++) {
        const int64_t value = g_array_index(values, int64_t, i);

        at = slider->none == NULL && value == now ? i : at;
        json_write_string(writer, NULL, output_int64(value).text);
    }
    for (int i = 1; slider->to == 0 && i <= MAX_PRICE * 4; i++) {
        g_autofree char *price = json_format_double(0.25 * i);

        json_write_string(writer, NULL, price);
    }
    json_write_array_end(writer);
    json_write_int64(writer, "at", at);
}

/* (owned) The sliders for the page's script. */
static char *
describe_sliders(const Serve *serve)
{
    const PlanRequest *plan = &serve->first->plan;
    const int64_t now[G_N_ELEMENTS(sliders)] = {
        model_cluster_n_devices(serve->first->profile->cluster), plan->global_batch, plan->seq_len};
    g_autoptr(JsonWriter) writer = json_writer_new();

    json_write_array(writer, NULL);
    for (size_t i = 0; i < G_N_ELEMENTS(sliders); i++) {
        json_write_object(writer, NULL);
        json_write_string(writer, "key", sliders[i].key);
        json_write_string(writer, "name", sliders[i].name);
        json_write_string(writer, "unit", sliders[i].unit);
        json_write_string(writer, "none", sliders[i].none);
        write_values(writer, &sliders[i], now[i]);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
    return json_writer_steal(writer, NULL);
}

static char *
first_page(const Serve *serve)
{
    const EmbeddedFile *form = embedded_find("cli/plots/serve.html");
    g_autofree char *title = g_strdup_printf("%s on %s", serve->arch->name, serve->profile->name);
    g_autofree char *asks = describe_sliders(serve);
    g_autofree char *script =
        g_strdup_printf("<script type=\"application/json\" id=\"asks\">%s</script>\n", asks);
    g_autoptr(HtmlPage) page = page_new(title);

    g_assert(form != NULL);
    page_ask_server(page);
    page_about(page, "Move a slider: the planner finds the best plan of that job.");
    page_raw(page, script);
    page_raw(page, form->text);
    return page_text(page, "degas serve, on this machine alone");
}

/* --- answers --- */

static const char *const no_products[] = {"port", NULL};

/* Whether @text is a number as sliders have them: anything else is nobody's page. */
static bool
is_number(const char *text)
{
    return *text != 0 && strlen(text) <= 12 && strspn(text, "0123456789.") == strlen(text);
}

/* (owned) @options with the split of the answer before, which leaves recompute, ZeRO stage,
 * micro-batch and slices open, and dp to the number of devices. */
static Options *
options_near(const Serve *serve, const Options *options)
{
    const PlanDegrees *near = &serve->near;
    const UnitsText tp = output_int64(near->tp), pp = output_int64(near->pp),
                    vpp = output_int64(near->vpp), cp = output_int64(near->cp),
                    ep = output_int64(near->ep);
    const char *const pairs[][2] = {
        {"tp", tp.text}, {"pp", pp.text}, {"vpp", vpp.text},
        {"cp", cp.text}, {"ep", ep.text}, {"schedule", serve->near_schedule},
    };

    return options_copy_with(options, pairs, G_N_ELEMENTS(pairs));
}

/* (owned, nullable) The options of a question; NULL: it is none. */
static Options *
options_of(const Serve *serve, const HttpRequest *request)
{
    const char *pairs[G_N_ELEMENTS(sliders) + 1][2];
    const char *given = options_string(serve->options, "set", NULL);
    g_autoptr(GString) set = g_string_new(given);
    size_t n = 0;

    for (size_t i = 0; i < G_N_ELEMENTS(sliders); i++) {
        const char *text = request->get(request->request, sliders[i].key);

        if (text == NULL)
            continue;
        if (!is_number(text))
            return NULL;
        if (sliders[i].flag != NULL) {
            pairs[n][0] = sliders[i].flag;
            pairs[n++][1] = text;
        } else {
            g_string_append_printf(set, "%s%s=%s%s", set->len > 0 ? "," : "", sliders[i].key, text,
                                   sliders[i].unit);
        }
    }
    if (set->len > 0) {
        pairs[n][0] = "set";
        pairs[n++][1] = set->str;
    }
    return options_copy_with(serve->options, (const char *const(*)[2])pairs, n);
}

/* What a token costs, where there is a price. */
static void
add_price(HtmlPage *page, const Job *job)
{
    const Report *report = job->plan->predicted;
    const char *currency = job->profile->cluster->currency;
    const double tokens = (double)(job->plan->global_batch * job->plan->seq_len);
    g_autofree char *name =
        g_strdup_printf("%s per billion tokens", currency == NULL ? "?" : currency);

    if (report != NULL && isfinite(report->cost_per_iteration))
        page_card(page, name, output_number(report->cost_per_iteration / tokens * 1e9).text);
}

/* (owned) The best plan of @request, simulated, as a part of a page.
 * @command  NULL: it is a first answer, FIRST_ANSWER. */
static char *
answer_with_plan(Serve *serve, const Request *request, const char *command, GError **error)
{
    g_autoptr(Plan) plan = plan_search(&request->plan, job_evaluate, NULL, error);
    g_autoptr(HtmlPage) page = page_new("");
    g_auto(JobSimulation) simulation = {0};

    if (plan == NULL)
        return NULL;
    g_autoptr(Job) job = job_new(model_arch_copy(request->arch), profile_copy(request->profile),
                                 g_steal_pointer(&plan));
    const JobOptions how = {.memory_limit_bytes = request->plan.memory_limit_bytes,
                            .want_trace = true};

    if (command != NULL) {
        serve->near = job->plan->degrees;
        g_free(serve->near_schedule);
        serve->near_schedule = g_strdup(job->plan->schedule);
    }
    if (!job_simulate(job, &how, &simulation, error))
        return NULL;
    html_add_iteration(page, job, simulation.result.report, simulation.result.trace);
    add_price(page, job);
    g_autoptr(GPtrArray) plans = g_ptr_array_new();
    g_ptr_array_add(plans, job->plan);
    for (guint i = 0; job->plan->alternatives != NULL && i < job->plan->alternatives->len; i++)
        g_ptr_array_add(plans, job->plan->alternatives->pdata[i]);
    output_keep(true);
    describe_plans((const Plan *const *)plans->pdata, plans->len);
    output_text("\n");
    describe_stages(job->plan);
    page_heading(page, "The best plans", NULL);
    page_kept(page);
    if (command != NULL) {
        page_heading(page, "The same as a command", NULL);
        page_paragraph(page, command);
    }
    g_autofree char *fragment = page_fragment(page);
    return g_strconcat(command == NULL ? FIRST_ANSWER : "", fragment, NULL);
}

/* Ends the search for an older question of @asker, if that is the one that runs. */
static void
stop_older(Serve *serve, const char *asker)
{
    g_mutex_lock(&serve->who);
    if (serve->stop_of != NULL && g_strcmp0(serve->asker, asker) == 0)
        g_atomic_int_set(serve->stop_of, 1);
    g_mutex_unlock(&serve->who);
}

static void
set_asker(Serve *serve, const char *asker, int *stop)
{
    g_mutex_lock(&serve->who);
    g_free(serve->asker);
    serve->asker = g_strdup(asker);
    serve->stop_of = stop;
    if (stop != NULL && serve->is_ending)
        *stop = 1;
    g_mutex_unlock(&serve->who);
}

/* (owned, nullable) The answer to the question of @options, which is kept unless it was stopped, or
 * with @is_near only that with the split of the answer before, if the whole one is not known. */
static char *
find_answer(Serve *serve, const char *asker, const Options *options, bool is_near, int *stop,
            GError **error)
{
    g_autofree char *command = options_command_line(options, "plan", no_products);
    char *body = g_strdup(g_hash_table_lookup(serve->known, command));

    if (body != NULL)
        return body;
    g_autoptr(Options) asked =
        is_near ? options_near(serve, options) : options_copy_with(options, NULL, 0);
    g_autoptr(Request) request = request_new(
        model_arch_copy(serve->arch), profile_copy(serve->profile), asked, REQUEST_SEARCHED, error);
    if (request == NULL)
        return NULL;
    request->plan.stop = stop;
    request->plan.top = is_near ? 0 : MAX(request->plan.top, 2);
    request->plan.near_tp = serve->near.tp;
    request->plan.near_pp = serve->near.pp;
    set_asker(serve, asker, stop);
    body = answer_with_plan(serve, request, is_near ? NULL : command, error);
    set_asker(serve, NULL, NULL);
    if (body == NULL || is_near || g_atomic_int_get(stop) != 0)
        return body;
    if (g_hash_table_size(serve->known) >= MAX_KNOWN)
        g_hash_table_remove_all(serve->known);
    g_hash_table_insert(serve->known, g_steal_pointer(&command), g_strdup(body));
    return body;
}

static void
answer_plan(Serve *serve, const HttpRequest *asked, HttpAnswer *answer)
{
    const char *asker = asked->get(asked->request, "page");
    bool is_near = asked->get(asked->request, "near") != NULL;
    g_autoptr(GError) error = NULL;
    int stop = 0;

    stop_older(serve, asker);
    g_mutex_lock(&serve->lock);
    g_autoptr(Options) options = options_of(serve, asked);
    is_near &= serve->near.tp > 0;
    if (options != NULL)
        answer->body = find_answer(serve, asker, options, is_near, &stop, &error);
    g_mutex_unlock(&serve->lock);
    /* That the split of before does not do is no mistake of the page. */
    if (is_near && answer->body == NULL && options != NULL && stop == 0) {
        g_autofree char *why = g_markup_escape_text(error->message, -1);
        answer->body = g_strdup_printf(FIRST_ANSWER "<p>%s</p>\n", why);
    }
    answer->status = answer->body != NULL ? 200 : 400;
    if (answer->body != NULL)
        answer->type = "text/html; charset=utf-8";
    else
        answer->body = g_strdup_printf("%s\n", error == NULL ? "this is no question of the page"
                                               : stop != 0   ? "a newer question came"
                                                             : error->message);
}

static void
answer(const HttpRequest *request, HttpAnswer *answer, void *user_data)
{
    Serve *serve = user_data;

    if (g_str_equal(request->path, "/plan")) {
        answer_plan(serve, request, answer);
    } else if (g_str_equal(request->path, "/")) {
        answer->status = 200;
        answer->type = "text/html; charset=utf-8";
        answer->body = first_page(serve);
    }
}

/* --- the command --- */

static void
serve_clear(Serve *serve)
{
    model_arch_free(serve->arch);
    profile_free(serve->profile);
    request_free(serve->first);
    g_free(serve->asker);
    g_free(serve->near_schedule);
    g_clear_pointer(&serve->known, g_hash_table_unref);
    g_mutex_clear(&serve->lock);
    g_mutex_clear(&serve->who);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Serve, serve_clear)

static int
run(Options *options, GError **error)
{
    uint16_t port = (uint16_t)options_int64(options, "port", 0, UINT16_MAX, DEFAULT_PORT);
    g_auto(Serve) serve = {.options = options};

    serve.known = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
    g_mutex_init(&serve.lock);
    g_mutex_init(&serve.who);
    if (!options_finish(options, error))
        return -1;
    serve.arch = request_load_model(options_argument(options, 0), error);
    serve.profile =
        serve.arch == NULL ? NULL : request_load_cluster(options_argument(options, 1), error);
    if (serve.profile == NULL)
        return -1;
    serve.first = request_new(model_arch_copy(serve.arch), profile_copy(serve.profile), options,
                              REQUEST_SEARCHED, error);
    if (serve.first == NULL)
        return -1;
    const int *interrupted = cmd_interrupt_watch();
    /* What an answer prints goes to its page: the first one waits until the address is printed. */
    g_mutex_lock(&serve.lock);
    HttpServer *server = http_start(&port, answer, &serve, error);
    if (server != NULL) {
        output_printf("http://127.0.0.1:%d/\n", port);
        output_flush();
    }
    g_mutex_unlock(&serve.lock);
    if (server == NULL)
        return -1;
    while (g_atomic_int_get(interrupted) == 0)
        g_usleep(G_USEC_PER_SEC / 20);
    g_mutex_lock(&serve.who);
    serve.is_ending = true;
    if (serve.stop_of != NULL)
        g_atomic_int_set(serve.stop_of, 1);
    g_mutex_unlock(&serve.who);
    http_stop(server);
    return 0;
}

const Command cmd_serve = {
    .name = "serve",
    .usage = "MODEL CLUSTER --global-batch N [options]",
    .summary = "a page with sliders on this machine that asks the planner",
    .details =
        "Prints the address of a page for this machine's browser: sliders for devices, batch,\n"
        "sequence, network and price, and below them the best plan of that job, its timeline\n"
        "and its memory.  Options that are given hold for every question.  Only programs of\n"
        "this machine are answered, and no page of another site.  Ctrl-C ends it.\n"
        "\n"
        "  degas serve llama3-70b dgx-h100 --gpus 64 --global-batch 512\n",
    .options = {options_table, request_options, request_search_options},
    .headings = {"The page", "The job and its split", "The search"},
    .min_arguments = 2,
    .max_arguments = 2,
    .run = run,
};
