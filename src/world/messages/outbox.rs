//! Large messages between ranks of one node: through chunks of shared memory, which the sender
//! fills while the receiver empties them. Two copies at the same time, and no memory that would
//! have to be mapped first, are faster than UCX's one copy between two heaps.
//!
//! A message of [`DIRECT`] chunks or more, both ranks of which wait for it, goes on as
//! [direct](super::direct) when the sender sees that the receiver is there: both copy at the same
//! time, once. Where the system does not allow that it goes on through the chunks.
//!
//! Each process has one *outbox*, made at its first large message and mapped by receivers at
//! theirs. A message takes a *lane*, two counters, and some free chunks, which it uses again and
//! again if it is longer. If there are none it goes through UCX. What travels as a UCX message is
//! the [`Header`], so order and matching are UCX's, and messages do not wait for each other.

#![expect(unsafe_code, reason = "shared memory between processes")]

use super::direct::{BITS, Claims, Gone, Peer, Place};
use crate::cores;
use crate::error::{Error, ErrorKind, Result};
use crate::ucx::{MemoryHandle, Pump, RemoteKey, SerializedRemoteKey};
use crate::wait::{Patience, sleep_on, wake_all};
use crate::world::{Core, Pending, room};
use bytemuck::AnyBitPattern;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

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
/// From so many chunks on a message is worth the system calls.
const DIRECT: u32 = 4;
/// In the count of filled chunks: the others are not filled, but copied directly; and the sender
/// copies no more of them.
const THE_REST_IS_DIRECT: u32 = 1 << 31;
const SENDER_IS_DONE: u32 = 1 << 30;
/// How long a receiver that gives up waits for a sender that writes to its memory and does not go
/// on, before it ends the process.
const STUCK: Duration = Duration::from_secs(5);
/// Counters would not do for more in all, one after another.
const MOST_CHUNKS: u64 = (1 << BITS) - 2;
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
    /// Where the message is, if the sender waits until it has been received.
    place: Option<Place>,
}

impl Header {
    #[cfg(test)]
    pub(super) fn example(key: SerializedRemoteKey) -> Self {
        Self {
            lane: 3,
            chunks: vec![1, 2, 63],
            len: 300_000,
            key,
            place: Some(Place::of(std::ptr::null())),
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
    /// The process at the other end; None if its memory cannot be read.
    peer: OnceLock<Option<Peer>>,
    _keep: Keep,
}

/// In a lane: what a receiver says of where it wants the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offer {
    None,
    Made,
    Accepted,
    Withdrawn,
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
    fn in_lane(&self, lane: u16, offset: usize) -> *mut u8 {
        assert!(lane < LANES && offset < LANE);
        let offset = lane as usize * LANE + offset;
        self.base.as_ptr().wrapping_add(offset)
    }

    fn word(&self, lane: u16, offset: usize) -> &AtomicU32 {
        // SAFETY: before the first chunk, aligned, and accessed as an atomic only.
        unsafe { AtomicU32::from_ptr(self.in_lane(lane, offset).cast()) }
    }

    fn long(&self, lane: u16, offset: usize) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.in_lane(lane, offset).cast()) }
    }

    fn claims(&self, lane: u16) -> Claims<'_> {
        Claims(self.long(lane, LANE / 4))
    }

    fn offer(&self, lane: u16) -> &AtomicU32 {
        self.word(lane, LANE / 2 + 8)
    }

    /// Goes on from one state of the offer to another; false if it is in a third.
    fn change_offer(&self, lane: u16, from: Offer, to: Offer) -> bool {
        let (from, to) = (from as u32, to as u32);
        self.offer(lane)
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Where the receiver wants the message: its place, in four words.
    fn wanted(&self, lane: u16) -> [&AtomicU64; 4] {
        [16, 24, 32, 40].map(|offset| self.long(lane, LANE / 2 + offset))
    }

    fn make_offer(&self, lane: u16, place: Place) {
        let process = u64::from(place.process.unsigned_abs());
        let words = [process, place.proof_at, place.proof, place.bytes_at];
        for (word, value) in self.wanted(lane).into_iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        self.offer(lane)
            .store(Offer::Made as u32, Ordering::Release);
    }

    /// The place that is offered, if one is.
    fn offered(&self, lane: u16) -> Option<Place> {
        let made = self.offer(lane).load(Ordering::Acquire) == Offer::Made as u32;
        let [process, proof_at, proof, bytes_at] =
            self.wanted(lane).map(|word| word.load(Ordering::Relaxed));
        made.then(|| Place {
            process: i32::try_from(process).unwrap_or(0),
            proof_at,
            proof,
            bytes_at,
        })
    }

    /// Chunks of the message that have been filled, and how it goes on.
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
    /// Receivers, by their number in the world; None if their memory cannot be written.
    receivers: Mutex<HashMap<usize, Option<Arc<Peer>>>>,
}

impl Outboxes {
    fn receiver(&self, world_rank: usize, place: &Place) -> Option<Arc<Peer>> {
        let mut receivers = self
            .receivers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        receivers
            .entry(world_rank)
            .or_insert_with(|| Peer::meet(place).map(Arc::new))
            .clone()
    }
}

/// Whether messages may be direct at all.
fn direct_is_allowed() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(|| {
        let transports = std::env::var("UCX_TLS").ok();
        room::allows_cma(transports.as_deref())
    })
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
            shared: Shared {
                base,
                peer: OnceLock::new(),
                _keep,
            },
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
        let offer = self.shared.offer(number);
        offer.store(Offer::None as u32, Ordering::Relaxed);
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
    direct: Direct,
}

/// Whether a message goes on directly.
#[derive(Debug)]
enum Direct {
    Never,
    /// If the receiver, of that number in the world, offers a place.
    Perhaps(usize),
    /// To that place, with nothing more to do for the sender or with something.
    Yes {
        receiver: Arc<Peer>,
        to: u64,
        done: bool,
    },
}

impl Course {
    /// Accepts what the receiver offers, if it does.
    fn accept(&mut self, core: &Core) {
        let (shared, lane) = (&self.outbox.shared, self.lane.number);
        let Direct::Perhaps(rank) = self.direct else {
            return;
        };
        let Some(place) = shared.offered(lane) else {
            return;
        };
        let Some(receiver) = core.job.outboxes.receiver(rank, &place) else {
            self.direct = Direct::Never;
            return;
        };
        shared.claims(lane).open(self.next, self.lane.end);
        if shared.change_offer(lane, Offer::Made, Offer::Accepted) {
            #[cfg(test)]
            tests::ACCEPTED.fetch_add(1, Ordering::Relaxed);
            let filled = self.next | THE_REST_IS_DIRECT;
            shared.filled(lane).set(filled);
            let (to, done) = (place.bytes_at, false);
            self.direct = Direct::Yes { receiver, to, done };
        }
    }

    /// The sender copies no more chunks directly.
    fn say_done(&self) {
        let filled = self.next | THE_REST_IS_DIRECT | SENDER_IS_DONE;
        self.outbox.shared.filled(self.lane.number).set(filled);
    }

    /// Whether its receiver does not need this process any more, but for its lane.
    fn is_over(&self) -> bool {
        let Lane { number, end, .. } = self.lane;
        match self.direct {
            Direct::Yes { .. } => self.outbox.shared.drained(number).get() == end,
            _ => self.next == end,
        }
    }
}

impl Drop for Course {
    /// A message that is left in the middle keeps its lane: its receiver may still be there.
    fn drop(&mut self) {
        if self.is_over() {
            let chunks = std::mem::take(&mut self.lane.chunks);
            let lane = Lane {
                chunks,
                ..self.lane
            };
            self.outbox.lanes().sent.push(lane);
        } else if let Direct::Yes { .. } = self.direct {
            let shared = &self.outbox.shared;
            shared.claims(self.lane.number).close(Gone::Sender);
            self.say_done();
        }
    }
}

/// Chunks of so many bytes.
fn chunks(len: usize) -> u32 {
    u32::try_from(len.div_ceil(CHUNK)).unwrap_or(u32::MAX)
}

/// A chunk's bytes among so many.
fn of_chunk(chunk: u32, len: usize) -> Range<usize> {
    let start = chunk as usize * CHUNK;
    start..len.min(start + CHUNK)
}

impl<'a> Outgoing<&'a [u8]> {
    /// Takes a lane for a message, and says what to send as its header; None if it must go through
    /// UCX. Whether the caller `waits` until it is over.
    pub(super) fn start(
        core: &Core,
        to: usize,
        content: &'a [u8],
        waits: bool,
    ) -> Option<(Header, Self)> {
        let len = content.len();
        let same_node = core.nodes.place_of(to).is_some();
        if len < LARGE || !same_node || to == core.rank || (len / CHUNK) as u64 > MOST_CHUNKS {
            return None;
        }
        let outbox = core.job.outboxes.mine.get_or_init(|| Outbox::new(core));
        let outbox = outbox.clone()?;
        let lane = outbox.take(chunks(len))?;
        let direct = waits && lane.end >= DIRECT && direct_is_allowed();
        let header = Header {
            lane: lane.number,
            chunks: lane.chunks.clone(),
            len: len as u64,
            key: outbox.key.clone(),
            place: direct.then(|| Place::of(content.as_ptr())),
        };
        let course = Course {
            outbox,
            lane,
            next: 0,
            direct: match direct {
                true => Direct::Perhaps(core.peers.world_rank(to)),
                false => Direct::Never,
            },
        };
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
    /// Fills the next chunk, if there is a free one for it; whether there was.
    fn fill(&mut self) -> bool {
        let Course {
            outbox, lane, next, ..
        } = &mut self.course;
        let shared = &outbox.shared;
        let (number, count) = (*next as usize, lane.chunks.len());
        if number >= count && (shared.drained(lane.number).get() as usize) + count <= number {
            return false;
        }
        let bytes = &self.content.as_ref()[of_chunk(*next, self.content.as_ref().len())];
        let to = shared.chunk(lane.chunks[number % count]);
        // SAFETY: a chunk of this message, which the receiver has drained if it was filled before;
        // at most a chunk of bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        *next += 1;
        shared.filled(lane.number).set(*next);
        true
    }

    /// Fills what is free. Whether all has been handed over.
    pub(super) fn step(&mut self) -> bool {
        while self.course.next < self.course.lane.end {
            if !self.fill() {
                return false;
            }
        }
        true
    }

    /// As [`Outgoing::step`], and goes on directly if the receiver offers that.
    fn step_or_write(&mut self, core: &Core) -> Result<bool> {
        while self.course.next < self.course.lane.end && !self.write(core)? {
            if !self.fill() {
                return Ok(false);
            }
            if self.course.next == 1 && cores::own() == 0 {
                // A receiver that waits, but on this core, can make its offer.
                std::thread::yield_now();
            }
        }
        Ok(self.course.is_over())
    }

    /// Writes chunks to the receiver's memory, from the last one on, until they are all somebody's.
    /// False if it has not offered any.
    fn write(&mut self, core: &Core) -> Result<bool> {
        self.course.accept(core);
        let Course {
            outbox,
            lane,
            direct,
            ..
        } = &mut self.course;
        let Direct::Yes { receiver, to, done } = direct else {
            return Ok(false);
        };
        if std::mem::replace(done, true) {
            return Ok(true);
        }
        let (shared, content) = (&outbox.shared, self.content.as_ref());
        let claims = shared.claims(lane.number);
        while let Some(chunk) = claims.last() {
            let range = of_chunk(chunk, content.len());
            let to = *to + range.start as u64;
            // SAFETY: the receiver lends its buffer until it sees that this process is done, and
            // nobody else copies this chunk.
            unsafe { receiver.write(to, &content[range]) }.map_err(|error| {
                // Dropping this says so.
                Error::new(ErrorKind::PeerFailed, format!("its memory: {error}"))
            })?;
        }
        self.course.say_done();
        Ok(true)
    }

    pub(super) fn wait(&mut self, core: &Core) -> Result<()> {
        let outbox = self.course.outbox.clone();
        wait(
            core,
            &outbox.shared.drained(self.course.lane.number),
            || {
                let done = self.step_or_write(core)?;
                Ok((self.course.next, done))
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
    /// Where the sender has it, if that may be read.
    place: Option<Place>,
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
                let peer = OnceLock::new();
                let shared = Arc::new(Shared { base, peer, _keep });
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
            place: header.place,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Passes on what is there, with where in the message it begins. Whether that is all.
    pub(super) fn step(&mut self, take: impl FnMut(usize, &[u8])) -> bool {
        let filled = self.shared.filled(self.lane).get();
        self.drain(filled, take)
    }

    /// As [`Incoming::step`], of a count of filled chunks.
    fn drain(&mut self, filled: u32, mut take: impl FnMut(usize, &[u8])) -> bool {
        let filled = filled & !(THE_REST_IS_DIRECT | SENDER_IS_DONE);
        while self.next < filled.min(chunks(self.len)) {
            let range = of_chunk(self.next, self.len);
            let chunk = self.chunks[self.next as usize % self.chunks.len()];
            // SAFETY: a chunk that the sender has filled and does not write until it is drained;
            // any bytes are initialised.
            let bytes =
                unsafe { std::slice::from_raw_parts(self.shared.chunk(chunk), range.len()) };
            take(range.start, bytes);
            self.next += 1;
            self.shared.drained(self.lane).set(self.next);
        }
        self.next == chunks(self.len)
    }

    /// Waits for all of it. `to` has its length.
    pub(super) fn wait(&mut self, core: &Core, to: &mut [impl AnyBitPattern]) -> Result<()> {
        assert!(size_of_val(to) >= self.len);
        let to = to.as_mut_ptr().cast();
        let mut lent = Lent { incoming: self, to };
        lent.offer();
        let shared = lent.incoming.shared.clone();
        let lane = lent.incoming.lane;
        let _concerned = core.concerned_with(lent.incoming.from);
        wait(core, &shared.filled(lane), || {
            let done = lent.step()?;
            Ok((lent.incoming.next, done))
        })
    }
}

/// A buffer that a sender may write to.
struct Lent<'a> {
    incoming: &'a mut Incoming,
    /// Writable for the message's length while this lives.
    to: *mut u8,
}

impl Lent<'_> {
    /// Makes an offer to the sender, if it is worth it and allowed.
    fn offer(&self) {
        let Incoming {
            shared,
            lane,
            place: Some(place),
            ..
        } = &*self.incoming
        else {
            return;
        };
        let peer = || Peer::meet(place).filter(|_| direct_is_allowed());
        if shared.peer.get_or_init(peer).is_some() {
            shared.make_offer(*lane, Place::of(self.to));
        }
    }

    /// Takes what is there. Whether that is all.
    fn step(&mut self) -> Result<bool> {
        let to = self.to;
        let incoming = &mut *self.incoming;
        let filled = incoming.shared.filled(incoming.lane).get();
        let done = incoming.drain(filled, |at, bytes| {
            // SAFETY: inside the buffer, which nobody else reads or writes there.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.wrapping_add(at), bytes.len())
            };
        });
        let shared = &incoming.shared;
        if done || filled & THE_REST_IS_DIRECT == 0 {
            return Ok(done);
        }
        let (Some(place), Some(Some(peer))) = (&incoming.place, shared.peer.get()) else {
            return Err(incoming.gone());
        };
        let claims = shared.claims(incoming.lane);
        while let Some(chunk) = claims.first() {
            let range = of_chunk(chunk, incoming.len);
            let from = place.bytes_at + range.start as u64;
            // SAFETY: inside the buffer, and nobody else copies this chunk.
            let read = unsafe { peer.read(from, to.wrapping_add(range.start), range.len()) };
            // If the sender had given up before, it may have been anything.
            if read.is_err() || claims.is_closed_by(Gone::Sender) {
                return Err(incoming.gone());
            }
        }
        if claims.is_closed_by(Gone::Sender) {
            return Err(incoming.gone());
        }
        let filled = shared.filled(incoming.lane).get();
        if filled & SENDER_IS_DONE == 0 {
            return Ok(false);
        }
        incoming.next = chunks(incoming.len);
        shared.drained(incoming.lane).set(incoming.next);
        Ok(true)
    }
}

impl Drop for Lent<'_> {
    /// The sender must not write any more.
    fn drop(&mut self) {
        let Incoming { shared, lane, .. } = &*self.incoming;
        if self.incoming.next == chunks(self.incoming.len)
            || shared.offer(*lane).load(Ordering::Acquire) == Offer::None as u32
            || shared.change_offer(*lane, Offer::Made, Offer::Withdrawn)
        {
            return;
        }
        shared.claims(*lane).close(Gone::Receiver);
        let since = Instant::now();
        let filled = shared.filled(*lane);
        let ended = || {
            shared
                .peer
                .get()
                .and_then(Option::as_ref)
                .is_none_or(Peer::has_ended)
        };
        loop {
            let seen = filled.get();
            if seen & SENDER_IS_DONE != 0 || ended() {
                return;
            }
            if since.elapsed() > STUCK {
                eprintln!(
                    "pgas: rank {} of the team is writing a message to this process, which gives up receiving it, \
                     and does not go on: memory would be overwritten later",
                    self.incoming.from
                );
                std::process::abort();
            }
            filled.sleep(seen, NAP);
        }
    }
}

impl Incoming {
    #[cold]
    fn gone(&self) -> Error {
        let text = format!("rank {} has left a message in the middle", self.from);
        Error::new(ErrorKind::PeerFailed, text).with_peer(self.from)
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
fn wait(
    core: &Core,
    other: &Counter<'_>,
    mut step: impl FnMut() -> Result<(u32, bool)>,
) -> Result<()> {
    let mut patience = Patience::for_neighbours();
    let mut last = 0;
    loop {
        let seen = other.get();
        let (next, done) = step()?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Ranks;

    pub(super) static ACCEPTED: AtomicU32 = AtomicU32::new(0);

    /// A message whose receiver is there first is direct, if the system and `UCX_TLS` allow it.
    #[test]
    fn large_messages_are_direct() {
        for (transports, allowed) in [("posix,cma,self", true), ("posix,self", false)] {
            Ranks::new(2).env("UCX_TLS", transports).run(|world| {
                let here = 7_u64;
                let place = Place::of((&raw const here).cast());
                let process = u64::from(place.process.unsigned_abs());
                let words = [process, place.proof_at, place.proof];
                let words = world.all_gather(words)?;
                let others = words[1 - world.rank()];
                let other = Place {
                    process: i32::try_from(others[0]).unwrap(),
                    proof_at: others[1],
                    proof: others[2],
                    bytes_at: 0,
                };
                let possible = allowed && Peer::meet(&other).is_some();
                for chunks in [1, 2, 4, 5, 64, 100] {
                    let before = ACCEPTED.load(Ordering::Relaxed);
                    let len = chunks * CHUNK - chunks % 2;
                    let sent: Vec<u8> = (0..=250).cycle().take(len).collect();
                    world.barrier()?;
                    if world.rank() == 0 {
                        std::thread::sleep(Duration::from_millis(20));
                        world.send(1, 1, &sent)?;
                    } else {
                        let mut received = vec![0_u8; len];
                        world.recv_into(0, 1, &mut received)?;
                        assert!(received == sent, "{chunks}");
                    }
                    let direct = ACCEPTED.load(Ordering::Relaxed) - before;
                    // A receiver that is late gets a message of few chunks from those.
                    let expected = world.rank() == 0 && possible && chunks >= 64;
                    assert!(
                        direct == u32::from(expected) || chunks < 64,
                        "{chunks} {transports} {direct} {possible} {}",
                        world.rank()
                    );
                    assert!(
                        direct == 0 || (possible && chunks >= 4),
                        "{chunks} {transports} {possible} {direct}"
                    );
                }
                world.barrier()
            });
        }
    }
}
