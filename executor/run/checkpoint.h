/*
 * executor/run/checkpoint.h - the training state on disk, by parameter and not by rank: the folder,
 * its manifest and its lock.
 *
 *   DIR/lock                       held by every process of a run that saves here
 *   DIR/step-00000020/             the state after 20 steps
 *       checkpoint.json            format degas-checkpoint (docs/formats.md): step, seed, data, and
 *                                  of every parameter its shape and a hash; a checksum of itself
 *       layer.0.q.weight.bin, ...  a parameter's fp32 weights, then its two moments, as whole
 *                                  matrices, row-major, little-endian: the same bytes whatever the
 *                                  degrees
 *
 * A checkpoint is written into a folder with another name (".step-00000020").  Every file is
 * synced, the manifest is written last, and then the folder gets its own name: a folder that has
 * its name is complete.  The last two are kept.  Every rank writes and reads its own elements in
 * place (rank.h), so all hosts must share the file system.
 *
 * A parameter's hash is the sum, modulo 2^64, of a mix of every element's offset and bits, so that
 * ranks can add theirs up in any order.  Before the first step, loading compares sizes, shapes and
 * hashes, and the manifest's checksum, which version 1 did not have (its files are read).
 *
 * A run that is resumed with the same degrees has the same bits as one that was never interrupted.
 *
 * Errors: EXEC_ERROR_DATA names the file that is wrong; EXEC_ERROR_IO one that cannot be written or
 * read, or the lock that another run holds; EXEC_ERROR_UNSUPPORTED what contradicts the request.
 *
 * Private to executor/run/ and tests.
 */
#pragma once

#include "executor/device/backend.h"
#include "models/arch.h"
#include "schedule/optimizer.h"

/* The parts of a parameter's file: master weights, first and second moments. */
enum {
    EXEC_CHECKPOINT_PARTS = 3
};

typedef struct {
    char name[64];
    int64_t rows, cols; /* of the whole matrix */
    uint64_t hash;      /* of the whole file */
} ExecCheckpointParameter;

typedef struct {
    char *path;   /* (owned) of the folder */
    int64_t step; /* steps done */
    uint64_t seed;
    int64_t global_batch, seq_len; /* with step and seed they say which data comes next */
    int64_t n_parts;         /* EXEC_CHECKPOINT_PARTS; 1 of a run without the optimizer's step */
    ModelArch *arch;         /* (owned, nullable) NULL while the checkpoint is being written */
    PlanOptimizer optimizer; /* whose moments these are */
    GArray *parameters;      /* of ExecCheckpointParameter, by name */
} ExecCheckpoint;

void exec_checkpoint_free(ExecCheckpoint *checkpoint);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecCheckpoint, exec_checkpoint_free)

/* Sorts a GArray of ExecCheckpointParameter by name. */
void exec_checkpoint_sort(GArray *parameters);

/* (borrowed, nullable) The entry of parameter @name. */
const ExecCheckpointParameter *exec_checkpoint_find(const ExecCheckpoint *checkpoint,
                                                    const char *name);

/* Returns: (owned) the path of a parameter's file. */
char *exec_checkpoint_file(const char *folder, const char *parameter);

/* Returns: (owned) GArray of int64_t, the steps of the complete checkpoints in @dir, ascending;
 * none if there is no such folder; NULL on an error. */
GArray *exec_checkpoint_steps(const char *dir, GError **error);

/* Returns: (owned) the manifest of @step, after it has been checked and every file found with its
 * size; NULL on an error. */
ExecCheckpoint *exec_checkpoint_open(const char *dir, int64_t step, GError **error);

/*
 * Takes the lock of @dir, and makes the folder if there is none.  The process that leads (rank 0's)
 * must have it alone at first, and waits a few seconds for the ranks of an earlier run to end; then
 * it shares it with the other ranks' processes.  Returns: the descriptor, which holds the lock
 * until it is closed; -1 on an error.
 */
int exec_checkpoint_lock(const char *dir, bool leads, GError **error);

/* Makes the folder into which the checkpoint of @step is written, empty.  Returns: (owned) its
 * path; NULL on an error. */
char *exec_checkpoint_begin(const char *dir, int64_t step, GError **error);
/* Returns: (owned) the same path, for the other ranks. */
char *exec_checkpoint_aside(const char *dir, int64_t step);
/* Writes the manifest, gives the folder its name, and removes the oldest checkpoints beyond two. */
bool exec_checkpoint_finish(const char *dir, const ExecCheckpoint *checkpoint,
                            const ModelArch *arch, GError **error);
/* Removes the folder that exec_checkpoint_begin() made.  Any rank may, at any time: if rank 0 has
 * been faster, the folder has its name, is complete, and stays. */
void exec_checkpoint_discard(const char *dir, int64_t step);
