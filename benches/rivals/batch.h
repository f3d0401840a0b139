/* Sections `batch` and `remote:COUNT`: many elements in one call, as ../compare/batch.rs. A rival that
   can do it in several ways is measured in the one that was fastest on a tenth of the elements. */

/* Words of the table, bins of the two histograms, and the array whose columns are read. */
#define TABLE ((size_t)1 << 22)
#define FEW_BINS ((size_t)1 << 16)
#define MATRIX_ROWS ((size_t)1000)
#define MATRIX_COLUMNS ((size_t)1000)

/* Longest that one figure is repeated, and that one way is tried. */
#define MOST_NS 1.5e9

static struct table table_of(size_t words)
{
    struct table t = make_table(words, 1);
    while ((size_t)1 << t.shift < t.each)
        t.shift++;
    return t;
}

/* Word i is content(i) xor `mask`, or 0. */
static void fill(struct table *t, int zero, uint64_t mask)
{
    uint64_t *block = malloc(t->each * 8);
    barrier();
    for (size_t i = 0; i < t->each; i++)
        block[i] = zero ? 0 : content((uint64_t)rank * t->each + i) ^ mask;
    write_block(t, rank, block);
    free(block);
    barrier();
}

static uint64_t *all_words(struct table *t)
{
    uint64_t *words = malloc((size_t)ranks * t->each * 8);
    for (int owner = 0; owner < ranks; owner++)
        read_block(t, owner, words + (size_t)owner * t->each);
    return words;
}

static uint64_t *random_indices(size_t n, size_t below, uint64_t x)
{
    uint64_t *index = malloc(n * sizeof *index);
    for (size_t k = 0; k < n; k++) {
        x = xorshift(x);
        index[k] = x & (below - 1);
    }
    return index;
}

/* All ranks get rank 0's number. */
static uint64_t agree(uint64_t *shard, uint64_t number)
{
    if (rank == 0) {
        shard[0] = number;
        filled();
    }
    barrier();
    number = get(0, 0);
    barrier();
    return number;
}

struct work {
    struct table *table;
    size_t n;
    const uint64_t *index;
    uint64_t *values;
};

/* ns of one element; counts the calls. `together`: all ranks do it, and it ends when all have. */
static double time_call(const struct way *way, const struct work *work, size_t n, int together, uint64_t *calls)
{
    if (together)
        barrier();
    double begin = now();
    way->run(work->table, n, work->index, work->values);
    if (together)
        barrier();
    *calls += n == work->n;
    return (now() - begin) / (double)n;
}

/* The fastest way. It runs on the first tenth of the indices once untimed and once timed. */
static const struct way *choose(const struct way *ways, const struct work *work, const char *name)
{
    const struct way *best = ways;
    double least = 1e300;
    uint64_t calls = 0;
    for (const struct way *way = ways; way->name && ways[1].name; way++) {
        double ns = time_call(way, work, work->n / 10, 0, &calls);
        if (ns * (double)work->n / 10 < MOST_NS)
            ns = time_call(way, work, work->n / 10, 0, &calls);
        if (ns < least) {
            least = ns;
            best = way;
        }
    }
    if (rank == 0 && ways[1].name)
        printf("way %s %s\n", name, best->name);
    return best;
}

/* Returns how often it ran. */
static uint64_t time_batch(const char *name, const struct way *way, const struct work *work, int together,
                           uint64_t *shard)
{
    double took[64];
    uint64_t calls = 0;
    double first = time_call(way, work, work->n, together, &calls) * (double)work->n;
    double fit = MOST_NS / first;
    uint64_t count = fit >= batches ? (uint64_t)batches : fit < 1 ? 1 : (uint64_t)fit;
    if (together)
        count = agree(shard, count);
    for (uint64_t k = 0; k < count; k++)
        took[k] = time_call(way, work, work->n, together, &calls);
    print(name, median(took, (int)count));
    return calls;
}

static void gather_and_scatter(size_t n)
{
    struct table t = table_of(TABLE);
    uint64_t *index = random_indices(n, TABLE, 88172645463325252u), *values = calloc(n, 8);
    struct work work = {&t, n, index, values};
    fill(&t, 0, 0);
    if (rank == 0) {
        time_batch("gather", choose(gathers, &work, "gather"), &work, 0, NULL);
        double wrong = 0;
        for (size_t k = 0; k < n; k++)
            wrong += values[k] != content(index[k]);
        print("wrong", wrong);
    }
    fill(&t, 0, ~(uint64_t)0);
    if (rank == 0) {
        for (size_t k = 0; k < n; k++)
            values[k] = content(index[k]);
        time_batch("scatter", choose(scatters, &work, "scatter"), &work, 0, NULL);
    }
    barrier();
    if (rank == 0) {
        uint64_t *words = all_words(&t);
        double wrong = 0;
        for (size_t k = 0; k < n; k++)
            wrong += words[index[k]] != content(index[k]);
        for (size_t i = 0; i < TABLE; i++)
            wrong += words[i] != content(i) && words[i] != ~content(i);
        free(words);
        print("wrong", wrong);
    }
    barrier();
    free(index);
    free(values);
}

/* `alone`: rank 0 adds; then all do, each its own indices. */
static void histogram(size_t bins, size_t n, const char *alone, const char *together, uint64_t *shard)
{
    struct table t = table_of(bins);
    uint64_t *index = random_indices(n, bins, 88172645463325252u + (uint64_t)rank), *ones = malloc(n * 8);
    struct work work = {&t, n, index, ones};
    for (size_t k = 0; k < n; k++)
        ones[k] = 1;
    uint64_t which = 0;
    if (rank == 0)
        which = (uint64_t)(choose(adds, &work, alone) - adds);
    const struct way *way = &adds[agree(shard, which)];
    for (int all = 0; all < (together ? 2 : 1); all++) {
        fill(&t, 1, 0);
        uint64_t calls = 0;
        if (all || rank == 0)
            calls = time_batch(all ? together : alone, way, &work, all, shard);
        barrier();
        if (rank == 0) {
            uint64_t *words = all_words(&t);
            for (int from = 0; from < (all ? ranks : 1); from++) {
                uint64_t *theirs = random_indices(n, bins, 88172645463325252u + (uint64_t)from);
                for (size_t k = 0; k < n; k++)
                    words[theirs[k]] -= calls;
                free(theirs);
            }
            double wrong = 0;
            for (size_t i = 0; i < bins; i++)
                wrong += words[i] != 0;
            print("wrong", wrong);
            free(words);
        }
        barrier();
    }
    free(index);
    free(ones);
}

/* A column of the peer's rows, another one each time. */
static struct table *matrix;
static const struct column_way *column_way;
static uint64_t column_values[MATRIX_ROWS];
static double columns_wrong;

static uint64_t column_loops(size_t n, uint64_t x)
{
    size_t column = 0;
    while (n--) {
        x = xorshift(x);
        column = (size_t)(((x >> 32) * MATRIX_COLUMNS) >> 32);
        column_way->run(matrix, MATRIX_ROWS, MATRIX_COLUMNS, column, column_values);
    }
    for (size_t row = 0; row < MATRIX_ROWS; row++)
        columns_wrong += column_values[row] != content(((size_t)peer * MATRIX_ROWS + row) * MATRIX_COLUMNS + column);
    return x;
}

static void column(void)
{
    struct table t = make_table((size_t)ranks * MATRIX_ROWS, MATRIX_COLUMNS);
    matrix = &t;
    fill(&t, 0, 0);
    if (rank == 0) {
        double least = 1e300;
        const char *best = "";
        for (column_way = column_ways; column_way->name; column_way++) {
            double ns = time_loop(column_loops);
            if (ns < least) {
                least = ns;
                best = column_way->name;
            }
        }
        print("column", least);
        print("wrong", columns_wrong);
        if (column_ways[1].name)
            printf("way column %s\n", best);
    }
    barrier();
}

static void batch(uint64_t *shard)
{
    gather_and_scatter(1000000);
    histogram(FEW_BINS, 1000000, "scatter_with_64k", "update_64k", shard);
    histogram(TABLE, 1000000, "scatter_with_4m", "update_4m", shard);
    column();
}

/* Where an operation takes microseconds. */
static void remote(uint64_t *shard, size_t n)
{
    gather_and_scatter(n);
    histogram(TABLE, n, "scatter_with_4m", NULL, shard);
    column();
}
