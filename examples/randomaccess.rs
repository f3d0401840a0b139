//! HPCC RandomAccess: all ranks change random words of one table, as fast as they can.
//!
//! ```console
//! $ ucxrun -n 4 target/release/examples/randomaccess [--bits N]
//! ```
//!
//! A table of 2^bits words begins as `t[i] = i`. For each of `4 * 2^bits` pseudo-random numbers `r`,
//! `t[r mod 2^bits] ^= r`. As xor undoes itself, the same again must give the first table; the
//! rules allow errors in one word of a hundred, this program none. The result is in GUPS, giga
//! updates per second.

mod arguments;
#[path = "randomaccess/powers.rs"]
mod powers;

use clap::Parser;
use pgas::{BitOp, GlobalArray, Op, World};
use std::process::ExitCode;
use std::time::Instant;

/// Measures random updates of a table that all ranks share.
#[derive(Parser)]
struct Arguments {
    /// The table has 2^BITS words
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..40))]
    bits: u32,
}

fn main() -> pgas::Result<ExitCode> {
    World::run(|world| arguments::with(world, measure))
}

fn measure(world: &World, arguments: &Arguments) -> pgas::Result<ExitCode> {
    let words = 1_usize << arguments.bits;
    let mut table = GlobalArray::from_fn(world, words, |index: usize| index as u64)?;

    let begin = Instant::now();
    change(world, &mut table)?;
    let time = begin.elapsed().as_secs_f64();
    let changed = differing(world, &mut table)?;
    change(world, &mut table)?;
    let errors = differing(world, &mut table)?;
    table.close()?;

    // Some words were others in between, or there was no work. In a small table not most: its first
    // numbers have few bits.
    let verified = errors == 0 && changed > 0;
    if world.rank() == 0 {
        let updates = 4.0 * words as f64;
        println!(
            "{updates} updates of {words} words by {} ranks: {time:.3} s, {:.6} GUPS",
            world.size(),
            updates / time / 1e9
        );
        match verified {
            true => println!("verified: 0 errors after the same updates again"),
            false => println!("WRONG: {errors} errors, {changed} words changed before"),
        }
    }
    Ok(match verified {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Each rank makes its part of the updates. When it returns, all are made.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a table's length is a usize"
)]
fn change(world: &World, table: &mut GlobalArray<u64>) -> pgas::Result<()> {
    let words = table.len() as u64;
    let (rank, size) = (world.rank() as u64, world.size() as u64);
    let updates = 4 * words;
    let (first, last) = (updates * rank / size, updates * (rank + 1) / size);
    table.update(BitOp::Xor, |changes| {
        let mut random = powers::power(first);
        for _ in first..last {
            random = powers::next(random);
            changes.push((random & (words - 1)) as usize, random)?;
        }
        Ok(())
    })
}

/// Words that are not as they were in the beginning.
fn differing(world: &World, table: &mut GlobalArray<u64>) -> pgas::Result<u64> {
    let mine = table.local_range();
    let view = table.read()?;
    let differing = view
        .iter()
        .zip(mine)
        .filter(|(word, index)| **word != *index as u64);
    let sum = world.all_reduce(differing.count() as u64, Op::Sum)?;
    view.close()?;
    Ok(sum)
}
