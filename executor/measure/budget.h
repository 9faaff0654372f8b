/*
 * executor/measure/budget.h - what a profile has time for.
 *
 * A profile consists of rounds, one for each tensor-parallel degree.  A round times layers; the
 * first one also times links (optimizer, messages, collectives, copies).  After the rounds a layer
 * is timed beside others on 1, 2, 4, ... ranks.
 *
 * A budget that the user asked for is a limit: nothing that can be left out is begun if it is
 * expected to end beyond it.  Else the budget is a target for layers and links: links, and a layer
 * beside others, are all timed, and the least number of repetitions may take EXEC_BUDGET_LATE times
 * as long.
 *
 * Knows no clock and times nothing: all answers follow from the seconds that it is told.
 * Private to executor/measure/ and its tests.  Thread-safety: none.
 */
#pragma once

#include "profiles/profile.h"

/* By how much the least number of repetitions may overrun a target. */
#define EXEC_BUDGET_LATE 1.5
/* The share of the budget for a layer beside others on one number of ranks. */
#define EXEC_BUDGET_BESIDE_SHARE 0.05
/* The share of a round's part of a limit for a pass over the links; there always are two. */
#define EXEC_BUDGET_LINKS_SHARE 0.125

typedef struct {
    double total_s;
    bool is_limit;
    int64_t n_rounds;
    int64_t n_beside; /* on how many numbers of ranks a layer is timed beside others */
    double setup_s;   /* what making ranks takes, before each of them; 0: not known yet */
} ExecBudget;

/* Returns what round @round may take when @spent_s were spent before it: of a limit, an equal part
 * of what is left, less what comes after the rounds.  May be negative. */
double exec_budget_round_s(const ExecBudget *budget, int64_t round, double spent_s);

/* Returns whether something that can be left out is begun after @spent_s, when it is expected to
 * take
 * @expected_s. */
bool exec_budget_has_time(const ExecBudget *budget, double spent_s, double expected_s);

/* --- repetitions --- */

typedef struct {
    double round_s, spent_s; /* of this round: its part, and what is spent of it */
    double expected_s;       /* of another repetition */
    int32_t n, least, most;  /* repetitions so far that count, and their bounds */
    int32_t n_disturbed;     /* repetitions so far that do not count; @most bounds them too */
} ExecBudgetRepetitions;

/* Returns whether a repetition counts.  It does not if most of its timings were disturbed
 * (executor/transport/samples.h); then it is made again, in the same time. */
bool exec_budget_counts(int64_t n_timings, int64_t n_disturbed);

/* Returns whether there is another repetition. */
bool exec_budget_repeats(const ExecBudget *budget, const ExecBudgetRepetitions *repetitions);

/* --- links --- */

/* The links of a pass.  Every pass asks for the same links in the same order.  The first pass
 * decides which of them are timed in the others too. */
typedef struct ExecBudgetLinks ExecBudgetLinks;

/* @pass_s  what a pass may take; infinite: all links are timed */
ExecBudgetLinks *exec_budget_links_new(double pass_s);
void exec_budget_links_free(ExecBudgetLinks *links);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecBudgetLinks, exec_budget_links_free)

/* Begins a pass. */
void exec_budget_links_begin(ExecBudgetLinks *links);

/* Returns whether the next link, of @size bytes or elements, is timed.  The first of an op and
 * number of ranks always is.  Of the others those are for which there is time, if they take as long
 * as the one before in proportion to their size. */
bool exec_budget_links_next(ExecBudgetLinks *links, ProfileOp op, int64_t n_ranks, int64_t size);

/* Notes how long the link took that was asked for last. */
void exec_budget_links_note(ExecBudgetLinks *links, double seconds);

/* Returns how long a whole pass takes, by what each link took the last time. */
double exec_budget_links_pass_s(const ExecBudgetLinks *links);

/* Returns: (owned, nullable) what is left out: "all_reduce from 1048576 bytes on, ..."; NULL if
 * nothing is. */
char *exec_budget_links_left_out(const ExecBudgetLinks *links);
