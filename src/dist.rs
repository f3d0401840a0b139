//! Which rank holds an index, and where: integers only, imports nothing.

use std::ops::Range;

/// Block distribution: rank `r` of `p` holds the indices `ceil(r·n/p) .. ceil((r+1)·n/p)`.
///
/// Shards are in rank order, cover `0..n`, and differ in length by at most one. The owner of
/// index `i` is `floor(i·p/n)`.
///
/// # Without a division
/// With `m = ceil(p·2^s/n)`, `i·m/2^s` is larger than `i·p/n` by less than `i/2^s`. The fraction
/// of `i·p/n` is at most `1 − 1/n`, so `floor(i·m/2^s)` is the owner if `i·n <= 2^s`. `s` is the
/// largest number for which `m` fits 64 bits: that holds for all `i` while `n·p < 2^63` and
/// `n > p`, and the owner is the upper half of a product, shifted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    len: usize,
    ranks: usize,
    /// `m`, if [`Block::owner`] is right for every index; else unused.
    reciprocal: u64,
    /// `s − 64`.
    shift: u32,
    /// Whether it is.
    fast: bool,
}

impl Block {
    pub(crate) fn new(len: usize, ranks: usize) -> Self {
        assert!(ranks > 0, "a distribution needs a rank");
        let (n, p) = (len as u128, ranks as u128);
        let mut this = Self {
            len,
            ranks,
            reciprocal: 0,
            shift: 0,
            fast: false,
        };
        // p·2^s must fit 128 bits, and so must 2^s.
        let largest = 127_u32.saturating_sub(usize::BITS - ranks.leading_zeros());
        for s in (64..=largest).rev() {
            let m = (p << s).div_ceil(n.max(1));
            if let Ok(reciprocal) = u64::try_from(m) {
                this.reciprocal = reciprocal;
                this.shift = s - 64;
                this.fast = n.checked_mul(n).is_some_and(|square| square <= 1 << s);
                break;
            }
        }
        this
    }

    /// The indices below this have their owner by [`Block::owner`]: all or none.
    pub(crate) fn fast_len(&self) -> usize {
        if self.fast { self.len } else { 0 }
    }

    /// The rank that holds `index`, which must be below [`Block::fast_len`].
    #[inline]
    pub(crate) fn owner(&self, index: usize) -> usize {
        debug_assert!(index < self.fast_len());
        let product = index as u128 * u128::from(self.reciprocal);
        // A rank, so it fits.
        ((product >> 64) as u64 >> (self.shift & 63)) as usize
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn ranks(&self) -> usize {
        self.ranks
    }

    /// First index of `rank`; `len` for `rank == ranks`.
    fn start(&self, rank: usize) -> usize {
        if let Some(product) = rank.checked_mul(self.len) {
            return product.div_ceil(self.ranks);
        }
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
        let rank = if self.fast {
            self.owner(index)
        } else if let Some(product) = index.checked_mul(self.ranks) {
            product / self.len
        } else {
            let owner = index as u128 * self.ranks as u128 / self.len as u128;
            usize::try_from(owner).unwrap_or(0)
        };
        (rank, index - self.start(rank))
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
                if dist.fast_len() > 0 {
                    assert_eq!(dist.owner(index), rank, "{len}/{ranks}: {index}");
                }
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
            let slowly = index as u128 * ranks as u128 / len as u128;
            prop_assert_eq!(rank as u128, slowly);
            prop_assert_eq!(dist.fast_len() > 0, len > ranks);
        }

        /// At the borders of shards, where rounding would show.
        #[test]
        fn borders_of_large_shapes(len in 1_usize..(1 << 48), ranks in 1_usize..10_000, pick in any::<u64>()) {
            let dist = Block::new(len, ranks);
            let rank = usize::try_from(pick).unwrap() % ranks;
            let range = dist.range_of(rank);
            for index in [range.start, range.end.saturating_sub(1)] {
                if range.contains(&index) {
                    prop_assert_eq!(dist.locate(index), (rank, index - range.start));
                }
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
