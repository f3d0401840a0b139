/* Back end: forked processes and one shared mapping. No library: what the hardware allows. */
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

struct flags {
    _Alignas(64) atomic_uint arrived;
    _Alignas(64) atomic_uint generation;
};

/* Bytes for tables and fields, mapped before the processes part. */
#define ARENA ((size_t)512 << 20)

static char *shards, *arena;
static size_t arena_used;
static struct flags *flags;
static unsigned spins;

static void *map_shared(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return at;
}

static inline uint64_t *shard_of(int rank) { return (uint64_t *)(shards + (size_t)rank * SHARD); }

static void start(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    ranks = getenv("RANKS") ? atoi(getenv("RANKS")) : 2;
    flags = map_shared(sizeof *flags);
    cpu_set_t cpus;
    int cores = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
    spins = ranks > cores ? 1 : 1000;
    shards = map_shared((size_t)ranks * SHARD);
    arena = map_shared(ARENA);
    for (rank = 1; rank < ranks; rank++)
        if (fork() == 0)
            return;
    rank = 0;
}

static void finish(void)
{
    if (rank == 0)
        while (wait(NULL) > 0)
            ;
}

static uint64_t *make_shard(void) { return shard_of(rank); }
static void filled(void) {}

/* Shared flags, spin then yield. */
static inline void barrier(void)
{
    unsigned generation = atomic_load_explicit(&flags->generation, memory_order_relaxed);
    if (atomic_fetch_add(&flags->arrived, 1) + 1 == (unsigned)ranks) {
        atomic_store_explicit(&flags->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&flags->generation, generation + 1, memory_order_release);
        return;
    }
    unsigned left = spins;
    while (atomic_load_explicit(&flags->generation, memory_order_acquire) == generation) {
        if (left > 0)
            left--;
        else
            sched_yield();
    }
}

static inline uint64_t get(int peer, size_t i) { return *(volatile uint64_t *)(shard_of(peer) + i); }
static inline void put(int peer, size_t i, uint64_t value)
{
    *(volatile uint64_t *)(shard_of(peer) + i) = value;
}
static inline void flush(int peer)
{
    (void)peer;
    atomic_thread_fence(memory_order_seq_cst);
}
static inline uint64_t fetch_add(int peer, size_t i, uint64_t value)
{
    return atomic_fetch_add((_Atomic uint64_t *)(shard_of(peer) + i), value);
}
static inline void get_bytes(int peer, size_t from, void *to, size_t bytes)
{
    memcpy(to, (char *)shard_of(peer) + from, bytes);
    __asm__ volatile("" ::"r"(to) : "memory");
}
static inline void put_bytes(int peer, size_t to, const void *from, size_t bytes)
{
    memcpy((char *)shard_of(peer) + to, from, bytes);
    __asm__ volatile("" ::: "memory");
}

static void *from_arena(size_t bytes)
{
    void *at = arena + arena_used;
    arena_used += (bytes + 4095) & ~(size_t)4095;
    if (arena_used > ARENA)
        fail("the arena is too small");
    return at;
}

struct table {
    size_t each;
    unsigned shift;
    uint64_t *words;
};

static struct table make_table(size_t rows, size_t columns)
{
    return (struct table){.each = rows / (size_t)ranks * columns, .words = from_arena(rows * columns * 8)};
}
static void read_block(struct table *t, int owner, uint64_t *to)
{
    memcpy(to, t->words + (size_t)owner * t->each, t->each * 8);
}
static void write_block(struct table *t, int owner, const uint64_t *from)
{
    memcpy(t->words + (size_t)owner * t->each, from, t->each * 8);
}

static void gather_loop(struct table *t, size_t n, const uint64_t *index, uint64_t *values)
{
    for (size_t k = 0; k < n; k++)
        values[k] = t->words[index[k]];
}
static void scatter_loop(struct table *t, size_t n, const uint64_t *index, uint64_t *values)
{
    for (size_t k = 0; k < n; k++)
        t->words[index[k]] = values[k];
}
static void add_loop(struct table *t, size_t n, const uint64_t *index, uint64_t *values)
{
    for (size_t k = 0; k < n; k++)
        atomic_fetch_add_explicit((_Atomic uint64_t *)t->words + index[k], values[k], memory_order_relaxed);
}
static void column_loop(struct table *t, size_t rows, size_t columns, size_t column, uint64_t *to)
{
    const uint64_t *from = t->words + (size_t)peer * t->each + column;
    for (size_t k = 0; k < rows; k++)
        to[k] = from[k * columns];
}
static const struct way gathers[] = {{"loop", gather_loop}, {0}};
static const struct way scatters[] = {{"loop", scatter_loop}, {0}};
static const struct way adds[] = {{"loop", add_loop}, {0}};
static const struct column_way column_ways[] = {{"loop", column_loop}, {0}};

struct field {
    double *at;
    double *all;
};

static struct field make_field(size_t rows, size_t stride)
{
    double *all = from_arena((size_t)ranks * (rows + 2) * stride * sizeof(double));
    return (struct field){.at = all + (size_t)rank * (rows + 2) * stride, .all = all};
}

/* Reads the neighbours' border rows where they are. */
static void exchange(struct field *f, size_t rows, size_t stride)
{
    barrier();
    size_t block = (rows + 2) * stride;
    if (rank > 0)
        memcpy(f->at, f->at - block + rows * stride, stride * sizeof(double));
    if (rank + 1 < ranks)
        memcpy(f->at + (rows + 1) * stride, f->at + block + stride, stride * sizeof(double));
}
