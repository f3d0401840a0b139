//! Operations that go on while the program does something else: any number, in any order, dropped
//! or forgotten (C15 e, C25), as futures, and on borrowed buffers.

#![expect(clippy::cast_possible_truncation, reason = "test numbers are small")]

use pgas::testing::on_ranks;
use pgas::{ErrorKind, GlobalArray, Request, World};
use std::mem::forget;

/// A shuffled `0..count`, the same each time.
fn shuffled(count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut x = 88_172_645_463_325_252_u64;
    for k in (1..count).rev() {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        order.swap(k, x as usize % (k + 1));
    }
    order
}

/// All requests, waited for in this order.
fn wait_all<R>(requests: Vec<Request<'_, R>>, order: &[usize]) -> pgas::Result<Vec<R>> {
    let mut requests: Vec<_> = requests.into_iter().map(Some).collect();
    let mut results: Vec<Option<R>> = requests.iter().map(|_| None).collect();
    for &k in order {
        results[k] = Some(requests[k].take().unwrap().wait()?);
    }
    Ok(results.into_iter().flatten().collect())
}

/// C25: hundreds and thousands of handles, waited for in reverse and in random order.
#[test]
fn any_number_of_handles_in_any_order() {
    on_ranks(2, |world| {
        let len = 1 << 16;
        for count in [1, 254, 255, 256, 1_023, 65_536] {
            let array = GlobalArray::<u32>::new(world, 2 * len)?;
            if world.rank() == 0 {
                let reversed: Vec<usize> = (0..count).rev().collect();
                let puts = (0..count).map(|k| array.put_async(len + k, k as u32 + 1));
                wait_all(puts.collect::<Result<_, _>>()?, &reversed)?;
                let gets = (0..count).map(|k| array.get_async(len + k));
                let values = wait_all(gets.collect::<Result<_, _>>()?, &shuffled(count))?;
                assert!(
                    values
                        .iter()
                        .enumerate()
                        .all(|(k, &value)| value == k as u32 + 1)
                );
                let puts = (0..count).map(|k| array.put_async(len + k, 7));
                wait_all(puts.collect::<Result<_, _>>()?, &shuffled(count))?;
            }
            world.barrier()?;
            let shard = array.get_range(len..len + count)?;
            assert!(shard.iter().all(|&value| value == 7));
            assert_eq!(array.get(2 * len - 1)?, if count == len { 7 } else { 0 });
            world.barrier()?;
        }
        Ok(())
    });
}

/// A put's request is done when the value is in its place, which its owner may then be told by
/// whatever way.
#[test]
fn a_request_to_put_is_done_when_the_value_is_there() {
    on_ranks(2, |world| {
        let mut array = GlobalArray::<u64>::new(world, 2)?;
        let told = GlobalArray::<u64>::new(world, 2)?;
        for round in 1..200_u64 {
            if world.rank() == 0 {
                let mut put = array.put_async(1, round)?;
                if round % 2 == 0 {
                    while !put.is_done()? {
                        std::thread::yield_now();
                    }
                }
                put.wait()?;
                told.fetch_add(1, 1)?;
            } else {
                while told.get(1)? < round {
                    std::thread::yield_now();
                }
                assert_eq!(array.get(1)?, round);
            }
            world.barrier()?;
        }
        assert_eq!(array.read()?.get(1)?, 199);
        Ok(())
    });
}

#[test]
fn dropped_and_forgotten_requests_are_harmless() {
    on_ranks(3, |world| {
        let len = 30_000;
        let mut array = GlobalArray::<u64>::from_fn(world, len, |index| index as u64)?;
        let other = (world.rank() + 1) % 3 * (len / 3);
        let scattered: Vec<usize> = shuffled(len);
        for round in 0..30 {
            drop(array.get_async(other)?);
            forget(array.get_async(other + 1)?);
            drop(array.get_range_async(0..len)?);
            forget(array.get_range_async(other..other + 5)?);
            drop(array.gather_async(&scattered)?);
            forget(array.gather_async(&scattered[..1000])?);
            drop(array.put_async(other + 7, round)?);
            forget(array.put_async(other + 8, round)?);
            // Nothing of all that touches the shard while it is borrowed.
            let mut view = array.local()?;
            assert_eq!(view[7..9], [round, round]);
            view.iter_mut().for_each(|value| *value += 1);
            view.iter_mut().for_each(|value| *value -= 1);
            view.close()?;
        }
        // C15 (e): gone while the operation is under way.
        for _ in 0..20 {
            let array = GlobalArray::<u64>::from_fn(world, len, |index| index as u64)?;
            forget(array.get_async(other)?);
            forget(array.gather_async(&scattered[..5000])?);
            forget(array.put_async(other, 1)?);
        }
        world.barrier()?;
        Ok(())
    });
}

#[test]
fn results_are_right_however_they_are_waited_for() {
    on_ranks(4, |world| {
        let len = 5_003;
        let array = GlobalArray::<u64>::from_fn(world, len, |index| index as u64 * 3)?;
        let order = shuffled(len);
        let right = |indices: &[usize]| -> Vec<u64> {
            indices.iter().map(|&index| index as u64 * 3).collect()
        };
        let all: Vec<usize> = (0..len).collect();
        assert_eq!(array.gather_async(&order)?.wait()?, right(&order));
        assert_eq!(array.get_range_async(0..len)?.wait()?, right(&all));
        assert_eq!(array.get_range_async(5..5)?.wait()?, []);
        assert_eq!(array.gather_async::<usize>(&[])?.wait()?, []);
        let mut polled = array.gather_async(&order)?;
        while !polled.is_done()? {
            std::thread::yield_now();
        }
        assert!(polled.is_done()?, "and stays so");
        assert_eq!(polled.wait()?, right(&order));
        let flags = GlobalArray::<bool>::from_fn(world, len, |index| index % 7 == 0)?;
        let some = flags.get_range_async(1..len)?.wait()?;
        assert!(
            some.iter()
                .enumerate()
                .all(|(k, &flag)| flag == ((k + 1) % 7 == 0))
        );
        assert!(flags.get_async(len / 7 * 7)?.wait()?);
        let table = GlobalArray::<i32, 2>::from_fn(world, [9, 11], |[i, j]| (i * 100 + j) as i32)?;
        assert_eq!(table.gather_async(&[[8, 10], [0, 1]])?.wait()?, [810, 1]);
        assert_eq!(table.get_async([3, 4])?.wait()?, 304);
        let error = array.get_async(len).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfBounds, "{error}");
        let error = array.gather_async(&[0, len]).unwrap_err();
        assert!(error.to_string().contains("number 1 of 2"), "{error}");
        Ok(())
    });
}

#[test]
fn futures_without_an_executor() {
    on_ranks(3, |world| {
        let array = GlobalArray::<u64>::from_fn(world, 300, |index| index as u64)?;
        let sum = world.block_on(async {
            let first = array.get_async(0)?;
            let last = array.get_async(299)?;
            let some = array.gather_async(&[1, 100, 298])?;
            array.put_async(world.rank() * 100 + 50, 1000)?.await?;
            Ok::<u64, pgas::Error>(first.await? + last.await? + some.await?.iter().sum::<u64>())
        })?;
        assert_eq!(sum, 299 + 1 + 100 + 298);
        world.barrier()?;
        assert_eq!(array.get((world.rank() + 1) % 3 * 100 + 50)?, 1000);
        // A future of something else: another thread's doing.
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(20));
                send.send(5).unwrap();
            });
            let five = world.block_on(std::future::poll_fn(|_| match receive.try_recv() {
                Ok(value) => std::task::Poll::Ready(value),
                Err(_) => std::task::Poll::Pending,
            }));
            assert_eq!(five, 5);
        });
        Ok(())
    });
}

#[test]
fn scopes_fill_borrowed_buffers() {
    on_ranks(3, |world: &World| {
        let array = GlobalArray::<u64>::from_fn(world, 300, |index| index as u64)?;
        let table = GlobalArray::<u64, 2>::from_fn(world, [30, 10], |[i, j]| (i * 10 + j) as u64)?;
        let (mut head, mut tail, mut some) = ([0; 150], vec![0; 10], [0; 3]);
        let mut column = ndarray::Array::zeros([30, 1]);
        let counted = world.scope(|scope| {
            scope.get_into(&array, 0, &mut head)?;
            scope.get_into(&array, 290, &mut tail)?;
            scope.gather_into(&array, &[299, 0, 7], &mut some)?;
            scope.get_section_into(&table, (.., 4), column.view_mut())?;
            Ok(4)
        })?;
        assert_eq!(counted, 4);
        assert!(head.iter().enumerate().all(|(k, &value)| value == k as u64));
        assert!(
            tail.iter()
                .enumerate()
                .all(|(k, &value)| value == k as u64 + 290)
        );
        assert_eq!(some, [299, 0, 7]);
        assert!(
            column
                .iter()
                .enumerate()
                .all(|(i, &value)| value == i as u64 * 10 + 4)
        );
        world.barrier()?;
        // Writes are in place at the end of the scope; errors come out of it.
        let mine = (world.rank() + 1) % 3 * 100;
        let error = world
            .scope(|scope| {
                scope.put_range(&array, mine, &[9; 100])?;
                scope.get_into(&array, 299, &mut head[..2])
            })
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfBounds, "{error}");
        world.barrier()?;
        assert_eq!(array.get_range(0..300)?, [9; 300]);
        Ok(())
    });
}
