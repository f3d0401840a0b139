//! Ghost cells, every one of them against a model of the whole array.

#![expect(clippy::cast_possible_truncation, reason = "test numbers are small")]

mod model;

use model::ghosts::{Cell, Edge, Plan, any_edge};
use model::{Random, Suit, Value, everywhere, indices, over_tcp, row_major};
use ndarray::{Dim, Dimension, IntoDimension, Ix};
use pgas::testing::on_ranks;
use pgas::{Boundary, Builder, Dist, Element, ErrorKind, GlobalArray, Op, World, span};

/// The model of an exchange: what `memory` is after it if the elements were `all` before.
fn exchanged<T: Value>(memory: &mut [T], cells: &[Cell], all: &[T]) {
    for (value, cell) in memory.iter_mut().zip(cells) {
        match *cell {
            Cell::Ghost(number) => *value = all[number],
            Cell::Fixed(n) => *value = T::of(n),
            Cell::Own(_) | Cell::Untouched => {}
        }
    }
}

/// Writes all own cells, in the array and in the model.
fn set_own<T: Value>(memory: &mut [T], own: &mut [T], cells: &[Cell], all: &mut [T], shift: usize) {
    for (number, value) in all.iter_mut().enumerate() {
        *value = T::of(number + shift);
    }
    for (k, cell) in cells.iter().enumerate() {
        if let Cell::Own(number) = *cell {
            (memory[k], own[k]) = (all[number], all[number]);
        }
    }
}

/// Exchanges of every kind, one after another.
fn exchanges<T: Value, const D: usize>(
    world: &World,
    plan: &Plan<D>,
    rounds: usize,
) -> pgas::Result<()>
where
    Dim<[Ix; D]>: Dimension,
    [Ix; D]: IntoDimension<Dim = Dim<[Ix; D]>>,
{
    let shape = plan.shape();
    let mut all: Vec<T> = (0..plan.len()).map(T::of).collect();
    let value = |index: [usize; D]| T::of(row_major(index, shape));
    let mut array = plan.builder::<T>(world).from_fn(value)?;
    let cells = plan.cells(world.rank());
    let mut memory = vec![T::of(7777); cells.len()];
    let mut view = array.local()?;
    assert_eq!(view.len(), cells.len(), "{plan:?}");
    let owned = view.owned().shape();
    assert_eq!(view.array().shape(), owned);
    assert_eq!(view.array_mut().shape(), owned);
    if !cells.is_empty() {
        assert_eq!(view.with_halo().shape(), plan.memory_shape(world.rank()));
    }
    for (k, cell) in cells.iter().enumerate() {
        match *cell {
            Cell::Own(number) => {
                assert_eq!(view[k], all[number], "{plan:?}");
                memory[k] = all[number];
            }
            _ => view[k] = memory[k],
        }
    }
    for round in 0..rounds {
        match round % 4 {
            0 => {
                view.exchange()?;
                exchanged(&mut memory, &cells, &all);
            }
            // What is written in between goes nowhere yet.
            kind @ (1 | 2) => {
                let mut exchange = view.exchange_begin()?;
                exchanged(&mut memory, &cells, &all);
                set_own(&mut memory, &mut exchange, &cells, &mut all, round * 100);
                if kind == 1 {
                    exchange.finish()?;
                } else {
                    drop(exchange);
                }
            }
            _ => {
                view.close()?;
                array.exchange()?;
                exchanged(&mut memory, &cells, &all);
                // Elements are where they were.
                let list = indices(shape);
                assert_eq!(array.gather(&list)?, all, "{plan:?}");
                view = array.local()?;
            }
        }
        assert_eq!(
            *view,
            memory[..],
            "{plan:?} in round {round} of rank {}",
            world.rank()
        );
        if round % 3 == 0 {
            set_own(&mut memory, &mut view, &cells, &mut all, round * 10);
        }
    }
    view.close()?;
    let whole = array.get_section([..; D])?;
    assert!(whole.iter().eq(&all), "{plan:?}");
    // Sections that are one rank's lie in its memory, between ghost cells.
    let view = array.read()?;
    assert_eq!(*view, memory[..]);
    let whole: Vec<T> = view
        .section([span(..).step_by(-1); D])?
        .iter()
        .copied()
        .collect();
    assert!(whole.iter().rev().eq(&all), "{plan:?}");
    if !cells.is_empty() {
        let ranges = view.owned().ranges().expect("ranges");
        let own = view.section(ranges.clone())?;
        assert_eq!(
            (own, own.as_ptr()),
            (view.array(), view.array().as_ptr()),
            "{plan:?}"
        );
        let every_second = ranges.map(|range| span(range).step_by(-2));
        let right = view.array();
        let right = right.slice_each_axis(|_| ndarray::Slice::new(0, None, -2));
        assert_eq!(view.section(every_second)?, right, "{plan:?}");
    }
    view.close()
}

fn random_exchanges(world: &World) -> pgas::Result<()> {
    let mut random = Random(31 * world.size() as u64);
    let ranks = world.size();
    for _ in 0..12 {
        exchanges::<i64, 1>(world, &Plan::random(&mut random, ranks, 20, any_edge), 8)?;
        exchanges::<u8, 1>(world, &Plan::random(&mut random, ranks, 4, any_edge), 8)?;
        exchanges::<Suit, 1>(world, &Plan::random(&mut random, ranks, 12, any_edge), 8)?;
        exchanges::<f64, 2>(world, &Plan::random(&mut random, ranks, 12, any_edge), 8)?;
        exchanges::<bool, 2>(world, &Plan::random(&mut random, ranks, 5, any_edge), 8)?;
        exchanges::<Suit, 2>(world, &Plan::random(&mut random, ranks, 9, any_edge), 8)?;
        exchanges::<[f32; 3], 3>(world, &Plan::random(&mut random, ranks, 6, any_edge), 8)?;
        exchanges::<i64, 3>(world, &Plan::random(&mut random, ranks, 3, any_edge), 8)?;
        let mut narrow = Plan::random(&mut random, ranks, 3, any_edge);
        narrow.halo = narrow.halo.map(|width| width.min(1));
        exchanges::<u16, 4>(world, &narrow, 4)?;
    }
    Ok(())
}

#[test]
fn random_exchanges_on_1_rank() {
    on_ranks(1, random_exchanges);
}
#[test]
fn random_exchanges_on_2_ranks() {
    everywhere(2, random_exchanges);
}
#[test]
fn random_exchanges_on_4_ranks() {
    everywhere(4, random_exchanges);
}
#[test]
fn random_exchanges_on_6_ranks() {
    on_ranks(6, random_exchanges);
}
#[test]
fn random_exchanges_on_8_ranks() {
    on_ranks(8, random_exchanges);
}

/// Wider than any shard, over empty ones, round and round; and nothing at all.
#[test]
fn halos_wider_than_everything() {
    everywhere(5, |world| {
        for edge in [Edge::Periodic, Edge::Mirror, Edge::Fixed(3), Edge::Open] {
            for lens in [
                vec![1; 5],
                vec![0, 1, 0, 0, 2],
                vec![0, 0, 0, 0, 1],
                vec![3, 0, 3],
                vec![0; 5],
            ] {
                let plan = Plan {
                    lens: [lens.clone()],
                    block: false,
                    halo: [9],
                    edges: [edge],
                    faces_only: false,
                };
                exchanges::<i64, 1>(world, &plan, 4)?;
                let plan = Plan {
                    lens: [lens, vec![2]],
                    block: false,
                    halo: [4, 7],
                    edges: [edge, Edge::Periodic],
                    faces_only: false,
                };
                exchanges::<i64, 2>(world, &plan, 4)?;
            }
        }
        Ok(())
    });
}

/// The two stages: with nothing between exchanges, none overwrites what another has not read.
#[test]
fn many_exchanges_in_a_row() {
    fn body(world: &World) -> pgas::Result<()> {
        let plan = Plan {
            lens: [vec![5, 1, 4], vec![8]],
            block: false,
            halo: [2, 1],
            edges: [Edge::Periodic, Edge::Mirror],
            faces_only: false,
        };
        let shape = plan.shape();
        let cells = plan.cells(world.rank());
        let mut array = plan.builder::<u64>(world).build()?;
        let mut view = array.local()?;
        let value = |number: usize, round: usize| (number * 1000 + round) as u64;
        for round in 0..300 {
            let mut own: Vec<_> = view.owned().iter().collect();
            own.reverse();
            for cell in &mut view.array_mut() {
                let index = own.pop().expect("as many indices");
                *cell = value(row_major(index, shape), round);
            }
            view.exchange()?;
            for (k, cell) in cells.iter().enumerate() {
                if let Cell::Ghost(number) | Cell::Own(number) = *cell {
                    assert_eq!(view[k], value(number, round), "{cell:?} in round {round}");
                }
            }
        }
        view.close()
    }
    on_ranks(3, body);
    over_tcp(3).run(body);
}

fn kind<T>(refused: pgas::Result<T>) -> ErrorKind {
    refused.err().expect("an error").kind()
}

#[test]
fn without_ghost_cells_there_is_no_exchange() {
    on_ranks(2, |world| {
        let mut array = GlobalArray::<i32, 2>::new(world, [4, 4])?;
        assert_eq!(kind(array.exchange()), ErrorKind::InvalidArgument);
        let mut view = array.local()?;
        assert_eq!(kind(view.exchange()), ErrorKind::InvalidArgument);
        assert_eq!(kind(view.exchange_begin()), ErrorKind::InvalidArgument);
        assert_eq!(
            kind(view.accumulate_halo(Op::Sum)),
            ErrorKind::InvalidArgument
        );
        view.close()?;
        for dist in [Dist::Cyclic, Dist::BlockCyclic(3)] {
            let cyclic = GlobalArray::<i32>::builder(world, 10)
                .dist([dist])
                .halo([1]);
            assert_eq!(kind(cyclic.build()), ErrorKind::InvalidArgument);
        }
        // The array is as good as before.
        array.put([3, 3], 1)?;
        world.barrier()
    });
}

fn ring<T: Element>(world: &World) -> Builder<'_, T, 1, usize> {
    GlobalArray::builder(world, 9)
        .halo([1])
        .boundary([Boundary::Periodic])
}

#[test]
fn one_exchange_at_a_time() {
    everywhere(3, |world| {
        let mut array = ring(world).from_fn(|index: usize| index as u32)?;
        let mut view = array.local()?;
        let mut exchange = view.exchange_begin()?;
        assert_eq!(kind(exchange.exchange_begin()), ErrorKind::InvalidArgument);
        assert_eq!(kind(exchange.exchange()), ErrorKind::InvalidArgument);
        assert_eq!(
            kind(exchange.accumulate_halo(Op::Sum)),
            ErrorKind::InvalidArgument
        );
        assert_eq!(exchange.array()[0], 3 * world.rank() as u32);
        // The one that is under way is not disturbed.
        exchange.finish()?;
        let before = (3 * world.rank() as u32 + 8) % 9;
        assert_eq!(view[0], before);
        view.exchange()?;
        assert_eq!(view[0], before);
        view.close()
    });
}

/// Ranks that do not exchange together are told so, and can exchange later.
#[test]
fn exchanges_with_those_who_do_something_else() {
    everywhere(3, |world| {
        let odd = world.rank() == 1;
        let mut one = ring(world).from_fn(|index: usize| index as u32)?;
        let mut other = ring(world).from_fn(|index: usize| 100 + index as u32)?;
        for _ in 0..3 {
            let barrier = if odd { world.barrier() } else { one.exchange() };
            let array = if odd {
                other.exchange()
            } else {
                one.exchange()
            };
            assert_eq!(kind(barrier), ErrorKind::Mismatch);
            assert_eq!(kind(array), ErrorKind::Mismatch);
        }
        let (mut one, mut other) = (one.local()?, other.local()?);
        for _ in 0..3 {
            let barrier = if odd { world.barrier() } else { one.exchange() };
            let array = if odd {
                other.exchange()
            } else {
                one.exchange()
            };
            let reverse = if odd {
                one.exchange()
            } else {
                one.accumulate_halo(Op::Sum)
            };
            for refused in [barrier, array, reverse] {
                assert_eq!(kind(refused), ErrorKind::Mismatch);
            }
        }
        let before = (3 * world.rank() as u32 + 8) % 9;
        one.exchange()?;
        other.exchange()?;
        assert_eq!((one[0], other[0]), (before, 100 + before));
        one.close()?;
        other.close()
    });
}

/// An exchange of an open array is a barrier: what was put before, by anybody, is exchanged.
#[test]
fn puts_are_exchanged() {
    everywhere(3, |world| {
        let mut array = ring::<u32>(world).build()?;
        for round in 1..100 {
            for index in (0..9).filter(|index| (index + round) % 3 == world.rank()) {
                array.put(index, (index * 1000 + round) as u32)?;
            }
            array.exchange()?;
            let view = array.read()?;
            let before = (3 * world.rank() + 8) % 9;
            let right = [before, 3 * world.rank(), 3 * world.rank() + 1];
            assert_eq!(view[..3], right.map(|index| (index * 1000 + round) as u32));
            view.close()?;
        }
        Ok(())
    });
}

/// Nothing rests on `Exchange`'s end: who leaks one gets errors.
#[test]
fn a_leaked_exchange_is_harmless() {
    everywhere(3, |world| {
        let mut array = ring(world).from_fn(|index: usize| index as u32)?;
        let mut view = array.local()?;
        std::mem::forget(view.exchange_begin()?);
        let error = view.exchange().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("under way"), "{error}");
        assert_eq!(
            kind(view.accumulate_halo(Op::Sum)),
            ErrorKind::InvalidArgument
        );
        view.close()?;
        assert_eq!(kind(array.exchange()), ErrorKind::InvalidArgument);
        for index in 0..9 {
            assert_eq!(array.get(index)?, index as u32);
        }
        // In a leaked view there is none in any case.
        std::mem::forget(array.local()?);
        assert_eq!(kind(array.exchange()), ErrorKind::WrongMode);
        drop(array);
        let mut array = ring(world).from_fn(|index: usize| index as u32)?;
        array.exchange()?;
        array.close()
    });
}
