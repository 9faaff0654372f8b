/*
 * models/expert_load.h - how unevenly rows come to the ranks of experts, as a distribution.
 *
 * A router sends each row to some experts, and more rows to some experts than to others.  What an expert
 * gets of a layer's rows is its share; shares of a layer add up to 1.  The ranks of an ep group wait for
 * the fullest one, so what counts is the imbalance: the rows of the fullest rank over the mean.  1 is
 * even.
 *
 *   shares   even; by Zipf's law, share of the i-th hottest expert ~ i^-s, the hot experts of each layer
 *            being others; or counts that were measured, a row for each layer
 *   rows     of a step are drawn around the shares: expert e gets N(n p, n p) of n rows, which is what
 *            independent choices give for large n
 *   ranks    rank r has the experts r E / ep to (r + 1) E / ep - 1.  With copies of hot experts
 *            (n_redundant) each next copy goes to the expert with the most rows for each of its copies,
 *            and the copies, the fullest first, each to the rank with the fewest rows among those with
 *            room  [DeepSeek-V3's EPLB, 2412.19437 section 3.4]; rows divide evenly among copies
 *
 * Copies are chosen by the shares, before the rows of a step are known.
 *
 * Thread-safety: pure.  Same arguments, same numbers, on every machine.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where the shares come from. */
typedef struct {
    double zipf;          /* s; 0: even */
    const double *counts; /* (borrowed, nullable) shape (n_layers, n_experts), row-major, each >= 0
                             with a sum above 0 in each layer; in place of zipf */
    int64_t n_layers;     /* of counts; layer i of a model has row i modulo n_layers */
} ExpertShares;

/* What is drawn. */
typedef struct {
    ExpertShares shares;
    int64_t n_experts, n_redundant, ep; /* ep >= 1; ep divides n_experts + n_redundant */
    int64_t n_layers;                   /* layers with experts that one rank has: >= 1 */
    int64_t n_rows;                     /* that all ranks of a group send in one layer */
    int64_t n_steps;                    /* how often: >= 1 */
    uint64_t seed;
} ExpertLoad;

/* Of one step: over its layers. */
typedef struct {
    double mean; /* what the step's time, and activations that stay, follow */
    double most; /* what the activations of one layer at a time follow */
} ExpertImbalance;

/*
 * The imbalance of one layer whose experts get @rows.
 * @rows    (borrowed) n_experts numbers >= 0 with a sum above 0
 * @shares  (borrowed) n_experts numbers by which copies are placed
 */
double expert_load_imbalance(const double *rows, const double *shares, int64_t n_experts,
                             int64_t n_redundant, int64_t ep);

/* Draws load->n_steps steps into @steps (out).  Cost: steps * layers * experts. */
void expert_load_draw(const ExpertLoad *load, ExpertImbalance *steps);

/* The @fraction quantile of @values (borrowed), linear between neighbours; @n >= 1. */
double expert_load_quantile(const double *values, size_t n, double fraction);
