//! A rank's own elements among its ghost cells, as slices.

use crate::dist::{Layout, successor};

/// The runs of `rank`'s elements in its memory, as offset and length, in ascending order: one if
/// there are no ghost cells, unless they are to be cut at the rows all the same.
fn runs<const D: usize>(layout: &Layout<D>, rank: usize, by_row: bool) -> Vec<(usize, usize)> {
    let shape = layout.owned_shape(rank);
    if shape.contains(&0) {
        return Vec::new();
    }
    if !layout.has_halo() && !by_row {
        return vec![(0, shape.iter().product())];
    }
    let (first, strides) = (layout.first(rank), layout.strides(rank));
    let mut outer = shape;
    outer[D - 1] = 1;
    let mut runs = Vec::new();
    let mut next = Some([0; D]);
    while let Some(place) = next {
        let offset = first + (0..D).map(|d| place[d] * strides[d]).sum::<usize>();
        runs.push((offset, shape[D - 1]));
        next = successor(place, outer);
    }
    runs
}

pub(super) fn rows<'a, T, const D: usize>(
    layout: &Layout<D>,
    rank: usize,
    memory: &'a [T],
    by_row: bool,
) -> Vec<&'a [T]> {
    let runs = runs(layout, rank, by_row);
    runs.into_iter()
        .map(|(offset, len)| &memory[offset..offset + len])
        .collect()
}

pub(super) fn rows_mut<'a, T, const D: usize>(
    layout: &Layout<D>,
    rank: usize,
    mut memory: &'a mut [T],
    by_row: bool,
) -> Vec<&'a mut [T]> {
    let mut passed = 0;
    let mut rows = Vec::new();
    for (offset, len) in runs(layout, rank, by_row) {
        let (_, rest) = memory.split_at_mut(offset - passed);
        let (row, rest) = rest.split_at_mut(len);
        rows.push(row);
        (memory, passed) = (rest, offset + len);
    }
    rows
}
