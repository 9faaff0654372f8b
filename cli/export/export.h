/*
 * cli/export/export.h - ExportTarget: a format of another program in which a plan can be written.
 *
 * The main header of the room export/, which has one file for each target; the command export comes
 * in.  A new target is a file here and a line of the table in export.c.
 *
 * Rules that a plan may break are those of the target's framework (planner/rules/rules.h).  A target
 * is asked to write only where no rule is broken; what it then writes, the
 * other program accepts.  The same input gives the same bytes: no dates, hosts or paths.
 */
#pragma once

#include "cli/request/job.h"
#include "planner/rules/rules.h"

/* What is exported. */
typedef struct {
    const Job *job;           /* (borrowed, nullable) NULL for a bare degas-schedule file */
    const Schedule *schedule; /* (borrowed) the plan's */
    const char *version;      /* (borrowed, nullable) one of the target's; NULL: it has none */
} ExportSource;

/* A variable of env.sh (bundle.h).  All texts are constants of the exporter's, without quotes, $ or
 * backslashes: nothing of a plan's file is among them. */
typedef struct {
    const char *name;
    const char *value; /* NULL: it must not be set */
    const char *why;   /* one line */
} ExportVariable;

/* What a bundle says of its target; texts are constants. */
typedef struct {
    const char *config;  /* (nullable) the file that write() makes; NULL: plan.json is all */
    const char *csv;     /* (nullable) the file of the schedule's CSV, where the target reads one */
    const char *prepare; /* (nullable) lines of rank.sh before the program starts */
    const char *program; /* with its options, as sh has it */
    const char *on_end;  /* what it does when it is told that the job ends: a sentence */
    const char *yours;   /* what the user has to give: a sentence */
    const char *time_is; /* (nullable) where the log has the time of a step: a sentence */
    bool is_degas;       /* degas run, which needs to be told less */
    GArray *variables;   /* of ExportVariable */
} ExportBundle;

typedef struct {
    const char *name;    /* "pytorch-csv" */
    const char *summary; /* one line of the help */
    bool takes_schedule; /* a schedule without a plan can be written, too */
    /* (nullable) Those of the program that want different files, the current one first, which is
     * written for unless the user says otherwise; NULL at the end. */
    const char *const *versions;
    /* Whose rules plans keep, unless the plan's own framework has this exporter, too. */
    PlanFramework framework;
    /* (nullable) Calls export_breaks() for every rule of its own that @source breaks. */
    void (*check)(const ExportSource *source, GArray *breaches);
    /* Only without violations.  Returns: (owned) the file's text; NULL with @error. */
    char *(*write)(const ExportSource *source, size_t *n_bytes, GError **error);
    /* (optional) Returns: (owned) a line for stderr that says what the file cannot. */
    char *(*note)(const ExportSource *source);
    /* Fills in @bundle, whose variables are empty. */
    void (*bundle)(const ExportSource *source, ExportBundle *bundle);
} ExportTarget;

extern const ExportTarget export_pytorch_csv, export_megatron, export_megatron_bridge,
    export_deepspeed, export_torchtitan, export_degas;

/* Adds a variable to a bundle.  Defined in cli/export/bundle.c, as is the next one. */
void export_bundle_set(ExportBundle *bundle, const char *name, const char *value, const char *why);

/* Whether the devices of the plan's cluster are GPUs, not cores. */
bool export_has_gpus(const Job *job);

/* All targets, NULL at the end; and the one of that name, NULL: there is none. */
extern const ExportTarget *const export_targets[];
const ExportTarget *export_target_find(const char *name);

/*
 * Adds a broken rule to @breaches (of PlanBreach).
 * @change  (nullable) the flags of `degas plan` that lead to the nearest plan without it.
 */
void export_breaks(GArray *breaches, const char *change, const char *format, ...)
    G_GNUC_PRINTF(3, 4);
