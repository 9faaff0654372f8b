/* The scheduler of gpu_on_host.hh: fibers that take turns. */
#include "gpu_on_host.hh"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>

namespace gpu_on_host
{

Block block;
Fiber *current;
char *dynamic_shared;

static char *stacks;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* From stack to stack: not a power of two, which would put the used ends of all into the same few
 * lines of the caches. */
constexpr size_t STACK_STRIDE = STACK_BYTES + 9 * 64;

static void fiber_main(void);

void
fail(const char *what)
{
    fprintf(stderr, "gpu_on_host: block (%u,%u,%u): %s\n", block.index.x, block.index.y,
            block.index.z, what);
    abort();
}

/* swapcontext() asks the kernel for the signal mask each time, which takes most of the time of
 * these tests; elsewhere a switch keeps what a function call keeps.  The sanitizers follow contexts
 * only. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* Keeps the registers on the stack that is left, whose end goes to @from, and takes those of @to.
 */
extern "C" void gpu_on_host_switch(void **from, void *to);
asm(".text\n"
    ".hidden gpu_on_host_switch\n"
    ".type gpu_on_host_switch, @function\n"
    "gpu_on_host_switch:\n"
    "    pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp\n"
    "    ret\n"
    ".size gpu_on_host_switch, . - gpu_on_host_switch\n");

static void *scheduler;

static void
prepare(Fiber *fiber, char *stack)
{
    void **top = (void **)(stack + STACK_BYTES);

    *--top = NULL; /* fiber_main() returns to nobody */
    *--top = (void *)fiber_main;
    for (int i = 0; i < 6; i++)
        *--top = NULL;
    fiber->stack = top;
}

static void
resume(Fiber *fiber)
{
    gpu_on_host_switch(&scheduler, fiber->stack);
}

void
yield(void)
{
    gpu_on_host_switch(&current->stack, scheduler);
}
#else
static void
prepare(Fiber *fiber, char *stack)
{
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = stack;
    fiber->context.uc_stack.ss_size = STACK_BYTES;
    fiber->context.uc_link = NULL;
    makecontext(&fiber->context, fiber_main, 0);
}

static void
resume(Fiber *fiber)
{
    swapcontext(&block.scheduler, &fiber->context);
}

void
yield(void)
{
    swapcontext(&current->context, &block.scheduler);
}
#endif

bool
arrive(Barrier *barrier)
{
    block.n_switches_without_progress = 0;
    if (++barrier->arrived < barrier->n)
        return false;
    barrier->arrived = 0;
    barrier->generation++;
    return true;
}

void
wait(Barrier *barrier)
{
    const unsigned generation = barrier->generation;

    if (arrive(barrier))
        return;
    while (barrier->generation == generation) {
        block.n_switches_without_progress++;
        yield();
    }
}

static void
fiber_main(void)
{
    block.body(block.arguments);
    block.n_switches_without_progress = 0;
    current->done = true;
    yield();
}

static void
run_block(void)
{
    unsigned n_done = 0;

    hopper_begin_block();
    block.n_switches_without_progress = 0;
    block.barrier = Barrier{block.n_threads, 0, 0};
    for (unsigned i = 0; i < block.n_threads; i += 32)
        block.warps[i / 32].barrier =
            Barrier{block.n_threads - i < 32 ? block.n_threads - i : 32, 0, 0};
    for (unsigned i = 0; i < block.n_threads; i++) {
        Fiber *f = &block.fibers[i];
        f->rank = i;
        f->thread = dim3(i % block.block.x, i / block.block.x % block.block.y,
                         i / block.block.x / block.block.y);
        f->done = false;
        prepare(f, stacks + i * STACK_STRIDE);
    }
    while (n_done < block.n_threads) {
        for (unsigned i = 0; i < block.n_threads; i++) {
            current = &block.fibers[i];
            if (current->done)
                continue;
            resume(current);
            n_done += current->done;
        }
        const bool stuck = block.n_switches_without_progress > 2 * (uint64_t)block.n_threads;
        if (!hopper_land(stuck) && stuck)
            fail("threads wait at a barrier that others never reach");
    }
    hopper_end_block();
}

void
spin(int64_t ns)
{
    if (fake_streams_queue())
        usleep((useconds_t)(ns / 1000));
}

/* As FAKE_CUDA's knobs have it: fake_cuda.c. */
static void
take_longer(void)
{
    while (block.used_wgmma && fake_knob("wgmma_hang", 0))
        pause();
    if (block.used_wgmma || block.used_mma)
        fake_take(fake_knob(block.used_wgmma ? "wgmma_us" : "mma_us", 0));
}

void
run_grid(dim3 grid, dim3 threads, size_t shared_bytes, void (*body)(void *), void *arguments)
{
    pthread_mutex_lock(&mutex); /* one emulated device: grids of all ranks one after the other */
    if (stacks == NULL) {
        stacks = (char *)mmap(NULL, MAX_THREADS * STACK_STRIDE, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        dynamic_shared = (char *)aligned_alloc(1024, SHARED_BYTES);
        if (stacks == MAP_FAILED || dynamic_shared == NULL)
            fail("no memory");
    }
    block.n_threads = threads.x * threads.y * threads.z;
    if (block.n_threads == 0 || block.n_threads > MAX_THREADS || shared_bytes > SHARED_BYTES ||
        grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535)
        fail("a launch that a GPU would refuse");
    block.grid = grid;
    block.block = threads;
    block.used_mma = block.used_wgmma = false;
    block.body = body;
    block.arguments = arguments;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                block.index = dim3(x, y, z);
                memset(dynamic_shared, 0xa5, shared_bytes);
                run_block();
            }
    take_longer();
    pthread_mutex_unlock(&mutex);
}

/* --- shared memory that kernels ask for --- */

static std::map<void (*)(void), size_t> asked; /* under the mutex */

cudaError_t
ask_for_shared(void (*kernel)(void), size_t n_bytes)
{
    if (n_bytes > (size_t)fake_knob("shared", SHARED_BYTES))
        return cudaErrorInvalidValue;
    pthread_mutex_lock(&mutex);
    asked[kernel] = n_bytes;
    pthread_mutex_unlock(&mutex);
    return cudaSuccess;
}

bool
may_have_shared(void (*kernel)(void), size_t n_bytes)
{
    if (n_bytes < UNASKED_BYTES)
        return true;
    pthread_mutex_lock(&mutex);
    const bool may = asked[kernel] >= n_bytes;
    pthread_mutex_unlock(&mutex);
    return may;
}

} // namespace gpu_on_host
