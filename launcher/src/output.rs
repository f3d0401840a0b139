//! The ranks' output: whole lines from many pipes into few descriptors, with bounded buffers and nothing lost.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::event::PollFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::poll::{Token, Waits, writable};

/// Lines up to this length are kept whole.
pub const MAX_LINE: usize = 1 << 18;
/// Ranks are read while less than this waits for our own output to be read.
const QUEUE: usize = 1 << 20;
const READ: usize = 1 << 16;
/// What fits into a pipe that poll says has room, so that a blocking write does not block.
const PIPE_WRITE: usize = 4096;

/// One of a rank's two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    pub(crate) const BOTH: [Self; 2] = [Self::Stdout, Self::Stderr];
}

/// Takes whole lines as they come: rank, stream, bytes with their line ends.
pub type LineFn = Box<dyn FnMut(u32, Stream, &[u8]) + Send>;

/// Where the ranks' output goes.
#[derive(Default)]
#[non_exhaustive]
pub enum Output {
    /// To this process's standard output and standard error, in whole lines.
    #[default]
    Inherit,
    /// Nowhere.
    Null,
    /// Into [`Outcome::stdout`](crate::Outcome::stdout) and [`stderr`](crate::Outcome::stderr), in whole lines.
    Capture,
    /// Into files `rank.N.out` and `rank.N.err` in this directory, which is created; the ranks write them directly.
    Files(PathBuf),
    /// To a function, called in the thread of [`Job::run`](crate::Job::run).
    Each(LineFn),
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inherit => f.write_str("Inherit"),
            Self::Null => f.write_str("Null"),
            Self::Capture => f.write_str("Capture"),
            Self::Files(directory) => f.debug_tuple("Files").field(directory).finish(),
            Self::Each(_) => f.write_str("Each(..)"),
        }
    }
}

/// A rank's output file in `directory`.
pub(crate) fn file(directory: &Path, rank: u32, stream: Stream) -> Result<File> {
    let suffix = match stream {
        Stream::Stdout => "out",
        Stream::Stderr => "err",
    };
    let path = directory.join(format!("rank.{rank}.{suffix}"));
    File::create(&path).map_err(|e| Error::io(format_args!("output file {}", path.display()), &e))
}

/// All pipes and where they lead.
pub(crate) struct Outputs {
    pipes: Vec<[Option<Pipe>; 2]>,
    sinks: Sinks,
    label: bool,
    /// Whether to wait for the end of a line. A single rank has nobody to mix its line with.
    whole_lines: bool,
}

struct Pipe {
    /// `None` if an agent reads it.
    fd: Option<OwnedFd>,
    /// The beginning of a line.
    partial: Vec<u8>,
}

enum Sinks {
    Descriptors([Sink; 2]),
    Memory([Vec<u8>; 2]),
    Function(LineFn),
    /// Of ranks on other hosts, as they come.
    Files {
        files: Vec<[File; 2]>,
        failure: Option<io::Error>,
    },
    Nothing,
}

/// One of our own descriptors.
struct Sink {
    fd: OwnedFd,
    queue: Vec<u8>,
    written: usize,
    /// The most to write at once.
    chunk: usize,
    /// The rank whose line has no end yet.
    open: Option<usize>,
    /// Nobody reads it any more.
    closed: bool,
}

impl Outputs {
    /// With `agents`, all ranks are on other hosts, and even files are written here.
    pub(crate) fn new(output: Output, ranks: usize, label: bool, agents: bool) -> Result<Self> {
        let sinks = match output {
            Output::Inherit => Sinks::Descriptors([
                Sink::new(io::stdout().as_fd().try_clone_to_owned())?,
                Sink::new(io::stderr().as_fd().try_clone_to_owned())?,
            ]),
            Output::Capture => Sinks::Memory(Default::default()),
            Output::Each(function) => Sinks::Function(function),
            Output::Files(directory) if agents => {
                let numbers = 0..u32::try_from(ranks).unwrap_or(u32::MAX);
                let files = numbers.map(|rank| {
                    let open = |stream| file(&directory, rank, stream);
                    Ok([open(Stream::Stdout)?, open(Stream::Stderr)?])
                });
                Sinks::Files {
                    files: files.collect::<Result<_>>()?,
                    failure: None,
                }
            }
            Output::Null | Output::Files(_) => Sinks::Nothing,
        };
        let whole_lines = match &sinks {
            Sinks::Descriptors(_) => ranks > 1 || label,
            Sinks::Files { .. } => false,
            _ => true,
        };
        let pipe = || {
            agents.then_some(Pipe {
                fd: None,
                partial: Vec::new(),
            })
        };
        let pipes = (0..ranks).map(|_| [pipe(), pipe()]).collect();
        Ok(Self {
            pipes,
            sinks,
            label,
            whole_lines,
        })
    }

    /// Reads `rank`'s `stream` from `fd` from now on.
    pub(crate) fn connect(&mut self, rank: usize, stream: Stream, fd: OwnedFd) -> Result<()> {
        rustix::io::ioctl_fionbio(&fd, true).map_err(|e| Error::io("output pipe", &e.into()))?;
        self.pipes[rank][stream as usize] = Some(Pipe {
            fd: Some(fd),
            partial: Vec::new(),
        });
        Ok(())
    }

    /// Waits for room in our own output.
    pub(crate) fn waits_to_write<'a>(&'a self, waits: &mut Waits<'a>) {
        if let Sinks::Descriptors(sinks) = &self.sinks {
            for stream in Stream::BOTH {
                let sink = &sinks[stream as usize];
                if !sink.is_empty() {
                    waits.on(Token::Sink(stream), sink.fd.as_fd(), PollFlags::OUT);
                }
            }
        }
    }

    /// Waits for the ranks' output, as far as there is room, and for room.
    pub(crate) fn waits<'a>(&'a self, waits: &mut Waits<'a>) {
        self.waits_to_write(waits);
        for stream in Stream::BOTH {
            if self.sinks.full(stream) {
                continue;
            }
            for (rank, pipes) in self.pipes.iter().enumerate() {
                if let Some(Pipe { fd: Some(fd), .. }) = &pipes[stream as usize] {
                    waits.on(Token::Pipe(rank, stream), fd.as_fd(), PollFlags::IN);
                }
            }
        }
    }

    /// Reads once from a pipe that is ready.
    pub(crate) fn read(&mut self, rank: usize, stream: Stream) {
        let mut buffer = [0; READ];
        self.read_into(rank, stream, &mut buffer);
    }

    /// How many bytes came.
    fn read_into(&mut self, rank: usize, stream: Stream, buffer: &mut [u8]) -> usize {
        let Some(Pipe { fd: Some(fd), .. }) = &self.pipes[rank][stream as usize] else {
            return 0;
        };
        let n = match rustix::io::read(fd, &mut *buffer) {
            Ok(0) => {
                self.end(rank, stream);
                return 0;
            }
            Ok(n) => n,
            // Nothing else can go wrong with a pipe.
            Err(_) => return 0,
        };
        self.take(rank, stream, &buffer[..n]);
        n
    }

    /// Takes what `rank` has written.
    pub(crate) fn take(&mut self, rank: usize, stream: Stream, bytes: &[u8]) {
        let Some(pipe) = &mut self.pipes[rank][stream as usize] else {
            return;
        };
        let end = if self.whole_lines {
            bytes.iter().rposition(|&b| b == b'\n').map_or(0, |i| i + 1)
        } else {
            bytes.len()
        };
        let (lines, rest) = bytes.split_at(end);
        if !lines.is_empty() {
            if pipe.partial.is_empty() {
                self.sinks.put(rank, stream, lines, self.label);
            } else {
                pipe.partial.extend_from_slice(lines);
                self.sinks.put(rank, stream, &pipe.partial, self.label);
                pipe.partial.clear();
            }
        }
        pipe.partial.extend_from_slice(rest);
        if pipe.partial.len() > MAX_LINE {
            self.sinks.put(rank, stream, &pipe.partial, self.label);
            pipe.partial.clear();
        }
        if self.sinks.closed(stream) {
            // The rank shall see the closed pipe that it would see without us.
            self.pipes[rank][stream as usize] = None;
        }
    }

    /// Reads what is in `rank`'s pipes now, without waiting for others that hold them open. False if our own output
    /// must be read first.
    pub(crate) fn drain(&mut self, rank: usize) -> bool {
        let mut buffer = [0; READ];
        for stream in Stream::BOTH {
            let Some(Pipe { fd: Some(fd), .. }) = &self.pipes[rank][stream as usize] else {
                continue;
            };
            let mut left = rustix::io::ioctl_fionread(fd).unwrap_or(0);
            while left > 0 {
                if self.sinks.full(stream) {
                    return false;
                }
                match self.read_into(rank, stream, &mut buffer) {
                    0 => break,
                    n => left = left.saturating_sub(n as u64),
                }
            }
            self.end(rank, stream);
        }
        true
    }

    /// Closes a pipe and delivers a last line that has no end.
    pub(crate) fn end(&mut self, rank: usize, stream: Stream) {
        if let Some(pipe) = self.pipes[rank][stream as usize].take()
            && !pipe.partial.is_empty()
        {
            self.sinks.put(rank, stream, &pipe.partial, self.label);
        }
    }

    /// Ends a line that has no end yet, so that what is written next stands on its own.
    pub(crate) fn end_line(&mut self, stream: Stream) {
        if let Sinks::Descriptors(sinks) = &mut self.sinks {
            sinks[stream as usize].end_line();
        }
    }

    /// Whether all pipes have come to their end.
    pub(crate) fn ended(&self) -> bool {
        self.pipes.iter().flatten().all(Option::is_none)
    }

    /// Whether there is room for more.
    pub(crate) fn has_room(&self) -> bool {
        !Stream::BOTH.iter().any(|&stream| self.sinks.full(stream))
    }

    /// Whether nobody reads our own `stream` any more.
    pub(crate) fn is_closed(&self, stream: Stream) -> bool {
        self.sinks.closed(stream)
    }

    /// Why a rank's file could not be written, once.
    pub(crate) fn failure(&mut self) -> Option<io::Error> {
        match &mut self.sinks {
            Sinks::Files { failure, .. } => failure.take(),
            _ => None,
        }
    }

    /// Closes what agents read, as they are done.
    pub(crate) fn end_all(&mut self, rank: usize) {
        for stream in Stream::BOTH {
            self.end(rank, stream);
        }
    }

    /// Whether everything delivered is written.
    pub(crate) fn written(&self) -> bool {
        match &self.sinks {
            Sinks::Descriptors(sinks) => sinks.iter().all(Sink::is_empty),
            _ => true,
        }
    }

    /// Writes to our own output, which is ready.
    ///
    /// # Errors
    /// If it cannot be written for another reason than that nobody reads it.
    pub(crate) fn write(&mut self, stream: Stream) -> std::result::Result<(), Errno> {
        let Sinks::Descriptors(sinks) = &mut self.sinks else {
            return Ok(());
        };
        let sink = &mut sinks[stream as usize];
        let result = sink.write();
        if sink.closed {
            for pipes in &mut self.pipes {
                pipes[stream as usize] = None;
            }
        }
        result
    }

    /// What was captured.
    pub(crate) fn into_captured(self) -> [Vec<u8>; 2] {
        match self.sinks {
            Sinks::Memory(captured) => captured,
            _ => Default::default(),
        }
    }
}

impl Sinks {
    /// Takes whole lines, or the piece of a line that is too long or has ended without a line end.
    fn put(&mut self, rank: usize, stream: Stream, bytes: &[u8], label: bool) {
        match self {
            Self::Descriptors(sinks) => sinks[stream as usize].put(rank, bytes, label),
            Self::Memory(captured) => {
                let captured = &mut captured[stream as usize];
                for line in bytes.split_inclusive(|&b| b == b'\n') {
                    if label {
                        captured.extend_from_slice(format!("[{rank}] ").as_bytes());
                    }
                    captured.extend_from_slice(line);
                    if !line.ends_with(b"\n") {
                        captured.push(b'\n');
                    }
                }
            }
            Self::Function(function) => {
                function(u32::try_from(rank).unwrap_or(u32::MAX), stream, bytes);
            }
            Self::Files { files, failure } => {
                if let Err(error) = files[rank][stream as usize].write_all(bytes) {
                    failure.get_or_insert(error);
                }
            }
            Self::Nothing => {}
        }
    }

    fn full(&self, stream: Stream) -> bool {
        matches!(self, Self::Descriptors(sinks) if sinks[stream as usize].is_full())
    }

    fn closed(&self, stream: Stream) -> bool {
        matches!(self, Self::Descriptors(sinks) if sinks[stream as usize].closed)
    }
}

impl Sink {
    fn new(fd: io::Result<OwnedFd>) -> Result<Self> {
        let fd = fd.map_err(|e| Error::io("standard output", &e))?;
        let regular = rustix::fs::fstat(&fd)
            .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file());
        Ok(Self {
            fd,
            queue: Vec::new(),
            written: 0,
            chunk: if regular { QUEUE } else { PIPE_WRITE },
            open: None,
            closed: false,
        })
    }

    fn is_empty(&self) -> bool {
        self.queue.len() == self.written
    }

    fn is_full(&self) -> bool {
        self.queue.len() - self.written >= QUEUE
    }

    fn put(&mut self, rank: usize, bytes: &[u8], label: bool) {
        if self.closed {
            return;
        }
        if self.open.is_some_and(|open| open != rank) {
            self.end_line();
        }
        if label {
            let label = format!("[{rank}] ");
            for line in bytes.split_inclusive(|&b| b == b'\n') {
                if self.open.take().is_none() {
                    self.queue.extend_from_slice(label.as_bytes());
                }
                self.queue.extend_from_slice(line);
            }
        } else {
            self.queue.extend_from_slice(bytes);
        }
        self.open = (!bytes.ends_with(b"\n")).then_some(rank);
    }

    fn end_line(&mut self) {
        if self.open.take().is_some() && !self.closed {
            self.queue.push(b'\n');
        }
    }

    fn write(&mut self) -> std::result::Result<(), Errno> {
        // Some chunks for each poll of everything, as long as none of them would block.
        for _ in 0..64 {
            let left = &self.queue[self.written..];
            let chunk = &left[..left.len().min(self.chunk)];
            match rustix::io::write(&self.fd, chunk) {
                Ok(n) => self.written += n,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => {
                    self.closed = true;
                    self.queue.clear();
                    self.written = 0;
                    return if error == Errno::PIPE {
                        Ok(())
                    } else {
                        Err(error)
                    };
                }
            }
            if self.is_empty() || !writable(&self.fd) {
                break;
            }
        }
        if self.written > self.queue.len() / 2 {
            self.queue.drain(..self.written);
            self.written = 0;
        }
        Ok(())
    }
}
