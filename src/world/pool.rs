//! Memory for small arrays: parts of segments that many of them share.
//!
//! A segment of its own would cost each rank a page and a descriptor or a System V segment for
//! eight bytes. All ranks take and give back parts in the same order, in collectives, so each of
//! them finds the same place by itself, at the same offset on every rank.

use super::segment::Segment;
use crate::ucx::MemoryHandle;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Arrays whose ranks all need at most so many bytes are pooled: above, less than a fifth of a
/// segment of whole pages is lost.
pub(crate) const SMALL: usize = 16 << 10;
/// Bytes of a shared segment, for each rank.
pub(crate) const SLAB: usize = 256 << 10;
/// Parts begin at cache lines, so that arrays do not share any.
const LINE: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Pool(Mutex<Vec<Slab>>);

#[derive(Debug)]
struct Slab {
    segment: Arc<Segment>,
    /// Length by offset, in bytes; no two that touch.
    free: BTreeMap<usize, usize>,
}

/// A part of a shared segment: the same one on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    slab: usize,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, Vec<Slab>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A part of at least `bytes` bytes, in whole cache lines, and its segment; None if no segment
    /// has so much. In the same order on all ranks.
    pub(crate) fn take(&self, bytes: usize) -> Option<(Part, Arc<Segment>)> {
        let len = bytes.next_multiple_of(LINE);
        let mut slabs = self.lock();
        for (number, slab) in slabs.iter_mut().enumerate() {
            let Some((&offset, &room)) = slab.free.iter().find(|(_, room)| **room >= len) else {
                continue;
            };
            slab.free.remove(&offset);
            if room > len {
                slab.free.insert(offset + len, room - len);
            }
            let part = Part {
                slab: number,
                offset,
                len,
            };
            return Some((part, slab.segment.clone()));
        }
        None
    }

    /// A segment of [`SLAB`] bytes on each rank to take parts of.
    pub(crate) fn add(&self, segment: Segment) {
        self.lock().push(Slab {
            segment: Arc::new(segment),
            free: BTreeMap::from([(0, SLAB)]),
        });
    }

    /// The memory of all segments, when nothing of it is used any more.
    pub(super) fn take_all(&self) -> Vec<MemoryHandle> {
        let slabs = std::mem::take(&mut *self.lock());
        slabs
            .iter()
            .map(|slab| slab.segment.memory().clone())
            .collect()
    }

    /// Takes a part back that no rank uses any more. In the same order on all ranks.
    pub(crate) fn give_back(&self, part: Part) {
        let mut slabs = self.lock();
        let Some(slab) = slabs.get_mut(part.slab) else {
            return;
        };
        let (mut offset, mut len) = (part.offset, part.len);
        if let Some((&before, &room)) = slab.free.range(..offset).next_back()
            && before + room == offset
        {
            slab.free.remove(&before);
            (offset, len) = (before, room + len);
        }
        if let Some(room) = slab.free.remove(&(offset + len)) {
            len += room;
        }
        slab.free.insert(offset, len);
    }
}
