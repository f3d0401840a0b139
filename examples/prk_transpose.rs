//! Parallel Research Kernels, transpose: every rank needs a piece of every other's.
//!
//! ```console
//! $ ucxrun -n 4 target/release/examples/prk_transpose [ITERATIONS] [ORDER] [TILE]
//! ```
//!
//! `b += aᵀ`, then `a += 1`, of square matrices whose rows are divided among the ranks. A rank reads
//! the columns it needs from the other ranks' parts: where they lie, on its own node.

mod arguments;
mod prk;

use clap::Parser;
use ndarray::{ArrayView2, ArrayViewMut2, Axis};
use pgas::{Dist, GlobalArray, Op, World};
use std::process::ExitCode;

/// Adds the transpose of a matrix to another.
#[derive(Parser)]
struct Arguments {
    /// How many times
    #[arg(default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
    /// Rows and columns of the matrices
    #[arg(default_value_t = 1000)]
    order: usize,
    /// Rows and columns of what is transposed at once
    #[arg(default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    tile: u32,
}

fn main() -> pgas::Result<ExitCode> {
    World::run(|world| arguments::with(world, measure))
}

fn measure(world: &World, arguments: &Arguments) -> pgas::Result<ExitCode> {
    let &Arguments {
        iterations, order, ..
    } = arguments;
    let tile = arguments.tile as usize;
    if order == 0 || !order.is_multiple_of(world.size()) {
        let why = format!(
            "matrix order {order} must be a multiple of the number of ranks, {}",
            world.size()
        );
        return prk::refuse(world, &why);
    }
    let matrix =
        || GlobalArray::<f64, 2>::builder(world, [order, order]).dist([Dist::Block, Dist::Whole]);
    let mut a = matrix().from_fn(|[row, col]: [usize; 2]| (order * row + col) as f64)?;
    let mut b = matrix().build()?;
    let rows = order / world.size();
    let mine = rows * world.rank()..rows * (world.rank() + 1);

    let time = prk::timed(world, iterations, || {
        {
            let (from, mut to) = (a.read()?, b.local()?);
            let mut to = to.array_mut();
            // Each begins with itself, so that not all are at the same rank at once.
            for step in 0..world.size() {
                let rank = (world.rank() + step) % world.size();
                let theirs = rows * rank..rows * (rank + 1);
                let block = from.section((theirs.clone(), mine.clone()))?;
                add_transpose(block, to.slice_mut(ndarray::s![.., theirs]), tile);
            }
        }
        let mut view = a.local()?;
        view.iter_mut().for_each(|value| *value += 1.0);
        view.close()
    })?;

    // In iteration k, counted from 0, a[i, j] was order·i + j + k.
    let times = f64::from(iterations + 1);
    let added = times * f64::from(iterations) / 2.0;
    let view = b.read()?;
    let errors = view
        .array()
        .indexed_iter()
        .map(|((row, col), value)| {
            let first = (order * col + row + mine.start) as f64;
            (value - (first * times + added)).abs()
        })
        .sum::<f64>();
    view.close()?;
    let errors = world.all_reduce(errors, Op::Sum)?;
    a.close()?;
    b.close()?;
    Ok(prk::Outcome {
        valid: errors < prk::EPSILON,
        found: format!("sum of all errors {errors}"),
        unit: "MB/s",
        amount: 2.0 * 8.0 * order as f64 * order as f64 / 1e6,
        time,
    }
    .report(world))
}

/// Adds the transpose of `from` to `to`, in tiles that fit into the cache.
fn add_transpose(from: ArrayView2<'_, f64>, mut to: ArrayViewMut2<'_, f64>, tile: usize) {
    for (col, mut columns) in to.axis_chunks_iter_mut(Axis(1), tile).enumerate() {
        let rows = from.slice(ndarray::s![col * tile..col * tile + columns.ncols(), ..]);
        let tiles = columns
            .axis_chunks_iter_mut(Axis(0), tile)
            .zip(rows.axis_chunks_iter(Axis(1), tile));
        for (mut to, from) in tiles {
            for (mut to, from) in to.rows_mut().into_iter().zip(from.columns()) {
                to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
            }
        }
    }
}
