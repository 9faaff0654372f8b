/*
 * executor/transport/measured_collectives.h - what messages and collectives between GPUs cost, for
 * a profile: timed by all ranks of a run over a transport, as rows whose bytes nccl-tests would
 * print.
 *
 *   op                 what nccl-tests calls it                      ranks
 *   all_reduce, ...    all_reduce_perf, all_gather_perf, ..., in place   2, 4, 8, ... and all
 *   all_to_all         alltoall_perf                                 the same
 *   p2p                sendrecv_perf: everybody to the next at once  all; n_ranks of the row is 2
 *
 * Sizes are 4 KiB times powers of four.  A timing is of several calls in a row behind one that is
 * not timed: members end that one together, so that none of them waits for the host of another.
 * Rank 0, which is in every group, times and decides; the others follow.
 *
 * Private to executor/.
 */
#ifndef EXECUTOR_TRANSPORT_MEASURED_COLLECTIVES_H
#define EXECUTOR_TRANSPORT_MEASURED_COLLECTIVES_H

#include "executor/transport/samples.h"
#include "executor/transport/transport.h"

G_BEGIN_DECLS

typedef struct {
    ExecTransport *transport; /* (borrowed) of tensors */
    ExecTransport *host;      /* (borrowed) of the same ranks, of host memory */
    ExecBackend *backend;     /* (borrowed) */
    int64_t max_bytes;        /* of the largest collective; less where the memory ends */
    /* Beyond it only the smallest and the largest size are timed, once each. */
    double budget_s;
    void (*moves)(void *user_data); /* (nullable) told before every shape: it does not hang */
    void *user_data;
} ExecCollectives;

/*
 * All ranks call it.
 * @samples  (nullable but for rank 0) gets the timings.
 * False on what transport and backend fail with, and EXEC_ERROR_MEMORY: not even the smallest size
 * fits.
 */
bool exec_measure_collectives(const ExecCollectives *collectives, ExecSamples *samples,
                              GError **error);

/* Of @n fp32 elements; @op a collective of whole buffers: all but all_to_all and p2p. */
bool exec_measure_call(ExecTransport *transport, ProfileOp op, const ExecGroup *group, void *data,
                       int64_t n, GError **error);

/* (owned) The timings as a text: {"format":"degas-profile-links","version":1,"between": in words
 * what they are of, "samples":[...]}. */
char *exec_collectives_to_text(ExecSamples *samples, const char *between);

/* Adds what the text says; @between (out, owned).  JSON_ERROR_INVALID: it is none. */
bool exec_collectives_from_text(const char *text, ExecSamples *samples, char **between,
                                GError **error);

G_END_DECLS

#endif /* EXECUTOR_TRANSPORT_MEASURED_COLLECTIVES_H */
