#include "base/json_scan.h"

#include <math.h>
#include <string.h>

#include "base/text.h"

/* --- how messages say where something is --- */

#define MAX_KEY_BYTES 64
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
    g_autofree char *shown_name = text_escape(name, JSON_MAX_MESSAGE_BYTES);
    g_autofree char *shown_path = shorten(path);
    g_autofree char *shown = text_escape(message, JSON_MAX_MESSAGE_BYTES);
    size_t line;
    size_t column;

    json_path_locate(text, offset, &line, &column);
    return g_error_new(JSON_ERROR, JSON_ERROR_INVALID, "%s:%zu:%zu: %s: %s", shown_name, line,
                       column, shown_path, shown);
}

/* --- the scan --- */

/* Where a scan is inside one container; the frames together are the path. */
typedef struct {
    bool is_object;
    bool has_child; /* key or index is that of the child being scanned */
    uint32_t index;
    size_t key; /* offset and length of the raw key, without quotes */
    size_t n_key;
} Frame;

typedef struct {
    const char *text;
    const char *end;
    const char *at;
    const char *bad_utf8; /* the first byte that is not UTF-8; or end */
    JsonScan *out;
    size_t capacity; /* of out->values */
    Frame frames[JSON_MAX_DEPTH];
    unsigned depth;
} Scanner;

static bool scan_value(Scanner *s, uint32_t parent, uint32_t key_offset);

static char *
path_of_frames(const Scanner *s)
{
    GString *path = g_string_new("$");

    for (unsigned i = 0; i < s->depth; i++) {
        const Frame *f = &s->frames[i];

        if (!f->has_child)
            break;
        if (f->is_object)
            json_path_append_key(path, s->text + f->key, f->n_key);
        else
            g_string_append_printf(path, "[%u]", f->index);
    }
    return g_string_free(path, FALSE);
}

/* Always false, so that callers can return it. */
static bool G_GNUC_PRINTF(3, 4) fail(Scanner *s, const char *at, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    s->out->fault = g_strdup_vprintf(format, args);
    va_end(args);
    s->out->fault_offset = (size_t)(at - s->text);
    s->out->fault_path = path_of_frames(s);
    return false;
}

/* Returns: (owned) what stands at @at, for a message. */
static char *
found(const Scanner *s, const char *at)
{
    size_t n = 0;

    if (at >= s->end)
        return g_strdup("the end of the file");
    while (n < 20 && at + n < s->bad_utf8 && (g_ascii_isalnum(at[n]) || at[n] == '_'))
        n++;
    if (n == 0 && at < s->bad_utf8)
        n = (size_t)(g_utf8_next_char(at) - at);
    if (n == 0 || g_ascii_iscntrl(*at))
        return g_strdup_printf("byte 0x%02x", (unsigned)(unsigned char)*at);
    return g_strdup_printf(*at == '\'' ? "%.*s" : "'%.*s'", (int)n, at);
}

static void
skip_space(Scanner *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r'))
        s->at++;
}

static bool
starts_with(const Scanner *s, const char *word)
{
    size_t n = strlen(word);

    return (size_t)(s->end - s->at) >= n && memcmp(s->at, word, n) == 0;
}

/* Explains what is no JSON by what its author may have meant; "expected WHAT, got ..." otherwise.
 */
static bool
fail_expected(Scanner *s, const char *what)
{
    g_autofree char *got = found(s, s->at);

    if (starts_with(s, "//") || starts_with(s, "/*") || starts_with(s, "#"))
        return fail(s, s->at, "JSON has no comments");
    if (starts_with(s, "'"))
        return fail(s, s->at, "strings need double quotes");
    return fail(s, s->at, "expected %s, got %s", what, got);
}

static bool
fail_no_value(Scanner *s)
{
    static const char *const non_finite[] = {"NaN",  "Infinity", "-Infinity", "-NaN", "nan",
                                             "-nan", "inf",      "-inf",      "Inf",  "-Inf"};
    static const struct {
        const char *is;
        const char *should_be;
    } words[] = {{"True", "true"},   {"False", "false"},    {"None", "null"}, {"TRUE", "true"},
                 {"FALSE", "false"}, {"undefined", "null"}, {"NULL", "null"}};

    for (size_t i = 0; i < G_N_ELEMENTS(non_finite); i++) {
        if (starts_with(s, non_finite[i]))
            return fail(s, s->at,
                        "%s is not JSON; Python's json module writes it unless told "
                        "allow_nan=False",
                        non_finite[i]);
    }
    for (size_t i = 0; i < G_N_ELEMENTS(words); i++) {
        if (starts_with(s, words[i].is))
            return fail(s, s->at, "%s is not JSON; write %s", words[i].is, words[i].should_be);
    }
    if (starts_with(s, "+"))
        return fail(s, s->at, "a number must not begin with +");
    if (starts_with(s, ".") || starts_with(s, "-."))
        return fail(s, s->at, "a number needs digits before the point");
    return fail_expected(s, "a value");
}

/* --- strings --- */

/* Reads four hexadecimal digits; -1 when there are none. */
static int
scan_hex4(const Scanner *s, const char *at)
{
    int code = 0;

    if (s->end - at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        if (!g_ascii_isxdigit(at[i]))
            return -1;
        code = code * 16 + g_ascii_xdigit_value(at[i]);
    }
    return code;
}

/* At the backslash of \uXXXX; moves past it, and past the second half of a pair. */
static bool
scan_unicode_escape(Scanner *s)
{
    int code = scan_hex4(s, s->at + 2);
    int low = -1;

    if (code < 0)
        return fail(s, s->at, "\\u needs four hexadecimal digits");
    if (code == 0)
        return fail(s, s->at, "\\u0000 is not accepted in strings");
    if (code >= 0xd800 && code <= 0xdbff && s->end - s->at >= 12 && s->at[6] == '\\' &&
        s->at[7] == 'u')
        low = scan_hex4(s, s->at + 8);
    if (code >= 0xd800 && code <= 0xdfff && !(low >= 0xdc00 && low <= 0xdfff))
        return fail(s, s->at, "\\u%04x is half of a surrogate pair", (unsigned)code);
    s->at += low >= 0 ? 12 : 6;
    return true;
}

static bool
scan_escape(Scanner *s)
{
    if (s->end - s->at < 2)
        return fail(s, s->end, "the file ends inside a string");
    if (s->at[1] == 'u')
        return scan_unicode_escape(s);
    if (strchr("\"\\/bfnrt", s->at[1]) == NULL || s->at[1] == 0) {
        g_autofree char *what = found(s, s->at + 1);

        return fail(s, s->at, "a backslash before %s; write \\\\ for a backslash", what);
    }
    s->at += 2;
    return true;
}

/* At the opening quote; moves past the closing one. */
static bool
scan_string(Scanner *s)
{
    s->at++;
    for (;;) {
        while (s->at < s->bad_utf8 && *s->at != '"' && *s->at != '\\' &&
               (unsigned char)*s->at >= 0x20)
            s->at++;
        if (s->at >= s->end)
            return fail(s, s->end, "the file ends inside a string");
        unsigned char c = (unsigned char)*s->at;
        if (c == 0)
            return fail(s, s->at, "NUL byte in a string");
        if (c < 0x20)
            return fail(s, s->at, "control character 0x%02x in a string; write \\u%04x", c, c);
        if (s->at == s->bad_utf8)
            return fail(s, s->at, "byte 0x%02x is not UTF-8", c);
        if (c == '"') {
            s->at++;
            return true;
        }
        if (!scan_escape(s))
            return false;
    }
}

/* --- numbers --- */

size_t
json_scan_number_length(const char *number)
{
    return strspn(number, "+-.0123456789eE");
}

static void
skip_digits(Scanner *s)
{
    while (s->at < s->end && g_ascii_isdigit(*s->at))
        s->at++;
}

/* Whether the number from @start to here is finite; only long or exponential ones can be otherwise.
 */
static bool
check_range(Scanner *s, const char *start, bool has_exponent)
{
    size_t n = (size_t)(s->at - start);

    if (n > JSON_SCAN_LONG_NUMBER)
        s->out->n_long_numbers++;
    if ((has_exponent || n > 300) && !isfinite(g_ascii_strtod(start, NULL))) {
        int shown = (int)MIN(n, 40);

        return fail(s, start, "number %.*s%s is outside the range of a double", shown, start,
                    n > 40 ? "..." : "");
    }
    return true;
}

static bool
scan_number(Scanner *s)
{
    const char *start = s->at;
    bool has_exponent = false;

    if (*s->at == '-')
        s->at++;
    if (s->at >= s->end || !g_ascii_isdigit(*s->at)) {
        s->at = start;
        return fail_no_value(s);
    }
    if (*s->at == '0' && s->end - s->at > 1 && g_ascii_isdigit(s->at[1]))
        return fail(s, start, "a number must not begin with 0");
    if (*s->at == '0' && s->end - s->at > 1 && (s->at[1] | 0x20) == 'x')
        return fail(s, start, "hexadecimal numbers are not JSON");
    skip_digits(s);
    if (s->at < s->end && *s->at == '.') {
        s->at++;
        if (s->at >= s->end || !g_ascii_isdigit(*s->at))
            return fail(s, s->at, "a number needs digits after the point");
        skip_digits(s);
    }
    if (s->at < s->end && (*s->at == 'e' || *s->at == 'E')) {
        has_exponent = true;
        s->at++;
        if (s->at < s->end && (*s->at == '+' || *s->at == '-'))
            s->at++;
        if (s->at >= s->end || !g_ascii_isdigit(*s->at))
            return fail(s, s->at, "a number needs digits in its exponent");
        skip_digits(s);
    }
    return check_range(s, start, has_exponent);
}

/* --- containers --- */

static bool
scan_key(Scanner *s, Frame *frame, uint32_t *key_offset)
{
    const char *start = s->at;

    if (s->at < s->end && *s->at == '}')
        return fail(s, s->at, "a comma before the closing }");
    if (s->at >= s->end || *s->at != '"')
        return fail_expected(s, "a key in double quotes");
    if (!scan_string(s))
        return false;
    *key_offset = (uint32_t)(start - s->text);
    frame->key = (size_t)(start + 1 - s->text);
    frame->n_key = (size_t)(s->at - start - 2);
    skip_space(s);
    if (s->at >= s->end || *s->at != ':')
        return fail_expected(s, "':' after a key");
    s->at++;
    skip_space(s);
    frame->has_child = true;
    return true;
}

/* After a child: moves past the comma, or past the end of the container, and says which. */
static bool
scan_separator(Scanner *s, char closing, bool *is_end)
{
    skip_space(s);
    if (s->at < s->end && *s->at == closing) {
        s->at++;
        *is_end = true;
        return true;
    }
    if (s->at >= s->end || *s->at != ',')
        return fail_expected(s, closing == '}' ? "',' or '}'" : "',' or ']'");
    s->at++;
    skip_space(s);
    *is_end = false;
    return true;
}

/* At the opening bracket of value number @self. */
static bool
scan_container(Scanner *s, uint32_t self)
{
    bool is_object = *s->at == '{';
    char closing = is_object ? '}' : ']';
    Frame *frame = &s->frames[s->depth];
    bool is_end = false;

    if (s->depth == JSON_MAX_DEPTH)
        return fail(s, s->at, "nested more than %d deep", JSON_MAX_DEPTH);
    *frame = (Frame){.is_object = is_object};
    s->depth++;
    s->at++;
    skip_space(s);
    if (s->at < s->end && *s->at == closing) {
        s->at++;
        is_end = true;
    }
    while (!is_end) {
        uint32_t key_offset = JSON_SCAN_NO_KEY;

        frame->has_child = !is_object;
        if (is_object && !scan_key(s, frame, &key_offset))
            return false;
        if (!is_object && frame->index > 0 && s->at < s->end && *s->at == ']') {
            frame->has_child = false;
            return fail(s, s->at, "a comma before the closing ]");
        }
        if (!scan_value(s, self, key_offset))
            return false;
        s->out->values[self].n_children++;
        frame->has_child = false;
        if (!scan_separator(s, closing, &is_end))
            return false;
        frame->index++;
    }
    s->depth--;
    return true;
}

static bool
scan_literal(Scanner *s)
{
    static const char *const literals[] = {"true", "false", "null"};

    for (size_t i = 0; i < G_N_ELEMENTS(literals); i++) {
        size_t n = strlen(literals[i]);

        if (starts_with(s, literals[i]) && !g_ascii_isalnum(s->at[n]) && s->at[n] != '_') {
            s->at += n;
            return true;
        }
    }
    return fail_no_value(s);
}

static bool
add_value(Scanner *s, uint32_t parent, uint32_t key_offset)
{
    JsonScan *out = s->out;

    if (out->n_values == JSON_MAX_VALUES)
        return fail(s, s->at, "more than %d values", JSON_MAX_VALUES);
    if (out->n_values == s->capacity) {
        size_t capacity = s->capacity == 0 ? 64 : s->capacity * 2;
        JsonValue *moved = g_try_realloc_n(out->values, capacity, sizeof(JsonValue));

        if (moved == NULL) {
            out->lacks_memory = true;
            return fail(s, s->at, "out of memory after %zu values", out->n_values);
        }
        out->values = moved;
        s->capacity = capacity;
    }
    out->values[out->n_values] = (JsonValue){
        .offset = (uint32_t)(s->at - s->text),
        .key_offset = key_offset,
        .up = (uint32_t)out->n_values - parent,
    };
    out->n_values++;
    return true;
}

/* @parent  the index of the container; 0 for the outermost value, which is its own. */
static bool
scan_value(Scanner *s, uint32_t parent, uint32_t key_offset)
{
    uint32_t self = (uint32_t)s->out->n_values;
    bool ok;

    if (s->at >= s->end || s->at == s->bad_utf8)
        return fail_no_value(s);
    if (!add_value(s, parent, key_offset))
        return false;
    if (*s->at == '{' || *s->at == '[')
        ok = scan_container(s, self);
    else if (*s->at == '"')
        ok = scan_string(s);
    else if (*s->at == '-' || g_ascii_isdigit(*s->at))
        ok = scan_number(s);
    else
        ok = scan_literal(s);
    if (ok)
        s->out->values[self].n_nodes = (uint32_t)s->out->n_values - self;
    return ok;
}

/* By its mark, or since every other byte is zero as in all JSON of ASCII. */
static bool
looks_like_utf16(const char *text, size_t n)
{
    if (n >= 2 && (memcmp(text, "\xff\xfe", 2) == 0 || memcmp(text, "\xfe\xff", 2) == 0))
        return true;
    return n >= 4 && n % 2 == 0 && (text[0] == 0) != (text[1] == 0) &&
           (text[0] == 0) == (text[2] == 0) && (text[1] == 0) == (text[3] == 0);
}

/* What a text editor or a shell may have put first. */
static bool
check_start(Scanner *s)
{
    size_t n = (size_t)(s->end - s->text);

    if (n > JSON_MAX_BYTES)
        return fail(s, s->text, "larger than the limit of %u bytes", JSON_MAX_BYTES);
    if (n >= 3 && memcmp(s->text, "\xef\xbb\xbf", 3) == 0)
        return fail(s, s->text, "begins with a byte order mark; save it as UTF-8 without one");
    if (looks_like_utf16(s->text, n))
        return fail(s, s->text, "looks like UTF-16; save it as UTF-8");
    skip_space(s);
    if (s->at == s->end)
        return fail(s, s->text, "empty; expected a JSON value");
    return true;
}

bool
json_scan(JsonScan *scan, const char *text, size_t n_bytes)
{
    Scanner s = {.text = text, .end = text + n_bytes, .at = text, .out = scan};

    *scan = (JsonScan){0};
    if (!check_start(&s))
        return false;
    g_utf8_validate_len(text, n_bytes, &s.bad_utf8);
    if (!scan_value(&s, 0, JSON_SCAN_NO_KEY))
        return false;
    skip_space(&s);
    return s.at == s.end || fail_expected(&s, "the end of the file");
}

void
json_scan_clear(JsonScan *scan)
{
    g_clear_pointer(&scan->values, g_free);
    g_clear_pointer(&scan->fault_path, g_free);
    g_clear_pointer(&scan->fault, g_free);
}
