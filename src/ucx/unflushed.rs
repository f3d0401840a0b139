//! Which bytes at a peer have been written but not flushed: what keeps a rank's operations on one
//! element in program order.
//!
//! UCX orders nothing by itself, and its fence costs a round trip for each operation where a
//! worker has several lanes (50 µs over tcp on UCX 1.22, with two network devices). So an
//! operation that touches bytes of an earlier put waits for that put, and no other does.

#![expect(unsafe_code, reason = "sends keys between threads")]

use std::collections::HashSet;
use std::ops::Range;
use std::ptr::NonNull;
use ucx_sys::ucp_rkey;

/// Puts of so many elements are remembered element by element, larger ones by their range.
const FEW: usize = 16;
/// So many are remembered; then it is time for a flush, amortised over as many puts.
const MOST_ELEMENTS: usize = 8192;
const MOST_RANGES: usize = 64;

/// A key to destroy once a flush has ended.
#[derive(Debug)]
pub(super) struct DroppedKey(pub(super) NonNull<ucp_rkey>);

// SAFETY: a key may be destroyed from any thread, with its worker locked.
unsafe impl Send for DroppedKey {}

/// Elements of one size at a peer, one after another.
#[derive(Clone, Debug)]
pub(super) struct Elements {
    pub(super) start: u64,
    pub(super) count: usize,
    pub(super) size: usize,
}

impl Elements {
    fn bytes(&self) -> Range<u64> {
        self.start..self.start + (self.count * self.size) as u64
    }

    fn addresses(&self) -> impl Iterator<Item = u64> {
        self.bytes().step_by(self.size)
    }
}

/// What a flush of one endpoint has to wait for: its puts, by address at the peer, operations that
/// nobody waits for any more, and keys that were dropped while UCX may still use them.
#[derive(Debug, Default)]
pub(super) struct Unflushed {
    since: Writes,
    /// Those that a flush under way takes care of.
    flushing: Writes,
}

#[derive(Debug, Default)]
struct Writes {
    /// A get or an atomic whose wait ended early may be under way.
    abandoned: bool,
    keys: Vec<DroppedKey>,
    /// Addresses of elements. All that are put to one place are of one size, so two puts that
    /// overlap have an address in common.
    elements: HashSet<u64>,
    ranges: Vec<Range<u64>>,
}

impl Unflushed {
    pub(super) fn is_empty(&self) -> bool {
        self.since.is_empty() && self.flushing.is_empty()
    }

    /// Whether so much is remembered that it should be flushed.
    pub(super) fn is_full(&self) -> bool {
        self.since.elements.len() >= MOST_ELEMENTS || self.since.ranges.len() >= MOST_RANGES
    }

    pub(super) fn touches(&self, elements: &Elements) -> bool {
        self.since.touches(elements) || self.flushing.touches(elements)
    }

    pub(super) fn add(&mut self, elements: &Elements) {
        self.since.add(elements);
    }

    /// A get or an atomic goes on without anybody to wait for it.
    pub(super) fn abandon(&mut self) {
        self.since.abandoned = true;
    }

    /// A key was dropped that operations under way may use.
    pub(super) fn keep(&mut self, key: NonNull<ucp_rkey>) {
        self.since.keys.push(DroppedKey(key));
    }

    /// A flush begins. It also takes care of what one that has not ended would.
    pub(super) fn begin(&mut self) {
        std::mem::swap(&mut self.since, &mut self.flushing);
        self.flushing.absorb(&mut self.since);
    }

    /// The flush has ended, well or not. Returns keys that nothing uses any more.
    #[must_use]
    pub(super) fn end(&mut self, flushed: bool) -> Vec<DroppedKey> {
        if !flushed {
            self.since.absorb(&mut self.flushing);
        }
        self.flushing.elements.clear();
        self.flushing.ranges.clear();
        self.flushing.abandoned = false;
        std::mem::take(&mut self.flushing.keys)
    }
}

impl Writes {
    fn absorb(&mut self, other: &mut Self) {
        self.abandoned |= std::mem::take(&mut other.abandoned);
        self.keys.append(&mut other.keys);
        self.elements.extend(other.elements.drain());
        self.ranges.append(&mut other.ranges);
    }

    fn is_empty(&self) -> bool {
        self.elements.is_empty()
            && self.ranges.is_empty()
            && self.keys.is_empty()
            && !self.abandoned
    }

    fn touches(&self, elements: &Elements) -> bool {
        let bytes = elements.bytes();
        let meets = |other: &Range<u64>| other.start < bytes.end && bytes.start < other.end;
        if self.ranges.iter().any(meets) {
            return true;
        }
        if elements.count <= FEW {
            let mut addresses = elements.addresses();
            return addresses.any(|address| self.elements.contains(&address));
        }
        self.elements.iter().any(|address| bytes.contains(address))
    }

    fn add(&mut self, elements: &Elements) {
        if elements.count > FEW {
            self.ranges.push(elements.bytes());
        } else {
            self.elements.extend(elements.addresses());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(start: u64, count: usize) -> Elements {
        Elements {
            start,
            count,
            size: 8,
        }
    }

    #[test]
    fn a_write_is_remembered_until_its_flush_has_ended_well() {
        let mut unflushed = Unflushed::default();
        unflushed.add(&words(1000, 1));
        assert!(unflushed.touches(&words(1000, 1)) && !unflushed.touches(&words(1008, 1)));
        unflushed.begin();
        unflushed.add(&words(5000, 500));
        assert!(unflushed.touches(&words(1000, 1)), "under way");
        assert!(unflushed.end(false).is_empty());
        assert!(unflushed.touches(&words(1000, 1)), "failed");
        unflushed.abandon();
        unflushed.begin();
        assert!(!unflushed.is_empty());
        assert!(unflushed.end(true).is_empty());
        assert!(unflushed.is_empty());
    }

    proptest! {
        /// Neither misses an overlap nor finds one where there is none.
        #[test]
        fn overlaps_are_found(
            writes in prop::collection::vec((0_u64..3000, 1_usize..50), 1..30),
            start in 0_u64..3000, count in 1_usize..50,
        ) {
            let mut unflushed = Unflushed::default();
            let mut overlaps = false;
            for (at, len) in writes {
                unflushed.add(&words(at * 8, len));
                overlaps |= at < start + count as u64 && start < at + len as u64;
            }
            prop_assert_eq!(overlaps, unflushed.touches(&words(start * 8, count)));
        }
    }
}
