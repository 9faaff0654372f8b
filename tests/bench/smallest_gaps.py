#!/usr/bin/env python3
"""The smallest pipelines whose time is more than 5 % above its bound, family by family, and the best of all orders.

usage: smallest_gaps.py DEGAS [FAMILY...]     needs PyPI's ortools; docs/bounds.md has what it printed

An op of a stage takes F=1, B=2 (or I=1, W=1), a message nothing, and that times what VARIANTS say.  For each family and variant,
and each shape of few ops, in the order of their number:

  bound     of planner/bounds/plan_bound.h, without ends and paths of an order: of each rank its wait, its work and its drain;
            of each stage alone; of one chunk, what slices of different lengths leave idle
  gradient  the same with the wait for the first gradient, where a rank has one chunk (docs/bounds.md)
  optimum   the least time of any order of the same ops on the same ranks, whatever they hold, by constraint programming
  family    the family's own order

A bound below the optimum is lost by the bound; an optimum below the family's time is an order that the family has not.
"""
import itertools, json, subprocess, sys
from ortools.sat.python import cp_model

TIME = {"F": 1, "B": 2, "I": 1, "W": 1}
# What the time of an op is multiplied with, by stage, rank and slice.
VARIANTS = {
    "alike": lambda stage, n_stages, rank, s: 1,
    "a head twice as long": lambda stage, n_stages, rank, s: 2 if stage == n_stages - 1 else 1,
    "a first stage half as long": lambda stage, n_stages, rank, s: 1 if stage == 0 else 2,
    "experts in every second stage": lambda stage, n_stages, rank, s: 1 + stage % 2,
    "slow devices on the last rank": lambda stage, n_stages, rank, s: 1 + (rank == -1),
    "slow devices on the first rank": lambda stage, n_stages, rank, s: 1 + (rank == 0),
    "later slices longer": lambda stage, n_stages, rank, s: 1 + s,
}
MOST = 54  # ops of a direction


def read(degas, family, p, v, m, k):
    words = [degas, "schedule", family, "--pp", str(p), "--microbatches", str(m), "--json"]
    words += ["--vpp", str(v)] if v > 1 else []
    words += ["--slices", str(k)] if k > 1 else []
    run = subprocess.run(words, capture_output=True, text=True)
    if run.returncode:
        return None
    schedule = json.loads(run.stdout)
    ranks = []
    for rank in schedule["ranks"]:
        ops = []
        for word in rank:
            rest, _, s = word[1:].partition("s")
            mb, _, chunk = rest.partition(".")
            ops.append((word[0], int(mb), int(chunk or 0), int(s or 0)))
        ranks.append(ops)
    return schedule, ranks


def stage_of(schedule, rank, chunk):
    p = schedule["stages"]
    if schedule.get("placement") == "bidir":
        return (chunk, rank if chunk == 0 else p - 1 - rank)
    if schedule.get("placement") == "v" and chunk % 2:
        return (0, chunk * p + p - 1 - rank)
    return (0, chunk * p + rank)


def graph(schedule, ranks, factor):
    """Ops as (rank, duration), what each needs, and what needs no order of its own."""
    k = schedule["slices"]
    p = schedule["stages"]
    n_stages = p * (1 if schedule.get("placement") == "bidir" else schedule["virtual"])
    at, ops = {}, []
    for r, order in enumerate(ranks):
        for kind, mb, chunk, s in order:
            chain, stage = stage_of(schedule, r, chunk)
            at[("W" if kind == "W" else "F" if kind == "F" else "B", mb, chain, stage, s)] = len(ops)
            ops.append([r, TIME[kind] * factor(stage, n_stages, r - p if r == p - 1 else r, s), kind, mb, chain, stage, s, []])
    for op in ops:
        r, d, kind, mb, chain, stage, s, needs = op
        def need(*key):
            if key in at:
                needs.append(at[key])
        if kind == "F":
            need("F", mb, chain, stage - 1, s)
            need("F", mb, chain, stage, s - 1)
        elif kind == "W":
            need("B", mb, chain, stage, s)
        else:
            need("F", mb, chain, stage, s)
            need("B", mb, chain, stage + 1, s)
            need("B", mb, chain, stage, s + 1)
            if stage == max(o[5] for o in ops if o[4] == chain):
                need("F", mb, chain, stage, k - 1)
    return ops


def family_time(ops):
    """In the family's order."""
    end, free = {}, {}
    pending = True
    by_rank = {}
    for i, op in enumerate(ops):
        by_rank.setdefault(op[0], []).append(i)
    nxt = {r: 0 for r in by_rank}
    while pending:
        pending = False
        for r, list_ in by_rank.items():
            while nxt[r] < len(list_) and all(n in end for n in ops[list_[nxt[r]]][7]):
                i = list_[nxt[r]]
                start = max([free.get(r, 0)] + [end[n] for n in ops[i][7]])
                end[i] = free[r] = start + ops[i][1]
                nxt[r] += 1
                pending = True
    assert len(end) == len(ops)
    return max(end.values())


def bound(schedule, ops):
    """plan_bound.h without messages and ends; of two chains the waits are those of the nearer first stage."""
    p = schedule["stages"]
    split = any(op[2] == "I" for op in ops)
    time = {}
    for op in ops:
        if op[2] != "W":
            key = (op[2] == "F", op[4], op[5])
            time.setdefault(key, {})[op[6]] = op[1]
    def way(forward, chain, stage):
        """Of the slice that is first there and last to come back."""
        return sum(time[(forward, chain, s)][0] for s in range(stage))
    def fill(forward, chain, stage):
        """Slices of one micro-batch through the stages before: when the last one has come, less their time here."""
        here = time[(forward, chain, stage)]
        order = sorted(here) if forward else sorted(here, reverse=True)
        free = [0] * (stage + 1)
        if forward:
            for s in order:
                t = 0
                for q in range(stage + 1):
                    t = free[q] = max(t, free[q]) + time[(True, chain, q)][s]
            return free[stage] - sum(here.values())
        for s in order:
            t = 0
            for q in range(stage, -1, -1):
                t = free[q] = max(t, free[q]) + time[(False, chain, q)][s]
        return free[0] - sum(here.values())
    best = 0
    for r in range(p):
        mine = [op for op in ops if op[0] == r]
        stages = {(op[4], op[5]) for op in mine}
        work = sum(op[1] for op in mine)
        best = max(best, min(way(True, c, s) for c, s in stages) + work +
                   (0 if split else min(way(False, c, s) for c, s in stages)))
        for c, s in stages:
            here = sum(op[1] for op in mine if (op[4], op[5]) == (c, s) and op[2] != "W")
            best = max(best, way(True, c, s) + here + way(False, c, s))
        if len(stages) == 1:
            c, s = next(iter(stages))
            best = max(best, fill(True, c, s) + work + (0 if split else fill(False, c, s)))
    return best


def gradient(schedule, ops):
    """What a rank of one chunk takes at the least, as it has only forwards to run before its first gradient is back."""
    split = any(op[2] == "I" for op in ops)
    k = schedule["slices"]
    best = 0
    for r in range(schedule["stages"]):
        mine = [op for op in ops if op[0] == r]
        if len({(op[4], op[5]) for op in mine}) > 1:
            return 0
        chain, stage = mine[0][4], mine[0][5]
        first = [op for op in ops if op[3] == min(o[3] for o in ops)]
        forwards = sum(op[1] for op in mine if op[2] == "F")
        backwards = sum(op[1] for op in mine if op[2] != "F")
        there = sum(op[1] for op in first if op[0] == r and op[2] == "F")
        back = sum(op[1] for op in first if op[2] != "W" and op[5] > stage and op[6] == k - 1)
        wait = sum(op[1] for op in first if op[2] == "F" and op[5] < stage and op[6] == 0)
        drain = 0 if split else sum(op[1] for op in first if op[2] == "B" and op[5] < stage and op[6] == 0)
        best = max(best, wait + max(forwards, there + back) + backwards + drain)
    return best


def optimum(ops, most, limit_s=20):
    model = cp_model.CpModel()
    starts, intervals, by_rank = [], [], {}
    for op in ops:
        start = model.NewIntVar(0, most, "")
        starts.append(start)
        by_rank.setdefault(op[0], []).append(model.NewFixedSizeIntervalVar(start, op[1], ""))
    for i, op in enumerate(ops):
        for n in op[7]:
            model.Add(starts[i] >= starts[n] + ops[n][1])
    for list_ in by_rank.values():
        model.AddNoOverlap(list_)
    end = model.NewIntVar(0, most, "")
    for i, op in enumerate(ops):
        model.Add(end >= starts[i] + op[1])
    model.Minimize(end)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = limit_s
    status = solver.Solve(model)
    return int(solver.ObjectiveValue()), status == cp_model.OPTIMAL


def main():
    degas = sys.argv[1]
    families = sys.argv[2:] or ("1f1b gpipe seq1f1b terapipe interleaved seq1f1b-interleaved zb-h1 zb-h2 zb-v v-half v-min "
                                "interleaved-zb dualpipe dualpipev looped-bfs").split()
    for family, (variant, factor) in itertools.product(families, VARIANTS.items()):
        shapes = sorted(itertools.product((2, 3), (1, 2, 3), (1, 2, 3, 4, 6), (1, 2, 3)),
                        key=lambda s: (s[0] * s[1] * s[2] * s[3], s))
        wanted, n = {"bound", "order"}, 0
        for p, v, m, k in shapes:
            if not wanted or n == 12 or p * v * m * k > MOST:
                break
            if m * k == 1 or (variant.startswith("later") and k == 1):
                continue
            got = read(degas, family, p, v, m, k)
            if got is None or got[0]["virtual"] != v or got[0]["slices"] != k:
                continue
            schedule, ranks = got
            ops = graph(schedule, ranks, factor)
            s, b = family_time(ops), bound(schedule, ops)
            if s <= 1.05 * b:
                continue
            n += 1
            o, proved = optimum(ops, s)
            lost = {word for word, is_lost in (("bound", proved and o > 1.05 * b), ("order", s > 1.05 * o)) if is_lost}
            if lost & wanted:
                wanted -= lost
                print(f"{family:20} {variant:30} pp {p} vpp {v} micro-batches {m} slices {k}: bound {b}, gradient {max(b, gradient(schedule, ops))}, optimum "
                      f"{'' if proved else '<= '}{o}, family {s}  {' and '.join(sorted(lost))} loses", flush=True)


main()
