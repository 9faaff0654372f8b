/* degas completion: what a shell offers after "degas". */
#include <string.h>

#include "base/text.h"
#include "cli/help/completion.h"
#include "cli/request/command.h"
#include "cli/request/output.h"

static const OptionInfo options_table[] = {
    {NULL, NULL, NULL},
};

static int
run(Options *options, GError **error)
{
    const char *name = options_argument(options, 0);

    for (int i = 0; help_shells[i] != NULL; i++) {
        if (strcmp(help_shells[i], name) == 0) {
            g_autofree char *script = help_completion(cmd_all, i);

            output_text(script);
            return 0;
        }
    }
    g_autofree char *shown = text_escape(name, 64);
    cmd_fail(error, CMD_ERROR_USAGE, "completion: \"%s\" is none of bash, zsh, fish", shown);
    return -1;
}

const Command cmd_completion = {
    .name = "completion",
    .usage = "bash|zsh|fish",
    .summary = "print a shell's completion script for degas",
    .details = "make install puts the scripts where the shells look for them.  Without it:\n"
               "\n"
               "  eval \"$(degas completion bash)\"\n"
               "  degas completion zsh > ~/.zfunc/_degas\n"
               "  degas completion fish > ~/.config/fish/completions/degas.fish\n",
    .options = {options_table},
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
