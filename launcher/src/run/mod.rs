//! The life of a job: one loop over connections, processes, pipes and clocks.
//!
//! ```text
//! Running ── a rank fails ──► Settling ── first cause found ──► Ending ── grace over ──► Killing
//!    │                        (50 ms)                             ▲                        ▲
//!    ├──── interrupted, a host is lost ───────────────────────────┤      interrupted again │
//!    ├──── time is up ──► Asking what the ranks do (300 ms) ──────┘                        │
//!    └──── all ended ──► drain pipes, kill what is left in the groups ◄───────────────────┘
//! ```
//!
//! Ranks are processes of this launcher, or all of them are at hosts of a fleet: then signals, frames and output go
//! through agents, and what is decided here is the same.

mod end;
mod hosts;
mod late;
mod start;

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::process::{self as unix, Signal};

use crate::agent::link::ALL;
use crate::agent::wire::ToAgent;
use crate::control::{Command, JobControl};
use crate::error::Result;
use crate::fleet::Fleet;
use crate::input::{Pump, Source};
use crate::job::{Job, NoticeFn};
use crate::keeper::Keeper;
use crate::outcome::{Cause, Failure, Outcome};
use crate::output::{Outputs, Stream};
use crate::poll::{Token, Waits};
use crate::process::{Exit, KILLED, Process};
use crate::rank::Rank;
use crate::server::{Event, Server, State};
use crate::wire::{self, RankStats, ToRank};

/// How long to look for earlier causes after the first sign of a failure: a survivor may be heard before the victim.
const SETTLE: Duration = Duration::from_millis(50);
/// How long a rank that has closed its connection has to exit, which tells more.
const LOST: Duration = Duration::from_millis(500);
/// How long a rank that has said why it fails has to exit by itself.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How often to look at processes where the kernel has no pidfd.
const LOOK: Duration = Duration::from_millis(5);
/// How long ranks have to say what they are doing, when time is up.
const ANSWER: Duration = Duration::from_millis(300);

/// Runs `job` in this thread.
pub(crate) fn run(job: Job, control: JobControl) -> Result<Outcome> {
    let mut engine = Engine::start(job, control)?;
    while !engine.ended() {
        let ready = engine.wait()?;
        engine.turn += 1;
        engine.handle(&ready);
        engine.clock();
    }
    engine.finish()
}

struct Engine {
    /// Names of the job's hosts.
    hosts: Vec<String>,
    ranks: Vec<Rank>,
    /// If the ranks are not processes of this launcher.
    fleet: Option<Fleet>,
    server: Server,
    outputs: Outputs,
    /// Which of our own outputs the fleet knows to be closed.
    closed: [bool; 2],
    pump: Option<Pump>,
    source: Option<Source>,
    stdin: io::Stdin,
    control: JobControl,
    keeper: Option<Keeper>,
    notices: Option<NoticeFn>,
    bindings: Option<NoticeFn>,
    phase: Phase,
    failure: Option<Failure>,
    /// What ranks say that they are doing, and what the system says of them.
    doing: Vec<(Option<String>, Option<String>)>,
    /// The same in words, once time is up.
    late: Vec<String>,
    /// What ranks have done, if they say so.
    stats: Vec<Option<RankStats>>,
    timeout: Option<(Instant, Duration)>,
    grace: Duration,
    keep_going: bool,
    /// In a job that goes on: what ranks have been told of those that have failed.
    lost: Vec<ToRank>,
    /// Whether any rank has joined.
    joined: bool,
    /// Counts wake-ups: what is found in one has no known order.
    turn: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    Settling {
        until: Instant,
    },
    Asking {
        until: Instant,
        after: Duration,
    },
    Ending {
        spare: Option<Instant>,
        kill: Instant,
    },
    Killing {
        give_up: Instant,
    },
}

impl Engine {
    fn binding(&mut self, line: &str) {
        match &mut self.bindings {
            Some(bindings) => bindings(line),
            None => self.notice(|| line.to_owned()),
        }
    }

    fn notice(&mut self, line: impl FnOnce() -> String) {
        if let Some(notices) = &mut self.notices {
            notices(&line());
        }
    }

    /// Whether there is nothing more to wait for.
    fn ended(&self) -> bool {
        let exited = self.ranks.iter().all(|rank| rank.exit.is_some());
        match self.phase {
            Phase::Running => exited,
            Phase::Settling { .. } | Phase::Asking { .. } => false,
            // Programs that ranks have started, or that wrap the ranks, have their grace too.
            Phase::Ending { .. } => exited && self.outputs.ended() && self.server.deserted(),
            Phase::Killing { give_up } => exited || Instant::now() >= give_up,
        }
    }

    fn wait(&self) -> Result<Vec<Token>> {
        let mut waits = Waits::default();
        waits.on(Token::Command, self.control.as_fd(), PollFlags::IN);
        self.server.waits(&mut waits);
        for (number, rank) in self.ranks.iter().enumerate() {
            let Some(process) = &rank.process else {
                continue;
            };
            match process.pidfd() {
                _ if rank.exit.is_some() => {}
                Some(pidfd) => waits.on(Token::Exit(number), pidfd, PollFlags::IN),
                None => waits.until(Instant::now() + LOOK),
            }
        }
        self.outputs.waits(&mut waits);
        if let Some(pump) = &self.pump {
            pump.waits(&mut waits, &self.stdin);
        }
        if let Some(fleet) = &self.fleet {
            fleet.waits(&mut waits);
            if let Some(source) = self.source.as_ref().filter(|_| fleet.launched()) {
                source.waits(&mut waits, &self.stdin);
            }
        }
        match self.phase {
            Phase::Running => waits.until(self.timeout.map(|(at, _)| at)),
            Phase::Settling { until } | Phase::Asking { until, .. } => waits.until(until),
            Phase::Ending { spare, kill } => {
                waits.until(spare);
                waits.until(kill);
            }
            Phase::Killing { give_up } => waits.until(give_up),
        }
        waits.wait()
    }

    /// Words before deeds: what a rank has said explains how it ends.
    fn handle(&mut self, ready: &[Token]) {
        for &token in ready {
            match token {
                Token::Command => self.commands(),
                Token::Listener => self.server.accept(),
                Token::Stranger(slot) => self.server.greet(slot),
                Token::Member(rank) => self.server.serve(rank),
                _ => {}
            }
        }
        self.events();
        self.hear(ready);
        for &token in ready {
            if let Token::Exit(number) = token {
                self.look(number);
            }
        }
        for number in 0..self.ranks.len() {
            let process = self.ranks[number].process.as_ref();
            if process.is_some_and(|process| process.pidfd().is_none()) {
                self.look(number);
            }
        }
        for &token in ready {
            match token {
                Token::Pipe(rank, stream) => self.outputs.read(rank, stream),
                Token::Sink(stream) => self.write(stream),
                _ => {}
            }
        }
        if ready.contains(&Token::Input) {
            if !self.pump.as_mut().is_some_and(Pump::pump) {
                self.pump = None;
            }
            self.send_input();
        }
        if let Some(error) = self.outputs.failure() {
            let message = error.to_string();
            self.end(None, Cause::Output { message }, Signal::TERM);
        }
        self.pass_on();
    }

    fn write(&mut self, stream: Stream) {
        if let Err(error) = self.outputs.write(stream) {
            let message = io::Error::from(error).to_string();
            self.end(None, Cause::Output { message }, Signal::TERM);
        }
    }

    fn commands(&mut self) {
        while let Some(command) = self.control.next() {
            match command {
                Command::Forward(signal) => self.signal_all(signal),
                Command::Suspend => {
                    self.signal_all(libc::SIGTSTP);
                    if let Some(fleet) = &mut self.fleet {
                        fleet.suspend();
                    }
                    // If it does not stop, it goes on.
                    let _ = unix::kill_process(unix::getpid(), Signal::STOP);
                }
                Command::Kill => {
                    self.end(
                        None,
                        Cause::Interrupted {
                            signal: libc::SIGKILL,
                        },
                        Signal::KILL,
                    );
                    self.kill();
                }
                Command::Interrupt(signal) => match self.phase {
                    Phase::Running | Phase::Settling { .. } | Phase::Asking { .. } => {
                        let named = Signal::from_named_raw(signal).unwrap_or(Signal::TERM);
                        self.end(None, Cause::Interrupted { signal }, named);
                    }
                    Phase::Ending { .. } | Phase::Killing { .. } => self.kill(),
                },
            }
        }
    }

    fn events(&mut self) {
        while let Some(event) = self.server.events.pop_front() {
            match event {
                Event::Joined(number, process) => {
                    self.notice(|| format!("rank {number}: joined as process {process}"));
                    for message in self.lost.clone() {
                        self.server.tell(number, &message);
                    }
                    if !self.joined {
                        self.joined = true;
                        self.look_for_absent();
                    }
                }
                Event::Failed(number, code, message) => {
                    let rank = &mut self.ranks[number];
                    rank.failed.get_or_insert((code, message));
                    self.sign(number, true, SETTLE);
                }
                Event::Broke(number, message) => {
                    self.ranks[number].broke.get_or_insert(message);
                    self.sign(number, true, SETTLE);
                }
                Event::Lost(number) => {
                    self.ranks[number].lost = true;
                    self.sign(number, false, LOST);
                }
                Event::Stats(number, stats) => self.stats[number] = Some(stats),
                Event::Doing(number, what) => self.doing[number].0 = Some(what),
                Event::Notice(number, text) => {
                    self.notice(|| format!("rank {number}: {}", wire::clip(text)));
                }
                Event::Refused(who) => self.notice(|| format!("refused {who}")),
            }
        }
    }

    /// Ranks that exit with 0 without joining are fine, as long as no rank joins.
    fn look_for_absent(&mut self) {
        for number in 0..self.ranks.len() {
            self.look_whether_absent(number);
        }
    }

    fn look_whether_absent(&mut self, number: usize) {
        let absent = self.server.state(number) == State::Absent;
        if self.joined && absent && self.ranks[number].exit == Some(Exit::Code(0)) {
            self.sign(number, false, SETTLE);
        }
    }

    /// Finds out whether a rank's process has ended.
    fn look(&mut self, number: usize) {
        let process = self.ranks[number].process.as_mut();
        let Some(exit) = process.and_then(Process::look) else {
            return;
        };
        // All that it has said is in the socket by now.
        self.server.serve(number);
        self.events();
        self.exited(number, exit);
    }

    fn exited(&mut self, number: usize, exit: Exit) {
        self.ranks[number].exit = Some(exit);
        self.notice(|| format!("rank {number}: {exit}"));
        if exit != Exit::Code(0) || self.server.state(number) == State::Joined {
            self.sign(number, false, SETTLE);
        }
        self.look_whether_absent(number);
    }

    /// A rank has failed, or so it seems: the cause will be known within `time`.
    fn sign(&mut self, number: usize, on_purpose: bool, time: Duration) {
        let turn = self.turn;
        self.ranks[number].sign.get_or_insert((turn, on_purpose));
        if self.keep_going {
            self.tell_lost(number);
            return;
        }
        let until = Instant::now() + time;
        match &mut self.phase {
            Phase::Running => self.phase = Phase::Settling { until },
            Phase::Settling { until: earlier } => *earlier = until.min(*earlier),
            Phase::Asking { .. } | Phase::Ending { .. } | Phase::Killing { .. } => {}
        }
    }

    /// In a job that goes on, tells the ranks that one has failed, once its cause is known.
    fn tell_lost(&mut self, number: usize) {
        let rank = u32::try_from(number).unwrap_or(u32::MAX);
        let told = |message: &ToRank| matches!(message, ToRank::PeerLost { rank: lost, .. } if *lost == rank);
        let cause = self.cause(number);
        if matches!(cause, Cause::Disconnected) || self.lost.iter().any(told) {
            return;
        }
        let message = ToRank::PeerLost {
            rank,
            message: wire::clip(cause.to_string()),
        };
        self.server.tell_all(&message);
        self.server.lose(number);
        self.lost.push(message);
    }

    fn clock(&mut self) {
        let now = Instant::now();
        self.server.clock(now);
        self.events();
        match self.phase {
            Phase::Running => {
                if let Some((at, after)) = self.timeout
                    && at <= now
                {
                    self.ask();
                    let until = now + ANSWER;
                    self.phase = Phase::Asking { until, after };
                }
            }
            Phase::Asking { until, after } => {
                if until <= now || self.answered() {
                    let cause = self.too_late(after);
                    self.late = self.doings();
                    self.end(None, cause, Signal::TERM);
                }
            }
            Phase::Settling { until } => {
                // Sooner if nobody is left to be heard.
                let all = self.ranks.iter().all(|rank| match rank.sign {
                    Some(_) => !rank.lost || rank.exit.is_some(),
                    None => rank.exit.is_some(),
                });
                if all || until <= now {
                    self.decide();
                }
            }
            Phase::Ending { kill, .. } if kill <= now => self.kill(),
            Phase::Ending {
                spare: Some(spare),
                kill,
            } if spare <= now => {
                self.phase = Phase::Ending { spare: None, kill };
                self.signal(libc::SIGTERM, true, |rank| rank.failed.is_some());
            }
            Phase::Ending { .. } | Phase::Killing { .. } => {}
        }
        self.pass_on();
    }

    /// Chooses the first failure: what is least likely a consequence, then the order in which the signs were seen; within one turn, a rank that died without a word before one that
    /// had the time to explain itself.
    fn decide(&mut self) {
        if let Some((number, cause)) = self.first_failure() {
            self.end(Some(number), cause, Signal::TERM);
        }
    }

    fn first_failure(&self) -> Option<(usize, Cause)> {
        let suspects = self.ranks.iter().enumerate();
        let suspects = suspects.filter_map(|(number, rank)| Some((number, rank, rank.sign?)));
        let first = suspects.min_by_key(|(_, rank, sign)| (rank.consequence(), *sign));
        let (number, ..) = first?;
        Some((number, self.cause(number)))
    }

    /// Why a rank has failed, of which there has been a sign, as far as it is known.
    fn cause(&self, number: usize) -> Cause {
        let rank = &self.ranks[number];
        let joined = self.server.state(number) != State::Absent;
        match (&rank.failed, &rank.broke, rank.exit) {
            (Some((code, message)), ..) => Cause::Reported {
                code: *code,
                message: message.clone(),
            },
            (
                _,
                _,
                Some(Exit::Signal {
                    signal,
                    core_dumped,
                }),
            ) => Cause::Killed {
                signal,
                core_dumped,
            },
            (_, Some(message), _) => Cause::Protocol {
                message: message.clone(),
            },
            (_, _, Some(Exit::Code(0))) => Cause::EndedEarly { joined },
            (_, _, Some(Exit::Code(code))) => Cause::Exited { code },
            (_, _, Some(Exit::Unknown)) => Cause::Protocol {
                message: "its exit code is lost: is SIGCHLD ignored?".to_owned(),
            },
            (_, _, None) => Cause::Disconnected,
        }
    }

    /// Begins the end of the job, unless it has begun.
    fn end(&mut self, rank: Option<usize>, cause: Cause, signal: Signal) {
        let host = rank.map_or(0, |rank| self.ranks[rank].host);
        let failure = Failure {
            rank: rank.and_then(|rank| u32::try_from(rank).ok()),
            host: self.hosts[host].clone(),
            cause,
        };
        let rank = failure.rank;
        self.end_with(failure, rank, signal);
    }

    /// The same, where the other ranks hear that `rank` has failed.
    fn end_with(&mut self, failure: Failure, rank: Option<u32>, signal: Signal) {
        if matches!(self.phase, Phase::Ending { .. } | Phase::Killing { .. }) {
            return;
        }
        let now = Instant::now();
        self.phase = Phase::Ending {
            spare: Some(now + LAST_WORDS.min(self.grace)),
            kill: now + self.grace,
        };
        self.notice(|| format!("ending the job: {failure}"));
        match &failure.cause {
            // An interrupt is told by its signal, which a rank may handle.
            Cause::Interrupted { .. } => {}
            cause => {
                let message = match cause {
                    Cause::Host { .. } => failure.to_string(),
                    cause => cause.to_string(),
                };
                self.server.tell_all(&ToRank::PeerFailed { rank, message });
            }
        }
        if !self.fleet.as_ref().is_none_or(Fleet::launched) {
            // None has been started.
            self.ranks
                .iter_mut()
                .for_each(|rank| rank.exit = Some(Exit::Unknown));
            (0..self.ranks.len()).for_each(|number| self.outputs.end_all(number));
        }
        self.failure = Some(failure);
        self.pass_on();
        self.signal(signal.as_raw(), true, |rank| rank.failed.is_none());
    }

    fn kill(&mut self) {
        self.signal(libc::SIGKILL, false, |_| true);
        if !matches!(self.phase, Phase::Killing { .. }) {
            self.phase = Phase::Killing {
                give_up: Instant::now() + KILLED,
            };
        }
    }

    fn signal_all(&mut self, signal: i32) {
        self.signal(signal, false, |_| true);
    }

    /// Sends a signal to ranks, and SIGCONT after it to wake those that are stopped.
    fn signal(&mut self, number: i32, wake: bool, which: impl Fn(&Rank) -> bool) {
        let Some(signal) = Signal::from_named_raw(number) else {
            return;
        };
        let chosen = (0..).zip(&self.ranks).filter(|(_, rank)| which(rank));
        let (numbers, ranks): (Vec<u32>, Vec<&Rank>) = chosen.unzip();
        for process in ranks.iter().filter_map(|rank| rank.process.as_ref()) {
            process.signal(signal);
            if wake {
                process.signal(Signal::CONT);
            }
        }
        if let Some(fleet) = &mut self.fleet {
            let message = ToAgent::Signal {
                signal: number,
                wake,
                ranks: (numbers.len() < self.ranks.len()).then_some(numbers),
            };
            // Only the size of a message can be wrong, and this one is small.
            let _ = fleet.post(ALL, &message);
        }
    }
}
