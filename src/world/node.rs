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

use super::signature::{Call, Signature};
use crate::error::Result;
use crate::ucx::{MemoryHandle, RemoteKey};
use crate::wait::{Limits, Patience};
use rustix::fs::Timespec;
use rustix::io;
use rustix::thread::futex;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Most bytes that one member contributes to one meeting.
pub(super) const SLOT: usize = 64 << 10;
/// Most bytes of one meeting's result.
pub(super) const RESULT: usize = 512 << 10;
/// Contributions up to this size travel in the cache line of the flag.
const INLINE: usize = 24;

/// Outcome of a meeting, beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The bytes are the result.
    Good = 0,
    /// The ranks called different collectives; the bytes say which.
    Mismatch = 1,
    /// The leader could not finish; the bytes say why.
    Failed = 2,
}

/// A cache line for each member: its flag, what it calls, and a small contribution.
#[repr(C, align(64))]
struct SlotLine {
    flag: AtomicU32,
    len: u32,
    call: u16,
    _pad: u16,
    detail: u32,
    count: u64,
    element: u64,
    inline: [u8; INLINE],
    _rest: [u8; 8],
}

/// The leader's cache line: the release flag and a small result.
#[repr(C, align(64))]
struct ReleaseLine {
    flag: AtomicU32,
    /// Members asleep on `flag`.
    sleepers: AtomicU32,
    verdict: u32,
    len: u32,
    inline: [u8; INLINE],
    _rest: [u8; 24],
}

/// What members ring when the leader sleeps.
#[repr(C, align(64))]
struct BellLine {
    bell: AtomicU32,
    leader_sleeps: AtomicU32,
    _rest: [u8; 56],
}

const _: () = assert!(size_of::<SlotLine>() == 64);
const _: () = assert!(size_of::<ReleaseLine>() == 64);
const _: () = assert!(size_of::<BellLine>() == 64);

/// Eight-byte words that a block for `members` needs.
pub(super) fn words(members: usize) -> usize {
    (128 + members * (64 + SLOT) + RESULT) / 8
}

/// Keeps the block's memory in this process.
#[derive(Debug)]
#[expect(dead_code, reason = "held, not used: the block's pointer lives as long")]
enum Keep {
    Mine(MemoryHandle),
    Leaders(RemoteKey),
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
    _keep: Keep,
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
        let fits = base.cast::<SlotLine>().is_aligned() && len >= words(members) * 8;
        fits.then_some(Self {
            base,
            members,
            me,
            _keep: keep,
        })
    }

    pub(super) fn members(&self) -> usize {
        self.members
    }

    fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < words(self.members) * 8);
        // SAFETY: all offsets below lie inside the block, by the layout in `words`.
        unsafe { self.base.as_ptr().add(offset) }
    }

    fn release_line(&self) -> *mut ReleaseLine {
        self.at(0).cast()
    }

    fn bell_line(&self) -> &BellLine {
        // SAFETY: inside the block, aligned, and only atomics are used in it.
        unsafe { &*self.at(64).cast::<BellLine>() }
    }

    fn slot_line(&self, member: usize) -> *mut SlotLine {
        self.at(128 + member * 64).cast()
    }

    fn slot_data(&self, member: usize) -> *mut u8 {
        self.at(128 + self.members * 64 + member * SLOT)
    }

    fn result_data(&self) -> *mut u8 {
        self.at(128 + self.members * (64 + SLOT))
    }

    fn slot_flag(&self, member: usize) -> &AtomicU32 {
        // SAFETY: inside the block, aligned; the flag is only accessed as an atomic.
        unsafe { &(*self.slot_line(member)).flag }
    }

    fn release_flag(&self) -> &AtomicU32 {
        // SAFETY: as for slot_flag.
        unsafe { &(*self.release_line()).flag }
    }

    fn sleepers(&self) -> &AtomicU32 {
        // SAFETY: as for slot_flag.
        unsafe { &(*self.release_line()).sleepers }
    }

    /// A member's step 1. At most [`SLOT`] bytes.
    pub(super) fn arrive(&self, sequence: u32, signature: &Signature, data: &[u8]) {
        let line = self.slot_line(self.me);
        assert!(data.len() <= SLOT);
        let len = u32::try_from(data.len()).unwrap_or(0);
        // SAFETY: my slot; nobody reads it between the last release and the flag below.
        unsafe {
            (*line).len = len;
            (*line).call = signature.call as u16;
            (*line).detail = signature.detail;
            (*line).count = signature.count;
            (*line).element = signature.element;
        }
        let to = if data.len() <= INLINE {
            // SAFETY: a place inside my line.
            unsafe { (&raw mut (*line).inline).cast() }
        } else {
            self.slot_data(self.me)
        };
        // SAFETY: the place holds so many bytes, and is mine to write until the flag is set.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        // SeqCst: the flag must be visible before `leader_sleeps` is looked at, see `wait_members`.
        self.slot_flag(self.me).store(sequence, Ordering::SeqCst);
        let bell = self.bell_line();
        if bell.leader_sleeps.load(Ordering::SeqCst) != 0 {
            bell.bell.fetch_add(1, Ordering::SeqCst);
            // Only fails for addresses that are not mapped.
            let _ = futex::wake(&bell.bell, futex::Flags::empty(), 1);
        }
    }

    /// The leader's step 2, first half: waits until every member has arrived.
    pub(super) fn wait_members(&self, sequence: u32, limits: &Limits) -> Result<()> {
        for member in 1..self.members {
            let flag = self.slot_flag(member);
            let mut patience = Patience::new();
            while flag.load(Ordering::Acquire) != sequence {
                if let Some(nap) = patience.pause(limits)? {
                    let bell = self.bell_line();
                    bell.leader_sleeps.store(1, Ordering::SeqCst);
                    let heard = bell.bell.load(Ordering::SeqCst);
                    if flag.load(Ordering::SeqCst) != sequence {
                        sleep_on(&bell.bell, heard, nap);
                    }
                    bell.leader_sleeps.store(0, Ordering::SeqCst);
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
        let line = self.slot_line(member);
        // SAFETY: the member has arrived, so it does not write until the release.
        let (call, detail, count, element) =
            unsafe { ((*line).call, (*line).detail, (*line).count, (*line).element) };
        Some(Signature {
            call: Call::from_number(call)?,
            detail,
            count,
            element,
        })
    }

    /// What `member` contributed. To be used by the leader, between waiting and release.
    pub(super) fn contribution(&self, member: usize) -> &[u8] {
        let line = self.slot_line(member);
        // SAFETY: the member has arrived, so it does not write until the release.
        let len = unsafe { (*line).len } as usize;
        let from = if len <= INLINE {
            // SAFETY: a place inside the member's line.
            unsafe { (&raw const (*line).inline).cast() }
        } else {
            self.slot_data(member).cast_const()
        };
        // SAFETY: initialised bytes of the block that nobody writes until the release; at most a
        // slot of them.
        unsafe { std::slice::from_raw_parts(from, len.min(SLOT)) }
    }

    /// The leader's step 2, second half. At most [`RESULT`] bytes.
    pub(super) fn release(&self, sequence: u32, verdict: Verdict, data: &[u8]) {
        let line = self.release_line();
        assert!(data.len() <= RESULT);
        // SAFETY: the leader's line and result; members read them only after the flag below.
        unsafe {
            (*line).verdict = verdict as u32;
            (*line).len = u32::try_from(data.len()).unwrap_or(0);
        }
        let to = if data.len() <= INLINE {
            // SAFETY: a place inside the line.
            unsafe { (&raw mut (*line).inline).cast() }
        } else {
            self.result_data()
        };
        // SAFETY: the place holds so many bytes, and all members have read the last result.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        // SeqCst: visible before the sleepers are counted, see `wait_release`.
        self.release_flag().store(sequence, Ordering::SeqCst);
        if self.sleepers().load(Ordering::SeqCst) != 0 {
            let _ = futex::wake(self.release_flag(), futex::Flags::empty(), i32::MAX as u32);
        }
    }

    /// A member's step 3: waits for the result and passes it to `read`.
    pub(super) fn wait_release<R>(
        &self,
        sequence: u32,
        limits: &Limits,
        read: impl FnOnce(Verdict, &[u8]) -> R,
    ) -> Result<R> {
        let flag = self.release_flag();
        let mut patience = Patience::new();
        loop {
            let seen = flag.load(Ordering::Acquire);
            if seen == sequence {
                break;
            }
            if let Some(nap) = patience.pause(limits)? {
                self.sleepers().fetch_add(1, Ordering::SeqCst);
                // Sleeps only if the flag is still as seen.
                sleep_on(flag, seen, nap);
                self.sleepers().fetch_sub(1, Ordering::SeqCst);
            }
        }
        let line = self.release_line();
        // SAFETY: the leader does not write until I arrive at the next meeting.
        let (verdict, len) = unsafe { ((*line).verdict, (*line).len as usize) };
        let from = if len <= INLINE {
            // SAFETY: a place inside the line.
            unsafe { (&raw const (*line).inline).cast() }
        } else {
            self.result_data().cast_const()
        };
        // SAFETY: initialised bytes of the block, not written until I arrive at the next meeting.
        let data = unsafe { std::slice::from_raw_parts(from, len.min(RESULT)) };
        let verdict = match verdict {
            0 => Verdict::Good,
            1 => Verdict::Mismatch,
            _ => Verdict::Failed,
        };
        Ok(read(verdict, data))
    }
}

/// Sleeps until somebody wakes `word`, if it is still `seen`; for `nap` at most.
fn sleep_on(word: &AtomicU32, seen: u32, nap: Duration) {
    let timeout = Timespec::try_from(nap).ok();
    match futex::wait(word, futex::Flags::empty(), seen, timeout.as_ref()) {
        // Changed already, woken, timed out or interrupted: the caller looks again.
        Ok(()) | Err(io::Errno::AGAIN | io::Errno::TIMEDOUT | io::Errno::INTR) => {}
        Err(_) => std::thread::yield_now(),
    }
}
