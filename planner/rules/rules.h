/*
 * planner/rules/rules.h - the rules of the programs that run plans: which plan which of them cannot
 * run, and the flag that mends it.
 *
 * The room rules/ is their one home.  A search asks them of what it is about to enumerate, so that
 * no plan is looked at that the framework cannot run; `degas export` asks them of a whole plan, and
 * names each one that it breaks.  What differs between frameworks is data of their rows
 * (PlanFrameworkRules in schedule/framework.h): a new framework is no code here.
 *
 * A prediction is not asked: what was measured was run.
 *
 * Thread-safety: all functions may be called from several threads at once.
 */
#pragma once

#include "models/arch.h"
#include "schedule/plan.h"

/* What a rule looks at, besides what comes before it in this order, in which a search chooses. */
typedef enum {
    PLAN_ASPECT_JOB,      /* model, number formats, slices */
    PLAN_ASPECT_DEGREES,  /* dp, tp, pp, cp, ep */
    PLAN_ASPECT_ORDER,    /* rank_order */
    PLAN_ASPECT_BATCH,    /* sequence_parallel */
    PLAN_ASPECT_SCHEDULE, /* schedule, vpp */
    PLAN_ASPECT_SHAPE,    /* n_micro_batches, group, overlap_pp, stages */
    PLAN_ASPECT_SAVERS,   /* zero_stage, offload */
    PLAN_ASPECT_RECOMPUTE,
    PLAN_ASPECT_N
} PlanAspect;

/* A plan, or what is known of one: the fields of the aspects that are asked for. */
typedef struct {
    const PlanFrameworkRules *rules;    /* (borrowed, nullable) NULL: no rule is broken */
    const ModelArch *arch;              /* (borrowed) */
    bool model_runs;                    /* it is known to run the model: that is not asked */
    const PlanConventions *conventions; /* (borrowed) */
    int64_t seq_len;
    Dtype dtype;
    int64_t n_slices; /* 1: sequences are whole */
    bool regroups;    /* micro-batches differ in size */
    bool offload_parameters;
    PlanDegrees degrees;
    bool sequence_parallel;
    const char *schedule;         /* (borrowed) */
    const ScheduleFamily *family; /* (borrowed, nullable) NULL: none of ours */
    int64_t n_micro_batches, group;
    bool overlap_pp;
    int64_t least_layers, most_layers; /* of a stage */
    int64_t n_empty;                   /* stages with neither layers nor an end */
    int64_t n_mtp_stages;              /* that have MTP modules */
    bool mtp_before_chunk;             /* a later stage is on the rank of such a stage */
    int zero_stage;
    PlanOffload offload;
    int recompute; /* PLAN_RECOMPUTE_N: stages differ */
} PlanRuleCase;

/* Whether exchanges of experts run behind another micro-batch, with what that asks for (merges_chunks of
 * PlanFrameworkRules); @ep  0: not known, and taken to be above 1.  @rules  (nullable) */
static inline bool
plan_rules_merge(const PlanFrameworkRules *rules, const PlanConventions *conventions,
                 const ModelArch *arch, int64_t ep)
{
    return rules != NULL && rules->merges_chunks && conventions->overlap_ep &&
           arch->experts.n_experts > 0 && ep != 1;
}

/* Returns: (borrowed, nullable) the row of the framework's own models that @arch is; how many MTP modules it
 * has does not matter where the framework has any. */
const PlanFrameworkModel *plan_rules_model(const PlanFrameworkRules *rules, const ModelArch *arch);

/* A broken rule. */
typedef struct {
    const char *rule; /* its name: "zero-with-pp" */
    char *text;       /* (owned) what it asks, and of what: "a rank has one stage: --vpp 2" */
    char *change;     /* (owned, nullable) the flags of `degas plan` that lead to a plan without */
} PlanBreach;
void plan_breach_clear(PlanBreach *breach);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(PlanBreach, plan_breach_clear)

/*
 * Whether @c keeps the rules of @aspect.  Cost: some comparisons.
 * @breach  (out, nullable, owned by the caller) the first rule that it breaks.
 */
bool plan_rules_keep(const PlanRuleCase *c, PlanAspect aspect, PlanBreach *breach);

/* Returns: (owned) GArray of PlanBreach, to which more may be added: all rules of @framework that
 * @plan breaks.  @arch and @plan may be NULL where the framework has no rules. */
GArray *plan_rules_broken(PlanFramework framework, const ModelArch *arch, const Plan *plan);
