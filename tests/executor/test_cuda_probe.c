/* Tests of what attention by wgmma assumes of a device (docs/gpu.md): one kernel for each
 * assumption, on the emulated GPU or, with DEGAS_TEST_GPU, on a real one.  Where one does not hold,
 * the test says what it saw, so that it can be mended without the device. */
#include "executor/cuda/probe.h"

#include <math.h>
#include <string.h>

#include "executor/device/plugin.h"
#include "tests/executor/emulated.h"

#define ROWS EXEC_PROBE_ROWS
#define BOX_COLS EXEC_PROBE_BOX_COLS

typedef struct {
    ExecBackend *backend; /* (owned) */
    const ExecCudaProbes *probes;
} Device;

static bool
open_or_skip(Device *device)
{
    ExecDeviceInfo info;
    g_autoptr(GError) error = NULL;

    if (!emulated_gpu_or_skip())
        return false;
    exec_device_info("cuda", 0, &info, &error);
    g_assert_no_error(error);
    if (info.capability != 90) {
        g_autofree char *why = g_strdup_printf("capability %d.%d; wgmma is of 9.0 only",
                                               info.capability / 10, info.capability % 10);
        g_test_skip(why);
        return false;
    }
    device->probes = exec_plugin_symbol("cuda", EXEC_CUDA_PROBES, "the test", &error);
    g_assert_no_error(error);
    device->backend = exec_backend_open("cuda", 0, DTYPE_BF16, &error);
    g_assert_no_error(error);
    return true;
}

static void *
to_device(const Device *device, const void *data, size_t n_bytes)
{
    ExecBackend *backend = device->backend;
    g_autoptr(GError) error = NULL;
    void *memory = backend->ops->alloc(backend, n_bytes, "test", &error);

    g_assert_no_error(error);
    backend->ops->upload(backend, n_bytes, data, memory);
    return memory;
}

/* Waits for the probe, and takes its result and its memory back. */
static void
from_device(const Device *device, void *memory, size_t n_bytes, void *data)
{
    ExecBackend *backend = device->backend;
    g_autoptr(GError) error = NULL;

    backend->ops->download(backend, n_bytes, memory, data);
    backend->ops->synchronize(backend, &error);
    if (error != NULL)
        g_error("%s", error->message);
    backend->ops->release(backend, memory);
}

/* 16-byte chunk c of row r lies at place c ^ r % 8 of its row of 128 bytes: where column @col is,
 * in elements. */
static size_t
swizzled(int row, int col)
{
    return (size_t)(row * BOX_COLS + (col / 8 ^ row % 8) * 8 + col % 8);
}

/* --- a box --- */

#define TENSOR_ROWS 104
#define NOTHING 0xeeee

/* What the tensor's element (row, column) of sequence 1 is. */
static uint16_t
element(int row, int col)
{
    const int at = (row * EXEC_PROBE_TENSOR_SEQUENCES + 1) * EXEC_PROBE_TENSOR_COLS + col;

    return row < TENSOR_ROWS ? (uint16_t)(at + 1) : 0;
}

/* Which 16 bytes of the box's they are: "ROW:CHUNK". */
static void
append_chunk(GString *text, const uint16_t *seen, int row, int col)
{
    bool together = true;

    for (int i = 1; i < 8; i++)
        together = together && seen[i] == seen[0] + (seen[0] == 0 || seen[0] == NOTHING ? 0 : i);
    const int at = seen[0] - 1, found_col = at % EXEC_PROBE_TENSOR_COLS - col;
    const int found_row = at / EXEC_PROBE_TENSOR_COLS / EXEC_PROBE_TENSOR_SEQUENCES - row;
    if (!together)
        g_string_append_printf(text, " mixed(%04x..%04x)", seen[0], seen[7]);
    else if (seen[0] == 0 || seen[0] == NOTHING)
        g_string_append(text, seen[0] == 0 ? " zeros" : " unwritten");
    else
        g_string_append_printf(text, " %d:%d%s", found_row, found_col / 8,
                               found_col % 8 == 0 ? "" : "+");
}

/* Tells every row of the box that is not as expected. */
static int
compare_box(const uint16_t *expected, const uint16_t *seen, int row, int col)
{
    int n_bad = 0;

    for (int r = 0; r < EXEC_PROBE_BOX_ROWS; r++) {
        const uint16_t *expected_row = expected + r * BOX_COLS, *seen_row = seen + r * BOX_COLS;
        g_autoptr(GString) text = g_string_new(NULL);

        if (memcmp(expected_row, seen_row, BOX_COLS * sizeof *seen) == 0)
            continue;
        n_bad++;
        g_string_append_printf(text, "at %5d, expected", r * BOX_COLS * 2);
        for (int chunk = 0; chunk < 8; chunk++)
            append_chunk(text, expected_row + chunk * 8, row, col);
        g_string_append(text, "; seen");
        for (int chunk = 0; chunk < 8; chunk++)
            append_chunk(text, seen_row + chunk * 8, row, col);
        g_test_message("%s", text->str);
    }
    return n_bad;
}

static void
check_box(const Device *device, int row, int col)
{
    static uint16_t tensor[TENSOR_ROWS][EXEC_PROBE_TENSOR_SEQUENCES][EXEC_PROBE_TENSOR_COLS];
    uint16_t expected[EXEC_PROBE_BOX_ROWS * BOX_COLS], seen[G_N_ELEMENTS(expected)];
    int32_t ended = -1;

    for (int r = 0; r < TENSOR_ROWS; r++)
        for (int c = 0; c < EXEC_PROBE_TENSOR_COLS; c++) {
            tensor[r][0][c] = 0x7fc0; /* of a sequence that is not asked for */
            tensor[r][1][c] = element(r, c);
        }
    for (int r = 0; r < EXEC_PROBE_BOX_ROWS; r++)
        for (int c = 0; c < BOX_COLS; c++)
            expected[swizzled(r, c)] = element(row + r, col + c);
    uint16_t *from = to_device(device, tensor, sizeof tensor);
    uint16_t *dump = to_device(device, seen, sizeof seen);
    int32_t *end = to_device(device, &ended, sizeof ended);
    device->probes->box(device->backend, from, TENSOR_ROWS, row, col, dump, end);
    from_device(device, dump, sizeof seen, seen);
    from_device(device, end, sizeof ended, &ended);
    device->backend->ops->release(device->backend, from);
    const int n_bad = compare_box(expected, seen, row, col);
    if (ended == 1 && n_bad == 0)
        return;
    g_test_message("box from row %d of %d and column %d on: its barrier %s, %d of %d rows of 128 "
                   "bytes differ (ROW:CHUNK of the box, in the order of addresses)",
                   row, TENSOR_ROWS, col, ended == 1 ? "ended" : "never ended", n_bad,
                   EXEC_PROBE_BOX_ROWS);
    g_test_fail();
}

/* Assumptions 3 and 4: the pattern of the swizzle, and the bytes of rows that do not exist. */
static void
test_tma_box(void)
{
    Device device;

    if (!open_or_skip(&device))
        return;
    check_box(&device, 0, 0);
    check_box(&device, 8, 64);
    check_box(&device, 80, 64); /* the last 40 rows are outside */
    exec_backend_close(device.backend);
}

/* --- products --- */

typedef struct {
    const Device *device;
    bool along_n; /* how B lies; else along k */
    int n, depth; /* columns of C; of A */
} Product;

static uint16_t
bf16(int number)
{
    const float x = (float)number;
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* Runs the product of A [64, depth] and B [depth, n], which hold small whole numbers. */
static void
multiply(const Product *p, const uint8_t *a, const uint8_t *b, float *c)
{
    const ExecCudaProbes *probes = p->device->probes;
    const size_t n_a = (size_t)(ROWS * p->depth), n_b = (size_t)(p->depth * p->n);
    const size_t n_c_bytes = (size_t)(ROWS * p->n) * sizeof *c;
    g_autofree uint16_t *a_image = g_new(uint16_t, n_a), *b_image = g_new(uint16_t, n_b);

    for (int m = 0; m < ROWS; m++)
        for (int k = 0; k < p->depth; k++)
            a_image[p->along_n ? (size_t)(m * p->depth + k)
                               : (size_t)(k / BOX_COLS * ROWS * BOX_COLS) +
                                     swizzled(m, k % BOX_COLS)] = bf16(a[m * p->depth + k]);
    for (int k = 0; k < p->depth; k++)
        for (int n = 0; n < p->n; n++)
            b_image[p->along_n
                        ? (size_t)(n / BOX_COLS * p->depth * BOX_COLS) + swizzled(k, n % BOX_COLS)
                        : (size_t)(k / BOX_COLS * p->n * BOX_COLS) + swizzled(n, k % BOX_COLS)] =
                bf16(b[k * p->n + n]);
    void *a_device = to_device(p->device, a_image, n_a * sizeof *a_image);
    void *b_device = to_device(p->device, b_image, n_b * sizeof *b_image);
    float *c_device = to_device(p->device, c, n_c_bytes);
    (p->along_n ? probes->product_along_n : probes->product_along_k)(p->device->backend, p->n,
                                                                     a_device, b_device, c_device);
    from_device(p->device, c_device, n_c_bytes, c);
    p->device->backend->ops->release(p->device->backend, a_device);
    p->device->backend->ops->release(p->device->backend, b_device);
}

/* A number of the row or column, from 1 on, that a product has found: "-": nothing. */
static void
append_found(GString *text, float found)
{
    if (found >= 1 && found <= 128 && found == floorf(found))
        g_string_append_printf(text, "%d", (int)found - 1);
    else if (found == 0)
        g_string_append(text, "-");
    else
        g_string_append_printf(text, "(%g)", (double)found);
}

/* Tells which elements were read in place of those expected, of every @step-th row and column. */
static void
tell_read(const float *rows, const float *cols, int n_rows, int n_cols, int n, int first_row,
          int step)
{
    for (int r = 0; r < n_rows && r < 16 * step; r += step) {
        g_autoptr(GString) text = g_string_new(NULL);

        g_string_append_printf(text, "row %3d, columns 0, %d, ...:", first_row + r, step);
        for (int c = 0; c < n_cols && c < 16 * step; c += step) {
            const float row = rows[r * n + c], col = cols[r * n + c];
            g_string_append_c(text, ' ');
            if (row == (float)(first_row + r + 1) && col == (float)(c + 1)) {
                g_string_append(text, "ok");
                continue;
            }
            append_found(text, row);
            g_string_append_c(text, ':');
            append_found(text, col);
        }
        g_test_message("%s", text->str);
    }
}

/*
 * The other operand is a unit matrix, so that every element of C is one element of this operand, or
 * what the device has read in its place.  Its numbers are those of rows the first time, and of
 * columns the second.  @shift: of the unit's diagonal, where this operand is B with more rows than
 * C.
 */
static void
check_operand(const Product *p, bool is_b, int shift)
{
    const int n_cols = is_b ? p->n : p->depth, n_seen = MIN(n_cols, p->n);
    g_autofree uint8_t *a = g_new0(uint8_t, ROWS * p->depth), *b = g_new0(uint8_t, p->depth * p->n);
    g_autofree float *found[2] = {g_new0(float, ROWS * p->n), g_new0(float, ROWS * p->n)};
    uint8_t *operand = is_b ? b : a;
    int n_bad = 0;

    for (int i = 0; is_b && i < ROWS; i++)
        a[i * p->depth + i + shift] = 1;
    for (int i = 0; !is_b && i < MIN(p->depth, p->n); i++)
        b[i * p->n + i] = 1;
    for (int what = 0; what < 2; what++) {
        for (int row = 0; row < (is_b ? p->depth : ROWS); row++)
            for (int col = 0; col < n_cols; col++)
                operand[row * n_cols + col] = (uint8_t)((what == 0 ? row : col) + 1);
        multiply(p, a, b, found[what]);
    }
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < n_seen; c++)
            n_bad += found[0][r * p->n + c] != (float)(shift + r + 1) ||
                     found[1][r * p->n + c] != (float)(c + 1);
    if (n_bad == 0)
        return;
    g_test_message(
        "C [64, %d], B's numbers side by side along %c: of %c %d of %d elements are others "
        "(ROW:COLUMN that was read)",
        p->n, p->along_n ? 'n' : 'k', is_b ? 'B' : 'A', n_bad, ROWS * n_seen);
    tell_read(found[0], found[1], ROWS, n_seen, p->n, shift, 1);
    tell_read(found[0], found[1], ROWS, n_seen, p->n, shift, 8);
    g_test_fail();
}

static void
check_products(bool along_n)
{
    Device device;

    if (!open_or_skip(&device))
        return;
    for (int n = 64; n <= 128; n *= 2) {
        const Product p = {&device, along_n, n, along_n ? 64 : 128};
        check_operand(&p, false, 0);
        for (int shift = 0; shift < p.depth; shift += ROWS)
            check_operand(&p, true, shift);
    }
    exec_backend_close(device.backend);
}

/* Assumption 2: scores, and gradients of probabilities. */
static void
test_wgmma_k(void)
{
    check_products(false);
}

/* Assumption 1: of V, and of all gradients. */
static void
test_wgmma_n(void)
{
    check_products(true);
}

/* --- registers --- */

/* Assumption 5. */
static void
test_setmaxnreg(void)
{
    enum {
        N_ROUNDS = 5
    };
    Device device;
    uint32_t seen[EXEC_PROBE_THREADS] = {0};
    int n_bad[3] = {0};

    if (!open_or_skip(&device))
        return;
    uint32_t *sums = to_device(&device, seen, sizeof seen);
    device.probes->registers(device.backend, N_ROUNDS, sums);
    from_device(&device, sums, sizeof seen, seen);
    for (uint32_t thread = 0; thread < EXEC_PROBE_THREADS; thread++) {
        uint32_t expected = thread < 128 ? thread : 0;
        for (uint32_t i = 0; thread >= 128 && i < EXEC_PROBE_REGISTERS; i++) {
            uint32_t x = thread + i;
            for (uint32_t round = 0; round < N_ROUNDS; round++)
                x = 1664525u * x + i + round;
            expected += x * (i + 1);
        }
        n_bad[thread / 128] += seen[thread] != expected;
    }
    for (int group = 0; group < 3; group++)
        if (n_bad[group] > 0) {
            g_test_message("warpgroup %d, which %s registers: %d of 128 threads have wrong sums",
                           group, group == 0 ? "gave away" : "took", n_bad[group]);
            g_test_fail();
        }
    exec_backend_close(device.backend);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/probe/tma-box", test_tma_box);
    g_test_add_func("/probe/wgmma-k", test_wgmma_k);
    g_test_add_func("/probe/wgmma-n", test_wgmma_n);
    g_test_add_func("/probe/setmaxnreg", test_setmaxnreg);
    return g_test_run();
}
