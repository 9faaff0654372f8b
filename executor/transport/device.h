/*
 * executor/transport/device.h - a transport between ranks whose tensors the host cannot read.
 *
 * Wraps a transport for host memory.  Messages between ranks of one process that share a device
 * stay on it: the sender posts a copy, only its handle (ExecParcel) travels, and the receiver's
 * stream waits for it, not the host.  Their collectives are those of collective.h out of such
 * messages, with additions by a kernel: the order, and so the bits, of `local`.  Between other
 * ranks everything is staged through host memory: download, the inner transport's call, upload.
 *
 * Private to executor/.
 */
#ifndef EXECUTOR_TRANSPORT_DEVICE_H
#define EXECUTOR_TRANSPORT_DEVICE_H

#include "executor/transport/transport.h"

G_BEGIN_DECLS

typedef struct ExecDeviceTransport ExecDeviceTransport;

/*
 * @inner  (borrowed) and @backend (borrowed) belong to the same rank and outlive the wrapper.
 * @shares_device  all ranks are threads of this process on one device.
 */
ExecDeviceTransport *exec_device_transport_new(ExecTransport *inner, ExecBackend *backend,
                                               bool shares_device);
void exec_device_transport_free(ExecDeviceTransport *device);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecDeviceTransport, exec_device_transport_free)

/* The endpoint to use in place of @inner. */
ExecTransport *exec_device_transport(ExecDeviceTransport *device);

G_END_DECLS

#endif /* EXECUTOR_TRANSPORT_DEVICE_H */
