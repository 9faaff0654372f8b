#include "base/json.h"

#include <cjson/cJSON.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_tree.h"
#include "base/text.h"

G_DEFINE_QUARK(json_error, json_error)

static bool
is_type(const JsonValue *value, int type)
{
    return (value->item->type & 0xff) == type;
}

/* --- numbers: from the text, as cJSON rounds them --- */

/* "an integer from 1 to 8", ">= 1", ...; (owned). */
static char *
describe_int64_range(int64_t min, int64_t max)
{
    if (min <= -JSON_MAX_INT && max >= JSON_MAX_INT)
        return g_strdup("an integer");
    if (max >= JSON_MAX_INT)
        return g_strdup_printf("an integer >= %" G_GINT64_FORMAT, min);
    if (min <= -JSON_MAX_INT)
        return g_strdup_printf("an integer <= %" G_GINT64_FORMAT, max);
    return g_strdup_printf("an integer from %" G_GINT64_FORMAT " to %" G_GINT64_FORMAT, min, max);
}

/* Reads a plain integer of at most 2^53; false for anything else. */
static bool
read_integer(const char *literal, int64_t *value)
{
    bool is_negative = *literal == '-';
    const char *p = literal + is_negative;
    int64_t magnitude = 0;

    for (; g_ascii_isdigit(*p); p++) {
        if (magnitude > JSON_MAX_INT / 10)
            return false;
        magnitude = magnitude * 10 + (*p - '0');
    }
    if (*p == '.' || *p == 'e' || *p == 'E' || magnitude > JSON_MAX_INT)
        return false;
    *value = is_negative ? -magnitude : magnitude;
    return true;
}

/* Reads 1e9 and 8.0 too, which are integers to anyone but a type system. */
static bool
read_integral(const char *literal, int64_t *value)
{
    const char *after = literal + (*literal == '-');

    if (read_integer(literal, value))
        return true;
    after += strspn(after, "0123456789");
    if (*after != '.' && *after != 'e' && *after != 'E')
        return false;
    double number = g_ascii_strtod(literal, NULL);
    if (number != nearbyint(number) || fabs(number) >= (double)JSON_MAX_INT)
        return false;
    *value = (int64_t)number;
    return true;
}

/* Records why @value is no integer in the range. */
static void
fail_int64(JsonDoc *doc, const JsonValue *value, int64_t min, int64_t max)
{
    g_autofree char *range = describe_int64_range(min, max);
    g_autofree char *expected = NULL;
    double number = 0;

    if (json_is_number(value))
        number = g_ascii_strtod(doc->text + value->offset, NULL);
    if (number >= (double)JSON_MAX_INT && max >= JSON_MAX_INT)
        expected = g_strdup_printf("%s, at most 2^53", range);
    else if (number <= -(double)JSON_MAX_INT && min <= -JSON_MAX_INT)
        expected = g_strdup_printf("%s, at least -2^53", range);
    json_tree_fail_expected(doc, value, expected != NULL ? expected : range);
}

int64_t
json_value_int64(JsonDoc *doc, const JsonValue *value, int64_t min, int64_t max)
{
    int64_t result;

    g_return_val_if_fail(doc != NULL && value != NULL && min <= max, min);

    if (json_is_number(value) && read_integral(doc->text + value->offset, &result) &&
        result >= min && result <= max)
        return result;
    if (doc->error == NULL)
        fail_int64(doc, value, min, max);
    return min;
}

/* What a failed getter returns: finite and in range. */
static double
harmless_double(double min, double max)
{
    if (min > -DBL_MAX)
        return min;
    return max < 0 ? max : 0;
}

/* "a number > 0", ...; (owned).  The least positive numbers stand for an open bound at 0. */
static char *
describe_double_range(double min, double max)
{
    bool is_open = min == DBL_MIN || min == DBL_TRUE_MIN;
    g_autofree char *low = is_open || !isfinite(min) ? g_strdup("0") : json_format_double(min);
    g_autofree char *high = isfinite(max) ? json_format_double(max) : NULL;
    const char *relation = is_open ? ">" : ">=";

    if (min <= -DBL_MAX && max >= DBL_MAX)
        return g_strdup("a number");
    if (max >= DBL_MAX)
        return g_strdup_printf("a number %s %s", relation, low);
    if (min <= -DBL_MAX)
        return g_strdup_printf("a number <= %s", high);
    if (is_open)
        return g_strdup_printf("a number > 0 and <= %s", high);
    return g_strdup_printf("a number from %s to %s", low, high);
}

double
json_value_double(JsonDoc *doc, const JsonValue *value, double min, double max)
{
    g_autofree char *expected = NULL;

    g_return_val_if_fail(doc != NULL && value != NULL && min <= max, min);

    if (json_is_number(value)) {
        double number = g_ascii_strtod(doc->text + value->offset, NULL);

        if (number >= min && number <= max)
            return number;
    }
    if (doc->error == NULL) {
        expected = describe_double_range(min, max);
        json_tree_fail_expected(doc, value, expected);
    }
    return harmless_double(min, max);
}

/* What getters return after an error; not inside any document. */
static const cJSON empty_object_item = {.type = cJSON_Object};
static const cJSON empty_array_item = {.type = cJSON_Array};
static const JsonValue empty_object = {.item = &empty_object_item, .n_nodes = 1};
static const JsonValue empty_array = {.item = &empty_array_item, .n_nodes = 1};

/* --- the document --- */

const char *
json_doc_name(const JsonDoc *doc)
{
    g_return_val_if_fail(doc != NULL, "");

    return doc->name;
}

const char *
json_doc_format(const JsonDoc *doc)
{
    g_return_val_if_fail(doc != NULL, NULL);

    if (!json_is_object(doc->values))
        return NULL;
    const JsonValue *format = json_tree_find(doc, doc->values, "format");
    return format != NULL && json_is_string(format) ? format->item->valuestring : NULL;
}

bool
json_doc_failed(const JsonDoc *doc)
{
    g_return_val_if_fail(doc != NULL, true);

    return doc->error != NULL;
}

bool
json_doc_finish(JsonDoc *doc, GError **error)
{
    g_return_val_if_fail(doc != NULL, false);

    if (doc->error == NULL)
        return true;
    g_propagate_error(error, g_error_copy(doc->error));
    return false;
}

const JsonValue *
json_doc_root(JsonDoc *doc, const char *format, int64_t version)
{
    g_return_val_if_fail(doc != NULL, &empty_object);

    const JsonValue *root = doc->values;
    if (format == NULL)
        return root;
    if (!json_is_object(root)) {
        json_tree_fail_expected(doc, root, "an object");
        return &empty_object;
    }
    const JsonValue *member = json_tree_ask(doc, root, "format");
    if (member == NULL) {
        json_tree_fail_missing(doc, root, "format");
    } else if (!json_is_string(member) || strcmp(member->item->valuestring, format) != 0) {
        g_autofree char *expected = g_strdup_printf("\"%s\"", format);

        json_tree_fail_expected(doc, member, expected);
    }
    member = json_tree_ask(doc, root, "version");
    if (member == NULL) {
        json_tree_fail_missing(doc, root, "version");
    } else {
        int64_t found = json_value_int64(doc, member, 1, JSON_MAX_INT);

        if (found > version)
            json_fail(doc, member,
                      "version %" G_GINT64_FORMAT
                      " is newer than this program, which reads up to %" G_GINT64_FORMAT,
                      found, version);
    }
    return root;
}

/* --- values --- */

const char *
json_value_string(JsonDoc *doc, const JsonValue *value)
{
    g_return_val_if_fail(doc != NULL && value != NULL, "");

    if (json_is_string(value))
        return value->item->valuestring;
    json_tree_fail_expected(doc, value, "a string");
    return "";
}

static bool
value_bool(JsonDoc *doc, const JsonValue *value)
{
    if (!is_type(value, cJSON_True) && !is_type(value, cJSON_False))
        json_tree_fail_expected(doc, value, "true or false");
    return is_type(value, cJSON_True);
}

/* --- members --- */

/* The member, or NULL with an error. */
static const JsonValue *
require(JsonDoc *doc, const JsonValue *object, const char *key)
{
    const JsonValue *member = json_tree_ask(doc, object, key);

    if (member == NULL)
        json_tree_fail_missing(doc, object, key);
    return member;
}

bool
json_has(const JsonDoc *doc, const JsonValue *object, const char *key)
{
    g_return_val_if_fail(doc != NULL && object != NULL && key != NULL, false);

    return json_is_object(object) && json_tree_find(doc, object, key) != NULL;
}

const JsonValue *
json_member(JsonDoc *doc, const JsonValue *object, const char *key)
{
    return json_tree_ask(doc, object, key);
}

void
json_ignore(JsonDoc *doc, const JsonValue *object, const char *key)
{
    json_tree_ask(doc, object, key);
}

int64_t
json_int64(JsonDoc *doc, const JsonValue *object, const char *key, int64_t min, int64_t max)
{
    const JsonValue *member = require(doc, object, key);

    return member == NULL ? min : json_value_int64(doc, member, min, max);
}

int64_t
json_int64_or(JsonDoc *doc, const JsonValue *object, const char *key, int64_t min, int64_t max,
              int64_t fallback)
{
    const JsonValue *member = json_tree_ask(doc, object, key);

    return member == NULL ? fallback : json_value_int64(doc, member, min, max);
}

double
json_double(JsonDoc *doc, const JsonValue *object, const char *key, double min, double max)
{
    const JsonValue *member = require(doc, object, key);

    return member == NULL ? harmless_double(min, max) : json_value_double(doc, member, min, max);
}

double
json_double_or(JsonDoc *doc, const JsonValue *object, const char *key, double min, double max,
               double fallback)
{
    const JsonValue *member = json_tree_ask(doc, object, key);

    return member == NULL ? fallback : json_value_double(doc, member, min, max);
}

bool
json_bool(JsonDoc *doc, const JsonValue *object, const char *key)
{
    const JsonValue *member = require(doc, object, key);

    return member != NULL && value_bool(doc, member);
}

bool
json_bool_or(JsonDoc *doc, const JsonValue *object, const char *key, bool fallback)
{
    const JsonValue *member = json_tree_ask(doc, object, key);

    return member == NULL ? fallback : value_bool(doc, member);
}

const char *
json_string(JsonDoc *doc, const JsonValue *object, const char *key)
{
    const JsonValue *member = require(doc, object, key);

    return member == NULL ? "" : json_value_string(doc, member);
}

const char *
json_string_or(JsonDoc *doc, const JsonValue *object, const char *key, const char *fallback)
{
    const JsonValue *member = json_tree_ask(doc, object, key);

    return member == NULL ? fallback : json_value_string(doc, member);
}

/* The index of the value in @names; an error and @otherwise when it is none of them. */
static int
value_enum(JsonDoc *doc, const JsonValue *value, const char *const *names, int otherwise)
{
    for (int i = 0; json_is_string(value) && names[i] != NULL; i++) {
        if (strcmp(names[i], value->item->valuestring) == 0)
            return i;
    }
    if (doc->error != NULL)
        return otherwise;
    g_autoptr(GString) expected = g_string_new(NULL);
    for (int i = 0; names[i] != NULL; i++)
        g_string_append_printf(expected, "%s\"%s\"",
                               i == 0                 ? ""
                               : names[i + 1] == NULL ? " or "
                                                      : ", ",
                               names[i]);
    const char *nearest =
        json_is_string(value) ? text_nearest(value->item->valuestring, names) : NULL;
    if (nearest != NULL) {
        g_autofree char *shown = text_escape(value->item->valuestring, 48);

        json_fail(doc, value, "expected %s, got \"%s\"; did you mean \"%s\"?", expected->str, shown,
                  nearest);
    } else {
        json_tree_fail_expected(doc, value, expected->str);
    }
    return otherwise;
}

int
json_enum(JsonDoc *doc, const JsonValue *object, const char *key, const char *const *names)
{
    const JsonValue *member = require(doc, object, key);

    g_return_val_if_fail(names != NULL, 0);

    return member == NULL ? 0 : value_enum(doc, member, names, 0);
}

int
json_enum_or(JsonDoc *doc, const JsonValue *object, const char *key, const char *const *names,
             int fallback)
{
    const JsonValue *member = json_tree_ask(doc, object, key);

    g_return_val_if_fail(names != NULL, fallback);

    return member == NULL ? fallback : value_enum(doc, member, names, fallback);
}

/* @member if it is what was asked for, else @otherwise, with an error unless it is absent. */
static const JsonValue *
accept(JsonDoc *doc, const JsonValue *member, bool is_right, const char *what,
       const JsonValue *otherwise)
{
    if (member != NULL && !is_right)
        json_tree_fail_expected(doc, member, what);
    return is_right ? member : otherwise;
}

const JsonValue *
json_object(JsonDoc *doc, const JsonValue *object, const char *key)
{
    const JsonValue *member = require(doc, object, key);

    return accept(doc, member, json_is_object(member), "an object", &empty_object);
}

const JsonValue *
json_array(JsonDoc *doc, const JsonValue *object, const char *key)
{
    const JsonValue *member = require(doc, object, key);

    return accept(doc, member, json_is_array(member), "an array", &empty_array);
}

const JsonValue *
json_object_or_null(JsonDoc *doc, const JsonValue *object, const char *key)
{
    const JsonValue *member = json_tree_ask(doc, object, key);

    if (json_is_null(member))
        return NULL;
    return accept(doc, member, json_is_object(member), "an object or null", NULL);
}

const JsonValue *
json_array_or_null(JsonDoc *doc, const JsonValue *object, const char *key)
{
    const JsonValue *member = json_tree_ask(doc, object, key);

    if (json_is_null(member))
        return NULL;
    return accept(doc, member, json_is_array(member), "an array or null", NULL);
}

/* --- elements --- */

size_t
json_length(const JsonValue *array)
{
    g_return_val_if_fail(array != NULL, 0);

    return array->n_children;
}

const JsonValue *
json_first(const JsonValue *array)
{
    g_return_val_if_fail(array != NULL, NULL);

    return array->n_children > 0 ? array + 1 : NULL;
}

const JsonValue *
json_next(const JsonValue *value)
{
    g_return_val_if_fail(value != NULL, NULL);

    return value->item->next != NULL ? value + value->n_nodes : NULL;
}

const char *
json_key(const JsonValue *member)
{
    g_return_val_if_fail(member != NULL, NULL);

    return member->item->string;
}

bool
json_is_object(const JsonValue *value)
{
    return value != NULL && is_type(value, cJSON_Object);
}

bool
json_is_array(const JsonValue *value)
{
    return value != NULL && is_type(value, cJSON_Array);
}

bool
json_is_string(const JsonValue *value)
{
    return value != NULL && is_type(value, cJSON_String);
}

bool
json_is_number(const JsonValue *value)
{
    return value != NULL && is_type(value, cJSON_Number);
}

bool
json_is_null(const JsonValue *value)
{
    return value != NULL && is_type(value, cJSON_NULL);
}
