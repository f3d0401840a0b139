//! `SerializedRemoteKey`: a packed key with all that is needed to use it safely.

use super::context::Context;
use super::seal::{self, Kind, Reader};
use crate::element::{self, Element};
use crate::error::{Error, ErrorKind, Result};

/// What memory holds: how many elements, of which type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    count: u64,
    size: u32,
    granule: u32,
    type_hash: u64,
}

impl Shape {
    pub(super) fn of<T: Element>(count: usize) -> Result<Self> {
        let too_large = || Error::new(ErrorKind::NoRoom, "the size in bytes overflows");
        count
            .checked_mul(size_of::<T>())
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(too_large)?;
        Ok(Self {
            count: count as u64,
            size: u32::try_from(size_of::<T>()).map_err(|_| too_large())?,
            granule: u32::try_from(element::granule::<T>()).map_err(|_| too_large())?,
            type_hash: element::type_hash::<T>(),
        })
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Whether the elements are of type `T`.
    pub(super) fn holds<T: Element>(&self) -> bool {
        self.size as usize == size_of::<T>()
            && self.granule as usize == element::granule::<T>()
            && self.type_hash == element::type_hash::<T>()
    }

    pub(super) fn bytes(&self) -> usize {
        // Checked when the shape was made or parsed.
        usize::try_from(self.count * u64::from(self.size)).unwrap_or(usize::MAX)
    }
}

/// A packed key: bytes to send to a peer by any channel, with a header and a checksum. Nothing
/// that was damaged on the way, or that belongs to another job or UCX version, becomes a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SerializedRemoteKey {
    bytes: Vec<u8>,
    job: u128,
    header: Header,
}

/// Fixed little-endian fields in front of the packed rkey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    /// Of the context whose memory it is.
    context: u64,
    owner: u32,
    base: u64,
    mapped_len: u64,
    shape: Shape,
}

const HEADER: usize = 8 + 4 + 8 + 8 + 8 + 4 + 4 + 8;

impl SerializedRemoteKey {
    pub(super) fn new(
        context: &Context,
        base: u64,
        mapped_len: u64,
        shape: &Shape,
        packed: &[u8],
    ) -> Self {
        let header = Header {
            context: context.id(),
            owner: context.rank(),
            base,
            mapped_len,
            shape: *shape,
        };
        Self::with(context.job(), header, packed)
    }

    /// The key to what lies `byte_offset` bytes into this key's memory, which has that much.
    pub(super) fn part(&self, byte_offset: usize, shape: &Shape) -> Self {
        let mut header = self.header;
        header.base += byte_offset as u64;
        header.mapped_len -= byte_offset as u64;
        header.shape = *shape;
        Self::with(self.job, header, self.packed())
    }

    fn with(job: u128, header: Header, packed: &[u8]) -> Self {
        let mut body = Vec::with_capacity(HEADER + packed.len());
        body.extend_from_slice(&header.context.to_le_bytes());
        body.extend_from_slice(&header.owner.to_le_bytes());
        body.extend_from_slice(&header.base.to_le_bytes());
        body.extend_from_slice(&header.mapped_len.to_le_bytes());
        body.extend_from_slice(&header.shape.count.to_le_bytes());
        body.extend_from_slice(&header.shape.size.to_le_bytes());
        body.extend_from_slice(&header.shape.granule.to_le_bytes());
        body.extend_from_slice(&header.shape.type_hash.to_le_bytes());
        body.extend_from_slice(packed);
        Self {
            bytes: seal::seal(Kind::Key, job, &body),
            job,
            header,
        }
    }

    /// The key that [`SerializedRemoteKey::as_bytes`] gave.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidKey`] unless every byte is as it was packed, by the same UCX version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let (job, body) = seal::open(Kind::Key, bytes)?;
        let damaged = || Error::new(ErrorKind::InvalidKey, "not a valid serialized remote key");
        if body.len() < HEADER {
            return Err(damaged());
        }
        let mut fields = Reader(body);
        let header = Header {
            context: fields.u64(),
            owner: fields.u32(),
            base: fields.u64(),
            mapped_len: fields.u64(),
            shape: Shape {
                count: fields.u64(),
                size: fields.u32(),
                granule: fields.u32(),
                type_hash: fields.u64(),
            },
        };
        let bytes_in_all = header.shape.count.checked_mul(header.shape.size.into());
        let fits = bytes_in_all.is_some_and(|len| {
            len <= header.mapped_len && header.base.checked_add(header.mapped_len).is_some()
        });
        if !fits {
            return Err(damaged());
        }
        Ok(Self {
            bytes: bytes.to_vec(),
            job,
            header,
        })
    }

    /// The bytes to send.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Rank of the process whose memory it opens.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.header.owner
    }

    pub(super) fn job(&self) -> u128 {
        self.job
    }

    pub(super) fn context(&self) -> u64 {
        self.header.context
    }

    pub(super) fn base(&self) -> u64 {
        self.header.base
    }

    pub(super) fn mapped_len(&self) -> u64 {
        self.header.mapped_len
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.header.shape
    }

    /// What `ucp_rkey_pack` gave; empty for memory of zero elements.
    pub(super) fn packed(&self) -> &[u8] {
        // Checked when it was made: frame and header are there.
        seal::open(Kind::Key, &self.bytes).map_or(&[], |(_, body)| &body[HEADER..])
    }
}

impl serde::Serialize for SerializedRemoteKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.bytes.serialize(serializer)
    }
}

impl<'de> serde::Deserialize<'de> for SerializedRemoteKey {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = Vec::<u8>::deserialize(deserializer)?;
        Self::from_bytes(&bytes).map_err(serde::de::Error::custom)
    }
}
