#include "executor/model/state_pieces.h"

#include "executor/model/attention.h"

/* A slice in pieces, in the order of the sequence. */
typedef struct {
    int32_t n;      /* cp, or twice as many, of which the later ones go back from rank to rank */
    int64_t tokens; /* of each */
} Pieces;

static Pieces
pieces_of(const ExecStateWork *work)
{
    const int64_t cp = work->layer->widths->cp, tokens = work->layer->slice.tokens;
    ExecChunk chunks[EXEC_STATE_PIECES];
    const int n = exec_slice_chunks(tokens, cp, 0, chunks);

    return (Pieces){.n = (int32_t)(n * cp), .tokens = chunks[0].n};
}

/* The rank that has piece @i, and in *number which of its pieces that is. */
static int32_t
owner_of(const ExecStateWork *work, int32_t i, int *number)
{
    const int32_t cp = (int32_t)work->layer->widths->cp;

    *number = i / cp;
    return i < cp ? i : 2 * cp - 1 - i;
}

/* @x [rows, cols], from row @row on; NULL stays NULL. */
static void *
rows_from(const ExecStateWork *work, void *x, int64_t row, int64_t cols)
{
    return x == NULL ? NULL : exec_at(work->backend, x, row * cols);
}

static float *
words_from(float *x, int64_t row, int64_t cols)
{
    return x == NULL ? NULL : x + row * cols;
}

static int64_t
handed_floats(const ExecStateWork *work)
{
    return exec_state_handed(&work->s, work->layer->slice.sequences);
}

/* The mixer at work on this rank's piece @number. */
static ExecStateWork
work_on(const ExecStateWork *work, const Pieces *pieces, int number)
{
    const ModelStateWidths *w = &work->s.w;
    const int64_t rows = pieces->tokens * work->layer->slice.sequences, row = number * rows;
    ExecStateWork one = *work;
    ExecStateTensors *t = &one.t;

    one.rows = rows;
    one.tokens = pieces->tokens;
    t->in = rows_from(work, t->in, row, w->in);
    t->convolved = rows_from(work, t->convolved, row, w->conv);
    t->middle = rows_from(work, t->middle, row, exec_state_middle_columns(work));
    t->decays = words_from(t->decays, row, work->s.n_gates);
    t->rates = words_from(t->rates, row, work->s.n_rates);
    t->scanned = rows_from(work, t->scanned, row, w->values);
    t->d_in = rows_from(work, t->d_in, row, w->in);
    t->d_convolved = rows_from(work, t->d_convolved, row, w->conv);
    t->d_middle = rows_from(work, t->d_middle, row, exec_state_middle_columns(work));
    t->d_result = rows_from(work, t->d_result, row, w->values);
    t->d_decays = words_from(t->d_decays, row, work->s.n_gates);
    t->d_rates = words_from(t->d_rates, row, work->s.n_rates);
    if (number > 0 || work->layer->comm->groups[EXEC_DIM_CP].index > 0)
        one.start = t->starts + number * handed_floats(work);
    one.end = NULL;
    one.d_state = t->d_state;
    return one;
}

/* Gives @n floats at @out of rank @from to @in of rank @to, where they may not overlap. */
static void
pass(const ExecStateWork *work, int32_t from, int32_t to, int64_t n, const float *out, float *in)
{
    const int32_t own = work->layer->comm->groups[EXEC_DIM_CP].index;
    const size_t cp = (size_t)work->layer->widths->cp;
    g_autofree int64_t *out_bytes = g_new0(int64_t, cp);
    g_autofree int64_t *in_bytes = g_new0(int64_t, cp);

    if (own == from)
        out_bytes[to] = n * (int64_t)sizeof *out;
    if (own == to)
        in_bytes[from] = n * (int64_t)sizeof *in;
    exec_comm_all_to_all(work->layer->comm, EXEC_DIM_CP,
                         &(ExecExchange){out, out_bytes, in, in_bytes});
}

/* The part of states that a step hands on. */
typedef struct {
    int64_t at, n;
} Part;

static Part
part_of(const ExecStateWork *work, bool scan)
{
    const int64_t n = exec_state_handed_scan(&work->s, work->layer->slice.sequences);

    return scan ? (Part){0, n} : (Part){n, handed_floats(work) - n};
}

void
exec_state_each_piece(const ExecStateWork *work, bool scan,
                      void (*compute)(const ExecStateWork *work))
{
    const Pieces pieces = pieces_of(work);
    const Part part = part_of(work, scan);
    const int32_t own = work->layer->comm->groups[EXEC_DIM_CP].index;
    int number, next;

    if (work->layer->widths->cp == 1) {
        compute(work);
        return;
    }
    for (int32_t i = 0; i < pieces.n; i++) {
        const bool last = i + 1 == pieces.n;
        const int32_t from = owner_of(work, i, &number);
        const int32_t to = last ? 0 : owner_of(work, i + 1, &next);
        if (from == own) {
            ExecStateWork one = work_on(work, &pieces, number);
            one.end = work->t.end;
            compute(&one);
        }
        if (!last)
            pass(work, from, to, part.n, work->t.end + part.at,
                 work->t.starts + next * handed_floats(work) + part.at);
        else if (work->end != NULL)
            pass(work, from, to, part.n, work->t.end + part.at, work->end + part.at);
    }
}

void
exec_state_each_piece_back(const ExecStateWork *work, bool scan,
                           void (*compute)(const ExecStateWork *work))
{
    const Pieces pieces = pieces_of(work);
    const Part part = part_of(work, scan);
    const int32_t own = work->layer->comm->groups[EXEC_DIM_CP].index;
    const size_t n_bytes = (size_t)part.n * sizeof(float);
    float *d_state = work->t.d_state + part.at, *d_memory = work->d_state;
    int number;

    if (work->layer->widths->cp == 1) {
        compute(work);
        return;
    }
    if (d_memory == NULL)
        work->backend->ops->zero(work->backend, n_bytes, d_state);
    else
        pass(work, 0, owner_of(work, pieces.n - 1, &number), part.n, d_memory + part.at, d_state);
    for (int32_t i = pieces.n - 1; i >= 0; i--) {
        const int32_t from = owner_of(work, i, &number);
        if (from == own) {
            const ExecStateWork one = work_on(work, &pieces, number);
            compute(&one);
        }
        const int32_t to = i == 0 ? from : owner_of(work, i - 1, &number);
        if (to != from)
            pass(work, from, to, part.n, d_state, d_state);
    }
    if (d_memory != NULL && own == 0)
        work->backend->ops->copy(work->backend, n_bytes, d_state, d_memory + part.at);
}

void
exec_state_each_piece_again(const ExecStateWork *work, void (*compute)(const ExecStateWork *work))
{
    const Pieces pieces = pieces_of(work);
    const int32_t cp = (int32_t)work->layer->widths->cp;

    if (cp == 1) {
        compute(work);
        return;
    }
    for (int i = 0; i < pieces.n / cp; i++) {
        const ExecStateWork one = work_on(work, &pieces, i);
        compute(&one);
    }
}
