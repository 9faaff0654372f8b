/*
 * executor/device/recurrence.h - what mixers with a state ask of a backend: short convolutions,
 * decays and rates of writing, scans, and the gate and norm of their results.
 *
 * Rows are [token, sequence], as everywhere (backend.h).  A slice of a sequence begins with the state
 * that the slice before it has left, and backward hands the gradient of that state back, from the
 * last slice to the first; both are fp32, whatever the storage.
 *
 * Host backends compute all of it in convolution.c, gates.c, scan.c and scan_channels.c, from either
 * storage and in fp32; the bits do not depend on the number of threads.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * The causal convolution of every channel by itself over @width tokens, and SiLU:
 *
 *   y_t = silu(bias + sum_j weight[j] x_{t - width + 1 + j})       j = 0 ... width - 1
 *
 * Tokens before the sequence are 0; those before the slice are in @before.
 */
typedef struct {
    int64_t sequences, tokens, channels, width;
    bool silu; /* else y is the sum itself */
    const void *x;
    int64_t stride;      /* elements between rows of x */
    const void *gate;    /* (nullable) strides of x: x is multiplied by it first */
    const void *weight;  /* (nullable: ones; width is 1 then) [width, channels] */
    const void *bias;    /* (nullable) [channels] */
    const float *before; /* (nullable: zeros) [width - 1, sequences, channels], gate and all */
    float *after;        /* (nullable) of that form: what the next slice has before it */
    void *y;             /* [rows, channels] */
} ExecConvolution;

typedef struct {
    const void *dy;           /* [rows, channels] */
    void *dx;                 /* strides of x; overwritten */
    void *d_gate;             /* like dx, where there is a gate */
    float *d_weight, *d_bias; /* added to; only where there is a weight, a bias */
    float *d_state;           /* (nullable) in: the gradient of @after; out: that of @before */
} ExecConvolutionGradients;

/*
 * From what products give to decays and rates, with n = n_channels for each head:
 *
 *   step  = softplus(x + bias)      decay = -exp(a_log[head]) step      (decay is a logarithm, <= 0)
 *   rate  = sigmoid(x_rate), one for each head, or, without x_rate, the step
 *
 * [2405.21060 equation 1 and its code; 2412.06464 section 3.4; 2510.26692 equation 10].
 */
typedef struct {
    int64_t rows, n_heads, n_channels;
    const void *x; /* [rows, n_heads * n_channels] of row stride @stride */
    int64_t stride;
    const void *x_rate; /* (nullable) [rows, n_heads] of row stride @rate_stride */
    int64_t rate_stride;
    const void *bias;  /* [n_heads * n_channels] */
    const void *a_log; /* [n_heads]; NULL: there are no decays */
    float *decay;      /* [rows, n_heads * n_channels]; with @a_log */
    float *rate;       /* [rows, n_heads], n_channels of them without x_rate */
} ExecGates;

typedef struct {
    const float *d_decay, *d_rate; /* of decay and rate */
    void *dx, *dx_rate;            /* strides of x and x_rate; overwritten */
    float *d_bias, *d_a_log;       /* added to */
} ExecGatesGradients;

/*
 * A scan: every head has a state S [key_dim, value_dim], which takes in one token after the other.
 * With a = exp(decay), of the head or of each channel of a key, and w what is written:
 *
 *   S_t = a_t S_{t-1} + k_t w_t^T        out_t = S_t^T q_t + skip v_t
 *   w_t = rate_t v_t                                 Mamba-2, linear attention
 *   w_t = rate_t (v_t - (a_t S_{t-1})^T k_t)         @delta: gated delta rule, KDA
 *
 * [2405.21060; 2501.08313; 2412.06464 equation 10; 2510.26692 equation 1].  Head h has the q and k of
 * key head h / (n_heads / n_key_heads).  With @a_log the decay of channel c of head h is
 * -exp(a_log[h, c]) rate (Mamba's first version: value_dim and n_key_heads are 1).
 */
typedef struct {
    int64_t sequences, tokens;
    int64_t n_heads, n_key_heads, key_dim, value_dim;
    /* [rows, n_key_heads * key_dim], [rows, n_heads * value_dim] of these row strides. */
    const void *q, *k, *v;
    int64_t key_stride, value_stride;
    bool silu;       /* q, k and v pass through SiLU first */
    bool normalised; /* then q and k are divided by their lengths: x / sqrt(x.x + 1e-6) */
    float scale;     /* then q is multiplied by it; not where there is a_log */
    bool delta;
    const float *decay; /* [rows, n_heads * (channels ? key_dim : 1)]; NULL with a_log */
    bool channels;      /* every channel of a key has a decay of its own */
    bool fixed;         /* decay is [n_heads]: the same at all tokens; not with channels */
    const float *rate;  /* [rows, n_heads]; NULL: 1 */
    const void *a_log;  /* (nullable) [n_heads, key_dim] */
    const void *skip;   /* (nullable) [n_heads] */
    const float *start; /* (nullable: zeros) [sequences, n_heads, key_dim, value_dim] */
    float *end;         /* (nullable) of that form; may not overlap @start */
    void *out;          /* [rows, n_heads * value_dim] */
} ExecScan;

typedef struct {
    const void *dout;        /* shape of out */
    void *dq, *dk, *dv;      /* strides of q, k, v; overwritten */
    float *d_decay, *d_rate; /* shapes of decay and rate; overwritten; none where fixed, or 1 */
    float *d_a_log, *d_skip; /* added to */
    float *d_state;          /* (nullable) in: the gradient of @end; out: that of @start */
} ExecScanGradients;

/*
 * What becomes of a scan's result x, with a gate z from the layer's input:
 *
 *   y = norm(x) act(z)          or with @gate_first       y = norm(x act(z))
 *
 * norm is RMSNorm over each of n_groups groups of a row, with a gain of each column of the row, or of
 * each column of a group where gain_n is the group's width.
 */
typedef enum {
    EXEC_GATE_PLAIN, /* z itself */
    EXEC_GATE_SIGMOID,
    EXEC_GATE_SILU,
} ExecResultGate;

typedef struct {
    int64_t rows, cols;
    ExecResultGate kind;
    bool gate_first;
    const void *x; /* [rows, cols] */
    const void *z; /* [rows, cols] of row stride @stride */
    int64_t stride;
    int64_t n_groups;   /* 0: there is no norm, and the next five do not matter */
    const void *gain;   /* [gain_n] */
    int64_t gain_n;     /* cols, or cols / n_groups */
    int64_t group_cols; /* columns that a group has, on all ranks together */
    float epsilon;
    float *squares; /* [rows, n_groups]: the sums of squares of what is normed, on all ranks */
} ExecResult;

typedef struct {
    const void *dy;
    void *dx;          /* [rows, cols]; overwritten; may be dy */
    void *dz;          /* strides of z; overwritten */
    float *d_gain;     /* added to */
    const float *dots; /* [rows, n_groups]: see result_dots(), on all ranks */
} ExecResultGradients;
