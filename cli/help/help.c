#include "cli/help/help.h"

#include <string.h>

/* --- the commands --- */

char *
help_overview(Commands commands, bool is_short)
{
    GString *text =
        g_string_new("usage: degas COMMAND [options] ...\n"
                     "Plans, simulates, measures and runs the training of models on many devices.\n"
                     "\n");

    for (; *commands != NULL; commands++)
        if ((*commands)->common || !is_short)
            g_string_append_printf(text, "  %-11s %s\n", (*commands)->name, (*commands)->summary);
    g_string_append(text, "\n"
                          "  degas plan llama3-70b dgx-h100 --gpus 64 --global-batch 512 -o "
                          "plan.json\n"
                          "  degas simulate plan.json --plot timeline.svg\n"
                          "\n");
    g_string_append(
        text,
        is_short ? "degas --help lists all commands, degas COMMAND -h the usual options of one.\n"
                 : "degas COMMAND --help lists the options of a command, -h the most used ones.\n");
    return g_string_free(text, FALSE);
}

/* --- one command --- */

/* A space where no line ends, until all lines are broken. */
#define NO_BREAK "\001"

/* Returns: (owned) @usage in which what is in brackets stays together. */
static char *
without_breaks(const char *usage)
{
    char *text = g_strdup(usage);
    int depth = 0;

    for (char *p = text; *p != 0; p++) {
        depth += (*p == '[') - (*p == ']');
        if (*p == ' ' && depth > 0)
            *p = *NO_BREAK;
    }
    return text;
}

/* Paragraphs are filled; lines that begin with a space (examples) and empty ones stay. */
static void
append_details(GString *text, const char *details)
{
    g_auto(GStrv) lines = g_strsplit(details, "\n", -1);
    size_t column = 0;

    for (size_t i = 0; lines[i] != NULL; i++) {
        if (*lines[i] != 0 && *lines[i] != ' ') {
            options_append_words(text, lines[i], 0, &column);
            continue;
        }
        g_string_append_printf(text, "%s%s\n", column > 0 ? "\n" : "", lines[i]);
        column = 0;
    }
    g_string_append(text, column > 0 ? "\n\n" : "");
}

static void
append_usage(GString *text, const Command *command)
{
    g_autofree char *called = g_strdup_printf("usage: degas %s ", command->name);
    g_autofree char *usage = without_breaks(command->usage);
    size_t column = strlen(called);

    g_string_append(text, called);
    options_append_words(text, usage, strlen(called), &column);
    g_strdelimit(text->str, NO_BREAK, ' ');
    g_string_append_printf(text, "\n%s\n\n", command->summary);
}

static guint
count_lines(const char *text)
{
    guint n = 0;

    for (; *text != 0; text++)
        n += *text == '\n';
    return n;
}

/* The first example of the details, with an empty line after it. */
static void
append_example(GString *text, const char *details)
{
    const char *begin = details == NULL                   ? NULL
                        : g_str_has_prefix(details, "  ") ? details
                                                          : strstr(details, "\n  ");

    if (begin == NULL)
        return;
    begin += *begin == '\n';
    const char *end = strstr(begin, "\n\n");
    for (const char *p = begin; end == NULL || p < end;) {
        const char *newline = strchr(p, '\n');
        if (newline == NULL)
            break;
        if (newline == begin || newline[-1] != '\\') {
            end = newline;
            break;
        }
        p = newline + 1;
    }
    g_string_append_len(text, begin, end == NULL ? -1 : end - begin);
    g_string_append(text, "\n\n");
}

char *
help_first_clause(const char *help)
{
    const bool is_required = strstr(help, "(required)") != NULL;
    const size_t n = strcspn(help, ":;(");
    g_autofree char *clause = g_strchomp(g_strndup(help, n));

    return g_strconcat(clause, is_required ? " (required)" : "", NULL);
}

static void
append_short(GString *text, const Command *command)
{
    const guint n_free = HELP_SHORT_LINES - 2 - count_lines(text->str);
    g_autoptr(GString) shown = g_string_new(NULL);
    bool any_common = false;
    guint n_all = 0, n_shown = 0, n_lines = 0;

    for (size_t t = 0; command->options[t] != NULL; t++)
        for (const OptionInfo *info = command->options[t]; info->name != NULL; info++, n_all++)
            any_common |= info->common;
    for (size_t t = 0; command->options[t] != NULL; t++) {
        for (const OptionInfo *info = command->options[t]; info->name != NULL; info++) {
            g_autofree char *clause = help_first_clause(info->help);
            const OptionInfo alone[] = {{info->name, info->value, clause}, {NULL, NULL, NULL}};
            g_autoptr(GString) lines = g_string_new(NULL);

            options_append_help(lines, alone);
            if ((any_common && !info->common) || n_lines + count_lines(lines->str) > n_free)
                continue;
            g_string_append(shown, lines->str);
            n_lines += count_lines(lines->str);
            n_shown++;
        }
    }
    g_string_append_printf(text, "%s%sdegas %s --help ", shown->str, n_all > 0 ? "\n" : "",
                           command->name);
    if (n_shown < n_all)
        g_string_append_printf(text, "explains all %u options.\n", n_all);
    else
        g_string_append(text, "says more.\n");
}

static void
append_full(GString *text, const Command *command)
{
    if (command->details != NULL)
        append_details(text, command->details);
    for (size_t i = 0; command->options[i] != NULL; i++) {
        const char *heading = command->headings[i];

        if (i == 0 || heading != NULL)
            g_string_append_printf(text, "%s%s:\n", i == 0 ? "" : "\n",
                                   heading == NULL ? "Options" : heading);
        options_append_help(text, command->options[i]);
    }
    g_string_append(text, "  --help                    this text; -h: the most used options\n");
}

char *
help_command(const Command *command, bool is_short)
{
    GString *text = g_string_new(NULL);

    append_usage(text, command);
    if (is_short) {
        append_example(text, command->details);
        append_short(text, command);
    } else {
        append_full(text, command);
    }
    return g_string_free(text, FALSE);
}
