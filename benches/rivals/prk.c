/* Kernels of the Parallel Research Kernels in MPI-1's two-sided form, as examples/prk_*.rs do them.

       mpicc -O3 prk.c -o prk      prk KERNEL ITERATIONS SIZE

   One iteration is not timed. Prints `figure NAME NANOSECONDS`, of one iteration, and `figure wrong 1` if the
   result is not what the kernel's rule says. */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;
static long size;
static int iterations;

static double *doubles(long count)
{
    double *memory = aligned_alloc(4096, ((size_t)count * 8 + 4095) / 4096 * 4096);
    if (!memory)
        MPI_Abort(MPI_COMM_WORLD, 2);
    memset(memory, 0, (size_t)count * 8);
    return memory;
}

/* The average time of an iteration. */
static double timed(void (*iterate)(void))
{
    double begin = 0;
    for (int k = 0; k <= iterations; k++) {
        if (k == 1) {
            MPI_Barrier(MPI_COMM_WORLD);
            begin = MPI_Wtime();
        }
        iterate();
    }
    double mine = MPI_Wtime() - begin, longest;
    MPI_Reduce(&mine, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    return longest / iterations;
}

static double sum_of_all(double mine)
{
    double all;
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

static int differs(double found, double expected)
{
    return !(fabs(found - expected) <= 1e-8 * fabs(expected) + 1e-8);
}

static double *restrict a, *restrict b, *restrict c;
static long part;

static void nstream(void)
{
    for (long i = 0; i < part; i++)
        a[i] += b[i] + 3.0 * c[i];
}

static int nstream_wrong(void)
{
    double sum = 0;
    for (long i = 0; i < part; i++)
        sum += a[i];
    return differs(sum_of_all(sum), (iterations + 1) * 8.0 * size);
}

/* Star of radius 2; rows are divided, with two more on each side. */
#define AT(r, k) ((r) * size + (k))
static void stencil(void)
{
    int up = rank > 0 ? rank - 1 : MPI_PROC_NULL, down = rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL;
    int count = (int)(2 * size);
    MPI_Sendrecv(a + AT(2, 0), count, MPI_DOUBLE, up, 1, a + AT(part + 2, 0), count, MPI_DOUBLE, down, 1,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(a + AT(part, 0), count, MPI_DOUBLE, down, 2, a, count, MPI_DOUBLE, up, 2, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    long first = rank == 0 ? 2 : 0, last = rank == ranks - 1 ? part - 2 : part;
    for (long r = first; r < last; r++) {
        const double *in = a + AT(r + 2, 0);
        double *restrict out = b + AT(r, 0);
        for (long k = 2; k < size - 2; k++)
            out[k] += -0.125 * in[k - 2] - 0.25 * in[k - 1] + 0.25 * in[k + 1] + 0.125 * in[k + 2]
                      - 0.125 * in[k - 2 * size] - 0.25 * in[k - size] + 0.25 * in[k + size]
                      + 0.125 * in[k + 2 * size];
    }
    for (long i = AT(2, 0); i < AT(part + 2, 0); i++)
        a[i] += 1.0;
}

static int stencil_wrong(void)
{
    double sum = 0;
    for (long i = 0; i < part * size; i++)
        sum += fabs(b[i]);
    return differs(sum_of_all(sum) / ((double)(size - 4) * (size - 4)), 2.0 * (iterations + 1));
}

/* Rows are divided; b += transposed a. */
#define TILE 32
static void add_block(const double *block, long from)
{
    for (long r = 0; r < part; r++)
        for (long k = 0; k < part; k++)
            b[AT(r, from * part + k)] += block[r * part + k];
}
static void pack(double *block, long to)
{
    for (long r = 0; r < part; r += TILE)
        for (long k = 0; k < part; k += TILE)
            for (long kk = k; kk < part && kk < k + TILE; kk++)
                for (long rr = r; rr < part && rr < r + TILE; rr++)
                    block[kk * part + rr] = a[AT(rr, to * part + kk)];
}
static double *sent, *received;
static void transpose(void)
{
    pack(sent, rank);
    add_block(sent, rank);
    for (int step = 1; step < ranks; step++) {
        int to = (rank + step) % ranks, from = (rank - step + ranks) % ranks;
        int count = (int)(part * part);
        pack(sent, to);
        MPI_Sendrecv(sent, count, MPI_DOUBLE, to, 1, received, count, MPI_DOUBLE, from, 1, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        add_block(received, from);
    }
    for (long i = 0; i < part * size; i++)
        a[i] += 1.0;
}
static int transpose_wrong(void)
{
    double errors = 0, times = iterations + 1.0, added = times * iterations / 2.0;
    for (long r = 0; r < part; r++)
        for (long k = 0; k < size; k++)
            errors += fabs(b[AT(r, k)] - ((double)(size * k + rank * part + r) * times + added));
    return sum_of_all(errors) > 1e-8;
}

/* The first dimension, `size` long, is divided; so are lines of the second, as long. */
#define P(i, j) ((j) * (part + 1) + (i) + 1)
static void synch_p2p(void)
{
    int before = rank > 0 ? rank - 1 : MPI_PROC_NULL, next = rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL;
    for (long j = 1; j < size; j++) {
        MPI_Recv(&a[P(-1, j)], 1, MPI_DOUBLE, before, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (long i = rank == 0; i < part; i++)
            a[P(i, j)] = a[P(i - 1, j)] + a[P(i, j - 1)] - a[P(i - 1, j - 1)];
        MPI_Send(&a[P(part - 1, j)], 1, MPI_DOUBLE, next, 1, MPI_COMM_WORLD);
    }
    double corner = -a[P(part - 1, size - 1)];
    if (ranks == 1)
        a[P(0, 0)] = corner;
    else if (rank == ranks - 1)
        MPI_Send(&corner, 1, MPI_DOUBLE, 0, 2, MPI_COMM_WORLD);
    else if (rank == 0)
        MPI_Recv(&a[P(0, 0)], 1, MPI_DOUBLE, ranks - 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}
static int synch_p2p_wrong(void)
{
    int wrong = rank == ranks - 1 && differs(a[P(part - 1, size - 1)], (iterations + 1) * (2.0 * size - 2));
    return sum_of_all(wrong) > 0;
}

/* A vector of `size` on each rank. */
static void reduce(void)
{
    for (long i = 0; i < size; i++)
        a[i] += 1.0;
    MPI_Reduce(rank == 0 ? MPI_IN_PLACE : a, a, (int)size, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
}
static int reduce_wrong(void)
{
    double right = 1;
    for (int k = 0; k <= iterations; k++)
        right = right + 1 + (ranks - 1) * (k + 2.0);
    int wrong = 0;
    for (long i = 0; rank == 0 && i < size; i++)
        wrong |= differs(a[i], right);
    return sum_of_all(wrong) > 0;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 4)
        return 2;
    const char *name = argv[1];
    iterations = atoi(argv[2]);
    size = atol(argv[3]);
    part = size / ranks;
    void (*iterate)(void) = NULL;
    int (*wrong)(void) = NULL;
    if (strcmp(name, "nstream") == 0) {
        a = doubles(part), b = doubles(part), c = doubles(part);
        for (long i = 0; i < part; i++)
            b[i] = c[i] = 2.0;
        iterate = nstream, wrong = nstream_wrong;
    } else if (strcmp(name, "stencil") == 0) {
        a = doubles((part + 4) * size), b = doubles(part * size);
        for (long r = 0; r < part; r++)
            for (long k = 0; k < size; k++)
                a[AT(r + 2, k)] = (double)(rank * part + r + k);
        iterate = stencil, wrong = stencil_wrong;
    } else if (strcmp(name, "transpose") == 0) {
        a = doubles(part * size), b = doubles(part * size);
        sent = doubles(part * part), received = doubles(part * part);
        for (long r = 0; r < part; r++)
            for (long k = 0; k < size; k++)
                a[AT(r, k)] = (double)(size * (rank * part + r) + k);
        iterate = transpose, wrong = transpose_wrong;
    } else if (strcmp(name, "synch_p2p") == 0) {
        a = doubles((part + 1) * size);
        for (long i = -1; i < part; i++)
            a[P(i, 0)] = (double)(rank * part + i);
        for (long j = 0; rank == 0 && j < size; j++)
            a[P(0, j)] = (double)j;
        iterate = synch_p2p, wrong = synch_p2p_wrong;
    } else if (strcmp(name, "reduce") == 0) {
        a = doubles(size);
        for (long i = 0; i < size; i++)
            a[i] = 1.0;
        iterate = reduce, wrong = reduce_wrong;
    } else {
        return 2;
    }
    double time = timed(iterate);
    int bad = wrong();
    if (rank == 0)
        printf("figure %s %.6g\nfigure wrong %d\nfigure done 1\n", name, time * 1e9, bad);
    MPI_Finalize();
    return 0;
}
