/* Errors by the date of the stack; declared in cli/validate/report.h. */
#include "cli/validate/report.h"

#include <math.h>
#include <string.h>

#include "cli/request/output.h"

/* The rows of one framework and half a year. */
typedef struct {
    char *name;     /* (owned) "megatron-core | 2025, first half" */
    GArray *errors; /* (owned) of double */
} Stack;

static void
stack_clear(void *data)
{
    Stack *stack = data;

    g_free(stack->name);
    g_array_unref(stack->errors);
}

static int
compare_stacks(const void *a, const void *b)
{
    return strcmp(((const Stack *)a)->name, ((const Stack *)b)->name);
}

static Stack *
stack_of(GArray *stacks, char *name)
{
    for (guint i = 0; i < stacks->len; i++) {
        Stack *stack = &g_array_index(stacks, Stack, i);

        if (strcmp(stack->name, name) == 0) {
            g_free(name);
            return stack;
        }
    }
    const Stack stack = {name, g_array_new(FALSE, FALSE, sizeof(double))};
    g_array_append_val(stacks, stack);
    return &g_array_index(stacks, Stack, stacks->len - 1);
}

void
validation_append_stacks(GString *text, const Validation *validation)
{
    g_autoptr(GArray) stacks = g_array_new(FALSE, FALSE, sizeof(Stack));

    g_array_set_clear_func(stacks, stack_clear);
    for (guint i = 0; i < validation->runs.cases->len; i++) {
        const ValidationCase *one = validation->runs.cases->pdata[i];
        const double error =
            validation_error_of(VALIDATION_TIME, one->row, &validation->predictions[i]);
        const char *date = one->row->stack_date;

        if (!isfinite(error) || strlen(date) != strlen("YYYY-MM") || one->source->is_functional)
            continue;
        Stack *stack = stack_of(
            stacks, g_strdup_printf("%s | %.4s, %s half", one->source->framework, date,
                                    strcmp(date + strlen("YYYY-"), "07") < 0 ? "first" : "second"));
        g_array_append_val(stack->errors, error);
    }
    g_array_sort(stacks, compare_stacks);
    g_string_append(text,
                    "## By the date of the stack\n\nA stack has a date: the same configuration "
                    "became up to 30 % faster within a year of releases. A prediction assumes\nthe "
                    "stack that the row of its framework was read from (`degas simulate --explain` "
                    "says which), with what the run\nitself says of it: recipe of fp8, dispatcher, "
                    "graphs, overlap, format of gradients. What is left by half-years:\n\n"
                    "| framework | stack of | rows | MAPE | bias |\n|---|---|---:|---:|---:|\n");
    for (guint i = 0; i < stacks->len; i++) {
        const Stack *stack = &g_array_index(stacks, Stack, i);
        const ValidationErrors errors = validation_errors(
            (const double *)(const void *)stack->errors->data, stack->errors->len);

        g_string_append_printf(text, "| %s | %zu | %s |", stack->name, errors.n,
                               output_percent(errors.mape).text);
        g_string_append_printf(text, " %s |\n", output_percent(errors.bias).text);
    }
    g_string_append_c(text, '\n');
}
