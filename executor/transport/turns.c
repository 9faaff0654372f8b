#include "executor/transport/turns.h"

#include "executor/device/clock.h"

struct ExecTurns {
    GMutex mutex;
    GCond changed;
    int turn; /* the op that computes: 0 or 1 */
    bool has_ended[2];
    bool at_work;
    int64_t since_ns;   /* when the turn began */
    int64_t busy_ns[2]; /* of turns that have ended */
    GArray *exchanges;  /* (owned) of ExecTurnExchange */
};

ExecTurns *
exec_turns_new(void)
{
    ExecTurns *turns = g_new0(ExecTurns, 1);

    g_mutex_init(&turns->mutex);
    g_cond_init(&turns->changed);
    turns->exchanges = g_array_new(FALSE, FALSE, sizeof(ExecTurnExchange));
    return turns;
}

void
exec_turns_free(ExecTurns *turns)
{
    if (turns == NULL)
        return;
    g_mutex_clear(&turns->mutex);
    g_cond_clear(&turns->changed);
    g_array_unref(turns->exchanges);
    g_free(turns);
}

/* --- the turn; the mutex is held --- */

static void
give_turn(ExecTurns *turns, int to)
{
    const int64_t now = exec_now_ns();

    turns->busy_ns[turns->turn] += now - turns->since_ns;
    turns->since_ns = now;
    turns->turn = to;
    g_cond_broadcast(&turns->changed);
}

static void
await_turn(ExecTurns *turns, int op)
{
    while (turns->turn != op)
        g_cond_wait(&turns->changed, &turns->mutex);
}

/* --- ops --- */

/* The second op on its thread. */
typedef struct {
    ExecTurns *turns;
    ExecTurnFunc run;
    void *data;
} Second;

/* Runs an op that has the turn or waits for it. */
static void
run_op(ExecTurns *turns, int op, ExecTurnFunc run, void *data)
{
    g_mutex_lock(&turns->mutex);
    await_turn(turns, op);
    g_mutex_unlock(&turns->mutex);
    run(data);
    g_mutex_lock(&turns->mutex);
    turns->has_ended[op] = true;
    give_turn(turns, 1 - op);
    g_mutex_unlock(&turns->mutex);
}

static gpointer
run_second(gpointer user_data)
{
    const Second *second = user_data;

    run_op(second->turns, 1, second->run, second->data);
    return NULL;
}

bool
exec_turns_run(ExecTurns *turns, ExecTurnFunc first, void *first_data, ExecTurnFunc second,
               void *second_data, int64_t busy_ns[2], GError **error)
{
    Second on_thread = {turns, second, second_data};

    turns->turn = 0;
    turns->has_ended[0] = turns->has_ended[1] = false;
    turns->busy_ns[0] = turns->busy_ns[1] = 0;
    turns->since_ns = exec_now_ns();
    g_array_set_size(turns->exchanges, 0);
    turns->at_work = true;
    GThread *thread = g_thread_try_new("second op", run_second, &on_thread, error);
    if (thread == NULL) {
        turns->at_work = false;
        return false;
    }
    run_op(turns, 0, first, first_data);
    g_thread_join(thread);
    turns->at_work = false;
    busy_ns[0] = turns->busy_ns[0];
    busy_ns[1] = turns->busy_ns[1];
    return true;
}

bool
exec_turns_at_work(const ExecTurns *turns)
{
    return turns->at_work;
}

void
exec_turns_pass(ExecTurns *turns)
{
    g_mutex_lock(&turns->mutex);
    const int op = turns->turn;
    if (!turns->has_ended[1 - op]) {
        give_turn(turns, 1 - op);
        await_turn(turns, op);
    }
    g_mutex_unlock(&turns->mutex);
}

void
exec_turns_note(ExecTurns *turns, int64_t begin_ns, int64_t end_ns)
{
    const ExecTurnExchange exchange = {begin_ns, end_ns, turns->turn};

    g_array_append_val(turns->exchanges, exchange);
}

const GArray *
exec_turns_exchanges(const ExecTurns *turns)
{
    return turns->exchanges;
}
