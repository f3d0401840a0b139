//! Parts of keys, batches of reads and puts that are not waited for, between two contexts of one
//! process: over tcp, where nothing is mapped and an owner must progress, and over shared memory.

use super::{Context, Endpoint, GetBatch, MemoryHandle, PutTicket, RemoteKey, Worker};
use crate::error::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// An owner of memory, and one who uses it.
struct Pair {
    to_owner: Option<Endpoint>,
    user: Worker,
    owner_context: Context,
    mapped: bool,
    stop: Arc<AtomicBool>,
    asleep: Arc<AtomicBool>,
    helper: Option<JoinHandle<()>>,
}

impl Pair {
    fn new(transports: &str) -> Self {
        let context = || {
            Context::builder()
                .default_option("TLS", transports)
                .build()
                .unwrap()
        };
        let (owner_context, user_context) = (context(), context());
        let (owner, user) = (
            owner_context.worker().unwrap(),
            user_context.worker().unwrap(),
        );
        let to_owner = user.connect(&owner.address().unwrap()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let asleep = Arc::new(AtomicBool::new(false));
        let helper = std::thread::spawn({
            let (stop, asleep) = (stop.clone(), asleep.clone());
            move || {
                while !stop.load(Ordering::Acquire) {
                    if !asleep.load(Ordering::Acquire) {
                        owner.progress().unwrap();
                    }
                    std::thread::yield_now();
                }
            }
        });
        Self {
            to_owner: Some(to_owner),
            user,
            owner_context,
            // What the environment says goes before what is asked for here.
            mapped: std::env::var("UCX_TLS").map_or_else(
                |_| transports.contains("posix"),
                |transports| transports.contains("posix"),
            ),
            stop,
            asleep,
            helper: Some(helper),
        }
    }

    fn key(&self, words: usize) -> (MemoryHandle, RemoteKey) {
        let memory = MemoryHandle::allocate::<u64>(&self.owner_context, words).unwrap();
        let key = self.to_owner.as_ref().unwrap();
        let key = key.unpack(&memory.pack().unwrap()).unwrap();
        assert_eq!(key.as_ptr().is_some(), self.mapped);
        (memory, key)
    }

    fn let_owner_sleep(&self, sleep: bool) {
        self.asleep.store(sleep, Ordering::Release);
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.to_owner = None;
        self.stop.store(true, Ordering::Release);
        let ended = self.helper.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

fn pairs() -> [Pair; 2] {
    ["tcp,self", "posix,self"].map(Pair::new)
}

#[test]
fn a_part_is_as_good_as_a_key_of_its_own() {
    for pair in pairs() {
        let (_memory, key) = pair.key(100);
        let words = key.part::<u64>(80, 20).unwrap();
        let bytes = key.part::<u8>(3, 10).unwrap();
        let triples = key.part::<[f32; 3]>(400, 30).unwrap();
        assert_eq!((words.count(), words.len()), (20, 160));
        assert_eq!(words.base_address(), key.base_address() + 80);
        words.put(0, 7_u64).unwrap();
        words.put_range(18, &[8_u64, 9]).unwrap();
        bytes.put(9, 255_u8).unwrap();
        triples.put(29, [1.0_f32, 2.0, 3.0]).unwrap();
        key.flush().unwrap();
        assert_eq!(key.get::<u64>(10).unwrap(), 7);
        assert_eq!(key.get_range::<u64>(28, 2).unwrap(), [8, 9]);
        assert_eq!(key.get::<u64>(1).unwrap(), 255 << 32);
        assert_eq!(words.fetch_add(19, 1_u64).unwrap(), 9);
        assert_eq!(triples.get::<[f32; 3]>(29).unwrap(), [1.0, 2.0, 3.0]);

        let out = |error: crate::Error| error.kind();
        assert_eq!(
            out(words.put(20, 1_u64).unwrap_err()),
            ErrorKind::OutOfBounds
        );
        assert_eq!(
            out(bytes.get::<u64>(0).unwrap_err()),
            ErrorKind::WrongElement
        );
        for (offset, count) in [
            (801, 0),
            (800, 1),
            (0, 101),
            (usize::MAX, 1),
            (8, usize::MAX / 8),
        ] {
            assert!(key.part::<u64>(offset, count).is_err(), "{offset} {count}");
        }
        assert_eq!(
            out(key.part::<u64>(4, 1).unwrap_err()),
            ErrorKind::WrongElement
        );
        assert_eq!(key.part::<u64>(800, 0).unwrap().count(), 0);

        // A part of a part; it travels too; and the key may go first.
        let inner = words.part::<u32>(4, 2).unwrap();
        let again = pair
            .to_owner
            .as_ref()
            .unwrap()
            .unpack(&inner.serialize())
            .unwrap();
        drop((key, words));
        inner.put(0, 77_u32).unwrap();
        inner.flush().unwrap();
        assert_eq!(again.get::<u32>(0).unwrap(), 77);
    }
}

#[test]
fn a_batch_of_reads() {
    for pair in pairs() {
        let count = 5_000;
        let (_memory, key) = pair.key(count);
        let values: Vec<u64> = (0..count as u64).collect();
        key.put_range(0, &values).unwrap();
        // Not flushed: reads come after what they touch all the same.
        let mut batch = GetBatch::<u64>::new(&pair.user, count + 1);
        for at in 0..count {
            batch.post(&key, count - 1 - at, 1, at).unwrap();
        }
        let outside = [(0, 1, count + 1), (count, 1, 0), (0, 2, usize::MAX)];
        for (offset, len, at) in outside {
            let error = batch.post(&key, offset, len, at).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutOfBounds);
        }
        let mut got = batch.wait().unwrap();
        assert_eq!(got.pop(), Some(0), "read to nowhere");
        assert!(got.iter().rev().eq(&values));

        let mut batch = GetBatch::<u64>::new(&pair.user, 100);
        batch.post(&key, 10, 60, 40).unwrap();
        batch.post(&key, 900, 40, 0).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while !batch.is_done().unwrap() {
            assert!(Instant::now() < until);
        }
        let got = batch.wait().unwrap();
        assert!(got[..40].iter().copied().eq(900..940));
        assert!(got[40..].iter().copied().eq(10..70));

        // Given up, one way or the other, and the key with it.
        pair.let_owner_sleep(true);
        let mut dropped = GetBatch::<u64>::new(&pair.user, count);
        let mut forgotten = GetBatch::<u64>::new(&pair.user, count);
        for k in 0..100 {
            dropped.post(&key, k, 10, k).unwrap();
            forgotten.post(&key, k, 10, k).unwrap();
        }
        assert_eq!(dropped.is_done().unwrap(), pair.mapped);
        drop((key, dropped));
        std::mem::forget(forgotten);
        pair.let_owner_sleep(false);
        pair.user.flush().unwrap();
    }
}

#[test]
fn so_many_puts_without_waiting() {
    for pair in pairs() {
        let most = 65_536;
        let (_memory, key) = pair.key(most);
        for count in [254, 255, 256, 1_023, most] {
            let tickets: Vec<PutTicket> = (0..count)
                .map(|at| key.put_nb(at, &[at as u64 + count as u64]).unwrap())
                .collect();
            // In random order, many only dropped or forgotten.
            let mut order: Vec<_> = tickets.into_iter().enumerate().collect();
            let mut random = 1_u64;
            order.sort_by_cached_key(|_| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                random >> 20
            });
            for (at, ticket) in order {
                match at % 4 {
                    0 => drop(ticket),
                    1 => std::mem::forget(ticket),
                    _ => {
                        ticket.wait().unwrap();
                        if at % 1000 == 2 {
                            assert_eq!(key.get::<u64>(at).unwrap(), (at + count) as u64);
                        }
                    }
                }
            }
            key.flush().unwrap();
            let all = key.get_range::<u64>(0, count).unwrap();
            assert!(all.into_iter().eq(count as u64..2 * count as u64));
        }
    }
}

#[test]
fn a_put_can_be_looked_at() {
    for pair in pairs() {
        let (_memory, key) = pair.key(100);
        // Connected.
        key.put(0, 1_u64).unwrap();
        key.flush().unwrap();
        for round in 0..20_u64 {
            pair.let_owner_sleep(true);
            std::thread::sleep(Duration::from_millis(1));
            let first = key.put_nb(3, &[round]).unwrap();
            let start = Instant::now();
            assert_eq!(first.is_done().unwrap(), pair.mapped);
            // Began before this one.
            let second = key.put_nb(4, &[round + 1]).unwrap();
            for _ in 0..10 {
                assert_eq!(second.is_done().unwrap(), pair.mapped);
            }
            assert!(start.elapsed() < Duration::from_secs(1), "did not block");
            pair.let_owner_sleep(false);
            let until = Instant::now() + Duration::from_secs(20);
            match round % 3 {
                0 => {
                    while !second.is_done().unwrap() {
                        assert!(Instant::now() < until);
                    }
                    assert!(first.is_done().unwrap());
                }
                1 => second.wait().unwrap(),
                _ => pair.user.flush().unwrap(),
            }
            assert_eq!(key.get_range::<u64>(3, 2).unwrap(), [round, round + 1]);
        }
        let last = key.put_nb(5, &[1_u64]).unwrap();
        let _ = last.is_done().unwrap();
        drop(key); // A flush may be under way.
        drop(last);
    }
}
