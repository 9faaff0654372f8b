/*
 * executor/measure/partial.h - an unfinished profile in a file: every timing so far, to go on from.
 *
 * File "degas-profile-partial": {"format","version","of": what is measured, in words,
 * "between"?: the GPUs between which messages and collectives were timed,
 * "rounds": [{"spent_s","repetitions"}, one per tensor-parallel degree], "variation": {...},
 * "samples": [...]}.
 *
 * Private to executor/measure*.c.
 */
#ifndef EXECUTOR_MEASURE_PARTIAL_H
#define EXECUTOR_MEASURE_PARTIAL_H

#include "executor/measure/measure.h"
#include "executor/transport/samples.h"
#include "executor/measure/variation.h"

G_BEGIN_DECLS

typedef struct {
    double spent_s;
    int32_t n_repetitions;
} ExecMeasureRound;

typedef struct {
    char *of;       /* (owned) from exec_partial_of() */
    char *between;  /* (owned, nullable) */
    GArray *rounds; /* (owned) of ExecMeasureRound */
    ExecSamples *samples;
    ExecVariation *variation;
} ExecPartial;

/* Returns: (owned) everything that a timing depends on, on one line; @options with defaults filled
 * in. */
char *exec_partial_of(const ExecMeasureOptions *options, const char *device);

/* False on a G_FILE_ERROR. */
bool exec_partial_write(const ExecPartial *partial, const char *path, GError **error);

/* Adds what the file holds.  False on G_FILE_ERROR, JSON_ERROR_INVALID, or EXEC_ERROR_DATA: it is
 * of something else. */
bool exec_partial_read(ExecPartial *partial, const char *path, GError **error);

G_END_DECLS

#endif /* EXECUTOR_MEASURE_PARTIAL_H */
