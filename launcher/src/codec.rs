//! The only place that names bincode: values to bytes and back, with a limit.
//!
//! Both functions use bincode's standard configuration (little-endian, variable-length integers). Changing the
//! format is a change of this file and of [`wire::VERSION`](crate::wire::VERSION).

use bincode::config;
use serde::{Serialize, de::DeserializeOwned};

use crate::error::{Error, ErrorKind, Result};

/// The bytes of `value`.
///
/// # Errors
/// If `value`'s own `Serialize` fails.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>> {
    bincode::serde::encode_to_vec(value, config::standard())
        .map_err(|e| Error::new(ErrorKind::Decode, format!("cannot encode: {e}")))
}

/// The value in `bytes`, which must be all of it.
///
/// Hostile bytes give an error: nothing panics, and what is allocated is bounded by a small multiple of
/// `bytes.len()`, whatever lengths the bytes claim. (`T` must not hold sequences of zero-sized elements: their length
/// costs no bytes.)
///
/// # Errors
/// If there are more than `limit` bytes, if they are no `T`, or if some are left over.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], limit: usize) -> Result<T> {
    if bytes.len() > limit {
        return Err(Error::new(
            ErrorKind::TooLarge,
            format!("{} bytes, at most {limit} allowed", bytes.len()),
        ));
    }
    // bincode charges an integer's full width against its limit, however few bytes it took, and allocates a string
    // or byte buffer at once if the limit allows it. So the limit follows the input: at least 16 times (a u128 in
    // one byte), at most 1024 times.
    let (value, used) = match bytes.len() {
        0..=0xff => read::<T, { 1 << 12 }>(bytes),
        0x100..=0x3fff => read::<T, { 1 << 18 }>(bytes),
        0x4000..=0xf_ffff => read::<T, { 1 << 24 }>(bytes),
        0x10_0000..=0x3ff_ffff => read::<T, { 1 << 30 }>(bytes),
        _ => read::<T, { 1 << 40 }>(bytes),
    }?;
    if used != bytes.len() {
        return Err(Error::new(
            ErrorKind::Decode,
            format!("{} bytes left over after {used}", bytes.len() - used),
        ));
    }
    Ok(value)
}

fn read<T: DeserializeOwned, const LIMIT: usize>(bytes: &[u8]) -> Result<(T, usize)> {
    bincode::serde::borrow_decode_from_slice(bytes, config::standard().with_limit::<LIMIT>())
        .map_err(|e| Error::new(ErrorKind::Decode, format!("cannot decode: {e}")))
}
