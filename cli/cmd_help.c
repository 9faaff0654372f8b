/* degas help: what commands say of themselves. */
#include "cli/help/help.h"
#include "cli/help/man.h"
#include "cli/request/command.h"
#include "cli/request/output.h"

static const OptionInfo options_table[] = {
    {"man", NULL, "print the manual page, for man -l -"},
    {NULL, NULL, NULL},
};

static int
run(Options *options, GError **error)
{
    const char *name = options_argument(options, 0);
    const Command *command = name == NULL ? NULL : cmd_find(cmd_all, name, error);

    if (name != NULL && command == NULL)
        return -1;
    g_autofree char *text = options_has(options, "man") ? help_man(cmd_all, command)
                            : command == NULL           ? help_overview(cmd_all, false)
                                                        : help_command(command, false);
    output_text(text);
    return 0;
}

const Command cmd_help = {
    .name = "help",
    .usage = "[COMMAND] [--man]",
    .summary = "explain degas, or one of its commands",
    .options = {options_table},
    .max_arguments = 1,
    .run = run,
};
