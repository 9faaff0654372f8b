#include "models/pattern.h"

#include <stdbool.h>
#include <string.h>

#include "base/text.h"
#include "base/units.h"

/* Parentheses within parentheses. */
#define MAX_DEPTH 8
/* Layers of a list that a writer looks for again behind it. */
#define MAX_PERIOD 128

/* --- reading --- */

typedef struct {
    const char *text, *at;
    const char *const *names;
    int64_t n_layers; /* more than these are not kept */
    GByteArray *kinds;
    char *message; /* (owned, nullable) what is wrong */
} Reader;

static void
skip_spaces(Reader *reader)
{
    while (*reader->at == ' ')
        reader->at++;
}

static bool G_GNUC_PRINTF(2, 3) fail(Reader *reader, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *what = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    if (reader->message == NULL)
        reader->message =
            g_strdup_printf("at letter %d: %s", (int)(reader->at - reader->text) + 1, what);
    return false;
}

static bool read_list(Reader *reader, int depth);

static bool
read_name(Reader *reader)
{
    const size_t length = strcspn(reader->at, " ,*()");
    g_autofree char *name = g_strndup(reader->at, length);

    if (length == 0)
        return fail(reader, "expected the name of a kind of layers, or a list in parentheses");
    for (uint8_t i = 0; reader->names[i] != NULL; i++)
        if (strcmp(reader->names[i], name) == 0) {
            g_byte_array_append(reader->kinds, &i, 1);
            reader->at += length;
            return true;
        }
    g_autofree char *safe = text_escape(name, 40);
    g_autofree char *near = text_suggestion(name, reader->names);
    return fail(reader, "\"%s\" is no kind of this model's layers%s", safe, near);
}

/* A number and an asterisk; 1 where there is none. */
static bool
read_count(Reader *reader, int64_t *count)
{
    *count = 1;
    if (!g_ascii_isdigit(*reader->at))
        return true;
    *count = 0;
    for (; g_ascii_isdigit(*reader->at); reader->at++)
        *count = MIN(*count * 10 + (*reader->at - '0'), reader->n_layers + 1);
    skip_spaces(reader);
    if (*reader->at != '*')
        return fail(reader, "expected * after a number");
    reader->at++;
    skip_spaces(reader);
    return *count >= 1 || fail(reader, "expected to repeat once or more often");
}

static bool
read_item(Reader *reader, int depth)
{
    const guint first = reader->kinds->len;
    int64_t count;

    if (!read_count(reader, &count))
        return false;
    if (*reader->at != '(') {
        if (!read_name(reader))
            return false;
    } else {
        reader->at++;
        if (depth == MAX_DEPTH)
            return fail(reader, "lists lie in at most %d others", MAX_DEPTH);
        if (!read_list(reader, depth + 1))
            return false;
        if (*reader->at != ')')
            return fail(reader, "expected ) or a comma");
        reader->at++;
    }
    const guint length = reader->kinds->len - first;
    for (int64_t i = 1; i < count; i++) {
        if (reader->kinds->len > reader->n_layers)
            return fail(reader, "more than the " INT " layers", reader->n_layers);
        g_byte_array_set_size(reader->kinds, reader->kinds->len + length);
        memcpy(reader->kinds->data + reader->kinds->len - length, reader->kinds->data + first,
               length);
    }
    return true;
}

static bool
read_list(Reader *reader, int depth)
{
    for (;;) {
        skip_spaces(reader);
        if (!read_item(reader, depth))
            return false;
        if (reader->kinds->len > reader->n_layers)
            return fail(reader, "more than the " INT " layers", reader->n_layers);
        skip_spaces(reader);
        if (*reader->at != ',')
            return true;
        reader->at++;
    }
}

uint8_t *
model_pattern_read(const char *text, const char *const *names, int64_t n_layers, char **message)
{
    Reader reader = {text, text, names, n_layers, g_byte_array_new(), NULL};

    if (read_list(&reader, 0) && *reader.at != '\0')
        fail(&reader, "expected a comma or the end");
    else if (reader.message == NULL && reader.kinds->len != n_layers)
        fail(&reader, "%u layers, expected n_layers, " INT, reader.kinds->len, n_layers);
    *message = reader.message;
    if (reader.message != NULL) {
        g_byte_array_free(reader.kinds, TRUE);
        return NULL;
    }
    return g_byte_array_free(reader.kinds, FALSE);
}

/* --- writing --- */

/* How often the @period kinds from @kinds on follow each other. */
static int64_t
n_repeats(const uint8_t *kinds, int64_t n, int64_t period)
{
    int64_t repeats = 1;

    while ((repeats + 1) * period <= n &&
           memcmp(kinds, kinds + repeats * period, (size_t)period) == 0)
        repeats++;
    return repeats;
}

/* At every place the period that saves most layers, the shortest of several. */
static void
write_list(GString *text, const uint8_t *kinds, int64_t n, const char *const *names)
{
    for (int64_t i = 0; i < n;) {
        int64_t best = 1, best_repeats = n_repeats(kinds + i, n - i, 1);

        for (int64_t period = 2; period <= MIN(MAX_PERIOD, (n - i) / 2); period++) {
            const int64_t repeats = n_repeats(kinds + i, n - i, period);
            if (repeats > 1 && (repeats - 1) * period > (best_repeats - 1) * best)
                best = period, best_repeats = repeats;
        }
        if (i > 0)
            g_string_append(text, ", ");
        if (best_repeats > 1)
            g_string_append_printf(text, INT "*", best_repeats);
        if (best == 1) {
            g_string_append(text, names[kinds[i]]);
        } else {
            g_string_append_c(text, '(');
            write_list(text, kinds + i, best, names);
            g_string_append_c(text, ')');
        }
        i += best * best_repeats;
    }
}

char *
model_pattern_write(const uint8_t *kinds, int64_t n_layers, const char *const *names)
{
    GString *text = g_string_new(NULL);

    write_list(text, kinds, n_layers, names);
    return g_string_free(text, FALSE);
}
