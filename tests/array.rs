//! Arrays on several ranks: shapes, access, and what must be refused.

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
