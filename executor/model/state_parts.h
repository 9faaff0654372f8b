/*
 * executor/model/state_parts.h - what a mixer with a state is made of on one rank: the columns of its
 * products, its parameters, and what lies in its blocks.
 *
 * One product of the layer's input gives all that the mixer reads, side by side (models/ops_state.c
 * lists the others).  What the convolution takes comes first; every part is split over tp by heads:
 *
 *   gated delta net   queries, keys, values; gate of the result; decays, rates of writing
 *   KDA               the same; without a rank the decays have a column for every channel of a key,
 *                     with one decays and gate come through narrow products (down, steps, gate)
 *   Mamba-2           C, B, values; gate; time steps
 *   Mamba             values; gate.  B, C and time steps: of the values, through `middle`, whose
 *                     sum over tp all ranks have: [time steps' rank, B, C]; Jamba norms each
 *   lightning         queries, keys, values; gate
 *   convolution       what is gated; the gate of the result; the gate before the convolution
 *
 * Vectors and the convolution get their gradients with the input's, as norms do: they lie in the
 * region of norms.  Initial values are the papers': a_log the log of numbers in [1, 16], Mamba's of
 * 1, 2, ... (S4D-real); time steps in [0.001, 0.1]; skips and gains 1; taps and Mamba's steps as
 * torch's Conv1d and Linear deviate.
 *
 * Private to executor/model/.
 */
#pragma once

#include "executor/model/layer.h"

typedef enum {
    EXEC_STATE_QUERIES,
    EXEC_STATE_KEYS,
    EXEC_STATE_VALUES,
    EXEC_STATE_GATE,
    EXEC_STATE_DECAYS, /* or time steps */
    EXEC_STATE_RATES,
    EXEC_STATE_INNER, /* the gate before the convolution */
    EXEC_STATE_PARTS,
} ExecStatePart;

/* The numbers are those of this rank. */
typedef struct {
    ModelMixer mixer;
    ModelStateWidths w;
    int64_t tp;
    int64_t n_key_heads, key_dim, value_dim;
    int64_t taps;                 /* of the convolution; 0: there is none */
    bool convolves;               /* or, of Mamba, SiLU in its place: a product reads its result */
    int64_t rank;                 /* of narrow products; 0: there are none */
    int64_t at[EXEC_STATE_PARTS]; /* the first column of each part */
    int64_t n[EXEC_STATE_PARTS];  /* how many */
    int64_t n_channels;           /* decays of each head */
    int64_t n_gates;              /* decays or time steps of a row; 0: none, or fixed */
    int64_t n_rates;              /* of a row; 0: none */
    int64_t n_groups, group_cols; /* of the result's norm (recurrence.h) */
    bool sums_groups;             /* over tp ranks */
    ExecResultGate gate;
    bool gate_first;
    bool scans, delta;
    bool fixed;       /* decays follow from the layer's and the head's number */
    bool by_value;    /* every value is a head, whose keys come through the middle: Mamba */
    bool inner_norms; /* of the middle's time steps, B and C */
} ExecStateShape;

ExecStateShape exec_state_shape(const ExecWidths *widths);

/* Into so many pieces a cp rank's part of a slice is cut at most: exec_slice_chunks(). */
#define EXEC_STATE_PIECES 2

/* What lies in the blocks of mixer.h; NULL where the mixer has none. */
typedef struct {
    /* products */
    void *result;      /* [rows, values] what the last product reads */
    void *middle;      /* [rows, down or middle] */
    void *raw_middle;  /* [rows, middle] before its norms, or middle */
    float *inner_sums; /* [EXEC_STATE_INNER_NORMS][rows] of squares */
    /* inputs; of Mamba convolved is with the products */
    void *in;        /* [rows, in] */
    void *convolved; /* [rows, conv] */
    void *gate;      /* [rows, values] that comes through a narrow product */
    void *scanned;   /* [rows, values] the scan's result; with recompute selective in scratch */
    float *decays, *rates; /* [rows, n_gates], [rows, n_rates] */
    float *squares;        /* [rows, n_groups] */
    float *starts;         /* [pieces of this rank] states that they begin with; cp > 1 only */
    /* kept */
    void *d_in, *d_middle;
    void *d_steps; /* [rows, n_gates] of what comes through a narrow product */
    void *d_gate;  /* [rows, values] */
    /* scratch */
    void *steps;  /* [rows, n_gates] that come through a narrow product */
    float *fixed; /* [heads] fixed decays */
    void *d_result, *d_convolved;
    float *d_decays, *d_rates, *dots;
    float *d_inner_sums;  /* [rows] */
    float *end, *d_state; /* of a piece; cp > 1 only */
} ExecStateTensors;

/* The norms inside of Mamba [Jamba 2403.19887 section 6.4]: where their columns begin in the middle,
 * how many they are, and which tensor the gain is. */
enum {
    EXEC_STATE_INNER_NORMS = 3
};

typedef struct {
    const char *name;
    int64_t at, n;
    size_t member;
} ExecStateInner;

ExecStateInner exec_state_inner(const ExecStateShape *state, int number);

void exec_state_add_parameters(struct ExecLayoutBuilder *b);

ExecStateTensors exec_state_cut(const ExecLayerShape *shape, ExecMixerCutters *cutters);

/* Floats of what a slice hands to the next: the states of all heads, and, behind them, the last
 * inputs of the convolution. */
int64_t exec_state_handed(const ExecStateShape *state, int64_t sequences);
int64_t exec_state_handed_scan(const ExecStateShape *state, int64_t sequences);
