//! Sections: strides, turned-round dimensions, views of any layout, and the order of operations.

#![expect(clippy::cast_possible_wrap, reason = "test numbers are small")]

mod model;

use model::{Case, Random, Suit, Value, everywhere, indices, row_major};
use ndarray::{Array, ArrayViewMut, Axis, Dim, Dimension, IntoDimension, Ix, Slice};
use pgas::testing::on_ranks;
use pgas::{
    AtomicElement, BitOp, Dist, ErrorKind, GlobalArray, Op, Operator, Section, Span, World, span,
};

/// Indices of one dimension, as the library is told and as they are.
fn some_span(random: &mut Random, len: usize) -> (Span, Vec<usize>) {
    if len > 0 && random.one_in(6) {
        let index = random.below(len);
        return (index.into(), vec![index]);
    }
    let (a, b) = (random.below(len + 1), random.below(len + 1));
    let (start, end) = match random.below(4) {
        0 => (0, len),
        // A few empty ones, at any place.
        1 if random.one_in(3) => (a, a),
        _ => (a.min(b), a.max(b)),
    };
    let range: Vec<usize> = (start..end).collect();
    match random.below(3) {
        0 if start == 0 && end == len => ((..).into(), range),
        0 => ((start..end).into(), range),
        1 => {
            let step = random.within(1, 1 + len / 2);
            let every = range.into_iter().step_by(step).collect();
            (span(start..end).step_by(step as isize), every)
        }
        _ => {
            let step = random.within(1, 1 + len / 2);
            let every = range.into_iter().rev().step_by(step).collect();
            (span(start..end).step_by(-(step as isize)), every)
        }
    }
}

/// A section, and the row-major numbers of its elements in its own row-major order.
struct Selection<const D: usize> {
    spans: [Span; D],
    shape: [usize; D],
    numbers: Vec<usize>,
}

impl<const D: usize> Selection<D> {
    fn random(random: &mut Random, shape: [usize; D]) -> Self {
        let axes = shape.map(|len| some_span(random, len));
        let counts = axes.each_ref().map(|(_, every)| every.len());
        let number =
            |place: [usize; D]| row_major(std::array::from_fn(|d| axes[d].1[place[d]]), shape);
        Self {
            spans: axes.each_ref().map(|(span, _)| *span),
            shape: counts,
            numbers: indices(counts).into_iter().map(number).collect(),
        }
    }

    fn of<T: Copy>(&self, all: &[T]) -> Vec<T> {
        self.numbers.iter().map(|&number| all[number]).collect()
    }
}

/// Calls `body` with a view of this shape that lies in memory in some other way.
fn scattered<T: Value, const D: usize, R>(
    random: &mut Random,
    shape: [usize; D],
    body: impl FnOnce(ArrayViewMut<'_, T, Dim<[Ix; D]>>) -> R,
) -> R
where
    Dim<[Ix; D]>: Dimension,
    [Ix; D]: IntoDimension<Dim = Dim<[Ix; D]>>,
{
    // Axis `d` of the view is axis `order[d]` of the memory, every second of it, or all.
    let order: [usize; D] = random.permutation(D).try_into().expect("D numbers");
    let step = random.within(1, 2);
    let mut outer = [0; D];
    for d in 0..D {
        outer[order[d]] = shape[d] * step + random.below(3);
    }
    let mut memory = Array::from_elem(outer, T::of(77));
    let mut view = memory.view_mut().permuted_axes(order);
    for (d, len) in shape.into_iter().enumerate() {
        let all = Slice::from(0..len * step).step_by(step as isize);
        view.slice_axis_inplace(Axis(d), all);
        if random.one_in(3) {
            view.invert_axis(Axis(d));
        }
    }
    assert_eq!(view.shape(), shape);
    body(view)
}

/// C05 in one dimension: the same as on a `Vec`, in the order of the request.
#[test]
fn strides_backwards_repeats_and_any_order() {
    everywhere(4, |world| {
        for dist in [
            Dist::Block,
            Dist::Cyclic,
            Dist::BlockCyclic(4),
            Dist::Irregular(vec![1, 0, 70, 30]),
        ] {
            strides_of(world, &dist)?;
        }
        Ok(())
    });
}

fn strides_of(world: &World, dist: &Dist) -> pgas::Result<()> {
    let len = 101;
    let array = GlobalArray::<i64>::builder(world, len)
        .dist([dist.clone()])
        .from_fn(|index: usize| 1000 + index as i64)?;
    let mut right: Vec<i64> = (0..len as i64).map(|index| 1000 + index).collect();
    let every_seventh: Vec<i64> = (3..101).step_by(7).map(|index| 1000 + index).collect();
    assert_eq!(
        array.get_section(span(3..101).step_by(7))?.to_vec(),
        every_seventh
    );
    let backwards: Vec<i64> = right.iter().rev().copied().collect();
    assert_eq!(array.get_section(span(..).step_by(-1))?.to_vec(), backwards);
    assert_eq!(
        array.get_section(span(..=100).step_by(-1))?.to_vec(),
        backwards
    );
    let down: Vec<i64> = (0..8).map(|k| 1099 - 13 * k).collect();
    assert_eq!(array.get_section(span(..=99).step_by(-13))?.to_vec(), down);
    // Steps of any size, as long as there is at most one index.
    for step in [isize::MAX, isize::MIN, isize::MIN + 1] {
        let one = array.get_section(span(..).step_by(step))?;
        assert_eq!(one.to_vec(), [if step > 0 { 1000 } else { 1100 }]);
        assert!(array.get_section(span(7..7).step_by(step))?.is_empty());
    }

    let mut random = Random(5);
    let lists = [
        vec![0, 100, 50, 50, 0],
        random.permutation(len),
        (0..10 * len).map(|_| random.below(len)).collect(),
    ];
    for list in lists {
        let wanted: Vec<i64> = list.iter().map(|&index| right[index]).collect();
        assert_eq!(array.gather(&list)?, wanted, "{dist:?}");
    }
    for refused in [
        array.get_section(span(3..50).step_by(0)).map(drop),
        array.put_section(span(3..50).step_by(0), &Array::from_elem(0, 0)),
        array.acc(span(..).step_by(0), &Array::from_elem(101, 1), Op::Sum),
    ] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    world.barrier()?;

    // Every 9th, from rank 3, in reverse order.
    let values: Vec<i64> = (0..12).map(|k| -k).collect();
    if world.rank() == 3 {
        array.put_section(span(..).step_by(-9), &Array::from_vec(values.clone()))?;
    }
    world.barrier()?;
    for (k, value) in values.into_iter().enumerate() {
        right[100 - 9 * k] = value;
    }
    for (index, value) in right.iter().enumerate() {
        assert_eq!(array.get(index)?, *value, "{dist:?} {index}");
    }
    world.barrier()
}

/// C05 in two dimensions.
#[test]
fn columns_rows_and_blocks_of_another_distribution() {
    everywhere(4, |world| {
        let shape = [11, 9];
        let value = |[i, j]: [usize; 2]| (i * 100 + j) as i64;
        let array = GlobalArray::<i64, 2>::from_fn(world, shape, value)?;
        let other = GlobalArray::<i64, 2>::builder(world, shape)
            .dist([Dist::BlockCyclic(2), Dist::Irregular(vec![1, 8])])
            .grid([2, 2])
            .from_fn(|index| -value(index))?;
        let column = array.get_section((.., 4))?;
        assert_eq!(column.shape(), [11, 1]);
        assert!(column.iter().copied().eq((0..11).map(|i| value([i, 4]))));
        let row = array.get_section((10, ..))?;
        assert_eq!(row.shape(), [1, 9]);
        assert!(row.iter().copied().eq((0..9).map(|j| value([10, j]))));
        world.barrier()?;
        if world.rank() == 2 {
            let block = other.get_section((1..10, 1..8))?;
            array.put_section((1..10, 1..8), &block)?;
        }
        world.barrier()?;
        for [i, j] in indices(shape) {
            let inside = (1..10).contains(&i) && (1..8).contains(&j);
            let right = if inside {
                -value([i, j])
            } else {
                value([i, j])
            };
            assert_eq!(array.get([i, j])?, right);
        }
        world.barrier()
    });
}

/// Reads and writes of random sections of a random array.
fn random_sections<T: Value, const D: usize>(
    world: &World,
    random: &mut Random,
    longest: usize,
) -> pgas::Result<()>
where
    Dim<[Ix; D]>: Dimension,
    [Ix; D]: IntoDimension<Dim = Dim<[Ix; D]>>,
{
    let case = Case::<D>::random(random, world.size(), longest);
    let mut array = case.filled::<T>(world, 0)?;
    let mut right: Vec<T> = (0..case.len()).map(T::of).collect();
    // Reads: each rank its own.
    let mut own = Random(random.next() ^ world.rank() as u64);
    for _ in 0..6 {
        let wanted = Selection::random(&mut own, case.shape);
        let values = wanted.of(&right);
        let got = array.get_section(wanted.spans)?;
        assert_eq!(got.shape(), wanted.shape, "{case:?} {:?}", wanted.spans);
        assert!(got.iter().eq(&values), "{case:?} {:?}", wanted.spans);
        scattered(&mut own, wanted.shape, |mut to| {
            array.get_section_into(wanted.spans, to.view_mut())?;
            assert!(to.iter().eq(&values), "{case:?} {:?}", wanted.spans);
            pgas::Result::Ok(())
        })?;
    }
    // Without a copy, or fetched once.
    let view = array.read()?;
    for _ in 0..4 {
        let wanted = Selection::random(&mut own, case.shape);
        let (once, twice) = (view.section(wanted.spans)?, view.section(wanted.spans)?);
        assert_eq!(once.shape(), wanted.shape);
        assert!(
            once.iter().eq(&wanted.of(&right)),
            "{case:?} {:?}",
            wanted.spans
        );
        assert_eq!(
            (once.as_ptr(), once.strides()),
            (twice.as_ptr(), twice.strides())
        );
    }
    view.close()?;
    for rank in 0..world.size() {
        let owned: Vec<_> = array.owned(rank).iter().collect();
        let view = array.read()?;
        let (once, twice) = (view.shard_of(rank)?, view.shard_of(rank)?);
        assert_eq!(once.as_ptr(), twice.as_ptr());
        assert_eq!(once.len(), owned.len());
        for (value, index) in once.iter().zip(owned) {
            assert_eq!(*value, right[row_major(index, case.shape)]);
        }
        view.close()?;
    }
    // Writes: one rank after the other, in an order that all know.
    for round in 0..2 * world.size() {
        let wanted = Selection::random(random, case.shape);
        let shift = random.below(1000);
        if round % world.size() == world.rank() {
            scattered(&mut own, wanted.shape, |mut from| {
                for (n, value) in from.iter_mut().enumerate() {
                    *value = T::of(n + shift);
                }
                array.put_section(wanted.spans, from.view())
            })?;
            array.flush()?;
        }
        for (n, &number) in wanted.numbers.iter().enumerate() {
            right[number] = T::of(n + shift);
        }
        world.barrier()?;
        if round % 3 == 0 {
            let all = array.get_section([..; D])?;
            assert!(all.iter().eq(&right), "{case:?} {:?}", wanted.spans);
            world.barrier()?;
        }
    }
    // And all at the same time: neighbours of one dimension belong to different ranks.
    let d = random.below(D);
    let mine: Vec<usize> = (world.rank()..case.shape[d])
        .step_by(world.size())
        .collect();
    if !mine.is_empty() {
        let mut spans = [span(..); D];
        spans[d] = span(world.rank()..).step_by(world.size() as isize);
        let mut shape = case.shape;
        shape[d] = mine.len();
        array.put_section(spans, &Array::from_elem(shape, T::of(world.rank() + 1)))?;
    }
    world.barrier()?;
    let all = array.get_section([..; D])?;
    for (index, value) in indices(case.shape).into_iter().zip(&all) {
        assert_eq!(
            *value,
            T::of(index[d] % world.size() + 1),
            "{case:?} {index:?}"
        );
    }
    world.barrier()
}

fn every_kind(world: &World) -> pgas::Result<()> {
    let mut random = Random(world.size() as u64);
    for _ in 0..4 {
        random_sections::<i64, 1>(world, &mut random, 300)?;
        random_sections::<u8, 2>(world, &mut random, 20)?;
        random_sections::<Suit, 3>(world, &mut random, 9)?;
        random_sections::<[f32; 3], 2>(world, &mut random, 20)?;
        random_sections::<bool, 4>(world, &mut random, 6)?;
        random_sections::<f64, 3>(world, &mut random, 9)?;
        random_sections::<Suit, 1>(world, &mut random, 60)?;
        random_sections::<[u8; 5], 1>(world, &mut random, 60)?;
    }
    Ok(())
}

#[test]
fn random_sections_on_2_ranks() {
    everywhere(2, every_kind);
}
#[test]
fn random_sections_on_4_ranks() {
    everywhere(4, every_kind);
}
#[test]
fn random_sections_on_7_ranks() {
    on_ranks(7, every_kind);
}

/// All ranks combine values into overlapping sections at the same time.
fn random_acc<T: Value + AtomicElement, O: Operator<T>, const D: usize>(
    world: &World,
    random: &mut Random,
    longest: usize,
    op: O,
    combine: impl Fn(T, T) -> T,
) -> pgas::Result<()>
where
    Dim<[Ix; D]>: Dimension,
    [Ix; D]: IntoDimension<Dim = Dim<[Ix; D]>>,
{
    let case = Case::<D>::random(random, world.size(), longest);
    let array = case.filled::<T>(world, 3)?;
    let mut right: Vec<T> = (0..case.len()).map(|n| T::of(n + 3)).collect();
    let mut own = Random(random.next() ^ world.rank() as u64);
    for _ in 0..3 {
        for rank in 0..world.size() {
            let wanted = Selection::random(random, case.shape);
            let shift = random.below(100);
            if rank == world.rank() {
                scattered(&mut own, wanted.shape, |mut values| {
                    for (n, value) in values.iter_mut().enumerate() {
                        *value = T::of(n % 11 + shift);
                    }
                    array.acc(wanted.spans, values.view(), op)
                })?;
            }
            for (n, &number) in wanted.numbers.iter().enumerate() {
                right[number] = combine(right[number], T::of(n % 11 + shift));
            }
        }
    }
    world.barrier()?;
    let all = array.get_section([..; D])?;
    assert!(all.iter().eq(&right), "{case:?}\n{all:?}\n{right:?}");
    world.barrier()
}

#[test]
fn sections_are_combined_by_all_ranks_at_once() {
    everywhere(4, |world| {
        let mut random = Random(99);
        for _ in 0..4 {
            random_acc::<i64, _, 1>(world, &mut random, 200, Op::Sum, |a, b| a + b)?;
            random_acc::<u8, _, 2>(world, &mut random, 15, Op::Sum, u8::wrapping_add)?;
            random_acc::<i16, _, 3>(world, &mut random, 7, Op::Min, Ord::min)?;
            random_acc::<u32, _, 2>(world, &mut random, 15, Op::Max, Ord::max)?;
            random_acc::<u64, _, 1>(world, &mut random, 200, BitOp::Xor, |a, b| a ^ b)?;
            random_acc::<bool, _, 2>(world, &mut random, 15, BitOp::Xor, |a, b| a ^ b)?;
            random_acc::<u8, _, 4>(world, &mut random, 5, BitOp::Or, |a, b| a | b)?;
        }
        Ok(())
    });
}

#[test]
fn what_does_not_fit_changes_nothing() {
    everywhere(3, |world| {
        let mut array = GlobalArray::<i64, 2>::from_fn(world, [10, 8], |[i, j]| (i * j) as i64)?;
        let ones = |shape: [usize; 2]| Array::from_elem(shape, 1_i64);
        let mut to = ones([3, 3]);
        fn kind<T: std::fmt::Debug>(refused: pgas::Result<T>) -> ErrorKind {
            refused.unwrap_err().kind()
        }
        let outside: [[Span; 2]; 5] = [
            [(8..11).into(), (..).into()],
            [(..).into(), 8.into()],
            [(11..).into(), (..0).into()],
            [(..=usize::MAX).into(), 0.into()],
            [span(..).step_by(3), span(0..9).step_by(-1)],
        ];
        for spans in outside {
            let shape = [3, 3];
            assert_eq!(kind(array.get_section(spans)), ErrorKind::OutOfBounds);
            assert_eq!(
                kind(array.get_section_into(spans, to.view_mut())),
                ErrorKind::OutOfBounds
            );
            assert_eq!(
                kind(array.put_section(spans, &ones(shape))),
                ErrorKind::OutOfBounds
            );
            assert_eq!(
                kind(array.acc(spans, &ones(shape), Op::Sum)),
                ErrorKind::OutOfBounds
            );
        }
        for shape in [[3, 4], [4, 3], [0, 3], [9, 1], [1, 9]] {
            let spans = || (span(..).step_by(4), 2..5).spans();
            let into = array.get_section_into(spans(), ones(shape).view_mut());
            assert_eq!(kind(into), ErrorKind::InvalidArgument);
            let put = array.put_section(spans(), &ones(shape));
            assert_eq!(kind(put), ErrorKind::InvalidArgument);
            let acc = array.acc(spans(), &ones(shape), Op::Sum);
            assert_eq!(kind(acc), ErrorKind::InvalidArgument);
        }
        assert_eq!(to, ones([3, 3]));
        let view = array.read()?;
        assert_eq!(kind(view.section((0..11, ..))), ErrorKind::OutOfBounds);
        assert_eq!(
            kind(view.section((span(..).step_by(0), ..))),
            ErrorKind::InvalidArgument
        );
        assert_eq!(view.section((3..3, ..))?.shape(), [0, 8]);
        view.close()?;
        // Ranges that end before they begin are empty, and nothing is written for nothing.
        #[expect(clippy::reversed_empty_ranges, reason = "what is tested")]
        let reversed = 6..2;
        assert_eq!(array.get_section((reversed.clone(), 1..3))?.shape(), [0, 2]);
        array.put_section((reversed, 1..3), &ones([0, 2]))?;
        world.barrier()?;
        for [i, j] in indices([10, 8]) {
            assert_eq!(array.get([i, j])?, (i * j) as i64);
        }
        world.barrier()
    });
}
