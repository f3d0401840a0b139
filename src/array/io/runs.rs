//! Which of a file's elements are a rank's: runs that are one piece in the file.

use super::Order;
use crate::dist::{Layout, successor};

/// Elements that follow each other in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// The first one's place among the file's elements.
    pub(super) file: u64,
    /// The first one's place in the rank's memory, and from one to the next.
    pub(super) memory: usize,
    pub(super) step: usize,
    pub(super) count: usize,
}

/// Those of `rank`, by their place in the file; None in a cyclic distribution, where they would be
/// too short to be worth it.
pub(super) fn runs<const D: usize>(
    layout: &Layout<D>,
    rank: usize,
    order: Order,
) -> Option<Vec<Run>> {
    let shape = layout.shape();
    let owned = layout.owned_shape(rank);
    let parts = layout.coordinates(rank).unwrap_or([0; D]);
    let mut starts = [0; D];
    for (d, start) in starts.iter_mut().enumerate() {
        *start = layout.axis(d).range(parts[d])?.start;
    }
    if owned.contains(&0) {
        return Some(Vec::new());
    }
    // Dimensions from the slowest to the fastest in the file.
    let by_speed: [usize; D] = std::array::from_fn(|k| match order {
        Order::C => k,
        Order::Fortran => D - 1 - k,
    });
    let mut file_step = [1_u64; D];
    for k in (0..D - 1).rev() {
        file_step[by_speed[k]] = file_step[by_speed[k + 1]] * shape[by_speed[k + 1]] as u64;
    }
    let fastest = by_speed[D - 1];
    let (first, strides) = (layout.first(rank), layout.strides(rank));
    let outer = by_speed.map(|d| if d == fastest { 1 } else { owned[d] });
    let mut runs: Vec<Run> = Vec::new();
    let mut next = Some([0; D]);
    while let Some(place) = next {
        let mut run = Run {
            file: 0,
            memory: first,
            step: strides[fastest],
            count: owned[fastest],
        };
        for (k, &d) in by_speed.iter().enumerate() {
            run.file += (starts[d] + place[k]) as u64 * file_step[d];
            run.memory += place[k] * strides[d];
        }
        match runs.last_mut() {
            // Goes on where the last one ends, on both sides.
            Some(last)
                if last.file + last.count as u64 == run.file
                    && last.memory + last.count * last.step == run.memory
                    && last.step == run.step =>
            {
                last.count += run.count;
            }
            _ => runs.push(run),
        }
        next = successor(place, outer);
    }
    Some(runs)
}
