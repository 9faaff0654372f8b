#include "profiles/profile.h"

#include <sched.h>
#include <unistd.h>

/* Cores this process may run on. */
static int64_t
n_cores(void)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN); /* more than 1024 processors, or no affinity */
    return online > 0 ? online : 1;
}

static int64_t
memory_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    int64_t bytes;

    if (pages <= 0 || page <= 0 || __builtin_mul_overflow((int64_t)pages, (int64_t)page, &bytes))
        return INT64_C(1) << 30;
    return bytes;
}

/* fp32 operations of one core per cycle: two multiply-add units of 16, 8 or 4 lanes, one
 * multiplier and one adder without FMA [Intel 64 optimization manual, Agner Fog's tables]. */
static double
flops_per_cycle(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f"))
        return 64.0;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return 32.0;
    if (__builtin_cpu_supports("avx"))
        return 16.0;
    return 8.0;
#elif defined(__aarch64__)
    return 16.0;
#else
    return 8.0;
#endif
}

/* What the system does not tell: the clock under vector load, typical of servers of 2018-2024. */
#define CLOCK_HZ 2.5e9

void
profile_set_local_cpu(ModelCluster *cluster)
{
    ModelDevice *core = &g_array_index(cluster->devices, ModelDevice, 0);
    ModelNodes *node = &g_array_index(cluster->nodes, ModelNodes, 0);

    node->n_devices = n_cores();
    core->flops_per_s[DTYPE_FP32] = core->vector_flops_per_s = CLOCK_HZ * flops_per_cycle();
    core->memory_bytes = memory_bytes() / node->n_devices;
}
