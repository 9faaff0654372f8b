/*
 * tests/schedule/zb_exact.h - the proven optimum of small zb-auto problems: branch and bound.
 *
 * An oracle of its own, for one chunk per rank; it shares no code with schedule/.  The problem is a
 * job shop with three chains of ops per rank (F, I, W in order of micro-batches, which is no loss
 * as micro-batches are alike) and a limit of micro-batches between F and W.
 *
 * Branching  [Giffler, Thompson 1960]: of all ops whose inputs are scheduled take the one that
 * could end first, at C on rank r; one of r's ops that could start before C comes next.  That
 * reaches every active schedule, and one of those is optimal.
 * Bound: each rank alone, with heads and tails from the chains, preemptive  [Carlier 1982].
 * Memory: of two states with as many ops done, one that is nowhere later is enough.
 */
#pragma once

#include "schedule/schedule.h"

#include <string.h>

#define EXACT_MAX_RANKS 4
#define EXACT_MAX_MICRO_BATCHES 8

enum {
    EXACT_F,
    EXACT_I,
    EXACT_W,
    EXACT_KINDS
};

typedef struct {
    int p, m;
    int64_t ns[EXACT_MAX_RANKS][EXACT_KINDS];
    int64_t forward_message_ns[EXACT_MAX_RANKS], backward_message_ns[EXACT_MAX_RANKS];
    int limit;                          /* micro-batches from F to W */
    int64_t offset_ns[EXACT_MAX_RANKS]; /* added to a rank's end: 0 for makespan */
} ExactProblem;

typedef struct {
    uint8_t n[EXACT_MAX_RANKS][EXACT_KINDS];
    int64_t free_ns[EXACT_MAX_RANKS];
    int64_t end_ns[EXACT_MAX_RANKS][2][EXACT_MAX_MICRO_BATCHES]; /* of F and I */
} ExactState;

typedef struct {
    ExactProblem problem;
    int64_t tail_ns[EXACT_MAX_RANKS][EXACT_KINDS][EXACT_MAX_MICRO_BATCHES];
    int64_t best_ns;
    int64_t n_nodes, max_nodes;
    GHashTable *seen; /* of counts: GArray of time vectors */
    int64_t n_seen;
    int width; /* of a time vector */
} Exact;

/* When the input of the next op of @kind is there, or -1 if it cannot be next. */
static inline int64_t
exact_arrival(const ExactProblem *q, const ExactState *s, int r, int kind)
{
    const int k = s->n[r][kind];

    if (k == q->m)
        return -1;
    if (kind == EXACT_F) {
        if (k - s->n[r][EXACT_W] >= q->limit || (r > 0 && s->n[r - 1][EXACT_F] <= k))
            return -1;
        return r == 0 ? 0 : s->end_ns[r - 1][0][k] + q->forward_message_ns[r - 1];
    }
    if (kind == EXACT_I) {
        if (s->n[r][EXACT_F] <= k || (r < q->p - 1 && s->n[r + 1][EXACT_I] <= k))
            return -1;
        return r == q->p - 1 ? s->end_ns[r][0][k]
                             : s->end_ns[r + 1][1][k] + q->backward_message_ns[r + 1];
    }
    return s->n[r][EXACT_I] <= k ? -1 : 0;
}

/* Longest way from an op's end to the end of everything. */
static inline void
exact_tails(Exact *e)
{
    const ExactProblem *q = &e->problem;

    memset(e->tail_ns, 0, sizeof e->tail_ns);
    for (int k = q->m - 1; k >= 0; k--) {
        for (int r = 0; r < q->p; r++) {
            int64_t *w = &e->tail_ns[r][EXACT_W][k];
            *w = q->offset_ns[r];
            if (k + 1 < q->m)
                *w = MAX(*w, e->tail_ns[r][EXACT_W][k + 1] + q->ns[r][EXACT_W]);
            if (k + q->limit < q->m)
                *w = MAX(*w, e->tail_ns[r][EXACT_F][k + q->limit] + q->ns[r][EXACT_F]);
        }
        for (int r = 0; r < q->p; r++) {
            int64_t *i = &e->tail_ns[r][EXACT_I][k];
            *i = e->tail_ns[r][EXACT_W][k] + q->ns[r][EXACT_W];
            if (k + 1 < q->m)
                *i = MAX(*i, e->tail_ns[r][EXACT_I][k + 1] + q->ns[r][EXACT_I]);
            if (r > 0)
                *i = MAX(*i, e->tail_ns[r - 1][EXACT_I][k] + q->ns[r - 1][EXACT_I] +
                                 q->backward_message_ns[r]);
        }
        for (int r = q->p - 1; r >= 0; r--) {
            int64_t *f = &e->tail_ns[r][EXACT_F][k];
            *f = e->tail_ns[r][EXACT_I][k] + q->ns[r][EXACT_I];
            if (k + 1 < q->m)
                *f = MAX(*f, e->tail_ns[r][EXACT_F][k + 1] + q->ns[r][EXACT_F]);
            if (r < q->p - 1)
                *f = MAX(*f, e->tail_ns[r + 1][EXACT_F][k] + q->ns[r + 1][EXACT_F] +
                                 q->forward_message_ns[r]);
        }
    }
}

/* Earliest starts of what is not done. */
static inline void
exact_heads(const ExactProblem *q, const ExactState *s,
            int64_t head[EXACT_MAX_RANKS][EXACT_KINDS][EXACT_MAX_MICRO_BATCHES])
{
    for (int k = 0; k < q->m; k++) {
        for (int r = 0; r < q->p; r++) {
            int64_t h = s->free_ns[r];
            if (s->n[r][EXACT_F] > k) {
                head[r][EXACT_F][k] = s->end_ns[r][0][k] - q->ns[r][EXACT_F];
                continue;
            }
            if (k > s->n[r][EXACT_F])
                h = MAX(h, head[r][EXACT_F][k - 1] + q->ns[r][EXACT_F]);
            if (r > 0)
                h = MAX(h, head[r - 1][EXACT_F][k] + q->ns[r - 1][EXACT_F] +
                               q->forward_message_ns[r - 1]);
            if (k - q->limit >= s->n[r][EXACT_W])
                h = MAX(h, head[r][EXACT_W][k - q->limit] + q->ns[r][EXACT_W]);
            head[r][EXACT_F][k] = h;
        }
        for (int r = q->p - 1; r >= 0; r--) {
            int64_t h = MAX(s->free_ns[r], head[r][EXACT_F][k] + q->ns[r][EXACT_F]);
            if (s->n[r][EXACT_I] > k) {
                head[r][EXACT_I][k] = s->end_ns[r][1][k] - q->ns[r][EXACT_I];
            } else {
                if (k > s->n[r][EXACT_I])
                    h = MAX(h, head[r][EXACT_I][k - 1] + q->ns[r][EXACT_I]);
                if (r < q->p - 1)
                    h = MAX(h, head[r + 1][EXACT_I][k] + q->ns[r + 1][EXACT_I] +
                                   q->backward_message_ns[r + 1]);
                head[r][EXACT_I][k] = h;
            }
            h = MAX(s->free_ns[r], head[r][EXACT_I][k] + q->ns[r][EXACT_I]);
            if (k > s->n[r][EXACT_W])
                h = MAX(h, head[r][EXACT_W][k - 1] + q->ns[r][EXACT_W]);
            head[r][EXACT_W][k] = h;
        }
    }
}

/* The preemptive schedule of one rank's ops by longest tail: its largest end + tail. */
static inline int64_t
exact_one_rank(const Exact *e, const ExactState *s,
               int64_t head[EXACT_MAX_RANKS][EXACT_KINDS][EXACT_MAX_MICRO_BATCHES], int r)
{
    const ExactProblem *q = &e->problem;
    int64_t left[EXACT_KINDS][EXACT_MAX_MICRO_BATCHES];
    int64_t now = s->free_ns[r], bound = s->free_ns[r] + q->offset_ns[r];

    for (int kind = 0; kind < EXACT_KINDS; kind++)
        for (int k = 0; k < q->m; k++)
            left[kind][k] = k < s->n[r][kind] ? 0 : q->ns[r][kind];
    for (;;) {
        int best_kind = -1, best_k = -1;
        int64_t next = INT64_MAX;
        for (int kind = 0; kind < EXACT_KINDS; kind++)
            for (int k = s->n[r][kind]; k < q->m; k++) {
                if (left[kind][k] == 0)
                    continue;
                if (head[r][kind][k] > now)
                    next = MIN(next, head[r][kind][k]);
                else if (best_kind < 0 ||
                         e->tail_ns[r][kind][k] > e->tail_ns[r][best_kind][best_k]) {
                    best_kind = kind;
                    best_k = k;
                }
            }
        if (best_kind < 0 && next == INT64_MAX)
            return bound;
        if (best_kind < 0) {
            now = next;
            continue;
        }
        const int64_t run =
            MIN(left[best_kind][best_k], next == INT64_MAX ? INT64_MAX : next - now);
        now += run;
        left[best_kind][best_k] -= run;
        if (left[best_kind][best_k] == 0)
            bound = MAX(bound, now + e->tail_ns[r][best_kind][best_k]);
    }
}

static inline int64_t
exact_bound(const Exact *e, const ExactState *s)
{
    int64_t head[EXACT_MAX_RANKS][EXACT_KINDS][EXACT_MAX_MICRO_BATCHES];
    int64_t bound = 0;

    exact_heads(&e->problem, s, head);
    for (int r = 0; r < e->problem.p; r++)
        bound = MAX(bound, exact_one_rank(e, s, head, r));
    return bound;
}

/* The times that matter from here on: when ranks are free, and when messages come after that. */
static inline int
exact_vector(const Exact *e, const ExactState *s, int64_t *vector)
{
    const ExactProblem *q = &e->problem;
    int n = 0;

    for (int r = 0; r < q->p; r++)
        vector[n++] = s->free_ns[r];
    for (int r = 0; r < q->p; r++) {
        for (int k = s->n[r][EXACT_F]; r > 0 && k < s->n[r - 1][EXACT_F]; k++)
            vector[n++] = MAX(s->free_ns[r], s->end_ns[r - 1][0][k] + q->forward_message_ns[r - 1]);
        for (int k = s->n[r][EXACT_I]; r < q->p - 1 && k < s->n[r + 1][EXACT_I]; k++)
            vector[n++] =
                MAX(s->free_ns[r], s->end_ns[r + 1][1][k] + q->backward_message_ns[r + 1]);
    }
    return n;
}

/* Whether a state seen before is nowhere later; else remembers this one. */
static inline bool
exact_is_dominated(Exact *e, const ExactState *s)
{
    int64_t vector[EXACT_MAX_RANKS * (1 + 2 * EXACT_MAX_MICRO_BATCHES)];
    const int n = exact_vector(e, s, vector);
    g_autoptr(GBytes) key = g_bytes_new(s->n, sizeof s->n);
    GArray *old = g_hash_table_lookup(e->seen, key);

    if (old == NULL) {
        old = g_array_new(FALSE, FALSE, sizeof(int64_t));
        g_hash_table_insert(e->seen, g_bytes_ref(key), old);
    }
    for (guint i = 0; i < old->len; i += (guint)n) {
        const int64_t *other = &g_array_index(old, int64_t, i);
        int j = 0;
        while (j < n && other[j] <= vector[j])
            j++;
        if (j == n)
            return true;
    }
    if (e->n_seen < 4000000) {
        g_array_append_vals(old, vector, (guint)n);
        e->n_seen += n;
    }
    return false;
}

static inline void
exact_run(const ExactProblem *q, ExactState *s, int r, int kind, int64_t start)
{
    s->free_ns[r] = start + q->ns[r][kind];
    if (kind != EXACT_W)
        s->end_ns[r][kind][s->n[r][kind]] = s->free_ns[r];
    s->n[r][kind]++;
}

static inline void
exact_branch(Exact *e, const ExactState *s)
{
    const ExactProblem *q = &e->problem;
    int64_t first_end = INT64_MAX;
    int rank = -1;

    if (++e->n_nodes > e->max_nodes)
        return;
    for (int r = 0; r < q->p; r++)
        for (int kind = 0; kind < EXACT_KINDS; kind++) {
            const int64_t arrival = exact_arrival(q, s, r, kind);
            const int64_t end = MAX(arrival, s->free_ns[r]) + q->ns[r][kind];
            if (arrival >= 0 && end < first_end) {
                first_end = end;
                rank = r;
            }
        }
    if (rank < 0) {
        int64_t ns = 0;
        for (int r = 0; r < q->p; r++)
            ns = MAX(ns, s->free_ns[r] + q->offset_ns[r]);
        e->best_ns = MIN(e->best_ns, ns);
        return;
    }
    ExactState next[EXACT_KINDS];
    int64_t bound[EXACT_KINDS];
    for (int kind = 0; kind < EXACT_KINDS; kind++) {
        const int64_t arrival = exact_arrival(q, s, rank, kind);
        const int64_t start = MAX(arrival, s->free_ns[rank]);
        bound[kind] = INT64_MAX;
        if (arrival < 0 || (start >= first_end && start + q->ns[rank][kind] > first_end))
            continue;
        next[kind] = *s;
        exact_run(q, &next[kind], rank, kind, start);
        bound[kind] = exact_bound(e, &next[kind]);
    }
    for (;;) {
        int best = 0;
        for (int kind = 1; kind < EXACT_KINDS; kind++)
            if (bound[kind] < bound[best])
                best = kind;
        if (bound[best] >= e->best_ns)
            return;
        bound[best] = INT64_MAX;
        if (!exact_is_dominated(e, &next[best]))
            exact_branch(e, &next[best]);
    }
}

/*
 * The optimum, at most @upper_ns, which some schedule reaches; or if that could not be proven with
 * @max_nodes states, -1.
 */
static inline int64_t
exact_solve(const ExactProblem *problem, int64_t upper_ns, int64_t max_nodes, int64_t *n_nodes)
{
    Exact e = {.problem = *problem, .best_ns = upper_ns, .max_nodes = max_nodes};
    const ExactState start = {0};

    exact_tails(&e);
    e.seen = g_hash_table_new_full(g_bytes_hash, g_bytes_equal, (GDestroyNotify)g_bytes_unref,
                                   (GDestroyNotify)g_array_unref);
    if (exact_bound(&e, &start) < upper_ns)
        exact_branch(&e, &start);
    g_hash_table_unref(e.seen);
    if (n_nodes != NULL)
        *n_nodes = e.n_nodes;
    return e.n_nodes > max_nodes ? -1 : e.best_ns;
}
