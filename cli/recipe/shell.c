#include <string.h>

#include "base/units.h"
#include "cli/recipe/shell_words.h"

typedef enum {
    BLOCK_IF,
    BLOCK_LOOP,
    BLOCK_CASE
} BlockKind;

/* An open if, loop or case. */
typedef struct {
    BlockKind kind;
    bool is_active; /* its commands count */
    bool is_taken;  /* a branch was */
    char *subject;  /* (owned, nullable) of case */
} Block;

/* --- flags --- */

/* Whether a word is "key=value". */
static bool
is_override(const char *word)
{
    const size_t n =
        strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.+~");

    return n > 0 && word[n] == '=';
}

/* Adds the flags among @words from @first to before @last: "--name value ...", "--name=value", and
 * "key=value" with @overrides. */
static void
add_flags(RecipeShell *sh, const GPtrArray *words, guint first, guint last, const char *prefix)
{
    for (guint i = first; i < last;) {
        const char *word = g_ptr_array_index(words, i++);
        const char *equals = strchr(word, '=');
        const bool is_flag = word[0] == '-' && (word[1] == '-' || g_ascii_isalpha(word[1]));

        if (is_flag && equals == NULL) {
            g_autoptr(GString) value = g_string_new(NULL);
            g_autofree char *key =
                g_strconcat(prefix, prefix[0] == 0 ? word : word + strspn(word, "-"), NULL);
            for (; i < last; i++) {
                const char *next = g_ptr_array_index(words, i);
                if (next[0] == '-' && (next[1] == '-' || g_ascii_isalpha(next[1])))
                    break;
                if (value->len > 0 && (strchr(prefix, '.') != NULL || is_override(next)))
                    break;
                g_string_append_printf(value, "%s%s", value->len > 0 ? " " : "", next);
            }
            recipe_settings_add(sh->settings, key, value->len > 0 ? value->str : "true", sh->line);
        } else if (is_flag || is_override(word)) {
            g_autofree char *name = g_strndup(word, (size_t)(equals - word));
            g_autofree char *key =
                g_strconcat(prefix, prefix[0] == 0 ? name : name + strspn(name, "-+~"), NULL);
            recipe_settings_add(sh->settings, key, equals + 1, sh->line);
        }
    }
}

static bool
is_any(const char *word, const char *list)
{
    g_auto(GStrv) words = g_strsplit(list, " ", -1);

    return g_strv_contains((const char *const *)words, word);
}

/* Whether the words run a program that trains; @program is then where its name is. */
static bool
finds_program(const GPtrArray *words, guint *program)
{
    for (guint i = 0; i < words->len; i++) {
        const char *word = g_ptr_array_index(words, i);
        const bool is_module = i > 0 && strcmp(word, "-m") == 0 && i + 1 < words->len;

        if (is_module &&
            !is_any(g_ptr_array_index(words, i + 1),
                    "torch.distributed.launch torch.distributed.run accelerate.commands.launch")) {
            *program = i + 1;
            return true;
        }
        if (g_str_has_suffix(word, ".py")) {
            *program = i;
            return strstr(word, "preprocess") == NULL && strstr(word, "download") == NULL &&
                   strstr(word, "convert") == NULL;
        }
    }
    return false;
}

static void
run_words(RecipeShell *sh, const GPtrArray *words)
{
    const char *first = words->len > 0 ? g_ptr_array_index(words, 0) : "";
    guint program;

    if (is_any(first, "echo printf cat mkdir cd source . pip ls rm cp mv"))
        return;
    if (finds_program(words, &program)) {
        sh->n_runs++;
        add_flags(sh, words, 0, program, "launch.");
        recipe_settings_add(sh->settings, "launch.program", g_ptr_array_index(words, program),
                            sh->line);
        add_flags(sh, words, program + 1, words->len, "");
        return;
    }
    if (g_str_has_prefix(first, "--")) {
        sh->n_runs++;
        add_flags(sh, words, 0, words->len, "");
        return;
    }
    if (is_any(first, "llamafactory-cli")) {
        add_flags(sh, words, 1, words->len, "");
        return;
    }
    /* sh -c "python ... ", eval "$COMMAND": the words of a word. */
    for (guint i = 0; i < words->len; i++) {
        const char *word = g_ptr_array_index(words, i);
        if (strstr(word, ".py ") == NULL)
            continue;
        g_auto(GStrv) parts = g_strsplit_set(word, " \t\r\n\\", -1);
        g_autoptr(GPtrArray) inner = g_ptr_array_new();
        add_flags(sh, words, 0, i, "launch.");
        for (size_t k = 0; parts[k] != NULL; k++)
            if (parts[k][0] != 0)
                g_ptr_array_add(inner, parts[k]);
        if (finds_program(inner, &program))
            run_words(sh, inner);
    }
}

/* --- conditions --- */

/* What a test sees: an unknown variable is empty. */
static const char *
seen(const char *word)
{
    return word[0] == RECIPE_UNKNOWN ? "" : word;
}

/* "[ a = b ]", "test -z a", "[[ a == b && c ]]": what is not understood is false. */
static bool
test(const GPtrArray *words)
{
    bool result = false, joins_and = true, is_first = true;

    for (guint i = 1; i < words->len;) {
        const char *word = g_ptr_array_index(words, i);
        bool negated = false, one = false;

        if (is_any(word, "] ]]"))
            break;
        if (is_any(word, "&& -a || -o")) {
            joins_and = is_any(word, "&& -a");
            i++;
            continue;
        }
        if (strcmp(word, "!") == 0 && i + 1 < words->len) {
            negated = true;
            word = g_ptr_array_index(words, ++i);
        }
        const char *op = i + 1 < words->len ? g_ptr_array_index(words, i + 1) : "]";
        if (word[0] == '-' && g_ascii_isalpha(word[1]) && word[2] == 0 && !is_any(op, "] ]]")) {
            one = (word[1] == 'z' && seen(op)[0] == 0) || (word[1] == 'n' && seen(op)[0] != 0);
            i += 2;
        } else if (is_any(op, "= == != -eq -ne -lt -le -gt -ge") && i + 2 < words->len) {
            const char *left = seen(word), *right = seen(g_ptr_array_index(words, i + 2));
            int64_t a = 0, b = 0;
            const bool numbers = units_parse_int64(left, "", 0, INT64_MAX, &a, NULL) &&
                                 units_parse_int64(right, "", 0, INT64_MAX, &b, NULL);
            if (op[0] == '-')
                one = numbers && (strcmp(op, "-eq") == 0   ? a == b
                                  : strcmp(op, "-ne") == 0 ? a != b
                                  : strcmp(op, "-lt") == 0 ? a < b
                                  : strcmp(op, "-le") == 0 ? a <= b
                                  : strcmp(op, "-gt") == 0 ? a > b
                                                           : a >= b);
            else
                one = (op[0] == '!') != g_pattern_match_simple(right, left);
            i += 3;
        } else {
            one = seen(word)[0] != 0;
            i++;
        }
        one ^= negated;
        result = is_first ? one : joins_and ? result && one : result || one;
        is_first = false;
    }
    return result;
}

/* --- commands --- */

static bool
is_active(const RecipeShell *sh)
{
    for (guint i = 0; i < sh->blocks->len; i++)
        if (!g_array_index(sh->blocks, Block, i).is_active)
            return false;
    return true;
}

static Block *
innermost(RecipeShell *sh)
{
    return sh->blocks->len == 0 ? NULL : &g_array_index(sh->blocks, Block, sh->blocks->len - 1);
}

static void
open_block(RecipeShell *sh, BlockKind kind, bool is_open, char *subject)
{
    const Block block = {.kind = kind, .is_active = is_open, .subject = subject};

    if (sh->blocks->len >= RECIPE_MAX_DEPTH) {
        recipe_fail(sh->settings, NULL, "line %d: nested deeper than %d", sh->line,
                    RECIPE_MAX_DEPTH);
        g_free(subject);
        return;
    }
    g_array_append_val(sh->blocks, block);
}

static void
close_block(RecipeShell *sh, BlockKind kind)
{
    Block *block = innermost(sh);

    if (block == NULL || block->kind != kind)
        return;
    g_free(block->subject);
    g_array_set_size(sh->blocks, sh->blocks->len - 1);
}

/* Reads "pattern | pattern )" of a case, unless it ends. */
static void
read_pattern(RecipeShell *sh)
{
    Block *block = innermost(sh);
    bool matches = false;

    while (sh->p < sh->end && (g_ascii_isspace(*sh->p) || *sh->p == '#' || *sh->p == '(')) {
        recipe_shell_skip_blanks(sh);
        if (sh->p < sh->end && (*sh->p == '\n' || *sh->p == '(')) {
            sh->line += *sh->p == '\n';
            sh->p++;
        }
    }
    if (sh->end - sh->p >= 4 && memcmp(sh->p, "esac", 4) == 0) {
        block->is_active = true;
        return;
    }
    while (sh->p < sh->end && *sh->p != ')' && *sh->p != '\n') {
        g_autoptr(GString) pattern = g_string_new(NULL);
        recipe_shell_read_word(sh, NULL, pattern);
        matches |= g_pattern_match_simple(pattern->str, seen(block->subject));
        while (sh->p < sh->end && (*sh->p == '|' || *sh->p == ' ' || *sh->p == '\t'))
            sh->p++;
        if (sh->p < sh->end && strchr(";&<>(", *sh->p) != NULL)
            sh->p++;
    }
    sh->p += sh->p < sh->end && *sh->p == ')';
    block->is_active = matches && !block->is_taken;
    block->is_taken |= matches;
}

/* Does what the keyword @word at the beginning of a command says; true if it is one.  What follows
 * it is a command, unless @ends. */
static bool
keyword(RecipeShell *sh, const char *word)
{
    Block *block = innermost(sh);
    const bool of_if = block != NULL && block->kind == BLOCK_IF;

    if (strcmp(word, "if") == 0) {
        open_block(sh, BLOCK_IF, true, NULL);
        sh->in_condition = true;
    } else if (strcmp(word, "then") == 0 && of_if) {
        block->is_active = sh->condition && !block->is_taken;
        block->is_taken |= block->is_active;
        sh->in_condition = false;
    } else if (strcmp(word, "elif") == 0 && of_if) {
        block->is_active = !block->is_taken;
        sh->in_condition = true;
        sh->condition = false;
    } else if (strcmp(word, "else") == 0 && of_if) {
        block->is_active = !block->is_taken;
        block->is_taken = true;
    } else if (strcmp(word, "fi") == 0) {
        close_block(sh, BLOCK_IF);
        sh->in_condition = false;
    } else if (is_any(word, "while until")) {
        open_block(sh, BLOCK_LOOP, true, NULL);
    } else if (strcmp(word, "done") == 0) {
        close_block(sh, BLOCK_LOOP);
    } else if (strcmp(word, "esac") == 0) {
        close_block(sh, BLOCK_CASE);
    } else {
        return is_any(word, "do { } ! time");
    }
    return true;
}

/* The length of "NAME=" or "NAME+=" at the place of the next word; 0: it is none. */
static size_t
assignment_length(const RecipeShell *sh)
{
    const char *p = sh->p;

    if (p >= sh->end || !(g_ascii_isalpha(*p) || *p == '_'))
        return 0;
    while (p < sh->end && (g_ascii_isalnum(*p) || *p == '_'))
        p++;
    p += p + 1 < sh->end && *p == '+' && p[1] == '=';
    return p < sh->end && *p == '=' ? (size_t)(p - sh->p) + 1 : 0;
}

static void
read_assignment(RecipeShell *sh, size_t length)
{
    const bool adds = sh->p[length - 2] == '+', counts = is_active(sh);
    g_autofree char *name = g_strndup(sh->p, length - (adds ? 2 : 1));

    sh->p += length;
    if (sh->p < sh->end && *sh->p == '(') {
        GPtrArray *values = g_ptr_array_new_with_free_func(g_free);
        for (sh->p++; sh->p < sh->end && *sh->p != ')';) {
            const char *before = sh->p;
            recipe_shell_skip_blanks(sh);
            if (sh->p < sh->end && *sh->p == '\n') {
                sh->line++;
                sh->p++;
            } else if (sh->p < sh->end && *sh->p != ')') {
                recipe_shell_read_word(sh, values, NULL);
            }
            sh->p += sh->p == before; /* what is no word */
        }
        sh->p += sh->p < sh->end;
        if (counts)
            recipe_shell_assign(sh, name, values, adds);
        else
            g_ptr_array_unref(values);
        return;
    }
    g_autoptr(GString) value = g_string_new(NULL);
    recipe_shell_read_word(sh, NULL, value);
    if (counts)
        recipe_shell_assign_text(sh, name, value->str, adds);
}

/* (owned) @text with what only a run knows as strings of JSON, whether it stands in one or not. */
static GString *
quote_unknowns(const char *text)
{
    GString *result = g_string_new(NULL);
    bool in_string = false, is_open = false;

    for (const char *p = text; *p != 0; p++) {
        if (*p == RECIPE_UNKNOWN) {
            is_open = !is_open;
            g_string_append(result, in_string ? "\\u0001" : is_open ? "\"\\u0001" : "\\u0001\"");
        } else {
            in_string ^= *p == '"' && (p == text || p[-1] != '\\');
            g_string_append_c(result, *p);
        }
    }
    return result;
}

/* A heredoc that is a JSON object is DeepSpeed's configuration: its settings are the script's, unless
 * a flag says otherwise.  Any other text is somebody else's. */
static void
read_heredoc(RecipeShell *sh, const char *begin, const char *end, bool is_quoted)
{
    g_autoptr(RecipeSettings) own = recipe_settings_new(sh->settings->path);
    g_autoptr(GString) text = g_string_new(NULL);
    bool has = false;

    while (begin < end && g_ascii_isspace(*begin))
        begin++;
    if (!is_active(sh) || begin == end || *begin != '{')
        return;
    if (is_quoted)
        g_string_append_len(text, begin, end - begin);
    else
        recipe_shell_expand(sh, begin, end, true, text, &has, NULL);
    g_autoptr(GString) json = quote_unknowns(text->str);
    recipe_read_json(own, json->str, json->len);
    const bool is_ours = own->error == NULL &&
                         (g_hash_table_contains(own->by_key, "train_batch_size") ||
                          g_hash_table_contains(own->by_key, "train_micro_batch_size_per_gpu") ||
                          g_hash_table_contains(own->by_key, "zero_optimization.stage"));
    for (guint i = 0; is_ours && i < own->all->len; i++) {
        const RecipeSetting *setting = g_ptr_array_index(own->all, i);
        if (!g_hash_table_contains(sh->settings->by_key, setting->key))
            recipe_settings_add(sh->settings, setting->key, setting->value, sh->line);
    }
}

/* Reads the texts of "<<EOF" that begin on the next line. */
static void
read_heredocs(RecipeShell *sh)
{
    for (guint i = 0; i < sh->heredocs->len; i++) {
        const char *kept = g_ptr_array_index(sh->heredocs, i), *delimiter = kept + 1;
        const char *begin = sh->p, *last = sh->p;
        bool found = false;
        while (sh->p < sh->end && !found) {
            const char *newline = memchr(sh->p, '\n', (size_t)(sh->end - sh->p));
            const char *to = newline == NULL ? sh->end : newline;
            g_autofree char *line = g_strndup(sh->p, (size_t)(to - sh->p));
            found = strcmp(g_strstrip(line), delimiter) == 0;
            last = sh->p;
            sh->p = newline == NULL ? sh->end : newline + 1;
            sh->line++;
        }
        read_heredoc(sh, begin, found ? last : sh->p, *kept == '"');
    }
    g_ptr_array_set_size(sh->heredocs, 0);
}

/* "> file", "2>&1", "<<EOF". */
static void
skip_redirection(RecipeShell *sh)
{
    const bool is_heredoc = sh->end - sh->p > 2 && memcmp(sh->p, "<<", 2) == 0 && sh->p[2] != '<';

    while (sh->p < sh->end && strchr("<>&-", *sh->p) != NULL)
        sh->p++;
    recipe_shell_skip_blanks(sh);
    const bool is_quoted = sh->p < sh->end && strchr("'\"\\", *sh->p) != NULL;
    g_autoptr(GString) target = g_string_new(NULL);
    recipe_shell_read_word(sh, NULL, target);
    if (is_heredoc && target->len > 0)
        g_ptr_array_add(sh->heredocs, g_strconcat(is_quoted ? "\"" : " ", target->str, NULL));
}

static void
run_command(RecipeShell *sh, const GPtrArray *words)
{
    const char *first = words->len > 0 ? g_ptr_array_index(words, 0) : "";

    if (words->len == 0)
        return;
    if (sh->in_condition) {
        sh->condition = is_any(first, "[ [[ test") && test(words);
        return;
    }
    if (is_active(sh))
        run_words(sh, words);
}

/* "for X in A B C": the body runs once, with A. */
static void
read_for(RecipeShell *sh)
{
    g_autoptr(GPtrArray) words = g_ptr_array_new_with_free_func(g_free);

    while (sh->p < sh->end && *sh->p != '\n' && *sh->p != ';') {
        const char *before = sh->p;
        recipe_shell_skip_blanks(sh);
        if (sh->p < sh->end && *sh->p != '\n' && *sh->p != ';')
            recipe_shell_read_word(sh, words, NULL);
        sh->p += sh->p == before;
    }
    if (words->len > 2 && is_active(sh))
        recipe_shell_assign_text(sh, g_ptr_array_index(words, 0), g_ptr_array_index(words, 2),
                                 false);
    open_block(sh, BLOCK_LOOP, true, NULL);
}

/* One simple command, up to what ends it. */
static void
read_command(RecipeShell *sh)
{
    g_autoptr(GPtrArray) words = g_ptr_array_new_with_free_func(g_free);
    bool assigns = true, in_test = false;

    while (sh->p < sh->end && sh->settings->error == NULL) {
        const char *before = sh->p;
        recipe_shell_skip_blanks(sh);
        const char c = sh->p < sh->end ? *sh->p : '\n';
        const size_t length = assigns ? assignment_length(sh) : 0;

        if (in_test && c != '\n' && strchr(";&|()<>", c) != NULL) {
            const size_t n = sh->p + 1 < sh->end && sh->p[1] == c ? 2 : 1;
            g_ptr_array_add(words, g_strndup(sh->p, n));
            sh->p += n;
            continue;
        }
        if (c == '<' || c == '>') {
            skip_redirection(sh);
            continue;
        }
        if (c == '\n' || strchr(";&|()", c) != NULL)
            break;
        if (length > 0) {
            read_assignment(sh, length);
            continue;
        }
        const char *end = sh->p;
        while (end < sh->end && (g_ascii_isalpha(*end) || strchr("{}!", *end) != NULL))
            end++;
        g_autofree char *plain = g_strndup(sh->p, (size_t)(end - sh->p));
        if (words->len == 0 && (end == sh->end || recipe_shell_ends_word(*end))) {
            if (strcmp(plain, "for") == 0) {
                sh->p = end;
                read_for(sh);
                break;
            }
            if (strcmp(plain, "case") == 0) {
                g_autoptr(GString) subject = g_string_new(NULL);
                sh->p = end;
                recipe_shell_skip_blanks(sh);
                recipe_shell_read_word(sh, NULL, subject);
                recipe_shell_skip_blanks(sh);
                sh->p += sh->end - sh->p >= 2 && memcmp(sh->p, "in", 2) == 0 ? 2 : 0;
                open_block(sh, BLOCK_CASE, false, g_string_free(g_steal_pointer(&subject), FALSE));
                read_pattern(sh);
                break;
            }
            if (keyword(sh, plain)) {
                sh->p = end;
                continue;
            }
            if (is_any(plain, "export local declare readonly typeset")) {
                sh->p = end;
                continue;
            }
        }
        const guint n = words->len;
        recipe_shell_read_word(sh, words, NULL);
        if (n == 0 && words->len > 0) {
            in_test = strcmp(g_ptr_array_index(words, 0), "[[") == 0;
            assigns = false;
        }
        if (in_test && strcmp(g_ptr_array_index(words, words->len - 1), "]]") == 0)
            in_test = false;
        sh->p += sh->p == before;
    }
    run_command(sh, words);
    const char c = sh->p < sh->end ? *sh->p : 0;
    if (c == ';' && sh->p + 1 < sh->end && sh->p[1] == ';') {
        sh->p += 2;
        if (innermost(sh) != NULL && innermost(sh)->kind == BLOCK_CASE)
            read_pattern(sh);
        return;
    }
    sh->p += c != 0;
    if (c == '\n') {
        sh->line++;
        read_heredocs(sh);
    }
}

/* "#SBATCH --nodes=4", wherever it stands. */
static void
read_sbatch(RecipeShell *sh, const char *text)
{
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);

    for (size_t i = 0; lines[i] != NULL; i++) {
        if (!g_str_has_prefix(lines[i], "#SBATCH"))
            continue;
        g_auto(GStrv) parts = g_strsplit_set(lines[i] + strlen("#SBATCH"), " \t\r", -1);
        g_autoptr(GPtrArray) words = g_ptr_array_new();
        for (size_t k = 0; parts[k] != NULL && parts[k][0] != '#'; k++)
            if (parts[k][0] != 0)
                g_ptr_array_add(words, parts[k]);
        sh->line = (int)i + 1;
        add_flags(sh, words, 0, words->len, "sbatch.");
    }
    sh->line = 1;
}

/* Whether @text begins with an override that is no assignment of a shell: "model.context_parallel_size=2". */
static bool
is_dotted(const char *text)
{
    const char *dot = text + strcspn(text, ".= \t\r\n");

    return *dot == '.' && is_override(text);
}

/* Flags alone, as `degas export` writes them: no shell has seen them yet. */
static void
read_flags(RecipeShell *sh)
{
    g_autoptr(GPtrArray) words = g_ptr_array_new_with_free_func(g_free);

    while (sh->p < sh->end) {
        const size_t n = strcspn(sh->p, " \t\r\n");
        if (n > 0 && !(n == 1 && *sh->p == '\\'))
            g_ptr_array_add(words, g_strndup(sh->p, n));
        sh->p += n;
        sh->p += sh->p < sh->end;
    }
    sh->line = 0;
    add_flags(sh, words, 0, words->len, "");
}

/* Scripts that run nothing themselves leave flags in variables for others. */
static void
add_flags_of_variables(RecipeShell *sh)
{
    for (guint i = 0; i < sh->order->len; i++) {
        const GPtrArray *values =
            g_hash_table_lookup(sh->variables, g_ptr_array_index(sh->order, i));
        g_autoptr(GPtrArray) words = g_ptr_array_new_with_free_func(g_free);
        for (guint k = 0; values != NULL && k < values->len; k++) {
            g_auto(GStrv) parts = g_strsplit_set(g_ptr_array_index(values, k), " \t\r\n\\", -1);
            for (size_t n = 0; parts[n] != NULL; n++)
                if (parts[n][0] != 0)
                    g_ptr_array_add(words, g_strdup(parts[n]));
        }
        if (words->len > 0 && g_str_has_prefix(g_ptr_array_index(words, 0), "--"))
            add_flags(sh, words, 0, words->len, "");
    }
}

void
recipe_read_shell(RecipeSettings *settings, const char *text, size_t n_bytes, GHashTable *given)
{
    RecipeShell sh = {
        .settings = settings,
        .p = text,
        .end = text + n_bytes,
        .line = 1,
        .variables = g_hash_table_new_full(g_str_hash, g_str_equal, g_free,
                                           (GDestroyNotify)g_ptr_array_unref),
        .order = g_ptr_array_new_with_free_func(g_free),
        .blocks = g_array_new(FALSE, FALSE, sizeof(Block)),
        .heredocs = g_ptr_array_new_with_free_func(g_free),
    };
    GHashTableIter iter;
    gpointer name, value;

    if (given != NULL) {
        g_hash_table_iter_init(&iter, given);
        while (g_hash_table_iter_next(&iter, &name, &value))
            recipe_shell_assign_text(&sh, name, value, false);
    }
    sh.given = given;
    read_sbatch(&sh, text);
    const bool is_bare =
        (g_str_has_prefix(text, "--") || is_dotted(text)) && strpbrk(text, "$\"'") == NULL;
    if (is_bare)
        read_flags(&sh);
    while (sh.p < sh.end && settings->error == NULL)
        read_command(&sh);
    if (sh.n_runs == 0 && !is_bare)
        add_flags_of_variables(&sh);
    for (guint i = 0; i < sh.order->len; i++) {
        const char *variable = g_ptr_array_index(sh.order, i);
        g_autofree char *key = g_strconcat("$", variable, NULL);
        const char *first = recipe_shell_value(&sh, variable);
        if (first != NULL && is_any(variable, "NNODES NUM_NODES GPUS_PER_NODE NUM_GPUS WORLD_SIZE "
                                              "N_GPUS NPROC_PER_NODE NODES"))
            recipe_settings_add(settings, key, first, 0);
    }
    while (innermost(&sh) != NULL)
        close_block(&sh, innermost(&sh)->kind);
    g_hash_table_unref(sh.variables);
    g_ptr_array_unref(sh.order);
    g_array_unref(sh.blocks);
    g_ptr_array_unref(sh.heredocs);
}
