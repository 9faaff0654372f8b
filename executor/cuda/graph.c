/*
 * CUDA graphs: what the slots queue between begin_graph() and end_graph() is captured and launched
 * at once.  A graph is kept per key and its arguments are changed where they differ (another
 * micro-batch's memory), which costs the host about as much as launching and saves the device the
 * gaps between short kernels.
 */
#include "executor/cuda/state.h"

void
exec_cuda_begin_graph(ExecBackend *backend, int64_t key)
{
    ExecCudaGraphs *graphs = &exec_cuda_state(backend)->graphs;

    if (graphs->execs == NULL) {
        graphs->execs = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL);
        graphs->to_release = g_ptr_array_new();
    }
    if (graphs->side == NULL)
        QUEUE(backend, cudaStreamCreateWithFlags(&graphs->side, cudaStreamNonBlocking));
    graphs->key = key;
    /* Relaxed: other ranks' threads, and this one's memory, may call what a capture forbids. */
    const cudaError_t status =
        cudaStreamBeginCapture(exec_cuda_stream(backend), cudaStreamCaptureModeRelaxed);
    exec_cuda_check(exec_cuda_state(backend), status, "cudaStreamBeginCapture", __FILE__, __LINE__);
    graphs->captures = status == cudaSuccess;
}

/* The kept graph with new arguments, or a new one where work of this key has changed its shape. */
static cudaGraphExec_t
exec_of(ExecBackend *backend, cudaGraph_t graph)
{
    ExecCudaGraphs *graphs = &exec_cuda_state(backend)->graphs;
    cudaGraphExec_t exec = g_hash_table_lookup(graphs->execs, &graphs->key);
    cudaGraphExecUpdateResultInfo info = {0};

    if (exec != NULL && cudaGraphExecUpdate(exec, graph, &info) == cudaSuccess)
        return exec;
    cudaGetLastError(); /* the answer "not by an update" */
    if (exec != NULL)
        QUEUE(backend, cudaGraphExecDestroy(exec));
    exec = NULL;
    QUEUE(backend, cudaGraphInstantiate(&exec, graph, 0));
    if (exec != NULL)
        g_hash_table_insert(graphs->execs, g_memdup2(&graphs->key, sizeof graphs->key), exec);
    else
        g_hash_table_remove(graphs->execs, &graphs->key);
    return exec;
}

void
exec_cuda_end_graph(ExecBackend *backend)
{
    ExecCudaGraphs *graphs = &exec_cuda_state(backend)->graphs;
    cudaGraph_t graph = NULL;

    if (!graphs->captures)
        return;
    QUEUE(backend, cudaStreamEndCapture(exec_cuda_stream(backend), &graph));
    graphs->captures = false;
    if (graph != NULL) {
        cudaGraphExec_t exec = exec_of(backend, graph);
        if (exec != NULL)
            QUEUE(backend, cudaGraphLaunch(exec, exec_cuda_stream(backend)));
        QUEUE(backend, cudaGraphDestroy(graph));
    }
    for (guint i = 0; i < graphs->to_release->len; i++)
        exec_cuda_release(backend, graphs->to_release->pdata[i]);
    g_ptr_array_set_size(graphs->to_release, 0);
}

void
exec_cuda_graphs_clear(ExecCudaGraphs *graphs)
{
    GHashTableIter iter;
    gpointer exec;

    if (graphs->execs == NULL)
        return;
    g_hash_table_iter_init(&iter, graphs->execs); /* in any order: nothing is told of it */
    while (g_hash_table_iter_next(&iter, NULL, &exec))
        cudaGraphExecDestroy(exec);
    g_hash_table_unref(graphs->execs);
    g_ptr_array_unref(graphs->to_release);
    if (graphs->side != NULL)
        cudaStreamDestroy(graphs->side);
    *graphs = (ExecCudaGraphs){0};
}
