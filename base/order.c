#include "base/order.h"

#include <stdint.h>
#include <string.h>

int
order_int64s(const void *a, const void *b)
{
    return ORDER(*(const int64_t *)a, *(const int64_t *)b);
}

int
order_doubles(const void *a, const void *b)
{
    return ORDER(*(const double *)a, *(const double *)b);
}

int
order_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}
