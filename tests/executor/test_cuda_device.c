/* Tests of the cuda backend on an emulated GPU: what it says about devices that cannot be used,
 * memory, shares, time, messages. */
#include "executor/device/backend.h"

#include <string.h>

#include "executor/device/clock.h"
#include "tests/executor/emulated.h"

/* --- devices --- */

static void
test_says_why_a_device_cannot_be_used(void)
{
    static const struct {
        const char *fake, *expect;
        int device, code;
    } cases[] = {
        {"driver=0", "*there is no NVIDIA driver*--device cpu", 0, EXEC_ERROR_MISSING},
        {"driver=12040", "*driver is for CUDA 12.4*needs one for CUDA 13.*", 0, EXEC_ERROR_MISSING},
        {"devices=0", "*finds no GPU*", 0, EXEC_ERROR_MISSING},
        {"devices=2", "*cuda:2: there are 2 GPUs*", 2, EXEC_ERROR_MISSING},
        {"capability=75", "*capability 7.5 is too old*", 0, EXEC_ERROR_MISSING},
        {"busy=1", "*in use by another process*", 0, EXEC_ERROR_MISSING},
        {"memory=1000000", "*no memory for 33554432 bytes of workspace of products*1000000 bytes*",
         0, EXEC_ERROR_MEMORY},
    };

    if (!emulated_gpu_or_skip())
        return;
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_setenv("FAKE_CUDA", cases[i].fake, TRUE);
        g_assert_null(exec_backend_open("cuda", cases[i].device, DTYPE_BF16, &error));
        g_assert_error(error, EXEC_ERROR, cases[i].code);
        if (!g_pattern_match_simple(cases[i].expect, error->message))
            g_error("%s: %s", cases[i].fake, error->message);
    }
    g_unsetenv("FAKE_CUDA");
}

static void
test_attention_variable(void)
{
    static const struct {
        const char *fake, *value, *expect;
        int code;
    } cases[] = {
        {"capability=90", "fast", "*expected mma or wgmma, got \"fast\"*", EXEC_ERROR_FAILED},
        {"capability=80", "wgmma", "*cuda:0 has compute capability 8.0; wgmma is of 9.0 only*",
         EXEC_ERROR_MISSING},
        {"capability=100", "wgmma", "*cuda:0 has compute capability 10.0; wgmma is of 9.0 only*",
         EXEC_ERROR_MISSING},
        {"capability=80", "mma", NULL, 0},
    };

    if (!emulated_gpu_or_skip())
        return;
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_setenv("FAKE_CUDA", cases[i].fake, TRUE);
        g_setenv("DEGAS_CUDA_ATTENTION", cases[i].value, TRUE);
        g_autoptr(ExecBackend) backend = exec_backend_open("cuda", 0, DTYPE_BF16, &error);
        if (cases[i].expect == NULL) {
            g_assert_no_error(error);
            continue;
        }
        g_assert_null(backend);
        g_assert_error(error, EXEC_ERROR, cases[i].code);
        if (!g_pattern_match_simple(cases[i].expect, error->message))
            g_error("%s", error->message);
    }
    g_unsetenv("FAKE_CUDA");
    g_unsetenv("DEGAS_CUDA_ATTENTION");
}

static void
test_memory_names_what_and_the_prediction(void)
{
    const ExecBackendOptions options = {.storage = DTYPE_FP32, .predicted_bytes = 50000000};
    g_autoptr(GError) error = NULL;

    if (!emulated_gpu_or_skip())
        return;
    g_setenv("FAKE_CUDA", "memory=90000000", TRUE);
    g_autoptr(ExecBackend) backend = exec_backend_open_with("cuda", &options, &error);
    g_assert_no_error(error);
    g_assert_null(backend->ops->alloc(backend, 80000000, "activations", &error));
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_MEMORY);
    g_assert_true(g_pattern_match_simple(
        "*80000000 bytes of activations*predicted peak of this rank is 50000000*", error->message));
    g_clear_error(&error);
    g_assert_true(backend->ops->synchronize(backend, &error)); /* the device is not broken */
    g_setenv("FAKE_CUDA", "memory=40000000", TRUE);            /* all of it is asked for at once */
    g_assert_null(exec_backend_open_with("cuda", &options, &error));
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_MEMORY);
    g_assert_true(g_pattern_match_simple("*no memory for 50000000 bytes of arena of the predicted*",
                                         error->message));
    g_unsetenv("FAKE_CUDA");
}

static void
test_keeps_a_failure_until_synchronize(void)
{
    g_autoptr(GError) error = NULL;

    if (!emulated_gpu_or_skip())
        return;
    g_autoptr(ExecBackend) backend = exec_backend_open("cuda", 0, DTYPE_FP32, &error);
    g_assert_no_error(error);
    float *x = backend->ops->alloc(backend, 64, "test", &error);
    g_setenv("FAKE_CUDA", "launch=0", TRUE);
    backend->ops->copy(backend, 32, x, x + 8);
    backend->ops->zero(backend, 64, x);
    g_assert_false(backend->ops->synchronize(backend, &error));
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_FAILED);
    g_assert_true(g_pattern_match_simple("*unspecified launch failure*", error->message));
    g_unsetenv("FAKE_CUDA");
    backend->ops->release(backend, x);
}

/* Queues work and stamps in both queues of a rank, and reads the clock. */
static void
use_events(ExecBackend *backend)
{
    int64_t times[3] = {0};
    ExecMark *mark = NULL;
    g_autoptr(GError) error = NULL;
    float *x = backend->ops->alloc(backend, 64, "test", &error);

    exec_backend_stamp(backend, &times[0]);
    backend->ops->begin_aside(backend);
    backend->ops->copy(backend, 32, x, x + 8);
    exec_backend_stamp(backend, &times[1]);
    backend->ops->end_aside(backend, &mark);
    backend->ops->join(backend, mark);
    exec_backend_stamp(backend, &times[2]);
    g_assert_true(backend->ops->await(backend, mark, &error));
    backend->ops->synchronize(backend, &error);
    g_assert_no_error(error);
    g_assert_cmpint(times[0], <=, times[1]);
    g_assert_cmpint(times[1], <=, times[2]);
    backend->ops->forget(backend, mark);
    backend->ops->release(backend, x);
}

/* 4 shares of 132 multiprocessors are 32 each; without green contexts, and where their streams take
 * no events, all, and it says so.  Where they take only events of their own, these are used. */
static void
test_ranks_share_a_device(void)
{
    static const char *const cases[][2] = {
        {"green=1", "emulated GPU*, 32 of 132 multiprocessors per rank"},
        {"green=0", "emulated GPU*all multiprocessors for every rank*no green contexts*"},
        {"foreign_events=0", "*, 32 of 132 multiprocessors per rank, events of its green context"},
        {"foreign_events=-1", "*all multiprocessors for every rank*refuses events on a stream*"},
    };

    if (!emulated_gpu_or_skip())
        return;
    for (size_t c = 0; c < G_N_ELEMENTS(cases); c++) {
        g_setenv("FAKE_CUDA", cases[c][0], TRUE);
        for (int i = 0; i < 4; i++) {
            const ExecBackendOptions options = {.storage = DTYPE_BF16, .share = i, .n_shares = 4};
            g_autoptr(GError) error = NULL;
            g_autoptr(ExecBackend) backend = exec_backend_open_with("cuda", &options, &error);
            g_assert_no_error(error);
            g_autofree char *text = exec_backend_describe(backend);
            if (!g_pattern_match_simple(cases[c][1], text))
                g_error("%s: %s", cases[c][0], text);
            use_events(backend);
        }
    }
    g_unsetenv("FAKE_CUDA");
}

/* --- graphs --- */

/* x is doubled, and, in a block that is taken and given back meanwhile, something else. */
static void
double_in_graph(ExecBackend *backend, int64_t key, float *x, bool twice)
{
    g_autoptr(GError) error = NULL;
    const float before = *x; /* the emulated device's memory is the host's */

    backend->ops->begin_graph(backend, key);
    backend->ops->add(backend, 8, x, x);
    if (twice)
        backend->ops->add(backend, 8, x, x);
    float *block = backend->ops->alloc(backend, 32, "block", &error);
    g_assert_no_error(error);
    backend->ops->zero(backend, 32, block);
    backend->ops->release(backend, block);
    g_assert_cmpfloat((double)*x, ==, (double)before); /* nothing has been done yet */
    backend->ops->end_graph(backend);
    g_assert_true(backend->ops->synchronize(backend, &error));
}

static void
test_graphs_run_at_their_end(void)
{
    g_autoptr(GError) error = NULL;
    const float ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};

    if (!emulated_gpu_or_skip())
        return;
    g_autoptr(ExecBackend) backend = exec_backend_open("cuda", 0, DTYPE_FP32, &error);
    float *x = backend->ops->alloc(backend, sizeof ones, "x", &error);
    float *y = backend->ops->alloc(backend, sizeof ones, "y", &error);
    backend->ops->upload(backend, sizeof ones, ones, x);
    backend->ops->upload(backend, sizeof ones, ones, y);
    double_in_graph(backend, 1, x, false);
    double_in_graph(backend, 1, y, false); /* the same graph with other arguments */
    double_in_graph(backend, 1, y, true);  /* another one: the key was not the whole shape */
    double_in_graph(backend, 2, x, false);
    g_assert_cmpfloat((double)x[7], ==, 2 * 2);
    g_assert_cmpfloat((double)y[7], ==, 2 * 2 * 2);
    backend->ops->release(backend, x);
    backend->ops->release(backend, y);
    g_setenv("FAKE_CUDA", "graphs=0", TRUE);
    backend->ops->begin_graph(backend, 1);
    backend->ops->end_graph(backend);
    g_assert_false(backend->ops->synchronize(backend, &error));
    g_assert_true(g_pattern_match_simple("*from cudaStreamBeginCapture*", error->message));
    g_unsetenv("FAKE_CUDA");
}

/* What comes before a cut is done before the end, and each piece has a graph of its own. */
static void
test_graphs_are_cut(void)
{
    g_autoptr(GError) error = NULL;
    const float ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};

    if (!emulated_gpu_or_skip())
        return;
    g_autoptr(ExecBackend) backend = exec_backend_open("cuda", 0, DTYPE_FP32, &error);
    float *x = backend->ops->alloc(backend, sizeof ones, "x", &error);
    backend->ops->upload(backend, sizeof ones, ones, x);
    backend->ops->cut_graph(backend); /* between none: nothing */
    for (int step = 1; step <= 2; step++) {
        const float before = *x; /* the emulated device's memory is the host's */
        backend->ops->begin_graph(backend, 1);
        backend->ops->add(backend, 8, x, x);
        g_assert_cmpfloat((double)*x, ==, (double)before);
        backend->ops->cut_graph(backend);
        g_assert_cmpfloat((double)*x, ==, 2 * (double)before);
        backend->ops->add(backend, 8, x, x);
        backend->ops->add(backend, 8, x, x);
        backend->ops->end_graph(backend);
        g_assert_true(backend->ops->synchronize(backend, &error));
        g_assert_cmpfloat((double)*x, ==, 8 * (double)before);
    }
    backend->ops->release(backend, x);
}

/* --- time and messages --- */

static void
test_stamps_lie_between_calls_and_synchronize(void)
{
    int64_t times[3] = {0};
    g_autoptr(GError) error = NULL;

    if (!emulated_gpu_or_skip())
        return;
    g_autoptr(ExecBackend) backend = exec_backend_open("cuda", 0, DTYPE_FP32, &error);
    g_assert_no_error(error);
    for (int round = 0; round < 3; round++) {
        const int64_t before = exec_now_ns();
        for (size_t i = 0; i < G_N_ELEMENTS(times); i++)
            exec_backend_stamp(backend, &times[i]);
        g_assert_true(backend->ops->synchronize(backend, &error));
        /* A float of milliseconds has 2^-24 of the distance; the origin is at most a round old. */
        g_assert_cmpint(times[0], >=, before - 1000000);
        g_assert_cmpint(times[2], <=, exec_now_ns() + 1000000);
        g_assert_cmpint(times[0], <=, times[1]);
        g_assert_cmpint(times[1], <=, times[2]);
    }
}

/* A real device's clock runs a little apart from the host's, in a long run by more than an op takes. */
static void
test_clocks_that_drift_are_corrected(void)
{
    static const char *const clocks[] = {"fast_clock=300", "fast_clock=-300"};
    g_autoptr(GError) error = NULL;

    if (!emulated_gpu_or_skip())
        return;
    for (size_t c = 0; c < G_N_ELEMENTS(clocks); c++) {
        g_setenv("FAKE_CUDA", clocks[c], TRUE);
        g_autoptr(ExecBackend) backend = exec_backend_open("cuda", 0, DTYPE_FP32, &error);
        g_assert_no_error(error);
        for (int round = 0; round < 5; round++) {
            int64_t begin, end;
            g_usleep(10000);
            const int64_t before = exec_now_ns();
            exec_backend_stamp(backend, &begin);
            exec_backend_stamp(backend, &end);
            g_assert_true(backend->ops->synchronize(backend, &error));
            g_assert_cmpint(begin, >=, before);
            g_assert_cmpint(begin, <=, end);
            g_assert_cmpint(end, <=, exec_now_ns());
        }
    }
    g_unsetenv("FAKE_CUDA");
}

/* A message is a copy: the sender may change its tensor at once. */
static void
test_parcels_are_copies(void)
{
    g_autoptr(GError) error = NULL;
    float sent[16], got[16] = {0};

    if (!emulated_gpu_or_skip())
        return;
    g_autoptr(ExecBackend) from = exec_backend_open("cuda", 0, DTYPE_FP32, &error);
    g_autoptr(ExecBackend) to = exec_backend_open("cuda", 0, DTYPE_FP32, &error);
    float *x = from->ops->alloc(from, sizeof sent, "x", &error);
    float *y = to->ops->alloc(to, sizeof got, "y", &error);
    ExecParcel parcel;
    for (int i = 0; i < 16; i++)
        sent[i] = (float)i;
    from->ops->upload(from, sizeof sent, sent, x);
    g_assert_true(from->ops->post(from, x, sizeof sent, &parcel, &error));
    from->ops->zero(from, sizeof sent, x);
    to->ops->fetch(to, &parcel, sizeof got, DTYPE_N, y);
    to->ops->download(to, sizeof got, y, got);
    g_assert_true(to->ops->synchronize(to, &error));
    g_assert_true(memcmp(got, sent, sizeof sent) == 0);
    from->ops->upload(from, sizeof sent, sent, x);
    g_assert_true(from->ops->post(from, x, sizeof sent, &parcel, &error));
    to->ops->fetch(to, &parcel, sizeof got, DTYPE_FP32, y); /* adds */
    to->ops->download(to, sizeof got, y, got);
    g_assert_true(to->ops->synchronize(to, &error));
    for (int i = 0; i < 16; i++)
        g_assert_cmpfloat((double)got[i], ==, 2.0 * i);
    from->ops->release(from, x);
    to->ops->release(to, y);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/cuda/says-why-a-device-cannot-be-used",
                    test_says_why_a_device_cannot_be_used);
    g_test_add_func("/executor/cuda/attention-variable", test_attention_variable);
    g_test_add_func("/executor/cuda/memory-names-what-and-the-prediction",
                    test_memory_names_what_and_the_prediction);
    g_test_add_func("/executor/cuda/keeps-a-failure-until-synchronize",
                    test_keeps_a_failure_until_synchronize);
    g_test_add_func("/executor/cuda/ranks-share-a-device", test_ranks_share_a_device);
    g_test_add_func("/executor/cuda/stamps-lie-between-calls-and-synchronize",
                    test_stamps_lie_between_calls_and_synchronize);
    g_test_add_func("/executor/cuda/clocks-that-drift-are-corrected",
                    test_clocks_that_drift_are_corrected);
    g_test_add_func("/executor/cuda/graphs-run-at-their-end", test_graphs_run_at_their_end);
    g_test_add_func("/executor/cuda/graphs-are-cut", test_graphs_are_cut);
    g_test_add_func("/executor/cuda/parcels-are-copies", test_parcels_are_copies);
    return g_test_run();
}
