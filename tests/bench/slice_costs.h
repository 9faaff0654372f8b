/*
 * tests/bench/slice_costs.h - cost grids by formula, for tests and timings of the slicer.
 *
 * Picoseconds of a slice of l tokens after c tokens for b sequences, integers, / is floor division:
 *   x = max(b l, least);  tiled: x rounded up to a multiple of tile
 *   t = start + token x + pair (b l (2 c + l) / 2)
 *       + noisy: ((b 73856093) xor (l 19349663) xor (c 83492791)) mod noise
 * so the linear layers cost `token` per token but no less than `least` tokens, attention `pair` per
 * pair of tokens, launches `start`; the noise is that of a measurement.
 */
#pragma once

#include "planner/slices/slice.h"

typedef struct {
    const char *name;
    int64_t batch, seq_len, granularity, n_stages;
    int64_t start, token, pair, least, tile, noise;
} SliceCase;

static inline int64_t
slice_case_cost(const SliceCase *k, int64_t b, int64_t l, int64_t c)
{
    int64_t x = MAX(b * l, k->least);

    if (k->tile > 0)
        x = (x + k->tile - 1) / k->tile * k->tile;
    int64_t t = k->start + k->token * x + k->pair * (b * l * (2 * c + l) / 2);
    if (k->noise > 0)
        t += ((b * 73856093) ^ (l * 19349663) ^ (c * 83492791)) % k->noise;
    return t;
}

/* Returns: (owned) the grid of slice.h. */
static inline int64_t *
slice_case_grid(const SliceCase *k)
{
    const int64_t n = k->seq_len / k->granularity, side = n + 1, g = k->granularity;
    int64_t *cost = g_new(int64_t, (size_t)((k->batch + 1) * side * side));

    for (int64_t b = 0; b <= k->batch; b++)
        for (int64_t s = 0; s <= n; s++)
            for (int64_t c = 0; c <= n; c++)
                cost[(b * side + s) * side + c] = b == 0 || s == 0 || s + c > n
                                                      ? PLAN_SLICE_INFINITE
                                                      : slice_case_cost(k, b, s * g, c * g);
    return cost;
}
