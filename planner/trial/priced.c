#include "planner/trial/priced.h"

#include "planner/bounds/link_bound.h"
#include "planner/bounds/plan_bound.h"

/* What the memo has of a plan. */
typedef struct {
    PlanPricedBounds bounds;
    GMutex lock;
    /* (owned, nullable) of the simulation with the highest limit; what it takes is exact up to that */
    Report *report;
    int64_t limit_ns;
} Known;

struct PlanPriced {
    const PlanTrial *trial; /* (borrowed) */
    const Plan *plan;       /* (borrowed) */
    Workload *workload;     /* (owned, nullable) where the bounds were taken from it */
    Known *known;           /* (borrowed, nullable) of the memo */
    PlanPricedBounds bounds;
};

static void
known_free(gpointer data)
{
    Known *known = data;

    report_free(known->report);
    g_mutex_clear(&known->lock);
    g_free(known);
}

/* --- pricing --- */

static Workload *
price(const PlanTrial *trial, const Plan *plan, GError **error)
{
    const PlanRequest *request = trial->evaluation->space->request;

    return workload_new(request->arch, request->profile, plan, request->memory_limit_bytes, error);
}

static PlanPricedBounds
bounds_of(const PlanTrial *trial, const Plan *plan, const Workload *workload,
          const ScheduleFamily *family)
{
    const PlanFlight *flight = plan_bound_flight(plan, trial->evaluation->memo);
    const int64_t bound_ns = plan_bound_ns(plan, workload, family);
    const int64_t path_ns = plan_bound_path_ns(plan, workload, flight);
    const int64_t links_ns = plan_bound_links_ns(plan, workload);
    const int64_t bytes = plan_bound_bytes(plan, workload, flight);
    const int64_t fullest_bytes =
        trial->evaluation->is_timeless
            ? plan_bound_fullest_bytes(plan, workload,
                                       plan_bound_fullest(plan, trial->evaluation->memo))
            : 0;

    return (PlanPricedBounds){
        .ns = MAX(bound_ns, MAX(path_ns, links_ns)),
        .bytes = MAX(bytes, fullest_bytes),
        .most_usable_bytes = plan_trial_most_usable_bytes(workload),
        .first_usable_bytes = workload_usable_bytes(&workload->ranks[0]),
    };
}

/* --- what tells plans apart --- */

static void
add_word(GArray *words, int64_t word)
{
    g_array_append_val(words, word);
}

static void
add_numbers(GArray *words, const GArray *numbers)
{
    add_word(words, numbers == NULL ? 0 : numbers->len);
    for (guint i = 0; numbers != NULL && i < numbers->len; i++)
        add_word(words, g_array_index(numbers, int64_t, i));
}

/* (owned) a PlanMemoKey: the plan, and the memory of its ranks. */
static GArray *
key_of(const PlanTrial *trial, const Plan *plan, const ScheduleFamily *family)
{
    GArray *words = g_array_new(FALSE, FALSE, sizeof(int64_t));

    add_word(words, 0); /* n_words */
    add_word(words, PLAN_MEMO_PRICED);
    add_word(words, (int64_t)(intptr_t)family);
    G_STATIC_ASSERT(sizeof plan->degrees % sizeof(int64_t) == 0);
    g_array_append_vals(words, &plan->degrees, sizeof plan->degrees / sizeof(int64_t));
    /* Of conventions those in which searches that share a memo may differ. */
    add_word(words, (int64_t)plan->conventions.optimizer);
    add_word(words, plan->conventions.overlap_pp);
    add_word(words, plan->global_batch);
    add_word(words, plan->micro_batch);
    add_word(words, plan->n_micro_batches);
    add_word(words, plan->group);
    add_word(words, plan->zero_stage);
    add_word(words, (int64_t)plan->offload);
    add_word(words, plan->offload_parameters);
    add_word(words, plan->prefetch_layers);
    add_word(words, plan->sequence_parallel);
    add_numbers(words, plan->slices);
    add_numbers(words, plan->micro_batch_sequences);
    add_word(words, plan->stages->len);
    for (guint i = 0; i < plan->stages->len; i++) {
        const PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);
        add_word(words, stage->n_layers);
        add_word(words, (int64_t)stage->recompute);
    }
    add_word(words, trial->evaluation->space->request->memory_limit_bytes);
    for (int64_t r = 0; r < plan->degrees.pp; r++)
        add_word(words, trial->limits_bytes[r]);
    g_array_index(words, int64_t, 0) = words->len;
    return words;
}

/* --- the memo --- */

typedef struct {
    const PlanTrial *trial;
    const Plan *plan;
    const ScheduleFamily *family;
    Workload **workload; /* (out, owned) */
    GError **error;
} Question;

/* PlanMemoMakeFunc. */
static void *
make_known(const void *data)
{
    const Question *asked = data;
    Workload *workload = price(asked->trial, asked->plan, asked->error);

    if (workload == NULL)
        return NULL;
    Known *known = g_new0(Known, 1);
    g_mutex_init(&known->lock);
    known->bounds = bounds_of(asked->trial, asked->plan, workload, asked->family);
    *asked->workload = workload;
    return known;
}

PlanPriced *
plan_priced_new(const PlanTrial *trial, const Plan *plan, const ScheduleFamily *family,
                GError **error)
{
    const PlanEvaluation *evaluation = trial->evaluation;
    g_autoptr(PlanPriced) priced = g_new0(PlanPriced, 1);

    priced->trial = trial;
    priced->plan = plan;
    if (evaluation->space->request->skips_bound && !evaluation->is_timeless) {
        const Question question = {trial, plan, family, &priced->workload, error};
        g_autoptr(GArray) key = key_of(trial, plan, family);
        /* The lock alone guards what changes of it. */
        priced->known = (Known *)(intptr_t)plan_memo_get(
            evaluation->memo, (const PlanMemoKey *)(const void *)key->data, make_known, &question,
            known_free);
        if (priced->known == NULL)
            return NULL;
        priced->bounds = priced->known->bounds;
        return g_steal_pointer(&priced);
    }
    priced->workload = price(trial, plan, error);
    if (priced->workload == NULL)
        return NULL;
    priced->bounds = bounds_of(trial, plan, priced->workload, family);
    return g_steal_pointer(&priced);
}

void
plan_priced_free(PlanPriced *priced)
{
    if (priced == NULL)
        return;
    workload_free(priced->workload);
    g_free(priced);
}

const PlanPricedBounds *
plan_priced_bounds(const PlanPriced *priced)
{
    return &priced->bounds;
}

int64_t
plan_priced_order_ns(PlanPriced *priced)
{
    if (!schedule_family_find(priced->plan->schedule, NULL)->searches)
        return 0;
    if (priced->workload == NULL)
        priced->workload = price(priced->trial, priced->plan, NULL);
    return priced->workload == NULL ? 0 : plan_bound_order_ns(priced->plan, priced->workload);
}

/* --- simulating --- */

/* (owned, nullable) the known report, if it says what one up to @limit_ns would. */
static Report *
known_report(Known *known, int64_t limit_ns)
{
    Report *report = NULL;

    g_mutex_lock(&known->lock);
    if (known->report != NULL &&
        (!known->report->fits || known->report->iteration_ns <= known->limit_ns ||
         known->report->iteration_ns > limit_ns))
        report = report_copy(known->report);
    g_mutex_unlock(&known->lock);
    return report;
}

static void
remember(Known *known, const Report *report, int64_t limit_ns)
{
    g_mutex_lock(&known->lock);
    if (known->report == NULL || limit_ns > known->limit_ns) {
        report_free(known->report);
        known->report = report_copy(report);
        known->limit_ns = limit_ns;
    }
    g_mutex_unlock(&known->lock);
}

bool
plan_priced_evaluate(PlanPriced *priced, int64_t limit_ns, Report **report, GError **error)
{
    const PlanEvaluation *evaluation = priced->trial->evaluation;
    Report *known = priced->known == NULL ? NULL : known_report(priced->known, limit_ns);

    if (known != NULL) {
        *report = known;
        return true;
    }
    if (priced->workload == NULL)
        priced->workload = price(priced->trial, priced->plan, error);
    if (priced->workload == NULL || !evaluation->evaluate(priced->plan, priced->workload, limit_ns,
                                                          report, evaluation->user_data, error))
        return false;
    if (priced->known != NULL)
        remember(priced->known, *report, limit_ns);
    return true;
}
