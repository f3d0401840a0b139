//! A handle to a running job for other threads: end it, kill it, pass signals on.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::error::{Error, Result};

/// Reaches a job from any thread, before and while it runs; afterwards it does nothing.
#[derive(Debug, Clone)]
pub struct JobControl {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    wake: OwnedFd,
    commands: Mutex<VecDeque<Command>>,
}

/// What the job is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    Interrupt(i32),
    Forward(i32),
    Suspend,
    Kill,
}

impl JobControl {
    pub(crate) fn new() -> Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::io("eventfd", &e.into()))?;
        let commands = Mutex::default();
        Ok(Self {
            shared: Arc::new(Shared { wake, commands }),
        })
    }

    /// Ends the job with exit code `128 + signal`: passes the signal to all ranks, and kills after the grace time
    /// what has not ended by then. A second call kills at once.
    pub fn interrupt(&self, signal: i32) {
        self.send(Command::Interrupt(signal));
    }

    /// Passes a signal to all ranks, and nothing else.
    pub fn forward(&self, signal: i32) {
        self.send(Command::Forward(signal));
    }

    /// Stops all ranks, with SIGTSTP, and then this process. Goes on with SIGCONT, which must be
    /// [forwarded](Self::forward).
    pub fn suspend(&self) {
        self.send(Command::Suspend);
    }

    /// Kills all ranks at once. The exit code is that of SIGKILL, unless the job was ending for another reason.
    pub fn kill(&self) {
        self.send(Command::Kill);
    }

    fn send(&self, command: Command) {
        let mut commands = self
            .shared
            .commands
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        commands.push_back(command);
        // Fails only if the counter is full, and then the job will wake up anyway.
        let _ = rustix::io::write(&self.shared.wake, &1_u64.to_ne_bytes());
    }

    /// The next command, oldest first.
    pub(crate) fn next(&self) -> Option<Command> {
        let mut commands = self
            .shared
            .commands
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let next = commands.pop_front();
        if next.is_none() {
            // Empty already is as good.
            let _ = rustix::io::read(&self.shared.wake, &mut [0; 8]);
        }
        next
    }
}

impl AsFd for JobControl {
    /// Readable while there are commands.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.wake.as_fd()
    }
}
