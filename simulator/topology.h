/*
 * simulator/topology.h - SimTopology: which links the messages between ranks share.
 *
 * Two levels: a message leaves its rank through the rank's port and enters the other's; between
 * nodes it also leaves one node and enters another.  Both directions of a link are apart (full
 * duplex).  A capacity is the number of messages that a link carries at the speed that each has
 * alone; more than that share it, max-min fair (resource.h).
 */
#ifndef SIMULATOR_TOPOLOGY_H
#define SIMULATOR_TOPOLOGY_H

#include <glib.h>
#include <stdint.h>

G_BEGIN_DECLS

typedef struct {
    const int32_t *node;  /* (borrowed, nullable) [rank] in 0 to n_ranks - 1; NULL: all are one */
    double port_capacity; /* of each rank, each way; 0: never fills */
    double node_capacity; /* of each node, each way; 0: never fills */
} SimTopology;

G_END_DECLS

#endif /* SIMULATOR_TOPOLOGY_H */
