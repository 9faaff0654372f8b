#include "cli/help/man.h"

#include <string.h>

/* Appends @text as troff prints it: no character of it is a macro or an escape. */
static void
append(GString *page, const char *text)
{
    static const char *const escapes[][2] = {
        {"\\", "\\e"}, {"-", "\\-"}, {"^", "\\(ha"}, {"~", "\\(ti"}, {"`", "\\(ga"}, {"'", "\\(aq"},
    };

    if ((*text == '.' || *text == '\'') && (page->len == 0 || page->str[page->len - 1] == '\n'))
        g_string_append(page, "\\&");
    for (; *text != 0; text++) {
        size_t i = 0;

        while (i < G_N_ELEMENTS(escapes) && *text != escapes[i][0][0])
            i++;
        if (i < G_N_ELEMENTS(escapes))
            g_string_append(page, escapes[i][1]);
        else
            g_string_append_c(page, *text);
    }
}

static void
append_line(GString *page, const char *text)
{
    append(page, text);
    g_string_append_c(page, '\n');
}

static void
append_title(GString *page, const char *name, const char *summary)
{
    g_autofree char *title = g_ascii_strup(name, -1);

    g_string_append_printf(page, ".\\\" Written by: degas help --man\n.TH \"");
    append(page, title);
    g_string_append(page,
                    "\" 1 \"" DEGAS_DATE "\" \"degas " DEGAS_VERSION "\" \"degas\"\n.SH NAME\n");
    append(page, name);
    g_string_append(page, " \\- ");
    append_line(page, summary);
}

/* @name as a word of the command line, in bold. */
static void
append_bold(GString *page, const char *name, const char *after)
{
    g_string_append(page, "\\fB");
    append(page, name);
    g_string_append_printf(page, "\\fR%s", after);
}

/* Details as the help has them: lines that begin with spaces are examples. */
static void
append_details(GString *page, const char *details)
{
    g_auto(GStrv) lines = g_strsplit(details, "\n", -1);
    bool is_example = false, is_new = false; /* is_new: after an empty line */

    for (size_t i = 0; lines[i] != NULL; i++) {
        const bool indented = *lines[i] == ' ';

        if (*lines[i] == 0 || indented != is_example)
            g_string_append(page, is_example ? ".fi\n.RE\n" : "");
        if (indented && (!is_example || is_new))
            g_string_append_printf(page, "%s.RS 4\n.nf\n", i == 0 ? "" : ".PP\n");
        else if (!indented && (is_example || is_new) && *lines[i] != 0)
            g_string_append(page, ".PP\n");
        is_new = *lines[i] == 0;
        is_example = indented;
        if (*lines[i] != 0)
            append_line(page, lines[i] + strspn(lines[i], " "));
    }
}

static void
append_options(GString *page, const OptionInfo *table)
{
    for (const OptionInfo *info = table; info->name != NULL; info++) {
        g_autofree char *flag = g_strconcat("--", info->name, NULL);

        g_string_append(page, ".TP\n");
        if (strcmp(info->name, "output") == 0)
            append_bold(page, "-o", ", ");
        append_bold(page, flag, "");
        if (info->value != NULL) {
            g_string_append(page, " \\fI");
            append(page, info->value);
            g_string_append(page, "\\fR");
        }
        g_string_append_c(page, '\n');
        append_line(page, info->help);
    }
}

static void
append_command(GString *page, const Command *command)
{
    g_autofree char *name = g_strconcat("degas-", command->name, NULL);

    append_title(page, name, command->summary);
    g_string_append(page, ".SH SYNOPSIS\n\\fBdegas ");
    append(page, command->name);
    g_string_append(page, "\\fR ");
    append_line(page, command->usage);
    if (command->details != NULL) {
        g_string_append(page, ".SH DESCRIPTION\n");
        append_details(page, command->details);
    }
    g_string_append(page, ".SH OPTIONS\n");
    for (size_t i = 0; command->options[i] != NULL; i++) {
        if (command->headings[i] != NULL) {
            g_string_append(page, ".SS ");
            append_line(page, command->headings[i]);
        }
        append_options(page, command->options[i]);
    }
    g_string_append(page, ".TP\n\\fB\\-h\\fR, \\fB\\-\\-help\\fR\n"
                          "the most used options on one screen; all options\n"
                          ".SH SEE ALSO\n.BR degas (1)\n");
}

static void
append_program(GString *page, Commands commands)
{
    static const char *const variables[][2] = {
        {"COLUMNS", "the width of pictures of text and of tables where stdout is no terminal's"},
        {"NO_COLOR", "if it is set, pictures on a terminal have no colours"},
        {"DEGAS_PLUGIN_DIR",
         "the only folder in which degas\\-cuda.so and degas\\-mpi.so are looked for"},
        {"DEGAS_CUDA_ATTENTION", "which attention kernel runs on GPUs, mma or wgmma"},
        {"TMPDIR",
         "where plans with offload nvme keep their files, unless \\-\\-offload\\-dir is given"},
    };

    append_title(page, "degas", "plan, simulate, measure and run the training of models");
    g_string_append(page,
                    ".SH SYNOPSIS\n\\fBdegas\\fR \\fICOMMAND\\fR [options] ...\n"
                    ".SH DESCRIPTION\n"
                    "degas says how the training of a large Transformer is best split over\n"
                    "many devices, how long a step then takes and whether it fits into memory;\n"
                    "it measures what ops cost on this machine, and runs plans.\n"
                    ".PP\n.RS 4\n.nf\n"
                    "degas plan llama3\\-70b dgx\\-h100 \\-\\-gpus 64 \\-\\-global\\-batch 512 "
                    "\\-o plan.json\n"
                    "degas simulate plan.json \\-\\-plot timeline.svg\n"
                    ".fi\n.RE\n.SH COMMANDS\n");
    for (Commands c = commands; *c != NULL; c++) {
        g_autofree char *name = g_strconcat("degas-", (*c)->name, NULL);

        g_string_append(page, ".TP\n");
        append_bold(page, name, "(1)\n");
        append_line(page, (*c)->summary);
    }
    g_string_append(page, ".SH EXIT STATUS\n");
    for (const CmdStatus *status = cmd_statuses; status->meaning != NULL; status++) {
        g_string_append_printf(page, ".TP\n%d\n", status->status);
        append_line(page, status->meaning);
    }
    g_string_append(page, ".SH ENVIRONMENT\n");
    for (size_t i = 0; i < G_N_ELEMENTS(variables); i++) {
        g_string_append(page, ".TP\n");
        append_bold(page, variables[i][0], "\n");
        g_string_append_printf(page, "%s\n", variables[i][1]);
    }
    g_string_append(page, ".SH SEE ALSO\n");
    for (Commands c = commands; *c != NULL; c++)
        g_string_append_printf(page, ".BR degas\\-%s (1)%s\n", (*c)->name, c[1] == NULL ? "" : ",");
}

char *
help_man(Commands commands, const Command *command)
{
    GString *page = g_string_new(NULL);

    if (command == NULL)
        append_program(page, commands);
    else
        append_command(page, command);
    return g_string_free(page, FALSE);
}
