/*
 * cli/request/conditions.h - Conditions: how the machine differs from its profile, by the flags of
 * degas simulate: ranks that are slower or faster, and times that vary from run to run.
 *
 * They are for plans, for requests by flags or on the lines of --batch, and for bare schedules.
 */
#pragma once

#include "cli/request/experts.h"
#include "cli/request/options.h"
#include "profiles/profile.h"
#include "profiles/workload/workload.h"
#include "simulator/simulate.h"

/* The flags: --rank-speed, --jitter and those that go with it. */
extern const OptionInfo conditions_options[];

/* A plain value of which callers use jitter alone. */
typedef struct {
    ExpertsAsked experts; /* --expert-load */
    GArray *speeds;       /* (owned, nullable) of ConditionsSpeed */
    SimJitter
        jitter; /* n_runs 0: no jitter; the caller sets n_replicas and n_members by its plan */
    bool jitter_of_profile; /* --jitter profile: conditions_apply_spread() sets the sigmas */
    bool has_rank_jitter;   /* ... except rank_sigma, which --rank-jitter gives */
} Conditions;

/* Reads the flags; options_finish() reports what is wrong with them. */
void conditions_read(Conditions *conditions, Options *options);
void conditions_clear(Conditions *conditions);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Conditions, conditions_clear)

/* Changes the times of @workload's ops by the ranks' speeds.  Returns false with CMD_ERROR_USAGE
 * where a flag names a rank that the plan does not have. */
bool conditions_apply(const Conditions *conditions, SchedulePlacement placement, Workload *workload,
                      GError **error);

/* For --jitter profile, sets the spreads of @jitter to those with which the times of @profile
 * (nullable: there is none) varied when it was measured.  Returns false with CMD_ERROR_USAGE where
 * the profile does not say. */
bool conditions_apply_spread(const Conditions *conditions, const Profile *profile,
                             SimJitter *jitter, GError **error);

/* The conditions of --jitter profile,@n_runs. */
Conditions conditions_of_profile(int64_t n_runs);

/* The conditions in which peaks of memory alone vary, by what the allocator is not known to lose. */
Conditions conditions_of_memory(int64_t n_runs);
