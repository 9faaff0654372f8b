/*
 * executor/measure/measure.h - the profiler: times layers, embedding, head, optimizer, copies,
 * messages and collectives on this machine with the executor's own code, and writes them into a
 * Profile.
 *
 * On CPUs timings during which others had the core are set aside (clock.h), and told.
 *
 * Times with as many ranks busy at once as the plan will have, so that shared caches, memory and
 * clocks are in the numbers.  Warmed up; on the device's own clock; medians with 10th and 90th
 * percentile; on GPUs with cold caches.  The grid of (batch, slice, context) grows only where
 * interpolation is not good enough (measure_grid.h), and how good it is is measured too: points are
 * left out in turn and predicted by the others (Profile.fit_errors).
 */
#ifndef EXECUTOR_MEASURE_MEASURE_H
#define EXECUTOR_MEASURE_MEASURE_H

#include "executor/device/backend.h"
#include "profiles/profile.h"
#include "schedule/plan.h"

G_BEGIN_DECLS

typedef struct {
    const ModelArch *arch;  /* (borrowed) */
    const char *device;     /* "cpu", "reference", "cuda" */
    Dtype dtype;            /* that activations and weights are stored in: fp32 or bf16 */
    int64_t seq_len;        /* 0: the model's */
    const int64_t *batches; /* (borrowed, nullable) micro-batch sizes; NULL: 1, 2, 4 as needed */
    size_t n_batches;
    const int64_t *slices; /* (borrowed, nullable) slice lengths; NULL: from seq_len, as needed */
    size_t n_slices;
    const int64_t *tps; /* (borrowed, nullable) tensor-parallel degrees; NULL: 1 */
    size_t n_tps;
    int64_t concurrency; /* ranks busy at once; 0: the cores, or 1 on a GPU */
    bool quick;          /* fewer repetitions and points */
    /* What all of it may take: what cannot be left out is timed, all else is begun only if it is
     * expected to end within it (measure_budget.h).  0: 12 s when quick, else a target of 60 s for
     * layers and links. */
    double budget_s;
    /* (nullable) what is there so far is kept in this file, every few seconds, until all is done;
     * @resume: begins with what it holds. */
    const char *partial_path;
    bool resume;
    /* (nullable) ExecRunResult.collectives of a run with a GPU for every rank: then the profile is
     * of that machine, and messages and collectives are those.  NULL: they go between ranks of
     * one device. */
    const char *collectives;
    const int *stop; /* (nullable) not 0: end with EXEC_ERROR_INTERRUPTED at the next op */
    /* (nullable) on the caller's thread; @left_s is an estimate, infinite at first */
    void (*progress)(double fraction, double left_s, const char *what, void *user_data);
    /* (nullable) what was left out, and why; on the caller's thread */
    void (*note)(const char *text, void *user_data);
    void *user_data;
} ExecMeasureOptions;

/*
 * Returns: (owned) a profile of this machine with measured rows; NULL on an EXEC_ERROR, or, of the
 * partial file, JSON_ERROR_INVALID, G_FILE_ERROR or EXEC_ERROR_DATA (it is of another profile).
 */
Profile *exec_measure(const ExecMeasureOptions *options, GError **error);

/* Lists in their bounds, and the model one that this executor runs: else EXEC_ERROR_UNSUPPORTED,
 * before anything is timed. */
bool exec_measure_supported(const ExecMeasureOptions *options, GError **error);

/* Whether the unfinished profile in @path has collectives between GPUs already. */
bool exec_measure_has_collectives(const char *path);

/* A model so small that its ops are nearly nothing, and a plan for it: for runs in which something
 * else is timed. */
extern const ModelArch exec_measure_tiny_arch;
Plan *exec_measure_tiny_plan(Dtype dtype, int64_t n_stages, int64_t n_copies,
                             int64_t n_micro_batches);

G_END_DECLS

#endif /* EXECUTOR_MEASURE_MEASURE_H */
