//! How a process becomes a rank: who is there, UCX, addresses, shared memory, and then a world.
//!
//! Steps 1 to 4 are gathers through whoever started the ranks, who never sees what they mean.
//! 1. identities: library and UCX versions, host, namespaces
//! 2. worker addresses, and from the lowest rank of each machine the key to its meeting block
//! 3. whether that block could be mapped: machines where it could are *nodes*
//! 4. only if there are several nodes: addresses of the workers that serve memory

mod detect;
#[cfg(test)]
mod fuzz;
pub(super) mod manager;
mod pmi1;
mod pmix;
pub(super) mod store;

use super::ask::{Desk, Served, Unsettled};
use super::collective::{decode, encode};
use super::control::{Launcher, abort, report};
use super::engine::Engine;
use super::graves::Graves;
use super::identity::{Identity, barriers};
use super::messages::{Mailbox, Outboxes};
use super::node::{self, Block};
use super::numbers::Numbers;
use super::peers::{Nodes, Peers};
use super::pool::Pool;
use super::progress::Service;
use super::races::{Checks, Races};
use super::room::{allows_posix, provide_files, shm_text};
use super::stats::Stats;
use super::turn::Turn;
use super::{Core, Job, Team, World};
use crate::error::{Error, ErrorKind, Result};
use crate::ucx::{Context, Endpoint, MemoryHandle, SerializedRemoteKey};
use crate::wait::{self, Limits};
use detect::Found;
use manager::Manager;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use ucxrun::client::Control;
use ucxrun::wire::exit;

/// The way to the other ranks before UCX can be used.
enum Bootstrap {
    Alone,
    /// By `ucxrun`.
    Launched(Control),
    /// By nobody that connects its ranks: rank 0 does.
    Stored(store::Joined),
    /// By a process manager of someone else's.
    Managed(Box<dyn Manager>),
}

impl Bootstrap {
    /// By `deadline`, as far as others are waited for.
    fn join(deadline: Instant) -> Result<Self> {
        let get = |name: &str| std::env::var_os(name);
        let mut found = detect::find(get, true)?;
        if !matches!(found, Found::Nothing) {
            static JOINED: AtomicBool = AtomicBool::new(false);
            if JOINED.swap(true, Ordering::AcqRel) {
                return Err(Error::new(
                    ErrorKind::Bootstrap,
                    "this process has already been a rank of its job",
                ));
            }
        }
        if matches!(found, Found::Pmix) {
            match pmix::library(&get) {
                Ok(api) => return Ok(Self::Managed(Box::new(pmix::Client::join(api)?))),
                Err(error) if detect::is_forced(get) => return Err(error),
                // Another way may do as well.
                Err(error) => match detect::find(get, false)? {
                    Found::Nothing => return Err(error),
                    other => found = other,
                },
            }
        }
        match found {
            Found::Nothing | Found::Pmix => Ok(Self::Alone),
            Found::Ucxrun => match Control::from_env().map_err(from_launcher)? {
                Some(control) => Ok(Self::Launched(control)),
                None => Ok(Self::Alone),
            },
            Found::Store(rank, size, meeting) => {
                let joined = store::join(&meeting, (rank, size), deadline)?;
                Ok(Self::Stored(joined))
            }
            Found::Pmi1(way) => Ok(Self::Managed(Box::new(pmi1::Client::join(&way)?))),
        }
    }

    fn rank(&self) -> usize {
        match self {
            Self::Alone => 0,
            Self::Launched(control) => control.rank() as usize,
            Self::Stored(joined) => joined.control.rank() as usize,
            Self::Managed(manager) => manager.rank(),
        }
    }

    fn size(&self) -> usize {
        match self {
            Self::Alone => 1,
            Self::Launched(control) => control.size() as usize,
            Self::Stored(joined) => joined.control.size() as usize,
            Self::Managed(manager) => manager.size(),
        }
    }

    /// A number for the job that no other job has; rank 0's is taken.
    fn job(&self) -> Result<u128> {
        match self {
            Self::Alone => Ok(0),
            Self::Launched(control) => Ok(u128::from_le_bytes(control.job())),
            Self::Managed(_) | Self::Stored(_) => {
                let mut bytes = [0; 16];
                rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
                    .map_err(|error| {
                        Error::new(ErrorKind::Bootstrap, format!("no random bytes: {error}"))
                    })?;
                Ok(u128::from_le_bytes(bytes))
            }
        }
    }

    /// All ranks' `item`, by rank. Collective.
    fn gather<T: Serialize + serde::de::DeserializeOwned>(
        &mut self,
        item: &T,
        timeout: Option<Duration>,
    ) -> Result<Vec<T>> {
        let blob = encode(item)?;
        let deadline = deadline_in(timeout);
        let blobs = match self {
            Self::Alone => vec![blob],
            Self::Launched(control) => control.gather(&blob, deadline).map_err(from_launcher)?,
            Self::Stored(joined) => {
                let blobs = joined.control.gather(&blob, deadline);
                // All have joined, so nobody looks for it any more.
                joined.file = None;
                blobs.map_err(from_launcher)?
            }
            Self::Managed(manager) => manager.gather(&blob, deadline)?,
        };
        blobs.iter().map(|blob| decode(blob)).collect()
    }

    /// Tells why this rank fails to start: who started it would notice its exit, but not why.
    fn failed(self, error: &Error) {
        match self {
            Self::Alone => {}
            Self::Launched(control) => {
                let (_, writer) = control.split();
                let _ = writer.failed(exit::BROKEN, error.to_string());
            }
            Self::Stored(joined) => {
                let rank = joined.control.rank() as usize;
                report(rank, &error.to_string());
                let (_, writer) = joined.control.split();
                let _ = writer.failed(exit::BROKEN, error.to_string());
                if let Some(keeper) = &joined.keeper {
                    keeper.wait_until_told();
                }
            }
            Self::Managed(mut manager) => {
                abort(&mut *manager, exit::BROKEN, &error.to_string());
            }
        }
    }
}

/// `timeout` from now; a day if there is none.
pub(super) fn deadline_in(timeout: Option<Duration>) -> Instant {
    let now = Instant::now();
    let day = Duration::from_secs(24 * 3600);
    let limit = timeout.and_then(|limit| now.checked_add(limit));
    limit.unwrap_or(now + day)
}

/// Returns when `fd` is ready for one of `flags`, or was closed by its other end.
fn wait_for_end(fd: &OwnedFd, flags: PollFlags) {
    loop {
        let mut fds = [PollFd::new(fd, flags)];
        match poll(&mut fds, None) {
            Err(Errno::INTR) => {}
            _ => return,
        }
    }
}

fn from_launcher(error: ucxrun::Error) -> Error {
    let kind = match error.kind() {
        ucxrun::ErrorKind::Timeout => ErrorKind::Timeout,
        ucxrun::ErrorKind::PeerFailed => ErrorKind::PeerFailed,
        ucxrun::ErrorKind::Forked => ErrorKind::Forked,
        _ => ErrorKind::Bootstrap,
    };
    let ours = Error::new(kind, format!("joining the job: {error}"));
    match error.peer() {
        Some(rank) => ours.with_peer(rank as usize),
        None => ours,
    }
}

pub(super) fn start() -> Result<World> {
    let (timeout, checks) = (timeout_from_env()?, Checks::from_env()?);
    wait::rules_from_env()?;
    let mut bootstrap = Bootstrap::join(deadline_in(timeout))?;
    let limits = Arc::new(Limits::default());
    limits.set_timeout(timeout);
    if std::env::var_os(ucxrun::wire::env::KEEP_GOING).is_some() {
        limits.go_on();
    }
    if std::env::var_os(ucxrun::wire::env::WATCH).is_some() {
        limits.watch();
    }
    match assemble(&mut bootstrap, &limits, checks) {
        Ok((core, service, network)) => {
            let launcher = match bootstrap {
                Bootstrap::Alone => None,
                Bootstrap::Launched(control) => Some(Launcher::listen(control, limits, None)?),
                Bootstrap::Stored(joined) => {
                    let store = Some(joined.keeper);
                    Some(Launcher::listen(joined.control, limits, store)?)
                }
                Bootstrap::Managed(manager) => Some(Launcher::watch(manager, limits)?),
            };
            let world = World {
                service,
                launcher,
                team: Team::new(Arc::new(core)),
                ended: AtomicBool::new(false),
            };
            if let (Some(launcher), Some(network)) = (&world.launcher, network) {
                launcher.notice(network);
            }
            if let Some(races) = world.team.core.races()
                && let Err(error) = races.start(&world.team.core)
            {
                world.fail(exit::BROKEN, &error.to_string());
                return Err(error);
            }
            Ok(world)
        }
        Err(error) => {
            bootstrap.failed(&error);
            Err(error)
        }
    }
}

/// What a rank says first.
#[derive(Serialize, Deserialize)]
struct Greeting {
    identity: Identity,
    /// Its proposal for the job's number.
    job: u128,
}

/// A rank's address, and its machine's meeting block if it is the lowest rank there.
#[derive(Serialize, Deserialize)]
struct Card {
    address: Vec<u8>,
    block: Option<SerializedRemoteKey>,
}

fn assemble(
    bootstrap: &mut Bootstrap,
    limits: &Arc<Limits>,
    checks: Checks,
) -> Result<(Core, Option<Service>, Option<String>)> {
    let timeout = limits.timeout();
    let (rank, size) = (bootstrap.rank(), bootstrap.size());

    let mut me = Identity::of_this_process();
    me.checks = checks;
    let me = Greeting {
        identity: me,
        job: bootstrap.job()?,
    };
    let greetings = bootstrap.gather(&me, timeout)?;
    let job = greetings[0].job;
    let me = me.identity;
    let everybody: Vec<_> = greetings.into_iter().map(|one| one.identity).collect();
    same_software(&everybody)?;
    let checks = Checks::of_all(everybody.iter().map(|one| one.checks))?;
    let races = (checks == Checks::Races).then(|| Arc::new(Races::new(rank, size)));
    let machines: Vec<u64> = everybody.iter().map(Identity::machine).collect();
    let machine = Nodes::new(&machines, rank);
    let cores = machine.mine().iter().map(|&rank| &everybody[rank].cores);
    crate::cores::divide(&me.cores, &cores.collect::<Vec<_>>());

    let ranks_here = machine.mine().len();
    let start_failed = |error: Error| start_failed(error, ranks_here);
    let context = start_ucx(job, rank, &everybody).map_err(start_failed)?;
    let worker = context.worker_within(limits).map_err(start_failed)?;
    let alone = ranks_here == 1;
    let leads = machine.my_place() == 0;
    let memory = if leads && !alone {
        let words = node::words(ranks_here);
        Some(MemoryHandle::allocate::<u64>(&context, words).map_err(start_failed)?)
    } else {
        None
    };
    let card = Card {
        address: worker.address()?.to_bytes(),
        block: memory.as_ref().map(MemoryHandle::pack).transpose()?,
    };
    let cards = bootstrap.gather(&card, timeout)?;
    let addresses: Vec<_> = cards.iter().map(|card| card.address.clone()).collect();

    let peers = Peers::new(worker.clone(), addresses.clone());
    let block = if alone {
        None
    } else {
        let leader = &cards[machine.mine()[0]];
        meet(&peers, &machine, memory, leader.block.as_ref()).map_err(start_failed)?
    };
    let neighbours = machine.mine().to_vec();
    let mapped = bootstrap.gather(&(alone || block.is_some()), timeout)?;
    let nodes = nodes_of(&machines, &mapped, rank);
    let block = block.filter(|_| nodes.mine().len() > 1).map(Arc::new);

    let (mut service, mut served) = (None, None);
    if nodes.count() > 1 {
        let serving = context.worker_within(limits).map_err(start_failed)?;
        let address = serving.address()?.to_bytes();
        let memory = served.insert(Arc::new(Served::default())).clone();
        let desk = Desk::new(serving.clone(), addresses, memory);
        service = Some(Service::start(serving, desk, block.clone())?);
        peers.serve_at(bootstrap.gather(&address, timeout)?);
    }

    let network = network(&peers, &nodes, rank, &everybody);
    let nodes = Arc::new(nodes);
    let pool = Arc::new(Pool::default());
    let numbers = Arc::new(Numbers::default());
    let core = Core {
        rank,
        size,
        team: 0,
        parent: None,
        job: Arc::new(Job {
            stats: Stats::from_env(size),
            outboxes: Outboxes::default(),
            next_ticket: AtomicU64::new(0),
            numbers: numbers.clone(),
            dividing: Mutex::default(),
        }),
        next_array: AtomicU64::new(0),
        turn: Turn::default(),
        races: races.clone(),
        next_part: AtomicU32::new(0),
        unsettled: Unsettled::default(),
        to_self: Mailbox::default(),
        graves: Graves::new(served.clone(), pool.clone(), numbers),
        pool,
        stage: OnceLock::new(),
        served,
        engine: Engine::new(
            peers.clone(),
            nodes.clone(),
            block,
            rank,
            0,
            races,
            limits.clone(),
        ),
        peers,
        nodes,
        neighbours,
        limits: limits.clone(),
        worker,
        context,
        transports: me.transports,
    };
    Ok((core, service, network))
}

/// What UCX has chosen between rank 0 and the first rank of another node, or of its own if there is no other: told by
/// rank 0, if somebody wants to hear it.
fn network(peers: &Peers, nodes: &Nodes, rank: usize, everybody: &[Identity]) -> Option<String> {
    if rank != 0 || std::env::var_os(ucxrun::wire::env::NOTICES).is_none() {
        return None;
    }
    let other = match nodes.count() {
        1 => *nodes.mine().get(1)?,
        _ => nodes.leader_of(1),
    };
    let lanes = peers.for_messages(other).and_then(Endpoint::lanes);
    let lanes = lanes.map_or_else(|error| error.to_string(), |lanes| lanes.join(", "));
    let host = &everybody[other].host;
    Some(format!("network to rank {other} on host {host}: {lanes}"))
}

/// Refuses ranks that would misunderstand each other.
fn same_software(everybody: &[Identity]) -> Result<()> {
    let first = &everybody[0];
    for (rank, other) in everybody.iter().enumerate() {
        if other.version != first.version || other.ucx != first.ucx {
            let of = |one: &Identity| {
                let (major, minor, release) = one.ucx;
                format!(
                    "pgas {} on UCX {major}.{minor}.{release} ({})",
                    one.version, one.host
                )
            };
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "rank 0 runs {}, rank {rank} runs {}: all must be the same",
                    of(first),
                    of(other)
                ),
            ));
        }
    }
    Ok(())
}

fn start_ucx(job: u128, rank: usize, everybody: &[Identity]) -> Result<Context> {
    provide_files(everybody.len())
        .map_err(|text| Error::new(ErrorKind::Unsupported, format!("starting UCX: {text}")))?;
    let mut builder = Context::builder()
        .job(job)
        .rank(u32::try_from(rank).unwrap_or(u32::MAX));
    let between = barriers(everybody);
    let mine = &everybody[rank].transports;
    if between.posix && mine.is_some() && allows_posix(mine.as_deref()) && crashes_without_shm() {
        return Err(Error::new(
            ErrorKind::NoRoom,
            "UCX_TLS allows POSIX shared memory, which does not work between these ranks: too little \
             room in /dev/shm, or another user or process namespace",
        ));
    }
    let without = match (between.posix, between.sysv) {
        (false, false) => None,
        (true, false) => Some("^posix,cma"),
        (false, true) => Some("^sysv,cma"),
        (true, true) => Some("^shm"),
    };
    if let Some(without) = without {
        builder = builder.default_option("TLS", without);
    }
    builder.build()
}

/// UCX 1.22 does not survive a /dev/shm that is too small for its workers; 1.13 reports it.
fn crashes_without_shm() -> bool {
    crate::ucx::version() >= (1, 16, 0)
}

/// Maps the machine's meeting block; None if that is not possible.
fn meet(
    peers: &Peers,
    machine: &Nodes,
    memory: Option<MemoryHandle>,
    key: Option<&SerializedRemoteKey>,
) -> Result<Option<Block>> {
    let members = machine.mine().len();
    let Some(key) = key else {
        return Ok(None);
    };
    let key = peers.for_messages(machine.mine()[0])?.unpack(key)?;
    if key.as_ptr().is_none() {
        return Ok(None);
    }
    Ok(match memory {
        Some(memory) => Block::of_leader(memory, members),
        None => Block::of_member(key, members, machine.my_place()),
    })
}

/// Machines whose ranks all mapped their block are nodes; on others each rank is its own.
fn nodes_of(machines: &[u64], mapped: &[bool], rank: usize) -> Nodes {
    let broken: HashSet<u64> = machines
        .iter()
        .zip(mapped)
        .filter_map(|(&machine, &mapped)| (!mapped).then_some(machine))
        .collect();
    let node_of: Vec<_> = machines
        .iter()
        .enumerate()
        .map(|(rank, machine)| (machine, broken.contains(machine).then_some(rank)))
        .collect();
    Nodes::new(&node_of, rank)
}

/// A failed start, with what usually is behind it.
fn start_failed(error: Error, ranks: usize) -> Error {
    if error.kind() == ErrorKind::Unsupported {
        return error; // Says itself what to do.
    }
    let room = shm_text();
    let hint = format!(
        "starting UCX for {ranks} ranks on this machine ({room}; a rank needs about 5 MiB there; \
         to use other transports set UCX_TLS, for example to sysv,tcp,self or tcp,self)"
    );
    error.context(hint)
}

fn timeout_from_env() -> Result<Option<Duration>> {
    let seconds = match std::env::var("PGAS_TIMEOUT") {
        Err(_) => wait::DEFAULT_TIMEOUT.as_secs(),
        Ok(text) => text.trim().parse().map_err(|_| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!("PGAS_TIMEOUT is {text:?}, not a number of seconds"),
            )
        })?,
    };
    Ok((seconds > 0).then(|| Duration::from_secs(seconds)))
}
