/* Back end: MPI-3 one-sided. One window, locked for all for the whole run, told of every promise
   that may make it faster. A get or an atomic is complete after MPI_Win_flush. */
#include <mpi.h>

static MPI_Win window;
static MPI_Win windows[8];
static int window_count;

static void start(int *argc, char ***argv)
{
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
}

static void finish(void)
{
    while (window_count > 0) {
        MPI_Win *last = &windows[--window_count];
        MPI_Win_unlock_all(*last);
        MPI_Win_free(last);
    }
    MPI_Finalize();
}

static uint64_t *make_window(size_t bytes, MPI_Win *to)
{
    uint64_t *shard;
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "accumulate_ordering", "none");
    MPI_Info_set(info, "accumulate_ops", "same_op_no_op");
    MPI_Info_set(info, "same_size", "true");
    MPI_Info_set(info, "same_disp_unit", "true");
    MPI_Win_allocate((MPI_Aint)bytes, 8, info, MPI_COMM_WORLD, &shard, to);
    MPI_Info_free(&info);
    MPI_Win_lock_all(MPI_MODE_NOCHECK, *to);
    MPI_Win_sync(*to);
    windows[window_count++] = *to;
    return shard;
}

static uint64_t *make_shard(void) { return make_window(SHARD, &window); }

static void filled(void) { MPI_Win_sync(window); }
static inline void barrier(void) { MPI_Barrier(MPI_COMM_WORLD); }

static inline uint64_t get(int peer, size_t i)
{
    uint64_t value;
    MPI_Get(&value, 1, MPI_UINT64_T, peer, (MPI_Aint)i, 1, MPI_UINT64_T, window);
    MPI_Win_flush(peer, window);
    return value;
}
static inline void put(int peer, size_t i, uint64_t value)
{
    MPI_Put(&value, 1, MPI_UINT64_T, peer, (MPI_Aint)i, 1, MPI_UINT64_T, window);
    MPI_Win_flush_local(peer, window);
}
static inline void flush(int peer) { MPI_Win_flush(peer, window); }
static inline uint64_t fetch_add(int peer, size_t i, uint64_t value)
{
    uint64_t before;
    MPI_Fetch_and_op(&value, &before, MPI_UINT64_T, peer, (MPI_Aint)i, MPI_SUM, window);
    MPI_Win_flush(peer, window);
    return before;
}
static inline void get_bytes(int peer, size_t from, void *to, size_t bytes)
{
    int count = (int)(bytes / 8);
    MPI_Get(to, count, MPI_UINT64_T, peer, (MPI_Aint)(from / 8), count, MPI_UINT64_T, window);
    MPI_Win_flush(peer, window);
}
static inline void put_bytes(int peer, size_t to, const void *from, size_t bytes)
{
    int count = (int)(bytes / 8);
    MPI_Put(from, count, MPI_UINT64_T, peer, (MPI_Aint)(to / 8), count, MPI_UINT64_T, window);
    MPI_Win_flush_local(peer, window);
}

struct table {
    size_t each;
    unsigned shift;
    uint64_t *own;
    MPI_Win window;
};

static struct table make_table(size_t rows, size_t columns)
{
    struct table t = {.each = rows / (size_t)ranks * columns};
    t.own = make_window(t.each * 8, &t.window);
    return t;
}
static void read_block(struct table *t, int owner, uint64_t *to)
{
    MPI_Win_sync(t->window);
    MPI_Get(to, (int)t->each, MPI_UINT64_T, owner, 0, (int)t->each, MPI_UINT64_T, t->window);
    MPI_Win_flush(owner, t->window);
}
static void write_block(struct table *t, int owner, const uint64_t *from)
{
    MPI_Put(from, (int)t->each, MPI_UINT64_T, owner, 0, (int)t->each, MPI_UINT64_T, t->window);
    MPI_Win_flush(owner, t->window);
    MPI_Win_sync(t->window);
}

#define OWNER(index) ((int)((index) >> t->shift))
#define PLACE(index) ((MPI_Aint)((index) & (t->each - 1)))

/* MPICH 4.0.2 has no more requests than some 65,000, and dies of the next. */
#define IN_FLIGHT 4096
static inline void limit_flight(struct table *t, size_t k)
{
    if (k % IN_FLIGHT == IN_FLIGHT - 1)
        MPI_Win_flush_all(t->window);
}

static void gather_loop(struct table *t, size_t n, const uint64_t *index, uint64_t *values)
{
    for (size_t k = 0; k < n; k++) {
        MPI_Get(values + k, 1, MPI_UINT64_T, OWNER(index[k]), PLACE(index[k]), 1, MPI_UINT64_T, t->window);
        limit_flight(t, k);
    }
    MPI_Win_flush_all(t->window);
}

/* One MPI_Get for each rank, of all that it has. MPI forbids the same for MPI_Put and
   MPI_Accumulate where an element comes twice. */
static void gather_indexed(struct table *t, size_t n, const uint64_t *index, uint64_t *values)
{
    int *there = malloc(n * sizeof *there), *here = malloc(n * sizeof *here);
    for (int owner = 0; owner < ranks; owner++) {
        int count = 0;
        for (size_t k = 0; k < n; k++) {
            there[count] = (int)PLACE(index[k]);
            here[count] = (int)k;
            count += OWNER(index[k]) == owner;
        }
        MPI_Datatype from, to;
        MPI_Type_create_indexed_block(count, 1, there, MPI_UINT64_T, &from);
        MPI_Type_create_indexed_block(count, 1, here, MPI_UINT64_T, &to);
        MPI_Type_commit(&from);
        MPI_Type_commit(&to);
        MPI_Get(values, 1, to, owner, 0, 1, from, t->window);
        MPI_Win_flush(owner, t->window);
        MPI_Type_free(&from);
        MPI_Type_free(&to);
    }
    free(there);
    free(here);
}
static void scatter_loop(struct table *t, size_t n, const uint64_t *index, uint64_t *values)
{
    for (size_t k = 0; k < n; k++) {
        MPI_Put(values + k, 1, MPI_UINT64_T, OWNER(index[k]), PLACE(index[k]), 1, MPI_UINT64_T, t->window);
        limit_flight(t, k);
    }
    MPI_Win_flush_all(t->window);
}
static void add_accumulate(struct table *t, size_t n, const uint64_t *index, uint64_t *values)
{
    for (size_t k = 0; k < n; k++) {
        MPI_Accumulate(values + k, 1, MPI_UINT64_T, OWNER(index[k]), PLACE(index[k]), 1, MPI_UINT64_T, MPI_SUM,
                       t->window);
        limit_flight(t, k);
    }
    MPI_Win_flush_all(t->window);
}
static void add_fetch(struct table *t, size_t n, const uint64_t *index, uint64_t *values)
{
    static uint64_t before;
    for (size_t k = 0; k < n; k++) {
        MPI_Fetch_and_op(values + k, &before, MPI_UINT64_T, OWNER(index[k]), PLACE(index[k]), MPI_SUM, t->window);
        limit_flight(t, k);
    }
    MPI_Win_flush_all(t->window);
}
static void column_vector(struct table *t, size_t rows, size_t columns, size_t column, uint64_t *to)
{
    static MPI_Datatype type = MPI_DATATYPE_NULL;
    if (type == MPI_DATATYPE_NULL) {
        MPI_Type_vector((int)rows, 1, (int)columns, MPI_UINT64_T, &type);
        MPI_Type_commit(&type);
    }
    MPI_Get(to, (int)rows, MPI_UINT64_T, peer, (MPI_Aint)column, 1, type, t->window);
    MPI_Win_flush(peer, t->window);
}
static void column_loop(struct table *t, size_t rows, size_t columns, size_t column, uint64_t *to)
{
    for (size_t k = 0; k < rows; k++)
        MPI_Get(to + k, 1, MPI_UINT64_T, peer, (MPI_Aint)(column + k * columns), 1, MPI_UINT64_T, t->window);
    MPI_Win_flush(peer, t->window);
}
static const struct way gathers[] = {
    {"MPI_Get of an indexed type", gather_indexed}, {"loop of MPI_Get", gather_loop}, {0}};
static const struct way scatters[] = {{"loop of MPI_Put", scatter_loop}, {0}};
static const struct way adds[] = {
    {"loop of MPI_Accumulate", add_accumulate}, {"loop of MPI_Fetch_and_op", add_fetch}, {0}};
static const struct column_way column_ways[] = {
    {"MPI_Get of a vector type", column_vector}, {"loop of MPI_Get", column_loop}, {0}};

struct field {
    double *at;
};

static struct field make_field(size_t rows, size_t stride)
{
    return (struct field){.at = malloc((rows + 2) * stride * sizeof(double))};
}

static int above(void) { return rank > 0 ? rank - 1 : MPI_PROC_NULL; }
static int below(void) { return rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL; }

static void exchange(struct field *f, size_t rows, size_t stride)
{
    int count = (int)stride;
    MPI_Sendrecv(f->at + stride, count, MPI_DOUBLE, above(), 0, f->at + (rows + 1) * stride, count, MPI_DOUBLE,
                 below(), 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(f->at + rows * stride, count, MPI_DOUBLE, below(), 1, f->at, count, MPI_DOUBLE, above(), 1,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* The same while the inner cells are computed. */
#define OVERLAP
static MPI_Request requests[4];

static void exchange_begin(struct field *f, size_t rows, size_t stride)
{
    int count = (int)stride;
    MPI_Irecv(f->at + (rows + 1) * stride, count, MPI_DOUBLE, below(), 0, MPI_COMM_WORLD, &requests[0]);
    MPI_Irecv(f->at, count, MPI_DOUBLE, above(), 1, MPI_COMM_WORLD, &requests[1]);
    MPI_Isend(f->at + stride, count, MPI_DOUBLE, above(), 0, MPI_COMM_WORLD, &requests[2]);
    MPI_Isend(f->at + rows * stride, count, MPI_DOUBLE, below(), 1, MPI_COMM_WORLD, &requests[3]);
}
static void exchange_finish(void) { MPI_Waitall(4, requests, MPI_STATUSES_IGNORE); }
