#include "cli/validate/residuals.h"

#include <math.h>
#include <string.h>

#define MIN_EXPLAINED 0.10
#define MAX_GROUPS 12
#define INT "%" G_GINT64_FORMAT

/* --- columns --- */

typedef struct {
    const char *name;
    /* (owned, nullable) the row's value; NULL: it states none. */
    char *(*value)(const MeasuredRow *row);
} Column;

#define COUNT_COLUMN(member)                                                                       \
    static char *value_of_##member(const MeasuredRow *row)                                         \
    {                                                                                              \
        return row->member == 0 ? NULL : g_strdup_printf(INT, row->member);                        \
    }
#define TEXT_COLUMN(member)                                                                        \
    static char *value_of_##member(const MeasuredRow *row)                                         \
    {                                                                                              \
        return g_strdup(row->member);                                                              \
    }

COUNT_COLUMN(tp)
COUNT_COLUMN(pp)
COUNT_COLUMN(dp)
COUNT_COLUMN(cp)
COUNT_COLUMN(ep)
COUNT_COLUMN(micro_batch)
COUNT_COLUMN(n_micro_batches)
COUNT_COLUMN(hidden)
COUNT_COLUMN(seq_len)
TEXT_COLUMN(model)
TEXT_COLUMN(schedule)
TEXT_COLUMN(recompute)
TEXT_COLUMN(source)
TEXT_COLUMN(gpu)

static char *
value_of_kernel(const MeasuredRow *row)
{
    char *kernel = measured_note(row->notes, "kernel");

    return kernel != NULL ? kernel : measured_note(row->notes, "attention-backend");
}

static char *
value_of_sequence_parallel(const MeasuredRow *row)
{
    return g_strdup(row->sequence_parallel == 1 ? "true" : "false");
}

static char *
value_of_implementation(const MeasuredRow *row)
{
    return measured_note(row->notes, "transformer-impl");
}

static const Column columns[] = {
    {"tp", value_of_tp},
    {"pp", value_of_pp},
    {"dp", value_of_dp},
    {"cp", value_of_cp},
    {"ep", value_of_ep},
    {"micro_batch", value_of_micro_batch},
    {"num_microbatches", value_of_n_micro_batches},
    {"hidden", value_of_hidden},
    {"seq", value_of_seq_len},
    {"schedule", value_of_schedule},
    {"recompute", value_of_recompute},
    {"sp", value_of_sequence_parallel},
    {"kernel", value_of_kernel},
    {"transformer-impl", value_of_implementation},
    {"gpu", value_of_gpu},
    {"source", value_of_source},
    {"model", value_of_model},
};

/* --- groups --- */

static void
column_clear(void *data)
{
    ResidualColumn *column = data;

    g_array_unref(column->groups);
}

static void
group_clear(void *data)
{
    g_free(((ResidualGroup *)data)->value);
}

static ResidualGroup *
group_of(GArray *groups, const char *value)
{
    ResidualGroup group;

    for (guint i = 0; i < groups->len; i++) {
        ResidualGroup *known = &g_array_index(groups, ResidualGroup, i);

        if (strcmp(known->value, value) == 0)
            return known;
    }
    group = (ResidualGroup){.value = g_strdup(value)};
    g_array_append_val(groups, group);
    return &g_array_index(groups, ResidualGroup, groups->len - 1);
}

/* Sums first, means at the end. */
static ResidualColumn
cut_by(const Column *column, const GPtrArray *cases, const double *errors)
{
    ResidualColumn result = {column->name, 0.0, g_array_new(FALSE, TRUE, sizeof(ResidualGroup))};
    double n = 0.0, sum = 0.0, squares = 0.0, within, spread;

    g_array_set_clear_func(result.groups, group_clear);
    for (guint i = 0; i < cases->len; i++) {
        const ValidationCase *one = cases->pdata[i];
        g_autofree char *value = NULL;
        ResidualGroup *group;

        if (!isfinite(errors[i]))
            continue;
        value = column->value(one->row);
        group = group_of(result.groups, value == NULL ? "not stated" : value);
        group->n++;
        group->mape += fabs(errors[i]);
        group->bias += errors[i];
        n += 1.0;
        sum += errors[i];
        squares += errors[i] * errors[i];
    }
    within = squares;
    for (guint g = 0; g < result.groups->len; g++) {
        ResidualGroup *group = &g_array_index(result.groups, ResidualGroup, g);

        group->mape /= (double)group->n;
        group->bias /= (double)group->n;
        within -= (double)group->n * group->bias * group->bias;
    }
    spread = squares - sum * sum / n;
    if (result.groups->len >= 2 && n > (double)result.groups->len && spread > 0.0)
        result.explained = 1.0 - within / spread * (n - 1.0) / (n - (double)result.groups->len);
    return result;
}

static int
compare_explained(const void *a, const void *b)
{
    const double x = ((const ResidualColumn *)a)->explained;
    const double y = ((const ResidualColumn *)b)->explained;

    return (x < y) - (x > y);
}

/* Whether two columns make the same groups of the same sizes, and so say the same. */
static bool
same_cut(const ResidualColumn *a, const ResidualColumn *b)
{
    if (a->groups->len != b->groups->len)
        return false;
    for (guint i = 0; i < a->groups->len; i++) {
        const ResidualGroup *x = &g_array_index(a->groups, ResidualGroup, i);
        const ResidualGroup *y = &g_array_index(b->groups, ResidualGroup, i);

        if (x->n != y->n || x->bias != y->bias)
            return false;
    }
    return true;
}

GArray *
validation_residual_columns(const GPtrArray *cases, const double *errors, guint max_columns)
{
    GArray *result = g_array_new(FALSE, FALSE, sizeof(ResidualColumn));

    g_array_set_clear_func(result, column_clear);
    for (size_t c = 0; c < G_N_ELEMENTS(columns); c++) {
        ResidualColumn column = cut_by(&columns[c], cases, errors);
        bool wanted = column.explained >= MIN_EXPLAINED && column.groups->len <= MAX_GROUPS;

        for (guint i = 0; i < result->len && wanted; i++)
            wanted = !same_cut(&g_array_index(result, ResidualColumn, i), &column);
        if (wanted)
            g_array_append_val(result, column);
        else
            column_clear(&column);
    }
    /* qsort need not be stable: equal shares are told apart by their place before. */
    g_array_sort(result, compare_explained);
    if (result->len > max_columns)
        g_array_set_size(result, max_columns);
    return result;
}
