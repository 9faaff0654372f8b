/*
 * executor/watch/member.h - a rank's line to the watcher of its job (watcher.h).
 *
 * Thread-safety: none; the process's main thread holds it while the rank computes in another.
 */
#ifndef EXECUTOR_WATCH_MEMBER_H
#define EXECUTOR_WATCH_MEMBER_H

#include "executor/device/backend.h"
#include "executor/watch/watch_wire.h"

G_BEGIN_DECLS

typedef struct ExecMember ExecMember;

/* @where  as EXEC_WATCH_VARIABLE.  NULL on EXEC_ERROR_FAILED: nobody listens at any address. */
ExecMember *exec_member_connect(const char *where, int32_t rank, GError **error);
void exec_member_free(ExecMember *member);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecMember, exec_member_free)

/* @record  magic, rank, pid and the starter's fields are filled in.  A watcher that is gone shows
 * in the next order. */
void exec_member_tell(ExecMember *member, ExecWatchRecord *record);

typedef enum {
    EXEC_ORDER_NONE,
    EXEC_ORDER_STOP,  /* after this step */
    EXEC_ORDER_BYE,   /* all ranks are done */
    EXEC_ORDER_ABORT, /* @error says why */
    EXEC_ORDER_LOST,  /* the watcher is gone: @error says so */
} ExecOrder;

/* The next order, if any, within @wait_ms.  With the last two the process that started this one is
 * made to go on, should it be stopped: it has others to end, and itself. */
ExecOrder exec_member_order(ExecMember *member, int wait_ms, GError **error);

G_END_DECLS

#endif /* EXECUTOR_WATCH_MEMBER_H */
