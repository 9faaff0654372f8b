/*
 * executor/run/run.h - executes a Plan's Schedule on ranks and records a measured Trace.
 *
 * Ranks are tp x cp x dp x pp threads of one process (transport `local`), or a process each (`mpi`
 * and `nccl`: launch.h starts them, and each calls exec_run()); each has its own backend,
 * parameters, activations and clock on the common monotonic time, or one aligned to rank 0's.  A
 * rank runs the ops of its pipeline rank in the schedule's order; messages go from stage to stage,
 * as in the simulator. After the last op gradients are summed over all copies of a parameter, AdamW
 * steps. Process ranks are numbered tp fastest, then cp, dp, pipeline rank slowest.
 *
 * Faults: every wait has a time limit; a rank that fails or hangs stops all others, and the error
 * names it and what it was doing.  A rank that never comes back is left behind: its thread and what
 * it uses live on until the process ends, the call returns.
 *
 * Determinism: initial values depend on seed and parameter only, not on degrees; every accumulation
 * has an order fixed by the schedule; so equal plans give equal bits, run after run.
 */
#ifndef EXECUTOR_RUN_RUN_H
#define EXECUTOR_RUN_RUN_H

#include "executor/device/backend.h"
#include "models/arch.h"
#include "profiles/profile.h"
#include "schedule/plan.h"

G_BEGIN_DECLS

typedef struct {
    const ModelArch *arch; /* (borrowed) */
    const Plan *plan;      /* (borrowed) */
    /* (borrowed, nullable) the plan's, where who calls has built it for the plan's own times; NULL:
     * plan_build_schedule() without times */
    const Schedule *schedule;
    /* (nullable) [pp] the simulator's peak of each pipeline rank: a device takes that much memory
     * at once, before the first step, and names it when it runs out. */
    const int64_t *predicted_bytes;
    const char *device;    /* "cpu", "reference", "cuda" */
    int n_threads;         /* of a rank on "reference"; 0: 1 */
    const char *transport; /* "local", "mpi", "nccl" */
    const char *data_path; /* (nullable) text or .bin; NULL: synthetic tokens from the seed */
    int64_t n_steps;       /* until so many are done, those before @resume included */
    uint64_t seed;
    float init_deviation; /* of initial weights; 0: 0.02 */
    float learning_rate;  /* AdamW, after a short warm-up: optimize.h */
    int64_t decay_steps;  /* ... falls to a tenth by this step; 0: constant */
    float clip_norm;      /* gradients with a larger global norm are scaled to it; 0: never */
    bool verify; /* compare loss and every gradient with one device on the reference backend */
    double verify_tolerance; /* exec_verify_tolerance() */
    bool deterministic;      /* transport mpi: additions in the order of transport local */
    /* Device cuda: from the second step on, every op is launched as one CUDA graph.  Not where ops
     * have collectives or experts in them: then it does nothing. */
    bool graphs;
    /* Rows go to the experts in turn, whatever the router's scores: as many to each, as where
     * routers are trained for it.  For times and memory; what is trained is worth nothing. */
    bool balance_experts;
    const int *stop; /* (nullable) not 0: end after the step at hand */
    /* Transports mpi and nccl: which rank this process is (launch.h), where the watcher listens
     * (rank 0's is enough), and whether the ranks meet by peers.h instead of MPI. */
    int32_t process_rank;
    const char *watch_where; /* (nullable) */
    bool without_mpi;
    /* checkpoint.h; after the last step, and after every @checkpoint_every steps (0: only then). */
    const char *checkpoint_dir; /* (nullable) */
    int64_t checkpoint_every;
    bool resume; /* begin where the checkpoint of @resume_step ended; n_steps counts from 0 */
    int64_t resume_step;     /* -1: the last one */
    const char *offload_dir; /* (nullable) folder of the files of offload.h; NULL: temporary */
    double timeout_s;        /* of any wait; 0: 30 s or 20 times the median step */
    bool want_trace;         /* of the median step */
    /* (nullable) told after every step, on the caller's thread */
    void (*progress)(int64_t step, double loss, double step_s, void *user_data);
    void *user_data;
    /* (nullable) called before every op on its rank's thread; a false return (with an error) is
     * that rank's failure.  For fault injection in tests; may outlive the call if it hangs. */
    bool (*before_op)(int32_t process_rank, int64_t step, ScheduleOp op, void *user_data,
                      GError **error);
    void *before_op_data;
    /* After the last step collectives and messages between the ranks are timed for so long
     * (measure_collectives.h), up to so many bytes; 0: not.  Of @transport nccl. */
    double collectives_s;
    int64_t collectives_bytes;
} ExecRunOptions;

typedef struct {
    bool interrupted;       /* n_steps are fewer than asked for */
    bool is_mine;           /* false: rank 0's process has the result, this one has nothing */
    bool told;              /* with an error: another process prints it */
    int64_t first_step;     /* resumed: steps that had been done before */
    int64_t n_steps;        /* of this run */
    double *losses;         /* (owned) n_steps */
    double *step_s;         /* (owned) n_steps, wall time of each step, all ranks */
    double bubble_fraction; /* of the traced step */
    /* Of the cores that rank 0's process may use, what the host of the virtual machine took while
     * steps ran (base/host_steal.h); NaN: not known. */
    double stolen_fraction;
    /* Per process rank; empty when the ranks did not come back from an interruption. */
    GArray *busy_s;            /* of double, traced step */
    GArray *peak_memory_bytes; /* of int64_t */
    double clock_error_s;      /* of times in the trace between ranks of different processes */
    Trace *trace;              /* (owned, nullable) pipeline ranks of replica 0, with memory */
    int64_t traced_step;       /* the median one among the last EXEC_TRACED_STEPS */
    bool verified, passed;
    double max_gradient_error; /* relative L2 per tensor, the largest */
    char *worst_tensor;        /* (owned, nullable) "layer.0.qkv.weight on rank 1" */
    double reference_loss;     /* of step 0 on one device */
    char *backend;             /* (owned) exec_backend_describe() */
    char *attention;           /* (owned, nullable) exec_backend_attention_kernel() */
    char *collectives;         /* (owned, nullable) their timings, for exec_measure() */
} ExecRunResult;

/* Steps whose events are kept until the median is known. */
#define EXEC_TRACED_STEPS 15

void exec_run_result_clear(ExecRunResult *result);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(ExecRunResult, exec_run_result_clear)

/* What rounding may cost: relative L2 per tensor, 1e-5 in fp32, 2e-2 where 8 bits are stored. */
double exec_verify_tolerance(Dtype dtype);

/*
 * Whether this executor can run the plan for the model: EXEC_ERROR_UNSUPPORTED names what it
 * cannot, PLAN_ERROR_INVALID what contradicts itself.
 */
bool exec_plan_supported(const ModelArch *arch, const Plan *plan, GError **error);

/* As exec_run() would refuse before it starts a rank: the plan, the transport, the data. */
bool exec_run_check(const ExecRunOptions *options, GError **error);

/*
 * Trains @n_steps steps, or those that had ended when somebody set @stop (interrupted; without a
 * trace when the last one would not end).  EXEC_ERROR_UNSUPPORTED before anything starts when the
 * plan asks for what is not there (names it).  A failed verification is no error: passed is false.
 */
bool exec_run(const ExecRunOptions *options, ExecRunResult *result, GError **error);

G_END_DECLS

#endif /* EXECUTOR_RUN_RUN_H */
