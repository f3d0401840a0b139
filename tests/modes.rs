//! Access modes: slices where all ranks agreed on them, and an error everywhere else.

#![expect(clippy::cast_possible_truncation, reason = "test numbers are small")]

use pgas::testing::{Ranks, on_ranks};
use pgas::{Boundary, Dist, ErrorKind, GlobalArray, Op};

#[test]
fn slices_of_peers_on_this_node() {
    on_ranks(4, |world| {
        let mut array = GlobalArray::<u32>::from_fn(world, 103, |index| index as u32)?;
        let ranges: Vec<_> = (0..4).map(|rank| array.range_of(rank)).collect();
        let view = array.read()?;
        assert_eq!(view.global_len(), 103);
        for (rank, range) in ranges.into_iter().enumerate() {
            let right: Vec<u32> = range.clone().map(|index| index as u32).collect();
            assert_eq!(view.shard_of(rank)?, right);
            assert_eq!(view.get_range(range)?, right);
        }
        let mut filled = [0; 50];
        view.get_into(20, &mut filled)?;
        assert_eq!(filled[0], 20);
        assert_eq!(view.get(102)?, 102);
        assert_eq!(view.get(103).unwrap_err().kind(), ErrorKind::OutOfBounds);
        view.close()?;
        array.put(0, 5)?;
        Ok(())
    });
}

/// Writing happens in turns: a local view of one rank sees all that was put before, and what
/// it writes is seen by all afterwards.
#[test]
fn modes_synchronise() {
    on_ranks(4, |world| {
        let len = 40;
        let mut array = GlobalArray::<u64>::new(world, len)?;
        for round in 0..100 {
            for index in (0..len).filter(|index| index % 4 == world.rank()) {
                array.put(index, round)?;
            }
            for value in array.local()?.iter_mut() {
                assert_eq!(*value, round);
                *value += 1000;
            }
            assert_eq!(array.get(round as usize % len)?, round + 1000);
            assert!(array.read()?.iter().all(|&value| value == round + 1000));
            world.barrier()?;
        }
        Ok(())
    });
}

#[test]
fn a_leaked_view_leaves_the_mode_and_every_operation_says_so() {
    on_ranks(2, |world| {
        let mut array = GlobalArray::<u64>::new(world, 8)?;
        std::mem::forget(array.local()?);
        let errors = [
            array.get(0).unwrap_err(),
            array.get(7).unwrap_err(),
            array.put(0, 1).unwrap_err(),
            array.fetch_add(3, 1).unwrap_err(),
            array.swap(3, 1).unwrap_err(),
            array.compare_exchange(3, 0, 1).unwrap_err(),
            array.get_range(0..8).unwrap_err(),
            array.get_into(0, &mut [0; 8]).unwrap_err(),
            array.put_range(0, &[1; 8]).unwrap_err(),
            array.read().unwrap_err(),
            array.local().unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::WrongMode, "{error}");
            let text = error.to_string();
            assert!(
                text.contains("local()") && text.contains("modes.rs:"),
                "{text}"
            );
        }
        // Other arrays, and dropping this one, are fine.
        drop(array);
        GlobalArray::<u64>::new(world, 8)?.close()
    });
}

/// One rank enters `local`, another does something else: nobody gets a slice.
#[test]
fn ranks_that_do_not_enter_together() {
    on_ranks(2, |world| {
        let mut a = GlobalArray::<u64>::new(world, 8)?;
        let mut b = GlobalArray::<u64>::new(world, 8)?;
        let zeroth = world.rank() == 0;
        let different_modes = if zeroth {
            a.local().map(drop)
        } else {
            a.read().map(drop)
        };
        let different_arrays = if zeroth {
            a.local().map(drop)
        } else {
            b.local().map(drop)
        };
        let a_barrier = if zeroth {
            a.local().map(drop)
        } else {
            world.barrier()
        };
        for refused in [different_modes, different_arrays, a_barrier] {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Mismatch);
        }
        // Nobody is in a mode now.
        a.put(0, 1)?;
        a.local()?.fill(2);
        assert_eq!(a.get(7)?, 2);
        assert_eq!(b.get(7)?, 0);
        Ok(())
    });
}

/// A panic while a view is open ends the job with the panic, not with a wait for the others.
#[test]
fn a_panic_in_a_view() {
    let outcome = Ranks::new(3).outcome(|world| {
        let mut array = GlobalArray::<u64>::new(world, 8)?;
        let mut view = array.local()?;
        assert!(world.rank() != 2, "two is one too many");
        view[0] = 1;
        drop(view);
        world.barrier()
    });
    assert_eq!(outcome.code, 101);
    assert!(
        outcome.to_string().contains("two is one too many"),
        "{outcome}"
    );
}

/// Bytes that are no value of the element type never become one.
#[test]
fn a_shard_that_holds_no_values_gives_no_slice() {
    use bytemuck::{CheckedBitPattern, NoUninit};
    #[derive(Clone, Copy, Debug, PartialEq, NoUninit, CheckedBitPattern)]
    #[repr(u32)]
    enum Colour {
        Red = 1,
        Blue = 2,
    }
    on_ranks(2, |world| {
        // Zero is no colour: an array of zeros is refused.
        let error = GlobalArray::<Colour>::new(world, 4).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidValue, "{error}");
        let array = GlobalArray::from_fn(world, 4, |index| {
            if index % 2 == 0 {
                Colour::Red
            } else {
                Colour::Blue
            }
        })?;
        assert_eq!(array.get(3)?, Colour::Blue);
        Ok(())
    });
}

/// What ranks do in a mode or an exchange must go together, too.
#[test]
fn operators_that_differ() {
    on_ranks(2, |world| {
        let first = world.rank() == 0;
        let mut array = GlobalArray::<u64>::builder(world, 8).halo([1]).build()?;
        let op = if first { Op::Sum } else { Op::Max };
        let error = array.update(op, |u| u.push(0, 1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        let mut view = array.local()?;
        let error = view.accumulate_halo(op).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        let error = match first {
            true => view.exchange().unwrap_err(),
            false => view.accumulate_halo(op).unwrap_err(),
        };
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        // And all goes on.
        view.exchange()?;
        view.accumulate_halo(Op::Sum)?;
        view.close()?;
        array.update(Op::Sum, |u| u.push(7, 1))?;
        assert_eq!(array.get(7)?, 2);
        Ok(())
    });
}

/// A plan that is wrong on one rank only is an error on all, at once.
#[test]
fn plans_that_are_wrong_on_one_rank() {
    on_ranks(3, |world| {
        let block = if world.rank() == 1 { 0 } else { 2 };
        let made = GlobalArray::<u8>::builder(world, 9)
            .dist([Dist::BlockCyclic(block)])
            .build();
        let kind = made.unwrap_err().kind();
        match world.rank() {
            1 => assert_eq!(kind, ErrorKind::InvalidArgument),
            _ => assert_eq!(kind, ErrorKind::Mismatch),
        }
        let halo = GlobalArray::<u8>::builder(world, 9).halo([1 << 40]).build();
        assert_eq!(halo.unwrap_err().kind(), ErrorKind::NoRoom);
        let value = 1.0 + if world.rank() == 2 { 0.5 } else { 0.0 };
        let fixed = GlobalArray::<f32>::builder(world, 9)
            .halo([1])
            .boundary([Boundary::Fixed(value)])
            .build();
        assert_eq!(fixed.unwrap_err().kind(), ErrorKind::Mismatch);
        world.barrier()
    });
}
