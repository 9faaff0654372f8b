/*
 * planner/goodput.h - how much of a run's time is training that is kept, when devices fail and the
 * state is saved now and then.
 *
 * The module knows no plan and no simulator: seconds and bytes go in, seconds and fractions come
 * out.
 *
 * Failures are a Poisson process, and the failure of any of n devices stops the job, so the job's
 * mean time between failures is M = device_mtbf_s / n.  A checkpoint takes d = bytes / rate, during
 * which nobody trains.  Let tau be the training time between checkpoints, and R the time from a
 * failure until training goes on.  Then a run of T_s of training lasts  [Daly 2006]
 *
 *   T_w = M exp(R / M) (exp((tau + d) / M) - 1) T_s / tau
 *
 * which counts failures during checkpoints and restarts too, and goodput = T_s / T_w.  The best
 * tau:
 *
 *   first order   sqrt(2 d M)                                                     [Young 1974]
 *   higher order  sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + d / 2M / 9) - d,  d < 2M;   [Daly 2006]
 *                 M otherwise
 *
 * State can be saved between iterations only, so the interval is a whole number of them: of the two
 * next to Daly's tau, the one with the smaller T_w.
 *
 * Thread-safety: pure.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

/* One device with its share of node and network: 419 unexpected interruptions of 16384 H100 in 54
 * days  [Llama 3, arXiv:2407.21783, section 3.3.4]; 5.8 years. */
#define PLAN_GOODPUT_DEVICE_MTBF_S (16384.0 * 54 * 86400 / 419)
/* What the storage of that run sustained, 2 TB/s for 16384 devices  [section 3.3.1]. */
#define PLAN_GOODPUT_BYTES_PER_S_PER_DEVICE (2e12 / 16384)
/* "Within 15 minutes" from the failure back to where the job was, with diagnosis, at 10 000 devices
 * [MegaScale, arXiv:2402.15627]. */
#define PLAN_GOODPUT_RESTART_S 900.0

typedef struct {
    int64_t n_devices;             /* >= 1 */
    double device_mtbf_s;          /* > 0; INFINITY: nothing fails */
    double checkpoint_bytes;       /* >= 0: of the whole job */
    double checkpoint_bytes_per_s; /* > 0: of the whole storage */
    double restart_s;              /* >= 0 */
    double iteration_s;            /* > 0 */
} PlanGoodputRequest;

typedef struct {
    double job_mtbf_s;
    double checkpoint_s;             /* d */
    double interval_s;               /* of training between checkpoints; INFINITY: never */
    int64_t interval_iterations;     /* 0: never */
    double goodput_fraction;         /* of the time, training that is kept */
    double checkpoint_loss_fraction; /* of the time, spent on checkpoints that are kept */
    double failure_loss_fraction;    /* of the time: restarts, and what is done twice */
} PlanGoodput;

/* Young's and Daly's best interval; both > 0. */
double plan_goodput_young_s(double checkpoint_s, double job_mtbf_s);
double plan_goodput_daly_s(double checkpoint_s, double job_mtbf_s);

/* T_s / T_w of @interval_s > 0; 0 where it underflows: such a run does not end. */
double plan_goodput_fraction(double interval_s, double checkpoint_s, double restart_s,
                             double job_mtbf_s);

/* The best interval of whole iterations, and what it leaves.  The three fractions add up to 1. */
PlanGoodput plan_goodput(const PlanGoodputRequest *request);
