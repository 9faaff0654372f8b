/*
 * executor/measure/measure.h - the profiler: times what a rank does on this machine, and writes it
 * into a Profile.
 *
 * The room executor/measure/ is for what `degas profile` measures: layers, embedding, head,
 * optimizer, copies, messages and collectives.  It runs the executor's own stages between two
 * stamps of the device's clock.  Only cli/ and tests come in.
 *
 *   rank.h           the threads, one for each rank, in lockstep; timing an op of a stage
 *   layers.h         the job of a round: layers on a grid, and links
 *   links.h          what needs no grid: optimizer, messages, collectives, copies, launches
 *   grid.h           which (batch, slice length) is timed next
 *   budget.h         what there is time for
 *   kinds.h          how a layer's time divides among the kinds of its ops
 *   interference.h   a layer beside copies, collectives and other ranks
 *   sustained.h      how much slower a layer becomes on a device that works without a break
 *   variation.h      how timings vary from op to op and from rank to rank
 *   machine.h        what is known of the machine before and after timing
 *   attention.h      which attention kernels are used, before all of that
 *
 * As many ranks are busy at once as the plan will have, so that shared caches, memory and clocks
 * are in the numbers.  Timings are warmed up, taken on the device's own clock, and on GPUs with
 * cold caches; a row is their median with 10th and 90th percentile.  On CPUs a timing during which
 * others had the core is told by the thread's own clock (executor/device/clock.h), set aside
 * (executor/transport/samples.h) and reported.  How well the grid can be interpolated is measured
 * too: points are left out in turn and predicted by the others (Profile.fit_errors).
 */
#pragma once

#include "executor/device/backend.h"
#include "profiles/profile.h"
#include "schedule/plan.h"

typedef struct {
    const ModelArch *arch;  /* (borrowed) */
    const char *device;     /* "cpu", "reference", "cuda" */
    Dtype dtype;            /* in which activations and weights are stored: fp32 or bf16 */
    const char *attention;  /* (nullable) ExecBackendOptions.attention */
    int64_t seq_len;        /* 0: the model's */
    const int64_t *batches; /* (borrowed, nullable) sizes; NULL: 1, 4, on GPUs also 2, as needed */
    size_t n_batches;
    const int64_t *slices; /* (borrowed, nullable) slice lengths; NULL: from seq_len, as needed */
    size_t n_slices;
    const int64_t *tps; /* (borrowed, nullable) tensor-parallel degrees; NULL: 1 */
    size_t n_tps;
    int64_t concurrency; /* ranks that are busy at once; 0: the cores, or 1 on a GPU */
    bool quick;          /* fewer repetitions and points */
    /* What the whole profile may take.  What cannot be left out is timed; all else is begun only if
     * it is expected to end in time (budget.h).  0: a limit of 12 s when quick, else a target of
     * 60 s for layers and links. */
    double budget_s;
    /* (nullable) a file that keeps what has been timed, every few seconds, until all is done */
    const char *partial_path;
    bool resume; /* begin with what that file holds */
    /* (nullable) ExecRunResult.collectives of a run with a GPU for every rank: then the profile is
     * of that machine, with these messages and collectives.  NULL: they are timed between ranks of
     * one device. */
    const char *collectives;
    const int *stop; /* (nullable) not 0: end with EXEC_ERROR_INTERRUPTED at the next op */
    /* (nullable) called on the caller's thread; @left_s is an estimate, infinite at first */
    void (*progress)(double fraction, double left_s, const char *what, void *user_data);
    /* (nullable) told what was left out, and why; called on the caller's thread */
    void (*note)(const char *text, void *user_data);
    void *user_data;
} ExecMeasureOptions;

/* Returns: (owned) a profile of this machine with measured rows.  NULL on an EXEC_ERROR, or, of the
 * partial file, JSON_ERROR_INVALID, G_FILE_ERROR or EXEC_ERROR_DATA (it belongs to another
 * profile). */
Profile *exec_measure(const ExecMeasureOptions *options, GError **error);

/* Returns whether the lists are in their bounds and the model is one that this executor runs: else
 * EXEC_ERROR_UNSUPPORTED, before anything is timed. */
bool exec_measure_supported(const ExecMeasureOptions *options, GError **error);

/* Returns whether the unfinished profile in the file @path already has collectives between GPUs. */
bool exec_measure_has_collectives(const char *path);

/* A model so small that its ops are nearly nothing, and (owned) a plan for it: for runs in which
 * something else is timed. */
extern const ModelArch exec_measure_tiny_arch;
Plan *exec_measure_tiny_plan(Dtype dtype, int64_t n_stages, int64_t n_replicas,
                             int64_t n_micro_batches);
