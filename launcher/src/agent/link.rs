//! A control channel between a launcher and an agent, or two agents: frames over two descriptors. Never blocks.
//!
//! ```text
//! frame:  length of what follows   4 bytes, little-endian
//!         host                     4 bytes: to whom, downwards; from whom, upwards
//!         message                  `ToAgent` or `FromAgent`
//! ```
//! A frame of length 0 is a sign of life of the neighbour, and goes no further.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use serde::{Serialize, de::DeserializeOwned};

use crate::codec;
use crate::error::{Error, ErrorKind, Result};
use crate::poll::{Token, Waits};
use crate::wire::{self, Frames};

/// Addressed to every host.
pub(crate) const ALL: u32 = u32::MAX;
/// Most bytes of a frame: a gather of all ranks, in its envelope.
const MAX: usize = wire::MAX_TO_RANK + (1 << 12);
/// Frames that may wait here to be sent, before the other side is taken for stuck. A gather of all is one frame.
const UNREAD: usize = 1 << 30;
/// Read at once.
const READ: usize = 1 << 16;

/// A frame with its address.
pub(crate) type Frame = Arc<[u8]>;

pub(crate) struct Link {
    input: OwnedFd,
    output: OwnedFd,
    frames: Frames,
    outbox: VecDeque<Frame>,
    /// Bytes of the outbox's first frame that are sent.
    sent: usize,
    queued: usize,
    /// When the other side was heard last; `None` if it has said that it will be silent.
    heard: Option<Instant>,
    spoke: Instant,
    limit: Duration,
    ended: bool,
}

/// A frame for or from `host`.
pub(crate) fn frame<T: Serialize>(host: u32, message: &T) -> Result<Frame> {
    let body = codec::encode(message)?;
    let length = body.len() + 4;
    if length > MAX {
        return Err(Error::new(
            ErrorKind::TooLarge,
            format!("message of {length} bytes, at most {MAX} allowed"),
        ));
    }
    let mut bytes = Vec::with_capacity(length + 4);
    bytes.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend_from_slice(&host.to_le_bytes());
    bytes.extend_from_slice(&body);
    Ok(bytes.into())
}

/// Whom a frame is for or from.
pub(crate) fn host_of(frame: &[u8]) -> u32 {
    let host = frame.get(4..).and_then(|rest| rest.first_chunk());
    host.map_or(ALL, |host| u32::from_le_bytes(*host))
}

/// What it says.
///
/// # Errors
/// If it is no `T`.
pub(crate) fn message<T: DeserializeOwned>(frame: &[u8]) -> Result<T> {
    codec::decode(frame.get(8..).unwrap_or_default(), MAX)
}

impl Link {
    /// Speaks to `output`, listens to `input`; both sides give signs of life often enough for silence of `limit` to mean
    /// that the other is gone.
    pub(crate) fn new(input: OwnedFd, output: OwnedFd, limit: Duration) -> Result<Self> {
        for fd in [&input, &output] {
            rustix::io::ioctl_fionbio(fd, true).map_err(|e| Error::io("channel", &e.into()))?;
        }
        Ok(Self {
            input,
            output,
            frames: Frames::default(),
            outbox: VecDeque::new(),
            sent: 0,
            queued: 0,
            heard: Some(Instant::now()),
            spoke: Instant::now(),
            limit,
            ended: false,
        })
    }

    pub(crate) fn waits<'a>(&'a self, token: Token, waits: &mut Waits<'a>) {
        if self.ended {
            // `clock` says so.
            waits.until(Instant::now());
        } else {
            waits.on(token, self.input.as_fd(), PollFlags::IN);
            if !self.outbox.is_empty() {
                waits.on(token, self.output.as_fd(), PollFlags::OUT);
            }
            waits.until(self.spoke + self.limit / 4);
            waits.until(self.heard.map(|heard| heard + self.limit));
        }
    }

    /// How long the other side may be silent.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Queues a frame and sends what fits.
    pub(crate) fn post(&mut self, frame: Frame) {
        if self.ended {
            return;
        }
        self.queued += frame.len();
        self.outbox.push_back(frame);
        self.flush();
        if self.queued > UNREAD {
            self.ended = true;
        }
    }

    /// Queues bytes that are no frame, before all others.
    pub(crate) fn greet(&mut self, bytes: &[u8]) {
        self.post(bytes.into());
    }

    /// Sends what fits. A failure shows at the next read.
    pub(crate) fn flush(&mut self) {
        while let Some(frame) = self.outbox.front() {
            match rustix::io::write(&self.output, &frame[self.sent..]) {
                Ok(n) => {
                    self.sent += n;
                    self.queued -= n;
                    self.spoke = Instant::now();
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.outbox.clear();
                    (self.sent, self.queued) = (0, 0);
                    return;
                }
            }
            if self.sent == frame.len() {
                self.outbox.pop_front();
                self.sent = 0;
            }
        }
    }

    /// Reads what is there, some at a time. False at the end.
    pub(crate) fn read(&mut self) -> bool {
        let mut buffer = [0; READ];
        for _ in 0..16 {
            match self.read_into(&mut buffer) {
                Ok(0) => return false,
                Ok(n) => {
                    self.frames.push(&buffer[..n]);
                    if n < READ {
                        break;
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        !self.ended
    }

    /// Reads some bytes as they are.
    pub(crate) fn read_into(&mut self, buffer: &mut [u8]) -> std::result::Result<usize, Errno> {
        let read = rustix::io::read(&self.input, buffer);
        if read.is_ok() {
            self.heard = Some(Instant::now());
        }
        read
    }

    /// Takes bytes that were read as part of the frames.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.frames.push(bytes);
    }

    /// The next frame that has arrived.
    ///
    /// # Errors
    /// If what has arrived is none.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>> {
        loop {
            match self.frames.next_frame(MAX)? {
                // A sign of life.
                Some(frame) if frame.len() == 4 => {}
                Some(frame) if frame.len() < 8 => {
                    return Err(Error::new(ErrorKind::Decode, "a frame without address"));
                }
                other => return Ok(other),
            }
        }
    }

    /// Gives a sign of life if it is time. False if the other side has been silent for too long, or reads nothing.
    pub(crate) fn clock(&mut self, now: Instant) -> bool {
        if self.spoke + self.limit / 4 <= now && !self.ended {
            self.spoke = now;
            // What is under way already is a sign.
            if self.outbox.is_empty() {
                self.post([0; 4].into());
            }
        }
        !self.ended && self.heard.is_none_or(|heard| now < heard + self.limit)
    }

    /// One of both sides will be stopped: silence means nothing until the other is heard again.
    pub(crate) fn expect_silence(&mut self) {
        self.heard = None;
    }
}
