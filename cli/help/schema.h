/*
 * cli/help/schema.h - JSON Schemas (draft 2020-12) of the files that degas reads and writes.
 *
 * Each format has a file cli/help/schema/NAME.json, which refers to others as "#/$defs/NAME".
 * tests/cli/test_schema.sh holds them against what commands write and against what the readers
 * take and refuse, key by key.
 */
#pragma once

#include <glib.h>

#include "cli/request/command.h"

/* Returns: (owned) the names of the formats, sorted, (owned) each; NULL after the last. */
GPtrArray *help_schema_names(void);

/* Returns: (owned, nullable) the schema of that format, with all that it refers to; NULL if there is
 * no such format.  The keys of a job are the options of those of @commands that take one. */
char *help_schema(const Command *const *commands, const char *name);
