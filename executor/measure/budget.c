#include "executor/measure/budget.h"

/* --- parts of the profile --- */

double
exec_budget_round_s(const ExecBudget *budget, int64_t round, double spent_s)
{
    g_return_val_if_fail(round >= 0 && round < budget->n_rounds, 0.0);
    const double beside_s = budget->total_s * EXEC_BUDGET_BESIDE_SHARE + budget->setup_s;

    if (!budget->is_limit)
        return budget->total_s / (double)budget->n_rounds;
    return (budget->total_s - spent_s - (double)budget->n_beside * beside_s) /
           (double)(budget->n_rounds - round);
}

bool
exec_budget_has_time(const ExecBudget *budget, double spent_s, double expected_s)
{
    return !budget->is_limit || spent_s + expected_s <= budget->total_s;
}

bool
exec_budget_repeats(const ExecBudget *budget, const ExecBudgetRepetitions *r)
{
    const double late = budget->is_limit || r->n >= r->least ? 1.0 : EXEC_BUDGET_LATE;

    return r->n < r->most && r->n_disturbed < r->most &&
           r->spent_s + r->expected_s <= late * r->round_s;
}

bool
exec_budget_counts(int64_t n_timings, int64_t n_disturbed)
{
    return 2 * n_disturbed <= n_timings;
}

/* --- links --- */

typedef struct {
    ProfileOp op;
    int64_t n_ranks, size;
    double seconds; /* the last time */
    bool is_timed;
} Link;

struct ExecBudgetLinks {
    double pass_s;
    GArray *links; /* (owned) of Link, in order */
    guint next;    /* in this pass */
};

ExecBudgetLinks *
exec_budget_links_new(double pass_s)
{
    ExecBudgetLinks *links = g_new0(ExecBudgetLinks, 1);

    links->pass_s = pass_s;
    links->links = g_array_new(FALSE, FALSE, sizeof(Link));
    return links;
}

void
exec_budget_links_free(ExecBudgetLinks *links)
{
    if (links == NULL)
        return;
    g_array_unref(links->links);
    g_free(links);
}

void
exec_budget_links_begin(ExecBudgetLinks *links)
{
    links->next = 0;
}

/* Returns the last link before @end of this op and number of ranks that is timed, or NULL. */
static const Link *
timed_before(const ExecBudgetLinks *links, guint end, ProfileOp op, int64_t n_ranks)
{
    for (guint i = end; i > 0; i--) {
        const Link *link = &g_array_index(links->links, Link, i - 1);
        if (link->is_timed && link->op == op && link->n_ranks == n_ranks)
            return link;
    }
    return NULL;
}

static bool
has_time(const ExecBudgetLinks *links, ProfileOp op, int64_t n_ranks, int64_t size)
{
    const Link *before = timed_before(links, links->links->len, op, n_ranks);

    if (before == NULL)
        return true;
    const double expected_s = before->seconds * (double)size / (double)MAX(before->size, 1);
    return exec_budget_links_pass_s(links) + expected_s <= links->pass_s;
}

bool
exec_budget_links_next(ExecBudgetLinks *links, ProfileOp op, int64_t n_ranks, int64_t size)
{
    if (links->next == links->links->len) {
        const Link link = {op, n_ranks, size, 0.0, has_time(links, op, n_ranks, size)};
        g_array_append_val(links->links, link);
    }
    const Link *link = &g_array_index(links->links, Link, links->next++);
    g_assert(link->op == op && link->n_ranks == n_ranks && link->size == size);
    return link->is_timed;
}

void
exec_budget_links_note(ExecBudgetLinks *links, double seconds)
{
    g_return_if_fail(links->next > 0);
    g_array_index(links->links, Link, links->next - 1).seconds = seconds;
}

double
exec_budget_links_pass_s(const ExecBudgetLinks *links)
{
    double sum_s = 0.0;

    for (guint i = 0; i < links->links->len; i++)
        sum_s += g_array_index(links->links, Link, i).seconds;
    return sum_s;
}

/* Whether a smaller link of the same op and ranks is left out too, and says so for this one. */
static bool
is_told(const ExecBudgetLinks *links, const Link *link)
{
    for (guint i = 0; i < links->links->len; i++) {
        const Link *other = &g_array_index(links->links, Link, i);
        if (!other->is_timed && other->op == link->op && other->n_ranks == link->n_ranks &&
            (other->size < link->size || (other->size == link->size && other < link)))
            return true;
    }
    return false;
}

char *
exec_budget_links_left_out(const ExecBudgetLinks *links)
{
    g_autoptr(GString) text = g_string_new(NULL);

    for (guint i = 0; i < links->links->len; i++) {
        const Link *link = &g_array_index(links->links, Link, i);
        if (link->is_timed || is_told(links, link))
            continue;
        g_string_append_printf(text, "%s%s from %" G_GINT64_FORMAT " %s on",
                               text->len > 0 ? ", " : "", profile_op_names[link->op], link->size,
                               link->op == PROFILE_OP_OPTIMIZER ? "elements" : "bytes");
        if (link->n_ranks > 1)
            g_string_append_printf(text, " between %" G_GINT64_FORMAT " ranks", link->n_ranks);
    }
    return text->len > 0 ? g_string_free(g_steal_pointer(&text), FALSE) : NULL;
}
