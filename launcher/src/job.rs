//! What to start, and how each rank's process is started.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

use crate::control::JobControl;
use crate::error::{Error, ErrorKind, Result};
use crate::input::{Pump, Stdin};
use crate::limits::{self, OpenFiles};
use crate::outcome::Outcome;
use crate::output::{self, Output, Stream};
use crate::wire::env;

/// How long ranks have to end by themselves once the job is over, before they are killed.
pub const GRACE: Duration = Duration::from_secs(1);

/// Variables that [`Job::default_environment`] sets for the ranks unless the caller's environment has them.
pub const DEFAULT_ENVIRONMENT: &[(&str, &str)] = &[
    // UCX's signal handlers would print their own report and hide Rust's, and a rank's exit by signal.
    ("UCX_ERROR_SIGNALS", ""),
];

/// Takes one line for each thing that happens in a job.
pub(crate) type NoticeFn = Box<dyn FnMut(&str) + Send>;

/// Several processes of one program that are one job.
///
/// Nothing of the calling process is changed, so jobs can run in several threads at once. Ranks die when the thread
/// that runs the job does.
pub struct Job {
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    pub(crate) ranks: u32,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) stdin: Stdin,
    pub(crate) output: Output,
    pub(crate) label: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) grace: Duration,
    pub(crate) open_files: Option<OpenFiles>,
    pub(crate) notices: Option<NoticeFn>,
    control: Option<JobControl>,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("program", &self.program)
            .field("args", &self.args)
            .field("ranks", &self.ranks)
            .finish_non_exhaustive()
    }
}

impl Job {
    /// One rank of `program`, which is looked up as `execvp` does.
    #[must_use]
    pub fn new(program: impl Into<OsString>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            ranks: 1,
            env: Vec::new(),
            stdin: Stdin::default(),
            output: Output::default(),
            label: false,
            timeout: None,
            grace: GRACE,
            open_files: None,
            notices: None,
            control: None,
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// How many ranks to start; more than there are cores is allowed.
    #[must_use]
    pub fn ranks(mut self, ranks: u32) -> Self {
        self.ranks = ranks;
        self
    }

    /// Sets a variable for the ranks, beside those of this process.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Sets a variable for the ranks unless this process has it or [`env`](Self::env) has set it before.
    #[must_use]
    pub fn env_default(self, name: impl AsRef<OsStr>, value: impl Into<OsString>) -> Self {
        let name = name.as_ref();
        let set = std::env::var_os(name).is_some() || self.env.iter().any(|(have, _)| have == name);
        if set { self } else { self.env(name, value) }
    }

    /// Sets the variables of [`DEFAULT_ENVIRONMENT`] that are not set.
    #[must_use]
    pub fn default_environment(self) -> Self {
        let add = |job: Self, &(name, value): &(&str, &str)| job.env_default(name, value);
        DEFAULT_ENVIRONMENT.iter().fold(self, add)
    }

    /// Which rank reads this process's standard input: none, unless said otherwise.
    #[must_use]
    pub fn stdin(mut self, stdin: Stdin) -> Self {
        self.stdin = stdin;
        self
    }

    /// Where the ranks' output goes: to this process's, unless said otherwise.
    #[must_use]
    pub fn output(mut self, output: Output) -> Self {
        self.output = output;
        self
    }

    /// Begins every line of output with `[rank] `.
    #[must_use]
    pub fn label(mut self, label: bool) -> Self {
        self.label = label;
        self
    }

    /// Ends the job after this time, with code 124.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// How long ranks have to end by themselves once the job is over ([`GRACE`]).
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Gives the ranks this limit on open files instead of the present one, which was raised for the launcher.
    #[must_use]
    pub fn open_files(mut self, limit: OpenFiles) -> Self {
        self.open_files = Some(limit);
        self
    }

    /// Calls `f` with one line for each thing that happens, for the curious.
    #[must_use]
    pub fn notices(mut self, f: impl FnMut(&str) + Send + 'static) -> Self {
        self.notices = Some(Box::new(f));
        self
    }

    /// A handle for other threads.
    ///
    /// # Errors
    /// If the system has no descriptor left for it.
    pub fn control(&mut self) -> Result<JobControl> {
        if let Some(control) = &self.control {
            return Ok(control.clone());
        }
        let control = JobControl::new()?;
        self.control = Some(control.clone());
        Ok(control)
    }

    /// Starts the ranks and waits until all have ended. Whatever is then left in their process groups is killed; a
    /// program that shall outlive the job needs a session of its own (`setsid`).
    ///
    /// # Errors
    /// If the launcher itself fails: the program cannot be found or executed, a limit is too low, a system call
    /// fails. No rank is left then either. A job that fails is an [`Outcome`], not an error.
    pub fn run(mut self) -> Result<Outcome> {
        if self.ranks == 0 {
            return Err(Error::new(ErrorKind::Usage, "a job of 0 ranks"));
        }
        if let Stdin::Rank(rank) = self.stdin
            && rank >= self.ranks
        {
            let message = format!("standard input for rank {rank} of {}", self.ranks);
            return Err(Error::new(ErrorKind::Usage, message));
        }
        limits::check(self.ranks)?;
        let control = self.control()?;
        crate::run::run(self, control)
    }

    /// Starts one rank, in a process group of its own.
    pub(crate) fn spawn(&self, rank: u32, job: &[(&'static str, String)]) -> Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(&self.args);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.envs(job.iter().map(|(name, value)| (name, value)));
        let (rank_text, size) = (rank.to_string(), self.ranks.to_string());
        // One machine: a rank's place there is its place in the job.
        command
            .env(env::RANK, &rank_text)
            .env(env::LOCAL_RANK, &rank_text);
        command.env(env::SIZE, &size).env(env::LOCAL_SIZE, &size);
        command.stdin(match self.stdin {
            Stdin::Rank(reader) if reader != rank => Stdio::null(),
            Stdin::Null => Stdio::null(),
            Stdin::Rank(_) if Pump::is_needed() => Stdio::piped(),
            Stdin::Rank(_) => Stdio::inherit(),
        });
        match &self.output {
            Output::Null => command.stdout(Stdio::null()).stderr(Stdio::null()),
            Output::Files(directory) => command
                .stdout(output::file(directory, rank, Stream::Stdout)?)
                .stderr(output::file(directory, rank, Stream::Stderr)?),
            _ => command.stdout(Stdio::piped()).stderr(Stdio::piped()),
        };
        command.process_group(0);
        before_exec(&mut command, self.open_files);
        command
            .spawn()
            .map_err(|error| self.not_started(rank, &error))
    }

    #[cold]
    fn not_started(&self, rank: u32, error: &io::Error) -> Error {
        let program = self.program.display();
        let of = format!("cannot start rank {rank} of {}", self.ranks);
        match rustix::io::Errno::from_io_error(error) {
            Some(rustix::io::Errno::NOENT) => {
                let here = std::path::Path::new(&self.program);
                let there = here.components().count() > 1 && here.exists();
                let what = if there {
                    "its interpreter is missing"
                } else {
                    "no such program"
                };
                Error::new(ErrorKind::NotFound, format!("{program}: {what}"))
            }
            Some(rustix::io::Errno::AGAIN | rustix::io::Errno::NOMEM) => {
                let limit = limits::processes();
                let message =
                    format!("{of}: fork: {error} (limit on processes, ulimit -u: {limit})");
                Error::new(ErrorKind::Limit, message)
            }
            Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => Error::new(
                ErrorKind::Limit,
                format!("{of}: {error} (limit: ulimit -n)"),
            ),
            _ => Error::new(ErrorKind::NotExecutable, format!("{program}: {error}")),
        }
    }
}

/// What the new process does between fork and exec: die with the launcher, take over the caller's signal mask (the
/// standard library has emptied it) and limit.
#[expect(unsafe_code, reason = "runs code between fork and exec")]
fn before_exec(command: &mut Command, open_files: Option<OpenFiles>) {
    let launcher = getpid();
    let mask = signal_mask();
    let hook = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // If the launcher died before that call, nobody will send the signal.
        if getppid() != Some(launcher) {
            return Err(io::Error::from(rustix::io::Errno::SRCH));
        }
        if let Some(limit) = &open_files {
            limit.restore()?;
        }
        if let Some(mask) = &mask {
            // SAFETY: `mask` is a set that `signal_mask` got from the system; the old set is not asked for.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
        }
        Ok(())
    };
    // SAFETY: the hook only makes system calls that are allowed between fork and exec, and allocates nothing: both
    // kinds of errors it returns are plain numbers.
    unsafe { command.pre_exec(hook) };
}

/// The signals that this thread blocks.
#[expect(unsafe_code, reason = "no safe call reads the signal mask")]
fn signal_mask() -> Option<libc::sigset_t> {
    let mut mask = MaybeUninit::uninit();
    // SAFETY: a null set changes nothing, and `mask` has room for the present one.
    let error =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), mask.as_mut_ptr()) };
    // SAFETY: the call has succeeded, so it has written the set.
    (error == 0).then(|| unsafe { mask.assume_init() })
}
