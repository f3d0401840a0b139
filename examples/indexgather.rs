//! Index-gather of the bale suite: each rank reads random elements of an array that all ranks hold.
//!
//! ```console
//! $ ucxrun -n 4 target/release/examples/indexgather [--reads N] [--table N]
//! ```
//!
//! One `gather` for all of a rank's indices, instead of as many gets: from another node, some
//! thousands of elements come in one message.

mod arguments;
mod random;

use clap::Parser;
use pgas::{GlobalArray, Op, World};
use random::{below, mix};
use std::process::ExitCode;
use std::time::Instant;

/// Reads random elements of a table that all ranks share.
#[derive(Parser)]
struct Arguments {
    /// Elements that each rank reads
    #[arg(long, default_value_t = 1_000_000)]
    reads: u64,
    /// Elements of the table on each rank
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    table: u32,
}

fn main() -> pgas::Result<ExitCode> {
    World::run(|world| arguments::with(world, measure))
}

fn measure(world: &World, arguments: &Arguments) -> pgas::Result<ExitCode> {
    let len = arguments.table as usize * world.size();
    let table = GlobalArray::from_fn(world, len, content)?;
    let indices: Vec<usize> = indices(world.rank(), len, arguments.reads).collect();

    world.barrier()?;
    let begin = Instant::now();
    let values = table.gather(&indices)?;
    world.barrier()?;
    let time = begin.elapsed().as_secs_f64();

    let pairs = values.iter().zip(&indices);
    let wrong = pairs.filter(|(value, index)| **value != content(**index));
    let missing = indices.len() - values.len();
    let wrong = world.all_reduce((wrong.count() + missing) as u64, Op::Sum)?;
    table.close()?;

    if world.rank() == 0 {
        let reads = arguments.reads as f64 * world.size() as f64;
        println!(
            "{reads} elements of {len} by {} ranks: {time:.3} s, {:.1} Mop/s",
            world.size(),
            reads / time / 1e6
        );
        println!(
            "{}",
            match wrong {
                0 => "verified: every element is the one asked for".to_owned(),
                _ => format!("WRONG: {wrong} elements"),
            }
        );
    }
    Ok(match wrong {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// What the table holds at `index`.
fn content(index: usize) -> u64 {
    mix(index as u64)
}

/// The indices that a rank reads: uniform, and the same at each call.
fn indices(rank: usize, len: usize, reads: u64) -> impl Iterator<Item = usize> {
    // Each rank its own part of one long sequence.
    let first = rank as u64 * reads;
    (first..first + reads).map(move |k| below(!k, len))
}
