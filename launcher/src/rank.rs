//! A rank's process: whether and how it has ended, and signals to it and its group.

use std::os::fd::OwnedFd;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{self as unix, Pid, Signal, WaitId, WaitIdOptions};

use crate::error::{Error, Result};
use crate::outcome::Cause;
use crate::wire::exit;

/// How long killed ranks may take to disappear.
pub(crate) const KILLED: Duration = Duration::from_secs(5);

/// A rank's process. Waited for only when the job is over, so that nobody gets its number, nor that of its group.
pub(crate) struct Rank {
    pub(crate) child: Child,
    pub(crate) pid: Pid,
    /// `None` on kernels without.
    pub(crate) pidfd: Option<OwnedFd>,
    pub(crate) exit: Option<Exit>,
    pub(crate) failed: Option<(i32, String)>,
    pub(crate) broke: Option<String>,
    pub(crate) lost: bool,
    /// When the first sign of a failure was seen: the turn, and whether the rank gave it on purpose.
    pub(crate) sign: Option<(u64, bool)>,
    reaped: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(i32),
    Signal {
        signal: i32,
        core_dumped: bool,
    },
    /// Somebody else has waited for the process.
    Unknown,
}

impl Rank {
    pub(crate) fn new(child: Child) -> Result<Self> {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| Error::io("process number", &Errno::RANGE.into()))?;
        let mut rank = Self {
            child,
            pid,
            pidfd: None,
            exit: None,
            failed: None,
            broke: None,
            lost: false,
            sign: None,
            reaped: false,
        };
        rank.pidfd = match unix::pidfd_open(pid, unix::PidfdFlags::empty()) {
            Ok(pidfd) => Some(pidfd),
            Err(error @ (Errno::MFILE | Errno::NFILE)) => {
                return Err(Error::io("pidfd", &error.into()));
            }
            // Older than Linux 5.3, or forbidden in this container.
            Err(_) => None,
        };
        Ok(rank)
    }

    /// How the process has ended, if it has and this is new.
    pub(crate) fn look(&self) -> Option<Exit> {
        if self.exit.is_some() {
            return None;
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match unix::waitid(WaitId::Pid(self.pid), options) {
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
        }
    }

    /// How likely its failure is a consequence of another's: smaller is less.
    ///
    /// 0: killed by SIGKILL, which comes from outside. 1: killed by a signal that is its own doing, or it has said
    /// why it gives up: a panic or an abort. 2: an error it ran into, or an exit.
    pub(crate) fn consequence(&self) -> u8 {
        let by_others = [libc::SIGABRT, libc::SIGTERM, libc::SIGPIPE];
        match (&self.failed, self.exit) {
            (Some((exit::BROKEN, _)), _) => 2,
            (Some(_), _) => 1,
            (
                None,
                Some(Exit::Signal {
                    signal: libc::SIGKILL,
                    ..
                }),
            ) => 0,
            (None, Some(Exit::Signal { signal, .. })) if !by_others.contains(&signal) => 1,
            _ => 2,
        }
    }

    /// Sends `signal` to the rank's process group, and to the rank if it has left that.
    pub(crate) fn signal(&self, signal: Signal) {
        if self.reaped {
            return;
        }
        // A group without processes is as good.
        let _ = unix::kill_process_group(self.pid, signal);
        if self.exit.is_none() && unix::getpgid(Some(self.pid)).is_ok_and(|group| group != self.pid)
        {
            let _ = unix::kill_process(self.pid, signal);
        }
    }

    /// Asks the rank to end, also if it is stopped.
    pub(crate) fn end(&self, signal: Signal) {
        self.signal(signal);
        self.signal(Signal::CONT);
    }

    /// Waits for a process that has ended.
    pub(crate) fn reap(&mut self) {
        if self.exit.is_some() && !self.reaped {
            self.reaped = true;
            // It has ended, so this does not block; if somebody else has waited for it, that is as good.
            let _ = self.child.wait();
        }
    }
}

impl Drop for Rank {
    /// After an error of the launcher's own, no rank is left.
    fn drop(&mut self) {
        if !self.reaped {
            self.signal(Signal::KILL);
            // Killed: ends at once, unless the kernel holds it.
            let until = Instant::now() + KILLED;
            while self.exit.is_none() && Instant::now() < until {
                self.exit = self.look();
                if self.exit.is_none() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            self.reap();
        }
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
