//! One error type for everything, and the one place where errors are built.

use crate::ucx::Status;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Result of every fallible function of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Whether any UCX call of this process has failed: often the first that is seen of a peer's death.
static UCX_FAILED: AtomicBool = AtomicBool::new(false);

pub(crate) fn ucx_has_failed() -> bool {
    UCX_FAILED.load(Ordering::Relaxed)
}

/// What went wrong, with the call, the rank and the cause in its message.
///
/// `Display` and `Debug` both print the whole message, so an `Err` returned from `main` is readable.
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    peer: Option<usize>,
    status: Option<Status>,
    message: String,
}

/// The classes of failure a program may want to tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A UCX call failed; see [`Error::status`].
    Ucx,
    /// An index, offset or range lies outside the array or the key's memory.
    OutOfBounds,
    /// The operation is not allowed in the access mode the array is in.
    WrongMode,
    /// Other ranks did not come within the time limit.
    Timeout,
    /// A rank of this job died, failed or aborted; see [`Error::peer`].
    PeerFailed,
    /// The ranks called different collectives, or the same with different sizes or types.
    Mismatch,
    /// Two ranks reached one element with nothing to say which is first; see
    /// [`Checks`](crate::Checks#races).
    Race,
    /// There is too little memory or shared memory for what was asked.
    NoRoom,
    /// A serialized key or address is damaged, of another version, or of another job.
    InvalidKey,
    /// The element type does not fit the memory it is used on.
    WrongElement,
    /// Bytes that arrived are not a valid value of the element type.
    InvalidValue,
    /// The key, endpoint or world was closed before.
    Closed,
    /// The process was forked after start; only its parent may communicate.
    Forked,
    /// The launcher could not be reached, refused this process, or an environment variable is wrong.
    Bootstrap,
    /// A file could not be read or written, or is not what it should be.
    Io,
    /// The installed UCX, its settings or this system cannot do what is needed.
    Unsupported,
    /// An argument makes no sense.
    InvalidArgument,
}

impl Error {
    #[cold]
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            peer: None,
            status: None,
            message: message.into(),
        }))
    }

    /// The failure of one UCX call: its name and its status.
    #[cold]
    pub(crate) fn ucx(call: &str, status: Status) -> Self {
        UCX_FAILED.store(true, Ordering::Relaxed);
        let mut error = Self::new(ErrorKind::Ucx, format!("{call}: {status}"));
        error.0.status = Some(status);
        error
    }

    #[cold]
    pub(crate) fn with_status(mut self, status: Status) -> Self {
        self.0.status = Some(status);
        self
    }

    #[cold]
    pub(crate) fn with_peer(mut self, rank: usize) -> Self {
        self.0.peer = Some(rank);
        self
    }

    /// Puts what was being done in front of the cause.
    #[cold]
    pub(crate) fn context(mut self, doing: impl fmt::Display) -> Self {
        self.0.message = format!("{doing}: {}", self.0.message);
        self
    }

    /// The class of this failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The rank at the other end, where one is known.
    #[must_use]
    pub fn peer(&self) -> Option<usize> {
        self.0.peer
    }

    /// The status that UCX returned, where UCX was the cause.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        self.0.status
    }
}

impl Clone for Error {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.0.message, self.0.kind)
    }
}

impl std::error::Error for Error {}
