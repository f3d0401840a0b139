//! Elements by what they are: how many of each kind, and those of one kind.

use crate::array::GlobalArray;
use crate::array::rows::rows;
use crate::dist::Dist;
use crate::element::Element;
use crate::error::{Error, ErrorKind, Result};
use crate::operator::Op;
use crate::threads;

impl<T: Element, const D: usize> GlobalArray<T, D> {
    /// How many elements belong to each of `bins` bins: `bin` says to which, or to none. The same on
    /// all ranks.
    ///
    /// Collective, and a [barrier](crate::Team::barrier) at the beginning and the end.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`] on all ranks if `bin` gave a number that is not below `bins`; else as
    /// [`GlobalArray::read`].
    #[track_caller]
    pub fn histogram(
        &mut self,
        bins: usize,
        bin: impl Fn(&T) -> Option<usize> + Sync + Send,
    ) -> Result<Vec<u64>> {
        let threads = threads::of_this_rank()?;
        let (team, layout) = (self.team(), self.layout.clone());
        let view = self.read()?;
        let mine = rows(&layout, team.rank(), &view, false);
        let counts = threads.pieces(&mine, |piece| {
            // One more for those that are outside.
            let mut counts = vec![0_u64; bins + 1];
            for bin in piece.iter().filter_map(&bin) {
                counts[bin.min(bins)] += 1;
            }
            counts
        });
        let mut all = vec![0_u64; bins + 1];
        for counts in counts {
            all.iter_mut()
                .zip(counts)
                .for_each(|(all, count)| *all += count);
        }
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
        let (team, layout, mask_layout) = (self.team(), self.layout.clone(), mask.layout.clone());
        let view = self.read()?;
        let mask = mask.read()?;
        let values = rows(&layout, team.rank(), &view, false)
            .into_iter()
            .flatten();
        let keep = rows(&mask_layout, team.rank(), &mask, false)
            .into_iter()
            .flatten();
        let kept = values.zip(keep).filter(|(_, keep)| **keep);
        let kept: Vec<T> = kept.map(|(value, _)| *value).collect();
        mask.close()?;
        view.close()?;
        Self::from_local(&team, &kept)
    }
}
