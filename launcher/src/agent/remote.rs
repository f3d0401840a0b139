//! The agents that this process has started: one for each branch of the tree below it.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::link::{self, ALL, Frame, Link};
use super::wire::{AGENT, Branch, HELLO, Remote, ToAgent, VERSION_DIGITS};
use crate::error::{Error, Result};
use crate::exec::{BeforeExec, before_exec};
use crate::poll::{Token, Waits};
use crate::process::{Exit, Process};
use crate::wire::{VERSION, clip};

/// How long an agent may take to answer.
pub(crate) const START: Duration = Duration::from_secs(10);
/// Most bytes that login scripts may write in front of an agent's greeting.
const NOISE: usize = 1 << 16;
/// Kept of what the remote-start command says.
const WORDS: usize = 1 << 12;
/// How long the remote-start command has to end after its agent.
const PARTING: Duration = Duration::from_secs(2);

/// What comes from below.
pub(crate) enum Up {
    /// To be passed on or handled: [`link::host_of`] says who sent it.
    Frame(Frame),
    /// These hosts are gone, the first one for this reason.
    Lost(Vec<u32>, String),
    /// For the curious.
    Notice(String),
}

/// All that this process has started.
pub(crate) struct Agents {
    list: Vec<Agent>,
}

struct Agent {
    name: String,
    /// Its host first, then those below it.
    hosts: Vec<u32>,
    program: OsString,
    process: Process,
    link: Link,
    said: Option<OwnedFd>,
    /// What the remote-start command has written to its standard error.
    words: Vec<u8>,
    /// Before its greeting: what has come instead, and until when it must come.
    awaited: Option<(Vec<u8>, Instant)>,
    /// For its part of the tree, once it is there.
    below: Option<Branch>,
    lost: bool,
}

impl Agents {
    /// Starts agents for all hosts of `branch`: some here, which start the others.
    pub(crate) fn start(branch: &Branch) -> Result<Self> {
        let direct = |(number, _): &&(u32, String)| Some(*number) == branch.remote.direct;
        let mut list = Vec::new();
        if let Some(here) = branch.hosts.iter().find(direct) {
            list.push(Agent::start(std::slice::from_ref(here), &branch.remote)?);
        }
        let others = branch.hosts.iter().filter(|host| !direct(host));
        let others: Vec<_> = others.cloned().collect();
        let parts = (branch.remote.fan_out.max(1) as usize).min(others.len());
        let mut rest = &others[..];
        for part in 0..parts {
            let (hosts, others) = rest.split_at(rest.len().div_ceil(parts - part));
            rest = others;
            list.push(Agent::start(hosts, &branch.remote)?);
        }
        Ok(Self { list })
    }

    pub(crate) fn waits<'a>(&'a self, waits: &mut Waits<'a>) {
        for (number, agent) in self.list.iter().enumerate() {
            if agent.lost {
                continue;
            }
            agent.link.waits(Token::Agent(number), waits);
            if let Some(said) = &agent.said {
                waits.on(Token::Said(number), said.as_fd(), PollFlags::IN);
            }
            waits.until(agent.awaited.as_ref().map(|(_, until)| *until));
        }
    }

    /// Sends `frame` to whom it is addressed.
    pub(crate) fn post(&mut self, frame: &Frame) {
        let host = link::host_of(frame);
        for agent in &mut self.list {
            if !agent.lost && (host == ALL || agent.hosts.contains(&host)) {
                agent.link.post(Frame::clone(frame));
            }
        }
    }

    /// See `Fleet::suspend`.
    pub(crate) fn suspend(&mut self) {
        for agent in &mut self.list {
            agent.link.flush();
            agent.link.expect_silence();
        }
    }

    /// Hears the agent with this number.
    pub(crate) fn hear(&mut self, number: usize, up: &mut Vec<Up>) {
        let agent = &mut self.list[number];
        if agent.lost {
            return;
        }
        agent.link.flush();
        match agent.hear(up) {
            Ok(()) => {}
            Err(reason) => {
                let reason = agent.why(&reason);
                agent.lose(reason, up);
            }
        }
    }

    /// Reads what the remote-start command says.
    pub(crate) fn listen(&mut self, number: usize, up: &mut Vec<Up>) {
        let agent = &mut self.list[number];
        let before = agent.words.len();
        agent.listen();
        let text = String::from_utf8_lossy(agent.words.get(before..).unwrap_or_default());
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            up.push(Up::Notice(format!("host {}: {}", agent.name, line.trim())));
        }
    }

    /// Looks for agents that take too long to answer, or have fallen silent.
    pub(crate) fn clock(&mut self, now: Instant, up: &mut Vec<Up>) {
        for agent in &mut self.list {
            if agent.lost {
                continue;
            }
            if let Some((_, until)) = agent.awaited {
                if until <= now {
                    agent.listen();
                    let reason = agent.why(&format!("no answer within {START:?}"));
                    agent.lose(reason, up);
                }
            } else if !agent.link.clock(now) {
                let reason = format!("no sign of life for {:?}", agent.link.limit());
                agent.lose(reason, up);
            }
        }
    }

    /// Lets all go: they see the end of their input. Waits until they have, for a while.
    pub(crate) fn part(self) {
        let mut processes: Vec<Process> = Vec::new();
        for mut agent in self.list {
            agent.link.flush();
            if !agent.lost {
                processes.push(agent.process);
            }
        }
        let until = Instant::now() + PARTING;
        while Instant::now() < until {
            processes.retain_mut(|process| process.look().is_none());
            if processes.is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Agent {
    fn start(hosts: &[(u32, String)], remote: &Remote) -> Result<Self> {
        let (first, below) = hosts.split_at(1);
        let name = first.first().map(|(_, name)| name.clone());
        let name = name.unwrap_or_default();
        let number = first.first().map_or(0, |(number, _)| *number);
        let words = words(remote, number, &name);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::piped());
        let what = BeforeExec {
            dies_with_us: true,
            ..Default::default()
        };
        before_exec(&mut command, what);
        let child = command.spawn().map_err(|e| {
            let shown = words[0].display();
            Error::io(
                format_args!("host {name}: remote-start command {shown}"),
                &e,
            )
        })?;
        let mut process = Process::new(child)?;
        let child = process.child();
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(input), Some(output), Some(said)) = pipes else {
            return Err(Error::io("pipe", &std::io::ErrorKind::BrokenPipe.into()));
        };
        let said: OwnedFd = said.into();
        rustix::io::ioctl_fionbio(&said, true).map_err(|e| Error::io("pipe", &e.into()))?;
        let below = (!below.is_empty()).then(|| Branch {
            hosts: below.to_vec(),
            remote: remote.clone(),
        });
        Ok(Self {
            name,
            hosts: hosts.iter().map(|(number, _)| *number).collect(),
            program: remote.program.clone(),
            process,
            link: Link::new(output.into(), input.into(), remote.silence)?,
            said: Some(said),
            words: Vec::new(),
            awaited: Some((Vec::new(), Instant::now() + START)),
            below,
            lost: false,
        })
    }

    /// The error is why it is gone.
    fn hear(&mut self, up: &mut Vec<Up>) -> std::result::Result<(), String> {
        if self.awaited.is_some() && !self.greeted(up)? {
            return Ok(());
        }
        let open = self.link.read();
        loop {
            match self.link.next() {
                Ok(Some(frame)) => up.push(Up::Frame(frame)),
                Ok(None) if open => return Ok(()),
                Ok(None) => return Err("its agent has ended".to_owned()),
                Err(error) => return Err(format!("its agent is not understood: {error}")),
            }
        }
    }

    /// Looks for the greeting; true once it has come.
    fn greeted(&mut self, up: &mut Vec<Up>) -> std::result::Result<bool, String> {
        let Some((noise, _)) = &mut self.awaited else {
            return Ok(true);
        };
        let mut buffer = [0; 4096];
        let n = match self.link.read_into(&mut buffer) {
            Ok(n) => n,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(false),
            Err(error) => return Err(format!("cannot start its agent: {error}")),
        };
        noise.extend_from_slice(&buffer[..n]);
        let Some(Hello {
            before,
            version,
            rest,
        }) = Hello::find(noise)
        else {
            if n == 0 {
                return Err("cannot start its agent".to_owned());
            }
            if noise.len() > NOISE {
                return Err("its login scripts write too much to standard output".to_owned());
            }
            return Ok(false);
        };
        if version != Some(VERSION) {
            return Err(format!(
                "{} there speaks version {} of the protocol, this one {VERSION}: install the same release",
                self.program.display(),
                version.map_or("?".to_owned(), |version| version.to_string()),
            ));
        }
        self.link.push(rest);
        if !before.is_empty() {
            let text = clip(String::from_utf8_lossy(before).into_owned());
            up.push(Up::Notice(format!(
                "host {}: login scripts wrote {text:?}",
                self.name
            )));
        }
        self.awaited = None;
        if let Some(branch) = self.below.take() {
            let grow = link::frame(self.hosts[0], &ToAgent::Grow(branch));
            self.link.post(grow.map_err(|e| e.to_string())?);
        }
        Ok(true)
    }

    fn listen(&mut self) {
        let mut buffer = [0; 1024];
        while let Some(said) = &self.said {
            match rustix::io::read(said, &mut buffer) {
                Ok(0) => self.said = None,
                Ok(n) => {
                    self.words.extend_from_slice(&buffer[..n]);
                    let excess = self.words.len().saturating_sub(WORDS);
                    self.words.drain(..excess);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    /// `reason`, with what the remote-start command has said and how it has ended.
    fn why(&mut self, reason: &str) -> String {
        // It is about to end: that tells more.
        let until = Instant::now() + Duration::from_millis(200);
        while self.process.exit().is_none() && Instant::now() < until {
            if self.process.look().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.listen();
        let text = String::from_utf8_lossy(&self.words);
        let last = text.lines().map(str::trim).rfind(|line| !line.is_empty());
        match (last, self.process.exit()) {
            (Some(line), _) => format!("{reason}: {line}"),
            (None, Some(Exit::Code(127))) if self.awaited.is_some() => {
                format!("{reason}: no {} there", self.program.display())
            }
            (None, Some(exit)) => format!("{reason}: the remote-start command {exit}"),
            (None, None) => reason.to_owned(),
        }
    }

    fn lose(&mut self, reason: String, up: &mut Vec<Up>) {
        self.lost = true;
        self.process.signal(rustix::process::Signal::KILL);
        up.push(Up::Lost(self.hosts.clone(), reason));
    }
}

/// An agent's greeting, in what has come from its host.
#[derive(Debug)]
pub(crate) struct Hello<'a> {
    /// What login scripts have written.
    pub(crate) before: &'a [u8],
    /// None if it is no number.
    pub(crate) version: Option<u32>,
    /// What has come after it.
    pub(crate) rest: &'a [u8],
}

impl<'a> Hello<'a> {
    /// None unless all of it has come.
    pub(crate) fn find(bytes: &'a [u8]) -> Option<Self> {
        let at = bytes.windows(HELLO.len()).position(|part| part == HELLO)?;
        let (before, hello) = bytes.split_at_checked(at)?;
        let after = hello.get(HELLO.len()..)?;
        let (version, rest) = after.split_at_checked(VERSION_DIGITS + 1)?;
        let version = String::from_utf8_lossy(version).trim().parse().ok();
        Some(Self {
            before,
            version,
            rest,
        })
    }
}

/// The remote-start command for `host`.
fn words(remote: &Remote, number: u32, host: &str) -> Vec<OsString> {
    let program = quoted(&remote.program);
    let silence = remote.silence.as_millis();
    if remote.direct == Some(number) {
        let words = [
            "/proc/self/exe",
            AGENT,
            &number.to_string(),
            &silence.to_string(),
        ];
        return words.map(OsString::from).to_vec();
    }
    let arguments = format!(" {AGENT} {number} {silence}");
    let command = [program.as_bytes(), arguments.as_bytes()].concat();
    let command = OsString::from_vec(command);
    let (mut placed, mut words) = (false, Vec::new());
    for word in &remote.command {
        let text = word.to_string_lossy();
        if text.contains("{host}") || text.contains("{command}") {
            placed = true;
            let text = text.replace("{host}", host);
            words.push(text.replace("{command}", &command.to_string_lossy()).into());
        } else {
            words.push(word.clone());
        }
    }
    if !placed {
        words.extend([host.into(), command]);
    }
    words
}

/// As a shell takes it for one word.
fn quoted(word: &OsStr) -> OsString {
    let mut bytes = vec![b'\''];
    for &byte in word.as_bytes() {
        if byte == b'\'' {
            bytes.extend_from_slice(b"'\\''");
        } else {
            bytes.push(byte);
        }
    }
    bytes.push(b'\'');
    OsString::from_vec(bytes)
}
