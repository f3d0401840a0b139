/* Back end: Global Arrays. Arrays of one dimension, in equal blocks. */
#include <ga.h>
#include <macdecls.h>
#include <mpi.h>

/* Of ARMCI, on which it stands: waits until all that was written has arrived. */
void ARMCI_AllFence(void);

static int shards;
static uint64_t *shard;

static void start(int *argc, char ***argv)
{
    MPI_Init(argc, argv);
    GA_Initialize();
    MA_init(C_DBL, 1000000, 1000000);
    rank = GA_Nodeid();
    ranks = GA_Nnodes();
}
static void finish(void)
{
    GA_Terminate();
    MPI_Finalize();
}

/* What is written to the own part where it lies is not seen by others over MPICH: it is put. */
static uint64_t *make_shard(void)
{
    int64_t words = (int64_t)WORDS * ranks, block = WORDS;
    shards = NGA_Create64(C_LONG, 1, &words, "shards", &block);
    return shard = malloc(SHARD);
}
static void filled(void)
{
    int64_t low = (int64_t)WORDS * rank, high = low + (int64_t)WORDS - 1, stride = 1;
    NGA_Put64(shards, &low, &high, shard, &stride);
    ARMCI_AllFence();
}
static inline void barrier(void) { GA_Sync(); }

static inline uint64_t get(int peer, size_t i)
{
    uint64_t value;
    int64_t at = peer * (int64_t)WORDS + (int64_t)i, stride = 1;
    NGA_Get64(shards, &at, &at, &value, &stride);
    return value;
}
static inline void put(int peer, size_t i, uint64_t value)
{
    int64_t at = peer * (int64_t)WORDS + (int64_t)i, stride = 1;
    NGA_Put64(shards, &at, &at, &value, &stride);
}
static inline void flush(int peer)
{
    (void)peer;
    ARMCI_AllFence();
}
static inline uint64_t fetch_add(int peer, size_t i, uint64_t value)
{
    int64_t at = peer * (int64_t)WORDS + (int64_t)i;
    return (uint64_t)NGA_Read_inc64(shards, &at, (long)value);
}
static inline void get_bytes(int peer, size_t from, void *to, size_t bytes)
{
    int64_t low = peer * (int64_t)WORDS + (int64_t)(from / 8), high = low + (int64_t)(bytes / 8) - 1, stride = 1;
    NGA_Get64(shards, &low, &high, to, &stride);
}
static inline void put_bytes(int peer, size_t to, const void *from, size_t bytes)
{
    int64_t low = peer * (int64_t)WORDS + (int64_t)(to / 8), high = low + (int64_t)(bytes / 8) - 1, stride = 1;
    NGA_Put64(shards, &low, &high, (void *)from, &stride);
}

/* One dimension if there is one column, else two. */
struct table {
    size_t each;
    unsigned shift;
    int array;
    int64_t rows, columns;
};

static struct table make_table(size_t rows, size_t columns)
{
    int64_t shape[] = {(int64_t)rows, (int64_t)columns}, block[] = {(int64_t)rows / ranks, (int64_t)columns};
    struct table t = {.each = (size_t)block[0] * columns, .rows = block[0], .columns = block[1]};
    t.array = NGA_Create64(C_LONG, columns == 1 ? 1 : 2, shape, "table", block);
    GA_Zero(t.array);
    return t;
}
static void bounds(const struct table *t, int owner, int64_t *low, int64_t *high)
{
    low[0] = owner * t->rows;
    high[0] = low[0] + t->rows - 1;
    low[1] = 0;
    high[1] = t->columns - 1;
}
static void read_block(struct table *t, int owner, uint64_t *to)
{
    int64_t low[2], high[2], stride = t->columns;
    bounds(t, owner, low, high);
    NGA_Get64(t->array, low, high, to, &stride);
}
static void write_block(struct table *t, int owner, const uint64_t *from)
{
    int64_t low[2], high[2], stride = t->columns;
    bounds(t, owner, low, high);
    NGA_Put64(t->array, low, high, (void *)from, &stride);
    ARMCI_AllFence();
}

/* Subscripts in one piece, as it likes them; as many at a time as `many`. */
static void gather_parts(struct table *t, size_t n, const uint64_t *index, uint64_t *values, size_t many)
{
    for (size_t k = 0; k < n; k += many)
        NGA_Gather_flat64(t->array, values + k, (int64_t *)index + k, (int64_t)(n - k < many ? n - k : many));
}
static void scatter_parts(struct table *t, size_t n, const uint64_t *index, uint64_t *values, size_t many)
{
    for (size_t k = 0; k < n; k += many)
        NGA_Scatter_flat64(t->array, values + k, (int64_t *)index + k, (int64_t)(n - k < many ? n - k : many));
    ARMCI_AllFence();
}
static void add_parts(struct table *t, size_t n, const uint64_t *index, uint64_t *values, size_t many)
{
    long once = 1;
    for (size_t k = 0; k < n; k += many)
        NGA_Scatter_acc_flat64(t->array, values + k, (int64_t *)index + k, (int64_t)(n - k < many ? n - k : many),
                               &once);
    ARMCI_AllFence();
}
static void gather_whole(struct table *t, size_t n, const uint64_t *index, uint64_t *values)
{
    gather_parts(t, n, index, values, n);
}
static void gather_64k(struct table *t, size_t n, const uint64_t *index, uint64_t *values)
{
    gather_parts(t, n, index, values, 65536);
}
static void scatter_whole(struct table *t, size_t n, const uint64_t *index, uint64_t *values)
{
    scatter_parts(t, n, index, values, n);
}
static void scatter_64k(struct table *t, size_t n, const uint64_t *index, uint64_t *values)
{
    scatter_parts(t, n, index, values, 65536);
}
static void add_whole(struct table *t, size_t n, const uint64_t *index, uint64_t *values)
{
    add_parts(t, n, index, values, n);
}
static void add_64k(struct table *t, size_t n, const uint64_t *index, uint64_t *values)
{
    add_parts(t, n, index, values, 65536);
}
static void column_get(struct table *t, size_t rows, size_t columns, size_t column, uint64_t *to)
{
    (void)columns;
    int64_t low[] = {peer * t->rows, (int64_t)column}, high[] = {low[0] + (int64_t)rows - 1, (int64_t)column};
    int64_t stride = 1;
    NGA_Get64(t->array, low, high, to, &stride);
}
static const struct way gathers[] = {
    {"NGA_Gather_flat", gather_whole}, {"NGA_Gather_flat of 65,536", gather_64k}, {0}};
static const struct way scatters[] = {
    {"NGA_Scatter_flat", scatter_whole}, {"NGA_Scatter_flat of 65,536", scatter_64k}, {0}};
static const struct way adds[] = {
    {"NGA_Scatter_acc_flat", add_whole}, {"NGA_Scatter_acc_flat of 65,536", add_64k}, {0}};
static const struct column_way column_ways[] = {{"NGA_Get", column_get}, {0}};

struct field {
    double *at;
    int array;
};

static struct field make_field(size_t rows, size_t stride)
{
    int64_t shape[] = {(int64_t)rows * ranks, (int64_t)stride - 2}, block[] = {(int64_t)rows, (int64_t)stride - 2};
    int64_t width[] = {1, 1}, own[2], leading;
    struct field f;
    f.array = NGA_Create_ghosts64(C_DBL, 2, shape, width, "field", block);
    GA_Zero(f.array);
    NGA_Access_ghosts64(f.array, own, &f.at, &leading);
    if (own[0] != (int64_t)rows + 2 || leading != (int64_t)stride)
        fail("ghost cells are elsewhere");
    return f;
}

/* Its ghost cells wrap around; the zeros at the edges of the field are written again. */
static void exchange(struct field *f, size_t rows, size_t stride)
{
    GA_Update_ghosts(f->array);
    if (rank == 0)
        memset(f->at, 0, stride * sizeof(double));
    if (rank == ranks - 1)
        memset(f->at + (rows + 1) * stride, 0, stride * sizeof(double));
    for (size_t row = 0; row < rows + 2; row++)
        f->at[row * stride] = f->at[row * stride + stride - 1] = 0;
}
