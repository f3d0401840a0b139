//! One opaque error for the launcher and for the ranks' side of the wire.

use std::fmt;
use std::io;

use crate::wire::exit;

/// What a fallible call of this crate returns.
pub type Result<T> = std::result::Result<T, Error>;

/// Which step failed; the message says how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Bytes are not a message: truncated, trailing, too large or malformed.
    Decode,
    /// A message or a blob is larger than its limit.
    TooLarge,
    /// A variable of the job's environment is missing or garbled.
    Environment,
    /// The other side turned the connection down.
    Refused,
    /// A deadline passed.
    Timeout,
    /// Another rank failed, or the job is being ended.
    PeerFailed,
    /// The connection is gone, and with it the launcher.
    Closed,
    /// The other side broke the protocol.
    Protocol,
    /// The connection belongs to a process that this one was forked from.
    Forked,
    /// The program cannot be found.
    NotFound,
    /// The program was found and cannot be executed.
    NotExecutable,
    /// A limit of the system is too low for the job.
    Limit,
    /// The job's description makes no sense.
    Usage,
    /// A system call failed.
    Io,
}

/// An error of the launcher or of a rank's control connection.
#[derive(Debug, Clone)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    peer: Option<u32>,
}

impl Error {
    /// An error of `kind`; `message` is lower case, without a full stop.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            peer: None,
        }
    }

    /// A system call that failed; `what` says what it was for.
    pub(crate) fn io(what: impl fmt::Display, error: &io::Error) -> Self {
        Self::new(ErrorKind::Io, format!("{what}: {error}"))
    }

    /// The same error, about rank `peer`.
    #[must_use]
    pub(crate) fn about(mut self, peer: Option<u32>) -> Self {
        self.peer = peer;
        self
    }

    /// Which step failed.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The rank the error is about, if it is about one.
    #[must_use]
    pub fn peer(&self) -> Option<u32> {
        self.peer
    }

    /// What happened, without the rank.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The exit code with which a launcher reports this error; see [`exit`].
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        match self.kind {
            ErrorKind::NotFound => exit::NOT_FOUND,
            ErrorKind::NotExecutable => exit::NOT_EXECUTABLE,
            ErrorKind::Timeout => exit::TIMEOUT,
            _ => exit::LAUNCHER,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.peer {
            Some(rank) => write!(f, "rank {rank}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for Error {}
