/*
 * executor/run/run.h - executes a Plan's Schedule on ranks, and records a measured Trace.
 *
 * The room executor/run/ is the life of a rank:
 *
 *   run.h         what a run is asked for, what is refused, and its results
 *   supervise.h   starts the ranks' threads, and notices failures
 *   shared.h      what all ranks of a run share
 *   rank.h        one rank: its transport, its steps, its ops, and what it leaves behind
 *   optimize.h    the end of a step
 *   data.h        training data
 *   checkpoint.h  the training state on disk
 *   verify.h      the same step on one device
 *
 * Only run.h is for others: executor/measure/ and cli/ run jobs with it.
 *
 * Ranks are tp x cp x dp x pp threads of one process (transport `local`), or a process each (`mpi`
 * and `nccl`: launch.h starts the processes, and each calls exec_run()).  Each rank has its own
 * backend, parameters and activations.  It runs the ops of its pipeline rank in the schedule's
 * order, and messages go from stage to stage, as in the simulator.  After the last op the gradients
 * are summed over all ranks that hold a parameter, and AdamW steps.  Times are those of the
 * monotonic clock that threads have in common, or of clocks aligned to rank 0's.  Process ranks are
 * numbered in the plan's rank order (schedule/rank_order.h).
 *
 * Faults: every wait has a time limit.  A rank that fails or hangs stops all others, and the error
 * names it and what it was doing.  A thread that never comes back is left behind: it and what it
 * uses stay until the process ends, and the call returns.
 *
 * Determinism: initial values depend on seed and parameter only, not on degrees, and the schedule
 * fixes the order of every sum; so equal plans give equal bits, run after run.
 */
#pragma once

#include "executor/device/backend.h"
#include "models/arch.h"
#include "profiles/profile.h"
#include "schedule/plan.h"

typedef struct {
    const ModelArch *arch; /* (borrowed) */
    const Plan *plan;      /* (borrowed) */
    /* (borrowed, nullable) The plan's schedule, where the caller has built it for the plan's own
     * times; NULL: plan_build_schedule() builds it without times. */
    const Schedule *schedule;
    /* (nullable) [pp] The simulator's peak of each pipeline rank: a device takes that much memory
     * at once, before the first step, and names it in the error if there is less. */
    const int64_t *predicted_bytes;
    const char *device;    /* "cpu", "reference", "cuda" */
    int n_threads;         /* with which a rank computes on "reference"; 0: 1 */
    const char *attention; /* (nullable) ExecBackendOptions.attention */
    const char *transport; /* "local", "mpi", "tcp", "nccl" */
    const char *data_path; /* (nullable) data.h; NULL: synthetic tokens from the seed */
    int64_t n_steps;       /* the run ends after so many, counted from the start of training */
    uint64_t seed;
    float init_deviation; /* of initial weights; 0: 0.02 */
    float learning_rate;  /* of AdamW, after a short warm-up: optimize.h */
    int64_t decay_steps;  /* the learning rate falls to a tenth by this step; 0: it is constant */
    float clip_norm;      /* gradients with a larger global norm are scaled down to it; 0: never */
    bool verify; /* compare loss and every gradient with one device on the reference backend */
    double verify_tolerance; /* exec_verify_tolerance() */
    /* Transport mpi: sums in the order in which transport local adds.  Device cuda: no kernel is
     * chosen by its time. */
    bool deterministic;
    /* Device cuda: from the second step on every op is launched as one CUDA graph, where
     * exec_stage_is_capturable(), weights are not gathered and nothing is offloaded. */
    bool graphs;
    /* Rows go to the experts in turn, whatever the router's scores, so that each expert has as many
     * as where routers have been trained for balance.  For times and memory: nothing useful is
     * trained. */
    bool balance_experts;
    /* (nullable) When it is not 0, the run ends after the present step: within EXEC_STOP_S, or with
     * EXEC_STOP_PATIENTLY (launch.h) whenever that step has ended. */
    const int *stop;
    /* Transports between processes: which rank this process is (launch.h), where the watcher listens
     * (only rank 0's process needs to know), and whether the ranks meet by sockets instead of MPI.
     */
    int32_t process_rank;
    const char *watch_where; /* (nullable) */
    bool without_mpi;
    bool other_machines; /* ranks may be on several: this one need not hold all of their state */
    /* Checkpoints are saved after the last step, and every @checkpoint_every steps (0: not). */
    const char *checkpoint_dir; /* (nullable) NULL: none are saved */
    int64_t checkpoint_every;
    bool resume;         /* the run goes on from the checkpoint of @resume_step */
    int64_t resume_step; /* -1: the last checkpoint */
    const char
        *offload_dir; /* (nullable) folder of the files of offload.h; NULL: the temporary one */
    double timeout_s; /* limit of any wait; 0: 30 s or 20 times the median step */
    bool want_trace;  /* of the median step */
    /* (nullable) Called after every step, on the caller's thread. */
    void (*progress)(int64_t step, double loss, double step_s, void *user_data);
    void *user_data;
    /* (nullable) Called before every op, on its rank's thread.  Returning false (with an error) is
     * that rank's failure.  For tests that inject faults; if it hangs, it outlives the run. */
    bool (*before_op)(int32_t process_rank, int64_t step, ScheduleOp op, void *user_data,
                      GError **error);
    void *before_op_data;
    /* Transport nccl: for how long, after the last step, collectives and messages between the ranks
     * are timed (measured_collectives.h; 0: they are not), and up to how many bytes. */
    double collectives_s;
    int64_t collectives_bytes;
} ExecRunOptions;

typedef struct {
    bool interrupted;       /* there were fewer steps than asked for */
    bool is_mine;           /* false: rank 0's process has the result, and this one has none */
    bool told;              /* with an error: another process prints it */
    int64_t first_step;     /* steps that had been done before the run was resumed */
    int64_t n_steps;        /* of this run */
    double *losses;         /* (owned) n_steps */
    double *step_s;         /* (owned) n_steps, from the first rank's start to the last one's end */
    double bubble_fraction; /* of the traced step */
    /* The share of the cores of rank 0's process that the host of the virtual machine took while
     * steps ran (base/host_steal.h); NaN: not known. */
    double stolen_fraction;
    /* By process rank; empty where the ranks did not come back from an interruption. */
    GArray *busy_s;            /* of double, in the traced step */
    GArray *peak_memory_bytes; /* of int64_t */
    double clock_error_s;      /* how wrong times of different processes may be to each other */
    Trace *trace;        /* (owned, nullable) of the pipeline ranks of replica 0, with memory */
    int64_t traced_step; /* the one of median time among the last EXEC_TRACED_STEPS */
    bool verified, passed;
    double max_gradient_error; /* the largest exec_relative_error() of a tensor (verify.h) */
    char *worst_tensor;        /* (owned, nullable) "layer.0.qkv.weight on rank 1" */
    double reference_loss;     /* of step 0 on one device */
    char *backend;             /* (owned) exec_backend_describe() */
    char *attention;           /* (owned, nullable) exec_backend_attention_kernel() */
    char *collectives; /* (owned, nullable) the timings of collectives, for exec_measure() */
} ExecRunResult;

/* How many of the last steps have their events kept until the median is known. */
#define EXEC_TRACED_STEPS 15

void exec_run_result_clear(ExecRunResult *result);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(ExecRunResult, exec_run_result_clear)

/* Returns: the largest relative L2 error of a tensor's gradient that rounding explains: 1e-5 in
 * fp32, 2e-2 in narrower formats (bf16 stores 8 bits). */
double exec_verify_tolerance(Dtype dtype);

/* Whether this executor can run the plan for the model on @device.  EXEC_ERROR_UNSUPPORTED names what it
 * cannot do, PLAN_ERROR_INVALID what contradicts itself; EXEC_ERROR_MEMORY: the state is larger
 * than this machine's memory. */
bool exec_plan_supported(const ModelArch *arch, const Plan *plan, const char *device,
                         GError **error);

/* Checks what exec_run() refuses before it starts a rank: plan, transport, data, checkpoint. */
bool exec_run_check(const ExecRunOptions *options, GError **error);

/*
 * Trains @n_steps steps, or as many as had ended when somebody set @stop; then the result says
 * interrupted, and has no trace if the last step would not end.  EXEC_ERROR_UNSUPPORTED, before
 * anything starts, names what the plan asks for and is not there.  A verification that fails is no
 * error: passed is false.
 */
bool exec_run(const ExecRunOptions *options, ExecRunResult *result, GError **error);
