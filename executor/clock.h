/*
 * executor/clock.h - the monotonic clock of every trace.
 */
#ifndef EXECUTOR_CLOCK_H
#define EXECUTOR_CLOCK_H

#include <stdint.h>

int64_t exec_now_ns(void);

#endif /* EXECUTOR_CLOCK_H */
