"""The best splits of a job at several sizes, by libdegas and ctypes: python3 plan.py [LIBRARY]."""
import ctypes
import json
import sys


class Result(ctypes.Structure):
    """DegasResult of degas.h."""

    _fields_ = (
        [("size", ctypes.c_size_t), ("message", ctypes.c_char_p), ("json", ctypes.c_char_p)]
        + [(name, ctypes.c_double) for name in (
            "iteration_s", "tokens_per_s", "model_flops_utilization_fraction", "bubble_fraction",
            "lower_bound_s", "cost_per_iteration", "energy_per_iteration_j")]
        + [(name, ctypes.c_int64) for name in (
            "peak_memory_bytes", "memory_limit_bytes", "n_devices", "global_batch", "seq_len",
            "micro_batch", "n_micro_batches", "n_slices", "dp", "tp", "pp", "vpp", "cp", "ep",
            "zero_stage", "fits")]
        + [("schedule", ctypes.c_char * 32), ("recompute", ctypes.c_char * 32)]
    )


library = ctypes.CDLL(sys.argv[1] if len(sys.argv) > 1 else "libdegas.so.0")
library.degas_plan.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(Result)]
library.degas_simulate.argtypes = [ctypes.c_char_p, ctypes.POINTER(Result)]
library.degas_result_clear.argtypes = [ctypes.POINTER(Result)]

for gpus in 16, 32, 64:
    request = {"model": "llama3-8b", "cluster": "dgx-h100", "gpus": gpus, "global_batch": 128}
    result = Result(size=ctypes.sizeof(Result))
    status = library.degas_plan(json.dumps(request).encode(), None, result)
    if status != 0:
        sys.exit(f"status {status}: {result.message.decode()}")
    print(f"{gpus:3} devices: dp {result.dp}, tp {result.tp}, pp {result.pp}, "
          f"{result.schedule.decode()}: {result.iteration_s:.3f} s, "
          f"{result.peak_memory_bytes / 2**30:.1f} GiB of {result.memory_limit_bytes / 2**30:.1f}")
    plan = result.json  # a degas-plan, as degas plan -o writes it
    again = Result(size=ctypes.sizeof(Result))
    assert library.degas_simulate(plan, again) == 0 and again.iteration_s == result.iteration_s
    library.degas_result_clear(again)
    library.degas_result_clear(result)
