/*
 * schedule/zb_improve.c - local search on the critical path, for zb-auto.
 *
 * The objective only falls if the critical path gets shorter: the chain of ops without slack that
 * ends with the last op of the longest rank.  Between two messages it runs through a block: ops of
 * one rank without idle time between them.  Only taking an op out of a block, in front of its first
 * or behind its last op, can shorten the path [Brucker, Jurisch, Sievers 1994: block theorem of job
 * shops]; a W can also go into idle time of its rank further away.  So a move is one op of the path
 * to another place of its rank.  Where B is quicker than I and W, a move may also split a B, which
 * sends its gradient sooner, or make one of I and the W behind it.
 *
 * Moves are taken at random (seeded) and accepted if the order is no worse than it is now, or than
 * it was some moves ago  [late acceptance, Burke, Bykov 2017]; the best order seen is the answer.
 */
#include "schedule/zb_order.h"

#include <string.h>

/* How many moves ago an order may not be worse. */
#define HISTORY 64

typedef struct {
    const ZbProblem *problem; /* (borrowed) */
    ZbOrder *order;           /* (borrowed) the current one */
    ZbTimes *times;           /* (borrowed) of the current order */
    uint64_t random;
    GArray *blocks; /* of Block: the critical path, last block first */
} Search;

/* Ops first to last of a rank are on the path. */
typedef struct {
    int32_t rank;
    int64_t first, last;
} Block;

typedef enum {
    MOVE_SHIFT, /* the op at from goes to place to */
    MOVE_SPLIT, /* the B at from becomes I and W */
    MOVE_FUSE,  /* the I at from and the W behind it become B */
} MoveKind;

typedef struct {
    MoveKind kind;
    int32_t rank;
    int64_t from, to;
} Move;

/* --- the critical path --- */

static int64_t
start_of(const Search *s, int32_t rank, int64_t i)
{
    return s->times->start_ns[rank * s->problem->max_length + i];
}

static int64_t
end_of(const Search *s, int32_t rank, int64_t i)
{
    const uint8_t type = zb_order_rank(s->order, s->problem, rank)[i];

    return start_of(s, rank, i) + zb_op(s->problem, rank, type)->ns;
}

/* The rank that ends last, or whose own span is the longest. */
static int32_t
longest_rank(const Search *s, bool span)
{
    int32_t best = 0;
    int64_t longest = -1;

    for (int32_t r = 0; r < s->problem->p; r++) {
        const int64_t ns = s->times->end_ns[r] - (span ? s->problem->first_ns[r] : 0);
        if (ns > longest) {
            longest = ns;
            best = r;
        }
    }
    return best;
}

/* Fills s->blocks.  Invariant: op i of @rank starts when it does because of op i - 1, or of its
 * message, or because time begins. */
static void
find_path(Search *s, int32_t rank)
{
    const ZbProblem *problem = s->problem;
    int64_t last = s->order->length[rank] - 1;

    g_array_set_size(s->blocks, 0);
    for (;;) {
        int64_t i = last;
        while (i > 0 && end_of(s, rank, i - 1) == start_of(s, rank, i))
            i--;
        const Block block = {rank, i, last};
        g_array_append_val(s->blocks, block);
        const ZbOp *op = zb_op(problem, rank, zb_order_rank(s->order, problem, rank)[i]);
        if (op->in < 0)
            return;
        const int32_t k = s->times->channel_index[rank * problem->max_length + i];
        last = s->times->sender[(int64_t)op->in * problem->m + k];
        rank = op->in_rank;
    }
}

/* --- moves --- */

static void
shift(uint8_t *types, int64_t from, int64_t to)
{
    const uint8_t type = types[from];

    if (from < to)
        memmove(&types[from], &types[from + 1], (size_t)(to - from));
    else
        memmove(&types[to + 1], &types[to], (size_t)(from - to));
    types[to] = type;
}

static void
split(uint8_t *types, int64_t *length, int64_t at)
{
    const int c = zb_chunk(types[at]);

    memmove(&types[at + 1], &types[at], (size_t)(*length - at));
    types[at] = zb_type(SCHEDULE_OP_BACKWARD_INPUT, c);
    types[at + 1] = zb_type(SCHEDULE_OP_BACKWARD_WEIGHT, c);
    ++*length;
}

static void
fuse(uint8_t *types, int64_t *length, int64_t at)
{
    types[at] = zb_type(SCHEDULE_OP_BACKWARD, zb_chunk(types[at]));
    --*length;
    memmove(&types[at + 1], &types[at + 2], (size_t)(*length - at - 1));
}

static void
apply(const Search *s, const Move *move)
{
    uint8_t *types = zb_order_rank(s->order, s->problem, move->rank);
    int64_t *length = &s->order->length[move->rank];

    if (move->kind == MOVE_SHIFT)
        shift(types, move->from, move->to);
    else if (move->kind == MOVE_SPLIT)
        split(types, length, move->from);
    else
        fuse(types, length, move->from);
}

static void
undo(const Search *s, const Move *move)
{
    static const MoveKind inverse[] = {MOVE_SHIFT, MOVE_FUSE, MOVE_SPLIT};
    const Move back = {inverse[move->kind], move->rank, move->to, move->from};

    apply(s, &back);
}

/* B to I and W, or back; returns false if the op at @i is neither. */
static bool
pick_split(const Search *s, int32_t rank, int64_t i, Move *move)
{
    const uint8_t *types = zb_order_rank(s->order, s->problem, rank);
    const int kind = zb_kind(types[i]);
    const uint8_t weight = zb_type(SCHEDULE_OP_BACKWARD_WEIGHT, zb_chunk(types[i]));

    if (kind == SCHEDULE_OP_BACKWARD)
        *move = (Move){MOVE_SPLIT, rank, i, i};
    else if (kind == SCHEDULE_OP_BACKWARD_INPUT && i + 1 < s->order->length[rank] &&
             types[i + 1] == weight)
        *move = (Move){MOVE_FUSE, rank, i, i};
    else
        return false;
    return true;
}

/* The nearest place after (@step 1) or before (@step -1) @from where the rank is idle, beyond
 * @skip others; -1 if there is none. */
static int64_t
find_gap(const Search *s, int32_t rank, int64_t from, int step, int64_t skip)
{
    const int64_t length = s->order->length[rank];

    for (int64_t i = from; i > 0 && i < length; i += step)
        if (end_of(s, rank, i - 1) < start_of(s, rank, i) && skip-- == 0)
            return i;
    return -1;
}

static bool
pick_move(Search *s, Move *move)
{
    const guint n = s->blocks->len;
    const Block *block = &g_array_index(s->blocks, Block, (guint)zb_random_below(&s->random, n));
    const uint8_t *types = zb_order_rank(s->order, s->problem, block->rank);
    const int64_t i = block->first + zb_random_below(&s->random, block->last - block->first + 1);
    const int64_t choice = zb_random_below(&s->random, 8);
    int64_t to = -1;

    if (s->problem->may_fuse && zb_random_below(&s->random, 4) == 0)
        return pick_split(s, block->rank, i, move);
    if (choice < 2) {
        to = block->last;
    } else if (choice < 4) {
        to = block->first;
    } else if (choice < 5) {
        to = i + (zb_random_below(&s->random, 2) == 0 ? 1 : -1);
    } else if (choice < 7 && zb_kind(types[i]) == SCHEDULE_OP_BACKWARD_WEIGHT) {
        const int step = zb_random_below(&s->random, 2) == 0 ? 1 : -1;
        to = find_gap(s, block->rank, i, step, zb_random_below(&s->random, 4));
        if (to > i)
            to--;
    } else {
        to = block->first + zb_random_below(&s->random, block->last - block->first + 1);
    }
    if (to < 0 || to >= s->order->length[block->rank] || to == i)
        return false;
    *move = (Move){MOVE_SHIFT, block->rank, i, to};
    return true;
}

/* --- the search --- */

/* The rank whose path is to be shortened next. */
static int32_t
path_rank(Search *s, ZbValue value)
{
    const bool span = s->problem->objective == SCHEDULE_OBJECTIVE_SPAN;

    if (zb_random_below(&s->random, 8) == 0)
        return (int32_t)zb_random_below(&s->random, s->problem->p);
    /* Where the objective cannot shrink, the other one may. */
    return longest_rank(s, span != (value.ns <= s->problem->bound_ns));
}

void
zb_improve(const ZbProblem *problem, ZbOrder *order, ZbTimes *times, ZbValue *value, int64_t work,
           uint64_t seed)
{
    const int64_t n_ops = zb_order_n_ops(order, problem);
    ZbOrder best;
    Search s = {.problem = problem, .order = order, .times = times, .random = seed};
    ZbValue history[HISTORY], now;

    if (!zb_order_init(&best, problem, NULL))
        return;
    zb_order_copy(&best, order, problem);
    if (!zb_evaluate(problem, order, times, &now)) {
        zb_order_clear(&best);
        return;
    }
    *value = now;
    for (int i = 0; i < HISTORY; i++)
        history[i] = now;
    s.blocks = g_array_new(FALSE, FALSE, sizeof(Block));
    find_path(&s, path_rank(&s, now));
    for (int64_t i = 0; work > 0 && !zb_value_is_optimal(problem, *value); i++) {
        Move move;
        ZbValue next;
        work -= n_ops / 64 + 1;
        if (!pick_move(&s, &move))
            continue;
        apply(&s, &move);
        bool good = zb_order_fits(problem, order, move.rank);
        work -= order->length[move.rank];
        if (good) {
            good = zb_evaluate(problem, order, times, &next);
            work -= n_ops;
            good = good && (zb_value_compare(next, now) <= 0 ||
                            zb_value_compare(next, history[i % HISTORY]) <= 0);
        }
        if (good) {
            now = next;
            if (zb_value_compare(now, *value) < 0) {
                *value = now;
                zb_order_copy(&best, order, problem);
            }
        } else {
            undo(&s, &move);
            zb_evaluate(problem, order, times, &next);
            work -= n_ops;
        }
        history[i % HISTORY] = now;
        find_path(&s, path_rank(&s, now));
    }
    zb_order_copy(order, &best, problem);
    g_array_unref(s.blocks);
    zb_order_clear(&best);
}
