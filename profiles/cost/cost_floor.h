/*
 * profiles/cost/cost_floor.h - what cutting a sequence into slices cannot save.
 *
 * Thread-safety: pure.
 */
#ifndef PROFILES_COST_COST_FLOOR_H
#define PROFILES_COST_COST_FLOOR_H

#include "profiles/cost/cost.h"

G_BEGIN_DECLS

/*
 * A bound on the sum of @pass over all slices, however @query's tokens (without context) are cut;
 * FORWARD or BACKWARD.
 *
 *   modelled  the products with weights alone, at the rate of whole tiles: tiles, waves and splits
 *             only add to it (cost-model.md 2.1), and the rows of slices add up to the sequence's
 *   measured  the fit, whose features of slices add up to the sequence's (but the constant, which
 *             comes at least once), times the least deviation of any row (cost-model.md 7)
 */
double profile_cost_sliced_floor_s(const Profile *profile, const ProfileQuery *query,
                                   ProfilePass pass);

/*
 * A bound on @pass of one slice of @query's sequences and tokens, whatever its context; FORWARD or
 * BACKWARD.  What depends on the number of tokens alone: products with weights, ops bound by
 * memory, launches, adding gradients, the host.  It never falls where tokens or sequences grow, and
 * depends on their product only.  0 where anything was measured, which may.
 */
double profile_cost_slice_floor_s(const Profile *profile, const ProfileQuery *query,
                                  ProfilePass pass);

G_END_DECLS

#endif /* PROFILES_COST_COST_FLOOR_H */
