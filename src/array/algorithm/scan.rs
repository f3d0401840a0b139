//! Prefixes: each element combined with all before it.

use crate::array::GlobalArray;
use crate::array::rows::rows_mut;
use crate::dist::Dist;
use crate::element::Element;
use crate::error::Result;
use crate::operator::Combine;
use crate::threads::{self, PIECE};

impl<T: Element> GlobalArray<T> {
    /// Every element becomes what all elements up to it, itself included, make when they are combined
    /// by `op` in the order of indices.
    ///
    /// Collective, and a [barrier](crate::Team::barrier) at the beginning and the end.
    ///
    /// # Errors
    /// As [`GlobalArray::local`]; in a cyclic distribution, from which elements are moved and back,
    /// as [`GlobalArray::new`].
    #[track_caller]
    pub fn scan(&mut self, op: impl Combine<T> + Sync) -> Result<()> {
        self.scan_from(&op, None)
    }

    /// Every element becomes `first` combined with all elements before it; the first one `first`. Else
    /// as [`GlobalArray::scan`].
    ///
    /// # Errors
    /// As [`GlobalArray::scan`].
    #[track_caller]
    pub fn exscan(&mut self, first: T, op: impl Combine<T> + Sync) -> Result<()> {
        self.scan_from(&op, Some(first))
    }

    #[track_caller]
    fn scan_from(&mut self, op: &(impl Combine<T> + Sync), first: Option<T>) -> Result<()> {
        let team = self.team();
        if self.owned(team.rank()).ranges().is_none() {
            let mut blocks = self.redistribute([Dist::Block])?;
            blocks.scan_from(op, first)?;
            return self.copy_from(&mut blocks);
        }
        let threads = threads::of_this_rank()?;
        let layout = self.layout.clone();
        let mut view = self.local()?;
        let rows = rows_mut(&layout, team.rank(), &mut view, false);
        let mine = rows.into_iter().next().unwrap_or_default();
        let totals = threads.pieces(&[&*mine], |piece| total(op, piece));
        let totals: Vec<T> = totals.into_iter().flatten().collect();
        let all = team.all_gather_ragged(total(op, &totals).as_slice())?;
        // Of all ranks before this one: those without elements have no row.
        let before = (0..team.rank()).filter_map(|rank| all[rank].first().copied());
        let mut before = first
            .into_iter()
            .chain(before)
            .reduce(|a, b| op.combine(a, b));
        let starts: Vec<Option<T>> = totals
            .into_iter()
            .map(|total| before.replace(before.map_or(total, |all| op.combine(all, total))))
            .collect();
        let exclusive = first.is_some();
        let one = |(piece, start): (&mut [T], Option<T>)| scan_piece(op, piece, start, exclusive);
        let pieces: Vec<(&mut [T], Option<T>)> = mine.chunks_mut(PIECE).zip(starts).collect();
        threads.each_item(pieces, one);
        view.close()
    }
}

fn total<T: Copy>(op: &impl Combine<T>, values: &[T]) -> Option<T> {
    values.iter().copied().reduce(|a, b| op.combine(a, b))
}

fn scan_piece<T: Copy>(op: &impl Combine<T>, piece: &mut [T], start: Option<T>, exclusive: bool) {
    let mut before = start;
    for value in piece {
        let with = before.map_or(*value, |before| op.combine(before, *value));
        if let (true, Some(before)) = (exclusive, before) {
            *value = before;
        } else {
            *value = with;
        }
        before = Some(with);
    }
}
