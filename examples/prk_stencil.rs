//! Parallel Research Kernels, stencil: a star of radius 2 on a square grid.
//!
//! ```console
//! $ ucxrun -n 4 target/release/examples/prk_stencil [ITERATIONS] [N]
//! ```
//!
//! `out += S(in)`, then `in += 1`, where `S` is the sum of the derivatives in both directions by
//! central differences. With `in[i, j] = i + j` each derivative is 1, so every inner point of `out`
//! must be 2 times the number of iterations. `in` has two ghost cells on each side, which the ranks
//! exchange in each iteration.

mod arguments;
mod prk;

use clap::Parser;
use pgas::{GlobalArray, LocalView, Op, World};
use std::ops::Range;
use std::process::ExitCode;

/// Applies a star-shaped stencil of radius 2 to a square grid.
#[derive(Parser)]
struct Arguments {
    /// How many times
    #[arg(default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
    /// Rows and columns of the grid
    #[arg(default_value_t = 1000)]
    n: usize,
}

const RADIUS: usize = 2;

/// Of the points at distance -2 to 2 along each axis: `1 / (2 d RADIUS)`.
const WEIGHTS: [f64; 2 * RADIUS + 1] = [-0.125, -0.25, 0.0, 0.25, 0.125];

fn main() -> pgas::Result<ExitCode> {
    World::run(|world| arguments::with(world, measure))
}

fn measure(world: &World, arguments: &Arguments) -> pgas::Result<ExitCode> {
    let &Arguments { iterations, n } = arguments;
    if n < 2 * RADIUS + 1 {
        return prk::refuse(world, &format!("a grid of {n} × {n} has no inner points"));
    }
    let mut from = GlobalArray::<f64, 2>::builder(world, [n, n])
        .halo([RADIUS; 2])
        .faces_only()
        .from_fn(|[row, col]: [usize; 2]| (row + col) as f64)?;
    let mut to = GlobalArray::<f64, 2>::new(world, [n, n])?;
    let [rows, cols] = to.owned(world.rank()).ranges().unwrap_or([0..0, 0..0]);
    // Those with two points on each side, in this rank's part.
    let inner = |mine: &Range<usize>| {
        let start = mine.start.max(RADIUS).min(mine.end);
        let end = mine.end.min(n - RADIUS).max(start);
        start - mine.start..end - mine.start
    };
    let (rows, cols) = (inner(&rows), inner(&cols));

    let (mut input, mut output) = (from.local()?, to.local()?);
    let time = prk::timed(world, iterations, || {
        input.exchange()?;
        add_stencil(&input, &mut output, &rows, &cols);
        for mut row in input.array_mut().rows_mut() {
            row.iter_mut().for_each(|value| *value += 1.0);
        }
        Ok(())
    })?;

    let section = ndarray::s![rows.clone(), cols.clone()];
    let sum: f64 = output.array().slice(section).iter().map(|v| v.abs()).sum();
    output.close()?;
    input.close()?;
    let points = (n - 2 * RADIUS) as f64 * (n - 2 * RADIUS) as f64;
    let norm = world.all_reduce(sum, Op::Sum)? / points;
    let expected = f64::from(iterations + 1) * 2.0;
    from.close()?;
    to.close()?;
    Ok(prk::Outcome {
        valid: (norm - expected).abs() <= prk::EPSILON,
        found: format!("norm {norm}, expected {expected}"),
        unit: "MFlops/s",
        // A product and a sum for each of the star's 9 points, and the sum into the output.
        amount: (2 * (4 * RADIUS + 1) + 1) as f64 * points / 1e6,
        time,
    }
    .report(world))
}

/// Adds to these points of the output what the stencil makes of the input around them.
fn add_stencil(
    input: &LocalView<'_, f64, 2>,
    output: &mut LocalView<'_, f64, 2>,
    rows: &Range<usize>,
    cols: &Range<usize>,
) {
    let width = output.array().ncols();
    let padded = width + 2 * RADIUS;
    for row in rows.clone() {
        let line = |d: usize| &input[(row + d) * padded..][cols.start..cols.end + 2 * RADIUS];
        let lines: [&[f64]; 5] = std::array::from_fn(line);
        let len = cols.len();
        let at = |line: usize, shift: usize| &lines[line][shift..];
        let [up_2, up_1, down_1, down_2] = [0, 1, 3, 4].map(|line| at(line, RADIUS));
        let [left_2, left_1, right_1, right_2] = [0, 1, 3, 4].map(|shift| at(RADIUS, shift));
        let output = &mut output[row * width + cols.start..][..len];
        add_row(
            output,
            [left_2, left_1, right_1, right_2],
            [up_2, up_1, down_1, down_2],
        );
    }
}

/// One row: points beside it and above and below, at distance 2, 1, 1, 2.
fn add_row(output: &mut [f64], beside: [&[f64]; 4], across: [&[f64]; 4]) {
    // All of one length, so that the loop is made of vectors.
    let len = output.len();
    let [left_2, left_1, right_1, right_2] = beside.map(|line| &line[..len]);
    let [up_2, up_1, down_1, down_2] = across.map(|line| &line[..len]);
    for k in 0..len {
        output[k] += WEIGHTS[0] * (left_2[k] + up_2[k])
            + WEIGHTS[1] * (left_1[k] + up_1[k])
            + WEIGHTS[3] * (right_1[k] + down_1[k])
            + WEIGHTS[4] * (right_2[k] + down_2[k]);
    }
}
