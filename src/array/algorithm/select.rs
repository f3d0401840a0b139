//! Elements by what they are: how many of each kind, and those of one kind.

use crate::array::GlobalArray;
use crate::array::io::agree;
use crate::array::rows::rows;
use crate::dist::Dist;
use crate::element::Element;
use crate::error::{Error, ErrorKind, Result};
use crate::operator::Op;
use crate::threads::{self, PIECE, Threads};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// More bins than these are counted by all threads in one place, where they seldom meet; with fewer
/// each thread has counts of its own, 512 KiB at most.
const MANY: usize = 64 << 10;

impl<T: Element, const D: usize> GlobalArray<T, D> {
    /// How many elements belong to each of `bins` bins: `bin` says to which, or to none. The same on
    /// all ranks.
    ///
    /// Collective, and a [barrier](crate::Team::barrier) at the beginning and the end. Each rank needs
    /// room for the counts, 8 bytes a bin, whatever the number of its elements and threads.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`] on all ranks if `bin` gave a number that is not below `bins`;
    /// [`ErrorKind::NoRoom`] on all ranks if one has no memory for so many bins; else as
    /// [`GlobalArray::read`].
    #[track_caller]
    pub fn histogram(
        &mut self,
        bins: usize,
        bin: impl Fn(&T) -> Option<usize> + Sync + Send,
    ) -> Result<Vec<u64>> {
        let threads = threads::of_this_rank()?;
        let (team, layout) = (self.team(), self.layout.clone());
        // One more for those that are outside.
        let mut all = agree(&team, counts(bins))?;
        let view = self.read()?;
        let mine = rows(&layout, team.rank(), &view, false);
        all = count(threads, &mine, all, &bin);
        team.all_reduce_slice(&mut all, Op::Sum)?;
        view.close()?;
        match all.pop() {
            None | Some(0) => Ok(all),
            Some(outside) => Err(Error::new(
                ErrorKind::OutOfBounds,
                format!("{outside} elements belong to no bin of {bins}"),
            )),
        }
    }
}

/// Zeros for so many bins, and one more.
fn counts(bins: usize) -> Result<Vec<u64>> {
    let no_room = || {
        let text = format!("no memory for a histogram of {bins} bins");
        Error::new(ErrorKind::NoRoom, text)
    };
    let len = bins.checked_add(1).ok_or_else(no_room)?;
    let mut counts = Vec::new();
    counts.try_reserve_exact(len).map_err(|_| no_room())?;
    counts.resize(len, 0);
    Ok(counts)
}

/// The bins of elements; `last` for those that are outside.
fn bins_of<T>(
    elements: &[T],
    bin: &impl Fn(&T) -> Option<usize>,
    last: usize,
) -> impl Iterator<Item = usize> {
    let bins = elements.iter().filter_map(bin);
    bins.map(move |bin| bin.min(last))
}

/// Counts how often each bin is that of an element.
fn count<T: Sync>(
    threads: &Threads,
    rows: &[&[T]],
    mut all: Vec<u64>,
    bin: &(impl Fn(&T) -> Option<usize> + Sync),
) -> Vec<u64> {
    let last = all.len() - 1;
    let Some(pool) = threads.pool() else {
        let elements = rows.iter().flat_map(|row| bins_of(row, bin, last));
        elements.for_each(|bin| all[bin] += 1);
        return all;
    };
    let pieces: Vec<&[T]> = rows.iter().flat_map(|row| row.chunks(PIECE)).collect();
    if all.len() > MANY {
        let shared: Vec<AtomicU64> = all.into_iter().map(AtomicU64::new).collect();
        threads.each_item(pieces, |piece| {
            for bin in bins_of(piece, bin, last) {
                shared[bin].fetch_add(1, Ordering::Relaxed);
            }
        });
        return shared.into_iter().map(AtomicU64::into_inner).collect();
    }
    let next = AtomicUsize::new(0);
    let of_threads = pool.broadcast(|_| {
        let mut counts = vec![0_u64; all.len()];
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            bins_of(piece, bin, last).for_each(|bin| counts[bin] += 1);
        }
        counts
    });
    for counts in of_threads {
        all.iter_mut()
            .zip(counts)
            .for_each(|(all, count)| *all += count);
    }
    all
}

impl<T: Element> GlobalArray<T> {
    /// A new array, in blocks, of the elements for which `keep` is true, in their order.
    ///
    /// Collective.
    ///
    /// # Errors
    /// As [`GlobalArray::new`].
    #[track_caller]
    pub fn filter(&mut self, keep: impl Fn(&T) -> bool + Sync + Send) -> Result<Self> {
        if self.owned(self.rank()).ranges().is_none() {
            return self.redistribute([Dist::Block])?.filter(keep);
        }
        let threads = threads::of_this_rank()?;
        let (team, layout) = (self.team(), self.layout.clone());
        let view = self.read()?;
        let mine = rows(&layout, team.rank(), &view, false);
        let kept = threads.pieces(&mine, |piece| -> Vec<T> {
            piece.iter().copied().filter(&keep).collect()
        });
        let kept: Vec<T> = kept.concat();
        view.close()?;
        Self::from_local(&team, &kept)
    }

    /// A new array, in blocks, of the elements at whose index `mask` is true, in their order.
    ///
    /// Collective.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] on all ranks that call if the lengths or the teams' ranks differ;
    /// else as [`GlobalArray::new`].
    #[track_caller]
    pub fn select(&mut self, mask: &mut GlobalArray<bool>) -> Result<Self> {
        self.same_shape("select", mask)?;
        if self.owned(self.rank()).ranges().is_none() {
            return self.redistribute([Dist::Block])?.select(mask);
        }
        let mut moved = self.other_like_this("select", mask)?;
        let mask = moved.as_mut().unwrap_or(mask);
        let threads = threads::of_this_rank()?;
        let (team, layout, mask_layout) = (self.team(), self.layout.clone(), mask.layout.clone());
        let view = self.read()?;
        let mask = mask.read()?;
        let values = rows(&layout, team.rank(), &view, false);
        let keep = rows(&mask_layout, team.rank(), &mask, false);
        let kept = threads.pair_pieces(&values, &keep, |values, keep| -> Vec<T> {
            let pairs = values.iter().zip(keep);
            let kept = pairs.filter(|(_, keep)| **keep);
            kept.map(|(value, _)| *value).collect()
        });
        let kept: Vec<T> = kept.concat();
        mask.close()?;
        view.close()?;
        Self::from_local(&team, &kept)
    }
}
