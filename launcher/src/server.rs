//! The launcher's side of all ranks' connections: gathers their blobs, tells them of failures. Never blocks.
//!
//! Ranks of this machine come through the door; those of other hosts through their agents, which pass frames on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::connection::{Connection, Read};
use crate::door::{Door, Visit};
use crate::error::Result;
use crate::poll::{Token, Waits};
use crate::wire::{self, RankStats, ToLauncher, ToRank};

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
    /// What it is doing.
    Doing(usize, String),
    /// What it has done.
    Stats(usize, RankStats),
    /// What it says of itself.
    Notice(usize, String),
}

/// How far a rank has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Absent,
    Joined,
    Left,
}

/// For the agents to pass on.
pub(crate) enum Outgoing {
    /// A frame to one rank, or to all that are connected through agents.
    Frame(Option<u32>, Arc<[u8]>),
    /// Close this rank's connection.
    Close(u32),
}

pub(crate) struct Server {
    door: Option<Door>,
    members: Vec<Member>,
    round: u32,
    blobs: Vec<Option<Vec<u8>>>,
    /// How many of them there are.
    given: usize,
    /// How many members have left, or are lost.
    left: usize,
    /// In the order in which they happened.
    pub(crate) events: VecDeque<Event>,
    /// In the order in which they are to be sent.
    pub(crate) outgoing: VecDeque<Outgoing>,
}

struct Member {
    state: State,
    /// It has failed, and the job goes on.
    lost: bool,
    way: Option<Way>,
}

/// How a rank that is connected is reached.
enum Way {
    Here(Connection),
    Agent,
}

impl Server {
    /// Through `door` come the ranks of this machine, if there are some.
    pub(crate) fn new(size: u32, door: Option<Door>) -> Self {
        let absent = || Member {
            state: State::Absent,
            lost: false,
            way: None,
        };
        Self {
            door,
            members: (0..size).map(|_| absent()).collect(),
            round: 0,
            blobs: (0..size).map(|_| None).collect(),
            given: 0,
            left: 0,
            events: VecDeque::new(),
            outgoing: VecDeque::new(),
        }
    }

    /// For connections from other machines, from now on.
    pub(crate) fn lost_after(&mut self, limit: Duration) {
        if let Some(door) = &mut self.door {
            door.lost_after = limit;
        }
    }

    pub(crate) fn state(&self, rank: usize) -> State {
        self.members[rank].state
    }

    /// Whether no rank holds a connection.
    pub(crate) fn deserted(&self) -> bool {
        self.members.iter().all(|member| member.way.is_none())
    }

    pub(crate) fn waits<'a>(&'a self, waits: &mut Waits<'a>) {
        if let Some(door) = &self.door {
            door.waits(waits);
        }
        for (rank, member) in self.members.iter().enumerate() {
            if let Some(Way::Here(connection)) = &member.way {
                let (fd, flags) = connection.interest();
                waits.on(Token::Member(rank), fd, flags);
            }
        }
    }

    /// Lets nobody wait at the door for too long.
    pub(crate) fn clock(&mut self, now: Instant) {
        self.at_the_door(|door| door.clock(now));
    }

    /// Accepts what waits, as far as there is room.
    pub(crate) fn accept(&mut self) {
        self.at_the_door(Door::accept);
    }

    /// Goes on with a handshake.
    pub(crate) fn greet(&mut self, slot: usize) {
        self.at_the_door(|door| door.greet(slot));
    }

    fn at_the_door(&mut self, act: impl FnOnce(&mut Door)) {
        let Some(door) = &mut self.door else {
            return;
        };
        act(door);
        for visit in std::mem::take(&mut door.visits) {
            match visit {
                Visit::Refused(who) => self.events.push_back(Event::Refused(who)),
                Visit::Rank(rank, pid, connection) => {
                    let rank = rank as usize;
                    self.join(rank, pid, Way::Here(connection));
                    self.messages(rank);
                }
            }
        }
    }

    /// A rank has joined through an agent.
    pub(crate) fn joined(&mut self, rank: usize, pid: u32) {
        if self.members[rank].state == State::Absent {
            self.join(rank, pid, Way::Agent);
        }
    }

    fn join(&mut self, rank: usize, pid: u32, way: Way) {
        let member = &mut self.members[rank];
        member.state = State::Joined;
        member.way = Some(way);
        self.events.push_back(Event::Joined(rank, pid));
        self.tell(rank, &ToRank::Joined);
    }

    /// Sends what waits for `rank` and reads what has come from it: all that a socket holds, but not for ever from a
    /// rank that sends without end.
    pub(crate) fn serve(&mut self, rank: usize) {
        let mut buffer = [0; 1 << 16];
        for _ in 0..1000 {
            let Some(Way::Here(connection)) = &mut self.members[rank].way else {
                return;
            };
            connection.flush();
            match connection.read(&mut buffer) {
                Read::Some => self.messages(rank),
                Read::Nothing => return,
                Read::End => {
                    self.close(rank);
                    return;
                }
            }
        }
    }

    /// A rank's connection has come to its end.
    pub(crate) fn close(&mut self, rank: usize) {
        let member = &mut self.members[rank];
        if member.way.take().is_some() && member.state == State::Joined {
            self.events.push_back(Event::Lost(rank));
        }
    }

    /// A rank's host is gone: nothing more comes, and that is no news.
    pub(crate) fn forget(&mut self, rank: usize) {
        self.members[rank].way = None;
    }

    /// A rank has done what it must not, and is heard no more.
    pub(crate) fn broke(&mut self, rank: usize, what: String) {
        if let Some(Way::Agent) = self.members[rank].way.take() {
            self.outgoing.push_back(Outgoing::Close(number(rank)));
        }
        self.events.push_back(Event::Broke(rank, what));
    }

    /// Handles the messages that are complete.
    fn messages(&mut self, rank: usize) {
        while let Some(Way::Here(connection)) = &mut self.members[rank].way {
            match connection.frames.next(wire::MAX_TO_LAUNCHER) {
                Ok(None) => return,
                Ok(Some(message)) => self.message(rank, message),
                Err(error) => self.broke(rank, format!("unreadable message: {error}")),
            }
        }
    }

    /// Handles a message that an agent has passed on.
    pub(crate) fn passed_on(&mut self, rank: usize, message: Result<ToLauncher>) {
        if self.members[rank].way.is_none() {
            return;
        }
        match message {
            Ok(message) => self.message(rank, message),
            Err(error) => self.broke(rank, format!("unreadable message: {error}")),
        }
    }

    fn message(&mut self, rank: usize, message: ToLauncher) {
        let left = self.members[rank].state == State::Left;
        match message {
            ToLauncher::Failed { code, message } => {
                self.events.push_back(Event::Failed(rank, code, message));
            }
            ToLauncher::Doing { what } => self.events.push_back(Event::Doing(rank, what)),
            ToLauncher::Stats(stats) => self.events.push_back(Event::Stats(rank, stats)),
            ToLauncher::Notice { text } => self.events.push_back(Event::Notice(rank, text)),
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
        if self.given > 0 {
            let round = self.round;
            return self.broke(
                rank,
                format!("left the job while others wait for it in gather {round}"),
            );
        }
        self.members[rank].state = State::Left;
        if !self.members[rank].lost {
            self.one_less();
        }
    }

    /// A rank has failed, and the job goes on: nobody waits for it to leave.
    pub(crate) fn lose(&mut self, rank: usize) {
        let member = &mut self.members[rank];
        let counted = member.lost || member.state == State::Left;
        member.lost = true;
        if !counted {
            self.one_less();
        }
    }

    fn one_less(&mut self) {
        self.left += 1;
        if self.left == self.members.len() {
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
        let gone = |member: &Member| member.state == State::Left;
        if self.left > 0
            && let Some(gone) = self.members.iter().position(gone)
        {
            let what = format!("called gather {round} after rank {gone} had left the job");
            return self.broke(rank, what);
        }
        self.blobs[rank] = Some(blob);
        self.given += 1;
        if self.given == self.members.len() {
            self.given = 0;
            let blobs = self.blobs.iter_mut().filter_map(Option::take).collect();
            self.round += 1;
            self.tell_all(&ToRank::Gathered { round, blobs });
        }
    }

    pub(crate) fn tell(&mut self, rank: usize, message: &ToRank) {
        match wire::frame(message, wire::MAX_TO_RANK) {
            Ok(frame) => match &self.members[rank].way {
                Some(Way::Here(_)) => self.post(rank, frame),
                Some(Way::Agent) => {
                    let to = Some(number(rank));
                    self.outgoing.push_back(Outgoing::Frame(to, frame));
                }
                None => {}
            },
            Err(error) => self.broke(rank, error.to_string()),
        }
    }

    /// Encodes once, sends to all that are connected.
    pub(crate) fn tell_all(&mut self, message: &ToRank) {
        match wire::frame(message, wire::MAX_TO_RANK) {
            Ok(frame) => {
                for rank in 0..self.members.len() {
                    self.post(rank, Arc::clone(&frame));
                }
                let by_agent = |member: &Member| matches!(member.way, Some(Way::Agent));
                if self.members.iter().any(by_agent) {
                    self.outgoing.push_back(Outgoing::Frame(None, frame));
                }
            }
            Err(error) => {
                for rank in 0..self.members.len() {
                    self.broke(rank, format!("too much to gather: {error}"));
                }
            }
        }
    }

    fn post(&mut self, rank: usize, frame: Arc<[u8]>) {
        if let Some(Way::Here(connection)) = &mut self.members[rank].way
            && !connection.post(frame)
        {
            self.broke(rank, UNREAD.to_owned());
        }
    }
}

/// Of a rank whose connection is full.
pub(crate) const UNREAD: &str = "does not read what the launcher sends";

fn number(rank: usize) -> u32 {
    u32::try_from(rank).unwrap_or(u32::MAX)
}
