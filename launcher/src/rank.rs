//! What the launcher knows of one rank.

use crate::process::{Exit, Process};
use crate::wire::exit;

/// A rank, wherever it runs.
pub(crate) struct Rank {
    /// Its process, if it runs on this machine under this launcher.
    pub(crate) process: Option<Process>,
    /// Its place among the job's hosts.
    pub(crate) host: usize,
    pub(crate) exit: Option<Exit>,
    pub(crate) failed: Option<(i32, String)>,
    pub(crate) broke: Option<String>,
    pub(crate) lost: bool,
    /// When the first sign of a failure was seen: the turn, and whether the rank gave it on purpose.
    pub(crate) sign: Option<(u64, bool)>,
}

impl Rank {
    pub(crate) fn new(host: usize, process: Option<Process>) -> Self {
        Self {
            process,
            host,
            exit: None,
            failed: None,
            broke: None,
            lost: false,
            sign: None,
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
}
