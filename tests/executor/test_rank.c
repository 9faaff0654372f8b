/* Tests of executor/run/rank.h: messages find their ops whatever the order on either side, and
 * what collectives and ranks are said to do. */
#include "executor/run/rank.h"

#include <glib/gstdio.h>
#include <stdatomic.h>
#include <string.h>

#include "executor/run/shared.h"
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

/* With ZeRO 3 a rank gathers the next op's layer while one is at work, and so holds a layer
 * more; a rank in the middle whose only layer is the first of its units, too. */
static void
test_a_layer_is_gathered_ahead(void)
{
    const ModelArch arch = model(true);
    const Job job = {"1f1b", 2, 4, 1, 4, 1, "30", SCHEDULE_PLACEMENT_LOOP};
    int64_t peaks[2] = {0};

    for (int32_t depth = 0; depth <= 1; depth++) {
        g_autoptr(Plan) plan = plan_of(&job, arch.n_layers);
        g_autoptr(GError) error = NULL;
        g_auto(ExecRunResult) result = {0};
        ExecRunOptions options = options_of(&arch, plan, fast_device());
        plan->zero_stage = 3;
        plan->prefetch_layers = depth;
        g_assert_true(exec_run(&options, &result, &error));
        g_assert_no_error(error);
        peaks[depth] = g_array_index(result.peak_memory_bytes, int64_t, 3);
    }
    const int64_t layer = 4 * model_part_parameters(&arch, MODEL_PART_LAYER, 0, 1, 1, 1, false);
    /* Half of it is the rank's own shard. */
    g_assert_cmpint(peaks[1] - peaks[0], >, layer / 3);
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

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/rank/messages-find-their-ops", test_messages_find_their_ops);
    g_test_add_func("/executor/rank/collectives-tell-their-bytes",
                    test_collectives_tell_their_bytes);
    g_test_add_func("/executor/rank/what-a-rank-does", test_what_a_rank_does);
    g_test_add_func("/executor/rank/a-layer-is-gathered-ahead", test_a_layer_is_gathered_ahead);
    g_test_add_func("/executor/rank/narrow-weights-come-back", test_narrow_weights_come_back);
    g_test_add_func("/executor/rank/bubble-is-what-ranks-idle", test_bubble_is_what_ranks_idle);
    return g_test_run();
}
