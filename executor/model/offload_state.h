/*
 * executor/model/offload_state.h - what offloaded state is, and how it gets to and from its file:
 * where values lie, reads and writes, and the thread that moves in the background.
 *
 * Private to executor/offload*.c.  Errors: EXEC_ERROR_IO.
 */
#ifndef EXECUTOR_MODEL_OFFLOAD_STATE_H
#define EXECUTOR_MODEL_OFFLOAD_STATE_H

#include "executor/model/offload.h"

G_BEGIN_DECLS

enum {
    EXEC_OFFLOAD_MAX_PARTS = 4,
    EXEC_OFFLOAD_N_BUFFERS = 3, /* one read into, one stepped, one written from */
};

/* Of the host. */
typedef struct {
    char *bytes; /* (owned, nullable) */
    size_t n_bytes;
    bool is_of_device; /* its alloc_host() */
} ExecOffloadMemory;

/* Of pieces between file and buffers, and of what is fetched; done in the order they were asked
 * for. */
typedef struct {
    bool writes;
    int64_t piece; /* or */
    int slot;      /* what is fetched; -1: a piece */
} ExecOffloadMove;

/* What is read ahead of use. */
typedef struct {
    int32_t part;
    int64_t at, n;
    ExecOffloadMemory buffer;
    int64_t number; /* of the move; or */
    bool is_here;   /* from memory */
} ExecOffloadFetch;

struct ExecOffload {
    int64_t n, n_pieces;
    int32_t n_parts;
    int64_t element_bytes[EXEC_OFFLOAD_MAX_PARTS];
    bool parameters;
    ExecBackend *host;        /* (owned) */
    ExecBackend *uploads_to;  /* (borrowed, nullable) */
    ExecOffloadMemory memory; /* all pieces: cpu */

    int fd;     /* -1: cpu */
    char *path; /* (owned) for messages */
    char
        *buffers[EXEC_OFFLOAD_N_BUFFERS]; /* (owned) piece i's is i modulo EXEC_OFFLOAD_N_BUFFERS */
    ExecOffloadFetch *fetches;            /* (owned) n_fetches */
    int n_fetches;
    GThread *mover;
    GMutex mutex;
    GCond changed;
    /* Under the mutex: */
    ExecOffloadMove *moves; /* (owned) n_moves: move i is at i modulo that */
    int64_t n_moves;
    int64_t n_asked, n_done;
    bool quits;
    int failed; /* errno of the first move that failed, or 0 */
    bool failed_writing;
};

/* Elements that lie together: those of one piece. */
typedef struct {
    int64_t n, offset; /* in memory or the file */
    size_t n_bytes;
} ExecOffloadRun;

/* From element @at of a part on, @n at most. */
ExecOffloadRun exec_offload_run_at(const ExecOffload *offload, int32_t part, int64_t at, int64_t n);

/* Where a part begins in a piece; of the part after the last: a piece's bytes. */
int64_t exec_offload_part_at(const ExecOffload *offload, int32_t part);
int64_t exec_offload_piece_bytes(const ExecOffload *offload);

/* Sets @error: the file's @what failed with the errno @code.  Returns false. */
bool exec_offload_failed(const ExecOffload *offload, const char *what, int code, GError **error);

/* A file without a name, whose blocks are reserved. */
bool exec_offload_open_file(ExecOffload *offload, const ExecOffloadOptions *options,
                            GError **error);

/* @n elements of @part from @at on, between @values and memory or the file.  Returns 0, or errno.
 */
int exec_offload_move_values(ExecOffload *offload, bool writes, int32_t part, int64_t at, int64_t n,
                             char *values);

/* The mover's thread; @user_data is the ExecOffload (borrowed). */
gpointer exec_offload_move_in_background(gpointer user_data);

/* Returns: the move's number.  No more than EXEC_OFFLOAD_N_BUFFERS of pieces are ever under way,
 * and a fetch for each slot. */
int64_t exec_offload_ask(ExecOffload *offload, ExecOffloadMove move);

/* Until move @number is done; false if one has failed. */
bool exec_offload_wait_for(ExecOffload *offload, int64_t number, GError **error);

G_END_DECLS

#endif /* EXECUTOR_MODEL_OFFLOAD_STATE_H */
