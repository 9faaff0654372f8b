/*
 * profiles/cost/measured.h - times between the measured rows of a profile, and how good they are.
 *
 * A layer takes a + b * batch * tokens + c * batch * tokens * (2 context + tokens): a constant,
 * work for each token, and the scores of causal attention (cost-model.md 7).  The three
 * coefficients, none negative, are fitted to the rows (profile_measurement_mean_s()) in relative
 * error.  Between rows the law is multiplied by their deviations from it, weighted so that the
 * product is exact at each row.  A context-parallel rank computes as one device does on a slice
 * with as many tokens and pairs of query and key; what it exchanges is modelled.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "profiles/cost/cost.h"

/*
 * Replaces the modelled @cost of a part by what the profile has measured, if it has rows of this
 * op, pass and tp for this part of the model (profile_has_part()) and number format.  Where only the whole backward was measured,
 * the gradients of inputs and of weights each get their modelled share of it.  The parts of the
 * cost keep their proportions; host time is contained in what was measured.
 */
void profile_measured_part(const Profile *profile, const ProfileQuery *query, ProfilePass pass,
                           ProfileCost *cost);

/* The lower bound of profile_cost_sliced_floors(); false where @pass of @query is not measured. */
bool profile_measured_sliced_floor(const Profile *profile, const ProfileQuery *query,
                                   ProfilePass pass, double *seconds);

/* Rows of one op, pass and tp, of layers of one kind (ProfileMeasurement.kind). */
typedef struct {
    ProfileOp op;
    ProfilePass pass;
    int64_t tp;
    const char *kind; /* (interned, nullable) */
} ProfileRows;

/*
 * Predicts the rows at (@batch, @tokens), of every context, from all other rows of @rows, and
 * appends |predicted / measured - 1| of each to @errors (GArray of double).  Appends nothing where
 * the other rows do not lie on both sides in batch and in tokens: that would be extrapolation,
 * which predictions within the grid never need.
 */
void profile_measured_left_out(const Profile *profile, const ProfileRows *rows, int64_t batch,
                               int64_t tokens, GArray *errors);

/* Replaces the profile's fit_errors by those of all rows of layers, embeddings and heads. */
void profile_measured_fit_errors(Profile *profile);

/* The seconds of @op over @n_ranks (0: an op without ranks) for @bytes, piecewise linear between
 * rows: constant below the smallest row, which is latency; above the largest one along the last
 * segment, or proportional to it where it is the only row.  Returns false without rows. */
bool profile_measured_bytes_s(const Profile *profile, ProfileOp op, int64_t n_ranks, int64_t bytes,
                              double *seconds);

/* The seconds of the optimizer's step over @n_elements, linear between rows; false without rows. */
bool profile_measured_optimizer(const Profile *profile, int64_t n_elements, double *seconds);

/* The median of the row of PROFILE_OP_OVERHEAD; 0 without one. */
double profile_measured_overhead_s(const Profile *profile);
