#!/usr/bin/env python3
# How much can another placement of chunks gain over loop and V?  Every division of a small stack into p v stages and every
# placement (which rank has which stage, v each) is tried; time = a greedy list schedule of m micro-batches (F=1,B=2), and the
# busiest rank's load, which is the step's time for many micro-batches.
import itertools, random, heapq, sys
def divisions(n, k):
    for cuts in itertools.combinations(range(1, n), k - 1):
        c = (0,) + cuts + (n,)
        yield [(c[i], c[i + 1]) for i in range(k)]
def placements(p, v):
    n = p * v
    seen = set()
    def rec(i, left, cur, used):
        if i == n:
            yield tuple(cur); return
        for r in range(min(used + 1, p)):
            if left[r]:
                left[r] -= 1; cur.append(r)
                yield from rec(i + 1, left, cur, max(used, r + 1))
                cur.pop(); left[r] += 1
    yield from rec(0, [v] * p, [], 0)
def makespan(times, place, p, m, comm):
    # backward first, then the latest stage, oldest micro-batch: a greedy order without memory limits
    N = len(times); free = [0.0] * p; ready = {}
    ev = []
    avail = [[] for _ in range(p)]
    cnt = 0
    def push(t, kind, s, j):
        nonlocal cnt
        heapq.heappush(ev, (t, cnt, kind, s, j)); cnt += 1
    for j in range(m): push(0.0, 0, 0, j)
    done = 0.0
    t = 0.0
    busy = [False] * p
    def start(r, now):
        if busy[r] or not avail[r]: return
        kind, s, j = min(avail[r], key=lambda x: (-x[0], x[2], -x[1]))
        avail[r].remove((kind, s, j)); busy[r] = True
        d = times[s] * (2 if kind else 1)
        push(now + d, 2 + kind, s, j)
    while ev:
        now = ev[0][0]
        touched = set()
        while ev and ev[0][0] <= now:
            _, _, kind, s, j = heapq.heappop(ev); r = place[s]
            if kind < 2:
                avail[r].append((kind, s, j)); touched.add(r)
            else:
                busy[r] = False; touched.add(r); done = max(done, now)
                if kind == 2:
                    if s + 1 < N: push(now + (comm if place[s+1] != r else 0), 0, s + 1, j)
                    else: push(now, 1, s, j)
                elif s > 0: push(now + (comm if place[s-1] != r else 0), 1, s - 1, j)
        for r in touched: start(r, now)
    return done
random.seed(7)
def study(p, v, n, m, trials, kinds):
    rows = []
    loop = tuple(i % p for i in range(p * v))
    vee = tuple((i % p) if (i // p) % 2 == 0 else p - 1 - i % p for i in range(p * v))
    alls = list(placements(p, v))
    g_load, g_time = [], []
    for _ in range(trials):
        t = kinds(n)
        best = {}
        for d in divisions(n, p * v):
            st = [sum(t[a:b]) for a, b in d]
            for pl in alls:
                load = [0.0] * p
                for s, r in zip(st, pl): load[r] += s
                key = 'known' if pl in (loop, vee) else 'other'
                l = max(load)
                best.setdefault(key + 'load', []).append(l)
                best.setdefault(key + 'cand', []).append((l, st, pl))
        g_load.append(1 - min(best['otherload']) / min(best['knownload']))
        # times of the candidates with least load
        def best_time(key):
            c = sorted(best[key + 'cand'], key=lambda x: x[0])[:60]
            return min(makespan(st, pl, p, m, 0.02 * sum(t) / n) for _, st, pl in c)
        g_time.append(1 - best_time('other') / best_time('known'))
    f = lambda g: "mean %.1f %%, 9 of 10 within %.1f %%, most %.1f %%" % (100 * sum(g) / len(g), 100 * sorted(g)[int(.9 * len(g))], 100 * max(g))
    print(f"p {p} v {v} layers {n} micro-batches {m}: load {f(g_load)}; time {f(g_time)}", flush=True)
ends = lambda n: [0.2 + 1] + [1.0] * (n - 2) + [1 + random.choice([.5, 1, 2])]
mixed = lambda n: [random.choice([1.0, 1.0, 3.0]) for _ in range(n - 1)] + [2.0]
hybrid = lambda n: [3.0 if i % 4 == 3 else 1.0 for i in range(n - 1)] + [2.5]
for name, k in (('ends', ends), ('mixed', mixed), ('hybrid', hybrid)):
    print(name)
    study(2, 2, 8, 4, 20, k); study(2, 2, 8, 8, 20, k); study(2, 3, 9, 6, 6, k); study(3, 2, 9, 6, 6, k)
