//! The stage: shared memory in which the ranks of a node show each other what they have for a
//! large collective, a *window* at a time.
//!
//! Each rank has a place of two halves, used in turns. A rank writes a window to its half, all
//! meet, each takes from the others' halves what it wants, and goes on to the other half. A half
//! is written again only after the next meeting, to which everybody comes with what he wanted.
//! Between two meetings a byte has one writer or any number of readers, hence the plain accesses
//! do not race.

#![expect(unsafe_code, reason = "shared memory between processes")]

use super::bells::Bell;
use super::node::LINE;
use super::segment::Segment;
use super::{Call, Core, Memory, meet};
use crate::error::{Error, ErrorKind, Result};
use crate::ucx::MemoryHandle;
use crate::wait::{Limits, Patience, nap_beside};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a half: with those of another rank they fit into a second-level cache.
const WINDOW: usize = 256 << 10;
/// Where there is little room.
const SMALL_WINDOW: usize = 16 << 10;
/// A rank's place begins with a page for the meetings.
const PAGE: usize = 4096;

/// Places of all ranks of this rank's node.
///
/// Invariant: `bases` point to `PAGE + 2 * window` bytes each of shared memory that `segment`
/// holds, aligned to pages, zero when made.
#[derive(Debug)]
pub(super) struct Stage {
    /// By place in the node.
    bases: Vec<NonNull<u8>>,
    me: usize,
    window: usize,
    /// Windows shown so far; which half is next is its lowest bit. Changed in the team's turn.
    shown: AtomicU32,
    segment: Segment,
}

// SAFETY: the memory is shared between processes already; see the protocol above.
unsafe impl Send for Stage {}
// SAFETY: used by one thread at a time, which has the team's turn.
unsafe impl Sync for Stage {}

impl Stage {
    /// Memory for all ranks of the team. Collective; the caller has the turn, and all ranks are
    /// known to come.
    ///
    /// # Errors
    /// [`ErrorKind::NoRoom`] on all ranks if one has too little room; else as a barrier.
    #[track_caller]
    pub(super) fn allocate(core: &Core) -> Result<Self> {
        match Self::with_window(core, WINDOW) {
            Err(error) if error.kind() == ErrorKind::NoRoom => {
                Self::with_window(core, SMALL_WINDOW)
            }
            made => made,
        }
    }

    #[track_caller]
    fn with_window(core: &Core, window: usize) -> Result<Self> {
        let words = (PAGE + 2 * window) / 8;
        let what = Memory {
            call: Call::Stage,
            len: words * core.size,
            layout: 0,
            counts: &|_| words,
        };
        meet::<u64>(core, &what, true)?;
        let segment = Segment::allocate::<u64>(core, &what, |_| (), || ())?;
        let base_of = |&rank: &usize| {
            let base = if rank == core.rank {
                NonNull::new(segment.memory().as_ptr())
            } else {
                segment.key(core, rank)?.as_ptr()
            };
            base.filter(|base| base.addr().get().is_multiple_of(PAGE))
                .ok_or_else(|| not_mapped(rank))
        };
        let bases = core.nodes.mine().iter().map(base_of).collect();
        let bases: Result<Vec<_>> = bases;
        // Ranks that could not map it must not leave the others alone.
        let all: Vec<bool> = core.gather(&what.signature::<u64>(2), &bases.is_ok())?;
        if let Some(rank) = all.iter().position(|mapped| !mapped) {
            let error = not_mapped(rank);
            super::unmap(segment.into_memory()); // Refused by all ranks alike.
            return Err(error);
        }
        Ok(Self {
            bases: bases?,
            me: core.nodes.my_place(),
            window,
            shown: AtomicU32::new(0),
            segment,
        })
    }

    /// This rank's own memory.
    pub(super) fn memory(&self) -> &MemoryHandle {
        self.segment.memory()
    }

    /// Most bytes of a window.
    pub(super) fn window(&self) -> usize {
        self.window
    }

    pub(super) fn members(&self) -> usize {
        self.bases.len()
    }

    fn half(&self, member: usize, half: u32) -> *mut u8 {
        let offset = PAGE + (half as usize & 1) * self.window;
        // SAFETY: inside the member's place.
        unsafe { self.bases[member].as_ptr().add(offset) }
    }

    /// The window that is next.
    pub(super) fn next(&self) -> Window<'_> {
        Window {
            stage: self,
            half: self.shown.load(Ordering::Relaxed),
        }
    }

    /// Goes on to the other half.
    pub(super) fn turn_over(&self) {
        self.shown.fetch_add(1, Ordering::Relaxed);
    }

    /// How many meetings a member has come to.
    fn come(&self, member: usize) -> &AtomicU32 {
        // SAFETY: in the place's first page, aligned, and accessed as an atomic only.
        unsafe { AtomicU32::from_ptr(self.bases[member].as_ptr().cast()) }
    }

    /// What the last one who comes to a meeting rings.
    fn bell(&self) -> &Bell {
        let bell = self.bases[0].as_ptr().wrapping_add(LINE).cast();
        // SAFETY: in the first page of the leader's place, aligned, zero when made, and accessed
        // through its atomics only.
        unsafe { &*bell }
    }

    /// Whether a member has come to this rank's meeting: it may be in the next one already.
    fn has_come(&self, member: usize, meeting: u32) -> bool {
        // SeqCst, as in `meet`: of two who come last one finds the other, and who goes to sleep both.
        let come = self.come(member).load(Ordering::SeqCst);
        come.wrapping_sub(meeting).cast_signed() >= 0
    }

    /// All ranks of the node meet: what each wrote before, each may read afterwards.
    /// `help` lets messages of this rank go on; whether there are any.
    ///
    /// # Errors
    /// What ended the wait.
    pub(super) fn meet(
        &self,
        (limits, mut patience): (&Limits, Patience<'_>),
        help: impl Fn() -> Result<bool>,
    ) -> Result<()> {
        let mine = self.come(self.me);
        let meeting = mine.load(Ordering::Relaxed).wrapping_add(1);
        mine.store(meeting, Ordering::SeqCst);
        let all = || self.absent().next().is_none();
        if self.bell().is_wanted() && all() {
            self.bell().ring();
        }
        for member in 0..self.members() {
            while !self.has_come(member, meeting) {
                let nap = patience.pause(limits)?;
                let helped = help()?;
                if let Some(nap) = nap {
                    let nap = nap_beside(helped, nap);
                    self.bell().sleep(nap, || !all());
                }
            }
        }
        Ok(())
    }

    /// Members that have not come to the meeting that this rank waits in.
    pub(super) fn absent(&self) -> impl Iterator<Item = usize> {
        let mine = self.come(self.me).load(Ordering::Relaxed);
        (0..self.members()).filter(move |&member| !self.has_come(member, mine))
    }
}

/// One window of all members, between two meetings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window<'a> {
    stage: &'a Stage,
    half: u32,
}

impl<'a> Window<'a> {
    pub(super) fn members(&self) -> usize {
        self.stage.members()
    }

    /// What `member` shows: only as much as it has written is of any use.
    ///
    /// After a meeting; nobody writes these bytes before the next one.
    pub(super) fn of(&self, member: usize, range: Range<usize>) -> &'a [u8] {
        assert!(range.start <= range.end && range.end <= self.stage.window);
        let start = self.stage.half(member, self.half).wrapping_add(range.start);
        // SAFETY: initialised bytes inside the half, which nobody writes until the next meeting.
        unsafe { std::slice::from_raw_parts(start, range.len()) }
    }

    /// Writes to `member`'s half: to one's own, or to the part of it that is this rank's to write
    /// until the next meeting.
    pub(super) fn write(&self, member: usize, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.stage.window);
        let to = self.stage.half(member, self.half).wrapping_add(offset);
        // SAFETY: inside the half; nobody else reads or writes these bytes until the next meeting.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Writes to this rank's own half.
    pub(super) fn show(&self, offset: usize, bytes: &[u8]) {
        self.write(self.stage.me, offset, bytes);
    }

    /// The window in the other half.
    pub(super) fn other(&self) -> Self {
        Self {
            half: self.half.wrapping_add(1),
            ..*self
        }
    }
}

fn not_mapped(rank: usize) -> Error {
    Error::new(
        ErrorKind::NoRoom,
        format!("rank {rank} could not map the memory for large collectives"),
    )
    .with_peer(rank)
}
