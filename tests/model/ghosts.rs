//! Ghost cells: what each stands for.

use super::{Random, Value, indices, row_major};
use pgas::{Boundary, Builder, Dist, GlobalArray, World};

/// What is beyond an edge; a fixed value by its number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Edge {
    Open,
    Periodic,
    Mirror,
    Fixed(usize),
}

/// What a cell of a rank's memory stands for: elements by their row-major numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Cell {
    Own(usize),
    Ghost(usize),
    Fixed(usize),
    /// No exchange touches it.
    Untouched,
}

#[derive(Clone, Debug)]
pub(crate) struct Plan<const D: usize> {
    /// What each part of each dimension holds.
    pub(crate) lens: [Vec<usize>; D],
    pub(crate) block: bool,
    pub(crate) halo: [usize; D],
    pub(crate) edges: [Edge; D],
    pub(crate) faces_only: bool,
}

impl<const D: usize> Plan<D> {
    pub(crate) fn random(
        random: &mut Random,
        ranks: usize,
        longest: usize,
        edge: fn(usize) -> Edge,
    ) -> Self {
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

    pub(crate) fn shape(&self) -> [usize; D] {
        self.lens.each_ref().map(|lens| lens.iter().sum())
    }

    pub(crate) fn len(&self) -> usize {
        self.shape().iter().product()
    }

    pub(crate) fn builder<'a, T: Value>(&self, world: &'a World) -> Builder<'a, T, D> {
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
    pub(crate) fn memory_shape(&self, rank: usize) -> [usize; D] {
        match self.held(rank) {
            Some((_, lens)) => std::array::from_fn(|d| lens[d] + 2 * self.halo[d]),
            None => [0; D],
        }
    }

    /// First index and number of indices in each dimension, of a rank that holds something.
    pub(crate) fn held(&self, rank: usize) -> Option<([usize; D], [usize; D])> {
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
    pub(crate) fn cells(&self, rank: usize) -> Vec<Cell> {
        let Some((starts, lens)) = self.held(rank) else {
            return Vec::new();
        };
        let cell = |place: [usize; D]| self.cell(place, starts, lens);
        indices(self.memory_shape(rank))
            .into_iter()
            .map(cell)
            .collect()
    }

    pub(crate) fn cell(&self, place: [usize; D], starts: [usize; D], lens: [usize; D]) -> Cell {
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
pub(crate) fn any_edge(n: usize) -> Edge {
    match n % 4 {
        0 => Edge::Open,
        1 => Edge::Periodic,
        2 => Edge::Mirror,
        _ => Edge::Fixed(n),
    }
}
