//! Parallel Research Kernels, sparse: a sparse matrix times a vector.
//!
//! ```console
//! $ ucxrun -n 4 target/release/examples/prk_sparse [ITERATIONS] [LOG_SIZE] [RADIUS]
//! ```
//!
//! The matrix is that of a star-shaped stencil on a periodic square grid of 2^LOG_SIZE × 2^LOG_SIZE points,
//! its columns in an order that reverses the bits of the points' numbers, so that each row needs
//! elements of all ranks. An element in column `c` (from 0) is `1 / (c + 1)`. In each iteration
//! element `c` of the vector grows by `c + 1`, and `result += matrix · vector`.
//!
//! The other ranks' elements are read where they lie, on the same node; from another node they come
//! in one piece.

mod arguments;
mod prk;

use clap::Parser;
use pgas::{GlobalArray, Op, World};
use std::process::ExitCode;

/// Multiplies a sparse matrix with a vector.
#[derive(Parser)]
struct Arguments {
    /// How many times
    #[arg(default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
    /// The grid has 2^LOG_SIZE points in each direction
    #[arg(default_value_t = 7, value_parser = clap::value_parser!(u32).range(0..16))]
    log_size: u32,
    /// Of the stencil
    #[arg(default_value_t = 4)]
    radius: usize,
}

fn main() -> pgas::Result<ExitCode> {
    World::run(|world| arguments::with(world, measure))
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "columns are indices of an array"
)]
fn measure(world: &World, arguments: &Arguments) -> pgas::Result<ExitCode> {
    let &Arguments {
        iterations,
        log_size,
        radius,
    } = arguments;
    let size = 1_usize << log_size;
    if !size.is_multiple_of(world.size()) {
        let why = format!(
            "grid size {size} must be a multiple of {} ranks",
            world.size()
        );
        return prk::refuse(world, &why);
    }
    if radius > (size - 1) / 2 {
        let why = format!("a stencil of radius {radius} overlaps itself on a grid of {size}");
        return prk::refuse(world, &why);
    }
    let order = size * size;
    let rows = order / world.size();
    let first = rows * world.rank();
    let diameter = 4 * radius + 1;

    // Rows of rank 0, of rank 1, …: so many nonzeros each.
    let mut columns = GlobalArray::<u64>::new(world, order * diameter)?;
    let mut matrix = GlobalArray::<f64>::new(world, order * diameter)?;
    let mut columns = columns.local()?;
    let mut matrix = matrix.local()?;
    for (row, columns) in columns.chunks_exact_mut(diameter).enumerate() {
        find_columns(first + row, log_size, columns);
    }
    for (value, &column) in matrix.iter_mut().zip(columns.iter()) {
        *value = 1.0 / (column + 1) as f64;
    }
    let mut vector = GlobalArray::<f64>::new(world, order)?;
    let mut result = vec![0.0; rows];

    // The number of ranks divides a power of two, so it is one.
    let shift = rows.trailing_zeros();
    let mask = rows - 1;
    let time = prk::timed(world, iterations, || {
        let mut mine = vector.local()?;
        for (k, value) in mine.iter_mut().enumerate() {
            *value += (first + k + 1) as f64;
        }
        mine.close()?;
        let view = vector.read()?;
        let shards = (0..world.size()).map(|rank| view.shard_of(rank));
        let shards: Vec<&[f64]> = shards.collect::<pgas::Result<_>>()?;
        let entries = matrix
            .chunks_exact(diameter)
            .zip(columns.chunks_exact(diameter));
        for (result, (values, columns)) in result.iter_mut().zip(entries) {
            let products = values.iter().zip(columns).map(|(value, &column)| {
                let column = column as usize;
                value * shards[column >> shift][column & mask]
            });
            *result += products.sum::<f64>();
        }
        view.close()
    })?;

    // Every product of iteration k, counted from 0, is k + 1. Summing what is too much gives the
    // same as summing all and taking away, with less rounding.
    let k = f64::from(iterations);
    let row = 0.5 * diameter as f64 * (k + 1.0) * (k + 2.0);
    let error: f64 = result.iter().map(|value| value - row).sum();
    let error = world.all_reduce(error, Op::Sum)?;
    matrix.close()?;
    columns.close()?;
    vector.close()?;
    Ok(prk::Outcome {
        valid: error.abs() <= prk::EPSILON,
        found: format!("sum of the result is {} and {error:e}", row * order as f64),
        unit: "MFlops/s",
        amount: 2.0 * (order * diameter) as f64 / 1e6,
        time,
    }
    .report(world))
}

/// The columns of the elements of a row, ascending.
fn find_columns(row: usize, log_size: u32, columns: &mut [u64]) {
    let size = 1_usize << log_size;
    let scrambled = |i: usize, j: usize| {
        let number = (i % size + ((j % size) << log_size)) as u64;
        match log_size {
            0 => 0,
            _ => number.reverse_bits() >> (u64::BITS - 2 * log_size),
        }
    };
    let (i, j) = (row % size, row / size);
    let (centre, arms) = columns.split_at_mut(1);
    centre[0] = scrambled(i, j);
    for (r, arms) in (1..).zip(arms.as_chunks_mut::<4>().0) {
        *arms = [
            scrambled(i + r, j),
            scrambled(i + size - r, j),
            scrambled(i, j + r),
            scrambled(i, j + size - r),
        ];
    }
    columns.sort_unstable();
}
