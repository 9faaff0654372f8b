#include "cli/request/slice_costs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/order.h"
#include "base/units.h"
#include "cli/request/command.h"
#include "cli/request/output.h"
#include "profiles/import/import.h"

/* Times beyond this (about 11 days) are refused: a sum of them would not fit. */
#define MAX_S 1e6

static int64_t
ps_from_s(double seconds)
{
    return isinf(seconds) ? PLAN_SLICE_INFINITE : (int64_t)(seconds * SLICE_COSTS_PER_S + 0.5);
}

static int64_t *
new_grid(const char *path, int64_t batch, int64_t n_cells, GError **error)
{
    int64_t plane, n;
    int64_t *grid = NULL;

    if (!__builtin_mul_overflow(n_cells + 1, n_cells + 1, &plane) &&
        !__builtin_mul_overflow(plane, batch + 1, &n) && n <= PTRDIFF_MAX / 8)
        grid = g_try_malloc_n((size_t)n, sizeof *grid);
    if (grid == NULL)
        g_set_error(error, CMD_ERROR, CMD_ERROR_LIMIT,
                    "%s: a grid of " INT " x " INT " x " INT
                    " times does not fit in memory; use a larger --granularity",
                    path, batch + 1, n_cells + 1, n_cells + 1);
    return grid;
}

/* --- NumPy --- */

#define NPY_MAGIC "\x93NUMPY"
#define NPY_MAGIC_BYTES 6

/* The text after "'@key':" in the header's dictionary, without leading spaces. */
static const char *
npy_value(const char *header, const char *key)
{
    g_autofree char *quoted = g_strdup_printf("'%s':", key);
    const char *at = strstr(header, quoted);

    if (at == NULL)
        return "";
    at += strlen(quoted);
    return at + strspn(at, " ");
}

/*
 * Checks the header (numpy/lib/format.py, versions 1 to 3) and finds the data.
 * @offset  (out) of the first number.
 */
static bool
npy_header(const char *path, const char *bytes, size_t n_bytes, const int64_t shape[3],
           size_t *offset, GError **error)
{
    const uint8_t *u = (const uint8_t *)bytes;
    g_autofree char *header = NULL, *wanted = NULL;

    if (n_bytes < 12 || u[6] < 1 || u[6] > 3)
        return cmd_fail(error, CMD_ERROR_INPUT, "%s: not a .npy file of version 1 to 3", path);
    size_t start = u[6] == 1 ? 10 : 12;
    size_t length = u[8] | (size_t)u[9] << 8;
    if (u[6] > 1)
        length |= (size_t)u[10] << 16 | (size_t)u[11] << 24;
    if (length > 65536 || start + length > n_bytes)
        return cmd_fail(error, CMD_ERROR_INPUT, "%s: .npy header is truncated", path);
    header = g_strndup(bytes + start, length);
    if (!g_str_has_prefix(npy_value(header, "descr"), "'<f8'"))
        return cmd_fail(error, CMD_ERROR_INPUT, "%s: expected dtype float64, little-endian ('<f8')",
                        path);
    if (!g_str_has_prefix(npy_value(header, "fortran_order"), "False"))
        return cmd_fail(error, CMD_ERROR_INPUT, "%s: expected C order (fortran_order False)", path);
    wanted = g_strdup_printf("(" INT ", " INT ", " INT ")", shape[0], shape[1], shape[2]);
    const char *found = npy_value(header, "shape");
    if (!g_str_has_prefix(found, wanted)) {
        g_autofree char *got = g_strndup(found, strcspn(found, ")\n"));

        return cmd_fail(
            error, CMD_ERROR_INPUT,
            "%s: expected shape %s for --batch, --seq-len and --granularity, got %.60s)", path,
            wanted, got);
    }
    *offset = start + length;
    return true;
}

static int64_t *
read_npy(const char *path, const char *bytes, size_t n_bytes, int64_t batch, int64_t n_cells,
         GError **error)
{
    const int64_t shape[3] = {batch + 1, n_cells + 1, n_cells + 1};
    size_t offset = 0, n;

    if (!npy_header(path, bytes, n_bytes, shape, &offset, error))
        return NULL;
    g_autofree int64_t *grid = new_grid(path, batch, n_cells, error);
    if (grid == NULL)
        return NULL;
    n = (size_t)(shape[0] * shape[1] * shape[2]);
    if (n_bytes - offset != n * sizeof(double)) {
        cmd_fail(error, CMD_ERROR_INPUT, "%s: .npy data is shorter or longer than its shape says",
                 path);
        return NULL;
    }
    /* Row [b][s] has c = 0 .. n_cells - s; what lies beyond is not read by anyone. */
    for (int64_t b = 1; b <= batch; b++) {
        for (int64_t s = 1; s <= n_cells; s++) {
            size_t row = (size_t)((b * shape[1] + s) * shape[2]);

            for (int64_t c = 0; c <= n_cells - s; c++) {
                double t;

                memcpy(&t, bytes + offset + (row + (size_t)c) * sizeof t, sizeof t);
                if (!(t >= 0.0) || (t > MAX_S && !isinf(t))) {
                    g_set_error(error, CMD_ERROR, CMD_ERROR_INPUT,
                                "%s: [" INT "][" INT "][" INT
                                "]: expected seconds from 0 to 1e6 or infinity",
                                path, b, s, c);
                    return NULL;
                }
                grid[row + (size_t)c] = ps_from_s(t);
            }
        }
    }
    return g_steal_pointer(&grid);
}

/* --- TeraPipe's measurements --- */

typedef struct {
    int64_t batch, tokens, context;
    double seconds;
} Point;

static gint
compare_points(gconstpointer a, gconstpointer b)
{
    const Point *p = a, *q = b;

    ORDER_BY(p->batch, q->batch);
    if ((p->context > 0) != (q->context > 0))
        return p->context > 0 ? 1 : -1;
    ORDER_BY(p->tokens, q->tokens);
    return ORDER(p->context, q->context);
}

/* Returns: (owned) GArray of Point, sorted by batch, then without context first, then tokens. */
static GArray *
read_points(const char *path, const char *text, size_t n_bytes, SliceCostsPart part, GError **error)
{
    g_autoptr(JsonDoc) doc = json_doc_parse(path, text, n_bytes, error);
    g_autoptr(GArray) points = g_array_new(FALSE, FALSE, sizeof(Point));

    if (doc == NULL)
        return NULL;
    const JsonValue *root = json_doc_root(doc, NULL, 0);
    for (const JsonValue *v = json_first(root); v != NULL; v = json_next(v)) {
        int64_t shape[3];

        if (!json_is_object(v) || !profile_import_terapipe_key(json_key(v), shape)) {
            json_fail(doc, v,
                      "expected a member \"b_s_c\" (batch, tokens, context) with an object");
            break;
        }
        const double forward = json_double(doc, v, "forward_mean", 0.0, MAX_S);
        const double backward = json_double(doc, v, "backward_mean", 0.0, MAX_S);
        const double seconds = part == SLICE_COSTS_FORWARD    ? forward
                               : part == SLICE_COSTS_BACKWARD ? backward
                               : part == SLICE_COSTS_MESSAGE
                                   ? json_double_or(doc, v, "communication_mean", 0.0, MAX_S, 0.0)
                                   : forward + backward;
        const Point point = {shape[0], shape[1], shape[2], seconds};
        g_array_append_val(points, point);
    }
    if (points->len == 0 && !json_doc_failed(doc))
        json_fail(doc, root, "expected at least one measurement \"b_s_c\"");
    if (!json_doc_finish(doc, error))
        return NULL;
    g_array_sort(points, compare_points);
    return g_steal_pointer(&points);
}

/* The points of one batch size: first those without context, by tokens, then the others. */
typedef struct {
    const Point *points;
    size_t n_plain, n;
    double plane[4]; /* a0 + a1 s + a2 c + a3 s c */
} BatchPoints;

static BatchPoints
points_of_batch(const GArray *points, int64_t batch)
{
    const Point *all = (const Point *)(const void *)points->data;
    size_t first = 0;
    BatchPoints result = {0};

    while (first < points->len && all[first].batch < batch)
        first++;
    result.points = all + first;
    while (first + result.n < points->len && result.points[result.n].batch == batch) {
        result.n_plain += result.points[result.n].context == 0;
        result.n++;
    }
    return result;
}

/* Linear between measured lengths, that of the shortest below it, infinite above the longest. */
static double
plain_s(const BatchPoints *batch, int64_t tokens)
{
    const Point *p = batch->points;
    size_t i = 0;

    if (batch->n_plain == 0 || tokens > p[batch->n_plain - 1].tokens)
        return INFINITY;
    while (p[i].tokens < tokens)
        i++;
    if (i == 0 || p[i].tokens == tokens)
        return p[i].seconds;
    return p[i - 1].seconds + (p[i].seconds - p[i - 1].seconds) *
                                  (double)(tokens - p[i - 1].tokens) /
                                  (double)(p[i].tokens - p[i - 1].tokens);
}

/* Solves a symmetric positive system of 4 by elimination with pivoting; false: it is singular. */
static bool
solve_4(double m[4][5], double x[4])
{
    for (int k = 0; k < 4; k++) {
        int pivot = k;

        for (int i = k + 1; i < 4; i++)
            pivot = fabs(m[i][k]) > fabs(m[pivot][k]) ? i : pivot;
        if (fabs(m[pivot][k]) < 1e-12)
            return false;
        for (int j = 0; j < 5; j++) {
            double t = m[k][j];

            m[k][j] = m[pivot][j];
            m[pivot][j] = t;
        }
        for (int i = 0; i < 4; i++) {
            double factor = i == k ? 0.0 : m[i][k] / m[k][k];

            for (int j = k; j < 5; j++)
                m[i][j] -= factor * m[k][j];
        }
    }
    for (int k = 0; k < 4; k++)
        x[k] = m[k][4] / m[k][k];
    return true;
}

/* Fits the plane to what context adds; fewer than 4 points, or points on a line, leave it zero. */
static void
fit_plane(BatchPoints *batch, double scale)
{
    double m[4][5] = {{0}};
    double x[4];

    for (size_t i = batch->n_plain; i < batch->n; i++) {
        const Point *p = &batch->points[i];
        double s = (double)p->tokens / scale, c = (double)p->context / scale;
        const double row[4] = {1.0, s, c, s * c};
        double extra = p->seconds - plain_s(batch, p->tokens);

        if (isinf(extra))
            continue;
        for (int j = 0; j < 4; j++) {
            for (int k = 0; k < 4; k++)
                m[j][k] += row[j] * row[k];
            m[j][4] += row[j] * extra;
        }
    }
    if (!solve_4(m, x))
        return;
    batch->plane[0] = x[0];
    batch->plane[1] = x[1] / scale;
    batch->plane[2] = x[2] / scale;
    batch->plane[3] = x[3] / scale / scale;
}

static int64_t *
grid_from_points(const char *path, const GArray *points, int64_t batch, int64_t n_cells,
                 int64_t granularity, int64_t *n_approximated, GError **error)
{
    g_autofree int64_t *grid = new_grid(path, batch, n_cells, error);

    if (grid == NULL)
        return NULL;
    *n_approximated = 0;
    for (int64_t b = 1; b <= batch; b++) {
        BatchPoints of_batch = points_of_batch(points, b);

        fit_plane(&of_batch, (double)(n_cells * granularity));
        for (int64_t s = 1; s <= n_cells; s++) {
            double plain = plain_s(&of_batch, s * granularity);
            int64_t *row = grid + (b * (n_cells + 1) + s) * (n_cells + 1);

            for (int64_t c = 0; c <= n_cells - s; c++) {
                double tokens = (double)(s * granularity), context = (double)(c * granularity);
                const double *a = of_batch.plane;
                const Point key = {b, s * granularity, c * granularity, 0};
                const Point *point = of_batch.n == 0 ? NULL
                                                     : bsearch(&key, of_batch.points, of_batch.n,
                                                               sizeof key, compare_points);
                double extra = a[0] + a[1] * tokens + a[2] * context + a[3] * tokens * context;

                row[c] = ps_from_s(point != NULL ? point->seconds
                                                 : plain + (c > 0 ? MAX(extra, 0.0) : 0.0));
                *n_approximated += point == NULL && !isinf(plain);
            }
        }
    }
    return g_steal_pointer(&grid);
}

int64_t *
slice_costs_load(const char *path, SliceCostsPart part, const PlanSliceCosts *shape,
                 int64_t *n_approximated, GError **error)
{
    g_autofree char *contents = NULL;
    g_autoptr(GMappedFile) mapped = NULL;
    const char *bytes;
    size_t n_bytes;

    g_return_val_if_fail(path != NULL && shape->batch >= 1 && shape->n_cells >= 1, NULL);

    *n_approximated = 0;
    /* A grid can be larger than what is read at once; a mapping costs no copy. */
    if (strcmp(path, "-") != 0 && g_file_test(path, G_FILE_TEST_IS_REGULAR))
        mapped = g_mapped_file_new(path, FALSE, NULL);
    if (mapped != NULL && g_mapped_file_get_length(mapped) > 0) {
        bytes = g_mapped_file_get_contents(mapped);
        n_bytes = g_mapped_file_get_length(mapped);
    } else {
        if (!file_read(path, &contents, &n_bytes, error))
            return NULL;
        bytes = contents;
    }
    if (n_bytes >= NPY_MAGIC_BYTES && memcmp(bytes, NPY_MAGIC, NPY_MAGIC_BYTES) == 0) {
        /* It holds one time of each slice: @part must be that. */
        if (part == SLICE_COSTS_BOTH)
            return read_npy(path, bytes, n_bytes, shape->batch, shape->n_cells, error);
        if (part != SLICE_COSTS_MESSAGE)
            cmd_fail(error, CMD_ERROR_INPUT,
                     "%s: a .npy holds one direction: the other is needed as --backward-costs",
                     path);
        return NULL;
    }
    g_autoptr(GArray) points = read_points(path, bytes, n_bytes, part, error);
    if (points == NULL)
        return NULL;
    return grid_from_points(path, points, shape->batch, shape->n_cells, shape->granularity,
                            n_approximated, error);
}
