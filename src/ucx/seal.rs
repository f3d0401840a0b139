//! The frame around bytes that UCX would trust blindly: a packed key or a worker address.
//!
//! UCX reads both without checks: a truncated or flipped byte kills the process. So they travel
//! in a frame of fixed little-endian layout with an exact length and a CRC-32C over everything
//! before it, and reach UCX only when all of it is right.
//!
//! ```text
//! magic "PGAS" | kind u8 | format u8 | UCX major u8 | UCX minor u8 | job u128 | body length u32 | body | crc32c u32
//! ```

use crate::error::{Error, ErrorKind, Result};

const MAGIC: &[u8; 4] = b"PGAS";
/// Changes with the layout of the frame or of a body.
const FORMAT: u8 = 1;
const HEADER: usize = 4 + 4 + 16 + 4;
const CRC: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Key = b'K',
    Address = b'A',
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Key => "serialized remote key",
            Self::Address => "worker address",
        }
    }
}

/// Frames `body`.
pub(super) fn seal(kind: Kind, job: u128, body: &[u8]) -> Vec<u8> {
    let (major, minor) = ucx_version();
    let mut bytes = Vec::with_capacity(HEADER + body.len() + CRC);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&[kind as u8, FORMAT, major, minor]);
    bytes.extend_from_slice(&job.to_le_bytes());
    let len = u32::try_from(body.len()).unwrap_or(u32::MAX);
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(body);
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

/// The job and the body of a frame, if every byte of it is as [`seal`] wrote it.
///
/// # Errors
/// [`ErrorKind::InvalidKey`] naming what is wrong.
pub(super) fn open(kind: Kind, bytes: &[u8]) -> Result<(u128, &[u8])> {
    let refuse = |what: String| {
        Error::new(
            ErrorKind::InvalidKey,
            format!("not a valid {}: {what}", kind.name()),
        )
    };
    if bytes.len() < HEADER + CRC {
        return Err(refuse(format!("{} bytes are too few", bytes.len())));
    }
    let (sealed, crc) = bytes.split_at(bytes.len() - CRC);
    if crc != crc32c::crc32c(sealed).to_le_bytes() {
        return Err(refuse("its checksum does not match".into()));
    }
    let (header, body) = sealed.split_at(HEADER);
    if &header[..4] != MAGIC || header[4] != kind as u8 {
        return Err(refuse("it is something else".into()));
    }
    if header[5] != FORMAT {
        return Err(refuse(format!("format {}, expected {FORMAT}", header[5])));
    }
    let (major, minor) = ucx_version();
    if (header[6], header[7]) != (major, minor) {
        return Err(refuse(format!(
            "made by UCX {}.{}, this process runs {major}.{minor}",
            header[6], header[7]
        )));
    }
    let mut reader = Reader(&header[8..]);
    let job = reader.u128();
    if reader.u32() as usize != body.len() {
        return Err(refuse("its length does not match".into()));
    }
    Ok((job, body))
}

fn ucx_version() -> (u8, u8) {
    let (major, minor, _) = super::version();
    let byte = |number: u32| u8::try_from(number).unwrap_or(u8::MAX);
    (byte(major), byte(minor))
}

/// Reads fixed little-endian fields off the front of bytes that a checksum vouched for.
/// Missing bytes read as zero; check the length before.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk::<N>() {
            Some((head, rest)) => {
                self.0 = rest;
                *head
            }
            None => [0; N],
        }
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    pub(super) fn u128(&mut self) -> u128 {
        u128::from_le_bytes(self.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_flipped_bit_truncation_and_extension_is_refused() {
        let sealed = seal(Kind::Key, 7, b"a packed key of some thirty bytes");
        let (job, body) = open(Kind::Key, &sealed).unwrap();
        assert_eq!((job, body), (7, &b"a packed key of some thirty bytes"[..]));
        for bit in 0..sealed.len() * 8 {
            let mut bad = sealed.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let error = open(Kind::Key, &bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidKey);
        }
        for len in 0..sealed.len() {
            assert!(open(Kind::Key, &sealed[..len]).is_err());
        }
        for extra in [0, 1, 255] {
            let mut bad = sealed.clone();
            bad.push(extra);
            assert!(open(Kind::Key, &bad).is_err());
        }
        assert!(open(Kind::Address, &sealed).is_err(), "another kind");
    }

    proptest! {
        #[test]
        fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(open(Kind::Key, &bytes).is_err());
        }
    }
}
