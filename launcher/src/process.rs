//! A process that we started: whether and how it has ended, and signals to it and its group.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{self as unix, Pid, Signal, WaitId, WaitIdOptions};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::outcome::Cause;
use crate::proc::Stat;
use crate::segments;

/// How long killed processes may take to disappear.
pub(crate) const KILLED: Duration = Duration::from_secs(5);

/// The leader of a process group. Waited for only when all is over, so that nobody gets its number, nor that of its
/// group. Killed when dropped.
pub(crate) struct Process {
    child: Child,
    pid: Pid,
    /// `None` on kernels without.
    pidfd: Option<OwnedFd>,
    exit: Option<Exit>,
    reaped: bool,
}

/// How a process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Exit {
    Code(i32),
    Signal {
        signal: i32,
        core_dumped: bool,
    },
    /// Somebody else has waited for the process.
    Unknown,
}

impl Process {
    pub(crate) fn new(mut child: Child) -> Result<Self> {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| Error::io("process number", &Errno::RANGE.into()))?;
        let pidfd = match unix::pidfd_open(pid, unix::PidfdFlags::empty()) {
            Ok(pidfd) => Some(pidfd),
            Err(error @ (Errno::MFILE | Errno::NFILE)) => {
                // It has just been started: nothing is lost, and killing it cannot fail.
                let _ = unix::kill_process_group(pid, Signal::KILL);
                let _ = child.wait();
                return Err(Error::io("pidfd", &error.into()));
            }
            // Older than Linux 5.3, or forbidden in this container.
            Err(_) => None,
        };
        Ok(Self {
            child,
            pid,
            pidfd,
            exit: None,
            reaped: false,
        })
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Its pipes.
    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Readable when it has ended; `None` where the kernel has no such thing.
    pub(crate) fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// How it has ended, if it had when `look` was called last.
    pub(crate) fn exit(&self) -> Option<Exit> {
        self.exit
    }

    /// How it has ended, if it has and this is new.
    pub(crate) fn look(&mut self) -> Option<Exit> {
        if self.exit.is_some() {
            return None;
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        self.exit = match unix::waitid(WaitId::Pid(self.pid), options) {
            Ok(None) | Err(Errno::INTR) => None,
            Ok(Some(status)) => Some(match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Exit::Code(code),
                (None, Some(signal)) => Exit::Signal {
                    signal,
                    core_dumped: status.dumped(),
                },
                (None, None) => Exit::Unknown,
            }),
            Err(_) => Some(Exit::Unknown),
        };
        self.exit
    }

    /// Sends `signal` to its group, and to itself if it has left that.
    pub(crate) fn signal(&self, signal: Signal) {
        if self.reaped {
            return;
        }
        // A group without processes is as good.
        let _ = unix::kill_process_group(self.pid, signal);
        let pid = self.pid.as_raw_nonzero().get();
        let left = |stat: Stat| stat.group != pid;
        if self.exit.is_none() && Stat::of(format!("/proc/{pid}")).is_some_and(left) {
            let _ = unix::kill_process(self.pid, signal);
        }
    }

    /// Waits for it if it has ended, and removes what it had no time to.
    pub(crate) fn reap(&mut self) {
        if self.exit.is_some() && !self.reaped {
            self.reaped = true;
            // It has ended, so this does not block; if somebody else has waited for it, that is as good.
            let _ = self.child.wait();
            if let Some(Exit::Signal { .. }) = self.exit {
                let pid = self.pid.as_raw_nonzero().get();
                segments::remove_left(|creator| creator == pid);
            }
        }
    }
}

impl Drop for Process {
    /// After an error of the launcher's own, nothing is left.
    fn drop(&mut self) {
        if !self.reaped {
            self.signal(Signal::KILL);
            // Killed: ends at once, unless the kernel holds it.
            let until = Instant::now() + KILLED;
            while self.exit.is_none() && Instant::now() < until {
                if self.look().is_none() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            self.reap();
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Code(code) => Cause::Exited { code }.fmt(f),
            Self::Signal {
                signal,
                core_dumped,
            } => Cause::Killed {
                signal,
                core_dumped,
            }
            .fmt(f),
            Self::Unknown => f.write_str("ended"),
        }
    }
}
