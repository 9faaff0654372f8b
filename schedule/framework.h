/*
 * schedule/framework.h - what the program that trains the model does: the frameworks, one row each.
 *
 * A plan names the framework that runs it.  What follows from that name is said once, in the table
 * of framework.c, and read from there by everybody: by the costs and the memory of profiles/, by
 * the planner, by the command line.  Nobody else compares a PlanFramework with a name.
 *
 *   preset  PlanConventions: what a user can change by flags and a plan file says in "conventions"
 *   facts   PlanFrameworkFacts: what follows from the framework alone
 *   rules   PlanFrameworkRules: which plans the program runs; planner/rules/rules.h checks them
 *
 * What also depends on the plan (the schedule, what it recomputes) is a function below the table.
 *
 * A new framework is one name in PlanFramework and one row in framework.c.  A fact that a row does
 * not mention has the value 0 or false, which each field below explains.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "schedule/optimizer.h"

typedef enum {
    PLAN_FRAMEWORK_DEGAS,
    PLAN_FRAMEWORK_MEGATRON_CORE,
    PLAN_FRAMEWORK_MEGATRON_LM,
    PLAN_FRAMEWORK_MEGATRON_BRIDGE,
    PLAN_FRAMEWORK_MEGATRON_DEEPSPEED,
    PLAN_FRAMEWORK_DEEPSPEED,
    PLAN_FRAMEWORK_TORCHTITAN,
    PLAN_FRAMEWORK_FSDP,
    PLAN_FRAMEWORK_TERAPIPE,
    PLAN_FRAMEWORK_N,
} PlanFramework;

/* --- conventions: what a user can change --- */

typedef enum {
    PLAN_ATTENTION_UNFUSED, /* scores pass through memory; one kernel for scale, mask and softmax */
    PLAN_ATTENTION_FLASH,   /* the fastest kernel that keeps scores off memory */
    PLAN_ATTENTION_TORCH,   /* unfused, softmax in fp32 as PyTorch's operations one by one */
    PLAN_ATTENTION_FLASH1,  /* FlashAttention's first version [2205.14135] */
    PLAN_ATTENTION_FLASH2,  /* its second, which PyTorch's scaled_dot_product_attention calls */
    PLAN_ATTENTION_TRITON,  /* the first version's algorithm written in Triton */
    PLAN_ATTENTION_N
} PlanAttention;

/* Norms, rotary embedding, SwiGLU and loss. */
typedef enum {
    PLAN_KERNELS_FUSED, /* one kernel for each */
    PLAN_KERNELS_NORMS, /* one kernel for each norm; the rest as PLAN_KERNELS_EAGER */
    PLAN_KERNELS_EAGER, /* PyTorch's operations one by one */
    PLAN_KERNELS_N
} PlanKernels;

/* How context-parallel ranks share attention. */
typedef enum {
    PLAN_CP_P2P, /* K and V pass round a ring */
    PLAN_CP_A2A, /* an all-to-all turns shares of tokens into shares of heads, and back */
    PLAN_CP_N,
} PlanCpComm;

/* The loss over a vocabulary that tp splits. */
typedef enum {
    PLAN_LOSS_PLAIN,    /* PyTorch's operations, in place where they can be */
    PLAN_LOSS_COMPILED, /* the same, compiled: fewer passes, not in place */
    PLAN_LOSS_FUSED, /* one kernel [Transformer Engine]: the gradient in the model's format stays */
    PLAN_LOSS_N,
} PlanLoss;

/* What scales of quantised numbers are shared by. */
typedef enum {
    PLAN_QUANTISE_USUAL,   /* what the profile's device is usually run with */
    PLAN_QUANTISE_TENSOR,  /* a tensor, whose largest number is found first */
    PLAN_QUANTISE_DELAYED, /* a tensor, whose largest number is that of earlier steps */
    PLAN_QUANTISE_BLOCK,   /* 32 numbers along the product's inner dimension (MXFP8) */
    PLAN_QUANTISE_ROW,     /* a row along the inner dimension [torchao, "rowwise"] */
    PLAN_QUANTISE_N,
} PlanQuantise;

/* What carries rows to experts on other ranks, and back. */
typedef enum {
    PLAN_DISPATCHER_ALLTOALL, /* a copy for each expert; what has come is sorted by expert */
    PLAN_DISPATCHER_DEEPEP,   /* one copy for each node or, in a node, rank [DeepEP] */
    PLAN_DISPATCHER_HYBRIDEP, /* the same, and rows are sorted as they are carried [HybridEP] */
    PLAN_DISPATCHER_N,
} PlanDispatcher;

/* What of a layer CUDA graphs hold, so that the host launches it at once; each holds what the one
 * before holds. */
typedef enum {
    PLAN_GRAPHS_NONE,
    PLAN_GRAPHS_ROUTER,    /* the router of experts and what prepares their rows */
    PLAN_GRAPHS_ATTENTION, /* and attention with its norm and products */
    PLAN_GRAPHS_LAYER,     /* and the MLP or experts: whole layers */
    PLAN_GRAPHS_ITERATION, /* and everything else */
    PLAN_GRAPHS_N,
} PlanGraphs;

/* The words of plan files and flags, in the order of the enums; NULL at the end. */
extern const char
    *const plan_attention_names[PLAN_ATTENTION_N + 1]; /* "unfused", "flash", "torch", ... */
extern const char *const plan_kernels_names[PLAN_KERNELS_N + 1]; /* "fused", "norms", "eager" */
extern const char *const plan_cp_comm_names[PLAN_CP_N + 1];      /* "p2p", "a2a" */
extern const char
    *const plan_quantise_names[PLAN_QUANTISE_N + 1];       /* "usual", "tensor", "delayed", ... */
extern const char *const plan_loss_names[PLAN_LOSS_N + 1]; /* "plain", "compiled", "fused" */
extern const char *const plan_dispatcher_names[PLAN_DISPATCHER_N + 1]; /* "alltoall", "deepep",
                                                                          "hybridep" */
extern const char *const plan_graphs_names[PLAN_GRAPHS_N + 1]; /* "none", "router", "attention",
                                                                  "layer", "iteration" */

/* What selective recompute repeats: Megatron-Core's modules and torchtitan's policy over ops, which is
 * alone (models/ops.h has the same ones, models/modules.c what they are). */
typedef enum {
    PLAN_MODULE_CORE_ATTENTION,
    PLAN_MODULE_LAYERNORM,
    PLAN_MODULE_MLP,
    PLAN_MODULE_MOE,
    PLAN_MODULE_MOE_ACTIVATION,
    PLAN_MODULE_MLA_UP,
    PLAN_MODULE_SHARED_EXPERTS,
    PLAN_MODULE_OPS,
    PLAN_MODULE_N,
} PlanModule;

/* How full recompute goes over the layers of a stage (Megatron's --recompute-method). */
typedef enum {
    PLAN_RECOMPUTE_UNIFORM, /* all, in units of recompute_layers that keep their first input alone */
    PLAN_RECOMPUTE_BLOCK,   /* the first recompute_layers, each for itself */
    PLAN_RECOMPUTE_METHOD_N,
} PlanRecomputeMethod;

extern const char *const plan_module_names[PLAN_MODULE_N + 1]; /* "core_attn", "layernorm", ... */
extern const char
    *const plan_recompute_method_names[PLAN_RECOMPUTE_METHOD_N + 1]; /* "uniform", "block" */

#define PLAN_MAX_IMBALANCE 1e6
/* That of the hosts on which frameworks were timed. */
#define PLAN_HOST_KERNEL_S 8e-6
/* Megatron's --make-vocab-size-divisible-by. */
#define PLAN_VOCAB_MULTIPLE 128

/* Whether scores of @attention never reach memory. */
static inline bool
plan_attention_is_flash(PlanAttention attention)
{
    return attention != PLAN_ATTENTION_UNFUSED && attention != PLAN_ATTENTION_TORCH;
}

typedef struct {
    PlanFramework framework;
    PlanAttention attention;
    Dtype grad_dtype;
    bool overlap_dp; /* gradients are reduced while the last backward still computes */
    bool overlap_pp; /* messages use streams of their own; else the compute stream waits in them */
    bool overlap_tp; /* collectives of tensor parallelism run while products compute */
    bool overlap_ep; /* experts' all-to-alls run while another micro-batch computes */
    PlanGraphs cuda_graphs;
    PlanQuantise quantise; /* of operands in fp8 */
    PlanDispatcher dispatcher;
    bool dropout; /* dropout masks are kept as activations */
    PlanKernels kernels;
    bool scatter_gather_p2p; /* each tp rank sends its share of a message, and the receivers gather
                                [2104.04473 section 4.1]; else each tp rank sends a whole copy */
    bool broadcast_p2p;  /* one tp rank sends, and the receiver broadcasts inside its tp group */
    bool optimizer_step; /* the iteration includes the optimizer's step */
    PlanCpComm cp_comm;
    PlanLoss loss;
    int64_t expert_tp;       /* how many tp ranks share each expert; 0 means 1: none do */
    double expert_imbalance; /* >= 1: load of the fullest expert rank over the mean; 0: the value of
                                the profile */
    /* >= 1: each expert takes so many times the mean number of rows of each rank, of which more are dropped
     * and fewer are filled up (Megatron's --moe-expert-capacity-factor with
     * --moe-pad-expert-input-to-capacity).  0: none is dropped. */
    double expert_capacity;
    bool deterministic;         /* libraries are told to repeat themselves bit by bit */
    uint32_t recompute_modules; /* set of PlanModules of selective recompute; 0: the framework's */
    PlanRecomputeMethod recompute_method;
    int64_t recompute_layers; /* of recompute_method; 0: each layer of all for itself */
    PlanOptimizer optimizer;
    PlanMuonTp muon_tp;
    /* So many groups of replicas each hold all that ZeRO splits, and split it among themselves: with ZeRO 1
     * Megatron's --num-distributed-optimizer-instances, with 2 and 3 FSDP's hybrid sharding (torchtitan's
     * data_parallel_replicate_degree).  0 means 1: all replicas are one group. */
    int64_t optimizer_instances;
    /* The head's weight gradients of the first so many micro-batches are made after the last
     * backward (Megatron's --defer-embedding-wgrad-compute, --wgrad-deferral-limit).  0: none. */
    int64_t deferred_gradients;
    /* Gradients of 16 bits are summed over replicas in fp32, whole, in buckets that are copied and
     * cast there and back (Scaling's optimizer). */
    bool wide_reduction;
    int32_t
        stack; /* the month of the software (schedule/stack.h); 0: that of the framework's row */
    bool pads_vocab; /* the tables' rows and the logits' columns of each tp rank grow to a
                                multiple of PLAN_VOCAB_MULTIPLE */
} PlanConventions;

/* Whose releases a framework's features came with (schedule/stack.c). */
typedef enum {
    PLAN_RELEASES_UNKNOWN, /* they are not told apart */
    PLAN_RELEASES_MEGATRON,
    PLAN_RELEASES_TORCHTITAN,
    PLAN_RELEASES_N
} PlanReleases;

/* Bytes that quantising one number for both products that read it moves (cost-model.md 2.6). */
typedef struct {
    double bytes;
    double transposed; /* ... more, where products take operands along one dimension alone */
    double rescaled;   /* of each number of the backward's two results, where kernels of their own
                          apply the scales to them */
} PlanQuantiseBytes;

/* Those of @dtype; zeros: no quantised format, or as the profile says. */
PlanQuantiseBytes plan_quantise_bytes(PlanQuantise quantise, Dtype dtype);

/* The multiple to which the vocabulary of a tp rank is padded; 0: it is not. */
static inline int64_t
plan_vocab_multiple(const PlanConventions *conventions)
{
    return conventions->pads_vocab ? PLAN_VOCAB_MULTIPLE : 0;
}

/* Whether full recompute repeats every layer of a stage. */
static inline bool
plan_full_repeats_all(const PlanConventions *conventions)
{
    return conventions->recompute_method != PLAN_RECOMPUTE_BLOCK;
}

/* --- rules: which plans the program runs --- */

/* What tp demands of the heads of K and V. */
typedef enum {
    PLAN_KV_HEADS_ANY,
    PLAN_KV_HEADS_DIVIDED, /* tp divides them */
    PLAN_KV_HEADS_COPIED,  /* tp divides them, or they divide tp and are copied */
} PlanKvHeads;

typedef enum {
    PLAN_SEQUENCE_PARALLEL_FREE, /* as the plan says; needed by experts, and by overlap_tp */
    PLAN_SEQUENCE_PARALLEL_NEVER,
    PLAN_SEQUENCE_PARALLEL_ALWAYS, /* with tp */
} PlanSequenceParallel;

/* How many micro-batches of interleaved schedules pass one chunk before the next. */
typedef enum {
    PLAN_GROUPS_ANY,
    PLAN_GROUPS_AT_LEAST_PP, /* as many as there are pipeline ranks, and what is left over too */
    PLAN_GROUPS_ROUNDS,      /* all, in max(1, micro-batches / pp) equal rounds */
} PlanGroups;

/* A model that the program has, by what degas calls it. */
typedef struct {
    const char *model;   /* "llama3-8b" */
    const char *name;    /* "llama3"; Megatron-Bridge: the model of Hugging Face */
    const char *flavour; /* "8B"; Megatron-Bridge: (nullable) its recipe of pretraining */
    bool overlaps;       /* Megatron-Bridge: that recipe has settings of comm_overlap */
} PlanFrameworkModel;

/* Sets are bits: of ZeRO stages, Dtypes, PlanRecomputes, PlanOptimizers. */
typedef struct {
    const char *const *schedules; /* (borrowed) families of pipelines; NULL at the end */
    /* (nullable) All that it has, a row of NULL at the end; where others are described by flags, those that
     * need none. */
    const PlanFrameworkModel *models;
    bool
        described_by_flags; /* any other model has an embedding and a loss, layers that flags describe
                                (planner/rules/layer_flags.h), a whole number as the base of its rotary
                                positions, and does not choose one expert of a token by softmax */
    bool chunks;            /* a rank may have several stages */
    bool uneven;            /* stages may have different numbers of layers; an end may be alone */
    bool empty_stages;      /* stages may have neither layers nor an end */
    /* A model may have MTP modules: their layers are as the model's last (of hybrids any, without a
     * pipeline), all of them are in one stage, and no later one is on its rank. */
    bool mtp;
    bool adapters;           /* a model may have adapters beside frozen weights (LoRA) */
    bool slices;             /* sequences may be cut, and micro-batches differ in size */
    bool cp, ep, tp_with_pp; /* these degrees may be above 1, and tp and pp together */
    bool pp_before_dp;       /* ranks may be laid out as tp-cp-pp-dp, too */
    bool
        ring_is_plain; /* windows and sinks are split over cp by all-to-alls (a2a), not by the ring */
    bool tokens_by_tp_and_cp; /* tp times twice cp divides the sequence */
    bool offload_parameters;
    bool compiles_overlap_tp; /* overlap_tp is the compiler's, under which I and W are not apart */
    bool
        merges_chunks; /* overlap_ep with ep above 1: a pipeline has several chunks a rank, whole layers or
                           experts are not computed again, and there is one MTP module at most */
    PlanGroups groups;
    PlanKvHeads kv_heads;
    PlanSequenceParallel sequence_parallel;
    uint32_t recomputes; /* of all stages: no program here recomputes stages in different ways */
    uint32_t dtypes, grad_dtypes;
    uint32_t modules;    /* set of PlanModules; 0: any */
    uint32_t optimizers; /* set of PlanOptimizers; 0: any */
    /* ZeRO stages: all, those with pp, tp and cp above 1, and those that offload to CPU and NVMe. */
    uint32_t zero, zero_with_pp, zero_with_tp, zero_with_cp, zero_on_cpu, zero_on_nvme;
} PlanFrameworkRules;

/* --- facts: what follows from the framework --- */

/* What adding a micro-batch's weight gradients to those of earlier ones moves through memory, where
 * the product does not write into the sum itself (cost-model.md 2.4). */
typedef enum {
    /* Autograd: a kernel reads the new gradient, reads and writes the sum; the first gradient of an
     * iteration becomes the sum as it is. */
    PLAN_ACCUMULATION_AUTOGRAD,
    /* A kernel adds every gradient, the first one too, to main gradients of its own. */
    PLAN_ACCUMULATION_MAIN,
    /* Every product but the first of an iteration reads the sum that it overwrites. */
    PLAN_ACCUMULATION_READS_SUM,
} PlanAccumulation;

/* Whether the product of the weight gradient adds to the sum of gradients itself
 * (Megatron's --gradient-accumulation-fusion). */
typedef enum {
    PLAN_FUSED_ACCUMULATION_NEVER,
    PLAN_FUSED_ACCUMULATION_SINCE_2022, /* plan_framework_fuses_accumulation() tells the release */
    PLAN_FUSED_ACCUMULATION_ALWAYS,
} PlanFusedAccumulation;

typedef struct {
    const char *name;       /* of plan files and of --framework */
    PlanConventions preset; /* of its usual runs; plan_conventions() adds what all have in common */
    const PlanFrameworkRules *rules; /* (nullable) NULL: it runs every plan */
    /* "YYYY-MM" or "YYYY": of the code from which the row was read, and so of the stack that a
     * prediction assumes; NULL: ours. */
    const char *stack;
    PlanReleases releases;
    const char *exporter; /* (nullable) the target of `degas export` that these rules are of */

    /* Unless the user says otherwise, gradients are summed in the number format of the model, and
     * the preset's grad_dtype is that of a bf16 model. */
    bool grads_as_model;
    bool splits_layers; /* the model's own layers know of tp: its exporter leaves tp to them */

    /* --- computing --- */
    /* Seconds that a host with a host_kernel_s of PLAN_HOST_KERNEL_S needs for each kernel beyond
     * that: of the forward, whose modules are Python, and of the backward, which is autograd's
     * (cost-model.md 2.5).  0: none. */
    double host_kernel_s, host_backward_kernel_s;
    /* The same for each expert whose operands are quantised, each product and pass: they are tensors
     * of their own, with a quantiser, a copy of the weight and a gradient each. */
    double host_expert_s;
    /* "unfused" attention uses Megatron's softmax kernel, which takes rows of up to so many keys;
     * PyTorch's operations compute longer ones.  0: one kernel takes any row. */
    int64_t softmax_keys;
    PlanAccumulation accumulation;
    PlanFusedAccumulation fused_accumulation;
    /* Where a product adds to the sum of gradients, Transformer Engine hands autograd a placeholder
     * of the weight's size, and keeps one for each shape of weight. */
    bool gradient_placeholders;
    /* The kernels of the optimizer's step each read and write what they need; else one pass does
     * all (cost-model.md 5.2). */
    bool separate_step_kernels;
    /* With Muon, ZeRO below stage 3 gives whole matrices to replicas (Megatron's layer-wise
     * distributed optimizer); else every replica gathers the matrices that it has parts of. */
    bool shards_whole_matrices;
    /* A forward and the backward of another micro-batch are merged, so that overlap_ep can be; and
     * layers or iterations can be captured as CUDA graphs. */
    bool merges_passes, captures_graphs;
    /* With overlap_ep a schedule says which passes are merged (ScheduleShape.merges); else each pass
     * costs as if it were, wherever it stands. */
    bool merges_pairs;
    /* Rows that have come by an all-to-all are sorted by expert, and back, by kernels of their own,
     * and other dispatchers may take its place. */
    bool sorts_received;
    /* Set of ZeRO stages with which groups of replicas may each hold all that is split: the optimizer's state
     * (Megatron-Core), or that, gradients and parameters (FSDP's hybrid sharding). */
    uint32_t instances;
    /* The head's weight gradients may be made after the last backward. */
    bool defers_gradients;
    /* The second biases of experts are added expert by expert, in fp32, times probabilities. */
    bool adds_expert_bias;
    /* Its models have a matrix each for queries, keys, values and both halves of SwiGLU. */
    bool separate_matrices;
    /* Autograd sums the gradients of biases and of LayerNorm's vectors by kernels of their own
     * (cost-model.md 2.3). */
    bool sums_apart;
    /* Unfused attention is that of layers without Transformer Engine, of which that is true for biases;
     * their LayerNorm is Apex's, which keeps sums. */
    bool local_if_unfused;
    /* The set of PlanModules that selective recompute repeats unless the plan says otherwise; 0: the
     * core of attention. */
    uint32_t modules;
    bool fp32_parameters; /* parameters are stored in fp32 and cast when they are gathered */
    /* tp ranks quantise shards before they gather them, where a tensor has one scale (torchao's
     * Float8ColwiseParallel and Float8RowwiseParallel). */
    bool quantised_gathers;
    /* Context-parallel ranks gather all of K and V; else these pass round a ring. */
    bool gathers_kv;
    /* The ring of cp ranks is PyTorch's (torch.distributed.tensor.experimental._attention): what passes
     * are keys and values of all heads, as repeat_kv() has made them, and results are merged in fp32. */
    bool torch_ring;
    /* Of attention torch in fp16: scores are masked in place, queries are scaled, and the softmax reads 16
     * bits and writes 32 (models/ops.h: half_softmax). */
    bool half_softmax;
    /* Slices read keys and values from tensors of the whole sequence, through which autograd carries their
     * gradients (models/ops.h: caches_kv). */
    bool caches_kv;
    /* The vocabulary is padded on devices whose products are slow where rows do not begin at
     * multiples of 16 bytes, whatever the preset says. */
    bool pads_slow_vocab;
    /* Keys and values of all slices of a micro-batch, and their gradients, are one block, which
     * exists from the first forward to the last backward. */
    bool joins_kv;
    /* PyTorch's own loss is computed on each tp rank's share of the vocabulary (torchtitan's
     * loss_parallel, unless disable_loss_parallel); else the logits are gathered before it. */
    bool splits_eager_loss;
    /* The loss is PyTorch's cross entropy whatever the kernels are, compiled where they are (torchtitan
     * since 2025-04), and the training loop gives the logits back before the backward. */
    bool torch_loss;
    /* A pipeline's stages keep the results of all micro-batches to the end of the step, as long as
     * the stack lacks PLAN_FEATURE_STAGE_OUTPUTS_FREED; the last stage, whose results are the logits,
     * as long as it lacks PLAN_FEATURE_LOGITS_FREED. */
    bool collects_outputs;
    bool loss_in_place; /* the gradient of the logits overwrites them */
    /* Activations are blocks that a layer takes when it begins, and one scratch per op. */
    bool row_blocks;

    /* --- the pipeline --- */
    /* Messages overlap with computing in interleaved schedules alone. */
    bool overlaps_pp_interleaved;
    /* Collectives of tensor parallelism that overlap do so in forwards alone (torch.compile's pass
     * gains 29 % of a forward and 8 % of a step [asynctp]). */
    bool overlaps_tp_forward;
    /* Its models rotate queries and keys as complex numbers (models/ops.h: complex_rotary). */
    bool complex_rotary;
    /* Unless overlap_tp hides more, and the stack lacks PLAN_FEATURE_SUMS_BESIDE: the backward of products
     * that tp ranks split by columns gathers their input again while it computes the input's gradient,
     * and sums that while it computes the weights'. */
    bool sums_beside;
    /* The two ops of a pair that a schedule overlaps run one after the other, unless passes are
     * merged. */
    bool pairs_in_turn;
    /* Ranks can be laid over the devices in any order of dimensions, so that a search tries all. */
    bool any_rank_order;

    /* --- data parallelism --- */
    /* Gradients, and gathered parameters, that form one collective: bucket_bytes if not 0; else
     * max(bucket_elements, bucket_elements_per_replica dp) if not 0; else a layer's. */
    double bucket_elements, bucket_elements_per_replica, bucket_bytes;
    /* With overlap_dp the next step's parameters are gathered while its first forwards compute
     * (ZeRO 1 and 2); else at the end of the step. */
    bool gathers_ahead;

    /* --- ZeRO 3 --- */
    /* How many elements are fetched ahead of use, and how many may be gathered at once: a whole
     * number of layers, at least one.  0: one layer is gathered ahead, whatever its size. */
    int64_t prefetch_elements, live_elements;
    /* Unless the plan has overlap_dp, each gather first synchronises the device, so that none is
     * ahead of use, and copies the shares one by one (DeepSpeed of 2021). */
    bool synchronous_gathers;
    /* PyTorch's FSDP: the month since which parameters are sharded one by one (FSDP2), so that what a
     * gather brings is copied to each of them and gradients are copied to what a scatter takes; before,
     * parameters were parts of one, whose gradient autograd joined and FSDP divided.  0: neither. */
    int32_t shards_singly_since;
    /* A gather fetches one matrix of a layer; else the whole layer is one collective. */
    bool gathers_matrices;
    /* Full recompute uses the weights that the backward has gathered; else it gathers them again.
     */
    bool recompute_shares_gather;
    /* The backward of the embedding does not gather the table. */
    bool embedding_gathers_once;
    /* No more elements are on their way than those of the layers gathered ahead, so that a larger
     * table is gathered when it is needed. */
    bool bounds_gathers;
    /* The order in which weights are gathered, and gradients reduced, is known, so that each op
     * counts those that are whole while it runs (cost-model.md 6.3); else the static bytes have
     * room for the layers gathered at once. */
    bool counts_gathered;
} PlanFrameworkFacts;

/* The row of @framework, which must be below PLAN_FRAMEWORK_N.  (static) */
const PlanFrameworkFacts *plan_framework(PlanFramework framework);

/* The names of all frameworks in the order of the enum, NULL at the end.  (static) */
const char *const *plan_framework_names(void);

/* The conventions of the framework's usual runs.  Their overlap_pp is that of schedules without
 * chunks; see plan_framework_overlaps_pp(). */
PlanConventions plan_conventions(PlanFramework framework);

/*
 * Whether a framework's pipeline messages overlap with computing under @schedule with @vpp chunks:
 * what its conventions say, except that Megatron-LM and Megatron-Core overlap in interleaved
 * schedules only (--overlap-p2p-communication "is forced off without virtual stages").  Whoever
 * makes a Plan stores the answer in conventions.overlap_pp, unless the user says otherwise.
 */
bool plan_framework_overlaps_pp(PlanFramework framework, const char *schedule, int64_t vpp);

/* Whether a framework's plans pad the vocabulary, unless the user says otherwise.  @aligns products
 * on the device are slow where rows do not begin at multiples of 16 bytes. */
bool plan_framework_pads_vocab(PlanFramework framework, bool aligns);

/*
 * Whether the product of the weight gradient adds to the sum itself.  Megatron-LM does so since the
 * release that brought sequence parallelism, selective recompute and the overlapped all-reduce of
 * the input gradient [2205.05198]; a plan that has one of these is taken to be of that release.
 * @selective  whether a stage recomputes selectively
 */
bool plan_framework_fuses_accumulation(const PlanConventions *conventions, bool sequence_parallel,
                                       bool selective);

/* The set of PlanModules that selective recompute of such plans repeats. */
uint32_t plan_framework_modules(const PlanConventions *conventions);

/* (owned) the names in a set of PlanModules, with commas. */
char *plan_modules_text(uint32_t set);

/* Whether the parameters of the next step are gathered while its first forwards compute: Megatron-
 * Core's --overlap-param-gather, which its runs set together with overlap_dp. */
bool plan_framework_gathers_ahead(const PlanConventions *conventions);
