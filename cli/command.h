/*
 * cli/command.h - a subcommand: one file, one entry in main.c's table.
 *
 * main.c parses global options (--help, --version, --color), finds the command (suggesting the
 * nearest), runs it, prints its error as one line on stderr and turns it into the exit status of
 * docs/formats.md. Commands parse their own options, connect the libraries, and print their product
 * on stdout.
 */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include <glib.h>
#include <stdbool.h>

G_BEGIN_DECLS

#define CMD_ERROR (cmd_error_quark())
GQuark cmd_error_quark(void);

/* The codes are exit statuses (FORMATS, docs/formats.md). */
typedef enum {
    CMD_ERROR_NO = 1, /* infeasible, does not fit, beyond tolerance */
    CMD_ERROR_USAGE = 2,
    CMD_ERROR_INPUT = 3, /* invalid input file */
    CMD_ERROR_IO = 4,
    CMD_ERROR_LIMIT = 5,   /* memory or a stated limit */
    CMD_ERROR_MISSING = 6, /* a program, library or device */
    CMD_ERROR_RANK_DIED = 7,
    CMD_ERROR_RANK_HUNG = 8,
    CMD_ERROR_INTERRUPTED = 9,
    CMD_ERROR_INTERNAL = 70,
} CmdError;

typedef struct {
    const char *name;
    const char *usage;   /* "MODEL CLUSTER --global-batch N [options]" */
    const char *summary; /* one line */
    /*
     * @argv[0] is the command's name.  Returns the exit status 0 or 1 (an answer), or -1 with
     * @error set, whose domain decides the status.
     */
    int (*run)(int argc, char **argv, GError **error);
} Command;

/* All commands, NULL-terminated. */
extern const Command *const commands[];

G_END_DECLS

#endif /* CLI_COMMAND_H */
