//! Ghost cells, every one of them against a model of the whole array.

#![expect(
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    reason = "test numbers are small"
)]

mod model;

use model::{Random, Suit, Value, everywhere, indices, over_tcp, row_major};
use ndarray::{Dim, Dimension, IntoDimension, Ix};
use pgas::testing::on_ranks;
use pgas::{
    AtomicElement, BitOp, Boundary, Builder, Dist, Element, ErrorKind, GlobalArray, Op, Operator,
    World,
};

/// What is beyond an edge; a fixed value by its number.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Edge {
    Open,
    Periodic,
    Mirror,
    Fixed(usize),
}

/// What a cell of a rank's memory stands for: elements by their row-major numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cell {
    Own(usize),
    Ghost(usize),
    Fixed(usize),
    /// No exchange touches it.
    Untouched,
}

#[derive(Clone, Debug)]
struct Plan<const D: usize> {
    /// What each part of each dimension holds.
    lens: [Vec<usize>; D],
    block: bool,
    halo: [usize; D],
    edges: [Edge; D],
    faces_only: bool,
}

impl<const D: usize> Plan<D> {
    fn random(random: &mut Random, ranks: usize, longest: usize, edge: fn(usize) -> Edge) -> Self {
        let mut rest = ranks;
        let mut parts = [1; D];
        for d in random.permutation(D) {
            parts[d] = random.within(1, rest);
            rest /= parts[d];
        }
        let block = random.one_in(2);
        let lens = parts.map(|parts| {
            let len = if random.one_in(8) {
                random.below(3)
            } else {
                random.within(1, longest)
            };
            if block {
                let start = |part: usize| (part * len).div_ceil(parts);
                return (0..parts)
                    .map(|part| start(part + 1) - start(part))
                    .collect();
            }
            random.lengths(len, parts)
        });
        let mut halo = std::array::from_fn(|_| random.below(4));
        halo[random.below(D)] += 1;
        Self {
            lens,
            block,
            halo,
            edges: std::array::from_fn(|_| edge(random.below(20))),
            faces_only: random.one_in(4),
        }
    }

    fn shape(&self) -> [usize; D] {
        self.lens.each_ref().map(|lens| lens.iter().sum())
    }

    fn len(&self) -> usize {
        self.shape().iter().product()
    }

    fn builder<'a, T: Value>(&self, world: &'a World) -> Builder<'a, T, D> {
        let dists = self.lens.each_ref().map(|lens| match self.block {
            true => Dist::Block,
            false => Dist::Irregular(lens.clone()),
        });
        let builder = GlobalArray::builder(world, self.shape())
            .dist(dists)
            .grid(self.lens.each_ref().map(Vec::len))
            .halo(self.halo)
            .boundary(self.edges.map(|edge| match edge {
                Edge::Open => Boundary::Open,
                Edge::Periodic => Boundary::Periodic,
                Edge::Mirror => Boundary::Mirror,
                Edge::Fixed(n) => Boundary::Fixed(T::of(n)),
            }));
        if self.faces_only {
            return builder.faces_only();
        }
        builder
    }

    /// Shape of a rank's memory.
    fn memory_shape(&self, rank: usize) -> [usize; D] {
        match self.held(rank) {
            Some((_, lens)) => std::array::from_fn(|d| lens[d] + 2 * self.halo[d]),
            None => [0; D],
        }
    }

    /// First index and number of indices in each dimension, of a rank that holds something.
    fn held(&self, rank: usize) -> Option<([usize; D], [usize; D])> {
        let (mut rest, mut parts) = (rank, [0; D]);
        for d in (0..D).rev() {
            parts[d] = rest % self.lens[d].len();
            rest /= self.lens[d].len();
        }
        let starts = std::array::from_fn(|d| self.lens[d][..parts[d]].iter().sum());
        let lens: [usize; D] = std::array::from_fn(|d| self.lens[d][parts[d]]);
        (rest == 0 && !lens.contains(&0)).then_some((starts, lens))
    }

    /// What the cells of a rank's memory are, in their order.
    fn cells(&self, rank: usize) -> Vec<Cell> {
        let Some((starts, lens)) = self.held(rank) else {
            return Vec::new();
        };
        let cell = |place: [usize; D]| self.cell(place, starts, lens);
        indices(self.memory_shape(rank))
            .into_iter()
            .map(cell)
            .collect()
    }

    fn cell(&self, place: [usize; D], starts: [usize; D], lens: [usize; D]) -> Cell {
        let shape = self.shape();
        let ghost = |d: usize| !(self.halo[d]..self.halo[d] + lens[d]).contains(&place[d]);
        let ghosts = (0..D).filter(|&d| ghost(d)).count();
        if self.faces_only && ghosts > 1 {
            return Cell::Untouched;
        }
        let mut index = [0; D];
        let mut fixed = None;
        for d in 0..D {
            let mut at = (starts[d] + place[d]) as isize - self.halo[d] as isize;
            let len = shape[d] as isize;
            while !(0..len).contains(&at) {
                at = match self.edges[d] {
                    Edge::Open => return Cell::Untouched,
                    Edge::Fixed(n) => {
                        fixed = fixed.or(Some(n));
                        0
                    }
                    Edge::Periodic if at < 0 => at + len,
                    Edge::Periodic => at - len,
                    Edge::Mirror if at < 0 => -1 - at,
                    Edge::Mirror => 2 * len - 1 - at,
                };
            }
            index[d] = at as usize;
        }
        let number = row_major(index, shape);
        match fixed {
            Some(n) => Cell::Fixed(n),
            None if ghosts > 0 => Cell::Ghost(number),
            None => Cell::Own(number),
        }
    }
}

/// All kinds of edges.
fn any_edge(n: usize) -> Edge {
    match n % 4 {
        0 => Edge::Open,
        1 => Edge::Periodic,
        2 => Edge::Mirror,
        _ => Edge::Fixed(n),
    }
}

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
    let view = array.read()?;
    assert_eq!(*view, memory[..]);
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
    let zero = |n: usize| Boundary::Fixed(0_i64 * n as i64);
    let boundary = plan.edges.map(|edge| match edge {
        Edge::Open => Boundary::Open,
        Edge::Periodic => Boundary::Periodic,
        Edge::Mirror => Boundary::Mirror,
        Edge::Fixed(n) => zero(n),
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

fn ring<T: Element>(world: &World) -> Builder<'_, T, 1> {
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
