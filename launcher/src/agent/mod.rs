//! Starts and serves the ranks of one host, for a launcher on another, and passes on what it says to hosts below.
//!
//! ```text
//! launcher ── ssh ── agent ── local socket, pipes ── ranks
//!                      └───── ssh ── agent ── …
//! ```
//! An agent decides nothing. Its standard input and output are the channel (`link`); when that ends, so does everything
//! that it has started. If the agent itself is killed, its ranks die with it and its keeper ends the rest.

pub(crate) mod link;
mod ranks;
pub(crate) mod remote;
pub(crate) mod wire;

pub use wire::AGENT;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use self::link::{ALL, Link};
use self::remote::{Agents, Up};
use self::wire::{Brief, Failing, FromAgent, HELLO, ToAgent, WINDOW};
use crate::client::host_name;
use crate::connection::Connection;
use crate::door::Door;
use crate::error::{Error, ErrorKind, Result};
use crate::keeper::{self, Keeper};
use crate::output::Stream;
use crate::poll::{Token, Waits};
use crate::proc::Stat;
use crate::process::Process;
use crate::wire::{MAX_TO_RANK, ToRank, VERSION, frame, to_hex};
use crate::{GRACE, network, watch};

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
            && let Some(us) = Stat::of_us()
        {
            keeper::sweep(us.session, &to_hex(&job.brief.job), &groups);
        }
    }
}
