//! Bijections for any shape, grid and distribution, and sections against element by element.

use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

fn layout<const D: usize>(
    shape: [usize; D],
    dists: [Dist; D],
    grid: Option<[usize; D]>,
    ranks: usize,
    halo: [usize; D],
) -> Layout<D> {
    let plan = Plan {
        shape,
        dists,
        grid,
        halo,
    };
    Layout::new(&plan, ranks).unwrap()
}

fn line(len: usize, dist: Dist, ranks: usize) -> Layout<1> {
    layout([len], [dist], None, ranks, [0])
}

/// All indices of a small shape, in row-major order.
fn indices<const D: usize>(shape: [usize; D]) -> impl Iterator<Item = [usize; D]> {
    let len: usize = shape.iter().product();
    (0..len).map(move |mut k| {
        let mut index = [0; D];
        for d in (0..D).rev() {
            index[d] = k % shape[d];
            k /= shape[d];
        }
        index
    })
}

/// Every index has a place of its own, and the way back leads to it.
fn check<const D: usize>(layout: &Layout<D>) {
    let mut seen = HashSet::new();
    for index in indices(layout.shape()) {
        let (rank, offset) = layout.locate(index);
        assert!(rank < layout.ranks() && offset < layout.memory_len(rank));
        assert!(seen.insert((rank, offset)), "{index:?} shares its place");
        // Back, by the coordinates in memory.
        let strides = layout.strides(rank);
        let mut rest = offset;
        let place: [usize; D] = std::array::from_fn(|d| {
            let place = rest / strides[d];
            rest %= strides[d];
            place - layout.halo()[d]
        });
        assert_eq!(layout.global(rank, place), index);
        let (multiplied, multiplier, shift) = layout.line();
        if multiplied > 0 {
            assert_eq!(Layout::<D>::owner(index[0], multiplier, shift), rank);
        }
    }
    assert_eq!(seen.len(), layout.len());
    let held: usize = (0..layout.ranks()).map(|rank| layout.owned_len(rank)).sum();
    assert_eq!(held, layout.len());
}

#[test]
fn every_short_line_is_a_bijection() {
    for len in 0..70 {
        for ranks in 1..12 {
            for dist in [
                Dist::Block,
                Dist::Cyclic,
                Dist::BlockCyclic(3),
                Dist::BlockCyclic(100),
            ] {
                check(&line(len, dist, ranks));
            }
            let block = line(len, Dist::Block, ranks);
            let lens: Vec<_> = (0..ranks).map(|rank| block.owned_len(rank)).collect();
            let (min, max) = (lens.iter().min(), lens.iter().max());
            assert!(max.unwrap() - min.unwrap() <= 1, "{lens:?}");
            assert_eq!(block.line().0 > 0, len > ranks || (ranks == 1 && len > 0));
        }
    }
    check(&line(7, Dist::Irregular(vec![0, 3, 0, 4, 0]), 5));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let refused = |dists: [Dist; 2], grid, halo, ranks| {
        let shape = [4, 6];
        Layout::new(
            &Plan {
                shape,
                dists,
                grid,
                halo,
            },
            ranks,
        )
        .unwrap_err()
    };
    let block = || [Dist::Block, Dist::Block];
    assert!(refused([Dist::BlockCyclic(0), Dist::Block], None, [0; 2], 2).contains("0 indices"));
    assert!(
        refused([Dist::Irregular(vec![1, 2]), Dist::Block], None, [0; 2], 2).contains("add up")
    );
    assert!(refused(block(), Some([2, 2]), [0; 2], 3).contains("[2, 2] on 3 ranks"));
    assert!(refused(block(), Some([0, 2]), [0; 2], 3).contains("on 3 ranks"));
    assert!(refused([Dist::Whole, Dist::Block], Some([2, 1]), [0; 2], 3).contains("Whole in 2"));
    assert!(refused([Dist::Cyclic, Dist::Block], Some([2, 1]), [1, 0], 3).contains("ghost"));
    assert!(
        refused([Dist::Irregular(vec![1; 4]), Dist::Block], None, [0; 2], 3)
            .contains("4 parts on 3")
    );
    let huge = Plan::of_shape([1 << 40, 1 << 40]);
    assert!(
        Layout::new(&huge, 2)
            .unwrap_err()
            .contains("can be counted")
    );
}

#[test]
fn grids_have_the_least_surface() {
    let grid = |shape, ranks| {
        Layout::<2>::new(&Plan::of_shape(shape), ranks)
            .unwrap()
            .grid()
    };
    assert_eq!(grid([100, 100], 4), [2, 2]);
    assert_eq!(grid([100, 100], 2), [2, 1]);
    assert_eq!(grid([1000, 10], 4), [4, 1]);
    assert_eq!(grid([10, 1000], 4), [1, 4]);
    assert_eq!(grid([3, 50], 7), [1, 7]);
    let dists = [Dist::Whole, Dist::Cyclic];
    assert_eq!(layout([9, 9], dists, None, 6, [0; 2]).grid(), [1, 6]);
    let dists = [Dist::Irregular(vec![5, 4]), Dist::Block];
    assert_eq!(layout([9, 9], dists, None, 6, [0; 2]).grid(), [2, 3]);
    let dists = [Dist::Whole, Dist::Whole];
    assert_eq!(layout([9, 9], dists, None, 6, [0; 2]).owned_len(5), 0);
}

fn any_dist(len: usize) -> impl Strategy<Value = Dist> {
    prop_oneof![
        Just(Dist::Block),
        Just(Dist::Cyclic),
        Just(Dist::Whole),
        (1_usize..7).prop_map(Dist::BlockCyclic),
        prop::collection::vec(0..=len, 0..3).prop_map(move |mut cuts| {
            cuts.sort_unstable();
            cuts.push(len);
            let mut before = 0;
            let lens = cuts.into_iter().map(|cut| {
                let part = cut - before;
                before = cut;
                part
            });
            Dist::Irregular(lens.collect())
        }),
    ]
}

fn any_axis() -> impl Strategy<Value = (usize, Dist, usize)> {
    (0_usize..14).prop_flat_map(|len| (Just(len), any_dist(len), 1_usize..4))
}

/// A layout of three dimensions with a given grid.
fn any_layout() -> impl Strategy<Value = Layout<3>> {
    (any_axis(), any_axis(), any_axis(), 0_usize..3).prop_map(|(a, b, c, halo)| {
        let axes = [a, b, c];
        let grid = axes.clone().map(|(_, dist, parts)| match dist {
            Dist::Whole => 1,
            Dist::Irregular(lens) => lens.len(),
            _ => parts,
        });
        let halo = axes.clone().map(|(_, dist, _)| match dist {
            Dist::Cyclic | Dist::BlockCyclic(_) => 0,
            _ => halo,
        });
        let shape = axes.clone().map(|(len, ..)| len);
        layout(shape, axes.map(|(_, dist, _)| dist), Some(grid), 30, halo)
    })
}

fn any_slice(len: usize) -> impl Strategy<Value = Slice> {
    (0..=len, 0..=len, 1_isize..6, any::<bool>()).prop_map(|(a, b, step, backwards)| {
        let (low, high) = (a.min(b), a.max(b));
        let count = (high - low).div_ceil(step.unsigned_abs());
        match (count, backwards) {
            (0, _) => Slice {
                start: 0,
                step,
                count,
            },
            (_, false) => Slice {
                start: low,
                step,
                count,
            },
            (_, true) => Slice {
                start: high - 1,
                step: -step,
                count,
            },
        }
    })
}

proptest! {
    #[test]
    fn layouts_are_bijections(layout in any_layout()) {
        check(&layout);
    }

    /// Sizes near 2^40 and beyond: the reciprocals must not round.
    #[test]
    fn long_lines(len in (1_usize << 39)..(1 << 48), ranks in 1_usize..5000, block in 1_usize..(1 << 20), pick in any::<usize>()) {
        let index = pick % len;
        for (dist, b) in [(Dist::Block, 0), (Dist::Cyclic, 1), (Dist::BlockCyclic(block), block)] {
            let layout = line(len, dist.clone(), ranks);
            let (rank, offset) = layout.locate([index]);
            let expected = match b {
                0 => usize::try_from(index as u128 * ranks as u128 / len as u128).unwrap(),
                b => index / b % ranks,
            };
            prop_assert_eq!(rank, expected, "{:?}", dist);
            prop_assert!(offset < layout.owned_len(rank));
            prop_assert_eq!(layout.global(rank, [offset]), [index]);
        }
    }

    /// At the borders of shards, where rounding would show.
    #[test]
    fn borders_of_long_lines(len in 1_usize..(1 << 48), ranks in 1_usize..10_000, pick in any::<usize>()) {
        let layout = line(len, Dist::Block, ranks);
        let rank = pick % ranks;
        let range = layout.axis(0).range(rank).unwrap();
        for index in [range.start, range.end.saturating_sub(1)] {
            if range.contains(&index) {
                prop_assert_eq!(layout.locate([index]), (rank, index - range.start));
            }
        }
        prop_assert_eq!(layout.line().0 > 0, len > ranks || ranks == 1);
    }

    #[test]
    fn quotients(divisor in 2_usize.., index in 0..(1_usize << 63)) {
        prop_assert_eq!(Reciprocal::new(divisor).quotient(index), index / divisor);
        let multiple = index / divisor * divisor;
        prop_assert_eq!(Reciprocal::new(divisor).quotient(multiple), multiple / divisor);
        prop_assert_eq!(Reciprocal::new(divisor).quotient(multiple.saturating_sub(1)), multiple.saturating_sub(1) / divisor);
    }

    /// Patches and their rows hold each element of a section once, where it belongs.
    #[test]
    fn sections_by_patches(
        (layout, slices) in any_layout().prop_flat_map(|layout| {
            let [a, b, c] = layout.shape();
            (Just(layout), [any_slice(a), any_slice(b), any_slice(c)])
        })
    ) {
        let counts = slices.map(|slice| slice.count);
        let len: usize = counts.iter().product();
        let mut found = vec![None; len];
        for patch in layout.patches(slices) {
            let mut held = 0;
            for row in patch.rows() {
                held += row.count;
                for k in 0..row.count {
                    let offset = row.offset.wrapping_add_signed(row.step * k.cast_signed());
                    let place = &mut found[row.at + k * row.at_step];
                    prop_assert_eq!(*place, None);
                    *place = Some((patch.rank, offset));
                }
            }
            prop_assert_eq!(held, patch.len());
        }
        for (at, k) in indices(counts).enumerate() {
            let index = std::array::from_fn(|d| slices[d].index(k[d]));
            prop_assert_eq!(found[at], Some(layout.locate(index)));
        }
    }

    /// Boxes hold each element of a rank once, each in one patch, and no more than they may.
    #[test]
    fn ranks_by_boxes(layout in any_layout(), most in 1_usize..40) {
        let mut seen = HashSet::new();
        for rank in 0..layout.ranks() {
            for slices in layout.boxes(rank, most) {
                let counts = slices.map(|slice| slice.count);
                let len: usize = counts.iter().product();
                prop_assert!(len > 0 && len <= most);
                let patches: Vec<_> = layout.patches(slices).collect();
                prop_assert_eq!(patches.len(), 1);
                prop_assert_eq!((patches[0].rank, patches[0].len()), (rank, len));
                for k in indices(counts) {
                    let index: [usize; 3] = std::array::from_fn(|d| slices[d].index(k[d]));
                    prop_assert!(seen.insert(index));
                }
            }
        }
        prop_assert_eq!(seen.len(), layout.len());
    }

    #[test]
    fn ranges_by_boxes(layout in any_layout(), from: prop::sample::Index, to: prop::sample::Index) {
        let (from, to) = (from.index(layout.len() + 1), to.index(layout.len() + 1));
        let range = from.min(to)..from.max(to);
        let mut all = Vec::new();
        let mut count = 0;
        for slices in layout.boxes_of_range(range.clone()) {
            let counts = slices.map(|slice| slice.count);
            all.extend(indices(counts).map(|k| -> [usize; 3] {
                std::array::from_fn(|d| slices[d].index(k[d]))
            }));
            count += 1;
        }
        let right: Vec<[usize; 3]> = indices(layout.shape()).skip(range.start).take(range.len()).collect();
        prop_assert_eq!(all, right);
        prop_assert!(count <= 5);
    }
}
