/*
 * cli/recipe/shell_words.h - RecipeShell: a shell script that is read, and its words: variables,
 * arithmetic and expansions.
 *
 * What is not known, such as a variable that nothing sets, becomes a text that no word has, so that
 * whoever reads a setting sees that its value is unknown.
 *
 * Private to shell.c and shell_words.c.
 */
#pragma once

#include "cli/recipe/syntax.h"

typedef struct {
    RecipeSettings *settings;
    const char *p, *end;
    int line, depth;
    GHashTable *variables; /* (owned) name -> GPtrArray of (owned) char * */
    GPtrArray *order;      /* of (owned) names in the order of their first assignment */
    GHashTable *given;     /* (borrowed, nullable) */
    GArray *blocks;        /* of Block */
    bool in_condition;     /* between if and then */
    bool condition;        /* of the last command */
    GPtrArray *heredocs;   /* of (owned) delimiters to come at the end of the line, behind '"' where
                            * they are quoted, else behind ' ' */
    guint n_runs;          /* commands whose flags were taken */
} RecipeShell;

/* --- variables --- */

/* Returns: (owned) the text of an unknown value of @name. */
char *recipe_shell_unknown(const char *name);

/* Sets @name to @values (taken), or adds them if @adds. */
void recipe_shell_assign(RecipeShell *sh, const char *name, GPtrArray *values, bool adds);

/* The same of one value; @adds: behind the text that there is. */
void recipe_shell_assign_text(RecipeShell *sh, const char *name, const char *text, bool adds);

/* Returns: (borrowed, nullable) the first value of @name. */
const char *recipe_shell_value(const RecipeShell *sh, const char *name);

/* --- words --- */

/* Skips blanks, continued lines and comments; stops at a line's end. */
void recipe_shell_skip_blanks(RecipeShell *sh);

bool recipe_shell_ends_word(char c);

/* Reads a word, which may become none or several; @out NULL: one text, put into @text. */
void recipe_shell_read_word(RecipeShell *sh, GPtrArray *out, GString *text);

/* Adds the fields of [@begin, @end) to @word and @out, which has one for each that is complete.
 * @has  whether @word is one though it may be empty. */
void recipe_shell_expand(RecipeShell *sh, const char *begin, const char *end, bool is_quoted,
                         GString *word, bool *has, GPtrArray *out);
