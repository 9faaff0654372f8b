/*
 * base/real.h - the lesser and the greater of two doubles, inline.
 *
 * fmin() and fmax() are calls of the C library, because they promise something where one number is
 * none; bounds and costs have no such numbers, and take millions of minima in a search.  Where
 * neither is a NaN, the results are the same.
 */
#pragma once

static inline double
real_min(double a, double b)
{
    return a < b ? a : b;
}

static inline double
real_max(double a, double b)
{
    return a > b ? a : b;
}
