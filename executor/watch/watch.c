#include "executor/watch/watch.h"

/* Returns a rank that waits for nobody and yet has not moved for @limit_ns, or -1. */
static int32_t
find_idle(const ExecWatched *ranks, int32_t n_ranks, int64_t limit_ns)
{
    for (int32_t rank = 0; rank < n_ranks; rank++)
        if (!ranks[rank].ended && ranks[rank].waiting_for == EXEC_NOT_WAITING &&
            ranks[rank].idle_ns > limit_ns)
            return rank;
    return -1;
}

/* Returns the last rank of the chain of waits that begins at @rank; -1: the chain is a circle. */
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

/* Whether a rank has moved within @limit_ns. */
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
        /* The chain ends at a collective that some rank has not entered yet.  Nobody says which
         * rank: it is one that hangs, or one that still moves and will come. */
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
