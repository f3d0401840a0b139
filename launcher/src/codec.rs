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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{ToLauncher, ToRank};

    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    fn text(state: &mut u64) -> String {
        let length = random(state) % 40;
        (0..length)
            .filter_map(|_| char::from_u32((random(state) % 0x3000) as u32))
            .collect()
    }

    fn blob(state: &mut u64) -> Vec<u8> {
        let length = random(state) % 300;
        (0..length)
            .map(|_| random(state).to_le_bytes()[0])
            .collect()
    }

    fn to_launcher(s: &mut u64) -> ToLauncher {
        let rank = random(s).to_le_bytes()[0].into();
        match random(s) % 5 {
            0 => ToLauncher::Join {
                rank,
                pid: u32::MAX,
                host: text(s),
                identity: blob(s),
            },
            1 => ToLauncher::Gather {
                round: rank,
                blob: blob(s),
            },
            2 => ToLauncher::WhoIsMissing { round: rank },
            3 => ToLauncher::Leave,
            _ => ToLauncher::Failed {
                code: -7,
                message: text(s),
            },
        }
    }

    fn to_rank(s: &mut u64) -> ToRank {
        match random(s) % 5 {
            0 => ToRank::Joined,
            1 => ToRank::Refused { reason: text(s) },
            2 => ToRank::Gathered {
                round: 3,
                blobs: (0..random(s) % 5).map(|_| blob(s)).collect(),
            },
            3 => ToRank::Missing {
                round: 1,
                ranks: vec![0, 7, 300, u32::MAX],
            },
            _ => ToRank::PeerFailed {
                rank: Some(8),
                message: text(s),
            },
        }
    }

    const LIMIT: usize = 1 << 16;

    /// There and back; one byte less or more, or a limit too low, is an error.
    fn round_trip<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T) {
        let bytes = encode(value).unwrap();
        assert_eq!(decode::<T>(&bytes, LIMIT).unwrap(), *value);
        assert_eq!(decode::<T>(&bytes, bytes.len()).unwrap(), *value);
        assert!(decode::<T>(&bytes, bytes.len() - 1).is_err());
        for end in 0..bytes.len() {
            assert!(
                decode::<T>(&bytes[..end], LIMIT).is_err(),
                "{end} of {} bytes",
                bytes.len()
            );
        }
        assert!(decode::<T>(&[&bytes[..], &[0]].concat(), LIMIT).is_err());
    }

    #[test]
    fn messages_survive_and_their_pieces_do_not() {
        let mut state = 42;
        for _ in 0..if cfg!(miri) { 5 } else { 300 } {
            round_trip(&to_launcher(&mut state));
            round_trip(&to_rank(&mut state));
        }
    }

    #[test]
    fn mutations_never_panic() {
        let mut state = 7;
        for _ in 0..if cfg!(miri) { 20 } else { 20_000 } {
            let mut bytes = encode(&to_rank(&mut state)).unwrap();
            for _ in 0..1 + random(&mut state) % 3 {
                let at = random(&mut state) as usize % bytes.len();
                bytes[at] = random(&mut state).to_le_bytes()[0];
            }
            // Either is right: what counts is that it returns.
            let _ = decode::<ToRank>(&bytes, LIMIT);
            let _ = decode::<ToLauncher>(&bytes, LIMIT);
        }
    }

    #[test]
    fn claimed_lengths_are_not_believed() {
        // Variant, then a length of 2^64 - 1, 2^62 or 2^32 - 1, as string, bytes, list.
        for length in [u64::MAX, 1 << 62, u64::from(u32::MAX)] {
            let mut long = vec![253];
            long.extend_from_slice(&length.to_le_bytes());
            assert!(decode::<String>(&long, LIMIT).is_err());
            assert!(decode::<Vec<u8>>(&long, LIMIT).is_err());
            assert!(decode::<Vec<String>>(&long, LIMIT).is_err());
            assert!(decode::<Vec<u64>>(&long, LIMIT).is_err());
            for variant in 0..6 {
                let message = [&[variant, 0][..], &long].concat();
                assert!(decode::<ToRank>(&message, LIMIT).is_err());
                assert!(decode::<ToLauncher>(&[&[variant][..], &long].concat(), LIMIT).is_err());
            }
        }
    }

    #[test]
    fn large_values_fit_their_limit() {
        for size in [0, 255, 256, 10_000, 100_000, 1 << 20, 5 << 20] {
            let numbers: Vec<u64> = (0..size / 8).map(|number| number % 3).collect();
            let bytes = encode(&numbers).unwrap();
            assert_eq!(decode::<Vec<u64>>(&bytes, bytes.len()).unwrap(), numbers);
            let wide = vec![1_u128; usize::try_from(size / 8).unwrap()];
            let bytes = encode(&wide).unwrap();
            assert_eq!(decode::<Vec<u128>>(&bytes, bytes.len()).unwrap(), wide);
            let text = "x".repeat(usize::try_from(size).unwrap());
            let bytes = encode(&text).unwrap();
            assert_eq!(decode::<String>(&bytes, bytes.len()).unwrap(), text);
        }
    }
}
