/* Compile time: what executor/cuda/nccl_comm.h declares of NCCL's interface is what nccl.h does. */
#if __has_include(<nccl.h>)
#include <nccl.h>
#include <stddef.h>

#include "executor/cuda/nccl_comm.h"

_Static_assert(EXEC_NCCL_SUCCESS == (int)ncclSuccess, "");
_Static_assert(EXEC_NCCL_SYSTEM_ERROR == (int)ncclSystemError, "");
_Static_assert(EXEC_NCCL_REMOTE_ERROR == (int)ncclRemoteError, "");
_Static_assert(EXEC_NCCL_IN_PROGRESS == (int)ncclInProgress, "");
_Static_assert(EXEC_NCCL_UINT8 == (int)ncclUint8, "");
_Static_assert(EXEC_NCCL_FLOAT32 == (int)ncclFloat32, "");
_Static_assert(EXEC_NCCL_BFLOAT16 == (int)ncclBfloat16, "");
_Static_assert(EXEC_NCCL_SUM == (int)ncclSum, "");
_Static_assert(EXEC_NCCL_UNDEFINED == NCCL_CONFIG_UNDEF_INT, "");
_Static_assert(EXEC_NCCL_VERSION == NCCL_VERSION(2, 18, 0), "");
_Static_assert(EXEC_NCCL_VERSION <= NCCL_VERSION_CODE, "");
_Static_assert(sizeof(ExecNcclId) == sizeof(ncclUniqueId), "");
_Static_assert(sizeof(ExecNcclConfig) <= sizeof(ncclConfig_t), "");
_Static_assert(offsetof(ExecNcclConfig, magic) == offsetof(ncclConfig_t, magic), "");
_Static_assert(offsetof(ExecNcclConfig, version) == offsetof(ncclConfig_t, version), "");
_Static_assert(offsetof(ExecNcclConfig, blocking) == offsetof(ncclConfig_t, blocking), "");
_Static_assert(offsetof(ExecNcclConfig, net_name) == offsetof(ncclConfig_t, netName), "");
_Static_assert(offsetof(ExecNcclConfig, split_share) == offsetof(ncclConfig_t, splitShare), "");

/* Arguments by NCCL's types where ours differ in name only. */
int
nccl_interface(ncclComm_t comm, float *x, ncclUniqueId *id, cudaStream_t stream)
{
    int n = 0;
    size_t size = 0;
    ncclResult_t result = ncclGetVersion(&n), now = ncclSuccess;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

    result = ncclGetUniqueId(id);
    result = ncclCommInitRankConfig(&comm, n, *id, n, &config);
    result = ncclCommFinalize(comm);
    result = ncclCommDestroy(comm);
    result = ncclCommAbort(comm);
    result = ncclCommGetAsyncError(comm, &now);
    result = ncclAllReduce(x, x, size, ncclFloat32, ncclSum, comm, stream);
    result = ncclReduceScatter(x, x, size, ncclFloat32, ncclSum, comm, stream);
    result = ncclAllGather(x, x, size, ncclUint8, comm, stream);
    result = ncclBroadcast(x, x, size, ncclUint8, n, comm, stream);
    result = ncclSend(x, size, ncclUint8, n, comm, stream);
    result = ncclRecv(x, size, ncclUint8, n, comm, stream);
    return (int)result + (ncclGetErrorString(result) == ncclGetLastError(comm));
}
#endif
