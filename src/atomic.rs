//! `AtomicElement`: integers that other ranks may change atomically, and the processor's atomics
//! on mapped shared memory.

#![expect(unsafe_code, reason = "atomics through pointers to shared memory")]

use crate::element::Element;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

/// Integers that can be changed atomically in another rank's memory: `i32`, `u32`, `i64`, `u64`,
/// `isize`, `usize`.
///
/// UCX has atomics for operands of 4 and 8 bytes only; other types do not compile.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no atomic operations",
    note = "atomic operations exist for `i32`, `u32`, `i64`, `u64`, `isize` and `usize`"
)]
pub trait AtomicElement: Element + Eq + sealed::Atomic {}

pub(crate) mod sealed {
    /// What the atomic code needs to know about an integer; lossless in both directions.
    pub trait Atomic: Copy {
        /// The bits, zero-extended.
        fn to_bits(self) -> u64;
        /// The low bits.
        fn from_bits(bits: u64) -> Self;
    }
}

macro_rules! atomic_element {
    ($($int:ty as $unsigned:ty),*) => {$(
        impl AtomicElement for $int {}
        impl sealed::Atomic for $int {
            #[inline]
            #[expect(clippy::allow_attributes, reason = "not every expansion casts with loss")]
            #[allow(clippy::cast_sign_loss, clippy::cast_lossless, trivial_numeric_casts, reason = "bits, not values")]
            fn to_bits(self) -> u64 {
                self as $unsigned as u64
            }
            #[inline]
            #[expect(clippy::allow_attributes, reason = "not every expansion casts with loss")]
            #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, trivial_numeric_casts, reason = "bits, not values")]
            fn from_bits(bits: u64) -> Self {
                bits as $unsigned as $int
            }
        }
    )*};
}
atomic_element!(
    i32 as u32,
    u32 as u32,
    i64 as u64,
    u64 as u64,
    isize as usize,
    usize as usize
);

/// The atomic operations that UCX has, all returning the value before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicOp {
    Add,
    And,
    Or,
    Xor,
    Swap,
}

/// An atomic operation by the processor; returns the value before.
///
/// # Safety
/// `at` points to a `T` in mapped shared memory, aligned, accessed by atomics of its size only.
#[inline]
pub(crate) unsafe fn fetch_op_at<T: AtomicElement>(op: AtomicOp, at: *mut u8, value: T) -> T {
    let bits = value.to_bits();
    macro_rules! apply {
        ($atomic:ident, $bits:expr) => {
            match op {
                AtomicOp::Add => $atomic.fetch_add($bits, SeqCst),
                AtomicOp::And => $atomic.fetch_and($bits, SeqCst),
                AtomicOp::Or => $atomic.fetch_or($bits, SeqCst),
                AtomicOp::Xor => $atomic.fetch_xor($bits, SeqCst),
                AtomicOp::Swap => $atomic.swap($bits, SeqCst),
            }
        };
    }
    if size_of::<T>() == 8 {
        // SAFETY: by the caller.
        let word = unsafe { AtomicU64::from_ptr(at.cast()) };
        T::from_bits(apply!(word, bits))
    } else {
        // SAFETY: by the caller; AtomicElement has only 4 and 8 bytes.
        let word = unsafe { AtomicU32::from_ptr(at.cast()) };
        T::from_bits(apply!(word, low_half(bits)).into())
    }
}

/// Compare and exchange by the processor; returns the value before.
///
/// # Safety
/// As for [`fetch_op_at`].
#[inline]
pub(crate) unsafe fn compare_exchange_at<T: AtomicElement>(at: *mut u8, current: T, new: T) -> T {
    let (current, new) = (current.to_bits(), new.to_bits());
    if size_of::<T>() == 8 {
        // SAFETY: by the caller.
        let word = unsafe { AtomicU64::from_ptr(at.cast()) };
        let (Ok(before) | Err(before)) = word.compare_exchange(current, new, SeqCst, SeqCst);
        T::from_bits(before)
    } else {
        // SAFETY: by the caller; AtomicElement has only 4 and 8 bytes.
        let word = unsafe { AtomicU32::from_ptr(at.cast()) };
        let (Ok(before) | Err(before)) =
            word.compare_exchange(low_half(current), low_half(new), SeqCst, SeqCst);
        T::from_bits(before.into())
    }
}

#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the upper half is zero: to_bits of 4 bytes"
)]
fn low_half(bits: u64) -> u32 {
    bits as u32
}
