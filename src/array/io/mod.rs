//! Arrays in files: every rank reads and writes its own elements, at their offsets.
//!
//! All of these are collective, and what fails on one rank is an error on all. A file is written
//! under another name and renamed when all ranks have written their part, so a path always leads
//! to the old file or to the whole new one, and what a killed job has left of a new one goes with the
//! next. All ranks must see one file system.

mod checkpoint;
#[cfg(test)]
mod fuzz;
mod npy;
mod raw;
mod runs;
#[cfg(test)]
mod tests;
mod unfinished;
#[cfg(feature = "zarr")]
mod zarr;

pub use npy::Numpy;
#[cfg(feature = "zarr")]
pub use zarr::Zarr;

use super::GlobalArray;
use super::races::Access;
use crate::element::{self, Element};
use crate::error::{Error, ErrorKind, Result};
use crate::world::Team;
use runs::{Run, runs};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use unfinished::{Unfinished, folder_of};

/// Most bytes of one read or write.
const PIECE: usize = 8 << 20;

/// In which order a file has the elements of an array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// The last index runs fastest: rows, one after another.
    #[default]
    C,
    /// The first index runs fastest: columns, one after another.
    Fortran,
}

/// How files are read and written: the order of elements, and who wants to see the progress.
///
/// ```no_run
/// # fn f(array: &mut pgas::GlobalArray<f64, 2>) -> pgas::Result<()> {
/// use pgas::{Order, Transfer};
/// let transfer = Transfer::new()
///     .order(Order::Fortran)
///     .progress(|done, total| eprintln!("{done} of {total} bytes"));
/// array.save_npy_with("plane.npy", &transfer)
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Transfer {
    order: Order,
    progress: Option<Arc<Progress>>,
}

type Progress = dyn Fn(u64, u64) + Send + Sync;

impl Transfer {
    /// In C order, without a word.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The order of elements in a file that is written. Files that are read say it themselves, but
    /// raw ones.
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Calls `progress` on each rank, before the first and after each piece of a few MiB: bytes that
    /// this rank has transferred, and how many it will.
    #[must_use]
    pub fn progress(mut self, progress: impl Fn(u64, u64) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(progress));
        self
    }

    fn tell(&self, done: u64, total: u64) {
        if let Some(progress) = &self.progress {
            progress(done, total);
        }
    }
}

impl std::fmt::Debug for Transfer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transfer")
            .field("order", &self.order)
            .finish_non_exhaustive()
    }
}

/// An error of the system, about a file.
fn failed(doing: &str, path: &Path, error: &io::Error) -> Error {
    Error::new(
        ErrorKind::Io,
        format!("{doing} {}: {error}", path.display()),
    )
}

/// All ranks learn whether all have come so far: the first failure is everybody's.
#[track_caller]
pub(super) fn agree<R>(team: &Team, mine: Result<R>) -> Result<R> {
    let said = mine
        .as_ref()
        .err()
        .map(|error| (number(error.kind()), error.to_string()));
    let all = team.all_gather_obj(&said)?;
    let first = all
        .into_iter()
        .enumerate()
        .find_map(|(rank, said)| Some((rank, said?)));
    match (first, mine) {
        (None, mine) => mine,
        (Some((rank, _)), Err(error)) if rank == team.rank() => Err(error),
        (Some((rank, (kind, text))), _) => {
            Err(Error::new(kind_of(kind), format!("rank {rank}: {text}")).with_peer(rank))
        }
    }
}

/// The kinds that failures of one rank have, so that they travel.
const KINDS: [ErrorKind; 4] = [
    ErrorKind::Io,
    ErrorKind::InvalidValue,
    ErrorKind::InvalidArgument,
    ErrorKind::NoRoom,
];

fn number(kind: ErrorKind) -> usize {
    KINDS.iter().position(|it| *it == kind).unwrap_or(0)
}

fn kind_of(number: usize) -> ErrorKind {
    KINDS.get(number).copied().unwrap_or(ErrorKind::Io)
}

/// A file that is being written, under another name until it is complete.
struct NewFile<'a> {
    team: &'a Team,
    path: &'a Path,
    other: PathBuf,
    /// This rank's way into it; rank 0's is locked.
    file: File,
    complete: bool,
}

impl<'a> NewFile<'a> {
    /// Makes it, `len` bytes long, beginning with `head`. Collective.
    #[track_caller]
    fn create(team: &'a Team, path: &'a Path, head: &[u8], len: u64) -> Result<Self> {
        let made = match team.rank() {
            0 => make(team, path, head, len).map(Some),
            _ => Ok(None),
        };
        let made = agree(team, made)?;
        let number = made.as_ref().map_or(0, |made| made.number);
        let other = unfinished::name(path, team.broadcast(0, number)?);
        let opened = match made {
            Some(made) => Ok(made.file),
            None => OpenOptions::new().write(true).open(&other),
        };
        let opened = opened.map_err(|error| failed("writing", &other, &error));
        match agree(team, opened) {
            Ok(file) => Ok(Self {
                team,
                path,
                other,
                file,
                complete: false,
            }),
            Err(error) => {
                if team.rank() == 0 {
                    // What is not there need not be removed.
                    let _ = fs::remove_file(&other);
                }
                Err(error)
            }
        }
    }

    /// Every rank has written its part, or not. Collective.
    #[track_caller]
    fn finish(mut self, written: Result<()>) -> Result<()> {
        let synced = written.and_then(|()| {
            let synced = self.file.sync_all();
            synced.map_err(|error| failed("writing", &self.other, &error))
        });
        agree(self.team, synced)?;
        let renamed = if self.team.rank() == 0 {
            fs::rename(&self.other, self.path)
                .and_then(|()| sync_folder(self.path))
                .map_err(|error| failed("renaming to", self.path, &error))
        } else {
            Ok(())
        };
        agree(self.team, renamed)?;
        self.complete = true;
        Ok(())
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if !self.complete && self.team.rank() == 0 {
            // It is of no use; the error that led here is on its way.
            let _ = fs::remove_file(&self.other);
        }
    }
}

/// Makes what is going to be `path`, with its head and length.
fn make(team: &Team, path: &Path, head: &[u8], len: u64) -> Result<Unfinished> {
    let made = Unfinished::file(team, path);
    let made = made.map_err(|error| failed("writing", path, &error))?;
    let begun = made
        .file
        .write_all_at(head, 0)
        .and_then(|()| made.file.set_len(len));
    begun.map_err(|error| {
        let _ = fs::remove_file(&made.path);
        failed("writing", path, &error)
    })?;
    Ok(made)
}

/// The new name is on the disk, too.
fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(folder_of(path))?.sync_all()
}

/// Writes this rank's elements, which begin at byte `at`.
fn write_elements<T: Element>(
    (file, path): (&File, &Path),
    at: u64,
    runs: &[Run],
    memory: &[T],
    transfer: &Transfer,
) -> Result<()> {
    let mut counter = Counter::of(runs.iter().map(|run| run.count * size_of::<T>()), transfer);
    for run in runs {
        let place = at + run.file * size_of::<T>() as u64;
        let spaced: Vec<T>;
        let values = if run.step == 1 {
            &memory[run.memory..run.memory + run.count]
        } else {
            let elements = memory[run.memory..].iter().step_by(run.step);
            spaced = elements.take(run.count).copied().collect();
            &spaced
        };
        let mut place = place;
        for bytes in bytemuck::cast_slice::<T, u8>(values).chunks(PIECE) {
            file.write_all_at(bytes, place)
                .map_err(|error| failed("writing", path, &error))?;
            place += bytes.len() as u64;
            counter.add(bytes.len());
        }
    }
    Ok(())
}

/// Reads this rank's elements, which begin at byte `at`.
fn read_elements<T: Element>(
    (file, path): (&File, &Path),
    at: u64,
    runs: &[Run],
    memory: &mut [T],
    transfer: &Transfer,
    swap: Swap<'_>,
) -> Result<()> {
    let mut counter = Counter::of(runs.iter().map(|run| run.count * size_of::<T>()), transfer);
    let mut read = |bytes: &mut [u8], mut place: u64| {
        for piece in bytes.chunks_mut(PIECE) {
            file.read_exact_at(piece, place)
                .map_err(|error| failed("reading", path, &error))?;
            swap(piece);
            place += piece.len() as u64;
            counter.add(piece.len());
        }
        Ok::<_, Error>(())
    };
    for run in runs {
        let place = at + run.file * size_of::<T>() as u64;
        if run.step == 1
            && let Some(bytes) = element::bytes_mut(&mut memory[run.memory..run.memory + run.count])
        {
            read(bytes, place)?;
            continue;
        }
        let mut bytes = vec![0; run.count * size_of::<T>()];
        read(&mut bytes, place)?;
        let mut values = element::Arriving::<T>::with_bytes(bytes.len());
        values.write(0, &bytes);
        let to = memory[run.memory..].iter_mut().step_by(run.step);
        to.zip(values.into_values()?)
            .for_each(|(to, value)| *to = value);
    }
    Ok(())
}

/// Turns the bytes of numbers round, if they have to be.
type Swap<'a> = &'a dyn Fn(&mut [u8]);

/// Tells of progress.
struct Counter<'a> {
    done: u64,
    total: u64,
    transfer: &'a Transfer,
}

impl<'a> Counter<'a> {
    /// Of pieces of so many bytes.
    fn of(pieces: impl Iterator<Item = usize>, transfer: &'a Transfer) -> Self {
        let total = pieces.map(|bytes| bytes as u64).sum();
        transfer.tell(0, total);
        Self {
            done: 0,
            total,
            transfer,
        }
    }

    fn add(&mut self, bytes: usize) {
        self.done += bytes as u64;
        self.transfer.tell(self.done, self.total);
    }
}

impl<T: Element, const D: usize> GlobalArray<T, D> {
    /// Writes a file of `head` and all elements. Collective.
    #[track_caller]
    fn save_elements(&mut self, path: &Path, head: &[u8], transfer: &Transfer) -> Result<()> {
        let team = self.team();
        let Some(runs) = runs(&self.layout, team.rank(), transfer.order) else {
            return self.in_rows()?.save_elements(path, head, transfer);
        };
        let at = head.len() as u64;
        let view = self.read()?;
        let len = at + view.global_len() as u64 * size_of::<T>() as u64;
        let file = NewFile::create(&team, path, head, len)?;
        let written = write_elements((&file.file, &file.other), at, &runs, &view, transfer);
        file.finish(written)?;
        view.close()
    }

    /// Fills the array from a file whose elements begin at byte `at`. Collective.
    #[track_caller]
    fn load_elements(
        &mut self,
        path: &Path,
        at: u64,
        transfer: &Transfer,
        swap: Swap<'_>,
    ) -> Result<()> {
        let team = self.team();
        let Some(runs) = runs(&self.layout, team.rank(), transfer.order) else {
            let mut rows = self.in_rows()?;
            rows.load_elements(path, at, transfer, swap)?;
            return self.copy_from(&mut rows);
        };
        let file = File::open(path).and_then(|file| {
            let len = file.metadata()?.len();
            Ok((file, len))
        });
        let file = file.map_err(|error| failed("reading", path, &error));
        // More than can be counted is more than any file has.
        let bytes = (self.len() as u64).checked_mul(size_of::<T>() as u64);
        let wanted = bytes.and_then(|bytes| at.checked_add(bytes));
        let file = file.and_then(|(file, len)| {
            if wanted.is_some_and(|wanted| wanted <= len) {
                return Ok(file);
            }
            Err(Error::new(
                ErrorKind::Io,
                format!(
                    "{} has {len} bytes, not {} elements of {} bytes from byte {at} on: it is cut short",
                    path.display(),
                    self.len(),
                    size_of::<T>()
                ),
            ))
        });
        let file = agree(&team, file)?;
        let mut view = self.local()?;
        let read = read_elements((&file, path), at, &runs, &mut view, transfer, swap);
        let read = agree(&team, read);
        view.close()?;
        read
    }

    /// Writes elements to where they belong: `values` are those from place `start` on in C order.
    /// Collective.
    #[track_caller]
    fn scatter_flat(&mut self, call: &'static str, start: usize, values: &[T]) -> Result<()> {
        let put = self.put_flat(Access::write(call, Location::caller()), start, values);
        self.team().barrier()?;
        put
    }

    fn put_flat(&self, access: Access, start: usize, mut values: &[T]) -> Result<()> {
        self.mode.check_open(access.call)?;
        for slices in self.layout.boxes_of_range(start..start + values.len()) {
            let len = slices.iter().map(|slice| slice.count).product();
            let (here, rest) = values.split_at(len);
            self.note_section(access, slices)?;
            self.store_section(slices, here)?;
            values = rest;
        }
        Ok(())
    }

    /// A copy whose ranks hold whole rows, one rank after another.
    #[track_caller]
    fn in_rows(&mut self) -> Result<Self> {
        let dist = |d| match d {
            0 => crate::Dist::Block,
            _ => crate::Dist::Whole,
        };
        self.redistribute(std::array::from_fn(dist))
    }
}
