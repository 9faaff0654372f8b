#include "executor/transport/seal.h"

#include <string.h>

#define N_LANES 4

/* An odd factor is a bijection; the rotation brings high bits to where they meet all others. */
static inline uint64_t
mix(uint64_t lane, uint64_t word)
{
    const uint64_t product = (lane ^ word) * UINT64_C(0x9e3779b97f4a7c15);

    return product << 29 | product >> 35;
}

uint64_t
exec_seal(const ExecMessage *message, const void *data)
{
    const char *at = data;
    int64_t left = message->n_bytes;
    uint64_t lanes[N_LANES] = {
        (uint64_t)(uint32_t)message->from << 32 | (uint32_t)message->to,
        (uint64_t)message->tag,
        (uint64_t)message->n_bytes,
        EXEC_WIRE_VERSION,
    };

    for (; left >= (int64_t)sizeof lanes; left -= (int64_t)sizeof lanes, at += sizeof lanes) {
        uint64_t words[N_LANES];
        memcpy(words, at, sizeof words);
#pragma GCC unroll 4
        for (int i = 0; i < N_LANES; i++)
            lanes[i] = mix(lanes[i], words[i]);
    }
    uint64_t rest[N_LANES] = {0}, seal = 0;
    if (left > 0)
        memcpy(rest, at, (size_t)left);
    for (int i = 0; i < N_LANES; i++)
        seal = mix(seal, mix(lanes[i], rest[i]));
    return mix(seal, seal >> 32);
}

bool
exec_check_seal(const ExecMessage *message, const void *data, uint64_t seal, GError **error)
{
    if (exec_seal(message, data) == seal)
        return true;
    return EXEC_FAIL(error, EXEC_ERROR_FAILED,
                     "a message of rank %d to rank %d (tag %" G_GINT64_FORMAT ", %" G_GINT64_FORMAT
                     " bytes) was damaged on its way: its checksum is not the one that was sent",
                     message->from, message->to, message->tag, message->n_bytes);
}

bool
exec_check_wire_version(int32_t rank, int32_t peer, uint64_t version, GError **error)
{
    if (version == EXEC_WIRE_VERSION)
        return true;
    return EXEC_FAIL(error, EXEC_ERROR_FAILED,
                     "rank %d sends messages of version %" G_GUINT64_FORMAT
                     ", rank %d those of version %d: all ranks "
                     "need the same degas",
                     peer, version, rank, EXEC_WIRE_VERSION);
}
