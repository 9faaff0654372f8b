/*
 * tests/executor/fake_streams.h - what the emulated GPU's streams do: fake_streams.c has the
 * functions of the CUDA runtime for streams, events and graphs.
 *
 * A stream does its work at once, on the caller's thread, unless something in it has to wait: an
 * event that has not happened yet, or a function of cudaLaunchHostFunc() (fake_nccl.c).  Then it
 * gets a thread, and what follows is queued behind.  FAKE_CUDA's async=1 queues everything, and
 * every task sleeps a little first, so that what was not waited for is seen too early.  host_us=N
 * queues everything, too, and the host needs N us to queue a task.  device_us=N makes events of one
 * stream N us apart for each task between them, however long the CPU has taken.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A number of the list FAKE_CUDA. */
int64_t fake_knob(const char *name, int64_t standard);

/* Whether everything is queued. */
int fake_streams_queue(void);

/* What opens or closes something of a device ends the captures of other threads in the same context: so an H100
 * did (docs/gpu.md).  Which calls do is not known; here those of pools, page-locked memory and cuBLASLt's handles. */
void fake_end_captures_of_others(void);

/* @run(copy of the @n_bytes of @data) in the order of the stream; into its graph while it is
 * captured. */
void fake_submit(void *stream, void (*run)(void *data), const void *data, size_t n_bytes);

/* The task at work takes @us longer. */
void fake_take(int64_t us);

/* A stream of @context; and sets the context in which this thread makes streams and events from now
 * on.  NULL: the primary one. */
void *fake_stream_new(const void *context);
void fake_set_context(const void *context);

/* Whether the stream is captured: functions that CUDA refuses then. */
int fake_stream_is_captured(void *stream);

#ifdef __cplusplus
}
#endif
