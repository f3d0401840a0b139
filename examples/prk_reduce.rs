//! Parallel Research Kernels, reduce: a vector of each rank, summed element by element.
//!
//! ```console
//! $ ucxrun -n 4 target/release/examples/prk_reduce [ITERATIONS] [LENGTH]
//! ```
//!
//! All begin with ones. In each iteration every rank adds 1 to its elements; then rank 0's vector
//! becomes the sum of all. The other ranks keep theirs.

mod arguments;
mod prk;

use clap::Parser;
use pgas::{Op, World};
use std::process::ExitCode;

/// Sums the vectors of all ranks.
#[derive(Parser)]
struct Arguments {
    /// How many times
    #[arg(default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
    /// Elements of each rank's vector
    #[arg(default_value_t = 100_000)]
    length: usize,
}

fn main() -> pgas::Result<ExitCode> {
    World::run(|world| arguments::with(world, measure))
}

fn measure(world: &World, arguments: &Arguments) -> pgas::Result<ExitCode> {
    let &Arguments { iterations, length } = arguments;
    if length == 0 {
        return prk::refuse(world, "a vector needs elements");
    }
    let ones = vec![1.0_f64; length];
    let mut vector = ones.clone();

    let time = prk::timed(world, iterations, || {
        for (value, one) in vector.iter_mut().zip(&ones) {
            *value += one;
        }
        world.reduce_in_place(0, &mut vector, Op::Sum)
    })?;

    let (k, others) = (f64::from(iterations), world.size() as f64 - 1.0);
    let expected = k + 2.0 + (k * k + 5.0 * k + 4.0) * others / 2.0;
    let wrong = match world.rank() {
        0 => {
            let right = |value: &f64| (value - expected).abs() < prk::EPSILON;
            vector.iter().filter(|value| !right(value)).count() as u64
        }
        _ => 0,
    };
    let wrong = world.broadcast(0, wrong)?;
    Ok(prk::Outcome {
        valid: wrong == 0,
        found: format!("{wrong} elements are not {expected}"),
        unit: "MFlops/s",
        // An addition on each rank, and one for each rank but one.
        amount: (2.0 * world.size() as f64 - 1.0) * length as f64 / 1e6,
        time,
    }
    .report(world))
}
