//! Arrays on several ranks: shapes, access, and what must be refused.

#![expect(clippy::cast_possible_truncation, reason = "test numbers are small")]

use pgas::testing::on_ranks;
use pgas::{ErrorKind, GlobalArray, Op, World};

const LENGTHS: [usize; 10] = [0, 1, 2, 3, 5, 6, 7, 10, 97, 100];

/// C01: every length on every number of ranks, with empty and uneven shards.
fn every_length(world: &World) -> pgas::Result<()> {
    for len in LENGTHS {
        let mut array = GlobalArray::<u64>::new(world, len)?;
        let ranges: Vec<_> = (0..world.size()).map(|rank| array.range_of(rank)).collect();
        assert_eq!(ranges[world.rank()], array.local_range());
        let mut next = 0;
        for range in &ranges {
            assert_eq!(range.start, next, "in order, without gaps");
            assert!(range.end >= range.start);
            next = range.end;
        }
        assert_eq!(next, len);
        let lens = ranges.iter().map(ExactSizeIterator::len);
        assert!(lens.clone().max().unwrap() - lens.min().unwrap() <= 1);

        let first = array.local_range().start;
        let mut mine = array.local()?;
        assert_eq!(mine.len(), ranges[world.rank()].len());
        for (offset, value) in mine.iter_mut().enumerate() {
            let index = (first + offset) as u64;
            *value = index * index + 1;
        }
        drop(mine);

        let right: Vec<u64> = (0..len as u64).map(|index| index * index + 1).collect();
        for (index, value) in right.iter().enumerate() {
            assert_eq!(array.get(index)?, *value);
            assert!(ranges[array.owner(index)?].contains(&index));
        }
        assert_eq!(array.get_range(0..len)?, right);
        let mut filled = vec![0; len];
        array.get_into(0, &mut filled)?;
        assert_eq!(filled, right);
        let local: u64 = array.read()?.iter().sum();
        assert_eq!(world.all_reduce(local, Op::Sum)?, right.iter().sum());

        assert_eq!(array.get(len).unwrap_err().kind(), ErrorKind::OutOfBounds);
        assert_eq!(array.owner(len).unwrap_err().kind(), ErrorKind::OutOfBounds);
        // Nobody may drop what another still reads? They may: see tests/lifetime.rs.
    }
    Ok(())
}

#[test]
fn every_length_on_1_rank() {
    on_ranks(1, every_length);
}
#[test]
fn every_length_on_2_ranks() {
    on_ranks(2, every_length);
}
#[test]
fn every_length_on_3_ranks() {
    on_ranks(3, every_length);
}
#[test]
fn every_length_on_4_ranks() {
    on_ranks(4, every_length);
}
#[test]
fn every_length_on_5_ranks() {
    on_ranks(5, every_length);
}
#[test]
fn every_length_on_7_ranks() {
    on_ranks(7, every_length);
}
#[test]
fn every_length_on_8_ranks() {
    on_ranks(8, every_length);
}

#[test]
fn ranges_across_any_number_of_shards() {
    on_ranks(4, |world| {
        let len = 1003;
        let array = GlobalArray::<i64>::from_fn(world, len, |index| 1000 + index as i64)?;
        let right: Vec<i64> = (0..len as i64).map(|index| 1000 + index).collect();
        for (start, end) in [
            (0, len),
            (0, 0),
            (len, len),
            (3, 4),
            (200, 900),
            (250, 251),
            (249, 502),
        ] {
            assert_eq!(array.get_range(start..end)?, right[start..end]);
            let mut filled = vec![0; end - start];
            array.get_into(start, &mut filled)?;
            assert_eq!(filled, right[start..end]);
        }
        world.barrier()?;
        // Each rank writes a strip that lies in two other ranks' shards.
        let start = (world.rank() * 251 + 380) % 1000;
        let strip: Vec<i64> = (0..100).map(|k| (world.rank() * 1000 + k) as i64).collect();
        for (k, part) in strip.chunks(30).enumerate() {
            let at = start + k * 30;
            let fits = part.len().min(len.saturating_sub(at));
            array.put_range(at, &part[..fits])?;
        }
        world.barrier()?;
        for rank in 0..4 {
            let start = (rank * 251 + 380) % 1000;
            for k in 0..100.min(len - start) {
                assert_eq!(array.get(start + k)?, (rank * 1000 + k) as i64);
            }
        }
        Ok(())
    });
}

#[test]
fn out_of_bounds_is_an_error_that_names_the_index_and_harms_nothing() {
    on_ranks(3, |world| {
        let array = GlobalArray::<u32>::from_fn(world, 10, |index| index as u32)?;
        let errors = [
            array.get(10).unwrap_err(),
            array.get(usize::MAX).unwrap_err(),
            array.put(10, 1).unwrap_err(),
            array.get_range(9..11).unwrap_err(),
            array.get_range(11..11).unwrap_err(),
            array.get_range(usize::MAX - 1..usize::MAX).unwrap_err(),
            array.get_into(8, &mut [0; 3]).unwrap_err(),
            array.put_range(usize::MAX, &[1, 2]).unwrap_err(),
            array.put_range(10, &[1]).unwrap_err(),
            array.fetch_add(10, 1).unwrap_err(),
            array.swap(11, 1).unwrap_err(),
            array.compare_exchange(12, 0, 1).unwrap_err(),
        ];
        for error in &errors {
            assert_eq!(error.kind(), ErrorKind::OutOfBounds, "{error}");
        }
        let text = errors[0].to_string();
        assert!(
            text.contains("index 10") && text.contains("10 elements"),
            "{text}"
        );
        // What is empty and in bounds is fine.
        assert_eq!(array.get_range(10..10)?, []);
        array.put_range(10, &[])?;
        assert_eq!(array.get_range(0..10)?, (0..10).collect::<Vec<u32>>());
        Ok(())
    });
}

#[derive(Clone, Copy, Debug, PartialEq, bytemuck::NoUninit, bytemuck::CheckedBitPattern)]
#[repr(u8)]
enum Cell {
    Dead,
    Alive,
}

#[derive(Clone, Copy, Debug, PartialEq, bytemuck::NoUninit, bytemuck::CheckedBitPattern)]
#[repr(C)]
struct Particle {
    position: [f64; 3],
    charge: i32,
    kind: u32,
}

/// C07, the plain part: any plain type is an element, and neighbours keep their values.
#[test]
fn elements_of_every_size_and_alignment() {
    fn check<T: pgas::Element + PartialEq + std::fmt::Debug>(
        world: &World,
        value: impl Fn(usize) -> T,
    ) -> pgas::Result<()> {
        let len = 61;
        let array = GlobalArray::from_fn(world, len, &value)?;
        for index in 0..len {
            assert_eq!(array.get(index)?, value(index));
        }
        assert_eq!(
            array.get_range(0..len)?,
            (0..len).map(&value).collect::<Vec<_>>()
        );
        world.barrier()?;
        // Neighbouring elements written by different ranks at the same time.
        for index in (0..len).filter(|index| index % world.size() == world.rank()) {
            array.put(index, value(index + 7))?;
        }
        world.barrier()?;
        for index in 0..len {
            assert_eq!(array.get(index)?, value(index + 7));
        }
        array.close()
    }
    on_ranks(4, |world| {
        check(world, |index| index as u8)?;
        check(world, |index| index as i16)?;
        check(world, |index| index % 3 == 0)?;
        check(world, |index| {
            char::from_u32(0x1f600 + index as u32).unwrap()
        })?;
        check(world, |index| index as f32 / 3.0)?;
        check(world, |index| index as f64 / 3.0)?;
        check(world, |index| (index as u128) << 70)?;
        check(world, |index| [index as f32, 1.0, 2.0])?;
        check(world, |index| [index as u8; 5])?;
        check(world, |index| {
            if index % 2 == 0 {
                Cell::Dead
            } else {
                Cell::Alive
            }
        })?;
        check(world, |index| Particle {
            position: [index as f64, 0.5, -1.0],
            charge: -(index as i32),
            kind: 3,
        })
    });
}

#[test]
fn from_local_moves_uneven_parts_to_their_place() {
    on_ranks(4, |world| {
        // Rank 0 brings everything, or each rank another number.
        for lens in [
            [40, 0, 0, 0],
            [0, 0, 0, 3],
            [1, 2, 3, 4],
            [0, 0, 0, 0],
            [7, 7, 7, 7],
        ] {
            let start: usize = lens[..world.rank()].iter().sum();
            let mine: Vec<u16> = (start..start + lens[world.rank()])
                .map(|i| i as u16)
                .collect();
            let array = GlobalArray::from_local(world, &mine)?;
            let total: usize = lens.iter().sum();
            assert_eq!(array.len(), total);
            let all: Vec<u16> = (0..total as u16).collect();
            assert_eq!(array.get_range(0..total)?, all);
        }
        Ok(())
    });
}

/// C23's and C15's relative: sizes that overflow are an error on all ranks, not a crash on one.
#[test]
fn impossible_sizes_are_refused_on_all_ranks() {
    on_ranks(2, |world| {
        for len in [usize::MAX, usize::MAX / 8, 1 << 60, 1 << 44] {
            let error = GlobalArray::<u64>::new(world, len).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoRoom, "{error}");
        }
        let error = GlobalArray::<[u64; 512]>::new(world, 1 << 55).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoRoom, "{error}");
        // And the job goes on.
        assert_eq!(GlobalArray::<u64>::new(world, 10)?.get(9)?, 0);
        Ok(())
    });
}

#[test]
fn many_threads_of_a_rank_access_at_once() {
    on_ranks(2, |world| {
        let array = GlobalArray::<u64>::new(world, 1000)?;
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let array = &array;
                scope.spawn(move || {
                    for index in 0..1000 {
                        array.fetch_add(index, 1 + thread).unwrap();
                        array.get(999 - index).unwrap();
                    }
                });
            }
        });
        world.barrier()?;
        for index in 0..1000 {
            assert_eq!(array.get(index)?, 2 * (1 + 2 + 3 + 4));
        }
        Ok(())
    });
}

/// Without a launcher a program is a world of one rank.
#[test]
fn alone() {
    World::run(|world| {
        assert_eq!((world.rank(), world.size()), (0, 1));
        let mut array = GlobalArray::<f64>::from_fn(world, 100, |index| index as f64)?;
        array.put(7, -1.0)?;
        assert_eq!(array.get(7)?, -1.0);
        array.local()?[0] = 3.0;
        assert_eq!(array.read()?.iter().sum::<f64>(), 4950.0 - 7.0 - 1.0 + 3.0);
        world.barrier()?;
        array.close()
    })
    .unwrap();
}
