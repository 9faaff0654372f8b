#include "base/json_yaml.h"

#include <stdarg.h>
#include <string.h>
#include <yaml.h>

#include "base/json.h"
#include "base/text.h"

/* A collection that is open: whether it is a mapping, and how many nodes of it there were. */
typedef struct {
    bool is_mapping;
    size_t n_nodes;
} Open;

typedef struct {
    const char *name;
    yaml_parser_t parser;
    GString *json;
    size_t line, column; /* where the next byte of the JSON stands, from 0 */
    GArray *open;        /* of Open, the innermost last */
    size_t n_documents;
    GError *error;
} Conversion;

static void fail(Conversion *c, size_t line, const char *format, ...) G_GNUC_PRINTF(3, 4);

static void
fail(Conversion *c, size_t line, const char *format, ...)
{
    g_autofree char *shown = text_escape(c->name, 200);
    va_list arguments;

    if (c->error != NULL)
        return;
    va_start(arguments, format);
    g_autofree char *message = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    c->error = g_error_new(JSON_ERROR, JSON_ERROR_INVALID, "%s:%zu: %s", shown, line + 1, message);
}

static void
put(Conversion *c, const char *text)
{
    g_string_append(c->json, text);
    c->column += strlen(text);
}

static void
move_to(Conversion *c, const yaml_mark_t *mark)
{
    for (; c->line < mark->line; c->line++, c->column = 0)
        g_string_append_c(c->json, '\n');
    for (; c->column < mark->column && c->line == mark->line; c->column++)
        g_string_append_c(c->json, ' ');
}

/* What JSON has between this node and the one before it. */
static void
separate(Conversion *c, bool is_scalar, const yaml_mark_t *mark)
{
    Open *in = c->open->len == 0 ? NULL : &g_array_index(c->open, Open, c->open->len - 1);
    const bool is_key = in != NULL && in->is_mapping && in->n_nodes % 2 == 0;

    if (is_key && !is_scalar)
        fail(c, mark->line, "a key is a text");
    if (in != NULL && in->n_nodes > 0)
        put(c, is_key || !in->is_mapping ? "," : ":");
    if (in != NULL)
        in->n_nodes++;
    move_to(c, mark);
}

/* Appends @text as a JSON string. */
static void
put_string(Conversion *c, const char *text)
{
    g_autoptr(JsonWriter) writer = json_writer_new_compact();

    json_write_string(writer, NULL, text);
    g_autofree char *quoted = json_writer_steal(writer, NULL);
    put(c, g_strchomp(quoted));
}

static size_t
count_digits(const char *text)
{
    return strspn(text, "0123456789");
}

/* Whether all of @text is a number of JSON. */
static bool
is_number(const char *text)
{
    const char *p = text + (*text == '-');
    size_t n = count_digits(p);

    if (n == 0 || (*p == '0' && n > 1))
        return false;
    p += n;
    if (*p == '.') {
        if ((n = count_digits(p + 1)) == 0)
            return false;
        p += 1 + n;
    }
    if (*p == 'e' || *p == 'E') {
        p += 1 + (p[1] == '+' || p[1] == '-');
        if ((n = count_digits(p)) == 0)
            return false;
        p += n;
    }
    return *p == 0;
}

static void
put_scalar(Conversion *c, const yaml_event_t *event)
{
    static const char *const literals[] = {"true", "false", "null", NULL};
    const char *text = (const char *)event->data.scalar.value;
    const bool is_plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    const Open *in = c->open->len == 0 ? NULL : &g_array_index(c->open, Open, c->open->len - 1);
    const bool is_key = in != NULL && in->is_mapping && in->n_nodes % 2 == 1;
    const bool is_text = !is_plain || is_key;

    if (strlen(text) != event->data.scalar.length)
        fail(c, event->start_mark.line, "a NUL byte");
    else if (event->data.scalar.tag != NULL)
        fail(c, event->start_mark.line, "tags are not known here");
    else if (!is_text && (*text == 0 || strcmp(text, "~") == 0))
        put(c, "null");
    else if (!is_text && (g_strv_contains(literals, text) || is_number(text)))
        put(c, text);
    else
        put_string(c, text);
}

static void
begin(Conversion *c, bool is_mapping, const yaml_mark_t *mark)
{
    const Open open = {is_mapping, 0};

    separate(c, false, mark);
    if (c->open->len >= JSON_MAX_DEPTH)
        fail(c, mark->line, "nested deeper than %d", JSON_MAX_DEPTH);
    put(c, is_mapping ? "{" : "[");
    g_array_append_val(c->open, open);
}

static void
take(Conversion *c, const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        separate(c, true, &event->start_mark);
        put_scalar(c, event);
        return;
    case YAML_MAPPING_START_EVENT:
    case YAML_SEQUENCE_START_EVENT:
        if (event->type == YAML_MAPPING_START_EVENT ? event->data.mapping_start.tag != NULL
                                                    : event->data.sequence_start.tag != NULL)
            fail(c, event->start_mark.line, "tags are not known here");
        begin(c, event->type == YAML_MAPPING_START_EVENT, &event->start_mark);
        return;
    case YAML_MAPPING_END_EVENT:
    case YAML_SEQUENCE_END_EVENT:
        put(c, event->type == YAML_MAPPING_END_EVENT ? "}" : "]");
        g_array_set_size(c->open, c->open->len - 1);
        return;
    case YAML_ALIAS_EVENT:
        fail(c, event->start_mark.line, "anchors and aliases are not followed");
        return;
    case YAML_DOCUMENT_START_EVENT:
        if (++c->n_documents > 1)
            fail(c, event->start_mark.line, "a second document");
        return;
    default:
        return;
    }
}

bool
json_yaml_is_name(const char *path)
{
    g_return_val_if_fail(path != NULL, false);

    return g_str_has_suffix(path, ".yaml") || g_str_has_suffix(path, ".yml");
}

char *
json_yaml_convert(const char *name, const char *text, size_t n_bytes, size_t *n_json,
                  GError **error)
{
    g_return_val_if_fail(name != NULL && text != NULL && n_json != NULL, NULL);

    Conversion c = {.name = name, .json = g_string_new(NULL)};
    yaml_event_type_t type = YAML_NO_EVENT;

    c.open = g_array_new(FALSE, FALSE, sizeof(Open));
    if (yaml_parser_initialize(&c.parser) == 0)
        fail(&c, 0, "out of memory");
    else
        yaml_parser_set_input_string(&c.parser, (const unsigned char *)text, n_bytes);
    while (c.error == NULL && type != YAML_STREAM_END_EVENT) {
        yaml_event_t event;

        if (yaml_parser_parse(&c.parser, &event) == 0) {
            fail(&c, c.parser.problem_mark.line, "no YAML: %s",
                 c.parser.problem == NULL ? "bytes that are no text" : c.parser.problem);
            break;
        }
        type = event.type;
        take(&c, &event);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&c.parser);
    g_array_unref(c.open);
    *n_json = c.json->len;
    char *json = g_string_free(c.json, FALSE);
    if (c.error == NULL)
        return json;
    g_propagate_error(error, c.error);
    g_free(json);
    return NULL;
}
