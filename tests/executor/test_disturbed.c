/* Tests of what becomes of timings during which others had the core: executor/device/clock.h,
 * samples.h, measure_rank.h, measure_machine.h, and a profile beside a busy thread.
 * Test runner: alone: other processes are what it looks for. */

#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "executor/device/clock.h"
#include "executor/measure/machine.h"
#include "executor/measure/rank.h"
#include "executor/transport/samples.h"

/* --- the clock --- */

static void
test_a_share_of_the_time_is_borne(void)
{
    static const struct {
        int64_t wall_ns, thread_ns;
        bool is_disturbed;
    } cases[] = {
        {5000, 5300, false}, /* both readings of the thread's clock are around the other's */
        {5000, 3760, false},      {5000, 3740, true},
        {1000000, 750000, false}, {1000000, 749999, true},
        {1000000, 0, true},       {0, 0, false},
        {0, 300, false},          {INT64_MAX / 2, INT64_MAX / 2, false},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++)
        g_assert_cmpint(exec_was_disturbed(cases[i].wall_ns, cases[i].thread_ns), ==,
                        cases[i].is_disturbed);
}

/* A thread that sleeps has no core. */
static void
test_a_thread_has_its_own_clock(void)
{
    const int64_t begin_ns = exec_now_ns(), thread_begin_ns = exec_thread_ns();

    g_usleep(20000);
    const int64_t thread_ns = exec_thread_ns() - thread_begin_ns;
    const int64_t wall_ns = exec_now_ns() - begin_ns;
    g_assert_cmpint(thread_ns, >=, 0);
    g_assert_cmpint(thread_ns, <, wall_ns / 2);
    g_assert_true(exec_was_disturbed(wall_ns, thread_ns));
}

/* --- samples --- */

static const ProfileMeasurement layer = {.op = PROFILE_OP_LAYER, .batch = 1, .tokens = 2, .tp = 1};
static const ProfileMeasurement head = {.op = PROFILE_OP_HEAD, .batch = 1, .tokens = 2, .tp = 1};
static const ProfileMeasurement untimed = {
    .op = PROFILE_OP_EMBEDDING, .batch = 1, .tokens = 2, .tp = 1};
static const ProfileMeasurement message = {.op = PROFILE_OP_P2P, .bytes = 8, .n_ranks = 2};

static ExecSamples *
some_samples(void)
{
    ExecSamples *samples = exec_samples_new();

    for (int i = 1; i <= 3; i++) {
        exec_samples_add(samples, &layer, i, false);
        exec_samples_add(samples, &layer, 100 * i, true);
        exec_samples_add(samples, &head, 10 * i, true);
        exec_samples_add(samples, &message, i, false);
    }
    exec_samples_add(samples, &layer, 400, true);
    /* What else a row tells; of a row that was never timed nothing is told. */
    for (int i = 3; i >= 1; i--) {
        exec_samples_add(samples, &layer, 0.1 * i, EXEC_SAMPLE_QUEUE);
        exec_samples_add(samples, &layer, 1.5 * i, EXEC_SAMPLE_COLD);
        exec_samples_add(samples, &untimed, i, EXEC_SAMPLE_QUEUE);
    }
    return samples;
}

static const ProfileMeasurement *
row_of(const Profile *profile, ProfileOp op)
{
    for (guint i = 0; i < profile->measurements->len; i++) {
        const ProfileMeasurement *row =
            &g_array_index(profile->measurements, ProfileMeasurement, i);
        if (row->op == op)
            return row;
    }
    return NULL;
}

static void
check_samples(ExecSamples *samples)
{
    g_autoptr(Profile) profile = profile_load("local-cpu", NULL);
    const ExecSamplesTotal total = exec_samples_total(samples);

    /* Of a message nobody can tell. */
    g_assert_cmpint(total.n, ==, 3 + 4 + 3);
    g_assert_cmpint(total.n_disturbed, ==, 4 + 3);
    g_assert_cmpuint(exec_samples_count(samples, &layer), ==, 7);
    g_assert_cmpuint(exec_samples_count(samples, &head), ==, 3);
    exec_samples_write(samples, profile);
    const ProfileMeasurement *row = row_of(profile, PROFILE_OP_LAYER);
    g_assert_cmpfloat(row->p10_s, ==, 1);
    g_assert_cmpfloat(row->median_s, ==, 2);
    g_assert_cmpfloat(row->p90_s, ==, 2); /* (3 - 1) * 90 / 100 is 1 */
    g_assert_cmpfloat(row->queue_s, ==, 0.2);
    g_assert_cmpfloat(row->cold_s, ==, 3);
    g_assert_cmpfloat(row->warm_s, ==, 0);
    g_assert_cmpfloat(exec_samples_least(samples, &layer, EXEC_SAMPLE_QUEUE), ==, 0.1);
    g_assert_cmpfloat(exec_samples_least(samples, &head, EXEC_SAMPLE_QUEUE), ==, 0);
    g_assert_null(row_of(profile, PROFILE_OP_EMBEDDING));
    row = row_of(profile, PROFILE_OP_HEAD);
    g_assert_cmpfloat(row->p10_s, ==, 10);
    g_assert_cmpfloat(row->median_s, ==, 20);
}

/* Percentiles are of those that were not disturbed, if there is any; kept in a file, they are what
 * they were. */
static void
test_disturbed_samples_are_set_aside(void)
{
    g_autoptr(ExecSamples) samples = some_samples();
    g_autoptr(ExecSamples) again = exec_samples_new();
    g_autoptr(JsonWriter) writer = json_writer_new();
    g_autoptr(GError) error = NULL;
    size_t n_bytes;

    check_samples(samples);
    json_write_object(writer, NULL);
    json_write_string(writer, "format", "x");
    json_write_int64(writer, "version", 1);
    exec_samples_keep(samples, writer, "samples");
    json_write_object_end(writer);
    g_autofree char *text = json_writer_steal(writer, &n_bytes);
    g_autoptr(JsonDoc) doc = json_doc_parse("x", text, n_bytes, &error);
    exec_samples_read(again, doc, json_array(doc, json_doc_root(doc, "x", 1), "samples"));
    g_assert_true(json_doc_finish(doc, &error));
    g_assert_no_error(error);
    check_samples(again);
}

static void
test_who_waits_cannot_tell(void)
{
    static const struct {
        ProfileMeasurement key;
        bool is_alone;
    } cases[] = {
        {{.op = PROFILE_OP_LAYER, .tp = 1}, true},
        {{.op = PROFILE_OP_LAYER, .tp = 2}, false}, /* for the other rank's half */
        {{.op = PROFILE_OP_LAYER_GEMM, .tp = 1}, true},
        {{.op = PROFILE_OP_LAYER_OTHER, .tp = 2}, false},
        {{.op = PROFILE_OP_HEAD, .tp = 1}, true},
        {{.op = PROFILE_OP_OPTIMIZER}, true},
        {{.op = PROFILE_OP_COPY_D2H, .bytes = 1}, true},
        {{.op = PROFILE_OP_P2P, .n_ranks = 2}, false},
        {{.op = PROFILE_OP_ALL_REDUCE, .n_ranks = 2}, false},
        {{.op = PROFILE_OP_OVERHEAD}, false},
        {{.op = PROFILE_OP_LAUNCH}, false},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++)
        g_assert_cmpint(exec_samples_is_alone(&cases[i].key), ==, cases[i].is_alone);
}

/* --- a rank --- */

/* What a rank makes of three timings of a millisecond, in the second of which it had its core for
 * half of it. */
static ExecSamplesTotal
collect(bool watches_cores, const ProfileMeasurement *key)
{
    g_autoptr(ExecBackend) backend = exec_backend_open("reference", 0, DTYPE_FP32, NULL);
    g_autoptr(ExecSamples) samples = exec_samples_new();
    ExecMeasureShared shared = {.samples = samples, .watches_cores = watches_cores};
    ExecMeasureTiming timings[3];

    for (int i = 0; i < 3; i++)
        timings[i] = (ExecMeasureTiming){.key = *key,
                                         .share = 1,
                                         .begin_ns = 1000,
                                         .end_ns = 1001000,
                                         .thread_begin_ns = 500,
                                         .thread_end_ns = i == 1 ? 500500 : 1000700};
    ExecMeasureRank rank = {.shared = &shared,
                            .backend = backend,
                            .busy = true,
                            .record = true,
                            .timings = timings,
                            .n_timings = 3};
    g_assert_true(exec_measure_collect(&rank, NULL));
    g_assert_cmpuint(exec_samples_count(samples, key), ==, 3);
    return exec_samples_total(samples);
}

static void
test_a_rank_sets_disturbed_timings_aside(void)
{
    ProfileMeasurement half = layer;

    half.tp = 2;
    g_assert_cmpint(collect(true, &layer).n_disturbed, ==, 1);
    g_assert_cmpint(collect(false, &layer).n_disturbed, ==, 0); /* a GPU, or cores are shared */
    g_assert_cmpint(collect(true, &half).n_disturbed, ==, 0);
    g_assert_cmpint(collect(true, &message).n_disturbed, ==, 0);
}

/* Of three ops of a schedule the second was disturbed: what it has of every kind is set aside. */
static void
test_kinds_of_a_disturbed_op_are_set_aside(void)
{
    g_autoptr(ExecBackend) backend = exec_backend_open("reference", 0, DTYPE_FP32, NULL);
    g_autoptr(ExecSamples) samples = exec_samples_new();
    g_autoptr(ExecKinds) kinds = exec_kinds_new(backend);
    ExecBackend *timed = exec_kinds_backend(kinds);
    float x[4] = {1, 2, 3, 4}, y[4] = {0};

    for (int i = 0; i < 3; i++) {
        g_assert_true(exec_kinds_begin(kinds, &layer, 1.0, NULL));
        timed->ops->copy(timed, sizeof x, x, y);
        timed->ops->add(timed, 4, x, y);
        if (i == 1)
            exec_kinds_set_disturbed(kinds);
    }
    g_assert_true(exec_kinds_collect(kinds, samples, NULL));
    const ExecSamplesTotal total = exec_samples_total(samples);
    g_assert_cmpint(total.n, ==, 3); /* both are of the same kind */
    g_assert_cmpint(total.n_disturbed, ==, 1);
}

/* --- what is told --- */

static void
test_who_had_the_cores_is_told(void)
{
    static const struct {
        ExecSamplesTotal timings;
        double stolen_fraction;
        const char *says; /* NULL: nothing */
    } cases[] = {
        {{100, 12},
         0.083,
         "the machine is busy, 12 of 100 timings were disturbed: the host took "
         "8.3 % of the cores"},
        {{100, 12},
         0.01,
         "the machine is busy, 12 of 100 timings were disturbed: others "
         "had the cores"},
        {{100, 12},
         NAN,
         "the machine is busy, 12 of 100 timings were disturbed: others "
         "had the cores"},
        {{100, 5}, 0.5, NULL}, /* no timing here is the worse for it */
        {{0, 0}, 0.5, NULL},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(Profile) profile = profile_load("local-cpu", NULL);
        const ExecSamplesTotal *timings = &cases[i].timings;
        g_autofree char *text =
            exec_machine_set_disturbed(profile, *timings, cases[i].stolen_fraction);

        g_assert_cmpstr(text, ==, cases[i].says);
        g_assert_cmpfloat(profile->measured_disturbed_fraction, ==,
                          timings->n == 0 ? 0.0
                                          : (double)timings->n_disturbed / (double)timings->n);
    }
}

/* --- a profile --- */

static atomic_bool is_done;

static gpointer
compete(gpointer user_data)
{
    while (!atomic_load(&is_done))
        ;
    return user_data;
}

static void
keep_note(const char *text, void *user_data)
{
    g_string_append_printf(user_data, "%s\n", text);
}

/* Layers that take longer than a turn, on one core, beside a thread that never lets go of it. */
static void
test_a_profile_beside_a_busy_thread(void)
{
    static const int64_t batch = 1, slice = 64;
    ModelArch arch = exec_measure_tiny_arch;
    g_autoptr(GString) told = g_string_new(NULL);
    g_autoptr(GError) error = NULL;
    cpu_set_t all, one;

    if (!exec_thread_clock_is_fine() || sched_getaffinity(0, sizeof all, &all) != 0) {
        g_test_skip("what a thread computes is not known here");
        return;
    }
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    g_assert_cmpint(sched_setaffinity(0, sizeof one, &one), ==, 0);
    arch.hidden = arch.ffn_hidden = arch.head_dim = 192;
    arch.max_seq_len = 64;
    atomic_store(&is_done, false);
    GThread *other = g_thread_new("busy", compete, NULL);
    g_autoptr(Profile) profile = exec_measure(&(ExecMeasureOptions){.arch = &arch,
                                                                    .device = "reference",
                                                                    .batches = &batch,
                                                                    .n_batches = 1,
                                                                    .slices = &slice,
                                                                    .n_slices = 1,
                                                                    .concurrency = 1,
                                                                    .quick = true,
                                                                    .budget_s = 1,
                                                                    .note = keep_note,
                                                                    .user_data = told},
                                              &error);
    atomic_store(&is_done, true);
    g_thread_join(other);
    g_assert_cmpint(sched_setaffinity(0, sizeof all, &all), ==, 0);
    g_assert_no_error(error);
    g_assert_cmpfloat(profile->measured_disturbed_fraction, >, 0.05);
    g_assert_nonnull(strstr(told->str, "the machine is busy, "));
    g_assert_nonnull(strstr(told->str, " timings were disturbed: "));
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/disturbed/a-share-of-the-time-is-borne",
                    test_a_share_of_the_time_is_borne);
    g_test_add_func("/executor/disturbed/a-thread-has-its-own-clock",
                    test_a_thread_has_its_own_clock);
    g_test_add_func("/executor/disturbed/disturbed-samples-are-set-aside",
                    test_disturbed_samples_are_set_aside);
    g_test_add_func("/executor/disturbed/who-waits-cannot-tell", test_who_waits_cannot_tell);
    g_test_add_func("/executor/disturbed/a-rank-sets-disturbed-timings-aside",
                    test_a_rank_sets_disturbed_timings_aside);
    g_test_add_func("/executor/disturbed/kinds-of-a-disturbed-op-are-set-aside",
                    test_kinds_of_a_disturbed_op_are_set_aside);
    g_test_add_func("/executor/disturbed/who-had-the-cores-is-told",
                    test_who_had_the_cores_is_told);
    g_test_add_func("/executor/disturbed/a-profile-beside-a-busy-thread",
                    test_a_profile_beside_a_busy_thread);
    return g_test_run();
}
