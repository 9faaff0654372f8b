/* Tests of cli/recipe/layout_string.h against what Megatron-LM's own class (d98e8a64) said of the same strings. */
#include "cli/recipe/layout_string.h"

#include <string.h>

static void
test_strings_are_taken_and_refused_as_by_megatron(void)
{
    static const struct {
        const char *text;
        int64_t pp, n_layers, n_mtp;
        int64_t n_stages;    /* 0: it is no layout */
        const char *refusal; /* NULL: it is taken */
    } cases[] = {
        {"Et*3|(tt|)*29,m|L", 16, 61, 1, 32, NULL},
        {"E|(tt|)*2,(t|)*4,mL", 2, 8, 1, 8, NULL},
        {"E|(tt|)*2,(t|)*4,mL", 4, 8, 1, 8, NULL},
        {"Ett|tt|tt|ttL", 4, 8, 0, 4, NULL},
        {"Ett|tt|tt|ttL", 2, 8, 0, 4, NULL},
        {"Et*2|(t*2|)*34,t*3|(t*2|)*3,tL", 4, 80, 0, 40, NULL},
        {"Et*2|(t*2|)*34,t*3|(t*2|)*3,tL", 8, 80, 0, 40, NULL},
        {"E||ttL", 3, 2, 0, 3, NULL},
        {"Ett|tt||L", 2, 4, 0, 4, NULL},
        {"Et|*2tL", 3, 2, 0, 3, NULL},
        {"(Et|)*1tL", 2, 2, 0, 2, NULL},
        {"Et|(t|)*0tL", 2, 2, 0, 2, NULL},
        /* From Megatron's own help text. */
        {"E|(t|)*3,m|m||L", 2, 3, 2, 8, "MTP modules must be in the last chunk of their rank"},
        {"E|(t|)*3,m|m||L", 4, 3, 2, 8, "all MTP modules must be in one stage"},
        {"((t|)*2)*2", 2, 4, 0, 0, NULL},
        {"Et t|tL", 2, 3, 0, 0, NULL},
        {"Etm|tL", 2, 2, 1, 2, "layers must come before MTP modules"},
        {"Etmt|L", 2, 2, 1, 2, "a stage must have its embedding, layers, MTP modules and loss"},
        {"Ett|tL", 2, 4, 0, 2, "it has 3 layers (t), the model has 4"},
        {"Ett|tL", 2, 3, 1, 2, "it has 0 MTP modules (m), the model has 1"},
        {"Ett|tL", 3, 3, 0, 2, "2 stages are no multiple of 3 ranks"},
        {"ttE|tL", 2, 3, 0, 2, "a stage must have its embedding"},
        {"Ett|EtL", 2, 3, 0, 2, "one embedding (E)"},
        {"tt|EtL", 2, 3, 0, 2, "one embedding (E)"},
        {"EttL|t", 2, 3, 0, 2, "one loss (L)"},
        {"Ex|tL", 2, 1, 0, 0, NULL},
        {"E*|tL", 2, 1, 0, 0, NULL},
        {"E|t*99999999999999999999L", 2, 1, 0, 0, NULL},
        {"((((", 2, 1, 0, 0, NULL},
        {"", 1, 0, 0, 1, "one embedding (E)"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *message = NULL;
        g_autoptr(GArray) stages = layout_string_read(cases[i].text, &message);

        g_test_message("%s", cases[i].text);
        g_assert_cmpint(stages == NULL ? 0 : stages->len, ==, cases[i].n_stages);
        g_assert_true((stages == NULL) == (message != NULL));
        if (stages == NULL)
            continue;
        g_autofree char *refusal =
            layout_string_refusal(stages, cases[i].pp, cases[i].n_layers, cases[i].n_mtp);
        if (cases[i].refusal == NULL)
            g_assert_null(refusal);
        else
            g_assert_true(refusal != NULL && strstr(refusal, cases[i].refusal) == refusal);
    }
}

/* A plan of a chain of stages with so many layers, MTP modules among them. */
static Plan *
plan_of(const int64_t *counts, guint n)
{
    Plan *plan = plan_new();
    int64_t first = 0;

    g_array_set_size(plan->stages, 0);
    for (guint i = 0; i < n; i++) {
        const PlanStage stage = {
            .first_layer = first, .n_layers = counts[i], .embedding = i == 0, .head = i + 1 == n};
        g_array_append_val(plan->stages, stage);
        first += counts[i];
    }
    return plan;
}

static void
test_what_is_written_is_read_again(void)
{
    static const struct {
        int64_t counts[12];
        guint n;
        int64_t n_layers;
        const char *expect;
    } cases[] = {
        {{2, 2, 2, 2}, 4, 8, "Ett|(tt|)*2ttL"},
        {{3, 2, 2, 2, 1, 0}, 6, 9, "Et*3|(tt|)*3m|L"},
        {{0, 1, 0, 0, 3, 2}, 6, 4, "E|t|(|)*2t*3|mmL"},
        {{0, 5}, 2, 4, "E|t*4mL"},
        {{9}, 1, 9, "Et*9L"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(Plan) plan = plan_of(cases[i].counts, cases[i].n);
        g_autofree char *text = layout_string_write(plan, cases[i].n_layers, true), *message = NULL;
        g_autoptr(GArray) stages = layout_string_read(text, &message);
        g_assert_cmpstr(text, ==, cases[i].expect);
        g_assert_nonnull(stages);
        g_assert_cmpint(stages->len, ==, cases[i].n);
        for (guint k = 0; k < stages->len; k++) {
            const LayoutStage *stage = &g_array_index(stages, LayoutStage, k);
            g_assert_cmpint(stage->n_layers + stage->n_mtp, ==, cases[i].counts[k]);
        }
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/cli/layout-string/strings-are-taken-and-refused-as-by-megatron",
                    test_strings_are_taken_and_refused_as_by_megatron);
    g_test_add_func("/cli/layout-string/what-is-written-is-read-again",
                    test_what_is_written_is_read_again);
    return g_test_run();
}
