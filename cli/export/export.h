/*
 * cli/export/export.h - ExportTarget: a format of another program in which a plan can be written.
 *
 * The main header of the room export/, which has one file for each target; the command export comes
 * in.  A new target is a file here and a line of the table in cli/cmd_export.c.
 *
 * A target first lists every rule of the other program that the plan breaks, each with the flag
 * that would mend it.  It is asked to write only where no rule is broken; what it then writes, the
 * other program accepts.  The same input gives the same bytes: no dates, hosts or paths.
 */
#pragma once

#include "cli/request/job.h"

/* What is exported. */
typedef struct {
    const Job *job;           /* (borrowed, nullable) NULL for a bare degas-schedule file */
    const Schedule *schedule; /* (borrowed) the plan's */
} ExportSource;

/* The rules that a source breaks; see export_breaks(). */
typedef struct {
    GPtrArray *rules;   /* of (owned) char *: "token slices cannot be expressed" */
    GPtrArray *changes; /* of (owned) char *: "--slices off"; no flag twice */
} ExportViolations;

typedef struct {
    const char *name;    /* "pytorch-csv" */
    const char *summary; /* one line of the help */
    bool takes_schedule; /* a schedule without a plan can be written, too */
    /* Calls export_breaks() for every rule that @source breaks. */
    void (*check)(const ExportSource *source, ExportViolations *violations);
    /* Only without violations.  Returns: (owned) the file's text; NULL with @error. */
    char *(*write)(const ExportSource *source, size_t *n_bytes, GError **error);
    /* (optional) Returns: (owned) a line for stderr that says what the file cannot. */
    char *(*note)(const ExportSource *source);
} ExportTarget;

extern const ExportTarget export_pytorch_csv, export_megatron, export_deepspeed, export_torchtitan;

/*
 * Adds a broken rule.  Defined, as the next one, in cli/cmd_export.c.
 * @change  (nullable) the flags of `degas plan` that lead to the nearest plan without it.
 */
void export_breaks(ExportViolations *violations, const char *change, const char *format, ...)
    G_GNUC_PRINTF(3, 4);

/* Adds a broken rule for a program that lays dimensions over ranks in the default order only,
 * unless the plan has that order. */
void export_check_rank_order(const Plan *plan, ExportViolations *violations);
