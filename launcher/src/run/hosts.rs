//! What comes from hosts and goes to them.

use rustix::process::Signal;

use super::Engine;
use super::start::bound_to;
use crate::agent::link::ALL;
use crate::agent::wire::{Failing, FromAgent, ToAgent};
use crate::codec;
use crate::fleet::{Fleet, News};
use crate::outcome::{Cause, Failure};
use crate::output::Stream;
use crate::poll::Token;
use crate::process::Exit;
use crate::run::Phase;
use crate::server::Outgoing;
use crate::wire::{self, exit};

impl Engine {
    /// What hosts have said.
    pub(super) fn hear(&mut self, ready: &[Token]) {
        let Some(fleet) = &mut self.fleet else {
            return;
        };
        let news = fleet.hear(ready);
        for one in news {
            match one {
                News::Notice(line) => self.notice(|| line),
                News::From(host, message) => self.heard(host, message),
            }
            self.events();
        }
        let launched = match &mut self.fleet {
            Some(fleet) if self.phase == Phase::Running => fleet.launch(),
            _ => Ok(false),
        };
        match launched {
            Ok(true) => self.notice(|| "all hosts are ready: starting the ranks".to_owned()),
            Ok(false) => {}
            Err(error) => self.end_at(0, exit::LAUNCHER, error.to_string()),
        }
    }

    pub(super) fn heard(&mut self, host: usize, message: FromAgent) {
        let name = self.hosts[host].clone();
        // An agent speaks of its own ranks.
        let mine = |rank: u32| {
            let rank = rank as usize;
            (self.ranks.get(rank).is_some_and(|one| one.host == host)).then_some(rank)
        };
        match message {
            FromAgent::Ready {
                host,
                networks,
                cores,
            } => {
                let networks = networks.join(", ");
                self.notice(|| {
                    format!("host {name}: ready as {host}, {cores} cores, network: {networks}")
                });
            }
            FromAgent::Cannot { kind, message } => {
                let code = match kind {
                    Failing::NotFound => exit::NOT_FOUND,
                    Failing::NotExecutable => exit::NOT_EXECUTABLE,
                    Failing::Other => exit::LAUNCHER,
                };
                self.forget(host);
                self.end_at(host, code, message);
            }
            FromAgent::Lost { reason } => {
                self.forget(host);
                self.end_at(host, exit::LAUNCHER, reason);
            }
            FromAgent::Started { rank, pid, bound } => {
                self.notice(|| format!("rank {rank}: started as process {pid} on host {name}"));
                if let Some(bound) = bound {
                    self.binding(&bound_to(rank, &name, &bound));
                }
            }
            FromAgent::Joined { rank, pid } => {
                if let Some(rank) = mine(rank) {
                    self.server.joined(rank, pid);
                }
            }
            FromAgent::Frame { rank, frame } => {
                if let Some(rank) = mine(rank) {
                    let body = frame.get(4..).unwrap_or_default();
                    let message = codec::decode(body, wire::MAX_TO_LAUNCHER);
                    self.server.passed_on(rank, message);
                }
            }
            FromAgent::Closed(rank) => {
                if let Some(rank) = mine(rank) {
                    self.server.close(rank);
                }
            }
            FromAgent::Broke { rank, what } => {
                if let Some(rank) = mine(rank) {
                    self.server.broke(rank, what);
                }
            }
            FromAgent::Exited { rank, exit } => {
                if let Some(rank) = mine(rank) {
                    self.exited(rank, exit);
                }
            }
            FromAgent::Output {
                rank,
                stream,
                bytes,
            } => {
                if let Some(rank) = mine(rank) {
                    self.outputs.take(rank, stream, &bytes);
                }
            }
            FromAgent::OutputEnded { rank, stream } => {
                if let Some(rank) = mine(rank) {
                    self.outputs.end(rank, stream);
                }
            }
            FromAgent::InputTaken(bytes) => {
                if let Some(source) = &mut self.source {
                    source.taken(bytes);
                }
            }
            FromAgent::InputClosed => self.source = None,
            FromAgent::Notice(line) => self.notice(|| format!("host {name}: {line}")),
            FromAgent::Doing { rank, what } => {
                if let Some(rank) = mine(rank) {
                    self.doing[rank].1 = Some(what);
                }
            }
            FromAgent::Done => {}
        }
    }

    /// Nothing more will come from a host, or from any if no rank has been started.
    pub(super) fn forget(&mut self, host: usize) {
        let all = !self.fleet.as_ref().is_some_and(Fleet::launched);
        for number in 0..self.ranks.len() {
            if all || self.ranks[number].host == host {
                self.ranks[number].exit.get_or_insert(Exit::Unknown);
                self.outputs.end_all(number);
                self.server.forget(number);
            }
        }
    }

    /// Ends the job for what has happened at a host.
    pub(super) fn end_at(&mut self, host: usize, code: i32, message: String) {
        let rank = self
            .fleet
            .as_ref()
            .and_then(|fleet| fleet.ranks(host).first().copied());
        let failure = Failure {
            rank: None,
            host: self.hosts[host].clone(),
            cause: Cause::Host { code, message },
        };
        self.end_with(failure, rank, Signal::TERM);
    }

    /// Gives the fleet what is for it: frames, news of our output, room for more.
    pub(super) fn pass_on(&mut self) {
        let Some(fleet) = &mut self.fleet else {
            return;
        };
        let mut posted = Ok(());
        for one in std::mem::take(&mut self.server.outgoing) {
            let (host, message) = match one {
                Outgoing::Close(rank) => (Some(rank), ToAgent::Close(rank)),
                Outgoing::Frame(rank, frame) => {
                    let frame = frame.to_vec();
                    (rank, ToAgent::Frame { rank, frame })
                }
            };
            let host = host.and_then(|rank| self.ranks.get(rank as usize));
            let host = host.and_then(|rank| u32::try_from(rank.host).ok());
            posted = posted.and(fleet.post(host.unwrap_or(ALL), &message));
        }
        for stream in Stream::BOTH {
            let known = &mut self.closed[stream as usize];
            if !*known && self.outputs.is_closed(stream) {
                *known = true;
                posted = posted.and(fleet.post(ALL, &ToAgent::CloseOutput(stream)));
            }
        }
        if self.outputs.has_room() {
            posted = posted.and(fleet.take_more());
        }
        if let Err(error) = posted {
            self.end_at(0, exit::LAUNCHER, error.to_string());
        }
    }

    /// Sends what there is of our input to the host that wants it.
    pub(super) fn send_input(&mut self) {
        let (Some(source), Some(fleet)) = (&mut self.source, &mut self.fleet) else {
            return;
        };
        let Some(bytes) = source.read() else {
            return;
        };
        let message = if bytes.is_empty() {
            self.source = None;
            ToAgent::EndOfInput
        } else {
            ToAgent::Input(bytes)
        };
        // Those that have no such rank take no notice.
        if let Err(error) = fleet.post(ALL, &message) {
            self.end_at(0, exit::LAUNCHER, error.to_string());
        }
    }
}
