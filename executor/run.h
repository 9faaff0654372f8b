/*
 * executor/run.h - executes a Plan's Schedule on ranks and records a measured Trace.
 *
 * Ranks are dp x pp threads of one process here (transport `local`); each has its own backend,
 * parameters, activations and clock on the common monotonic time.  A rank runs the ops of its
 * pipeline rank in the schedule's order; messages follow from schedule/graph.h, as in the
 * simulator.  After the last op: gradients are summed over dp (ring), tied embedding weights over
 * the first and last stage, AdamW steps.
 *
 * Faults: every wait has a time limit; a rank that fails or hangs stops all others, and the error
 * names it and what it was doing.
 *
 * Determinism: initial values depend on seed and parameter only, not on degrees; every accumulation
 * has an order fixed by the schedule; so equal plans give equal bits, run after run.
 */
#ifndef EXECUTOR_RUN_H
#define EXECUTOR_RUN_H

#include "executor/backend.h"
#include "models/arch.h"
#include "profiles/profile.h"
#include "schedule/plan.h"

G_BEGIN_DECLS

typedef struct {
    const ModelArch *arch; /* (borrowed) */
    const Plan *plan;      /* (borrowed) */
    const char *device;    /* "cpu", "reference", "cuda" */
    const char *transport; /* "local" */
    const char *data_path; /* (nullable) text or .bin; NULL: synthetic tokens from the seed */
    int64_t n_steps;
    uint64_t seed;
    float learning_rate; /* AdamW, constant after a short warm-up */
    bool verify; /* compare loss and every gradient with one device on the reference backend */
    double verify_tolerance; /* 1e-5 */
    double timeout_s;        /* of any wait; 0: 30 s or 20 times the median step */
    bool want_trace;         /* of the median step */
    /* (nullable) told after every step, on the caller's thread's behalf */
    void (*progress)(int64_t step, double loss, double step_s, void *user_data);
    void *user_data;
} ExecRunOptions;

typedef struct {
    int64_t n_steps;
    double *losses;            /* (owned) n_steps */
    double *step_s;            /* (owned) n_steps, wall time of each step, all ranks */
    double bubble_fraction;    /* of the traced step */
    GArray *busy_s;            /* of double, per process rank, traced step */
    GArray *peak_memory_bytes; /* of int64_t, per process rank */
    Trace *trace;              /* (owned, nullable) pipeline ranks of replica 0 */
    bool verified, passed;
    double max_gradient_error; /* relative L2 per tensor, the largest */
    char *worst_tensor;        /* (owned, nullable) */
    char *backend;             /* (owned) exec_backend_describe() */
} ExecRunResult;

void exec_run_result_clear(ExecRunResult *result);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(ExecRunResult, exec_run_result_clear)

/*
 * Trains @n_steps steps.  EXEC_ERROR_UNSUPPORTED before anything starts when the plan asks for what
 * is not there (names it).  A failed verification is no error: passed is false.
 */
bool exec_run(const ExecRunOptions *options, ExecRunResult *result, GError **error);

G_END_DECLS

#endif /* EXECUTOR_RUN_H */
