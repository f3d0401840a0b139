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

struct table {
    size_t each;
    unsigned shift;
    uint64_t *own;
};

static struct table make_table(size_t rows, size_t columns)
{
    struct table t = {.each = rows / (size_t)ranks * columns};
    t.own = shmem_malloc(t.each * 8);
    return t;
}
static void read_block(struct table *t, int owner, uint64_t *to)
{
    shmem_getmem(to, t->own, t->each * 8, owner);
}
static void write_block(struct table *t, int owner, const uint64_t *from)
{
    shmem_putmem(t->own, from, t->each * 8, owner);
    shmem_quiet();
}

#define OWNER(index) ((int)((index) >> t->shift))
#define PLACE(index) (t->own + ((index) & (t->each - 1)))

static void gather_blocking(struct table *t, size_t n, const uint64_t *index, uint64_t *values)
{
    for (size_t k = 0; k < n; k++)
        values[k] = shmem_uint64_g(PLACE(index[k]), OWNER(index[k]));
}
static void gather_nbi(struct table *t, size_t n, const uint64_t *index, uint64_t *values)
{
    for (size_t k = 0; k < n; k++)
        shmem_uint64_get_nbi(values + k, PLACE(index[k]), 1, OWNER(index[k]));
    shmem_quiet();
}
static void scatter_blocking(struct table *t, size_t n, const uint64_t *index, uint64_t *values)
{
    for (size_t k = 0; k < n; k++)
        shmem_uint64_p(PLACE(index[k]), values[k], OWNER(index[k]));
    shmem_quiet();
}
static void scatter_nbi(struct table *t, size_t n, const uint64_t *index, uint64_t *values)
{
    for (size_t k = 0; k < n; k++)
        shmem_uint64_put_nbi(PLACE(index[k]), values + k, 1, OWNER(index[k]));
    shmem_quiet();
}
static void add_add(struct table *t, size_t n, const uint64_t *index, uint64_t *values)
{
    for (size_t k = 0; k < n; k++)
        shmem_ulong_atomic_add((unsigned long *)PLACE(index[k]), values[k], OWNER(index[k]));
    shmem_quiet();
}
static void add_fetch_add(struct table *t, size_t n, const uint64_t *index, uint64_t *values)
{
    for (size_t k = 0; k < n; k++)
        sink = shmem_ulong_atomic_fetch_add((unsigned long *)PLACE(index[k]), values[k], OWNER(index[k]));
}
static void column_iget(struct table *t, size_t rows, size_t columns, size_t column, uint64_t *to)
{
    shmem_uint64_iget(to, t->own + column, 1, (ptrdiff_t)columns, rows, peer);
}
static void column_nbi(struct table *t, size_t rows, size_t columns, size_t column, uint64_t *to)
{
    for (size_t k = 0; k < rows; k++)
        shmem_uint64_get_nbi(to + k, t->own + column + k * columns, 1, peer);
    shmem_quiet();
}
static void column_blocking(struct table *t, size_t rows, size_t columns, size_t column, uint64_t *to)
{
    for (size_t k = 0; k < rows; k++)
        to[k] = shmem_uint64_g(t->own + column + k * columns, peer);
}
static const struct way gathers[] = {{"shmem_g", gather_blocking}, {"shmem_get_nbi", gather_nbi}, {0}};
static const struct way scatters[] = {{"shmem_p", scatter_blocking}, {"shmem_put_nbi", scatter_nbi}, {0}};
static const struct way adds[] = {
    {"shmem_atomic_add", add_add}, {"shmem_atomic_fetch_add", add_fetch_add}, {0}};
static const struct column_way column_ways[] = {
    {"shmem_iget", column_iget}, {"shmem_get_nbi", column_nbi}, {"shmem_g", column_blocking}, {0}};

struct field {
    double *at;
};

static struct field make_field(size_t rows, size_t stride)
{
    return (struct field){.at = shmem_malloc((rows + 2) * stride * sizeof(double))};
}

/* Writes the border rows where the neighbours need them; the barrier completes them. */
static void exchange(struct field *f, size_t rows, size_t stride)
{
    if (rank > 0)
        shmem_double_put_nbi(f->at + (rows + 1) * stride, f->at + stride, stride, rank - 1);
    if (rank + 1 < ranks)
        shmem_double_put_nbi(f->at, f->at + rows * stride, stride, rank + 1);
    shmem_barrier_all();
}
