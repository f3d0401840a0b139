//! Standard input of one rank.
//!
//! The rank gets our own descriptor, so that exactly what it reads is taken and nothing is ever read ahead. A terminal
//! is the exception: ranks are not in its foreground process group and may not read it, so we do, a little at a time.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::poll::{Token, Waits};
use crate::proc::Stat;

/// Which rank reads this process's standard input; the others read an empty file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Stdin {
    /// None.
    #[default]
    Null,
    /// This one.
    Rank(u32),
}

impl Stdin {
    pub(crate) fn rank(self) -> Option<u32> {
        match self {
            Self::Null => None,
            Self::Rank(rank) => Some(rank),
        }
    }
}

/// Ours, for a rank on another host: in pieces, as far as that rank has taken them.
pub(crate) struct Source {
    /// Bytes that may be sent.
    window: usize,
    terminal: bool,
}

impl Source {
    pub(crate) fn new(window: usize) -> Self {
        Self {
            window,
            terminal: Pump::is_needed(),
        }
    }

    pub(crate) fn waits<'a>(&'a self, waits: &mut Waits<'a>, stdin: &'a io::Stdin) {
        if self.window == 0 {
            return;
        }
        if !self.terminal || Pump::in_foreground() {
            waits.on(Token::Input, stdin.as_fd(), PollFlags::IN);
        } else {
            waits.until(Instant::now() + Duration::from_secs(1));
        }
    }

    /// Reads what is there; nothing is the end.
    pub(crate) fn read(&mut self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; self.window.min(1 << 16)];
        match rustix::io::read(io::stdin(), bytes.as_mut_slice()) {
            Ok(n) => bytes.truncate(n),
            Err(Errno::INTR | Errno::AGAIN) => return None,
            Err(_) => bytes.clear(),
        }
        self.window -= bytes.len();
        Some(bytes)
    }

    /// The rank has taken so many bytes.
    pub(crate) fn taken(&mut self, bytes: usize) {
        self.window = self.window.saturating_add(bytes);
    }
}

/// From a terminal into a rank's pipe.
pub(crate) struct Pump {
    pipe: OwnedFd,
    buffer: Vec<u8>,
}

impl Pump {
    pub(crate) fn new(pipe: OwnedFd) -> Result<Self> {
        rustix::io::ioctl_fionbio(&pipe, true).map_err(|e| Error::io("input pipe", &e.into()))?;
        Ok(Self {
            pipe,
            buffer: Vec::new(),
        })
    }

    pub(crate) fn is_needed() -> bool {
        rustix::termios::isatty(io::stdin())
    }

    /// A background job that reads the terminal is stopped, so it does not read while it is one.
    fn in_foreground() -> bool {
        let in_front = match rustix::termios::tcgetpgrp(io::stdin()) {
            Ok(group) => group.as_raw_nonzero().get(),
            // A group from outside our process namespace.
            Err(Errno::OPNOTSUPP) => 0,
            Err(_) => return false,
        };
        Stat::of_us().is_some_and(|us| us.group == in_front)
    }

    pub(crate) fn waits<'a>(&'a self, waits: &mut Waits<'a>, stdin: &'a io::Stdin) {
        if !self.buffer.is_empty() {
            waits.on(Token::Input, self.pipe.as_fd(), PollFlags::OUT);
            return;
        }
        // Tells when the rank has closed its end.
        waits.on(Token::Input, self.pipe.as_fd(), PollFlags::empty());
        if Self::in_foreground() {
            waits.on(Token::Input, stdin.as_fd(), PollFlags::IN);
        } else {
            waits.until(Instant::now() + Duration::from_secs(1));
        }
    }

    /// Moves some bytes; false at the end of the input, or when the rank does not want more.
    pub(crate) fn pump(&mut self) -> bool {
        if self.buffer.is_empty() {
            let mut fds = [rustix::event::PollFd::new(&self.pipe, PollFlags::empty())];
            let now = rustix::event::Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            if rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|n| n > 0) {
                return false;
            }
            self.buffer.resize(4096, 0);
            let n = match rustix::io::read(io::stdin(), self.buffer.as_mut_slice()) {
                Ok(n) => n,
                Err(Errno::INTR | Errno::AGAIN) => {
                    self.buffer.clear();
                    return true;
                }
                Err(_) => 0,
            };
            self.buffer.truncate(n);
            if n == 0 {
                return false;
            }
        }
        match rustix::io::write(&self.pipe, &self.buffer) {
            Ok(n) => {
                self.buffer.drain(..n);
                true
            }
            Err(Errno::INTR | Errno::AGAIN) => true,
            Err(_) => false,
        }
    }
}
