//! Sparse matrices of zeros and ones whose rows, or columns, are divided among the ranks; graphs,
//! as a vertex is a row and its neighbours are columns.

use pgas::{GlobalArray, Ragged, World};
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
        let rows: Ragged<[u64; 2]> = outgoing.iter().collect();
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
}

/// An index that was a usize before it was sent.
#[expect(
    clippy::cast_possible_truncation,
    reason = "an array's indices are usize"
)]
pub fn index(value: u64) -> usize {
    value as usize
}
