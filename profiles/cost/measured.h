/*
 * profiles/cost/measured.h - times between measured rows, and how good they are.
 *
 * A layer's time is a + b * batch * tokens + c * batch * tokens * (2 context + tokens): a constant,
 * work per token, and scores of causal attention (cost-model.md 7).  The three coefficients, none
 * negative, are fitted to the rows (profile_measurement_mean_s()) in relative error; what a row
 * deviates from the fit is added as a factor that is 1 far from all rows and exact at each.  A
 * context-parallel rank computes as one device does on a slice with as many tokens and pairs; what
 * it exchanges is modelled.
 *
 * Thread-safety: pure.
 */
#ifndef PROFILES_COST_MEASURED_H
#define PROFILES_COST_MEASURED_H

#include "profiles/cost/cost.h"

G_BEGIN_DECLS

/*
 * Replaces the modelled @cost of a part by what was measured, if the profile has rows of this op,
 * pass and tp for this model and number format; a missing backward half is its modelled share of
 * the whole backward.  The parts of the cost keep their proportions; host time is in what was
 * measured.
 */
void profile_measured_part(const Profile *profile, const ProfileQuery *query, ProfilePass pass,
                           ProfileCost *cost);

/*
 * A bound on the sum of @pass over all slices of @query's tokens (cost_floor.h); false where its
 * time is not measured.
 */
bool profile_measured_sliced_floor(const Profile *profile, const ProfileQuery *query,
                                   ProfilePass pass, double *seconds);

/* Rows of one op, pass and tp. */
typedef struct {
    ProfileOp op;
    ProfilePass pass;
    int64_t tp;
} ProfileRows;

/*
 * Leaves out what was measured at (@batch, @tokens), every context, predicts it from the other rows
 * and appends |predicted / measured - 1| of each row to @errors (GArray of double).  Nothing is
 * appended where the others do not lie on both sides of it, in batch and in tokens: that would be
 * extrapolating, which predictions within the grid never do.
 */
void profile_measured_left_out(const Profile *profile, const ProfileRows *rows, int64_t batch,
                               int64_t tokens, GArray *errors);

/* Replaces the profile's fit_errors by those of all its layers, embeddings and heads. */
void profile_measured_fit_errors(Profile *profile);

/* Linear in elements between rows; false without rows. */
bool profile_measured_optimizer(const Profile *profile, int64_t n_elements, double *seconds);

/* Median of the overhead rows, 0 without. */
double profile_measured_overhead_s(const Profile *profile);

G_END_DECLS

#endif /* PROFILES_COST_MEASURED_H */
