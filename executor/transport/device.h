/*
 * executor/transport/device.h - a transport for tensors in device memory, around one for host
 * memory.
 *
 * Between ranks of one process that share a device, messages stay on the device: the sender posts a
 * copy, only its handle (ExecParcel) goes through the inner transport, and the receiver's stream
 * waits for the copy, not the host.  Collectives are those of collective.h, made of such messages,
 * and a kernel adds: their order of additions, and so their bits, are those of `local`.
 *
 * Between other ranks everything goes through host memory: download, the inner transport's call,
 * upload.
 *
 * Private to executor/.
 */
#pragma once

#include "executor/transport/transport.h"

/*
 * Returns: (owned) the end to use in place of @inner.
 *
 * @inner, @backend  (borrowed) of the same rank; must outlive the result.
 * @shares_device    whether all ranks are threads of this process on one device.
 */
ExecTransport *exec_device_transport_new(ExecTransport *inner, ExecBackend *backend,
                                         bool shares_device);
void exec_device_transport_free(ExecTransport *transport);
