/*
 * executor/device/device_info.h - what a device and its software say about themselves, for a profile.
 *
 * Filled by the plugin (cuda_device.c); no type of CUDA is in it.  Private to executor/.
 */
#ifndef EXECUTOR_DEVICE_DEVICE_INFO_H
#define EXECUTOR_DEVICE_DEVICE_INFO_H

#include "executor/device/backend.h"

G_BEGIN_DECLS

/* 0 or an empty text: the device does not say. */
typedef struct {
    char name[128];       /* "NVIDIA H200" */
    char driver_name[64]; /* "570.86.10" */
    int driver, runtime;  /* CUDA versions, 12040 is 12.4 */
    int64_t blas;         /* cuBLASLt's, 130000 is 13.0.0 */
    int capability;       /* 90 is 9.0 */
    int n_devices;        /* on this machine */
    int n_multiprocessors;
    int64_t memory_bytes, l2_bytes;
    double clock_hz, memory_clock_hz; /* highest */
    int memory_bus_bits;
    double clock_now_hz, memory_clock_now_hz; /* at the call, by the driver's management library */
} ExecDeviceInfo;

/* False on EXEC_ERROR_MISSING. */
bool exec_cuda_device_info(int device, ExecDeviceInfo *info, GError **error);

G_END_DECLS

#endif /* EXECUTOR_DEVICE_DEVICE_INFO_H */
