#include "profiles/cost/measured.h"

#include <math.h>
#include <stdlib.h>

#include "base/order.h"
/* --- the law, fitted to rows --- */

#define N_FEATURES 3

typedef struct {
    int64_t batch, tokens, context;
} Shape;

typedef struct {
    double x[N_FEATURES]; /* 1, batch * tokens, batch * tokens * (2 context + tokens) */
    Shape shape;
    double time_s;
} Row;

static Row
row_of(Shape shape, double time_s)
{
    double n = (double)shape.batch * (double)shape.tokens;

    return (Row){{1.0, n, n * (2.0 * (double)shape.context + (double)shape.tokens)}, shape, time_s};
}

static double
evaluate(const double x[N_FEATURES], const double coefficients[N_FEATURES])
{
    double sum = 0.0;

    for (int i = 0; i < N_FEATURES; i++)
        sum += coefficients[i] * x[i];
    return sum;
}

/* Solves the normal equations of the chosen features by elimination with pivoting; false if they
 * are not independent. */
static bool
solve(double matrix[N_FEATURES][N_FEATURES + 1], int n, double solution[N_FEATURES])
{
    for (int i = 0; i < n; i++) {
        int pivot = i;

        for (int row = i + 1; row < n; row++) {
            if (fabs(matrix[row][i]) > fabs(matrix[pivot][i]))
                pivot = row;
        }
        if (fabs(matrix[pivot][i]) < 1e-9)
            return false;
        for (int column = 0; column <= n; column++) {
            double swap = matrix[i][column];

            matrix[i][column] = matrix[pivot][column];
            matrix[pivot][column] = swap;
        }
        for (int row = i + 1; row < n; row++) {
            double factor = matrix[row][i] / matrix[i][i];

            for (int column = i; column <= n; column++)
                matrix[row][column] -= factor * matrix[i][column];
        }
    }
    for (int i = n - 1; i >= 0; i--) {
        double sum = matrix[i][n];

        for (int column = i + 1; column < n; column++)
            sum -= matrix[i][column] * solution[column];
        solution[i] = sum / matrix[i][i];
    }
    return true;
}

/* Least squares of relative errors over the features in @mask, each scaled to at most 1 so that
 * "independent" has a meaning.  Returns the squared error, or infinity if a coefficient would be
 * negative or the rows do not determine them. */
static double
fit_subset(const Row *rows, size_t n_rows, unsigned mask, double coefficients[N_FEATURES])
{
    double matrix[N_FEATURES][N_FEATURES + 1] = {0}, solution[N_FEATURES] = {0};
    double scale[N_FEATURES] = {0}, error = 0.0;
    int chosen[N_FEATURES], n = 0;

    for (int i = 0; i < N_FEATURES; i++) {
        if ((mask >> i & 1u) == 0)
            continue;
        chosen[n++] = i;
        for (size_t row = 0; row < n_rows; row++)
            scale[i] = fmax(scale[i], rows[row].x[i] / rows[row].time_s);
    }
    for (size_t row = 0; row < n_rows; row++) {
        const double *x = rows[row].x, time_s = rows[row].time_s;

        for (int i = 0; i < n; i++) {
            double xi = x[chosen[i]] / time_s / scale[chosen[i]];

            for (int j = 0; j < n; j++)
                matrix[i][j] += xi * (x[chosen[j]] / time_s / scale[chosen[j]]);
            matrix[i][n] += xi;
        }
    }
    if (!solve(matrix, n, solution))
        return INFINITY;
    for (int i = 0; i < N_FEATURES; i++)
        coefficients[i] = 0.0;
    for (int i = 0; i < n; i++) {
        if (solution[i] < 0.0)
            return INFINITY;
        coefficients[chosen[i]] = solution[i] / scale[chosen[i]];
    }
    for (size_t row = 0; row < n_rows; row++) {
        double relative = evaluate(rows[row].x, coefficients) / rows[row].time_s - 1.0;

        error += relative * relative;
    }
    return error;
}

/* The best subset of features with no negative coefficient.  Fewer rows than features leave only
 * small subsets determined; work per token comes first. */
static void
fit(const Row *rows, size_t n_rows, double coefficients[N_FEATURES])
{
    static const unsigned subsets[] = {2u, 3u, 6u, 7u, 4u, 5u, 1u};
    double best = INFINITY;

    for (size_t i = 0; i < G_N_ELEMENTS(subsets); i++) {
        double candidate[N_FEATURES] = {0};
        double error = fit_subset(rows, n_rows, subsets[i], candidate);

        /* A larger subset must be better by more than rounding. */
        if (error < best * (1.0 - 1e-9)) {
            best = error;
            for (int j = 0; j < N_FEATURES; j++)
                coefficients[j] = candidate[j];
        }
    }
}

/* --- rows of one kind --- */

/* Rows that take part in one fit. */
#define MAX_FIT_ROWS 4096

static bool
row_fits(const ProfileMeasurement *row, const ProfileRows *rows)
{
    return row->op == rows->op && row->pass == rows->pass && row->tp == rows->tp &&
           g_strcmp0(row->kind, rows->kind) == 0 && row->median_s > 0.0;
}

static const ProfileMeasurement *
measurement(const Profile *profile, guint i)
{
    return &g_array_index(profile->measurements, ProfileMeasurement, i);
}

/* Returns: (owned) the rows, *n of them. */
static Row *
collect(const Profile *profile, const ProfileRows *which, size_t *n)
{
    GArray *rows = g_array_new(FALSE, FALSE, sizeof(Row));

    for (guint i = 0; i < profile->measurements->len && rows->len < MAX_FIT_ROWS; i++) {
        const ProfileMeasurement *m = measurement(profile, i);

        if (row_fits(m, which)) {
            const Row row =
                row_of((Shape){m->batch, m->tokens, m->context}, profile_measurement_mean_s(m));
            g_array_append_val(rows, row);
        }
    }
    *n = rows->len;
    return (Row *)(void *)g_array_free(rows, FALSE);
}

/* Squared distance of two shapes: logarithms of batch and tokens, context against the length. */
static double
distance2(const Shape *a, const Shape *b)
{
    double batch = log2((double)a->batch / (double)b->batch);
    double tokens = log2((double)a->tokens / (double)b->tokens);
    double context = log2((double)(a->context + a->tokens) / (double)(b->context + b->tokens));

    return batch * batch + tokens * tokens + context * context;
}

/* The fit times the deviation of the rows around @shape, weighted by inverse fourth powers of the
 * distance: rows next to it decide. */
static double
between_rows(const Row *rows, size_t n, const Shape *shape)
{
    double coefficients[N_FEATURES] = {0};
    double weights = 0.0, deviations = 0.0;
    const Row there = row_of(*shape, 0.0);

    fit(rows, n, coefficients);
    for (size_t i = 0; i < n; i++) {
        double distance = distance2(&rows[i].shape, shape) + 1e-12;
        double weight = 1.0 / (distance * distance);

        weights += weight;
        deviations += weight * (rows[i].time_s / evaluate(rows[i].x, coefficients));
    }
    return evaluate(there.x, coefficients) * (deviations / weights);
}

static bool
is_at(const Shape *shape, int64_t batch, int64_t tokens)
{
    return shape->batch == batch && shape->tokens == tokens;
}

/* False without rows; @source says whether the very shape was measured. */
static bool
measured_time(const Profile *profile, const ProfileRows *which, const Shape *shape, double *seconds,
              ProfileSource *source)
{
    size_t n;
    g_autofree Row *rows = collect(profile, which, &n);

    if (n == 0)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (is_at(&rows[i].shape, shape->batch, shape->tokens) &&
            rows[i].shape.context == shape->context) {
            *seconds = rows[i].time_s;
            *source = PROFILE_SOURCE_MEASURED;
            return true;
        }
    }
    *seconds = between_rows(rows, n, shape);
    *source = PROFILE_SOURCE_INTERPOLATED;
    return true;
}

/* --- parts --- */

/* What the host takes to queue such an op, of any shape: its kernels are the same ones.  0 where
 * the rows include it, or where there is no host beside the device. */
static double
queue_s(const Profile *profile, const ProfileRows *which)
{
    double least = 0.0;

    for (guint i = 0; i < profile->measurements->len; i++) {
        const ProfileMeasurement *m = measurement(profile, i);

        if (row_fits(m, which) && m->queue_s > 0.0)
            least = least == 0.0 ? m->queue_s : fmin(least, m->queue_s);
    }
    return least;
}

/* What was measured is all that the op does but the exchange of context-parallel ranks, which are
 * not measured together: it comes on top, as modelled. */
static void
scale_to(ProfileCost *cost, double seconds, double queue_s, ProfileSource source)
{
    const double exchange_s = cost->part_s[PROFILE_PART_CP];
    double device_s = -exchange_s;

    cost->host_s = queue_s;
    cost->source = source;
    for (int i = 0; i < PROFILE_PART_N; i++)
        device_s += cost->part_s[i];
    for (int i = 0; i < PROFILE_PART_N; i++)
        cost->part_s[i] = device_s > 0.0 ? cost->part_s[i] * (seconds / device_s) : 0.0;
    if (device_s <= 0.0)
        cost->part_s[PROFILE_PART_COMPUTE] = seconds;
    cost->part_s[PROFILE_PART_CP] = exchange_s;
}

/* Products' FLOPs of the weight gradient over those of the whole backward: half of the products',
 * none of attention's. */
static double
weight_share(const ProfileQuery *query)
{
    ModelOp ops[MODEL_MAX_OPS];
    size_t n_ops = model_ops(query->arch, query->part, query->layer, &query->shape, ops);
    double weight = 0.0, all = 0.0;

    for (size_t i = 0; i < n_ops; i++) {
        all += ops[i].backward_flops;
        if (ops[i].kind == MODEL_OP_GEMM)
            weight += ops[i].backward_flops / 2.0;
    }
    return all > 0.0 ? weight / all : 0.0;
}

static const ProfileOp op_of_part[] = {
    [MODEL_PART_EMBEDDING] = PROFILE_OP_EMBEDDING,
    [MODEL_PART_LAYER] = PROFILE_OP_LAYER,
    [MODEL_PART_HEAD] = PROFILE_OP_HEAD,
};

/* Whether rows of this profile are of the query's kind: @which of them are of @pass. */
static bool
is_measured(const Profile *profile, const ProfileQuery *query, ProfilePass pass, ProfileRows *which)
{
    const ModelShape *s = &query->shape;

    *which = (ProfileRows){.op = op_of_part[query->part], .pass = pass, .tp = s->tp};
    return profile->measurements->len > 0 && profile->measured_dtype == s->dtype && s->ep == 1 &&
           profile_has_part(profile, query->arch, query->part, query->layer, &which->kind);
}

/* The slice of one device with the work of a context-parallel rank: its share of the tokens and of
 * the pairs of query and key, which the zigzag divides evenly, so
 * own (2 context' + own) = tokens (2 context + tokens) / cp. */
static Shape
own_shape(const ModelShape *s)
{
    const int64_t own = (s->tokens + s->cp - 1) / s->cp;

    return (Shape){s->batch, own, (2 * s->context + s->tokens - own + 1) / 2};
}

bool
profile_measured_sliced_floor(const Profile *profile, const ProfileQuery *query, ProfilePass pass,
                              double *seconds)
{
    const ModelShape *s = &query->shape;
    const double tokens = (double)s->batch * (double)s->tokens / (double)s->cp;
    const double whole[N_FEATURES] = {1.0, tokens, tokens * (double)s->tokens};
    double coefficients[N_FEATURES] = {0}, least = INFINITY;
    ProfileRows which;
    size_t n;

    if (!is_measured(profile, query, pass, &which))
        return false;
    g_autofree Row *rows = collect(profile, &which, &n);
    if (n == 0)
        return false;
    fit(rows, n, coefficients);
    /* Between rows the deviation is a mean of theirs. */
    for (size_t i = 0; i < n; i++)
        least = fmin(least, rows[i].time_s / evaluate(rows[i].x, coefficients));
    *seconds = least * evaluate(whole, coefficients);
    return true;
}

/* How much longer ops of so many tokens take on a device that works without a break: between two micro-batches
 * that were timed so, by the logarithm of the tokens. */
static double
sustained_factor(const Profile *profile, const Shape *shape)
{
    const GArray *rows = profile->sustained;
    const double tokens = (double)shape->batch * (double)shape->tokens;
    double factor = 1.0, below = 0.0;

    for (guint i = 0; i < rows->len; i++) {
        const ProfileSustained *row = &g_array_index(rows, ProfileSustained, i);
        const double at = (double)row->batch * (double)row->tokens;
        if (tokens <= at && i > 0)
            return factor + (row->factor - factor) * log(tokens / below) / log(at / below);
        factor = row->factor;
        below = at;
        if (tokens <= at)
            break;
    }
    return factor;
}

void
profile_measured_part(const Profile *profile, const ProfileQuery *query, ProfilePass pass,
                      ProfileCost *cost)
{
    const ModelShape *s = &query->shape;
    const Shape shape = own_shape(s);
    ProfileRows which;
    ProfileSource source;
    double seconds;

    if (!is_measured(profile, query, pass, &which))
        return;
    const double sustained = sustained_factor(profile, &shape);
    if (measured_time(profile, &which, &shape, &seconds, &source)) {
        scale_to(cost, sustained * seconds, queue_s(profile, &which), source);
        return;
    }
    which.pass = PROFILE_PASS_BACKWARD;
    if ((pass != PROFILE_PASS_BACKWARD_INPUT && pass != PROFILE_PASS_BACKWARD_WEIGHT) ||
        !measured_time(profile, &which, &shape, &seconds, &source))
        return;
    double share = weight_share(query);
    if (pass == PROFILE_PASS_BACKWARD_INPUT)
        share = 1.0 - share;
    scale_to(cost, share * sustained * seconds, share * queue_s(profile, &which),
             PROFILE_SOURCE_INTERPOLATED);
}

/* --- how good the fit is --- */

/* Whether (@batch, @tokens) has rows on both sides that are not its own. */
static bool
is_inside(const Row *rows, size_t n, int64_t batch, int64_t tokens)
{
    bool below[2] = {false, false}, above[2] = {false, false};

    for (size_t i = 0; i < n; i++) {
        const Shape *s = &rows[i].shape;

        if (is_at(s, batch, tokens))
            continue;
        below[0] |= s->batch <= batch;
        above[0] |= s->batch >= batch;
        below[1] |= s->tokens <= tokens;
        above[1] |= s->tokens >= tokens;
    }
    return below[0] && above[0] && below[1] && above[1];
}

/* Moves the rows of (@batch, @tokens) behind the others; returns how many others there are. */
static size_t
set_aside(Row *rows, size_t n_all, int64_t batch, int64_t tokens)
{
    size_t n = 0;

    for (size_t i = 0; i < n_all; i++) {
        if (is_at(&rows[i].shape, batch, tokens))
            continue;
        const Row other = rows[n];
        rows[n++] = rows[i];
        rows[i] = other;
    }
    return n;
}

void
profile_measured_left_out(const Profile *profile, const ProfileRows *which, int64_t batch,
                          int64_t tokens, GArray *errors)
{
    size_t n_all;
    g_autofree Row *rows = collect(profile, which, &n_all);

    if (!is_inside(rows, n_all, batch, tokens))
        return;
    const size_t n = set_aside(rows, n_all, batch, tokens);
    for (size_t i = n; i < n_all; i++) {
        const double error = fabs(between_rows(rows, n, &rows[i].shape) / rows[i].time_s - 1.0);

        g_array_append_val(errors, error);
    }
}

/* Every (batch, tokens) of these rows is left out once. */
static void
add_fit_error(Profile *profile, const ProfileRows *rows)
{
    g_autoptr(GArray) errors = g_array_new(FALSE, FALSE, sizeof(double));
    const ProfileMeasurement *before = NULL;

    /* Sorted by batch, then tokens, then context. */
    for (guint i = 0; i < profile->measurements->len; i++) {
        const ProfileMeasurement *row = measurement(profile, i);

        if (!row_fits(row, rows))
            continue;
        if (before == NULL || before->batch != row->batch || before->tokens != row->tokens)
            profile_measured_left_out(profile, rows, row->batch, row->tokens, errors);
        before = row;
    }
    if (errors->len == 0)
        return;
    qsort(errors->data, errors->len, sizeof(double), order_doubles);
    const ProfileFitError error = {
        .op = rows->op,
        .pass = rows->pass,
        .tp = rows->tp,
        .kind = rows->kind,
        .n_left_out = errors->len,
        .median_fraction = g_array_index(errors, double, (errors->len - 1) / 2),
        .worst_fraction = g_array_index(errors, double, errors->len - 1),
    };
    g_array_append_val(profile->fit_errors, error);
}

void
profile_measured_fit_errors(Profile *profile)
{
    const ProfileMeasurement *before = NULL;

    g_array_set_size(profile->fit_errors, 0);
    /* Sorted by op, then pass, then tp, then kind. */
    for (guint i = 0; i < profile->measurements->len; i++) {
        const ProfileMeasurement *row = measurement(profile, i);

        if (row->op > PROFILE_OP_HEAD)
            break;
        if (before == NULL || before->op != row->op || before->pass != row->pass ||
            before->tp != row->tp || g_strcmp0(before->kind, row->kind) != 0)
            add_fit_error(profile, &(ProfileRows){row->op, row->pass, row->tp, row->kind});
        before = row;
    }
}

/* --- rows of one size: optimizer, collectives, messages, copies; overhead --- */

/* Rows of one op next to a size: the last two of at most that size, and the first above it. */
typedef struct {
    const ProfileMeasurement *before, *below, *above; /* (nullable) */
} Neighbours;

static int64_t
size_of(const ProfileMeasurement *row)
{
    return row->op == PROFILE_OP_OPTIMIZER ? row->n_elements : row->bytes;
}

static Neighbours
neighbours(const Profile *profile, ProfileOp op, int64_t n_ranks, int64_t size)
{
    Neighbours found = {NULL, NULL, NULL};

    /* Rows are sorted by size among equal (op, n_ranks). */
    for (guint i = 0; i < profile->measurements->len && found.above == NULL; i++) {
        const ProfileMeasurement *row = measurement(profile, i);

        if (row->op != op || row->n_ranks != n_ranks)
            continue;
        if (size_of(row) > size) {
            found.above = row;
        } else {
            found.before = found.below;
            found.below = row;
        }
    }
    return found;
}

bool
profile_measured_bytes_s(const Profile *profile, ProfileOp op, int64_t n_ranks, int64_t bytes,
                         double *seconds)
{
    Neighbours rows = neighbours(profile, op, n_ranks, bytes);

    if (rows.below == NULL && rows.above == NULL)
        return false;
    if (rows.below == NULL) {
        *seconds = rows.above->median_s;
        return true;
    }
    if (rows.above == NULL && rows.before != NULL) {
        rows.above = rows.below;
        rows.below = rows.before;
    }
    if (rows.above == NULL) {
        *seconds = rows.below->bytes > 0 && bytes > rows.below->bytes
                       ? rows.below->median_s * ((double)bytes / (double)rows.below->bytes)
                       : rows.below->median_s;
        return true;
    }
    *seconds = rows.below->median_s + (rows.above->median_s - rows.below->median_s) *
                                          ((double)(bytes - rows.below->bytes) /
                                           (double)(rows.above->bytes - rows.below->bytes));
    /* Noise may let the last segment fall. */
    *seconds = fmax(*seconds, bytes >= rows.above->bytes ? rows.above->median_s : 0.0);
    return true;
}

bool
profile_measured_optimizer(const Profile *profile, int64_t n_elements, double *seconds)
{
    Neighbours rows = neighbours(profile, PROFILE_OP_OPTIMIZER, 0, n_elements);

    if (rows.below == NULL && rows.above == NULL)
        return false;
    /* Beyond the largest as from the row before to it: those have more layers, and a layer has many short
     * kernels. */
    if (rows.above == NULL && rows.before != NULL) {
        rows.above = rows.below;
        rows.below = rows.before;
    }
    if (rows.below != NULL && rows.above != NULL) {
        const double t = (double)(n_elements - rows.below->n_elements) /
                         (double)(rows.above->n_elements - rows.below->n_elements);
        const double below_s = profile_measurement_mean_s(rows.below);

        const double above_s = profile_measurement_mean_s(rows.above);
        *seconds = below_s + t * (above_s - below_s);
        /* Noise may let the last segment fall. */
        *seconds = fmax(*seconds, t > 1.0 ? above_s : 0.0);
    } else {
        const ProfileMeasurement *row = rows.below != NULL ? rows.below : rows.above;

        *seconds = profile_measurement_mean_s(row) * ((double)n_elements / (double)row->n_elements);
    }
    return true;
}

double
profile_measured_overhead_s(const Profile *profile)
{
    for (guint i = 0; i < profile->measurements->len; i++) {
        const ProfileMeasurement *row = measurement(profile, i);

        if (row->op == PROFILE_OP_OVERHEAD)
            return row->median_s;
    }
    return 0.0;
}
