//! The safe layer over UCX between real processes: keys of every origin, every size and
//! operation, and everything that must be refused.

use pgas::testing::on_ranks;
use pgas::ucx::{
    Context, Endpoint, MemoryHandle, RemoteKey, SerializedRemoteKey, Worker, WorkerAddress,
};
use pgas::{ErrorKind, Result, World};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

const JOB: u128 = 0x1234_5678;

/// One side of a pair: rank 0 owns memory, rank 1 uses it.
struct Side {
    context: Context,
    worker: Worker,
    to_peer: Endpoint,
    /// Progresses the worker, as a transport without one-sided hardware needs.
    helper: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl Side {
    fn new(world: &World) -> Result<Self> {
        let rank = u32::try_from(world.rank()).unwrap();
        let context = Context::builder().job(JOB).rank(rank).build()?;
        let worker = context.worker()?;
        let addresses = world.all_gather_obj(&worker.address()?.to_bytes())?;
        let address = WorkerAddress::from_bytes(&addresses[1 - world.rank()])?;
        let to_peer = worker.connect(&address)?;
        let stop = Arc::new(AtomicBool::new(false));
        let helper = std::thread::spawn({
            let (worker, stop) = (worker.clone(), stop.clone());
            move || {
                while !stop.load(Ordering::Acquire) {
                    let _ = worker.progress();
                    std::thread::yield_now();
                }
            }
        });
        Ok(Self {
            context,
            worker,
            to_peer,
            helper: Some((stop, helper)),
        })
    }

    fn finish(mut self, world: &World) -> Result<()> {
        world.barrier()?;
        if let Some((stop, helper)) = self.helper.take() {
            stop.store(true, Ordering::Release);
            helper.join().unwrap();
        }
        Ok(())
    }
}

/// Rank 0's memory of `count` words and rank 1's key to it, unpacked there.
fn share(
    world: &World,
    side: &Side,
    count: usize,
) -> Result<(Option<MemoryHandle>, Option<RemoteKey>, SerializedRemoteKey)> {
    let memory = (world.rank() == 0)
        .then(|| MemoryHandle::allocate::<u64>(&side.context, count))
        .transpose()?;
    let packed = memory.as_ref().map(MemoryHandle::pack).transpose()?;
    let packed = world.all_gather_obj(&packed)?[0].clone().unwrap();
    let key = (world.rank() == 1)
        .then(|| side.to_peer.unpack(&packed))
        .transpose()?;
    Ok((memory, key, packed))
}

/// What both a local and a remote key must do, on `count` words.
fn exercise(key: &RemoteKey, count: usize) -> Result<()> {
    assert_eq!((key.count(), key.len()), (count, count * 8));
    assert!(key.mapped_len() >= key.len());
    assert_eq!(key.owner(), 0);
    let values: Vec<u64> = (0..count as u64).map(|value| value * 3 + 1).collect();
    key.put_range(0, &values)?;
    key.flush()?;
    assert_eq!(key.get_range::<u64>(0, count)?, values);
    assert_eq!(key.get_nb::<u64>(0, count)?.wait()?, values);
    let mut filled = vec![0; count];
    key.get_into(0, &mut filled)?;
    assert_eq!(filled, values);
    if count == 0 {
        return Ok(());
    }

    let last = count - 1;
    key.put(last, 5_u64)?;
    key.flush()?;
    assert_eq!(key.get::<u64>(last)?, 5);
    assert_eq!(key.fetch_add(last, 10_u64)?, 5);
    assert_eq!(key.fetch_and(last, 0b1110_u64)?, 15);
    assert_eq!(key.fetch_or(last, 1_u64)?, 14);
    assert_eq!(key.fetch_xor(last, 0xff_u64)?, 15);
    assert_eq!(key.swap(last, 7_u64)?, 0xf0);
    assert_eq!(key.compare_exchange(last, 8_u64, 9)?, 7, "not stored");
    assert_eq!(key.compare_exchange(last, 7_u64, u64::MAX)?, 7, "stored");
    assert_eq!(key.fetch_add(last, 2_u64)?, u64::MAX, "wraps around");
    assert_eq!(key.get::<u64>(last)?, 1);
    Ok(())
}

#[test]
fn keys_of_every_origin_and_size() {
    on_ranks(2, |world| {
        let side = Side::new(world)?;
        for bytes in [0, 8, 4096, 1 << 20] {
            let count = bytes / 8;
            let (memory, key, packed) = share(world, &side, count)?;
            if let Some(memory) = &memory {
                let local = memory.remote_key(&side.worker)?;
                assert_eq!(local.base_address(), memory.as_ptr() as u64);
                exercise(&local, count)?;
            }
            world.barrier()?;
            if let Some(key) = &key {
                exercise(key, count)?;
                let again = key.serialize();
                assert_eq!(again, packed);
                let parsed = SerializedRemoteKey::from_bytes(again.as_bytes())?;
                exercise(&side.to_peer.unpack(&parsed)?, count)?;
            }
            world.barrier()?;
        }
        side.finish(world)
    });
}

/// One byte asked for, one page mapped: the byte after the first is refused all the same.
#[test]
fn a_single_byte() {
    on_ranks(2, |world| {
        let side = Side::new(world)?;
        let memory = MemoryHandle::allocate::<u8>(&side.context, 1)?;
        let packed = world.all_gather_obj(&memory.pack()?)?;
        if world.rank() == 1 {
            let key = side.to_peer.unpack(&packed[0])?;
            assert_eq!((key.len(), key.count()), (1, 1));
            assert!(key.mapped_len() >= 1);
            key.put(0, 9_u8)?;
            key.flush()?;
            assert_eq!(key.get::<u8>(0)?, 9);
            let past = key.get::<u8>(1).unwrap_err();
            assert_eq!(past.kind(), ErrorKind::OutOfBounds, "{past}");
        }
        side.finish(world)
    });
}

#[test]
fn four_byte_atomics() {
    on_ranks(2, |world| {
        let side = Side::new(world)?;
        let memory = MemoryHandle::allocate::<i32>(&side.context, 3)?;
        let packed = world.all_gather_obj(&memory.pack()?)?;
        if world.rank() == 1 {
            let key = side.to_peer.unpack(&packed[0])?;
            assert_eq!(key.fetch_add(1, -5_i32)?, 0);
            assert_eq!(key.fetch_add(1, i32::MIN)?, -5);
            assert_eq!(key.swap(1, -1_i32)?, i32::MIN.wrapping_sub(5));
            assert_eq!(key.compare_exchange(1, -1_i32, 77)?, -1);
            assert_eq!(
                key.get_range::<i32>(0, 3)?,
                [0, 77, 0],
                "neighbours untouched"
            );
        }
        side.finish(world)
    });
}

#[test]
fn misuse_is_an_error_with_its_cause() {
    on_ranks(2, |world| {
        let side = Side::new(world)?;
        let (_memory, key, packed) = share(world, &side, 100)?;
        if let Some(key) = key {
            for (offset, count) in [
                (100, 1),
                (99, 2),
                (0, 101),
                (usize::MAX, 1),
                (2, usize::MAX),
            ] {
                let error = key.get_nb::<u64>(offset, count).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::OutOfBounds, "{error}");
            }
            let past_end = [key.put(100, 1_u64), key.put_range(99, &[1_u64, 2])];
            for error in past_end.map(Result::unwrap_err) {
                assert_eq!(error.kind(), ErrorKind::OutOfBounds, "{error}");
            }
            assert_eq!(
                key.fetch_add(100, 1_u64).unwrap_err().kind(),
                ErrorKind::OutOfBounds
            );
            let wrong = [
                key.get::<f64>(0).map(drop),
                key.get::<u32>(0).map(drop),
                key.put(0, 1_i64),
                key.fetch_add(0, 1_u32).map(drop),
            ];
            for error in wrong.map(Result::unwrap_err) {
                assert_eq!(error.kind(), ErrorKind::WrongElement, "{error}");
            }
            side.to_peer.close();
            assert_eq!(key.get::<u64>(0).unwrap_err().kind(), ErrorKind::Closed);
            assert_eq!(key.put(0, 1_u64).unwrap_err().kind(), ErrorKind::Closed);
            let unpacked = side.to_peer.unpack(&packed);
            assert_eq!(unpacked.unwrap_err().kind(), ErrorKind::Closed);
        }
        side.finish(world)
    });
}

#[test]
fn damaged_keys_and_addresses_are_refused() {
    on_ranks(2, |world| {
        let side = Side::new(world)?;
        let (_memory, _key, packed) = share(world, &side, 8)?;
        let address = side.worker.address()?.to_bytes();
        for good in [packed.as_bytes(), &address] {
            let refused = |bytes: &[u8]| {
                let key = SerializedRemoteKey::from_bytes(bytes).map(drop);
                let address = WorkerAddress::from_bytes(bytes).map(drop);
                for error in [key.unwrap_err(), address.unwrap_err()] {
                    assert_eq!(error.kind(), ErrorKind::InvalidKey, "{error}");
                }
            };
            for bit in 0..good.len() * 8 {
                let mut bad = good.to_vec();
                bad[bit / 8] ^= 1 << (bit % 8);
                refused(&bad);
            }
            for len in 0..good.len() {
                refused(&good[..len]);
            }
            for extra in 1..20 {
                let mut bad = good.to_vec();
                bad.resize(good.len() + extra, 0);
                refused(&bad);
            }
        }
        side.finish(world)
    });
}

#[test]
fn keys_and_addresses_of_another_job_are_refused() {
    on_ranks(2, |world| {
        let side = Side::new(world)?;
        let stranger = Context::builder().job(JOB + 1).build()?;
        let memory = MemoryHandle::allocate::<u64>(&stranger, 4)?;
        let error = side.to_peer.unpack(&memory.pack()?).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidKey);
        assert!(error.to_string().contains("job"), "{error}");
        let address = stranger.worker()?.address()?;
        let error = side.worker.connect(&address).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidKey);
        side.finish(world)
    });
}

/// A key whose owner has dropped the memory handle: unmapping waits, so the key still reads what
/// was last written there, never memory that has become something else.
#[test]
fn the_owner_drops_before_the_user() {
    on_ranks(2, |world| {
        let side = Side::new(world)?;
        let (memory, key, _) = share(world, &side, 512)?;
        if let Some(memory) = memory {
            let local = memory.remote_key(&side.worker)?;
            local.put_range(0, &[42_u64; 512])?;
            local.flush()?;
            drop((memory, local));
            // Were it unmapped, this would take its place.
            for _ in 0..10 {
                let other = MemoryHandle::allocate::<u64>(&side.context, 512)?;
                let local = other.remote_key(&side.worker)?;
                local.put_range(0, &[13_u64; 512])?;
            }
        }
        world.barrier()?;
        if let Some(key) = key {
            assert_eq!(key.get_range::<u64>(0, 512)?, [42; 512]);
            assert_eq!(key.fetch_add(0, 1_u64)?, 42);
        }
        side.finish(world)
    });
}

#[test]
fn a_dropped_request_is_harmless() {
    on_ranks(2, |world| {
        let side = Side::new(world)?;
        let (_memory, key, _) = share(world, &side, 10_000)?;
        if let Some(key) = key {
            for round in 0..100 {
                let request = key.get_nb::<u64>(0, 10_000)?;
                match round % 3 {
                    0 => drop(request),
                    1 => std::mem::forget(request),
                    _ => assert_eq!(request.wait()?.len(), 10_000),
                }
            }
        }
        side.finish(world)
    });
}

#[test]
fn keys_survive_serde() {
    on_ranks(2, |world| {
        let side = Side::new(world)?;
        let memory = MemoryHandle::allocate::<u64>(&side.context, 4)?;
        let sent = (memory.pack()?, "beside a key".to_string());
        let received = world.all_gather_obj(&sent)?;
        assert_eq!(received[world.rank()], sent);
        let key = side.to_peer.unpack(&received[1 - world.rank()].0)?;
        assert_eq!(key.owner() as usize, 1 - world.rank());
        assert_eq!(key.get::<u64>(3)?, 0);
        world.barrier()?;
        drop(key);
        side.finish(world)
    });
}

/// C25: any number of reads may be outstanding, and be waited for in any order.
#[test]
fn very_many_requests_at_once() {
    on_ranks(2, |world| {
        let side = Side::new(world)?;
        let memory = MemoryHandle::allocate::<u32>(&side.context, 70_000)?;
        let packed = world.all_gather_obj(&memory.pack()?)?;
        if world.rank() == 0 {
            let values: Vec<u32> = (0..70_000).collect();
            memory.remote_key(&side.worker)?.put_range(0, &values)?;
        }
        world.barrier()?;
        if world.rank() == 1 {
            let key = side.to_peer.unpack(&packed[0])?;
            for count in [254, 255, 256, 1023, 65_536] {
                let requests: Vec<_> = (0..count)
                    .map(|offset| key.get_nb::<u32>(offset, 1))
                    .collect::<Result<_>>()?;
                for (offset, request) in requests.into_iter().enumerate().rev() {
                    assert_eq!(request.wait()?, [u32::try_from(offset).unwrap()]);
                }
            }
        }
        world.barrier()?;
        side.finish(world)
    });
}

/// A key is only good on an endpoint to its owner.
#[test]
fn a_key_on_an_endpoint_to_somebody_else() {
    on_ranks(2, |world| {
        let side = Side::new(world)?;
        let memory = MemoryHandle::allocate::<u64>(&side.context, 4)?;
        let packed = world.all_gather_obj(&memory.pack()?)?;
        let error = side.to_peer.unpack(&packed[world.rank()]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidKey, "{error}");
        assert!(error.to_string().contains("another process"), "{error}");
        side.to_peer.unpack(&packed[1 - world.rank()])?;
        side.finish(world)
    });
}
