/*
 * executor/run/checkpoint.h - the training state on disk: by parameter, not by rank.
 *
 *   DIR/lock                       held by every process of a run that saves here
 *   DIR/step-00000020/             the state after 20 steps
 *       checkpoint.json            format degas-checkpoint (docs/formats.md): step, seed, data, and
 *                                  of every parameter its shape and a hash; a checksum of itself
 *       layer.0.q.weight.bin, ...  a parameter's fp32 weights, then its two moments, whole
 * matrices, row-major, little-endian: the same bytes whatever the degrees
 *
 * A checkpoint is written aside (".step-00000020"), every file is synced, the manifest comes last,
 * and then the folder gets its name: one that has its name is complete.  The last two are kept.
 * Every rank writes and reads its shards in place, so all hosts must share the file system.
 *
 * A parameter's hash is the sum, modulo 2^64, of a mix of every element's place and bits: ranks add
 * theirs up in any order.  Loading compares sizes, shapes and hashes before the first step, and the
 * manifest's checksum, which version 1 had not (its files are read).
 *
 * With the same degrees a resumed run has the bits of one that was never interrupted.
 *
 * Errors: EXEC_ERROR_DATA names the file that is wrong; EXEC_ERROR_IO one that cannot be written or
 * read, a lock that another run holds; EXEC_ERROR_UNSUPPORTED what contradicts the request.
 *
 * Private to executor/.
 */
#ifndef EXECUTOR_RUN_CHECKPOINT_H
#define EXECUTOR_RUN_CHECKPOINT_H

#include "executor/device/backend.h"
#include "models/arch.h"

G_BEGIN_DECLS

/* What a checkpoint keeps of a parameter: master weights, first and second moments. */
enum {
    EXEC_CHECKPOINT_PARTS = 3
};

typedef struct {
    char name[64];
    int64_t rows, cols; /* of the whole matrix */
    uint64_t hash;      /* of all parts */
} ExecCheckpointParameter;

typedef struct {
    char *path;   /* (owned) of the folder, for messages and files */
    int64_t step; /* steps done */
    uint64_t seed;
    int64_t global_batch, seq_len; /* with step and seed: which data comes next */
    int64_t n_parts;               /* 1 where nothing trains, else EXEC_CHECKPOINT_PARTS */
    ModelArch *arch;               /* (owned, nullable: of one that is being written) */
    GArray *parameters;            /* of ExecCheckpointParameter, by name */
} ExecCheckpoint;

void exec_checkpoint_free(ExecCheckpoint *checkpoint);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecCheckpoint, exec_checkpoint_free)

/* (nullable) */
const ExecCheckpointParameter *exec_checkpoint_find(const ExecCheckpoint *checkpoint,
                                                    const char *name);

/* Returns: (owned) where the parameter lies. */
char *exec_checkpoint_file(const char *folder, const char *parameter);

/*
 * The steps of the complete checkpoints in @dir, ascending (GArray of int64_t, owned).  A folder
 * that is not there has none.
 */
GArray *exec_checkpoint_steps(const char *dir, GError **error);

/* Reads the manifest of @step and checks it, and that every file is there with its size. */
ExecCheckpoint *exec_checkpoint_open(const char *dir, int64_t step, GError **error);

/*
 * Takes the lock of @dir, which is made if it is not there.  A leading process (rank 0's) needs it
 * alone, and waits a few seconds for the ranks of an earlier run to go; then it shares it with the
 * other ranks' processes.  Returns the descriptor, which holds it until it is closed; -1 on error.
 */
int exec_checkpoint_lock(const char *dir, bool leads, GError **error);

/* The folder to write the checkpoint of @step into, empty.  (owned) */
char *exec_checkpoint_begin(const char *dir, int64_t step, GError **error);
/* The same name, where rank 0 has made it.  (owned) */
char *exec_checkpoint_aside(const char *dir, int64_t step);
/* Writes the manifest, gives the folder its name, and removes the oldest beyond two. */
bool exec_checkpoint_finish(const char *dir, const ExecCheckpoint *checkpoint,
                            const ModelArch *arch, GError **error);
/* Removes what was written aside.  Any rank may, at any time: either it has no name afterwards, or
 * rank 0 was first and it is complete. */
void exec_checkpoint_discard(const char *dir, int64_t step);

G_END_DECLS

#endif /* EXECUTOR_RUN_CHECKPOINT_H */
