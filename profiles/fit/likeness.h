/*
 * profiles/fit/likeness.h - what the errors of measured rows say of the error of a row like them.
 *
 * A fit of a few parameters (calibrate.h) leaves errors that rows of one kind share: those of one
 * model on one machine with one split, of which only the batch differs.  They are taken for a
 * Gaussian process [kennedy2001; rasmussen2006, 2.2]: the covariance of two rows' errors is
 *
 *     v / (1 + D),   D = sum over numbers |log2 a / b| / 4 + sum over words (a != b) / 2
 *
 * with v the mean square of the errors that are known, and each measured error has besides one of
 * its own, of PROFILE_CALIBRATE_SIGMA.  (1 / (1 + D) is a mixture of exp(-t D) over t, and exp(-t D)
 * is a covariance since D is a sum of absolute differences.)  What is expected of row i is then
 *
 *     k_i' (K + sigma^2 I)^-1 e
 *
 * A row that is like none has the expectation 0.  Bit-reproducible as calibrate.h: only + - * / and
 * sqrt; log2 is linear between the powers of 2.
 *
 * Thread-safety: pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROFILE_LIKENESS_NUMBERS 13
#define PROFILE_LIKENESS_WORDS 11

/* What rows are compared by. */
typedef struct {
    double numbers[PROFILE_LIKENESS_NUMBERS]; /* > 0: by their ratio */
    uint64_t words[PROFILE_LIKENESS_WORDS];   /* equal or not */
} ProfileLikeness;

/* D of two rows. */
double profile_likeness_distance(const ProfileLikeness *a, const ProfileLikeness *b);

/*
 * Fills @expected[n] with the relative errors to be expected of all rows, from the @errors of those
 * whose @is_known is true.  Cost: O(n^3) for the known rows.
 */
void profile_likeness_expect(const ProfileLikeness *rows, size_t n, const bool *is_known,
                             const double *errors, double *expected);
