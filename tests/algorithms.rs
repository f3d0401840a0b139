//! Algorithms on whole arrays against plain vectors: any distribution, lengths from nothing to
//! several pieces, one thread and several.

#![expect(clippy::cast_possible_truncation, reason = "test numbers are small")]

mod model;

use model::{Case, Random, everywhere, indices, row_major};
use pgas::testing::{Ranks, on_ranks};
use pgas::{Dist, ErrorKind, GlobalArray, Op, Team, World};

/// Two maps x → ax + b, one after the other: associative, and the order matters.
fn after(f: [u64; 2], g: [u64; 2]) -> [u64; 2] {
    [
        g[0].wrapping_mul(f[0]),
        g[0].wrapping_mul(f[1]).wrapping_add(g[1]),
    ]
}

fn map_of(k: usize) -> [u64; 2] {
    [k as u64 * 2 + 1, k as u64 ^ 0x55]
}

/// All elements, in row-major order of their indices.
fn contents<const D: usize>(array: &GlobalArray<u64, D>) -> pgas::Result<Vec<u64>> {
    array.gather(&indices(array.shape()))
}

fn element_by_element<const D: usize>(world: &World, seed: u64) -> pgas::Result<()> {
    let mut random = Random(seed);
    for _ in 0..12 {
        let case = Case::<D>::random(&mut random, world.size(), 9);
        let other = Case::<D> {
            shape: case.shape,
            ..Case::random(&mut random, world.size(), 9)
        };
        // Plans of irregular lengths are of one shape.
        let regular = |dist: &Dist| !matches!(dist, Dist::Irregular(_));
        let other = if other.dists.iter().all(regular) {
            other
        } else {
            case.clone()
        };
        let mut a = case.filled::<u64>(world, 0)?;
        let mut b = other.filled::<u64>(world, 7)?;
        let mut right = contents(&a)?;
        let right_b = contents(&b)?;
        world.barrier()?;
        a.map_inplace(|x| x.rotate_left(3) ^ 5)?;
        right.iter_mut().for_each(|x| *x = x.rotate_left(3) ^ 5);
        assert_eq!(contents(&a)?, right, "{case:?}");
        world.barrier()?;
        a.zip_apply(&mut b, |x, y| x.wrapping_mul(3).wrapping_add(y))?;
        for (x, &y) in right.iter_mut().zip(&right_b) {
            *x = x.wrapping_mul(3).wrapping_add(y);
        }
        assert_eq!(contents(&a)?, right, "{case:?} {other:?}");
        let odd = a.map(|x| x % 2 == 1)?;
        let got = odd.gather(&indices(a.shape()))?;
        assert!(got.into_iter().eq(right.iter().map(|x| x % 2 == 1)));
        world.barrier()?;
        b.copy_from(&mut a)?;
        assert_eq!(contents(&b)?, right, "{case:?} {other:?}");
        world.barrier()?;
        let moved = a.redistribute(std::array::from_fn(|_| Dist::Cyclic))?;
        assert_eq!(contents(&moved)?, right, "{case:?}");
        reductions(&mut a, &right)?;
        a.fill(9)?;
        assert!(contents(&a)?.iter().all(|&x| x == 9));
        world.barrier()?;
    }
    Ok(())
}

fn reductions<const D: usize>(a: &mut GlobalArray<u64, D>, right: &[u64]) -> pgas::Result<()> {
    assert_eq!(
        a.reduce(Op::Sum)?,
        right.iter().copied().reduce(u64::wrapping_add)
    );
    assert_eq!(a.min()?, right.iter().copied().min());
    assert_eq!(a.max()?, right.iter().copied().max());
    assert_eq!(
        a.sum()?,
        right.iter().fold(0, |sum: u64, x| sum.wrapping_add(*x))
    );
    let first = |best: Option<u64>| best.map(|best| right.iter().position(|&x| x == best).unwrap());
    let shape = a.shape();
    let place = |found: Option<([usize; D], u64)>| found.map(|(index, _)| row_major(index, shape));
    let (lowest, highest) = (right.iter().copied().min(), right.iter().copied().max());
    let (arg_min, arg_max) = (a.arg_min()?, a.arg_max()?);
    assert_eq!(place(arg_min), first(lowest));
    assert_eq!(place(arg_max), first(highest));
    // Few values, so that there are ties.
    let mut few = a.map(|x| x % 3)?;
    let right: Vec<u64> = right.iter().map(|x| x % 3).collect();
    let first = |best: Option<u64>| best.map(|best| right.iter().position(|&x| x == best).unwrap());
    let found = few.arg_max()?;
    assert_eq!(place(found), first(right.iter().copied().max()));
    let counts = few.histogram(3, |&x| (x > 0).then_some(x as usize))?;
    let count = |n: u64| right.iter().filter(|&&x| x == n).count() as u64;
    assert_eq!(counts, [0, count(1), count(2)]);
    let outside = few.histogram(2, |&x| Some(x as usize));
    assert_eq!(outside.is_err(), count(2) > 0);
    Ok(())
}

#[test]
fn elements_of_one_dimension() {
    everywhere(3, |world| element_by_element::<1>(world, 1));
}

#[test]
fn elements_of_two_dimensions() {
    everywhere(4, |world| element_by_element::<2>(world, 2));
}

#[test]
fn elements_of_three_dimensions() {
    everywhere(4, |world| element_by_element::<3>(world, 3));
}

#[test]
fn ghost_cells_are_left_alone() {
    on_ranks(3, |world| {
        let mut a = GlobalArray::<u64, 2>::builder(world, [10, 7])
            .halo([1, 2])
            .from_fn(|[i, j]| (i * 10 + j) as u64)?;
        let mut plain = GlobalArray::<u64, 2>::from_fn(world, [10, 7], |[i, j]| (i + j) as u64)?;
        let ghosts = |a: &mut GlobalArray<u64, 2>| -> pgas::Result<u64> {
            let mut view = a.local()?;
            let all: u64 = view.with_halo_mut().iter().sum();
            let own: u64 = view.array_mut().iter().sum();
            view.close()?;
            Ok(all - own)
        };
        let before = ghosts(&mut a)?;
        a.map_inplace(|x| x + 1)?;
        a.zip_apply(&mut plain, |x, y| x * y)?;
        assert_eq!(ghosts(&mut a)?, before);
        let right = (0..70).map(|k| (k / 7 * 10 + k % 7 + 1) * (k / 7 + k % 7));
        assert_eq!(a.sum()?, right.sum::<usize>() as u64);
        plain.copy_from(&mut a)?;
        assert_eq!(plain.sum()?, a.sum()?);
        Ok(())
    });
}

fn values(len: usize) -> impl Fn(usize) -> f64 + Copy {
    move |k| ((k * 7919 + len) % 1013) as f64 * 0.1 - 30.0 / (k + 1) as f64
}

/// Sums of floats, whose order shows in their bits.
#[test]
fn the_same_bits_on_any_number_of_ranks() {
    everywhere(5, |world| {
        for len in [0, 1, 4095, 4096, 4097, 100_003] {
            let mut bits = Vec::new();
            for ranks in 1..=world.size() {
                let Some(team) = world.subset(world.rank() < ranks)? else {
                    continue;
                };
                for dist in [Dist::Block, Dist::Cyclic, Dist::BlockCyclic(17)] {
                    let mut a = GlobalArray::<f64>::builder(&team, len)
                        .dist([dist])
                        .from_fn(values(len))?;
                    bits.push(a.reduce_in_order(Op::Sum)?.map(f64::to_bits));
                }
            }
            assert_eq!(bits[0].is_some(), len > 0);
            assert!(bits.iter().all(|it| *it == bits[0]), "{len}: {bits:?}");
            let all = world.all_gather(bits[0].unwrap_or(0))?;
            assert!(all.iter().all(|it| *it == all[0]));
        }
        let mut plane =
            GlobalArray::<f64, 2>::from_fn(world, [97, 53], |[i, j]| values(97 * 53)(i * 53 + j))?;
        let mut line = GlobalArray::<f64>::from_fn(world, 97 * 53, values(97 * 53))?;
        let (a, b) = (
            plane.reduce_in_order(Op::Sum)?,
            line.reduce_in_order(Op::Sum)?,
        );
        assert_eq!(a.map(f64::to_bits), b.map(f64::to_bits));
        Ok(())
    });
}

#[test]
fn nan_and_nothing() {
    on_ranks(3, |world| {
        let mut none = GlobalArray::<f64>::new(world, 0)?;
        assert_eq!(
            (none.min()?, none.sum()?, none.arg_max()?),
            (None, 0.0, None)
        );
        assert_eq!(none.reduce_in_order(Op::Max)?, None);
        for at in [0, 3, 4] {
            let mut a =
                GlobalArray::<f64>::from_fn(
                    world,
                    5,
                    |k| {
                        if k == at { f64::NAN } else { k as f64 }
                    },
                )?;
            assert!(a.min()?.is_some_and(f64::is_nan) && a.sum()?.is_nan());
            assert_eq!(a.arg_min()?.map(|(index, _)| index), Some([at]));
            assert_eq!(a.arg_max()?.map(|(index, _)| index), Some([at]));
        }
        Ok(())
    });
}

fn prefixes(world: &World) -> pgas::Result<()> {
    for len in [0, 1, 2, 5, 100, 70_001] {
        for dist in [Dist::Block, Dist::Cyclic, Dist::BlockCyclic(3)] {
            if len > 1000 && dist != Dist::Block {
                continue; // Several pieces: once is enough.
            }
            let make = || {
                GlobalArray::<[u64; 2]>::builder(world, len)
                    .dist([dist.clone()])
                    .from_fn(map_of)
            };
            let mut right = Vec::new();
            for k in 0..len {
                right.push(match right.last() {
                    None => map_of(k),
                    Some(&before) => after(before, map_of(k)),
                });
            }
            let mut a = make()?;
            a.scan(after)?;
            assert_eq!(
                a.gather(&(0..len).collect::<Vec<_>>())?,
                right,
                "{len} {dist:?}"
            );
            let mut a = make()?;
            a.exscan([3, 4], after)?;
            right.insert(0, [3, 4]);
            right.pop();
            right[..]
                .iter_mut()
                .skip(1)
                .for_each(|f| *f = after([3, 4], *f));
            if len > 0 {
                assert_eq!(a.gather(&(0..len).collect::<Vec<_>>())?, right[..len]);
            }
            world.barrier()?;
        }
    }
    Ok(())
}

#[test]
fn prefixes_on_any_number_of_ranks() {
    on_ranks(1, prefixes);
    everywhere(3, prefixes);
}

#[test]
fn several_threads() {
    for threads in ["1", "3"] {
        Ranks::new(2).env("PGAS_THREADS", threads).run(|world| {
            prefixes(world)?;
            element_by_element::<2>(world, 5)?;
            sorting(world)
        });
    }
    let outcome = Ranks::new(2)
        .env("PGAS_THREADS", "many")
        .outcome(|world| GlobalArray::<u64>::new(world, 5)?.fill(3));
    assert!(outcome.to_string().contains("PGAS_THREADS"), "{outcome}");
}

/// A key and where it was.
type Card = [u32; 2];

fn sorting(world: &World) -> pgas::Result<()> {
    let mut random = Random(3);
    for len in [0, 1, 2, 5, 1_000, 20_001] {
        let seed = random.next();
        let key = |kind: usize, k: usize| match kind {
            0 => Random(seed ^ k as u64).next() as u32,
            1 => 5,
            2 => (k % 3) as u32,
            3 => k as u32,
            4 => (len - k) as u32,
            // Nearly all equal, a few on each side.
            _ => match Random(seed ^ k as u64).below(100) {
                0 => 0,
                1 => 9,
                _ => 5,
            },
        };
        for kind in 0..6 {
            let dist = [Dist::Block, Dist::Cyclic][kind % 2].clone();
            let card = |k: usize| -> Card { [key(kind, k), k as u32] };
            let make = || {
                GlobalArray::<Card>::builder(world, len)
                    .dist([dist.clone()])
                    .from_fn(card)
            };
            let mut right: Vec<Card> = (0..len).map(card).collect();
            right.sort_by_key(|card| card[0]);
            let all: Vec<usize> = (0..len).collect();
            let mut a = make()?;
            a.sort_by_key(|card| card[0])?;
            assert_eq!(a.gather(&all)?, right, "{len} {kind}");
            let mut a = make()?;
            a.sort_unstable_by(|x, y| y.cmp(x))?;
            right.sort_by(|x, y| y.cmp(x));
            assert_eq!(a.gather(&all)?, right, "{len} {kind}");
            world.barrier()?;
        }
    }
    Ok(())
}

#[test]
fn sorting_on_any_number_of_ranks() {
    on_ranks(1, sorting);
    everywhere(2, sorting);
    everywhere(5, sorting);
}

#[test]
fn irregular_parts_are_sorted() {
    on_ranks(3, |world| {
        let mut a = GlobalArray::<u32>::builder(world, 1000)
            .dist([Dist::Irregular(vec![0, 990, 10])])
            .from_fn(|k| (k * 7919 % 1000) as u32)?;
        a.sort()?;
        assert!(a.get_range(0..1000)?.into_iter().eq(0..1000));
        Ok(())
    });
}

#[test]
fn some_of_the_elements() {
    everywhere(4, |world| {
        for len in [0, 1, 7, 1000] {
            for dist in [Dist::Block, Dist::Cyclic] {
                let mut a = GlobalArray::<u64>::builder(world, len)
                    .dist([dist])
                    .from_fn(|k| (k * 31 % 97) as u64)?;
                let kept = a.filter(|x| x % 3 == 0)?;
                let value = |k: usize| (k * 31 % 97) as u64;
                let right: Vec<u64> = (0..len).map(value).filter(|x| x % 3 == 0).collect();
                assert_eq!(kept.get_range(0..kept.len())?, right);
                let mut mask = GlobalArray::<bool>::from_fn(world, len, |k| k % 5 == 1)?;
                let kept = a.select(&mut mask)?;
                let right: Vec<u64> = (0..len).filter(|k| k % 5 == 1).map(value).collect();
                assert_eq!(kept.get_range(0..kept.len())?, right);
                world.barrier()?;
            }
        }
        Ok(())
    });
}

#[test]
fn vectors_and_matrices() {
    everywhere(4, |world| {
        let x = |k: usize| (k % 13) as f64 - 4.5;
        let y = |k: usize| (k % 7) as f64 * 0.25;
        for len in [0, 1, 1000, 100_003] {
            let mut a = GlobalArray::<f64>::from_fn(world, len, x)?;
            let mut b = GlobalArray::<f64>::builder(world, len)
                .dist([Dist::Cyclic])
                .from_fn(y)?;
            // All numbers are multiples of 1/8, so sums are exact.
            let right: f64 = (0..len).map(|k| x(k) * y(k)).sum();
            assert_eq!(a.dot(&mut b)?, right);
            a.axpy(2.0, &mut b)?;
            a.scale(0.5)?;
            let right: Vec<f64> = (0..len).map(|k| (x(k) + 2.0 * y(k)) * 0.5).collect();
            assert_eq!(a.get_range(0..len)?, right);
            let norm = right.iter().map(|x| x * x).sum::<f64>().sqrt();
            assert!((a.norm()? - norm).abs() <= 1e-12 * norm);
            world.barrier()?;
        }
        for [n, k, m] in [[1, 1, 1], [5, 3, 8], [40, 300, 33], [0, 4, 5], [3, 0, 2]] {
            let entry = |i: usize, j: usize| ((i * 3 + j * 5) % 11) as f64 - 3.0;
            let mut a = GlobalArray::<f64, 2>::from_fn(world, [n, k], |[i, j]| entry(i, j))?;
            let mut b = GlobalArray::<f64, 2>::builder(world, [k, m])
                .dist([Dist::Cyclic, Dist::Block])
                .from_fn(|[i, j]| entry(j, i + 1))?;
            let mut c = a.matmul(&mut b)?.to_local()?;
            let t = b.transpose()?.to_local()?;
            for i in 0..n {
                for j in 0..m {
                    let right: f64 = (0..k).map(|l| entry(i, l) * entry(j, l + 1)).sum();
                    assert_eq!(c[[i, j]], right);
                }
            }
            c.fill(0.0);
            assert!((0..k).all(|i| (0..m).all(|j| t[[j, i]] == entry(j, i + 1))));
            let error = b.matmul(&mut a).err().map(|error| error.kind());
            assert_eq!(error, (m != n).then_some(ErrorKind::InvalidArgument));
        }
        Ok(())
    });
}

#[test]
fn one_after_another() {
    everywhere(3, |world| {
        for len in [0, 1, 1024, 5_000] {
            let a = GlobalArray::<u64>::from_fn(world, len, |k| k as u64 * 3)?;
            let all: pgas::Result<Vec<u64>> = a.iter(0..len)?.collect();
            assert!(all?.into_iter().eq((0..len as u64).map(|k| k * 3)));
            let some: pgas::Result<Vec<u64>> = a.iter(len / 3..len / 2)?.take(700).collect();
            let right = (len / 3..len / 2).map(|k| k as u64 * 3).take(700);
            assert!(some?.into_iter().eq(right));
            assert_eq!(
                a.iter(0..len + 1).unwrap_err().kind(),
                ErrorKind::OutOfBounds
            );
            world.barrier()?;
        }
        Ok(())
    });
}

/// Types whose zero bytes are no value can be moved, too.
#[test]
fn values_that_are_never_zero() {
    on_ranks(3, |world| {
        let value = |k: usize| std::num::NonZeroU32::new(k as u32 + 1).unwrap();
        let mut a = GlobalArray::<std::num::NonZeroU32>::from_fn(world, 100, value)?;
        let moved = a.redistribute([Dist::Cyclic])?;
        assert_eq!(moved.get(57)?, value(57));
        let doubled = a.map(|x| x.saturating_mul(x))?;
        assert_eq!(doubled.get(9)?.get(), 100);
        Ok(())
    });
}

#[test]
fn ghost_cells_of_what_is_never_zero() {
    everywhere(3, |world| {
        let mut a = GlobalArray::<u32>::builder(world, 10)
            .halo([1])
            .from_fn(|i: usize| i as u32)?;
        let b = a.map(|x| std::num::NonZeroU32::new(x + 1).unwrap())?;
        for k in 0..10 {
            assert_eq!(b.get(k)?.get(), k as u32 + 1);
        }
        assert_eq!(b.halo(), [1]);
        // Each value is asked for once.
        let mut asked = 0;
        let c = GlobalArray::<std::num::NonZeroU32, 2>::builder(world, [4, 5])
            .halo([1, 2])
            .from_fn(|[i, j]| {
                asked += 1;
                std::num::NonZeroU32::new((i * 5 + j + 1) as u32).unwrap()
            })?;
        assert_eq!(asked, c.owned(world.rank()).len());
        assert_eq!(c.get([3, 4])?.get(), 20);
        world.barrier()
    });
}

#[test]
fn shapes_that_differ_are_refused() {
    on_ranks(2, |world| {
        let team: &Team = world;
        let mut a = GlobalArray::<u64>::new(team, 5)?;
        let mut b = GlobalArray::<u64>::new(team, 6)?;
        for error in [a.copy_from(&mut b), a.zip_apply(&mut b, |x, _| x)] {
            assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
        world.barrier()
    });
}
