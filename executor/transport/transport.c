#include "executor/transport/transport.h"

#include "base/text.h"

int32_t *
exec_ranks_new(int32_t n)
{
    int32_t *ranks = g_new(int32_t, (size_t)n);

    for (int32_t i = 0; i < n; i++)
        ranks[i] = i;
    return ranks;
}

/* --- for transports --- */

void
exec_abort_init(ExecAbort *abort)
{
    *abort = (ExecAbort){0};
    g_mutex_init(&abort->mutex);
}

void
exec_abort_clear(ExecAbort *abort)
{
    g_mutex_clear(&abort->mutex);
    g_clear_pointer(&abort->reason, g_free);
}

void
exec_abort_set(ExecAbort *abort, const char *reason)
{
    g_mutex_lock(&abort->mutex);
    if (abort->reason == NULL)
        abort->reason = g_strdup(reason);
    g_mutex_unlock(&abort->mutex);
    atomic_store(&abort->is_set, true);
}

bool
exec_abort_check(ExecAbort *abort, GError **error)
{
    if (!atomic_load(&abort->is_set))
        return true;
    g_mutex_lock(&abort->mutex);
    g_set_error_literal(error, EXEC_ERROR, EXEC_ERROR_RANK_DIED, abort->reason);
    g_mutex_unlock(&abort->mutex);
    return false;
}

bool
exec_check_length(const ExecTransport *transport, int32_t from, int64_t expected_bytes,
                  int64_t got_bytes, GError **error)
{
    if (got_bytes == expected_bytes)
        return true;
    return EXEC_FAIL(error, EXEC_ERROR_FAILED,
                     "rank %d expected %" G_GINT64_FORMAT
                     " bytes of rank %d, got %" G_GINT64_FORMAT,
                     transport->rank, expected_bytes, from, got_bytes);
}

/* --- kinds --- */

static const ExecTransportKind kinds[] = {
    {.name = "local"},
    {.name = "mpi", .in_processes = true},
    {.name = "tcp", .in_processes = true, .without_mpi = true},
    {.name = "nccl", .in_processes = true, .is_nccl = true},
    {.name = NULL},
};

const ExecTransportKind *
exec_transport_kind(const char *name)
{
    const ExecTransportKind *kind = kinds;

    while (kind->name != NULL && !g_str_equal(kind->name, name))
        kind++;
    return kind;
}

const char *const *
exec_transport_names(void)
{
    static const char *const *names;

    return text_names(&names, &kinds[0].name, sizeof kinds[0], G_N_ELEMENTS(kinds) - 1);
}
