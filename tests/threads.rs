//! One array used by many threads of every rank.

mod model;

use model::{Random, everywhere};
use ndarray::Array;
use pgas::{GlobalArray, Op, span};
use rayon::prelude::*;
use std::ops::Range;

/// What one of many threads does with its own part of an array, and with one count of all.
fn one_thread(array: &GlobalArray<u64>, mine: Range<usize>, count: usize) {
    let mut random = Random(mine.start as u64);
    let mut right: Vec<u64> = vec![0; mine.len()];
    for round in 1..40 {
        let value = mine.start as u64 * 1000 + round;
        let (a, b) = (random.below(mine.len()), random.below(mine.len()));
        let part = a.min(b)..a.max(b) + 1;
        let there = mine.start + part.start..mine.start + part.end;
        match random.below(6) {
            0 => {
                array.put(mine.start + a, value).unwrap();
                right[a] = value;
            }
            1 => {
                array
                    .put_range(there.start, &vec![value; part.len()])
                    .unwrap();
                right[part.clone()].fill(value);
            }
            2 => {
                let values = Array::from_iter((0..part.len() as u64).map(|k| value + k));
                array
                    .put_section(span(there.clone()).step_by(-1), &values)
                    .unwrap();
                right[part.clone()]
                    .iter_mut()
                    .rev()
                    .zip(values)
                    .for_each(|(to, value)| *to = value);
            }
            3 => {
                array
                    .scatter(&[mine.start + a, mine.start + b], &[value, value + 1])
                    .unwrap();
                (right[a], right[b]) = (value, value + 1);
            }
            4 => {
                let list: Vec<usize> = there.clone().rev().collect();
                let ones = vec![1; list.len()];
                array.scatter_with(&list, &ones, Op::Sum).unwrap();
                right[part.clone()].iter_mut().for_each(|value| *value += 1);
            }
            _ => {
                assert_eq!(array.swap(mine.start + a, value).unwrap(), right[a]);
                right[a] = value;
            }
        }
        array.fetch_add(count, 1).unwrap();
        let list: Vec<usize> = (0..9)
            .map(|_| mine.start + random.below(mine.len()))
            .collect();
        let wanted: Vec<u64> = list.iter().map(|&at| right[at - mine.start]).collect();
        assert_eq!(array.gather(&list).unwrap(), wanted);
        assert_eq!(array.get_range(there.clone()).unwrap(), right[part]);
        assert_eq!(array.get(mine.start + b).unwrap(), right[b]);
    }
}

/// Threads of the standard library, then rayon's, of all ranks at once.
#[test]
fn many_threads_of_all_ranks() {
    everywhere(2, |world| {
        const EACH: usize = 30;
        let threads = 8;
        let len = 2 * threads * EACH;
        let mut array = GlobalArray::<u64>::new(world, len + 1)?;
        // Threads in turn have a part of either rank's memory.
        let part = |thread: usize| {
            let start = (2 * thread + world.rank()) * EACH;
            start..start + EACH
        };
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let array = &array;
                scope.spawn(move || one_thread(array, part(thread), len));
            }
        });
        world.barrier()?;
        assert_eq!(array.get(len)?, 2 * 8 * 39);
        world.barrier()?;
        array.local()?.fill(0);

        let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build();
        let pool = pool.expect("a pool");
        pool.install(|| {
            (0..threads)
                .into_par_iter()
                .for_each(|thread| one_thread(&array, part(thread), len));
        });
        world.barrier()?;
        assert_eq!(array.get(len)?, 2 * 8 * 39);
        world.barrier()?;

        // Slices are ordinary ones.
        let first = array.local_range().start;
        pool.install(|| {
            let mut view = array.local()?;
            view.par_iter_mut()
                .enumerate()
                .for_each(|(k, value)| *value = (first + k) as u64 * 3);
            view.close()
        })?;
        let all: Vec<u64> = (0..=len as u64).map(|index| index * 3).collect();
        assert_eq!(array.get_range(0..len + 1)?, all);
        let view = array.read()?;
        let sum: u64 = pool.install(|| {
            (0..=len)
                .into_par_iter()
                .map(|index| view.get(index).unwrap())
                .sum()
        });
        assert_eq!(sum, all.iter().sum());
        view.close()
    });
}
