//! A rank's end of the control socket, on the side of the launcher or of an agent. Never blocks.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::result::Result;
use std::sync::Arc;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::wire::Frames;

/// Messages that a rank may leave unread.
const UNREAD: usize = 16;

/// A rank that has joined.
pub(crate) struct Connection {
    socket: OwnedFd,
    /// What it has sent.
    pub(crate) frames: Frames,
    outbox: VecDeque<Arc<[u8]>>,
    /// Bytes of the outbox's first frame that are sent.
    sent: usize,
}

/// What a read found.
pub(crate) enum Read {
    /// Something, in [`Connection::frames`].
    Some,
    /// Nothing for now.
    Nothing,
    /// The end.
    End,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd, frames: Frames) -> Self {
        Self {
            socket,
            frames,
            outbox: VecDeque::new(),
            sent: 0,
        }
    }

    /// What to wait for.
    pub(crate) fn interest(&self) -> (BorrowedFd<'_>, PollFlags) {
        let mut flags = PollFlags::IN;
        if !self.outbox.is_empty() {
            flags |= PollFlags::OUT;
        }
        (self.socket.as_fd(), flags)
    }

    /// Queues a frame and sends what fits. False if too many are unread.
    pub(crate) fn post(&mut self, frame: Arc<[u8]>) -> bool {
        self.outbox.push_back(frame);
        self.flush();
        self.outbox.len() <= UNREAD
    }

    /// Sends as much as fits. If that fails, the rank is gone, and the end comes after what is still to be read.
    pub(crate) fn flush(&mut self) {
        while let Some(frame) = self.outbox.front() {
            match send(&self.socket, &frame[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.outbox.clear();
                    self.sent = 0;
                    return;
                }
            }
            if self.sent == frame.len() {
                self.outbox.pop_front();
                self.sent = 0;
            }
        }
    }

    /// Reads once.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Read {
        loop {
            return match rustix::io::read(&self.socket, &mut *buffer) {
                Ok(n) if n > 0 => {
                    self.frames.push(&buffer[..n]);
                    Read::Some
                }
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => Read::Nothing,
                Ok(_) | Err(_) => Read::End,
            };
        }
    }
}

pub(crate) fn send(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    rustix::net::send(socket, bytes, SendFlags::NOSIGNAL)
}
