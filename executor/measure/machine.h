/*
 * executor/measure/machine.h - the machine that a profile describes, before anything is timed.
 *
 * The host: local-cpu.  A GPU: its data sheet, from the built-in cluster that has it, else what its
 * multiprocessors and clock give; ranks that share it are devices with equal parts of it.
 *
 * Private to executor/measure*.c.
 */
#ifndef EXECUTOR_MEASURE_MACHINE_H
#define EXECUTOR_MEASURE_MACHINE_H

#include "executor/device/backend.h"
#include "executor/transport/samples.h"
#include "profiles/profile.h"

G_BEGIN_DECLS

typedef struct {
    Profile *profile;    /* (owned) without measurements */
    int64_t flush_bytes; /* to write before an op that shall find cold caches; 0: nothing */
} ExecMachine;

/* @n_ranks  that share the device. */
bool exec_machine_init(ExecMachine *machine, const char *device, int64_t n_ranks, GError **error);

/* What becomes a parameter of the cost model: launches, copies, interference.  Of GPUs only: host
 * ranks compute, copy and communicate in turn, and pay for calls inside their ops. */
void exec_machine_set_parameters(Profile *profile);

/* Memory that a rank's backend came to hold for itself: libraries' workspaces; bf16 on a host,
 * whose products are those of fp32: widened operands. */
void exec_machine_set_workspace(Profile *profile, int64_t n_bytes);

/* Makes @profile, of one GPU and with collectives timed @between several (in words), one of all. */
void exec_machine_add_gpus(Profile *profile, const char *between);

/* Returns: (owned) "AMD EPYC 9B14, OpenBLAS 0.3.21 Haswell, 1 thread per rank", or the GPU with its
 * driver, libraries and clocks as they are at the call. */
char *exec_machine_describe(const char *device, const ExecBackend *backend);

/*
 * Sets measured_disturbed_fraction.
 *
 * @stolen_fraction  of the cores, by the host while that was timed, of a resumed profile since
 *                   then; NaN: not known.  A small one explains nothing: "others" had them.
 *
 * Returns: (owned, nullable) "the machine is busy, 12 of 80 timings were disturbed: ..."; NULL: too
 * few were.
 */
char *exec_machine_set_disturbed(Profile *profile, ExecSamplesTotal timings,
                                 double stolen_fraction);

G_END_DECLS

#endif /* EXECUTOR_MEASURE_MACHINE_H */
