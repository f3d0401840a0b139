//! Messages between ranks: sizes, tags, any sender, order, objects, requests, itself, and errors.

#![expect(clippy::cast_possible_truncation, reason = "test numbers are small")]

mod model;

use pgas::testing::{Ranks, on_ranks};
use pgas::{Any, ErrorKind, World};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// A message goes round, of every size from nothing to several MiB.
#[test]
fn sizes_around_a_ring() {
    on_ranks(3, |world| {
        let next = (world.rank() + 1) % world.size();
        let before = (world.rank() + world.size() - 1) % world.size();
        for len in [
            0,
            1,
            7,
            8,
            100,
            1_000,
            8_192,
            12_480,
            65_536,
            1 << 20,
            (5 << 20) + 3,
        ] {
            let mine: Vec<u8> = (0..len).map(|k| (k + world.rank() * 7) as u8).collect();
            let (theirs, envelope) = world.sendrecv(next, before, 5, &mine)?;
            assert_eq!(
                (envelope.source, envelope.tag, envelope.bytes),
                (before, 5, len)
            );
            let right = |(k, value): (usize, &u8)| *value == (k + before * 7) as u8;
            assert!(
                theirs.len() == len && theirs.iter().enumerate().all(right),
                "{len}"
            );
        }
        Ok(())
    });
}

#[test]
fn tags_and_senders_select_and_order_is_kept() {
    on_ranks(4, |world| {
        if world.rank() > 0 {
            for round in 0..200_u32 {
                world.send(0, round % 2, &[world.rank() as u32 * 1000 + round])?;
            }
            return world.barrier();
        }
        // Odd tags first, though even ones have come, too; rank by rank.
        for rank in [2, 3, 1] {
            for round in (1..200).step_by(2) {
                let (values, envelope) = world.recv::<u32>(rank, 1)?;
                assert_eq!(
                    (values[0], envelope.source),
                    (rank as u32 * 1000 + round, rank)
                );
            }
        }
        assert_eq!(world.iprobe(Any, 1)?, None);
        // The rest from whoever comes; each sender's in order.
        let mut next = [0; 4];
        for _ in 0..300 {
            let seen = world.probe(Any, Any)?;
            let (values, envelope) = world.recv::<u32>(seen.source, Any)?;
            assert_eq!((seen, envelope.tag), (envelope, 0));
            let expected = envelope.source as u32 * 1000 + next[envelope.source];
            assert_eq!(values, [expected]);
            next[envelope.source] += 2;
        }
        assert_eq!(world.iprobe(Any, Any)?, None);
        world.barrier()
    });
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Job {
    name: String,
    parts: BTreeMap<u32, Option<f64>>,
}

#[test]
fn objects_and_elements_of_other_kinds() {
    on_ranks(2, |world| {
        let other = 1 - world.rank();
        let job = |rank: usize| Job {
            name: format!("job of rank {rank}"),
            parts: BTreeMap::from([(1, Some(0.5)), (rank as u32 + 2, None)]),
        };
        world.send_obj(other, 3, &job(world.rank()))?;
        assert_eq!(world.recv_obj::<Job>(other, 3)?.0, job(other));
        world.send(other, 4, &[true, false, true])?;
        assert_eq!(world.recv::<bool>(other, 4)?.0, [true, false, true]);
        world.send(other, 4, &[[1.5_f32, 2.0, 2.5]])?;
        assert_eq!(world.recv::<[f32; 3]>(other, 4)?.0, [[1.5, 2.0, 2.5]]);
        // What is not what was sent is an error that names both, and later messages go on.
        world.send(other, 5, &[1_u64])?;
        let error = world.recv::<f64>(other, 5).unwrap_err();
        assert_eq!(
            (error.kind(), error.peer()),
            (ErrorKind::Mismatch, Some(other))
        );
        let text = error.to_string();
        assert!(text.contains("u64") && text.contains("f64"), "{text}");
        world.send(other, 5, &[1_u64, 2])?;
        let error = world.recv_into(other, 5, &mut [0_u64; 3]).unwrap_err();
        assert!(error.to_string().contains("2 elements"), "{error}");
        world.send(other, 5, &[3_u64, 4])?;
        let mut two = [0_u64; 2];
        assert_eq!(world.recv_into(other, 5, &mut two)?.bytes, 16);
        assert_eq!(two, [3, 4]);
        for error in [
            world.send(2, 0, &[1_u8]).unwrap_err(),
            world.recv::<u8>(2, 0).unwrap_err(),
            world.probe(9, Any).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
        Ok(())
    });
}

/// Nobody is at the other side when a message to itself is sent.
#[test]
fn messages_to_itself() {
    on_ranks(2, |world| {
        let me = world.rank();
        let large = vec![7_u64; 1 << 20];
        world.send(me, 1, &large)?;
        world.send(me, 2, &[1_u64])?;
        world.send_obj(me, 3, &"three".to_string())?;
        assert_eq!(world.probe(me, Any)?.bytes, 8 << 20);
        assert_eq!(world.recv::<u64>(Any, 2)?.0, [1]);
        assert_eq!(world.recv_obj::<String>(me, 3)?.0, "three");
        assert_eq!(world.irecv::<u64>(me, Any)?.wait()?.0, large);
        // From another thread, while this one waits.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                world.send(me, 9, &[5_i8]).unwrap();
            });
            assert_eq!(world.recv::<i8>(me, 9).unwrap().0, [5]);
        });
        Ok(())
    });
}

#[test]
fn many_requests_at_once() {
    on_ranks(3, |world| {
        let count = 500_u32;
        let others: Vec<usize> = (0..3).filter(|&rank| rank != world.rank()).collect();
        let mut receives = Vec::new();
        for tag in 0..count {
            for &rank in &others {
                receives.push((rank, tag, world.irecv::<u32>(rank, tag)?));
            }
        }
        let mut sends = Vec::new();
        for tag in (0..count).rev() {
            for &rank in &others {
                let values = vec![tag; 1 + tag as usize * 20];
                sends.push(world.isend(rank, tag, &values)?);
            }
        }
        for (rank, tag, receive) in receives {
            let (values, envelope) = world.block_on(receive)?;
            assert_eq!((envelope.source, envelope.tag), (rank, tag));
            assert!(values.len() == 1 + tag as usize * 20 && values.iter().all(|&v| v == tag));
        }
        for mut send in sends {
            while !send.is_done()? {
                std::thread::yield_now();
            }
            send.wait()?;
        }
        // What nobody waits for arrives all the same.
        for &rank in &others {
            drop(world.isend(rank, 1000, &[world.rank() as u64; 3])?);
        }
        for &rank in &others {
            assert_eq!(world.recv::<u64>(rank, 1000)?.0, [rank as u64; 3]);
        }
        world.barrier()
    });
}

/// Messages and collectives do not take each other's.
#[test]
fn messages_between_collectives() {
    on_ranks(4, |world| {
        let next = (world.rank() + 1) % 4;
        for round in 0..100_u64 {
            let send = world.isend(next, 0, &[round])?;
            assert_eq!(world.all_gather(round)?, [round; 4]);
            let (values, _) = world.recv::<u64>((world.rank() + 3) % 4, Any)?;
            assert_eq!(values, [round]);
            send.wait()?;
        }
        Ok(())
    });
}

#[test]
fn a_message_that_does_not_come_is_an_error() {
    Ranks::new(2).env("PGAS_TIMEOUT", "1").run(|world: &World| {
        if world.rank() == 0 {
            let error = world.recv::<u8>(1, 77).unwrap_err();
            assert_eq!(
                (error.kind(), error.peer()),
                (ErrorKind::Timeout, Some(1)),
                "{error}"
            );
            assert!(error.to_string().contains("tag 77"), "{error}");
            let error = world.probe(Any, 78).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            let mut receive = world.irecv::<u8>(1, 79)?;
            let error = loop {
                match receive.is_done() {
                    Ok(done) => assert!(!done),
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            world.send(1, 0, &[1_u8])?;
        } else {
            // Longer than the limit: not one wait.
            while world.iprobe(0, 0)?.is_none() {
                std::thread::sleep(Duration::from_millis(5));
            }
            world.recv::<u8>(0, 0)?;
        }
        Ok(())
    });
}

#[test]
fn a_sender_that_dies_ends_the_wait() {
    let outcome = Ranks::new(2).outcome(|world| {
        if world.rank() == 1 {
            std::process::exit(3);
        }
        let error = world.recv::<u8>(1, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PeerFailed, "{error}");
        Err(error)
    });
    assert_eq!(outcome.code, 3, "{outcome}");
}

/// Of two ranks that exchange large messages one is killed, most likely within a message: the other
/// has an error, or ends with the job, at once.
fn killed_within_a_message(victim: usize) {
    let begun = std::time::Instant::now();
    let outcome = Ranks::new(2).outcome(|world| {
        let mut values = vec![world.rank() as u64; 8 << 20];
        world.barrier()?;
        if world.rank() == victim {
            std::thread::spawn(|| {
                std::thread::sleep(Duration::from_millis(150));
                let me = rustix::process::getpid();
                rustix::process::kill_process(me, rustix::process::Signal::KILL).unwrap();
            });
        }
        loop {
            let outcome = match world.rank() {
                0 => world.send(1, 1, &values),
                _ => world.recv_into(0, 1, &mut values).map(drop),
            };
            if let Err(error) = outcome {
                assert_eq!(error.kind(), ErrorKind::PeerFailed, "{error}");
                return Err(error);
            }
            assert!(values.iter().all(|&value| value == 0));
        }
    });
    assert_eq!(outcome.code, 137, "{outcome}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{outcome}");
}

#[test]
fn a_sender_that_is_killed_within_a_message() {
    killed_within_a_message(0);
}

#[test]
fn a_receiver_that_is_killed_within_a_message() {
    killed_within_a_message(1);
}

/// A receiver gives up a message whose sender is stopped: it has an error, or, if the sender is
/// writing to its memory just then, ends rather than go on with memory that will be written.
#[test]
fn a_sender_that_is_stopped_within_a_message() {
    let outcome = Ranks::new(2).env("PGAS_TIMEOUT", "1").outcome(|world| {
        let values = vec![1_u64; 8 << 20];
        let mut received = values.clone();
        let pids = world.all_gather(rustix::process::getpid().as_raw_nonzero().get())?;
        if world.rank() == 0 {
            loop {
                world.send(1, 1, &values)?;
            }
        }
        let sender = rustix::process::Pid::from_raw(pids[0]).unwrap();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(150));
            rustix::process::kill_process(sender, rustix::process::Signal::STOP).unwrap();
        });
        loop {
            world.recv_into(0, 1, &mut received)?;
        }
    });
    let text = outcome.to_string() + &String::from_utf8_lossy(&outcome.stderr);
    let timed_out = text.contains("within 1s") || text.contains("no answer for 1s");
    let ended = outcome.code == 134 && text.contains("is writing a message to this process");
    assert!(timed_out || ended, "{} {text}", outcome.code);
}

/// What a rank has under way goes on while it waits for others in something else.
#[test]
fn messages_go_on_in_collectives() {
    on_ranks(3, |world| {
        let (next, before) = ((world.rank() + 1) % 3, (world.rank() + 2) % 3);
        let large = vec![world.rank() as u64; 4 << 20];
        let many = vec![world.rank() as u32; 2_000];
        let send = world.isend(next, 1, &large)?;
        let sends: Vec<_> = (0..300)
            .map(|_| world.isend(next, 2, &many))
            .collect::<Result<_, _>>()?;
        if world.rank() == 0 {
            // Waits for all at the others, which wait for what it has sent.
            world.barrier()?;
        }
        let (values, _) = world.recv::<u64>(before, 1)?;
        assert!(values.len() == 4 << 20 && values.iter().all(|&v| v == before as u64));
        for _ in 0..300 {
            assert_eq!(world.recv::<u32>(before, 2)?.0[..2], [before as u32; 2]);
        }
        if world.rank() > 0 {
            world.barrier()?;
        }
        send.wait()?;
        sends.into_iter().try_for_each(pgas::Request::wait)?;
        // What nobody waits for arrives before the end, too.
        drop(world.isend(next, 3, &large)?);
        if world.rank() == 0 {
            return Ok(());
        }
        world.recv::<u64>(before, 3).map(drop)
    });
}

/// Elements of 8 bytes that are more than a ring of chunks holds.
const LARGE: usize = 300_000;

fn large(seed: usize) -> Vec<u64> {
    (0..LARGE as u64).map(|k| k * 3 + seed as u64).collect()
}

/// A send that waits until it is received, by a rank that waits in a barrier that waits for the
/// sender.
#[test]
fn a_large_message_is_received_in_a_barrier() {
    model::everywhere(2, |world| {
        if world.rank() == 0 {
            world.send(1, 1, &large(0))?;
            world.send(1, 2, &[7_u8])?;
            world.barrier()
        } else {
            let second = world.irecv::<u8>(0, 2)?;
            let first = world.irecv::<u64>(0, 1)?;
            world.barrier()?;
            let (values, envelope) = first.wait()?;
            assert_eq!((values, envelope.bytes), (large(0), LARGE * 8));
            assert_eq!(second.wait()?.0, [7]);
            Ok(())
        }
    });
}

#[test]
fn requests_get_messages_in_the_order_they_were_made() {
    model::everywhere(3, |world| {
        if world.rank() == 0 {
            let mut requests = Vec::new();
            for _ in 0..8 {
                requests.push(world.irecv::<u64>(Any, Any)?);
            }
            // To itself, while others may come first.
            world.send(0, 9, &large(9))?;
            world.barrier()?;
            let mut next = [0; 3];
            for request in requests {
                let (values, envelope) = request.wait()?;
                let (from, tag) = (envelope.source, envelope.tag);
                assert_eq!(envelope.bytes, values.len() * 8);
                if from > 0 {
                    assert_eq!(tag, next[from]);
                    next[from] += 1;
                }
                let len = if tag % 2 == 0 { 3 } else { LARGE };
                assert_eq!(
                    values,
                    large(from * 10 + tag as usize)[..len.min(values.len())]
                );
            }
            assert_eq!(next[1..], [4, 3]);
        } else {
            let count = if world.rank() == 1 { 4 } else { 3 };
            for tag in 0..count {
                let values = large(world.rank() * 10 + tag as usize);
                let len = if tag % 2 == 0 { 3 } else { LARGE };
                world.send(0, tag, &values[..len])?;
            }
            world.barrier()?;
        }
        Ok(())
    });
}

#[test]
fn large_messages_are_probed_lost_and_refused() {
    model::everywhere(2, |world| {
        let other = 1 - world.rank();
        if world.rank() == 0 {
            for tag in 0..6 {
                world.send(1, tag, &large(tag as usize))?;
            }
            return world.recv_into(1, 0, &mut [0_u8; 1]).map(drop);
        }
        let seen = world.probe(other, 0)?;
        assert_eq!((seen.bytes, seen.tag), (LARGE * 8, 0));
        assert_eq!(world.iprobe(other, Any)?, Some(seen));
        assert_eq!(world.recv::<u64>(Any, Any)?.0, large(0));
        // Of another type, of another length, given up: lost, and the next one comes.
        let error = world.recv::<f64>(other, 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        let error = world.recv_into(other, 2, &mut [0_u64; 5]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        world.probe(other, 3)?;
        drop(world.irecv::<u64>(other, 3)?);
        let mut to = vec![0_u64; LARGE];
        world.recv_into(other, 4, &mut to)?;
        assert_eq!(to, large(4));
        assert_eq!(world.recv::<u64>(other, 5)?.0, large(5));
        world.send(other, 0, &[1_u8])
    });
}

/// More large messages at once than go through one ring.
#[test]
fn large_messages_all_at_once() {
    model::everywhere(4, |world| {
        let (me, size) = (world.rank(), world.size());
        let to_all = |thread: usize| -> pgas::Result<()> {
            for round in 0..4 {
                for step in 1..size {
                    let tag = (thread * 4 + round) as u32;
                    let mine = large(me * 100 + tag as usize);
                    world.send((me + step) % size, tag, &mine)?;
                }
            }
            Ok(())
        };
        let mut expected = Vec::new();
        for from in (0..size).filter(|&from| from != me) {
            for tag in 0..8 {
                expected.push((from, tag, world.irecv::<u64>(from, tag)?));
            }
        }
        std::thread::scope(|scope| {
            let one = scope.spawn(|| to_all(0));
            to_all(1)?;
            one.join().expect("a thread that only sends")
        })?;
        for (from, tag, request) in expected {
            assert_eq!(request.wait()?.0, large(from * 100 + tag as usize));
        }
        Ok(())
    });
}

/// More than a process's outbox holds at a time, received in another order than sent, into buffers of any size; and
/// requests that nobody waits for.
#[test]
fn many_large_messages_at_once() {
    on_ranks(3, |world| {
        let me = world.rank();
        let lens = [16 << 10, 100_000, 1 << 20, (3 << 20) + 1, 64 << 10, 3];
        let content = |from: usize, to: usize, tag: usize| -> Vec<u8> {
            let seed = from * 31 + to * 7 + tag;
            let len = lens[tag % lens.len()];
            (0..len).map(|k| (k / 3 + seed) as u8).collect()
        };
        let others: Vec<usize> = (0..3).filter(|&rank| rank != me).collect();
        for round in 0..2 {
            let mut sends = Vec::new();
            for tag in 0..18 {
                for &to in &others {
                    let send = world.isend(to, tag as u32, &content(me, to, tag))?;
                    if (tag + round) % 3 != 0 {
                        sends.push(send);
                    }
                }
            }
            for tag in (0..18).rev() {
                for &from in &others {
                    let right = content(from, me, tag);
                    // None, too little, and too much.
                    let buffer = vec![9_u8; [0, 10, 2 << 20][(tag + round) % 3]];
                    let request = world.irecv_vec(from, tag as u32, buffer)?;
                    let (values, envelope) = request.wait()?;
                    assert_eq!((envelope.source, envelope.bytes), (from, right.len()));
                    assert!(values == right, "tag {tag} from {from}");
                }
            }
            for send in sends {
                send.wait()?;
            }
        }
        // A type not all of whose bytes are values.
        let send = world.isend((me + 1) % 3, 99, &vec![true; 70_000])?;
        let receive = world.irecv_vec((me + 2) % 3, 99, vec![false; 80_000])?;
        let (flags, _) = receive.wait()?;
        send.wait()?;
        assert!(flags.len() == 70_000 && flags.iter().all(|&flag| flag));
        world.barrier()
    });
}
