#include "base/json_path.h"

#include <stdbool.h>
#include <string.h>

#include "base/json.h"
#include "base/text.h"

#define MAX_KEY_BYTES 64
#define MAX_MESSAGE_BYTES 2000
/* Of a longer path the ends are shown. */
#define MAX_PATH_BYTES 240
#define PATH_HEAD_BYTES 80
#define PATH_TAIL_BYTES 120

void
json_path_append_key(GString *path, const char *key, size_t n_bytes)
{
    g_autofree char *copy = g_strndup(key, n_bytes);
    g_autofree char *shown = text_escape(copy, MAX_KEY_BYTES);
    bool is_word = g_ascii_isalpha(*copy) || *copy == '_';

    for (const char *p = copy; *p != 0 && is_word; p++)
        is_word = g_ascii_isalnum(*p) || *p == '_' || *p == '-';
    if (is_word)
        g_string_append_printf(path, ".%s", shown);
    else
        g_string_append_printf(path, "[\"%s\"]", shown);
}

void
json_path_locate(const char *text, size_t offset, size_t *line, size_t *column)
{
    *line = 1;
    *column = 1;
    for (size_t i = 0; i < offset; i++) {
        if (text[i] == '\n') {
            ++*line;
            *column = 1;
        } else if (((unsigned char)text[i] & 0xc0) != 0x80) {
            ++*column;
        }
    }
}

/* Returns: (owned) @path, or its two ends. */
static char *
shorten(const char *path)
{
    size_t n = strlen(path);
    size_t head = PATH_HEAD_BYTES;
    size_t tail = n - PATH_TAIL_BYTES;

    if (n <= MAX_PATH_BYTES)
        return g_strdup(path);
    while (((unsigned char)path[head] & 0xc0) == 0x80)
        head--;
    while (((unsigned char)path[tail] & 0xc0) == 0x80)
        tail++;
    return g_strdup_printf("%.*s...%s", (int)head, path, path + tail);
}

GError *
json_path_error(const char *name, const char *text, size_t offset, const char *path,
                const char *message)
{
    g_autofree char *shown_name = text_escape(name, MAX_MESSAGE_BYTES);
    g_autofree char *shown_path = shorten(path);
    g_autofree char *shown = text_escape(message, MAX_MESSAGE_BYTES);
    size_t line;
    size_t column;

    json_path_locate(text, offset, &line, &column);
    return g_error_new(JSON_ERROR, JSON_ERROR_INVALID, "%s:%zu:%zu: %s: %s", shown_name, line,
                       column, shown_path, shown);
}
