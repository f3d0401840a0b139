//! Parallel Research Kernels, nstream: how fast memory is read and written.
//!
//! ```console
//! $ ucxrun -n 4 target/release/examples/prk_nstream [ITERATIONS] [LENGTH] [OFFSET]
//! ```
//!
//! `a += b + 3·c` for vectors of `LENGTH` elements, with `a` = 0 and `b` = `c` = 2 at first. Each rank has a part of
//! the vectors, with `OFFSET` elements between them, and works on it as on any slice.

mod arguments;
mod prk;

use clap::Parser;
use pgas::{Dist, GlobalArray, Op, World};
use std::process::ExitCode;

/// Adds vectors: a += b + 3 c.
#[derive(Parser)]
struct Arguments {
    /// How many times
    #[arg(default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
    /// Elements of each vector, on all ranks together
    #[arg(default_value_t = 1_000_000)]
    length: usize,
    /// Elements between the vectors
    #[arg(default_value_t = 0)]
    offset: usize,
}

const SCALAR: f64 = 3.0;

fn main() -> pgas::Result<ExitCode> {
    World::run(|world| arguments::with(world, measure))
}

fn measure(world: &World, arguments: &Arguments) -> pgas::Result<ExitCode> {
    let &Arguments {
        iterations,
        length,
        offset,
    } = arguments;
    if length == 0 || !length.is_multiple_of(world.size()) {
        let why = format!(
            "vector length {length} must be a multiple of the number of ranks, {}",
            world.size()
        );
        return prk::refuse(world, &why);
    }
    let part = length / world.size();
    let width = part
        .checked_mul(3)
        .zip(offset.checked_mul(2))
        .and_then(|(vectors, between)| vectors.checked_add(between));
    let Some(width) = width else {
        return prk::refuse(world, "the vectors are too long for any machine");
    };
    let mut vectors = GlobalArray::<f64, 2>::builder(world, [world.size(), width])
        .dist([Dist::Block, Dist::Whole])
        .build()?;
    let mut mine = vectors.local()?;
    let (a, rest) = mine.split_at_mut(part);
    let (b, c) = rest[offset..].split_at_mut(part);
    let c = &mut c[offset..];
    a.fill(0.0);
    b.fill(2.0);
    c.fill(2.0);

    let time = prk::timed(world, iterations, || {
        for ((a, b), c) in a.iter_mut().zip(&*b).zip(&*c) {
            *a += b + SCALAR * c;
        }
        Ok(())
    })?;

    let sum: f64 = a.iter().map(|a| a.abs()).sum();
    let sum = world.all_reduce(sum, Op::Sum)?;
    let expected = f64::from(iterations + 1) * (2.0 + SCALAR * 2.0) * length as f64;
    mine.close()?;
    vectors.close()?;
    Ok(prk::Outcome {
        // Not `>`, which a NaN is not either.
        valid: (sum - expected).abs() / expected <= prk::EPSILON,
        found: format!("sum of a: {sum}, expected {expected}"),
        unit: "MB/s",
        amount: 4.0 * 8.0 * length as f64 / 1e6,
        time,
    }
    .report(world))
}
