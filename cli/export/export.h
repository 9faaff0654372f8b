/*
 * cli/export/export.h - ExportTarget: one format of another program that a plan can be written in.
 *
 * A target is one file export_*.c and one line of the table in cmd_export.c.  It first lists every
 * rule of the other program that the plan breaks, each with the flag that would mend it, and is
 * asked to write only where there is none: what it then writes, the other program accepts.
 *
 * Same input, same bytes out: no dates, hosts, paths.
 */
#ifndef CLI_EXPORT_EXPORT_H
#define CLI_EXPORT_EXPORT_H

#include "cli/request/job.h"

G_BEGIN_DECLS

/* What is exported. */
typedef struct {
    const Job *job;           /* (borrowed, nullable) none for a bare degas-schedule file */
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
    bool takes_schedule; /* a bare schedule is enough */
    /* Calls export_breaks() for every rule that @source breaks. */
    void (*check)(const ExportSource *source, ExportViolations *violations);
    /* Only without violations.  Returns: (owned) the file's text; NULL with @error. */
    char *(*write)(const ExportSource *source, size_t *n_bytes, GError **error);
    /* (optional) Returns: (owned) a line for stderr: what is no part of the file. */
    char *(*note)(const ExportSource *source);
} ExportTarget;

extern const ExportTarget export_pytorch_csv, export_megatron, export_deepspeed, export_torchtitan;

/*
 * Adds a broken rule.
 * @change  (nullable) the flags of `degas plan` that lead to the nearest plan without it.
 */
void export_breaks(ExportViolations *violations, const char *change, const char *format, ...)
    G_GNUC_PRINTF(3, 4);

/* Breaks the rule of a program that lays dimensions over ranks in one order only, the default. */
void export_check_rank_order(const Plan *plan, ExportViolations *violations);

G_END_DECLS

#endif /* CLI_EXPORT_EXPORT_H */
