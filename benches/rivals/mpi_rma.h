/* Back end: MPI-3 one-sided. One window, locked for all for the whole run, told of every promise
   that may make it faster. A get or an atomic is complete after MPI_Win_flush. */
#include <mpi.h>

static MPI_Win window;
static int have_window;

static void start(int *argc, char ***argv)
{
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
}

static void finish(void)
{
    if (have_window) {
        MPI_Win_unlock_all(window);
        MPI_Win_free(&window);
    }
    MPI_Finalize();
}

static uint64_t *make_shard(void)
{
    uint64_t *shard;
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "accumulate_ordering", "none");
    MPI_Info_set(info, "accumulate_ops", "same_op_no_op");
    MPI_Info_set(info, "same_size", "true");
    MPI_Info_set(info, "same_disp_unit", "true");
    MPI_Win_allocate(SHARD, 8, info, MPI_COMM_WORLD, &shard, &window);
    MPI_Info_free(&info);
    MPI_Win_lock_all(MPI_MODE_NOCHECK, window);
    MPI_Win_sync(window);
    have_window = 1;
    return shard;
}

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
