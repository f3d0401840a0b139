//! `accumulate_halo`: what ghost cells hold goes to the elements that they stand for.

#![expect(clippy::cast_possible_wrap, reason = "test numbers are small")]

mod model;

use model::ghosts::{Cell, Edge, Plan, any_edge};
use model::{Random, Value, everywhere, row_major};
use ndarray::{Dim, Dimension, IntoDimension, Ix};
use pgas::testing::on_ranks;
use pgas::{AtomicElement, BitOp, Boundary, Op, Operator, World};

/// Ghost cells' values are combined into what they stand for.
fn accumulates<T: Value + AtomicElement, O: Operator<T>, const D: usize>(
    world: &World,
    plan: &Plan<D>,
    op: O,
    combine: impl Fn(T, T) -> T,
) -> pgas::Result<()>
where
    Dim<[Ix; D]>: Dimension,
    [Ix; D]: IntoDimension<Dim = Dim<[Ix; D]>>,
{
    let mut all: Vec<T> = (0..plan.len()).map(T::of).collect();
    let shape = plan.shape();
    let mut array = plan
        .builder::<T>(world)
        .from_fn(|index: [usize; D]| T::of(row_major(index, shape)))?;
    let mut view = array.local()?;
    for round in 0..3 {
        let ghost = |rank: usize, k: usize| T::of(rank * 31 + k * 7 + round);
        for (k, cell) in plan.cells(world.rank()).into_iter().enumerate() {
            if !matches!(cell, Cell::Own(_)) {
                view[k] = ghost(world.rank(), k);
            }
        }
        view.accumulate_halo(op)?;
        for rank in 0..world.size() {
            for (k, cell) in plan.cells(rank).into_iter().enumerate() {
                if let Cell::Ghost(number) = cell {
                    all[number] = combine(all[number], ghost(rank, k));
                }
            }
        }
        for (k, cell) in plan.cells(world.rank()).into_iter().enumerate() {
            let right = match cell {
                Cell::Own(number) => all[number],
                _ => ghost(world.rank(), k),
            };
            assert_eq!(view[k], right, "{plan:?} {cell:?} of rank {}", world.rank());
        }
        // Exchanges use the same stages.
        if round == 1 {
            view.exchange()?;
        }
    }
    view.close()
}

fn random_accumulates(world: &World) -> pgas::Result<()> {
    let mut random = Random(37 * world.size() as u64);
    let ranks = world.size();
    let sum = |a: i64, b: i64| a + b;
    for _ in 0..8 {
        accumulates(
            world,
            &Plan::<1>::random(&mut random, ranks, 9, any_edge),
            Op::Sum,
            sum,
        )?;
        accumulates(
            world,
            &Plan::<2>::random(&mut random, ranks, 7, any_edge),
            Op::Sum,
            sum,
        )?;
        accumulates(
            world,
            &Plan::<3>::random(&mut random, ranks, 4, any_edge),
            Op::Sum,
            sum,
        )?;
        let plan = Plan::<2>::random(&mut random, ranks, 7, any_edge);
        accumulates::<u8, _, 2>(world, &plan, Op::Max, Ord::max)?;
        accumulates::<f64, _, 2>(world, &plan, Op::Min, f64::min)?;
        accumulates::<bool, _, 2>(world, &plan, BitOp::Xor, |a, b| a ^ b)?;
    }
    Ok(())
}

#[test]
fn random_accumulates_on_2_ranks() {
    everywhere(2, random_accumulates);
}
#[test]
fn random_accumulates_on_4_ranks() {
    everywhere(4, random_accumulates);
}
#[test]
fn random_accumulates_on_7_ranks() {
    on_ranks(7, random_accumulates);
}

/// <exchange(x), y> = <x, accumulate(y)>.
fn adjoint<const D: usize>(world: &World, random: &mut Random) -> pgas::Result<()>
where
    Dim<[Ix; D]>: Dimension,
    [Ix; D]: IntoDimension<Dim = Dim<[Ix; D]>>,
{
    // Open and zero beyond the edge: both linear.
    let edge = |n: usize| match n % 4 {
        3 => Edge::Fixed(0),
        other => any_edge(other),
    };
    let plan = Plan::<D>::random(random, world.size(), 9, edge);
    let boundary = plan.edges.map(|edge| match edge {
        Edge::Open => Boundary::Open,
        Edge::Periodic => Boundary::Periodic,
        Edge::Mirror => Boundary::Mirror,
        Edge::Fixed(_) => Boundary::Fixed(0),
    });
    let make = || plan.builder::<i64>(world).boundary(boundary).build();
    let (mut x, mut y) = (make()?, make()?);
    let (mut x, mut y) = (x.local()?, y.local()?);
    let mut own = Random(world.rank() as u64 * 1000 + random.next() % 1000);
    let own_value = |random: &mut Random| random.below(2001) as i64 - 1000;
    for cell in &mut x.array_mut() {
        *cell = own_value(&mut own);
    }
    let before: Vec<i64> = x.array().iter().copied().collect();
    x.exchange()?;
    for cell in y.iter_mut() {
        *cell = own_value(&mut own);
    }
    let left: i64 = x.iter().zip(y.iter()).map(|(x, y)| x * y).sum();
    y.accumulate_halo(Op::Sum)?;
    let right: i64 = before.iter().zip(&y.array()).map(|(x, y)| x * y).sum();
    let (left, right) = (
        world.all_reduce(left, Op::Sum)?,
        world.all_reduce(right, Op::Sum)?,
    );
    assert_eq!(left, right, "{plan:?}");
    x.close()?;
    y.close()
}

#[test]
fn accumulate_is_the_adjoint_of_exchange() {
    everywhere(4, |world| {
        let mut random = Random(41);
        for _ in 0..8 {
            adjoint::<1>(world, &mut random)?;
            adjoint::<2>(world, &mut random)?;
            adjoint::<3>(world, &mut random)?;
        }
        Ok(())
    });
}
