/*
 * executor/measure/layers.h - the job of a round: times layers on a grid that grows, and, in one
 * round, the links too.
 *
 * A round is at one tensor-parallel degree.  Links go first, once, to warm them up and to learn how
 * long they take; then the grid grows; then everything is repeated while there is time.
 *
 * Private to executor/measure/.
 */
#pragma once

#include "executor/measure/rank.h"

/* The job_data of exec_measure_layers(); thread 0's, between meetings. */
typedef struct {
    ExecGrid *grid;   /* (borrowed) */
    Profile *profile; /* (borrowed) what is known, for predictions between points */
    int64_t tp;
    const ExecBudget *budget; /* (borrowed) its setup_s is not known yet in the first round */
    int64_t created_ns;       /* before the threads were started */
    int64_t begin_ns;         /* created_ns, less the time that a resumed profile took before */
    int64_t round;
    double spent_before_s;    /* before this round */
    _Atomic int64_t round_ns; /* this round's part of the budget */
    bool wants_all;           /* the user asked for the points: all are timed */
    int32_t min_repetitions, max_repetitions;
    atomic_int n_repetitions; /* finished ones that count, those of a resumed profile included */
    int32_t n_disturbed;      /* finished ones that do not count: exec_budget_counts() */
    ExecSamplesTotal before;  /* the samples before this repetition */
    atomic_int n_timed;       /* points of the grid */
    bool with_links; /* whether links, which do not depend on tp, are timed in this round */
    bool (*keep)(void *user_data, bool now, GError **error); /* writes what is there to a file */
    void *user_data;
    double links_s;      /* what the last pass over the links took */
    double points_s[2];  /* what timing all points took the last time: whole, and by kind too */
    double required_s;   /* (out) what the points took that are timed whatever they take */
    bool has_all_points; /* (out) no point is missing for want of time */
    double wanted_s;     /* (out) about what a round takes that has all points and repetitions */
    double setup_s;      /* (out) what making the ranks took */
} ExecMeasureLayers;

/* What every thread of a round does. */
bool exec_measure_layers(ExecMeasureRank *rank, GError **error);
