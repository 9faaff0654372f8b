/*
 * cli/help/man.h - manual pages, degas(1) and one for each command, as degas-plan(1).
 */
#pragma once

#include "cli/help/help.h"

/*
 * Returns: (owned) the page in the man(7) macros of troff: of @command, or of the program where it
 * is NULL, with all @commands, the exit statuses and the environment variables.
 */
char *help_man(Commands commands, const Command *command);
