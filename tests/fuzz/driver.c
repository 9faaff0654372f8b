/*
 * Fuzzes without libFuzzer: the same seed gives the same inputs with every compiler.
 *
 *   driver list                   names of the targets
 *   driver seeds FOLDER           writes FOLDER/TARGET/N and FOLDER/words.dict, for libFuzzer
 *   driver mutate TARGET|all N SEED   N mutations of the target's seeds
 *   driver try TARGET FILE        one input
 *   driver requests N SEED [CPU_S [FIRST [CTRL_C_S]]]  N random requests of degas plan and degas simulate, from the
 *                                 FIRST (0) of the seed's list on: models, clusters, and every option that names no file,
 *                                 of up to 1024 devices; each may take CPU_S seconds of CPU (10), and is interrupted as
 *                                 by Ctrl-C after CTRL_C_S of them (never), as many searches are long
 *   driver runs N SEED [FIRST]    N random small models, from the FIRST (0) of the seed's list on, each planned by degas plan
 *                                 with random options on up to 8 devices, and what could be planned is run for a step, its
 *                                 loss and all gradients compared with one device's
 *
 * Inputs are tried in a child process.  When it dies the input, or the request, is printed and kept (FOLDER of
 * FUZZ_CRASHES), and the next are tried by another child.  TAP on stderr, as stdout is what degas prints.
 */
#include <errno.h>
#include <glib/gstdio.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/embedded.h"
#include "cli/request/command.h"
#include "schedule/schedule.h"
#include "tests/fuzz/targets.h"

#define MAX_BYTES (1u << 18)
#define BATCH 256
#define SLOW_S 5.0

extern const Command *const cmd_all[];

/* What the child is doing, for the parent. */
typedef struct {
    int64_t n_done; /* or the exit status of a request */
    size_t n;
    uint8_t bytes[MAX_BYTES];
} Current;

static Current *current;
static int n_tests, n_failed;

static void
report(bool ok, const char *name, int64_t n, const char *more)
{
    fprintf(stderr, "%sok %d - %s: %" G_GINT64_FORMAT " %s\n", ok ? "" : "not ", ++n_tests, name, n,
            more);
    n_failed += !ok;
}

/* --- mutations --- */

static const char *const evil[] = {
    "99999999999999999999",
    "9007199254740993",
    "2147483648",
    "1e308",
    "-1",
    "1e-320",
    "\"",
    "null",
    "{",
    "]",
    "\n",
    "0",
    "\xff",
    "[[[[[[[[[[[[",
    "NaN",
    "\\u0000",
    "\\ud800",
    ",",
    "-0",
    "true",
    "${A:-$((1<<62))}",
    "..",
    "%n",
    "\t",
    "'",
};

static void
mutate(GRand *random, GString *text, const GPtrArray *seeds, const GPtrArray *words)
{
    const int n_changes = 1 + g_rand_int_range(random, 0, 3);

    for (int c = 0; c < n_changes; c++) {
        const gsize at = (gsize)g_rand_int_range(random, 0, (gint32)text->len + 1);
        const gsize wanted = (gsize)g_rand_int_range(random, 1, 40),
                    length = MIN(text->len - at, wanted);
        const char *word = g_rand_boolean(random)
                               ? evil[g_rand_int_range(random, 0, G_N_ELEMENTS(evil))]
                               : words->pdata[g_rand_int_range(random, 0, (gint32)words->len)];

        switch (g_rand_int_range(random, 0, 9)) {
        case 0:
            g_string_truncate(text, at);
            break;
        case 1:
            if (at < text->len)
                text->str[at] ^= (char)(1 << g_rand_int_range(random, 0, 8));
            break;
        case 2:
            g_string_insert(text, (gssize)at, word);
            break;
        case 3:
            g_string_erase(text, (gssize)at, (gssize)length);
            break;
        case 4:
            g_string_erase(text, (gssize)at, (gssize)length);
            g_string_insert(text, (gssize)at, word);
            break;
        case 5: {
            g_autofree char *part = g_strndup(text->str + at, length);
            const gsize to = (gsize)g_rand_int_range(random, 0, (gint32)text->len + 1);

            g_string_insert(text, (gssize)to, part);
            break;
        }
        case 6: { /* the rest of another seed */
            gsize n;
            const char *other =
                g_bytes_get_data(seeds->pdata[g_rand_int_range(random, 0, (gint32)seeds->len)], &n);
            const gsize from = n == 0 ? 0 : (gsize)g_rand_int_range(random, 0, (gint32)n);

            g_string_truncate(text, at);
            g_string_append_len(text, other + from, (gssize)(n - from));
            break;
        }
        default: { /* another number in place of the next one */
            char *digit = text->str + at;
            gsize n = 0;

            while (*digit != 0 && !g_ascii_isdigit(*digit))
                digit++;
            while (g_ascii_isdigit(digit[n]))
                n++;
            const gsize offset = (gsize)(digit - text->str);
            g_autofree char *number = g_strdup_printf(
                "%d", g_rand_int_range(random, -2, 1 << g_rand_int_range(random, 2, 31)));
            g_string_erase(text, (gssize)offset, (gssize)n);
            g_string_insert(text, (gssize)offset, g_rand_boolean(random) ? number : word);
        }
        }
    }
    if (text->len > MAX_BYTES)
        g_string_truncate(text, MAX_BYTES);
}

/* --- children --- */

static void
keep_input(const char *name)
{
    const char *folder = g_getenv("FUZZ_CRASHES");
    g_autofree char *sum = g_compute_checksum_for_data(G_CHECKSUM_SHA1, current->bytes, current->n);
    g_autofree char *path =
        g_strdup_printf("%s/%s-%.8s", folder == NULL ? g_get_tmp_dir() : folder, name, sum);

    if (g_file_set_contents(path, (const char *)current->bytes, (gssize)current->n, NULL))
        fprintf(stderr, "# the input is kept: %s\n", path);
}

/* Calls @work in a child.  Returns its status of waitpid(); @cpu_s (out) its time. */
static int
in_child(void (*work)(void *), void *data, int64_t limit_cpu_s, double *cpu_s)
{
    struct rusage usage;
    int status;

    FILE *said = tmpfile();

    if (said == NULL)
        g_error("tmpfile: %s", g_strerror(errno));
    fflush(stderr);
    const pid_t pid = fork();
    if (pid < 0)
        g_error("fork: %s", g_strerror(errno));
    if (pid == 0) {
        const struct rlimit no_core = {0, 0}, cpu = {(rlim_t)limit_cpu_s, (rlim_t)limit_cpu_s + 1};

        setrlimit(RLIMIT_CORE, &no_core);
        setrlimit(RLIMIT_CPU, &cpu);
        dup2(fileno(said), STDERR_FILENO); /* its notes are shown only if it dies */
        work(data);
        _exit(0);
    }
    if (wait4(pid, &status, 0, &usage) != pid)
        g_error("wait4: %s", g_strerror(errno));
    if (status != 0) {
        char text[2000];
        const off_t end = lseek(fileno(said), 0, SEEK_END);
        const ssize_t n =
            pread(fileno(said), text, sizeof text - 1, MAX(0, end - (off_t)sizeof text + 1));

        text[MAX(n, 0)] = 0;
        fprintf(stderr, "%s", text);
    }
    fclose(said);
    *cpu_s = (double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec * 1e-6 +
             (double)usage.ru_stime.tv_sec + (double)usage.ru_stime.tv_usec * 1e-6;
    return status;
}

typedef struct {
    int target;
    int64_t first, n;
    guint32 seed;
    GPtrArray *seeds, *words;
} Mutations;

/* Mutation i is a function of the seed and i: a child can begin anywhere. */
static void
try_mutations(void *data)
{
    const Mutations *m = data;

    for (int64_t i = m->first; i < m->n; i++) {
        g_autoptr(GRand) random = g_rand_new_with_seed(m->seed * 2654435761u + (guint32)i);
        gsize n;
        const char *seed = g_bytes_get_data(m->seeds->pdata[i % m->seeds->len], &n);
        g_autoptr(GString) text = g_string_new_len(seed, (gssize)n);

        mutate(random, text, m->seeds, m->words);
        current->n = MIN(text->len, MAX_BYTES);
        memcpy(current->bytes, text->str, current->n);
        fuzz_try(m->target, current->bytes, current->n);
        current->n_done = i + 1;
    }
}

static void
mutate_target(int target, int64_t n, guint32 seed)
{
    g_autoptr(GPtrArray) seeds = fuzz_seeds(target), words = fuzz_words();
    Mutations m = {.target = target, .n = n, .seed = seed, .seeds = seeds, .words = words};
    int n_crashes = 0;
    double cpu_s;

    for (current->n_done = 0; current->n_done < n && n_crashes < 20; current->n_done++) {
        m.first = current->n_done;
        const int status = in_child(try_mutations, &m, 3600, &cpu_s);
        if (status == 0)
            break;
        fprintf(stderr, "# %s, mutation %" G_GINT64_FORMAT " of seed %u: %s %d\n",
                fuzz_target_name(target), current->n_done, seed,
                WIFSIGNALED(status) ? "signal" : "status",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        keep_input(fuzz_target_name(target));
        n_crashes++;
    }
    report(n_crashes == 0, fuzz_target_name(target), n, "mutations");
}

/* --- requests --- */

static const char *
pick(GRand *random, const char *const *words)
{
    return words[g_rand_int_range(random, 0, (gint32)g_strv_length((char **)words))];
}

/* Returns: (owned, nullable) a value of the option, mostly a right one; NULL: the option names a file. */
static char *
random_value(GRand *random, const OptionInfo *info)
{
    static const char *const few[] = {"1", "2", "3", "4", "8", "16", "0", NULL};
    static const char *const others[] = {"auto", "off",      "none", "1",           "2",
                                         "0.5",  "3,5",      "1GiB", "64GiB",       "1ms",
                                         "full", "all",      "1%,3", "dp-tp-cp-pp", "tp-cp-dp-pp",
                                         "dp",   "dp,tp,pp", "x=1",  NULL};
    static const char *const batches[] = {"1", "4", "8", "48", "64", "96", "256", "1024", NULL};
    static const char *const lengths[] = {"64",   "128",  "1000", "1024",
                                          "2048", "4096", "8192", NULL};
    static const char *const gpus[] = {"1",  "2",   "4",   "8",   "16",   "32", "64",
                                       "72", "128", "256", "512", "1024", NULL};

    if (strstr(info->value, "FILE") != NULL || strstr(info->value, "DIR") != NULL)
        return NULL;
    if (strcmp(info->name, "gpus") == 0)
        return g_strdup(pick(random, gpus));
    if (strcmp(info->name, "global-batch") == 0)
        return g_strdup(pick(random, batches));
    if (strcmp(info->name, "seq-len") == 0)
        return g_strdup(pick(random, lengths));
    if (strcmp(info->name, "threads") == 0)
        return g_strdup("1");
    g_auto(GStrv) words = options_value_words(info);
    if (words != NULL && words[0] != NULL && g_rand_int_range(random, 0, 20) > 0)
        return g_strdup(pick(random, (const char *const *)words));
    return g_strdup(pick(random, info->value[0] == 'N' ? few : others));
}

static GPtrArray *
random_request(GRand *random)
{
    g_autoptr(GPtrArray) models = embedded_names("models/", ".json"),
                         clusters = embedded_names("profiles/", ".json");
    const Command *command = cmd_find(cmd_all, g_rand_boolean(random) ? "plan" : "simulate", NULL);
    g_autoptr(GPtrArray) all = g_ptr_array_new();
    GPtrArray *argv = g_ptr_array_new_with_free_func(g_free);
    static const char *const always[] = {"global-batch", "gpus", "seq-len"};
    const int n_options = g_rand_int_range(random, 0, 5);

    g_ptr_array_add(argv, g_strdup("degas"));
    g_ptr_array_add(argv, g_strdup(command->name));
    g_ptr_array_add(argv,
                    g_strdup(models->pdata[g_rand_int_range(random, 0, (gint32)models->len)]));
    g_ptr_array_add(argv,
                    g_strdup(clusters->pdata[g_rand_int_range(random, 0, (gint32)clusters->len)]));
    for (size_t t = 0; t < G_N_ELEMENTS(command->options) && command->options[t] != NULL; t++)
        for (const OptionInfo *info = command->options[t]; info->name != NULL; info++)
            g_ptr_array_add(all, (void *)info);
    for (int i = 0; i < n_options + (int)G_N_ELEMENTS(always); i++) {
        const OptionInfo *info = NULL;

        if (i < (int)G_N_ELEMENTS(always)) {
            for (guint o = 0; o < all->len; o++)
                if (strcmp(((const OptionInfo *)all->pdata[o])->name, always[i]) == 0)
                    info = all->pdata[o];
            if (info == NULL || (i == 2 && g_rand_boolean(random)))
                continue;
        } else {
            info = all->pdata[g_rand_int_range(random, 0, (gint32)all->len)];
        }
        g_autofree char *value = info->value == NULL ? NULL : random_value(random, info);
        if (info->value != NULL && value == NULL)
            continue;
        g_ptr_array_add(argv, g_strconcat("--", info->name, value == NULL ? "" : "=", value, NULL));
    }
    return argv;
}

typedef struct {
    GPtrArray *argv;
    double ctrl_c_s; /* of CPU; 0: never */
} Request;

/* A status that docs/formats.md gives to commands without ranks. */
static bool
is_documented(int64_t status)
{
    return (status >= 0 && status <= CMD_ERROR_MISSING) || status == CMD_ERROR_INTERRUPTED;
}

/* SIGINT after @s of this process's CPU time. */
static void
interrupt_after(double s)
{
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGINT};
    const struct itimerspec at = {.it_value = {(time_t)s, (long)(1e9 * (s - floor(s)))}};
    timer_t timer;

    if (timer_create(CLOCK_PROCESS_CPUTIME_ID, &event, &timer) != 0 ||
        timer_settime(timer, 0, &at, NULL) != 0)
        g_error("timer: %s", g_strerror(errno));
}

static void
try_request(void *data)
{
    const Request *request = data;
    GPtrArray *argv = request->argv;
    GError *error = NULL;
    g_autofree void **copy = g_memdup2(argv->pdata, argv->len * sizeof *argv->pdata);

    if (request->ctrl_c_s > 0)
        interrupt_after(request->ctrl_c_s);
    current->n_done = fuzz_command((int)argv->len, (char **)copy, &error);
    if (!is_documented(current->n_done))
        g_error("status %" G_GINT64_FORMAT, current->n_done);
    if (error != NULL && strchr(error->message, '\n') != NULL)
        g_error("an error of several lines: %s", error->message);
}

static int
compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* What came of requests. */
typedef struct {
    GArray *cpu_s;                              /* of double */
    int64_t n_ended[CMD_ERROR_INTERRUPTED + 1]; /* by exit status */
    double slowest_s;
    char *slowest; /* (owned, nullable) */
} Tally;

static void
print_tally(const Tally *tally)
{
    g_autoptr(GString) ends = g_string_new(NULL);
    const guint n = tally->cpu_s->len;
    const double *s = (const double *)tally->cpu_s->data;
    double total_s = 0;
    guint n_second = 0, n_ten = 0;

    g_array_sort(tally->cpu_s, compare_doubles);
    for (guint i = 0; i < n; i++) {
        total_s += s[i];
        n_second += s[i] > 1.0;
        n_ten += s[i] > 10.0;
    }
    for (guint i = 0; i < G_N_ELEMENTS(tally->n_ended); i++)
        if (tally->n_ended[i] > 0)
            g_string_append_printf(ends, "%s%" G_GINT64_FORMAT " with %u",
                                   ends->len == 0 ? "" : ", ", tally->n_ended[i], i);
    fprintf(stderr,
            "# exit statuses: %s\n# %.1f s of CPU, median %.3f s, 95 %% below %.2f s, %u above a "
            "second, %u above ten; the slowest, %.2f s: %s\n",
            ends->str, total_s, s[n / 2], s[(size_t)n * 95 / 100], n_second, n_ten,
            tally->slowest_s, tally->slowest == NULL ? "-" : tally->slowest);
}

static void
try_requests(int64_t n, guint32 seed, int64_t limit_s, int64_t first, double ctrl_c_s)
{
    int n_bad = 0;
    g_autoptr(GArray) times = g_array_new(FALSE, FALSE, sizeof(double));
    Tally tally = {.cpu_s = times};

    for (int64_t i = first; i < first + n; i++) {
        g_autoptr(GRand) random = g_rand_new_with_seed(seed * 2654435761u + (guint32)i);
        g_autoptr(GPtrArray) argv = random_request(random);
        g_autoptr(GString) line = g_string_new(NULL);
        double cpu_s;

        for (guint a = 0; a < argv->len; a++)
            g_string_append_printf(line, "%s%s", a == 0 ? "" : " ", (const char *)argv->pdata[a]);
        const int status = in_child(try_request, &(Request){argv, ctrl_c_s}, limit_s, &cpu_s);
        g_array_append_val(times, cpu_s);
        if (status != 0) {
            n_bad++;
            fprintf(stderr, "# %s: %s %d after %.1f s\n", line->str,
                    WIFSIGNALED(status) ? "signal" : "status",
                    WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), cpu_s);
            continue;
        }
        tally.n_ended[current->n_done]++;
        if (cpu_s > SLOW_S || (ctrl_c_s > 0 && cpu_s > ctrl_c_s + 1))
            fprintf(stderr, "# slow: %.1f s%s: %s\n", cpu_s,
                    current->n_done == CMD_ERROR_INTERRUPTED ? " with Ctrl-C" : "", line->str);
        if (cpu_s > tally.slowest_s) {
            tally.slowest_s = cpu_s;
            g_free(tally.slowest);
            tally.slowest = g_strdup(line->str);
        }
    }
    if (g_getenv("FUZZ_TIMES") != NULL && n > 0)
        print_tally(&tally);
    g_free(tally.slowest);
    report(n_bad == 0, "requests", n, "random requests");
}

/* --- plans that are run --- */

/* What a plan is asked for, each one time of three; the schedule has any name. */
static const struct {
    const char *option;
    const char *words[6];
} asked[] = {
    {"dp", {"1", "2", "3", NULL}},
    {"tp", {"1", "2", "4", NULL}},
    {"pp", {"1", "2", "3", "4", NULL}},
    {"cp", {"1", "2", NULL}},
    {"ep", {"1", "2", "4", NULL}},
    {"vpp", {"1", "2", NULL}},
    {"micro-batch", {"1", "2", NULL}},
    {"slices", {"off", "2", "3", "4", NULL}},
    {"schedule", {NULL}},
    {"recompute", {"none", "selective", "full", NULL}},
    {"zero", {"0", "1", "2", "3", NULL}},
    {"offload", {"cpu", "nvme", NULL}},
    {"optimizer", {"muon", NULL}},
    {"sequence-parallel", {"on", "off", NULL}},
    {"overlap", {"none", "ep", "dp,pp", NULL}},
    {"cp-comm-type", {"p2p", "a2a", NULL}},
    {"rank-order", {"dp-tp-cp-pp", "tp-cp-dp-pp", "tp-cp-pp-dp", NULL}},
    {"optimizer-step", {"on", "off", NULL}},
};

/* Returns: (owned) a model that one core trains in milliseconds. */
static char *
random_model(GRand *random)
{
    const int heads = 1 << g_rand_int_range(random, 0, 3), hidden = 8 * heads;
    const bool llama = g_rand_boolean(random);
    GString *text = g_string_new(NULL);

    g_string_append_printf(
        text,
        "{\"format\": \"degas-model\", \"version\": 1, \"name\": \"small\", \"family\": \"%s\", "
        "\"n_layers\": %d, \"hidden\": %d, \"n_heads\": %d, \"n_kv_heads\": %d, \"ffn_hidden\": "
        "%d, "
        "\"vocab\": %d, \"max_seq_len\": 64",
        llama ? "llama" : "gpt", g_rand_int_range(random, 1, 7), hidden, heads,
        llama && g_rand_boolean(random) ? 1 : heads, 8 * g_rand_int_range(random, 1, 9),
        g_rand_int_range(random, 5, 80));
    if (llama && g_rand_int_range(random, 0, 2) == 0)
        g_string_append_printf(text,
                               ", \"experts\": {\"n_experts\": 4, \"top_k\": %d, "
                               "\"ffn_hidden\": 8, \"n_shared\": %d, \"first_dense_layers\": %d}",
                               g_rand_int_range(random, 1, 5), g_rand_int_range(random, 0, 2),
                               g_rand_int_range(random, 0, 2));
    if (llama && g_rand_int_range(random, 0, 4) == 0)
        g_string_append_printf(text, ", \"mtp\": {\"n\": %d}", g_rand_int_range(random, 1, 3));
    g_string_append(text, "}");
    return g_string_free(text, FALSE);
}

/* Returns: (owned) the words of a command line that plans @model into @plan. */
static GPtrArray *
random_plan(GRand *random, const char *model, const char *plan)
{
    static const char *const gpus[] = {"1", "2", "3", "4", "6", "8", NULL};
    static const char *const batches[] = {"1", "2", "4", "6", "8", "12", NULL};
    static const char *const lengths[] = {"16", "24", "32", "64", NULL};
    const char *schedules[64] = {NULL};
    GPtrArray *argv = g_ptr_array_new_with_free_func(g_free);

    for (size_t f = 0; schedule_families()[f] != NULL && f + 1 < G_N_ELEMENTS(schedules); f++)
        schedules[f] = schedule_families()[f]->name;
    g_ptr_array_add(argv, g_strdup("degas"));
    g_ptr_array_add(argv, g_strdup("plan"));
    g_ptr_array_add(argv,
                    g_strdup(g_rand_int_range(random, 0, 4) > 0 ? "--dtype=fp32" : "--dtype=bf16"));
    g_ptr_array_add(argv, g_strdup(model));
    g_ptr_array_add(argv, g_strdup("dgx-h100"));
    g_ptr_array_add(argv, g_strconcat("--gpus=", pick(random, gpus), NULL));
    g_ptr_array_add(argv, g_strconcat("--global-batch=", pick(random, batches), NULL));
    g_ptr_array_add(argv, g_strconcat("--seq-len=", pick(random, lengths), NULL));
    g_ptr_array_add(argv, g_strdup("--framework=degas"));
    g_ptr_array_add(argv, g_strdup("--threads=1"));
    g_ptr_array_add(argv, g_strconcat("--output=", plan, NULL));
    for (size_t i = 0; i < G_N_ELEMENTS(asked); i++) {
        if (g_rand_int_range(random, 0, 3) > 0)
            continue;
        const char *const *const words =
            asked[i].words[0] != NULL ? asked[i].words : (const char *const *)schedules;
        g_ptr_array_add(argv, g_strconcat("--", asked[i].option, "=", pick(random, words), NULL));
    }
    return argv;
}

/* Plans, and runs what was planned: current->n is 1 then. */
static void
try_run(void *data)
{
    GPtrArray *argv = data;
    GError *error = NULL;
    g_autofree void **copy = g_memdup2(argv->pdata, argv->len * sizeof *argv->pdata);
    g_autofree char *plan = g_build_filename(fuzz_folder(), "plan.json", NULL);
    char *run[] = {"degas",     "run",       plan,  "--steps",  "1", "--device",
                   "reference", "--timeout", "60s", "--verify", NULL};
    /* In bf16 the numbers of models so narrow are rounded by more than the tolerance. */
    const int n_run = (int)G_N_ELEMENTS(run) - 1 - (strstr(argv->pdata[2], "bf16") != NULL);

    current->n = 0;
    current->n_done = fuzz_command((int)argv->len, (char **)copy, &error);
    if (current->n_done == 0) {
        current->n_done = fuzz_command(n_run, run, &error);
        current->n = current->n_done == 0;
        /* No rank dies or hangs. */
        if (current->n_done == CMD_ERROR_NO && error == NULL)
            g_error("gradients differ");
    }
    if (!is_documented(current->n_done))
        g_error("status %" G_GINT64_FORMAT "%s%s", current->n_done, error == NULL ? "" : ": ",
                error == NULL ? "" : error->message);
    if (error != NULL && strchr(error->message, '\n') != NULL)
        g_error("an error of several lines: %s", error->message);
}

static void
try_runs(int64_t n, guint32 seed, int64_t first)
{
    g_autofree char *path = g_build_filename(fuzz_folder(), "small.json", NULL);
    g_autofree char *plan = g_build_filename(fuzz_folder(), "plan.json", NULL);
    int64_t n_run = 0, n_bad = 0;
    double cpu_s;

    for (int64_t i = first; i < first + n; i++) {
        g_autoptr(GRand) random = g_rand_new_with_seed(seed * 2654435761u + (guint32)i);
        g_autofree char *model = random_model(random);
        g_autoptr(GPtrArray) argv = random_plan(random, path, plan);

        if (!g_file_set_contents(path, model, -1, NULL))
            g_error("%s", path);
        const int status = in_child(try_run, argv, 120, &cpu_s);
        n_run += status == 0 && current->n == 1;
        if (status == 0)
            continue;
        g_ptr_array_add(argv, NULL);
        g_autofree char *line = g_strjoinv(" ", (char **)argv->pdata);
        fprintf(stderr, "# %" G_GINT64_FORMAT ": %s %d: %s; %s\n", i,
                WIFSIGNALED(status) ? "signal" : "status",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), line, model);
        n_bad++;
    }
    fprintf(stderr, "# %" G_GINT64_FORMAT " of %" G_GINT64_FORMAT " could be planned and run\n",
            n_run, n);
    report(n_bad == 0 && n_run > n / 10, "runs", n, "random plans");
}

/* --- all --- */

static void
write_seeds(const char *folder)
{
    g_autoptr(GPtrArray) words = fuzz_words();
    g_autoptr(GString) dictionary = g_string_new(NULL);
    g_autofree char *path = g_build_filename(folder, "words.dict", NULL);

    for (int t = 0; t < fuzz_n_targets(); t++) {
        g_autoptr(GPtrArray) seeds = fuzz_seeds(t);
        g_autofree char *target = g_build_filename(folder, fuzz_target_name(t), NULL);

        g_mkdir_with_parents(target, 0777);
        for (guint i = 0; i < seeds->len; i++) {
            g_autofree char *file = g_strdup_printf("%s/%u", target, i);
            gsize n;
            const char *bytes = g_bytes_get_data(seeds->pdata[i], &n);

            if (!g_file_set_contents(file, bytes, (gssize)n, NULL))
                g_error("%s", file);
        }
    }
    for (guint i = 0; i < words->len; i++)
        g_string_append_printf(dictionary, "\"%s\"\n", (const char *)words->pdata[i]);
    if (!g_file_set_contents(path, dictionary->str, -1, NULL))
        g_error("%s", path);
}

static int
target_named(const char *name)
{
    for (int t = 0; t < fuzz_n_targets(); t++)
        if (strcmp(fuzz_target_name(t), name) == 0)
            return t;
    g_error("%s: no target", name);
}

int
main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";

    current =
        mmap(NULL, sizeof *current, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (current == MAP_FAILED)
        g_error("mmap: %s", g_strerror(errno));
    if (strcmp(what, "list") == 0) {
        for (int t = 0; t < fuzz_n_targets(); t++)
            puts(fuzz_target_name(t));
        return 0;
    }
    fuzz_init();
    if (strcmp(what, "seeds") == 0 && argc == 3) {
        write_seeds(argv[2]);
        return 0;
    }
    if (strcmp(what, "try") == 0 && argc == 4) {
        g_autofree char *text = NULL;
        gsize n;

        if (!g_file_get_contents(argv[3], &text, &n, NULL))
            g_error("%s", argv[3]);
        fuzz_try(target_named(argv[2]), (const uint8_t *)text, n);
        return 0;
    }
    if (strcmp(what, "mutate") == 0 && argc == 5) {
        const bool all = strcmp(argv[2], "all") == 0;
        const int only = all ? 0 : target_named(argv[2]);

        for (int t = only; t < (all ? fuzz_n_targets() : only + 1); t++)
            mutate_target(t, g_ascii_strtoll(argv[3], NULL, 10),
                          (guint32)g_ascii_strtoull(argv[4], NULL, 10));
    } else if (strcmp(what, "requests") == 0 && argc >= 4) {
        try_requests(g_ascii_strtoll(argv[2], NULL, 10),
                     (guint32)g_ascii_strtoull(argv[3], NULL, 10),
                     argc > 4 ? g_ascii_strtoll(argv[4], NULL, 10) : 10,
                     argc > 5 ? g_ascii_strtoll(argv[5], NULL, 10) : 0,
                     argc > 6 ? g_ascii_strtod(argv[6], NULL) : 0);
    } else if (strcmp(what, "runs") == 0 && argc >= 4) {
        try_runs(g_ascii_strtoll(argv[2], NULL, 10), (guint32)g_ascii_strtoull(argv[3], NULL, 10),
                 argc > 4 ? g_ascii_strtoll(argv[4], NULL, 10) : 0);
    } else {
        g_error("usage: list | seeds FOLDER | try TARGET FILE | mutate TARGET|all N SEED | "
                "requests N SEED [CPU_S [FIRST [CTRL_C_S]]] | runs N SEED [FIRST]");
    }
    fprintf(stderr, "1..%d\n", n_tests);
    return n_failed != 0;
}
