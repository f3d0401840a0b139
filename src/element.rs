//! `Element`: the types whose bytes another process may read and write, and how they are copied.
//!
//! Shared memory is written by other processes while we read it. Rust calls a plain access to
//! such memory a data race, so every access here is one of two kinds: relaxed atomics of the
//! element's [granule](granule), or, for bulk copies, an assembly call the compiler cannot see into.

#![expect(
    unsafe_code,
    reason = "the copies between private and shared memory, each fenced here"
)]

use crate::error::{Error, ErrorKind, Result};
use bytemuck::{CheckedBitPattern, NoUninit};
use std::any::TypeId;
use std::mem::{MaybeUninit, align_of, size_of};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// A type that may live in a [`GlobalArray`](crate::GlobalArray) or a remote key's memory.
///
/// Implemented for every `T: bytemuck::NoUninit + CheckedBitPattern + Send + Sync + 'static`:
/// integers, floats, `bool`, `char`, arrays of them, and your own `#[repr(C)]` structs and
/// field-less enums through bytemuck's derives. No padding leaves a process, and bytes that
/// arrive are checked where not every pattern is a value (`bool`, `char`, enums).
///
/// Not implemented for tuples, `Option`, references, `String`, or anything with padding: those
/// do not compile.
///
/// # Tearing
/// An element is read and written in granules of `min(align_of::<T>(), 8)` bytes. Each granule
/// is old or new, never mixed; a larger element that is read while it is written may be a mix
/// of old and new granules. Bulk operations (ranges) may tear anywhere.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an element of a distributed array",
    note = "elements must be plain data without padding: `bytemuck::NoUninit + CheckedBitPattern + Send + Sync`"
)]
pub trait Element: NoUninit + CheckedBitPattern + Send + Sync + 'static {}

impl<T: NoUninit + CheckedBitPattern + Send + Sync + 'static> Element for T {}

/// Bytes that are copied as one: the largest power of two that divides every address of a `T`,
/// at most 8.
#[must_use]
pub(crate) const fn granule<T>() -> usize {
    if align_of::<T>() < 8 {
        align_of::<T>()
    } else {
        8
    }
}

/// FNV-1a of the type's name, size and alignment: tells `u64` from `f64`. Equal in all binaries,
/// unlike `TypeId`. Types of one name, as two blocks of a function may have, are told apart only
/// by the rest.
pub(crate) fn type_hash<T>() -> u64 {
    let layout = [size_of::<T>(), align_of::<T>()].map(|number| number as u64);
    let layout = layout.into_iter().flat_map(u64::to_le_bytes);
    std::any::type_name::<T>()
        .bytes()
        .chain(layout)
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
}

/// Whether every bit pattern is a `T`, so that nothing need be checked. A constant after
/// optimisation: bytemuck's blanket implementation makes `Bits = T` for such types.
#[inline]
pub(crate) fn any_bits<T: Element>() -> bool {
    TypeId::of::<T>() == TypeId::of::<T::Bits>()
}

#[cold]
#[inline(never)]
pub(crate) fn invalid_value<T>() -> Error {
    Error::new(
        ErrorKind::InvalidValue,
        format!(
            "the bytes read are not a valid {}",
            std::any::type_name::<T>()
        ),
    )
}

/// `bits` as a `T`, if they are one.
#[inline]
pub(crate) fn from_bits<T: Element>(bits: T::Bits) -> Result<T> {
    if T::is_valid_bit_pattern(&bits) {
        // SAFETY: CheckedBitPattern: same layout, and the pattern was just found valid.
        Ok(unsafe { std::mem::transmute_copy::<T::Bits, T>(&bits) })
    } else {
        Err(invalid_value::<T>())
    }
}

/// The value of zero bytes, if they are one.
pub(crate) fn zeroed<T: Element>() -> Result<T> {
    from_bits(bytemuck::Zeroable::zeroed())
}

/// `bits` as values, without a copy, if each is one.
pub(crate) fn vec_from_bits<T: Element>(bits: Vec<T::Bits>) -> Result<Vec<T>> {
    if !any_bits::<T>() && !bits.iter().all(T::is_valid_bit_pattern) {
        return Err(invalid_value::<T>());
    }
    let mut bits = std::mem::ManuallyDrop::new(bits);
    // SAFETY: CheckedBitPattern: T and T::Bits have the same layout, so the allocation is one of
    // a Vec<T> too; every element was found valid; ManuallyDrop gives up the other owner.
    Ok(unsafe { Vec::from_raw_parts(bits.as_mut_ptr().cast::<T>(), bits.len(), bits.capacity()) })
}

/// The bits of values, without a copy.
fn vec_into_bits<T: Element>(values: Vec<T>) -> Vec<T::Bits> {
    let mut values = std::mem::ManuallyDrop::new(values);
    let (len, capacity) = (values.len(), values.capacity());
    // SAFETY: as in `vec_from_bits`; a value has no uninitialised byte, and Bits accepts any.
    unsafe { Vec::from_raw_parts(values.as_mut_ptr().cast::<T::Bits>(), len, capacity) }
}

/// Reads one element from shared memory, granule by granule.
///
/// # Safety
/// `from` is aligned for `T` and readable for `size_of::<T>()` bytes that are initialised and
/// only ever accessed through this file, UCX or other processes' equivalents.
#[inline]
pub(crate) unsafe fn load<T: Element>(from: *const u8) -> Result<T> {
    // SAFETY: passed on.
    from_bits(unsafe { load_bits::<T>(from) })
}

/// As [`load`], whether they are a value or not.
///
/// # Safety
/// As for [`load`].
#[inline]
pub(crate) unsafe fn load_bits<T: Element>(from: *const u8) -> T::Bits {
    let mut bits = MaybeUninit::<T::Bits>::uninit();
    // SAFETY: passed on; `bits` has T's layout.
    unsafe {
        load_bytes(
            bits.as_mut_ptr().cast(),
            from,
            size_of::<T>(),
            granule::<T>(),
        )
    };
    // SAFETY: all size_of::<T>() bytes were written; Bits accepts any initialised bytes.
    unsafe { bits.assume_init() }
}

/// The values as bits, to be written, if all bits are values.
pub(crate) fn bits_mut<T: Element>(values: &mut [T]) -> Option<&mut [T::Bits]> {
    if !any_bits::<T>() {
        return None;
    }
    let (pointer, len) = (values.as_mut_ptr().cast::<T::Bits>(), values.len());
    // SAFETY: T::Bits is T, as just seen; the borrow is passed on.
    Some(unsafe { std::slice::from_raw_parts_mut(pointer, len) })
}

/// The bytes as values, in place, if all bits are values and they are aligned.
pub(crate) fn view<T: Element>(bytes: &[u8]) -> Option<&[T]> {
    let fits =
        bytes.as_ptr().cast::<T>().is_aligned() && bytes.len().is_multiple_of(size_of::<T>());
    if !any_bits::<T>() || !fits {
        return None;
    }
    let (pointer, len) = (bytes.as_ptr().cast::<T>(), bytes.len() / size_of::<T>());
    // SAFETY: aligned, so many bytes, and any bytes are a T; the borrow is passed on.
    Some(unsafe { std::slice::from_raw_parts(pointer, len) })
}

/// As [`view`], to be written.
pub(crate) fn view_mut<T: Element>(bytes: &mut [u8]) -> Option<&mut [T]> {
    let len = view::<T>(bytes)?.len();
    let pointer = bytes.as_mut_ptr().cast::<T>();
    // SAFETY: as for `view`; T: NoUninit, so what is written is bytes.
    Some(unsafe { std::slice::from_raw_parts_mut(pointer, len) })
}

/// The values' bytes, to be written, if any bytes are values.
pub(crate) fn bytes_mut<T: Element>(values: &mut [T]) -> Option<&mut [u8]> {
    let bits = bits_mut(values)?;
    let (pointer, len) = (bits.as_mut_ptr().cast::<u8>(), size_of_val(bits));
    // SAFETY: T: NoUninit, so all bytes are initialised, and Bits accept any; the borrow is passed on.
    Some(unsafe { std::slice::from_raw_parts_mut(pointer, len) })
}

/// Lets `write` write the bits of all `values`. They are unchanged if it fails, or if what it
/// wrote are no values, unless any bits are.
pub(crate) fn fill_with<T: Element>(
    values: &mut [T],
    write: impl FnOnce(&mut [T::Bits]) -> Result<()>,
) -> Result<()> {
    if let Some(bits) = bits_mut(values) {
        return write(bits);
    }
    let mut bits = bytemuck::allocation::zeroed_vec(values.len());
    write(&mut bits)?;
    values.copy_from_slice(&vec_from_bits(bits)?);
    Ok(())
}

/// Bits that are on their way to become values.
pub(crate) struct Arriving<T: Element>(Vec<T::Bits>);

// SAFETY: owned plain data: bits of any pattern, with nothing that belongs to a thread.
unsafe impl<T: Element> Send for Arriving<T> {}

impl<T: Element> Arriving<T> {
    pub(crate) fn with_bytes(bytes: usize) -> Self {
        Self(bytemuck::allocation::zeroed_vec(bytes / size_of::<T>()))
    }

    /// In the memory of `buffer`, as far as that goes.
    pub(crate) fn in_buffer(buffer: Vec<T>, bytes: usize) -> Self {
        if buffer.capacity() == 0 {
            return Self::with_bytes(bytes);
        }
        let mut bits = vec_into_bits(buffer);
        bits.resize(bytes / size_of::<T>(), bytemuck::Zeroable::zeroed());
        Self(bits)
    }

    /// Writes bytes from byte `at` on.
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        write_bytes(&mut self.0, at, bytes);
    }

    /// All of them.
    pub(crate) fn bits(&mut self) -> &mut [T::Bits] {
        &mut self.0
    }

    pub(crate) fn into_values(self) -> Result<Vec<T>> {
        vec_from_bits(self.0)
    }
}

/// Writes bytes over those of `bits` from byte `at` on.
///
/// # Panics
/// If there are not so many.
pub(crate) fn write_bytes<B: bytemuck::AnyBitPattern>(bits: &mut [B], at: usize, bytes: &[u8]) {
    assert!(at <= size_of_val(bits) && bytes.len() <= size_of_val(bits) - at);
    let to = bits.as_mut_ptr().cast::<u8>().wrapping_add(at);
    // SAFETY: inside `bits`, as just seen, which accept any bytes; a borrow cannot overlap it.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}

/// Reads a run of elements from shared memory into `to`, whether they are values or not.
///
/// # Safety
/// As for [`load`], for `to.len()` elements.
#[inline]
pub(crate) unsafe fn load_bits_slice<T: Element>(to: &mut [T::Bits], from: *const u8) {
    // SAFETY: both sides hold so many bytes, by the caller; Bits accepts any.
    unsafe { copy(to.as_mut_ptr().cast(), from, size_of_val(to)) };
}

/// Writes one element to shared memory, granule by granule.
///
/// # Safety
/// As for [`load`], and writable.
#[inline]
pub(crate) unsafe fn store<T: Element>(to: *mut u8, value: T) {
    let from = (&raw const value).cast();
    // SAFETY: passed on; `value` is NoUninit, so every byte is initialised.
    unsafe { store_bytes(to, from, size_of::<T>(), granule::<T>()) };
}

/// Reads one element of any type from shared memory into private memory, granule by granule.
///
/// # Safety
/// As for [`load`], for an element of that size and [granule]; `to` is private memory of
/// that size, however aligned.
#[inline]
pub(crate) unsafe fn load_bytes(to: *mut u8, from: *const u8, size: usize, granule: usize) {
    macro_rules! copy {
        ($atomic:ty, $word:ty) => {
            for k in 0..size / size_of::<$word>() {
                // SAFETY: the k-th granule of the element: in bounds and aligned, by the caller.
                let word = unsafe { from.cast::<$word>().cast_mut().add(k) };
                // SAFETY: see above; all concurrent accesses are atomic.
                let value = unsafe { <$atomic>::from_ptr(word) }.load(Relaxed);
                // SAFETY: inside the private memory, by the caller.
                let to = unsafe { to.cast::<$word>().add(k) };
                // SAFETY: as above.
                unsafe { to.write_unaligned(value) };
            }
        };
    }
    match granule {
        8 => copy!(AtomicU64, u64),
        4 => copy!(AtomicU32, u32),
        2 => copy!(AtomicU16, u16),
        _ => copy!(AtomicU8, u8),
    }
}

/// Writes one element of any type from private memory to shared memory, granule by granule.
///
/// # Safety
/// As for [`load_bytes`], with `from` private and `to` shared, writable memory.
#[inline]
pub(crate) unsafe fn store_bytes(to: *mut u8, from: *const u8, size: usize, granule: usize) {
    macro_rules! copy {
        ($atomic:ty, $word:ty) => {
            for k in 0..size / size_of::<$word>() {
                // SAFETY: inside the private memory, by the caller.
                let from = unsafe { from.cast::<$word>().add(k) };
                // SAFETY: as above.
                let value = unsafe { from.read_unaligned() };
                // SAFETY: the k-th granule of the element: in bounds and aligned, by the caller.
                let word = unsafe { to.cast::<$word>().add(k) };
                // SAFETY: see above; all concurrent accesses are atomic.
                unsafe { <$atomic>::from_ptr(word) }.store(value, Relaxed);
            }
        };
    }
    match granule {
        8 => copy!(AtomicU64, u64),
        4 => copy!(AtomicU32, u32),
        2 => copy!(AtomicU16, u16),
        _ => copy!(AtomicU8, u8),
    }
}

/// Copies bytes between private and shared memory at the speed of `memcpy`.
///
/// The call hides in assembly: to the compiler it is an unknown access, as a system call is, so
/// a concurrent writer makes bytes old or new but is not undefined behaviour.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes, they do not overlap, and whichever side
/// is shared memory is only ever accessed as in [`load`].
#[inline]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: memcpy by the C ABI, arguments valid by the caller; all call-clobbered registers
    // are declared, and without `nostack` the stack is aligned for a call.
    unsafe {
        std::arch::asm!(
            "call {memcpy}",
            memcpy = in(reg) libc::memcpy as *const () as usize,
            inlateout("rdi") to => _,
            inlateout("rsi") from => _,
            inlateout("rdx") len => _,
            clobber_abi("C"),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!(
            "blr {memcpy}",
            memcpy = in(reg) libc::memcpy as *const () as usize,
            inlateout("x0") to => _,
            inlateout("x1") from => _,
            inlateout("x2") len => _,
            clobber_abi("C"),
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    // SAFETY: in bounds by the caller. A volatile function pointer keeps the compiler from
    // knowing what is called.
    unsafe {
        let memcpy: unsafe extern "C" fn(
            *mut libc::c_void,
            *const libc::c_void,
            usize,
        ) -> *mut libc::c_void = std::hint::black_box(libc::memcpy);
        memcpy(to.cast(), from.cast(), len);
    }
}

/// Reads a run of elements from shared memory into `to`, which is written only if all are valid.
///
/// # Safety
/// As for [`load`], for `to.len()` elements.
#[inline]
pub(crate) unsafe fn load_slice<T: Element>(to: &mut [T], from: *const u8) -> Result<()> {
    if any_bits::<T>() {
        // SAFETY: both sides hold size_of_val(to) bytes; any bytes are valid elements of `to`,
        // which is private.
        unsafe { copy(to.as_mut_ptr().cast(), from, size_of_val(to)) };
        return Ok(());
    }
    // SAFETY: passed on.
    let values: Vec<T> = unsafe { load_vec(from, to.len()) }?;
    to.copy_from_slice(&values);
    Ok(())
}

/// Reads `count` elements from shared memory.
///
/// # Safety
/// As for [`load`], for `count` elements.
pub(crate) unsafe fn load_vec<T: Element>(from: *const u8, count: usize) -> Result<Vec<T>> {
    let mut bits = Vec::<T::Bits>::with_capacity(count);
    // SAFETY: both sides hold `count` elements; the new allocation is private.
    unsafe { copy(bits.as_mut_ptr().cast(), from, count * size_of::<T>()) };
    // SAFETY: all bytes were just written, and Bits accepts any bytes.
    unsafe { bits.set_len(count) };
    vec_from_bits(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, NoUninit, CheckedBitPattern)]
    #[repr(u8)]
    enum Cell {
        Dead = 0,
        Alive = 1,
    }

    #[derive(Clone, Copy, Debug, PartialEq, NoUninit, CheckedBitPattern)]
    #[repr(C)]
    struct Particle {
        position: [f32; 3],
        charged: u32,
    }

    fn round_trip<T: Element + PartialEq + std::fmt::Debug>(value: T) {
        let mut memory = vec![0_u64; size_of::<T>().div_ceil(8) + 1];
        let base = memory.as_mut_ptr().cast::<u8>();
        // SAFETY: the vector is aligned to 8 and long enough; types here need no more.
        unsafe { store(base, value) };
        // SAFETY: as above.
        assert_eq!(unsafe { load::<T>(base) }.unwrap(), value);
    }

    #[test]
    fn elements_survive_a_round_trip() {
        round_trip(7_u8);
        round_trip(-7_i16);
        round_trip(true);
        round_trip('ß');
        round_trip(1.5_f64);
        round_trip([1_u8, 2, 3]);
        round_trip([1.0_f32, 2.0, 3.0]);
        round_trip(Cell::Alive);
        round_trip(Particle {
            position: [1.0, 2.0, 3.0],
            charged: 9,
        });
    }

    #[test]
    fn bytes_that_are_no_value_are_an_error() {
        let memory = [2_u64];
        let base = memory.as_ptr().cast::<u8>();
        // SAFETY: eight readable, aligned bytes.
        let cell = unsafe { load::<Cell>(base) };
        assert_eq!(cell.unwrap_err().kind(), ErrorKind::InvalidValue);
        // SAFETY: as above.
        let flag = unsafe { load::<bool>(base) };
        assert_eq!(flag.unwrap_err().kind(), ErrorKind::InvalidValue);
        let mut cells = [Cell::Dead; 8];
        // SAFETY: as above.
        let all = unsafe { load_slice(&mut cells, base) };
        assert!(all.is_err());
        assert_eq!(cells, [Cell::Dead; 8], "untouched on error");
    }

    #[test]
    fn only_types_with_invalid_patterns_are_checked() {
        assert!(any_bits::<f64>() && any_bits::<[f32; 3]>() && any_bits::<u128>());
        assert!(!any_bits::<bool>() && !any_bits::<char>() && !any_bits::<Particle>());
    }

    #[test]
    fn bulk_copies_of_every_length() {
        let from: Vec<u8> = (0..=255).cycle().take(5000).collect();
        for len in (0..200).chain([1000, 4096, 4999]) {
            let mut to = vec![0_u8; 5000];
            // SAFETY: both vectors are longer than `len`.
            unsafe { copy(to.as_mut_ptr(), from.as_ptr(), len) };
            assert_eq!(to[..len], from[..len]);
            assert!(to[len..].iter().all(|&byte| byte == 0));
        }
    }
}
