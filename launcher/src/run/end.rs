//! The end of a job, after that of its ranks.

use std::os::fd::AsFd;
use std::time::Instant;

use rustix::event::PollFlags;

use super::Engine;
use crate::agent::link::ALL;
use crate::agent::wire::ToAgent;
use crate::control::Command;
use crate::error::Result;
use crate::fleet::Fleet;
use crate::outcome::{Cause, Failure, Outcome};
use crate::output::Stream;
use crate::poll::{Token, Waits};
use crate::process::Process;

impl Engine {
    /// All ranks have ended: delivers the rest of their output and leaves nothing behind.
    pub(super) fn finish(mut self) -> Result<Outcome> {
        self.signal(libc::SIGKILL, false, |_| true);
        if let Some(fleet) = &mut self.fleet {
            fleet.post(ALL, &ToAgent::Finish)?;
        }
        if let (true, None, Some((number, cause))) =
            (self.keep_going, &self.failure, self.first_failure())
        {
            self.failure = Some(Failure {
                rank: u32::try_from(number).ok(),
                host: self.hosts[self.ranks[number].host].clone(),
                cause,
            });
        }
        let mut left: Vec<usize> = (0..self.ranks.len()).collect();
        let mut given_up = None;
        // A job that was told to end, or whose time is up, does not wait for readers any more.
        let patience = match self.failure.as_ref().map(|failure| &failure.cause) {
            Some(Cause::Interrupted { .. } | Cause::TimedOut { .. }) => {
                Some(Instant::now() + self.grace)
            }
            _ => self.timeout.map(|(at, _)| at),
        };
        loop {
            left.retain(|&rank| !self.outputs.drain(rank));
            let fleet_done = self.fleet.as_ref().is_none_or(Fleet::done);
            if left.is_empty() && fleet_done && self.failure.is_some() {
                // The reason is about to be written there.
                self.outputs.end_line(Stream::Stderr);
            }
            if given_up.is_some() || (left.is_empty() && fleet_done && self.outputs.written()) {
                break;
            }
            let mut waits = Waits::default();
            if let Some(at) = patience {
                if at <= Instant::now() {
                    given_up = Some(match self.timeout {
                        Some((_, after)) => self.too_late(after),
                        None => Cause::Output {
                            message: "nobody reads it".to_owned(),
                        },
                    });
                    continue;
                }
                waits.until(at);
            }
            waits.on(Token::Command, self.control.as_fd(), PollFlags::IN);
            self.outputs.waits_to_write(&mut waits);
            if let Some(fleet) = &self.fleet {
                fleet.waits(&mut waits);
            }
            let ready = waits.wait()?;
            self.hear(&ready);
            self.pass_on();
            for token in ready {
                match token {
                    Token::Sink(stream) => self.write(stream),
                    // Asked to end while nobody reads our output.
                    Token::Command => given_up = self.interrupted().or(given_up),
                    _ => {}
                }
            }
        }
        if let (Some(cause), None) = (given_up, &self.failure) {
            self.failure = Some(Failure {
                rank: None,
                host: self.hosts[0].clone(),
                cause,
            });
        }
        let stuck = self.ranks.iter().position(|rank| rank.exit.is_none());
        if let Some(rank) = stuck {
            self.notice(|| format!("rank {rank}: cannot be killed, left behind"));
        }
        let processes = self.ranks.iter_mut();
        processes
            .filter_map(|rank| rank.process.as_mut())
            .for_each(Process::reap);
        if let Some(fleet) = self.fleet.take() {
            fleet.part();
        }
        drop(self.keeper.take());
        let doing = match self.failure.as_ref().map(|failure| &failure.cause) {
            Some(Cause::TimedOut { .. }) => std::mem::take(&mut self.late),
            _ => Vec::new(),
        };
        let [stdout, stderr] = self.outputs.into_captured();
        let code = self
            .failure
            .as_ref()
            .map_or(0, |failure| failure.cause.code());
        Ok(Outcome {
            code,
            failure: self.failure,
            doing,
            stats: self.stats,
            stdout,
            stderr,
        })
    }

    /// What it was asked to end for, if it was.
    pub(super) fn interrupted(&mut self) -> Option<Cause> {
        match self.control.next()? {
            Command::Interrupt(signal) => Some(Cause::Interrupted { signal }),
            Command::Kill => Some(Cause::Interrupted {
                signal: libc::SIGKILL,
            }),
            Command::Forward(_) | Command::Suspend => None,
        }
    }
}
