//! One wait for everything: which descriptors, who asks, until when.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::output::Stream;

/// Who waits for a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token {
    /// Commands from other threads.
    Command,
    /// A new connection.
    Listener,
    /// A connection in its handshake, by slot.
    Stranger(usize),
    /// A joined rank's connection.
    Member(usize),
    /// The end of a rank's process.
    Exit(usize),
    /// A rank's output.
    Pipe(usize, Stream),
    /// Room in our own output.
    Sink(Stream),
    /// Our own input, or room in the pipe of the rank that gets it.
    Input,
    /// The agent's own launcher.
    Up,
    /// An agent that we have started, by number.
    Agent(usize),
    /// What the command that started it has to say.
    Said(usize),
}

/// The descriptors of one wait.
#[derive(Default)]
pub(crate) struct Waits<'a> {
    fds: Vec<PollFd<'a>>,
    tokens: Vec<Token>,
    until: Option<Instant>,
}

impl<'a> Waits<'a> {
    /// Waits for `flags` (errors and hang-ups come unasked) on `fd`.
    pub(crate) fn on(&mut self, token: Token, fd: BorrowedFd<'a>, flags: PollFlags) {
        self.fds.push(PollFd::from_borrowed_fd(fd, flags));
        self.tokens.push(token);
    }

    /// Waits until `time` at the latest.
    pub(crate) fn until(&mut self, time: impl Into<Option<Instant>>) {
        self.until = match (self.until, time.into()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }

    /// Those that are ready.
    pub(crate) fn wait(mut self) -> Result<Vec<Token>> {
        // Rounded up to a millisecond: a timer must not be found not quite due again and again.
        let timeout = self.until.map(|until| {
            let left = until.saturating_duration_since(Instant::now());
            let millis = left.as_nanos().div_ceil(1_000_000);
            let millis = i64::try_from(millis).unwrap_or(i64::MAX);
            Timespec {
                tv_sec: millis / 1000,
                tv_nsec: millis % 1000 * 1_000_000,
            }
        });
        match poll(&mut self.fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(e) => return Err(Error::io("poll", &e.into())),
        }
        let ready = self.fds.iter().zip(&self.tokens);
        let ready = ready.filter(|(fd, _)| !fd.revents().is_empty());
        Ok(ready.map(|(_, token)| *token).collect())
    }
}

/// Whether `fd` can be written to right now.
pub(crate) fn writable(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::OUT)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&now)).is_ok_and(|n| n > 0)
}
