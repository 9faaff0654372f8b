#include "cli/recipe/syntax.h"

#include <string.h>
#include <yaml.h>

#include "base/json.h"
#include "base/text.h"

/* (owned) "outer.key", or @key alone. */
static char *
join(const char *outer, const char *key)
{
    return outer[0] == 0 ? g_strdup(key) : g_strconcat(outer, ".", key, NULL);
}

/* Adds @word to the words of an array. */
static void
add_word(GString *words, const char *word)
{
    g_string_append_printf(words, "%s%s", words->len > 0 ? " " : "", word);
}

/* --- JSON --- */

static char *
json_text(JsonDoc *doc, const JsonValue *object, const JsonValue *value)
{
    if (json_is_string(value))
        return g_strdup(json_value_string(doc, value));
    if (json_is_number(value))
        return json_format_double(json_value_double(doc, value, -G_MAXDOUBLE, G_MAXDOUBLE));
    if (json_is_null(value) || object == NULL || json_key(value) == NULL)
        return g_strdup("null");
    return g_strdup(json_bool(doc, object, json_key(value)) ? "true" : "false");
}

static void
add_json(RecipeSettings *settings, JsonDoc *doc, const JsonValue *object, const char *path)
{
    for (const JsonValue *v = json_first(object); v != NULL; v = json_next(v)) {
        g_autofree char *key = join(path, json_key(v));

        if (json_is_object(v)) {
            add_json(settings, doc, v, key);
        } else if (json_is_array(v)) {
            g_autoptr(GString) words = g_string_new(NULL);
            for (const JsonValue *e = json_first(v); e != NULL; e = json_next(e)) {
                g_autofree char *text = json_is_object(e) || json_is_array(e)
                                            ? g_strdup("...")
                                            : json_text(doc, NULL, e);
                add_word(words, text);
            }
            recipe_settings_add(settings, key, words->str, 0);
        } else {
            g_autofree char *text = json_text(doc, object, v);
            recipe_settings_add(settings, key, text, 0);
        }
    }
}

void
recipe_read_json(RecipeSettings *settings, const char *text, size_t n_bytes)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(JsonDoc) doc = json_doc_parse(settings->path, text, n_bytes, &error);

    if (doc != NULL)
        add_json(settings, doc, json_doc_root(doc, NULL, 0), "");
    if (doc != NULL)
        json_doc_finish(doc, &error);
    if (error != NULL && settings->error == NULL)
        settings->error = g_steal_pointer(&error);
}

/* --- YAML --- */

typedef struct {
    RecipeSettings *settings;
    yaml_parser_t parser;
    yaml_event_t event;
    bool has_event;
    int depth;
} Yaml;

/* The next event; false at an error, which is recorded. */
static bool
next(Yaml *yaml)
{
    if (yaml->has_event)
        yaml_event_delete(&yaml->event);
    yaml->has_event = false;
    if (yaml->settings->error != NULL)
        return false;
    if (yaml_parser_parse(&yaml->parser, &yaml->event) == 0) {
        recipe_fail(yaml->settings, NULL, "line %zu: no YAML: %s",
                    yaml->parser.problem_mark.line + 1,
                    yaml->parser.problem == NULL ? "bytes that are no text" : yaml->parser.problem);
        return false;
    }
    yaml->has_event = true;
    return true;
}

static const char *
scalar(const Yaml *yaml)
{
    return (const char *)yaml->event.data.scalar.value;
}

/* Adds the value that the current event begins.  @words  (nullable) of an array around it. */
static void
add_yaml(Yaml *yaml, const char *path, GString *words)
{
    const int line = (int)yaml->event.start_mark.line + 1;

    if (++yaml->depth > RECIPE_MAX_DEPTH) {
        recipe_fail(yaml->settings, NULL, "line %d: nested deeper than %d", line, RECIPE_MAX_DEPTH);
        return;
    }
    if (yaml->event.type == YAML_SCALAR_EVENT && words != NULL) {
        add_word(words, scalar(yaml));
    } else if (yaml->event.type == YAML_SCALAR_EVENT) {
        recipe_settings_add(yaml->settings, path, scalar(yaml), line);
    } else if (yaml->event.type == YAML_SEQUENCE_START_EVENT) {
        g_autoptr(GString) inner = g_string_new(NULL);
        while (next(yaml) && yaml->event.type != YAML_SEQUENCE_END_EVENT)
            add_yaml(yaml, path, inner);
        if (words == NULL)
            recipe_settings_add(yaml->settings, path, inner->str, line);
    } else if (yaml->event.type == YAML_MAPPING_START_EVENT) {
        while (next(yaml) && yaml->event.type != YAML_MAPPING_END_EVENT) {
            if (yaml->event.type != YAML_SCALAR_EVENT) {
                recipe_fail(yaml->settings, NULL, "line %zu: a key is a text",
                            yaml->event.start_mark.line + 1);
                break;
            }
            g_autofree char *key = join(path, scalar(yaml));
            if (next(yaml))
                add_yaml(yaml, key, NULL);
        }
    } else if (yaml->event.type == YAML_ALIAS_EVENT) {
        recipe_fail(yaml->settings, NULL, "line %d: anchors and aliases are not followed", line);
    }
    yaml->depth--;
}

void
recipe_read_yaml(RecipeSettings *settings, const char *text, size_t n_bytes)
{
    Yaml yaml = {.settings = settings};

    if (yaml_parser_initialize(&yaml.parser) == 0)
        g_error("failed to allocate a YAML parser");
    yaml_parser_set_input_string(&yaml.parser, (const unsigned char *)text, n_bytes);
    while (next(&yaml) && yaml.event.type != YAML_DOCUMENT_END_EVENT &&
           yaml.event.type != YAML_STREAM_END_EVENT)
        if (yaml.event.type != YAML_STREAM_START_EVENT &&
            yaml.event.type != YAML_DOCUMENT_START_EVENT)
            add_yaml(&yaml, "", NULL);
    if (yaml.has_event)
        yaml_event_delete(&yaml.event);
    yaml_parser_delete(&yaml.parser);
}

/* --- TOML --- */

typedef struct {
    RecipeSettings *settings;
    const char *p;
    int line, depth;
} Toml;

/* Skips blanks and comments; with @lines ends of lines, too. */
static void
skip(Toml *toml, bool lines)
{
    for (;; toml->p++) {
        if (*toml->p == '#')
            toml->p += strcspn(toml->p, "\n");
        if (*toml->p == '\n' && lines)
            toml->line++;
        else if (*toml->p != ' ' && *toml->p != '\t' && *toml->p != '\r')
            return;
    }
}

static void
toml_fail(const Toml *toml, const char *expected)
{
    g_autofree char *there = text_escape(toml->p, 20);

    recipe_fail(toml->settings, NULL, "line %d: no TOML: expected %s, got \"%s\"", toml->line,
                expected, there);
}

/* (owned) a string in quotes of any kind. */
static char *
toml_string(Toml *toml)
{
    const char quote = *toml->p;
    const size_t n = toml->p[1] == quote && toml->p[2] == quote ? 3 : 1;
    GString *text = g_string_new(NULL);

    toml->p += n;
    while (*toml->p != 0 &&
           !(*toml->p == quote && (n == 1 || (toml->p[1] == quote && toml->p[2] == quote)))) {
        if (*toml->p == '\n' && n == 1)
            break;
        toml->line += *toml->p == '\n';
        if (*toml->p == '\\' && quote == '"' && toml->p[1] != 0) {
            const char *escapes = "nt\"\\", *found = strchr(escapes, *++toml->p);
            g_string_append_c(text, found == NULL ? *toml->p++ : "\n\t\"\\"[found - escapes]);
            toml->p += found != NULL;
        } else {
            g_string_append_c(text, *toml->p++);
        }
    }
    if (*toml->p != quote)
        toml_fail(toml, "the end of a string");
    else
        toml->p += n;
    return g_string_free(text, FALSE);
}

/* (owned) a key with its dots, behind @path. */
static char *
toml_key(Toml *toml, const char *path)
{
    g_autoptr(GString) key = g_string_new(path);

    do {
        toml->p += *toml->p == '.';
        skip(toml, false);
        g_autofree char *part = NULL;
        if (*toml->p == '"' || *toml->p == '\'') {
            part = toml_string(toml);
        } else {
            const char *begin = toml->p;
            while (g_ascii_isalnum(*toml->p) || *toml->p == '_' || *toml->p == '-')
                toml->p++;
            part = g_strndup(begin, (size_t)(toml->p - begin));
        }
        if (part[0] == 0)
            toml_fail(toml, "a key");
        g_string_append_printf(key, "%s%s", key->len > 0 ? "." : "", part);
        skip(toml, false);
    } while (*toml->p == '.' && toml->settings->error == NULL);
    return g_string_free(g_steal_pointer(&key), FALSE);
}

static void toml_pair(Toml *toml, const char *path);

/* Adds the value at the place; @words (nullable) of an array around it. */
static void
toml_value(Toml *toml, const char *key, GString *words)
{
    const int line = toml->line;

    if (++toml->depth > RECIPE_MAX_DEPTH) {
        recipe_fail(toml->settings, NULL, "line %d: nested deeper than %d", line, RECIPE_MAX_DEPTH);
    } else if (*toml->p == '[') {
        g_autoptr(GString) inner = g_string_new(NULL);
        toml->p++;
        for (skip(toml, true); *toml->p != ']' && toml->settings->error == NULL; skip(toml, true)) {
            toml_value(toml, key, inner);
            skip(toml, true);
            if (*toml->p == ',')
                toml->p++;
            else if (*toml->p != ']')
                toml_fail(toml, "a comma or the end of an array");
        }
        toml->p += *toml->p == ']';
        if (words != NULL) /* an array in an array */
            g_string_append_printf(words, "%s[%s]", words->len > 0 ? " " : "", inner->str);
        else
            recipe_settings_add(toml->settings, key, inner->str, line);
    } else if (*toml->p == '{') {
        toml->p++;
        for (skip(toml, false); *toml->p != '}' && toml->settings->error == NULL;
             skip(toml, false)) {
            toml_pair(toml, key);
            if (*toml->p == ',')
                toml->p++;
            else if (*toml->p != '}')
                toml_fail(toml, "a comma or the end of a table");
        }
        toml->p += *toml->p == '}';
    } else {
        g_autofree char *text = NULL;
        if (*toml->p == '"' || *toml->p == '\'') {
            text = toml_string(toml);
        } else {
            const char *begin = toml->p;
            toml->p += strcspn(toml->p, " \t\r\n,]}#");
            text = g_strndup(begin, (size_t)(toml->p - begin));
            if (text[0] == 0)
                toml_fail(toml, "a value");
        }
        if (words != NULL)
            add_word(words, text);
        else
            recipe_settings_add(toml->settings, key, text, line);
    }
    toml->depth--;
}

/* "key = value" and the blanks behind it. */
static void
toml_pair(Toml *toml, const char *path)
{
    g_autofree char *key = toml_key(toml, path);

    if (*toml->p != '=') {
        toml_fail(toml, "=");
        return;
    }
    toml->p++;
    skip(toml, false);
    toml_value(toml, key, NULL);
    skip(toml, false);
}

void
recipe_read_toml(RecipeSettings *settings, const char *text, size_t n_bytes)
{
    Toml toml = {.settings = settings, .p = text, .line = 1};
    g_autofree char *table = g_strdup("");

    if (strlen(text) != n_bytes)
        recipe_fail(settings, NULL, "no TOML: it has a byte 0");
    for (skip(&toml, true); *toml.p != 0 && settings->error == NULL; skip(&toml, true)) {
        if (*toml.p == '[') {
            const bool is_array = toml.p[1] == '[';
            toml.p += is_array ? 2 : 1;
            g_free(table);
            table = toml_key(&toml, "");
            if (*toml.p != ']' || (is_array && toml.p[1] != ']'))
                toml_fail(&toml, "]");
            else
                toml.p += is_array ? 2 : 1;
            skip(&toml, false);
        } else {
            toml_pair(&toml, table);
        }
        if (*toml.p != '\n' && *toml.p != 0 && settings->error == NULL)
            toml_fail(&toml, "the end of the line");
    }
}
