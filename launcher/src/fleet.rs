//! The launcher's view of the hosts that run its ranks.

use std::time::Instant;

use crate::agent::link::{self, ALL};
use crate::agent::remote::{Agents, Up};
use crate::agent::wire::{Branch, Brief, FromAgent, Remote, ToAgent};
use crate::error::Result;
use crate::hosts::Place;
use crate::poll::{Token, Waits};

/// What a host has said, or what is known of it.
pub(crate) enum News {
    From(usize, FromAgent),
    Notice(String),
}

pub(crate) struct Fleet {
    agents: Agents,
    hosts: Vec<Host>,
    brief: Brief,
    launched: bool,
}

struct Host {
    ranks: Vec<u32>,
    ready: bool,
    done: bool,
    lost: bool,
    /// Bytes of output that have been taken, and not yet said to be.
    owed: usize,
}

/// Output that is taken is told in pieces of at least this size.
const OWED: usize = 1 << 16;

impl Fleet {
    /// Starts an agent on each host.
    pub(crate) fn start(places: &[Place], remote: &Remote, brief: Brief) -> Result<Self> {
        let names = places.iter().map(|place| place.host.clone());
        let branch = Branch {
            hosts: (0..).zip(names).collect(),
            remote: remote.clone(),
        };
        let host = |place: &Place| Host {
            ranks: place.ranks.clone(),
            ready: false,
            done: false,
            lost: false,
            owed: 0,
        };
        Ok(Self {
            agents: Agents::start(&branch)?,
            hosts: places.iter().map(host).collect(),
            brief,
            launched: false,
        })
    }

    pub(crate) fn waits<'a>(&'a self, waits: &mut Waits<'a>) {
        self.agents.waits(waits);
    }

    /// What has come. A host that is lost is not heard again.
    pub(crate) fn hear(&mut self, ready: &[Token]) -> Vec<News> {
        let mut up = Vec::new();
        for &token in ready {
            match token {
                Token::Agent(number) => self.agents.hear(number, &mut up),
                Token::Said(number) => self.agents.listen(number, &mut up),
                _ => {}
            }
        }
        self.agents.clock(Instant::now(), &mut up);
        let mut news = Vec::new();
        for one in up {
            match one {
                Up::Notice(line) => news.push(News::Notice(line)),
                Up::Lost(hosts, reason) => {
                    for host in hosts {
                        let reason = reason.clone();
                        self.note(host as usize, FromAgent::Lost { reason }, &mut news);
                    }
                }
                Up::Frame(frame) => {
                    let host = link::host_of(&frame) as usize;
                    let message = link::message(&frame).unwrap_or_else(|e| FromAgent::Lost {
                        reason: format!("its agent is not understood: {e}"),
                    });
                    self.note(host, message, &mut news);
                }
            }
        }
        news
    }

    fn note(&mut self, number: usize, message: FromAgent, news: &mut Vec<News>) {
        let Some(host) = self.hosts.get_mut(number).filter(|host| !host.lost) else {
            return;
        };
        match &message {
            FromAgent::Ready { .. } => host.ready = true,
            FromAgent::Done => host.done = true,
            FromAgent::Lost { .. } => host.lost = true,
            FromAgent::Output { bytes, .. } => host.owed += bytes.len(),
            _ => {}
        }
        news.push(News::From(number, message));
    }

    /// Once all hosts are ready: gives each its ranks. True if that was now.
    pub(crate) fn launch(&mut self) -> Result<bool> {
        if self.launched || !self.hosts.iter().all(|host| host.ready) {
            return Ok(false);
        }
        self.launched = true;
        self.post(ALL, &ToAgent::Job(Box::new(self.brief.clone())))?;
        for (host, number) in self.hosts.iter().zip(0..) {
            let ranks = ToAgent::Ranks(host.ranks.clone());
            self.agents.post(&link::frame(number, &ranks)?);
        }
        Ok(true)
    }

    pub(crate) fn launched(&self) -> bool {
        self.launched
    }

    /// Ranks of a host.
    pub(crate) fn ranks(&self, host: usize) -> &[u32] {
        self.hosts.get(host).map_or(&[], |host| &host.ranks)
    }

    /// Tells one host, or [`ALL`].
    pub(crate) fn post(&mut self, host: u32, message: &ToAgent) -> Result<()> {
        self.agents.post(&link::frame(host, message)?);
        Ok(())
    }

    /// There is room for output: lets hosts send more.
    pub(crate) fn take_more(&mut self) -> Result<()> {
        for (host, number) in self.hosts.iter_mut().zip(0..) {
            if host.owed >= OWED {
                let taken = ToAgent::Taken(std::mem::take(&mut host.owed));
                self.agents.post(&link::frame(number, &taken)?);
            }
        }
        Ok(())
    }

    /// Before this process stops: sends what it can. What was not heard by the time it goes on does not count.
    pub(crate) fn suspend(&mut self) {
        self.agents.suspend();
    }

    /// Whether no host has anything left to say.
    pub(crate) fn done(&self) -> bool {
        let mut hosts = self.hosts.iter();
        hosts.all(|host| host.done || host.lost) || !self.launched
    }

    /// Lets all agents go, and waits until they have.
    pub(crate) fn part(self) {
        self.agents.part();
    }
}
