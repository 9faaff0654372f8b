#!/usr/bin/env python3
"""What this machine's PyTorch makes of the products, attention and AdamW of one layer of GPT-3 1.3B.

Prints a line each, with tabs: WHAT PASS SHAPE SECONDS RATE UNIT.  Seconds are medians, with empty caches, as
`degas profile` takes them; AdamW's are of a billion elements.  Attention is by the fastest of PyTorch's kernels.
Status 77 and the reason on stderr if there is no PyTorch or no such device.
usage: gpu_ceilings.py [--device cuda|cpu] [--batch N] [--seq N] [--hidden N] [--heads N] [--ffn N] [--elements N]
"""
import argparse
import statistics
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda")
for name, value in dict(batch=4, seq=2048, hidden=2048, heads=16, ffn=8192, elements=200_000_000).items():
    parser.add_argument("--" + name, type=int, default=value)
args = parser.parse_args()
try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as error:
    sys.exit(print(f"no PyTorch here: {error}", file=sys.stderr) or 77)
if args.device == "cuda" and not torch.cuda.is_available():
    sys.exit(print("PyTorch finds no GPU", file=sys.stderr) or 77)

on_gpu = args.device == "cuda"
cache = torch.empty(1 << (27 if on_gpu else 20), dtype=torch.int8, device=args.device)


def seconds(run, repetitions=11):
    """The median time of run(), the caches emptied before each."""
    times = []
    for repetition in range(repetitions + 3):
        cache.zero_()
        if on_gpu:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            run()
            end.record()
            end.synchronize()
            took = begin.elapsed_time(end) * 1e-3
        else:
            begin = time.perf_counter()
            run()
            took = time.perf_counter() - begin
        if repetition >= 3:
            times.append(took)
    return statistics.median(times)


def tell(what, which, shape, took, amount, unit):
    print(what, which, shape, f"{took:.6g}", f"{amount / took:.6g}", unit, sep="\t", flush=True)


def random(*shape):
    return torch.randn(*shape, dtype=torch.bfloat16, device=args.device)


rows = args.batch * args.seq
print(f"PyTorch {torch.__version__} on {torch.cuda.get_device_name() if on_gpu else 'the CPU'}", file=sys.stderr)
for n, k in ((3 * args.hidden, args.hidden), (args.hidden, args.hidden), (args.ffn, args.hidden), (args.hidden, args.ffn)):
    x, w, dy = random(rows, k), random(n, k), random(rows, n)
    tera = 2e-12 * rows * n * k
    tell("products", "forward", f"y {rows}x{n}x{k}", seconds(lambda: x @ w.T), tera, "TFLOP/s")
    tell("products", "backward", f"dx {rows}x{k}x{n}", seconds(lambda: dy @ w), tera, "TFLOP/s")
    tell("products", "backward", f"dw {n}x{k}x{rows}", seconds(lambda: dy.T @ x), tera, "TFLOP/s")

size = args.hidden // args.heads
q, k, v = (random(args.batch, args.heads, args.seq, size).requires_grad_() for _ in range(3))
dout = random(args.batch, args.heads, args.seq, size)
tera = 2e-12 * args.batch * args.heads * args.seq * args.seq * size  # two products of which half is masked
best = {}
for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
    try:
        with sdpa_kernel(backend):
            attend = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            out = attend()
            times = {
                "forward": seconds(attend),
                "backward": seconds(lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)),
            }
    except RuntimeError as error:
        print(f"{backend.name}: {error}", file=sys.stderr)
        continue
    for which, took in times.items():
        best[which] = min(best.get(which, (took, backend.name)), (took, backend.name))
for which, (took, kernel) in best.items():
    shape = f"{args.batch}x{args.heads}x{args.seq}x{size} by {kernel.lower()}"
    tell("attention", which, shape, took, tera * (1 if which == "forward" else 2.5), "TFLOP/s")

parameter = torch.zeros(args.elements, device=args.device, requires_grad=True)
parameter.grad = torch.zeros_like(parameter)
optimizer = torch.optim.AdamW([parameter], fused=True)
took = seconds(optimizer.step) * 1e9 / args.elements
tell("AdamW", "step", "1e9 elements", took, 28, "GB/s")  # reads p, g, m, v and writes p, m, v, fp32 each
