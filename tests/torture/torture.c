/*
 * Runs each command of degas on a small input again and again, while tests/torture/faults.c lets the first,
 * second, third, ... call of a kind fail, until none is left that could fail.  Each time the command must
 *
 *   - end by itself, with a status that docs/formats.md has for such a fault, and one line on stderr that
 *     begins with "degas: ", or with status 0 and the same products as without the fault;
 *   - leave each of its files as it was before, or whole and new, and no other file, nor any in the folder of
 *     temporary files; not even SIGKILL may leave one there.
 *
 * usage: torture DEGAS FAULTS.so [--few] [--most N] [--commands PATTERN] [--signals N]
 *   --most N     at most N calls of a kind
 *   --few        only the kinds of calls that a table names for the command, and at most 3 of each
 *   --commands   those whose names match this pattern (* and ?)
 *   --signals    instead of failing calls: SIGKILL, SIGINT and SIGTERM at N moments of each command
 * Prints TAP: a line for each command and kind of fault.
 */
#include <errno.h>
#include <fcntl.h>
#include <glib.h>
#include <glib/gstdio.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define OLD "what was here before\n"
#define MAX_PRODUCTS 4
#define LIMIT_S 60
#define SERVED_US 300000

/* Arguments are separated by spaces; in/ has the files that were prepared, out/ gets the products. */
typedef struct {
    const char *name;
    const char *arguments;
    const char *products[MAX_PRODUCTS]; /* in out/ */
    bool varies;                        /* two runs do not give the same bytes: they measure */
    const char *few;                    /* kinds of calls of --few */
    const char *leaves;                 /* in out/: what formats.md says is left when it fails */
    bool serves;                        /* it ends by SIGINT, which it gets after SERVED_US */
} Case;

static const char *const kinds[] = {"open",   "read",   "write",  "fsync",  "rename", "mmap",
                                    "thread", "socket", "dlopen", "malloc", "short",  "signal"};

/* Makes in/, in this order. */
static const char *const preparation[] = {
    "plan in/tiny.json dgx-a100-80g --gpus 2 --global-batch 4 --dp 1 --tp 1 --pp 2 --micro-batch 1 "
    "--schedule "
    "1f1b --slices 2 --dtype fp32 --framework degas --recompute none --zero 0 -o in/plan.json",
    "simulate in/plan.json --trace in/trace.json -o in/report.json",
    "schedule zb-h1 --pp 4 --microbatches 4 -o in/schedule.json",
    "sweep gpt2-124m dgx-a100-80g --gpus 1,2 --global-batch 4 --slices off --schedule 1f1b -o "
    "in/sweep.json",
    "run in/plan.json --device reference --steps 2 --trace in/measured.json --checkpoint in/state "
    "-o "
    "in/run.json",
    "show dgx-a100-80g --json > in/cluster.json",
    "plan in/experts.json dgx-a100-80g --gpus 4 --global-batch 8 --dp 2 --ep 2 --tp 1 --pp 2 "
    "--micro-batch 1 "
    "--schedule "
    "1f1b --slices off --dtype fp32 --framework degas --recompute none --zero 0 --overlap ep -o "
    "in/pairs.json",
};

static const Case cases[] = {
    {"plan",
     "plan gpt2-124m dgx-a100-80g --gpus 4 --global-batch 4 --slices off --threads 2 -o "
     "out/plan.json",
     {"plan.json"},
     .few = "open,write,fsync,rename,malloc,thread"},
    {"plan --explain",
     "plan in/tiny.json in/cluster.json --gpus 2 --global-batch 4 --slices off --schedule 1f1b "
     "--explain --threads 2 -o "
     "out/plan.json",
     {"plan.json"}},
    {"plan --pareto",
     "plan in/tiny.json in/cluster.json --gpus 4 --global-batch 4 --slices off --schedule 1f1b "
     "--pareto 3 --threads 2 -o "
     "out/plan.json",
     {"plan.json"}},
    {"sweep",
     "sweep in/tiny.json in/cluster.json --gpus 1,2 --global-batch 4 --threads 2 --csv out/s.tsv "
     "--plot "
     "out/s.txt -o out/s.json",
     {"s.tsv", "s.txt", "s.json"}},
    {"simulate",
     "simulate in/plan.json --trace out/t.json --csv out/t.tsv --html out/t.html -o out/r.json",
     {"t.json", "t.tsv", "t.html", "r.json"},
     .few = "write,rename,read"},
    {"simulate --plot", "simulate in/plan.json --plot out/t.svg", {"t.svg"}, .leaves = "t.tsv"},
    {"simulate --jitter", "simulate in/plan.json --jitter 1%,20 --threads 2 --json", {NULL}},
    {"simulate --schedule-file",
     "simulate --schedule-file in/schedule.json --op-times F=1ms,B=2ms,W=1ms -o out/r.json",
     {"r.json"}},
    {"simulate --batch", "simulate --batch in/batch.jsonl --threads 2", {NULL}},
    {"check", "check in/recipe.sh dgx-h100 --gpus 8 -o out/plan.json", {"plan.json"}},
    {"show", "show in/plan.json", {NULL}},
    {"run",
     "run in/plan.json --device reference --steps 2 --trace out/t.json -o out/r.json --checkpoint "
     "out/state",
     {"t.json", "r.json"},
     .varies = true,
     .few = "thread,malloc"},
    {"run --resume",
     "run in/plan.json --device reference --steps 3 --checkpoint in/state --resume-step 2 -o "
     "out/r.json",
     {"r.json"},
     .varies = true},
    {"run --overlap ep",
     "run in/pairs.json --device reference --steps 1 -o out/r.json",
     {"r.json"},
     .varies = true},
    {"run --device cpu",
     "run in/plan.json --device cpu --steps 2 --data in/data.txt -o out/r.json",
     {"r.json"},
     .varies = true},
    {"profile",
     "profile in/tiny.json --device reference --quick --budget 1 --batches 1 --slices 64 "
     "--concurrency 2 -o "
     "out/p.json",
     {"p.json"},
     .varies = true,
     .leaves = "p.json.partial"},
    {"compare", "compare in/trace.json in/measured.json -o out/c.json", {"c.json"}},
    {"validate",
     "validate in/cluster.json in/rows.csv --threads 2 --page out/p.md -o out/v.json",
     {"p.md", "v.json"}},
    {"calibrate", "calibrate in/cluster.json in/rows.csv --threads 2 -o out/c.json", {"c.json"}},
    {"import",
     "import in/nccl.txt --cluster in/cluster.json -o out/c.json",
     {"c.json"},
     .few = "read,write"},
    {"plot", "plot in/trace.json in/measured.json -o out/t.tsv", {"t.tsv"}},
    {"plot svg", "plot in/sweep.json -o out/s.svg", {"s.svg"}, .leaves = "s.tsv"},
    {"export", "export in/schedule.json --to pytorch-csv -o out/e.csv", {"e.csv"}},
    {"export --bundle",
     "export in/plan.json --to degas --bundle out/b",
     {NULL},
     .few = "rename,signal",
     .leaves = "b"},
    {"init", "init job", {NULL}},
    {"schedule",
     "schedule zb-h1 --pp 4 --microbatches 8 --json -o out/s.json",
     {"s.json"},
     .few = "write,fsync,rename,signal"},
    {"slices",
     "slices --costs in/costs.json --stages 4 --batch 2 --seq-len 16 -o out/s.json",
     {"s.json"}},
    {"list", "list models", {NULL}},
    {"help", "help plan --man", {NULL}},
    {"completion", "completion bash", {NULL}},
    {"doctor", "doctor", {NULL}, .varies = true},
    {"schema", "schema degas-plan", {NULL}},
    {"serve",
     "serve in/tiny.json in/cluster.json --gpus 2 --global-batch 4 --port 0",
     {NULL},
     .varies = true,
     .serves = true},
};

static const char *degas, *faults;
static int n_tests, n_failed;
static int64_t n_executions;

/* --- files --- */

static void
fill(const char *path, const char *text)
{
    g_autoptr(GError) error = NULL;

    if (!g_file_set_contents_full(path, text, -1, G_FILE_SET_CONTENTS_NONE, 0644, &error))
        g_error("%s", error->message);
}

static void
empty(const char *folder)
{
    GDir *dir = g_dir_open(folder, 0, NULL);

    for (const char *name; dir != NULL && (name = g_dir_read_name(dir)) != NULL;) {
        g_autofree char *path = g_build_filename(folder, name, NULL);

        if (g_file_test(path, G_FILE_TEST_IS_DIR))
            empty(path);
        if (g_remove(path) != 0)
            g_error("%s: %s", path, g_strerror(errno));
    }
    if (dir != NULL)
        g_dir_close(dir);
}

/* --- one execution --- */

typedef struct {
    int status; /* 128 + a signal; -1: it lasted longer than LIMIT_S */
    char *out, *err;
} Answer;

static void
answer_clear(Answer *answer)
{
    g_free(answer->out);
    g_free(answer->err);
}

/* @environment  NAME=VALUE, ended by NULL
 * @signal_us    after this time the process gets @signal_number; below 0: never */
static Answer
execute(const char *arguments, char **environment, int signal_number, int64_t signal_us)
{
    g_autofree char *line = g_strdup_printf("%s %s", degas, arguments);
    g_auto(GStrv) argv = g_strsplit(line, " ", -1);
    const char *out = "stdout";
    Answer answer = {-1};

    for (int i = 0; argv[i] != NULL; i++) {
        if (strcmp(argv[i], ">") == 0) {
            out = argv[i + 1];
            argv[i] = NULL;
            break;
        }
    }
    n_executions++;
    const pid_t pid = fork();
    if (pid == 0) {
        setpgid(0, 0);
        const struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
        dup2(open(out, O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
        dup2(open("stderr", O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
        for (; environment != NULL && *environment != NULL; environment++)
            putenv(*environment);
        execv(degas, argv);
        _exit(127);
    }
    const gint64 begin = g_get_monotonic_time();
    int status = 0;
    for (bool signalled = signal_us < 0; waitpid(pid, &status, WNOHANG) == 0;) {
        const gint64 passed = g_get_monotonic_time() - begin;

        if (!signalled && passed >= signal_us) {
            kill(pid, signal_number);
            signalled = true;
        }
        if (passed > LIMIT_S * G_USEC_PER_SEC) {
            kill(-pid, SIGKILL);
            waitpid(pid, &status, 0);
            status = -1;
            break;
        }
        g_usleep(passed < 20000 ? 200 : 2000);
    }
    answer.status = status == -1          ? -1
                    : WIFSIGNALED(status) ? 128 + WTERMSIG(status)
                                          : WEXITSTATUS(status);
    g_file_get_contents(out, &answer.out, NULL, NULL);
    g_file_get_contents("stderr", &answer.err, NULL, NULL);
    return answer;
}

/* --- what must hold --- */

/* Whether @status may follow from a fault of @kind: docs/formats.md, exit statuses. */
static bool
documented(const char *kind, int status)
{
    static const struct {
        const char *kind;
        int statuses[4];
    } may[] = {
        {"open", {4, 6}},
        {"read", {4, 6}},
        {"write", {4, 6}},
        {"fsync", {4}},
        {"rename", {4}},
        {"mmap", {5, 4, 6}},
        {"thread", {5, 6, 7}},
        {"socket", {6, 4}},
        {"dlopen", {6}},
        {"malloc", {5, 4, 7}},
        {"signal", {128 + SIGTERM, 9}},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(may); i++) {
        for (size_t j = 0; strcmp(may[i].kind, kind) == 0 && j < 4; j++) {
            if (may[i].statuses[j] != 0 && may[i].statuses[j] == status)
                return true;
        }
    }
    return false;
}

/* What a command gave when nothing failed. */
typedef struct {
    char *out, *err;
    char *products[MAX_PRODUCTS];
} Right;

/* Each product is as it was or new and whole, all are new if @done, and nothing else is in out/ or in tmp/.
 * Returns: (owned, nullable) what is wrong. */
static char *
wrong_files(const Case *c, const Right *right, bool done, bool may_leave)
{
    g_autoptr(GDir) temporary = g_dir_open("tmp", 0, NULL);
    const char *temporary_file = g_dir_read_name(temporary);
    GDir *dir = g_dir_open("out", 0, NULL);
    g_autofree char *wrong =
        temporary_file == NULL ? NULL : g_strdup_printf("tmp/%s is left", temporary_file);

    for (const char *name; wrong == NULL && (name = g_dir_read_name(dir)) != NULL;) {
        const bool is_state =
            strcmp(name, "state") == 0 && strstr(c->arguments, "out/state") != NULL;
        bool is_product = is_state || g_strcmp0(name, c->leaves) == 0;

        for (int i = 0; i < MAX_PRODUCTS && c->products[i] != NULL; i++)
            is_product |= strcmp(name, c->products[i]) == 0;
        if (!is_product && !may_leave)
            wrong = g_strdup_printf("out/%s is left", name);
    }
    g_dir_close(dir);
    empty("tmp");
    for (int i = 0; wrong == NULL && i < MAX_PRODUCTS && c->products[i] != NULL; i++) {
        g_autofree char *path = g_build_filename("out", c->products[i], NULL);
        g_autofree char *text = NULL;

        g_file_get_contents(path, &text, NULL, NULL);
        const bool is_old = text != NULL && strcmp(text, OLD) == 0;
        /* what is measured is whole if it ends as it should */
        const bool is_new = text != NULL && (c->varies ? g_str_has_suffix(text, "}\n")
                                                       : g_strcmp0(text, right->products[i]) == 0);
        if (done ? !is_new : !is_new && !is_old)
            wrong = g_strdup_printf("%s is %s", path,
                                    text == NULL ? "gone"
                                    : is_old     ? "still the old one"
                                                 : "no whole product");
    }
    return g_steal_pointer(&wrong);
}

/* Returns: (owned, nullable) what is wrong with an answer to a fault. */
static char *
wrong_answer(const Case *c, const Right *right, const char *kind, const Answer *answer)
{
    if (answer->status == -1)
        return g_strdup_printf("did not end within %d s", LIMIT_S);
    if (answer->status == 127 && strstr(answer->err, "thread-local data: ABORT") != NULL)
        return NULL; /* the C library's last words: dlopen() knows no other end */
    if (answer->status == 0) {
        if (!c->varies && g_strcmp0(answer->out, right->out) != 0)
            return g_strdup("status 0, but another text on stdout");
    } else if ((answer->status == 128 + SIGTERM && documented(kind, answer->status)) ||
               (c->serves && answer->status == 128 + SIGINT)) { /* it came before it served */
        return wrong_files(c, right, false, false);
    } else {
        /* notes as without the fault, and the error */
        const size_t n = strlen(answer->err);
        const char *last = n == 0 ? NULL : g_strrstr_len(answer->err, (gssize)n - 1, "\n");
        const size_t n_notes = last == NULL ? 0 : (size_t)(last + 1 - answer->err);

        if (!documented(kind, answer->status))
            return g_strdup_printf("status %d", answer->status);
        if (!g_str_has_prefix(answer->err + n_notes, "degas: ") ||
            !g_str_has_suffix(answer->err, "\n") ||
            (n_notes > 0 && !c->varies && strncmp(answer->err, right->err, n_notes) != 0))
            return g_strdup_printf("status %d, but not one line on stderr", answer->status);
    }
    return wrong_files(c, right, answer->status == 0, false);
}

static void
report(bool ok, const char *name, const char *what, int64_t n)
{
    printf("%sok %d - %s: %s, %" G_GINT64_FORMAT " times\n", ok ? "" : "not ", ++n_tests, name,
           what, n);
    fflush(stdout);
    n_failed += !ok;
}

static void
lay_old_products(const Case *c)
{
    empty("out");
    for (int i = 0; i < MAX_PRODUCTS && c->products[i] != NULL; i++) {
        g_autofree char *path = g_build_filename("out", c->products[i], NULL);

        fill(path, OLD);
    }
}

/* Fails the first, second, ... call of @kind until none is left, or @most. */
static void
torture(const Case *c, const Right *right, const char *kind, int64_t most)
{
    const bool is_short = strcmp(kind, "short") == 0, is_signal = strcmp(kind, "signal") == 0;
    g_autofree char *preload = g_strdup_printf("LD_PRELOAD=%s", faults);
    g_autofree char *call =
        g_strdup_printf("FAULT_CALL=%s", is_signal ? "open,write,fsync,rename" : kind);
    g_autofree char *signal = g_strdup_printf("FAULT_SIGNAL=%d", is_signal ? SIGTERM : 0);
    int64_t n = 0;
    bool ok = true;

    for (;; n++) {
        g_autofree char *at =
            g_strdup_printf("FAULT_%s=%" G_GINT64_FORMAT, is_short ? "SHORT" : "AT", n + 1);
        char hit[] = "FAULT_HIT=hit";
        char *environment[] = {preload, call, at, hit, signal, NULL};

        if (n == most)
            break;
        g_remove("hit");
        lay_old_products(c);
        Answer answer = execute(c->arguments, environment, SIGINT, c->serves ? SERVED_US : -1);
        const bool struck = is_short || g_file_test("hit", G_FILE_TEST_EXISTS);
        g_autofree char *wrong = NULL;
        if (is_short && answer.status != 0)
            wrong = g_strdup_printf("status %d", answer.status);
        else
            wrong = wrong_answer(c, right, kind, &answer);
        if (wrong != NULL) {
            printf("# %s %s: %s\n# degas %s\n# %s\n", call, at, wrong, c->arguments, answer.err);
            ok = false;
        }
        answer_clear(&answer);
        if (!struck)
            break;
    }
    report(ok, c->name, kind, n);
}

/* SIGKILL, SIGINT and SIGTERM in turn at random moments of the time that the command took before. */
static void
disturb(const Case *c, const Right *right, int64_t n, int64_t took_us)
{
    static const int signals[] = {SIGKILL, SIGINT, SIGTERM};
    g_autoptr(GRand) random = g_rand_new_with_seed(23);
    bool ok = true;

    for (int64_t i = 0; i < n; i++) {
        const int number = signals[i % 3];
        const int64_t at_us = (int64_t)(g_rand_double(random) * (double)took_us);

        lay_old_products(c);
        Answer answer = execute(c->arguments, NULL, number, at_us);
        /* it may have ended before; what was interrupted may give what it had, and says so */
        const bool known = answer.status == 0 || answer.status == 128 + number ||
                           (number != SIGKILL && answer.status == 9);
        g_autofree char *wrong = known ? NULL : g_strdup_printf("status %d", answer.status);
        if (wrong == NULL && answer.status != 9)
            wrong = wrong_files(c, right, answer.status == 0, number == SIGKILL);
        if (wrong != NULL) {
            printf("# signal %d after %" G_GINT64_FORMAT " us: %s\n# degas %s\n# %s\n", number,
                   at_us, wrong, c->arguments, answer.err);
            ok = false;
        }
        answer_clear(&answer);
    }
    report(ok, c->name, "signals", n);
}

/* --- all --- */

static void
prepare(void)
{
    g_mkdir("in", 0700);
    g_mkdir("out", 0700);
    fill("in/experts.json",
         "{\"format\":\"degas-model\",\"version\":1,\"name\":\"experts\",\"family\":"
         "\"llama\",\"n_layers\":2,\"hidden\":16,\"n_heads\":2,\"ffn_hidden\":32,\"vocab\":64,"
         "\"max_seq_len\":16,\"experts\":{\"n_experts\":4,\"top_k\":2,\"ffn_hidden\":16}}");
    fill("in/tiny.json", "{\"format\":\"degas-model\",\"version\":1,\"name\":\"tiny\",\"family\":"
                         "\"gpt\",\"n_layers\":4,\"hidden\":32,"
                         "\"n_heads\":2,\"vocab\":256,\"max_seq_len\":64}\n");
    fill("in/batch.jsonl",
         "{\"id\":1,\"model\":\"gpt2-124m\",\"cluster\":\"dgx-a100-80g\",\"global_batch\":4}\n");
    fill("in/recipe.sh",
         "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 12 --hidden-size 768 "
         "--num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024 "
         "--micro-batch-size 1 --global-batch-size 8 --vocab-size 50257 --bf16\n");
    fill("in/nccl.txt",
         "# nccl-tests version 2.13.6\n#  Rank  0 Group  0 Pid 1 on  a device  0 [0x07] NVIDIA "
         "A100\n"
         "#  Rank  1 Group  0 Pid 1 on  a device  1 [0x08] NVIDIA A100\n"
         "# Collective test starting: all_reduce_perf\n"
         " 1048576  262144  float  sum  -1  44.21  23.72  23.72  0  43.00  24.33  24.33  0\n"
         " 2097152  524288  float  sum  -1  59.0  35.5  35.5  0  60.0  34.9  34.9  0\n");
    fill("in/rows.csv",
         "source,id,gpu,gpus,model,layers,hidden,heads,vocab,seq,global_batch,micro_batch,dp,tp,pp,"
         "schedule,recompute,dtype,measured_iter_ms,status\n"
         "mine,a,A100-SXM4-80GB,8,gpt,8,1024,16,51200,1024,64,1,8,1,1,1f1b,none,fp16,200,ok\n"
         "mine,b,A100-SXM4-80GB,8,gpt,8,1024,16,51200,1024,64,4,4,2,1,1f1b,none,fp16,210,ok\n"
         "mine,c,A100-SXM4-80GB,8,gpt,8,2048,16,51200,1024,64,1,4,1,2,1f1b,none,fp16,600,ok\n"
         "mine,d,A100-SXM4-80GB,8,gpt,8,2048,16,51200,1024,64,4,2,2,2,1f1b,none,fp16,580,ok\n");
    fill("in/costs.json", "{\"1_8_0\":{\"forward_mean\":0.001,\"backward_mean\":0.002},"
                          "\"1_16_0\":{\"forward_mean\":0.0015,\"backward_mean\":0.003},"
                          "\"1_8_8\":{\"forward_mean\":0.0011,\"backward_mean\":0.0022}}\n");
    fill("in/data.txt",
         "degas takes the bubbles out of training pipelines, one by one and all at once, "
         "degas takes the bubbles out of training pipelines, one by one and all at once\n");
    for (size_t i = 0; i < G_N_ELEMENTS(preparation); i++) {
        Answer answer = execute(preparation[i], NULL, 0, -1);

        if (answer.status != 0)
            g_error("degas %s: %s", preparation[i], answer.err);
        answer_clear(&answer);
    }
}

int
main(int argc, char **argv)
{
    g_autofree char *folder = g_dir_make_tmp("torture-XXXXXX", NULL);
    const char *pattern = "*";
    bool few = false;
    int64_t n_signals = 0, most = INT64_MAX;

    if (argc < 3 || folder == NULL)
        g_error("usage: torture DEGAS FAULTS.so [--few] [--commands PATTERN] [--signals N]");
    degas = g_canonicalize_filename(argv[1], NULL);
    faults = g_canonicalize_filename(argv[2], NULL);
    for (int i = 3; i < argc; i++) {
        few |= strcmp(argv[i], "--few") == 0;
        if (strcmp(argv[i], "--commands") == 0 && i + 1 < argc)
            pattern = argv[++i];
        else if (strcmp(argv[i], "--signals") == 0 && i + 1 < argc)
            n_signals = g_ascii_strtoll(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--most") == 0 && i + 1 < argc)
            most = g_ascii_strtoll(argv[++i], NULL, 10);
    }
    if (chdir(folder) != 0)
        g_error("%s: %s", folder, g_strerror(errno));
    g_mkdir("tmp", 0700);
    g_autofree char *temporary = g_canonicalize_filename("tmp", NULL);
    g_setenv("TMPDIR", temporary, TRUE);
    prepare();
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const Case *c = &cases[i];
        Right right = {0};

        if (!g_pattern_match_simple(pattern, c->name) || (few && c->few == NULL) ||
            (n_signals > 0 && c->products[0] == NULL))
            continue;
        lay_old_products(c);
        const gint64 begin = g_get_monotonic_time();
        Answer answer = execute(c->arguments, NULL, SIGINT, c->serves ? SERVED_US : -1);
        const gint64 took_us = g_get_monotonic_time() - begin;
        right.out = g_steal_pointer(&answer.out);
        right.err = g_strdup(answer.err);
        for (int j = 0; j < MAX_PRODUCTS && c->products[j] != NULL; j++) {
            g_autofree char *path = g_build_filename("out", c->products[j], NULL);

            g_file_get_contents(path, &right.products[j], NULL, NULL);
        }
        g_autofree char *wrong = answer.status == 0
                                     ? wrong_files(c, &right, true, false)
                                     : g_strdup_printf("status %d: %s", answer.status, answer.err);
        if (wrong != NULL) {
            printf("# degas %s: %s\n", c->arguments, wrong);
            report(false, c->name, "without a fault", 1);
        } else if (n_signals > 0) {
            disturb(c, &right, n_signals, took_us);
        } else {
            g_auto(GStrv) chosen = g_strsplit(c->few == NULL ? "" : c->few, ",", -1);

            for (size_t k = 0; k < G_N_ELEMENTS(kinds); k++) {
                if (!few || g_strv_contains((const char *const *)chosen, kinds[k]))
                    torture(c, &right, kinds[k],
                            strcmp(kinds[k], "short") == 0 ||
                                    (few && strcmp(kinds[k], "signal") != 0)
                                ? 3
                                : most);
            }
        }
        answer_clear(&answer);
        g_free(right.out);
        g_free(right.err);
        for (int j = 0; j < MAX_PRODUCTS; j++)
            g_free(right.products[j]);
    }
    if (chdir("/") != 0)
        return 1;
    empty(folder);
    g_rmdir(folder);
    printf("1..%d\n# %" G_GINT64_FORMAT " executions\n", n_tests, n_executions);
    return n_failed != 0;
}
