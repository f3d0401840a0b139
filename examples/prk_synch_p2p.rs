//! Parallel Research Kernels, synch_p2p: a pipeline, in which each rank waits for the one before it.
//!
//! ```console
//! $ ucxrun -n 4 target/release/examples/prk_synch_p2p [ITERATIONS] [M] [N] [GROUP]
//! ```
//!
//! `a[i, j] = a[i-1, j] + a[i, j-1] - a[i-1, j-1]` on a grid of `M` × `N`, whose first dimension is
//! divided among the ranks. A rank that has done its part of line `j` puts the last value of it beside the
//! next rank's part and raises a signal there. The corner's negative value goes back to the first
//! rank, which makes each iteration wait for the one before.

mod arguments;
mod prk;

use clap::Parser;
use pgas::{Dist, GlobalArray, Op, Signals, World};
use std::process::ExitCode;

/// Runs a pipeline over a grid.
#[derive(Parser)]
struct Arguments {
    /// How many times
    #[arg(default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
    /// First dimension of the grid, which is divided
    #[arg(default_value_t = 1000)]
    m: usize,
    /// Second dimension of the grid
    #[arg(default_value_t = 200)]
    n: usize,
    /// Lines that are done between two signals; more than 1 is cheating, and the time is then negative
    #[arg(default_value_t = 1)]
    group: usize,
}

/// A line's end has come from the rank before; the corner has come from the last rank.
const LINE: usize = 0;
const CORNER: usize = 1;

fn main() -> pgas::Result<ExitCode> {
    World::run(|world| arguments::with(world, measure))
}

fn measure(world: &World, arguments: &Arguments) -> pgas::Result<ExitCode> {
    let &Arguments {
        iterations, m, n, ..
    } = arguments;
    let (rank, size) = (world.rank(), world.size());
    let last = size - 1;
    if m <= size || n < 2 {
        let why = format!("a grid of {m} × {n}: the first must be more than {size}, the second 2");
        return prk::refuse(world, &why);
    }
    let group = arguments.group.clamp(1, n - 1);
    // Lines in memory: [j, i].
    let mut grid = GlobalArray::<f64, 2>::builder(world, [n, m])
        .dist([Dist::Whole, Dist::Block])
        .from_fn(|[j, i]: [usize; 2]| match (i, j) {
            (i, 0) => i as f64,
            (0, j) => j as f64,
            _ => 0.0,
        })?;
    // For each rank a column: what is left of its part. That of rank 0 takes the corner.
    let edges = GlobalArray::<f64>::new(world, size * n)?;
    let signals = Signals::new(world, 2)?;
    let mut view = grid.local()?;
    let mine = view.owned().ranges().map_or(0..0, |[_, mine]| mine);
    let width = mine.len();
    if rank > 0 {
        edges.put(rank * n, mine.start as f64 - 1.0)?;
    }

    let mut rounds = 0;
    let mut signalled = 0;
    let time = prk::timed(world, iterations, || {
        if rank == 0 && rounds > 0 {
            signals.wait(CORNER, |count| count >= rounds)?;
            view[0] = edges.get(0)?;
        }
        rounds += 1;
        for start in (1..n).step_by(group) {
            let lines = start..n.min(start + group);
            if rank > 0 {
                signalled += 1;
                signals.wait(LINE, |count| count >= signalled)?;
            }
            for j in lines.clone() {
                // The values left of this line's part, and left of the line before.
                let first = match rank {
                    0 => 1,
                    _ => 0,
                };
                let (mut left, mut before_left) = match rank {
                    0 => (view[j * width], view[(j - 1) * width]),
                    _ => (edges.get(rank * n + j)?, edges.get(rank * n + j - 1)?),
                };
                let (before, line) = view[(j - 1) * width..(j + 1) * width].split_at_mut(width);
                for (value, before) in line[first..].iter_mut().zip(&before[first..]) {
                    *value = left + before - before_left;
                    (left, before_left) = (*value, *before);
                }
            }
            if rank < last {
                let ends: Vec<f64> = lines.map(|j| view[(j + 1) * width - 1]).collect();
                signals.put_signal(&edges, (rank + 1) * n + start, &ends, rank + 1, LINE)?;
            }
        }
        if rank == last {
            signals.put_signal(&edges, 0, &[-view[n * width - 1]], 0, CORNER)?;
        }
        Ok(())
    })?;

    let corner = match rank == last {
        true => view[n * width - 1],
        false => 0.0,
    };
    let corner = world.all_reduce(corner, Op::Sum)?;
    view.close()?;
    grid.close()?;
    let expected = f64::from(iterations + 1) * (m + n - 2) as f64;
    Ok(prk::Outcome {
        valid: (corner - expected).abs() / expected < prk::EPSILON,
        found: format!("corner {corner}, expected {expected}"),
        unit: "MFlops/s",
        amount: 2.0 * (m - 1) as f64 * (n - 1) as f64 / 1e6,
        time: if group > 1 { -time } else { time },
    }
    .report(world))
}
