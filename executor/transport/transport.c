#include "executor/transport/transport.h"

void
exec_transport_abort(ExecTransport *transport, const char *reason)
{
    transport->ops->abort(transport, reason);
}

static const ExecTransportKind kinds[] = {
    {.name = "local"},
    {.name = "mpi", .in_processes = true},
    {.name = "nccl", .in_processes = true, .is_nccl = true},
};

const ExecTransportKind *
exec_transport_kind(const char *name)
{
    static const ExecTransportKind unknown = {0};

    for (size_t i = 0; i < G_N_ELEMENTS(kinds); i++)
        if (g_str_equal(kinds[i].name, name))
            return &kinds[i];
    return &unknown;
}

const char *const *
exec_transport_names(void)
{
    static const char *names[G_N_ELEMENTS(kinds) + 1];
    static gsize is_filled;

    if (g_once_init_enter(&is_filled)) {
        for (size_t i = 0; i < G_N_ELEMENTS(kinds); i++)
            names[i] = kinds[i].name;
        g_once_init_leave(&is_filled, 1);
    }
    return names;
}
