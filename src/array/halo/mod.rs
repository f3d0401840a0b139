//! Ghost cells: copies of neighbours' elements around a rank's own.
//!
//! An exchange: each rank packs the cells that a neighbour needs into one message and puts it to
//! the neighbour's *stage*, a part of its memory behind its elements; all meet; each rank unpacks
//! its stage into its ghost cells. There are two stages, used in turn, so that one meeting is
//! enough: who puts to a stage again has met everybody since it was unpacked.
//!
//! The reverse packs ghost cells into the own stage, meets, and reads the neighbours' stages.
//!
//! What goes where: geometry.rs.

#![expect(unsafe_code, reason = "copies in this rank's own memory")]

mod geometry;

pub(super) use geometry::{Geometry, Halo};

use super::section::{load_rows, store_row};
use super::{Boundary, GlobalArray, LocalView};
use crate::dist::Patch;
use crate::element::{self, Element};
use crate::error::{Error, ErrorKind, Result};
use crate::operator::Operator;
use crate::window;
use crate::world::{Call, Signature};
use std::fmt;
use std::ops::{Deref, DerefMut};

impl<T: Element, const D: usize> GlobalArray<T, D> {
    /// Fills all ranks' ghost cells, without entering a mode. See [`LocalView::exchange`].
    ///
    /// Collective, and a [barrier](crate::Team::barrier): what was put before by any rank is in
    /// the ghost cells.
    ///
    /// # Errors
    /// [`ErrorKind::WrongMode`]; else as [`LocalView::exchange`].
    #[track_caller]
    pub fn exchange(&mut self) -> Result<()> {
        self.mode.check_open("exchange")?;
        self.meet(Call::Exchange, Step::First as usize)?;
        self.begin_exchange()?;
        self.finish_exchange()
    }

    #[track_caller]
    fn meet(&self, call: Call, detail: usize) -> Result<()> {
        let signature = Signature::new(call)
            .detail(detail)
            .count(window::index(self.window.id));
        self.window.core().barrier(&signature)
    }

    fn halo_for(&mut self, call: &str) -> Result<&mut Halo<D>> {
        let Some(halo) = &mut self.halo else {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{call}: the array has no ghost cells"),
            ));
        };
        if halo.under_way {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{call}: an exchange is under way"),
            ));
        }
        Ok(halo)
    }

    #[track_caller]
    fn begin_exchange(&mut self) -> Result<()> {
        self.halo_for("exchange")?;
        if let Err(error) = self.send_cells() {
            // The others come to the meeting: there they get a mismatch, and no old values.
            let _ = self.meet(Call::Exchange, Step::Failed as usize);
            return Err(error);
        }
        if let Some(halo) = &mut self.halo {
            halo.under_way = true;
        }
        Ok(())
    }

    /// Puts what the neighbours need to their stages.
    fn send_cells(&self) -> Result<()> {
        let base = self.window.base();
        let Some(halo) = &self.halo else {
            return Ok(());
        };
        for message in &halo.sends {
            // SAFETY: the cells lie in this rank's memory.
            let values = unsafe { load_rows::<T, D>(base, &message.cells, message.len) }?;
            self.core_of()
                .count(message.rank, 1, size_of_val(&values[..]));
            self.window
                .put_range(message.rank, message.place(halo.turn), &values)?;
        }
        Ok(())
    }

    #[track_caller]
    fn finish_exchange(&mut self) -> Result<()> {
        let met = self.meet(Call::Exchange, Step::Second as usize);
        let base = self.window.base();
        let Some(halo) = &mut self.halo else {
            return Ok(());
        };
        let turn = halo.turn;
        match met {
            // On all ranks alike, whatever becomes of the rest.
            Ok(()) => {
                halo.turn = 1 - turn;
                halo.under_way = false;
            }
            Err(error) => {
                // After a mismatch no rank looks at a stage: the next exchange writes to the same.
                halo.under_way = error.kind() != ErrorKind::Mismatch;
                return Err(error);
            }
        }
        for message in &halo.receives {
            let stage = base.wrapping_add(message.place(turn) * size_of::<T>());
            // SAFETY: the message lies in a stage, which is in this rank's memory.
            let values = unsafe { element::load_vec::<T>(stage, message.len) }?;
            for row in message.cells.iter().flat_map(Patch::rows) {
                // SAFETY: the cells lie in this rank's memory.
                unsafe { store_row(&values, base, row) };
            }
        }
        for (d, patch) in &halo.fixed {
            if let Boundary::Fixed(value) = self.boundary[*d] {
                let values = vec![value; patch.len()];
                for row in patch.rows() {
                    // SAFETY: the cells lie in this rank's memory.
                    unsafe { store_row(&values, base, row) };
                }
            }
        }
        Ok(())
    }

    #[track_caller]
    fn accumulate<O: Operator<T>>(&mut self, op: O) -> Result<()> {
        self.halo_for("accumulate_halo")?;
        let operator = op.atomic_op() as usize;
        if let Err(error) = self.keep_ghosts() {
            let failed = Step::Failed as usize + operator;
            let _ = self.meet(Call::Accumulate, failed);
            return Err(error);
        }
        self.meet(Call::Accumulate, operator)?;
        let Some(halo) = &mut self.halo else {
            return Ok(());
        };
        let turn = halo.turn;
        // On all ranks alike, whatever becomes of the rest.
        halo.turn = 1 - turn;
        let base = self.window.base();
        for message in &halo.sends {
            let at = message.place(turn);
            let bytes = message.len * size_of::<T>();
            self.window.core().count(message.rank, 1, bytes);
            let theirs = self.window.get_range::<T>(message.rank, at, message.len)?;
            // One by one: cells of one message may be the same (mirrors).
            for row in message.cells.iter().flat_map(Patch::rows) {
                for k in 0..row.count {
                    let cell = base.wrapping_add(row.offset_of(k) * size_of::<T>());
                    // SAFETY: the cell lies in this rank's memory.
                    let before = unsafe { element::load::<T>(cell) }?;
                    let after = op.combine(before, theirs[row.at_of(k)]);
                    // SAFETY: as above.
                    unsafe { element::store(cell, after) };
                }
            }
        }
        Ok(())
    }

    /// Packs the ghost cells into this rank's own stage, for those whose elements they stand for.
    fn keep_ghosts(&self) -> Result<()> {
        let base = self.window.base();
        let Some(halo) = &self.halo else {
            return Ok(());
        };
        for message in &halo.receives {
            // SAFETY: the cells lie in this rank's memory.
            let values = unsafe { load_rows::<T, D>(base, &message.cells, message.len) }?;
            let stage = base.wrapping_add(message.place(halo.turn) * size_of::<T>());
            // SAFETY: the message's place in a stage, which is in this rank's memory.
            unsafe { element::copy(stage, values.as_ptr().cast(), size_of_val(&values[..])) };
        }
        Ok(())
    }
}

/// What a rank says in the meetings of an exchange.
#[derive(Clone, Copy)]
enum Step {
    /// The meeting before, where the array is open.
    First = 1,
    /// Everything has been put.
    Second = 2,
    /// This rank could not: nobody must use what is there. Above any operator, too.
    Failed = 1000,
}

impl<'a, T: Element, const D: usize> LocalView<'a, T, D> {
    /// Fills the ghost cells of all ranks: with copies of the elements that they stand for, or
    /// with what the array's [boundary](crate::Builder::boundary) says. Corners too, unless the
    /// array was built [faces_only](crate::Builder::faces_only).
    ///
    /// Collective: all ranks must call it. What ranks wrote to their elements before it is what
    /// the others get.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the array has no ghost cells, or if an exchange is under
    /// way; else as [`Team::barrier`](crate::Team::barrier).
    #[track_caller]
    pub fn exchange(&mut self) -> Result<()> {
        self.array.begin_exchange()?;
        self.array.finish_exchange()
    }

    /// Starts an exchange: sends what the neighbours need. Until
    /// [`finish`](Exchange::finish) this rank may work on its own elements, read and write; its
    /// ghost cells are old.
    ///
    /// Collective at its end: see [`LocalView::exchange`].
    ///
    /// # Errors
    /// As [`LocalView::exchange`].
    pub fn exchange_begin(&mut self) -> Result<Exchange<'_, 'a, T, D>> {
        self.array.begin_exchange()?;
        Ok(Exchange {
            view: self,
            finished: false,
        })
    }

    /// The reverse of an exchange: every ghost cell's value is combined into the element that it
    /// stands for, `element = element op ghost`, rank by rank, the same way each time. Ghost cells
    /// keep their values; those with an open or fixed boundary go nowhere.
    ///
    /// Collective: all ranks must call it.
    ///
    /// # Errors
    /// As [`LocalView::exchange`].
    #[track_caller]
    pub fn accumulate_halo<O: Operator<T>>(&mut self, op: O) -> Result<()> {
        self.array.accumulate(op)
    }
}

/// An exchange of ghost cells that is under way: made by [`LocalView::exchange_begin`].
/// Dereferences to the view.
///
/// Finished when dropped, too, but then errors go unseen.
#[must_use = "finish() fills the ghost cells"]
pub struct Exchange<'v, 'a, T: Element, const D: usize> {
    view: &'v mut LocalView<'a, T, D>,
    finished: bool,
}

impl<T: Element, const D: usize> Exchange<'_, '_, T, D> {
    /// Waits for the neighbours and fills the ghost cells. Collective.
    ///
    /// # Errors
    /// As [`Team::barrier`](crate::Team::barrier).
    #[track_caller]
    pub fn finish(mut self) -> Result<()> {
        self.finished = true;
        self.view.array.finish_exchange()
    }
}

impl<'a, T: Element, const D: usize> Deref for Exchange<'_, 'a, T, D> {
    type Target = LocalView<'a, T, D>;

    fn deref(&self) -> &Self::Target {
        self.view
    }
}

impl<T: Element, const D: usize> DerefMut for Exchange<'_, '_, T, D> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.view
    }
}

impl<T: Element, const D: usize> Drop for Exchange<'_, '_, T, D> {
    fn drop(&mut self) {
        if !self.finished && !std::thread::panicking() {
            // Ghost cells then stay old, and the next exchange says that this one is under way.
            let _ = self.view.array.finish_exchange();
        }
    }
}

impl<T: Element, const D: usize> fmt::Debug for Exchange<'_, '_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Exchange").field(&self.view).finish()
    }
}
