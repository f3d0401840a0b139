//! Which rank holds an index, and where: integers only, imports nothing.

use std::ops::Range;

/// Block distribution: rank `r` of `p` holds the indices `ceil(r·n/p) .. ceil((r+1)·n/p)`.
///
/// Shards are in rank order, cover `0..n`, and differ in length by at most one. The owner of
/// index `i` is `floor(i·p/n)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    len: usize,
    ranks: usize,
    /// `ceil(ranks · 2^shift / len)`: see [`Block::guess`].
    reciprocal: u64,
    shift: u32,
}

impl Block {
    pub(crate) fn new(len: usize, ranks: usize) -> Self {
        assert!(ranks > 0, "a distribution needs a rank");
        // The largest shift for which the reciprocal fits 64 bits. 63 at most, so that the
        // 128-bit shift in `guess` is one instruction.
        let mut shift = 63;
        let reciprocal = loop {
            let scaled = ((ranks as u128) << shift).div_ceil(len.max(1) as u128);
            if let Ok(fits) = u64::try_from(scaled) {
                break fits;
            }
            shift -= 1;
        };
        Self {
            len,
            ranks,
            reciprocal,
            shift,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn ranks(&self) -> usize {
        self.ranks
    }

    /// First index of `rank`; `len` for `rank == ranks`.
    fn start(&self, rank: usize) -> usize {
        let start = (rank as u128 * self.len as u128).div_ceil(self.ranks as u128);
        // At most `len`, as rank <= ranks.
        usize::try_from(start).unwrap_or(self.len)
    }

    /// The indices that `rank` holds: may be empty.
    pub(crate) fn range_of(&self, rank: usize) -> Range<usize> {
        self.start(rank)..self.start(rank + 1)
    }

    /// The rank that holds `index`, and the offset in its shard. `index` must be below `len`.
    pub(crate) fn locate(&self, index: usize) -> (usize, usize) {
        debug_assert!(index < self.len);
        let owner = index as u128 * self.ranks as u128 / self.len as u128;
        let rank = usize::try_from(owner).unwrap_or(0);
        (rank, index - self.start(rank))
    }

    /// The owner of `index` or the rank after it, without a division: one multiplication and
    /// one shift. Callers compare with the shard's range and fall back to [`Block::locate`].
    ///
    /// The rounded-up reciprocal makes `index·reciprocal/2^shift` too large by less than
    /// `index/2^shift`. The fraction of `index·ranks/len` is at most `1 − 1/len`, so the result
    /// is exact while `index·len < 2^shift`, and at most one too large while `index < 2^shift`.
    #[inline]
    pub(crate) fn guess(&self, index: usize) -> usize {
        let product = index as u128 * u128::from(self.reciprocal);
        // A rank; anything larger is caught by the caller's bounds check.
        (product >> (self.shift & 63)) as usize
    }

    /// The parts of `range` by owner, in order: `(rank, indices)`; empty shards do not appear.
    pub(crate) fn parts(&self, range: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
        let this = *self;
        let mut next = range.start;
        std::iter::from_fn(move || {
            if next >= range.end {
                return None;
            }
            let (rank, _) = this.locate(next);
            let part = next..range.end.min(this.start(rank + 1));
            next = part.end;
            Some((rank, part))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check_all(len: usize, ranks: usize) {
        let dist = Block::new(len, ranks);
        let mut next = 0;
        let (mut shortest, mut longest) = (usize::MAX, 0);
        for rank in 0..ranks {
            let range = dist.range_of(rank);
            assert_eq!(range.start, next, "in order, no gap: {len}/{ranks}");
            next = range.end;
            shortest = shortest.min(range.len());
            longest = longest.max(range.len());
            for (offset, index) in range.enumerate() {
                assert_eq!(dist.locate(index), (rank, offset));
                let guess = dist.guess(index);
                assert_eq!(guess, rank, "{len}/{ranks}: {index}");
            }
        }
        assert_eq!(next, len);
        assert!(longest - shortest <= 1);
    }

    #[test]
    fn every_small_shape_is_a_balanced_bijection() {
        for len in 0..130 {
            for ranks in 1..20 {
                check_all(len, ranks);
            }
        }
    }

    proptest! {
        #[test]
        fn large_shapes_are_bijections(
            len in 1_usize..(1 << 48), ranks in 1_usize..5000, pick in any::<u64>()
        ) {
            let dist = Block::new(len, ranks);
            let index = usize::try_from(pick).unwrap_or(0) % len;
            let (rank, offset) = dist.locate(index);
            let range = dist.range_of(rank);
            prop_assert!(range.contains(&index));
            prop_assert_eq!(range.start + offset, index);
            let guess = dist.guess(index);
            prop_assert!(guess == rank || guess == rank + 1);
            if let Some(true) = index.checked_mul(len).map(|p| p < 1 << 60) {
                prop_assert_eq!(guess, rank);
            }
        }

        #[test]
        fn parts_tile_a_range(len in 0_usize..300, ranks in 1_usize..12, a in 0_usize..301, b in 0_usize..301) {
            let dist = Block::new(len, ranks);
            let (a, b) = (a.min(len), b.min(len));
            let range = a.min(b)..a.max(b);
            let mut next = range.start;
            for (rank, part) in dist.parts(range.clone()) {
                prop_assert_eq!(part.start, next);
                prop_assert!(!part.is_empty());
                let owned = dist.range_of(rank);
                prop_assert!(owned.start <= part.start && part.end <= owned.end);
                next = part.end;
            }
            prop_assert_eq!(next, range.end.max(range.start));
        }
    }
}
