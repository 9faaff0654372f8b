#include "cli/request/interrupt.h"

#include <signal.h>

/* The one thing a signal handler may write: a lock-free atomic. */
static int is_interrupted;

static void
note(int signal_number)
{
    g_atomic_int_set(&is_interrupted, 1);
}

const int *
interrupt_watch(void)
{
    struct sigaction action = {.sa_handler = note, .sa_flags = (int)SA_RESETHAND | SA_RESTART};

    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    return &is_interrupted;
}
