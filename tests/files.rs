//! Arrays in files: numpy reads what is written and the other way round, other numbers of ranks,
//! any distribution, and files that cannot be read or written.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "test numbers are small"
)]

mod model;

use model::folder::{Folder, only_file};
use model::{Case, Random, Value, indices};
use pgas::{Dist, ErrorKind, GlobalArray, Op, Order, Transfer, World};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn python(script: &str) -> String {
    let output = Command::new("/usr/bin/python3")
        .args(["-c", script])
        .output()
        .expect("python3 with numpy is needed: apt-get install python3-numpy");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn same<T: Value, const D: usize>(
    a: &GlobalArray<T, D>,
    b: &GlobalArray<T, D>,
) -> pgas::Result<()> {
    let all = indices(a.shape());
    assert_eq!(a.gather(&all)?, b.gather(&all)?);
    a.flush()
}

fn round_trips<T: Value + pgas::Numpy, const D: usize>(
    world: &World,
    folder: &Folder,
    random: &mut Random,
) -> pgas::Result<()> {
    let case = Case::<D>::random(random, world.size(), 12);
    let mut array = case.filled::<T>(world, 3)?;
    let path = folder.file("array");
    for order in [Order::C, Order::Fortran] {
        let transfer = Transfer::new().order(order);
        array.save_npy_with(&path, &transfer)?;
        same(&array, &GlobalArray::<T, D>::load_npy(world, &path)?)?;
        let mut again = case.filled::<T>(world, 8)?;
        again.read_npy(&path)?;
        same(&array, &again)?;
        array.save_raw_with(&path, &transfer)?;
        let mut again = case.filled::<T>(world, 8)?;
        again.load_raw_with(&path, 0, &transfer)?;
        same(&array, &again)?;
    }
    array.checkpoint(&path)?;
    same(&array, &GlobalArray::<T, D>::restore(world, &path)?)?;
    let mut again = case.filled::<T>(world, 8)?;
    again.read_checkpoint(&path)?;
    same(&array, &again)?;
    only_file(&path);
    world.barrier()
}

#[test]
fn any_distribution_and_type() {
    let folder = Folder::new("round-trips");
    let body = |world: &World| {
        let mut random = Random(1);
        for _ in 0..6 {
            round_trips::<u32, 1>(world, &folder, &mut random)?;
            round_trips::<f64, 2>(world, &folder, &mut random)?;
            round_trips::<bool, 2>(world, &folder, &mut random)?;
            round_trips::<i64, 3>(world, &folder, &mut random)?;
        }
        Ok(())
    };
    folder.ranks(4).run(body);
    folder.ranks(4).env("UCX_TLS", "tcp,self").run(body);
}

/// Those that numpy writes, and some that it does not: `|` is for elements of one byte.
#[test]
fn orders_of_bytes() {
    let folder = Folder::new("orders");
    let write = |name: &str, descr: &str, bytes: &[u8]| {
        let mut text =
            format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (2,), }}").into_bytes();
        text.resize(117, b' ');
        text.push(b'\n');
        let head = [b"\x93NUMPY\x01\x00\x76\x00", &text[..], bytes].concat();
        std::fs::write(folder.file(name), head).unwrap();
    };
    if folder.1 {
        for (name, order) in [("less", '<'), ("native", '=')] {
            write(name, &format!("{order}f8"), bytes_of(1.5));
            write(&format!("{name}-u1"), &format!("{order}u1"), &[3, 4]);
        }
        write(
            "more",
            ">f8",
            bytes_of(f64::from_be_bytes(1.5_f64.to_ne_bytes())),
        );
        write("more-u1", ">u1", &[3, 4]);
        write("none-u1", "|u1", &[3, 4]);
        for (name, descr) in WRONG {
            write(name, descr, bytes_of(1.5));
        }
    }
    folder.ranks(2).run(|world| {
        for name in ["less", "more", "native"] {
            let array = GlobalArray::<f64>::load_npy(world, folder.file(name))?;
            assert_eq!(array.get_range(0..2)?, [1.5, 1.5], "{name}");
        }
        for name in ["less-u1", "more-u1", "native-u1", "none-u1"] {
            let array = GlobalArray::<u8>::load_npy(world, folder.file(name))?;
            assert_eq!(array.get_range(0..2)?, [3, 4], "{name}");
        }
        for (name, descr) in WRONG {
            let error = GlobalArray::<f64>::load_npy(world, folder.file(name)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            let text = error.to_string();
            assert!(text.contains(&format!("{descr:?}")), "{text}");
            assert_eq!(
                text.contains("order of bytes"),
                descr.len() == 3 && descr.ends_with("f8"),
                "{text}"
            );
        }
        world.barrier()
    });
}

/// Types that are none, or others.
const WRONG: [(&str, &str); 6] = [
    ("x", "xf8"),
    ("none", "|f8"),
    ("space", " f8"),
    ("without", "f8"),
    ("nothing", ""),
    ("text", "|S8"),
];

fn bytes_of(value: f64) -> &'static [u8] {
    Box::leak([value.to_ne_bytes(); 2].concat().into_boxed_slice())
}

/// Three files by numpy, three for it.
#[test]
fn numpy_reads_and_writes_the_same() {
    let folder = Folder::new("numpy");
    let at = |name: &str| folder.file(name).display().to_string();
    python(&format!(
        "import numpy as np\n\
         a = np.arange(7 * 5, dtype='f8').reshape(7, 5)\n\
         np.save({:?}, a)\n\
         np.save({:?}, np.asfortranarray(a))\n\
         np.save({:?}, a.astype('>f8'))\n\
         np.save({:?}, np.arange(100) % 3 == 0)\n\
         np.save({:?}, np.zeros(3, dtype='f4,i4'))\n",
        at("c.npy"),
        at("fortran.npy"),
        at("big.npy"),
        at("bool.npy"),
        at("records.npy")
    ));
    folder.ranks(3).run(|world| {
        for name in ["c.npy", "fortran.npy", "big.npy"] {
            let array = GlobalArray::<f64, 2>::load_npy(world, folder.file(name))?;
            let right = (0..35).map(f64::from);
            assert!(
                array.gather(&indices([7, 5]))?.into_iter().eq(right),
                "{name}"
            );
        }
        let array = GlobalArray::<bool>::load_npy(world, folder.file("bool.npy"))?;
        assert!((0..100).all(|k| array.get(k).unwrap() == (k % 3 == 0)));
        let error = GlobalArray::<f64>::load_npy(world, folder.file("records.npy")).unwrap_err();
        assert!(
            error.kind() == ErrorKind::Io && error.to_string().contains("records"),
            "{error}"
        );
        let error = GlobalArray::<f32, 2>::load_npy(world, folder.file("c.npy")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(
            error.to_string().contains("<f8") && error.to_string().contains("f32"),
            "{error}"
        );
        let error = GlobalArray::<f64>::load_npy(world, folder.file("c.npy")).unwrap_err();
        assert!(error.to_string().contains("2 dimensions, not 1"), "{error}");
        let mut other = GlobalArray::<f64, 2>::new(world, [5, 7])?;
        let error = other.read_npy(folder.file("c.npy")).unwrap_err();
        assert!(error.to_string().contains("[7, 5], not [5, 7]"), "{error}");

        let mut plane =
            GlobalArray::<i32, 2>::from_fn(world, [6, 4], |[i, j]| (i * 10 + j) as i32)?;
        plane.save_npy(folder.file("ours.npy"))?;
        let fortran = Transfer::new().order(Order::Fortran);
        plane.save_npy_with(folder.file("ours-fortran.npy"), &fortran)?;
        GlobalArray::<bool>::from_fn(world, 9, |k| k == 4)?
            .save_npy(folder.file("ours-bool.npy"))?;
        GlobalArray::<u8>::new(world, 0)?.save_npy(folder.file("nothing.npy"))
    });
    let said = python(&format!(
        "import numpy as np\n\
         r = [[i * 10 + j for j in range(4)] for i in range(6)]\n\
         a, b = np.load({:?}), np.load({:?})\n\
         print(a.dtype, (a == r).all(), (b == r).all(), b.flags.f_contiguous)\n\
         print(np.load({:?}).nonzero()[0], np.load({:?}).shape)\n",
        at("ours.npy"),
        at("ours-fortran.npy"),
        at("ours-bool.npy"),
        at("nothing.npy")
    ));
    assert_eq!(said, "int32 True True True\n[4] (0,)\n");
}

/// Ranks with 3, 4, 0 and 2 rows write; 3 ranks and 1 rank read. Then two elements, and none.
#[test]
fn empty_ranks_and_other_numbers_of_ranks() {
    let folder = Folder::new("uneven");
    let value = |k: usize| k as f32 * 0.5;
    folder.ranks(4).run(|world| {
        let mut rows = GlobalArray::<f32, 2>::builder(world, [9, 1000])
            .dist([Dist::Irregular(vec![3, 4, 0, 2]), Dist::Whole])
            .from_fn(|[i, j]| value(i * 1000 + j))?;
        rows.save_raw(folder.file("rows"))?;
        rows.checkpoint(folder.file("rows.checkpoint"))?;
        for len in [2, 0] {
            let mut few = GlobalArray::<f32>::from_fn(world, len, value)?;
            few.save_raw(folder.file(&format!("{len}")))?;
            few.checkpoint(folder.file(&format!("{len}.checkpoint")))?;
        }
        // Over a longer file.
        let longer = folder.file("longer");
        if world.rank() == 0 {
            std::fs::write(&longer, vec![7; 100_000]).unwrap();
        }
        world.barrier()?;
        GlobalArray::<f32>::from_fn(world, 5, value)?.save_raw(&longer)
    });
    let bytes = |len: usize| -> Vec<u8> { (0..len).flat_map(|k| value(k).to_ne_bytes()).collect() };
    if folder.1 {
        for (name, len) in [("rows", 9_000), ("2", 2), ("0", 0), ("longer", 5)] {
            assert_eq!(
                std::fs::read(folder.file(name)).unwrap(),
                bytes(len),
                "{name}"
            );
        }
    }
    for ranks in [3, 1] {
        folder.ranks(ranks).run(|world| {
            let mut rows = GlobalArray::<f32, 2>::new(world, [9, 1000])?;
            rows.load_raw(folder.file("rows"), 0)?;
            let again = GlobalArray::<f32, 2>::restore(world, folder.file("rows.checkpoint"))?;
            for array in [&rows, &again] {
                let all = array.gather(&indices([9, 1000]))?;
                assert!(all.into_iter().eq((0..9_000).map(value)));
            }
            world.barrier()?;
            for len in [2, 0] {
                let path = folder.file(&format!("{len}.checkpoint"));
                let few = GlobalArray::<f32>::restore(world, path)?;
                assert!(few.get_range(0..len)?.into_iter().eq((0..len).map(value)));
            }
            // The second half alone.
            let mut half = GlobalArray::<f32>::new(world, 4_500)?;
            half.load_raw(folder.file("rows"), 18_000)?;
            assert_eq!(half.get(7)?, value(4_507));
            world.barrier()
        });
    }
}

#[test]
fn what_fails_on_one_rank_fails_on_all() {
    let folder = Folder::new("failures");
    folder.ranks(3).run(|world| {
        let mut array = GlobalArray::<u64>::from_fn(world, 1000, |k| k as u64)?;
        let path = folder.file("array.npy");
        let missing = folder.file("no such folder/array.npy");
        let refused = |error: pgas::Error, word: &str| {
            assert_eq!(error.kind(), ErrorKind::Io, "{error}");
            assert!(error.to_string().contains(word), "{error}");
        };
        refused(array.save_npy(&missing).unwrap_err(), "no such folder");
        refused(array.checkpoint(&missing).unwrap_err(), "no such folder");
        refused(array.load_raw(&missing, 0).unwrap_err(), "No such file");
        // Another path on one rank, which cannot be written there.
        let mine = if world.rank() == 2 { &missing } else { &path };
        refused(
            array.save_raw(mine).unwrap_err(),
            "rank 2".trim_start_matches(if world.rank() == 2 { "rank 2" } else { "" }),
        );
        array.save_npy(&path)?;
        let change = |change: &dyn Fn(&mut Vec<u8>)| {
            world.barrier().unwrap();
            if world.rank() == 0 {
                let mut bytes = std::fs::read(&path).unwrap();
                change(&mut bytes);
                std::fs::write(&path, bytes).unwrap();
            }
            world.barrier().unwrap();
        };
        change(&|bytes| bytes.truncate(bytes.len() - 1));
        refused(
            GlobalArray::<u64>::load_npy(world, &path).unwrap_err(),
            "cut short",
        );
        change(&|bytes| bytes[3] = b'x');
        refused(
            GlobalArray::<u64>::load_npy(world, &path).unwrap_err(),
            "no .npy file",
        );
        // A bool that is none.
        let mut flags = GlobalArray::<bool>::from_fn(world, 1000, |k| k % 2 == 0)?;
        flags.save_raw(&path)?;
        change(&|bytes| bytes[999] = 7);
        let error = flags.load_raw(&path, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidValue, "{error}");
        // A checkpoint, one bit of which is not what it was.
        array.checkpoint(&path)?;
        for at in [5, 20, 4096 + 4000, 4096 + 8000 + 3] {
            array.checkpoint(&path)?;
            change(&|bytes| bytes[at] ^= 4);
            let error = GlobalArray::<u64>::restore(world, &path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io, "{at}: {error}");
        }
        array.checkpoint(&path)?;
        change(&|bytes| bytes.push(0));
        refused(
            GlobalArray::<u64>::restore(world, &path).unwrap_err(),
            "goes on",
        );
        array.checkpoint(&path)?;
        let error = GlobalArray::<i64>::restore(world, &path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        let error = GlobalArray::<u64, 2>::restore(world, &path).unwrap_err();
        assert!(error.to_string().contains("1 dimensions, not 2"), "{error}");
        // Offsets beyond any file, and beyond what can be counted.
        for offset in [1 << 40, i64::MAX as u64, u64::MAX - 8000, u64::MAX] {
            for mut array in [
                GlobalArray::<u64>::new(world, 1000)?,
                GlobalArray::<u64>::builder(world, 1000)
                    .dist([Dist::Cyclic])
                    .build()?,
                GlobalArray::<u64>::new(world, 0)?,
            ] {
                refused(array.load_raw(&path, offset).unwrap_err(), "cut short");
            }
        }
        // Nothing of all that is left of the array.
        assert!(array.get_range(0..1000)?.into_iter().eq(0..1000));
        only_file(&path);
        world.barrier()
    });
}

#[test]
fn progress_is_told() {
    let folder = Folder::new("progress");
    folder.ranks(2).run(|world| {
        let last = Arc::new(AtomicU64::new(u64::MAX));
        let seen = last.clone();
        let transfer = Transfer::new().progress(move |done, total| {
            let before = seen.swap(done, Ordering::Relaxed);
            assert!(done == 0 || done > before && done <= total);
        });
        let mut array = GlobalArray::<u64>::new(world, 5_000_000)?;
        let mine = array.local_range().len() as u64 * 8;
        array.save_npy_with(folder.file("a"), &transfer)?;
        assert_eq!(last.load(Ordering::Relaxed), mine);
        array.read_npy_with(folder.file("a"), &transfer)?;
        assert_eq!(last.load(Ordering::Relaxed), mine);
        GlobalArray::<u64>::load_npy_with(world, folder.file("a"), &transfer)?;
        assert_eq!(last.load(Ordering::Relaxed), mine);
        array.checkpoint_with(folder.file("a"), &transfer)?;
        assert_eq!(last.load(Ordering::Relaxed), mine);
        // Whole pieces: not the same for all.
        let all = |world: &World| world.all_reduce(last.load(Ordering::Relaxed), Op::Sum);
        last.store(0, Ordering::Relaxed);
        GlobalArray::<u64>::restore_with(world, folder.file("a"), &transfer)?;
        assert_eq!(all(world)?, 40_000_000);
        last.store(0, Ordering::Relaxed);
        array.read_checkpoint_with(folder.file("a"), &transfer)?;
        assert_eq!(all(world)?, 40_000_000);
        assert!(last.load(Ordering::Relaxed) > 0);
        // A distribution whose checkpoint is made of shares.
        let mut cyclic = array.redistribute([Dist::Cyclic])?;
        cyclic.checkpoint_with(folder.file("a"), &transfer)?;
        assert_eq!(last.load(Ordering::Relaxed), mine);
        Ok(())
    });
}
