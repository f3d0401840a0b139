//! Atomic operations on single elements, in an open array and in the mode that has nothing else.

#![expect(unsafe_code, reason = "atomics through mapped pointers")]

use super::modes::{Mode, view};
use super::races::Access;
use super::{ArrayIndex, GlobalArray, Owned, Slot, slowly};
use crate::atomic::{self, AtomicBits, AtomicElement, AtomicNumber, AtomicOp};
use crate::error::{Error, Result};
use crate::world::Call;
use std::fmt;
use std::ops::Range;
use std::panic::Location;

impl<T: AtomicElement, const D: usize> GlobalArray<T, D> {
    /// Only atomic operations, until the view ends: nothing but them touches an element on any
    /// rank, so that there is one order of all operations on an element.
    ///
    /// Collective, and a [barrier](crate::Team::barrier): all that was written before is seen.
    ///
    /// # Errors
    /// As [`GlobalArray::read`].
    #[track_caller]
    pub fn atomics(&mut self) -> Result<AtomicsView<'_, T, D>> {
        self.enter(
            "atomics",
            Call::Atomics,
            0,
            Mode::Atomics(Location::caller()),
        )?;
        Ok(AtomicsView {
            array: self,
            ended: false,
        })
    }

    /// `line` is what the caller may do, see [`GlobalArray::find`]; `always` if the mode allows it.
    ///
    /// What the slow paths get is [`Site`], one word for both, as more would not fit registers.
    #[inline]
    #[track_caller]
    fn fetch_op(
        &self,
        op: AtomicOp,
        index: [usize; D],
        value: T,
        (line, always): (usize, bool),
    ) -> Result<T> {
        let site = site(always);
        match self.find(index, line) {
            Some(at) => {
                // SAFETY: `find` points to a mapped element; T's granule is its size.
                let before = unsafe { atomic::fetch_op_at(op, at, value) };
                self.wrote(index);
                Ok(before)
            }
            None => slowly(|to| self.fetch_op_slowly(op, index, value, site, to)),
        }
    }

    #[cold]
    #[inline(never)]
    fn fetch_op_slowly(
        &self,
        op: AtomicOp,
        index: [usize; D],
        value: T,
        site: Site,
        to: &mut Slot<T>,
    ) -> Option<Error> {
        to.fill(|| {
            let call = op.name();
            if site.is_some() {
                self.mode.check_open(call)?;
            }
            self.in_order(access(call, site), index, || {
                self.reach(
                    call,
                    index,
                    |at| {
                        // SAFETY: a mapped element; T's granule is its size.
                        let before = unsafe { atomic::fetch_op_at(op, at, value) };
                        self.wrote(index);
                        Ok(before)
                    },
                    |rank, offset| self.window.fetch_op(op, rank, offset, value),
                )
            })
        })
    }

    #[inline]
    #[track_caller]
    fn exchange_if(
        &self,
        index: [usize; D],
        current: T,
        new: T,
        (line, always): (usize, bool),
    ) -> Result<T> {
        let site = site(always);
        match self.find(index, line) {
            Some(at) => {
                // SAFETY: `find` points to a mapped element; T's granule is its size.
                let before = unsafe { atomic::compare_exchange_at(at, current, new) };
                self.wrote(index);
                Ok(before)
            }
            None => slowly(|to| self.exchange_if_slowly(index, (current, new), site, to)),
        }
    }

    #[cold]
    #[inline(never)]
    fn exchange_if_slowly(
        &self,
        index: [usize; D],
        (current, new): (T, T),
        site: Site,
        to: &mut Slot<T>,
    ) -> Option<Error> {
        to.fill(|| {
            let call = "compare_exchange";
            if site.is_some() {
                self.mode.check_open(call)?;
            }
            self.in_order(access(call, site), index, || {
                self.reach(
                    call,
                    index,
                    |at| {
                        // SAFETY: a mapped element; T's granule is its size.
                        let before = unsafe { atomic::compare_exchange_at(at, current, new) };
                        self.wrote(index);
                        Ok(before)
                    },
                    |rank, offset| self.window.compare_exchange(rank, offset, current, new),
                )
            })
        })
    }
}

/// Where an operation is called that the array must be open for; None if the mode allows it.
type Site = Option<&'static Location<'static>>;

#[inline]
#[track_caller]
fn site(always: bool) -> Site {
    match always {
        true => None,
        false => Some(Location::caller()),
    }
}

fn access(call: &'static str, site: Site) -> Access {
    // In a mode nothing is noted, so the place does not matter.
    Access::atomic(call, site.unwrap_or(Location::caller()))
}

/// The operations of an array and of its [`AtomicsView`].
macro_rules! operations {
    ($receiver:ty, |$this:ident| $array:expr, $may:expr) => {
        impl<T: AtomicElement, const D: usize> $receiver {
            /// Stores `value` at `index`; returns the value before. Atomic with all other atomic
            /// operations, whoever does them. One-sided; waits.
            ///
            /// # Errors
            /// As [`GlobalArray::get`].
            #[inline]
            #[track_caller]
            #[doc(alias = "ucp_atomic_op_nbx")]
            pub fn swap(&self, index: impl ArrayIndex<D>, value: T) -> Result<T> {
                let $this = self;
                $array.fetch_op(AtomicOp::Swap, index.into_array(), value, $may)
            }

            /// Stores `new` at `index` if the element is `current`, bit by bit; returns the value
            /// before: it was stored if that is `current`. Atomic as a swap. One-sided; waits.
            ///
            /// # Errors
            /// As [`GlobalArray::get`].
            #[inline]
            #[track_caller]
            pub fn compare_exchange(
                &self,
                index: impl ArrayIndex<D>,
                current: T,
                new: T,
            ) -> Result<T> {
                let $this = self;
                $array.exchange_if(index.into_array(), current, new, $may)
            }
        }

        impl<T: AtomicNumber, const D: usize> $receiver {
            operations!(@ |$this| $array, $may,
                fetch_add Add "Adds `value` to the element at `index`; integers wrap around.";
                fetch_sub Sub "Subtracts `value` from the element at `index`; integers wrap around.";
                fetch_min Min "The smaller of `value` and the element at `index`, as [`Op::Min`](crate::Op::Min).";
                fetch_max Max "The larger of `value` and the element at `index`, as [`Op::Max`](crate::Op::Max).";
            );
        }

        impl<T: AtomicBits, const D: usize> $receiver {
            operations!(@ |$this| $array, $may,
                fetch_and And "Bitwise and of `value` and the element at `index`.";
                fetch_or Or "Bitwise or of `value` and the element at `index`.";
                fetch_xor Xor "Bitwise exclusive or of `value` and the element at `index`.";
            );
        }
    };
    (@ |$this:ident| $array:expr, $may:expr, $($name:ident $op:ident $doc:literal;)*) => {$(
        #[doc = $doc]
        ///
        /// Returns the value before. Atomic with all other atomic operations, whoever does them.
        /// One-sided; waits.
        ///
        /// # Errors
        /// As [`GlobalArray::get`].
        #[inline]
        #[track_caller]
        #[doc(alias = "ucp_atomic_op_nbx")]
        pub fn $name(&self, index: impl ArrayIndex<D>, value: T) -> Result<T> {
            let $this = self;
            $array.fetch_op(AtomicOp::$op, index.into_array(), value, $may)
        }
    )*};
}
operations!(GlobalArray<T, D>, |array| array, (array.open, false));
operations!(
    AtomicsView<'_, T, D>,
    |view| view.array,
    (view.array.line(), true)
);

/// An array to which nothing happens but atomic operations: made by [`GlobalArray::atomics`]. May
/// be shared by threads.
///
/// Ends when dropped, which is collective: it waits until all ranks have ended theirs.
pub struct AtomicsView<'a, T: AtomicElement, const D: usize = 1> {
    array: &'a mut GlobalArray<T, D>,
    ended: bool,
}
view!(AtomicsView: AtomicElement);

impl<T: AtomicElement, const D: usize> AtomicsView<'_, T, D> {
    /// The element at `index`. Atomic with all other atomic operations. One-sided; waits.
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    #[inline]
    pub fn load(&self, index: impl ArrayIndex<D>) -> Result<T> {
        let index = index.into_array();
        match self.array.find(index, self.array.line()) {
            // SAFETY: `find` points to a mapped element; T's granule is its size.
            Some(at) => Ok(unsafe { atomic::load_at(at) }),
            None => slowly(|to| self.load_slowly(index, to)),
        }
    }

    #[cold]
    #[inline(never)]
    fn load_slowly(&self, index: [usize; D], to: &mut Slot<T>) -> Option<Error> {
        to.fill(|| {
            self.array.in_order(access("load", None), index, || {
                self.array.reach(
                    "load",
                    index,
                    // SAFETY: a mapped element; T's granule is its size.
                    |at| Ok(unsafe { atomic::load_at(at) }),
                    |rank, offset| self.array.window.load(rank, offset),
                )
            })
        })
    }

    /// Stores `value` at `index`. Atomic with all other atomic operations. One-sided; complete
    /// when it returns.
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    #[inline]
    pub fn store(&self, index: impl ArrayIndex<D>, value: T) -> Result<()> {
        let index = index.into_array();
        match self.array.find(index, self.array.line()) {
            Some(at) => {
                // SAFETY: `find` points to a mapped element; T's granule is its size.
                unsafe { atomic::store_at(at, value) };
                Ok(())
            }
            None => self.swap(index, value).map(drop),
        }
    }
}
