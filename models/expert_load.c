#include "models/expert_load.h"

#include <glib.h>
#include <math.h>
#include <string.h>

#include "base/order.h"
#include "base/random.h"
#include "base/real.h"

/* --- placing --- */

/* A copy of an expert. */
typedef struct {
    int64_t expert;
    double share; /* of one copy */
} Copy;

static int
compare_copies(const void *a, const void *b)
{
    const Copy *x = a, *y = b;

    ORDER_BY(y->share, x->share);
    ORDER_BY(x->expert, y->expert);
    return 0;
}

/* How many copies each expert has: each next one goes to the expert with the most rows a copy. */
static void
replicate(const double *shares, int64_t n_experts, int64_t n_redundant, int64_t *n_copies)
{
    for (int64_t e = 0; e < n_experts; e++)
        n_copies[e] = 1;
    for (int64_t i = 0; i < n_redundant; i++) {
        int64_t hottest = 0;

        for (int64_t e = 1; e < n_experts; e++)
            if (shares[e] * (double)n_copies[hottest] > shares[hottest] * (double)n_copies[e])
                hottest = e;
        n_copies[hottest]++;
    }
}

/* Rows of each rank if experts lie one after the other. */
static void
fill_in_order(const double *rows, int64_t n_experts, int64_t ep, double *of_rank)
{
    for (int64_t e = 0; e < n_experts; e++)
        of_rank[e * ep / n_experts] += rows[e];
}

/* ... if copies are packed: the fullest first, each to the rank with the least share that has room. */
static void
fill_packed(const double *rows, const double *shares, int64_t n_experts, int64_t n_redundant,
            int64_t ep, double *of_rank)
{
    const int64_t n = n_experts + n_redundant, room = (n + ep - 1) / ep;
    g_autofree int64_t *n_copies = g_new(int64_t, n_experts);
    g_autofree Copy *copies = g_new(Copy, n);
    g_autofree double *share_of_rank = g_new0(double, ep);
    g_autofree int64_t *n_of_rank = g_new0(int64_t, ep);
    int64_t filled = 0;

    replicate(shares, n_experts, n_redundant, n_copies);
    for (int64_t e = 0; e < n_experts; e++)
        for (int64_t i = 0; i < n_copies[e]; i++)
            copies[filled++] = (Copy){e, shares[e] / (double)n_copies[e]};
    qsort(copies, (size_t)n, sizeof *copies, compare_copies);
    for (int64_t i = 0; i < n; i++) {
        int64_t rank = -1;

        for (int64_t r = 0; r < ep; r++)
            if (n_of_rank[r] < room && (rank < 0 || share_of_rank[r] < share_of_rank[rank]))
                rank = r;
        n_of_rank[rank]++;
        share_of_rank[rank] += copies[i].share;
        of_rank[rank] += rows[copies[i].expert] / (double)n_copies[copies[i].expert];
    }
}

double
expert_load_imbalance(const double *rows, const double *shares, int64_t n_experts,
                      int64_t n_redundant, int64_t ep)
{
    g_return_val_if_fail(n_experts >= 1 && n_redundant >= 0 && ep >= 1, 1.0);

    g_autofree double *of_rank = g_new0(double, ep);
    double sum = 0.0, most = 0.0;

    if (n_redundant == 0)
        fill_in_order(rows, n_experts, ep, of_rank);
    else
        fill_packed(rows, shares, n_experts, n_redundant, ep, of_rank);
    for (int64_t r = 0; r < ep; r++) {
        sum += of_rank[r];
        most = real_max(most, of_rank[r]);
    }
    return sum > 0.0 ? most * (double)ep / sum : 1.0;
}

/* --- drawing --- */

static double
uniform(uint64_t *state)
{
    return ((double)(random_next(state) >> 11) + 0.5) * 0x1p-53;
}

/* A normal number  [Box and Muller 1958]. */
static double
normal(uint64_t *state)
{
    const double radius = sqrt(-2.0 * log(uniform(state)));

    return radius * cos(2.0 * G_PI * uniform(state));
}

/* The shares of layer @layer; which experts of it are hot is the same in every step. */
static void
layer_shares(const ExpertLoad *load, int64_t layer, double *shares)
{
    const ExpertShares *from = &load->shares;
    const int64_t n = load->n_experts;
    uint64_t state = random_at(load->seed, (uint64_t)layer);
    double sum = 0.0;

    for (int64_t e = 0; e < n; e++)
        shares[e] = from->counts != NULL ? from->counts[layer % from->n_layers * n + e]
                                         : pow((double)(e + 1), -from->zipf);
    for (int64_t e = n - 1; from->counts == NULL && e > 0; e--) {
        const int64_t other = (int64_t)(random_next(&state) % (uint64_t)(e + 1));
        const double share = shares[e];
        shares[e] = shares[other];
        shares[other] = share;
    }
    for (int64_t e = 0; e < n; e++)
        sum += shares[e];
    for (int64_t e = 0; e < n; e++)
        shares[e] /= sum;
}

void
expert_load_draw(const ExpertLoad *load, ExpertImbalance *steps)
{
    g_return_if_fail(load->n_experts >= 1 && load->ep >= 1 && load->n_layers >= 1);

    const int64_t n = load->n_experts;
    g_autofree double *shares = g_new(double, n);
    g_autofree double *rows = g_new(double, n);

    for (int64_t s = 0; s < load->n_steps; s++)
        steps[s] = (ExpertImbalance){0.0, 0.0};
    for (int64_t layer = 0; layer < load->n_layers; layer++) {
        layer_shares(load, layer, shares);
        for (int64_t s = 0; s < load->n_steps; s++) {
            uint64_t state = random_at(~load->seed, (uint64_t)(layer * load->n_steps + s));

            for (int64_t e = 0; e < n; e++) {
                const double mean = shares[e] * (double)load->n_rows;
                rows[e] = real_max(0.0, mean + sqrt(mean) * normal(&state));
            }
            const double one = expert_load_imbalance(rows, shares, n, load->n_redundant, load->ep);
            steps[s].mean += one / (double)load->n_layers;
            steps[s].most = real_max(steps[s].most, one);
        }
    }
}

/* --- quantiles --- */

static int
compare_doubles(const void *a, const void *b)
{
    ORDER_BY(*(const double *)a, *(const double *)b);
    return 0;
}

double
expert_load_quantile(const double *values, size_t n, double fraction)
{
    g_return_val_if_fail(n >= 1 && fraction >= 0.0 && fraction <= 1.0, 1.0);

    g_autofree double *sorted = g_new(double, n);
    const double place = fraction * (double)(n - 1);
    const size_t below = (size_t)place;

    memcpy(sorted, values, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, compare_doubles);
    return below + 1 < n
               ? sorted[below] + (place - (double)below) * (sorted[below + 1] - sorted[below])
               : sorted[n - 1];
}
