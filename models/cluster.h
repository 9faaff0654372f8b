/*
 * models/cluster.h - the machine: devices, nodes, and the levels of their network.
 *
 * It holds numbers of data sheets only; how much of them software reaches is said by a profile
 * (profiles/profile.h).  A cluster may have devices of several kinds, nodes of several sizes and
 * links of several rates.  Devices are numbered node by node, and rank i runs on device i.
 *
 * Levels go from the innermost (devices of one board or NVLink domain) outwards; two devices talk
 * over the innermost level whose groups hold both.  A level's numbers hold for all nodes but for
 * those whose "links" give others: two kinds of node on one network, each with adapters of its own.
 * Two devices talk at the rate of the slower end.
 *
 * JSON (every key with its unit; "?" may be absent and is then 0, null or empty):
 *
 *   {"name": "p3.16xlarge",
 *    "devices": [{"name": "V100-SXM2-16GB", "flops_per_s": {"fp32": 15.7e12, "fp16": 125e12},
 *                 "vector_flops_per_s": 15.7e12, "memory_bytes": N, "memory_bytes_per_s": X,
 *                 "n_multiprocessors"?: N, "l2_bytes"?: N, "power_w"?: X, "price_per_hour"?: X}],
 *    "nodes": [{"device": "V100-SXM2-16GB", "n_devices": 8, "n_nodes": 48,
 *               "links"?: [{"level": "ethernet", "bytes_per_s"?: X, "shared_bytes_per_s"?: X,
 *                           "latency_s"?: X}, ...]}],
 *    "levels": [{"name": "nvlink", "group_devices": 8, "bytes_per_s": X, "shared_bytes_per_s"?: X,
 *                "latency_s": X}, {"name": "ethernet", "group_devices": 0, ...}],
 *    "price_per_device_hour"?: X, "currency"?: "USD", "price_source"?: "...",
 *    "sources"?: ["...", ...]}
 *
 * "device" of a group of nodes is the name of a device, "level" of a link the name of a level; what
 * a link leaves out has the level's value.  group_devices grow strictly from level to level; the
 * last level's, and no other, is 0.  A device without price_per_hour costs price_per_device_hour.
 *
 * Errors: JSON_ERROR_INVALID with file and path.  Thread-safety: values; no globals.
 */
#pragma once

#include "base/dtype.h"
#include "base/json.h"

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

/* One kind of device. */
typedef struct {
    char *name;                  /* (owned) "V100-SXM2-16GB" */
    double flops_per_s[DTYPE_N]; /* dense peak of matrix units; 0 where unsupported */
    double vector_flops_per_s;   /* fp32, general cores */
    int64_t memory_bytes;
    double memory_bytes_per_s;
    int64_t n_multiprocessors;
    int64_t l2_bytes;
    double power_w;        /* 0: unknown */
    double price_per_hour; /* 0: the cluster's price_per_device_hour */
} ModelDevice;

#define MODEL_CLUSTER_MAX_LEVELS 8

/* How a device reaches one level of the network. */
typedef struct {
    double bytes_per_s; /* of one device, one direction */
    /* Of the adapters or uplinks that the devices of a group of the level inside (a node, a domain)
     * share, one direction; 0: nothing is shared. */
    double shared_bytes_per_s;
    double latency_s; /* of one message in one direction */
} ModelLink;

/* @n_nodes nodes with @n_devices devices of kind @device each. */
typedef struct {
    int64_t device; /* index into devices */
    int64_t n_devices;
    int64_t n_nodes;
    /* [level] The links of these nodes where they differ from the level's numbers.  Read them with
     * model_cluster_link(), which knows both. */
    bool has_link[MODEL_CLUSTER_MAX_LEVELS];
    ModelLink links[MODEL_CLUSTER_MAX_LEVELS];
} ModelNodes;

/* One level of the network; the rates are those of nodes that do not say otherwise. */
typedef struct {
    char *name;            /* (owned) "nvlink", "pcie", "ethernet", ... */
    int64_t group_devices; /* devices per group; the outermost level: 0 = all */
    double bytes_per_s, shared_bytes_per_s, latency_s; /* as ModelLink */
} ModelLevel;

typedef struct {
    char *name;
    GArray *devices;              /* of ModelDevice */
    GArray *nodes;                /* of ModelNodes, in rank order */
    GArray *levels;               /* of ModelLevel, innermost first */
    double price_per_device_hour; /* of devices without one of their own; 0: unknown */
    char *currency;               /* (owned, nullable) */
    char *price_source;           /* (owned, nullable) whose price, of when */
    GPtrArray *sources;           /* of (owned) char *: data sheets, papers */
} ModelCluster;

/* Returns: (owned) a cluster without devices, nodes and levels. */
ModelCluster *model_cluster_new(void);
void model_cluster_free(ModelCluster *cluster);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ModelCluster, model_cluster_free)
ModelCluster *model_cluster_copy(const ModelCluster *cluster);

/* A cluster has at most this many devices; --gpus beyond it is refused by its reader. */
#define MODEL_CLUSTER_MAX_DEVICES (INT64_C(1) << 24)

/* The "cluster" object of a profile file.  Never NULL; errors are recorded in @doc.  After an error
 * the cluster may be empty: check the document before asking it for devices. */
ModelCluster *model_cluster_read(JsonDoc *doc, const JsonValue *object);
void model_cluster_write(JsonWriter *writer, const char *key, const ModelCluster *cluster);

int64_t model_cluster_n_devices(const ModelCluster *cluster);

/* The kind of device number @rank; 0 <= rank < model_cluster_n_devices(). */
const ModelDevice *model_cluster_device(const ModelCluster *cluster, int64_t rank);

/* The price of device number @rank for an hour: its own, else the cluster's; 0: unknown. */
double model_cluster_price_per_hour(const ModelCluster *cluster, int64_t rank);

/* The link of device number @rank to @level. */
ModelLink model_cluster_link(const ModelCluster *cluster, int64_t rank, size_t level);

/* The slowest link to @level of any of the devices @first to @last: the least of their rates, the
 * least of their shared rates that is not 0, and the largest latency.  Cost: O(groups of nodes). */
ModelLink model_cluster_slowest_link(const ModelCluster *cluster, int64_t first, int64_t last,
                                     size_t level);

/* Finds the node that holds device number @rank: its first device and how many it has. */
void model_cluster_node(const ModelCluster *cluster, int64_t rank, int64_t *first, int64_t *n);

/* The index of the innermost level whose groups hold both devices; 0 for a device and itself.  The
 * groups of a level begin anew in every node, unless they are larger than a node (an NVLink domain
 * of several nodes): then device 0 begins the first of them. */
size_t model_cluster_level_between(const ModelCluster *cluster, int64_t rank_a, int64_t rank_b);

/* Finds the group of @level that holds device number @rank: its first device and how many it has
 * (at the outermost level all).  A group that is smaller than a node ends with its node. */
void model_cluster_group(const ModelCluster *cluster, size_t level, int64_t rank, int64_t *first,
                         int64_t *n);

/*
 * Returns: (owned) the cluster with @n_devices, as --gpus asks for it.  A smaller cluster loses
 * nodes at the end, and devices of the last node that is left; a larger one gets more nodes like
 * the last.
 * @n_devices  1 <= n_devices <= MODEL_CLUSTER_MAX_DEVICES.
 */
ModelCluster *model_cluster_resized(const ModelCluster *cluster, int64_t n_devices);

/*
 * Returns: (owned) the cluster in which a job has at most @n_devices of each node, as
 * --node-devices asks for it: a scheduler gives 64 devices of racks of 72 to jobs of powers of two.
 * Groups of a level that were a whole node still are, and the adapters of the devices that are left
 * out are, too.
 * @n_devices  >= 1.
 */
ModelCluster *model_cluster_trimmed(const ModelCluster *cluster, int64_t n_devices);
