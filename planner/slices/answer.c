#include "planner/slices/answer.h"

PlanSliceGroup *
plan_slice_group_new(int64_t batch)
{
    PlanSliceGroup *group = g_new(PlanSliceGroup, 1);

    *group = (PlanSliceGroup){.batch = batch, .slices = g_array_new(FALSE, FALSE, sizeof(int64_t))};
    return group;
}

void
plan_slice_group_free(void *data)
{
    PlanSliceGroup *group = data;

    g_array_unref(group->slices);
    g_free(group);
}

void
plan_slice_result_free(PlanSliceResult *result)
{
    if (result == NULL)
        return;
    g_clear_pointer(&result->groups, g_ptr_array_unref);
    g_free(result);
}

int64_t
plan_slice_count(const PlanSliceResult *result)
{
    int64_t n = 0;

    for (guint i = 0; i < result->groups->len; i++)
        n += ((PlanSliceGroup *)result->groups->pdata[i])->slices->len;
    return n;
}

int
plan_slice_result_compare(const PlanSliceResult *a, const PlanSliceResult *b)
{
    int64_t difference = plan_slice_count(a) - plan_slice_count(b);

    for (guint i = 0; difference == 0 && i < MIN(a->groups->len, b->groups->len); i++) {
        const PlanSliceGroup *x = a->groups->pdata[i], *y = b->groups->pdata[i];
        difference = y->batch - x->batch;
        for (guint k = 0; difference == 0 && k < MIN(x->slices->len, y->slices->len); k++)
            difference =
                g_array_index(y->slices, int64_t, k) - g_array_index(x->slices, int64_t, k);
    }
    return (difference > 0) - (difference < 0);
}

GPtrArray *
plan_slice_groups_copy(const GPtrArray *groups)
{
    GPtrArray *copy = g_ptr_array_new_with_free_func(plan_slice_group_free);

    for (guint i = 0; i < groups->len; i++) {
        const PlanSliceGroup *group = groups->pdata[i];
        PlanSliceGroup *one = plan_slice_group_new(group->batch);
        g_array_append_vals(one->slices, group->slices->data, group->slices->len);
        g_ptr_array_add(copy, one);
    }
    return copy;
}

GPtrArray *
plan_slice_groups_even(int64_t batch, int64_t n, const GArray *slices)
{
    GPtrArray *groups = g_ptr_array_new_with_free_func(plan_slice_group_free);

    for (int64_t i = 0; i < n; i++) {
        PlanSliceGroup *group = plan_slice_group_new(batch / n + (i < batch % n));
        g_array_append_vals(group->slices, slices->data, slices->len);
        g_ptr_array_add(groups, group);
    }
    return groups;
}

GPtrArray *
plan_slice_groups_reversed(const GPtrArray *groups)
{
    GPtrArray *copy = plan_slice_groups_copy(groups);

    for (guint i = 0; i < copy->len / 2; i++) {
        gpointer one = copy->pdata[i];
        copy->pdata[i] = copy->pdata[copy->len - 1 - i];
        copy->pdata[copy->len - 1 - i] = one;
    }
    return copy;
}
