//! How a job ended: its exit code, and the one line that says why.

use std::fmt;
use std::time::Duration;

use crate::wire::{RankStats, exit};

/// How a job ended. `Display` is one line.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Outcome {
    /// The exit code: 0, or that of the first failure; see [`exit`].
    pub code: i32,
    /// The first failure, if there was one.
    pub failure: Option<Failure>,
    /// What the ranks were doing when the job's time was up, a line each or for several.
    pub doing: Vec<String>,
    /// What each rank has done, of those that have counted it and left the job.
    pub stats: Vec<Option<RankStats>>,
    /// With [`Output::Capture`](crate::Output::Capture), what the ranks wrote to their standard output.
    pub stdout: Vec<u8>,
    /// With [`Output::Capture`](crate::Output::Capture), what the ranks wrote to their standard error.
    pub stderr: Vec<u8>,
}

impl Outcome {
    /// Whether every rank did what it should.
    #[must_use]
    pub fn success(&self) -> bool {
        self.failure.is_none()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.failure {
            Some(failure) => failure.fmt(f),
            None => f.write_str("success"),
        }
    }
}

/// The first failure of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// The rank that failed, unless the job was ended from outside.
    pub rank: Option<u32>,
    /// The machine it ran on.
    pub host: String,
    /// What happened.
    pub cause: Cause,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rank) = self.rank {
            write!(f, "rank {rank} on host {}: ", self.host)?;
        } else if let Cause::Host { .. } = self.cause {
            write!(f, "host {}: ", self.host)?;
        }
        self.cause.fmt(f)
    }
}

/// Why a job failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The rank said so before it exited: a panic, an error out of its main function, an abort.
    Reported {
        /// The code it asked for.
        code: i32,
        /// Its words.
        message: String,
    },
    /// A signal killed the rank.
    Killed {
        /// The signal's number.
        signal: i32,
        /// Whether it left a core file.
        core_dumped: bool,
    },
    /// The rank exited with a code other than 0.
    Exited {
        /// The code.
        code: i32,
    },
    /// The rank exited with 0 in the middle of the job.
    EndedEarly {
        /// Whether it had joined.
        joined: bool,
    },
    /// The rank closed its connection without leaving, and runs on.
    Disconnected,
    /// The rank did what the protocol does not allow.
    Protocol {
        /// What.
        message: String,
    },
    /// The launcher was asked to end the job.
    Interrupted {
        /// By this signal.
        signal: i32,
    },
    /// The job's time was up.
    TimedOut {
        /// The time it had.
        after: Duration,
        /// Ranks that had not joined although others had.
        not_joined: Vec<u32>,
        /// Other ranks that had not ended.
        not_ended: Vec<u32>,
    },
    /// A host cannot run its ranks, or is lost.
    Host {
        /// The job's exit code.
        code: i32,
        /// Why.
        message: String,
    },
    /// The ranks' output cannot be written.
    Output {
        /// Why.
        message: String,
    },
}

impl Cause {
    /// The job's exit code for this cause; never 0.
    #[must_use]
    pub fn code(&self) -> i32 {
        let code = match self {
            Self::Reported { code, .. } | Self::Exited { code } | Self::Host { code, .. } => *code,
            Self::Killed { signal, .. } | Self::Interrupted { signal } => exit::SIGNAL + signal,
            Self::EndedEarly { .. } | Self::Disconnected | Self::Protocol { .. } => exit::BROKEN,
            Self::TimedOut { .. } => exit::TIMEOUT,
            Self::Output { .. } => exit::LAUNCHER,
        };
        // The system keeps eight bits of it: 256 must not become success.
        if code & 0xff == 0 {
            exit::BROKEN
        } else {
            code & 0xff
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reported { code, message } if message.trim().is_empty() => {
                write!(f, "failed with code {code}")
            }
            Self::Reported { message, .. } => f.write_str(&one_line(message)),
            Self::Killed {
                signal,
                core_dumped,
            } => {
                let core = if *core_dumped { ", core dumped" } else { "" };
                write!(
                    f,
                    "killed by signal {signal} ({}){core}",
                    signal_name(*signal)
                )
            }
            Self::Exited { code } => write!(f, "exited with code {code}"),
            Self::EndedEarly { joined: true } => {
                f.write_str("exited with code 0 without leaving the job")
            }
            Self::EndedEarly { joined: false } => {
                f.write_str("exited with code 0 before joining the job")
            }
            Self::Disconnected => {
                f.write_str("closed its connection to the launcher without leaving the job")
            }
            Self::Protocol { message } | Self::Host { message, .. } => {
                f.write_str(&one_line(message))
            }
            Self::Interrupted { signal } => {
                write!(
                    f,
                    "interrupted by signal {signal} ({})",
                    signal_name(*signal)
                )
            }
            Self::TimedOut {
                after,
                not_joined,
                not_ended,
            } => {
                write!(f, "time is up after {after:?}")?;
                for (ranks, what) in [(not_joined, "joined"), (not_ended, "ended")] {
                    if !ranks.is_empty() {
                        let (s, have) = if ranks.len() == 1 {
                            ("", "has")
                        } else {
                            ("s", "have")
                        };
                        write!(f, "; rank{s} {} {have} not {what}", ranges(ranks))?;
                    }
                }
                Ok(())
            }
            Self::Output { message } => write!(f, "cannot write output: {message}"),
        }
    }
}

/// `text` on one line, without control characters.
fn one_line(text: &str) -> String {
    let lines: Vec<_> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    lines.join(" ").replace(char::is_control, " ")
}

/// Ascending ranks as `0-3, 5`.
pub(crate) fn ranges(ranks: &[u32]) -> String {
    let runs = ranks.chunk_by(|a, b| a + 1 == *b);
    let runs: Vec<_> = runs
        .map(|run| match run {
            [] => String::new(),
            [one] => one.to_string(),
            [first, .., last] => format!("{first}-{last}"),
        })
        .collect();
    runs.join(", ")
}

/// `SIGKILL` for 9, and so on; `unknown` for what has no name.
#[must_use]
pub fn signal_name(signal: i32) -> &'static str {
    const NAMES: [(i32, &str); 31] = [
        (libc::SIGHUP, "SIGHUP"),
        (libc::SIGINT, "SIGINT"),
        (libc::SIGQUIT, "SIGQUIT"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGTRAP, "SIGTRAP"),
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGUSR1, "SIGUSR1"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGUSR2, "SIGUSR2"),
        (libc::SIGPIPE, "SIGPIPE"),
        (libc::SIGALRM, "SIGALRM"),
        (libc::SIGTERM, "SIGTERM"),
        (libc::SIGSTKFLT, "SIGSTKFLT"),
        (libc::SIGCHLD, "SIGCHLD"),
        (libc::SIGCONT, "SIGCONT"),
        (libc::SIGSTOP, "SIGSTOP"),
        (libc::SIGTSTP, "SIGTSTP"),
        (libc::SIGTTIN, "SIGTTIN"),
        (libc::SIGTTOU, "SIGTTOU"),
        (libc::SIGURG, "SIGURG"),
        (libc::SIGXCPU, "SIGXCPU"),
        (libc::SIGXFSZ, "SIGXFSZ"),
        (libc::SIGVTALRM, "SIGVTALRM"),
        (libc::SIGPROF, "SIGPROF"),
        (libc::SIGWINCH, "SIGWINCH"),
        (libc::SIGIO, "SIGIO"),
        (libc::SIGPWR, "SIGPWR"),
        (libc::SIGSYS, "SIGSYS"),
    ];
    let known = NAMES.iter().find(|(number, _)| *number == signal);
    known.map_or("unknown", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_each() {
        let reported = |message: &str| Cause::Reported {
            code: 101,
            message: message.to_owned(),
        };
        assert_eq!(
            reported("panicked at src/main.rs:3:5:\nboom\n\x1b[2J").to_string(),
            "panicked at src/main.rs:3:5: boom  [2J"
        );
        let late = Cause::TimedOut {
            after: Duration::from_secs(3),
            not_joined: vec![1],
            not_ended: vec![0, 2, 3, 4, 6],
        };
        assert_eq!(
            late.to_string(),
            "time is up after 3s; rank 1 has not joined; ranks 0, 2-4, 6 have not ended"
        );
        let killed = Failure {
            rank: Some(2),
            host: "foo".to_owned(),
            cause: Cause::Killed {
                signal: 9,
                core_dumped: false,
            },
        };
        assert_eq!(
            killed.to_string(),
            "rank 2 on host foo: killed by signal 9 (SIGKILL)"
        );
    }

    #[test]
    fn no_failure_has_code_0() {
        for code in [0, 256, -256, 512] {
            assert_eq!(Cause::Exited { code }.code(), exit::BROKEN);
            let message = String::new();
            assert_eq!(Cause::Reported { code, message }.code(), exit::BROKEN);
        }
        assert_eq!(Cause::Exited { code: 7 }.code(), 7);
        assert_eq!(Cause::Exited { code: -1 }.code(), 255);
        assert_eq!(
            Cause::Interrupted {
                signal: libc::SIGINT
            }
            .code(),
            130
        );
    }
}
