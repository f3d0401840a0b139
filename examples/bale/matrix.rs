//! Sparse matrices of zeros and ones whose rows, or columns, are divided among the ranks.

use crate::random::mix;
use pgas::{GlobalArray, Op, Ragged, World};
use std::ops::Range;

/// The nonzeros of this rank's rows, or columns, one after the other.
pub struct Lines {
    pub mine: Range<usize>,
    /// Where each line begins in `others`, and the end of the last.
    pub starts: Vec<usize>,
    /// For a row its columns, for a column its rows.
    pub others: Vec<usize>,
}

impl Lines {
    /// The lines of all ranks' nonzeros, (line, other) each. A rank gets those lines whose elements of
    /// `like` it has. Collective.
    pub fn collect(
        world: &World,
        like: &GlobalArray<u64>,
        nonzeros: impl Iterator<Item = [usize; 2]>,
    ) -> pgas::Result<Self> {
        let mut outgoing = vec![Vec::new(); world.size()];
        for [line, other] in nonzeros {
            outgoing[like.owner(line)?].push([line as u64, other as u64]);
        }
        let mut rows = Ragged::new();
        outgoing.iter().for_each(|row| rows.push(row));
        let incoming = world.all_to_all_ragged(&rows)?;
        let mine = like.local_range();

        let mut starts = vec![0; mine.len() + 1];
        for &[line, _] in incoming.values() {
            starts[index(line) - mine.start + 1] += 1;
        }
        for k in 1..starts.len() {
            starts[k] += starts[k - 1];
        }
        let mut next = starts.clone();
        let mut others = vec![0; incoming.values().len()];
        for &[line, other] in incoming.values() {
            let next = &mut next[index(line) - mine.start];
            others[*next] = index(other);
            *next += 1;
        }
        Ok(Self {
            mine,
            starts,
            others,
        })
    }

    /// Line `k` of this rank.
    pub fn line(&self, k: usize) -> &[usize] {
        &self.others[self.starts[k]..self.starts[k + 1]]
    }

    /// All nonzeros of this rank, (line, other) each.
    pub fn iter(&self) -> impl Iterator<Item = [usize; 2]> {
        self.mine.clone().enumerate().flat_map(|(k, line)| {
            let others = self.line(k).iter();
            others.map(move |&other| [line, other])
        })
    }

    /// The same where all ranks can read it: where each line begins, and the others. Collective.
    pub fn share(&self, world: &World) -> pgas::Result<(GlobalArray<[u64; 2]>, GlobalArray<u64>)> {
        let others: Vec<u64> = self.others.iter().map(|&other| other as u64).collect();
        // One rank's after another's.
        let first = world.exscan(others.len() as u64, Op::Sum)?.unwrap_or(0);
        let others = GlobalArray::from_local(world, &others)?;
        let line = |ends: &[usize]| [first + ends[0] as u64, first + ends[1] as u64];
        let lines: Vec<[u64; 2]> = self.starts.windows(2).map(line).collect();
        Ok((GlobalArray::from_local(world, &lines)?, others))
    }
}

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

/// An index that was a usize before it was sent.
#[expect(
    clippy::cast_possible_truncation,
    reason = "an array's indices are usize"
)]
pub fn index(value: u64) -> usize {
    value as usize
}
