/*
 * cli/check/check.h - Check: whether a recipe starts and fits, how long it takes, and which single
 * edits of it would help.
 *
 * The main header of the room check/; the command check comes in.  There is no formula here: every
 * number is a simulation of the recipe's plan, or of that plan with one setting changed.  A changed
 * plan keeps the rules of the recipe's framework (planner/rules/rules.h), and what is changed is told
 * in the words of that framework: what its exporter writes of both plans is compared.
 */
#pragma once

#include "cli/recipe/recipe.h"
#include "cli/request/job.h"

/* Runs in which the allocator's share varies, for the probability to fit. */
#define CHECK_RUNS 1000

/* One setting changed, or two where no single one makes the recipe fit. */
typedef struct {
    char *what;     /* (owned) in degas's words: "tp 8 -> 4" */
    GPtrArray *set; /* of (owned) char *: lines in the framework's words */
    Plan *plan;     /* (owned) */
    Report *report; /* (owned) */
    bool is_bound;  /* its time may be longer: links that messages share were not followed */
    int kind, variant;
} CheckEdit;

typedef struct {
    const Recipe *recipe; /* (borrowed) */
    GArray *breaches;     /* of PlanBreach: all rules that it breaks; empty: it starts */
    Job *job;             /* (owned, nullable) NULL: not even a plan can be made of it */
    Report *report;     /* (owned, nullable) of the job; with jitter, for the probability to fit */
    GPtrArray *gains;   /* of CheckEdit: those that start, fit and are faster, the fastest first */
    CheckEdit *nearest; /* (owned, nullable) where it does not fit: the fastest that does */
    guint n_tried;
} Check;

/*
 * Checks a recipe.
 * @request  (nullable) NULL with @refusal, why no plan can be made of the recipe
 * @n_gains  how many edits are kept; 0: none is looked for
 * Returns: (owned) NULL on an error that is not the recipe's.
 */
Check *check_new(const Recipe *recipe, const Request *request, const GError *refusal, guint n_gains,
                 GError **error);
void check_free(Check *check);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Check, check_free)

/* Whether it starts; whether it fits, too. */
bool check_starts(const Check *check);
bool check_fits(const Check *check);

/* --- products (defined in write.c) --- */

void check_print(const Check *check, bool names_unused);
void check_write(JsonWriter *writer, const Check *check);

/* --- edits (defined in edits.c) --- */

/* Adds every single edit of @request's plan that starts to @edits (of CheckEdit *); their times are
 * bounds. */
void check_edits_add(const Check *check, const Request *request, GPtrArray *edits);
/* Sorts @edits, the fastest first, and simulates so many of them to the end that the first @n that
 * fit and take less than @limit_ns are those. */
void check_edits_refine(const Check *check, const Request *request, GPtrArray *edits, guint n,
                        int64_t limit_ns);
/* (owned) The fastest of @edits that fits, made anew; else of pairs of them; NULL: none does. */
CheckEdit *check_edits_nearest(Check *check, const Request *request, GPtrArray *edits);
/* Fills edit->set. */
bool check_edit_describe(const Check *check, CheckEdit *edit, GError **error);
void check_edit_free(CheckEdit *edit);
