/*
 * schedule/v_memory.c - V-Half and V-Min: half and a third of the memory of 1F1B, two chunks per
 * rank in a V  [Qi et al. 2405.15362, pipeline parallelism with controllable memory].
 *
 * A building block says in which of six slots per micro-batch each rank runs its F and I of both
 * chunks; repeating it for every micro-batch gives a schedule whose memory follows from the
 * distance of F and I alone.  W fills the slots left.  Warm-up and cool-down of the repeated block
 * have holes, which the authors squeeze out without raising the peak memory
 * (github.com/sail-sg/zero-bubble-pipeline-parallelism at 39f2c186, zerobubble/scheduler/
 * zbv_greedy.py):
 *
 *   1. W into the free slots; in warm-up and cool-down every op to its earliest free slot after its
 *      inputs that keeps the peak; then start every op as early as its order allows;
 *   2. W out; once more for the cool-down, W counted as run in the first slot that is free;
 *   3. W into the free slots, those of chunk 1 first.
 *
 * The steady state in between stays as the block has it, so for many micro-batches a short schedule
 * is squeezed and its steady state repeated.
 *
 * Cost: O(p^2) micro-batches and slots of the short schedule, times the length of a hole; then
 * O(ops).
 */
#include "schedule/build.h"

#include <string.h>

/* Ops of a rank in the order a micro-batch passes them. */
typedef enum {
    F_DOWN, /* F of chunk 0 */
    F_UP,   /* F of chunk 1 */
    I_DOWN, /* I of chunk 1 */
    I_UP,   /* I of chunk 0 */
    W_ANY,  /* W: of any chunk while squeezing, of chunk 1 at the end */
    W_UP,   /* W of chunk 0 */
    N_TYPES,
} Type;

#define SLOTS_PER_BLOCK 6 /* F F I I W W of one micro-batch */
#define EMPTY 0           /* a slot; else type + 1 */

/* Memory of a rank before a slot. */
typedef struct {
    int32_t in_flight;
    int32_t pending; /* I whose W did not run */
} State;

typedef struct {
    int32_t p, m;
    int32_t horizon; /* slots per rank */
    uint8_t *slot;   /* (owned) [rank * horizon + time]: type + 1 */
    int32_t *at;     /* (owned) [(rank * 6 + type) * m + k]: time of the k-th op; W_ANY has 2m */
    State *state;    /* (owned) [rank * horizon + time] */
    bool weights;    /* W have slots of their own; else they run where a slot is free */
    int32_t max_in_flight;
} Grid;

typedef void (*Pattern)(int32_t p, int32_t rank, int32_t first[4]);

/* First slot of each op  [2405.15362 figures 4 and 5; the gap avoids two ops in one slot]. */
static void
pattern_min(int32_t p, int32_t rank, int32_t first[4])
{
    const int32_t gap = p % 3 == 0 ? 2 : 0;

    first[F_DOWN] = rank;
    first[F_UP] = 2 * p - 1 - rank;
    first[I_DOWN] = 2 * p + gap + rank;
    first[I_UP] = 4 * p + gap - 1 - rank;
}

static void
pattern_half(int32_t p, int32_t rank, int32_t first[4])
{
    const int32_t gap = p % 2 == 0 ? 3 : 0;

    first[F_DOWN] = 2 * rank;
    first[F_UP] = 3 * p - 2 - rank;
    first[I_DOWN] = 3 * p + gap - 1 + 2 * rank;
    first[I_UP] = 6 * p + gap - 2 - rank;
}

static int32_t *
at_of(const Grid *g, int32_t rank, Type type, int32_t k)
{
    return &g->at[((int64_t)rank * 6 + type) * g->m + k];
}

static uint8_t *
slots_of(const Grid *g, int32_t rank)
{
    return &g->slot[(int64_t)rank * g->horizon];
}

static State *
states_of(const Grid *g, int32_t rank)
{
    return &g->state[(int64_t)rank * g->horizon];
}

/* --- memory --- */

static inline void
step(const Grid *g, State *now, uint8_t slot)
{
    if (slot == F_DOWN + 1 || slot == F_UP + 1) {
        now->in_flight++;
    } else if (slot == I_DOWN + 1 || slot == I_UP + 1) {
        now->pending++;
    } else if (slot != EMPTY || (!g->weights && now->pending > 0)) { /* a W */
        now->pending--;
        now->in_flight--;
    }
}

/* Fills the states of all ranks and the peak, which squeezing must keep. */
static void
measure(Grid *g)
{
    g->max_in_flight = 0;
    for (int32_t rank = 0; rank < g->p; rank++) {
        State now = {0, 0};
        const uint8_t *slot = slots_of(g, rank);
        State *state = states_of(g, rank);
        for (int32_t t = 0; t < g->horizon; t++) {
            state[t] = now;
            step(g, &now, slot[t]);
            g->max_in_flight = MAX(g->max_in_flight, now.in_flight);
        }
    }
}

/* Whether the op at @from may run at the free slot @to < @from without raising the peak.  From the
 * slot on where the state is what it was, nothing changes. */
static bool
fits(const Grid *g, int32_t rank, int32_t from, int32_t to)
{
    const uint8_t *slot = slots_of(g, rank);
    const State *state = states_of(g, rank);
    State now = state[to];

    for (int32_t t = to; t < g->horizon; t++) {
        if (t > from && now.in_flight == state[t].in_flight && now.pending == state[t].pending)
            return true;
        step(g, &now, t == to ? slot[from] : t == from ? EMPTY : slot[t]);
        if (now.in_flight > g->max_in_flight)
            return false;
    }
    return true;
}

static void
move(Grid *g, int32_t rank, int32_t from, int32_t to)
{
    uint8_t *slot = slots_of(g, rank);
    State *state = states_of(g, rank);
    State now = state[to];

    slot[to] = slot[from];
    slot[from] = EMPTY;
    for (int32_t t = to; t < g->horizon; t++) {
        if (t > from && now.in_flight == state[t].in_flight && now.pending == state[t].pending)
            return;
        state[t] = now;
        step(g, &now, slot[t]);
    }
}

/* --- W --- */

/* Puts W into the free slots, one kind or those of chunk 1 before those of chunk 0. */
static void
place_weights(Grid *g, bool by_chunk)
{
    for (int32_t rank = 0; rank < g->p; rank++) {
        uint8_t *slot = slots_of(g, rank);
        int32_t pending[2] = {0, 0}, n_done = 0;
        for (int32_t t = 0; n_done < 2 * g->m; t++) {
            g_assert(t < g->horizon);
            if (slot[t] == I_DOWN + 1 || slot[t] == I_UP + 1)
                pending[by_chunk && slot[t] == I_UP + 1]++;
            if (slot[t] != EMPTY || pending[0] + pending[1] == 0)
                continue;
            const int kind = pending[0] > 0 ? 0 : 1;
            pending[kind]--;
            slot[t] = (uint8_t)(kind == 0 ? W_ANY + 1 : W_UP + 1);
            if (!by_chunk)
                *at_of(g, rank, W_ANY, n_done) = t;
            n_done++;
        }
    }
}

static void
remove_weights(Grid *g)
{
    const size_t n = (size_t)g->p * (size_t)g->horizon;

    for (size_t i = 0; i < n; i++)
        if (g->slot[i] > I_UP + 1)
            g->slot[i] = EMPTY;
}

/* --- squeezing --- */

/* The slot before which the k-th op of a type cannot run: one after its last input. */
static int32_t
earliest(const Grid *g, int32_t rank, Type type, int32_t k, const int32_t inputs[2])
{
    int32_t last = k > 0 ? *at_of(g, rank, type, k - 1) : -1;

    if ((type == F_DOWN || type == I_DOWN) && rank > 0)
        last = MAX(last, *at_of(g, rank - 1, type, k));
    if ((type == F_UP || type == I_UP) && rank < g->p - 1)
        last = MAX(last, *at_of(g, rank + 1, type, k));
    if (type > F_DOWN && type < W_ANY)
        last = MAX(last, *at_of(g, rank, type - 1, k));
    if (type == W_ANY) {
        /* The k-th W belongs to the k-th I; inputs[] of them were of chunk 1 and 0. */
        const int32_t down = inputs[0] < g->m ? *at_of(g, rank, I_DOWN, inputs[0]) : INT32_MAX;
        const int32_t up = inputs[1] < g->m ? *at_of(g, rank, I_UP, inputs[1]) : INT32_MAX;
        last = MAX(last, MIN(down, up));
    }
    return last + 1;
}

/* Ops done of a rank, by type; and the I that the W done belong to. */
typedef struct {
    int32_t count[N_TYPES];
    int32_t inputs[2];
} Progress;

static void
advance(const Grid *g, Progress *progress, int32_t rank, Type type)
{
    if (type == W_ANY) {
        const int32_t *n = progress->inputs;
        const bool down = n[1] >= g->m || (n[0] < g->m && *at_of(g, rank, I_DOWN, n[0]) <
                                                              *at_of(g, rank, I_UP, n[1]));
        progress->inputs[down ? 0 : 1]++;
    }
    progress->count[type]++;
}

/* Moves ops to earlier holes, in the order of their slots, ranks in order within a slot. */
static void
squeeze(Grid *g)
{
    g_autofree Progress *progress = g_new0(Progress, (size_t)g->p);
    enum {
        WARM_UP,
        STEADY,
        COOL_DOWN
    } phase = WARM_UP;

    measure(g);
    for (int32_t t = 0; t < g->horizon; t++)
        for (int32_t rank = 0; rank < g->p; rank++) {
            if (slots_of(g, rank)[t] == EMPTY)
                continue;
            const Type type = (Type)(slots_of(g, rank)[t] - 1);
            const int32_t k = progress[rank].count[type];
            /* Steady: from the first micro-batch that is through, to the last that enters. */
            if (type == I_UP && rank == 0 && phase == WARM_UP)
                phase = STEADY;
            if (phase == STEADY && type == F_DOWN && k == g->m - 1)
                phase = COOL_DOWN;
            else if (phase == COOL_DOWN || (phase == WARM_UP && g->weights))
                for (int32_t to = earliest(g, rank, type, k, progress[rank].inputs); to < t; to++)
                    if (slots_of(g, rank)[to] == EMPTY && fits(g, rank, t, to)) {
                        *at_of(g, rank, type, k) = to;
                        move(g, rank, t, to);
                        break;
                    }
            advance(g, &progress[rank], rank, type);
        }
}

/* Starts every op as soon as its inputs are there and the op before it on its rank is done. */
static void
start_early(Grid *g)
{
    g_autofree Progress *progress = g_new0(Progress, (size_t)g->p);
    g_autofree int32_t *end = g_new0(int32_t, (size_t)g->p);
    const size_t n = (size_t)g->p * (size_t)g->horizon;
    g_autofree uint8_t *before = g_memdup2(g->slot, n);

    memset(g->slot, EMPTY, n);
    for (int32_t t = 0; t < g->horizon; t++)
        for (int32_t rank = 0; rank < g->p; rank++) {
            const uint8_t slot = before[(int64_t)rank * g->horizon + t];
            if (slot == EMPTY)
                continue;
            const Type type = (Type)(slot - 1);
            const int32_t k = progress[rank].count[type]++;
            /* W follow their I by the order of the rank. */
            const int32_t ready =
                type == W_ANY ? 0 : earliest(g, rank, type, k, progress[rank].inputs);
            const int32_t start = MAX(ready, end[rank]);
            *at_of(g, rank, type, k) = start;
            slots_of(g, rank)[start] = slot;
            end[rank] = start + 1;
        }
}

/* --- from a grid to a schedule --- */

static bool
grid_init(Grid *g, int32_t p, int32_t m, Pattern pattern, GError **error)
{
    /* The last I starts before 6p + 6m slots; every W then has room in 2m more. */
    *g = (Grid){.p = p, .m = m, .horizon = SLOTS_PER_BLOCK * (p + m) + 2 * m + 8};
    const size_t n = (size_t)p * (size_t)g->horizon;
    g->slot = g_try_malloc0(n);
    g->state = g_try_malloc_n(n, sizeof(State));
    g->at = g_try_malloc_n((size_t)p * (size_t)m, 6 * sizeof(int32_t));
    if (g->slot == NULL || g->state == NULL || g->at == NULL)
        return schedule_refuse(error, LIMIT, "no memory to squeeze a schedule of %d ranks", p);
    for (int32_t rank = 0; rank < p; rank++) {
        int32_t first[4];
        pattern(p, rank, first);
        for (int type = F_DOWN; type <= I_UP; type++)
            for (int32_t k = 0; k < m; k++) {
                const int32_t t = first[type] + SLOTS_PER_BLOCK * k;
                g_assert(slots_of(g, rank)[t] == EMPTY);
                slots_of(g, rank)[t] = (uint8_t)(type + 1);
                *at_of(g, rank, (Type)type, k) = t;
            }
    }
    return true;
}

static void
grid_clear(Grid *g)
{
    g_free(g->slot);
    g_free(g->state);
    g_free(g->at);
}

static void
grid_solve(Grid *g)
{
    for (int pass = 0; pass < 2; pass++) {
        g->weights = pass == 0;
        if (g->weights)
            place_weights(g, false);
        squeeze(g);
        if (!g->weights)
            place_weights(g, false);
        start_early(g);
        remove_weights(g);
    }
    place_weights(g, true);
}

/* The ops of a rank, SLOTS_PER_BLOCK * m of them, in order. */
static void
grid_ops(const Grid *g, int32_t rank, ScheduleOp *ops)
{
    static const ScheduleOp kinds[N_TYPES] = {
        [F_DOWN] = {.kind = SCHEDULE_OP_FORWARD},
        [F_UP] = {.kind = SCHEDULE_OP_FORWARD, .chunk = 1},
        [I_DOWN] = {.kind = SCHEDULE_OP_BACKWARD_INPUT, .chunk = 1},
        [I_UP] = {.kind = SCHEDULE_OP_BACKWARD_INPUT},
        [W_ANY] = {.kind = SCHEDULE_OP_BACKWARD_WEIGHT, .chunk = 1},
        [W_UP] = {.kind = SCHEDULE_OP_BACKWARD_WEIGHT},
    };
    int32_t count[N_TYPES] = {0};
    int64_t n = 0;

    for (int32_t t = 0; t < g->horizon; t++) {
        const uint8_t slot = slots_of(g, rank)[t];
        if (slot == EMPTY)
            continue;
        ops[n] = kinds[slot - 1];
        ops[n++].micro_batch = count[slot - 1]++;
    }
    g_assert(n == SLOTS_PER_BLOCK * (int64_t)g->m);
}

/* Whether the op list of @m micro-batches repeats itself, block for block, in its middle. */
static bool
is_steady(const ScheduleOp *ops, int32_t m)
{
    const int64_t middle = SLOTS_PER_BLOCK * (int64_t)(m / 2);

    for (int64_t i = middle - SLOTS_PER_BLOCK; i < middle + SLOTS_PER_BLOCK; i++) {
        const ScheduleOp a = ops[i], b = ops[i + SLOTS_PER_BLOCK];
        if (a.kind != b.kind || a.chunk != b.chunk || a.micro_batch + 1 != b.micro_batch)
            return false;
    }
    return true;
}

/* Copies @short_ops with its middle block repeated for @more micro-batches. */
static void
stretch(const ScheduleOp *short_ops, int32_t m, int32_t more, ScheduleOp *ops)
{
    const int64_t middle = SLOTS_PER_BLOCK * (int64_t)(m / 2);
    const int64_t n = SLOTS_PER_BLOCK * (int64_t)m;

    memcpy(ops, short_ops, (size_t)middle * sizeof(ScheduleOp));
    ops += middle;
    for (int32_t j = 0; j < more; j++)
        for (int64_t i = 0; i < SLOTS_PER_BLOCK; i++) {
            *ops = short_ops[middle + i];
            ops++->micro_batch += j;
        }
    for (int64_t i = middle; i < n; i++) {
        *ops = short_ops[i];
        ops++->micro_batch += more;
    }
}

/* Fills @schedule from a grid of @m <= n_micro_batches.  Returns false if its middle is not steady.
 */
static bool
fill_schedule(Schedule *schedule, const Grid *g)
{
    g_autofree ScheduleOp *ops = g_new(ScheduleOp, (size_t)g->m * SLOTS_PER_BLOCK);
    const int32_t more = schedule->n_micro_batches - g->m;
    const int64_t per_rank = SLOTS_PER_BLOCK * (int64_t)schedule->n_micro_batches;

    for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
        schedule->rank_begin[rank] = rank * per_rank;
        grid_ops(g, rank, ops);
        if (more > 0 && !is_steady(ops, g->m))
            return false;
        stretch(ops, g->m, more, schedule->ops + rank * per_rank);
    }
    schedule->rank_begin[schedule->n_ranks] = schedule->n_ranks * per_rank;
    return true;
}

static Schedule *
build(const ScheduleFamily *family, const ScheduleShape *shape, GError **error)
{
    const Pattern pattern = family == &schedule_family_v_half ? pattern_half : pattern_min;
    g_autoptr(Schedule) schedule = schedule_alloc_full(family, shape, 3, error);
    if (schedule == NULL)
        return NULL;
    int64_t m = 4 * shape->n_ranks + 8;
    for (;; m *= 2) {
        Grid grid;
        const int32_t n = (int32_t)MIN(m, shape->n_micro_batches);
        const bool fit = grid_init(&grid, (int32_t)shape->n_ranks, n, pattern, error);
        if (fit)
            grid_solve(&grid);
        const bool done = fit && fill_schedule(schedule, &grid);
        grid_clear(&grid);
        if (!fit)
            return NULL;
        if (done)
            return g_steal_pointer(&schedule);
    }
}

#define V_MEMORY_FACTS                                                                             \
    .splits_backward = true, .seeds_search = true, .min_chunks = 2, .max_chunks = 2,               \
    .placement = SCHEDULE_PLACEMENT_V, .torch_class = "ZBVZeroBubble", .torch_reads_ops = true,    \
    .build = build

const ScheduleFamily schedule_family_v_half = {
    .name = "v-half",
    .summary = "half the memory of 1F1B, two chunks in a V (V-Half, 2405.15362)",
    V_MEMORY_FACTS,
};

const ScheduleFamily schedule_family_v_min = {
    .name = "v-min",
    .summary = "a third of the memory of 1F1B, two chunks in a V (V-Min, 2405.15362)",
    V_MEMORY_FACTS,
};
