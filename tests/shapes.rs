//! Shapes and distributions: where each element is, and that every rank finds it there.

mod model;

use model::{Case, Random, Suit, Value, Wide, everywhere, indices, row_major};
use ndarray::{Dim, Dimension, IntoDimension, Ix};
use pgas::testing::on_ranks;
use pgas::{Dist, ErrorKind, GlobalArray, Op, World};

/// Owners, local indices and global indices agree with the model and with each other.
fn check_places<T: Value, const D: usize>(
    world: &World,
    array: &GlobalArray<T, D>,
    case: &Case<D>,
) {
    let grid = array.grid();
    assert_eq!(array.shape(), case.shape);
    assert_eq!(array.len(), case.len());
    assert_eq!(array.is_empty(), case.len() == 0);
    let parts: usize = grid.iter().product();
    assert!((1..=world.size()).contains(&parts), "{grid:?}");
    for d in 0..D {
        match &case.dists[d] {
            Dist::Irregular(lens) => assert_eq!(grid[d], lens.len()),
            Dist::Whole => assert_eq!(grid[d], 1),
            _ => {}
        }
        assert!(case.grid.is_none_or(|given| given[d] == grid[d]));
    }

    let mut held = vec![Vec::new(); world.size()];
    for index in indices(case.shape) {
        let (rank, local) = case.place(grid, index);
        assert_eq!(array.owner(index).unwrap(), rank, "{case:?} {index:?}");
        assert_eq!(
            array.local_index(index).unwrap(),
            (rank, local),
            "{case:?} {index:?}"
        );
        assert_eq!(array.global_index(rank, local).unwrap(), index);
        assert_eq!(array.owned(rank).global(local), index);
        held[rank].push((local, index));
    }
    for (rank, mut held) in held.into_iter().enumerate() {
        let owned = array.owned(rank);
        assert_eq!(owned.len(), held.len(), "{case:?}");
        assert_eq!(owned.len(), owned.shape().iter().product());
        assert_eq!(owned.is_empty(), held.is_empty());
        held.sort_unstable();
        let in_order: Vec<_> = held.iter().map(|&(_, index)| index).collect();
        assert_eq!(owned.iter().collect::<Vec<_>>(), in_order, "{case:?}");
        if !held.is_empty() {
            let last = held[held.len() - 1].0.map(|place| place + 1);
            assert_eq!(owned.shape(), last, "{case:?}");
        }
        if let Some(ranges) = owned.ranges() {
            assert_eq!(ranges.each_ref().map(ExactSizeIterator::len), owned.shape());
            assert!((0..D).all(|d| ranges[d].end <= case.shape[d]));
            assert!(
                held.iter()
                    .all(|(_, index)| (0..D).all(|d| ranges[d].contains(&index[d])))
            );
        } else {
            let cyclic = |dist: &Dist| matches!(dist, Dist::Cyclic | Dist::BlockCyclic(_));
            assert!(case.dists.iter().any(cyclic));
        }
        let outside = array.global_index(rank, owned.shape()).unwrap_err();
        assert_eq!(outside.kind(), ErrorKind::OutOfBounds);
    }
    let outside = [
        array.owner(case.shape).unwrap_err(),
        array.local_index(case.shape).unwrap_err(),
        array.global_index(world.size(), [0; D]).unwrap_err(),
        array.get(case.shape).unwrap_err(),
        array.get([usize::MAX; D]).unwrap_err(),
        array.put(case.shape, T::of(0)).unwrap_err(),
    ];
    for error in outside {
        assert_eq!(error.kind(), ErrorKind::OutOfBounds, "{error}");
    }
}

/// Every element, by every way to read it.
fn check_values<T: Value, const D: usize>(
    array: &GlobalArray<T, D>,
    right: &[T],
) -> pgas::Result<()>
where
    Dim<[Ix; D]>: Dimension,
    [Ix; D]: IntoDimension<Dim = Dim<[Ix; D]>>,
{
    let all = indices(array.shape());
    for (index, right) in all.iter().zip(right) {
        assert_eq!(array.get(*index)?, *right, "{array:?} {index:?}");
    }
    assert_eq!(array.gather(&all)?, right, "{array:?}");
    let section = array.get_section([..; D])?;
    assert_eq!(section.shape(), array.shape());
    assert_eq!(section.into_iter().collect::<Vec<_>>(), right, "{array:?}");
    Ok(())
}

fn check<T: Value, const D: usize>(world: &World, case: &Case<D>) -> pgas::Result<()>
where
    Dim<[Ix; D]>: Dimension,
    [Ix; D]: IntoDimension<Dim = Dim<[Ix; D]>>,
{
    let mut array = case.filled::<T>(world, 0)?;
    check_places(world, &array, case);
    let right: Vec<T> = (0..case.len()).map(T::of).collect();
    check_values(&array, &right)?;
    world.barrier()?;

    // Everything is written by a rank that does not hold it.
    for index in indices(case.shape) {
        if (array.owner(index)? + 1) % world.size() == world.rank() {
            array.put(index, T::of(row_major(index, case.shape) + 5))?;
        }
    }
    world.barrier()?;
    let right: Vec<T> = (0..case.len()).map(|n| T::of(n + 5)).collect();
    check_values(&array, &right)?;

    // What a rank holds is what lies in its memory.
    let view = array.read()?;
    let owned: Vec<_> = view.owned().iter().collect();
    assert_eq!(view.len(), owned.len());
    assert_eq!(view.array().shape(), view.owned().shape());
    for (index, value) in owned.into_iter().zip(view.array()) {
        assert_eq!(*value, right[row_major(index, case.shape)]);
    }
    view.close()
}

/// Random arrays of one number of dimensions, with elements of every kind in turn.
fn random_arrays<const D: usize>(world: &World, cases: usize, longest: usize) -> pgas::Result<()>
where
    Dim<[Ix; D]>: Dimension,
    [Ix; D]: IntoDimension<Dim = Dim<[Ix; D]>>,
{
    let mut random = Random(0x51ab * D as u64 + world.size() as u64);
    for number in 0..cases {
        let case = Case::<D>::random(&mut random, world.size(), longest);
        match number % 8 {
            0 => check::<i64, D>(world, &case)?,
            1 => check::<u8, D>(world, &case)?,
            2 => check::<Suit, D>(world, &case)?,
            3 => check::<[f32; 3], D>(world, &case)?,
            4 => check::<bool, D>(world, &case)?,
            5 => check::<u128, D>(world, &case)?,
            6 => check::<Wide, D>(world, &case)?,
            _ => check::<f64, D>(world, &case)?,
        }
    }
    Ok(())
}

fn all_dimensions(world: &World) -> pgas::Result<()> {
    random_arrays::<1>(world, 30, 100)?;
    random_arrays::<2>(world, 24, 16)?;
    random_arrays::<3>(world, 18, 8)?;
    random_arrays::<4>(world, 12, 5)?;
    random_arrays::<5>(world, 12, 4)?;
    random_arrays::<6>(world, 12, 3)
}

#[test]
fn random_arrays_on_1_rank() {
    on_ranks(1, all_dimensions);
}
#[test]
fn random_arrays_on_2_ranks() {
    everywhere(2, all_dimensions);
}
#[test]
fn random_arrays_on_3_ranks() {
    on_ranks(3, all_dimensions);
}
#[test]
fn random_arrays_on_4_ranks() {
    everywhere(4, all_dimensions);
}
#[test]
fn random_arrays_on_7_ranks() {
    on_ranks(7, all_dimensions);
}
#[test]
fn random_arrays_on_8_ranks() {
    on_ranks(8, all_dimensions);
}

/// C01: fewer elements than ranks, in every distribution.
fn every_length(world: &World) -> pgas::Result<()> {
    let mut random = Random(1);
    for len in [0, 1, 2, 3, 5, 6, 7, 10, 97, 100] {
        for dist in [
            Dist::Block,
            Dist::Cyclic,
            Dist::BlockCyclic(1),
            Dist::BlockCyclic(3),
            Dist::BlockCyclic(usize::MAX / 2 + 1),
            Dist::Irregular(random.lengths(len, world.size())),
            Dist::Irregular(random.lengths(len, world.size().div_ceil(2))),
            Dist::Whole,
        ] {
            one_length(world, len, &dist)?;
        }
    }
    Ok(())
}

fn one_length(world: &World, len: usize, dist: &Dist) -> pgas::Result<()> {
    let mut array = GlobalArray::<u64>::builder(world, len)
        .dist([dist.clone()])
        .build()?;
    let lens: Vec<usize> = (0..world.size())
        .map(|rank| array.owned(rank).len())
        .collect();
    assert_eq!(lens.iter().sum::<usize>(), len);
    if matches!(dist, Dist::Block | Dist::Cyclic) {
        assert!(lens.iter().max().unwrap() - lens.iter().min().unwrap() <= 1);
    }
    if !matches!(dist, Dist::Cyclic | Dist::BlockCyclic(_)) || world.size() == 1 {
        let mut next = 0;
        for (rank, &len) in lens.iter().enumerate() {
            let range = array.range_of(rank);
            assert_eq!((range.start, range.len()), (next, len), "{dist:?}");
            next = range.end;
        }
        assert_eq!(next, len);
        assert_eq!(array.local_range(), array.range_of(world.rank()));
    }
    let square = |index: usize| (index * index + 1) as u64;
    let mut mine = array.local()?;
    assert_eq!(mine.len(), lens[world.rank()]);
    let owned: Vec<_> = mine.owned().iter().collect();
    for (value, [index]) in mine.iter_mut().zip(owned) {
        *value = square(index);
    }
    mine.close()?;
    let right: Vec<u64> = (0..len).map(square).collect();
    for (index, right) in right.iter().enumerate() {
        assert_eq!(array.get(index)?, *right, "{dist:?} {len} {index}");
    }
    assert_eq!(array.get_range(0..len)?, right, "{dist:?}");
    let sum: u64 = array.read()?.iter().sum();
    assert_eq!(world.all_reduce(sum, Op::Sum)?, right.iter().sum());
    assert_eq!(array.get(len).unwrap_err().kind(), ErrorKind::OutOfBounds);
    Ok(())
}

#[test]
fn every_length_on_few_ranks() {
    for ranks in [1, 2, 3] {
        on_ranks(ranks, every_length);
    }
}
#[test]
fn every_length_on_more_ranks_than_elements() {
    for ranks in [5, 8] {
        on_ranks(ranks, every_length);
    }
}
#[test]
fn every_length_on_4_ranks() {
    everywhere(4, every_length);
}
#[test]
fn every_length_on_7_ranks() {
    everywhere(7, every_length);
}

/// The chosen grid uses all ranks and makes parts with little surface.
#[test]
fn the_grid_is_sensible() {
    on_ranks(6, |world| {
        let grid = |shape: [usize; 2]| GlobalArray::<u8, 2>::new(world, shape).map(|a| a.grid());
        assert_eq!(grid([600, 600])?, [3, 2]);
        assert_eq!(grid([600, 2])?, [6, 1]);
        assert_eq!(grid([1, 600])?, [1, 6]);
        assert_eq!(grid([0, 0])?.iter().product::<usize>(), 6);
        assert_eq!(
            GlobalArray::<u8, 6>::new(world, [4; 6])?
                .grid()
                .iter()
                .product::<usize>(),
            6
        );
        let whole = GlobalArray::<u8, 3>::builder(world, [60, 60, 60])
            .dist([Dist::Whole, Dist::Block, Dist::Irregular(vec![1, 59])])
            .build()?;
        assert_eq!(whole.grid(), [1, 3, 2]);
        Ok(())
    });
}

#[test]
fn bad_plans_are_refused_on_all_ranks() {
    on_ranks(4, |world| {
        type Plan<'a> = pgas::Builder<'a, u32, 2>;
        let plan = || -> Plan<'_> { GlobalArray::builder(world, [10, 12]) };
        let refused: Vec<(Plan<'_>, &str)> = vec![
            (plan().grid([5, 1]), "4 ranks"),
            (plan().grid([2, 3]), "4 ranks"),
            (plan().grid([0, 4]), "4 ranks"),
            (plan().grid([usize::MAX, 2]), "4 ranks"),
            (
                plan().dist([Dist::BlockCyclic(0), Dist::Block]),
                "dimension 0",
            ),
            (
                plan().dist([Dist::Irregular(vec![]), Dist::Block]),
                "dimension 0",
            ),
            (
                plan().dist([Dist::Block, Dist::Irregular(vec![6, 5])]),
                "add up to 12",
            ),
            (
                plan().dist([Dist::Block, Dist::Irregular(vec![usize::MAX, 13])]),
                "add up to 12",
            ),
            (
                plan().dist([Dist::Irregular(vec![2; 5]), Dist::Whole]),
                "5 parts on 4 ranks",
            ),
            (
                plan().dist([Dist::Irregular(vec![5, 5]), Dist::Irregular(vec![4; 3])]),
                "6 parts",
            ),
            (
                plan()
                    .dist([Dist::Irregular(vec![5, 5]), Dist::Block])
                    .grid([4, 1]),
                "dimension 0",
            ),
            (
                plan().dist([Dist::Block, Dist::Whole]).grid([2, 2]),
                "dimension 1",
            ),
            (
                plan()
                    .dist([Dist::Cyclic, Dist::Block])
                    .halo([1, 0])
                    .grid([2, 2]),
                "dimension 0",
            ),
            (
                plan()
                    .dist([Dist::Block, Dist::BlockCyclic(2)])
                    .halo([0, 1])
                    .grid([2, 2]),
                "dimension 1",
            ),
        ];
        for (plan, reason) in refused {
            let error = plan.clone().build().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.to_string().contains(reason), "{error}");
            let error = plan.from_fn(|_: [usize; 2]| 1).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
        let error = GlobalArray::<u8, 2>::new(world, [usize::MAX, 2]).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::NoRoom),
            "{error}"
        );
        // And the job goes on.
        assert_eq!(plan().build()?.get([9, 11])?, 0);
        Ok(())
    });
}

#[test]
fn ranks_that_disagree_get_nothing() {
    everywhere(3, |world| {
        let odd = world.rank() == 1;
        let plan = || GlobalArray::<u32, 2>::builder(world, [6, 6]);
        type Plan<'a> = pgas::Builder<'a, u32, 2>;
        let plans: Vec<(Plan<'_>, Plan<'_>)> = vec![
            (plan(), GlobalArray::builder(world, [6, 7])),
            (plan(), GlobalArray::builder(world, [4, 9])),
            (plan().grid([3, 1]), plan().grid([1, 3])),
            (plan(), plan().dist([Dist::Cyclic, Dist::Block])),
            (
                plan().dist([Dist::BlockCyclic(2), Dist::Whole]),
                plan().dist([Dist::BlockCyclic(1), Dist::Whole]),
            ),
            (
                plan().dist([Dist::Irregular(vec![1, 2, 3]), Dist::Whole]),
                plan().dist([Dist::Irregular(vec![3, 2, 1]), Dist::Whole]),
            ),
            (plan(), plan().halo([1, 1])),
            (plan().halo([1, 1]), plan().halo([1, 1]).faces_only()),
            (
                plan().halo([1, 1]),
                plan().halo([1, 1]).boundary([pgas::Boundary::Periodic; 2]),
            ),
        ];
        for (ours, theirs) in plans {
            let plan = if odd { theirs } else { ours };
            let error = plan.build().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        }
        let other_element = if odd {
            GlobalArray::<i32, 2>::new(world, [6, 6]).map(drop)
        } else {
            plan().build().map(drop)
        };
        assert_eq!(other_element.unwrap_err().kind(), ErrorKind::Mismatch);
        assert_eq!(plan().build()?.get([5, 5])?, 0);
        Ok(())
    });
}
