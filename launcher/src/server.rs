//! The control socket: lets ranks in, gathers their blobs, tells them of failures. Never blocks.
//!
//! A socket in Linux's abstract name space: no file to leave behind. Connections of other users are closed at once;
//! others must pass the handshake of `auth` before anything is parsed, a few at a time and within seconds.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::auth::{self, Greeting, Secret, Step};
use crate::error::{Error, Result};
use crate::poll::{Token, Waits};
use crate::wire::{self, Frames, ToLauncher, ToRank};

/// Connections that may be in their handshake at the same time; more wait in the kernel.
pub(crate) const STRANGERS: usize = 16;
/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Most bytes of a `Join`.
const MAX_JOIN: usize = 1 << 12;
/// Messages that a rank may leave unread.
const UNREAD: usize = 16;

/// What ranks have done.
#[derive(Debug)]
pub(crate) enum Event {
    /// Joined, as this process.
    Joined(usize, u32),
    /// Said that it has failed.
    Failed(usize, i32, String),
    /// Closed its connection without leaving.
    Lost(usize),
    /// Did what the protocol does not allow.
    Broke(usize, String),
    /// A connection was turned down.
    Refused(String),
}

/// How far a rank has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Absent,
    Joined,
    Left,
}

pub(crate) struct Server {
    listener: OwnedFd,
    name: String,
    secret: Secret,
    job: [u8; 16],
    members: Vec<Member>,
    strangers: [Option<Stranger>; STRANGERS],
    round: u32,
    blobs: Vec<Option<Vec<u8>>>,
    /// No descriptors were left for a connection: try again then.
    paused: Option<Instant>,
    /// In the order in which they happened.
    pub(crate) events: VecDeque<Event>,
}

struct Member {
    state: State,
    pid: u32,
    connection: Option<Connection>,
}

struct Connection {
    socket: OwnedFd,
    frames: Frames,
    outbox: VecDeque<Arc<[u8]>>,
    /// Bytes of the outbox's first frame that are sent.
    sent: usize,
}

struct Stranger {
    socket: OwnedFd,
    pid: i32,
    until: Instant,
    greeting: Greeting,
    /// Exactly the bytes that the greeting asks for, never more.
    received: Vec<u8>,
    welcome: Option<(usize, Frames)>,
}

impl Server {
    pub(crate) fn open(size: u32) -> Result<Self> {
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
        let absent = || Member {
            state: State::Absent,
            pid: 0,
            connection: None,
        };
        Ok(Self {
            listener,
            name,
            secret: Secret::random()?,
            job: auth::random()?,
            members: (0..size).map(|_| absent()).collect(),
            strangers: Default::default(),
            round: 0,
            blobs: (0..size).map(|_| None).collect(),
            paused: None,
            events: VecDeque::new(),
        })
    }

    /// The variables that lead a rank here.
    pub(crate) fn environment(&self) -> [(&'static str, String); 3] {
        [
            (wire::env::CONTROL, format!("unix:@{}", self.name)),
            (wire::env::SECRET, self.secret.to_hex()),
            (wire::env::JOB, wire::to_hex(&self.job)),
        ]
    }

    pub(crate) fn state(&self, rank: usize) -> State {
        self.members[rank].state
    }

    /// Whether no rank holds a connection.
    pub(crate) fn deserted(&self) -> bool {
        self.members
            .iter()
            .all(|member| member.connection.is_none())
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
        for (rank, member) in self.members.iter().enumerate() {
            if let Some(connection) = &member.connection {
                let mut flags = PollFlags::IN;
                if !connection.outbox.is_empty() {
                    flags |= PollFlags::OUT;
                }
                waits.on(Token::Member(rank), connection.socket.as_fd(), flags);
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
                self.events.push_back(Event::Refused(format!(
                    "process {}: no handshake within {HANDSHAKE:?}",
                    stranger.pid
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
            let Ok(peer) = sockopt::socket_peercred(&socket) else {
                continue;
            };
            let pid = peer.pid.as_raw_nonzero().get();
            if peer.uid != rustix::process::geteuid() {
                let who = format!("process {pid}: belongs to user {}", peer.uid.as_raw());
                self.events.push_back(Event::Refused(who));
                continue;
            }
            let size = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
            self.strangers[slot] = Some(Stranger {
                socket,
                pid,
                until: Instant::now() + HANDSHAKE,
                greeting: Greeting::new(self.secret.clone(), self.job, size),
                received: Vec::new(),
                welcome: None,
            });
            // Its first bytes are often there already.
            self.greet(slot);
        }
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
                let pid = stranger.pid;
                self.events
                    .push_back(Event::Refused(format!("process {pid}: {reason}")));
            }
        }
    }

    fn join(&mut self, rank: usize, frames: Frames, pid: u32, socket: OwnedFd) {
        let member = &mut self.members[rank];
        let verb = match member.state {
            State::Absent => None,
            State::Joined => Some("joined"),
            State::Left => Some("left"),
        };
        if let Some(verb) = verb {
            let reason = format!(
                "process {} has already {verb} the job as rank {rank}; a program that a rank starts is not a rank",
                member.pid
            );
            let refused = ToRank::Refused {
                reason: reason.clone(),
            };
            if let Ok(frame) = wire::frame(&refused, wire::MAX_TO_RANK) {
                // The socket is fresh and the frame small: if it does not fit, nobody waits for it.
                let _ = send(&socket, &frame);
            }
            self.events
                .push_back(Event::Refused(format!("process {pid}: {reason}")));
            return;
        }
        *member = Member {
            state: State::Joined,
            pid,
            connection: Some(Connection {
                socket,
                frames,
                outbox: VecDeque::new(),
                sent: 0,
            }),
        };
        self.events.push_back(Event::Joined(rank, pid));
        self.tell(rank, &ToRank::Joined);
        self.messages(rank);
    }

    /// Sends what waits for `rank` and reads what has come from it: all that a socket holds, but not for ever from a
    /// rank that sends without end.
    pub(crate) fn serve(&mut self, rank: usize) {
        let mut buffer = [0; 1 << 16];
        for _ in 0..1000 {
            let Some(connection) = &mut self.members[rank].connection else {
                return;
            };
            // If that fails, the end comes after what is still to be read.
            let _ = connection.flush();
            match rustix::io::read(&connection.socket, &mut buffer) {
                Ok(n) if n > 0 => {
                    connection.frames.push(&buffer[..n]);
                    self.messages(rank);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Ok(_) | Err(_) => {
                    self.close(rank);
                    return;
                }
            }
        }
    }

    fn close(&mut self, rank: usize) {
        let member = &mut self.members[rank];
        if member.connection.take().is_some() && member.state == State::Joined {
            self.events.push_back(Event::Lost(rank));
        }
    }

    fn broke(&mut self, rank: usize, what: String) {
        self.members[rank].connection = None;
        self.events.push_back(Event::Broke(rank, what));
    }

    /// Handles the messages that are complete.
    fn messages(&mut self, rank: usize) {
        while let Some(connection) = &mut self.members[rank].connection {
            match connection.frames.next(wire::MAX_TO_LAUNCHER) {
                Ok(None) => return,
                Ok(Some(message)) => self.message(rank, message),
                Err(error) => self.broke(rank, format!("unreadable message: {error}")),
            }
        }
    }

    fn message(&mut self, rank: usize, message: ToLauncher) {
        let left = self.members[rank].state == State::Left;
        match message {
            ToLauncher::Failed { code, message } => {
                self.events.push_back(Event::Failed(rank, code, message));
            }
            ToLauncher::Leave if !left => self.leave(rank),
            ToLauncher::Gather { round, blob } if !left => self.gather(rank, round, blob),
            ToLauncher::WhoIsMissing { round } if !left && round == self.round => {
                let missing = self
                    .blobs
                    .iter()
                    .zip(0..)
                    .filter(|(blob, _)| blob.is_none());
                let ranks = missing.map(|(_, rank)| rank).collect();
                self.tell(rank, &ToRank::Missing { round, ranks });
            }
            // The answer is on its way.
            ToLauncher::WhoIsMissing { .. } => {}
            ToLauncher::Join { .. } => self.broke(rank, "joined twice".to_owned()),
            _ => self.broke(rank, "sent a message after it had left the job".to_owned()),
        }
    }

    fn leave(&mut self, rank: usize) {
        if self.blobs.iter().any(Option::is_some) {
            let round = self.round;
            return self.broke(
                rank,
                format!("left the job while others wait for it in gather {round}"),
            );
        }
        self.members[rank].state = State::Left;
        if self
            .members
            .iter()
            .all(|member| member.state == State::Left)
        {
            self.tell_all(&ToRank::Goodbye);
        }
    }

    fn gather(&mut self, rank: usize, round: u32, blob: Vec<u8>) {
        let expected = self.round;
        if round != expected || self.blobs[rank].is_some() {
            return self.broke(
                rank,
                format!("called gather {round} when gather {expected} was due"),
            );
        }
        if let Some(gone) = self
            .members
            .iter()
            .position(|member| member.state == State::Left)
        {
            let what = format!("called gather {round} after rank {gone} had left the job");
            return self.broke(rank, what);
        }
        self.blobs[rank] = Some(blob);
        if self.blobs.iter().all(Option::is_some) {
            let blobs = self.blobs.iter_mut().filter_map(Option::take).collect();
            self.round += 1;
            self.tell_all(&ToRank::Gathered { round, blobs });
        }
    }

    fn tell(&mut self, rank: usize, message: &ToRank) {
        match wire::frame(message, wire::MAX_TO_RANK) {
            Ok(frame) => self.post(rank, frame),
            Err(error) => self.broke(rank, error.to_string()),
        }
    }

    /// Encodes once, sends to all that are connected.
    pub(crate) fn tell_all(&mut self, message: &ToRank) {
        let frame = wire::frame(message, wire::MAX_TO_RANK);
        for rank in 0..self.members.len() {
            match &frame {
                Ok(frame) => self.post(rank, Arc::clone(frame)),
                Err(error) => self.broke(rank, format!("too much to gather: {error}")),
            }
        }
    }

    fn post(&mut self, rank: usize, frame: Arc<[u8]>) {
        let Some(connection) = &mut self.members[rank].connection else {
            return;
        };
        connection.outbox.push_back(frame);
        // If that fails, the rank is gone, and `serve` finds that out after what it has said before.
        let _ = connection.flush();
        if connection.outbox.len() > UNREAD {
            self.broke(rank, "does not read what the launcher sends".to_owned());
        }
    }
}

impl Connection {
    /// Sends as much as fits.
    fn flush(&mut self) -> std::result::Result<(), Errno> {
        while let Some(frame) = self.outbox.front() {
            match send(&self.socket, &frame[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => {
                    self.outbox.clear();
                    self.sent = 0;
                    return Err(error);
                }
            }
            if self.sent == frame.len() {
                self.outbox.pop_front();
                self.sent = 0;
            }
        }
        Ok(())
    }
}

fn send(socket: &OwnedFd, bytes: &[u8]) -> std::result::Result<usize, Errno> {
    rustix::net::send(socket, bytes, rustix::net::SendFlags::NOSIGNAL)
}

enum Progress {
    Waiting,
    /// Rank, what came after its `Join`, process.
    Join(usize, Frames, u32),
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
                    }) if said as usize == *rank => {
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
                self.welcome = Some((rank as usize, Frames::default()));
                Ok(())
            }
            Step::Refuse(refusal, _) => Err(format!("refused: {refusal:?}")),
        }
    }
}
