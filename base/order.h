/*
 * base/order.h - orders of numbers and names, for qsort(), g_array_sort() and g_ptr_array_sort().
 *
 * A comparator of several keys is written with ORDER: "if (x->a != y->a) return ORDER(x->a,
 * y->a);".
 */
#pragma once

#include <glib.h>

G_BEGIN_DECLS

/* -1, 0 or 1 as @a is less than, equal to or greater than @b; each is evaluated twice. */
#define ORDER(a, b) (((a) > (b)) - ((a) < (b)))

/* Ascending order.  @a and @b each point to an int64_t, to a double that is not NaN, or to a
 * pointer to a text. */
int order_int64s(const void *a, const void *b);
int order_doubles(const void *a, const void *b);
int order_names(const void *a, const void *b);

G_END_DECLS
