#include "base/units.h"

#include <math.h>
#include <string.h>

#include "base/text.h"

G_DEFINE_QUARK(units_error, units_error)

/* A product of Decimal.digits (< 10^19) and Unit.factor (<= 2^60). */
__extension__ typedef unsigned __int128 Wide;

/* A number as written: digits * 10^exponent, exact. */
typedef struct {
    uint64_t digits;
    int exponent;
} Decimal;

/* A unit is an integer times a power of ten in the base unit of its kind: Gbps = 125 * 10^6 B/s. */
typedef struct {
    const char *name;
    int64_t factor;
    int exponent;
} Unit;

#define PI (1024LL * UNITS_GIB * 1024)
/* A decimal prefix before any of B, B/s, FLOPS, ...; k and K are 1000, as KB in data sheets. */
#define DECIMAL_UNITS(base, factor, exponent)                                                      \
    {base, factor, exponent}, {"k" base, factor, (exponent) + 3},                                  \
        {"K" base, factor, (exponent) + 3}, {"M" base, factor, (exponent) + 6},                    \
        {"G" base, factor, (exponent) + 9}, {"T" base, factor, (exponent) + 12},                   \
        {"P" base, factor, (exponent) + 15},                                                       \
    {                                                                                              \
        "E" base, factor, (exponent) + 18                                                          \
    }
#define BINARY_UNITS(base)                                                                         \
    {"Ki" base, UNITS_KIB, 0}, {"Mi" base, UNITS_MIB, 0}, {"Gi" base, UNITS_GIB, 0},               \
        {"Ti" base, UNITS_GIB * 1024, 0}, {"Pi" base, PI, 0},                                      \
    {                                                                                              \
        "Ei" base, PI * 1024, 0                                                                    \
    }

static const Unit units_bytes[] = {DECIMAL_UNITS("B", 1, 0), BINARY_UNITS("B"), {NULL, 0, 0}};
/* A bit is an eighth of a byte: 125 * 10^-3. */
static const Unit units_bytes_per_s[] = {
    DECIMAL_UNITS("B/s", 1, 0),      BINARY_UNITS("B/s"),
    DECIMAL_UNITS("bps", 125, -3),   DECIMAL_UNITS("b/s", 125, -3),
    DECIMAL_UNITS("bit/s", 125, -3), {NULL, 0, 0}};
static const Unit units_flops[] = {
    DECIMAL_UNITS("FLOPS", 1, 0), DECIMAL_UNITS("FLOP/s", 1, 0), {NULL, 0, 0}};
static const Unit units_s[] = {
    {"s", 1, 0},   {"ms", 1, -3},  {"us", 1, -6},  {"\xc2\xb5s", 1, -6}, {"\xce\xbcs", 1, -6},
    {"ns", 1, -9}, {"min", 60, 0}, {"h", 3600, 0}, {"d", 86400, 0},      {NULL, 0, 0}};
static const Unit units_fraction[] = {{"%", 1, -2}, {NULL, 0, 0}};
static const Unit units_none[] = {{NULL, 0, 0}};
static const Unit units_count[] = {{"K", 1, 3}, {"k", 1, 3},  {"M", 1, 6},
                                   {"B", 1, 9}, {"T", 1, 12}, {NULL, 0, 0}};

static const struct {
    const Unit *units;
    const char *expected;
} kinds[] = {
    [UNITS_KIND_BYTES] = {units_bytes, "a size such as 80GiB, 80GB or 512"},
    [UNITS_KIND_BYTES_PER_S] = {units_bytes_per_s, "a rate such as 900GB/s or 400Gbps"},
    [UNITS_KIND_FLOPS] = {units_flops, "a rate such as 989TFLOPS"},
    [UNITS_KIND_S] = {units_s, "a time such as 5us, 2s, 12h or 60d"},
    [UNITS_KIND_FRACTION] = {units_fraction, "a fraction such as 0.5 or 50%"},
    [UNITS_KIND_NUMBER] = {units_none, "a number"},
    [UNITS_KIND_COUNT] = {units_count, "a count such as 15T, 300B or 1e12"},
};

/* 292 years overflow; a quarter of that leaves room to add a few saturated values. */
#define MAX_NS (INT64_MAX / 4)

int64_t
units_ns_from_s(double seconds)
{
    double ns = seconds * UNITS_NS_PER_S;

    g_return_val_if_fail(seconds >= 0, 0);

    if (ns >= (double)MAX_NS)
        return MAX_NS;
    return (int64_t)nearbyint(ns);
}

/* Always false, so that callers can return it. */
static bool
fail(GError **error, const char *text, UnitsKind kind, const char *advice)
{
    g_autofree char *shown = text_escape(text, 64);

    g_set_error(error, UNITS_ERROR, UNITS_ERROR_INVALID, "expected %s, got \"%s\"%s",
                kinds[kind].expected, shown, advice);
    return false;
}

/* Advances @text over digits and adds them to @number; false when they do not fit 19 digits. */
static bool
scan_digits(const char **text, Decimal *number, bool after_point)
{
    const char *p = *text;

    for (; g_ascii_isdigit(*p); p++) {
        if (number->digits >= 1000000000000000000u || number->exponent < -1000)
            return false;
        number->digits = number->digits * 10 + (uint64_t)(*p - '0');
        if (after_point)
            number->exponent--;
    }
    *text = p;
    return true;
}

/* Reads digits [. digits] [e [sign] digits] and leaves @text at the unit.  An E without digits
 * after it belongs to the unit: 2EB is two exabytes. */
static bool
scan_decimal(const char **text, Decimal *number)
{
    const char *p = *text;

    *number = (Decimal){0, 0};
    if (!g_ascii_isdigit(*p) || !scan_digits(&p, number, false))
        return false;
    if (*p == '.') {
        p++;
        if (!g_ascii_isdigit(*p) || !scan_digits(&p, number, true))
            return false;
    }
    if (*p == 'e' || *p == 'E') {
        bool is_negative = p[1] == '-';
        const char *q = p + 1 + (p[1] == '-' || p[1] == '+');

        if (g_ascii_isdigit(*q)) {
            int exponent = 0;

            for (; g_ascii_isdigit(*q); q++)
                exponent = exponent < 10000 ? exponent * 10 + (*q - '0') : exponent;
            number->exponent += is_negative ? -exponent : exponent;
            p = q;
        }
    }
    *text = p;
    return true;
}

/* Returns: (owned) what to say about a unit that is not one of @kind. */
static char *
advise(UnitsKind kind, const char *unit)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new();

    if (kind == UNITS_KIND_BYTES && strlen(unit) == 1 && strchr("kKmMgGtTpPeE", *unit) != NULL) {
        char letter = g_ascii_toupper(*unit);

        return g_strdup_printf("; write %cB (powers of 1000) or %ciB (powers of 1024)", letter,
                               letter);
    }
    if (kind == UNITS_KIND_S && strcmp(unit, "m") == 0)
        return g_strdup("; write min or ms");
    for (const Unit *u = kinds[kind].units; u->name != NULL; u++)
        g_ptr_array_add(names, (gpointer)u->name);
    g_ptr_array_add(names, NULL);
    const char *nearest = text_nearest(unit, (const char *const *)names->pdata);
    return nearest == NULL ? g_strdup("") : g_strdup_printf("; is the unit %s?", nearest);
}

/* Splits @text into an exact number and its unit; a plain number has a unit of 1. */
static bool
scan(const char *text, UnitsKind kind, Decimal *number, const Unit **unit, GError **error)
{
    static const Unit plain = {"", 1, 0};
    const char *p = text;

    if (!scan_decimal(&p, number))
        return fail(error, text, kind, strlen(text) > 19 ? "; at most 19 digits" : "");
    *unit = &plain;
    if (*p == 0)
        return true;
    if (*p == ' ')
        p++;
    for (const Unit *u = kinds[kind].units; u->name != NULL; u++) {
        if (strcmp(u->name, p) == 0) {
            *unit = u;
            return true;
        }
    }
    g_autofree char *advice = advise(kind, p);
    return fail(error, text, kind, advice);
}

bool
units_parse(const char *text, UnitsKind kind, double *value, GError **error)
{
    Decimal number;
    const Unit *unit;

    g_return_val_if_fail(text != NULL && value != NULL, false);
    g_return_val_if_fail((size_t)kind < G_N_ELEMENTS(kinds), false);

    if (!scan(text, kind, &number, &unit, error))
        return false;
    /* Written out and read back, it is rounded once: the nearest double. */
    Wide product = (Wide)number.digits * (Wide)unit->factor;
    g_autofree char *decimal = g_strdup_printf("%" G_GUINT64_FORMAT "%018" G_GUINT64_FORMAT "e%d",
                                               (uint64_t)(product / 1000000000000000000u),
                                               (uint64_t)(product % 1000000000000000000u),
                                               number.exponent + unit->exponent);
    double result = g_ascii_strtod(decimal, NULL);
    if (!isfinite(result))
        return fail(error, text, kind, "; too large");
    if (kind == UNITS_KIND_FRACTION && result > 1)
        return fail(error, text, kind, "; more than the whole");
    *value = result;
    return true;
}

bool
units_parse_bytes(const char *text, int64_t *bytes, GError **error)
{
    Decimal number;
    const Unit *unit;

    g_return_val_if_fail(text != NULL && bytes != NULL, false);

    if (!scan(text, UNITS_KIND_BYTES, &number, &unit, error))
        return false;
    Wide product = (Wide)number.digits * (Wide)unit->factor;
    int exponent = product == 0 ? 0 : number.exponent + unit->exponent;
    /* product * 10^exponent is the answer; product != 0 ends both loops early */
    for (; exponent < 0; exponent++) {
        /* 70.6 GiB is no whole number of bytes either, but nobody means that one byte. */
        if (product % 10 != 0 && ((unit->factor == 1 && unit->exponent == 0) || product < 10))
            return fail(error, text, UNITS_KIND_BYTES, "; not a whole number of bytes");
        product /= 10;
    }
    for (; exponent > 0 && product <= INT64_MAX; exponent--)
        product *= 10;
    if (product > INT64_MAX)
        return fail(error, text, UNITS_KIND_BYTES, "; too large");
    *bytes = (int64_t)product;
    return true;
}

bool
units_parse_int64(const char *text, const char *what, int64_t min, int64_t max, int64_t *value,
                  GError **error)
{
    g_return_val_if_fail(text != NULL && what != NULL && value != NULL && min <= max, false);

    bool is_negative = text[0] == '-';
    const char *digits = text + is_negative;
    if (g_ascii_isdigit(digits[0]) && (digits[0] != '0' || digits[1] == 0)) {
        int64_t result = 0;
        bool fits = true;
        const char *p = digits;

        /* downwards, since the least integer has no positive twin */
        for (; g_ascii_isdigit(*p) && fits; p++) {
            fits = !__builtin_mul_overflow(result, 10, &result) &&
                   !__builtin_sub_overflow(result, *p - '0', &result);
        }
        if (!is_negative && fits)
            fits = !__builtin_mul_overflow(result, -1, &result);
        if (fits && *p == 0 && result >= min && result <= max) {
            *value = result;
            return true;
        }
    }
    g_autofree char *shown = text_escape(text, 64);
    if (max == INT64_MAX && min != INT64_MIN)
        g_set_error(error, UNITS_ERROR, UNITS_ERROR_INVALID,
                    "%s: expected an integer >= " INT ", got \"%s\"", what, min, shown);
    else
        g_set_error(error, UNITS_ERROR, UNITS_ERROR_INVALID,
                    "%s: expected an integer from " INT " to " INT ", got \"%s\"", what, min, max,
                    shown);
    return false;
}

/* For people: a number below @limit of the unit shows the unit. */
typedef struct {
    const char *name;
    double scale;
    double limit; /* of the rounded number; the last one's is infinite */
} Scale;

/* Writes three significant digits; integers of any length below a million stay whole. */
static const char *
three_digits(double value, char digits[G_ASCII_DTOSTR_BUF_SIZE])
{
    const char *format;

    if (value >= 999999.5)
        format = "%.2e";
    else if (value >= 99.95 || value == 0)
        format = "%.0f";
    else if (value >= 9.995)
        format = "%.1f";
    else if (value >= 0.9995)
        format = "%.2f";
    else
        format = "%.3g";
    return g_ascii_formatd(digits, G_ASCII_DTOSTR_BUF_SIZE, format, value);
}

static UnitsText
format(double value, const Scale *scales)
{
    char buffer[G_ASCII_DTOSTR_BUF_SIZE];
    const char *digits = "nan";
    UnitsText text;

    if (isfinite(value)) {
        while (fabs(value) / scales->scale >= scales->limit)
            scales++;
        digits = three_digits(fabs(value) / scales->scale, buffer);
    } else if (!isnan(value)) {
        digits = "inf";
    }
    g_snprintf(text.text, sizeof text.text, "%s%s%s%s", value < 0 ? "-" : "", digits,
               *scales->name || !isfinite(value) ? " " : "", scales->name);
    return text;
}

UnitsText
units_format_s(double seconds)
{
    static const Scale zero[] = {{"s", 1, HUGE_VAL}};
    static const Scale scales[] = {
        {"ns", 1e-9, 999.5}, {"us", 1e-6, 999.5}, {"ms", 1e-3, 999.5},    {"s", 1, 119.5},
        {"min", 60, 119.5},  {"h", 3600, 47.95},  {"d", 86400, HUGE_VAL},
    };

    return format(seconds, seconds == 0 || !isfinite(seconds) ? zero : scales);
}

/* 1 to 1023 of a unit, so that nothing is 0.98 of the next. */
UnitsText
units_format_bytes(double bytes)
{
    static const Scale scales[] = {
        {"B", 1, 1023.5},          {"KiB", 0x1p10, 1023.5}, {"MiB", 0x1p20, 1023.5},
        {"GiB", 0x1p30, 1023.5},   {"TiB", 0x1p40, 1023.5}, {"PiB", 0x1p50, 1023.5},
        {"EiB", 0x1p60, HUGE_VAL},
    };

    return format(bytes, scales);
}

UnitsText
units_format_flops(double flops_per_s)
{
    static const Scale scales[] = {
        {"FLOPS", 1, 999.5},        {"kFLOPS", 1e3, 999.5},  {"MFLOPS", 1e6, 999.5},
        {"GFLOPS", 1e9, 999.5},     {"TFLOPS", 1e12, 999.5}, {"PFLOPS", 1e15, 999.5},
        {"EFLOPS", 1e18, HUGE_VAL},
    };

    return format(flops_per_s, scales);
}

UnitsText
units_format_count(double count)
{
    static const Scale scales[] = {
        {"", 1, 999.5},    {"k", 1e3, 999.5},     {"M", 1e6, 999.5},
        {"B", 1e9, 999.5}, {"T", 1e12, HUGE_VAL},
    };
    bool is_small_integer = fabs(count) < 1000 && count == nearbyint(count);

    if (is_small_integer) {
        UnitsText text;

        g_snprintf(text.text, sizeof text.text, "%d", (int)count);
        return text;
    }
    return format(count, scales);
}
