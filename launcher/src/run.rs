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

use std::io;
use std::os::fd::AsFd;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::process::{self as unix, Signal};

use crate::agent::link::ALL;
use crate::agent::wire::{Brief, Failing, FromAgent, INPUT_WINDOW, Remote, ToAgent};
use crate::bind::Binding;
use crate::client::host_name;
use crate::codec;
use crate::control::{Command, JobControl};
use crate::door::{Door, Key};
use crate::error::{Error, Result};
use crate::fleet::{Fleet, News};
use crate::hosts::is_here;
use crate::input::{Pump, Source, Stdin};
use crate::job::{Job, NoticeFn, SSH};
use crate::keeper::Keeper;
use crate::outcome::{Cause, Failure, Outcome, ranges};
use crate::output::{self, Output, Outputs, Stream};
use crate::plan::{Outfit, Seat, Surroundings};
use crate::poll::{Token, Waits};
use crate::process::{Exit, KILLED, Process};
use crate::rank::Rank;
use crate::server::{Event, Outgoing, Server, State};
use crate::watch;
use crate::wire::{self, RankStats, ToRank, exit};

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
    fn start(mut job: Job, control: JobControl) -> Result<Self> {
        let size = job.plan.size();
        let count = size as usize;
        if let Output::Files(directory) = &job.output {
            std::fs::create_dir_all(directory).map_err(|e| {
                Error::io(format_args!("output directory {}", directory.display()), &e)
            })?;
        }
        let key = Key::random(size)?;
        let (mut hosts, mut ranks) = (vec![host_name()], Vec::with_capacity(count));
        let (mut door, mut fleet, mut keeper) = (None, None, None);
        let mut lines = Vec::new();
        if job.places.is_empty() {
            let ours = door.insert(Door::open(key.clone(), 0..size)?);
            if let Some(program) = &job.keeper {
                keeper = Some(Keeper::start(program, &wire::to_hex(&key.job))?);
            }
            let binding = Binding::here(&job.bind, count)?;
            lines.extend(binding.note.clone());
            let environment = ours.environment();
            for number in 0..size {
                // If one fails, those before it are killed as they are dropped.
                let process = start_here(&job, number, &environment, &binding)?;
                if let Some(keeper) = &mut keeper {
                    keeper.watch(process.pid());
                }
                if let Some(bound) = binding.text(number as usize) {
                    lines.push(bound_to(number, &hosts[0], &bound));
                }
                ranks.push(Rank::new(0, Some(process)));
            }
        } else {
            hosts = job.places.iter().map(|place| place.host.clone()).collect();
            let mut at = vec![0; count];
            for (host, place) in job.places.iter().enumerate() {
                for &rank in &place.ranks {
                    if let Some(at) = at.get_mut(rank as usize) {
                        *at = host;
                    }
                }
            }
            ranks.extend(at.into_iter().map(|host| Rank::new(host, None)));
            fleet = Some(start_there(&job, &key)?);
        }
        let output = std::mem::take(&mut job.output);
        let mut outputs = Outputs::new(output, count, job.label, fleet.is_some())?;
        let mut pump = None;
        for (number, rank) in ranks.iter_mut().enumerate() {
            let Some(process) = &mut rank.process else {
                continue;
            };
            let child = process.child();
            if let Some(pipe) = child.stdout.take() {
                outputs.connect(number, Stream::Stdout, pipe.into())?;
            }
            if let Some(pipe) = child.stderr.take() {
                outputs.connect(number, Stream::Stderr, pipe.into())?;
            }
            if let Some(pipe) = child.stdin.take() {
                pump = Some(Pump::new(pipe.into())?);
            }
        }
        let source = fleet.as_ref().and(job.stdin.rank());
        let mut engine = Self {
            hosts,
            ranks,
            fleet,
            server: Server::new(size, door),
            outputs,
            closed: [false; 2],
            pump,
            source: source.map(|_| Source::new(INPUT_WINDOW)),
            stdin: io::stdin(),
            control,
            keeper,
            notices: job.notices.take(),
            bindings: job.bindings.take(),
            phase: Phase::Running,
            failure: None,
            doing: vec![(None, None); count],
            late: Vec::new(),
            stats: vec![None; count],
            timeout: job
                .timeout
                .and_then(|time| Some((Instant::now().checked_add(time)?, time))),
            grace: job.grace,
            keep_going: job.keep_going,
            joined: false,
            turn: 0,
        };
        for line in lines {
            engine.binding(&line);
        }
        for number in 0..count {
            if let Some(process) = &engine.ranks[number].process {
                let pid = process.pid();
                engine.notice(|| format!("rank {number}: started as process {pid}"));
            }
        }
        Ok(engine)
    }

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

    /// What hosts have said.
    fn hear(&mut self, ready: &[Token]) {
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

    fn heard(&mut self, host: usize, message: FromAgent) {
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
    fn forget(&mut self, host: usize) {
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
    fn end_at(&mut self, host: usize, code: i32, message: String) {
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
    fn pass_on(&mut self) {
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
    fn send_input(&mut self) {
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
            return;
        }
        let until = Instant::now() + time;
        match &mut self.phase {
            Phase::Running => self.phase = Phase::Settling { until },
            Phase::Settling { until: earlier } => *earlier = until.min(*earlier),
            Phase::Asking { .. } | Phase::Ending { .. } | Phase::Killing { .. } => {}
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

    /// Asks what the ranks are doing: themselves, and the system.
    fn ask(&mut self) {
        self.server.tell_all(&ToRank::Report);
        for (rank, doing) in self.ranks.iter().zip(&mut self.doing) {
            if let (Some(process), None) = (&rank.process, rank.exit) {
                doing.1 = Some(watch::doing(process.pid()));
            }
        }
        if let Some(fleet) = &mut self.fleet {
            // If that fails, we know less.
            let _ = fleet.post(ALL, &ToAgent::Look);
        }
    }

    fn answered(&self) -> bool {
        (0..).zip(&self.ranks).all(|(number, rank)| {
            let (said, seen) = &self.doing[number];
            let joined = self.server.state(number) == State::Joined;
            rank.exit.is_some() || (said.is_some() || !joined) && seen.is_some()
        })
    }

    /// What the ranks that have not ended were doing, those that say the same together.
    fn doings(&self) -> Vec<String> {
        let mut groups: Vec<(&str, Vec<u32>)> = Vec::new();
        for ((number, rank), doing) in (0..).zip(&self.ranks).zip(&self.doing) {
            let what = match doing {
                (Some(said), _) => said,
                (None, Some(seen)) => seen,
                (None, None) => "not known",
            };
            if rank.exit.is_none() {
                match groups.iter_mut().find(|(other, _)| *other == what) {
                    Some((_, ranks)) => ranks.push(number),
                    None => groups.push((what, vec![number])),
                }
            }
        }
        let line = |(what, ranks): (&str, Vec<u32>)| {
            let s = if ranks.len() == 1 { "" } else { "s" };
            format!("rank{s} {}: {what}", ranges(&ranks))
        };
        groups.into_iter().map(line).collect()
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
        if let Some((number, cause)) = self.first_failure() {
            self.end(Some(number), cause, Signal::TERM);
        }
    }

    fn first_failure(&self) -> Option<(usize, Cause)> {
        let suspects = self.ranks.iter().enumerate();
        let suspects = suspects.filter_map(|(number, rank)| Some((number, rank, rank.sign?)));
        let first = suspects.min_by_key(|(_, rank, sign)| (rank.consequence(), *sign));
        let (number, rank, _) = first?;
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
        Some((number, cause))
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

    /// All ranks have ended: delivers the rest of their output and leaves nothing behind.
    fn finish(mut self) -> Result<Outcome> {
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

/// Starts a rank as a process of ours.
fn start_here(
    job: &Job,
    rank: u32,
    variables: &[(&'static str, String)],
    binding: &Binding,
) -> Result<Process> {
    let stdin = match job.stdin {
        Stdin::Rank(reader) if reader != rank => Stdio::null(),
        Stdin::Null => Stdio::null(),
        Stdin::Rank(_) if Pump::is_needed() => Stdio::piped(),
        Stdin::Rank(_) => Stdio::inherit(),
    };
    let output = |stream| {
        Ok(match &job.output {
            Output::Null => Stdio::null(),
            Output::Files(directory) => output::file(directory, rank, stream)?.into(),
            _ => Stdio::piped(),
        })
    };
    let limit = job
        .open_files
        .map(|limit| (unix::Resource::Nofile, limit.before()));
    let outfit = Outfit {
        variables,
        environment: None,
        limits: limit.into_iter().collect(),
        cpus: binding.set(rank as usize),
        stdio: [stdin, output(Stream::Stdout)?, output(Stream::Stderr)?],
    };
    // One machine: a rank's place there is its place in the job.
    let seat = Seat {
        rank,
        local_rank: rank,
        local_size: job.plan.size(),
    };
    Process::new(job.plan.spawn(seat, outfit)?)
}

/// Starts agents on the hosts of a job.
fn start_there(job: &Job, key: &Key) -> Result<Fleet> {
    let brief = Brief {
        secret: key.secret.to_bytes(),
        job: key.job,
        plan: job.plan.clone(),
        surroundings: Surroundings::here(job.open_files.map(|limit| limit.before()))?,
        bind: job.bind.clone(),
        stdin: job.stdin.rank(),
        output: !matches!(job.output, Output::Null),
        network: job.network.clone(),
    };
    let command = job.agents.command.clone();
    let here = (0..)
        .zip(&job.places)
        .find(|(_, place)| is_here(&place.host));
    let remote = Remote {
        // A command of the user's own is meant for every host.
        direct: here.filter(|_| command.is_none()).map(|(number, _)| number),
        command: command.unwrap_or_else(|| SSH.split(' ').map(Into::into).collect()),
        program: job.agents.program.clone().into(),
        fan_out: job.agents.fan_out,
        silence: job.agents.silence,
    };
    Fleet::start(&job.places, &remote, brief)
}

fn bound_to(rank: u32, host: &str, processors: &str) -> String {
    format!("rank {rank} on host {host}: bound to processors {processors}")
}
