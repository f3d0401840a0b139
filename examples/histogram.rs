//! All ranks count random samples in one shared histogram, by atomic additions.
//!
//! ```console
//! $ ucxrun -n 4 target/release/examples/histogram [--samples N] [--bins N]
//! ```
//!
//! Any rank adds to any bin, whoever holds it, and no addition is lost. With `get` and `put` two
//! ranks could both read 7 and both write 8.

mod arguments;
mod random;

use clap::Parser;
use pgas::{GlobalArray, Op, World};
use std::process::ExitCode;
use std::time::Instant;

/// Counts random samples in a histogram that all ranks share.
#[derive(Parser)]
struct Arguments {
    /// Samples of each rank
    #[arg(long, default_value_t = 2_000_000)]
    samples: u64,
    /// Bins of the histogram
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    bins: u32,
}

fn main() -> pgas::Result<ExitCode> {
    World::run(|world| arguments::with(world, count))
}

fn count(world: &World, arguments: &Arguments) -> pgas::Result<ExitCode> {
    let bins = arguments.bins as usize;
    let mut histogram = GlobalArray::<u64>::new(world, bins)?;

    world.barrier()?;
    let begin = Instant::now();
    for bin in samples(world.rank(), arguments) {
        histogram.fetch_add(bin, 1)?;
    }
    // Until all ranks have counted all their samples.
    world.barrier()?;
    let time = begin.elapsed().as_secs_f64();

    // Every rank checks its own bins against a count of everyone's samples, which it can make
    // itself, as random numbers are the same each time.
    let mut expected = vec![0_u64; bins];
    for rank in 0..world.size() {
        for bin in samples(rank, arguments) {
            expected[bin] += 1;
        }
    }
    let mine = histogram.local_range();
    let view = histogram.read()?;
    let wrong = view
        .iter()
        .zip(&expected[mine])
        .filter(|(found, expected)| found != expected);
    let wrong = world.all_reduce(wrong.count() as u64, Op::Sum)?;
    let sum = world.all_reduce(view.iter().sum::<u64>(), Op::Sum)?;
    view.close()?;
    histogram.close()?;

    if world.rank() == 0 {
        println!(
            "{sum} samples in {bins} bins by {} ranks: {time:.3} s, {:.1} Mop/s",
            world.size(),
            sum as f64 / time / 1e6
        );
        println!(
            "{}",
            match wrong {
                0 => "verified: every bin is as counted by one rank alone".to_owned(),
                _ => format!("WRONG: {wrong} bins"),
            }
        );
    }
    Ok(match wrong {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// The bins of a rank's samples: uniform, and the same at each call.
fn samples(rank: usize, arguments: &Arguments) -> impl Iterator<Item = usize> {
    let bins = arguments.bins as usize;
    // Each rank its own part of one long sequence, as long as it takes.
    let first = rank as u64 * arguments.samples;
    (first..first + arguments.samples).map(move |k| random::below(k, bins))
}
