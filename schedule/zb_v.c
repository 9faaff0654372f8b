/*
 * schedule/zb_v.c - ZB-V: no bubble with the memory of 1F1B  [Qi et al. 2401.10241 section 6].
 *
 * Each rank holds two chunks, placed as a V: the first rank has the first and the last stage, so
 * that its first backward comes early.  There is no closed form for all shapes; the order is found
 * by the authors' greedy search (github.com/sail-sg/zero-bubble-pipeline-parallelism at 39f2c186,
 * zerobubble/scheduler/zbv.py) at F = I = W = 1 without communication:
 *
 *   warm-up    forwards until the backward of micro-batch 0 can start, as memory allows;
 *   rounds     2m times: one I on every rank, then one F on every rank that has one ready;
 *   W          in front of an I or F that is not ready yet or has no memory.
 *
 * Where times differ, the authors' search also weighs whether a W that is longer than a wait goes there,
 * and tries again with what it learned.  Here every wait is a whole number of W, so no such W is met.
 *
 * Memory is counted in bytes of a layer: F takes 34h + 5as per token, I gives back 2h + 5as, W 32h
 * [2205.05198 equation 1], for h 4096, a 32, s 2048 as the authors measure; the limit is 2p F.
 *
 * Cost: O(ops).
 */
#include "schedule/build.h"

#include <string.h>

/* 34h + 5as and 32h over their common divisor 2048: (34 * 4096 + 5 * 32 * 2048) and 32 * 4096. */
#define MEMORY_F 228
#define MEMORY_W (-64)
#define MEMORY_I (-MEMORY_F - MEMORY_W)

#define NOT_YET (-1)

/* Work of a rank: its two streams, by the order in which a micro-batch passes them. */
typedef enum {
    FORWARD_DOWN, /* chunk 0, from rank 0 to p-1 */
    FORWARD_UP,   /* chunk 1, from rank p-1 to 0 */
    INPUT_DOWN,   /* chunk 1, from rank 0 to p-1 */
    INPUT_UP,     /* chunk 0, from rank p-1 to 0 */
    N_PASSES,
} Pass;

typedef struct {
    int32_t count[N_PASSES]; /* done so far */
    int32_t weights[2];      /* W done, of the I of each direction */
    int32_t now;
    int64_t memory;
    int64_t first_pending, n_pending; /* W put off, a part of Search.pending */
    int64_t n_ops;
} Rank;

typedef struct {
    int32_t p, m;
    int64_t max_memory;
    Rank *ranks;  /* (owned) */
    int32_t *end; /* (owned) [(pass * p + rank) * m + micro-batch], NOT_YET before */
    uint8_t
        *pending; /* (owned) [rank * 2m + i]: direction (0 down, 1 up) of the i-th I of a rank */
    Schedule *schedule; /* (borrowed) where to put the ops */
} Search;

static int32_t *
end_of(const Search *s, Pass pass, int32_t rank, int32_t micro_batch)
{
    return &s->end[((int64_t)pass * s->p + rank) * s->m + micro_batch];
}

/* The rank a pass comes from, or -1 where it starts. */
static int32_t
from_rank(const Search *s, Pass pass, int32_t rank)
{
    if (pass == FORWARD_DOWN || pass == INPUT_DOWN)
        return rank - 1;
    return rank < s->p - 1 ? rank + 1 : -1;
}

/* When the next op of @pass on @rank gets its input: NOT_YET if nobody knows, or it needs none. */
static int32_t
input_end(const Search *s, Pass pass, int32_t rank)
{
    const int32_t from = from_rank(s, pass, rank);

    return from < 0 ? NOT_YET : *end_of(s, pass, from, s->ranks[rank].count[pass]);
}

static void
emit(Search *s, int32_t rank, ScheduleOpKind kind, int32_t micro_batch, int32_t chunk)
{
    Rank *r = &s->ranks[rank];

    s->schedule->ops[s->schedule->rank_begin[rank] + r->n_ops++] =
        (ScheduleOp){.micro_batch = micro_batch, .chunk = (uint8_t)chunk, .kind = (uint8_t)kind};
}

static void
put(Search *s, Pass pass, int32_t rank)
{
    Rank *r = &s->ranks[rank];
    const int32_t micro_batch = r->count[pass];
    const int32_t ready = MAX(r->now, input_end(s, pass, rank));
    const bool forward = pass <= FORWARD_UP;

    g_assert(micro_batch < s->m);
    r->now = ready + 1;
    *end_of(s, pass, rank, micro_batch) = r->now;
    r->memory += forward ? MEMORY_F : MEMORY_I;
    r->count[pass]++;
    emit(s, rank, forward ? SCHEDULE_OP_FORWARD : SCHEDULE_OP_BACKWARD_INPUT, micro_batch,
         pass == FORWARD_UP || pass == INPUT_DOWN ? 1 : 0);
    if (!forward)
        s->pending[(int64_t)rank * 2 * s->m + r->n_pending++] = pass == INPUT_UP;
}

static bool
has_weights(const Search *s, int32_t rank)
{
    return s->ranks[rank].first_pending < s->ranks[rank].n_pending;
}

static void
put_weights(Search *s, int32_t rank)
{
    Rank *r = &s->ranks[rank];
    const uint8_t up = s->pending[(int64_t)rank * 2 * s->m + r->first_pending++];

    r->now++;
    r->memory += MEMORY_W;
    emit(s, rank, SCHEDULE_OP_BACKWARD_WEIGHT, r->weights[up]++, up ? 0 : 1);
}

/* Puts W in front of the next op of @pass, which waits for its input. */
static void
fill_wait(Search *s, Pass pass, int32_t rank)
{
    const int32_t ready = input_end(s, pass, rank);

    while (has_weights(s, rank) && ready > s->ranks[rank].now)
        put_weights(s, rank);
}

static void
make_room(Search *s, int32_t rank, int64_t memory)
{
    while (s->ranks[rank].memory + memory > s->max_memory) {
        g_assert(has_weights(s, rank));
        put_weights(s, rank);
    }
}

static void
warm_up(Search *s)
{
    for (int32_t i = 0; i < s->p; i++)
        put(s, FORWARD_DOWN, i);
    for (int32_t i = s->p - 1; i >= 0; i--) {
        const Rank *r = &s->ranks[i];
        /* Forwards on all ranks up to this one while it waits for micro-batch 0 to come up. */
        while (i < s->p - 1 && r->memory + MEMORY_F * (2 + 2 * (int64_t)i) <= s->max_memory &&
               r->now < input_end(s, FORWARD_UP, i) && r->count[FORWARD_DOWN] < s->m)
            for (int32_t j = 0; j <= i; j++)
                put(s, FORWARD_DOWN, j);
        put(s, FORWARD_UP, i);
    }
    Pass next = FORWARD_DOWN;
    for (int32_t i = 1; i < s->p; i++) {
        const int32_t *mine = s->ranks[i].count, *before = s->ranks[i - 1].count;
        while (mine[FORWARD_DOWN] + mine[FORWARD_UP] < before[FORWARD_DOWN] + before[FORWARD_UP] ||
               (mine[FORWARD_UP] <= before[FORWARD_UP] && before[FORWARD_UP] < s->m)) {
            for (int32_t j = s->p - 1; j >= i; j--)
                if (s->ranks[j].count[next] < s->m)
                    put(s, next, j);
            next = next == FORWARD_DOWN ? FORWARD_UP : FORWARD_DOWN;
        }
    }
}

/* Which I a rank runs in this round. */
static Pass
choose_input(const Search *s, int32_t rank)
{
    const int32_t *count = s->ranks[rank].count;

    if (count[INPUT_UP] >= count[INPUT_DOWN])
        return INPUT_DOWN;
    if (rank == s->p - 1 || count[INPUT_DOWN] >= s->m || input_end(s, INPUT_UP, rank) != NOT_YET)
        return INPUT_UP;
    return INPUT_DOWN;
}

/* Which F a rank runs in this round; N_PASSES: none. */
static Pass
choose_forward(const Search *s, int32_t rank)
{
    const int32_t *count = s->ranks[rank].count;

    if (count[FORWARD_UP] >= s->m)
        return N_PASSES;
    if (count[FORWARD_UP] >= count[FORWARD_DOWN])
        return FORWARD_DOWN;
    if (rank == s->p - 1 || input_end(s, FORWARD_UP, rank) != NOT_YET)
        return FORWARD_UP;
    if (count[FORWARD_DOWN] < s->m && (rank == 0 || input_end(s, FORWARD_DOWN, rank) != NOT_YET))
        return FORWARD_DOWN;
    return N_PASSES;
}

/* One I on every rank: those on the way up first, last rank first; then those on the way down. */
static void
round_of_inputs(Search *s, uint8_t *chosen)
{
    for (int32_t i = 0; i < s->p; i++) {
        make_room(s, i, MEMORY_I);
        chosen[i] = (uint8_t)choose_input(s, i);
    }
    for (int32_t i = s->p - 1; i >= 0; i--)
        if (chosen[i] == INPUT_UP) {
            fill_wait(s, INPUT_UP, i);
            put(s, INPUT_UP, i);
        }
    for (int32_t i = 0; i < s->p; i++)
        if (chosen[i] == INPUT_DOWN) {
            fill_wait(s, INPUT_DOWN, i);
            put(s, INPUT_DOWN, i);
        }
}

static void
round_of_forwards(Search *s)
{
    for (int32_t i = 0; i < s->p; i++) {
        const Pass pass = choose_forward(s, i);
        if (pass == N_PASSES)
            continue;
        make_room(s, i, MEMORY_F);
        fill_wait(s, pass, i);
        put(s, pass, i);
    }
}

static void
search_run(Search *s, uint8_t *chosen)
{
    warm_up(s);
    for (int64_t i = 0; i < 2 * (int64_t)s->m; i++) {
        round_of_inputs(s, chosen);
        round_of_forwards(s);
    }
    for (int32_t i = 0; i < s->p; i++)
        while (has_weights(s, i))
            put_weights(s, i);
}

static bool
search_alloc(Search *s, GError **error)
{
    const size_t n = (size_t)s->p * (size_t)s->m;

    s->ranks = g_new0(Rank, (size_t)s->p);
    s->end = g_try_malloc_n(n, N_PASSES * sizeof(int32_t));
    s->pending = g_try_malloc_n(n, 2);
    if (s->end != NULL && s->pending != NULL)
        return true;
    return schedule_refuse(error, LIMIT,
                           "schedule zb-v: no memory to search %d ranks with %d micro-batches",
                           s->p, s->m);
}

static void
search_clear(Search *s)
{
    g_free(s->ranks);
    g_free(s->end);
    g_free(s->pending);
}

static Schedule *
build(const ScheduleFamily *family, const ScheduleShape *shape, GError **error)
{
    Search s = {.p = (int32_t)shape->n_ranks, .m = (int32_t)shape->n_micro_batches};
    Schedule *schedule = NULL;

    s.max_memory = MEMORY_F * 2 * (int64_t)s.p;
    if (search_alloc(&s, error))
        schedule = schedule_alloc_full(family, shape, 3, error);
    if (schedule == NULL) {
        search_clear(&s);
        return NULL;
    }
    for (int32_t rank = 0; rank <= s.p; rank++)
        schedule->rank_begin[rank] = (int64_t)rank * 6 * s.m;
    memset(s.end, 0xff, sizeof(int32_t) * N_PASSES * (size_t)s.p * (size_t)s.m); /* NOT_YET */
    g_autofree uint8_t *chosen = g_new0(uint8_t, (size_t)s.p);
    s.schedule = schedule;
    search_run(&s, chosen);
    search_clear(&s);
    return schedule;
}

const ScheduleFamily schedule_family_zb_v = {
    .name = "zb-v",
    .summary = "zero bubble with the memory of 1F1B, two chunks in a V (ZB-V, 2401.10241)",
    .splits_backward = true,
    .seeds_search = true,
    .min_chunks = 2,
    .max_chunks = 2,
    .placement = SCHEDULE_PLACEMENT_V,
    .torch_class = "ZBVZeroBubble",
    .build = build,
};
