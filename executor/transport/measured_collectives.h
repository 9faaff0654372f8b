/*
 * executor/transport/measured_collectives.h - times messages and collectives between GPUs, by all
 * ranks of a run, for the rows of a profile; bytes are counted as nccl-tests counts them.
 *
 *   op                 name in nccl-tests                                ranks
 *   all_reduce, ...    all_reduce_perf, all_gather_perf, ..., in place   2, 4, 8, ... and all
 *   all_to_all         alltoall_perf                                     the same
 *   p2p                sendrecv_perf: every rank to the next at once     all; the row says 2
 *
 * Sizes are 4 KiB times powers of four.  A timing is of several calls in a row, after one that is
 * not timed: all members end that one together, so that none waits for the host of another.  Rank
 * 0, which is in every group, takes the times and decides how many there are; the others follow.
 *
 * Private to executor/.
 */
#pragma once

#include "executor/transport/samples.h"
#include "executor/transport/transport.h"

typedef struct {
    ExecTransport *transport; /* (borrowed) what is timed: it carries tensors */
    ExecTransport *host;      /* (borrowed) of the same ranks, for host memory */
    ExecBackend *backend;     /* (borrowed) */
    int64_t max_bytes;        /* of the largest collective; less is timed where memory ends */
    double budget_s;          /* when it is used up, only the smallest and largest size are timed */
    void (*moves)(void *user_data); /* (nullable) called before every shape: the run moves on */
    void *user_data;
} ExecCollectives;

/*
 * Times all shapes; all ranks call it.
 * @samples  gets the timings of rank 0; nullable on the others.
 * False on failures of transport and backend, and on EXEC_ERROR_MEMORY when not even the smallest
 * size fits.
 */
bool exec_measure_collectives(const ExecCollectives *collectives, ExecSamples *samples,
                              GError **error);

/* Calls the collective that @op names, one of whole buffers (not all_to_all or p2p), on @n elements
 * of fp32. */
bool exec_measure_call(ExecTransport *transport, ProfileOp op, const ExecGroup *group, void *data,
                       int64_t n, GError **error);

/* Returns: (owned) the timings as a text, {"format":"degas-profile-links","version":1,"between":
 * @between,"samples":[...]}; @between says in words between what they were taken. */
char *exec_collectives_to_text(ExecSamples *samples, const char *between);

/* Adds the timings of such a text; @between (out, owned).  False on JSON_ERROR_INVALID. */
bool exec_collectives_from_text(const char *text, ExecSamples *samples, char **between,
                                GError **error);
