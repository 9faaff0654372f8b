#include "cli/recipe/layer_list.h"

#include <string.h>

#include "base/units.h"
#include "models/arch.h"

/* Parentheses and brackets within each other. */
#define MAX_DEPTH 8

/* --- reading --- */

/* A number, or a list of numbers. */
typedef struct {
    GByteArray *list; /* (owned, nullable) NULL: a number */
    int64_t number;
} Value;

typedef struct {
    const char *at;
    int depth;
    bool is_wrong;
} Reader;

static Value read_sum(Reader *reader);

static void
clear(Value *value)
{
    g_clear_pointer(&value->list, g_byte_array_unref);
}

/* Blanks, and quotes of YAML or a shell, mean nothing. */
static void
skip(Reader *reader)
{
    reader->at += strspn(reader->at, " '\"");
}

/* Takes @letter, if it is the next one. */
static bool
take(Reader *reader, char letter)
{
    skip(reader);
    if (*reader->at != letter)
        return false;
    reader->at++;
    return true;
}

static Value
read_list(Reader *reader)
{
    Value result = {.list = g_byte_array_new()};

    if (take(reader, ']'))
        return result;
    do {
        Value item = read_sum(reader);
        const uint8_t byte = item.number != 0;
        reader->is_wrong |= item.list != NULL || result.list->len >= MODEL_MAX_LAYERS;
        clear(&item);
        g_byte_array_append(result.list, &byte, 1);
    } while (!reader->is_wrong && take(reader, ','));
    reader->is_wrong |= !take(reader, ']');
    return result;
}

static Value
read_factor(Reader *reader)
{
    Value result = {0};

    if (take(reader, '[')) {
        reader->is_wrong |= ++reader->depth > MAX_DEPTH;
        if (!reader->is_wrong)
            result = read_list(reader);
        reader->depth--;
    } else if (take(reader, '(')) {
        reader->is_wrong |= ++reader->depth > MAX_DEPTH;
        if (!reader->is_wrong)
            result = read_sum(reader);
        reader->is_wrong |= !take(reader, ')');
        reader->depth--;
    } else {
        skip(reader);
        reader->is_wrong |= !g_ascii_isdigit(*reader->at);
        for (; g_ascii_isdigit(*reader->at); reader->at++)
            result.number = MIN(result.number * 10 + (*reader->at - '0'), MODEL_MAX_LAYERS + 1);
    }
    return result;
}

/* @list @times times. */
static void
repeat(Reader *reader, Value *value, int64_t times)
{
    const guint n = value->list->len;

    reader->is_wrong |= n > 0 && times > MODEL_MAX_LAYERS / n;
    if (reader->is_wrong)
        return;
    g_byte_array_set_size(value->list, n * (guint)times);
    for (int64_t i = 1; i < times; i++)
        memcpy(value->list->data + n * (size_t)i, value->list->data, n);
}

static Value
read_product(Reader *reader)
{
    Value result = read_factor(reader);

    while (!reader->is_wrong && take(reader, '*')) {
        Value other = read_factor(reader);
        reader->is_wrong |= result.list != NULL && other.list != NULL;
        if (reader->is_wrong) {
            clear(&other);
        } else if (result.list != NULL || other.list != NULL) {
            const int64_t times = result.list != NULL ? other.number : result.number;
            if (other.list != NULL)
                result = other;
            repeat(reader, &result, times);
        } else {
            result.number = MIN(result.number * other.number, MODEL_MAX_LAYERS + 1);
        }
    }
    return result;
}

static Value
read_sum(Reader *reader)
{
    Value result = read_product(reader);

    while (!reader->is_wrong && take(reader, '+')) {
        Value other = read_product(reader);
        reader->is_wrong |= (result.list == NULL) != (other.list == NULL);
        if (!reader->is_wrong && result.list != NULL) {
            reader->is_wrong |= result.list->len + other.list->len > MODEL_MAX_LAYERS;
            g_byte_array_append(result.list, other.list->data, other.list->len);
        } else {
            result.number = MIN(result.number + other.number, MODEL_MAX_LAYERS + 1);
        }
        clear(&other);
    }
    return result;
}

uint8_t *
layer_list_read(const char *text, int64_t n_layers, LayerListEvery every)
{
    Reader reader = {.at = text};
    Value value = read_sum(&reader);

    skip(&reader);
    if (reader.is_wrong || *reader.at != 0 ||
        (value.list == NULL ? value.number < 1 : value.list->len != n_layers)) {
        clear(&value);
        return NULL;
    }
    if (value.list != NULL)
        return g_byte_array_free(value.list, FALSE);
    uint8_t *layers = g_new(uint8_t, (size_t)n_layers);
    for (int64_t i = 0; i < n_layers; i++)
        layers[i] = ((every.first + i) % value.number == 0) == every.value;
    return layers;
}

/* --- writing --- */

/* The fewest layers that the list repeats. */
static int64_t
period_of(const uint8_t *values, int64_t n)
{
    for (int64_t period = 1; 2 * period <= n; period++)
        if (n % period == 0 && memcmp(values, values + period, (size_t)(n - period)) == 0)
            return period;
    return n;
}

char *
layer_list_write(const uint8_t *values, int64_t n)
{
    GString *text = g_string_new("(");
    const int64_t period = period_of(values, n);

    for (int64_t i = 0, end; i < period; i = end) {
        for (end = i + 1; end < period && values[end] == values[i];)
            end++;
        g_string_append_printf(text, "%s[%d]", i > 0 ? "+" : "", values[i]);
        if (end > i + 1)
            g_string_append_printf(text, "*" INT, end - i);
    }
    g_string_append_c(text, ')');
    if (period < n)
        g_string_append_printf(text, "*" INT, n / period);
    return g_string_free(text, FALSE);
}
