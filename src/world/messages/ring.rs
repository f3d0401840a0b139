//! Large messages between ranks of one node: through a ring of chunks in shared memory, which the
//! sender fills while the receiver empties it. Two copies at the same time, and no memory that
//! would have to be mapped first, are faster than UCX's one copy between two heaps.
//!
//! Each process has one ring, its *outbox*, made at its first large message and mapped by
//! receivers at theirs. It holds one message at a time: while one is under way, others go through
//! UCX. What travels as a UCX message is the [`Header`], so order and matching are UCX's.

#![expect(unsafe_code, reason = "shared memory between processes")]

use crate::error::{Error, ErrorKind, Result};
use crate::ucx::{MemoryHandle, RemoteKey, SerializedRemoteKey};
use crate::wait::{Patience, sleep_on, wake_all};
use crate::world::Core;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Bytes of a chunk: two of them fit well into a second-level cache.
const CHUNK: usize = 64 << 10;
const CHUNKS: u32 = 8;
/// Where the first begins.
const FIRST: usize = 4096;
const BYTES: usize = FIRST + CHUNK * CHUNKS as usize;
/// From so many bytes on a message is worth it.
pub(super) const LARGE: usize = 16 << 10;
/// Longest sleep: others' messages may have to go on meanwhile.
const NAP: Duration = Duration::from_millis(1);

/// What is sent of a message that goes through a ring.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Header {
    /// Chunks that have gone through the ring before.
    first: u32,
    pub(super) len: u64,
    key: SerializedRemoteKey,
}

/// A ring as a process sees it.
///
/// Invariant: `base` points to `BYTES` bytes of shared memory that `keep` holds, zero when made.
/// Counters are of chunks since it was made: a chunk is the sender's to write until `filled` is
/// past it, then the receiver's to read until `drained` is.
#[derive(Debug)]
struct Ring {
    base: NonNull<u8>,
    _keep: Keep,
}

#[derive(Debug)]
enum Keep {
    Mine(#[expect(dead_code, reason = "held")] MemoryHandle),
    Senders(#[expect(dead_code, reason = "held")] RemoteKey),
}

// SAFETY: the memory is shared between processes already; see the invariant.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    fn word(&self, offset: usize) -> &AtomicU32 {
        let word = self.base.as_ptr().wrapping_add(offset).cast();
        // SAFETY: in the first page, aligned, and accessed as an atomic only.
        unsafe { AtomicU32::from_ptr(word) }
    }

    fn filled(&self) -> Counter<'_> {
        Counter {
            count: self.word(0),
            sleepers: self.word(4),
        }
    }

    fn drained(&self) -> Counter<'_> {
        Counter {
            count: self.word(128),
            sleepers: self.word(132),
        }
    }

    fn chunk(&self, number: u32) -> *mut u8 {
        let offset = FIRST + (number % CHUNKS) as usize * CHUNK;
        self.base.as_ptr().wrapping_add(offset)
    }
}

/// One side's progress, which the other may sleep on.
struct Counter<'a> {
    count: &'a AtomicU32,
    sleepers: &'a AtomicU32,
}

impl Counter<'_> {
    fn get(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// By how much it is past `number`, or before it.
    fn past(&self, number: u32) -> i32 {
        self.get().wrapping_sub(number).cast_signed()
    }

    fn set(&self, count: u32) {
        // SeqCst: visible before the sleepers are counted.
        self.count.store(count, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            wake_all(self.count);
        }
    }

    fn sleep(&self, seen: u32, nap: Duration) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        sleep_on(self.count, seen, nap);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// This process's rings.
#[derive(Debug, Default)]
pub(in crate::world) struct Rings {
    /// None if there is no room for it.
    outbox: OnceLock<Option<Outbox>>,
    /// Those of senders, by their number in the world.
    inboxes: Mutex<HashMap<usize, Arc<Ring>>>,
}

#[derive(Debug)]
struct Outbox {
    ring: Ring,
    key: SerializedRemoteKey,
    /// Held by who sends through it. Whether that can be done: not after a message that was left
    /// in the middle, whose receiver would take the next one's chunks for its own.
    sender: Mutex<bool>,
}

impl Outbox {
    fn new(core: &Core) -> Option<Self> {
        let bytes = BYTES as u64;
        core.check_room(bytes, bytes, bytes).ok()?;
        let memory = MemoryHandle::allocate::<u64>(core.context(), BYTES / 8).ok()?;
        let base = NonNull::new(memory.as_ptr())?;
        let key = memory.pack().ok()?;
        Some(Self {
            ring: Ring {
                base,
                _keep: Keep::Mine(memory),
            },
            key,
            sender: Mutex::new(true),
        })
    }
}

/// A message on its way through this process's ring.
pub(super) struct Outgoing<'a> {
    ring: &'a Ring,
    /// Whether all has been handed over, when this is dropped.
    sender: MutexGuard<'a, bool>,
    content: &'a [u8],
    first: u32,
    next: u32,
}

/// Chunks of so many bytes.
fn chunks(len: usize) -> u32 {
    // A ring's counters wrap around; messages are shorter than 2^31 chunks.
    u32::try_from(len.div_ceil(CHUNK)).unwrap_or(u32::MAX)
}

impl<'a> Outgoing<'a> {
    /// Takes the outbox for a message, and says what to send as its header; None if it must go
    /// through UCX.
    pub(super) fn start(core: &'a Core, to: usize, content: &'a [u8]) -> Option<(Header, Self)> {
        let same_node = core.nodes.mine().binary_search(&to).is_ok();
        if content.len() < LARGE || !same_node || to == core.rank {
            return None;
        }
        let outbox = core.job.rings.outbox.get_or_init(|| Outbox::new(core));
        let outbox = outbox.as_ref()?;
        let mut sender = outbox.sender.try_lock().ok()?;
        if !*sender {
            return None;
        }
        let first = outbox.ring.filled().get();
        // The last message may not have been received.
        if outbox.ring.drained().get() != first {
            return None;
        }
        let header = Header {
            first,
            len: content.len() as u64,
            key: outbox.key.clone(),
        };
        *sender = false;
        let this = Self {
            ring: &outbox.ring,
            sender,
            content,
            first,
            next: 0,
        };
        Some((header, this))
    }

    /// Fills what is free. Whether all has been handed over.
    pub(super) fn step(&mut self) -> bool {
        let drained = self.ring.drained();
        while self.next < chunks(self.content.len()) {
            let number = self.first.wrapping_add(self.next);
            if drained.past(number.wrapping_sub(CHUNKS)) <= 0 {
                return false;
            }
            let start = self.next as usize * CHUNK;
            let bytes = &self.content[start..self.content.len().min(start + CHUNK)];
            let to = self.ring.chunk(number);
            // SAFETY: a chunk of the ring that is this side's, since the receiver has drained what
            // was in it; at most a chunk of bytes.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
            self.next += 1;
            self.ring.filled().set(number.wrapping_add(1));
        }
        *self.sender = true;
        true
    }

    pub(super) fn wait(&mut self, core: &Core) -> Result<()> {
        let drained = self.ring.drained();
        wait(core, &drained, || (self.next, self.step()))
    }
}

/// A message on its way through its sender's ring.
#[derive(Debug)]
pub(super) struct Incoming {
    ring: Arc<Ring>,
    first: u32,
    len: usize,
    next: u32,
}

impl Incoming {
    /// `from` is the sender's rank in the team.
    pub(super) fn start(core: &Core, from: usize, header: &Header) -> Result<Self> {
        let world_rank = core.peers.world_rank(from);
        let inboxes = core.job.rings.inboxes.lock();
        let mut inboxes = inboxes.unwrap_or_else(PoisonError::into_inner);
        let ring = match inboxes.get(&world_rank) {
            Some(ring) => ring.clone(),
            None => {
                let key = core.peers.for_memory(from)?.unpack(&header.key)?;
                let base = key.as_ptr().filter(|_| key.len() >= BYTES);
                let base = base.ok_or_else(|| {
                    let text = format!("the ring of rank {from} is not mapped");
                    Error::new(ErrorKind::Ucx, text).with_peer(from)
                })?;
                let ring = Arc::new(Ring {
                    base,
                    _keep: Keep::Senders(key),
                });
                inboxes.insert(world_rank, ring.clone());
                ring
            }
        };
        Ok(Self {
            ring,
            first: header.first,
            len: usize::try_from(header.len).unwrap_or(usize::MAX),
            next: 0,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Passes on what is there, with where in the message it begins. Whether that is all.
    pub(super) fn step(&mut self, mut take: impl FnMut(usize, &[u8])) -> bool {
        let filled = self.ring.filled();
        while self.next < chunks(self.len) {
            let number = self.first.wrapping_add(self.next);
            if filled.past(number) <= 0 {
                return false;
            }
            let start = self.next as usize * CHUNK;
            let len = CHUNK.min(self.len - start);
            // SAFETY: a chunk that the sender has filled and does not write until it is drained;
            // any bytes are initialised.
            let bytes = unsafe { std::slice::from_raw_parts(self.ring.chunk(number), len) };
            take(start, bytes);
            self.next += 1;
            self.ring.drained().set(number.wrapping_add(1));
        }
        true
    }

    pub(super) fn wait(&mut self, core: &Core, mut take: impl FnMut(usize, &[u8])) -> Result<()> {
        let ring = self.ring.clone();
        wait(core, &ring.filled(), || {
            let done = self.step(&mut take);
            (self.next, done)
        })
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // What was not taken is lost; the sender need not wait.
        let end = self.first.wrapping_add(chunks(self.len));
        if self.next < chunks(self.len) {
            self.ring.drained().set(end);
        }
    }
}

/// Steps until done; the time limit counts from the last chunk.
fn wait(core: &Core, other: &Counter<'_>, mut step: impl FnMut() -> (u32, bool)) -> Result<()> {
    let mut patience = Patience::for_neighbours();
    let mut last = 0;
    loop {
        let seen = other.get();
        let (next, done) = step();
        if done {
            return Ok(());
        }
        if next != last {
            last = next;
            patience = Patience::for_neighbours();
        }
        let nap = patience.pause(core.limits())?;
        core.worker.help_messages()?;
        if let Some(nap) = nap {
            other.sleep(seen, nap.min(NAP));
        }
    }
}
