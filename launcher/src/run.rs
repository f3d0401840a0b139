//! The life of a job: one loop over connections, processes, pipes and clocks.
//!
//! ```text
//! Running ── a rank fails ──► Settling ── first cause found ──► Ending ── grace over ──► Killing
//!    │                        (50 ms)                             ▲                        ▲
//!    ├──── time is up, interrupted ──────────────────────────────┘      interrupted again │
//!    └──── all ended ──► drain pipes, kill what is left in the groups ◄───────────────────┘
//! ```

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::process::{self as unix, Signal};

use crate::client::host_name;
use crate::control::{Command, JobControl};
use crate::error::{Error, Result};
use crate::input::Pump;
use crate::job::{Job, NoticeFn};
use crate::outcome::{Cause, Failure, Outcome};
use crate::output::{Output, Outputs, Stream};
use crate::poll::{Token, Waits};
use crate::rank::{Exit, KILLED, Rank};
use crate::server::{Event, Server, State};
use crate::wire::ToRank;

/// How long to look for earlier causes after the first sign of a failure: a survivor may be heard before the victim.
const SETTLE: Duration = Duration::from_millis(50);
/// How long a rank that has closed its connection has to exit, which tells more.
const LOST: Duration = Duration::from_millis(500);
/// How long a rank that has said why it fails has to exit by itself.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How often to look at processes where the kernel has no pidfd.
const LOOK: Duration = Duration::from_millis(5);

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
    host: String,
    ranks: Vec<Rank>,
    server: Server,
    outputs: Outputs,
    pump: Option<Pump>,
    stdin: io::Stdin,
    control: JobControl,
    notices: Option<NoticeFn>,
    phase: Phase,
    failure: Option<Failure>,
    timeout: Option<(Instant, Duration)>,
    grace: Duration,
    /// Counts wake-ups: what is found in one has no known order.
    turn: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    Settling {
        until: Instant,
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
    fn start(mut job: Job, control: JobControl) -> Result<Self> {
        let server = Server::open(job.ranks)?;
        if let Output::Files(directory) = &job.output {
            std::fs::create_dir_all(directory).map_err(|e| {
                Error::io(format_args!("output directory {}", directory.display()), &e)
            })?;
        }
        let environment = server.environment();
        let count = job.ranks as usize;
        let mut ranks: Vec<Rank> = Vec::with_capacity(count);
        for number in 0..job.ranks {
            // If one fails, those before it are killed as they are dropped.
            ranks.push(Rank::new(job.spawn(number, &environment)?)?);
        }
        let mut outputs = Outputs::new(std::mem::take(&mut job.output), count, job.label)?;
        let mut pump = None;
        for (number, rank) in ranks.iter_mut().enumerate() {
            if let Some(pipe) = rank.child.stdout.take() {
                outputs.connect(number, Stream::Stdout, pipe.into())?;
            }
            if let Some(pipe) = rank.child.stderr.take() {
                outputs.connect(number, Stream::Stderr, pipe.into())?;
            }
            if let Some(pipe) = rank.child.stdin.take() {
                pump = Some(Pump::new(pipe.into())?);
            }
        }
        let mut engine = Self {
            host: host_name(),
            ranks,
            server,
            outputs,
            pump,
            stdin: io::stdin(),
            control,
            notices: job.notices.take(),
            phase: Phase::Running,
            failure: None,
            timeout: job
                .timeout
                .and_then(|time| Some((Instant::now().checked_add(time)?, time))),
            grace: job.grace,
            turn: 0,
        };
        for number in 0..count {
            let pid = engine.ranks[number].pid;
            engine.notice(|| format!("rank {number}: started as process {pid}"));
        }
        Ok(engine)
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
            Phase::Settling { .. } => false,
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
            match &rank.pidfd {
                _ if rank.exit.is_some() => {}
                Some(pidfd) => waits.on(Token::Exit(number), pidfd.as_fd(), PollFlags::IN),
                None => waits.until(Instant::now() + LOOK),
            }
        }
        self.outputs.waits(&mut waits);
        if let Some(pump) = &self.pump {
            pump.waits(&mut waits, &self.stdin);
        }
        match self.phase {
            Phase::Running => waits.until(self.timeout.map(|(at, _)| at)),
            Phase::Settling { until } => waits.until(until),
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
        for number in 0..self.ranks.len() {
            let rank = &self.ranks[number];
            if rank.pidfd.is_none() || ready.contains(&Token::Exit(number)) {
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
        if ready.contains(&Token::Input) && !self.pump.as_mut().is_some_and(Pump::pump) {
            self.pump = None;
        }
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
                    Phase::Running | Phase::Settling { .. } => {
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
                    self.look_for_absent();
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
                Event::Refused(who) => self.notice(|| format!("refused {who}")),
            }
        }
    }

    /// Ranks that exit with 0 without joining are fine, as long as no rank joins.
    fn look_for_absent(&mut self) {
        let any = (0..self.ranks.len()).any(|number| self.server.state(number) != State::Absent);
        for number in 0..self.ranks.len() {
            let absent = self.server.state(number) == State::Absent;
            if any && absent && self.ranks[number].exit == Some(Exit::Code(0)) {
                self.sign(number, false, SETTLE);
            }
        }
    }

    /// Finds out whether a rank's process has ended.
    fn look(&mut self, number: usize) {
        let Some(exit) = self.ranks[number].look() else {
            return;
        };
        // All that it has said is in the socket by now.
        self.server.serve(number);
        self.events();
        self.ranks[number].exit = Some(exit);
        self.notice(|| format!("rank {number}: {exit}"));
        if exit != Exit::Code(0) || self.server.state(number) == State::Joined {
            self.sign(number, false, SETTLE);
        }
        self.look_for_absent();
    }

    /// A rank has failed, or so it seems: the cause will be known within `time`.
    fn sign(&mut self, number: usize, on_purpose: bool, time: Duration) {
        let turn = self.turn;
        self.ranks[number].sign.get_or_insert((turn, on_purpose));
        let until = Instant::now() + time;
        match &mut self.phase {
            Phase::Running => self.phase = Phase::Settling { until },
            Phase::Settling { until: earlier } => *earlier = until.min(*earlier),
            Phase::Ending { .. } | Phase::Killing { .. } => {}
        }
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
                    let cause = self.too_late(after);
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
                for rank in self.ranks.iter().filter(|rank| rank.failed.is_some()) {
                    rank.end(Signal::TERM);
                }
            }
            Phase::Ending { .. } | Phase::Killing { .. } => {}
        }
    }

    fn too_late(&self, after: Duration) -> Cause {
        let any = (0..self.ranks.len()).any(|number| self.server.state(number) != State::Absent);
        let alive = (0..)
            .zip(&self.ranks)
            .filter(|(_, rank)| rank.exit.is_none());
        let (not_joined, not_ended) = alive
            .map(|(number, _)| number)
            .partition(|&number| any && self.server.state(number as usize) == State::Absent);
        Cause::TimedOut {
            after,
            not_joined,
            not_ended,
        }
    }

    /// Chooses the first failure: what is least likely a consequence, then the order in which the signs were seen; within one turn, a rank that died without a word before one that
    /// had the time to explain itself.
    fn decide(&mut self) {
        let suspects = self.ranks.iter().enumerate();
        let suspects = suspects.filter_map(|(number, rank)| Some((number, rank, rank.sign?)));
        let first = suspects.min_by_key(|(_, rank, sign)| (rank.consequence(), *sign));
        let Some((number, rank, _)) = first else {
            return;
        };
        let joined = self.server.state(number) != State::Absent;
        let cause = match (&rank.failed, &rank.broke, rank.exit) {
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
        };
        self.end(Some(number), cause, Signal::TERM);
    }

    /// Begins the end of the job, unless it has begun.
    fn end(&mut self, rank: Option<usize>, cause: Cause, signal: Signal) {
        if !matches!(self.phase, Phase::Running | Phase::Settling { .. }) {
            return;
        }
        let now = Instant::now();
        self.phase = Phase::Ending {
            spare: Some(now + LAST_WORDS.min(self.grace)),
            kill: now + self.grace,
        };
        let failure = Failure {
            rank: rank.and_then(|rank| u32::try_from(rank).ok()),
            host: self.host.clone(),
            cause,
        };
        self.notice(|| format!("ending the job: {failure}"));
        // An interrupt is told by its signal, which a rank may handle.
        if !matches!(failure.cause, Cause::Interrupted { .. }) {
            let message = failure.cause.to_string();
            self.server.tell_all(&ToRank::PeerFailed {
                rank: failure.rank,
                message,
            });
        }
        self.failure = Some(failure);
        for rank in self.ranks.iter().filter(|rank| rank.failed.is_none()) {
            rank.end(signal);
        }
    }

    fn kill(&mut self) {
        for rank in &self.ranks {
            rank.signal(Signal::KILL);
        }
        if !matches!(self.phase, Phase::Killing { .. }) {
            self.phase = Phase::Killing {
                give_up: Instant::now() + KILLED,
            };
        }
    }

    fn signal_all(&self, signal: i32) {
        if let Some(signal) = Signal::from_named_raw(signal) {
            for rank in &self.ranks {
                rank.signal(signal);
            }
        }
    }

    /// All ranks have ended: delivers the rest of their output and leaves nothing behind.
    fn finish(mut self) -> Result<Outcome> {
        for rank in &self.ranks {
            rank.signal(Signal::KILL);
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
            if left.is_empty() && self.failure.is_some() {
                // The reason is about to be written there.
                self.outputs.end_line(Stream::Stderr);
            }
            if given_up.is_some() || (left.is_empty() && self.outputs.written()) {
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
            for token in waits.wait()? {
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
                host: self.host.clone(),
                cause,
            });
        }
        let stuck = self.ranks.iter().position(|rank| rank.exit.is_none());
        if let Some(rank) = stuck {
            self.notice(|| format!("rank {rank}: cannot be killed, left behind"));
        }
        for rank in &mut self.ranks {
            rank.reap();
        }
        let [stdout, stderr] = self.outputs.into_captured();
        let code = self
            .failure
            .as_ref()
            .map_or(0, |failure| failure.cause.code());
        Ok(Outcome {
            code,
            failure: self.failure,
            stdout,
            stderr,
        })
    }

    /// What it was asked to end for, if it was.
    fn interrupted(&mut self) -> Option<Cause> {
        match self.control.next()? {
            Command::Interrupt(signal) => Some(Cause::Interrupted { signal }),
            Command::Kill => Some(Cause::Interrupted {
                signal: libc::SIGKILL,
            }),
            Command::Forward(_) | Command::Suspend => None,
        }
    }
}
