//! What to start, where, and what to do with it.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::bind::Bind;
use crate::control::JobControl;
use crate::error::{Error, ErrorKind, Result};
use crate::hosts::Place;
use crate::input::Stdin;
use crate::limits::{self, OpenFiles};
use crate::outcome::Outcome;
use crate::output::Output;
use crate::plan::{App, Plan};

/// How long ranks have to end by themselves once the job is over, before they are killed.
pub const GRACE: Duration = Duration::from_secs(1);

/// After so long without a sign of life a host is taken for lost, unless [`Agents::silence`] says otherwise.
pub const SILENCE: Duration = Duration::from_secs(10);

/// Variables that [`Job::default_environment`] sets for the ranks unless the caller's environment has them.
pub const DEFAULT_ENVIRONMENT: &[(&str, &str)] = &[
    // UCX's signal handlers would print their own report and hide Rust's, and a rank's exit by signal.
    ("UCX_ERROR_SIGNALS", ""),
];

/// Takes one line for each thing that happens in a job.
pub(crate) type NoticeFn = Box<dyn FnMut(&str) + Send>;

/// Several processes, of one program or of some, that are one job.
///
/// Nothing of the calling process is changed, so jobs can run in several threads at once. Ranks die when the thread
/// that runs the job does.
pub struct Job {
    pub(crate) plan: Plan,
    pub(crate) places: Vec<Place>,
    pub(crate) agents: Agents,
    pub(crate) network: Option<String>,
    pub(crate) bind: Bind,
    pub(crate) stdin: Stdin,
    pub(crate) output: Output,
    pub(crate) label: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) grace: Duration,
    pub(crate) keep_going: bool,
    pub(crate) open_files: Option<OpenFiles>,
    pub(crate) keeper: Option<PathBuf>,
    pub(crate) notices: Option<NoticeFn>,
    pub(crate) bindings: Option<NoticeFn>,
    control: Option<JobControl>,
}

/// A rank of a job that has not been started.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Seat {
    /// Its number.
    pub rank: u32,
    /// Its host.
    pub host: String,
    /// Its number among the ranks of its host.
    pub local_rank: u32,
    /// How many those are.
    pub local_size: u32,
    /// What is executed, with its arguments.
    pub words: Vec<OsString>,
    /// Variables that are set for it, beside those that say where it is and the caller's.
    pub env: Vec<(OsString, OsString)>,
}

/// How agents come to other hosts, and how long they may be silent.
#[derive(Debug, Clone)]
pub struct Agents {
    /// Starts a command on a host. `{host}` and `{command}` in its words are replaced; if there are none, both are
    /// added at the end. `None` is ssh, and nothing at all for the machine that we are on.
    pub command: Option<Vec<OsString>>,
    /// The `ucxrun` binary: on every host the same path.
    pub program: PathBuf,
    /// Most agents that the launcher or an agent starts by itself; with more hosts, agents start agents.
    pub fan_out: u32,
    /// After so long without a sign of life a host is taken for lost.
    pub silence: Duration,
}

/// Asks no questions, and gives up in time.
pub(crate) const SSH: &str = "ssh -T -o BatchMode=yes -o ConnectTimeout=8 --";

impl Default for Agents {
    /// ssh, `ucxrun` by PATH, 64, [`SILENCE`].
    fn default() -> Self {
        Self {
            command: None,
            program: "ucxrun".into(),
            fan_out: 64,
            silence: SILENCE,
        }
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("plan", &self.plan)
            .field("places", &self.places)
            .finish_non_exhaustive()
    }
}

impl Job {
    /// One rank of `program`, which is looked up as `execvp` does.
    #[must_use]
    pub fn new(program: impl Into<OsString>) -> Self {
        let plan = Plan {
            apps: Vec::new(),
            env: Vec::new(),
            wrap: Vec::new(),
            wrap_rank: None,
        };
        let job = Self {
            plan,
            places: Vec::new(),
            agents: Agents::default(),
            network: None,
            bind: Bind::None,
            stdin: Stdin::default(),
            output: Output::default(),
            label: false,
            timeout: None,
            grace: GRACE,
            keep_going: false,
            open_files: None,
            keeper: None,
            notices: None,
            bindings: None,
            control: None,
        };
        job.and(program)
    }

    /// One rank of another program beside those before. What is said next of arguments and of the number of ranks is
    /// said of this program.
    #[must_use]
    pub fn and(mut self, program: impl Into<OsString>) -> Self {
        self.plan.apps.push(App {
            program: program.into(),
            args: Vec::new(),
            ranks: 1,
            env: Vec::new(),
        });
        self
    }

    fn app(&mut self) -> &mut App {
        let last = self.plan.apps.len() - 1;
        &mut self.plan.apps[last]
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.app().args.push(arg.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.app().args.extend(args.into_iter().map(Into::into));
        self
    }

    /// How many ranks to start; more than there are cores is allowed.
    #[must_use]
    pub fn ranks(mut self, ranks: u32) -> Self {
        self.app().ranks = ranks;
        self
    }

    /// Sets a variable for the ranks of this program alone.
    #[must_use]
    pub fn own_env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.app().env.push((name.into(), value.into()));
        self
    }

    /// Runs `words` with each rank's program and arguments behind, or only that of one rank: a debugger, for example.
    #[must_use]
    pub fn wrap<A: Into<OsString>>(
        mut self,
        words: impl IntoIterator<Item = A>,
        rank: Option<u32>,
    ) -> Self {
        self.plan.wrap = words.into_iter().map(Into::into).collect();
        self.plan.wrap_rank = rank;
        self
    }

    /// Runs the ranks at these places, through `agents`; every rank must have one. Without, they are started here.
    #[must_use]
    pub fn places(mut self, places: Vec<Place>, agents: Agents) -> Self {
        self.places = places;
        self.agents = agents;
        self
    }

    /// Ends the job if a host does not have this network device. (To use it is the ranks' business.)
    #[must_use]
    pub fn network(mut self, device: impl Into<String>) -> Self {
        self.network = Some(device.into());
        self
    }

    /// Binds the ranks to processors, unless a machine has more ranks than there are to bind to.
    #[must_use]
    pub fn bind(mut self, bind: Bind) -> Self {
        self.bind = bind;
        self
    }

    /// A rank that fails does not end the job. The outcome is that of the first to fail, when all have ended. The others
    /// hear of it by [`ToRank::PeerLost`](crate::wire::ToRank::PeerLost).
    #[must_use]
    pub fn keep_going(mut self, keep_going: bool) -> Self {
        self.keep_going = keep_going;
        match keep_going {
            true => self.env(crate::wire::env::KEEP_GOING, "1"),
            false => self,
        }
    }

    /// Starts a process of `ucxrun`, at this path, that ends what ranks have started if this process is killed.
    #[must_use]
    pub fn keeper(mut self, ucxrun: impl Into<PathBuf>) -> Self {
        self.keeper = Some(ucxrun.into());
        self
    }

    /// How many processes this one starts by itself: ranks, or agents.
    #[must_use]
    pub fn children(&self) -> u32 {
        if self.places.is_empty() {
            return self.plan.size();
        }
        u32::try_from(self.places.len()).map_or(u32::MAX, |hosts| hosts.min(self.agents.fan_out))
    }

    /// Sets a variable for the ranks, beside those of this process.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.plan.env.push((name.into(), value.into()));
        self
    }

    /// Sets a variable for the ranks unless this process has it or [`env`](Self::env) has set it before.
    #[must_use]
    pub fn env_default(self, name: impl AsRef<OsStr>, value: impl Into<OsString>) -> Self {
        let name = name.as_ref();
        let set =
            std::env::var_os(name).is_some() || self.plan.env.iter().any(|(have, _)| have == name);
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

    /// Calls `f` with one line for each rank that is bound, or is not although that was asked for.
    #[must_use]
    pub fn report_bindings(mut self, f: impl FnMut(&str) + Send + 'static) -> Self {
        self.bindings = Some(Box::new(f));
        self
    }

    /// What is to be started where, by rank.
    #[must_use]
    pub fn seats(&self) -> Vec<Seat> {
        let here = Place {
            host: crate::client::host_name(),
            ranks: (0..self.plan.size()).collect(),
        };
        let places = match self.places.is_empty() {
            true => std::slice::from_ref(&here),
            false => &self.places,
        };
        let mut seats = Vec::new();
        for place in places {
            let local_size = u32::try_from(place.ranks.len()).unwrap_or(u32::MAX);
            for (&rank, local_rank) in place.ranks.iter().zip(0..) {
                let words = self.plan.words(rank).into_iter();
                seats.push(Seat {
                    rank,
                    host: place.host.clone(),
                    local_rank,
                    local_size,
                    words: words.map(OsStr::to_owned).collect(),
                    env: self.plan.variables(rank).cloned().collect(),
                });
            }
        }
        seats.sort_by_key(|seat| seat.rank);
        seats
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
        let usage = |message: String| Err(Error::new(ErrorKind::Usage, message));
        let size = self.plan.size();
        if self.plan.apps.iter().any(|app| app.ranks == 0) {
            return usage("a job of 0 ranks".to_owned());
        }
        for (what, rank) in [
            ("standard input", self.stdin.rank()),
            ("--wrap-rank", self.plan.wrap_rank),
        ] {
            if let Some(rank) = rank.filter(|&rank| rank >= size) {
                return usage(format!("{what} for rank {rank} of {size}"));
            }
        }
        let placed: usize = self.places.iter().map(|place| place.ranks.len()).sum();
        if !self.places.is_empty() && placed != size as usize {
            return usage(format!("places for {placed} ranks of {size}"));
        }
        limits::check(self.children())?;
        let control = self.control()?;
        crate::run::run(self, control)
    }
}
