//! Random numbers that any rank can compute from their place in a sequence.

/// SplitMix64: a random number from any number.
pub fn mix(number: u64) -> u64 {
    let mut x = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A random number less than `len`, which must be at most 2^32, from any number.
pub fn below(number: u64, len: usize) -> usize {
    // The upper 32 bits as a fraction, times the length.
    (((mix(number) >> 32) * len as u64) >> 32) as usize
}
