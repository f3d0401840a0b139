//! Jobs that nobody's launcher holds together: rank 0 keeps what a launcher would, for ranks that come over TCP.
//!
//! The handshake and the messages are those of the launcher's control socket, and so is the code behind it. The
//! connections are how failures are noticed: a rank whose connection ends before it has left the job has failed.

use std::io::Read as _;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::auth::Secret;
use crate::door::{Door, Key};
use crate::error::{Error, ErrorKind, Result};
use crate::poll::{Token, Waits};
use crate::server::{Event, Server};
use crate::wire::ToRank;

/// A secret that people choose must be no shorter, in bytes.
pub const SHORTEST_SECRET: usize = 16;
/// Most bytes of a file with a secret.
const LONGEST_FILE: u64 = 1 << 16;
/// How often the store looks whether it shall end.
const LOOK: Duration = Duration::from_millis(50);

impl Secret {
    /// From text that people have chosen: a hash of it, without white space around it.
    ///
    /// # Errors
    /// If it is shorter than [`SHORTEST_SECRET`].
    pub fn from_text(text: &[u8]) -> Result<Self> {
        let text = text.trim_ascii();
        if text.len() < SHORTEST_SECRET {
            return Err(Error::new(
                ErrorKind::Usage,
                format!(
                    "a secret of {} bytes; it must have at least {SHORTEST_SECRET}",
                    text.len()
                ),
            ));
        }
        let hash = Sha256::new_with_prefix(b"pgas secret\0").chain_update(text);
        Ok(Self::from_bytes(hash.finalize().into()))
    }

    /// From the text in a file.
    ///
    /// # Errors
    /// If it cannot be read, has more than 64 KiB, or is too short.
    pub fn from_file(path: &Path) -> Result<Self> {
        let what = || format!("secret in {}", path.display());
        let file = std::fs::File::open(path).map_err(|e| Error::io(what(), &e))?;
        let mut text = Vec::new();
        file.take(LONGEST_FILE + 1)
            .read_to_end(&mut text)
            .map_err(|e| Error::io(what(), &e))?;
        if text.len() as u64 > LONGEST_FILE {
            return Err(Error::new(
                ErrorKind::Usage,
                format!("{}: too long", what()),
            ));
        }
        Self::from_text(&text).map_err(|e| Error::new(e.kind(), format!("{}: {e}", what())))
    }

    /// An identity for the job of `size` ranks that this is the secret of: its ranks know it without being told.
    #[must_use]
    pub fn job(&self, size: u32) -> [u8; 16] {
        let hash = Sha256::new_with_prefix(b"pgas job\0")
            .chain_update(self.to_bytes())
            .chain_update(size.to_le_bytes());
        let hash = hash.finalize();
        hash.first_chunk().copied().unwrap_or_default()
    }
}

/// Rank 0's side. Ranks, rank 0 too, join it with [`Control::over_tcp`](crate::Control::over_tcp).
pub struct Store {
    server: Server,
    port: u16,
    size: usize,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = f.debug_struct("Store");
        text.field("port", &self.port).finish_non_exhaustive()
    }
}

/// What a thread that runs a store, and others, tell each other.
#[derive(Debug, Default)]
pub struct Signals {
    /// Set by others: the store shall end when no rank is connected any more, or at once if `run`'s limit says so.
    pub end: AtomicBool,
    /// Set by the store: all ranks that are connected have been told of a failure.
    pub told: AtomicBool,
}

impl Store {
    /// Listens at the first of `addresses` that can be bound; port 0 is any.
    ///
    /// # Errors
    /// If none can, with the last one's reason; if the system has no random bytes.
    pub fn open(
        addresses: &[SocketAddr],
        size: u32,
        secret: Secret,
        job: [u8; 16],
    ) -> Result<Self> {
        let what = || {
            let all: Vec<_> = addresses.iter().map(ToString::to_string).collect();
            format!("listening at {}", all.join(" or "))
        };
        let listener = TcpListener::bind(addresses).map_err(|e| Error::io(what(), &e))?;
        let port = listener.local_addr().map_err(|e| Error::io(what(), &e))?;
        listener
            .set_nonblocking(true)
            .map_err(|e| Error::io(what(), &e))?;
        let key = Key { secret, job, size };
        let door = Door::at(OwnedFd::from(listener), key, 0..size);
        Ok(Self {
            server: Server::new(size, Some(door)),
            port: port.port(),
            size: size as usize,
        })
    }

    /// Takes a machine for lost when it has been silent for so long, in place of 30 s.
    #[must_use]
    pub fn lost_after(mut self, limit: Duration) -> Self {
        self.server.lost_after(limit);
        self
    }

    /// Where it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Serves ranks until `signals.end` is set; then, for `patience` at most, as long as some are connected.
    ///
    /// The first rank that fails is told to all others as [`ToRank::PeerFailed`].
    pub fn run(mut self, signals: &Signals, patience: Duration) {
        let mut end: Option<Instant> = None;
        loop {
            let now = Instant::now();
            if signals.end.load(Ordering::Acquire) {
                let end = *end.get_or_insert(now + patience);
                if self.server.deserted() || now >= end {
                    return;
                }
            }
            let mut waits = Waits::default();
            waits.until(now + LOOK);
            self.server.waits(&mut waits);
            let Ok(ready) = waits.wait() else { return };
            for token in ready {
                match token {
                    Token::Listener => self.server.accept(),
                    Token::Stranger(slot) => self.server.greet(slot),
                    Token::Member(rank) => self.server.serve(rank),
                    _ => {}
                }
            }
            self.server.clock(Instant::now());
            self.events(signals);
        }
    }

    fn events(&mut self, signals: &Signals) {
        while let Some(event) = self.server.events.pop_front() {
            let (rank, message) = match event {
                Event::Failed(rank, _, message) => (rank, message),
                Event::Broke(rank, message) => (rank, message),
                Event::Lost(rank) => (rank, "ended, or its connection did".to_owned()),
                _ => continue,
            };
            if rank < self.size && !signals.told.load(Ordering::Acquire) {
                let rank = u32::try_from(rank).ok();
                self.server.tell_all(&ToRank::PeerFailed { rank, message });
                signals.told.store(true, Ordering::Release);
            }
        }
    }
}
