//! An agent's ranks: their start, connections, pipes and ends.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::process::Signal;

use super::link::Frame;
use super::wire::FromAgent;
use super::{Agent, Feed, Finish, Local, Pipe, READ};
use crate::auth::Secret;
use crate::bind::Binding;
use crate::connection::Read;
use crate::door::{Door, Key, Visit};
use crate::error::{Error, Result};
use crate::keeper::Keeper;
use crate::limits;
use crate::output::Stream;
use crate::plan::{Outfit, Seat};
use crate::process::Process;
use crate::server::UNREAD;
use crate::wire::{MAX_TO_LAUNCHER, to_hex};

impl Agent {
    pub(super) fn start(&mut self, numbers: &[u32]) -> Result<()> {
        let Some(job) = &mut self.job else {
            return Ok(());
        };
        let count = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        limits::raise(count)?;
        let brief = &job.brief;
        let key = Key {
            secret: Secret::from_bytes(brief.secret),
            job: brief.job,
            size: brief.plan.size(),
        };
        let door = job.door.insert(Door::open(key, numbers.iter().copied())?);
        let own = std::env::current_exe().map_err(|e| Error::io("own path", &e))?;
        let keeper = job
            .keeper
            .insert(Keeper::start(Path::new(&own), &to_hex(&brief.job))?);
        let binding = Binding::here(&brief.bind, numbers.len())?;
        let mut news: Vec<FromAgent> = binding
            .note
            .iter()
            .cloned()
            .map(FromAgent::Notice)
            .collect();
        let variables = door.environment();
        for (&number, local) in numbers.iter().zip(0..) {
            let pipe = |wanted: bool| match wanted {
                true => Stdio::piped(),
                false => Stdio::null(),
            };
            let outfit = Outfit {
                variables: &variables,
                environment: Some(brief.surroundings.environment()),
                limits: job.limits.clone(),
                cpus: binding.set(local as usize),
                stdio: [
                    pipe(brief.stdin == Some(number)),
                    pipe(brief.output),
                    pipe(brief.output),
                ],
            };
            let seat = Seat {
                rank: number,
                local_rank: local,
                local_size: count,
            };
            // If one fails, those before it are killed when the launcher goes.
            let mut process = Process::new(brief.plan.spawn(seat, outfit)?)?;
            keeper.watch(process.pid());
            let child = process.child();
            let pipes = [
                child.stdout.take().map(OwnedFd::from),
                child.stderr.take().map(OwnedFd::from),
            ];
            let pipes = pipes.map(|fd| fd.map(|fd| Pipe { fd, left: None }));
            for pipe in pipes.iter().flatten() {
                nonblocking(&pipe.fd)?;
            }
            if let Some(pipe) = child.stdin.take() {
                let pipe = OwnedFd::from(pipe);
                nonblocking(&pipe)?;
                self.feed = Some(Feed {
                    pipe,
                    buffer: Vec::new(),
                    ended: false,
                });
            }
            news.push(FromAgent::Started {
                rank: number,
                pid: process.pid().as_raw_nonzero().get().unsigned_abs(),
                bound: binding.text(local as usize),
            });
            self.by_number.insert(number, self.ranks.len());
            self.ranks.push(Local {
                number,
                process,
                connection: None,
                pipes,
            });
        }
        news.iter().try_for_each(|one| self.say(one))
    }

    /// Sends a frame of the launcher's to one rank or to all.
    pub(super) fn tell(&mut self, rank: Option<u32>, frame: &Frame) -> Result<()> {
        let range = match rank {
            None => 0..self.ranks.len(),
            Some(rank) => match self.by_number.get(&rank) {
                Some(&index) => index..index + 1,
                None => return Ok(()),
            },
        };
        for index in range {
            let rank = &mut self.ranks[index];
            if let Some(connection) = &mut rank.connection
                && !connection.post(Arc::clone(frame))
            {
                rank.connection = None;
                let (rank, what) = (rank.number, UNREAD.to_owned());
                self.say(&FromAgent::Broke { rank, what })?;
            }
        }
        Ok(())
    }

    pub(super) fn signal(&self, signal: i32, wake: bool, ranks: Option<&[u32]>) {
        let Some(signal) = Signal::from_named_raw(signal) else {
            return;
        };
        for rank in &self.ranks {
            if ranks.is_none_or(|ranks| ranks.contains(&rank.number)) {
                rank.process.signal(signal);
                if wake {
                    rank.process.signal(Signal::CONT);
                }
            }
        }
    }

    pub(super) fn at_the_door(&mut self, act: impl FnOnce(&mut Door)) -> Result<()> {
        let Some(door) = self.job.as_mut().and_then(|job| job.door.as_mut()) else {
            return Ok(());
        };
        act(door);
        for visit in std::mem::take(&mut door.visits) {
            match visit {
                Visit::Refused(who) => self.say(&FromAgent::Notice(format!("refused {who}")))?,
                Visit::Rank(rank, pid, connection) => {
                    if let Some(&index) = self.by_number.get(&rank) {
                        self.ranks[index].connection = Some(connection);
                        self.say(&FromAgent::Joined { rank, pid })?;
                        self.frames(index)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// As `Server::serve`.
    pub(super) fn serve(&mut self, index: usize) -> Result<()> {
        let mut buffer = [0; READ];
        for _ in 0..1000 {
            let rank = &mut self.ranks[index];
            let Some(connection) = &mut rank.connection else {
                return Ok(());
            };
            connection.flush();
            match connection.read(&mut buffer) {
                Read::Some => self.frames(index)?,
                Read::Nothing => return Ok(()),
                Read::End => {
                    rank.connection = None;
                    let number = rank.number;
                    return self.say(&FromAgent::Closed(number));
                }
            }
        }
        Ok(())
    }

    /// Passes on the frames of a rank that are complete.
    pub(super) fn frames(&mut self, index: usize) -> Result<()> {
        loop {
            let rank = &mut self.ranks[index];
            let Some(connection) = &mut rank.connection else {
                return Ok(());
            };
            let number = rank.number;
            let next = match connection.frames.next_frame(MAX_TO_LAUNCHER) {
                Ok(None) => return Ok(()),
                Ok(Some(frame)) => FromAgent::Frame {
                    rank: number,
                    frame: frame.to_vec(),
                },
                Err(error) => {
                    rank.connection = None;
                    FromAgent::Broke {
                        rank: number,
                        what: format!("unreadable message: {error}"),
                    }
                }
            };
            self.say(&next)?;
        }
    }

    /// Finds out whether a rank's process has ended.
    pub(super) fn look(&mut self, index: usize) -> Result<()> {
        let Some(exit) = self.ranks[index].process.look() else {
            return Ok(());
        };
        // All that it has said is in the socket by now.
        self.serve(index)?;
        let rank = self.ranks[index].number;
        self.say(&FromAgent::Exited { rank, exit })
    }

    /// Reads once from a rank's pipe.
    pub(super) fn read(&mut self, index: usize, stream: Stream) -> Result<()> {
        let rank = &mut self.ranks[index];
        let number = rank.number;
        let slot = &mut rank.pipes[stream as usize];
        let Some(pipe) = slot else {
            return Ok(());
        };
        let most = READ.min(self.window).min(pipe.left.unwrap_or(READ));
        if most == 0 && pipe.left != Some(0) {
            return Ok(());
        }
        let mut buffer = [0; READ];
        match rustix::io::read(&pipe.fd, &mut buffer[..most]) {
            Ok(n) if n > 0 => {
                self.window -= n;
                if let Some(left) = &mut pipe.left {
                    *left -= n;
                }
                self.say(&FromAgent::Output {
                    rank: number,
                    stream,
                    bytes: buffer[..n].to_vec(),
                })
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            _ => {
                *slot = None;
                self.say(&FromAgent::OutputEnded {
                    rank: number,
                    stream,
                })
            }
        }
    }

    /// Moves input on to its rank.
    pub(super) fn feed(&mut self) -> Result<()> {
        let Some(feed) = &mut self.feed else {
            return Ok(());
        };
        if feed.buffer.is_empty() {
            self.feed = None;
            return self.say(&FromAgent::InputClosed);
        }
        match rustix::io::write(&feed.pipe, &feed.buffer) {
            Ok(n) => {
                feed.buffer.drain(..n);
                self.say(&FromAgent::InputTaken(n))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(_) => {
                self.feed = None;
                self.say(&FromAgent::InputClosed)
            }
        }
    }

    /// All ranks have ended.
    pub(super) fn finish(&mut self) {
        self.signal(libc::SIGKILL, false, None);
        let pipes = self.ranks.iter_mut().flat_map(|rank| &mut rank.pipes);
        for pipe in pipes.flatten() {
            let left = rustix::io::ioctl_fionread(&pipe.fd).unwrap_or(0);
            pipe.left = Some(usize::try_from(left).unwrap_or(usize::MAX));
        }
        self.feed = None;
        self.finish = Finish::Draining;
    }

    /// Delivers what was in the pipes, as far as the launcher takes it.
    pub(super) fn drain(&mut self) -> Result<()> {
        for index in 0..self.ranks.len() {
            for stream in Stream::BOTH {
                while let Some(pipe) = &self.ranks[index].pipes[stream as usize] {
                    if pipe.left == Some(0) {
                        let rank = self.ranks[index].number;
                        self.ranks[index].pipes[stream as usize] = None;
                        self.say(&FromAgent::OutputEnded { rank, stream })?;
                        break;
                    }
                    if self.window == 0 {
                        return Ok(());
                    }
                    self.read(index, stream)?;
                }
            }
        }
        self.finish = Finish::Done;
        for rank in &mut self.ranks {
            rank.process.reap();
        }
        if let Some(job) = &mut self.job {
            job.keeper = None;
        }
        self.say(&FromAgent::Done)
    }
}

fn nonblocking(fd: &OwnedFd) -> Result<()> {
    rustix::io::ioctl_fionbio(fd, true).map_err(|e| Error::io("pipe", &e.into()))
}
