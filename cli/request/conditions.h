/*
 * cli/request/conditions.h - Conditions: in what the machine differs from its profile, by options:
 * ranks that are slower or faster, and times that vary.
 *
 * For degas simulate: of a plan, of flags, of a bare schedule, and of the lines of --batch.
 */
#ifndef CLI_REQUEST_CONDITIONS_H
#define CLI_REQUEST_CONDITIONS_H

#include "cli/request/options.h"
#include "profiles/profile.h"
#include "profiles/workload/workload.h"
#include "simulator/simulate.h"

G_BEGIN_DECLS

/* --rank-speed, --jitter and what belongs to it. */
extern const OptionInfo conditions_options[];

/* By value; opaque but for jitter. */
typedef struct {
    GArray *speeds;   /* (owned, nullable) of ConditionsSpeed */
    SimJitter jitter; /* n_runs 0: no jitter; n_replicas, n_members are for who knows the plan */
    bool jitter_of_profile; /* what the profile says of it is for who knows that */
    bool has_rank_jitter;   /* ... but for rank_sigma */
} Conditions;

/* Reads the options; what is wrong is found by options_finish(). */
void conditions_read(Conditions *conditions, Options *options);
void conditions_clear(Conditions *conditions);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Conditions, conditions_clear)

/* Sets the ranks' speeds.  Returns false with CMD_ERROR_USAGE on a rank that is not there. */
bool conditions_apply(const Conditions *conditions, SchedulePlacement placement, Workload *workload,
                      GError **error);

/* Times that vary as they did when @profile (nullable: there is none) was measured, if that is
 * asked for.  Returns false with CMD_ERROR_USAGE where that is not known. */
bool conditions_apply_spread(const Conditions *conditions, const Profile *profile,
                             SimJitter *jitter, GError **error);

/* What --jitter profile says, for @n_runs. */
Conditions conditions_of_profile(int64_t n_runs);

G_END_DECLS

#endif /* CLI_REQUEST_CONDITIONS_H */
