//! The random numbers of RandomAccess: powers of x modulo a primitive polynomial over GF(2),
//! x^64 + x^2 + x + 1, as bits of a word.

/// The number after `random`.
pub fn next(random: u64) -> u64 {
    const POLYNOMIAL: u64 = 7;
    (random << 1) ^ ((random >> 63) * POLYNOMIAL)
}

/// The `n`-th number of the sequence, by squaring.
pub fn power(mut n: u64) -> u64 {
    let (mut power, mut square) = (1, 2);
    while n > 0 {
        if n & 1 == 1 {
            power = multiply(power, square);
        }
        square = multiply(square, square);
        n >>= 1;
    }
    power
}

/// The product of two polynomials, modulo the polynomial: of two powers, that of the sum.
pub fn multiply(a: u64, b: u64) -> u64 {
    (0..64).rev().fold(0, |product, bit| {
        next(product) ^ if a >> bit & 1 == 1 { b } else { 0 }
    })
}
