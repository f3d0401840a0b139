//! What the Parallel Research Kernels have in common: one iteration that is not timed, the time of
//! the slowest rank, and the lines that they print.

mod outcome;

pub use outcome::{Outcome, refuse};

use pgas::{Op, World};
use std::time::Instant;

/// Of the checks of all kernels.
pub const EPSILON: f64 = 1e-8;

/// Runs `body` once, then `iterations` times; seconds that one of these took on the slowest rank.
pub fn timed(
    world: &World,
    iterations: u32,
    mut body: impl FnMut() -> pgas::Result<()>,
) -> pgas::Result<f64> {
    body()?;
    world.barrier()?;
    let begin = Instant::now();
    for _ in 0..iterations {
        body()?;
    }
    let time = begin.elapsed().as_secs_f64() / f64::from(iterations);
    world.all_reduce(time, Op::Max)
}
