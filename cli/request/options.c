#include "cli/request/options.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/order.h"
#include "base/text.h"
#include "base/units.h"
#include "cli/request/command.h"

#define HELP_COLUMN 28
#define HELP_WIDTH 80
#define MAX_THREADS 1024

/* One option that was given. */
typedef struct {
    const OptionInfo *info;
    char *text;  /* (owned) */
    char *typed; /* (owned, nullable) before options_set(); "": nothing was */
} Given;

struct Options {
    const OptionInfo *tables[CMD_MAX_TABLES + 1]; /* NULL-terminated */
    GArray *given;                                /* of Given; unique names */
    GPtrArray *arguments;                         /* of (borrowed) const char * */
    GPtrArray *kept;                              /* of (owned) char *: arguments of a job file */
    OptionsHelp help;
    bool is_json; /* messages name keys instead of flags */
    GError *error;
};

static void
given_clear(void *data)
{
    g_free(((Given *)data)->text);
    g_free(((Given *)data)->typed);
}

static Options *
options_new(const OptionInfo *const *tables)
{
    Options *options = g_new0(Options, 1);

    for (size_t i = 0; i < CMD_MAX_TABLES && tables[i] != NULL; i++)
        options->tables[i] = tables[i];
    options->given = g_array_new(FALSE, FALSE, sizeof(Given));
    g_array_set_clear_func(options->given, given_clear);
    options->arguments = g_ptr_array_new();
    options->kept = g_ptr_array_new_with_free_func(g_free);
    return options;
}

static void
append_word(GString *line, const char *word)
{
    const char *slash = strrchr(word, '/');
    g_autofree char *shown = text_escape(slash == NULL ? word : slash + 1, 80);

    g_string_append_printf(line, strpbrk(shown, " '\"") == NULL ? " %s" : " '%s'", shown);
}

char *
options_command_line(const Options *options, const char *command, const char *const *products)
{
    static const char *const never[] = {"output", "json", "threads", "color", NULL};
    GString *line = g_string_new("degas ");

    g_string_append(line, command);
    for (guint i = 0; i < options->arguments->len; i++)
        append_word(line, g_ptr_array_index(options->arguments, i));
    for (guint i = 0; i < options->given->len; i++) {
        const Given *given = &g_array_index(options->given, Given, i);
        if (g_strv_contains(never, given->info->name) ||
            g_strv_contains(products, given->info->name) ||
            (given->typed != NULL && *given->typed == 0))
            continue;
        g_string_append_printf(line, " --%s", given->info->name);
        if (given->info->value != NULL)
            append_word(line, given->typed != NULL ? given->typed : given->text);
    }
    return g_string_free(line, FALSE);
}

char *
options_word(const char *text)
{
    return text[strspn(
               text, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_./:=,+-")] == 0
               ? g_strdup(text)
               : g_shell_quote(text);
}

void
options_free(Options *options)
{
    if (options == NULL)
        return;
    g_array_unref(options->given);
    g_ptr_array_unref(options->arguments);
    g_ptr_array_unref(options->kept);
    g_clear_error(&options->error);
    g_free(options);
}

static const OptionInfo *
find_info(const Options *options, const char *name, size_t n_name)
{
    for (size_t t = 0; options->tables[t] != NULL; t++) {
        for (const OptionInfo *info = options->tables[t]; info->name != NULL; info++) {
            if (strlen(info->name) == n_name && strncmp(info->name, name, n_name) == 0)
                return info;
        }
    }
    return NULL;
}

static const Given *
find_given(const Options *options, const char *name)
{
    for (guint i = 0; i < options->given->len; i++) {
        const Given *given = &g_array_index(options->given, Given, i);

        if (strcmp(given->info->name, name) == 0)
            return given;
    }
    return NULL;
}

static void
set_given(Options *options, const OptionInfo *info, const char *text)
{
    Given *old = (Given *)find_given(options, info->name);

    if (old != NULL) {
        g_free(old->text);
        old->text = g_strdup(text);
        return;
    }
    const Given given = {.info = info, .text = g_strdup(text)};
    g_array_append_val(options->given, given);
}

/* What trainers, or earlier releases of degas, call our options, so that a suggestion finds them. */
static const char *const other_names[][2] = {
    {"gbs", "global-batch"},
    {"global-batch-size", "global-batch"},
    {"train_batch_size", "global-batch"},
    {"mbs", "micro-batch"},
    {"micro-batch-size", "micro-batch"},
    {"seq-length", "seq-len"},
    {"seqlen", "seq-len"},
    {"num-gpus", "gpus"},
    {"devices", "gpus"},
    {"num-layers", "layers"},
    {"precision", "dtype"},
    {"bf16", "dtype"},
    {"fp8", "dtype"},
    {"data-parallel-size", "dp"},
    {"tensor-model-parallel-size", "tp"},
    {"tensor-parallel-size", "tp"},
    {"pipeline-model-parallel-size", "pp"},
    {"pipeline-parallel-size", "pp"},
    {"context-parallel-size", "cp"},
    {"expert-model-parallel-size", "ep"},
    {"recompute-granularity", "recompute"},
    {"zero-stage", "zero"},
    {"graphs", "no-graphs"},
};

/* (borrowed) What a trainer's name @name, with its dashes, is here; NULL: it is none. */
static const char *
trainers_name(const char *name)
{
    while (*name == '-')
        name++;
    for (size_t i = 0; i < G_N_ELEMENTS(other_names); i++)
        if (g_str_equal(name, other_names[i][0]))
            return other_names[i][1];
    return NULL;
}

static void
fail_unknown(const Options *options, const char *argument, GError **error)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
    const char *equals = strchr(argument, '=');
    g_autofree char *name =
        equals == NULL ? g_strdup(argument) : g_strndup(argument, (size_t)(equals - argument));
    g_autofree char *shown = text_escape(name, 64);

    for (size_t t = 0; options->tables[t] != NULL; t++) {
        for (const OptionInfo *info = options->tables[t]; info->name != NULL; info++)
            g_ptr_array_add(names, g_strconcat("--", info->name, NULL));
    }
    g_ptr_array_add(names, g_strdup("--help"));
    g_ptr_array_add(names, NULL);
    g_autofree char *known =
        trainers_name(name) == NULL ? g_strdup(name) : g_strconcat("--", trainers_name(name), NULL);
    g_autofree char *suggestion = text_suggestion(known, (const char *const *)names->pdata);
    g_set_error(error, CMD_ERROR, CMD_ERROR_USAGE, "%s: unknown option%s%s", shown,
                *suggestion == 0 ? "" : ";", *suggestion == 0 ? "" : suggestion + 1);
}

/* Reads argv[*i], an option, and its value, which may be the next argument. */
static bool
parse_option(Options *options, int argc, char **argv, int *i, GError **error)
{
    const char *name = argv[*i] + 2, *value = NULL;
    const OptionInfo *info = NULL;

    if (argv[*i][1] == '-') {
        const size_t n_name = strcspn(name, "=");

        info = find_info(options, name, n_name);
        value = name[n_name] == '=' ? name + n_name + 1 : NULL;
    } else if (argv[*i][1] == 'o') {
        info = find_info(options, "output", strlen("output"));
        value = *name != 0 ? name : NULL;
    }
    if (info == NULL) {
        fail_unknown(options, argv[*i], error);
        return false;
    }
    if (info->value == NULL && value != NULL)
        return cmd_fail(error, CMD_ERROR_USAGE, "--%s takes no value", info->name);
    if (info->value != NULL && value == NULL) {
        const char *next = *i + 1 < argc ? argv[*i + 1] : NULL;

        if (next == NULL || (strncmp(next, "--", 2) == 0 &&
                             find_info(options, next + 2, strcspn(next + 2, "=")) != NULL))
            return cmd_fail(error, CMD_ERROR_USAGE, "--%s needs a value: --%s %s", info->name,
                            info->name, info->value);
        value = next;
        (*i)++;
    }
    set_given(options, info, value == NULL ? "" : value);
    return true;
}

Options *
options_parse(const OptionInfo *const *tables, int argc, char **argv, GError **error)
{
    g_autoptr(Options) options = options_new(tables);
    bool ended = false;

    for (int i = 1; i < argc; i++) {
        const char *argument = argv[i];

        if (ended || argument[0] != '-' || argument[1] == 0)
            g_ptr_array_add(options->arguments, argv[i]);
        else if (strcmp(argument, "--") == 0)
            ended = true;
        else if (strcmp(argument, "--help") == 0)
            options->help = OPTIONS_FULL_HELP;
        else if (strcmp(argument, "-h") == 0)
            options->help = OPTIONS_SHORT_HELP;
        else if (!parse_option(options, argc, argv, &i, error))
            return NULL;
    }
    return g_steal_pointer(&options);
}

/* --- a JSON object --- */

static char *
json_value_text(JsonDoc *doc, const JsonValue *value, bool is_number)
{
    if (json_is_string(value))
        return g_strdup(json_value_string(doc, value));
    if (is_number) {
        const double number = json_value_double(doc, value, -G_MAXDOUBLE, G_MAXDOUBLE);

        if (number == nearbyint(number) && fabs(number) < (double)JSON_MAX_INT)
            return g_strdup_printf(INT, (int64_t)number);
        return json_format_double(number);
    }
    json_fail(doc, value, "expected a number or a string");
    return g_strdup("");
}

static char *
json_list_text(JsonDoc *doc, const JsonValue *array)
{
    g_autoptr(GString) text = g_string_new(NULL);

    JSON_EACH (v, array, doc) {
        g_autofree char *word = json_value_text(doc, v, json_is_number(v));

        g_string_append_printf(text, "%s%s", text->len == 0 ? "" : ",", word);
    }
    return g_string_free(g_steal_pointer(&text), FALSE);
}

/* An object of texts and numbers as "key=value,key=value". */
static char *
json_pairs_text(JsonDoc *doc, const JsonValue *object)
{
    g_autoptr(GString) text = g_string_new(NULL);

    JSON_EACH (v, object, doc) {
        g_autofree char *word = json_value_text(doc, v, json_is_number(v));

        json_ignore(doc, object, json_key(v));
        g_string_append_printf(text, "%s%s=%s", text->len == 0 ? "" : ",", json_key(v), word);
    }
    return g_string_free(g_steal_pointer(&text), FALSE);
}

static void
read_member(Options *options, const OptionInfo *info, JsonDoc *doc, const JsonValue *object,
            const char *key)
{
    const JsonValue *value = json_member(doc, object, key);
    g_autofree char *text = NULL;

    if (value == NULL || json_is_null(value))
        return;
    if (info->value == NULL) {
        if (json_bool(doc, object, key))
            set_given(options, info, "");
        return;
    }
    if (json_is_array(value))
        text = json_list_text(doc, value);
    else if (json_is_object(value))
        text = json_pairs_text(doc, value);
    else if (json_is_string(value) || json_is_number(value))
        text = json_value_text(doc, value, json_is_number(value));
    else
        text = g_strdup(json_bool(doc, object, key) ? "on" : "off");
    set_given(options, info, text);
}

/* Reads the options that are not given yet; @except (nullable) is none. */
static void
read_members(Options *options, JsonDoc *doc, const JsonValue *object, const char *except)
{
    for (size_t t = 0; options->tables[t] != NULL; t++) {
        for (const OptionInfo *info = options->tables[t]; info->name != NULL; info++) {
            g_autofree char *key = g_strdelimit(g_strdup(info->name), "-", '_');

            if (g_strcmp0(key, except) == 0)
                continue;
            if (find_given(options, info->name) != NULL)
                json_ignore(doc, object, key);
            else
                read_member(options, info, doc, object, key);
        }
    }
    json_object_end(doc, object);
}

Options *
options_read(const OptionInfo *const *tables, JsonDoc *doc, const JsonValue *object)
{
    Options *options = options_new(tables);

    options->is_json = true;
    read_members(options, doc, object, NULL);
    return options;
}

/* --- a job file --- */

/* A file whose first bytes do not say this is no job. */
#define JOB_FORMAT "degas-job"
#define JOB_HEAD_BYTES 4096

static bool
is_job(const char *path)
{
    FILE *file = fopen(path, "rb");
    char head[JOB_HEAD_BYTES + 1];

    if (file == NULL)
        return false;
    head[fread(head, 1, JOB_HEAD_BYTES, file)] = 0;
    fclose(file);
    return strstr(head, JOB_FORMAT) != NULL;
}

/* Adds the names that @key has as an argument; files lie beside the job file at @path. */
static void
add_names(Options *options, JsonDoc *doc, const JsonValue *root, const char *key, const char *path)
{
    const JsonValue *value = json_member(doc, root, key);
    g_autofree char *folder = g_path_get_dirname(path);

    if (value == NULL) {
        json_string(doc, root, key); /* is missing */
        return;
    }
    g_autofree char *text =
        json_is_array(value) ? json_list_text(doc, value) : json_value_text(doc, value, false);
    g_auto(GStrv) names = g_strsplit(text, ",", -1);
    for (size_t i = 0; names[i] != NULL; i++) {
        g_autofree char *beside = g_build_filename(folder, names[i], NULL);

        if (!g_path_is_absolute(names[i]) && g_file_test(beside, G_FILE_TEST_EXISTS)) {
            g_free(names[i]);
            names[i] = g_steal_pointer(&beside);
        }
    }
    char *joined = g_strjoinv(",", names);
    g_ptr_array_add(options->kept, joined);
    g_ptr_array_add(options->arguments, joined);
}

bool
options_add_job(Options *options, GError **error)
{
    const char *path = options_argument(options, 0);

    if (options->arguments->len != 1 || !is_job(path))
        return true;
    g_autoptr(JsonDoc) doc = json_doc_load(path, error);
    if (doc == NULL)
        return false;
    const JsonValue *root = json_doc_root(doc, JOB_FORMAT, 1);
    g_ptr_array_set_size(options->arguments, 0);
    add_names(options, doc, root, "model", path);
    add_names(options, doc, root, "cluster", path);
    read_members(options, doc, root, "model"); /* that of recipes */
    return json_doc_finish(doc, error);
}

void
options_set(Options *options, const char *name, const char *text)
{
    const OptionInfo *info = find_info(options, name, strlen(name));

    g_return_if_fail(info != NULL);
    const Given *before = find_given(options, name);
    char *typed = before == NULL          ? g_strdup("")
                  : before->typed != NULL ? g_strdup(before->typed)
                                          : g_strdup(before->text);
    set_given(options, info, text);
    Given *given = (Given *)find_given(options, name);
    g_free(given->typed);
    given->typed = typed;
}

Options *
options_copy_with(const Options *options, const char *const (*pairs)[2], size_t n)
{
    Options *copy = options_new(options->tables);

    copy->is_json = options->is_json;
    for (guint i = 0; i < options->arguments->len; i++)
        g_ptr_array_add(copy->arguments, options->arguments->pdata[i]);
    for (guint i = 0; i < options->given->len; i++) {
        const Given *given = &g_array_index(options->given, Given, i);
        set_given(copy, given->info, given->text);
    }
    for (size_t i = 0; i < n; i++) {
        const OptionInfo *info = find_info(options, pairs[i][0], strlen(pairs[i][0]));
        g_assert(info != NULL);
        set_given(copy, info, pairs[i][1]);
    }
    return copy;
}

/* --- getters --- */

char **
options_value_words(const OptionInfo *info)
{
    const char *const *names = info->list != NULL ? info->list() : info->words;
    g_autoptr(GPtrArray) words = g_ptr_array_new();

    if (names == NULL && info->value != NULL && strcmp(info->value, "on|off") == 0)
        return g_strsplit(info->value, "|", -1);
    if (names == NULL)
        return NULL;
    if (info->or_auto)
        g_ptr_array_add(words, "auto");
    for (; *names != NULL; names++)
        g_ptr_array_add(words, (void *)*names);
    g_ptr_array_add(words, NULL);
    return g_strdupv((char **)words->pdata);
}

OptionsHelp
options_help(const Options *options)
{
    return options->help;
}

size_t
options_n_arguments(const Options *options)
{
    return options->arguments->len;
}

const char *
options_argument(const Options *options, size_t i)
{
    return i < options->arguments->len ? g_ptr_array_index(options->arguments, (guint)i) : NULL;
}

/* (borrowed, nullable) the text of its value as given; NULL: absent. */
static const char *
value_of(const Options *options, const char *name)
{
    const Given *given = find_given(options, name);

    g_return_val_if_fail(find_info(options, name, strlen(name)) != NULL, NULL);
    return given == NULL ? NULL : given->text;
}

bool
options_has(const Options *options, const char *name)
{
    return value_of(options, name) != NULL;
}

/* (owned) the option's name as the user wrote it: "--name", or the JSON key "name". */
static char *
label_of(const Options *options, const char *name)
{
    if (options->is_json)
        return g_strdelimit(g_strdup(name), "-", '_');
    return g_strconcat("--", name, NULL);
}

void
options_fail(Options *options, const char *name, const char *format, ...)
{
    g_autofree char *label = label_of(options, name);
    va_list arguments;

    if (options->error != NULL)
        return;
    va_start(arguments, format);
    g_autofree char *message = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    options->error = options->is_json
                         ? g_error_new(JSON_ERROR, JSON_ERROR_INVALID, "%s: %s", label, message)
                         : g_error_new(CMD_ERROR, CMD_ERROR_USAGE, "%s: %s", label, message);
}

bool
options_finish(Options *options, GError **error)
{
    if (options->error == NULL)
        return true;
    g_propagate_error(error, g_steal_pointer(&options->error));
    return false;
}

/* --- help --- */

void
options_append_words(GString *text, const char *line, size_t indent, size_t *column)
{
    g_auto(GStrv) words = g_strsplit(line, " ", -1);

    for (size_t i = 0; words[i] != NULL; i++) {
        const size_t n = strlen(words[i]);

        if (n == 0)
            continue;
        if (*column > indent && *column + 1 + n > HELP_WIDTH) {
            g_string_append_printf(text, "\n%*s", (int)indent, "");
            *column = indent;
        } else if (*column > indent) {
            g_string_append_c(text, ' ');
            (*column)++;
        }
        g_string_append(text, words[i]);
        *column += n;
    }
}

void
options_append_help(GString *text, const OptionInfo *table)
{
    for (const OptionInfo *info = table; info->name != NULL; info++) {
        const size_t begin = text->len;

        g_string_append_printf(text, "  %s--%s", strcmp(info->name, "output") == 0 ? "-o, " : "",
                               info->name);
        if (info->value != NULL)
            g_string_append_printf(text, " %s", info->value);
        size_t column = text->len - begin;
        if (column + 2 > HELP_COLUMN) {
            g_string_append_c(text, '\n');
            column = 0;
        }
        g_string_append_printf(text, "%*s", HELP_COLUMN - (int)column, "");
        column = HELP_COLUMN;
        options_append_words(text, info->help, HELP_COLUMN, &column);
        g_string_append_c(text, '\n');
    }
}

/* --- values --- */

/* Takes @error, a UNITS_ERROR, whose message names the value. */
static void
take_error(Options *options, const char *name, GError *error)
{
    options_fail(options, name, "%s", error->message);
    g_error_free(error);
}

const char *
options_string(Options *options, const char *name, const char *fallback)
{
    const char *text = value_of(options, name);

    if (text != NULL && *text == 0)
        options_fail(options, name, "the value is empty");
    return text == NULL ? fallback : text;
}

static int64_t
parse_int64(Options *options, const char *name, const char *text, int64_t min, int64_t max,
            int64_t fallback)
{
    g_autofree char *label = label_of(options, name);
    GError *error = NULL;
    int64_t value;

    if (units_parse_int64(text, label, min, max, &value, &error))
        return value;
    /* The message begins with the label already. */
    if (g_str_has_prefix(error->message, label))
        options_fail(options, name, "%s", error->message + strlen(label) + strlen(": "));
    else
        options_fail(options, name, "%s", error->message);
    g_error_free(error);
    return fallback;
}

int64_t
options_int64(Options *options, const char *name, int64_t min, int64_t max, int64_t fallback)
{
    const char *text = value_of(options, name);

    return text == NULL ? fallback : parse_int64(options, name, text, min, max, fallback);
}

int64_t
options_threads(Options *options)
{
    return options_int64(options, "threads", 1, MAX_THREADS, g_get_num_processors());
}

int64_t
options_bytes(Options *options, const char *name, int64_t fallback)
{
    const char *text = value_of(options, name);
    GError *error = NULL;
    int64_t value = fallback;

    if (text == NULL)
        return fallback;
    if (!units_parse_bytes(text, &value, &error))
        take_error(options, name, error);
    return value;
}

bool
options_part_int64(Options *options, const char *name, const char *text, const char *what,
                   int64_t min, int64_t max, int64_t *n)
{
    GError *error = NULL;

    if (units_parse_int64(text, what, min, max, n, &error))
        return true;
    take_error(options, name, error);
    return false;
}

double
options_part(Options *options, const char *name, const char *text, UnitsKind kind, double fallback)
{
    GError *error = NULL;
    double value = fallback;

    if (!units_parse(text, kind, &value, &error))
        take_error(options, name, error);
    return value;
}

double
options_quantity(Options *options, const char *name, UnitsKind kind, double fallback)
{
    const char *text = value_of(options, name);

    return text == NULL ? fallback : options_part(options, name, text, kind, fallback);
}

/* Up to so many names that begin alike are offered. */
#define MAX_ALIKE 3

/* (owned) As text_suggestion(); of several @names that begin with @text the first ones. */
static char *
suggestion_of(const char *text, const char *const *names)
{
    const char *alike[MAX_ALIKE + 1] = {NULL};
    size_t n = 0;

    for (size_t i = 0; *text != 0 && names[i] != NULL && n < MAX_ALIKE; i++)
        if (g_str_has_prefix(names[i], text))
            alike[n++] = names[i];
    if (n < 2)
        return text_suggestion(text, names);
    const char *last = alike[n - 1];
    alike[n - 1] = NULL;
    g_autofree char *others = g_strjoinv(", ", (char **)alike);
    return g_strdup_printf(": did you mean %s or %s?", others, last);
}

/* @more  the words that may stand there, too: "auto, " or "" */
static int
choose(Options *options, const char *name, const char *more, const char *const *names, int fallback)
{
    const char *text = value_of(options, name);

    if (text == NULL)
        return fallback;
    for (int i = 0; names[i] != NULL; i++) {
        if (strcmp(names[i], text) == 0)
            return i;
    }
    g_autofree char *shown = text_escape(text, 64);
    g_autofree char *suggestion = suggestion_of(text, names);
    g_autofree char *all = g_strjoinv(", ", (char **)names);
    options_fail(options, name, "\"%s\" is none of %s%s%s%s", shown, more, all,
                 *suggestion == 0 ? "" : ";", *suggestion == 0 ? "" : suggestion + 1);
    return fallback;
}

int
options_choice(Options *options, const char *name, int fallback)
{
    const OptionInfo *info = find_info(options, name, strlen(name));

    g_return_val_if_fail(info != NULL && (info->words != NULL || info->list != NULL), fallback);

    return choose(options, name, info->or_auto ? "auto, " : "",
                  info->list != NULL ? info->list() : info->words, fallback);
}

bool
options_on_off(Options *options, const char *name, bool fallback)
{
    static const char *const names[] = {"off", "on", NULL};

    return choose(options, name, "", names, fallback) == 1;
}

char **
options_words(Options *options, const char *name)
{
    const char *text = value_of(options, name);

    if (text == NULL)
        return NULL;
    char **words = g_strsplit(text, ",", -1);
    if (words[0] == NULL)
        options_fail(options, name, "the value is empty");
    for (size_t i = 0; words[i] != NULL; i++) {
        if (*words[i] == 0)
            options_fail(options, name, "there is nothing between two commas");
    }
    return words;
}

GArray *
options_int64s(Options *options, const char *name, int64_t min, int64_t max)
{
    g_auto(GStrv) words = options_words(options, name);

    if (words == NULL)
        return NULL;
    GArray *values = g_array_new(FALSE, FALSE, sizeof(int64_t));
    for (size_t i = 0; words[i] != NULL; i++) {
        const int64_t value = parse_int64(options, name, words[i], min, max, min);

        g_array_append_val(values, value);
    }
    return values;
}

/* --- lists and ranges --- */

static void
add_number(Options *options, const char *name, GArray *numbers, int64_t n)
{
    if (numbers->len >= OPTIONS_MAX_SERIES)
        options_fail(options, name, "more than %d numbers", OPTIONS_MAX_SERIES);
    else
        g_array_append_val(numbers, n);
}

/* A..B:+STEP or A..B:xFACTOR; @dots is where the dots are. */
static void
add_range(Options *options, const char *name, GArray *numbers, const char *part, const char *dots,
          int64_t min, int64_t max)
{
    const char *colon = strchr(dots, ':');
    g_autofree char *shown = text_escape(part, 64);
    int64_t first, last, step;

    if (colon == NULL || (colon[1] != 'x' && colon[1] != '+')) {
        options_fail(options, name, "\"%s\": expected a range such as 64..1024:x2 or 64..512:+64",
                     shown);
        return;
    }
    g_autofree char *low = g_strndup(part, (size_t)(dots - part));
    g_autofree char *high = g_strndup(dots + 2, (size_t)(colon - dots - 2));
    const bool is_factor = colon[1] == 'x';
    if (!options_part_int64(options, name, low, "the first number of a range", min, max, &first) ||
        !options_part_int64(options, name, high, "the last number of a range", min, max, &last) ||
        !options_part_int64(options, name, colon + 2, is_factor ? "its factor" : "its step",
                            is_factor ? 2 : 1, max, &step))
        return;
    if (last < first)
        options_fail(options, name, "\"%s\": expected a range that ascends", shown);
    for (int64_t n = first; n <= last && options->error == NULL;) {
        add_number(options, name, numbers, n);
        if (is_factor ? __builtin_mul_overflow(n, step, &n) : __builtin_add_overflow(n, step, &n))
            break;
    }
}

GArray *
options_series(Options *options, const char *name, int64_t min, int64_t max)
{
    const char *text = options_string(options, name, NULL);
    g_auto(GStrv) parts = g_strsplit(text == NULL ? "" : text, ",", -1);
    g_autoptr(GArray) numbers = g_array_new(FALSE, FALSE, sizeof(int64_t));

    for (size_t i = 0; parts[i] != NULL && options->error == NULL; i++) {
        const char *dots = strstr(parts[i], "..");
        int64_t n;

        if (dots != NULL)
            add_range(options, name, numbers, parts[i], dots, min, max);
        else if (strspn(parts[i], "0123456789-") == strlen(parts[i]) && parts[i][0] != 0 &&
                 strchr(parts[i] + 1, '-'))
            options_fail(options, name,
                         "\"%s\": a range is written such as 8..64:x2 or 64..512:+64", parts[i]);
        else if (options_part_int64(options, name, parts[i], "a number of the list", min, max, &n))
            add_number(options, name, numbers, n);
    }
    if (text == NULL || options->error != NULL)
        return NULL;
    g_array_sort(numbers, order_int64s);
    for (guint i = 1; i < numbers->len;) {
        if (g_array_index(numbers, int64_t, i) == g_array_index(numbers, int64_t, i - 1))
            g_array_remove_index(numbers, i);
        else
            i++;
    }
    return g_steal_pointer(&numbers);
}
