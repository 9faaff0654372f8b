/* Tests of executor/run/rank.h: messages find their ops whatever the order on either side, and
 * what collectives and ranks are said to do. */
#include "executor/run/rank.h"

#include <glib/gstdio.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "executor/run/shared.h"
#include "tests/executor/combo.h"
#include "tests/executor/job.h"

/* Each direction between two ranks has a message for each virtual micro-batch: a receiver that
 * takes them from the last micro-batch to the first one, and its sender's stages one after the
 * other, gets the right ones. */
static void
test_messages_find_their_ops(void)
{
    const ModelArch arch = model(true);
    const Job job = {"gpipe", 1, 4, 1, 5, 1, "12,10,8", SCHEDULE_PLACEMENT_LOOP};
    g_autoptr(Plan) plan = plan_of(&job, arch.n_layers);
    g_autoptr(Schedule) schedule = plan_build_schedule(plan, NULL, NULL);
    g_autoptr(GError) error = NULL;
    g_auto(ExecRunResult) result = {0};
    ExecRunOptions options = options_of(&arch, plan, fast_device());

    /* Slices of a micro-batch stay in order; odd ranks take micro-batches from the last to the
     * first. */
    for (int32_t r = 1; r < schedule->n_ranks; r += 2)
        for (int64_t i = schedule->rank_begin[r]; i < schedule->rank_begin[r + 1]; i++)
            schedule->ops[i].micro_batch =
                (int32_t)plan->n_micro_batches - 1 - schedule->ops[i].micro_batch;
    options.schedule = schedule;
    options.verify = true;
    g_assert_true(exec_run(&options, &result, &error));
    g_assert_no_error(error);
    g_assert_true(result.verified && result.passed);
}

/* The bytes of replicas' collectives in a trace: gradients in fp32, and weights as they are
 * stored, of all parameters of a rank. */
static void
test_collectives_tell_their_bytes(void)
{
    const ModelArch arch = model(true);
    const Job job = {"1f1b", 2, 1, 1, 2, 1, "30", SCHEDULE_PLACEMENT_LOOP};

    for (int32_t zero = 0; zero <= 1; zero++) {
        g_autoptr(Plan) plan = plan_of(&job, arch.n_layers);
        g_autoptr(GError) error = NULL;
        g_auto(ExecRunResult) result = {0};
        ExecRunOptions options = options_of(&arch, plan, fast_device());
        int64_t bytes[TRACE_EVENT_N] = {0};
        plan->zero_stage = zero;
        g_assert_true(exec_run(&options, &result, &error));
        g_assert_no_error(error);
        for (guint i = 0; i < result.trace->events->len; i++) {
            const TraceEvent *event = &g_array_index(result.trace->events, TraceEvent, i);
            bytes[event->kind] += event->bytes;
        }
        /* Units are padded to whole shards. */
        const int64_t all = 4 * model_parameters(&arch);
        g_assert_cmpint(bytes[TRACE_EVENT_DP_REDUCE], >=, all);
        g_assert_cmpint(bytes[TRACE_EVENT_DP_REDUCE], <=, all + all / 50);
        g_assert_cmpint(bytes[TRACE_EVENT_DP_GATHER], ==,
                        zero == 0 ? 0 : bytes[TRACE_EVENT_DP_REDUCE]);
    }
}

/* A result is the caller's where ranks are threads, and its bubble is what ranks have not worked
 * of the traced step. */
static void
test_bubble_is_what_ranks_idle(void)
{
    const ModelArch arch = model(true);
    g_autoptr(Plan) plan = plan_of(&split_job, arch.n_layers);
    g_autoptr(GError) error = NULL;
    g_auto(ExecRunResult) result = {0};
    ExecRunOptions options = options_of(&arch, plan, fast_device());
    double busy = 0;

    options.n_steps = 3;
    g_assert_true(exec_run(&options, &result, &error));
    g_assert_no_error(error);
    g_assert_true(result.is_mine);
    g_assert_cmpuint(result.busy_s->len, ==, 8);
    for (guint r = 0; r < result.busy_s->len; r++)
        busy += g_array_index(result.busy_s, double, r);
    g_assert_cmpfloat_with_epsilon(
        result.bubble_fraction,
        1 - busy / 8 / result.step_s[result.traced_step - result.first_step], 1e-9);
}

/* The most bytes of buffers, whole weights among them, that pipeline ranks hold at once with ZeRO 3 where
 * @depth layers are gathered ahead. */
static void
buffers_of(const ModelArch *arch, const Job *job, int32_t depth, int64_t most[4])
{
    g_autoptr(Plan) plan = plan_of(job, arch->n_layers);
    g_autoptr(GError) error = NULL;
    g_auto(ExecRunResult) result = {0};
    ExecRunOptions options = options_of(arch, plan, fast_device());
    int64_t held[4] = {0};

    plan->zero_stage = 3;
    plan->prefetch_layers = depth;
    g_assert_true(exec_run(&options, &result, &error));
    g_assert_no_error(error);
    for (guint i = 0; i < result.trace->memory->len; i++) {
        const TraceMemory *m = &g_array_index(result.trace->memory, TraceMemory, i);

        held[m->rank] += m->owner == TRACE_MEMORY_BUFFERS ? m->delta_bytes : 0;
        most[m->rank] = MAX(most[m->rank], held[m->rank]);
    }
}

/* With ZeRO 3 a rank gathers the next op's layer while one is at work, and so holds a layer
 * more; a rank in the middle whose only layer is the first of its units, too, and one whose second stage alone
 * has experts, which are the most of its largest layer. */
static void
test_a_layer_is_gathered_ahead(void)
{
    static const Job jobs[] = {
        {"1f1b", 2, 4, 1, 4, 1, "30", SCHEDULE_PLACEMENT_LOOP},
        {"interleaved", 2, 2, 2, 4, 1, "30", SCHEDULE_PLACEMENT_LOOP},
    };

    for (int i = 0; i < 2; i++) {
        ModelArch arch = model(true);
        int64_t most[2][4] = {{0}};

        if (i == 1) {
            arch.family = MODEL_FAMILY_LLAMA;
            arch.qkv_bias = false;
            arch.experts = (ModelExperts){.n_experts = 8,
                                          .top_k = 2,
                                          .ffn_hidden = 100,
                                          .first_dense_layers = 2,
                                          .router_scale = 1};
        }
        for (int32_t depth = 0; depth <= 1; depth++)
            buffers_of(&arch, &jobs[i], depth, most[depth]);
        const int64_t layer =
            4 * model_part_parameters(&arch, MODEL_PART_LAYER, arch.n_layers - 1, 1, 1, 1, false);
        /* All of it but the norms, which are not gathered. */
        for (int r = 0; r < jobs[i].pp; r++)
            g_assert_cmpint(most[1][r] - most[0][r], >, layer * 9 / 10);
    }
}

static void
remove_folder(const char *path)
{
    g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);
    const char *name;

    while ((name = g_dir_read_name(dir)) != NULL) {
        g_autofree char *inside = g_build_filename(path, name, NULL);
        if (g_file_test(inside, G_FILE_TEST_IS_DIR))
            remove_folder(inside);
        else
            g_remove(inside);
    }
    g_assert_cmpint(g_rmdir(path), ==, 0);
}

/* Weights in bf16 are rounded from the master weights that a checkpoint has: a run that goes on
 * from it has the losses of one that was never interrupted. */
static void
test_narrow_weights_come_back(void)
{
    const ModelArch arch = model(true);
    const Job job = {"1f1b", 1, 2, 1, 2, 1, "30", SCHEDULE_PLACEMENT_LOOP};
    g_autofree char *folder = g_dir_make_tmp("degas-test-XXXXXX", NULL);
    double losses[2][4];

    for (int parts = 1; parts <= 2; parts++)
        for (int part = 0; part < parts; part++) {
            g_autoptr(Plan) plan = plan_of(&job, arch.n_layers);
            g_autoptr(GError) error = NULL;
            g_auto(ExecRunResult) result = {0};
            ExecRunOptions options = options_of(&arch, plan, "reference");
            plan->dtype = DTYPE_BF16;
            options.n_steps = part + 1 == parts ? 4 : 2;
            options.checkpoint_dir = parts == 1 ? NULL : folder;
            options.resume = part == 1;
            options.resume_step = -1;
            g_assert_true(exec_run(&options, &result, &error));
            g_assert_no_error(error);
            g_assert_cmpint(result.n_steps, ==, parts == 1 ? 4 : 2);
            memcpy(&losses[parts - 1][result.first_step], result.losses,
                   (size_t)result.n_steps * sizeof(double));
        }
    for (int i = 0; i < 4; i++)
        g_assert_cmpfloat(losses[1][i], ==, losses[0][i]);
    remove_folder(folder);
}

/* shared.h: what a rank does, in words. */
static void
test_what_a_rank_does(void)
{
    static const struct {
        ExecDoing doing;
        const char *text;
    } cases[] = {
        {EXEC_DOING_START, "its preparations"},
        {EXEC_DOING_DATA, "reading the data of step 3"},
        {EXEC_DOING_OP, "F0.0s1 of step 3"},
        {EXEC_DOING_REDUCE, "the gradient reduction of step 3"},
        {EXEC_DOING_OPTIMIZER, "the optimizer of step 3"},
        {EXEC_DOING_BARRIER, "the barrier before step 3"},
        {EXEC_DOING_CHECKPOINT, "the checkpoint after step 3"},
        {EXEC_DOING_COLLECTIVES, "the timing of collectives"},
        {EXEC_DOING_END, "gathering the results"},
        {EXEC_DOING_NOTHING, "nothing, it has ended"},
    };
    const ModelArch arch = model(true);
    g_autoptr(Plan) plan = plan_of(&split_job, arch.n_layers);
    g_autoptr(GError) error = NULL;
    const ExecRunOptions options = options_of(&arch, plan, fast_device());
    ExecShared *shared = exec_shared_new(&options, &error);

    g_assert_no_error(error);
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        atomic_store(&shared->records[1].doing, cases[i].doing);
        atomic_store(&shared->records[1].step, 3);
        atomic_store(&shared->records[1].op, 1);
        g_autofree char *text = exec_shared_doing(shared, 1);
        g_assert_cmpstr(text, ==, cases[i].text);
    }
    exec_shared_unref(shared);
}

/* --- what ends and what is left --- */

/* Cuts the file of the data while step 0 is at work: its tokens are there already. */
static bool
cut_data(int32_t rank, int64_t step, ScheduleOp op, void *user_data, GError **error)
{
    g_assert_cmpint(truncate(user_data, 5), ==, 0);
    return true;
}

/* Data that ends during a run ends the run, and the rank that reads it is named. */
static void
test_data_that_end(void)
{
    const ModelArch arch = model(true);
    g_autoptr(Plan) plan = plan_of(&one_device, arch.n_layers);
    g_autoptr(GError) error = NULL;
    g_auto(ExecRunResult) result = {0};
    g_autofree char *bytes = g_strnfill(1000, 'x'), *path = NULL;
    const int fd = g_file_open_tmp("data-XXXXXX", &path, &error);
    ExecRunOptions options = options_of(&arch, plan, fast_device());

    g_assert_no_error(error);
    g_assert_cmpint(write(fd, bytes, 1000), ==, 1000);
    close(fd);
    options.data_path = path;
    options.n_steps = 3;
    options.before_op = cut_data;
    options.before_op_data = path;
    g_assert_false(exec_run(&options, &result, &error));
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_DATA);
    g_assert_nonnull(strstr(error->message, "rank 0 failed in reading the data of step 1"));
    g_unlink(path);
}

/* Times of collectives that a profile asks for come with the result. */
static void
test_collectives_are_timed(void)
{
    const ModelArch arch = model(true);
    const Job job = {"gpipe", 2, 1, 1, 1, 1, "30", SCHEDULE_PLACEMENT_LOOP};
    g_autoptr(Plan) plan = plan_of(&job, arch.n_layers);
    g_autoptr(GError) error = NULL;
    g_auto(ExecRunResult) result = {0};
    ExecRunOptions options = options_of(&arch, plan, "reference");

    options.collectives_s = 0.02;
    options.collectives_bytes = 4096;
    g_assert_true(exec_run(&options, &result, &error));
    g_assert_no_error(error);
    g_assert_nonnull(result.collectives);
    g_assert_nonnull(strstr(result.collectives, "all_reduce"));
}

/* --- memory that ends in a merged pair --- */

/* The thread with this name gets no large piece of memory; NULL: all get it. */
static const char *_Atomic no_memory_for;
static size_t large_bytes;

/* Stands before the C library's: the memory of a backend comes from here. */
void *
aligned_alloc(size_t alignment, size_t n)
{
    const char *whom = atomic_load(&no_memory_for);
    char thread[16];
    void *memory;

    if (whom != NULL && n >= large_bytes &&
        pthread_getname_np(pthread_self(), thread, sizeof thread) == 0 && strcmp(thread, whom) == 0)
        return NULL;
    return posix_memalign(&memory, alignment, n) == 0 ? memory : NULL;
}

typedef struct {
    ScheduleOpKind first, second; /* of each pair */
    const char *thread;           /* of the backward */
} Pairing;

/* From rank 3's first pair on. */
static bool
refuse(int32_t rank, int64_t step, ScheduleOp op, void *user_data, GError **error)
{
    const Pairing *pairing = user_data;

    if (rank == 3 && op.kind == pairing->second &&
        op.micro_batch == (op.kind == SCHEDULE_OP_FORWARD ? 2 : 0))
        atomic_store(&no_memory_for, pairing->thread);
    return true;
}

/* Pairs each op of @first with the next one, of @second and another micro-batch. */
static void
pair_up(Schedule *schedule, const Pairing *pairing)
{
    const ScheduleOp *ops = schedule->ops;

    g_array_set_size(schedule->overlap_pairs, 0);
    for (int32_t r = 0; r < schedule->n_ranks; r++)
        for (int64_t at = schedule->rank_begin[r]; at + 1 < schedule->rank_begin[r + 1]; at++) {
            if (ops[at].kind != pairing->first || ops[at + 1].kind != pairing->second ||
                ops[at].micro_batch == ops[at + 1].micro_batch)
                continue;
            g_array_append_val(schedule->overlap_pairs, at);
            at++;
        }
}

/* The last rank of 1F1B runs F0 F1 B0 F2 B1 F3 B2 B3 where passes are merged: B0 is the second op of a pair with
 * F1, or the first of one with F2.  It recomputes and gets no memory for that: it is named, not the other op. */
static void
test_memory_ends_in_a_pair(void)
{
    static const Pairing pairings[] = {
        {SCHEDULE_OP_FORWARD, SCHEDULE_OP_BACKWARD, "second op"},
        {SCHEDULE_OP_BACKWARD, SCHEDULE_OP_FORWARD, "rank 3"},
    };
    Combo c = combo_default();

    c.family = MODEL_FAMILY_LLAMA;
    c.n_experts = 4;
    c.ep = c.dp = c.pp = 2;
    c.n_micro_batches = 4;
    c.merges = true;
    c.recompute = PLAN_RECOMPUTE_FULL;
    const ModelArch arch = combo_arch(&c);
    g_autoptr(Plan) plan = combo_plan(&c);
    /* More than the input of a layer, which a forward keeps. */
    large_bytes = 2 * (size_t)(plan->seq_len * arch.hidden) * sizeof(float);
    for (size_t i = 0; i < G_N_ELEMENTS(pairings); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Schedule) schedule = plan_build_schedule(plan, NULL, &error);
        g_auto(ExecRunResult) result = {0};
        ExecRunOptions options = combo_options(&c, &arch, plan);

        g_assert_no_error(error);
        pair_up(schedule, &pairings[i]);
        options.device = "reference";
        options.schedule = schedule;
        options.before_op = refuse;
        options.before_op_data = (void *)&pairings[i];
        g_assert_false(exec_run(&options, &result, &error));
        atomic_store(&no_memory_for, NULL);
        g_assert_error(error, EXEC_ERROR, EXEC_ERROR_MEMORY);
        g_test_message("%s", error->message);
        g_assert_nonnull(strstr(error->message, "failed in B0.0 of step 0: no memory for"));
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/rank/messages-find-their-ops", test_messages_find_their_ops);
    g_test_add_func("/executor/rank/collectives-tell-their-bytes",
                    test_collectives_tell_their_bytes);
    g_test_add_func("/executor/rank/what-a-rank-does", test_what_a_rank_does);
    g_test_add_func("/executor/rank/data-that-end", test_data_that_end);
    g_test_add_func("/executor/rank/collectives-are-timed", test_collectives_are_timed);
    g_test_add_func("/executor/rank/memory-ends-in-a-pair", test_memory_ends_in_a_pair);
    g_test_add_func("/executor/rank/a-layer-is-gathered-ahead", test_a_layer_is_gathered_ahead);
    g_test_add_func("/executor/rank/narrow-weights-come-back", test_narrow_weights_come_back);
    g_test_add_func("/executor/rank/bubble-is-what-ranks-idle", test_bubble_is_what_ranks_idle);
    return g_test_run();
}
