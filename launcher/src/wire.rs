//! What the launcher and its ranks must agree on, each spelled once: names, numbers, messages, frames.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::codec;
use crate::error::{Error, ErrorKind, Result};

/// Version of the handshake and of the messages. Both sides must have the same one.
pub const VERSION: u32 = 2;

/// Names of the variables that the launcher sets for each rank.
pub mod env {
    /// This rank's number, `0..SIZE`.
    pub const RANK: &str = "PGAS_RANK";
    /// Number of ranks in the job.
    pub const SIZE: &str = "PGAS_SIZE";
    /// This rank's number among those on the same machine.
    pub const LOCAL_RANK: &str = "PGAS_LOCAL_RANK";
    /// Number of ranks on this machine.
    pub const LOCAL_SIZE: &str = "PGAS_LOCAL_SIZE";
    /// Where the launcher listens: `unix:@NAME`, a socket in Linux's abstract name space.
    pub const CONTROL: &str = "PGAS_CONTROL";
    /// The job's secret: 32 random bytes in hexadecimal.
    pub const SECRET: &str = "PGAS_SECRET";
    /// The job's identity: 16 random bytes in hexadecimal.
    pub const JOB: &str = "PGAS_JOB";

    /// Set if ranks are to count what they do: [`ToLauncher::Stats`](super::ToLauncher::Stats).
    pub const STATS: &str = "PGAS_STATS";
    /// Set if ranks are to be ready for [`ToRank::Report`](super::ToRank::Report).
    pub const WATCH: &str = "PGAS_WATCH";
    /// Set if the job goes on without ranks that fail: [`ToRank::PeerLost`](super::ToRank::PeerLost).
    pub const KEEP_GOING: &str = "PGAS_KEEP_GOING";
    /// Set if somebody wants to hear what ranks have to say of themselves: [`ToLauncher::Notice`](super::ToLauncher::Notice).
    pub const NOTICES: &str = "PGAS_NOTICES";

    /// Those that every rank has.
    pub const ALL: [&str; 7] = [RANK, SIZE, LOCAL_RANK, LOCAL_SIZE, CONTROL, SECRET, JOB];
}

/// Exit codes of a job. Any other code is the first failing rank's own.
pub mod exit {
    /// Every rank exited with 0, and left the job if it had joined.
    pub const SUCCESS: i32 = 0;
    /// A rank ended with code 0 in the middle of the job, or broke the protocol.
    pub const BROKEN: i32 = 1;
    /// A rank panicked (the code of Rust's own panics).
    pub const PANIC: i32 = 101;
    /// The job's time was up.
    pub const TIMEOUT: i32 = 124;
    /// The launcher itself failed.
    pub const LAUNCHER: i32 = 125;
    /// The program was found and cannot be executed.
    pub const NOT_EXECUTABLE: i32 = 126;
    /// The program cannot be found.
    pub const NOT_FOUND: i32 = 127;
    /// Added to the number of the signal that killed a rank or ended the job.
    pub const SIGNAL: i32 = 128;
}

/// Most bytes that one rank may contribute to a gather.
pub const MAX_BLOB: usize = 1 << 20;
/// Most bytes of a frame to the launcher.
pub const MAX_TO_LAUNCHER: usize = MAX_BLOB + (1 << 12);
/// Most bytes of a frame to a rank, hence of what all ranks contribute to a gather together.
pub const MAX_TO_RANK: usize = 1 << 28;
/// Most bytes of text in a message; longer text is cut.
pub const MAX_TEXT: usize = 1 << 14;

/// What a rank says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ToLauncher {
    /// First message after the handshake; answered by [`ToRank::Joined`] or [`ToRank::Refused`].
    Join {
        /// The rank, as in the handshake.
        rank: u32,
        /// Its process.
        pid: u32,
        /// Its machine's name, for people.
        host: String,
        /// Its machine's identity, for comparison: equal for ranks that can share memory.
        #[serde(with = "bytes")]
        identity: Vec<u8>,
    },
    /// My contribution to gather number `round`.
    Gather {
        /// Counts the gathers of the job from 0.
        round: u32,
        /// At most [`MAX_BLOB`] bytes.
        #[serde(with = "bytes")]
        blob: Vec<u8>,
    },
    /// Who has not contributed to gather `round`? Answered by [`ToRank::Missing`].
    WhoIsMissing {
        /// The gather in question.
        round: u32,
    },
    /// I am done, and will exit with 0 after [`ToRank::Goodbye`].
    Leave,
    /// I have failed, and am about to exit.
    Failed {
        /// Exit code for the job.
        code: i32,
        /// Why, in one line.
        message: String,
    },
    /// The answer to [`ToRank::Report`].
    Doing {
        /// What this rank is doing, in one line.
        what: String,
    },
    /// What I have done, in all; before [`ToLauncher::Leave`].
    Stats(RankStats),
    /// For the curious.
    Notice {
        /// What, in one line.
        text: String,
    },
}

/// What a rank has done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankStats {
    /// With each rank that it has had to do with, ascending.
    pub traffic: Vec<Traffic>,
    /// Time in waits for other ranks, of all threads together. Waits of less than a microsecond or so do not count.
    pub waited: std::time::Duration,
}

/// What a rank has done with the memory of another or its own, and messages that it has sent there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// The other rank.
    pub rank: u32,
    /// How many operations; each element of a batch is one, and each section with elements there.
    pub operations: u64,
    /// Bytes moved, either way.
    pub bytes: u64,
}

/// What the launcher says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ToRank {
    /// You are in.
    Joined,
    /// You are not; the connection closes.
    Refused {
        /// Why, in one line.
        reason: String,
    },
    /// All ranks' contributions, by rank.
    Gathered {
        /// The gather's number.
        round: u32,
        /// One for each rank.
        #[serde(with = "byte_lists")]
        blobs: Vec<Vec<u8>>,
    },
    /// Ranks that have not contributed to a gather.
    Missing {
        /// The gather's number.
        round: u32,
        /// Ascending.
        ranks: Vec<u32>,
    },
    /// The job has failed and is being ended.
    PeerFailed {
        /// The first rank to fail, if it was a rank.
        rank: Option<u32>,
        /// Why, in one line.
        message: String,
    },
    /// All ranks have left: exit.
    Goodbye,
    /// A rank has failed, and the job goes on without it.
    PeerLost {
        /// The rank.
        rank: u32,
        /// Why, in one line.
        message: String,
    },
    /// What are you doing? Answered by [`ToLauncher::Doing`].
    Report,
}

/// `text` in at most [`MAX_TEXT`] bytes.
#[must_use]
pub fn clip(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        let end = (0..=MAX_TEXT).rev().find(|&i| text.is_char_boundary(i));
        text.truncate(end.unwrap_or(0));
    }
    text
}

/// A message as it travels: its length in four little-endian bytes, then its bytes. Cheap to clone.
///
/// # Errors
/// If the message is longer than `limit`.
pub fn frame<T: Serialize>(message: &T, limit: usize) -> Result<Arc<[u8]>> {
    let body = codec::encode(message)?;
    let length = u32::try_from(body.len())
        .ok()
        .filter(|_| body.len() <= limit);
    let length = length.ok_or_else(|| {
        Error::new(
            ErrorKind::TooLarge,
            format!("message of {} bytes, at most {limit} allowed", body.len()),
        )
    })?;
    let mut bytes = Vec::with_capacity(body.len() + 4);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&body);
    Ok(bytes.into())
}

/// Bytes received so far, cut into frames. Holds no more than one frame and one read beyond it.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
}

impl Frames {
    /// Adds what a read returned.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message of at most `limit` bytes, if all of it has arrived.
    ///
    /// # Errors
    /// If the frame claims more than `limit` bytes, as soon as it does, or if it is no `T`.
    pub fn next<T: serde::de::DeserializeOwned>(&mut self, limit: usize) -> Result<Option<T>> {
        let Some(length) = self.whole(limit)? else {
            return Ok(None);
        };
        let message = codec::decode(&self.bytes[4..length + 4], limit)?;
        self.bytes.drain(..length + 4);
        Ok(Some(message))
    }

    /// As [`next`](Self::next), but the frame as it is, with its length in front.
    ///
    /// # Errors
    /// If the frame claims more than `limit` bytes.
    pub fn next_frame(&mut self, limit: usize) -> Result<Option<Arc<[u8]>>> {
        let Some(length) = self.whole(limit)? else {
            return Ok(None);
        };
        let frame = Arc::from(&self.bytes[..length + 4]);
        self.bytes.drain(..length + 4);
        Ok(Some(frame))
    }

    /// The length of the next frame's body, if all of it has arrived.
    fn whole(&self, limit: usize) -> Result<Option<usize>> {
        let Some((head, rest)) = self.bytes.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_le_bytes(*head)).unwrap_or(usize::MAX);
        if length > limit {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("frame of {length} bytes, at most {limit} allowed"),
            ));
        }
        Ok((rest.len() >= length).then_some(length))
    }
}

/// Lower-case hexadecimal.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Exactly `N` bytes from `2 * N` hexadecimal digits.
#[must_use]
pub fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let text = text.as_bytes();
    if text.len() != 2 * N {
        return None;
    }
    let digit = |byte: u8| {
        char::from(byte)
            .to_digit(16)
            .and_then(|d| u8::try_from(d).ok())
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// Byte strings as such: one copy each, where a sequence would visit every byte.
pub(crate) mod bytes {
    use serde::{Deserializer, Serializer, de::Visitor};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u8>, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Vec<u8>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }
        }
        // Borrowed from the frame: a claimed length is checked against it before anything is allocated.
        d.deserialize_bytes(Bytes)
    }
}

mod byte_lists {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize)]
    struct Lent<'a>(#[serde(serialize_with = "super::bytes::serialize")] &'a [u8]);

    #[derive(Deserialize)]
    struct Owned(#[serde(deserialize_with = "super::bytes::deserialize")] Vec<u8>);

    pub(super) fn serialize<S: Serializer>(lists: &[Vec<u8>], s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(lists.iter().map(|list| Lent(list)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<Vec<u8>>, D::Error> {
        let lists = Vec::<Owned>::deserialize(d)?;
        Ok(lists.into_iter().map(|list| list.0).collect())
    }
}
