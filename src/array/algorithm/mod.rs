//! Algorithms on whole arrays: what all ranks do together, each with its own elements.
//!
//! They enter a mode, so they take `&mut self`, and use this rank's threads
//! ([`threads`](crate::threads)).

mod copy;
mod iter;
mod linear;
mod reduce;
mod scan;
mod select;
mod sort;

pub use iter::Iter;
pub use linear::Real;

use super::rows::{rows, rows_mut};
use super::{Boundary, GlobalArray};
use crate::element::{self, Element};
use crate::error::Result;
use crate::threads;
use crate::world::Team;

impl<T: Element, const D: usize> GlobalArray<T, D> {
    /// The team whose ranks hold it.
    pub(super) fn team(&self) -> Team {
        Team::of_core(self.window.core())
    }

    /// Every element becomes `value`; ghost cells stay as they are.
    ///
    /// Collective, and a [barrier](Team::barrier) at the beginning and the end.
    ///
    /// # Errors
    /// As [`GlobalArray::local`].
    #[track_caller]
    pub fn fill(&mut self, value: T) -> Result<()> {
        self.in_place(|row| row.fill(value))
    }

    /// Every element `x` becomes `f(x)`; ghost cells stay as they are.
    ///
    /// Collective, and a [barrier](Team::barrier) at the beginning and the end.
    ///
    /// ```no_run
    /// # fn f(world: &pgas::World) -> pgas::Result<()> {
    /// let mut array = pgas::GlobalArray::<f64>::from_fn(world, 1000, |i| i as f64)?;
    /// array.map_inplace(f64::sqrt)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`GlobalArray::local`].
    ///
    /// # Panics
    /// If `f` does, which ends the job.
    #[track_caller]
    pub fn map_inplace(&mut self, f: impl Fn(T) -> T + Sync + Send) -> Result<()> {
        self.in_place(|row| row.iter_mut().for_each(|x| *x = f(*x)))
    }

    #[track_caller]
    fn in_place(&mut self, work: impl Fn(&mut [T]) + Sync + Send) -> Result<()> {
        let threads = threads::of_this_rank()?;
        let layout = self.layout.clone();
        let rank = self.rank();
        let mut view = self.local()?;
        threads.each(rows_mut(&layout, rank, &mut view, false), work);
        view.close()
    }

    /// A new array, distributed as this one, with `f(x)` for every element `x`. It has as many ghost
    /// cells, which hold nothing of use, and open [boundaries](Boundary).
    ///
    /// Collective.
    ///
    /// # Errors
    /// As [`GlobalArray::new`].
    ///
    /// # Panics
    /// If `f` does, which ends the job.
    #[track_caller]
    pub fn map<U: Element>(
        &mut self,
        f: impl Fn(T) -> U + Sync + Send,
    ) -> Result<GlobalArray<U, D>> {
        let core = self.window.core().clone();
        let threads = threads::of_this_rank()?;
        let mut result =
            GlobalArray::allocate(&core, self.layout.clone(), [Boundary::Open; D], false, None)?;
        let layout = self.layout.clone();
        let view = self.read()?;
        let mine = rows(&layout, core.rank, &view, false);
        if element::any_bits::<U>() {
            let mut to = result.local()?;
            let to_rows = rows_mut(&layout, core.rank, &mut to, false);
            threads.each_pair(to_rows, mine, |to, from| {
                to.iter_mut()
                    .zip(from)
                    .for_each(|(to, &from)| *to = f(from));
            });
            to.close()?;
        } else {
            let mut values = mine.into_iter().flatten().map(|&x| f(x));
            result.fill_own(|_| match values.next() {
                Some(value) => value,
                None => unreachable!("one value for each element"),
            });
        }
        view.close()?; // Also a barrier for the new one.
        Ok(result)
    }

    /// Every element `x` becomes `f(x, y)`, where `y` is the element of `other` at its index. The
    /// arrays have one shape; if they are distributed otherwise `other` is moved for it. Their teams have
    /// the same ranks, in any order.
    ///
    /// Collective, and a [barrier](Team::barrier) at the beginning and the end.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) on all ranks that call if the
    /// shapes or the teams' ranks differ; else as [`GlobalArray::local`] and, if `other` has to be moved, [`GlobalArray::new`].
    ///
    /// # Panics
    /// If `f` does, which ends the job.
    #[track_caller]
    pub fn zip_apply<U: Element>(
        &mut self,
        other: &mut GlobalArray<U, D>,
        f: impl Fn(T, U) -> T + Sync + Send,
    ) -> Result<()> {
        let mut moved = self.other_like_this("zip_apply", other)?;
        let other = moved.as_mut().unwrap_or(other);
        self.in_place_with(other, |to, from| {
            for (to, &from) in to.iter_mut().zip(from) {
                *to = f(*to, from);
            }
        })
    }

    /// Calls `work` for pieces of this rank's elements and those of `other`, which has the same parts.
    #[track_caller]
    fn in_place_with<U: Element>(
        &mut self,
        other: &mut GlobalArray<U, D>,
        work: impl Fn(&mut [T], &[U]) + Sync + Send,
    ) -> Result<()> {
        let threads = threads::of_this_rank()?;
        let rank = self.rank();
        let (layout, other_layout) = (self.layout.clone(), other.layout.clone());
        let by_row = layout.has_halo() || other_layout.has_halo();
        let from = other.read()?;
        let mut to = self.local()?;
        threads.each_pair(
            rows_mut(&layout, rank, &mut to, by_row),
            rows(&other_layout, rank, &from, by_row),
            work,
        );
        to.close()?;
        from.close()
    }
}
