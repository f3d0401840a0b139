//! How loops are timed: in batches, and in turns with what they are compared with.

use pgas::{Op, Result, World};
use std::hint::black_box;
use std::ops::Range;
use std::time::{Duration, Instant};

pub(crate) const SEED: u64 = 88_172_645_463_325_252;

/// How often ours and the limit take turns.
pub(crate) const TURNS: usize = 3;
/// Untimed batches at the beginning of a turn: the shared cache takes a while to give up what was
/// read before.
const WARM_UP: u64 = 3;

/// How long, and how often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batches {
    pub(crate) ns: f64,
    pub(crate) count: usize,
}

impl Batches {
    /// Rounds of `work` that take about a batch.
    fn rounds(self, work: &mut dyn FnMut(usize, u64) -> Result<u64>) -> Result<usize> {
        let mut n = 1;
        loop {
            let ns = time(work, n, SEED)? * n as f64;
            if ns >= self.ns / 2.0 {
                return Ok((n as f64 * self.ns / ns) as usize + 1);
            }
            n *= 2;
        }
    }

    /// The median time of a round of `work`.
    pub(crate) fn one(self, mut work: impl FnMut(usize, u64) -> Result<u64>) -> Result<f64> {
        let n = self.rounds(&mut work)?;
        let mut times = (0..self.count as u64)
            .map(|batch| time(&mut work, n, SEED + batch))
            .collect::<Result<Vec<_>>>()?;
        Ok(median(&mut times))
    }

    /// Some batches in a row, the first ones untimed; `check` looks at each batch's result.
    fn turn(
        self,
        work: Work<'_>,
        n: usize,
        seeds: Range<u64>,
        check: &mut dyn FnMut(),
    ) -> Result<Vec<f64>> {
        for warm_up in 0..WARM_UP {
            time(work, n, !(SEED + warm_up))?;
        }
        let timed = seeds.map(|batch| {
            let ns = time(work, n, SEED + batch);
            check();
            ns
        });
        timed.collect()
    }

    /// The median times of a round of `ours` and of `plain`, in turns, both of as many rounds on
    /// the same indices.
    pub(crate) fn pair(
        self,
        mut ours: impl FnMut(usize, u64) -> Result<u64>,
        mut plain: impl FnMut(usize, u64) -> Result<u64>,
    ) -> Result<(f64, f64)> {
        let [a, b] = self.turns([&mut ours, &mut plain], &mut || ())?;
        Ok((a, b))
    }

    /// The median times of a round of each of `works`, in turns, all of as many rounds on the same
    /// indices: as many as the last needs for a batch. `check` is called after each batch, untimed.
    pub(crate) fn turns<const N: usize>(
        self,
        mut works: [Work<'_>; N],
        check: &mut dyn FnMut(),
    ) -> Result<[f64; N]> {
        let mut n = 1;
        for work in &mut works {
            n = self.rounds(*work)?;
        }
        let mut times = [const { Vec::new() }; N];
        for turn in 0..TURNS {
            // Each is timed with the caches full of its own memory, as the rivals are.
            let first = (turn * self.count / TURNS) as u64;
            let seeds = first..first + (self.count / TURNS) as u64;
            for place in 0..N {
                // Who goes first changes: A B B A A B.
                let which = if turn % 2 == 0 { place } else { N - 1 - place };
                let timed = self.turn(works[which], n, seeds.clone(), check)?;
                times[which].extend(timed);
            }
        }
        Ok(times.map(|mut times| median(&mut times)))
    }

    /// The median times of what all ranks do together, in turns batch by batch, `n` rounds a batch.
    /// A batch ends when the last rank has done its part; an untimed round before it fills the
    /// caches with its memory, as the rivals' are.
    pub(crate) fn turns_together<const N: usize>(
        self,
        world: &World,
        n: usize,
        works: [&mut dyn FnMut() -> Result<()>; N],
    ) -> Result<[f64; N]> {
        let mut times = [const { Vec::new() }; N];
        for batch in 0..WARM_UP as usize + 2 * self.count {
            for place in 0..N {
                // A B C C B A A B C.
                let which = if batch % 2 == 0 { place } else { N - 1 - place };
                works[which]()?;
                world.barrier()?;
                let begin = Instant::now();
                for _ in 0..n {
                    works[which]()?;
                }
                world.barrier()?;
                if batch >= WARM_UP as usize {
                    times[which].push(nanoseconds(begin.elapsed()) / n as f64);
                }
            }
        }
        Ok(times.map(|mut times| median(&mut times)))
    }
}

/// So many rounds of a loop, beginning with an index; returns what it computed.
pub(crate) type Work<'a> = &'a mut dyn FnMut(usize, u64) -> Result<u64>;

pub(crate) fn nanoseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9
}

/// Nanoseconds of one round of `n`.
fn time(work: &mut dyn FnMut(usize, u64) -> Result<u64>, n: usize, seed: u64) -> Result<f64> {
    let begin = Instant::now();
    black_box(work(n, seed)?);
    Ok(nanoseconds(begin.elapsed()) / n as f64)
}

pub(crate) fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// How many rounds of `work`, which all ranks do together, make a batch.
pub(crate) fn together(
    world: &World,
    batches: Batches,
    work: impl Fn(u64) -> Result<()>,
) -> Result<u64> {
    let mut n = 16;
    loop {
        world.barrier()?;
        let begin = Instant::now();
        work(n)?;
        let enough = nanoseconds(begin.elapsed()) >= batches.ns / 2.0 || n >= 1_000_000;
        if world.all_reduce(u8::from(enough), Op::Max)? == 1 {
            return Ok(n);
        }
        n *= 2;
    }
}
