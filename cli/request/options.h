/*
 * cli/request/options.h - the options of a command line, by tables; also the requests of a JSON
 * line.
 *
 * A table names the options, their values and their help, so that parsing, help and "did you mean"
 * cannot disagree.  Values are text until a getter reads them with the strict grammar of
 * base/units.h.  A getter that meets a wrong value records it and returns its fallback; the first
 * such error is kept, with the option's name, and options_finish() reports it.
 *
 *   --name VALUE, --name=VALUE; -o VALUE, -oVALUE: --output VALUE; "--" ends options, "-" is an
 *   argument; the last of two equal options wins.
 *
 * Errors: CMD_ERROR_USAGE (of a command line), JSON_ERROR_INVALID (of a JSON object).
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/units.h"

typedef struct {
    const char *name;  /* without dashes; NULL ends a table */
    const char *value; /* what its value looks like in the help; NULL: a switch */
    const char *help;  /* the short help has it up to the first of ":;(" */
    /* (NULL-terminated) The words that the value is one of, or (list) a function that returns them.
     * options_choice() reads by them and completion offers them; where @or_auto, "auto" too. */
    const char *const *words;
    const char *const *(*list)(void);
    bool or_auto;
    bool common; /* among the most used: in the short help */
} OptionInfo;

/* Opaque; see options.c. */
typedef struct Options Options;

/*
 * @tables  (borrowed) NULL-terminated array of tables.
 * @argv    argv[0] is skipped; strings are borrowed.
 */
Options *options_parse(const OptionInfo *const *tables, int argc, char **argv, GError **error);

/*
 * Reads the members of @object as options.  Keys have '_' for '-'; values are numbers, strings,
 * true and false for switches and for on and off, arrays for lists; null counts as absent.
 * Returns: (owned) never NULL; what is wrong is recorded in @doc.  The caller must ask for its own
 * keys (json_member()) before.
 */
Options *options_read(const OptionInfo *const *tables, JsonDoc *doc, const JsonValue *object);

/*
 * Where the only argument is a "degas-job" file, takes its place: {"format":"degas-job","version":1,
 * "model","cluster",...}, in YAML, too; the other keys are those of options_read(), and --set may be
 * an object.  What is on the command line counts.  Models and clusters that are files are looked for
 * beside the job file first.
 * Returns false on JSON_ERROR_INVALID, G_FILE_ERROR.
 */
bool options_add_job(Options *options, GError **error);

void options_free(Options *options);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Options, options_free)

/* Returns: (owned) a copy in which each of @n options, which the tables must have, has another value,
 * as if it had been typed so.  @pairs: {name, text}.  Errors are not copied. */
Options *options_copy_with(const Options *options, const char *const (*pairs)[2], size_t n);

/* Gives @name, which the tables must have, the value @text, as if it were on the command line. */
void options_set(Options *options, const char *name, const char *text);

/*
 * The command line as one would type it again: "degas @command argument --name value ...", with
 * arguments first and files without their folders.  Values are as typed, whatever options_set() did
 * since.  Options that say where products go and how fast they are made are left out (output, json,
 * threads, color and @products, a NULL-terminated list), so that a picture has the same footer
 * wherever it is written.
 * Returns: (owned) text for a picture's footer.
 */
char *options_command_line(const Options *options, const char *command,
                           const char *const *products);

/* Returns: (owned) @text as a shell has to be given it: in quotes where it has anything special. */
char *options_word(const char *text);

/* Which of -h and --help was there, the last of them. */
typedef enum {
    OPTIONS_NO_HELP,
    OPTIONS_SHORT_HELP,
    OPTIONS_FULL_HELP
} OptionsHelp;
OptionsHelp options_help(const Options *options);

/* Returns: (owned) the words that a value of the option may be, as its row or "on|off" in its value
 * says, with "auto" where the row has it; NULL: no words. */
char **options_value_words(const OptionInfo *info);

size_t options_n_arguments(const Options *options);
/* (borrowed) NULL beyond the last. */
const char *options_argument(const Options *options, size_t i);

/* --- values: each getter returns @fallback, or NULL, where the option is absent --- */

/* Whether @name is there; of a switch its value. */
bool options_has(const Options *options, const char *name);
/* (borrowed) */
const char *options_string(Options *options, const char *name, const char *fallback);
int64_t options_int64(Options *options, const char *name, int64_t min, int64_t max,
                      int64_t fallback);
/* The value of --threads, which changes no result; when absent, one thread for each core. */
int64_t options_threads(Options *options);
int64_t options_bytes(Options *options, const char *name, int64_t fallback);
double options_quantity(Options *options, const char *name, UnitsKind kind, double fallback);
/* The same of @text, a part of @name's value; @fallback where it is wrong. */
double options_part(Options *options, const char *name, const char *text, UnitsKind kind,
                    double fallback);
/* The index in the words of the option's row. */
int options_choice(Options *options, const char *name, int fallback);
/* Reads @text, a part of @name's value, into @n, which stays where it is wrong; messages call the
 * number @what. */
bool options_part_int64(Options *options, const char *name, const char *text, const char *what,
                        int64_t min, int64_t max, int64_t *n);
/* "on" or "off". */
bool options_on_off(Options *options, const char *name, bool fallback);
/* Returns: (owned, nullable) the words between commas; NULL: absent.  Empty words are errors. */
char **options_words(Options *options, const char *name);
/* Returns: (owned, nullable) GArray of int64_t; NULL when absent. */
GArray *options_int64s(Options *options, const char *name, int64_t min, int64_t max);

/* How many numbers options_series() returns at most. */
#define OPTIONS_MAX_SERIES 4096

/*
 * Reads lists and ranges of whole numbers: "64,128", "64..1024:x2".
 *
 *   series = part {"," part};  part = N | A..B:+STEP | A..B:xFACTOR
 *
 * A range has A, A + STEP (or A * FACTOR), ... up to B.
 * Returns: (owned, nullable) GArray of int64_t, each in [min, max], ascending, none twice; NULL
 * when absent or wrong.
 */
GArray *options_series(Options *options, const char *name, int64_t min, int64_t max);

/* Records an error about @name's value, unless one is recorded already. */
void options_fail(Options *options, const char *name, const char *format, ...) G_GNUC_PRINTF(3, 4);

/* False, with the first error, if a getter met one. */
bool options_finish(Options *options, GError **error);

/* Appends the words of @line, broken into lines of at most 80 columns of which all but the first
 * begin at column @indent; @column is where the cursor is. */
void options_append_words(GString *text, const char *line, size_t indent, size_t *column);

/* Appends the help of a table, at most 80 columns wide. */
void options_append_help(GString *text, const OptionInfo *table);
