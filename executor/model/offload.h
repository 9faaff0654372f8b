/*
 * executor/model/offload.h - ExecOffload keeps the optimizer's state, and weights where the plan
 * says so, in host memory or in a file instead of on the device (the NVMe path of [Rajbhandari et
 * al. 2104.07857 section 5]).
 *
 * What is kept is a few arrays over the elements of a rank's shard: the fp32 master weights beside
 * narrower ones, the two moments, and the narrow weights themselves where parameters are offloaded.
 * They are cut into pieces of EXEC_OFFLOAD_PIECE elements; a piece has its part of each array one
 * after the other.
 *
 * An optimizer step takes piece after piece: the gradients are downloaded, AdamW runs on the host,
 * and the new weights are uploaded unless they are offloaded too.  With a file only three pieces
 * are in memory: a thread reads the next piece and writes the last one while one is stepped.  The
 * same thread reads weights before they are used (exec_offload_fetch()), into as many buffers as
 * the caller asked for.
 *
 * The file is made in a folder that the user names.  All its blocks are reserved at once, so that a
 * full disk shows before the first step.  Its name is removed at once, so that nothing is left of
 * it whatever becomes of the process.
 *
 * The pool counts the device's memory; what is kept here is not in it.
 *
 * Errors: EXEC_ERROR_IO names the file; EXEC_ERROR_MEMORY.  Thread-safety: none; an ExecOffload
 * belongs to one rank.
 *
 * Private to executor/.
 */
#pragma once

#include "executor/device/backend.h"
#include "schedule/plan.h"

#define EXEC_OFFLOAD_PIECE 65536

typedef struct ExecOffload ExecOffload;

typedef struct {
    PlanOffload to;     /* cpu or nvme */
    int32_t rank;       /* is part of the file's name */
    const char *dir;    /* (nullable) nvme: the file's folder; NULL: that of temporary files */
    const char *device; /* of the weights: where it is "reference", the reference backend steps on
                           the host, else the cpu backend */
    bool parameters;    /* the weights of matrices are kept here too; for messages */
    Dtype storage;      /* of the narrow array, and of the host's backend where there is one */
    bool narrow;        /* there is an array of narrow weights behind those of fp32 */
    int n_fetches;      /* buffers of exec_offload_fetch() */
    /* (borrowed, nullable) Memory and buffers are taken by this backend's alloc_host() where it has
     * one: then exec_offload_upload() goes on while the host works. */
    ExecBackend *uploads_to;
} ExecOffloadOptions;

/* Returns: (owned) @n_arrays arrays of @n fp32 elements, and a narrow one where the options say so,
 * all zeros; NULL on an error. */
ExecOffload *exec_offload_new(const ExecOffloadOptions *options, int64_t n, int32_t n_arrays,
                              GError **error);
void exec_offload_free(ExecOffload *offload);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecOffload, exec_offload_free)

/* Copies elements [at, at + n) of array @array to @values, or back if @writes, in the array's
 * number format. */
bool exec_offload_move(ExecOffload *offload, bool writes, int32_t array, int64_t at, int64_t n,
                       void *values, GError **error);

/* Begins to read elements [at, at + n) of array @array into buffer @slot, whose contents nobody
 * needs any more. */
bool exec_offload_fetch(ExecOffload *offload, int slot, int32_t array, int64_t at, int64_t n,
                        GError **error);

/* Waits until the fetch into @slot has ended.  Returns: (borrowed) the elements, valid until the
 * slot's next fetch; NULL on an error. */
void *exec_offload_fetched(ExecOffload *offload, int slot, GError **error);

/* Copies what was fetched into @slot to @to in @backend's memory, in the order of the backend's
 * queue.  Until the copy is done the caller neither steps nor, if exec_offload_has_buffers(),
 * fetches into the slot again. */
bool exec_offload_upload(ExecOffload *offload, int slot, ExecBackend *backend, void *to,
                         GError **error);

/* Whether what is fetched lies in buffers of its own, which is so with a file.  In host memory
 * exec_offload_upload() reads the arrays themselves. */
bool exec_offload_has_buffers(const ExecOffload *offload);

/* The backend that steps on the host, with the options' storage; (borrowed). */
ExecBackend *exec_offload_host(ExecOffload *offload);

/* What a step does to elements [at, at + n) of all arrays: @arrays[i] is where array i has them in
 * host memory.  Returning false (with an error) ends the step. */
typedef bool (*ExecOffloadFunc)(ExecBackend *host, int64_t at, int64_t n, void *const *arrays,
                                void *user_data, GError **error);

/* Calls @step for every piece in order, and keeps what it has changed. */
bool exec_offload_each(ExecOffload *offload, ExecOffloadFunc step, void *user_data, GError **error);
