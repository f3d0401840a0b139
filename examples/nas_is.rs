//! NAS Parallel Benchmarks, IS: ranks integer keys, as a sort of them needs.
//!
//! ```console
//! $ ucxrun -n 4 target/release/examples/nas_is [CLASS]
//! ```
//!
//! A key's rank is its place among the sorted keys. Ten times two of the keys are changed and all
//! keys are ranked. Each time, five ranks are compared with those that the benchmark's specification
//! gives (partial verification); at last the keys are sorted by their ranks (full verification).

mod arguments;
#[path = "nas_is/class.rs"]
mod class;

use clap::Parser;
use class::{Class, ITERATIONS, Random};
use pgas::{GlobalArray, Op, World};
use std::process::ExitCode;
use std::time::Instant;

/// Ranks integer keys.
#[derive(Parser)]
struct Arguments {
    /// How large the problem is: 2^16, 2^20 or 2^23 keys
    #[arg(default_value = "S", ignore_case = true)]
    class: Class,
}

fn main() -> pgas::Result<ExitCode> {
    World::run(|world| arguments::with(world, measure))
}

fn measure(world: &World, arguments: &Arguments) -> pgas::Result<ExitCode> {
    let class = arguments.class;
    let mut sort = Sort::new(world, class)?;
    // Once without the clock.
    sort.iterate(world, 1)?;
    let mut passed = 0;
    world.barrier()?;
    let begin = Instant::now();
    for iteration in 1..=ITERATIONS {
        passed += sort.iterate(world, iteration)?;
    }
    let time = world.all_reduce(begin.elapsed().as_secs_f64(), Op::Max)?;
    let wrong = sort.verify(world)?;
    sort.close()?;

    // What rank 0 has counted.
    let passed = world.broadcast(0, passed)?;
    let tests = 5 * u64::from(ITERATIONS);
    let verified = passed == tests && wrong == 0;
    if world.rank() == 0 {
        let mops = f64::from(ITERATIONS) * class.keys() as f64 / time / 1e6;
        println!(
            "class {class:?}: {} keys by {} ranks",
            class.keys(),
            world.size()
        );
        println!("partial verification: {passed} of {tests} ranks as published");
        println!("full verification: {wrong} keys out of order");
        println!(
            "time: {time:.3} s, {mops:.2} Mop/s (keys ranked), {:.2} of each rank",
            mops / world.size() as f64
        );
        println!(
            "{}",
            match verified {
                true => "VERIFICATION SUCCESSFUL",
                false => "VERIFICATION FAILED",
            }
        );
    }
    Ok(match verified {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

struct Sort {
    class: Class,
    keys: GlobalArray<u32>,
    /// For each possible key, how many keys are less.
    less: GlobalArray<u32>,
    /// For each possible key, how many of this rank's keys have that value.
    mine: Vec<u32>,
}

impl Sort {
    fn new(world: &World, class: Class) -> pgas::Result<Self> {
        let mut keys = GlobalArray::<u32>::new(world, class.keys())?;
        let mut view = keys.local()?;
        let mut random = Random::after(4 * view.local_range().start as u64);
        view.fill_with(|| random.key(class.max_key()));
        view.close()?;
        Ok(Self {
            class,
            keys,
            less: GlobalArray::new(world, class.max_key() as usize)?,
            mine: Vec::new(),
        })
    }

    /// Changes two keys and ranks all. How many of the known ranks were found, on rank 0.
    fn iterate(&mut self, world: &World, iteration: u32) -> pgas::Result<u64> {
        let class = self.class;
        let mut tested = Vec::new();
        if world.rank() == 0 {
            let k = iteration as usize;
            self.keys.put(k, iteration)?;
            self.keys
                .put(k + ITERATIONS as usize, class.max_key() - iteration)?;
            tested = self.keys.gather(&class.tested())?;
        }

        let mut counts = vec![0_u32; class.max_key() as usize];
        let view = self.keys.read()?;
        for &key in view.iter() {
            counts[key as usize] += 1;
        }
        view.close()?;
        // Each rank gets the sums for its part of the possible keys.
        let sums = world.reduce_scatter(&counts, Op::Sum)?;
        let mut less = self.less.local()?;
        less.copy_from_slice(&sums);
        less.close()?;
        self.less.exscan(0, Op::Sum)?;
        self.mine = counts;

        let tested: Vec<usize> = tested.into_iter().map(|key| key as usize).collect();
        let found = self.less.gather(&tested)?;
        let known = class.ranks(iteration);
        let right = found
            .iter()
            .zip(known)
            .filter(|(a, b)| i64::from(**a) == *b);
        Ok(right.count() as u64)
    }

    /// Sorts the keys by their ranks: how many are then not in order, or missing.
    fn verify(&mut self, world: &World) -> pgas::Result<u64> {
        // A key's place: after all that are less, and after the same keys of the ranks before.
        let mut places = std::mem::take(&mut self.mine);
        world.exscan_slice(&mut places, Op::Sum)?;
        if world.rank() == 0 {
            places.fill(0);
        }
        let less = self.less.get_range(0..self.less.len())?;
        for (place, less) in places.iter_mut().zip(less) {
            *place += less;
        }

        let mut sorted = GlobalArray::<u32>::new(world, self.class.keys())?;
        // No key is as large, so it stays where no key is put.
        sorted.fill(u32::MAX)?;
        let keys = self.keys.read()?;
        let mut indices = Vec::with_capacity(keys.len());
        for &key in keys.iter() {
            let place = &mut places[key as usize];
            indices.push(*place as usize);
            *place += 1;
        }
        sorted.scatter(&indices, &keys)?;
        keys.close()?;

        let view = sorted.read()?;
        let range = view.local_range();
        // The last key of the rank before is the first to compare with.
        let mut before = match range.start {
            0 => 0,
            start => view.get(start.min(view.global_len()) - 1)?,
        };
        let mut wrong = 0_u64;
        for &key in view.iter() {
            wrong += u64::from(key < before || key >= self.class.max_key());
            before = key;
        }
        view.close()?;
        sorted.close()?;
        world.all_reduce(wrong, Op::Sum)
    }

    fn close(self) -> pgas::Result<()> {
        self.keys.close()?;
        self.less.close()
    }
}
