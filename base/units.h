/*
 * base/units.h - units of time, size, rate and work: conversion, parsing, printing.
 *
 * Knows no domain word.  Costs are computed in seconds (double), rounded once by
 * units_ns_from_s(), and are exact integers from there on: everything downstream adds and compares
 * int64_t nanoseconds, so results do not depend on the order of additions or the number of threads.
 *
 * Parsing is locale-free and exact: "80GiB", "400Gbps", "900GB/s", "5us", "989TFLOPS".  Letters
 * that are ambiguous ("80G") are refused with advice.  A plain number is in the base unit.
 *
 * Thread-safety: all functions are pure.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#define UNITS_ERROR (units_error_quark())
GQuark units_error_quark(void);

typedef enum {
    UNITS_ERROR_INVALID, /* not a number with a known unit of the wanted kind, or out of range */
} UnitsError;

/* The conversion of an int64_t, for all that is formatted as by printf(). */
#define INT "%" G_GINT64_FORMAT

#define UNITS_NS_PER_S 1000000000.0
#define UNITS_KIB 1024LL
#define UNITS_MIB (1024LL * 1024)
#define UNITS_GIB (1024LL * 1024 * 1024)

/* What a number on the command line counts. */
typedef enum {
    UNITS_KIND_BYTES,       /* 80GiB, 64KiB, 80GB, 512 */
    UNITS_KIND_BYTES_PER_S, /* 900GB/s, 400Gbps, 400Gb/s */
    UNITS_KIND_FLOPS,       /* 989TFLOPS (per second) */
    UNITS_KIND_S,           /* 5us, 1.5ms, 2s, 10min, 1h; plain: seconds */
    UNITS_KIND_FRACTION,    /* 0.5, 50%; at most 1 */
    UNITS_KIND_NUMBER,      /* 1, 0.25: no unit */
    UNITS_KIND_COUNT,       /* 15T, 300B (1e9), 1.5M, 20K, 1e12 */
} UnitsKind;

/*
 * The one place where seconds become nanoseconds: to nearest, ties to even.
 * @seconds  finite and >= 0; larger than 292 years saturates at INT64_MAX / 4, so that sums of a
 * few saturated values cannot overflow.
 */
int64_t units_ns_from_s(double seconds);

/* Exact to the nearest double. */
static inline double
units_s_from_ns(int64_t ns)
{
    return (double)ns / UNITS_NS_PER_S;
}

/*
 * Reads a whole string, e.g. "80GiB", as a quantity of @kind in its base unit.
 * Grammar: digits [. digits] [e [sign] digits] [space] UNIT; no sign, no hex, no nan, no inf; at
 * most 19 significant digits.  @value is the double nearest to what is written.  Units are
 * case-sensitive (b is a bit, B a byte), but k and K are both 1000. Returns false on
 * UNITS_ERROR_INVALID; the message names the text and what was expected.
 */
bool units_parse(const char *text, UnitsKind kind, double *value, GError **error);

/* As units_parse for whole numbers of bytes; a value that is no integer of bytes is refused. */
bool units_parse_bytes(const char *text, int64_t *bytes, GError **error);

/*
 * Reads a strict decimal integer in [min, max]: no leading zeros' octal, no hex, no spaces.
 * @what  names the value in the message, e.g. "--tp".
 */
bool units_parse_int64(const char *text, const char *what, int64_t min, int64_t max, int64_t *value,
                       GError **error);

/* A short text by value, for an argument of printf(): units_format_s(5.82).text lives until the end
 * of the statement that it is in. */
typedef struct {
    char text[48];
} UnitsText;

/* For people: three significant digits and a unit, e.g. "5.82 s", "13.4 GiB". */
UnitsText units_format_s(double seconds);
UnitsText units_format_bytes(double bytes);
UnitsText units_format_flops(double flops_per_s);
UnitsText units_format_count(double count); /* 1234567 -> "1.23 M"; B is 1e9, T 1e12 */
