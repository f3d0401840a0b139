//! A client of PMI-1, the protocol of `mpiexec.hydra` and of `srun --mpi=pmi2`: lines of text on a
//! descriptor that the rank inherits, or on a port.
//!
//! What the manager offers is a table of short texts, the same for all ranks after a barrier. A
//! gather is: everyone puts its blob, in pieces, then a barrier, then everyone reads all.

mod line;
mod wire;

use super::manager::Manager;
use crate::error::{Error, ErrorKind, Result};
use line::Line;
#[cfg(test)]
pub(super) use line::digest;
use rustix::event::PollFlags;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::time::{Duration, Instant};
use wire::Wire;

/// Longest value that is put, if the manager does not ask for shorter ones.
const LONGEST_VALUE: usize = 900;
/// How long the manager may take for anything but a barrier.
const ANSWER: Duration = Duration::from_secs(30);

/// How the manager is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// `PMI_FD`, `PMI_RANK`, `PMI_SIZE`.
    Descriptor { fd: RawFd, rank: usize, size: usize },
    /// `PMI_PORT` (host and port) and `PMI_ID`; rank and size are told there.
    Port { address: String, id: usize },
}

#[derive(Debug)]
pub(super) struct Client {
    wire: Wire,
    rank: usize,
    size: usize,
    /// The name of the job's table.
    table: String,
    /// Longest value and longest key.
    longest: (usize, usize),
    round: u32,
}

impl Client {
    pub(super) fn join(way: &Way) -> Result<Self> {
        let deadline = Instant::now() + ANSWER;
        let (mut wire, place) = match way {
            &Way::Descriptor { fd, rank, size } => (Wire::new(inherited(fd)?), Some((rank, size))),
            Way::Port { address, .. } => (Wire::new(connect(address, deadline)?), None),
        };
        let (rank, size) = match (way, place) {
            (_, Some(place)) => place,
            (Way::Port { id, .. }, None) => introduce(&mut wire, *id, deadline)?,
            (Way::Descriptor { .. }, None) => (0, 0),
        };
        if rank >= size {
            return Err(confused(&format!("rank {rank} of {size}")));
        }
        let mut client = Self {
            wire,
            rank,
            size,
            table: String::new(),
            longest: (0, 0),
            round: 0,
        };
        let init = "cmd=init pmi_version=1 pmi_subversion=1";
        client.ask(init, "response_to_init", deadline, |_| Ok(()))?;
        client.longest = client.ask("cmd=get_maxes", "maxes", deadline, |line| {
            Ok((line.number("vallen_max")?, line.number("keylen_max")?))
        })?;
        client.table = client.ask("cmd=get_my_kvsname", "my_kvsname", deadline, |line| {
            line.text("kvsname").map(str::to_owned)
        })?;
        Ok(client)
    }

    /// Sends `line`, and what `read` makes of the answer.
    fn ask<T>(
        &mut self,
        line: &str,
        answer: &str,
        deadline: Instant,
        read: impl FnOnce(&Line<'_>) -> Result<T, String>,
    ) -> Result<T> {
        self.wire.send(line, deadline)?;
        let said = self.wire.receive(deadline)?;
        understand(&said, answer, read)
    }

    fn get(&mut self, key: &str) -> Result<String> {
        let line = format!("cmd=get kvsname={} key={key}", self.table);
        let deadline = Instant::now() + ANSWER;
        self.ask(&line, "get_result", deadline, |line| {
            line.text("value").map(str::to_owned)
        })
    }

    fn key(&self, rank: usize, piece: usize) -> String {
        format!("pgas-{}-{rank}-{piece}", self.round)
    }
}

impl Manager for Client {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn gather(&mut self, blob: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        let (longest, longest_key) = self.longest;
        let values = line::to_values(blob, longest.min(LONGEST_VALUE));
        let values = values
            .filter(|values| self.key(self.size, values.len()).len() <= longest_key)
            .ok_or_else(|| {
                confused(&format!(
                    "room for values of {longest} and keys of {longest_key} bytes"
                ))
            })?;
        for (piece, value) in values.iter().enumerate() {
            let key = self.key(self.rank, piece);
            let line = format!("cmd=put kvsname={} key={key} value={value}", self.table);
            let soon = Instant::now() + ANSWER;
            self.ask(&line, "put_result", soon, |_| Ok(()))?;
        }
        self.wait_for_all(deadline)?;
        let mut blobs = Vec::with_capacity(self.size);
        for rank in 0..self.size {
            let garbled = |why: String| confused(&why).with_peer(rank);
            let (pieces, mut blob) =
                line::first_value(&self.get(&self.key(rank, 0))?).map_err(garbled)?;
            for piece in 1..pieces {
                let value = self.get(&self.key(rank, piece))?;
                blob.extend(line::from_hex(&value).map_err(garbled)?);
            }
            blobs.push(blob);
        }
        self.round += 1;
        Ok(blobs)
    }

    fn wait_for_all(&mut self, deadline: Instant) -> Result<()> {
        self.ask("cmd=barrier_in", "barrier_out", deadline, |_| Ok(()))
    }

    fn finalize(&mut self) -> Result<()> {
        let soon = Instant::now() + ANSWER;
        self.ask("cmd=finalize", "finalize_ack", soon, |_| Ok(()))
    }

    fn abort(&mut self, code: i32, _message: &str) {
        // Unanswered. If the manager is gone, this process is about to end anyway.
        let _ = self.wire.send(
            &format!("cmd=abort exitcode={code}"),
            Instant::now() + ANSWER,
        );
    }

    fn watch(&self) -> Result<Box<dyn FnOnce() + Send>> {
        let socket = self.wire.watch()?;
        // What the manager says is for another thread.
        Ok(Box::new(move || {
            super::wait_for_end(&socket, PollFlags::RDHUP)
        }))
    }

    fn close(&self) {
        self.wire.close();
    }
}

/// What `read` makes of the line, if it is the answer of kind `answer`.
fn understand<T>(
    said: &[u8],
    answer: &str,
    read: impl FnOnce(&Line<'_>) -> Result<T, String>,
) -> Result<T> {
    let understood = Line::parse(said).and_then(|line| {
        line.expect(answer)?;
        read(&line)
    });
    understood.map_err(|why| confused(&why))
}

fn confused(why: &str) -> Error {
    Error::new(
        ErrorKind::Bootstrap,
        format!("joining the job by PMI-1: the process manager said {why}"),
    )
}

/// Makes the descriptor that the manager left open for us ours.
#[expect(unsafe_code, reason = "a descriptor known by its number only")]
fn inherited(fd: RawFd) -> Result<OwnedFd> {
    let closed = |error: std::io::Error| {
        Error::new(
            ErrorKind::Bootstrap,
            format!(
                "PMI_FD is {fd}, which is no open socket ({error}): what stands between the \
                 process manager and this program must keep it open"
            ),
        )
    };
    // SAFETY: fcntl checks the number and touches no memory.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(closed(std::io::Error::last_os_error()));
    }
    // SAFETY: a new descriptor that nobody else knows.
    let copy = unsafe { OwnedFd::from_raw_fd(copy) };
    rustix::net::sockopt::socket_type(&copy).map_err(|error| closed(error.into()))?;
    // Programs that this rank starts shall not hold the connection open.
    // SAFETY: as above.
    let marked = unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    if marked < 0 {
        return Err(closed(std::io::Error::last_os_error()));
    }
    Ok(copy)
}

fn connect(address: &str, deadline: Instant) -> Result<OwnedFd> {
    let failed = |why: String| {
        Error::new(
            ErrorKind::Bootstrap,
            format!("PMI_PORT is {address:?}, which cannot be reached: {why}"),
        )
    };
    let places = address.to_socket_addrs();
    let mut why = "no address".to_owned();
    for place in places.map_err(|error| failed(error.to_string()))? {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = left.max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&place, left) {
            Ok(stream) => {
                // Lines are short, and each is waited for.
                let _ = stream.set_nodelay(true);
                return Ok(stream.into());
            }
            Err(error) => why = error.to_string(),
        }
    }
    Err(failed(why))
}

/// Says who we are on a fresh port; returns rank and size.
fn introduce(wire: &mut Wire, id: usize, deadline: Instant) -> Result<(usize, usize)> {
    wire.send(&format!("cmd=initack pmiid={id}"), deadline)?;
    understand(&wire.receive(deadline)?, "initack", |_| Ok(()))?;
    let mut told = |what: &str| {
        let said = wire.receive(deadline)?;
        understand(&said, "set", |line| line.number(what))
    };
    let (size, rank) = (told("size")?, told("rank")?);
    told("debug")?;
    Ok((rank, size))
}
