/*
 * base/order.h - orders of numbers and names, for qsort(), g_array_sort() and g_ptr_array_sort().
 */
#pragma once

#include <glib.h>

/* -1, 0 or 1 as @a is less than, equal to or greater than @b; each is evaluated twice. */
#define ORDER(a, b) (((a) > (b)) - ((a) < (b)))

/* Returns that from a comparator unless @a and @b are equal: then the next key decides. */
#define ORDER_BY(a, b)                                                                             \
    do {                                                                                           \
        if ((a) != (b))                                                                            \
            return ORDER(a, b);                                                                    \
    } while (0)

/* Ascending order.  @a and @b each point to an int64_t, to a double that is not NaN, or to a
 * pointer to a text. */
int order_int64s(const void *a, const void *b);
int order_doubles(const void *a, const void *b);
int order_names(const void *a, const void *b);
