#include "cli/help/completion.h"

#include <string.h>

#include "cli/help/schema.h"
#include "models/arch.h"
#include "profiles/profile.h"
#include "schedule/schedule.h"

const char *const help_shells[] = {"bash", "zsh", "fish", NULL};

/* --- what may stand in a place --- */

/* Of a value or an argument; neither words nor files: nothing is offered. */
typedef struct {
    GPtrArray *words; /* of (owned) char * */
    bool files, folders;
} Place;

static void
place_clear(Place *place)
{
    g_clear_pointer(&place->words, g_ptr_array_unref);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Place, place_clear)

/* Takes @names, of texts that may be freed with it. */
static void
add_array(Place *place, GPtrArray *names)
{
    for (guint i = 0; i < names->len; i++)
        if (names->pdata[i] != NULL)
            g_ptr_array_add(place->words, g_strdup(names->pdata[i]));
    g_ptr_array_unref(names);
}

/* Adds what a word of a usage or of an option's value stands for. */
static void
add_kind(Place *place, const char *word, size_t n, Commands commands)
{
    g_autofree char *name = g_strndup(word, n);

    if (strcmp(name, "MODEL") == 0) {
        add_array(place, model_arch_builtin_names());
        place->files = true;
    } else if (strcmp(name, "CLUSTER") == 0) {
        add_array(place, profile_builtin_names());
        place->files = true;
    } else if (strcmp(name, "SCHEDULE") == 0) {
        for (const ScheduleFamily *const *f = schedule_families(); *f != NULL; f++)
            g_ptr_array_add(place->words, g_strdup((*f)->name));
    } else if (strcmp(name, "FORMAT") == 0) {
        add_array(place, help_schema_names());
    } else if (strcmp(name, "COMMAND") == 0) {
        for (; *commands != NULL; commands++)
            g_ptr_array_add(place->words, g_strdup((*commands)->name));
    } else if (strcmp(name, "DIR") == 0) {
        place->folders = true;
    } else if (g_str_has_prefix(name, "FILE")) {
        place->files = true;
    }
}

/* What the value of an option may be. */
static Place
place_of_value(const OptionInfo *info)
{
    static const Command *const none[] = {NULL};
    Place place = {.words = g_ptr_array_new_with_free_func(g_free)};
    g_auto(GStrv) words = options_value_words(info);

    for (size_t i = 0; words != NULL && words[i] != NULL; i++)
        g_ptr_array_add(place.words, g_strdup(words[i]));
    if (words == NULL && info->value != NULL)
        add_kind(&place, info->value, strlen(info->value), none);
    return place;
}

/* The word of @usage in place @i of its arguments; NULL: none.  The last one that ends in "..." is
 * in all places from its own on. */
static char *
usage_word(const char *usage, size_t i)
{
    g_auto(GStrv) words = g_strsplit(usage, " ", -1);

    for (size_t k = 0; words[k] != NULL; k++) {
        const bool is_optional = words[k][0] == '[' && words[k][1] != '-' && words[k][1] != 'o';

        if (words[k][0] == '-' || (words[k][0] == '[' && !is_optional))
            return NULL;
        if (k == i || strstr(words[k], "...") != NULL)
            return g_strndup(words[k] + is_optional, strcspn(words[k] + is_optional, "]"));
    }
    return NULL;
}

/* What argument @i of a command, from 0, may be. */
static Place
place_of_argument(Commands commands, const Command *command, size_t i)
{
    Place place = {.words = g_ptr_array_new_with_free_func(g_free)};
    g_autofree char *again = g_strdup_printf(", or %s ", command->name);
    g_auto(GStrv) usages = g_strsplit(command->usage, again, -1);

    for (size_t u = 0; usages[u] != NULL; u++) {
        g_autofree char *word = usage_word(usages[u], i);
        g_auto(GStrv) kinds = g_strsplit(word == NULL ? "" : word, "|", -1);

        for (size_t k = 0; kinds[k] != NULL; k++) {
            const size_t n = strcspn(kinds[k], ".");

            if (g_ascii_islower(kinds[k][0])) {
                g_ptr_array_add(place.words, g_strdup(kinds[k]));
                continue;
            }
            const guint n_before = place.words->len;
            add_kind(&place, kinds[k], n, commands);
            /* PLAN, FOLDER, MEASURED and so on. */
            place.files |= place.words->len == n_before;
        }
    }
    return place;
}

static char *
joined(const Place *place)
{
    g_autoptr(GPtrArray) words = g_ptr_array_new();

    for (guint i = 0; i < place->words->len; i++)
        g_ptr_array_add(words, place->words->pdata[i]);
    g_ptr_array_add(words, NULL);
    return g_strjoinv(" ", (char **)words->pdata);
}

/* How many places of arguments differ: that of the last is repeated up to max_arguments. */
static size_t
n_places(const Command *command)
{
    return MIN(command->max_arguments, 2);
}

#define EACH_OPTION(info, command)                                                                 \
    for (size_t t_ = 0; (command)->options[t_] != NULL; t_++)                                      \
        for (const OptionInfo *info = (command)->options[t_]; info->name != NULL; info++)

/* --- bash --- */

static const char bash_code[] =
    "# What follows the word or is in the place KEY of a command: words, <files>, <folders>, or\n"
    "# nothing that is known (-).\n"
    "_degas_find() {\n"
    "    _degas_found=\n"
    "    case $1 in\n"
    "%s    esac\n"
    "}\n"
    "_degas() {\n"
    "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} "
    "command=${COMP_WORDS[1]}\n"
    "    local n=0 i found\n"
    "    [ \"$cur\" = = ] && cur='' || { [ \"$prev\" = = ] && prev=${COMP_WORDS[COMP_CWORD-2]}; }\n"
    "    COMPREPLY=()\n"
    "    if [ \"$COMP_CWORD\" = 1 ]; then\n"
    "        _degas_find commands\n"
    "        COMPREPLY=($(compgen -W \"$_degas_found --help --version\" -- \"$cur\"))\n"
    "        return\n"
    "    fi\n"
    "    _degas_find \"$command $prev\"\n"
    "    if [ -z \"$_degas_found\" ]; then\n"
    "        case $cur in\n"
    "        -*)\n"
    "            _degas_find \"$command options\"\n"
    "            COMPREPLY=($(compgen -W \"$_degas_found --help\" -- \"$cur\"))\n"
    "            return\n"
    "            ;;\n"
    "        esac\n"
    "        for ((i = 2; i < COMP_CWORD; i++)); do\n"
    "            _degas_find \"$command ${COMP_WORDS[i]}\"\n"
    "            if [ -n \"$_degas_found\" ]; then\n"
    "                ((i++))\n"
    "                [ \"${COMP_WORDS[i]}\" = = ] && ((i++))\n"
    "            else\n"
    "                case ${COMP_WORDS[i]} in -*) ;; *) ((n++)) ;; esac\n"
    "            fi\n"
    "        done\n"
    "        _degas_find \"$command argument $n\"\n"
    "    fi\n"
    "    found=\" $_degas_found \"\n"
    "    case $found in *' <files> '*) COMPREPLY=($(compgen -f -- \"$cur\")) && compopt -o "
    "filenames "
    "2>/dev/null ;; esac\n"
    "    case $found in *' <folders> '*) COMPREPLY=($(compgen -d -- \"$cur\")) && compopt -o "
    "filenames "
    "2>/dev/null ;; esac\n"
    "    found=${found/ <files> / }\n"
    "    found=${found/ <folders> / }\n"
    "    found=${found/ - / }\n"
    "    COMPREPLY+=($(compgen -W \"$found\" -- \"$cur\"))\n"
    "}\n"
    "complete -F _degas degas\n";

static void
bash_place(GString *rows, const char *command, const char *key, Place place)
{
    g_autofree char *words = joined(&place);

    g_string_append_printf(rows, "    '%s %s') _degas_found='%s%s%s' ;;\n", command, key, words,
                           place.files     ? " <files>"
                           : place.folders ? " <folders>"
                                           : "",
                           *words == 0 && !place.files && !place.folders ? "-" : "");
    place_clear(&place);
}

static char *
write_bash(Commands commands)
{
    g_autoptr(GString) rows = g_string_new("    commands) _degas_found='");

    for (Commands c = commands; *c != NULL; c++)
        g_string_append_printf(rows, "%s%s", c == commands ? "" : " ", (*c)->name);
    g_string_append(rows, "' ;;\n");
    for (Commands c = commands; *c != NULL; c++) {
        const Command *command = *c;

        g_string_append_printf(rows, "    '%s options') _degas_found='", command->name);
        EACH_OPTION(info, command)
        g_string_append_printf(rows, "--%s ", info->name);
        g_string_append(rows, "' ;;\n");
        EACH_OPTION(info, command)
        {
            g_autofree char *key =
                g_strconcat(strcmp(info->name, "output") == 0 ? "-o' | '" : "", NULL);
            g_autofree char *flag =
                *key == 0 ? g_strconcat("--", info->name, NULL)
                          : g_strdup_printf("%s%s --%s", key, command->name, info->name);

            if (info->value != NULL)
                bash_place(rows, command->name, flag, place_of_value(info));
        }
        for (size_t i = 0; i < n_places(command); i++) {
            g_autofree char *key =
                g_strdup_printf("argument %s", i == 0                       ? "0"
                                               : command->max_arguments > 2 ? "'*'"
                                                                            : "1");
            bash_place(rows, command->name, key, place_of_argument(commands, command, i));
        }
    }
    return g_strdup_printf(bash_code, rows->str);
}

/* --- zsh --- */

/* Text in single quotes in which ':', '[' and ']' have no meaning for _arguments. */
static void
zsh_text(GString *script, const char *text)
{
    for (; *text != 0; text++) {
        if (*text == '\'')
            g_string_append(script, "'\\''");
        else
            g_string_append_printf(script, "%s%c", strchr(":[]\\", *text) != NULL ? "\\" : "",
                                   *text);
    }
}

static void
zsh_action(GString *script, Place place)
{
    g_autofree char *words = joined(&place);

    if (place.folders)
        g_string_append(script, "_files -/");
    else if (*words == 0)
        g_string_append(script, place.files ? "_files" : "");
    else if (place.files)
        g_string_append_printf(script, "{_degas_either %s}", words);
    else
        g_string_append_printf(script, "(%s)", words);
    place_clear(&place);
}

static void
zsh_option(GString *script, const OptionInfo *info, const char *flag)
{
    g_autofree char *clause = help_first_clause(info->help);

    g_string_append_printf(script, " \\\n            '%s[", flag);
    zsh_text(script, clause);
    g_string_append_c(script, ']');
    if (info->value != NULL) {
        g_string_append_c(script, ':');
        zsh_text(script, info->value);
        g_string_append_c(script, ':');
        zsh_action(script, place_of_value(info));
    }
    g_string_append_c(script, '\'');
}

static char *
write_zsh(Commands commands)
{
    GString *script = g_string_new("#compdef degas\n"
                                   "# zsh completion of degas, written by: degas completion zsh\n"
                                   "_degas_either() { compadd -- \"$@\"; _files }\n"
                                   "_degas() {\n"
                                   "    local curcontext=\"$curcontext\" state line\n"
                                   "    local -a commands\n"
                                   "    _arguments -C '1:command:->command' '*::argument:->rest'\n"
                                   "    case $state in\n"
                                   "    command)\n"
                                   "        commands=(\n");
    for (Commands c = commands; *c != NULL; c++) {
        g_string_append_printf(script, "            '%s:", (*c)->name);
        zsh_text(script, (*c)->summary);
        g_string_append(script, "'\n");
    }
    g_string_append(script, "        )\n"
                            "        _describe command commands\n"
                            "        ;;\n"
                            "    rest)\n"
                            "        case $words[1] in\n");
    for (Commands c = commands; *c != NULL; c++) {
        const Command *command = *c;

        g_string_append_printf(script, "        %s)\n            _arguments", command->name);
        EACH_OPTION(info, command)
        {
            g_autofree char *flag =
                g_strdup_printf("--%s%s", info->name, info->value == NULL ? "" : "=");

            if (strcmp(info->name, "output") == 0)
                zsh_option(script, info, "-o+");
            zsh_option(script, info, flag);
        }
        g_string_append(script,
                        " \\\n            '--help[all options]' '-h[the most used options]'");
        for (size_t i = 0; i < n_places(command); i++) {
            g_string_append_printf(script, " \\\n            '%s:argument:",
                                   i == 0                       ? "1"
                                   : command->max_arguments > 2 ? "*"
                                                                : "2");
            zsh_action(script, place_of_argument(commands, command, i));
            g_string_append_c(script, '\'');
        }
        g_string_append(script, "\n            ;;\n");
    }
    g_string_append(script, "        esac\n"
                            "        ;;\n"
                            "    esac\n"
                            "}\n"
                            "if [ \"$funcstack[1]\" = _degas ]; then\n"
                            "    _degas \"$@\"\n"
                            "else\n"
                            "    compdef _degas degas\n"
                            "fi\n");
    return g_string_free(script, FALSE);
}

/* --- fish --- */

/* Text in single quotes. */
static void
fish_text(GString *script, const char *text)
{
    for (; *text != 0; text++)
        g_string_append_printf(script, "%s%c", strchr("\\'", *text) != NULL ? "\\" : "", *text);
}

/* "__degas_at COMMAND [N]": whether the command is this one, and where N is given whether the next word is the N-th, which counts
 * the command and arguments, not options and their values. */
static GString *
fish_begin(Commands commands)
{
    GString *script = g_string_new(
        "# fish completion of degas, written by: degas completion fish\n"
        "# Whether the command is the first one and N words follow it already: options\n"
        "# and their values do not count.\n"
        "function __degas_at\n"
        "    set -l words (commandline -opc)\n"
        "    test (count $words) -ge 2; and test $words[2] = $argv[1]; or return 1\n"
        "    test (count $argv) -ge 2; or return 0\n"
        "    set -l flags -h --help\n"
        "    switch $argv[1]\n");

    for (Commands c = commands; *c != NULL; c++) {
        const Command *command = *c;

        g_string_append_printf(script, "        case %s\n            set -a flags", command->name);
        EACH_OPTION(info, command)
        if (info->value == NULL)
            g_string_append_printf(script, " --%s", info->name);
        g_string_append_c(script, '\n');
    }
    g_string_append(script, "    end\n"
                            "    set -e words[1..2]\n"
                            "    set -l n 2\n"
                            "    set -l is_value 0\n"
                            "    for word in $words\n"
                            "        if test $is_value = 1\n"
                            "            set is_value 0\n"
                            "        else if string match -qr -- '^-.' $word\n"
                            "            string match -q -- '*=*' $word; or contains -- $word "
                            "$flags; or set is_value 1\n"
                            "        else\n"
                            "            set n (math $n + 1)\n"
                            "        end\n"
                            "    end\n"
                            "    test $is_value = 0; and test $n -eq $argv[2]\n"
                            "end\n"
                            "complete -c degas -f\n");
    return script;
}

static char *
write_fish(Commands commands)
{
    GString *script = fish_begin(commands);

    for (Commands c = commands; *c != NULL; c++) {
        const Command *command = *c;

        g_string_append_printf(script, "complete -c degas -n __fish_use_subcommand -a %s -d '",
                               command->name);
        fish_text(script, command->summary);
        g_string_append(script, "'\n");
        EACH_OPTION(info, command)
        {
            g_autofree char *clause = help_first_clause(info->help);
            g_auto(Place) place = place_of_value(info);
            g_autofree char *words = joined(&place);

            g_string_append_printf(script, "complete -c degas -n '__degas_at %s' -l %s%s%s",
                                   command->name, info->name,
                                   strcmp(info->name, "output") == 0 ? " -s o" : "",
                                   info->value == NULL            ? ""
                                   : place.files || place.folders ? " -r -F"
                                                                  : " -x");
            if (*words != 0)
                g_string_append_printf(script, " -a '%s'", words);
            g_string_append(script, " -d '");
            fish_text(script, clause);
            g_string_append(script, "'\n");
        }
        for (size_t i = 0; i < n_places(command); i++) {
            g_auto(Place) place = place_of_argument(commands, command, i);
            g_autofree char *words = joined(&place);
            const bool is_last = i + 1 == n_places(command) && command->max_arguments > 2;

            g_string_append_printf(script, "complete -c degas -n '__degas_at %s", command->name);
            if (!is_last)
                g_string_append_printf(script, " %zu", i + 2);
            g_string_append_printf(script, "'%s", place.files ? " -F" : "");
            if (*words != 0)
                g_string_append_printf(script, " -a '%s'", words);
            g_string_append_c(script, '\n');
        }
    }
    return g_string_free(script, FALSE);
}

char *
help_completion(Commands commands, int shell)
{
    static char *(*const writers[])(Commands) = {write_bash, write_zsh, write_fish};

    return writers[shell](commands);
}
