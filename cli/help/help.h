/*
 * cli/help/help.h - what degas and its commands say of themselves, all of it from the commands'
 * rows and their tables of options (cli/request/command.h).
 *
 * help.h has the texts of --help and -h, man.h the manual pages, completion.h what a shell offers.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>

#include "cli/request/command.h"

/* The version of the program, and the day on which CHANGELOG.md says it was begun. */
#define DEGAS_VERSION "0.1.0"
#define DEGAS_DATE "2026-11-23"

/* How many lines the short help has at most: those of a terminal of the usual height. */
#define HELP_SHORT_LINES 24

/* A NULL-terminated array of commands. */
typedef const Command *const *Commands;

/* Returns: (owned) the commands with a line each; @is_short: those that are most used. */
char *help_overview(Commands commands, bool is_short);

/* Returns: (owned) how @command is used, at most 80 columns wide: with every option, or (@is_short)
 * on at most HELP_SHORT_LINES lines with those that are marked as common, else the first ones. */
char *help_command(const Command *command, bool is_short);

/* Returns: (owned) the first clause of an option's help: up to the first of ":;(", but with
 * "(required)". */
char *help_first_clause(const char *help);
