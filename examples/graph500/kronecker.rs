//! Random graphs as social networks are: Kronecker graphs.

use crate::permutation;
use crate::random::mix;
use pgas::World;

/// Chances of the four quarters of the matrix, at each level; the fourth has what is left.
const A: f64 = 0.57;
const B: f64 = 0.19;
const C: f64 = 0.19;

/// This rank's part of the edges of a graph of 2^scale vertices, which are numbered at random.
/// Collective.
pub fn edges(world: &World, scale: u32, all: u64, seed: u64) -> pgas::Result<Vec<[usize; 2]>> {
    let (numbers, _) = permutation::random(world, 1 << scale, seed)?;
    let (rank, size) = (world.rank() as u64, world.size() as u64);
    let mine = all * rank / size..all * (rank + 1) / size;
    let ends: Vec<usize> = mine.flat_map(|k| edge(scale, mix(seed ^ k))).collect();
    let numbered = numbers.gather(&ends)?;
    numbers.close()?;
    let pairs = numbered.as_chunks::<2>().0.iter();
    Ok(pairs.map(|pair| pair.map(crate::lines::index)).collect())
}

/// An edge: at each level one bit of each of its ends.
fn edge(scale: u32, mut state: u64) -> [usize; 2] {
    let mut uniform = || {
        state = mix(state);
        (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    let (mut from, mut to) = (0, 0);
    for _ in 0..scale {
        let lower = uniform() > A + B;
        let right = match lower {
            true => uniform() > C / (1.0 - A - B),
            false => uniform() > A / (A + B),
        };
        from = 2 * from + usize::from(lower);
        to = 2 * to + usize::from(right);
    }
    [from, to]
}
