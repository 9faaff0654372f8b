/*
 * cli/request/interrupt.h - Ctrl-C of commands that can stop early with what they have.
 *
 * Such a command writes the best so far and ends with CMD_ERROR_INTERRUPTED (exit status 9).  A
 * second signal ends the program at once, as it would have without this module.
 */
#ifndef CLI_REQUEST_INTERRUPT_H
#define CLI_REQUEST_INTERRUPT_H

#include <glib.h>

G_BEGIN_DECLS

/*
 * From now on SIGINT and SIGTERM only set a flag.  Returns: (borrowed) it, forever: not 0 once a
 * signal came; to be read with g_atomic_int_get(), from any thread.
 */
const int *interrupt_watch(void);

G_END_DECLS

#endif /* CLI_REQUEST_INTERRUPT_H */
