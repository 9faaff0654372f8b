/* Tests of cli/recipe/recipe.h: public recipes, of tests/data/recipes.txt, become the plans that they are. */
#include <math.h>

#include "cli/recipe/recipe.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/units.h"
#include "cli/recipe/settings.h"
#include "models/lora.h"

static const OptionInfo own[] = {RECIPE_OPTIONS, {NULL, NULL, NULL}};
static const OptionInfo *const tables[] = {own, request_options, request_fixed_options, NULL};

/* (owned) the built-in model, of Hugging Face's configuration, that has as many parameters, all and active, as @arch. */
static char *
model_of_size(const ModelArch *arch)
{
    g_autoptr(GPtrArray) names = model_arch_builtin_names();

    for (guint i = 0; i < names->len; i++) {
        g_autoptr(ModelArch) built_in = model_arch_load(names->pdata[i], NULL, NULL);
        if (model_parameters(built_in) == model_parameters(arch) &&
            model_active_parameters(built_in) == model_active_parameters(arch))
            return g_strdup(names->pdata[i]);
    }
    return g_strdup_printf("none, of " INT " parameters", model_parameters(arch));
}

/* (owned) what the plan has for @key, as the table says it. */
static char *
value_of(const char *key, const Recipe *recipe, const Request *request, const Plan *plan)
{
    const PlanDegrees *d = &plan->degrees;
    const struct {
        const char *key;
        int64_t value;
    } numbers[] = {
        {"dp", d->dp},
        {"tp", d->tp},
        {"pp", d->pp},
        {"vpp", d->vpp},
        {"cp", d->cp},
        {"ep", d->ep},
        {"mb", plan->micro_batch},
        {"gb", plan->global_batch},
        {"seq", plan->seq_len},
        {"zero", plan->zero_stage},
        {"sp", plan->sequence_parallel},
        {"layers", request->arch->n_layers},
        {"mtp", request->arch->mtp.n},
        {"mtp_permille", (int64_t)lround(1000 * model_loss_weight(request->arch, 1))},
        {"hidden", request->arch->hidden},
        {"vocab", request->arch->vocab},
        {"experts", request->arch->experts.n_experts},
        {"etp", plan_expert_tp(d, &plan->conventions)},
        {"devices", recipe->n_devices},
        {"instances", plan_instances(&plan->conventions)},
        {"lora_rank", request->arch->lora.rank},
    };
    const struct {
        const char *key, *value;
    } words[] = {
        {"framework", plan_framework(plan->conventions.framework)->name},
        {"model", request->arch->name},
        {"recompute", plan_recompute_name(plan)},
        {"dtype", dtype_names[plan->dtype]},
        {"offload", plan_offload_names[plan->offload]},
        {"schedule", plan->schedule},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(numbers); i++)
        if (strcmp(key, numbers[i].key) == 0)
            return g_strdup_printf(INT, numbers[i].value);
    for (size_t i = 0; i < G_N_ELEMENTS(words); i++)
        if (strcmp(key, words[i].key) == 0)
            return g_strdup(words[i].value);
    if (strcmp(key, "lora_modules") == 0)
        return model_lora_write_modules(request->arch->lora.modules);
    return strcmp(key, "as_large_as") == 0 ? model_of_size(request->arch) : g_strdup("no such key");
}

/* Reads the recipe at @path as the row says; what differs is added to @wrong. */
static void
try_row(const char *path, const char *source, const char *row, GString *wrong)
{
    g_auto(GStrv) halves = g_strsplit(row, " | ", 2);
    g_auto(GStrv) words = g_strsplit(halves[0], " ", -1);
    g_auto(GStrv) expected = g_strsplit(halves[1], " ", -1);
    g_autoptr(GPtrArray) argv = g_ptr_array_new();
    g_autoptr(GError) error = NULL;
    g_autoptr(Recipe) recipe = NULL;

    g_ptr_array_add(argv, (char *)path);
    for (size_t i = 0; words[i] != NULL; i++)
        g_ptr_array_add(argv, words[i]);
    g_autoptr(Options) options =
        options_parse(tables, (int)argv->len, (char **)argv->pdata, &error);
    g_assert_no_error(error);
    g_autoptr(Request) request =
        recipe_request_load(path, options_argument(options, 0), options, &recipe, &error);
    g_autoptr(Plan) plan = request == NULL ? NULL : request_plan(request, &error);
    if (plan == NULL) {
        g_string_append_printf(wrong, "%s: %s: %s\n", source, halves[0], error->message);
        return;
    }
    for (guint i = 0; i < recipe->breaches->len; i++)
        g_string_append_printf(wrong, "%s: %s: it does not start: %s\n", source, halves[0],
                               g_array_index(recipe->breaches, PlanBreach, i).text);
    for (size_t i = 0; expected[i] != NULL; i++) {
        g_auto(GStrv) pair = g_strsplit(expected[i], "=", 2);
        g_autofree char *value = value_of(pair[0], recipe, request, plan);
        if (strcmp(value, pair[1]) != 0)
            g_string_append_printf(wrong, "%s: %s: %s is %s, not %s\n", source, halves[0], pair[0],
                                   value, pair[1]);
    }
}

static void
test_public_recipes(void)
{
    g_autofree char *text = NULL, *folder = g_dir_make_tmp("recipes-XXXXXX", NULL);
    g_autofree char *path = NULL;
    g_autoptr(GString) recipe = g_string_new(NULL), wrong = g_string_new(NULL);
    g_autoptr(GError) error = NULL;
    const char *source = "";
    size_t n_bytes;
    int n_rows = 0;

    file_read("tests/data/recipes.txt", &text, &n_bytes, &error);
    g_assert_no_error(error);
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    for (size_t i = 0; lines[i] != NULL; i++) {
        if (g_str_has_prefix(lines[i], "@ ")) {
            g_auto(GStrv) words = g_strsplit(lines[i], " ", 3);
            g_free(path);
            path = g_build_filename(folder, words[1], NULL);
            source = strchr(lines[i] + 2, ' ') + 1;
            g_string_truncate(recipe, 0);
        } else if (g_str_has_prefix(lines[i], "> ")) {
            file_write(path, recipe->str, recipe->len, &error);
            g_assert_no_error(error);
            try_row(path, source, lines[i] + 2, wrong);
            n_rows++;
            remove(path);
        } else if (path != NULL) {
            g_string_append_printf(recipe, "%s\n", lines[i]);
        }
    }
    remove(folder);
    g_test_message("%d recipes", n_rows);
    g_assert_cmpint(n_rows, >=, 100);
    g_assert_cmpstr(wrong->str, ==, "");
}

/* Whatever a key has before its name, flattening keeps the setting: `--a._+b 3` ended the program. */
static void
test_flattens_any_key(void)
{
    static const char *const keys[] = {"--a._+b", "a.--b", "b", "x.y.~b", "_-b", "._-_b"};

    for (size_t i = 0; i < G_N_ELEMENTS(keys); i++) {
        g_autoptr(RecipeSettings) settings = recipe_settings_new("r.sh");
        g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);

        recipe_settings_add(settings, keys[i], "3", 7);
        recipe_settings_flatten(settings);
        g_assert_cmpuint(recipe_settings_unused(settings, names), ==, 1);
        g_assert_cmpstr(names->pdata[0], ==, keys[i]);
        g_assert_no_error(settings->error);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/recipe/public-recipes", test_public_recipes);
    g_test_add_func("/recipe/flattens-any-key", test_flattens_any_key);
    return g_test_run();
}
