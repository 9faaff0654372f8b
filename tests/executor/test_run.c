/* Tests of executor/run/run.h: exact gradients over degrees, slices and schedules; order,
 * determinism, learning. */
#include "executor/run/run.h"

#include <math.h>
#include <string.h>

#include "tests/executor/job.h"

/* --- gradients --- */

/* Runs one step with verification; the message says how far off it was. */
static void
check_gradients(const Job *job, bool tied)
{
    const ModelArch arch = model(tied);
    g_autoptr(Plan) plan = plan_of(job, arch.n_layers);
    g_autoptr(GError) error = NULL;
    g_auto(ExecRunResult) result = {0};
    ExecRunOptions options = options_of(&arch, plan, fast_device());

    options.verify = true;
    const bool ok = exec_run(&options, &result, &error);
    g_assert_no_error(error);
    g_assert_true(ok);
    g_assert_true(result.verified);
    if (!result.passed || g_test_verbose())
        g_test_message("%s dp %d pp %d vpp %d slices %s: %.2e at %s, loss %.7f against %.7f",
                       job->schedule, (int)job->dp, (int)job->pp, (int)plan->degrees.vpp,
                       job->slices, result.max_gradient_error, result.worst_tensor,
                       result.losses[0], result.reference_loss);
    g_assert_true(result.passed);
    g_assert_cmpfloat(result.max_gradient_error, <=, 1e-5);
    g_assert_cmpfloat(fabs(result.losses[0] - result.reference_loss), <=, 1e-5);
}

static void
test_gradients_equal_single_device(void)
{
    static const char *const schedules[] = {"gpipe", "1f1b", "terapipe"};
    static const char *const slices[] = {"24", "9,15", "11,6,7"};
    static const int64_t pps[] = {1, 2, 4};

    for (int64_t dp = 1; dp <= 2; dp++)
        for (size_t p = 0; p < G_N_ELEMENTS(pps); p++)
            for (size_t s = 0; s < G_N_ELEMENTS(slices); s++)
                for (size_t f = 0; f < G_N_ELEMENTS(schedules); f++)
                    check_gradients(&(Job){.schedule = schedules[f],
                                           .dp = dp,
                                           .pp = pps[p],
                                           .n_micro_batches = 3,
                                           .micro_batch = 2,
                                           .slices = slices[s]},
                                    true);
}

/* Whatever else a Schedule can say: chunks on a loop and on a V, I and W apart, other slicings,
 * three replicas, an output table of its own. */
static void
test_gradients_of_other_schedules(void)
{
    static const struct {
        Job job;
        bool tied;
    } cases[] = {
        {{"naive", 1, 4, 1, 2, 1, "24", SCHEDULE_PLACEMENT_LOOP}, true},
        {{"naive", 3, 2, 1, 1, 1, "30", SCHEDULE_PLACEMENT_LOOP}, true},
        {{"1f1b", 3, 1, 1, 2, 1, "1,28,1", SCHEDULE_PLACEMENT_LOOP}, false},
        {{"interleaved", 1, 2, 2, 4, 1, "24", SCHEDULE_PLACEMENT_LOOP}, true},
        {{"interleaved", 2, 2, 2, 4, 2, "24", SCHEDULE_PLACEMENT_LOOP}, false},
        {{"seq1f1b", 1, 2, 1, 3, 1, "10,8,6", SCHEDULE_PLACEMENT_LOOP}, true},
        {{"zb-h1", 1, 4, 1, 6, 1, "24", SCHEDULE_PLACEMENT_LOOP}, true},
        {{"zb-h1", 2, 2, 1, 4, 2, "24", SCHEDULE_PLACEMENT_LOOP}, false},
        {{"zb-v", 1, 2, 2, 4, 1, "24", SCHEDULE_PLACEMENT_V}, true},
        {{"zb-v", 1, 2, 2, 4, 1, "24", SCHEDULE_PLACEMENT_V}, false},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        if (schedule_family_find(cases[i].job.schedule, NULL) == NULL) {
            g_test_message("no schedule %s in this build", cases[i].job.schedule);
            continue;
        }
        check_gradients(&cases[i].job, cases[i].tied);
    }
}

/* Micro-batches of different sizes. */
static void
test_gradients_of_uneven_batches(void)
{
    static const int64_t sizes[] = {3, 1, 2};
    const ModelArch arch = model(true);
    g_autoptr(Plan) plan = plan_of(&(Job){.schedule = "terapipe",
                                          .dp = 2,
                                          .pp = 2,
                                          .n_micro_batches = 3,
                                          .micro_batch = 3,
                                          .slices = "7,17"},
                                   arch.n_layers);
    g_autoptr(GError) error = NULL;
    g_auto(ExecRunResult) result = {0};

    plan->micro_batch_sequences = g_array_new(false, false, sizeof(int64_t));
    g_array_append_vals(plan->micro_batch_sequences, sizes, G_N_ELEMENTS(sizes));
    plan->global_batch = 12;
    ExecRunOptions options = options_of(&arch, plan, fast_device());
    options.verify = true;
    g_assert_true(exec_run(&options, &result, &error));
    g_assert_no_error(error);
    g_assert_cmpfloat(result.max_gradient_error, <=, 1e-5);
    g_assert_true(result.passed);
}

/* --- order --- */

static void
check_order(const Trace *trace, const Schedule *schedule)
{
    g_autofree int64_t *at =
        g_memdup2(schedule->rank_begin, (size_t)schedule->n_ranks * sizeof(int64_t));
    int64_t n_seen = 0;

    for (guint i = 0; i < trace->events->len; i++) {
        const TraceEvent *event = &g_array_index(trace->events, TraceEvent, i);
        if (event->kind > TRACE_EVENT_BACKWARD_WEIGHT)
            continue;
        g_assert_cmpint(event->stream, ==, TRACE_STREAM_COMPUTE);
        const ScheduleOp expected = schedule->ops[at[event->rank]++];
        g_assert_cmpint(event->kind, ==, expected.kind);
        g_assert_cmpint(event->op.micro_batch, ==, expected.micro_batch);
        g_assert_cmpint(event->op.slice, ==, expected.slice);
        g_assert_cmpint(event->op.chunk, ==, expected.chunk);
        n_seen++;
    }
    g_assert_cmpint(n_seen, ==, schedule_n_ops(schedule));
}

/* The measured trace holds the schedule's ops in its order, every message at both ends with its
 * bytes, one reduction and one optimizer step per rank, and memory that adds up. */
static void
test_trace_follows_schedule(void)
{
    const ModelArch arch = model(true);
    const Job jobs[] = {
        {"1f1b", 2, 4, 1, 5, 2, "9,15", SCHEDULE_PLACEMENT_LOOP},
        {"terapipe", 1, 2, 1, 3, 1, "9,8,7", SCHEDULE_PLACEMENT_LOOP},
    };

    for (size_t j = 0; j < G_N_ELEMENTS(jobs); j++) {
        g_autoptr(Plan) plan = plan_of(&jobs[j], arch.n_layers);
        g_autoptr(GError) error = NULL;
        g_auto(ExecRunResult) result = {0};
        ExecRunOptions options = options_of(&arch, plan, fast_device());
        int64_t n[TRACE_EVENT_N] = {0}, bytes[TRACE_EVENT_N] = {0}, held = 0;
        options.n_steps = 4;
        g_assert_true(exec_run(&options, &result, &error));
        g_assert_no_error(error);
        g_autoptr(Schedule) schedule = plan_build_schedule(plan, NULL, &error);
        check_order(result.trace, schedule);
        trace_check(result.trace, &error);
        g_assert_no_error(error);
        g_assert_true(result.trace->measured);
        for (guint i = 0; i < result.trace->events->len; i++) {
            const TraceEvent *event = &g_array_index(result.trace->events, TraceEvent, i);
            n[event->kind]++;
            bytes[event->kind] += event->bytes;
        }
        const int64_t messages = 2 * (plan->degrees.pp - 1) * plan->n_micro_batches;
        g_assert_cmpint(n[TRACE_EVENT_SEND], ==, messages * plan->slices->len);
        g_assert_cmpint(n[TRACE_EVENT_RECEIVE], ==, messages * plan->slices->len);
        g_assert_cmpint(bytes[TRACE_EVENT_SEND], ==,
                        messages * plan->micro_batch * plan->seq_len * arch.hidden * 4);
        g_assert_cmpint(bytes[TRACE_EVENT_RECEIVE], ==, bytes[TRACE_EVENT_SEND]);
        g_assert_cmpint(n[TRACE_EVENT_OPTIMIZER], ==, plan->degrees.pp);
        /* Over dp on every rank, and the tied table on two. */
        g_assert_cmpint(n[TRACE_EVENT_DP_REDUCE], ==,
                        (plan->degrees.dp > 1 ? plan->degrees.pp : 0) + 2);
        for (guint i = 0; i < result.trace->memory->len; i++)
            held += g_array_index(result.trace->memory, TraceMemory, i).delta_bytes;
        g_assert_cmpint(held, >, 0);
        for (guint r = 0; r < result.peak_memory_bytes->len; r++)
            g_assert_cmpint(g_array_index(result.peak_memory_bytes, int64_t, r), >, 0);
        g_assert_cmpint(result.busy_s->len, ==, plan->degrees.dp * plan->degrees.pp);
        g_assert_true(result.bubble_fraction > 0 && result.bubble_fraction < 1);
    }
}

/* --- learning --- */

typedef struct {
    int64_t n_calls;
    double last_loss, last_step_s;
} Progress;

static void
note_progress(int64_t step, double loss, double step_s, void *user_data)
{
    Progress *progress = user_data;

    g_assert_cmpint(step, ==, progress->n_calls++);
    g_assert_cmpfloat(step_s, >, 0);
    progress->last_loss = loss;
    progress->last_step_s = step_s;
}

/* Losses of @n_steps steps on real text (owned). */
static double *
losses_of(const Job *job, bool tied, int64_t n_steps)
{
    const ModelArch arch = model(tied);
    g_autoptr(Plan) plan = plan_of(job, arch.n_layers);
    g_autoptr(GError) error = NULL;
    g_auto(ExecRunResult) result = {0};
    Progress progress = {0};
    ExecRunOptions options = options_of(&arch, plan, fast_device());

    options.data_path = "LICENSE";
    options.n_steps = n_steps;
    options.learning_rate = 3e-3f;
    options.progress = note_progress;
    options.user_data = &progress;
    g_assert_true(exec_run(&options, &result, &error));
    g_assert_no_error(error);
    g_assert_cmpint(progress.n_calls, ==, n_steps);
    g_assert_cmpfloat(progress.last_loss, ==, result.losses[n_steps - 1]);
    g_assert_cmpfloat(progress.last_step_s, ==, result.step_s[n_steps - 1]);
    return g_steal_pointer(&result.losses);
}

static bool
have_text(void)
{
    if (g_file_test("LICENSE", G_FILE_TEST_IS_REGULAR))
        return true;
    g_test_skip("not run in the repository's root: no LICENSE to train on");
    return false;
}

/* The entropy of the text's bytes one by one: the best loss of a model that ignores context. */
static double
byte_entropy(const char *path)
{
    g_autofree char *text = NULL;
    gsize n = 0;
    double count[256] = {0}, entropy = 0;

    g_assert_true(g_file_get_contents(path, &text, &n, NULL));
    for (gsize i = 0; i < n; i++)
        count[(uint8_t)text[i]]++;
    for (size_t i = 0; i < 256; i++)
        entropy -= count[i] == 0 ? 0 : count[i] / (double)n * log(count[i] / (double)n);
    return entropy;
}

/* From ln 256 = 5.545, when nothing is known about the next byte, to less than counting bytes can
 * give: the model has learned from context. */
static void
test_losses_fall_on_real_text(void)
{
    enum {
        N = 600
    };
    double mean = 0;

    if (!have_text())
        return;
    g_autofree double *losses = losses_of(&split_job, true, N);
    g_assert_cmpfloat(fabs(losses[0] - log(256)), <, 0.1);
    for (int64_t i = N - 10; i < N; i++)
        mean += losses[i] / 10;
    g_test_message("loss %.3f, entropy of single bytes %.3f", mean, byte_entropy("LICENSE"));
    g_assert_cmpfloat(mean, <, byte_entropy("LICENSE") - 0.2);
}

/* Ten steps on eight ranks stay on the single device's path; tied copies included. */
static void
test_training_does_not_depend_on_degrees(void)
{
    if (!have_text())
        return;
    for (int tied = 0; tied <= 1; tied++) {
        g_autofree double *expected = losses_of(&one_device, tied, 10);
        g_autofree double *losses = losses_of(&split_job, tied, 10);
        for (int64_t i = 0; i < 10; i++)
            g_assert_cmpfloat(fabs(losses[i] - expected[i]), <=, 1e-4);
    }
}

static void
test_runs_are_equal_bit_by_bit(void)
{
    if (!have_text())
        return;
    g_autofree double *a = losses_of(&split_job, true, 12);
    g_autofree double *b = losses_of(&split_job, true, 12);
    g_assert_cmpint(memcmp(a, b, 12 * sizeof *a), ==, 0);
}

/* --- memory --- */

/* This one is late at every op. */
static bool
be_late(int32_t rank, int64_t step, ScheduleOp op, void *user_data, GError **error)
{
    if (rank == *(const int32_t *)user_data)
        g_usleep(3000);
    return true;
}

/* Weights gathered ahead of use: what a rank holds is the schedule's matter, not that of who is
 * ahead.  A part of a layer is 1.5 MiB of fp32, and what copies of a message may lie at a rank is a
 * segment of the rings for each of two ranks and one more. */
static void
test_memory_does_not_depend_on_who_is_late(void)
{
    const Job job = {"1f1b", 2, 1, 1, 3, 1, "30", SCHEDULE_PLACEMENT_LOOP};
    static const PlanOffload offloads[] = {PLAN_OFFLOAD_NONE, PLAN_OFFLOAD_CPU, PLAN_OFFLOAD_NVME};
    ModelArch arch = model(true);

    arch.hidden = 256;
    arch.head_dim = 64;
    arch.ffn_hidden = 1024;
    for (size_t i = 0; i < G_N_ELEMENTS(offloads); i++) {
        int64_t least = INT64_MAX, most = 0;
        g_autoptr(Plan) plan = plan_of(&job, arch.n_layers);
        plan->zero_stage = 3;
        plan->prefetch_layers = 2;
        plan->offload = offloads[i];
        plan->offload_parameters = offloads[i] != PLAN_OFFLOAD_NONE;
        for (int32_t late = -1; late < 2; late++) {
            g_autoptr(GError) error = NULL;
            g_auto(ExecRunResult) result = {0};
            ExecRunOptions options = options_of(&arch, plan, fast_device());
            options.before_op = be_late;
            options.before_op_data = &late;
            g_assert_true(exec_run(&options, &result, &error));
            g_assert_no_error(error);
            for (guint r = 0; r < result.peak_memory_bytes->len; r++) {
                const int64_t peak = g_array_index(result.peak_memory_bytes, int64_t, r);
                least = MIN(least, peak);
                most = MAX(most, peak);
            }
        }
        g_test_message("offload %d: from %d to %d bytes", (int)i, (int)least, (int)most);
        g_assert_cmpint(most - least, <=, 3 * 256 * 1024);
    }
}

/* The most that activations come to on rank 0. */
static int64_t
most_activations(const Trace *trace)
{
    int64_t sum = 0, most = 0;

    for (guint i = 0; i < trace->memory->len; i++) {
        const TraceMemory *event = &g_array_index(trace->memory, TraceMemory, i);
        if (event->owner == TRACE_MEMORY_ACTIVATIONS)
            sum += event->delta_bytes;
        most = MAX(most, sum);
    }
    return most;
}

/* Four experts on two ranks, of which a row sees two: in turn, a rank holds as much whatever the
 * weights are; by the router, it depends on them. */
static void
test_balanced_experts_take_turns(void)
{
    const Job job = {"1f1b", 2, 1, 1, 2, 1, "30", SCHEDULE_PLACEMENT_LOOP};
    ModelArch arch = model(false);
    int64_t most[2][2]; /* by balance and seed */

    arch.family = MODEL_FAMILY_LLAMA;
    arch.qkv_bias = false;
    arch.experts = (ModelExperts){.n_experts = 4, .top_k = 2, .ffn_hidden = 100, .router_scale = 1};
    g_autoptr(Plan) plan = plan_of(&job, arch.n_layers);
    plan->degrees.ep = 2;
    for (int balance = 0; balance < 2; balance++)
        for (int seed = 0; seed < 2; seed++) {
            g_autoptr(GError) error = NULL;
            g_auto(ExecRunResult) result = {0};
            ExecRunOptions options = options_of(&arch, plan, fast_device());
            options.balance_experts = balance;
            options.seed = (uint64_t)seed;
            g_assert_true(exec_run(&options, &result, &error));
            g_assert_no_error(error);
            most[balance][seed] = most_activations(result.trace);
        }
    g_assert_cmpint(most[0][0], !=, most[0][1]);
    g_assert_cmpint(most[1][0], ==, most[1][1]);
    g_assert_cmpint(most[1][0], !=, most[0][0]);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/run/gradients-equal-single-device",
                    test_gradients_equal_single_device);
    g_test_add_func("/executor/run/gradients-of-other-schedules",
                    test_gradients_of_other_schedules);
    g_test_add_func("/executor/run/gradients-of-uneven-batches", test_gradients_of_uneven_batches);
    g_test_add_func("/executor/run/trace-follows-schedule", test_trace_follows_schedule);
    g_test_add_func("/executor/run/losses-fall-on-real-text", test_losses_fall_on_real_text);
    g_test_add_func("/executor/run/training-does-not-depend-on-degrees",
                    test_training_does_not_depend_on_degrees);
    g_test_add_func("/executor/run/runs-are-equal-bit-by-bit", test_runs_are_equal_bit_by_bit);
    g_test_add_func("/executor/run/memory-does-not-depend-on-who-is-late",
                    test_memory_does_not_depend_on_who_is_late);
    g_test_add_func("/executor/run/balanced-experts-take-turns", test_balanced_experts_take_turns);
    return g_test_run();
}
