/*
 * tests/executor/hub_peers.h - threads that are the ranks of a hub, for tests of transports.
 */
#pragma once

#include "executor/transport/local.h"
#include "executor/transport/transport.h"

/* A rank's thread of a test. */
typedef struct {
    ExecTransport transport;
    int64_t n;
    float *data; /* (owned) */
    GError *error;
    bool ok;
    bool (*body)(ExecTransport *transport, float *data, int64_t n, GError **error);
} Peer;

static inline gpointer
peer_main(gpointer user_data)
{
    Peer *peer = user_data;

    peer->ok = peer->body(&peer->transport, peer->data, peer->n, &peer->error);
    return NULL;
}

/* Runs @body on all ranks of @hub, each with its own @n floats. */
static inline void
run_peers(ExecLocalHub *hub, Peer *peers, int32_t n_peers, int64_t n,
          bool (*body)(ExecTransport *, float *, int64_t, GError **))
{
    GThread *threads[16];

    g_assert_cmpint(n_peers, <=, 16);
    for (int32_t r = 0; r < n_peers; r++) {
        peers[r] = (Peer){.transport = exec_local_transport(hub, r), .n = n, .body = body};
        peers[r].data = g_new0(float, (size_t)MAX(n, 1));
        for (int64_t i = 0; i < n; i++)
            peers[r].data[i] = (float)((r + 1) * 100 + i % 50);
        threads[r] = g_thread_new("peer", peer_main, &peers[r]);
    }
    for (int32_t r = 0; r < n_peers; r++)
        g_thread_join(threads[r]);
}

static inline void
clear_peers(Peer *peers, int32_t n_peers)
{
    for (int32_t r = 0; r < n_peers; r++) {
        g_free(peers[r].data);
        g_clear_error(&peers[r].error);
    }
}

static inline ExecGroup
everyone(const ExecTransport *transport)
{
    static const int32_t ranks[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

    return (ExecGroup){.ranks = ranks, .n = transport->n_ranks, .index = transport->rank};
}
