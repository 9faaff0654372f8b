#include "simulator/finish.h"

/* Fills @last with the chunks' last backward ops, in the order in which they run. */
static int32_t
sort_last(const SimProgram *program, int32_t rank, int64_t last[SCHEDULE_MAX_CHUNKS])
{
    const int32_t n_chunks = program->schedule->n_chunks;
    int32_t n = 0;

    for (int32_t chunk = 0; chunk < n_chunks; chunk++) {
        const int64_t step = program->last_backward[(int64_t)rank * n_chunks + chunk];
        int32_t at = n;
        if (step < 0)
            continue;
        /* last[0 .. n) ascends. */
        for (; at > 0 && last[at - 1] > step; at--)
            last[at] = last[at - 1];
        last[at] = step;
        n++;
    }
    return n;
}

/* Part @i of @total cut in @n, the larger parts first. */
static int64_t
share(int64_t total, int32_t n, int32_t i)
{
    return total / n + (i < total % n);
}

static void
reduce_behind(const SimProgram *program, const SimTimes *times, int32_t rank, SimFinish *finish)
{
    const WorkloadRank *work = &program->workload->ranks[rank];
    int64_t last[SCHEDULE_MAX_CHUNKS];
    const int32_t n = sort_last(program, rank, last);
    int64_t end_ns = 0;

    for (int32_t i = 0; i < n; i++) {
        const SimOpTimes op = sim_times_step(times, program, (uint32_t)last[i]);
        const int64_t piece_ns = share(work->dp_reduce_ns, n, i);
        const int64_t start_ns = MAX(end_ns, MAX(op.start_ns, op.end_ns - piece_ns));
        end_ns = start_ns + piece_ns;
        finish->reduce[i] = (SimPiece){start_ns, end_ns, share(work->dp_reduce_bytes, n, i)};
    }
    finish->n_pieces = n;
}

void
sim_finish_rank(const SimProgram *program, const SimTimes *times, int32_t rank, SimFinish *finish)
{
    const WorkloadRank *work = &program->workload->ranks[rank];
    int64_t reduced_ns = times->free_ns[rank];

    finish->free_ns = times->free_ns[rank];
    finish->n_pieces = 0;
    if (work->dp_reduce_ns > 0 || work->dp_reduce_bytes > 0) {
        if (program->workload->overlap_dp)
            reduce_behind(program, times, rank, finish);
        if (finish->n_pieces == 0) {
            finish->reduce[0] = (SimPiece){finish->free_ns, finish->free_ns + work->dp_reduce_ns,
                                           work->dp_reduce_bytes};
            finish->n_pieces = 1;
        }
        reduced_ns = finish->reduce[finish->n_pieces - 1].end_ns;
    }
    finish->optimizer_start_ns = MAX(finish->free_ns, reduced_ns);
    finish->optimizer_end_ns = finish->optimizer_start_ns + work->optimizer_ns;
    finish->end_ns = finish->optimizer_end_ns + work->dp_gather_ns;
}
