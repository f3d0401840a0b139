/* Back end: forked processes and one shared mapping. No library: what the hardware allows. */
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

struct flags {
    _Alignas(64) atomic_uint arrived;
    _Alignas(64) atomic_uint generation;
};

static char *shards;
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
