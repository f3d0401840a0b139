//! What arrays are compared with: random plans, and where each element is by rules that share
//! nothing with the library but their wording.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "test numbers are small"
)]

pub(crate) mod collectives;
pub(crate) mod folder;
pub(crate) mod ghosts;

use bytemuck::{AnyBitPattern, CheckedBitPattern, NoUninit};
use pgas::testing::{Ranks, on_ranks};
use pgas::{Builder, Dist, Element, GlobalArray, World};
use std::fmt::Debug;

/// Runs `body` over the default transports, and where every rank is a node of its own.
#[track_caller]
pub(crate) fn everywhere(ranks: usize, body: impl Fn(&World) -> pgas::Result<()>) {
    on_ranks(ranks, &body);
    over_tcp(ranks).run(&body);
}

pub(crate) fn over_tcp(ranks: usize) -> Ranks {
    Ranks::new(ranks).env("UCX_TLS", "tcp,self")
}

/// Numbers that are the same on all ranks: splitmix64.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of `0..end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// One of `from..=to`.
    pub(crate) fn within(&mut self, from: usize, to: usize) -> usize {
        from + self.below(to - from + 1)
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for k in (1..items.len()).rev() {
            items.swap(k, self.below(k + 1));
        }
    }

    pub(crate) fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..n).collect();
        self.shuffle(&mut all);
        all
    }

    /// `parts` numbers that add up to `sum`, some of them 0.
    pub(crate) fn lengths(&mut self, sum: usize, parts: usize) -> Vec<usize> {
        let mut cuts: Vec<usize> = (1..parts).map(|_| self.below(sum + 1)).collect();
        cuts.extend([0, sum]);
        cuts.sort_unstable();
        cuts.windows(2).map(|cut| cut[1] - cut[0]).collect()
    }
}

/// Element types with values that tell indices apart, as far as they can.
pub(crate) trait Value: Element + PartialEq + Debug {
    fn of(n: usize) -> Self;
}

macro_rules! values {
    ($($type:ty: |$n:ident| $value:expr;)*) => {$(
        impl Value for $type {
            #[expect(clippy::allow_attributes, reason = "not in all expansions")]
            #[allow(clippy::cast_precision_loss, clippy::cast_possible_wrap, reason = "small")]
            fn of($n: usize) -> Self {
                $value
            }
        }
    )*};
}
values! {
    u8: |n| (n ^ (n >> 8)) as u8;
    i16: |n| n as i16 - 77;
    u16: |n| n as u16;
    i32: |n| -(n as i32);
    u32: |n| n as u32 * 3;
    i64: |n| 1000 + n as i64;
    u64: |n| (n as u64) << 33 | n as u64;
    f64: |n| n as f64 / 3.0;
    bool: |n| (n ^ (n >> 1) ^ (n >> 3)) & 1 == 1;
    [f32; 3]: |n| [n as f32, -1.5, n as f32 / 2.0];
    [u8; 5]: |n| [n as u8, (n >> 8) as u8, 1, 2, n as u8];
    u128: |n| (n as u128) << 70 | n as u128;
    Wide: |n| Wide([n as u64, 1, 2, 3, 4, 5, 6, n as u64]);
    Suit: |n| [Suit::Clubs, Suit::Diamonds, Suit::Hearts, Suit::Spades][(n ^ (n >> 2)) & 3];
}

/// Aligned as cache lines are.
#[derive(Clone, Copy, Debug, PartialEq, NoUninit, AnyBitPattern)]
#[repr(C, align(64))]
pub(crate) struct Wide([u64; 8]);

/// Of which no value has only zero bytes.
#[derive(Clone, Copy, Debug, PartialEq, NoUninit, CheckedBitPattern)]
#[repr(u16)]
pub(crate) enum Suit {
    Clubs = 1,
    Diamonds,
    Hearts,
    Spades = 0x0101,
}

/// A plan of an array.
#[derive(Clone, Debug)]
pub(crate) struct Case<const D: usize> {
    pub(crate) shape: [usize; D],
    pub(crate) dists: [Dist; D],
    pub(crate) grid: Option<[usize; D]>,
}

impl<const D: usize> Case<D> {
    pub(crate) fn random(random: &mut Random, ranks: usize, longest: usize) -> Self {
        let shape = std::array::from_fn(|_| match random.below(6) {
            0 => random.below(3),
            _ => random.within(1, longest),
        });
        let grid = random_grid(random, ranks);
        let automatic = random.one_in(3);
        let dists = std::array::from_fn(|d| match random.below(5) {
            // With a grid of its own choice the library has to leave these as they are.
            0 if automatic => Dist::Irregular(random.lengths(shape[d], grid[d])),
            1 if automatic => Dist::Whole,
            4 if grid[d] == 1 => Dist::Whole,
            0 | 4 => Dist::Irregular(random.lengths(shape[d], grid[d])),
            1 => Dist::Cyclic,
            2 => Dist::BlockCyclic(random.within(1, 5)),
            _ => Dist::Block,
        });
        let grid = (!automatic).then_some(grid);
        Self { shape, dists, grid }
    }

    pub(crate) fn builder<'a, T: Element>(&self, world: &'a World) -> Builder<'a, T, D> {
        let builder = GlobalArray::builder(world, self.shape).dist(self.dists.clone());
        match self.grid {
            Some(grid) => builder.grid(grid),
            None => builder,
        }
    }

    /// An array of the values of the row-major numbers of its elements, plus `shift`.
    pub(crate) fn filled<T: Value>(
        &self,
        world: &World,
        shift: usize,
    ) -> pgas::Result<GlobalArray<T, D>> {
        let shape = self.shape;
        self.builder(world)
            .from_fn(|index: [usize; D]| T::of(shift + row_major(index, shape)))
    }

    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Rank and local index of an element, in a grid.
    pub(crate) fn place(&self, grid: [usize; D], index: [usize; D]) -> (usize, [usize; D]) {
        let (mut rank, mut local) = (0, [0; D]);
        for d in 0..D {
            let (part, place) = place(&self.dists[d], self.shape[d], grid[d], index[d]);
            rank = rank * grid[d] + part;
            local[d] = place;
        }
        (rank, local)
    }
}

fn random_grid<const D: usize>(random: &mut Random, ranks: usize) -> [usize; D] {
    let mut grid = [1; D];
    let mut rest = ranks;
    for d in random.permutation(D) {
        grid[d] = random.within(1, rest);
        rest /= grid[d];
    }
    grid
}

/// The part that holds an index of an axis, and its place there, by going through all before it.
pub(crate) fn place(dist: &Dist, len: usize, parts: usize, index: usize) -> (usize, usize) {
    let part_of = |index: usize| match dist {
        Dist::Block => (0..parts)
            .find(|part| index < ((part + 1) * len).div_ceil(parts))
            .expect("a part"),
        Dist::Cyclic => index % parts,
        Dist::BlockCyclic(block) => index / block % parts,
        Dist::Irregular(lens) => {
            let mut end = 0;
            let holds = |len: &usize| {
                end += len;
                index < end
            };
            lens.iter().position(holds).expect("a part")
        }
        Dist::Whole => 0,
    };
    let part = part_of(index);
    let before = (0..index).filter(|&other| part_of(other) == part);
    (part, before.count())
}

pub(crate) fn row_major<const D: usize>(index: [usize; D], shape: [usize; D]) -> usize {
    (0..D).fold(0, |at, d| at * shape[d] + index[d])
}

/// All indices, in row-major order.
pub(crate) fn indices<const D: usize>(shape: [usize; D]) -> Vec<[usize; D]> {
    let len: usize = shape.iter().product();
    let of_number = |mut number: usize| {
        let mut index = [0; D];
        for d in (0..D).rev() {
            index[d] = number % shape[d];
            number /= shape[d];
        }
        index
    };
    (0..len).map(of_number).collect()
}
