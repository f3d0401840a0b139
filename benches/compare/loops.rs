//! The measured loops, written once and compiled for our array and for plain memory.

use pgas::{GlobalArray, Result};
use std::hint::black_box;

/// Words in a rank's shard: 64 MiB.
pub(crate) const WORDS: usize = 8 << 20;

/// What the loops do to memory; indices are below [`WORDS`].
pub(crate) trait Memory: Copy {
    fn get(&self, index: usize) -> Result<u64>;
    fn put(&self, index: usize, value: u64) -> Result<()>;
    fn flush(&self) -> Result<()>;
    fn fetch_add(&self, index: usize, value: u64) -> Result<u64>;
    fn get_into(&self, start: usize, to: &mut [u64]) -> Result<()>;
    fn get_range(&self, start: usize, count: usize) -> Result<Vec<u64>>;
    fn put_range(&self, start: usize, from: &[u64]) -> Result<()>;
}

/// One rank's shard of an array.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shard<'a> {
    pub(crate) array: &'a GlobalArray<u64>,
    pub(crate) first: usize,
}

impl Memory for Shard<'_> {
    #[inline]
    fn get(&self, index: usize) -> Result<u64> {
        self.array.get(self.first + index)
    }
    #[inline]
    fn put(&self, index: usize, value: u64) -> Result<()> {
        self.array.put(self.first + index, value)
    }
    #[inline]
    fn flush(&self) -> Result<()> {
        self.array.flush()
    }
    #[inline]
    fn fetch_add(&self, index: usize, value: u64) -> Result<u64> {
        self.array.fetch_add(self.first + index, value)
    }
    #[inline]
    fn get_into(&self, start: usize, to: &mut [u64]) -> Result<()> {
        self.array.get_into(self.first + start, to)
    }
    #[inline]
    fn get_range(&self, start: usize, count: usize) -> Result<Vec<u64>> {
        let start = self.first + start;
        self.array.get_range(start..start + count)
    }
    #[inline]
    fn put_range(&self, start: usize, from: &[u64]) -> Result<()> {
        self.array.put_range(self.first + start, from)
    }
}

/// The value of word `index` of every shard.
pub(crate) fn content(index: usize) -> u64 {
    (index as u64).wrapping_mul(GOLDEN)
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const MASK: u64 = WORDS as u64 - 1;

pub(crate) fn xorshift(mut x: u64) -> u64 {
    x ^= x << 13;
    x ^= x >> 7;
    x ^ x << 17
}

/// Random indices that do not depend on what was read: the gets may overlap.
#[inline(never)]
pub(crate) fn get_random<M: Memory>(memory: M, n: usize, mut x: u64) -> Result<u64> {
    let mut sum = 0_u64;
    for _ in 0..n {
        x = xorshift(x);
        sum = sum.wrapping_add(memory.get((x & MASK) as usize)?);
    }
    Ok(sum)
}

/// Each index depends on the value read before: one get at a time.
#[inline(never)]
pub(crate) fn get_chain<M: Memory>(memory: M, n: usize, mut x: u64) -> Result<u64> {
    let mut value = 0_u64;
    for _ in 0..n {
        x = xorshift(x);
        value = memory.get((x.wrapping_add(value) & MASK) as usize)?;
    }
    Ok(value)
}

/// 512 words, which stay in the first-level cache.
#[inline(never)]
pub(crate) fn get_cached<M: Memory>(memory: M, n: usize, mut x: u64) -> Result<u64> {
    let mut sum = 0_u64;
    for _ in 0..n {
        x = x.wrapping_add(GOLDEN);
        sum = sum.wrapping_add(memory.get((x >> 55) as usize)?);
    }
    Ok(sum)
}

/// [`get_cached`] by any way to word `k`: those of other layouts.
#[inline(never)]
pub(crate) fn get_by(n: usize, mut x: u64, get: impl Fn(usize) -> Result<u64>) -> Result<u64> {
    let mut sum = 0_u64;
    for _ in 0..n {
        x = x.wrapping_add(GOLDEN);
        sum = sum.wrapping_add(get((x >> 55) as usize)?);
    }
    Ok(sum)
}

#[inline(never)]
pub(crate) fn get_chain_cached<M: Memory>(memory: M, n: usize, mut x: u64) -> Result<u64> {
    let mut value = 0_u64;
    for _ in 0..n {
        x = x.wrapping_add(GOLDEN);
        value = memory.get(((x >> 55).wrapping_add(value) & 511) as usize)?;
    }
    Ok(value)
}

#[inline(never)]
pub(crate) fn put_random<M: Memory>(memory: M, n: usize, mut x: u64) -> Result<u64> {
    for _ in 0..n {
        x = xorshift(x);
        let index = (x & MASK) as usize;
        memory.put(index, content(index))?;
    }
    memory.flush()?;
    Ok(x)
}

#[inline(never)]
pub(crate) fn put_flush_random<M: Memory>(memory: M, n: usize, mut x: u64) -> Result<u64> {
    for _ in 0..n {
        x = xorshift(x);
        let index = (x & MASK) as usize;
        memory.put(index, content(index))?;
        memory.flush()?;
    }
    Ok(x)
}

#[inline(never)]
pub(crate) fn put_cached<M: Memory>(memory: M, n: usize, mut x: u64) -> Result<u64> {
    for _ in 0..n {
        x = x.wrapping_add(GOLDEN);
        let index = (x >> 55) as usize;
        memory.put(index, content(index))?;
    }
    memory.flush()?;
    Ok(x)
}

#[inline(never)]
pub(crate) fn fetch_add_random<M: Memory>(memory: M, n: usize, mut x: u64) -> Result<u64> {
    let mut sum = 0_u64;
    // So that the contents stay what other loops expect; the compiler must not know.
    let zero = black_box(0);
    for _ in 0..n {
        x = xorshift(x);
        sum = sum.wrapping_add(memory.fetch_add((x & MASK) as usize, zero)?);
    }
    Ok(sum)
}

#[inline(never)]
pub(crate) fn fetch_add_cached<M: Memory>(memory: M, n: usize, mut x: u64) -> Result<u64> {
    let mut sum = 0_u64;
    let zero = black_box(0);
    for _ in 0..n {
        x = x.wrapping_add(GOLDEN);
        sum = sum.wrapping_add(memory.fetch_add((x >> 55) as usize, zero)?);
    }
    Ok(sum)
}

/// Walks through the shard in steps of the buffer, as a program that reads an array would.
#[inline(never)]
pub(crate) fn get_into<M: Memory>(memory: M, n: usize, buffer: &mut [u64]) -> Result<()> {
    let mut start = 0;
    for _ in 0..n {
        memory.get_into(start, black_box(&mut *buffer))?;
        start = (start + buffer.len()) & (WORDS - 1);
    }
    Ok(())
}

#[inline(never)]
pub(crate) fn get_range<M: Memory>(memory: M, n: usize, count: usize) -> Result<()> {
    let mut start = 0;
    for _ in 0..n {
        drop(black_box(memory.get_range(start, count)?));
        start = (start + count) & (WORDS - 1);
    }
    Ok(())
}

#[inline(never)]
pub(crate) fn put_range<M: Memory>(memory: M, n: usize, buffer: &[u64]) -> Result<()> {
    let mut start = 0;
    for _ in 0..n {
        memory.put_range(start, black_box(buffer))?;
        start = (start + buffer.len()) & (WORDS - 1);
    }
    memory.flush()
}
