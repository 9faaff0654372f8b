/*
 * executor/transport/seal.h - the checksum of a message between processes, and the version of what
 * they send each other.
 *
 * Transports mpi and tcp send every message with its seal, and its receiver compares: a bit that
 * has changed on the way, or bytes that belong to another message, end the run with the names of
 * both ranks instead of spoiling the weights.  Ranks that are threads (local.h) copy within one
 * memory, where a message is no more at risk than every other tensor: they have no seals.  Neither
 * have what NCCL and MPI's own collectives move, which never passes through our hands.
 *
 * A seal is a mix of 64 bits in four lanes of 64-bit words.  Each step is a bijection of the lane
 * for a given word and of the word for a given lane, so damage within one aligned word is always
 * found; any other is missed about once in 2^64.  It is no defence against an adversary.  It costs
 * 0.08 ns per byte at each end, as copying bytes that no cache holds does [measured].
 *
 * Private to executor/.
 */
#pragma once

#include "executor/transport/transport.h"

/* What ranks send each other: 1 had no seals. */
#define EXEC_WIRE_VERSION 2

/* A message as both of its ends describe it. */
typedef struct {
    int32_t from, to;
    int64_t tag, n_bytes;
} ExecMessage;

/* Returns the seal of @message, whose bytes are @data. */
uint64_t exec_seal(const ExecMessage *message, const void *data);

/* Whether @seal is that of the message; else EXEC_ERROR_FAILED, which names ranks and tag. */
bool exec_check_seal(const ExecMessage *message, const void *data, uint64_t seal, GError **error);

/* Whether @version is ours; else EXEC_ERROR_FAILED, which names ranks and versions. */
bool exec_check_wire_version(int32_t rank, int32_t peer, uint64_t version, GError **error);
