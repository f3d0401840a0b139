//! Zarr, version 3, by the crate `zarrs`: a folder of compressed chunks.

use super::{agree, failed};
use crate::array::rows::rows_mut;
use crate::array::{GlobalArray, index_at};
use crate::dist::Slice;
use crate::element::Element;
use crate::error::{Error, ErrorKind, Result};
use crate::world::Team;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zarrs::array::codec::GzipCodec;
use zarrs::array::{Array, ArrayBuilder, DataType, ElementOwned, FillValue};
use zarrs::array_subset::ArraySubset;
use zarrs::filesystem::FilesystemStore;

/// Types that Zarr has, too: integers of 1 to 8 bytes, `f32`, `f64` and `bool`.
pub trait Zarr: Element + ElementOwned + sealed::Zarr {}

pub(crate) mod sealed {
    use zarrs::array::{DataType, FillValue};

    pub trait Zarr {
        fn data_type() -> DataType;
        fn fill() -> FillValue;
    }
}

macro_rules! zarr {
    ($($type:ty: $name:ident $fill:expr;)*) => {$(
        impl Zarr for $type {}
        impl sealed::Zarr for $type {
            fn data_type() -> DataType {
                DataType::$name
            }

            fn fill() -> FillValue {
                FillValue::from($fill)
            }
        }
    )*};
}
zarr! {
    i8: Int8 0_i8;
    u8: UInt8 0_u8;
    i16: Int16 0_i16;
    u16: UInt16 0_u16;
    i32: Int32 0_i32;
    u32: UInt32 0_u32;
    i64: Int64 0_i64;
    u64: UInt64 0_u64;
    f32: Float32 0.0_f32;
    f64: Float64 0.0_f64;
    bool: Bool false;
}

type Stored = Array<FilesystemStore>;

fn wrong(path: &Path, error: impl std::fmt::Display) -> Error {
    Error::new(
        ErrorKind::Io,
        format!("zarr array {}: {error}", path.display()),
    )
}

fn open(path: &Path) -> Result<Stored> {
    let store = FilesystemStore::new(path).map_err(|error| wrong(path, error))?;
    Array::open(Arc::new(store), "/").map_err(|error| wrong(path, error))
}

impl<T: Zarr, const D: usize> GlobalArray<T, D> {
    /// Writes the array to a Zarr array, a new folder at `path`: gzip-compressed chunks of this shape,
    /// each by one rank, which reads its elements from where they are.
    ///
    /// Collective, and a [barrier](Team::barrier) at the beginning and the end. With feature `zarr`.
    ///
    /// # Errors
    /// On all ranks: [`ErrorKind::InvalidArgument`] if a chunk has no elements; [`ErrorKind::Io`] if
    /// there is something at `path` already, or if a rank cannot write; then there is nothing at
    /// `path`. Else as [`GlobalArray::read`].
    #[track_caller]
    pub fn save_zarr(&mut self, path: impl AsRef<Path>, chunk: [usize; D]) -> Result<()> {
        let (team, path) = (self.team(), path.as_ref());
        if chunk.contains(&0) {
            self.window.core().refuse();
            let text = format!("save_zarr in chunks of {chunk:?}");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".part");
        let part = path.with_file_name(name);
        let made = match team.rank() {
            0 => create::<T, D>(path, &part, self.shape(), chunk),
            _ => Ok(()),
        };
        agree(&team, made)?;
        let view = self.read()?;
        let written = open(&part).and_then(|stored| {
            let shape = view.global_shape();
            let grid: [usize; D] = std::array::from_fn(|d| shape[d].div_ceil(chunk[d]));
            let chunks = grid.iter().product();
            for number in (team.rank()..chunks).step_by(team.size()) {
                let place = index_at(number, grid);
                let slices: [Slice; D] = std::array::from_fn(|d| {
                    let start = place[d] * chunk[d];
                    Slice {
                        start,
                        step: 1,
                        count: chunk[d].min(shape[d] - start),
                    }
                });
                let values = view.array.load_section(slices)?;
                let ranges = slices.map(|it| it.start as u64..(it.start + it.count) as u64);
                stored
                    .store_array_subset_elements(&ArraySubset::new_with_ranges(&ranges), &values)
                    .map_err(|error| wrong(path, error))?;
            }
            Ok(())
        });
        let written = agree(&team, written).and_then(|()| {
            let renamed = match team.rank() {
                0 => fs::rename(&part, path).map_err(|error| failed("renaming to", path, &error)),
                _ => Ok(()),
            };
            agree(&team, renamed)
        });
        if written.is_err() && team.rank() == 0 {
            // It is of no use; the error is on its way.
            let _ = fs::remove_dir_all(&part);
        }
        view.close()?;
        written
    }

    /// The array that is in a Zarr array, in blocks: any chunks, and any compression that `zarrs` was
    /// built with.
    ///
    /// Collective. With feature `zarr`.
    ///
    /// # Errors
    /// On all ranks: [`ErrorKind::Io`] if one cannot read; [`ErrorKind::InvalidArgument`] if it has
    /// another type or number of dimensions; else as [`GlobalArray::new`].
    #[track_caller]
    pub fn load_zarr(world: &Team, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let shape = shape_of::<T, D>(world, path)?;
        let mut array: Self = Self::builder(world, shape).build()?;
        array.fill_from_zarr(path)?;
        Ok(array)
    }

    /// Fills the array, which may have any distribution, with a Zarr array of its shape. Else as
    /// [`GlobalArray::load_zarr`].
    ///
    /// # Errors
    /// As [`GlobalArray::load_zarr`]; [`ErrorKind::InvalidArgument`] on all ranks if the shapes differ.
    #[track_caller]
    pub fn read_zarr(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let shape = shape_of::<T, D>(&self.team(), path)?;
        if shape != self.shape() {
            let (path, own) = (path.display(), self.shape());
            let text = format!("{path} has an array of {shape:?}, not {own:?}");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        self.fill_from_zarr(path)
    }

    #[track_caller]
    fn fill_from_zarr(&mut self, path: &Path) -> Result<()> {
        let team = self.team();
        let Some(ranges) = self.owned(team.rank()).ranges() else {
            let mut rows = self.in_rows()?;
            rows.fill_from_zarr(path)?;
            return self.copy_from(&mut rows);
        };
        let ranges = ranges.map(|range| range.start as u64..range.end as u64);
        let values = if ranges.iter().any(|range| range.is_empty()) {
            Ok(Vec::new())
        } else {
            open(path).and_then(|stored| {
                stored
                    .retrieve_array_subset_elements::<T>(&ArraySubset::new_with_ranges(&ranges))
                    .map_err(|error| wrong(path, error))
            })
        };
        let values = agree(&team, values)?;
        let layout = self.layout.clone();
        let mut view = self.local()?;
        let mut values = values.into_iter();
        for row in rows_mut(&layout, team.rank(), &mut view, false) {
            row.iter_mut()
                .zip(&mut values)
                .for_each(|(to, value)| *to = value);
        }
        view.close()
    }
}

fn create<T: Zarr, const D: usize>(
    path: &Path,
    part: &PathBuf,
    shape: [usize; D],
    chunk: [usize; D],
) -> Result<()> {
    if path.exists() {
        return Err(Error::new(
            ErrorKind::Io,
            format!("writing {}: there is something already", path.display()),
        ));
    }
    // What a job that was killed has left.
    if part.exists() {
        fs::remove_dir_all(part).map_err(|error| failed("removing", part, &error))?;
    }
    fs::create_dir(part).map_err(|error| failed("writing", part, &error))?;
    let store = FilesystemStore::new(part).map_err(|error| wrong(path, error))?;
    let gzip = GzipCodec::new(1).map_err(|error| wrong(path, error))?;
    let chunk: Vec<u64> = chunk.iter().map(|&len| len as u64).collect();
    let stored = ArrayBuilder::new(
        shape.iter().map(|&len| len as u64).collect::<Vec<_>>(),
        chunk,
        T::data_type(),
        T::fill(),
    )
    .bytes_to_bytes_codecs(vec![Arc::new(gzip)])
    .build(Arc::new(store), "/")
    .map_err(|error| wrong(path, error))?;
    stored.store_metadata().map_err(|error| wrong(path, error))
}

/// The shape of a Zarr array of `T`s. Collective.
#[track_caller]
fn shape_of<T: Zarr, const D: usize>(team: &Team, path: &Path) -> Result<[usize; D]> {
    let found = match team.rank() {
        0 => open(path).and_then(|stored| {
            let other = |what: String| {
                let text = format!("{} has {what}", path.display());
                Err(Error::new(ErrorKind::InvalidArgument, text))
            };
            if *stored.data_type() != T::data_type() {
                return other(format!(
                    "elements of type {}, not {}",
                    stored.data_type(),
                    T::data_type()
                ));
            }
            let shape: Vec<usize> = stored
                .shape()
                .iter()
                .map(|&len| usize::try_from(len).unwrap_or(usize::MAX))
                .collect();
            match <[usize; D]>::try_from(shape) {
                Ok(shape) => Ok(shape),
                Err(shape) => other(format!("an array of {} dimensions, not {D}", shape.len())),
            }
        }),
        _ => Ok([0; D]),
    };
    let mut shape = agree(team, found)?;
    team.broadcast_slice(0, &mut shape)?;
    Ok(shape)
}
