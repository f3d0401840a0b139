//! The ranks of one node meet in a block of shared memory: each has a slot for what it
//! contributes, and the leader (the lowest rank) has a place for the result.
//!
//! One meeting, number `sequence`:
//! 1. every member writes its contribution to its slot, then `sequence` to the slot's flag;
//! 2. the leader waits for all flags, combines, writes the result, then `sequence` to the
//!    release flag;
//! 3. members wait for the release flag and read the result.
//!
//! A slot is written again only after the release, the result only after all members came to
//! the next meeting, so nothing is overwritten while it is read. Flags are written with release
//! and read with acquire ordering, hence the plain accesses between them do not race.

#![expect(unsafe_code, reason = "shared memory between processes")]

use super::signature::{Call, Place, Signature};
use crate::element;
use crate::error::Result;
use crate::ucx::{MemoryHandle, RemoteKey};
use crate::wait::{Limits, Patience, sleep_on, wake_all};
use bytemuck::{Pod, Zeroable};
use rustix::thread::futex;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// Most bytes that one member contributes to one meeting.
pub(super) const SLOT: usize = 64 << 10;
/// Most bytes of one meeting's result.
pub(super) const RESULT: usize = 512 << 10;
/// Contributions up to this size travel in the cache line of the flag.
const INLINE: usize = 24;

/// Longest sleep while messages are under way.
const SHORT_NAP: Duration = Duration::from_millis(1);

/// Outcome of a meeting, beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The bytes are the result.
    Good = 0,
    /// The ranks called different collectives; the bytes say which.
    Mismatch = 1,
    /// The leader could not finish; the bytes say why.
    Failed = 2,
    /// Ranks of other nodes did not come; the bytes say which.
    Late = 3,
}

// The block: a line for the release, one for the bell, two for each member, then the members'
// slots, then the result. A line is a cache line:
//
//   release line   flag, sleepers (u32 each) | Released | inline result
//   bell line      bell, leader sleeps (u32 each)
//   member's line  flag (u32) | Arrived | inline contribution
//   and one more   Place: where the member's program calls
const LINE: usize = 64;
const HEADER: usize = 8;
const INLINE_AT: usize = LINE - INLINE;

/// What the leader says with a result.
#[repr(C)]
#[derive(Clone, Copy)]
struct Released {
    verdict: u32,
    len: u32,
}

/// What a member says with its contribution.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Arrived {
    len: u32,
    call: u16,
    _pad: u16,
    detail: u32,
    _pad2: u32,
    count: u64,
    element: u64,
}

impl Arrived {
    fn signature(&self) -> Option<Signature> {
        Some(Signature {
            call: Call::from_number(self.call)?,
            detail: self.detail,
            count: self.count,
            element: self.element,
            site: None,
        })
    }
}

const _: () = assert!(HEADER + size_of::<Arrived>() <= INLINE_AT);
const _: () = assert!(size_of::<Place>() <= LINE);

/// Bytes of the lines of a block for `members`.
fn lines(members: usize) -> usize {
    (2 + 2 * members) * LINE
}

/// Eight-byte words that a block for `members` needs.
pub(super) fn words(members: usize) -> usize {
    (lines(members) + members * SLOT + RESULT) / 8
}

/// Keeps the block's memory in this process.
#[derive(Debug)]
enum Keep {
    Mine(MemoryHandle),
    Leaders(#[expect(dead_code, reason = "held: the block's pointer lives as long")] RemoteKey),
}

/// This process's view of its node's block.
///
/// Invariant: `base` points to [`words`]`(members)` words of memory that `keep` holds, aligned to
/// a cache line (UCX maps whole pages), zero when made.
#[derive(Debug)]
pub(super) struct Block {
    base: NonNull<u8>,
    members: usize,
    me: usize,
    /// The call whose place my second line has, by the address of its description.
    site: AtomicUsize,
    keep: Keep,
}

// SAFETY: the memory is shared between processes already; see the protocol above.
unsafe impl Send for Block {}
// SAFETY: methods that write are called with the engine's lock held (one meeting at a time).
unsafe impl Sync for Block {}

impl Block {
    /// The leader's own block, which `memory` holds; None if it is not aligned as needed.
    pub(super) fn of_leader(memory: MemoryHandle, members: usize) -> Option<Self> {
        let base = NonNull::new(memory.as_ptr())?;
        Self::new(base, memory.len(), members, 0, Keep::Mine(memory))
    }

    /// The leader's block, mapped through its key; None if it is not mapped.
    pub(super) fn of_member(key: RemoteKey, members: usize, me: usize) -> Option<Self> {
        let base = key.as_ptr()?;
        Self::new(base, key.len(), members, me, Keep::Leaders(key))
    }

    fn new(base: NonNull<u8>, len: usize, members: usize, me: usize, keep: Keep) -> Option<Self> {
        let fits = base.addr().get().is_multiple_of(LINE) && len >= words(members) * 8;
        fits.then_some(Self {
            base,
            members,
            me,
            site: AtomicUsize::new(0),
            keep,
        })
    }

    /// The memory it is in, on the leader.
    pub(super) fn memory(&self) -> Option<MemoryHandle> {
        match &self.keep {
            Keep::Mine(memory) => Some(memory.clone()),
            Keep::Leaders(_) => None,
        }
    }

    pub(super) fn members(&self) -> usize {
        self.members
    }

    fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < words(self.members) * 8);
        // SAFETY: all offsets below lie inside the block, by the layout in `words`.
        unsafe { self.base.as_ptr().add(offset) }
    }

    fn line(&self, member: usize) -> usize {
        (2 + 2 * member) * LINE
    }

    fn slot_data(&self, member: usize) -> *mut u8 {
        self.at(lines(self.members) + member * SLOT)
    }

    fn result_data(&self) -> *mut u8 {
        self.at(lines(self.members) + self.members * SLOT)
    }

    /// The flag at `offset`, which is only ever accessed as an atomic.
    fn flag(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: inside the block, aligned, alive as long as `self`.
        unsafe { AtomicU32::from_ptr(self.at(offset).cast()) }
    }

    fn release_flag(&self) -> &AtomicU32 {
        self.flag(0)
    }

    /// Members asleep on the release flag.
    fn sleepers(&self) -> &AtomicU32 {
        self.flag(4)
    }

    /// What members ring when the leader sleeps.
    fn bell(&self) -> &AtomicU32 {
        self.flag(LINE)
    }

    fn leader_sleeps(&self) -> &AtomicU32 {
        self.flag(LINE + 4)
    }

    fn slot_flag(&self, member: usize) -> &AtomicU32 {
        self.flag(self.line(member))
    }

    fn arrived(&self, member: usize) -> *mut Arrived {
        self.at(self.line(member) + HEADER).cast()
    }

    fn place(&self, member: usize) -> *mut Place {
        self.at(self.line(member) + LINE).cast()
    }

    fn released(&self) -> *mut Released {
        self.at(HEADER).cast()
    }

    /// Where a contribution of `len` bytes lies.
    fn contribution_place(&self, member: usize, len: usize) -> *mut u8 {
        if len <= INLINE {
            self.at(self.line(member) + INLINE_AT)
        } else {
            self.slot_data(member)
        }
    }

    /// Where a result of `len` bytes lies.
    fn result_place(&self, len: usize) -> *mut u8 {
        if len <= INLINE {
            self.at(INLINE_AT)
        } else {
            self.result_data()
        }
    }

    /// A member's step 1. At most [`SLOT`] bytes.
    pub(super) fn arrive(&self, sequence: u32, signature: &Signature, data: &[u8]) {
        assert!(data.len() <= SLOT);
        let arrived = Arrived {
            len: u32::try_from(data.len()).unwrap_or(0),
            call: signature.call as u16,
            _pad: 0,
            detail: signature.detail,
            _pad2: 0,
            count: signature.count,
            element: signature.element,
        };
        // SAFETY: my line; nobody reads it between the last release and the flag below.
        unsafe { self.arrived(self.me).write(arrived) };
        let site = signature
            .site
            .map_or(0, |site| std::ptr::from_ref(site).addr());
        if self.site.swap(site, Ordering::Relaxed) != site {
            // SAFETY: as above. What is there already need not be written again.
            unsafe { self.place(self.me).write(signature.place()) };
        }
        let to = self.contribution_place(self.me, data.len());
        // SAFETY: the place holds so many bytes, and is mine to write until the flag is set.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        // SeqCst: the flag must be visible before `leader_sleeps` is looked at, see `wait_members`.
        self.slot_flag(self.me).store(sequence, Ordering::SeqCst);
        if self.leader_sleeps().load(Ordering::SeqCst) != 0 {
            self.bell().fetch_add(1, Ordering::SeqCst);
            // Only fails for addresses that are not mapped.
            let _ = futex::wake(self.bell(), futex::Flags::empty(), 1);
        }
    }

    /// The leader's step 2, first half: waits until every member has arrived.
    /// `help` lets messages of this rank go on, which others may wait for before they come; whether
    /// there are any.
    pub(super) fn wait_members(
        &self,
        sequence: u32,
        (limits, mut patience): (&Limits, Patience<'_>),
        help: impl Fn() -> Result<bool>,
    ) -> Result<()> {
        for member in 1..self.members {
            let flag = self.slot_flag(member);
            while flag.load(Ordering::Acquire) != sequence {
                let nap = patience.pause(limits)?;
                let helped = help()?;
                if let Some(nap) = nap {
                    let nap = if helped { nap.min(SHORT_NAP) } else { nap };
                    self.leader_sleeps().store(1, Ordering::SeqCst);
                    let heard = self.bell().load(Ordering::SeqCst);
                    if flag.load(Ordering::SeqCst) != sequence {
                        sleep_on(self.bell(), heard, nap);
                    }
                    self.leader_sleeps().store(0, Ordering::SeqCst);
                }
            }
        }
        Ok(())
    }

    /// Members that have not arrived at meeting `sequence`.
    pub(super) fn absent(&self, sequence: u32) -> impl Iterator<Item = usize> {
        (0..self.members)
            .filter(move |&member| self.slot_flag(member).load(Ordering::Acquire) != sequence)
    }

    /// What `member` calls. To be used by the leader, between waiting and release.
    pub(super) fn signature(&self, member: usize) -> Option<Signature> {
        // SAFETY: the member has arrived, so it does not write until the release.
        unsafe { self.arrived(member).read() }.signature()
    }

    /// Where `member` calls it. To be used by the leader, between waiting and release.
    pub(super) fn place_of(&self, member: usize) -> Place {
        // SAFETY: the member has arrived, so it does not write until the release.
        unsafe { self.place(member).read() }
    }

    /// What a member that is absent from meeting `sequence` called last, and where, if it was at
    /// the meeting before: it writes nothing until it comes.
    pub(super) fn last_seen(&self, member: usize, sequence: u32) -> Option<(Signature, Place)> {
        let flag = self.slot_flag(member).load(Ordering::Acquire);
        if flag != sequence.wrapping_sub(1) || flag == 0 {
            return None;
        }
        // It may come just now: what is copied is then a mix of old and new, of words and text.
        let mut lines = [0_u8; 2 * LINE];
        let from = self.at(self.line(member));
        // SAFETY: the member's two lines are in the block, and as long; the copy is one that may
        // meet a writer.
        unsafe { element::copy(lines.as_mut_ptr(), from, lines.len()) };
        let arrived = HEADER..HEADER + size_of::<Arrived>();
        let arrived: Arrived = bytemuck::pod_read_unaligned(&lines[arrived]);
        let place = bytemuck::pod_read_unaligned(&lines[LINE..LINE + size_of::<Place>()]);
        Some((arrived.signature()?, place))
    }

    /// What `member` contributed. To be used by the leader, between waiting and release.
    pub(super) fn contribution(&self, member: usize) -> &[u8] {
        // SAFETY: the member has arrived, so it does not write until the release.
        let len = unsafe { self.arrived(member).read() }.len as usize;
        let from = self.contribution_place(member, len);
        // SAFETY: initialised bytes of the block that nobody writes until the release; at most a
        // slot of them.
        unsafe { std::slice::from_raw_parts(from, len.min(SLOT)) }
    }

    /// The leader's step 2, second half. At most [`RESULT`] bytes.
    pub(super) fn release(&self, sequence: u32, verdict: Verdict, data: &[u8]) {
        assert!(data.len() <= RESULT);
        let released = Released {
            verdict: verdict as u32,
            len: u32::try_from(data.len()).unwrap_or(0),
        };
        // SAFETY: the leader's line; members read it only after the flag below.
        unsafe { self.released().write(released) };
        let to = self.result_place(data.len());
        // SAFETY: the place holds so many bytes, and all members have read the last result.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        // SeqCst: visible before the sleepers are counted, see `wait_release`.
        self.release_flag().store(sequence, Ordering::SeqCst);
        if self.sleepers().load(Ordering::SeqCst) != 0 {
            wake_all(self.release_flag());
        }
    }

    /// A member's step 3: waits for the result and passes it to `read`.
    pub(super) fn wait_release<R>(
        &self,
        sequence: u32,
        (limits, mut patience): (&Limits, Patience<'_>),
        help: impl Fn() -> Result<bool>,
        read: impl FnOnce(Verdict, &[u8]) -> R,
    ) -> Result<R> {
        let flag = self.release_flag();
        loop {
            let seen = flag.load(Ordering::Acquire);
            if seen == sequence {
                break;
            }
            let nap = patience.pause(limits)?;
            let helped = help()?;
            if let Some(nap) = nap {
                let nap = if helped { nap.min(SHORT_NAP) } else { nap };
                self.sleepers().fetch_add(1, Ordering::SeqCst);
                // Sleeps only if the flag is still as seen.
                sleep_on(flag, seen, nap);
                self.sleepers().fetch_sub(1, Ordering::SeqCst);
            }
        }
        Ok(self.read_release(read))
    }

    /// As [`Block::wait_release`] without waiting: None if there is no result yet.
    pub(super) fn look_release<R>(
        &self,
        sequence: u32,
        read: impl FnOnce(Verdict, &[u8]) -> R,
    ) -> Option<R> {
        let released = self.release_flag().load(Ordering::Acquire) == sequence;
        released.then(|| self.read_release(read))
    }

    /// Reads the result of a meeting that has been released.
    fn read_release<R>(&self, read: impl FnOnce(Verdict, &[u8]) -> R) -> R {
        // SAFETY: the leader does not write until I arrive at the next meeting.
        let released = unsafe { self.released().read() };
        let len = released.len as usize;
        let from = self.result_place(len);
        // SAFETY: initialised bytes of the block, not written until I arrive at the next meeting.
        let data = unsafe { std::slice::from_raw_parts(from, len.min(RESULT)) };
        let verdict = match released.verdict {
            0 => Verdict::Good,
            1 => Verdict::Mismatch,
            3 => Verdict::Late,
            _ => Verdict::Failed,
        };
        read(verdict, data)
    }
}
