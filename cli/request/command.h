/*
 * cli/request/command.h - Command: a subcommand, which is one file cli/cmd_NAME.c and one entry in
 * main.c's table; and the exit statuses of errors.
 *
 * main.c parses the options by the command's tables, prints its help, runs it, prints its error as
 * one line on stderr and ends with the exit status of docs/formats.md.  A command reads its
 * options, connects the libraries, and prints its product on stdout.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>

#include "cli/request/options.h"

#define CMD_ERROR (cmd_error_quark())
GQuark cmd_error_quark(void);

/* The codes are exit statuses; docs/formats.md. */
typedef enum {
    CMD_ERROR_NO = 1, /* infeasible, does not fit, beyond tolerance */
    CMD_ERROR_USAGE = 2,
    CMD_ERROR_INPUT = 3, /* invalid input file */
    CMD_ERROR_IO = 4,
    CMD_ERROR_LIMIT = 5,   /* memory or a stated limit */
    CMD_ERROR_MISSING = 6, /* a program, library or device is missing or failed */
    CMD_ERROR_RANK_DIED = 7,
    CMD_ERROR_RANK_HUNG = 8,
    CMD_ERROR_INTERRUPTED = 9,
    CMD_ERROR_INTERNAL = 70,
} CmdError;

/* What an exit status means, in words; the row whose meaning is NULL ends the table.  The same rows
 * as in docs/formats.md 1. */
typedef struct {
    int status;
    const char *meaning;
} CmdStatus;
extern const CmdStatus cmd_statuses[];

/* A command has at most this many tables of options. */
#define CMD_MAX_TABLES 4

typedef struct {
    const char *name;
    /* "MODEL CLUSTER --global-batch N [options]".  Completion reads the words before the first that
     * begins with '-' or '[': MODEL and CLUSTER are built-in names or files, SCHEDULE is a name,
     * words in small letters stand for themselves, others are files; '|' is between those that may
     * stand in one place, "..." after one of any number, ", or NAME" before another usage. */
    const char *usage;
    const char *summary; /* one line */
    const char *details; /* (nullable) of the help: paragraphs of at most 80 columns */
    /* NULL-terminated when shorter than the array; -h and --help are everybody's. */
    const OptionInfo *options[CMD_MAX_TABLES + 1];
    const char *headings[CMD_MAX_TABLES]; /* above the tables in the help; NULL: "Options" */
    size_t min_arguments, max_arguments;  /* besides options */
    bool common;                          /* among the most used: in degas -h */
    bool takes_job; /* its only argument may be a job file: options_add_job() */
    /* Returns the exit status 0 or 1 (an answer), or -1 with @error set, which cmd_exit_status()
     * turns into the status. */
    int (*run)(Options *options, GError **error);
} Command;

/* All commands, in the order of the help; NULL-terminated.  In main.c. */
extern const Command *const cmd_all[];

extern const Command cmd_plan, cmd_simulate, cmd_slices, cmd_schedule, cmd_profile, cmd_run,
    cmd_compare, cmd_validate, cmd_calibrate, cmd_import, cmd_plot, cmd_export, cmd_list, cmd_show,
    cmd_sweep, cmd_check, cmd_help, cmd_completion, cmd_doctor, cmd_schema, cmd_init, cmd_serve;

/* Returns: (borrowed) the one of @commands with that @name; NULL, with CMD_ERROR_USAGE that says
 * what was meant, if there is none. */
const Command *cmd_find(const Command *const *commands, const char *name, GError **error);

/* Sets an error of CMD_ERROR.  Always returns false, so that a failure is one statement. */
bool cmd_fail(GError **error, CmdError code, const char *format, ...) G_GNUC_PRINTF(3, 4);

/* The exit status that an error means; docs/formats.md 1. */
int cmd_exit_status(const GError *error);

/* Turns "no such file" into CMD_ERROR_USAGE where @name does not look like a path (no slash, no
 * ".json", no ".yaml"): the user meant a built-in name that does not exist, which is wrong usage as an unknown
 * option is.  Other errors stay.  Always returns false. */
bool cmd_blame_name(const char *name, GError **error);

/* Turns errors that would be wrong usage (PLAN_ERROR_INVALID, shapes, unknown names) into
 * CMD_ERROR_INPUT where the values came from the file at @path and not from the command line.
 * Always returns false. */
bool cmd_blame_file(const char *path, GError **error);

/*
 * Lets SIGINT (Ctrl-C) and SIGTERM stop this command early with what it has: from now on they only
 * set a flag.  The command then writes the best so far and ends with CMD_ERROR_INTERRUPTED (exit
 * status 9).  A second signal ends the program at once, as it would have without this.
 *
 * Returns: (borrowed, for ever) the flag, not 0 once a signal came; to be read with
 * g_atomic_int_get(), from any thread.
 */
const int *cmd_interrupt_watch(void);

/*
 * Lets schedulers of clusters end the command, too: from now on SIGTERM and SIGUSR1 set the flag of
 * cmd_interrupt_watch() to EXEC_STOP_PATIENTLY (executor/watch/launch.h) where it is 0, however often they come.  They announce an end that the
 * sender enforces (Slurm and Kubernetes by SIGKILL after a grace of their own), so the command may
 * take its time; Ctrl-C still sets the flag to 1.
 */
void cmd_interrupt_patiently(void);
