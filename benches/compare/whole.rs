//! Whole arrays: a sort beside rayon's on as many threads as there are ranks, and the load of a
//! `.npy` file beside reading the file's bytes by all ranks at once.

use crate::batches::{Batches, SEED, median, nanoseconds};
use crate::loops::xorshift;
use pgas::{GlobalArray, Result, World};
use rayon::prelude::*;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

/// Elements that are sorted, and words of the file.
const COUNT: usize = 1 << 24;
/// Bytes before the elements of a `.npy` file.
const HEAD: u64 = 128;

pub(crate) fn run(world: &World, batches: Batches) -> Result<()> {
    // Quick ones are for seeing that it works.
    let (count, rounds) = match batches.count {
        0..10 => (COUNT / 16, 3),
        _ => (COUNT, 5),
    };
    sort(world, count, rounds)?;
    load(world, count, rounds)
}

/// The same numbers, in the same order, for both.
fn numbers(count: usize) -> Vec<u64> {
    let mut x = SEED;
    let next = |_| {
        x = xorshift(x);
        x
    };
    (0..count).map(next).collect()
}

fn sort(world: &World, count: usize, rounds: usize) -> Result<()> {
    let values = numbers(count);
    let mut array = GlobalArray::<u64>::new(world, count)?;
    let mine = array.local_range();
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(world.size())
        .build()
        .expect("threads");
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        array.local()?.copy_from_slice(&values[mine.clone()]);
        let begin = Instant::now();
        array.sort_unstable()?;
        ours.push(nanoseconds(begin.elapsed()));
        if world.rank() == 0 {
            // The others sleep in the barrier.
            let mut copy = values.clone();
            let begin = Instant::now();
            pool.install(|| copy.par_sort_unstable());
            theirs.push(nanoseconds(begin.elapsed()));
            let all = array.get_range(0..count)?;
            assert!(all == copy, "not sorted");
        }
        world.barrier()?;
    }
    if world.rank() == 0 {
        println!("figure sort {} {}", median(&mut ours), median(&mut theirs));
    }
    Ok(())
}

fn load(world: &World, count: usize, rounds: usize) -> Result<()> {
    let path = std::env::temp_dir().join(format!(
        "pgas-compare-{}.npy",
        world.broadcast(0, std::process::id())?
    ));
    let mut array = GlobalArray::<u64>::from_fn(world, count, |index| index as u64)?;
    array.save_npy(&path)?;
    let mine = array.local_range();
    let mut bytes = vec![1_u8; mine.len() * 8];
    let at = HEAD + mine.start as u64 * 8;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        world.barrier()?;
        let begin = Instant::now();
        array.read_npy(&path)?;
        ours.push(nanoseconds(begin.elapsed()));
        world.barrier()?;
        let begin = Instant::now();
        File::open(&path)
            .and_then(|file| file.read_exact_at(&mut bytes, at))
            .expect("the file that was just written");
        world.barrier()?;
        theirs.push(nanoseconds(begin.elapsed()));
    }
    assert_eq!(bytes[..8], (mine.start as u64).to_ne_bytes());
    assert_eq!(array.get(count - 1)?, count as u64 - 1);
    world.barrier()?;
    if world.rank() == 0 {
        std::fs::remove_file(&path).expect("the file that was just written");
        println!(
            "figure load_npy {} {}",
            median(&mut ours),
            median(&mut theirs)
        );
    }
    Ok(())
}
