#include "cli/recipe/layout_string.h"

#include <string.h>

#include "base/units.h"
#include "planner/rules/layer_flags.h"

/* Letters of a string that is written out: more than any stage list needs. */
#define MAX_LETTERS (1 << 20)

/* Appends @n letters at @part @times times; false: they become too many. */
static bool
repeat(GString *to, const char *part, size_t n, uint64_t times)
{
    if (times > MAX_LETTERS || n * times + to->len > MAX_LETTERS)
        return false;
    for (uint64_t i = 0; i < times; i++)
        g_string_append_len(to, part, (gssize)n);
    return true;
}

/* Whether "*n" stands at @p; then *@times and where it ends. */
static bool
read_times(const char *p, uint64_t *times, const char **end)
{
    char *after;

    if (p[0] != '*' || !g_ascii_isdigit(p[1]))
        return false;
    *times = g_ascii_strtoull(p + 1, &after, 10);
    *end = after;
    return true;
}

/* (owned) Without commas and with "(...)*n" written out; NULL: too long. */
static GString *
write_out_brackets(const char *text)
{
    g_auto(GStrv) parts = g_strsplit(text, ",", -1);
    g_autofree char *plain = g_strjoinv("", parts);
    g_autoptr(GString) out = g_string_new(NULL);

    for (const char *p = plain, *end; *p != 0; p = end) {
        const char *close = *p == '(' ? strchr(p + 1, ')') : NULL;
        uint64_t times = 1;
        const bool repeats = close != NULL && close > p + 1 && read_times(close + 1, &times, &end);
        if (!repeats)
            end = p + 1;
        if (!repeat(out, repeats ? p + 1 : p, repeats ? (size_t)(close - p - 1) : 1, times))
            return NULL;
    }
    return g_steal_pointer(&out);
}

/* The same of "c*n". */
static GString *
write_out_letters(const GString *text)
{
    g_autoptr(GString) out = g_string_new(NULL);

    for (const char *p = text->str, *end; *p != 0; p = end) {
        uint64_t times = 1;
        if (!read_times(p + 1, &times, &end))
            end = p + 1;
        if (!repeat(out, p, 1, times))
            return NULL;
    }
    return g_steal_pointer(&out);
}

GArray *
layout_string_read(const char *text, char **message)
{
    static const char letters[] = "EtmL";
    g_autoptr(GString) brackets = write_out_brackets(text);
    g_autoptr(GString) plain = brackets == NULL ? NULL : write_out_letters(brackets);
    g_autoptr(GArray) stages = g_array_new(false, true, sizeof(LayoutStage));
    LayoutStage stage = {.is_ordered = true};
    int last = 0;

    for (const char *p = plain == NULL ? "" : plain->str;; p++) {
        if (*p == '|' || *p == 0) {
            g_array_append_val(stages, stage);
            stage = (LayoutStage){.is_ordered = true};
            last = 0;
            if (*p == 0)
                break;
            continue;
        }
        const char *letter = strchr(letters, *p);
        if (letter == NULL) {
            *message = g_ascii_isgraph(*p) || *p == ' '
                           ? g_strdup_printf("'%c' is none of E, t, m and L", *p)
                           : g_strdup("a letter is none of E, t, m and L");
            return NULL;
        }
        const int which = (int)(letter - letters);
        int64_t *const counts[] = {&stage.n_embeddings, &stage.n_layers, &stage.n_mtp,
                                   &stage.n_losses};
        ++*counts[which];
        stage.is_ordered = stage.is_ordered && which >= last;
        last = which;
    }
    if (plain == NULL || stages->len > SCHEDULE_MAX_RANKS) {
        *message = g_strdup("too many stages or layers");
        return NULL;
    }
    return g_steal_pointer(&stages);
}

/* --- rules --- */

static const LayoutStage *
at(const GArray *stages, guint i)
{
    return &g_array_index(stages, LayoutStage, i);
}

/* Whether something comes after what must come before it; flags are of what there was so far. */
static const char *
order_refusal(const GArray *stages)
{
    bool had_mtp = false;

    for (guint i = 0; i < stages->len; i++) {
        if (had_mtp && at(stages, i)->n_layers > 0)
            return "layers must come before MTP modules";
        if (!at(stages, i)->is_ordered)
            return "a stage must have its embedding, layers, MTP modules and loss in this order";
        had_mtp = had_mtp || at(stages, i)->n_mtp > 0;
    }
    return NULL;
}

static char *
mtp_refusal(const GArray *stages, int64_t pp, int64_t n_mtp)
{
    for (guint i = 0; i < stages->len; i++) {
        if (at(stages, i)->n_mtp == 0)
            continue;
        if (i + pp < stages->len)
            return g_strdup_printf("MTP modules must be in the last chunk of their rank, and stage "
                                   "%u is not",
                                   i);
        if (at(stages, i)->n_mtp != n_mtp)
            return g_strdup("all MTP modules must be in one stage");
    }
    return NULL;
}

char *
layout_string_refusal(const GArray *stages, int64_t pp, int64_t n_layers, int64_t n_mtp)
{
    LayoutStage sum = {0};
    const LayoutStage *first = at(stages, 0), *last = at(stages, stages->len - 1);

    for (guint i = 0; i < stages->len; i++) {
        sum.n_embeddings += at(stages, i)->n_embeddings;
        sum.n_layers += at(stages, i)->n_layers;
        sum.n_mtp += at(stages, i)->n_mtp;
        sum.n_losses += at(stages, i)->n_losses;
    }
    if (stages->len % pp != 0)
        return g_strdup_printf("%u stages are no multiple of " INT " ranks", stages->len, pp);
    if (sum.n_embeddings != 1 || first->n_embeddings != 1)
        return g_strdup("one embedding (E) must be in the first stage, and none elsewhere");
    if (sum.n_losses != 1 || last->n_losses != 1)
        return g_strdup("one loss (L) must be in the last stage, and none elsewhere");
    if (sum.n_layers != n_layers)
        return g_strdup_printf("it has " INT " layers (t), the model has " INT, sum.n_layers,
                               n_layers);
    if (sum.n_mtp != n_mtp)
        return g_strdup_printf("it has " INT " MTP modules (m), the model has " INT, sum.n_mtp,
                               n_mtp);
    const char *order = order_refusal(stages);
    return order != NULL ? g_strdup(order) : mtp_refusal(stages, pp, n_mtp);
}

/* --- writing --- */

static void
add_letters(GString *text, char letter, int64_t n)
{
    if (n > 2)
        g_string_append_printf(text, "%c*" INT, letter, n);
    for (int64_t i = 0; i < n && n <= 2; i++)
        g_string_append_c(text, letter);
}

/* (owned) One stage. */
static char *
stage_text(const PlanStage *stage, int64_t n_layers)
{
    g_autoptr(GString) text = g_string_new(stage->embedding ? "E" : "");
    const int64_t after = MAX(0, stage->first_layer + stage->n_layers - n_layers);
    const int64_t n_mtp = MIN(after, stage->n_layers);

    add_letters(text, 't', stage->n_layers - n_mtp);
    add_letters(text, 'm', n_mtp);
    g_string_append(text, stage->head ? "L" : "");
    return g_string_free(g_steal_pointer(&text), FALSE);
}

char *
layout_string_write(const Plan *plan, int64_t n_layers, bool groups)
{
    g_autoptr(GPtrArray) texts = g_ptr_array_new_with_free_func(g_free);
    GString *text = g_string_new(NULL);

    for (guint i = 0; i < plan->stages->len; i++)
        g_ptr_array_add(texts, stage_text(&g_array_index(plan->stages, PlanStage, i), n_layers));
    for (guint i = 0, n; i < texts->len; i += n) {
        const char *one = g_ptr_array_index(texts, i);
        /* The last stage has no bar behind it. */
        for (n = 1;
             groups && i + n + 1 < texts->len && strcmp(one, g_ptr_array_index(texts, i + n)) == 0;)
            n++;
        if (i + 1 == texts->len)
            g_string_append(text, one);
        else if (n == 1)
            g_string_append_printf(text, "%s|", one);
        else
            g_string_append_printf(text, "(%s|)*%u", one, n);
    }
    return g_string_free(text, FALSE);
}

/* --- hybrids --- */

char *
layout_string_write_hybrid(const Plan *plan, const ModelArch *arch)
{
    g_autoptr(GString) text = g_string_new(NULL);
    guint stage = 0;

    for (int64_t layer = 0; layer < arch->n_layers; layer++) {
        const ModelArch kind = model_kind_arch(arch, model_layer_kind(arch, layer));
        char letters[2];
        if (plan_layer_letters(&kind, letters) != 1)
            return NULL;
        for (; plan != NULL && stage < plan->stages->len; stage++) {
            const PlanStage *here = &g_array_index(plan->stages, PlanStage, stage);
            if (layer < here->first_layer + here->n_layers)
                break;
            g_string_append_c(text, '|');
        }
        g_string_append_c(text, letters[0]);
    }
    for (; plan != NULL && stage + 1 < plan->stages->len; stage++)
        g_string_append_c(text, '|');
    for (int64_t i = 0; i < arch->mtp.n; i++) {
        const ModelArch module = model_layer_arch(arch, arch->n_layers + i);
        char letters[2];
        const size_t n = plan_layer_letters(&module, letters);
        if (n == 0)
            return NULL;
        g_string_append_printf(text, "/%.*s", (int)n, letters);
    }
    return g_string_free(g_steal_pointer(&text), FALSE);
}
