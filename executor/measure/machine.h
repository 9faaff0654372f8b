/*
 * executor/measure/machine.h - the machine that a profile describes: what is known of it before
 * anything is timed, and what timings say of it.
 *
 * A host is the built-in cluster local-cpu.  A GPU has the data sheet of the built-in cluster that
 * names it, else peaks by its multiprocessors and clock.  Ranks that share a GPU are devices with
 * equal parts of it.
 *
 * Private to executor/measure/ and its tests.
 */
#pragma once

#include "executor/device/backend.h"
#include "executor/transport/samples.h"
#include "profiles/profile.h"

typedef struct {
    Profile *profile;    /* (owned) without measurements */
    int64_t flush_bytes; /* to be written before an op, which then finds cold caches; 0: nothing */
} ExecMachine;

/* @n_ranks  how many ranks share the device */
bool exec_machine_init(ExecMachine *machine, const char *device, int64_t n_ranks, GError **error);

/* Sets the parameters of the cost model that were timed: launches, copies, interference.  For GPUs
 * only: ranks on a host compute, copy and communicate in turn, and their ops include the calls. */
void exec_machine_set_parameters(Profile *profile);

/* Sets the memory that a rank's backend came to hold for itself: workspaces of libraries and, for
 * bf16 on a host, operands widened to fp32. */
void exec_machine_set_workspace(Profile *profile, int64_t n_bytes);

/* Makes @profile, which is of one GPU and has collectives that were timed @between several (in
 * words), one of as many GPUs as the largest collective had ranks.  GPUs share nothing that a layer
 * uses, so what was timed on one holds for all at once. */
void exec_machine_add_gpus(Profile *profile, const char *between);

/* Returns: (owned) "AMD EPYC 9B14, OpenBLAS 0.3.21 Haswell, 1 thread per rank", or the GPU with its
 * driver, libraries and clocks as they are at the call. */
char *exec_machine_describe(const char *device, const ExecBackend *backend);

/*
 * Sets measured_disturbed_fraction.
 *
 * @stolen_fraction  which share of the cores the host took while all was timed (of a resumed
 *                   profile, since it was resumed); NaN: not known.  A small share explains
 *                   nothing, and "others" had the cores.
 *
 * Returns: (owned, nullable) "the machine is busy, 12 of 80 timings were disturbed: ..."; NULL: so
 * few timings were disturbed that it is not worth a word.
 */
char *exec_machine_set_disturbed(Profile *profile, ExecSamplesTotal timings,
                                 double stolen_fraction);
