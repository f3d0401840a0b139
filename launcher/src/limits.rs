//! Open files: how many a job needs, and whether there are as many.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::door::STRANGERS;
use crate::error::{Error, ErrorKind, Result};

/// The limit on open files that a process had; see [`raise`].
#[derive(Debug, Clone, Copy)]
pub struct OpenFiles(Rlimit);

impl OpenFiles {
    /// What it was.
    pub(crate) fn before(self) -> Rlimit {
        self.0
    }
}

/// For each rank two pipes, a process and a connection; strangers in their handshake; and what starting one program
/// takes, with some to spare.
fn needed(ranks: u32) -> u64 {
    let open = std::fs::read_dir("/proc/self/fd").map_or(8, |entries| entries.count() as u64);
    open + 4 * u64::from(ranks) + STRANGERS as u64 + 10
}

/// Raises this process's soft limit on open files to what `ranks` ranks need, if it is lower. Returns the limit as it
/// was, for [`Job::open_files`](crate::Job::open_files). Changes the whole process, so it is for a launcher, not for
/// a library.
///
/// # Errors
/// If the hard limit does not allow it.
pub fn raise(ranks: u32) -> Result<OpenFiles> {
    let before = getrlimit(Resource::Nofile);
    // And some for what will be open by the time the job starts.
    let needed = needed(ranks) + 8;
    if before.current.is_some_and(|soft| soft < needed) {
        if let Some(hard) = before.maximum.filter(|&hard| hard < needed) {
            return Err(too_few(ranks, needed, "hard limit", "ulimit -Hn", hard));
        }
        let raised = Rlimit {
            current: Some(needed),
            maximum: before.maximum,
        };
        setrlimit(Resource::Nofile, raised).map_err(|e| {
            Error::io(
                format_args!("raise the limit on open files to {needed}"),
                &e.into(),
            )
        })?;
    }
    Ok(OpenFiles(before))
}

/// # Errors
/// If the soft limit is too low for `ranks` ranks.
pub(crate) fn check(ranks: u32) -> Result<()> {
    let needed = needed(ranks);
    match getrlimit(Resource::Nofile).current {
        Some(soft) if soft < needed => Err(too_few(ranks, needed, "limit", "ulimit -n", soft)),
        _ => Ok(()),
    }
}

fn too_few(ranks: u32, needed: u64, limit: &str, command: &str, value: u64) -> Error {
    Error::new(
        ErrorKind::Limit,
        format!("{ranks} ranks need {needed} open files, and the {limit} ({command}) is {value}"),
    )
}

/// The limit on processes, for an error message.
pub(crate) fn processes() -> String {
    let limit = getrlimit(Resource::Nproc).current;
    limit.map_or("unlimited".to_owned(), |limit| limit.to_string())
}
