//! Sorting, by samples: all ranks agree on what separates their parts, give each other what
//! belongs there, and each sorts what it got.

use crate::array::GlobalArray;
use crate::array::rows::{rows, rows_mut};
use crate::dist::{self, Dist, block_start};
use crate::element::Element;
use crate::error::Result;
use crate::threads::{self, Threads};
use crate::world::Team;
use rayon::prelude::*;
use std::cmp::Ordering;

/// Samples for each rank: with 256 no part is more than a few percent longer than planned.
const SAMPLES: usize = 256;
/// So many borders are compared with an element one after another, more by bisection.
const FEW: usize = 8;

impl<T: Element> GlobalArray<T> {
    /// Sorts the elements in ascending order; equal ones stay in their order.
    ///
    /// Collective, and a [barrier](Team::barrier) at the beginning and the end. Each rank has as many
    /// elements afterwards as before, whatever they are: the distribution says how many. Equal elements
    /// do no harm: however many there are, they are divided among the ranks.
    ///
    /// Beside the array each rank needs room for a copy of its part, and 4 bytes an element while the
    /// ranks find out what belongs where; for 256 samples of each rank, of an element and 8 bytes; and,
    /// while it sorts so that equal elements stay in their order, for up to one more copy of its part.
    /// On one rank that last is all. In a cyclic distribution there is another array of the same size
    /// all the time.
    ///
    /// # Errors
    /// As [`GlobalArray::local`]; in a cyclic distribution, from which elements are moved and back,
    /// as [`GlobalArray::new`].
    #[track_caller]
    pub fn sort(&mut self) -> Result<()>
    where
        T: Ord,
    {
        self.sort_by(Ord::cmp)
    }

    /// As [`GlobalArray::sort`], faster, and without the copy while a rank sorts; elements that are equal
    /// may change places.
    ///
    /// # Errors
    /// As [`GlobalArray::sort`].
    #[track_caller]
    pub fn sort_unstable(&mut self) -> Result<()>
    where
        T: Ord,
    {
        self.sort_unstable_by(Ord::cmp)
    }

    /// As [`GlobalArray::sort`], by a key of each element.
    ///
    /// # Errors
    /// As [`GlobalArray::sort`].
    #[track_caller]
    pub fn sort_by_key<K: Ord>(&mut self, key: impl Fn(&T) -> K + Sync + Send) -> Result<()> {
        self.sort_by(|a, b| key(a).cmp(&key(b)))
    }

    /// As [`GlobalArray::sort`], by `compare`, which must be a total order: `f64::total_cmp` for floats.
    ///
    /// # Errors
    /// As [`GlobalArray::sort`].
    #[track_caller]
    pub fn sort_by(&mut self, compare: impl Fn(&T, &T) -> Ordering + Sync + Send) -> Result<()> {
        self.sort_with(&compare, true)
    }

    /// As [`GlobalArray::sort_unstable`], by `compare`, as [`GlobalArray::sort_by`].
    ///
    /// # Errors
    /// As [`GlobalArray::sort`].
    #[track_caller]
    pub fn sort_unstable_by(
        &mut self,
        compare: impl Fn(&T, &T) -> Ordering + Sync + Send,
    ) -> Result<()> {
        self.sort_with(&compare, false)
    }

    #[track_caller]
    fn sort_with<C>(&mut self, compare: &C, stable: bool) -> Result<()>
    where
        C: Fn(&T, &T) -> Ordering + Sync,
    {
        let team = self.team();
        if self.owned(team.rank()).ranges().is_none() {
            let mut blocks = self.redistribute([Dist::Block])?;
            blocks.sort_with(compare, stable)?;
            return self.copy_from(&mut blocks);
        }
        let threads = threads::of_this_rank()?;
        let layout = self.layout.clone();
        if team.size() == 1 {
            let mut view = self.local()?;
            let rows = rows_mut(&layout, 0, &mut view, false);
            rows.into_iter()
                .for_each(|row| sort_here(threads, row, compare, stable));
            return view.close();
        }
        let starts: Vec<usize> = (0..team.size())
            .map(|rank| self.range_of(rank).start)
            .collect();
        let view = self.read()?;
        let mine = rows(&layout, team.rank(), &view, false);
        let mine = mine.into_iter().next().unwrap_or_default();
        let first = starts[team.rank()];
        let borders = borders(&team, mine, first, (&starts, layout.len()), compare)?;
        let (mut parts, counts) = divide(mine, first, (&borders, team.size()), compare);
        // By rank that gives, and by rank that gets.
        let all = team.all_gather_slice(&counts)?;
        view.close()?; // All have their elements elsewhere.
        let count = |from: usize, to: usize| all[from * team.size() + to];
        let start_of = |to: usize| -> usize {
            let before = (0..to).flat_map(|to| (0..team.size()).map(move |from| (from, to)));
            before.map(|(from, to)| count(from, to)).sum()
        };
        // What a rank gets lies where it is going to be, or nearly: rank after rank, so equal elements
        // are in their order. Each rank begins with the one after it, so that not all write to one.
        let at = dist::starts(&counts);
        let mut put = Ok(());
        for step in 1..=team.size() {
            let to = (team.rank() + step) % team.size();
            let before: usize = (0..team.rank()).map(|from| count(from, to)).sum();
            let part = &parts[at[to]..at[to] + counts[to]];
            put = put.and_then(|()| self.put_range(start_of(to) + before, part));
        }
        team.barrier()?;
        put?;
        let start = start_of(team.rank());
        let len = start_of(team.rank() + 1) - start;
        match parts.first().copied() {
            // The same memory, which is mapped already.
            Some(filler) => {
                parts.resize(len, filler);
                self.get_into(start, &mut parts)?;
            }
            None => parts = self.get_range(start..start + len)?,
        }
        sort_here(threads, &mut parts, compare, stable);
        let put = self.put_range(start, &parts);
        team.barrier()?;
        put
    }
}

fn sort_here<T, C>(threads: &Threads, values: &mut [T], compare: &C, stable: bool)
where
    T: Send,
    C: Fn(&T, &T) -> Ordering + Sync,
{
    match (threads.pool(), stable) {
        (None, true) => values.sort_by(compare),
        (None, false) => values.sort_unstable_by(compare),
        (Some(pool), true) => pool.install(|| values.par_sort_by(compare)),
        (Some(pool), false) => pool.install(|| values.par_sort_unstable_by(compare)),
    }
}

/// What separates the ranks' parts: an element and its place, for all ranks but the first. Elements
/// are compared with their places, so no two are equal.
fn borders<T: Element>(
    team: &Team,
    mine: &[T],
    first: usize,
    (starts, len): (&[usize], usize),
    compare: &impl Fn(&T, &T) -> Ordering,
) -> Result<Vec<(T, usize)>> {
    // As many samples as this rank has of all elements, at places that are as good as random.
    let all = SAMPLES * team.size();
    let count =
        block_start(all, len.max(1), first + mine.len()) - block_start(all, len.max(1), first);
    let count = count.min(mine.len());
    let mut values = Vec::with_capacity(count);
    let mut places = Vec::with_capacity(count);
    for k in 0..count {
        // One in each of so many equal pieces.
        let (from, to) = (
            block_start(mine.len(), count, k),
            block_start(mine.len(), count, k + 1),
        );
        let mut random = (first + k) as u64 + 0x9e37_79b9_7f4a_7c15;
        random = (random ^ (random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        random = (random ^ (random >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let step = usize::try_from((random >> 33) % (to - from).max(1) as u64).unwrap_or(0);
        values.push(mine[from + step]);
        places.push(first + from + step);
    }
    let values = team.all_gather_ragged(&values)?.into_values();
    let places = team.all_gather_ragged(&places)?.into_values();
    let mut samples: Vec<(T, usize)> = values.into_iter().zip(places).collect();
    samples.sort_unstable_by(|a, b| compare(&a.0, &b.0).then(a.1.cmp(&b.1)));
    // Where a part begins among all elements is about where it begins among the samples.
    let border = |&start: &usize| {
        let at = block_start(samples.len(), len.max(1), start);
        samples.get(at).copied()
    };
    // Behind the last sample: parts that begin there are empty, or nearly.
    Ok(starts[1..].iter().map_while(border).collect())
}

/// `mine`, ordered by the ranks that are to have it, and how many for each; for one rank in the order
/// it has.
fn divide<T: Element>(
    mine: &[T],
    first: usize,
    (borders, ranks): (&[(T, usize)], usize),
    compare: &impl Fn(&T, &T) -> Ordering,
) -> (Vec<T>, Vec<usize>) {
    let rank_of = |place: usize, value: &T| {
        let place = first + place;
        let behind =
            |(border, at): &(T, usize)| compare(border, value).then(at.cmp(&place)).is_le();
        if borders.len() <= FEW {
            // Without branches, which nobody could predict.
            borders
                .iter()
                .map(|border| usize::from(behind(border)))
                .sum()
        } else {
            borders.partition_point(behind)
        }
    };
    // First whose each is, then each to its place.
    let mut counts = vec![0_usize; ranks];
    let ranks_of: Vec<u32> = mine
        .iter()
        .enumerate()
        .map(|(place, value)| {
            let rank = rank_of(place, value);
            counts[rank] += 1;
            // Ranks are below 2^17.
            u32::try_from(rank).unwrap_or(u32::MAX)
        })
        .collect();
    let mut next = dist::starts(&counts);
    let mut parts = mine.to_vec();
    for (value, rank) in mine.iter().zip(ranks_of) {
        let next = &mut next[rank as usize];
        parts[*next] = *value;
        *next += 1;
    }
    (parts, counts)
}
