//! Zarr arrays, with feature `zarr`.

#![expect(clippy::cast_possible_truncation, reason = "test numbers are small")]

mod model;

use model::{Case, Random, everywhere, indices};
use pgas::testing::on_ranks;
use pgas::{ErrorKind, GlobalArray};
use std::path::{Path, PathBuf};

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
