#include "profiles/profile.h"

#include <sched.h>
#include <unistd.h>

/* Cores this process may run on. */
static int64_t
n_cores(void)
{
    cpu_set_t set;
    long online;

    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
    online = sysconf(_SC_NPROCESSORS_ONLN); /* more than 1024 processors, or no affinity */
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

/* What the system does not tell; typical of servers of 2018 to 2024, and what `degas profile`
 * replaces by measurements: clock under vector load, one core's share of memory bandwidth, a copy
 * between two cores and its notification. */
#define CLOCK_HZ 2.5e9
#define CORE_BYTES_PER_S 10e9
#define COPY_BYTES_PER_S 5e9
#define NOTIFY_S 5e-6

char *
profile_describe_local_cpu(void)
{
    g_autoptr(JsonWriter) writer = json_writer_new();
    int64_t cores = n_cores();
    double flops_per_s = CLOCK_HZ * flops_per_cycle();

    json_write_object(writer, NULL);
    json_write_string(writer, "format", "degas-profile");
    json_write_int64(writer, "version", 1);
    json_write_string(writer, "name", "local-cpu");
    json_write_object(writer, "cluster");
    json_write_string(writer, "name", "local-cpu");
    json_write_array(writer, "devices");
    json_write_object(writer, NULL);
    json_write_string(writer, "name", "cpu-core");
    json_write_object(writer, "flops_per_s");
    json_write_double(writer, "fp32", flops_per_s);
    json_write_object_end(writer);
    json_write_double(writer, "vector_flops_per_s", flops_per_s);
    json_write_int64(writer, "memory_bytes", memory_bytes() / cores);
    json_write_double(writer, "memory_bytes_per_s", CORE_BYTES_PER_S);
    json_write_int64(writer, "n_multiprocessors", 1);
    json_write_object_end(writer);
    json_write_array_end(writer);
    json_write_array(writer, "nodes");
    json_write_object(writer, NULL);
    json_write_string(writer, "device", "cpu-core");
    json_write_int64(writer, "n_devices", cores);
    json_write_int64(writer, "n_nodes", 1);
    json_write_object_end(writer);
    json_write_array_end(writer);
    json_write_array(writer, "levels");
    json_write_object(writer, NULL);
    json_write_string(writer, "name", "memory");
    json_write_int64(writer, "group_devices", 0);
    json_write_double(writer, "bytes_per_s", COPY_BYTES_PER_S);
    json_write_double(writer, "latency_s", NOTIFY_S);
    json_write_object_end(writer);
    json_write_array_end(writer);
    json_write_array(writer, "sources");
    json_write_string(writer, NULL,
                      "cores from sched_getaffinity, memory from sysconf, rates from cpuid at an "
                      "assumed 2.5 GHz and 10 GB/s per core; measure with: degas profile");
    json_write_array_end(writer);
    json_write_object_end(writer);
    /* A core has no tiles to fill, no driver and no context; OpenBLAS reaches about three quarters
     * of one core's peak. */
    json_write_object(writer, "cost");
    json_write_double(writer, "gemm_fraction", 0.75);
    json_write_double(writer, "gemm_k_half", 16.0);
    json_write_double(writer, "gemm_tile_m", 8.0);
    json_write_double(writer, "gemm_tile_n", 8.0);
    json_write_double(writer, "attention_forward_fraction", 0.4);
    json_write_double(writer, "attention_backward_fraction", 0.4);
    json_write_double(writer, "kernel_s", 1e-6);
    json_write_double(writer, "memory_kernel_s", 1e-6);
    json_write_double(writer, "host_kernel_s", 0.0);
    json_write_double(writer, "host_collective_s", 0.0);
    json_write_double(writer, "collective_s", 5e-6);
    json_write_double(writer, "p2p_s", 2e-6);
    json_write_double(writer, "context_bytes", 2e7);
    json_write_double(writer, "blas_workspace_bytes", 0.0);
    json_write_double(writer, "workspace_bytes", 0.0);
    json_write_double(writer, "driver_bytes", 0.0);
    json_write_double(writer, "communicator_bytes", 0.0);
    json_write_double(writer, "allocator_fraction", 0.0);
    json_write_object_end(writer);
    json_write_object_end(writer);
    return json_writer_steal(writer, NULL);
}
