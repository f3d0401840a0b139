//! Many elements in one call: `gather`, `scatter`, `scatter_with`, `update` and sections, beside the
//! same loops over plain memory. `benches/rivals/batch.h` does the same: change both or neither.

use crate::batches::{Batches, SEED, median, nanoseconds};
use crate::limits::{Plain, Segment};
use crate::loops::{Memory, content, xorshift};
use pgas::{GlobalArray, Op, Result, World};
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

/// Words of the table.
const TABLE: usize = 1 << 22;
/// Elements of a batch in shared memory.
const COUNT: usize = 1_000_000;
/// Rows of one rank's part of the array whose columns are read, and its columns.
const ROWS: usize = 1000;
const COLUMNS: usize = 1000;

pub(crate) fn memory(world: &World, batches: Batches) -> Result<()> {
    gather_and_scatter(world, batches)?;
    for (bins, name) in [(1 << 16, "64k"), (TABLE, "4m")] {
        scatter_with(world, batches, bins, name)?;
        update(world, batches, bins, name)?;
    }
    column(world, batches)
}

fn random_indices(count: usize, below: usize, mut x: u64) -> Vec<usize> {
    let mut next = || {
        x = xorshift(x);
        x as usize & (below - 1)
    };
    (0..count).map(|_| next()).collect()
}

/// A segment with the table's content.
fn plain_table(world: &World) -> Result<Segment> {
    let segment = Segment::create(world, 1, TABLE * 8)?;
    if world.rank() == 1 {
        for index in 0..TABLE {
            segment.words().put(index, content(index))?;
        }
    }
    world.barrier()?;
    Ok(segment)
}

#[inline(never)]
fn plain_gather(table: Plain, index: &[usize], values: &mut [u64]) -> Result<()> {
    for (value, &index) in values.iter_mut().zip(index) {
        *value = table.get(index)?;
    }
    Ok(())
}

#[inline(never)]
fn plain_scatter(table: Plain, index: &[usize], values: &[u64]) -> Result<()> {
    for (&value, &index) in values.iter().zip(index) {
        table.put(index, value)?;
    }
    table.flush()
}

#[inline(never)]
fn plain_add(table: Plain, index: &[usize], values: &[u64]) -> Result<()> {
    for (&value, &index) in values.iter().zip(index) {
        table.fetch_add(index, value)?;
    }
    table.flush()
}

fn assert_gathered(index: &[usize], values: &[u64]) {
    assert_eq!(index.len(), values.len());
    for (&index, &value) in index.iter().zip(values) {
        assert_eq!(value, content(index), "word {index}");
    }
}

/// Per element.
fn print(name: &str, count: usize, [ours, plain]: [f64; 2]) {
    let count = count as f64;
    println!("figure {name} {} {}", ours / count, plain / count);
}

fn gather_and_scatter(world: &World, batches: Batches) -> Result<()> {
    let array = GlobalArray::from_fn(world, TABLE, content)?;
    let segment = plain_table(world)?;
    if world.rank() == 0 {
        let index = random_indices(COUNT, TABLE, SEED);
        let values = RefCell::new(vec![0; COUNT]);
        let times = batches.turns(
            [
                &mut |n, _| {
                    for _ in 0..n {
                        let gathered = array.gather(&index)?;
                        *values.borrow_mut() = gathered;
                    }
                    Ok(0)
                },
                &mut |n, _| {
                    for _ in 0..n {
                        plain_gather(segment.words(), &index, &mut values.borrow_mut())?;
                    }
                    Ok(0)
                },
            ],
            &mut || {
                assert_gathered(&index, &values.borrow());
                values.borrow_mut().fill(0);
            },
        )?;
        print("gather", COUNT, times);

        // Each batch writes what the one before did not.
        let values = values.into_inner();
        let both = [&values, &values].map(|_| {
            let write = |flip: u64| index.iter().map(|&it| content(it) ^ flip).collect();
            [write(!0), write(0)] as [Vec<u64>; 2]
        });
        let calls = [Cell::new(0_usize), Cell::new(0)];
        let next = |who: usize| {
            let call = calls[who].get();
            calls[who].set(call + 1);
            &both[who][call % 2]
        };
        let times = batches.turns(
            [
                &mut |n, _| {
                    for _ in 0..n {
                        array.scatter(&index, next(0))?;
                    }
                    Ok(0)
                },
                &mut |n, _| {
                    for _ in 0..n {
                        plain_scatter(segment.words(), &index, next(1))?;
                    }
                    Ok(0)
                },
            ],
            &mut || (),
        )?;
        print("scatter", COUNT, times);
        let written = |who: usize| &both[who][(calls[who].get() + 1) % 2];
        assert_eq!(&array.gather(&index)?, written(0), "scatter");
        let mut plain = vec![0; COUNT];
        plain_gather(segment.words(), &index, &mut plain)?;
        assert_eq!(&plain, written(1), "scatter to plain memory");
    }
    world.barrier()
}

/// How often each bin is named.
fn counts(bins: usize, ranks: impl IntoIterator<Item = usize>) -> Vec<u64> {
    let mut counts = vec![0; bins];
    for rank in ranks {
        for bin in random_indices(COUNT, bins, SEED + rank as u64) {
            counts[bin] += 1;
        }
    }
    counts
}

fn assert_histogram(found: &[u64], counts: &[u64], calls: u64) {
    for (bin, (&found, &count)) in found.iter().zip(counts).enumerate() {
        assert_eq!(found, count * calls, "bin {bin} after {calls} calls");
    }
}

fn plain_words(segment: &Segment, bins: usize) -> Result<Vec<u64>> {
    (0..bins).map(|bin| segment.words().get(bin)).collect()
}

/// Rank 0 adds, the other waits.
fn scatter_with(world: &World, batches: Batches, bins: usize, name: &str) -> Result<()> {
    let array = GlobalArray::<u64>::new(world, bins)?;
    let segment = Segment::create(world, 1, bins * 8)?;
    if world.rank() == 0 {
        let index = random_indices(COUNT, bins, SEED);
        let ones = vec![1; COUNT];
        let calls = [Cell::new(0), Cell::new(0)];
        let times = batches.turns(
            [
                &mut |n, _| {
                    for _ in 0..n {
                        array.scatter_with(&index, &ones, Op::Sum)?;
                    }
                    calls[0].set(calls[0].get() + n as u64);
                    Ok(0)
                },
                &mut |n, _| {
                    for _ in 0..n {
                        plain_add(segment.words(), &index, &ones)?;
                    }
                    calls[1].set(calls[1].get() + n as u64);
                    Ok(0)
                },
            ],
            &mut || (),
        )?;
        print(&format!("scatter_with_{name}"), COUNT, times);
        let counts = counts(bins, [0]);
        assert_histogram(&array.get_range(0..bins)?, &counts, calls[0].get());
        assert_histogram(&plain_words(&segment, bins)?, &counts, calls[1].get());
    }
    world.barrier()
}

/// All ranks add, each its own million.
fn update(world: &World, batches: Batches, bins: usize, name: &str) -> Result<()> {
    let mut array = GlobalArray::<u64>::new(world, bins)?;
    let segment = Segment::create(world, 1, bins * 8)?;
    let index = random_indices(COUNT, bins, SEED + world.rank() as u64);
    let ones = vec![1; COUNT];
    let (mut ours, mut plain) = (0, 0);
    let times = batches.turns_together(
        world,
        1,
        [
            &mut || {
                ours += 1;
                array.update(Op::Sum, |updates| {
                    for (&bin, &one) in index.iter().zip(&ones) {
                        updates.push(bin, one)?;
                    }
                    Ok(())
                })
            },
            &mut || {
                plain += 1;
                plain_add(segment.words(), &index, &ones)
            },
        ],
    )?;
    if world.rank() == 0 {
        print(&format!("update_{name}"), COUNT, times);
        let counts = counts(bins, 0..world.size());
        assert_histogram(&array.get_range(0..bins)?, &counts, ours);
        assert_histogram(&plain_words(&segment, bins)?, &counts, plain);
    }
    world.barrier()
}

/// The other rank's rows follow each other; a row is `COLUMNS` words.
fn matrix(world: &World) -> Result<GlobalArray<u64, 2>> {
    let shape = [world.size() * ROWS, COLUMNS];
    GlobalArray::from_fn(world, shape, |[row, column]| {
        content(row * COLUMNS + column)
    })
}

/// A column of rank 1's rows.
fn random_column(x: &mut u64) -> usize {
    *x = xorshift(*x);
    (((*x >> 32) * COLUMNS as u64) >> 32) as usize
}

fn assert_column<'a>(column: usize, values: impl IntoIterator<Item = &'a u64>) {
    let mut rows = 0;
    for (offset, &value) in values.into_iter().enumerate() {
        assert_eq!(value, content((ROWS + offset) * COLUMNS + column));
        rows += 1;
    }
    assert_eq!(rows, ROWS);
}

fn section_loop(array: &GlobalArray<u64, 2>, n: usize, mut x: u64) -> Result<u64> {
    for round in 1..=n {
        let column = random_column(&mut x);
        let values = array.get_section((ROWS..2 * ROWS, column))?;
        if round == n {
            assert_column(column, &values);
        }
    }
    Ok(x)
}

/// Reads random columns, one element after another: `get` is given a row of rank 1's and a column.
fn gets_loop(get: impl Fn(usize, usize) -> Result<u64>, n: usize, mut x: u64) -> Result<u64> {
    let mut values = vec![0; ROWS];
    for round in 1..=n {
        let column = random_column(&mut x);
        for (offset, value) in values.iter_mut().enumerate() {
            *value = get(offset, column)?;
        }
        if round == n {
            assert_column(column, &values);
        }
    }
    Ok(x)
}

fn column(world: &World, batches: Batches) -> Result<()> {
    let array = matrix(world)?;
    let segment = Segment::create(world, 1, ROWS * COLUMNS * 8)?;
    if world.rank() == 1 {
        for word in 0..ROWS * COLUMNS {
            segment.words().put(word, content(ROWS * COLUMNS + word))?;
        }
    }
    world.barrier()?;
    if world.rank() == 0 {
        let plain = segment.words();
        let [section, gets, plain] = batches.turns(
            [
                &mut |n, seed| section_loop(&array, n, seed),
                &mut |n, seed| gets_loop(|row, column| array.get([ROWS + row, column]), n, seed),
                &mut |n, seed| gets_loop(|row, column| plain.get(row * COLUMNS + column), n, seed),
            ],
            &mut || (),
        )?;
        println!("figure column {section} {plain}");
        println!("figure column_gets {gets} {plain}");
    }
    world.barrier()
}

/// The longest that a figure of [`remote`] is repeated.
const LONGEST: Duration = Duration::from_millis(1500);

/// The median nanoseconds of an element of `call`, which does `count` of them: after one call
/// that does not count as many as fit.
fn repeat(batches: Batches, count: usize, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    call()?;
    let begin = Instant::now();
    let mut times = Vec::new();
    while times.is_empty() || times.len() < batches.count && begin.elapsed() < LONGEST {
        let begin = Instant::now();
        call()?;
        times.push(nanoseconds(begin.elapsed()) / count as f64);
    }
    Ok(median(&mut times))
}

/// Where an access takes microseconds: `count` elements in one call, and as many gets as fit into
/// some milliseconds.
pub(crate) fn remote(world: &World, batches: Batches, count: usize) -> Result<()> {
    let array = GlobalArray::from_fn(world, TABLE, content)?;
    if world.rank() == 0 {
        let index = random_indices(count, TABLE, SEED);
        let mut values = Vec::new();
        let ns = repeat(batches, count, || {
            values = array.gather(&index)?;
            Ok(())
        })?;
        println!("figure gather {ns}");
        assert_gathered(&index, &values);
        let few = &index[..count.min(2000)];
        let ns = repeat(batches, few.len(), || {
            values.clear();
            for &index in few {
                values.push(array.get(index)?);
            }
            Ok(())
        })?;
        println!("figure gather_gets {ns}");
        assert_gathered(few, &values);

        let values: Vec<u64> = index.iter().map(|&index| !content(index)).collect();
        let ns = repeat(batches, count, || {
            array.scatter(&index, &values)?;
            array.flush()
        })?;
        println!("figure scatter {ns}");
        assert_eq!(array.gather(&index)?, values);
    }
    world.barrier()?;

    let array = GlobalArray::<u64>::new(world, TABLE)?;
    if world.rank() == 0 {
        let index = random_indices(count, TABLE, SEED);
        let ones = vec![1; count];
        let mut calls = 0;
        let ns = repeat(batches, count, || {
            calls += 1;
            array.scatter_with(&index, &ones, Op::Sum)?;
            array.flush()
        })?;
        println!("figure scatter_with_4m {ns}");
        let mut counts = vec![0; TABLE];
        for &index in &index {
            counts[index] += 1;
        }
        assert_histogram(&array.get_range(0..TABLE)?, &counts, calls);
    }
    world.barrier()?;

    let array = matrix(world)?;
    if world.rank() == 0 {
        let [section, gets] = batches.turns(
            [
                &mut |n, seed| section_loop(&array, n, seed),
                &mut |n, seed| gets_loop(|row, column| array.get([ROWS + row, column]), n, seed),
            ],
            &mut || (),
        )?;
        println!("figure column {section}");
        println!("figure column_gets {gets}");
    }
    world.barrier()
}
