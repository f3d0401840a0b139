//! The shuffled triangular matrices of topological sort.

use crate::lines::Lines;
use crate::random::mix;
use pgas::{GlobalArray, Op, World};
use std::ops::Range;

/// This rank's rows of a random upper triangular matrix with ones on the diagonal, as (row, column):
/// above the diagonal each element is one with the probability `p`.
pub fn triangular(rows: Range<usize>, len: usize, p: f64, seed: u64) -> Vec<[usize; 2]> {
    let mut nonzeros = Vec::new();
    for row in rows {
        nonzeros.push([row, row]);
        if p == 0.0 {
            continue;
        }
        let mut column = row;
        let mut state = seed ^ ((row as u64) << 32);
        loop {
            // How many zeros come before the next one: geometric.
            state = mix(state);
            let uniform = ((state >> 11) + 1) as f64 / (1_u64 << 53) as f64;
            let zeros = (uniform.ln() / (1.0 - p).ln()).floor();
            if zeros.is_nan() || zeros >= (len - column - 1) as f64 {
                break;
            }
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "less than `len`"
            )]
            let zeros = zeros as usize;
            column += zeros + 1;
            nonzeros.push([row, column]);
        }
    }
    nonzeros
}

/// All nonzeros of this rank, (line, other) each.
pub fn nonzeros(lines: &Lines) -> impl Iterator<Item = [usize; 2]> {
    let mine = lines.mine.clone().enumerate();
    mine.flat_map(|(k, line)| lines.line(k).iter().map(move |&other| [line, other]))
}

/// The nonzeros where all ranks can read them: where each line begins and ends, and the others.
/// Collective.
pub fn share(
    world: &World,
    lines: &Lines,
) -> pgas::Result<(GlobalArray<[u64; 2]>, GlobalArray<u64>)> {
    let others: Vec<u64> = lines.others.iter().map(|&other| other as u64).collect();
    // One rank's after another's.
    let first = world.exscan(others.len() as u64, Op::Sum)?.unwrap_or(0);
    let others = GlobalArray::from_local(world, &others)?;
    let line = |ends: &[usize]| [first + ends[0] as u64, first + ends[1] as u64];
    let lines: Vec<[u64; 2]> = lines.starts.windows(2).map(line).collect();
    Ok((GlobalArray::from_local(world, &lines)?, others))
}
