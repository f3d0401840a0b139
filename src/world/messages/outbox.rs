//! Large messages between ranks of one node: through chunks of shared memory, which the sender
//! fills while the receiver empties them. Two copies at the same time, and no memory that would
//! have to be mapped first, are faster than UCX's one copy between two heaps.
//!
//! Each process has one *outbox*, made at its first large message and mapped by receivers at
//! theirs. A message takes a *lane*, two counters, and some free chunks, which it uses again and
//! again if it is longer. If there are none it goes through UCX. What travels as a UCX message is
//! the [`Header`], so order and matching are UCX's, and messages do not wait for each other.

#![expect(unsafe_code, reason = "shared memory between processes")]

use crate::error::{Error, ErrorKind, Result};
use crate::ucx::{MemoryHandle, Pump, RemoteKey, SerializedRemoteKey};
use crate::wait::{Patience, sleep_on, wake_all};
use crate::world::{Core, Pending};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Bytes of a chunk: two of them fit well into a second-level cache.
const CHUNK: usize = 64 << 10;
const CHUNKS: u16 = 64;
const LANES: u16 = 64;
/// Bytes of a lane: a line for each counter, and a neighbour that processors fetch with it.
const LANE: usize = 256;
/// Where the first chunk begins.
const FIRST: usize = LANE * LANES as usize;
const BYTES: usize = FIRST + CHUNK * CHUNKS as usize;
/// Most chunks of one message.
const MOST: usize = 32;
/// Counters would not do for more in all, one after another.
const MOST_CHUNKS: u64 = i32::MAX as u64;
/// From so many bytes on a message is worth it.
pub(super) const LARGE: usize = 16 << 10;
/// Longest sleep: others' messages may have to go on meanwhile.
const NAP: Duration = Duration::from_millis(1);

/// What is sent of a message that goes through an outbox.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Header {
    lane: u16,
    /// Where its chunks are, one after another, and then the first again.
    chunks: Vec<u16>,
    pub(super) len: u64,
    key: SerializedRemoteKey,
}

impl Header {
    #[cfg(test)]
    pub(super) fn example(key: SerializedRemoteKey) -> Self {
        Self {
            lane: 3,
            chunks: vec![1, 2, 63],
            len: 300_000,
            key,
        }
    }

    /// Whether an outbox has these chunks, and counters for so many; `from` is its rank.
    pub(super) fn check(&self, from: usize) -> Result<()> {
        if self.lane >= LANES
            || self.chunks.is_empty()
            || self.chunks.iter().any(|&chunk| chunk >= CHUNKS)
            || self.len / CHUNK as u64 > MOST_CHUNKS
        {
            let text = format!("a message of rank {from} has no such chunks");
            return Err(Error::new(ErrorKind::Ucx, text).with_peer(from));
        }
        Ok(())
    }
}

/// An outbox as a process sees it.
///
/// Invariant: `base` points to `BYTES` bytes of shared memory that `keep` holds, zero when made.
/// A message's chunk is the sender's to write until `filled` of its lane is past it, then the
/// receiver's to read until `drained` is.
#[derive(Debug)]
struct Shared {
    base: NonNull<u8>,
    _keep: Keep,
}

#[derive(Debug)]
enum Keep {
    Mine(#[expect(dead_code, reason = "held")] MemoryHandle),
    Senders(#[expect(dead_code, reason = "held")] RemoteKey),
}

// SAFETY: the memory is shared between processes already; see the invariant.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn word(&self, lane: u16, offset: usize) -> &AtomicU32 {
        assert!(lane < LANES);
        let offset = lane as usize * LANE + offset;
        let word = self.base.as_ptr().wrapping_add(offset).cast();
        // SAFETY: before the first chunk, aligned, and accessed as an atomic only.
        unsafe { AtomicU32::from_ptr(word) }
    }

    /// Chunks of the message that have been filled.
    fn filled(&self, lane: u16) -> Counter<'_> {
        Counter {
            count: self.word(lane, 0),
            sleepers: self.word(lane, 4),
        }
    }

    fn drained(&self, lane: u16) -> Counter<'_> {
        Counter {
            count: self.word(lane, LANE / 2),
            sleepers: self.word(lane, LANE / 2 + 4),
        }
    }

    fn chunk(&self, chunk: u16) -> *mut u8 {
        assert!(chunk < CHUNKS);
        let offset = FIRST + chunk as usize * CHUNK;
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

/// This process's outbox and those of others.
#[derive(Debug, Default)]
pub(in crate::world) struct Outboxes {
    /// None if there is no room for it.
    mine: OnceLock<Option<Arc<Outbox>>>,
    /// Those of senders, by their number in the world.
    theirs: Mutex<HashMap<usize, Arc<Shared>>>,
}

#[derive(Debug)]
struct Outbox {
    shared: Shared,
    key: SerializedRemoteKey,
    lanes: Mutex<Lanes>,
}

/// What no message has.
#[derive(Debug)]
struct Lanes {
    chunks: Vec<u16>,
    lanes: Vec<u16>,
    /// What messages had that have been sent, but may not have been received.
    sent: Vec<Lane>,
}

/// What a message has of an outbox.
#[derive(Debug)]
struct Lane {
    number: u16,
    chunks: Vec<u16>,
    /// How many chunks its content has.
    end: u32,
}

impl Outbox {
    fn new(core: &Core) -> Option<Arc<Self>> {
        let bytes = BYTES as u64;
        core.check_room(bytes, bytes, bytes).ok()?;
        let memory = MemoryHandle::allocate::<u64>(core.context(), BYTES / 8).ok()?;
        let base = NonNull::new(memory.as_ptr())?;
        let key = memory.pack().ok()?;
        let _keep = Keep::Mine(memory);
        Some(Arc::new(Self {
            shared: Shared { base, _keep },
            key,
            lanes: Mutex::new(Lanes {
                chunks: (0..CHUNKS).collect(),
                lanes: (0..LANES).collect(),
                sent: Vec::new(),
            }),
        }))
    }

    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lane for a message of `end` chunks, if there are enough to be of use.
    fn take(&self, end: u32) -> Option<Lane> {
        let mut lanes = self.lanes();
        let Lanes {
            chunks,
            lanes: free,
            sent,
        } = &mut *lanes;
        sent.retain_mut(|lane| {
            let received = self.shared.drained(lane.number).get() == lane.end;
            if received {
                chunks.append(&mut lane.chunks);
                free.push(lane.number);
            }
            !received
        });
        let want = MOST.min(end as usize);
        if chunks.len() < want.min(2) {
            return None;
        }
        let number = free.pop()?;
        // Those that were used last are in the cache.
        let chunks = chunks.split_off(chunks.len().saturating_sub(want));
        self.shared.filled(number).set(0);
        self.shared.drained(number).set(0);
        Some(Lane {
            number,
            chunks,
            end,
        })
    }
}

/// A message on its way through this process's outbox.
#[derive(Debug)]
pub(super) struct Outgoing<C> {
    content: C,
    course: Course,
}

/// How far it is.
#[derive(Debug)]
struct Course {
    outbox: Arc<Outbox>,
    lane: Lane,
    /// Chunks that have been filled.
    next: u32,
}

impl Drop for Course {
    /// A message that is left in the middle keeps its lane: its receiver may still be there.
    fn drop(&mut self) {
        if self.next == self.lane.end {
            let chunks = std::mem::take(&mut self.lane.chunks);
            let lane = Lane {
                chunks,
                ..self.lane
            };
            self.outbox.lanes().sent.push(lane);
        }
    }
}

/// Chunks of so many bytes.
fn chunks(len: usize) -> u32 {
    u32::try_from(len.div_ceil(CHUNK)).unwrap_or(u32::MAX)
}

impl<'a> Outgoing<&'a [u8]> {
    /// Takes a lane for a message, and says what to send as its header; None if it must go through
    /// UCX.
    pub(super) fn start(core: &Core, to: usize, content: &'a [u8]) -> Option<(Header, Self)> {
        let len = content.len();
        let same_node = core.nodes.mine().binary_search(&to).is_ok();
        if len < LARGE || !same_node || to == core.rank || (len / CHUNK) as u64 > MOST_CHUNKS {
            return None;
        }
        let outbox = core.job.outboxes.mine.get_or_init(|| Outbox::new(core));
        let outbox = outbox.clone()?;
        let lane = outbox.take(chunks(len))?;
        let header = Header {
            lane: lane.number,
            chunks: lane.chunks.clone(),
            len: len as u64,
            key: outbox.key.clone(),
        };
        let next = 0;
        let course = Course { outbox, lane, next };
        Some((header, Self { content, course }))
    }

    /// The same with a copy of its content.
    pub(super) fn owned(self) -> Outgoing<Vec<u8>> {
        Outgoing {
            content: self.content.to_vec(),
            course: self.course,
        }
    }
}

impl<C: AsRef<[u8]>> Outgoing<C> {
    /// Fills what is free. Whether all has been handed over.
    pub(super) fn step(&mut self) -> bool {
        let Course { outbox, lane, next } = &mut self.course;
        let shared = &outbox.shared;
        let content = self.content.as_ref();
        while *next < lane.end {
            let (number, count) = (*next as usize, lane.chunks.len());
            if number >= count && (shared.drained(lane.number).get() as usize) + count <= number {
                return false;
            }
            let start = number * CHUNK;
            let bytes = &content[start..content.len().min(start + CHUNK)];
            let to = shared.chunk(lane.chunks[number % count]);
            // SAFETY: a chunk of this message, which the receiver has drained if it was filled
            // before; at most a chunk of bytes.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
            *next += 1;
            shared.filled(lane.number).set(*next);
        }
        true
    }

    pub(super) fn wait(&mut self, core: &Core) -> Result<()> {
        let outbox = self.course.outbox.clone();
        wait(
            core,
            &outbox.shared.drained(self.course.lane.number),
            || {
                let done = self.step();
                (self.course.next, done)
            },
        )
    }
}

/// Of a message for which there are too few chunks at once.
impl Pump for Mutex<Outgoing<Vec<u8>>> {
    fn pump(&self) -> bool {
        // Else its own thread is at it.
        self.try_lock().is_ok_and(|mut message| message.step())
    }
}

/// The request for such a message, which goes on also without.
pub(super) struct Sending {
    pub(super) core: Arc<Core>,
    pub(super) message: Arc<Mutex<Outgoing<Vec<u8>>>>,
}

impl Sending {
    fn message(&self) -> MutexGuard<'_, Outgoing<Vec<u8>>> {
        self.message.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending<()> for Sending {
    fn is_done(&mut self) -> Result<bool> {
        self.core.worker.progress()?;
        Ok(self.message().step())
    }

    fn wait(self: Box<Self>) -> Result<()> {
        self.message().wait(&self.core)
    }
}

/// A message on its way through its sender's outbox.
#[derive(Debug)]
pub(super) struct Incoming {
    /// Its sender.
    from: usize,
    shared: Arc<Shared>,
    lane: u16,
    chunks: Vec<u16>,
    len: usize,
    /// How many chunks have been drained.
    next: u32,
}

impl Incoming {
    /// `from` is the sender's rank in the team; the header has been checked.
    pub(super) fn start(core: &Core, from: usize, header: &Header) -> Result<Self> {
        let world_rank = core.peers.world_rank(from);
        let theirs = core.job.outboxes.theirs.lock();
        let mut theirs = theirs.unwrap_or_else(PoisonError::into_inner);
        let bad = |text| Error::new(ErrorKind::Ucx, text).with_peer(from);
        let shared = match theirs.get(&world_rank) {
            Some(shared) => shared.clone(),
            None => {
                // As with any memory of a rank that may be dead.
                let _concerned = core.check_for(from)?;
                let key = core.peers.for_memory(from)?.unpack(&header.key)?;
                let base = key.as_ptr().filter(|_| key.len() >= BYTES);
                let base =
                    base.ok_or_else(|| bad(format!("the outbox of rank {from} is not mapped")))?;
                let _keep = Keep::Senders(key);
                let shared = Arc::new(Shared { base, _keep });
                theirs.insert(world_rank, shared.clone());
                shared
            }
        };
        Ok(Self {
            from,
            shared,
            lane: header.lane,
            chunks: header.chunks.clone(),
            len: usize::try_from(header.len).unwrap_or(usize::MAX),
            next: 0,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Passes on what is there, with where in the message it begins. Whether that is all.
    pub(super) fn step(&mut self, mut take: impl FnMut(usize, &[u8])) -> bool {
        while self.next < chunks(self.len) {
            if self.shared.filled(self.lane).get() <= self.next {
                return false;
            }
            let number = self.next as usize;
            let start = number * CHUNK;
            let len = CHUNK.min(self.len - start);
            let chunk = self.shared.chunk(self.chunks[number % self.chunks.len()]);
            // SAFETY: a chunk that the sender has filled and does not write until it is drained;
            // any bytes are initialised.
            let bytes = unsafe { std::slice::from_raw_parts(chunk, len) };
            take(start, bytes);
            self.next += 1;
            self.shared.drained(self.lane).set(self.next);
        }
        true
    }

    pub(super) fn wait(&mut self, core: &Core, mut take: impl FnMut(usize, &[u8])) -> Result<()> {
        let shared = self.shared.clone();
        let _concerned = core.concerned_with(self.from);
        wait(core, &shared.filled(self.lane), || {
            let done = self.step(&mut take);
            (self.next, done)
        })
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // What was not taken is lost; the sender need not wait.
        let end = chunks(self.len);
        if self.next < end {
            self.shared.drained(self.lane).set(end);
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
