/*
 * executor/model/offload.h - the optimizer's state, and weights where the plan says so, outside of the
 * device's memory: in host memory, or in a file (the NVMe path) [Rajbhandari et al. 2104.07857
 * section 5].
 *
 * The state of a rank's own elements is cut into pieces of EXEC_OFFLOAD_PIECE elements; a piece has
 * its parts (master weights beside narrower ones, two moments; narrow weights themselves) one after
 * the other.  A step takes piece after piece: gradients come down, AdamW runs on the host, weights
 * go up unless they are here.  With a file three buffers of a piece are all that is in memory; a
 * thread of its own reads the next piece and writes the last one meanwhile.  The same thread
 * fetches weights ahead of use, into as many buffers as are wanted at once.
 *
 * A file is made in a folder that the user names, with all its blocks, so that a full disk shows
 * before the first step; it has no name from the start, so that nothing is left of it whatever
 * becomes of the process.
 *
 * What the host holds is not the device's memory: the pool does not count it.
 *
 * Errors: EXEC_ERROR_IO names the file.  Thread-safety: none; one belongs to one rank.
 *
 * Private to executor/.
 */
#ifndef EXECUTOR_MODEL_OFFLOAD_H
#define EXECUTOR_MODEL_OFFLOAD_H

#include "executor/device/backend.h"
#include "schedule/plan.h"

G_BEGIN_DECLS

#define EXEC_OFFLOAD_PIECE 65536

typedef struct ExecOffload ExecOffload;

typedef struct {
    PlanOffload to;     /* cpu or nvme */
    int32_t rank;       /* for the file's name */
    const char *dir;    /* (nullable) nvme: where; NULL: the folder for temporary files */
    const char *device; /* whose weights: "reference" steps in the same loops, others in cpu's */
    bool parameters;    /* weights of matrices are here too */
    Dtype storage;      /* of the last part where it is narrow */
    bool narrow;        /* one part of storage behind the parts of fp32 */
    int n_fetches;      /* buffers of exec_offload_fetch() */
    /* (borrowed, nullable) Memory and buffers are its alloc_host(), where there is such memory:
     * exec_offload_upload() then goes beside the host's work. */
    ExecBackend *uploads_to;
} ExecOffloadOptions;

/* @n_parts parts of @n fp32 elements, and a narrow one behind them; zeros. */
ExecOffload *exec_offload_new(const ExecOffloadOptions *options, int64_t n, int32_t n_parts,
                              GError **error);
void exec_offload_free(ExecOffload *offload);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecOffload, exec_offload_free)

/* Elements [at, at + n) of part @part, whose elements @values are. */
bool exec_offload_read(ExecOffload *offload, int32_t part, int64_t at, int64_t n, void *values,
                       GError **error);
bool exec_offload_write(ExecOffload *offload, int32_t part, int64_t at, int64_t n,
                        const void *values, GError **error);

/* Ahead of use: the reading of such elements begins, into buffer @slot, which nobody needs any
 * more; exec_offload_fetched() waits for it. */
bool exec_offload_fetch(ExecOffload *offload, int slot, int32_t part, int64_t at, int64_t n,
                        GError **error);
/* Returns: (borrowed) the elements, until the slot's next fetch; NULL on an error. */
const void *exec_offload_fetched(ExecOffload *offload, int slot, GError **error);
/* The elements to @to, in @backend's memory and in the order of its queue.  Until that is done
 * nobody fetches into the slot, if exec_offload_has_buffers(), nor steps. */
bool exec_offload_upload(ExecOffload *offload, int slot, ExecBackend *backend, void *to,
                         GError **error);
/* Whether what is fetched lies in buffers of its own: with a file. */
bool exec_offload_has_buffers(const ExecOffload *offload);

/* The host's backend, in the storage of the options. */
ExecBackend *exec_offload_host(ExecOffload *offload);

/* What a step does to elements [at, at + n) of the state: @parts[i] is part i of them, in host
 * memory.  False ends the step. */
typedef bool (*ExecOffloadFunc)(ExecBackend *host, int64_t at, int64_t n, void *const *parts,
                                void *user_data, GError **error);

/* Calls @step for every piece in order, and keeps what it leaves. */
bool exec_offload_each(ExecOffload *offload, ExecOffloadFunc step, void *user_data, GError **error);

G_END_DECLS

#endif /* EXECUTOR_MODEL_OFFLOAD_H */
