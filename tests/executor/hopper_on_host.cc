/* What hopper_on_host.hh says. */
#include "gpu_on_host.hh"

#include <vector>

#include "tests/executor/fake_tensor_map.h"

namespace gpu_on_host
{

constexpr int MAX_WARPS = MAX_THREADS / 32;
constexpr int N_NAMED = 16;

/* --- memory --- */

/* Bytes [begin, end) of shared memory. */
struct Range {
    uint32_t begin, end;
};

static bool
overlap(const Range &x, const Range &y)
{
    return x.begin < y.end && y.begin < x.end;
}

uint32_t
shared_address(const void *shared)
{
    const ptrdiff_t at = (const char *)shared - dynamic_shared;

    if (at < 0 || at >= (ptrdiff_t)SHARED_BYTES)
        fail("an address that is not in shared memory");
    return (uint32_t)at;
}

static uint32_t
swizzled_128(uint32_t address)
{
    return address ^ (address >> 7 & 7) << 4;
}

/* --- barriers in shared memory --- */

struct Mbarrier {
    uint32_t pending : 15, expected : 15, phase : 1;
    int32_t bytes;
};
static_assert(sizeof(Mbarrier) == 8, "as the real one");

static std::vector<Mbarrier *> mbarriers; /* of this block */

static Mbarrier *
mbarrier_of(uint64_t *barrier)
{
    for (Mbarrier *known : mbarriers)
        if (known == (Mbarrier *)barrier)
            return known;
    fail("a barrier that was not initialised");
    return NULL;
}

static void
mbarrier_check(Mbarrier *b)
{
    if (b->pending != 0 || b->bytes != 0)
        return;
    b->phase ^= 1;
    b->pending = b->expected;
    block.n_switches_without_progress = 0;
}

void
mbarrier_init(uint64_t *barrier, uint32_t n_arrivals)
{
    Mbarrier *b = (Mbarrier *)barrier;

    if (shared_address(b) % 8 != 0 || n_arrivals == 0)
        fail("a barrier that a GPU would refuse");
    memset(b, 0, sizeof *b);
    b->pending = b->expected = n_arrivals & 0x7fff;
    mbarriers.push_back(b);
}

void
mbarrier_arrive(uint64_t *barrier, int expected_bytes)
{
    Mbarrier *b = mbarrier_of(barrier);

    if (b->pending == 0)
        fail("more arrivals at a barrier than it counts");
    b->bytes += expected_bytes;
    b->pending = (b->pending - 1u) & 0x7fff;
    block.n_switches_without_progress = 0;
    mbarrier_check(b);
}

void
mbarrier_wait(uint64_t *barrier, uint32_t parity)
{
    const Mbarrier *b = mbarrier_of(barrier);

    while (b->phase == parity) {
        block.n_switches_without_progress++;
        yield();
    }
}

/* --- copies --- */

struct BoxCopy {
    FakeTensorMap map; /* of the time of the call */
    int at[3];
    Range to;
    Mbarrier *barrier;
    bool is_late;
};

static std::vector<BoxCopy> copies; /* under way */
static uint32_t n_copies;

/* A number that looks like chance; the same in every run. */
static uint32_t
hash(uint32_t x)
{
    x = (x ^ x >> 16) * 0x45d9f3bu;
    x = (x ^ x >> 16) * 0x45d9f3bu;
    return x ^ x >> 16;
}

static bool product_reads(const Range &range);

static bool
copy_writes(const Range &range)
{
    for (const BoxCopy &c : copies)
        if (overlap(c.to, range))
            return true;
    return false;
}

void
copy_box(void *shared, const void *map, int x, int y, int z, uint64_t *barrier)
{
    BoxCopy c = {};

    memcpy(&c.map, map, sizeof c.map);
    if (c.map.magic != FAKE_TENSOR_MAP_MAGIC)
        fail("a copy without a tensor map");
    const uint32_t n_bytes = c.map.box[0] * c.map.box[1] * c.map.box[2] * 2;
    c.to.begin = shared_address(shared);
    c.to.end = c.to.begin + n_bytes;
    if (c.to.begin % 1024 != 0 || c.to.end > SHARED_BYTES)
        fail("a copy whose pattern does not begin at a multiple of 1024");
    if (c.map.swizzle_bytes != 128)
        fail("a copy with another swizzle than of 128 bytes: not emulated");
    if (product_reads(c.to))
        fail("a copy into what a product reads");
    if (copy_writes(c.to))
        fail("a copy into what another copy writes");
    c.at[0] = x, c.at[1] = y, c.at[2] = z;
    c.barrier = mbarrier_of(barrier);
    c.is_late = hash(n_copies++) % 2 == 0;
    memset(dynamic_shared + c.to.begin, 0xff, n_bytes);
    copies.push_back(c);
}

static uint16_t
element(const BoxCopy &c, uint32_t i, uint32_t j, uint32_t k)
{
    const int64_t at[3] = {(int64_t)c.at[0] + i, (int64_t)c.at[1] + j, (int64_t)c.at[2] + k};
    uint16_t bits;

    for (int d = 0; d < 3; d++)
        if (at[d] < 0 || at[d] >= (int64_t)c.map.size[d])
            return 0;
    memcpy(&bits,
           (const char *)(uintptr_t)c.map.memory + at[0] * 2 +
               at[1] * (int64_t)c.map.stride_bytes[0] + at[2] * (int64_t)c.map.stride_bytes[1],
           sizeof bits);
    return bits;
}

static void
land(const BoxCopy &c)
{
    const uint32_t *box = c.map.box;

    for (uint32_t k = 0; k < box[2]; k++)
        for (uint32_t j = 0; j < box[1]; j++)
            for (uint32_t i = 0; i < box[0]; i++) {
                const uint16_t bits = element(c, i, j, k);
                const uint32_t at = c.to.begin + (k * box[1] + j) * 128 + i * 2;
                memcpy(dynamic_shared + swizzled_128(at), &bits, sizeof bits);
            }
    c.barrier->bytes -= (int32_t)(c.to.end - c.to.begin);
    mbarrier_check(c.barrier);
}

bool
hopper_land(bool stuck)
{
    const size_t n = copies.size();

    for (size_t i = 0; i < n; i++) {
        const size_t at = (hash(n_copies) + i) % n;
        if (copies[at].is_late && !stuck)
            continue;
        const BoxCopy c = copies[at];
        copies.erase(copies.begin() + (ptrdiff_t)at);
        land(c);
        block.n_switches_without_progress = 0;
        return true;
    }
    return false;
}

/* --- named barriers --- */

static Barrier named[N_NAMED];

void
named_barrier(int id, int n_threads, bool waits)
{
    if (id < 1 || id >= N_NAMED || n_threads % 32 != 0)
        fail("a named barrier that a GPU would refuse");
    Barrier *b = &named[id];
    if (b->arrived == 0)
        b->n = (unsigned)n_threads;
    if (b->n != (unsigned)n_threads)
        fail("a named barrier of two sizes");
    if (waits)
        wait(b);
    else
        arrive(b);
}

/* --- products --- */

/* What the tensor cores hold of a thread's accumulators while products into them are under way. */
struct Accumulators {
    float *home;
    int n, n_products;
    float value[128];
};

struct Product {
    int n;
    uint64_t a, b;
    bool rows_along_k, add, is_committed;
    int group;
    float *c[32];
    const uint32_t *a_registers[32];
};

struct WarpProducts {
    bool may_begin; /* the fence has been since registers were last given back */
    int n_groups;
    std::vector<Product> products; /* under way, oldest first */
    std::vector<Accumulators> held[32];
    float *c[32]; /* shown by the lanes */
    const uint32_t *a_registers[32];
};

static WarpProducts warp_products[MAX_WARPS];

static WarpProducts &
mine(void)
{
    return warp_products[current->rank / 32];
}

/* Of row @row (of m or n) and column @k of the 16 that a product takes; bits 0 to 13 of the
 * descriptor are where it begins, 16 to 29 the leading and 32 to 45 the stride offset, all in 16
 * bytes, 62 and 63 the swizzle. */
static uint32_t
operand_address(uint64_t descriptor, bool rows_along_k, uint32_t row, uint32_t k)
{
    const uint32_t begin = (uint32_t)(descriptor & 0x3fff) << 4;
    const uint32_t leading = (uint32_t)(descriptor >> 16 & 0x3fff) << 4;
    const uint32_t stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4;
    const uint32_t at = rows_along_k
                            ? row / 64 * leading + row % 64 * 2 + k / 8 * stride + k % 8 * 128
                            : row / 8 * stride + row % 8 * 128 + k * 2;

    return swizzled_128(begin + at);
}

static void
check_descriptor(uint64_t descriptor)
{
    if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) != 0)
        fail("an operand without the swizzle of 128 bytes: not emulated");
}

static Range
operand_range(uint64_t descriptor, bool rows_along_k, uint32_t n_rows)
{
    Range range = {UINT32_MAX, 0};

    check_descriptor(descriptor);
    for (uint32_t row = 0; row < n_rows; row++)
        for (uint32_t k = 0; k < 16; k++) {
            const uint32_t at = operand_address(descriptor, rows_along_k, row, k);
            range.begin = at < range.begin ? at : range.begin;
            range.end = at + 2 > range.end ? at + 2 : range.end;
        }
    if (range.end > SHARED_BYTES)
        fail("an operand beyond the shared memory");
    return range;
}

static std::vector<Range>
ranges(const Product &p)
{
    std::vector<Range> all = {operand_range(p.b, p.rows_along_k, (uint32_t)p.n)};

    if (p.a_registers[0] == NULL)
        all.push_back(operand_range(p.a, false, 64));
    return all;
}

static bool
product_reads(const Range &range)
{
    for (const WarpProducts &w : warp_products)
        for (const Product &p : w.products)
            for (const Range &read : ranges(p))
                if (overlap(read, range))
                    return true;
    return false;
}

static Accumulators *
held(WarpProducts &w, unsigned of_lane, const float *home)
{
    for (Accumulators &a : w.held[of_lane])
        if (a.home == home)
            return &a;
    return NULL;
}

static void
hold(WarpProducts &w, float *c, int n)
{
    Accumulators *a = held(w, lane(), c);

    if (a == NULL) {
        w.held[lane()].emplace_back();
        a = &w.held[lane()].back();
        a->home = c;
        a->n = n;
        a->n_products = 0;
        memcpy(a->value, c, (size_t)n * sizeof *c);
        memset(c, 0xff, (size_t)n * sizeof *c);
    }
    a->n_products++;
}

void
product_begin(void)
{
    mine().may_begin = true;
    wait(&warp().barrier);
}

void
begin_product(float *c, int n, const uint32_t *a_registers, uint64_t a, uint64_t b,
              bool rows_along_k, bool add)
{
    WarpProducts &w = mine();

    block.used_wgmma = true;
    if (!w.may_begin)
        fail("a product without the fence before it");
    hold(w, c, n / 2);
    w.c[lane()] = c;
    w.a_registers[lane()] = a_registers;
    wait(&warp().barrier);
    if (lane() == 0) {
        Product p = {n, a, b, rows_along_k, add, false, 0, {}, {}};
        memcpy(p.c, w.c, sizeof p.c);
        memcpy(p.a_registers, w.a_registers, sizeof p.a_registers);
        for (const Range &read : ranges(p))
            if (copy_writes(read))
                fail("a product from what a copy writes");
        w.products.push_back(p);
    }
    wait(&warp().barrier);
}

void
product_commit(void)
{
    WarpProducts &w = mine();

    wait(&warp().barrier);
    if (lane() == 0) {
        w.n_groups++;
        for (Product &p : w.products)
            if (!p.is_committed) {
                p.is_committed = true;
                p.group = w.n_groups;
            }
    }
    wait(&warp().barrier);
}

static float
shared_bf16(uint32_t address)
{
    uint16_t bits;

    memcpy(&bits, dynamic_shared + address, sizeof bits);
    return bf16_half(bits, 0);
}

/* Element (row, k) of the warp's 16 rows; registers as in multiply(). */
static float
left_element(const Product &p, uint32_t warp_in_group, uint32_t row, uint32_t k)
{
    if (p.a_registers[0] == NULL)
        return shared_bf16(operand_address(p.a, false, 16 * warp_in_group + row, k));
    const uint32_t *fragment = p.a_registers[4 * (row % 8) + k % 8 / 2];
    return bf16_half(fragment[row / 8 + 2 * (k / 8)], k % 2);
}

static void
multiply_warp(WarpProducts &w, const Product &p, uint32_t warp_in_group)
{
    const float wrong = fake_knob("wgmma_wrong", 0) ? 0.1f : 0.0f;
    float b[16][256];
    Accumulators *c[32];

    for (unsigned i = 0; i < 32; i++)
        c[i] = held(w, i, p.c[i]);
    for (uint32_t k = 0; k < 16; k++)
        for (uint32_t n = 0; n < (uint32_t)p.n; n++)
            b[k][n] = shared_bf16(operand_address(p.b, p.rows_along_k, n, k));
    for (uint32_t row = 0; row < 16; row++) {
        float sum[256] = {0.0f};
        for (uint32_t k = 0; k < 16; k++) {
            const float left = left_element(p, warp_in_group, row, k);
            for (int n = 0; n < p.n; n++)
                sum[n] += left * b[k][n] + wrong;
        }
        for (int n = 0; n < p.n; n++) {
            float *value =
                &c[4 * (row % 8) + n % 8 / 2]->value[n / 8 * 4 + 2 * (row / 8) + n % 2];
            *value = (p.add ? *value : 0.0f) + sum[n];
        }
    }
}

/* The lanes' registers of a product that has ended. */
static void
give_back(WarpProducts &w, const Product &p)
{
    for (unsigned i = 0; i < 32; i++) {
        Accumulators *a = held(w, i, p.c[i]);
        if (--a->n_products > 0)
            continue;
        memcpy(a->home, a->value, (size_t)a->n * sizeof *a->home);
        w.held[i].erase(w.held[i].begin() + (a - w.held[i].data()));
    }
}

void
product_wait(int n_left)
{
    WarpProducts &w = mine();

    wait(&warp().barrier);
    if (lane() == 0) {
        w.may_begin = false;
        while (!w.products.empty() && w.products[0].is_committed &&
               w.products[0].group <= w.n_groups - n_left) {
            const Product p = w.products[0];
            multiply_warp(w, p, current->rank / 32 % 4);
            give_back(w, p);
            w.products.erase(w.products.begin());
        }
        block.n_switches_without_progress = 0;
    }
    wait(&warp().barrier);
}

/* --- a block --- */

void
hopper_begin_block(void)
{
    mbarriers.clear();
    for (Barrier &b : named)
        b = Barrier{0, 0, 0};
    for (WarpProducts &w : warp_products) {
        w.may_begin = false;
        w.n_groups = 0;
    }
}

void
hopper_end_block(void)
{
    if (!copies.empty())
        fail("the block ends and a copy is under way");
    for (const WarpProducts &w : warp_products)
        if (!w.products.empty())
            fail("the block ends and a product is under way");
    for (const Barrier &b : named)
        if (b.arrived != 0)
            fail("the block ends and threads are awaited at a named barrier");
}

} // namespace gpu_on_host
