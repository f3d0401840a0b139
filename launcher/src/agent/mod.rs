//! Starts and serves the ranks of one host, for a launcher on another, and passes on what it says to hosts below.
//!
//! ```text
//! launcher ── ssh ── agent ── local socket, pipes ── ranks
//!                      └───── ssh ── agent ── …
//! ```
//! An agent decides nothing. Its standard input and output are the channel (`link`); when that ends, so does everything
//! that it has started. If the agent itself is killed, its ranks die with it and its keeper ends the rest.

pub(crate) mod link;
pub(crate) mod remote;
pub(crate) mod wire;

pub use wire::AGENT;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::process::{Signal, getsid};

use self::link::{ALL, Frame, Link};
use self::remote::{Agents, Up};
use self::wire::{Brief, Failing, FromAgent, HELLO, ToAgent, WINDOW};
use crate::auth::Secret;
use crate::bind::Binding;
use crate::client::host_name;
use crate::connection::{Connection, Read};
use crate::door::{Door, Key, Visit};
use crate::error::{Error, ErrorKind, Result};
use crate::keeper::{self, Keeper};
use crate::output::Stream;
use crate::plan::{Outfit, Seat};
use crate::poll::{Token, Waits};
use crate::process::Process;
use crate::server::UNREAD;
use crate::wire::{MAX_TO_LAUNCHER, MAX_TO_RANK, ToRank, VERSION, frame, to_hex};
use crate::{GRACE, limits, network, watch};

/// How often to look at processes where the kernel has no pidfd.
const LOOK: Duration = Duration::from_millis(5);
const READ: usize = 1 << 16;

/// Is an agent until its launcher goes. `arguments` are those after [`AGENT`]: this host's number, and how many
/// milliseconds of silence mean that the launcher is gone.
///
/// # Errors
/// If it is started in another way, the channel breaks, or the system refuses something.
pub fn serve(arguments: &[std::ffi::OsString]) -> Result<()> {
    let number = |at: usize| arguments.get(at)?.to_str()?.parse::<u32>().ok();
    let (Some(host), Some(silence)) = (number(0), number(1)) else {
        return Err(Error::new(ErrorKind::Usage, "this is for ucxrun itself"));
    };
    Agent::open(host, Duration::from_millis(silence.into()))?.run()
}

struct Agent {
    host: u32,
    up: Link,
    below: Option<Agents>,
    job: Option<Job>,
    ranks: Vec<Local>,
    by_number: HashMap<u32, usize>,
    /// Bytes of output that the launcher still takes.
    window: usize,
    feed: Option<Feed>,
    finish: Finish,
    /// The launcher is out of reach: everything ends then.
    dying: Option<Instant>,
}

struct Job {
    brief: Brief,
    limits: Vec<(rustix::process::Resource, rustix::process::Rlimit)>,
    door: Option<Door>,
    keeper: Option<Keeper>,
}

struct Local {
    number: u32,
    process: Process,
    connection: Option<Connection>,
    pipes: [Option<Pipe>; 2],
}

struct Pipe {
    fd: OwnedFd,
    /// When all is over: what was in it then. Others may hold it open.
    left: Option<usize>,
}

#[derive(PartialEq)]
enum Finish {
    No,
    Draining,
    Done,
}

/// Standard input of a rank.
struct Feed {
    pipe: OwnedFd,
    buffer: Vec<u8>,
    ended: bool,
}

impl Agent {
    fn open(host: u32, silence: Duration) -> Result<Self> {
        let copy = |fd: io::Result<OwnedFd>| fd.map_err(|e| Error::io("channel", &e));
        let input = copy(io::stdin().as_fd().try_clone_to_owned())?;
        let output = copy(io::stdout().as_fd().try_clone_to_owned())?;
        let mut up = Link::new(input, output, silence)?;
        let digits = wire::VERSION_DIGITS;
        up.greet(&[HELLO, format!("{VERSION:0digits$}\n").as_bytes()].concat());
        let mut agent = Self {
            host,
            up,
            below: None,
            job: None,
            ranks: Vec::new(),
            by_number: HashMap::new(),
            window: WINDOW,
            feed: None,
            finish: Finish::No,
            dying: None,
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        agent.say(&FromAgent::Ready {
            host: host_name(),
            networks: network::devices(),
            cores: u32::try_from(cores).unwrap_or(1),
        })?;
        Ok(agent)
    }

    fn run(mut self) -> Result<()> {
        loop {
            let ready = self.wait()?;
            if !self.hear_up(&ready)? {
                break;
            }
            self.handle(&ready)?;
            if !self.clock()? {
                break;
            }
        }
        self.vanish();
        Ok(())
    }

    fn say(&mut self, message: &FromAgent) -> Result<()> {
        self.up.post(link::frame(self.host, message)?);
        Ok(())
    }

    fn wait(&self) -> Result<Vec<Token>> {
        let mut waits = Waits::default();
        self.up.waits(Token::Up, &mut waits);
        if let Some(below) = &self.below {
            below.waits(&mut waits);
        }
        if let Some(door) = self.job.as_ref().and_then(|job| job.door.as_ref()) {
            door.waits(&mut waits);
        }
        for (index, rank) in self.ranks.iter().enumerate() {
            match rank.process.pidfd() {
                _ if rank.process.exit().is_some() => {}
                Some(pidfd) => waits.on(Token::Exit(index), pidfd, PollFlags::IN),
                None => waits.until(Instant::now() + LOOK),
            }
            if let Some(connection) = &rank.connection {
                let (fd, flags) = connection.interest();
                waits.on(Token::Member(index), fd, flags);
            }
            if self.window > 0 {
                for stream in Stream::BOTH {
                    if let Some(pipe) = &rank.pipes[stream as usize] {
                        waits.on(Token::Pipe(index, stream), pipe.fd.as_fd(), PollFlags::IN);
                    }
                }
            }
        }
        if let Some(feed) = &self.feed {
            let flags = match feed.buffer.is_empty() {
                // Tells when the rank has closed its end.
                true => PollFlags::empty(),
                false => PollFlags::OUT,
            };
            waits.on(Token::Input, feed.pipe.as_fd(), flags);
        }
        waits.until(self.dying);
        waits.wait()
    }

    /// False when the launcher is gone.
    fn hear_up(&mut self, ready: &[Token]) -> Result<bool> {
        if !ready.contains(&Token::Up) {
            return Ok(true);
        }
        self.up.flush();
        let open = self.up.read();
        while let Some(frame) = self.up.next()? {
            let host = link::host_of(&frame);
            if host != self.host
                && let Some(below) = &mut self.below
            {
                below.post(&frame);
            }
            if host == self.host || host == ALL {
                let message = link::message(&frame)?;
                self.obey(message)?;
            }
        }
        Ok(open)
    }

    fn obey(&mut self, message: ToAgent) -> Result<()> {
        match message {
            ToAgent::Grow(branch) => match Agents::start(&branch) {
                Ok(agents) => self.below = Some(agents),
                Err(error) => self.cannot(&error)?,
            },
            ToAgent::Job(brief) => {
                if let Err(error) = self.prepare(*brief) {
                    self.cannot(&error)?;
                }
            }
            ToAgent::Ranks(numbers) => {
                if let Err(error) = self.start(&numbers) {
                    self.cannot(&error)?;
                }
            }
            ToAgent::Frame { rank, frame } => self.tell(rank, &frame.into())?,
            ToAgent::Close(rank) => {
                if let Some(index) = self.by_number.get(&rank) {
                    self.ranks[*index].connection = None;
                }
            }
            ToAgent::Signal {
                signal,
                wake,
                ranks,
            } => {
                if signal == libc::SIGTSTP {
                    // The launcher stops too.
                    self.up.expect_silence();
                }
                self.signal(signal, wake, ranks.as_deref());
            }
            ToAgent::Taken(bytes) => self.window = self.window.saturating_add(bytes),
            ToAgent::CloseOutput(stream) => {
                for rank in &mut self.ranks {
                    rank.pipes[stream as usize] = None;
                }
            }
            ToAgent::Input(bytes) => {
                if let Some(feed) = &mut self.feed {
                    feed.buffer.extend_from_slice(&bytes);
                }
            }
            ToAgent::EndOfInput => {
                if let Some(feed) = &mut self.feed {
                    feed.ended = true;
                }
            }
            ToAgent::Look => {
                for index in 0..self.ranks.len() {
                    let rank = &self.ranks[index];
                    if rank.process.exit().is_none() {
                        let what = watch::doing(rank.process.pid());
                        let rank = rank.number;
                        self.say(&FromAgent::Doing { rank, what })?;
                    }
                }
            }
            ToAgent::Finish => self.finish(),
        }
        Ok(())
    }

    fn cannot(&mut self, error: &Error) -> Result<()> {
        self.say(&FromAgent::Cannot {
            kind: Failing::from(error.kind()),
            message: error.to_string(),
        })
    }

    fn prepare(&mut self, brief: Brief) -> Result<()> {
        let limits = brief.surroundings.enter()?;
        if let Some(device) = &brief.network
            && !network::exists(device)
        {
            let devices = network::devices().join(", ");
            let message = format!("no network device {device}, only {devices}");
            return Err(Error::new(ErrorKind::Usage, message));
        }
        // Ranks come to this host only if the launcher has said which.
        self.job = Some(Job {
            brief,
            limits,
            door: None,
            keeper: None,
        });
        Ok(())
    }

    fn start(&mut self, numbers: &[u32]) -> Result<()> {
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
    fn tell(&mut self, rank: Option<u32>, frame: &Frame) -> Result<()> {
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

    fn signal(&self, signal: i32, wake: bool, ranks: Option<&[u32]>) {
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

    fn handle(&mut self, ready: &[Token]) -> Result<()> {
        // What a rank has printed before it sends a message goes before that message.
        for &token in ready {
            if let Token::Pipe(index, stream) = token {
                self.read(index, stream)?;
            }
        }
        let mut up = Vec::new();
        for &token in ready {
            match token {
                Token::Agent(number) => {
                    if let Some(below) = &mut self.below {
                        below.hear(number, &mut up);
                    }
                }
                Token::Said(number) => {
                    if let Some(below) = &mut self.below {
                        below.listen(number, &mut up);
                    }
                }
                Token::Listener => self.at_the_door(Door::accept)?,
                Token::Stranger(slot) => self.at_the_door(|door| door.greet(slot))?,
                Token::Member(index) => self.serve(index)?,
                _ => {}
            }
        }
        self.pass_on(up)?;
        for index in 0..self.ranks.len() {
            let rank = &self.ranks[index];
            if rank.process.pidfd().is_none() || ready.contains(&Token::Exit(index)) {
                self.look(index)?;
            }
        }
        if ready.contains(&Token::Input) {
            self.feed()?;
        }
        if self
            .feed
            .as_ref()
            .is_some_and(|feed| feed.ended && feed.buffer.is_empty())
        {
            self.feed = None;
        }
        if self.finish == Finish::Draining {
            self.drain()?;
        }
        Ok(())
    }

    /// What comes from hosts below goes up as it is.
    fn pass_on(&mut self, up: Vec<Up>) -> Result<()> {
        for one in up {
            match one {
                Up::Frame(frame) => self.up.post(frame),
                Up::Notice(line) => self.say(&FromAgent::Notice(line))?,
                Up::Lost(hosts, reason) => {
                    for host in hosts {
                        let reason = reason.clone();
                        self.up
                            .post(link::frame(host, &FromAgent::Lost { reason })?);
                    }
                }
            }
        }
        Ok(())
    }

    fn at_the_door(&mut self, act: impl FnOnce(&mut Door)) -> Result<()> {
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
    fn serve(&mut self, index: usize) -> Result<()> {
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
    fn frames(&mut self, index: usize) -> Result<()> {
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
    fn look(&mut self, index: usize) -> Result<()> {
        let Some(exit) = self.ranks[index].process.look() else {
            return Ok(());
        };
        // All that it has said is in the socket by now.
        self.serve(index)?;
        let rank = self.ranks[index].number;
        self.say(&FromAgent::Exited { rank, exit })
    }

    /// Reads once from a rank's pipe.
    fn read(&mut self, index: usize, stream: Stream) -> Result<()> {
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
    fn feed(&mut self) -> Result<()> {
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
    fn finish(&mut self) {
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
    fn drain(&mut self) -> Result<()> {
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

    /// False when it is time to go.
    fn clock(&mut self) -> Result<bool> {
        let now = Instant::now();
        self.at_the_door(|door| door.clock(now))?;
        let mut up = Vec::new();
        if let Some(below) = &mut self.below {
            below.clock(now, &mut up);
        }
        self.pass_on(up)?;
        if self.dying.is_some_and(|at| at <= now) {
            return Ok(false);
        }
        if !self.up.clock(now) && self.dying.is_none() {
            // The ranks may still say why they end.
            let message = format!(
                "the launcher is out of reach of host {}: no sign of life for {:?}",
                host_name(),
                self.up.limit()
            );
            let failed = ToRank::PeerFailed {
                rank: None,
                message,
            };
            self.tell(None, &frame(&failed, MAX_TO_RANK)?)?;
            self.signal(libc::SIGTERM, true, None);
            self.dying = Some(now + GRACE);
        }
        Ok(true)
    }

    /// The launcher is gone, or all is done: nothing stays behind.
    fn vanish(mut self) {
        self.signal(libc::SIGKILL, false, None);
        let groups = self.ranks.iter();
        let groups = groups.map(|rank| rank.process.pid().as_raw_nonzero().get());
        let groups = groups.collect();
        // Waits until they are gone.
        self.ranks.clear();
        if let Some(below) = self.below.take() {
            below.part();
        }
        if let Some(job) = self.job.take()
            && job.keeper.is_some()
            && let Ok(session) = getsid(None)
        {
            let session = session.as_raw_nonzero().get();
            keeper::sweep(session, &to_hex(&job.brief.job), &groups);
        }
    }
}

fn nonblocking(fd: &OwnedFd) -> Result<()> {
    rustix::io::ioctl_fionbio(fd, true).map_err(|e| Error::io("pipe", &e.into()))
}
