/*
 * executor/device/clock.h - the monotonic clock of every trace.
 */
#ifndef EXECUTOR_DEVICE_CLOCK_H
#define EXECUTOR_DEVICE_CLOCK_H

#include <stdint.h>

int64_t exec_now_ns(void);

#endif /* EXECUTOR_DEVICE_CLOCK_H */
