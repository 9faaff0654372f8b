/*
 * profiles/fit/measured_fit.h - the law that a layer's measured times follow, fitted to rows.
 *
 * Internal to profiles/cost/measured.c, whose header says what the law is.  Thread-safety: pure.
 */
#ifndef PROFILES_FIT_MEASURED_FIT_H
#define PROFILES_FIT_MEASURED_FIT_H

#include <glib.h>
#include <stddef.h>
#include <stdint.h>

G_BEGIN_DECLS

#define PROFILE_FIT_FEATURES 3

typedef struct {
    double x[PROFILE_FIT_FEATURES]; /* 1, batch * tokens, batch * tokens * (2 context + tokens) */
} ProfileFitFeatures;

ProfileFitFeatures profile_fit_features(int64_t batch, int64_t tokens, int64_t context);

double profile_fit_evaluate(const ProfileFitFeatures *features,
                            const double coefficients[PROFILE_FIT_FEATURES]);

/* The best subset of features with no negative coefficient.  Fewer rows than features leave only
 * small subsets determined; work per token comes first. */
void profile_fit(const ProfileFitFeatures *features, const double *times, size_t n_rows,
                 double coefficients[PROFILE_FIT_FEATURES]);

G_END_DECLS

#endif /* PROFILES_FIT_MEASURED_FIT_H */
