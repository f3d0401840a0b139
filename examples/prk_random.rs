//! Parallel Research Kernels, random: random updates of a table that all ranks share.
//!
//! ```console
//! $ ucxrun -n 4 target/release/examples/prk_random [UPDATE_RATIO] [LOG_TABLE_SIZE]
//! ```
//!
//! As HPC Challenge's RandomAccess, `t[r mod 2^LOG] ^= r` for pseudo-random numbers `r`, but from 1024 streams of
//! them on each rank, and all twice in the time that is measured, after which the table must be as it
//! was.

mod arguments;
#[path = "prk/outcome.rs"]
mod outcome;
#[path = "randomaccess/powers.rs"]
mod powers;

use clap::Parser;
use pgas::{BitOp, GlobalArray, Op, World};
use std::process::ExitCode;
use std::time::Instant;

/// Updates random words of a table.
#[derive(Parser)]
struct Arguments {
    /// Updates for each word of the table, a power of two
    #[arg(default_value_t = 16)]
    update_ratio: u64,
    /// The table has 2^LOG_TABLE_SIZE words
    #[arg(default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..40))]
    log_table_size: u32,
}

/// Streams of random numbers on each rank.
const STREAMS: u64 = 1024;

/// The power at which the first stream begins.
const SEED: u64 = 834_568_137_686_317_453;

fn main() -> pgas::Result<ExitCode> {
    World::run(|world| arguments::with(world, measure))
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a table's length is a usize"
)]
fn measure(world: &World, arguments: &Arguments) -> pgas::Result<ExitCode> {
    let ratio = arguments.update_ratio;
    let (rank, size) = (world.rank() as u64, world.size() as u64);
    let words = 1_u64 << arguments.log_table_size;
    if !ratio.is_power_of_two() || !size.is_power_of_two() {
        let why = format!("update ratio {ratio} and number of ranks {size} must be powers of two");
        return outcome::refuse(world, &why);
    }
    let Some(all_updates) = words.checked_mul(ratio) else {
        return outcome::refuse(world, "more updates than can be counted");
    };
    // In each of two rounds, each stream makes some.
    let in_round = all_updates / size / (2 * STREAMS);
    if words < size || in_round == 0 {
        let why = format!(
            "{all_updates} updates are less than 2 for {STREAMS} streams on each of {size} ranks"
        );
        return outcome::refuse(world, &why);
    }
    let part = words / size;
    let updates = part * ratio;
    let mut table = GlobalArray::from_fn(world, words as usize, |index: usize| index as u64)?;

    world.barrier()?;
    let begin = Instant::now();
    for _ in 0..2 {
        table.update(BitOp::Xor, |table| {
            // Each stream begins so many powers after the one before.
            let mut start = powers::power(SEED + part * rank);
            let step = powers::power(updates / STREAMS);
            let mut streams = Vec::new();
            for _ in 0..STREAMS {
                streams.push(start);
                start = powers::multiply(start, step);
            }
            for _ in 0..in_round {
                for random in &mut streams {
                    *random = powers::next(*random);
                    table.push((*random & (words - 1)) as usize, *random)?;
                }
            }
            Ok(())
        })?;
    }
    let time = world.all_reduce(begin.elapsed().as_secs_f64(), Op::Max)?;

    let mine = table.local_range();
    let view = table.read()?;
    let wrong = view
        .iter()
        .zip(mine)
        .filter(|(word, k)| **word != *k as u64);
    let wrong = world.all_reduce(wrong.count() as u64, Op::Sum)?;
    view.close()?;
    table.close()?;
    Ok(outcome::Outcome {
        valid: wrong == 0,
        found: format!("{wrong} of {words} words are wrong after {all_updates} updates"),
        unit: "GUPS/s",
        amount: all_updates as f64 / 1e9,
        time,
    }
    .report(world))
}
