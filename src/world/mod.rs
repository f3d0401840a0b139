//! `World`: all ranks of a job, seen from one of them.
#![doc = include_str!("README.md")]

mod ask;
mod bells;
mod bootstrap;
mod collective;
mod control;
mod engine;
mod exit;
mod future;
mod graves;
mod identity;
mod messages;
mod node;
mod numbers;
mod peers;
mod pool;
mod progress;
mod races;
mod request;
mod room;
mod segment;
mod signature;
mod stage;
mod stats;
mod team;
mod thread;
mod turn;

pub use collective::Ragged;
pub use messages::{Any, Envelope, Source, Tag};
pub use races::Checks;
pub use request::Request;
pub use team::{Grid, Team};

pub(crate) use ask::{Asks, MemoryName, Places, Run, Work};
pub(crate) use bells::{Asleep, Bells, Elements, Sleeper};
pub(crate) use graves::{Grave, unmap};
pub(crate) use peers::Peers;
pub(crate) use pool::{Part, SLAB, SMALL};
pub(crate) use races::{Moment, Races};
pub(crate) use request::Pending;
pub(crate) use segment::{Memory, Segment, meet};
pub(crate) use signature::{Call, Signature};

use crate::error::{Error, Result, ucx_has_failed};
use crate::ucx::{Context, Worker};
use crate::wait::{Concern, Concerned, Limits};
use ask::Served;
use control::Launcher;
use engine::Engine;
use graves::Graves;
use numbers::Numbers;
use peers::Nodes;
use pool::Pool;
use progress::Service;
use stage::Stage;
use std::fmt;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use thread::{die, spawn};
use turn::{Turn, TurnGuard};
use ucxrun::wire::exit as code;

/// All ranks of a job, seen from one of them.
///
/// Started by `ucxrun -n 4 PROGRAM`, four processes run `main`, each a *rank* from 0 to 3. A
/// program that is started by itself is a world of one rank.
///
/// `World` is `Send + Sync`: any thread may communicate. Collective calls of one rank take turns.
///
/// # Time limit
/// No wait lasts for ever. A rank that waits longer than the time limit for others, in a
/// collective or for the answer of another node, gets [`ErrorKind::Timeout`](crate::ErrorKind::Timeout). It is 600 seconds,
/// or what the environment variable `PGAS_TIMEOUT` says (seconds; `0` for no limit). Ranks that
/// die are noticed at once, whatever the limit.
pub struct World {
    /// Serves this rank's memory where peers cannot map it. Stops first.
    service: Option<Service>,
    launcher: Option<Launcher>,
    /// All ranks.
    team: Team,
    /// Whether the job has been told how this rank ended.
    ended: AtomicBool,
}

/// One team as a rank sees it; what arrays hold on to. It lives until the last of them is gone, if
/// they outlive the world.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// The team's number, the same on all its ranks; 0 is the world.
    team: u32,
    /// The team that it was made of, which keeps its memory when it goes.
    parent: Option<Arc<Core>>,
    job: Arc<Job>,
    next_array: AtomicU64,
    /// Of collectives whose parts travel from rank to rank.
    next_part: AtomicU32,
    unsettled: ask::Unsettled,
    /// Messages to itself.
    to_self: messages::Mailbox,
    /// Held by the thread whose collective it is.
    turn: Turn,
    /// The job's, if it looks for races. Its keys go before their endpoints.
    races: Option<Arc<Races>>,
    // The order of the fields is the order of their end: memory of dropped arrays, then what
    // holds keys and endpoints, then the worker under them, then the context.
    graves: Graves,
    pool: Arc<Pool>,
    /// For large collectives, once there was one.
    stage: OnceLock<Stage>,
    /// What peers may ask for; None where all memory is mapped.
    served: Option<Arc<Served>>,
    engine: Engine,
    peers: Peers,
    nodes: Arc<Nodes>,
    /// Ranks that run on this machine, whether they can share memory or not.
    neighbours: Vec<usize>,
    limits: Arc<Limits>,
    worker: Worker,
    context: Context,
    transports: Option<String>,
}

/// What all teams of a process have in common, beside UCX's objects.
#[derive(Debug)]
struct Job {
    /// What this rank counts, if anybody wants to know.
    stats: Option<stats::Stats>,
    /// Of large messages between ranks of a node.
    outboxes: messages::Outboxes,
    /// Of the next request to an owner.
    next_ticket: AtomicU64,
    /// Of teams.
    numbers: Arc<Numbers>,
    /// Held while a team is divided, so that new teams get different numbers.
    dividing: Mutex<()>,
}

impl World {
    /// Runs `body` as one rank of the job this process was started for, and leaves the job when
    /// it returns. The usual `main`:
    ///
    /// ```no_run
    /// use pgas::World;
    ///
    /// fn main() -> pgas::Result<()> {
    ///     World::run(|world| {
    ///         println!("rank {} of {}", world.rank(), world.size());
    ///         Ok(())
    ///     })
    /// }
    /// ```
    ///
    /// Collective at its beginning and its end: it returns when all ranks have finished. An
    /// error or a panic of `body` on any rank ends the whole job with that rank's message.
    ///
    /// # Errors
    /// What `body` returns, or a failure to join or leave the job.
    ///
    /// # Panics
    /// If `body` does, after the launcher has been told.
    pub fn run<R, E>(body: impl FnOnce(&Self) -> Result<R, E>) -> Result<R, E>
    where
        E: From<Error> + fmt::Display,
    {
        let world = Self::from_env()?;
        match catch_unwind(AssertUnwindSafe(|| body(&world))) {
            Ok(Ok(value)) => {
                world.finish()?;
                Ok(value)
            }
            Ok(Err(error)) => {
                world.let_the_launcher_speak();
                world.fail(code::BROKEN, &error.to_string());
                Err(error)
            }
            Err(panic) => {
                world.fail(code::PANIC, &panic_message(panic.as_ref()));
                resume_unwind(panic)
            }
        }
    }

    /// Joins the job this process was started for; a program started by itself is alone.
    /// Dropping the world leaves the job, which waits for all ranks to do so.
    ///
    /// Collective. Prefer [`World::run`], which also reports errors and panics to the launcher. Raises
    /// this process's soft limit on open files to what UCX may need, as far as the hard limit allows.
    ///
    /// # Who started it
    /// The first of these whose variables are set:
    ///
    /// | `PGAS_BOOTSTRAP` | variables | started by |
    /// | --- | --- | --- |
    /// | `ucxrun` | `PGAS_CONTROL` and more | `ucxrun` |
    /// | `pmix` | `PMIX_NAMESPACE`, `PMIX_RANK` | `mpirun` of Open MPI, `prterun`, `srun --mpi=pmix` |
    /// | `pmi1` | `PMI_FD`, `PMI_RANK`, `PMI_SIZE`, or `PMI_PORT`, `PMI_ID` | `mpiexec.hydra`, `srun --mpi=pmi2` |
    /// | `env` | `RANK` or `JOB_COMPLETION_INDEX`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`, and a secret | Kubernetes, torchrun's like |
    /// | `env` | `SLURM_PROCID`, `SLURM_STEP_ID`, `SLURM_STEP_NUM_TASKS` | `srun` |
    /// | `single` | none | nobody: one rank |
    ///
    /// `PGAS_BOOTSTRAP` forces a way, which is an error if its variables are not set. PMIx needs
    /// `libpmix.so.2`, which is looked for where `PMIX_PREFIX` and the dynamic linker say, or is what
    /// `PGAS_PMIX_LIBRARY` names; without it the ways below are tried, and for `mpirun` a file as for
    /// `srun`.
    ///
    /// With `env` rank 0 listens for the others, at `MASTER_ADDR` if that is set. The secret is the text
    /// in the file that `PGAS_SECRET_FILE` names, or `PGAS_SECRET`: 16 bytes or more, the same on all
    /// ranks. Under `srun` none is needed: rank 0 writes its place and a fresh secret into a file in the
    /// working directory, or in `PGAS_RENDEZVOUS`, which only its user can read; it is removed when all
    /// have joined.
    ///
    /// Under all but `ucxrun`, this rank's failure is written to standard error. Then the process
    /// manager is asked to end the job; so it is if the program exits before the world has ended.
    /// With `env`, ranks that hear of a failure have a second to end by themselves.
    ///
    /// # Errors
    /// [`ErrorKind::Bootstrap`](crate::ErrorKind::Bootstrap) if variables of a job are missing or
    /// garbled, or if whoever started it cannot be reached or refuses;
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if UCX or this system cannot do
    /// what is needed, with the setting to try.
    pub fn from_env() -> Result<Self> {
        bootstrap::start()
    }

    /// Ends the whole job now: all ranks, with exit code `code` and `message` on standard error.
    /// One-sided.
    pub fn abort(&self, code: i32, message: &str) -> ! {
        if self.launcher.is_none() {
            eprintln!("{message}");
        }
        self.fail(code, message);
        std::process::exit(code)
    }

    /// Leaves the job properly. Collective.
    fn finish(&self) -> Result<()> {
        if self.ended.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let left = self
            .core
            .barrier(&Signature::new(Call::Finish))
            .or_else(|error| self.without_the_lost(error))
            .and_then(|()| match &self.launcher {
                Some(launcher) => {
                    if let Some(stats) = &self.team.core.job.stats {
                        launcher.stats(stats.report());
                    }
                    launcher.leave(&self.team.core.limits)
                }
                None => Ok(()),
            });
        if let Err(error) = &left {
            self.tell(code::BROKEN, &error.to_string());
        }
        left
    }

    /// If the job goes on without ranks that it has lost, its others leave it one by one: the launcher waits for them.
    fn without_the_lost(&self, error: Error) -> Result<()> {
        let _concerned = self.team.core.concerned_with_team();
        self.let_the_launcher_speak();
        match self.team.core.limits.goes_on_without_some() {
            true => Ok(()),
            false => Err(error),
        }
    }

    /// After a failed UCX call: a peer's death is often behind it, which the launcher is about to
    /// notice and to report by itself, with its cause.
    fn let_the_launcher_speak(&self) {
        let until = Instant::now() + Duration::from_millis(300);
        while self.launcher.is_some()
            && ucx_has_failed()
            && self.team.core.limits.check().is_ok()
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Tells the launcher that this rank has failed.
    fn fail(&self, code: i32, message: &str) {
        if !self.ended.swap(true, Ordering::AcqRel) {
            self.tell(code, message);
        }
    }

    fn tell(&self, code: i32, message: &str) {
        self.team.core.limits.close();
        // Peers may be dead: nothing is taken down in order any more.
        self.team.core.worker.end();
        if let Some(launcher) = &self.launcher {
            launcher.failed(code, message);
        }
    }
}

impl Deref for World {
    type Target = Team;

    fn deref(&self) -> &Team {
        &self.team
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if self.team.core.context.is_forked() {
            return; // The parent's to leave.
        }
        if std::thread::panicking() {
            self.fail(code::PANIC, "panicked");
        }
        // An error has been told to the launcher, and there is nobody else to tell.
        let _ = self.finish();
        if self.team.core.nodes.count() > 1 {
            self.team.core.worker.end();
        }
        self.team.core.limits.close();
        if let Some(launcher) = &self.launcher {
            launcher.close();
        }
        self.service = None;
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("rank", &self.rank())
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}

impl Core {
    #[inline]
    pub(crate) fn flush(&self) -> Result<()> {
        self.check()?;
        self.worker.flush()?;
        // For memory that is mapped: earlier stores before later ones.
        std::sync::atomic::fence(Ordering::SeqCst);
        Ok(())
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether all ranks share memory.
    pub(crate) fn is_one_node(&self) -> bool {
        self.nodes.count() == 1
    }

    /// Lets what is under way go on.
    pub(crate) fn progress(&self) -> Result<()> {
        self.worker.progress().map(drop)
    }

    /// As [`Core::progress`] if there are messages under way; whether there are.
    pub(crate) fn help_messages(&self) -> Result<bool> {
        self.worker.help_messages()
    }

    /// Those of this node. They stay as long as this does.
    pub(crate) fn bells(&self) -> &Bells {
        match &self.parent {
            Some(parent) => parent.bells(),
            None => self.engine.bells(),
        }
    }

    /// The longest that one wait may take.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.limits.timeout()
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Memory that small arrays share.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn graves(&self) -> &Graves {
        &self.graves
    }

    /// Whether this rank shares its memory with others.
    pub(crate) fn shares_memory(&self) -> bool {
        self.nodes.mine().len() > 1
    }

    /// The ranks that run on this machine: they take their memory from the same place.
    pub(crate) fn neighbours(&self) -> &[usize] {
        &self.neighbours
    }

    /// The number of the next array. Called in a collective, so it is the same on all ranks.
    pub(crate) fn next_array(&self) -> u64 {
        // Those of teams do not meet.
        u64::from(self.team) << 40 | self.next_array.fetch_add(1, Ordering::Relaxed)
    }

    /// This rank's number in the world.
    fn world_rank(&self) -> usize {
        self.peers.world_rank(self.rank)
    }

    /// Whether this machine has room for arrays: see [`room::Room::check`].
    pub(crate) fn check_room(&self, machine: u64, largest: u64, mine: u64) -> Result<(), String> {
        room::Room::on_this_machine().check(
            machine,
            largest,
            mine,
            self.transports.as_deref(),
            self.shares_memory(),
        )
    }

    /// What is free in /dev/shm, for messages.
    pub(crate) fn shm_text(&self) -> String {
        room::shm_text()
    }

    /// Makes this thread's collective, of however many exchanges, the only one of this rank. All
    /// collectives do, so that those of two threads do not mix.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if this thread has the turn: an
    /// operator calls a collective of its team.
    pub(crate) fn turn(&self) -> Result<TurnGuard<'_>> {
        // First: in a forked child the lock may be held by nobody.
        self.context.refuse_fork()?;
        self.turn.take(|| self.concerned_with_team())
    }

    /// # Errors
    /// [`Closed`](crate::ErrorKind::Closed) after the world has ended; the failure of another
    /// rank, if there was one that this thread is concerned with.
    pub(crate) fn check(&self) -> Result<()> {
        self.context.refuse_fork()?;
        self.limits.check()
    }

    /// What this thread waits for until the result is dropped comes from that rank of this team.
    ///
    /// # Errors
    /// As [`Core::check`].
    pub(crate) fn check_for(&self, rank: usize) -> Result<Concerned> {
        let concerned = self.concerned_with(rank);
        self.check().map(|()| concerned)
    }

    /// As [`Core::check_for`], without a look.
    pub(crate) fn concerned_with(&self, rank: usize) -> Concerned {
        self.limits.concerned(|| self.only(rank))
    }

    /// What this thread waits for until the result is dropped may come from any rank of this team.
    pub(crate) fn concerned_with_team(&self) -> Concerned {
        self.limits.concerned(|| self.all())
    }

    /// A rank of this team as a concern.
    fn only(&self, rank: usize) -> Concern {
        Concern::Rank(self.peers.world_rank(rank))
    }

    /// This team as a concern.
    fn all(&self) -> Concern {
        Concern::Ranks(self.peers.members())
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let Some(parent) = self.parent.take() else {
            return;
        };
        if self.context.is_forked() {
            return; // All is the parent process's.
        }
        // Its memory may still be used by its other ranks, until they have dropped it, too.
        let mut remains = self.graves.of_team();
        let memory = &mut remains.memory;
        memory.extend(self.engine.block_memory());
        memory.extend(self.stage.get().map(|stage| stage.memory().clone()));
        remains.teams.push(self.team);
        remains.open += self.engine.open_messages();
        self.job
            .numbers
            .arrays_below(self.next_array.load(Ordering::Relaxed));
        // No array has this number, and no other team of that number the same first rank.
        let first = self.peers.world_rank(0) as u64;
        let id = u64::from(self.team) << 40 | 1 << 39 | first;
        parent.graves.bury(id, self.size, Grave::Team(remains));
    }
}

/// What a panic said.
fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    match text {
        Some(text) => format!("panicked: {text}"),
        None => "panicked".into(),
    }
}
