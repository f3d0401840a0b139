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
//!
//! In a *one-way* meeting one member, the root, contributes at most [`INLINE`] bytes and does not
//! wait, and each other member waits only for the root's flag. Every [`WAIT_EVERY`]th meeting is one
//! that all wait in. What a member says in a meeting lasts until it has been read: it has an entry
//! for each of [`ENTRIES`] meetings, used in turns, and nobody comes further than to the next
//! meeting of that kind before all others have come to the last one.
//!
//! In a *flat* meeting nobody waits for the leader's word: each member waits for all others, sees
//! for itself that they call the same, and combines what they contribute, at most [`INLINE`] bytes
//! each. Only if they do not call the same all go on with step 2, in which the leader says why.
//!
//! If ranks call different things, some may wait in a meeting in which others did not. The release
//! of a later meeting, which says so, ends that wait too.

#![expect(unsafe_code, reason = "shared memory between processes")]

use super::bells::{Bell, Bells};
use super::signature::{Call, History, Place, Signature};
use crate::element;
use crate::error::Result;
use crate::ucx::{MemoryHandle, RemoteKey};
use crate::wait::{Limits, Patience, nap_beside, sleep_on, wake_all};
use bytemuck::{Pod, Zeroable};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::time::Duration;

/// Most bytes that one member contributes to one meeting.
pub(super) const SLOT: usize = 64 << 10;
/// Most bytes of one meeting's result.
pub(super) const RESULT: usize = 512 << 10;
/// Contributions up to this size travel in the cache line of the flag.
pub(super) const INLINE: usize = 24;
/// One of so many meetings is always one that all wait in.
const WAIT_EVERY: u32 = 16;
/// Meetings of which is kept what each member has called.
const ENTRIES: u32 = 2 * WAIT_EVERY;
/// Most members of a flat meeting, in which each looks at each.
const FLAT: usize = 16;
/// One of so many meetings is never flat: releases must not be so far apart that their numbers wrap.
const RELEASE_EVERY: u32 = 1 << 16;
/// From a member's entries to the next one's: one more than there are, else those of one meeting are
/// whole pages apart, and a load of one waits for a store to another (a barrier took 40 ns longer).
const STRIDE: usize = ENTRIES as usize + 1;

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

// The block: a line for the release, one for the bell, two for each member's entry, then the bells
// of those who wait for elements, then the members' slots, then the result. A line is a cache line:
//
//   release line   flag, sleepers (u32 each) | Released | inline result
//   bell line      the leader's Bell | members that sleep on an entry's flag (u32) | the others' Bell
//   entry's line   flag (u32) | Arrived | inline contribution
//   and one more   Place: where the member's program calls
pub(super) const LINE: usize = 64;
const HEADER: usize = 8;
const INLINE_AT: usize = LINE - INLINE;

/// What the leader says with a result.
#[repr(C)]
#[derive(Clone, Copy)]
struct Released {
    verdict: u32,
    len: u32,
}

/// How a member meets the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Way {
    /// It waits for the root at most.
    One = 0,
    /// It waits for the release.
    Led = 1,
    /// It waits for all, and for the release if they do not agree.
    Flat = 2,
}

/// What a member says with its contribution. A rank keeps what it has said itself: to look it up where
/// others read it takes as long as they need to get it, some 30 ns.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub(super) struct Arrived {
    len: u32,
    call: u16,
    /// A [`Way`].
    way: u16,
    detail: u32,
    /// Of what it has called since the last meeting that it waited in.
    history: u32,
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
const _: () = assert!(align_of::<Bells>() == LINE);

/// Bytes of the lines of a block for `members`.
fn lines(members: usize) -> usize {
    (2 + 2 * members * STRIDE) * LINE
}

/// Where the slots are.
fn slots(members: usize) -> usize {
    lines(members) + size_of::<Bells>()
}

/// Eight-byte words that a block for `members` needs.
pub(super) fn words(members: usize) -> usize {
    (slots(members) + members * SLOT + RESULT) / 8
}

/// Whether a meeting is over when the last release was of meeting `seen`.
fn is_over(sequence: u32, seen: u32) -> bool {
    seen.wrapping_sub(sequence).cast_signed() >= 0
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
    /// The calls whose places my entries have, by the addresses of their descriptions.
    sites: [AtomicUsize; ENTRIES as usize],
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
        let block = fits.then_some(Self {
            base,
            members,
            me,
            sites: Default::default(),
            keep,
        })?;
        block.bells().join();
        Some(block)
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

    /// For those who wait for elements.
    pub(super) fn bells(&self) -> &Bells {
        // SAFETY: inside the block, aligned, zero when made, only ever accessed through its
        // atomics, alive as long as `self`.
        unsafe { &*self.at(lines(self.members)).cast::<Bells>() }
    }

    /// Where the entry of `member` for meeting `sequence` is.
    fn entry(&self, member: usize, sequence: u32) -> usize {
        let entry = member * STRIDE + (sequence % ENTRIES) as usize;
        (2 + 2 * entry) * LINE
    }

    fn slot_data(&self, member: usize) -> *mut u8 {
        self.at(slots(self.members) + member * SLOT)
    }

    fn result_data(&self) -> *mut u8 {
        self.at(slots(self.members) + self.members * SLOT)
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

    fn bell(&self, offset: usize) -> &Bell {
        // SAFETY: inside the block, aligned, zero when made, only ever accessed through its
        // atomics, alive as long as `self`.
        unsafe { &*self.at(offset).cast::<Bell>() }
    }

    /// What members ring when the leader sleeps.
    fn leaders_bell(&self) -> &Bell {
        self.bell(LINE)
    }

    /// Members asleep on the flag of an entry.
    fn watchers(&self) -> &AtomicU32 {
        self.flag(LINE + 8)
    }

    /// What the last one who comes to a flat meeting rings for those who sleep there.
    fn members_bell(&self) -> &Bell {
        self.bell(LINE + 16)
    }

    fn entry_flag(&self, member: usize, sequence: u32) -> &AtomicU32 {
        self.flag(self.entry(member, sequence))
    }

    fn arrived(&self, member: usize, sequence: u32) -> *mut Arrived {
        self.at(self.entry(member, sequence) + HEADER).cast()
    }

    /// The words of [`Block::arrived`].
    fn words(&self, member: usize, sequence: u32) -> [&AtomicU64; 4] {
        let first: *mut u64 = self.arrived(member, sequence).cast();
        // SAFETY: inside the entry, aligned, alive as long as `self`. Accesses that are not atomic are
        // in order with those that are, see the top of this file.
        std::array::from_fn(|k| unsafe { AtomicU64::from_ptr(first.wrapping_add(k)) })
    }

    fn place(&self, member: usize, sequence: u32) -> *mut Place {
        self.at(self.entry(member, sequence) + LINE).cast()
    }

    fn released(&self) -> *mut Released {
        self.at(HEADER).cast()
    }

    /// Where a contribution of `len` bytes lies.
    fn contribution_place(&self, member: usize, sequence: u32, len: usize) -> *mut u8 {
        if len <= INLINE {
            self.at(self.entry(member, sequence) + INLINE_AT)
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

    /// A member's step 1. At most [`SLOT`] bytes, or [`INLINE`] if it does not wait for the release.
    pub(super) fn arrive(
        &self,
        sequence: u32,
        signature: &Signature,
        (way, history): (Way, History),
        data: &[u8],
    ) -> Arrived {
        assert!(data.len() <= if way == Way::Led { SLOT } else { INLINE });
        assert!(way != Way::One || !Self::all_wait_in(sequence));
        let arrived = Arrived {
            len: u32::try_from(data.len()).unwrap_or(0),
            call: signature.call as u16,
            way: way as u16,
            detail: signature.detail,
            history: history.short(),
            count: signature.count,
            element: signature.element,
        };
        // After I have seen all others in a later meeting than what the entry was for, or its release;
        // see `agree`.
        fence(Ordering::Release);
        let words: [u64; 4] = bytemuck::cast(arrived);
        for (to, word) in self.words(self.me, sequence).into_iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        let site = signature
            .site
            .map_or(0, |site| std::ptr::from_ref(site).addr());
        let known = &self.sites[(sequence % ENTRIES) as usize];
        if known.load(Ordering::Relaxed) != site {
            known.store(site, Ordering::Relaxed);
            // SAFETY: my entry, which nobody reads before the flag below: all have come to a meeting
            // that is later than what the entry was for. What is there already need not be written again.
            unsafe { self.place(self.me, sequence).write(signature.place()) };
        }
        let to = self.contribution_place(self.me, sequence, data.len());
        // SAFETY: the place holds so many bytes, and is mine to write until the flag is set: a slot
        // is read only in meetings that are led.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        let flag = self.entry_flag(self.me, sequence);
        // SeqCst: the flag must be visible before the sleepers are looked for.
        flag.store(sequence, Ordering::SeqCst);
        self.leaders_bell().ring();
        if self.watchers().load(Ordering::SeqCst) != 0 {
            wake_all(flag);
        }
        if self.members_bell().is_wanted() && self.all_have_come(sequence) {
            self.members_bell().ring();
        }
        arrived
    }

    /// The meeting after which all entries are kept, when all members have come to `sequence`.
    pub(super) fn kept_since(sequence: u32) -> u32 {
        let before = sequence.wrapping_sub(1);
        // Members may have gone on to the next meeting that all wait in.
        (before - before % WAIT_EVERY).wrapping_sub(ENTRIES - WAIT_EVERY)
    }

    /// The later of two meetings.
    pub(super) fn later(one: u32, other: u32) -> u32 {
        if is_over(one, other) { other } else { one }
    }

    /// Whether all must wait in meeting `sequence`.
    pub(super) fn all_wait_in(sequence: u32) -> bool {
        sequence.is_multiple_of(WAIT_EVERY)
    }

    /// Whether meeting `sequence`, to which members contribute `len` bytes at most, may be flat.
    pub(super) fn may_be_flat(&self, sequence: u32, len: usize) -> bool {
        self.members <= FLAT && len <= INLINE && !sequence.is_multiple_of(RELEASE_EVERY)
    }

    /// Sleeps until meeting `sequence`, to which this rank has come, may have gone on: until it is
    /// released or, on the leader, another member comes. For `nap` at most.
    pub(super) fn sleep_in(&self, sequence: u32, nap: Duration) {
        let flag = self.release_flag();
        if self.me == 0 {
            self.leaders_bell().sleep(nap, || self.goes_on(sequence));
            return;
        }
        self.sleepers().fetch_add(1, Ordering::SeqCst);
        let seen = flag.load(Ordering::SeqCst);
        if !is_over(sequence, seen) {
            sleep_on(flag, seen, nap);
        }
        self.sleepers().fetch_sub(1, Ordering::SeqCst);
    }

    /// The leader's step 2, first half: waits until every member has arrived.
    /// `help` lets messages of this rank go on, which others may wait for before they come; whether
    /// there are any. `stuck` says whether a member that has not come cannot come.
    pub(super) fn wait_members(
        &self,
        sequence: u32,
        (limits, mut patience): (&Limits, Patience<'_>),
        help: impl Fn() -> Result<bool>,
        stuck: impl Fn(usize) -> Result<()>,
    ) -> Result<()> {
        for member in 1..self.members {
            let flag = self.entry_flag(member, sequence);
            while flag.load(Ordering::Acquire) != sequence {
                let nap = patience.pause(limits)?;
                let helped = help()?;
                if let Some(nap) = nap {
                    stuck(member)?;
                    let nap = nap_beside(helped, nap);
                    let still = || flag.load(Ordering::SeqCst) != sequence;
                    self.leaders_bell().sleep(nap, still);
                }
            }
        }
        Ok(())
    }

    /// A member's step 2 in a flat meeting: waits until all have come, or it is known how the meeting
    /// ends. `help` as above.
    pub(super) fn wait_others(
        &self,
        sequence: u32,
        (limits, mut patience): (&Limits, Patience<'_>),
        help: impl Fn() -> Result<bool>,
    ) -> Result<()> {
        let release = self.release_flag();
        for member in (0..self.members).filter(|&member| member != self.me) {
            let flag = self.entry_flag(member, sequence);
            while flag.load(Ordering::Acquire) != sequence {
                if is_over(sequence, release.load(Ordering::Acquire)) {
                    return Ok(());
                }
                let nap = patience.pause(limits)?;
                let helped = help()?;
                if let Some(nap) = nap {
                    let nap = nap_beside(helped, nap);
                    self.members_bell().sleep(nap, || self.goes_on(sequence));
                }
            }
        }
        Ok(())
    }

    /// In a meeting that is flat for this rank, and to which all have come: whether all agree with `mine`
    /// on what they call, and the leader has not said anything else. If so, it is over, and what members
    /// contribute lasts until this rank comes to the next meeting.
    pub(super) fn agree(&self, sequence: u32, mine: Arrived) -> bool {
        let agrees = |member| {
            let words = self.words(member, sequence);
            let words = words.map(|word| word.load(Ordering::Relaxed));
            let said = Arrived {
                // No part of what they agree on.
                len: mine.len,
                ..bytemuck::cast(words)
            };
            said == mine
        };
        let others = |&member: &usize| member != self.me;
        let same = (0..self.members).filter(others).all(agrees);
        // If any of that was written for a later meeting already, the release that has let members
        // go there is seen here.
        fence(Ordering::Acquire);
        same && !is_over(sequence, self.release_flag().load(Ordering::Relaxed))
    }

    /// In a one-way meeting: waits until the root has come. `help` and `stuck` as above.
    pub(super) fn wait_root(
        &self,
        root: usize,
        sequence: u32,
        (limits, mut patience): (&Limits, Patience<'_>),
        help: impl Fn() -> Result<bool>,
        stuck: impl Fn(usize) -> Result<()>,
    ) -> Result<()> {
        let flag = self.entry_flag(root, sequence);
        loop {
            let seen = flag.load(Ordering::Acquire);
            if seen == sequence {
                return Ok(());
            }
            let nap = patience.pause(limits)?;
            let helped = help()?;
            if let Some(nap) = nap {
                stuck(root)?;
                let nap = nap_beside(helped, nap);
                self.watchers().fetch_add(1, Ordering::SeqCst);
                // Sleeps only if the flag is still as seen.
                sleep_on(flag, seen, nap);
                self.watchers().fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Whether `member` has been to meeting `sequence`, as far as its entry tells: one of the last
    /// [`ENTRIES`] that this rank has come to.
    pub(super) fn has_come(&self, member: usize, sequence: u32) -> bool {
        // SeqCst: of two who come last one finds the other, and who goes to sleep both.
        self.entry_flag(member, sequence).load(Ordering::SeqCst) == sequence
    }

    fn all_have_come(&self, sequence: u32) -> bool {
        self.absent(sequence).next().is_none()
    }

    /// Whether there is something to wait for in meeting `sequence`: a member, and no release.
    fn goes_on(&self, sequence: u32) -> bool {
        let released = self.release_flag().load(Ordering::SeqCst);
        !is_over(sequence, released) && !self.all_have_come(sequence)
    }

    /// Members that have not arrived at meeting `sequence`.
    pub(super) fn absent(&self, sequence: u32) -> impl Iterator<Item = usize> {
        (0..self.members).filter(move |&member| !self.has_come(member, sequence))
    }

    /// What `member` calls in meeting `sequence`, to which it has [come](Block::has_come).
    pub(super) fn signature(&self, member: usize, sequence: u32) -> Option<Signature> {
        // SAFETY: the member has arrived, so it does not write until this rank, too, has come to a
        // later meeting that all wait in.
        unsafe { self.arrived(member, sequence).read() }.signature()
    }

    /// What `member` has called before it came there to wait.
    pub(super) fn history(&self, member: usize, sequence: u32) -> u32 {
        // SAFETY: as in `signature`.
        unsafe { self.arrived(member, sequence).read() }.history
    }

    /// Whether `member` waits there for all.
    pub(super) fn waits(&self, member: usize, sequence: u32) -> bool {
        // SAFETY: as in `signature`.
        unsafe { self.arrived(member, sequence).read() }.way != Way::One as u16
    }

    /// Where `member` calls it.
    pub(super) fn place_of(&self, member: usize, sequence: u32) -> Place {
        // SAFETY: as in `signature`.
        unsafe { self.place(member, sequence).read() }
    }

    /// What a member that is absent from meeting `sequence` called last, and where, if that was one
    /// of the meetings just before.
    pub(super) fn last_seen(&self, member: usize, sequence: u32) -> Option<(Signature, Place)> {
        let before = (1..ENTRIES).map(|back| sequence.wrapping_sub(back));
        let last = before
            .take_while(|&last| last != 0)
            .find(|&last| self.has_come(member, last))?;
        // It may write just now: what is copied is then a mix of old and new, of words and text.
        let mut lines = [0_u8; 2 * LINE];
        let from = self.at(self.entry(member, last));
        // SAFETY: the entry's two lines are in the block, and as long; the copy is one that may
        // meet a writer.
        unsafe { element::copy(lines.as_mut_ptr(), from, lines.len()) };
        let arrived = HEADER..HEADER + size_of::<Arrived>();
        let arrived: Arrived = bytemuck::pod_read_unaligned(&lines[arrived]);
        let place = bytemuck::pod_read_unaligned(&lines[LINE..LINE + size_of::<Place>()]);
        Some((arrived.signature()?, place))
    }

    /// What `member` contributes to meeting `sequence`. To be used by the leader, between waiting
    /// and release, in a one-way meeting of what the root contributes, and in a flat one by all.
    pub(super) fn contribution(&self, member: usize, sequence: u32) -> &[u8] {
        // SAFETY: the member has arrived, so it does not write until the release, or, in another
        // meeting, until this rank has come to a later one that all wait in.
        let len = unsafe { self.arrived(member, sequence).read() }.len as usize;
        let from = self.contribution_place(member, sequence, len);
        // SAFETY: initialised bytes of the block that nobody writes until then; at most a slot of
        // them.
        unsafe { std::slice::from_raw_parts(from, len.min(SLOT)) }
    }

    /// Whether all members know how meeting `told` ended, the last one that the leader has waited in.
    /// To be used by the leader.
    pub(super) fn all_have_read(&self, told: u32) -> bool {
        let next = told.wrapping_add(1);
        (1..self.members).all(|member| self.has_come(member, next))
    }

    /// The leader's step 2, second half, when all have read the last release. At most [`RESULT`]
    /// bytes.
    pub(super) fn release(&self, sequence: u32, verdict: Verdict, data: &[u8]) {
        assert!(data.len() <= RESULT);
        let released = Released {
            verdict: verdict as u32,
            len: u32::try_from(data.len()).unwrap_or(0),
        };
        // SAFETY: the leader's line; members read it only after the flag below.
        unsafe { self.released().write(released) };
        let to = self.result_place(data.len());
        // SAFETY: the place holds so many bytes, and all members have read the last result: they have
        // come to this meeting or at least to the one after that.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        // SeqCst: visible before the sleepers are counted, see `wait_release`.
        self.release_flag().store(sequence, Ordering::SeqCst);
        if self.sleepers().load(Ordering::SeqCst) != 0 {
            wake_all(self.release_flag());
        }
        self.members_bell().ring();
        // Another thread, which waits for this meeting, too.
        self.leaders_bell().ring();
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
            if is_over(sequence, seen) {
                break;
            }
            let nap = patience.pause(limits)?;
            let helped = help()?;
            if let Some(nap) = nap {
                let nap = nap_beside(helped, nap);
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
        let seen = self.release_flag().load(Ordering::Acquire);
        is_over(sequence, seen).then(|| self.read_release(read))
    }

    /// Reads the result of a meeting that has been released.
    fn read_release<R>(&self, read: impl FnOnce(Verdict, &[u8]) -> R) -> R {
        // SAFETY: the leader does not write until I arrive at the meeting after the released one.
        let released = unsafe { self.released().read() };
        let len = released.len as usize;
        let from = self.result_place(len);
        // SAFETY: initialised bytes of the block, not written until then.
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
