/*
 * cli/recipe/settings.h - RecipeSettings: what a file of another program sets, as keys and values in
 * text, whatever its syntax is.
 *
 * Readers of syntax (syntax.h, shell.h) add settings; readers of dialects (dialects.h) ask for those
 * that they know.  Nested keys are joined by dots ("parallelism.tensor_parallel_degree"); flags have
 * no leading dashes, and a flag without a value is "true".  Of two settings of one key the last
 * counts, as in the programs.  '-' and '_' are the same.
 *
 * A getter that meets a wrong value records it and returns its fallback; the first error is kept,
 * and recipe_settings_finish() reports it with file, line and key.  What nobody asked for does not
 * matter for how the job is split: it is counted.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#define RECIPE_MAX_BYTES (4u * 1024 * 1024)
#define RECIPE_MAX_SETTINGS 20000
#define RECIPE_MAX_VALUE_BYTES (64 * 1024)
#define RECIPE_MAX_DEPTH 32

/* Stands in values for what only the run knows: a variable that the script does not set.  The
 * variable's name follows, and the character again. */
#define RECIPE_UNKNOWN '\001'

typedef struct {
    char *key;   /* (owned) '_' for '-', without leading dashes */
    char *shown; /* (owned) as it is written in the file */
    char *value; /* (owned) */
    int line;    /* from 1; 0: the file does not tell */
    bool is_used;
} RecipeSetting;

typedef struct {
    char *path;            /* (owned) of the file, for messages */
    GPtrArray *all;        /* of (owned) RecipeSetting *, unique keys */
    GHashTable *by_key;    /* (borrowed) of them */
    GPtrArray *notes;      /* of (owned) char *: what is taken for granted, or approximated */
    GPtrArray *unmodelled; /* of (owned) char *: what matters and is not in the prediction */
    GError *error;
} RecipeSettings;

RecipeSettings *recipe_settings_new(const char *path);
void recipe_settings_free(RecipeSettings *settings);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RecipeSettings, recipe_settings_free)

/* Adds a setting, or changes the one of that key. */
void recipe_settings_add(RecipeSettings *settings, const char *key, const char *value, int line);
/* Gives settings their last component as key: "model.tp" becomes "tp".  Of equal ones the last
 * counts. */
void recipe_settings_flatten(RecipeSettings *settings);

/* Records CMD_ERROR_INPUT at the setting of @key (nullable: the file), unless there is an error. */
void recipe_fail(RecipeSettings *settings, const char *key, const char *format, ...)
    G_GNUC_PRINTF(3, 4);
bool recipe_settings_finish(RecipeSettings *settings, GError **error);

/* Adds a line to notes, or to unmodelled. */
void recipe_note(RecipeSettings *settings, const char *format, ...) G_GNUC_PRINTF(2, 3);
/* Names the setting of @key, if there is one that is not @usual (nullable: any value matters), as one
 * that matters and is not modelled.  @what  says in a few words what it does. */
void recipe_unmodelled(RecipeSettings *settings, const char *key, const char *usual,
                       const char *what);

/* How many settings nobody asked for.  @names  (nullable) of (owned) char *: their keys are added. */
guint recipe_settings_unused(const RecipeSettings *settings, GPtrArray *names);

/* --- getters: absent, empty, null and auto count as absent --- */

bool recipe_has(RecipeSettings *settings, const char *key);
/* (borrowed) */
const char *recipe_string(RecipeSettings *settings, const char *key, const char *fallback);
int64_t recipe_int(RecipeSettings *settings, const char *key, int64_t min, int64_t max,
                   int64_t fallback);
double recipe_double(RecipeSettings *settings, const char *key, double fallback);
/* true, false, 1, 0, yes, no, on, off in any case; a flag without a value is true. */
bool recipe_bool(RecipeSettings *settings, const char *key, bool fallback);
/* Whether @key is set to @value, in any case. */
bool recipe_is(RecipeSettings *settings, const char *key, const char *value);
