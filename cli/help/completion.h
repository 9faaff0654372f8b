/*
 * cli/help/completion.h - what a shell offers after "degas": commands, options, and the words that
 * values and arguments may be, among them the built-in models, clusters and schedules.
 *
 * The scripts hold all of it, so that a shell asks nobody while one types; they are written anew
 * whenever degas is installed.
 */
#pragma once

#include "cli/help/help.h"

/* NULL-terminated: bash, zsh, fish. */
extern const char *const help_shells[];

/* Returns: (owned) the script for the shell of this index. */
char *help_completion(Commands commands, int shell);
