/* Values of options, read with the grammar of base/units.h. */
#include "cli/request/options.h"

#include <string.h>

#include "base/text.h"

/* Takes @error, a UNITS_ERROR, whose message names the value. */
static void
take_error(Options *options, const char *name, GError *error)
{
    options_fail(options, name, "%s", error->message);
    g_error_free(error);
}

const char *
options_string(Options *options, const char *name, const char *fallback)
{
    const char *text = options_value(options, name);

    if (text != NULL && *text == 0)
        options_fail(options, name, "the value is empty");
    return text == NULL ? fallback : text;
}

static int64_t
parse_int64(Options *options, const char *name, const char *text, int64_t min, int64_t max,
            int64_t fallback)
{
    g_autofree char *label = options_label(options, name);
    GError *error = NULL;
    int64_t value;

    if (units_parse_int64(text, label, min, max, &value, &error))
        return value;
    /* The message begins with the label already. */
    if (g_str_has_prefix(error->message, label))
        options_fail(options, name, "%s", error->message + strlen(label) + strlen(": "));
    else
        options_fail(options, name, "%s", error->message);
    g_error_free(error);
    return fallback;
}

int64_t
options_int64(Options *options, const char *name, int64_t min, int64_t max, int64_t fallback)
{
    const char *text = options_value(options, name);

    return text == NULL ? fallback : parse_int64(options, name, text, min, max, fallback);
}

int64_t
options_int64_or_word(Options *options, const char *name, const char *word, int64_t meaning,
                      int64_t min, int64_t max, int64_t fallback)
{
    const char *text = options_value(options, name);

    if (text != NULL && strcmp(text, word) == 0)
        return meaning;
    return options_int64(options, name, min, max, fallback);
}

int64_t
options_bytes(Options *options, const char *name, int64_t fallback)
{
    const char *text = options_value(options, name);
    GError *error = NULL;
    int64_t value = fallback;

    if (text == NULL)
        return fallback;
    if (!units_parse_bytes(text, &value, &error))
        take_error(options, name, error);
    return value;
}

double
options_quantity(Options *options, const char *name, UnitsKind kind, double fallback)
{
    const char *text = options_value(options, name);
    GError *error = NULL;
    double value = fallback;

    if (text == NULL)
        return fallback;
    if (!units_parse(text, kind, &value, &error))
        take_error(options, name, error);
    return value;
}

int
options_choice(Options *options, const char *name, const char *const *names, int fallback)
{
    const char *text = options_value(options, name);

    if (text == NULL)
        return fallback;
    for (int i = 0; names[i] != NULL; i++) {
        if (strcmp(names[i], text) == 0)
            return i;
    }
    g_autofree char *shown = text_escape(text, 64);
    g_autofree char *suggestion = text_suggestion(text, names);
    g_autofree char *all = g_strjoinv(", ", (char **)names);
    options_fail(options, name, "\"%s\" is none of %s%s%s", shown, all, *suggestion == 0 ? "" : ";",
                 *suggestion == 0 ? "" : suggestion + 1);
    return fallback;
}

bool
options_on_off(Options *options, const char *name, bool fallback)
{
    static const char *const names[] = {"off", "on", NULL};

    return options_choice(options, name, names, fallback) == 1;
}

char **
options_words(Options *options, const char *name)
{
    const char *text = options_value(options, name);
    char **words;

    if (text == NULL)
        return NULL;
    words = g_strsplit(text, ",", -1);
    if (words[0] == NULL)
        options_fail(options, name, "the value is empty");
    for (size_t i = 0; words[i] != NULL; i++) {
        if (*words[i] == 0)
            options_fail(options, name, "there is nothing between two commas");
    }
    return words;
}

GArray *
options_int64s(Options *options, const char *name, int64_t min, int64_t max)
{
    g_auto(GStrv) words = options_words(options, name);
    GArray *values;

    if (words == NULL)
        return NULL;
    values = g_array_new(FALSE, FALSE, sizeof(int64_t));
    for (size_t i = 0; words[i] != NULL; i++) {
        const int64_t value = parse_int64(options, name, words[i], min, max, min);

        g_array_append_val(values, value);
    }
    return values;
}
