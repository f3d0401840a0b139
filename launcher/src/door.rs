//! Where ranks come in: the control socket of one machine, or the TCP port of a store. Never blocks.
//!
//! The socket is in Linux's abstract name space: no file to leave behind, and connections of other users are closed at
//! once. All others must pass the handshake of `auth` before anything is parsed, a few at a time and within seconds.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::auth::{self, Greeting, Secret, Step};
use crate::connection::{Connection, send};
use crate::error::{Error, Result};
use crate::poll::{Token, Waits};
use crate::proc;
use crate::wire::{self, Frames, ToLauncher, ToRank};

/// Connections that may be in their handshake at the same time; more wait in the kernel.
pub(crate) const STRANGERS: usize = 16;
/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How long a machine may be silent if nobody says.
pub(crate) const LOST_AFTER: Duration = Duration::from_secs(30);
/// Most bytes of a `Join`.
const MAX_JOIN: usize = 1 << 12;

/// What has come to the door.
pub(crate) enum Visit {
    /// A rank of this machine, for the first time, as this process.
    Rank(u32, u32, Connection),
    /// A connection was turned down.
    Refused(String),
}

pub(crate) struct Door {
    listener: OwnedFd,
    /// Of a socket of this machine.
    name: Option<String>,
    key: Key,
    /// The ranks of this machine, and their processes if they have joined.
    ranks: BTreeMap<u32, Option<u32>>,
    strangers: [Option<Stranger>; STRANGERS],
    /// No descriptors were left for a connection: try again then.
    paused: Option<Instant>,
    /// How long a machine may be silent before its connections are taken for lost.
    pub(crate) lost_after: Duration,
    /// In the order in which they came.
    pub(crate) visits: VecDeque<Visit>,
}

/// What a job's ranks know and nobody else.
#[derive(Debug, Clone)]
pub(crate) struct Key {
    pub(crate) secret: Secret,
    pub(crate) job: [u8; 16],
    /// Number of ranks, on all machines.
    pub(crate) size: u32,
}

impl Key {
    /// A fresh one.
    pub(crate) fn random(size: u32) -> Result<Self> {
        Ok(Self {
            secret: Secret::random()?,
            job: auth::random()?,
            size,
        })
    }
}

struct Stranger {
    socket: OwnedFd,
    /// For people.
    who: String,
    until: Instant,
    greeting: Greeting,
    /// Exactly the bytes that the greeting asks for, never more.
    received: Vec<u8>,
    welcome: Option<(u32, Frames)>,
}

impl Door {
    /// Listens for `ranks`.
    pub(crate) fn open(key: Key, ranks: impl Iterator<Item = u32>) -> Result<Self> {
        let what = |e: Errno| Error::io("control socket", &e.into());
        let name = format!("pgas-{}", wire::to_hex(&auth::random::<16>()?));
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(what)?;
        let listener = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .map_err(what)?;
        rustix::net::bind(&listener, &address).map_err(what)?;
        rustix::net::listen(&listener, 4096).map_err(what)?;
        let mut door = Self::at(listener, key, ranks);
        door.name = Some(name);
        Ok(door)
    }

    /// At a socket that listens and does not block: lets in who knows the secret, from anywhere.
    pub(crate) fn at(listener: OwnedFd, key: Key, ranks: impl Iterator<Item = u32>) -> Self {
        Self {
            listener,
            name: None,
            key,
            ranks: ranks.map(|rank| (rank, None)).collect(),
            strangers: Default::default(),
            paused: None,
            lost_after: LOST_AFTER,
            visits: VecDeque::new(),
        }
    }

    /// The variables that lead a rank here.
    pub(crate) fn environment(&self) -> [(&'static str, String); 3] {
        let name = self.name.as_deref().unwrap_or_default();
        [
            (wire::env::CONTROL, format!("unix:@{name}")),
            (wire::env::SECRET, self.key.secret.to_hex()),
            (wire::env::JOB, wire::to_hex(&self.key.job)),
        ]
    }

    pub(crate) fn waits<'a>(&'a self, waits: &mut Waits<'a>) {
        if self.paused.is_some() {
            waits.until(self.paused);
        } else if self.strangers.iter().any(Option::is_none) {
            waits.on(Token::Listener, self.listener.as_fd(), PollFlags::IN);
        }
        for (slot, stranger) in self.strangers.iter().enumerate() {
            if let Some(stranger) = stranger {
                waits.on(
                    Token::Stranger(slot),
                    stranger.socket.as_fd(),
                    PollFlags::IN,
                );
                waits.until(stranger.until);
            }
        }
    }

    /// Closes connections whose handshake takes too long.
    pub(crate) fn clock(&mut self, now: Instant) {
        if self.paused.is_some_and(|until| until <= now) {
            self.paused = None;
        }
        for slot in &mut self.strangers {
            if let Some(stranger) = slot.take_if(|stranger| stranger.until <= now) {
                self.visits.push_back(Visit::Refused(format!(
                    "{}: no handshake within {HANDSHAKE:?}",
                    stranger.who
                )));
            }
        }
    }

    /// Accepts what waits, as far as there is room.
    pub(crate) fn accept(&mut self) {
        while let Some(slot) = self.strangers.iter().position(Option::is_none) {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match rustix::net::accept_with(&self.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.paused = Some(Instant::now() + Duration::from_millis(50));
                    return;
                }
            };
            let who = match self.visitor(&socket) {
                Ok(Some(who)) => who,
                Ok(None) => continue,
                Err(who) => {
                    self.visits.push_back(Visit::Refused(who));
                    continue;
                }
            };
            let Key { secret, job, size } = self.key.clone();
            self.strangers[slot] = Some(Stranger {
                socket,
                who,
                until: Instant::now() + HANDSHAKE,
                greeting: Greeting::new(secret, job, size),
                received: Vec::new(),
                welcome: None,
            });
            // Its first bytes are often there already.
            self.greet(slot);
        }
    }

    /// Who has come, if they are still there; an error is why they are turned down.
    fn visitor(&self, socket: &OwnedFd) -> std::result::Result<Option<String>, String> {
        if self.name.is_none() {
            let Ok(address) = rustix::net::getpeername(socket) else {
                return Ok(None);
            };
            // Without these, a failure is noticed later.
            let _ = watch_link(socket, self.lost_after);
            let address = address.and_then(|address| std::net::SocketAddr::try_from(address).ok());
            let unknown = || "unknown address".to_owned();
            return Ok(Some(
                address.map_or_else(unknown, |address| address.to_string()),
            ));
        }
        let Ok((pid, uid)) = proc::peer(socket) else {
            return Ok(None);
        };
        if uid != rustix::process::geteuid().as_raw() {
            return Err(format!("process {pid}: belongs to user {uid}"));
        }
        Ok(Some(format!("process {pid}")))
    }

    /// Goes on with a handshake.
    pub(crate) fn greet(&mut self, slot: usize) {
        let Some(mut stranger) = self.strangers[slot].take() else {
            return;
        };
        match stranger.advance() {
            Ok(Progress::Waiting) => self.strangers[slot] = Some(stranger),
            Ok(Progress::Join(rank, frames, pid)) => self.join(rank, frames, pid, stranger.socket),
            Err(reason) => {
                let who = stranger.who;
                self.visits
                    .push_back(Visit::Refused(format!("{who}: {reason}")));
            }
        }
    }

    fn join(&mut self, rank: u32, frames: Frames, pid: u32, socket: OwnedFd) {
        let reason = match self.ranks.get_mut(&rank) {
            Some(joined @ None) => {
                *joined = Some(pid);
                let connection = Connection::new(socket, frames);
                self.visits.push_back(Visit::Rank(rank, pid, connection));
                return;
            }
            Some(Some(first)) => format!(
                "process {first} has already joined the job as rank {rank}; a program that a rank starts is not a rank"
            ),
            None => format!("rank {rank} belongs to another machine"),
        };
        let refused = ToRank::Refused {
            reason: reason.clone(),
        };
        if let Ok(frame) = wire::frame(&refused, wire::MAX_TO_RANK) {
            // The socket is fresh and the frame small: if it does not fit, nobody waits for it.
            let _ = send(&socket, &frame);
        }
        self.visits
            .push_back(Visit::Refused(format!("process {pid}: {reason}")));
    }
}

enum Progress {
    Waiting,
    /// Rank, what came after its `Join`, process.
    Join(u32, Frames, u32),
}

impl Stranger {
    /// Reads no more than the next step takes. The error is why the connection is closed.
    fn advance(&mut self) -> std::result::Result<Progress, String> {
        let mut buffer = [0; MAX_JOIN];
        loop {
            let wants = match &self.welcome {
                Some(_) => MAX_JOIN,
                None => self.greeting.wants() - self.received.len(),
            };
            let n = match rustix::io::read(&self.socket, &mut buffer[..wants]) {
                Ok(0) => return Err("closed the connection during the handshake".to_owned()),
                Ok(n) => n,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(Progress::Waiting),
                Err(error) => return Err(format!("handshake: {error}")),
            };
            if let Some((rank, frames)) = &mut self.welcome {
                frames.push(&buffer[..n]);
                match frames.next(MAX_JOIN).map_err(|e| e.to_string())? {
                    None => {}
                    Some(ToLauncher::Join {
                        rank: said, pid, ..
                    }) if said == *rank => {
                        return Ok(Progress::Join(*rank, std::mem::take(frames), pid));
                    }
                    Some(_) => return Err("did not join as it should".to_owned()),
                }
            } else {
                self.received.extend_from_slice(&buffer[..n]);
                self.step()?;
            }
        }
    }

    fn step(&mut self) -> std::result::Result<(), String> {
        if self.received.len() < self.greeting.wants() {
            return Ok(());
        }
        let step = self
            .greeting
            .step(&self.received)
            .map_err(|e| e.to_string())?;
        self.received.clear();
        // A fresh socket takes these few bytes.
        let sent = match &step {
            Step::Challenge(bytes) => send(&self.socket, bytes),
            Step::Welcome(_, bytes) => send(&self.socket, bytes),
            Step::Refuse(_, bytes) => send(&self.socket, bytes),
        };
        sent.map_err(|e| format!("handshake: {e}"))?;
        match step {
            Step::Challenge(_) => Ok(()),
            Step::Welcome(rank, _) => {
                self.welcome = Some((rank, Frames::default()));
                Ok(())
            }
            Step::Refuse(refusal, _) => Err(format!("refused: {refusal:?}")),
        }
    }
}

/// Has the kernel send at once, and look again and again whether the other end of a TCP connection is still there: the
/// connection ends when the other machine has been silent for `limit`, in whole seconds.
pub(crate) fn watch_link(socket: &OwnedFd, limit: Duration) -> rustix::io::Result<()> {
    let part = |part: u64| Duration::from_secs((limit.as_secs() / part).clamp(1, 3600));
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, part(3))?;
    sockopt::set_tcp_keepintvl(socket, part(6))?;
    // As many as it takes: what ends the connection is the next.
    sockopt::set_tcp_keepcnt(socket, 10)?;
    let millis = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(socket, millis)
}
