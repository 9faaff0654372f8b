#include "executor/watch/watch.h"

/* A rank that has not moved for the limit though it waits for nobody; -1: there is none. */
static int32_t
find_idle(const ExecWatched *ranks, int32_t n_ranks, int64_t limit_ns)
{
    for (int32_t rank = 0; rank < n_ranks; rank++)
        if (!ranks[rank].ended && ranks[rank].waiting_for == EXEC_NOT_WAITING &&
            ranks[rank].idle_ns > limit_ns)
            return rank;
    return -1;
}

/* The end of the chain of waits that begins at @rank; -1 when it bites its own tail. */
static int32_t
chain_end(const ExecWatched *ranks, int32_t n_ranks, int32_t rank)
{
    for (int32_t hops = 0; hops <= n_ranks; hops++) {
        const int32_t next = ranks[rank].waiting_for;
        if (next < 0 || ranks[next].ended)
            return rank;
        rank = next;
    }
    return -1;
}

/* Whether somebody has moved within the limit. */
static bool
any_moves(const ExecWatched *ranks, int32_t n_ranks, int64_t limit_ns)
{
    for (int32_t rank = 0; rank < n_ranks; rank++)
        if (!ranks[rank].ended && ranks[rank].idle_ns <= limit_ns)
            return true;
    return false;
}

bool
exec_watch_find_hung(const ExecWatched *ranks, int32_t n_ranks, int64_t limit_ns, ExecHung *hung)
{
    for (int32_t rank = 0; rank < n_ranks; rank++) {
        if (ranks[rank].ended || ranks[rank].idle_ns <= limit_ns)
            continue;
        int32_t end = chain_end(ranks, n_ranks, rank);
        const bool in_group = end >= 0 && ranks[end].waiting_for == EXEC_WAITING_FOR_GROUP;
        /* Somebody of the group has not come: one that hangs, or one that is on its way. */
        if (in_group) {
            end = find_idle(ranks, n_ranks, limit_ns);
            if (end < 0 && any_moves(ranks, n_ranks, limit_ns))
                continue;
        }
        *hung = (ExecHung){.culprit = end < 0 ? rank : end, .waiter = rank, .circle = end < 0};
        if (ranks[hung->culprit].idle_ns > limit_ns)
            return true;
    }
    return false;
}

GError *
exec_watch_hung_error(const ExecHung *hung, const char *who, const char *doing, int64_t idle_ns)
{
    g_autofree char *waiting = hung->culprit == hung->waiter
                                   ? g_strdup("")
                                   : g_strdup_printf("; rank %d waits for it", hung->waiter);

    return g_error_new(EXEC_ERROR, EXEC_ERROR_RANK_HUNG,
                       hung->circle ? "%s waits in a circle in %s for %.1f s%s"
                                    : "%s hangs in %s for %.1f s%s",
                       who, doing, (double)idle_ns * 1e-9, waiting);
}
