/* What ../compare/collectives.rs measures, in MPI. */

static double *many;

static void c_barrier(void) { MPI_Barrier(MPI_COMM_WORLD); }
/* From each rank in turn: each waits for the last, as what is done with the values would. */
static int root = -1;
static void broadcast(int count)
{
    root = (root + 1) % ranks;
    MPI_Bcast(many, count, MPI_DOUBLE, root, MPI_COMM_WORLD);
}
static void c_broadcast_8(void) { broadcast(1); }
static void c_broadcast_1m(void) { broadcast(1 << 17); }
static void c_all_reduce_8(void)
{
    MPI_Allreduce(MPI_IN_PLACE, many, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}
static void c_all_reduce_1m(void)
{
    MPI_Allreduce(MPI_IN_PLACE, many, 1 << 17, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}
static void c_all_to_all_4k(void)
{
    MPI_Alltoall(many, 512, MPI_DOUBLE, (double *)buffer, 512, MPI_DOUBLE, MPI_COMM_WORLD);
}
static void c_message_1m(void)
{
    if (rank == 0) {
        MPI_Send(many, 1 << 17, MPI_DOUBLE, 1, 1, MPI_COMM_WORLD);
        MPI_Recv(many, 1, MPI_DOUBLE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank == 1) {
        MPI_Recv(many, 1 << 17, MPI_DOUBLE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(many, 1, MPI_DOUBLE, 0, 2, MPI_COMM_WORLD);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Ranks 0 and 1, 2 and 3 …; started, then waited for. */
static void c_exchange_1m(void)
{
    int other = rank ^ 1;
    if (other >= ranks)
        return;
    MPI_Request requests[2];
    MPI_Irecv((double *)buffer, 1 << 17, MPI_DOUBLE, other, 3, MPI_COMM_WORLD, &requests[0]);
    MPI_Isend(many, 1 << 17, MPI_DOUBLE, other, 3, MPI_COMM_WORLD, &requests[1]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
}

static void time_together(const char *name, void (*work)(void))
{
    double took[64];
    work();
    long n = 1;
    for (;;) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = now();
        for (long k = 0; k < n; k++)
            work();
        int enough = now() - begin >= batch_ns / 2 || n >= 1000000;
        MPI_Bcast(&enough, 1, MPI_INT, 0, MPI_COMM_WORLD);
        if (enough)
            break;
        n *= 2;
    }
    for (int batch = 0; batch < batches; batch++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = now();
        for (long k = 0; k < n; k++)
            work();
        took[batch] = (now() - begin) / (double)n;
    }
    print(name, median(took, batches));
}

static void collectives(void)
{
    many = (double *)(buffer + (SHARD / 2));
    for (size_t i = 0; i < SHARD / 16; i++)
        many[i] = 1;
    time_together("barrier", c_barrier);
    time_together("broadcast_8", c_broadcast_8);
    time_together("broadcast_1m", c_broadcast_1m);
    time_together("all_reduce_8", c_all_reduce_8);
    many[0] = 1;
    time_together("all_reduce_1m", c_all_reduce_1m);
    time_together("all_to_all_4k", c_all_to_all_4k);
    time_together("message_1m", c_message_1m);
    time_together("exchange_1m", c_exchange_1m);
}
