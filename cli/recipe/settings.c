#include "cli/recipe/settings.h"

#include <string.h>

#include "base/text.h"
#include "base/units.h"
#include "cli/request/command.h"

static void
setting_free(void *data)
{
    RecipeSetting *setting = data;

    g_free(setting->key);
    g_free(setting->shown);
    g_free(setting->value);
    g_free(setting);
}

RecipeSettings *
recipe_settings_new(const char *path)
{
    RecipeSettings *settings = g_new0(RecipeSettings, 1);

    settings->path = g_strdup(path);
    settings->all = g_ptr_array_new_with_free_func(setting_free);
    settings->by_key = g_hash_table_new(g_str_hash, g_str_equal);
    settings->notes = g_ptr_array_new_with_free_func(g_free);
    settings->unmodelled = g_ptr_array_new_with_free_func(g_free);
    return settings;
}

void
recipe_settings_free(RecipeSettings *settings)
{
    if (settings == NULL)
        return;
    g_hash_table_unref(settings->by_key);
    g_ptr_array_unref(settings->all);
    g_ptr_array_unref(settings->notes);
    g_ptr_array_unref(settings->unmodelled);
    g_clear_error(&settings->error);
    g_free(settings->path);
    g_free(settings);
}

/* (nullable) The setting; NULL with an error in @settings. */
static RecipeSetting *
add(RecipeSettings *settings, const char *key, const char *value, int line)
{
    g_autofree char *shown = g_strdup(key);

    while (*key == '-' || *key == '+' || *key == '~')
        key++;
    g_autofree char *plain = g_strdelimit(g_strdup(key), "-", '_');
    RecipeSetting *setting = g_hash_table_lookup(settings->by_key, plain);
    if (setting == NULL) {
        if (settings->all->len >= RECIPE_MAX_SETTINGS) {
            recipe_fail(settings, NULL, "more than %d settings", RECIPE_MAX_SETTINGS);
            return NULL;
        }
        setting = g_new0(RecipeSetting, 1);
        setting->key = g_steal_pointer(&plain);
        g_ptr_array_add(settings->all, setting);
        g_hash_table_insert(settings->by_key, setting->key, setting);
    }
    g_free(setting->shown);
    g_free(setting->value);
    setting->shown = g_steal_pointer(&shown);
    setting->value = g_strdup(value);
    setting->line = line;
    return setting;
}

void
recipe_settings_add(RecipeSettings *settings, const char *key, const char *value, int line)
{
    add(settings, key, value, line);
}

void
recipe_settings_flatten(RecipeSettings *settings)
{
    g_autoptr(GPtrArray) all = g_steal_pointer(&settings->all);

    settings->all = g_ptr_array_new_with_free_func(setting_free);
    g_hash_table_remove_all(settings->by_key);
    for (guint i = 0; i < all->len; i++) {
        const RecipeSetting *old = g_ptr_array_index(all, i);
        const char *dot = strrchr(old->key, '.');

        const char *key = dot == NULL ? old->key : dot + 1;

        /* The flags of a YAML have their dashes there. */
        key += strspn(key, "_");
        RecipeSetting *setting = add(settings, key, old->value, old->line);
        if (setting == NULL)
            return;
        g_free(setting->shown);
        setting->shown = g_strdup(old->shown);
    }
}

void
recipe_fail(RecipeSettings *settings, const char *key, const char *format, ...)
{
    const RecipeSetting *setting = key == NULL ? NULL : g_hash_table_lookup(settings->by_key, key);
    va_list arguments;

    if (settings->error != NULL)
        return;
    va_start(arguments, format);
    g_autofree char *text = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    g_autofree char *shown = text_escape(setting != NULL ? setting->shown
                                         : key != NULL   ? key
                                                         : "",
                                         80);
    g_autofree char *line =
        setting != NULL && setting->line > 0 ? g_strdup_printf(":%d", setting->line) : g_strdup("");
    cmd_fail(&settings->error, CMD_ERROR_INPUT, "%s%s: %s%s%s", settings->path, line, shown,
             shown[0] == 0 ? "" : ": ", text);
}

bool
recipe_settings_finish(RecipeSettings *settings, GError **error)
{
    if (settings->error == NULL)
        return true;
    g_propagate_error(error, g_steal_pointer(&settings->error));
    return false;
}

void
recipe_note(RecipeSettings *settings, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_ptr_array_add(settings->notes, g_strdup_vprintf(format, arguments));
    va_end(arguments);
}

guint
recipe_settings_unused(const RecipeSettings *settings, GPtrArray *names)
{
    guint n = 0;

    for (guint i = 0; i < settings->all->len; i++) {
        const RecipeSetting *setting = g_ptr_array_index(settings->all, i);

        if (setting->is_used)
            continue;
        n++;
        if (names != NULL)
            g_ptr_array_add(names, text_escape(setting->shown, 80));
    }
    return n;
}

/* --- getters --- */

static bool
is_nothing(const char *value)
{
    static const char *const words[] = {"", "null", "none", "~", "auto"};

    for (size_t i = 0; i < G_N_ELEMENTS(words); i++)
        if (g_ascii_strcasecmp(value, words[i]) == 0)
            return true;
    return false;
}

/* (nullable) The setting, whose value is known. */
static const RecipeSetting *
find(RecipeSettings *settings, const char *key)
{
    RecipeSetting *setting = g_hash_table_lookup(settings->by_key, key);
    const char *unknown;

    if (setting == NULL)
        return NULL;
    setting->is_used = true;
    if (is_nothing(setting->value))
        return NULL;
    unknown = strchr(setting->value, RECIPE_UNKNOWN);
    if (unknown != NULL) {
        const char *end = strchr(unknown + 1, RECIPE_UNKNOWN);
        g_autofree char *name =
            g_strndup(unknown + 1, end == NULL ? 0 : (size_t)(end - unknown - 1));
        g_autofree char *safe = text_escape(name, 60);

        if (safe[0] == 0 || strchr(safe, '(') != NULL)
            recipe_fail(settings, key, "its value is only known where the script runs");
        else
            recipe_fail(settings, key,
                        "the script does not set $%s: give it by --variables %s=VALUE", safe, safe);
        return NULL;
    }
    return setting;
}

bool
recipe_has(RecipeSettings *settings, const char *key)
{
    return find(settings, key) != NULL;
}

const char *
recipe_string(RecipeSettings *settings, const char *key, const char *fallback)
{
    const RecipeSetting *setting = find(settings, key);

    return setting == NULL ? fallback : setting->value;
}

int64_t
recipe_int(RecipeSettings *settings, const char *key, int64_t min, int64_t max, int64_t fallback)
{
    const RecipeSetting *setting = find(settings, key);
    int64_t value = fallback;

    if (setting == NULL)
        return fallback;
    /* YAML and Python write 8192.0, 5e8 and 8_192, too. */
    g_autofree char *text = g_strdup(setting->value);
    char *to = text;
    for (const char *from = text; *from != 0; from++)
        if (*from != '_')
            *to++ = *from;
    *to = 0;
    if (g_str_has_suffix(text, ".0"))
        text[strlen(text) - 2] = 0;
    double number;
    if (units_parse_int64(text, key, min, max, &value, NULL))
        return value;
    if (strchr(text, 'e') != NULL && units_parse(text, UNITS_KIND_NUMBER, &number, NULL) &&
        number >= (double)min && number <= (double)max)
        return (int64_t)number;
    g_autofree char *safe = text_escape(setting->value, 60);
    recipe_fail(settings, key, "expected a whole number from " INT " to " INT ", got \"%s\"", min,
                max, safe);
    return fallback;
}

double
recipe_double(RecipeSettings *settings, const char *key, double fallback)
{
    const RecipeSetting *setting = find(settings, key);
    double value;

    if (setting == NULL)
        return fallback;
    if (units_parse(setting->value, UNITS_KIND_NUMBER, &value, NULL))
        return value;
    g_autofree char *safe = text_escape(setting->value, 60);
    recipe_fail(settings, key, "expected a number, got \"%s\"", safe);
    return fallback;
}

bool
recipe_bool(RecipeSettings *settings, const char *key, bool fallback)
{
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};
    RecipeSetting *any = g_hash_table_lookup(settings->by_key, key);

    /* "--bf16 $EXTRA": an unknown variable behind a flag is no value of it. */
    if (any != NULL && any->value[0] == RECIPE_UNKNOWN) {
        any->is_used = true;
        return true;
    }
    const RecipeSetting *setting = find(settings, key);

    if (setting == NULL)
        return fallback;
    for (size_t i = 0; i < G_N_ELEMENTS(words); i++)
        if (g_ascii_strcasecmp(setting->value, words[i]) == 0)
            return i % 2 == 1;
    g_autofree char *safe = text_escape(setting->value, 60);
    recipe_fail(settings, key, "expected true or false, got \"%s\"", safe);
    return fallback;
}

bool
recipe_is(RecipeSettings *settings, const char *key, const char *value)
{
    const char *text = recipe_string(settings, key, NULL);

    return text != NULL && g_ascii_strcasecmp(text, value) == 0;
}

void
recipe_unmodelled(RecipeSettings *settings, const char *key, const char *usual, const char *what)
{
    RecipeSetting *setting = g_hash_table_lookup(settings->by_key, key);

    if (setting == NULL)
        return;
    setting->is_used = true;
    if (g_ascii_strcasecmp(setting->value, "false") == 0 || is_nothing(setting->value) ||
        (usual != NULL && g_ascii_strcasecmp(setting->value, usual) == 0))
        return;
    g_autofree char *value = text_escape(setting->value, 60);
    g_autofree char *shown = text_escape(setting->shown, 80);
    g_ptr_array_add(settings->unmodelled, strcmp(value, "true") == 0
                                              ? g_strdup_printf("%s: %s", shown, what)
                                              : g_strdup_printf("%s %s: %s", shown, value, what));
}
