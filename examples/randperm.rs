//! Random permutation of the bale suite: all ranks throw darts at one table.
//!
//! ```console
//! $ ucxrun -n 4 target/release/examples/randperm [-n ENTRIES] [--seed SEED]
//! ```
//!
//! In rounds: each rank throws all darts that have no slot yet, then looks which were kept. So
//! thousands of darts go to another node in one message. The original throws one dart at a time, by
//! compare-and-swap.

mod arguments;
#[path = "bale/check.rs"]
mod check;
#[path = "bale/permutation.rs"]
mod permutation;
mod random;

use clap::Parser;
use pgas::World;
use std::process::ExitCode;
use std::time::Instant;

/// Makes a random permutation.
#[derive(Parser)]
struct Arguments {
    /// Entries of the permutation for each rank
    #[arg(short = 'n', long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..1 << 24))]
    entries: u32,
    /// Another permutation for each
    #[arg(short, long, default_value_t = 1)]
    seed: u64,
}

fn main() -> pgas::Result<ExitCode> {
    World::run(|world| arguments::with(world, measure))
}

fn measure(world: &World, arguments: &Arguments) -> pgas::Result<ExitCode> {
    let len = arguments.entries as usize * world.size();
    let begin = Instant::now();
    let (mut permutation, rounds) = permutation::random(world, len, random::mix(arguments.seed))?;
    let time = begin.elapsed().as_secs_f64();

    let missing = check::missing(world, &mut permutation)?;
    // Of a random permutation, 1 is expected, with the same variance.
    let mine = permutation.local_range();
    let view = permutation.read()?;
    let fixed = view.iter().zip(mine).filter(|(a, b)| **a == *b as u64);
    let fixed = world.all_reduce(fixed.count() as u64, pgas::Op::Sum)?;
    view.close()?;
    permutation.close()?;

    let verified = missing == 0 && (fixed < 20 || len < 100);
    if world.rank() == 0 {
        println!(
            "permutation of {len} by {} ranks in {rounds} rounds: {time:.3} s, {:.1} Mop/s",
            world.size(),
            len as f64 / time / 1e6
        );
        match verified {
            true => println!("verified: every number is there once, {fixed} in their own places"),
            false => println!("WRONG: {missing} are missing, {fixed} in their own places"),
        }
    }
    Ok(match verified {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
