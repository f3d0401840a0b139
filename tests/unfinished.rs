//! Files that cannot be finished, or begun, and large ones: what was there stays there, and nothing of
//! the new one is left for good.

mod model;

use model::folder::{Folder, only_file, run_again, run_on_a_disk};
use pgas::{ErrorKind, GlobalArray, Transfer, World};
use std::path::Path;

/// Set in the processes that a test starts of itself.
const INSIDE: &str = "FILES_TEST_INSIDE";

fn numbers(world: &World, len: usize) -> pgas::Result<GlobalArray<u64>> {
    GlobalArray::from_fn(world, len, |k| k as u64)
}

/// Names in the folder of a file that are not its own.
fn others(path: &Path) -> Vec<String> {
    let folder = std::fs::read_dir(path.parent().unwrap()).unwrap();
    let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let own = path.file_name().unwrap().to_str().unwrap();
    names.filter(|name| name != own).collect()
}

/// Rank 0 is killed while it writes, as all are when a machine is: the old file is there, and the
/// next write takes away what was left.
#[test]
fn what_a_killed_job_leaves() {
    let folder = Folder::new("killed");
    let path = folder.file("array");
    if std::env::var_os(INSIDE).is_some() {
        let outcome = folder.ranks(2).outcome(|world| {
            let me = world.rank();
            let transfer = Transfer::new().progress(move |done, _| {
                if done > 0 && me == 0 {
                    let own = rustix::process::getpid();
                    let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
                }
            });
            numbers(world, 3_000_000)?.checkpoint_with(&path, &transfer)
        });
        assert!(!outcome.success(), "{outcome}");
        return;
    }
    folder
        .ranks(2)
        .run(|world| numbers(world, 1000)?.checkpoint(&path));
    // Not this file's.
    let other = folder.file("array2.0123456789abcdef0123456789abcdef.part");
    if folder.1 {
        std::fs::write(&other, "of another file").unwrap();
        for _ in 0..2 {
            run_again("what_a_killed_job_leaves", INSIDE, &folder, &[]);
            // That of the job before is gone, its own is there.
            let left = others(&path);
            assert_eq!(left.len(), 2, "{left:?}");
        }
    }
    folder.ranks(3).run(|world| {
        let old = GlobalArray::<u64>::restore(world, &path)?;
        assert!(old.get_range(0..1000)?.into_iter().eq(0..1000));
        numbers(world, 50)?.save_raw(&path)?;
        assert_eq!(
            others(&path),
            [other.file_name().unwrap().to_str().unwrap()]
        );
        world.barrier()
    });
    if folder.1 {
        assert_eq!(std::fs::read(&path).unwrap().len(), 50 * 8);
    }
}

/// Two teams write to one path at once, again and again: neither takes the other's for left, and there
/// is always a whole one.
#[test]
fn one_path_for_two() {
    let folder = Folder::new("two");
    let path = folder.file("array");
    folder.ranks(4).run(|world| {
        let half = world.split(world.rank() % 2, 0)?;
        let mut array = GlobalArray::<u64>::from_fn(&half, 1000, |k| k as u64)?;
        array.checkpoint(&path)?;
        for _ in 0..50 {
            array.checkpoint(&path)?;
            let found = GlobalArray::<u64>::restore(&half, &path)?;
            assert!(found.get_range(0..1000)?.into_iter().eq(0..1000));
            half.barrier()?;
        }
        world.barrier()?;
        only_file(&path);
        world.barrier()
    });
}

/// A disk of 1 MiB: what was there stays there.
#[test]
fn a_full_disk() {
    let folder = Folder::new("full");
    if std::env::var_os(INSIDE).is_none() && folder.1 {
        let mount = "mount -t tmpfs -o size=1m none \"$0\"";
        return run_on_a_disk("a_full_disk", INSIDE, &folder, mount);
    }
    folder.ranks(2).run(|world| {
        let path = folder.file("disk/array");
        let mut small = GlobalArray::<u64>::from_fn(world, 1000, |k| k as u64)?;
        small.checkpoint(&path)?;
        let mut large = GlobalArray::<u64>::from_fn(world, 1 << 20, |k| k as u64)?;
        for error in [large.checkpoint(&path), large.save_npy(&path)] {
            let error = error.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io, "{error}");
            assert!(error.to_string().contains("No space left"), "{error}");
        }
        only_file(&path);
        let restored = GlobalArray::<u64>::restore(world, &path)?;
        assert!(restored.get_range(0..1000)?.into_iter().eq(0..1000));
        world.barrier()
    });
}

/// Where no rank can write there is what there was.
#[test]
fn a_folder_that_is_read_only() {
    let folder = Folder::new("read-only");
    if std::env::var_os(INSIDE).is_none() && folder.1 {
        let mount = "mount -t tmpfs -o size=1m none \"$0\" && echo old > \"$0/array\" \
                     && mount -o remount,ro \"$0\"";
        return run_on_a_disk("a_folder_that_is_read_only", INSIDE, &folder, mount);
    }
    folder.ranks(3).run(|world| {
        let path = folder.file("disk/array");
        let mut array = numbers(world, 1000)?;
        let saved = [
            array.checkpoint(&path),
            array.save_npy(&path),
            array.save_raw(&path),
        ];
        for error in saved {
            let error = error.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io, "{error}");
            assert!(error.to_string().contains("Read-only"), "{error}");
        }
        // On one rank only: of all ranks the path is rank 0's.
        let other = folder.file("array");
        let mine = if world.rank() == 0 { &path } else { &other };
        let error = array.save_raw(mine).unwrap_err();
        assert!(error.to_string().contains("Read-only"), "{error}");
        assert!(!other.exists());
        assert_eq!(std::fs::read(&path).unwrap(), b"old\n");
        only_file(&path);
        world.barrier()
    });
}

/// More than 2 GiB, nearly all of it a hole.
#[test]
fn offsets_beyond_two_gigabytes() {
    let folder = Folder::new("sparse");
    folder.ranks(2).run(|world| {
        let path = folder.file("sparse");
        const HOLE: u64 = 5 << 30;
        if world.rank() == 0 {
            let file = std::fs::File::create(&path).unwrap();
            file.set_len(HOLE).unwrap();
            let values: Vec<u8> = (0..100_u64).flat_map(u64::to_ne_bytes).collect();
            std::os::unix::fs::FileExt::write_all_at(&file, &values, HOLE).unwrap();
        }
        world.barrier()?;
        let mut array = GlobalArray::<u64>::new(world, 100)?;
        array.load_raw(&path, HOLE)?;
        assert!(array.get_range(0..100)?.into_iter().eq(0..100));
        world.barrier()
    });
}
