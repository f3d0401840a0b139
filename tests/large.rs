//! Sections that take many messages, elements as large as messages, and more bytes in one transfer
//! or message than 31 bits count.

#![expect(clippy::cast_possible_truncation, reason = "test numbers are small")]

mod model;

use model::{Case, Random, Suit, Value, everywhere, over_tcp, row_major};
use ndarray::Array;
use pgas::testing::Ranks;
use pgas::{AtomicElement, Dist, ErrorKind, GlobalArray, Op, World, span};

/// Read and written through strides in both directions.
fn many_messages<T: Value>(world: &World, shape: [usize; 2], dists: [Dist; 2]) -> pgas::Result<()> {
    let case = Case {
        shape,
        dists,
        grid: None,
    };
    let array = case.filled::<T>(world, 0)?;
    let value = |i: usize, j: usize| T::of(row_major([i, j], shape));
    for (row_step, column_step) in [(1, 1), (-3, 1), (1, 2), (-1, -7)] {
        let every = |len: usize, step: isize| -> Vec<usize> {
            let all = (0..len).step_by(step.unsigned_abs());
            match step > 0 {
                true => all.collect(),
                false => all.map(|k| len - 1 - k).collect(),
            }
        };
        let (rows, columns) = (every(shape[0], row_step), every(shape[1], column_step));
        let section = || (span(..).step_by(row_step), span(..).step_by(column_step));
        let wanted = rows
            .iter()
            .flat_map(|&i| columns.iter().map(move |&j| (i, j)));
        let got = array.get_section(section())?;
        assert_eq!(got.shape(), [rows.len(), columns.len()]);
        assert!(
            got.iter().copied().eq(wanted.map(|(i, j)| value(i, j))),
            "{row_step} {column_step}"
        );
        world.barrier()?;
        // Back with other values, by one rank, and again as they were by another.
        for (writer, shift) in [(0, 1), (world.size() - 1, 0)] {
            let at =
                |(k, l): (usize, usize)| T::of(row_major([rows[k], columns[l]], shape) + shift);
            let from = Array::from_shape_fn([columns.len(), rows.len()], |(l, k)| at((k, l)));
            if world.rank() == writer {
                array.put_section(section(), from.t())?;
            }
            world.barrier()?;
            let got = array.get_section(section())?;
            assert!(
                got.iter().eq(from.t().iter()),
                "{row_step} {column_step} {shift}"
            );
            world.barrier()?;
        }
    }
    // All indices at once, in an order that has nothing to do with where they are.
    let mut random = Random(world.rank() as u64);
    let list: Vec<[usize; 2]> = random
        .permutation(case.len())
        .into_iter()
        .map(|number| [number / shape[1], number % shape[1]])
        .collect();
    let right: Vec<T> = list.iter().map(|&[i, j]| value(i, j)).collect();
    assert_eq!(array.gather(&list)?, right);
    world.barrier()?;
    if world.rank() == 1 {
        array.scatter(&list, &right)?;
    }
    world.barrier()?;
    assert!(array.gather(&list[..1000])?[..] == right[..1000]);
    world.barrier()
}

#[test]
fn sections_of_many_messages() {
    everywhere(3, |world| {
        let (wide, tall) = ([40, 2000], [2000, 40]);
        many_messages::<i64>(world, wide, [Dist::Block, Dist::Irregular(vec![1990, 10])])?;
        many_messages::<u8>(world, wide, [Dist::Whole, Dist::Cyclic])?;
        many_messages::<[f32; 3]>(world, tall, [Dist::BlockCyclic(7), Dist::Whole])?;
        many_messages::<Suit>(world, tall, [Dist::Whole, Dist::Irregular(vec![0, 39, 1])])
    });
}

/// Values of all ranks for more elements than fit a message.
fn many_values<T: Value + AtomicElement>(world: &World, times: impl Fn(T) -> T) -> pgas::Result<()>
where
    Op: pgas::Operator<T>,
{
    let shape = [300, 200];
    let array = GlobalArray::<T, 2>::builder(world, shape)
        .dist([Dist::Cyclic, Dist::Whole])
        .build()?;
    let ones = Array::from_shape_fn([200, 300], |(j, i)| T::of(i * 7 + j));
    array.acc((span(..).step_by(-1), ..), ones.t(), Op::Sum)?;
    world.barrier()?;
    let all = array.get_section((.., ..))?;
    for ((i, j), value) in all.indexed_iter() {
        assert_eq!(*value, times(T::of((299 - i) * 7 + j)));
    }
    world.barrier()
}

#[test]
fn sums_of_many_messages() {
    everywhere(3, |world| {
        many_values::<u8>(world, |value| value.wrapping_mul(3))?;
        many_values::<i64>(world, |value| value * 3)?;
        many_values::<f64>(world, |value| value + value + value)
    });
}

/// Elements of half a message, and of more than one.
fn large_elements<const N: usize>(world: &World) -> pgas::Result<()> {
    let element = |k: usize| {
        let mut element = [0_u32; N];
        element
            .iter_mut()
            .zip(k as u32..)
            .for_each(|(word, k)| *word = k);
        element
    };
    let mut array = GlobalArray::<[u32; N]>::builder(world, 40)
        .dist([Dist::BlockCyclic(3)])
        .from_fn(|k: usize| element(k))?;
    let is = |values: &[[u32; N]], right: &mut dyn Iterator<Item = usize>| {
        values
            .iter()
            .all(|value| right.next().is_some_and(|k| *value == element(k)))
    };
    let list: Vec<usize> = (0..80).map(|k| k * 7 % 40).collect();
    assert!(is(&array.gather(&list)?, &mut list.iter().copied()));
    assert!(is(&array.get_range(0..40)?, &mut (0..40)));
    let backwards = array.get_section(span(..).step_by(-3))?;
    assert!(is(&backwards.to_vec(), &mut (0..40).rev().step_by(3)));
    world.barrier()?;
    if world.rank() == 1 {
        let values: Vec<[u32; N]> = (0..80).map(|k| element(k + 1000)).collect();
        array.scatter(&list, &values)?;
        let values = Array::from_iter((0..14).map(|k| element(k + 2000)));
        array.put_section(span(..).step_by(-3), &values)?;
        array.put(38, element(5))?;
    }
    world.barrier()?;
    let right = |at: usize| match at {
        38 => 5,
        at if (39 - at).is_multiple_of(3) => 2000 + (39 - at) / 3,
        at => 1000 + list.iter().rposition(|&other| other == at).unwrap(),
    };
    assert!(is(&array.get_range(0..40)?, &mut (0..40).map(right)));
    let view = array.read()?;
    assert!(is(
        view.section(..)?.as_slice().unwrap(),
        &mut (0..40).map(right)
    ));
    view.close()
}

#[test]
fn elements_as_large_as_messages() {
    everywhere(2, |world| {
        large_elements::<1>(world)?;
        large_elements::<2_000>(world)?;
        large_elements::<9_000>(world)?;
        large_elements::<17_000>(world)
    });
}

/// From one rank to another over the network.
#[test]
fn a_transfer_of_over_2_gib() {
    over_tcp(2).run(|world| {
        const CHUNK: usize = 1 << 16;
        let len = (1 << 31) + 40 * CHUNK;
        let held_by = |rank: usize, len: usize| {
            let mut lens = vec![0, 0];
            lens[rank] = len;
            let plan = GlobalArray::<u8>::builder(world, len);
            plan.dist([Dist::Irregular(lens)]).build()
        };
        // The buffer is an array, too: the library looks whether there is so much memory.
        let arrays = (held_by(0, len + 7), held_by(1, len));
        let Some((mut array, mut buffer)) = if_there_is_room(arrays) else {
            return Ok(());
        };
        let mut pattern: Vec<u8> = (0..251).cycle().take(CHUNK).collect();
        let mut bytes = buffer.local()?;
        if world.rank() == 1 {
            for (number, to) in bytes.chunks_exact_mut(CHUNK).enumerate() {
                pattern[..8].copy_from_slice(&number.to_le_bytes());
                to.copy_from_slice(&pattern);
            }
            array.put_range(5, &bytes)?;
            let around = (1 << 31) - CHUNK..(1 << 31) + 16 * CHUNK;
            assert!(array.get_range(around.start + 5..around.end + 5)? == bytes[around]);
        }
        bytes.close()?;
        buffer.close()?;
        let view = array.read()?;
        if world.rank() == 0 {
            assert_eq!((&view[..5], &view[len + 5..]), (&[0; 5][..], &[0; 2][..]));
            for (number, bytes) in view[5..len + 5].chunks_exact(CHUNK).enumerate() {
                pattern[..8].copy_from_slice(&number.to_le_bytes());
                assert!(bytes == pattern, "chunk {number}");
            }
        }
        view.close()?;
        array.close()
    });
}

/// In chunks, each with its number in it.
const CHUNK: usize = 1 << 16;

type Made = pgas::Result<GlobalArray<u8>>;

/// Two large arrays; nothing if one is refused because there is too little memory, clearly.
fn if_there_is_room(arrays: (Made, Made)) -> Option<(GlobalArray<u8>, GlobalArray<u8>)> {
    match arrays {
        (Ok(one), Ok(other)) => Some((one, other)),
        (one, other) => {
            for error in [one.err(), other.err()].into_iter().flatten() {
                assert_eq!(error.kind(), ErrorKind::NoRoom, "{error}");
                let text = error.to_string();
                assert!(text.contains("wanted") && text.contains("free"), "{text}");
            }
            println!("not done: too little memory");
            None
        }
    }
}

/// Calls `each` with every chunk and what shall be in it.
fn chunks<C: AsRef<[u8]>>(all: impl Iterator<Item = C>, mut each: impl FnMut(C, &[u8])) {
    let mut pattern: Vec<u8> = (0..251).cycle().take(CHUNK).collect();
    for (number, chunk) in all.enumerate() {
        pattern[..8].copy_from_slice(&number.to_le_bytes());
        let len = chunk.as_ref().len();
        each(chunk, &pattern[..len]);
    }
}

/// A message of more bytes than 31 bits count, and a small one after it.
fn a_message_of_over_2_gib(world: &World) -> pgas::Result<()> {
    let len = (1 << 31) + 4096;
    // Memory of arrays: the library looks whether there is so much. One as long as the message on
    // each rank for the message, and one for the copies that a message is on its way.
    let on_each = |len: usize| {
        let plan = GlobalArray::<u8>::builder(world, 2 * len);
        plan.dist([Dist::Irregular(vec![len, len])]).build()
    };
    let Some((mut buffer, copies)) = if_there_is_room((on_each(len), on_each(len))) else {
        return Ok(());
    };
    copies.close()?;
    let mut bytes = buffer.local()?;
    match world.rank() {
        0 => {
            let all = bytes.chunks_mut(CHUNK);
            chunks(all, |to, pattern| to.copy_from_slice(pattern));
            world.send(1, 7, &bytes)?;
            world.send(1, 7, &[1_u8, 2, 3])?;
        }
        _ => {
            let envelope = world.recv_into(0, 7, &mut bytes)?;
            assert_eq!((envelope.tag, envelope.bytes), (7, len));
            let all = bytes.chunks(CHUNK);
            chunks(all, |found, pattern| assert!(found == pattern));
            let mut small = [0_u8; 3];
            world.recv_into(0, 7, &mut small)?;
            assert_eq!(small, [1, 2, 3]);
        }
    }
    bytes.close()?;
    buffer.close()
}

#[test]
fn a_message_of_over_2_gib_on_this_machine() {
    Ranks::new(2).run(a_message_of_over_2_gib);
}

#[test]
fn a_message_of_over_2_gib_over_the_network() {
    over_tcp(2).run(a_message_of_over_2_gib);
}
