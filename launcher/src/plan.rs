//! What the ranks of a job run, and how one is started, on this machine or by an agent on another.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, umask};
use rustix::thread::CpuSet;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::exec::{BeforeExec, before_exec};
use crate::limits;
use crate::wire::env;

/// One program of a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct App {
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    /// How many ranks run it; they follow those of the program before.
    pub(crate) ranks: u32,
    /// Variables of these ranks alone.
    pub(crate) env: Vec<(OsString, OsString)>,
}

/// What all ranks run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// At least one.
    pub(crate) apps: Vec<App>,
    /// Variables of all ranks, beside those of this process.
    pub(crate) env: Vec<(OsString, OsString)>,
    /// In front of the program, on this rank or on all.
    pub(crate) wrap: Vec<OsString>,
    pub(crate) wrap_rank: Option<u32>,
}

/// A rank's place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seat {
    pub(crate) rank: u32,
    pub(crate) local_rank: u32,
    pub(crate) local_size: u32,
}

/// What a rank gets beside its program.
pub(crate) struct Outfit<'a> {
    pub(crate) variables: &'a [(&'static str, String)],
    /// Instead of this process's own.
    pub(crate) environment: Option<&'a [(OsString, OsString)]>,
    pub(crate) limits: Vec<(Resource, Rlimit)>,
    pub(crate) cpus: Option<CpuSet>,
    /// Input, output, errors.
    pub(crate) stdio: [Stdio; 3],
}

impl Plan {
    /// Number of ranks.
    pub(crate) fn size(&self) -> u32 {
        self.apps
            .iter()
            .fold(0, |sum, app| sum.saturating_add(app.ranks))
    }

    fn app(&self, rank: u32) -> &App {
        let mut end = 0;
        let here = self.apps.iter().find(|app| {
            end += app.ranks;
            rank < end
        });
        here.unwrap_or(&self.apps[0])
    }

    /// What the rank at this place executes, with its arguments.
    pub(crate) fn words(&self, rank: u32) -> Vec<&OsStr> {
        let app = self.app(rank);
        let wrapped = self.wrap_rank.is_none_or(|wrapped| wrapped == rank);
        let wrap = if wrapped { &self.wrap[..] } else { &[] };
        let words = wrap.iter().chain([&app.program]).chain(&app.args);
        words.map(OsString::as_os_str).collect()
    }

    /// Variables that are set for the rank beside its place.
    pub(crate) fn variables(&self, rank: u32) -> impl Iterator<Item = &(OsString, OsString)> {
        self.env.iter().chain(&self.app(rank).env)
    }

    /// Starts one rank, in a process group of its own.
    pub(crate) fn spawn(&self, seat: Seat, outfit: Outfit<'_>) -> Result<Child> {
        let words = self.words(seat.rank);
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        if let Some(environment) = outfit.environment {
            command.env_clear();
            command.envs(environment.iter().map(|(name, value)| (name, value)));
        }
        command.envs(self.variables(seat.rank).map(|(name, value)| (name, value)));
        command.envs(outfit.variables.iter().map(|(name, value)| (name, value)));
        command
            .env(env::RANK, seat.rank.to_string())
            .env(env::SIZE, self.size().to_string())
            .env(env::LOCAL_RANK, seat.local_rank.to_string())
            .env(env::LOCAL_SIZE, seat.local_size.to_string());
        let [stdin, stdout, stderr] = outfit.stdio;
        command.stdin(stdin).stdout(stdout).stderr(stderr);
        command.process_group(0);
        let what = BeforeExec {
            dies_with_us: true,
            limits: outfit.limits,
            cpus: outfit.cpus,
            ..Default::default()
        };
        before_exec(&mut command, what);
        command
            .spawn()
            .map_err(|error| self.not_started(seat.rank, words[0], &error))
    }

    #[cold]
    fn not_started(&self, rank: u32, program: &OsStr, error: &io::Error) -> Error {
        let shown = program.display();
        let of = format!("cannot start rank {rank} of {}", self.size());
        match Errno::from_io_error(error) {
            Some(Errno::NOENT) => {
                let here = Path::new(program);
                let there = here.components().count() > 1 && here.exists();
                let what = if there {
                    "its interpreter is missing"
                } else {
                    "no such program"
                };
                Error::new(ErrorKind::NotFound, format!("{shown}: {what}"))
            }
            Some(Errno::AGAIN | Errno::NOMEM) => {
                let limit = limits::processes();
                let message =
                    format!("{of}: fork: {error} (limit on processes, ulimit -u: {limit})");
                Error::new(ErrorKind::Limit, message)
            }
            Some(Errno::MFILE | Errno::NFILE) => Error::new(
                ErrorKind::Limit,
                format!("{of}: {error} (limit: ulimit -n)"),
            ),
            _ => Error::new(ErrorKind::NotExecutable, format!("{shown}: {error}")),
        }
    }
}

/// What ranks on other hosts are to have as they would have it here.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Surroundings {
    environment: Vec<(OsString, OsString)>,
    directory: OsString,
    umask: u32,
    /// Soft and hard, in the order of [`RESOURCES`].
    limits: Vec<(Option<u64>, Option<u64>)>,
}

const RESOURCES: [Resource; 16] = [
    Resource::Cpu,
    Resource::Fsize,
    Resource::Data,
    Resource::Stack,
    Resource::Core,
    Resource::Rss,
    Resource::Nproc,
    Resource::Nofile,
    Resource::Memlock,
    Resource::As,
    Resource::Locks,
    Resource::Sigpending,
    Resource::Msgqueue,
    Resource::Nice,
    Resource::Rtprio,
    Resource::Rttime,
];

/// Read where setting it is not needed: other threads may be creating files.
fn own_umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    // What most have; only kernels before 4.7 do not say.
    line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok())
        .unwrap_or(0o022)
}

impl Surroundings {
    /// Those of this process, with `open_files` as the limit on open files if it was changed.
    pub(crate) fn here(open_files: Option<Rlimit>) -> Result<Self> {
        let directory = std::env::current_dir()
            .map_err(|e| Error::io("working directory, which other hosts shall have too", &e))?;
        let limits = RESOURCES.map(|resource| {
            let limit = match (resource, open_files) {
                (Resource::Nofile, Some(before)) => before,
                _ => getrlimit(resource),
            };
            (limit.current, limit.maximum)
        });
        Ok(Self {
            environment: std::env::vars_os().collect(),
            directory: directory.into(),
            umask: own_umask(),
            limits: limits.to_vec(),
        })
    }

    /// Their environment.
    pub(crate) fn environment(&self) -> &[(OsString, OsString)] {
        &self.environment
    }

    /// Makes directory and umask this process's, and returns the limits for the ranks. No limit can be raised above
    /// what this host allows: it is that then.
    pub(crate) fn enter(&self) -> Result<Vec<(Resource, Rlimit)>> {
        std::env::set_current_dir(&self.directory).map_err(|e| {
            let what = format!("working directory {}", Path::new(&self.directory).display());
            Error::io(what, &e)
        })?;
        umask(Mode::from_raw_mode(self.umask));
        let root = rustix::process::geteuid().is_root();
        let limits = RESOURCES.into_iter().zip(&self.limits);
        Ok(limits
            .map(|(resource, &(current, maximum))| {
                let most = if root {
                    None
                } else {
                    getrlimit(resource).maximum
                };
                let lower = |limit: Option<u64>| match (limit, most) {
                    (Some(limit), Some(most)) => Some(limit.min(most)),
                    (limit, most) => limit.or(most),
                };
                let (current, maximum) = (lower(current), lower(maximum));
                (resource, Rlimit { current, maximum })
            })
            .collect())
    }
}
