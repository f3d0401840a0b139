//! Zarr arrays, with feature `zarr`.

#![expect(clippy::cast_possible_truncation, reason = "test numbers are small")]

mod model;

use model::folder::{Folder, run_again};
use model::{Case, Random, everywhere, indices};
use pgas::testing::on_ranks;
use pgas::{ErrorKind, GlobalArray, Op, Transfer};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Set in the processes that a test starts of itself.
const INSIDE: &str = "ZARR_TEST_INSIDE";

fn folder(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("pgas-zarr-{name}"))
}

fn remove(path: &Path) {
    if path.exists() {
        std::fs::remove_dir_all(path).unwrap();
    }
}

#[test]
fn any_distribution_and_chunks() {
    everywhere(3, |world| {
        let path =
            folder("any").with_extension(world.broadcast(0, std::process::id())?.to_string());
        let mut random = Random(1);
        for _ in 0..8 {
            let case = Case::<2>::random(&mut random, world.size(), 12);
            let mut array = case.filled::<f64>(world, 3)?;
            array.save_zarr(&path, [random.within(1, 5), random.within(1, 5)])?;
            let loaded = GlobalArray::<f64, 2>::load_zarr(world, &path)?;
            let mut again = case.filled::<f64>(world, 8)?;
            again.read_zarr(&path)?;
            let all = indices(case.shape);
            assert_eq!(array.gather(&all)?, loaded.gather(&all)?, "{case:?}");
            assert_eq!(array.gather(&all)?, again.gather(&all)?, "{case:?}");
            world.barrier()?;
            if world.rank() == 0 {
                // What it is, to whoever looks.
                let text = std::fs::read_to_string(path.join("zarr.json")).unwrap();
                assert!(
                    text.contains("\"float64\"") && text.contains("\"zarr_format\": 3"),
                    "{text}"
                );
                remove(&path);
            }
            world.barrier()?;
        }
        Ok(())
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    on_ranks(2, |world| {
        let path =
            folder("refused").with_extension(world.broadcast(0, std::process::id())?.to_string());
        let mut array = GlobalArray::<u16>::from_fn(world, 100, |k| k as u16)?;
        array.save_zarr(&path, [7])?;
        let kinds = [
            array.save_zarr(&path, [7]).unwrap_err().kind(),
            array.save_zarr(&path, [0]).unwrap_err().kind(),
            GlobalArray::<u32>::load_zarr(world, &path)
                .unwrap_err()
                .kind(),
            GlobalArray::<u16, 2>::load_zarr(world, &path)
                .unwrap_err()
                .kind(),
            GlobalArray::<u16>::new(world, 9)?
                .read_zarr(&path)
                .unwrap_err()
                .kind(),
            GlobalArray::<u16>::load_zarr(world, path.join("c"))
                .unwrap_err()
                .kind(),
        ];
        use ErrorKind::{InvalidArgument, Io};
        assert_eq!(
            kinds,
            [
                Io,
                InvalidArgument,
                InvalidArgument,
                InvalidArgument,
                InvalidArgument,
                Io
            ]
        );
        world.barrier()?;
        if world.rank() == 0 {
            remove(&path);
        }
        Ok(())
    });
}

#[test]
fn progress_is_told() {
    let folder = Folder::new("zarr-progress");
    folder.ranks(2).run(|world| {
        let last = Arc::new(AtomicU64::new(u64::MAX));
        let calls = Arc::new(AtomicU64::new(0));
        let (seen, counted) = (last.clone(), calls.clone());
        let transfer = Transfer::new().progress(move |done, total| {
            let before = seen.swap(done, Ordering::Relaxed);
            assert!(done == 0 || done > before && done <= total);
            counted.fetch_add(1, Ordering::Relaxed);
        });
        let path = folder.file("array");
        let mut array =
            GlobalArray::<u64, 2>::from_fn(world, [3000, 2000], |[i, j]| (i * j) as u64)?;
        array.save_zarr_with(&path, [300, 700], &transfer)?;
        let written = world.all_reduce(last.load(Ordering::Relaxed), Op::Sum)?;
        assert_eq!(written, 48_000_000);
        let read = |calls_before: u64| {
            // Half of the array in pieces of at most 8 MiB.
            assert_eq!(last.load(Ordering::Relaxed), 24_000_000);
            assert!(calls.load(Ordering::Relaxed) >= calls_before + 4);
        };
        let before = calls.load(Ordering::Relaxed);
        let again = GlobalArray::<u64, 2>::load_zarr_with(world, &path, &transfer)?;
        read(before);
        for [i, j] in [[0, 0], [299, 700], [1500, 1399], [1499, 1400], [2999, 1999]] {
            assert_eq!(again.get([i, j])?, (i * j) as u64);
        }
        world.barrier()?;
        array.fill(0)?;
        let before = calls.load(Ordering::Relaxed);
        array.read_zarr_with(&path, &transfer)?;
        read(before);
        let sum = |end: u64| end * (end - 1) / 2;
        assert_eq!(array.sum()?, sum(3000) * sum(2000));
        Ok(())
    });
}

/// What a killed job has left goes with the next write.
#[test]
fn what_a_killed_job_leaves() {
    let folder = Folder::new("zarr-killed");
    let path = folder.file("array");
    let names = || {
        let folder = std::fs::read_dir(&folder.0).unwrap();
        let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect::<Vec<_>>()
    };
    if std::env::var_os(INSIDE).is_some() {
        let outcome = folder.ranks(2).outcome(|world| {
            let me = world.rank();
            let transfer = Transfer::new().progress(move |done, _| {
                if done > 0 && me == 0 {
                    let own = rustix::process::getpid();
                    let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
                }
            });
            let mut array = GlobalArray::<u64>::from_fn(world, 1000, |k| k as u64)?;
            array.save_zarr_with(&path, [10], &transfer)
        });
        assert!(!outcome.success(), "{outcome}");
        return;
    }
    if folder.1 {
        for _ in 0..2 {
            run_again("what_a_killed_job_leaves", INSIDE, &folder, &[]);
            let left = names();
            assert!(left.len() == 1 && left[0].ends_with(".part"), "{left:?}");
        }
    }
    folder.ranks(3).run(|world| {
        let mut array = GlobalArray::<u64>::from_fn(world, 1000, |k| k as u64)?;
        let mut other = array.map(|x| x + 1)?;
        array.save_zarr(&path, [100])?;
        assert_eq!(names(), ["array"]);
        assert!(other.save_zarr(&path, [100]).is_err());
        let again = GlobalArray::<u64>::load_zarr(world, &path)?;
        assert!(again.get_range(0..1000)?.into_iter().eq(0..1000));
        world.barrier()
    });
}

/// All ranks write to one path, each for itself: one of them is first, and whole.
#[test]
fn one_path_for_several() {
    let folder = Folder::new("zarr-several");
    folder.ranks(4).run(|world| {
        let alone = world.split(world.rank(), 0)?;
        for turn in 0..10 {
            let path = folder.file(&format!("{turn}"));
            let me = world.rank() as u64;
            let mut array = GlobalArray::<u64>::from_fn(&alone, 1000, |_| me)?;
            world.barrier()?;
            let saved = array.save_zarr(&path, [100]);
            if let Err(error) = &saved {
                assert_eq!(error.kind(), ErrorKind::Io, "{error}");
            }
            let saved = world.all_gather(saved.is_ok())?;
            let first: Vec<usize> = (0..4).filter(|&rank| saved[rank]).collect();
            assert_eq!(first.len(), 1, "{saved:?}");
            let found = GlobalArray::<u64>::load_zarr(&alone, &path)?;
            let right = first[0] as u64;
            assert!(found.get_range(0..1000)?.into_iter().all(|x| x == right));
            world.barrier()?;
            let left = std::fs::read_dir(&folder.0).unwrap().count();
            assert_eq!(left, turn + 1);
            world.barrier()?;
        }
        Ok(())
    });
}
