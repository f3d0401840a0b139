//! Many indices at once: order, repeats, errors, and updates by all ranks.

#![expect(clippy::cast_possible_truncation, reason = "test numbers are small")]

mod model;

use model::{Case, Random, Suit, Value, everywhere, indices, row_major};
use pgas::testing::on_ranks;
use pgas::{AtomicElement, BitOp, Dist, ErrorKind, GlobalArray, Op, Operator, World};

/// So many random indices of a shape, some of them again and again. None of an empty one.
fn some_indices<const D: usize>(
    random: &mut Random,
    shape: [usize; D],
    count: usize,
) -> Vec<[usize; D]> {
    if shape.contains(&0) {
        return Vec::new();
    }
    let mut all: Vec<[usize; D]> = Vec::with_capacity(count);
    for k in 0..count {
        let index = match random.below(4) {
            0 if k > 0 => all[random.below(k)],
            _ => shape.map(|len| random.below(len)),
        };
        all.push(index);
    }
    all
}

/// Gathers and scatters of one random array, which the ranks do in turn.
fn in_turn<T: Value, const D: usize>(
    world: &World,
    random: &mut Random,
    longest: usize,
) -> pgas::Result<()> {
    let case = Case::<D>::random(random, world.size(), longest);
    let shape = case.shape;
    let array = case.filled::<T>(world, 0)?;
    let mut right: Vec<T> = (0..case.len()).map(T::of).collect();
    let mut own = Random(random.next() ^ world.rank() as u64);
    let mut permutation = indices(shape);
    own.shuffle(&mut permutation);
    let count = own.below(500);
    for list in [
        permutation,
        some_indices(&mut own, shape, count),
        some_indices(&mut own, shape, 10 * case.len()),
        Vec::new(),
    ] {
        let wanted: Vec<T> = list.iter().map(|&at| right[row_major(at, shape)]).collect();
        assert_eq!(array.gather(&list)?, wanted, "{case:?}");
    }
    world.barrier()?;
    for round in 0..2 * world.size() {
        let count = [random.below(30), random.below(1000)][round % 2];
        let list = some_indices(random, shape, count);
        let values: Vec<T> = (0..list.len()).map(|k| T::of(k + round)).collect();
        if round % world.size() == world.rank() {
            array.scatter(&list, &values)?;
            // Seen by itself at once.
            let last =
                |at: &[usize; D]| values[list.iter().rposition(|other| other == at).unwrap()];
            let wanted: Vec<T> = list.iter().map(last).collect();
            assert_eq!(array.gather(&list)?, wanted, "{case:?}");
        }
        for (index, value) in list.into_iter().zip(values) {
            right[row_major(index, shape)] = value;
        }
        world.barrier()?;
    }
    assert_eq!(array.gather(&indices(shape))?, right, "{case:?}");
    world.barrier()
}

fn every_kind(world: &World) -> pgas::Result<()> {
    let mut random = Random(17 * world.size() as u64);
    for _ in 0..3 {
        in_turn::<i64, 1>(world, &mut random, 200)?;
        in_turn::<Suit, 1>(world, &mut random, 50)?;
        in_turn::<u8, 2>(world, &mut random, 15)?;
        in_turn::<bool, 2>(world, &mut random, 15)?;
        in_turn::<[f32; 3], 3>(world, &mut random, 6)?;
        in_turn::<f64, 4>(world, &mut random, 4)?;
    }
    Ok(())
}

#[test]
fn requests_in_any_order_on_2_ranks() {
    everywhere(2, every_kind);
}
#[test]
fn requests_in_any_order_on_4_ranks() {
    everywhere(4, every_kind);
}
#[test]
fn requests_in_any_order_on_7_ranks() {
    on_ranks(7, every_kind);
}

/// More values for one element than one message takes.
#[test]
fn the_last_of_many_values_stays() {
    everywhere(3, |world| {
        let array = GlobalArray::<u32>::new(world, 9)?;
        if world.rank() == 0 {
            let list: Vec<usize> = (0..30_000).map(|k| k * k % 9).collect();
            let values: Vec<u32> = (0..30_000).collect();
            array.scatter(&list, &values)?;
            let last = |at| list.iter().rposition(|&other| other == at);
            for index in 0..9 {
                let right = last(index).map_or(0, |k| values[k]);
                assert_eq!(array.get(index)?, right, "{index}");
            }
        }
        world.barrier()
    });
}

#[test]
fn errors_name_the_position_and_nothing_is_done() {
    everywhere(3, |world| {
        let array = GlobalArray::<i32, 2>::from_fn(world, [7, 5], |[i, j]| (i * j) as i32)?;
        let mut list = vec![[0, 0], [6, 4], [3, 3]];
        for outside in [[7, 0], [0, 5], [usize::MAX, usize::MAX]] {
            list.push(outside);
            list.push([1, 1]);
            let values = vec![99; list.len()];
            for error in [
                array.gather(&list).unwrap_err(),
                array.scatter(&list, &values).unwrap_err(),
                array.scatter_with(&list, &values, Op::Sum).unwrap_err(),
            ] {
                assert_eq!(error.kind(), ErrorKind::OutOfBounds, "{error}");
                let text = error.to_string();
                assert!(text.contains("number 3 of 5"), "{text}");
                assert!(text.contains(&format!("{outside:?}")), "{text}");
            }
            list.truncate(3);
        }
        for error in [
            array.scatter(&list, &[1; 2]).unwrap_err(),
            array.scatter_with(&list, &[1; 4], BitOp::Or).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
        let none = GlobalArray::<i32>::new(world, 0)?;
        assert_eq!(none.gather::<usize>(&[])?, []);
        none.scatter::<usize>(&[], &[])?;
        assert_eq!(
            none.gather(&[0]).unwrap_err().kind(),
            ErrorKind::OutOfBounds
        );
        world.barrier()?;
        for [i, j] in indices([7, 5]) {
            assert_eq!(array.get([i, j])?, (i * j) as i32);
        }
        world.barrier()
    });
}

/// All ranks combine values into the same elements: by `scatter_with`, then by `update`.
fn together<T: Value + AtomicElement, O: Operator<T>, const D: usize>(
    world: &World,
    random: &mut Random,
    longest: usize,
    op: O,
    combine: impl Fn(T, T) -> T,
) -> pgas::Result<()> {
    let case = Case::<D>::random(random, world.size(), longest);
    let shape = case.shape;
    let mut array = case.filled::<T>(world, 1)?;
    let mut right: Vec<T> = (0..case.len()).map(|n| T::of(n + 1)).collect();
    for round in 0..2 {
        for rank in 0..world.size() {
            let count = random.below(700);
            let list = some_indices(random, shape, count);
            let value = |k| T::of(k % 13 + rank);
            let values: Vec<T> = (0..list.len()).map(value).collect();
            if rank == world.rank() {
                if round == 0 {
                    array.scatter_with(&list, &values, op)?;
                } else {
                    array.update(op, |elements| {
                        for (index, value) in list.iter().zip(&values) {
                            elements.push(*index, *value)?;
                        }
                        Ok(())
                    })?;
                }
            } else if round == 1 {
                array.update(op, |_| Ok(()))?;
            }
            for (index, value) in list.into_iter().zip(values) {
                let at = row_major(index, shape);
                right[at] = combine(right[at], value);
            }
        }
        world.barrier()?;
        assert_eq!(array.gather(&indices(shape))?, right, "{case:?}");
        world.barrier()?;
    }
    Ok(())
}

fn every_operator(world: &World) -> pgas::Result<()> {
    let mut random = Random(23 * world.size() as u64);
    together::<i64, _, 1>(world, &mut random, 300, Op::Sum, |a, b| a + b)?;
    together::<u8, _, 2>(world, &mut random, 15, Op::Sum, u8::wrapping_add)?;
    together::<i16, _, 3>(world, &mut random, 7, Op::Min, Ord::min)?;
    together::<i32, _, 2>(world, &mut random, 15, Op::Max, Ord::max)?;
    together::<f64, _, 1>(world, &mut random, 300, Op::Max, f64::max)?;
    together::<u64, _, 1>(world, &mut random, 300, BitOp::Xor, |a, b| a ^ b)?;
    together::<bool, _, 2>(world, &mut random, 15, BitOp::Xor, |a, b| a ^ b)?;
    together::<u32, _, 4>(world, &mut random, 4, BitOp::And, |a, b| a & b)?;
    together::<u8, _, 1>(world, &mut random, 40, BitOp::Or, |a, b| a | b)
}

#[test]
fn all_ranks_combine_on_2_ranks() {
    everywhere(2, every_operator);
}
#[test]
fn all_ranks_combine_on_5_ranks() {
    everywhere(5, every_operator);
}

/// All ranks push at the same time, and see all when it ends.
#[test]
fn updates_are_complete_when_they_return() {
    everywhere(4, |world| {
        let mut sums = GlobalArray::<u64, 2>::builder(world, [10, 10])
            .dist([Dist::Cyclic, Dist::Block])
            .build()?;
        let mut floats = GlobalArray::<f64>::new(world, 17)?;
        for round in 1..=20 {
            sums.update(Op::Sum, |sums| {
                for [i, j] in indices([10, 10]) {
                    sums.push([i, j], (i * j) as u64)?;
                }
                Ok(())
            })?;
            floats.update(Op::Sum, |floats| {
                (0..17_u8).try_for_each(|k| floats.push(usize::from(k), 0.5 + f64::from(k)))
            })?;
            let [i, j] = [round % 10, (round + world.rank()) % 10];
            assert_eq!(sums.get([i, j])?, (4 * round * i * j) as u64);
            let k = (round + world.rank()) % 17;
            assert_eq!(floats.get(k)?, 4.0 * round as f64 * (0.5 + k as f64));
            world.barrier()?;
        }
        Ok(())
    });
}

#[test]
fn an_error_in_an_update_stays_on_its_rank() {
    everywhere(3, |world| {
        let mut array = GlobalArray::<u32>::new(world, 300)?;
        let done = array.update(Op::Sum, |array| {
            for index in 0..300 {
                array.push(index, 1)?;
                if world.rank() == 1 && index == 200 {
                    let outside = array.push(300, 1).unwrap_err();
                    assert!(
                        outside.to_string().contains("push of index 300"),
                        "{outside}"
                    );
                    return Err(outside);
                }
            }
            Ok(())
        });
        match world.rank() {
            1 => assert_eq!(done.unwrap_err().kind(), ErrorKind::OutOfBounds),
            _ => done?,
        }
        // What was pushed before is in place.
        for index in 0..300 {
            assert_eq!(array.get(index)?, if index <= 200 { 3 } else { 2 });
        }
        world.barrier()?;
        // Who goes on after a push that was refused has lost only that.
        array.update(Op::Max, |array| {
            let outside = array.push(usize::MAX, 1000).unwrap_err();
            assert_eq!(outside.kind(), ErrorKind::OutOfBounds);
            array.push(7, 1000 + world.rank() as u32)
        })?;
        assert_eq!(array.get(7)?, 1002);
        assert_eq!(array.get(8)?, 3);
        // And the array is open.
        array.put(9, 5)?;
        world.barrier()
    });
}

/// The numbers of HPCC RandomAccess, from the `skip`-th on.
fn stream(skip: u64) -> impl Iterator<Item = u64> {
    let next = |ran: u64| (ran << 1) ^ if ran >> 63 == 1 { 7 } else { 0 };
    let mut ran = 1;
    (0..skip).for_each(|_| ran = next(ran));
    std::iter::from_fn(move || {
        ran = next(ran);
        Some(ran)
    })
}

/// C09: no update is lost, so a second pass takes all of them back.
#[test]
fn random_access_twice_is_nothing() {
    everywhere(4, |world| {
        const SIZE: usize = 1 << 16;
        let mut table = GlobalArray::<u64>::from_fn(world, SIZE, |index| index as u64)?;
        for pass in 0..2 {
            table.update(BitOp::Xor, |table| {
                for ran in stream((world.rank() * SIZE) as u64).take(SIZE) {
                    table.push(ran as usize % SIZE, ran)?;
                }
                Ok(())
            })?;
            let view = table.read()?;
            let first = view.local_range().start;
            let wrong = view.iter().enumerate();
            let wrong = wrong.filter(|&(k, &value)| value != (first + k) as u64);
            let wrong = wrong.count();
            view.close()?;
            match pass {
                0 => assert!(wrong > SIZE / 8, "the first pass changes the table"),
                _ => assert_eq!(wrong, 0),
            }
        }
        Ok(())
    });
}

/// C09: a histogram, compared with a serial count.
#[test]
fn histogram() {
    everywhere(4, |world| {
        let bins = GlobalArray::<u32>::builder(world, 1000)
            .dist([Dist::Cyclic])
            .build()?;
        let samples = |rank: usize| {
            let mut random = Random(rank as u64);
            (0..100_000).map(move |_| (random.below(1000) * random.below(1000)) / 1000)
        };
        let mine: Vec<usize> = samples(world.rank()).collect();
        bins.scatter_with(&mine, &vec![1; mine.len()], Op::Sum)?;
        world.barrier()?;
        let mut right = vec![0; 1000];
        (0..4).flat_map(samples).for_each(|bin| right[bin] += 1);
        assert_eq!(bins.get_range(0..1000)?, right);
        assert_eq!(right.iter().sum::<u32>(), 400_000);
        world.barrier()
    });
}
