/*
 * executor/transport/turns.h - ExecTurns: two ops of a rank that compute in turns.
 *
 * The ops of an overlapped pair (Schedule.overlap_pairs) run each on a thread of its own, but only one of
 * them computes at a time: when it has begun an exchange with other ranks (exec_comm_exchange()), the other
 * one goes on, up to its next exchange or its end.  So what one waits for, the other computes behind.
 *
 * Who has the turn depends on the order of exchanges alone, never on times.  All ranks that exchange run the
 * same pairs, so that each begins its exchanges, and all other collectives in between, in the same order.
 *
 * Cost: a thread for each pair, and two wake-ups of a thread for each exchange, some 10 us each.
 *
 * Private to executor/.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct ExecTurns ExecTurns;

/* The computation of an op. */
typedef void (*ExecTurnFunc)(void *user_data);

/* An exchange of one of the ops, on exec_now_ns()'s clock. */
typedef struct {
    int64_t begin_ns, end_ns;
    int op; /* 0 or 1 */
} ExecTurnExchange;

/* Returns: (owned) */
ExecTurns *exec_turns_new(void);
void exec_turns_free(ExecTurns *turns);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecTurns, exec_turns_free)

/* Runs both ops of a pair, the first one on this thread; it has the first turn.  Returns when both have
 * ended.  @busy_ns  (out) for how long each has had the turn.  Errors: G_THREAD_ERROR, before either has begun. */
bool exec_turns_run(ExecTurns *turns, ExecTurnFunc first, void *first_data, ExecTurnFunc second,
                    void *second_data, int64_t busy_ns[2], GError **error);

/* Whether a pair is at work. */
bool exec_turns_at_work(const ExecTurns *turns);

/* Gives the turn to the other op, if that has not ended, and returns when it has come back. */
void exec_turns_pass(ExecTurns *turns);

/* Notes an exchange of the op that has the turn. */
void exec_turns_note(ExecTurns *turns, int64_t begin_ns, int64_t end_ns);

/* Returns: (borrowed) of ExecTurnExchange: those of the last pair, in the order of their ends. */
const GArray *exec_turns_exchanges(const ExecTurns *turns);
