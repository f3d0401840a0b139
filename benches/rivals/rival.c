/* What `compare` measures of ours, measured of a rival: one source, a back end for each.

       cc -O3 -DBACKEND='"openshmem.h"'  see ../compare/rivals.rs for how it is built and started
       rival BATCH_MS BATCHES SECTION…    sections: element network busy bulk barrier, in this order (bulk
                                      overwrites the values that busy checks), batch, remote:COUNT,
                                      stencil, collectives (MPI); none: starts and ends

   Prints lines `figure NAME VALUE`, where there was a choice `way NAME TEXT`, at the end
   `figure done 1`. The loops, index streams and
   batches are those of ../compare/rank.rs: change both or neither. Times are ns, rates bytes/ns,
   which is GB/s. */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Bytes of one rank's shard. */
#define SHARD ((size_t)64 << 20)
#define WORDS (SHARD / 8)

static int rank, ranks, peer;

/* Where loops leave their result, so that they are not optimised away. */
volatile uint64_t sink;

/* Ways to read, write or add to many elements of a table at once, and to read a column of the
   peer's block; a back end lists those that it has, and ends the list with {0}. */
struct table;
struct way {
    const char *name;
    void (*run)(struct table *table, size_t n, const uint64_t *index, uint64_t *values);
};
struct column_way {
    const char *name;
    void (*run)(struct table *table, size_t rows, size_t columns, size_t column, uint64_t *to);
};

static _Noreturn void fail(const char *why)
{
    fprintf(stderr, "rank %d: %s\n", rank, why);
    exit(1);
}

#include BACKEND

static double batch_ns;
static int batches;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

/* The value of word i of every shard. */
static uint64_t content(uint64_t i) { return i * 0x9e3779b97f4a7c15u; }

static uint64_t xorshift(uint64_t x)
{
    x ^= x << 13;
    x ^= x >> 7;
    return x ^ x << 17;
}

static void print(const char *name, double value)
{
    if (rank == 0) {
        printf("figure %s %.6g\n", name, value);
        fflush(stdout);
    }
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, ascending);
    return values[count / 2];
}

/* Runs `loop(n, seed)` in batches of about batch_ns; the median of ns for one round of the loop. */
static double time_loop(uint64_t (*loop)(size_t, uint64_t))
{
    double took[64];
    size_t n = 1;
    for (;;) {
        double begin = now();
        sink = loop(n, 88172645463325252u);
        double time = now() - begin;
        if (time >= batch_ns / 2 || n >= (size_t)1 << 40) {
            n = (size_t)((double)n * batch_ns / time) + 1;
            break;
        }
        n *= 2;
    }
    for (int batch = 0; batch < batches; batch++) {
        double begin = now();
        sink = loop(n, 88172645463325252u + (uint64_t)batch);
        took[batch] = (now() - begin) / (double)n;
    }
    return median(took, batches);
}

/* Indices that do not depend on what was read: gets may overlap. */
static uint64_t get_random(size_t n, uint64_t x)
{
    uint64_t sum = 0;
    while (n--) {
        x = xorshift(x);
        sum += get(peer, x & (WORDS - 1));
    }
    return sum;
}

/* Each index depends on the value read before: one get at a time. */
static uint64_t get_chain(size_t n, uint64_t x)
{
    uint64_t value = 0;
    while (n--) {
        x = xorshift(x);
        value = get(peer, (x + value) & (WORDS - 1));
    }
    return value;
}

/* 512 words, which stay in the first-level cache. */
static uint64_t get_cached(size_t n, uint64_t x)
{
    uint64_t sum = 0;
    while (n--) {
        x += 0x9e3779b97f4a7c15u;
        sum += get(peer, x >> 55);
    }
    return sum;
}

static uint64_t get_chain_cached(size_t n, uint64_t x)
{
    uint64_t value = 0;
    while (n--) {
        x += 0x9e3779b97f4a7c15u;
        value = get(peer, ((x >> 55) + value) & 511);
    }
    return value;
}

static uint64_t put_random(size_t n, uint64_t x)
{
    while (n--) {
        x = xorshift(x);
        put(peer, x & (WORDS - 1), content(x & (WORDS - 1)));
    }
    flush(peer);
    return x;
}

static uint64_t put_flush_random(size_t n, uint64_t x)
{
    while (n--) {
        x = xorshift(x);
        put(peer, x & (WORDS - 1), content(x & (WORDS - 1)));
        flush(peer);
    }
    return x;
}

static uint64_t put_cached(size_t n, uint64_t x)
{
    while (n--) {
        x += 0x9e3779b97f4a7c15u;
        put(peer, x >> 55, content(x >> 55));
    }
    flush(peer);
    return x;
}

static uint64_t fetch_add_random(size_t n, uint64_t x)
{
    uint64_t sum = 0;
    while (n--) {
        x = xorshift(x);
        sum += fetch_add(peer, x & (WORDS - 1), 0);
    }
    return sum;
}

static uint64_t fetch_add_cached(size_t n, uint64_t x)
{
    uint64_t sum = 0;
    while (n--) {
        x += 0x9e3779b97f4a7c15u;
        sum += fetch_add(peer, x >> 55, 0);
    }
    return sum;
}

static char *buffer;
static size_t bulk_bytes;

/* Walks through the shard, as a program that reads an array would. */
static uint64_t get_bulk(size_t n, uint64_t x)
{
    (void)x;
    for (size_t offset = 0; n--; offset = (offset + bulk_bytes) & (SHARD - 1))
        get_bytes(peer, offset, buffer, bulk_bytes);
    return (uint64_t)buffer[0];
}

static uint64_t put_bulk(size_t n, uint64_t x)
{
    for (size_t offset = 0; n--; offset = (offset + bulk_bytes) & (SHARD - 1))
        put_bytes(peer, offset, buffer, bulk_bytes);
    flush(peer);
    return x;
}

struct loop {
    const char *name;
    uint64_t (*run)(size_t, uint64_t);
};

static void time_loops(const struct loop *loops, size_t count)
{
    for (size_t k = 0; k < count; k++)
        print(loops[k].name, time_loop(loops[k].run));
}

static void element(void)
{
    static const struct loop loops[] = {
        {"get_random", get_random},
        {"get_chain", get_chain},
        {"get_cached", get_cached},
        {"get_chain_cached", get_chain_cached},
        {"put_random", put_random},
        {"put_flush_random", put_flush_random},
        {"put_cached", put_cached},
        {"fetch_add_random", fetch_add_random},
        {"fetch_add_cached", fetch_add_cached},
    };
    time_loops(loops, sizeof loops / sizeof *loops);
}

/* What is worth measuring where an operation takes microseconds. */
static void network(void)
{
    static const struct loop loops[] = {
        {"get_random", get_random},
        {"put_flush_random", put_flush_random},
        {"fetch_add_random", fetch_add_random},
    };
    time_loops(loops, sizeof loops / sizeof *loops);
    bulk_bytes = (size_t)1 << 20;
    print("get_into_1m", (double)bulk_bytes / time_loop(get_bulk));
}

static void bulk(void)
{
    static const struct {
        const char *get, *put;
        size_t bytes;
    } sizes[] = {
        {"get_into_4k", "put_range_4k", (size_t)4 << 10},
        {"get_into_1m", "put_range_1m", (size_t)1 << 20},
        {"get_into_16m", "put_range_16m", (size_t)16 << 20},
    };
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        bulk_bytes = sizes[k].bytes;
        get_bytes(peer, 0, buffer, bulk_bytes);
        print(sizes[k].get, (double)bulk_bytes / time_loop(get_bulk));
        print(sizes[k].put, (double)bulk_bytes / time_loop(put_bulk));
    }
}

/* Most operations that busy times, one by one. */
#define BUSY_MOST ((size_t)1 << 20)

/* Rank 0 reads for 200 ms while the others compute for 300 ms without calling the library. */
static void busy(void)
{
    static const char *const names[][3] = {
        {"get_busy", "get_busy_median", "get_busy_worst"},
        {"fetch_add_busy", "fetch_add_busy_median", "fetch_add_busy_worst"},
    };
    static double took[BUSY_MOST];
    double wrong = 0;
    for (int kind = 0; kind < 2; kind++) {
        barrier();
        double begin = now();
        if (rank == 0) {
            while (now() - begin < 20e6)
                ;
            double first = now(), last = first;
            size_t count = 0;
            for (uint64_t x = 88172645463325252u; last - begin < 220e6 && count < BUSY_MOST;) {
                x = xorshift(x);
                size_t i = x & (WORDS - 1);
                uint64_t value = kind == 0 ? get(peer, i) : fetch_add(peer, i, 0);
                double end = now();
                wrong += value != content(i);
                took[count++] = end - last;
                last = end;
            }
            print(names[kind][0], (last - first) / (double)count);
            print(names[kind][1], median(took, (int)count));
            print(names[kind][2], took[count - 1]);
            print("wrong", wrong);
        } else {
            volatile double work = 1;
            while (now() - begin < 300e6)
                for (int k = 0; k < 1000; k++)
                    work = work * 1.0000001;
        }
        barrier();
    }
}

/* All ranks together; rank 0's times. The number of rounds is found by doubling, and as all must
   do the same, it is passed on through rank 0's shard. */
static void barriers(uint64_t *shard)
{
    double took[64];
    uint64_t n = 16;
    for (int k = 0; k < 20; k++)
        barrier();
    for (;;) {
        double begin = now();
        for (uint64_t k = 0; k < n; k++)
            barrier();
        double time = now() - begin;
        if (rank == 0) {
            shard[0] = time >= batch_ns / 2 || n >= 1000000 ? 0 : n * 2;
            filled();
        }
        barrier();
        uint64_t next = get(0, 0);
        barrier();
        if (next == 0)
            break;
        n = next;
    }
    for (int batch = 0; batch < batches; batch++) {
        barrier();
        double begin = now();
        for (uint64_t k = 0; k < n; k++)
            barrier();
        took[batch] = (now() - begin) / (double)n;
    }
    print("barrier", median(took, batches));
    barrier();
}

#include "batch.h"
#include "stencil.h"
#ifdef MPI_VERSION
#include "collectives.h"
#endif

int main(int argc, char **argv)
{
    start(&argc, &argv);
    if (argc < 4) {
        finish();
        return 0;
    }
    batch_ns = atof(argv[1]) * 1e6;
    batches = atoi(argv[2]);
    if (batches < 1 || batches > 64)
        return 2;
    uint64_t *shard = make_shard();
    for (size_t i = 0; i < WORDS; i++)
        shard[i] = content(i);
    filled();
    buffer = aligned_alloc(4096, SHARD);
    memset(buffer, 1, SHARD);
    peer = (rank + 1) % ranks;
    barrier();
    if (rank == 0) {
        /* A process's first access to a page costs more than what is measured here. */
        for (size_t i = 0; i < WORDS; i += 512)
            put(peer, i, content(i));
        flush(peer);
        double wrong = 0;
        for (size_t i = 0; i < 100; i++)
            wrong += get(peer, i * 4099) != content(i * 4099);
        print("wrong", wrong);
    }
    for (int k = 3; k < argc; k++) {
        barrier();
        if (strcmp(argv[k], "element") == 0 && rank == 0)
            element();
        if (strcmp(argv[k], "network") == 0 && rank == 0)
            network();
        if (strcmp(argv[k], "bulk") == 0 && rank == 0)
            bulk();
        if (strcmp(argv[k], "busy") == 0)
            busy();
        if (strcmp(argv[k], "barrier") == 0)
            barriers(shard);
        if (strcmp(argv[k], "batch") == 0)
            batch(shard);
        if (strncmp(argv[k], "remote:", 7) == 0)
            remote(shard, (size_t)atol(argv[k] + 7));
        if (strcmp(argv[k], "stencil") == 0)
            stencil();
#ifdef MPI_VERSION
        if (strcmp(argv[k], "collectives") == 0)
            collectives();
#endif
        barrier();
    }
    print("done", 1);
    finish();
    return 0;
}
