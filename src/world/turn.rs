//! The threads of a rank take turns in collectives.

use crate::error::{Error, ErrorKind, Result};
use crate::wait::Concerned;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whose collective it is, of the threads of this rank.
#[derive(Debug, Default)]
pub(super) struct Turn {
    lock: Mutex<()>,
    /// A number of the thread that has it; 0 for none.
    holder: AtomicUsize,
}

/// The turn, until it is dropped.
pub(crate) struct TurnGuard<'a> {
    holder: &'a AtomicUsize,
    _lock: MutexGuard<'a, ()>,
    _concerned: Concerned,
}

impl Turn {
    /// `concerned` with the ranks that are waited for meanwhile.
    ///
    /// # Errors
    /// If this thread has it already.
    pub(super) fn take(&self, concerned: impl FnOnce() -> Concerned) -> Result<TurnGuard<'_>> {
        let this_thread = self.is_not_mine()?;
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.holder.store(this_thread, Ordering::Relaxed);
        Ok(TurnGuard {
            holder: &self.holder,
            _lock: lock,
            _concerned: concerned(),
        })
    }

    /// A number of this thread.
    ///
    /// # Errors
    /// If this thread has the turn.
    #[inline]
    pub(super) fn is_not_mine(&self) -> Result<usize> {
        thread_local! {
            static HERE: u8 = const { 0 };
        }
        let this_thread = HERE.with(|here| std::ptr::from_ref(here).addr());
        if self.holder.load(Ordering::Relaxed) == this_thread {
            return Err(nested());
        }
        Ok(this_thread)
    }

    /// Whether no thread has it. One that takes it just now has not begun its first meeting, if this
    /// is asked with the lock held in which meetings are.
    #[inline]
    pub(super) fn is_free(&self) -> bool {
        self.holder.load(Ordering::Relaxed) == 0
    }
}

#[cold]
fn nested() -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        "a collective within a collective of the same team, as of an operator",
    )
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        self.holder.store(0, Ordering::Relaxed);
    }
}
