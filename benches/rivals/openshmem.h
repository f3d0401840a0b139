/* Back end: OpenSHMEM, the symmetric heap and blocking calls. */
#include <shmem.h>

static uint64_t *shard;

static void start(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    shmem_init();
    rank = shmem_my_pe();
    ranks = shmem_n_pes();
}

/* shmem_finalize of Open MPI 4.1.4 as Debian builds it dies of SIGSEGV, in an empty program too. */
static void finish(void)
{
    shmem_barrier_all();
    _exit(0);
}
static uint64_t *make_shard(void) { return shard = shmem_malloc(SHARD); }
static void filled(void) {}
static inline void barrier(void) { shmem_barrier_all(); }

static inline uint64_t get(int peer, size_t i) { return shmem_uint64_g(shard + i, peer); }
static inline void put(int peer, size_t i, uint64_t value) { shmem_uint64_p(shard + i, value, peer); }
static inline void flush(int peer)
{
    (void)peer;
    shmem_quiet();
}
static inline uint64_t fetch_add(int peer, size_t i, uint64_t value)
{
    return shmem_ulong_atomic_fetch_add((unsigned long *)shard + i, value, peer);
}
static inline void get_bytes(int peer, size_t from, void *to, size_t bytes)
{
    shmem_getmem(to, (char *)shard + from, bytes, peer);
}
static inline void put_bytes(int peer, size_t to, const void *from, size_t bytes)
{
    shmem_putmem((char *)shard + to, from, bytes, peer);
}
