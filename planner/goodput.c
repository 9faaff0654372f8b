#include "planner/goodput.h"

#include <math.h>

double
plan_goodput_young_s(double checkpoint_s, double job_mtbf_s)
{
    return sqrt(2 * checkpoint_s * job_mtbf_s);
}

double
plan_goodput_daly_s(double checkpoint_s, double job_mtbf_s)
{
    const double x = checkpoint_s / (2 * job_mtbf_s);

    if (isinf(job_mtbf_s) || x >= 1)
        return job_mtbf_s;
    return plan_goodput_young_s(checkpoint_s, job_mtbf_s) * (1 + sqrt(x) / 3 + x / 9) -
           checkpoint_s;
}

double
plan_goodput_fraction(double interval_s, double checkpoint_s, double restart_s, double job_mtbf_s)
{
    if (isinf(job_mtbf_s))
        return isinf(interval_s) ? 1 : interval_s / (interval_s + checkpoint_s);
    return interval_s / (job_mtbf_s * exp(restart_s / job_mtbf_s) *
                         expm1((interval_s + checkpoint_s) / job_mtbf_s));
}

/* More iterations than any run has; beyond 2^53 a double would not hold them. */
#define MAX_ITERATIONS 1e15

static double
fraction_of_iterations(const PlanGoodputRequest *request, const PlanGoodput *goodput, double n)
{
    return plan_goodput_fraction(n * request->iteration_s, goodput->checkpoint_s,
                                 request->restart_s, goodput->job_mtbf_s);
}

PlanGoodput
plan_goodput(const PlanGoodputRequest *request)
{
    PlanGoodput goodput = {
        .job_mtbf_s = request->device_mtbf_s / (double)request->n_devices,
        .checkpoint_s = request->checkpoint_bytes / request->checkpoint_bytes_per_s,
        .interval_s = INFINITY,
        .goodput_fraction = 1,
    };

    g_return_val_if_fail(request->n_devices >= 1 && request->iteration_s > 0, goodput);
    g_return_val_if_fail(request->device_mtbf_s > 0 && request->checkpoint_bytes_per_s > 0,
                         goodput);
    if (isinf(goodput.job_mtbf_s))
        return goodput;
    const double best =
        plan_goodput_daly_s(goodput.checkpoint_s, goodput.job_mtbf_s) / request->iteration_s;
    const double below = CLAMP(floor(best), 1, MAX_ITERATIONS);
    const double above = CLAMP(ceil(best), 1, MAX_ITERATIONS);
    const double n = fraction_of_iterations(request, &goodput, above) >
                             fraction_of_iterations(request, &goodput, below)
                         ? above
                         : below;
    goodput.interval_iterations = (int64_t)n;
    goodput.interval_s = n * request->iteration_s;
    goodput.goodput_fraction = fraction_of_iterations(request, &goodput, n);
    /* Each kept interval has one kept checkpoint. */
    goodput.checkpoint_loss_fraction =
        goodput.goodput_fraction * goodput.checkpoint_s / goodput.interval_s;
    goodput.failure_loss_fraction =
        fmax(0, 1 - goodput.goodput_fraction - goodput.checkpoint_loss_fraction);
    return goodput;
}
