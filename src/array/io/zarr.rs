//! Zarr, version 3, by the crate `zarrs`: a folder of compressed chunks.

use super::unfinished::{self, Unfinished};
use super::{Counter, PIECE, Transfer, agree, failed};
use crate::array::{GlobalArray, index_at};
use crate::dist::{Layout, Slice};
use crate::element::Element;
use crate::error::{Error, ErrorKind, Result};
use crate::world::Team;
use std::fs;
use std::ops::Range;
use std::path::Path;
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
        self.save_zarr_with(path, chunk, &Transfer::new())
    }

    /// As [`GlobalArray::save_zarr`], with a word on the progress, chunk by chunk. The order is C's.
    ///
    /// # Errors
    /// As [`GlobalArray::save_zarr`].
    #[track_caller]
    pub fn save_zarr_with(
        &mut self,
        path: impl AsRef<Path>,
        chunk: [usize; D],
        transfer: &Transfer,
    ) -> Result<()> {
        let (team, path) = (self.team(), path.as_ref());
        if chunk.contains(&0) {
            self.window.core().refuse();
            let text = format!("save_zarr in chunks of {chunk:?}");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let view = self.read()?;
        let made = match team.rank() {
            0 => create::<T, D>(&team, path, view.global_shape(), chunk).map(Some),
            _ => Ok(None),
        };
        // Locked as long as it is not finished.
        let made = agree(&team, made)?;
        let number = made.as_ref().map_or(0, |made| made.number);
        let part = unfinished::name(path, team.broadcast(0, number)?);
        let written = open(&part).and_then(|stored| {
            let shape = view.global_shape();
            let grid: [usize; D] = std::array::from_fn(|d| shape[d].div_ceil(chunk[d]));
            let chunks = grid.iter().product();
            let chunks = (team.rank()..chunks).step_by(team.size());
            let slices_of = |number| -> [Slice; D] {
                let place = index_at(number, grid);
                std::array::from_fn(|d| {
                    let start = place[d] * chunk[d];
                    Slice {
                        start,
                        step: 1,
                        count: chunk[d].min(shape[d] - start),
                    }
                })
            };
            let mut counter = Counter::of(
                chunks.clone().map(|k| bytes_of::<T, D>(&slices_of(k))),
                transfer,
            );
            for slices in chunks.map(slices_of) {
                let values = view.array.load_section(slices)?;
                stored
                    .store_array_subset_elements(&subset(&slices), &values)
                    .map_err(|error| wrong(path, error))?;
                counter.add(bytes_of::<T, D>(&slices));
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
        Self::load_zarr_with(world, path, &Transfer::new())
    }

    /// As [`GlobalArray::load_zarr`], with a word on the progress.
    ///
    /// # Errors
    /// As [`GlobalArray::load_zarr`].
    #[track_caller]
    pub fn load_zarr_with(
        world: &Team,
        path: impl AsRef<Path>,
        transfer: &Transfer,
    ) -> Result<Self> {
        let path = path.as_ref();
        let shape = shape_of::<T, D>(world, path)?;
        let mut array: Self = Self::builder(world, shape).build()?;
        array.fill_from_zarr(path, transfer)?;
        Ok(array)
    }

    /// Fills the array, which may have any distribution, with a Zarr array of its shape. Else as
    /// [`GlobalArray::load_zarr`].
    ///
    /// # Errors
    /// As [`GlobalArray::load_zarr`]; [`ErrorKind::InvalidArgument`] on all ranks if the shapes differ.
    #[track_caller]
    pub fn read_zarr(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.read_zarr_with(path, &Transfer::new())
    }

    /// As [`GlobalArray::read_zarr`], with a word on the progress.
    ///
    /// # Errors
    /// As [`GlobalArray::read_zarr`].
    #[track_caller]
    pub fn read_zarr_with(&mut self, path: impl AsRef<Path>, transfer: &Transfer) -> Result<()> {
        let path = path.as_ref();
        let shape = shape_of::<T, D>(&self.team(), path)?;
        if shape != self.shape() {
            let (path, own) = (path.display(), self.shape());
            let text = format!("{path} has an array of {shape:?}, not {own:?}");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        self.fill_from_zarr(path, transfer)
    }

    #[track_caller]
    fn fill_from_zarr(&mut self, path: &Path, transfer: &Transfer) -> Result<()> {
        let team = self.team();
        let Some(ranges) = self.owned(team.rank()).ranges() else {
            let mut rows = self.in_rows()?;
            rows.fill_from_zarr(path, transfer)?;
            return self.copy_from(&mut rows);
        };
        let stored = agree(&team, open(path))?;
        let layout = self.layout.clone();
        let mut view = self.local()?;
        let chunk = chunk_of(&stored);
        let boxes = boxes::<T, D>(ranges, chunk);
        let mut counter = Counter::of(boxes.iter().map(bytes_of::<T, D>), transfer);
        let mut read = Ok(());
        for slices in boxes {
            let values = stored
                .retrieve_array_subset_elements::<T>(&subset(&slices))
                .map_err(|error| wrong(path, error));
            match values {
                Ok(values) => spread(&layout, slices, &values, &mut view),
                Err(error) => {
                    read = Err(error);
                    break;
                }
            }
            counter.add(bytes_of::<T, D>(&slices));
        }
        let read = agree(&team, read);
        view.close()?;
        read
    }
}

/// Bytes of a section of `T`s.
fn bytes_of<T, const D: usize>(slices: &[Slice; D]) -> usize {
    let len: usize = slices.iter().map(|slice| slice.count).product();
    len * size_of::<T>()
}

fn subset<const D: usize>(slices: &[Slice; D]) -> ArraySubset {
    let ranges = slices.map(|it| it.start as u64..(it.start + it.count) as u64);
    ArraySubset::new_with_ranges(&ranges)
}

/// The shape of the first chunk, which the others have, too, unless they are at an edge.
fn chunk_of<const D: usize>(stored: &Stored) -> [usize; D] {
    let shape = stored.chunk_shape(&[0; D]).ok();
    std::array::from_fn(|d| {
        let len = shape.as_ref().and_then(|shape| shape.get(d));
        len.map_or(1, |len| usize::try_from(len.get()).unwrap_or(usize::MAX))
    })
}

/// The indices of these ranges in boxes of a few MiB, cut between chunks where that can be.
fn boxes<T, const D: usize>(ranges: [Range<usize>; D], chunk: [usize; D]) -> Vec<[Slice; D]> {
    let mut lists: [Vec<Slice>; D] = std::array::from_fn(|_| Vec::new());
    let mut most = (PIECE / size_of::<T>()).max(1);
    for d in (0..D).rev() {
        // A whole number of chunks, or all.
        let range = &ranges[d];
        let len = match range.len() <= most {
            true => range.end.max(1),
            false => (most / chunk[d]).max(1).saturating_mul(chunk[d]),
        };
        let mut start = range.start;
        while start < range.end {
            let end = (start / len + 1).saturating_mul(len).min(range.end);
            lists[d].push(Slice {
                start,
                step: 1,
                count: end - start,
            });
            start = end;
        }
        most = (most / len.min(range.len()).max(1)).max(1);
    }
    let counts = lists.each_ref().map(Vec::len);
    let number = counts.iter().product();
    let places = (0..number).map(|k| index_at(k, counts));
    places
        .map(|place| std::array::from_fn(|d| lists[d][place[d]]))
        .collect()
}

/// Puts a section of this rank's elements to their places in its memory.
fn spread<T: Copy, const D: usize>(
    layout: &Layout<D>,
    slices: [Slice; D],
    values: &[T],
    memory: &mut [T],
) {
    for row in layout.patches(slices).flat_map(|patch| patch.rows()) {
        for k in 0..row.count {
            memory[row.offset_of(k)] = values[row.at_of(k)];
        }
    }
}

/// Makes what is going to be `path`, an array of no chunks.
fn create<T: Zarr, const D: usize>(
    team: &Team,
    path: &Path,
    shape: [usize; D],
    chunk: [usize; D],
) -> Result<Unfinished> {
    if path.exists() {
        return Err(Error::new(
            ErrorKind::Io,
            format!("writing {}: there is something already", path.display()),
        ));
    }
    let made = Unfinished::folder(team, path);
    let made = made.map_err(|error| failed("writing", path, &error))?;
    describe::<T, D>(&made.path, shape, chunk).map_err(|error| {
        let _ = fs::remove_dir_all(&made.path);
        wrong(path, error)
    })?;
    Ok(made)
}

/// Writes what says what the array is.
fn describe<T: Zarr, const D: usize>(
    path: &Path,
    shape: [usize; D],
    chunk: [usize; D],
) -> Result<(), Box<dyn std::error::Error>> {
    let store = FilesystemStore::new(path)?;
    let chunk: Vec<u64> = chunk.iter().map(|&len| len as u64).collect();
    let stored = ArrayBuilder::new(
        shape.iter().map(|&len| len as u64).collect::<Vec<_>>(),
        chunk,
        T::data_type(),
        T::fill(),
    )
    .bytes_to_bytes_codecs(vec![Arc::new(GzipCodec::new(1)?)])
    .build(Arc::new(store), "/")?;
    Ok(stored.store_metadata()?)
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
