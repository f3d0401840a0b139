//! The access modes: where slices exist, and why they are sound.
//!
//! A slice says that nobody writes (`&[T]`) or that nobody else looks (`&mut [T]`), in any
//! process. So slices are given out only in a mode that all ranks entered together, in a
//! collective that names the array and the mode and that has flushed all writes, and the mode
//! ends on no rank before all ranks have ended it.
//!
//! On this rank the borrow checker keeps other operations away: a view borrows the array
//! mutably. If a view is leaked, its borrow ends but the mode stays, and every operation is
//! [`ErrorKind::WrongMode`]: nothing rests on `Drop`.

use super::{GlobalArray, slowly};
use crate::element::{self, Element};
use crate::error::{Error, ErrorKind, Result};
use crate::window;
use crate::world::{Call, Signature};
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::panic::Location;

/// What an array allows now, on this rank.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mode {
    /// Gets, puts and atomics; no slices.
    Open,
    /// Entered here: gets, and slices of shared memory that nobody writes.
    Read(&'static Location<'static>),
    /// Entered here: a mutable slice of the own shard, that nobody else looks at.
    Local(&'static Location<'static>),
}

impl Mode {
    pub(super) fn check_open(&self, call: &str) -> Result<()> {
        let (name, entered) = match self {
            Self::Open => return Ok(()),
            Self::Read(entered) => ("read()", entered),
            Self::Local(entered) => ("local()", entered),
        };
        Err(wrong_mode(call, name, entered))
    }
}

#[cold]
fn wrong_mode(call: &str, mode: &str, entered: &Location<'_>) -> Error {
    Error::new(
        ErrorKind::WrongMode,
        format!(
            "{call}: the array is in the mode that {mode} entered at {entered}, which never ended \
             (its view was leaked, or ending it failed)"
        ),
    )
}

impl<T: Element> GlobalArray<T> {
    /// Reading, by slices too: until the view ends no rank writes.
    ///
    /// Collective, and a [barrier](crate::World::barrier): all that was written before is seen.
    ///
    /// # Errors
    /// [`ErrorKind::WrongMode`] after a leaked view; [`ErrorKind::InvalidValue`] if this rank's
    /// shard holds bytes that are no `T`; else as [`World::barrier`](crate::World::barrier).
    #[track_caller]
    pub fn read(&mut self) -> Result<ReadView<'_, T>> {
        self.enter("read", Call::Read, Mode::Read(Location::caller()))?;
        let view = ReadView { array: self };
        view.array.check_values()?;
        Ok(view)
    }

    /// This rank's own shard as a mutable slice: until the view ends no rank looks at another's.
    ///
    /// Collective, and a [barrier](crate::World::barrier): all that was written before is seen.
    ///
    /// # Errors
    /// As [`GlobalArray::read`].
    #[track_caller]
    pub fn local(&mut self) -> Result<LocalView<'_, T>> {
        self.enter("local", Call::Local, Mode::Local(Location::caller()))?;
        let view = LocalView { array: self };
        view.array.check_values()?;
        Ok(view)
    }

    fn enter(&mut self, name: &str, call: Call, mode: Mode) -> Result<()> {
        self.mode.check_open(name)?;
        // Before the barrier: if it fails on this rank only, others may have entered.
        self.mode = mode;
        self.open = 0;
        let signature = Signature::new(call).count(window::index(self.window.id));
        let entered = self.window.core().barrier(&signature);
        if let Err(error) = &entered
            && error.kind() == ErrorKind::Mismatch
        {
            // No rank entered anything.
            self.reopen();
        }
        entered
    }

    /// Ends the mode on all ranks. Collective.
    fn leave(&mut self) -> Result<()> {
        let signature = Signature::new(Call::EndMode).count(window::index(self.window.id));
        self.window.core().barrier(&signature)?;
        self.reopen();
        Ok(())
    }

    fn reopen(&mut self) {
        self.mode = Mode::Open;
        self.open = self.dist.fast_len();
    }

    /// A slice claims that its elements are values; peers write bytes. Checked where not all
    /// bytes are values.
    fn check_values(&self) -> Result<()> {
        if element::any_bits::<T>() || self.local_range().is_empty() {
            return Ok(());
        }
        // SAFETY: my shard, mapped, of that many elements; nobody writes in this mode.
        let values =
            unsafe { element::load_vec::<T>(self.window.base(), self.local_range().len()) };
        values.map(drop)
    }

    /// This rank's shard.
    ///
    /// # Safety
    /// In a mode in which no rank writes while the slice lives.
    unsafe fn shard(&self) -> &[T] {
        let count = self.local_range().len();
        if count == 0 {
            return &[];
        }
        // SAFETY: mapped, aligned and of that many elements, all valid (`check_values`); nobody
        // writes, by the caller.
        unsafe { std::slice::from_raw_parts(self.window.base().cast::<T>(), count) }
    }
}

/// An array in which no rank writes: made by [`GlobalArray::read`]. Dereferences to this rank's
/// own shard.
///
/// Ends when dropped, which is collective: it waits until all ranks have ended theirs.
pub struct ReadView<'a, T: Element> {
    array: &'a mut GlobalArray<T>,
}

impl<T: Element> ReadView<'_, T> {
    /// The element at `index`, of any rank. One-sided; waits for it.
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    #[inline]
    pub fn get(&self, index: usize) -> Result<T> {
        match self.array.find(index, self.array.dist.fast_len()) {
            // SAFETY: `find` points to a mapped element of this array.
            Some(at) => unsafe { element::load(at) },
            // Reading is what this mode is for.
            None => slowly(|to| self.array.get_slowly(index, Mode::Open, to)),
        }
    }

    /// The elements of `range`, of any ranks. One-sided; waits for them.
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    pub fn get_range(&self, range: Range<usize>) -> Result<Vec<T>> {
        self.array.read_range(range)
    }

    /// Fills `to` with the elements from index `start` on, of any ranks. One-sided; waits for them.
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    pub fn get_into(&self, start: usize, to: &mut [T]) -> Result<()> {
        self.array.read_into(start, to)
    }

    /// The shard of a rank on this node, without a copy; None on another node.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] if it holds bytes that are no `T`; [`ErrorKind::Ucx`].
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn shard_of(&self, rank: usize) -> Result<Option<&[T]>> {
        let count = self.array.range_of(rank).len();
        if count == 0 {
            return Ok(Some(&[]));
        }
        let Some(base) = self.array.row(rank)? else {
            return Ok(None);
        };
        if !element::any_bits::<T>() {
            // SAFETY: mapped, of that many elements; nobody writes in this mode.
            unsafe { element::load_vec::<T>(base, count) }?;
        }
        // SAFETY: mapped, aligned, of that many valid elements; in this mode nobody writes.
        Ok(Some(unsafe {
            std::slice::from_raw_parts(base.cast::<T>(), count)
        }))
    }
}

impl<T: Element> Deref for ReadView<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: in the read mode no rank writes, and the mode cannot end while `self` is
        // borrowed.
        unsafe { self.array.shard() }
    }
}

/// This rank's own shard, writable: made by [`GlobalArray::local`]. Dereferences to a mutable
/// slice.
///
/// Ends when dropped, which is collective: it waits until all ranks have ended theirs.
pub struct LocalView<'a, T: Element> {
    array: &'a mut GlobalArray<T>,
}

impl<T: Element> Deref for LocalView<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: in the local mode only this rank touches its shard, and only through `self`.
        unsafe { self.array.shard() }
    }
}

impl<T: Element> DerefMut for LocalView<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let count = self.array.local_range().len();
        if count == 0 {
            return &mut [];
        }
        let base = self.array.window.base().cast::<T>();
        // SAFETY: mapped, aligned, of that many valid elements; in the local mode only this rank
        // touches its shard, and only through `self`, which is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(base, count) }
    }
}

/// What both views have in common.
macro_rules! view {
    ($view:ident) => {
        impl<T: Element> $view<'_, T> {
            /// The array's length.
            #[must_use]
            pub fn global_len(&self) -> usize {
                self.array.len()
            }

            /// The indices of this rank's own shard.
            #[must_use]
            pub fn local_range(&self) -> Range<usize> {
                self.array.local_range()
            }

            /// Ends the view. Collective: waits until all ranks have ended theirs.
            ///
            /// # Errors
            /// As [`World::barrier`](crate::World::barrier); the array then stays in this mode.
            pub fn close(self) -> Result<()> {
                self.array_of_ended().leave()
            }
        }

        impl<'a, T: Element> $view<'a, T> {
            /// The array, with this view's drop disarmed.
            fn array_of_ended(self) -> &'a mut GlobalArray<T> {
                let this = std::mem::ManuallyDrop::new(self);
                // SAFETY: read once, out of a view that is not dropped.
                unsafe { std::ptr::read(&raw const this.array) }
            }
        }

        impl<T: Element> Drop for $view<'_, T> {
            fn drop(&mut self) {
                // While a panic unwinds the job is ending: others will not come.
                if !std::thread::panicking() {
                    // The mode then stays, and the next operation says why.
                    let _ = self.array.leave();
                }
            }
        }

        impl<T: Element + fmt::Debug> fmt::Debug for $view<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($view)).field(&&**self).finish()
            }
        }
    };
}
view!(ReadView);
view!(LocalView);
