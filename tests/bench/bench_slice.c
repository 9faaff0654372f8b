/*
 * Times of plan_slice_solve(), without filling the grid; --tiny: one small case, as a test.
 *
 * The three sizes of the first lines are the promise: 0.15 s, 1 s and 1 s on one core.
 */
#include <stdio.h>
#include <string.h>

#include "base/units.h"
#include "tests/bench/slice_costs.h"

#define K (INT64_C(1) << 10)

/* start, token, pair: a layer of GPT-3 175B on eight V100, and of a small model on a fast device.
 */
static const SliceCase cases[] = {
    {"L8192 B8 K96", 8, 8 * K, 8, 96, 2000000000, 45000000, 610, 256, 0, 0},
    {"L8192 B32 K96", 32, 8 * K, 8, 96, 2000000000, 45000000, 610, 256, 0, 0},
    {"L131072 g64 B1 K96", 1, 128 * K, 64, 96, 2000000000, 45000000, 610, 256, 0, 0},
    {"L8192 B8 K96 tiled", 8, 8 * K, 8, 96, 2000000000, 45000000, 610, 256, 128, 0},
    {"L8192 B8 K96 noisy", 8, 8 * K, 8, 96, 2000000000, 45000000, 610, 256, 0, 500000000},
    {"L8192 B8 K96 noisier", 8, 8 * K, 8, 96, 2000000000, 45000000, 610, 256, 0, 20000000000},
    {"L8192 B8 K96 fast", 8, 8 * K, 8, 96, 60000000, 500000, 20, 128, 0, 0},
    {"L8192 B8 K96 fast noisy", 8, 8 * K, 8, 96, 60000000, 500000, 20, 128, 0, 10000000},
    {"L8192 B8 K96 floor", 8, 8 * K, 8, 96, 2000000000, 6000000, 80, 3072, 0, 0},
    {"L8192 B8 K4", 8, 8 * K, 8, 4, 2000000000, 45000000, 610, 256, 0, 0},
    {"L8192 B8 K2 noisy", 8, 8 * K, 8, 2, 2000000000, 45000000, 610, 256, 0, 500000000},
    {"L8192 B8 K1", 8, 8 * K, 8, 1, 2000000000, 45000000, 610, 256, 0, 0},
    {"L8192 B32 K96 noisy", 32, 8 * K, 8, 96, 2000000000, 45000000, 610, 256, 0, 500000000},
    {"L8192 B32 K8 tiled", 32, 8 * K, 8, 8, 2000000000, 45000000, 610, 256, 128, 0},
    {"L131072 g64 B1 K8 noisy", 1, 128 * K, 64, 8, 2000000000, 45000000, 610, 256, 0, 500000000},
};

static const SliceCase tiny[] = {
    {"L256 B2 K8 noisy", 2, 256, 8, 8, 2000000000, 45000000, 610, 64, 0, 500000000},
};

int
main(int argc, char **argv)
{
    const bool is_tiny = argc > 1 && strcmp(argv[1], "--tiny") == 0;
    const SliceCase *list = is_tiny ? tiny : cases;
    const size_t n = is_tiny ? G_N_ELEMENTS(tiny) : G_N_ELEMENTS(cases);

    printf("case\tsolve_s\tlatency_s\tmax_slice_s\tgroups\tfirst_slices\tdp_solves\n");
    for (size_t i = 0; i < n; i++) {
        const SliceCase *k = &list[i];
        g_autofree int64_t *cost = slice_case_grid(k);
        const PlanSliceCosts costs = {k->batch, k->seq_len / k->granularity, k->granularity, cost};
        g_autoptr(GError) error = NULL;
        const int64_t start_us = g_get_monotonic_time();
        g_autoptr(PlanSliceResult) result = plan_slice_solve(&costs, k->n_stages, 0, &error);
        const int64_t end_us = g_get_monotonic_time();
        if (result == NULL) {
            fprintf(stderr, "%s: %s\n", k->name, error->message);
            return 1;
        }
        printf("%s\t%.4f\t%.9f\t%.9f\t%u\t%u\t%" G_GINT64_FORMAT "\n", k->name,
               (double)(end_us - start_us) * 1e-6, (double)result->latency * 1e-12,
               (double)result->max_slice * 1e-12, result->groups->len,
               ((PlanSliceGroup *)result->groups->pdata[0])->slices->len, result->n_solves);
    }
    return 0;
}
