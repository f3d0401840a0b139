/* Section `stencil`: the 5-point Jacobi kernel, as ../compare/stencil.rs. The field is a mode of the
   discrete Laplace operator with zeros around it, so that each sweep multiplies it by a number known
   beforehand, however many sweeps the timing needs. */
#include <math.h>

#define FIELD ((size_t)2000)
#define STRIDE (FIELD + 2)

static struct field fields[2];
static size_t field_rows, sweeps;

/* Rows `first` to `last`, of rank-local rows from 1. */
static void sweep_rows(const double *restrict from, double *restrict to, size_t first, size_t last)
{
    for (size_t row = first; row <= last; row++) {
        const double *up = from + (row - 1) * STRIDE, *here = up + STRIDE, *down = here + STRIDE;
        double *out = to + row * STRIDE;
        for (size_t column = 1; column <= FIELD; column++)
            out[column] = 0.25 * (up[column] + down[column] + here[column - 1] + here[column + 1]);
    }
}

static double mode(size_t row, size_t rows, size_t column)
{
    double pi = 3.14159265358979323846;
    return sin(7 * pi * (double)row / (double)(rows + 1)) * sin(11 * pi * (double)column / (double)(FIELD + 1));
}
static double factor(size_t rows)
{
    double pi = 3.14159265358979323846;
    return 0.5 * (cos(7 * pi / (double)(rows + 1)) + cos(11 * pi / (double)(FIELD + 1)));
}

/* The whole field, or each block for itself with zeros around it. */
static double mode_at(size_t row, size_t column, int whole)
{
    return whole ? mode((size_t)rank * field_rows + row, FIELD, column) : mode(row, field_rows, column);
}

static void begin_field(int whole)
{
    sweeps = 0;
    for (int k = 0; k < 2; k++)
        memset(fields[k].at, 0, (field_rows + 2) * STRIDE * sizeof(double));
    for (size_t row = 1; row <= field_rows; row++)
        for (size_t column = 1; column <= FIELD; column++)
            fields[0].at[row * STRIDE + column] = mode_at(row, column, whole);
    barrier();
}

static void check_field(int whole)
{
    barrier();
    double scale = pow(factor(whole ? FIELD : field_rows), (double)sweeps), wrong = 0;
    const double *at = fields[sweeps % 2].at;
    for (size_t row = 1; row <= field_rows; row++)
        for (size_t column = 1; column <= FIELD; column++)
            wrong += !(fabs(at[row * STRIDE + column] - scale * mode_at(row, column, whole)) < 1e-10);
    if (wrong != 0)
        fail("the field is wrong");
    barrier();
}

static void sweep_alone(void)
{
    sweep_rows(fields[sweeps % 2].at, fields[(sweeps + 1) % 2].at, 1, field_rows);
    sweeps++;
}
static void sweep_exchange(void)
{
    exchange(&fields[sweeps % 2], field_rows, STRIDE);
    sweep_alone();
}
#ifdef OVERLAP
static void sweep_overlap(void)
{
    struct field *from = &fields[sweeps % 2];
    double *to = fields[(sweeps + 1) % 2].at;
    exchange_begin(from, field_rows, STRIDE);
    sweep_rows(from->at, to, 2, field_rows - 1);
    exchange_finish();
    sweep_rows(from->at, to, 1, 1);
    sweep_rows(from->at, to, field_rows, field_rows);
    sweeps++;
}
#endif

static void time_sweeps(const char *name, void (*sweep)(void), int whole)
{
    enum { SWEEPS = 4 };
    double took[64];
    begin_field(whole);
    for (int batch = -1; batch < batches; batch++) {
        barrier();
        double begin = now();
        for (int k = 0; k < SWEEPS; k++)
            sweep();
        barrier();
        if (batch >= 0)
            took[batch] = (now() - begin) / SWEEPS;
    }
    check_field(whole);
    print(name, median(took, batches));
}

static void stencil(void)
{
    field_rows = FIELD / (size_t)ranks;
    for (int k = 0; k < 2; k++)
        fields[k] = make_field(field_rows, STRIDE);
    time_sweeps("stencil_alone", sweep_alone, 0);
    time_sweeps("stencil_exchange", sweep_exchange, 1);
#ifdef OVERLAP
    time_sweeps("stencil_overlap", sweep_overlap, 1);
#endif
}
