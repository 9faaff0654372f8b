/*
 * profiles/import/import.h - makes a Profile of the files of other programs.
 *
 * The room profiles/import/ reads their measurements and their descriptions of machines; only cli/
 * comes in.
 *
 *   nccl-tests       text and JSON (-J), and rccl-tests: all_reduce and sendrecv in a node become
 *                    measured rows; the other collectives, which a profile has no rows for, and all
 *                    between nodes, since a row does not say which devices it is of, are fitted by
 *                    the parameters of its links (profiles/fit/calibrate.h)
 *   kineto           PyTorch profiler traces: NCCL kernels, the shortest of each kind and size,
 *                    since a kernel spans the wait for its peers; 16-bit products, fused
 *                    attention and large memory-bound ops, fitted (docs/formats.md, import)
 *   nsys             SQLite exports of Nsight Systems: the same from kernels and NVTX ranges (of
 *                    emit_nvtx(record_shapes=True) and NCCL's own), and copies, which become rows
 *   TeraPipe         latency_model.*.json {"b_s_c": {"forward_mean", ...}} of one layer, and
 *                    *.communication_latency.json
 *   Sailor           {micro-batch: {tp: {layer: [forward, backward, update]}}}
 *   SimuMax, Calculon  system files: devices, links, what share of them software reaches; measured
 *                    efficiencies of products and of attention are fitted, not kept
 *
 * The kind of a file is told by its content, and gzip is expanded.  Every file is hostile until it is parsed.
 *
 * Errors: PROFILE_IMPORT_ERROR_INVALID (text; names file and line), JSON_ERROR_INVALID (names file,
 * line, column and path), G_FILE_ERROR; PROFILE_IMPORT_ERROR_OPTION: something must be given, such as
 * another cluster; PROFILE_IMPORT_ERROR_MISSING: SQLite is not installed.
 */
#pragma once

#include "profiles/cost/cost.h"

#define PROFILE_IMPORT_ERROR (profile_import_error_quark())
GQuark profile_import_error_quark(void);

typedef enum {
    PROFILE_IMPORT_ERROR_INVALID,
    PROFILE_IMPORT_ERROR_OPTION,
    PROFILE_IMPORT_ERROR_MISSING,
} ProfileImportError;

typedef struct {
    const ModelArch *arch; /* (nullable) whose layers were timed: TeraPipe, Sailor */
    int64_t seq_len;       /* tokens of a sequence, which Sailor does not say; 0: not given */
    int64_t tp;            /* which TeraPipe says in a file's name only; 0: not given */
    int64_t n_ranks;       /* of nccl-tests, where the file does not say; 0: not given */
    const char *op;        /* (nullable) of nccl-tests: "all_reduce", ...; where it does not say */
    Dtype dtype;           /* of the timed layers */
} ProfileImportOptions;

/* Reads the name of one of TeraPipe's measurements, "4_2048_0", into @shape: sequences, tokens of
 * each, and tokens of context before them.  Returns false where it is none. */
bool profile_import_terapipe_key(const char *key, int64_t shape[3]);

/*
 * Adds what the file @path says to a copy of @profile.  A system file replaces its cluster; where
 * @profile is NULL only a system file can be read.
 * @summary  (out, owned) one line that says what was found.
 * Returns: (owned) the new profile, or NULL.
 */
Profile *profile_import(const Profile *profile, const char *path,
                        const ProfileImportOptions *options, char **summary, GError **error);
