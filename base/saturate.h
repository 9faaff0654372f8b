/*
 * base/saturate.h - sums and products that stop at a bound instead of overflowing.
 *
 * Hostile files make absurd times and sizes.  A bound far below INT64_MAX lets a caller add a few
 * such results without a check; each caller says which.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

/* Returns: the sum of @a and @b, neither of which counts for more than @most; at most @most. */
static inline int64_t
saturate_sum(int64_t a, int64_t b, int64_t most)
{
    int64_t sum;

    return __builtin_add_overflow(MIN(a, most), MIN(b, most), &sum) ? most : MIN(sum, most);
}

/* Returns: @a times @b, both >= 0, or @most if that is less. */
static inline int64_t
saturate_product(int64_t a, int64_t b, int64_t most)
{
    int64_t product;

    return __builtin_mul_overflow(a, b, &product) ? most : MIN(product, most);
}
