#include "cli/recipe/shell_words.h"

#include <string.h>

#include "base/units.h"

#define MAX_WORDS 20000
#define UNKNOWN_TEXT "\001"

static void read_fields(RecipeShell *sh, bool is_quoted, GString *word, bool *has, GPtrArray *out);

/* --- variables --- */

char *
recipe_shell_unknown(const char *name)
{
    return g_strdup_printf(UNKNOWN_TEXT "%s" UNKNOWN_TEXT, name);
}

void
recipe_shell_assign(RecipeShell *sh, const char *name, GPtrArray *values, bool adds)
{
    GPtrArray *old = g_hash_table_lookup(sh->variables, name);

    if (sh->given != NULL && g_hash_table_contains(sh->given, name)) {
        g_ptr_array_unref(values);
        return;
    }
    if (old == NULL)
        g_ptr_array_add(sh->order, g_strdup(name));
    if (adds && old != NULL) {
        if (old->len + values->len > MAX_WORDS)
            recipe_fail(sh->settings, NULL, "more than %d words", MAX_WORDS);
        else
            for (guint i = 0; i < values->len; i++)
                g_ptr_array_add(old, g_strdup(g_ptr_array_index(values, i)));
        g_ptr_array_unref(values);
        return;
    }
    g_hash_table_replace(sh->variables, g_strdup(name), values);
}

void
recipe_shell_assign_text(RecipeShell *sh, const char *name, const char *text, bool adds)
{
    const GPtrArray *old = g_hash_table_lookup(sh->variables, name);
    GPtrArray *values = g_ptr_array_new_with_free_func(g_free);

    g_ptr_array_add(values, adds && old != NULL && old->len > 0
                                ? g_strconcat(g_ptr_array_index(old, 0), text, NULL)
                                : g_strdup(text));
    if (strlen(g_ptr_array_index(values, 0)) > RECIPE_MAX_VALUE_BYTES)
        recipe_fail(sh->settings, NULL, "line %d: a value longer than %d bytes", sh->line,
                    RECIPE_MAX_VALUE_BYTES);
    recipe_shell_assign(sh, name, values, false);
}

const char *
recipe_shell_value(const RecipeShell *sh, const char *name)
{
    const GPtrArray *values = g_hash_table_lookup(sh->variables, name);

    return values == NULL || values->len == 0 ? NULL : g_ptr_array_index(values, 0);
}

/* --- arithmetic --- */

typedef struct {
    const RecipeShell *sh;
    const char *p;
    int depth;
    bool failed;
} Sum;

static int64_t sum_of(Sum *sum, int level);

static int64_t
term(Sum *sum)
{
    while (*sum->p == ' ' || *sum->p == '\t' || *sum->p == '\n' || *sum->p == '$' || *sum->p == '"')
        sum->p++;
    if (++sum->depth > RECIPE_MAX_DEPTH)
        sum->failed = true;
    int64_t value = 0;
    if (sum->failed)
        return 0;
    if (*sum->p == '(' || *sum->p == '{') {
        sum->p++;
        value = sum_of(sum, 0);
        sum->failed |= *sum->p != ')' && *sum->p != '}';
        sum->p += *sum->p != 0;
    } else if (g_ascii_isdigit(*sum->p)) {
        char *after;
        value = g_ascii_strtoll(sum->p, &after, 10);
        sum->p = after;
    } else if (g_ascii_isalpha(*sum->p) || *sum->p == '_') {
        const char *begin = sum->p;
        while (g_ascii_isalnum(*sum->p) || *sum->p == '_')
            sum->p++;
        g_autofree char *name = g_strndup(begin, (size_t)(sum->p - begin));
        const char *text = recipe_shell_value(sum->sh, name);
        sum->failed |= text == NULL || !units_parse_int64(text, name, 0, INT64_MAX, &value, NULL);
    } else {
        sum->failed = true;
    }
    sum->depth--;
    while (*sum->p == ' ' || *sum->p == '\t' || *sum->p == '\n' || *sum->p == '"')
        sum->p++;
    return value;
}

/* Level 0: comparisons; 1: sums; 2: products. */
static int64_t
sum_of(Sum *sum, int level)
{
    int64_t value = level == 2 ? term(sum) : sum_of(sum, level + 1);

    while (!sum->failed && *sum->p != 0 &&
           strchr(level == 0   ? "<>=!"
                  : level == 1 ? "+-"
                               : "*/%",
                  *sum->p) != NULL) {
        const char op = *sum->p++;
        const bool or_equal = level == 0 && *sum->p == '=';

        sum->p += or_equal;
        const int64_t right = level == 2 ? term(sum) : sum_of(sum, level + 1);
        if (level == 0)
            value = op == '<'   ? value < right || (or_equal && value == right)
                    : op == '>' ? value > right || (or_equal && value == right)
                    : op == '!' ? value != right
                                : value == right;
        else if (op == '+')
            sum->failed |= __builtin_add_overflow(value, right, &value);
        else if (op == '-')
            sum->failed |= __builtin_sub_overflow(value, right, &value);
        else if (op == '*')
            sum->failed |= __builtin_mul_overflow(value, right, &value);
        else if (right <= 0 || value < 0)
            sum->failed = true;
        else
            value = op == '/' ? value / right : value % right;
    }
    return value;
}

/* (owned) what @text comes to, or unknown. */
static char *
arithmetic(const RecipeShell *sh, const char *text)
{
    Sum sum = {.sh = sh, .p = text};
    const int64_t value = sum_of(&sum, 0);

    return sum.failed || *sum.p != 0 ? recipe_shell_unknown("((") : g_strdup_printf(INT, value);
}

/* --- words --- */

/* Skips to behind the @closing that ends what was opened; true if there is one. */
static bool
skip_to(RecipeShell *sh, char opening, char closing)
{
    for (int open = 1; sh->p < sh->end; sh->p++) {
        sh->line += *sh->p == '\n';
        if (*sh->p == '\\' && sh->p + 1 < sh->end)
            sh->p++;
        else if (*sh->p == '\'' && opening == '(') {
            const char *quote = memchr(sh->p + 1, '\'', (size_t)(sh->end - sh->p - 1));
            sh->p = quote == NULL ? sh->p : quote;
        } else if (*sh->p == closing && --open == 0)
            return sh->p++, true;
        else
            open += *sh->p == opening;
    }
    return false;
}

void
recipe_shell_expand(RecipeShell *sh, const char *begin, const char *end, bool is_quoted,
                    GString *word, bool *has, GPtrArray *out)
{
    const char *p = sh->p, *old_end = sh->end;
    const int line = sh->line;

    if (sh->depth >= RECIPE_MAX_DEPTH) {
        recipe_fail(sh->settings, NULL, "line %d: nested deeper than %d", line, RECIPE_MAX_DEPTH);
        return;
    }
    sh->depth++;
    sh->p = begin;
    sh->end = end;
    while (sh->p < sh->end)
        read_fields(sh, is_quoted, word, has, out);
    sh->p = p;
    sh->end = old_end;
    sh->line = line;
    sh->depth--;
}

static void
push(RecipeShell *sh, GString *word, bool *has, GPtrArray *out)
{
    if (!*has)
        return;
    if (out != NULL && out->len >= MAX_WORDS)
        recipe_fail(sh->settings, NULL, "line %d: more than %d words", sh->line, MAX_WORDS);
    else if (out != NULL)
        g_ptr_array_add(out, g_strdup(word->str));
    g_string_truncate(word, 0);
    *has = false;
}

/* Adds @text to the word; where it is not quoted its blanks end words. */
static void
add_text(RecipeShell *sh, const char *text, bool is_quoted, GString *word, bool *has,
         GPtrArray *out)
{
    for (const char *p = text; *p != 0; p++) {
        if (!is_quoted && out != NULL && (*p == ' ' || *p == '\t' || *p == '\n')) {
            push(sh, word, has, out);
            continue;
        }
        g_string_append_c(word, *p);
        *has = true;
    }
    if (word->len > RECIPE_MAX_VALUE_BYTES) {
        recipe_fail(sh->settings, NULL, "line %d: a word longer than %d bytes", sh->line,
                    RECIPE_MAX_VALUE_BYTES);
        g_string_truncate(word, 0);
    }
}

/* Adds the values of the variable @name. */
static void
add_values(RecipeShell *sh, const char *name, bool all, bool is_quoted, GString *word, bool *has,
           GPtrArray *out)
{
    const GPtrArray *values = g_hash_table_lookup(sh->variables, name);

    if (values == NULL) {
        g_autofree char *text = recipe_shell_unknown(name);
        add_text(sh, text, true, word, has, out);
        return;
    }
    for (guint i = 0; i < (all ? values->len : MIN(1, values->len)); i++) {
        if (i > 0)
            push(sh, word, has, out);
        add_text(sh, g_ptr_array_index(values, i), is_quoted, word, has, out);
    }
}

/* "${...}", whose text is from @begin to @end. */
static void
expand_braces(RecipeShell *sh, const char *begin, const char *end, bool is_quoted, GString *word,
              bool *has, GPtrArray *out)
{
    const char *p = begin;

    while (p < end && (g_ascii_isalnum(*p) || *p == '_'))
        p++;
    g_autofree char *name = g_strndup(begin, (size_t)(p - begin));
    const bool all = end - p >= 3 && (memcmp(p, "[@]", 3) == 0 || memcmp(p, "[*]", 3) == 0);
    p += all ? 3 : 0;
    const char *value = recipe_shell_value(sh, name);
    const bool colon = p < end && *p == ':' && p + 1 < end && strchr("-=+?", p[1]) != NULL;
    const char *rest = p + colon;

    if (p == end) {
        add_values(sh, name, all, is_quoted, word, has, out);
    } else if (name[0] != 0 && (*rest == '-' || *rest == '=' || *rest == '?')) {
        if (value != NULL && (!colon || value[0] != 0))
            add_values(sh, name, all, is_quoted, word, has, out);
        else if (*rest == '?')
            add_values(sh, name, false, true, word, has, out);
        else
            recipe_shell_expand(sh, rest + 1, end, is_quoted, word, has, out);
        if (*rest == '=' && value == NULL && word->len > 0)
            recipe_shell_assign_text(sh, name, word->str, false);
    } else if (name[0] != 0 && *rest == '+') {
        if (value != NULL && value[0] != 0)
            recipe_shell_expand(sh, rest + 1, end, is_quoted, word, has, out);
    } else {
        g_autofree char *text = recipe_shell_unknown("(");
        add_text(sh, text, true, word, has, out);
    }
}

/* What follows a dollar. */
static void
expand(RecipeShell *sh, bool is_quoted, GString *word, bool *has, GPtrArray *out)
{
    const char *begin = ++sh->p;

    if (sh->end - begin >= 2 && memcmp(begin, "((", 2) == 0) {
        sh->p = begin + 2;
        if (skip_to(sh, '(', ')')) {
            g_autofree char *text = g_strndup(begin + 2, (size_t)(sh->p - begin - 3));
            g_autofree char *value = arithmetic(sh, text);
            add_text(sh, value, true, word, has, out);
            sh->p += sh->p < sh->end && *sh->p == ')';
        }
    } else if (begin < sh->end && *begin == '(') {
        g_autofree char *text = recipe_shell_unknown("(");
        sh->p++;
        skip_to(sh, '(', ')');
        add_text(sh, text, true, word, has, out);
    } else if (begin < sh->end && *begin == '{') {
        sh->p++;
        if (skip_to(sh, '{', '}'))
            expand_braces(sh, begin + 1, sh->p - 1, is_quoted, word, has, out);
    } else if (begin < sh->end && (g_ascii_isalpha(*begin) || *begin == '_')) {
        while (sh->p < sh->end && (g_ascii_isalnum(*sh->p) || *sh->p == '_'))
            sh->p++;
        g_autofree char *name = g_strndup(begin, (size_t)(sh->p - begin));
        add_values(sh, name, false, is_quoted, word, has, out);
    } else if (begin < sh->end && strchr("@*#?!$-0123456789", *begin) != NULL) {
        const char name[2] = {*begin, 0};
        sh->p++;
        if (*begin != '@' && *begin != '*')
            add_values(sh, name, false, is_quoted, word, has, out);
    } else {
        add_text(sh, "$", true, word, has, out);
    }
}

/* Reads one piece of a word: a quoted text, an expansion, or a character. */
static void
read_fields(RecipeShell *sh, bool is_quoted, GString *word, bool *has, GPtrArray *out)
{
    const char c = *sh->p;

    if (c == '\\' && sh->p + 1 < sh->end) {
        if (sh->p[1] == '\r' && sh->p + 2 < sh->end)
            sh->p++;
        if (sh->p[1] == '\n')
            sh->line++;
        else
            add_text(sh, (const char[]){sh->p[1], 0}, true, word, has, out);
        sh->p += 2;
    } else if (c == '\'' && !is_quoted) {
        const char *quote = memchr(sh->p + 1, '\'', (size_t)(sh->end - sh->p - 1));
        const char *to = quote == NULL ? sh->end : quote;
        g_autofree char *text = g_strndup(sh->p + 1, (size_t)(to - sh->p - 1));
        for (const char *p = text; *p != 0; p++)
            sh->line += *p == '\n';
        *has = true;
        add_text(sh, text, true, word, has, out);
        sh->p = quote == NULL ? sh->end : to + 1;
    } else if (c == '"' && !is_quoted) {
        sh->p++;
        *has = true;
        while (sh->p < sh->end && *sh->p != '"')
            read_fields(sh, true, word, has, out);
        sh->p += sh->p < sh->end;
    } else if (c == '$') {
        expand(sh, is_quoted, word, has, out);
    } else if (c == '`') {
        const char *quote = memchr(sh->p + 1, '`', (size_t)(sh->end - sh->p - 1));
        g_autofree char *text = recipe_shell_unknown("(");
        sh->p = quote == NULL ? sh->end : quote + 1;
        add_text(sh, text, true, word, has, out);
    } else {
        sh->line += c == '\n';
        add_text(sh, (const char[]){c, 0}, true, word, has, out);
        sh->p++;
    }
}

bool
recipe_shell_ends_word(char c)
{
    return c == 0 || strchr(" \t\r\n;&|()<>", c) != NULL;
}

void
recipe_shell_read_word(RecipeShell *sh, GPtrArray *out, GString *text)
{
    g_autoptr(GString) word = g_string_new(NULL);
    bool has = false;

    while (sh->p < sh->end && !recipe_shell_ends_word(*sh->p))
        read_fields(sh, false, word, &has, out);
    if (out != NULL)
        push(sh, word, &has, out);
    else
        g_string_append(text, word->str);
}

void
recipe_shell_skip_blanks(RecipeShell *sh)
{
    while (sh->p < sh->end) {
        if (*sh->p == ' ' || *sh->p == '\t' || *sh->p == '\r') {
            sh->p++;
        } else if (*sh->p == '\\' && sh->p + 1 < sh->end && sh->p[1] == '\n') {
            sh->p += 2;
            sh->line++;
        } else if (*sh->p == '\\' && sh->end - sh->p > 2 && sh->p[1] == '\r' && sh->p[2] == '\n') {
            sh->p += 3;
            sh->line++;
        } else if (*sh->p == '#') {
            while (sh->p < sh->end && *sh->p != '\n')
                sh->p++;
        } else {
            return;
        }
    }
}
