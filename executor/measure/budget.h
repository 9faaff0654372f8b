/*
 * executor/measure/budget.h - what a profile has time for.
 *
 * A profile is rounds of layers, one for every tensor-parallel degree, the first of them with links
 * (optimizer, messages, collectives, copies), and then a layer beside others on 1, 2, 4, ... ranks.
 * A budget is either a limit, where somebody asked for one: then nothing that can be left out is
 * begun that is expected to end beyond it; or a target, for layers and links: then links and what
 * runs beside a layer are all timed, and the least repetitions may take EXEC_BUDGET_LATE times as
 * long.
 *
 * Knows no clock and times nothing: all it does follows from the seconds that it is told.
 * Private to executor/measure*.c.  Thread-safety: none.
 */
#ifndef EXECUTOR_MEASURE_BUDGET_H
#define EXECUTOR_MEASURE_BUDGET_H

#include "profiles/profile.h"

G_BEGIN_DECLS

/* Of a target: for the least repetitions. */
#define EXEC_BUDGET_LATE 1.5
/* Of the budget: for a layer beside others on one number of ranks. */
#define EXEC_BUDGET_BESIDE_SHARE 0.05
/* Of a round's part of a limit: for each of the two passes over links that there always are. */
#define EXEC_BUDGET_LINKS_SHARE 0.125

typedef struct {
    double total_s;
    bool is_limit;
    int64_t n_rounds;
    int64_t n_beside; /* numbers of ranks that a layer is timed beside others on */
    double setup_s;   /* what it takes to make ranks, before each of them; 0: not known yet */
} ExecBudget;

/* What round @round may take, when @spent_s were spent before it: of a limit an equal part of what
 * is left, without what comes behind the rounds; may be negative. */
double exec_budget_round_s(const ExecBudget *budget, int64_t round, double spent_s);

/* Whether what can be left out is begun after @spent_s, when it is expected to take @expected_s. */
bool exec_budget_has_time(const ExecBudget *budget, double spent_s, double expected_s);

/* --- repetitions --- */

typedef struct {
    double round_s, spent_s; /* of this round */
    double expected_s;       /* of another repetition */
    int32_t n, least, most;  /* repetitions so far that count, and their bounds */
    int32_t n_disturbed;     /* those that do not; no more than @most either */
} ExecBudgetRepetitions;

/* Whether a repetition counts of whose timings so many were disturbed (samples.h): not if most
 * were.  It is made again, in the same time. */
bool exec_budget_counts(int64_t n_timings, int64_t n_disturbed);

/* Whether there is another one. */
bool exec_budget_repeats(const ExecBudget *budget, const ExecBudgetRepetitions *repetitions);

/* --- links --- */

/* What a pass over the links holds.  Every pass asks for them in the same order, small sizes of an
 * op before large ones; the first pass decides what the others time. */
typedef struct ExecBudgetLinks ExecBudgetLinks;

/* @pass_s  what a pass may take; infinite: all are timed. */
ExecBudgetLinks *exec_budget_links_new(double pass_s);
void exec_budget_links_free(ExecBudgetLinks *links);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecBudgetLinks, exec_budget_links_free)

void exec_budget_links_begin(ExecBudgetLinks *links);

/* Whether the next one, of @size bytes or elements, is timed: the first of its op and ranks is; of
 * the others those for which there is time if they take as long as the one before, in proportion to
 * the size. */
bool exec_budget_links_next(ExecBudgetLinks *links, ProfileOp op, int64_t n_ranks, int64_t size);

/* The one that was asked for last took so long. */
void exec_budget_links_note(ExecBudgetLinks *links, double seconds);

/* A whole pass, as things took the last time. */
double exec_budget_links_pass_s(const ExecBudgetLinks *links);

/* (owned, nullable) "all_reduce from 1048576 bytes on, ...": what is left out; NULL: nothing. */
char *exec_budget_links_left_out(const ExecBudgetLinks *links);

G_END_DECLS

#endif /* EXECUTOR_MEASURE_BUDGET_H */
